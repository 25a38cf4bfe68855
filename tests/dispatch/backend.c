/** @file backend.c  Backends with memory of their own: registration, errors, moves, round trips. */
// SPDX-License-Identifier: MIT
#include "core/testing.h"
#include "dispatch/registry.h"
#include "tests/dispatch/offset.h"

char ran[64];

static ts_status refuse(ts_frame *f)
{
    return ts_error_set(TS_ERR_STATE, "%s ran", ts_op_name(f->op));
}

static offset_state memory[2] = {{.devices = 2}, {.devices = 1}};
static const ts_backend first = {OFFSET_BACKEND("FIRST", TS_BACKEND_CPU_FALLBACK, &memory[0])};
static const ts_backend second = {OFFSET_BACKEND("SECOND", TS_BACKEND_CPU_FALLBACK, &memory[1])};

/** The device of a backend that is registered here. */
static ts_device device_of(const ts_backend *b)
{
    ts_key key;
    OK(ts_register_backend(b, &key));
    return (ts_device){key, 0};
}

/** Asserts that two tensors, on any devices, have the same dtype and values. */
static void same_values(ts_tensor *a, ts_tensor *b)
{
    OK(a);
    OK(b);
    ck_assert_int_eq(ts_numel(a), ts_numel(b));
    ck_assert_int_eq(ts_dtype_of(a), ts_dtype_of(b));
    size_t bytes = (size_t)ts_numel(a) * ts_dtype_size(ts_dtype_of(a));
    char *x = malloc(bytes), *y = malloc(bytes);
    OK(ts_copy_to(a, x, bytes));
    OK(ts_copy_to(b, y, bytes));
    ck_assert_int_eq(memcmp(x, y, bytes), 0);
    free(x), free(y);
}

TS_TEST(tensors_move_to_a_backend_and_back_with_their_values)
{
    ts_device device = device_of(&first), other = {device.backend, 1};
    {
        TS_SCOPE;
        ts_tensor *x = ts_arange(0, 24, 1, TS_F32), *there = ts_to_device(x, device);
        OK(there);
        ck_assert_str_eq(ts_device_name(ts_device_of(there)), "first:0");
        same_values(there, x);
        /* moves of a strided view: to the device, to its other device, to another backend */
        ts_tensor *turned = ts_transpose(ts_view(x, TS_SIZES(4, 6)), 0, 1);
        same_values(ts_to_device(turned, device), turned);
        ts_tensor *far = ts_to_device(ts_transpose(ts_view(there, TS_SIZES(4, 6)), 0, 1), other);
        ck_assert_int_eq(ts_device_of(far).index, 1);
        same_values(far, turned);
        ts_tensor *elsewhere = ts_to_device(far, device_of(&second));
        same_values(elsewhere, turned);
        same_values(ts_to_device(elsewhere, TS_DEVICE_CPU), turned);
        ck_assert_int_gt(memory[0].live, 0);
    }
    ck_assert_int_eq(memory[0].live, 0);
    ck_assert_int_eq(memory[1].live, 0);
}

static void *allocate_nothing(void *state, int index, int64_t bytes, ts_stream *stream)
{
    (void)state, (void)index, (void)bytes, (void)stream;
    return NULL;
}

TS_TEST(an_earlier_device_error_is_not_reported_for_a_failed_allocation)
{
    static ts_backend full = {OFFSET_BACKEND("FULL", 0, &memory[0])};
    full.allocate = allocate_nothing;
    ts_device device = device_of(&full);
    ts_stream *stream;
    FAILS(TS_ERR_DEVICE, ts_stream_new((ts_device){device.backend, 200}, &stream));
    FAILS(TS_ERR_MEMORY, ts_to_device(ts_ones(TS_SIZES(3), TS_F32), device));
    SAYS("out of memory on full:0");
}

