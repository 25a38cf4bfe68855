/**
 * @file random.c
 * Compares compiled and eager runs of random programs: results, strides, versions, gradients and
 * random numbers are equal. A failing program is reduced to the calls that the failure needs, and
 * printed.
 */
// SPDX-License-Identifier: MIT
#include "compile/compile.h"
#include "tests/compile/stages.h"
#include "tests/compile/whole.h"

#include <math.h>
#include <stdio.h>

enum { INPUTS = 5, CALLS = 40, ALIKE = 4, POOL = INPUTS + CALLS * ALIKE, OUTPUTS = 8 };
enum { PROGRAMS = 100 }; /* per case; TS_TEST_PROGRAMS overrides it */

typedef struct draw {
    uint64_t state;
} draw;

static uint32_t below(draw *d, uint32_t n)
{
    d->state = d->state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(d->state >> 33) % n;
}

typedef struct instruction {
    uint8_t kind;
    uint32_t a, b, c; /* taken modulo the number of choices */
    double x;
    bool off;
} instruction;

typedef struct program {
    instruction calls[CALLS];
    int ncalls;
    bool gradients, region; /* region: the calls run under autocast to bf16 */
    uint64_t seed;
    int64_t rows, columns;
    double shift; /* added to the numbers of the calls */
} program;

enum {
    UNARY, BINARY, NUMBER, COMPARE, CAST, REDUCE, ROWS, VIEW, IN_PLACE, OUT, PRODUCT, RANDOM, INDEX,
    COPY, READ, SELECT, CAT, LISTS, REPEAT, EACH, KINDS
};
static const char *const kind_names[] = {
    "unary", "binary", "number", "compare", "cast", "reduce", "rows", "view", "in place", "out",
    "product", "random", "index", "copy", "read", "select", "cat", "lists", "repeat", "each"};

static program draw_program(uint64_t seed)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 7, 8, 16, 17, 33, 64, 257, 700};
    draw d = {seed * 0x9e3779b97f4a7c15ull + 1};
    program p = {.seed = seed, .ncalls = 1 + (int)below(&d, CALLS)};
    p.gradients = below(&d, 3) == 0;
    p.rows = sizes[below(&d, 13)];
    p.columns = sizes[below(&d, 13)];
    for (int i = 0; i < p.ncalls; i++) {
        instruction *c = &p.calls[i];
        c->kind = (uint8_t)below(&d, 100);
        c->kind = c->kind < 20   ? UNARY
                  : c->kind < 40 ? BINARY
                  : c->kind < 48 ? REDUCE
                  : c->kind < 56 ? ROWS
                  : c->kind < 62 ? EACH
                  : c->kind < 68 ? REPEAT
                                 : (uint8_t)(NUMBER + below(&d, KINDS - NUMBER));
        if (c->kind == READ && below(&d, 4))
            c->kind = BINARY;
        c->a = below(&d, 1 << 20);
        c->b = below(&d, 1 << 20);
        c->c = below(&d, 1 << 20);
        c->x = (double)below(&d, 2000) / 500 - 2;
    }
    p.region = below(&d, 4) == 0;
    return p;
}

static ts_tensor *unary(ts_tensor *t, uint32_t which)
{
    static ts_tensor *(*const ops[])(ts_tensor *) = {
        ts_neg, ts_exp, ts_tanh, ts_relu, ts_gelu, ts_sigmoid, ts_abs, ts_silu, ts_sqrt, ts_sin};
    return ops[which % TS_COUNTOF(ops)](t);
}

static ts_tensor *binary(ts_tensor *a, ts_tensor *b, uint32_t which)
{
    static ts_tensor *(*const ops[])(ts_tensor *, ts_tensor *) = {
        ts_add, ts_sub, ts_mul, ts_div, ts_maximum, ts_minimum};
    return ops[which % TS_COUNTOF(ops)](a, b);
}

