/**
 * @file folds_source.c
 * Generates the kernels of a fused group with folds. A thread computes accesses of the space in the
 * order in which the eager kernel reduces them (reduce.cuh), and adds their elements to its states.
 * The threads' states are merged in the eager order, too; then one thread per result applies the
 * calls on results.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/fuse/source.h"

#include <stdlib.h>
#include <string.h>

#define types ts_cuda_type_names

/** Appends the folds, as constants g0, g1, ... */
static void put_fold_constants(text *t, const ts_cuda_group *g)
{
    put(t, "    using T = %s;\n    using W = wide_t<T>;\n", types[g->fold_dtype]);
    for (int c = 0; c < g->ncalls; c++)
        if (g->calls[c].fold)
            put(t, "    const auto g%d = [](double factor) { return %s; }(n%d);\n", c,
                g->calls[c].fold, c);
}

/** Results of a thread. */
static int states_of(const ts_cuda_group *g) { return g->division.beside ? g->piece : 1; }

/** Opens the loop over a thread's g->unroll accesses at a time. It defines i, `at` and `some`, as
 *  in a pointwise group. */
static void put_accesses(text *t, const ts_cuda_group *g)
{
    bool wide = g->width > 1;
    put(t, "#pragma unroll\n    for (int u = 0; u < %d; u++) {\n", g->unroll);
    if (g->division.beside && wide)
        put(t, "        const index p = line + u * own.lines;\n"
               "        if (p >= own.end)\n            break;\n"
               "        const index i = (own.at[0] + p * (index)d.inner) / %d;\n",
            g->piece);
    else if (g->division.beside)
        put(t, "        if (own.result(d, u) >= d.results)\n            break;\n"
               "        const index i = own.at[u] + line * (index)d.inner;\n");
    else if (g->vector && !wide)
        put(t, "        const index i = (own.first + line) * %d + u;\n", g->piece);
    else
        put(t, "        const index p = line + u * d.group;\n"
               "        if (p >= own.end)\n            break;\n"
               "        const index i = own.first + p;\n");
    put(t, "        const position<%d, index> at(s, i);\n"
           "        constexpr int some = %d;\n", g->ndim, g->width);
}

/** Appends the calls on the space, and the additions to states, for one access. */
static void put_elements(text *t, const ts_cuda_group *g, call_names names, int *version)
{
    const char *state = !g->division.beside ? "0" : g->width > 1 ? "e" : "u";
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].written)
            put(t, "        vec<%s, %d> y%d;\n", types[g->values[i].dtype], g->width, i);
    for (int c = 0; c < g->ncalls; c++)
        if (g->calls[c].formula.draws && !g->calls[c].fold)
            put(t, "        const draw_words<%d> w%d(f%d.seed, f%d.offset, (uint64_t)i * %d);\n",
                g->width, c, c, c, g->width);
    put(t, "#pragma unroll\n        for (int e = 0; e < %d; e++) {\n", g->width);
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].read)
            put(t, "            const in_register_t<%s> v%d_0 = to_register(x%d[u].at[e]);\n",
                types[g->values[i].dtype], i, i);
    for (int c = 0; c < g->ncalls; c++) {
        int from = g->calls[c].value[1];
        if (g->calls[c].fold)
            put(t, "            {\n                const W one[1] = {operand<T, T>(v%d_%d)};\n"
                   "                g%d.take(a%d[%s], one);\n            }\n",
                from, version[from], c, c, state);
        else if (!g->calls[c].late)
            ts_cuda_put_call(t, g, c, names[c], version);
    }
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].written)
            put(t, "            y%d.at[e] = from_register<%s>(v%d_%d);\n", i,
                types[g->values[i].dtype], i, version[i]);
    put(t, "        }\n");
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].written)
            ts_cuda_put_store(t, g, i);
}

/** Appends the loop that reduces the elements of a thread. */
static void put_loop(text *t, const ts_cuda_group *g, call_names names, int *version)
{
    bool beside = g->division.beside,
         lines = g->width > 1 || (!beside && !g->vector); /* an access per line */
    put(t, "    for (index line = own.begin; line < own.end; line += %s * %d) {\n",
        beside ? "own.lines" : "d.group", lines ? g->unroll : 1);
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].read)
            put(t, "    vec<%s, %d> x%d[%d];\n", types[g->values[i].dtype], g->width, i,
                g->unroll);
    put_accesses(t, g);
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].read)
            ts_cuda_put_load(t, g, i);
    put(t, "    }\n");
    put_accesses(t, g);
    put_elements(t, g, names, version);
    put(t, "    }\n    }\n");
}

