// Calls of the public functions with one wrong argument: a NULL pointer, a list of NULL entries, a
// negative count, a struct with a wrong size field. generate.py generates the calls from the
// headers; this file has the other arguments and the checks.
// SPDX-License-Identifier: MIT
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "include/tessera/tessera.h"
#include "io/files.h"
#include "tests/harness.h"
#include "tests/profile/small.h"

/** Required outcome of a call. If its result cannot express failure, it must not crash. */
typedef enum expectation {
    REFUSED,  /* TS_ERR_NULL, in a message that names the argument */
    RECORDED, /* the same, in the error record if the result is no status and no pointer */
    SIZE,     /* TS_ERR_VALUE, in a message that names the argument */
    FAILED,   /* an error */
    COUNT,    /* an error whose message contains the given number */
    ANYTHING  /* NULL is allowed there */
} expectation;

typedef struct wrong_call {
    void (*run)(void);
    const char *function, *argument, *value;
    expectation expected;
    enum { NOWHERE, IN_FUNCTION, IN_GRADIENT, IN_KERNEL, IN_RULE } place; /* of the call */
} wrong_call;

/* ----------------------------------------------------------------------------- arguments ---- */

static char folder[64], path[96], text[64];
static const char *names[] = {"a", "b"}, *keys[] = {"loader", "epoch"}, *missing_names[2];
static ts_tensor *x, *loss, *pair[2], *places[4], *missing_tensors[2];
static ts_module *module, *child, *slot;
static ts_optimizer *optimizer;
static ts_grad_scaler *scaler;
static ts_loader *loader;
static ts_ema *ema;
static ts_npz *npz;
static ts_csv *csv;
static ts_chart *chart;
static ts_profile *profile;
static ts_prof_machine machine = {.size = sizeof machine};
static ts_profile_shares shares = {.size = sizeof shares};
static ts_progress *progress;
static ts_safetensors *file;
static ts_checkpoint *checkpoint, *found;
static ts_node *node;
static ts_hook *hook;
static ts_graph *graph, *traced_graph;
static ts_compiled *compiled;
static ts_function_call *call;
static ts_registration *handle;
static FILE *stream;
static double numbers[2];
static int64_t count;
static int number;
static ts_batch batch;
static ts_named_tensors list;
static ts_named_number named;
static ts_load_report report;
static ts_scalar scalar = {.kind = TS_SCALAR_INT};
static ts_group_opts group;
static ts_training training;
static ts_run *run_of;
static ts_autocast_region region;
static int64_t two[4] = {2, 3};
static ts_tensor **many[3] = {places, places + 1, places + 2};
static ts_key key __attribute__((unused));
static ts_device device;
static ts_backend backend;
static ts_op_description description = {.size = sizeof description};
static ts_adamw_rule adamw = {.beta1 = 0.9, .beta2 = 0.9};
static ts_sgd_rule sgd;
static ts_vjp_call *rule_call;
static ts_frame *frame;
static ts_value boxed __attribute__((unused)) = {.tag = TS_TAG_INT};
static ts_operand operand __attribute__((unused));
static ts_space space __attribute__((unused));
static ts_window_axis windows[3];
static const ts_check_place place = {"nulls", NULL};

/** A copy of *like (NULL: zeros), `size` bytes, whose first field, the struct's size, is `said`. */
static void *sized(const void *like, size_t size, size_t said)
{
    static size_t room[1024];
    ck_assert_uint_lt(size, sizeof room);
    memset(room, 0, sizeof room);
    if (like)
        memcpy(room, like, size);
    room[0] = said;
    return room;
}

