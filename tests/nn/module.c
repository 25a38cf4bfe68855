// Modules: members, names, walking, state dicts, conversion, modules that a program defines.
// SPDX-License-Identifier: MIT
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "include/tessera/tessera.h"
#include "tests/harness.h"

/* A module of the test's own: y = scale * inner(x), with a count of its frees. */
typedef struct scaled {
    ts_module *inner;
    ts_tensor *scale, *calls;
    int *freed;
} scaled;

static ts_tensor *scaled_forward(ts_module *m, ts_tensor *x)
{
    const scaled *s = ts_module_payload(m);
    return ts_mul(ts_forward(s->inner, x), s->scale);
}

static void scaled_free(void *payload)
{
    const scaled *s = payload;
    if (s->freed)
        ++*s->freed;
}

static const ts_module_type scaled_type = {sizeof(ts_module_type), "Scaled", sizeof(scaled),
                                           scaled_forward, scaled_free};

static ts_module *scaled_new(ts_module *inner, int *freed)
{
    TS_SCOPE;
    ts_module *m = ts_module_new(&scaled_type);
    scaled *s = ts_module_payload(m);
    ck_assert_uint_eq((uintptr_t)s % 64, 0);
    s->freed = freed;
    if (ts_module_add(m, "inner", inner, &s->inner) != TS_OK ||
        ts_module_add_parameter(m, "scale", ts_full(TS_SIZES(3), ts_scalar_float(2), TS_F32),
                                &s->scale) != TS_OK ||
        ts_module_add_buffer(m, "calls", ts_zeros(TS_SIZES(1), TS_I64), true, &s->calls) != TS_OK ||
        ts_module_add_buffer(m, "cache", ts_zeros(TS_SIZES(2), TS_F32), false, NULL) != TS_OK) {
        ts_module_free(m);
        return NULL;
    }
    return m;
}

/** net.inner = Linear(4, 3) */
static ts_module *make_net(int *freed)
{
    ts_module *net = ts_sequential_new();
    ck_assert_int_eq(ts_sequential_add(net, scaled_new(ts_linear_new(4, 3, true), freed)), TS_OK);
    ck_assert_int_eq(ts_sequential_add(net, ts_activation_new("ReLU", ts_relu)), TS_OK);
    ck_assert_int_eq(ts_sequential_add(net, ts_linear_new(3, 2, false)), TS_OK);
    return net;
}

static const char *const state_names[] = {"0.inner.weight", "0.inner.bias", "0.scale", "0.calls",
                                          "2.weight"};

TS_TEST(names_are_dotted_and_in_order)
{
    int freed = 0;
    ts_module *net = make_net(&freed);
    ts_named_tensors state, params;
    ck_assert_int_eq(ts_module_state_dict(net, &state), TS_OK);
    ck_assert_int_eq(ts_module_parameters(net, &params), TS_OK);
    ck_assert_int_eq(state.n, 5);
    for (int i = 0; i < 5; i++)
        ck_assert_str_eq(state.names[i], state_names[i]);
    ck_assert_int_eq(params.n, 4);
    ck_assert_str_eq(params.names[3], "2.weight");
    for (int i = 0; i < 4; i++)
        ck_assert(ts_requires_grad(params.tensors[i]));
    ck_assert_int_eq(ts_module_num_parameters(net), 4 * 3 + 3 + 3 + 3 * 2);
    ck_assert_int_eq(ts_module_num_children(net), 3);
    ck_assert_str_eq(ts_module_child_name(net, 2), "2");
    ck_assert_str_eq(ts_module_type_of(ts_module_child(net, 1))->name, "ReLU");
    ck_assert_ptr_null(ts_module_child(net, 3));
    ck_assert_ptr_null(ts_module_child(net, INT_MIN));
    ck_assert_ptr_eq(ts_module_tensor(net, "0.inner.bias"), params.tensors[1]);
    ck_assert_ptr_null(ts_module_tensor(net, "0.inner.bia"));
    ck_assert_int_eq(ts_error_code(), TS_ERR_INDEX);
    ck_assert_ptr_null(ts_module_tensor(net, "0.inner"));
    ck_assert_ptr_null(ts_module_tensor(net, "0..bias"));
    ts_module_free(net);
    ck_assert_int_eq(freed, 1);
    /* lists keep their tensors after the module was freed */
    ck_assert_int_eq(ts_numel(state.tensors[0]), 12);
    ts_named_tensors_free(&state);
    ts_named_tensors_free(&params);
}

