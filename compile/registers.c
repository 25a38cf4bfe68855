/**
 * @file registers.c  Linear scan: assigns registers to the nodes of a block and writes its loop.
 *
 * A node's value has a register from the node to its last use. Numbers have registers for the whole
 * loop as far as some are left; others are loaded again at each use. A block that needs more
 * registers than the machine has is refused; emit.c then divides it.
 */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"

#include <string.h>

/** One pass over the nodes. */
typedef struct scan {
    const ts_emit_block *b;
    ts_code_writer *w;   /* NULL: only the registers are counted */
    uint32_t used, used_masks;  /* registers with a value, as bits */
    int most;            /* number of vector registers that the nodes use */
    bool short_of;       /* registers did not suffice */
    int16_t last[TS_BLOCK_NODES]; /* last node that uses a node's value */
    int8_t at[TS_BLOCK_NODES];    /* register of a node's value */
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

/** Assigns the registers of node i and writes it. */
static void place_node(scan *s, int i, bool tail)
{
    const ts_emit_block *b = s->b;
    const ts_emit_node *n = &b->nodes[i];
    ts_emit_registers r = {0};
    int8_t loaded[3] = {-1, -1, -1}; /* registers of numbers that this node loads */
    for (int k = 0; k < 3 && n->in[k] >= 0; k++) {
        const ts_emit_node *x = &b->nodes[n->in[k]];
        r.in[k] = x->op == TS_DO_NUMBER ? s->fixed[x->slot] : s->at[n->in[k]];
        for (int j = 0; j < k && r.in[k] < 0; j++)
            if (n->in[j] == n->in[k])
                r.in[k] = r.in[j];
        if (r.in[k] >= 0)
            continue;
        r.in[k] = loaded[k] = take(s, false);
        if (s->w)
            ts_x86_number(s->w, b, x->slot, r.in[k]);
    }
    bool narrow = n->op == TS_DO_STORE && !b->machine->masks &&
                  (n->form == TS_FORM_WORD || n->form == TS_FORM_BYTE);
    if (narrow)
        r.scratch = take(s, false);
    bool fused = n->op == TS_DO_FMA, result = n->op != TS_DO_STORE;
    int into = -1; /* an operand whose register a fused multiply-add can overwrite */
    for (int k = 2; k >= 0 && fused; k -= 2)
        if (loaded[k] >= 0 || (b->nodes[n->in[k]].op != TS_DO_NUMBER && s->last[n->in[k]] == i))
            into = k;
    if (fused && into < 0)
        s->at[i] = r.to = take(s, false); /* before operands are released */
    for (int k = 0; k < 3 && n->in[k] >= 0; k++) {
        const ts_emit_node *x = &b->nodes[n->in[k]];
        if (loaded[k] >= 0)
            release(s, false, loaded[k]);
        else if (x->op != TS_DO_NUMBER && s->last[n->in[k]] == i)
            release(s, has_mask_register(s, x), r.in[k]);
    }
    if (narrow)
        release(s, false, r.scratch);
    if (fused && into >= 0) {
        s->at[i] = r.to = r.in[into];
        s->used |= 1u << r.to;
    } else if (!fused && result) {
        s->at[i] = r.to = take(s, has_mask_register(s, n));
    }
    if (s->w)
        ts_x86_node(s->w, b, n, r, tail);
    if (result && s->last[i] < 0) /* nothing uses it */
        release(s, has_mask_register(s, n), r.to);
}

static void place_nodes(scan *s, uint32_t kept, bool tail)
{
    s->used = kept;
    s->used_masks = 0;
    for (int i = 0; i < s->b->nnodes && !s->short_of; i++)
        if (s->b->nodes[i].op != TS_DO_NUMBER)
            place_node(s, i, tail);
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
                uses[x->slot]++;
        }
    place_nodes(&s, 0, false);
    if (s.short_of)
        return false;
    uint32_t kept = fix_numbers(&s, uses);
    s.w = w;
    ts_x86_begin(w, b);
    for (int k = 0; k < b->nnumbers; k++)
        if (s.fixed[k] >= 0)
            ts_x86_number(w, b, k, s.fixed[k]);
    uint8_t *skip, *loop = ts_x86_loop(w, b, &skip);
    place_nodes(&s, kept, false);
    ts_x86_loop_end(w, b, loop, skip);
    skip = ts_x86_tail(w, b);
    if (skip)
        place_nodes(&s, kept, true);
    ts_x86_end(w, b, skip);
    return !w->full && !s.short_of;
}
