/**
 * @file index_lines.cuh  Scatters (scatter, scatter_add, index_add) line by line, for index.cu.
 *
 * A line is the elements along the indexed dim; only elements of the same line can have the same
 * target, which is an element of the result. index.cu selects a kernel by the fields of struct
 * line_shape:
 *
 *     lines_set_kernel     scatter: a block builds a line of the result in shared memory
 *     lines_add_kernel     sums: a block builds a line of the result in the same way
 *     lines_own_kernel     sums, if lines of the result have few elements: each thread of a block
 *                          has its own sums
 *     lines_brief_kernel   sums, if lines of the index are short: a thread per line
 *     lines_join_kernel    after lines_add_kernel and lines_own_kernel, if lines of the index are
 *                          divided into shares, a block for each: adds the shares' sums, in order
 *
 * For each line, the first three access an element of self, index, source or result at most once.
 * Adjacent lines share 32-byte sectors; their blocks run at the same time, so a sector is usually
 * read from memory once and then from the L2 cache.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_INDEX_LINES_CUH
#define TS_CUDA_INDEX_LINES_CUH

#include "backends/cuda/index.cuh"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/units.cuh"

namespace ts {

enum {
    LINE_SHARED = 200 * 1024,    /* maximum bytes of shared memory per block */
    LINE_THREADS = 512,          /* maximum threads per block */
    LINE_ROWS = 4,               /* elements that a thread loads at a time */
    LINE_MANY = 64,              /* with at least this many blocks, lines may have any length */
    LINE_LENGTH = 32 * 1024,     /* longest line or share with fewer than LINE_MANY blocks */
    LINE_FEW = 512,              /* below this many targets, lanes of a warp often share a target */
    LINE_LEAST = 8,              /* most indices of a line that one thread adds, for any number of
                                    lines */
    LINE_OWN = 64 * 1024,        /* maximum bytes of shared memory of lines_own_kernel */
    LINE_TURNS = 64,             /* maximum elements that a thread of lines_own_kernel adds, if
                                    lines_add_kernel could divide the line into more shares */
    LINE_SHORT = 64,             /* most indices of a line that one thread adds if there are at
                                    least LINE_SHORT_MANY lines of at most 2 * LINE_SHORT targets */
    LINE_SHORT_MANY = 2048,
    LINE_PAIRS = 1024            /* most comparisons of indices by one thread, for a line of bf16 or
                                    f16 */
};

/** The lines of the index, and the offsets of the same lines in self (and the result) and in the
 * source. Self, result and index are contiguous. Strides are in elements. */
struct line_shape {
    bool fits;          /* a kernel other than lines_own_kernel can run; `own` tells whether
                           lines_own_kernel can */
    bool sums;          /* true: elements are added; false: the last of equal indices wins */
    bool all;           /* every line of self has a line of the index */
    int64_t count;      /* number of lines */
    int64_t shares;     /* shares per line */
    uint32_t share;     /* elements per share */
    uint32_t length, n; /* elements of a line of the index, of a line of self */
    int64_t along_self, along_src, along_index; /* strides between elements of a line */
    walk<uint32_t, 3> lines; /* offset of a line's first element in self, source and index */
    int own;                 /* threads per block of lines_own_kernel; 0: it does not run */
    int beside;              /* if own > 0: adjacent lines per block */

    line_shape(const ts_cuda_device *device, const ts_tensor *self, const ts_tensor *index,
               const ts_tensor *src, int dim, int bytes, bool sums);
    /** Sets `beside`. Sets `own`, `share` and `shares` for lines_own_kernel if lines of self are
     * short enough for separate sums (of `bytes` bytes) in each thread, there are many more
     * elements to add, and lines_add_kernel could not divide them among many more threads. */
    void share_out(int bytes);
    /** True if a line is short enough for one thread (lines_brief_kernel). halves: the sums are of
     * bf16 or f16, which a thread adds target by target, so that it rounds each sum once. */
    bool brief(bool halves = false) const
    {
        return fits && (is_least(length) ||
                        (length <= LINE_SHORT && n <= 2 * LINE_SHORT && count >= LINE_SHORT_MANY &&
                         (!halves || length * (n < length ? n : length) <= LINE_PAIRS)));
    }
    /** Threads of a block if a block processes a line. */
    unsigned threads() const
    {
        unsigned most = length > n ? length : n, few = 64;
        while (few < LINE_THREADS && few * 8 < most)
            few *= 2;
        return few;
    }

