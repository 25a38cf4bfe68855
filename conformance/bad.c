/**
 * @file bad.c
 * Invalid calls of every op. Each call must return a result or an error that names the op; none may
 * crash. A device other than the CPU must return the same status code as the CPU.
 */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"

#include <limits.h>
#include <math.h>
#include <string.h>

static ts_status call(const ts_case *c, const ts_made *m, const ts_value *args)
{
    TS_SCOPE;
    ts_made changed = *m;
    ts_value rets[TS_MAX_RETS];
    for (int i = 0; i < TS_MAX_RETS; i++)
        rets[i] = ts_value_none();
    memcpy(changed.args, args, sizeof changed.args);
    /* a device may report invalid values only at a synchronization; synchronizing before the call
     * keeps earlier errors apart */
    bool asynchronous = !on_cpu(c->device) && !on_meta(c->device);
    if (asynchronous)
        ts_synchronize(c->device);
    ts_status status = sample_call(c, &changed, rets);
    return status == TS_OK && asynchronous ? ts_synchronize(c->device) : status;
}

/** Status codes that the CPU returned for the calls of a sweep, in order. */
typedef struct ts_answers {
    ts_status *codes;    /* freed by compare_odd() */
    int count, capacity, at; /* at: the next code to compare with */
} ts_answers;

/** Checks that `got` and the recorded code equal `want`, and that the message names the op and
 * `argument` and contains `text`. argument and text may be NULL. */
static void expect(const ts_case *c, ts_status got, ts_status want, const char *argument,
                   const char *text)
{
    if (got != want || ts_error_code() != want)
        sample_failed(c, "expected %s, got %s: %s", ts_status_name(want), ts_status_name(got),
                      ts_error_message());
    else if (!strstr(ts_error_message(), c->s->op) || strcmp(ts_error_op(), c->s->op) != 0)
        sample_failed(c, "the message does not name the op: %s", ts_error_message());
    else if (argument && !strstr(ts_error_message(), argument))
        sample_failed(c, "the message does not name '%s': %s", argument, ts_error_message());
    else if (text && !strstr(ts_error_message(), text))
        sample_failed(c, "the message does not say '%s': %s", text, ts_error_message());
    else
        sample_passed(c);
}

/** Passes NULL and TS_NONE for each tensor, one by one. With NULL, an error recorded earlier must
 * stay recorded. */
static void sweep_null(ts_case *c, const ts_made *m)
{
    for (int i = 0; i < m->nargs; i++) {
        const ts_op_arg *param = &c->info->args[i];
        ts_value args[TS_MAX_ARGS], ret[TS_MAX_RETS];
        memcpy(args, m->args, sizeof args);
        for (int k = 0; k < TS_MAX_RETS; k++)
            ret[k] = ts_value_none();
        if (param->kinds >> TS_TAG_TENSOR & 1) {
            args[i] = ts_value_tensor(NULL);
            c->form = "NULL";
            expect(c, call(c, m, args), TS_ERR_NULL, param->name, NULL);
            ts_error_set(TS_ERR_IO, "an earlier failure");
            ts_status status = ts_call_boxed(c->op, args, m->nargs, ret, c->info->nrets);
            if (status != TS_ERR_IO || strcmp(ts_error_message(), "an earlier failure") != 0)
                sample_failed(c, "propagation changed the record to %s", ts_error_message());
            else
                sample_passed(c);
            args[i] = ts_value_tensor(TS_NONE);
            c->form = "TS_NONE";
            if (call(c, m, args) == TS_OK)
                sample_failed(c, "'%s' was accepted", param->name);
            else
                expect(c, ts_error_code(), ts_error_code(), param->name, NULL);
        }
        if (param->kinds >> TS_TAG_TENSORS & 1 && m->args[i].count) {
            ts_tensor *list[8];
            memcpy(list, m->args[i].list, m->args[i].count * sizeof *list);
            list[m->args[i].count - 1] = NULL;
            args[i] = ts_value_tensors(list, m->args[i].count);
            c->form = "NULL in a list";
            expect(c, call(c, m, args), TS_ERR_NULL, param->name, NULL);
            list[m->args[i].count - 1] = TS_NONE;
            c->form = "TS_NONE in a list";
            if (call(c, m, args) == TS_OK)
                sample_failed(c, "'%s' was accepted", param->name);
            else
                sample_passed(c);
            args[i] = ts_value_tensors(NULL, 0);
            c->form = "an empty list";
            call(c, m, args); /* the call must return; nothing is compared */
        }
    }
}

/** Makes calls with too few arguments, with too many results, and with each argument replaced by a
 * value of each kind that it does not allow. */
