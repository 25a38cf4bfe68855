/** @file calls_nn.c  Out-of-memory sweeps: modules, initial values, optimizers and the loader. */
// SPDX-License-Identifier: MIT
#include "tests/faults/calls.h"
#include "tests/io/folder.h"

/* Sweeps a constructor, always from the same state of the generator, and forward and backward of
 * `input`. Records the module's tensors and gradients. */
#define MODULE(input, ...)                                          \
    do {                                                            \
        TS_SCOPE;                                                   \
        ts_module *m = NULL;                                        \
        FAULTY(f, (ts_manual_seed(5), m = __VA_ARGS__));            \
        see_module(f, m, input);                                    \
        ts_module_free(m);                                          \
    } while (0)

static ts_status see_one(void *ctx, const char *name, ts_tensor *t, ts_member_kind kind)
{
    (void)name, (void)kind;
    fault_see(ctx, t);
    if (kind == TS_MEMBER_PARAMETER)
        fault_see(ctx, ts_grad(t));
    return TS_OK;
}

static ts_status see_none(void *ctx, const char *name, ts_tensor *t, ts_member_kind kind)
{
    (void)ctx, (void)name, (void)t, (void)kind;
    return TS_OK;
}

static ts_status loss_of(ts_module *m, ts_tensor *x)
{
    TS_SCOPE;
    ts_module_zero_grad(m);
    ts_manual_seed(6);
    ts_tensor *y = ts_forward(m, x);
    ts_tensor *loss = ts_sum(ts_mul(y, y));
    TS_TRY(loss);
    return ts_requires_grad(loss) ? ts_backward(loss) : TS_OK;
}

static void see_module(fault_try *f, ts_module *m, ts_tensor *x)
{
    if (!m)
        return;
    NEW((ts_manual_seed(6), ts_forward(m, x)));
    FAULTY(f, loss_of(m, x));
    ck_assert_int_eq(ts_module_each(m, see_one, f), TS_OK);
}

