/** @file attention_paths.c  The log names the kernels that run an attention call, and why. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

static char last[1024];
static void keep_last(void *payload, const char *topic, const char *line)
{
    (void)payload;
    if (strcmp(topic, "attention") == 0)
        snprintf(last, sizeof last, "%s", line);
}

/** The log line of a call whose operands are (1, 2, 64, depth). */
static const char *path_of(ts_device device, ts_dtype dtype, int depth,
                           const ts_attention_opts *opts)
{
    ts_tensor *x = ts_to_device(ts_normal(TS_SIZES(1, 2, 64, depth), 0, 1, dtype), device);
    last[0] = 0;
    OK(ts_scaled_dot_product_attention_ex(x, x, x, NULL, opts));
    return last;
}

TS_TEST(the_log_has_the_attention_kernels_of_each_call_and_the_reasons)
{
    GPU(device);
    TS_SCOPE;
    ts_log_set_callback(keep_last, NULL);
    ts_attention_opts capped = {.size = sizeof capped, .softcap = 3},
                      causal = {.size = sizeof causal, .causal = true};
    ck_assert_ptr_nonnull(
        strstr(path_of(device, TS_F64, 64, NULL), "cuda, plain kernels, because of: f64: "));
    ck_assert_ptr_nonnull(strstr(path_of(device, TS_BF16, 20, NULL),
                                 "because of: a depth is not a multiple of 8 up to 256: "));
    ts_tensor *x = ts_to_device(ts_normal(TS_SIZES(1, 2, 128, 64), 0, 1, TS_BF16), device),
              *row = ts_narrow(x, 2, 0, 1);
    OK(ts_scaled_dot_product_attention_ex(row, x, x, NULL, NULL));
    ck_assert_ptr_nonnull(strstr(last, "cuda, split kernels: scaled_dot_product_attention("));
    ts_tensor *leaf = ts_clone(row);
    OK(leaf);
    OK(ts_set_requires_grad(leaf, true));
    OK(ts_backward(ts_sum(ts_scaled_dot_product_attention_ex(leaf, x, x, NULL, NULL))));
    ck_assert_ptr_nonnull(
        strstr(last, "cuda, split kernels: scaled_dot_product_attention_backward("));
    bool hopper = strstr(path_of(device, TS_BF16, 64, &causal), "not a Hopper GPU") == NULL;
    if (!hopper)
        return;
    ck_assert_ptr_nonnull(
        strstr(last, "cuda, wgmma kernels: scaled_dot_product_attention((1, 2, 64, 64) bf16"));
    ck_assert_ptr_nonnull(strstr(path_of(device, TS_F16, 64, &capped), "cuda, wgmma kernels: "));
    ck_assert_ptr_nonnull(strstr(path_of(device, TS_F16, 136, NULL), "cuda, wgmma kernels: "));
    ck_assert_ptr_nonnull(
        strstr(path_of(device, TS_F32, 64, NULL), "cuda, mma kernels, because of: f32: "));
}