static ts_tensor *number(ts_tensor *a, double x, uint32_t which)
{
    switch (which % 5) {
    case 0: return ts_add_scalar(a, x);
    case 1: return ts_mul_scalar(a, x);
    case 2: return ts_div_scalar(a, x);
    case 3: return ts_add_scalar(a, (int64_t)(x * 3));
    default: return ts_clamp(a, ts_scalar_float(-0.5), ts_scalar_float(x));
    }
}

static ts_tensor *view(ts_tensor *a, uint32_t b, uint32_t c)
{
    int dim = ts_ndim(a) ? (int)(b % (uint32_t)ts_ndim(a)) : 0;
    switch (c % 6) {
    case 0: return ts_transpose(a, 0, -1);
    case 1: return ts_slice(a, dim, b % 3, TS_END, 1 + c % 2);
    case 2: return ts_unsqueeze(a, dim);
    case 3: return ts_flatten(a, 0, -1);
    case 4: return ts_select(a, dim, 0);
    default: return ts_expand(ts_unsqueeze(a, 0), (int64_t[]){3, -1, -1}, 3);
    }
}

static ts_tensor *in_place(ts_tensor *a, ts_tensor *b, double x, uint32_t c)
{
    switch (c % 7) {
    case 0: return ts_add_(a, b);
    case 1: return ts_mul_(a, b);
    case 2: return ts_relu_(a);
    case 3: return ts_fill_(a, x);
    case 4: return ts_copy_(a, b);
    case 5: return ts_mul_scalar_(a, x);
    default: return ts_uniform_(a, 0, 1);
    }
}

static ts_tensor *reduced(ts_tensor *a, uint32_t which)
{
    switch (which % 12) {
    case 0: return ts_sum(a);
    case 1: return ts_mean_dim(a, -1, true);
    case 2: return ts_sum_dim(a, 0, false);
    case 3: return ts_amax_dim(a, -1, true);
    case 4: return ts_sum_dim(a, -1, false);
    case 5: return ts_sum_dim(a, -1, true);
    case 6: return ts_amin_dim(a, -1, false);
    case 7: return ts_logsumexp_dim(a, -1, true);
    case 8: return ts_var_dim(a, -1, 1, true);
    case 9: return ts_prod_dim(a, -1, false);
    case 10: return ts_all_dim(a, -1, true);
    default: return ts_mean_dims(a, (int64_t[]){-1, -2}, 2, which & 16);
    }
}

/** A call of an op that works on rows of a. b is the weight if it has one dim. */
static ts_tensor *by_rows(ts_tensor *a, ts_tensor *b, uint32_t which)
{
    ts_tensor *weight = ts_ndim(b) == 1 ? b : TS_NONE;
    switch (which % 6) {
    case 0: return ts_cumsum(a, 0);
    case 1: return ts_softmax(a, -1);
    case 2: return ts_log_softmax(a, -1);
    case 3: return ts_layer_norm(a, weight, TS_NONE);
    case 4: return ts_rms_norm(a, weight);
    default: return ts_softmax(a, 0);
    }
}

/** A call of an op over lists whose gradients are f32 copies of bf16 or f16 tensors. */
static ts_tensor *over_lists(ts_tensor *a, ts_tensor *b, double x, uint32_t which)
{
    ts_dtype half = which & 1 ? TS_BF16 : TS_F16;
    ts_tensor *from = ts_to(a, half), *other = ts_to(b, which & 2 ? half : TS_F32);
    ts_tensor *grads[] = {ts_to(from, TS_F32), ts_to(other, TS_F32)}, *params[2], *state[2][2];
    if (which & 4) /* the f32 copy and its source differ */
        grads[0] = grads[0] ? ts_mul_scalar_(which & 8 ? from : grads[0], x) : NULL;
    for (int i = 0; i < 2; i++) {
        params[i] = grads[i] ? ts_mul_scalar(ts_to(grads[i], TS_F32), x) : NULL;
        for (int k = 0; k < 2; k++)
            state[k][i] = params[i] ? ts_zeros_like(params[i]) : NULL;
        if (!state[1][i])
            return NULL;
    }
    if (which & 16)
        return ts_global_norm(grads, 2);
    ts_adamw_rule adamw = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6};
    ts_sgd_rule sgd = {.lr = 0.01, .momentum = which & 64 ? 0.9 : 0};
    ts_status status =
        which & 32 ? ts_adamw_(params, grads, state[0], state[1], (int64_t[]){1, 2}, 2, &adamw)
                   : ts_sgd_(params, grads, state[0], (int64_t[]){1, 2}, 2, &sgd);
    return status == TS_OK ? params[0] : NULL;
}

