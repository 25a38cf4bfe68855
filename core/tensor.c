/** @file tensor.c  Creating, reading and freeing tensors. */
// SPDX-License-Identifier: MIT
#include "core/tensor.h"
#include "include/tessera/check.h"
#include "core/device.h"
#include "core/error.h"
#include "core/hooks.h"
#include "core/recorder.h"

#include <string.h>

/* TS_KEY_ABSENT is the highest key: a call that requires a tensor fails before any layer runs. */
static ts_tensor none = {.keys = TS_KEYSET(TS_KEY_ABSENT), .refs = 1, .flags = TS_TENSOR_NONE,
                         .link = &none.next}; /* never adopted */
ts_tensor *const TS_NONE = &none;

/* ----------------------------------------------------------------------------- storage ---- */

_Static_assert(sizeof(ts_storage) < 64, "a block of sizeof(ts_storage) means: no data inside");

/** Bytes of a storage header and its data, which starts at the next cache line. */
TS_INLINE size_t block_inside(int64_t bytes) { return 64 + (size_t)bytes; }

/** True if data of this size is stored after the header, in the same block. */
TS_INLINE bool is_inside(ts_device device, int64_t bytes)
{
    return (uint64_t)bytes <= TS_INLINE_DATA && device.backend == TS_DEVICE_CPU.backend;
}

/** Initialises a header. Callers that wrap foreign memory set `release` and `foreign`. */
TS_INLINE ts_storage *storage_init(ts_storage *s, ts_device device, int64_t bytes, size_t block)
{
    atomic_init(&s->refs, 1);
    s->version = 0;
    s->writer = 0;
    s->device = device;
    s->block = (uint16_t)block;
    s->data = block == sizeof *s ? NULL : (char *)s + 64;
    s->bytes = bytes;
    s->id = 0;
    if (block == sizeof *s) {
        s->release = NULL;
        s->logged = 0;
    }
    return s;
}

/** Allocates a storage's data outside the header's block; on failure false, with an error. */
static bool allocate_data(ts_thread *thread, ts_storage *s)
{
    if (s->device.backend == TS_DEVICE_CPU.backend) {
        s->data = ts_alloc(thread, (size_t)s->bytes);
        if (TS_UNLIKELY(!s->data && s->bytes))
            ts_error_memory("a tensor", s->bytes);
        return s->data || !s->bytes;
    }
    if (!ts_backend_of(s->device))
        return true; /* META, and backend keys without a ts_backend, have no memory */
    if (ts_device_check(s->device, "new tensor") != TS_OK)
        return false;
    return !s->bytes || (s->data = ts_device_allocate(s->device, s->bytes, "a tensor")) != NULL;
}

/** allocate_data(), then adds the storage to the log of memory if a profile records. */
static bool storage_data(ts_thread *thread, ts_storage *s)
{
    if (!allocate_data(thread, s))
        return false;
    if (TS_UNLIKELY(atomic_load_explicit(&thread->state, memory_order_relaxed) &
                    TS_THREAD_RECORDING) && s->data) {
        s->owner = TS_OWNER_TEMPORARY;
        ts_above.storage_allocated(thread, s);
    }
    return true;
}

ts_storage *ts_storage_new(ts_thread *thread, ts_device device, int64_t bytes)
{
    bool inside = is_inside(device, bytes);
    size_t block = inside ? block_inside(bytes) : sizeof(ts_storage);
    ts_storage *s = ts_alloc(thread, block);
    if (TS_UNLIKELY(!s)) {
        ts_error_memory("a tensor", bytes);
        return NULL;
    }
    storage_init(s, device, bytes, block);
    if (inside || storage_data(thread, s))
        return s;
    ts_free(thread, s, block);
    return NULL;
}

void ts_storage_destroy(ts_storage *s)
{
    ts_thread *thread = &ts_tls;
    if (s->block == sizeof *s) { /* the header has no data after it */
        if (TS_UNLIKELY(s->logged))
            ts_above.storage_freed(s);
        if (s->release)
            s->release(s->foreign, s->data, s->bytes);
        else if (s->data && s->device.backend == TS_DEVICE_CPU.backend)
            ts_free(thread, s->data, (size_t)s->bytes);
        else if (s->data)
            ts_device_release(s->device, s->data, s->bytes);
    }
    ts_free(thread, s, s->block);
}

/* ------------------------------------------------------------------------------- tensor ---- */

bool ts_strides_contiguous(const int64_t *sizes, const int64_t *strides, int ndim)
{
    int64_t span = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        if (sizes[i] == 0)
            return true;
        if (sizes[i] != 1 && strides[i] != span) {
            while (i > 0) /* an empty tensor is contiguous whatever its strides */
                if (sizes[--i] == 0)
                    return true;
            return false;
        }
        span *= sizes[i];
    }
    return true;
}

