/** @file reenter.c  Hooks and functions that change hooks, drop tensors and run other graphs. */
// SPDX-License-Identifier: MIT
#include "tests/autograd/common.h"
#include "tests/threads.h"

#include <time.h>

static const ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};

/* ------------------------------------------------------------------------ drawn actions ---- */

enum { TENSORS = 12, HOOKS = 64, CALLS = 400 };

/** A graph and its hooks, and the generator (state) that draws the hooks' actions. */
typedef struct world {
    uint64_t state;
    ts_tensor *t[TENSORS]; /* retained; NULL when dropped */
    ts_node *node[TENSORS]; /* retained */
    struct {
        ts_hook *hook;
        int on;
    } hooks[HOOKS];
    int calls; /* number of hook calls that did something */
    int depth;
} world;

static int draw(world *w, int n)
{
    w->state = w->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((w->state >> 33) % (uint64_t)n);
}

static void act(world *w);

static ts_tensor *on_grad(void *w, ts_tensor *g)
{
    act(w);
    return draw(w, 4) ? g : ts_mul_scalar(g, 0.5);
}
static ts_status on_before(void *w, ts_node *node, ts_tensor **grads, int n)
{
    (void)node;
    act(w);
    for (int i = 0; i < n; i++)
        if (grads[i] != TS_NONE && !draw(w, 8))
            grads[i] = draw(w, 2) ? TS_NONE : ts_clone(grads[i]);
    return TS_OK;
}
static ts_status on_after(void *w, ts_node *node, ts_tensor **made, int n, ts_tensor *const *grads,
                          int m)
{
    (void)node, (void)made, (void)n;
    act(w);
    for (int i = 0; i < m; i++)
        if (grads[i] != TS_NONE)
            ck_assert_double_eq(value(grads[i]), value(grads[i])); /* still there, and no NaN */
    return TS_OK;
}

static void add_hook(world *w)
{
    int k = draw(w, HOOKS), on = draw(w, TENSORS);
    if (w->hooks[k].hook)
        return;
    w->hooks[k].on = on;
    switch (draw(w, 4)) {
    case 0:
        if (w->t[on])
            OK(ts_register_hook(w->t[on], on_grad, w, &w->hooks[k].hook));
        break;
    case 1: OK(ts_node_hook_before(w->node[on], on_before, w, &w->hooks[k].hook)); break;
    case 2: OK(ts_node_hook_after(w->node[on], on_after, w, &w->hooks[k].hook)); break;
    default:
        if (w->t[on])
            OK(ts_retain_grad(w->t[on]));
    }
}

static void remove_hook(world *w, int k)
{
    ts_hook *hook = w->hooks[k].hook;
    w->hooks[k].hook = NULL;
    if (hook)
        ts_node_hook_remove(w->node[w->hooks[k].on], hook);
}

static void act(world *w)
{
    if (++w->calls > CALLS)
        return;
    for (int n = draw(w, 4); n--;) {
        int i = draw(w, TENSORS);
        switch (draw(w, 8)) {
        case 0:
        case 1: add_hook(w); break;
        case 2:
        case 3: remove_hook(w, draw(w, HOOKS)); break;
        case 4:
            ts_release(w->t[i]);
            w->t[i] = NULL;
            break;
        case 5:
            if (w->t[i])
                ts_zero_grad(w->t[i]);
            break;
        case 6: { /* backward over another graph */
            TS_ENABLE_GRAD;
            ts_tensor *other = leaf(2);
            OK(ts_backward(ts_mul(other, other)));
            break;
        }
        default: /* the same graph from another node: an error at the running node */
            if (!w->t[i] || w->depth > 2)
                break;
            w->depth++;
            if (ts_backward_ex(w->t[i], TS_NONE, &retain) != TS_OK) {
                ck_assert_int_eq(ts_error_code(), TS_ERR_AUTOGRAD);
                SAYS("started a backward through it");
                ts_error_clear();
            }
            w->depth--;
        }
    }
}

TS_TEST(hooks_may_change_hooks_tensors_and_graphs, .loop = 4)
{
    for (uint64_t seed = 1; seed <= 100; seed++) {
        world w = {.state = seed * 4 + (uint64_t)_i};
        TS_SCOPE;
        {
            TS_SCOPE;
            for (int i = 0; i < TENSORS; i++) {
                ts_tensor *a = i < 3 ? NULL : w.t[draw(&w, i)], *b = a ? w.t[draw(&w, i)] : NULL;
                ts_tensor *t = !a ? leaf(1) : draw(&w, 2) ? ts_mul(a, b) : ts_add(a, b);
                w.t[i] = ts_retain(t);
                w.node[i] = ts_node_retain(ts_grad_node(t));
            }
            for (int i = 0; i < HOOKS / 2; i++)
                add_hook(&w);
        }
        for (int round = 0; round < 4 && w.t[TENSORS - 1]; round++) {
            w.calls = 0;
            OK(ts_backward_ex(w.t[TENSORS - 1], TS_NONE, &retain));
        }
        for (int k = 0; k < HOOKS; k++)
            remove_hook(&w, k);
        for (int i = 0; i < TENSORS; i++) {
            ts_release(w.t[i]);
            ts_node_release(w.node[i]);
        }
    }
}

