/** @file kernel.c  Operators registered at run time through the public headers: rules, kernels,
 * composites, gradients. */
// SPDX-License-Identifier: MIT
#include "tests/dispatch/offset.h"

/* The op y = a * b * s with broadcasting, written as a user would write it. */
static ts_status scaled_rule(ts_frame *f) { return ts_rule_pointwise(f, 2, TS_DTYPE_NONE, true); }

/** Calls run for each element of a space, with the element's address in each operand. lift: offset
 *  of device addresses from host addresses. */
static void each(const ts_space *s, uintptr_t lift, void (*run)(void **at, void *ctx), void *ctx)
{
    for (int64_t i = 0; i < s->numel; i++) {
        int64_t rest = i, offset[TS_KERNEL_OPERANDS] = {0};
        for (int d = 0; d < s->ndim; d++) {
            for (int k = 0; k < s->operands; k++)
                offset[k] += rest % s->sizes[d] * s->operand[k].strides[d];
            rest /= s->sizes[d];
        }
        void *at[TS_KERNEL_OPERANDS];
        for (int k = 0; k < s->operands; k++)
            at[k] = (void *)((uintptr_t)s->operand[k].data - (s->operand[k].host ? 0 : lift) +
                             (uintptr_t)offset[k]);
        run(at, ctx);
    }
}

static void scaled_f32(void **at, void *ctx)
{
    *(float *)at[0] = *(float *)at[1] * *(float *)at[2] * (float)*(double *)ctx;
}

static ts_space seen;      /* the last space that the kernel saw */
/* value of the last operand if it is in host memory; the frame owns that memory */
static double seen_number;
static ts_status scaled_kernel(ts_frame *f)
{
    double s = ts_value_number(&f->args[2]);
    TS_TRY(ts_kernel_space(f, &seen));
    if (seen.operand[2].host)
        seen_number = ts_operand_number(&seen.operand[2]);
    ck_assert_int_eq(ts_kernel_dtype(f), TS_F32);
    each(&seen, ts_kernel_device(f).backend == TS_KEY_CPU ? 0 : OFFSET, scaled_f32, &s);
    return TS_OK;
}

static ts_status scaled_vjp(ts_vjp_call *call)
{
    ts_tensor *g = (ts_mul_scalar)(ts_rule_grad(call, 0), ts_value_unbox(ts_rule_arg(call, 2)));
    if (ts_rule_needs(call, 0))
        TS_TRY(ts_rule_give(call, 0,
                            ts_rule_reduce_to(call, 0, ts_mul(g, ts_rule_saved_arg(call, 1)))));
    if (ts_rule_needs(call, 1))
        TS_TRY(ts_rule_give(call, 1,
                            ts_rule_reduce_to(call, 1, ts_mul(g, ts_rule_saved_arg(call, 0)))));
    return TS_OK;
}

static int scaled = -1;
static const char scaled_schema[] = "test.scaled(Tensor a, Tensor|Scalar b, Scalar s) -> Tensor";

static void register_scaled(bool gradient)
{
    ts_op_opts opts = {.size = sizeof opts, .rule = scaled_rule, .doc = "a * b * s"};
    ts_kernel_opts kernel = {
        .size = sizeof kernel, .schema = scaled_schema, .dtypes = TS_DTYPE_BIT(TS_F32)};
    ts_vjp_opts saves = {.size = sizeof saves,
                         .saves_for = {[0] = TS_SAVE_ARG(1), [1] = TS_SAVE_ARG(0)}};
    OK(ts_register_op_ex(scaled_schema, &opts, &scaled));
    OK(ts_register_kernel_ex("test.scaled", TS_KEY_CPU, scaled_kernel, &kernel, NULL));
    if (gradient)
        OK(ts_register_vjp("test.scaled", scaled_vjp, &saves));
}

static ts_tensor *call_scaled(ts_tensor *a, ts_tensor *b, double s)
{
    ts_value args[] = {ts_value_tensor(a), ts_value_tensor(b), ts_value_float(s)},
             ret = ts_value_none();
    return ts_call_boxed(scaled, args, 3, &ret, 1) == TS_OK ? ts_adopt(ret.t) : NULL;
}

