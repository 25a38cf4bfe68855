/**
 * @file onednn.c
 * oneDNN's convolutions against the library's, which run in deterministic mode: drawn shapes in all
 * layouts, threads, a full cache of plans, forked processes, and missing libraries.
 */
// SPDX-License-Identifier: MIT
#include "tests/expect.h"
#include "tests/harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/cpu/isa.h"
#include "core/tensor.h"

static int plans, missing; /* lines of the log */

static void note(void *payload, const char *topic, const char *line)
{
    (void)payload;
    if (strcmp(topic, "convolution") == 0) {
        plans += strstr(line, "oneDNN's") != NULL;
        missing += strstr(line, "no oneDNN") != NULL;
    }
}

/** Uses oneDNN for all calls that it supports, and counts plans. */
static void want_onednn(void)
{
    setenv("TS_CPU_CONV", "onednn", 1);
    ts_log_set_callback(note, NULL);
}

static void stop_counting(void) { ts_log_set_callback(NULL, NULL); }

/** A number from least to most; *state: of the generator, advanced. */
static int drawn(uint64_t *state, int least, int most)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return least + (int)((*state >> 33) % (uint64_t)(most - least + 1));
}

typedef struct shape {
    int64_t x[4], weight[4], features;
    ts_conv_opts opts;
    int layout; /* channels-last x (bit 0), weight (bit 1), gradient (bit 2) */
} shape;

static shape draw(uint64_t *state)
{
    static const int channels[] = {1, 2, 3, 4, 7, 8, 9, 12, 16, 17, 24, 32, 40, 48, 64, 100};
    int groups = drawn(state, 0, 2) ? 1 : drawn(state, 2, 40), most = groups > 1 ? 5 : 15;
    bool deep = groups > 6;
    int c = groups * (deep ? 1 : channels[drawn(state, 0, most)]);
    int o = groups * (deep ? 1 : channels[drawn(state, 0, most)]);
    shape s = {.x = {drawn(state, 1, 5), c}, .weight = {o, c / groups}, .features = o,
               .opts = {.size = sizeof(ts_conv_opts), .groups = groups},
               .layout = drawn(state, 0, 7)};
    for (int d = 0; d < 2; d++) {
        int k = drawn(state, 1, 5), every = drawn(state, 1, 2), reach = (k - 1) * every + 1;
        s.weight[2 + d] = k;
        s.opts.dilation[d] = every;
        s.opts.stride[d] = drawn(state, 0, 1) ? 1 : drawn(state, 2, 3);
        s.opts.padding[d] = drawn(state, 0, k - 1);
        int least = reach - 2 * (int)s.opts.padding[d];
        s.x[2 + d] = drawn(state, least > 1 ? least : 1, drawn(state, 0, 1) ? 40 : 12);
        if (s.x[2 + d] < least)
            s.x[2 + d] = least;
    }
    return s;
}

static ts_tensor *filled(const int64_t *sizes, uint64_t seed, bool last)
{
    ts_tensor *t = ts_empty(sizes, 4, TS_F32);
    OK(t);
    for (int64_t i = 0; i < t->numel; i++)
        ((float *)(void *)t->data)[i] = (float)drawn(&seed, -1000, 1000) / 512;
    return last ? ts_to_channels_last(t) : t;
}

/** y and the gradients of x and the weight. */
static void results_of(const shape *s, ts_tensor **results)
{
    ts_tensor *x = ts_set_requires_grad(filled(s->x, 1, s->layout & 1), true);
    ts_tensor *w = ts_set_requires_grad(filled(s->weight, 2, s->layout & 2), true);
    ts_tensor *b = ts_reshape(filled((int64_t[]){s->features, 1, 1, 1}, 3, false),
                              (int64_t[]){s->features}, 1);
    ts_tensor *y = ts_conv2d(x, w, b, &s->opts);
    OK(y);
    OK(ts_backward_ex(y, filled(y->sizes, 4, s->layout & 4), NULL));
    results[0] = y;
    results[1] = ts_grad(x);
    results[2] = ts_grad(w);
}

static void own_results_of(const shape *s, ts_tensor **results)
{
    OK(ts_set_deterministic(true));
    results_of(s, results);
    OK(ts_set_deterministic(false));
}

static double largest(ts_tensor *t)
{
    double value;
    OK(ts_item(ts_amax(ts_abs(t)), &value));
    return value;
}

