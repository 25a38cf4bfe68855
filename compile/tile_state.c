/**
 * @file tile_state.c  The state of a group on the CPU: values and calls, the sizes of tiles,
 * machine code, and the numbers of the last run. A run in one thread keeps the state for the next
 * run.
 */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"
#include "compile/testing.h"
#include "core/hooks.h"
#include "dispatch/entries.h"

#include <string.h>

enum { TILE_BYTES = 32768,               /* bytes of the values of a tile */
       TILE_LEAST = 1024, TILE_MOST = 8192, /* elements of a tile */
       CODE_TILE = 16384,                /* elements of a tile if all calls are machine code */
       WORK = 16384                      /* elements times calls that are worth another thread */ };

/* ------------------------------------------------------------------------------- set-up ---- */

/** Finds or adds value `id` in the group; returns its index + 1. */
static uint16_t value_of(ts_tiles *w, ts_id id)
{
    const ts_run *r = w->run;
    uint32_t number = ts_id_index(id), i = 0;
    while (i < w->nvalues && w->values[i].number != number)
        i++;
    if (i == w->nvalues) {
        const ts_graph_value *v = ts_graph_value_at(r->exec->graph, id);
        const ts_tensor *there = r->registers[number];
        tile_value *t = &w->values[w->nvalues++];
        ts_group_header(r->exec->graph, v, &t->t);
        t->number = number;
        t->base = there ? there->data : NULL;
        t->buffer = -1;
        t->shift = 0;
    }
    return (uint16_t)(i + 1);
}

/** The last call of the part of the code that has call c; c if no part has it. index: of a value of
 *  the call, plus 1. *needs receives whether the value needs memory: a part keeps values that are
 *  not its operands in registers. */
static uint32_t end_of_part(const ts_tiles *w, uint32_t c, uint16_t index, bool *needs)
{
    *needs = true;
    for (uint32_t k = 0; w->code && k < w->code->nparts; k++) {
        const ts_emitted_part *p = &w->code->parts[k];
        if (c < p->first || c >= p->end)
            continue;
        *needs = false;
        for (int i = 0; i < p->noperands; i++)
            *needs |= p->operands[i].value + 1 == index;
        return p->end - 1;
    }
    return c;
}

/** Assigns buffers to values without memory. A buffer is reused after the last call that uses its
 *  value; if a part of the code has that call, after the part, because a store of larger elements
 *  in the part's loop would overwrite elements that the loop has not read yet. */
static void assign_buffers(ts_tiles *w)
{
    uint32_t last[TS_GROUP_TENSORS * 64 + 1] = {0};
    bool busy[TS_MAX_RETS * 64] = {false}, needs;
    for (uint32_t c = 0; c < w->ncalls; c++) {
        for (int i = 0; i < w->calls[c].f.nrets; i++)
            last[w->calls[c].ret[i]] = end_of_part(w, c, 0, &needs);
        for (int i = 0; i < w->calls[c].f.nargs; i++)
            last[w->calls[c].arg[i]] = end_of_part(w, c, 0, &needs);
    }
    for (uint32_t c = 0; c < w->ncalls; c++) {
        const tile_call *call = &w->calls[c];
        for (int i = 0; i < call->f.nrets; i++) {
            tile_value *made = call->ret[i] ? &w->values[call->ret[i] - 1] : NULL;
            end_of_part(w, c, call->ret[i], &needs);
            if (!made || made->base || made->buffer >= 0 || !needs)
                continue;
            int b = 0;
            while (busy[b])
                b++;
            busy[b] = true;
            made->buffer = b;
            w->nbuffers = (uint32_t)b + 1 > w->nbuffers ? (uint32_t)b + 1 : w->nbuffers;
        }
        for (uint32_t k = 1; k <= w->nvalues; k++)
            if (w->values[k - 1].buffer >= 0 && last[k] == c)
                busy[w->values[k - 1].buffer] = false;
    }
}

