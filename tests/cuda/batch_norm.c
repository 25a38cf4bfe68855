/** @file batch_norm.c  Batch norm and cross entropy of images on CUDA, of drawn sizes, layouts and
 * dtypes, compared with the CPU in f64. TS_TEST_SEED is the seed of the draws. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

#include <math.h>

static uint64_t state;

/** A random integer from low to high, both included. */
static int64_t drawn(int64_t low, int64_t high)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return low + (int64_t)((state >> 33) % (uint64_t)(high - low + 1));
}

static void seed(void)
{
    const char *text = getenv("TS_TEST_SEED");
    state = text ? strtoull(text, NULL, 10) : 1;
    ts_manual_seed(state);
}

/** Sizes of an image of at most `most` elements. */
static void draw_sizes(int64_t sizes[4], int64_t most, int64_t channels)
{
    sizes[1] = channels;
    for (int d = 0; d < 4; d += d ? 1 : 2) {
        int64_t rest = most / (sizes[1] * (d > 0 ? sizes[0] : 1) * (d > 2 ? sizes[2] : 1));
        int64_t top = d ? 300 : 8;
        sizes[d] = drawn(1, rest < 1 ? 1 : rest < top ? rest : top);
    }
}

/** Random numbers that dtype represents exactly, as f64, with another mean per channel. */
static ts_tensor *numbers(const int64_t *sizes, ts_dtype dtype, bool last, double mean)
{
    ts_tensor *t = ts_normal(sizes, 4, 0, 1, TS_F32),
              *shift = ts_normal(TS_SIZES(1, sizes[1], 1, 1), 0, mean, TS_F32);
    t = ts_to(ts_to(ts_add(t, shift), dtype), TS_F64);
    return last ? ts_movedim(ts_contiguous(ts_movedim(t, 1, -1)), -1, 1) : t;
}

static ts_tensor *on(ts_tensor *t, ts_dtype dtype, ts_device device)
{
    return t == TS_NONE ? t : ts_to_device(ts_to(t, dtype), device);
}

static double largest(ts_tensor *t)
{
    double x = 0;
    OK(ts_item(ts_amax(ts_abs(ts_to(ts_to_device(t, TS_DEVICE_CPU), TS_F64))), &x));
    return x;
}

/** Fails if an element of got differs from want (f64, CPU) by more than `error`, except where
 *  `masked` (f64) is 1; NULL: nowhere. */
static void compare(ts_tensor *got, ts_tensor *want, ts_tensor *masked, double error,
                    const char *what, const char *call)
{
    ts_tensor *d = ts_sub(ts_to(ts_to_device(got, TS_DEVICE_CPU), TS_F64), want);
    double off = largest(masked ? ts_mul(d, ts_add_scalar(ts_neg(masked), 1)) : d);
    ck_assert_msg(off <= error, "%s of %s: off by %g, expected at most %g", what, call, off, error);
}

static double eps_of(ts_dtype dtype)
{
    return dtype == TS_F64 ? 0x1p-52 : dtype == TS_F32 ? 0x1p-23 : dtype == TS_BF16 ? 0x1p-8
                                                                                    : 0x1p-11;
}

/** A batch norm with its gradients on a device, all in f64 on the CPU or in the call's dtypes. */
typedef struct norm {
    ts_tensor *x, *g, *weight, *bias, *mean, *var, *y;
    bool relu, training;
} norm;

static void run(norm *n)
{
    for (ts_tensor **t = &n->x; t <= &n->bias; t++)
        if (t != &n->g && *t != TS_NONE)
            *t = ts_set_requires_grad(ts_detach(*t), true);
    n->y = (n->relu ? ts_batch_norm_relu : ts_batch_norm)(n->x, n->mean, n->var, n->weight, n->bias,
                                                          n->training, 1, 1e-5);
    OK(n->y);
    OK(ts_backward(ts_sum(ts_mul(n->y, n->g))));
}

