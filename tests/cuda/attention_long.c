/** @file attention_long.c  Attention over up to 131,072 rows on a GPU: memory is linear in the
 * rows; some rows are compared with f64. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/attention.h"

#include <math.h>

enum { LONGEST = 131072, HEADS = 2, DEPTH = 64, SAMPLES = 12 };

static double *doubles_of(ts_tensor *t)
{
    TS_SCOPE;
    size_t bytes = (size_t)ts_numel(t) * sizeof(double);
    double *values = malloc(bytes);
    OK(ts_copy_to(ts_to(ts_to_device(t, TS_DEVICE_CPU), TS_F64), values, bytes));
    return values;
}

/** Operands, gradients and results of one head, as f64. g: gradient of the result. */
typedef struct head {
    int64_t n;
    bool causal;
    double *q, *k, *v, *g, *out, *lse, *got[RESULTS];
} head;

static double dot(const double *a, const double *b)
{
    double sum = 0;
    for (int d = 0; d < DEPTH; d++)
        sum += a[d] * b[d];
    return sum;
}
static const double *row_of(const double *x, int64_t i) { return x + i * DEPTH; }
static double score(const head *h, int64_t i, int64_t j)
{
    return dot(row_of(h->q, i), row_of(h->k, j)) / 8;
}

/** Sums of terms weight * row[d] (x), and of their squares, from which the error of rounding the
 *  weights to bf16 follows. */
typedef struct rounded_sum {
    double x[DEPTH], square[DEPTH];
} rounded_sum;

static void add(rounded_sum *to, double weight, const double *row)
{
    for (int d = 0; d < DEPTH; d++) {
        to->x[d] += weight * row[d];
        to->square[d] += weight * row[d] * weight * row[d];
    }
}

/* Compares `got` with want * factor. Prints the first element beyond the bound and returns 1; else
 * 0. Bound: 6 deviations of weights rounded to bf16 (2^-9 each), plus the error of f32 sums over
 * the depth, plus the rounding of the result to bf16. */
static int wrong(const rounded_sum *want, const double *got, double factor, const char *what,
                 int64_t row)
{
    for (int d = 0; d < DEPTH; d++) {
        double x = want->x[d] * factor, sums = 8 * 0x1p-24 * sqrt(DEPTH);
        double most = (6 * 0x1p-9 * sqrt(want->square[d]) + sums) * factor + 0x1p-8 * fabs(x);
        if (!(fabs(got[d] - x) <= most)) {
            printf("%s of row %lld, element %d: %g, expected %g, at most %g off\n", what,
                   (long long)row, d, got[d], x, most);
            return 1;
        }
    }
    return 0;
}

/** Compares lse, result and query gradient of row i with f64. Returns the number that differ. */
static int wrong_row(const head *h, int64_t i)
{
    int64_t keys = h->causal ? i + 1 : h->n;
    double sum = 0, most = -INFINITY, *s = malloc((size_t)keys * sizeof *s);
    for (int64_t j = 0; j < keys; j++)
        most = fmax(most, s[j] = score(h, i, j));
    for (int64_t j = 0; j < keys; j++)
        sum += exp(s[j] - most);
    double lse = most + log(sum), delta = dot(row_of(h->g, i), row_of(h->out, i));
    rounded_sum y = {0}, dq = {0};
    for (int64_t j = 0; j < keys; j++) {
        double w = exp(s[j] - lse);
        add(&y, w, row_of(h->v, j));
        add(&dq, w * (dot(row_of(h->g, i), row_of(h->v, j)) - delta), row_of(h->k, j));
    }
    free(s);
    if (fabs(h->lse[i] - lse) > 1e-5 * (1 + fabs(lse))) {
        printf("lse of row %lld: %.9g, expected %.9g\n", (long long)i, h->lse[i], lse);
        return 1;
    }
    return wrong(&y, row_of(h->got[OUT], i), 1, "result", i) +
           wrong(&dq, row_of(h->got[DQ], i), 1.0 / 8, "gradient of query", i);
}

/** Compares the gradients of key and value j with f64, with weights from h->lse. Returns the number
 *  that differ. */
static int wrong_key(const head *h, int64_t j)
{
    rounded_sum dk = {0}, dv = {0};
    for (int64_t i = h->causal ? j : 0; i < h->n; i++) {
        const double *g = row_of(h->g, i);
        double w = exp(score(h, i, j) - h->lse[i]);
        add(&dv, w, g);
        add(&dk, w * (dot(g, row_of(h->v, j)) - dot(g, row_of(h->out, i))), row_of(h->q, i));
    }
    return wrong(&dk, row_of(h->got[DK], j), 1.0 / 8, "gradient of key", j) +
           wrong(&dv, row_of(h->got[DV], j), 1, "gradient of value", j);
}

static void judge_samples(const problem *p, const operands *o, const results *r)
{
    TS_SCOPE;
    head h = {.n = p->rows, .causal = p->causal};
    ts_tensor *in[] = {o->q, o->k, o->v, o->g, r->all[OUT], r->lse};
    double **to[] = {&h.q, &h.k, &h.v, &h.g, &h.out, &h.lse};
    for (int i = 0; i < 6; i++)
        *to[i] = doubles_of(ts_select(in[i], 1, HEADS - 1));
    for (int i = 0; i < RESULTS; i++)
        h.got[i] = doubles_of(ts_select(r->all[i], 1, HEADS - 1));
    for (int s = 0; s < SAMPLES; s++) {
        int64_t i = s == 0 ? 0 : s == 1 ? h.n - 1 : (h.n * s / SAMPLES + 37 * s) % h.n;
        int bad = wrong_row(&h, i) + wrong_key(&h, i);
        ts_tally(!bad, bad > 0, 0);
    }
    for (int i = 0; i < 6; i++)
        free(*to[i]);
    for (int i = 0; i < RESULTS; i++)
        free(h.got[i]);
}

/* Result and gradients are four tensors of the query's size. Further memory: a gradient that is
 * accumulated in f32 (twice that size), and a few numbers per row. The scores of a head would need
 * 1,024 times the query's size. */
TS_TEST(memory_of_attention_is_linear_in_up_to_131072_rows, .loop = 3, .timeout = 120)
{
    TS_SCOPE;
    GPU(device);
    problem p = {TS_BF16, 1, HEADS, HEADS, _i == 2 ? LONGEST / 4 : LONGEST, 0, DEPTH,
                 .causal = _i == 1};
    p.keys = p.rows;
    int64_t operand = HEADS * p.rows * DEPTH * 2;
    operands o = draw(&p, device);
    OK(ts_synchronize(device));
    int64_t before = memory_of(device).in_use;
    results r = by_attention(&o);
    OK(ts_synchronize(device));
    int64_t grown = memory_of(device).peak - before,
            most = (RESULTS + 2) * operand + HEADS * p.rows * 64 + (1 << 21);
    ck_assert_msg(grown <= most, "%lld rows: %lld bytes beside the operands, at most %lld",
                  (long long)p.rows, (long long)grown, (long long)most);
    ck_assert_int_ge(memory_of(device).peak, before + RESULTS * operand);
    for (int i = 0; i < RESULTS; i++)
        ck_assert_double_lt(largest(r.all[i]), INFINITY);
    judge_samples(&p, &o, &r);
}
