/** @file lower.c  Calls to nodes: reads recipes, and converts between elements and lanes. */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"
#include "core/convert.h"
#include "include/tessera/program.h"

#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------- nodes ---- */

int ts_block_add(ts_emit_block *b, ts_emit_op op, int form, int x, int y, int z)
{
    if (b->nnodes == TS_BLOCK_NODES) {
        b->failed = true;
        return 0;
    }
    ts_emit_node *n = &b->nodes[b->nnodes];
    *n = (ts_emit_node){.op = (uint8_t)op, .form = (uint8_t)form,
                        .in = {(int16_t)x, (int16_t)y, (int16_t)z}};
    n->mask = op == TS_DO_COMPARE || op == TS_DO_IEQ || op == TS_DO_IGT || op == TS_DO_TEST ||
              (op >= TS_DO_MAND && op <= TS_DO_MNOT);
    return b->nnodes++;
}

int ts_block_number_node(ts_emit_block *b, ts_block_number number)
{
    int k = 0;
    while (k < b->nnumbers &&
           (b->numbers[k].kind != number.kind || b->numbers[k].call != number.call ||
            b->numbers[k].index != number.index || b->numbers[k].bits != number.bits))
        k++;
    if (k == TS_BLOCK_NUMBERS) {
        b->failed = true;
        return 0;
    }
    if (k == b->nnumbers) {
        number.node = (int16_t)ts_block_add(b, TS_DO_NUMBER, 0, -1, -1, -1);
        b->nodes[number.node].slot = (int16_t)k;
        b->numbers[b->nnumbers++] = number;
    }
    return b->numbers[k].node;
}

static int bits_node(ts_emit_block *b, uint64_t bits)
{
    return ts_block_number_node(b, (ts_block_number){.kind = TS_EMIT_FIXED, .bits = bits});
}
/** The bits of a constant in the block's lanes. */
static uint64_t real_bits(bool wide, double x)
{
    uint64_t bits = 0;
    float single = (float)x;
    memcpy(&bits, wide ? (void *)&x : (void *)&single, wide ? 8 : 4);
    return bits;
}
static int real_node(ts_emit_block *b, double x) { return bits_node(b, real_bits(b->wide, x)); }
static uint64_t sign_bit(const ts_emit_block *b) { return b->wide ? 1ull << 63 : 1u << 31; }
static uint64_t all_ones(const ts_emit_block *b) { return b->wide ? UINT64_MAX : UINT32_MAX; }

/** A node with two operands. */
static int binary_node(ts_emit_block *b, ts_emit_op op, int x, int y)
{
    return ts_block_add(b, op, 0, x, y, -1);
}

/** and, or, xor of masks. */
static int logic(ts_emit_block *b, ts_emit_op op, int x, int y)
{
    int node = binary_node(b, b->machine->masks ? op : op - TS_DO_MAND + TS_DO_AND, x, y);
    b->nodes[node].mask = true;
    return node;
}
static int negated(ts_emit_block *b, int mask)
{
    if (b->machine->masks)
        return ts_block_add(b, TS_DO_MNOT, 0, mask, -1, -1);
    return logic(b, TS_DO_MXOR, mask, bits_node(b, all_ones(b)));
}
/** True if the node is a mask, or a number that stands for one. */
static bool is_mask(const ts_emit_block *b, int node) { return b->nodes[node].mask; }

static int select_node(ts_emit_block *b, int mask, int x, int y)
{
    if (!is_mask(b, x))
        return ts_block_add(b, TS_DO_SELECT, 0, mask, x, y);
    return logic(b, TS_DO_MOR, logic(b, TS_DO_MAND, mask, x),
                 logic(b, TS_DO_MAND, negated(b, mask), y));
}

