/** @file groups.c  Tests of groups, on the CPU and on a mock device that runs groups. */
// SPDX-License-Identifier: MIT
#include "compile/testing.h"
#include "tests/compile/explains.h"
#include "tests/compile/whole.h"

#include <math.h>

#define POINTWISE(name, formula)                                                                   \
    FORMULA(name, formula)                                                                         \
    static ts_status name(ts_frame *f) { return pointwise(f, run_##name); }
POINTWISE(add, x + y)
POINTWISE(mul, x * y)
POINTWISE(relu, x > 0 ? x : 0)
POINTWISE(neg, -x)

/** A kernel that no group can contain, because it refuses to describe its loop. */
static ts_status square(ts_frame *f)
{
    task t = {.run = run_mul};
    TS_TRY(ts_kernel_space(f, &t.space));
    t.space.operand[2] = t.space.operand[1];
    t.space.operands = 3;
    if (described)
        return ts_error_set(TS_ERR_UNSUPPORTED, "no loop");
    return queue(ts_kernel_stream(f), t);
}

static ts_status install(void *state, ts_key key)
{
    (void)state;
    static const struct {
        const char *op;
        ts_kernel kernel;
    } kernels[] = {{"add", add}, {"mul", mul}, {"relu", relu}, {"neg", neg}, {"square", square}};
    for (int i = 0; i < 5; i++) {
        ts_kernel_opts opts = {.size = sizeof opts, .dtypes = TS_DTYPE_BIT(TS_F32),
                               .strided = true};
        TS_TRY(ts_register_kernel_ex(kernels[i].op, key, kernels[i].kernel, &opts, NULL));
    }
    return TS_OK;
}

static void set_up(void)
{
    has_groups = true;
    set_up_with(install);
}
#define MOCK .setup = set_up, .teardown = tear_down

typedef struct weights {
    ts_tensor *w;
    double rate;
} weights;

/** Two groups, separated by a call that joins none. p->rate, a number of both groups, may differ
 *  between runs. */
static ts_status update(TRACED)
{
    const weights *p = ctx;
    ts_tensor *h = ts_relu(ts_add(ts_mul(in[0], p->w), in[1]));
    h = ts_add_scalar(ts_mul_scalar(h, p->rate), 1 - p->rate);
    ts_tensor *s = ts_square(h), *g = ts_neg(ts_mul(s, in[1]));
    TS_TRY(ts_add_(p->w, ts_mul_scalar(g, 2 * p->rate)));
    out[0] = ts_add(p->w, h);
    return TS_STATUS_OF(out[1] = ts_transpose(s, 0, 1));
}

/** Runs update() `calls` times. how: bit 0: as a graph; bit 1: the device refuses groups. */
static ts_compiled *run_often(int how, int calls)
{
    weights a = {remote(1, TS_SIZES(5, 7)), 0}, b = {remote(1, TS_SIZES(5, 7)), 0};
    ts_compiled *c = ts_compile(update, &a, TS_OPTS(ts_compile_opts, .graph = how & 1));
    refuses_groups = how & 2;
    for (int k = 0; k < calls; k++) {
        TS_SCOPE;
        ts_tensor *in[] = {remote(10 + (uint64_t)k, TS_SIZES(5, 7)), remote(3, TS_SIZES(7))};
        ts_tensor *got[2], *want[2];
        a.rate = b.rate = 0.01 * (k / 2);
        OK(ts_compiled_call(c, in, 2, got, 2));
        OK(update(&b, in, 2, want, 2));
        ck_assert_msg(same_values(got[0], want[0]) && same_values(a.w, b.w), "call %d differs", k);
        ck_assert(same_values(ts_contiguous(ts_to_device(got[1], TS_DEVICE_CPU)),
                              ts_contiguous(ts_to_device(want[1], TS_DEVICE_CPU))));
    }
    refuses_groups = false;
    return c;
}

TS_TEST(groups_have_the_bits_of_calls, MOCK, .loop = 4)
{
    TS_SCOPE;
    new_kernels = 2;
    ts_compiled *c = run_often(_i, 12);
    ts_compile_stats stats = ts_compiled_get_stats(c);
    ck_assert_int_eq(stats.compiles, 1);
    ck_assert_int_eq(stats.groups, 2);
    ck_assert_int_eq(stats.fused, 10);
    ck_assert_int_eq(stats.kernels, _i & 2 ? 0 : 2);
    ck_assert_int_eq(stats.replays, _i & 1 ? 10 : 0);
    ck_assert_int_eq(groups_run == 0, _i >> 1);
    if (_i & 1) /* both groups read numbers, which change every second run */
        ck_assert_int_gt(stats.replaced, 0);
    ck_assert(explains(c, "group at step 0, 5 calls over (5, 7): mul add relu mul add"));
    ck_assert(explains(c, _i & 2 ? "runs call by call: the mock has no kernel"
                                 : "5 kernels are one, compiled in 1.5 ms"));
    ts_compiled_free(c);
}

static ts_status long_chain(TRACED)
{
    ts_tensor *h = in[0];
    for (int i = 0; i < 12; i++)
        h = ts_add(ts_relu(h), in[0]);
    return TS_STATUS_OF(out[0] = h);
}

TS_TEST(values_of_one_group_take_no_memory, MOCK, .loop = 2)
{
    TS_SCOPE;
    ts_tensor *x = remote(1, TS_SIZES(1000)), *y, *want;
    ts_compiled *c = ts_compile(long_chain, NULL, TS_OPTS(ts_compile_opts, .graph = _i));
    OK(long_chain(NULL, &x, 1, &want, 1));
    for (int k = 0; k < 6; k++) {
        TS_SCOPE;
        int64_t live = memory.live;
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        ck_assert_int_le(memory.live - live, 4000 + (k == 2 ? 512 : 0)); /* the arena is empty */
        ck_assert(same_values(y, want));
    }
    ck_assert(!_i || explains(c, "graph of 24 launches and 1 bytes"));
    ts_compiled_free(c);
}

static ts_status on_both(TRACED)
{
    ts_tensor *here = ts_relu(ts_neg(in[0])), *far = ts_relu(ts_neg(in[1]));
    out[0] = ts_add(here, in[0]);
    return TS_STATUS_OF(out[1] = ts_add(far, in[1]));
}

TS_TEST(a_group_is_of_one_device, MOCK)
{
    TS_SCOPE;
    ts_tensor *in[] = {numbers(1, TS_SIZES(9)), remote(2, TS_SIZES(9))}, *got[2], *want[2];
    ts_compiled *c = ts_compile(on_both, NULL, NULL);
    OK(ts_compiled_call(c, in, 2, got, 2));
    OK(on_both(NULL, in, 2, want, 2));
    ck_assert(same(got[0], want[0]) && same_values(got[1], want[1]));
    ck_assert_int_eq(ts_compiled_get_stats(c).groups, 2);
    ck_assert_int_eq(groups_run, 1);
    ck_assert_int_eq(calls_run, 3);
    ts_compiled_free(c);
}

static ts_status neg_again(ts_frame *f) { return pointwise(f, run_neg); }

TS_TEST(a_kernel_that_is_registered_later_is_that_of_the_group, MOCK, .loop = 2)
{
    TS_SCOPE;
    ts_tensor *in[] = {remote(1, TS_SIZES(5)), remote(2, TS_SIZES(5))}, *got[2], *want[2];
    ts_compiled *c = ts_compile(on_both, NULL, TS_OPTS(ts_compile_opts, .graph = _i));
    ts_kernel_opts opts = {.size = sizeof opts, .dtypes = TS_DTYPE_BIT(TS_F32), .strided = true};
    for (int k = 0; k < 7; k++) {
        if (k == 5) /* replaces the kernel of relu by one that negates */
            OK(ts_register_kernel_ex("relu", (ts_key)device.backend, neg_again, &opts, NULL));
        OK(ts_compiled_call(c, in, 2, got, 2));
        OK(on_both(NULL, in, 2, want, 2));
        ck_assert_msg(same_values(got[0], want[0]) && same_values(got[1], want[1]), "call %d", k);
    }
    ts_compiled_free(c);
}

TS_TEST(without_groups_the_backend_is_not_called, MOCK)
{
    TS_SCOPE;
    ts_tensor *in[] = {remote(1, TS_SIZES(5)), remote(2, TS_SIZES(5))}, *got[2];
    ts_compiled *c = ts_compile(on_both, NULL, TS_OPTS(ts_compile_opts, .max_groups = -1));
    OK(ts_compiled_call(c, in, 2, got, 2));
    ck_assert_int_eq(groups_run, 0);
    ts_compiled_free(c);
}

/** If the mask has one element, the strides of all operands are 0, so only the order of operands
 *  shows that the kernel reordered them. */
static ts_status fill_where_true(TRACED)
{
    (void)ctx;
    ts_tensor *filled = ts_masked_fill_scalar(ts_expand(in[1], TS_SIZES(64, 257)), in[2],
                                              ts_scalar_float(0));
    return TS_STATUS_OF(out[0] = ts_silu_backward(filled, in[0]));
}
TS_TEST(each_tile_has_a_calls_operands_in_their_order)
{
    TS_SCOPE;
    ts_tensor *in[] = {numbers(1, TS_SIZES(64, 257)), ts_ones(TS_SIZES(1, 1), TS_F32),
                       ts_ones(TS_SIZES(1), TS_BOOL)}, *got, *want;
    ts_compiled *c = ts_compile(fill_where_true, NULL, NULL);
    OK(ts_compiled_call(c, in, 3, &got, 1));
    ck_assert_int_eq(ts_compiled_get_stats(c).fused, 2);
    OK(fill_where_true(NULL, in, 3, &want, 1));
    ck_assert(same(got, want));
    ts_compiled_free(c);
}

static int kernel_runs;
static ts_status negate(ts_frame *f)
{
    const ts_tensor *x = f->args[0].t;
    kernel_runs++;
    for (int64_t k = 0; k < x->numel; k++)
        ((float *)f->rets[0].t->data)[k] = -((const float *)x->data)[k];
    return TS_OK;
}
static ts_status negate_thrice(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_neg(ts_neg(ts_neg(in[0]))));
}

/* A program's kernel has no machine code, so it runs once per tile. */
TS_TEST(tiles_have_the_chosen_number_of_elements, .loop = 6)
{
    TS_SCOPE;
    static const int64_t sizes[] = {1, 7, 64, 250, 1000, 100000};
    ts_kernel_opts fills = {.size = sizeof fills, .dtypes = TS_DTYPE_BIT(TS_F32)};
    OK(ts_register_kernel_ex("neg", TS_KEY_CPU, negate, &fills, NULL));
    ts_set_num_threads(1);
    ts_tile_elements = sizes[_i];
    ts_tensor *x = numbers(1, TS_SIZES(1000)), *y;
    ts_compiled *c = ts_compile(negate_thrice, NULL, NULL);
    OK(ts_compiled_call(c, &x, 1, &y, 1));
    ck_assert_int_eq(ts_compiled_get_stats(c).groups, 1);
    int64_t tiles = sizes[_i] > 1000 ? 1 : 1000 / sizes[_i];
    ck_assert_int_ge(kernel_runs, 3 * tiles);
    ck_assert_int_le(kernel_runs, 3 * (tiles + tiles / 4 + 1)); /* whole cache lines */
    ck_assert(same(y, ts_neg(x)));
    ts_compiled_free(c);
}

static ts_status sums_of_rows(TRACED)
{
    ts_tensor *t = ts_exp(in[0]);
    out[0] = ts_sum_dim(t, -1, false);
    return TS_STATUS_OF(out[1] = ts_var_dim(t, -1, 1, true));
}

/* A kernel sums up to 7 short rows in another order than more rows, so the last tile must not have
 * so few. With 0 elements, tiles have the sizes that the library chooses. */
TS_TEST(sums_of_short_rows_have_the_bits_of_calls_for_any_number_of_rows, .loop = 4)
{
    static const int64_t elements[] = {0, 1, 300, 1024};
    uint32_t state = 7 + (uint32_t)_i;
    ts_tile_elements = elements[_i];
    for (int k = 0; k < 150; k++) {
        TS_SCOPE;
        state = state * 1664525 + 1013904223;
        int64_t length = 1 + (state >> 8) % 40, rows = 1 + (state >> 16) % (_i ? 900 : 5000);
        if (k == 1) /* 18 tiles of 176 rows and one row more */
            length = 16, rows = 3169;
        ts_tensor *x = k % 3 ? numbers(state, TS_SIZES(rows, length))
                             : numbers(state, TS_SIZES(1 + rows / 7, 7, length)),
                  *got[2], *want[2];
        ts_compiled *c = ts_compile(sums_of_rows, NULL, NULL);
        OK(ts_compiled_call(c, &x, 1, got, 2));
        OK(sums_of_rows(NULL, &x, 1, want, 2));
        for (int i = 0; i < 2; i++)
            ck_assert_msg(same(got[i], want[i]), "output %d of (%lld, %lld)", i, (long long)rows,
                          (long long)length);
        ts_compiled_free(c);
    }
}

/** Calls by rows, with pointwise calls before and after them, and values with one element per
 *  row. */
static ts_status norm_of_sum(TRACED)
{
    (void)ctx;
    return TS_STATUS_OF(out[0] = ts_relu(ts_layer_norm(ts_add(in[0], in[1]), in[2], in[2])));
}
static ts_status softmax_by_parts(TRACED)
{
    (void)ctx;
    ts_tensor *e = ts_exp(ts_sub(in[0], ts_amax_dim(in[0], -1, true)));
    return TS_STATUS_OF(out[0] = ts_div(e, ts_sum_dim(e, -1, true)));
}
static ts_status scaled_by_rows(TRACED)
{
    (void)ctx;
    ts_tensor *square = ts_mean_dim(ts_square(in[0]), -1, true);
    ts_tensor *scaled = ts_mul(in[0], ts_rsqrt(ts_add_scalar(square, 1e-5)));
    out[0] = ts_sum_dim(scaled, -1, false);
    return TS_STATUS_OF(scaled);
}

TS_TEST(calls_by_rows_and_those_around_them_are_one_group, .loop = 2)
{
    static const struct {
        ts_trace_fn fn;
        int64_t calls;
    } cases[] = {{norm_of_sum, 3}, {softmax_by_parts, 5}, {scaled_by_rows, 6}};
    static const int64_t sizes[][2] = {{3, 16}, {700, 33}, {64, 1000}, {5, 8192}};
    ts_set_num_threads(1 + _i);
    for (int k = 0; k < 12; k++) {
        TS_SCOPE;
        int64_t r = sizes[k / 3][0], n = sizes[k / 3][1];
        ts_tensor *in[] = {numbers(1, TS_SIZES(r, n)), numbers(2, TS_SIZES(r, n)),
                           numbers(3, TS_SIZES(n))}, *got, *want;
        ts_compiled *c = ts_compile(cases[k % 3].fn, NULL, NULL);
        OK(ts_compiled_call(c, in, 3, &got, 1));
        ts_compile_stats stats = ts_compiled_get_stats(c);
        ck_assert_int_eq(stats.groups, 1);
        ck_assert_int_eq(stats.fused, cases[k % 3].calls);
        ck_assert_int_lt(stats.fused_bytes, stats.bytes);
        OK(cases[k % 3].fn(NULL, in, 3, &want, 1));
        ck_assert(same(got, want));
        ts_compiled_free(c);
    }
}

/** A reduction of all elements of a new tensor. ctx: number of the reduction. */
static ts_status whole_reduction(TRACED)
{
    const int *which = ctx;
    ts_tensor *t = ts_mul(ts_sub(in[0], in[1]), in[2]);
    switch (*which) {
    case 0: out[0] = ts_sum(t); break;
    case 1: out[0] = ts_mean(t); break;
    case 2: out[0] = ts_norm(t); break;
    case 3: out[0] = ts_norm_dims(t, 1, NULL, 0, true); break;
    case 4: out[0] = ts_norm_dims(t, (double)INFINITY, NULL, 0, false); break;
    case 5: out[0] = ts_amax(t); break;
    case 6: out[0] = ts_amin(t); break;
    default: out[0] = ts_prod(ts_add_scalar(ts_mul_scalar(t, 1e-6), 1));
    }
    return TS_STATUS_OF(out[0]);
}

/* Sizes around the ends of pieces and tiles; any number of threads. */
TS_TEST(reductions_of_all_elements_join_the_calls_before_them, .loop = 3)
{
    static const int threads[] = {1, 2, 7};
    static const int64_t sizes[][3] = {{1, 1, 2}, {1, 17, 1}, {1, 1, 4095}, {64, 64, 1},
                                       {1, 1, 4097}, {3, 4, 1024}, {5, 700, 7}, {1, 1, 8193},
                                       {10, 10, 1000}};
    ts_set_num_threads(threads[_i]);
    for (int k = 0; k < 9 * 8 * 2; k++) {
        TS_SCOPE;
        int which = k % 8;
        const int64_t *n = sizes[k / 8 % 9];
        ts_dtype dtype = k / 72 ? TS_F64 : TS_F32;
        ts_tensor *in[] = {ts_to(numbers(1, n, 3), dtype), ts_to(numbers(2, n, 3), dtype),
                           ts_to(numbers(3, TS_SIZES(1)), dtype)}, *got, *want;
        ts_compiled *c = ts_compile(whole_reduction, &which, NULL);
        OK(whole_reduction(&which, in, 3, &want, 1));
        for (int turn = 0; turn < 2; turn++) {
            OK(ts_compiled_call(c, in, 3, &got, 1));
            ck_assert_msg(same(got, want), "reduction %d over %lld elements", which,
                          (long long)ts_numel(in[0]));
        }
        ts_compile_stats stats = ts_compiled_get_stats(c);
        ck_assert_int_eq(stats.groups, 1);
        ck_assert_int_eq(stats.fused, which == 7 ? 5 : 3);
        ck_assert_int_eq(stats.peak, ts_dtype_size(dtype)); /* only the result is stored */
        ts_compiled_free(c);
    }
}

/** A reduction in the midst of a group: a later call uses its result, another one writes its
 *  argument, and two reductions share it. */
static ts_status around_a_reduction(TRACED)
{
    ts_tensor *t = ts_exp(in[0]), *sum = ts_sum(t), *most = ts_amax(t);
    out[1] = ts_div(t, sum);
    out[2] = ts_mul_scalar_(ts_clone(t), 0.5);
    out[0] = ts_add(most, ts_mean_dims(ts_relu_(t), (int64_t[]){1, 0}, 2, true));
    return TS_STATUS_OF(out[1] && out[2] ? out[0] : NULL);
}

TS_TEST(reductions_of_all_elements_come_before_calls_that_use_them, .loop = 2)
{
    TS_SCOPE;
    ts_tensor *in[] = {numbers(1, TS_SIZES(300, 70))}, *got[3], *want[3];
    ts_set_num_threads(1 + _i);
    ts_compiled *c = ts_compile(around_a_reduction, NULL, NULL);
    OK(around_a_reduction(NULL, in, 1, want, 3));
    for (int turn = 0; turn < 3; turn++) {
        OK(ts_compiled_call(c, in, 1, got, 3));
        for (int i = 0; i < 3; i++)
            ck_assert_msg(same(got[i], want[i]), "output %d", i);
    }
    ck_assert_int_gt(ts_compiled_get_stats(c).groups, 0);
    ts_compiled_free(c);
}

static ts_status product_and_sum(TRACED)
{
    ts_tensor *t = ts_mul(ts_add(in[0], in[1]), in[1]);
    out[0] = ts_sum(t);
    return TS_STATUS_OF(out[0]);
}

/** A sum whose result is always 42. */
static ts_status forty_two(ts_frame *f)
{
    if (f->rets[0].tag != TS_TAG_TENSOR)
        TS_TRY(ts_kernel_result(f, 0, NULL, 0, TS_F32));
    *(float *)ts_kernel_data(f->rets[0].t) = 42;
    return TS_OK;
}

TS_TEST(a_replaced_reduction_leaves_its_group)
{
    TS_SCOPE;
    ts_tensor *in[] = {numbers(1, TS_SIZES(9000)), numbers(2, TS_SIZES(9000))}, *got, *want;
    ts_compiled *c = ts_compile(product_and_sum, NULL, NULL);
    ts_registration *r = NULL;
    for (int turn = 0; turn < 3; turn++) {
        if (turn == 1)
            OK(ts_register_kernel("sum", TS_KEY_CPU, forty_two, NULL, &r));
        OK(product_and_sum(NULL, in, 2, &want, 1));
        for (int k = 0; k < 2; k++) {
            OK(ts_compiled_call(c, in, 2, &got, 1));
            ck_assert(same(got, want));
        }
        double sum;
        OK(ts_item(got, &sum));
        ck_assert((sum == 42) == (turn == 1));
        if (turn == 1)
            OK(ts_unregister(r));
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).groups, 1);
    ts_compiled_free(c);
}

