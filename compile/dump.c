/** @file dump.c  Writes the stages of a plan to files of the folder that TS_DUMP names. */
// SPDX-License-Identifier: MIT
#include "compile/compile.h"
#include "include/tessera/program.h"

#include <stdio.h>
#include <stdlib.h>

/** Appends a note for each result that needs no memory, because only the node's group uses it. */
static void write_inside(FILE *out, const ts_exec *e, const ts_graph_node *n)
{
    for (int i = 0; i < n->nrets; i++)
        if (n->rets[i] && e->storages[ts_graph_value_at(e->graph, n->rets[i])->storage].inside)
            fprintf(out, "  ; %%%u needs no memory", ts_id_index(n->rets[i]));
}

/** The steps that a file lists. */
typedef enum choice { ALL, GROUPS, PRODUCTS, MEMBERS } choice;

static bool is_chosen(const ts_step *s, choice which)
{
    switch (which) {
    case GROUPS: return s->fused && !s->product && !s->members;
    case PRODUCTS: return s->product;
    case MEMBERS: return s->members != 0;
    default: return true;
    }
}

/** Writes the chosen steps and their calls. */
static void write_chosen(FILE *out, const ts_exec *e, choice which)
{
    for (uint32_t k = 0; k < e->nsteps; k++) {
        const ts_step *s = &e->steps[k];
        char sizes[192];
        if (!is_chosen(s, which))
            continue;
        fprintf(out, "step %u", k);
        if (s->members)
            fprintf(out, ", %u members of %u calls", s->members, s->count / s->members);
        else if (s->fused)
            fprintf(out, ", %u calls over %s, %lld bytes saved", s->count,
                    ts_format_sizes(sizes, sizeof sizes, s->sizes, s->ndim),
                    (long long)s->saved);
        fprintf(out, "\n");
        for (uint32_t i = 0; i < s->count; i++) {
            const ts_graph_node *n = ts_graph_node_at(e->graph, e->order[s->first + i]);
            fputs(n->flags & TS_NODE_RECOMPUTED ? "  recomputed: " : "  ", out);
            ts_graph_write_node(e->graph, n, out);
            write_inside(out, e, n);
            fputc('\n', out);
        }
    }
}

static void write_steps(FILE *out, const ts_exec *e) { write_chosen(out, e, ALL); }
static void write_groups(FILE *out, const ts_exec *e) { write_chosen(out, e, GROUPS); }
static void write_products(FILE *out, const ts_exec *e) { write_chosen(out, e, PRODUCTS); }
static void write_members(FILE *out, const ts_exec *e) { write_chosen(out, e, MEMBERS); }

/** Writes the calls that are parts of a recorded call: another op, or one of several calls in its
 *  place. */
static void write_parts(FILE *out, const ts_exec *e)
{
    const ts_graph_node *nodes = e->graph->nodes.data;
    for (uint32_t i = 0; i < e->graph->nodes.count; i++) {
        uint16_t op = (uint16_t)(e->words[nodes[i].name] >> 8);
        bool part = nodes[i].op != op;
        for (uint32_t k = 0; k < e->graph->nodes.count && !part; k++)
            part = k != i && nodes[k].end == nodes[i].end && nodes[k].nrets &&
                   !((nodes[k].flags | nodes[i].flags) & TS_NODE_RECOMPUTED);
        if (!part || !nodes[i].nrets)
            continue;
        fprintf(out, "part of call %u, %s: ", nodes[i].end, ts_ops[op].schema.name);
        ts_graph_write_node(e->graph, &nodes[i], out);
        fputc('\n', out);
    }
}

/** Writes the folded calls. */
static void write_folded(FILE *out, const ts_exec *e)
{
    const ts_folded *f = e->folded.data;
    for (uint32_t i = 0; i < e->folded.count; i++)
        fprintf(out, "call %u, %s, %s\n", f[i].call, ts_ops[f[i].op].schema.name,
                f[i].constant ? "is constant and runs once" : "has its argument's elements");
    for (uint32_t i = 0; i < e->nstorages; i++)
        if (e->storages[i].constant && e->storages[i].first != UINT32_MAX)
            fprintf(out, "%lld bytes are kept, read by steps %u to %u\n",
                    (long long)e->storages[i].bytes, e->storages[i].first, e->storages[i].last);
    fprintf(out, "%u numbers must stay\n", e->known.count);
}

