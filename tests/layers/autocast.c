/** @file autocast.c  Autocast: regions, errors, calls in layers below. */
// SPDX-License-Identifier: MIT
#include <pthread.h>

#include "ops/kernel.h"
#include "tests/dispatch/common.h"

static ts_tensor *meta(ts_dtype dtype, int ndim)
{
    const int64_t sizes[] = {4, 4, 4, 4};
    ts_tensor *t = ts_empty_on(sizes, ndim, dtype, TS_DEVICE_META);
    OK(t);
    return t;
}

static void expect_dtype(const char *op, ts_tensor *y, ts_dtype dtype)
{
    ck_assert_msg(y != NULL, "%s: %s", op, ts_error_message());
    ck_assert_msg(ts_dtype_of(y) == dtype, "%s: expected %s, got %s", op, ts_dtype_name(dtype),
                  ts_dtype_name(ts_dtype_of(y)));
}

/* -------------------------------------------------------------------------------- casts ---- */

TS_TEST(a_composite_that_is_recorded_by_parts_keeps_its_dtype)
{
    ts_tensor *x = ts_set_requires_grad(meta(TS_BF16, 1), true);
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    expect_dtype("mish", ts_mish(x), TS_BF16);
}

TS_TEST(f64_and_integers_are_left_alone)
{
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    expect_dtype("mm", ts_mm(meta(TS_F64, 2), meta(TS_F64, 2)), TS_F64);
    expect_dtype("exp", ts_exp(meta(TS_F64, 2)), TS_F64);
    expect_dtype("sum", ts_sum(meta(TS_I32, 2)), TS_I64);
    FAILS(TS_ERR_DTYPE, ts_mm(meta(TS_F64, 2), meta(TS_F32, 2)));
    SAYS("bf16"); /* f32 was cast to bf16, f64 was not */
}

TS_TEST(a_dtype_given_by_the_caller_is_kept)
{
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    expect_dtype("softmax", ts_softmax_as(meta(TS_BF16, 2), 0, TS_BF16), TS_BF16);
    expect_dtype("log_softmax", ts_log_softmax_as(meta(TS_BF16, 2), 0, TS_F64), TS_F64);
}

TS_TEST(both_halves_widen_to_f32)
{
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    expect_dtype("scatter_add",
                 ts_scatter_add(meta(TS_F16, 2), 0, meta(TS_I64, 2), meta(TS_BF16, 2)), TS_F32);
    expect_dtype("scatter_add",
                 ts_scatter_add(meta(TS_F16, 2), 0, meta(TS_I64, 2), meta(TS_F16, 2)), TS_F16);
}

TS_TEST(forms_with_a_destination_run_in_the_dtypes_they_are_given)
{
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    ts_tensor *f = meta(TS_F32, 2), *out = meta(TS_F32, 2);
    expect_dtype("mm_out", ts_mm_out(out, f, f), TS_F32);
    expect_dtype("exp_", ts_exp_(meta(TS_BF16, 2)), TS_BF16);
    FAILS(TS_ERR_DTYPE, ts_mm_out(meta(TS_BF16, 2), f, f)); /* no casts with a given result */
}

/* ----------------------------------------------------------------------------- regions ---- */

static ts_dtype product(void) { return ts_dtype_of(ts_mm(meta(TS_F32, 2), meta(TS_F32, 2))); }

TS_TEST(regions_nest_and_an_inner_one_may_switch_casts_off)
{
    ts_mask_guard before = ts_mask_get();
    ck_assert_int_eq(product(), TS_F32);
    {
        TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
        ck_assert_int_eq(ts_autocast_dtype(TS_DEVICE_META), TS_BF16);
        ck_assert_int_eq(product(), TS_BF16);
        {
            TS_AUTOCAST(TS_DEVICE_META, TS_F16);
            ck_assert_int_eq(product(), TS_F16);
            {
                TS_AUTOCAST_OFF(TS_DEVICE_META);
                ck_assert_int_eq(ts_autocast_dtype(TS_DEVICE_META), TS_DTYPE_NONE);
                ck_assert_int_eq(product(), TS_F32);
                /* outside of regions, the AUTOCAST layer is off */
                ck_assert_uint_eq(ts_mask_get().include, before.include);
            }
            ck_assert_int_eq(product(), TS_F16);
        }
        for (int k = 0; k < 3; k++) {
            TS_AUTOCAST_OFF(TS_DEVICE_META);
            if (k == 1)
                break; /* leaves the region too */
        }
        ck_assert_int_eq(product(), TS_BF16);
    }
    ck_assert_int_eq(product(), TS_F32);
    ck_assert_uint_eq(ts_mask_get().include, before.include);
    ck_assert_uint_eq(ts_mask_get().exclude, before.exclude);
}