TS_TEST(a_tied_parameter_counts_once)
{
    ts_module *a = ts_linear_new(3, 5, false), *b = ts_module_new(ts_module_type_of(a));
    ck_assert_int_eq(ts_module_add_parameter(b, "weight", ts_module_tensor(a, "weight"), NULL),
                     TS_OK);
    ts_module *net = ts_sequential_new();
    ts_sequential_add(net, a);
    ts_sequential_add(net, b);
    ts_named_tensors params, state;
    ts_module_parameters(net, &params);
    ts_module_state_dict(net, &state);
    ck_assert_int_eq(params.n, 1);
    ck_assert_int_eq(state.n, 2);
    ck_assert_int_eq(ts_module_num_parameters(net), 15);
    ck_assert_int_eq(ts_module_to(net, TS_F64), TS_OK);
    ck_assert_ptr_eq(ts_module_tensor(net, "0.weight"), ts_module_tensor(net, "1.weight"));
    ts_named_tensors_free(&params);
    ts_named_tensors_free(&state);
    ts_module_free(net);
}

TS_TEST(training_mode_and_gradients_reach_everything)
{
    ts_module *net = make_net(NULL);
    ts_module *deep = ts_module_child(ts_module_child(net, 0), 0);
    ck_assert(ts_module_training(deep));
    ts_module_train(net, false);
    ck_assert(!ts_module_training(net) && !ts_module_training(deep));
    {
        TS_SCOPE;
        ts_tensor *y = ts_forward(net, ts_ones(TS_SIZES(6, 4), TS_F32));
        ck_assert_int_eq(ts_size(y, 1), 2);
        ck_assert_int_eq(ts_backward(ts_sum(y)), TS_OK);
    }
    ck_assert(ts_grad(ts_module_tensor(net, "0.inner.weight")) != TS_NONE);
    ts_module_zero_grad(net);
    ck_assert(ts_grad(ts_module_tensor(net, "0.inner.weight")) == TS_NONE);
    ck_assert_int_eq(ts_module_set_requires_grad(net, false), TS_OK);
    ck_assert(!ts_requires_grad(ts_module_tensor(net, "0.scale")));
    ts_module_free(net);
}

TS_TEST(conversion_replaces_tensors_and_slots)
{
    ts_module *net = make_net(NULL);
    const scaled *s = ts_module_payload(ts_module_child(net, 0));
    TS_SCOPE;
    ts_tensor *x = ts_normal(TS_SIZES(5, 4), 0, 1, TS_F32);
    ts_tensor *before = ts_to(ts_forward(net, x), TS_F64);
    ck_assert_int_eq(ts_module_to(net, TS_F64), TS_OK);
    ck_assert_int_eq(ts_dtype_of(s->scale), TS_F64);
    ck_assert_ptr_eq(s->scale, ts_module_tensor(net, "0.scale"));
    ck_assert(ts_requires_grad(s->scale) && ts_is_leaf(s->scale));
    ck_assert_int_eq(ts_dtype_of(s->calls), TS_I64);
    ts_tensor *after = ts_forward(net, ts_to(x, TS_F64));
    for (int64_t i = 0; i < ts_numel(after); i++)
        ck_assert_double_eq_tol(((const double *)ts_data(before))[i],
                                ((const double *)ts_data(after))[i], 1e-5);
    ck_assert_int_eq(ts_module_to(net, TS_I64), TS_ERR_DTYPE);
    ts_module_free(net);
}

