/** @file pieces.c  Pending gradients of parts of one tensor, which are written together. */
// SPDX-License-Identifier: MIT
#include "autograd/engine.h"
#include "include/tessera/ops.h"
#include "ops/ops.h"

#include <string.h>

/** One gradient (owned) with the positions of its elements in the tensor. */
typedef struct piece {
    ts_tensor *grad;
    ts_positions at;
} piece;

struct ts_pieces {
    ts_pieces *next; /* pieces of another result of the same node */
    int output, n, capacity; /* index of the result; entries and capacity of list */
    const ts_shape *whole; /* sizes of the tensor; owned by a node of the run's graph */
    int64_t waiting;       /* sum over the pending gradients of numel + 1 */
    piece *list;
};

static int64_t shape_numel(const ts_shape *s)
{
    int64_t n = 1;
    for (int d = 0; d < s->ndim; d++)
        n *= s->sizes[d];
    return n;
}

/** Releases the first n gradients. */
static void drop(ts_pieces *p, int n)
{
    for (int k = 0; k < n; k++) {
        p->waiting -= p->list[k].grad->numel + 1;
        ts_tensor_unref(p->list[k].grad);
    }
    p->n -= n;
    if (p->n)
        memmove(p->list, p->list + n, (size_t)p->n * sizeof *p->list);
}

void ts_pieces_free(ts_pieces *p)
{
    for (ts_pieces *next; p; p = next) {
        next = p->next;
        drop(p, p->n);
        if (p->capacity)
            ts_free(&ts_tls, p->list, (size_t)p->capacity * sizeof *p->list);
        ts_free(&ts_tls, p, sizeof *p);
    }
}

/* --------------------------------------------------------------------------- positions ---- */

bool ts_positions_distinct(const int64_t *sizes, const int64_t *strides, int ndim)
{
    int64_t reach = 0;
    for (unsigned left = (1u << ndim) - 1; left;) {
        int least = -1;
        for (int d = 0; d < ndim; d++)
            if ((left >> d & 1) && (least < 0 || strides[d] < strides[least]))
                least = d;
        left &= ~(1u << least);
        if (sizes[least] < 2)
            continue;
        if (strides[least] <= reach)
            return false;
        reach += (sizes[least] - 1) * strides[least];
    }
    return true;
}

/** Sets bit d for each dim of more than one element whose stride is 0, and its entry of sizes to 1.
 *  The other entries become those of g. */
static unsigned expanded_dims(const ts_tensor *g, const int64_t *strides, int64_t *sizes)
{
    unsigned dims = 0;
    for (int d = 0; d < g->ndim; d++) {
        bool expanded = g->sizes[d] > 1 && strides[d] == 0;
        sizes[d] = expanded ? 1 : g->sizes[d];
        dims |= (unsigned)expanded << d;
    }
    return dims;
}

/** ts_positions_distinct() for the sizes of g, without the expanded dims: those whose stride is 0.
 */
static bool distinct_but_expanded(const ts_tensor *g, const int64_t *strides)
{
    int64_t sizes[TS_MAX_DIMS];
    expanded_dims(g, strides, sizes);
    return ts_positions_distinct(sizes, strides, g->ndim);
}

ts_tensor *ts_positions_sum_expanded(ts_tensor *g, const int64_t *strides)
{
    int64_t sizes[TS_MAX_DIMS], dims[TS_MAX_DIMS];
    int n = 0;
    for (unsigned left = expanded_dims(g, strides, sizes); left; left &= left - 1)
        dims[n++] = __builtin_ctz(left);
    return n ? ts_sum_dims(g, dims, n, true) : g;
}

/**
 * Computes the positions of the elements of a view's result `output` in the view's argument, by
 * calling the view's shape rule on a row-major tensor header without data.
 */
