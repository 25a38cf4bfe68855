/**
 * @file emit.h  Machine code for pointwise calls of a group on the CPU.
 *
 * The calls of a group that have recipes (dispatch/recipe.h) become a block: nodes in static single
 * assignment form, most of them one machine instruction, that compute one vector of each result
 * from one vector of each operand (lower.c). registers.c assigns registers and writes the loop
 * around the block with the encoder of a machine (x86.c, arm64.c). emit.c divides a group into
 * blocks, keeps the code with the plan, and runs it on the tiles of tile.c.
 *
 * All lanes of a block have one width: 4 bytes (f32, bf16 and f16 as f32, i32) or 8 (f64, i64).
 *
 * A group's space is computed in runs: a run is a row of elements that is contiguous, or one
 * element, in each operand. The code is called once per run.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_EMIT_H
#define TS_COMPILE_EMIT_H

#include "compile/tile.h"
#include "dispatch/recipe.h"

#include <stdio.h>

/* Limits of a block; calls that need more are divided into several blocks. */
enum {
    TS_BLOCK_NODES = 768,
    TS_BLOCK_POINTERS = 11,  /* operands with one element per element of a run: the general
                                registers that x86.c and arm64.c have left */
    TS_BLOCK_OPERANDS = 24,  /* all operands, those with one element per run included */
    TS_BLOCK_NUMBERS = 96,
    TS_MASK_SLOT = 0,        /* the number that holds the mask of a run's last elements */
    TS_EMIT_NUMBERS = 512,   /* most numbers of a group's parts */
    TS_EMIT_CALLS = 64       /* most calls of a group */
};

/** Operations of nodes. Their order matters: the table of x86.c lists TS_DO_ADD to TS_DO_SPREAD in
 *  this order, and lower.c and registers.c test ranges of operations. */
typedef enum ts_emit_op {
    TS_DO_NUMBER, TS_DO_LOAD, TS_DO_STORE,
    TS_DO_ADD, TS_DO_SUB, TS_DO_MUL, TS_DO_DIV, TS_DO_MIN, TS_DO_MAX, TS_DO_SQRT,
    TS_DO_AND, TS_DO_OR, TS_DO_XOR, TS_DO_ROUND, TS_DO_COMPARE,
    TS_DO_IADD, TS_DO_ISUB, TS_DO_IMUL, TS_DO_IABS, TS_DO_IMIN, TS_DO_IMAX,
    TS_DO_IEQ, TS_DO_IGT, TS_DO_SHL, TS_DO_SHR, TS_DO_SAR, TS_DO_TOINT,
    TS_DO_TOFLOAT, TS_DO_SCALE, TS_DO_TO_F16, TS_DO_FROM_F16,
    TS_DO_TEST, TS_DO_SPREAD, /* vector to mask: bits other than 0; mask to vector: 0 or -1 */
    TS_DO_FMA, TS_DO_SELECT, TS_DO_MAND, TS_DO_MOR, TS_DO_MXOR, TS_DO_MNOT
} ts_emit_op;

/** How a lane is stored in memory: as it is; as its low 16 bits; as f16; as its low byte. */
typedef enum ts_lane_form { TS_FORM_FULL, TS_FORM_WORD, TS_FORM_F16, TS_FORM_BYTE } ts_lane_form;

/** A node: an operation and its operands. */
typedef struct ts_emit_node {
    uint8_t op;   /* a ts_emit_op */
    uint8_t form; /* LOAD, STORE: a ts_lane_form. ROUND, COMPARE: the immediate of x86's vroundps,
                     vcmpps; arm64.c translates it. Shifts: the number of bits */
    bool mask;    /* the result is a mask */
    int16_t slot; /* LOAD, STORE: index of the pointer; NUMBER: index of the number */
    int16_t in[3]; /* nodes; -1: none */
} ts_emit_node;

/**
 * A number of a block: a vector whose lanes are equal. By kind:
 *   FIXED      a constant, `bits`
 *   MASK       the mask of a run's last elements (TS_MASK_SLOT)
 *   OPERAND    the scalar that is operand `index` in the iteration space of call number `call`
 *   PARAMETER  number `index` of that call's recipe
 *   VALUE      the one element of the group's value `index`, read at the start of each run
 */
typedef struct ts_block_number {
    enum { TS_EMIT_FIXED, TS_EMIT_MASK, TS_EMIT_OPERAND, TS_EMIT_PARAMETER,
           TS_EMIT_VALUE } kind;
    uint16_t call, index;
    int16_t node;         /* its node */
    uint64_t bits;
} ts_block_number;

