/** @file launch_rows.cuh  Host side of rows.cuh: selects the shape for a row length, and
 * launches. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LAUNCH_ROWS_CUH
#define TS_CUDA_LAUNCH_ROWS_CUH

#include "backends/cuda/launch.h"
#include "backends/cuda/rows.cuh"

namespace ts {

inline bool aligned16(const void *p) { return ((uintptr_t)p & 15) == 0; }

/** The number of blocks along x. A number above INT32_MAX becomes UINT32_MAX, which the launch
 * rejects. */
inline unsigned grid_blocks(int64_t n) { return n > INT32_MAX ? UINT32_MAX : (unsigned)n; }

/** rows_dispatch() for rows of up to 8192 elements that are not whole vectors or not 16-byte
 * aligned: loads single elements. */
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

/* The macros below expect these names: v, the vectors of a row; V, the elements of a vector; f. */

/** A row_shape for rows of up to `length` vectors. */
#define TS_ROW_SHAPE(length, WARPS, VECS)                                \
    if (v == length)                                                     \
        return f.template operator()<row_shape<WARPS, VECS, true>, V>(); \
    if (v < length)                                                      \
        return f.template operator()<row_shape<WARPS, VECS>, V>();
/** A row_fit for rows of up to `length` vectors; the code after the macro handles longer rows and
 * shapes that f does not support. */
#define TS_ROW_FIT(length, ...)                                                  \
    if (v <= (length) && row_fit<__VA_ARGS__>::holds(v)) {                       \
        cudaError_t fit = f.template operator()<row_fit<__VA_ARGS__>, V>();      \
        if (fit != cudaErrorNotSupported)                                        \
            return fit;                                                          \
    }
/** A row_fit with FULL: for rows in which every thread has VECS vectors. */
#define TS_ROW_FULL(length, VECS) TS_ROW_FIT(length, VECS, 512, true)

/** rows_dispatch() for rows of up to 96 vectors and for rows that do not fill vectors; longer(v)
 * handles rows of v > 96 vectors. */
template <class T, class F, class G>
cudaError_t rows_dispatch_short(int64_t n, bool aligned, F &&f, G &&longer)
{
    constexpr int V = vec16<T>;
    if (!aligned || n % V)
        return rows_dispatch_single<T>(n, f);
    int64_t v = n / V;
    if (v < 32)
        return f.template operator()<row_lanes, V>();
    TS_ROW_SHAPE(32, 1, 1)
    TS_ROW_SHAPE(64, 1, 2)
    TS_ROW_SHAPE(96, 1, 3)
    return longer(v);
}

/**
 * Calls f.operator()<shape, V>() with the shape for rows of n elements of T and returns its result;
 * cudaErrorNotSupported if no shape holds such rows. aligned: all tensors are 16-byte aligned.
 */
template <class T, class F> cudaError_t rows_dispatch(int64_t n, bool aligned, F &&f)
{
    constexpr int V = vec16<T>;
    return rows_dispatch_short<T>(n, aligned, f, [&](int64_t v) {
        TS_ROW_FIT(2048, 4)
        TS_ROW_FIT(288, 3)
        return cudaErrorNotSupported;
    });
}

/** Launches a kernel of shape S with arguments `args` over `rows` rows of n elements; an access has
 * V elements. */
template <class S, int V, class... P, class... A>
cudaError_t rows_launch(void (*kernel)(P...), int64_t rows, int64_t n, cudaStream_t stream,
                        A... args)
{
    dim3 block = S::block(n / V);
    int each = S::rows_of(block);
    ts_cuda_grid grid = {dim3(grid_blocks((rows + each - 1) / each)), block, 0, 1};
    return launch(kernel, grid, stream, static_cast<P>(args)...);
}

} // namespace ts

#endif
