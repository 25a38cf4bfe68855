/**
 * @file op.h  The structs of the dispatcher: an op's schema, description and table of slots, and
 * the plan of a call. The op's shape rule (`infer`) writes the plan, a generic entry completes it,
 * and the kernel reads it.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_OP_H
#define TS_DISPATCH_OP_H

#include "core/hooks.h"
#include "core/tensor.h"
#include "include/tessera/kernel.h"

#define TS_MAX_OPS 1024

/* ------------------------------------------------------------------------------- schema ---- */

/** An argument of a schema. */
typedef struct ts_param {
    char name[24];
    uint16_t kinds; /* accepted kinds of values, as bits (1 << ts_tag) */
    bool optional; /* may be TS_TAG_NONE */
    bool written;  /* (a!) in the schema */
} ts_param;

typedef struct ts_schema {
    char name[48];
    uint8_t nargs, nrets;
    ts_param args[TS_MAX_ARGS];
} ts_schema;

/** Parses "ns.name(Tensor self, Tensor? bias, Scalar s, int[] sizes) -> (Tensor, Tensor)".
 *  TS_ERR_NULL for NULL; TS_ERR_FORMAT with the column for text that is not a schema. */
ts_status ts_schema_parse(const char *text, ts_schema *schema);
/** True if text is a valid op name. */
bool ts_is_op_name(const char *text);

/** The tensors of an argument, borrowed: one tensor, the members of a list, or none (*count 0). */
TS_INLINE ts_tensor *const *ts_value_members(const ts_value *v, uint32_t *count)
{
    *count = v->tag == TS_TAG_TENSOR ? 1 : v->tag == TS_TAG_TENSORS ? v->count : 0;
    return v->tag == TS_TAG_TENSOR ? &v->t : v->list;
}

/** The highest key of a set, which is the first to visit; keys must not be 0. */
TS_INLINE ts_key ts_highest_key(ts_keyset keys) { return (ts_key)(63 ^ __builtin_clzll(keys)); }

/* --------------------------------------------------------------------------------- plan ---- */

/** Operands of a pointwise loop: the result first, then up to five inputs. */
#define TS_MAX_OPERANDS 6

/** A pointwise iteration space: dims collapsed, innermost first. */
typedef struct ts_iter {
    int ndim;     /* >= 1 */
    int operands; /* result included */
    int64_t numel;
    char *data[TS_MAX_OPERANDS];
    int64_t sizes[TS_MAX_DIMS];                    /* [0] is the innermost */
    int64_t strides[TS_MAX_DIMS][TS_MAX_OPERANDS]; /* bytes; 0 where broadcast */
    uint8_t items[TS_MAX_OPERANDS]; /* bytes of an element of a tensor; set if the plan is ragged */
} ts_iter;

/** Values of ts_plan.pointwise. Each makes the generic entry fill an iteration space; they differ
 *  in the rounding of scalar operands when the compute dtype is bf16 or f16. */
enum ts_pointwise {
    TS_POINTWISE = 1,     /* scalars stay f32; only the result is rounded */
    TS_POINTWISE_ROUNDED, /* scalars are rounded to the compute dtype, as elements are */
    TS_POINTWISE_IN_ORDER /* scalars stay f32; the space keeps the order of the result's dims,
                             because the random number of an element depends on its index */
};

/** Flag in ts_plan.rows: results that do not have args[0]'s sizes are sums over all rows. Without
 *  the flag they have one number per row. */
#define TS_ROWS_SUMMED 128

/** Elements of a piece, when a reduction of all elements runs in pieces (ts_fold_share). */
enum { TS_PIECE = 4096 };
/** The CPU's kernels reduce TS_FEW_ROWS or more rows of at most TS_SHORT_ROW elements in another
 *  order of operations than fewer rows. A fused group that computes such rows tile by tile
 *  (compile/tile.h) therefore has at least TS_FEW_ROWS rows in a tile. */
enum { TS_SHORT_ROW = 32, TS_FEW_ROWS = 8 };
/**
 * A share of a reduction of a whole contiguous tensor, for fused groups (compile/) that compute the
 * tensor piece by piece. The kernel folds each piece of TS_PIECE elements (the last may have fewer)
 * to one part, and in a last call the parts to the result. Both are steps of the kernel's usual
 * reduction, so the bits are the same. A kernel that declares TS_TAKES_PIECES reads ts_plan.share.
 */
