/** @file shapes.c  Kernels that only certain shapes use, which the samples of ts-conformance do not
 * contain, compared with the CPU. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

#include <math.h>

enum { LEAVES = 4 };

/** A function to compare, and the dtype and sizes of its leaves. */
typedef struct subject {
    ts_tensor *(*run)(ts_tensor *const *leaves, int which);
    int which; /* second argument of run */
    ts_dtype dtype;
    int n; /* number of leaves */
    int64_t sizes[LEAVES][4];
    int ndims[LEAVES];
} subject;

/** Result and gradients of sum(run(leaves) * weight), as f32 on the CPU. */
static void run_on(ts_device device, const subject *s, ts_dtype dtype, ts_tensor *const *drawn,
                   ts_tensor *weight, ts_tensor *got[1 + LEAVES])
{
    ts_tensor *leaves[LEAVES] = {0};
    bool there = device.backend != TS_DEVICE_CPU.backend;
    for (int i = 0; i < s->n; i++) {
        ts_tensor *t = ts_to(drawn[i], dtype);
        leaves[i] = ts_set_requires_grad(there ? ts_to_device(t, device) : ts_clone(t), true);
    }
    ts_tensor *y = s->run(leaves, s->which);
    OK(y);
    OK(ts_backward(
        ts_sum(ts_mul(ts_to(y, TS_F32), there ? ts_to_device(weight, device) : weight))));
    for (int i = 0; i <= s->n; i++) {
        ts_tensor *t = i == s->n ? ts_detach(y) : ts_grad(leaves[i]);
        got[i] = ts_to(there ? ts_to_device(t, TS_DEVICE_CPU) : t, TS_F32);
        OK(got[i]);
    }
}

/* Compares result and gradients with the CPU in f32 on the same values. bf16 and f16 are rounded
 * when they are stored; f32 differs by the order of sums. Bound: `units` eps of the largest
 * element. */
static void compare(ts_device device, const subject *s, double units)
{
    TS_SCOPE;
    ts_tensor *drawn[LEAVES], *got[1 + LEAVES], *want[1 + LEAVES], *shape[LEAVES];
    double eps = s->dtype == TS_BF16 ? 0x1p-8 : s->dtype == TS_F16 ? 0x1p-11 : 0x1p-23;
    ts_manual_seed(11);
    for (int i = 0; i < s->n; i++) {
        drawn[i] = ts_to(ts_normal(s->sizes[i], s->ndims[i], 0, 1, TS_F32), s->dtype);
        shape[i] = ts_to(drawn[i], TS_F32);
    }
    ts_tensor *y = s->run(shape, s->which);
    OK(y);
    ts_tensor *weight = ts_normal(ts_sizes(y), ts_ndim(y), 0, 1, TS_F32);
    run_on(TS_DEVICE_CPU, s, TS_F32, drawn, weight, want);
    run_on(device, s, s->dtype, drawn, weight, got);
    for (int i = 0; i <= s->n; i++) {
        double off, most;
        OK(ts_item(ts_max(ts_abs(ts_sub(got[i], want[i]))), &off));
        OK(ts_item(ts_max(ts_abs(want[i])), &most));
        ck_assert_msg(off <= units * eps * most, "%s of %d, %s: %g off, largest %g, allowed %g",
                      i == s->n ? "result" : "gradient", i, ts_dtype_name(s->dtype), off, most,
                      units * eps * most);
    }
}

/* -------------------------------------------------------------------------------- rows ---- */

static ts_tensor *softmax(ts_tensor *const *leaves, int log)
{
    return log ? ts_log_softmax(leaves[0], -1) : ts_softmax(leaves[0], -1);
}
static ts_tensor *layer_norm(ts_tensor *const *leaves, int rms)
{
    return rms ? ts_rms_norm(leaves[0], leaves[1]) : ts_layer_norm(leaves[0], leaves[1], leaves[2]);
}
static ts_tensor *plain_norm(ts_tensor *const *leaves, int rms)
{
    ts_tensor *x = leaves[0];
    return rms ? ts_rms_norm(x, TS_NONE) : ts_layer_norm(x, TS_NONE, TS_NONE);
}
static ts_tensor *add_layer_norm(ts_tensor *const *leaves, int unused)
{
    (void)unused;
    ts_tensor *sum, *y = ts_add_layer_norm(leaves[0], leaves[3], leaves[1], leaves[2], &sum);
    return ts_add(y, sum);
}

