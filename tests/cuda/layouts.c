/** @file layouts.c  Reductions, pointwise ops, softmax and scatters on CUDA over random layouts and
 * dtypes, compared with the CPU. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/drawn.h"

/** Replaces *a and *b, the same tensor on two devices, by equal random views: permuted dims, and a
 * slice or an expansion of one dim. */
static void lay_out(ts_tensor **a, ts_tensor **b)
{
    ts_tensor **both[] = {a, b};
    int ndim = ts_ndim(*a), where = (int)drawn(ndim), kind = (int)drawn(4);
    int64_t dims[8], sizes[8], from = drawn(2), step = 1 + drawn(2);
    for (int d = 0; d < ndim; d++)
        dims[d] = d;
    for (int d = ndim - 1; d > 0 && kind; d--) {
        int64_t e = drawn(d + 1), swap = dims[d];
        dims[d] = dims[e];
        dims[e] = swap;
    }
    for (int k = 0; k < 2; k++) {
        ts_tensor *t = ts_permute(*both[k], dims, ndim);
        int64_t n = ts_sizes(t)[where];
        if (kind == 2 && n > 3)
            t = ts_slice(t, where, from, n, step);
        memcpy(sizes, ts_sizes(t), sizeof *sizes * (size_t)ndim);
        if (kind == 3 && n == 1) {
            sizes[where] = 37;
            t = ts_expand(t, sizes, ndim);
        }
        OK(t);
        *both[k] = t;
    }
}

static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16, TS_F64, TS_I64, TS_I32, TS_U8, TS_BOOL};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/** Indices and values of extremes equal the CPU's; sums differ by rounding. */
TS_TEST(reductions_of_drawn_layouts_equal_those_of_the_CPU, .loop = DTYPES,
        .timeout = 120)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    seed_draws((uint64_t)(77 + _i));
    for (int turn = 0; turn < 250; turn++) {
        TS_SCOPE;
        int ndim = 1 + (int)drawn(5);
        int64_t sizes[5], dims[5], n = 0, limit = 400000;
        for (int d = 0; d < ndim; d++)
            sizes[d] = drawn_size(&limit);
        bool finite = turn % 3, keep = drawn(2);
        ts_tensor *x = drawn_values(sizes, ndim, dtype, finite), *y = ts_to_device(x, device);
        lay_out(&x, &y);
        for (int d = 0; d < ndim; d++)
            if (drawn(2))
                dims[n++] = d;
        int dim = (int)drawn(ndim);
        ts_tensor *at[2];
#define EXACT(call, a, b) assert_alike(b, a, 0, 0, call, dtype)
        EXACT("amax", ts_amax_dims(x, dims, (int)n, keep), ts_amax_dims(y, dims, (int)n, keep));
        EXACT("amin", ts_amin_dims(x, dims, (int)n, keep), ts_amin_dims(y, dims, (int)n, keep));
        EXACT("any", ts_any_dims(x, dims, (int)n, keep), ts_any_dims(y, dims, (int)n, keep));
        EXACT("all", ts_all_dims(x, dims, (int)n, keep), ts_all_dims(y, dims, (int)n, keep));
        EXACT("argmax", ts_argmax(x), ts_argmax(y));
        EXACT("argmin", ts_argmin_dim(x, dim, keep), ts_argmin_dim(y, dim, keep));
        EXACT("max_dim", ts_max_dim(x, dim, keep, &at[0]), ts_max_dim(y, dim, keep, &at[1]));
        EXACT("places", at[0], at[1]);
        if (!ts_dtype_is_float(dtype)) {
            EXACT("sum", ts_sum_dims(x, dims, (int)n, keep), ts_sum_dims(y, dims, (int)n, keep));
            continue;
        }
        if (!finite)
            continue;
        double unit = unit_of(dtype), many = 1e-6 * sqrt((double)ts_numel(x));
        ts_tensor *right = ts_to(x, TS_F64);
#define NEAR(what, op, ...)                                                                \
    assert_alike(op(y, dims, (int)n, __VA_ARGS__), op(right, dims, (int)n, __VA_ARGS__), unit, \
                 many * 3, what, dtype)
        NEAR("sum", ts_sum_dims, keep);
        NEAR("mean", ts_mean_dims, keep);
        NEAR("logsumexp", ts_logsumexp_dims, keep);
        NEAR("var", ts_var_dims, 0, keep);
    }
}

