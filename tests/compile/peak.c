/**
 * @file peak.c  The memory that plans of a GPT's training step need, on a device whose kernels do
 * nothing: a plan is made from sizes alone, so models of any size can be planned.
 */
// SPDX-License-Identifier: MIT
#include "bench/compare_gpt.c"
#include "bench/compare_steps.c"
#include "compile/cache.h"
#include "include/tessera/backend.h"
#include "ops/ops.h"
#include "tests/compile/explains.h"
#include "tests/expect.h"
#include "tests/harness.h"

#include <sys/mman.h>

static int devices(void *state) { return state != NULL; }
static void *allocate(void *state, int index, int64_t bytes, ts_stream *stream)
{
    (void)state, (void)index, (void)stream;
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}
static void release(void *state, int index, void *data, int64_t bytes)
{
    (void)state, (void)index;
    munmap(data, (size_t)bytes);
}
/** Copies nothing: results of a few bytes, such as a loss, are 0; others are not initialised. */
static ts_status copy_across(void *state, int index, void *to, const void *from, int64_t bytes,
                             ts_stream *stream)
{
    (void)state, (void)index, (void)stream;
    memset(to, 0, bytes < 64 ? (size_t)bytes : 0);
    (void)from;
    return TS_OK;
}
static ts_status nothing(ts_frame *f)
{
    (void)f;
    return TS_OK;
}
static ts_status install(void *state, ts_key key)
{
    (void)state;
    ts_kernel_opts opts = {.size = sizeof opts, .strided = true};
    for (int op = 0; op < TS_MAX_OPS; op++)
        if (ts_ops[op].name && ts_ops[op].kind == TS_FILL && strcmp(ts_ops[op].name, "to_device"))
            TS_TRY(ts_register_kernel_ex(ts_ops[op].name, key, nothing, &opts, NULL));
    return TS_OK;
}
static bool takes(void *state, ts_frame *f, ts_kernel kernel)
{
    (void)state;
    return kernel == nothing && f->nrets > 0;
}
static ts_status run_group(void *state, int index, const ts_group_call *calls, int count,
                           ts_stream *stream, ts_group_report *report)
{
    (void)state, (void)index, (void)calls, (void)count, (void)stream;
    *report = (ts_group_report){.launches = 1};
    return TS_OK;
}
static ts_status run_members(void *state, int index, const ts_group_call *calls, int count,
                             int members, ts_stream *stream, ts_group_report *report)
{
    (void)members;
    return run_group(state, index, calls, count, stream, report);
}

static void set_up(void)
{
    static int state;
    static const ts_backend backend = {
        .struct_size = sizeof backend, .abi_version = TS_BACKEND_ABI, .name = "IDLE",
        .flags = TS_BACKEND_CPU_FALLBACK, .state = &state, .device_count = devices,
        .allocate = allocate, .free = release, .copy_in = copy_across, .copy_out = copy_across,
        .copy_within = copy_across, .install = install, .group_takes = takes,
        .group_run = run_group, .group_run_members = run_members};
    ts_key key;
    OK(ts_register_backend(&backend, &key));
    OK(ts_set_default_device((ts_device){key, 0}));
}

/** Checks that storages whose lives overlap have disjoint ranges, and that the arena has at least
 *  half the size of the peak and at most 1.05 times its size. */
static void check_offsets(const ts_exec *e)
{
    for (uint32_t i = 0; i < e->nstorages; i++)
        for (uint32_t k = 0; k < i && e->offsets[i] >= 0; k++) {
            const ts_plan_storage *a = &e->storages[i], *b = &e->storages[k];
            ck_assert(e->offsets[k] < 0 || a->last < b->first || b->last < a->first ||
                      e->offsets[i] + a->bytes <= e->offsets[k] ||
                      e->offsets[k] + b->bytes <= e->offsets[i]);
        }
    ck_assert_int_ge(e->arena_bytes, e->peak / 2);
    ck_assert_int_le(e->arena_bytes, e->peak + e->peak / 20);
}

/** Returns the number of recomputed calls. Asserts that none of them is of a costly op. */
static int check_recomputed(const ts_exec *e)
{
    static const int costly[] = {TS_OP_linear, TS_OP_linear_gelu, TS_OP_embedding,
                                 TS_OP_scaled_dot_product_attention, TS_OP_linear_backward};
    int count = 0;
    for (uint32_t i = 0; i < e->graph->nodes.count; i++) {
        const ts_graph_node *n = ts_graph_node_at(e->graph, i);
        count += (n->flags & TS_NODE_RECOMPUTED) != 0;
        for (int k = 0; k < 5 && (n->flags & TS_NODE_RECOMPUTED); k++)
            ck_assert_int_ne(n->op, costly[k]);
    }
    return count;
}

