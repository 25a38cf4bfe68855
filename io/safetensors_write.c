/** @file safetensors_write.c  Writing safetensors. Equal content gives equal bytes. */
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "include/tessera/autograd.h"
#include "include/tessera/ops.h"
#include "io/json.h"
#include "io/safetensors.h"

/* ------------------------------------------------------------------------------ checks ---- */

/* Checks UTF-8 as jansson does: no overlong forms, no surrogates, nothing above U+10FFFF. */
static bool is_utf8(const char *text)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        int n = *p < 0x80 ? 1 : *p >> 5 == 6 ? 2 : *p >> 4 == 14 ? 3 : *p >> 3 == 30 ? 4 : 0;
        uint32_t code = n == 1 ? *p : n ? *p & (0x7fu >> n) : 0;
        for (int k = 1; k < n; k++) {
            if (p[k] >> 6 != 2)
                return false;
            code = code << 6 | (p[k] & 0x3f);
        }
        if (!n || code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
            return false;
        p += n;
    }
    return true;
}

/* A JSON string; the text must be UTF-8. */
static json_t *json_text_of(const char *op, const char *where, const char *what, const char *text)
{
    if (!is_utf8(text)) {
        ts_fail_op(TS_ERR_VALUE, op, NULL, NULL, "'%s': %s: expected text in UTF-8, got '%s'",
                   where, what, ts_quote(text));
        return NULL;
    }
    json_t *value = json_string(text);
    if (!value)
        ts_error_memory("a file's header", 1);
    return value;
}

static ts_status check_tensor(const char *op, const char *where, const char *name,
                              const ts_tensor *t)
{
    if (strlen(name) > TS_ST_MAX_NAME)
        return ts_fail_op(TS_ERR_VALUE, op, NULL, NULL,
                          "'%s': expected a name of at most %d bytes, got %zu: '%s'", where,
                          TS_ST_MAX_NAME, strlen(name), ts_quote(name));
    if (strcmp(name, TS_ST_METADATA) == 0)
        return ts_fail_op(TS_ERR_VALUE, op, NULL, NULL, "'%s': the name '%s' is the format's own",
                          where, name);
    if (ts_same_device(t->storage->device, TS_DEVICE_META))
        return ts_fail_op(TS_ERR_DEVICE, op, NULL, NULL,
                          "'%s': expected values of tensor '%s', got meta", where, ts_quote(name));
    return TS_OK;
}

/* ------------------------------------------------------------------------------- order ---- */

typedef struct names_and_tensors {
    const char *const *names;
    ts_tensor *const *tensors;
} names_and_tensors;

/*
 * Tensors with larger elements come first, so that each tensor is aligned to its element size. The
 * order of dtypes of equal size is that of the format's reference library, so that both write the
 * same file.
 */
static const uint8_t rank[TS_DTYPE_COUNT] = {
    [TS_I64] = 7, [TS_F64] = 6, [TS_F32] = 5, [TS_I32] = 4,
    [TS_BF16] = 3, [TS_F16] = 2, [TS_U8] = 1, [TS_BOOL] = 0,
};

static int compare_tensors(const void *a, const void *b, void *ctx)
{
    const names_and_tensors *all = ctx;
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    int rank_x = rank[all->tensors[x]->dtype], rank_y = rank[all->tensors[y]->dtype];
    return rank_x != rank_y ? rank_y - rank_x : strcmp(all->names[x], all->names[y]);
}

static int compare_texts(const void *a, const void *b, void *ctx)
{
    const char *const *texts = ctx;
    return strcmp(texts[*(const int64_t *)a], texts[*(const int64_t *)b]);
}

/* Returns the numbers 0 to n-1, to be freed with ts_sys_free(); NULL with TS_ERR_MEMORY. */
static int64_t *numbers(int64_t n)
{
    int64_t *order = ts_sys_alloc((size_t)n * sizeof *order);
    for (int64_t i = 0; order && i < n; i++)
        order[i] = i;
    if (!order)
        ts_error_memory("a file's header", n * (int64_t)sizeof *order);
    return order;
}

/* ------------------------------------------------------------------------------ header ---- */