/* ------------------------------------------------------------------------- single cases ---- */

static ts_tensor *add_another(void *payload, ts_tensor *g)
{
    void **p = payload; /* a tensor, the number of calls */
    ++*(int *)p[1];
    OK(ts_register_hook(p[0], add_another, payload, NULL));
    return g;
}

TS_TEST(a_hook_added_in_a_run_runs_from_the_next_run_on)
{
    TS_SCOPE;
    int calls = 0;
    ts_tensor *x = leaf(3);
    void *p[] = {x, &calls};
    OK(ts_register_hook(x, add_another, p, NULL));
    for (int n = 1; n <= 3; n++) { /* a hook added in a run runs from the next run on */
        OK(ts_backward(ts_mul(x, x)));
        ck_assert_int_eq(calls, (1 << n) - 1);
    }
}

static ts_tensor *replace_itself(void *payload, ts_tensor *g)
{
    void **p = payload; /* a tensor, its hook */
    ts_hook_remove(p[0], p[1]);
    OK(ts_register_hook(p[0], replace_itself, payload, (ts_hook **)&p[1]));
    return g;
}

TS_TEST(hooks_that_are_removed_while_they_run_leak_no_memory)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3);
    void *p[] = {x, NULL};
    OK(ts_register_hook(x, replace_itself, p, (ts_hook **)&p[1]));
    int64_t before = 0;
    for (int i = 0; i < 1000; i++) {
        if (i == 10)
            before = ts_memory_get_stats().in_use;
        TS_SCOPE;
        OK(ts_backward(ts_mul(x, x)));
    }
    ck_assert_int_eq(ts_memory_get_stats().in_use, before);
}

static ts_status end_leaf(void *payload, ts_node *node, ts_tensor **made, int n,
                          ts_tensor *const *grads, int m)
{
    (void)node, (void)made, (void)n, (void)m;
    ts_tensor **x = payload;
    ts_release(*x);
    *x = NULL;
    ck_assert_double_eq(value(grads[0]), 6); /* also if another hook freed the gradient's tensor */
    return TS_OK;
}

TS_TEST(hooks_after_a_leaf_may_release_it)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *y;
    OK(y = ts_mul(x, x));
    x = ts_retain(x);
    ts_drop(x);
    for (int i = 0; i < 2; i++)
        OK(ts_node_hook_after(ts_grad_node(x), end_leaf, &x, NULL));
    ts_node *node = ts_node_retain(ts_grad_node(x));
    ts_keep(y);
    OK(ts_backward_ex(y, TS_NONE, &retain));
    ts_node_release(node);
}

/* ------------------------------------------------------------------------------ threads ---- */

/** Thread i runs a backward over graphs[i]; from a hook or function of it, a nested backward over
 *  graphs[1 - i]. */
static ts_tensor *graphs[2];
static pthread_barrier_t both_inside;
static _Thread_local bool nested;

static bool run_the_other(int mine)
{
    if (nested)
        return true;
    pthread_barrier_wait(&both_inside);
    nested = true;
    bool good = ts_backward_ex(graphs[1 - mine], TS_NONE, &retain) == TS_OK;
    nested = false;
    return good;
}

static ts_tensor *cross_grad(void *mine, ts_tensor *g)
{
    return run_the_other(*(int *)mine) ? g : NULL;
}
static ts_status cross_before(void *mine, ts_node *node, ts_tensor **grads, int n)
{
    (void)node, (void)grads, (void)n;
    return run_the_other(*(int *)mine) ? TS_OK : TS_ERR_STATE;
}
static ts_status cross_after(void *mine, ts_node *node, ts_tensor **in, int n,
                             ts_tensor *const *out, int m)
{
    (void)node, (void)in, (void)n, (void)out, (void)m;
    return run_the_other(*(int *)mine) ? TS_OK : TS_ERR_STATE;
}
static ts_status square(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                        ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    out[0] = ts_mul(in[0], in[0]);
    return ts_function_save(call, in, 1);
}
static ts_status cross_back(ts_function_call *call, void *mine, ts_tensor *const *g, int m,
                            ts_tensor **out, int n)
{
    (void)m, (void)n;
    if (!run_the_other(*(int *)mine))
        return TS_ERR_STATE;
    out[0] = ts_mul_scalar(ts_mul(g[0], ts_function_saved_tensor(call, 0)), 2);
    return TS_STATUS_OF(out[0]);
}
static bool forward_is_done;
static ts_status cross_part(void *mine, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    if (forward_is_done && !run_the_other(*(int *)mine))
        return TS_ERR_STATE;
    out[0] = ts_mul(in[0], in[0]);
    return TS_STATUS_OF(out[0]);
}

