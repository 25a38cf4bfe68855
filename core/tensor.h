/**
 * @file tensor.h  The tensor and its storage.
 *
 * A tensor is a header (sizes, strides, keys, autograd state) over a storage, which owns the
 * memory. Aliases share a storage. Both structs count references; a temporary is in the list of its
 * scope, which owns one reference.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_TENSOR_H
#define TS_CORE_TENSOR_H

#include "core/alloc.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/hooks.h"
#include "core/thread.h"

typedef struct ts_node ts_node;
typedef struct ts_grad_meta ts_grad_meta;

/**
 * Promised memory: when compile/ records a call instead of running it, the results have no memory
 * until the recording runs. Until then each storage has its own range of addresses that the
 * processor cannot map (tag 0xa5 in the upper 16 bits), so code that computes with addresses
 * (views, overlaps) works unchanged. When a plan allocates the memory, the storage keeps the
 * promised address in `foreign`. A tensor keeps TS_KEY_LAZY and its promised address until
 * ts_tensor_take_address().
 */
#define TS_PROMISED_TAG 0xa5
TS_INLINE bool ts_is_promised(const void *data)
{
    return (uintptr_t)data >> 48 == TS_PROMISED_TAG;
}

/** dtype, number of dims and device of a tensor in one word, for comparing two tensors. */
typedef union ts_kind {
    struct {
        uint8_t dtype, ndim;
        ts_device device;
    };
    uint32_t bits;
} ts_kind;

/** Members dtype, ndim and device of a struct, and `kind`, which names the three as one word. */
#define TS_KIND_MEMBERS             \
    union {                         \
        ts_kind kind;               \
        struct {                    \
            uint8_t dtype, ndim;    \
            ts_device device;       \
        };                          \
    }

TS_INLINE ts_kind ts_kind_of(ts_dtype dtype, int ndim, ts_device device)
{
    return (ts_kind){{(uint8_t)dtype, (uint8_t)ndim, device}};
}

/** Shape, dtype and device of a tensor that may not exist yet; sizes are borrowed. */
typedef struct ts_meta {
    const int64_t *sizes;
    int64_t numel; /* 0: no elements, or not computed; if not computed, the sizes are
                      unchecked too */
    TS_KIND_MEMBERS;
} ts_meta;

TS_INLINE ts_meta ts_meta_of(const int64_t *sizes, ts_dtype dtype, ts_device device, int ndim,
                             int64_t numel)
{
    return (ts_meta){sizes, numel, {ts_kind_of(dtype, ndim, device)}};
}

/** Purpose of a storage's memory in profiles, in ascending priority. ts_storage_own() raises a
 *  storage's purpose and never lowers it. */
typedef enum ts_owner {
    TS_OWNER_TEMPORARY,
    TS_OWNER_SAVED,     /* saved for the backward pass */
    TS_OWNER_INPUT,     /* a batch */
    TS_OWNER_GRADIENT,  /* gradient of a leaf */
    TS_OWNER_OPTIMIZER, /* state of an optimizer */
    TS_OWNER_PARAMETER, /* a leaf that requires grad */
    TS_OWNER_COUNT
} ts_owner;

/** Memory that tensors share. Each write increments the version (invariant 4 in
 *  docs/architecture.md). */
typedef struct ts_storage {
    _Atomic int32_t refs;
    uint32_t version;
    uint16_t writer;   /* op of the last write */
    ts_device device;
    uint16_t block;    /* bytes of this struct's block; sizeof(ts_storage): the data is elsewhere
                          (TS_INLINE_DATA) */
    _Atomic uint8_t owner; /* a ts_owner; valid if the storage is in a profile's log */
    uint8_t logged;    /* number of the profile in whose log it is (dispatch/memory_log.h); 0: none.
                          Valid only for data outside of the block */
    void *data;
    int64_t bytes;
    uint64_t id;       /* id in the graph whose call made it; 0: none */
    /* valid only for data outside of the block */
    void *foreign;     /* argument of release; after ts_storage_fulfil() the promised address */
    void (*release)(void *foreign, void *data, int64_t bytes); /* NULL: the data is the library's */
} ts_storage;

