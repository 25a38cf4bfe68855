/**
 * @file orders.c
 * Compiled functions that use the library in unusual orders: nested and recursive calls, handles
 * that are freed inside, reads, errors, open scopes, changed sizes, callbacks, failed allocations.
 * The calls are drawn. Each may fail with an error; none may crash, leak memory, leave an output
 * after an error, or change the results of other functions.
 */
// SPDX-License-Identifier: MIT
#include <pthread.h>

#include "core/testing.h"
#include "tests/blocks.h"
#include "tests/compile/differs.h"

enum {
    KEPT = 6,          /* tensors that functions keep beyond their calls */
    FUNCTIONS = 4,     /* compiled functions of a program */
    LEAVES = 2,        /* their parameters */
    LENGTH = 33,       /* elements of a parameter */
    LOCALS = 24,       /* results of a call that later actions use */
    DEPTH = 3,         /* nested calls */
    ROUNDS = 24,       /* calls of a program */
    PROGRAM_COUNT = 60 /* TS_TEST_PROGRAMS overrides it */
};

typedef struct world world;
typedef struct body {
    world *world;
    uint64_t seed; /* of most calls' actions, so that later calls find plans and are replayed */
} body;

/** What the functions of a program share. */
struct world {
    draw d;
    body bodies[FUNCTIONS];
    ts_compiled *functions[FUNCTIONS]; /* NULL: freed, or not made yet */
    int running[FUNCTIONS];            /* calls in progress */
    ts_compiled *plain;                /* a function without effects */
    ts_tensor *kept[KEPT];             /* owned, or NULL */
    ts_tensor *leaves[LEAVES];
    ts_optimizer *optimizer; /* of the leaves */
    ts_tensor *pinned[3 * (DEPTH + 1)]; /* inputs of the calls in progress */
    int npinned, depth;
    ts_scope scopes[64]; /* left open by functions */
    int nscopes;
    double cell; /* declared by ts_number_from(), ts_counts_from(), ts_depends_on() */
    int64_t count, flag;
    uint32_t calm; /* if more, calls repeat and fewer have effects */
    bool faults;   /* allocations may fail */
    FILE *out;
};

static int fault_after = -1, fault_length;
/** Fails fault_length allocations after fault_after others; fault_after is -1: none. */
static bool fault(size_t bytes)
{
    (void)bytes;
    if (fault_after < 0)
        return false;
    if (fault_after > 0) {
        fault_after--;
        return false;
    }
    if (--fault_length < 0)
        fault_after = -1;
    return fault_length >= 0;
}

static bool is_in(ts_tensor *const *list, int n, const ts_tensor *t)
{
    for (int i = 0; i < n; i++)
        if (list[i] == t)
            return true;
    return false;
}

/* ------------------------------------------------------------------------- functions ---- */

static ts_status run_body(TRACED);

static ts_status square_tanh(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_tanh(ts_mul(in[0], in[0])));
}

static void make_function(world *w, draw *d, uint32_t k)
{
    ts_compile_opts opts = {.size = sizeof opts, .replay = below(d, 2), .fullgraph = !below(d, 8),
                            .graph = !below(d, 8), .max_plans = below(d, 3), .verify = below(d, 3),
                            .recompute = below(d, 4) ? 0 : 1};
    w->functions[k] = ts_compile(run_body, &w->bodies[k], &opts);
}

static void free_function(world *w, uint32_t k)
{
    ts_compiled *c = w->functions[k];
    w->functions[k] = NULL; /* callbacks of its deletion do not use it */
    ts_compiled_free(c);
}

static ts_status call_function(world *w, uint32_t k, ts_tensor *const *in, int n, ts_tensor **out,
                               int m)
{
    int pinned = w->npinned;
    for (int i = 0; i < n; i++)
        w->pinned[w->npinned++] = in[i];
    w->depth++;
    w->running[k]++;
    ts_status status = ts_compiled_call(w->functions[k], in, n, out, m);
    w->running[k]--;
    w->depth--;
    w->npinned = pinned;
    for (int i = 0; i < m && status != TS_OK; i++)
        ck_assert_ptr_null(out[i]);
    return status;
}

/* ------------------------------------------------------------------------- callbacks ---- */

static ts_tensor *on_gradient(void *payload, ts_tensor *g)
{
    world *w = payload;
    ts_tensor *out = NULL;
    double value;
    uint32_t k = below(&w->d, 6);
    if (k == 0)
        ts_item(ts_sum(g), &value);
    else if (k == 1 && w->depth < DEPTH && w->functions[0])
        call_function(w, 0, &g, 1, &out, 1);
    else if (k == 2)
        return ts_mul_scalar(g, 0.5);
    return k == 3 ? NULL : TS_NONE;
}