typedef ts_tensor *binary(ts_tensor *a, ts_tensor *b);

/** Operands are converted as by a cast, for all pairs of dtypes and random layouts. */
TS_TEST(pointwise_ops_of_two_dtypes_equal_those_of_the_CPU, .loop = DTYPES, .timeout = 120)
{
    static binary *const ops[] = {ts_add, ts_mul, ts_maximum, ts_div};
    GPU(device);
    seed_draws((uint64_t)(5 + _i));
    for (int turn = 0; turn < 160; turn++) {
        TS_SCOPE;
        ts_dtype first = dtypes[_i], second = dtypes[turn % DTYPES];
        int ndim = 1 + (int)drawn(4);
        int64_t sizes[4], fewer[4], limit = 60000;
        for (int d = 0; d < ndim; d++) {
            sizes[d] = drawn_size(&limit);
            fewer[d] = drawn(3) ? sizes[d] : 1;
        }
        ts_tensor *a = drawn_values(sizes, ndim, first, true), *b = ts_to_device(a, device),
                  *c = drawn_values(fewer, drawn(6) ? ndim : 0, second, true),
                  *d = ts_to_device(c, device);
        if (drawn(2) && ts_ndim(c) == ndim) { /* the same order of dims on both sides */
            uint64_t then = state;
            int64_t order[4];
            for (int k = 0; k < ndim; k++)
                order[k] = (k + 1) % ndim;
            a = ts_permute(a, order, ndim), b = ts_permute(b, order, ndim);
            c = ts_permute(c, order, ndim), d = ts_permute(d, order, ndim);
            state = then;
        }
        for (int k = 0; k < 4; k++)
            assert_alike(ops[k](b, d), ops[k](a, c), 0, 0, "op", second);
        if (!ts_dtype_is_float(first)) {
            assert_alike(ts_sin(b), ts_sin(a), 1e-6, 1e-6, "sin", first);
            assert_alike(ts_sqrt(b), ts_sqrt(a), 0, 0, "sqrt", first);
        }
    }
}

/** Fills *both with a random tensor of these sizes on the CPU and its copy on the device. Their
 * dims have a random order in memory; one dim is a slice of a larger one, has step 2, or is
 * expanded. */
static void draw_layout(const int64_t *sizes, int ndim, ts_dtype dtype, ts_device device,
                        ts_tensor *(*both)[2])
{
    int64_t order[4], back[4], outer[4], whole[4];
    int wide = (int)drawn(ndim), kind = (int)drawn(4);
    for (int d = 0; d < ndim; d++)
        order[d] = d;
    for (int d = ndim - 1; d > 0; d--) {
        int64_t e = drawn(d + 1), swap = order[d];
        order[d] = order[e];
        order[e] = swap;
    }
    for (int d = 0; d < ndim; d++) {
        back[order[d]] = d;
        whole[d] = sizes[d];
    }
    whole[wide] = kind == 0 ? 1 : kind == 1 ? 2 * sizes[wide] : sizes[wide] + drawn(3);
    for (int d = 0; d < ndim; d++)
        outer[d] = whole[order[d]];
    int64_t step = kind == 1 ? 2 : 1, from = whole[wide] - step * sizes[wide];
    (*both)[0] = drawn_values(outer, ndim, dtype, true);
    (*both)[1] = ts_to_device((*both)[0], device);
    for (int k = 0; k < 2; k++) {
        ts_tensor *t = ts_permute((*both)[k], back, ndim);
        t = kind == 0 ? ts_expand(t, sizes, ndim) : ts_slice(t, wide, from, whole[wide], step);
        OK((*both)[k] = t);
    }
}

static bool expanded(ts_tensor *x)
{
    for (int d = 0; d < ts_ndim(x); d++)
        if (ts_sizes(x)[d] > 1 && ts_strides(x)[d] == 0)
            return true;
    return false;
}

