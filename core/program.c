/** @file program.c  Numbers as text: the same in every locale, and strict where a user types them. */
// SPDX-License-Identifier: MIT
#include "include/tessera/program.h"

#include <locale.h>

/* The C locale object is static in the C library: making it neither allocates nor fails. */
void *ts_c_locale_enter(void) { return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0)); }
void ts_c_locale_leave(void **previous)
{
    if (previous)
        uselocale((locale_t)*previous);
}