typedef struct ts_fold_share {
    const char *data;     /* the elements of pieces first to first + count - 1; NULL: fold the parts
                             of all pieces to the result */
    int64_t first, count;
    char *parts;          /* one number per piece of the tensor, in the compute dtype */
} ts_fold_share;

/** Written by infer, completed by the generic entry, read by kernels. */
struct ts_plan {
    uint16_t cast;          /* bit i: the entry casts argument i to dtype `compute` */
    uint16_t strided;       /* bit i: argument i may have any strides, even if the kernel does not
                               declare TS_TAKES_STRIDES. No effect if the kernel needs contiguous
                               tensors (ts_op_table.packed) */
    uint16_t last;          /* bit i: the kernel gets argument i channels-last without gaps
                               (ts_is_dense_last()), in `order`; the entry copies an argument of
                               another layout. No effect if the kernel needs contiguous tensors
                               (ts_op_table.packed) */
    uint16_t operands;      /* bit i: argument i may be the destination itself. In a pointwise plan
                               these arguments (tensors or scalars) are the loop's operands */
    uint8_t ordered;        /* bit i: a new result i is dense, with its dims in memory in `order`,
                               unless the kernel needs contiguous tensors (ts_op_table.packed) */
    uint8_t order[TS_MAX_DIMS]; /* dims by stride, the largest stride first */
    uint8_t pointwise;      /* a ts_pointwise, or 0; arguments broadcast to ret[0] */
    bool flat;              /* pointwise: all operands are contiguous and have the result's sizes;
                               the rule has filled iter except for the result */
    bool ragged;            /* pointwise: the result is not contiguous, or an operand of more than
                               one element is not, or is broadcast */
    uint8_t delivered;      /* bit i: the entry does not increment the version of result i, because
                               a copy inside the kernel has done so, or nothing was written */
    uint8_t compute;        /* dtype in which the kernel computes */
    bool converts;          /* the kernel converts to the result's dtype, which the kernel's
                               declared dtypes must include */
    uint8_t rows;           /* for ops that compute each row of args[0] separately: number of
                               args[0]'s last dims that form a row, plus the flag
                               TS_ROWS_SUMMED. Only these ops set it, so its reader, compile/, sets
                               it to 0 before the rule runs */
    uint16_t widens;        /* bit i: list argument i may have bf16 and f16 members, with the same
                               results as for their f32 copies. Set and read like `rows` */
    ts_meta ret[TS_MAX_RETS]; /* sizes, dtypes and devices of the results */
    int64_t buffer[TS_MAX_RETS][TS_MAX_DIMS]; /* memory of the sizes that are not borrowed */
    int64_t dim;            /* the dim along which the op works */
    union {                 /* numbers that the shape rule passes to the kernel, by family */
        struct {
            int64_t outer, count, inner; /* products of the sizes before, of and after dim */
        };
        struct {
            int64_t reduced;             /* reductions: bit d is set if dim d is reduced */
            const ts_fold_share *share;  /* reductions: NULL: the whole reduction */
        };
        struct {
            int64_t start, step;         /* slice_scatter, slice_backward: of the slice in dim */
        };
    };
    ts_iter iter;
    union {
        double d;
        float f;
        int64_t i;
        int32_t i32;
        uint8_t u8;
        uint16_t u16;
    } scalars[TS_MAX_OPERANDS]; /* scalar operands in the compute dtype. If that is bf16 or f16, the
                                   CPU's loops overwrite scalars that are not rounded (see
                                   ts_pointwise) with their f32 values */
};

/** A kernel calls this if it fails before its first write, so that no destination's version is
 *  incremented. The versions of arguments that the schema marks as written, (a!), are incremented
 *  nevertheless. */
TS_INLINE void ts_wrote_nothing(const ts_frame *f) { f->plan->delivered = f->given; }
/** Returns status, the result of a kernel's check before its first write; calls ts_wrote_nothing()
 *  if it is an error. */
TS_INLINE ts_status ts_checked(const ts_frame *f, ts_status status)
{
    if (status != TS_OK)
        ts_wrote_nothing(f);
    return status;
}

/* ----------------------------------------------------------------------------------- op ---- */

/** Bits of ts_op_info.flags; 16 is TS_OP_CHECKED (registry.h). */
enum {
    TS_OP_RANDOM = 1,      /* has a reserve function */
    TS_OP_BY_PARTS = 2,    /* if a gradient is needed and the op has no rule, the composite's ops
                              are recorded instead of the call */
    TS_OP_NODIFF = 4,      /* results never require grad */
    TS_OP_RUNTIME = 8      /* registered at run time */
};

