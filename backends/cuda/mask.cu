/**
 * @file mask.cu  tril and triu, and selection by a mask. Selection uses tiles: a first launch
 * counts the true values of each tile, one block computes prefix sums of the counts, and a third
 * launch moves the elements of each tile. If the size of the result depends on the data, the host
 * waits for the count.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/block.cuh"
#include "backends/cuda/copy.cuh"
#include "backends/cuda/launch_rows.cuh"
#include "backends/cuda/units.cuh"
#include "tessera/ops.h"

using namespace ts;

/* ------------------------------------------------------------------------------ triangles ---- */

/** Functor for fill_units() that returns vector i of the result, V elements of E. Vectors that
 * become entirely zero are not read. */
template <class E, int V, class I> struct triangle {
    const E *from;
    split<I> across, rows; /* vectors of a row, rows of a matrix */
    int64_t diagonal;
    bool lower;

    __device__ __forceinline__ vec<E, V> operator()(I i) const
    {
        I row = across.of(i), r = row - rows.of(row) * rows.d;
        /* column of the vector's first element, relative to the diagonal */
        int64_t first = (int64_t)(i - row * across.d) * V - (int64_t)r - diagonal;
        bool some = lower ? first <= 0 : first + V > 0;
        vec<E, V> v = {};
        if (some)
            v = *reinterpret_cast<const vec<E, V> *>(from + (int64_t)i * V);
#pragma unroll
        for (int e = 0; e < V; e++)
            if (lower ? first + e > 0 : first + e < 0)
                v.at[e] = E{};
        return v;
    }
};

/** The same for a strided tensor. whole: its vectors are contiguous and aligned. */
template <class E, int V> struct strided_triangle {
    const E *from;
    walk<uint32_t, 1> starts;     /* of the first elements of rows */
    split<uint32_t> across, rows; /* vectors of a row, rows of a matrix */
    int64_t step, diagonal;
    bool lower, whole;

    __device__ __forceinline__ vec<E, V> operator()(uint32_t i) const
    {
        uint32_t row = across.of(i), r = row - rows.of(row) * rows.d;
        int64_t c = (int64_t)(i - row * across.d) * V, first = c - (int64_t)r - diagonal, at[1];
        vec<E, V> v = {};
        if (lower ? first > 0 : first + V <= 0)
            return v;
        starts.at(row, at);
        const E *source = from + at[0] + c * step;
        if (whole) {
            v = *reinterpret_cast<const vec<E, V> *>(source);
        } else {
#pragma unroll
            for (int e = 0; e < V; e++)
                v.at[e] = source[e * step];
        }
#pragma unroll
        for (int e = 0; e < V; e++)
            if (lower ? first + e > 0 : first + e < 0)
                v.at[e] = E{};
        return v;
    }
};

/** tril or triu of a matrix self of element type E. A strided self needs rows of whole vectors in
 * the result. */
template <class E>
static cudaError_t cut_triangles(const call &c, const ts_tensor *self, void *to, int64_t diagonal,
                                 bool lower)
{
    int n = ts_ndim(self);
    int64_t rows = ts_size(self, n - 2), columns = ts_size(self, n - 1), all = ts_numel(self);
    const E *from = (const E *)ts_kernel_data(self);
    constexpr int V = vec16<E>;
    if (!ts_is_contiguous(self)) {
        int64_t step = ts_strides(self)[n - 1];
        bool whole = step == 1 && aligned16(from);
        for (int d = 0; d < n - 1; d++)
            whole = whole && ts_strides(self)[d] % V == 0;
        strided_triangle<E, V> fn = {from, walk<uint32_t, 1>(ts_sizes(self), n - 1,
                                                             {ts_strides(self)}),
                                     split<uint32_t>(columns / V), split<uint32_t>(rows), step,
                                     diagonal, lower, whole};
        return fill_units<vec<E, V>, uint32_t>(to, all / V, fn, c.stream);
    }
    auto launch = [&]<int W>() {
        return with_numbers(all / W, [&]<class I>() {
            triangle<E, W, I> fn = {from, split<I>(columns / W), split<I>(rows), diagonal, lower};
            return fill_units<vec<E, W>, I>(to, all / W, fn, c.stream);
        });
    };
    return columns % V == 0 && aligned16(from) && aligned16(to) ? launch.template operator()<V>()
                                                                : launch.template operator()<1>();
}

