/**
 * @file arm64.c  Machine code of blocks for NEON (Armv8-A).
 *
 * Registers of the function: x0: pointers; x1: elements that are left; x2: table of numbers; the
 * pointers are in x3 to x13 and advance with the loop. The nodes use v0 to v29; v30 and v31 are for
 * operations that take several instructions.
 */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"

#include <string.h>

enum { FIRST_POINTER = 3, SPARE = 30, SCRATCH = 31, SP = 31, MI = 4, PL = 5,
       WIDE = 1 << 22, /* lanes of 8 bytes, in most instructions */
       MOVE = 0x4ea01c00 /* orr */, NOT = 0x6e205800, AND = 0x4e201c00 };

static void instruction(ts_code_writer *w, uint32_t code)
{
    if (w->end - w->at < 4) {
        w->full = true;
        return;
    }
    for (int i = 0; i < 4; i++)
        *w->at++ = (uint8_t)(code >> 8 * i);
}

/** An instruction of vectors: to, x and y are registers; y is 0 if unused. */
static void vector(ts_code_writer *w, uint32_t code, int to, int x, int y)
{
    instruction(w, code | (uint32_t)(y << 16 | x << 5 | to));
}
static void move(ts_code_writer *w, int to, int from)
{
    if (to != from)
        vector(w, MOVE, to, from, from);
}

/* --------------------------------------------------------------------------------- nodes ---- */

/** Bytes of an element in memory. */
static int item_of(const ts_emit_block *b, const ts_emit_node *n)
{
    return n->form == TS_FORM_BYTE ? 1 : n->form != TS_FORM_FULL ? 2 : b->wide ? 8 : 4;
}
static int lanes(const ts_emit_block *b) { return b->machine->bytes / (b->wide ? 8 : 4); }

/** Loads or stores the lanes' bytes in memory from or to the low bytes of a vector register. */
static void transfer(ts_code_writer *w, const ts_emit_block *b, const ts_emit_node *n, int copy,
                     int reg, bool stores)
{
    static const uint32_t codes[] = {[2] = 0x7d400000, [4] = 0xbd400000, [8] = 0xfd400000,
                                     [16] = 0x3dc00000};
    uint32_t code = codes[item_of(b, n) * lanes(b)] & ~(stores ? 0x00400000u : 0u);
    instruction(w, code | (uint32_t)(copy << 10 | (FIRST_POINTER + n->slot) << 5 | reg));
}

static void load(ts_code_writer *w, const ts_emit_block *b, const ts_emit_node *n,
                 ts_emit_registers r)
{
    enum { WIDEN = 0x2f00a400 /* ushll; the size of a lane in bits is in bits 16 to 21 */ };
    transfer(w, b, n, r.copy, r.to, false);
    if (n->form == TS_FORM_F16)
        vector(w, 0x0e217800, r.to, r.to, 0); /* fcvtl */
    for (int bits = 8 * item_of(b, n); n->form != TS_FORM_FULL && n->form != TS_FORM_F16 &&
                                       bits < (b->wide ? 64 : 32); bits *= 2)
        vector(w, WIDEN, r.to, r.to, bits);
}

static void store(ts_code_writer *w, const ts_emit_block *b, const ts_emit_node *n,
                  ts_emit_registers r)
{
    enum { NARROW = 0x0e212800 /* xtn; the size of a resulting lane is in bits 22 and 23 */ };
    int from = r.in[0];
    if (n->form == TS_FORM_F16) {
        vector(w, 0x0e216800, SCRATCH, from, 0); /* fcvtn */
        from = SCRATCH;
    } else if (n->form != TS_FORM_FULL) {
        for (int size = b->wide ? 2 : 1; size >= (n->form == TS_FORM_WORD); size--) {
            vector(w, NARROW | (uint32_t)size << 22, SCRATCH, from, 0);
            from = SCRATCH;
        }
    }
    transfer(w, b, n, r.copy, from, true);
}

static void number(ts_code_writer *w, const ts_emit_block *b, int slot, int to)
{
    (void)b;
    int at = slot * (int)sizeof(ts_lanes) / 16;
    instruction(w, 0x3dc00000 | (uint32_t)(at << 10 | 2 << 5 | to)); /* ldr q, [x2, 16 at] */
}

/** to = x * y + z, where `to` is z's register or no operand's. */
static void fused(ts_code_writer *w, uint32_t wide, ts_emit_registers r)
{
    move(w, r.to, r.in[2]);
    vector(w, 0x4e20cc00 | wide, r.to, r.in[0], r.in[1]);
}

