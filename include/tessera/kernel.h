/**
 * @file kernel.h
 * The interface of kernels and shape rules, for backends and operators outside the library.
 *
 * A kernel of an op with a shape rule runs last: its arguments are checked, cast to the compute
 * dtype and packed if needed, and its results exist. It reads the frame (arguments in frame->args,
 * results in frame->rets, frame->rng for a random op) and the functions below, and writes the
 * results. A pointwise kernel needs ts_kernel_space() alone.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_KERNEL_H
#define TESSERA_KERNEL_H

#include "backend.h"

TS_BEGIN_DECLS

/* ------------------------------------------------------------------------ registration ---- */

/** The bit of a dtype in ts_kernel_opts.dtypes. */
#define TS_DTYPE_BIT(dtype) (1u << (dtype))

/** Requirements of a kernel; zero is default. */
typedef struct ts_kernel_opts {
    size_t size;        /**< sizeof(ts_kernel_opts) */
    const char *schema; /**< the schema it was written for; NULL skips the check */
    uint32_t dtypes;    /**< bits of the dtypes it computes in; 0: all. Other calls are an error
                             of the op, or go to the CPU where the backend allows that */
    bool strided;       /**< takes tensors of any strides; else they are packed before the call,
                             except for arguments that the op writes and members of lists,
                             which come as they are */
    bool converts;      /**< reads tensors on its device whose dtype is not the compute dtype, and
                             rounds their elements to it; otherwise they are cast before the call. A
                             small tensor that is broadcast to a large result may be cast anyway */
} ts_kernel_opts;

/** ts_register_kernel() with options; NULL is all zero.
 * TS_ERR_VALUE for a size of another library. */
TS_API ts_status ts_register_kernel_ex(const char *op, ts_key key, ts_kernel kernel,
                                       const ts_kernel_opts *opts, ts_registration **out);

/* ------------------------------------------------------------------------ in a kernel ---- */

/** The dtype that the shape rule chose to compute in; TS_DTYPE_NONE for an op without a rule. */
TS_API ts_dtype ts_kernel_dtype(const ts_frame *frame);
/** The device of the running kernel. */
TS_API ts_device ts_kernel_device(const ts_frame *frame);
/** The stream for the kernel's work: the thread's current stream of that device. */
TS_API ts_stream *ts_kernel_stream(const ts_frame *frame);
/** Address of a tensor's first element in its device's memory; NULL for an empty tensor. The entry
 *  that calls the kernel counts writes. */
TS_API void *ts_kernel_data(const ts_tensor *t);

/** Operands of a pointwise op: its result and up to five arguments. */
#define TS_KERNEL_OPERANDS 6

/** One operand. */
typedef struct ts_operand {
    void *data;                    /**< first element */
    int64_t strides[TS_MAX_DIMS];  /**< in bytes, innermost dim first;
                                        0 where the operand is broadcast */
    ts_dtype dtype;
    int8_t arg;                    /**< its place among the arguments; -1 for the result */
    bool host;                     /**< one number in host memory, to be read
                                        before the kernel returns */
    bool wide;                     /**< a plain number beside bf16 or f16 that counts as f32:
                                        ts_scalar_store(&frame->args[arg], TS_F32, &number) */
} ts_operand;

/** The iteration space of a pointwise kernel. Dims of size 1 are removed, and neighbouring dims are
 *  merged if all operands allow it. Contiguous operands give one dim. Dims are in the order of the
 *  result's strides, except for ops that draw random numbers, which keep the result's order. */
typedef struct ts_space {
    int ndim;                     /**< at least 1 */
    int operands;                 /**< the result, operand[0], included */
    int64_t numel;
    int64_t sizes[TS_MAX_DIMS];   /**< innermost dim first */
    ts_operand operand[TS_KERNEL_OPERANDS];
} ts_space;

/** The space of the running pointwise op. TS_ERR_STATE for any other op.
 *  Arguments that are absent (such as a bound of clamp) are not among the operands. */
TS_API ts_status ts_kernel_space(const ts_frame *frame, ts_space *space);
/** The number of a host operand, rounded to the operand's dtype; a wide number is rounded too. */
TS_API double ts_operand_number(const ts_operand *operand);

/** A contiguous tensor as outer x count x inner elements; an op works along the second. */
typedef struct ts_rows {
    int64_t outer, count, inner;
} ts_rows;
/** The rows of the running softmax, norm, loss over classes, arg op, scan or multinomial. Norms and
 *  multinomial work along the last dims: their inner is 1. */
TS_API ts_rows ts_kernel_rows(const ts_frame *frame);
/** The dim of the running op by index, cat or stack, from 0 on. */
TS_API int64_t ts_kernel_dim(const ts_frame *frame);
/** The dims that the running reduction removes: bit d is set if dim d is one of them. */
TS_API int64_t ts_kernel_reduced(const ts_frame *frame);
/** Elements start, start + step, ... of a dim. */
typedef struct ts_slice_range {
    int64_t dim, start, step;
} ts_slice_range;
/** The slice of the running slice_scatter or slice_backward; src or grad has its length. */
TS_API ts_slice_range ts_kernel_slice(const ts_frame *frame);