static ts_status positions_of(ts_thread *thread, const ts_node *view, int output, ts_positions *at)
{
    const ts_shape *s = &view->inputs[0].shape;
    ts_storage storage = {.refs = 1, .data = &storage, .bytes = shape_numel(s)};
    ts_tensor whole = {.storage = &storage, .data = storage.data, .numel = storage.bytes,
                       .flags = TS_TENSOR_CONTIGUOUS};
    whole.dtype = TS_U8; /* elements of 1 byte: offsets in bytes equal offsets in elements */
    whole.ndim = s->ndim;
    memcpy(whole.sizes, s->sizes, sizeof whole.sizes);
    ts_strides_fill(s->sizes, s->ndim, whole.strides);
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS] = {ts_value_none()};
    memcpy(args, view->args, view->nargs * sizeof *args);
    args[0] = ts_value_tensor(&whole);
    ts_frame f = {.thread = thread, .args = args, .rets = rets, .op = view->op,
                  .nargs = view->nargs, .nrets = view->nrets, .want = (uint8_t)(1 << output)};
    TS_TRY(ts_ops[view->op].infer(&f));
    ts_tensor *part = rets[output].t;
    memcpy(at->strides, part->strides, sizeof at->strides);
    at->offset = part->data - whole.data;
    ts_tensor_unref(part);
    return TS_OK;
}

/**
 * Converts *at, the positions of g's elements in a view's result, to positions in the view's
 * argument. False if these have no constant strides, for example if g continues from the end of a
 * row of a transposed matrix to the next row.
 * @param s     sizes of the view's result
 * @param view  positions of the result's elements in the argument
 */
static bool move_positions(const ts_shape *s, const ts_positions *view, const ts_tensor *g,
                           ts_positions *at)
{
    ts_positions to = {.offset = view->offset};
    int64_t row[TS_MAX_DIMS];
    ts_strides_fill(s->sizes, s->ndim, row);
    if (!g->numel || (!view->offset && memcmp(row, view->strides, s->ndim * sizeof *row) == 0))
        return true; /* the view keeps the order of the elements, and with it the positions */
    for (int d = 0; d < s->ndim; d++) {
        int64_t reach = at->offset / row[d] % s->sizes[d];
        to.offset += reach * view->strides[d];
        for (int k = 0; k < g->ndim; k++) {
            int64_t step = g->sizes[k] > 1 ? at->strides[k] / row[d] % s->sizes[d] : 0;
            to.strides[k] += step * view->strides[d];
            reach += (g->sizes[k] - 1) * step;
        }
        if (reach >= s->sizes[d])
            return false;
    }
    *at = to;
    return true;
}

/** A part that is a slice or an index of one dim, the most frequent case. */
typedef struct slice_at {
    int dim;
    int64_t start, end, step;
} slice_at;

static bool is_slice(const ts_shape *s, const piece *p, slice_at *at)
{
    const ts_tensor *g = p->grad;
    int k = g->ndim - 1, fewer = s->ndim - g->ndim;
    if (fewer < 0 || fewer > 1 || s->ndim == 0 || !shape_numel(s))
        return false;
    *at = (slice_at){.dim = -1, .end = s->sizes[0], .step = 1};
    int64_t row = 1, offset = p->at.offset;
    for (int d = s->ndim - 1; d >= 0; row *= s->sizes[d--]) {
        if (k >= 0 && g->sizes[k] == s->sizes[d] &&
            (g->sizes[k] == 1 || p->at.strides[k] == row)) {
            k--;
            continue;
        }
        int64_t length = fewer ? 1 : g->sizes[k], stride = fewer || length < 2 ? row
                                                                               : p->at.strides[k];
        int64_t start = p->at.offset / row, step = stride / row;
        if (at->dim >= 0 || stride % row || start + (length - 1) * step >= s->sizes[d])
            return false;
        *at = (slice_at){d, start, length ? start + (length - 1) * step + 1 : start, step};
        offset -= start * row;
        k -= !fewer;
    }
    at->dim += at->dim < 0; /* no dim is cut: the part is the whole tensor, a slice of dim 0 */
    return k < 0 && offset == 0;
}

/* ----------------------------------------------------------------------------- the sum ---- */

/** A whole tensor and the parts that are added to it. */
typedef struct parts {
    size_t bytes;
    ts_shape whole;
    struct {
        ts_positions at;
        int64_t sizes[TS_MAX_DIMS];
        int ndim;
    } of[];
} parts;

static ts_status sum_forward(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                             ts_tensor **out, int m)
{
    (void)call, (void)m;
    const parts *p = ctx;
    const ts_shape *s = &p->whole;
    ts_tensor *sum = ts_rule_zeros((ts_meta){s->sizes, 0, {s->kind}});
    TS_TRY(sum);
    for (int k = 0; k < n; k++) {
        const ts_positions *at = &p->of[k].at;
        ts_tensor *part = ts_as_strided(sum, in[k]->sizes, at->strides, in[k]->ndim, at->offset);
        TS_TRY(n > 1 ? ts_add_(part, in[k]) : ts_copy_(part, in[k]));
        ts_drop(part);
    }
    out[0] = sum;
    return TS_OK;
}