/** Bounds the sizes of a program's tensors: true if a call of `kind` with a and b may have more
 *  than MOST elements. */
static bool is_large(uint8_t kind, const ts_tensor *a, const ts_tensor *b)
{
    enum { MOST = 1 << 21 };
    int64_t numel = 1;
    for (int d = 1; d <= ts_ndim(a) || d <= ts_ndim(b); d++) {
        int64_t x = d <= ts_ndim(a) ? ts_size(a, -d) : 1, y = d <= ts_ndim(b) ? ts_size(b, -d) : 1;
        numel *= kind == PRODUCT && d == 1 ? 1 : kind == PRODUCT ? x * y : x > y ? x : y;
        if (numel > MOST)
            return true;
    }
    return ts_numel(a) > MOST || ts_numel(b) > MOST;
}

static ts_tensor *run_call(const instruction *c, ts_tensor **pool, int n)
{
    ts_tensor *a = pool[c->a % (uint32_t)n], *b = pool[c->b % (uint32_t)n];
    if (is_large(c->kind, a, b))
        return NULL;
    static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16, TS_F64, TS_I64, TS_BOOL};
    double value;
    switch (c->kind) {
    case UNARY: return unary(a, c->c);
    case BINARY: return binary(a, b, c->c);
    case NUMBER: return number(a, c->x, c->c);
    case COMPARE: return c->c & 1 ? ts_lt(a, b) : ts_eq_scalar(a, c->x);
    case CAST: return ts_to(a, dtypes[c->c % 6]);
    case REDUCE: return reduced(a, c->c);
    case ROWS: return by_rows(a, b, c->c);
    case VIEW: return view(a, c->b, c->c);
    case IN_PLACE: return in_place(a, b, c->x, c->c);
    case OUT: return ts_add_out(a, b, pool[c->c % (uint32_t)n]);
    case PRODUCT: return ts_matmul(a, ts_transpose(b, 0, -1));
    case RANDOM:
        return c->c & 1 ? ts_dropout(a, 0.3, true)
                        : ts_uniform(ts_sizes(a), ts_ndim(a), 0, 1, TS_F32);
    case INDEX: return ts_index_select(a, 0, ts_arange(0, 1, 1, TS_I64));
    case COPY: return c->c & 1 ? ts_clone(a) : ts_contiguous(a);
    case READ:
        ts_item(ts_sum(a), &value);
        return value > 0 ? ts_add(a, b) : ts_sub(a, b);
    case SELECT: return ts_where(ts_lt_scalar(a, c->x), a, b);
    case LISTS: {
        TS_NO_GRAD;
        return over_lists(a, b, c->x, c->c);
    }
    default:
        if (c->c & 1) { /* the parts are made by calls that join no group */
            b = ts_cumsum(a, 0);
            a = ts_cumsum(a, -1);
        }
        b = a && b ? ts_cat((ts_tensor *[]){a, b}, 2, c->c & 2 ? -1 : 0) : NULL;
        if (b && c->c & 4) /* a part is written after the cat, which keeps the old elements */
            return ts_mul_scalar_(a, c->x) ? b : NULL;
        return b;
    }
}