/* Adds value to object under a key that must be new. Takes ownership of value, which may be NULL
 * (TS_ERR_MEMORY). */
static ts_status put(const char *op, const char *where, json_t *object, const char *key,
                     json_t *value)
{
    if (json_object_get(object, key)) {
        json_decref(value);
        return ts_fail_op(TS_ERR_VALUE, op, NULL, NULL,
                          "'%s': expected distinct names, got '%s' twice", where, ts_quote(key));
    }
    if (!value || json_object_set_new_nocheck(object, key, value) != 0)
        return ts_error_memory("a file's header", 1);
    return TS_OK;
}

static ts_status put_metadata(json_t *root, const char *op, const char *where,
                              const char *const *keys, const char *const *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        json_t *key = json_text_of(op, where, "a metadata key", keys[i]);
        TS_TRY(key);
        json_decref(key);
    }
    json_t *metadata = json_object();
    TS_TRY(put(op, where, root, TS_ST_METADATA, metadata));
    int64_t *order = numbers(n);
    TS_TRY(order);
    qsort_r(order, (size_t)n, sizeof *order, compare_texts, (void *)keys);
    ts_status status = TS_OK;
    for (int64_t i = 0; status == TS_OK && i < n; i++) {
        json_t *value = json_text_of(op, where, "a metadata value", values[order[i]]);
        status = value ? put(op, where, metadata, keys[order[i]], value) : ts_error_code();
    }
    ts_sys_free(order);
    return status;
}

static json_t *describe(const ts_tensor *t, int64_t begin, int64_t end)
{
    json_t *sizes = json_array();
    bool ok = sizes != NULL;
    for (int i = 0; ok && i < t->ndim; i++)
        ok = json_array_append_new(sizes, json_integer(t->sizes[i])) == 0;
    if (!ok) {
        json_decref(sizes);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", ts_safetensors_dtypes[t->dtype], "shape",
                     sizes, "data_offsets", (json_int_t)begin, (json_int_t)end);
}

static ts_status put_tensors(json_t *root, const ts_st_plan *plan, const char *where,
                             const char *const *names)
{
    int64_t begin = 0, bytes, end;
    for (int64_t i = 0; i < plan->count; i++, begin = end) {
        const ts_tensor *t = plan->tensors[plan->order[i]];
        const char *name = names[plan->order[i]];
        if (!ts_mul_size(t->numel, ts_dtype_sizes[t->dtype], &bytes) ||
            !ts_add_size(begin, bytes, &end))
            return ts_fail_op(TS_ERR_SHAPE, plan->op, NULL, NULL,
                              "'%s': expected data whose bytes fit 63 bits", where);
        json_t *text = json_text_of(plan->op, where, "a tensor's name", name);
        TS_TRY(text);
        json_decref(text);
        TS_TRY(put(plan->op, where, root, name, describe(t, begin, end)));
    }
    return TS_OK;
}

/* Sets plan->header to the file's header: the length, the JSON, and spaces up to a multiple of
 * eight bytes. */
static ts_status make_header(ts_st_plan *plan, const char *where, const json_t *root)
{
    size_t bytes;
    char *text = ts_json_text(root, JSON_COMPACT, &bytes);
    TS_TRY(text);
    size_t padded = (bytes + 7) & ~(size_t)7;
    ts_status status = TS_OK;
    if (padded > TS_ST_MAX_HEADER)
        status =
            ts_fail_op(TS_ERR_VALUE, plan->op, NULL, NULL,
                       "'%s': expected names and metadata for at most %d bytes of header, got %zu",
                       where, TS_ST_MAX_HEADER, padded);
    plan->header = status == TS_OK ? ts_sys_alloc(8 + padded) : NULL;
    if (status == TS_OK && !plan->header)
        status = ts_error_memory("a file's header", (int64_t)padded);
    if (status == TS_OK) {
        for (int i = 0; i < 8; i++)
            plan->header[i] = (char)((uint64_t)padded >> (8 * i) & 0xff);
        memcpy(plan->header + 8, text, bytes);
        memset(plan->header + 8 + bytes, ' ', padded - bytes);
        plan->header_bytes = 8 + padded;
    }
    ts_sys_free(text);
    return status;
}

