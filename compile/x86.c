/**
 * @file x86.c  Machine code of blocks for AVX2 and AVX-512 (F, DQ, BW, VL).
 *
 * Registers of the function: rdi: pointers; rsi: elements that are left; rdx: table of numbers;
 * rax: index of the element; the pointers are in POINTERS. AVX-512 has the mask of the last
 * elements in k1.
 */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"

#include <string.h>

enum { RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, TAIL = 1, FIRST_MASK = 2 };
static const uint8_t POINTERS[TS_BLOCK_POINTERS] = {RCX, 8, 9, 10, 11, RBX, RBP, 12, 13, 14, 15};

/* ------------------------------------------------------------------------------ encoding ---- */

static void byte(ts_code_writer *w, int b)
{
    if (w->at == w->end)
        w->full = true;
    else
        *w->at++ = (uint8_t)b;
}
static void bytes(ts_code_writer *w, int n, const uint8_t *b)
{
    for (int i = 0; i < n; i++)
        byte(w, b[i]);
}
#define BYTES(w, ...)                                                                   \
    bytes(w, (int)sizeof((uint8_t[]){__VA_ARGS__}), (const uint8_t[]){__VA_ARGS__})
static void word32(ts_code_writer *w, int32_t x)
{
    for (int i = 0; i < 4; i++)
        byte(w, (int)((uint32_t)x >> 8 * i));
}

/** The last operand of an instruction: a register, or memory at base + index * 2^shift + offset. */
typedef struct operand {
    bool memory;
    int reg;   /* register, or the base */
    int index; /* -1: none */
    int shift, offset;
} operand;
static operand in_register(int reg) { return (operand){.reg = reg, .index = -1}; }
static operand in_table(int slot)
{
    return (operand){true, RDX, -1, 0, (int)sizeof(ts_lanes) * slot};
}
/** Operand k of a node, as the last operand of an instruction. */
static operand last_operand(const ts_emit_block *b, const ts_emit_node *n, ts_emit_registers r,
                            int k)
{
    return r.in[k] < 0 ? in_table(b->nodes[n->in[k]].slot) : in_register(r.in[k]);
}

/** An instruction with a VEX or EVEX prefix. */
typedef struct instruction {
    int map, pp, code; /* map: 1: 0F, 2: 0F38, 3: 0F3A; pp: 0: none, 1: 66, 2: F3, 3: F2 */
    bool w;
    int length;        /* 0: 128 bits, 1: 256, 2: 512 */
    int reg, with;     /* ModRM's register; the register in the prefix, 0 if unused */
    int mask;          /* EVEX: mask register; 0: none */
    bool zero;         /* EVEX: lanes outside the mask become 0 */
    int immediate;     /* -1: none */
} instruction;

/** ModRM, SIB and offset. EVEX scales offsets of one byte, so none other than 0 is used. */
static void write_operand(ts_code_writer *w, int reg, operand p)
{
    reg = (reg & 7) << 3;
    if (!p.memory) {
        byte(w, 0xc0 | reg | (p.reg & 7));
        return;
    }
    int mode = p.offset ? 2 : (p.reg & 7) == RBP ? 1 : 0;
    bool sib = p.index >= 0 || (p.reg & 7) == RSP;
    byte(w, mode << 6 | reg | (sib ? 4 : p.reg & 7));
    if (sib)
        byte(w, p.shift << 6 | (p.index < 0 ? 4 : p.index & 7) << 3 | (p.reg & 7));
    if (mode == 1)
        byte(w, 0);
    else if (mode == 2)
        word32(w, p.offset);
}

static void vex(ts_code_writer *w, instruction i, operand p)
{
    int x = p.memory && p.index >= 8;
    byte(w, 0xc4);
    byte(w, (i.reg < 8) << 7 | !x << 6 | (p.reg < 8) << 5 | i.map);
    byte(w, i.w << 7 | (~i.with & 15) << 3 | (i.length & 1) << 2 | i.pp);
    byte(w, i.code);
    write_operand(w, i.reg, p);
    if (i.immediate >= 0)
        byte(w, i.immediate);
}

static void evex(ts_code_writer *w, instruction i, operand p)
{
    int x = p.memory ? p.index >= 8 : p.reg >> 4 & 1;
    byte(w, 0x62);
    byte(w, !(i.reg & 8) << 7 | !x << 6 | !(p.reg & 8) << 5 | !(i.reg & 16) << 4 | i.map);
    byte(w, i.w << 7 | (~i.with & 15) << 3 | 4 | i.pp);
    byte(w, i.zero << 7 | i.length << 5 | !(i.with & 16) << 3 | i.mask);
    byte(w, i.code);
    write_operand(w, i.reg, p);
    if (i.immediate >= 0)
        byte(w, i.immediate);
}