static int64_t no_samples(void *payload) { return (void)payload, 0; }
static ts_status no_sample(void *payload, int64_t index, ts_tensor **sample)
{
    return (void)payload, (void)index, (void)sample, TS_ERR_STATE;
}
static const ts_dataset dataset = {.size = sizeof dataset, .length = no_samples, .get = no_sample};
static bool filter(void *ctx, const char *name, ts_tensor *parameter)
{
    return (void)ctx, (void)name, (void)parameter, false;
}
static ts_tensor *forward_list(ts_module *m, ts_tensor *const *inputs, int n)
{
    return (void)m, (void)n, inputs[0];
}
static const ts_schedule schedule = {.kind = TS_SCHEDULE_CONSTANT};
/* for functions added later; now no function needs it as a valid argument */
static const ts_forward_hook forward_hook
    __attribute__((unused)) = {.size = sizeof(ts_forward_hook)};
static const ts_module_type type
    __attribute__((unused)) = {.size = sizeof(ts_module_type), .name = "Plain"};
static const ts_checkpoint_section section = {"model", names, pair, 2};

static ts_status visit(void *ctx, const char *name, ts_tensor *t, ts_member_kind kind)
{
    (void)ctx, (void)name, (void)t, (void)kind;
    return TS_OK;
}
static ts_tensor *hook_fn(void *payload, ts_tensor *grad)
{
    (void)payload;
    return grad;
}
static ts_status before_fn(void *payload, ts_node *at, ts_tensor **grads, int n)
{
    (void)payload, (void)at, (void)grads, (void)n;
    return TS_OK;
}
static ts_status after_fn(void *payload, ts_node *at, ts_tensor **input_grads, int n,
                          ts_tensor *const *grads, int m)
{
    (void)payload, (void)at, (void)input_grads, (void)n, (void)grads, (void)m;
    return TS_OK;
}
static void report_fn(void *payload, const ts_layer_report *seen) { (void)payload, (void)seen; }

/** A function to be traced or computed again: the sum of its first input. */
static ts_status traced(void *ctx, ts_tensor *const *inputs, int n, ts_tensor **outputs, int m)
{
    (void)ctx, (void)n, (void)m;
    return TS_STATUS_OF(outputs[0] = ts_sum(inputs[0]));
}

/** The forward of a function, in which the running call is made. */
static ts_status forward(ts_function_call *c, void *ctx, ts_tensor *const *inputs, int n,
                         ts_tensor **outputs, int m)
{
    (void)n, (void)m;
    call = c;
    if (ctx)
        ((const wrong_call *)ctx)->run();
    return TS_STATUS_OF(outputs[0] = ts_sum(inputs[0]));
}
static ts_status backward(ts_function_call *c, void *ctx, ts_tensor *const *grads, int m,
                          ts_tensor **input_grads, int n)
{
    (void)c, (void)ctx, (void)grads, (void)m, (void)n;
    return TS_STATUS_OF(input_grads[0] = ts_ones_like(x));
}

/* An operator with a rule, a kernel and a gradient, in which the running call is made. */
static const wrong_call *running;
static void make_in(int place)
{
    if (running && (int)running->place == place)
        running->run();
}
static ts_status shapes(ts_frame *f)
{
    frame = f;
    make_in(IN_RULE);
    return ts_rule_pointwise(f, 1, TS_DTYPE_NONE, false);
}
static ts_status kernel(ts_frame *f)
{
    frame = f;
    make_in(IN_KERNEL);
    return TS_OK;
}
static ts_status rule(ts_vjp_call *c)
{
    rule_call = c;
    make_in(IN_GRADIENT);
    return ts_rule_give(c, 0, ts_rule_grad(c, 0));
}
static void make_operator(void)
{
    static const ts_op_opts opts = {.size = sizeof opts, .rule = shapes};
    if (ts_op_by_name("nulls.around") >= 0)
        return;
    ck_assert_int_eq(ts_register_op_ex("nulls.around(Tensor self) -> Tensor", &opts, NULL), TS_OK);
    ck_assert_int_eq(ts_register_kernel("nulls.around", TS_KEY_CPU, kernel, NULL, NULL), TS_OK);
    ck_assert_int_eq(ts_register_vjp("nulls.around", rule, NULL), TS_OK);
}
/** Saves the call's record, because later code may fail too. */
static void call_operator(const wrong_call *c)
{
    ts_value self = ts_value_tensor(x), y = ts_value_none();
    running = c;
    if (ts_call_boxed(ts_op_by_name("nulls.around"), &self, 1, &y, 1) == TS_OK) {
        ts_adopt(y.t);
        if (c->place == IN_GRADIENT)
            ts_backward_ex(y.t, pair[1], NULL);
    }
    running = NULL;
}
static const ts_function function = {.size = sizeof function, .name = "around", .forward = forward,
                                     .backward = backward};