TS_TEST(copies_between_devices_go_both_ways_into_strided_destinations)
{
    TS_SCOPE;
    ts_device device = device_of(&first);
    ts_tensor *x = ts_arange(0, 12, 1, TS_F32), *y = ts_zeros(TS_SIZES(4, 6), TS_F32);
    ts_tensor *there = ts_to_device(y, device);
    ts_tensor *from = ts_view(x, TS_SIZES(3, 4));
    OK(ts_copy_(ts_transpose(ts_slice(there, 1, 0, 6, 2), 0, 1), from));
    OK(ts_copy_(ts_transpose(ts_slice(y, 1, 0, 6, 2), 0, 1), from));
    same_values(there, y);
    OK(ts_zero_(y));
    OK(ts_copy_(y, there));
    same_values(y, there);
}

/* --------------------------------------------------------------------------------- peak ---- */

static int64_t peaks[2];
static ts_status reported_peak(void *state, int device, ts_memory_stats *stats)
{
    (void)state;
    *stats = (ts_memory_stats){.in_use = 10 + device, .peak = peaks[device]};
    return TS_OK;
}
static ts_status reset_peak(void *state, int device)
{
    (void)state;
    peaks[device] = 10 + device;
    return TS_OK;
}

TS_TEST(the_peak_of_one_device_is_reset_to_what_it_has_in_use)
{
    TS_SCOPE;
    static const ts_backend counting = {OFFSET_BACKEND("COUNTING", 0, &memory[0]),
                                        .memory_stats = reported_peak,
                                        .memory_reset_peak = reset_peak};
    ts_device device = device_of(&counting), other = {device.backend, 1};
    ts_memory_stats stats;
    peaks[0] = peaks[1] = 99;
    OK(ts_device_memory_reset_peak(other));
    OK(ts_device_memory_stats(other, &stats));
    ck_assert_int_eq(stats.peak, 11);
    OK(ts_device_memory_stats(device, &stats));
    ck_assert_int_eq(stats.peak, 99);
    /* the statistics of the CPU are those of host memory */
    ts_tensor *held = ts_zeros(TS_SIZES(100), TS_F32);
    ts_drop(ts_zeros(TS_SIZES(1 << 20), TS_F32));
    OK(held);
    OK(ts_device_memory_reset_peak(TS_DEVICE_CPU));
    OK(ts_device_memory_stats(TS_DEVICE_CPU, &stats));
    ck_assert_int_gt(stats.in_use, 0);
    ck_assert_int_eq(stats.peak, stats.in_use);
    ck_assert_int_eq(ts_memory_get_stats().peak, stats.peak);
    /* backends without memory_reset_peak(), and a device that does not exist */
    FAILS(TS_ERR_UNSUPPORTED, ts_device_memory_reset_peak(device_of(&second)));
    SAYS("device_memory_reset_peak: the backend of second:0 cannot reset its peak");
    FAILS(TS_ERR_UNSUPPORTED, ts_device_memory_reset_peak(TS_DEVICE_META));
    FAILS(TS_ERR_DEVICE, ts_device_memory_reset_peak((ts_device){device.backend, 2}));
    SAYS("device_memory_reset_peak: argument 'device': expected a device from counting:0 to "
         "counting:1, got counting:2");
}

/* ------------------------------------------------------------------------ two devices ---- */

static int copied_between;
static ts_status copy_between(void *state, int device, void *to, int from_device, const void *from,
                              int64_t bytes, ts_stream *stream)
{
    copied_between += device != from_device;
    return offset_within(state, device, to, from, bytes, stream);
}
static ts_status copy_on_one_device(ts_frame *f)
{
    return ts_same_device(f->args[0].t->storage->device, f->rets[0].t->storage->device)
               ? ts_round_trip(f)
               : ts_error_set(TS_ERR_STATE, "a kernel was handed two devices");
}
static ts_status install_copy(void *state, ts_key key)
{
    (void)state;
    return ts_register_kernel("copy", key, copy_on_one_device, NULL, NULL);
}

