/**
 * @file texts.c  Texts of wrong calls, word for word: op, argument, expected and actual value. A
 * changed text must be changed here too, and reviewed. TS_ERRORS=print prints the rows.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "include/tessera/tessera.h"
#include "tests/harness.h"

/* A (2, 3) and B (4, 5) f32; N (2, 3) i64; FLAGS (2, 3) bool;
 * W a (2, 3) leaf that requires grad. */
static ts_tensor *A, *B, *N, *FLAGS, *W;

static void check_text(int line, const char *call, ts_status status, const char *want)
{
    const char *got = ts_error_message();
    char text[2000];
    snprintf(text, sizeof text, "%s: %s%s%s", ts_status_name(ts_error_code()), got,
             ts_error_hint()[0] ? " | " : "", ts_error_hint());
    bool same = status != TS_OK && strcmp(text, want) == 0;
    if (getenv("TS_ERRORS"))
        printf("%d\t%s\n", line, text);
    else if (!same)
        printf("line %d: %s\n  expected %s\n  got      %s\n", line, call, want,
               status == TS_OK ? "no failure" : text);
    ts_tally_as(TS_COUNT_WRONG_CALLS, same, !same, 0);
    ts_error_clear();
}

#define WRONG(call, want)                                            \
    do {                                                             \
        TS_SCOPE;                                                    \
        ts_error_clear();                                            \
        ts_status wrong_status = TS_STATUS_OF(call);                 \
        check_text(__LINE__, #call, wrong_status, want);             \
    } while (0)

#define OPERANDS                                                     \
    TS_SCOPE;                                                        \
    A = ts_ones(TS_SIZES(2, 3), TS_F32);                             \
    B = ts_ones(TS_SIZES(4, 5), TS_F32);                             \
    N = ts_ones(TS_SIZES(2, 3), TS_I64);                             \
    FLAGS = ts_ones(TS_SIZES(2, 3), TS_BOOL);                        \
    W = ts_set_requires_grad(ts_ones(TS_SIZES(2, 3), TS_F32), true)

TS_TEST(errors_of_factories_and_tensors_name_the_argument)
{
    OPERANDS;
    WRONG((ts_zeros(TS_SIZES(2, -3), TS_F32)), "TS_ERR_SHAPE: zeros: argument 'sizes': expected "
                                               "sizes >= 0 whose bytes fit 63 bits, got (2, -3)");
    WRONG((ts_zeros(TS_SIZES(1, 1, 1, 1, 1, 1, 1, 1, 1), TS_F32)),
          "TS_ERR_SHAPE: zeros: argument 'sizes': expected 0 to 8 numbers, got 9");
    WRONG((ts_zeros(TS_SIZES(2), (ts_dtype)99)),
          "TS_ERR_DTYPE: zeros: argument 'dtype': expected a dtype, got number 99");
    WRONG((ts_zeros(TS_SIZES((int64_t)1 << 40, (int64_t)1 << 40), TS_F32)),
          "TS_ERR_SHAPE: zeros: argument 'sizes': expected sizes >= 0 whose bytes fit 63 bits, got "
          "(1099511627776, 1099511627776)");
    WRONG((ts_from_array(NULL, TS_F32, TS_SIZES(2))),
          "TS_ERR_NULL: from_array: argument 'data': expected 2 elements, got NULL");
    WRONG((ts_from_blob(NULL, TS_F32, TS_SIZES(2), NULL, NULL)),
          "TS_ERR_NULL: from_blob: argument 'data': expected 2 elements, got NULL");
    WRONG((ts_arange(TS_SCALAR(0), TS_SCALAR(5), TS_SCALAR(0), TS_I64)),
          "TS_ERR_VALUE: arange: argument 'step': expected a step other than 0, got 0");
    WRONG((ts_linspace(0, 1, -1, TS_F32)),
          "TS_ERR_VALUE: linspace: argument 'steps': expected at least 0, got -1");
    WRONG((ts_eye(-1, 2, TS_F32)), "TS_ERR_SHAPE: eye: argument 'rows': expected sizes >= 0 whose "
                                   "bytes fit 63 bits, got (-1, 2)");
    WRONG((ts_set_num_threads(0)),
          "TS_ERR_VALUE: set_num_threads: argument 'threads': expected at least 1, got 0");
    WRONG((ts_empty_on(TS_SIZES(2), TS_F32, (ts_device){0, 3})),
          "TS_ERR_DEVICE: empty_on: argument 'device': expected cpu, the only one, got cpu:3");
    WRONG((ts_to_device(A, (ts_device){15, 1})),
          "TS_ERR_DEVICE: to_device: argument 'device': expected meta, the only one, got meta:1");
    WRONG((ts_synchronize((ts_device){7, 0})),
          "TS_ERR_DEVICE: synchronize: argument 'device': expected the device of a known backend, "
          "got backend number 7 | load a backend with ts_backend_load(), and use its key");
    WRONG((ts_set_default_device((ts_device){9, 0})),
          "TS_ERR_DEVICE: set_default_device: argument 'device': expected a known backend, got key "
          "9");
    WRONG((ts_size(A, 5) < 0 ? ts_error_code() : TS_OK),
          "TS_ERR_INDEX: size: argument 'dim': expected -2 to 1, got 5");
    WRONG((ts_item(A, &(double){0})),
          "TS_ERR_SHAPE: item: argument 't': expected one element, got sizes (2, 3) | reduce it "
          "first, or index an element");
    WRONG((ts_item(NULL, &(double){0})),
          "TS_ERR_NULL: item: argument 't': expected a tensor, got NULL | pass TS_NONE where an "
          "optional tensor is absent");
    WRONG((ts_item(ts_empty_on(NULL, 0, TS_F32, TS_DEVICE_META), &(double){0})),
          "TS_ERR_DEVICE: item: argument 't': expected a tensor with values, got one on meta");
    WRONG((ts_item_int(N, &(int64_t){0})),
          "TS_ERR_SHAPE: item_int: argument 't': expected one element, got sizes (2, 3) | reduce "
          "it first, or index an element");
    WRONG((ts_item_int(A, &(int64_t){0})),
          "TS_ERR_DTYPE: item_int: argument 't': expected an integer or bool dtype, got f32 | use "
          "ts_item()");
    WRONG((ts_copy_to(A, NULL, 0)),
          "TS_ERR_VALUE: copy_to: argument 'bytes': expected 24 for the tensor's elements, got 0");
    WRONG((ts_copy_to(A, (char[4]){0}, 4)),
          "TS_ERR_VALUE: copy_to: argument 'bytes': expected 24 for the tensor's elements, got 4");
}

TS_TEST(errors_of_pointwise_ops_name_the_argument)
{
    OPERANDS;
    WRONG((ts_add(A, B)), "TS_ERR_SHAPE: add: argument 'other': expected sizes that broadcast with "
                          "(2, 3), got (4, 5)");
    WRONG((ts_add(NULL, A)),
          "TS_ERR_NULL: add: argument 'self': expected a tensor, got NULL | pass TS_NONE where an "
          "optional tensor is absent");
    WRONG((ts_add(TS_NONE, A)),
          "TS_ERR_NULL: add: argument 'self': expected a tensor, got TS_NONE");
    WRONG((ts_add_(NULL, A)),
          "TS_ERR_NULL: add: argument 'self': expected a tensor, got NULL | pass TS_NONE where an "
          "optional tensor is absent");
    WRONG((ts_add_(TS_NONE, A)),
          "TS_ERR_NULL: add: argument 'self': expected a tensor, got TS_NONE");
    WRONG((ts_add_out(TS_NONE, A, A)),
          "TS_ERR_NULL: add: argument 'out': expected a tensor, got TS_NONE");
    WRONG((ts_dropout(TS_NONE, 0, true)),
          "TS_ERR_NULL: dropout: argument 'self': expected a tensor, got TS_NONE");
    WRONG((ts_add_(N, A)),
          "TS_ERR_DTYPE: add: argument 'self', written in place: expected dtype f32, got i64 | "
          "cast an argument, or use the form that returns a new tensor");
    WRONG((ts_add_out(B, A, A)),
          "TS_ERR_SHAPE: add: argument 'out': expected sizes (2, 3), got (4, 5)");
    WRONG((ts_mul_(ts_expand(ts_ones(TS_SIZES(1), TS_F32), TS_SIZES(3)),
                   ts_ones(TS_SIZES(3), TS_F32))),
          "TS_ERR_VALUE: mul: argument 'self', written in place: expected distinct elements, got "
          "an expanded tensor | write to ts_clone() of it");
    WRONG((ts_add_(A, B)),
          "TS_ERR_SHAPE: add: argument 'other': expected sizes that broadcast with (2, 3), got (4, "
          "5)");
    WRONG((ts_mul_(ts_select(A, 0, 0), A)),
          "TS_ERR_SHAPE: mul: argument 'self', written in place: expected sizes (2, 3), got (3)");
    WRONG((ts_bitwise_and(A, A)),
          "TS_ERR_DTYPE: bitwise_and: argument 'self': expected a dtype that has a kernel on CPU "
          "(i64, i32, u8 or bool), got f32 | cast with ts_to()");
    WRONG((ts_bitwise_not(A)),
          "TS_ERR_DTYPE: bitwise_not: argument 'self': expected a dtype that has a kernel on CPU "
          "(i64, i32, u8 or bool), got f32 | cast with ts_to()");
    WRONG((ts_where(A, A, A)),
          "TS_ERR_DTYPE: where: argument 'condition': expected bool, got f32 | compare with "
          "ts_ne_scalar(t, 0)");
    WRONG((ts_masked_fill(A, N, ts_scalar_tensor(TS_SCALAR(1), TS_F32))),
          "TS_ERR_DTYPE: masked_fill: argument 'mask': expected bool, got i64 | compare with "
          "ts_ne_scalar(t, 0)");
    WRONG((ts_masked_fill(A, FLAGS, A)),
          "TS_ERR_SHAPE: masked_fill: argument 'value': expected a tensor without dims, got 2 dims "
          "| use ts_where()");
    WRONG((ts_lerp(A, B, A)), "TS_ERR_SHAPE: lerp: argument 'end': expected sizes that broadcast "
                              "with (2, 3), got (4, 5)");
    WRONG((ts_exp_out(N, A)),
          "TS_ERR_DTYPE: exp: argument 'out': expected dtype f32, got i64 | cast an argument, or "
          "use the form that returns a new tensor");
    WRONG((ts_eq_out(A, A, A)),
          "TS_ERR_DTYPE: eq: argument 'self', written in place: expected dtype bool, got f32 | "
          "cast an argument, or use the form that returns a new tensor");
    WRONG((ts_clamp_out(B, A, 0, 1)),
          "TS_ERR_SHAPE: clamp: argument 'out': expected sizes (2, 3), got (4, 5)");
    WRONG(
        (ts_copy_(A, B)),
        "TS_ERR_SHAPE: copy: argument 'self': expected sizes that broadcast to (2, 3), got (4, 5)");
    WRONG((ts_dropout(A, 1.5, true)),
          "TS_ERR_VALUE: dropout: argument 'p': expected a probability from 0 to 1, got 1.5");
    WRONG((ts_dropout(N, 0.5, true)), "TS_ERR_DTYPE: dropout: argument 'self': expected a floating "
                                      "dtype, got i64 | cast with ts_to()");
}

TS_TEST(errors_of_shape_ops_name_the_argument)
{
    OPERANDS;
    WRONG((ts_view(ts_t(A), TS_SIZES(6))),
          "TS_ERR_SHAPE: view: argument 'sizes': expected sizes that strides (1, 3) of sizes (3, "
          "2) can have without a copy, got (6) | use ts_reshape(), which copies then");
    WRONG((ts_view(A, TS_SIZES(4, 2))),
          "TS_ERR_SHAPE: view: argument 'sizes': expected sizes for 6 elements of sizes (2, 3), at "
          "most one of them -1, got (4, 2)");
    WRONG((ts_view(A, TS_SIZES(-1, -1))),
          "TS_ERR_SHAPE: view: argument 'sizes': expected sizes for 6 elements of sizes (2, 3), at "
          "most one of them -1, got (-1, -1)");
    WRONG((ts_reshape(A, TS_SIZES(5))),
          "TS_ERR_SHAPE: reshape: argument 'sizes': expected sizes for 6 elements of sizes (2, 3), "
          "at most one of them -1, got (5)");
    WRONG((ts_permute(A, TS_SIZES(0, 0))),
          "TS_ERR_INDEX: permute: argument 'dims': expected each of 2 dims once, got (0, 0)");
    WRONG((ts_permute(A, TS_SIZES(0))),
          "TS_ERR_INDEX: permute: argument 'dims': expected each of 2 dims once, got (0)");
    WRONG((ts_transpose(A, 0, 2)),
          "TS_ERR_INDEX: transpose: argument 'dim1': expected a dim from -2 to 1, got 2");
    WRONG((ts_expand(A, TS_SIZES(2, 4))),
          "TS_ERR_SHAPE: expand: argument 'sizes': expected at most 8 sizes to which (2, 3) "
          "broadcasts, got (2, 4)");
    WRONG((ts_expand(A, TS_SIZES(3))),
          "TS_ERR_SHAPE: expand: argument 'sizes': expected at most 8 sizes to which (2, 3) "
          "broadcasts, got (3)");
    WRONG((ts_squeeze_dim(A, 3)),
          "TS_ERR_INDEX: squeeze: argument 'dims': expected a dim from -2 to 1, got 3");
    WRONG((ts_unsqueeze(A, 4)),
          "TS_ERR_INDEX: unsqueeze: argument 'dim': expected a dim from -3 to 2, got 4");
    WRONG((ts_slice(A, 2, 0, 1, 1)),
          "TS_ERR_INDEX: slice: argument 'dim': expected a dim from -2 to 1, got 2");
    WRONG((ts_slice(A, 0, 0, 1, 0)),
          "TS_ERR_VALUE: slice: argument 'step': expected a step of at least 1, got 0");
    WRONG((ts_select(A, 0, 2)),
          "TS_ERR_INDEX: select: argument 'index': expected an index below 2 in dim 0, got 2");
    WRONG((ts_narrow(A, 1, 2, 2)),
          "TS_ERR_INDEX: narrow: arguments 'start' and 'length': expected a range inside the "
          "dim's 3 elements, got start 2 and length 2");
    WRONG((ts_diagonal(A, 0, 1, 1)),
          "TS_ERR_INDEX: diagonal: argument 'dim2': expected another dim than 'dim1', got 1 for "
          "both");
    WRONG((ts_as_strided(ts_ones(TS_SIZES(6), TS_F32), (int64_t[]){-1}, (int64_t[]){1}, 1, 0)),
          "TS_ERR_SHAPE: as_strided: argument 'sizes': expected 0 to 8 sizes >= 0 whose bytes fit "
          "63 bits, got (-1)");
    WRONG((ts_diagonal_backward(ts_ones(TS_SIZES(2), TS_F32), TS_SIZES(2), 0, 0, 1)),
          "TS_ERR_SHAPE: diagonal_backward: argument 'sizes': expected at least two dims, got 1");
    WRONG((ts_diagonal_backward(ts_ones(TS_SIZES(2), TS_F32), TS_SIZES(2, -1), 0, 0, 1)),
          "TS_ERR_SHAPE: diagonal_backward: argument 'sizes': expected 1 to 8 sizes >= 0 whose "
          "bytes fit 63 bits, got (2, -1)");
    WRONG((ts_as_strided(A, (int64_t[]){4, 4}, (int64_t[]){4, 1}, 2, 0)),
          "TS_ERR_VALUE: as_strided: argument 'strides': expected strides >= 0 that keep within 6 "
          "elements of storage, got (4, 1) for sizes (4, 4) at offset 0");
    WRONG((ts_split(A, 0, 0, (ts_tensor *[2]){0}, 2)),
          "TS_ERR_VALUE: split: argument 'size': expected a size that gives nparts = 2 for dim 0 "
          "of size 2, got 0, which gives 0");
    WRONG((ts_split(A, 1, 0, (ts_tensor *[2]){0}, 1)),
          "TS_ERR_VALUE: split: argument 'size': expected a size that gives nparts = 1 for dim 0 "
          "of size 2, got 1, which gives 2");
    WRONG((ts_unbind(A, 0, (ts_tensor *[3]){0}, 3)),
          "TS_ERR_VALUE: unbind: argument 'n': expected the size of dim 0, 2, got 3");
    WRONG((ts_chunk(A, 0, 0, (ts_tensor *[1]){0}, NULL)),
          "TS_ERR_VALUE: chunk: argument 'chunks': expected at least 1, got 0");
    WRONG((ts_cat((ts_tensor *[]){A, B}, 2, 0)),
          "TS_ERR_SHAPE: cat: argument 'tensors[1]': expected sizes (2, 3) in all dims but 0, got "
          "(4, 5)");
    WRONG((ts_cat(NULL, 0, 0)),
          "TS_ERR_VALUE: cat: argument 'tensors': expected at least one tensor, got 0");
    WRONG((ts_cat((ts_tensor *[]){A, NULL}, 2, 0)),
          "TS_ERR_NULL: cat: argument 'tensors': expected a list of tensors, got NULL or a list "
          "with NULL");
    WRONG((ts_cat((ts_tensor *[]){A, ts_empty_on(TS_SIZES(2, 3), TS_F32, TS_DEVICE_META)}, 2, 0)),
          "TS_ERR_DEVICE: cat: argument 'tensors[1]': expected device cpu as argument 'tensors', "
          "got meta | META tensors have no values: create both tensors on META, or neither");
    WRONG((ts_abs(FLAGS)), "TS_ERR_DTYPE: abs: argument 'self': expected a dtype that has a kernel "
                           "on CPU (f64, f32, bf16, f16, i64, i32 or u8), got bool | cast with "
                           "ts_to()");
    WRONG((ts_stack((ts_tensor *[]){A, B}, 2, 0)),
          "TS_ERR_SHAPE: stack: argument 'tensors[1]': expected sizes (2, 3), got (4, 5)");
    WRONG((ts_flatten(A, 1, 0)),
          "TS_ERR_INDEX: flatten: argument 'end_dim': expected at least 'start_dim', 1, got 0");
    WRONG((ts_movedim(A, 0, 5)),
          "TS_ERR_INDEX: movedim: argument 'destination': expected a dim from -2 to 1, got 5");
    WRONG((ts_unflatten(A, 1, TS_SIZES(2, 2))),
          "TS_ERR_SHAPE: unflatten: argument 'sizes': expected 1 to 7 sizes whose product is 3, "
          "got (2, 2)");
    WRONG((ts_slice_scatter(A, B, 0, 0, 1, 1)),
          "TS_ERR_SHAPE: slice_scatter: argument 'src': expected sizes (1, 3), got (4, 5)");
}

TS_TEST(errors_of_reductions_name_the_argument)
{
    OPERANDS;
    WRONG((ts_sum_dim(A, 2, false)),
          "TS_ERR_INDEX: sum: argument 'dims': expected a dim from -2 to 1, got 2");
    WRONG((ts_sum_dims(A, TS_SIZES(0, 0), false)),
          "TS_ERR_VALUE: sum: argument 'dims': expected each dim once, got dim 0 twice");
    WRONG((ts_mean(N)), "TS_ERR_DTYPE: mean: argument 'self': expected a floating dtype, got i64 | "
                        "cast with ts_to()");
    WRONG((ts_amax(ts_zeros(TS_SIZES(0, 3), TS_F32))),
          "TS_ERR_SHAPE: amax: argument 'self': expected at least one element in dim 0, got sizes "
          "(0, 3)");
    WRONG((ts_argmax(ts_zeros(TS_SIZES(0), TS_F32))),
          "TS_ERR_SHAPE: argmax: argument 'self': expected at least one element to choose from, "
          "got sizes (0)");
    WRONG((ts_norm_dims(A, 3, TS_SIZES(1), false)),
          "TS_ERR_VALUE: norm: argument 'p': expected 1, 2 or infinity, got 3");
    WRONG((ts_sum_out(A, A, TS_SIZES(0), false)),
          "TS_ERR_SHAPE: sum: argument 'self', written in place: expected sizes (3), got (2, 3)");
    WRONG((ts_cumsum(A, 2)),
          "TS_ERR_INDEX: cumsum: argument 'dim': expected a dim from -2 to 1, got 2");
    WRONG((ts_softmax(A, 2)),
          "TS_ERR_INDEX: softmax: argument 'dim': expected a dim from -2 to 1, got 2");
    WRONG((ts_log_softmax(A, -3)),
          "TS_ERR_INDEX: log_softmax: argument 'dim': expected a dim from -2 to 1, got -3");
    WRONG((ts_sum_to_size(A, TS_SIZES(2, 2))),
          "TS_ERR_SHAPE: sum_to_size: argument 'sizes': expected sizes that broadcast to (2, 3), "
          "got (2, 2)");
    WRONG((ts_var(N)), "TS_ERR_DTYPE: var: argument 'self': expected a floating dtype, got i64 | "
                       "cast with ts_to()");
}

/** Runs attention over (1, 2, 6, 4) tensors with options, and a backward. Returns its status. */
static ts_status attend(ts_attention_opts o)
{
    ts_tensor *q = ts_set_requires_grad(ts_ones(TS_SIZES(1, 2, 6, 4), TS_F32), true);
    o.size = sizeof o;
    return ts_backward(ts_sum(ts_scaled_dot_product_attention_ex(q, q, q, NULL, &o)));
}
#define ATTEND(...) (attend((ts_attention_opts){__VA_ARGS__}))

static ts_tensor *bounds(int32_t a, int32_t b, int32_t c)
{
    return ts_from_array((int32_t[]){a, b, c}, TS_I32, TS_SIZES(3));
}
#define BOUNDS(q, k) .cu_seqlens = (ts_tensor *[]){q, k}
#define PACKED(a, b, c)                                                                            \
    BOUNDS(bounds(0, 3, 6), bounds(a, b, c)), .max_seqlen_q = 3, .max_seqlen_k = 3

TS_TEST(errors_of_attention_options_name_the_option)
{
    OPERANDS;
    ts_tensor *mask = ts_set_requires_grad(ts_ones(TS_SIZES(6), TS_F32), true),
              *wide = ts_ones(TS_SIZES(6), TS_F64);
    WRONG(ATTEND(.mask = &A),
          "TS_ERR_SHAPE: scaled_dot_product_attention: argument 'mask': expected sizes that broad"
          "cast to (1, 2, 6, 6), got (2, 3)");
    WRONG(ATTEND(.mask = &wide),
          "TS_ERR_DTYPE: scaled_dot_product_attention: argument 'mask': expected dtype bool or f3"
          "2 as argument 'query', got f64 | cast with ts_to()");
    WRONG(ATTEND(.mask = &mask),
          "TS_ERR_AUTOGRAD: scaled_dot_product_attention: argument 'mask': requires grad, and att"
          "ention has no gradient for it | pass ts_detach() of it, or compute attention with "
          "separate ops");
    WRONG(ATTEND(.window = true, .window_left = -2),
          "TS_ERR_VALUE: scaled_dot_product_attention: argument 'window': expected (left, right),"
          " each at least 0, or -1 for no bound, got (-2, 0)");
    WRONG(ATTEND(.window_left = 3),
          "TS_ERR_VALUE: scaled_dot_product_attention: argument 'window': expected true with wind"
          "ow_left or window_right, got false");
    WRONG(ATTEND(.softcap = -1),
          "TS_ERR_VALUE: scaled_dot_product_attention: argument 'softcap': expected a finite numb"
          "er of at least 0, got -1");
    WRONG(ATTEND(.dropout_p = 1.5),
          "TS_ERR_VALUE: scaled_dot_product_attention: argument 'dropout_p': expected a probabili"
          "ty from 0 to 1, got 1.5");
    WRONG(ATTEND(BOUNDS(bounds(0, 3, 6), NULL)),
          "TS_ERR_NULL: scaled_dot_product_attention: argument 'cu_seqlens': expected a list of "
          "tensors, got NULL or a list with NULL");
    WRONG(ATTEND(BOUNDS(bounds(0, 3, 6), TS_NONE)),
          "TS_ERR_NULL: scaled_dot_product_attention: argument 'cu_seqlens[1]': expected a tensor,"
          " got TS_NONE");
    WRONG(ATTEND(.max_seqlen_q = 3),
          "TS_ERR_VALUE: scaled_dot_product_attention: argument 'cu_seqlens': expected two "
          "tensors with max_seqlen_q or max_seqlen_k, got none");
    WRONG(ATTEND(BOUNDS(N, N)),
          "TS_ERR_DTYPE: scaled_dot_product_attention: argument 'cu_seqlens[0]': expected dtype "
          "i32, got i64 | cast with ts_to()");
    WRONG(ATTEND(BOUNDS(bounds(0, 3, 6), ts_zeros(TS_SIZES(4), TS_I32))),
          "TS_ERR_SHAPE: scaled_dot_product_attention: argument 'cu_seqlens[1]': expected the "
          "sizes of 'cu_seqlens[0]', got sizes (4)");
    WRONG(ATTEND(BOUNDS(bounds(0, 3, 6), bounds(0, 3, 6)), .max_seqlen_q = -1),
          "TS_ERR_VALUE: scaled_dot_product_attention: argument 'max_seqlens': expected two numbe"
          "rs from 0 to 2147483647 with argument 'cu_seqlens', got (-1, 0)");
    WRONG(ATTEND(PACKED(0, 3, 5)),
          "TS_ERR_VALUE: scaled_dot_product_attention: argument 'cu_seqlens': expected bounds fro"
          "m 0 to the 6 tokens, got 0 to 5");
    WRONG(ATTEND(PACKED(1, 3, 6)),
          "TS_ERR_VALUE: scaled_dot_product_attention: argument 'cu_seqlens': expected bounds fro"
          "m 0 to the 6 tokens, got 1 to 6");
    WRONG(ATTEND(PACKED(0, 1, 6)),
          "TS_ERR_VALUE: scaled_dot_product_attention: argument 'cu_seqlens': expected 0 to 3 tok"
          "ens a sequence, as argument 'max_seqlens' says, got 5 in sequence 1");
    WRONG(ATTEND(PACKED(0, 7, 6)),
          "TS_ERR_VALUE: scaled_dot_product_attention: argument 'cu_seqlens': expected 0 to 3 tok"
          "ens a sequence, as argument 'max_seqlens' says, got 7 in sequence 0");
    ts_tensor *q = ts_ones(TS_SIZES(2, 1, 3, 4), TS_F32);
    ts_attention_opts packed = {.size = sizeof packed, PACKED(0, 3, 6)}, small = {.size = 4};
    WRONG((ts_scaled_dot_product_attention_ex(q, q, q, NULL, &packed)),
          "TS_ERR_SHAPE: scaled_dot_product_attention: argument 'query': expected sizes (1, heads"
          ", tokens, depth) with argument 'cu_seqlens', got 2 batches");
    WRONG(
        (ts_scaled_dot_product_attention_ex(q, q, q, NULL, &small)),
          "TS_ERR_VALUE: scaled_dot_product_attention_ex: argument 'opts': expected a .size of "
          "120, or a smaller multiple of 8 from an earlier version, got 4 | set .size to the size"
          " of the struct, or use TS_OPTS()");
    ts_tensor *i64 = ts_zeros(TS_SIZES(2), TS_I64), *three = bounds(1, 2, 3),
              *more = ts_from_array((int32_t[]){1, 4}, TS_I32, TS_SIZES(2));
    ts_attention_opts lengths = {.size = sizeof lengths, .key_lengths = &i64};
    WRONG((ts_scaled_dot_product_attention_ex(q, q, q, NULL, &lengths)),
          "TS_ERR_DTYPE: scaled_dot_product_attention: argument 'key_lengths': expected dtype i32"
          ", got i64 | cast with ts_to()");
    lengths.key_lengths = &three;
    WRONG((ts_scaled_dot_product_attention_ex(q, q, q, NULL, &lengths)),
          "TS_ERR_SHAPE: scaled_dot_product_attention: argument 'key_lengths': expected sizes (2)"
          ", as the batch, got (3)");
    lengths.key_lengths = &more;
    WRONG((ts_scaled_dot_product_attention_ex(q, q, q, NULL, &lengths)),
          "TS_ERR_VALUE: scaled_dot_product_attention: argument 'key_lengths': expected 0 to 3, t"
          "he number of keys, got 4 in batch 1");
    packed.key_lengths = &more;
    WRONG((ts_scaled_dot_product_attention_ex(q, q, q, NULL, &packed)),
          "TS_ERR_VALUE: scaled_dot_product_attention: argument 'key_lengths': expected none with"
          " cu_seqlens, got lengths");
}

TS_TEST(errors_of_products_and_layers_name_the_argument)
{
    OPERANDS;
    WRONG((ts_mm(A, A)),
          "TS_ERR_SHAPE: mm: argument 'mat2': expected 3 as size of dim 0, got sizes (2, 3)");
    WRONG((ts_mm(A, ts_ones(TS_SIZES(3), TS_F32))),
          "TS_ERR_SHAPE: mm: argument 'mat2': expected 2 dims, got 1: sizes (3)");
    WRONG((ts_bmm(A, A)),
          "TS_ERR_SHAPE: bmm: argument 'self': expected 3 dims, got 2: sizes (2, 3)");
    WRONG((ts_mm(A, ts_ones(TS_SIZES(3, 2), TS_F64))),
          "TS_ERR_DTYPE: mm: argument 'mat2': expected dtype f32 as argument 'self', got f64 | "
          "cast one with ts_to()");
    WRONG((ts_matmul(A, ts_ones(TS_SIZES(2), TS_F32))),
          "TS_ERR_SHAPE: matmul: argument 'other': expected 3 as size of dim 0, got sizes (2)");
    WRONG((ts_linear(A, B, TS_NONE)),
          "TS_ERR_SHAPE: linear: argument 'input': expected 5 as size of dim 1, got sizes (2, 3)");
    WRONG((ts_linear_gelu(A, A, ts_ones(TS_SIZES(3), TS_F32), true, NULL)),
          "TS_ERR_SHAPE: linear_gelu: argument 'bias': expected sizes (2), got (3)");
    WRONG((ts_layer_norm(A, ts_ones(TS_SIZES(4), TS_F32), TS_NONE)),
          "TS_ERR_SHAPE: layer_norm: argument 'weight': expected sizes (3), got (4)");
    WRONG((ts_layer_norm_ex(A, TS_NONE, TS_NONE, &(ts_normalization_opts){.eps = 1})),
          "TS_ERR_VALUE: layer_norm_ex: argument 'opts': expected a .size of 40, or a smaller "
          "multiple of 8 from an earlier version, got 0 | set .size to the size of the struct, or"
          " use TS_OPTS()");
    WRONG(
        (ts_mse_loss_ex(A, A, &(ts_loss_opts){.size = 4096})),
          "TS_ERR_VALUE: mse_loss_ex: argument 'opts': expected a .size of 48, or a smaller "
          "multiple of 8 from an earlier version, got 4096 | set .size to the size of the struct,"
          " or use TS_OPTS()");
    WRONG((ts_addmm_ex(A, A, A, &(ts_addmm_opts){.beta = NULL})),
          "TS_ERR_VALUE: addmm_ex: argument 'opts': expected a .size of 24, or a smaller multiple"
          " of 8 from an earlier version, got 0 | set .size to the size of the struct, or use "
          "TS_OPTS()");
    WRONG((ts_add_layer_norm(A, ts_ones(TS_SIZES(3), TS_F32), TS_NONE, TS_NONE, NULL)),
          "TS_ERR_SHAPE: add_layer_norm: argument 'residual': expected sizes (2, 3), got (3)");
    WRONG((ts_rms_norm(A, ts_ones(TS_SIZES(2), TS_F32))),
          "TS_ERR_SHAPE: rms_norm: argument 'weight': expected sizes (3), got (2)");
    WRONG((ts_scaled_dot_product_attention(A, A, A)),
          "TS_ERR_SHAPE: scaled_dot_product_attention: argument 'query': expected 4 dims, got 2: "
          "sizes (2, 3)");
    WRONG((ts_embedding(A, A, -1)),
          "TS_ERR_DTYPE: embedding: argument 'index': expected dtype i64 or i32, got f32 | cast "
          "with ts_to()");
    WRONG((ts_embedding(A, ts_full(TS_SIZES(1), TS_SCALAR(7), TS_I64), -1)),
          "TS_ERR_INDEX: embedding: argument 'index': expected indices from 0 to 1, got 7 at "
          "position (0)");
    WRONG((ts_gather(A, 2, N)),
          "TS_ERR_INDEX: gather: argument 'dim': expected a dim from -2 to 1, got 2");
    WRONG((ts_gather(A, 1, ts_full(TS_SIZES(2, 3), TS_SCALAR(9), TS_I64))),
          "TS_ERR_INDEX: gather: argument 'index': expected indices from 0 to 2, got 9 at position "
          "(0, 0)");
    WRONG((ts_index_select(A, 0, A)),
          "TS_ERR_DTYPE: index_select: argument 'index': expected dtype i64 or i32, got f32 | cast "
          "with ts_to()");
    WRONG((ts_one_hot(N, 0)),
          "TS_ERR_VALUE: one_hot: argument 'num_classes': expected at least 1, got 0");
    WRONG((ts_cross_entropy(A, A)),
          "TS_ERR_DTYPE: cross_entropy: argument 'target': expected dtype i64 or i32, got f32 | "
          "cast class indices with ts_to()");
    WRONG((ts_cross_entropy_last(A, ts_ones(TS_SIZES(3), TS_I64))),
          "TS_ERR_SHAPE: cross_entropy_last: argument 'target': expected the sizes (2, 3) of "
          "argument "
          "'self' without the last, got (3)");
    WRONG((ts_cross_entropy_grad(A, ts_ones(TS_SIZES(3), TS_I64), NULL, NULL)),
          "TS_ERR_SHAPE: cross_entropy_grad: argument 'target': expected sizes (2), got (3)");
    WRONG((ts_cross_entropy(A, ts_full(TS_SIZES(2), TS_SCALAR(8), TS_I64))),
          "TS_ERR_INDEX: cross_entropy: argument 'target': expected classes from 0 to 2 (or -100 "
          "to ignore), got 8 at position 0");
    WRONG((ts_cross_entropy_grad(A, ts_full(TS_SIZES(2), TS_SCALAR(8), TS_I64), NULL, NULL)),
          "TS_ERR_INDEX: cross_entropy_grad: argument 'target': expected classes from 0 to 2 (or "
          "-100 to ignore), got 8 at position 0");
    WRONG((ts_mse_loss(A, B)),
          "TS_ERR_SHAPE: mse_loss: argument 'target': expected sizes (2, 3), got (4, 5)");
    WRONG((ts_multinomial(A, 5, false)),
          "TS_ERR_VALUE: multinomial: argument 'num_samples': expected at most the 3 categories "
          "without replacement, got 5 | draw with replacement");
    WRONG((ts_randint(TS_SIZES(2), 5, 5)),
          "TS_ERR_VALUE: randint: argument 'high': expected more than low = 5, got 5");
    WRONG((ts_uniform(TS_SIZES(2), 1, 0, TS_F32)),
          "TS_ERR_VALUE: uniform: argument 'high': expected a finite number of at least low = 1, "
          "got 0");
    WRONG((ts_empty_on(TS_SIZES(2), TS_F32, ((ts_device){9, 3}))),
          "TS_ERR_DEVICE: empty: argument 'device': expected the device of a known backend, got "
          "backend number 9 | load its backend with ts_backend_load()");
    WRONG((ts_randperm(-1)), "TS_ERR_VALUE: randperm: argument 'n': expected 0 to "
                             "9223372036854775807 for dtype i64, got -1");
    WRONG((ts_linear_new(0, 3, true)),
          "TS_ERR_VALUE: linear_new: argument 'in': expected at least 1, got 0");
    WRONG((ts_mlp_new(3, -1, NULL)),
          "TS_ERR_VALUE: mlp_new: argument 'hidden': expected at least 1, got -1");
    WRONG((ts_conv_new(4, 6, TS_SIZES(3, 0), true, NULL)),
          "TS_ERR_VALUE: conv_new: argument 'kernel[1]': expected at least 1, got 0");
    WRONG((ts_conv_transpose_new(4, 6, TS_SIZES(3, 3, 3, 3), true, NULL)),
          "TS_ERR_VALUE: conv_transpose_new: argument 'nkernel': expected 1 to 3, got 4");
    WRONG((ts_conv_new(3, 6, TS_SIZES(3), true, &(ts_conv_opts){.size = sizeof(ts_conv_opts),
                                                                .groups = 2})),
          "TS_ERR_VALUE: conv_new: argument 'in': expected a multiple of the number of groups, got "
          "3");
    WRONG((ts_layer_norm_new(-1, 0, true)),
          "TS_ERR_VALUE: layer_norm_new: argument 'width': expected at least 1, got -1");
    WRONG((ts_dropout_new(2)),
          "TS_ERR_VALUE: dropout_new: argument 'p': expected a probability from 0 to 1, got 2");
    WRONG((ts_multihead_new(6, 4, NULL)),
          "TS_ERR_VALUE: multihead_new: expected heads that divide the width and kv_heads that "
          "divide the heads, got width 6, heads 4, kv_heads 4");
    WRONG((ts_module_new(NULL)),
          "TS_ERR_NULL: module_new: argument 'type': expected a ts_module_type, got NULL");
    WRONG((ts_forward(NULL, A)),
          "TS_ERR_NULL: forward: argument 'm': expected a module, got NULL");
    WRONG((ts_sequential_add(NULL, NULL)),
          "TS_ERR_NULL: sequential_add: argument 'sequential': expected a module, got NULL");
    WRONG((ts_optimizer_new((ts_optimizer_kind)7)), "TS_ERR_VALUE: optimizer_new: argument 'kind': "
                                                    "expected TS_SGD, TS_ADAM or TS_ADAMW, got 7");
    WRONG((ts_init_uniform(N, 0, 1)),
          "TS_ERR_DTYPE: uniform: argument 'dtype': expected a dtype that has a kernel on CPU "
          "(f64, f32, bf16 or f16), got i64 | cast with ts_to()");
}

TS_TEST(errors_of_gradients_name_the_argument)
{
    OPERANDS;
    WRONG((ts_set_requires_grad(N, true)),
          "TS_ERR_DTYPE: set_requires_grad: argument 't': expected a floating dtype, got i64");
    WRONG((ts_backward(A)),
          "TS_ERR_AUTOGRAD: backward: argument 'loss': expected a tensor that requires grad, got "
          "one that does not | make a leaf it depends on with ts_set_requires_grad()");
    WRONG((ts_backward(W)),
          "TS_ERR_SHAPE: backward: argument 'loss': expected one element, got sizes (2, 3) | "
          "reduce it, or give its gradient to ts_backward_ex()");
    WRONG((ts_add_(W, A)),
          "TS_ERR_AUTOGRAD: add: cannot write 'self' in place: it is a leaf that requires grad | "
          "write to ts_clone() of it, use ts_slice_scatter() for a part, or wrap the write in "
          "TS_NO_GRAD");
    WRONG((ts_add_out(A, W, W)),
          "TS_ERR_AUTOGRAD: add: cannot write 'out' in place: it takes part in recording; out= "
          "forms have no gradient | write to ts_clone() of it, use ts_slice_scatter() for a part, "
          "or wrap the write in TS_NO_GRAD");
    WRONG((ts_fill_(W, 1)),
          "TS_ERR_AUTOGRAD: fill: argument 'self': expected a tensor that does not require grad, "
          "got (2, 3) f32 that requires grad | write to ts_clone() of it, use ts_slice_scatter() "
          "for a part, or wrap the write in TS_NO_GRAD");
    WRONG((ts_set_grad(W, B)),
          "TS_ERR_SHAPE: set_grad: argument 'grad': expected (2, 3) f32, got (4, 5) f32");
    WRONG((ts_register_hook(W, NULL, NULL, NULL)),
          "TS_ERR_NULL: register_hook: argument 'fn': expected a function, got NULL");
    WRONG((ts_retain_grad(A)),
          "TS_ERR_AUTOGRAD: retain_grad: argument 't': expected a tensor that requires grad, got "
          "one that does not | ts_set_requires_grad(t, true)");
    WRONG((ts_grad_of(ts_sum(W), TS_NONE, (ts_tensor *[]){A}, 1, (ts_tensor *[1]){0}, NULL)),
          "TS_ERR_AUTOGRAD: grad_of: argument 'inputs[0]': expected a tensor that requires grad, "
          "got one that does not");
}

TS_TEST(errors_of_registry_and_files_name_the_argument)
{
    OPERANDS;
    WRONG((ts_register_op("no schema", NULL)),
          "TS_ERR_FORMAT: register_op: argument 'schema': expected '(' at column 4, got 'no "
          "schema'");
    WRONG((ts_register_layer("AUTOGRAD", "backends", NULL)),
          "TS_ERR_REGISTRY: register_layer: the name 'AUTOGRAD' is taken by key 24, AUTOGRAD");
    WRONG(
        (ts_register_layer("MINE", "NOWHERE", NULL)),
        "TS_ERR_REGISTRY: register_layer: argument 'above': expected the name of a layer or a "
        "backend, got 'NOWHERE'");
    WRONG((ts_register_backend_key("", NULL)),
          "TS_ERR_VALUE: register_backend_key: argument 'name': expected a name of 1 to 23 "
          "printable ASCII characters without blanks and without the characters ':,', got ''");
    WRONG((ts_register_kernel("add", 70, NULL, NULL, NULL)),
          "TS_ERR_NULL: register_kernel: argument 'kernel': expected a function, got NULL");
    WRONG((ts_unregister(NULL)),
          "TS_ERR_NULL: unregister: argument 'registration': expected a registration, got NULL");
    WRONG((ts_op_dump("nonsense", stdout)),
          "TS_ERR_REGISTRY: op_dump: argument 'op': expected an op's name, got 'nonsense'");
    WRONG((ts_step_graph(NULL, NULL)),
          "TS_ERR_NULL: step_graph: argument 'fn': expected a function, got NULL");
    WRONG((ts_compile(NULL, NULL, NULL)),
          "TS_ERR_NULL: compile: argument 'fn': expected a function, got NULL");
    WRONG((ts_frame_describe(NULL, (char[8]){0}, 8) ? TS_OK : ts_error_code()),
          "TS_ERR_NULL: frame_describe: argument 'frame': expected a running call, got NULL");
    WRONG((ts_device_from_name("moon", &(ts_device){0})),
          "TS_ERR_VALUE: device_from_name: argument 'name': expected a device such as cpu, cuda:0 "
          "or meta, got 'moon'");
    WRONG((ts_npy_load("/nowhere/t.npy")),
          "TS_ERR_IO: npy_load: cannot open '/nowhere/t.npy': No such file or directory");
    WRONG((ts_safetensors_open("/nowhere/t", NULL)),
          "TS_ERR_IO: safetensors_open: cannot open '/nowhere/t': No such file or directory");
    WRONG((ts_safetensors_save("/tmp", NULL, NULL, -1, NULL, NULL, 0)),
          "TS_ERR_VALUE: safetensors_save: argument 'n': expected at least 0, got -1");
    WRONG((ts_loader_open("/nowhere", NULL)),
          "TS_ERR_NULL: loader_open: argument 'opts': expected options, got NULL");
    WRONG((ts_csv_create(NULL, NULL, 0)),
          "TS_ERR_NULL: csv_create: argument 'path': expected a path, got NULL");
    WRONG((ts_csv_create("x", NULL, 2)),
          "TS_ERR_NULL: csv_create: argument 'columns': expected 2 entries, got NULL");
    WRONG((ts_csv_create("x", (const char *[]){"a", NULL}, 2)),
          "TS_ERR_NULL: csv_create: argument 'columns[1]': expected a string, got NULL");
    WRONG((ts_csv_create("x", NULL, -2)),
          "TS_ERR_VALUE: csv_create: argument 'ncolumns': expected at least 0, got -2");
    WRONG((ts_chart_write(NULL, "x")),
          "TS_ERR_NULL: chart_write: argument 'chart': expected a chart, got NULL");
    WRONG((ts_chart_new(TS_OPTS(ts_chart_opts, .width = 10))),
          "TS_ERR_VALUE: chart_new: argument 'width': expected 200 to 10000 pixels, got 10");
    WRONG((ts_mlp_new(1, 1, &(ts_mlp_opts){.dropout = 0.1})),
          "TS_ERR_VALUE: mlp_new: argument 'opts': expected a .size of 32, or a smaller multiple "
          "of 8 from an earlier version, got 0 | set .size to the size of the struct, or use "
          "TS_OPTS()");
}
