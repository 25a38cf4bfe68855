/**
 * @file kernel.h
 * The interface of kernels and shape rules, for backends and operators outside the library.
 *
 * An op's shape rule checks the arguments and declares the results and the compute dtype, the dtype
 * in which the kernel computes. A kernel of an op with a shape rule runs after all layers. Before
 * the kernel runs, the library has run the rule, cast the arguments to the compute dtype, packed
 * them (made them contiguous) where ts_kernel_opts requires it, and allocated the results.
 *
 * The kernel reads frame->args (arguments), frame->rets (results) and frame->rng (random ops),
 * calls the functions below, and writes the results' elements. A pointwise kernel needs only
 * ts_kernel_space().
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
    const char *schema; /**< schema that the kernel was written for; NULL skips the check */
    uint32_t dtypes;    /**< bits of the compute dtypes that the kernel supports; 0: all. If a
                             kernel supports f32 but not bf16 or f16, the library runs calls in
                             bf16 or f16 on f32 copies, except conversions, ops that write an
                             argument, and calls with bf16 or f16 tensors in a list. Other calls
                             in unsupported dtypes run on the CPU if the backend has
                             TS_BACKEND_CPU_FALLBACK; otherwise they are TS_ERR_DTYPE */
    bool strided;       /**< accepts any strides. If false, the library copies tensors that are not
                             contiguous before the call, except arguments that the op writes and
                             members of lists. Kernels of pointwise ops get any strides in either
                             case (ts_kernel_space()) */
    bool converts;      /**< accepts tensors on its device whose dtype is not the compute dtype, and
                             rounds their elements to the compute dtype. If false, the library
                             casts such tensors before the call. In either case the library may cast
                             a small tensor that is broadcast to a large result */
    bool layouts;       /**< accepts tensors, and fills new results, in layouts that the shape rule
                             allows, such as channels-last; other tensors are packed */
} ts_kernel_opts;

/** ts_register_kernel() with options; opts NULL: all zero. Further errors: TS_ERR_VALUE for an
 *  invalid opts->size or bits that are not dtypes. */
TS_API ts_status ts_register_kernel_ex(const char *op, ts_key key, ts_kernel kernel,
                                       const ts_kernel_opts *opts, ts_registration **out);

/* ------------------------------------------------------------------------ in a kernel ---- */

/** The compute dtype that the shape rule chose; TS_DTYPE_NONE for an op without a rule. */
TS_API ts_dtype ts_kernel_dtype(const ts_frame *frame);
/** The device on which the kernel runs. */
TS_API ts_device ts_kernel_device(const ts_frame *frame);
/** The stream on which the kernel queues work: the thread's current stream of its device. */
TS_API ts_stream *ts_kernel_stream(const ts_frame *frame);
/** Address of a tensor's first element in its device's memory, for reading and writing; NULL for a
 *  tensor that is empty or has no memory, TS_NONE and NULL. The dispatcher increments the versions
 *  of written tensors. */
TS_API void *ts_kernel_data(const ts_tensor *t);

/** Operands of a pointwise op: its result and up to five arguments. */
#define TS_KERNEL_OPERANDS 6

/** One operand. */
typedef struct ts_operand {
    void *data;                    /**< first element */
    int64_t strides[TS_MAX_DIMS];  /**< in bytes, innermost dim first;
                                        0 where the operand is broadcast */
    ts_dtype dtype;
    int8_t arg;                    /**< index of the argument; -1 for the result */
    bool host;                     /**< data is one element in host memory, valid until the kernel
                                        returns */
    bool wide;                     /**< a number argument of a call in bf16 or f16, to be used in
                                        f32: ts_scalar_store(&frame->args[arg], TS_F32, &number) */
} ts_operand;

/** The iteration space of a pointwise kernel. Dims of size 1 are removed, and neighbouring dims are
 *  merged if all operands allow it. Contiguous operands give one dim. Dims are sorted by the
 *  result's strides. Exception: for ops that draw random numbers, they are in the order of the
 *  result's dims, because the index of an element selects its random number. */
typedef struct ts_space {
    int ndim;                     /**< at least 1 */
    int operands;                 /**< used entries of operand; operand[0] is the result */
    int64_t numel;
    int64_t sizes[TS_MAX_DIMS];   /**< innermost dim first */
    ts_operand operand[TS_KERNEL_OPERANDS];
} ts_space;

/** Writes the space of the running pointwise op to *space; absent arguments (such as a bound of
 * clamp) are not operands. Errors: TS_ERR_STATE for any other op, TS_ERR_NULL. */
TS_API ts_status ts_kernel_space(const ts_frame *frame, ts_space *space);
/** The value of a host operand of a space, rounded to the operand's dtype, also if the operand is
 *  wide. 0 with TS_ERR_NULL for NULL, with TS_ERR_VALUE for an operand that is not in host memory
 *  or has no elements. */
