/**
 * @file fuse.h
 * Fused groups: runs the calls of a group as one kernel, which NVRTC compiles. A call
 * is pointwise or by rows. A call by rows, such as softmax or sum, computes each row (the last
 * dims) of its first argument separately. Sums over all rows need a second kernel, which adds
 * partial sums. A group with folds has pointwise calls, reductions of adjacent dims, and pointwise
 * calls on the results of these. A group with members applies the same pointwise calls to several
 * sets of tensors, the members, in one launch (members.c).
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

/** True if a kernel belongs to a family whose loops can be described (runtime/backend.c). Other
 *  kernels, such as a plugin's, would launch instead of describing themselves. */
bool ts_cuda_describes(ts_kernel kernel);
/** True if a kernel is one of the backend's. */
bool ts_cuda_owns(ts_kernel kernel);
/** True if a kernel belongs to a family with calls by rows (norms, softmax, reductions). */
bool ts_cuda_is_by_rows(ts_kernel kernel);

/* ------------------------------------------------------------------------------- group ---- */

/** Host type of group_space (group.cuh, which documents the fields); the layouts must be equal. */
typedef struct ts_cuda_group_space {
    uint64_t accesses;
    uint32_t tail, none;
    ts_cuda_divisor by[TS_MAX_DIMS];
    uint64_t sizes[TS_MAX_DIMS];
} ts_cuda_group_space;

/** Host type of group_folds (group_folds.cuh, which documents the fields); equal layouts. */
typedef struct ts_cuda_group_folds {
    uint64_t results, inner, count, share, all;
    uint32_t blocks, shares, group, merges;
    bool beside; /* ts_cuda_divide_folds() only, as are the fields below */
    bool vector;
} ts_cuda_group_folds;
/** Divides a reduction of (results / inner, count, inner) elements over `count`, which are
 *  contiguous and have `item` bytes, as the eager kernel does (reduce.cuh). Sets the other
 *  fields. */
void ts_cuda_divide_folds(ts_cuda_group_folds *folds, int piece, int item);

/** Layout of a tensor along the innermost dim: only in registers (INSIDE), contiguous (ARRAY), one
 *  element for all indices (ONE), or STRIDED. */
enum { TS_CUDA_INSIDE, TS_CUDA_ARRAY, TS_CUDA_ONE, TS_CUDA_STRIDED };

/** A tensor of a group. `data` and `strides` are adjacent, because the kernel receives both as a
 *  group_tensor (group.cuh). */
typedef struct ts_cuda_group_value {
    const ts_tensor *tensor;
    char *data; /* NULL: used only inside the group, in registers */
    int64_t strides[TS_MAX_DIMS]; /* in bytes, innermost dim first. Pointwise: [0] is the stride
                                     between accesses. By rows: the dims of the row are omitted */
    uint8_t dtype, item, way; /* item: bytes of an element; way: TS_CUDA_INSIDE, ... */
    bool read, written; /* the kernel loads it from, or stores it to, memory */
    bool each;          /* by rows: all columns of a row use the same element */
    bool left;          /* by rows: a result without the dims of the row (keepdim false); its dims
                           are the leading dims of the space */
    bool sums;          /* by rows: the tensor receives sums over all rows */
    void *parts;        /* if `sums`: partial sums (lines, columns) that the kernel writes, f32 */
    bool late, stored;  /* with folds. late: a call on results of folds loads it; stored: such a
                           call or a fold stores it */
} ts_cuda_group_value;

