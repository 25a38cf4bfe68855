/**
 * @file emit.c  Emitted groups: which calls of a group become machine code, and how it runs.
 *
 * A part is a sequence of calls with recipes, over the whole space of the group and with lanes of
 * one width. Its code computes a run of elements that is contiguous, or one element, in each
 * tensor; longer spaces take several runs. The other calls of the group run their kernels on the
 * tile (tile.c). Memory for code is written first and made executable then. If that is not allowed,
 * the group runs without code.
 */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"
#include "compile/testing.h"
#include "include/tessera/program.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CODE = 1 << 16,     /* most bytes of a part's code */
       SHORTEST_RUN = 16,  /* elements of a run, unless the space has fewer */
       FEWEST_CALLS = 2,   /* of a part */
       MOST_CODES = 8      /* of a step: with different recipes */ };

static bool enabled = true;
int (*ts_emit_protect)(void *at, size_t bytes, int protection) = mprotect;

void ts_emit_from_environment(void) { enabled = ts_variable_choice("TS_COMPILE_EMIT", "0|1") != 0; }
void ts_emit_switch(bool on) { enabled = on; }
bool ts_emit_on(void) { return enabled; }
int ts_emit_variant(void)
{
    const ts_recipe *r = ts_kernel_recipe(atomic_load(&ts_tables[TS_OP_add]));
    return r ? r->variant : 0;
}

/* -------------------------------------------------------------------------------- blocks ---- */

/** A block that is being built. */
typedef struct builder {
    const ts_emit_group *g;
    ts_emit_block b;
    uint32_t first, end;
    int16_t *current;  /* of each value of the group: node of its newest element; -1: none yet */
    int16_t *operand;  /* of each value: index of its operand; -1: none */
} builder;

/** Bytes per index of dim d of the group's space in value v; buffers are contiguous tiles. */
static int64_t step_of(const tile_value *v, int d)
{
    int at = d - v->shift;
    if (v->base)
        return v->step[d];
    if (at < 0 || at >= v->t.ndim || v->whole[at] == 1)
        return 0;
    int64_t step = ts_dtype_sizes[v->t.dtype];
    while (++at < v->t.ndim)
        step *= v->whole[at];
    return step;
}

/** The last dim of the space with more than one index; 0 if there is none. */
static int inner_dim(const ts_emit_group *g)
{
    int d = g->ndim - 1;
    while (d > 0 && g->sizes[d] == 1)
        d--;
    return d > 0 ? d : 0;
}

/** Adds value `value` (an index) as an operand; returns the operand's index, or -1. */
static int operand_of(builder *m, int value, bool stored)
{
    ts_emit_block *b = &m->b;
    const tile_value *v = &m->g->values[value];
    int k = m->operand[value], item = ts_dtype_sizes[v->t.dtype];
    if (k < 0) {
        if (b->noperands == TS_BLOCK_OPERANDS)
            return -1;
        k = m->operand[value] = (int16_t)b->noperands++;
        ts_block_operand *o = &b->operands[k];
        *o = (ts_block_operand){.value = (uint16_t)value, .pointer = -1, .number = -1,
                                .dtype = v->t.dtype};
        for (int d = 0; d < m->g->ndim; d++)
            o->step[d] = step_of(v, d);
        int64_t inner = m->g->ndim ? o->step[inner_dim(m->g)] : 0;
        bool single = m->g->step->numel == 1 || !m->g->ndim;
        if (inner == item || single) {
            if (b->npointers == TS_BLOCK_POINTERS)
                return -1;
            o->pointer = (int16_t)b->npointers++;
        } else if (inner != 0) {
            return -1;
        }
    }
    b->operands[k].stored |= stored;
    return stored && b->operands[k].pointer < 0 ? -1 : k;
}

/** The node of an operand of a call. index: of the value + 1; 0: a number. */
static int operand_node(builder *m, uint32_t call, int k, int index)
{
    ts_emit_block *b = &m->b;
    const ts_frame *f = &m->g->calls[call].f;
    if (!index) {
        int node = ts_block_number_node(b, (ts_block_number){.kind = TS_EMIT_OPERAND,
                                                             .call = (uint16_t)call,
                                                             .index = (uint16_t)k});
        if (f->plan->compute == TS_BOOL && !b->machine->masks)
            b->nodes[node].mask = true;
        else if (f->plan->compute == TS_BOOL)
            node = ts_block_add(b, TS_DO_TEST, 0, node, -1, -1);
        return node;
    }
    int value = index - 1, dtype = m->g->values[value].t.dtype;
    if (m->current[value] >= 0)
        return m->current[value];
    int at = operand_of(m, value, false);
    if (at < 0)
        return -1;
    if (b->operands[at].pointer >= 0) {
        int node = ts_lower_load(b, b->operands[at].pointer, dtype);
        m->current[value] = (int16_t)node;
        return node;
    }
    int node = ts_block_number_node(b, (ts_block_number){.kind = TS_EMIT_VALUE,
                                                         .index = (uint16_t)value});
    b->operands[at].number = b->nodes[node].slot;
    if (dtype == TS_BOOL && b->machine->masks)
        return ts_block_add(b, TS_DO_TEST, 0, node, -1, -1);
    b->nodes[node].mask = dtype == TS_BOOL;
    return node;
}