TS_TEST(an_op_with_a_rule_gets_broadcasting_casts_shapes_and_destinations)
{
    TS_SCOPE;
    register_scaled(false);
    ts_tensor *a = ts_arange(0, 6, 1, TS_F32), *b = ts_arange(1, 4, 1, TS_F32);
    ts_tensor *y = call_scaled(ts_view(a, TS_SIZES(2, 3)), b, 2);
    OK(y);
    ts_tensor *want = ts_mul_scalar(ts_mul(ts_view(a, TS_SIZES(2, 3)), b), 2);
    ck_assert(value(ts_all(ts_eq(y, want))) == 1);
    ck_assert_int_eq(seen.ndim, 2);
    ck_assert_int_eq(seen.operand[2].strides[1], 0); /* broadcast */
    OK(call_scaled(a, a, 1));
    ck_assert_int_eq(seen.ndim, 1); /* contiguous: one dim */
    /* integers are cast by the rule, other shapes refused by it */
    OK(y = call_scaled(ts_to(a, TS_I32), a, 1));
    ck_assert_int_eq(ts_dtype_of(y), TS_F32);
    FAILS(TS_ERR_SHAPE, call_scaled(a, b, 1));
    SAYS("test.scaled: argument 'b'");
    FAILS(TS_ERR_DTYPE, call_scaled(ts_to(a, TS_F64), a, 1));
    /* a number is an operand in host memory */
    ts_value args[] = {ts_value_tensor(a), ts_value_float(3), ts_value_int(1)},
             ret = ts_value_none();
    OK(ts_call_boxed(scaled, args, 3, &ret, 1));
    ts_release(ret.t);
    ck_assert(seen.operand[2].host && !seen.operand[1].host && seen.operand[2].arg == 1);
    ck_assert_double_eq(seen_number, 3);
    /* META and a destination */
    ts_tensor *meta = ts_to_device(a, TS_DEVICE_META);
    OK(y = call_scaled(meta, meta, 1));
    ck_assert_int_eq(ts_size(y, 0), 6);
    ret = ts_value_tensor(a);
    OK(ts_call_boxed(scaled, (ts_value[]){ts_value_tensor(a), ts_value_tensor(a), ts_value_int(1)},
                     3, &ret, 1));
    ck_assert_double_eq(value(ts_select(a, 0, 5)), 25);
}

TS_TEST(an_op_registered_at_run_time_has_the_gradient_of_its_rule)
{
    TS_SCOPE;
    register_scaled(true);
    ts_tensor *a = ts_set_requires_grad(ts_arange(1, 7, 1, TS_F32), true),
              *b = ts_set_requires_grad((ts_full)(TS_SIZES(1), ts_scalar_float(2), TS_F32), true);
    OK(ts_backward(ts_sum(call_scaled(a, b, 3))));
    ck_assert_double_eq(value(ts_select(ts_grad(a), 0, 2)), 6);
    ck_assert_double_eq(value(ts_grad(b)), 3 * 21);
    ts_op_description d = {.size = sizeof d};
    OK(ts_op_describe(scaled, &d));
    ck_assert_int_eq(d.gradient, TS_GRADIENT_RULE);
}

TS_TEST(a_gradient_through_an_op_without_a_rule_is_an_error_that_names_the_op)
{
    TS_SCOPE;
    register_scaled(false);
    ts_tensor *a = ts_set_requires_grad(ts_ones(TS_SIZES(3), TS_F32), true),
              *y = call_scaled(a, a, 1);
    OK(y);
    ck_assert(ts_requires_grad(y)); /* backward is an error, not a constant */
    FAILS(TS_ERR_AUTOGRAD, ts_backward(ts_sum(y)));
    SAYS("test.scaled");
    ck_assert(ts_grad(a) == TS_NONE);
    OK(ts_register_vjp(
        "test.scaled", scaled_vjp,
        &(ts_vjp_opts){.size = sizeof(ts_vjp_opts), .saves = TS_SAVE_ARG(0) | TS_SAVE_ARG(1)}));
    OK(ts_backward(ts_sum(call_scaled(a, a, 1)))); /* new calls use the gradient function */
    ck_assert_double_eq(value(ts_select(ts_grad(a), 0, 0)), 2);
}

