/** @file checked.h  Checked arithmetic on sizes that come from callers and files (invariant 8 in
 * docs/architecture.md), and the parsing of numbers and words. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_CHECKED_H
#define TS_CORE_CHECKED_H

#include "core/base.h"

/** *out = a * b. False on overflow or a negative operand; *out is then undefined. */
TS_INLINE bool ts_mul_size(int64_t a, int64_t b, int64_t *out)
{
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out);
}
/** *out = a + b. False on overflow or a negative operand; *out is then undefined. */
TS_INLINE bool ts_add_size(int64_t a, int64_t b, int64_t *out)
{
    return a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, out);
}
/** Product of sizes; false on overflow or a negative size. An empty list gives 1. */
TS_INLINE bool ts_product(const int64_t *sizes, int ndim, int64_t *out)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        if (!ts_mul_size(n, sizes[i], &n))
            return false;
    *out = n;
    return true;
}
/**
 * Computes a tensor's number of elements and its bytes, at `item` bytes per element. False if a
 * size is negative or a number does not fit 63 bits. The product of the sizes other than 0 must fit
 * even if a size is 0, because the strides are products of sizes.
 */
TS_INLINE bool ts_tensor_bytes(const int64_t *sizes, int ndim, size_t item, int64_t *numel,
                               int64_t *bytes)
{
    int64_t n = 1, span = 1;
    for (int i = 0; i < ndim; i++) {
        if (!ts_mul_size(n, sizes[i], &n) || !ts_mul_size(span, sizes[i] ? sizes[i] : 1, &span))
            return false;
    }
    *numel = n;
    return ts_mul_size(span, (int64_t)item, bytes) && ts_mul_size(n, (int64_t)item, bytes);
}

/** Parses the whole text as a decimal integer in [least, most], with an optional minus sign. False
 * if the text is not such an integer; *value is then unchanged and no error is recorded. */
bool ts_read_int(const char *text, int64_t least, int64_t most, int64_t *value);
/** Index of `word` in `list`, a text of words with a separator between them, such as "a|b|c"; -1 if
 * the list does not contain it. */
int ts_word_index(const char *list, char separator, const char *word);

#endif
