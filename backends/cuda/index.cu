/**
 * @file index.cu
 * Reading and writing by index. Reads move units of up to 16 bytes. Sums use grouped.cuh, or lines
 * along the indexed dim (index_lines.cuh). An index out of range is recorded (runtime.h), reads as
 * zero and writes nothing.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/grouped.cuh"
#include "backends/cuda/index_lines.cuh"
#include "backends/cuda/units.cuh"

using namespace ts;

static int64_t item_of(const ts_tensor *t) { return (int64_t)ts_dtype_size(ts_dtype_of(t)); }

/** Copies self to out unless the call is in place. Both are contiguous. */
static cudaError_t start_from(ts_tensor *out, const ts_tensor *self, cudaStream_t stream)
{
    void *to = ts_kernel_data(out), *from = ts_kernel_data(self);
    if (to == from)
        return cudaSuccess;
    return cudaMemcpyAsync(to, from, (size_t)(ts_numel(self) * item_of(self)),
                           cudaMemcpyDeviceToDevice, stream);
}

/** Checks indices even if no element is read or written. */
static __global__ void range_kernel(indices index, int64_t n, int64_t bound)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        index.checked(i, bound);
}
static unsigned grid_for(int64_t n)
{
    return (unsigned)((n + 255) / 256 < 65535 ? (n + 255) / 256 : 65535);
}

/** Checks indices and waits for the device, for calls with an empty result: no later call would
 * wait for it and report the error. */
static ts_status check_alone(ts_frame *f, const ts_tensor *index, int64_t bound)
{
    int64_t n = ts_numel(index);
    ts_cuda_device *device = nullptr;
    if (!n)
        return TS_OK;
    TS_CUDA_TRY(on_device(f, [&](const call &c) {
        device = c.device;
        range_kernel<<<grid_for(n), 256, 0, c.stream>>>(indices(f, index, c.device), n, bound);
        return cudaStreamSynchronize(c.stream);
    }));
    return ts_cuda_check_fault(device);
}

/* -------------------------------------------------------------------------- rows by index ---- */

/** The tensor is (outer, n, inner), the result (outer, count, inner); inner counts units. */
template <class U, class I> struct selected {
    const U *from;
    indices index;
    split<I> inner, count;
    int64_t n;

    __device__ __forceinline__ U operator()(I i) const
    {
        I row = inner.of(i), o = count.of(row);
        int64_t at = index.checked(row - o * count.d, n);
        return at < 0 ? U{} : from[((int64_t)o * n + at) * inner.d + (i - row * inner.d)];
    }
};

/** Memory traffic: each byte of the result is written once; a row is read once per index that
 * selects it. */
static ts_status select(ts_frame *f, const ts_tensor *index, int dim)
{
    const ts_tensor *self = f->args[0].t, *out = f->rets[0].t;
    void *to = ts_kernel_data(out);
    const void *from = ts_kernel_data(self);
    int64_t n = ts_ndim(self) ? ts_size(self, dim) : 1;
    if (!ts_numel(out))
        return check_alone(f, index, n);
    int64_t inner = ts_ndim(self) ? elements_behind(self, dim) * item_of(self) : item_of(self);
    int64_t unit = unit_of((uint64_t)inner | (uint64_t)(uintptr_t)to | (uint64_t)(uintptr_t)from);
    int64_t units = ts_numel(out) * item_of(out) / unit;
    return on_device(f, [&](const call &c) {
        return with_unit((int)unit, [&]<class U>() {
            return with_numbers(units, [&]<class I>() {
                selected<U, I> fn = {(const U *)from, indices(f, index, c.device),
                                     split<I>(inner / unit), split<I>(ts_numel(index)), n};
                return fill_units<U, I>(to, units, fn, c.stream);
            });
        });
    });
}
static ts_status embedding(ts_frame *f) { return select(f, f->args[1].t, 0); }
static ts_status index_select(ts_frame *f)
{
    return select(f, f->args[2].t, (int)ts_kernel_dim(f));
}

/** Two places of a row at a time would need even classes;
 * writes of 8 bytes already fill the bus. */
