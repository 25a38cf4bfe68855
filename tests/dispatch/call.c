/** @file call.c  Redispatch, nesting, boxed calls, steady state, errors. */
// SPDX-License-Identifier: MIT
#include "tests/dispatch/common.h"

static ts_status leaf(ts_frame *f) { (void)f; note('c'); return TS_OK; }

/** Redispatches a frame with an invalid args pointer: reading the arguments would crash. */
static ts_status layer_hides_args(ts_frame *f)
{
    const ts_value *args = f->args;
    f->args = (const ts_value *)8;
    ts_status status = ts_redispatch(f);
    f->args = args;
    return status;
}

TS_TEST(redispatch_does_not_read_the_arguments)
{
    ts_key key;
    OK(ts_register_layer("HIDES", "", &key));
    OK(ts_register_kernel("noop", key, layer_hides_args, NULL, NULL));
    OK(ts_register_kernel("noop", TS_KEY_CPU, leaf, NULL, NULL));
    OK(ts_layer_enable(key, true));
    ts_tensor *a = one();
    OK(call_noop(a, a));
    ck_assert_str_eq(ran, "c");
}

/** Calls its own op through the public function instead of redispatching: an endless recursion. */
static ts_status layer_recurses(ts_frame *f)
{
    return ts_noop(f->args[0].t, f->args[1].t, ts_scalar_int(1));
}

TS_TEST(a_layer_that_forgets_to_redispatch_fails_fast)
{
    ts_key key;
    OK(ts_register_layer("RECURSES", "", &key));
    OK(ts_register_kernel("noop", key, layer_recurses, NULL, NULL));
    OK(ts_layer_enable(key, true));
    ts_tensor *a = one();
    FAILS(TS_ERR_STATE, call_noop(a, a));
    SAYS("256");
    ck_assert_ptr_nonnull(strstr(ts_error_hint(), "ts_redispatch"));
    OK(ts_layer_enable(key, false));
    OK(call_noop(a, a));
}

/** A backend kernel that calls another op. */
static ts_status twice(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *y = ts_add(f->args[0].t, f->args[0].t);
    TS_TRY(y);
    if (ts_requires_grad(y))
        note('g');
    f->rets[0] = ts_value_tensor(ts_retain(y));
    return TS_OK;
}

TS_TEST(ops_called_inside_a_kernel_do_not_visit_the_layers_above)
{
    int op;
    OK(ts_register_op("test.twice(Tensor self) -> Tensor", &op));
    OK(ts_register_kernel("test.twice", TS_KEY_CPU, twice, NULL, NULL));
    ts_tensor *w = ts_set_requires_grad(one(), true);
    ran[0] = 0;
    ts_value arg = ts_value_tensor(w), ret = ts_value_none();
    OK(ts_call_boxed(op, &arg, 1, &ret, 1));
    ck_assert_str_eq(ran, ""); /* the add inside was not recorded */
    ck_assert(ts_requires_grad(ret.t));
    FAILS(TS_ERR_AUTOGRAD, ts_backward(ret.t)); /* the op has no rule, and says so */
    SAYS("test.twice");
    ts_release(ret.t);
}

static ts_status passes_none(ts_frame *f)
{
    return TS_STATUS_OF(ts_add(f->args[0].t, TS_NONE));
}

TS_TEST(none_is_refused_below_a_layer_too)
{
    int op;
    OK(ts_register_op("test.none(Tensor self) -> Tensor", &op));
    OK(ts_register_kernel("test.none", TS_KEY_CPU, passes_none, NULL, NULL));
    ts_value arg = ts_value_tensor(ts_set_requires_grad(one(), true)), ret = ts_value_none();
    FAILS(TS_ERR_NULL, ts_call_boxed(op, &arg, 1, &ret, 1));
    SAYS("argument 'other': expected a tensor, got TS_NONE");
}