/** Concatenates two cumulative sums along dim *ctx, and returns a cumulative sum of the result. */
static ts_status beside(TRACED)
{
    const int *dim = ctx;
    ts_tensor *parts[] = {ts_cumsum(in[0], 1), ts_cumsum(in[1], 0)};
    ts_tensor *both = ts_cat(parts, 2, *dim);
    out[0] = ts_cumsum(both, 0);
    if (ts_numel(in[2]) == 2) /* parts[0] has a second use, so the cat copies */
        out[0] = ts_add(out[0], ts_sum(parts[0]));
    return TS_STATUS_OF(out[0]);
}

TS_TEST(a_cat_of_new_results_copies_nothing, .setup = set_up_whole_groups,
        .teardown = tear_down_whole, .loop = 4)
{
    TS_SCOPE;
    int dim = _i % 2;
    ts_tensor *in[] = {remote(1, TS_SIZES(12, 8)), remote(2, TS_SIZES(12, 8)),
                       remote(3, TS_SIZES(1 + _i / 2))}, *got, *want;
    ts_compiled *c = ts_compile(beside, &dim, NULL);
    OK(ts_compiled_call(c, in, 3, &got, 1));
    OK(beside(&dim, in, 3, &want, 1));
    ck_assert(same_values(got, want));
    ck_assert_int_eq(ts_compiled_get_stats(c).nodes, _i / 2 ? 6 : 3);
    ts_compiled_free(c);
}