TS_TEST(a_region_is_for_one_kind_of_device)
{
    TS_AUTOCAST(TS_DEVICE_CPU, TS_BF16);
    ck_assert_int_eq(product(), TS_F32);
    TS_AUTOCAST(TS_DEVICE_META, TS_F16);
    ck_assert_int_eq(product(), TS_F16);
    ck_assert_int_eq(ts_autocast_dtype(TS_DEVICE_CPU), TS_BF16);
    ck_assert_int_eq(ts_autocast_dtype((ts_device){TS_KEY_META, 3}), TS_F16);
}

static void *product_in_a_thread(void *state)
{
    ts_dtype plain = product();
    ts_autocast_region region;
    OK(ts_autocast_enter_state(&region, *(ts_autocast_state *)state));
    ts_dtype cast = product();
    OK(ts_autocast_exit(&region));
    return (void *)(intptr_t)(plain == TS_F32 && cast == TS_BF16);
}

TS_TEST(a_region_is_for_one_thread_and_its_state_can_be_carried_to_another)
{
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    ts_autocast_state state = ts_autocast_get_state();
    pthread_t thread;
    void *right;
    ck_assert_int_eq(pthread_create(&thread, NULL, product_in_a_thread, &state), 0);
    pthread_join(thread, &right);
    ck_assert_ptr_nonnull(right);
}

TS_TEST(wrong_dtypes_devices_and_orders_of_regions_are_errors)
{
    ts_autocast_region a, b;
    FAILS(TS_ERR_DTYPE, ts_autocast_enter(&a, TS_DEVICE_CPU, TS_F32));
    SAYS("f32");
    FAILS(TS_ERR_DTYPE, ts_autocast_enter(&a, TS_DEVICE_CPU, TS_I64));
    FAILS(TS_ERR_DEVICE, ts_autocast_enter(&a, (ts_device){9, 0}, TS_BF16));
    FAILS(TS_ERR_DEVICE, ts_autocast_enter(&a, (ts_device){200, 0}, TS_BF16));
    FAILS(TS_ERR_NULL, ts_autocast_enter(NULL, TS_DEVICE_CPU, TS_BF16));
    FAILS(TS_ERR_NULL, ts_autocast_enter_state(NULL, 0));
    FAILS(TS_ERR_VALUE, ts_autocast_enter_state(&a, 3));
    FAILS(TS_ERR_STATE, ts_autocast_exit(&a)); /* no such region is open */
    FAILS(TS_ERR_NULL, ts_autocast_exit(NULL));
    OK(ts_autocast_enter(&a, TS_DEVICE_META, TS_BF16));
    OK(ts_autocast_enter(&b, TS_DEVICE_META, TS_F16));
    FAILS(TS_ERR_STATE, ts_autocast_exit(&a));
    SAYS("innermost");
    ck_assert_int_eq(product(), TS_F16);
    OK(ts_autocast_exit(&b));
    FAILS(TS_ERR_STATE, ts_autocast_exit(&b));
    ck_assert_int_eq(product(), TS_BF16);
    OK(ts_autocast_exit(&a));
    FAILS(TS_ERR_VALUE, ts_autocast_register("mm", (ts_autocast_policy)4, NULL));
    ck_assert_int_eq(ts_autocast_dtype((ts_device){200, 0}), TS_DTYPE_NONE);
}

TS_TEST(a_block_whose_region_is_wrong_fails_instead_of_running_in_f32)
{
    ts_tensor *x = meta(TS_F32, 2);
    {
        TS_AUTOCAST(TS_DEVICE_META, TS_F64);
        ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
        FAILS(TS_ERR_STATE, ts_mm(x, x));
        FAILS(TS_ERR_STATE, ts_exp(x));
        FAILS(TS_ERR_STATE, ts_mish(x));
        FAILS(TS_ERR_STATE, ts_softmax_as(x, 0, TS_F32));
        FAILS(TS_ERR_STATE, ts_masked_scatter(x, meta(TS_BOOL, 2), x));
        SAYS("TS_AUTOCAST");
        OK(ts_exp(ts_ones(TS_SIZES(2), TS_F32))); /* another device */
    }
    {
        TS_AUTOCAST(((ts_device){99, 0}), TS_BF16);
        FAILS(TS_ERR_STATE, ts_mm(x, x));
        FAILS(TS_ERR_STATE, ts_exp(ts_ones(TS_SIZES(2), TS_F32)));
    }
    OK(ts_mm(x, x));
}

/* -------------------------------------------------------------- calls in layers below ---- */

static struct {
    int casts, others;
    const void *site;
} seen;

static ts_status watch_to(ts_frame *f)
{
    if (ts_autocast_is_casting()) {
        seen.casts++;
        seen.site = f->site;
    } else {
        seen.others++;
    }
    ts_status status = ts_redispatch(f);
    return status;
}
static const void *product_site;
static ts_status watch_mm(ts_frame *f)
{
    product_site = f->site;
    ck_assert(!ts_autocast_is_casting());
    ck_assert_int_eq(ts_dtype_of(f->args[0].t), TS_BF16);
    return ts_redispatch(f);
}

