/** @file calls_core.c  Out-of-memory sweeps: tensors, errors, gradients, the registry, timers. */
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <unistd.h>

#include "tests/faults/calls.h"

CALLS(core)
{
    TS_SCOPE;
    ts_tensor *a = ts_ones(TS_SIZES(2, 3), TS_F32);
    ts_device device;
    fault_watch(f, a);
    QUIET(f, ts_ndim(a));
    QUIET(f, ts_size(a, 0));
    QUIET(f, ts_size(a, 7));
    QUIET(f, ts_sizes(a));
    QUIET(f, ts_strides(a));
    QUIET(f, ts_numel(a));
    QUIET(f, ts_dtype_of(a));
    QUIET(f, ts_device_of(a));
    QUIET(f, ts_is_contiguous(a));
    QUIET(f, ts_version(a));
    QUIET(f, ts_data(a));
    QUIET(f, ts_keys_of(a));
    QUIET(f, ts_dtype_size(TS_F32));
    QUIET(f, ts_dtype_name(TS_F32));
    QUIET(f, ts_dtype_is_float(TS_F32));
    QUIET(f, ts_dtype_promote(TS_F32, TS_I64));
    QUIET(f, ts_device_name(TS_DEVICE_META));
    QUIET(f, ts_device_from_name("meta", &device));
    QUIET(f, ts_device_from_name("nowhere", &device));
    QUIET(f, ts_default_device());
    QUIET(f, ts_set_default_device(TS_DEVICE_CPU));
    QUIET(f, ts_version_string());
    QUIET(f, ts_status_name(TS_OK));
    QUIET(f, ts_error_set(TS_ERR_VALUE, "%s", "text"));
    QUIET(f, ts_error_set_hint(TS_ERR_VALUE, "hint", "%s", "text"));
    QUIET(f, ts_error_memory("a thing", 8));
    QUIET(f, ts_error_within("a place"));
    QUIET(f, ts_error_code());
    QUIET(f, ts_error_message());
    QUIET(f, ts_error_op());
    QUIET(f, ts_error_hint());
    QUIET(f, ts_error_site());
    QUIET(f, ts_status_of_pointer(NULL));
    QUIET(f, ts_error_clear());
    QUIET(f, ts_error_print());
    QUIET(f, ts_log_set_callback(NULL, NULL));
    QUIET(f, ts_log_on("nobody listens"));
    QUIET(f, ts_log_write("nobody listens", "%s", "text"));
    QUIET(f, ts_manual_seed(1));
    QUIET(f, ts_rng_set_state(ts_rng_get_state()));
    QUIET(f, ts_rng_get_state());
    QUIET(f, ts_num_threads());
    QUIET(f, ts_memory_get_stats());
    QUIET(f, ts_memory_reset_peak());
    ts_tensor *copy = ts_clone(a);
    QUIET(f, ts_data_mut(copy));
    QUIET(f, ts_retain(copy));
    QUIET(f, ts_release(copy));
    {
        ts_scope inner;
        QUIET(f, ts_scope_enter(&inner, NULL));
        ts_tensor *t = ts_clone(a);
        QUIET(f, ts_keep(t));
        QUIET(f, ts_scope_leave(&inner));
        QUIET(f, ts_drop(t));
    }
}

CALLS(printing)
{
    TS_SCOPE;
    static char buffer[256]; /* so that the stream needs no memory of its own */
    ts_tensor *t = ts_t(ts_ones(TS_SIZES(2, 3), TS_F32));
    fflush(stdout);
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    int keep = dup(1), null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
    fault_watch(f, t);
    FAULTY(f, ts_print(t));
    fflush(stdout);
    dup2(keep, 1);
    close(keep);
    close(null);
}

/* -------------------------------------------------------------------------- gradients ---- */

static ts_tensor *twice(void *payload, ts_tensor *grad)
{
    (void)payload;
    return ts_mul_scalar(grad, 2);
}