/** True if a value that the call writes must be stored: it has memory, or a call after the part
 *  uses it; and no later call of the part writes it. */
static bool must_store(const builder *m, uint32_t call, int value)
{
    const ts_emit_group *g = m->g;
    bool needed = g->values[value].base != NULL;
    for (uint32_t c = call + 1; c < g->ncalls; c++) {
        const tile_call *t = &g->calls[c];
        if (c < m->end && t->ret[0] == value + 1)
            return false;
        for (int i = 0; i < t->f.nargs && c >= m->end; i++)
            needed |= t->arg[i] == value + 1;
        for (int i = 0; i < t->f.nrets && c >= m->end; i++)
            needed |= t->ret[i] == value + 1;
    }
    return needed;
}

/** Appends the nodes of a call; false if it cannot be part of the block. */
static bool add_call(builder *m, uint32_t call)
{
    const tile_call *c = &m->g->calls[call];
    int in[TS_MAX_OPERANDS] = {0}, result = c->ret[0] - 1;
    uint8_t dtypes[TS_MAX_OPERANDS] = {(uint8_t)c->rets[0].t->dtype};
    for (int k = 1; k < c->operands; k++) {
        dtypes[k] = c->operand[k] ? m->g->values[c->operand[k] - 1].t.dtype : c->plan.compute;
        if ((in[k] = operand_node(m, call, k, c->operand[k])) < 0)
            return false;
    }
    int node = ts_lower_call(&m->b, &c->f, (int)call, in, dtypes);
    if (node < 0)
        return false;
    m->current[result] = (int16_t)node;
    if (must_store(m, call, result)) {
        int at = operand_of(m, result, true);
        if (at < 0)
            return false;
        ts_lower_store(&m->b, m->b.operands[at].pointer, dtypes[0], node);
    }
    return !m->b.failed;
}

/** True if the call may be in a block: it has a recipe and covers the group's space. *width
 *  receives the width of its lanes. */
static bool may_emit(const ts_emit_group *g, uint32_t call, int *width)
{
    const tile_call *c = &g->calls[call];
    const ts_recipe *recipe;
    double numbers[TS_RECIPE_NUMBERS];
    if (!c->operands || !c->ret[0] || c->f.nrets != 1 ||
        !ts_recipe_of(&c->f, &recipe, numbers))
        return false;
    const tile_value *v = &g->values[c->ret[0] - 1];
    int64_t numel = 1;
    for (int d = 0; d < v->t.ndim; d++)
        numel *= v->whole[d];
    *width = ts_lower_width(&c->f);
    return *width >= 0 && numel == g->step->numel;
}

/** Builds the block of calls m->first to m->end - 1 and writes its code; false if that fails. */
static bool build(builder *m, const ts_machine *machine, bool wide, ts_code_writer *w)
{
    ts_emit_block *b = &m->b;
    b->machine = machine;
    b->wide = wide;
    b->failed = false;
    b->ncalls = (int)(m->end - m->first);
    b->nnodes = b->noperands = b->npointers = b->nnumbers = 0;
    ts_block_number_node(b, (ts_block_number){.kind = TS_EMIT_MASK}); /* TS_MASK_SLOT */
    memset(m->current, 0xff, m->g->nvalues * sizeof *m->current);
    memset(m->operand, 0xff, m->g->nvalues * sizeof *m->operand);
    for (uint32_t c = m->first; c < m->end; c++)
        if (!add_call(m, c))
            return false;
    return ts_block_write(b, w);
}

/* ---------------------------------------------------------------------------- code memory ---- */

/** Copies code to memory of its own and makes it executable; NULL if that is not possible. */
static void *executable(const uint8_t *code, size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    memcpy(at, code, bytes);
    if (ts_emit_protect(at, bytes, PROT_READ | PROT_EXEC) != 0) {
        munmap(at, bytes);
        return NULL;
    }
    __builtin___clear_cache((char *)at, (char *)at + bytes);
    return at;
}

