/** @file loop_space.cuh  The iteration space of a pointwise kernel, its launch, and the elements of
 * each thread. loops.cuh selects a kernel and calls loop_parts(), which divides the call's space
 * into launches; loop_launcher::fill() makes the loop_space that the kernel gets. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LOOP_SPACE_CUH
#define TS_CUDA_LOOP_SPACE_CUH

#include <string.h>

#include "backends/cuda/fuse/describe.cuh"
#include "backends/cuda/loop_tiles.cuh"
#include "backends/cuda/runtime/launch.h"

namespace ts {

/** Layout of an operand along dim 0, the innermost: contiguous (way_array), stride 0 (way_one), or
 * a number on the host (way_number). In kernels of single elements (V = 1), way_one means any
 * stride other than contiguous. */
enum access_way : uint8_t { way_array, way_one, way_number };

/** How a kernel of single elements assigns elements to a thread. The order of the space has the
 * innermost dim fastest. */
enum loop_walk : uint8_t {
    walk_apart, /* LOOP_RUN elements, LOOP_THREADS apart in the order of the space */
    walk_flat,  /* LOOP_RUN consecutive elements in the order of the space; the result is contiguous
                   in this order */
    walk_runs,  /* a run: up to LOOP_RUN consecutive elements along dim 0 */
    walk_tiles, /* a run; a block's runs form a tile, because an operand lies along another dim
                   (loop_lies_along()). A tile's rows are along dim 0, its columns along dims 1 to
                   `end` - 1 */
    walk_folds  /* like walk_tiles, for a short dim 0: a tile's rows are along dims 0 to `inner` -
                   1, its columns along dims `inner` to `end` - 1. A run is LOOP_RUN consecutive
                   elements of a row and may span several indices of dim 1 */
};

/** A kernel's iteration space, innermost dim first; operand 0 is the result. An access is V
 * elements along dim 0; V is 1 in kernels of single elements and of rows. Along dim 0, sizes count
 * accesses and strides are in bytes per access; but with walk_runs and in loop_rows.cuh, sizes[0]
 * is the number of runs per row. Other dims count indices. sizes[ndim - 1] is not used. */
template <int OPERANDS> struct loop_space {
    uint32_t accesses; /* number of accesses of V elements, or of runs */
    uint32_t tail;     /* elements after the last access; 0 unless ndim is 1 */
    int ndim;
    divisor sizes[TS_MAX_DIMS];
    int32_t strides[OPERANDS][TS_MAX_DIMS];
    int64_t one[OPERANDS]; /* stride of one element in bytes, for the tail */
    char *data[OPERANDS];
    double number[OPERANDS]; /* bits of a host number, as loop_launcher::number() stores them */
    access_way way[OPERANDS];
    bool flat; /* one dim, and each operand is an array or, unless it is the only one, a number on
                  the host */

    loop_walk walk;
    bool heads;       /* rows of the result may be unaligned: runs begin at addresses that are
                         multiples of a run's bytes, so a row's first run may be partial */
    uint8_t item;     /* log2 of the bytes of the result's elements */
    uint8_t lanes;    /* log2 of the runs of a tile along its rows */
    bool joined;      /* consecutive elements are contiguous in the result: in the order of the
                         space, or with walk_folds within a row */
    uint32_t row;     /* elements along dim 0; with walk_folds, along dims 0 to `inner` - 1 */
    /* for tiles: */
    uint8_t inner, end; /* number of dims of the rows, and of rows and columns together */
    uint32_t runs;      /* runs along `row` */
    uint32_t beside;    /* elements along the dims of columns */
    divisor tiles[2];   /* numbers of tiles along the rows and the columns */
};

/** True if a functor reports bad elements (index.cuh), so that it must not be applied to elements
 * that do not exist. */
template <class F>
constexpr bool loop_reports = requires(F fn) { fn.out; };

/** Adds to offset[u][k] the bytes of operand k from index 0 of dims d to end - 1 to position i[u].
 * i: M positions in the order of these dims; overwritten. O: int64_t, or uint32_t, which may
 * wrap. */
