/**
 * @file source.c
 * Generates the source of a fused group's kernel. A thread loads an access of each tensor, applies
 * the functors of the calls to its elements in order, and stores the tensors that calls write. Each
 * call's result is rounded to its dtype, as eager calls round it when they store it.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/current.h"
#include "backends/cuda/fuse/source.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- text ---- */

void ts_cuda_text_put(text *t, const char *format, ...)
{
    for (int turn = 0; turn < 2 && !t->failed; turn++) {
        va_list list;
        va_start(list, format);
        size_t left = t->capacity - t->used;
        int n = vsnprintf(t->at ? t->at + t->used : NULL, left, format, list);
        va_end(list);
        if (n >= 0 && (size_t)n < left) {
            t->used += (size_t)n;
            return;
        }
        size_t capacity = 2 * t->capacity + (size_t)n + 4096;
        char *larger = n < 0 || turn ? NULL : realloc(t->at, capacity);
        if (larger) {
            t->at = larger;
            t->capacity = capacity;
        }
        t->failed = !larger;
    }
}

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

const char *const ts_cuda_type_names[] = {
    [TS_F64] = "double", [TS_F32] = "float", [TS_BF16] = "bf16", [TS_F16] = "f16",
    [TS_I64] = "int64_t", [TS_I32] = "int32_t", [TS_U8] = "uint8_t", [TS_BOOL] = "bool"};
#define types ts_cuda_type_names

/** True if a type name printed by the compiler is the element type of a dtype. */
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
    /* Copies and selections move bits as integers: a copy moves elements of its result's dtype, a
     * selection elements of the compute dtype. */
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

/** Appends the parameters of a group with members. Then defines variables with the names that an
 *  ordinary group has as parameters, from the table's entries of the block's member. */
static void put_members(text *t, const ts_cuda_group *g, call_names names)
{
    int tensors = 0, numbers = 0;
    for (int i = 0; i < g->nvalues; i++)
        tensors += g->values[i].way != TS_CUDA_INSIDE;
    for (int c = 0; c < g->ncalls; c++)
        for (int k = 1; k < g->calls[c].formula.operands; k++)
            numbers += g->calls[c].formula.host[k];
    put(t, "extern \"C\" __global__ void __launch_bounds__(%d) group("
           "const __grid_constant__ group_members<%d, %d, %d> m",
        g->threads, g->members, tensors, numbers);
    for (int c = 0; c < g->ncalls; c++)
        if (g->calls[c].formula.bytes)
            put(t, ",\n    const %.*s f%d", names[c][0].length, names[c][0].text, c);
    put(t, ")\n{\n    const uint32_t own = m.of_block(blockIdx.x);\n"
           "    const uint32_t block = blockIdx.x - m.first[own];\n"
           "    const group_space s = m.space(own);\n");
    tensors = numbers = 0;
    for (int i = 0; i < g->nvalues; i++) {
        const ts_cuda_group_value *v = &g->values[i];
        if (v->way != TS_CUDA_INSIDE)
            put(t, "    const group_tensor<1> t%d = {m.data[%d][own], {%d}};\n", i, tensors++,
                v->way == TS_CUDA_ARRAY ? v->item * g->width : 0);
    }
    for (int c = 0; c < g->ncalls; c++)
        for (int k = 1; k < g->calls[c].formula.operands; k++)
            if (g->calls[c].formula.host[k])
                put(t, "    const double n%d_%d = m.number[%d][own];\n", c, k, numbers++);
}

