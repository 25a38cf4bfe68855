/**
 * @file order.c  Moves steps of a plan to lower its memory peak.
 *
 * Two steps conflict if both use a storage that one of them writes. A step before the peak step may
 * move after it if it conflicts with no step in between: its results then need no memory at the
 * peak. A step after the peak step may move before it under the same condition: storages that only
 * it still needs are then free at the peak. A move is kept if the peak of the whole plan is lower
 * afterwards. Steps that write tensors that outlive the run do not move, so that after an error
 * these tensors have all writes that precede the failed call.
 */
// SPDX-License-Identifier: MIT
#include "compile/plan.h"

#include <string.h>

enum {
    LEAST = 64,     /* a move must save more than 1 / LEAST of the peak */
    FAR = 256,      /* a moved step is fewer than FAR steps from the peak step */
    MOST_MOVES = 32 /* most moves that are tried per plan */
};

/** A storage that a step uses. */
typedef struct use {
    uint32_t storage;
    bool writes;
} use;

/** State of the moves. The position of a step is its current index in e->steps; its name is its
 * index before any move. */
typedef struct mover {
    maker *m;
    ts_exec *e;
    uint32_t *begin; /* per name: index of the step's first use in `uses`; last entry: the end */
    use *uses;
    uint32_t *names; /* per position: name of the step */
    uint8_t *mark;   /* per storage: how the marked step uses it; bit 0: reads, bit 1: writes */
    bool *tried;     /* per name: a move of the step was tried and did not lower the peak */
    uint32_t *order; /* scratch for move(): a copy of e->order */
} mover;

static const use *uses_of(const mover *v, uint32_t position, uint32_t *count)
{
    uint32_t name = v->names[position];
    *count = v->begin[name + 1] - v->begin[name];
    return v->uses + v->begin[name];
}

/** Marks the storages of the step at a position, or removes the marks. */
static void mark(const mover *v, uint32_t position, bool on)
{
    uint32_t n;
    const use *u = uses_of(v, position, &n);
    for (uint32_t k = 0; k < n; k++)
        v->mark[u[k].storage] = (uint8_t)(on ? v->mark[u[k].storage] | (u[k].writes ? 2 : 1) : 0);
}

/** True if the step at a position conflicts with the marked one. */
static bool conflicts(const mover *v, uint32_t position)
{
    uint32_t n;
    const use *u = uses_of(v, position, &n);
    for (uint32_t k = 0; k < n; k++)
        if (v->mark[u[k].storage] && (u[k].writes || v->mark[u[k].storage] & 2))
            return true;
    return false;
}

/** True if the step may move: it has not been tried and writes nothing that outlives the run. */
static bool is_free(const mover *v, uint32_t position)
{
    uint32_t n;
    const use *u = uses_of(v, position, &n);
    for (uint32_t k = 0; k < n; k++) {
        const ts_plan_storage *s = &v->e->storages[u[k].storage];
        if (u[k].writes && (s->outside || s->held))
            return false;
    }
    return !v->tried[v->names[position]];
}

/** Bytes that moving a step from before the peak step to after it saves at the peak: its results
 *  that are used later, less the storages that it uses and that were free at the peak before. */
static int64_t gain_behind(const mover *v, uint32_t position, uint32_t peak)
{
    uint32_t n;
    const use *u = uses_of(v, position, &n);
    int64_t gain = 0;
    for (uint32_t k = 0; k < n; k++) {
        const ts_plan_storage *s = &v->e->storages[u[k].storage];
        if (!ts_needs_memory(s) || s->held)
            continue;
        gain += s->first == position && s->last > peak ? s->bytes : s->last < peak ? -s->bytes : 0;
    }
    return gain;
}

/** Bytes that moving a step from after the peak step to before it saves at the peak: the storages
 *  made before the peak that only this step still needs, less its results. later: per storage, true
 *  if the peak step or a step between it and this step uses it. */
static int64_t gain_before(const mover *v, uint32_t position, uint32_t peak, const bool *later)
{
    uint32_t n;
    const use *u = uses_of(v, position, &n);
    int64_t gain = 0;
    for (uint32_t k = 0; k < n; k++) {
        const ts_plan_storage *s = &v->e->storages[u[k].storage];
        if (!ts_needs_memory(s) || s->held)
            continue;
        gain += s->first == position                                             ? -s->bytes
                : s->first < peak && s->last == position && !later[u[k].storage] ? s->bytes
                                                                                 : 0;
    }
    return gain;
}

