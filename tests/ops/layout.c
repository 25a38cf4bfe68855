/** @file layout.c  Pointwise ops over drawn layouts have the values of contiguous operands, and
 *  results have the layout of their operands. */
// SPDX-License-Identifier: MIT
#include "core/base.h"
#include "core/philox.h"
#include "ops/spatial.h"
#include "tests/ops/images.h"
#include "tests/ops/rows.h"
#include "tests/ops/values.h"

typedef struct dice {
    uint64_t seed, count;
} dice;

static int64_t draw(dice *d, int64_t n)
{
    return (int64_t)(ts_philox_u64(d->seed, 0, d->count++) % (uint64_t)n);
}

/** A view with the sizes: dims in a drawn order in memory, some broadcast, sliced or with steps. */
static ts_tensor *drawn_view(dice *d, const int64_t *sizes, int ndim, ts_dtype dtype)
{
    int64_t order[TS_MAX_DIMS], inverse[TS_MAX_DIMS], whole[TS_MAX_DIMS] = {0}, step[TS_MAX_DIMS];
    for (int i = 0; i < ndim; i++) {
        int64_t at = draw(d, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (int i = 0; i < ndim; i++) {
        int64_t n = sizes[order[i]];
        inverse[order[i]] = i;
        step[i] = draw(d, 6) ? 1 : 2;
        whole[i] = draw(d, 5) ? n * step[i] + (draw(d, 4) ? 0 : 1) : 1; /* 1: the dim is expanded */
    }
    ts_tensor *t = ts_to(ts_uniform(whole, ndim, -4.0, 4.0, TS_F32), dtype);
    for (int i = 0; i < ndim; i++)
        if (whole[i] > 1)
            t = ts_slice(t, i, 0, sizes[order[i]] * step[i], step[i]);
    t = ts_permute(t, inverse, ndim);
    return ts_expand(t, sizes, ndim);
}

/** One case in eight draws large tensors; with TS_TEST_FULL, all do. */
static bool is_small(int loop) { return !getenv("TS_TEST_FULL") && loop % 8; }

static void expect_same(ts_tensor *got, ts_tensor *want)
{
    ck_assert_ptr_nonnull(got);
    ck_assert_ptr_nonnull(want);
    size_t bytes = (size_t)ts_numel(want) * ts_dtype_size(ts_dtype_of(want));
    ck_assert_int_eq(ts_dtype_of(got), ts_dtype_of(want));
    char *a = malloc(bytes + 1), *b = malloc(bytes + 1);
    ck_assert_int_eq(ts_copy_to(got, a, bytes), TS_OK);
    ck_assert_int_eq(ts_copy_to(want, b, bytes), TS_OK);
    ck_assert(memcmp(a, b, bytes) == 0);
    free(a);
    free(b);
    ts_tally(1, 0, 0);
}

TS_TEST(any_layout_gives_the_values_of_contiguous_operands, .loop = 40)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16, TS_F16, TS_I64, TS_I32, TS_U8};
    dice d = {0x1a7e5 + (uint64_t)_i, 0};
    ts_manual_seed((uint64_t)_i);
    for (int round = 0; round < (getenv("TS_TEST_BRIEF") ? 3 : 12); round++) {
        TS_SCOPE;
        int ndim = 1 + (int)draw(&d, 5);
        int64_t sizes[TS_MAX_DIMS], numel = 1;
        for (int i = 0; i < ndim; i++) {
            static const int64_t most[] = {2, 5, 17, 300};
            sizes[i] = 1 + draw(&d, most[draw(&d, 4)]);
            while (numel * sizes[i] > (is_small(_i) ? 5000 : 150000))
                sizes[i] = (sizes[i] + 1) / 2;
            numel *= sizes[i];
        }
        ts_dtype dtype = dtypes[draw(&d, TS_COUNTOF(dtypes))];
        ts_set_num_threads(1 + (int)draw(&d, 3));
        ts_tensor *x = drawn_view(&d, sizes, ndim, dtype), *y = drawn_view(&d, sizes, ndim, dtype),
                  *z = drawn_view(&d, sizes, ndim, TS_F32), *c = ts_gt_scalar(z, 0.5);
        ck_assert_ptr_nonnull(c);
        ts_tensor *px = ts_contiguous(x), *py = ts_contiguous(y), *pz = ts_contiguous(z),
                  *pc = ts_contiguous(c);
        expect_same(ts_neg(x), ts_neg(px));
        expect_same(ts_add(x, y), ts_add(px, py));
        expect_same(ts_mul(x, z), ts_mul(px, pz));
        expect_same(ts_maximum(x, y), ts_maximum(px, py));
        expect_same(ts_lt(x, y), ts_lt(px, py));
        expect_same(ts_where(c, x, y), ts_where(pc, px, py));
        expect_same(ts_masked_fill_scalar(x, c, 3), ts_masked_fill_scalar(px, pc, 3));
        expect_same(ts_to(x, TS_F16), ts_to(px, TS_F16));
        expect_same(ts_tanh(z), ts_tanh(pz));
        expect_same(ts_contiguous(x), px);
        expect_same(ts_clone(x), px);
        /* a destination of any layout */
        ts_tensor *out =
            ts_transpose(ts_clone(ts_contiguous(ts_transpose(px, 0, ndim - 1))), 0, ndim - 1);
        ck_assert_ptr_nonnull(ts_add_out(out, x, y));
        expect_same(out, ts_add(px, py));
        /* random numbers depend on an element's index, not on its address */
        uint64_t seed = (uint64_t)draw(&d, 1000);
        ts_manual_seed(seed);
        ts_tensor *dropped = ts_dropout(z, 0.4, true);
        ts_manual_seed(seed);
        expect_same(dropped, ts_dropout(pz, 0.4, true));
    }
    ts_set_num_threads(1);
}

