/**
 * @file fuse.h
 * Fused groups: the pointwise calls of a group as one kernel, which NVRTC compiles.
 *
 * A group is described by its calls' own kernels: each runs without a device and, where it would
 * launch its loop, names the functor that the loop applies (describe.cuh). The generated kernel
 * (fuse_source.c) applies the same functors to the same elements, so it has the bits of the calls.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_FUSE_H
#define TS_CUDA_FUSE_H

#include "backends/cuda/describe.h"
#include "backends/cuda/divisor.h"

TS_BEGIN_DECLS

/** Whether a kernel belongs to the families whose loops can be described. Other kernels, such as a
 *  plugin's, would launch (backend.c). */
bool ts_cuda_describes(ts_kernel kernel);

/* ------------------------------------------------------------------------------- group ---- */

/** group_space of group.cuh. */
typedef struct ts_cuda_group_space {
    uint64_t accesses;
    uint32_t tail, none;
    ts_cuda_divisor by[TS_MAX_DIMS];
    uint64_t sizes[TS_MAX_DIMS];
} ts_cuda_group_space;

/** Layout of a tensor along the innermost dim. */
enum { TS_CUDA_INSIDE /* not in memory */, TS_CUDA_ARRAY, TS_CUDA_ONE, TS_CUDA_STRIDED };

/** A tensor of a group. */
typedef struct ts_cuda_group_value {
    const ts_tensor *tensor;
    char *data; /* NULL: of the group alone */
    int64_t strides[TS_MAX_DIMS]; /* in bytes, innermost dim first; [0] per access */
    uint8_t dtype, item, way;
    bool read, written; /* in memory */
} ts_cuda_group_value;

typedef struct ts_cuda_group_call {
    ts_cuda_formula formula;
    int16_t value[TS_KERNEL_OPERANDS]; /* indices of the result, then of the operands; -1: a
                                          number */
    uint8_t compute;                   /* dtype that operands are cast to */
    bool cast[TS_KERNEL_OPERANDS];
} ts_cuda_group_call;

/** A group, laid out for its kernel. */
typedef struct ts_cuda_group {
    ts_cuda_group_call *calls;
    ts_cuda_group_value *values;
    int ncalls, nvalues, ndim;
    int width;  /* elements of an access */
    int unroll; /* accesses of a thread */
    bool large; /* 64-bit indices */
    bool tail;  /* the last access may be of fewer elements */
    bool draws;
    int64_t numel;
    int64_t sizes[TS_MAX_DIMS]; /* innermost dim first, in elements */
} ts_cuda_group;

enum { TS_CUDA_GROUP_THREADS = 256 };

/** Determines the operands of a call to cast: those whose dtype differs from the functor's type, if
 *  that is the compute dtype. False if the functor accepts neither. */
bool ts_cuda_group_casts(ts_cuda_group_call *call, const ts_cuda_group_value *values);
/** The kernel's source, without the formulas, to be freed; NULL without memory or where a name
 *  cannot be read. Its parameters: the space, a group_tensor for each value in memory, a double for
 *  each number, and the members of each functor that has some. */
char *ts_cuda_group_source(const ts_cuda_group *group);

/** Launches a kernel that was loaded at run time, as ts_cuda_launch() does (launch.c). */
cudaError_t ts_cuda_launch_function(void *function, unsigned blocks, unsigned threads,
                                    void **arguments, cudaStream_t stream);

/* ------------------------------------------------------------------------------- NVRTC ---- */

/** Whether NVRTC can be opened; if not, *why says so. Exported for tests. */
TS_API bool ts_cuda_nvrtc(const char **why);
/** Result of a compilation. */
typedef struct ts_cuda_compiled {
    void *image; /* cubin, to be freed */
    size_t bytes;
    bool from_disk;
} ts_cuda_compiled;
/** Machine code of a group's source for a capability (10 major + minor), from disk if it is there.
 *  TS_ERR_UNSUPPORTED without NVRTC or with its message. */
ts_status ts_cuda_compile(const char *source, int capability, ts_cuda_compiled *compiled);

/* ------------------------------------------------------------- slots of the backend ---- */

bool ts_cuda_group_takes(void *state, ts_frame *frame, ts_kernel kernel);
ts_status ts_cuda_group_run(void *state, int device, const ts_group_call *calls, int count,
                            ts_stream *stream, ts_group_report *report);

/** Compiles a group for a capability without a device: for tests, which find it in the library. */
TS_API ts_status ts_cuda_group_compile(const ts_group_call *calls, int count, int capability,
                                       ts_cuda_compiled *compiled);

TS_END_DECLS
#endif