static void explain_all(world *w)
{
    for (int k = 0; k < FUNCTIONS; k++)
        if (w->functions[k])
            ts_explain(w->functions[k], w->out);
}
static void on_delete(void *payload, void *data, int64_t bytes)
{
    (void)bytes;
    explain_all(payload);
    free(data);
}
static void on_log(void *payload, const char *topic, const char *line)
{
    (void)topic;
    (void)line;
    explain_all(payload);
}

static ts_status recomputed(TRACED)
{
    world *w = ctx;
    return TS_STATUS_OF(out[0] = ts_dropout(ts_gelu(ts_mul(in[0], w->leaves[0])), 0.2, true));
}

static void *call_plain(void *payload)
{
    TS_SCOPE;
    world *w = payload;
    ts_tensor *x = ts_ones(TS_SIZES(8, LENGTH), TS_F32), *y;
    if (x)
        ts_compiled_call(w->plain, &x, 1, &y, 1);
    return NULL;
}

/* An op whose kernel calls a compiled function. */
static const char again[] = "test.again(Tensor x) -> Tensor";
static int again_op;
static ts_compiled *of_kernel;
static ts_status again_rule(ts_frame *f) { return ts_rule_pointwise(f, 1, TS_DTYPE_NONE, true); }
static ts_status again_kernel(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *x = f->args[0].t, *y;
    TS_TRY(ts_compiled_call(of_kernel, &x, 1, &y, 1));
    return TS_STATUS_OF(ts_copy_(f->rets[0].t, y));
}
static ts_tensor *call_again(ts_tensor *x)
{
    ts_value args[] = {ts_value_tensor(x)}, ret = ts_value_none();
    return ts_call_boxed(again_op, args, 1, &ret, 1) == TS_OK ? ts_adopt(ret.t) : NULL;
}
static void register_again(void)
{
    OK(ts_register_op_ex(again, TS_OPTS(ts_op_opts, .rule = again_rule), &again_op));
    OK(ts_register_kernel_ex("test.again", TS_KEY_CPU, again_kernel,
                             TS_OPTS(ts_kernel_opts, .schema = again,
                                     .dtypes = TS_DTYPE_BIT(TS_F32), .strided = true),
                             NULL));
    OK(of_kernel = ts_compile(square_tanh, NULL, NULL));
}

/* --------------------------------------------------------------------------- actions ---- */

/** Releases kept tensor i, unless a call in progress or the action uses it. */
static bool release_kept(world *w, uint32_t i, const ts_tensor *a, const ts_tensor *b)
{
    ts_tensor *t = w->kept[i];
    if (t && (t == a || t == b || is_in(w->pinned, w->npinned, t)))
        return false;
    w->kept[i] = NULL;
    ts_release(t);
    return true;
}

/** Compiled functions: nested calls, new and freed ones, reports. */
static ts_tensor *act_on_functions(world *w, draw *d, ts_tensor *a, ts_tensor *b)
{
    ts_tensor *t[2] = {NULL, NULL};
    uint32_t k = below(d, FUNCTIONS);
    switch (below(d, 8)) {
    case 0: case 1:
        if (w->depth < DEPTH && w->functions[k])
            call_function(w, k, (ts_tensor *[]){a, b}, 2, t, 1);
        return t[0];
    case 2:
        if (!w->functions[k])
            make_function(w, d, k);
        return NULL;
    case 3:
        if (!w->running[k])
            free_function(w, k);
        return NULL;
    case 4: explain_all(w); return NULL;
    case 5: {
        ts_graph *graph = NULL;
        if (ts_trace(square_tanh, NULL, &a, 1, t, 1, &graph) == TS_OK)
            ts_replay(graph, &b, 1, &t[1], 1);
        ts_graph_free(graph);
        return t[1] ? t[1] : t[0];
    }
    case 6: return call_again(a);
    default: {
        pthread_t thread;
        if (pthread_create(&thread, NULL, call_plain, w) == 0)
            pthread_join(thread, NULL);
        return NULL;
    }
    }
}