static ts_module *convolution_and_norm(void)
{
    ts_manual_seed(3);
    ts_module *net = ts_sequential_new();
    ts_sequential_add(net, ts_conv_new(3, 4, TS_SIZES(3, 3), true, NULL));
    ts_sequential_add(net, ts_batch_norm_new(4, NULL));
    ts_sequential_add(net, ts_conv_new(4, 5, TS_SIZES(1, 1), true, NULL));
    return net;
}

/* Two steps of training with weights in either layout give the same values. */
TS_TEST(weights_in_channels_last_train_as_contiguous_ones, .loop = 2)
{
    TS_SCOPE;
    ts_tensor *x = ts_normal(TS_SIZES(2, 3, 6, 7), 0, 1, TS_F32), *weight[2];
    ts_group_opts opts = ts_optimizer_defaults(_i ? TS_SGD : TS_ADAMW, 1e-2);
    opts.momentum = _i ? 0.9 : opts.momentum;
    for (int last = 0; last < 2; last++) {
        ts_module *net = convolution_and_norm();
        if (last)
            ck_assert_int_eq(ts_module_to_channels_last(net), TS_OK);
        ts_tensor *w = ts_module_tensor(net, "0.weight");
        ck_assert(ts_requires_grad(w) && ts_is_leaf(w));
        ck_assert_int_eq(ts_strides(w)[1], last ? 1 : 9);
        ts_optimizer *o = ts_optimizer_for(net, _i ? TS_SGD : TS_ADAMW, &opts);
        for (int step = 0; step < 2; step++) {
            TS_SCOPE;
            ts_tensor *y = ts_forward(net, x);
            ck_assert_int_eq(ts_backward(ts_sum(ts_mul(y, y))), TS_OK);
            if (last)
                ck_assert_int_eq(ts_strides(ts_grad(w))[1], 1);
            ck_assert_int_eq(ts_optimizer_step(o), TS_OK);
            ts_optimizer_zero_grad(o);
        }
        weight[last] = ts_contiguous(ts_detach(w));
        weight[last] = last ? weight[last] : ts_clone(weight[last]);
        ts_optimizer_free(o);
        ts_module_free(net);
    }
    for (int64_t i = 0; i < ts_numel(weight[0]); i++)
        ck_assert_double_eq_tol(((const float *)ts_data(weight[0]))[i],
                                ((const float *)ts_data(weight[1]))[i], 1e-5);
    ck_assert_int_eq(ts_module_to_channels_last(NULL), TS_ERR_NULL);
}

/* -------------------------------------------------------------------------------- state ---- */

TS_TEST(a_state_dict_round_trip_keeps_every_bit)
{
    ts_manual_seed(1);
    ts_module *a = make_net(NULL), *b = make_net(NULL);
    ts_named_tensors sa, sb;
    ts_module_state_dict(a, &sa);
    ts_module_state_dict(b, &sb);
    ck_assert_mem_ne(ts_data(sa.tensors[0]), ts_data(sb.tensors[0]), 48);
    ts_load_report report;
    ck_assert_int_eq(ts_module_load_state_dict(b, sa.names, sa.tensors, sa.n, true, &report),
                     TS_OK);
    ck_assert_str_eq(report.text, "");
    for (int64_t i = 0; i < sa.n; i++)
        ck_assert_mem_eq(ts_data(sa.tensors[i]), ts_data(sb.tensors[i]),
                         (size_t)ts_numel(sa.tensors[i]) *
                             ts_dtype_size(ts_dtype_of(sa.tensors[i])));
    /* other dtypes are converted */
    ts_module_to(a, TS_F64);
    ts_named_tensors_free(&sa);
    ts_module_state_dict(a, &sa);
    ts_module_zero_grad(b);
    ck_assert_int_eq(ts_module_load_state_dict(b, sa.names, sa.tensors, sa.n, true, NULL), TS_OK);
    ck_assert_int_eq(ts_dtype_of(ts_module_tensor(b, "2.weight")), TS_F32);
    ts_named_tensors_free(&sa);
    ts_named_tensors_free(&sb);
    ts_module_free(a);
    ts_module_free(b);
}