/** A call of a group. */
typedef struct ts_cuda_group_call {
    ts_cuda_formula formula; /* by rows: only operands, host, number and names (= rows) are set */
    int16_t value[TS_KERNEL_OPERANDS]; /* indices in group->values of the result, then of the
                                          operands; -1: a number or, by rows, the result or an
                                          absent argument */
    uint8_t compute;                   /* dtype that operands are cast to */
    const char *rows;                  /* by rows: function in group_rows.cuh; NULL: pointwise */
    int16_t result[TS_MAX_RETS];       /* by rows: indices of the results; -1: not requested */
    int results;                       /* by rows: length of `result` */
    const char *fold;                  /* a reduction of folds: its fold (fold.cuh), an expression
                                          with the names T and W of the element types; else NULL */
    double factor;                     /* of that fold */
    bool late;                         /* a pointwise call on results of folds */
    void *parts;                       /* states of the fold, (shares, results) */
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
    int64_t numel;
    int64_t sizes[TS_MAX_DIMS]; /* innermost dim first, in elements; by rows: without the row */
    /* By rows; 0 in a pointwise group, except `threads`, `resident` and `blocks`. */
    int rows;               /* number of last dims of the space that form a row */
    const ts_tensor *space; /* a tensor of the space's sizes */
    int64_t columns;        /* elements of a row */
    int lanes, accesses;    /* threads per row; accesses per thread */
    int together;           /* rows per block */
    bool full;              /* all accesses are inside their row, all rows inside the space */
    int threads, resident;  /* threads per block; minimum blocks per multiprocessor
                               (__launch_bounds__) */
    int64_t blocks, lines;  /* blocks of the grid; lines of partial sums, 0: no sums */
    int members; /* maximum members per launch, a power of two; 0: a group without members */
    /* With folds (folds.c): `space` and `rows`, which is 0, apart, all fields as in a
       pointwise group. */
    bool folds;
    bool vector; /* a unit is `piece` elements; else one */
    bool direct; /* the kernel itself computes the results; else ts_cuda_group_folds.parts and a
                    second kernel, `merge` */
    int piece;   /* elements of a 16-byte piece of the reduced tensor, at most 8 */
    uint8_t fold_dtype;
    ts_cuda_group_folds division;
} ts_cuda_group;

enum { TS_CUDA_GROUP_THREADS = 256 /* threads per block of a pointwise group */ };

/** Sets call->cast: an operand is cast if its dtype differs from the functor's type and that type
 *  is call->compute. Returns false if the functor accepts neither the operand's dtype nor a
 *  cast. */
bool ts_cuda_group_casts(ts_cuda_group_call *call, const ts_cuda_group_value *values);
/** Describes the calls of a group in group->calls and its tensors in group->values. The caller
 *  allocates both arrays (ts_cuda_group_room_for()), zeroed, and zeroes the other fields of *group.
 *  Returns false if a call is neither a describable loop nor a known call by rows, if a functor
 *  does not accept an operand's dtype, or if two calls by rows have rows of different numbers of
 *  dims. */
bool ts_cuda_group_gather(ts_cuda_group *group, const ts_group_call *calls, int count);
/** Sizes in bytes for a group of `count` calls: its calls, its values, the words of its key, and
 *  the array of its kernel's argument addresses. */
typedef struct ts_cuda_group_room {
    size_t calls, values, words, arguments;
} ts_cuda_group_room;
ts_cuda_group_room ts_cuda_group_room_for(int count);
/** Writes the key of a group's kernel: the device, and all that the source depends on. `words` has
 *  ts_cuda_group_room.words bytes. Returns the number of words. */
int ts_cuda_group_words(const ts_cuda_group *group, uint64_t *words);
/** Finds or compiles the kernel of a group on the current device. The backend owns the CUfunctions:
 *  functions[0], and functions[1], which merges the states of folds, or NULL. A compilation sets
 *  compile_ms and from_disk of *report. A kernel that NVRTC or the driver has rejected before is
 *  not compiled again: TS_ERR_UNSUPPORTED. */
ts_status ts_cuda_group_kernel(const ts_cuda_group *group, const uint64_t *words, int nwords,
                               void *functions[2], ts_group_report *report);
/** Index of a tensor in group->values; adds the tensor if it is new. */
int ts_cuda_group_value_of(ts_cuda_group *group, const ts_tensor *t);
/** Fills *call for a call by rows (rows.c). dims, summed: from ts_kernel_row_dims(). Returns
 *  false if there is no function for the op and dtype, or if the group's rows have another number
 *  of dims. */
bool ts_cuda_group_by_rows(ts_cuda_group *group, ts_cuda_group_call *call, ts_frame *frame,
                           int dims, bool summed);
/** Chooses threads, accesses and blocks of a group by rows, after all calls are described. Returns
 *  false if a row does not fit the registers of a block, if a row that must be accessed element by
 *  element is too long, or if there are no rows or 2^31 or more. */
