/** @file families.c  The list of all families. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

const ts_sample_family *const ts_sample_families[] = {
#define TS_FAMILY(family) &ts_family_##family,
#include "conformance/families.def"
#undef TS_FAMILY
};
const int ts_sample_family_count = TS_COUNTOF(ts_sample_families);