/** Writes the calls that take halves in place of their f32 copies. */
static void write_widened(FILE *out, const ts_exec *e)
{
    const ts_widened *w = e->widened.data;
    for (uint32_t i = 0; i < e->widened.count; i++)
        fprintf(out, "call %u, %s, takes %u halves in place of f32 copies\n", w[i].call,
                ts_ops[w[i].op].schema.name, w[i].members);
}

/** Writes the dropped cats. */
static void write_cats(FILE *out, const ts_exec *e)
{
    const ts_dropped_cat *c = e->cats.data;
    for (uint32_t i = 0; i < e->cats.count; i++)
        fprintf(out, "call %u, cat of %u parts, was dropped: %lld bytes are not copied\n",
                c[i].call, c[i].parts, (long long)c[i].bytes);
}

/** Writes the moves of steps, in the order in which they were made. */
static void write_moved(FILE *out, const ts_exec *e)
{
    const ts_moved *m = e->moved.data;
    for (uint32_t i = 0; i < e->moved.count; i++)
        fprintf(out, "step %u (%s) moved to position %u: at most %lld bytes, before %lld\n",
                m[i].from, ts_graph_node_name(e->graph, ts_graph_node_at(e->graph, m[i].node)),
                m[i].to, (long long)m[i].new_peak, (long long)m[i].peak);
}

/** Writes the numbers of the values on a storage, its bytes, and the steps that use it. */
static void write_storage(FILE *out, const ts_exec *e, uint32_t i)
{
    const ts_plan_storage *s = &e->storages[i];
    const ts_graph_value *values = e->graph->values.data;
    fprintf(out, "%12lld bytes, steps %u to %u:", (long long)s->bytes, s->first, s->last);
    for (uint32_t v = ((const ts_graph_storage *)e->graph->storages.data)[i].newest; v;
         v = values[v - 1].before)
        fprintf(out, " %%%u", v - 1);
    fputc('\n', out);
}

/** Writes the bytes in use at each step, and the offset of each storage in the arena. */
static void write_memory(FILE *out, const ts_exec *e)
{
    fprintf(out, "at most %lld bytes, at step %u; arena of %lld bytes\n", (long long)e->peak,
            e->peak_step, (long long)e->arena_bytes);
    for (uint32_t k = 0; k < e->nsteps; k++) {
        int64_t live = 0;
        for (uint32_t i = 0; i < e->nstorages; i++) {
            const ts_plan_storage *s = &e->storages[i];
            if (ts_needs_memory(s) && s->first <= k && (s->held || s->last >= k))
                live += s->bytes;
        }
        fprintf(out, "step %u: %lld bytes\n", k, (long long)live);
    }
    for (uint32_t i = 0; i < e->nstorages; i++)
        if (e->offsets[i] >= 0) {
            fprintf(out, "offset %12lld: ", (long long)e->offsets[i]);
            write_storage(out, e, i);
        }
}

/** Writes the storages that are kept across the peak, and the recomputed calls. */
static void write_recomputed(FILE *out, const ts_exec *e)
{
    fprintf(out, "at most %lld bytes; %lld without recomputed calls\n", (long long)e->peak,
            (long long)e->kept_peak);
    fprintf(out, "kept across step %u:\n", e->peak_step);
    for (uint32_t i = 0; i < e->nstorages; i++) {
        const ts_plan_storage *s = &e->storages[i];
        if (ts_needs_memory(s) && s->first < e->peak_step && s->last > e->peak_step)
            write_storage(out, e, i);
    }
    fprintf(out, "recomputed:\n");
    for (uint32_t k = 0; k < e->nsteps; k++)
        for (uint32_t i = e->steps[k].first; i < e->steps[k].first + e->steps[k].count; i++) {
            const ts_graph_node *n = ts_graph_node_at(e->graph, e->order[i]);
            if (!(n->flags & TS_NODE_RECOMPUTED))
                continue;
            fprintf(out, "  step %u: ", k);
            ts_graph_write_node(e->graph, n, out);
            write_inside(out, e, n);
            fputc('\n', out);
        }
}