TS_TEST(pointwise_ops_of_operands_in_any_order_equal_those_of_the_CPU,
        .loop = DTYPES, .timeout = 120)
{
    static binary *const ops[] = {ts_add, ts_mul, ts_maximum, ts_lt};
    GPU(device);
    ts_dtype first = dtypes[_i];
    seed_draws((uint64_t)(3001 + _i));
    for (int turn = 0; turn < 200; turn++) {
        TS_SCOPE;
        ts_dtype second = drawn(2) ? first : dtypes[drawn(DTYPES)];
        int ndim = 1 + (int)drawn(4);
        int64_t sizes[4], limit = 200000;
        for (int d = 0; d < ndim; d++)
            sizes[d] = drawn_size(&limit);
        ts_tensor *x[2], *y[2], *some[2], *to[2];
        draw_layout(sizes, ndim, first, device, &x);
        draw_layout(sizes, ndim, second, device, &y);
        draw_layout(sizes, ndim, TS_BOOL, device, &some);
        draw_layout(sizes, ndim, TS_F32, device, &to);
        for (int k = 0; k < 4; k++)
            assert_alike(ops[k](x[1], y[1]), ops[k](x[0], y[0]), 0, 0, "op", second);
        if (second == first)
            assert_alike(ts_where(some[1], x[1], y[1]), ts_where(some[0], x[0], y[0]), 0, 0,
                         "where", first);
        assert_alike(ts_contiguous(x[1]), ts_contiguous(x[0]), 0, 0, "contiguous", first);
        assert_alike(ts_to(x[1], TS_F32), ts_to(x[0], TS_F32), 0, 0, "to", first);
        assert_alike(ts_neg(to[1]), ts_neg(to[0]), 0, 0, "neg", first);
        if (!expanded(to[0]))
            assert_alike(ts_mul_(to[1], to[1]), ts_mul_(to[0], to[0]), 0, 0, "mul_", TS_F32);
    }
}

/** Dims of 2 to 7 elements beside long ones, in another order in each operand: tiles then have rows
 * or columns of several dims. */
TS_TEST(pointwise_ops_of_short_dims_in_any_order_equal_those_of_the_CPU, .loop = DTYPES,
        .timeout = 120)
{
    GPU(device);
    ts_dtype first = dtypes[_i];
    seed_draws((uint64_t)(3101 + _i));
    for (int turn = 0; turn < 100; turn++) {
        TS_SCOPE;
        ts_dtype second = drawn(2) ? first : dtypes[drawn(DTYPES)];
        int ndim = 2 + (int)drawn(3), wide = (int)drawn(ndim);
        int64_t sizes[4];
        for (int d = 0; d < ndim; d++)
            sizes[d] = d == wide ? 40 + drawn(700) : drawn(3) ? 2 + drawn(6) : 8 + drawn(50);
        ts_tensor *x[2], *y[2], *some[2];
        draw_layout(sizes, ndim, first, device, &x);
        draw_layout(sizes, ndim, second, device, &y);
        draw_layout(sizes, ndim, TS_BOOL, device, &some);
        assert_alike(ts_add(x[1], y[1]), ts_add(x[0], y[0]), 0, 0, "add", second);
        assert_alike(ts_lt(x[1], y[1]), ts_lt(x[0], y[0]), 0, 0, "lt", second);
        if (second == first)
            assert_alike(ts_where(some[1], x[1], y[1]), ts_where(some[0], x[0], y[0]), 0, 0,
                         "where", first);
        if (!expanded(y[0]))
            assert_alike(ts_copy_(y[1], x[1]), ts_copy_(y[0], x[0]), 0, 0, "copy_", second);
    }
}

TS_TEST(cat_of_members_in_any_layout_equals_that_of_the_CPU, .loop = 3, .timeout = 60)
{
    static const ts_dtype some[] = {TS_F32, TS_BF16, TS_U8};
    GPU(device);
    seed_draws((uint64_t)(511 + _i));
    for (int turn = 0; turn < 100; turn++) {
        TS_SCOPE;
        int ndim = 1 + (int)drawn(4), dim = (int)drawn(ndim), n = 2 + (int)drawn(5);
        int64_t sizes[4], limit = 5000;
        for (int d = 0; d < ndim; d++)
            sizes[d] = drawn_size(&limit);
        ts_tensor *here[6], *there[6];
        for (int k = 0; k < n; k++) {
            ts_tensor *both[2];
            sizes[dim] = 1 + drawn(9);
            if (drawn(2)) {
                both[0] = drawn_values(sizes, ndim, some[_i], true);
                both[1] = ts_to_device(both[0], device);
            } else {
                draw_layout(sizes, ndim, some[_i], device, &both);
            }
            here[k] = both[0];
            there[k] = both[1];
        }
        assert_alike(ts_cat(there, n, dim), ts_cat(here, n, dim), 0, 0, "cat", some[_i]);
    }
}