/** Runs the same calls on ALIKE tensors, whose sizes may differ. Stores the results in `made` and
 *  returns their number; 0 if a call fails. */
static int run_each(const instruction *c, ts_tensor **pool, int n, ts_tensor **made)
{
    int count = 0;
    for (uint32_t k = 0; k < ALIKE; k++) {
        ts_tensor *a = pool[(c->a + k * (1 + c->b % 3)) % (uint32_t)n], *t = a;
        if (c->c & 1)
            t = ts_to(a, ts_dtype_of(a) == TS_BF16 ? TS_F32 : TS_BF16);
        if (c->c & 2)
            t = t ? number(t, c->x + k, c->c >> 8) : NULL;
        if (c->c & 4)
            t = t ? unary(t, c->c >> 4) : NULL;
        if (t == a)
            t = ts_mul_scalar_(a, c->x);
        if (!t)
            return 0;
        made[count++] = t;
    }
    return count;
}

/** Runs call i of the program. A call of kind REPEAT makes an earlier call once more with the same
 *  arguments; counts: the numbers of tensors from which the earlier calls chose. If the program has
 *  a shift, the number of every second repeated call differs from that of the earlier call. */
static ts_tensor *run_shifted(const program *p, int i, ts_tensor **pool, const int *counts)
{
    instruction c = p->calls[i];
    int n = counts[i];
    if (c.kind == REPEAT && i) {
        int first = (int)(c.a % (uint32_t)i);
        c = p->calls[first];
        n = counts[first];
    }
    if (c.kind == REPEAT || c.kind == EACH)
        return unary(pool[c.a % (uint32_t)n], c.c);
    if (p->calls[i].kind != REPEAT || p->calls[i].c & 1)
        c.x += p->shift;
    return run_call(&c, pool, n);
}

/** Runs the program ctx. Removes calls that fail from it. */
static ts_status run_program(TRACED)
{
    program *p = ctx;
    ts_tensor *pool[POOL];
    int count = INPUTS, counts[CALLS];
    memcpy(pool, in, INPUTS * sizeof *pool);
    ts_autocast_region region;
    OK(ts_autocast_enter(&region, ts_default_device(), p->region ? TS_BF16 : TS_DTYPE_NONE));
    for (int i = 0; i < p->ncalls; i++) {
        counts[i] = count;
        if (p->calls[i].off)
            continue;
        instruction shifted = p->calls[i];
        shifted.x += p->shift;
        ts_tensor *t = NULL;
        int more = 0;
        if (shifted.kind == EACH)
            more = run_each(&shifted, pool, count, pool + count);
        else if ((t = run_shifted(p, i, pool, counts)) != NULL)
            pool[count + more++] = t;
        if (!more)
            p->calls[i].off = true;
        count += more;
        ts_error_clear();
    }
    OK(ts_autocast_exit(&region));
    if (p->gradients) {
        ts_tensor *loss = ts_sum(ts_to(pool[count - 1], TS_F32));
        if (loss && ts_requires_grad(loss) && ts_backward(loss) != TS_OK)
            ts_error_clear();
        ts_error_clear();
    }
    for (int i = 0; i < OUTPUTS; i++)
        out[i] = i < count ? pool[count - 1 - i] : TS_NONE;
    return TS_OK;
}

typedef struct state {
    ts_tensor *in[INPUTS], *out[OUTPUTS];
    ts_rng_state rng;
} state;