/* A kernel of one device cannot read another's memory: the source is moved first. */
TS_TEST(a_copy_into_a_tensor_of_another_device_of_the_backend_moves_its_source_first, .loop = 2)
{
    static const ts_backend twins[] = {
        {OFFSET_BACKEND("TWINS", TS_BACKEND_CPU_FALLBACK, &memory[0]),
         .copy_between = copy_between},
        {OFFSET_BACKEND("TWINS", TS_BACKEND_CPU_FALLBACK, &memory[0]), .copy_between = copy_between,
         .install = install_copy}};
    TS_SCOPE;
    ts_device device = device_of(&twins[_i]), other = {device.backend, 1};
    ts_tensor *x = ts_arange(0, 4, 1, TS_F32), *y = ts_zeros(TS_SIZES(4, 6), TS_F64),
              *there = ts_to_device(y, device);
    ts_tensor *far = ts_to_device(x, other);
    /* a copy that broadcasts, converts, and writes into a strided view */
    OK(ts_copy_(ts_transpose(ts_slice(there, 1, 0, 6, 2), 0, 1), far));
    ck_assert_int_eq(copied_between, 1);
    OK(ts_copy_(ts_transpose(ts_slice(y, 1, 0, 6, 2), 0, 1), x));
    same_values(there, y);
    FAILS(TS_ERR_DEVICE, ts_neg_out(ts_empty_on(TS_SIZES(4), TS_F32, device), far));
    SAYS("neg: argument 'out': expected device twins:1, got twins:0");
    FAILS(TS_ERR_DEVICE, ts_mul_(far, ts_to_device(x, device)));
    SAYS("mul: argument 'other': expected device twins:1 as argument 'self', got twins:0");
}

TS_TEST(calls_without_a_kernel_make_a_round_trip_that_is_counted)
{
    TS_SCOPE;
    ts_device device = device_of(&first);
    ts_backend_stats before, after;
    OK(ts_backend_get_stats(device.backend, &before));
    ts_tensor *x = ts_arange(1, 13, 1, TS_F32), *w = ts_view(x, TS_SIZES(3, 4));
    ts_tensor *dw = ts_view(ts_to_device(x, device), TS_SIZES(3, 4));
    same_values(ts_add(dw, dw), ts_add(w, w));
    same_values(ts_mm(dw, ts_transpose(dw, 0, 1)), ts_mm(w, ts_transpose(w, 0, 1)));
    same_values(ts_sum(ts_select(dw, 1, 2)), ts_sum(ts_select(w, 1, 2)));
    same_values(ts_cat((ts_tensor *[]){dw, ts_slice(dw, 0, 1, 2, 1)}, 2, 0),
                ts_cat((ts_tensor *[]){w, ts_slice(w, 0, 1, 2, 1)}, 2, 0));
    /* numbers, also as a tensor without dims on the CPU */
    ts_tensor *two = (ts_full)(NULL, 0, ts_scalar_float(2), TS_F32);
    same_values(ts_mul(dw, two), ts_mul(w, two));
    /* in place through a view: only the view's elements change, and versions count */
    uint32_t version = ts_version(dw);
    OK(ts_mul_(ts_slice(ts_select(dw, 0, 1), 0, 1, 4, 2),
               ts_slice(ts_select(dw, 0, 2), 0, 0, 3, 2)));
    OK(ts_mul_(ts_slice(ts_select(w, 0, 1), 0, 1, 4, 2), ts_slice(ts_select(w, 0, 2), 0, 0, 3, 2)));
    same_values(dw, w);
    ck_assert_uint_gt(ts_version(dw), version);
    /* calls with a given destination, an extra result, a composite, a written argument */
    ts_tensor *out = ts_empty_on(TS_SIZES(3, 4), TS_F32, device);
    OK(ts_add_out(out, dw, dw));
    same_values(out, ts_add(w, w));
    ts_tensor *where = NULL, *where_cpu = NULL;
    same_values(ts_max_dim(dw, 1, false, &where), ts_max_dim(w, 1, false, &where_cpu));
    same_values(where, where_cpu);
    same_values(ts_matmul(dw, ts_select(dw, 0, 0)), ts_matmul(w, ts_select(w, 0, 0)));
    OK((ts_fill_)(ts_select(dw, 0, 0), ts_scalar_int(3)));
    OK((ts_fill_)(ts_select(w, 0, 0), ts_scalar_int(3)));
    same_values(dw, w);
    /* the same random numbers as on the CPU */
    ts_manual_seed(5);
    ts_tensor *r = ts_uniform_on(TS_SIZES(9), 0, 1, TS_F32, device);
    ts_manual_seed(5);
    same_values(r, ts_uniform(TS_SIZES(9), 0, 1, TS_F32));
    /* a write to no elements counts too */
    ts_tensor *none = ts_slice(dw, 0, 1, 1, 1),
              *empty = ts_to_device(ts_empty(TS_SIZES(0, 3), TS_F32), device);
    version = ts_version(empty);
    OK(ts_mul_(empty, empty));
    ck_assert_uint_eq(ts_version(empty), version + 1);
    OK(ts_mul_(none, none));
    OK(ts_backend_get_stats(device.backend, &after));
    ck_assert_uint_gt(after.round_trips, before.round_trips + 8);
    ck_assert_uint_gt(after.bytes_in, before.bytes_in);
    ck_assert_uint_gt(after.bytes_out, before.bytes_out);
    FAILS(TS_ERR_DEVICE, ts_backend_get_stats(TS_KEY_CPU, &after));
}