CALLS(modules)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(2, 4), TS_F32), *rows = ts_zeros(TS_SIZES(2, 4), TS_I64);
    ts_tensor *sequence = ts_ones(TS_SIZES(1, 3, 4), TS_F32);
    ts_mlp_opts mlp = {.size = sizeof mlp, .dropout = 0.5};
    ts_multihead_opts heads = {.size = sizeof heads, .causal = true, .dropout = 0.5};
    WATCH(x, rows, sequence);
    MODULE(x, ts_linear_new(4, 3, true));
    MODULE(sequence, ts_conv_new(3, 2, TS_SIZES(2), true, NULL));
    MODULE(sequence, ts_conv_transpose_new(3, 2, TS_SIZES(2), true, NULL));
    ts_pool_opts pool = {.size = sizeof pool, .kernel = {2}};
    ts_interpolate_opts resize = {.size = sizeof resize, .sizes = {5}};
    ts_batch_norm_opts untracked = {.size = sizeof untracked, .no_statistics = true};
    MODULE(sequence, ts_batch_norm_new(3, &untracked));
    MODULE(sequence, ts_group_norm_new(1, 3, 0, true));
    MODULE(sequence, ts_max_pool_new(1, &pool));
    MODULE(sequence, ts_avg_pool_new(1, &pool));
    MODULE(sequence, ts_adaptive_avg_pool_new(TS_SIZES(2)));
    MODULE(sequence, ts_adaptive_max_pool_new(TS_SIZES(2)));
    MODULE(sequence, ts_upsample_new(&resize));
    MODULE(rows, ts_embedding_new(2, 3));
    MODULE(x, ts_layer_norm_new(4, 0, true));
    MODULE(x, ts_rms_norm_new(4, 0));
    MODULE(x, ts_dropout_new(0.5));
    MODULE(x, ts_activation_new("GELU", ts_gelu));
    MODULE(x, ts_mlp_new(4, 8, &mlp));
    MODULE(sequence, ts_multihead_new(4, 2, &heads));
    ts_module *m = NULL, *layer = NULL;
    FAULTY(f, m = ts_sequential_new());
    /* a failed ts_sequential_add() frees the child, so each attempt constructs it again */
    FAULTY(f, (ts_manual_seed(7), ts_sequential_add(m, ts_linear_new(4, 4, true))));
    ck_assert_int_eq(ts_sequential_add(m, ts_dropout_new(0.5)), TS_OK);
    see_module(f, m, x);
    QUIET(f, ts_module_train(m, true));
    QUIET(f, ts_module_training(m));
    QUIET(f, ts_module_num_children(m));
    QUIET(f, layer = ts_module_child(m, 0));
    QUIET(f, ts_module_child_name(m, 0));
    QUIET(f, ts_module_type_of(m));
    QUIET(f, ts_module_payload(m));
    FAULTY(f, ts_module_set_requires_grad(m, true));
    QUIET(f, ts_module_zero_grad(m));
    FAULTY(f, ts_module_num_parameters(m) < 0 ? ts_error_code() : TS_OK);
    FAULTY(f, ts_module_each(layer, see_none, f));
    FAULTY(f, ts_module_tensor(m, "0.weight"));
    ts_named_tensors list = {0};
    FAULTY(f, ts_module_parameters(m, &list));
    QUIET(f, ts_named_tensors_free(&list));
    FAULTY(f, ts_module_state_dict(m, &list));
    ts_module *other = ts_sequential_new();
    ck_assert_int_eq(ts_sequential_add(other, ts_linear_new(4, 4, true)), TS_OK);
    ck_assert_int_eq(ts_sequential_add(other, ts_dropout_new(0.5)), TS_OK);
    fault_watch(f, ts_module_tensor(other, "0.weight"));
    FAULTY(f, ts_module_load_state_dict(other, list.names, list.tensors, list.n, true, NULL));
    fault_unwatch_one(f, ts_module_tensor(other, "0.weight"));
    ts_named_tensors_free(&list);
    fault_watch(f, ts_module_tensor(other, "0.weight"));
    FAULTY(f, ts_module_to(other, TS_F64));
    fault_unwatch(f);
    ck_assert_int_eq(ts_module_each(other, see_one, f), TS_OK);
    QUIET(f, ts_module_free(other));
    other = ts_conv_new(4, 3, TS_SIZES(3, 3), true, NULL);
    fault_watch(f, ts_module_tensor(other, "weight"));
    FAULTY(f, ts_module_to_channels_last(other));
    fault_unwatch(f);
    ts_module_free(other);
    ts_module_free(m);
}

static const ts_module_type own_type = {sizeof own_type, "Own", 16, NULL, NULL};

CALLS_WITH(forward_hooks, FAULT_FRESH | FAULT_KEEPS | FAULT_SPARSE, .loop = 0)
{
    TS_SCOPE;
    static char text[4096];
    static const ts_forward_hook hook = {.size = sizeof hook};
    ts_tensor *x = ts_ones(TS_SIZES(2, 4), TS_F32);
    ts_module *m = ts_linear_new(4, 3, true);
    FILE *out = fmemopen(text, sizeof text, "w");
    int64_t id = 0;
    ck_assert_ptr_nonnull(out);
    ck_assert_ptr_nonnull(m);
    FAULTY(f, ts_module_add_forward_hook(m, &hook, &id));
    FAULTY(f, ts_forward(m, x) ? TS_OK : ts_error_code());
    FAULTY(f, ts_module_remove_forward_hook(m, id));
    FAULTY(f, (rewind(out), ts_module_summary(m, x, out)));
    fflush(out);
    fault_see_bytes(f, text, strlen(text));
    fclose(out);
    ts_module_free(m);
}

