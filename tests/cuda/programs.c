/** @file programs.c  Random programs on a GPU: compiled runs have the bits of eager ones. */
// SPDX-License-Identifier: MIT
#include "tests/compile/differs.h"
#include "tests/cuda/bits.h"

static const struct way {
    const char *name;
    ts_compile_opts opts;
    int programs; /* TS_TEST_PROGRAMS overrides it; groups compile kernels, so there are fewer */
    double skipped, replays; /* per program: calls that do not run the function, graphs that run */
} ways[] = {
    {"no groups", {.max_groups = -1}, 100, 0, 0},
    {"graphs, no groups", {.max_groups = -1, .graph = true}, 100, 0, 1},
    {"replays of graphs, no groups", {.max_groups = -1, .graph = true, .replay = true}, 100, 1, 1},
    {"recomputation in graphs, no groups",
     {.max_groups = -1, .graph = true, .recompute = 1}, 50, 0, 1},
    {"groups", {0}, 20, 0, 0},
    {"replays of graphs", {.graph = true, .replay = true}, 20, 1, 1},
};

TS_TEST(drawn_programs_have_the_bits_of_calls_on_a_gpu, .loop = TS_COUNTOF(ways), .timeout = 600)
{
    ts_device gpu;
    if (ts_device_open("cuda", &gpu, NULL, 0) != TS_OK)
        TS_SKIP("%s", ts_error_message());
    POINTWISE_GROUPS_ONLY;
    const struct way *w = &ways[_i];
    ts_compile_opts opts = w->opts;
    opts.size = sizeof opts;
    uint64_t first = from_environment("TS_TEST_SEED", 1) + 50000 + 1000 * (uint64_t)_i;
    int n = (int)from_environment("TS_TEST_PROGRAMS", (uint64_t)w->programs);
    for (int i = 0; i < n; i++) {
        TS_SCOPE;
        program p = draw_program(first + (uint64_t)i);
        OK(ts_set_default_device(TS_DEVICE_CPU)); /* where a wrong index is an error of its call */
        state on_cpu = begin(&p, 0);
        OK(run_program(&p, on_cpu.in, INPUTS, on_cpu.out, OUTPUTS));
        OK(ts_set_default_device(gpu));
        const char *what = differs(&p, &opts);
        ts_tally(!what, !!what, 0);
        if (what)
            print_program(w->name, &p, shrink(&p, &opts));
    }
    ck_assert_msg(did[SKIPPED] >= w->skipped * n && did[REPLAYS] >= w->replays * n,
                  "%s: %lld calls without the function, %lld replays", w->name,
                  (long long)did[SKIPPED], (long long)did[REPLAYS]);
    OK(ts_set_default_device(TS_DEVICE_CPU));
}