static ts_status fill_plan(ts_st_plan *plan, const char *where, const char *const *names,
                           const char *const *keys, const char *const *values, int64_t nmetadata)
{
    for (int64_t i = 0; i < plan->count; i++)
        TS_TRY(check_tensor(plan->op, where, names[i], plan->tensors[i]));
    plan->order = numbers(plan->count);
    TS_TRY(plan->order);
    names_and_tensors all = {names, plan->tensors};
    if (plan->count)
        qsort_r(plan->order, (size_t)plan->count, sizeof *plan->order, compare_tensors, &all);
    json_t *root = json_object();
    ts_status status = root ? TS_OK : ts_error_memory("a file's header", 1);
    if (status == TS_OK && nmetadata)
        status = put_metadata(root, plan->op, where, keys, values, nmetadata);
    if (status == TS_OK)
        status = put_tensors(root, plan, where, names);
    if (status == TS_OK)
        status = make_header(plan, where, root);
    json_decref(root);
    return status;
}

ts_status ts_st_plan_make(ts_st_plan *plan, const char *op, const char *where,
                          const char *const *names, ts_tensor *const *tensors, int64_t n,
                          const char *const *keys, const char *const *values, int64_t nmetadata)
{
    *plan = (ts_st_plan){.op = op, .tensors = tensors, .count = n};
    ts_json_ready();
    ts_status status = fill_plan(plan, where, names, keys, values, nmetadata);
    if (status != TS_OK)
        ts_st_plan_free(plan);
    return status;
}

void ts_st_plan_free(ts_st_plan *plan)
{
    ts_sys_free(plan->order);
    ts_sys_free(plan->header);
    plan->order = NULL;
    plan->header = NULL;
}

/* -------------------------------------------------------------------------------- data ---- */

static ts_status write_tensor(ts_writer *w, ts_tensor *t)
{
    if (t->numel == 0)
        return TS_OK;
    TS_SCOPE;
    TS_NO_GRAD;
    if (!ts_same_device(t->storage->device, TS_DEVICE_CPU))
        t = ts_to_device(t, TS_DEVICE_CPU);
    else if (!(t->flags & TS_TENSOR_CONTIGUOUS))
        t = ts_contiguous(t);
    TS_TRY(t);
    TS_TRY(ts_resolve(t));
    return ts_writer_write(w, t->data, t->numel * ts_dtype_sizes[t->dtype]);
}

ts_status ts_st_plan_write(ts_writer *w, void *ctx)
{
    const ts_st_plan *plan = ctx;
    TS_TRY(ts_writer_write(w, plan->header, (int64_t)plan->header_bytes));
    for (int64_t i = 0; i < plan->count; i++)
        TS_TRY(write_tensor(w, plan->tensors[plan->order[i]]));
    return TS_OK;
}

ts_status ts_safetensors_save(const char *path, const char *const *names, ts_tensor *const *tensors,
                              int64_t n, const char *const *keys, const char *const *values,
                              int64_t nmetadata)
{
    static const char op[] = "safetensors_save";
    ts_st_plan plan;
    TS_TRY(TS_CHECK_POINTERS(path));
    TS_TRY(TS_CHECK_VALUE(n, n <= TS_ST_MAX_TENSORS, "at most 1000000"));
    TS_TRY(TS_CHECK_VALUE(nmetadata, nmetadata <= TS_ST_MAX_TENSORS, "at most 1000000"));
    TS_TRY(TS_CHECK_STRINGS(names, n));
    TS_TRY(TS_CHECK_TENSOR_LIST(tensors, n));
    TS_TRY(TS_CHECK_STRINGS(keys, nmetadata));
    TS_TRY(TS_CHECK_STRINGS(values, nmetadata));
    TS_TRY(ts_st_plan_make(&plan, op, path, names, tensors, n, keys, values, nmetadata));
    ts_status status = ts_writer_replace(op, path, ts_st_plan_write, &plan);
    ts_st_plan_free(&plan);
    return status;
}
