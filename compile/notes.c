/** @file notes.c  Collects during a call what a replay needs besides the recording: gradients of
 * leaves, declared sources of numbers, reasons against a replay. */
// SPDX-License-Identifier: MIT
#include "compile/replay.h"
#include "dispatch/entries.h"
#include "include/tessera/check.h"

#include <stdio.h>
#include <string.h>

struct ts_replay_modes ts_replay_modes_now(const ts_thread *thread)
{
    struct ts_replay_modes m;
    memset(&m, 0, sizeof m); /* compared byte by byte */
    m.epoch = atomic_load_explicit(&ts_epoch, memory_order_relaxed);
    m.include = (thread->include | atomic_load(&thread->include_all)) & ~TS_KEYSET(TS_KEY_LAZY);
    m.exclude = thread->exclude;
    m.autocast = thread->autocast;
    m.no_cast_cache = thread->no_cast_cache;
    m.device = thread->device;
    m.deterministic = ts_deterministic();
    return m;
}

void ts_notes_refuse(ts_notes *n, const char *what, const void *site)
{
    char text[160];
    if (n->why[0])
        return;
    if (site)
        snprintf(n->why, sizeof n->why, "%.60s, called from %s, in the function", what,
                 ts_format_site(text, sizeof text, site));
    else
        snprintf(n->why, sizeof n->why, "%.200s in the function", what);
}

void ts_notes_unrepeatable(const char *what)
{
    if (ts_tls.lazy->notes)
        ts_notes_refuse(ts_tls.lazy->notes, what, NULL);
}

/* ---------------------------------------------------------------------------- gradients ---- */

static bool add_leaf(ts_notes *n, ts_leaf leaf)
{
    if (!ts_array_reserve(&n->leaves, 1, sizeof leaf)) {
        n->failed = true;
        return false;
    }
    if (leaf.leaf)
        ts_tensor_ref(leaf.leaf);
    n->last_leaf = n->leaves.count;
    *TS_PUSH(n->leaves, ts_leaf) = leaf;
    return true;
}

/** True if the leaf or variable has a note. Events of all leaves come in the same order, so the
 *  search starts after the last match. */
static bool is_known(ts_notes *n, const ts_tensor *leaf, ts_tensor **slot)
{
    const ts_leaf *all = n->leaves.data;
    uint32_t count = n->leaves.count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = (n->last_leaf + i) % count;
        if (all[at].leaf == leaf && all[at].slot == slot) {
            n->last_leaf = (at + 1) % count;
            return true;
        }
    }
    return false;
}

static bool note_tensor(ts_notes *n, ts_tensor *leaf, ts_tensor **slot, ts_tensor *before)
{
    if (n->thread->lazy->running || is_known(n, leaf, slot))
        return true;
    ts_leaf l = {.leaf = leaf, .slot = slot, .before = before};
    if (before) {
        l.memory = before->storage;
        ts_layout_of(&l.layout, before);
        l.alone = leaf && atomic_load(&before->refs) == 1 && !ts_storage_shared(before->storage);
    }
    return add_leaf(n, l);
}
static void note(ts_recorder *r, ts_tensor *leaf, ts_tensor *before)
{
    note_tensor((ts_notes *)r, leaf, NULL, before);
}
static void grad_read(ts_recorder *r, ts_tensor *leaf, ts_tensor *grad) { note(r, leaf, grad); }
static void grad_absent(ts_recorder *r, ts_tensor *leaf) { note(r, leaf, NULL); }
/** Before the event a removed gradient (grad NULL) still exists, and a new one does not. */
static void grad_set(ts_recorder *r, ts_tensor *leaf, ts_tensor *grad)
{
    note(r, leaf, grad ? NULL : leaf->grad->grad);
}

static uint32_t enter(ts_recorder *r, const char *name, const void *site)
{
    (void)r, (void)name, (void)site;
    return TS_NO_REGION;
}
static void leave(ts_recorder *r, uint32_t region) { (void)r, (void)region; }
static uint32_t parts(ts_recorder *r, const ts_frame *f)
{
    (void)r, (void)f;
    return TS_NO_REGION;
}
static void parts_end(ts_recorder *r, uint32_t region, const ts_frame *f)
{
    (void)r, (void)region, (void)f;
}
static void extra(ts_recorder *r, int i, ts_tensor *t) { (void)r, (void)i, (void)t; }
static void constant(ts_recorder *r, ts_tensor *t) { (void)r, (void)t; }
static void before(ts_recorder *r) { (void)r; }

