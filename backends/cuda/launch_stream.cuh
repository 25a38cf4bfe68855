/** @file launch_stream.cuh  Host side of row_stream.cuh: finds the kernel for a row length in
 * tables of shapes (find_stream()), and launches it (stream_clusters(), then stream_launch()). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LAUNCH_STREAM_CUH
#define TS_CUDA_LAUNCH_STREAM_CUH

#include "backends/cuda/launch_rows.cuh"
#include "backends/cuda/row_stream.cuh"
#include "backends/cuda/runtime/runtime.h"

namespace ts {

/** The blocks of a launch; threads is 0 if no kernel was found. */
struct stream_grid {
    unsigned threads, cluster, shared; /* threads of a block; blocks of a row; bytes of dynamic
                                          shared memory of a block */
};

/** The grid of a launch of `clusters` clusters. */
inline ts_cuda_grid stream_blocks(const stream_grid &g, int64_t clusters)
{
    return {dim3((unsigned)(clusters * g.cluster)), dim3(g.threads), g.shared, g.cluster};
}

/** Number of clusters for a launch: as many as can be resident at once, at most one per row; 0 if
 * none can be resident or no kernel was found. */
template <class... P>
int64_t stream_clusters(void (*kernel)(P...), const stream_grid &g, int64_t rows)
{
    ts_cuda_grid grid = stream_blocks(g, 1);
    int64_t most = g.threads ? ts_cuda_clusters((const void *)kernel, &grid) : 0;
    return rows < most ? rows : most;
}

/** Launches kernel(args...) with a number of clusters from stream_clusters(); cudaErrorNotSupported
 * if that is 0. */
template <class... P, class... A>
cudaError_t stream_launch(void (*kernel)(P...), const stream_grid &g, int64_t clusters,
                          cudaStream_t stream, A... args)
{
    return clusters < 1 ? cudaErrorNotSupported
                        : launch(kernel, stream_blocks(g, clusters), stream,
                                 static_cast<P>(args)...);
}

/** Which kernels of an entry exist. EXACT: a kernel for rows that fill the shape; it has no
 * branches, so more loads are in flight, and it needs more registers. ANY: a kernel for shorter
 * rows, too. */
enum stream_fill { EXACT = 1, ANY = 2, BOTH = EXACT | ANY };

/** An entry of a table of kernels: rows of up to MOST vectors, which CLUSTER blocks must share
 * evenly, can have this stream_shape (row_stream.cuh). */
template <stream_fill FILL, int MOST, int THREADS, int VECS, int CLUSTER, int STAGES, int BLOCKS>
struct stream {
    using exact = stream_shape<THREADS, VECS, CLUSTER, STAGES, BLOCKS, true>;
    using any = stream_shape<THREADS, VECS, CLUSTER, STAGES, BLOCKS>;

    /** If the entry has a kernel for rows of v vectors, calls take.operator()<shape>(), which
     * stores the kernel and returns the bytes of dynamic shared memory that it needs; then sets g
     * and returns true. */
    template <class F> static bool find(int64_t v, stream_grid &g, F &&take)
    {
        unsigned bytes = 0;
        if constexpr ((FILL & EXACT) != 0) {
            static_assert(THREADS * VECS * CLUSTER == MOST, "what the shape holds");
            if (v == MOST)
                bytes = take.template operator()<exact>();
        }
        if constexpr ((FILL & ANY) != 0)
            if (!bytes && v <= MOST && v % CLUSTER == 0)
                bytes = take.template operator()<any>();
        if (bytes)
            g = {THREADS, CLUSTER, bytes};
        return bytes;
    }
};

/** A table of kernels for rows of more than MORE_THAN vectors. Kernels in registers (rows.cuh) are
 * faster for shorter rows. */
template <int MORE_THAN, class... E> struct streams {
    template <class F> static stream_grid find(int64_t v, F &&take)
    {
        stream_grid g = {};
        (void)(v > MORE_THAN && (E::find(v, g, take) || ...));
        return g;
    }
};

/**
 * Kinds of kernels, which select the table. rows_wide_*: rows too long for registers; `kept` means
 * that a thread keeps data per column, such as weights, in registers.
 */
