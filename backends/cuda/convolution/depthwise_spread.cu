/**
 * @file depthwise_spread.cu
 * Gradients of x of depthwise convolutions with stride 2, and transposed ones. Pair t of a dim has
 * positions 2 t - padding and 2 t - padding + 1 of x. Element r of y is added to pairs r to
 * r + (K - 1) / 2: by tap 2 m to the first position of pair r + m, by tap 2 m + 1 to the second. A
 * thread moves down the rows of y as in depthwise_rows.cuh: it adds the products of a row to the
 * sums of all pairs of rows that need it, which are registers.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/convolution/depthwise.h"
#include "backends/cuda/convolution/depthwise_rows.cuh"
#include "backends/cuda/frame.cuh"

namespace ts {

enum { PROCESSORS = 132 /* of an H100; the number affects only the time */ };

/** Rows or columns. count: pairs; base: element of y with the first pair's number; size: of y;
 * start: position of x of the first pair, which may be -1; to_size: of x. */
struct spread_axis {
    int count, base, size, start, to_size, pieces, length;
};
struct spread_call {
    spread_axis h, w;
    int channels, sets;
};

/** Pairs of columns of a thread. */
constexpr int spread_pairs(int taps) { return taps == 3 ? 4 : 2; }

/** Blocks of ROWS_LANES threads per strip, along x: set of channels (fastest), piece of columns,
 * piece of rows, plane. weight: (taps, channels). The sum of an element starts with its bias, then
 * adds the rows of y in their order. */