/** Runs two steps; returns the plan of the compiled step. */
static const ts_exec *plan_of(compare_gpt *g, int64_t recompute)
{
    double loss;
    ck_assert_ptr_nonnull(g);
    ck_assert_int_eq(compare_gpt_compile(g, false, false, recompute), 0);
    ck_assert(compare_gpt_run(g, 2, &loss) >= 0);
    ck_assert_int_eq(ts_compiled_get_stats(g->run.compiled).compiles, 1);
    return g->run.compiled->newest;
}

/** Bytes of parameters and of the optimizer's state. */
static int64_t bytes_outside(const compare_gpt *g)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < g->count; i++)
        bytes += 3 * ts_numel(g->params[i]) * 4;
    return bytes;
}

/** The figures of "A transformer block in bytes" in docs/compile.md. */
static void check_stages(const ts_exec *e)
{
    const ts_dropped_cat *cats = e->cats.data;
    const ts_widened *widened = e->widened.data;
    uint32_t members = 0;
    ck_assert_uint_eq(e->nnodes, 569);
    ck_assert_uint_eq(e->nsteps, 241);
    ck_assert_uint_eq(e->ngroups, 64);
    ck_assert_uint_eq(e->nfused, 392);
    ck_assert_uint_eq(e->folded.count, 0);
    ck_assert_uint_eq(e->merged.count, 0);
    ck_assert_uint_eq(e->widened.count, 2);
    ck_assert(widened[0].members == 97 && widened[1].members == 97);
    ck_assert_uint_eq(e->cats.count, 12);
    for (uint32_t i = 0; i < e->cats.count; i++)
        ck_assert_int_eq(cats[i].bytes, 144 << 20);
    ck_assert_uint_eq(e->moved.count, 0);
    for (uint32_t k = 0; k < e->nsteps; k++)
        members += e->steps[k].members;
    ck_assert_uint_eq(members, 96);
    ck_assert_double_eq_tol((double)e->fused_bytes / (1 << 30), 83.2, 0.05);
    ck_assert_double_eq_tol((double)e->bytes / (1 << 30), 116.4, 0.05);
    ck_assert_double_eq_tol((double)e->kept_peak / (1 << 30), 13.7, 0.05);
    ck_assert_double_eq_tol((double)e->peak / (1 << 30), 9.8, 0.05);
}

/* GPT-2 124M, B 32, T 1024, under autocast to bf16. */
TS_TEST(a_step_of_gpt2_is_planned_in_twelve_gib, .setup = set_up)
{
    int64_t dims[] = {32, 1024, 768, 12, 12, 50304, 1};
    compare_gpt *g = compare_gpt_new(dims, 0, NULL, NULL, NULL);
    const ts_exec *e = plan_of(g, 0);
    check_offsets(e);
    ck_assert_int_le(e->arena_bytes + bytes_outside(g), (int64_t)12 << 30);
    ck_assert_int_lt(e->peak * 4, e->kept_peak * 3);
    ck_assert_int_eq(check_recomputed(e), e->nrecomputed);
    ck_assert(explains(g->run.compiled, " recomputed calls; arena of "));
    check_stages(e);
    compare_gpt_free(g);
}

/* GPTs of other sizes, with and without dropout, in f32 and bf16. */
TS_TEST(steps_of_other_gpts_need_less_memory, .loop = 6, .setup = set_up)
{
    static const int64_t models[][7] = {{64, 256, 384, 6, 6, 65, 1},
                                        {8, 512, 1024, 16, 24, 32000, 1},
                                        {16, 128, 128, 4, 4, 256, 0}};
    compare_gpt *g = compare_gpt_new(models[_i % 3], _i < 3 ? 0 : 0.2, NULL, NULL, NULL);
    const ts_exec *e = plan_of(g, 1);
    check_offsets(e);
    ck_assert_int_lt(e->peak * 20, e->kept_peak * 17);
    ck_assert_int_eq(check_recomputed(e), e->nrecomputed);
    ts_compiled_free(g->run.compiled);
    e = plan_of(g, -1);
    check_offsets(e);
    ck_assert_int_eq(e->peak, e->kept_peak);
    ck_assert_int_eq(e->nrecomputed, 0);
    compare_gpt_free(g);
}