static ts_tensor *leaky(ts_tensor *x) { return ts_leaky_relu(x, 0.3); }
static ts_tensor *bounded(ts_tensor *x) { return ts_clamp(x, TS_SCALAR(-1.5), TS_SCALAR(2)); }

/* A call of mixed dtypes has the bits of the call whose operands were cast before. A function of
 * halves has the bits of the function of f32, rounded. */
TS_TEST(operands_that_a_loop_converts_have_the_values_of_casts, .loop = 40)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16, TS_F16,
                                      TS_I64, TS_I32, TS_U8,   TS_BOOL};
    static ts_tensor *(*const two[])(ts_tensor *, ts_tensor *) = {
        ts_add, ts_mul, ts_div, ts_maximum, ts_minimum, ts_eq, ts_lt, ts_logical_xor, ts_hypot};
    static ts_tensor *(*const one[])(ts_tensor *) = {ts_sqrt, ts_exp, ts_sigmoid, ts_reciprocal};
    static ts_tensor *(*const light[])(ts_tensor *) = {
        ts_relu, ts_floor, ts_ceil, ts_round, ts_trunc, ts_frac,
        ts_sign, ts_square, ts_reciprocal, leaky, bounded};
    dice d = {0xca57 + (uint64_t)_i, 0};
    ts_manual_seed((uint64_t)_i);
    for (int round = 0; round < (getenv("TS_TEST_BRIEF") ? 2 : 8); round++) {
        TS_SCOPE;
        int ndim = 1 + (int)draw(&d, 3);
        int64_t sizes[TS_MAX_DIMS];
        for (int i = 0; i < ndim; i++)
            sizes[i] = 1 + draw(&d, i ? (is_small(_i) ? 10 : 40) : is_small(_i) ? 200 : 2000);
        ts_set_num_threads(1 + (int)draw(&d, 3));
        ts_tensor *x = drawn_view(&d, sizes, ndim, dtypes[draw(&d, TS_COUNTOF(dtypes))]),
                  *y = drawn_view(&d, sizes, ndim, dtypes[draw(&d, TS_COUNTOF(dtypes))]);
        for (int k = 0; k < TS_COUNTOF(two); k++) {
            ts_tensor *got = two[k](x, y);
            bool bools = ts_dtype_of(x) == TS_BOOL && ts_dtype_of(y) == TS_BOOL;
            ts_tensor *sum = ts_add(x, y); /* has the dtype to which both are promoted */
            if (!got && bools)
                continue; /* not defined */
            ts_dtype dtype = ts_dtype_of(sum);
            expect_same(got, two[k](ts_contiguous(ts_to(x, dtype)),
                                    ts_contiguous(ts_to(y, dtype))));
        }
        for (int k = 0; k < TS_COUNTOF(one); k++)
            if (ts_dtype_of(x) >= TS_I64)
                expect_same(one[k](x), one[k](ts_to(x, TS_F32)));
        for (int k = 0; k < TS_COUNTOF(light); k++) {
            ts_dtype half = draw(&d, 2) ? TS_BF16 : TS_F16;
            ts_tensor *h = drawn_view(&d, sizes, ndim, half);
            expect_same(light[k](h), ts_to(light[k](ts_to(h, TS_F32)), half));
            ts_tensor *g = drawn_view(&d, sizes, ndim, half);
            expect_same(two[k % 5](h, g),
                        ts_to(two[k % 5](ts_to(h, TS_F32), ts_to(g, TS_F32)), half));
        }
        if (ts_dtype_of(x) >= TS_I64)
            expect_same(ts_isfinite(x), ts_ones(sizes, ndim, TS_BOOL));
    }
    ts_set_num_threads(1);
}

