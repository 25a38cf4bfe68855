/** @file epilogues.h  Finds products with epilogues in a compiled function. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_EPILOGUES_H
#define TESSERA_TESTS_CUDA_EPILOGUES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/cuda.h"

/** True if the newest plan of c has a product with an epilogue, and no group runs call by call. */
static inline bool has_epilogue(ts_compiled *c)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    OK(ts_explain(c, out));
    fclose(out);
    bool has = strstr(text, "product with an epilogue") != NULL &&
               strstr(text, "runs call by call") == NULL;
    free(text);
    return has;
}

#endif
