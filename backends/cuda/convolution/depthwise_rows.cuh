/**
 * @file depthwise_rows.cuh
 * Depthwise convolutions of K x K taps with stride S, for depthwise.cu. A thread computes V
 * channels of ROWS_COLUMNS adjacent columns of the result (a strip; with a dilation, columns of one
 * phase, see rows_axis) and moves down its rows, with the weight in registers. It adds the products
 * of a row of pixels to the sums of all rows of the result that need these pixels. The sums are in
 * registers, too, and each step moves them by one row, so a thread reads a pixel once. The block
 * copies pixels to shared memory some rows ahead.
 *
 * The copies, loads and stores also serve depthwise_spread.cu and depthwise_weight_rows.cuh.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_DEPTHWISE_ROWS_CUH
#define TS_CUDA_DEPTHWISE_ROWS_CUH

#include "backends/cuda/convolution/gemm.h"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/types.cuh"

namespace ts {

enum {
    ROWS_LANES = 32,        /* threads of a strip of columns, with adjacent channels; with few
                               channels a strip has 8 threads (template parameter LANES) */
    ROWS_COLUMNS = 4,       /* columns of a strip */
    ROWS_STRIPS = 8,        /* maximum warps of a block, which has 2, 4 or 8 */
    ROWS_STAGES = 4,        /* pairs of rows of pixels in shared memory */
    ROWS_MEMORY = 96 << 10, /* maximum bytes of shared memory; all GPUs from sm_80 on have them */
    SHIFTED = 2             /* a value of COPY, for an odd number of channels of 2 bytes: copies of
                               4 bytes, and pixels that may begin in the middle of such a word */
};

/** Rows or columns of a call. `every` is the dilation. Positions whose indices have the same
 * remainder modulo `every` form a phase. Position t of phase f is f + t * every, and its tap j
 * reads pixel
 *     f * S + base + (t * S + j) * every.
 * S > 1 requires every = 1. Position i of the result is written to start + i * step. The positions
 * of a phase are divided into pieces. */
struct rows_axis {
    int count, base, size, every; /* count: positions of all phases; size: of the image */
    int start, step, to_size;     /* to_size: of the image of the result */
    int pieces, length;           /* pieces of a phase; positions of a piece */
};

/** A call, as the kernels get it. */
struct rows_call {
    rows_axis h, w;      /* rows and columns */
    int channels, sets;  /* sets: number of sets of LANES * V channels; a block computes one set */
    int64_t kernel_step; /* from a tap to the next one, in elements of the weight */
};

/** A pixel in shared memory: the channels of one set. COPY: bytes of a copy, 16 or 4, or
 * SHIFTED. */
template <class T, int V, int COPY, int LANES = ROWS_LANES> struct rows_pixel {
    static constexpr int WORD = COPY == SHIFTED ? 4 : COPY, /* bytes of a copy */
        BYTES = LANES * V * (int)sizeof(T) + (COPY == SHIFTED ? 4 : 0), /* in shared memory */
        COPIES = BYTES / WORD;
};

/** Copies 4 or 16 bytes to shared memory: `there` bytes from memory, then zeros. */
template <int BYTES>
__device__ __forceinline__ void rows_copy(uint32_t to, const void *from, int there)
{
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(there) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                     "r"(there) : "memory");
}

/** Loads a vector from shared memory. The compiler would split the load of a vec into one per
 * element. */
template <class W> __device__ __forceinline__ W rows_load(uint32_t from)
{
    W word;
    if constexpr (sizeof(W) == 2)
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(word) : "r"(from));
    else if constexpr (sizeof(W) == 4)
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from));
    else
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(word.x), "=r"(word.y) : "r"(from));
    return word;
}