/** to = mask ? x : y. */
static void select_lanes(ts_code_writer *w, int to, int mask, int x, int y)
{
    enum { BSL = 0x6e601c00, BIT = 0x6ea01c00, BIF = 0x6ee01c00 };
    if (to == x && to != mask) {
        vector(w, BIF, to, y, mask);
    } else if (to == y && to != mask) {
        vector(w, BIT, to, x, mask);
    } else {
        move(w, to, mask);
        vector(w, BSL, to, x, y);
    }
}

/** Compares by the immediate of x86's vcmpps. */
static void compare(ts_code_writer *w, uint32_t wide, int form, ts_emit_registers r)
{
    enum { EQUAL = 0x4e20e400, AT_LEAST = 0x6e20e400, MORE = 0x6ea0e400,
           NE = 4, UNORDERED = 3, LT = 0x11, LE = 0x12, GT = 0x1e, GE = 0x1d };
    int x = r.in[0], y = r.in[1];
    switch (form) {
    case LT: vector(w, MORE | wide, r.to, y, x); return;
    case LE: vector(w, AT_LEAST | wide, r.to, y, x); return;
    case GT: vector(w, MORE | wide, r.to, x, y); return;
    case GE: vector(w, AT_LEAST | wide, r.to, x, y); return;
    case UNORDERED:
        vector(w, EQUAL | wide, SCRATCH, x, x);
        vector(w, EQUAL | wide, r.to, y, y);
        vector(w, AND, r.to, r.to, SCRATCH);
        break;
    default: vector(w, EQUAL | wide, r.to, x, y); break;
    }
    if (form == NE || form == UNORDERED)
        vector(w, NOT, r.to, r.to, 0);
}

/** Shifts by an immediate; the field holds the size of a lane plus or minus the shift. */
static void shift(ts_code_writer *w, const ts_emit_block *b, const ts_emit_node *n,
                  ts_emit_registers r)
{
    int bits = b->wide ? 64 : 32;
    if (n->op == TS_DO_SHL)
        vector(w, 0x4f005400, r.to, r.in[0], bits + n->form);
    else
        vector(w, n->op == TS_DO_SHR ? 0x6f000400 : 0x4f000400, r.to, r.in[0],
               2 * bits - n->form);
}

/** Instructions of the operations starting at TS_DO_ADD; 0: several instructions, or none. */
static const uint32_t table[] = {
    [TS_DO_ADD] = 0x4e20d400, [TS_DO_SUB] = 0x4ea0d400, [TS_DO_MUL] = 0x6e20dc00,
    [TS_DO_DIV] = 0x6e20fc00, [TS_DO_SQRT] = 0x6ea1f800, [TS_DO_AND] = AND,
    [TS_DO_OR] = 0x4ea01c00, [TS_DO_XOR] = 0x6e201c00, [TS_DO_IADD] = 0x4ea08400,
    [TS_DO_ISUB] = 0x6ea08400, [TS_DO_IMUL] = 0x4ea09c00, [TS_DO_IABS] = 0x4ea0b800,
    [TS_DO_IMIN] = 0x4ea06c00, [TS_DO_IMAX] = 0x4ea06400, [TS_DO_IEQ] = 0x6ea08c00,
    [TS_DO_IGT] = 0x4ea03400, [TS_DO_TOINT] = 0x4ea1b800, [TS_DO_TOFLOAT] = 0x4e21d800,
    [TS_DO_TO_F16] = 0x0e216800, [TS_DO_FROM_F16] = 0x0e217800};

