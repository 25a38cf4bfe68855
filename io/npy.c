/**
 * @file npy.c  NumPy's npy files. The header is a Python dict literal with exactly three keys. A
 * small parser reads it without evaluating code; a header that NumPy would not write is an error.
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <string.h>

#include "core/tensor.h"
#include "include/tessera/autograd.h"
#include "include/tessera/io.h"
#include "include/tessera/ops.h"
#include "io/element.h"
#include "io/npy.h"

#define MAGIC "\x93NUMPY"
#define MAX_HEADER 10000 /* NumPy's own limit for files that are not trusted */

/** Types by their description without the byte order, which is '|' for single bytes. The first type
 *  with a dtype has the same bytes as the dtype. */
static const struct {
    char text[3];
    ts_element is;
} types[] = {
    {"f8", {TS_F64, 8, false, false}}, {"f4", {TS_F32, 4, false, false}},
    {"f2", {TS_F16, 2, false, false}}, {"i8", {TS_I64, 8, true, false}},
    {"i4", {TS_I32, 4, true, false}},  {"u1", {TS_U8, 1, false, false}},
    {"b1", {TS_BOOL, 1, false, false}}, {"i2", {TS_I32, 2, true, false}},
    {"i1", {TS_I32, 1, true, false}},  {"u4", {TS_I64, 4, false, false}},
    {"u2", {TS_I32, 2, false, false}},
};

/** Index in types[] of the type as which a dtype is written; -1 if NumPy lacks the dtype. */
static int written_as(int dtype)
{
    for (int i = 0; i < TS_COUNTOF(types); i++)
        if ((int)types[i].is.dtype == dtype)
            return i;
    return -1;
}

typedef struct header {
    const char *op, *path;
    char text[MAX_HEADER + 1];
    const char *at;
    bool has_descr, has_order, has_shape;
    bool fortran;
    ts_element type;
    int ndim;
    int64_t sizes[TS_MAX_DIMS]; /* the first ndim are set */
} header;

#define BAD(h, ...) ts_fail_op(TS_ERR_FORMAT, (h)->op, NULL, NULL, __VA_ARGS__)

/* ------------------------------------------------------------------------- the header ---- */

static void skip_space(header *h)
{
    while (*h->at == ' ' || *h->at == '\n' || *h->at == '\t')
        h->at++;
}

static ts_status expect(header *h, char c, const char *what)
{
    skip_space(h);
    if (*h->at != c)
        return BAD(h, "'%s': header byte %d: expected '%c' %s, got '%s'", h->path,
                   (int)(h->at - h->text), c, what, ts_quote(h->at));
    h->at++;
    return TS_OK;
}

/* A string without escapes, in either kind of quotes, as NumPy writes it. */
static ts_status read_string(header *h, char *out, size_t size, const char *what)
{
    skip_space(h);
    char quote = *h->at == '"' ? '"' : '\'';
    TS_TRY(expect(h, quote, what));
    size_t length = strcspn(h->at, "'\"\\");
    if (h->at[length] != quote || length >= size)
        return BAD(h, "'%s': header byte %d: expected a short string %s, got '%s'", h->path,
                   (int)(h->at - h->text), what, ts_quote(h->at));
    memcpy(out, h->at, length);
    out[length] = 0;
    h->at += length + 1;
    return TS_OK;
}

static ts_status read_descr(header *h)
{
    char text[32] = "";
    skip_space(h);
    if (*h->at == '[')
        return ts_fail_op(TS_ERR_DTYPE, h->op, NULL, NULL,
                          "'%s': expected one element type, got a record", h->path);
    TS_TRY(read_string(h, text, sizeof text, "as descr"));
    for (int i = 0; i < TS_COUNTOF(types); i++)
        if (strcmp(text + 1, types[i].text) == 0 &&
            strchr(types[i].is.bytes == 1 ? "|" : "<>", text[0])) {
            h->type = types[i].is;
            h->type.big_endian = text[0] == '>';
            return TS_OK;
        }
    return ts_fail_op(
        TS_ERR_DTYPE, h->op, NULL,
        strchr(text, 'O') ? "objects are pickles, which can run code; save numbers instead" : NULL,
        "'%s': expected descr f8, f4, f2, i8, i4, i2, u4 or u2 after < or >, or |i1, |u1 or |b1, "
        "got '%s'", h->path, ts_quote(text));
}

static ts_status read_order(header *h)
{
    skip_space(h);
    h->fortran = strncmp(h->at, "True", 4) == 0;
    if (!h->fortran && strncmp(h->at, "False", 5) != 0)
        return BAD(h, "'%s': expected True or False as fortran_order, got '%s'", h->path,
                   ts_quote(h->at));
    h->at += h->fortran ? 4 : 5;
    return TS_OK;
}