/** Dropout draws an element's word by its row-major number, whatever the order in memory. */
TS_TEST(dropout_in_any_layout_drops_the_elements_that_the_CPU_drops, .loop = 4, .timeout = 60)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    seed_draws((uint64_t)(411 + _i));
    for (int turn = 0; turn < 80; turn++) {
        TS_SCOPE;
        int ndim = 1 + (int)drawn(4);
        int64_t sizes[4], limit = 200000;
        for (int d = 0; d < ndim; d++)
            sizes[d] = drawn_size(&limit);
        ts_tensor *both[2], *y[2];
        draw_layout(sizes, ndim, dtype, device, &both);
        double p = 0.1 * (double)(1 + drawn(8));
        uint64_t seed = (uint64_t)drawn(1 << 20);
        for (int k = 0; k < 2; k++) {
            ts_manual_seed(seed);
            OK(y[k] = ts_dropout(both[k], p, true));
        }
        assert_alike(y[1], y[0], unit_of(dtype), 0, "dropout", dtype);
    }
}

/** Result y and the gradient of sum(y * w) equal the CPU's up to rounding. A tensor that begins at
 * another address gives the same bits. */
TS_TEST(short_lines_equal_those_of_the_CPU, .loop = 3, .timeout = 120)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    seed_draws((uint64_t)(900 + _i));
    for (int turn = 0; turn < 120; turn++) {
        TS_SCOPE;
        int64_t limit = 300000, inner = drawn(2) ? 1 : drawn_size(&limit), n = drawn_size(&limit),
                outer = drawn_size(&limit), numel = outer * n * inner;
        int64_t sizes[] = {outer, n, inner};
        ts_tensor *x = drawn_values(sizes, 3, dtype, true),
                  *w = ts_to(ts_normal(sizes, 3, 0, 1, TS_F32), dtype), *y[4], *g[4];
        for (int k = 0; k < 4; k++) { /* the CPU in f64; here; one element further on; again */
            ts_device there = k ? device : TS_DEVICE_CPU;
            ts_tensor *leaf = ts_to_device(k ? x : ts_to(x, TS_F64), there),
                      *weight = ts_to_device(k ? w : ts_to(w, TS_F64), there);
            if (k == 2) {
                ts_tensor *wide = ts_empty_on(TS_SIZES(numel + 1), dtype, device);
                ts_tensor *part = ts_reshape(ts_slice(wide, 0, 1, numel + 1, 1), sizes, 3);
                leaf = ts_copy_(part, leaf);
            }
            leaf = ts_set_requires_grad(ts_detach(leaf), true);
            y[k] = turn % 3 == 0   ? ts_softmax(leaf, 1)
                   : turn % 3 == 1 ? ts_log_softmax(leaf, 1)
                                   : ts_cumsum(leaf, 1);
            OK(ts_backward(ts_sum(ts_mul(y[k], weight))));
            g[k] = ts_grad(leaf);
        }
        double unit = 2 * unit_of(dtype), most = turn % 3 == 2 ? 4e-6 * (double)n : unit;
        assert_alike(y[1], y[0], unit, most, "result", dtype);
        assert_alike(g[1], g[0], 2 * unit, turn % 3 == 2 ? most : 40 * unit, "gradient", dtype);
        for (int k = 2; k < 4; k++) {
            assert_alike(y[k], y[1], 0, 0, "result elsewhere", dtype);
            assert_alike(g[k], g[1], 0, 0, "gradient elsewhere", dtype);
        }
    }
}

/**
 * Sums of many elements to few targets: sums of integers are exact in any order, and for other
 * numbers a second call gives the same bits.
 */