/** x * 2^n. Without the instruction: two factors, as vf_ldexp_fast(). */
static int scaled(ts_emit_block *b, int x, int n)
{
    if (b->machine->masks)
        return binary_node(b, TS_DO_SCALE, x, n);
    int bias = bits_node(b, 127), whole = ts_block_add(b, TS_DO_TOINT, 0, n, -1, -1),
        half = ts_block_add(b, TS_DO_SAR, 1, whole, -1, -1),
        rest = binary_node(b, TS_DO_ISUB, whole, half);
    half = ts_block_add(b, TS_DO_SHL, 23, binary_node(b, TS_DO_IADD, half, bias), -1, -1);
    rest = ts_block_add(b, TS_DO_SHL, 23, binary_node(b, TS_DO_IADD, rest, bias), -1, -1);
    return binary_node(b, TS_DO_MUL, binary_node(b, TS_DO_MUL, x, half), rest);
}

/* ------------------------------------------------------------------------------- recipes ---- */

enum { DEPTH = 16 };

/** State of a recipe's text. */
typedef struct reader {
    ts_emit_block *b;
    const int *in;
    int call, depth;
    int stack[DEPTH];
    int names[26];
} reader;

/* NARROW: for lanes of 4 bytes only. WHOLE: for lanes of 8 bytes, only AVX-512 has the
 * instruction. */
enum { PLAIN, NARROW, WHOLE, MASKS, OWN };
static const struct function {
    char name[10];
    uint8_t arguments, kind, op, form;
} functions[] = {
    {"add", 2, PLAIN, TS_DO_ADD, 0}, {"sub", 2, PLAIN, TS_DO_SUB, 0},
    {"mul", 2, PLAIN, TS_DO_MUL, 0}, {"div", 2, PLAIN, TS_DO_DIV, 0},
    {"min", 2, PLAIN, TS_DO_MIN, 0}, {"max", 2, PLAIN, TS_DO_MAX, 0},
    {"sqrt", 1, PLAIN, TS_DO_SQRT, 0}, {"fma", 3, PLAIN, TS_DO_FMA, 0},
    {"rint", 1, PLAIN, TS_DO_ROUND, 8}, {"floor", 1, PLAIN, TS_DO_ROUND, 9},
    {"ceil", 1, PLAIN, TS_DO_ROUND, 10}, {"trunc", 1, PLAIN, TS_DO_ROUND, 11},
    {"eq", 2, PLAIN, TS_DO_COMPARE, 0}, {"ne", 2, PLAIN, TS_DO_COMPARE, 4},
    {"lt", 2, PLAIN, TS_DO_COMPARE, 0x11}, {"le", 2, PLAIN, TS_DO_COMPARE, 0x12},
    {"gt", 2, PLAIN, TS_DO_COMPARE, 0x1e}, {"ge", 2, PLAIN, TS_DO_COMPARE, 0x1d},
    {"band", 2, PLAIN, TS_DO_AND, 0}, {"bor", 2, PLAIN, TS_DO_OR, 0},
    {"bxor", 2, PLAIN, TS_DO_XOR, 0},
    {"iadd", 2, PLAIN, TS_DO_IADD, 0}, {"isub", 2, PLAIN, TS_DO_ISUB, 0},
    {"imul", 2, WHOLE, TS_DO_IMUL, 0}, {"iabs", 1, WHOLE, TS_DO_IABS, 0},
    {"imin", 2, WHOLE, TS_DO_IMIN, 0}, {"imax", 2, WHOLE, TS_DO_IMAX, 0},
    {"ieq", 2, PLAIN, TS_DO_IEQ, 0}, {"igt", 2, PLAIN, TS_DO_IGT, 0},
    {"toint", 1, NARROW, TS_DO_TOINT, 0}, {"tofloat", 1, NARROW, TS_DO_TOFLOAT, 0},
    {"shl", 2, PLAIN, TS_DO_SHL, 0}, {"shr", 2, PLAIN, TS_DO_SHR, 0},
    {"sar", 2, NARROW, TS_DO_SAR, 0},
    {"and", 2, MASKS, TS_DO_MAND, 0}, {"or", 2, MASKS, TS_DO_MOR, 0},
    {"xor", 2, MASKS, TS_DO_MXOR, 0},
    {"not", 1, OWN, 'n', 0}, {"sel", 3, OWN, 's', 0}, {"neg", 1, OWN, '-', 0},
    {"abs", 1, OWN, 'a', 0}, {"copysign", 2, OWN, 'c', 0}, {"ldexp", 2, OWN, 'l', 0},
    {"bnot", 1, OWN, '~', 0},
};