static ts_status sum_backward(ts_function_call *call, void *ctx, ts_tensor *const *grads, int m,
                              ts_tensor **out, int n)
{
    (void)m;
    const parts *p = ctx;
    ts_tensor *g = ts_contiguous(grads[0]);
    TS_TRY(g);
    int64_t first = ts_tensor_byte_offset(g) / (int64_t)ts_dtype_sizes[g->dtype];
    for (int k = 0; k < n; k++) {
        const ts_positions *at = &p->of[k].at;
        if (ts_function_needs(call, k))
            TS_TRY(out[k] = ts_as_strided(g, p->of[k].sizes, at->strides, p->of[k].ndim,
                                          first + at->offset));
        else
            out[k] = TS_NONE;
    }
    return TS_OK;
}

static void parts_free(void *ctx)
{
    parts *p = ctx;
    ts_free(&ts_tls, p, p->bytes);
}

/** Adds the gradients at their positions to a tensor of zeros. A recorded run gets one node for
 * this sum. */
static ts_tensor *sum_of(const ts_shape *whole, const piece *pieces, int n)
{
    static const ts_function sum_parts = {.size = sizeof sum_parts,
                                          .name = "parts",
                                          .forward = sum_forward,
                                          .backward = sum_backward,
                                          .release = parts_free};
    ts_thread *thread = ts_thread_self();
    parts *p = NULL;
    size_t bytes = sizeof *p + (size_t)n * sizeof *p->of, list = (size_t)n * sizeof(ts_tensor *);
    p = ts_alloc(thread, bytes);
    if (p)
        p->bytes = bytes;
    ts_tensor **grads = p ? ts_alloc(thread, list) : NULL, *sum = NULL;
    if (grads) {
        p->whole = *whole;
        for (int k = 0; k < n; k++) {
            const ts_tensor *g = grads[k] = pieces[k].grad;
            p->of[k].at = pieces[k].at;
            p->of[k].ndim = g->ndim;
            memcpy(p->of[k].sizes, g->sizes, sizeof g->sizes);
        }
        ts_function_apply(&sum_parts, p, grads, n, &sum, 1);
        ts_free(thread, grads, list);
        return sum;
    }
    if (p)
        parts_free(p);
    ts_error_memory("the gradients of parts", (int64_t)(bytes + list));
    return NULL;
}

/** A tensor like `whole` with the n gradients added at their positions and 0 elsewhere, in the
 *  current scope; NULL with an error. */
static ts_tensor *whole_of(const ts_shape *whole, const piece *pieces, int n)
{
    slice_at at;
    if (n > 1 || !is_slice(whole, pieces, &at))
        return sum_of(whole, pieces, n);
    ts_tensor *g = pieces->grad;
    return ts_slice_backward(g->ndim < whole->ndim ? ts_unsqueeze(g, at.dim) : g, whole->sizes,
                             whole->ndim, at.dim, at.start, at.end, at.step);
}

/** Adds the pending gradients of one result to *slot and empties the list. */
static ts_status write_out(ts_run *run, ts_pieces *p, ts_tensor **slot)
{
    if (!p->n)
        return TS_OK;
    TS_SCOPE;
    ts_tensor *g = whole_of(p->whole, p->list, p->n);
    TS_TRY(g);
    drop(p, p->n);
    ts_tensor *old = NULL;
    ts_status status = ts_accumulate_grad(slot, g, run->record, &old);
    if (old)
        ts_tensor_unref(old);
    return status;
}

/* ----------------------------------------------------------------------------- waiting ---- */

static ts_status grow(ts_thread *thread, ts_pieces *p)
{
    int capacity = p->capacity ? 2 * p->capacity : 4;
    piece *more = ts_alloc(thread, (size_t)capacity * sizeof *more);
    if (!more)
        return ts_error_memory("the gradients of parts", (int64_t)capacity * (int64_t)sizeof *more);
    if (p->capacity) {
        memcpy(more, p->list, (size_t)p->n * sizeof *more);
        ts_free(thread, p->list, (size_t)p->capacity * sizeof *more);
    }
    p->list = more;
    p->capacity = capacity;
    return TS_OK;
}