template <class I> struct hot {
    indices index;
    split<I> classes;
    __device__ __forceinline__ int64_t operator()(I i) const
    {
        I k = classes.of(i);
        return index.checked(k, classes.d) == (int64_t)(i - k * classes.d);
    }
};
static ts_status one_hot(ts_frame *f)
{
    const ts_tensor *out = f->rets[0].t;
    int64_t n = ts_numel(out);
    return on_device(f, [&](const call &c) {
        return with_numbers(n, [&]<class I>() {
            hot<I> fn = {indices(f, f->args[0].t, c.device), split<I>(f->args[1].i)};
            return fill_units<int64_t, I>(ts_kernel_data(out), n, fn, c.stream);
        });
    });
}

/* --------------------------------------------------------------------------- sums of rows ---- */

/** Sets keys to the indices. An index that is out of range or equal to `skip` gets the key `bound`,
 * which grouped.cuh ignores. */
template <class I>
static __global__ void row_keys_kernel(indices index, I n, int64_t bound, int64_t skip, I *keys,
                                       I *places)
{
    for (I k = (I)blockIdx.x * blockDim.x + threadIdx.x; k < n; k += (I)gridDim.x * blockDim.x) {
        int64_t at = index.checked(k, bound);
        keys[k] = (I)(at < 0 || at == skip ? bound : at);
        places[k] = k;
    }
}

/**
 * Adds rows of x to rows of out by sorted keys, which fill_keys(sorter, call) makes.
 * @param places  upper bound of positions
 * @param every   writes every row of out; otherwise adds to the rows of keys that occur
 */
template <class T, class F>
static ts_status add_grouped(ts_frame *f, const grouping &g, int64_t places, const T *x, T *out,
                             bool every, F &&fill_keys)
{
    return with_numbers(places > g.bound ? places : g.bound + 1, [&]<class I>() {
        int64_t sums = (grouped_bytes<T, I>(g, every) + 31) / 32 * 32,
                bytes = sums + sorter<I>::numbers(g.count) * (int64_t)sizeof(I);
        ts_device where = ts_kernel_device(f);
        char *scratch = (char *)ts_scratch_take(where, bytes);
        if (!scratch)
            return ts_error_code();
        ts_status status = on_device(f, [&](const call &c) {
            sorter<I> sort(scratch + sums, g.count);
            fill_keys(sort, c);
            sort.run((uint64_t)g.bound, c.stream);
            grouped_run<T, I>(g, sort, x, out, scratch, every, c.stream);
            return cudaPeekAtLastError();
        });
        ts_scratch_give(where, scratch, bytes);
        return status;
    });
}

/** Calls f.operator()<T>() for a dtype that can be added. */
template <class F> static ts_status with_number(ts_dtype dtype, F &&f)
{
    switch (dtype) {
    case TS_F64: return f.template operator()<double>();
    case TS_BF16: return f.template operator()<bf16>();
    case TS_F16: return f.template operator()<f16>();
    case TS_I64: return f.template operator()<int64_t>();
    case TS_I32: return f.template operator()<int32_t>();
    case TS_U8: return f.template operator()<uint8_t>();
    default: return f.template operator()<float>();
    }
}

static ts_status add_rows(ts_frame *f, const grouping &g, const ts_tensor *index,
                          const ts_tensor *x, int64_t skip, bool every)
{
    return with_number(ts_kernel_dtype(f), [&]<class T>() {
        auto keys = [&]<class I>(sorter<I> &sort, const call &c) {
            row_keys_kernel<I><<<grid_for(g.count), 256, 0, c.stream>>>(
                indices(f, index, c.device), (I)g.count, g.bound, skip, sort.keys[0],
                sort.places[0]);
        };
        return add_grouped<T>(f, g, g.count, (const T *)ts_kernel_data(x), data_of<T>(f->rets[0]),
                              every, keys);
    });
}

/** Memory traffic: the gradient's rows are read once and every element of the result is written
 * once; see grouped.cuh. */
static ts_status embedding_backward(ts_frame *f)
{
    const ts_tensor *grad = f->args[0].t, *index = f->args[1].t, *out = f->rets[0].t;
    if (!ts_numel(out))
        return check_alone(f, index, ts_size(out, 0));
    if (!ts_numel(grad))
        return on_device(f, [&](const call &c) {
            return cudaMemsetAsync(ts_kernel_data(out), 0, (size_t)(ts_numel(out) * item_of(out)),
                                   c.stream);
        });
    grouping g = {1, ts_numel(index), ts_size(out, 1), ts_size(out, 0)};
    return add_rows(f, g, index, grad, f->args[3].i, true);
}