static void expect_strides(ts_tensor *t, int64_t a, int64_t b, int64_t c)
{
    ck_assert_ptr_nonnull(t);
    ck_assert_int_eq(ts_strides(t)[0], a);
    ck_assert_int_eq(ts_strides(t)[1], b);
    ck_assert_int_eq(ts_strides(t)[2], c);
}

TS_TEST(a_pointwise_result_has_the_layout_of_its_operands)
{
    static const int64_t sizes[] = {3, 4, 5}, swapped[] = {5, 4, 3};
    ts_tensor *x = ts_transpose(ts_ones(swapped, 3, TS_F32), 0, 2),
              *plain = ts_ones(sizes, 3, TS_F32);
    expect_strides(x, 1, 3, 12);
    expect_strides(ts_exp(x), 1, 3, 12);
    expect_strides(ts_add_scalar(x, 1), 1, 3, 12);
    expect_strides(ts_lt(x, x), 1, 3, 12);
    expect_strides(ts_add(x, ts_transpose(ts_ones(swapped, 3, TS_F64), 0, 2)), 1, 3, 12);
    /* the first operand that orders two dims decides */
    expect_strides(ts_add(x, plain), 1, 3, 12);
    expect_strides(ts_add(plain, x), 20, 5, 1);
    /* broadcast dims do not determine the order */
    ts_tensor *row = ts_ones((int64_t[]){1, 4, 1}, 3, TS_F32);
    expect_strides(ts_add(row, x), 1, 3, 12);
    expect_strides(ts_mul(ts_ones((int64_t[]){5}, 1, TS_F32), x), 1, 3, 12);
    /* results have no gaps */
    ts_tensor *longer = ts_transpose(ts_ones((int64_t[]){5, 4, 6}, 3, TS_F32), 0, 2);
    expect_strides(ts_exp(ts_slice(longer, 0, 0, 6, 2)), 1, 3, 12);
    /* results of ops that are not pointwise are contiguous */
    expect_strides(ts_contiguous(x), 20, 5, 1);
    expect_strides(ts_cumsum(x, 0), 20, 5, 1);
    /* META results have the same strides */
    ts_tensor *y = ts_transpose(ts_empty_on(swapped, 3, TS_F32, TS_DEVICE_META), 0, 2);
    expect_strides(ts_exp(y), 1, 3, 12);
}

/** Fails the case unless y has the sizes of x and is dense, with its dims in the order of x's
 *  strides. Dims of size 1 may have any stride. */
static void expect_order_of(const ts_tensor *y, const ts_tensor *x)
{
    ck_assert_msg(y != NULL, "%s", ts_error_message());
    int64_t step = 1, left = 0;
    for (int d = 0; d < x->ndim; d++) {
        ck_assert_int_eq(y->sizes[d], x->sizes[d]);
        left += x->sizes[d] > 1;
    }
    for (bool done[TS_MAX_DIMS] = {false}; left--;) {
        int next = -1; /* the dim with the smallest stride */
        for (int d = 0; d < x->ndim; d++)
            if (!done[d] && x->sizes[d] > 1 && (next < 0 || x->strides[d] < x->strides[next]))
                next = d;
        done[next] = true;
        ck_assert_int_eq(y->strides[next], step);
        step *= x->sizes[next];
    }
}