  private:
    bool is_least(int64_t along) const { return along <= (sums ? LINE_LEAST : 1); }
};

/** Describes the lines of a call. The index has the dims of src; or it has one dim, which is along
 * `dim` of src, and applies to all lines. `fits` is set if there are elements, lengths and count of
 * lines are below 2^31, and either a line of the index is short enough for one thread (LINE_LEAST;
 * without sums, one index), or all of these hold:
 * - a line of self, with `bytes` bytes per element, fits in a block's shared memory;
 * - a line of self is not much longer than a line of the index;
 * - there are at least LINE_MANY blocks, or shares have at most LINE_LENGTH elements.
 * Without sums a line is one share. */
inline line_shape::line_shape(const ts_cuda_device *device, const ts_tensor *self,
                              const ts_tensor *index, const ts_tensor *src, int dim, int bytes,
                              bool sums)
    : fits(false), sums(sums), all(false), count(0), shares(1), share(0), length(0), n(0),
      along_self(1), along_src(1), along_index(1), lines(nullptr, 0, {}), own(0), beside(1)
{
    int64_t sizes[TS_MAX_DIMS], steps[3][TS_MAX_DIMS];
    int64_t bound = ts_ndim(self) ? ts_size(self, dim) : 1;
    /* one line of indices for all; a 0-dim index is a line of one */
    bool alone = ts_ndim(index) < 2 && ts_ndim(index) < ts_ndim(self);
    if (!ts_numel(index) || !ts_numel(self))
        return;
    const ts_tensor *shape = alone ? src : index;
    int64_t along = ts_ndim(self) ? ts_size(shape, dim) : 1;
    count = ts_numel(shape) / along;
    all = count == ts_numel(self) / bound;
    for (int d = 0; d < ts_ndim(self); d++) {
        sizes[d] = d == dim ? 1 : ts_size(shape, d);
        steps[0][d] = elements_behind(self, d);
        steps[1][d] = ts_strides(src)[d];
        steps[2][d] = alone ? 0 : elements_behind(index, d);
    }
    if (ts_ndim(self)) {
        along_self = steps[0][dim];
        along_src = steps[1][dim];
        along_index = alone ? 1 : steps[2][dim];
    }
    const int64_t most = ((int64_t)1 << 31) - 1, *const strides[3] = {steps[0], steps[1], steps[2]};
    int available = device->shared < LINE_SHARED ? device->shared : LINE_SHARED;
    if (along > most || count > most || bound > most ||
        (!is_least(along) && bound > available / bytes - 8))
        return;
    lines = walk<uint32_t, 3>(sizes, ts_ndim(self), strides);
    length = (uint32_t)along;
    n = (uint32_t)bound;
    /* about 512 blocks; each adds at least four times as many elements as a line of self has */
    if (sums && count < LINE_MANY) {
        shares =
            along / (4 * bound + 4096) < 512 / count ? along / (4 * bound + 4096) : 512 / count;
        shares = shares > 1 ? shares : 1;
    }
    share = (uint32_t)((along + shares - 1) / shares);
    shares = (along + share - 1) / share;
    /* copying a long line through shared memory is not worth it for few indices */
    fits = is_least(along) || ((count * shares >= LINE_MANY || share <= LINE_LENGTH) &&
                               bound <= 8 * along + 4096);
}

inline void line_shape::share_out(int bytes)
{
    beside = 1;
    while (along_src > 1 && beside < 32 && beside < count)
        beside *= 2;
    int64_t each = n > 16 ? n / 2 : 8; /* elements of a thread */
    int threads = 256, least = beside == 1 && count >= LINE_MANY ? 32 : 64;
    while (threads > least &&
           ((int64_t)n * bytes * threads > LINE_OWN || length < threads / beside * each))
        threads /= 2;
    int64_t shortest = threads / beside * each;
    if ((int64_t)n * bytes * threads > LINE_OWN || length < shortest || length < 256)
        return;
    /* about 1,024 blocks, each with more elements to add than sums to clear and join */
    int64_t blocks = (count + beside - 1) / beside, most = length / (2 * shortest),
            parts = blocks < 1024 ? 1024 / blocks : 1;
    parts = parts < most ? parts : most;
    parts = parts > 1 ? parts : 1;
    if (fits && parts < shares && length / parts > LINE_TURNS * threads / beside)
        return; /* each thread would have too much to do */
    own = threads;
    share = (uint32_t)((length + parts - 1) / parts);
    shares = (length + share - 1) / share;
}

