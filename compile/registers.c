/**
 * @file registers.c  Linear scan: assigns registers to the nodes of a block and writes its loop.
 *
 * A node's value has a register from the node to its last use. Numbers have registers for the whole
 * loop as far as some are left; instructions read the others from the table, or load them again. A
 * block that needs more registers than the machine has is refused; emit.c then divides it.
 */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"

#include <string.h>

enum { COPIES = 4,  /* vectors per turn of the loop */
       EACH = 48,   /* most nodes for each vector of a turn; with more, the latency of the
                       instructions takes longer than the loads and stores of tiles */
       A_CALL = 30  /* most nodes for each call, if registers suffice for fewer vectors; a loop of
                       one call has more vectors per turn, and with this many nodes that gains more
                       than a load and a store cost */ };

const ts_machine *ts_machine_of(int variant)
{
    static const ts_machine *const machines[] = {
#if defined __x86_64__
        &ts_machine_avx2, &ts_machine_avx512
#elif defined __aarch64__
        &ts_machine_neon
#else
        NULL
#endif
    };
    for (int i = 0; i < TS_COUNTOF(machines); i++)
        if (machines[i] && machines[i]->variant == variant)
            return machines[i];
    return NULL;
}

/** One pass over the nodes. */
typedef struct scan {
    const ts_emit_block *b;
    ts_code_writer *w;   /* NULL: only the registers are counted */
    uint32_t used, used_masks;  /* registers with a value, as bits */
    int most;            /* number of vector registers that the nodes use */
    bool short_of;       /* registers did not suffice */
    int16_t last[TS_BLOCK_NODES]; /* last node that uses a node's value */
    int8_t at[COPIES][TS_BLOCK_NODES]; /* register of a node's value */
    int8_t fixed[TS_BLOCK_NUMBERS]; /* register of a number for the whole loop; -1: none */
} scan;

static bool has_mask_register(const scan *s, const ts_emit_node *n)
{
    return n->mask && s->b->machine->masks;
}

static int8_t take(scan *s, bool mask)
{
    uint32_t *used = mask ? &s->used_masks : &s->used;
    int most = mask ? s->b->machine->masks : s->b->machine->registers, reg = 0;
    while (reg < most && (*used >> reg & 1))
        reg++;
    if (reg == most) {
        s->short_of = true;
        return 0;
    }
    *used |= 1u << reg;
    if (!mask && reg >= s->most)
        s->most = reg + 1;
    return (int8_t)reg;
}

static void release(scan *s, bool mask, int reg)
{
    *(mask ? &s->used_masks : &s->used) &= ~(1u << reg);
}

/** The operand that the node's instruction can read from the table of numbers; -1: none. */
static int folded(const ts_emit_block *b, const ts_emit_node *n)
{
    int k = n->op == TS_DO_FMA ? 2 : 1;
    bool can = n->op == TS_DO_FMA || n->op == TS_DO_SELECT || n->op == TS_DO_COMPARE ||
               (n->op >= TS_DO_ADD && n->op <= TS_DO_XOR && n->op != TS_DO_SQRT) ||
               (n->op >= TS_DO_IADD && n->op <= TS_DO_IGT && n->op != TS_DO_IABS);
    return can && b->machine->folds && b->nodes[n->in[k]].op == TS_DO_NUMBER ? k : -1;
}

/** The register of operand k of node n in a copy; -1: a number that has none. */
static int8_t register_of(const scan *s, const ts_emit_node *n, int k, int copy)
{
    const ts_emit_node *x = &s->b->nodes[n->in[k]];
    return x->op == TS_DO_NUMBER ? s->fixed[x->slot] : s->at[copy][n->in[k]];
}

/** True if node i is the last that uses operand k, which is not a number. */
static bool dies(const scan *s, int i, int k)
{
    const ts_emit_node *n = &s->b->nodes[i];
    return n->in[k] >= 0 && s->b->nodes[n->in[k]].op != TS_DO_NUMBER && s->last[n->in[k]] == i;
}

