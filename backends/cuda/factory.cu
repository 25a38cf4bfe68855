/** @file factory.cu  Factories: empty, full, arange, linspace, eye; and fill. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/copy_fn.cuh"
#include "backends/cuda/loops.cuh"

using namespace ts;

static ts_status empty(ts_frame *f)
{
    (void)f;
    return TS_OK;
}

static ts_status run(ts_frame *f, const ts_space &space)
{
    switch (ts_dtype_size(space.operand[0].dtype)) {
    case 8: return loop_run<fn::same_fn, int64_t, int64_t>(f, space, fn::same_fn{});
    case 4: return loop_run<fn::same_fn, int32_t, int32_t>(f, space, fn::same_fn{});
    case 2: return loop_run<fn::same_fn, int16_t, int16_t>(f, space, fn::same_fn{});
    default: return loop_run<fn::same_fn, int8_t, int8_t>(f, space, fn::same_fn{});
    }
}

static ts_status full(ts_frame *f)
{
    ts_space space;
    TS_CUDA_TRY(ts_kernel_space(f, &space));
    return run(f, space);
}

/** fill writes its argument instead of a result, so the kernel builds the iteration space from the
 * argument's dims. */
static ts_status fill(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    char number[8];
    ts_space space = {};
    space.ndim = ts_ndim(t) ? ts_ndim(t) : 1;
    space.operands = 2;
    space.numel = ts_numel(t);
    space.sizes[0] = 1;
    space.operand[0].data = ts_kernel_data(t);
    space.operand[0].dtype = space.operand[1].dtype = ts_dtype_of(t);
    space.operand[1].host = true;
    space.operand[1].data = number;
    ts_scalar_store(&f->args[1], ts_dtype_of(t), number);
    int64_t item = (int64_t)ts_dtype_size(ts_dtype_of(t));
    bool packed = ts_is_contiguous(t);
    if (packed) {
        space.ndim = 1;
        space.sizes[0] = space.numel;
        space.operand[0].strides[0] = item;
    } else {
        for (int d = 0; d < ts_ndim(t); d++) {
            space.sizes[ts_ndim(t) - 1 - d] = ts_size(t, d);
            space.operand[0].strides[ts_ndim(t) - 1 - d] = ts_strides(t)[d] * item;
        }
    }
    return run(f, space);
}

/* ---------------------------------------------------------------------------- sequences ---- */

/** out[i] = fn(i); products are rounded before they are added, as on the CPU */
template <class T, class F> __global__ void sequence_kernel(T *out, int64_t n, F fn)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        out[i] = narrow<T>((wide_t<T>)fn(i));
}
template <class T, class F> static ts_status sequence(ts_frame *f, F fn)
{
    call c = call_of(f);
    if (!c.device)
        return ts_error_code();
    int64_t n = ts_numel(f->rets[0].t), blocks = (n + 255) / 256;
    if (!n)
        return TS_OK;
    sequence_kernel<T><<<(unsigned)(blocks < 65535 ? blocks : 65535), 256, 0, c.stream>>>(
        (T *)ts_kernel_data(f->rets[0].t), n, fn);
    return ts_cuda_launched(f, cudaPeekAtLastError(), c.stream);
}

static int64_t whole_of(const ts_value *v) { return v->tag == TS_TAG_FLOAT ? (int64_t)v->d : v->i; }

static ts_status arange(ts_frame *f)
{
    double start = number_of(&f->args[0]), step = number_of(&f->args[2]);
    uint64_t from = (uint64_t)whole_of(&f->args[0]), by = (uint64_t)whole_of(&f->args[2]);
    auto real = [=] __device__(int64_t i) { return __dadd_rn(start, __dmul_rn((double)i, step)); };
    auto whole = [=] __device__(int64_t i) { return (int64_t)(from + (uint64_t)i * by); };
    switch (ts_dtype_of(f->rets[0].t)) {
    case TS_F64: return sequence<double>(f, real);
    case TS_F32: return sequence<float>(f, real);
    case TS_I64: return sequence<int64_t>(f, whole);
    case TS_I32: return sequence<int32_t>(f, whole);
    default: return sequence<uint8_t>(f, whole);
    }
}

/** The second half is computed from the end backwards, so both ends are exact and the values are
 * symmetric. */
static ts_status linspace(ts_frame *f)
{
    int64_t n = ts_numel(f->rets[0].t);
    double start = f->args[0].d, end = f->args[1].d,
           step = n > 1 ? (end - start) / (double)(n - 1) : 0;
    auto at = [=] __device__(int64_t i) {
        return i < n / 2 || n == 1 ? __dadd_rn(start, __dmul_rn((double)i, step))
                                   : __dsub_rn(end, __dmul_rn((double)(n - 1 - i), step));
    };
    switch (ts_dtype_of(f->rets[0].t)) {
    case TS_F64: return sequence<double>(f, at);
    case TS_BF16: return sequence<bf16>(f, at);
    case TS_F16: return sequence<f16>(f, at);
    default: return sequence<float>(f, at);
    }
}

static ts_status eye(ts_frame *f)
{
    int64_t columns = ts_size(f->rets[0].t, 1);
    auto at = [=] __device__(int64_t i) { return i / columns == i % columns ? 1 : 0; };
    switch (ts_dtype_of(f->rets[0].t)) {
    case TS_F64: return sequence<double>(f, at);
    case TS_F32: return sequence<float>(f, at);
    case TS_BF16: return sequence<bf16>(f, at);
    case TS_F16: return sequence<f16>(f, at);
    case TS_I64: return sequence<int64_t>(f, at);
    case TS_I32: return sequence<int32_t>(f, at);
    case TS_U8: return sequence<uint8_t>(f, at);
    default: return sequence<bool>(f, at);
    }
}

TS_CUDA_FAMILY(factory,
    {"empty", empty, 0, true},
    {"full", full, 0, true},
    {"fill", fill, 0, true},
    {"arange", arange, TS_DTYPE_BIT(TS_F64) | TS_DTYPE_BIT(TS_F32) | integers, false},
    {"linspace", linspace, floats, false},
    {"eye", eye, 0, false},
)
