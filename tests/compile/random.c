/**
 * @file random.c
 * Compares compiled and eager runs of random programs: results, strides, versions, gradients and
 * random numbers are equal. A failing program is reduced to the calls that the failure needs, and
 * printed.
 */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"
#include "compile/testing.h"
#include "tests/compile/differs.h"
#include "tests/compile/stages.h"
#include "tests/compile/whole.h"

enum { PROGRAMS = 100 }; /* per case; TS_TEST_PROGRAMS overrides it */

/** A program, and the calls before which it makes a call with an index out of range (`fails`),
 *  which only a kernel detects. The program stops at its first error. */
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

/* ---------------------------------------------------------------- ways to run programs ---- */

typedef struct way {
    const char *name;
    uint64_t first;       /* seed of the first program, starting at TS_TEST_SEED */
    ts_compile_opts opts; /* size 0: the defaults */
    enum { ON_CPU, ON_DEVICE, ON_DEVICE_IN_GROUPS } device; /* the mock device of whole.h */
    bool poisoned;        /* arenas are overwritten before and after each use of their bytes */
    bool staged;          /* programs have different last stages; false: all stages */
    double least[DEEDS];  /* per program: did[] must be higher */
} way;

#define WITH(...) .opts = {.size = sizeof(ts_compile_opts), __VA_ARGS__}
#define LEAST(...) .least = {__VA_ARGS__}

/* recompute = 1: plans recompute values wherever this lowers their peak memory, even a small one.
 * Programs whose calls fail, read values or keep a tensor have no replays; in most others the third
 * and later calls run without the function. More than two of the six calls of a graph are replays;
 * programs that read values or whose integers change have fewer. */