enum stream_way {
    rows_wide,            /* one input */
    rows_wide_log,        /* one input; writing a row needs no exponentials (log_softmax) */
    rows_wide_held,       /* one input; for run_held() */
    rows_wide_kept,       /* one input, with data per column */
    rows_wide_pairs,      /* two inputs */
    rows_wide_pairs_kept, /* two inputs, with data per column */
    rows_sum              /* two inputs, rows of any length; a thread keeps sums over many rows */
};

/** The table of a kind for elements of ITEM bytes. */
template <stream_way WAY, int ITEM> struct stream_table;

/* clang-format off */
template <> struct stream_table<rows_wide, 2>
    : streams<4096, stream<ANY, 5120, 512, 5, 2, 3, 1>, stream<ANY, 12288, 512, 6, 4, 3, 1>,
              stream<BOTH, 16384, 512, 4, 8, 3, 1>> {};
template <> struct stream_table<rows_wide_log, 2>
    : streams<4096, stream<ANY, 12288, 512, 6, 4, 3, 1>, stream<BOTH, 16384, 512, 4, 8, 3, 1>> {};
template <> struct stream_table<rows_wide, 4>
    : streams<4096, stream<EXACT, 10240, 512, 5, 4, 3, 1>, stream<ANY, 12288, 512, 6, 4, 3, 1>,
              stream<EXACT, 16384, 256, 8, 8, 5, 1>, stream<ANY, 16384, 512, 8, 4, 3, 1>,
              stream<ANY, 20480, 512, 5, 8, 3, 1>, stream<BOTH, 32768, 256, 8, 16, 3, 2>> {};
template <> struct stream_table<rows_wide_log, 4>
    : streams<4096, stream<EXACT, 10240, 512, 5, 4, 3, 1>, stream<ANY, 12288, 512, 6, 4, 3, 1>,
              stream<BOTH, 16384, 512, 8, 4, 3, 1>, stream<ANY, 20480, 512, 5, 8, 3, 1>,
              stream<BOTH, 32768, 256, 8, 16, 3, 2>> {};

/* a thread holds 64 elements of bf16 or f16, or 16 of f32 */
template <int THREADS>
using held_streams =
    streams<2048, stream<ANY, 4096, THREADS, 4096 / THREADS, 1, 3, 1>,
            stream<ANY, 8192, THREADS, 4096 / THREADS, 2, 3, 1>,
            stream<ANY, 16384, THREADS, 4096 / THREADS, 4, 3, 1>,
            stream<ANY, 32768, THREADS, 4096 / THREADS, 8, 3, 1>>;
template <> struct stream_table<rows_wide_held, 2> : held_streams<512> {};
template <> struct stream_table<rows_wide_held, 4> : held_streams<1024> {};

template <> struct stream_table<rows_wide_kept, 2>
    : streams<2048, stream<ANY, 3584, 128, 7, 4, 3, 4>, stream<BOTH, 4096, 256, 4, 4, 3, 2>,
              stream<ANY, 4096, 256, 8, 2, 3, 1>, stream<EXACT, 5120, 256, 5, 4, 4, 2>,
              stream<ANY, 5120, 128, 8, 8, 3, 4>, stream<BOTH, 6144, 128, 6, 8, 4, 4>,
              stream<EXACT, 7168, 256, 7, 4, 3, 1>, stream<ANY, 7168, 128, 7, 8, 3, 4>,
              stream<BOTH, 8192, 128, 8, 8, 3, 4>, stream<ANY, 8192, 256, 8, 4, 3, 1>,
              stream<EXACT, 16384, 256, 4, 16, 3, 2>, stream<ANY, 16384, 256, 8, 8, 3, 1>> {};
template <> struct stream_table<rows_wide_kept, 4>
    : streams<4096, stream<EXACT, 5120, 256, 5, 4, 3, 2>, stream<EXACT, 6144, 256, 6, 4, 3, 2>,
              stream<EXACT, 7168, 256, 7, 4, 3, 2>, stream<BOTH, 8192, 256, 8, 4, 3, 2>,
              stream<EXACT, 10240, 256, 5, 8, 3, 2>, stream<BOTH, 16384, 256, 8, 8, 3, 2>,
              stream<EXACT, 32768, 512, 4, 16, 3, 1>, stream<ANY, 32768, 256, 8, 16, 3, 2>> {};