TS_API double ts_operand_number(const ts_operand *operand);

/** A contiguous tensor seen as (outer, count, inner); the op works along the dim of size count. */
typedef struct ts_rows {
    int64_t outer, count, inner;
} ts_rows;
/** The rows of the running softmax, norm, loss over classes, arg op, scan or multinomial, or of an
 *  op whose shape rule calls ts_rule_rows(). Norms and multinomial work along the last dims: their
 *  inner is 1. */
TS_API ts_rows ts_kernel_rows(const ts_frame *frame);
/** The dim of the running indexing op, cat or stack; never negative. */
TS_API int64_t ts_kernel_dim(const ts_frame *frame);
/** The dims that the running reduction removes: bit d is set if dim d is one of them. */
TS_API int64_t ts_kernel_reduced(const ts_frame *frame);
/** Elements start, start + step, ... of a dim. */
typedef struct ts_slice_range {
    int64_t dim, start, step;
} ts_slice_range;
/** The slice of the running slice_scatter or slice_backward; src or grad has its length. For NULL:
 *  dim and start 0, step 1. */
TS_API ts_slice_range ts_kernel_slice(const ts_frame *frame);

/**
 * Bound of |lse| for cross_entropy's gradient, where lse is the log-sum of exponentials of a
 * position. Up to this bound f32 rounds lse by at most 2^-20, so exp(x - lse) is the probability
 * with a relative error of 2^-20. Above it, kernels normalise the position's probabilities again.
 */
enum { TS_LSE_EXACT = 32 };

/** A decoded call of attention, forward or backward; docs/attention.md has the formulas. */
typedef struct ts_attention {
    const ts_tensor *query, *key, *value;
    const ts_tensor *mask;                        /**< 0 to 4 dims, bool or floating, broadcast to
                                                       (B, H, Sq, Sk); NULL: none */
    const ts_tensor *cu_seqlens_q, *cu_seqlens_k; /**< (batch + 1) i32, any stride;
                                                       NULL: not packed */
    const ts_tensor *key_lengths;                 /**< (batch) i32, any stride: number of keys of
                                                       each batch, unchecked; NULL: `keys` */
    int64_t batch;                                /**< B; number of sequences if packed */
    int64_t heads, groups;                        /**< H query heads, G key and value heads */
    int64_t rows, keys;                           /**< Sq and Sk; max_seqlen_q and max_seqlen_k if
                                                       packed */
    int64_t depth, value_depth;                   /**< sizes of the last dim: D of query and key,
                                                       E of value */
    int64_t left, right;                          /**< window: query row i sees the keys from
                                                       i + keys - rows - left to
                                                       i + keys - rows + right; rows + keys means
                                                       no bound. In a packed batch and with
                                                       key_lengths these formulas use the lengths
                                                       of the row's sequence or batch instead of
                                                       rows and keys */
    double scale, softcap, dropout_p;             /**< softcap 0: none */
    ts_rng_state rng;                             /**< counters of the forward call's dropout,
                                                       if dropout_p > 0 */
} ts_attention;
/** Decodes the running call of scaled_dot_product_attention or its backward. Other ops: all 0, with
 *  TS_ERR_STATE. */
TS_API ts_attention ts_kernel_attention(const ts_frame *frame);

/**
 * A decoded call of convolution or its backward. x and y name the two sides of the convolution:
 *
 *     y[p] = sum over k of weight[k] * x[p * stride - padding + k * dilation]
 *
 * Elements outside of x count as 0. x is (batch, channels, size), y (batch, features, y_size), and
 * weight (features, channels / groups, kernel). A convolution computes y from x; a transposed
 * convolution computes x from y. There are always three spatial dims: if the tensors have fewer,
 * leading dims of size 1 are added.
 */
typedef struct ts_convolution {
    bool transposed;           /**< the call's input is y and its result x */
    int dims;                  /**< spatial dims of the tensors, 1 to 3 */
    int64_t batch, groups;
    int64_t channels, features; /**< channels of x, channels of y */
    int64_t size[3], y_size[3]; /**< spatial sizes of x, spatial sizes of y */
    int64_t kernel[3], stride[3], dilation[3];
    int64_t padding[3];         /**< zeros before x's first element */
} ts_convolution;
/** Decodes the running call of convolution or convolution_backward. Other ops: all 0, with
 *  TS_ERR_STATE. */
TS_API ts_convolution ts_kernel_convolution(const ts_frame *frame);

/** The input indices that output index o of a dim reads; in and out are the sizes of the dim in the
 *  input and the output. The weights of the elements read sum to 1 unless stated otherwise. */