/** Inputs and a generator that depend on the program and `other`. */
static state begin(const program *p, int other)
{
    state s;
    int64_t r = p->rows, c = p->columns;
    uint64_t seed = p->seed + 1000000 * (uint64_t)other;
    s.in[0] = numbers(seed + 1, TS_SIZES(r, c));
    s.in[1] = numbers(seed + 2, TS_SIZES(c));
    s.in[2] = ts_transpose(numbers(seed + 3, TS_SIZES(c, r)), 0, 1);
    s.in[3] = numbers(seed + 4, TS_SIZES(r, 1));
    s.in[4] = ts_narrow(numbers(seed + 5, TS_SIZES(r, c + 3)), 1, 1, c);
    for (int i = 0; i < INPUTS && p->gradients; i += 2)
        s.in[i] = ts_set_requires_grad(ts_clone(s.in[i]), true);
    ts_rng_set_state((ts_rng_state){p->seed, 64 + 1000 * (uint64_t)other});
    return s;
}

/* Sums of the compiled calls of all programs so far. */
enum {
    MERGED,     /* calls that plans drop because they equal earlier calls */
    RECOMPUTED, /* calls that plans recompute */
    SKIPPED,    /* calls that did not run the function */
    REPLAYS,    /* of graphs */
    REPLACED,   /* calls captured again */
    DEEDS
};
static int64_t did[DEEDS];

/** A copy on the CPU in which all NaN have the same bits. The sign of a NaN depends on whether the
 *  element is computed in a whole vector or in the last elements of a run. */
static ts_tensor *numbered(ts_tensor *t)
{
    t = ts_to_device(ts_clone(ts_contiguous(t)), TS_DEVICE_CPU);
    return ts_dtype_is_float(ts_dtype_of(t))
               ? ts_masked_fill_scalar(t, ts_isnan(t), ts_scalar_float(NAN))
               : t;
}

/** Compares versions of inputs only: a call may or may not count a copy into its own new result. */
static bool equal(ts_tensor *a, ts_tensor *b, bool input)
{
    if (a == TS_NONE || b == TS_NONE || !a || !b)
        return a == b;
    if (ts_ndim(a) != ts_ndim(b) || (input && ts_version(a) != ts_version(b)) ||
        (ts_numel(a) && memcmp(ts_strides(a), ts_strides(b), (size_t)ts_ndim(a) * 8) != 0))
        return false;
    TS_NO_GRAD;
    return same(numbered(a), numbered(b));
}

/** Output, input or gradient of an input: tensor i of a run. */
static ts_tensor *part(const state *s, int i)
{
    return i < OUTPUTS            ? s->out[i]
           : i < OUTPUTS + INPUTS ? s->in[i - OUTPUTS]
                                  : ts_grad(s->in[i - OUTPUTS - INPUTS]);
}

/**
 * Compares compiled calls of a program with eager ones; returns the first difference, or NULL.
 * Makes two calls, so that the second finds a plan; for graphs and replays more, with new numbers.
 * An error may be reported when a call is recorded or when the plan runs, so calls that fail are
 * removed from the program first.
 */
static const char *differs(const program *drawn, const ts_compile_opts *opts)
{
    static char text[80];
    program valid = *drawn, *p = &valid;
    TS_SCOPE;
    state first = begin(p, 0);
    bool replay = opts && opts->replay; /* each turn has other input values */
    int turns = replay ? 7 : opts && opts->graph ? 6 : 2;
    OK(run_program(p, first.in, INPUTS, first.out, OUTPUTS));
    ts_compiled *c = ts_compile(run_program, p, opts);
    const char *what = NULL;
    for (int turn = 0; turn < turns && !what; turn++) {
        TS_SCOPE;
        p->shift = turn > 3 && !replay ? 0.125 : 0;
        int other = replay ? turn : 0;
        state eager = begin(p, other);
        OK(run_program(p, eager.in, INPUTS, eager.out, OUTPUTS));
        eager.rng = ts_rng_get_state();
        state lazy = begin(p, other);
        if (ts_compiled_call(c, lazy.in, INPUTS, lazy.out, OUTPUTS) != TS_OK) {
            snprintf(text, sizeof text, "turn %d: %.60s", turn, ts_error_message());
            what = text;
            break;
        }
        lazy.rng = ts_rng_get_state();
        for (int i = 0; i < OUTPUTS + 2 * INPUTS && !what; i++) {
            bool output = i < OUTPUTS, input = !output && i < OUTPUTS + INPUTS;
            if (equal(part(&eager, i), part(&lazy, i), input))
                continue;
            snprintf(text, sizeof text, "turn %d: %s %d", turn,
                     output ? "output" : input ? "input" : "gradient", i);
            what = text;
        }
        if (!what && (eager.rng.seed != lazy.rng.seed || eager.rng.offset != lazy.rng.offset))
            what = "the generator";
    }
    ts_compile_stats stats = ts_compiled_get_stats(c);
    const int64_t more[DEEDS] = {stats.merged, stats.recomputed, stats.skipped, stats.replays,
                                 stats.replaced};
    for (int i = 0; i < DEEDS; i++)
        did[i] += more[i];
    ts_compiled_free(c);
    return what;
}