/** A number of elements, rounded up to a multiple of 8. */
static inline __host__ __device__ int64_t line_padded(int64_t n) { return (n + 7) / 8 * 8; }

/** Offsets of the first element of a line in self, source and index. */
struct line_at {
    int64_t self, src, index;
    __device__ __forceinline__ line_at(const line_shape &l, uint32_t line)
    {
        int64_t at[3];
        l.lines.at(line, at);
        self = at[0], src = at[1], index = at[2];
    }
};

/** scatter, a block per line: among elements with equal indices the last one, at the largest
 * position, is stored, whatever the order of threads. Elements without an index are those of
 * self. */
template <class U>
__global__ void __launch_bounds__(LINE_THREADS)
    lines_set_kernel(const __grid_constant__ line_shape l, indices index, const U *self,
                     const U *src, U *out)
{
    extern __shared__ uint32_t winner[];
    line_at at(l, blockIdx.x);
    for (uint32_t j = threadIdx.x; j < l.n; j += blockDim.x)
        winner[j] = 0;
    __syncthreads();
#pragma unroll 4
    for (uint32_t k = threadIdx.x; k < l.length; k += blockDim.x) {
        int64_t to = index.checked(at.index + k * l.along_index, l.n);
        if (to >= 0)
            atomicMax(&winner[to], k + 1);
    }
    __syncthreads();
#pragma unroll 4
    for (uint32_t j = threadIdx.x; j < l.n; j += blockDim.x) {
        uint32_t k = winner[j];
        out[at.self + j * l.along_self] =
            k ? src[at.src + (k - 1) * l.along_src] : self[at.self + j * l.along_self];
    }
}

/**
 * Sums, block (line, share): adds in the order of the index. The block processes LINE_ROWS *
 * blockDim.x indices at a time, and elements with the same target take turns, lowest position
 * first. If there are few targets, the first lane of each group of equal indices in a warp first
 * adds the group's elements in lane order. If sums is NULL, out receives self plus the sums;
 * otherwise the sums are written to sums[share][line], without self, for lines_join_kernel().
 */
template <class T>
__global__ void __launch_bounds__(LINE_THREADS)
    lines_add_kernel(const __grid_constant__ line_shape l, indices index, const T *self,
                     const T *src, T *out, wide_t<T> *sums)
{
    using A = wide_t<T>;
    extern __shared__ __align__(8) char memory[];
    A *line = (A *)memory;
    uint32_t *claim = (uint32_t *)(line + line_padded(l.n)), lane = threadIdx.x % 32;
    bool few = l.n < LINE_FEW;
    const uint32_t nobody = 0xffffffffu;
    line_at at(l, blockIdx.x);
#pragma unroll 4
    for (uint32_t j = threadIdx.x; j < l.n; j += blockDim.x) {
        line[j] = sums ? A{} : widen(self[at.self + j * l.along_self]);
        claim[j] = nobody;
    }
    int64_t first = (int64_t)blockIdx.y * l.share,
            end = first + l.share < l.length ? first + l.share : l.length;
    int32_t next[LINE_ROWS];
    T coming[LINE_ROWS];
    auto fetch = [&](int64_t begin) {
#pragma unroll
        for (int r = 0; r < LINE_ROWS; r++) {
            int64_t k = begin + r * blockDim.x + threadIdx.x;
            next[r] = k < end ? (int32_t)index.checked(at.index + k * l.along_index, l.n) : -1;
            coming[r] = k < end ? src[at.src + k * l.along_src] : T{};
        }
    };
    fetch(first);
    __syncthreads();
    for (int64_t begin = first; begin < end; begin += LINE_ROWS * blockDim.x) {
        int32_t to[LINE_ROWS];
        A value[LINE_ROWS];
        unsigned pending = 0;
#pragma unroll
        for (int r = 0; r < LINE_ROWS; r++) {
            to[r] = next[r];
            value[r] = widen(coming[r]);
        }
        fetch(begin + LINE_ROWS * blockDim.x); /* the next loads overlap these additions */
#pragma unroll
        for (int r = 0; r < LINE_ROWS; r++) {
            bool own = to[r] >= 0;
            if (few) {
                unsigned peers = __match_any_sync(0xffffffffu, own ? (uint32_t)to[r] : l.n + lane);
                unsigned below = peers & ((1u << lane) - 1),
                         rest = below ? 0 : peers & ~(1u << lane);
                while (__any_sync(0xffffffffu, rest)) {
                    A other =
                        (A)__shfl_sync(0xffffffffu, value[r], rest ? __ffs(rest) - 1 : (int)lane);
                    if (rest)
                        value[r] += other;
                    rest &= rest - 1;
                }
                own = own && !below;
            }
            pending |= (unsigned)own << r;
        }
        do {
#pragma unroll
            for (int r = 0; r < LINE_ROWS; r++)
                if (pending >> r & 1)
                    atomicMin(&claim[to[r]], r * blockDim.x + threadIdx.x);
            __syncthreads();
#pragma unroll
            for (int r = 0; r < LINE_ROWS; r++)
                if ((pending >> r & 1) && claim[to[r]] == r * blockDim.x + threadIdx.x) {
                    line[to[r]] += value[r];
                    claim[to[r]] = nobody;
                    pending &= ~(1u << r);
                }
        } while (__syncthreads_or(pending));
    }
#pragma unroll 4
    for (uint32_t j = threadIdx.x; j < l.n; j += blockDim.x)
        if (sums)
            sums[((int64_t)blockIdx.y * l.count + blockIdx.x) * l.n + j] = line[j];
        else
            out[at.self + j * l.along_self] = narrow<T>(line[j]);
}