static ts_status cube(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *x = f->args[0].t;
    return ts_kernel_give(f, 0, ts_mul(ts_mul(x, x), x));
}
static ts_status same(ts_frame *f) { return ts_kernel_give(f, 0, f->args[0].t); }
static ts_status minus_one(ts_vjp_call *call)
{
    return ts_rule_give(call, 0, ts_neg(ts_ones_like(ts_rule_grad(call, 0))));
}
static ts_status nothing(ts_vjp_call *call) { return ts_rule_give(call, 0, NULL); }

TS_TEST(a_composite_is_differentiated_by_its_parts_unless_it_has_a_rule)
{
    TS_SCOPE;
    int op;
    ts_op_opts opts = {.size = sizeof opts, .composite = cube};
    OK(ts_register_op_ex("test.cube(Tensor x) -> Tensor", &opts, &op));
    ts_tensor *x = ts_set_requires_grad((ts_full)(TS_SIZES(1), ts_scalar_float(2), TS_F32), true);
    ts_value arg = ts_value_tensor(x), ret = ts_value_none();
    OK(ts_call_boxed(op, &arg, 1, &ret, 1));
    ts_tensor *y = ts_adopt(ret.t);
    ck_assert_double_eq(value(y), 8);
    OK(ts_backward(ts_sum(y)));
    ck_assert_double_eq(value(ts_grad(x)), 12);
    OK(ts_register_vjp("test.cube", minus_one, NULL));
    ts_zero_grad(x);
    ret = ts_value_none();
    OK(ts_call_boxed(op, &arg, 1, &ret, 1));
    OK(ts_backward(ts_sum(ts_adopt(ret.t))));
    ck_assert_double_eq(value(ts_grad(x)), -1);
    OK(ts_register_vjp("test.cube", nothing, NULL));
    ret = ts_value_none();
    OK(ts_call_boxed(op, &arg, 1, &ret, 1));
    FAILS(TS_ERR_NULL, ts_backward(ts_sum(ts_adopt(ret.t))));
    /* a composite that returns its argument returns another handle of the same data */
    opts.composite = same;
    OK(ts_register_op_ex("test.same(Tensor x) -> Tensor", &opts, &op));
    ts_tensor *a = one();
    arg = ts_value_tensor(a), ret = ts_value_none();
    OK(ts_call_boxed(op, &arg, 1, &ret, 1));
    ck_assert(ret.t != a && ts_data(ret.t) == ts_data(a));
    ts_release(ret.t);
}

/* The positive elements of x: the kernel determines the size of the result. */
static bool fail_late;
static ts_status positive(ts_frame *f)
{
    ts_tensor *x = f->args[0].t;
    const float *p = ts_kernel_data(x);
    int64_t n = 0;
    for (int64_t i = 0; i < ts_numel(x); i++)
        n += p[i] > 0;
    TS_TRY(ts_kernel_result(f, 0, &n, 1, TS_I64));
    if (fail_late)
        return ts_kernel_error(f, 0, TS_ERR_VALUE, "be lucky", "planted");
    void *scratch = ts_scratch_take(TS_DEVICE_CPU, 100);
    TS_TRY(scratch);
    int64_t *out = ts_kernel_data(f->rets[0].t);
    for (int64_t i = 0; i < ts_numel(x); i++)
        if (p[i] > 0)
            *out++ = i;
    ts_scratch_give(TS_DEVICE_CPU, scratch, 100);
    return TS_OK;
}

TS_TEST(a_kernel_without_a_rule_allocates_its_results_and_a_failure_releases_them)
{
    TS_SCOPE;
    int op;
    OK(ts_register_op("test.positive(Tensor x) -> Tensor", &op));
    OK(ts_register_kernel("test.positive", TS_KEY_CPU, positive, NULL, NULL));
    ts_tensor *x = ts_sub_scalar(ts_arange(0, 1000, 1, TS_F32), 400);
    ts_value arg = ts_value_tensor(x), ret = ts_value_none();
    OK(ts_call_boxed(op, &arg, 1, &ret, 1));
    ck_assert_int_eq(ts_numel(ret.t), 599);
    ts_release(ret.t);
    fail_late = true;
    int64_t before = ts_memory_get_stats().in_use;
    ret = ts_value_none();
    FAILS(TS_ERR_VALUE, ts_call_boxed(op, &arg, 1, &ret, 1));
    SAYS("test.positive: argument 'x': planted");
    ck_assert_str_eq(ts_error_hint(), "be lucky");
    ck_assert_int_eq(ret.tag, TS_TAG_NONE);
    ck_assert_int_eq(ts_memory_get_stats().in_use, before);
}

