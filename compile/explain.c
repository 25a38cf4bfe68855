/** @file explain.c  Text reports about a compiled function. */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"
#include "compile/replay.h"
#include "include/tessera/program.h"
#include "include/tessera/check.h"

#include <stdio.h>

/** Writes step k and the state of its kernel; nothing if it is a single call. */
static void write_step(FILE *out, const ts_exec *e, uint32_t k)
{
    const ts_step *s = &e->steps[k];
    char sizes[192];
    if (!s->fused)
        return;
    uint32_t calls = s->members ? s->count / s->members : s->count;
    if (s->members)
        fprintf(out, "  group at step %u, %u calls on each of %u tensors, %lld elements in all:", k,
                calls, s->members, (long long)s->numel);
    else
        fprintf(out, "  %s at step %u, %u calls over %s:",
                s->product ? "product with an epilogue" : "group", k, calls,
                ts_format_sizes(sizes, sizeof sizes, s->sizes, s->ndim));
    for (uint32_t i = 0; i < calls; i++)
        fprintf(out, " %s", ts_graph_node_name(e->graph, ts_graph_node_at(
                                                             e->graph, e->order[s->first + i])));
    fputc('\n', out);
    if (s->narrow)
        fprintf(out, "    runs call by call: its runs of contiguous elements are short\n");
    if (s->device.backend == TS_KEY_CPU) {
        ts_emitted_explain(out, e, k);
        return;
    }
    const ts_group_kernel *kernel = &e->kernels[k];
    int stage = atomic_load(&kernel->stage);
    double ms = kernel->report.compile_ms;
    if (stage == TS_KERNEL_REFUSED)
        fprintf(out, "    runs call by call: %s\n", kernel->why);
    else if (stage == TS_KERNEL_READY && ms > 0)
        fprintf(out, "    %u kernels are one, %s in %.1f ms\n", s->count,
                kernel->report.from_disk ? "read from disk" : "compiled", ms);
    else if (stage == TS_KERNEL_READY && !s->product)
        fprintf(out, "    %u kernels are one, compiled for an earlier group\n", s->count);
}

/** Writes whether the function runs on each call or is replayed, and why. */
static void write_mode(FILE *out, const ts_compiled *c)
{
    bool granted = false; /* a plan can be replayed */
    for (int64_t i = 0; i < c->nplans && !c->replay_over; i++)
        granted |= ts_replay_is_granted(c->plans[i]);
    if (!c->opts.replay)
        return;
    fprintf(out, "mode: %s, %lld calls ran without the function, %lld ran it to compare\n",
            granted ? "replay" : "the function runs on each call", (long long)c->stats.skipped,
            (long long)c->stats.verified);
    if (c->replay_why[0])
        fprintf(out, "  the function %s: %s\n", granted ? "ran last" : "runs", c->replay_why);
    else if (!granted)
        fprintf(out, "  the function runs: no two calls in a row were equal yet\n");
}

enum { MOST_NAMES = 8 };

/** Ends a line with name number `at` of `count` names of ops. */
static void write_name(FILE *out, uint32_t at, uint32_t count, uint16_t op)
{
    if (at < MOST_NAMES)
        fprintf(out, " %s", ts_ops[op].schema.name);
    if (at + 1 == count)
        fputs(count > MOST_NAMES ? " ...\n" : "\n", out);
}

/** Writes which calls equal earlier calls and were dropped; nothing if there are none. */
static void write_merged(FILE *out, const ts_exec *e)
{
    const ts_merged *m = e->merged.data;
    if (e->merged.count)
        fprintf(out, "  %u calls equal earlier calls and were dropped:", e->merged.count);
    for (uint32_t i = 0; i < e->merged.count; i++)
        write_name(out, i, e->merged.count, m[i].op);
}