/** Functions of several nodes. */
static int call_own(ts_emit_block *b, int which, const int *x)
{
    int sign = which == '-' || which == 'c' ? bits_node(b, sign_bit(b)) : 0,
        rest = which == 'a' || which == 'c' ? bits_node(b, sign_bit(b) - 1) : 0;
    switch (which) {
    case 'n': return negated(b, x[0]);
    case 's': return select_node(b, x[0], x[1], x[2]);
    case '-': return binary_node(b, TS_DO_XOR, x[0], sign);
    case 'a': return binary_node(b, TS_DO_AND, x[0], rest);
    case '~': return binary_node(b, TS_DO_XOR, x[0], bits_node(b, all_ones(b)));
    case 'c':
        return binary_node(b, TS_DO_OR, binary_node(b, TS_DO_AND, x[0], rest),
                           binary_node(b, TS_DO_AND, x[1], sign));
    default:
        b->failed |= b->wide;
        return scaled(b, x[0], x[1]);
    }
}

/** A function of 8-byte integers for which only AVX-512 has an instruction. */
static int call_wide(ts_emit_block *b, int op, const int *x)
{
    int more = op == TS_DO_IABS ? binary_node(b, TS_DO_IGT, bits_node(b, 0), x[0])
                                : binary_node(b, TS_DO_IGT, x[0], x[1]);
    switch (op) {
    case TS_DO_IABS: return binary_node(b, TS_DO_ISUB, binary_node(b, TS_DO_XOR, x[0], more), more);
    case TS_DO_IMIN: return ts_block_add(b, TS_DO_SELECT, 0, more, x[1], x[0]);
    case TS_DO_IMAX: return ts_block_add(b, TS_DO_SELECT, 0, more, x[0], x[1]);
    default: b->failed = true; return 0;
    }
}

static int call_function(ts_emit_block *b, const struct function *f, int *x)
{
    int form = f->form;
    if (f->kind == OWN)
        return call_own(b, f->op, x);
    if (f->kind == MASKS)
        return logic(b, f->op, x[0], x[1]);
    if (f->kind == WHOLE && b->wide && !b->machine->masks)
        return call_wide(b, f->op, x);
    b->failed |= f->kind == NARROW && b->wide;
    if (f->op == TS_DO_SHL || f->op == TS_DO_SHR || f->op == TS_DO_SAR) {
        form = (int)b->numbers[b->nodes[x[1]].slot].bits;
        x[1] = -1;
    }
    return ts_block_add(b, f->op, form, x[0], f->arguments > 1 ? x[1] : -1,
                        f->arguments > 2 ? x[2] : -1);
}

/** The node of a word that is not a function; -1 if there is none. */
static int value_of_word(reader *r, const char *word, size_t length)
{
    char text[40], *end;
    if (length >= sizeof text)
        return -1;
    memcpy(text, word, length);
    text[length] = 0;
    if (length == 1 && text[0] >= 'a' && text[0] <= 'd')
        return r->in[text[0] - 'a' + 1];
    if (length == 1 && text[0] >= 'a' && text[0] <= 'z')
        return r->names[text[0] - 'a'];
    if (length == 2 && text[0] == 'n')
        return ts_block_number_node(
            r->b, (ts_block_number){.kind = TS_EMIT_PARAMETER, .call = (uint16_t)r->call,
                                    .index = (uint16_t)(text[1] - '0')});
    if (text[0] == '#')
        return bits_node(r->b, strtoull(text + 1, &end, 16));
    double x = strtod(text, &end);
    return *end ? -1 : real_node(r->b, x);
}