/** Merges the space into one dim if it has no rows or is one row, and every value has one element,
 *  or all elements of the space in a contiguous layout. Otherwise keeps the dims of the space,
 *  sorted by ts_tile_order_dims() if it has no rows. */
static void lay_out(ts_tiles *w)
{
    const ts_step *s = w->step;
    bool flat = !s->rows || ts_is_whole(s);
    memcpy(w->sizes, s->sizes, sizeof w->sizes);
    if (!s->rows)
        ts_tile_order_dims(w->values, w->nvalues, s, w->sizes);
    for (uint32_t i = 0; i < w->nvalues; i++) {
        const ts_tensor *t = &w->values[i].t;
        flat = flat && (t->numel == 1 || (t->numel == s->numel && t->ndim == s->ndim &&
                                          (t->flags & TS_TENSOR_CONTIGUOUS)));
    }
    w->ndim = flat ? 1 : s->ndim;
    if (flat)
        w->sizes[0] = s->numel;
    for (uint32_t i = 0; i < w->nvalues; i++) {
        tile_value *v = &w->values[i];
        ts_tensor *t = &v->t;
        int64_t item = ts_dtype_sizes[t->dtype];
        if (flat) {
            t->ndim = s->numel == t->numel && t->numel != 1 ? 1 : 0;
            t->sizes[0] = t->numel;
            t->strides[0] = 1;
        }
        memcpy(v->whole, t->sizes, sizeof v->whole);
        if (v->shift) /* gather()'s flag: the value has no dims of a row */
            v->shift = 0;
        else
            v->shift = w->ndim - t->ndim;
        for (int d = 0; d < w->ndim; d++) {
            int at = d - v->shift;
            bool moves = at >= 0 && at < t->ndim && t->sizes[at] != 1;
            v->step[d] = moves ? t->strides[at] * item : 0;
        }
    }
}

/** Chooses the split dim, the size of tiles and the size of buffers. Rows stay whole, except a
 *  reduction of all elements, which is divided into pieces. If all calls are machine code, a tile
 *  has about CODE_TILE elements; otherwise about TILE_BYTES bytes, from TILE_LEAST to TILE_MOST
 *  elements. */
static void choose_tiles(ts_tiles *w)
{
    int64_t item = 1, values = w->nbuffers, inner = 1, n;
    for (uint32_t i = 0; i < w->nvalues; i++) {
        values += w->values[i].base != NULL;
        item = ts_max64(item, ts_dtype_sizes[w->values[i].t.dtype]);
    }
    n = ts_tile_is_code(w) ? CODE_TILE
                   : ts_min64(ts_max64(TILE_BYTES / (values * item), TILE_LEAST), TILE_MOST);
    n = ts_tile_elements ? ts_tile_elements : n;
    w->split = ts_is_whole(w->step) ? w->ndim : w->ndim - w->step->rows;
    int64_t longest = ts_tile_divide(w->sizes, w->ndim, n, &w->split, &w->chunk, &inner);
    w->outer = 1;
    for (int d = 0; d < w->split; d++)
        w->outer *= w->sizes[d];
    if (ts_is_whole(w->step)) { /* whole pieces */
        longest = w->chunk = (w->chunk + TS_PIECE - 1) / TS_PIECE * TS_PIECE;
        w->npieces = ts_ceil_div(w->sizes[0], TS_PIECE);
    }
    w->along = w->ndim ? ts_ceil_div(w->sizes[w->split] - (longest - w->chunk), w->chunk) : 1;
    w->buffer = (longest * inner * item + 63) & ~(int64_t)63;
}