template <> struct stream_table<rows_wide_pairs_kept, 2>
    : streams<1024, stream<ANY, 2048, 512, 4, 1, 3, 1>, stream<ANY, 4096, 512, 4, 2, 3, 1>,
              stream<BOTH, 8192, 512, 4, 4, 3, 1>, stream<BOTH, 16384, 512, 4, 8, 3, 1>> {};
template <> struct stream_table<rows_wide_pairs_kept, 4>
    : streams<4096, stream<BOTH, 8192, 512, 4, 4, 3, 1>, stream<BOTH, 16384, 512, 4, 8, 3, 1>,
              stream<BOTH, 32768, 512, 4, 16, 3, 1>> {};

template <class... E>
using wide_pairs = streams<4096, stream<ANY, 8192, 256, 4, 8, 3, 2>,
                           stream<ANY, 16384, 256, 4, 16, 3, 2>, E...>;
template <> struct stream_table<rows_wide_pairs, 2> : wide_pairs<> {};
template <> struct stream_table<rows_wide_pairs, 4>
    : wide_pairs<stream<ANY, 32768, 512, 4, 16, 3, 1>> {};

/* a thread keeps sums of 2 to 8 vectors of columns */
template <> struct stream_table<rows_sum, 2>
    : streams<0, stream<EXACT, 96, 32, 3, 1, 4, 12>, stream<ANY, 96, 32, 4, 1, 4, 12>,
              stream<BOTH, 128, 64, 2, 1, 4, 10>, stream<EXACT, 160, 32, 5, 1, 4, 8>,
              stream<ANY, 192, 64, 3, 1, 4, 8>, stream<ANY, 256, 64, 4, 1, 4, 5>,
              stream<BOTH, 320, 64, 5, 1, 4, 6>, stream<ANY, 384, 128, 3, 1, 4, 4>,
              stream<ANY, 512, 128, 4, 1, 4, 3>, stream<EXACT, 640, 128, 5, 1, 3, 3>,
              stream<ANY, 768, 128, 6, 1, 3, 2>, stream<BOTH, 1024, 128, 4, 2, 4, 3>,
              stream<ANY, 1024, 256, 4, 1, 3, 2>, stream<BOTH, 1280, 128, 5, 2, 4, 2>,
              stream<ANY, 1536, 128, 3, 4, 4, 4>, stream<BOTH, 2048, 128, 4, 4, 4, 3>,
              stream<EXACT, 2560, 128, 5, 4, 4, 2>, stream<BOTH, 3072, 128, 6, 4, 4, 2>,
              stream<BOTH, 4096, 128, 4, 8, 4, 3>, stream<EXACT, 5120, 128, 5, 8, 4, 2>,
              stream<ANY, 6144, 256, 6, 4, 3, 1>, stream<ANY, 8192, 256, 8, 4, 3, 1>,
              stream<ANY, 12288, 256, 6, 8, 3, 1>, stream<ANY, 16384, 256, 8, 8, 3, 1>> {};
template <> struct stream_table<rows_sum, 4>
    : streams<0, stream<ANY, 128, 64, 2, 1, 4, 8>, stream<ANY, 192, 64, 3, 1, 5, 6>,
              stream<ANY, 256, 128, 2, 1, 5, 5>, stream<ANY, 512, 128, 4, 1, 4, 4>,
              stream<ANY, 768, 128, 6, 1, 4, 3>, stream<ANY, 1024, 128, 4, 2, 5, 2>,
              stream<ANY, 1024, 256, 4, 1, 3, 2>, stream<EXACT, 1280, 256, 5, 1, 4, 1>,
              stream<ANY, 1536, 128, 6, 2, 4, 3>, stream<ANY, 2048, 256, 4, 2, 5, 1>,
              stream<ANY, 3072, 128, 6, 4, 4, 3>, stream<ANY, 4096, 128, 4, 8, 4, 3>,
              stream<EXACT, 5120, 128, 5, 8, 3, 3>, stream<BOTH, 6144, 256, 6, 4, 3, 1>,
              stream<BOTH, 8192, 128, 8, 8, 3, 2>, stream<ANY, 16384, 512, 4, 8, 3, 1>,
              stream<ANY, 32768, 512, 4, 16, 3, 1>> {};