/** Compares softmax, log_softmax and their gradients over rows of n elements. */
static void compare_softmax(ts_device device, ts_dtype dtype, int64_t rows, int64_t n)
{
    for (int log = 0; log < 2; log++)
        compare(device, &(subject){softmax, log, dtype, 1, {{rows, n}}, {2}},
                dtype == TS_F32 ? 32 : 4);
}

/** layer_norm, rms_norm, add_layer_norm and their gradients. */
static void compare_norms(ts_device device, ts_dtype dtype, int64_t rows, int64_t n)
{
    double units = dtype == TS_F32 ? 32 : 8;
    for (int rms = 0; rms < 2; rms++)
        compare(device,
                &(subject){layer_norm, rms, dtype, 3 - rms, {{rows, n}, {n}, {n}}, {2, 1, 1}},
                units);
    compare(device,
            &(subject){add_layer_norm, 0, dtype, 4, {{rows, n}, {n}, {n}, {rows, n}}, {2, 1, 1, 2}},
            units);
}

/* Row lengths for which a warp, a block, or a cluster of two or more blocks processes a row of f32;
 * for bf16, lengths are twice as large. Some lengths leave threads without elements. There are more
 * rows than resident blocks. */
static const int64_t lengths[] = {136, 640, 768, 1024, 3000, 4096, 8192, 12288, 12296, 16384, 24576,
                                  32768, 65536};
enum { LENGTHS = sizeof lengths / sizeof *lengths, ROWS = 300 };

/* Lengths for kernels whose number of warps depends on the length, for each number of vectors per
 * thread: lengths of real models, which fill all threads, and others. The longest use clusters. */
static const int64_t fitted[] = {832,   1000,  1280,  1536,  1600,  1792,  2048,
                                 2304,  4608,  5120,  5160,  6144,  7168,  9216,
                                 14336, 18432, 20480, 22528, 28672, 30720, 40960};
enum { FITTED = sizeof fitted / sizeof *fitted };
/** Number of rows: for short rows so many that a block adds several to its sums over rows. */
static int64_t rows_of_fitted(int64_t n) { return n < 2500 ? 1500 : n < 20000 ? 30 : ROWS; }

/* Lengths that leave parts of a cluster's warps and threads without elements. */
static const int64_t partial[] = {36864, 45056, 49152, 53248, 57344, 61440, 73728, 98304, 114688};
enum { PARTIAL = sizeof partial / sizeof *partial };

TS_TEST(softmax_of_rows_of_a_fitted_length_equals_that_of_the_CPU, .loop = 2 * FITTED)
{
    GPU(device);
    int64_t n = fitted[_i / 2];
    compare_softmax(device, _i % 2 ? TS_BF16 : TS_F32, rows_of_fitted(n), n);
}

TS_TEST(norms_of_rows_of_a_fitted_length_equal_those_of_the_CPU, .loop = 2 * FITTED)
{
    GPU(device);
    int64_t n = fitted[_i / 2];
    compare_norms(device, _i % 2 ? TS_BF16 : TS_F32, rows_of_fitted(n), n);
}

TS_TEST(rows_that_leave_parts_of_a_cluster_empty_equal_those_of_the_CPU, .loop = 2 * PARTIAL)
{
    GPU(device);
    compare_softmax(device, _i % 2 ? TS_BF16 : TS_F32, 40, partial[_i / 2]);
    compare_norms(device, _i % 2 ? TS_F16 : TS_F32, 40, partial[_i / 2]);
}

