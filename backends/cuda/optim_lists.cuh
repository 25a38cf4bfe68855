/**
 * @file optim_lists.cuh
 * Building blocks of kernels over lists of tensors (optim.cu): one launch for all tensors with the
 * same dtypes. Pointers and sizes are kernel arguments; a block finds its tensor by binary search.
 * Lists of more than MEMBERS tensors need several launches.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_OPTIM_LISTS_CUH
#define TS_CUDA_OPTIM_LISTS_CUH

#include <stdlib.h>

#include "backends/cuda/image.cuh"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace ts {

enum { MEMBERS = 256, /* maximum members of a launch */
       THREADS = 256, /* of a block */
       SHARE = 4096   /* elements per block */ };

/** Members of LISTS parallel lists: member m has a tensor in each list. */
template <int LISTS> struct table {
    int count;
    int first[MEMBERS + 1]; /* first block of each member; at `count` the number of blocks */
    int64_t numel[MEMBERS];
    void *data[LISTS][MEMBERS];
    double number[2][MEMBERS]; /* numbers of each member, for example its step number */

    int least() const { return 0; } /* blocks of a member without elements */
};

/** Members of an optimizer's step. If `found` is not NULL, the device skips the step if *found is
 * not 0 (the `found` argument of the update ops). */
template <int LISTS> struct step_table : table<LISTS> {
    const float *found;
    float *skipped[MEMBERS]; /* number of skipped steps of each member, in device memory */

    explicit step_table(const float *at) : found(at) {}
    int least() const { return found != nullptr; } /* the block counts skipped steps */
};