CALLS(gradients)
{
    TS_SCOPE;
    ts_tensor *w = ts_ones(TS_SIZES(2, 3), TS_F32), *y = NULL, *z = NULL;
    ts_hook *hook = NULL;
    QUIET(f, ts_set_requires_grad(w, true));
    QUIET(f, ts_requires_grad(w));
    QUIET(f, ts_is_leaf(w));
    QUIET(f, ts_grad_enabled());
    QUIET(f, ts_mask_pop(ts_grad_push(false)));
    QUIET(f, ts_grad_push(true));
    fault_watch(f, w);
    FAULTY(f, y = ts_mul(w, w));
    FAULTY(f, ts_register_hook(w, twice, NULL, &hook));
    FAULTY(f, ts_retain_grad(y));
    FAULTY(f, z = ts_sum(y));
    ts_backward_opts opts = {.size = sizeof opts, .retain_graph = true};
    FAULTY(f, (ts_zero_grad(w), ts_zero_grad(y), ts_backward_ex(z, TS_NONE, &opts)));
    fault_see(f, ts_grad(w));
    fault_see(f, ts_grad(y));
    QUIET(f, ts_hook_remove(w, hook));
    QUIET(f, ts_grad(w));
    QUIET(f, ts_zero_grad(w));
    ts_tensor *grads[2] = {NULL}, *inputs[2] = {w, y}, *first = ts_ones(TS_SIZES(2, 3), TS_F32);
    opts = (ts_backward_opts){.size = sizeof opts, .create_graph = true};
    FAULTY(f, ts_grad_of(z, TS_NONE, inputs, 2, grads, &opts));
    fault_see(f, grads[0]);
    fault_see(f, grads[1]);
    FAULTY(f, ts_set_grad(w, first));
    fault_see(f, ts_grad(w));
    ts_zero_grad(w);
    NEW(ts_detach(y));
    /* a failed backward frees the graph too, so each attempt builds it again */
    FAULTY(f, (ts_zero_grad(w), ts_backward(ts_sum(ts_mul(w, w)))));
    fault_see(f, ts_grad(w));
}

/* ----------------------------------------------------------------------- the registry ---- */

static ts_status nothing(ts_frame *frame)
{
    (void)frame;
    return TS_OK;
}

/* Layers, which run inside the swept calls. */
static ts_status redispatch(ts_frame *frame)
{
    FAULT_TEXT(ts_redispatch(frame));
    return ts_redispatch(frame);
}
static ts_status redispatch_new(ts_frame *frame)
{
    FAULT_TEXT(ts_redispatch_new(frame, frame->args));
    return ts_redispatch_new(frame, frame->args);
}

CALLS_WITH(registry, FAULT_KEEPS, .loop = 0)
{
    static int number;
    char schema[80], name[40];
    int op = -1;
    ts_registration *kernel = NULL;
    snprintf(name, sizeof name, "fault.op%d", number++);
    snprintf(schema, sizeof schema, "%s(Tensor a, int n, str? s) -> ()", name);
    FAULTY(f, ts_register_op(schema, &op));
    FAULTY(f, ts_register_kernel(name, TS_KEY_CPU, nothing, "k(Tensor a, int n, str? s) -> ()",
                                 &kernel));
    TS_SCOPE;
    ts_value args[] = {ts_value_tensor(ts_ones(TS_SIZES(2), TS_F32)), ts_value_int(1),
                       ts_value_none()};
    FAULTY(f, ts_call_boxed(op, args, 3, NULL, 0));
    FAULTY(f, ts_unregister(kernel));
    /* a kernel that is registered before its op */
    snprintf(name, sizeof name, "fault.op%d", number);
    FAULTY(f, ts_register_kernel(name, TS_KEY_CPU, nothing, NULL, &kernel));
    FAULTY(f, ts_unregister(kernel));
}

