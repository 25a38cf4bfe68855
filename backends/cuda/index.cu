/**
 * @file index.cu
 * Reading and writing by index. Reads move units of up to 16 bytes. Sums use grouped.cuh, or lines
 * along the indexed dim (index_lines.cuh). An index out of range is recorded (runtime/runtime.h),
 * reads as zero and writes nothing.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/block.cuh"
#include "backends/cuda/copy.cuh"
#include "backends/cuda/grouped.cuh"
#include "backends/cuda/index_elements.cuh"
#include "backends/cuda/index_lines.cuh"
#include "backends/cuda/units.cuh"
#include "tessera/ops.h"

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

/** Functor of one_hot for fill_units(): element i is 1 if its class is its row's index, else 0. A
 * unit is one i64 element: 8-byte stores already reach the memory bandwidth. */
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

/** Functor of sort_by(): keys are the indices. An index that is out of range or equal to `skip`
 * gets the key `bound`, which grouped.cuh ignores. */
template <class I> struct row_key {
    indices index;
    int64_t bound, skip;
    __device__ __forceinline__ I operator()(I k, I &position) const
    {
        int64_t at = index.checked(k, bound);
        position = k;
        return (I)(at < 0 || at == skip ? bound : at);
    }
};

/**
 * Adds rows of x to rows of out by keys. key_of.operator()<I>(call) returns the functor of
 * sort_by().
 * @param positions  upper bound of positions
 * @param every   writes every row of out; otherwise adds to the rows of keys that occur
 */