TS_TEST(a_call_allocates_nothing_in_the_steady_state)
{
    if (ts_alloc_system)
        TS_SKIP("every block comes from the system");
    ts_tensor *a = one(), *w = ts_set_requires_grad(one(), true);
    for (int round = 0; round < 2; round++) {
        uint64_t before = ts_memory_get_stats().system_allocs;
        for (int i = 0; i < 100000; i++) {
            TS_SCOPE;
            ts_noop(a, a, ts_scalar_int(1));
            ts_add(a, a);
            ts_backward(ts_add(w, a));
            ts_zero_grad(w);
        }
        if (round)
            ck_assert_uint_eq(ts_memory_get_stats().system_allocs - before, 0);
    }
    ck_assert_int_eq(ts_error_code(), TS_OK);
}

static ts_status fallback(ts_frame *f)
{
    note('f');
    return ts_redispatch(f);
}

TS_TEST(a_fallback_sees_the_boxed_call_without_an_allocation)
{
    if (ts_alloc_system)
        TS_SKIP("every block comes from the system");
    ts_key key;
    OK(ts_register_layer("ALL", "", &key));
    OK(ts_register_fallback(key, fallback, NULL));
    OK(ts_layer_enable(key, true));
    ts_tensor *a = one();
    for (int i = 0; i < 1000; i++)
        ts_drop(ts_add(a, a));
    uint64_t before = ts_memory_get_stats().system_allocs;
    for (int i = 0; i < 100000; i++)
        ts_drop(ts_add(a, a));
    ck_assert_uint_eq(ts_memory_get_stats().system_allocs - before, 0);
}

TS_TEST(the_error_of_a_missing_kernel_names_op_call_backend_and_remedy)
{
    ts_tensor *other = with_key_of(TS_KEY_CUDA);
    FAILS(TS_ERR_UNSUPPORTED, ts_add(other, other));
    SAYS("add");
    SAYS("CUDA");
    SAYS("(1) f32");
    ck_assert_ptr_nonnull(strstr(ts_error_hint(), "ts_to_device"));
    int lines = 1;
    for (const char *p = ts_error_message(); *p; p++)
        lines += *p == '\n';
    ck_assert_int_le(lines, 10);
}

static ts_status fails_as_no_call_of_its_own(ts_frame *f)
{
    (void)f;
    ts_add(one(), NULL);
    return TS_ERR_VALUE;
}

TS_TEST(the_status_of_a_call_is_that_of_its_error_record)
{
    OK(ts_register_kernel("noop", TS_KEY_CPU, fails_as_no_call_of_its_own, NULL, NULL));
    ts_error_clear();
    ck_assert_int_eq(call_noop(one(), one()), TS_ERR_NULL);
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
}

TS_TEST(a_call_without_keys_is_an_error_that_names_the_op)
{
    int op;
    OK(ts_register_op("test.bare(int n) -> Tensor", &op));
    ts_value arg = ts_value_int(1), ret = ts_value_none();
    FAILS(TS_ERR_UNSUPPORTED, ts_call_boxed(op, &arg, 1, &ret, 1));
    SAYS("no dispatch key is left");
}

TS_TEST(masks_do_not_change_the_backend_of_a_tensor)
{
    ts_tensor *a = one(), *meta = ts_empty_on(TS_SIZES(1), TS_F32, TS_DEVICE_META);
    ts_mask_guard before = ts_mask_get();
    for (int key = 0; key < 16; key++)
        for (int ways = 1; ways < 4; ways++) {
            ts_mask_guard g = ts_mask_push(ways & 1 ? TS_KEYSET(key) : 0,
                                           ways & 2 ? TS_KEYSET(key) : 0);
            ts_mask_guard now = ts_mask_get();
            ck_assert(now.include == before.include && now.exclude == before.exclude);
            ts_tensor *sum = ts_add(a, a), *shape = ts_add(meta, meta);
            ck_assert(value(sum) == 2);
            ck_assert_int_eq(ts_device_of(shape).backend, TS_KEY_META);
            ts_mask_pop((ts_mask_guard){TS_BACKEND_KEYS, TS_BACKEND_KEYS});
            ck_assert(value(ts_add(a, a)) == 2);
            ts_mask_pop(g);
        }
    ts_mask_guard g = ts_mask_push(TS_KEYSET(TS_KEY_CPU), ~(ts_keyset)0);
    ck_assert(value(ts_add(a, a)) == 2);
    ck_assert_int_eq(ts_device_of(ts_add(meta, meta)).backend, TS_KEY_META);
    ts_mask_pop(g);
}