TS_TEST(a_layer_below_sees_casts_as_calls_with_the_site_of_their_op)
{
    OK(ts_register_kernel("to", TS_KEY_TRACING, watch_to, NULL, NULL));
    OK(ts_register_kernel("mm", TS_KEY_TRACING, watch_mm, NULL, NULL));
    OK(ts_layer_enable(TS_KEY_TRACING, true));
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    ts_tensor *x = meta(TS_F32, 2);
    OK(ts_mm(x, ts_to(x, TS_BF16)));
    ck_assert_int_eq(seen.casts, 1);
    ck_assert_int_eq(seen.others, 1);
    ck_assert_ptr_nonnull(seen.site);
    ck_assert_ptr_eq(seen.site, product_site);
    OK(ts_layer_enable(TS_KEY_TRACING, false));
}

static ts_dtype inner_dtype;
static ts_status kernel_with_a_region(ts_frame *f)
{
    TS_SCOPE;
    /* calls of a kernel skip the AUTOCAST layer */
    ck_assert_int_eq(ts_dtype_of(ts_mm(f->args[0].t, f->args[0].t)), TS_F32);
    TS_AUTOCAST(TS_DEVICE_META, TS_F16);
    inner_dtype = ts_dtype_of(ts_mm(f->args[0].t, f->args[0].t));
    f->rets[0] = ts_value_tensor(ts_retain(f->args[0].t));
    return TS_OK;
}

TS_TEST(a_region_inside_a_kernel_applies_until_the_kernel_returns)
{
    int op;
    OK(ts_register_op("test.inner(Tensor self) -> Tensor", &op));
    OK(ts_register_kernel("test.inner", TS_KEY_META, kernel_with_a_region, NULL, NULL));
    OK(ts_autocast_register("test.inner", TS_AUTOCAST_KEEP, NULL));
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    ts_value arg = ts_value_tensor(meta(TS_F32, 2)), ret = ts_value_none();
    OK(ts_call_boxed(op, &arg, 1, &ret, 1));
    ck_assert_int_eq(inner_dtype, TS_F16);
    ts_release(ret.t);
    ck_assert_int_eq(product(), TS_BF16);
}

static ts_dtype dtypes[4];
static ts_status note_dtypes(ts_frame *f)
{
    dtypes[0] = ts_dtype_of(f->args[0].t);
    for (uint32_t k = 0; k < f->args[1].count && k < 2; k++)
        dtypes[1 + k] = ts_dtype_of(f->args[1].list[k]);
    dtypes[3] = f->args[2].tag == TS_TAG_NONE ? TS_DTYPE_NONE : ts_dtype_of(f->args[2].t);
    return TS_OK;
}

/** Calls an op of a tensor, a list and an optional tensor; the dtypes that it received are in
 *  `dtypes`. */
static void call_listed(int op, ts_dtype a, ts_dtype b, ts_dtype c)
{
    TS_SCOPE;
    ts_tensor *list[] = {meta(b, 1), meta(c, 1)};
    ts_value args[] = {ts_value_tensor(meta(a, 1)), ts_value_tensors(list, 2), ts_value_none()};
    OK(ts_call_boxed(op, args, 3, NULL, 0));
}

TS_TEST(user_ops_with_lists_and_absent_tensors_are_cast)
{
    int op;
    OK(ts_register_op("test.listed(Tensor a, Tensor[] list, Tensor? c) -> ()", &op));
    OK(ts_register_kernel("test.listed", TS_KEY_META, note_dtypes, NULL, NULL));
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    call_listed(op, TS_F32, TS_F32, TS_F16);
    ck_assert(dtypes[0] == TS_F32 && dtypes[1] == TS_F32 && dtypes[2] == TS_F16); /* no policy */
    ts_registration *row;
    OK(ts_autocast_register("test.listed", TS_AUTOCAST_LOWER, &row));
    call_listed(op, TS_F32, TS_F32, TS_I64);
    ck_assert(dtypes[0] == TS_BF16 && dtypes[1] == TS_BF16 && dtypes[2] == TS_I64 &&
              dtypes[3] == TS_DTYPE_NONE);
    OK(ts_unregister(row));
    OK(ts_autocast_register("test.listed", TS_AUTOCAST_WIDEST, &row));
    call_listed(op, TS_BF16, TS_BF16, TS_F32);
    ck_assert(dtypes[0] == TS_F32 && dtypes[1] == TS_F32 && dtypes[2] == TS_F32);
    call_listed(op, TS_BF16, TS_BF16, TS_F64);
    ck_assert(dtypes[0] == TS_BF16 && dtypes[1] == TS_BF16 && dtypes[2] == TS_F64);
    OK(ts_unregister(row));
    call_listed(op, TS_F32, TS_BF16, TS_I64);
    ck_assert(dtypes[0] == TS_F32 && dtypes[1] == TS_BF16);
}

TS_TEST(an_op_switches_the_layer_on_without_a_region_and_nothing_is_cast)
{
    OK(ts_layer_enable(TS_KEY_AUTOCAST, true));
    ck_assert_int_eq(product(), TS_F32);
    OK(ts_layer_enable(TS_KEY_AUTOCAST, false));
}