/** A value of the group that a block loads or stores. */
typedef struct ts_block_operand {
    uint16_t value;  /* index in the group */
    int16_t pointer; /* index of the code's pointer; -1: one element per run, a number */
    int16_t number;  /* index of that number; -1: none */
    uint8_t dtype;
    bool stored;     /* a result; false: only read */
    int64_t step[TS_MAX_DIMS]; /* bytes per index of the group's dims */
} ts_block_operand;

typedef struct ts_emit_block ts_emit_block;
/** Memory for code. */
typedef struct ts_code_writer {
    uint8_t *at, *end; /* next byte to write; end of the memory */
    bool full;         /* the code did not fit */
} ts_code_writer;
/** Registers of a node's result and operands. Vector and mask registers are numbered from 0. */
typedef struct ts_emit_registers {
    int8_t to, in[3], scratch; /* in: -1: a number, which the instruction reads from the table */
    int8_t copy; /* an iteration of the loop computes several vectors; the index of this one */
} ts_emit_registers;

/** An instruction set with its encoder. Masks are in mask registers if `masks`, else in vector
 *  registers as 0 or -1. */
typedef struct ts_machine {
    const char *name;
    uint8_t variant;  /* of recipes (dispatch/recipe.h) */
    uint8_t bytes;    /* of a vector */
    uint8_t registers, masks; /* numbers of vector and of mask registers for nodes */
    bool tails;       /* the code handles runs of any length; false: only whole vectors */
    bool folds;       /* an instruction can read one operand from memory, and a fused multiply-add
                         can overwrite a factor */
    bool packs;       /* stores of narrow lanes need a scratch register */
    /** Writes the start of the function: saves registers, loads the pointers. */
    void (*begin)(ts_code_writer *w, const ts_emit_block *b);
    /** Loads a number into a vector register. */
    void (*number)(ts_code_writer *w, const ts_emit_block *b, int slot, int to);
    /** Writes a node. tail: the node is in the part for a run's last elements, whose loads and
     *  stores are masked. */
    void (*node)(ts_code_writer *w, const ts_emit_block *b, const ts_emit_node *n,
                 ts_emit_registers r, bool tail);
    /** Begins a loop whose iterations compute `copies` whole vectors, and returns its address,
     *  which loop_end() takes as `start`. *skip receives the place after the branch that skips the
     *  loop. */
    uint8_t *(*loop)(ts_code_writer *w, const ts_emit_block *b, int copies, uint8_t **skip);
    /** Ends the loop: advances the operands, branches to `start` while the elements of one more
     *  iteration are left, and completes the branch before `skip`. */
    void (*loop_end)(ts_code_writer *w, const ts_emit_block *b, int copies, uint8_t *start,
                     uint8_t *skip);
    /** Begins the part for a run's last elements. Returns the place after the branch that skips the
     *  part, for end(); NULL if the machine has no such part. */
    uint8_t *(*tail)(ts_code_writer *w, const ts_emit_block *b);
    /** Writes the end of the function. skip: of tail(), or NULL. */
    void (*end)(ts_code_writer *w, const ts_emit_block *b, uint8_t *skip);
} ts_machine;
extern const ts_machine ts_machine_avx2, ts_machine_avx512, ts_machine_neon;
/** The machine of a variant of kernels; NULL: the variant has no encoder. */
const ts_machine *ts_machine_of(int variant);

struct ts_emit_block {
    const ts_machine *machine;
    bool wide;        /* lanes of 8 bytes */
    bool failed;      /* some call has no nodes, or a table is full */
    int ncalls, nnodes, noperands, npointers, nnumbers;
    ts_emit_node nodes[TS_BLOCK_NODES];
    ts_block_operand operands[TS_BLOCK_OPERANDS];
    ts_block_number numbers[TS_BLOCK_NUMBERS];
};

/* lower.c */
/** The recipe's text for a planned call; NULL: none. numbers: TS_RECIPE_NUMBERS numbers of the
 *  call. *recipe receives the recipe. */
const char *ts_recipe_of(const ts_frame *f, const ts_recipe **recipe, double *numbers);
/** Width of the call's lanes: 4 or 8; 0: any; -1: the call cannot be in a block. */
int ts_lower_width(const ts_frame *f);
/** Appends a node; returns its index. */
int ts_block_add(ts_emit_block *b, ts_emit_op op, int form, int x, int y, int z);
/** The node of a number. */
int ts_block_number_node(ts_emit_block *b, ts_block_number number);
/** Appends the nodes of call number `call` of the group. in: the node of each operand of
 *  the iteration space, [0] unused. dtypes: of the operands, [0] of the result. Returns the node of
 *  the result, or -1. */