/**
 * Up to this magnitude of a log-sum of exponentials, exp(x - lse) gives cross_entropy's gradient
 * the probabilities to 2^-20. Above it, kernels normalise a position's probabilities again.
 */
enum { TS_LSE_EXACT = 32 };

/** A decoded call of attention, forward or backward; docs/attention.md has the formulas. */
typedef struct ts_attention {
    const ts_tensor *query, *key, *value;
    const ts_tensor *mask;                        /**< 0 to 4 dims, bool or floating,
                                                       to be broadcast; NULL: none */
    const ts_tensor *cu_seqlens_q, *cu_seqlens_k; /**< (batch + 1) i32, any stride;
                                                       NULL: not packed */
    int64_t batch;                                /**< B; of packed sequences their number */
    int64_t heads, groups;                        /**< H of queries, G of keys and values */
    int64_t rows, keys;                           /**< Sq and Sk;
                                                       of packed sequences the bounds max_seqlens */
    int64_t depth, value_depth;                   /**< D and E */
    int64_t left, right;                          /**< the window: 0 to rows + keys,
                                                       which is no bound */
    double scale, softcap, dropout_p;             /**< softcap 0: none */
    ts_rng_state rng;                             /**< of the forward call's draw,
                                                       when dropout_p > 0 */
} ts_attention;
/** The running call of scaled_dot_product_attention or its backward, decoded; of no other op. */
TS_API ts_attention ts_kernel_attention(const ts_frame *frame);

/**
 * Makes result i, uninitialised and contiguous, on the kernel's device, for ops without a shape
 * rule and those whose sizes depend on values (nonzero, masked_select: arguments are checked but
 * neither cast nor packed); a given result must fit and is kept.
 * @param sizes  ndim sizes
 */
TS_API ts_status ts_kernel_result(ts_frame *frame, int i, const int64_t *sizes, int ndim,
                                  ts_dtype dtype);
/** Sets result i to a tensor that the kernel made with other ops. NULL passes a failure on. */
TS_API ts_status ts_kernel_give(ts_frame *frame, int i, ts_tensor *t);

/** Memory for the time of a call, from the device's allocator (the CPU's for host scratch);
 *  NULL with an error. bytes above 0. */
TS_API void *ts_scratch_take(ts_device device, int64_t bytes);
/** Releases it; work that uses it may still be queued on the current stream. */
TS_API void ts_scratch_give(ts_device device, void *data, int64_t bytes);

/** Writes a boxed number as an element of `dtype`, rounded as a cast would. */
TS_API void ts_scalar_store(const ts_value *value, ts_dtype dtype, void *element);
/** An error about argument `arg` of the running op, with a remedy (NULL: none). Returns status. */
TS_API ts_status ts_kernel_error(const ts_frame *frame, int arg, ts_status status, const char *hint,
                                 const char *format, ...)
    __attribute__((cold, format(printf, 5, 6)));

/* ------------------------------------------------------------- operators at run time ---- */

/** Options of ts_register_op_ex(); zero is default. */
typedef struct ts_op_opts {
    size_t size; /**< sizeof(ts_op_opts) */
    /** Checks arguments and plans the results by the ts_rule_ functions. Every call runs it, on
     *  every backend (META needs nothing else); casts, out= and in-place forms follow from it.
     *  NULL: the kernel does everything, or the composite. */
    ts_kernel rule;
    /** The op written with other ops, for backends without a kernel. */
    ts_kernel composite;
    /** Counters of random numbers that a call takes, for frame->rng. NULL: none. */
    uint64_t (*reserve)(const ts_frame *frame);
    /** Results never require grad. Else, without ts_register_vjp(),
     * a gradient through it is an error. */
    bool not_differentiable;
    const char *doc; /**< one line, copied */
    /** The least work of a call that has ended, for ts_op_cost() and profiles. NULL: unknown. */
    ts_cost cost;
} ts_op_opts;
/** ts_register_op() with options; NULL is all zero. */
TS_API ts_status ts_register_op_ex(const char *schema, const ts_op_opts *opts, int *op);

/** Result i of a rule: sizes (copied) and dtype, on the device
 * of the tensor arguments, which must be one. */
TS_API ts_status ts_rule_result(ts_frame *frame, int i, const int64_t *sizes, int ndim,
                                ts_dtype dtype);
/**
 * A whole rule: arguments 0 to n - 1 (tensors or numbers) broadcast to result 0 and are cast
 * to one dtype, by promotion.
 * @param result      dtype of the result; TS_DTYPE_NONE: the promoted one
 * @param float_math  integers compute in f32
 */
TS_API ts_status ts_rule_pointwise(ts_frame *frame, int n, ts_dtype result, bool float_math);
/** The dtype to compute in, and bits of the arguments that are to be cast to it. */
TS_API void ts_rule_compute(ts_frame *frame, ts_dtype dtype, uint32_t cast);
/** The rows that ts_kernel_rows() gives to the kernel. */
TS_API void ts_rule_rows(ts_frame *frame, ts_rows rows);
/* A rule reports wrong arguments with ts_kernel_error(). */

TS_END_DECLS
#endif
