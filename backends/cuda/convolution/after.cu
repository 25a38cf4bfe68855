/** @file after.cu  The calls after a convolution as one pass over its result. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/convolution/gemm.cuh"
#include "backends/cuda/image.cuh"
#include "backends/cuda/runtime/launch.h"

namespace ts {

enum { AFTER_THREADS = 256, AFTER_PIXELS = 8 /* of a thread */ };

/** A thread computes V channels of pixels blockDim.y apart, of `each` per block. */
template <class T, int V>
static __global__ void __launch_bounds__(AFTER_THREADS)
    conv_after_kernel(const __grid_constant__ conv_after after, T *to, int64_t pixels,
                      int64_t channels, int64_t each)
{
    int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V,
            first = blockIdx.y * each + threadIdx.y, end = min((blockIdx.y + 1) * each, pixels);
    if (c >= channels)
        return;
#pragma unroll 4
    for (int64_t p = first; p < end; p += blockDim.y) {
        auto *at = reinterpret_cast<word_of<vec<T, V>> *>(to + p * channels + c);
        float x[V], added[V] = {};
        unpack<T, V>(from_word<vec<T, V>>(*at), x);
        if (after.added)
            load_wide<T, V>(added, (const T *)after.added + p * channels + c);
        after.apply<T>(x, c, V, added);
        *at = to_word(pack<T, V>(x));
    }
}

template <class T, int V>
static cudaError_t apply(const conv_after &after, int64_t pixels, int64_t channels, T *to,
                         cudaStream_t stream)
{
    unsigned columns = 1;
    while (columns < channels / V && columns < 32)
        columns *= 2;
    unsigned rows = AFTER_THREADS / columns;
    int64_t each = (int64_t)rows * AFTER_PIXELS, blocks = (pixels + each - 1) / each;
    if (blocks > 65535) {
        each *= (blocks + 65534) / 65535;
        blocks = (pixels + each - 1) / each;
    }
    return launch(conv_after_kernel<T, V>,
                  {dim3((unsigned)((channels / V + columns - 1) / columns), (unsigned)blocks),
                   dim3(columns, rows), 0, 1},
                  stream, after, to, pixels, channels, each);
}

} // namespace ts

using namespace ts;

ts_status ts_cuda_conv_apply(ts_frame *f, const ts_cuda_conv_after *after, int64_t pixels,
                             int64_t channels, void *to)
{
    const conv_after a = conv_after::of(after, channels);
    auto run = [&]<class T>(cudaStream_t stream) {
        return in_vectors<T>(channels, {to, a.added})
                   ? apply<T, vec16<T>>(a, pixels, channels, (T *)to, stream)
                   : apply<T, 1>(a, pixels, channels, (T *)to, stream);
    };
    return on_device(f, [&](const call &at) {
        return ts_kernel_dtype(f) == TS_BF16 ? run.template operator()<bf16>(at.stream)
                                             : run.template operator()<f16>(at.stream);
    });
}