typedef enum ts_axis_map {
    TS_AXIS_WINDOW,    /**< o * stride - padding + k * dilation for 0 <= k < kernel, if inside the
                            dim. All weights are 1 if `sum` is set, else 1 / n: n is the number of
                            elements read, plus, if `padded` is set, the number of window elements
                            in the padding at both ends */
    TS_AXIS_ADAPTIVE,  /**< floor(o * in / out) to ceil((o + 1) * in / out) - 1, equal weights */
    TS_AXIS_NEAREST,   /**< min(floor(o * scale), in - 1), computed in float */
    TS_AXIS_LINEAR,    /**< the two neighbours of x = o * scale with `corners`, else of
                            x = max(0, (o + 1/2) * scale - 1/2) */
    TS_AXIS_CUBIC,     /**< the four neighbours of x = o * scale with `corners`, else of
                            x = (o + 1/2) * scale - 1/2 (Keys 1981, a = -3/4); an index outside of
                            the dim reads the end element */
    TS_AXIS_CONSTANT,  /**< o - padding; outside of the dim nothing is read */
    TS_AXIS_REFLECT,   /**< o - padding, mirrored at the end elements */
    TS_AXIS_REPLICATE, /**< o - padding, clamped to the dim */
    TS_AXIS_CIRCULAR   /**< o - padding, modulo in */
} ts_axis_map;

/** One spatial dim of pooling, padding or resizing. */
typedef struct ts_axis {
    ts_axis_map map;
    int64_t in, out;                           /**< sizes of the forward op's input and result */
    int64_t kernel, stride, padding, dilation; /**< padding: number of elements before the first */
    double scale;                              /**< input elements per output element */
    bool padded, sum, corners;                 /**< see ts_axis_map */
} ts_axis;

/** A decoded call of pooling, padding or resizing, or of its backward. The weight of an element is
 *  the product of its weights in the three dims, times factor. */
typedef struct ts_resampling {
    bool transposed;    /**< backward: the call's input is the gradient of the result, and its
                             result the gradient of the forward op's input */
    int64_t planes;     /**< product of the sizes before the spatial dims */
    double factor;      /**< multiplies all weights */
    ts_axis axis[3];    /**< spatial dims; if there are fewer, leading dims have size 1 */
} ts_resampling;
/** Decodes the running call of an op in ops/pool.c or ops/resample.c. Other ops: all 0, with
 *  TS_ERR_STATE. */
TS_API ts_resampling ts_kernel_resampling(const ts_frame *frame);

/**
 * One spatial dim of an implicit im2col. A convolution reads windows of one side of
 * ts_convolution, the source (x or y), and computes positions of the other side, the target. Window
 * i, 0 <= i < count, computes one position:
 *
 *     target[start + i * step] = sum over 0 <= j < taps of
 *                                kernel[first + j * every] * source[base + i * move + j * shift]
 *
 * Elements outside of the source count as 0.
 */
typedef struct ts_window_axis {
    int64_t count, start, step;
    int64_t taps, first, every;
    int64_t move, base, shift;
} ts_window_axis;
/**
 * Writes the windows of the running call of convolution or convolution_backward, for each of the
 * three spatial dims.
 *
 * With form -1, the source is x and the target y: there is one window for each position of y. The
 * gradient of the weight is the product of these windows with y's gradient.
 *
 * With form >= 0, the source is y and the target x. A form is a class of positions of x: two
 * positions have the same form if their distance is a multiple of the stride. Their windows have
 * the same taps (possibly none), so a kernel computes x with one product per form.
 * @param form  -1, or 0 to ts_kernel_window_forms() - 1
 * Errors, with all windows 0: TS_ERR_NULL, TS_ERR_STATE for another op, TS_ERR_VALUE (form).
 */
TS_API void ts_kernel_windows(const ts_frame *frame, int64_t form, ts_window_axis axis[3]);
/** Number of forms: the product over the spatial dims of min(stride, x's size). 0 with TS_ERR_STATE
 *  for another op. */
TS_API int64_t ts_kernel_window_forms(const ts_frame *frame);

/**
 * Allocates result i on the kernel's device, uninitialised and contiguous. For ops without a shape
 * rule and ops whose sizes depend on values (nonzero, masked_select); their arguments are checked,
 * but neither cast nor packed. Keeps a destination that the caller passed, which must have these
 * sizes and this dtype (TS_ERR_SHAPE). Does nothing if the caller does not request result i
 * (frame->want).
 * @param sizes  ndim sizes
 * Errors: TS_ERR_SHAPE, TS_ERR_VALUE, TS_ERR_NULL, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_MEMORY.
 */
TS_API ts_status ts_kernel_result(ts_frame *frame, int i, const int64_t *sizes, int ndim,
                                  ts_dtype dtype);
