/**
 * @file parts.c  Prepares a plan for capture: finds the storages and numbers of each part, the
 * calls that run outside the graph, and the offsets in the arena.
 */
// SPDX-License-Identifier: MIT
#include "compile/capture.h"

#include <stdio.h>
#include <string.h>

enum {
    ROUND = 512,            /* offsets in the arena are multiples of 512 bytes */
    LANES = 8,              /* maximum number of scratch memories; a power of 2 */
    APART = 16,             /* steps for which bytes of the arena are not used again, see
                               ts_exec_assign_offsets() */
    EXTRA_BYTES = 64 << 20, /* bytes that a graph may cost so that steps can run at the same time */
    SMALL_STEP = 16 << 20 /* bytes that steps move on average. Larger ones occupy the device alone;
                             at the same time they take longer */
};

/* -------------------------------------------------------------------------------- parts ---- */

static bool add_touch(ts_captured *k, const ts_graph *g, ts_id id, bool writes)
{
    if (!id)
        return true;
    if (!ts_array_reserve(&k->touches, 1, sizeof(touch)))
        return false;
    *TS_PUSH(k->touches, touch) = (touch){ts_graph_value_at(g, id)->storage, writes};
    return true;
}

static void add_numbers(part *p, uint32_t at, uint32_t n)
{
    if (!p->last_number || at < p->first_number)
        p->first_number = at;
    if (at + n > p->last_number)
        p->last_number = at + n;
}

/** Adds the storages that a call reads or writes, and the numbers of a run that it reads. */
static bool add_call(ts_captured *k, part *p, const ts_graph *g, const ts_graph_node *n)
{
    const ts_graph_arg *a = ts_graph_args_of(g, n);
    const ts_schema *schema = &ts_ops[n->op].schema;
    for (int i = 0; i < n->nargs; i++) {
        bool written = schema->args[i].written;
        if (a[i].tag == TS_TAG_TENSOR && !add_touch(k, g, a[i].id, written))
            return false;
        for (uint32_t m = 0; a[i].tag == TS_TAG_TENSORS && m < a[i].count; m++)
            if (!add_touch(k, g, (ts_id)ts_graph_ints_at(g, a[i].at)[m], written))
                return false;
        if (a[i].role == TS_ROLE_VALUE && a[i].tag != TS_TAG_NONE)
            add_numbers(p, a[i].at, a[i].tag == TS_TAG_INTS ? a[i].count : 1);
    }
    for (int i = 0; i < n->nrets; i++)
        if (!add_touch(k, g, n->rets[i], true))
            return false;
    if (n->flags & TS_NODE_RANDOM)
        add_numbers(p, n->rng.offset, 2);
    return true;
}

static bool add_part(ts_captured *k, const ts_exec *e, const ts_step *s)
{
    part p = {.first_touch = k->touches.count};
    for (uint32_t i = s->first; i < s->first + s->count; i++)
        if (!add_call(k, &p, e->graph, ts_graph_node_at(e->graph, e->order[i])))
            return false;
    p.touches = k->touches.count - p.first_touch;
    if (!ts_array_reserve(&k->parts, 1, sizeof(part)))
        return false;
    *TS_PUSH(k->parts, part) = p;
    return true;
}

static int64_t rounded_size(const ts_exec *e, uint32_t storage)
{
    return (e->storages[storage].bytes + ROUND - 1) / ROUND * ROUND;
}

/** True if a storage needs an offset in the arena: it is internal to the plan and on the graph's
 *  device, and not inside a group that has a kernel. */
static bool is_in_arena(const ts_captured *k, const ts_exec *e, const ts_plan_storage *s)
{
    return !s->outside && !s->constant && !s->held && ts_same_device(s->device, k->device) &&
           !(s->inside && atomic_load(&e->kernels[s->first].stage) == TS_KERNEL_READY);
}

/** Gives storages that steps outside the graph use arena offsets that no other storage shares. */
static void assign_separate_offsets(ts_captured *k, const ts_exec *e)
{
    const part *p = k->parts.data;
    int64_t *offsets = k->offsets.data;
    for (uint32_t s = 0; s < e->nsteps; s++)
        for (uint32_t t = 0; p[s].where != INSIDE && t < p[s].touches; t++) {
            uint32_t i = touches_of(k, &p[s])[t].storage;
            if (!is_in_arena(k, e, &e->storages[i]) || offsets[i] >= 0)
                continue;
            offsets[i] = k->planned;
            k->planned += rounded_size(e, i);
        }
}

/** ts_captured_assign_offsets() with this distance between uses of bytes
 * (ts_exec_assign_offsets()). */