/** Adds x to `from`, line by line, and writes y. */
template <class T>
static ts_status add_lines(ts_frame *f, const line_shape &lines, const ts_tensor *index,
                           const T *from, const T *x, T *y)
{
    ts_device where = ts_kernel_device(f);
    int64_t bytes = lines_bytes<T>(lines);
    void *sums = bytes ? ts_scratch_take(where, bytes) : nullptr;
    if (bytes && !sums)
        return ts_error_code();
    ts_status status = on_device(f, [&](const call &c) {
        return lines_add<T>(lines, indices(f, index, c.device), from, x, y, sums, c.stream);
    });
    ts_scratch_give(where, sums, bytes);
    return status;
}

/** Adds x to y, which already holds self, with a thread per line. */
template <class T>
static ts_status add_brief(ts_frame *f, const line_shape &lines, const ts_tensor *index, const T *x,
                           T *y)
{
    return on_device(f, [&](const call &c) {
        lines_brief_kernel<T><<<(unsigned)((lines.count + 255) / 256), 256, 0, c.stream>>>(
            lines, indices(f, index, c.device), x, y);
        return cudaPeekAtLastError();
    });
}

enum { INDEX_FEW = 32, INDEX_NARROW = 8 };

static ts_status index_add(ts_frame *f)
{
    const ts_tensor *self = f->args[0].t, *index = f->args[2].t, *src = f->args[3].t;
    ts_tensor *out = f->rets[0].t;
    int dim = (int)ts_kernel_dim(f);
    int64_t n = ts_ndim(self) ? ts_size(self, dim) : 1;
    if (!ts_numel(out))
        return check_alone(f, index, n);
    TS_CUDA_TRY(on_device(f, [&](const call &c) { return start_from(out, self, c.stream); }));
    if (!ts_numel(src))
        return TS_OK;
    const ts_cuda_device *device = ts_cuda_use(ts_kernel_device(f).index);
    if (!device)
        return ts_error_code();
    int64_t inner = ts_ndim(self) ? elements_behind(self, dim) : 1;
    /* rows of many columns are better sorted, unless there are very few places */
    bool few = n <= INDEX_FEW || inner < INDEX_NARROW;
    ts_status status = !few ? TS_OK : with_number(ts_kernel_dtype(f), [&]<class T>() {
        T *y = data_of<T>(f->rets[0]);
        line_shape lines(device, self, index, src, dim, (int)sizeof(wide_t<T>), true);
        const T *x = data_of<T>(f->args[3]);
        bool brief = inner < INDEX_NARROW && lines.brief(!std::is_same_v<T, wide_t<T>>);
        if (!brief)
            lines.share_out((int)sizeof(wide_t<T>));
        few = brief || lines.own;
        return brief ? add_brief<T>(f, lines, index, x, y)
               : few ? add_lines<T>(f, lines, index, y, x, y)
                     : TS_OK;
    });
    if (few || status != TS_OK)
        return status;
    return add_rows(f, {ts_numel(self) / n / inner, ts_numel(index), inner, n}, index, src, -1,
                    false);
}

/* ----------------------------------------------------------------------- elements by index ---- */

/** Position that element i of the index selects in the indexed tensor, and positions of its partner
 * in N - 1 other tensors. */
template <class I, int N> struct led {
    indices index;
    walk<I, N> space;
    int64_t along, bound;

    led(ts_frame *f, const ts_tensor *self, const int64_t *const (&strides)[N],
        ts_cuda_device *device)
        : index(f, f->args[2].t, device),
          space(ts_sizes(f->args[2].t), ts_ndim(f->args[2].t), strides), along(1), bound(1)
    {
        int dim = (int)ts_kernel_dim(f);
        if (ts_ndim(self)) {
            along = elements_behind(self, dim);
            bound = ts_size(self, dim);
        }
    }
    /** Sets the positions for element i. False, with a report, if the index is out of range. */
    __device__ __forceinline__ bool at(I i, int64_t (&place)[N]) const
    {
        int64_t k = index.checked(i, bound);
        space.at(i, place);
        place[0] += k * along;
        return k >= 0;
    }
};