/** Sets result i to a tensor that the kernel made with other ops; an argument is aliased. NULL
 *  returns the recorded failure. Does nothing if the caller does not request result i. Errors:
 *  TS_ERR_NULL, TS_ERR_VALUE (TS_NONE, or no result i), TS_ERR_MEMORY. */
TS_API ts_status ts_kernel_give(ts_frame *frame, int i, ts_tensor *t);

/** Allocates temporary memory of `bytes` > 0 on a device (TS_DEVICE_CPU: host memory). Owned by the
 *  caller, for ts_scratch_give(); NULL with TS_ERR_VALUE, TS_ERR_DEVICE or TS_ERR_MEMORY. */
TS_API void *ts_scratch_take(ts_device device, int64_t bytes);
/** Frees memory of ts_scratch_take(), with the device and the size passed there; work that uses it
 *  may still be queued on the current stream. NULL-safe. */
TS_API void ts_scratch_give(ts_device device, void *data, int64_t bytes);

/** Writes a boxed number as an element of `dtype`, rounded as by a cast. For a NULL argument only
 *  records TS_ERR_NULL. */
TS_API void ts_scalar_store(const ts_value *number, ts_dtype dtype, void *element);
/** Records an error about argument `arg` of the running op; hint: a remedy, or NULL. Returns
 *  status. */
TS_API ts_status ts_kernel_error(const ts_frame *frame, int arg, ts_status status, const char *hint,
                                 const char *format, ...)
    __attribute__((cold, format(printf, 5, 6)));

/* ------------------------------------------------------------- operators at run time ---- */

/** Options of ts_register_op_ex(); zero is default. */
typedef struct ts_op_opts {
    size_t size; /**< sizeof(ts_op_opts) */
    /** The shape rule: checks arguments and declares the results with the ts_rule_ functions. It
     *  runs in each call on each backend; on META nothing else runs. From the declared results the
     *  library derives casts, out= forms and in-place forms. NULL: the kernel or composite checks
     *  arguments and makes results itself. */
    ts_kernel rule;
    /** Computes the op with other ops, for backends without a kernel; may be NULL. */
    ts_kernel composite;
    /** Number of random counters to reserve in frame->rng for a call. Called before the shape rule,
     *  so the arguments are not yet checked. NULL: not a random op. */
    uint64_t (*reserve)(const ts_frame *frame);
    /** Results never require grad. If false and the op has no rule by ts_register_vjp(), gradients
     *  go through the ops of the composite; without a composite, a gradient through the op is an
     *  error. */
    bool not_differentiable;
    const char *doc; /**< one line, copied */
    /** Minimal work of a completed call, for ts_op_cost() and profiles. NULL: unknown. */
    ts_cost cost;
} ts_op_opts;
/** ts_register_op() with options; NULL: all zero. Errors: those of ts_register_op(), and
 *  TS_ERR_VALUE (size). */
TS_API ts_status ts_register_op_ex(const char *schema, const ts_op_opts *opts, int *op);

/* For shape rules. In a layer, or for an op without a rule, these functions record TS_ERR_STATE. */
/** Declares result i of a rule: its sizes (copied) and dtype, on the device of the tensor
 *  arguments. Errors: TS_ERR_DEVICE if they are on different devices, TS_ERR_VALUE (i, ndim),
 *  TS_ERR_DTYPE, TS_ERR_NULL. */
TS_API ts_status ts_rule_result(ts_frame *frame, int i, const int64_t *sizes, int ndim,
                                ts_dtype dtype);
/**
 * The complete rule of a pointwise op with one result: arguments 0 to n - 1 (tensors or numbers)
 * broadcast to the result's sizes and are cast to the promoted dtype.
 * @param n           1 to TS_KERNEL_OPERANDS - 1
 * @param result      dtype of the result; TS_DTYPE_NONE: the promoted dtype
 * @param float_math  integer and bool arguments are computed in f32
 * Errors: TS_ERR_VALUE (n, or the op has several results), TS_ERR_DTYPE (result), TS_ERR_SHAPE
 * (sizes that do not broadcast), TS_ERR_DEVICE.
 */
TS_API ts_status ts_rule_pointwise(ts_frame *frame, int n, ts_dtype result, bool float_math);
/** Sets the compute dtype and the arguments that are cast to it (bit i: argument i). */
TS_API void ts_rule_compute(ts_frame *frame, ts_dtype dtype, uint32_t cast);
/** Sets the rows that ts_kernel_rows() returns in the kernel. */
TS_API void ts_rule_rows(ts_frame *frame, ts_rows rows);
/* A rule reports wrong arguments with ts_kernel_error(). */

TS_END_DECLS
#endif
