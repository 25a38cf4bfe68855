/** @file calls_ops.c  Out-of-memory sweeps: the public functions of the operators. */
// SPDX-License-Identifier: MIT
#include "tests/faults/calls.h"

/* Operands of all bodies below: a, b (2, 3) f32; p the same, positive;
 * n (2, 3) i64; flags (2, 3) bool. */
#define OPERANDS                                                                                   \
    TS_SCOPE;                                                                                      \
    (void)ctx;                                                                                     \
    static const float a_[] = {1.5f, -2, 0.25f, 3, -0.5f, 2},                                      \
        p_[] = {0.1f, 0.9f, 0.5f, 0.3f, 0.7f, 0.2f};                                               \
    static const int64_t n_[] = {1, 0, 2, 0, 1, 1};                                                \
    static const bool flags_[] = {true, false, true, true, false, false};                          \
    ts_tensor *a = ts_from_array(a_, TS_F32, TS_SIZES(2, 3)),                                      \
              *b = ts_full(TS_SIZES(2, 3), TS_SCALAR(1.25), TS_F32);                               \
    ts_tensor *p = ts_from_array(p_, TS_F32, TS_SIZES(2, 3)),                                      \
              *n = ts_from_array(n_, TS_I64, TS_SIZES(2, 3));                                      \
    ts_tensor *flags = ts_from_array(flags_, TS_BOOL, TS_SIZES(2, 3));                             \
    ts_manual_seed(5);                                                                             \
    WATCH(a, b, p, n, flags)