bool ts_is_dense_last(const ts_tensor *t)
{
    if (t->ndim < 3 || t->strides[1] != 1)
        return false;
    int64_t step = t->sizes[1];
    for (int d = t->ndim - 1; d >= 2; d--) {
        if (t->strides[d] != step)
            return false;
        step *= t->sizes[d];
    }
    return t->sizes[0] == 1 || t->strides[0] == step;
}

TS_INLINE ts_tensor *tensor_init(ts_tensor *t, ts_storage *s, void *data, const ts_meta *m,
                                 ts_keyset keys)
{
    ts_tensor_init(t);
    t->keys = keys;
    t->storage = s;
    t->data = data;
    t->numel = m->numel;
    t->kind = m->kind;
    t->flags = TS_TENSOR_CONTIGUOUS;
    int64_t span = 1;
    for (int i = m->ndim - 1; i >= 0; i--) {
        int64_t size = m->sizes[i];
        t->sizes[i] = size;
        t->strides[i] = span;
        span *= size > 1 ? size : 1;
    }
    return t;
}

static __attribute__((noinline)) ts_tensor *tensor_new(ts_thread *thread, const ts_meta *m)
{
    ts_tensor *t = ts_header_alloc(thread, sizeof *t);
    ts_storage *s = t ? ts_storage_new(thread, m->device, m->numel * ts_dtype_sizes[m->dtype])
                      : NULL;
    if (TS_LIKELY(s != NULL))
        return tensor_init(t, s, s->data, m, TS_KEYSET(m->device.backend));
    if (t)
        ts_free(thread, t, sizeof *t);
    else
        ts_error_memory("a tensor header", sizeof *t);
    return NULL;
}

/* The fast path contains no call, so its prologue saves no registers. */
ts_tensor *ts_tensor_new_unchecked(ts_thread *thread, const ts_meta *m)
{
    int64_t bytes = m->numel * ts_dtype_sizes[m->dtype];
    ts_heap *heap = thread->heap;
    if (TS_UNLIKELY(!heap || !is_inside(m->device, bytes)))
        return tensor_new(thread, m);
    size_t block = block_inside(bytes);
    ts_tensor *t = ts_heap_take(heap, TS_HEADER_CLASS);
    if (TS_UNLIKELY(!t))
        return tensor_new(thread, m);
    ts_storage *s = ts_heap_take(heap, ts_small_class(block));
    if (TS_UNLIKELY(!s)) {
        ts_heap_put_header(heap, t);
        return tensor_new(thread, m);
    }
    storage_init(s, TS_DEVICE_CPU, bytes, block);
    return tensor_init(t, s, (char *)s + 64, m, TS_KEYSET(TS_KEY_CPU));
}

ts_tensor *ts_tensor_promise(ts_thread *thread, const ts_meta *m, void *data, void *foreign,
                             void (*release)(void *foreign, void *data, int64_t bytes))
{
    ts_tensor *t = ts_header_alloc(thread, sizeof *t);
    ts_storage *s = t ? ts_alloc(thread, sizeof *s) : NULL;
    if (!s) {
        if (t)
            ts_free(thread, t, sizeof *t);
        ts_error_memory("a tensor header", sizeof *t);
        return NULL;
    }
    storage_init(s, m->device, m->numel * ts_dtype_sizes[m->dtype], sizeof *s);
    s->data = data;
    s->foreign = foreign;
    s->release = release;
    return tensor_init(t, s, data, m, TS_KEYSET(m->device.backend) | TS_KEYSET(TS_KEY_LAZY));
}

bool ts_storage_fulfil(ts_thread *thread, ts_storage *s)
{
    void *promised = s->data;
    if (!storage_data(thread, s)) {
        s->data = promised;
        return false;
    }
    s->foreign = promised;
    s->release = NULL;
    return true;
}

ts_status ts_resolve_lazy(const ts_tensor *t, const void *site)
{
    return ts_above.resolve((ts_tensor *)t, site);
}

bool ts_layout_ok(const char *op, const void *site, ts_dtype dtype, const int64_t *sizes, int ndim,
                  int64_t *numel, int64_t *bytes)
{
    char text[160];
    if ((unsigned)dtype >= TS_DTYPE_COUNT)
        ts_fail_op(TS_ERR_DTYPE, op, site, NULL,
                   "argument 'dtype': expected a dtype, got number %d", (int)dtype);
    else if (ndim < 0 || ndim > TS_MAX_DIMS)
        ts_fail_op(TS_ERR_SHAPE, op, site, NULL, "argument 'ndim': expected 0 to %d, got %d",
                   TS_MAX_DIMS, ndim);
    else if (ndim && !sizes)
        ts_fail_op(TS_ERR_NULL, op, site, NULL, "argument 'sizes': expected %d sizes, got NULL",
                   ndim);
    else if (!ts_tensor_bytes(sizes, ndim, ts_dtype_sizes[dtype], numel, bytes))
        ts_fail_op(TS_ERR_SHAPE, op, site, NULL,
                   "%s: expected sizes >= 0 whose bytes fit 63 bits, got %s",
                   op ? "argument 'sizes'" : "a new tensor",
                   ts_format_sizes(text, sizeof text, sizes, ndim));
    else
        return true;
    return false;
}

