/** @file explains.h  Looks for words in the explanation of a compiled function. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_COMPILE_EXPLAINS_H
#define TESTS_COMPILE_EXPLAINS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "include/tessera/compile.h"

/** True if ts_explain() prints the words; if not, `loud` prints the whole explanation to stderr. */
static inline bool explains_as(ts_compiled *c, const char *words, bool loud)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return false;
    ts_status status = ts_explain(c, file);
    fclose(file);
    bool is = status == TS_OK && strstr(text, words) != NULL;
    if (!is && loud)
        fprintf(stderr, "expected '%s' in:\n%s", words, text);
    free(text);
    return is;
}
static inline bool explains(ts_compiled *c, const char *words)
{
    return explains_as(c, words, true);
}
static inline bool explains_quietly(ts_compiled *c, const char *words)
{
    return explains_as(c, words, false);
}

#endif