static bool assign_offsets(ts_captured *k, const ts_exec *e, uint32_t apart)
{
    int64_t *offsets = k->offsets.data;
    k->planned = 0;
    for (uint32_t i = 0; i < e->nstorages; i++)
        offsets[i] = TS_OFFSET_NONE;
    assign_separate_offsets(k, e);
    for (uint32_t i = 0; i < e->nstorages; i++)
        if (e->storages[i].first != UINT32_MAX && offsets[i] < 0 &&
            is_in_arena(k, e, &e->storages[i]))
            offsets[i] = TS_OFFSET_WANTED;
    return ts_exec_assign_offsets(e, offsets, k->planned, &k->planned, apart);
}

bool ts_captured_assign_offsets(ts_captured *k, const ts_exec *e)
{
    if (!ts_array_reserve(&k->offsets, e->nstorages + 1, sizeof(int64_t)) ||
        !assign_offsets(k, e, 0))
        return false;
    k->lanes = 1;
    k->branches = k->backend->capture_order && e->fused_bytes / SMALL_STEP < e->nsteps;
    if (!k->branches)
        return true;
    int64_t unused = EXTRA_BYTES, least = k->planned;
    while (k->lanes < LANES && k->scratch > 1 && (2 * k->lanes - 1) * k->scratch <= unused)
        k->lanes *= 2;
    unused -= (k->lanes - 1) * k->scratch;
    return assign_offsets(k, e, APART) && (k->planned - least <= unused || assign_offsets(k, e, 0));
}

bool ts_captured_has_offsets(const ts_captured *k, const ts_exec *e)
{
    const int64_t *offsets = k->offsets.data;
    for (uint32_t i = 0; i < e->nstorages; i++)
        if (e->storages[i].first != UINT32_MAX && offsets[i] < 0 &&
            is_in_arena(k, e, &e->storages[i]))
            return false;
    return true;
}

/** True if a step may move before all steps that are not BEFORE (or after all that are not AFTER):
 *  no step in between uses a storage that it writes, or writes one that it uses. */
static bool is_movable(const ts_captured *k, const ts_exec *e, uint32_t step, where to)
{
    const part *p = k->parts.data;
    uint32_t first = to == BEFORE ? 0 : step + 1, end = to == BEFORE ? step : e->nsteps;
    for (uint32_t s = first; s < end; s++)
        for (uint32_t a = 0; a < p[s].touches && p[s].where != to; a++)
            for (uint32_t b = 0; b < p[step].touches; b++) {
                touch x = touches_of(k, &p[s])[a], y = touches_of(k, &p[step])[b];
                if (x.storage == y.storage && (x.writes || y.writes))
                    return false;
            }
    return true;
}

/** The plan's first device that can capture. */
static bool find_device(ts_captured *k, const ts_exec *e)
{
    const touch *t = k->touches.data;
    for (uint32_t i = 0; i < k->touches.count; i++) {
        const ts_backend *b = ts_backend_of(e->storages[t[i].storage].device);
        if (!i || (b && b->capture_begin)) {
            k->device = e->storages[t[i].storage].device;
            k->backend = b;
        }
        if (b && b->capture_begin)
            return true;
    }
    return false;
}

bool ts_captured_look(ts_captured *k, const ts_run *r, const ts_lazy *l)
{
    const ts_exec *e = r->exec;
    char why[100] = "no call has a tensor";
    k->parts.count = k->touches.count = 0; /* a look that failed may have left some */
    for (uint32_t s = 0; s < e->nsteps; s++)
        if (!add_part(k, e, &e->steps[s]))
            return false;
    if (!find_device(k, e)) {
        if (k->touches.count)
            snprintf(why, sizeof why, "%s cannot capture", ts_device_name(k->device));
        ts_captured_refuse(k, l, why);
        return true;
    }
    part *p = k->parts.data;
    for (int turn = 0; turn < 2; turn++) /* backwards, so that steps that depend on each other move
                                            together */
        for (uint32_t i = 0; i < e->nsteps; i++) {
            uint32_t s = turn ? e->nsteps - 1 - i : i, t = 0;
            while (t < p[s].touches && ts_same_device(k->device, e->storages[
                                           touches_of(k, &p[s])[t].storage].device))
                t++;
            if (t == p[s].touches || p[s].where == BEFORE)
                continue;
            if (!is_movable(k, e, s, turn ? AFTER : BEFORE)) {
                if (!turn)
                    continue;
                snprintf(why, sizeof why, "a call on %s between calls on %s",
                         ts_device_name(e->storages[touches_of(k, &p[s])[t].storage].device),
                         ts_device_name(k->device));
                ts_captured_refuse_step(k, r, l, s, why);
                return true;
            }
            p[s].where = turn ? AFTER : BEFORE;
            k->calls_outside = true;
        }
    return true;
}

