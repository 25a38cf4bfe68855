/** @file devices.c  Calls whose tensors are on two devices of one backend are errors, with and
 * without a kernel of the backend for the op. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"
#include "tests/dispatch/offset.h"

static ts_status reached(ts_frame *f)
{
    return ts_error_set(TS_ERR_STATE, "%s: its kernel ran", ts_op_name(f->op));
}

/** Registers a kernel for every op except to_device and copy, also for composites. */
static ts_status install(void *state, ts_key key)
{
    (void)state;
    ts_kernel_opts opts = {.size = sizeof opts, .strided = true};
    for (int op = 0; op < ts_op_count(); op++)
        if (strcmp(ts_op_name(op), "to_device") != 0 && strcmp(ts_op_name(op), "copy") != 0)
            TS_TRY(ts_register_kernel_ex(ts_op_name(op), key, reached, &opts, NULL));
    return TS_OK;
}

static offset_state memory = {.devices = 2};
static const ts_backend backends[] = {{OFFSET_BACKEND("TWO", 0, &memory), .install = install},
                                      {OFFSET_BACKEND("TWO", TS_BACKEND_CPU_FALLBACK, &memory)}};

static ts_device first, second;
static int wrong;

/** Makes the call with one tensor, *place, on the second device and the others on the first. The
 *  error must name argument `arg`. */
static void refused(const ts_case *c, ts_made *m, int arg, ts_tensor **place)
{
    TS_SCOPE;
    char expected[80];
    ts_value rets[TS_MAX_RETS] = {0};
    ts_tensor *was = *place;
    *place = ts_to_device(was, second);
    OK(*place);
    ts_status status = sample_call(c, m, rets);
    snprintf(expected, sizeof expected, "%s: argument '", ts_op_name(c->op));
    bool good = status == TS_ERR_DEVICE &&
                strncmp(ts_error_message(), expected, strlen(expected)) == 0 &&
                strstr(ts_error_message(), "two:0") && strstr(ts_error_message(), "two:1");
    ts_tally_as(TS_COUNT_WRONG_CALLS, good, !good, 0);
    if (!good && ++wrong <= 20)
        printf("%s '%s', argument %d elsewhere: %s %s\n", ts_op_name(c->op), c->s->name, arg,
               ts_status_name(status), ts_error_message());
    *place = was;
}

/** Moves each tensor of a sample's call in turn, if the call has another tensor too. */
static void drive(const ts_sample *s)
{
    TS_SCOPE;
    ts_case c;
    ts_made m;
    ck_assert(sample_case(s, &c));
    c.dtype = (ts_dtype)__builtin_ctz(sample_dtypes(s));
    c.sweep = 3;
    ck_assert(made_build(&m, &c, NULL));
    int tensors = 0;
    for (int i = 0; i < m.nargs; i++) {
        if (m.args[i].tag == TS_TAG_TENSOR)
            tensors++, m.args[i].t = ts_to_device(m.args[i].t, first);
        for (uint32_t k = 0; m.args[i].tag == TS_TAG_TENSORS && k < m.args[i].count; k++)
            tensors++, m.lists[i][k] = ts_to_device(m.lists[i][k], first);
        if (m.args[i].tag == TS_TAG_DEVICE)
            m.args[i].device = first;
    }
    for (int i = 0; i < m.nargs && tensors > 1; i++) {
        if (m.args[i].tag == TS_TAG_TENSOR)
            refused(&c, &m, i, &m.args[i].t);
        for (uint32_t k = 0; m.args[i].tag == TS_TAG_TENSORS && k < m.args[i].count; k++)
            refused(&c, &m, i, &m.lists[i][k]);
    }
    made_free(&m);
}

TS_TEST(each_op_refuses_tensors_of_two_devices_of_one_backend_by_name, .loop = 2)
{
    ts_key key;
    OK(ts_register_backend(&backends[_i], &key));
    first = (ts_device){key, 0};
    second = (ts_device){key, 1};
    for (int k = 0; k < ts_sample_family_count; k++)
        for (int i = 0; i < ts_sample_families[k]->count; i++)
            /* without a kernel noop is a composite that reads no argument */
            if (_i == 0 || strcmp(ts_sample_families[k]->samples[i].op, "noop") != 0)
                drive(&ts_sample_families[k]->samples[i]);
    ck_assert_int_eq(wrong, 0);
}