static ts_status guards(ts_frame *f)
{
    (void)f;
    ts_keyset outside = ts_mask_get().exclude;
    ck_assert(outside & TS_KEYSET(TS_KEY_CUDA));
    ts_mask_pop(ts_mask_push(0, TS_KEYSET(TS_KEY_TRACING)));
    ck_assert(ts_mask_get().exclude == outside);
    note('c');
    return TS_OK;
}
static ts_status goes_on(ts_frame *f) { return ts_redispatch(f); }

TS_TEST(a_guard_inside_a_backend_that_redispatches_keeps_its_key_excluded)
{
    OK(ts_register_kernel("noop", TS_KEY_CUDA, goes_on, NULL, NULL));
    OK(ts_register_kernel("noop", TS_KEY_CPU, guards, NULL, NULL));
    OK(call_noop(one(), with_key_of(TS_KEY_CUDA)));
    ck_assert_str_eq(ran, "c");
}

/** Whatever keys a mask excludes, TS_NONE and NULL never reach a kernel. */
TS_TEST(masks_do_not_permit_absent_tensors)
{
    ts_tensor *a = one();
    for (int layer = 16; layer < 63; layer++) {
        ts_mask_guard g = ts_mask_push(TS_KEYSET(layer), TS_KEYSET(TS_KEY_ABSENT));
        FAILS(TS_ERR_NULL, ts_exp(TS_NONE));
        SAYS("expected a tensor, got TS_NONE");
        FAILS(TS_ERR_NULL, ts_add(a, TS_NONE));
        ts_mask_pop((ts_mask_guard){g.include, g.exclude | TS_KEYSET(TS_KEY_ABSENT)});
        FAILS(TS_ERR_NULL, ts_exp(TS_NONE));
        ts_mask_pop(g);
        g = ts_mask_push(TS_KEYSET(TS_KEY_ABSENT), 0);
        OK(ts_exp(a));
        ts_mask_pop(g);
    }
}

TS_TEST(null_arguments_name_op_and_argument_and_propagate)
{
    ts_tensor *a = one();
    FAILS(TS_ERR_NULL, ts_add(a, NULL));
    SAYS("add: argument 'other'");
    FAILS(TS_ERR_NULL, ts_add(NULL, a));
    SAYS("add: argument 'self'");
    FAILS(TS_ERR_NULL, ts_add_out(NULL, a, a));
    ts_error_clear();
    ts_error_set(TS_ERR_VALUE, "the root failure");
    ck_assert_ptr_null(ts_mul(ts_add(NULL, a), a));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    SAYS("the root failure");
}

TS_TEST(a_boxed_call_checks_count_and_kinds)
{
    int add = ts_op_by_name("add");
    ts_tensor *a = one();
    ts_value args[2] = {ts_value_tensor(a), ts_value_int(2)}, ret = ts_value_none();
    OK(ts_call_boxed(add, args, 2, &ret, 1));
    double v;
    OK(ts_item(ret.t, &v));
    ck_assert_double_eq(v, 3);
    ts_release(ret.t);
    ret = ts_value_none();
    FAILS(TS_ERR_VALUE, ts_call_boxed(add, args, 1, &ret, 1));
    SAYS("expected 2 arguments");
    args[1] = ts_value_string("two");
    FAILS(TS_ERR_VALUE, ts_call_boxed(add, args, 2, &ret, 1));
    SAYS("argument 'other'");
    FAILS(TS_ERR_REGISTRY, ts_call_boxed(-1, args, 2, &ret, 1));
    FAILS(TS_ERR_REGISTRY, ts_call_boxed(1 << 20, args, 2, &ret, 1));
}

/** Redispatches with a doubled first argument, in a new frame. */
static ts_status layer_doubles(ts_frame *f)
{
    TS_SCOPE;
    ts_value args[2] = {ts_value_tensor(ts_mul_scalar(f->args[0].t, 2)), f->args[1]};
    return ts_redispatch_new(f, args);
}

