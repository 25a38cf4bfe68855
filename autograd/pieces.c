/** @file pieces.c  Gradients of many slices of one tensor, which wait to be written together. */
// SPDX-License-Identifier: MIT
#include "autograd/engine.h"
#include "include/tessera/ops.h"

#include <string.h>

/** One gradient (owned) with the slice of the tensor that it is for. */
typedef struct piece {
    ts_tensor *grad;
    ts_slice_at at;
} piece;

struct ts_pieces {
    ts_pieces *next; /* of another result of the same node */
    int output, n, room;
    const ts_shape *whole; /* of the tensor; in a node of the run's graph */
    int64_t waiting;       /* elements of the gradients, and one for each */
    piece *list;
};

static int64_t shape_numel(const ts_shape *s)
{
    int64_t n = 1;
    for (int d = 0; d < s->ndim; d++)
        n *= s->sizes[d];
    return n;
}

static void drop_list(ts_pieces *p)
{
    for (int k = 0; k < p->n; k++)
        ts_tensor_unref(p->list[k].grad);
    p->n = 0;
    p->waiting = 0;
}

void ts_pieces_free(ts_pieces *p)
{
    for (ts_pieces *next; p; p = next) {
        next = p->next;
        drop_list(p);
        if (p->room)
            ts_free(&ts_tls, p->list, (size_t)p->room * sizeof *p->list);
        ts_free(&ts_tls, p, sizeof *p);
    }
}

/* ----------------------------------------------------------------------------- the sum ---- */

/** A whole tensor and the slices that are added to it. */
typedef struct places {
    size_t bytes;
    ts_shape whole;
    ts_slice_at at[];
} places;

static ts_status sum_forward(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                             ts_tensor **out, int m)
{
    (void)call, (void)m;
    const places *p = ctx;
    const ts_shape *s = &p->whole;
    ts_tensor *sum = ts_rule_zeros((ts_meta){s->sizes, 0, {s->kind}});
    TS_TRY(sum);
    for (int k = 0; k < n; k++) {
        const ts_slice_at *at = &p->at[k];
        ts_tensor *part = ts_slice(sum, at->dim, at->start, at->end, at->step);
        TS_TRY(ts_add_(part, in[k]));
        ts_drop(part);
    }
    out[0] = sum;
    return TS_OK;
}

static ts_status sum_backward(ts_function_call *call, void *ctx, ts_tensor *const *grads, int m,
                              ts_tensor **out, int n)
{
    (void)m;
    const places *p = ctx;
    for (int k = 0; k < n; k++) {
        const ts_slice_at *at = &p->at[k];
        if (ts_function_needs(call, k))
            TS_TRY(out[k] = ts_slice(grads[0], at->dim, at->start, at->end, at->step));
        else
            out[k] = TS_NONE;
    }
    return TS_OK;
}

static void places_free(void *ctx)
{
    places *p = ctx;
    ts_free(&ts_tls, p, p->bytes);
}

/** Zeros with the gradients added at their slices: one node when the run is recorded. */
static ts_tensor *sum_of(const ts_pieces *p)
{
    static const ts_function slices = {.size = sizeof slices,
                                       .name = "slices",
                                       .forward = sum_forward,
                                       .backward = sum_backward,
                                       .release = places_free};
    ts_thread *thread = ts_thread_self();
    size_t bytes = sizeof(places) + (size_t)p->n * sizeof(ts_slice_at),
           list = (size_t)p->n * sizeof(ts_tensor *);
    places *at = ts_alloc(thread, bytes);
    if (at)
        at->bytes = bytes;
    ts_tensor **grads = at ? ts_alloc(thread, list) : NULL, *sum = NULL;
    if (grads) {
        at->whole = *p->whole;
        for (int k = 0; k < p->n; k++) {
            at->at[k] = p->list[k].at;
            grads[k] = p->list[k].grad;
        }
        ts_function_apply(&slices, at, grads, p->n, &sum, 1);
        ts_free(thread, grads, list);
        return sum;
    }
    if (at)
        places_free(at);
    ts_fail_memory("the gradients of slices", (int64_t)(bytes + list));
    return NULL;
}

static ts_status write_out(ts_run *run, ts_pieces *p, ts_tensor **slot)
{
    if (!p->n)
        return TS_OK;
    TS_SCOPE;
    const ts_slice_at *at = &p->list->at;
    ts_tensor *g = p->n > 1 ? sum_of(p)
                            : ts_slice_backward(p->list->grad, p->whole->sizes, p->whole->ndim,
                                                at->dim, at->start, at->end, at->step);
    TS_TRY(g);
    drop_list(p);
    ts_tensor *old = NULL;
    ts_status status = ts_accumulate_grad(slot, g, run->record, &old);
    if (old)
        ts_tensor_unref(old);
    return status;
}

/* ----------------------------------------------------------------------------- waiting ---- */

static ts_status grow(ts_thread *thread, ts_pieces *p)
{
    int room = p->room ? 2 * p->room : 4;
    piece *more = ts_alloc(thread, (size_t)room * sizeof *more);
    if (!more)
        return ts_fail_memory("the gradients of slices", (int64_t)room * (int64_t)sizeof *more);
    if (p->room) {
        memcpy(more, p->list, (size_t)p->n * sizeof *more);
        ts_free(thread, p->list, (size_t)p->room * sizeof *more);
    }
    p->list = more;
    p->room = room;
    return TS_OK;
}

ts_status ts_pieces_add(ts_run *run, ts_pieces **all, ts_tensor **slot, const ts_end *end,
                        ts_tensor *g, const ts_slice_at *at)
{
    ts_pieces *p = *all;
    while (p && p->output != end->shape.output)
        p = p->next;
    if (!p) {
        p = ts_alloc(run->thread, sizeof *p);
        if (!p)
            return ts_fail_memory("the gradients of slices", sizeof *p);
        *p = (ts_pieces){.next = *all, .output = end->shape.output, .whole = &end->shape};
        *all = p;
    }
    if (p->n == p->room)
        TS_TRY(grow(run->thread, p));
    p->list[p->n++] = (piece){ts_tensor_ref(g), *at};
    p->waiting += g->numel + 1;
    /* slices that overlap may be many times their tensor: what waits stays linear in it */
    return p->waiting > 2 * shape_numel(p->whole) + 64 ? write_out(run, p, slot) : TS_OK;
}

ts_status ts_pieces_write(ts_run *run, ts_pieces *all, ts_tensor **grads)
{
    ts_status status = TS_OK;
    for (ts_pieces *p = all; p && status == TS_OK; p = p->next)
        status = write_out(run, p, &grads[p->output]);
    ts_pieces_free(all);
    return status;
}
