/**
 * @file whole.h  Kernels of all TS_FILL ops except to_device for the mock device of tape.h. Each
 * queues a task that runs the op on the CPU over the device's memory.
 */
// SPDX-License-Identifier: MIT
#ifndef TESTS_COMPILE_WHOLE_H
#define TESTS_COMPILE_WHOLE_H

#include "dispatch/invoke.h"
#include "tests/compile/tape.h"

/** Copy of a tensor's header that outlives the tensor. */
typedef struct shadow {
    const ts_tensor *of;
    char *data;
    ts_dtype dtype;
    int ndim;
    int64_t sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS];
} shadow;

/** Copy of a call that outlives its frame. Members of a list have consecutive shadows. */
typedef struct whole_call {
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS]; /* tensors: i is a shadow's index */
    int nargs, nrets, given, nshadows, nints;
    int64_t ints[64];
    shadow shadows[64];
    uint16_t op;
    ts_rng_state rng;
} whole_call;

static int64_t whole_calls; /* whole_call structs not yet freed */

static int64_t shadow_of(whole_call *w, const ts_tensor *t)
{
    ck_assert_int_lt(w->nshadows, 64);
    shadow *s = &w->shadows[w->nshadows];
    *s = (shadow){.of = t, .data = t->numel ? from_handle(t->data) : NULL, .dtype = t->dtype,
                  .ndim = t->ndim};
    memcpy(s->sizes, t->sizes, sizeof s->sizes);
    memcpy(s->strides, t->strides, sizeof s->strides);
    return w->nshadows++;
}

static ts_tensor *handle_of(const shadow *s)
{
    int64_t span = 1, none = 0;
    for (int d = 0; d < s->ndim; d++)
        span = s->sizes[d] ? span + (s->sizes[d] - 1) * s->strides[d] : 0;
    for (int d = 0; d < s->ndim; d++)
        span = s->sizes[d] ? span : 0;
    ts_tensor *base = ts_from_blob(span ? s->data : NULL, s->dtype, span ? &span : &none, 1, NULL,
                                   NULL);
    OK(base);
    return ts_scope_adopt(ts_thread_self(), ts_tensor_alias(ts_thread_self(), base, s->sizes,
                                                            s->strides, s->ndim, 0));
}

static void run_whole(const task *t)
{
    const whole_call *w = t->from;
    TS_SCOPE;
    ts_thread *thread = ts_thread_self();
    ts_tensor *handles[64];
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    for (int i = 0; i < w->nshadows; i++) {
        handles[i] = NULL;
        for (int k = 0; k < i && !handles[i]; k++) /* one handle per tensor, also if used twice */
            if (w->shadows[k].of == w->shadows[i].of)
                handles[i] = handles[k];
        if (!handles[i])
            handles[i] = handle_of(&w->shadows[i]);
    }
    for (int i = 0; i < w->nargs; i++) {
        args[i] = w->args[i];
        if (args[i].tag == TS_TAG_TENSOR)
            args[i].t = handles[w->args[i].i];
        else if (args[i].tag == TS_TAG_TENSORS)
            args[i].list = handles + w->args[i].i;
        else if (args[i].tag == TS_TAG_INTS)
            args[i].ints = w->ints + w->args[i].i;
        else if (args[i].tag == TS_TAG_DEVICE)
            args[i].device = TS_DEVICE_CPU;
    }
    for (int i = 0; i < w->nrets && i < TS_MAX_RETS; i++)
        rets[i] = w->given >> i & 1 ? ts_value_tensor(handles[w->rets[i].i]) : ts_value_none();
    ts_rng_state before = thread->rng;
    ts_keyset exclude = thread->exclude;
    thread->rng = w->rng;
    thread->exclude |= TS_KEYSET(TS_KEY_AUTOGRAD) | TS_KEYSET(TS_KEY_LAZY);
    ts_status status = ts_call(w->op, args, w->nargs, rets, w->nrets, w->given, w->given, NULL);
    thread->exclude = exclude;
    thread->rng = before;
    run_status = status;
}

static void end_whole(const task *t)
{
    whole_calls--;
    free(t->from);
}