CALLS(own_modules)
{
    TS_SCOPE;
    ts_module *m = NULL;
    ts_tensor *slot = NULL, *weight = ts_ones(TS_SIZES(3), TS_F32);
    WATCH(weight);
    FAULTY(f, m = ts_module_new(&own_type));
    fault_unwatch(f);
    FAULTY(f, ts_module_add_parameter(m, "weight", weight, &slot));
    FAULTY(f, ts_module_add_buffer(m, "mean", ts_zeros(TS_SIZES(3), TS_F32), true, &slot));
    FAULTY(f, ts_module_add(m, "child", ts_module_new(&own_type), NULL));
    ck_assert_int_eq(ts_module_each(m, see_one, f), TS_OK);
    ts_module_free(m);
}

CALLS(initial_values)
{
    TS_SCOPE;
    ts_tensor *w = ts_zeros(TS_SIZES(4, 3), TS_F32);
    fault_watch_written(f, w);
    QUIET(f, ts_init_gain("tanh", 0));
#define INIT(...)                                           \
    do {                                                    \
        FAULTY(f, (ts_manual_seed(5), __VA_ARGS__));        \
        fault_see(f, w);                                    \
        fault_unwatch(f);                                   \
        fault_watch_written(f, w);                          \
    } while (0)
    INIT(ts_init_zeros(w));
    INIT(ts_init_ones(w));
    INIT(ts_init_constant(w, 3));
    INIT(ts_init_uniform(w, 0, 1));
    INIT(ts_init_normal(w, 0, 1));
    INIT(ts_init_trunc_normal(w, 0, 1, -2, 2));
    INIT(ts_init_xavier_uniform(w, 1));
    INIT(ts_init_xavier_normal(w, 1));
    INIT(ts_init_kaiming_uniform(w, TS_FAN_IN, 1));
    INIT(ts_init_kaiming_normal(w, TS_FAN_OUT, 1));
}

/* Sweeps an optimizer and a step with gradients of ones. A failed step changes no parameter and no
 * state. */
static void sweep_optimizer(fault_try *f, ts_optimizer_kind kind)
{
    TS_SCOPE;
    ts_manual_seed(3);
    ts_module *m = ts_linear_new(4, 3, true);
    ts_optimizer *o = NULL, *own = NULL;
    ts_group_opts opts = ts_optimizer_defaults(kind, 0.1);
    opts.momentum = kind == TS_SGD ? 0.9 : 0;
    ck_assert_ptr_nonnull(m);
    FAULTY(f, o = ts_optimizer_for(m, kind, &opts));
    FAULTY(f, own = ts_optimizer_new(kind));
    ts_tensor *w = ts_module_tensor(m, "weight"), *b = ts_module_tensor(m, "bias"), *norm = NULL;
    FAULTY(f, ts_optimizer_add_group(own, (const char *[]){"w"}, &w, 1, &opts));
    QUIET(f, ts_optimizer_num_groups(o));
    QUIET(f, ts_optimizer_group(o, 0));
    int64_t n;
    QUIET(f, ts_optimizer_params(o, &n));
    for (int step = 0; step < 2; step++) {
        ck_assert_int_eq(ts_set_grad(w, ts_ones_like(w)), TS_OK);
        ck_assert_int_eq(ts_set_grad(b, ts_ones_like(b)), TS_OK);
        fault_watch_written(f, ts_grad(w));
        FAULTY(f, ts_clip_grad_norm(ts_optimizer_params(o, &n), n, 1, &norm));
        fault_unwatch(f);
        fault_see(f, norm);
        QUIET(f, ts_optimizer_set_max_norm(o, step * 0.5));
        fault_watch_written(f, w);
        fault_watch_written(f, b);
        FAULTY(f, ts_optimizer_step(o));
        fault_unwatch(f);
        fault_see(f, w);
        fault_see(f, b);
    }
    QUIET(f, ts_optimizer_zero_grad(o));
    ts_named_tensors state = {0};
    FAULTY(f, ts_optimizer_state(o, &state));
    ts_optimizer *other = ts_optimizer_for(m, kind, &opts);
    ck_assert_ptr_nonnull(other);
    FAULTY(f, ts_optimizer_load_state(other, state.names, state.tensors, state.n));
    ts_named_tensors_free(&state);
    ck_assert_int_eq(ts_optimizer_state(other, &state), TS_OK);
    for (int64_t i = 0; i < state.n; i++)
        fault_see(f, state.tensors[i]);
    ts_named_tensors_free(&state);
    ts_named_number numbers[16];
    QUIET(f, ts_optimizer_numbers(o, numbers, 16));
    QUIET(f, ts_optimizer_set_number(o, "groups.0.lr", 0.5));
    ts_schedule cosine = {.kind = TS_SCHEDULE_COSINE, .total_steps = 10};
    QUIET(f, ts_schedule_at(&cosine, 3));
    QUIET(f, ts_schedule_apply(&cosine, o, 3));
    QUIET(f, ts_optimizer_defaults(kind, 0.1));
    ts_optimizer_free(other);
    ts_optimizer_free(own);
    QUIET(f, ts_optimizer_free(o));
    ts_module_free(m);
}