/** Writes which calls were folded; nothing if there are none. */
static void write_folded(FILE *out, const ts_exec *e)
{
    const ts_folded *f = e->folded.data;
    for (int constant = 0; constant < 2; constant++) {
        uint32_t count = 0, at = 0;
        for (uint32_t i = 0; i < e->folded.count; i++)
            count += f[i].constant == constant;
        if (count)
            fprintf(out, constant ? "  %u calls are constant and run once:"
                                  : "  %u calls have their argument's elements and were dropped:",
                    count);
        for (uint32_t i = 0; i < e->folded.count; i++)
            if (f[i].constant == constant)
                write_name(out, at++, count, f[i].op);
    }
}

/** Writes the peak of a plan's memory and what recomputation saves. */
static void write_memory(FILE *out, const ts_exec *e)
{
    if (!e->nsteps)
        return;
    fprintf(out, "  memory: at most %lld bytes, at step %u (%s)", (long long)e->peak, e->peak_step,
            ts_graph_node_name(e->graph, ts_graph_node_at(e->graph,
                               e->order[e->steps[e->peak_step].first])));
    if (e->nrecomputed)
        fprintf(out, "; %lld without the %u recomputed calls", (long long)e->kept_peak,
                e->nrecomputed);
    fprintf(out, "; arena of %lld bytes\n", (long long)e->arena_bytes);
}

ts_status ts_explain(ts_compiled *compiled, FILE *out)
{
    ts_compiled *c = compiled;
    const void *site = __builtin_return_address(0);
    const ts_check_place at = {"explain", site};
    TS_TRY(ts_check_pointers(at, "compiled", (const void *[]){c}, 1, true));
    TS_TRY(ts_check_pointers(at, "out", (const void *[]){out}, 1, false));
    TS_C_LOCALE;
    char text[320];
    pthread_mutex_lock(&c->lock);
    const ts_compile_stats stats = ts_compiled_stats(c), *s = &stats;
    int64_t eager = atomic_load(&c->eager);
    const ts_exec *e = c->newest;
    fprintf(out, "%s: %lld calls, %lld recordings, %lld breaks\n", c->name, (long long)s->calls,
            (long long)s->segments, (long long)s->breaks);
    for (int i = 0; i < TS_MAX_BREAKS && c->breaks[i].count; i++)
        fprintf(out, "  break: %s, called from %s, %lld times\n", c->breaks[i].what,
                ts_format_site(text, sizeof text, c->breaks[i].site),
                (long long)c->breaks[i].count);
    write_mode(out, c);
    if (eager)
        fprintf(out,
                "mode: %lld calls ran without a recording, which takes longer than their work\n",
                (long long)eager);
    fprintf(out, "plans: %lld kept, %lld made in %.3f ms, %lld of %lld recordings had one\n",
            (long long)s->plans, (long long)s->compiles, s->compile_ms, (long long)s->hits,
            (long long)s->segments);
    if (e) {
        fprintf(out,
                "newest plan (%s): %u calls in %u steps, %u groups of %u calls; %lld bytes moved, "
                "%lld one by one\n",
                c->cause, e->nnodes, e->nsteps, e->ngroups, e->nfused, (long long)e->fused_bytes,
                (long long)e->bytes);
        write_folded(out, e);
        write_merged(out, e);
        write_memory(out, e);
        for (uint32_t k = 0; k < e->nsteps; k++)
            write_step(out, e, k);
        if (s->kernels || s->kernels_read)
            fprintf(out, "  kernels of groups: %lld compiled, %lld read from disk, in %.1f ms\n",
                    (long long)s->kernels, (long long)s->kernels_read, s->kernel_ms);
        if (c->opts.graph)
            fprintf(out, "  %s; %lld captured, %lld replayed, %lld calls replaced\n",
                    ts_captured_text(e->captured, text, sizeof text), (long long)s->captures,
                    (long long)s->replays, (long long)s->replaced);
    }
    pthread_mutex_unlock(&c->lock);
    return ferror(out) ? ts_fail_op(TS_ERR_IO, "explain", site, NULL, "cannot write the report")
                       : TS_OK;
}