static ts_status cut(ts_frame *f, bool lower)
{
    TS_SCOPE;
    ts_tensor *self = f->args[0].t, *out = f->rets[0].t;
    if (!ts_numel(out))
        return TS_OK;
    int64_t rows = ts_size(self, -2), columns = ts_size(self, -1), diagonal = f->args[1].i;
    diagonal = diagonal < -rows ? -rows : diagonal > columns ? columns : diagonal;
    void *to = ts_kernel_data(out);
    int64_t item = (int64_t)ts_dtype_size(ts_dtype_of(self));
    bool strided = columns * item % 16 == 0 && aligned16(to) && ts_numel(out) < (int64_t)1 << 31;
    if (!strided && !(self = ts_contiguous(self)))
        return ts_error_code();
    return on_device(f, [&](const call &c) {
        switch (item) {
        case 8: return cut_triangles<uint64_t>(c, self, to, diagonal, lower);
        case 4: return cut_triangles<uint32_t>(c, self, to, diagonal, lower);
        case 2: return cut_triangles<uint16_t>(c, self, to, diagonal, lower);
        default: return cut_triangles<uint8_t>(c, self, to, diagonal, lower);
        }
    });
}
static ts_status tril(ts_frame *f) { return cut(f, true); }
static ts_status triu(ts_frame *f) { return cut(f, false); }

/* ------------------------------------------------------------------------------- choosing ---- */

enum { THREADS = 256, OWN = 16 /* flags of a thread */, TILE = THREADS * OWN, SUMMERS = 1024 };

/** A thread's flags of the mask, one bit each; the mask is aligned to 16 bytes. */
static __device__ __forceinline__ unsigned flags_of(const uint8_t *mask, int64_t n)
{
    int64_t first = (int64_t)blockIdx.x * TILE + threadIdx.x * OWN;
    unsigned bits = 0;
    if (first + OWN <= n) {
        vec<uint8_t, OWN> v = *reinterpret_cast<const vec<uint8_t, OWN> *>(mask + first);
#pragma unroll
        for (int e = 0; e < OWN; e++)
            bits |= (unsigned)(v.at[e] != 0) << e;
    } else {
        for (int e = 0; first + e < n; e++)
            bits |= (unsigned)(mask[first + e] != 0) << e;
    }
    return bits;
}

static __global__ void __launch_bounds__(THREADS)
    tally_kernel(const uint8_t *mask, int64_t n, int64_t *counts)
{
    int all;
    block_exclusive<THREADS>(__popc(flags_of(mask, n)), &all);
    if (threadIdx.x == 0)
        counts[blockIdx.x] = all;
}

/** Replaces counts by the number of true values before each tile; counts[tiles] is the total. */
static __global__ void __launch_bounds__(SUMMERS) sum_kernel(int64_t *counts, int64_t tiles)
{
    int64_t before = 0, all;
    for (int64_t begin = 0; begin < tiles; begin += SUMMERS, before += all) {
        int64_t i = begin + threadIdx.x, x = i < tiles ? counts[i] : 0;
        int64_t upto = block_exclusive<SUMMERS>(x, &all);
        if (i < tiles)
            counts[i] = before + upto;
    }
    if (threadIdx.x == 0)
        counts[tiles] = before;
}

/** Calls fn(i, rank, chosen) for each element i; rank is the number of true values before it.
 * Adjacent threads get adjacent elements, so that accesses are coalesced. */
