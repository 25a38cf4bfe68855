/** @file differs.h  Comparison of compiled and eager runs of random programs. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_COMPILE_DIFFERS_H
#define TESTS_COMPILE_DIFFERS_H

#include <math.h>
#include <stdio.h>

#include "tests/compile/programs.h"

/* Sums of the compiled calls of all programs so far. */
enum {
    MERGED,     /* calls that plans drop because they equal earlier calls */
    RECOMPUTED, /* calls that plans recompute */
    SKIPPED,    /* calls that did not run the function */
    REPLAYS,    /* replays of device graphs */
    REPLACED,   /* steps of graphs that were captured again */
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

/** True if a and b have equal strides and bits, and, for inputs, equal versions. Versions of
 *  results may differ, because a kernel may count a copy into its own new result as a write. */
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

/** The first difference between an eager run and a compiled one, or NULL. */
static const char *compare(const state *eager, const state *lazy, int turn)
{
    static char text[80];
    if (lazy->status != TS_OK) {
        snprintf(text, sizeof text, "turn %d: %.60s", turn, ts_error_message());
        return text;
    }
    for (int i = 0; i < OUTPUTS + 2 * INPUTS; i++) {
        bool output = i < OUTPUTS, input = !output && i < OUTPUTS + INPUTS;
        if (equal(part(eager, i), part(lazy, i), input))
            continue;
        snprintf(text, sizeof text, "turn %d: %s %d", turn,
                 output ? "output" : input ? "input" : "gradient", i);
        return text;
    }
    bool same = eager->rng.seed == lazy->rng.seed && eager->rng.offset == lazy->rng.offset;
    return same ? NULL : "the generator";
}

/**
 * Compares compiled calls of a program with eager ones; returns the first difference, or NULL.
 * Makes two compiled calls, so that the second finds a plan. With graphs it makes six calls, the
 * last two with other numbers; with replays it makes seven, each with other inputs. An error may be
 * reported when a call is recorded or when the plan runs, so calls that fail are removed from the
 * program first.
 */
static const char *differs(const program *drawn, const ts_compile_opts *opts)
{
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
        lazy.status = ts_compiled_call(c, lazy.in, INPUTS, lazy.out, OUTPUTS);
        lazy.rng = ts_rng_get_state();
        what = compare(&eager, &lazy, turn);
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

/** Removes calls that a difference does not need; returns the difference. */
static inline const char *shrink(program *p, const ts_compile_opts *opts)
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
    return differs(p, opts);
}

static inline void print_program(const char *way, const program *p, const char *what)
{
    fprintf(stderr, "%s: program %llu, %lld x %lld%s%s, inputs shared in way %d: %s\n", way,
            (unsigned long long)p->seed, (long long)p->rows, (long long)p->columns,
            p->gradients ? ", gradients" : "", p->region ? ", autocast" : "", p->shared, what);
    for (int k = 0; k < p->ncalls; k++)
        if (!p->calls[k].off)
            fprintf(stderr, "  call %d: %s a=%u b=%u c=%u x=%g\n", k, kind_names[p->calls[k].kind],
                    p->calls[k].a, p->calls[k].b, p->calls[k].c, p->calls[k].x);
}

#endif