static ts_status residual(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_add(ts_mm(in[0], in[1]), in[2]));
}
static ts_status chain_after_product(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_mul(ts_relu(ts_add(ts_mm(in[0], in[1]), in[2])), in[2]));
}
static ts_status two_after_product(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_relu(ts_add(ts_mm(in[0], in[1]), in[2])));
}
static ts_status kept_product(TRACED)
{
    out[1] = ts_mm(in[0], in[1]);
    return TS_STATUS_OF(out[0] = ts_add(out[1], in[2]));
}
static ts_status beside_product(TRACED) /* exp reads what the epilogue reads */
{
    TS_TRY(out[0] = ts_add(ts_mm(in[0], in[1]), in[2]));
    return TS_STATUS_OF(out[1] = ts_exp(in[2]));
}
static ts_status written_beside_product(TRACED) /* exp reads in[2] after a later write */
{
    TS_TRY(out[0] = ts_add(ts_mm(in[0], in[1]), in[2]));
    TS_TRY(ts_copy_(in[2], ts_cumsum(in[2], 0)));
    return TS_STATUS_OF(out[1] = ts_exp(in[2]));
}

/** A block of a residual network with given statistics, of in[0] as an image (1, 1, 5, 7). */
static ts_status block_after_convolution(TRACED)
{
    ts_tensor *x = ts_reshape(in[0], TS_SIZES(1, 1, 5, 7)),
              *w = ts_reshape(ts_narrow(in[1], 1, 0, 1), TS_SIZES(7, 1, 1, 1)),
              *statistics = ts_abs(ts_select(in[1], 1, 1)), *skip = ts_tanh(x),
              *y = ts_batch_norm(ts_conv2d(x, w, TS_NONE, NULL), statistics, statistics, statistics,
                                 TS_NONE, false, 0, 1e-5);
    return TS_STATUS_OF(out[0] = ts_relu(ts_add(y, skip)));
}

