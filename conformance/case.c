/** @file case.c  A case of a sample: its text, its call, and its messages. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* -------------------------------------------------------------------------- complaints ---- */

ts_sample_run sample_run;

const char *layout_name(ts_layout layout)
{
    static const char *const names[] = {"contiguous", "transposed", "expanded", "offset", "strided",
                                        "mixed"};
    return names[layout];
}

void sample_passed(const ts_case *c) { sample_run.passed(sample_run.ctx, c); }

/** Appends to a text that is cut to its size. */
static void add(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void add(char *text, size_t size, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

static void add_arg(char *text, size_t size, const ts_case *c, const ts_sample_arg *a)
{
    int64_t sizes[TS_MAX_DIMS];
    char buffer[192];
    for (int d = 0; d < a->ndim; d++)
        sizes[d] = sample_size(c, a->sizes[d]);
    switch (a->tag) {
    case TS_TAG_TENSOR:
        add(text, size, "%s", ts_format_sizes(buffer, sizeof buffer, sizes, a->ndim));
        if (a->dtype)
            add(text, size, " %s", ts_dtype_name((ts_dtype)(a->dtype - 1)));
        break;
    case TS_TAG_TENSORS:
        for (int k = 0; k < a->count; k++) {
            add(text, size, k ? ", " : "[");
            add_arg(text, size, c, &a->list[k]);
        }
        add(text, size, a->count ? "]" : "[]");
        break;
    case TS_TAG_INTS:
        add(text, size, "ints %s", ts_format_sizes(buffer, sizeof buffer, sizes, a->ndim));
        break;
    case TS_TAG_INT: add(text, size, "%lld", (long long)sample_size(c, a->i)); break;
    case TS_TAG_FLOAT: add(text, size, "%g", a->d); break;
    case TS_TAG_BOOL: add(text, size, a->i ? "true" : "false"); break;
    case TS_TAG_STRING: add(text, size, "'%s'", a->str); break;
    case TS_TAG_DTYPE:
        add(text, size, "%s", ts_dtype_name(a->dtype ? (ts_dtype)(a->dtype - 1) : c->dtype));
        break;
    case TS_TAG_DEVICE: add(text, size, "%s", ts_device_name(c->device)); break;
    default: add(text, size, "none");
    }
}

void sample_text(char *text, size_t size, const ts_case *c, const char *what)
{
    text[0] = 0;
    add(text, size, "%s '%s' %s %s", c->s->op, c->s->name, ts_dtype_name(c->dtype),
        layout_name(c->layout));
    for (int i = 0; c->info && i < c->info->nargs; i++) {
        add(text, size, i ? ", " : " (");
        add_arg(text, size, c, &c->s->args[i]);
    }
    add(text, size, c->info && c->info->nargs ? "), %s: %s" : ", %s: %s", c->form, what);
}

void sample_failed(const ts_case *c, const char *format, ...)
{
    char text[2048], what[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    sample_text(text, sizeof text, c, what);
    sample_run.failed(sample_run.ctx, c, text);
}

bool sample_is_refusal(const ts_case *c, ts_status status)
{
    return !on_cpu(sample_run.device) && c->s &&
           (status == TS_ERR_UNSUPPORTED || status == TS_ERR_DTYPE);
}

void sample_refused(const ts_case *c)
{
    if (!sample_is_refusal(c, ts_error_code())) {
        sample_failed(c, "%s: %s", ts_status_name(ts_error_code()), ts_error_message());
        return;
    }
    char text[2048];
    sample_text(text, sizeof text, c, ts_error_message());
    sample_run.unsupported(sample_run.ctx, c, text);
}

void sample_differs(const ts_case *c, int i, const char *how)
{
    if (sample_is_refusal(c, ts_error_code()))
        sample_refused(c);
    else if (ts_error_code() != TS_OK)
        sample_failed(c, "result %d cannot be read: %s", i, ts_error_message());
    else
        sample_failed(c, "result %d %s", i, how);
}

const char *meta_text(const ts_tensor *t)
{
    static char ring[4][256];
    static unsigned next;
    char *out = ring[next++ & 3], sizes[192];
    if (!t)
        return "nothing";
    snprintf(out, sizeof ring[0], "%s %s",
             ts_format_sizes(sizes, sizeof sizes, ts_sizes(t), ts_ndim(t)),
             ts_dtype_name(ts_dtype_of(t)));
    return out;
}

/* ------------------------------------------------------------------------------- calls ---- */

bool sample_case(const ts_sample *s, ts_case *c)
{
    static ts_op_description description;
    description.size = sizeof description;
    *c = (ts_case){.s = s, .op = ts_op_by_name(s->op), .device = sample_run.device, .form = "new"};
    if (ts_op_describe(c->op, &description) != TS_OK) {
        sample_failed(c, "no op has this name");
        return false;
    }
    c->info = &description;
    return true;
}

uint16_t sample_dtypes(const ts_sample *s)
{
    uint16_t dtypes = s->dtypes ? s->dtypes : DT_FLOATS_;
    return sample_run.dtypes ? dtypes & sample_run.dtypes : dtypes;
}

static bool is_argument(const ts_made *m, const ts_tensor *t)
{
    for (int i = 0; i < m->ntensors; i++)
        if (m->tensors[i].t == t || m->tensors[i].base == t)
            return true;
    return false;
}

ts_status sample_call(const ts_case *c, const ts_made *m, ts_value *rets)
{
    int given = 0;
    for (int i = 0; i < c->info->nrets; i++)
        given |= (rets[i].tag == TS_TAG_TENSOR) << i;
    ts_rng_set_state((ts_rng_state){1234, 0});
    ts_error_clear();
    if (sample_run.calls)
        sample_run.calls(sample_run.ctx, c, false);
    ts_status status = ts_call_boxed(c->op, m->args, m->nargs, rets, c->info->nrets);
    if (sample_run.calls)
        sample_run.calls(sample_run.ctx, c, true);
    for (int i = 0; status == TS_OK && i < c->info->nrets; i++)
        if (!(given >> i & 1) && rets[i].tag == TS_TAG_TENSOR) {
            /* if a result were an argument's handle, a second scope would own it, and it would get
             * a second history */
            if (is_argument(m, rets[i].t))
                return ts_error_set(TS_ERR_INTERNAL,
                                    "%s: result %d is a handle that the caller holds already",
                                    c->s->op, i);
            ts_adopt(rets[i].t);
        }
    return status;
}

bool sample_sweeps(const ts_sample *s)
{
    for (int i = 0; i < TS_MAX_ARGS; i++) {
        const ts_sample_arg *a = &s->args[i];
        for (int k = -1; k < a->count; k++) {
            const ts_sample_arg *x = k < 0 ? a : &a->list[k];
            if (x->i == SWEEP)
                return true;
            for (int d = 0; d < x->ndim; d++)
                if (x->sizes[d] == SWEEP)
                    return true;
        }
    }
    return false;
}

ts_dtype sample_out(const ts_case *c, int i)
{
    int rule = i < TS_MAX_RETS ? c->s->out[i] : 0;
    bool is_float = ts_dtype_is_float(c->dtype);
    if (rule == OUT_FLOAT)
        return is_float ? c->dtype : TS_F32;
    if (rule == OUT_INT)
        return is_float ? c->dtype : TS_I64;
    if (rule == OUT_WIDE)
        return c->dtype == TS_F64 ? TS_F64 : TS_F32;
    return rule ? (ts_dtype)(rule - 1) : c->dtype;
}

int sample_results(const ts_made *m, const ts_value *rets, int nrets, ts_tensor **out)
{
    int n = 0;
    for (int i = 0; i < nrets; i++)
        out[n++] = rets[i].tag == TS_TAG_TENSOR ? rets[i].t : NULL;
    for (int i = 0; i < m->ntensors && n < TS_MAX_ARGS; i++)
        if (m->tensors[i].written)
            out[n++] = m->tensors[i].t;
    return n;
}