/** Handles of tensors: kept, released and replaced ones, reads, writes, memory of the program. */
static ts_tensor *act_on_handles(world *w, draw *d, ts_tensor *a, ts_tensor *b)
{
    float buffer[8], *p;
    double value;
    uint32_t i = below(d, KEPT);
    switch (below(d, 12)) {
    case 0: case 1:
        if (release_kept(w, i, a, b))
            w->kept[i] = ts_retain(a);
        return NULL;
    case 2: release_kept(w, i, a, b); return NULL;
    case 3:
        ts_replaces(&w->kept[i]);
        if (release_kept(w, i, a, b))
            w->kept[i] = ts_retain(ts_add(a, b));
        return NULL;
    case 4: ts_item(ts_sum(a), &value); return NULL;
    case 5: (void)ts_data(a); return NULL;
    case 6:
        p = ts_dtype_of(a) == TS_F32 && !ts_requires_grad(a) ? ts_data_mut(a) : NULL;
        if (p && ts_numel(a))
            p[0] = 2;
        return NULL;
    case 7: ts_copy_to(a, buffer, sizeof buffer); return NULL;
    case 8: return ts_nonzero(ts_gt_scalar(a, ts_scalar_float(0.5)));
    case 9: return ts_index_select(a, 0, ts_arange(below(d, 90), 91, 1, TS_I64));
    case 10: {
        TS_NO_GRAD;
        ts_tensor *out = ts_add(a, b);
        return out ? ts_mul_out(out, a, b) : NULL;
    }
    default: {
        float *data = calloc(LENGTH, sizeof *data);
        ts_tensor *blob = ts_from_blob(data, TS_F32, TS_SIZES(LENGTH), on_delete, w);
        if (!blob)
            free(data);
        return blob;
    }
    }
}

/** Gradients, hooks, optimizers. */
static ts_tensor *act_on_gradients(world *w, draw *d, ts_tensor *a, ts_tensor *b)
{
    ts_tensor *leaf = w->leaves[below(d, LEAVES)], *t[1] = {NULL};
    switch (below(d, 10)) {
    case 0: ts_backward(ts_mean(ts_mul(ts_to(a, TS_F32), leaf))); return NULL;
    case 1: ts_zero_grad(leaf); return NULL;
    case 2: return ts_set_requires_grad(ts_detach(a), true);
    case 3: {
        TS_NO_GRAD;
        return ts_add_(leaf, ts_mul_scalar(ts_to(ts_mean(a), TS_F32), 0.01));
    }
    case 4: ts_register_hook(leaf, on_gradient, w, NULL); return NULL;
    case 5: ts_optimizer_step(w->optimizer); return NULL;
    case 6: ts_recompute(recomputed, w, (ts_tensor *[]){a, b}, 2, t, 1); return t[0];
    case 7:
        if (!ts_requires_grad(a))
            ts_set_grad(leaf, ts_expand(ts_to(ts_mean(a), TS_F32), TS_SIZES(LENGTH)));
        return NULL;
    case 8:
        if (ts_requires_grad(a))
            ts_grad_of(ts_mean(ts_to(ts_mul(a, a), TS_F32)), TS_NONE, &a, 1, t,
                       TS_OPTS(ts_backward_opts, .create_graph = below(d, 2)));
        return NULL;
    default: return ts_cross_entropy(ts_to(a, TS_F32), ts_argmax(b));
    }
}

/** State of the thread and of the library, declarations, failed allocations. */
static ts_tensor *act_on_state(world *w, draw *d, ts_tensor *a, ts_tensor *b)
{
    switch (below(d, 13)) {
    case 0: ts_manual_seed(below(d, 5)); return NULL;
    case 1: ts_number_from("mul", "other", &w->cell); return ts_mul_scalar(a, w->cell);
    case 2: w->cell += below(d, 2); return NULL;
    case 3: ts_depends_on(&w->flag, sizeof w->flag); return w->flag & 1 ? ts_exp(a) : NULL;
    case 4: w->flag += below(d, 2); return NULL;
    case 5: ts_counts_from("sgd", "steps", (int64_t *[]){&w->count}, 1); return ts_add_(a, b);
    case 6: ts_state_changed(); return NULL;
    case 7: ts_set_num_threads(1 + (int)below(d, 2)); return NULL;
    case 8: {
        TS_AUTOCAST(TS_DEVICE_CPU, TS_BF16);
        return ts_matmul(a, ts_transpose(b, 0, -1));
    }
    case 9:
        if (w->nscopes < (int)TS_COUNTOF(w->scopes))
            ts_scope_enter(&w->scopes[w->nscopes++], NULL);
        return NULL;
    case 10: ts_anomaly_enable(below(d, 2)); return NULL;
    case 11: ts_log_set_callback(below(d, 2) ? on_log : NULL, w); return NULL;
    default:
        if (w->faults && fault_after < 0) {
            fault_length = 1 + (int)below(d, 3) * 20;
            fault_after = (int)below(d, 60);
        }
        return NULL;
    }
}