/** Fills w->values, w->calls and w->passed from the step. */
static void gather(ts_tiles *w)
{
    const ts_run *r = w->run;
    const ts_graph *g = r->exec->graph;
    for (uint32_t k = 0; k < w->step->count; k++) {
        uint32_t node = r->exec->order[w->step->first + k];
        const ts_graph_node *n = ts_graph_node_at(g, node);
        const ts_graph_arg *a = ts_graph_args_of(g, n);
        tile_call *c = &w->calls[w->ncalls++];
        memset(c->arg, 0, sizeof c->arg);
        c->f = (ts_frame){.table = atomic_load_explicit(&ts_tables[n->op], memory_order_acquire),
                          .thread = r->thread, .site = ts_run_site(r, node), .op = n->op,
                          .nargs = n->nargs, .nrets = n->nrets, .want = n->want, .key = TS_KEY_CPU,
                          .keys = TS_KEYSET(TS_KEY_CPU)};
        c->kernel = c->f.table->impl[TS_KEY_CPU];
        ts_run_unbox(r, n, c->args);
        c->whole = false;
        for (int i = 0; i < n->nargs; i++) {
            if (a[i].role == TS_ROLE_VALUE && a[i].tag != TS_TAG_NONE)
                w->passed[w->npassed++] = (tile_number){.bits = r->numbers[a[i].at], .at = a[i].at,
                                                        .call = k, .list = a[i].tag == TS_TAG_INTS};
            if (a[i].tag == TS_TAG_TENSOR)
                c->arg[i] = value_of(w, a[i].id);
        }
        for (int i = 0; i < n->nrets; i++) {
            c->ret[i] = n->rets[i] ? value_of(w, n->rets[i]) : 0;
            tile_value *v = c->ret[i] ? &w->values[c->ret[i] - 1] : NULL;
            if (v) /* for lay_out(): 1 if the result lacks the dims of a row */
                v->shift = v->t.ndim < w->step->ndim;
        }
        if (ts_is_whole(w->step) && (c->f.table->accepts[TS_KEY_CPU].takes & TS_TAKES_PIECES)) {
            c->whole = true;
            ts_group_header(g, ts_graph_value_at(g, a[0].id), &c->all);
        }
    }
}

/* -------------------------------------------------------------------------------- plans ---- */

bool ts_tile_plan(const tile_worker *own, tile_call *c)
{
    for (int i = 0; i < c->f.nargs; i++)
        if (c->arg[i])
            c->args[i].t = &own->values[c->arg[i] - 1].t;
    for (int i = 0; i < c->f.nrets; i++)
        c->rets[i] = c->ret[i] ? ts_value_tensor(&own->values[c->ret[i] - 1].t) : ts_value_none();
    if (c->whole)
        c->args[0].t = &c->all;
    c->f.args = c->args;
    c->f.rets = c->rets;
    ts_plan_open(&c->f, &c->plan);
    c->plan.rows = 0;
    if (c->f.table->infer(&c->f) != TS_OK)
        return false;
    c->operands = 0;
    c->tried = c->rewrites = false;
    if (c->plan.rows || c->whole)
        return true;
    if (!ts_group_plans(&c->f, c->rets[0].t))
        return false;
    ts_fill_space(&c->f);
    c->operands = 1;
    c->operand[0] = c->ret[0];
    for (unsigned left = c->plan.operands; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        if (c->args[i].tag != TS_TAG_NONE)
            c->operand[c->operands++] = c->arg[i];
    }
    if (c->operands != c->plan.iter.operands)
        return false;
    c->space = c->plan.iter;
    return true;
}

bool ts_tile_prepare(const ts_tiles *w, tile_worker *own, int64_t length)
{
    for (uint32_t i = 0; i < w->nvalues; i++) {
        tile_value *v = &own->values[i];
        ts_tensor *t = &v->t;
        t->numel = 1;
        for (int d = 0; d < t->ndim; d++) {
            int at = d + v->shift;
            int64_t size = at < w->split ? 1 : at == w->split ? length : v->whole[d];
            t->numel *= t->sizes[d] = v->whole[d] == 1 ? 1 : size;
        }
        if (v->base) {
            t->flags = ts_strides_contiguous(t->sizes, t->strides, t->ndim) ? TS_TENSOR_CONTIGUOUS
                                                                            : 0;
        } else {
            ts_strides_fill(t->sizes, t->ndim, t->strides);
            t->flags = TS_TENSOR_CONTIGUOUS;
        }
    }
    for (uint32_t k = 0; k < w->ncalls; k++)
        if (!ts_tile_plan(own, &own->calls[k]))
            return false;
    own->length = length;
    return true;
}

