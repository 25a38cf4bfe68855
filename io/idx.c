/**
 * @file idx.c  Readers of image data sets in binary files: IDX, MNIST and the records of CIFAR.
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/tensor.h"
#include "include/tessera/io.h"
#include "include/tessera/ops.h"
#include "io/element.h"

/* --------------------------------------------------------------------------------- IDX ---- */

#define BAD(...) ts_fail_op(TS_ERR_FORMAT, "idx_load", NULL, NULL, __VA_ARGS__)

/** The type of a code, the third byte of a file. */
static ts_element element_of(int code)
{
    switch (code) {
    case 0x08: return (ts_element){TS_U8, 1, false, true};
    case 0x09: return (ts_element){TS_I32, 1, true, true};
    case 0x0b: return (ts_element){TS_I32, 2, true, true};
    case 0x0c: return (ts_element){TS_I32, 4, true, true};
    case 0x0d: return (ts_element){TS_F32, 4, false, true};
    case 0x0e: return (ts_element){TS_F64, 8, false, true};
    default: return (ts_element){.dtype = TS_DTYPE_NONE};
    }
}

typedef struct header {
    const char *path;
    ts_element type;
    int ndim;
    int64_t sizes[TS_MAX_DIMS]; /* the first ndim are set */
    int64_t at;                 /* offset of the data */
} header;

static ts_status read_header(header *h, int fd, int64_t file_bytes)
{
    unsigned char bytes[4 + 4 * TS_MAX_DIMS];
    int64_t data;
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
    h->ndim = bytes[3];
    if (h->ndim > TS_MAX_DIMS)
        return BAD("'%s': expected at most %d dimensions, got %d", h->path, TS_MAX_DIMS, h->ndim);
    h->at = 4 + 4 * h->ndim;
    if (file_bytes < h->at)
        return BAD("'%s': expected %d sizes, got %lld bytes", h->path, h->ndim,
                   (long long)file_bytes);
    TS_TRY(ts_file_read("idx_load", h->path, fd, bytes, h->at, 0));
    for (int i = 0; i < h->ndim; i++)
        for (int k = 0; k < 4; k++)
            h->sizes[i] = h->sizes[i] << 8 | bytes[4 + 4 * i + k];
    ts_format_sizes(sizes, sizeof sizes, h->sizes, h->ndim);
    if (!ts_element_bytes(&h->type, h->sizes, h->ndim, &data) || data != file_bytes - h->at)
        return BAD("'%s': expected data of %d-byte elements for %s, got %lld bytes", h->path,
                   h->type.bytes, sizes, (long long)(file_bytes - h->at));
    return TS_OK;
}

ts_tensor *ts_idx_load(const char *path)
{
    int fd;
    int64_t bytes;
    header h = {.path = path};
    TS_SCOPE;
    TS_TRY_NULL(TS_CHECK_POINTERS(path));
    TS_TRY_NULL(ts_file_open("idx_load", path, &fd, &bytes));
    const ts_span file = {.op = "idx_load", .path = path, .fd = fd, .bytes = bytes};
    ts_tensor *t = read_header(&h, fd, bytes) == TS_OK
                       ? ts_element_read(&h.type, &file, h.at, h.sizes, h.ndim)
                       : NULL;
    ts_file_close(fd);
    return ts_keep(t);
}

/* ------------------------------------------------------------------------------- MNIST ---- */

#define MNIST_BAD(...) ts_fail_op(TS_ERR_FORMAT, "mnist_load", NULL, NULL, __VA_ARGS__)

/** Reads one of the four files, DIR/NAME-idxN-ubyte with N = ndim. */
static ts_tensor *read_one(const char *dir, const char *name, int ndim)
{
    char path[4096], sizes[200];
    for (int i = 0, found = 0; i < 2 && !found; i++) {
        snprintf(path, sizeof path, "%s/%s%cidx%d-ubyte", dir, name, "-."[i], ndim);
        found = access(path, F_OK) == 0;
        if (i && !found) {
            ts_fail_op(TS_ERR_IO, "mnist_load", NULL, "decompress downloads with gunzip",
                       "'%s': expected the four files of MNIST, found no %s-idx%d-ubyte", dir, name,
                       ndim);
            return NULL;
        }
    }
    ts_tensor *t = ts_idx_load(path);
    if (!t || (t->ndim == ndim && t->dtype == TS_U8))
        return t;
    ts_format_sizes(sizes, sizeof sizes, t->sizes, t->ndim);
    MNIST_BAD("'%s': expected u8 with %d dims, got %s %s", path, ndim,
              ts_dtype_name((ts_dtype)t->dtype), sizes);
    return NULL;
}

/** Reads a part, "train" or "t10k": x[0] receives the images, x[1] the labels. */
static ts_status read_part(const char *dir, const char *part, int classes, ts_tensor *x[2])
{
    char name[2][16];
    snprintf(name[0], sizeof *name, "%s-images", part);
    snprintf(name[1], sizeof *name, "%s-labels", part);
    TS_TRY(x[0] = read_one(dir, name[0], 3));
    TS_TRY(x[1] = read_one(dir, name[1], 1));
    if (!x[0]->sizes[0] || x[0]->sizes[0] != x[1]->sizes[0])
        return MNIST_BAD("'%s': expected a label for each of at least one image, got "
                         "%lld %s and %lld %s", dir, (long long)x[0]->sizes[0], name[0],
                         (long long)x[1]->sizes[0], name[1]);
    const unsigned char *label = (const unsigned char *)x[1]->data;
    for (int64_t i = 0; i < x[1]->numel; i++)
        if (label[i] >= classes)
            return MNIST_BAD("'%s': expected classes below %d, got %d at position "
                             "%lld of %s", dir, classes, label[i], (long long)i, name[1]);
    return TS_STATUS_OF(x[1] = ts_to(x[1], TS_I64));
}

ts_status ts_mnist_load(const char *dir, int classes, ts_tensor **images, ts_tensor **labels,
                        ts_tensor **test_images, ts_tensor **test_labels)
{
    ts_tensor *x[4], **to[] = {images, labels, test_images, test_labels};
    TS_TRY(TS_CHECK_POINTERS(dir, images, labels, test_images, test_labels));
    TS_TRY(TS_CHECK_VALUE(classes, classes >= 1 && classes <= 256, "1 to 256"));
    TS_SCOPE;
    TS_TRY(read_part(dir, "train", classes, x));
    TS_TRY(read_part(dir, "t10k", classes, x + 2));
    if (x[0]->sizes[1] != x[2]->sizes[1] || x[0]->sizes[2] != x[2]->sizes[2])
        return MNIST_BAD("'%s': expected images of equal sizes, got %lld x %lld in "
                         "train-images and %lld x %lld in t10k-images", dir,
                         (long long)x[0]->sizes[1], (long long)x[0]->sizes[2],
                         (long long)x[2]->sizes[1], (long long)x[2]->sizes[2]);
    for (int i = 0; i < 4; i++)
        *to[i] = ts_keep(x[i]);
    return TS_OK;
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