template <class T, int K>
static __global__ void __launch_bounds__(ROWS_LANES *ROWS_STRIPS, K == 7 ? 1 : 2)
    spread_kernel(const __grid_constant__ spread_call q, const T *__restrict__ image,
                  const T *__restrict__ weight, const T *__restrict__ bias, T *__restrict__ to)
{
    using A = wide_t<T>;
    constexpr int V = 2;
    using piece = word_of<vec<T, V>>;
    using pixel = rows_pixel<T, V, 16>;
    constexpr int P = spread_pairs(K), RING = (K + 1) / 2, SEEN = P + RING - 1,
                  SET = ROWS_LANES * V, EACH = 16 / (int)sizeof(T),
                  SLOTS = ((2 * P + RING - 1) * pixel::COPIES + 63) / 64;
    extern __shared__ __align__(16) unsigned char spread_memory[];
    const spread_axis &h = q.h, &w = q.w;
    int lane = threadIdx.x % ROWS_LANES, strip = threadIdx.x / ROWS_LANES,
        pixels = (int)(blockDim.x / ROWS_LANES) * P + RING - 1;
    unsigned rest = blockIdx.x;
    auto next = [&](int n) {
        unsigned whole = rest / (unsigned)n;
        int left = (int)(rest - whole * (unsigned)n);
        rest = whole;
        return left;
    };
    int set = next(q.sets) * SET, left = next(w.pieces) * w.length,
        top = next(h.pieces) * h.length, plane = (int)rest, rows = min(h.length, h.count - top),
        y = h.base + top - (RING - 1), x = w.base + left - (RING - 1), copied = y,
        end = y + rows + RING - 1;

    int64_t line_step = (int64_t)w.size * q.channels;
    const T *line = image + (((int64_t)plane * h.size + y) * w.size + x) * q.channels + set;
    uint32_t memory = shared_address(spread_memory), row = (uint32_t)(pixels * pixel::BYTES),
             filling = 0, reading = 0;
    int slot_from[SLOTS], slot_there[SLOTS];
#pragma unroll
    for (int k = 0; k < SLOTS; k++) {
        int e = (int)(threadIdx.x + k * blockDim.x), i = e / pixel::COPIES,
            c = e % pixel::COPIES * EACH;
        bool there = x + i >= 0 && x + i < w.size && set + c < q.channels;
        slot_there[k] = e >= pixels * pixel::COPIES ? -1 : there ? 16 : 0;
        slot_from[k] = there ? (i * q.channels + c) * (int)sizeof(T) : 0;
    }
    auto copy_rows = [&] {
#pragma unroll
        for (int r = 0; r < 2; r++, copied++, line += line_step) {
            if (copied < 0 || copied >= h.size || copied >= end)
                continue;
#pragma unroll
            for (int k = 0; k < SLOTS; k++)
                if (slot_there[k] >= 0)
                    rows_copy<16>(memory + filling + (uint32_t)r * row +
                                      (threadIdx.x + k * blockDim.x) * 16,
                                  (const char *)line + slot_from[k], slot_there[k]);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        filling = filling == 2 * row * (ROWS_STAGES - 1) ? 0 : filling + 2 * row;
    };
#pragma unroll
    for (int k = 0; k < ROWS_STAGES - 1; k++)
        copy_rows();

    int c = set + lane * V, column = w.start + 2 * (left + strip * P);
    bool active = c < q.channels;
    c = active ? c : 0;
    A ks[K][K][V], first[V] = {};
#pragma unroll
    for (int j = 0; j < K * K; j++)
        unpack<T, V>(from_word<vec<T, V>>(__ldg(reinterpret_cast<const piece *>(
                         weight + (int64_t)j * q.channels + c))), ks[j / K][j % K]);
    if (bias)
        unpack<T, V>(from_word<vec<T, V>>(__ldg(reinterpret_cast<const piece *>(bias + c))), first);
    if constexpr (is_half<T>) { /* else the compiler keeps halves and unpacks them for each row */
#pragma unroll
        for (int j = 0; j < K * K * V; j++)
            asm volatile("" : "+f"(ks[j / V / K][j / V % K][j % V]));
    }
    unsigned stored = 0; /* a bit per column */
#pragma unroll
    for (int p = 0; p < 2 * P; p++)
        stored |= (unsigned)(active && column + p >= 0 && column + p < w.to_size) << p;
    int line_to = h.start + 2 * top;
    T *store = to + (((int64_t)plane * h.to_size + line_to) * w.to_size + column) * q.channels + c;
    int64_t store_line = (int64_t)w.to_size * q.channels;
    uint32_t mine = memory + (uint32_t)(strip * P * pixel::BYTES + lane * V * (int)sizeof(T));

    A sum[RING][2][2 * P][V]; /* of pairs of rows, of which the first is done after this row of y */
#pragma unroll
    for (int e = 0; e < RING * 4 * P * V; e++)
        sum[e / (4 * P * V)][e / (2 * P * V) % 2][e / V % (2 * P)][e % V] = first[e % V];
    for (int i = 0; i < rows + RING - 1; i += 2) {
        asm volatile("cp.async.wait_group %0;" ::"n"(ROWS_STAGES - 2) : "memory");
        __syncthreads();
        copy_rows();
#pragma unroll
        for (int r = 0; r < 2; r++, y++) {
            bool inside = y >= 0 && y < h.size;
            A xs[SEEN][V];
            if (inside) {
#pragma unroll
                for (int k = 0; k < SEEN; k++)
                    unpack<T, V>(from_word<vec<T, V>>(rows_load<piece>(
                                     mine + reading + (uint32_t)r * row +
                                     (uint32_t)(k * pixel::BYTES))), xs[k]);
#pragma unroll
                for (int m = 0; m < RING; m++)
#pragma unroll
                    for (int e = 0; e < 4 * P * V; e++) {
                        int a = e / (2 * P * V), p = e / V % (2 * P), v = e % V, j = 2 * m + a;
                        A s = m + 1 < RING ? sum[m + 1 < RING ? m + 1 : m][a][p][v] : first[v];
#pragma unroll
                        for (int n = 0; n < RING; n++) {
                            int k = 2 * n + p % 2;
                            if (j < K && k < K)
                                s += xs[p / 2 + RING - 1 - n][v] *
                                     ks[j < K ? j : 0][k < K ? k : 0][v];
                        }
                        sum[m][a][p][v] = s;
                    }
            } else {
#pragma unroll
                for (int m = 0; m < RING; m++)
#pragma unroll
                    for (int e = 0; e < 4 * P * V; e++) {
                        int a = e / (2 * P * V), p = e / V % (2 * P), v = e % V;
                        sum[m][a][p][v] =
                            m + 1 < RING ? sum[m + 1 < RING ? m + 1 : m][a][p][v] : first[v];
                    }
            }
            int done = i + r - (RING - 1);
            if (done >= 0 && done < rows) {
#pragma unroll
                for (int a = 0; a < 2; a++, line_to++, store += store_line)
                    if (line_to >= 0 && line_to < h.to_size) {
#pragma unroll
                        for (int p = 0; p < 2 * P; p++)
                            rows_store(store + (int64_t)p * q.channels,
                                       to_word(pack<T, V>(sum[0][a][p])), stored >> p & 1);
                    }
            }
        }
        reading = reading == 2 * row * (ROWS_STAGES - 1) ? 0 : reading + 2 * row;
    }
}

/** Describes a dim as one piece. */
static spread_axis spread_axis_of(const ts_convolution *c, int d)
{
    int padding = (int)c->padding[d], size = (int)c->size[d], base = padding / 2;
    return {(size - 1 + padding) / 2 - base + 1, base, (int)c->y_size[d], 2 * base - padding, size,
            1, 1};
}

static int pieces_of(const spread_axis &a, int length) { return (a.count + length - 1) / length; }

/** Divides the pairs of columns and rows into pieces; returns the number of strips of a block. */
static int divide(spread_call *q, int taps, int64_t planes)
{
    spread_axis &h = q->h, &w = q->w;
    int pairs = spread_pairs(taps), best_rows = 1, best_strips = 0;
    double least = 0;
    for (int strips = 2; strips <= ROWS_STRIPS; strips *= 2)
        for (int pieces = 1;; pieces *= 2) {
            int length = (h.count + pieces - 1) / pieces, resident = (taps == 7 ? 8 : 16) / strips;
            double blocks = (double)planes * q->sets * pieces_of(h, length) *
                            pieces_of(w, pairs * strips) / (double)PROCESSORS,
                   row = taps * taps * pairs * 2 + 30 * pairs + 60,
                   count = blocks < resident ? (int)blocks + 1 : resident,
                   full = count * strips / 4 * row, alone = 1.3 * row + 150,
                   wave = 2500 + (length + taps / 2) * (full > alone ? full : alone),
                   cycles = wave * (blocks < resident ? 1 : blocks / resident);
            if (!best_strips || cycles < least)
                least = cycles, best_rows = length, best_strips = strips;
            if (length <= 4)
                break;
        }
    h.length = best_rows;
    h.pieces = pieces_of(h, best_rows);
    w.length = pairs * best_strips;
    w.pieces = pieces_of(w, w.length);
    return best_strips;
}

} // namespace ts

