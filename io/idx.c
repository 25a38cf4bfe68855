/**
 * @file idx.c  Readers of image data sets in binary files: IDX (MNIST) and the records of CIFAR.
 */
// SPDX-License-Identifier: MIT
#include <string.h>

#include "core/tensor.h"
#include "include/tessera/io.h"
#include "include/tessera/ops.h"
#include "io/files.h"

/* --------------------------------------------------------------------------------- IDX ---- */

#define BAD(...) ts_fail_op(TS_ERR_FORMAT, "idx_load", NULL, NULL, __VA_ARGS__)

/** An element type. Its code is the third byte of a file; elements are big-endian. */
typedef struct element {
    ts_dtype dtype; /* of the tensor; TS_DTYPE_NONE: no such code */
    int bytes;      /* in the file */
} element;

static element element_of(int code)
{
    switch (code) {
    case 0x08: return (element){TS_U8, 1};
    case 0x09: return (element){TS_I32, 1};
    case 0x0b: return (element){TS_I32, 2};
    case 0x0c: return (element){TS_I32, 4};
    case 0x0d: return (element){TS_F32, 4};
    case 0x0e: return (element){TS_F64, 8};
    default: return (element){TS_DTYPE_NONE, 0};
    }
}

static uint64_t big_endian(const unsigned char *at, int bytes)
{
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++)
        x = x << 8 | at[i];
    return x;
}

typedef struct header {
    const char *path;
    element type;
    int ndim, code;
    int64_t sizes[TS_MAX_DIMS]; /* the first ndim are set */
    int64_t at;                 /* offset of the data */
} header;

static ts_status read_header(header *h, int fd, int64_t file_bytes)
{
    unsigned char bytes[4 + 4 * TS_MAX_DIMS];
    int64_t numel, memory, data;
    char sizes[200];
    if (file_bytes < 4)
        return BAD("'%s': expected at least 4 bytes, got %lld", h->path, (long long)file_bytes);
    TS_TRY(ts_file_read("idx_load", h->path, fd, bytes, 4, 0));
    h->type = element_of(bytes[2]);
    if (bytes[0] == 0x1f && bytes[1] == 0x8b)
        return ts_fail_op(TS_ERR_FORMAT, "idx_load", NULL, "decompress it with gunzip",
                          "'%s': expected an IDX file, got a file compressed with gzip", h->path);
    if (bytes[0] || bytes[1] || h->type.dtype == TS_DTYPE_NONE)
        return BAD("'%s': expected bytes 0, 0 and a type of 08, 09, 0b, 0c, 0d or 0e, got "
                   "%02x %02x %02x", h->path, bytes[0], bytes[1], bytes[2]);
    h->code = bytes[2];
    h->ndim = bytes[3];
    if (h->ndim > TS_MAX_DIMS)
        return BAD("'%s': expected at most %d dimensions, got %d", h->path, TS_MAX_DIMS, h->ndim);
    h->at = 4 + 4 * h->ndim;
    if (file_bytes < h->at)
        return BAD("'%s': expected %d sizes, got %lld bytes", h->path, h->ndim,
                   (long long)file_bytes);
    TS_TRY(ts_file_read("idx_load", h->path, fd, bytes, h->at, 0));
    for (int i = 0; i < h->ndim; i++)
        h->sizes[i] = (int64_t)big_endian(bytes + 4 + 4 * i, 4);
    ts_format_sizes(sizes, sizeof sizes, h->sizes, h->ndim);
    if (!ts_tensor_bytes(h->sizes, h->ndim, ts_dtype_sizes[h->type.dtype], &numel, &memory) ||
        !ts_mul_size(numel, h->type.bytes, &data) || data != file_bytes - h->at)
        return BAD("'%s': expected data of %d-byte elements for %s, got %lld bytes", h->path,
                   h->type.bytes, sizes, (long long)(file_bytes - h->at));
    return TS_OK;
}

/** Converts numel elements in place. The file's bytes are at the end of the tensor's memory, so an
 *  element is read before a wider one is written over it. */
static void convert(const header *h, char *data, int64_t numel)
{
    int bytes = h->type.bytes;
    int64_t wide = (int64_t)ts_dtype_sizes[h->type.dtype];
    const unsigned char *at = (unsigned char *)data + numel * (wide - bytes);
    for (int64_t i = 0; i < numel; i++, at += bytes) {
        uint64_t x = big_endian(at, bytes);
        int32_t narrow = h->code == 0x09 ? (int8_t)x : h->code == 0x0b ? (int16_t)x : (int32_t)x;
        memcpy(data + i * wide, wide == 8 ? (const void *)&x : &narrow, (size_t)wide);
    }
}