TS_TEST(mismatches_are_all_reported_and_nothing_is_loaded)
{
    TS_SCOPE;
    ts_module *net = make_net(NULL);
    const char *names[] = {"0.inner.weight", "0.scale", "2.weight", "head.bias", "0.scale"};
    ts_tensor *tensors[] = {ts_zeros(TS_SIZES(3, 4), TS_F32), ts_zeros(TS_SIZES(3), TS_F32),
                            ts_zeros(TS_SIZES(3, 2), TS_F32), ts_zeros(TS_SIZES(1), TS_F32),
                            ts_zeros(TS_SIZES(3), TS_F32)};
    ts_load_report report;
    ck_assert_int_eq(ts_module_load_state_dict(net, names, tensors, 5, true, &report),
                     TS_ERR_VALUE);
    ck_assert_int_eq(report.missing, 2);
    ck_assert_int_eq(report.unexpected, 2);
    ck_assert_int_eq(report.mismatched, 1);
    ck_assert_str_eq(report.text, "missing: 0.inner.bias, 0.calls; unexpected: head.bias, 0.scale "
                                  "(twice); sizes differ: 2.weight expected (2, 3) got (3, 2)");
    ck_assert_ptr_nonnull(strstr(ts_error_message(), report.text));
    ck_assert_float_eq(((const float *)ts_data(ts_module_tensor(net, "0.scale")))[0], 2);
    /* sizes must match, also with strict false */
    ck_assert_int_eq(ts_module_load_state_dict(net, names, tensors, 5, false, &report),
                     TS_ERR_VALUE);
    ck_assert_float_eq(((const float *)ts_data(ts_module_tensor(net, "0.scale")))[0], 2);
    ck_assert_int_eq(ts_module_load_state_dict(net, names, tensors, 2, true, NULL), TS_ERR_VALUE);
    ck_assert_int_eq(ts_module_load_state_dict(net, names, tensors, 2, false, &report), TS_OK);
    ck_assert_int_eq(report.missing, 3);
    ck_assert_float_eq(((const float *)ts_data(ts_module_tensor(net, "0.scale")))[0], 0);
    ts_module_free(net);
}

TS_TEST(long_reports_are_cut)
{
    enum { N = 300 };
    TS_SCOPE;
    ts_module *net = make_net(NULL);
    static char text[N][80];
    const char *names[N];
    ts_tensor *tensors[N], *t = ts_zeros(TS_SIZES(1), TS_F32);
    for (int i = 0; i < N; i++) {
        memset(text[i], 'x', 70);
        sprintf(text[i] + 70, "%d", i);
        names[i] = text[i];
        tensors[i] = t;
    }
    ts_load_report report;
    ck_assert_int_eq(ts_module_load_state_dict(net, names, tensors, N, true, &report),
                     TS_ERR_VALUE);
    ck_assert_int_eq(report.unexpected, N);
    ck_assert_ptr_nonnull(strstr(report.text, "missing: 0.inner.weight"));
    ck_assert_uint_lt(strlen(report.text), sizeof report.text);
    ts_module_free(net);
}
TS_TEST(dotted_names_have_up_to_511_bytes)
{
    TS_SCOPE;
    char name[512];
    ts_named_tensors list;
    ts_module *m = ts_sequential_new(), *outer = ts_sequential_new();
    memset(name, 'n', 511);
    name[511] = 0;
    ck_assert_int_eq(ts_module_add_buffer(m, name, ts_zeros(TS_SIZES(1), TS_F32), true, NULL),
                     TS_OK);
    ck_assert_int_eq(ts_module_state_dict(m, &list), TS_OK);
    ck_assert_str_eq(list.names[0], name);
    ts_named_tensors_free(&list);
    /* a child without tensors has no dotted names below it */
    ck_assert_int_eq(ts_module_add(outer, name, ts_sequential_new(), NULL), TS_OK);
    ck_assert_int_eq(ts_module_state_dict(outer, &list), TS_OK);
    ck_assert_int_eq(list.n, 0);
    ts_named_tensors_free(&list);
    ck_assert_int_eq(ts_module_add(outer, "m", m, NULL), TS_OK);
    ck_assert_int_eq(ts_module_state_dict(outer, &list), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "longer than 511 bytes"));
    ts_module_free(outer);
}