/* ------------------------------------------------------------------------ begin and end ---- */

void ts_notes_begin(ts_notes *n, ts_thread *thread, ts_tensor *const *inputs, int ninputs,
                    ts_tensor **outputs, int noutputs)
{
    *n = (ts_notes){.events = {enter, leave, parts, parts_end, extra, constant, grad_read, grad_set,
                               grad_absent, before, true},
                    .thread = thread, .inputs = inputs, .ninputs = ninputs, .outputs = outputs,
                    .noutputs = noutputs, .rng = thread->rng,
                    .leaf_runs = atomic_load(&ts_leaf_runs),
                    .modes = ts_replay_modes_now(thread)};
    for (int i = 0; i < ninputs; i++)
        if (inputs[i] == TS_NONE)
            snprintf(n->why, sizeof n->why, "input %d is TS_NONE", i);
}

void ts_notes_forget(ts_notes *n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n->leaves.count; i++) {
        ts_leaf *leaf = (ts_leaf *)n->leaves.data + i;
        if (leaf->leaf && !leaf->before && atomic_load(&leaf->leaf->refs) == 1)
            ts_tensor_unref(leaf->leaf);
        else
            ((ts_leaf *)n->leaves.data)[kept++] = *leaf;
    }
    n->leaves.count = kept;
}

void ts_notes_end(ts_notes *n)
{
    for (uint32_t i = 0; i < n->leaves.count; i++)
        if (((ts_leaf *)n->leaves.data)[i].leaf)
            ts_tensor_unref(((ts_leaf *)n->leaves.data)[i].leaf);
    ts_array_free(&n->leaves, sizeof(ts_leaf));
    ts_array_free(&n->waiting, sizeof(ts_cell));
    ts_array_free(&n->cells, sizeof(ts_cell));
    ts_array_free(&n->dependencies, sizeof(ts_dependency));
    ts_array_free(&n->copies, 1);
}

/* ------------------------------------------------------------------------- declarations ---- */

/** Notes of the calling thread's compiled call; NULL if none runs or replays are off. */
static ts_notes *notes_now(void)
{
    const ts_lazy *l = ts_tls.lazy;
    return l && !l->running ? l->notes : NULL;
}

/** Index of the argument `argument` of op, and the op's *number; -1 with TS_ERR_VALUE. */
static int arg_of(ts_check_place at, const char *op, const char *argument, int *number)
{
    *number = ts_op_by_name(op);
    if (*number < 0) {
        ts_fail_op(TS_ERR_VALUE, at.function, at.site, NULL,
                   "argument 'op': expected an operator, got '%.200s'", op);
        return -1;
    }
    const ts_schema *s = &ts_ops[*number].schema;
    for (int i = 0; i < s->nargs; i++)
        if (strcmp(s->args[i].name, argument) == 0)
            return i;
    ts_fail_op(TS_ERR_VALUE, at.function, at.site, NULL,
               "argument 'argument': expected an argument of '%s', got '%.200s'", op, argument);
    return -1;
}

static ts_status declare(ts_check_place at, ts_cell like, const char *op, const char *argument,
                         void *const *cells, int64_t count)
{
    ts_notes *n = notes_now();
    if (!n)
        return TS_OK;
    int number, arg = arg_of(at, op, argument, &number);
    if (arg < 0)
        return ts_error_code();
    if (count > UINT32_MAX / 2 ||
        !ts_array_reserve(&n->waiting, (uint32_t)count, sizeof(ts_cell)))
        return ts_error_memory("declared numbers", count * (int64_t)sizeof(ts_cell));
    like.op = (uint16_t)number;
    like.arg = (uint8_t)arg;
    for (like.member = 0; like.member < count; like.member++) {
        like.address = cells[like.member];
        *TS_PUSH(n->waiting, ts_cell) = like;
    }
    return TS_OK;
}