static void sweep_kinds(ts_case *c, const ts_made *m)
{
    ts_value rets[TS_MAX_RETS + 1];
    for (int i = 0; i <= TS_MAX_RETS; i++)
        rets[i] = ts_value_none();
    int nrets = c->info->nrets;
    ts_error_clear();
    c->form = "an argument too few";
    expect(c, ts_call_boxed(c->op, m->args, m->nargs - 1, rets, nrets), TS_ERR_VALUE, NULL,
           "arguments");
    ts_error_clear();
    c->form = "a result too many";
    expect(c, ts_call_boxed(c->op, m->args, m->nargs, rets, nrets + 1), TS_ERR_VALUE, NULL,
           "results");
    static const int64_t ints[2] = {1, 1};
    /* a value of each kind, at the index of its tag; TS_TAG_TENSOR is skipped */
    const ts_value kinds[] = {ts_value_none(), ts_value_bool(true), ts_value_int(1),
                              ts_value_float(1), ts_value_none(),
                              ts_value_tensors(NULL, 0), ts_value_ints(ints, 2),
                              ts_value_dtype(TS_F32),
                              ts_value_device(TS_DEVICE_CPU), ts_value_string("x")};
    c->form = "an argument of another kind";
    for (int i = 0; i < m->nargs; i++)
        for (int kind = 0; kind < TS_COUNTOF(kinds); kind++) {
            const ts_op_arg *param = &c->info->args[i];
            if (kind == TS_TAG_TENSOR || param->kinds >> kind & 1 ||
                (kind == TS_TAG_NONE && param->optional))
                continue;
            ts_value args[TS_MAX_ARGS];
            memcpy(args, m->args, sizeof args);
            args[i] = kinds[kind];
            expect(c, call(c, m, args), TS_ERR_VALUE, param->name, NULL);
        }
}

static void append_code(ts_answers *a, ts_status status)
{
    if (a->count == a->capacity) {
        a->capacity = 2 * a->capacity + 64;
        a->codes = realloc(a->codes, (size_t)a->capacity * sizeof *a->codes);
    }
    a->codes[a->count++] = status;
}

/**
 * True if a status other than the CPU's is not a failure: META may accept calls whose error depends
 * on values or on a missing kernel, and out of memory depends on the device.
 */
static bool may_differ(const ts_case *c, ts_status want, ts_status got)
{
    bool unseen =
        want == TS_ERR_INDEX || want == TS_ERR_VALUE || want == TS_ERR_DTYPE || c->s->by_values;
    return (on_meta(c->device) && got == TS_OK && unseen) || want == TS_ERR_MEMORY ||
           got == TS_ERR_MEMORY;
}

/**
 * Makes an unusual call. Without answers, an error must name the op, and a successful call is not
 * counted. With answers, the CPU's status is appended to them, and another device must return the
 * same status.
 */
static void check_bad_call(const ts_case *c, const ts_made *m, const ts_value *args,
                           ts_answers *answers)
{
    ts_status status = call(c, m, args);
    if (answers && on_cpu(c->device)) {
        append_code(answers, status);
        return;
    }
    if (answers) {
        ts_status want = answers->codes[answers->at++];
        if (status == want)
            sample_passed(c);
        else if (may_differ(c, want, status))
            return;
        else if (sample_is_refusal(c, status))
            sample_refused(c);
        else
            sample_failed(c, "the CPU says %s, here %s: %s", ts_status_name(want),
                          ts_status_name(status),
                          status == TS_OK ? "no error" : ts_error_message());
        return;
    }
    /* an inner op may record these errors under its own name, so the name is not compared */
    bool elsewhere = status == TS_ERR_MEMORY || status == TS_ERR_AUTOGRAD || c->info->composite;
    if (status != TS_OK && !elsewhere)
        expect(c, status, status, NULL, NULL);
}

/**
 * Calls the op with each tensor in every dtype and in unusual shapes, and with extreme numbers.
 * @param answers  NULL: checks the library's guarantees only; otherwise filled on the CPU and
 *                 compared on other devices
 */