void ts_cuda_put_kernel(text *t, const ts_cuda_group *g, call_names names, const char *kernel)
{
    if (g->members) {
        put_members(t, g, names);
        return;
    }
    put(t, "extern \"C\" __global__ void __launch_bounds__(%d, %d) %s(const __grid_constant__ "
           "group_space s%s",
        g->threads, g->resident, kernel,
        g->folds ? ",\n    const __grid_constant__ group_folds d" : "");
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].sums && g->values[i].data)
            put(t, ",\n    float *const p%d", i);
        else if (g->values[i].way != TS_CUDA_INSIDE)
            put(t, ",\n    const __grid_constant__ group_tensor<%d> t%d", g->ndim, i);
    for (int c = 0; c < g->ncalls; c++) {
        const ts_cuda_formula *f = &g->calls[c].formula;
        for (int k = 1; k < f->operands; k++)
            if (f->host[k])
                put(t, ",\n    const double n%d_%d", c, k);
        if (f->bytes)
            put(t, ",\n    const %.*s f%d", names[c][0].length, names[c][0].text, c);
        if (g->calls[c].fold)
            put(t, ",\n    const double n%d,\n    void *const q%d", c, c);
    }
    put(t, ")\n{\n    const uint32_t block = blockIdx.x;\n");
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

/** Opens the loop over a thread's accesses. It defines i, the index of the access; `at`, its
 *  position; and `some`, the number of its elements. */
static void put_loop_head(text *t, const ts_cuda_group *g)
{
    put(t, "#pragma unroll\n    for (int u = 0; u < %d; u++) {\n"
           "        const index i = first + u * %d;\n"
           "        if (i >= s.accesses)\n            break;\n"
           "        const position<%d, index> at(s, i);\n",
        g->unroll, TS_CUDA_GROUP_THREADS, g->ndim);
    if (g->tail)
        put(t, "        const int some = i == s.accesses - 1 ? s.tail : %d;\n", g->width);
    else
        put(t, "        constexpr int some = %d;\n", g->width);
}

void ts_cuda_put_load(text *t, const ts_cuda_group *g, int i)
{
    const ts_cuda_group_value *v = &g->values[i];
    bool one = v->way == TS_CUDA_ONE;
    put(t, "        x%d[u] = %s<%s, %d>(", i, one ? "load_one" : "load", types[v->dtype],
        g->width);
    put_address(t, g, i);
    put(t, one ? ");\n" : ", some, read);\n");
}

void ts_cuda_put_store(text *t, const ts_cuda_group *g, int i)
{
    put(t, "        store<%s, %d>(", types[g->values[i].dtype], g->width);
    put_address(t, g, i);
    put(t, ", some, y%d);\n", i);
}

static void put_loads(text *t, const ts_cuda_group *g)
{
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].read)
            put(t, "    vec<%s, %d> x%d[%d];\n", types[g->values[i].dtype], g->width, i, g->unroll);
    put_loop_head(t, g);
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].read)
            ts_cuda_put_load(t, g, i);
    put(t, "    }\n");
}

/** Appends the name of a value's variable; by rows, with the index e of the thread's element. */
static void put_value(text *t, const ts_cuda_group *g, int i, int version)
{
    put(t, "v%d_%d%s", i, version, g->rows && !g->values[i].each ? "[e]" : "");
}

/** True if `functor` is fn::NAME_fn. */
static bool is_functor(const name *functor, const char *wanted)
{
    size_t length = strlen(wanted), all = (size_t)functor->length;
    return all >= length + 7 && memcmp(functor->text + all - 3, "_fn", 3) == 0 &&
           memcmp(functor->text + all - 3 - length, wanted, length) == 0 &&
           functor->text[all - 4 - length] == ':';
}

/** True if the call's tensors all have its compute dtype, and it has no numbers. */
static bool is_plain(const ts_cuda_group *g, const ts_cuda_group_call *call)
{
    bool plain = g->values[call->value[0]].dtype == call->compute;
    for (int k = 1; k < call->formula.operands; k++)
        plain = plain && !call->formula.host[k] && !call->cast[k] &&
                g->values[call->value[k]].dtype == call->compute;
    return plain;
}