ts_status ts_number_from(const char *op, const char *argument, const double *cell)
{
    const ts_check_place at = {"number_from", __builtin_return_address(0)};
    TS_TRY(ts_check_pointers(at, "op, argument, cell", (const void *[]){op, argument, cell}, 3,
                             false));
    return declare(at, (ts_cell){.kind = TS_NUMBER_CELL}, op, argument,
                   (void *[]){(void *)(uintptr_t)cell}, 1);
}

ts_status ts_counts_from(const char *op, const char *argument, int64_t *const *cells, int64_t n)
{
    const ts_check_place at = {"counts_from", __builtin_return_address(0)};
    TS_TRY(ts_check_pointers(at, "op, argument", (const void *[]){op, argument}, 2, false));
    TS_TRY(ts_check_list(at, "cells", "n", cells, n));
    for (int64_t i = 0; i < n; i++)
        TS_TRY(ts_check_pointers(at, "cells", (const void *[]){cells[i]}, 1, false));
    return declare(at, (ts_cell){.kind = TS_NUMBER_COUNT}, op, argument, (void *const *)cells, n);
}

ts_status ts_depends_on(const void *memory, size_t bytes)
{
    const ts_check_place at = {"depends_on", __builtin_return_address(0)};
    TS_TRY(ts_check_pointers(at, "memory", (const void *[]){memory}, 1, false));
    ts_notes *n = notes_now();
    if (!n)
        return TS_OK;
    for (uint32_t i = 0; i < n->dependencies.count; i++) { /* only the first copy counts */
        const ts_dependency *d = (const ts_dependency *)n->dependencies.data + i;
        if (d->memory == memory && d->bytes == bytes)
            return TS_OK;
    }
    if (bytes > UINT32_MAX / 4 || !ts_array_reserve(&n->copies, (uint32_t)bytes, 1) ||
        !ts_array_reserve(&n->dependencies, 1, sizeof(ts_dependency)))
        return ts_error_memory("a copy of declared memory", (int64_t)bytes);
    memcpy((char *)n->copies.data + n->copies.count, memory, bytes);
    *TS_PUSH(n->dependencies, ts_dependency) = (ts_dependency){memory, bytes, n->copies.count};
    n->copies.count += (uint32_t)bytes;
    return TS_OK;
}

ts_status ts_replaces(ts_tensor **variable)
{
    const ts_check_place at = {"replaces", __builtin_return_address(0)};
    TS_TRY(ts_check_pointers(at, "variable", (const void *[]){variable}, 1, false));
    ts_notes *n = notes_now();
    if (!n)
        return TS_OK;
    ts_tensor *t = *variable == TS_NONE ? NULL : *variable;
    return note_tensor(n, NULL, variable, t)
               ? TS_OK
               : ts_error_memory("a declared variable", (int64_t)sizeof(ts_leaf));
}

void ts_state_changed(void) { ts_epoch_ends(); }

void ts_notes_bind(ts_lazy *l, const ts_frame *f, int arg, uint32_t first)
{
    ts_notes *n = l->notes;
    ts_cell *waiting = n->waiting.data;
    const ts_value *v = &f->args[arg];
    uint32_t left = 0, taken = 0, count = l->numbers.count - first;
    if (!n->waiting.count)
        return;
    for (uint32_t i = 0; i < n->waiting.count; i++) {
        ts_cell c = waiting[i];
        ts_tag tag = c.kind == TS_NUMBER_CELL ? TS_TAG_FLOAT : TS_TAG_INTS;
        if (c.op != f->op || c.arg != arg || v->tag != tag) { /* another argument, or no number */
            waiting[left++] = c;
            continue;
        }
        c.at = first + c.member;
        taken++;
        if (c.member >= count) {
            ts_notes_refuse(n, "more declared sources than a call has numbers", f->site);
        } else if (!ts_array_reserve(&n->cells, 1, sizeof c)) {
            n->failed = true;
        } else {
            *TS_PUSH(n->cells, ts_cell) = c;
        }
    }
    n->waiting.count = left;
    if (taken && taken != count)
        ts_notes_refuse(n, "fewer declared sources than a call has numbers", f->site);
}
