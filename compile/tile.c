/**
 * @file tile.c  Fused groups on the CPU: all calls of a group on one tile, then the next tile.
 *
 * A tile is a part of the group's iteration space whose values fit the L1 cache. The calls
 * run the eager kernels, so a group gives the same bits as its calls one by one. Each call's shape
 * rule runs once per size of tiles; other tiles of that size change only the addresses. A value
 * that only the group uses is stored in a buffer of one tile.
 */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"
#include "compile/testing.h"
#include "core/float_env.h"
#include "core/parallel.h"
#include "dispatch/entries.h"

#include <string.h>

enum { TILE_BYTES = 32768,               /* of the values of a tile */
       TILE_LEAST = 1024, TILE_MOST = 8192, /* elements of a tile */
       CODE_TILE = 16384,                /* elements of a tile if all calls are machine code */
       WORK = 16384,                     /* elements times calls that are worth another thread */
       KEPT_BUFFERS = 8192 /* bytes of buffers up to which they are on the stack */ };

/** A worker's own values and calls. */
typedef struct worker {
    tile_value *values;
    tile_call *calls;
    char *buffers;
    int64_t length; /* elements along the split dim for which the plans are made */
} worker;

/** A number that a call of the group gets. */
typedef struct tile_number {
    uint64_t bits;     /* in the last run */
    uint32_t at, call; /* index in the recording's numbers; index of the call */
    bool list;         /* the call gets an address in the numbers of the run */
} tile_number;

/** The state of a group's run. If one worker runs the group, its next run uses the state again. */
typedef struct ts_tiles {
    const ts_run *run;
    const ts_step *step;
    tile_value *values; /* initial values and calls, which each worker copies */
    tile_call *calls;
    uint32_t nvalues, ncalls, nbuffers;
    int ndim, split;    /* dims of the space; dim that tiles divide. A tile has one index of each
                           dim before `split`, and all of each dim after it */
    int64_t sizes[TS_MAX_DIMS];
    int64_t chunk, along, outer; /* elements of the split dim per tile, the last may have more or
                                    fewer; tiles along the split dim; product of the dims before
                                    it */
    int64_t buffer;     /* bytes of a buffer */
    size_t worker;      /* bytes of a worker's values, calls and buffers */
    char *memory;       /* memory of the workers */
    int nworkers;
    char *parts;        /* npieces numbers for each whole call; NULL: none */
    int64_t npieces;
    _Atomic int workers, failed; /* workers that have begun; 1 if one failed */
    ts_error *error;    /* receives the record of the first worker that failed */
    int64_t grain;      /* fewest tiles for a worker */
    worker only;        /* the worker of an undivided run; it uses `values` and `calls` */
    const ts_emitted *code; /* machine code of some or all calls; NULL: none */
    uint64_t *numbers;  /* code->nnumbers numbers that the code uses in this run */
    uint64_t epoch;     /* ts_epoch when the calls' tables were last compared with ts_tables */
    tile_number *passed; /* numbers of the calls */
    uint32_t npassed;
    size_t bytes;       /* of this state with its arrays, without `numbers` */
} tiles;


/* ------------------------------------------------------------------------------- set-up ---- */

/** Finds or adds value `id` in the group; returns its index + 1. */
static uint16_t value_of(tiles *w, ts_id id)
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

/** The last call of the part of the code that call c is in; without code, c. *needs receives
 *  whether value `index` of that call needs memory: a part keeps some values in registers. */
static uint32_t end_of_part(const tiles *w, uint32_t c, uint16_t index, bool *needs)
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

/** Assigns buffers to values without memory. A buffer is reused after the last call that reads its
 *  value, and not within a part of the code, whose elements may have other sizes. */
static void assign_buffers(tiles *w)
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

/** Merges the space into one dim if every value is contiguous or has one element; otherwise keeps
 *  its dims. */
static void lay_out(tiles *w)
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
        if (v->shift) /* gather()'s flag: it lacks the dims of a row */
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

/** True if all calls run as machine code, which needs neither plans nor buffers. */
static bool is_code(const tiles *w) { return w->code && w->code->whole; }

/** Chooses the split dim and the size of tiles, so that a tile's values fit the L1 cache
 *  and rows stay whole. */
