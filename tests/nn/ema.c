/** @file ema.c  Moving averages of a module's weights, files of weights, optimizer groups by a
 * function, and ts_forward_list(). */
// SPDX-License-Identifier: MIT
#include "tests/io/folder.h"

static ts_module *make_net(uint64_t seed)
{
    ts_module *m = ts_sequential_new();
    ts_manual_seed(seed);
    ck_ok(ts_sequential_add(m, ts_linear_new(3, 4, true)));
    ck_ok(ts_sequential_add(m, ts_batch_norm_new(4, NULL)));
    return m;
}

static float first(const ts_module *m, const char *name)
{
    ts_tensor *t = ts_module_tensor(m, name);
    ck_ok(t);
    return *(const float *)ts_data(t);
}

static void set(ts_module *m, const char *name, double value)
{
    ck_ok(ts_init_constant(ts_module_tensor(m, name), value));
}

/* ------------------------------------------------------------------------------ averages ---- */

TS_TEST(averages_follow_their_formula)
{
    ts_module *m = make_net(1);
    set(m, "0.bias", 1);
    set(m, "1.running_var", 8);
    ts_ema *e = ts_ema_new(m, 0.3);
    ck_ok(e);
    double bias = 1, var = 8;
    for (int step = 0; step < 9; step++) {
        double d = (1.0 + step) / (10 + step);
        d = d < 0.3 ? d : 0.3;
        set(m, "0.bias", step);
        set(m, "1.running_var", 2 * step);
        *(int64_t *)ts_data_mut(ts_module_tensor(m, "1.num_batches_tracked")) = step;
        ck_ok(ts_ema_update(e));
        bias += (1 - d) * (step - bias), var += (1 - d) * (2 * step - var);
    }
    ck_ok(ts_ema_swap(e));
    ck_assert_float_eq_tol(first(m, "0.bias"), (float)bias, 1e-5F);
    ck_assert_float_eq_tol(first(m, "1.running_var"), (float)var, 1e-5F);
    ck_assert_int_eq(*(const int64_t *)ts_data(ts_module_tensor(m, "1.num_batches_tracked")), 8);
    ts_named_tensors list;
    ck_assert_int_eq(ts_ema_update(e), TS_ERR_STATE);
    ck_failed(TS_ERR_STATE, "ema_update: the module has the averages");
    ck_assert_int_eq(ts_ema_state(e, &list), TS_ERR_STATE);
    ck_ok(ts_ema_swap(e));
    ck_assert(first(m, "0.bias") == 8 && first(m, "1.running_var") == 16);
    ck_ok(ts_ema_swap(e));
    ck_assert_float_eq_tol(first(m, "0.bias"), (float)bias, 1e-5F);
    ts_ema_free(e);
    ts_ema_free(NULL);
    ts_module_free(m);
}

TS_TEST(averages_of_halves_are_f32)
{
    ts_module *m = make_net(1);
    ck_ok(ts_module_to(m, TS_BF16));
    set(m, "0.bias", 1);
    ts_ema *e = ts_ema_new(m, 1);
    ck_ok(e);
    set(m, "0.bias", 1.0078125); /* the least bf16 above 1 */
    for (int i = 0; i < 40; i++)
        ck_ok(ts_ema_update(e));
    for (int i = 0; i < 2; i++) /* swapping twice keeps the f32 averages */
        ck_ok(ts_ema_swap(e));
    ts_named_tensors list;
    ck_ok(ts_ema_state(e, &list));
    bool found = false;
    for (int64_t i = 0; i < list.n; i++)
        if (strcmp(list.names[i], "0.bias") == 0) {
            found = true;
            ck_assert_int_eq(ts_dtype_of(list.tensors[i]), TS_F32);
            ck_assert_float_gt(*(const float *)ts_data(list.tensors[i]), 1.007F);
            ck_assert_float_lt(*(const float *)ts_data(list.tensors[i]), 1.0078125F);
        }
    ck_assert(found);
    ts_named_tensors_free(&list);
    ts_ema_free(e);
    ts_module_free(m);
}

static void step(ts_training *t)
{
    TS_SCOPE;
    ts_tensor *x = ts_uniform(TS_SIZES(8, 3), -1, 1, TS_F32);
    ck_ok(ts_backward(ts_mean(ts_square(ts_forward(t->model, x)))));
    ck_ok(ts_optimizer_step(t->optimizer));
    ts_optimizer_zero_grad(t->optimizer);
    ck_ok(ts_ema_update(t->ema));
    t->step++;
}

static ts_training start(uint64_t seed)
{
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.1);
    ts_training t = {.size = sizeof t, .model = make_net(seed)};
    ck_ok(t.optimizer = ts_optimizer_for(t.model, TS_ADAMW, &opts));
    ck_ok(t.ema = ts_ema_new(t.model, 0.9));
    return t;
}