template <class T, class F>
static ts_status add_grouped(ts_frame *f, const grouping &g, int64_t positions, const T *x, T *out,
                             bool every, F &&key_of)
{
    /* an expanded x has fewer positions */
    int64_t most = positions > g.count ? positions : g.count;
    return with_numbers(most > g.bound ? most : g.bound + 1, [&]<class I>() {
        ts_device where = ts_kernel_device(f);
        if (!ts_cuda_use(where.index))
            return ts_error_code();
        int64_t sums = (grouped_bytes<T, I>(g, every) + 31) / 32 * 32,
                bytes = sums + sorter<I>::bytes(g.count);
        char *scratch = (char *)ts_scratch_take(where, bytes);
        if (!scratch)
            return ts_error_code();
        ts_status status = on_device(f, [&](const call &c) {
            sorter<I> sort(scratch + sums, g.count);
            return grouped_run<T, I>(g, sort, key_of.template operator()<I>(c), x, out, scratch,
                                     every, c.stream);
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

enum {
    ROWS_FEW = 1024,
    ROWS_THREADS = 256,
    ROWS_TURNS = 1 << 15 /* loops over ROWS_THREADS indices, of all blocks, that are cheap */
};

/** Rows of blocks of add_few_kernel(): one per key if every row of the result is written and there
 * are few keys, else one per row of x. */
static int64_t few_lines(const grouping &g, bool every)
{
    return every && g.bound <= 2 * g.count ? g.bound : g.count;
}

/** True if add_few_kernel() is faster than a sort: few rows, and few blocks, or blocks that list
 * their rows in one step, or a row for every other key. */
static bool adds_few(const grouping &g, bool every)
{
    int64_t tiles = (g.outer * g.inner + ROWS_THREADS - 1) / ROWS_THREADS,
            turns = (g.count + ROWS_THREADS - 1) / ROWS_THREADS;
    return g.count <= ROWS_FEW && tiles < INT32_MAX &&
           (few_lines(g, every) * tiles <= ROWS_TURNS / (turns ? turns : 1) ||
            turns <= 1 || g.bound <= 2 * g.count);
}

/**
 * Sums of the few rows of x with one key, added in order, for ROWS_THREADS columns of all outer
 * dims: the block first lists the rows. Each block has a key (`every`: the sum is the result), or a
 * row of x: the block of a key's first row adds the sum to the result, the others do nothing.
 */
template <class T>
static __global__ void __launch_bounds__(ROWS_THREADS)
    add_few_kernel(grouping g, indices index, int64_t skip, const T *x, T *out, bool every)
{
    __shared__ uint16_t found[ROWS_FEW];
    int64_t key = every ? (int64_t)blockIdx.y : index.checked(blockIdx.y, g.bound),
            c = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x, o = c / g.inner;
    int rows = 0, all;
    if (key < 0 || key == skip) {
        if (every && c < g.outer * g.inner)
            out[(o * g.bound + key) * g.inner + (c - o * g.inner)] = T{};
        return;
    }
    for (int k = threadIdx.x; k - (int)threadIdx.x < (int)g.count; k += ROWS_THREADS) {
        bool mine = k < g.count && index.checked(k, g.bound) == key;
        int rank = block_exclusive<ROWS_THREADS>((int)mine, &all);
        if (mine)
            found[rows + rank] = (uint16_t)k;
        rows += all;
    }
    __syncthreads();
    if (c >= g.outer * g.inner || (!every && found[0] != blockIdx.y))
        return;
    c -= o * g.inner;
    T *to = out + (o * g.bound + key) * g.inner + c;
    wide_t<T> sum = every ? wide_t<T>() : widen(*to);
    x += o * g.count * g.inner + c;
#pragma unroll 8
    for (int r = 0; r < rows; r++)
        sum += widen(x[found[r] * g.inner]);
    *to = narrow<T>(sum);
}

static ts_status add_rows(ts_frame *f, const grouping &g, const ts_tensor *index,
                          const ts_tensor *x, int64_t skip, bool every)
{
    return with_number(ts_kernel_dtype(f), [&]<class T>() {
        if (adds_few(g, every))
            return on_device(f, [&](const call &c) {
                T *out = data_of<T>(f->rets[0]);
                int64_t columns = g.outer * g.inner;
                size_t bytes = (size_t)(g.bound * columns) * sizeof(T);
                bool by_key = every && g.bound <= 2 * g.count;
                cudaError_t e = every && !by_key ? cudaMemsetAsync(out, 0, bytes, c.stream)
                                                 : cudaSuccess;
                dim3 grid((unsigned)((columns + ROWS_THREADS - 1) / ROWS_THREADS),
                          (unsigned)few_lines(g, every));
                add_few_kernel<T><<<grid, ROWS_THREADS, 0, c.stream>>>(
                    g, indices(f, index, c.device), skip, (const T *)ts_kernel_data(x), out,
                    by_key);
                return e == cudaSuccess ? cudaPeekAtLastError() : e;
            });
        auto keys = [&]<class I>(const call &c) {
            return row_key<I>{indices(f, index, c.device), g.bound, skip};
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
    unsigned threads = lines.count < 1 << 16 ? 64 : 256; /* few lines: more multiprocessors */
    return on_device(f, [&](const call &c) {
        lines_brief_kernel<T>
            <<<(unsigned)((lines.count + threads - 1) / threads), threads, 0, c.stream>>>(
                lines, indices(f, index, c.device), x, y);
        return cudaPeekAtLastError();
    });
}

/** Adds n elements of src to the result, which already holds self. */
template <class T> static ts_status add_integers(ts_frame *f, const ts_tensor *src, int64_t n)
{
    return on_device(f, [&](const call &c) {
        return with_numbers(n, [&]<class I>() {
            add_integers_kernel<T, I><<<grid_for(n), 256, 0, c.stream>>>(
                led<I>(f, f->rets[0].t, src, c.device), (I)n, (const T *)ts_kernel_data(src),
                data_of<T>(f->rets[0]));
            return cudaPeekAtLastError();
        });
    });
}

enum {
    INDEX_FEW = 32,  /* maximum size of the indexed dim for which wide rows try lines */
    INDEX_NARROW = 8 /* minimum columns of a wide row; narrow rows always try lines */
};

static ts_status index_add(ts_frame *f)
{
    const ts_tensor *self = f->args[0].t, *index = f->args[2].t;
    ts_tensor *out = f->rets[0].t, *src = f->args[3].t;
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
    /* rows of many columns are better sorted, unless there are very few positions */
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
    ts_dtype dtype = ts_kernel_dtype(f);
    if (dtype == TS_I64 || dtype == TS_I32)
        return with_number(dtype, [&]<class T>() {
            if constexpr (free_order<T>)
                return add_integers<T>(f, src, ts_numel(src));
            else
                return TS_OK;
        });
    if (!(src = ts_contiguous(src)))
        return ts_error_code();
    return add_rows(f, {ts_numel(self) / n / inner, ts_numel(index), inner, n}, index, src, -1,
                    false);
}

/* ----------------------------------------------------------------------- elements by index ---- */

/** The result, or a new tensor if it is not contiguous, which deliver() then copies to it. */
static ts_tensor *destination_for(ts_tensor *result)
{
    return ts_is_contiguous(result) ? result
                                    : ts_empty_on(ts_sizes(result), ts_ndim(result),
                                                  ts_dtype_of(result), ts_device_of(result));
}
static ts_status deliver(ts_frame *f, ts_tensor *result, ts_tensor *made)
{
    return made == result
               ? TS_OK
               : copy_part(f, {ts_kernel_data(result), ts_strides(result), ts_dtype_of(result)},
                           {ts_kernel_data(made), ts_strides(made), ts_dtype_of(made)},
                           ts_sizes(result), ts_ndim(result));
}

/** Memory traffic: the index is read once and the result written once. Each element reads a 32-byte
 * sector of self, unless adjacent elements share a sector. */
static ts_status gather(ts_frame *f)
{
    TS_SCOPE;
    const ts_tensor *self = f->args[0].t;
    ts_tensor *out = destination_for(f->rets[0].t);
    if (!out)
        return ts_error_code();
    int64_t n = ts_numel(out);
    TS_CUDA_TRY(on_device(f, [&](const call &c) {
        return with_unit((int)item_of(self), [&]<class U>() {
            return with_numbers(n, [&]<class I>() {
                gathered<U, I> fn = {(const U *)ts_kernel_data(self),
                                     led<I>(f, self, nullptr, c.device)};
                return fill_units<U, I>(ts_kernel_data(out), n, fn, c.stream);
            });
        });
    }));
    return deliver(f, f->rets[0].t, out);
}

enum { SELECT_PART = 4 /* from a quarter of a strided tensor on, packing it is faster */ };

static ts_status index_select(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *self = f->args[0].t;
    int64_t n = ts_numel(f->rets[0].t);
    if (n && !ts_is_contiguous(self) && n <= ts_numel(self) / SELECT_PART)
        return gather(f);
    ts_frame packed = *f;
    ts_value args[] = {f->args[0], f->args[1], f->args[2]};
    if (!(args[0].t = ts_contiguous(self)))
        return ts_error_code();
    packed.args = args;
    return select(&packed, args[2].t, (int)ts_kernel_dim(f));
}

enum {
    SCATTER_CLEARED = 1 << 22, /* bytes that are cleared as fast as a few positions */
    SCATTER_SHORT = 32         /* longest line that an element reads */
};

static ts_status scatter(ts_frame *f)
{
    const ts_tensor *self = f->args[0].t, *index = f->args[2].t;
    const ts_tensor *src = f->args[3].tag == TS_TAG_TENSOR ? f->args[3].t : nullptr;
    ts_tensor *out = f->rets[0].t;
    int dim = (int)ts_kernel_dim(f);
    int64_t n = ts_numel(index);
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
    return with_numbers(n, [&]<class I>() {
        int64_t length = ts_ndim(index) ? ts_size(index, dim) : 1;
        bool meet = src && length > SCATTER_SHORT;
        ts_device where = ts_kernel_device(f);
        int64_t bytes = ts_numel(out) * (int64_t)sizeof(I);
        I *winner = nullptr;
        if (meet && !(winner = (I *)ts_scratch_take(where, bytes)))
            return ts_error_code();
        ts_status status = on_device(f, [&](const call &c) {
            led<I> to(f, out, src, c.device);
            if (winner) {
                if (bytes < SCATTER_CLEARED || n > ts_numel(out) / 8)
                    cudaMemsetAsync(winner, 0, (size_t)bytes, c.stream);
                else
                    winners_kernel<I><<<grid_for(n), 256, 0, c.stream>>>(to, (I)n, winner, true);
                winners_kernel<I><<<grid_for(n), 256, 0, c.stream>>>(to, (I)n, winner, false);
            }
            with_unit((int)item_of(self), [&]<class U>() {
                U one;
                memcpy(&one, number, sizeof one < sizeof number ? sizeof one : sizeof number);
                index_lines<I> along = {
                    split<I>(ts_ndim(index) ? elements_behind(index, dim) : 1), split<I>(length)};
                scatter_kernel<U, I><<<grid_for(n), 256, 0, c.stream>>>(
                    to, (I)n, winner, along, src ? (const U *)ts_kernel_data(src) : nullptr, one,
                    (U *)ts_kernel_data(out));
            });
            return cudaPeekAtLastError();
        });
        if (winner)
            ts_scratch_give(where, winner, bytes);
        return status;
    });
}

/** Upper bound of the positions of a tensor's elements. */
static int64_t reach_of(const ts_tensor *t)
{
    int64_t last = 0;
    for (int d = 0; d < ts_ndim(t); d++)
        last += (ts_size(t, d) - 1) * ts_strides(t)[d];
    return last + 1;
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
        bool held = lines.own || (lines.fits && !brief && !free_order<T>);
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
            return add_lines<T>(f, lines, index,
                                lines.all ? (const T *)ts_kernel_data(self) : y, x, y);
        if constexpr (free_order<T>)
            return add_integers<T>(f, src, ts_numel(index));
        auto keys = [&]<class I>(const call &c) {
            return element_key<I>{led<I>(f, out, src, c.device), (I)ts_numel(out)};
        };
        return add_grouped<T>(f, {1, ts_numel(index), 1, ts_numel(out)}, reach_of(src), x, y, false,
                              keys);
    });
}

/** Calls a kernel of (self, dim, index, src) with a contiguous self, index and result. A self with
 * other strides is copied to the result, as for a call in place. */
template <ts_status KERNEL(ts_frame *)> static ts_status on_packed(ts_frame *f)
{
    TS_SCOPE;
    ts_frame inner = *f;
    ts_value args[] = {f->args[0], f->args[1], f->args[2], f->args[3]}, made = f->rets[0];
    const ts_tensor *self = args[0].t;
    args[2].t = ts_contiguous(args[2].t);
    made.t = destination_for(made.t);
    if (!args[2].t || !made.t)
        return ts_error_code();
    if (!ts_is_contiguous(self)) {
        args[0].t = made.t;
        TS_CUDA_TRY(copy_part(f, {ts_kernel_data(made.t), ts_strides(made.t), ts_dtype_of(made.t)},
                              {ts_kernel_data(self), ts_strides(self), ts_dtype_of(self)},
                              ts_sizes(self), ts_ndim(self)));
    }
    inner.args = args;
    inner.rets = &made;
    TS_CUDA_TRY(KERNEL(&inner));
    return deliver(f, f->rets[0].t, made.t);
}

TS_CUDA_FAMILY(index,
    {"embedding", embedding, 0, false},
    {"embedding_backward", embedding_backward, numbers, false},
    {"index_select", index_select, 0, false, false, true},
    {"index_add", on_packed<index_add>, numbers, true},
    {"gather", gather, 0, true},
    {"scatter", on_packed<scatter>, 0, true},
    {"scatter_add", on_packed<scatter_add>, numbers, true},
    {"one_hot", one_hot, 0, false},
)
