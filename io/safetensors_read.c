/** @file safetensors_read.c  Queries of an open safetensors file, and reading of its tensors. */
// SPDX-License-Identifier: MIT
#include <string.h>

#include "core/tensor.h"
#include "include/tessera/autograd.h"
#include "include/tessera/ops.h"
#include "io/safetensors.h"

/* ----------------------------------------------------------------------------- the index ---- */

static const ts_st_entry *entry_at(const ts_safetensors *st, int64_t index)
{
    return st && index >= 0 && index < st->count ? &st->entries[index] : NULL;
}

int64_t ts_safetensors_count(const ts_safetensors *st) { return st ? st->count : 0; }

int64_t ts_safetensors_find(const ts_safetensors *st, const char *name)
{
    int64_t low = 0, high = st && name ? st->count : 0;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(name, st->text + st->entries[st->by_name[middle]].name);
        if (order == 0)
            return st->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

const char *ts_safetensors_name(const ts_safetensors *st, int64_t index)
{
    const ts_st_entry *e = entry_at(st, index);
    return e ? st->text + e->name : NULL;
}
ts_dtype ts_safetensors_dtype(const ts_safetensors *st, int64_t index)
{
    const ts_st_entry *e = entry_at(st, index);
    return e ? (ts_dtype)e->dtype : TS_DTYPE_NONE;
}
int ts_safetensors_ndim(const ts_safetensors *st, int64_t index)
{
    const ts_st_entry *e = entry_at(st, index);
    return e ? e->ndim : -1;
}
const int64_t *ts_safetensors_sizes(const ts_safetensors *st, int64_t index)
{
    const ts_st_entry *e = entry_at(st, index);
    return e ? e->sizes : NULL;
}

int64_t ts_safetensors_metadata_count(const ts_safetensors *st) { return st ? st->nmetadata : 0; }
const char *ts_safetensors_metadata_key(const ts_safetensors *st, int64_t index)
{
    return st && index >= 0 && index < st->nmetadata ? st->text + st->metadata[index].key : NULL;
}
const char *ts_safetensors_metadata_value(const ts_safetensors *st, int64_t index)
{
    return st && index >= 0 && index < st->nmetadata ? st->text + st->metadata[index].value : NULL;
}
const char *ts_safetensors_metadata(const ts_safetensors *st, const char *key)
{
    for (int64_t i = 0; st && key && i < st->nmetadata; i++)
        if (strcmp(st->text + st->metadata[i].key, key) == 0)
            return st->text + st->metadata[i].value;
    return NULL;
}

/* ------------------------------------------------------------------------------ the data ---- */

/* Reads the data of a tensor. Rejects bool bytes other than 0 and 1, which C leaves undefined. */
static ts_status read_data(const char *op, const ts_safetensors *st, const ts_st_entry *e,
                           void *data)
{
    TS_TRY(ts_file_read(op, st->path, st->fd, data, e->bytes, st->data + e->begin));
    unsigned char *bytes = data;
    for (int64_t i = 0; e->dtype == TS_BOOL && i < e->bytes; i++) {
        if (bytes[i] > 1) {
            int got = bytes[i];
            memset(bytes, 0, (size_t)e->bytes);
            return ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL,
                              "'%s': tensor '%s': expected bools of 0 or 1, got %d in element %lld",
                              st->path, ts_quote(st->text + e->name), got, (long long)i);
        }
    }
    return TS_OK;
}

/* Loads an entry into a new CPU tensor. The caller owns its one reference; no scope does. */
static ts_tensor *load(const char *op, const ts_safetensors *st, const ts_st_entry *e)
{
    ts_tensor *t =
        ts_tensor_new(ts_thread_self(), (ts_dtype)e->dtype, e->sizes, e->ndim, TS_DEVICE_CPU);
    if (t && read_data(op, st, e, t->data) != TS_OK) {
        ts_tensor_unref(t);
        return NULL;
    }
    return t;
}

static const ts_st_entry *entry_named(const char *op, const ts_safetensors *st, const char *name)
{
    const ts_st_entry *e = entry_at(st, ts_safetensors_find(st, name));
    if (!e)
        ts_fail_op(TS_ERR_INDEX, op, NULL, NULL,
                   "'%s': expected the name of one of %lld tensors, got '%s'", st->path,
                   (long long)st->count, ts_quote(name));
    return e;
}