/** Moves the step at position `from` to position `to`; recomputes lives and the peak. */
static void move(const mover *v, uint32_t from, uint32_t to)
{
    ts_exec *e = v->e;
    ts_step moved = e->steps[from];
    uint32_t name = v->names[from], at = 0;
    if (from < to) {
        memmove(e->steps + from, e->steps + from + 1, (to - from) * sizeof *e->steps);
        memmove(v->names + from, v->names + from + 1, (to - from) * sizeof *v->names);
    } else {
        memmove(e->steps + to + 1, e->steps + to, (from - to) * sizeof *e->steps);
        memmove(v->names + to + 1, v->names + to, (from - to) * sizeof *v->names);
    }
    e->steps[to] = moved;
    v->names[to] = name;
    memcpy(v->order, e->order, e->nnodes * sizeof *e->order);
    for (uint32_t k = 0; k < e->nsteps; k++) {
        ts_step *s = &e->steps[k];
        memcpy(e->order + at, v->order + s->first, s->count * sizeof *e->order);
        s->first = at;
        at += s->count;
    }
    ts_plan_find_lives(v->m);
}

/** Finds the move that saves the most bytes at the peak, from position *from to position *to. False
 * if no move saves enough. later: scratch, one entry per storage. */
static bool best_move(const mover *v, bool *later, uint32_t *from, uint32_t *to)
{
    const ts_exec *e = v->e;
    uint32_t peak = e->peak_step, n;
    int64_t most = e->peak / LEAST;
    bool found = false;
    for (uint32_t s = peak; s-- > 0 && peak - s < FAR;) {
        int64_t gain = gain_behind(v, s, peak);
        if (gain <= most || !is_free(v, s))
            continue;
        bool may = true;
        mark(v, s, true);
        for (uint32_t k = s + 1; k <= peak && may; k++)
            may = !conflicts(v, k);
        mark(v, s, false);
        if (may) {
            most = gain;
            *from = s;
            *to = peak;
            found = true;
        }
    }
    memset(later, 0, e->nstorages);
    for (uint32_t s = peak; s < e->nsteps && s - peak < FAR; s++) {
        const use *u = uses_of(v, s, &n);
        int64_t gain = s > peak ? gain_before(v, s, peak, later) : 0;
        for (uint32_t k = 0; k < n; k++)
            later[u[k].storage] = true;
        if (gain <= most || !is_free(v, s))
            continue;
        bool may = true;
        mark(v, s, true);
        for (uint32_t k = peak; k < s && may; k++)
            may = !conflicts(v, k);
        mark(v, s, false);
        if (may) {
            most = gain;
            *from = s;
            *to = peak;
            found = true;
        }
    }
    return found;
}

/** Fills begin, uses and names. */
static void list_uses(mover *v)
{
    uint32_t at = 0, n;
    for (uint32_t k = 0; k < v->e->nsteps; k++) {
        const ts_step *s = &v->e->steps[k];
        v->begin[k] = at;
        v->names[k] = k;
        for (uint32_t i = s->first; i < s->first + s->count; i++) {
            const touch *t = ts_touches_of(v->m, v->e->order[i], &n);
            for (uint32_t j = 0; j < n; j++) {
                uint32_t p = v->begin[k];
                while (p < at && v->uses[p].storage != t[j].storage)
                    p++;
                if (p == at)
                    v->uses[at++] = (use){t[j].storage, t[j].writes};
                v->uses[p].writes |= t[j].writes;
            }
        }
    }
    v->begin[v->e->nsteps] = at;
}

bool ts_plan_order(maker *m)
{
    ts_exec *e = m->exec;
    size_t steps = e->nsteps + 1,
           bytes = steps * (2 * sizeof(uint32_t) + 1) +
                   (e->nnodes + 1) * sizeof(uint32_t) + (m->touches.count + 1) * sizeof(use) +
                   2 * (size_t)(e->nstorages + 1);
    if (e->nsteps < 3)
        return true;
    char *block = ts_alloc(ts_thread_self(), bytes);
    if (!block)
        return false;
    memset(block, 0, bytes);
    mover v = {.m = m, .e = e, .uses = (use *)block};
    v.begin = (uint32_t *)(v.uses + m->touches.count + 1);
    v.names = v.begin + steps;
    v.order = v.names + steps;
    v.mark = (uint8_t *)(v.order + e->nnodes + 1);
    bool *later = (bool *)(v.mark + e->nstorages + 1);
    v.tried = later + e->nstorages + 1;
    list_uses(&v);
    uint32_t from, to;
    bool ok = ts_array_reserve(&e->moved, MOST_MOVES, sizeof(ts_moved));
    for (int k = 0; ok && k < MOST_MOVES && best_move(&v, later, &from, &to); k++) {
        int64_t before = e->peak;
        uint32_t name = v.names[from], node = e->order[e->steps[from].first];
        move(&v, from, to);
        if (e->peak < before) {
            *TS_PUSH(e->moved, ts_moved) = (ts_moved){node, from, to, before, e->peak};
            continue;
        }
        move(&v, to, from);
        v.tried[name] = true;
    }
    ts_free(ts_thread_self(), block, bytes);
    return ok;
}