/* clang-format on */

/** An entry of an odd_table: rows of any number of elements, up to MOST vectors, have shape S. */
template <int MOST, class S> struct odd_up_to {
    template <class F> static bool find(int64_t v, int64_t rows, stream_grid &g, F &&take)
    {
        if (v > MOST)
            return false;
        int cluster = 1; /* as many blocks as the row needs, and more if rows are few */
        while (cluster < S::cluster && (v > (int64_t)cluster * S::threads * S::vecs ||
                                        (rows * cluster < 64 && v > cluster * S::threads)))
            cluster *= 2;
        g = {(unsigned)S::threads, (unsigned)cluster, (unsigned)take.template operator()<S>()};
        return true;
    }
};
/** A table of kernels for rows of any number of elements. */
template <class... E> struct odd_streams {
    template <class F> static stream_grid find(int64_t v, int64_t rows, F &&take)
    {
        stream_grid g = {};
        (void)(E::find(v, rows, g, take) || ...);
        return g;
    }
};

/** The table of a kind for rows for which the stream_table has no shape: rows that are not whole
 * vectors, rows whose vectors no cluster shares evenly, and rows of at most MORE_THAN vectors. */
template <stream_way WAY, int ITEM>
struct odd_table : odd_streams<odd_up_to<65536, odd_stream<512, 8, 16, 3, 1>>> {};
template <> struct odd_table<rows_wide_held, 2>
    : odd_streams<odd_up_to<49152, odd_stream<512, 6, 16, 3, 1>>> {};
template <int ITEM> struct odd_table<rows_wide_pairs, ITEM>
    : odd_streams<odd_up_to<32768, odd_stream<512, 4, 16, 3, 1>>> {};
/* a thread has registers for weights and biases of 6 vectors of bf16 or f16 */
template <> struct odd_table<rows_wide_kept, 2>
    : odd_streams<odd_up_to<24576, odd_stream<256, 6, 16, 3, 1>>> {};
template <> struct odd_table<rows_wide_kept, 4> : odd_table<rows_wide_pairs, 4> {};
template <> struct odd_table<rows_wide_pairs_kept, 2> : odd_table<rows_wide_kept, 2> {};
template <> struct odd_table<rows_wide_pairs_kept, 4> : odd_table<rows_wide_pairs, 4> {};
template <class... E>
using odd_sums = odd_streams<odd_up_to<128, odd_stream<64, 2, 1, 4, 8>>,
                             odd_up_to<512, odd_stream<128, 4, 1, 3, 3>>, E...>;
template <> struct odd_table<rows_sum, 2>
    : odd_sums<odd_up_to<16384, odd_stream<256, 4, 16, 3, 1>>> {};
template <> struct odd_table<rows_sum, 4>
    : odd_sums<odd_up_to<16384, odd_stream<256, 4, 16, 3, 2>>,
               odd_up_to<32768, odd_stream<512, 4, 16, 3, 1>>> {};

/**
 * Finds the kernel for `rows` rows of n elements of T. take.operator()<shape>() stores the kernel
 * and returns the bytes of dynamic shared memory that it needs. If rows are whole vectors, tensors
 * must be 16-byte aligned (on_aligned()). Finds none if no shape holds the rows, or if the device
 * has no clusters. A caller that has kernels in registers (rows.cuh) tries them first.
 */
template <class T, stream_way WAY, class F>
stream_grid find_stream(int64_t n, int64_t rows, const ts_cuda_device *d, F &&take)
{
    constexpr int V = vec16<T>;
    if (!d->clusters)
        return {};
    if (n % V == 0)
        if (stream_grid g = stream_table<WAY, sizeof(T)>::find(n / V, take); g.threads)
            return g;
    return odd_table<WAY, sizeof(T)>::find((n + V - 1) / V, rows, take);
}

} // namespace ts

#endif