/** Writes the calls that equal earlier calls and were dropped. */
static void write_merged(FILE *out, const ts_exec *e)
{
    const ts_merged *m = e->merged.data;
    for (uint32_t i = 0; i < e->merged.count; i++)
        fprintf(out, "call %u, %s, equals call %u\n", m[i].call, ts_ops[m[i].op].schema.name,
                m[i].first);
    fprintf(out, "%u pairs of numbers must be equal\n", e->equal.count);
}

/** Writes the calls that the plan drops and that equal no earlier call. The graph of a plan with
 *  recomputed calls no longer has them, so nothing is written for it. */
static void write_dead(FILE *out, const ts_exec *e)
{
    for (uint32_t i = 0; i < e->graph->nodes.count; i++) {
        const ts_graph_node *n = ts_graph_node_at(e->graph, i);
        uint32_t k = 0;
        while (k < e->nnodes && e->order[k] != i)
            k++;
        if (k < e->nnodes || !n->nrets || (n->flags & TS_NODE_CONSTANT_CALL))
            continue;
        fprintf(out, "call %u: ", n->end);
        ts_graph_write_node(e->graph, n, out);
        fputc('\n', out);
    }
}

/** A hash of a plan that wrote files. The list lives as long as the process. */
typedef struct used_hash {
    struct used_hash *next;
    uint64_t hash;
} used_hash;

/** Adds a hash to the list; returns how often the list had it before. */
static uint32_t use_hash(uint64_t hash)
{
    static _Atomic(used_hash *) list;
    used_hash *u = malloc(sizeof *u), *first = atomic_load(&list);
    uint32_t count;
    do {
        count = 0;
        for (const used_hash *old = first; old; old = old->next)
            count += old->hash == hash;
        if (u)
            *u = (used_hash){first, hash};
    } while (u && !atomic_compare_exchange_weak(&list, &first, u));
    return count;
}

FILE *ts_dump_open(const ts_exec *e, const char *stage, const char *end)
{
    const char *folder = getenv("TS_DUMP");
    char path[600], number[16] = "";
    if (!folder || !*folder)
        return NULL;
    if (e->dumped)
        snprintf(number, sizeof number, ".%u", e->dumped + 1);
    int length = snprintf(path, sizeof path, "%s/%s-%016llx%s%s", folder, stage,
                          (unsigned long long)e->hash, number, end);
    return length < (int)sizeof path ? fopen(path, "wb") : NULL;
}

void ts_exec_dump(ts_exec *e, const char *name)
{
    static const struct {
        const char *stage;
        void (*write)(FILE *, const ts_exec *);
    } files[] = {
        {"decompose", write_parts},   {"fold", write_folded},   {"common", write_merged},
        {"dead", write_dead},         {"fuse", write_groups},   {"horizontal", write_members},
        {"epilogue", write_products}, {"plan", write_steps},    {"recompute", write_recomputed},
        {"memory", write_memory},     {"widen", write_widened}, {"cats", write_cats},
        {"order", write_moved}};
    const char *folder = getenv("TS_DUMP");
    if (!folder || !*folder)
        return;
    TS_C_LOCALE;
    e->dumped = use_hash(e->hash);
    for (int i = 0; i < TS_COUNTOF(files); i++) {
        FILE *out = ts_dump_open(e, files[i].stage, ".txt");
        if (!out)
            return;
        fprintf(out, "%s: %u calls in %u steps, %u groups of %u calls; %lld bytes moved, %lld one "
                     "by one\n",
                name, e->nnodes, e->nsteps, e->ngroups, e->nfused, (long long)e->fused_bytes,
                (long long)e->bytes);
        files[i].write(out, e);
        fclose(out);
    }
}