/**
 * Sums for short lines of self, block (blockDim.x lines, share): each thread adds elements to its
 * own sums in shared memory, so no two threads write to the same address. Threads along x read
 * adjacent lines; threads along y divide a line's share among them, and their sums are then added
 * in a fixed order. Results are written as by lines_add_kernel().
 */
template <class T>
__global__ void __launch_bounds__(256)
    lines_own_kernel(const __grid_constant__ line_shape l, indices index, const T *self,
                     const T *src, T *out, wide_t<T> *sums)
{
    using A = wide_t<T>;
    extern __shared__ __align__(8) char memory[];
    A *all = (A *)memory;
    uint32_t threads = blockDim.x * blockDim.y, me = threadIdx.y * blockDim.x + threadIdx.x;
    A *mine = all + me;
    for (uint32_t j = 0; j < l.n; j++)
        mine[j * threads] = A{};
    uint32_t line = blockIdx.x * blockDim.x + threadIdx.x;
    bool some = line < l.count;
    line_at at(l, some ? line : 0);
    int64_t first = (int64_t)blockIdx.y * l.share, end = first + l.share;
    end = !some ? first : end < l.length ? end : l.length;
    for (int64_t k = first + threadIdx.y; k < end; k += LINE_ROWS * blockDim.y) {
        int32_t to[LINE_ROWS];
        T value[LINE_ROWS];
#pragma unroll
        for (int r = 0; r < LINE_ROWS; r++) {
            int64_t i = k + r * blockDim.y;
            to[r] = i < end ? (int32_t)index.checked(at.index + i * l.along_index, l.n) : -1;
            value[r] = i < end ? src[at.src + i * l.along_src] : T{};
        }
#pragma unroll
        for (int r = 0; r < LINE_ROWS; r++)
            if (to[r] >= 0)
                mine[to[r] * threads] += widen(value[r]);
    }
    __syncthreads();
    auto give = [&](uint32_t x, uint32_t j, A sum) {
        uint32_t line = blockIdx.x * blockDim.x + x;
        int64_t target = line_at(l, line).self + j * l.along_self;
        if (sums)
            sums[((int64_t)blockIdx.y * l.count + line) * l.n + j] = sum;
        else
            out[target] = narrow<T>(widen(self[target]) + sum);
    };
    if (blockDim.y < 32) {
        for (uint32_t j = threadIdx.y; j < l.n && some; j += blockDim.y) {
            A sum{};
            for (uint32_t y = 0; y < blockDim.y; y++)
                sum += all[j * threads + y * blockDim.x + threadIdx.x];
            give(threadIdx.x, j, sum);
        }
        return;
    }
    /* a warp adds the sums of a target */
    for (uint32_t i = me / 32; i < l.n * blockDim.x; i += threads / 32) {
        uint32_t j = i / blockDim.x, x = i % blockDim.x;
        A sum{};
        for (uint32_t y = me % 32; y < blockDim.y; y += 32)
            sum += all[j * threads + y * blockDim.x + x];
#pragma unroll
        for (int lane = 16; lane; lane /= 2)
            sum += (A)__shfl_xor_sync(0xffffffffu, sum, lane);
        if (me % 32 == 0 && blockIdx.x * blockDim.x + x < l.count)
            give(x, j, sum);
    }
}