template <class F>
static __global__ void __launch_bounds__(THREADS)
    place_kernel(const uint8_t *mask, int64_t n, const int64_t *counts,
                 const __grid_constant__ F fn)
{
    __shared__ uint16_t ranks[TILE]; /* true values before it in the tile; top bit: its flag */
    unsigned bits = flags_of(mask, n);
    int all, rank = block_exclusive<THREADS>(__popc(bits), &all);
#pragma unroll
    for (int e = 0; e < OWN; e++) {
        ranks[threadIdx.x * OWN + e] = (uint16_t)(rank | (bits >> e & 1) << 15);
        rank += bits >> e & 1;
    }
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * TILE, base = counts[blockIdx.x];
#pragma unroll 4
    for (int e = threadIdx.x; e < TILE; e += THREADS)
        if (first + e < n)
            fn(first + e, base + (ranks[e] & 0x7fff), ranks[e] >> 15);
}

/** Host side of a selection: addresses of the mask, the counts per tile and the temporary copies,
 * whose memory the destructor frees. */
struct chooser {
    ts_frame *f;
    ts_device where;
    int64_t n, tiles;
    const uint8_t *mask = nullptr;
    int64_t *counts = nullptr;
    void *made[3] = {};
    int64_t sizes[3] = {};

    chooser(ts_frame *frame, int64_t numel)
        : f(frame), where(ts_kernel_device(frame)), n(numel), tiles((numel + TILE - 1) / TILE)
    {
    }
    ~chooser()
    {
        for (int i = 0; i < 3; i++)
            if (made[i])
                ts_scratch_give(where, made[i], sizes[i]);
    }
    void *take(int i, int64_t bytes) { return made[i] = ts_scratch_take(where, sizes[i] = bytes); }

    /** Elements of t, broadcast to `dims`, contiguous and 16-byte aligned in `dtype`: t's own, or a
     * copy in made[i]. NULL with an error. */
    const void *packed(int i, const ts_tensor *t, ts_dtype dtype, const int64_t *dims, int ndim)
    {
        int64_t from[TS_MAX_DIMS], to[TS_MAX_DIMS], step = 1;
        if (ts_is_contiguous(t) && ts_numel(t) == n && ts_dtype_of(t) == dtype &&
            aligned16(ts_kernel_data(t)))
            return ts_kernel_data(t);
        for (int d = ndim - 1; d >= 0; d--) {
            int s = d - (ndim - ts_ndim(t));
            from[d] = s < 0 || ts_size(t, s) != dims[d] ? 0 : ts_strides(t)[s];
            to[d] = step;
            step *= dims[d];
        }
        void *copy = take(i, n * (int64_t)ts_dtype_size(dtype));
        if (!copy)
            return nullptr;
        ts_status status =
            copy_part(f, {copy, to, dtype}, {ts_kernel_data(t), from, ts_dtype_of(t)}, dims, ndim);
        return status == TS_OK ? copy : nullptr;
    }
    /** Sets `mask` and `counts`: queues the count of true values before each tile of the mask t. */
    ts_status tally(const ts_tensor *t, const int64_t *dims, int ndim)
    {
        mask = (const uint8_t *)packed(0, t, TS_BOOL, dims, ndim);
        counts = mask ? (int64_t *)take(1, (tiles + 1) * (int64_t)sizeof *counts) : nullptr;
        if (!counts)
            return ts_error_code();
        return on_device(f, [&](const call &c) {
            tally_kernel<<<(unsigned)tiles, THREADS, 0, c.stream>>>(mask, n, counts);
            sum_kernel<<<1, SUMMERS, 0, c.stream>>>(counts, tiles);
            return cudaPeekAtLastError();
        });
    }
    /** Number of true values; waits for the device. */
    ts_status total(int64_t *trues)
    {
        ts_cuda_device *device = nullptr;
        TS_CUDA_TRY(on_device(f, [&](const call &c) {
            device = c.device;
            cudaError_t e = cudaMemcpyAsync(trues, counts + tiles, sizeof *trues,
                                            cudaMemcpyDeviceToHost, c.stream);
            return e == cudaSuccess ? cudaStreamSynchronize(c.stream) : e;
        }));
        return ts_cuda_check_fault(device);
    }
    template <class F> ts_status move(const F &fn)
    {
        return on_device(f, [&](const call &c) {
            place_kernel<F><<<(unsigned)tiles, THREADS, 0, c.stream>>>(mask, n, counts, fn);
            return cudaPeekAtLastError();
        });
    }
};