template <class O, int M, int N>
__device__ __forceinline__ void loop_offsets(const loop_space<N> &s, int d, int end,
                                             uint32_t (&i)[M], O (*offset)[N])
{
#pragma unroll 1
    for (; d < end - 1; d++) {
        divisor by = s.sizes[d];
#pragma unroll
        for (int u = 0; u < M; u++) {
            uint32_t q = by.of(i[u]), r = i[u] - q * by.d;
#pragma unroll
            for (int k = 0; k < N; k++)
                offset[u][k] += (O)(int32_t)r * s.strides[k][d];
            i[u] = q;
        }
    }
    if (d < end)
#pragma unroll
        for (int u = 0; u < M; u++)
#pragma unroll
            for (int k = 0; k < N; k++)
                offset[u][k] += (O)(int32_t)i[u] * s.strides[k][d];
}
/** loop_offsets() for one position i. */
template <class O, int N>
__device__ __forceinline__ void loop_offset(const loop_space<N> &s, int d, int end, uint32_t i,
                                            O (&offset)[N])
{
    uint32_t only[1] = {i};
    loop_offsets(s, d, end, only, &offset);
}
/** loop_offset() for dims d to the last one. */
template <class O, int N>
__device__ __forceinline__ void loop_offset(const loop_space<N> &s, int d, uint32_t i,
                                            O (&offset)[N])
{
    loop_offset(s, d, s.ndim, i, offset);
}

/** A thread's elements in a kernel of single elements, as s.walk assigns them. */
template <int N> struct loop_elements {
    uint32_t offset[LOOP_RUN][N]; /* bytes from s.data[k] to each element, even if that does not
                                     exist */
    uint32_t some;               /* bit u: element u exists */
    bool run;                    /* consecutive along dim 0 */

    __device__ __forceinline__ explicit loop_elements(const loop_space<N> &s)
        : some(0), run(s.walk == walk_runs || s.walk == walk_tiles)
    {
        uint32_t(&first)[N] = offset[0];
        uint32_t of_row = 0;
#pragma unroll
        for (int k = 0; k < N; k++)
            first[k] = 0;
        if (s.walk >= walk_tiles) {
            uint32_t q = s.tiles[0].of(blockIdx.x), rest = s.tiles[1].of(q),
                     at = (q - rest * s.tiles[1].d) * (LOOP_THREADS >> s.lanes) +
                          (threadIdx.x >> s.lanes);
            of_row = ((blockIdx.x - q * s.tiles[0].d) << s.lanes) +
                     (threadIdx.x & ((1u << s.lanes) - 1));
            if (of_row >= s.runs || at >= s.beside)
                return;
            loop_offset(s, s.inner, s.end, at, first);
            loop_offset(s, s.end, rest, first);
        }
        if (!run) {
            bool apart = s.walk == walk_apart, folds = s.walk == walk_folds;
            uint32_t each = apart ? 1 : LOOP_RUN, step = apart ? LOOP_THREADS : 1,
                     i = folds ? of_row * LOOP_RUN
                               : blockIdx.x * (LOOP_THREADS * LOOP_RUN) + threadIdx.x * each,
                     most = folds ? s.row : s.accesses, at[LOOP_RUN];
#pragma unroll
            for (int u = 0; u < LOOP_RUN; u++) {
                at[u] = i + u * step;
                some |= (uint32_t)(at[u] < most) << u;
#pragma unroll
                for (int k = 0; k < N; k++)
                    offset[u][k] = first[k];
            }
            loop_offsets(s, 0, folds ? s.inner : s.ndim, at, offset);
            return;
        }
        if (s.walk == walk_runs) {
            uint32_t i = blockIdx.x * LOOP_THREADS + threadIdx.x;
            if (i >= s.accesses)
                return;
            of_row = i;
            if (s.ndim > 1) {
                uint32_t rest = s.sizes[0].of(i);
                of_row = i - rest * s.sizes[0].d;
                loop_offset(s, 1, rest, first);
            }
        }
        uint32_t element = (uint32_t)((uintptr_t)(s.data[0] + first[0]) >> s.item),
                 head = s.heads ? element % LOOP_RUN : 0;
        int64_t begin = (int64_t)of_row * LOOP_RUN - head, left = (int64_t)s.row - begin;
#pragma unroll
        for (int k = 0; k < N; k++) {
            first[k] += (uint32_t)begin * (uint32_t)s.strides[k][0];
#pragma unroll
            for (int u = 1; u < LOOP_RUN; u++)
                offset[u][k] = first[k] + (uint32_t)u * (uint32_t)s.strides[k][0];
        }
        if (left <= 0)
            return;
        some = (1u << (left < LOOP_RUN ? (int)left : LOOP_RUN)) - 1;
        if (begin < 0)
            some &= ~0u << -begin;
    }
    __device__ __forceinline__ bool has(int u) const { return some >> u & 1; }

    /** Loads the thread's elements of operand k as words. Entries of x without an element become
     * 0. */
    template <class W>
    __device__ __forceinline__ void load(const loop_space<N> &s, int k, W (&x)[LOOP_RUN]) const
    {
        const W *from = reinterpret_cast<const W *>(at(s, k, 0));
        if (is_whole<W>(s, k) && is_aligned(from)) {
            auto v = *reinterpret_cast<const vectors<W> *>(from);
            memcpy(x, &v, sizeof v);
        } else {
#pragma unroll
            for (int u = 0; u < LOOP_RUN; u++)
                x[u] = has(u) ? *reinterpret_cast<const W *>(at(s, k, u)) : W();
        }
    }
    /** Stores the thread's elements that exist to the result, as words. */
    template <class W>
    __device__ __forceinline__ void store(const loop_space<N> &s, const W (&x)[LOOP_RUN]) const
    {
        W *to = reinterpret_cast<W *>(at(s, 0, 0));
        bool together = run ? is_whole<W>(s, 0) : s.joined && some == (1u << LOOP_RUN) - 1;
        if (together && is_aligned(to)) {
            vectors<W> v;
            memcpy(&v, x, sizeof v);
            *reinterpret_cast<vectors<W> *>(to) = v;
        } else {
#pragma unroll
            for (int u = 0; u < LOOP_RUN; u++)
                if (has(u))
                    *reinterpret_cast<W *>(at(s, 0, u)) = x[u];
        }
    }

private:
    /* LOOP_RUN words as vectors of at most 16 bytes */
    template <class W> struct vectors {
        static constexpr int count = sizeof(W) > 4 ? sizeof(W) / 4 : 1;
        typename word<sizeof(W) * LOOP_RUN / count>::type at[count];
    };

    template <class W> static __device__ __forceinline__ bool is_aligned(const W *p)
    {
        return (uintptr_t)p % sizeof(vectors<W>::at[0]) == 0;
    }
    /* True if all elements of operand k exist and are contiguous words. */
    template <class W>
    __device__ __forceinline__ bool is_whole(const loop_space<N> &s, int k) const
    {
        return run && some == (1u << LOOP_RUN) - 1 && s.strides[k][0] == sizeof(W);
    }
    __device__ __forceinline__ char *at(const loop_space<N> &s, int k, int u) const
    {
        return s.data[k] + offset[u][k];
    }
};

