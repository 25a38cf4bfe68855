/**
 * @file fuse.h
 * Fused groups: runs the calls of a group as one kernel, which NVRTC compiles. The backend's slots
 * group_* (tessera/backend.h) are here. There are four kinds of groups:
 *
 *   pointwise     pointwise calls only
 *   by rows       also calls that compute each row (the last dims) of their first argument
 *                 separately, such as softmax or sum; for sums over all rows, a second kernel
 *                 adds up partial sums (rows.c)
 *   with folds    pointwise calls, reductions of adjacent dims (folds), and pointwise calls on the
 *                 results of these (folds.c)
 *   with members  the same pointwise calls over several sets of tensors, the members (members.c)
 *
 * A run goes through these steps: gather the calls, lay out the kernel, find the kernel by its key
 * or generate its source (source.c) and compile it (nvrtc.c), launch.
 *
 * The kernels of pointwise calls describe the group: each runs without a device and, instead of
 * launching its loop, records the functor that the loop applies (describe.cuh). A call by rows has
 * a function in group_rows.cuh. The generated kernel (source.c) applies the same functors to
 * the same elements, so the results of a pointwise group are bitwise equal to those of the separate
 * calls. So are those of a group with folds, which adds in the order of the eager kernel. In a
 * group with calls by rows, sums may be added in another order.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_FUSE_H
#define TS_CUDA_FUSE_H

#include "backends/cuda/fuse/describe.h"
#include "backends/cuda/divisor.h"
#include "tessera/backend.h"

TS_BEGIN_DECLS

/** True if a kernel belongs to a family whose loops can be described. Other kernels, such as a
 *  plugin's, would launch instead of describing themselves. runtime/backend.c defines this function
 *  and the next two. */
bool ts_cuda_describes(ts_kernel kernel);
/** True if a kernel is one of the backend's. */
bool ts_cuda_owns(ts_kernel kernel);
/** True if a kernel belongs to a family with calls by rows (norms, softmax, reductions). */
bool ts_cuda_is_by_rows(ts_kernel kernel);

/* ------------------------------------------------------------------------------- group ---- */

/** Host type of group_space (group.cuh, which documents the fields). Both must have the same
 *  layout, because the kernel receives this struct as its argument. */
typedef struct ts_cuda_group_space {
    uint64_t accesses;
    uint32_t tail, none;
    ts_cuda_divisor by[TS_MAX_DIMS];
    uint64_t sizes[TS_MAX_DIMS];
} ts_cuda_group_space;

/** Host type of group_folds (group_folds.cuh, which documents the fields). Both must have the same
 *  layout. */
typedef struct ts_cuda_group_folds {
    uint64_t results, inner, count, share, all;
    uint32_t blocks, shares, group, merges;
    bool beside; /* this field and the next one are read by the host only, for the source */
    bool vector;
} ts_cuda_group_folds;
/** Divides a reduction of contiguous elements (results / inner, count, inner) over `count` among
 *  threads and blocks, as the eager kernel does (reduce.cuh). Reads results, inner and count, and
 *  sets the other fields. piece: elements of a 16-byte access; item: bytes of an element. */
void ts_cuda_divide_folds(ts_cuda_group_folds *folds, int piece, int item);

/** Layout of a tensor along the innermost dim, in ts_cuda_group_value.way: not in memory but only
 *  in registers (INSIDE), contiguous (ARRAY), one element for all indices (ONE), or STRIDED. */
enum { TS_CUDA_INSIDE, TS_CUDA_ARRAY, TS_CUDA_ONE, TS_CUDA_STRIDED };

/** A tensor of a group. `data` and `strides` are adjacent, because the kernel receives both as a
 *  group_tensor (group.cuh). */
