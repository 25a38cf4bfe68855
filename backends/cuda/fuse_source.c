/**
 * @file fuse_source.c
 * Generates the source of a fused group's kernel. A thread loads an access of each tensor, applies
 * the functors of the calls to its elements in order, and stores the tensors that calls write. Each
 * call's result is rounded to its dtype, as eager calls round it when they store it.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/fuse.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- text ---- */

typedef struct text {
    char *at;
    size_t used, room;
    bool failed;
} text;

static __attribute__((format(printf, 2, 3))) void put(text *t, const char *format, ...)
{
    for (int turn = 0; turn < 2 && !t->failed; turn++) {
        va_list list;
        va_start(list, format);
        size_t left = t->room - t->used;
        int n = vsnprintf(t->at ? t->at + t->used : NULL, left, format, list);
        va_end(list);
        if (n >= 0 && (size_t)n < left) {
            t->used += (size_t)n;
            return;
        }
        size_t room = 2 * t->room + (size_t)n + 4096;
        char *larger = n < 0 || turn ? NULL : realloc(t->at, room);
        if (larger) {
            t->at = larger;
            t->room = room;
        }
        t->failed = !larger;
    }
}

/** A type name in the text of a formula, with its length. */
typedef struct name {
    const char *text;
    int length;
} name;
/** Splits a formula's names into n type names. False if the text has another form. */
static bool read_names(const char *names, name *into, int n)
{
    const char *at = strstr(names, "X = ");
    if (!at || (at[4] != '{' && at[4] != '<'))
        return false;
    int depth = 0, count = 0;
    const char *begin = at + 5;
    for (at = begin; *at; at++) {
        bool ends = depth == 0 && (*at == ',' || *at == '}' || *at == '>');
        if (ends) {
            if (count == n)
                return false;
            into[count++] = (name){begin, (int)(at - begin)};
            if (*at != ',')
                return count == n;
            begin = at + (at[1] == ' ' ? 2 : 1);
        }
        depth += (*at == '<') - (*at == '>');
    }
    return false;
}

/* -------------------------------------------------------------------------------- source ---- */

static const char *const types[] = {
    [TS_F64] = "double", [TS_F32] = "float", [TS_BF16] = "bf16", [TS_F16] = "f16",
    [TS_I64] = "int64_t", [TS_I32] = "int32_t", [TS_U8] = "uint8_t", [TS_BOOL] = "bool"};

/** Whether a type name printed by the compiler is the element type of a dtype. */
static bool is_name_of(const name *n, int dtype)
{
    static const char *const printed[] = {
        [TS_F64] = "double", [TS_F32] = "float", [TS_BF16] = "__nv_bfloat16", [TS_F16] = "__half",
        [TS_I64] = "long", [TS_I32] = "int", [TS_U8] = "unsigned char", [TS_BOOL] = "bool"};
    size_t length = strlen(printed[dtype]);
    return strncmp(n->text, printed[dtype], length) == 0 &&
           (n->length == (int)length || (dtype == TS_I64 && strncmp(n->text, "long int", 8) == 0));
}

bool ts_cuda_group_casts(ts_cuda_group_call *call, const ts_cuda_group_value *values)
{
    const ts_cuda_formula *f = &call->formula;
    name names[TS_KERNEL_OPERANDS + 1];
    if (!read_names(f->names, names, f->operands + 1))
        return false;
    /* Copies and selections move bits as integers: a copy those of its result's dtype, a selection
     * those of the compute dtype. */
    bool copies = strstr(f->names, "::same_fn"), chooses = strstr(f->names, "::choose_fn");
    for (int k = 1; k < f->operands && !copies; k++) {
        if (f->host[k])
            continue;
        int dtype = values[call->value[k]].dtype;
        bool fits = is_name_of(&names[k + 1], dtype);
        if (chooses && k > 1 && fits && dtype != call->compute)
            return false;
        if (fits || (chooses && dtype == call->compute))
            continue;
        call->cast[k] = is_name_of(&names[k + 1], call->compute);
        if (!call->cast[k])
            return false;
    }
    return true;
}

static void put_parameters(text *t, const ts_cuda_group *g, name (*names)[TS_KERNEL_OPERANDS + 1])
{
    put(t, "extern \"C\" __global__ void __launch_bounds__(%d) group(const __grid_constant__ "
           "group_space s",
        TS_CUDA_GROUP_THREADS);
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].way != TS_CUDA_INSIDE)
            put(t, ",\n    const __grid_constant__ group_tensor<%d> t%d", g->ndim, i);
    for (int c = 0; c < g->ncalls; c++) {
        const ts_cuda_formula *f = &g->calls[c].formula;
        for (int k = 1; k < f->operands; k++)
            if (f->host[k])
                put(t, ",\n    const double n%d_%d", c, k);
        if (f->bytes)
            put(t, ",\n    const %.*s f%d", names[c][0].length, names[c][0].text, c);
    }
    put(t, ")\n{\n");
}

/** Appends the address of a tensor's access. */
static void put_address(text *t, const ts_cuda_group *g, int i)
{
    const ts_cuda_group_value *v = &g->values[i];
    if (g->ndim == 1 && v->way == TS_CUDA_ARRAY)
        put(t, "t%d.data + (int64_t)i * %d", i, v->item * g->width);
    else
        put(t, "at.of(t%d)", i);
}

