/** @file programs.h  Random programs: sequences of drawn calls over drawn inputs. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_COMPILE_PROGRAMS_H
#define TESTS_COMPILE_PROGRAMS_H

#include "tests/tracing/common.h"

/* CALLS: most calls of a program. ALIKE: results of a call of kind EACH. POOL: most tensors of a
 * program; each call chooses its arguments from the tensors made so far. */
enum { INPUTS = 5, CALLS = 40, ALIKE = 4, POOL = INPUTS + CALLS * ALIKE, OUTPUTS = 8 };

typedef struct draw {
    uint64_t state;
} draw;

/** A random integer from 0 to n - 1. */
static uint32_t below(draw *d, uint32_t n)
{
    d->state = d->state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(d->state >> 33) % n;
}

/** A call. a and b choose tensors, c a variant of the kind, each modulo the number of choices. Some
 *  kinds use them otherwise; see run_call() and run_each(). */
typedef struct instruction {
    uint8_t kind;
    uint32_t a, b, c;
    double x; /* a number among the arguments */
    bool off; /* the call is removed from the program */
} instruction;

typedef struct program {
    instruction calls[CALLS];
    int ncalls;
    bool gradients, region; /* region: the calls run under autocast to bf16 */
    enum { APART, SAME, OVERLAP, ROW, VECTORS } shared; /* inputs that share memory, see begin() */
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

static inline program draw_program(uint64_t seed)
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
    p.shared = below(&d, 3) ? APART : SAME + below(&d, 4);
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
    switch (which % 16) {
    case 12: return ts_amax_dim(a, 0, which & 16);
    case 13: return ts_mean_dim(a, 0, which & 16);
    case 14: return ts_prod_dim(a, 0, which & 16);
    case 15: return ts_norm(a);
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

/** A call of an op over lists of two gradients, f32 copies: the first of a bf16 or f16 tensor, the
 *  second of a bf16, f16 or f32 tensor. */
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

/** Bounds the sizes of a program's tensors: true if a, b or the result of a call of `kind` with
 *  them may have more than MOST elements. */
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

/** Runs the same calls, with different numbers, on ALIKE tensors, whose sizes may differ. Stores
 *  the results in `made` and returns their number; 0 if a call fails. */
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

/** Runs call i of the program, which is not of kind EACH. A call of kind REPEAT makes an earlier
 *  call once more with the same arguments; without an earlier call, or if that is REPEAT or EACH,
 *  it makes a unary call. counts: the numbers of tensors from which the earlier calls chose. If the
 *  program has a shift, half of the repeated calls have another number than the earlier call. */
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

/** A run of a program: inputs, outputs, the generator's state afterwards, the status. */
typedef struct state {
    ts_tensor *in[INPUTS], *out[OUTPUTS];
    ts_rng_state rng;
    ts_status status; /* of the call */
} state;

/** Makes the inputs and seeds the generator; both depend on the program and on `other`. */
static state begin(const program *p, int other)
{
    state s = {.status = TS_OK};
    int64_t r = p->rows, c = p->columns;
    uint64_t seed = p->seed + 1000000 * (uint64_t)other;
    s.in[0] = numbers(seed + 1, TS_SIZES(r, c));
    s.in[1] = numbers(seed + 2, TS_SIZES(c));
    s.in[2] = ts_transpose(numbers(seed + 3, TS_SIZES(c, r)), 0, 1);
    s.in[3] = numbers(seed + 4, TS_SIZES(r, 1));
    s.in[4] = ts_narrow(numbers(seed + 5, TS_SIZES(r, c + 3)), 1, 1, c);
    ts_tensor *base;
    if (p->shared == OVERLAP) { /* neither contains the other */
        base = numbers(seed + 6, TS_SIZES(r, c + 2));
        s.in[0] = ts_narrow(base, 1, 0, c);
        s.in[4] = ts_narrow(base, 1, 2, c);
    } else if (p->shared == ROW && r) {
        s.in[1] = ts_select(s.in[0], 0, r - 1);
    } else if (p->shared == VECTORS) {
        base = numbers(seed + 7, TS_SIZES(c + r));
        s.in[1] = ts_narrow(base, 0, 0, c);
        s.in[3] = ts_unsqueeze(ts_narrow(base, 0, c / 2, r), 1);
    }
    for (int i = 0; i < INPUTS && p->gradients; i += 2)
        s.in[i] = ts_set_requires_grad(ts_clone(s.in[i]), true);
    if (p->shared == SAME)
        s.in[4] = s.in[0];
    ts_rng_set_state((ts_rng_state){p->seed, 64 + 1000 * (uint64_t)other});
    return s;
}

#endif