static ts_tensor *compute(draw *d, ts_tensor *a, ts_tensor *b)
{
    uint32_t which = below(d, 1 << 16);
    switch (below(d, 10)) {
    case 0: case 1: return unary(a, which);
    case 2: case 3: return binary(a, b, which);
    case 4: return view(a, which, below(d, 6));
    case 5: return ts_softmax(a, -1);
    case 6: return ts_mean(a);
    case 7: return in_place(a, b, 0.5, which);
    case 8: return ts_dropout(a, 0.3, true);
    default: return number(a, 0.25, which);
    }
}

static ts_tensor *act(world *w, draw *d, ts_tensor *a, ts_tensor *b)
{
    if (below(d, 3 + 5 * w->calm))
        return compute(d, a, b);
    switch (below(d, 4)) {
    case 0: return act_on_functions(w, d, a, b);
    case 1: return act_on_handles(w, d, a, b);
    case 2: return act_on_gradients(w, d, a, b);
    default: return act_on_state(w, d, a, b);
    }
}

/* -------------------------------------------------------------------------- programs ---- */

/** A drawn tensor among those that a function can reach; NULL if it draws an empty place. */
static ts_tensor *any_tensor(const world *w, draw *d, ts_tensor *const *in, int n,
                             ts_tensor *const *local, int nlocal)
{
    uint32_t k = below(d, 10);
    ts_tensor *t = k < 3 || !nlocal ? in[below(d, (uint32_t)n)]
                   : k < 4          ? w->leaves[below(d, LEAVES)]
                   : k < 6          ? w->kept[below(d, KEPT)]
                                    : local[below(d, (uint32_t)nlocal)];
    return t == TS_NONE ? NULL : t;
}

/** The function of each compiled function: a drawn sequence of actions. */
static ts_status run_body(TRACED)
{
    const body *own = ctx;
    world *w = own->world;
    draw own_draw = {own->seed}, *d = below(&w->d, 4 + 40 * w->calm) ? &own_draw : &w->d;
    ts_tensor *local[LOCALS];
    int nlocal = 0, steps = 2 + (int)below(d, 24);
    bool fails = !below(d, 12 + 30 * w->calm), stops = !below(d, 3);
    for (int i = 0; i < steps; i++) {
        ts_tensor *a = any_tensor(w, d, in, n, local, nlocal),
                  *b = any_tensor(w, d, in, n, local, nlocal);
        if (!a || !b)
            continue;
        ts_tensor *g = below(d, 6) ? NULL : ts_grad(w->leaves[below(d, LEAVES)]),
                  *t = g ? compute(d, g, b) : act(w, d, a, b);
        if (!t && stops && ts_error_code() != TS_OK)
            return ts_error_code();
        if (t && t != TS_NONE && t != g && nlocal < LOCALS && !is_in(w->kept, KEPT, t))
            local[nlocal++] = t;
    }
    if (fails) /* with and without an error that describes it */
        return below(d, 2) ? TS_ERR_VALUE : ts_error_set(TS_ERR_STATE, "the function refuses");
    for (int i = 0; i < m; i++) {
        out[i] = any_tensor(w, d, in, n, local, nlocal);
        if (!out[i] && below(d, 6))
            out[i] = TS_NONE;
    }
    return TS_OK;
}

/** Draws 1 to 3 inputs; one may be a kept tensor, or share memory with another. */
static int draw_inputs(world *w, ts_tensor **in)
{
    static const int64_t lengths[] = {1, 3, 8, LENGTH, 96, 0};
    draw calm = {5}, *d = w->calm && below(&w->d, 20) ? &calm : &w->d;
    int n = 1 + (int)below(d, 3);
    int64_t rows = lengths[below(d, 20) ? 2 : below(d, 6)],
            columns = lengths[below(d, 6) ? 3 : below(d, 6)];
    for (int i = 0; i < n; i++) {
        ts_tensor *kept = w->kept[below(d, KEPT)];
        in[i] = kept && !below(&w->d, 8 + 20 * w->calm) ? kept
                : i && !below(d, 8)                     ? in[0]
                : i && !below(d, 6)                     ? ts_transpose(in[0], 0, -1)
                : !below(d, 8) ? ts_to(numbers(below(d, 9), &columns, 1), TS_BF16)
                               : numbers(below(d, 9), TS_SIZES(rows, columns));
        if (!in[i]) /* a kept tensor without values cannot be transposed */
            in[i] = TS_NONE;
    }
    return n;
}