static void end(ts_training *t)
{
    ts_ema_free(t->ema);
    ts_optimizer_free(t->optimizer);
    ts_module_free(t->model);
}

TS_TEST(a_resumed_run_has_the_same_averages, IN_FOLDER)
{
    ts_training straight = start(1), resumed = start(2), other = start(3);
    ts_manual_seed(9);
    for (int i = 0; i < 5; i++)
        step(&straight);
    ck_ok(ts_training_save(&straight, in_folder("run")));
    for (int i = 0; i < 5; i++)
        step(&straight);
    ck_ok(ts_training_resume(&resumed, in_folder("run"), NULL, 0));
    ck_assert_int_eq(resumed.step, 5);
    for (int i = 0; i < 5; i++)
        step(&resumed);
    ck_ok(ts_ema_swap(straight.ema));
    ck_ok(ts_ema_swap(resumed.ema));
    ts_named_tensors a, b;
    ck_ok(ts_module_state_dict(straight.model, &a));
    ck_ok(ts_module_state_dict(resumed.model, &b));
    for (int64_t i = 0; i < a.n; i++)
        ck_assert_mem_eq(ts_data(a.tensors[i]), ts_data(b.tensors[i]),
                         (size_t)ts_numel(a.tensors[i]) * ts_dtype_size(ts_dtype_of(a.tensors[i])));
    ts_named_tensors_free(&a), ts_named_tensors_free(&b);
    ck_assert_int_eq(ts_training_save(&straight, in_folder("run")), TS_ERR_STATE);
    ck_failed(TS_ERR_STATE, "the module has the averages");
    /* resuming from a checkpoint without averages does not change other.ema */
    ts_ema *own = other.ema;
    other.ema = NULL;
    ck_ok(ts_training_save(&other, in_folder("other")));
    other.ema = own;
    set(other.model, "0.bias", 5);
    ck_assert_int_ne(ts_training_resume(&other, in_folder("other"), NULL, 0), TS_OK);
    ck_failed(TS_ERR_INDEX, "ema");
    ck_assert(first(other.model, "0.bias") == 5);
    end(&straight), end(&resumed), end(&other);
}

TS_TEST(states_of_averages_must_match)
{
    ts_module *m = make_net(1);
    ts_ema *e = ts_ema_new(m, 0.5);
    ts_named_tensors list;
    ck_ok(e);
    ck_ok(ts_ema_state(e, &list));
    ck_ok(ts_ema_load_state(e, list.names, list.tensors, list.n));
    ck_assert_int_eq(ts_ema_load_state(e, list.names, list.tensors, list.n - 1), TS_ERR_VALUE);
    ck_failed(TS_ERR_VALUE, "ema_load_state: missing: steps");
    TS_SCOPE;
    ts_tensor *own = list.tensors[list.n - 1];
    list.tensors[list.n - 1] = ts_full(TS_SIZES(1), TS_SCALAR(-1), TS_I64);
    ck_assert_int_eq(ts_ema_load_state(e, list.names, list.tensors, list.n), TS_ERR_VALUE);
    ck_failed(TS_ERR_VALUE, "'steps': expected at least 0, got -1");
    list.tensors[list.n - 1] = own;
    ts_named_tensors_free(&list);
    ts_ema_free(e);
    ck_assert_ptr_null(ts_ema_new(m, 1.5));
    ck_failed(TS_ERR_VALUE, "0 to 1");
    ts_module_free(m);
}

/* --------------------------------------------------------------------------------- files ---- */

TS_TEST(one_call_saves_or_loads_weights, IN_FOLDER)
{
    ts_module *a = make_net(1), *b = make_net(2), *wide = ts_linear_new(5, 4, true);
    const char *path = in_folder("net.safetensors");
    set(a, "1.running_mean", 0.25);
    ck_ok(ts_module_save(a, path));
    ck_assert(first(a, "0.weight") != first(b, "0.weight"));
    ck_ok(ts_module_load(b, path));
    ck_assert(first(a, "0.weight") == first(b, "0.weight"));
    ck_assert(first(b, "1.running_mean") == 0.25F);
    float before = first(wide, "weight");
    ck_assert_int_eq(ts_module_load(wide, path), TS_ERR_VALUE);
    ck_failed(TS_ERR_VALUE, "net.safetensors': missing: weight, bias; unexpected:");
    ck_assert(first(wide, "weight") == before);
    write_file(path, "not a file", 10);
    ck_assert_int_eq(ts_module_load(b, path), TS_ERR_FORMAT);
    ck_assert_int_eq(ts_module_load(b, in_folder("absent")), TS_ERR_IO);
    ck_assert_int_eq(ts_module_save(b, in_folder("no/net")), TS_ERR_IO);
    ts_error_clear();
    ts_module_free(a), ts_module_free(b), ts_module_free(wide);
}

/* -------------------------------------------------------------------------------- groups ---- */