CALLS(sgd) { sweep_optimizer(f, TS_SGD); }
CALLS(adam) { sweep_optimizer(f, TS_ADAM); }
CALLS(adamw) { sweep_optimizer(f, TS_ADAMW); }

/* ----------------------------------------------------------------------------- loader ---- */

static void make_text(void)
{
    unsigned char text[600];
    folder_setup();
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (unsigned char)(i * i % 13);
    write_file(in_folder("text"), text, sizeof text);
}

static void sweep_loader(fault_try *f, bool no_thread)
{
    TS_SCOPE;
    ts_loader_opts data = {.size = sizeof data, .batch = 2, .length = 8, .dtype = TS_U8, .seed = 3,
                           .no_thread = no_thread};
    ts_loader *l = NULL;
    ts_batch batch = {0};
    FAULTY(f, l = ts_loader_open(in_folder("text"), &data));
    QUIET(f, ts_loader_batches(l));
    QUIET(f, ts_loader_tokens(l));
    QUIET(f, ts_loader_get_state(l));
    for (int i = 0; i < 3; i++) {
        FAULTY(f, ts_loader_next(l, &batch));
        fault_see(f, batch.x);
        fault_see(f, batch.y);
        fault_see_number(f, (double)batch.index);
    }
    FAULTY(f, ts_loader_set_state(l, (ts_loader_state){1, 2}));
    FAULTY(f, ts_loader_next(l, &batch));
    fault_see(f, batch.x);
    QUIET(f, ts_loader_close(l));
}

CALLS_WITH(loader, 0, .setup = make_text, .teardown = folder_teardown) { sweep_loader(f, true); }
CALLS_WITH(loader_with_a_thread, 0, .setup = make_text, .teardown = folder_teardown)
{
    sweep_loader(f, false);
}

CALLS_WITH(training, 0, .setup = make_text, .teardown = folder_teardown)
{
    TS_SCOPE;
    ts_loader_opts data = {
        .size = sizeof data, .batch = 2, .length = 8, .dtype = TS_U8, .no_thread = true};
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.1);
    ts_manual_seed(4);
    ts_training run = {.size = sizeof run, .model = ts_linear_new(4, 3, true)};
    run.optimizer = ts_optimizer_for(run.model, TS_ADAMW, &opts);
    run.loader = ts_loader_open(in_folder("text"), &data);
    ck_assert(run.optimizer && run.loader);
    char text[256];
    run.step = 7;
    FAULTY(f, ts_training_save(&run, in_folder("run")));
    ts_tensor *w = ts_module_tensor(run.model, "weight");
    fault_see(f, w);
    ck_assert_int_eq(ts_init_zeros(w), TS_OK);
    run.step = 0;
    fault_watch_written(f, w);
    FAULTY(f, ts_training_resume(&run, in_folder("run"), text, sizeof text));
    fault_unwatch(f);
    fault_see(f, w);
    fault_see_number(f, (double)run.step);
    ts_loader_close(run.loader);
    ts_optimizer_free(run.optimizer);
    ts_module_free(run.model);
    folder_remove(in_folder("run"));
}