static ts_status overwritten_product(TRACED)
{
    ts_tensor *h = ts_mm(in[0], in[1]), *first = ts_relu(h);
    TS_TRY(ts_add_(h, ts_cumsum(in[2], 0)));
    return TS_STATUS_OF(out[0] = ts_maximum(first, h));
}

/* A call joins a product if that saves bytes. It does not join if the calls after it then load at
 * least as many bytes, which a group of the call and these would keep in registers, and not if
 * another call has overwritten the product. */
TS_TEST(calls_join_a_product_that_saves_bytes, .setup = set_up_whole_groups,
        .teardown = tear_down_whole, .loop = 2)
{
    static const struct {
        ts_trace_fn function;
        int longest, outputs;
        const char *text;
    } cases[] = {
        {residual, 8, 1, "product with an epilogue at step 0, 2 calls over (5, 6): mm add"},
        {chain_after_product, 1, 1, "group at step 1, 3 calls over (5, 6): add relu mul"},
        {two_after_product, 8, 1, "product with an epilogue at step 0, 3 calls over (5, 6): mm add "
                                  "relu"},
        {two_after_product, 1, 1, "group at step 1, 2 calls over (5, 6): add relu"},
        {block_after_convolution, 8, 1, "4 calls over (1, 7, 5, 7): convolution batch_norm add "
                                        "relu"},
        {block_after_convolution, 1, 1, "2 calls over (1, 7, 5, 7): convolution batch_norm\n"},
        {overwritten_product, 8, 1, "(5, 6): mm relu\n"},
        {kept_product, 8, 2, "product with an epilogue at step 0, 2 calls over (5, 6): mm add"},
        {beside_product, 8, 2, "product with an epilogue at step 0, 3 calls over (5, 6): mm add "
                               "exp"},
        {written_beside_product, 8, 2, "step 0, 2 calls over (5, 6): mm add\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        TS_SCOPE;
        ts_tensor *in[] = {remote(1, TS_SIZES(5, 7)), remote(2, TS_SIZES(7, 6)),
                           remote(3, TS_SIZES(5, 6))}, *got[2], *want[2];
        longest_epilogue = cases[i].longest;
        refuses_groups = _i;
        ts_compiled *c = ts_compile(cases[i].function, NULL, NULL);
        OK(ts_compiled_call(c, in, 3, got, cases[i].outputs));
        in[2] = remote(3, TS_SIZES(5, 6)); /* the function may have written to it */
        OK(cases[i].function(NULL, in, 3, want, cases[i].outputs));
        for (int k = 0; k < cases[i].outputs; k++)
            ck_assert(same_values(got[k], want[k]));
        ck_assert_msg(explains(c, cases[i].text), "case %zu", i);
        ts_compiled_free(c);
    }
    longest_epilogue = 8;
    refuses_groups = false;
}

/* A product with an epilogue is refused if an operand is not aligned, which may change from call to
 * call. Its inner value then needs memory, for which the captured plan has no offset. */
TS_TEST(a_group_that_is_refused_after_its_capture_gets_memory, .setup = set_up_whole_groups,
        .teardown = tear_down_whole)
{
    TS_SCOPE;
    ts_compiled *c = ts_compile(residual, NULL, TS_OPTS(ts_compile_opts, .graph = true));
    ts_tensor *x[] = {remote(1, TS_SIZES(5, 7)), remote(1, TS_SIZES(5, 7))};
    int64_t before = 0;
    for (int k = 0; k < 14; k++) {
        TS_SCOPE;
        ts_tensor *in[] = {NULL, remote(2, TS_SIZES(7, 6)), remote(3, TS_SIZES(5, 6))}, *got, *want;
        refuses_groups = k >= 4 && k < 9;
        OK(in[0] = ts_copy_(x[refuses_groups], remote(10 + (uint64_t)k, TS_SIZES(5, 7))));
        OK(ts_compiled_call(c, in, 3, &got, 1));
        OK(residual(NULL, in, 3, &want, 1));
        ck_assert_msg(same_values(got, want), "call %d differs", k);
        OK(remote(4, TS_SIZES(5, 6))); /* takes memory that was freed */
        int64_t replays = ts_compiled_get_stats(c).replays;
        if (k == 3 || k == 8 || k == 13) /* of aligned inputs, refused ones, aligned ones again */
            ck_assert_msg(replays > before, "no graph by call %d", k);
        before = k == 3 || k == 8 ? replays : before;
    }
    refuses_groups = false;
    ts_compiled_free(c);
}

static ts_status two_chains(TRACED) /* one call ends two chains */
{
    return TS_STATUS_OF(out[0] = ts_add(ts_exp(in[0]), ts_neg(ts_abs(in[1]))));
}
static ts_status two_chains_apart(TRACED) /* a call that joins no group writes in[0] between them */
{
    TS_TRY(ts_copy_(in[0], ts_cumsum(ts_exp(in[0]), 0)));
    return TS_STATUS_OF(out[0] = ts_add(ts_exp(in[0]), ts_neg(ts_abs(in[1]))));
}
static ts_status over_few(TRACED) /* a merge of the chains saves less than 4 KiB */
{
    ts_tensor *a = ts_exp(ts_narrow(ts_select(in[0], 0, 1), 0, 0, 256)),
              *b = ts_neg(ts_abs(ts_narrow(ts_select(in[1], 0, 1), 0, 0, 256)));
    return TS_STATUS_OF(out[0] = ts_add(a, b));
}

/** Chains over the same sizes that a later call reads become one group, unless calls between them
 *  prevent it. */
TS_TEST(chains_with_a_common_reader_are_one_group)
{
    static const struct {
        ts_trace_fn fn;
        const char *has;
    } cases[] = {{two_chains, "4 calls in 1 steps, 1 groups of 4 calls"},
                 {two_chains_apart, "7 calls in 3 steps, 1 groups of 5 calls"},
                 {over_few, "4 calls in 1 steps, 1 groups of 4 calls"}};
    for (int i = 0; i < TS_COUNTOF(cases); i++) {
        TS_SCOPE;
        ts_tensor *x = numbers(3, TS_SIZES(64, 512)), *y = numbers(4, TS_SIZES(64, 512)),
                  *in[] = {x, y}, *again[] = {ts_clone(x), y}, *got, *want;
        ts_compiled *c = ts_compile(cases[i].fn, NULL, NULL);
        OK(ts_compiled_call(c, in, 2, &got, 1));
        OK(cases[i].fn(NULL, again, 2, &want, 1));
        ck_assert(same(got, want) && same(in[0], again[0]));
        ck_assert(explains(c, cases[i].has));
        ts_compiled_free(c);
    }
}
