/**
 * @file safetensors.c
 * Reading safetensors: the header becomes an index, checked in full, before any tensor is made.
 *
 * This file parses the header's outer object and passes each name and description to jansson
 * separately. So memory use is the header plus a small index, whatever the header contains. Names
 * are decoded in place in the header.
 */
// SPDX-License-Identifier: MIT
#include "io/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "io/json.h"

/* Most bytes of a tensor's description: eight sizes, two offsets, a dtype, generous white space. */
#define MAX_DESCRIPTION 4096

const char *const ts_safetensors_dtypes[TS_DTYPE_COUNT] = {
    [TS_F64] = "F64", [TS_F32] = "F32", [TS_BF16] = "BF16", [TS_F16] = "F16",
    [TS_I64] = "I64", [TS_I32] = "I32", [TS_U8] = "U8",     [TS_BOOL] = "BOOL",
};

/* ------------------------------------------------------------------- walking the header ---- */

typedef struct parser {
    const char *op;
    ts_safetensors *st;
    int64_t bytes; /* of the header */
    int64_t at;    /* position in the header */
    int64_t max_tensors;
    int64_t entry_room, pair_room;
    bool has_metadata;
} parser;

#define BAD(p, ...) ts_fail_op(TS_ERR_FORMAT, (p)->op, NULL, NULL, __VA_ARGS__)
#define ENTRY_BAD(p, name, format, ...) \
    BAD(p, "'%s': tensor '%s': " format, (p)->st->path, ts_quote(name), __VA_ARGS__)

static void skip_space(parser *p)
{
    const char *text = p->st->text;
    while (p->at < p->bytes && (text[p->at] == ' ' || text[p->at] == '\n' || text[p->at] == '\t' ||
                                text[p->at] == '\r'))
        p->at++;
}

/* The next byte after white space; 0 at the end (a zero byte is invalid everywhere). */
static char peek(parser *p)
{
    skip_space(p);
    return p->at < p->bytes ? p->st->text[p->at] : 0;
}

static ts_status expect(parser *p, char c, const char *what)
{
    char got = peek(p);
    if (got == c) {
        p->at++;
        return TS_OK;
    }
    return BAD(p, "'%s': header byte %lld: expected '%c' %s, got %s", p->st->path, (long long)p->at,
               c, what, got ? ts_quote((char[]){got, 0}) : "the end");
}

/* Decodes the next string in place (decoding never makes it longer) and terminates it with NUL;
 * *position receives its offset in the header. */
static ts_status read_string(parser *p, const char *what, uint32_t *position)
{
    if (peek(p) != '"')
        return expect(p, '"', what);
    char *start = p->st->text + p->at;
    size_t consumed;
    json_t *value = ts_json_load(p->op, p->st->path, start, (size_t)(p->bytes - p->at),
                                 JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK, p->at + 8, &consumed);
    TS_TRY(value);
    size_t length = json_string_length(value);
    memcpy(start, json_string_value(value), length);
    start[length] = 0;
    *position = (uint32_t)p->at;
    p->at += (int64_t)consumed;
    ts_json_done(value);
    return TS_OK;
}

/* Reserves memory for one more element of an array, whose capacity doubles. Error: TS_ERR_MEMORY.
 */
static ts_status grow(void **array, int64_t count, int64_t *capacity, size_t item)
{
    if (count < *capacity)
        return TS_OK;
    int64_t wanted = *capacity ? *capacity * 2 : 64, bytes;
    void *more =
        ts_mul_size(wanted, (int64_t)item, &bytes) ? ts_sys_realloc(*array, (size_t)bytes) : NULL;
    if (!more)
        return ts_error_memory("the index of a file", wanted * (int64_t)item);
    *array = more;
    *capacity = wanted;
    return TS_OK;
}

/* -------------------------------------------------------------------- fields of an entry ---- */

static ts_status check_dtype(parser *p, const char *name, const json_t *value, ts_st_entry *e)
{
    const char *text = json_string_value(value);
    if (!text)
        return ENTRY_BAD(p, name, "expected %s", "a string as dtype");
    for (int d = 0; d < TS_DTYPE_COUNT; d++) {
        if (strcmp(text, ts_safetensors_dtypes[d]) == 0) {
            e->dtype = (uint8_t)d;
            return TS_OK;
        }
    }
    return ts_fail_op(
        TS_ERR_DTYPE, p->op, NULL, NULL,
        "'%s': tensor '%s': expected dtype F64, F32, BF16, F16, I64, I32, U8 or BOOL, got '%s'",
        p->st->path, ts_quote(name), ts_quote(text));
}