TS_TEST(norms_without_weights_equal_those_of_the_CPU, .loop = 2 * FITTED)
{
    GPU(device);
    ts_dtype dtype = _i % 2 ? TS_F16 : TS_F32;
    int64_t n = fitted[_i / 2], rows = n < 20000 ? 30 : 8;
    for (int rms = 0; rms < 2; rms++)
        compare(device, &(subject){plain_norm, rms, dtype, 1, {{rows, n}}, {2}},
                dtype == TS_F32 ? 32 : 8);
}

TS_TEST(softmax_of_rows_of_any_length_equals_that_of_the_CPU, .loop = 2 * LENGTHS)
{
    GPU(device);
    compare_softmax(device, _i % 2 ? TS_BF16 : TS_F32, ROWS, lengths[_i / 2]);
}

TS_TEST(norms_of_rows_of_any_length_equal_those_of_the_CPU, .loop = 2 * LENGTHS)
{
    GPU(device);
    compare_norms(device, _i % 2 ? TS_BF16 : TS_F32, ROWS, lengths[_i / 2]);
}

/** One to three rows of random lengths from 8,193, for which several blocks share a row. */
TS_TEST(rows_that_blocks_share_equal_those_of_the_CPU, .loop = 12, .timeout = 60)
{
    GPU(device);
    uint64_t state = ((uint64_t)_i + 71) * 6364136223846793005u;
    ts_dtype dtype = _i % 3 == 0 ? TS_F32 : _i % 3 == 1 ? TS_BF16 : TS_F16;
    int64_t rows = 1 + (int64_t)(state >> 60) % 3, n = 8193 + (int64_t)(state >> 33) % 600000;
    compare_softmax(device, dtype, rows, n);
    compare_norms(device, dtype, rows, n);
}

/* Small enough for memory checkers: a few rows per cluster on a GPU of 132 multiprocessors. */
TS_TEST(softmax_and_norms_of_few_wide_rows_equal_those_of_the_CPU)
{
    GPU(device);
    compare_softmax(device, TS_BF16, 100, 40960); /* clusters of 2, and of 8 */
    compare_norms(device, TS_BF16, 40, 16384);
}

/* The gradient uses a cluster of 16 blocks per row. Only six rows: under synccheck of
 * compute-sanitizer 2025.3, a kernel with eight such clusters ends with an illegal address, even if
 * its blocks only synchronize. */
TS_TEST(rows_over_16_blocks_equal_those_of_the_CPU)
{
    GPU(device);
    compare_softmax(device, TS_F32, 6, 36864);
}

/* -------------------------------------------------------------------------- batch norm ---- */

/* A corner pixel 100 standard deviations from the mean, as padding leaves it. Sums of squares about
 * that pixel lose the digits of the variance: their error is 20 times the bound. */
TS_TEST(variances_of_channels_that_begin_far_from_their_mean_are_exact, .loop = 2)
{
    GPU(device);
    TS_SCOPE;
    enum { CHANNELS = 16 };
    static const int64_t pixels[] = {0, 2, 3};
    ts_manual_seed(3);
    ts_tensor *x = ts_normal(TS_SIZES(4, CHANNELS, 64, 64), 0, 1, TS_F32);
    OK(ts_fill_(ts_narrow(ts_narrow(ts_narrow(x, 0, 0, 1), 2, 0, 1), 3, 0, 1), 100));
    ts_tensor *wide = ts_to(x, TS_F64), *want = ts_var_dims(wide, pixels, 3, 1, false);
    if (_i)
        x = ts_movedim(ts_contiguous(ts_movedim(x, 1, -1)), -1, 1);
    ts_tensor *mean = ts_zero_(ts_empty_on(TS_SIZES(CHANNELS), TS_F32, device)),
              *var = ts_zero_(ts_empty_on(TS_SIZES(CHANNELS), TS_F32, device));
    OK(ts_batch_norm(ts_to_device(x, device), mean, var, TS_NONE, TS_NONE, true, 1, 1e-5));
    double most;
    ts_tensor *got = ts_to(ts_to_device(var, TS_DEVICE_CPU), TS_F64);
    OK(ts_item(ts_max(ts_abs(ts_sub_scalar(ts_div(got, want), 1))), &most));
    ck_assert_double_le(most, 1e-5);
}