/** Writes self plus the sums of the shares, in order, to out: a thread per element. */
template <class T>
__global__ void __launch_bounds__(256)
    lines_join_kernel(const __grid_constant__ line_shape l, const wide_t<T> *sums, const T *self,
                      T *out)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, all = l.count * l.n;
    if (i >= all)
        return;
    line_at at(l, (uint32_t)(i / l.n));
    int64_t target = at.self + i % l.n * l.along_self;
    wide_t<T> sum = widen(self[target]);
#pragma unroll 8
    for (int64_t s = 0; s < l.shares; s++)
        sum += sums[s * all + i];
    out[target] = narrow<T>(sum);
}

/** Loads LINE_LEAST elements of a line, starting at element `first`, and their targets. The target
 * is -1 beyond the line's end and, with a report, for an invalid index. All loads come before the
 * checks of the indices, so that they overlap. */
template <class T>
__device__ __forceinline__ void lines_fetch(const line_shape &l, const line_at &at,
                                            const indices &index, const T *src, uint32_t first,
                                            int32_t (&to)[LINE_LEAST], T (&x)[LINE_LEAST])
{
    int64_t raw[LINE_LEAST];
#pragma unroll
    for (int i = 0; i < LINE_LEAST; i++) {
        uint32_t k = first + i;
        raw[i] = k < l.length ? index.at(at.index + k * l.along_index) : 0;
        x[i] = k < l.length ? src[at.src + k * l.along_src] : T{};
    }
#pragma unroll
    for (int i = 0; i < LINE_LEAST; i++) {
        bool some = raw[i] >= 0 && raw[i] < l.n;
        to[i] = some && first + i < l.length ? (int32_t)raw[i] : -1;
        if (!some)
            index.out.wrong_index(raw[i], l.n, at.index + (first + i) * l.along_index);
    }
}

/** Adds the elements of a line of up to LINE_LEAST indices; see lines_brief_kernel(). */
template <class T>
__device__ __forceinline__ void lines_add_least(const line_shape &l, const line_at &at,
                                                const indices &index, const T *src, T *out)
{
    int32_t to[LINE_LEAST];
    T x[LINE_LEAST], old[LINE_LEAST];
    lines_fetch(l, at, index, src, 0, to, x);
#pragma unroll
    for (int k = 0; k < LINE_LEAST; k++)
        old[k] = to[k] >= 0 ? out[at.self + to[k] * l.along_self] : T{};
#pragma unroll
    for (int k = 0; k < LINE_LEAST; k++) {
        if (to[k] < 0)
            continue;
        wide_t<T> sum = widen(old[k]);
#pragma unroll
        for (int i = k; i < LINE_LEAST; i++)
            if (to[i] == to[k]) {
                sum += widen(x[i]);
                to[i] = i > k ? -1 : to[i];
            }
        out[at.self + to[k] * l.along_self] = narrow<T>(sum);
    }
}

/** For the targets of elements `first` to first + LINE_LEAST - 1 of a line, except those that an
 * earlier element has: adds all elements of the line with this target to it. */
template <class T>
__device__ __forceinline__ void lines_add_once(const line_shape &l, const line_at &at,
                                               const indices &index, const T *src, T *out,
                                               uint32_t first)
{
    int32_t to[LINE_LEAST], others[LINE_LEAST];
    T x[LINE_LEAST];
    wide_t<T> sum[LINE_LEAST];
    lines_fetch(l, at, index, src, first, to, x);
    for (uint32_t before = 0; before < first; before += LINE_LEAST) {
        T unused[LINE_LEAST];
        lines_fetch(l, at, index, src, before, others, unused);
#pragma unroll
        for (int k = 0; k < LINE_LEAST; k++)
#pragma unroll
            for (int i = 0; i < LINE_LEAST; i++)
                to[k] = others[i] == to[k] ? -1 : to[k];
    }
    bool any = false;
#pragma unroll
    for (int k = 0; k < LINE_LEAST; k++) {
        any = any || to[k] >= 0;
        sum[k] = to[k] >= 0 ? widen(out[at.self + to[k] * l.along_self]) : 0;
    }
    if (!any)
        return;
#pragma unroll
    for (int k = 0; k < LINE_LEAST; k++)
#pragma unroll
        for (int i = k; i < LINE_LEAST; i++)
            if (to[k] >= 0 && to[i] == to[k]) {
                sum[k] += widen(x[i]);
                to[i] = i > k ? -1 : to[i];
            }
    for (uint32_t after = first + LINE_LEAST; after < l.length; after += LINE_LEAST) {
        lines_fetch(l, at, index, src, after, others, x);
#pragma unroll
        for (int k = 0; k < LINE_LEAST; k++)
#pragma unroll
            for (int i = 0; i < LINE_LEAST; i++)
                if (to[k] >= 0 && others[i] == to[k])
                    sum[k] += widen(x[i]);
    }
#pragma unroll
    for (int k = 0; k < LINE_LEAST; k++)
        if (to[k] >= 0)
            out[at.self + to[k] * l.along_self] = narrow<T>(sum[k]);
}