/** Strides of a contiguous tensor, with 0 for the indexed dim. */
static void strides_beside(const ts_tensor *t, int dim, int64_t *strides)
{
    for (int d = 0; d < ts_ndim(t); d++)
        strides[d] = d == dim ? 0 : elements_behind(t, d);
}

template <class U, class I> struct gathered {
    const U *from;
    led<I, 1> to;
    __device__ __forceinline__ U operator()(I i) const
    {
        int64_t place[1];
        return to.at(i, place) ? from[place[0]] : U{};
    }
};

/** Memory traffic: the index is read once and the result written once. Each element reads a 32-byte
 * sector of self, unless adjacent elements share a sector. */
static ts_status gather(ts_frame *f)
{
    const ts_tensor *self = f->args[0].t, *out = f->rets[0].t;
    int64_t n = ts_numel(out), strides[TS_MAX_DIMS];
    strides_beside(self, (int)ts_kernel_dim(f), strides);
    const int64_t *const all[1] = {strides};
    return on_device(f, [&](const call &c) {
        return with_unit((int)item_of(self), [&]<class U>() {
            return with_numbers(n, [&]<class I>() {
                gathered<U, I> fn = {(const U *)ts_kernel_data(self),
                                     led<I, 1>(f, self, all, c.device)};
                return fill_units<U, I>(ts_kernel_data(out), n, fn, c.stream);
            });
        });
    });
}

/* If several elements of an index select the same position, the last one is stored. The first pass
 * finds the largest element number per position by atomicMax, whose order does not matter; the
 * second pass stores the winners. */

template <class I>
static __global__ void winners_kernel(const __grid_constant__ led<I, 2> to, I n, I *winner)
{
    for (I i = (I)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (I)gridDim.x * blockDim.x) {
        int64_t place[2];
        if (!to.at(i, place))
            continue;
        if constexpr (sizeof(I) == 8)
            atomicMax((unsigned long long *)&winner[place[0]], (unsigned long long)i + 1);
        else
            atomicMax(&winner[place[0]], i + 1);
    }
}

/** winner NULL: all positions differ, or all elements store the same value. */
template <class U, class I>
static __global__ void scatter_kernel(const __grid_constant__ led<I, 2> to, I n, const I *winner,
                                      const U *src, U number, U *out)
{
    for (I i = (I)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (I)gridDim.x * blockDim.x) {
        int64_t place[2];
        if (to.at(i, place) && (!winner || winner[place[0]] == i + 1))
            out[place[0]] = src ? src[place[1]] : number;
    }
}

static ts_status scatter(ts_frame *f)
{
    const ts_tensor *self = f->args[0].t, *index = f->args[2].t;
    const ts_tensor *src = f->args[3].tag == TS_TAG_TENSOR ? f->args[3].t : nullptr;
    ts_tensor *out = f->rets[0].t;
    int dim = (int)ts_kernel_dim(f);
    int64_t n = ts_numel(index), strides[2][TS_MAX_DIMS] = {};
    char number[8] = {};
    if (!ts_numel(out))
        return check_alone(f, index, ts_size(self, dim));
    const ts_cuda_device *device = ts_cuda_use(ts_kernel_device(f).index);
    if (!device)
        return ts_error_code();
    if (!src)
        ts_scalar_store(&f->args[3], ts_dtype_of(self), number);
    line_shape lines(device, self, index, src ? src : index, dim, (int)sizeof(uint32_t), false);
    bool held = src && lines.fits && !lines.brief();
    if (!held || !lines.all)
        TS_CUDA_TRY(on_device(f, [&](const call &c) { return start_from(out, self, c.stream); }));
    if (!n)
        return TS_OK;
    if (held)
        return on_device(f, [&](const call &c) {
            return with_unit((int)item_of(self), [&]<class U>() {
                return lines_set<U>(lines, indices(f, index, c.device),
                                    (const U *)ts_kernel_data(lines.all ? self : out),
                                    (const U *)ts_kernel_data(src), (U *)ts_kernel_data(out),
                                    c.stream);
            });
        });
    strides_beside(self, dim, strides[0]);
    for (int d = 0; src && d < ts_ndim(src); d++)
        strides[1][d] = elements_behind(src, d);
    const int64_t *const all[2] = {strides[0], strides[1]};
    return with_numbers(n, [&]<class I>() {
        bool meet = src && ts_ndim(index) && ts_size(index, dim) > 1;
        ts_device where = ts_kernel_device(f);
        int64_t bytes = ts_numel(out) * (int64_t)sizeof(I);
        I *winner = nullptr;
        if (meet && !(winner = (I *)ts_scratch_take(where, bytes)))
            return ts_error_code();
        ts_status status = on_device(f, [&](const call &c) {
            led<I, 2> to(f, self, all, c.device);
            if (winner) {
                cudaMemsetAsync(winner, 0, (size_t)bytes, c.stream);
                winners_kernel<I><<<grid_for(n), 256, 0, c.stream>>>(to, (I)n, winner);
            }
            with_unit((int)item_of(self), [&]<class U>() {
                U one;
                memcpy(&one, number, sizeof one < sizeof number ? sizeof one : sizeof number);
                scatter_kernel<U, I><<<grid_for(n), 256, 0, c.stream>>>(
                    to, (I)n, winner, src ? (const U *)ts_kernel_data(src) : nullptr, one,
                    (U *)ts_kernel_data(out));
            });
            return cudaPeekAtLastError();
        });
        if (winner)
            ts_scratch_give(where, winner, bytes);
        return status;
    });
}