static const way ways[] = {
    {"stages", 0, .staged = true, LEAST([MERGED] = 0.125)},
    {"stages", 500, .staged = true, LEAST([MERGED] = 0.125)},
    {"stages", 25000, .staged = true, LEAST([MERGED] = 0.125)},
    {"stages", 23000, .staged = true, LEAST([MERGED] = 0.125)},
    {"all stages", 24000, LEAST([MERGED] = 0.125)},
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

/** A combination of the choices that must not change results. */
typedef struct setting {
    uint32_t stage, threads, tile, bits; /* indices in the lists of choose() */
    bool emits;                          /* groups may be machine code */
} setting;

enum { THREADS = 3, TILES = 6, BITS = 2, COMBINATIONS = STAGES * THREADS * TILES * BITS * 2 };

/** The combination of program number i. Any COMBINATIONS consecutive numbers have all of them. */
static setting setting_of(uint64_t i)
{
    uint32_t n = (uint32_t)(i % COMBINATIONS * 101 % COMBINATIONS); /* 101 divides no factor */
    setting s = {.stage = n % STAGES, .threads = n / STAGES % THREADS};
    n /= STAGES * THREADS;
    s.tile = n % TILES;
    s.bits = n / TILES % BITS;
    s.emits = n / TILES / BITS;
    return s;
}

static const int threads[THREADS] = {1, 2, 7};

/** Makes the choices for later plans of a program. Tiles of large programs are not tiny. */
static void choose(const setting *s, const program *p)
{
    static const int64_t tiles[TILES] = {0, 1, 33, 256, 4099, 1 << 20};
    int64_t tile = tiles[s->tile];
    set_stage(stages[s->stage]);
    ts_set_num_threads(threads[s->threads]);
    ts_tile_elements = tile == 1 && p->rows * p->columns > 4096 ? 47 : tile;
    ts_plan_hash_mask = s->bits ? UINT64_MAX : 0;
    ts_emit_switch(s->emits);
}

/** number: of the program among those of all ways, for its setting. */
static void check_program(uint64_t seed, const way *w, uint64_t number)
{
    const ts_compile_opts *opts = w->opts.size ? &w->opts : NULL;
    program p = draw_program(seed);
    setting s = setting_of(number);
    s.stage = w->staged ? s.stage : STAGES - 1;
    choose(&s, &p);
    const char *what = differs(&p, opts);
    ts_tally(!what, !!what, 0);
    if (!what)
        return;
    what = shrink(&p, opts);
    print_program(w->name, &p, what);
    fprintf(stderr, "  stage %s, %d threads, tiles of %lld elements%s, hash mask %llx\n",
            stages[s.stage], threads[s.threads], (long long)ts_tile_elements,
            s.emits ? ", machine code" : "", (unsigned long long)ts_plan_hash_mask);
}

TS_TEST(drawn_programs_compute_the_bits_of_calls, .loop = TS_COUNTOF(ways), .timeout = 600)
{
    const way *w = &ways[_i];
    uint64_t first = from_environment("TS_TEST_SEED", 1) + w->first;
    int n = (int)from_environment("TS_TEST_PROGRAMS", PROGRAMS);
    if (w->device)
        (w->device == ON_DEVICE ? set_up_whole : set_up_whole_groups)();
    OK(ts_set_default_device(w->device ? device : TS_DEVICE_CPU));
    ts_arena_poison(w->poisoned);
    bool groups = w->device == ON_DEVICE_IN_GROUPS && w->opts.recompute == 0;
    for (int i = 0; i < n || (groups && i < PROGRAMS && !(joined_run && epilogues_run)); i++)
        check_program(first + (uint64_t)i, w, (uint64_t)(_i * n + i));
    for (int i = 0; i < DEEDS; i++)
        ck_assert_msg(did[i] > w->least[i] * n || w->least[i] == 0, "%s: work of kind %d: %lld",
                      w->name, i, (long long)did[i]);
    if (groups) {
        int share = n < PROGRAMS ? 0 : n / 8; /* a short run ends with the first of each kind */
        ck_assert_int_gt(groups_run, n);
        ck_assert_int_gt(joined_run, share);
        ck_assert_int_gt(epilogues_run, share);
    }
    ts_arena_poison(false);
    OK(ts_set_default_device(TS_DEVICE_CPU));
    if (w->device)
        tear_down_whole();
}

/** Programs of which a compiled function runs the chosen one. */
typedef struct several {
    program programs[4];
    int chosen;
} several;
static ts_status run_chosen(TRACED)
{
    several *s = ctx;
    return run_program(&s->programs[s->chosen], in, n, out, m);
}

/* All plans of a function have equal hashes, or few different ones. */
TS_TEST(plans_with_equal_hashes_serve_only_their_own_recordings, .loop = 5)
{
    int n = (int)from_environment("TS_TEST_PROGRAMS", PROGRAMS) / 20 + 1;
    uint64_t seed = from_environment("TS_TEST_SEED", 1) + 33000 + 100 * (uint64_t)_i;
    ts_plan_hash_mask = ((uint64_t)1 << _i) - 1;
    for (int k = 0; k < n; k++) {
        TS_SCOPE;
        several s = {.chosen = 0};
        for (int i = 0; i < 4; i++) {
            /* odd programs differ from the one before in ops only: recordings of equal length */
            s.programs[i] = i % 2 ? s.programs[i - 1] : draw_program(seed++);
            for (int call = 0; i % 2 && call < s.programs[i].ncalls; call++)
                s.programs[i].calls[call].c += s.programs[i].calls[call].kind <= BINARY;
            state valid = begin(&s.programs[i], 0);
            OK(run_program(&s.programs[i], valid.in, INPUTS, valid.out, OUTPUTS));
        }
        ts_compiled *c = ts_compile(run_chosen, &s, TS_OPTS(ts_compile_opts, .replay = k % 2));
        for (int turn = 0; turn < 12; turn++) {
            TS_SCOPE;
            program *p = &s.programs[s.chosen = turn % 4];
            ts_state_changed(); /* a replay would not see that another program is chosen */
            state eager = begin(p, 0), lazy;
            OK(run_program(p, eager.in, INPUTS, eager.out, OUTPUTS));
            eager.rng = ts_rng_get_state();
            lazy = begin(p, 0);
            lazy.status = ts_compiled_call(c, lazy.in, INPUTS, lazy.out, OUTPUTS);
            lazy.rng = ts_rng_get_state();
            const char *what = compare(&eager, &lazy, turn);
            ck_assert_msg(!what, "program %llu: %s", (unsigned long long)p->seed, what);
        }
        ts_compiled_free(c);
    }
}