typedef ts_status (*ts_infer)(ts_frame *f);
typedef struct ts_vjp ts_vjp; /* autograd/vjp.h */

/** The description of an op. */
typedef struct ts_op_info {
    const char *name, *schema_text, *doc;
    ts_op_kind kind;
    uint32_t flags;
    ts_infer infer; /* the shape rule; NULL: none */
    ts_infer rule;  /* the program's rule of an op registered at run time, which infer runs */
    ts_kernel composite;
    uint64_t (*reserve)(const ts_frame *f); /* number of Philox counters of a call, whose arguments
                                               are not yet checked; NULL: not a random op */
    ts_cost cost;   /* work of a call; NULL: unknown */
    float each;     /* operations per element, for ts_cost_each() */
    const void *site; /* call site of the registration; NULL for the library's ops */
    ts_schema schema;
} ts_op_info;

/** Arguments that a backend kernel takes without a copy, as bits. The value 2 is TS_STRIDES_PACKED
 *  (store.h). */
enum ts_takes {
    TS_TAKES_STRIDES = 1, /* tensors with any strides; without this bit, contiguous tensors only */
    TS_TAKES_PIECES = 8,  /* a reduction of all elements in pieces (ts_fold_share) */
    TS_TAKES_DTYPES = 4   /* tensors of any dtype on the kernel's device; the kernel converts them
                             to the compute dtype as it reads */
};

/** Arguments that a backend kernel accepts without conversion. */
typedef struct ts_accepts {
    uint16_t dtypes;  /* bit per accepted compute dtype; 0: all dtypes (tables hold TS_DT_ALL) */
    uint16_t takes;   /* bits of ts_takes; 16 bits wide, so that the struct has no padding and
                         tables can be compared by memcmp() */
} ts_accepts;

/** Immutable snapshot of one op's slots. A release store publishes it. */
struct ts_op_table {
    ts_keyset mask;    /* keys that have a slot; the call skips other keys */
    uint32_t flags;    /* TS_OP_RANDOM: calls go through ts_call_slow() */
    uint16_t op;
    uint16_t written;  /* bit i: argument i is written, (a!) in the schema */
    uint16_t packed;   /* bit k: the kernel of backend k needs contiguous tensors even where the
                          shape rule accepts strides (TS_STRIDES_PACKED) */
    const ts_op_info *info;
    ts_kernel infer;   /* copy of info->infer, which saves a load */
    const ts_vjp *vjp; /* the gradient rule; NULL: none */
    ts_kernel slot[TS_KEY_COUNT];
    ts_kernel impl[16];       /* per backend: the kernel that the generic entry in `slot` runs */
    ts_accepts accepts[16];
    uint8_t rule[TS_KEY_COUNT]; /* ts_slot_rule of each slot, for ts_op_slot() and ts_op_dump() */
    const ts_op_table *older;    /* chain of replaced snapshots, freed at unload */
};

extern ts_op_info ts_ops[TS_MAX_OPS];
extern _Atomic(const ts_op_table *) ts_tables[TS_MAX_OPS];

/** A kernel of a backend in this library, with the arguments that it accepts. */
typedef struct ts_kernel_def {
    int op;
    ts_kernel kernel;
    ts_accepts accepts;
} ts_kernel_def;
/** Registers `count` kernels for a key, all or none. site: text that begins the log message of a
 *  failure. Errors: TS_ERR_REGISTRY, TS_ERR_MEMORY. */
ts_status ts_register_kernels(ts_key key, const ts_kernel_def *defs, int count, const char *site);

/** Generic entries (fill.c, enter.c). A table puts one into each backend slot that has a kernel, a
 *  composite or only a shape rule. The entry prepares the call and runs the backend kernel in
 *  `impl`. fill: ops with a shape rule; the entry creates their results. view: ops that return
 *  aliases. whole: kernels and composites that create their own results. */
ts_status ts_enter_fill(ts_frame *f);
ts_status ts_enter_view(ts_frame *f);
ts_status ts_enter_whole(ts_frame *f);
/** ts_enter_whole() for ops registered at run time and for backends with a struct: runs the op's
 *  shape rule first, if there is one, and releases the results of a kernel that fails. */