/** Appends a sum or product of f16 as an instruction of f16. False if the call is another one. */
static bool put_of_halves(text *t, const ts_cuda_group *g, int c, const name *names,
                          const int *version)
{
    static const char *const ops[] = {"add", "sub", "mul"};
    const ts_cuda_group_call *call = &g->calls[c];
    for (int i = 0; i < 3 && call->compute == TS_F16 && is_plain(g, call); i++) {
        if (!is_functor(&names[0], ops[i]) || call->formula.operands != 3)
            continue;
        put(t, "%s_halves(", ops[i]);
        put_value(t, g, call->value[1], version[call->value[1]]);
        put(t, ", ");
        put_value(t, g, call->value[2], version[call->value[2]]);
        put(t, ")");
        return true;
    }
    return false;
}

/** Appends a pointwise call's result, as an expression of its operands. word: index of the random
 *  word. */
static void put_expression(text *t, const ts_cuda_group *g, int c, const name *names,
                           const int *version, const char *word)
{
    const ts_cuda_group_call *call = &g->calls[c];
    const ts_cuda_formula *f = &call->formula;
    static const char *const exact[] = {"relu", "maximum", "minimum", "abs"};
    bool rounds = true;
    if (put_of_halves(t, g, c, names, version))
        return;
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        rounds &= !(is_functor(&names[0], exact[i]) && is_plain(g, call));
    if (rounds)
        put(t, "result<%s, %.*s>(apply_fn<%.*s>(", types[g->values[call->value[0]].dtype],
            names[1].length, names[1].text, names[1].length, names[1].text);
    else
        put(t, "exact<%s>(apply_fn<%.*s>(", types[g->values[call->value[0]].dtype],
            names[1].length, names[1].text);
    if (f->bytes)
        put(t, "f%d", c);
    else
        put(t, "%.*s{}", names[0].length, names[0].text);
    if (f->draws)
        put(t, ", w%d.w[%s]", c, word);
    for (int k = 1; k < f->operands; k++) {
        const name *n = &names[k + 1];
        int i = call->value[k];
        if (f->host[k]) {
            put(t, ",\n                number_as<%.*s, %d>(n%d_%d)", n->length, n->text,
                f->operands, c, k);
            continue;
        }
        const char *dtype = types[g->values[i].dtype], *compute = types[call->compute];
        if (call->cast[k])
            put(t, ",\n                operand<%.*s, %s>(cast<%s, %s>(", n->length, n->text,
                compute, compute, dtype);
        else
            put(t, ",\n                operand<%.*s, %s>(", n->length, n->text, dtype);
        put_value(t, g, i, version[i]);
        put(t, call->cast[k] ? "))" : ")");
    }
    put(t, "))");
}

void ts_cuda_put_call(text *t, const ts_cuda_group *g, int c, const name *names, int *version)
{
    int to = g->calls[c].value[0];
    put(t, "            const in_register_t<%s> v%d_%d = ", types[g->values[to].dtype], to,
        version[to] + 1);
    put_expression(t, g, c, names, version, "e");
    put(t, ";\n");
    version[to]++;
}

static void put_calls(text *t, const ts_cuda_group *g, call_names names,
                      int *version)
{
    put_loop_head(t, g);
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
        ts_cuda_put_call(t, g, c, names[c], version);
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].written)
            put(t, "            y%d.at[e] = from_register<%s>(v%d_%d);\n", i,
                types[g->values[i].dtype], i, version[i]);
    put(t, "        }\n");
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].written)
            ts_cuda_put_store(t, g, i);
    put(t, "    }\n}\n");
}

/* ------------------------------------------------------------------------------ by rows ---- */

static void put_row_loads(text *t, const ts_cuda_group *g)
{
    for (int i = 0; i < g->nvalues; i++) {
        const ts_cuda_group_value *v = &g->values[i];
        const char *type = types[v->dtype];
        if (v->read && v->each)
            put(t, "        const in_register_t<%s> v%d_0 = "
                   "to_register(*(const %s *)at.of(t%d));\n",
                type, i, type, i);
        else if (v->read)
            put(t, "        in_register_t<%s> v%d_0[%d];\n"
                   "        rows.load<%s>(v%d_0, at.of(t%d));\n",
                type, i, g->accesses * g->width, type, i, i);
    }
}

