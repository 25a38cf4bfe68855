/**
 * @file autocast_rows.c  Each row of ops.def runs in a region as its autocast column says.
 *
 * A sample's call in a region must equal the call outside of a region with arguments that the test
 * casts: the same number of casts, and bit-identical results or the same error.
 */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"
#include "ops/kernel.h"
#include "tests/harness.h"

#include <string.h>

enum { NONE_ROW, LOWER_ROW, F32_ROW, WIDEST_ROW, KEEP_ROW };
static const struct {
    const char *op;
    int policy;
} rows[] = {
#define TS_OP(op, schema, forms, kind, infer, composite, gradient, reserve, autocast, ...)         \
    {#op, autocast##_ROW},
#include "ops/ops.def"
#undef TS_OP
};

static bool has_suffix(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

TS_TEST(each_composite_has_a_row_so_that_its_parts_are_not_cast)
{
    for (int op = 0; op < TS_OP_COUNT; op++) {
        bool rule = has_suffix(rows[op].op, "_backward"); /* runs without AUTOCAST */
        if (ts_ops[op].composite && op != TS_OP_noop && !rule)
            ck_assert_msg(rows[op].policy != NONE_ROW,
                          "%s is written with other ops: its row names a policy", rows[op].op);
    }
}

/* ----------------------------------------------------------------- rows against samples ---- */

/** Dtypes of a call's tensors: all f32, all the region's dtype, or those with odd or even index. */
typedef enum mix { ALL_F32, ALL_LOWER, ODD_LOWER, EVEN_LOWER, MIXES } mix;
static const char *const mix_names[] = {"in a region, of f32", "in a region, of its dtype",
                                        "in a region, odd tensors of its dtype",
                                        "in a region, even tensors of its dtype"};

static int casts_of[TS_OP_COUNT]; /* number of casts by the layer, per op */

static void passed(void *ctx, const ts_case *c)
{
    (void)ctx, (void)c;
    ts_tally(1, 0, 0);
}
static void failed(void *ctx, const ts_case *c, const char *text)
{
    (void)ctx, (void)c;
    ts_tally(0, 1, 0);
    printf("%s\n", text);
}

/** Replaces tensor i of a call by its copy in another dtype. */
static void cast(ts_made *m, int i, ts_dtype dtype)
{
    ts_made_tensor *x = &m->tensors[i];
    ts_tensor *had = x->t;
    ts_value *v = &m->args[x->arg];
    x->t = ts_to(had, dtype);
    ck_assert_ptr_nonnull(x->t);
    if (v->tag == TS_TAG_TENSOR)
        v->t = x->t;
    for (int k = 0; v->tag == TS_TAG_TENSORS && k < (int)v->count; k++)
        if (m->lists[x->arg][k] == had)
            m->lists[x->arg][k] = x->t;
}

/** True if autocast may cast t: a floating dtype other than f64. */
static bool is_eligible(const ts_tensor *t)
{
    return ts_dtype_is_float(ts_dtype_of(t)) && ts_dtype_of(t) != TS_F64;
}

/** Casts the arguments as the policy says. Returns how many it cast. */
static int cast_by_policy(ts_made *m, int policy, ts_dtype lower)
{
    ts_dtype to = policy == LOWER_ROW ? lower : policy == F32_ROW ? TS_F32 : TS_DTYPE_NONE;
    for (int i = 0; i < m->nargs && policy == F32_ROW; i++)
        if (m->args[i].tag == TS_TAG_DTYPE)
            to = TS_DTYPE_NONE; /* the caller chose the dtype */
    for (int i = 0; i < m->ntensors && policy == WIDEST_ROW; i++) {
        ts_dtype own = ts_dtype_of(m->tensors[i].t);
        if (is_eligible(m->tensors[i].t))
            to = to == TS_DTYPE_NONE ? own : ts_dtype_promote(to, own);
    }
    int casts = 0;
    for (int i = 0; i < m->ntensors && to != TS_DTYPE_NONE; i++)
        if (is_eligible(m->tensors[i].t) && ts_dtype_of(m->tensors[i].t) != to) {
            cast(m, i, to);
            casts++;
        }
    return casts;
}

static void compare(const ts_case *c, ts_dtype lower, mix mixed)
{
    TS_SCOPE;
    ts_made m[2]; /* [0]: cast by hand, [1]: cast by the layer */
    ts_value rets[2][TS_MAX_RETS];
    ts_tensor *out[2][TS_MAX_ARGS];
    ts_status status[2];
    for (int k = 0; k < 2; k++) {
        ck_assert(made_build(&m[k], c, NULL));
        for (int i = 0; i < TS_MAX_RETS; i++)
            rets[k][i] = ts_value_none();
        for (int i = 0, nth = 0; i < m[k].ntensors; i++)
            if (ts_dtype_of(m[k].tensors[i].t) == TS_F32 && !m[k].tensors[i].written &&
                (mixed == ALL_LOWER || (mixed != ALL_F32 && nth++ % 2 == (mixed == ODD_LOWER))))
                cast(&m[k], i, lower);
    }
    int wanted = cast_by_policy(&m[0], rows[c->op].policy, lower), made;
    status[0] = sample_call(c, &m[0], rets[0]);
    {
        TS_AUTOCAST(TS_DEVICE_CPU, lower);
        uint64_t before = ts_autocast_get_stats().casts;
        status[1] = sample_call(c, &m[1], rets[1]);
        made = (int)(ts_autocast_get_stats().casts - before);
    }
    bool good = false;
    int n = sample_results(&m[0], rets[0], c->info->nrets, out[0]);
    sample_results(&m[1], rets[1], c->info->nrets, out[1]);
    casts_of[c->op] += made;
    if (status[0] != status[1])
        sample_failed(c, "%s, with casts by hand %s; last: %s", ts_status_name(status[1]),
                      ts_status_name(status[0]), ts_error_message());
    else if (made != wanted)
        sample_failed(c, "expected %d casts, got %d", wanted, made);
    else
        good = true;
    for (int i = 0; good && status[0] == TS_OK && i < n; i++) {
        const ts_tensor *a = out[0][i], *b = out[1][i];
        good =
            (!a && !b) ||
            (a && b && (c->s->undefined ? ts_dtype_of(a) == ts_dtype_of(b) : tensor_equal(a, b)));
        if (!good)
            sample_failed(c, "result %d is %s, with casts by hand %s", i, meta_text(b),
                          meta_text(a));
    }
    if (good)
        sample_passed(c);
    made_free(&m[0]);
    made_free(&m[1]);
}

TS_TEST(each_row_runs_in_a_region_as_its_policy_says)
{
    static const ts_dtype lower[] = {TS_BF16, TS_F16};
    sample_run = (ts_sample_run){.passed = passed, .failed = failed};
    for (int k = 0; k < ts_sample_family_count; k++)
        for (int i = 0; i < ts_sample_families[k]->count; i++) {
            ts_case c;
            ck_assert(sample_case(&ts_sample_families[k]->samples[i], &c));
            c.dtype = TS_F32;
            c.sweep = 3;
            for (int at = 0; at < 2 * MIXES && sample_dtypes(c.s) & TS_DT(TS_F32); at++) {
                c.form = mix_names[at / 2];
                compare(&c, lower[at % 2], (mix)(at / 2));
            }
        }
    for (int op = 0; op < TS_OP_COUNT; op++) {
        bool casts = rows[op].policy != NONE_ROW && rows[op].policy != KEEP_ROW;
        ck_assert_msg((casts_of[op] > 0) == casts, "%s: %d casts over all samples", rows[op].op,
                      casts_of[op]);
    }
}