/* ------------------------------------------------------------------------------- misuse ---- */

TS_TEST(misuse_is_named_and_frees_what_was_given)
{
    TS_SCOPE;
    int freed = 0;
    ts_module *net = make_net(NULL);
    ck_assert_int_eq(ts_module_add(net, "0", scaled_new(ts_linear_new(4, 3, true), &freed), NULL),
                     TS_ERR_VALUE);
    ck_assert_int_eq(freed, 1);
    ck_assert_int_eq(ts_module_add(net, "a.b", scaled_new(ts_linear_new(4, 3, true), &freed), NULL),
                     TS_ERR_VALUE);
    ck_assert_int_eq(freed, 2);
    ck_assert_int_eq(ts_module_add(ts_module_child(net, 0), "loop", net, NULL), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "got a module Sequential that contains it"));
    ck_assert_int_eq(ts_module_add(net, "again", ts_module_child(net, 0), NULL), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "that has a parent"));
    int freed_before = freed; /* a failed add of an ancestor frees nothing */
    ck_assert_int_eq(ts_module_add(ts_module_child(net, 0), NULL, net, NULL), TS_ERR_VALUE);
    ck_assert_int_eq(ts_module_add(net, "not a name", net, NULL), TS_ERR_VALUE);
    ck_assert_int_eq(freed, freed_before);
    ck_assert_int_eq(ts_module_num_children(net), 3);
    ts_error_clear();
    ck_assert_int_eq(ts_module_add(net, "none", NULL, NULL), TS_ERR_NULL);
    ck_assert_int_eq(ts_module_add_parameter(net, "p", ts_zeros(TS_SIZES(1), TS_I64), NULL),
                     TS_ERR_DTYPE);
    ts_tensor *leaf = ts_set_requires_grad(ts_ones(TS_SIZES(1), TS_F32), true);
    ck_assert_int_eq(ts_module_add_parameter(net, "p", ts_mul(leaf, leaf), NULL), TS_ERR_AUTOGRAD);
    ts_tensor *slot = leaf;
    ck_assert_int_eq(ts_module_add_parameter(net, "p", TS_NONE, &slot), TS_OK);
    ck_assert_ptr_eq(slot, TS_NONE);
    /* NULL from a failed constructor propagates its error */
    ts_error_clear();
    ck_assert_int_eq(ts_module_add(net, "bad", ts_linear_new(0, 3, true), NULL), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "linear_new: argument 'in'"));
    ck_assert_ptr_null(ts_forward(net, NULL));
    ck_assert_ptr_null(ts_forward(NULL, leaf));
    static const ts_module_type bare = {sizeof(ts_module_type), "Bare", 0, NULL, NULL};
    ts_module *m = ts_module_new(&bare);
    ck_assert_ptr_null(ts_forward(m, leaf));
    ck_assert_int_eq(ts_error_code(), TS_ERR_UNSUPPORTED);
    ts_module_free(m);
    ck_assert_ptr_null(ts_module_new(NULL));
    ts_module_free(NULL);
    ts_module_free(net);
}

TS_TEST(names_that_no_file_can_hold_are_refused)
{
    static const char *const wrong[] = {"", "a.b", "a b", "a\n", "\x1b[31m", "\xc3\xa9", "\x7f",
                                        "__metadata__"};
    TS_SCOPE;
    ts_module *m = ts_sequential_new();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_int_eq(ts_module_add_parameter(m, wrong[i], ts_ones(TS_SIZES(2), TS_F32), NULL),
                         TS_ERR_VALUE);
        ck_assert_int_eq(
            ts_module_add_buffer(m, wrong[i], ts_ones(TS_SIZES(2), TS_F32), true, NULL),
            TS_ERR_VALUE);
    }
    ck_assert_int_eq(ts_module_num_parameters(m), 0);
    ts_module_free(m);
}