static void put_loads(text *t, const ts_cuda_group *g)
{
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].read)
            put(t, "    vec<%s, %d> x%d[%d];\n", types[g->values[i].dtype], g->width, i, g->unroll);
    put(t, "#pragma unroll\n    for (int u = 0; u < %d; u++) {\n"
           "        const index i = first + u * %d;\n"
           "        if (i >= s.accesses)\n            break;\n"
           "        const place<%d, index> at(s, i);\n",
        g->unroll, TS_CUDA_GROUP_THREADS, g->ndim);
    if (g->tail)
        put(t, "        const int some = i == s.accesses - 1 ? s.tail : %d;\n", g->width);
    else
        put(t, "        constexpr int some = %d;\n", g->width);
    for (int i = 0; i < g->nvalues; i++) {
        const ts_cuda_group_value *v = &g->values[i];
        if (!v->read)
            continue;
        bool one = v->way == TS_CUDA_ONE;
        put(t, "        x%d[u] = %s<%s, %d>(", i, one ? "load_one" : "load", types[v->dtype],
            g->width);
        put_address(t, g, i);
        put(t, one ? ");\n" : ", some, read);\n");
    }
    put(t, "    }\n");
}

static void put_call(text *t, const ts_cuda_group *g, int c, const name *names, int *version)
{
    const ts_cuda_group_call *call = &g->calls[c];
    const ts_cuda_formula *f = &call->formula;
    int to = call->value[0], now[TS_KERNEL_OPERANDS];
    for (int k = 1; k < f->operands; k++)
        now[k] = f->host[k] ? 0 : version[call->value[k]];
    const char *type = types[g->values[to].dtype];
    put(t, "            const in_register_t<%s> v%d_%d = result<%s, %.*s>(apply_fn<%.*s>(", type,
        to, ++version[to], type, names[1].length, names[1].text, names[1].length, names[1].text);
    if (f->bytes)
        put(t, "f%d", c);
    else
        put(t, "%.*s{}", names[0].length, names[0].text);
    if (f->draws)
        put(t, ", w%d.w[e]", c);
    for (int k = 1; k < f->operands; k++)
        if (f->host[k])
            put(t, ",\n                number_as<%.*s, %d>(n%d_%d)", names[k + 1].length,
                names[k + 1].text, f->operands, c, k);
        else if (call->cast[k])
            put(t, ",\n                operand<%.*s, %s>(cast<%s, %s>(v%d_%d))",
                names[k + 1].length, names[k + 1].text, types[call->compute],
                types[call->compute], types[g->values[call->value[k]].dtype], call->value[k],
                now[k]);
        else
            put(t, ",\n                operand<%.*s, %s>(v%d_%d)", names[k + 1].length,
                names[k + 1].text, types[g->values[call->value[k]].dtype], call->value[k], now[k]);
    put(t, "));\n");
}

static void put_calls(text *t, const ts_cuda_group *g, name (*names)[TS_KERNEL_OPERANDS + 1],
                      int *version)
{
    put(t, "#pragma unroll\n    for (int u = 0; u < %d; u++) {\n"
           "        const index i = first + u * %d;\n"
           "        if (i >= s.accesses)\n            break;\n"
           "        const place<%d, index> at(s, i);\n",
        g->unroll, TS_CUDA_GROUP_THREADS, g->ndim);
    if (g->tail)
        put(t, "        const int some = i == s.accesses - 1 ? s.tail : %d;\n", g->width);
    else
        put(t, "        constexpr int some = %d;\n", g->width);
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].written)
            put(t, "        vec<%s, %d> y%d;\n", types[g->values[i].dtype], g->width, i);
    for (int c = 0; c < g->ncalls; c++)
        if (g->calls[c].formula.draws)
            put(t, "        const draw_words<%d> w%d(f%d.seed, f%d.offset, (uint64_t)i * %d);\n",
                g->width, c, c, c, g->width);
    put(t, "#pragma unroll\n        for (int e = 0; e < %d; e++) {\n", g->width);
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].read)
            put(t, "            const in_register_t<%s> v%d_0 = to_register(x%d[u].at[e]);\n",
                types[g->values[i].dtype], i, i);
    for (int c = 0; c < g->ncalls; c++)
        put_call(t, g, c, names[c], version);
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].written)
            put(t, "            y%d.at[e] = from_register<%s>(v%d_%d);\n", i,
                types[g->values[i].dtype], i, version[i]);
    put(t, "        }\n");
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].written) {
            put(t, "        store<%s, %d>(", types[g->values[i].dtype], g->width);
            put_address(t, g, i);
            put(t, ", some, y%d);\n", i);
        }
    put(t, "    }\n}\n");
}

char *ts_cuda_group_source(const ts_cuda_group *g)
{
    text t = {0};
    name(*names)[TS_KERNEL_OPERANDS + 1] = calloc((size_t)g->ncalls, sizeof *names);
    int *version = calloc((size_t)g->nvalues, sizeof *version);
    bool ok = names && version;
    for (int c = 0; c < g->ncalls && ok; c++)
        ok = read_names(g->calls[c].formula.names, names[c], g->calls[c].formula.operands + 1);
    if (ok) {
        put(&t, "using namespace ts;\n");
        put_parameters(&t, g, names);
        put(&t, "    typedef %s index;\n"
                "    const index first = (index)blockIdx.x * %d + threadIdx.x;\n"
                "    const read_once read((int64_t)s.accesses * 16, false);\n",
            g->large ? "uint64_t" : "uint32_t", TS_CUDA_GROUP_THREADS * g->unroll);
        put_loads(&t, g);
        put_calls(&t, g, names, version);
    }
    free(names);
    free(version);
    if (ok && !t.failed)
        return t.at;
    free(t.at);
    return NULL;
}