/** Writes the code of a part to a file in the folder that TS_DUMP names. */
static void dump(const ts_emit_group *g, const ts_emitted_part *p)
{
    const ts_exec *e = g->run->exec;
    char end[40];
    snprintf(end, sizeof end, "-%u-%u.bin", (unsigned)(g->step - e->steps), p->first);
    FILE *out = ts_dump_open(e, "code", end);
    if (!out)
        return;
    fwrite((const void *)(uintptr_t)p->run, 1, p->bytes, out);
    fclose(out);
}

/* --------------------------------------------------------------------------------- parts ---- */

/** Adds the built block as a part of e; false if memory is short or code is not allowed. */
static bool add_part(ts_emitted *e, const builder *m, const uint8_t *code, size_t bytes)
{
    const ts_emit_block *b = &m->b;
    ts_emitted_part *p = &e->parts[e->nparts];
    size_t tables = (size_t)b->noperands * sizeof *b->operands +
                    (size_t)b->nnumbers * sizeof *b->numbers;
    if (e->nnumbers + (uint32_t)b->nnumbers > TS_EMIT_NUMBERS)
        return false;
    char *block = ts_alloc(&ts_tls, tables);
    void *at = block ? executable(code, bytes) : NULL;
    if (!at) {
        if (block)
            ts_free(&ts_tls, block, tables);
        return false;
    }
    *p = (ts_emitted_part){.first = m->first, .end = m->end, .run = (ts_emitted_fn)(uintptr_t)at,
                           .bytes = bytes, .tables = tables, .noperands = b->noperands,
                           .npointers = b->npointers, .nnumbers = b->nnumbers,
                           .tails = b->machine->tails, .wide = b->wide,
                           .lanes = b->machine->bytes / (b->wide ? 8 : 4), .table = e->nnumbers,
                           .operands = (ts_block_operand *)block};
    p->numbers = (ts_block_number *)(p->operands + b->noperands);
    memcpy(p->operands, b->operands, (size_t)b->noperands * sizeof *b->operands);
    memcpy(p->numbers, b->numbers, (size_t)b->nnumbers * sizeof *b->numbers);
    e->nnumbers += (uint32_t)b->nnumbers;
    e->nparts++;
    e->emitted += m->end - m->first;
    dump(m->g, p);
    return true;
}

/** True if runs of n elements continue along dim d in all operands. */
static bool runs_on(const ts_block_operand *o, int count, int64_t size, int d, int64_t n)
{
    for (int k = 0; k < count && size != 1; k++)
        if (o[k].step[d] != (o[k].pointer < 0 ? 0 : n * ts_dtype_sizes[o[k].dtype]))
            return false;
    return true;
}

/** True if runs of the group's elements are long enough in all operands of the block. */
static bool has_long_runs(const builder *m)
{
    const ts_emit_group *g = m->g;
    int64_t n = 1;
    int d = g->ndim - 1;
    while (d >= 0 && runs_on(m->b.operands, m->b.noperands, g->sizes[d], d, n))
        n *= g->sizes[d--];
    return (n >= SHORTEST_RUN && n * m->b.ncalls >= TS_RUN_WORK) || n == g->step->numel;
}

/** Divides the group's calls into parts. A part that fails is tried again with fewer calls, which
 *  need fewer registers. */
static void find_parts(ts_emitted *e, builder *m, uint8_t *code)
{
    const ts_emit_group *g = m->g;
    for (uint32_t c = 0; c < g->ncalls;) {
        int width = 0, next;
        uint32_t n = 0;
        while (c + n < g->ncalls && may_emit(g, c + n, &next) &&
               (!next || !width || next == width)) {
            width = next ? next : width;
            n++;
        }
        for (; n >= FEWEST_CALLS; n -= (n + 3) / 4) {
            ts_code_writer w = {.at = code, .end = code + CODE};
            m->first = c;
            m->end = c + n;
            if (!build(m, e->machine, width == 8, &w) || !has_long_runs(m))
                continue;
            if (!add_part(e, m, code, (size_t)(w.at - code)))
                return;
            break;
        }
        c += n >= FEWEST_CALLS ? n : 1;
    }
}

