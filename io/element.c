/** @file element.c  Reads elements of files and converts them to those of tensors. */
// SPDX-License-Identifier: MIT
#include "io/element.h"

#include <string.h>

bool ts_element_bytes(const ts_element *type, const int64_t *sizes, int ndim, int64_t *bytes)
{
    int64_t numel, memory;
    return ts_tensor_bytes(sizes, ndim, ts_dtype_sizes[type->dtype], &numel, &memory) &&
           ts_mul_size(numel, type->bytes, bytes);
}

/** Converts numel elements in place. The file's bytes are at the end of the tensor's memory, so an
 *  element is read before a wider one is written over it. */
static void convert(const ts_element *type, char *data, int64_t numel)
{
    int64_t bytes = type->bytes, wide = (int64_t)ts_dtype_sizes[type->dtype];
    const unsigned char *at = (unsigned char *)data + numel * (wide - bytes);
    uint64_t sign = type->is_signed ? UINT64_C(1) << (8 * bytes - 1) : 0;
    for (int64_t i = 0; i < numel; i++, at += bytes) {
        uint64_t x = 0;
        for (int64_t k = 0; k < bytes; k++)
            x = x << 8 | at[type->big_endian ? k : bytes - 1 - k];
        x = (x ^ sign) - sign; /* extends the sign */
        memcpy(data + i * wide, &x, (size_t)wide);
    }
}

ts_tensor *ts_element_read(const ts_element *type, const ts_span *file, int64_t at,
                           const int64_t *sizes, int ndim)
{
    ts_thread *thread = ts_thread_self();
    ts_tensor *t = ts_tensor_new(thread, type->dtype, sizes, ndim, TS_DEVICE_CPU);
    if (!t)
        return NULL;
    ts_scope_adopt(thread, t);
    int64_t wide = (int64_t)ts_dtype_sizes[type->dtype], bytes = t->numel * type->bytes;
    if (ts_span_read(file, t->data + t->numel * wide - bytes, bytes, at) != TS_OK)
        return NULL;
    if (type->bytes < wide || (type->big_endian && wide > 1))
        convert(type, t->data, t->numel);
    return t;
}