TS_TEST(a_failed_round_trip_has_the_error_of_the_op_and_leaks_nothing)
{
    ts_device device = device_of(&first);
    {
        TS_SCOPE;
        ts_tensor *a = ts_to_device(ts_ones(TS_SIZES(2, 3), TS_F32), device);
        FAILS(TS_ERR_SHAPE, ts_mm(a, a));
        SAYS("mm: ");
        FAILS(TS_ERR_SHAPE, ts_add_out(a, a, ts_ones_like(ts_view(a, TS_SIZES(6)))));
        same_values(a, ts_ones(TS_SIZES(2, 3), TS_F32));
        FAILS(TS_ERR_MEMORY, ts_empty_on(TS_SIZES(1 << 20, 1 << 20, 4), TS_F32, device));
    }
    ck_assert_int_eq(memory[0].live, 0);
}

TS_TEST(a_step_of_training_on_a_backend_equals_the_cpus_bit_for_bit)
{
    ts_device devices[2] = {TS_DEVICE_CPU, device_of(&first)};
    double losses[2][3];
    for (int d = 0; d < 2; d++) {
        TS_SCOPE;
        OK(ts_set_default_device(devices[d]));
        ts_manual_seed(3);
        ts_module *net = ts_linear_new(4, 3, true);
        ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.1);
        ts_optimizer *adamw = ts_optimizer_for(net, TS_ADAMW, &opts);
        OK(adamw);
        for (int step = 0; step < 3; step++) {
            TS_SCOPE;
            ts_tensor *y = ts_forward(net, ts_normal(TS_SIZES(5, 4), 0, 1, TS_F32)),
                      *loss = ts_mean(ts_mul(y, ts_tanh(y)));
            OK(ts_backward(loss));
            OK(ts_optimizer_step(adamw));
            ts_optimizer_zero_grad(adamw);
            OK(ts_item(loss, &losses[d][step]));
        }
        ts_optimizer_free(adamw);
        ts_module_free(net);
    }
    OK(ts_set_default_device(TS_DEVICE_CPU));
    for (int step = 0; step < 3; step++)
        ck_assert_double_eq(losses[0][step], losses[1][step]);
    ck_assert_int_eq(memory[0].live, 0);
}