static ts_tensor *read_elements(const header *h, int fd)
{
    ts_tensor *t = ts_empty_on(h->sizes, h->ndim, h->type.dtype, TS_DEVICE_CPU);
    if (!t)
        return NULL;
    int64_t bytes = t->numel * h->type.bytes,
            spare = t->numel * ((int64_t)ts_dtype_sizes[h->type.dtype] - h->type.bytes);
    if (ts_file_read("idx_load", h->path, fd, (char *)t->data + spare, bytes, h->at) != TS_OK)
        return NULL;
    if (h->type.dtype != TS_U8)
        convert(h, t->data, t->numel);
    return t;
}

ts_tensor *ts_idx_load(const char *path)
{
    int fd;
    int64_t bytes;
    header h = {.path = path};
    TS_SCOPE;
    TS_TRY_NULL(TS_CHECK_POINTERS(path));
    TS_TRY_NULL(ts_file_open("idx_load", path, &fd, &bytes));
    ts_tensor *t = read_header(&h, fd, bytes) == TS_OK ? read_elements(&h, fd) : NULL;
    ts_file_close(fd);
    return ts_keep(t);
}

/* ------------------------------------------------------------------------------- CIFAR ---- */

enum { IMAGE = 3 * 32 * 32, RECORDS = 256 }; /* RECORDS: read at once */

/** Splits the n records of a file into images (n, 3, 32, 32) u8 and labels (n) i64. labels_of_one:
 *  label bytes before each image, of which the last is the class. */
static ts_status split(const char *path, int fd, int64_t n, int labels_of_one, int classes,
                       ts_tensor *images, ts_tensor *labels)
{
    int64_t record = IMAGE + labels_of_one, *label = (int64_t *)(void *)labels->data;
    char *records = ts_sys_alloc((size_t)(RECORDS * record)), *image = images->data;
    ts_status status = records ? TS_OK : ts_error_memory("records of a file", RECORDS * record);
    for (int64_t i = 0; i < n && status == TS_OK; i += RECORDS) {
        int64_t count = ts_min64(RECORDS, n - i);
        status = ts_file_read("cifar_load", path, fd, records, count * record, i * record);
        for (int64_t k = 0; k < count && status == TS_OK; k++, image += IMAGE) {
            const char *at = records + k * record;
            *label = (unsigned char)at[labels_of_one - 1];
            if (*label >= classes)
                status = ts_fail_op(TS_ERR_FORMAT, "cifar_load", NULL, NULL,
                                    "'%s': record %lld: expected a class below %d, got %lld", path,
                                    (long long)(i + k), classes, (long long)*label);
            label++;
            memcpy(image, at + labels_of_one, IMAGE);
        }
    }
    ts_sys_free(records);
    return status;
}

ts_status ts_cifar_load(const char *path, int classes, ts_tensor **images, ts_tensor **labels)
{
    int fd;
    int64_t bytes;
    TS_TRY(TS_CHECK_POINTERS(path, images, labels));
    TS_TRY(TS_CHECK_VALUE(classes, classes == 10 || classes == 100, "10 or 100"));
    int64_t record = IMAGE + (classes == 100 ? 2 : 1);
    TS_SCOPE;
    TS_TRY(ts_file_open("cifar_load", path, &fd, &bytes));
    int64_t n = bytes / record;
    ts_status status = TS_OK;
    ts_tensor *x = NULL, *y = NULL;
    if (!n || bytes % record)
        status = ts_fail_op(TS_ERR_FORMAT, "cifar_load", NULL, NULL,
                            "'%s': expected records of %lld bytes, got a file of %lld bytes", path,
                            (long long)record, (long long)bytes);
    if (status == TS_OK) {
        x = ts_empty_on(TS_SIZES(n, 3, 32, 32), TS_U8, TS_DEVICE_CPU);
        y = ts_empty_on(TS_SIZES(n), TS_I64, TS_DEVICE_CPU);
        status = x && y ? split(path, fd, n, (int)(record - IMAGE), classes, x, y)
                        : ts_error_code();
    }
    ts_file_close(fd);
    if (status != TS_OK)
        return status;
    *images = ts_keep(x);
    *labels = ts_keep(y);
    return TS_OK;
}