/** By rows: appends a pointwise call, as a loop over the thread's elements of a row, or once if the
 * result has one element per row. */
static void put_row_point(text *t, const ts_cuda_group *g, int c, const name *names, int *version)
{
    int to = g->calls[c].value[0];
    const char *type = types[g->values[to].dtype];
    if (g->values[to].each) {
        ts_cuda_put_call(t, g, c, names, version);
        return;
    }
    put(t, "        in_register_t<%s> v%d_%d[%d];\n"
           "#pragma unroll\n        for (int a = 0; a < %d; a++) {\n",
        type, to, version[to] + 1, g->accesses * g->width, g->accesses);
    if (g->calls[c].formula.draws)
        put(t, "            const draw_words<%d> w%d(f%d.seed, f%d.offset,\n"
               "                (uint64_t)row * s.tail + rows.column(a));\n",
            g->width, c, c, c);
    put(t, "#pragma unroll\n            for (int k = 0; k < %d; k++) {\n"
           "                const int e = a * %d + k;\n                v%d_%d[e] = ",
        g->width, g->width, to, version[to] + 1);
    put_expression(t, g, c, names, version, "k");
    put(t, ";\n            }\n        }\n");
    version[to]++;
}

/** Appends a call by rows: declarations of its results, then the call of its function. */
static void put_row_call(text *t, const ts_cuda_group *g, int c, int *version)
{
    const ts_cuda_group_call *call = &g->calls[c];
    const ts_cuda_formula *f = &call->formula;
    int before[TS_KERNEL_OPERANDS];
    for (int k = 1; k < f->operands; k++)
        before[k] = call->value[k] < 0 ? 0 : version[call->value[k]];
    for (int r = 0; r < call->results; r++) {
        int i = call->result[r];
        if (i < 0 || g->values[i].sums)
            continue;
        put(t, "        in_register_t<%s> v%d_%d", types[g->values[i].dtype], i, ++version[i]);
        if (!g->values[i].each)
            put(t, "[%d]", g->accesses * g->width);
        put(t, ";\n");
    }
    put(t, "        rows.%s<%s>(", call->rows, types[call->compute]);
    for (int r = 0; r < call->results; r++) {
        int i = call->result[r];
        put(t, r ? ", " : "");
        if (i < 0 || (g->values[i].sums && !g->values[i].data))
            put(t, "none");
        else if (g->values[i].sums)
            put(t, "c%d", i);
        else
            put(t, "v%d_%d", i, version[i]);
    }
    for (int k = 1; k < f->operands; k++) {
        if (f->host[k])
            put(t, ", (float)n%d_%d", c, k);
        else if (call->value[k] < 0)
            put(t, ", none");
        else
            put(t, ", v%d_%d", call->value[k], before[k]);
    }
    put(t, ");\n");
}

static void put_rows(text *t, const ts_cuda_group *g, call_names names,
                     int *version)
{
    int n = g->accesses * g->width;
    if (g->lanes > 32)
        put(t, "    __shared__ float shared[%d];\n", 128 * g->together);
    if (g->lines && g->together > 1)
        put(t, "    __shared__ float total[%d];\n", g->lanes * n);
    put(t, "    group_rows<%d, %d, %d, %d, %s> rows(s.tail, %s);\n"
           "    const uint32_t slot = threadIdx.x / %d;\n    absent none;\n",
        g->lanes, g->together, g->accesses, g->width, g->full ? "true" : "false",
        g->lanes > 32 ? "shared" : "nullptr", g->lanes);
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].sums && g->values[i].data)
            put(t, "    float c%d[%d] = {};\n", i, n);
    put(t, "    for (uint32_t base = blockIdx.x * %d; base < s.accesses;\n"
           "         base += gridDim.x * %d) {\n"
           "        const uint32_t row = base + slot;\n"
           "        rows.some = row < s.accesses;\n"
           "        const position<%d, uint32_t> at(s, rows.some ? row : 0);\n",
        g->together, g->together, g->ndim);
    put_row_loads(t, g);
    for (int c = 0; c < g->ncalls; c++)
        if (g->calls[c].rows)
            put_row_call(t, g, c, version);
        else
            put_row_point(t, g, c, names[c], version);
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].written && !g->values[i].sums)
            put(t, "        rows.%s<%s>(at.of(t%d), v%d_%d);\n",
                g->values[i].each ? "store_one" : "store", types[g->values[i].dtype], i, i,
                version[i]);
    put(t, "    }\n");
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].sums && g->values[i].data)
            put(t, "    rows.store_sums(p%d + (uint64_t)blockIdx.x * s.tail, c%d, %s);\n", i, i,
                g->together > 1 ? "total" : "nullptr");
    put(t, "}\n");
}