static ts_status add_on_device(ts_frame *f) { (void)f; note('k'); return TS_OK; }
static ts_status install_noop(void *state, ts_key key)
{
    (void)state;
    return ts_register_kernel("noop", key, add_on_device,
                              "noop(Tensor a, Tensor b, Scalar c) -> ()", NULL);
}

TS_TEST(two_backends_work_in_one_process_and_mixing_them_is_a_named_error)
{
    TS_SCOPE;
    static ts_backend third, fourth;
    third = first, fourth = second;
    third.name = "THIRD", fourth.name = "FOURTH";
    third.install = fourth.install = install_noop;
    ts_device a = device_of(&third), b = device_of(&fourth);
    ts_tensor *x = ts_ones(TS_SIZES(2), TS_F32), *on_a = ts_to_device(x, a),
              *on_b = ts_to_device(x, b);
    OK(call_noop(on_a, on_a));
    ck_assert_str_eq(ran, "k");
    OK(call_noop(on_b, on_b));
    ck_assert_str_eq(ran, "k");
    same_values(ts_add(ts_to_device(on_a, b), on_b), ts_add(x, x));
    FAILS(TS_ERR_DEVICE, call_noop(on_a, on_b));
    SAYS("'a'");
    SAYS("third:0");
    FAILS(TS_ERR_DEVICE, ts_add(on_a, on_b));
    FAILS(TS_ERR_DEVICE, call_noop(on_a, x));
    SAYS("got cpu");
}

/* ----------------------------------------------------------------------- transactions ---- */

/** All tables and names as text. */
static char *registry_text(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    for (int op = 0; op < ts_op_count(); op++)
        OK(ts_op_dump(ts_op_name(op), file));
    for (int k = 0; k < TS_KEY_COUNT; k++)
        fprintf(file, "%s ", ts_key_name((ts_key)k));
    fclose(file);
    return text;
}

static ts_registration *lost;
static ts_status pass(ts_frame *f) { return ts_redispatch(f); }
static ts_status install_half(void *state, ts_key key)
{
    (void)state;
    ts_key layer;
    OK(ts_register_op("half.op(Tensor a) -> ()", NULL));
    OK(ts_register_kernel("half.op", key, refuse, NULL, NULL));
    OK(ts_register_kernel("half.later", key, refuse, NULL, NULL));
    OK(ts_register_kernel("add", TS_KEY_CPU, refuse, NULL, &lost));
    OK(ts_register_layer("HALF", "AUTOGRAD", &layer));
    OK(ts_register_fallback(layer, pass, NULL));
    OK(ts_key_prefer_fallback(key, true));
    ts_tensor *a = one();
    OK(ts_add(a, a)); /* registrations are not visible before install returns */
    return ts_register_kernel("mm", key, refuse, "mm(Tensor self) -> Tensor", NULL);
}

static const char *unknown;
static bool comes;
static ts_status install_early(void *state, ts_key key)
{
    (void)state;
    TS_TRY(ts_register_kernel(unknown, key, refuse, NULL, NULL));
    return comes ? ts_register_op("early.op(Tensor a) -> ()", NULL) : TS_OK;
}

TS_TEST(a_backend_with_a_kernel_without_an_op_registers_nothing)
{
    static ts_backend b;
    b = first;
    b.name = "EARLY";
    b.install = install_early;
    char *before = registry_text();
    unknown = "early.op";
    FAILS(TS_ERR_REGISTRY, ts_register_backend(&b, NULL));
    SAYS("registers a kernel of op 'early.op' for EARLY, and there is no such op");
    ck_assert_ptr_nonnull(strstr(ts_error_hint(), "ts_op_by_name()"));
    unknown = "mat_mul";
    FAILS(TS_ERR_REGISTRY, ts_register_backend(&b, NULL));
    ck_assert_str_eq(ts_error_hint(), "did you mean 'matmul'?");
    char *after = registry_text();
    ck_assert_str_eq(before, after);
    free(before), free(after);
    ck_assert_int_eq(ts_key_by_name("EARLY"), TS_KEY_INVALID);
    /* a kernel whose op does not exist is an error, unless the same install registers the op */
    unknown = "early.op";
    comes = true;
    OK(ts_register_backend(&b, NULL));
    ck_assert_int_ge(ts_op_by_name("early.op"), 0);
    /* outside of a backend's install, a kernel may be registered before its op */
    OK(ts_register_kernel("later.op", TS_KEY_CPU, refuse, NULL, NULL));
}