ts_status ts_pieces_add(ts_run *run, ts_pieces **all, ts_tensor **slot, const ts_end *end,
                        ts_tensor *g, const ts_positions *at)
{
    ts_pieces *p = *all;
    while (p && p->output != end->shape.output)
        p = p->next;
    if (!p) {
        p = ts_alloc(run->thread, sizeof *p);
        if (!p)
            return ts_error_memory("the gradients of parts", sizeof *p);
        *p = (ts_pieces){.next = *all, .output = end->shape.output, .whole = &end->shape};
        *all = p;
    }
    if (p->n == p->capacity)
        TS_TRY(grow(run->thread, p));
    p->list[p->n++] = (piece){ts_tensor_ref(g), *at};
    p->waiting += g->numel + 1;
    /* bounds the memory: overlapping parts may have many times the elements of their tensor */
    return p->waiting > 2 * shape_numel(p->whole) + 64 ? write_out(run, p, slot) : TS_OK;
}

/** True if gradients of a view's results may become gradients of parts of the view's argument: no
 * hook, no retained gradient and no caller reads them. */
static bool passes_parts(const ts_run *run, const ts_node *n)
{
    bool view = n->op < TS_NODE_FUNCTION && n->vjp && n->vjp->view && !n->guarded &&
                ts_ops[n->op].kind == TS_VIEW && !__atomic_load_n(&n->hooks, __ATOMIC_ACQUIRE);
    for (int i = 0; view && i < run->ncaptures; i++)
        view = run->captures[i].node != n;
    return view;
}

/** Passes pending parts of a view's result on as parts of the view's argument. Stops at the first
 *  part whose positions cannot be converted; that part and later ones stay in p. */
static ts_status send_to_view_base(ts_run *run, const ts_node *n, ts_pieces *p)
{
    TS_SCOPE;
    const ts_end *in = n->inputs;
    ts_positions view;
    TS_TRY(positions_of(run->thread, n, p->output, &view));
    int sent = 0;
    ts_status status = TS_OK;
    for (; sent < p->n; sent++) {
        ts_tensor *g = p->list[sent].grad;
        ts_positions at = p->list[sent].at;
        if (!move_positions(p->whole, &view, g, &at))
            break;
        if (!distinct_but_expanded(g, at.strides))
            break;
        g = ts_positions_sum_expanded(g, at.strides);
        status = g ? ts_run_send_part(run, in, g, &at) : ts_error_code();
        if (status != TS_OK)
            break;
    }
    drop(p, sent);
    return status;
}

ts_status ts_pieces_end(ts_run *run, const ts_node *n, ts_pieces *all, ts_tensor **grads)
{
    ts_status status = TS_OK;
    bool view = passes_parts(run, n);
    for (ts_pieces *p = all; p && status == TS_OK; p = p->next) {
        if (view && !grads[p->output] && p->waiting <= shape_numel(p->whole))
            status = send_to_view_base(run, n, p);
        if (status == TS_OK)
            status = write_out(run, p, &grads[p->output]);
    }
    ts_pieces_free(all);
    return status;
}

/* --------------------------------------------------------------------------- for rules ---- */

ts_tensor *ts_rule_spread(ts_tensor *g, const ts_positions *at, int64_t n)
{
    if (!g)
        return NULL;
    ts_shape line = {.sizes = {n}};
    line.kind = g->kind;
    line.ndim = 1;
    return sum_of(&line, &(piece){g, *at}, 1);
}

ts_status ts_rule_give_positions(ts_vjp_call *b, ts_tensor *g, const ts_positions *at)
{
    ts_run *run = b->run;
    const ts_end *in = b->node->inputs;
    static const ts_positions nowhere;
    TS_TRY(g);
    at = g->numel ? at : &nowhere;
    if (run->anomaly)
        TS_TRY(ts_anomaly_check(b->node, &g, 1, TS_GIVEN));
    if (!__atomic_load_n(&b->node->hooks, __ATOMIC_ACQUIRE))
        return ts_run_send_part(run, in, g, at);
    /* POST hooks get the whole gradient */
    TS_TRY(g = whole_of(&in->shape, &(piece){g, *at}, 1));
    return TS_STATUS_OF(b->given[0] = b->given[0] ? ts_add(b->given[0], g) : g);
}

ts_status ts_rule_give_part(ts_vjp_call *b, int output, ts_tensor *g)
{
    ts_positions at;
    TS_TRY(positions_of(b->run->thread, b->node, output, &at));
    return ts_rule_give_positions(b, g, &at);
}
