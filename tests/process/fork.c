/** @file fork.c  The process forks while other threads hold the library's locks. */
// SPDX-License-Identifier: MIT
#include "core/process.h"
#include "tests/harness.h"
#include "tests/process/children.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

static atomic_bool stop;

static void allocate(void)
{
    TS_SCOPE;
    for (int i = 0; i < 8; i++)
        ts_empty(TS_SIZES(100000 << i % 4), TS_F32);
}

static ts_status pass_on(ts_frame *f) { return ts_redispatch(f); }

static ts_key layer;

static void change_registry(void)
{
    ts_registration *r;
    if (ts_register_kernel("noop", layer, pass_on, NULL, &r) == TS_OK)
        ts_unregister(r);
}

static void compute(void)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(300, 300), TS_F32);
    ts_sum(ts_mm(ts_add(x, x), x));
}

static void list_timers(void)
{
    ts_timers_enable(true);
    compute();
    ts_timers_reset();
}

static ts_compiled *compiled;
static ts_status double_it(void *ctx, ts_tensor *const *in, int nin, ts_tensor **out, int nout)
{
    (void)ctx, (void)nin, (void)nout;
    return ts_status_of_pointer(out[0] = ts_add(in[0], in[0]));
}

static void call_compiled(void)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(16, 16), TS_F32), *y;
    ts_compiled_call(compiled, &x, 1, &y, 1);
}

static void end_threads(void);
static void (*const kinds[])(void) = {allocate,    change_registry, compute,
                                      list_timers, call_compiled,   end_threads};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void *add_once(void *unused)
{
    (void)unused;
    TS_SCOPE;
    ts_add(ts_ones(TS_SIZES(2), TS_F32), ts_ones(TS_SIZES(2), TS_F32));
    return NULL;
}

/** Starts and ends a thread, which takes and returns a heap and an entry in the list of threads. */
static void end_threads(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, add_once, NULL) == 0)
        pthread_join(thread, NULL);
}

static void *repeat(void *kind)
{
    while (!atomic_load(&stop))
        kinds[*(const int *)kind]();
    return NULL;
}

/** Uses everything that a thread of the parent may have locked at the fork. Exits with 0 if a
 *  computation is right afterwards. */
static void use_everything(int unused)
{
    (void)unused;
    double two = 0;
    for (int k = 0; k < KINDS; k++)
        kinds[k]();
    ts_tensor *one = ts_ones(TS_SIZES(1), TS_F32);
    if (ts_item(ts_add(one, one), &two) != TS_OK || two != 2)
        _exit(1);
    if (ts_error_code() != TS_OK)
        ts_error_print();
    _exit(ts_error_code() == TS_OK ? 0 : 2);
}

TS_TEST(a_child_finds_every_lock_free, .loop = KINDS)
{
    TS_NO_THREADS_AFTER_FORK;
    pthread_t threads[3];
    ck_assert_int_eq(ts_register_layer("FORK", "backends", &layer), TS_OK);
    compiled = ts_compile(double_it, NULL, TS_OPTS(ts_compile_opts, .replay = true));
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, repeat, &_i), 0);
    for (int turn = 0; turn < 40; turn++)
        ck_assert_int_eq(run_in_child(use_everything, 0), 0);
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(run_in_child(use_everything, 0), 0);
}

static void *multiply(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        TS_SCOPE;
        ts_tensor *x = ts_ones(TS_SIZES(300, 300), TS_F64);
        ts_mm(x, x);
    }
    return NULL;
}

static void end_at_once(int unused)
{
    (void)unused;
    alarm(3);
    exit(7);
}

TS_TEST(a_child_does_not_wait_at_exit_for_products_of_its_parents_threads)
{
    TS_NO_THREADS_AFTER_FORK;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, multiply, NULL), 0);
    for (int turn = 0; turn < 20; turn++) {
        usleep(3000);
        ck_assert_int_eq(run_in_child(end_at_once, 0), 7);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/** A graph over which threads of the parent run backward in a loop. */
static ts_tensor *leaf_of_graph, *root_of_graph;
static ts_hook *hook_of_graph;
static const ts_backward_opts keep = {.size = sizeof keep, .retain_graph = true};

static ts_tensor *take_long(void *unused, ts_tensor *g)
{
    (void)unused;
    usleep(300);
    return g;
}

static void *differentiate(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        TS_SCOPE;
        if (ts_backward_ex(root_of_graph, TS_NONE, &keep) != TS_OK)
            ts_error_print();
    }
    return NULL;
}