TS_TEST(names_of_keys_and_ops_are_checked_at_each_registration)
{
    static const char *const bad[] = {"", " ", "a b", "a\n", "\x1b[31m", "\xc3\xa9", "a:0", "a,b",
                                      "auto", "backends", "?", "__metadata__", "cpu", "Cuda",
                                      "autograd", "a234567890123456789012345"};
    static ts_backend b;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        b = first;
        b.name = bad[i];
        ts_key key;
        ck_assert_int_ne(ts_register_layer(bad[i], "backends", &key), TS_OK);
        SAYS("register_layer: ");
        ck_assert_int_ne(ts_register_backend_key(bad[i], &key), TS_OK);
        ck_assert_int_ne(ts_register_backend(&b, &key), TS_OK);
        SAYS("register_backend: ");
    }
    static const char *const no_ops[] = {"", "a b", "a-b", "1a", "a(", "\xc3\xa9", "a\n"};
    for (size_t i = 0; i < sizeof no_ops / sizeof *no_ops; i++) {
        char schema[40];
        snprintf(schema, sizeof schema, "%s(Tensor a) -> Tensor", no_ops[i]);
        FAILS(TS_ERR_FORMAT, ts_register_op(schema, NULL));
        FAILS(TS_ERR_REGISTRY, ts_register_kernel(no_ops[i], TS_KEY_CPU, refuse, NULL, NULL));
        SAYS("argument 'op': expected an op's name");
    }
    FAILS(TS_ERR_NULL, ts_register_layer(NULL, "backends", NULL));
    FAILS(TS_ERR_NULL, ts_register_kernel("add", TS_KEY_CPU, NULL, NULL, NULL));
    SAYS("argument 'kernel': expected a function, got NULL");
    FAILS(TS_ERR_REGISTRY, ts_register_kernel("add", 63, refuse, NULL, NULL));
    SAYS("argument 'key': expected the key of a layer or a backend, got 63");
    FAILS(TS_ERR_REGISTRY, ts_register_fallback(61, pass, NULL));
}

TS_TEST(a_backend_that_fails_half_way_leaves_the_registry_as_it_was)
{
    ts_backend half = first;
    half.name = "HALFWAY";
    half.install = install_half;
    char *before = registry_text();
    FAILS(TS_ERR_REGISTRY, ts_register_backend(&half, NULL));
    SAYS("register_backend: ");
    SAYS("mm");
    SAYS("written for 1 arguments");
    char *after = registry_text();
    ck_assert_str_eq(before, after);
    free(before), free(after);
    ck_assert_int_eq(ts_op_by_name("half.op"), -1);
    ts_device device;
    FAILS(TS_ERR_VALUE, ts_device_from_name("halfway", &device));
    FAILS(TS_ERR_REGISTRY, ts_unregister(lost)); /* a removed registration is detected */
    half.install = install_noop;
    OK(ts_register_backend(&half, NULL)); /* and the name is free */
    OK(ts_register_op("half.op(Tensor a) -> ()", NULL));
}

static int failing_after;
static bool fail_alloc(size_t bytes) { (void)bytes; return failing_after-- == 0; }