TS_TEST(a_layer_that_changes_arguments_goes_on_with_a_new_frame)
{
    ts_key key;
    OK(ts_register_layer("DOUBLES", "AUTOGRAD", &key));
    OK(ts_register_kernel("add", key, layer_doubles, NULL, NULL));
    ts_tensor *a = one(), *w = ts_set_requires_grad(one(), true);
    OK(ts_layer_enable(key, true));
    double v;
    OK(ts_item(ts_add(a, a), &v));
    ck_assert_double_eq(v, 3);
    ts_tensor *y = ts_add(w, a); /* recomputes the keys below: AUTOGRAD still runs */
    OK(y);
    ck_assert(ts_requires_grad(y));
}

TS_TEST(meta_tensors_get_shapes_without_memory)
{
    ts_tensor *m = ts_empty_on(TS_SIZES(1 << 20, 1 << 20), TS_F32, TS_DEVICE_META);
    OK(m);
    ts_tensor *row = ts_empty_on(TS_SIZES(1 << 20), TS_F32, TS_DEVICE_META);
    ts_tensor *y = ts_add(m, row);
    OK(y);
    ck_assert_int_eq(ts_numel(y), (int64_t)1 << 40);
    ck_assert_ptr_null(ts_data(y));
    FAILS(TS_ERR_DEVICE, ts_add(m, ts_ones(TS_SIZES(1 << 20), TS_F32)));
}

/** The count by which a call raised the version of its destination. */
static uint32_t writes(ts_tensor *out, ts_tensor *(*call)(ts_tensor *out, ts_tensor *x))
{
    uint32_t before = ts_version(out);
    OK(call(out, ts_ones(TS_SIZES(3, 3), ts_dtype_of(out))));
    return ts_version(out) - before;
}
static ts_tensor *mm(ts_tensor *out, ts_tensor *x) { return ts_mm_out(out, x, x); }
static ts_tensor *softmax(ts_tensor *out, ts_tensor *x) { return ts_softmax_out(out, x, 0); }

TS_TEST(a_destination_that_a_copy_fills_counts_one_write)
{
    ts_tensor *half = ts_zeros(TS_SIZES(3, 3), TS_BF16), *single = ts_zeros(TS_SIZES(3, 3), TS_F32),
              *strided = ts_transpose(ts_zeros(TS_SIZES(3, 3), TS_F32), 0, 1);
    ck_assert_uint_eq(writes(single, mm), 1);
    ck_assert_uint_eq(writes(strided, mm), 1); /* through a contiguous temporary */
    ck_assert_uint_eq(writes(half, softmax), 1); /* computed in f32, rounded into it */
    ck_assert_uint_eq(writes(ts_transpose(half, 0, 1), softmax), 1);
}

TS_TEST(a_new_result_begins_without_a_write, .loop = 3)
{
    TS_SCOPE;
    ts_tensor *x = ts_zeros(TS_SIZES(3, 3), (ts_dtype[]){TS_F32, TS_BF16, TS_F16}[_i]);
    ck_assert_uint_eq(ts_version(ts_mm(x, x)), 0);
    ck_assert_uint_eq(ts_version(ts_softmax(x, 0)), 0);
    ck_assert_uint_eq(ts_version(ts_linear(ts_transpose(x, 0, 1), x, TS_NONE)), 0);
}

/* Mistakes that an external kernel can make at its end. */
static ts_status returns_nothing(ts_frame *f) { (void)f; return TS_OK; }
static ts_status fails_silently(ts_frame *f) { (void)f; return TS_ERR_VALUE; }
static ts_status makes_and_fails(ts_frame *f)
{
    TS_TRY(ts_redispatch(f));
    return ts_error_set(TS_ERR_VALUE, "seen enough");
}

/** Switches timers on or off; skips a test with timers in a build without them. */
#define TIMERS(on)                                                                                 \
    do {                                                                                           \
        if ((on) && !TS_TIMERS)                                                                    \
            TS_SKIP("built without timers");                                                       \
        OK(ts_timers_enable(on));                                                                  \
    } while (0)