/** A loop kernel with all that its launch needs. Independent of functor and element types, so that
 * the launching code is compiled once per number of operands. */
template <int N> struct loop_launcher {
    const void *kernel; /* takes the space, at `space`, and the functor, at `fn` */
    const void *fn;
    loop_space<N> *space;
    int width;          /* elements of an access: a power of 2 */
    bool rows;          /* `kernel` is one of loop_rows.cuh */
    loop_tiling tiling; /* of a kernel of single elements */
    int item[N];        /* bytes of an element of each operand */
    bool wide[N];       /* parameter `wide` of number() */
    /* Stores the bits of a host operand in *number: loop_number() or any_number(). */
    void (*number)(const ts_frame *f, const ts_operand &o, int item, bool wide, double *number);

    ts_cuda_grid fill(const ts_frame *f, const ts_space &of, int64_t from, int64_t size) const;
};

/** For several dims: fills the sizes of all dims but the last, and the strides of all but the
 * first. A separate function, so that the common launch with one dim stays short. Returns the
 * number of accesses of all dims, of which the last has last_size indices. */
template <int N>
__attribute__((noinline)) int64_t loop_outer_dims(loop_space<N> &s, const ts_space &space,
                                                  int shift, int64_t last_size)
{
    int last = space.ndim - 1;
    int64_t accesses = last_size;
    for (int d = 0; d < last; d++) {
        int64_t within = d == 0 ? space.sizes[0] >> shift : space.sizes[d];
        s.sizes[d] = divisor((uint32_t)within);
        accesses *= within;
    }
    for (int k = 0; k < N; k++)
        for (int d = 1; d <= last; d++)
            s.strides[k][d] = (int32_t)space.operand[k].strides[d];
    return accesses;
}