ts_status ts_enter_foreign(ts_frame *f);
/** The entry of a backend with its own memory: checks the devices of tensors, then, if the backend
 *  has supports() and the kernel is not ts_transfer(), runs the shape rule and supports(), then the
 *  entry of the op's kind. */
ts_status ts_enter_device(ts_frame *f);
/** ts_run_parts() with ts_enter_whole() as the composite. */
ts_status ts_enter_parts(ts_frame *f);
/** Releases the new results of a call that failed; returns status. */
TS_COLD ts_status ts_drop_results(ts_frame *f, ts_status status);
/** The infer function of ops registered at run time with a shape rule: runs that rule and checks
 *  that it declared each result and a valid compute dtype. TS_ERR_INTERNAL, TS_ERR_DTYPE. */
ts_status ts_infer_declared(ts_frame *f);
/** Runs an op's composite. For an op of kind TS_FILL the shape rule runs first, and the composite
 * may read its plan. */
ts_status ts_run_parts(ts_frame *f, ts_kernel composite);
/**
 * A kernel for bf16 and f16: runs the call in f32 on copies and rounds the results once. The entry
 * uses it when a kernel does not accept halves; a kernel that does may call it for layouts that it
 * has no fast path for.
 */
TS_COLD ts_status ts_run_widened(ts_frame *f);
/** Fills plan->iter for the first result and the operands of f. */
void ts_plan_iterate(ts_frame *f);
/** Sets the strides of operand k of a space of ndim dims, outermost first: the strides of t times
 *  item, 0 for dims in which t is broadcast or has size 1. */
void ts_iter_strides(ts_iter *it, int k, const ts_tensor *t, int ndim, int item);
/** Sorts the dims of a space into `order`, the largest stride first. Returns true if that changes
 *  their order. Of two dims, the first operand in which their strides differ and are not 0 decides
 *  which comes first; if there is no such operand, they keep their order. */
bool ts_iter_order(const ts_iter *it, int ndim, int operands, uint8_t *order);
/** Completes a space whose byte strides are given outermost dim first: sorts the dims by operand
 *  0's strides, unless in_order; reverses them to innermost first; removes dims of size 1; merges
 *  adjacent dims that are contiguous in every operand. */
void ts_iter_collapse(ts_iter *it, const int64_t *sizes, int ndim, bool in_order);

/** Reads an element of `dtype` as a boxed number: the inverse of ts_scalar_store(). */
ts_value ts_scalar_load(const void *element, ts_dtype dtype);

/** Like ts_frame_describe(), for a name and values without a frame. */
int ts_call_describe(const char *name, const ts_value *args, int nargs, char *buffer, size_t size);

/** Checks the arguments of a public function that sets result i of f: index, number of sizes,
 *  sizes and dtype. Errors name `function`: TS_ERR_VALUE, TS_ERR_NULL, TS_ERR_DTYPE. */
ts_status ts_check_result(const ts_frame *f, const char *function, int i, const int64_t *sizes,
                          int ndim, ts_dtype dtype);
/** TS_ERR_STATE if f has no plan, that is, if no shape rule runs. The error names `function`. */
ts_status ts_check_rule(const ts_frame *f, const char *function);
/** TS_ERR_DTYPE for a call whose compute dtype is none of `dtypes`: the dtypes in which the kernel
 *  can compute, a bit per dtype. Names the argument that has the compute dtype, if there is one. */
TS_COLD ts_status ts_fail_kernel_dtype(const ts_frame *f, uint16_t dtypes);
/** Like ts_kernel_error(), for a member of a list: the message names "ARGUMENT[MEMBER]". member -1:
 *  the argument itself. */
TS_COLD ts_status ts_fail_member(const ts_frame *f, int arg, int64_t member, ts_status status,
                                 const char *hint, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
/** For a public function whose name is not its op's, such as ts_ones(), which calls the op `full`.
 *  If the error record names op `op` and this call site, replaces the op's name by `function`.
 *  Returns NULL. */
TS_COLD ts_tensor *ts_fail_as(const char *function, int op, const void *site);
/** Records an error about argument `index` of the running op, with the names of op and argument;
 *  returns `code`. */
#define ts_fail_arg(f, index, code, ...) ts_kernel_error(f, index, code, NULL, __VA_ARGS__)
#define ts_fail_arg_hint(f, index, code, hint, ...)                                                \
    ts_kernel_error(f, index, code, hint, __VA_ARGS__)

#endif