ts_tensor *ts_tensor_new(ts_thread *thread, ts_dtype dtype, const int64_t *sizes, int ndim,
                         ts_device device)
{
    int64_t numel, bytes;
    if (!ts_layout_ok(NULL, NULL, dtype, sizes, ndim, &numel, &bytes))
        return NULL;
    ts_meta m = ts_meta_of(sizes, dtype, device, ndim, numel);
    return ts_tensor_new_unchecked(thread, &m);
}

ts_tensor *ts_tensor_alias(ts_thread *thread, const ts_tensor *base, const int64_t *sizes,
                           const int64_t *strides, int ndim, int64_t offset)
{
    ts_tensor *t = ts_tensor_header(thread);
    if (TS_UNLIKELY(!t))
        return NULL;
    atomic_fetch_add_explicit(&base->storage->refs, 1, memory_order_relaxed);
    t->storage = base->storage;
    t->keys = base->keys & TS_BACKEND_KEYS;
    t->data = base->data ? base->data + offset * ts_dtype_sizes[base->dtype] : NULL;
    t->kind = base->kind;
    t->ndim = (uint8_t)ndim;
    int64_t numel = 1;
    for (int i = 0; i < ndim; i++) {
        t->sizes[i] = sizes[i];
        t->strides[i] = strides[i];
        numel *= sizes[i];
    }
    t->numel = numel;
    t->flags =
        TS_TENSOR_VIEW | (ts_strides_contiguous(sizes, strides, ndim) ? TS_TENSOR_CONTIGUOUS : 0);
    return t;
}

/* Release function for memory that the caller owns. Without a release function the storage would
 * free the memory. */
static void release_nothing(void *foreign, void *data, int64_t bytes)
{
    (void)foreign, (void)data, (void)bytes;
}

ts_tensor *ts_from_blob(void *data, ts_dtype dtype, const int64_t *sizes, int ndim,
                        void (*release)(void *payload, void *data, int64_t bytes), void *payload)
{
    static const char op[] = "from_blob";
    ts_thread *thread = ts_thread_self();
    const void *site = __builtin_return_address(0);
    int64_t numel, bytes;
    if (!ts_layout_ok(op, site, dtype, sizes, ndim, &numel, &bytes))
        return NULL;
    if (numel && !data) {
        ts_fail_op(TS_ERR_NULL, op, site, NULL, "argument 'data': expected %lld elements, got NULL",
                   (long long)numel);
        return NULL;
    }
    if ((uintptr_t)data % ts_dtype_sizes[dtype]) {
        ts_fail_op(TS_ERR_VALUE, op, site, "copy the values with ts_from_array()",
                   "argument 'data': expected an address that is a multiple of %d, got %p",
                   ts_dtype_sizes[dtype], data);
        return NULL;
    }
    ts_tensor *t = ts_tensor_header(thread);
    ts_storage *s = t ? ts_alloc(thread, sizeof *s) : NULL;
    if (!s) {
        if (t)
            ts_free(thread, t, sizeof *t);
        ts_error_memory("a tensor header", sizeof *s);
        return NULL;
    }
    *s = (ts_storage){.device = TS_DEVICE_CPU, .block = sizeof *s, .data = data, .bytes = bytes,
                      .foreign = payload, .release = release ? release : release_nothing};
    atomic_init(&s->refs, 1);
    t->storage = s;
    t->keys = TS_KEYSET(TS_KEY_CPU);
    t->data = data;
    t->kind = ts_kind_of(dtype, ndim, TS_DEVICE_CPU);
    t->flags = TS_TENSOR_CONTIGUOUS;
    if (ndim)
        memcpy(t->sizes, sizes, (size_t)ndim * sizeof *sizes);
    t->numel = ts_strides_fill(t->sizes, ndim, t->strides);
    return ts_scope_adopt(thread, t);
}

static __attribute__((noinline)) void tensor_end(ts_tensor *t)
{
    if (t->node || t->grad)
        ts_above.release_history(t);
    ts_storage_release(t->storage);
    ts_tensor_mark_dead(t);
    if (ts_scopes_watched)
        ts_scope_quarantine(t);
    else
        ts_free(&ts_tls, t, sizeof *t);
}