static bool is_512(const ts_emit_block *b) { return b->machine->masks != 0; }

/** A vector instruction of the machine's width. */
static void vector(ts_code_writer *w, const ts_emit_block *b, instruction i, operand p)
{
    i.length = is_512(b) ? 2 : 1;
    i.w = i.w && (is_512(b) || (i.map == 2 && i.code >= 0x98)); /* VEX: of fused multiply-adds */
    (is_512(b) ? evex : vex)(w, i, p);
}

/* --------------------------------------------------------------------------------- nodes ---- */

/** Instructions of the operations starting at TS_DO_ADD. code: for lanes of 4 bytes; wide: of 8
 *  bytes, 0 if there is none. real: floats, whose prefix depends on the width. */
static const struct {
    uint8_t real, map, pp, code, wide;
} table[] = {
    {1, 1, 0, 0x58, 0x58}, {1, 1, 0, 0x5c, 0x5c}, {1, 1, 0, 0x59, 0x59}, {1, 1, 0, 0x5e, 0x5e},
    {1, 1, 0, 0x5d, 0x5d}, {1, 1, 0, 0x5f, 0x5f}, {1, 1, 0, 0x51, 0x51}, {1, 1, 0, 0x54, 0x54},
    {1, 1, 0, 0x56, 0x56}, {1, 1, 0, 0x57, 0x57}, {0, 3, 1, 0x08, 0x09}, {1, 1, 0, 0xc2, 0xc2},
    {0, 1, 1, 0xfe, 0xd4}, {0, 1, 1, 0xfa, 0xfb}, {0, 2, 1, 0x40, 0x40}, {0, 2, 1, 0x1e, 0x1f},
    {0, 2, 1, 0x39, 0x39}, {0, 2, 1, 0x3d, 0x3d}, {0, 1, 1, 0x76, 0},    {0, 1, 1, 0x66, 0},
    {0, 1, 1, 0x72, 0x73}, {0, 1, 1, 0x72, 0x73}, {0, 1, 1, 0x72, 0},    {0, 1, 2, 0x5b, 0},
    {0, 1, 0, 0x5b, 0},    {0, 2, 1, 0x2c, 0x2c}, {0, 3, 1, 0x1d, 0},    {0, 2, 1, 0x13, 0},
    {0, 2, 1, 0x27, 0x27}, {0, 2, 2, 0x38, 0x38}};

static int lanes(const ts_emit_block *b) { return b->machine->bytes / (b->wide ? 8 : 4); }

static operand at_pointer(const ts_emit_block *b, const ts_emit_node *n, int copy)
{
    int item = n->form == TS_FORM_BYTE ? 0 : n->form != TS_FORM_FULL ? 1 : b->wide ? 3 : 2;
    return (operand){true, POINTERS[n->slot], RAX, item, (copy * lanes(b)) << item};
}

static void load(ts_code_writer *w, const ts_emit_block *b, const ts_emit_node *n,
                 ts_emit_registers r, bool tail)
{
    instruction i = {.map = 2, .pp = 1, .code = 0x33, .reg = r.to, .immediate = -1,
                     .mask = tail ? TAIL : 0, .zero = tail};
    if (n->form == TS_FORM_FULL)
        i.map = 1, i.pp = i.w = b->wide, i.code = 0x10;
    else if (n->form == TS_FORM_F16)
        i.code = 0x13;
    else if (n->form == TS_FORM_BYTE)
        i.code = b->wide ? 0x32 : 0x31;
    vector(w, b, i, at_pointer(b, n, r.copy));
}

/** AVX2 has no narrowing stores: packs the low words, for bytes twice, through `scratch`. */
static void store_packed(ts_code_writer *w, const ts_emit_block *b, const ts_emit_node *n,
                         ts_emit_registers r)
{
    int from = r.in[0], scratch = r.scratch;
    instruction pack = {.map = 2, .pp = 1, .code = 0x2b, .reg = scratch, .with = from,
                        .immediate = -1};
    vex(w, (instruction){.map = 3, .pp = 1, .code = 0x39, .length = 1, .reg = from,
                         .immediate = 1}, in_register(scratch));
    vex(w, pack, in_register(scratch));
    pack.map = 1, pack.code = 0x67, pack.with = scratch;
    for (int i = 0; n->form == TS_FORM_BYTE && i <= b->wide; i++)
        vex(w, pack, in_register(scratch));
    instruction move = {.map = 1, .pp = 2, .code = 0x7f, .reg = scratch, .immediate = -1};
    if (n->form == TS_FORM_BYTE)
        move.pp = 1, move.code = b->wide ? 0x7e : 0xd6;
    vex(w, move, at_pointer(b, n, r.copy));
}