CALLS_WITH(layers, FAULT_KEEPS, .loop = 0)
{
    static ts_key layer;
    ts_registration *kernel = NULL;
    if (!layer) { /* keys are in fixed tables, which need no memory */
        ts_key backend;
        QUIET(f, ts_register_layer("FAULTS", "AUTOGRAD", &layer));
        QUIET(f, ts_register_backend_key("FAULTY", &backend));
    }
    TS_SCOPE;
    ts_tensor *a = ts_ones(TS_SIZES(2), TS_F32), *y = NULL;
    FAULTY(f, ts_register_kernel("add", layer, redispatch_new, NULL, &kernel));
    ts_mask_guard guard = ts_mask_push(TS_KEYSET(layer), 0);
    FAULTY(f, y = ts_add(a, a));
    fault_see(f, y);
    ts_mask_pop(guard);
    FAULTY(f, ts_unregister(kernel));
    FAULTY(f, ts_register_kernel("add", layer, redispatch, NULL, &kernel));
    QUIET(f, ts_layer_enable(layer, true));
    FAULTY(f, y = ts_add(a, a));
    fault_see(f, y);
    QUIET(f, ts_layer_enable(layer, false));
    QUIET(f, ts_layer_enable_all(layer, true));
    QUIET(f, ts_layer_enable_all(layer, false));
    FAULTY(f, ts_unregister(kernel));
}

/* A fallback allocates a new table for each op. FAULT_SPARSE: these allocations are all alike. */
CALLS_WITH(fallbacks, FAULT_KEEPS | FAULT_SPARSE, .loop = 0)
{
    static ts_key layer;
    ts_registration *fallback = NULL;
    if (!layer)
        ck_assert_int_eq(ts_register_layer("FALLS", "backends", &layer), TS_OK);
    FAULTY(f, ts_register_fallback(layer, redispatch, &fallback));
    FAULTY(f, ts_key_prefer_fallback(layer, true));
    FAULTY(f, ts_key_prefer_fallback(layer, false));
    FAULTY(f, ts_unregister(fallback));
}

static ts_status call_frame_functions(ts_frame *frame)
{
    char text[80];
    int64_t sizes[] = {2, 3};
    ts_value rets[1] = {ts_value_none()};
    const ts_value args[] = {frame->args[0], frame->args[0]};
    { FAULT_TEXT(ts_call_for()); }
    { FAULT_TEXT(ts_frame_describe()); }
    ts_frame_describe(frame, text, sizeof text);
    ts_format_sizes(text, sizeof text, sizes, 2);
    TS_TRY(ts_call_for(frame, ts_op_by_name("mul"), args, 2, rets, 1));
    ts_release(rets[0].t);
    return ts_redispatch(frame);
}

CALLS_WITH(calls_of_a_layer, FAULT_KEEPS, .loop = 0)
{
    TS_SCOPE;
    ts_registration *kernel = NULL;
    ts_tensor *a = ts_ones(TS_SIZES(2), TS_F32), *y = NULL;
    ck_assert_int_eq(ts_register_kernel("add", TS_KEY_TRACING, call_frame_functions, NULL, &kernel),
                     TS_OK);
    ts_mask_guard guard = ts_mask_push(TS_KEYSET(TS_KEY_TRACING), 0);
    fault_watch(f, a);
    FAULTY(f, y = ts_add(a, a));
    ts_mask_pop(guard);
    fault_see(f, y);
    ck_assert_int_eq(ts_unregister(kernel), TS_OK);
}

/* If a thread cannot be started, the pool runs with fewer threads. */
CALLS_WITH(threads, FAULT_KEEPS, .loop = 0)
{
    TS_SCOPE;
    ts_tensor *big = ts_ones(TS_SIZES(1000, 1000), TS_F32), *y = NULL;
    FAULTY(f, ts_set_num_threads(3));
    FAULTY(f, y = ts_add(big, big));
    fault_see(f, ts_sum(y));
    FAULTY(f, ts_set_num_threads(1));
}

static ts_tensor *in_region(ts_tensor *a, ts_tensor *w)
{
    TS_AUTOCAST(TS_DEVICE_CPU, TS_BF16);
    FAULT_TEXT(ts_autocast_open(&region, TS_DEVICE_CPU, TS_BF16));
    return ts_matmul(a, w);
}