/** Makes the code of a group; NULL if memory is short. texts: the calls' recipes. */
static ts_emitted *make(const ts_emit_group *g, const ts_machine *machine,
                        const char *const *texts)
{
    size_t texts_at = sizeof(ts_emitted) + g->ncalls * sizeof(ts_emitted_part),
           memory_at = texts_at + g->ncalls * sizeof *texts, bytes = memory_at + g->nvalues,
           work = sizeof(builder) + 2 * g->nvalues * sizeof(int16_t) + CODE;
    char *block = ts_alloc(&ts_tls, bytes);
    builder *m = block ? ts_alloc(&ts_tls, work) : NULL;
    if (!m) {
        if (block)
            ts_free(&ts_tls, block, bytes);
        return NULL;
    }
    ts_emitted *e = (ts_emitted *)block;
    *e = (ts_emitted){.machine = machine, .bytes = bytes, .parts = (ts_emitted_part *)(e + 1),
                      .texts = (const char **)(block + texts_at),
                      .memory = (bool *)(block + memory_at)};
    memcpy(e->texts, texts, g->ncalls * sizeof *texts);
    for (uint32_t i = 0; i < g->nvalues; i++)
        e->memory[i] = g->values[i].base != NULL;
    m->g = g;
    m->current = (int16_t *)(m + 1);
    m->operand = m->current + g->nvalues;
    find_parts(e, m, (uint8_t *)(m->operand + g->nvalues));
    ts_free(&ts_tls, m, work);
    e->whole = e->emitted == g->ncalls;
    return e;
}

/** True if the code was made for the same recipes and the same values with memory. */
static bool fits(const ts_emitted *e, const ts_emit_group *g, const char *const *texts)
{
    if (memcmp(e->texts, texts, g->ncalls * sizeof *texts) != 0)
        return false;
    for (uint32_t i = 0; i < g->nvalues; i++)
        if (e->memory[i] != (g->values[i].base != NULL))
            return false;
    return true;
}

const ts_emitted *ts_emit_code(const ts_emit_group *g)
{
    const char *texts[TS_EMIT_CALLS];
    const ts_machine *machine = NULL;
    const ts_recipe *recipe;
    double numbers[TS_RECIPE_NUMBERS];
    _Atomic(ts_emitted *) *list = &g->run->exec->code[g->step - g->run->exec->steps];
    ts_emitted *first = atomic_load(list), *e = first;
    int count = 0;
    if (g->ncalls > TS_EMIT_CALLS)
        return NULL;
    for (uint32_t i = 0; i < g->ncalls; i++) {
        texts[i] = g->calls[i].operands ? ts_recipe_of(&g->calls[i].f, &recipe, numbers) : NULL;
        if (texts[i])
            machine = ts_machine_of(recipe->variant);
    }
    while (e && !fits(e, g, texts) && count++ < MOST_CODES)
        e = e->older;
    if (!e && machine && count < MOST_CODES && (e = make(g, machine, texts)) != NULL) {
        e->older = first;
        if (!atomic_compare_exchange_strong(list, &first, e)) { /* another thread was faster */
            e->older = NULL;
            ts_emitted_free(e);
            return ts_emit_code(g);
        }
    }
    return e && e->nparts ? e : NULL;
}

void ts_emitted_explain(FILE *out, const ts_exec *e, uint32_t step)
{
    const ts_emitted *code = e->code ? atomic_load(&e->code[step]) : NULL;
    for (uint32_t k = 0; code && k < code->nparts; k++) {
        const ts_emitted_part *p = &code->parts[k];
        fprintf(out, "    calls %u to %u are machine code for %s, %zu bytes\n", p->first,
                p->end - 1, code->machine->name, p->bytes);
    }
}

void ts_emitted_free(ts_emitted *e)
{
    while (e) {
        ts_emitted *older = e->older;
        for (uint32_t k = 0; k < e->nparts; k++) {
            ts_emitted_part *p = &e->parts[k];
            munmap((void *)(uintptr_t)p->run, p->bytes);
            ts_free(&ts_tls, p->operands, p->tables);
        }
        ts_free(&ts_tls, e, e->bytes);
        e = older;
    }
}

/* ----------------------------------------------------------------------------------- run ---- */

/** The bits of operand k of a call's iteration space, which is a number. */
static uint64_t number_bits(const ts_frame *f, int k)
{
    const ts_plan *plan = f->plan;
    const ts_recipe *recipe = ts_kernel_recipe(f->table);
    int i = -1, dtype = plan->compute;
    while (k)
        k -= (plan->operands >> ++i & 1) && f->args[i].tag != TS_TAG_NONE;
    if (ts_dtype_is_half((ts_dtype)dtype) && !recipe->moves &&
        plan->pointwise != TS_POINTWISE_ROUNDED)
        dtype = TS_F32;
    double element;
    ts_scalar_store(&f->args[i], (ts_dtype)dtype, &element);
    return ts_lane_bits(&element, dtype);
}