static void node(ts_code_writer *w, const ts_emit_block *b, const ts_emit_node *n,
                 ts_emit_registers r, bool tail)
{
    enum { ROUND = 8 /* first form */ };
    static const uint32_t rounds[] = {0x4e218800, 0x4e219800, 0x4ea18800, 0x4ea19800};
    uint32_t wide = b->wide ? WIDE : 0;
    int x = r.in[0], y = n->in[1] < 0 ? 0 : r.in[1];
    (void)tail;
    switch (n->op) {
    case TS_DO_LOAD: load(w, b, n, r); return;
    case TS_DO_STORE: store(w, b, n, r); return;
    case TS_DO_FMA: fused(w, wide, r); return;
    case TS_DO_SELECT: select_lanes(w, r.to, x, y, r.in[2]); return;
    case TS_DO_COMPARE: compare(w, wide, n->form, r); return;
    case TS_DO_SHL: case TS_DO_SHR: case TS_DO_SAR: shift(w, b, n, r); return;
    case TS_DO_ROUND: vector(w, rounds[n->form - ROUND] | wide, r.to, x, 0); return;
    case TS_DO_MIN: case TS_DO_MAX: /* the second operand if they are equal or NaN */
        if (n->op == TS_DO_MIN)
            vector(w, 0x6ea0e400 | wide, SCRATCH, y, x); /* fcmgt */
        else
            vector(w, 0x6ea0e400 | wide, SCRATCH, x, y);
        select_lanes(w, r.to, SCRATCH, x, y);
        return;
    default: break;
    }
    bool bits = n->op == TS_DO_AND || n->op == TS_DO_OR || n->op == TS_DO_XOR;
    vector(w, table[n->op] | (bits ? 0 : wide), r.to, x, y);
}

/* ------------------------------------------------------------------------------ the loop ---- */

/** Loads or stores d8 to d15, whose values belong to the caller. */
static void keep_registers(ts_code_writer *w, bool stores)
{
    for (int i = 0; i < 4; i++) {
        int k = stores ? i : 3 - i; /* the first pair moves the stack pointer by 64 bytes */
        uint32_t code = stores ? k ? 0x6d000000 : 0x6d800000 : k ? 0x6d400000 : 0x6cc00000;
        uint32_t offset = k ? (uint32_t)(2 * k) : stores ? -8u & 0x7f : 8;
        instruction(w, code | offset << 15 |
                           (uint32_t)((9 + 2 * k) << 10 | SP << 5 | (8 + 2 * k)));
    }
}

static void begin(ts_code_writer *w, const ts_emit_block *b)
{
    keep_registers(w, true);
    for (int i = 0; i < b->npointers; i++) /* ldr pointer, [x0, 8 i] */
        instruction(w, 0xf9400000 | (uint32_t)(i << 10 | (FIRST_POINTER + i)));
}

/** Adds to or, if `subtracts`, subtracts from a general register and sets the flags. */
static void add_number(ts_code_writer *w, int reg, int n, bool subtracts)
{
    instruction(w, (subtracts ? 0xf1000000 : 0x91000000) |
                       (uint32_t)(n << 10 | reg << 5 | reg));
}

/** Sets the offset of the conditional branch before `at` to jump to `to`. */
static void jump_to(const ts_code_writer *w, uint8_t *at, const uint8_t *to)
{
    uint32_t by = (uint32_t)((to - at) / 4 + 1) & 0x7ffff;
    for (int i = 0; i < 4 && !w->full; i++)
        at[i - 4] = (uint8_t)(at[i - 4] | by << 5 >> 8 * i);
}
static void branch(ts_code_writer *w, int condition)
{
    instruction(w, 0x54000000 | (uint32_t)condition);
}

static uint8_t *loop(ts_code_writer *w, const ts_emit_block *b, int copies, uint8_t **skip)
{
    add_number(w, 1, copies * lanes(b), true);
    branch(w, MI);
    return *skip = w->at;
}

static void loop_end(ts_code_writer *w, const ts_emit_block *b, int copies, uint8_t *start,
                     uint8_t *skip)
{
    int items[TS_BLOCK_POINTERS] = {0};
    for (int i = 0; i < b->nnodes; i++)
        if (b->nodes[i].op == TS_DO_LOAD || b->nodes[i].op == TS_DO_STORE)
            items[b->nodes[i].slot] = item_of(b, &b->nodes[i]);
    for (int i = 0; i < b->npointers; i++)
        add_number(w, FIRST_POINTER + i, items[i] * copies * lanes(b), false);
    add_number(w, 1, copies * lanes(b), true);
    branch(w, PL);
    jump_to(w, w->at, start);
    jump_to(w, skip, w->at);
    add_number(w, 1, copies * lanes(b), false);
}

static uint8_t *tail(ts_code_writer *w, const ts_emit_block *b)
{
    (void)w, (void)b;
    return NULL;
}

static void end(ts_code_writer *w, const ts_emit_block *b, uint8_t *skip)
{
    (void)b, (void)skip;
    keep_registers(w, false);
    instruction(w, 0xd65f03c0); /* ret */
}

const ts_machine ts_machine_neon = {
    .name = "neon", .bytes = 16, .registers = SPARE, .begin = begin, .number = number,
    .node = node, .loop = loop, .loop_end = loop_end, .tail = tail, .end = end};