TS_TEST(sums_at_few_places_of_long_lines_are_exact, .loop = DTYPES - 1, .timeout = 60)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    seed_draws((uint64_t)(400 + _i));
    for (int turn = 0; turn < 12; turn++) {
        TS_SCOPE;
        int dim = (int)drawn(3);
        int64_t sizes[3] = {1 + drawn(5), 1 + drawn(40), 1 + drawn(5)}, few[3];
        memcpy(few, sizes, sizeof few);
        few[dim] = 1 + drawn(turn % 2 ? 6 : 150);
        sizes[dim] = 300 + drawn(30000);
        ts_tensor *x = ts_to(ts_randint(few, 3, 0, 9), dtype),
                  *y = ts_to(ts_randint(sizes, 3, 0, ts_dtype_is_half(dtype) ? 2 : 9), dtype),
                  *index = ts_randint(sizes, 3, 0, few[dim]),
                  *line = ts_randint(&sizes[dim], 1, 0, few[dim]);
        ts_tensor *there[] = {ts_to_device(x, device), ts_to_device(y, device),
                              ts_to_device(index, device), ts_to_device(line, device)};
        assert_alike(ts_scatter_add(there[0], dim, there[2], there[1]),
                     ts_scatter_add(x, dim, index, y), 0, 0, "scatter_add", dtype);
        assert_alike(ts_index_add(there[0], dim, there[3], there[1]),
                     ts_index_add(x, dim, line, y), 0, 0, "index_add", dtype);
        if (!ts_dtype_is_float(dtype))
            continue;
        ts_tensor *z = ts_to(ts_normal(sizes, 3, 0, 1, TS_F32), dtype), *sums[2];
        z = ts_to_device(z, device);
        for (int k = 0; k < 2; k++)
            sums[k] = ts_scatter_add(there[0], dim, there[2], z);
        assert_alike(sums[1], sums[0], 0, 0, "a second scatter_add", dtype);
    }
}

/** Sums of a few rows at drawn places of short and long dims. Values are whole numbers, so sums are
 * exact in any order. */
TS_TEST(sums_of_few_rows_are_exact, .loop = DTYPES - 1, .timeout = 60)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    seed_draws((uint64_t)(600 + _i));
    for (int turn = 0; turn < 24; turn++) {
        TS_SCOPE;
        int dim = (int)drawn(3);
        int64_t sizes[3] = {1 + drawn(40), 1 + drawn(40), 1 + drawn(turn % 3 ? 40 : 700)}, few[3],
                bound = 1 + drawn(turn % 2 ? 20 : 3000), count = 1 + drawn(turn % 4 ? 100 : 1500);
        sizes[dim] = bound;
        memcpy(few, sizes, sizeof few);
        few[dim] = count;
        if (count * sizes[0] * sizes[1] * sizes[2] / bound > 1 << 20)
            continue;
        ts_tensor *x = ts_to(ts_randint(sizes, 3, 0, 9), dtype),
                  *y = ts_to(ts_randint(few, 3, 0, ts_dtype_is_half(dtype) ? 2 : 9), dtype),
                  *line = ts_randint(&count, 1, 0, bound);
        ts_tensor *there[] = {ts_to_device(x, device), ts_to_device(y, device),
                              ts_to_device(line, device)};
        assert_alike(ts_index_add(there[0], dim, there[2], there[1]),
                     ts_index_add(x, dim, line, y), 0, 0, "index_add", dtype);
        int64_t columns = few[0] * few[1] * few[2] / count, skip = turn % 3 ? -1 : drawn(bound);
        y = ts_reshape(y, TS_SIZES(count, columns));
        assert_alike(ts_embedding_backward(ts_to_device(y, device), there[2], bound, skip),
                     ts_embedding_backward(y, line, bound, skip), 0, 0, "embedding_backward",
                     dtype);
    }
}

/** Reductions over dim 0 of rows that are not a multiple of 16 bytes long, at each alignment:
 *  results are bit-identical with those of an aligned copy. */
TS_TEST(reductions_of_columns_do_not_depend_on_alignment, .loop = 3)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    seed_draws((uint64_t)(500 + _i));
    for (int turn = 0; turn < 30; turn++) {
        TS_SCOPE;
        int64_t rows = 1 + drawn(700), columns = 1 + drawn(turn % 2 ? 40 : 900), from = drawn(9);
        ts_tensor *flat = ts_to_device(
            ts_to(ts_normal(TS_SIZES(rows * columns + from), 0, 2, TS_F32), dtype), device);
        ts_tensor *x = ts_view(ts_narrow(flat, 0, from, rows * columns), TS_SIZES(rows, columns)),
                  *copy = ts_clone(x), *here = ts_to_device(x, TS_DEVICE_CPU);
        double unit = 2 * unit_of(dtype);
        assert_alike(ts_argmax_dim(x, 0, false), ts_argmax_dim(here, 0, false), 0, 0, "argmax",
                     dtype);
        assert_alike(ts_amin_dim(x, 0, false), ts_amin_dim(here, 0, false), 0, 0, "amin", dtype);
        ts_tensor *sum = ts_sum_dim(x, 0, false), *var = ts_var_dim(x, 0, 0, false);
        assert_alike(sum, ts_sum_dim(here, 0, false), unit, 1e-5 * (double)rows, "sum", dtype);
        assert_alike(var, ts_var_dim(here, 0, 0, false), 4 * unit, 1e-6, "var", dtype);
        assert_alike(sum, ts_sum_dim(copy, 0, false), 0, 0, "sum elsewhere", dtype);
        assert_alike(var, ts_var_dim(copy, 0, 0, false), 0, 0, "var elsewhere", dtype);
    }
}