typedef struct ts_cuda_group_value {
    const ts_tensor *tensor;
    char *data; /* NULL: used only inside the group, in registers */
    int64_t strides[TS_MAX_DIMS]; /* in bytes, innermost dim first. Pointwise: [0] is the stride
                                     between accesses. By rows: the dims of the row are omitted */
    uint8_t dtype, item, way; /* item: bytes of an element; way: TS_CUDA_INSIDE, ... */
    bool read, written; /* the kernel loads the tensor from memory; it stores the tensor */
    bool each;          /* by rows: all columns of a row use the same element */
    bool left;          /* by rows: a result without the dims of the row (keepdim false); its dims
                           are the first dims of the space */
    bool sums;          /* by rows: the tensor receives sums over all rows */
    void *parts;        /* if `sums`: partial sums (lines, columns) that the kernel writes, f32 */
    bool late, stored;  /* with folds. late: a call on results of folds loads the tensor; stored:
                           such a call or a fold stores the tensor */
} ts_cuda_group_value;

/** A call of a group. */
typedef struct ts_cuda_group_call {
    ts_cuda_formula formula; /* by rows: only operands, host, number and names (= rows) are set; of
                                a fold: operands and names (= fold) */
    int16_t value[TS_KERNEL_OPERANDS]; /* indices in group->values of the result, then of the
                                          operands; -1: a number or, by rows, the result or an
                                          absent argument */
    uint8_t compute;                   /* the call's compute dtype, to which operands are cast */
    const char *rows;                  /* by rows: function in group_rows.cuh; else NULL */
    int16_t result[TS_MAX_RETS];       /* by rows: indices of the results; -1: not requested */
    int results;                       /* by rows: length of `result` */
    const char *fold;                  /* of a reduction in a group with folds: its fold (fold.cuh)
                                          as a C++ expression of T (element type), W (wide_t<T>) and
                                          `factor`; else NULL */
    double factor;                     /* of that fold: 1 / count for a mean, else 1 */
    bool late;                         /* a pointwise call on results of folds */
    void *parts;                       /* states of the fold, (shares, results), unless `direct` */
    bool cast[TS_KERNEL_OPERANDS];     /* operands that are cast to `compute` */
} ts_cuda_group_call;

/** A group in the form that its kernel is generated from. */
typedef struct ts_cuda_group {
    ts_cuda_group_call *calls;
    ts_cuda_group_value *values;
    int ncalls, nvalues, ndim;
    int width;  /* elements per access */
    int unroll; /* accesses per thread */
    bool large; /* 64-bit indices */
    bool tail;  /* the last access may have fewer elements */
    bool draws; /* a functor takes random words */
    int64_t numel; /* elements of the iteration space */
    int64_t sizes[TS_MAX_DIMS]; /* innermost dim first, in elements; by rows: without the row */
    /* By rows. In other groups these fields, up to `lines`, are 0, except `threads`,
     * `resident` and `blocks`. */
    int rows;               /* number of last dims of the space that form a row */
    const ts_tensor *space; /* a tensor of the space's sizes */
    int64_t columns;        /* elements of a row */
    int lanes, accesses;    /* threads per row; accesses per thread */
    int together;           /* rows per block */
    bool full;              /* all accesses are inside their row, all rows inside the space */
    int threads, resident;  /* threads per block; minimum blocks per multiprocessor
                               (__launch_bounds__) */
    int64_t blocks, lines;  /* blocks of the grid; lines of partial sums, 0: no sums */
    /* With members: maximum members per launch, a power of two; 0: a group without members. */
    int members;
    /* With folds. The fields above are as in a pointwise group, except that `space` is set. */
    bool folds;  /* the group has folds */
    bool vector; /* division.vector */
    bool direct; /* the kernel itself computes the results; else it writes states to
                    ts_cuda_group_call.parts, and a second kernel, `merge`, computes the results */
    int piece;   /* elements of a 16-byte piece of the reduced tensor, at most 8 */
    uint8_t fold_dtype; /* of the reduced tensors and the results */
    ts_cuda_group_folds division;
} ts_cuda_group;

enum { TS_CUDA_GROUP_THREADS = 256 /* threads per block of a pointwise group */ };

/** Sets call->cast of a pointwise call: an operand is cast if its dtype differs from the functor's
 *  type and the functor's type is call->compute. Returns false if the functor accepts neither the
 *  operand's dtype nor a cast. */