void ts_tensor_unref_shared(ts_tensor *t)
{
    if (atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) == 1)
        ts_tensor_destroy(t);
}

/* The fast path, without history and with blocks of this thread, makes no call. */
void ts_tensor_destroy(ts_tensor *t)
{
    ts_storage *s = t->storage;
    ts_heap *heap = ts_tls.heap;
    if (TS_UNLIKELY(((uintptr_t)t->node | (uintptr_t)t->grad) || s->block == sizeof *s ||
                    atomic_load_explicit(&s->refs, memory_order_acquire) != 1 || !heap ||
                    ts_slab_of(t)->heap != heap || ts_slab_of(s)->heap != heap)) {
        tensor_end(t);
        return;
    }
    ts_heap_put(heap, s);
    ts_tensor_mark_dead(t);
    ts_heap_put_header(heap, t);
}

/* ------------------------------------------------------------------------ public readers ---- */

/** True if t is not NULL. NULL is the result of a failed call, whose error then stays. */
TS_INLINE bool is_given(const ts_tensor *t)
{
    if (TS_LIKELY(t != NULL))
        return true;
    ts_error_keep();
    return false;
}

int ts_ndim(const ts_tensor *t) { return is_given(t) ? t->ndim : 0; }
const int64_t *ts_sizes(const ts_tensor *t) { return is_given(t) ? t->sizes : NULL; }
const int64_t *ts_strides(const ts_tensor *t) { return is_given(t) ? t->strides : NULL; }
int64_t ts_numel(const ts_tensor *t) { return is_given(t) ? t->numel : 0; }
ts_dtype ts_dtype_of(const ts_tensor *t)
{
    return is_given(t) ? (ts_dtype)t->dtype : TS_DTYPE_NONE;
}
ts_device ts_device_of(const ts_tensor *t) { return is_given(t) ? t->device : TS_DEVICE_CPU; }
bool ts_is_contiguous(const ts_tensor *t) { return t && (t->flags & TS_TENSOR_CONTIGUOUS); }

/** True if t has a storage. TS_NONE and released tensors have none. */
TS_INLINE bool has_storage(const ts_tensor *t) { return t && !(t->keys >> TS_KEY_ABSENT); }

uint32_t ts_version(const ts_tensor *t) { return has_storage(t) ? t->storage->version : 0; }
const void *ts_data(const ts_tensor *t)
{
    return has_storage(t) && t->numel && ts_resolve(t) == TS_OK ? t->data : NULL;
}
ts_keyset ts_keys_of(const ts_tensor *t) { return t ? t->keys : 0; }

void *ts_data_mut(ts_tensor *t)
{
    if (!has_storage(t) || !t->numel || ts_resolve(t) != TS_OK)
        return NULL;
    ts_storage_wrote(t->storage, 0);
    return t->data;
}

int64_t ts_size(const ts_tensor *t, int dim)
{
    if (!t) {
        ts_fail_null("size", __builtin_return_address(0), "t");
        ts_error_keep();
        return -1;
    }
    int d = dim < 0 ? dim + t->ndim : dim;
    if (d < 0 || d >= t->ndim) {
        if (t->ndim)
            ts_fail_op(TS_ERR_INDEX, "size", __builtin_return_address(0), NULL,
                       "argument 'dim': expected %d to %d, got %d", -t->ndim, t->ndim - 1, dim);
        else
            ts_fail_op(TS_ERR_INDEX, "size", __builtin_return_address(0), NULL,
                       "argument 't': expected a tensor with dims, got one without");
        ts_error_keep();
        return -1;
    }
    return t->sizes[d];
}

ts_tensor *ts_from_array(const void *data, ts_dtype dtype, const int64_t *sizes, int ndim)
{
    ts_thread *thread = ts_thread_self();
    const void *site = __builtin_return_address(0);
    int64_t numel, bytes;
    if (!ts_layout_ok("from_array", site, dtype, sizes, ndim, &numel, &bytes))
        return NULL;
    if (numel && !data) {
        ts_fail_op(TS_ERR_NULL, "from_array", site, NULL,
                   "argument 'data': expected %lld elements, got NULL", (long long)numel);
        return NULL;
    }
    ts_meta m = ts_meta_of(sizes, dtype, TS_DEVICE_CPU, ndim, numel);
    ts_tensor *t = ts_tensor_new_unchecked(thread, &m);
    if (!t)
        return NULL;
    if (t->numel)
        memcpy(t->data, data, (size_t)t->storage->bytes);
    TS_REPORT_EVENT(thread, constant, t);
    return ts_scope_adopt(thread, t);
}
