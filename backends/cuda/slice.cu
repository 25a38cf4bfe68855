/**
 * @file slice.cu  slice_scatter and slice_backward: a copy of a tensor, or zeros, with one slice
 * replaced by a source. If all are contiguous, one launch copies each unit of the result from the
 * source or from the tensor, so that the result is written once. Otherwise the source is copied
 * over the slice of a copy.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/copy.cuh"
#include "backends/cuda/units.cuh"

using namespace ts;

/** The result is rows of `row` units; elements of the sliced dim are `inner` units. */
template <class U, class I> struct sliced {
    const U *self; /* NULL: zeros */
    const U *src;
    split<I> row, inner, step;
    I start, count; /* first replaced element of the dim, and number of replaced elements */

    __device__ __forceinline__ U operator()(I i) const
    {
        I o = row.of(i), r = i - o * row.d, k = inner.of(r);
        if (k >= start) {
            I back = k - start, n = step.of(back);
            if (n < count && n * step.d == back)
                return src[((int64_t)o * count + n) * inner.d + (r - k * inner.d)];
        }
        return self ? self[i] : U{};
    }
};

static layout layout_of(const ts_tensor *t)
{
    return {ts_kernel_data(t), ts_strides(t), ts_dtype_of(t)};
}

/** Copies a strided self, or zeros, and then src to the contiguous result. */
static ts_status put_apart(ts_frame *f, const ts_tensor *self, const ts_tensor *src)
{
    const ts_tensor *out = f->rets[0].t;
    ts_slice_range slice = ts_kernel_slice(f);
    int64_t strides[TS_MAX_DIMS], item = (int64_t)ts_dtype_size(ts_dtype_of(out));
    if (!self)
        TS_CUDA_TRY(on_device(f, [&](const call &c) {
            return cudaMemsetAsync(ts_kernel_data(out), 0, (size_t)(ts_numel(out) * item),
                                   c.stream);
        }));
    else if (ts_kernel_data(self) != ts_kernel_data(out))
        TS_CUDA_TRY(copy_part(f, layout_of(out), layout_of(self), ts_sizes(out), ts_ndim(out)));
    memcpy(strides, ts_strides(out), sizeof(int64_t) * (size_t)ts_ndim(out));
    char *to = (char *)ts_kernel_data(out) + slice.start * strides[slice.dim] * item;
    strides[slice.dim] *= slice.step;
    return copy_part(f, {to, strides, ts_dtype_of(out)}, layout_of(src), ts_sizes(src),
                     ts_ndim(src));
}

/** tensor NULL: zeros */
static ts_status put(ts_frame *f, const ts_tensor *tensor, const ts_tensor *src)
{
    const ts_tensor *out = f->rets[0].t;
    if (!ts_numel(out))
        return TS_OK;
    if (!ts_is_contiguous(src) || (tensor && !ts_is_contiguous(tensor)))
        return put_apart(f, tensor, src);
    const void *self = tensor ? ts_kernel_data(tensor) : nullptr;
    ts_slice_range slice = ts_kernel_slice(f);
    int dim = (int)slice.dim;
    int64_t n = ts_size(out, dim), length = ts_size(src, dim), start = slice.start,
            step = slice.step;
    int64_t item = (int64_t)ts_dtype_size(ts_dtype_of(out)), bytes = ts_numel(out) * item,
            inner = elements_behind(out, dim) * item;
    if (!ts_numel(src))
        length = start = 0;
    if (length <= 1 || step > n)
        step = 1;
    if (step == 1) { /* adjacent elements are merged into one */
        int64_t whole = n * inner;
        start *= inner;
        length *= inner;
        inner = unit_of((uint64_t)whole | (uint64_t)start | (uint64_t)length);
        n = whole / inner;
        start /= inner;
        length /= inner;
    }
    void *to = ts_kernel_data(out);
    const void *from = ts_kernel_data(src);
    int64_t unit = unit_of((uint64_t)inner | (uint64_t)(uintptr_t)to | (uint64_t)(uintptr_t)self |
                           (uint64_t)(uintptr_t)from);
    return on_device(f, [&](const call &c) {
        return with_unit((int)unit, [&]<class U>() {
            return with_numbers(bytes / unit, [&]<class I>() {
                sliced<U, I> fn = {(const U *)self, (const U *)from, split<I>(n * inner / unit),
                                   split<I>(inner / unit),
                                   split<I>(step), (I)start, (I)length};
                return fill_units<U, I>(to, bytes / unit, fn, c.stream);
            });
        });
    });
}

static ts_status slice_backward(ts_frame *f) { return put(f, nullptr, f->args[0].t); }
static ts_status slice_scatter(ts_frame *f) { return put(f, f->args[0].t, f->args[1].t); }

TS_CUDA_FAMILY(slice,
    {"slice_backward", slice_backward, 0, false, false, true},
    {"slice_scatter", slice_scatter, 0, false, false, true},
)