enum { GROUPED = 1, CHANNELS_LAST = 2, WITH_RELU = 4, NORMS = 7 };

static ts_tensor *normalize(ts_tensor *const *leaves, int which)
{
    ts_tensor *x = leaves[0], *w = leaves[1], *b = leaves[2];
    if (which & CHANNELS_LAST)
        x = ts_movedim(ts_contiguous(ts_movedim(x, 1, -1)), -1, 1);
    if (which & GROUPED)
        return ts_group_norm(x, 4, w, b, 1e-5);
    return (which & WITH_RELU ? ts_batch_norm_relu : ts_batch_norm)(x, TS_NONE, TS_NONE, w, b, true,
                                                                    0.1, 1e-5);
}

/* A block holds a statistic of up to 8,192 elements; those of the last sizes have more. */
TS_TEST(norms_of_few_elements_are_those_of_the_CPU, .loop = 3)
{
    GPU(device);
    static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16};
    static const int64_t sizes[][4] = {{3, 20, 5, 1},   {33, 8, 2, 7},   {64, 12, 8, 16},
                                       {1, 64, 16, 8}, {5, 1028, 3, 2}, {65, 12, 9, 14}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int which = 0; which < NORMS; which++) {
            subject s = {normalize, which, dtypes[_i], 3, {{0}, {sizes[i][1]}, {sizes[i][1]}},
                         {4, 1, 1}};
            if (which == (GROUPED | WITH_RELU))
                continue; /* group norm has no relu */
            memcpy(s.sizes[0], sizes[i], sizeof sizes[i]);
            compare(device, &s, s.dtype == TS_F32 ? 64 : 8);
        }
}

/* A result near the largest number: the sum of the elements is beyond it. */
TS_TEST(the_mean_of_large_elements_is_finite)
{
    GPU(device);
    TS_SCOPE;
    enum { N = 512, CHANNELS = 3 };
    ts_tensor *x = ts_fill_(ts_empty_on(TS_SIZES(N, CHANNELS), TS_F32, device), 3e38);
    ts_tensor *mean = ts_zero_(ts_empty_on(TS_SIZES(CHANNELS), TS_F32, device)),
              *var = ts_fill_(ts_empty_on(TS_SIZES(CHANNELS), TS_F32, device), 1);
    OK(ts_batch_norm(x, mean, var, TS_NONE, TS_NONE, true, 1, 1e-5));
    ck_assert(all_are(ts_to_device(mean, TS_DEVICE_CPU), 3e38f));
    ck_assert(all_are(ts_to_device(var, TS_DEVICE_CPU), 0));
}

/* ------------------------------------------------------------------------------ losses ---- */

static ts_tensor *pair_loss(ts_tensor *const *leaves, int which)
{
    return which ? ts_l1_loss(leaves[0], leaves[1]) : ts_mse_loss(leaves[0], leaves[1]);
}
static ts_tensor *strided_pair_loss(ts_tensor *const *leaves, int reduction)
{
    ts_loss_opts opts = {.size = sizeof opts, .reduction = (ts_reduction)reduction};
    return ts_mse_loss_ex(ts_transpose(leaves[0], 0, 1), leaves[1], &opts);
}

/* Sizes on both sides of the limits up to which strides cost less than copies. */
TS_TEST(losses_of_strided_pairs_are_those_of_the_CPU, .loop = 3)
{
    GPU(device);
    static const int64_t rows[] = {1, 3, 127, 128, 129, 2047, 2048, 2049};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int d = 0; d < 2; d++)
            compare(device,
                    &(subject){strided_pair_loss, _i, d ? TS_BF16 : TS_F32, 2,
                               {{rows[i], 128}, {128, rows[i]}}, {2, 2}},
                    d ? 4 : 16);
}

