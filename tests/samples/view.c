/** @file view.c  Samples of views. */
// SPDX-License-Identifier: MIT
#include "tests/samples/sample.h"

#include <string.h>

static void ref_same(ts_ref *r)
{
    double *y = ref_ret_like(r, 0, &r->a[0]);
    memcpy(y, r->a[0].x, (size_t)r->a[0].numel * sizeof *y);
}

static const ts_sample samples[] = {
    {"alias", "same", {T(SWEEP, 3)}, ref_same, .dtypes = DT_ALL, .grad = true},
    {"detach", "same", {T(SWEEP, 3)}, ref_same, .dtypes = DT_ALL},
};
TS_SAMPLES(view, samples)