/** True if the results are nearly equal; each is a sum of products in another order. */
static bool are_close(ts_tensor **a, ts_tensor **b)
{
    bool close = true;
    for (int i = 0; i < 3; i++)
        close = close && largest(ts_sub(a[i], b[i])) <= 2e-5 * (largest(b[i]) + 1e-3);
    return close;
}

static bool are_same(ts_tensor **a, ts_tensor **b)
{
    bool same = true;
    for (int i = 0; i < 3; i++)
        same = same && memcmp(ts_contiguous(a[i])->data, ts_contiguous(b[i])->data,
                              (size_t)a[i]->numel * sizeof(float)) == 0;
    return same;
}

static bool has_variant(void)
{
    if (ts_cpu_isa() != TS_ISA_BASELINE)
        return true;
    ts_test_note_skip("oneDNN runs with AVX2 or AVX-512");
    return false;
}

/** True if oneDNN is installed; it has then run a convolution. */
static bool has_onednn(void)
{
    TS_SCOPE;
    want_onednn();
    const shape s = {.x = {1, 16, 8, 8}, .weight = {16, 16, 3, 3}, .features = 16,
                     .opts = {.size = sizeof(ts_conv_opts)}};
    ts_tensor *results[3];
    if (!has_variant())
        return false;
    results_of(&s, results);
    if (missing) {
        ts_test_note_skip("oneDNN is not installed");
        return false;
    }
    ck_assert_int_gt(plans, 0);
    return true;
}

