/**
 * @file scope.c  Ownership of tensors: scopes, references, detection of dead handles.
 *
 * The blocks of open scopes are in an array of the thread, not on the C stack. If longjmp(), an
 * exception or pthread_exit() skips the end of a scope, the enclosing scope ends its block.
 */
// SPDX-License-Identifier: MIT
#include "core/tensor.h"
#include "include/tessera/program.h"

#include <stdlib.h>
#include <string.h>

/** Removes t from its scope's list. */
TS_INLINE void unlink_tensor(ts_tensor *t)
{
    *t->link = t->next;
    if (t->next)
        t->next->link = t->link;
    t->link = NULL;
}

ts_tensor *ts_scope_disown(ts_tensor *t)
{
    if (!t->link || t == TS_NONE)
        return ts_tensor_ref(t);
    unlink_tensor(t);
    return t;
}

/* ------------------------------------------------------------------------------ blocks ---- */

/** The block at this byte offset from the thread's first block. */
TS_INLINE ts_block *block_at(const ts_thread *thread, int64_t at)
{
    return (ts_block *)((char *)thread->blocks + at);
}
/** Byte offset of the innermost block. */
TS_INLINE int64_t innermost(const ts_thread *thread)
{
    return (char *)thread->scope - (char *)thread->blocks;
}

/** Makes the array of blocks larger, for at least one more block; false if out of memory. */
static TS_COLD bool grow(ts_thread *thread)
{
    int64_t least = 16 * (int64_t)sizeof(ts_block),
            capacity = thread->capacity < least ? least : 2 * thread->capacity;
    ts_block *old = thread->blocks == &thread->root ? NULL : thread->blocks;
    int64_t last = innermost(thread);
    ts_block *blocks = ts_sys_realloc(old, (size_t)capacity);
    if (!blocks)
        return false;
    if (!old)
        blocks[0] = thread->root;
    thread->blocks = blocks;
    thread->scope = block_at(thread, last);
    thread->capacity = capacity;
    for (ts_block *b = blocks; b <= thread->scope; b++) /* the block's first tensor points back at
                                                           the block */
        if (b->first)
            b->first->link = &b->first;
    return true;
}

/** First serial number of a thread; ranges of threads do not overlap. */
static uint64_t first_serial(const ts_thread *thread) { return ((uint64_t)thread->id + 1) << 40; }

void ts_blocks_begin(ts_thread *thread)
{
    thread->serial = first_serial(thread);
    thread->root = (ts_block){.serial = thread->serial};
    thread->blocks = thread->scope = &thread->root;
    thread->capacity = sizeof thread->root;
}

/** Ends the innermost block: releases its tensors, also those that release functions add to it. */
TS_INLINE void end_block(ts_thread *thread)
{
    thread->scope->serial = 0;
    for (ts_tensor *t; (t = thread->scope->first) != NULL;) {
        unlink_tensor(t);
        ts_tensor_unref(t);
    }
    thread->scope--;
}

void ts_blocks_end(ts_thread *thread)
{
    while (thread->scope >= thread->blocks)
        end_block(thread);
    if (thread->blocks != &thread->root)
        ts_sys_free(thread->blocks);
    thread->blocks = thread->scope = NULL;
}

static TS_COLD int enter_slowly(ts_scope *scope, const char *place)
{
    if (!scope) {
        ts_fail_op(TS_ERR_NULL, "scope_enter", NULL, NULL,
                   "argument 'scope': expected a scope, got NULL");
        return 0;
    }
    ts_thread *thread = ts_thread_self();
    *scope = (ts_scope){0}; /* if out of memory, the enclosing scope owns the temporaries */
    return grow(thread) ? ts_scope_enter(scope, place) : 0;
}

