/** @file values.c  Runs samples over the matrix and compares values, forms, devices and threads. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* -------------------------------------------------------------------------- complaints ---- */

ts_sample_run sample_run;

const char *layout_name(ts_layout layout)
{
    static const char *const names[] = {"contiguous", "transposed", "expanded", "offset", "strided", "mixed"};
    return names[layout];
}

void sample_passed(const ts_case *c) { sample_run.passed(sample_run.ctx, c); }

/** Appends to a text that is cut to its size. */
static void add(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
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
    case TS_TAG_INTS: add(text, size, "ints %s", ts_format_sizes(buffer, sizeof buffer, sizes, a->ndim)); break;
    case TS_TAG_INT: add(text, size, "%lld", (long long)sample_size(c, a->i)); break;
    case TS_TAG_FLOAT: add(text, size, "%g", a->d); break;
    case TS_TAG_BOOL: add(text, size, a->i ? "true" : "false"); break;
    case TS_TAG_STRING: add(text, size, "'%s'", a->str); break;
    case TS_TAG_DTYPE: add(text, size, "%s", ts_dtype_name(a->dtype ? (ts_dtype)(a->dtype - 1) : c->dtype)); break;
    case TS_TAG_DEVICE: add(text, size, "%s", ts_device_name(c->device)); break;
    default: add(text, size, "none");
    }
}