static void store(ts_code_writer *w, const ts_emit_block *b, const ts_emit_node *n,
                  ts_emit_registers r, bool tail)
{
    instruction i = {.map = 2, .pp = 2, .code = 0x33, .reg = r.in[0], .immediate = -1,
                     .mask = tail ? TAIL : 0};
    if (n->form == TS_FORM_FULL)
        i.map = 1, i.pp = i.w = b->wide, i.code = 0x11;
    else if (n->form == TS_FORM_F16)
        i.map = 3, i.pp = 1, i.code = 0x1d, i.immediate = 0;
    else if (!is_512(b)) {
        store_packed(w, b, n, r);
        return;
    } else if (n->form == TS_FORM_BYTE)
        i.code = b->wide ? 0x32 : 0x31;
    vector(w, b, i, at_pointer(b, n, r.copy));
}

static void number(ts_code_writer *w, const ts_emit_block *b, int slot, int to)
{
    instruction i = {.map = 2, .pp = 1, .code = b->wide ? 0x19 : 0x18, .reg = to, .immediate = -1,
                     .w = b->wide && is_512(b)};
    vector(w, b, i, in_table(slot));
}

/** to = x * y + z, where `to` is x's register, or z's, or neither. */
static void fused(ts_code_writer *w, const ts_emit_block *b, const ts_emit_node *n,
                  ts_emit_registers r)
{
    instruction i = {.map = 2, .pp = 1, .code = 0xa8, .w = b->wide, .reg = r.to, .with = r.in[1],
                     .immediate = -1};
    operand last = last_operand(b, n, r, 2);
    if (r.to == r.in[2] && r.to != r.in[0]) {
        i.code = 0xb8; /* to += with * last */
        i.with = r.in[0];
        last = in_register(r.in[1]);
    } else if (r.to != r.in[0]) {
        vector(w, b, (instruction){.map = 1, .code = 0x28, .reg = r.to, .immediate = -1},
               in_register(r.in[0]));
    }
    vector(w, b, i, last);
}

static void mask_logic(ts_code_writer *w, int op, ts_emit_registers r)
{
    static const uint8_t codes[] = {0x41, 0x45, 0x47, 0x44};
    bool two = op != TS_DO_MNOT;
    int x = r.in[0] + FIRST_MASK, y = r.in[1] + FIRST_MASK;
    vex(w, (instruction){.map = 1, .code = codes[op - TS_DO_MAND], .length = two,
                         .reg = r.to + FIRST_MASK, .with = two ? x : 0, .immediate = -1},
        in_register(two ? y : x));
}

static void select_lanes(ts_code_writer *w, const ts_emit_block *b, const ts_emit_node *n,
                         ts_emit_registers r)
{
    instruction i = {.map = 2, .pp = 1, .code = 0x65, .w = b->wide, .reg = r.to, .with = r.in[2],
                     .mask = r.in[0] + FIRST_MASK, .immediate = -1};
    if (!is_512(b))
        i.map = 3, i.w = false, i.mask = 0, i.code = 0x4a + b->wide, i.immediate = r.in[0] << 4;
    vector(w, b, i, last_operand(b, n, r, 1));
}

static void node(ts_code_writer *w, const ts_emit_block *b, const ts_emit_node *n,
                 ts_emit_registers r, bool tail)
{
    switch (n->op) {
    case TS_DO_LOAD: load(w, b, n, r, tail); return;
    case TS_DO_STORE: store(w, b, n, r, tail); return;
    case TS_DO_FMA: fused(w, b, n, r); return;
    case TS_DO_SELECT: select_lanes(w, b, n, r); return;
    case TS_DO_MAND: case TS_DO_MOR: case TS_DO_MXOR: case TS_DO_MNOT:
        mask_logic(w, n->op, r);
        return;
    default: break;
    }
    int at = n->op - TS_DO_ADD;
    instruction i = {.map = table[at].map, .pp = table[at].real ? b->wide : table[at].pp,
                     .code = b->wide ? table[at].wide : table[at].code, .w = b->wide, .reg = r.to,
                     .with = r.in[0], .immediate = -1};
    operand last = n->in[1] < 0 ? in_register(0) : last_operand(b, n, r, 1);
    switch (n->op) {
    case TS_DO_ROUND: i.immediate = n->form; /* fall through */
    case TS_DO_SQRT: case TS_DO_IABS: case TS_DO_TOINT: case TS_DO_TOFLOAT: case TS_DO_FROM_F16:
        i.with = 0;
        last = in_register(r.in[0]);
        break;
    case TS_DO_TO_F16: /* to is the last operand */
        i.reg = r.in[0], i.with = 0, i.immediate = 0;
        last = in_register(r.to);
        break;
    case TS_DO_SHL: case TS_DO_SHR: case TS_DO_SAR: /* the register field is part of the code */
        i.reg = n->op == TS_DO_SHL ? 6 : n->op == TS_DO_SHR ? 2 : 4;
        i.with = r.to, i.immediate = n->form;
        last = in_register(r.in[0]);
        break;
    case TS_DO_COMPARE: i.immediate = n->form; break;
    case TS_DO_IEQ: case TS_DO_IGT:
        if (is_512(b))
            i.map = 3, i.code = 0x1f, i.immediate = n->op == TS_DO_IEQ ? 0 : 6;
        else if (b->wide)
            i.map = 2, i.code = n->op == TS_DO_IEQ ? 0x29 : 0x37;
        break;
    case TS_DO_TEST: last = in_register(r.in[0]); break;
    case TS_DO_SPREAD:
        i.with = 0;
        last = in_register(r.in[0] + FIRST_MASK);
        break;
    default: break;
    }
    if (n->mask && is_512(b))
        i.reg += FIRST_MASK;
    vector(w, b, i, last);
}

