/** @file launch_rows.cuh  Host side of rows.cuh: which shape a row gets, and the launch. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LAUNCH_ROWS_CUH
#define TS_CUDA_LAUNCH_ROWS_CUH

#include "backends/cuda/launch.h"
#include "backends/cuda/rows.cuh"

namespace ts {

inline bool aligned16(const void *p) { return ((uintptr_t)p & 15) == 0; }

/** Blocks along x. More than any GPU takes stay too many, so that their launch is refused. */
inline unsigned grid_blocks(int64_t n) { return n > INT32_MAX ? UINT32_MAX : (unsigned)n; }

/** rows_dispatch() of rows that vectors do not fill, or that do not begin
 * at 16 bytes: an element an access. */
template <class T, class F> cudaError_t rows_dispatch_single(int64_t n, F &&f)
{
#define TS_SHAPE(most, W, N) \
    if (n <= most)           \
        return f.template operator()<row_shape<W, N>, 1>();
    TS_SHAPE(256, 1, 8)
    TS_SHAPE(1024, 2, 16)
    TS_SHAPE(4096, 8, 16)
    TS_SHAPE(8192, 16, 16)
#undef TS_SHAPE
    return cudaErrorNotSupported;
}

/**
 * Calls f.operator()<shape, V>() for the shape that holds rows of n elements of T,
 * and returns what it returns; cudaErrorNotSupported when no shape holds them. FULL: some lengths
 * have shapes of their own.
 */
template <class T, bool FULL = true, class F>
cudaError_t rows_dispatch(int64_t n, bool aligned, F &&f)
{
    constexpr int V = vec16<T>;
    if (!aligned || n % V)
        return rows_dispatch_single<T>(n, f);
    int64_t v = n / V;
#define TS_SHAPE(most, W, N)                                          \
    if constexpr (FULL)                                               \
        if (v == most)                                                \
            return f.template operator()<row_shape<W, N, true>, V>(); \
    if (v <= most)                                                    \
        return f.template operator()<row_shape<W, N>, V>();
    TS_SHAPE(32, 1, 1)
    TS_SHAPE(64, 1, 2)
    TS_SHAPE(96, 1, 3)
    TS_SHAPE(128, 1, 4)
    TS_SHAPE(192, 2, 3)
    TS_SHAPE(256, sizeof(T) == 4 ? 4 : 2, sizeof(T) == 4 ? 2 : 4)
    TS_SHAPE(512, 4, 4)
    TS_SHAPE(1024, 8, 4)
    TS_SHAPE(2048, 16, 4)
#undef TS_SHAPE
    return cudaErrorNotSupported;
}

/** Launches a kernel of shape S with the parameters `args` over all rows. */
template <class S, class... P, class... A>
cudaError_t rows_launch(void (*kernel)(P...), int64_t rows, cudaStream_t stream, A... args)
{
    ts_cuda_grid grid = {dim3(grid_blocks((rows + S::rows - 1) / S::rows)),
                         dim3(S::threads * S::rows), 0, 1};
    return launch(kernel, grid, stream, static_cast<P>(args)...);
}

} // namespace ts

#endif