void sample_text(char *text, size_t size, const ts_case *c, const char *what)
{
    text[0] = 0;
    add(text, size, "%s '%s' %s %s", c->s->op, c->s->name, ts_dtype_name(c->dtype), layout_name(c->layout));
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
    return !on_cpu(sample_run.device) && c->s && (status == TS_ERR_UNSUPPORTED || status == TS_ERR_DTYPE);
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

const char *meta_text(const ts_tensor *t)
{
    static char ring[4][256];
    static unsigned next;
    char *out = ring[next++ & 3], sizes[192];
    if (!t)
        return "nothing";
    snprintf(out, sizeof ring[0], "%s %s", ts_format_sizes(sizes, sizeof sizes, ts_sizes(t), ts_ndim(t)),
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
            /* an argument's own handle as a result would get a second place in a scope, and a second history */
            if (is_argument(m, rets[i].t))
                return ts_error_set(TS_ERR_INTERNAL, "%s: result %d is a handle that the caller holds already", c->s->op, i);
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

/** Results of a call: rets, then arguments that were written. Returns how many. */
static int results(const ts_made *m, const ts_value *rets, int nrets, ts_tensor **out)
{
    int n = 0;
    for (int i = 0; i < nrets; i++)
        out[n++] = rets[i].tag == TS_TAG_TENSOR ? rets[i].t : NULL;
    for (int i = 0; i < m->ntensors && n < TS_MAX_ARGS; i++)
        if (m->tensors[i].written)
            out[n++] = m->tensors[i].t;
    return n;
}

/* ---------------------------------------------------------------------------- judgment ---- */

/** A result that is not what it should be, or that cannot be read: then the record says why. */
static void sample_differs(const ts_case *c, int i, const char *how)
{
    if (sample_is_refusal(c, ts_error_code()))
        sample_refused(c);
    else if (ts_error_code() != TS_OK)
        sample_failed(c, "result %d cannot be read: %s", i, ts_error_message());
    else
        sample_failed(c, "result %d %s", i, how);
}

/** How many times the allowed error g is off; infinite values are never near others. */
static double excess(double g, double want, double allowed)
{
    double off = fabs(g - want);
    return isinf(g) || !(off <= DBL_MAX) ? INFINITY : off <= allowed ? 0 : allowed > 0 ? off / allowed : INFINITY;
}

/** The least size that errors are measured by: where a rounding grows no smaller, or a large case's largest. */
static double least_size(const ts_case *c, const ts_ref_arg *want, ts_dtype dtype)
{
    double least = dtype == TS_BF16 ? 0x1p-126 : dtype == TS_F16 ? 0x1p-14 : 0;
    for (int64_t e = 0; c->large && e < want->numel; e++)
        if (isfinite(want->x[e]))
            least = fmax(least, fabs(want->x[e]));
    return least;
}

/** Index of a row-major element: "(2, 0)". */
static const char *place_text(char *text, size_t size, const ts_ref_arg *a, int64_t element)
{
    int64_t index[TS_MAX_DIMS];
    for (int d = a->ndim - 1; d >= 0; d--) {
        index[d] = element % a->sizes[d];
        element /= a->sizes[d];
    }
    return ts_format_sizes(text, size, index, a->ndim);
}

/** Compares one result with the reference. */
static bool judge(const ts_case *c, const ts_ref *r, int i, const ts_tensor *y)
{
    const ts_sample *s = c->s;
    const ts_ref_arg *want = &r->ret[i];
    if (!y && want->tag == TS_TAG_NONE) /* as the last results of a split */
        return true;
    if (!y || want->tag != TS_TAG_TENSOR) {
        sample_failed(c, "result %d is %s", i, y ? "unknown to the reference" : "missing");
        return false;
    }
    ts_dtype dtype = i < c->info->nrets ? sample_out(c, i) : ts_dtype_of(y);
    bool fits = ts_ndim(y) == want->ndim && ts_dtype_of(y) == dtype;
    for (int d = 0; fits && d < want->ndim; d++)
        fits = ts_sizes(y)[d] == want->sizes[d];
    if (!fits) {
        char sizes[192];
        sample_failed(c, "result %d is %s, expected %s %s", i, meta_text(y),
                      ts_format_sizes(sizes, sizeof sizes, want->sizes, want->ndim), ts_dtype_name(dtype));
        return false;
    }
    if (s->undefined)
        return true;
    double depth = s->depth == SWEEP ? (double)c->sweep : s->depth ? (double)s->depth : 1;
    double factor = s->device_c && !on_cpu(c->device) ? s->device_c : s->c;
    double unit = factor * dtype_eps(dtype) * sqrt(depth) * (c->large ? LARGE_FACTOR : 1);
    double least = least_size(c, want, dtype);
    double *got = tensor_values(y);
    if (!got) {
        sample_differs(c, i, "");
        return false;
    }
    int64_t wrong = 0, worst = 0;
    double most = 0;
    for (int64_t e = 0; e < want->numel; e++) {
        double w = round_to(want->x[e], dtype), g = got[e], off = 0;
        if (isnan(w) || isnan(g))
            off = isnan(w) && isnan(g) ? 0 : INFINITY;
        else if (w == g)
            off = factor != 0 || !ts_dtype_is_float(dtype) || signbit(w) == signbit(g) ? 0 : INFINITY;
        else
            off = excess(g, want->x[e], unit * fmax(fabs(w), fmax(least, r->scale[i] ? r->scale[i][e] : s->scale)));
        wrong += off > 1;
        if (off > most) {
            most = off;
            worst = e;
        }
    }
    if (wrong) {
        char at[192];
        double w = want->x[worst];
        sample_failed(c, "result %d: %lld of %lld elements are wrong, worst at %s: got %.17g, expected %.17g, allowed %.3g off",
                      i, (long long)wrong, (long long)want->numel, place_text(at, sizeof at, want, worst), got[worst], w,
                      unit * fmax(fabs(w), fmax(least, r->scale[i] ? r->scale[i][worst] : s->scale)));
    }
    free(got);
    return !wrong;
}

static bool judge_all(const ts_case *c, const ts_made *m, ts_tensor **out, int n)
{
    ts_ref r;
    bool good = true;
    ref_open(&r, c, m);
    if (c->s->check) {
        for (int i = 0; i < n; i++) {
            double *y = out[i] ? ref_ret(&r, i, ts_sizes(out[i]), ts_ndim(out[i])) : NULL;
            double *x = out[i] ? tensor_values(out[i]) : NULL;
            if (!y)
                continue;
            if (!x) {
                sample_differs(c, i, "");
                ref_close(&r);
                return false;
            }
            memcpy(y, x, (size_t)r.ret[i].numel * sizeof *y);
            r.ret[i].dtype = ts_dtype_of(out[i]);
            free(x);
        }
        good = c->s->check(&r);
        if (!good)
            sample_failed(c, "the check of the sample says no");
    } else {
        c->s->ref(&r);
        for (int i = 0; good && i < n; i++)
            good = judge(c, &r, i, out[i]);
    }
    ref_close(&r);
    return good;
}

/* ------------------------------------------------------------------------------- forms ---- */

/** Same results as before in destinations of another layout. Composites may refuse, but not ignore. */
static void form_out(ts_case c, ts_tensor *const *fresh, ts_layout layout)
{
    TS_SCOPE;
    int nrets = c.info->nrets;
    ts_made m;
    if (!made_build(&m, &c, NULL))
        return;
    ts_value rets[TS_MAX_RETS];
    ts_tensor *base[TS_MAX_RETS];
    uint32_t version[TS_MAX_RETS];
    c.form = layout == LAYOUT_TRANSPOSED ? "out= transposed" : layout == LAYOUT_STRIDED ? "out= strided" : "out= offset";
    for (int i = 0; i < nrets; i++) {
        rets[i] = ts_value_none();
        if (!fresh[i])
            continue;
        ts_tensor *place = tensor_make(NULL, ts_dtype_of(fresh[i]), ts_sizes(fresh[i]), ts_ndim(fresh[i]), layout, c.device,
                                       &base[i]);
        if (!place) {
            sample_refused(&c);
            made_free(&m);
            return;
        }
        rets[i] = ts_value_tensor(place);
        version[i] = ts_version(place);
    }
    ts_tensor *given = rets[0].t;
    ts_status status = sample_call(&c, &m, rets);
    const char *wrong = made_intact(&m);
    bool refused = status != TS_OK && c.info->kind != TS_FILL;
    bool good = false;
    if (refused)
        good = strstr(ts_error_message(), c.s->op) != NULL;
    if (status != TS_OK && !good)
        sample_refused(&c);
    else if (!refused && wrong)
        sample_failed(&c, "%s", wrong);
    else if (!refused && rets[0].t != given)
        sample_failed(&c, "the given destination was replaced");
    else
        good = true;
    for (int i = 0; good && !refused && i < nrets; i++) {
        if (!fresh[i])
            continue;
        good = false;
        if (!c.s->undefined && !tensor_equal(rets[i].t, fresh[i]))
            sample_differs(&c, i, "is not what the new form gives");
        else if (tensor_spilled(rets[i].t, base[i]))
            sample_failed(&c, "elements beside result %d changed", i);
        else if (ts_version(rets[i].t) == version[i])
            sample_failed(&c, "the version of result %d did not change", i);
        else
            good = true;
    }
    if (good)
        sample_passed(&c);
    made_free(&m);
}

/** Result 0 is argument 0. An expanded self must be refused. */
static void form_in_place(ts_case c, ts_tensor *const *fresh)
{
    TS_SCOPE;
    c.form = "in place";
    ts_made m;
    if (!made_build(&m, &c, NULL))
        return;
    ts_made_tensor *self = &m.tensors[0];
    ts_value rets[TS_MAX_RETS] = {ts_value_tensor(self->t)};
    bool overlaps = false;
    for (int d = 0; d < ts_ndim(self->t); d++)
        overlaps |= ts_strides(self->t)[d] == 0 && ts_sizes(self->t)[d] > 1 && !ts_is_contiguous(self->t);
    ts_status status = sample_call(&c, &m, rets);
    uint32_t before = self->version;
    if (overlaps) {
        if (status == TS_OK)
            sample_failed(&c, "an expanded destination was accepted");
        else
            sample_passed(&c);
    } else if (status != TS_OK) {
        sample_refused(&c);
    } else {
        self->written = true; /* for what must be intact */
        const char *wrong = made_intact(&m);
        if (rets[0].t != self->t)
            sample_failed(&c, "the given destination was replaced");
        else if (wrong)
            sample_failed(&c, "%s", wrong);
        else if (ts_version(self->t) != before + 1)
            sample_failed(&c, "the version went from %u to %u, expected one step", before, ts_version(self->t));
        else if (!tensor_equal(self->t, fresh[0]))
            sample_differs(&c, 0, "is not what the new form gives");
        else
            sample_passed(&c);
    }
    made_free(&m);
}

static void form_meta(ts_case c, ts_tensor *const *fresh, int n)
{
    TS_SCOPE;
    c.device = TS_DEVICE_META;
    c.form = "on META";
    ts_made m;
    ts_value rets[TS_MAX_RETS] = {ts_value_none()};
    for (int i = 0; i < TS_MAX_RETS; i++)
        rets[i] = ts_value_none();
    if (!made_build(&m, &c, NULL))
        return;
    ts_tensor *out[TS_MAX_ARGS];
    if (sample_call(&c, &m, rets) != TS_OK) {
        sample_refused(&c);
        made_free(&m);
        return;
    }
    bool good = results(&m, rets, c.info->nrets, out) == n;
    for (int i = 0; good && i < n; i++) {
        if (!out[i] && !fresh[i])
            continue;
        good = out[i] && fresh[i] && ts_ndim(out[i]) == ts_ndim(fresh[i]) && ts_dtype_of(out[i]) == ts_dtype_of(fresh[i]) &&
               ts_device_of(out[i]).backend == TS_KEY_META;
        bool steps = good;
        for (int d = 0; good && d < ts_ndim(out[i]); d++) {
            good = ts_sizes(out[i])[d] == ts_sizes(fresh[i])[d];
            steps = steps && (ts_sizes(out[i])[d] < 2 || ts_strides(out[i])[d] == ts_strides(fresh[i])[d]);
        }
        if (!good)
            sample_failed(&c, "result %d is %s, on the CPU it is %s", i, meta_text(out[i]), meta_text(fresh[i]));
        else if (!steps && ts_numel(out[i])) {
            good = false;
            sample_failed(&c, "result %d has other strides than on the CPU", i);
        }
    }
    if (good)
        sample_passed(&c);
    made_free(&m);
}

static void run_forms(ts_case c, ts_tensor *const *out, int n)
{
    int nrets = c.info->nrets;
    if (nrets && c.info->kind != TS_VIEW && (c.layout == LAYOUT_CONTIGUOUS || c.layout == LAYOUT_MIXED)) {
        form_out(c, out, LAYOUT_OFFSET);
        form_out(c, out, LAYOUT_STRIDED);
        if (ts_ndim(out[0]) > 1)
            form_out(c, out, LAYOUT_TRANSPOSED);
    }
    if (c.s->inplace)
        form_in_place(c, out);
    if (!c.s->no_meta && on_cpu(c.device))
        form_meta(c, out, n);
}

/** One point of the matrix with all its forms. */
static void run_case(ts_case c)
{
    TS_SCOPE;
    bool meta = on_meta(c.device);
    if (meta && c.s->no_meta)
        return;
    ts_made m;
    ts_value rets[TS_MAX_RETS];
    for (int i = 0; i < TS_MAX_RETS; i++)
        rets[i] = ts_value_none();
    ts_case model = c; /* what META is held against */
    if (meta)
        model.device = TS_DEVICE_CPU;
    if (!made_build(&m, &model, NULL))
        return;
    if (sample_call(&model, &m, rets) != TS_OK) {
        sample_refused(&c);
        made_free(&m);
        return;
    }
    ts_tensor *out[TS_MAX_ARGS];
    int n = results(&m, rets, c.info->nrets, out);
    const char *wrong = made_intact(&m);
    bool good = meta || judge_all(&c, &m, out, n);
    if (meta)
        form_meta(c, out, n);
    else if (good && wrong)
        sample_failed(&c, "%s", wrong);
    else if (good)
        sample_passed(&c);
    made_free(&m);
    if (good)
        run_forms(c, out, n);
}

/** A large case on another device, held against the reference. */
static void run_large(ts_case c)
{
    TS_SCOPE;
    c.sweep = c.s->many ? c.s->many : 40009;
    c.form = "large";
    c.large = true;
    ts_made m;
    ts_value rets[TS_MAX_RETS];
    for (int i = 0; i < TS_MAX_RETS; i++)
        rets[i] = ts_value_none();
    if (!made_build(&m, &c, NULL))
        return;
    ts_tensor *out[TS_MAX_ARGS];
    if (sample_call(&c, &m, rets) != TS_OK)
        sample_refused(&c);
    else if (judge_all(&c, &m, out, results(&m, rets, c.info->nrets, out)))
        sample_passed(&c);
    made_free(&m);
}

/** A large case on one thread and on two: the same bits. */
static void run_threads(ts_case c)
{
    TS_SCOPE;
    c.sweep = c.s->many ? c.s->many : 40009;
    c.form = "2 threads";
    ts_made m;
    ts_tensor *out[2][TS_MAX_ARGS];
    int n[2] = {-1, -1};
    if (!made_build(&m, &c, NULL))
        return;
    bool written = false;
    for (int i = 0; i < m.ntensors; i++)
        written |= m.tensors[i].written;
    for (int k = 0; k < 2; k++) {
        ts_value rets[TS_MAX_RETS];
        for (int i = 0; i < TS_MAX_RETS; i++)
            rets[i] = ts_value_none();
        ts_set_num_threads(k + 1);
        if (k && written) {
            made_free(&m);
            if (!made_build(&m, &c, NULL))
                break;
        }
        bool ok = sample_call(&c, &m, rets) == TS_OK;
        if (!ok)
            sample_refused(&c);
        n[k] = ok ? results(&m, rets, c.info->nrets, out[k]) : -1;
    }
    made_free(&m);
    ts_set_num_threads(1);
    bool good = n[0] >= 0 && n[0] == n[1];
    for (int i = 0; good && i < n[0] && !c.s->undefined; i++)
        if (out[0][i] && !tensor_equal(out[0][i], out[1][i])) {
            sample_differs(&c, i, "differs from that of one thread");
            good = false;
        }
    if (good)
        sample_passed(&c);
}

void ts_samples_values(const ts_sample_family *family)
{
    static const int64_t sweeps[] = {0, 1, 3, 17, 33, 65, 257};
    ts_set_num_threads(1);
    for (int k = 0; k < family->count; k++) {
        const ts_sample *s = &family->samples[k];
        ts_case c;
        if (!sample_case(s, &c))
            continue;
        uint16_t dtypes = sample_dtypes(s);
        bool sweep = sample_sweeps(s);
        for (int d = 0; d < TS_DTYPE_COUNT; d++) {
            if (!(dtypes >> d & 1))
                continue;
            c.dtype = (ts_dtype)d;
            for (int z = 0; z < (sweep ? TS_COUNTOF(sweeps) : 1); z++) {
                c.sweep = sweeps[z];
                if ((c.sweep == 0 && sweep && s->no_empty) || c.sweep > (s->most ? s->most : 257))
                    continue;
                for (int l = 0; l < (s->no_layouts ? 1 : LAYOUT_COUNT); l++) {
                    c.layout = (ts_layout)l;
                    /* halves run by way of f32: of the layouts, one and all */
                    if (!(DT_HALVES >> d & 1) || l == LAYOUT_CONTIGUOUS || l == LAYOUT_MIXED)
                        run_case(c);
                }
            }
            void (*large)(ts_case c) = on_cpu(c.device) ? run_threads : run_large;
            for (int l = 0; !on_meta(c.device) && l < (s->no_layouts ? 1 : 2); l++) {
                c.layout = l ? LAYOUT_MIXED : LAYOUT_CONTIGUOUS;
                large(c);
            }
        }
    }
}