static ts_status read_shape(header *h)
{
    TS_TRY(expect(h, '(', "of the shape"));
    for (skip_space(h); *h->at != ')'; skip_space(h)) {
        int64_t size = 0;
        const char *start = h->at;
        if (h->ndim == TS_MAX_DIMS)
            return BAD(h, "'%s': expected at most %d dimensions, got more", h->path, TS_MAX_DIMS);
        for (; *h->at >= '0' && *h->at <= '9'; h->at++)
            if (!ts_mul_size(size, 10, &size) || !ts_add_size(size, *h->at - '0', &size))
                return BAD(h, "'%s': expected sizes of 63 bits, got '%s'", h->path,
                           ts_quote(start));
        if (h->at == start || (*start == '0' && h->at > start + 1))
            return BAD(h, "'%s': expected a size in the shape, got '%s'", h->path, ts_quote(start));
        h->sizes[h->ndim++] = size;
        skip_space(h);
        if (*h->at == ',')
            h->at++;
        else if (*h->at != ')' || h->ndim == 1) /* (3) is a number in parentheses, (3,) a shape */
            return expect(h, ',', "in the shape");
    }
    h->at++;
    return TS_OK;
}

static ts_status read_key(header *h)
{
    char key[16];
    TS_TRY(read_string(h, key, sizeof key, "as a key"));
    bool *seen = strcmp(key, "descr") == 0           ? &h->has_descr
                 : strcmp(key, "fortran_order") == 0 ? &h->has_order
                 : strcmp(key, "shape") == 0         ? &h->has_shape
                                                     : NULL;
    if (!seen || *seen)
        return BAD(h, "'%s': expected descr, fortran_order and shape once each, got '%s'%s",
                   h->path, ts_quote(key), seen ? " twice" : "");
    *seen = true;
    TS_TRY(expect(h, ':', "after a key"));
    return seen == &h->has_descr   ? read_descr(h)
           : seen == &h->has_order ? read_order(h)
                                   : read_shape(h);
}

static ts_status parse(header *h)
{
    h->at = h->text;
    TS_TRY(expect(h, '{', "of the header"));
    for (skip_space(h); *h->at != '}'; skip_space(h)) {
        TS_TRY(read_key(h));
        skip_space(h);
        if (*h->at != '}')
            TS_TRY(expect(h, ',', "between keys"));
    }
    h->at++;
    skip_space(h);
    if (*h->at)
        return BAD(h, "'%s': expected nothing after the header's brace, got '%s'", h->path,
                   ts_quote(h->at));
    if (!h->has_descr || !h->has_order || !h->has_shape)
        return BAD(h, "'%s': expected descr, fortran_order and shape, got less", h->path);
    return TS_OK;
}

/* Reads and checks everything before the data; *data receives the offset of the data. */
static ts_status read_header(header *h, const ts_span *file, int64_t *data)
{
    int64_t file_bytes = file->bytes;
    unsigned char start[12];
    char sizes[200];
    int64_t bytes = 0;
    if (file_bytes < 10)
        return BAD(h, "'%s': expected at least 10 bytes, got %lld", h->path, (long long)file_bytes);
    TS_TRY(ts_span_read(file, start, ts_min64(12, file_bytes), 0));
    if (memcmp(start, MAGIC, 6) != 0)
        return BAD(h, "'%s': expected a file that begins with \\x93NUMPY", h->path);
    if (start[6] < 1 || start[6] > 3 || start[7] != 0)
        return BAD(h, "'%s': expected version 1.0, 2.0 or 3.0, got %d.%d", h->path, start[6],
                   start[7]);
    int64_t prefix = start[6] == 1 ? 10 : 12, length = start[8] | start[9] << 8;
    if (prefix == 12 && file_bytes >= 12)
        length |= (int64_t)start[10] << 16 | (int64_t)start[11] << 24;
    if (length > MAX_HEADER)
        return BAD(h, "'%s': expected a header of at most %d bytes, got %lld", h->path, MAX_HEADER,
                   (long long)length);
    if (length > file_bytes - prefix)
        return BAD(h, "'%s': expected a header of %lld bytes, got %lld before the file's end",
                   h->path, (long long)length, (long long)(file_bytes - prefix));
    TS_TRY(ts_span_read(file, h->text, length, prefix));
    h->text[length] = 0;
    if (strlen(h->text) != (size_t)length || length == 0 || h->text[length - 1] != '\n')
        return BAD(h, "'%s': expected a header of text that ends with a newline", h->path);
    TS_TRY(parse(h));
    *data = prefix + length;
    ts_format_sizes(sizes, sizeof sizes, h->sizes, h->ndim);
    if (!ts_element_bytes(&h->type, h->sizes, h->ndim, &bytes))
        return BAD(h, "'%s': expected a shape whose bytes fit 63 bits, got %s", h->path, sizes);
    if (bytes != file_bytes - *data)
        return BAD(h, "'%s': expected %lld bytes of data for elements of %d bytes and shape %s, "
                   "got %lld", h->path, (long long)bytes, h->type.bytes, sizes,
                   (long long)(file_bytes - *data));
    return TS_OK;
}