/** Division of an element's index into coordinates: that of dim d is index / inner[d] mod sizes[d].
 */
template <class I> struct coordinates {
    split<I> inner[TS_MAX_DIMS], sizes[TS_MAX_DIMS];
};

/** Writes the coordinates of the true elements, `ndim` numbers each. A block first lists the true
 * elements of its tile; then adjacent threads write adjacent numbers. */
template <class I>
static __global__ void __launch_bounds__(THREADS)
    coordinates_kernel(const uint8_t *mask, int64_t n, const int64_t *counts, split<I> ndim,
                       const __grid_constant__ coordinates<I> of, int64_t *to)
{
    __shared__ uint16_t chosen[TILE];
    __shared__ coordinates<I> by;
    unsigned bits = flags_of(mask, n);
    int all, rank = block_exclusive<THREADS>(__popc(bits), &all);
    for (; bits; bits &= bits - 1)
        chosen[rank++] = (uint16_t)(threadIdx.x * OWN + __ffs((int)bits) - 1);
    if (threadIdx.x < ndim.d) { /* in shared memory: threads read different dims at once */
        by.inner[threadIdx.x] = of.inner[threadIdx.x];
        by.sizes[threadIdx.x] = of.sizes[threadIdx.x];
    }
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * TILE;
    to += counts[blockIdx.x] * (int64_t)ndim.d;
#pragma unroll 4
    for (uint32_t k = threadIdx.x; k < (uint32_t)all * ndim.d; k += THREADS) {
        uint32_t row = (uint32_t)ndim.of(k), d = k - row * (uint32_t)ndim.d;
        I q = by.inner[d].of((I)(first + chosen[row]));
        to[k] = (int64_t)(q - by.sizes[d].of(q) * by.sizes[d].d);
    }
}

static ts_status nonzero(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    int ndim = ts_ndim(t);
    int64_t sizes[2] = {0, ndim};
    chooser choose(f, ts_numel(t));
    if (choose.n) {
        TS_CUDA_TRY(choose.tally(t, ts_sizes(t), ndim));
        TS_CUDA_TRY(choose.total(&sizes[0]));
    }
    TS_CUDA_TRY(ts_kernel_result(f, 0, sizes, 2, TS_I64));
    int64_t *to = data_of<int64_t>(f->rets[0]);
    if (!to || !sizes[0] || !ndim)
        return TS_OK;
    return on_device(f, [&](const call &c) {
        return with_numbers(choose.n, [&]<class I>() {
            coordinates<I> of;
            int64_t inner = 1;
            for (int d = ndim - 1; d >= 0; d--) {
                of.inner[d] = split<I>(inner);
                of.sizes[d] = split<I>(ts_size(t, d));
                inner *= ts_size(t, d);
            }
            coordinates_kernel<I><<<(unsigned)choose.tiles, THREADS, 0, c.stream>>>(
                choose.mask, choose.n, choose.counts, split<I>(ndim), of, to);
            return cudaPeekAtLastError();
        });
    });
}

template <class E> struct moved {
    const E *from;
    E *to;
    __device__ __forceinline__ void operator()(int64_t i, int64_t rank, bool chosen) const
    {
        if (chosen)
            to[rank] = from[i];
    }
};