static ts_status queue_whole(ts_frame *f)
{
    whole_call *w = calloc(1, sizeof *w);
    whole_calls++;
    w->op = f->op;
    w->nargs = f->nargs;
    w->nrets = f->nrets;
    w->rng = f->rng;
    for (int i = 0; i < f->nargs; i++) {
        const ts_value *v = &f->args[i];
        w->args[i] = *v;
        if (v->tag == TS_TAG_TENSOR)
            w->args[i].i = shadow_of(w, v->t);
        if (v->tag == TS_TAG_TENSORS)
            for (uint32_t k = 0; k < v->count; k++) {
                int64_t at = shadow_of(w, v->list[k]);
                w->args[i].i = k ? w->args[i].i : at;
            }
        if (v->tag == TS_TAG_INTS) {
            ck_assert_int_le(w->nints + v->count, 64);
            memcpy(w->ints + w->nints, v->ints, v->count * sizeof *w->ints);
            w->args[i].i = w->nints;
            w->nints += (int)v->count;
        }
    }
    for (int i = 0; i < f->nrets; i++)
        if (f->rets[i].tag == TS_TAG_TENSOR) {
            w->given |= 1 << i;
            w->rets[i].i = shadow_of(w, f->rets[i].t);
        }
    return queue(ts_kernel_stream(f),
                 (task){.run = run_whole, .end = end_whole, .from = w});
}

static ts_status install_whole(void *state, ts_key key)
{
    (void)state;
    ts_kernel_opts opts = {.size = sizeof opts, .strided = true};
    for (int op = 0; op < TS_MAX_OPS; op++)
        if (ts_ops[op].name && ts_ops[op].kind == TS_FILL && strcmp(ts_ops[op].name, "to_device"))
            TS_TRY(ts_register_kernel_ex(ts_ops[op].name, key, queue_whole, &opts, NULL));
    return TS_OK;
}
static void set_up_whole(void) { set_up_with(install_whole); }

/* Groups: the mock allocates memory for values inside a group and queues the group's calls. */
enum { MOST_INSIDE = 1 << 16 };
static void *inside_whole[MOST_INSIDE]; /* freed at tear-down, because captured tasks use it */
static int inside_count;

static int epilogues_run; /* groups that were products with epilogues */

static bool takes_whole(void *state, ts_frame *f, ts_kernel kernel)
{
    (void)state;
    return kernel == queue_whole && f->nrets > 0;
}
static void give_memory(ts_tensor *t)
{
    if (t->data)
        return;
    ck_assert_int_lt(inside_count, MOST_INSIDE);
    inside_whole[inside_count] = calloc(1, (size_t)(t->numel * ts_dtype_sizes[t->dtype]) + 1);
    t->data = to_handle(inside_whole[inside_count++]);
}
static ts_status run_whole_group(void *state, int index, const ts_group_call *calls, int count,
                                 ts_stream *stream, ts_group_report *report)
{
    (void)state, (void)index, (void)stream;
    if (refuses_groups)
        return ts_error_set(TS_ERR_UNSUPPORTED, "the mock has no kernel");
    for (int c = 0; c < count; c++) {
        ts_frame *f = calls[c].frame;
        for (int i = 0; i < f->nrets; i++)
            if (f->rets[i].tag == TS_TAG_TENSOR)
                give_memory(f->rets[i].t);
        TS_TRY(calls[c].kernel(f));
    }
    groups_run++;
    calls_run += count;
    epilogues_run += !calls[0].frame->plan->pointwise && !calls[0].frame->plan->rows;
    *report = (ts_group_report){.launches = 1};
    return TS_OK;
}
static int longest_epilogue = 8; /* most calls in the epilogue of a product */
/** The mock's epilogue_cost: accepts any first call as a product and up to longest_epilogue calls
 *  after it, pointwise or batch norms with given statistics, as the epilogue, at cost 0. */
static int64_t cost_whole(void *state, const ts_group_call *calls, int count)
{
    (void)state;
    if (count > 1 + longest_epilogue)
        return -1;
    for (int c = 0; c < count; c++) {
        const ts_frame *f = calls[c].frame;
        bool each = f->plan->pointwise ||
                    (strcmp(ts_op_name(f->op), "batch_norm") == 0 &&
                     f->args[1].tag == TS_TAG_TENSOR);
        if (calls[c].kernel != queue_whole || (c && !each))
            return -1;
    }
    return 0;
}
/** set_up_whole() for a device that runs groups. */
static inline void set_up_whole_groups(void)
{
    has_groups = true;
    takes_group = takes_whole;
    runs_group = run_whole_group;
    costs_epilogue = cost_whole;
    set_up_whole();
}
static void tear_down_whole(void)
{
    tear_down();
    ck_assert_int_eq(whole_calls, 0);
    while (inside_count)
        free(inside_whole[--inside_count]);
}

#endif