#define BINARY(name, u, v)                       \
    NEW(ts_##name(u, v));                        \
    NEW(ts_##name##_scalar(u, 2));               \
    INPLACE(u, ts_##name##_(x, v));              \
    INPLACE(u, ts_##name##_scalar_(x, 2));       \
    INPLACE(u, ts_##name##_out(x, u, v))

CALLS(pointwise)
{
    OPERANDS;
    BINARY(add, a, b);
    BINARY(sub, a, b);
    BINARY(mul, a, b);
    BINARY(div, a, b);
    BINARY(floor_divide, a, b);
    BINARY(remainder, a, b);
    BINARY(pow, p, b);
    BINARY(maximum, a, b);
    BINARY(minimum, a, b);
    BINARY(atan2, a, b);
    BINARY(bitwise_and, n, n);
    BINARY(bitwise_or, n, n);
    BINARY(bitwise_xor, n, n);
    NEW(ts_rsub_scalar(a, 1));
    NEW(ts_rdiv_scalar(a, 1));
    NEW(ts_rpow_scalar(a, 2));
    NEW(ts_lerp(a, b, p));
    NEW(ts_lerp_scalar(a, b, 0.5));
    INPLACE(a, ts_lerp_(x, b, p));
    INPLACE(a, ts_lerp_scalar_(x, b, 0.5));
    NEW(ts_addcmul(a, b, p, 2));
    INPLACE(a, ts_addcmul_(x, b, p, 2));
    NEW(ts_addcdiv(a, b, p, 2));
    INPLACE(a, ts_addcdiv_(x, b, p, 2));
    NEW(ts_clamp(a, -1, 1));
    INPLACE(a, ts_clamp_(x, -1, 1));
    INPLACE(a, ts_clamp_out(x, a, -1, 1));
    NEW(ts_clamp_min(a, 0));
    INPLACE(a, ts_clamp_min_(x, 0));
    INPLACE(a, ts_clamp_min_out(x, a, 0));
    NEW(ts_clamp_max(a, 0));
    INPLACE(a, ts_clamp_max_(x, 0));
    INPLACE(a, ts_clamp_max_out(x, a, 0));
    NEW(ts_hardtanh(a, -1, 1));
    INPLACE(a, ts_hardtanh_(x, -1, 1));
    INPLACE(a, ts_hardtanh_out(x, a, -1, 1));
    NEW(ts_relu6(a));
    ts_scalar low = TS_SCALAR(-1), high = TS_SCALAR(1);
    NEW(ts_clamp_backward(a, b, &low, &high, false));
}

#define COMPARE(name)            \
    NEW(ts_##name(a, b));        \
    NEW(ts_##name##_scalar(a, 2)); \
    INPLACE(flags, ts_##name##_out(x, a, b))
#define TRUTH(name)     \
    NEW(ts_##name(a));  \
    INPLACE(flags, ts_##name##_out(x, a))

CALLS(compare)
{
    OPERANDS;
    COMPARE(eq);
    COMPARE(ne);
    COMPARE(lt);
    COMPARE(le);
    COMPARE(gt);
    COMPARE(ge);
    COMPARE(logical_and);
    COMPARE(logical_or);
    COMPARE(logical_xor);
    TRUTH(logical_not);
    TRUTH(isnan);
    TRUTH(isinf);
    TRUTH(isfinite);
    NEW(ts_bitwise_not(n));
    INPLACE(n, ts_bitwise_not_(x));
    INPLACE(n, ts_bitwise_not_out(x, n));
    NEW(ts_where(flags, a, b));
    INPLACE(a, ts_where_out(x, flags, a, b));
    NEW(ts_where_scalar(flags, a, 2));
    NEW(ts_where_scalars(flags, 1, 2));
    ts_tensor *value = ts_scalar_tensor(TS_SCALAR(7), TS_F32);
    NEW(ts_masked_fill(a, flags, value));
    INPLACE(a, ts_masked_fill_(x, flags, value));
    NEW(ts_masked_fill_scalar(a, flags, 7));
    INPLACE(a, ts_masked_fill_scalar_(x, flags, 7));
}

#define UNARY(name)               \
    NEW(ts_##name(p));            \
    INPLACE(p, ts_##name##_(x));  \
    INPLACE(p, ts_##name##_out(x, p))

CALLS(unary)
{
    OPERANDS;
    UNARY(neg);
    UNARY(abs);
    UNARY(sign);
    UNARY(square);
    UNARY(floor);
    UNARY(ceil);
    UNARY(round);
    UNARY(trunc);
    UNARY(frac);
    UNARY(exp);
    UNARY(exp2);
    UNARY(expm1);
    UNARY(log);
    UNARY(log2);
    UNARY(log10);
    UNARY(log1p);
    UNARY(sqrt);
    UNARY(rsqrt);
    UNARY(reciprocal);
    UNARY(sin);
    UNARY(cos);
    UNARY(tan);
    UNARY(asin);
    UNARY(acos);
    UNARY(atan);
    UNARY(sinh);
    UNARY(cosh);
    UNARY(erf);
    UNARY(erfc);
}

CALLS(activation)
{
    OPERANDS;
    UNARY(relu);
    UNARY(sigmoid);
    UNARY(tanh);
    UNARY(log_sigmoid);
    UNARY(silu);
    UNARY(mish);
    UNARY(gelu);
    UNARY(gelu_tanh);
    NEW(ts_leaky_relu(a, 0.1));
    INPLACE(a, ts_leaky_relu_(x, 0.1));
    INPLACE(a, ts_leaky_relu_out(x, a, 0.1));
    NEW(ts_elu(a, 1));
    INPLACE(a, ts_elu_(x, 1));
    INPLACE(a, ts_elu_out(x, a, 1));
    NEW(ts_softplus(a, 1, 20));
    INPLACE(a, ts_softplus_(x, 1, 20));
    INPLACE(a, ts_softplus_out(x, a, 1, 20));
    NEW(ts_threshold_backward(a, b, 0));
    NEW(ts_leaky_relu_backward(a, b, 0.1));
    NEW(ts_elu_backward(a, b, 1));
    NEW(ts_sigmoid_backward(a, p));
    NEW(ts_tanh_backward(a, p));
    NEW(ts_gelu_backward(a, b, true));
    NEW(ts_silu_backward(a, b));
    NEW(ts_softplus_backward(a, b, 1, 20));
    NEW(ts_mish_backward(a, b));
}

#define REDUCTION(name, t)                                       \
    NEW(ts_##name(t));                                           \
    NEW(ts_##name##_dims(t, TS_SIZES(0, 1), false));             \
    NEW(ts_##name##_dim(t, 1, true))

CALLS(reduce)
{
    OPERANDS;
    ts_tensor *row = ts_zeros(TS_SIZES(2), TS_F32), *truth = ts_zeros(TS_SIZES(2), TS_BOOL),
              *at = ts_zeros(TS_SIZES(2), TS_I64);
    REDUCTION(sum, a);
    INPLACE(row, ts_sum_out(x, a, TS_SIZES(1), false));
    REDUCTION(mean, a);
    INPLACE(row, ts_mean_out(x, a, TS_SIZES(1), false));
    REDUCTION(prod, a);
    INPLACE(row, ts_prod_out(x, a, TS_SIZES(1), false));
    REDUCTION(amax, a);
    INPLACE(row, ts_amax_out(x, a, TS_SIZES(1), false));
    REDUCTION(amin, a);
    INPLACE(row, ts_amin_out(x, a, TS_SIZES(1), false));
    REDUCTION(all, flags);
    INPLACE(truth, ts_all_out(x, flags, TS_SIZES(1), false));
    REDUCTION(any, flags);
    INPLACE(truth, ts_any_out(x, flags, TS_SIZES(1), false));
    REDUCTION(logsumexp, a);
    INPLACE(row, ts_logsumexp_out(x, a, TS_SIZES(1), false));
    NEW(ts_max(a));
    NEW(ts_min(a));
    NEW(ts_var(a));
    NEW(ts_var_dims(a, TS_SIZES(0, 1), 1, false));
    NEW(ts_var_dim(a, 1, 1, false));
    INPLACE(row, ts_var_out(x, a, TS_SIZES(1), 1, false));
    NEW(ts_std(a));
    NEW(ts_std_dims(a, TS_SIZES(0, 1), 1, false));
    NEW(ts_std_dim(a, 1, 1, false));
    INPLACE(row, ts_std_out(x, a, TS_SIZES(1), 1, false));
    NEW(ts_norm(a));
    NEW(ts_norm_dims(a, 2, TS_SIZES(1), false));
    INPLACE(row, ts_norm_out(x, a, 1, TS_SIZES(1), false));
    NEW(ts_sum_to_size(a, TS_SIZES(1, 3)));
    NEW(ts_unreduce(row, TS_SIZES(2, 3), TS_SIZES(1)));
    NEW(ts_argmax(a));
    NEW(ts_argmax_dim(a, 1, false));
    INPLACE(at, ts_argmax_out(x, a, 1, false));
    NEW(ts_argmin(a));
    NEW(ts_argmin_dim(a, 1, false));
    INPLACE(at, ts_argmin_out(x, a, 1, false));
    ts_tensor *indices = NULL;
    NEW(ts_max_dim(a, 1, false, &indices));
    fault_see(f, indices);
    NEW(ts_min_dim(a, 1, false, &indices));
    fault_see(f, indices);
    NEW(ts_cumsum(a, 1));
    INPLACE(a, ts_cumsum_(x, 1));
    INPLACE(a, ts_cumsum_out(x, a, 1));
    NEW(ts_cumsum_reversed(a, 1));
    NEW(ts_softmax(a, 1));
    NEW(ts_softmax_as(a, 1, TS_F64));
    INPLACE(a, ts_softmax_out(x, a, 1));
    NEW(ts_softmax_backward(a, p, 1));
    NEW(ts_log_softmax(a, 1));
    NEW(ts_log_softmax_as(a, 1, TS_F64));
    INPLACE(a, ts_log_softmax_out(x, a, 1));
    NEW(ts_log_softmax_backward(a, p, 1));
}

CALLS(factory)
{
    OPERANDS;
    ts_tensor *y = NULL;
    FAULTY(f, y = ts_empty(TS_SIZES(300, 3), TS_F32));
    FAULTY(f, y = ts_empty_on(TS_SIZES(2, 3), TS_F32, TS_DEVICE_META));
    FAULTY(f, y = ts_empty_like(a));
    (void)y;
    NEW(ts_full(TS_SIZES(2, 3), TS_SCALAR(3), TS_F64));
    NEW(ts_full_like(a, TS_SCALAR(3)));
    NEW(ts_zeros(TS_SIZES(2, 3), TS_F32));
    NEW(ts_zeros_like(a));
    NEW(ts_ones(TS_SIZES(2, 3), TS_F32));
    NEW(ts_ones_like(a));
    INPLACE(a, ts_fill_(x, TS_SCALAR(3)));
    INPLACE(a, ts_zero_(x));
    NEW(ts_arange(TS_SCALAR(0), TS_SCALAR(5), TS_SCALAR(1), TS_I64));
    NEW(ts_linspace(0, 1, 5, TS_F32));
    NEW(ts_eye(2, 3, TS_F32));
    NEW(ts_scalar_tensor(TS_SCALAR(3), TS_F32));
    NEW(ts_from_array((float[]){1, 2}, TS_F32, TS_SIZES(2)));
    static float memory[2] = {1, 2};
    NEW(ts_from_blob(memory, TS_F32, TS_SIZES(2), NULL, NULL));
}

/* Each draw starts at the same counter, so that the repeated one gives the same bits. */
#define SEEDED(...)                                                             \
    do {                                                                        \
        ts_tensor *new_ = NULL;                                                 \
        FAULTY(f, (ts_rng_set_state((ts_rng_state){9, 0}), new_ = __VA_ARGS__)); \
        fault_see(f, new_);                                                     \
    } while (0)
#define SEEDED_INPLACE(source, ...)                                                                \
    INPLACE(source, (ts_rng_set_state((ts_rng_state){9, 0}), __VA_ARGS__))

CALLS(random)
{
    OPERANDS;
    SEEDED(ts_uniform(TS_SIZES(2, 3), 0, 1, TS_F32));
    SEEDED(ts_uniform_on(TS_SIZES(2, 3), 0, 1, TS_F32, TS_DEVICE_CPU));
    SEEDED_INPLACE(a, ts_uniform_(x, 0, 1));
    SEEDED(ts_normal(TS_SIZES(2, 3), 0, 1, TS_F32));
    SEEDED(ts_normal_on(TS_SIZES(2, 3), 0, 1, TS_F32, TS_DEVICE_CPU));
    SEEDED_INPLACE(a, ts_normal_(x, 0, 1));
    SEEDED(ts_randint(TS_SIZES(2, 3), 0, 9));
    SEEDED(ts_randint_on(TS_SIZES(2, 3), 0, 9, TS_I32, TS_DEVICE_CPU));
    SEEDED_INPLACE(n, ts_randint_(x, 0, 9));
    SEEDED(ts_randperm(40));
    SEEDED(ts_bernoulli(p));
    SEEDED(ts_bernoulli_p(TS_SIZES(2, 3), 0.5, TS_F32));
    SEEDED_INPLACE(a, ts_bernoulli_(x, 0.5));
    SEEDED(ts_multinomial(p, 2, false));
    SEEDED(ts_dropout(a, 0.5, true));
    SEEDED_INPLACE(a, ts_dropout_(x, 0.5, true));
    NEW(ts_dropout_backward(a, 0.5, (ts_rng_state){9, 0}));
}

CALLS(copy_and_view)
{
    OPERANDS;
    double number = 0;
    int64_t whole = 0;
    float values[6];
    ts_tensor *t = ts_t(a), *one = ts_scalar_tensor(TS_SCALAR(3), TS_F32),
              *int_one = ts_scalar_tensor(TS_SCALAR(3), TS_I64);
    NEW(ts_clone(a));
    INPLACE(a, ts_copy_(x, b));
    NEW(ts_to(a, TS_F64));
    NEW(ts_to_device(a, TS_DEVICE_META));
    NEW(ts_contiguous(t));
    NEW(ts_to_channels_last(ts_unsqueeze(a, 0)));
    FAULTY(f, ts_copy_to(t, values, sizeof values));
    fault_see_bytes(f, values, sizeof values);
    FAULTY(f, ts_item(one, &number));
    FAULTY(f, ts_item_int(int_one, &whole));
    fault_see_number(f, number + (double)whole);
    NEW(ts_view(a, TS_SIZES(3, 2)));
    NEW(ts_reshape(t, TS_SIZES(6)));
    NEW(ts_flatten(a, 0, 1));
    NEW(ts_unflatten(a, 1, TS_SIZES(3, 1)));
    NEW(ts_permute(a, TS_SIZES(1, 0)));
    NEW(ts_transpose(a, 0, 1));
    NEW(ts_t(a));
    NEW(ts_movedim(a, 0, 1));
    NEW(ts_expand(a, TS_SIZES(4, 2, 3)));
    NEW(ts_broadcast_to(a, TS_SIZES(4, 2, 3)));
    NEW(ts_expand_as(a, b));
    NEW(ts_squeeze(a));
    NEW(ts_squeeze_dim(a, 0));
    NEW(ts_unsqueeze(a, 0));
    NEW(ts_as_strided(a, (int64_t[]){2, 2}, (int64_t[]){1, 1}, 2, 0));
    NEW(ts_slice(a, 1, 0, 3, 2));
    NEW(ts_narrow(a, 1, 1, 2));
    NEW(ts_select(a, 1, 0));
    NEW(ts_diagonal(a, 0, 0, 1));
    ts_tensor *parts[3] = {NULL};
    FAULTY(f, ts_split(a, 1, 1, parts, 3));
    fault_see(f, parts[2]);
    FAULTY(f, ts_chunk(a, 3, 1, parts, NULL));
    fault_see(f, parts[2]);
    FAULTY(f, ts_unbind(a, 1, parts, 3));
    fault_see(f, parts[2]);
    NEW(ts_slice_scatter(a, ts_narrow(b, 1, 0, 2), 1, 0, 2, 1));
    NEW(ts_select_scatter(a, ts_select(b, 1, 0), 1, 0));
    NEW(ts_slice_backward(b, TS_SIZES(2, 5), 1, 1, 4, 1));
    NEW(ts_diagonal_backward(ts_select(b, 1, 0), TS_SIZES(2, 3), 0, 0, 1));
    ts_tensor *const both[] = {a, b};
    NEW(ts_cat(both, 2, 0));
    INPLACE(ts_zeros(TS_SIZES(4, 3), TS_F32), ts_cat_out(x, both, 2, 0));
    NEW(ts_stack(both, 2, 0));
    INPLACE(ts_zeros(TS_SIZES(2, 2, 3), TS_F32), ts_stack_out(x, both, 2, 0));
    NEW(ts_tril(a, 0));
    INPLACE(a, ts_tril_(x, 0));
    NEW(ts_triu(a, 0));
    INPLACE(a, ts_triu_(x, 0));
    NEW(ts_nonzero(a));
    NEW(ts_masked_select(a, flags));
    NEW(ts_masked_scatter(a, flags, b));
    INPLACE(a, ts_masked_scatter_(x, flags, b));
}

CALLS(index)
{
    OPERANDS;
    ts_tensor *rows = ts_from_array((int64_t[]){1, 0, 1}, TS_I64, TS_SIZES(3)),
              *src = ts_ones(TS_SIZES(3, 3), TS_F32);
    NEW(ts_embedding(a, rows, -1));
    NEW(ts_embedding_backward(src, rows, 2, -1));
    NEW(ts_index_select(a, 0, rows));
    NEW(ts_index_add(a, 0, rows, src));
    INPLACE(a, ts_index_add_(x, 0, rows, src));
    NEW(ts_gather(a, 1, n));
    NEW(ts_take_along_dim(a, n, 1));
    ts_tensor *low = ts_clamp_max(n, 1);
    NEW(ts_scatter(a, 0, low, b));
    INPLACE(a, ts_scatter_(x, 0, low, b));
    NEW(ts_scatter_value(a, 0, low, TS_SCALAR(4)));
    INPLACE(a, ts_scatter_value_(x, 0, low, TS_SCALAR(4)));
    NEW(ts_scatter_add(a, 0, low, b));
    INPLACE(a, ts_scatter_add_(x, 0, low, b));
    NEW(ts_one_hot(n, 3));
}

CALLS(matmul_and_norm)
{
    OPERANDS;
    ts_tensor *square = ts_eye(3, 3, TS_F32), *batch = ts_ones(TS_SIZES(2, 3, 2), TS_F32),
              *other = ts_ones(TS_SIZES(2, 2, 3), TS_F32);
    ts_tensor *weight = ts_ones(TS_SIZES(3), TS_F32), *bias = ts_ones(TS_SIZES(3), TS_F32);
    NEW(ts_mm(a, square));
    INPLACE(b, ts_mm_out(x, a, square));
    NEW(ts_bmm(batch, other));
    INPLACE(ts_zeros(TS_SIZES(2, 3, 3), TS_F32), ts_bmm_out(x, batch, other));
    NEW(ts_addmm(bias, a, square));
    ts_scalar half = ts_scalar_float(0.5);
    ts_addmm_opts factors = {.size = sizeof factors, .beta = &half, .alpha = &half};
    NEW(ts_addmm_ex(a, a, square, &factors));
    INPLACE(b, ts_addmm_out(x, a, a, square, &factors));
    NEW(ts_matmul(a, weight));
    NEW(ts_linear(a, square, bias));
    INPLACE(b, ts_linear_out(x, a, square, bias));
    ts_tensor *da = NULL, *dw = NULL, *db = NULL, *linear = NULL;
    NEW(ts_linear_gelu(a, square, bias, true, &linear));
    fault_see(f, linear);
    FAULTY(f, ts_linear_backward(b, a, square, &da, &dw, &db));
    fault_see(f, da);
    fault_see(f, dw);
    fault_see(f, db);
    ts_tensor *mean = NULL, *rstd = NULL;
    ts_normalization_opts opts = {.size = sizeof opts, .mean = &mean, .rstd = &rstd};
    NEW(ts_layer_norm(a, weight, bias));
    NEW(ts_layer_norm_ex(a, weight, bias, &opts));
    ts_tensor *sum = NULL;
    NEW(ts_add_layer_norm(a, b, weight, bias, &sum));
    NEW(ts_add_layer_norm_ex(a, b, weight, bias, &sum, &opts));
    fault_see(f, sum);
    NEW(ts_layer_norm_backward(b, a, mean, rstd, weight, 1, &dw, &db));
    fault_see(f, dw);
    NEW(ts_rms_norm(a, weight));
    opts.mean = NULL;
    NEW(ts_rms_norm_ex(a, weight, &opts));
    NEW(ts_rms_norm_backward(b, a, rstd, weight, 1, &dw));
    fault_see(f, dw);
    ts_tensor *q = ts_normal(TS_SIZES(1, 2, 5, 8), 0, 1, TS_F32), *lse = NULL;
    ts_attention_opts causal = {.size = sizeof causal, .causal = true};
    NEW(ts_scaled_dot_product_attention(q, q, q));
    ts_tensor *y = NULL, *dq = NULL, *dk = NULL, *dv = NULL;
    FAULTY(f, y = ts_scaled_dot_product_attention_ex(q, q, q, &lse, &causal));
    ts_tensor **grads[3] = {&dq, &dk, &dv};
    FAULTY(f,
           ts_scaled_dot_product_attention_backward(q, TS_NONE, q, q, q, y, lse, &causal, grads));
    fault_see(f, y);
    fault_see(f, dq);
    fault_see(f, dk);
    fault_see(f, dv);
    ts_tensor *bounds = ts_from_array((int32_t[]){0, 2, 5}, TS_I32, TS_SIZES(3));
    ts_tensor *mask = ts_ones(TS_SIZES(5), TS_BOOL);
    ts_attention_opts all = {.size = sizeof all, .mask = &mask,
                             .cu_seqlens = (ts_tensor *[]){bounds, bounds}, .max_seqlen_q = 3,
                             .max_seqlen_k = 5, .window = true, .window_left = 1, .softcap = 2,
                             .dropout_p = 0.25};
    FAULTY(f, (ts_manual_seed(1), y = ts_scaled_dot_product_attention_ex(q, q, q, &lse, &all)));
    FAULTY(f, ts_scaled_dot_product_attention_backward(q, TS_NONE, q, q, q, y, lse, &all, grads));
    fault_see(f, y);
    fault_see(f, dq);
    fault_see(f, dk);
    fault_see(f, dv);
}

#define PAIR_LOSS(name)                                  \
    NEW(ts_##name(p, b));                                \
    NEW(ts_##name##_ex(p, b, &opts));                    \
    NEW(ts_##name##_backward(one, p, b, TS_REDUCTION_SUM, &dtarget)); \
    fault_see(f, dtarget)

CALLS(convolution)
{
    TS_SCOPE;
    ts_tensor *x[3] = {ts_ones(TS_SIZES(4, 5), TS_F32), ts_ones(TS_SIZES(2, 4, 5, 4), TS_F32),
                       ts_ones(TS_SIZES(2, 4, 2, 4, 3), TS_F32)};
    ts_tensor *w[3] = {ts_ones(TS_SIZES(4, 2, 3), TS_F32), ts_ones(TS_SIZES(4, 2, 3, 2), TS_F32),
                       ts_ones(TS_SIZES(4, 2, 2, 2, 2), TS_F32)};
    ts_tensor *bias = ts_ones(TS_SIZES(4), TS_F32);
    ts_conv_opts opts = {.size = sizeof opts, .stride = {2}, .padding = {1}, .groups = 2},
                 same = {.size = sizeof same, .same = true, .groups = 2};
    WATCH(x[0], x[1], x[2], w[0], w[1], w[2], bias);
    NEW(ts_conv1d(x[0], w[0], bias, &opts));
    NEW(ts_conv2d(x[1], w[1], bias, &same));
    NEW(ts_conv3d(x[2], w[2], TS_NONE, &opts));
    NEW(ts_conv_transpose1d(x[0], w[0], bias, &opts));
    NEW(ts_conv_transpose2d(x[1], w[1], bias, &opts));
    NEW(ts_conv_transpose3d(x[2], w[2], TS_NONE, &opts));
}

CALLS(images)
{
    TS_SCOPE;
    ts_manual_seed(3);
    ts_tensor *x = ts_normal(TS_SIZES(2, 4, 6, 5), 0, 1, TS_F32), *g = ts_ones_like(x),
              *line = ts_ones(TS_SIZES(4, 6), TS_F32), *block = ts_ones(TS_SIZES(1, 2, 3, 4, 3),
                                                                        TS_F32),
              *w = ts_ones(TS_SIZES(4), TS_F32), *mean = ts_zeros(TS_SIZES(4), TS_F32),
              *var = ts_ones(TS_SIZES(4), TS_F32), *groups = ts_ones(TS_SIZES(2, 2), TS_F32),
              *dw = NULL, *db = NULL, *places = NULL;
    ts_pool_opts pool = {.size = sizeof pool, .kernel = {2, 2}, .padding = {1, 1}},
                 one = {.size = sizeof one, .kernel = {2}},
                 three = {.size = sizeof three, .kernel = {2, 2, 2}};
    ts_interpolate_opts resize = {.size = sizeof resize, .sizes = {8, 7}, .mode = TS_CUBIC};
    WATCH(x, g, line, block, w, mean, var, groups);
    NEW(ts_batch_norm(x, mean, var, w, w, false, 0.1, 1e-5));
    NEW(ts_batch_norm(x, TS_NONE, TS_NONE, w, w, true, 0.1, 1e-5));
    NEW(ts_batch_norm_backward(g, x, mean, var, w, 1e-5, false, &dw, &db));
    NEW(ts_batch_norm_relu(x, TS_NONE, TS_NONE, w, w, true, 0.1, 1e-5));
    NEW(ts_batch_norm_relu_backward(g, x, mean, var, w, w, 1e-5, false, &dw, &db));
    fault_see(f, dw);
    NEW(ts_group_norm_backward(g, x, groups, groups, w, 2, 1e-5, &dw, &db));
    NEW(ts_instance_norm(x, w, w, 1e-5));
    NEW(ts_max_pool1d(line, &one, &places));
    fault_see(f, places);
    NEW(ts_max_pool2d(x, &pool, NULL));
    NEW(ts_max_pool3d(block, &three, NULL));
    NEW(ts_avg_pool1d(line, &one));
    NEW(ts_avg_pool2d(x, &pool));
    NEW(ts_avg_pool3d(block, &three));
    NEW(ts_interpolate(x, &resize));
    NEW(ts_pad(x, (const int64_t[]){1, 0, 0, 1, 2, 0, 1, 1}, 8, TS_PAD_CONSTANT, ts_scalar_int(0)));
}

CALLS(loss)
{
    OPERANDS;
    ts_loss_opts opts = {.size = sizeof opts, .reduction = TS_REDUCTION_SUM};
    ts_tensor *one = ts_scalar_tensor(TS_SCALAR(1), TS_F32),
              *target = ts_from_array((int64_t[]){2, 0}, TS_I64, TS_SIZES(2));
    ts_tensor *dtarget = NULL, *lse = ts_logsumexp_dim(a, 1, false);
    NEW(ts_cross_entropy(a, target));
    NEW(ts_cross_entropy_ex(a, target, &opts));
    NEW(ts_cross_entropy_last(a, target));
    NEW(ts_cross_entropy_last_ex(a, target, &opts));
    NEW(ts_cross_entropy_backward(one, a, target, lse, TS_REDUCTION_SUM, -100, 0));
    ts_tensor *loss = NULL;
    NEW(ts_cross_entropy_grad(a, target, &opts, &loss));
    fault_see(f, loss);
    INPLACE(b, ts_cross_entropy_grad_(x, target, &opts));
    NEW(ts_nll_loss(a, target));
    NEW(ts_nll_loss_ex(a, target, &opts));
    NEW(ts_nll_loss_backward(one, a, target, TS_REDUCTION_SUM, -100));
    PAIR_LOSS(mse_loss);
    PAIR_LOSS(l1_loss);
    PAIR_LOSS(binary_cross_entropy_with_logits);
    NEW(ts_smooth_l1_loss(p, b));
    NEW(ts_smooth_l1_loss_ex(p, b, &opts));
    NEW(ts_smooth_l1_loss_backward(one, p, b, TS_REDUCTION_SUM, 1, &dtarget));
    NEW(ts_huber_loss(p, b));
    NEW(ts_huber_loss_ex(p, b, &opts));
    NEW(ts_huber_loss_backward(one, p, b, TS_REDUCTION_SUM, 1, &dtarget));
    NEW(ts_kl_div(p, b));
    NEW(ts_kl_div_ex(p, b, &opts));
    NEW(ts_kl_div_backward(one, p, b, TS_REDUCTION_SUM, false, &dtarget));
}

CALLS(optimizer_ops)
{
    OPERANDS;
    ts_tensor *params[] = {ts_clone(a), ts_clone(b)}, *grads[] = {p, b},
              *m[] = {ts_zeros_like(a), ts_zeros_like(b)};
    ts_tensor *v[] = {ts_zeros_like(a), ts_zeros_like(b)};
    int64_t steps[] = {1, 1};
    ts_adamw_rule adam = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .decoupled = true};
    ts_tensor *half = ts_full(NULL, 0, ts_scalar_float(0.5), TS_F32);
    ts_sgd_rule sgd = {.lr = 0.1, .momentum = 0.9, .grad_scale = &half};
    fault_watch_written(f, params[0]);
    fault_watch_written(f, m[1]);
    FAULTY(f, ts_adamw_(params, grads, m, v, steps, 2, &adam));
    fault_unwatch_one(f, params[0]);
    fault_unwatch_one(f, m[1]);
    fault_see(f, params[0]);
    FAULTY(f, ts_sgd_(params, grads, m, steps, 2, &sgd));
    fault_see(f, params[1]);
    NEW(ts_global_norm(grads, 2));
    ts_tensor *norm = ts_global_norm(grads, 2);
    FAULTY(f, ts_scale_(params, 2, TS_SCALAR(0.5)));
    FAULTY(f, ts_scale_by_(params, 2, norm));
    FAULTY(f, ts_clip_norm_(params, 2, norm, 0.5));
    fault_see(f, params[0]);
}
