/** @file launch_rows.cuh  Host side of rows.cuh: finds the kernel for a row length in a table of
 * shapes (find_rows()), and launches it (rows_launch()). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LAUNCH_ROWS_CUH
#define TS_CUDA_LAUNCH_ROWS_CUH

#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/rows.cuh"

namespace ts {

inline bool aligned16(const void *p) { return ((uintptr_t)p & 15) == 0; }

/** The number of blocks along x. A number above INT32_MAX becomes UINT32_MAX, which the launch
 * rejects. */
inline unsigned grid_blocks(int64_t n) { return n > INT32_MAX ? UINT32_MAX : (unsigned)n; }

/** An entry of a table of kernels: rows of up to MOST vectors can have the shape S. */
template <int MOST, class S> struct up_to {};

/** The block of a launch, and the number of rows that a block computes; 0: no kernel was found. */
struct row_grid {
    dim3 block;
    int rows = 0;
};

/** A table of kernels. */
template <class... E> struct row_table;
template <int... MOST, class... S> struct row_table<up_to<MOST, S>...> {
    /**
     * Finds the first entry that holds rows of v vectors and whose shape S the caller accepts:
     * take.operator()<S, V>() stores the kernel of shape S with accesses of V elements and returns
     * true, or returns false.
     */
    template <int V, class F> static row_grid find(int64_t v, F &&take)
    {
        row_grid g;
        (void)((v <= MOST && S::holds(v) && take.template operator()<S, V>() &&
                (g.block = S::block(v), g.rows = S::rows_of(g.block))) || ...);
        return g;
    }
};

/** Tables for rows that are not whole vectors; an access is one element. In single_rows, a row of
 * more than 256 elements gets as many warps as it needs. In padded_rows, it gets 2, 8 or 16 warps:
 * more lanes are idle, but the kernels take fewer registers. */
using single_rows = row_table<up_to<256, row_shape<1, 8>>, up_to<8192, row_warps<16, 512>>>;
using padded_rows = row_table<up_to<256, row_shape<1, 8>>, up_to<1024, row_shape<2, 16>>,
                              up_to<4096, row_shape<8, 16>>, up_to<8192, row_shape<16, 16>>>;

/** Tables for rows of whole, aligned vectors: shapes for up to 96 vectors, then the entries E. */
template <class... E>
using aligned_rows =
    row_table<up_to<31, row_lanes>, up_to<32, row_shape<1, 1, true>>,
              up_to<64, row_shape<1, 2, true>>, up_to<64, row_shape<1, 2>>,
              up_to<96, row_shape<1, 3, true>>, up_to<96, row_shape<1, 3>>, E...>;

/** Finds the kernel for rows of n elements of T: in the table ALIGNED if a row consists of whole
 * 16-byte vectors, else in SINGLE. In the first case, all tensors must be 16-byte aligned
 * (on_aligned()). take: as in row_table::find(). */
template <class T, class ALIGNED, class SINGLE, class F> row_grid find_rows(int64_t n, F &&take)
{
    constexpr int V = vec16<T>;
    return n % V ? SINGLE::template find<1>(n, take) : ALIGNED::template find<V>(n / V, take);
}

/** Launches kernel(args...) over `rows` rows with the block g; returns cudaErrorNotSupported if
 * none was found. */
template <class... P, class... A>
cudaError_t rows_launch(void (*kernel)(P...), const row_grid &g, int64_t rows, cudaStream_t stream,
                        A... args)
{
    if (!g.rows)
        return cudaErrorNotSupported;
    ts_cuda_grid grid = {dim3(grid_blocks((rows + g.rows - 1) / g.rows)), g.block, 0, 1};
    return launch(kernel, grid, stream, static_cast<P>(args)...);
}

} // namespace ts

#endif