/** Appends the calls on result r. state: name of a fold's state after its prefix and number. */
static void put_results(text *t, const ts_cuda_group *g, call_names names, int *version,
                        char prefix, const char *state)
{
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].late) {
            const char *type = types[g->values[i].dtype];
            version[i] = 0;
            put(t, "        const in_register_t<%s> v%d_0 = "
                   "to_register(((const %s *)t%d.data)[%s]);\n",
                type, i, type, i, ts_numel(g->values[i].tensor) == 1 ? "0" : "r");
        }
    for (int c = 0; c < g->ncalls; c++) {
        int to = g->calls[c].value[0];
        if (g->calls[c].fold)
            put(t, "        const in_register_t<T> v%d_%d = result<T, T>(g%d.finish(%c%d%s));\n",
                to, ++version[to], c, prefix, c, state);
        else if (g->calls[c].late)
            ts_cuda_put_call(t, g, c, names[c], version);
    }
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].stored)
            put(t, "        ((%s *)t%d.data)[r] = from_register<%s>(v%d_%d);\n",
                types[g->values[i].dtype], i, types[g->values[i].dtype], i, version[i]);
}

/** Appends the merges of the threads' states, and the results or the stores of states. */
static void put_merges(text *t, const ts_cuda_group *g, call_names names, int *version)
{
    bool beside = g->division.beside;
    for (int c = 0; c < g->ncalls; c++)
        if (g->calls[c].fold && !beside)
            put(t, "    __syncthreads();\n    merge_lanes(g%d, a%d[0], (int)d.group);\n", c, c);
        else if (g->calls[c].fold && !g->direct)
            put(t, "    store_lines(g%d, a%d, d, own, q%d);\n", c, c, c);
    if (beside && g->direct)
        put(t, "#pragma unroll\n    for (int k = 0; k < %d; k++) {\n"
               "        const index r = own.result(d, k);\n"
               "        if (r >= d.results)\n            break;\n",
            g->piece);
    else if (!beside)
        put(t, "    if (own.some && own.lane == 0) {\n        const index r = own.result;\n");
    if (g->direct)
        put_results(t, g, names, version, 'a', beside ? "[k]" : "[0]");
    for (int c = 0; c < g->ncalls && !g->direct && !beside; c++)
        if (g->calls[c].fold)
            put(t, "        ((W *)q%d)[own.part * d.results + r] = a%d[0];\n", c, c);
    put(t, beside && !g->direct ? "}\n" : "    }\n}\n");
}

void ts_cuda_put_folds(text *t, const ts_cuda_group *g, call_names names, int *version)
{
    put(t, "    typedef %s index;\n"
           "    const read_once read((int64_t)s.accesses * 16, false);\n",
        g->large ? "uint64_t" : "uint32_t");
    put_fold_constants(t, g);
    if (g->division.beside)
        put(t, "    const fold_beside<%d, %s, index> own(d);\n", g->piece,
            g->width > 1 ? "true" : "false");
    else
        put(t, "    const fold_along<index> own(d);\n");
    for (int c = 0; c < g->ncalls; c++)
        if (g->calls[c].fold)
            put(t, "    W a%d[%d];\n#pragma unroll\n    for (int k = 0; k < %d; k++)\n"
                   "        a%d[k] = g%d.none();\n",
                c, states_of(g), states_of(g), c, c);
    put_loop(t, g, names, version);
    put_merges(t, g, names, version);
    if (g->direct)
        return;
    ts_cuda_put_kernel(t, g, names, "merge");
    put_fold_constants(t, g);
    for (int c = 0; c < g->ncalls; c++)
        if (g->calls[c].fold)
            put(t, "    const W m%d = merged(g%d, d, q%d);\n", c, c, c);
    put(t, "    const uint64_t r = (uint64_t)blockIdx.x * d.merges + threadIdx.x;\n"
           "    if (threadIdx.x < d.merges && r < d.results) {\n");
    put_results(t, g, names, version, 'm', "");
    put(t, "    }\n}\n");
}