TS_TEST(batch_norms_of_drawn_images_equal_the_cpu_s, .loop = 3, .timeout = 300)
{
    static const ts_dtype dtypes[] = {TS_BF16, TS_F32, TS_F16, TS_BF16, TS_F64};
    GPU(device);
    seed();
    state += (uint64_t)_i * 1000003;
    for (int turn = 0; turn < 24; turn++) {
        TS_SCOPE;
        int64_t sizes[4], channels = drawn(0, 2) ? 8 * drawn(1, turn % 2 ? 12 : 80) : drawn(1, 90);
        draw_sizes(sizes, (int64_t)1 << (turn % 3 ? 19 : 21), channels);
        int64_t count = sizes[0] * sizes[2] * sizes[3];
        ts_dtype dtype = dtypes[drawn(0, 4)], wide = dtype == TS_F64 ? TS_F64 : TS_F32;
        bool last = drawn(0, 3) > 0, given = drawn(0, 4) > 0;
        if (count < 2)
            continue;
        const int64_t one[] = {channels};
        norm cpu = {.x = numbers(sizes, dtype, last, 3), .g = numbers(sizes, dtype, last, 0.3),
                    .weight = given ? ts_to(ts_uniform(one, 1, 0.5, 2, TS_F32), TS_F64) : TS_NONE,
                    .bias = given ? ts_to(ts_normal(one, 1, 0, 1, TS_F32), TS_F64) : TS_NONE,
                    .mean = ts_zeros(one, 1, TS_F64), .var = ts_ones(one, 1, TS_F64),
                    .relu = drawn(0, 1), .training = drawn(0, 4) > 0};
        norm gpu = {.x = on(cpu.x, dtype, device), .g = on(cpu.g, dtype, device),
                    .weight = on(cpu.weight, wide, device), .bias = on(cpu.bias, wide, device),
                    .mean = on(cpu.mean, wide, device), .var = on(cpu.var, wide, device),
                    .relu = cpu.relu, .training = cpu.training};
        char call[200];
        snprintf(call, sizeof call, "(%lld, %lld, %lld, %lld) %s%s%s%s", (long long)sizes[0],
                 (long long)sizes[1], (long long)sizes[2], (long long)sizes[3],
                 ts_dtype_name(dtype), last ? ", channels-last" : "", cpu.relu ? ", relu" : "",
                 cpu.training ? "" : ", given statistics");
        run(&cpu);
        run(&gpu);
        double eps = eps_of(dtype), single = eps_of(wide), top = largest(cpu.x) + 1;
        /* where y is almost 0, rounding decides whether relu passes the gradient */
        ts_tensor *close = NULL;
        if (cpu.relu) {
            ts_tensor *before = ts_batch_norm(ts_detach(cpu.x), cpu.training ? TS_NONE : cpu.mean,
                                              cpu.training ? TS_NONE : cpu.var,
                                              ts_detach(cpu.weight), ts_detach(cpu.bias),
                                              cpu.training, 1, 1e-5);
            close = ts_to(ts_lt_scalar(ts_abs(before), 1e-5 * top), TS_F64);
        }
        double rare = close ? 1 + 4 * largest(ts_sum_dims(close, (int64_t[]){0, 2, 3}, 3, false))
                            : 1;
        compare(gpu.y, cpu.y, NULL, (eps + 64 * single) * (largest(cpu.y) + top), "result", call);
        if (cpu.training) {
            compare(gpu.mean, cpu.mean, NULL, 16 * single * top, "mean", call);
            compare(gpu.var, cpu.var, NULL, 64 * single * top * top, "variance", call);
        }
        double slope = largest(ts_grad(cpu.x)) + 1, g_top = largest(cpu.g);
        compare(ts_grad(gpu.x), ts_grad(cpu.x), close,
                (eps + 256 * single) * slope + (rare - 1) * g_top * top / (double)count,
                "gradient of self", call);
        for (int k = 0; k < 2 && given; k++)
            compare(ts_grad((&gpu.weight)[k]), ts_grad((&cpu.weight)[k]), NULL,
                    64 * single * (double)count + (rare - 1) * g_top * top,
                    k ? "gradient of bias" : "gradient of weight", call);
    }
}