/* --------------------------------------------------------------------- on a backend ---- */

static bool takes_small(void *state, const ts_frame *f)
{
    (void)state;
    return f->args[0].tag != TS_TAG_TENSOR || ts_numel(f->args[0].t) < 100;
}

static ts_status install_scaled(void *state, ts_key key)
{
    (void)state;
    ts_kernel_opts opts = {
        .size = sizeof opts, .schema = scaled_schema, .dtypes = TS_DTYPE_BIT(TS_F32)};
    return ts_register_kernel_ex("test.scaled", key, scaled_kernel, &opts, NULL);
}

TS_TEST(a_backends_kernel_runs_on_its_memory_and_unsupported_calls_run_on_the_cpu)
{
    static offset_state memory = {.devices = 1};
    static const ts_backend b = {OFFSET_BACKEND("PICKY", TS_BACKEND_CPU_FALLBACK, &memory),
                                 .install = install_scaled, .supports = takes_small};
    ts_key key;
    ts_backend_stats stats;
    register_scaled(true);
    OK(ts_register_backend(&b, &key));
    TS_SCOPE;
    ts_device device = {key, 0};
    ts_tensor *a = ts_to_device(ts_arange(0, 6, 1, TS_F32), device), *y;
    OK(y = call_scaled(ts_view(a, TS_SIZES(2, 3)), ts_to_device(ts_arange(1, 4, 1, TS_F32), device),
                       2));
    ck_assert_double_eq(value(ts_select(ts_view(y, TS_SIZES(6)), 0, 5)), 30);
    /* a CPU tensor without dims stays in host memory beside an operand on the device */
    OK(y = call_scaled(a, (ts_full)(NULL, 0, ts_scalar_float(4), TS_F32), 1));
    ck_assert(seen.operand[2].host);
    ck_assert_double_eq(value(ts_select(y, 0, 5)), 20);
    OK(ts_backend_get_stats(key, &stats));
    uint64_t before = stats.round_trips;
    /* too large for `supports`, and a dtype that the kernel was not registered for */
    ts_tensor *large = ts_to_device(ts_ones(TS_SIZES(128), TS_F32), device);
    OK(call_scaled(large, large, 1));
    OK(ts_backend_get_stats(key, &stats));
    ck_assert_uint_eq(stats.round_trips, before + 1);
    /* the CPU kernel of the round trip does not take f64 either */
    FAILS(TS_ERR_DTYPE, call_scaled(ts_to(a, TS_F64), a, 1));
    SAYS("CPU");
}

static bool takes_scaled(void *state, const ts_frame *f)
{
    (void)state;
    ck_assert_str_eq(ts_op_name(f->op), "test.scaled");
    return true;
}

TS_TEST(supports_is_called_for_a_backends_own_kernels_only)
{
    static offset_state memory = {.devices = 2};
    static const ts_backend b = {OFFSET_BACKEND("ASKED", TS_BACKEND_CPU_FALLBACK, &memory),
                                 .install = install_scaled, .supports = takes_scaled};
    ts_key key;
    register_scaled(true);
    OK(ts_register_backend(&b, &key));
    TS_SCOPE;
    ts_tensor *there, *other, *y;
    /* copies between devices need no kernel of the backend */
    OK(there = ts_to_device(ts_arange(0, 6, 1, TS_F32), (ts_device){key, 0}));
    OK(other = ts_to_device(there, (ts_device){key, 1}));
    OK(ts_to_device(ts_slice(other, 0, 0, TS_END, 2), TS_DEVICE_CPU));
    OK(y = ts_add(call_scaled(there, there, 2), there)); /* add has no kernel there */
    ck_assert_double_eq(value(ts_select(y, 0, 3)), 21);
}

static int asked;
static bool takes_no_transposed(void *state, const ts_frame *f)
{
    (void)state;
    asked++;
    ck_assert_int_eq(ts_kernel_dtype(f), TS_F32);
    ts_convolution c = ts_kernel_convolution(f);
    ck_assert_int_eq(c.dims, 1);
    return !c.transposed;
}
static ts_status counts_calls(ts_frame *f) { return (void)f, asked += 100, TS_OK; }
static ts_status install_convolution(void *state, ts_key key)
{
    (void)state;
    return ts_register_kernel("convolution", key, counts_calls, NULL, NULL);
}