/** Stores a vector in global memory if `there`, without a branch. */
template <class W> __device__ __forceinline__ void rows_store(void *to, W word, bool there)
{
    if constexpr (sizeof(W) == 2)
        asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n@p st.global.b16 [%0], %1;\n}" ::"l"(
                         to), "h"(word), "r"((int)there) : "memory");
    else if constexpr (sizeof(W) == 4)
        asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n@p st.global.b32 [%0], %1;\n}" ::"l"(
                         to), "r"(word), "r"((int)there) : "memory");
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\n"
                     "@p st.global.v2.b32 [%0], {%1, %2};\n}" ::"l"(to), "r"(word.x), "r"(word.y),
                     "r"((int)there) : "memory");
}

/** Blocks have LANES threads per strip. They are numbered by set of channels (fastest), piece and
 * phase of the columns, piece and phase of the rows, plane. weight: address, in a dense weight
 * (taps, channels), of the tap that is added first; bias: (channels), or NULL. The sum of an
 * element starts with its bias, then adds rows of taps in their order. The bound on resident blocks
 * leaves as many registers as the weight and the sums need. */
template <class T, int V, int K, int S, int COPY, int LANES>
static __global__ void __launch_bounds__(32 * ROWS_STRIPS, K == 3 ? 3 : K == 5 ? 2 : 1)
    rows_kernel(const __grid_constant__ rows_call q, const T *__restrict__ image,
                const T *__restrict__ weight, const T *__restrict__ bias, T *__restrict__ to)
{
    using A = wide_t<T>;
    using piece = word_of<vec<T, V>>;
    using pixel = rows_pixel<T, V, COPY, LANES>;
    constexpr int P = ROWS_COLUMNS, SEEN = (P - 1) * S + K, RING = (K + S - 1) / S,
                  SET = LANES * V, EACH = pixel::WORD / (int)sizeof(T),
                  STEPS = 2 / S; /* rows of the result per pair of rows of pixels */
    extern __shared__ __align__(16) unsigned char rows_memory[];
    const rows_axis &h = q.h, &w = q.w;
    int lane = threadIdx.x % LANES, strip = threadIdx.x / LANES,
        strips = blockDim.x / LANES, pixels = (strips * P - 1) * S + K;
    unsigned rest = blockIdx.x;
    auto next = [&](int n) {
        unsigned whole = rest / (unsigned)n;
        int left = (int)(rest - whole * (unsigned)n);
        rest = whole;
        return left;
    };
    int set = next(q.sets) * SET, left = next(w.pieces) * w.length, x_phase = next(w.every),
        top = next(h.pieces) * h.length, y_phase = next(h.every), plane = (int)rest,
        rows = min(h.length, (h.count - y_phase + h.every - 1) / h.every - top),
        columns = (w.count - x_phase + w.every - 1) / w.every - left;
    if (columns <= 0 || rows <= 0)
        return;

    /* Copies of pairs of rows. With copies of 16 bytes, a thread copies the same bytes of each row;
     * with others, a warp copies a pixel at a time. */
    int y = y_phase * S + h.base + top * S * h.every, x = x_phase * S + w.base + left * S * w.every,
        pixel_step = w.every * q.channels, copied = y, end = y + (S * rows + K - S) * h.every;
    int64_t line_step = (int64_t)h.every * w.size * q.channels;
    const T *line = image + (((int64_t)plane * h.size + y) * w.size + x) * q.channels + set;
    uint32_t memory = shared_address(rows_memory), row = (uint32_t)(pixels * pixel::BYTES),
             filling = 0, reading = 0;
    constexpr int FEWEST = ((64 / LANES * P - 1) * S + K) * pixel::COPIES, /* of 64 threads */
                  SLOTS = COPY == 16 ? (FEWEST + 63) / 64 : 0;
    int slot_from[SLOTS + 1], slot_there[SLOTS + 1];
#pragma unroll
    for (int k = 0; k < SLOTS; k++) {
        int e = (int)(threadIdx.x + k * blockDim.x), i = e / pixel::COPIES,
            c = e % pixel::COPIES * EACH, at = x + i * w.every;
        bool there = at >= 0 && at < w.size && set + c < q.channels;
        slot_there[k] = e >= pixels * pixel::COPIES ? -1 : there ? 16 : 0;
        slot_from[k] = there ? (i * pixel_step + c) * (int)sizeof(T) : 0;
    }
    auto copy_rows = [&] {
#pragma unroll
        for (int r = 0; r < 2; r++, copied += h.every, line += line_step) {
            if (copied < 0 || copied >= h.size || copied >= end)
                continue;
            uint32_t place = memory + filling + (uint32_t)r * row;
            if constexpr (SLOTS > 0) {
#pragma unroll
                for (int k = 0; k < SLOTS; k++)
                    if (slot_there[k] >= 0)
                        rows_copy<16>(place + (threadIdx.x + k * blockDim.x) * 16,
                                      (const char *)line + slot_from[k], slot_there[k]);
            } else {
                const T *from = line + (int64_t)strip * pixel_step;
                int c = lane * EACH, at = x + strip * w.every;
                if (COPY == SHIFTED) /* `strips` is even, so the next pixels are shifted as well */
                    c -= (int)((uintptr_t)from / 2 & 1);
                int there = max(0, min(4, (q.channels - set - c) * (int)sizeof(T)));
                for (int word = lane; word < pixel::COPIES; word += LANES, c += SET) {
                    uint32_t place_of = place + (uint32_t)(strip * pixel::BYTES + word * 4);
                    const T *pixel_of = from + c;
                    int column = at;
                    for (int i = strip; i < pixels; i += strips) {
                        rows_copy<4>(place_of, pixel_of,
                                     column >= 0 && column < w.size ? there : 0);
                        place_of += (uint32_t)(strips * pixel::BYTES);
                        pixel_of += strips * pixel_step;
                        column += strips * w.every;
                    }
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        filling = filling == 2 * row * (ROWS_STAGES - 1) ? 0 : filling + 2 * row;
    };
#pragma unroll
    for (int k = 0; k < ROWS_STAGES - 1; k++)
        copy_rows();

    int c = set + lane * V;
    columns = c < q.channels ? columns - strip * P : 0;
    c = c < q.channels ? c : 0;
    A ks[K][K][V], first[V] = {};
    const T *tap = weight + c;
#pragma unroll
    for (int j = 0; j < K * K; j++, tap += q.kernel_step)
        unpack<T, V>(from_word<vec<T, V>>(__ldg(reinterpret_cast<const piece *>(tap))),
                     ks[j / K][j % K]);
    if (bias)
        unpack<T, V>(from_word<vec<T, V>>(__ldg(reinterpret_cast<const piece *>(bias + c))), first);
    if constexpr (is_half<T>) { /* else the compiler keeps halves and unpacks them for each row */
#pragma unroll
        for (int j = 0; j < K * K * V; j++)
            asm volatile("" : "+f"(ks[j / V / K][j / V % K][j % V]));
    }

    T *store = to + (((int64_t)plane * h.to_size + h.start + (y_phase + top * h.every) * h.step) *
                         w.to_size + w.start + (x_phase + (left + strip * P) * w.every) * w.step) *
                        q.channels + c;
    int64_t store_line = (int64_t)h.every * h.step * w.to_size * q.channels,
            store_pixel = (int64_t)w.every * w.step * q.channels;
    uint32_t mine = memory + (uint32_t)(strip * P * S * pixel::BYTES + lane * V * (int)sizeof(T));
    /* SHIFTED: 1 if the thread's first pixel in row y begins in the middle of a word */
    int odd = (int)((uintptr_t)image / 2 + (unsigned)(plane * h.size + y) * (unsigned)w.size +
                    (unsigned)(x + strip * P * S * w.every)) & 1;

    A sum[RING][P][V] = {};
    for (int i = 0; i < rows + RING - 1; i += STEPS) { /* the pixels that row i begins with */
        asm volatile("cp.async.wait_group %0;" ::"n"(ROWS_STAGES - 2) : "memory");
        __syncthreads();
        copy_rows();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int s = S == 1 ? 0 : r; /* taps s, s + S, ... use these pixels, for RING rows */
            if (y >= 0 && y < h.size) {
                A xs[SEEN][V];
                uint32_t from[2];
                from[0] = from[1] = mine + reading + (uint32_t)r * row;
                if constexpr (COPY == SHIFTED) {
                    from[0] += 2 * odd;
                    from[1] += 2 * ((odd + w.every) & 1);
                }
#pragma unroll
                for (int k = 0; k < SEEN; k++)
                    unpack<T, V>(from_word<vec<T, V>>(rows_load<piece>(
                                     from[k % 2] + (uint32_t)(k * pixel::BYTES))), xs[k]);
#pragma unroll
                for (int m = RING - 1; m >= 0; m--) {
                    int j = m * S + s;
                    if (j >= K)
                        continue;
#pragma unroll
                    for (int k = 0; k < K; k++)
#pragma unroll
                        for (int p = 0; p < P; p++)
#pragma unroll
                            for (int v = 0; v < V; v++) {
                                /* with s == 0, sums move by one row */
                                A so_far = s || k ? sum[m][p][v]
                                           : m    ? sum[m ? m - 1 : 0][p][v]
                                                  : first[v];
                                sum[m][p][v] =
                                    so_far + xs[p * S + k][v] * ks[j < K ? j : 0][k][v];
                            }
                }
            } else if (s == 0) {
#pragma unroll
                for (int m = RING - 1; m >= 0; m--)
#pragma unroll
                    for (int p = 0; p < P; p++)
#pragma unroll
                        for (int v = 0; v < V; v++)
                            sum[m][p][v] = m ? sum[m ? m - 1 : 0][p][v] : first[v];
            }
            y += h.every;
            odd ^= h.every & w.size & 1;
            int done = i + (S == 1 ? r : 0) - (RING - 1);
            if (s == (K - 1) % S && done >= 0 && done < rows) {
#pragma unroll
                for (int p = 0; p < P; p++)
                    rows_store(store + p * store_pixel, to_word(pack<T, V>(sum[RING - 1][p])),
                               p < columns);
                store += store_line;
            }
        }
        reading = reading == 2 * row * (ROWS_STAGES - 1) ? 0 : reading + 2 * row;
    }
}

/** True if the first dim only counts planes (a plane is the rows and columns at one index of the
 * batch and the first dim): one tap, stride 1, no padding, and as many positions as pixels. */
inline bool rows_are_flat(const ts_cuda_window_product &q)
{
    const ts_window_axis &a = q.windows.axis[0];
    return a.taps == 1 && a.base == 0 && a.move == 1 && a.count == q.windows.size[0];
}

/** Sets *to to spatial dim d of a product, without pieces and length, which the caller sets.
 * Returns false unless the dim's stride is `stride`, and that is 1, or 2 without a dilation. */
inline bool rows_axis_of(const ts_cuda_window_product &q, int d, int64_t stride, rows_axis *to)
{
    const ts_window_axis &a = q.windows.axis[d];
    int64_t every = a.shift < 0 ? -a.shift : a.shift,
            base = a.shift < 0 ? a.base + (a.taps - 1) * a.shift : a.base;
    *to = {(int)a.count, (int)base, (int)q.windows.size[d], (int)every,
           (int)a.start, (int)a.step, (int)q.size[d], 1, 1};
    return a.move == stride && (stride == 1 || (stride == 2 && every == 1));
}

/** Number of pieces of `length` positions of a phase. */
inline int rows_pieces(const rows_axis &a, int length)
{
    return ((a.count + a.every - 1) / a.every + length - 1) / length;
}

} // namespace ts

#endif
