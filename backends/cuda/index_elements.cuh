/** @file index_elements.cuh  Kernels of gather, index_select, scatter, scatter_add and index_add
 * that process each element of the index by itself. index.cu launches them where the kernels of
 * index_lines.cuh do not fit or are slower. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_INDEX_ELEMENTS_CUH
#define TS_CUDA_INDEX_ELEMENTS_CUH

#include "backends/cuda/index.cuh"
#include "backends/cuda/units.cuh"

namespace ts {

/** The positions that element i of an index selects: one in self, the indexed tensor, and one in
 * the other tensor, which is the source of a scatter.
 * - An index with as many dims as self may have any strides.
 * - An index with fewer dims than self is contiguous and has at most one dim. It applies to every
 *   line along the indexed dim of the other tensor or, without another tensor, of the result; i
 *   counts the elements of that tensor. */
template <class I> struct led {
    indices index;
    bool alone;       /* the index has fewer dims than self */
    walk<I, 3> space; /* offsets in self (with index 0), the other tensor and the index */
    int64_t along, bound; /* stride in self and size of the indexed dim */

    /** The index is argument 2 of the call. other: NULL if there is none. */
    led(ts_frame *f, const ts_tensor *self, const ts_tensor *other, ts_cuda_device *device)
        : index(f, f->args[2].t, device), alone(ts_ndim(f->args[2].t) < ts_ndim(self)),
          space(space_of(f, self, other, alone)), along(1), bound(1)
    {
        int dim = (int)ts_kernel_dim(f);
        if (ts_ndim(self)) {
            along = ts_strides(self)[dim];
            bound = ts_size(self, dim);
        }
    }
    /** Sets offset[0] to the position in self, offset[1] to that in the other tensor. False, with a
     * report, if the index is out of range. */
    __device__ __forceinline__ bool at(I i, int64_t (&offset)[2]) const
    {
        int64_t all[3];
        space.at(i, all);
        int64_t k = index.checked(all[2], bound, alone ? all[2] : (int64_t)i);
        offset[0] = all[0] + k * along;
        offset[1] = all[1];
        return k >= 0;
    }

  private:
    static walk<I, 3> space_of(const ts_frame *f, const ts_tensor *self, const ts_tensor *other,
                               bool alone)
    {
        const ts_tensor *index = f->args[2].t, *shape = !alone  ? index
                                                        : other ? other
                                                                : f->rets[0].t;
        int64_t beside[TS_MAX_DIMS] = {}, line[TS_MAX_DIMS] = {}, none[TS_MAX_DIMS] = {};
        for (int d = 0; d < ts_ndim(self); d++) {
            line[d] = d == ts_kernel_dim(f);
            beside[d] = line[d] ? 0 : ts_strides(self)[d];
        }
        const int64_t *const strides[3] = {beside, other ? ts_strides(other) : none,
                                           alone ? line : ts_strides(index)};
        return walk<I, 3>(ts_sizes(shape), ts_ndim(shape), strides);
    }
};

/** Functor of fill_units() (units.cuh) for gathers: returns element i of the result as a unit U, or
 * 0 if its index is out of range. */
template <class U, class I> struct gathered {
    const U *from;
    led<I> to;
    __device__ __forceinline__ U operator()(I i) const
    {
        int64_t offset[2];
        return to.at(i, offset) ? from[offset[0]] : U{};
    }
};

/* If several elements of an index select the same position, scatter stores the last one. In short
 * lines an element reads the rest of its line (index_lines). For long lines, winners_kernel() finds
 * the last element that selects each position, by atomicMax, whose order does not matter; then
 * scatter_kernel() stores these elements. */

/** Lines of a contiguous index along the indexed dim. */
template <class I> struct index_lines {
    split<I> behind, length; /* distance of adjacent elements of a line; elements of a line */

    /** True if no later element of its line selects the same position as element i. */
    __device__ __forceinline__ bool is_last(const indices &index, I i) const
    {
        I line = behind.of(i), along = line - length.of(line) * length.d;
        int64_t mine = index.at(i);
        for (I at = i + behind.d, left = length.d - 1 - along; left; left--, at += behind.d)
            if (index.at(at) == mine)
                return false;
        return true;
    }
};

/** For each position p of self that an element of the index selects, sets winner[p] to 1 + the
 * index i of the last such element; winner[p] must be 0 before. clear: sets these winner[p] to 0
 * instead. n: elements of the index. */
template <class I>
static __global__ void winners_kernel(const __grid_constant__ led<I> to, I n, I *winner, bool clear)
{
    for (I i = (I)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (I)gridDim.x * blockDim.x) {
        int64_t offset[2];
        if (!to.at(i, offset))
            continue;
        if (clear)
            winner[offset[0]] = 0;
        else if constexpr (sizeof(I) == 8)
            atomicMax((unsigned long long *)&winner[offset[0]], (unsigned long long)i + 1);
        else
            atomicMax(&winner[offset[0]], i + 1);
    }
}

/** Stores elements of src, or `number` if src is NULL, at the positions of out that the index
 * selects. winner: from winners_kernel(); NULL if lines are short enough for `lines`, or without
 * src. n: elements of the index. */
template <class U, class I>
static __global__ void scatter_kernel(const __grid_constant__ led<I> to, I n, const I *winner,
                                      index_lines<I> lines, const U *src, U number, U *out)
{
    for (I i = (I)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (I)gridDim.x * blockDim.x) {
        int64_t offset[2];
        if (to.at(i, offset) &&
            (winner ? winner[offset[0]] == i + 1 : !src || lines.is_last(to.index, i)))
            out[offset[0]] = src ? src[offset[1]] : number;
    }
}

/** True if T has atomic additions, and their order does not change a sum. */
template <class T> constexpr bool free_order = std::is_integral_v<T> && sizeof(T) >= 4;

/** Adds elements of src to out in any order. n: elements of the index. */
template <class T, class I>
static __global__ void add_integers_kernel(const __grid_constant__ led<I> to, I n, const T *src,
                                           T *out)
{
    using U = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;
    for (I i = (I)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (I)gridDim.x * blockDim.x) {
        int64_t offset[2];
        if (to.at(i, offset))
            atomicAdd((U *)&out[offset[0]], (U)src[offset[1]]);
    }
}

/** Functor of sort_by() (sort.cuh) for scatter_add: the key of element i of the index is its
 * position in self; `position` is set to the position in src of the element that is added there. */
template <class I> struct element_key {
    led<I> to;
    I bound; /* the key of elements whose index is out of range */
    __device__ __forceinline__ I operator()(I i, I &position) const
    {
        int64_t offset[2];
        bool some = to.at(i, offset);
        position = (I)offset[1];
        return some ? (I)offset[0] : bound;
    }
};

} // namespace ts

#endif