bool ts_cuda_group_casts(ts_cuda_group_call *call, const ts_cuda_group_value *values);
/** Describes the calls of a group in group->calls and its tensors in group->values. The caller
 *  allocates both arrays (ts_cuda_group_room_for()), zeroed, and zeroes the other fields of *group.
 *  Returns false if a call is neither a describable loop nor a supported call by rows or fold, if a
 *  functor does not accept an operand's dtype, or if calls by rows and folds do not fit
 *  together. */
bool ts_cuda_group_gather(ts_cuda_group *group, const ts_group_call *calls, int count);
/** Sizes in bytes for a group of `count` calls: its calls, its values, the words of its key, and
 *  the array of its kernel's argument addresses. */
typedef struct ts_cuda_group_room {
    size_t calls, values, words, arguments;
} ts_cuda_group_room;
ts_cuda_group_room ts_cuda_group_room_for(int count);
/** Writes the key of a group's kernel to `words`: the current device, and all that the source
 *  depends on. `words` has ts_cuda_group_room.words bytes. Returns the number of words. */
int ts_cuda_group_words(const ts_cuda_group *group, uint64_t *words);
/** Finds or compiles the kernel of a group on the current device. words, nwords: the group's key
 *  (ts_cuda_group_words()). Sets functions[0] to the kernel and functions[1] to the kernel that
 *  merges the states of folds, or NULL; both are CUfunctions that the backend owns. A compilation,
 *  or a load from the disk cache, sets compile_ms and from_disk of *report. Errors:
 *  TS_ERR_UNSUPPORTED if NVRTC cannot be loaded, or NVRTC or the driver rejects the kernel, which
 *  is then not compiled again; TS_ERR_MEMORY; TS_ERR_DEVICE. */
ts_status ts_cuda_group_kernel(const ts_cuda_group *group, const uint64_t *words, int nwords,
                               void *functions[2], ts_group_report *report);
/** Index of a tensor in group->values; adds the tensor if it is new. */
int ts_cuda_group_value_of(ts_cuda_group *group, const ts_tensor *t);
/** Fills *call for a call by rows (rows.c). dims, summed: from ts_kernel_row_dims(). Returns
 *  false if group_rows.cuh has no function for the op, or the dtype is not f32, bf16 or f16, or if
 *  the group's rows have another number of dims. */
bool ts_cuda_group_by_rows(ts_cuda_group *group, ts_cuda_group_call *call, ts_frame *frame,
                           int dims, bool summed);
/** Chooses threads, accesses and blocks of a group by rows, after all calls are gathered. Returns
 *  false if a row does not fit the registers of a block, if a row that must be accessed element by
 *  element is too long, if there are no elements, or if there are 2^31 rows or more. */
bool ts_cuda_group_lay_rows(ts_cuda_group *group);
/** Fills *call for a reduction, which a group computes in the eager kernel's order (folds.c).
 *  Returns false if there is no fold for the op and dtype, if argument or result is not contiguous
 *  or is cast, if the reduced dims are not adjacent or have fewer than two elements, or if the
 *  group has a reduction of other sizes or another dtype. */
bool ts_cuda_group_fold(ts_cuda_group *group, ts_cuda_group_call *call, ts_frame *frame);
/** Marks the pointwise calls of a group with folds that compute on results, and the tensors that
 *  calls load and store. Returns false if
 *
 *  - a tensor of a call on the space is neither contiguous with the space's number of elements nor
 *    broadcast to the space;
 *  - an operand of a call on results is not contiguous, or has neither their number of elements nor
 *    one element;
 *  - a result of such a call is not contiguous or has another number of elements; or
 *  - a call on results draws random words. */
bool ts_cuda_group_sort_folds(ts_cuda_group *group);
/** Chooses blocks, accesses and the division of a group with folds, after fuse.c has merged its
 *  dims. */