TS_TEST(out_of_memory_anywhere_in_a_registration_leaves_the_registry_as_it_was)
{
    ts_backend b = first;
    b.name = "SCARCE";
    b.install = install_noop;
    char *before = registry_text();
    int tries = 0;
    for (ts_status s = TS_ERR_MEMORY; s != TS_OK; tries++) {
        failing_after = tries;
        ts_alloc_fault = fail_alloc;
        s = ts_register_backend(&b, NULL);
        ts_alloc_fault = NULL;
        if (s == TS_OK)
            break;
        ck_assert_int_eq(s, TS_ERR_MEMORY);
        char *after = registry_text();
        ck_assert_str_eq(before, after);
        free(after);
    }
    ck_assert_int_gt(tries, 100); /* at least one allocation per op */
    free(before);
}

TS_TEST(a_backend_for_another_abi_or_without_a_required_slot_is_refused_by_name)
{
    ts_backend b = first;
    b.name = "WRONG";
    b.abi_version = 7;
    FAILS(TS_ERR_FORMAT, ts_register_backend(&b, NULL));
    SAYS("ABI 7");
    b = first;
    b.struct_size = 8;
    FAILS(TS_ERR_FORMAT, ts_register_backend(&b, NULL));
    SAYS("got 8");
    b = first;
    b.copy_out = NULL;
    FAILS(TS_ERR_FORMAT, ts_register_backend(&b, NULL));
    SAYS("'copy_out'");
    b = first;
    b.name = "CPU";
    FAILS(TS_ERR_REGISTRY, ts_register_backend(&b, NULL));
    SAYS("taken");
    FAILS(TS_ERR_NULL, ts_register_backend(NULL, NULL));
    OK(ts_register_backend(&first, NULL));
    FAILS(TS_ERR_REGISTRY, ts_register_backend(&first, NULL));
    SAYS("already");
    /* the reserved key TS_KEY_CUDA goes to the backend named CUDA */
    static ts_backend cuda;
    cuda = first;
    cuda.name = "CUDA";
    ts_key key;
    OK(ts_register_backend(&cuda, &key));
    ck_assert_int_eq(key, TS_KEY_CUDA);
}

TS_TEST(an_error_names_a_missing_device)
{
    ts_device device = device_of(&first);
    FAILS(TS_ERR_DEVICE, ts_empty_on(TS_SIZES(2), TS_F32, (ts_device){200, 0}));
    SAYS("'device'");
    SAYS("200");
    /* 16 must not be taken for the CPU's key 0 by masking with 15 */
    FAILS(TS_ERR_DEVICE, ts_empty_on(TS_SIZES(2), TS_F32, (ts_device){16, 0}));
    device.index = 2;
    FAILS(TS_ERR_DEVICE, ts_to_device(one(), device));
    SAYS("first:2");
    FAILS(TS_ERR_UNSUPPORTED, ts_to_device(one(), (ts_device){TS_KEY_CUDA, 0}));
    SAYS("CUDA");
    ck_assert_ptr_nonnull(strstr(ts_error_hint(), "ts_backend_load"));
    ck_assert_ptr_null(strstr(ts_error_hint(), "ts_to_device"));
    FAILS(TS_ERR_DEVICE, ts_synchronize((ts_device){TS_KEY_CUDA, 0}));
    FAILS(TS_ERR_DEVICE, ts_stream_new((ts_device){99, 0}, NULL));
}

TS_TEST(a_handle_of_a_removed_registration_is_an_error)
{
    ts_registration *r;
    OK(ts_register_kernel("noop", TS_KEY_CPU, refuse, NULL, &r));
    OK(ts_unregister(r));
    FAILS(TS_ERR_REGISTRY, ts_unregister(r));
    SAYS("removed before");
    OK(call_noop(one(), one()));
    ts_key layer;
    OK(ts_register_layer("REMOVED", "", &layer));
    OK(ts_register_fallback(layer, pass, &r));
    OK(ts_unregister(r));
    FAILS(TS_ERR_REGISTRY, ts_unregister(r));
}