static bool read_word(reader *r, const char *word, size_t length)
{
    if (word[0] == '=') {
        r->names[word[1] - 'a'] = r->depth ? r->stack[--r->depth] : -1;
        return true;
    }
    for (int i = 0; i < TS_COUNTOF(functions); i++) {
        const struct function *f = &functions[i];
        if (strlen(f->name) != length || memcmp(f->name, word, length) != 0)
            continue;
        if (r->depth < f->arguments)
            return false;
        r->depth -= f->arguments;
        r->stack[r->depth] = call_function(r->b, f, &r->stack[r->depth]);
        r->depth++;
        return true;
    }
    int node = value_of_word(r, word, length);
    if (node < 0 || r->depth == DEPTH)
        return false;
    r->stack[r->depth++] = node;
    return true;
}

/** Appends the nodes of a recipe's text; returns the result's node, or -1. */
static int read_text(ts_emit_block *b, const char *text, int call, const int *in)
{
    TS_C_LOCALE;
    reader r = {.b = b, .in = in, .call = call};
    memset(r.names, 0xff, sizeof r.names);
    while (*text && !b->failed) {
        size_t length = strcspn(text, " ");
        if (length && !read_word(&r, text, length))
            return -1;
        text += length + (text[length] == ' ');
    }
    return r.depth == 1 && !b->failed ? r.stack[0] : -1;
}

const char *ts_recipe_of(const ts_frame *f, const ts_recipe **recipe, double *numbers)
{
    const ts_recipe *r = *recipe = ts_kernel_recipe(f->table);
    if (!r || !f->plan->pointwise)
        return NULL;
    for (int i = 0; i < TS_RECIPE_NUMBERS; i++) {
        bool number = i < f->nargs &&
                      (f->args[i].tag == TS_TAG_FLOAT || f->args[i].tag == TS_TAG_INT ||
                       f->args[i].tag == TS_TAG_BOOL);
        numbers[i] = number ? ts_value_number(&f->args[i]) : 0;
    }
    if (r->choose)
        return r->choose(f, numbers);
    switch (f->plan->compute) {
    case TS_F32: case TS_BF16: case TS_F16: return r->f32;
    case TS_F64: return r->f64;
    case TS_I32: return r->i32;
    case TS_I64: return r->i64;
    case TS_BOOL: return r->boolean;
    default: return NULL;
    }
}

int ts_lower_width(const ts_frame *f)
{
    const ts_recipe *recipe = ts_kernel_recipe(f->table);
    if (!recipe)
        return -1;
    int from = recipe->casts ? f->args[0].t->dtype : f->plan->compute, to = f->rets[0].t->dtype;
    static const int8_t widths[TS_DTYPE_COUNT] = {
        [TS_F32] = 4, [TS_BF16] = 4, [TS_F16] = 4, [TS_I32] = 4, [TS_F64] = 8,
        [TS_I64] = 8, [TS_U8] = -1, [TS_BOOL] = 0};
    int a = widths[from], b = widths[to];
    return a < 0 || b < 0 || (a && b && a != b) ? -1 : a ? a : b;
}

/* --------------------------------------------------------------------- elements and lanes ---- */

/** Rounds f32 lanes to bf16 or f16; they stay f32. As vf_to_vh_bf16(): every NaN becomes
 *  0x7fc0. */
static int rounded(ts_emit_block *b, int x, int dtype)
{
    if (dtype == TS_F16)
        return ts_block_add(b, TS_DO_FROM_F16, 0, ts_block_add(b, TS_DO_TO_F16, 0, x, -1, -1), -1,
                            -1);
    int last =
        binary_node(b, TS_DO_AND, ts_block_add(b, TS_DO_SHR, 16, x, -1, -1), bits_node(b, 1));
    int sum = binary_node(b, TS_DO_IADD, binary_node(b, TS_DO_IADD, last, bits_node(b, 0x7fff)), x);
    sum = binary_node(b, TS_DO_AND, sum, bits_node(b, 0xffff0000));
    int unordered = ts_block_add(b, TS_DO_COMPARE, 3, x, x, -1);
    return ts_block_add(b, TS_DO_SELECT, 0, unordered, bits_node(b, 0x7fc00000), sum);
}