/* -------------------------------------------------------------------------------- state ---- */

/** Allocates a state with its arrays; NULL with an error. */
static ts_tiles *allocate(const ts_run *r, const ts_step *s, size_t values, size_t numbers)
{
    size_t bytes = sizeof(ts_tiles) + values * sizeof(tile_value) + s->count * sizeof(tile_call) +
                   numbers * sizeof(tile_number);
    ts_tiles *w = ts_alloc(r->thread, bytes);
    if (!w) {
        ts_error_memory("a fused group", (int64_t)bytes);
        return NULL;
    }
    *w = (ts_tiles){.run = r, .step = s, .bytes = bytes, .values = (tile_value *)(w + 1)};
    w->calls = (tile_call *)(w->values + values);
    w->passed = (tile_number *)(w->calls + s->count);
    return w;
}

/** The code of the group's calls, which must be planned; NULL if there is none. */
static const ts_emitted *code_of(const ts_tiles *w)
{
    return ts_emit_code(&(ts_emit_group){w->run, w->step, w->values, w->calls, w->nvalues,
                                         w->ncalls, w->ndim, w->sizes});
}

/** Sets w->code, and w->numbers to the code's numbers for this run. False, with an error, if out of
 *  memory. */
static bool set_code(ts_tiles *w, const ts_emitted *code)
{
    if (code && code->nnumbers &&
        !(w->numbers = ts_alloc(w->run->thread, code->nnumbers * sizeof *w->numbers))) {
        ts_error_memory("numbers of a fused group", (int64_t)code->nnumbers * 8);
        return false;
    }
    if ((w->code = code) != NULL)
        ts_emit_numbers(code, w->calls, UINT64_MAX, w->numbers);
    return true;
}

/** Plans the calls for the whole space and sets their machine code, unless there is none or a call
 *  cannot be planned. False, with an error, if out of memory. */
static bool emit(ts_tiles *w)
{
    bool ok = !ts_emit_on() || !ts_tile_prepare(w, &w->only, w->ndim ? w->sizes[0] : 1) ||
              set_code(w, code_of(w));
    w->only.length = 0;
    return ok;
}

/** Makes the state of a group for a run; NULL with an error. */
static ts_tiles *make(const ts_run *r, const ts_step *s)
{
    ts_tiles *most = allocate(r, s, (size_t)s->count * TS_GROUP_TENSORS,
                           (size_t)s->count * TS_MAX_ARGS), *w;
    if (!most)
        return NULL;
    uint64_t epoch = atomic_load(&ts_epoch);
    gather(most);
    w = allocate(r, s, most->nvalues, most->npassed);
    if (w) {
        w->epoch = epoch;
        w->nvalues = most->nvalues;
        w->ncalls = most->ncalls;
        w->npassed = most->npassed;
        memcpy(w->values, most->values, w->nvalues * sizeof *w->values);
        memcpy(w->calls, most->calls, w->ncalls * sizeof *w->calls);
        memcpy(w->passed, most->passed, w->npassed * sizeof *w->passed);
        w->only = (tile_worker){.values = w->values, .calls = w->calls};
        lay_out(w);
        if (emit(w)) {
            assign_buffers(w);
            choose_tiles(w);
            w->grain = WORK / (w->ncalls * ts_max64(s->numel / (w->outer * w->along), 1)) + 1;
        } else {
            ts_tiles_free(w);
            w = NULL;
        }
    }
    ts_tiles_free(most);
    return w;
}