TS_TEST(supports_gets_calls_that_the_shape_rule_has_accepted)
{
    static offset_state memory = {.devices = 1};
    static const ts_backend b = {OFFSET_BACKEND("DECODES", TS_BACKEND_CPU_FALLBACK, &memory),
                                 .install = install_convolution, .supports = takes_no_transposed};
    ts_key key;
    OK(ts_register_backend(&b, &key));
    TS_SCOPE;
    ts_tensor *x, *w;
    OK(x = ts_to_device(ts_ones(TS_SIZES(1, 2, 9), TS_F32), (ts_device){key, 0}));
    OK(w = ts_to_device(ts_ones(TS_SIZES(2, 2, 3), TS_F32), (ts_device){key, 0}));
    OK(ts_conv1d(x, w, TS_NONE, NULL));
    ck_assert_int_eq(asked, 101);
    OK(ts_conv_transpose1d(x, w, TS_NONE, NULL));
    ck_assert_int_eq(asked, 102);
    FAILS(TS_ERR_VALUE, ts_conv1d(x, w, TS_NONE, TS_OPTS(ts_conv_opts, .stride = {-1})));
    FAILS(TS_ERR_SHAPE, ts_conv1d(ts_squeeze(x), w, TS_NONE, TS_OPTS(ts_conv_opts, .groups = 3)));
    ck_assert_int_eq(asked, 102);
}

TS_TEST(registrations_of_another_library_are_refused_by_their_size)
{
    FAILS(TS_ERR_VALUE, ts_register_op_ex("test.x(Tensor x) -> Tensor", &(ts_op_opts){.size = 3},
                                          NULL));
    FAILS(TS_ERR_VALUE, ts_register_kernel_ex("add", TS_KEY_CPU, cube, &(ts_kernel_opts){.size = 3},
                                              NULL));
    FAILS(TS_ERR_VALUE, ts_register_kernel_ex("add", TS_KEY_CPU, cube,
                                              &(ts_kernel_opts){.size = sizeof(ts_kernel_opts),
                                                                .dtypes = 1u << 20}, NULL));
    FAILS(TS_ERR_VALUE, ts_register_vjp("add", minus_one, &(ts_vjp_opts){.size = 3}));
    FAILS(TS_ERR_NULL, ts_register_vjp("add", NULL, NULL));
    FAILS(TS_ERR_NULL, ts_register_vjp(NULL, minus_one, NULL));
}

static ts_status compiled_relu(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    return ts_status_of_pointer(out[0] = ts_relu(in[0]));
}
static ts_status no_kernel(ts_frame *f) { (void)f; return TS_ERR_INTERNAL; }
static ts_status install_relu(void *state, ts_key key)
{
    (void)state;
    ts_kernel_opts opts = {.size = sizeof opts, .dtypes = TS_DTYPE_BIT(TS_F32)};
    return ts_register_kernel_ex("relu", key, no_kernel, &opts, NULL);
}
static bool takes_nothing(void *state, const ts_frame *f) { (void)state, (void)f; return false; }

/* A plan allocates results before the call; the round trip gives others. */
TS_TEST(a_round_trip_of_a_compiled_call_leaves_no_memory, .loop = 2)
{
    static offset_state memory[2] = {{.devices = 1}, {.devices = 1}};
    static const ts_backend backends[2] = {
        {OFFSET_BACKEND("NARROW", TS_BACKEND_CPU_FALLBACK, &memory[0]), .install = install_relu},
        {OFFSET_BACKEND("NEVER", TS_BACKEND_CPU_FALLBACK, &memory[1]), .install = install_relu,
         .supports = takes_nothing}};
    ts_key key;
    OK(ts_register_backend(&backends[_i], &key));
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(64), _i ? TS_F32 : TS_F64), (ts_device){key, 0});
    ts_compiled *compiled = ts_compile(compiled_relu, NULL, NULL);
    OK(compiled);
    int64_t before = memory[_i].live;
    for (int i = 0; i < 3; i++) {
        TS_SCOPE;
        ts_tensor *y;
        OK(ts_compiled_call(compiled, &x, 1, &y, 1));
        ck_assert_double_eq(value(ts_select(y, 0, 5)), 1);
    }
    ck_assert_int_eq(memory[_i].live, before);
    ts_compiled_free(compiled);
}