/* All that the source depends on must be in the words. */
int ts_cuda_group_words(const ts_cuda_group *g, uint64_t *words)
{
    int n = 0, members = __builtin_ctz((unsigned)g->members | 1 << 30);
    words[n++] = (uint64_t)ts_cuda_current->index | (uint64_t)g->ndim << 8 |
                 (uint64_t)g->width << 16 | (uint64_t)g->large << 24 |
                 (uint64_t)g->tail << 25 | (uint64_t)members << 26 |
                 (uint64_t)g->nvalues << 32 | (uint64_t)g->ncalls << 48;
    words[n++] = (uint64_t)g->lanes | (uint64_t)g->together << 16 | (uint64_t)g->accesses << 32 |
                 (uint64_t)g->full << 40 | (uint64_t)(g->rows > 0) << 41 |
                 (uint64_t)g->folds << 42 | (uint64_t)g->vector << 43 | (uint64_t)g->direct << 44 |
                 (uint64_t)g->division.beside << 45 | (uint64_t)g->resident << 48;
    for (int i = 0; i < g->nvalues; i++) {
        const ts_cuda_group_value *v = &g->values[i];
        words[n++] = v->dtype | (uint64_t)v->way << 8 | (uint64_t)v->read << 16 |
                     (uint64_t)v->written << 17 | (uint64_t)v->each << 18 |
                     (uint64_t)v->sums << 19 | (uint64_t)v->late << 20 | (uint64_t)v->stored << 21 |
                     (uint64_t)(v->data && ts_numel(v->tensor) == 1) << 22;
    }
    for (int c = 0; c < g->ncalls; c++) {
        const ts_cuda_group_call *call = &g->calls[c];
        words[n++] = (uintptr_t)call->formula.names;
        uint64_t indices = 0;
        for (int k = 0; k < call->formula.operands; k++)
            indices = indices << 10 | (uint16_t)(call->value[k] + 1);
        words[n++] = indices;
        indices = 0;
        for (int k = 0; k < call->results; k++)
            indices = indices << 10 | (uint16_t)(call->result[k] + 1);
        words[n++] = indices;
        words[n++] = call->compute | (uint64_t)call->late << 8;
    }
    return n;
}

char *ts_cuda_group_source(const ts_cuda_group *g)
{
    text t = {0};
    call_names names = calloc((size_t)g->ncalls, sizeof *names);
    int *version = calloc((size_t)g->nvalues, sizeof *version);
    bool ok = names && version;
    for (int c = 0; c < g->ncalls && ok; c++)
        ok = g->calls[c].rows || g->calls[c].fold || read_names(g->calls[c].formula.names, names[c],
                                            g->calls[c].formula.operands + 1);
    if (ok) {
        put(&t, "using namespace ts;\n");
        ts_cuda_put_kernel(&t, g, names, "group");
    }
    if (ok && g->folds) {
        ts_cuda_put_folds(&t, g, names, version);
    } else if (ok && g->rows) {
        put_rows(&t, g, names, version);
    } else if (ok) {
        put(&t, "    typedef %s index;\n"
                "    const index first = (index)block * %d + threadIdx.x;\n"
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