int ts_lower_load(ts_emit_block *b, int pointer, int dtype)
{
    int form = dtype == TS_BF16  ? TS_FORM_WORD
               : dtype == TS_F16 ? TS_FORM_F16
               : dtype == TS_BOOL ? TS_FORM_BYTE
                                  : TS_FORM_FULL;
    int node = ts_block_add(b, TS_DO_LOAD, form, -1, -1, -1);
    b->nodes[node].slot = (int16_t)pointer;
    if (dtype == TS_BF16)
        return ts_block_add(b, TS_DO_SHL, 16, node, -1, -1);
    if (dtype != TS_BOOL)
        return node;
    if (b->machine->masks)
        return binary_node(b, TS_DO_TEST, node, -1);
    return binary_node(b, TS_DO_IGT, node, bits_node(b, 0));
}

void ts_lower_store(ts_emit_block *b, int pointer, int dtype, int node)
{
    int form = TS_FORM_FULL;
    if (dtype == TS_BF16) {
        form = TS_FORM_WORD;
        node = ts_block_add(b, TS_DO_SHR, 16, node, -1, -1);
    } else if (dtype == TS_F16) {
        form = TS_FORM_F16;
    } else if (dtype == TS_BOOL) {
        form = TS_FORM_BYTE;
        if (b->machine->masks)
            node = ts_block_add(b, TS_DO_SPREAD, 0, node, -1, -1);
        node = ts_block_add(b, TS_DO_SHR, b->wide ? 63 : 31, node, -1, -1);
    }
    int stored = ts_block_add(b, TS_DO_STORE, form, node, -1, -1);
    b->nodes[stored].slot = (int16_t)pointer;
}

uint64_t ts_lane_bits(const void *element, int dtype)
{
    uint64_t bits = 0;
    switch (dtype) {
    case TS_BF16: return real_bits(false, ts_bf16_to_f32(*(const uint16_t *)element));
    case TS_F16: return real_bits(false, ts_f16_to_f32(*(const uint16_t *)element));
    case TS_BOOL: return *(const uint8_t *)element ? UINT64_MAX : 0;
    default: memcpy(&bits, element, (size_t)ts_dtype_sizes[dtype]); return bits;
    }
}

/** Converts a cast's result to its dtype; -1 if there is no conversion. */
static int converted(ts_emit_block *b, int x, int from, int to)
{
    if (from == to)
        return x;
    if (from == TS_BOOL)
        return ts_dtype_is_float((ts_dtype)to) ? select_node(b, x, real_node(b, 1), bits_node(b, 0))
                                               : -1;
    if (to == TS_BOOL && ts_dtype_is_float((ts_dtype)from))
        return ts_block_add(b, TS_DO_COMPARE, 4, x, bits_node(b, 0), -1);
    if (from == TS_I32)
        return to == TS_F32 ? ts_block_add(b, TS_DO_TOFLOAT, 0, x, -1, -1) : -1;
    if (b->wide || !ts_dtype_is_float((ts_dtype)from) || !ts_dtype_is_float((ts_dtype)to))
        return -1;
    return to == TS_F32 ? x : rounded(b, x, to);
}

int ts_lower_call(ts_emit_block *b, const ts_frame *f, int call, const int *in,
                  const uint8_t *dtypes)
{
    const ts_recipe *recipe;
    double numbers[TS_RECIPE_NUMBERS];
    const char *text = ts_recipe_of(f, &recipe, numbers);
    int compute = recipe && recipe->casts ? dtypes[1] : f->plan->compute, to = dtypes[0];
    bool moves = recipe && (recipe->moves || (recipe->casts && compute == to));
    if (!text || recipe->variant != b->machine->variant || (moves && to == TS_F16))
        return -1; /* the conversion from f16 makes a NaN quiet */
    int node = read_text(b, text, call, in);
    if (node < 0)
        return -1;
    if (recipe->casts)
        node = converted(b, node, compute, to);
    else if (ts_dtype_is_half((ts_dtype)to) && to == compute && !moves)
        node = rounded(b, node, to);
    else if (to != compute && to != TS_BOOL)
        return -1;
    return node >= 0 && !b->failed && is_mask(b, node) == (to == TS_BOOL) ? node : -1;
}