/** x as (d0, d1, ...) in memory, seen in a drawn order of dims; sliced: every second element along
 *  one dim. */
static ts_tensor *in_drawn_order(dice *d, int ndim, ts_device device)
{
    int64_t sizes[TS_MAX_DIMS], order[TS_MAX_DIMS];
    for (int i = 0; i < ndim; i++) {
        sizes[i] = 1 + draw(d, 5);
        int64_t at = draw(d, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    int dim = (int)draw(d, ndim);
    bool sliced = draw(d, 3) == 0;
    sizes[dim] *= sliced ? 2 : 1;
    ts_tensor *x = ts_to_device(ts_normal(sizes, ndim, 0, 1, TS_F32), device);
    return ts_permute(sliced ? ts_slice(x, dim, 0, TS_END, 2) : x, order, ndim);
}

TS_TEST(copies_and_tensors_like_others_keep_the_order_of_dims, .loop = 2)
{
    dice d = {0xc09e + (uint64_t)_i, 0};
    ts_device device = _i ? TS_DEVICE_META : TS_DEVICE_CPU;
    for (int round = 0; round < 200; round++) {
        TS_SCOPE;
        ts_tensor *x = in_drawn_order(&d, 1 + (int)draw(&d, 5), device);
        ck_assert_ptr_nonnull(x);
        ts_tensor *all[] = {ts_clone(x), ts_to(x, TS_F64), ts_zeros_like(x), ts_ones_like(x),
                            ts_empty_like(x), ts_full_like(x, 3), ts_dropout(x, 0.5, true),
                            ts_dropout_backward(x, 0.5, (ts_rng_state){1, 2})};
        for (size_t i = 0; i < TS_COUNTOF(all); i++)
            expect_order_of(all[i], x);
        if (_i)
            continue;
        expect_same(all[0], ts_contiguous(x));
        expect_same(all[1], ts_to(ts_contiguous(x), TS_F64));
        expect_same(all[2], ts_zeros(x->sizes, x->ndim, TS_F32));
        expect_same(all[5], ts_full(x->sizes, x->ndim, TS_SCALAR(3), TS_F32));
        expect_same(all[7], ts_dropout_backward(ts_contiguous(x), 0.5, (ts_rng_state){1, 2}));
    }
}

/* They are whole tensors, which may be written in place with gradients. */
TS_TEST(tensors_like_others_and_channels_last_copies_are_no_views)
{
    TS_SCOPE;
    ts_tensor *image = ts_normal(TS_SIZES(2, 3, 4, 5), 0, 1, TS_F32),
              *last = ts_to_channels_last(image),
              *w = ts_set_requires_grad(ts_ones(TS_SIZES(2, 3, 4, 5), TS_F32), true);
    ts_tensor *all[] = {ts_zeros_like(last), ts_clone(last), last};
    for (size_t i = 0; i < TS_COUNTOF(all); i++) {
        ck_assert_msg(ts_add_(all[i], w) != NULL, "%s", ts_error_message());
        ck_assert(!ts_is_contiguous(all[i]));
        ck_assert_int_eq(ts_backward(ts_sum(all[i])), TS_OK);
    }
    double sum;
    ck_assert_int_eq(ts_item(ts_sum(ts_grad(w)), &sum), TS_OK);
    ck_assert_double_eq(sum, 3 * 120);
}

TS_TEST(to_channels_last_has_gradients)
{
    for (int ndim = 3; ndim <= 5; ndim++) {
        TS_SCOPE;
        ts_tensor *plain = ts_normal(TS_SIZES(2, 3, 4, 5, 2), 0, 1, TS_F64);
        while (ts_ndim(plain) > ndim)
            plain = ts_select(plain, -1, 0);
        ts_tensor *x = ts_set_requires_grad(ts_contiguous(plain), true),
                  *y = ts_to_channels_last(x), *weight = ts_sin(plain);
        ck_assert_ptr_nonnull(y);
        ck_assert(ts_is_contiguous(ts_movedim(y, 1, -1)));
        expect_same(y, plain);
        ck_assert_ptr_eq(ts_data(ts_to_channels_last(y)), ts_data(y));
        ck_assert(ts_is_contiguous(ts_contiguous(y)));
        ck_assert_int_eq(ts_backward(ts_sum(ts_mul(ts_square(y), weight))), TS_OK);
        expect_same(ts_grad(x), ts_mul(ts_mul_scalar(plain, 2), weight));
    }
    ck_assert_ptr_null(ts_to_channels_last(ts_ones(TS_SIZES(2, 3), TS_F32)));
    ck_assert_str_eq(ts_error_message(), "to_channels_last: argument 't': expected 3 to 5 dims "
                                         "(N, C, ...), got sizes (2, 3)");
    ck_assert_ptr_null(ts_to_channels_last(ts_ones(TS_SIZES(2, 3, 1, 1, 1, 1), TS_F32)));
    ck_assert_ptr_null(ts_to_channels_last(NULL));
}

/** Runs of equal elements, of which blocks compute the first ones, have the values of a copy. */
TS_TEST(rows_of_equal_elements)
{
    static const ts_dtype dtypes[] = {TS_F64, TS_F32, TS_BF16, TS_U8};
    for (int d = 0; d < 4; d++)
        for (int64_t n = 60; n < 600; n = n * 3 / 2) {
            TS_SCOPE;
            ts_tensor *x = ts_to(numbers(n, TS_SIZES(5, 130, 1), TS_F32), dtypes[d]);
            ts_tensor *wide = ts_expand(ts_transpose(x, 0, 1), TS_SIZES(130, 5, n));
            ts_tensor *y = ts_contiguous(ts_mul(wide, wide)), *copy = ts_contiguous(wide);
            ck_assert(same_bits(y, ts_mul(copy, copy)));
            ts_tensor *filled = ts_zeros(TS_SIZES(130, 5, 2 * n), dtypes[d]);
            ts_tensor *part = ts_slice(filled, 2, 3, n + 3, 1);
            ck_assert_msg(ts_mul_out(part, wide, wide) != NULL, "%s", ts_error_message());
            ck_assert(same_bits(ts_contiguous(part), y));
            ck_assert(same_bits(ts_sum(ts_to(filled, TS_F64)), ts_sum(ts_to(y, TS_F64))) ||
                      dtypes[d] != TS_U8);
        }
}

/* ------------------------------------------------------------------------------ images ---- */

enum { IMAGE_OPS = 18, FIRST_SHUFFLE = 16, PADS_CHANNELS = 15 };

static ts_tensor *image_op(int op, ts_tensor *x, const int64_t *n)
{
    ts_pool_opts pool = {.size = sizeof pool, .kernel = {n[0], n[1]}, .stride = {n[2], 1}};
    ts_interpolate_opts resize = {.size = sizeof resize, .sizes = {n[3], n[4]},
                                  .mode = (ts_interpolation)(op % 3)};
    const int64_t pads[] = {n[1] - 1, n[2] - 1, n[0] - 1, 1, 1, 0};
    int64_t c = ts_size(x, 1);
    ts_tensor *indices;
    switch (op) {
    case 0: return ts_max_pool2d(x, &pool, NULL);
    case 1: return ts_max_pool2d(x, &pool, &indices);
    case 2: return ts_avg_pool2d(x, &pool);
    case 3: return ts_adaptive_max_pool(x, n + 3, 2, NULL);
    case 4: return ts_adaptive_avg_pool(x, n + 3, 2);
    case 5: return ts_adaptive_avg_pool(x, TS_SIZES(1, 1));
    case 6:
    case 7:
    case 8: return ts_interpolate(x, &resize);
    case 9: return ts_batch_norm(x, TS_NONE, TS_NONE, TS_NONE, TS_NONE, true, 0.1, 1e-2);
    case 10: return ts_batch_norm_relu(x, TS_NONE, TS_NONE, TS_NONE, TS_NONE, true, 0.1, 1e-2);
    case 11: return ts_group_norm(x, c % 2 ? 1 : 2, TS_NONE, TS_NONE, 1e-2);
    case 12: return ts_pad(x, pads, 4, TS_PAD_CONSTANT, TS_SCALAR(0.5));
    case 13: return ts_pad(x, pads, 4, TS_PAD_REPLICATE, TS_SCALAR(0));
    case 14: return ts_pad(x, TS_SIZES(0, 1), TS_PAD_CONSTANT, TS_SCALAR(0));
    case PADS_CHANNELS: return ts_pad(x, pads, 6, TS_PAD_CONSTANT, TS_SCALAR(0.5));
    case FIRST_SHUFFLE: return ts_pixel_shuffle(x, 2);
    default: return ts_pixel_unshuffle(x, 2);
    }
}

/** Contiguous or channels-last, dense or a slice. Strides of dims of size 1 differ, too. */
static ts_tensor *drawn_image(dice *d, const int64_t *sizes)
{
    bool last = draw(d, 3) > 0;
    int cut = (int)draw(d, 6); /* 4 and 5: dense */
    int64_t whole[4];
    memcpy(whole, sizes, sizeof whole);
    if (cut < 4)
        whole[cut] += 2;
    ts_tensor *t = last ? ts_permute(ts_normal(TS_SIZES(whole[0], whole[2], whole[3], whole[1]), 0,
                                               1, TS_F32), (const int64_t[]){0, 3, 1, 2}, 4)
                        : ts_normal(whole, 4, 0, 1, TS_F32);
    return cut < 4 ? ts_slice(t, cut, 1, sizes[cut] + 1, 1) : t;
}

/** Fails the case unless t is dense, and channels-last if `last`, else contiguous. */
static void expect_format(const ts_tensor *t, bool last, int op, const char *what)
{
    static const int orders[2][4] = {{3, 2, 1, 0}, {1, 3, 2, 0}};
    int64_t step = 1;
    for (int k = 0; k < 4; k++) {
        int e = orders[last][k];
        ck_assert_msg(t->sizes[e] == 1 || t->strides[e] == step,
                      "%s of op %d: stride %lld of dim %d, expected %lld", what, op,
                      (long long)t->strides[e], e, (long long)step);
        step *= t->sizes[e];
    }
}

/* PyTorch's rule: results and gradients have the memory format that the input's strides suggest. */
TS_TEST(images_keep_the_format_of_their_input, .loop = 40)
{
    dice d = {0x13a6e + (uint64_t)_i, 0};
    ts_manual_seed((uint64_t)_i);
    for (int round = 0; round < (getenv("TS_TEST_BRIEF") ? 10 : 60); round++) {
        TS_SCOPE;
        int op = (int)draw(&d, IMAGE_OPS);
        int64_t sizes[4] = {1 + draw(&d, 3), 1 + draw(&d, 5), 1 + draw(&d, 5), 1 + draw(&d, 5)};
        for (int k = 2; k < 4; k++)
            sizes[k] = draw(&d, 3) ? sizes[k] : 1;
        if (op == FIRST_SHUFFLE)
            sizes[1] *= 4;
        for (int k = 2; k < 4 && op > FIRST_SHUFFLE; k++)
            sizes[k] *= 2;
        for (int k = 0; k < 3 && op >= 9 && op <= 11; k++)
            sizes[2] += 2; /* a norm of several elements */
        int64_t n[] = {1 + draw(&d, sizes[2]), 1 + draw(&d, sizes[3]), 1 + draw(&d, 2),
                       1 + draw(&d, 6), 1 + draw(&d, 6)};
        ts_tensor *x = ts_set_requires_grad(drawn_image(&d, sizes), true),
                  *flat = ts_set_requires_grad(ts_clone(ts_contiguous(ts_detach(x))), true), *dx[2];
        bool last = ts_is_channels_last(x);
        ts_tensor *y = image_op(op, x, n), *want = image_op(op, flat, n);
        ck_assert_msg(y && want, "op %d: %s", op, ts_error_message());
        expect_format(y, last, op, "result");
        ts_tensor *g = drawn_image(&d, y->sizes);
        ck_assert_int_eq(ts_grad_of(y, g, &x, 1, &dx[0], NULL), TS_OK);
        ck_assert_int_eq(ts_grad_of(want, ts_contiguous(g), &flat, 1, &dx[1], NULL), TS_OK);
        if (op < PADS_CHANNELS) /* those of composites follow their parts */
            expect_format(dx[0], last, op, "gradient");
        assert_close(y, want, 1e-4);
        assert_close(dx[0], dx[1], 1e-3);
    }
}