int ts_scope_enter(ts_scope *scope, const char *place)
{
    ts_thread *thread = &ts_tls;
    int64_t at = innermost(thread) + (int64_t)sizeof(ts_block);
    if (TS_UNLIKELY(at >= thread->capacity || !scope)) /* full, or no array yet */
        return enter_slowly(scope, place);
    ts_block *b = ++thread->scope;
    b->first = NULL;
    b->serial = scope->serial = ++thread->serial;
    b->place = place;
    b->modes = thread->modes;
    scope->at = at;
    return 0;
}

static TS_COLD void refuse_leave(const ts_scope *scope)
{
    static const char op[] = "scope_leave";
    if (!scope)
        ts_fail_op(TS_ERR_NULL, op, NULL, NULL, "argument 'scope': expected a scope, got NULL");
    else if (scope->serial >> 40 != first_serial(ts_thread_self()) >> 40)
        ts_fail_op(TS_ERR_STATE, op, NULL, "a scope belongs to the thread that entered it",
                   "argument 'scope': expected a scope of this thread, got one of another");
    else
        ts_fail_op(TS_ERR_STATE, op, NULL, "leave scopes in the reverse order of entering",
                   "argument 'scope': expected a scope that is open, got one that was left, or "
                   "ended with a scope around it");
}

void ts_scope_leave(ts_scope *scope)
{
    ts_thread *thread = &ts_tls;
    if (TS_UNLIKELY(!scope || (uint64_t)scope->at > (uint64_t)innermost(thread) ||
                    block_at(thread, scope->at)->serial != scope->serial)) {
        if (!scope || scope->serial)
            refuse_leave(scope);
        return;
    }
    /* inner scopes are open only if a jump skipped their ends */
    while (TS_UNLIKELY(innermost(thread) > scope->at))
        end_block(thread);
    thread->modes = thread->scope->modes;
    end_block(thread);
}

ts_status ts_end_open_scopes(ts_status status, uint64_t serial, const char *op, const void *site,
                             const char *what)
{
    ts_thread *thread = ts_thread_self();
    const char *place = NULL;
    if (TS_LIKELY(thread->scope->serial <= serial))
        return status;
    while (thread->scope > thread->blocks && thread->scope->serial > serial) {
        place = thread->scope->place;
        thread->modes = thread->scope->modes;
        end_block(thread);
    }
    if (status != TS_OK)
        return status;
    return ts_fail_op(TS_ERR_STATE, op, site, "leave a scope in the function that enters it",
                      "%s did not leave the scope that it entered at %s", what,
                      place ? place : "an unnamed location");
}

/* ------------------------------------------------------------------ owners of a tensor ---- */

ts_tensor *ts_keep(ts_tensor *t)
{
    ts_thread *thread = ts_thread_self();
    ts_block *own = thread->scope;
    if (!t || t == TS_NONE)
        return t;
    if (ts_tensor_is_dead(t)) {
        ts_fail_dead("keep", __builtin_return_address(0), "t", t);
        return NULL;
    }
    if (own == thread->blocks || !t->link)
        return t;
    /* a tensor of an outer scope lives long enough; recent results are near the list's front */
    const ts_tensor *member = own->first;
    while (member && member != t)
        member = member->next;
    if (!member)
        return t;
    unlink_tensor(t);
    return ts_block_put(own - 1, t);
}

void ts_drop(ts_tensor *t)
{
    if (!t || !t->link || (t->flags & TS_TENSOR_NONE)) {
        if (t && ts_tensor_is_dead(t))
            ts_fail_dead("drop", __builtin_return_address(0), "t", t);
        return;
    }
    unlink_tensor(t);
    ts_tensor_unref(t);
}

ts_tensor *ts_retain(ts_tensor *t)
{
    if (!t || t == TS_NONE)
        return t;
    if (ts_tensor_is_dead(t)) {
        ts_fail_dead("retain", __builtin_return_address(0), "t", t);
        return NULL;
    }
    return ts_tensor_ref(t);
}