/** Bits of ts_tensor.flags. */
enum {
    TS_TENSOR_CONTIGUOUS = 1,
    TS_TENSOR_REQUIRES_GRAD = 2, /* requested for a leaf, or the result of a recorded op */
    TS_TENSOR_VIEW = 4,          /* made by ts_tensor_alias(), as all results of view ops */
    TS_TENSOR_NONE = 8           /* the TS_NONE constant */
};

struct ts_tensor {
    ts_keyset keys;
    ts_storage *storage;
    char *data; /* storage->data + offset */
    int64_t numel;
    _Atomic int32_t refs;
    TS_KIND_MEMBERS;       /* device equals storage->device */
    uint8_t flags, output; /* output: index among the results of node */
    ts_node *node;       /* owned; NULL for leaves */
    ts_grad_meta *grad;  /* owned; gradient and accumulator of a leaf (autograd/node.h), or a kept
                            gradient; NULL until needed */
    uint64_t id;         /* id in the graph that recorded it; 0: none (tracing/graph.h) */
    ts_tensor *next, **link; /* position in the scope's list; link is NULL outside scopes */
    int64_t sizes[TS_MAX_DIMS];
    int64_t strides[TS_MAX_DIMS]; /* elements */
};

/** CPU data of at most this many bytes is in the storage's own block. Foreign and promised memory
 *  is not. */
#define TS_INLINE_DATA 1024

/** Frees a storage whose last reference was released: calls s->release if set, otherwise frees the
 *  data; then frees s. */
void ts_storage_destroy(ts_storage *s);

/** The purpose of s; relaxed, because another thread may be raising it. */
TS_INLINE uint8_t ts_storage_owner(const ts_storage *s)
{
    return atomic_load_explicit(&s->owner, memory_order_relaxed);
}
/** Raises s->owner to `owner` if s is in a profile's log. */
TS_INLINE void ts_storage_own(ts_storage *s, ts_owner owner)
{
    if (s->block == sizeof *s && TS_UNLIKELY(s->logged) && owner > ts_storage_owner(s))
        atomic_store_explicit(&s->owner, (uint8_t)owner, memory_order_relaxed);
}

/** Uninitialised storage with one reference. Its data is NULL on META, on keys without a
 *  ts_backend, and for 0 bytes on other devices than the CPU. NULL with TS_ERR_MEMORY or
 *  TS_ERR_DEVICE. */
ts_storage *ts_storage_new(ts_thread *thread, ts_device device, int64_t bytes);

/** Releases one reference; true if it was the last one. */
TS_INLINE bool ts_storage_unref(ts_storage *s)
{
    return atomic_load_explicit(&s->refs, memory_order_acquire) == 1 ||
           atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1;
}
TS_INLINE void ts_storage_release(ts_storage *s)
{
    if (ts_storage_unref(s))
        ts_storage_destroy(s);
}

/** Initialises a header: one reference, no history, no scope. The caller sets keys, storage, data,
 *  numel, kind, flags, sizes and strides. */
TS_INLINE ts_tensor *ts_tensor_init(ts_tensor *t)
{
    atomic_init(&t->refs, 1);
    t->node = NULL;
    t->grad = NULL;
    t->id = 0;
    t->link = NULL;
    t->output = 0;
    return t;
}

/** A new header, initialised by ts_tensor_init(); NULL with TS_ERR_MEMORY. */
TS_INLINE ts_tensor *ts_tensor_header(ts_thread *thread)
{
    ts_tensor *t = ts_header_alloc(thread, sizeof *t);
    if (TS_UNLIKELY(!t)) {
        ts_error_memory("a tensor header", sizeof *t);
        return NULL;
    }
    return ts_tensor_init(t);
}

/** Checks dtype, ndim and sizes of a new tensor and computes its elements and bytes. False with
 *  TS_ERR_DTYPE, TS_ERR_SHAPE or TS_ERR_NULL; the message names the argument and `op`, which may be
 *  NULL. */
bool ts_layout_ok(const char *op, const void *site, ts_dtype dtype, const int64_t *sizes, int ndim,
                  int64_t *numel, int64_t *bytes);
/** Uninitialised contiguous tensor with one reference, owned by the caller; NULL with an error. */
ts_tensor *ts_tensor_new(ts_thread *thread, ts_dtype dtype, const int64_t *sizes, int ndim,
                         ts_device device);