static ts_module *give(ts_module **m)
{
    ts_module *given = *m;
    *m = NULL;
    return given;
}

/* ------------------------------------------------------------------------------ the folder ---- */

static int remove_one(const char *name, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(name);
}

static void remove_folder(void) { nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static char word[] = "program", *words[] = {word, word, NULL};
static int64_t batch_size = 2;
static ts_knob knobs[] = {{"batch", TS_KNOB_BATCH, &batch_size, .trial = 4},
                          {"words", TS_KNOB_PADDING, &batch_size, .trial = 8}};
static ts_status do_nothing(void *user)
{
    (void)user;
    return TS_OK;
}
static ts_status print_nothing(FILE *out, void *ctx)
{
    (void)out;
    (void)ctx;
    return TS_OK;
}

static int no_fsync(int fd)
{
    (void)fd;
    return 0;
}

#define MADE(expr)                                                                                 \
    ck_assert_msg(TS_STATUS_OF(expr) == TS_OK, "%s: %s", #expr, ts_error_message())

static void make_objects(void)
{
    ts_files.fsync = no_fsync;
    ck_assert_ptr_nonnull(mkdtemp(strcpy(folder, "/tmp/tessera-nulls-XXXXXX")));
    MADE(stream = fopen(in_folder("stream"), "w+"));
    MADE(x = ts_set_requires_grad(ts_ones(TS_SIZES(2, 3), TS_F32), true));
    pair[0] = x;
    MADE(pair[1] = ts_set_requires_grad(ts_ones(TS_SIZES(2, 3), TS_F32), true));
    MADE(loss = ts_sum(ts_mul(pair[0], pair[1])));
    node = ts_grad_node(loss);
    MADE(ts_register_hook(x, hook_fn, NULL, &hook));
    MADE(module = ts_sequential_new());
    MADE(ts_sequential_add(module, ts_linear_new(3, 2, true)));
    MADE(child = ts_linear_new(3, 2, true));
    group = ts_optimizer_defaults(TS_SGD, 0.1);
    MADE(optimizer = ts_optimizer_for(module, TS_SGD, &group));
    MADE(scaler = ts_grad_scaler_new(NULL));
    for (int i = 0; i < 200; i++)
        fputc(i, stream);
    fflush(stream);
    MADE(loader = ts_loader_open(path, TS_OPTS(ts_loader_opts, .batch = 2, .length = 4,
                                               .dtype = TS_U8, .no_thread = true)));
    MADE(ema = ts_ema_new(module, 0.5));
    MADE(ts_npz_save(in_folder("npz"), names, pair, 2));
    MADE(npz = ts_npz_open(path));
    MADE(csv = ts_csv_create(in_folder("log.csv"), names, 2));
    MADE(run_of = ts_run_open(in_folder("run"), NULL));
    MADE(chart = ts_chart_new(NULL));
    FILE *json = fopen(in_folder("profile.json"), "w");
    MADE(json && fputs(small_profile, json) >= 0 && fclose(json) == 0 ? path : NULL);
    MADE(profile = ts_profile_read(path));
    MADE(progress = ts_progress_new(10, TS_OPTS(ts_progress_opts, .mode = TS_PROGRESS_QUIET)));
    MADE(ts_safetensors_save(in_folder("file"), names, pair, 2, NULL, NULL, 0));
    MADE(file = ts_safetensors_open(path, NULL));
    MADE(ts_checkpoint_save(folder, 1, &section, 1, "{\"loader\":{\"epoch\":3}}", NULL));
    MADE(ts_checkpoint_find(folder, &checkpoint));
    MADE(ts_trace(traced, NULL, pair, 2, places, 1, &graph));
    MADE(compiled = ts_compile(traced, NULL, NULL));
    training = (ts_training){.size = sizeof training, .model = module};
    in_folder("new");
}

static void free_objects(void)
{
    ts_graph_free(graph);
    ts_compiled_free(compiled);
    ts_graph_free(traced_graph);
    ts_checkpoint_close(checkpoint);
    ts_checkpoint_close(found);
    ts_safetensors_close(file);
    ts_run_close(run_of);
    ts_progress_free(progress);
    ts_chart_free(chart);
    ts_profile_free(profile);
    ts_csv_close(csv);
    ts_loader_close(loader);
    ts_npz_close(npz);
    ts_ema_free(ema);
    ts_grad_scaler_free(scaler);
    ts_optimizer_free(optimizer);
    ts_module_free(child);
    ts_module_free(module);
    fclose(stream);
}

/* ------------------------------------------------------------------------------- the calls ---- */

static ts_status status; /* status of the call */
static bool says;        /* the call's result can express failure */

static void got(ts_status s) { status = s, says = true; }
/** NULL may be a valid result, so the error record decides whether the call failed. */
static void got_pointer(const void *p)
{
    got(p ? TS_OK : ts_error_code());
}
static void got_nothing(void) { says = false; }

#include "calls.inc"

/** True if the call had the expected outcome. */
static bool holds(const wrong_call *c)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "'%s", c->argument);
    bool named_it = strstr(ts_error_message(), quoted) != NULL;
    bool complete = strstr(ts_error_message(), "expected ") && strstr(ts_error_message(), ", got ");
    /* the message may name an operator that the function calls, with argument 'self' or 'out' */
    complete &= strncmp(ts_error_message() + strcspn(ts_error_message(), ": "), ": ", 2) == 0;
    named_it |= strstr(ts_error_message(), "'self'") || strstr(ts_error_message(), "'out'");
    if (strncmp(c->function, "ts_r", 4) == 0) /* reversed operands: ts_rsub_scalar() and others */
        named_it |= strstr(ts_error_message(), "'other'") ||
                    strstr(ts_error_message(), "'exponent'");
    if (c->expected == RECORDED)
        got(ts_error_code());
    bool vague = strstr(ts_error_message(), "expected a pointer") ||
                 strstr(ts_error_message(), "expected an object");
    switch (c->expected) {
    case COUNT:
        return !says || (status != TS_OK && complete && strstr(ts_error_message(), ", got -"));
    case ANYTHING:
        return !(ts_error_code() == TS_ERR_NULL && named_it);
    case FAILED:
        return !says || status != TS_OK;
    case SIZE:
        return status == TS_ERR_VALUE && named_it && complete;
    default:
        return !says || (status == TS_ERR_NULL && named_it && complete && !vague);
    }
}

/* A process makes TOGETHER calls, each on new objects: under a sanitizer, a process per call would
 * take longer than the calls. */
enum { CALLS = sizeof calls / sizeof *calls, TOGETHER = 16 };

static void make_call(const wrong_call *c)
{
    TS_SCOPE;
    make_objects();
    ts_error_clear();
    if (c->place > IN_FUNCTION) {
        call_operator(c);
    } else if (c->place == IN_FUNCTION) {
        ts_tensor *y = NULL;
        ts_function_apply(&function, (void *)c, pair, 2, &y, 1);
    } else {
        c->run();
    }
    bool held = holds(c);
    ts_tally_as(TS_COUNT_WRONG_CALLS, held, !held, 0);
    if (!held)
        printf("%s with %s = %s: %s: %s\n", c->function, c->argument, c->value,
               ts_status_name(status), ts_error_message());
    free_objects();
    remove_folder();
}

TS_TEST(wrong_pointers_and_counts, .loop = (CALLS + TOGETHER - 1) / TOGETHER)
{
    make_operator();
    for (int i = _i * TOGETHER; i < CALLS && i < (_i + 1) * TOGETHER; i++)
        make_call(&calls[i]);
}