/** Elements [from, to) of a member that this block processes. */
struct share {
    int member;
    int64_t from, to;
};
/** This block's share. */
template <int LISTS> static __device__ __forceinline__ share share_of(const table<LISTS> &t)
{
    int low = 0, high = t.count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (t.first[middle] <= (int)blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    int64_t from = (int64_t)(blockIdx.x - t.first[low]) * SHARE, to = from + SHARE;
    return {low, from, to < t.numel[low] ? to : t.numel[low]};
}

/** True if the step is skipped. The first block of a member then increments the count of skipped
 * steps, which no block reads in a skipped step. */
template <int LISTS>
static __device__ __forceinline__ bool is_skipped(const step_table<LISTS> &t, const share &s)
{
    if (!t.found || *t.found == 0)
        return false;
    if (s.from == 0 && threadIdx.x == 0)
        *t.skipped[s.member] += 1;
    return true;
}

/** Calls fn.operator()<N>(i) for elements i to i + N - 1 of a share: N is V for whole vectors if
 * the pointers are aligned, else 1. */
template <int V, class F>
static __device__ __forceinline__ void over_share(const share &s, bool aligned, F &&fn)
{
    int64_t wide = aligned ? s.from + (s.to - s.from) / V * V : s.from;
#pragma unroll 4
    for (int64_t i = s.from + (int64_t)threadIdx.x * V; i < wide; i += THREADS * V)
        fn.template operator()<V>(i);
    for (int64_t i = wide + threadIdx.x; i < s.to; i += THREADS)
        fn.template operator()<1>(i);
}
/** load_at(), store_at(): access V elements of T, from element i of `data` on, at once. */
template <int V, class T>
static __device__ __forceinline__ vec<T, V> load_at(const void *data, int64_t i)
{
    return *reinterpret_cast<const vec<T, V> *>((const T *)data + i);
}
template <int V, class T>
static __device__ __forceinline__ void store_at(void *data, int64_t i, vec<T, V> x)
{
    store_whole(reinterpret_cast<vec<T, V> *>((T *)data + i), x);
}
/** True if the tensors of a member are 16-byte aligned in all lists. */
template <int LISTS>
static __device__ __forceinline__ bool aligned_all(const table<LISTS> &t, int member)
{
    uintptr_t bits = 0;
#pragma unroll
    for (int k = 0; k < LISTS; k++)
        bits |= (uintptr_t)t.data[k][member];
    return (bits & 15) == 0;
}

static ts_dtype dtype_of(const ts_frame *f, int arg, int64_t member)
{
    return ts_dtype_of(f->args[arg].list[member]);
}

/** True if two members have the same dtypes, list by list. */
template <int LISTS>
static bool alike(const ts_frame *f, const int (&args)[LISTS], int64_t i, int64_t j)
{
    for (int k = 0; k < LISTS; k++)
        if (dtype_of(f, args[k], i) != dtype_of(f, args[k], j))
            return false;
    return true;
}

/** Calls run(member) for the first member of each combination of dtypes. */
template <int LISTS, class F>
static ts_status by_dtypes(ts_frame *f, const int (&args)[LISTS], F &&run)
{
    int64_t n = f->args[args[0]].count;
    for (int64_t i = 0; i < n; i++) {
        int64_t j = 0;
        while (j < i && !alike(f, args, i, j))
            j++;
        if (j == i)
            TS_CUDA_TRY(run(i));
    }
    return TS_OK;
}

/** The dtype that a kernel requires of a member of list `arg`. */
typedef ts_dtype (*taken_fn)(const ts_frame *f, int arg, int64_t member);

/** t itself or a copy that is contiguous and has the dtype; NULL with an error. */
static ts_tensor *as_taken(ts_tensor *t, ts_dtype dtype)
{
    return ts_contiguous(ts_dtype_of(t) != dtype ? ts_to(t, dtype) : t);
}

/** True if member i has the same dense order of elements in all lists, so that kernels, which take
 * members as flat arrays, pair the right elements. */
static bool flat_alike(const ts_frame *f, uint32_t i)
{
    const ts_tensor *first = nullptr;
    for (int a = 0; a < f->nargs; a++) {
        if (f->args[a].tag != TS_TAG_TENSORS || i >= f->args[a].count)
            continue;
        const ts_tensor *t = f->args[a].list[i];
        if (!first && !ts_is_contiguous(t) && !dense_last(t))
            return false;
        first = first ? first : t;
        for (int d = 0; d < ts_ndim(t); d++)
            if (ts_sizes(t)[d] > 1 && ts_strides(t)[d] != ts_strides(first)[d])
                return false;
    }
    return true;
}

/** Runs a kernel. If a member is not flat_alike() or has another dtype than `taken` returns, the
 * kernel gets as_taken() of all tensors, and the written copies are then copied to their originals.
 * Bit a of `written`: the kernel writes list a. Errors: TS_ERR_MEMORY, and those of the copies and
 * of the kernel. */
static ts_status run_on_dense_copies(ts_frame *f, uint32_t written, ts_kernel kernel,
                                     taken_fn taken)
{
    int64_t members = 0;
    bool dense = true;
    for (int a = 0; a < f->nargs; a++)
        for (uint32_t i = 0; f->args[a].tag == TS_TAG_TENSORS && i < f->args[a].count;
             i++, members++)
            dense = dense && taken(f, a, i) == dtype_of(f, a, i) && flat_alike(f, i);
    if (dense)
        return kernel(f);
    TS_SCOPE;
    TS_NO_GRAD;
    ts_tensor **list = (ts_tensor **)malloc(members * sizeof *list);
    if (!list)
        return ts_error_set(TS_ERR_MEMORY, "%s: out of memory: a list of %lld tensors",
                            ts_op_name(f->op), (long long)members);
    ts_value args[TS_MAX_ARGS];
    ts_frame copy = *f;
    ts_status status = TS_OK;
    int64_t at = 0;
    copy.args = args;
    for (int a = 0; a < f->nargs; a++) {
        args[a] = f->args[a];
        if (args[a].tag != TS_TAG_TENSORS)
            continue;
        args[a].list = list + at;
        for (uint32_t i = 0; i < args[a].count && status == TS_OK; i++) {
            list[at] = as_taken(f->args[a].list[i], taken(f, a, i));
            status = ts_status_of_pointer(list[at++]);
        }
    }
    status = status == TS_OK ? kernel(&copy) : status;
    for (int a = 0; a < f->nargs; a++)
        for (uint32_t i = 0; (written >> a & 1) && args[a].tag == TS_TAG_TENSORS &&
                             i < args[a].count && status == TS_OK;
             i++)
            if (args[a].list[i] != f->args[a].list[i])
                status = ts_status_of_pointer(ts_copy_(f->args[a].list[i], args[a].list[i]));
    free(list);
    return status;
}

/** Fills t with the members that have the dtypes of member `like`, at most MEMBERS at a time, and
 *  calls launch(t, blocks, stream) for each filled table. Omits members without elements if
 *  t.least() is 0. args: the arguments that are the LISTS lists. numbers(t, m, i) fills the
 *  remaining fields of entry m for member i of the lists. */
template <class TABLE, int LISTS, class N, class F>
static ts_status over_members(ts_frame *f, TABLE &t, const int (&args)[LISTS], int64_t like,
                              N &&numbers, F &&launch)
{
    int64_t n = f->args[args[0]].count;
    return on_device(f, [&](const call &c) {
        cudaError_t e = cudaSuccess;
        t.count = 0;
        t.first[0] = 0;
        for (int64_t i = 0; i < n && e == cudaSuccess; i++) {
            int64_t numel = ts_numel(f->args[args[0]].list[i]);
            if ((numel || t.least()) && alike(f, args, i, like)) {
                int m = t.count++;
                t.numel[m] = numel;
                t.first[m + 1] =
                    t.first[m] + (numel ? (int)((numel + SHARE - 1) / SHARE) : t.least());
                for (int k = 0; k < LISTS; k++)
                    t.data[k][m] = ts_kernel_data(f->args[args[k]].list[i]);
                numbers(t, m, i);
            }
            if (t.count == MEMBERS || (t.count && i + 1 == n)) {
                launch(t, (unsigned)t.first[t.count], c.stream);
                e = cudaPeekAtLastError();
                t.count = 0;
            }
        }
        return e;
    });
}

} // namespace ts

#endif