/** The bits of a number that the recipe of a call uses. */
static uint64_t parameter_bits(const ts_frame *f, int index)
{
    const ts_recipe *recipe;
    double numbers[TS_RECIPE_NUMBERS];
    ts_recipe_of(f, &recipe, numbers);
    float single = (float)numbers[index];
    return f->plan->compute == TS_F64 ? ts_lane_bits(&numbers[index], TS_F64)
                                      : ts_lane_bits(&single, TS_F32);
}

void ts_emit_numbers(const ts_emitted *e, const tile_call *calls, uint64_t chosen, uint64_t *table)
{
    for (uint32_t i = 0; i < e->nparts; i++)
        for (int k = 0; k < e->parts[i].nnumbers; k++) {
            const ts_block_number *n = &e->parts[i].numbers[k];
            bool passed = n->kind == TS_EMIT_OPERAND || n->kind == TS_EMIT_PARAMETER;
            if (passed && !(chosen >> n->call & 1))
                continue;
            table[e->parts[i].table + (uint32_t)k] =
                n->kind == TS_EMIT_OPERAND     ? number_bits(&calls[n->call].f, n->index)
                : n->kind == TS_EMIT_PARAMETER ? parameter_bits(&calls[n->call].f, n->index)
                                                 : n->bits;
        }
}

/** Runs n elements. Code without a part for the last elements gets them in whole vectors. */
static void run_elements(const ts_emitted_part *p, char *const *at, int64_t n,
                         const ts_lanes *numbers)
{
    char *pointers[TS_BLOCK_POINTERS], vectors[TS_BLOCK_POINTERS][64];
    int64_t last = p->tails ? 0 : n % p->lanes;
    for (int k = 0; k < p->noperands; k++)
        if (p->operands[k].pointer >= 0)
            pointers[p->operands[k].pointer] = at[k];
    if (n > last)
        p->run(pointers, n - last, numbers);
    if (!last)
        return;
    for (int pass = 0; pass < 2; pass++) {
        for (int k = 0; k < p->noperands; k++) {
            const ts_block_operand *o = &p->operands[k];
            size_t item = (size_t)ts_dtype_sizes[o->dtype];
            if (o->pointer < 0)
                continue;
            char *there = at[k] + (size_t)(n - last) * item, *here = vectors[o->pointer];
            pointers[o->pointer] = here;
            if (!pass) {
                memset(here, 0, sizeof vectors[0]);
                memcpy(here, there, (size_t)last * item);
            } else if (o->stored) {
                memcpy(there, here, (size_t)last * item);
            }
        }
        if (!pass)
            p->run(pointers, p->lanes, numbers);
    }
}

/** The number in all lanes. */
static ts_lanes lanes_of(const ts_emitted_part *p, uint64_t bits)
{
    ts_lanes v;
    bits = p->wide ? bits : bits << 32 | (uint32_t)bits;
    for (int i = 0; i < 8; i++)
        v.bits[i] = bits;
    return v;
}

void ts_emit_run(const ts_emitted_part *p, const tile_value *values, const int64_t *sizes,
                 int begin, int ndim, const uint64_t *table)
{
    ts_lanes numbers[TS_BLOCK_NUMBERS];
    char *at[TS_BLOCK_OPERANDS];
    int64_t n = 1, index[TS_MAX_DIMS] = {0};
    int inner = ndim - 1;
    for (int k = 0; k < p->nnumbers; k++)
        numbers[k] = lanes_of(p, table[p->table + (uint32_t)k]);
    for (int k = 0; k < p->noperands; k++)
        at[k] = values[p->operands[k].value].t.data;
    while (inner >= begin && runs_on(p->operands, p->noperands, sizes[inner], inner, n))
        n *= sizes[inner--];
    numbers[TS_MASK_SLOT].bits[0] = (1u << n % p->lanes) - 1;
    for (int d = inner;; d = inner) {
        for (int k = 0; k < p->noperands; k++)
            if (p->operands[k].number >= 0)
                numbers[p->operands[k].number] =
                    lanes_of(p, ts_lane_bits(at[k], p->operands[k].dtype));
        run_elements(p, at, n, numbers);
        for (; d >= begin; d--) { /* to the next run */
            bool again = ++index[d] == sizes[d];
            for (int k = 0; k < p->noperands; k++)
                at[k] += p->operands[k].step[d] * (again ? 1 - sizes[d] : 1);
            if (!again)
                break;
            index[d] = 0;
        }
        if (d < begin)
            return;
    }
}