int ts_lower_call(ts_emit_block *b, const ts_frame *f, int call, const int *in,
                  const uint8_t *dtypes);
/** Appends a load or a store of an element's dtype through a pointer. */
int ts_lower_load(ts_emit_block *b, int pointer, int dtype);
void ts_lower_store(ts_emit_block *b, int pointer, int dtype, int node);
/** The bits of an element of a dtype as a number of a block; a bool becomes 0 or all ones. */
uint64_t ts_lane_bits(const void *element, int dtype);

/* registers.c */
/** A number in all lanes of a vector. */
typedef struct ts_lanes {
    uint64_t bits[8];
} ts_lanes;
/** The emitted function computes a run of n elements; without ts_machine.tails, n is a multiple of
 *  the lanes. pointers: the run's first element of each operand that has a pointer. numbers: the
 *  block's numbers, by slot. */
typedef void (*ts_emitted_fn)(char *const *pointers, int64_t n, const ts_lanes *numbers);
/** Writes the function of a block; false if registers or bytes for code do not suffice, or if the
 * calls are faster on tiles. */
bool ts_block_write(const ts_emit_block *b, ts_code_writer *w);

/* emit.c */
/** The code of a group for one choice of recipes. */
typedef struct ts_emitted ts_emitted;
/** A part of a group that runs as code: calls first to end - 1. */
typedef struct ts_emitted_part {
    uint32_t first, end;
    ts_emitted_fn run;
    size_t bytes, tables; /* bytes of the code; bytes of `operands` and `numbers` */
    int noperands, npointers, nnumbers;
    int lanes;          /* per vector */
    bool tails, wide;   /* of ts_machine, of ts_emit_block */
    uint32_t table;     /* index of its first number in the group's table (ts_emit_numbers()) */
    ts_block_operand *operands;
    ts_block_number *numbers;
} ts_emitted_part;
struct ts_emitted {
    ts_emitted *older;    /* code of the step for another choice */
    const ts_machine *machine;
    uint32_t nparts, nnumbers, emitted; /* emitted: number of calls in parts */
    bool whole;           /* the parts have all calls */
    ts_emitted_part *parts;
    const char **texts;   /* per call: its recipe's text, or NULL */
    bool *memory;         /* per value: it has memory, not a buffer of tile.c */
    size_t bytes;         /* of this struct with its arrays */
};

/** True if all calls of a group run as machine code, which needs neither plans nor buffers. */
TS_INLINE bool ts_tile_is_code(const ts_tiles *w) { return w->code && w->code->whole; }

/** A group that may be emitted; the calls are planned. */
typedef struct ts_emit_group {
    const ts_run *run;
    const ts_step *step;
    const tile_value *values;
    const tile_call *calls;
    uint32_t nvalues, ncalls;
    int ndim;
    const int64_t *sizes;
} ts_emit_group;

/** True unless TS_COMPILE_EMIT=0 or a test has switched the emitter off. */
bool ts_emit_on(void);
/** Reads the environment variable TS_COMPILE_EMIT. */
void ts_emit_from_environment(void);
/** The code of a group, made at the first call for its choice of recipes; the plan keeps it. NULL
 *  if no code is made: no call has a recipe or can be in a block, calls of the group or choices of
 *  recipes exceed their limit, the machine has no encoder, the calls are faster on tiles, or memory
 *  is short or cannot be made executable. */
const ts_emitted *ts_emit_code(const ts_emit_group *g);
/** Fills the group's table of numbers, 8 bytes for each number of the code, for a run of the plan.
 *  chosen: bit k is clear if the table has the numbers of call k already. */
void ts_emit_numbers(const ts_emitted *e, const tile_call *calls, uint64_t chosen,
                     uint64_t *table);
/** Runs a part on a tile. values: with the tile's addresses. sizes: of the tile's dims, from dim
 *  `begin` to ndim - 1. */
void ts_emit_run(const ts_emitted_part *p, const tile_value *values, const int64_t *sizes,
                 int begin, int ndim, const uint64_t *table);
/** Appends a line for each part of a step's newest code, which names the machine, the calls and the
 *  bytes; writes nothing if there is no code. */
void ts_emitted_explain(FILE *out, const ts_exec *e, uint32_t step);
/** Frees a list of codes. */
void ts_emitted_free(ts_emitted *e);

#endif