void ts_release(ts_tensor *t)
{
    if (!t || t == TS_NONE)
        return;
    const void *site = __builtin_return_address(0);
    if (ts_tensor_is_dead(t))
        ts_fail_dead("release", site, "t", t);
    else if (t->link && atomic_load_explicit(&t->refs, memory_order_acquire) == 1)
        ts_fail_op(TS_ERR_STATE, "release", site, "ts_drop() releases a temporary early",
                   "argument 't': expected a reference that ts_retain() took, got that of a scope");
    else
        ts_tensor_unref(t);
}

ts_tensor *ts_adopt(ts_tensor *t)
{
    if (!t || t == TS_NONE)
        return t;
    if (ts_tensor_is_dead(t)) {
        ts_fail_dead("adopt", __builtin_return_address(0), "t", t);
        return NULL;
    }
    if (t->link) { /* t is in a scope and stays there: a handle is in at most one scope */
        ts_tensor_unref(t);
        return t;
    }
    return ts_scope_adopt(ts_thread_self(), t);
}

/* ------------------------------------------------------------------------ dead handles ---- */

/* A new tensor may reuse a freed header; a stale handle then refers to the new tensor. With
 * TS_DEBUG=scopes this ring delays the reuse of the last 65,536 freed headers. Their `data` points
 * to the source location of the scope whose end released them; NULL: released otherwise. */
enum { QUARANTINED = 1 << 16 };
bool ts_scopes_watched;
static _Atomic(ts_tensor *) *quarantine;
static _Atomic uint32_t quarantine_next;

void ts_scope_quarantine(ts_tensor *t)
{
    const ts_block *b = ts_tls.scope; /* the scope whose end may have released t */
    t->data = b && !b->serial ? (char *)(b->place ? b->place : "an unknown location") : NULL;
    uint32_t i = atomic_fetch_add_explicit(&quarantine_next, 1, memory_order_relaxed) % QUARANTINED;
    t = atomic_exchange_explicit(&quarantine[i], t, memory_order_acq_rel);
    if (t)
        ts_free(&ts_tls, t, sizeof *t);
}

ts_status ts_fail_dead(const char *op, const void *site, const char *argument, const ts_tensor *t)
{
    static const char hint[] = "ts_keep() or ts_retain() it, or make the tensor in an outer scope";
    if (!ts_scopes_watched)
        return ts_fail_op(TS_ERR_STATE, op, site, "with TS_DEBUG=scopes this names its scope",
                          "argument '%s': expected a tensor, got one that was released", argument);
    return ts_fail_op(TS_ERR_STATE, op, site, hint,
                      "argument '%s': expected a tensor, got one that was released %s%s", argument,
                      t->data ? "with the scope of " : "by ts_drop(), ts_release() or its owner",
                      t->data ? t->data : "");
}

ts_status ts_fail_tensor(const char *op, const void *site, const char *argument, const ts_tensor *t)
{
    if (!t)
        return ts_fail_null(op, site, argument);
    if (t != TS_NONE)
        return ts_fail_dead(op, site, argument, t);
    return ts_fail_op(TS_ERR_NULL, op, site, NULL, "argument '%s': expected a tensor, got TS_NONE",
                      argument);
}

void ts_scopes_from_environment(void)
{
    if (ts_variable_choice("TS_DEBUG", "scopes|arena") != 0)
        return;
    quarantine = ts_sys_calloc(QUARANTINED * sizeof *quarantine);
    ts_scopes_watched = quarantine != NULL;
    ts_alloc_system |= ts_scopes_watched; /* without heaps, each freed header is quarantined */
}

void ts_scopes_remove(void)
{
    ts_scopes_watched = false;
    for (int i = 0; quarantine && i < QUARANTINED; i++)
        if (quarantine[i])
            ts_free(&ts_tls, quarantine[i], sizeof(ts_tensor));
    ts_sys_free((void *)quarantine);
    quarantine = NULL;
}