/** True if all calls still have their tables, which change when a kernel is registered. */
static bool has_tables(ts_tiles *w)
{
    uint64_t epoch = atomic_load(&ts_epoch);
    if (TS_LIKELY(w->epoch == epoch))
        return true;
    w->epoch = epoch;
    for (uint32_t k = 0; k < w->ncalls; k++)
        if (w->calls[k].f.table !=
            atomic_load_explicit(&ts_tables[w->calls[k].f.op], memory_order_acquire))
            return false;
    return true;
}

/** Plans call k again, with its numbers of this run; false if that fails or the call needs other
 *  code. */
static bool plan_again(ts_tiles *w, uint32_t k)
{
    const ts_exec *e = w->run->exec;
    tile_call *c = &w->calls[k];
    uint32_t node = e->order[w->step->first + k];
    const ts_recipe *recipe;
    double numbers[TS_RECIPE_NUMBERS];
    c->f.thread = w->run->thread;
    c->f.site = ts_run_site(w->run, node);
    ts_run_unbox(w->run, ts_graph_node_at(e->graph, node), c->args);
    return ts_tile_plan(&w->only, c) &&
           (!w->code || w->code->texts[k] ==
                            (c->operands ? ts_recipe_of(&c->f, &recipe, numbers) : NULL));
}

/** Plans again the calls that get lists of numbers, or other numbers than in the last run, and
 *  updates the numbers of the code. False if the state does not fit the new numbers. */
static bool update_numbers(ts_tiles *w)
{
    const uint64_t *numbers = w->run->numbers;
    uint64_t changed = 0; /* bit k: call k; a group has at most 64 */
    for (uint32_t i = 0; i < w->npassed; i++) {
        tile_number *n = &w->passed[i];
        if (numbers[n->at] != n->bits || n->list)
            changed |= (uint64_t)1 << n->call;
        n->bits = numbers[n->at];
    }
    for (uint64_t left = changed; left; left &= left - 1)
        if (!plan_again(w, (uint32_t)__builtin_ctzll(left)))
            return false;
    if (changed && w->code)
        ts_emit_numbers(w->code, w->calls, changed, w->numbers);
    return !changed || w->code || !ts_emit_on() || !code_of(w);
}

/** Takes the kept state of a group and updates its addresses, call sites and numbers for this run.
 *  NULL if no state is kept, or if it does not fit this run; the state is then freed. */
static ts_tiles *reuse_state(const ts_run *r, const ts_step *s)
{
    const ts_exec *e = r->exec;
    ts_tiles *w = atomic_exchange(&e->tiles[s - e->steps], NULL);
    bool fits = w != NULL;
    if (!w)
        return NULL;
    w->run = r;
    for (uint32_t i = 0; i < w->nvalues && fits; i++) {
        const ts_tensor *there = r->registers[w->values[i].number];
        fits = (there != NULL) == (w->values[i].base != NULL);
        w->values[i].base = there ? there->data : NULL;
    }
    for (uint32_t k = 0; k < w->ncalls && !ts_tile_is_code(w); k++) {
        w->calls[k].f.thread = r->thread;
        w->calls[k].f.site = ts_run_site(r, e->order[s->first + k]);
    }
    if (fits && has_tables(w) && update_numbers(w) && (ts_emit_on() || !w->code))
        return w;
    ts_tiles_free(w);
    return NULL;
}

void ts_tiles_free(ts_tiles *w)
{
    if (!w)
        return;
    if (w->numbers)
        ts_free(&ts_tls, w->numbers, w->code->nnumbers * sizeof *w->numbers);
    ts_free(&ts_tls, w, w->bytes);
}

ts_tiles *ts_tiles_of(const ts_run *r, const ts_step *s)
{
    ts_tiles *w = reuse_state(r, s);
    return w ? w : make(r, s);
}