/** An integer from an environment variable (TS_TEST_SEED: first seed, TS_TEST_PROGRAMS: number of
 *  programs), or `otherwise`. */
static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

/** A program that stops at its first error, and where it makes calls whose index is out of range,
 *  which only a kernel finds. */
typedef struct failing {
    program p;
    bool fails[CALLS];
    bool writes; /* whether each call but the failing ones writes to an input */
    bool unread; /* nothing reads the results of failing calls */
} failing;

static ts_status run_failing(TRACED)
{
    failing *f = ctx;
    ts_tensor *pool[POOL], *t;
    int count = INPUTS;
    memcpy(pool, in, INPUTS * sizeof *pool);
    for (int i = 0; i < f->p.ncalls; i++) {
        if (f->fails[i]) {
            TS_TRY(t = ts_index_select(in[0], 0, ts_arange(900 + i, 901 + i, 1, TS_I64)));
            if (!f->unread)
                TS_TRY(ts_add_(in[2], ts_mean(t)));
        }
        if (f->p.calls[i].off)
            continue;
        TS_TRY(t = run_call(&f->p.calls[i], pool, count));
        pool[count++] = t;
        if (f->writes)
            TS_TRY(ts_add_(in[2], ts_mean(ts_to(t, TS_F32))));
    }
    out[0] = ts_clone(pool[count - 1]);
    return TS_OK;
}

/* A compiled call that fails leaves the error and the generator of eager calls. */
TS_TEST(drawn_programs_that_fail_leave_the_error_and_generator_of_calls, .loop = 4)
{
    int n = (int)from_environment("TS_TEST_PROGRAMS", PROGRAMS), failed = 0, drew = 0;
    ts_compile_opts opts = {.size = sizeof opts, .replay = _i == 1, .max_groups = _i == 2 ? -1 : 0,
                            .recompute = _i == 3};
    for (int k = 0; k < n; k++) {
        TS_SCOPE;
        uint64_t seed = from_environment("TS_TEST_SEED", 1) + 31000 + (uint64_t)k;
        failing f = {.p = draw_program(seed)};
        draw d = {(uint64_t)k * 77 + 5};
        f.p.gradients = false;
        f.p.rows = f.p.rows ? f.p.rows : 3;
        f.p.columns = f.p.columns ? f.p.columns : 4;
        f.writes = below(&d, 2);
        f.unread = below(&d, 2);
        for (int i = 0; i < f.p.ncalls; i++)
            if (f.p.calls[i].kind == REPEAT || f.p.calls[i].kind == EACH ||
                f.p.calls[i].kind == READ || below(&d, 4) == 0)
                f.p.calls[i].kind = RANDOM;
        state valid = begin(&f.p, 0);
        OK(run_program(&f.p, valid.in, INPUTS, valid.out, OUTPUTS)); /* drops calls that fail */
        f.fails[below(&d, (uint32_t)f.p.ncalls)] = true;
        if (below(&d, 2))
            f.fails[below(&d, (uint32_t)f.p.ncalls)] = true;
        ts_compiled *c = ts_compile(run_failing, &f, &opts);
        for (int turn = 0; turn < 3; turn++) {
            state eager = begin(&f.p, turn), lazy;
            ts_status want = run_failing(&f, eager.in, INPUTS, eager.out, 1);
            char text[512];
            snprintf(text, sizeof text, "%s", ts_error_message());
            eager.rng = ts_rng_get_state();
            lazy = begin(&f.p, turn);
            ts_error_clear();
            ts_status got = ts_compiled_call(c, lazy.in, INPUTS, lazy.out, 1);
            lazy.rng = ts_rng_get_state();
            ck_assert_msg(got == want && strcmp(ts_error_message(), text) == 0,
                          "program %llu, turn %d: %d, '%s' instead of %d, '%s'",
                          (unsigned long long)f.p.seed, turn, got, ts_error_message(), want, text);
            ck_assert_msg(lazy.rng.offset == eager.rng.offset, "program %llu: offset %llu, not "
                          "%llu",
                          (unsigned long long)f.p.seed, (unsigned long long)lazy.rng.offset,
                          (unsigned long long)eager.rng.offset);
            failed += want != TS_OK;
            drew += eager.rng.offset > 64 + 1000 * (uint64_t)turn;
        }
        ts_compiled_free(c);
    }
    ck_assert_int_gt(failed, 2 * n);
    ck_assert_int_gt(drew, n / 2);
}