static void choose_tiles(tiles *w)
{
    int64_t item = 1, values = w->nbuffers, inner = 1, n;
    for (uint32_t i = 0; i < w->nvalues; i++) {
        values += w->values[i].base != NULL;
        item = ts_max64(item, ts_dtype_sizes[w->values[i].t.dtype]);
    }
    n = is_code(w) ? CODE_TILE
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

/** Fills w->values and w->calls from the step; workers start with copies of them. */
static void gather(tiles *w)
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

/* ---------------------------------------------------------------------------------- run ---- */

/** Runs the call's shape rule for the current sizes of its tensors; false if it fails. */
static bool plan_call(const worker *own, tile_call *c)
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

/** Plans the worker's calls for tiles of `length` elements along the split dim; false if a call
 *  cannot be planned. */
static bool prepare(const tiles *w, worker *own, int64_t length)
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
        if (!plan_call(own, &own->calls[k]))
            return false;
    own->length = length;
    return true;
}

/** True if a kernel has changed the space that its shape rule made. Entries after the last dim and
 *  operand are not set. before: the addresses of the operands before the kernel ran. */
static bool has_changed(const tile_call *c, char *const *before)
{
    const ts_iter *it = &c->plan.iter, *made = &c->space;
    size_t operands = (size_t)c->operands;
    bool changed = it->ndim != made->ndim || it->numel != made->numel ||
                   memcmp(it->data, before, operands * sizeof *before) != 0;
    for (int d = 0; d < made->ndim && !changed; d++)
        changed = it->sizes[d] != made->sizes[d] ||
                  memcmp(it->strides[d], made->strides[d], operands * sizeof **made->strides) != 0;
    return changed;
}

/** Runs the kernel of a call. A failure is recorded in the thread that runs it, with op and call
 *  site; the kernel's own record comes first. */
static bool run_kernel(tile_call *c)
{
    const ts_error *e = c->f.thread->error;
    unsigned before = e->count;
    ts_status status = c->kernel(&c->f);
    if (TS_LIKELY(status == TS_OK))
        return true;
    if (e->count == before)
        ts_error_set(status, "failed without recording an error");
    ts_fail_within(ts_op_name(c->f.op), c->f.site);
    return false;
}

static bool run_tile(const tiles *w, worker *own, int64_t tile)
{
    int64_t outer = tile / w->along, own_tile = tile % w->along, at = own_tile * w->chunk,
            length = !w->ndim                    ? 1
                     : own_tile + 1 < w->along ? w->chunk
                                                 : w->sizes[w->split] - at,
            index[TS_MAX_DIMS];
    for (int d = w->split - 1; d >= 0; d--) {
        index[d] = outer % w->sizes[d];
        outer /= w->sizes[d];
    }
    for (uint32_t i = 0; i < w->nvalues; i++) {
        tile_value *v = &own->values[i];
        if (!v->base) {
            v->t.data = v->buffer < 0 ? NULL : own->buffers + v->buffer * w->buffer;
            continue;
        }
        v->t.data = v->base + (w->ndim ? at * v->step[w->split] : 0);
        for (int d = 0; d < w->split; d++)
            v->t.data += index[d] * v->step[d];
    }
    if (!is_code(w) && length != own->length && !prepare(w, own, length))
        return false;
    const ts_emitted_part *part = w->code ? w->code->parts : NULL,
                          *stop = part ? part + w->code->nparts : NULL;
    char *parts = w->parts;
    for (uint32_t k = 0; k < w->ncalls; k++) {
        if (part != stop && part->first == k) {
            int64_t sizes[TS_MAX_DIMS];
            memcpy(sizes, w->sizes, sizeof sizes);
            sizes[w->split] = length;
            ts_emit_run(part, own->values, sizes, w->split, w->ndim, w->numbers);
            k = part++->end - 1;
            continue;
        }
        tile_call *c = &own->calls[k];
        ts_iter *it = &c->plan.iter;
        if (c->rewrites)
            *it = c->space;
        for (int i = 0; i < c->operands; i++)
            if (c->operand[i])
                it->data[i] = own->values[c->operand[i] - 1].t.data;
        char *before[TS_MAX_OPERANDS];
        bool tries = !c->tried && !c->plan.rows && !c->whole;
        ts_fold_share share;
        if (c->whole) {
            share = (ts_fold_share){.data = own->values[c->arg[0] - 1].t.data,
                                .first = at / TS_PIECE, .count = ts_ceil_div(length, TS_PIECE),
                                .parts = parts};
            c->plan.share = &share;
            parts += w->npieces * (int64_t)sizeof(double);
        }
        for (int i = 0; i < c->operands && tries; i++)
            before[i] = it->data[i];
        if (!run_kernel(c))
            return false;
        if (tries) {
            c->tried = true;
            c->rewrites = has_changed(c, before);
        }
    }
    return true;
}