static bool is_matrix(void *ctx, const char *name, ts_tensor *t)
{
    ck_assert_ptr_nonnull(strchr(name, '.'));
    ++*(int *)ctx;
    return ts_ndim(t) >= 2;
}

TS_TEST(groups_take_the_parameters_that_a_rule_accepts)
{
    ts_module *m = make_net(1);
    ts_optimizer *o = ts_optimizer_new(TS_ADAMW);
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.1);
    int asked = 0;
    int64_t n;
    ck_ok(ts_optimizer_add_group_where(o, m, is_matrix, &asked, &opts));
    ck_assert_int_eq(asked, 4);
    ts_tensor *const *params = ts_optimizer_params(o, &n);
    ck_assert(n == 1 && params[0] == ts_module_tensor(m, "0.weight"));
    opts.weight_decay = 0;
    ck_ok(ts_optimizer_add_group_where(o, m, NULL, NULL, &opts)); /* all remaining parameters */
    params = ts_optimizer_params(o, &n);
    ck_assert_int_eq(n, 4);
    ck_assert_ptr_eq(params[1], ts_module_tensor(m, "0.bias"));
    ck_assert_int_eq(ts_optimizer_num_groups(o), 2);
    ck_assert(ts_optimizer_group(o, 0)->weight_decay > 0 &&
              ts_optimizer_group(o, 1)->weight_decay == 0);
    opts.lr = -1;
    ck_assert_int_eq(ts_optimizer_add_group_where(o, m, NULL, NULL, &opts), TS_ERR_VALUE);
    ck_assert_int_eq(ts_optimizer_add_group_where(o, m, NULL, NULL, NULL), TS_ERR_NULL);
    ck_assert_int_eq(ts_optimizer_add_group_where(o, NULL, NULL, NULL, &opts), TS_ERR_NULL);
    ts_optimizer_free(o);
    ts_module_free(m);
}

/* ----------------------------------------------------------------------- several tensors ---- */

static ts_tensor *weigh(ts_module *m, ts_tensor *const *inputs, int n)
{
    ts_tensor *sum = inputs[0];
    for (int i = 1; i < n; i++)
        sum = ts_add(sum, inputs[i] == TS_NONE ? inputs[0] : ts_mul_scalar(inputs[i], i + 1));
    return ts_module_training(m) ? sum : NULL;
}
static ts_tensor *twice(void *payload, ts_module *m, ts_tensor *x)
{
    return (void)payload, (void)m, ts_mul_scalar(x, 2);
}
static ts_tensor *plus(void *payload, ts_module *m, ts_tensor *x, ts_tensor *y)
{
    return (void)payload, (void)m, ts_add(y, x);
}

TS_TEST(a_forward_takes_several_tensors)
{
    TS_SCOPE;
    static const ts_module_type type = {sizeof type, "Weigh", 0, NULL, NULL};
    ts_module *m = ts_module_new(&type), *linear = ts_linear_new(1, 1, true);
    ts_tensor *x[] = {ts_ones(TS_SIZES(1), TS_F32), ts_ones(TS_SIZES(1), TS_F32), TS_NONE};
    double value;
    ck_assert_ptr_null(ts_forward_list(m, x, 2));
    ck_failed(TS_ERR_UNSUPPORTED, "a Weigh has no forward of several tensors");
    ck_ok(ts_module_set_forward_list(m, weigh));
    ck_ok(ts_item(ts_forward_list(m, x, 2), &value));
    ck_assert_double_eq(value, 3);
    ck_ok(ts_item(ts_forward_list(m, x, 3), &value));
    ck_assert_double_eq(value, 4);
    ck_ok(ts_item(ts_forward(m, x[0]), &value));
    ck_assert_double_eq(value, 1);
    ck_ok(ts_module_add_forward_hook(m, TS_OPTS(ts_forward_hook, .before = twice, .after = plus),
                                     NULL));
    ck_ok(ts_item(ts_forward_list(m, x, 2), &value));
    ck_assert_double_eq(value, 6); /* 2 + 2, plus the first tensor */
    ck_ok(ts_forward_list(linear, x, 1));
    ck_assert_ptr_null(ts_forward_list(linear, x, 2));
    ck_failed(TS_ERR_UNSUPPORTED, "Linear");
    ck_assert_ptr_null(ts_forward_list(m, x, 17));
    ck_failed(TS_ERR_VALUE, "1 to 16");
    ck_assert_ptr_null(ts_forward_list(m, (ts_tensor *[]){x[0], NULL}, 2));
    ts_module_train(m, false);
    ts_error_clear();
    ck_assert_ptr_null(ts_forward_list(m, x, 2));
    ck_failed(TS_ERR_NULL, "a Weigh failed without recording an error (in Weigh)");
    ck_assert_int_eq(ts_module_set_forward_list(m, NULL), TS_ERR_NULL);
    ts_error_clear();
    ts_module_free(m), ts_module_free(linear);
}