static void shrink(program *p, const ts_compile_opts *opts)
{
    for (bool again = true; again;) {
        again = false;
        for (int i = p->ncalls - 1; i >= 0; i--) {
            if (p->calls[i].off)
                continue;
            p->calls[i].off = true;
            if (differs(p, opts))
                again = true;
            else
                p->calls[i].off = false;
        }
    }
}

/* ---------------------------------------------------------------- ways to run programs ---- */

typedef struct way {
    const char *name;
    uint64_t first; /* seed of the first program, from TS_TEST_SEED on */
    const char *stage;    /* of TS_COMPILE, see stages.h; NULL: "full" */
    ts_compile_opts opts; /* size 0: the defaults */
    int threads;          /* 0: one */
    enum { ON_CPU, ON_DEVICE, ON_DEVICE_IN_GROUPS } device; /* the mock device of whole.h */
    bool poisoned;        /* arenas are overwritten before and after each use of their bytes */
    double least[DEEDS];  /* per program: did[] must be higher */
} way;

#define WITH(...) .opts = {.size = sizeof(ts_compile_opts), __VA_ARGS__}
#define LEAST(...) .least = {__VA_ARGS__}

/* recompute = 1: plans recompute values wherever this lowers their peak memory, even a small one.
 * Programs whose calls fail, read values or keep a tensor have no replays; in most others the third
 * and later calls run without the function. More than two of the six calls of a graph are replays;
 * programs that read values or whose integers change have fewer. */