/** Sets s.heads, s.item and s.row for runs of `run` elements of the result, each of `item` bytes,
 * and returns the number of runs per row. */
template <int N>
int64_t loop_runs(loop_space<N> &s, const ts_space &space, int64_t row, int item, int run)
{
    const ts_operand &to = space.operand[0];
    int64_t whole = (int64_t)item * run;
    s.heads = (uintptr_t)s.data[0] % whole != 0;
    for (int d = 1; d < space.ndim; d++)
        s.heads = s.heads || to.strides[d] % whole;
    s.heads = s.heads && to.strides[0] == item;
    s.item = (uint8_t)__builtin_ctz((unsigned)item);
    s.row = (uint32_t)row;
    return (row + run - 1 + (s.heads ? run - 1 : 0)) / run;
}

/** Sets s.walk and the fields that it needs, for a kernel of single elements. sizes: of all dims;
 * accesses: their product. Returns the number of blocks. */
template <int N>
__attribute__((noinline)) int64_t loop_walk_of(loop_space<N> &s, const ts_space &space,
                                               const int64_t *sizes, int64_t accesses,
                                               const int (&item)[N], loop_tiling tiling)
{
    const ts_operand &to = space.operand[0];
    int64_t row = sizes[0], rows = row ? accesses / row : 0;
    bool array = to.strides[0] == item[0], dense = array;
    if (tiling.inner && row) {
        int64_t beside = 1, runs = loop_runs(s, space, row, item[0], LOOP_RUN);
        for (int d = 1; d < tiling.inner; d++) {
            dense = dense && to.strides[d] == to.strides[d - 1] * sizes[d - 1];
            row *= sizes[d];
        }
        for (int d = tiling.inner; d < tiling.end; d++)
            beside *= sizes[d];
        bool folds = tiling.inner > 1;
        s.walk = folds ? walk_folds : walk_tiles;
        s.joined = dense;
        s.inner = (uint8_t)tiling.inner;
        s.end = (uint8_t)tiling.end;
        s.row = (uint32_t)row;
        s.runs = (uint32_t)(runs = folds ? (row + LOOP_RUN - 1) / LOOP_RUN : runs);
        s.beside = (uint32_t)beside;
        loop_tile tile(runs, beside);
        s.lanes = (uint8_t)tile.lanes;
        s.tiles[0] = divisor((uint32_t)tile.along);
        s.tiles[1] = divisor((uint32_t)tile.up);
        return tile.along * tile.up * (accesses / (row * beside));
    }
    int64_t runs = loop_runs(s, space, row, item[0], LOOP_RUN);
    for (int d = 1; d < space.ndim; d++)
        dense = dense && to.strides[d] == to.strides[d - 1] * sizes[d - 1];
    /* walk_runs if at least three quarters of the elements of the runs exist, or half if the
       alternative is walk_apart. Elements of 8 bytes are as fast without vectors. */
    dense = dense && item[0] < 8;
    if (array && item[0] < 8 && (dense ? 4 : 6) * row >= 3 * LOOP_RUN * runs) {
        s.walk = walk_runs;
        s.sizes[0] = divisor((uint32_t)runs);
        s.accesses = (uint32_t)(runs * rows);
        return (runs * rows + LOOP_THREADS - 1) / LOOP_THREADS;
    }
    s.walk = dense ? walk_flat : walk_apart;
    s.joined = dense;
    return (accesses + LOOP_THREADS * LOOP_RUN - 1) / (LOOP_THREADS * LOOP_RUN);
}

/** Fills the kernel's space with a part of a space: `size` indices of its outermost dim, beginning
 * with index `from`. The part has fewer than 2^31 accesses. Returns the grid. */