/** Keys are positions in self, places are positions in src. */
template <class I>
static __global__ void element_keys_kernel(const __grid_constant__ led<I, 2> to, I n, I bound,
                                           I *keys, I *places)
{
    for (I i = (I)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (I)gridDim.x * blockDim.x) {
        int64_t place[2];
        keys[i] = to.at(i, place) ? (I)place[0] : bound;
        places[i] = (I)place[1];
    }
}

static ts_status scatter_add(ts_frame *f)
{
    const ts_tensor *self = f->args[0].t, *index = f->args[2].t, *src = f->args[3].t;
    ts_tensor *out = f->rets[0].t;
    int dim = (int)ts_kernel_dim(f);
    if (!ts_numel(out))
        return check_alone(f, index, ts_size(self, dim));
    const ts_cuda_device *device = ts_cuda_use(ts_kernel_device(f).index);
    if (!device)
        return ts_error_code();
    return with_number(ts_kernel_dtype(f), [&]<class T>() {
        line_shape lines(device, self, index, src, dim,
                         (int)sizeof(wide_t<T>) + (int)sizeof(uint32_t), true);
        bool brief = lines.brief(!std::is_same_v<T, wide_t<T>>);
        if (!brief)
            lines.share_out((int)sizeof(wide_t<T>));
        bool held = lines.own || (lines.fits && !brief);
        if (!held || !lines.all)
            TS_CUDA_TRY(
                on_device(f, [&](const call &c) { return start_from(out, self, c.stream); }));
        if (!ts_numel(index))
            return TS_OK;
        const T *x = (const T *)ts_kernel_data(src);
        T *y = (T *)ts_kernel_data(out);
        if (brief)
            return add_brief<T>(f, lines, index, x, y);
        if (held)
            return add_lines<T>(f, lines, index, lines.all ? data_of<T>(f->args[0]) : y, x, y);
        int64_t strides[2][TS_MAX_DIMS] = {};
        strides_beside(self, dim, strides[0]);
        for (int d = 0; d < ts_ndim(src); d++)
            strides[1][d] = elements_behind(src, d);
        const int64_t *const all[2] = {strides[0], strides[1]};
        auto keys = [&]<class I>(sorter<I> &sort, const call &c) {
            element_keys_kernel<I><<<grid_for(ts_numel(index)), 256, 0, c.stream>>>(
                led<I, 2>(f, self, all, c.device), (I)ts_numel(index), (I)ts_numel(out),
                sort.keys[0], sort.places[0]);
        };
        return add_grouped<T>(f, {1, ts_numel(index), 1, ts_numel(out)}, ts_numel(src), x, y, false,
                              keys);
    });
}

TS_CUDA_FAMILY(index,
    {"embedding", embedding, 0, false},
    {"embedding_backward", embedding_backward, numbers, false},
    {"index_select", index_select, 0, false},
    {"index_add", index_add, numbers, false},
    {"gather", gather, 0, false},
    {"scatter", scatter, 0, false},
    {"scatter_add", scatter_add, numbers, false},
    {"one_hot", one_hot, 0, false},
)