/* ---------------------------------------------------------------------------- reading ---- */

static ts_status check_bools(const header *h, unsigned char *bytes, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (bytes[i] > 1)
            return BAD(h, "'%s': expected bools of 0 or 1, got %d in element %lld", h->path,
                       bytes[i], (long long)i);
    return TS_OK;
}

/* Reads the data. Data in Fortran order is read as the reversed shape in C order and transposed. */
static ts_tensor *read_tensor(const header *h, const ts_span *file, int64_t at)
{
    ts_thread *thread = ts_thread_self();
    int64_t sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS];
    for (int i = 0; i < h->ndim; i++)
        sizes[i] = h->sizes[h->fortran ? h->ndim - 1 - i : i];
    ts_tensor *t = ts_element_read(&h->type, file, at, sizes, h->ndim);
    if (!t || (h->type.dtype == TS_BOOL &&
               check_bools(h, (unsigned char *)t->data, t->numel) != TS_OK))
        return NULL;
    if (!h->fortran || h->ndim < 2)
        return t;
    for (int i = 0; i < h->ndim; i++)
        strides[i] = t->strides[h->ndim - 1 - i];
    t = ts_tensor_alias(thread, t, h->sizes, strides, h->ndim, 0);
    return t ? ts_contiguous(ts_scope_adopt(thread, t)) : NULL;
}

ts_tensor *ts_npy_read(const ts_span *file)
{
    TS_SCOPE;
    int64_t data = 0;
    header h = {.op = file->op, .path = file->path};
    return ts_keep(read_header(&h, file, &data) == TS_OK ? read_tensor(&h, file, data) : NULL);
}

ts_tensor *ts_npy_load(const char *path)
{
    ts_span file = {.op = "npy_load", .path = path};
    TS_TRY_NULL(TS_CHECK_POINTERS(path));
    TS_TRY_NULL(ts_file_open(file.op, path, &file.fd, &file.bytes));
    ts_tensor *t = ts_npy_read(&file);
    ts_file_close(file.fd);
    return t;
}

/* ---------------------------------------------------------------------------- writing ---- */

int ts_npy_header(const ts_tensor *t, char text[TS_NPY_HEADER])
{
    int type = written_as(t->dtype),
        used = snprintf(text, TS_NPY_HEADER,
                        MAGIC "%c%c%c%c{'descr': '%c%s', 'fortran_order': False, 'shape': (", 1, 0,
                        0, 0, types[type].is.bytes == 1 ? '|' : '<', types[type].text);
    for (int i = 0; i < t->ndim; i++)
        used += snprintf(text + used, TS_NPY_HEADER - (size_t)used, "%s%lld", i ? ", " : "",
                         (long long)t->sizes[i]);
    used += snprintf(text + used, TS_NPY_HEADER - (size_t)used, "%s), }", t->ndim == 1 ? "," : "");
    /* the data begins at a multiple of 64 bytes */
    for (; (used + 1) % 64; used++)
        text[used] = ' ';
    text[used++] = '\n';
    text[8] = (char)((used - 10) & 0xff);
    text[9] = (char)((used - 10) >> 8);
    return used;
}

static ts_status write_npy(ts_writer *w, void *ctx)
{
    ts_tensor *t = ctx;
    char text[TS_NPY_HEADER];
    TS_TRY(ts_writer_write(w, text, ts_npy_header(t, text)));
    return ts_writer_write(w, t->data, t->numel * ts_dtype_sizes[t->dtype]);
}

ts_tensor *ts_npy_writable(const char *op, ts_tensor *t)
{
    if (!ts_same_device(t->storage->device, TS_DEVICE_CPU)) {
        ts_fail_op(TS_ERR_DEVICE, op, NULL, NULL, "argument 't': expected a tensor on cpu, got %s",
                   ts_device_name(t->storage->device));
        return NULL;
    }
    if (written_as(t->dtype) < 0) {
        ts_fail_op(TS_ERR_DTYPE, op, NULL, "convert it with ts_to(t, TS_F32)",
                   "argument 't': expected a dtype that NumPy has, got %s",
                   ts_dtype_name((ts_dtype)t->dtype));
        return NULL;
    }
    TS_NO_GRAD;
    if (!(t->flags & TS_TENSOR_CONTIGUOUS))
        t = ts_contiguous(t);
    return t && ts_resolve(t) == TS_OK ? t : NULL;
}

ts_status ts_npy_save(const char *path, ts_tensor *t)
{
    TS_TRY(TS_CHECK_POINTERS(path));
    TS_TRY(TS_CHECK_TENSORS(t));
    TS_SCOPE;
    TS_TRY(t = ts_npy_writable("npy_save", t));
    return ts_writer_replace("npy_save", path, write_npy, t);
}
