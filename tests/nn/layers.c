// Layers against the ops that they consist of: results, gradients, and initial values.
// SPDX-License-Identifier: MIT
#include <math.h>
#include <string.h>

#include "include/tessera/tessera.h"
#include "tests/harness.h"

enum { B = 5, C = 8 };

static double at(const ts_tensor *t, int64_t i) { return (double)((const float *)ts_data(t))[i]; }

/** Asserts that two f32 tensors have the same bits. */
static void assert_equal(const ts_tensor *a, const ts_tensor *b)
{
    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_nonnull(b);
    ck_assert_int_eq(ts_numel(a), ts_numel(b));
    ck_assert_mem_eq(ts_data(a), ts_data(b), (size_t)ts_numel(a) * 4);
}

/**
 * Runs the module and `composed` on the same input; results and the gradients of all parameters and
 * of the input must be the same bits.
 */
static void assert_composed(ts_module *m, ts_tensor *(*composed)(ts_module *m, ts_tensor *x))
{
    ts_named_tensors params;
    ck_assert_ptr_nonnull(m);
    ck_assert_int_eq(ts_module_parameters(m, &params), TS_OK);
    TS_SCOPE;
    ts_tensor *values = ts_normal(TS_SIZES(2, B, C), 0, 1, TS_F32), *result[2], *input[2],
              *grads[2][16];
    ck_assert_int_le(params.n, 16);
    for (int k = 0; k < 2; k++) {
        input[k] = ts_set_requires_grad(ts_clone(values), true);
        ts_manual_seed(77);
        result[k] = k ? composed(m, input[k]) : ts_forward(m, input[k]);
        ck_assert_msg(result[k] != NULL, "%s", ts_error_message());
        ck_assert_int_eq(ts_backward(ts_sum(ts_mul(result[k], result[k]))), TS_OK);
        for (int64_t i = 0; i < params.n; i++) {
            ck_assert_msg(ts_grad(params.tensors[i]) != TS_NONE, "%s has no gradient",
                          params.names[i]);
            grads[k][i] = ts_clone(ts_grad(params.tensors[i]));
        }
        ts_module_zero_grad(m);
    }
    assert_equal(result[0], result[1]);
    assert_equal(ts_grad(input[0]), ts_grad(input[1]));
    for (int64_t i = 0; i < params.n; i++)
        assert_equal(grads[0][i], grads[1][i]);
    ts_named_tensors_free(&params);
    ts_module_free(m);
}

static ts_tensor *param(ts_module *m, const char *name) { return ts_module_tensor(m, name); }

/* -------------------------------------------------------------------------------- linear ---- */

static ts_tensor *linear(ts_module *m, ts_tensor *x)
{
    return ts_linear(x, param(m, "weight"), param(m, "bias"));
}

