/** @file launch_rows.cuh  Host side of rows.cuh: which shape a row gets, and the launch. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LAUNCH_ROWS_CUH
#define TS_CUDA_LAUNCH_ROWS_CUH

#include "backends/cuda/rows.cuh"

namespace ts {

inline bool aligned16(const void *p) { return ((uintptr_t)p & 15) == 0; }

/** rows_once: a block comes for its rows and goes. rows_stay: blocks keep sums over many rows. */
enum rows_way { rows_once, rows_stay };

/**
 * Calls f.operator()<shape, V>() for the shape that holds rows of n elements of T, and returns what it
 * returns; `otherwise` when no shape holds them.
 */
template <class T, rows_way WAY, class F>
cudaError_t rows_dispatch(int64_t n, bool aligned, bool clusters, F &&f, cudaError_t otherwise)
{
    constexpr int V = vec16<T>;
    if (aligned && n % V == 0) {
        int64_t v = n / V;
#define TS_SHAPE_OF(most, W, N, C, width) \
    if (v <= most)                        \
        return f.template operator()<row_shape<W, N, C>, width>();
#define TS_SHAPE(most, W, N, C) TS_SHAPE_OF(most, W, N, C, V)
        if constexpr (WAY == rows_once) {
            TS_SHAPE(32, 1, 1, 1)
            TS_SHAPE(64, 1, 2, 1)
            TS_SHAPE(96, 1, 3, 1)
            TS_SHAPE(128, 1, 4, 1)
            TS_SHAPE(256, 2, 4, 1)
            TS_SHAPE(512, 4, 4, 1)
            TS_SHAPE(1024, 8, 4, 1)
            if (clusters) {
                TS_SHAPE(2048, 8, 4, 2)
                TS_SHAPE(4096, 8, 4, 4)
                TS_SHAPE(8192, 8, 4, 8)
                TS_SHAPE(16384, 16, 4, 8)
                TS_SHAPE(32768, 16, 8, 8)
            } else {
                TS_SHAPE(2048, 16, 4, 1)
                TS_SHAPE(4096, 16, 8, 1)
            }
        } else { /* 16 elements a thread */
            constexpr int N = 16 / V;
            TS_SHAPE(32 * N, 1, N, 1)
            TS_SHAPE(64 * N, 2, N, 1)
            if (v == 96 * N)
                return f.template operator()<row_shape<3, N, 1>, V>();
            TS_SHAPE(128 * N, 4, N, 1)
            TS_SHAPE(256 * N, 8, N, 1)
            TS_SHAPE(512 * N, 16, N, 1)
            if (clusters) {
                TS_SHAPE(1024 * N, 16, N, 2)
                TS_SHAPE(2048 * N, 16, N, 4)
                TS_SHAPE(4096 * N, 16, N, 8)
                TS_SHAPE(8192 * N, 16, 2 * N, 8)
            }
        }
    } else if constexpr (WAY == rows_once) {
        int64_t v = n;
        TS_SHAPE_OF(256, 1, 8, 1, 1)
        TS_SHAPE_OF(1024, 2, 16, 1, 1)
        TS_SHAPE_OF(4096, 8, 16, 1, 1)
        TS_SHAPE_OF(8192, 16, 16, 1, 1)
        if (clusters) {
            TS_SHAPE_OF(65536, 16, 16, 8, 1)
        }
#undef TS_SHAPE
#undef TS_SHAPE_OF
    }
    return otherwise;
}

/** Launches a kernel of shape S over `blocks` groups of rows (a cluster each where S has one). */
template <class S, class... P, class... A>
cudaError_t rows_launch(void (*kernel)(P...), int64_t blocks, int shared, cudaStream_t stream, A... args)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(blocks * S::cluster));
    config.blockDim = dim3(S::threads * S::rows);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = S::cluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.attrs = &cluster;
    config.numAttrs = S::cluster > 1;
    return cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}

} // namespace ts

#endif