static void sweep_odd(ts_case *c, const ts_made *m, ts_answers *answers)
{
    static const struct {
        int ndim;
        int64_t sizes[TS_MAX_DIMS];
    } shapes[] = {{0, {0}}, {1, {0}}, {1, {1}}, {1, {5}}, {2, {0, 3}}, {2, {3, 0}}, {2, {7, 2}},
                  {3, {2, 1, 3}},
                  {4, {1, 2, 3, 4}}, {8, {1, 1, 2, 1, 1, 1, 2, 1}}};
    static const int64_t numbers[] = {0, -1, 1, 5, 100, -100, (int64_t)1 << 45, INT64_MAX,
                                      INT64_MIN};
    static const double reals[] = {0, -0.0, -1, 0.5, 1, 2, 1e300, -1e300, INFINITY, -INFINITY, NAN};
    for (int i = 0; i < m->nargs; i++) {
        ts_value args[TS_MAX_ARGS];
        memcpy(args, m->args, sizeof args);
        for (int k = 0; args[i].tag == TS_TAG_TENSOR && k < TS_DTYPE_COUNT + TS_COUNTOF(shapes);
             k++) {
            TS_SCOPE;
            const ts_tensor *t = m->args[i].t;
            int s = k - TS_DTYPE_COUNT;
            const int64_t *sizes = s < 0 ? ts_sizes(t) : shapes[s].sizes;
            int ndim = s < 0 ? ts_ndim(t) : shapes[s].ndim;
            double *values = calloc((size_t)ref_numel(sizes, ndim) + 1, sizeof *values);
            ts_tensor *other = tensor_make(values, s < 0 ? (ts_dtype)k : ts_dtype_of(t), sizes,
                                           ndim, LAYOUT_CONTIGUOUS, c->device, NULL);
            free(values);
            c->form = s < 0 ? "another dtype" : "another shape";
            if (!other) { /* a dtype that the device lacks */
                if (answers)
                    answers->at++;
                continue;
            }
            args[i] = ts_value_tensor(other);
            check_bad_call(c, m, args, answers);
        }
        args[i] = m->args[i];
        const ts_op_arg *param = &c->info->args[i];
        c->form = "an extreme number";
        for (int k = 0; param->kinds >> TS_TAG_INT & 1 && k < TS_COUNTOF(numbers); k++) {
            args[i] = ts_value_int(numbers[k]);
            check_bad_call(c, m, args, answers);
        }
        for (int k = 0; param->kinds >> TS_TAG_FLOAT & 1 && k < TS_COUNTOF(reals); k++) {
            args[i] = ts_value_float(reals[k]);
            check_bad_call(c, m, args, answers);
        }
        for (int k = 0; args[i].tag == TS_TAG_INTS && k < TS_COUNTOF(numbers); k++) {
            int64_t ints[12];
            for (int j = 0; j < TS_COUNTOF(ints); j++)
                ints[j] = numbers[(k + j) % TS_COUNTOF(numbers)];
            for (int n = 0; n <= TS_COUNTOF(ints); n += n < 4 ? 1 : 4) {
                args[i] = ts_value_ints(ints, n);
                check_bad_call(c, m, args, answers);
            }
            args[i] = m->args[i];
        }
        c->form = "a wrong dtype number";
        for (int k = -1; args[i].tag == TS_TAG_DTYPE && k < 300; k += 50) {
            args[i] = ts_value_dtype(TS_F32);
            args[i].i = k < 0 || k >= TS_DTYPE_COUNT ? k : TS_DTYPE_COUNT;
            if (answers) {
                check_bad_call(c, m, args, answers);
                args[i].tag = TS_TAG_DTYPE;
                continue;
            }
            if (call(c, m, args) != TS_OK)
                expect(c, ts_error_code(), ts_error_code(), param->name, NULL);
            else if (k != TS_DTYPE_NONE)
                sample_failed(c, "dtype number %d was accepted", k);
            args[i].tag = TS_TAG_DTYPE;
        }
    }
}

/** Makes the calls in the sample's list `bad` and checks their errors. */
static void check_listed(ts_case *c, const ts_made *m)
{
    c->form = "a bad call";
    for (int k = 0; k < TS_COUNTOF(c->s->bad); k++) {
        const ts_bad_call *bad = &c->s->bad[k];
        if (bad->code == TS_OK)
            continue;
        TS_SCOPE;
        ts_sample changed = *c->s;
        changed.args[bad->arg] = bad->value;
        ts_case other = *c;
        other.s = &changed;
        ts_made o;
        if (!made_build(&o, &other, NULL))
            continue;
        ts_status status = call(c, m, o.args);
        if (status != bad->code && sample_is_refusal(c, status))
            sample_refused(c);
        else if (status == bad->code && !on_cpu(c->device) && c->info->composite)
            sample_passed(c); /* one of its inner ops failed */
        else if (status == bad->code || !may_differ(c, bad->code, status))
            expect(c, status, bad->code, NULL, bad->text);
        made_free(&o);
    }
}

/** Runs sweep_odd() on the CPU, then on the device, and compares the status codes. */
static void compare_odd(ts_case *c, const ts_made *m)
{
    TS_SCOPE;
    ts_answers answers = {0};
    ts_case model = *c;
    model.device = TS_DEVICE_CPU;
    ts_made host;
    if (!made_build(&host, &model, NULL))
        return;
    sweep_odd(&model, &host, &answers);
    made_free(&host);
    sweep_odd(c, m, &answers);
    free(answers.codes);
}

void ts_samples_bad_input(const ts_sample_family *family)
{
    ts_set_num_threads(1);
    for (int k = 0; k < family->count; k++) {
        TS_SCOPE;
        const ts_sample *s = &family->samples[k];
        ts_case c;
        if (!sample_case(s, &c))
            continue;
        uint16_t dtypes = sample_dtypes(s);
        if (!dtypes)
            continue;
        c.dtype = dtypes >> TS_F32 & 1 ? TS_F32 : (ts_dtype)__builtin_ctz(dtypes);
        c.sweep = 3;
        ts_made m;
        if (!made_build(&m, &c, NULL))
            continue;
        check_listed(&c, &m);
        bool first = k == 0 || strcmp(family->samples[k - 1].op, s->op) != 0;
        if (first && !on_cpu(c.device)) {
            compare_odd(&c, &m);
        } else if (first) {
            sweep_null(&c, &m);
            sweep_kinds(&c, &m);
            sweep_odd(&c, &m, NULL);
        }
        made_free(&m);
    }
}