/** A thread adds the few elements of a line to out, which already holds self, in the order of the
 * index. For bf16 and f16, elements with the same target are added in f32 and the sum is rounded
 * once. */
template <class T>
__global__ void __launch_bounds__(256)
    lines_brief_kernel(const __grid_constant__ line_shape l, indices index, const T *src, T *out)
{
    uint32_t line = blockIdx.x * blockDim.x + threadIdx.x;
    if (line >= l.count)
        return;
    line_at at(l, line);
    if (l.length <= LINE_LEAST) {
        lines_add_least(l, at, index, src, out);
        return;
    }
    if (!std::is_same_v<T, wide_t<T>> && l.n < l.length) { /* target by target */
        for (uint32_t j = 0; j < l.n; j++) {
            T *target = &out[at.self + j * l.along_self];
            wide_t<T> sum = widen(*target);
            bool any = false;
            for (uint32_t first = 0; first < l.length; first += LINE_LEAST) {
                int32_t to[LINE_LEAST];
                T x[LINE_LEAST];
                lines_fetch(l, at, index, src, first, to, x);
#pragma unroll
                for (int i = 0; i < LINE_LEAST; i++)
                    if (to[i] == (int32_t)j) {
                        sum += widen(x[i]);
                        any = true;
                    }
            }
            if (any)
                *target = narrow<T>(sum);
        }
        return;
    }
    if constexpr (std::is_same_v<T, wide_t<T>>) {
#pragma unroll 4
        for (uint32_t k = 0; k < l.length; k++) {
            int64_t to = index.checked(at.index + k * l.along_index, l.n);
            if (to >= 0)
                out[at.self + to * l.along_self] += src[at.src + k * l.along_src];
        }
    } else {
        for (uint32_t first = 0; first < l.length; first += LINE_LEAST)
            lines_add_once(l, at, index, src, out, first);
    }
}

/** Launches scatter: out is self with the elements of src stored at the indices. U is a type of the
 * element's size. */
template <class U>
cudaError_t lines_set(const line_shape &l, const indices &index, const U *self, const U *src,
                      U *out, cudaStream_t stream)
{
    unsigned bytes = l.n * (unsigned)sizeof(uint32_t);
    ts_cuda_grid grid = {dim3((unsigned)l.count), dim3(l.threads()), bytes, 1};
    return launch(lines_set_kernel<U>, grid, stream, l, index, self, src, out);
}

/** Bytes of scratch for the sums of shares; 0 if lines are not divided. */
template <class T> int64_t lines_bytes(const line_shape &l)
{
    return l.shares > 1 ? l.shares * l.count * l.n * (int64_t)sizeof(wide_t<T>) : 0;
}

/** Launches the sums: out is self plus the elements of src at the indices; self may be out. scratch
 * has lines_bytes<T>(l) bytes; NULL for 0. */
template <class T>
cudaError_t lines_add(const line_shape &l, const indices &index, const T *self, const T *src,
                      T *out, void *scratch, cudaStream_t stream)
{
    int64_t item = (int64_t)sizeof(wide_t<T>),
            bytes = l.own ? l.n * l.own * item
                          : line_padded(l.n) * item + l.n * (int64_t)sizeof(uint32_t);
    wide_t<T> *sums = (wide_t<T> *)scratch;
    unsigned across = l.own ? l.beside : 1;
    dim3 threads = l.own ? dim3(across, l.own / across) : dim3(l.threads());
    ts_cuda_grid grid = {dim3((unsigned)((l.count + across - 1) / across), (unsigned)l.shares),
                         threads, (unsigned)bytes, 1};
    cudaError_t e = launch(l.own ? lines_own_kernel<T> : lines_add_kernel<T>, grid, stream, l,
                           index, self, src, out, sums);
    if (e == cudaSuccess && sums)
        lines_join_kernel<T>
            <<<(unsigned)((l.count * l.n + 255) / 256), 256, 0, stream>>>(l, sums, self, out);
    return e == cudaSuccess ? cudaPeekAtLastError() : e;
}

} // namespace ts

#endif