/* One block adds up to 16,384 losses. */
TS_TEST(losses_of_few_pairs_are_those_of_the_CPU, .loop = 2)
{
    GPU(device);
    static const int64_t lengths_of_pairs[] = {1, 7, 1023, 4097, 16383, 16384, 16385};
    for (size_t i = 0; i < sizeof lengths_of_pairs / sizeof *lengths_of_pairs; i++) {
        int64_t n = lengths_of_pairs[i];
        for (int d = 0; d < 2; d++)
            compare(device,
                    &(subject){pair_loss, _i, d ? TS_BF16 : TS_F32, 2, {{n}, {n}}, {1, 1}},
                    d ? 4 : 16);
    }
}

/* One block counts up to 16,384 targets. */
TS_TEST(means_over_few_targets_are_those_of_the_CPU)
{
    GPU(device);
    TS_SCOPE;
    static const int64_t positions[] = {1, 33, 1025, 2048, 2049, 16384, 16385};
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        enum { CLASSES = 5 };
        int64_t n = positions[i];
        int64_t *goals = malloc((size_t)n * sizeof *goals);
        for (int64_t r = 0; r < n; r++)
            goals[r] = r % 3 == 1 ? -100 : r * 7919 % CLASSES;
        ts_tensor *target = ts_from_array(goals, TS_I64, TS_SIZES(n));
        ts_tensor *x = ts_normal(TS_SIZES(n, CLASSES), 0, 1, TS_F32), *wide = ts_to(x, TS_F64);
        ts_tensor *there = ts_to_device(x, device), *goal = ts_to_device(target, device);
        double got, want;
        OK(ts_item(ts_nll_loss(there, goal), &got));
        OK(ts_item(ts_nll_loss(wide, target), &want));
        ck_assert_double_le(fabs(got - want), 1e-6 * (fabs(want) + 1));
        OK(ts_item(ts_cross_entropy(there, goal), &got));
        OK(ts_item(ts_cross_entropy(wide, target), &want));
        ck_assert_double_le(fabs(got - want), 1e-6 * (fabs(want) + 1));
        ts_tensor *two = ts_full(NULL, 0, ts_scalar_float(2), TS_F32);
        ts_tensor *slope =
            ts_nll_loss_backward(ts_to_device(two, device), there, goal, TS_REDUCTION_MEAN, -100);
        OK(slope);
        ts_tensor *expected = ts_nll_loss_backward(two, x, target, TS_REDUCTION_MEAN, -100);
        OK(ts_item(ts_amax(ts_abs(ts_sub(ts_to_device(slope, TS_DEVICE_CPU), expected))), &got));
        ck_assert_double_le(got, 1e-7);
        free(goals);
    }
}

/* ----------------------------------------------------------------------- sorts and sums ---- */

enum { WORDS = 1 << 16 };
static int64_t words[WORDS];

static ts_tensor *embed(ts_tensor *const *leaves, int unused)
{
    (void)unused;
    ts_tensor *index = ts_from_array(words, TS_I64, TS_SIZES(WORDS));
    ts_device device = ts_device_of(leaves[0]);
    return ts_embedding(
        leaves[0], device.backend == TS_DEVICE_CPU.backend ? index : ts_to_device(index, device),
        -1);
}

TS_TEST(the_gradient_of_an_embedding_by_many_equal_indices_equals_that_of_the_CPU)
{
    GPU(device);
    for (int i = 0; i < WORDS; i++)
        words[i] = (int64_t)i * i % 1009;
    compare(device, &(subject){embed, 0, TS_F32, 1, {{1009, 64}}, {2}}, 64);
}