/** Checks that a function that shares no state with the others has the results of calls. */
static void check_plain(ts_compiled *plain, uint64_t turn)
{
    TS_SCOPE;
    ts_tensor *x = numbers(turn, TS_SIZES(8, LENGTH)), *got, *want;
    OK(ts_compiled_call(plain, &x, 1, &got, 1));
    OK(square_tanh(NULL, &x, 1, &want, 1));
    ck_assert(same(got, want));
}

static world *begin_world(uint64_t seed, bool faults)
{
    world *w = calloc(1, sizeof *w);
    *w = (world){.d = {seed * 0x9e3779b97f4a7c15ull + 7}, .cell = 1.5, .faults = faults,
                 .out = fopen("/dev/null", "w")};
    ck_assert_ptr_nonnull(w->out);
    w->calm = below(&w->d, 4);
    for (uint64_t i = 0; i < LEAVES; i++)
        w->leaves[i] = ts_set_requires_grad(ts_retain(numbers(50 + i, TS_SIZES(LENGTH))), true);
    for (uint32_t k = 0; k < FUNCTIONS; k++) {
        w->bodies[k] = (body){w, below(&w->d, 1 << 30)};
        make_function(w, &w->d, k);
    }
    OK(w->plain = ts_compile(square_tanh, NULL, NULL));
    ts_group_opts group = ts_optimizer_defaults(TS_ADAMW, 0.01);
    OK(w->optimizer = ts_optimizer_new(TS_ADAMW));
    OK(ts_optimizer_add_group(w->optimizer, (const char *const[]){"a", "b"}, w->leaves, LEAVES,
                              &group));
    return w;
}

static void end_world(world *w)
{
    ts_log_set_callback(NULL, NULL);
    ts_anomaly_enable(false);
    for (uint32_t k = 0; k < FUNCTIONS; k++)
        free_function(w, k);
    ts_compiled_free(w->plain);
    ts_optimizer_free(w->optimizer);
    for (int i = 0; i < KEPT; i++)
        ts_release(w->kept[i]);
    for (int i = 0; i < LEAVES; i++) {
        ts_zero_grad(w->leaves[i]); /* a gradient may have a history that holds its leaf */
        ts_release(w->leaves[i]);
    }
    fclose(w->out);
    free(w);
}

/** Runs a drawn program; adds the numbers of its calls without an error, breaks and replays to
 *  sums. */
static void run_orders(uint64_t seed, bool faults, int64_t sums[3])
{
    TS_SCOPE;
    world *w = begin_world(seed, faults);
    for (uint64_t turn = 0; turn < ROUNDS; turn++) {
        TS_SCOPE;
        ts_tensor *in[3], *out[3];
        uint32_t k = below(&w->d, w->calm ? 2 : FUNCTIONS), m = w->calm ? 1 : below(&w->d, 4);
        int n = draw_inputs(w, in);
        if (w->functions[k] && call_function(w, k, in, n, out, (int)m) == TS_OK) {
            sums[0]++;
            for (uint32_t i = 0; i < m; i++)
                if (out[i] != TS_NONE)
                    (void)ts_data(out[i]);
        }
        fault_after = -1;
        ts_error_clear();
        check_plain(w->plain, turn);
    }
    for (int k = 0; k < FUNCTIONS; k++) {
        ts_compile_stats stats = ts_compiled_get_stats(w->functions[k]);
        sums[1] += stats.breaks;
        sums[2] += stats.skipped;
    }
    end_world(w);
}

TS_TEST(drawn_orders_of_calls_in_compiled_functions_crash_nothing, .loop = 2)
{
    uint64_t first = from_environment("TS_TEST_SEED", 1) + 40000 + (uint64_t)_i * 1000;
    int n = (int)from_environment("TS_TEST_PROGRAMS", PROGRAM_COUNT);
    int64_t sums[3] = {0};
    if (!blocks_from_malloc()) /* so that each allocation may fail, and none is kept */
        TS_SKIP(TOO_LATE);
    register_again();
    ts_alloc_fault = fault;
    for (int k = 0; k < n; k++) {
        int64_t before = ts_memory_get_stats().in_use;
        run_orders(first + (uint64_t)k, _i == 1, sums);
        ck_assert_msg(ts_memory_get_stats().in_use == before, "program %d leaks %lld bytes", k,
                      (long long)(ts_memory_get_stats().in_use - before));
    }
    ts_alloc_fault = NULL;
    ck_assert_int_gt(sums[0], n * ROUNDS / 4); /* most programs do something */
    if (n >= 20) {
        ck_assert_int_gt(sums[1], n / 2);
        ck_assert_int_gt(sums[2], n / 4);
    }
    ts_compiled_free(of_kernel);
}