static uint64_t seed(void)
{
    const char *text = getenv("TS_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 1;
}

TS_TEST(drawn_shapes_equal_the_librarys, .teardown = stop_counting)
{
    if (!has_onednn())
        return;
    uint64_t state = seed();
    int before = plans;
    for (int i = 0; i < 200; i++) {
        TS_SCOPE;
        shape s = draw(&state);
        ts_tensor *own[3], *one[3], *more[3];
        own_results_of(&s, own);
        OK(ts_set_num_threads(1));
        results_of(&s, one);
        OK(ts_set_num_threads(drawn(&state, 2, 7)));
        results_of(&s, more);
        ck_assert_msg(are_close(one, own), "shape %d: results differ from the library's", i);
        ck_assert_msg(are_same(one, more), "shape %d: bits depend on the number of threads", i);
    }
    ck_assert_int_gt(plans - before, 100);
}

TS_TEST(old_plans_leave_a_full_cache, .teardown = stop_counting)
{
    if (!has_onednn())
        return;
    shape s = {.x = {1, 16, 6, 6}, .weight = {16, 16, 3, 3}, .features = 16,
               .opts = {.size = sizeof(ts_conv_opts)}};
    ts_tensor *first[3], *again[3];
    TS_SCOPE;
    results_of(&s, first);
    int before = plans;
    results_of(&s, again);
    ck_assert_int_eq(plans, before);
    for (int64_t width = 7; width < 110; width++) { /* three plans each */
        TS_SCOPE;
        ts_tensor *results[3];
        s.x[3] = width;
        results_of(&s, results);
    }
    s.x[3] = 6;
    before = plans;
    results_of(&s, again);
    ck_assert_int_gt(plans, before);
    ck_assert(are_same(first, again));
}

enum { THREADS = 4 };

static void *run_shapes(void *same)
{
    uint64_t state = 7;
    for (int i = 0; i < 20; i++) {
        TS_SCOPE;
        shape s = draw(&state);
        ts_tensor *a[3], *b[3];
        results_of(&s, a);
        results_of(&s, b);
        *(bool *)same = *(bool *)same && are_same(a, b);
    }
    return NULL;
}

TS_TEST(threads_share_plans, .teardown = stop_counting)
{
    if (!has_onednn())
        return;
    stop_counting();
    pthread_t threads[THREADS];
    bool same[THREADS];
    for (int i = 0; i < THREADS; i++) {
        same[i] = true;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_shapes, &same[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        ck_assert(same[i]);
}

TS_TEST(a_forked_process_uses_plans, .teardown = stop_counting)
{
    if (!has_onednn())
        return;
    TS_SCOPE;
    const shape s = {.x = {4, 32, 20, 20}, .weight = {32, 32, 3, 3}, .features = 32,
                     .opts = {.size = sizeof(ts_conv_opts), .padding = {1, 1}}};
    ts_tensor *want[3], *got[3];
    OK(ts_set_num_threads(3));
    results_of(&s, want);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (!child) {
        results_of(&s, got);
        _exit(are_same(want, got) ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    results_of(&s, got);
    ck_assert(are_same(want, got));
}

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* they map more than limits */
static bool limit_memory(rlim_t bytes)
{
    return setrlimit(RLIMIT_AS, &(struct rlimit){bytes, RLIM_INFINITY}) == 0;
}

/** Uses up the heap and limits the process to `more` bytes beyond it. */
static bool use_up_memory(int more)
{
    static const size_t blocks[] = {1 << 18, 1 << 12, 200, 24};
    long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1)
        return false;
    fclose(file);
    rlim_t used = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
    if (!limit_memory(used))
        return false;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        for (void *volatile block = &pages; block;) /* the process keeps the blocks */
            block = malloc(blocks[i]);
    return limit_memory(used + (rlim_t)more);
}

/** The exit code of a child with little memory: 0 if a convolution succeeds or is TS_ERR_MEMORY,
 *  and equals `want` as soon as there is memory. warm: its plan exists already. */
static int run_with_little_memory(ts_tensor *x, ts_tensor *weight, ts_tensor *want, bool warm,
                                  int more)
{
    const ts_conv_opts opts = {.size = sizeof opts, .padding = {1, 1}};
    TS_SCOPE;
    if (warm)
        ts_conv2d(x, weight, TS_NONE, &opts);
    if (!use_up_memory(more))
        return 1;
    ts_tensor *y = ts_conv2d(x, weight, TS_NONE, &opts);
    if (!y && ts_error_code() != TS_ERR_MEMORY)
        return 2;
    ts_error_clear();
    if (!limit_memory(RLIM_INFINITY) || !(y = ts_conv2d(x, weight, TS_NONE, &opts)))
        return 3;
    double most;
    return ts_item(ts_amax(ts_abs(ts_sub(y, want))), &most) == TS_OK && most < 1e-3 ? 0 : 4;
}

/* oneDNN itself would end the process. */
TS_TEST(a_convolution_without_memory_is_an_error, .teardown = stop_counting)
{
    if (!has_onednn())
        return;
    uint64_t state = seed();
    OK(ts_set_num_threads(1));
    for (int i = 0; i < 24; i++) {
        TS_SCOPE;
        const ts_conv_opts opts = {.size = sizeof opts, .padding = {1, 1}};
        int64_t side = drawn(&state, 12, 30);
        bool warm = drawn(&state, 0, 1);
        int more = drawn(&state, 0, 8) * drawn(&state, 0, 1 << 20), status;
        ts_tensor *x = ts_normal(TS_SIZES(2, 64, side, side), 0, 1, TS_F32),
                  *w = ts_normal(TS_SIZES(64, 64, 3, 3), 0, 1, TS_F32), *want;
        if (drawn(&state, 0, 1))
            x = ts_to_channels_last(x);
        OK(ts_set_deterministic(true));
        OK(want = ts_conv2d(x, w, TS_NONE, &opts));
        OK(ts_set_deterministic(false));
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (!child)
            _exit(run_with_little_memory(x, w, want, warm, more));
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0,
                      "status %d with %d bytes, warm %d", status, more, warm);
    }
}
#endif

TS_TEST(the_librarys_kernels_run_without_onednn, .loop = 3, .teardown = stop_counting)
{
    TS_SCOPE;
    static const char *const files[] = {"0", "/nowhere/libdnnl.so.2", "libm.so.6"};
    const shape s = {.x = {2, 32, 9, 9}, .weight = {32, 32, 3, 3}, .features = 32,
                     .opts = {.size = sizeof(ts_conv_opts)}};
    ts_tensor *want[3], *got[3];
    if (!has_variant())
        return;
    setenv("TS_ONEDNN", files[_i], 1);
    want_onednn();
    own_results_of(&s, want);
    ck_assert_int_eq(missing, 0); /* deterministic mode opens no library */
    results_of(&s, got);
    ck_assert_int_eq(missing, 1);
    ck_assert_int_eq(plans, 0);
    ck_assert(are_same(want, got));
    ck_assert_int_eq(ts_error_code(), TS_OK);
}

TS_TEST(a_variable_disables_onednn, .teardown = stop_counting)
{
    TS_SCOPE;
    const shape s = {.x = {2, 32, 9, 9}, .weight = {32, 32, 3, 3}, .features = 32,
                     .opts = {.size = sizeof(ts_conv_opts)}};
    ts_tensor *want[3], *got[3];
    want_onednn();
    setenv("TS_CPU_CONV", "own", 1);
    own_results_of(&s, want);
    results_of(&s, got);
    ck_assert_int_eq(missing + plans, 0);
    ck_assert(are_same(want, got));
}