CALLS_WITH(autocast, FAULT_KEEPS, .loop = 0)
{
    TS_SCOPE;
    ts_tensor *a = ts_full(TS_SIZES(2, 3), TS_SCALAR(0.3), TS_F32),
              *w = ts_full(TS_SIZES(3, 2), TS_SCALAR(0.7), TS_F32), *y = NULL;
    ts_set_requires_grad(w, true);
    WATCH(a, w);
    NEW(in_region(a, w));
    ts_autocast_region region;
    ts_autocast_opts opts = {.size = sizeof opts, .no_cache = true};
    FAULTY(f, ts_autocast_enter(&region, TS_DEVICE_CPU, TS_BF16));
    FAULTY(f, y = ts_matmul(a, w));
    fault_see(f, y);
    FAULTY(f, y = ts_matmul(a, w));
    fault_see(f, y);
    QUIET(f, ts_autocast_dtype(TS_DEVICE_CPU));
    QUIET(f, ts_autocast_is_casting());
    QUIET(f, ts_autocast_get_stats());
    ts_autocast_state state = 0;
    QUIET(f, state = ts_autocast_get_state());
    QUIET(f, ts_autocast_clear_cache());
    FAULTY(f, ts_autocast_exit(&region));
    FAULTY(f, ts_autocast_enter_state(&region, state));
    FAULTY(f, ts_autocast_exit(&region));
    FAULTY(f, ts_autocast_enter_ex(&region, TS_DEVICE_CPU, TS_BF16, &opts));
    FAULTY(f, (ts_zero_grad(w), ts_backward(ts_sum(ts_matmul(a, w)))));
    FAULTY(f, ts_autocast_exit(&region));
    fault_see(f, ts_grad(w));
    ts_registration *rule = NULL;
    FAULTY(f, ts_autocast_register("noop", TS_AUTOCAST_KEEP, &rule));
    FAULTY(f, ts_unregister(rule));
}

CALLS(reading_the_registry)
{
    TS_SCOPE;
    ts_tensor *a = ts_ones(TS_SIZES(2), TS_F32);
    char text[4096];
    FILE *out = fmemopen(text, sizeof text, "w");
    ck_assert_ptr_nonnull(out);
    QUIET(f, ts_op_by_name("add"));
    QUIET(f, ts_op_name(1));
    QUIET(f, ts_op_schema(1));
    QUIET(f, ts_op_count());
    ts_op_description description = {.size = sizeof description};
    char sizes[40];
    QUIET(f, ts_op_describe(1, &description));
    QUIET(f, ts_op_slot(1, TS_KEY_CPU));
    QUIET(f, ts_format_sizes(sizes, sizeof sizes, TS_SIZES(2, 3)));
    QUIET(f, ts_key_name(TS_KEY_CPU));
    QUIET(f, ts_key_by_name("CPU"));
    QUIET(f, ts_mask_pop(ts_mask_push(0, 0)));
    QUIET(f, ts_mask_push(0, 0));
    QUIET(f, ts_mask_get());
    QUIET(f, ts_adopt(ts_retain(a)));
    FAULTY(f, ts_op_dump("add", out));
    FAULTY(f, ts_noop(a, a, TS_SCALAR(1)));
    fclose(out);
}

/* -------------------------------------------------------------------------- the timers ---- */

CALLS_WITH(timers, FAULT_KEEPS, .loop = 0)
{
    TS_SCOPE;
    static char text[1 << 16];
    ts_tensor *a = ts_ones(TS_SIZES(2), TS_F32), *y = NULL;
    FILE *out = fmemopen(text, sizeof text, "w");
    ck_assert_ptr_nonnull(out);
    FAULTY(f, ts_timers_enable(true));
    FAULTY(f, y = ts_add(a, a));
    fault_see(f, y);
    QUIET(f, ts_timers_enabled());
    QUIET(f, ts_timers_get("add", NULL));
    QUIET(f, ts_timers_totals());
    FAULTY(f, ts_timers_write(out, TS_TIMERS_TABLE));
    FAULTY(f, ts_timers_write(out, TS_TIMERS_CSV));
    FAULTY(f, ts_timers_write(out, TS_TIMERS_JSON));
    FAULTY(f, ts_timers_write_top(out, 3));
    QUIET(f, ts_timers_reset());
    FAULTY(f, ts_timers_enable(false));
    fclose(out);
}