static const way ways[] = {
    {"one thread", 0, LEAST([MERGED] = 0.125)},
    {"two threads", 500, .threads = 2, LEAST([MERGED] = 0.125)},
    {"seven threads", 25000, .threads = 7, LEAST([MERGED] = 0.125)},
    {"the traced calls", 23000, .stage = "trace"},
    {"the lowered calls", 24000, .stage = "lower", .threads = 2},
    {"the fused calls", 26000, .stage = "fuse", .threads = 7},
    {"no groups", 7000, WITH(.max_groups = -1)},
    {"recomputation", 17000, WITH(.recompute = 1), LEAST([RECOMPUTED] = 0.25)},
    {"recomputation in replays", 17500, WITH(.recompute = 1, .replay = true),
     LEAST([RECOMPUTED] = 0.25)},
    {"recomputation, no groups", 18000, WITH(.recompute = 1, .max_groups = -1),
     LEAST([RECOMPUTED] = 0.25)},
    {"poisoned arenas, no groups", 21000, WITH(.max_groups = -1), .poisoned = true},
    {"poisoned arenas, recomputation", 21500, WITH(.recompute = 1), .poisoned = true},
    {"recomputation on a device", 19000, WITH(.recompute = 1), .device = ON_DEVICE_IN_GROUPS,
     LEAST([RECOMPUTED] = 0.25)},
    {"recomputation in graphs", 19500, WITH(.recompute = 1, .graph = true),
     .device = ON_DEVICE_IN_GROUPS, LEAST([RECOMPUTED] = 0.25)},
    {"graphs", 9000,
     WITH(.graph = true), .device = ON_DEVICE, LEAST([REPLAYS] = 2, [REPLACED] = 4)},
    {"groups of a device", 15000, WITH(), .device = ON_DEVICE_IN_GROUPS},
    {"groups in graphs", 15500, WITH(.graph = true), .device = ON_DEVICE_IN_GROUPS},
    {"replays", 11000, WITH(.replay = true), LEAST([SKIPPED] = 1)},
    {"replays, no groups", 11500, WITH(.replay = true, .max_groups = -1), LEAST([SKIPPED] = 1)},
    {"replays of graphs", 13000, WITH(.replay = true, .graph = true), .device = ON_DEVICE,
     LEAST([SKIPPED] = 1)},
};

static void check_program(uint64_t seed, const way *w)
{
    const ts_compile_opts *opts = w->opts.size ? &w->opts : NULL;
    program p = draw_program(seed);
    const char *what = differs(&p, opts);
    ts_tally(!what, !!what, 0);
    if (!what)
        return;
    shrink(&p, opts);
    what = differs(&p, opts);
    fprintf(stderr, "%s: program %llu, %lld x %lld%s%s: %s\n", w->name,
            (unsigned long long)p.seed, (long long)p.rows, (long long)p.columns,
            p.gradients ? ", gradients" : "", p.region ? ", autocast" : "", what);
    for (int k = 0; k < p.ncalls; k++)
        if (!p.calls[k].off)
            fprintf(stderr, "  call %d: %s a=%u b=%u c=%u x=%g\n", k, kind_names[p.calls[k].kind],
                    p.calls[k].a, p.calls[k].b, p.calls[k].c, p.calls[k].x);
}

TS_TEST(drawn_programs_compute_the_bits_of_calls, .loop = TS_COUNTOF(ways), .timeout = 600)
{
    const way *w = &ways[_i];
    uint64_t first = from_environment("TS_TEST_SEED", 1) + w->first;
    int n = (int)from_environment("TS_TEST_PROGRAMS", PROGRAMS);
    if (w->device)
        (w->device == ON_DEVICE ? set_up_whole : set_up_whole_groups)();
    OK(ts_set_default_device(w->device ? device : TS_DEVICE_CPU));
    set_stage(w->stage ? w->stage : "full");
    ts_set_num_threads(w->threads ? w->threads : 1);
    ts_arena_poison(w->poisoned);
    for (int i = 0; i < n; i++)
        check_program(first + (uint64_t)i, w);
    for (int i = 0; i < DEEDS; i++)
        ck_assert_msg(did[i] > w->least[i] * n || w->least[i] == 0, "%s: work of kind %d: %lld",
                      w->name, i, (long long)did[i]);
    if (w->device == ON_DEVICE_IN_GROUPS && w->opts.recompute == 0) {
        int share = n < PROGRAMS ? 0 : n / 8; /* of few programs, one must have such a group */
        ck_assert_int_gt(groups_run, n);
        ck_assert_int_gt(joined_run, share);
        ck_assert_int_gt(epilogues_run, share);
    }
    ts_arena_poison(false);
    OK(ts_set_default_device(TS_DEVICE_CPU));
    if (w->device)
        tear_down_whole();
}