void ts_cuda_group_lay_folds(ts_cuda_group *group);
/** Bytes of the states of one fold, ts_cuda_group_call.parts; 0 if group->direct. */
int64_t ts_cuda_group_parts(const ts_cuda_group *group);

/** `count` matrices of partial sums (lines, columns), f32, at most 8. The lines of parts[i] are
 *  added up into sums[i], which has `columns` elements of dtypes[i] (f32, bf16 or f16). */
typedef struct ts_cuda_sums {
    const float *parts[8];
    void *sums[8];
    uint8_t dtypes[8];
    int count;
    int64_t lines, columns;
} ts_cuda_sums;
/** Queues the kernel that adds up the lines, in an order that depends on `lines` only (sums.cu). */
cudaError_t ts_cuda_add_lines(const ts_cuda_sums *sums, cudaStream_t stream);

/** Source of the group's kernel, without the functors' definitions. The caller frees it. NULL if
 *  memory is exhausted or a functor's name cannot be parsed. The kernel is named `group`; a group
 *  with folds that is not `direct` has a second kernel, `merge`, with the same parameters. These
 *  are:
 *
 *  1. the space (group_space); with folds, also the division (group_folds);
 *  2. for each value in memory a group_tensor, or a float pointer for partial sums;
 *  3. call by call, a double for each number, then the functor if it has data members; for a fold,
 *     its factor (double) and the address of its states.
 *
 *  In a group with members, one group_members replaces the space, the tensors and the numbers. */
char *ts_cuda_group_source(const ts_cuda_group *group);

/** ts_cuda_launch() for a CUfunction that was loaded at run time, on a one-dimensional grid without
 *  dynamic shared memory or clusters (runtime/launch.c). */
cudaError_t ts_cuda_launch_function(void *function, unsigned blocks, unsigned threads,
                                    void **arguments, cudaStream_t stream);

/* ------------------------------------------------------------------------------- NVRTC ---- */

/** True if the NVRTC library can be loaded. Sets *why to the reason if it cannot, else to "". Loads
 *  the library at the first call. Exported for tests. */
TS_API bool ts_cuda_nvrtc(const char **why);
/** Result of a compilation. */
typedef struct ts_cuda_compiled {
    void *image; /* cubin; the caller frees it */
    size_t bytes;
    bool from_disk; /* read from the disk cache, not compiled */
} ts_cuda_compiled;
/** Compiles a group's source, with the functors' definitions before it, for a compute capability
 *  (10 major + minor), or reads the result from the disk cache (runtime/disk.h). *compiled must be
 *  zeroed. Errors: TS_ERR_UNSUPPORTED if NVRTC cannot be loaded, or with the first line of NVRTC's
 *  log if the compilation fails; TS_ERR_MEMORY. */
ts_status ts_cuda_compile(const char *source, int capability, ts_cuda_compiled *compiled);

/* ------------------------------------------------ functions of the backend's table ---- */

/* The slots group_* of ts_backend, documented in tessera/backend.h. */
bool ts_cuda_group_takes(void *state, ts_frame *frame, ts_kernel kernel);
ts_status ts_cuda_group_run(void *state, int device, const ts_group_call *calls, int count,
                            ts_stream *stream, ts_group_report *report);

ts_status ts_cuda_group_run_members(void *state, int device, const ts_group_call *calls, int count,
                                    int members, ts_stream *stream, ts_group_report *report);

/** Compile a group, or a group with members, for a compute capability (10 major + minor), without a
 *  device. *compiled must be zeroed; the caller frees compiled->image. Errors: TS_ERR_UNSUPPORTED
 *  if the calls cannot run as one kernel; those of ts_cuda_compile(). Exported for tests.
 *  calls, count, members: as in the slots group_run and group_run_members of ts_backend. */
TS_API ts_status ts_cuda_group_compile(const ts_group_call *calls, int count, int capability,
                                       ts_cuda_compiled *compiled);
TS_API ts_status ts_cuda_members_compile(const ts_group_call *calls, int count, int members,
                                         int capability, ts_cuda_compiled *compiled);

TS_END_DECLS
#endif