/** Assigns the registers of a copy of node i and writes it. loaded: registers of its numbers. */
static void assign_copy(scan *s, int i, int copy, const int8_t *loaded, bool tail)
{
    const ts_emit_node *n = &s->b->nodes[i];
    bool fused = n->op == TS_DO_FMA, result = n->op != TS_DO_STORE;
    bool packs = !result && s->b->machine->packs &&
                 (n->form == TS_FORM_WORD || n->form == TS_FORM_BYTE);
    ts_emit_registers r = {.copy = (int8_t)copy};
    for (int k = 0; k < 3 && n->in[k] >= 0; k++)
        r.in[k] = loaded[k] >= 0 ? loaded[k] : register_of(s, n, k, copy);
    if (packs)
        r.scratch = take(s, false);
    /* a fused multiply-add overwrites an operand; its result must not be another operand */
    int into = !fused ? -1 : s->b->machine->folds && dies(s, i, 0) ? 0 : dies(s, i, 2) ? 2 : -1;
    if (fused && into < 0)
        r.to = take(s, false);
    for (int k = 0; k < 3; k++)
        if (dies(s, i, k))
            release(s, has_mask_register(s, &s->b->nodes[n->in[k]]), r.in[k]);
    if (packs)
        release(s, false, r.scratch);
    if (into >= 0)
        s->used |= 1u << (r.to = r.in[into]);
    else if (!fused && result)
        r.to = take(s, has_mask_register(s, n));
    if (result)
        s->at[copy][i] = r.to;
    if (s->w)
        s->b->machine->node(s->w, s->b, n, r, tail);
    if (result && s->last[i] < 0) /* nothing uses it */
        release(s, has_mask_register(s, n), r.to);
}

/** Writes the nodes for `copies` vectors of each operand, interleaved, because the instructions of
 *  one vector depend on each other. kept: registers of numbers, as bits. */
static void assign_nodes(scan *s, uint32_t kept, int copies, bool tail)
{
    s->used = kept;
    s->used_masks = 0;
    for (int i = 0; i < s->b->nnodes && !s->short_of; i++) {
        const ts_emit_node *n = &s->b->nodes[i];
        int8_t loaded[3] = {-1, -1, -1};
        if (n->op == TS_DO_NUMBER)
            continue;
        for (int k = 0; k < 3 && n->in[k] >= 0; k++) {
            if (register_of(s, n, k, 0) >= 0 || k == folded(s->b, n))
                continue;
            loaded[k] = take(s, false);
            if (s->w)
                s->b->machine->number(s->w, s->b, s->b->nodes[n->in[k]].slot, loaded[k]);
        }
        for (int copy = 0; copy < copies; copy++)
            assign_copy(s, i, copy, loaded, tail);
        for (int k = 0; k < 3; k++)
            if (loaded[k] >= 0)
                release(s, false, loaded[k]);
    }
}

/** Gives registers that the nodes do not use to the numbers with the most uses. Returns them as
 *  bits. */
static uint32_t fix_numbers(scan *s, const int *uses)
{
    uint32_t kept = 0;
    for (int reg = s->b->machine->registers - 1; reg >= s->most; reg--) {
        int best = -1;
        for (int k = 0; k < s->b->nnumbers; k++)
            if (uses[k] && s->fixed[k] < 0 && (best < 0 || uses[k] > uses[best]))
                best = k;
        if (best < 0)
            break;
        s->fixed[best] = (int8_t)reg;
        kept |= 1u << reg;
    }
    return kept;
}

bool ts_block_write(const ts_emit_block *b, ts_code_writer *w)
{
    scan s = {.b = b};
    int uses[TS_BLOCK_NUMBERS] = {0};
    memset(s.last, 0xff, sizeof s.last);
    memset(s.fixed, 0xff, sizeof s.fixed);
    for (int i = 0; i < b->nnodes; i++)
        for (int k = 0; k < 3 && b->nodes[i].in[k] >= 0; k++) {
            const ts_emit_node *x = &b->nodes[b->nodes[i].in[k]];
            s.last[b->nodes[i].in[k]] = (int16_t)i;
            if (x->op == TS_DO_NUMBER)
                uses[x->slot] += folded(b, &b->nodes[i]) == k ? 1 : 4;
        }
    int copies = COPIES;
    for (;; copies /= 2) {
        s.short_of = false;
        s.most = 0;
        assign_nodes(&s, 0, copies, false);
        if (!s.short_of || copies == 1)
            break;
    }
    if (s.short_of || b->nnodes > EACH * copies ||
        (copies < COPIES && b->nnodes > A_CALL * b->ncalls))
        return false;
    uint32_t kept = fix_numbers(&s, uses);
    s.w = w;
    b->machine->begin(w, b);
    for (int k = 0; k < b->nnumbers; k++)
        if (s.fixed[k] >= 0)
            b->machine->number(w, b, k, s.fixed[k]);
    for (; copies; copies = copies > 1) { /* several vectors, then one */
        uint8_t *skip, *loop = b->machine->loop(w, b, copies, &skip);
        assign_nodes(&s, kept, copies, false);
        b->machine->loop_end(w, b, copies, loop, skip);
    }
    uint8_t *skip = b->machine->tail(w, b);
    if (skip)
        assign_nodes(&s, kept, 1, true);
    b->machine->end(w, b, skip);
    return !w->full && !s.short_of;
}