/* Up to 2,048 rows of one element are added without a sort, in the same order in each run. */
TS_TEST(sums_of_few_elements_by_index_are_those_of_the_CPU)
{
    GPU(device);
    static const int64_t counts[] = {1, 31, 1025, 2047, 2048, 2049};
    static const int64_t bounds[] = {1, 3, 100000};
    ts_manual_seed(77);
    for (int i = 0; i < 18; i++) {
        TS_SCOPE;
        int64_t n = counts[i % 6], bound = bounds[i / 6];
        ts_tensor *x = ts_normal(TS_SIZES(n), 0, 1, TS_F32);
        ts_tensor *self = ts_normal(TS_SIZES(bound), 0, 1, TS_F32);
        ts_tensor *index = ts_randint(TS_SIZES(n), 0, bound);
        ts_tensor *there = ts_to_device(self, device), *at = ts_to_device(index, device),
                  *rows = ts_to_device(x, device);
        ts_tensor *want = ts_index_add(ts_to(self, TS_F64), 0, index, ts_to(x, TS_F64));
        for (int k = 0; k < 2; k++) {
            ts_tensor *got =
                k ? ts_index_add(there, 0, at, rows) : ts_scatter_add(there, 0, at, rows);
            double error, same;
            OK(got);
            ts_tensor *here = ts_to(ts_to_device(got, TS_DEVICE_CPU), TS_F64);
            OK(ts_item(ts_amax(ts_abs(ts_sub(here, want))), &error));
            ck_assert_double_le(error, 1e-4);
            ts_tensor *again =
                k ? ts_index_add(there, 0, at, rows) : ts_scatter_add(there, 0, at, rows);
            OK(ts_item(ts_all(ts_eq(again, got)), &same));
            ck_assert(same);
        }
    }
}

static ts_tensor *scan(ts_tensor *const *leaves, int dim) { return ts_cumsum(leaves[0], dim); }

TS_TEST(running_sums_over_many_blocks_equal_those_of_the_CPU, .loop = 2)
{
    GPU(device);
    compare(device, &(subject){scan, _i, TS_F32, 1, {{_i ? 3 : 70000, _i ? 70000 : 3}}, {2}}, 128);
}

TS_TEST(running_sums_have_the_same_bits_wherever_rows_begin)
{
    GPU(device);
    TS_SCOPE;
    enum { ROWS = 3, N = 4096 };
    double same;
    ts_tensor *x = ts_to_device(ts_normal(TS_SIZES(ROWS, N), 0, 1, TS_F32), device);
    ts_tensor *buffer = ts_empty_on(TS_SIZES(ROWS * N + 1), TS_F32, device);
    ts_tensor *behind = ts_view(ts_narrow(buffer, 0, 1, ROWS * N), TS_SIZES(ROWS, N));
    ts_tensor *expected = ts_cumsum(x, 1);
    OK(ts_item(ts_all(ts_eq(ts_cumsum(ts_copy_(behind, x), 1), expected)), &same));
    ck_assert(same);
    OK(ts_item(ts_all(ts_eq(ts_cumsum_(behind, 1), expected)), &same));
    ck_assert(same);
}

TS_TEST(an_empty_index_may_have_sizes_beyond_32_bits)
{
    GPU(device);
    TS_SCOPE;
    const int64_t many = (int64_t)1 << 32;
    ts_tensor *self = ts_empty_on(TS_SIZES(many, 0), TS_F32, device);
    ts_tensor *y = ts_gather(self, 1, ts_empty_on(TS_SIZES(many, 0), TS_I64, device));
    OK(y);
    ck_assert_int_eq(ts_size(y, 0), many);
    OK(y = ts_one_hot(ts_empty_on(TS_SIZES(0), TS_I64, device), many));
    ck_assert_int_eq(ts_size(y, 1), many);
}

/* Dims that cannot be merged, because y is expanded; two of them together have more than
 * 2^31 elements. */
