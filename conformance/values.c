/** @file values.c  Runs samples in all dtypes, sizes and layouts. Compares results with the
 * references, META's results with the CPU's, and those of two threads with those of one thread. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------------------- judgment ---- */

/** Error of g as a multiple of `allowed`; 0 within it. INFINITY if g or the error is infinite. */
static double excess(double g, double want, double allowed)
{
    double off = fabs(g - want);
    return isinf(g) || !(off <= DBL_MAX) ? INFINITY
           : off <= allowed              ? 0
           : allowed > 0                 ? off / allowed
                                         : INFINITY;
}

/** Lower bound of the magnitude that scales the tolerance: the smallest normal number of bf16 and
 * f16, below which rounding errors do not shrink; in a large case the largest |value| of the
 * result. */
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
    if (!y && want->tag == TS_TAG_NONE) /* for example a result that split did not make */
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
                      ts_format_sizes(sizes, sizeof sizes, want->sizes, want->ndim),
                      ts_dtype_name(dtype));
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
            off =
                factor != 0 || !ts_dtype_is_float(dtype) || signbit(w) == signbit(g) ? 0 : INFINITY;
        else
            off =
                excess(g, want->x[e],
                       unit * fmax(fabs(w), fmax(least, r->scale[i] ? r->scale[i][e] : s->scale)));
        wrong += off > 1;
        if (off > most) {
            most = off;
            worst = e;
        }
    }
    if (wrong) {
        char at[192];
        double w = want->x[worst];
        sample_failed(c,
                      "result %d: %lld of %lld elements are wrong, worst at %s: got %.17g, "
                      "expected %.17g, allowed %.3g off",
                      i, (long long)wrong, (long long)want->numel,
                      place_text(at, sizeof at, want, worst), got[worst], w,
                      unit *
                          fmax(fabs(w), fmax(least, r->scale[i] ? r->scale[i][worst] : s->scale)));
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
            sample_failed(c, "the results fail the sample's own check");
    } else {
        c->s->ref(&r);
        for (int i = 0; good && i < n; i++)
            good = judge(c, &r, i, out[i]);
    }
    ref_close(&r);
    return good;
}

/* -------------------------------------------------------------------------- the matrix ---- */

/** Tests one case (dtype, size, layout): compares its results, then runs its other forms. */
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
    ts_case model = c; /* the CPU's results, for comparison with META */
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
    int n = sample_results(&m, rets, c.info->nrets, out);
    const char *wrong = made_intact(&m);
    bool good = meta || judge_all(&c, &m, out, n);
    if (meta)
        sample_form_meta(c, out, n);
    else if (good && wrong)
        sample_failed(&c, "%s", wrong);
    else if (good && !c.s->undefined)
        sample_passed(&c);
    made_free(&m);
    if (good)
        sample_forms(c, out, n);
}

/** Runs a large case on a device other than the CPU and compares it with the reference. */
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
    else if (judge_all(&c, &m, out, sample_results(&m, rets, c.info->nrets, out)) &&
             !c.s->undefined)
        sample_passed(&c);
    made_free(&m);
}

/** Runs a large case with one thread and with two; the results must have the same bits. */
static void run_threads(ts_case c)
{
    TS_SCOPE;
    c.sweep = c.s->many ? c.s->many : 40009;
    c.form = "2 threads";
    ts_made m;
    ts_tensor *out[2][TS_MAX_ARGS];
    int n[2] = {-1, -1};
    if (c.s->undefined || !made_build(&m, &c, NULL))
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
        n[k] = ok ? sample_results(&m, rets, c.info->nrets, out[k]) : -1;
    }
    made_free(&m);
    ts_set_num_threads(1);
    bool good = n[0] >= 0 && n[0] == n[1];
    for (int i = 0; good && i < n[0]; i++)
        if (out[0][i] && !tensor_equal(out[0][i], out[1][i])) {
            sample_differs(&c, i, "differs from that of one thread");
            good = false;
        }
    if (good)
        sample_passed(&c);
}

static bool chosen(int64_t size, ts_layout layout, bool sweep)
{
    return !sample_run.brief ||
           ((size == 33 || !sweep) && (layout == LAYOUT_CONTIGUOUS || layout == LAYOUT_MIXED));
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
                    /* bf16 and f16 are computed in f32, which runs all layouts: two suffice */
                    bool few = sample_run.few || (DT_HALVES >> d & 1);
                    bool all = !few || l == LAYOUT_CONTIGUOUS || l == LAYOUT_MIXED;
                    if (all && chosen(c.sweep, c.layout, sweep))
                        run_case(c);
                }
            }
            void (*large)(ts_case c) = on_cpu(c.device) ? run_threads : run_large;
            bool small = sample_run.small || on_meta(c.device);
            for (int l = 0; !small && l < (s->no_layouts ? 1 : 2); l++) {
                c.layout = l ? LAYOUT_MIXED : LAYOUT_CONTIGUOUS;
                large(c);
            }
        }
    }
}