static bool run_mine(int number, void *unused)
{
    (void)unused;
    return ts_backward_ex(graphs[number], TS_NONE, &retain) == TS_OK;
}

TS_TEST(graphs_whose_user_code_runs_each_other_do_not_deadlock, .loop = 6,
        .threads = true, .timeout = 60)
{
    static int number[] = {0, 1};
    forward_is_done = false;
    TS_SCOPE;
    ts_function f = {
        .size = sizeof f, .name = "square", .forward = square, .backward = cross_back};
    ts_tensor *x[2];
    for (int i = 0; i < 2; i++) {
        ts_tensor *y = x[i] = leaf(3);
        if (_i == 4)
            OK(ts_function_apply(&f, &number[i], &y, 1, &y, 1));
        else if (_i == 5)
            OK(ts_recompute(cross_part, &number[i], &y, 1, &y, 1));
        else
            OK(y = ts_mul(y, y));
        graphs[i] = y;
        if (_i == 0)
            OK(ts_register_hook(y, cross_grad, &number[i], NULL));
        if (_i == 1)
            OK(ts_register_hook(x[i], cross_grad, &number[i], NULL));
        if (_i == 2)
            OK(ts_node_hook_before(ts_grad_node(y), cross_before, &number[i], NULL));
        if (_i == 3)
            OK(ts_node_hook_after(ts_grad_node(y), cross_after, &number[i], NULL));
    }
    forward_is_done = true;
    ck_assert_int_eq(pthread_barrier_init(&both_inside, NULL, 2), 0);
    ck_assert_int_eq(ts_together(2, run_mine, NULL), 2);
    for (int i = 0; i < 2; i++) /* once by each thread */
        ck_assert_double_eq(value(ts_grad(x[i])), 2 * 6);
}

static atomic_int hook_state; /* 1: the hook runs, 2: it has returned */
static ts_tensor *take_long(void *payload, ts_tensor *g)
{
    (void)payload;
    hook_state = 1;
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    hook_state = 2;
    return g;
}

static bool run_or_remove(int number, void *ctx)
{
    void **p = ctx; /* leaf, root, hook */
    if (number == 0)
        return ts_backward(p[1]) == TS_OK;
    while (hook_state == 0)
        nanosleep(&(struct timespec){0, 1000}, NULL);
    ts_hook_remove(p[0], p[2]);
    return hook_state == 2;
}

TS_TEST(a_removed_hook_runs_in_no_thread, .threads = true)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3);
    ts_hook *hook;
    OK(ts_register_hook(x, take_long, NULL, &hook));
    void *p[] = {x, ts_mul(x, x), hook};
    ck_assert_int_eq(ts_together(2, run_or_remove, p), 2);
}

/* ----------------------------------------------------------- code that never returns ---- */

enum {
    IN_GRAD_HOOK,
    IN_LEAF_HOOK,
    IN_PRE_HOOK,
    IN_POST_HOOK,
    IN_BACKWARD,
    IN_PART,
    IN_LIST,
    PLACES
};
static int leaves_in; /* callback in which the thread ends; -1: none */
static ts_status leave(int place)
{
    if (leaves_in == place)
        pthread_exit(NULL); /* unwinds the stack as an exception does */
    return TS_OK;
}
static ts_tensor *leave_grad(void *place, ts_tensor *g)
{
    leave(*(int *)place);
    return g;
}
static ts_status leave_before(void *ctx, ts_node *node, ts_tensor **grads, int n)
{
    (void)ctx, (void)node, (void)grads, (void)n;
    return leave(IN_PRE_HOOK);
}
static ts_status leave_after(void *ctx, ts_node *node, ts_tensor **in, int n, ts_tensor *const *out,
                             int m)
{
    (void)ctx, (void)node, (void)in, (void)n, (void)out, (void)m;
    return leave(IN_POST_HOOK);
}
static ts_status leave_back(ts_function_call *call, void *ctx, ts_tensor *const *g, int m,
                            ts_tensor **out, int n)
{
    (void)ctx, (void)m, (void)n;
    TS_TRY(leave(IN_BACKWARD));
    out[0] = ts_mul_scalar(ts_mul(g[0], ts_function_saved_tensor(call, 0)), 2);
    return TS_STATUS_OF(out[0]);
}
static ts_status leave_part(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    TS_TRY(leave(IN_PART));
    out[0] = ts_mul(in[0], in[0]);
    return TS_STATUS_OF(out[0]);
}