/* In the next three tests odd loops have a layer, and loops from 2 on run with timers. */

TS_TEST(a_layer_or_kernel_without_a_result_is_named, .loop = 4)
{
    ts_key key = TS_KEY_CPU;
    TIMERS(_i / 2);
    if (_i % 2) {
        OK(ts_register_layer("FORGETS", "", &key));
        OK(ts_layer_enable(key, true));
    }
    OK(ts_register_kernel("neg", key, returns_nothing, NULL, NULL));
    OK(ts_register_kernel("topk", key, returns_nothing, NULL, NULL));
    OK(ts_register_op("tests.two(Tensor x) -> (Tensor, Tensor)", NULL));
    OK(ts_register_kernel("tests.two", key, returns_nothing, NULL, NULL));
    ts_tensor *a = one();
    if (_i % 2) { /* without a layer, neg's result exists before its kernel runs */
        FAILS(TS_ERR_INTERNAL, ts_neg(a));
        SAYS("neg: returned TS_OK without a result; the call passes FORGETS, CPU");
    }
    ts_value x = ts_value_tensor(a), rets[2] = {ts_value_none(), ts_value_none()};
    FAILS(TS_ERR_INTERNAL, ts_call_boxed(ts_op_by_name("tests.two"), &x, 1, rets, 2));
    SAYS("tests.two: returned TS_OK without a result");
}

TS_TEST(a_kernel_that_fails_without_a_message_is_named, .loop = 4)
{
    ts_key key = TS_KEY_CPU;
    TIMERS(_i / 2);
    if (_i % 2) {
        OK(ts_register_layer("SILENT", "", &key));
        OK(ts_layer_enable(key, true));
    }
    OK(ts_register_kernel("neg", key, fails_silently, NULL, NULL));
    ts_tensor *a = one();
    for (int stale = 0; stale < 2; stale++) {
        ts_error_clear();
        if (stale) /* an older record, of a failed call */
            ck_assert_ptr_null(ts_mm(a, a));
        ck_assert_ptr_null(ts_neg(a));
        ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
        SAYS(_i % 2 ? "neg: failed without recording an error; the call passes SILENT, CPU"
                    : "neg: failed without recording an error; the call passes CPU");
        ck_assert_ptr_null(ts_exp(ts_neg(a))); /* NULL propagates the failure */
        SAYS("neg: failed without recording an error");
    }
}

TS_TEST(results_of_a_call_that_fails_are_released, .loop = 2)
{
    ts_key key;
    TIMERS(_i);
    OK(ts_register_layer("ENOUGH", "", &key));
    OK(ts_register_kernel("neg", key, makes_and_fails, NULL, NULL));
    OK(ts_layer_enable(key, true));
    ts_tensor *a = ts_ones(TS_SIZES(100, 100), TS_F32);
    FAILS(TS_ERR_VALUE, ts_neg(a));
    int64_t before = ts_memory_get_stats().in_use;
    for (int i = 0; i < 100; i++)
        FAILS(TS_ERR_VALUE, ts_neg(a));
    SAYS("seen enough");
    ck_assert_int_eq(ts_memory_get_stats().in_use, before);
}

/* ------------------------------------------------------------- results of other kinds ---- */

static ts_value odd_result;
static ts_status gives_oddly(ts_frame *f)
{
    f->rets[0] = odd_result;
    return TS_OK;
}

TS_TEST(a_result_that_is_no_tensor_is_refused, .loop = 2) /* loop 1: by the slow path */
{
    const ts_value odd[] = {ts_value_none(), ts_value_tensor(NULL), ts_value_int(5),
                            ts_value_optional(TS_NONE), ts_value_tensor(TS_NONE)};
    ts_key key;
    OK(ts_register_layer("ODD", "", &key));
    OK(ts_register_kernel("neg", key, gives_oddly, NULL, NULL));
    OK(ts_layer_enable(key, true));
    TIMERS(_i);
    ts_tensor *a = one();
    for (size_t i = 0; i < TS_COUNTOF(odd); i++) {
        odd_result = odd[i];
        FAILS(TS_ERR_INTERNAL, ts_neg(a));
        SAYS(i < 4 ? "neg: returned TS_OK without a result" : "got TS_NONE");
    }
    odd_result = ts_value_tensor(ts_ones(TS_SIZES(1), TS_F32)); /* only the scope has a reference */
    FAILS(TS_ERR_INTERNAL, ts_neg(a));
    SAYS("got one that only a scope owns");
}