template <int N>
ts_cuda_grid loop_launcher<N>::fill(const ts_frame *f, const ts_space &of, int64_t from,
                                    int64_t size) const
{
    loop_space<N> &s = *space;
    int last = of.ndim - 1, shift = __builtin_ctz((unsigned)width);
    bool flat = last == 0;
    s.ndim = of.ndim;
    s.walk = walk_apart;
    s.tail = last == 0 ? (uint32_t)(size & (width - 1)) : 0;
    for (int k = 0; k < N; k++) {
        const ts_operand &o = of.operand[k];
        bool array = o.strides[0] == item[k];
        s.one[k] = o.strides[0];
        s.strides[k][0] = (int32_t)(o.strides[0] << shift);
        if (__builtin_expect(!o.host, 1)) {
            s.data[k] = (char *)o.data + from * o.strides[last];
            s.way[k] = array ? way_array : way_one;
            flat = flat && array;
        } else {
            s.data[k] = (char *)o.data;
            s.way[k] = way_number;
            flat = flat && N > 2;
            number(f, o, item[k], wide[k], &s.number[k]);
        }
    }
    s.flat = flat;
    int64_t accesses = last == 0 ? size >> shift : loop_outer_dims(s, of, shift, size);
    s.accesses = (uint32_t)accesses;
    int64_t row = last == 0 ? size : of.sizes[0], blocks;
    if (rows && row) {
        int64_t runs = loop_runs(s, of, row, item[0], ROW_RUN);
        s.sizes[0] = divisor((uint32_t)runs);
        accesses = accesses / row * runs;
        s.accesses = (uint32_t)accesses;
    }
    if (width > 1 || rows) {
        blocks = (accesses + LOOP_THREADS - 1) / LOOP_THREADS;
    } else {
        int64_t sizes[TS_MAX_DIMS];
        memcpy(sizes, of.sizes, sizeof *sizes * (size_t)of.ndim);
        sizes[last] = size;
        blocks = loop_walk_of(s, of, sizes, accesses, item, tiling);
    }
    return {dim3((unsigned)(blocks ? blocks : 1)), dim3(LOOP_THREADS), 0, 1};
}

/** True if V is above 1, rows have a multiple of V elements (a single row: at least V), and each
 * operand can be accessed V elements at a time along dim 0: it is contiguous and aligned there, a
 * host number, or an argument with stride 0. */
template <int N> bool loop_is_wide(const ts_space &space, const int (&item)[N], int V)
{
    if (V == 1 || (space.ndim > 1 && space.sizes[0] % V) || space.sizes[0] < V)
        return false;
    for (int k = 0; k < N; k++) {
        const ts_operand &o = space.operand[k];
        int64_t bytes = (int64_t)item[k] * V;
        if (o.host)
            continue;
        if (o.strides[0] == 0 && k > 0)
            continue;
        if (o.strides[0] != item[k] || (uintptr_t)o.data % bytes)
            return false;
        for (int d = 1; d < space.ndim; d++)
            if (o.strides[d] % bytes)
                return false;
    }
    return true;
}

/** True if a kernel of loop_rows.cuh should run over the space. Its rows must have at least ROW_RUN
 * elements. Elements must have at most 4 bytes, and those of at least one operand fewer. Each
 * operand must be contiguous along dim 0, a host number, or an argument with stride 0. Kernels of
 * single elements are faster for short rows of a dense result: there a thread's elements may be in
 * two rows (walk_flat), so fewer threads have missing elements. */
template <int N> bool loop_has_rows(const ts_space &space, const int (&item)[N])
{
    const ts_operand &to = space.operand[0];
    int64_t row = space.sizes[0], runs = (row + 2 * ROW_RUN - 2) / ROW_RUN;
    bool small = false, dense = space.ndim > 1 && row % ROW_RUN;
    for (int d = 1; d < space.ndim; d++)
        dense = dense && to.strides[d] == to.strides[d - 1] * space.sizes[d - 1];
    if (dense && 4 * row < 3 * ROW_RUN * runs)
        return false;
    for (int k = 0; k < N; k++) {
        const ts_operand &o = space.operand[k];
        if (o.host)
            continue;
        if (item[k] > 4 || (o.strides[0] != item[k] && (k == 0 || o.strides[0] != 0)))
            return false;
        small = small || item[k] < 4;
    }
    return small && row >= ROW_RUN;
}