static ts_status check_sizes(parser *p, const char *name, const json_t *value, ts_st_entry *e)
{
    if (!json_is_array(value))
        return ENTRY_BAD(p, name, "expected %s", "an array as shape");
    if (json_array_size(value) > TS_MAX_DIMS)
        return ENTRY_BAD(p, name, "expected at most %d dimensions, got %zu", TS_MAX_DIMS,
                         json_array_size(value));
    e->ndim = (uint8_t)json_array_size(value);
    for (int i = 0; i < e->ndim; i++) {
        const json_t *size = json_array_get(value, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return ENTRY_BAD(p, name, "shape: expected an integer >= 0 as size %d", i);
        e->sizes[i] = json_integer_value(size);
    }
    return TS_OK;
}

static ts_status check_offsets(parser *p, const char *name, const json_t *value, ts_st_entry *e)
{
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return ENTRY_BAD(p, name, "expected %s", "two integers as data_offsets");
    e->begin = json_integer_value(begin);
    int64_t stop = json_integer_value(end);
    if (e->begin < 0 || stop < e->begin)
        return ENTRY_BAD(p, name, "data_offsets: expected 0 <= begin <= end, got %lld and %lld",
                         (long long)e->begin, (long long)stop);
    e->bytes = stop - e->begin;
    return TS_OK;
}

static ts_status check_description(parser *p, const char *name, const json_t *value, ts_st_entry *e)
{
    char sizes[200];
    int64_t numel, bytes = 0;
    const json_t *dtype = json_object_get(value, "dtype"), *shape = json_object_get(value, "shape"),
                 *offsets = json_object_get(value, "data_offsets");
    if (json_object_size(value) != 3 || !dtype || !shape || !offsets)
        return ENTRY_BAD(p, name, "expected %s", "exactly dtype, shape and data_offsets");
    TS_TRY(check_dtype(p, name, dtype, e));
    TS_TRY(check_sizes(p, name, shape, e));
    TS_TRY(check_offsets(p, name, offsets, e));
    ts_format_sizes(sizes, sizeof sizes, e->sizes, e->ndim);
    if (!ts_tensor_bytes(e->sizes, e->ndim, ts_dtype_sizes[e->dtype], &numel, &bytes))
        return ENTRY_BAD(p, name, "expected a shape whose bytes fit 63 bits, got %s", sizes);
    if (bytes != e->bytes)
        return ENTRY_BAD(p, name, "expected %lld bytes for %s of shape %s, got %lld",
                         (long long)bytes, ts_safetensors_dtypes[e->dtype], sizes,
                         (long long)e->bytes);
    return TS_OK;
}

static ts_status read_entry(parser *p, uint32_t name)
{
    ts_safetensors *st = p->st;
    const char *text = st->text + name;
    ts_st_entry e = {.name = name};
    size_t length = strlen(text);
    if (length > TS_ST_MAX_NAME)
        return ENTRY_BAD(p, text, "expected a name of at most %d bytes, got %zu", TS_ST_MAX_NAME,
                         length);
    if (st->count >= p->max_tensors)
        return BAD(p, "'%s': expected at most %lld tensors, got more", st->path,
                   (long long)p->max_tensors);
    if (peek(p) != '{')
        return expect(p, '{', "of a tensor's description");
    size_t consumed;
    json_t *value = ts_json_load(
        p->op, st->path, st->text + p->at, (size_t)ts_min64(p->bytes - p->at, MAX_DESCRIPTION),
        JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, p->at + 8, &consumed);
    TS_TRY(value);
    p->at += (int64_t)consumed;
    ts_status status = check_description(p, text, value, &e);
    ts_json_done(value);
    TS_TRY(status);
    TS_TRY(grow((void **)&st->entries, st->count, &p->entry_room, sizeof e));
    st->entries[st->count++] = e;
    return TS_OK;
}

static ts_status read_metadata(parser *p)
{
    ts_safetensors *st = p->st;
    if (p->has_metadata)
        return BAD(p, "'%s': expected one %s, got two", st->path, TS_ST_METADATA);
    p->has_metadata = true;
    TS_TRY(expect(p, '{', "of the metadata"));
    if (peek(p) == '}') {
        p->at++;
        return TS_OK;
    }
    for (;;) {
        ts_st_pair m;
        TS_TRY(read_string(p, "of a metadata key", &m.key));
        TS_TRY(expect(p, ':', "after a metadata key"));
        TS_TRY(read_string(p, "of a metadata value (a string)", &m.value));
        TS_TRY(grow((void **)&st->metadata, st->nmetadata, &p->pair_room, sizeof m));
        st->metadata[st->nmetadata++] = m;
        if (peek(p) != ',')
            return expect(p, '}', "at the end of the metadata");
        p->at++;
    }
}

static ts_status read_header(parser *p)
{
    ts_safetensors *st = p->st;
    p->at = 1; /* after the '{' */
    bool more = peek(p) != '}';
    p->at += !more;
    while (more) {
        uint32_t name;
        TS_TRY(read_string(p, "of a name", &name));
        TS_TRY(expect(p, ':', "after a name"));
        if (strcmp(st->text + name, TS_ST_METADATA) == 0)
            TS_TRY(read_metadata(p));
        else
            TS_TRY(read_entry(p, name));
        more = peek(p) == ',';
        if (more)
            p->at++;
        else
            TS_TRY(expect(p, '}', "at the end of the header"));
    }
    for (; p->at < p->bytes; p->at++)
        if (st->text[p->at] != ' ')
            return BAD(
                p,
                "'%s': header byte %lld: expected only spaces after the closing brace, got 0x%02x",
                st->path, (long long)p->at, (unsigned char)st->text[p->at]);
    return TS_OK;
}

/* ----------------------------------------------------------------- the index as a whole ---- */

static int compare_begin(const void *a, const void *b)
{
    const ts_st_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    /* an empty tensor sorts before a tensor with the same start */
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_name(const void *a, const void *b, void *ctx)
{
    const ts_safetensors *st = ctx;
    return strcmp(st->text + st->entries[*(const uint32_t *)a].name,
                  st->text + st->entries[*(const uint32_t *)b].name);
}

static int compare_key(const void *a, const void *b, void *ctx)
{
    const char *text = ctx;
    return strcmp(text + ((const ts_st_pair *)a)->key, text + ((const ts_st_pair *)b)->key);
}

/* Checks that data fills the file: no gap, no overlap, no bytes at the end. */
static ts_status check_layout(parser *p, int64_t data_bytes)
{
    ts_safetensors *st = p->st;
    int64_t next = 0;
    bool sorted = true;
    for (int64_t i = 1; i < st->count; i++)
        sorted &= compare_begin(&st->entries[i - 1], &st->entries[i]) <= 0;
    if (!sorted)
        qsort(st->entries, (size_t)st->count, sizeof *st->entries, compare_begin);
    for (int64_t i = 0; i < st->count; i++) {
        const ts_st_entry *e = &st->entries[i];
        if (e->begin != next)
            return ENTRY_BAD(p, st->text + e->name,
                             "data_offsets: expected begin %lld, got %lld (%s)", (long long)next,
                             (long long)e->begin, e->begin > next ? "a hole" : "an overlap");
        /* both are from 0 to 2^63-1, but their sum may overflow */
        if (!ts_add_size(next, e->bytes, &next) || next > data_bytes)
            return ENTRY_BAD(p, st->text + e->name,
                             "expected data of at most %lld bytes, got an end at %lld",
                             (long long)data_bytes, (long long)next);
    }
    if (next != data_bytes)
        return BAD(p, "'%s': expected %lld bytes of data by the header, got %lld", st->path,
                   (long long)next, (long long)data_bytes);
    return TS_OK;
}

static ts_status check_names(parser *p)
{
    ts_safetensors *st = p->st;
    st->by_name = ts_sys_alloc((size_t)st->count * sizeof *st->by_name);
    if (!st->by_name)
        return ts_error_memory("the index of a file", st->count * 4);
    for (int64_t i = 0; i < st->count; i++)
        st->by_name[i] = (uint32_t)i;
    qsort_r(st->by_name, (size_t)st->count, sizeof *st->by_name, compare_name, st);
    for (int64_t i = 1; i < st->count; i++)
        if (compare_name(&st->by_name[i - 1], &st->by_name[i], st) == 0)
            return BAD(p, "'%s': expected distinct names, got '%s' twice", st->path,
                       ts_quote(st->text + st->entries[st->by_name[i]].name));
    if (st->nmetadata)
        qsort_r(st->metadata, (size_t)st->nmetadata, sizeof *st->metadata, compare_key, st->text);
    for (int64_t i = 1; i < st->nmetadata; i++)
        if (compare_key(&st->metadata[i - 1], &st->metadata[i], st->text) == 0)
            return BAD(p, "'%s': expected distinct metadata keys, got '%s' twice", st->path,
                       ts_quote(st->text + st->metadata[i].key));
    return TS_OK;
}

static ts_status read_index(parser *p, int64_t file_bytes, int64_t max_header)
{
    ts_safetensors *st = p->st;
    unsigned char prefix[8];
    uint64_t length = 0;
    if (file_bytes < 8)
        return BAD(p, "'%s': expected at least 8 bytes, got %lld", st->path, (long long)file_bytes);
    TS_TRY(ts_file_read(p->op, st->path, st->fd, prefix, 8, 0));
    for (int i = 7; i >= 0; i--)
        length = length << 8 | prefix[i];
    if (length > (uint64_t)max_header)
        return BAD(p, "'%s': expected a header of at most %lld bytes, got %llu", st->path,
                   (long long)max_header, (unsigned long long)length);
    if (length < 2 || length > (uint64_t)file_bytes - 8)
        return BAD(p, "'%s': expected a header of 2 to %lld bytes (the file's end), got %llu",
                   st->path, (long long)file_bytes - 8, (unsigned long long)length);
    p->bytes = (int64_t)length;
    st->data = 8 + p->bytes;
    st->text = ts_sys_alloc((size_t)p->bytes);
    if (!st->text)
        return ts_error_memory("a file's header", p->bytes);
    TS_TRY(ts_file_read(p->op, st->path, st->fd, st->text, p->bytes, 8));
    if (st->text[0] != '{')
        return BAD(p, "'%s': expected a header that begins with '{', got 0x%02x", st->path,
                   (unsigned char)st->text[0]);
    TS_TRY(read_header(p));
    TS_TRY(check_layout(p, file_bytes - st->data));
    return check_names(p);
}

ts_safetensors *ts_safetensors_open_fd(const char *op, const char *path, int fd, int64_t bytes,
                                       const ts_safetensors_opts *opts)
{
    int64_t max_header = opts->max_header_bytes ? opts->max_header_bytes : TS_ST_DEFAULT_HEADER;
    int64_t max_tensors = opts->max_tensors ? opts->max_tensors : TS_ST_MAX_TENSORS;
    ts_safetensors *st = ts_sys_calloc(sizeof *st);
    if (!st) {
        ts_file_close(fd);
        ts_error_memory("a file's index", sizeof *st);
        return NULL;
    }
    st->fd = fd;
    ts_status status = TS_OK;
    if (max_header < 2 || max_header > TS_ST_MAX_HEADER || max_tensors < 1 ||
        max_tensors > TS_ST_MAX_TENSORS)
        status = ts_fail_op(
            TS_ERR_VALUE, op, NULL, NULL,
            "argument 'opts': expected 2 to %d header bytes and 1 to %d tensors, got %lld and %lld",
            TS_ST_MAX_HEADER, TS_ST_MAX_TENSORS, (long long)max_header, (long long)max_tensors);
    if (status == TS_OK) {
        st->path = ts_path("%s", path);
        status = st->path ? TS_OK : TS_ERR_MEMORY;
    }
    if (status == TS_OK) {
        ts_json_ready();
        parser p = {.op = op, .st = st, .max_tensors = max_tensors};
        status = read_index(&p, bytes, max_header);
    }
    if (status != TS_OK) {
        ts_safetensors_close(st);
        return NULL;
    }
    return st;
}

ts_safetensors *ts_safetensors_open(const char *path, const ts_safetensors_opts *opts)
{
    static const char op[] = "safetensors_open";
    int fd;
    int64_t bytes;
    ts_safetensors_opts o;
    TS_TRY_NULL(TS_CHECK_POINTERS(path));
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    if (ts_file_open(op, path, &fd, &bytes) != TS_OK)
        return NULL;
    return ts_safetensors_open_fd(op, path, fd, bytes, &o);
}

void ts_safetensors_close(ts_safetensors *st)
{
    if (!st)
        return;
    ts_file_close(st->fd);
    ts_sys_free(st->path);
    ts_sys_free(st->text);
    ts_sys_free(st->entries);
    ts_sys_free(st->by_name);
    ts_sys_free(st->metadata);
    ts_sys_free(st);
}