/** A worker's share of a divided run: tiles begin to end - 1. */
static void run_tiles(void *ctx, int64_t begin, int64_t end)
{
    tiles *w = ctx;
    int number = atomic_fetch_add(&w->workers, 1);
    if (number >= w->nworkers) {
        atomic_store(&w->failed, 1);
        return;
    }
    char *memory = w->memory + (size_t)number * w->worker;
    worker own = {.values = (tile_value *)memory};
    own.calls = (tile_call *)(own.values + w->nvalues);
    own.buffers = (char *)(((uintptr_t)(own.calls + w->ncalls) + 63) & ~(uintptr_t)63);
    memcpy(own.values, w->values, w->nvalues * sizeof *own.values);
    if (!is_code(w))
        memcpy(own.calls, w->calls, w->ncalls * sizeof *own.calls);
    for (uint32_t k = 0; k < w->ncalls && !is_code(w); k++)
        own.calls[k].f.thread = ts_thread_self();
    const ts_error *e = ts_thread_self()->error;
    unsigned before = e->count;
    for (int64_t i = begin; i < end; i++)
        if (!run_tile(w, &own, i)) {
            if (!atomic_exchange(&w->failed, 1) && e->count != before)
                *w->error = *e;
            return;
        }
}

/** Allocates a state with its arrays; NULL with an error. */
static tiles *allocate(const ts_run *r, const ts_step *s, size_t values, size_t numbers)
{
    size_t bytes = sizeof(tiles) + values * sizeof(tile_value) + s->count * sizeof(tile_call) +
                   numbers * sizeof(tile_number);
    tiles *w = ts_alloc(r->thread, bytes);
    if (!w) {
        ts_error_memory("a fused group", (int64_t)bytes);
        return NULL;
    }
    *w = (tiles){.run = r, .step = s, .bytes = bytes, .values = (tile_value *)(w + 1)};
    w->calls = (tile_call *)(w->values + values);
    w->passed = (tile_number *)(w->calls + s->count);
    return w;
}

/** The code of the group's calls, which are planned. */
static const ts_emitted *code_of(const tiles *w)
{
    return ts_emit_code(&(ts_emit_group){w->run, w->step, w->values, w->calls, w->nvalues,
                                         w->ncalls, w->ndim, w->sizes});
}

/** Sets w->code, and w->numbers for its numbers in this run. False, with an error, if out of
 *  memory. */
static bool set_code(tiles *w, const ts_emitted *code)
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

/** Finds or makes machine code of the group. The calls are planned for the whole space. False, with
 *  an error, if out of memory. */
static bool emit(tiles *w)
{
    bool ok = !ts_emit_on() || !prepare(w, &w->only, w->ndim ? w->sizes[0] : 1) ||
              set_code(w, code_of(w));
    w->only.length = 0;
    return ok;
}