static void *run_and_leave(void *root)
{
    ts_backward_ex(root, TS_NONE, &retain);
    return NULL;
}

TS_TEST(a_thread_that_exits_in_user_code_leaks_nothing, .loop = PLACES)
{
    static int at[] = {IN_GRAD_HOOK, IN_LEAF_HOOK, IN_LIST};
    ts_function f = {
        .size = sizeof f, .name = "square", .forward = square, .backward = leave_back};
    TS_SCOPE;
    leaves_in = -1;
    ts_tensor *x = leaf(3), *y, *many[20];
    OK(ts_function_apply(&f, NULL, &x, 1, &y, 1));
    OK(ts_recompute(leave_part, NULL, &y, 1, &y, 1));
    OK(ts_register_hook(y, leave_grad, &at[0], NULL));
    OK(ts_register_hook(x, leave_grad, &at[1], NULL));
    OK(ts_node_hook_before(ts_grad_node(y), leave_before, NULL, NULL));
    OK(ts_node_hook_after(ts_grad_node(y), leave_after, NULL, NULL));
    for (int i = 0; i < 20; i++)
        OK(many[i] = ts_mul_scalar(y, 1));
    OK(ts_register_hook(many[7], leave_grad, &at[2], NULL));
    OK(y = ts_sum(ts_stack(many, 20, 0)));
    leaves_in = _i;
    int64_t before = 0;
    for (int i = 0; i < 40; i++) {
        pthread_t thread;
        if (i == 10)
            before = ts_memory_get_stats().in_use;
        ck_assert_int_eq(pthread_create(&thread, NULL, run_and_leave, y), 0);
        pthread_join(thread, NULL);
    }
    ck_assert_int_eq(ts_memory_get_stats().in_use, before);
    ck_assert_ptr_eq(ts_grad(x), TS_NONE);
    leaves_in = -1;
    OK(ts_backward(y)); /* no node is locked */
    ck_assert_double_eq(value(ts_grad(x)), 20 * 4 * 27);
}

/* ------------------------------------------------------------------------ open scopes ------ */

/** Returns a result that belongs to a scope that the function leaves open: the end of the scope
 *  would release it. */
static ts_tensor *in_open_scope(ts_tensor *x)
{
    static ts_scope open;
    ts_scope_enter(&open, "here.c:1");
    ts_grad_push(false);
    return ts_mul_scalar(x, 2);
}
static ts_status open_part(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    out[0] = in_open_scope(in[0]);
    return TS_OK;
}
static ts_status double_it(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                           ts_tensor **out, int m)
{
    (void)call, (void)ctx, (void)n, (void)m;
    out[0] = ts_mul_scalar(in[0], 2);
    return TS_OK;
}
static ts_status double_it_in_open_scope(ts_function_call *call, void *ctx, ts_tensor *const *in,
                                         int n, ts_tensor **out, int m)
{
    (void)call;
    return open_part(ctx, in, n, out, m);
}
static ts_tensor *open_hook(void *payload, ts_tensor *g) { (void)payload; return in_open_scope(g); }

TS_TEST(a_callback_that_leaves_a_scope_open_is_an_error_and_its_scope_ends)
{
    TS_SCOPE;
    ts_tensor *x = ts_set_requires_grad(ts_full(TS_SIZES(3), ts_scalar_float(1), TS_F64), true), *y;
    const ts_function forward = {.size = sizeof forward, .name = "f",
                                 .forward = double_it_in_open_scope, .backward = double_it},
                      backward = {.size = sizeof backward, .name = "f",
                                  .forward = double_it, .backward = double_it_in_open_scope};
    ts_graph *graph = NULL;
    FAILS(TS_ERR_STATE, ts_recompute(open_part, NULL, &x, 1, &y, 1));
    SAYS("the function did not leave the scope that it entered at here.c:1");
    FAILS(TS_ERR_STATE, ts_trace(open_part, NULL, &x, 1, &y, 1, &graph));
    SAYS("here.c:1");
    FAILS(TS_ERR_STATE, ts_function_apply(&forward, NULL, &x, 1, &y, 1));
    SAYS("forward did not leave");
    OK(ts_function_apply(&backward, NULL, &x, 1, &y, 1));
    FAILS(TS_ERR_STATE, ts_backward(ts_sum(y)));
    SAYS("backward did not leave");
    y = ts_mul_scalar(x, 3);
    OK(ts_register_hook(y, open_hook, NULL, NULL));
    FAILS(TS_ERR_STATE, ts_backward(ts_sum(y)));
    SAYS("a hook did not leave");
    ck_assert(ts_grad_enabled());
    y = ts_mul_scalar(x, 3);
    OK(ts_backward(ts_sum(y))); /* in the scope of the test */
    ck_assert_double_eq(value(ts_sum(ts_grad(x))), 9);
    ts_graph_free(graph);
}