static void use_graph(int unused)
{
    (void)unused;
    ts_hook_remove(leaf_of_graph, hook_of_graph);
    if (ts_backward_ex(root_of_graph, TS_NONE, &keep) != TS_OK) {
        ts_error_print();
        _exit(1);
    }
    ts_zero_grad(leaf_of_graph);
    ts_tensor *g;
    double v;
    if (ts_grad_of(root_of_graph, TS_NONE, &leaf_of_graph, 1, &g, NULL) != TS_OK ||
        ts_item(ts_select(ts_flatten(g, 0, 1), 0, 0), &v) != TS_OK || v != 256) {
        ts_error_print();
        _exit(2);
    }
    ts_release(root_of_graph);
    ts_release(leaf_of_graph);
    _exit(0);
}

TS_TEST(a_child_runs_and_releases_a_graph_that_threads_of_its_parent_were_running)
{
    TS_NO_THREADS_AFTER_FORK;
    pthread_t threads[2];
    {
        TS_SCOPE;
        leaf_of_graph = ts_retain(ts_set_requires_grad(ts_ones(TS_SIZES(200, 200), TS_F32), true));
        ts_tensor *y = leaf_of_graph;
        for (int i = 0; i < 8; i++)
            y = ts_mul(y, y); /* x^256 */
        root_of_graph = ts_retain(ts_sum(y));
        ck_assert_int_eq(ts_register_hook(leaf_of_graph, take_long, NULL, &hook_of_graph), TS_OK);
    }
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, differentiate, NULL), 0);
    for (int turn = 0; turn < 60; turn++) {
        usleep(1000 + 37 * turn);
        ck_assert_int_eq(run_in_child(use_graph, 0), 0);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/* A function with its own backward, in which another thread may be at the fork. */
static ts_status square(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                        ts_tensor **out, int m)
{
    (void)ctx, (void)m;
    TS_TRY(out[0] = ts_mul(in[0], in[0]));
    return ts_function_save(call, in, n);
}

static ts_status square_backward(ts_function_call *call, void *ctx, ts_tensor *const *g, int m,
                                 ts_tensor **out, int n)
{
    (void)ctx, (void)m, (void)n;
    usleep(300);
    return TS_STATUS_OF(
        out[0] = ts_mul(g[0], ts_mul_scalar(ts_function_saved_tensor(call, 0), 2)));
}

static ts_status square_part(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    usleep(100);
    return TS_STATUS_OF(out[0] = ts_mul(in[0], in[0]));
}

static ts_status before_rule(void *unused, ts_node *node, ts_tensor **grads, int n)
{
    (void)unused, (void)node, (void)grads, (void)n;
    usleep(300);
    return TS_OK;
}

static ts_status after_rule(void *unused, ts_node *node, ts_tensor **given, int n,
                            ts_tensor *const *grads, int m)
{
    (void)unused, (void)node, (void)given, (void)n, (void)grads, (void)m;
    usleep(300);
    return TS_OK;
}

enum { PLACES = 5 };

/** x², computed so that a backward spends most of its time at `place`: a function, a hook and so
 *  on. */
static ts_tensor *square_in(int place, ts_tensor *x)
{
    static const ts_function f = {
        .size = sizeof f, .name = "square", .forward = square, .backward = square_backward};
    ts_tensor *y = NULL;
    if (place == 0)
        ck_assert_int_eq(ts_function_apply(&f, NULL, &x, 1, &y, 1), TS_OK);
    else if (place == 1)
        ck_assert_int_eq(ts_recompute(square_part, NULL, &x, 1, &y, 1), TS_OK);
    else
        y = ts_mul(x, x);
    if (place == 2)
        ck_assert_int_eq(ts_register_hook(y, take_long, NULL, NULL), TS_OK);
    if (place == 3)
        ck_assert_int_eq(ts_node_hook_before(ts_grad_node(y), before_rule, NULL, NULL), TS_OK);
    if (place == 4)
        ck_assert_int_eq(ts_node_hook_after(ts_grad_node(y), after_rule, NULL, NULL), TS_OK);
    return y;
}

/** Runs backward over the graph until it is freed. Exits with 0 if each gradient is right, and one
 *  more run is an error with a message. */
static void run_until_freed(int unused)
{
    (void)unused;
    TS_SCOPE;
    ts_tensor *g;
    double v;
    for (int run = 0; run < 3; run++) {
        ts_backward_opts opts = {.size = sizeof opts, .retain_graph = run == 0};
        ts_status status = ts_grad_of(root_of_graph, TS_NONE, &leaf_of_graph, 1, &g, &opts);
        if (run == 2 && status == TS_ERR_AUTOGRAD)
            _exit(strstr(ts_error_message(), "saved tensors are freed") ? 0 : 3);
        if (status != TS_OK || ts_item(ts_max(g), &v) != TS_OK || v != 16) {
            ts_error_print();
            _exit(run == 2 ? 2 : 1);
        }
    }
    _exit(4);
}

TS_TEST(a_child_runs_a_graph_whose_hooks_its_parents_threads_were_running, .loop = PLACES)
{
    TS_NO_THREADS_AFTER_FORK;
    pthread_t threads[2];
    {
        TS_SCOPE;
        leaf_of_graph = ts_retain(ts_set_requires_grad(ts_ones(TS_SIZES(30, 30), TS_F32), true));
        ts_tensor *y = leaf_of_graph;
        for (int i = 0; i < 4; i++)
            y = square_in(_i, y); /* x^16 */
        root_of_graph = ts_retain(ts_sum(y));
    }
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, differentiate, NULL), 0);
    for (int turn = 0; turn < 40; turn++) {
        usleep(1000 + 37 * turn);
        ck_assert_int_eq(run_in_child(run_until_freed, 0), 0);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

static ts_loader *loader;

/** Reads the next batch of the loader, whose first token must be `token`. */
static void read_batch(int token)
{
    ts_batch batch;
    double first = -1;
    if (ts_loader_next(loader, &batch) != TS_OK ||
        ts_item(ts_select(ts_flatten(batch.x, 0, 1), 0, 0), &first) != TS_OK)
        ts_error_print();
    ts_loader_close(loader);
    _exit(first == token ? 0 : 1);
}

TS_TEST(a_child_continues_with_the_loader_of_its_parent)
{
    TS_NO_THREADS_AFTER_FORK;
    char path[] = "/tmp/tessera-fork-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    uint8_t tokens[256];
    for (int i = 0; i < 256; i++)
        tokens[i] = (uint8_t)i;
    ck_assert_int_eq(write(fd, tokens, sizeof tokens), (int)sizeof tokens);
    close(fd);
    loader = ts_loader_open(path, TS_OPTS(ts_loader_opts, .batch = 1, .length = 4,
                                          .dtype = TS_U8, .in_order = true));
    unlink(path);
    ck_assert_msg(loader, "%s", ts_error_message());
    for (int turn = 0; turn < 40; turn++) {
        ts_batch batch;
        TS_SCOPE;
        ck_assert_int_eq(run_in_child(read_batch, 4 * turn), 0);
        ck_assert_int_eq(ts_loader_next(loader, &batch), TS_OK);
    }
    ts_loader_close(loader);
}

enum { MANY = 40 };
static pthread_mutex_t locks[MANY];
static atomic_int hooks_run, holds, released;

static void count_hook(void) { atomic_fetch_add(&hooks_run, 1); }

/** Holds a lock until a fork has begun to wait for it. */
static void *hold(void *lock)
{
    pthread_mutex_lock(lock);
    atomic_store(&holds, 1);
    usleep(50000);
    atomic_store(&released, 1);
    pthread_mutex_unlock(lock);
    return NULL;
}

static void find_free_locks(int unused)
{
    (void)unused;
    for (int i = 0; i < MANY; i++)
        if (pthread_mutex_trylock(&locks[i]) != 0)
            _exit(1);
    _exit(atomic_load(&hooks_run) == MANY ? 0 : 2);
}

/** The number of registered locks and hooks has no limit. */
TS_TEST(a_fork_holds_every_lock_and_runs_every_hook)
{
    static ts_guarded_lock guards[MANY];
    static ts_process_hook hooks[MANY];
    for (int i = 0; i < MANY; i++) {
        locks[i] = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
        for (int twice = 0; twice < 2; twice++) {
            ts_fork_add_lock(&guards[i], &locks[i]);
            ts_process_add_hook(&ts_in_child, &hooks[i], count_hook);
        }
    }
    for (int i = 0; i < MANY; i += MANY - 1) { /* the first lock and the last */
        pthread_t thread;
        atomic_store(&holds, 0);
        atomic_store(&released, 0);
        ck_assert_int_eq(pthread_create(&thread, NULL, hold, &locks[i]), 0);
        while (!atomic_load(&holds))
            usleep(100);
        ck_assert_int_eq(run_in_child(find_free_locks, 0), 0);
        ck_assert_int_eq(atomic_load(&released), 1);
        pthread_join(thread, NULL);
        ck_assert_int_eq(pthread_mutex_trylock(&locks[i]), 0);
        pthread_mutex_unlock(&locks[i]);
    }
}