TS_TEST(group_norms_of_drawn_images_equal_the_cpu_s, .loop = 3, .timeout = 300)
{
    static const ts_dtype dtypes[] = {TS_BF16, TS_F32, TS_F16, TS_BF16, TS_F64};
    GPU(device);
    seed();
    state += (uint64_t)_i * 1000033;
    for (int turn = 0; turn < 40; turn++) {
        TS_SCOPE;
        int64_t sizes[4], width = drawn(1, 12), groups = drawn(1, turn % 2 ? 6 : 40);
        draw_sizes(sizes, (int64_t)1 << (turn % 3 ? 17 : 21), width * groups);
        if (drawn(0, 2) == 0)
            sizes[0] *= drawn(1, 20);
        int64_t pixels = sizes[0] * sizes[2] * sizes[3], count = width * sizes[2] * sizes[3];
        ts_dtype dtype = dtypes[drawn(0, 4)], wide = dtype == TS_F64 ? TS_F64 : TS_F32;
        bool last = drawn(0, 1), given = drawn(0, 4) > 0;
        if (count < 4)
            continue;
        const int64_t one[] = {sizes[1]};
        norm n[2] = {{.x = numbers(sizes, dtype, last, 3), .g = numbers(sizes, dtype, last, 0.3),
                      .weight = given ? ts_to(ts_uniform(one, 1, 0.5, 2, TS_F32), TS_F64) : TS_NONE,
                      .bias = given ? ts_to(ts_normal(one, 1, 0, 1, TS_F32), TS_F64) : TS_NONE}};
        n[1] = (norm){.x = on(n[0].x, dtype, device), .g = on(n[0].g, dtype, device),
                      .weight = on(n[0].weight, wide, device), .bias = on(n[0].bias, wide, device)};
        char call[200];
        snprintf(call, sizeof call, "group norm (%lld, %lld, %lld, %lld), %lld groups, %s%s",
                 (long long)sizes[0], (long long)sizes[1], (long long)sizes[2],
                 (long long)sizes[3], (long long)groups, ts_dtype_name(dtype),
                 last ? ", channels-last" : "");
        for (int k = 0; k < 2; k++) {
            for (ts_tensor **t = &n[k].x; t <= &n[k].bias; t++)
                if (t != &n[k].g && *t != TS_NONE)
                    *t = ts_set_requires_grad(ts_detach(*t), true);
            n[k].y = ts_group_norm(n[k].x, groups, n[k].weight, n[k].bias, 0.1);
            OK(n[k].y);
            OK(ts_backward(ts_sum(ts_mul(n[k].y, n[k].g))));
        }
        double eps = eps_of(dtype), single = eps_of(wide), top = largest(n[0].x) + 1,
               slope = largest(ts_grad(n[0].x)) + 1;
        compare(n[1].y, n[0].y, NULL, (eps + 64 * single) * (largest(n[0].y) + top), "result",
                call);
        compare(ts_grad(n[1].x), ts_grad(n[0].x), NULL, (eps + 256 * single) * slope,
                "gradient of self", call);
        for (int k = 0; k < 2 && given; k++)
            compare(ts_grad((&n[1].weight)[k]), ts_grad((&n[0].weight)[k]), NULL,
                    64 * single * (double)pixels, k ? "gradient of bias" : "gradient of weight",
                    call);
    }
}

TS_TEST(cross_entropy_of_drawn_images_equals_the_cpu_s, .timeout = 300)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16};
    GPU(device);
    seed();
    for (int turn = 0; turn < 30; turn++) {
        TS_SCOPE;
        int64_t sizes[4];
        draw_sizes(sizes, 1 << (turn % 4 ? 16 : 20), drawn(0, 1) ? drawn(1, 9) : drawn(2, 200));
        ts_dtype dtype = dtypes[drawn(0, 2)];
        bool last = drawn(0, 1);
        ts_tensor *x = ts_mul_scalar(numbers(sizes, dtype, last, 3), turn % 5 ? 1 : 1e4),
                  *goal = ts_randint(TS_SIZES(sizes[0], sizes[2], sizes[3]), 0, sizes[1]),
                  *here = ts_set_requires_grad(ts_to(ts_to(x, dtype), TS_F64), true),
                  *there = ts_set_requires_grad(on(ts_detach(here), dtype, device), true);
        ts_tensor *loss = ts_cross_entropy(here, goal),
                  *other = ts_cross_entropy(there, ts_to_device(goal, device));
        OK(ts_backward(loss));
        OK(ts_backward(other));
        double eps = eps_of(dtype), value = largest(loss),
               step = 1 / (double)(sizes[0] * sizes[2] * sizes[3]);
        char call[100];
        snprintf(call, sizeof call, "cross entropy (%lld, %lld, %lld, %lld) %s%s",
                 (long long)sizes[0], (long long)sizes[1], (long long)sizes[2],
                 (long long)sizes[3], ts_dtype_name(dtype), last ? ", channels-last" : "");
        compare(other, loss, NULL, 16 * (eps + 0x1p-23) * (value + 1), "loss", call);
        compare(ts_grad(there), ts_grad(here), NULL,
                (2 * eps + 0x1p-18 * (dtype == TS_F64 ? 0x1p-29 : 1) * (1 + largest(x) / 32)) *
                    step,
                "gradient", call);
    }
}