/* ---------------------------------------------------------------- rules that declare badly ---- */

static ts_status declares_badly(ts_frame *f)
{
    int64_t size = 3;
    if (f->args[1].i >= 1)
        TS_TRY(ts_rule_result(f, 0, &size, 1, TS_F32));
    if (f->args[1].i == 2)
        ts_rule_compute(f, (ts_dtype)77, 1);
    return TS_OK;
}
static ts_status leaves_as_is(ts_frame *f) { (void)f; return TS_OK; }

TS_TEST(a_rule_that_declares_no_result_or_no_dtype_is_refused)
{
    int op;
    ts_op_opts opts = {.size = sizeof opts, .rule = declares_badly};
    OK(ts_register_op_ex("test.badly(Tensor x, int how) -> Tensor", &opts, &op));
    OK(ts_register_kernel("test.badly", TS_KEY_CPU, leaves_as_is, NULL, NULL));
    ts_value args[] = {ts_value_tensor(one()), ts_value_int(0)}, y = ts_value_none();
    FAILS(TS_ERR_INTERNAL, ts_call_boxed(op, args, 2, &y, 1));
    SAYS("test.badly: the shape rule returned TS_OK without a result; result 0 is");
    args[1] = ts_value_int(2);
    FAILS(TS_ERR_DTYPE, ts_call_boxed(op, args, 2, &y, 1));
    SAYS("test.badly: rule_compute: argument 'dtype': expected a dtype, got number 77");
    args[1] = ts_value_int(1);
    OK(ts_call_boxed(op, args, 2, &y, 1));
    ts_release(y.t);
}

/* An op whose sizes depend on values: its rule only checks, and the kernel makes the result. */
static int selected;
static ts_status select_nothing(ts_frame *f)
{
    int64_t n = 0;
    selected++;
    return ts_kernel_result(f, 0, &n, 1, ts_dtype_of(f->args[0].t));
}
static ts_status install_select(void *state, ts_key key)
{
    (void)state;
    return ts_register_kernel("masked_select", key, select_nothing, NULL, NULL);
}

TS_TEST(a_backends_kernel_runs_after_the_checks_of_an_op_whose_sizes_depend_on_values)
{
    static offset_state memory = {.devices = 1};
    static const ts_backend b = {OFFSET_BACKEND("CHOOSY", 0, &memory), .install = install_select};
    ts_key key;
    OK(ts_register_backend(&b, &key));
    TS_SCOPE;
    ts_device device = {key, 0};
    ts_tensor *a = ts_to_device(ts_arange(0, 6, 1, TS_F32), device), *y;
    OK(y = ts_masked_select(a, ts_to_device(ts_ones(TS_SIZES(6), TS_BOOL), device)));
    ck_assert_int_eq(selected, 1);
    FAILS(TS_ERR_DTYPE, ts_masked_select(a, a));
    SAYS("masked_select: argument 'mask': expected dtype bool");
    FAILS(TS_ERR_SHAPE, ts_masked_select(a, ts_to_device(ts_ones(TS_SIZES(5), TS_BOOL), device)));
    ck_assert_int_eq(selected, 1);
}

/* ------------------------------------------------------------------ results that are given ---- */

/** A kernel that copies f32 to f32 and relies on the dispatcher for the dtypes. */
static ts_status copy_f32(ts_frame *f)
{
    const ts_tensor *from = f->args[0].t, *to = f->rets[0].t;
    ck_assert_int_eq(ts_dtype_of(from), TS_F32);
    ck_assert_int_eq(ts_dtype_of(to), TS_F32);
    memcpy(from_handle(ts_kernel_data(to)), from_handle(ts_kernel_data(from)),
           (size_t)ts_numel(to) * sizeof(float));
    return TS_OK;
}

static ts_status install_copy_f32(void *state, ts_key key)
{
    (void)state;
    ts_kernel_opts opts = {.size = sizeof opts, .dtypes = TS_DTYPE_BIT(TS_F32)};
    TS_TRY(ts_register_kernel_ex("copy", key, copy_f32, &opts, NULL));
    return ts_register_kernel_ex("to", key, copy_f32, &opts, NULL);
}