/** Like ts_tensor_new(), without checks, for sizes that are known to be valid. */
ts_tensor *ts_tensor_new_unchecked(ts_thread *thread, const ts_meta *m);
/** Like ts_tensor_new_unchecked(), with the promised address `data`. If the last reference is
 *  released before a plan allocates the memory, release(foreign, ...) is called. NULL with an
 *  error. */
ts_tensor *ts_tensor_promise(ts_thread *thread, const ts_meta *m, void *data, void *foreign,
                             void (*release)(void *foreign, void *data, int64_t bytes));
/** Allocates the memory of a promised storage; on failure false, an error, and an unchanged
 *  storage. */
bool ts_storage_fulfil(ts_thread *thread, ts_storage *s);
/** Updates t's address from the promised to the allocated memory and removes TS_KEY_LAZY. False if
 *  the memory is not allocated yet. */
TS_INLINE bool ts_tensor_take_address(ts_tensor *t)
{
    const ts_storage *s = t->storage;
    if (ts_is_promised(s->data))
        return false;
    if (ts_is_promised(t->data))
        t->data = (char *)s->data + (t->data - (char *)s->foreign);
    if (t->keys & TS_KEYSET(TS_KEY_LAZY)) /* no needless store: other threads may read the keys */
        t->keys &= ~TS_KEYSET(TS_KEY_LAZY);
    return true;
}
/** Byte offset of t's first element in its storage. */
TS_INLINE int64_t ts_tensor_byte_offset(const ts_tensor *t)
{
    const ts_storage *s = t->storage;
    bool moved = TS_UNLIKELY(ts_is_promised(t->data)) && !ts_is_promised(s->data);
    return t->data ? t->data - (char *)(moved ? s->foreign : s->data) : 0;
}
/** The slow part of ts_resolve(). */
TS_COLD ts_status ts_resolve_lazy(const ts_tensor *t, const void *site);
/** If a compiled call has recorded the calls that compute t, runs them. Code outside of ops calls
 *  it before it reads or writes t's memory. Errors: those of the calls. */
TS_INLINE ts_status ts_resolve(const ts_tensor *t)
{
    if (TS_LIKELY(!((t->keys | ts_tls.include) & TS_KEYSET(TS_KEY_LAZY))))
        return TS_OK;
    return ts_resolve_lazy(t, __builtin_return_address(0)); /* of the function that reads */
}
/** Alias of base's storage without history, owned by the caller. strides and offset are in
 *  elements; offset counts from base's first element. Nothing is checked. NULL with
 *  TS_ERR_MEMORY. */
ts_tensor *ts_tensor_alias(ts_thread *thread, const ts_tensor *base, const int64_t *sizes,
                           const int64_t *strides, int ndim, int64_t offset);

/** Frees a tensor whose last reference was released, with its node, its gradient and its reference
 *  to the storage. Marks the header as dead. */
void ts_tensor_destroy(ts_tensor *t);