/** Scatters with up to 8 indices per line, some equal: sums have the CPU's order and are rounded
 *  once. */
TS_TEST(sums_at_few_places_of_a_line_equal_those_of_the_CPU, .loop = DTYPES - 1, .timeout = 60)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    seed_draws((uint64_t)(300 + _i));
    for (int turn = 0; turn < 60; turn++) {
        TS_SCOPE;
        int ndim = 1 + (int)drawn(4), dim = (int)drawn(ndim);
        int64_t sizes[4], few[4], limit = 200000;
        for (int d = 0; d < ndim; d++)
            few[d] = sizes[d] = drawn_size(&limit);
        few[dim] = 1 + drawn(8); /* more are added in parts, with other bits than the CPU's */
        ts_tensor *x = ts_normal(sizes, ndim, 0, 9, TS_F32),
                  *y = ts_normal(few, ndim, 0, 9, TS_F32),
                  *index = ts_randint(few, ndim, 0, sizes[dim]);
        x = ts_to(ts_dtype_is_float(dtype) ? x : ts_abs(x), dtype);
        y = ts_to(ts_dtype_is_float(dtype) ? y : ts_abs(y), dtype);
        assert_alike(ts_scatter_add(ts_to_device(x, device), dim, ts_to_device(index, device),
                                    ts_to_device(y, device)),
                     ts_scatter_add(x, dim, index, y), 0, 0, "scatter_add", dtype);
        /* whole numbers, whose sums are exact in any order, from a source of any layout */
        ts_tensor *both[2], *line = ts_randint(&few[dim], 1, 0, sizes[dim]);
        draw_layout(few, ndim, dtype, device, &both);
        x = drawn_values(sizes, ndim, dtype, true);
        assert_alike(
            ts_index_add(ts_to_device(x, device), dim, ts_to_device(line, device), both[1]),
            ts_index_add(x, dim, line, both[0]), 0, 0, "index_add", dtype);
    }
}

/** Thousands of short lines, which a thread each adds in the CPU's order. */
TS_TEST(sums_of_many_short_lines_equal_those_of_the_CPU, .loop = DTYPES - 1, .timeout = 60)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    seed_draws((uint64_t)(350 + _i));
    for (int turn = 0; turn < 20; turn++) {
        TS_SCOPE;
        int dim = (int)drawn(2);
        int64_t lines = 2048 + drawn(3000), sizes[2], few[2];
        few[!dim] = sizes[!dim] = lines;
        sizes[dim] = 1 + drawn(30);
        few[dim] = 9 + drawn(24);
        ts_tensor *x = ts_normal(sizes, 2, 0, 9, TS_F32), *y = ts_normal(few, 2, 0, 9, TS_F32),
                  *index = ts_randint(few, 2, 0, sizes[dim]);
        x = ts_to(ts_dtype_is_float(dtype) ? x : ts_abs(x), dtype);
        y = ts_to(ts_dtype_is_float(dtype) ? y : ts_abs(y), dtype);
        assert_alike(ts_scatter_add(ts_to_device(x, device), dim, ts_to_device(index, device),
                                    ts_to_device(y, device)),
                     ts_scatter_add(x, dim, index, y), 0, 0, "scatter_add", dtype);
    }
}

TS_TEST(an_index_without_dims_selects_one_element_of_a_vector)
{
    GPU(device);
    TS_SCOPE;
    const int64_t sizes[] = {300}, one[] = {1};
    ts_tensor *x = ts_normal(sizes, 1, 0, 9, TS_F32), *y = ts_normal(one, 1, 0, 9, TS_F32),
              *index = ts_full(NULL, 0, ts_scalar_int(7), TS_I64);
    assert_alike(ts_index_add(ts_to_device(x, device), 0, ts_to_device(index, device),
                              ts_to_device(y, device)),
                 ts_index_add(x, 0, index, y), 0, 0, "index_add", TS_F32);
}