ts_tensor *ts_safetensors_load(const ts_safetensors *st, const char *name)
{
    TS_TRY_NULL(TS_CHECK_OBJECTS(st));
    TS_TRY_NULL(TS_CHECK_POINTERS(name));
    const ts_st_entry *e = entry_named("safetensors_load", st, name);
    ts_tensor *t = e ? load("safetensors_load", st, e) : NULL;
    return t ? ts_scope_adopt(ts_thread_self(), t) : NULL;
}

ts_tensor *ts_safetensors_load_at(const ts_safetensors *st, int64_t index)
{
    static const char op[] = "safetensors_load_at";
    TS_TRY_NULL(TS_CHECK_OBJECTS(st));
    const ts_st_entry *e = entry_at(st, index);
    if (!e)
        ts_fail_op(TS_ERR_INDEX, op, NULL, NULL, "'%s': expected an index below %lld, got %lld",
                   st->path, (long long)st->count, (long long)index);
    ts_tensor *t = e ? load(op, st, e) : NULL;
    return t ? ts_scope_adopt(ts_thread_self(), t) : NULL;
}

ts_status ts_safetensors_load_all(const ts_safetensors *st, ts_tensor **tensors)
{
    static const char op[] = "safetensors_load_all";
    ts_thread *thread = ts_thread_self();
    TS_TRY(TS_CHECK_OBJECTS(st));
    TS_TRY(TS_CHECK_LIST(tensors, st->count));
    for (int64_t i = 0; i < st->count; i++) {
        tensors[i] = load(op, st, &st->entries[i]);
        if (!tensors[i]) {
            while (i > 0) {
                ts_tensor_unref(tensors[--i]);
                tensors[i] = NULL;
            }
            return ts_error_code();
        }
    }
    for (int64_t i = 0; i < st->count; i++)
        ts_scope_adopt(thread, tensors[i]);
    return TS_OK;
}

ts_status ts_safetensors_read_into(const ts_safetensors *st, const char *name, ts_tensor *dst)
{
    static const char op[] = "safetensors_read_into";
    char want[200], got[200];
    TS_TRY(TS_CHECK_OBJECTS(st));
    TS_TRY(TS_CHECK_POINTERS(name));
    TS_TRY(TS_CHECK_TENSORS(dst));
    const ts_st_entry *e = entry_named(op, st, name);
    TS_TRY(e);
    if (dst->ndim != e->ndim ||
        memcmp(dst->sizes, e->sizes, (size_t)e->ndim * sizeof *e->sizes) != 0)
        return ts_fail_op(TS_ERR_SHAPE, op, NULL, NULL,
                          "'%s': tensor '%s': expected shape %s, got %s in the file", st->path,
                          ts_quote(name), ts_format_sizes(want, sizeof want, dst->sizes, dst->ndim),
                          ts_format_sizes(got, sizeof got, e->sizes, e->ndim));
    if (dst->dtype != e->dtype)
        return ts_fail_op(TS_ERR_DTYPE, op, NULL, NULL,
                          "'%s': tensor '%s': expected dtype %s, got %s in the file", st->path,
                          ts_quote(name), ts_dtype_name((ts_dtype)dst->dtype),
                          ts_dtype_name((ts_dtype)e->dtype));
    if (!ts_same_device(dst->storage->device, TS_DEVICE_CPU))
        return ts_fail_op(TS_ERR_DEVICE, op, NULL, NULL,
                          "argument 'dst': expected a tensor on cpu, got %s",
                          ts_device_name(dst->storage->device));
    if (dst->flags & TS_TENSOR_CONTIGUOUS) {
        TS_TRY(ts_resolve(dst));
        ts_storage_wrote(dst->storage, 0);
        return read_data(op, st, e, dst->data);
    }
    TS_SCOPE;
    TS_NO_GRAD;
    ts_tensor *t = load(op, st, e);
    return t ? TS_STATUS_OF(ts_copy_(dst, ts_scope_adopt(ts_thread_self(), t))) : ts_error_code();
}