static ts_status gives_argument(ts_frame *f)
{
    f->rets[0] = ts_value_tensor(ts_retain(f->args[0].t));
    return TS_OK;
}

TS_TEST(a_kernel_may_return_an_argument_as_its_result, .loop = 2)
{
    ts_key key;
    OK(ts_register_layer("SAME", _i ? "AUTOGRAD" : "", &key));
    OK(ts_register_kernel("neg", key, gives_argument, NULL, NULL));
    OK(ts_layer_enable(key, true));
    ts_tensor *x = one();
    {
        TS_SCOPE;
        ts_tensor *y = ts_neg(ts_neg(x));
        OK(y);
        ck_assert_double_eq(value(y), 1);
    }
    ck_assert_double_eq(value(x), 1); /* it stayed in its scope */
    OK(ts_set_requires_grad(x, true));
    OK(ts_backward(ts_sum(ts_mul(ts_neg(x), x))));
    ck_assert_double_eq(value(ts_grad(x)), 2); /* below AUTOGRAD too: neg's rule calls neg */
}

static ts_status passes_a_number(ts_frame *f)
{
    ts_value args[TS_MAX_ARGS];
    memcpy(args, f->args, f->nargs * sizeof *args);
    args[0] = ts_value_int(3);
    return ts_redispatch_new(f, args);
}

TS_TEST(a_redispatch_with_another_kind_of_argument_is_refused)
{
    ts_key key;
    OK(ts_register_layer("KINDS", "", &key));
    OK(ts_register_kernel("gelu", key, passes_a_number, NULL, NULL));
    OK(ts_layer_enable(key, true));
    FAILS(TS_ERR_VALUE, ts_gelu(one()));
    SAYS("gelu: argument 'self': expected a kind that the schema accepts, got kind 2");
}

static ts_status decodes_attention(ts_frame *f)
{
    ck_assert_ptr_null(ts_kernel_attention(f).query);
    ck_assert_int_eq(ts_kernel_convolution(f).dims, 0);
    ck_assert_int_eq((int)ts_kernel_resampling(f).planes, 0);
    return ts_error_code();
}

TS_TEST(a_decoder_refuses_calls_of_other_ops)
{
    OK(ts_register_kernel("nonzero", TS_KEY_CPU, decodes_attention, NULL, NULL));
    FAILS(TS_ERR_STATE, ts_nonzero(one()));
    SAYS("nonzero: kernel_resampling: expected a call of an op that it decodes");
}

static ts_status reads_windows(ts_frame *f)
{
    ts_window_axis axis[3];
    int64_t forms = ts_kernel_window_forms(f);
    ts_kernel_windows(f, forms - 1, axis);
    ck_assert_int_gt((int)axis[2].count, 0);
    ck_assert_int_eq(ts_error_code(), TS_OK);
    ts_kernel_windows(f, forms, axis);
    ck_assert_int_eq((int)axis[2].count, 0);
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ts_error_clear();
    ts_kernel_windows(f, -2, axis);
    return ts_error_code();
}

TS_TEST(windows_of_a_form_that_does_not_exist_are_refused)
{
    OK(ts_register_kernel("convolution", TS_KEY_CPU, reads_windows, NULL, NULL));
    FAILS(TS_ERR_VALUE, ts_conv1d(ts_ones(TS_SIZES(1, 1, 9), TS_F32),
                                  ts_ones(TS_SIZES(1, 1, 3), TS_F32), TS_NONE,
                                  TS_OPTS(ts_conv_opts, .stride = {3})));
    SAYS("convolution: kernel_windows: argument 'form': expected -1 or a form below 3, got -2");
}