/** Broadcasts the sizes of a and b, which the op's shape rule has checked. Returns the number of
 * dims. */
static int broadcast(const ts_tensor *a, const ts_tensor *b, int64_t *sizes, int64_t *numel)
{
    int ndim = ts_ndim(a) > ts_ndim(b) ? ts_ndim(a) : ts_ndim(b);
    *numel = 1;
    for (int d = 0; d < ndim; d++) {
        int i = d - (ndim - ts_ndim(a)), k = d - (ndim - ts_ndim(b));
        sizes[d] = i < 0 || (k >= 0 && ts_size(a, i) == 1) ? ts_size(b, k) : ts_size(a, i);
        *numel *= sizes[d];
    }
    return ndim;
}

/** Calls f.operator()<E>() with an unsigned type of a dtype's element size. */
template <class F> static ts_status with_element(ts_dtype dtype, F &&f)
{
    switch (ts_dtype_size(dtype)) {
    case 8: return f.template operator()<uint64_t>();
    case 4: return f.template operator()<uint32_t>();
    case 2: return f.template operator()<uint16_t>();
    default: return f.template operator()<uint8_t>();
    }
}

static ts_status masked_select(ts_frame *f)
{
    const ts_tensor *self = f->args[0].t, *mask = f->args[1].t;
    int64_t sizes[TS_MAX_DIMS], numel, trues = 0;
    int ndim = broadcast(self, mask, sizes, &numel);
    chooser choose(f, numel);
    const void *from = nullptr;
    if (numel) {
        TS_CUDA_TRY(choose.tally(mask, sizes, ndim));
        if (!(from = choose.packed(2, self, ts_dtype_of(self), sizes, ndim)))
            return ts_error_code();
        TS_CUDA_TRY(choose.total(&trues));
    }
    TS_CUDA_TRY(ts_kernel_result(f, 0, &trues, 1, ts_dtype_of(self)));
    if (!trues)
        return TS_OK;
    return with_element(ts_dtype_of(self), [&]<class E>() {
        return choose.move(moved<E>{(const E *)from, data_of<E>(f->rets[0])});
    });
}

template <class E> struct replaced {
    const E *self, *source;
    E *to;
    __device__ __forceinline__ void operator()(int64_t i, int64_t rank, bool chosen) const
    {
        to[i] = chosen ? source[rank] : self[i];
    }
};

static ts_status masked_scatter(ts_frame *f)
{
    const ts_tensor *self = f->args[0].t, *mask = f->args[1].t, *source = f->args[2].t,
                    *out = f->rets[0].t;
    int64_t trues = 0;
    chooser choose(f, ts_numel(out));
    if (!choose.n)
        return TS_OK;
    TS_CUDA_TRY(choose.tally(mask, ts_sizes(out), ts_ndim(out)));
    const void *from = choose.packed(2, self, ts_dtype_of(self), ts_sizes(out), ts_ndim(out));
    if (!from)
        return ts_error_code();
    if (ts_numel(source) < choose.n) /* otherwise source is large enough for any mask */
        TS_CUDA_TRY(choose.total(&trues));
    if (trues > ts_numel(source))
        return ts_kernel_error(
            f, 2, TS_ERR_SHAPE, nullptr,
            "expected at least %lld elements, one for each true of 'mask', got %lld",
            (long long)trues, (long long)ts_numel(source));
    return with_element(ts_dtype_of(self), [&]<class E>() {
        return choose.move(replaced<E>{(const E *)from, (const E *)ts_kernel_data(source),
                                        data_of<E>(f->rets[0])});
    });
}

TS_CUDA_FAMILY(mask,
    {"tril", tril, 0, false, false, true},
    {"triu", triu, 0, false, false, true},
    {"nonzero", nonzero, 0, true},
    {"masked_select", masked_select, 0, true},
    {"masked_scatter", masked_scatter, 0, false},
)