CALLS_WITH(runs, 0, IN_FOLDER)
{
    static const char *const columns[] = {"step", "run"};
    const ts_run_opts anew = {.size = sizeof anew, .overwrite = true},
                      again = {.size = sizeof again, .resume = true};
    TS_SCOPE;
    const char *dir = in_folder("run");
    ts_tensor *t = ts_ones(TS_SIZES(4), TS_F32);
    static const char *const names[] = {"t"};
    const ts_checkpoint_section section = {"part", names, &t, 1};
    ts_run *run = NULL;
    ts_csv *log = NULL;
    FAULTY(f, run = ts_run_open(dir, &anew));
    QUIET(f, ts_run_id(run));
    FAULTY(f, ts_run_settings(run, columns, (int64_t[]){1, 2}, 2));
    FAULTY(f, log = ts_run_log(run, columns, 2, 0));
    ck_assert_int_eq(ts_csv_row(log, (double[]){1, (double)ts_run_id(run)}, 2), TS_OK);
    ts_csv_close(log);
    QUIET(f, ts_run_close(run));
    FAULTY(f, run = ts_run_open(dir, &again));
    FAULTY(f, ts_run_settings(run, columns, (int64_t[]){1, 2}, 2));
    FAULTY(f, log = ts_run_log(run, columns, 2, 1));
    ts_csv_close(log);
    ck_assert_int_eq(ts_checkpoint_save(dir, 1, &section, 1, NULL, NULL), TS_OK);
    FAULTY(f, ts_checkpoint_remove_all(dir));
    ts_run_close(run);
    folder_remove(dir);
}

/* ----------------------------------------------------------------------------- scaling ---- */

CALLS(grad_scaler)
{
    TS_SCOPE;
    ts_manual_seed(3);
    ts_module *m = ts_linear_new(4, 3, true);
    ts_group_opts opts = ts_optimizer_defaults(TS_SGD, 0.1);
    ts_optimizer *o = ts_optimizer_for(m, TS_SGD, &opts);
    ts_grad_scaler *s = NULL;
    ck_assert_ptr_nonnull(o);
    ts_tensor *w = ts_module_tensor(m, "weight"), *b = ts_module_tensor(m, "bias"), *found = NULL;
    FAULTY(f, s = ts_grad_scaler_new(NULL));
    NEW(ts_grad_scaler_scale(s, ts_scalar_tensor(TS_SCALAR(2), TS_F32)));
    ck_assert_int_eq(ts_set_grad(w, ts_ones_like(w)), TS_OK);
    ck_assert_int_eq(ts_set_grad(b, ts_ones_like(b)), TS_OK);
    fault_watch_written(f, ts_grad(w));
    FAULTY(f, ts_grad_scaler_unscale(s, o));
    fault_unwatch(f);
    fault_see(f, ts_grad(w));
    fault_watch_written(f, w);
    FAULTY(f, ts_grad_scaler_step(s, o));
    fault_unwatch(f);
    fault_see(f, w);
    FAULTY(f, ts_grad_scaler_update(s));
    QUIET(f, ts_grad_scaler_get_scale(s));
    QUIET(f, ts_grad_scaler_skipped(s));
    ts_named_number numbers[8];
    QUIET(f, ts_grad_scaler_numbers(s, numbers, 8));
    QUIET(f, ts_grad_scaler_set_number(s, numbers[0].name, numbers[0].value));
    ts_tensor *both[] = {ts_ones_like(w), ts_ones_like(b)};
    FAULTY(f, found = ts_unscale_(both, 2, 0.5));
    fault_see(f, found);
    ts_tensor *half = ts_full(NULL, 0, ts_scalar_float(0.5), TS_F32);
    FAULTY(f, found = ts_unscale_by_(both, 2, half));
    fault_see(f, found);
    QUIET(f, ts_grad_scaler_free(s));
    ts_optimizer_free(o);
    ts_module_free(m);
}