/** Releases one of several references; out of line, to keep the fast path small. */
void ts_tensor_unref_shared(ts_tensor *t);
/** Releases one reference. t is not NULL. */
TS_INLINE void ts_tensor_unref(ts_tensor *t)
{
    if (TS_LIKELY(atomic_load_explicit(&t->refs, memory_order_acquire) == 1))
        ts_tensor_destroy(t);
    else
        ts_tensor_unref_shared(t);
}
TS_INLINE ts_tensor *ts_tensor_ref(ts_tensor *t)
{
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

/** Returns t with a reference that the caller owns: the scope's, if t is in a scope, else a new
 *  one. */
ts_tensor *ts_scope_disown(ts_tensor *t);

/** Adds an owned reference at the front of the list of an open scope (ts_block). */
TS_INLINE ts_tensor *ts_block_put(ts_block *b, ts_tensor *t)
{
    t->next = b->first;
    t->link = &b->first;
    if (t->next)
        t->next->link = &t->next;
    b->first = t;
    return t;
}
/** Gives an owned reference to the thread's innermost scope. */
TS_INLINE ts_tensor *ts_scope_adopt(ts_thread *thread, ts_tensor *t)
{
    return ts_block_put(thread->scope, t);
}

TS_INLINE bool ts_is_none(const ts_tensor *t) { return t == TS_NONE; }

/** Marks a freed header, so that a call with it reaches the slot of TS_KEY_ABSENT. */
TS_INLINE void ts_tensor_mark_dead(ts_tensor *t)
{
    ((uint8_t *)&t->keys)[__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 7 : 0] |= 0x80;
}
/** True if t was freed and its header was not reused since. */
TS_INLINE bool ts_tensor_is_dead(const ts_tensor *t)
{
    return TS_UNLIKELY(t->keys >> TS_KEY_ABSENT) && t != TS_NONE;
}
/** Records TS_ERR_STATE for a dead argument. */
TS_COLD ts_status ts_fail_dead(const char *op, const void *site, const char *argument,
                               const ts_tensor *t);
/** The error for an argument that is no live tensor: ts_fail_null() for NULL, TS_ERR_NULL for
 *  TS_NONE, ts_fail_dead() for a dead tensor. */
TS_COLD ts_status ts_fail_tensor(const char *op, const void *site, const char *argument,
                                 const ts_tensor *t);
/** Ends the scopes that the callback named `what` entered and did not leave. serial: serial number
 *  of the innermost scope before the callback. Returns `status`, or TS_ERR_STATE if that is TS_OK
 *  and such scopes were open. */
ts_status ts_end_open_scopes(ts_status status, uint64_t serial, const char *op, const void *site,
                             const char *what);
/** With TS_DEBUG=scopes, delays the reuse of a freed header. */
TS_COLD void ts_scope_quarantine(ts_tensor *t);
/** True if TS_DEBUG=scopes is set. */
extern bool ts_scopes_watched;

/** Records a write by op: increments the version (invariant 4). */
TS_INLINE void ts_storage_wrote(ts_storage *s, uint16_t op)
{
    s->version++;
    s->writer = op;
}

/** True if s has owners besides one tensor, the calling thread's recording, and replays. */
TS_INLINE bool ts_storage_shared(const ts_storage *s)
{
    int32_t refs = atomic_load_explicit(&s->refs, memory_order_acquire);
    bool compiled = TS_UNLIKELY(ts_tls.lazy != NULL) ||
                    TS_UNLIKELY(atomic_load_explicit(&ts_replays, memory_order_relaxed));
    return refs > 1 && (!compiled || refs > 1 + ts_above.holds(s));
}

/** True if strides are those of a contiguous tensor of these sizes. Strides of dims of size 1, and
 *  of a tensor without elements, do not matter. */
bool ts_strides_contiguous(const int64_t *sizes, const int64_t *strides, int ndim);
/**
 * True if t, (N, C, ...), has three dims or more and is dense in the order (N, ..., C):
 * channels-last without gaps. Strides of dims of size 1 must also match, except that of N.
 */
bool ts_is_dense_last(const ts_tensor *t);
/** Fills row-major strides; returns numel. */
TS_INLINE int64_t ts_strides_fill(const int64_t *sizes, int ndim, int64_t *strides)
{
    int64_t n = 1, span = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        strides[i] = span;
        n *= sizes[i];
        span *= sizes[i] > 1 ? sizes[i] : 1;
    }
    return n;
}

/** True if a stride of t is 0 in a dim of size > 1, as ts_expand() makes it. Elements then share
 *  memory, so t cannot be a destination. */
TS_INLINE bool ts_is_expanded(const ts_tensor *t)
{
    for (int d = 0; !(t->flags & TS_TENSOR_CONTIGUOUS) && d < t->ndim; d++)
        if (t->sizes[d] > 1 && t->strides[d] == 0)
            return true;
    return false;
}
TS_INLINE bool ts_same_device(ts_device a, ts_device b)
{
    return a.backend == b.backend && a.index == b.index;
}

TS_INLINE bool ts_same_sizes(const int64_t *a, const int64_t *b, int ndim)
{
    for (int d = 0; d < ndim; d++)
        if (a[d] != b[d])
            return false;
    return true;
}

extern const uint8_t ts_dtype_sizes[TS_DTYPE_COUNT];

/** Formats a list of n numbers as "(2, 3)", at most the first 8. The text is valid in the enclosing
 *  block. */
#define TS_LIST_TEXT(list, n) \
    ts_format_sizes((char[192]){0}, 192, list, (int)ts_min64(n, TS_MAX_DIMS))
/** Formats the sizes of a tensor or a shape, as TS_LIST_TEXT(). */
#define TS_SIZES_TEXT(t) TS_LIST_TEXT((t)->sizes, (t)->ndim)

#endif
