/** @file copy.cu  Copies and conversions between dtypes. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/copy.cuh"
#include "backends/cuda/copy_fn.cuh"
#include "backends/cuda/loops.cuh"
#include "backends/cuda/transpose.cuh"

using namespace ts;

/** Calls f.operator()<element type>() for a dtype. */
template <class F> static ts_status with_type(ts_dtype dtype, F &&f)
{
    switch (dtype) {
    case TS_F64: return f.template operator()<double>();
    case TS_F32: return f.template operator()<float>();
    case TS_BF16: return f.template operator()<bf16>();
    case TS_F16: return f.template operator()<f16>();
    case TS_I64: return f.template operator()<int64_t>();
    case TS_I32: return f.template operator()<int32_t>();
    case TS_U8: return f.template operator()<uint8_t>();
    default: return f.template operator()<bool>();
    }
}

enum { LARGE = 1 << 20 /* bytes from which cudaMemcpyAsync is faster than a kernel */ };

ts_status ts::copy_space(ts_frame *f, const ts_space &space)
{
    ts_dtype to = space.operand[0].dtype, from = space.operand[1].dtype;
    int a, b;
    int64_t item = (int64_t)ts_dtype_size(to), bytes = space.numel * item;
    const ts_operand &out = space.operand[0], &in = space.operand[1];
    if (to == from && space.ndim == 1 && !in.host && out.strides[0] == item &&
        in.strides[0] == item && bytes >= LARGE && !ts_cuda_describing())
        return on_device(f, [&](const call &c) {
            return cudaMemcpyAsync(out.data, in.data, (size_t)bytes, cudaMemcpyDeviceToDevice,
                                   c.stream);
        });
    auto move = [&]<class E>() {
        return is_transposition(space, &a, &b) ? transpose_copy<E>(f, space, a, b)
                                    : loop_run<fn::same_fn, E, E>(f, space, fn::same_fn{});
    };
    if (to == from)
        switch (ts_dtype_size(to)) {
        case 8: return move.template operator()<int64_t>();
        case 4: return move.template operator()<int32_t>();
        case 2: return move.template operator()<int16_t>();
        default: return move.template operator()<int8_t>();
        }
    return with_type(to, [&]<class R>() {
        return with_type(from, [&]<class A>() {
            return loop_run<fn::convert_fn<R>, R, A>(f, space, fn::convert_fn<R>{});
        });
    });
}

ts_status ts::copy_part(ts_frame *f, const layout &to, const layout &from, const int64_t *sizes,
                        int ndim)
{
    const layout *sides[] = {&to, &from};
    ts_space space = {};
    space.operands = 2;
    space.numel = 1;
    for (int k = 0; k < 2; k++) {
        space.operand[k].data = sides[k]->data;
        space.operand[k].dtype = sides[k]->dtype;
    }
    for (int d = ndim - 1; d >= 0; d--) {
        if (sizes[d] == 1)
            continue;
        int n = space.ndim;
        bool even = n > 0;
        int64_t steps[2];
        for (int k = 0; k < 2; k++) {
            steps[k] = sides[k]->strides[d] * (int64_t)ts_dtype_size(sides[k]->dtype);
            even = even && steps[k] == space.operand[k].strides[n - 1] * space.sizes[n - 1];
        }
        space.numel *= sizes[d];
        if (even) {
            space.sizes[n - 1] *= sizes[d];
            continue;
        }
        space.sizes[n] = sizes[d];
        for (int k = 0; k < 2; k++)
            space.operand[k].strides[n] = steps[k];
        space.ndim++;
    }
    if (!space.ndim) { /* one element */
        space.ndim = 1;
        space.sizes[0] = 1;
    }
    return space.numel ? copy_space(f, space) : TS_OK;
}

static ts_status copy(ts_frame *f)
{
    ts_space space;
    TS_CUDA_TRY(ts_kernel_space(f, &space));
    return copy_space(f, space);
}

TS_CUDA_FAMILY(copy,
    {"copy", copy, 0, true},
    {"contiguous", copy, 0, true},
    {"to", copy, 0, true},
)