/* ------------------------------------------------------------------------------ the loop ---- */

/** A general register's REX prefix and an instruction of one byte: push, pop. */
static void push_pop(ts_code_writer *w, int code, int reg)
{
    if (reg >= 8)
        byte(w, 0x41);
    byte(w, code | (reg & 7));
}
static bool is_kept(int reg) { return reg == RBX || reg == RBP || reg >= 12; }

static void begin(ts_code_writer *w, const ts_emit_block *b)
{
    for (int i = 0; i < b->npointers; i++)
        if (is_kept(POINTERS[i]))
            push_pop(w, 0x50, POINTERS[i]);
    for (int i = 0; i < b->npointers; i++) { /* mov pointer, [rdi + 8 i] */
        BYTES(w, POINTERS[i] < 8 ? 0x48 : 0x4c, 0x8b);
        write_operand(w, POINTERS[i], (operand){true, RDI, -1, 0, 8 * i});
    }
    BYTES(w, 0x31, 0xc0); /* xor eax, eax */
}

/** Sets the 32-bit offset before `at` to jump to `to`. */
static void jump_to(const ts_code_writer *w, uint8_t *at, const uint8_t *to)
{
    int32_t by = (int32_t)(to - at);
    if (!w->full)
        memcpy(at - 4, &by, 4);
}

static uint8_t *loop(ts_code_writer *w, const ts_emit_block *b, int copies, uint8_t **skip)
{
    BYTES(w, 0x48, 0x83, 0xee, (uint8_t)(copies * lanes(b))); /* sub rsi, elements */
    BYTES(w, 0x0f, 0x88);                          /* js */
    word32(w, 0);
    *skip = w->at;
    return w->at;
}

static void loop_end(ts_code_writer *w, const ts_emit_block *b, int copies, uint8_t *loop,
                     uint8_t *skip)
{
    uint8_t elements = (uint8_t)(copies * lanes(b));
    BYTES(w, 0x48, 0x83, 0xc0, elements); /* add rax, elements */
    BYTES(w, 0x48, 0x83, 0xee, elements); /* sub rsi, elements */
    BYTES(w, 0x0f, 0x89);                 /* jns */
    word32(w, 0);
    jump_to(w, w->at, loop);
    jump_to(w, skip, w->at);
    BYTES(w, 0x48, 0x83, 0xc6, elements); /* add rsi, elements */
}

static uint8_t *tail_begin(ts_code_writer *w, const ts_emit_block *b)
{
    if (!b->machine->tails)
        return NULL;
    BYTES(w, 0x0f, 0x84); /* jz, by the sum of loop_end() */
    word32(w, 0);
    uint8_t *skip = w->at;
    vex(w, (instruction){.map = 1, .code = 0x90, .reg = TAIL, .immediate = -1}, /* kmovw k1, [] */
        in_table(TS_MASK_SLOT));
    return skip;
}

static void end(ts_code_writer *w, const ts_emit_block *b, uint8_t *skip)
{
    if (skip)
        jump_to(w, skip, w->at);
    BYTES(w, 0xc5, 0xf8, 0x77); /* vzeroupper */
    for (int i = b->npointers - 1; i >= 0; i--)
        if (is_kept(POINTERS[i]))
            push_pop(w, 0x58, POINTERS[i]);
    byte(w, 0xc3);
}

const ts_machine ts_machine_avx2 = {
    .name = "avx2", .variant = 1, .bytes = 32, .registers = 16, .folds = true, .packs = true,
    .begin = begin, .number = number, .node = node, .loop = loop, .loop_end = loop_end,
    .tail = tail_begin, .end = end};
const ts_machine ts_machine_avx512 = {
    .name = "avx512", .variant = 2, .bytes = 64, .registers = 32, .masks = 6, .tails = true,
    .folds = true, .begin = begin, .number = number, .node = node, .loop = loop,
    .loop_end = loop_end, .tail = tail_begin, .end = end};