/** Outermost dim along which an operand's byte stride exceeds INT32_MAX; -1 if there is none. */
inline int loop_far_dim(const ts_space &space)
{
    int d = space.ndim - 1;
    for (; d >= 0; d--)
        for (int k = 0; k < space.operands; k++)
            if (space.operand[k].strides[d] > INT32_MAX)
                return d;
    return d;
}

/** If an operand has more than UINT32_MAX bytes from its first to its last element, the dim that
 * spans most of these bytes; else -1. */
inline int loop_long_dim(const ts_space &space)
{
    for (int k = 0; k < space.operands; k++) {
        int64_t reach = 0, most = 0;
        int longest = -1;
        for (int d = 0; d < space.ndim && !space.operand[k].host; d++) {
            int64_t bytes = (space.sizes[d] - 1) * space.operand[k].strides[d];
            reach += bytes;
            if (bytes > most) {
                most = bytes;
                longest = d;
            }
        }
        if (reach > UINT32_MAX)
            return longest;
    }
    return -1;
}

/** Launches a kernel over a space, in parts along the outermost dim with fewer than 2^31 elements
 * each. If a dim has a byte stride above INT32_MAX, or one index of the outermost dim has too many
 * elements, each index of that dim is launched separately. In kernels of single elements offsets
 * have 32 bits: if an operand spans more than UINT32_MAX bytes, they run over halves of its longest
 * dim. An empty space launches nothing. */
template <int N>
__attribute__((noinline)) ts_status loop_parts(ts_frame *f, const ts_space &space,
                                               cudaStream_t stream, const loop_launcher<N> &to)
{
    if (space.numel == 0)
        return TS_OK;
    int last = space.ndim - 1, each = loop_far_dim(space),
        far = to.width == 1 && !to.rows ? loop_long_dim(space) : -1;
    if (__builtin_expect(far >= 0, 0)) {
        ts_space part = space;
        int64_t around = space.numel / space.sizes[far], half = space.sizes[far] / 2;
        for (int i = 0; i < 2; i++) {
            part.sizes[far] = i ? space.sizes[far] - half : half;
            part.numel = around * part.sizes[far];
            TS_CUDA_TRY(loop_parts(f, part, stream, to));
            for (int k = 0; k < space.operands; k++)
                if (!space.operand[k].host)
                    part.operand[k].data =
                        (char *)part.operand[k].data + half * space.operand[k].strides[far];
        }
        return TS_OK;
    }
    int64_t whole = space.sizes[last], most = ((int64_t)1 << 31) - 4096, step = whole;
    if (__builtin_expect(space.numel > most, 0)) {
        int64_t around = space.numel / whole;
        if (around > most && each < 0)
            each = last;
        step = most / around;
        if (last == 0)
            step = step / 4096 * 4096;
    }
    if (__builtin_expect(each >= 0, 0)) {
        ts_space part = space;
        loop_launcher<N> fewer = to;
        fewer.tiling = {}; /* the parts lack a dim */
        int64_t size = space.sizes[each];
        part.numel /= size;
        part.ndim = last > 0 ? last : 1;
        part.sizes[each] = 1;
        for (int d = each; d < last; d++)
            part.sizes[d] = space.sizes[d + 1];
        for (int k = 0; k < space.operands; k++) {
            part.operand[k].strides[each] = 0;
            for (int d = each; d < last; d++)
                part.operand[k].strides[d] = space.operand[k].strides[d + 1];
        }
        for (int64_t i = 0; i < size; i++) {
            TS_CUDA_TRY(loop_parts(f, part, stream, fewer));
            for (int k = 0; k < space.operands; k++)
                if (!space.operand[k].host)
                    part.operand[k].data =
                        (char *)part.operand[k].data + space.operand[k].strides[each];
        }
        return TS_OK;
    }
    for (int64_t from = 0; from < whole; from += step) {
        int64_t size = whole - from < step ? whole - from : step;
        ts_cuda_grid grid = to.fill(f, space, from, size);
        void *addresses[] = {to.space, (void *)to.fn};
        cudaError_t e = ts_cuda_launch(to.kernel, &grid, addresses, stream);
        TS_CUDA_TRY(ts_cuda_launched(f, e, stream));
    }
    return TS_OK;
}

} // namespace ts

#endif