TS_TEST(a_kernel_gets_only_results_of_declared_dtypes, .loop = 2)
{
    static offset_state memory = {.devices = 1};
    static const ts_backend plain = {OFFSET_BACKEND("PLAIN", 0, &memory),
                                     .install = install_copy_f32};
    static const ts_backend falls = {OFFSET_BACKEND("FALLS", TS_BACKEND_CPU_FALLBACK, &memory),
                                     .install = install_copy_f32};
    ts_key key;
    OK(ts_register_backend(_i ? &falls : &plain, &key));
    TS_SCOPE;
    ts_device device = {key, 0};
    ts_tensor *host[TS_DTYPE_COUNT], *there[TS_DTYPE_COUNT];
    for (int d = 0; d < TS_DTYPE_COUNT; d++) {
        OK(host[d] = ts_to(ts_arange(0, 6, 1, TS_F32), (ts_dtype)d));
        OK(there[d] = ts_to_device(host[d], device));
    }
    for (int from = 0; from < TS_DTYPE_COUNT; from++)
        for (int to = 0; to < TS_DTYPE_COUNT; to++) {
            bool runs = _i || (from == TS_F32 && to == TS_F32);
            ts_tensor *y = NULL;
            if (runs) {
                OK(ts_copy_(there[to], there[from]));
                OK(y = ts_to(there[from], (ts_dtype)to));
                for (int k = 0; k < 6; k++) {
                    double expected = to == TS_BOOL || from == TS_BOOL ? k != 0 : k;
                    ck_assert_double_eq(value(ts_select(ts_to_device(y, TS_DEVICE_CPU), 0, k)),
                                        expected);
                }
                OK(ts_copy_(there[to], ts_to_device(host[to], device)));
            } else {
                FAILS(TS_ERR_DTYPE, ts_copy_(there[to], there[from]));
                SAYS("expected a dtype that has a kernel on PLAIN (f32), got ");
                if (from != to)
                    FAILS(TS_ERR_DTYPE, ts_to(there[from], (ts_dtype)to));
            }
        }
}

/* ---------------------------------------------------------------- operands of other dtypes ---- */

static ts_dtype met; /* dtype of the second operand, as the kernel got it */

static ts_status first_rule(ts_frame *f) { return ts_rule_pointwise(f, 2, TS_DTYPE_NONE, false); }

static ts_status first_kernel(ts_frame *f)
{
    ts_space s;
    TS_TRY(ts_kernel_space(f, &s));
    met = s.operand[2].dtype;
    memset(s.operand[0].data, 0, (size_t)s.numel * sizeof(float));
    return TS_OK;
}

static ts_dtype met_in(int op, int64_t n, int64_t others)
{
    ts_value args[] = {ts_value_tensor(ts_ones(TS_SIZES(n), TS_F32)),
                       ts_value_tensor(ts_ones(TS_SIZES(others), TS_BF16))},
             y = ts_value_none();
    ck_assert_int_eq(ts_call_boxed(op, args, 2, &y, 1), TS_OK);
    ts_adopt(y.t);
    return met;
}

TS_TEST(a_kernel_that_converts_gets_operands_as_they_are)
{
    TS_SCOPE;
    static const char *const schemas[] = {"test.cast(Tensor a, Tensor b) -> Tensor",
                                          "test.converted(Tensor a, Tensor b) -> Tensor"};
    static const char *const names[] = {"test.cast", "test.converted"};
    int ops[2];
    for (int k = 0; k < 2; k++) {
        ts_op_opts op = {.size = sizeof op, .rule = first_rule};
        ts_kernel_opts opts = {
            .size = sizeof opts, .dtypes = TS_DTYPE_BIT(TS_F32), .converts = k};
        ck_assert_int_eq(ts_register_op_ex(schemas[k], &op, &ops[k]), TS_OK);
        ck_assert_int_eq(ts_register_kernel_ex(names[k], TS_KEY_CPU, first_kernel, &opts, NULL),
                         TS_OK);
    }
    ck_assert_int_eq(met_in(ops[0], 8, 8), TS_F32);
    ck_assert_int_eq(met_in(ops[1], 8, 8), TS_BF16);
    ck_assert_int_eq(met_in(ops[1], 8, 1), TS_BF16);
    /* converted once, not for each element of a large result */
    ck_assert_int_eq(met_in(ops[1], 1 << 19, 1), TS_F32);
    ck_assert_int_eq(met_in(ops[1], 1 << 19, 1 << 19), TS_BF16);
}