bool ts_cuda_group_lay_rows(ts_cuda_group *group);
/** Fills *call for a reduction, which a group computes in the eager kernel's order (folds.c).
 *  Returns false if there is no fold for the op and dtype, if the reduced dims are not adjacent, or
 *  if the group has another reduction of other dims or another dtype. */
bool ts_cuda_group_fold(ts_cuda_group *group, ts_cuda_group_call *call, ts_frame *frame);
/** Marks the pointwise calls of a group with folds that compute on results, and what all calls load
 *  and store. Returns false if a tensor has neither the space's nor the results' sizes. */
bool ts_cuda_group_sort_folds(ts_cuda_group *group);
/** Chooses blocks, accesses and the division of a group with folds, after its dims are merged. */
void ts_cuda_group_lay_folds(ts_cuda_group *group);
/** Bytes of the states of one fold. */
int64_t ts_cuda_group_parts(const ts_cuda_group *group);

/** Up to 8 matrices of partial sums (lines, columns), f32. The lines of parts[i] are added up into
 *  sums[i], which has `columns` elements of dtypes[i] (f32, bf16 or f16). */
typedef struct ts_cuda_sums {
    const float *parts[8];
    void *sums[8];
    uint8_t dtypes[8];
    int count;
    int64_t lines, columns;
} ts_cuda_sums;
/** Queues the kernel that adds up the lines (sums.cu). */
cudaError_t ts_cuda_add_lines(const ts_cuda_sums *sums, cudaStream_t stream);

/** Source of the group's kernel, without the functors' definitions. The caller frees it. NULL if
 *  memory is exhausted or a functor's name cannot be parsed. Parameters of the kernel, `group`: the
 *  space; for each value in memory a group_tensor, or a float pointer for partial sums; then, call
 *  by call, a double for each number, and the functor if it has data members. In a group with
 *  members, one group_members replaces the space, the tensors and the numbers. */
char *ts_cuda_group_source(const ts_cuda_group *group);

/** ts_cuda_launch() for a CUfunction that was loaded at run time, on a one-dimensional grid without
 *  dynamic shared memory (runtime/launch.c). */
cudaError_t ts_cuda_launch_function(void *function, unsigned blocks, unsigned threads,
                                    void **arguments, cudaStream_t stream);

/* ------------------------------------------------------------------------------- NVRTC ---- */

/** True if the NVRTC library can be loaded; if not, sets *why to the reason. Exported for tests. */
TS_API bool ts_cuda_nvrtc(const char **why);
/** Result of a compilation. */
typedef struct ts_cuda_compiled {
    void *image; /* cubin; the caller frees it */
    size_t bytes;
    bool from_disk; /* read from the disk cache, not compiled */
} ts_cuda_compiled;
/** Compiles a group's source for a compute capability (10 major + minor), or reads the result from
 *  the disk cache. *compiled must be zeroed. TS_ERR_UNSUPPORTED if NVRTC cannot be loaded, or with
 *  NVRTC's message if the compilation fails; TS_ERR_MEMORY. */
ts_status ts_cuda_compile(const char *source, int capability, ts_cuda_compiled *compiled);

/* ------------------------------------------------ functions of the backend's table ---- */

bool ts_cuda_group_takes(void *state, ts_frame *frame, ts_kernel kernel);
ts_status ts_cuda_group_run(void *state, int device, const ts_group_call *calls, int count,
                            ts_stream *stream, ts_group_report *report);

ts_status ts_cuda_group_run_members(void *state, int device, const ts_group_call *calls, int count,
                                    int members, ts_stream *stream, ts_group_report *report);

/** Compile a group, or a group with members, for a compute capability (10 major + minor), without a
 *  device. *compiled must be zeroed; the caller frees compiled->image. Errors: TS_ERR_UNSUPPORTED
 *  if one kernel cannot run the calls; those of ts_cuda_compile(). Exported for tests. */
TS_API ts_status ts_cuda_group_compile(const ts_group_call *calls, int count, int capability,
                                       ts_cuda_compiled *compiled);
TS_API ts_status ts_cuda_members_compile(const ts_group_call *calls, int count, int members,
                                         int capability, ts_cuda_compiled *compiled);

TS_END_DECLS
#endif