TS_TEST(linear_multiplies_and_adds)
{
    ts_module *m = ts_linear_new(C, 3, true);
    TS_SCOPE;
    ts_tensor *x = ts_normal(TS_SIZES(B, C), 0, 1, TS_F32), *y = ts_forward(m, x);
    const ts_tensor *w = param(m, "weight"), *bias = param(m, "bias");
    for (int b = 0; b < B; b++)
        for (int o = 0; o < 3; o++) {
            double sum = at(bias, o);
            for (int i = 0; i < C; i++)
                sum += at(x, b * C + i) * at(w, o * C + i);
            ck_assert_double_eq_tol(at(y, b * 3 + o), sum, 1e-5);
        }
    assert_composed(m, linear);
    ts_module *plain = ts_linear_new(C, 3, false);
    ck_assert_int_eq(ts_module_num_parameters(plain), 3 * C);
    ck_assert_int_eq(ts_numel(ts_forward(plain, x)), 3 * B);
    ck_assert_ptr_null(ts_forward(plain, ts_ones(TS_SIZES(B, C + 1), TS_F32)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ts_module_free(plain);
}

static const ts_conv_opts conv_opts = {.size = sizeof conv_opts, .stride = {2}, .padding = {1}};

static ts_tensor *conv(ts_module *m, ts_tensor *x)
{
    return ts_conv1d(x, param(m, "weight"), param(m, "bias"), &conv_opts);
}
static ts_tensor *conv_transpose(ts_module *m, ts_tensor *x)
{
    return ts_conv_transpose1d(x, param(m, "weight"), param(m, "bias"), &conv_opts);
}

TS_TEST(convolutions_take_their_dims_from_the_kernel)
{
    assert_composed(ts_conv_new(B, 6, TS_SIZES(3), true, &conv_opts), conv);
    assert_composed(ts_conv_transpose_new(B, 6, TS_SIZES(3), true, &conv_opts), conv_transpose);
    TS_SCOPE;
    ts_conv_opts groups = {.size = sizeof groups, .same = true, .groups = 2};
    ts_module *m = ts_conv_new(4, 6, TS_SIZES(3, 2), true, &groups);
    ts_tensor *y = ts_forward(m, ts_ones(TS_SIZES(2, 4, 5, 7), TS_F32));
    ck_assert_ptr_nonnull(y);
    ck_assert_mem_eq(ts_sizes(y), ((int64_t[]){2, 6, 5, 7}), 4 * sizeof(int64_t));
    ck_assert_int_eq(ts_module_num_parameters(m), 6 * 2 * 6 + 6);
    ck_assert_str_eq(ts_module_type_of(m)->name, "Conv2d");
    ts_module_free(m);
    m = ts_conv_transpose_new(4, 6, TS_SIZES(2, 2, 2), true, NULL);
    y = ts_forward(m, ts_ones(TS_SIZES(4, 2, 3, 4), TS_F32));
    ck_assert_ptr_nonnull(y);
    ck_assert_mem_eq(ts_sizes(y), ((int64_t[]){6, 3, 4, 5}), 4 * sizeof(int64_t));
    ts_module_free(m);
}

/* As torch.nn.init.kaiming_uniform_(weight, a=sqrt(5)), whose fan-in is computed from dim 1. */
TS_TEST(convolutions_begin_within_their_bound)
{
    ts_manual_seed(6);
    for (int transposed = 0; transposed < 2; transposed++) {
        ts_module *m = transposed ? ts_conv_transpose_new(20, 40, TS_SIZES(3, 5), true, NULL)
                                  : ts_conv_new(20, 40, TS_SIZES(3, 5), true, NULL);
        double bound = 1 / sqrt((transposed ? 40 : 20) * 15), most = 0, squares = 0;
        const ts_tensor *w = param(m, "weight"), *bias = param(m, "bias");
        for (int64_t i = 0; i < ts_numel(w); i++) {
            most = fmax(most, fabs(at(w, i)));
            squares += at(w, i) * at(w, i) / (double)ts_numel(w);
        }
        ck_assert(most <= bound && most > 0.99 * bound);
        ck_assert_double_eq_tol(sqrt(squares), bound / sqrt(3), 0.02 * bound);
        for (int i = 0; i < 40; i++)
            ck_assert(fabs(at(bias, i)) <= bound);
        ts_module_free(m);
    }
}

TS_TEST(linear_begins_within_its_bound)
{
    ts_manual_seed(5);
    ts_module *m = ts_linear_new(100, 400, true);
    const ts_tensor *w = param(m, "weight");
    double squares = 0, most = 0;
    for (int64_t i = 0; i < ts_numel(w); i++) {
        squares += at(w, i) * at(w, i);
        most = fmax(most, fabs(at(w, i)));
    }
    ck_assert_double_le(most, 0.1);
    ck_assert_double_ge(most, 0.0999);
    ck_assert_double_eq_tol(squares / 40000, 0.01 / 3, 5 * 0.01 * sqrt(4.0 / 45) / 200);
    ts_module_free(m);
}

/* ---------------------------------------------------------------------------- embedding ---- */

TS_TEST(embedding_takes_rows)
{
    static const int64_t indices[] = {3, 0, 3, 6};
    ts_module *m = ts_embedding_new(7, C);
    TS_SCOPE;
    ts_tensor *x = ts_from_array(indices, TS_I64, TS_SIZES(2, 2)), *y = ts_forward(m, x),
              *w = param(m, "weight");
    ck_assert_int_eq(ts_ndim(y), 3);
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < C; c++)
            ck_assert_double_eq(at(y, i * C + c), at(w, indices[i] * C + c));
    ck_assert_int_eq(ts_backward(ts_sum(y)), TS_OK);
    for (int r = 0; r < 7; r++)
        ck_assert_double_eq(at(ts_grad(w), r * C), r == 3 ? 2 : r == 0 || r == 6);
    ck_assert_ptr_null(ts_forward(m, ts_full(TS_SIZES(1), ts_scalar_int(7), TS_I64)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_INDEX);
    ck_assert_ptr_null(ts_embedding_new(0, 3));
    ts_module_free(m);
}

/* ---------------------------------------------------------------------------- attention ---- */

/* Attention by loops in double, with H query heads and G heads of keys and values. */
static void attend(const ts_tensor *qkv, int H, int G, bool causal, double *y)
{
    int D = C / H, width = (H + 2 * G) * D;
    for (int b = 0; b < 2; b++)
        for (int t = 0; t < B; t++)
            for (int h = 0; h < H; h++) {
                int g = h / (H / G), seen = causal ? t + 1 : B;
                double p[B], sum = 0, *out = y + (b * B + t) * C + h * D;
                for (int s = 0; s < seen; s++) {
                    double score = 0;
                    for (int d = 0; d < D; d++)
                        score += at(qkv, (b * B + t) * width + h * D + d) *
                                 at(qkv, (b * B + s) * width + (H + g) * D + d);
                    sum += p[s] = exp(score / sqrt(D));
                }
                for (int d = 0; d < D; d++) {
                    out[d] = 0;
                    for (int s = 0; s < seen; s++)
                        out[d] += p[s] / sum * at(qkv, (b * B + s) * width + (H + G + g) * D + d);
                }
            }
}

TS_TEST(attention_mixes_positions, .loop = 3)
{
    const ts_multihead_opts *opts[] = {
        TS_OPTS(ts_multihead_opts, .causal = true),
        TS_OPTS(ts_multihead_opts, .causal = true, .kv_heads = 2, .no_bias = true),
        NULL, // each position sees all
    };
    ts_module *m = ts_multihead_new(C, 4, opts[_i]);
    ck_assert_ptr_nonnull(m);
    double y[2 * B * C];
    TS_SCOPE;
    ts_tensor *x = ts_set_requires_grad(ts_normal(TS_SIZES(2, B, C), 0, 1, TS_F32), true),
              *out = ts_forward(m, x);
    ck_assert_msg(out != NULL, "%s", ts_error_message());
    ts_tensor *bias = _i == 1 ? TS_NONE : param(m, "qkv.bias");
    attend(ts_linear(x, param(m, "qkv.weight"), bias), 4, _i == 1 ? 2 : 4, _i != 2, y);
    const ts_tensor *w = param(m, "proj.weight");
    for (int i = 0; i < 2 * B; i++)
        for (int c = 0; c < C; c++) {
            double want = _i == 1 ? 0 : at(param(m, "proj.bias"), c);
            for (int k = 0; k < C; k++)
                want += y[i * C + k] * at(w, c * C + k);
            ck_assert_double_eq_tol(at(out, i * C + c), want, 1e-5);
        }
    /* the result at one position depends only on positions up to it in the same sequence */
    ck_assert_int_eq(ts_backward(ts_sum(ts_narrow(ts_narrow(out, 0, 1, 1), 1, 2, 1))), TS_OK);
    for (int b = 0; b < 2; b++)
        for (int t = 0; t < B; t++) {
            double size = 0;
            for (int c = 0; c < C; c++)
                size += fabs(at(ts_grad(x), (b * B + t) * C + c));
            ck_assert_int_eq(size > 0, b == 1 && (t <= 2 || _i == 2));
        }
    ck_assert(ts_grad(param(m, "qkv.weight")) != TS_NONE && ts_grad(w) != TS_NONE);
    ts_module_free(m);
}

TS_TEST(errors_of_attention_name_the_argument)
{
    TS_SCOPE;
    ck_assert_ptr_null(ts_multihead_new(C, 3, NULL));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "width 8, heads 3"));
    ck_assert_ptr_null(ts_multihead_new(C, 4, TS_OPTS(ts_multihead_opts, .kv_heads = 3)));
    ts_module *m = ts_multihead_new(C, 2, NULL);
    ck_assert_ptr_null(ts_forward(m, ts_ones(TS_SIZES(4, C), TS_F32)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ts_module_free(m);
}

/* ------------------------------------------------------------------------- norms and so on ---- */

static ts_tensor *layer_norm(ts_module *m, ts_tensor *x)
{
    return ts_layer_norm(x, param(m, "weight"), param(m, "bias"));
}
static ts_tensor *rms_norm(ts_module *m, ts_tensor *x)
{
    return ts_rms_norm(x, param(m, "weight"));
}
static ts_tensor *dropout(ts_module *m, ts_tensor *x)
{
    (void)m;
    return ts_dropout(x, 0.4, true);
}

TS_TEST(norms_and_dropout_are_their_ops)
{
    assert_composed(ts_layer_norm_new(C, 0, true), layer_norm);
    assert_composed(ts_rms_norm_new(C, 0), rms_norm);
    assert_composed(ts_dropout_new(0.4), dropout);
    TS_SCOPE;
    ts_module *norm = ts_layer_norm_new(C, 0.5, false), *drop = ts_dropout_new(0.9);
    ts_tensor *x = ts_normal(TS_SIZES(1, C), 3, 2, TS_F32), *y = ts_forward(norm, x);
    double mean = 0, var = 0;
    for (int i = 0; i < C; i++)
        mean += at(x, i) / C;
    for (int i = 0; i < C; i++)
        var += (at(x, i) - mean) * (at(x, i) - mean) / C;
    for (int i = 0; i < C; i++)
        ck_assert_double_eq_tol(at(y, i), (at(x, i) - mean) / sqrt(var + 0.5), 1e-5);
    ts_module_train(drop, false);
    assert_equal(ts_forward(drop, x), x);
    ts_module_free(norm);
    ts_module_free(drop);
}

/* ------------------------------------------------------------------------- mlp, sequential ---- */

static ts_tensor *mlp(ts_module *m, ts_tensor *x)
{
    ts_tensor *h = ts_gelu(ts_linear(x, param(m, "fc.weight"), param(m, "fc.bias")));
    return ts_dropout(ts_linear(h, param(m, "proj.weight"), param(m, "proj.bias")), 0.2, true);
}
static ts_tensor *silu_mlp(ts_module *m, ts_tensor *x)
{
    return ts_linear(ts_silu(ts_linear(x, param(m, "fc.weight"), TS_NONE)), param(m, "proj.weight"),
                     TS_NONE);
}
static ts_tensor *sequential(ts_module *m, ts_tensor *x)
{
    return ts_linear(ts_tanh(ts_linear(x, param(m, "0.weight"), param(m, "0.bias"))),
                     param(m, "2.weight"), TS_NONE);
}

TS_TEST(mlp_and_sequential_run_their_parts_in_order)
{
    assert_composed(
        ts_mlp_new(C, 4 * C, &(ts_mlp_opts){.size = sizeof(ts_mlp_opts), .dropout = 0.2}), mlp);
    assert_composed(
        ts_mlp_new(
            C, 3,
            &(ts_mlp_opts){.size = sizeof(ts_mlp_opts), .no_bias = true, .activation = ts_silu}),
        silu_mlp);
    ts_module *m = ts_sequential_new();
    ts_sequential_add(m, ts_linear_new(C, 7, true));
    ts_sequential_add(m, ts_activation_new("Tanh", ts_tanh));
    ts_sequential_add(m, ts_linear_new(7, 2, false));
    assert_composed(m, sequential);
    TS_SCOPE;
    m = ts_sequential_new();
    ts_tensor *x = ts_ones(TS_SIZES(2), TS_F32);
    ck_assert_ptr_eq(ts_forward(m, x), x);
    ts_module_free(m);
}

enum { LARGE = 1 << 20 };
static int64_t in_use_before, most_in_use;

/** x + 1; notes the memory in use, which includes x. */
static ts_tensor *add_one(ts_tensor *x)
{
    int64_t now = ts_memory_get_stats().in_use - in_use_before;
    most_in_use = now > most_in_use ? now : most_in_use;
    return ts_add_scalar(x, 1);
}
static ts_tensor *same(ts_tensor *x) { return x; }
static ts_tensor *outside; /* of a scope around the forward */
static ts_tensor *other(ts_tensor *x)
{
    (void)x;
    return outside;
}

TS_TEST(sequential_releases_a_result_after_the_next_child)
{
    ts_module *m = ts_sequential_new();
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(ts_sequential_add(m, ts_activation_new("Add", add_one)), TS_OK);
    TS_SCOPE;
    TS_NO_GRAD;
    ts_tensor *x = ts_zeros(TS_SIZES(LARGE), TS_F32);
    ck_assert_ptr_nonnull(ts_forward(m, x)); /* pools of the allocator */
    in_use_before = ts_memory_get_stats().in_use;
    most_in_use = 0;
    ts_tensor *y = ts_forward(m, x);
    ck_assert_ptr_nonnull(y);
    ck_assert_double_eq(at(y, LARGE - 1), 6);
    ck_assert_int_lt(most_in_use, 2 * LARGE * (int64_t)sizeof(float));
    ts_module_free(m);
}

TS_TEST(children_of_a_sequential_may_return_tensors_of_others)
{
    TS_SCOPE;
    ts_module *m = ts_sequential_new();
    ck_assert_int_eq(ts_sequential_add(m, ts_activation_new("Add", add_one)), TS_OK);
    ck_assert_int_eq(ts_sequential_add(m, ts_activation_new("Same", same)), TS_OK);
    ck_assert_int_eq(ts_sequential_add(m, ts_activation_new("Other", other)), TS_OK);
    ck_assert_int_eq(ts_sequential_add(m, ts_activation_new("Same", same)), TS_OK);
    outside = ts_ones(TS_SIZES(3), TS_F32);
    ts_tensor *x = ts_zeros(TS_SIZES(3), TS_F32);
    {
        TS_SCOPE;
        ck_assert_ptr_eq(ts_forward(m, x), outside);
    }
    ck_assert_double_eq(at(outside, 2), 1); /* still owned by its scope */
    outside = x;
    ck_assert_ptr_eq(ts_forward(m, x), x);
    outside = NULL; /* a child that fails */
    ck_assert_ptr_null(ts_forward(m, x));
    ts_error_clear();
    ck_assert_double_eq(at(x, 0), 0);
    ts_module_free(m);
}

TS_TEST(errors_of_constructors_name_the_argument)
{
    ck_assert_ptr_null(ts_linear_new(3, -1, true));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ck_assert_ptr_null(ts_layer_norm_new(0, 0, true));
    ck_assert_ptr_null(ts_rms_norm_new(4, -1));
    ck_assert_ptr_null(ts_dropout_new(NAN));
    ck_assert_ptr_null(ts_mlp_new(4, 0, NULL));
    ck_assert_ptr_null(ts_mlp_new(4, 4, &(ts_mlp_opts){.dropout = 0.1}));
    ck_assert_ptr_null(ts_activation_new("x", NULL));
    ck_assert_ptr_null(ts_linear_new(INT64_MAX / 2, INT64_MAX / 2, true));
    ck_assert_int_eq(ts_sequential_add(NULL, ts_linear_new(1, 1, true)) != TS_OK, 1);
}

/* ------------------------------------------------------------------------- initial values ---- */

/** Mean and deviation of t, and whether all lies within bound. */
static void moments(const ts_tensor *t, double *mean, double *std, double *most)
{
    double sum = 0, squares = 0;
    *most = 0;
    for (int64_t i = 0; i < ts_numel(t); i++) {
        sum += at(t, i);
        squares += at(t, i) * at(t, i);
        *most = fmax(*most, fabs(at(t, i)));
    }
    *mean = sum / (double)ts_numel(t);
    *std = sqrt(squares / (double)ts_numel(t) - *mean * *mean);
}

TS_TEST(initial_values_have_their_deviations)
{
    TS_SCOPE;
    ts_manual_seed(8);
    // fans 200, 800
    ts_tensor *t = ts_set_requires_grad(ts_zeros(TS_SIZES(200, 50, 4), TS_F32), true);
    double mean, std, most, close = 0.01;
    ck_assert_int_eq(ts_init_normal(t, 1, 0.5), TS_OK);
    moments(t, &mean, &std, &most);
    ck_assert_double_eq_tol(mean, 1, close);
    ck_assert_double_eq_tol(std, 0.5, close);
    ck_assert_int_eq(ts_init_xavier_normal(t, 2), TS_OK);
    moments(t, &mean, &std, &most);
    ck_assert_double_eq_tol(std, 2 * sqrt(2.0 / 1000), close);
    ck_assert_int_eq(ts_init_xavier_uniform(t, 1), TS_OK);
    moments(t, &mean, &std, &most);
    ck_assert_double_eq_tol(most, sqrt(6.0 / 1000), 1e-4);
    ck_assert_double_le(most, sqrt(6.0 / 1000) * (1 + 1e-7));
    ck_assert_int_eq(ts_init_kaiming_normal(t, TS_FAN_OUT, ts_init_gain("relu", 0)), TS_OK);
    moments(t, &mean, &std, &most);
    ck_assert_double_eq_tol(std, sqrt(2.0 / 800), close * 0.1);
    ck_assert_int_eq(ts_init_kaiming_uniform(t, TS_FAN_IN, 1), TS_OK);
    moments(t, &mean, &std, &most);
    ck_assert_double_eq_tol(most, sqrt(3.0 / 200), 1e-4);
    ck_assert_int_eq(ts_init_constant(t, 3), TS_OK);
    ck_assert_double_eq(at(t, 39999), 3);
    ck_assert_int_eq(ts_init_ones(t), TS_OK);
    ck_assert_int_eq(ts_init_zeros(t), TS_OK);
    ck_assert_double_eq(at(t, 7), 0);
    ck_assert(ts_is_leaf(t));
    ck_assert_int_eq(ts_init_xavier_normal(ts_ones(TS_SIZES(3), TS_F32), 1), TS_ERR_SHAPE);
    ck_assert_int_eq(ts_init_normal(NULL, 0, 1) != TS_OK, 1);
    ck_assert_double_eq(ts_init_gain("what", 0), 0);
    ck_assert_double_eq_tol(ts_init_gain("leaky_relu", 0.5), sqrt(1.6), 1e-15);
}

TS_TEST(truncated_normals_stay_inside)
{
    TS_SCOPE;
    ts_manual_seed(8);
    ts_tensor *t = ts_zeros(TS_SIZES(40000), TS_F32);
    double mean, std, most;
    ck_assert_int_eq(ts_init_trunc_normal(t, 0, 1, -2, 2), TS_OK);
    moments(t, &mean, &std, &most);
    ck_assert_double_le(most, 2);
    ck_assert_double_eq_tol(mean, 0, 0.025);
    ck_assert_double_eq_tol(std, 0.8796, 0.01); /* sqrt(1 - 4 phi(2) / (2 Phi(2) - 1)) */
    /* a far tail, where the mean is phi(6) / (1 - Phi(6)) */
    ck_assert_int_eq(ts_init_trunc_normal(t, 0, 1, 6, 1e9), TS_OK);
    moments(t, &mean, &std, &most);
    ck_assert_double_eq_tol(mean, 6.1584, 0.005);
    for (int64_t i = 0; i < 40000; i++)
        ck_assert_double_ge(at(t, i), 6);
    ck_assert_int_eq(ts_init_trunc_normal(t, 0, 1, 2, 2), TS_ERR_VALUE);
    ck_assert_int_eq(ts_init_trunc_normal(t, 0, 0, -2, 2), TS_ERR_VALUE);
    ck_assert_int_eq(ts_init_trunc_normal(t, 0, 1, 50, 51), TS_ERR_VALUE);
    ck_assert_int_eq(ts_init_trunc_normal(ts_to(t, TS_I32), 0, 1, -2, 2), TS_ERR_DTYPE);
}