/** Makes the state of a group for a run; NULL with an error. */
static tiles *make(const ts_run *r, const ts_step *s)
{
    tiles *most = allocate(r, s, (size_t)s->count * TS_GROUP_TENSORS,
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
        w->only = (worker){.values = w->values, .calls = w->calls};
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
static bool has_tables(tiles *w)
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

/** Plans call k again, with its numbers of this run; false if that fails or needs other code. */
static bool plan_again(tiles *w, uint32_t k)
{
    const ts_exec *e = w->run->exec;
    tile_call *c = &w->calls[k];
    uint32_t node = e->order[w->step->first + k];
    const ts_recipe *recipe;
    double numbers[TS_RECIPE_NUMBERS];
    c->f.thread = w->run->thread;
    c->f.site = ts_run_site(w->run, node);
    ts_run_unbox(w->run, ts_graph_node_at(e->graph, node), c->args);
    return plan_call(&w->only, c) &&
           (!w->code || w->code->texts[k] ==
                            (c->operands ? ts_recipe_of(&c->f, &recipe, numbers) : NULL));
}

/** Updates the calls whose numbers differ from those of the run before; false if the state does not
 *  fit the new numbers. */
static bool update_numbers(tiles *w)
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
 *  NULL if no state is kept, or if it does not fit this run and is freed. */
static tiles *reuse_state(const ts_run *r, const ts_step *s)
{
    const ts_exec *e = r->exec;
    tiles *w = atomic_exchange(&e->tiles[s - e->steps], NULL);
    bool fits = w != NULL;
    if (!w)
        return NULL;
    w->run = r;
    for (uint32_t i = 0; i < w->nvalues && fits; i++) {
        const ts_tensor *there = r->registers[w->values[i].number];
        fits = (there != NULL) == (w->values[i].base != NULL);
        w->values[i].base = there ? there->data : NULL;
    }
    for (uint32_t k = 0; k < w->ncalls && !is_code(w); k++) {
        w->calls[k].f.thread = r->thread;
        w->calls[k].f.site = ts_run_site(r, e->order[s->first + k]);
    }
    if (fits && has_tables(w) && update_numbers(w) && (ts_emit_on() || !w->code))
        return w;
    ts_tiles_free(w);
    return NULL;
}

void ts_tiles_free(tiles *w)
{
    if (!w)
        return;
    if (w->numbers)
        ts_free(&ts_tls, w->numbers, w->code->nnumbers * sizeof *w->numbers);
    ts_free(&ts_tls, w, w->bytes);
}

/** Folds the parts of the whole calls to their results. */
static bool join_pieces(tiles *w)
{
    char *parts = w->parts;
    for (uint32_t k = 0; k < w->ncalls && w->parts; k++) {
        tile_call *c = &w->calls[k];
        if (!c->whole)
            continue;
        ts_fold_share share = {.parts = parts};
        tile_value *result = &w->values[c->ret[0] - 1];
        parts += w->npieces * (int64_t)sizeof(double);
        result->t.data = result->base;
        if (!plan_call(&w->only, c))
            return false;
        c->plan.share = &share;
        if (!run_kernel(c))
            return false;
    }
    return true;
}

/** Runs all tiles in this thread and keeps the state for the next run; frees it on failure, or if
 *  another thread has kept one. */
static bool run_serial(tiles *w)
{
    char memory[KEPT_BUFFERS + 64], *buffers = memory;
    bool large = w->nbuffers * w->buffer > KEPT_BUFFERS, ok = true;
    const ts_exec *e = w->run->exec;
    tiles *none = NULL;
    size_t bytes = (size_t)(w->nbuffers * w->buffer) + 64;
    if (large && !(buffers = ts_alloc(w->run->thread, bytes))) {
        ts_error_memory("a fused group", (int64_t)bytes);
        ts_tiles_free(w);
        return false;
    }
    w->only.buffers = (char *)(((uintptr_t)buffers + 63) & ~(uintptr_t)63);
    for (int64_t i = 0; i < w->outer * w->along && ok; i++)
        ok = run_tile(w, &w->only, i);
    ok = ok && join_pieces(w);
    if (large)
        ts_free(w->run->thread, buffers, bytes);
    if (!ok || !atomic_compare_exchange_strong(&e->tiles[w->step - e->steps], &none, w))
        ts_tiles_free(w);
    return ok;
}

/** Divides the tiles between threads, and frees the state. */
static bool run_parallel(tiles *w)
{
    ts_thread *thread = w->run->thread;
    w->worker = (w->nvalues * sizeof(tile_value) + w->ncalls * sizeof(tile_call) + 128 +
                 (size_t)(w->nbuffers * w->buffer) + 63) & ~(size_t)63;
    size_t memory = (size_t)w->nworkers * w->worker;
    ts_error error = {0};
    w->error = &error;
    bool ok = (w->memory = ts_alloc(thread, memory)) != NULL;
    if (ok) {
        ts_parallel_for(w->outer * w->along, w->grain, run_tiles, w);
        ts_free(thread, w->memory, memory);
        if (error.code != TS_OK) {
            error.count = thread->error->count + 1;
            *thread->error = error;
        }
        ok = !w->failed && join_pieces(w);
    } else {
        ts_error_memory("a fused group", (int64_t)memory);
    }
    ts_tiles_free(w);
    return ok;
}

static ts_status run_group(const ts_run *r, const ts_step *s)
{
    tiles *w = reuse_state(r, s);
    if (!w && !(w = make(r, s)))
        return ts_error_code();
    w->nworkers = (int)ts_min64(ts_num_threads(),
                                ts_max64(w->outer * w->along / w->grain, 1));
    size_t parts = 0;
    for (uint32_t k = 0; k < w->ncalls; k++)
        parts += w->calls[k].whole ? (size_t)w->npieces * sizeof(double) : 0;
    char *memory = w->parts = parts ? ts_alloc(r->thread, parts) : NULL;
    if (parts && !memory) {
        ts_tiles_free(w);
        return ts_error_memory("a fused group", (int64_t)parts);
    }
    unsigned before = r->thread->error->count;
    bool ok = w->nworkers > 1 ? run_parallel(w) : run_serial(w);
    if (memory)
        ts_free(r->thread, memory, parts);
    if (ok)
        return TS_OK;
    return r->thread->error->count != before
               ? ts_error_code()
               : ts_error_set(TS_ERR_INTERNAL, "a fused group of %u calls failed", s->count);
}

ts_status ts_tile_run(const ts_run *r, const ts_step *s)
{
    if (TS_LIKELY(ts_float_env_is_plain()))
        return run_group(r, s);
    TS_PLAIN_FLOATS;
    return run_group(r, s);
}