TS_TEST(pointwise_ops_reach_every_element_of_dims_with_more_than_2_to_the_31)
{
    GPU(device);
    TS_SCOPE;
    int64_t n = ((int64_t)1 << 30) + 1;
    ts_tensor *x = ts_zero_(ts_empty_on(TS_SIZES(2, 3, n), TS_U8, device)),
              *y = ts_fill_(ts_empty_on(TS_SIZES(2, 1, n), TS_U8, device), 1);
    OK(ts_fill_(ts_narrow(y, 2, n - 7, 7), 5));
    ts_tensor *z = ts_add(x, y);
    OK(z);
    for (int i = 0; i < 6; i++) {
        int64_t same;
        OK(ts_item_int(ts_sum(ts_eq(ts_select(ts_select(z, 0, i / 3), 0, i % 3),
                                    ts_select(ts_select(y, 0, i / 3), 0, 0))),
                       &same));
        ck_assert_int_eq(same, n);
    }
}

TS_TEST(permutations_and_draws_equal_those_of_the_CPU)
{
    GPU(device);
    TS_SCOPE;
    enum { N = 200000 };
    ts_device devices[] = {TS_DEVICE_CPU, device};
    static int64_t order[2][N];
    for (int d = 0; d < 2; d++) {
        ts_manual_seed(2);
        OK(ts_set_default_device(devices[d]));
        OK(ts_copy_to(ts_randperm(N), order[d], sizeof order[d]));
    }
    ck_assert_mem_eq(order[0], order[1], sizeof order[0]);
}

/* ------------------------------------------------------------------------ numbers ---- */

static ts_tensor *sum_of(ts_tensor *x, ts_tensor *n) { return ts_add(x, n); }
static ts_tensor *difference_of(ts_tensor *x, ts_tensor *n) { return ts_sub(n, x); }
static ts_tensor *product_of(ts_tensor *x, ts_tensor *n) { return ts_mul(n, x); }
static ts_tensor *quotient_of(ts_tensor *x, ts_tensor *n) { return ts_div(x, n); }

/** Asserts that both tensors have the same floating-point dtype and equal elements. */
static void same_bits(ts_tensor *there, ts_tensor *here, const char *what)
{
    int64_t differ;
    OK(there);
    OK(here);
    ck_assert_int_eq(ts_dtype_of(there), ts_dtype_of(here));
    OK(ts_item_int(ts_sum(ts_to(ts_ne(ts_to_device(there, TS_DEVICE_CPU), here), TS_I64)),
                   &differ));
    ck_assert_msg(differ == 0, "%s, %s: %lld elements differ", what,
                  ts_dtype_name(ts_dtype_of(here)), (long long)differ);
}

/* f32 sums, differences, products and quotients are correctly rounded on both devices, and the
 * result is rounded to the dtype once. */
TS_TEST(scalar_operands_are_computed_as_on_the_CPU)
{
    GPU(device);
    static ts_tensor *(*const run[])(ts_tensor *, ts_tensor *) = {sum_of, difference_of, product_of,
                                                                  quotient_of};
    for (ts_dtype dtype = TS_F64; dtype <= TS_F16; dtype++) {
        TS_SCOPE;
        ts_tensor *x = ts_to(ts_normal(TS_SIZES(3, 67), 0, 1, TS_F32), dtype),
                  *n = ts_scalar_tensor(1.0 / 3, dtype);
        ts_tensor *gx = ts_to_device(x, device), *turned = ts_transpose(gx, 0, 1);
        for (int i = 0; i < 4; i++) { /* n stays in the CPU's memory */
            same_bits(run[i](gx, n), run[i](x, n), "a tensor without dims");
            same_bits(run[i](turned, n), ts_transpose(run[i](x, n), 0, 1),
                      "a tensor without dims, other strides");
        }
        same_bits(ts_add_scalar(gx, 1.0 / 3), ts_add_scalar(x, 1.0 / 3), "add");
        same_bits(ts_rsub_scalar(gx, 1.0 / 3), ts_rsub_scalar(x, 1.0 / 3), "rsub");
        same_bits(ts_mul_scalar(turned, 1.0 / 3), ts_transpose(ts_mul_scalar(x, 1.0 / 3), 0, 1),
                  "mul");
        same_bits(ts_div_scalar(gx, 3.1), ts_div_scalar(x, 3.1), "div");
    }
}