using namespace ts;

bool ts_cuda_spreads(const ts_convolution *c, int item, uintptr_t addresses)
{
    int64_t x = c->batch * c->channels, y = x, k = c->kernel[2];
    for (int d = 0; d < 3; d++) {
        if (c->size[d] < 1 || c->y_size[d] < 1 || x > INT32_MAX / c->size[d] ||
            y > INT32_MAX / c->y_size[d] || c->padding[d] > INT32_MAX / 4)
            return false;
        x *= c->size[d];
        y *= c->y_size[d];
    }
    return c->kernel[0] == 1 && c->stride[0] == 1 && c->padding[0] == 0 &&
           c->size[0] == c->y_size[0] && c->stride[1] == 2 && c->stride[2] == 2 &&
           c->dilation[1] == 1 && c->dilation[2] == 1 && c->kernel[1] == k &&
           (k == 3 || k == 5 || k == 7) && item < 8 && c->channels * item % 16 == 0 &&
           addresses % 16 == 0;
}

ts_status ts_cuda_spread_channels(ts_frame *f, const ts_convolution *c, const void *y,
                                  const void *weight, const void *bias, void *to)
{
    int taps = (int)c->kernel[2];
    int64_t planes = c->batch * c->size[0];
    spread_call q = {spread_axis_of(c, 1), spread_axis_of(c, 2), (int)c->channels,
                     (int)((c->channels + 2 * ROWS_LANES - 1) / (2 * ROWS_LANES))};
    int strips = divide(&q, taps, planes);
    return with_float(f, [&]<class T>(const call &at) {
        auto run = [&]<int K>() {
            if constexpr (sizeof(T) < 8) {
                unsigned pixels = (unsigned)(strips * spread_pairs(K) + K / 2);
                ts_cuda_grid grid = {dim3((unsigned)(planes * q.sets * q.h.pieces * q.w.pieces)),
                                     dim3((unsigned)(strips * ROWS_LANES)),
                                     ROWS_STAGES * 2 * pixels * rows_pixel<T, 2, 16>::BYTES, 1};
                return launch(spread_kernel<T, K>, grid, at.stream, q, (const T *)y,
                              (const T *)weight, (const T *)bias, (T *)to);
            }
            return cudaErrorInvalidValue;
        };
        return taps == 3   ? run.template operator()<3>()
               : taps == 5 ? run.template operator()<5>()
                           : run.template operator()<7>();
    });
}
