/**
 * @file blocks_products.cu
 * Each product of instructions/wgmma.cuh and instructions/mma.cuh that attention uses, tested
 * alone: one block multiplies integers from -3 to 3. The sums are exact on the device and on the
 * host, which compares them.
 */
// SPDX-License-Identifier: MIT
#include "tests/cuda/blocks.cuh"

namespace {

/* ------------------------------------ scores: both operands from shared memory, by columns ---- */

/** Multiplies the lower 64 of 128 rows of a by N rows of b. */
template <class T, int DEPTH, int N>
__global__ void __launch_bounds__(128)
    products_kernel(const __grid_constant__ CUtensorMap a_map,
                    const __grid_constant__ CUtensorMap b_map, float *out)
{
#if HOPPER
    extern __shared__ char shared[];
    uint32_t a = tiles_of(shared), b = a + 128 * DEPTH * 2, full = b + N * DEPTH * 2;
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barriers_ready();
        barrier_expect(full, (128 + N) * DEPTH * 2);
        tma_load_tile<128, DEPTH>(a, &a_map, 0, 0, 0, full);
        tma_load_tile<N, DEPTH>(b, &b_map, 0, 0, 0, full);
    }
    __syncthreads();
    barrier_wait(full, 0);
    float d[N / 8][4];
    for (int n = 0; n < N / 8; n++)
        for (int e = 0; e < 4; e++)
            d[n][e] = 99; /* to be overwritten */
    pin_accumulators(d);
    wgmma_begin();
    wgmma_products<T, DEPTH, 128, N>(d, a + 64 * 128, b);
    wgmma_commit();
    wgmma_wait<0>();
    pin_accumulators(d);
    give(out, d);
#endif
}

template <class T, int DEPTH, int N, int COLUMNS> int products()
{
    both<T> a(128 * COLUMNS), b(N * COLUMNS);
    both<float> out(64 * N);
    a.whole(1);
    b.whole(2);
    out.all(NAN);
    if (!run(products_kernel<T, DEPTH, N>, 1, 128, 1024 + (128 + N) * DEPTH * 2 + 8,
             map_of(a, 128, COLUMNS, 128), map_of(b, N, COLUMNS, N), out.device))
        return -1;
    int wrong = 0;
    out.down();
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int c = 0; c < COLUMNS; c++)
                sum += a[(64 + i) * COLUMNS + c] * b[j * COLUMNS + c];
            wrong += out[i * N + j] != sum;
        }
    return wrong;
}

/* ------------------------------------ sums: left operand from registers, right one by rows ---- */

/** Adds 64 x ROWS packed accumulators times ROWS rows of b to 64 x N accumulators. */
template <class T, int ROWS, int N>
__global__ void __launch_bounds__(128)
    accumulate_kernel(const float *left, const __grid_constant__ CUtensorMap b_map, float *sums)
{
#if HOPPER
    extern __shared__ char shared[];
    uint32_t b = tiles_of(shared), full = b + ROWS * N * 2;
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barriers_ready();
        barrier_expect(full, ROWS * N * 2);
        tma_load_tile<ROWS, N>(b, &b_map, 0, 0, 0, full);
    }
    __syncthreads();
    barrier_wait(full, 0);
    float s[ROWS / 8][4], d[N / 8][4];
    uint32_t p[ROWS / 16][4];
    get(s, left);
    get(d, sums);
    pack_left<T>(p, s);
    pin_accumulators(d);
    wgmma_begin();
    wgmma_accumulate<T, ROWS>(d, p, b);
    wgmma_commit();
    wgmma_wait<0>();
    pin_accumulators(d);
    give(sums, d);
#endif
}

template <class T, int ROWS, int N> int accumulate_rows()
{
    both<float> left(64 * ROWS), sums(64 * N), before(64 * N);
    both<T> b(ROWS * N);
    left.whole(3);
    b.whole(4);
    sums.whole(5);
    before.whole(5);
    if (!run(accumulate_kernel<T, ROWS, N>, 1, 128, 1024 + ROWS * N * 2 + 8, left.device,
             map_of(b, ROWS, N, ROWS), sums.device))
        return -1;
    int wrong = 0;
    sums.down();
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < N; j++) {
            float sum = before[i * N + j];
            for (int r = 0; r < ROWS; r++)
                sum += left[i * ROWS + r] * b[r * N + j];
            wrong += sums[i * N + j] != sum;
        }
    return wrong;
}

/* ----------------- gradients of queries: left operand stored transposed, right one by rows ---- */

/** Two groups store 64 rows each of left (128 x ROWS), transposed. Each then multiplies 64 x 128 of
 * it by 64 columns of b's 128 rows. A group computes 64 rows of the result if DEPTH is 64, and
 * 64 columns if it is 128. */
template <class T, int DEPTH, int ROWS>
__global__ void __launch_bounds__(256)
    crossed_kernel(const float *left, const __grid_constant__ CUtensorMap b_map, float *out)
{
#if HOPPER
    extern __shared__ char shared[];
    constexpr int slab = ROWS * 128;
    uint32_t b = tiles_of(shared), slabs = b + 128 * DEPTH * 2, full = slabs + 2 * slab;
    int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barriers_ready();
        barrier_expect(full, 128 * DEPTH * 2);
        tma_load_tile<128, DEPTH>(b, &b_map, 0, 0, 0, full);
    }
    float s[ROWS / 8][4], d[8][4];
    uint32_t p[ROWS / 16][4];
    get(s, left + group * 64 * ROWS);
    pack_left<T>(p, s);
    for (int n = 0; n < ROWS / 16; n++) {
        int row = n * 16 + lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
        store_transposed(slabs + group * slab + row * 128 + (chunk ^ row % 8) * 16, p[n]);
    }
    tma_sees_shared();
    __syncthreads();
    barrier_wait(full, 0);
    discard_accumulators(d);
    wgmma_begin();
    wgmma_crossed<T, 128, slab>(d, slabs + (ROWS == 128 ? group * 64 * 128 : 0),
                                b + (DEPTH == 128 ? group * 128 * 128 : 0));
    wgmma_commit();
    wgmma_wait<0>();
    pin_accumulators(d);
    give(out + group * 64 * 64, d);
#endif
}

template <class T, int DEPTH, int ROWS> int crossed()
{
    both<float> left(128 * ROWS), out(2 * 64 * 64);
    both<T> b(128 * DEPTH);
    left.whole(13);
    b.whole(14);
    out.all(NAN);
    if (!run(crossed_kernel<T, DEPTH, ROWS>, 1, 256, 1024 + 128 * DEPTH * 2 + 2 * ROWS * 128 + 8,
             left.device, map_of(b, 128, DEPTH, 128), out.device))
        return -1;
    int wrong = 0;
    out.down();
    for (int group = 0; group < 2; group++)
        for (int i = 0; i < 64; i++)
            for (int j = 0; j < 64; j++) {
                float sum = 0;
                int row = i + (ROWS == 128 ? group * 64 : 0),
                    column = j + (DEPTH == 128 ? group * 64 : 0);
                for (int k = 0; k < 128; k++)
                    sum += left[k * ROWS + row] * b[k * DEPTH + column];
                wrong += out[(group * 64 + i) * 64 + j] != sum;
            }
    return wrong;
}

/* --------------------------------------------------------------------- products of sm_80 ---- */

/** Warp w multiplies rows 16 w to 16 w + 15 of a by 32 rows of b, by columns, then `left` by b,
 * by rows. */
template <class T, int DEPTH>
__global__ void __launch_bounds__(128) mma_kernel(const T *a, const T *b, const float *left,
                                                  int rows, int columns, float *scores, float *sums)
{
    extern __shared__ __align__(128) char shared[];
    mma_tile<DEPTH> at{shared_address(shared)}, bt{at.base + 64 * DEPTH * 2};
    at.template load<64, 128>(a, columns, rows, columns);
    bt.template load<32, 128>(b, columns, 32, columns);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    int first = threadIdx.x / 32 * 16;
    float s[1][4][4], p[1][4][4], sum[1][DEPTH / 8][4] = {};
    ts::products<T, DEPTH, 1, 32>(s, at.from(first), bt, DEPTH);
    give(scores, s[0]);
    get(p[0], left);
    ts::accumulate<T, DEPTH, 1, 32>(sum, p, bt, DEPTH);
    give(sums, sum[0]);
}

template <class T, int DEPTH, int ROWS, int COLUMNS> int mma_tiles()
{
    both<T> a(64 * COLUMNS), b(32 * COLUMNS);
    both<float> left(64 * 32), scores(64 * 32), sums(64 * DEPTH);
    a.whole(10);
    b.whole(11);
    left.whole(12);
    scores.all(NAN);
    sums.all(NAN);
    if (!run(mma_kernel<T, DEPTH>, 1, 128, (64 + 32) * DEPTH * 2, a.device, b.device, left.device,
             ROWS, COLUMNS, scores.device, sums.device))
        return -1;
    int wrong = 0;
    scores.down();
    sums.down();
    for (int i = 0; i < 64; i++) {
        for (int j = 0; j < 32; j++) {
            float sum = 0;
            for (int c = 0; c < COLUMNS && i < ROWS; c++)
                sum += a[i * COLUMNS + c] * b[j * COLUMNS + c];
            wrong += scores[i * 32 + j] != sum;
        }
        for (int c = 0; c < DEPTH; c++) {
            float sum = 0;
            for (int r = 0; r < 32 && c < COLUMNS; r++)
                sum += left[i * 32 + r] * b[r * COLUMNS + c];
            wrong += sums[i * DEPTH + c] != sum;
        }
    }
    return wrong;
}

} // namespace

/* --------------------------------------------------------------------------------- table ---- */

static const block_row rows[] = {
    /* scores of 64 rows: q kT and g vT in the forward and in the backward of queries, k qT and v gT
     * in the backward of keys */
    HALVES("64 x 64, 64 deep, both by columns", products, 64, 64, 64),
    HALVES("64 x 64, 128 deep, both by columns", products, 128, 64, 128),
    HALVES("64 x 128, 64 deep, both by columns", products, 64, 128, 64),
    HALVES("64 x 128, 128 deep, both by columns", products, 128, 128, 128),
    HALVES("64 x 128, 40 of 64 deep, both by columns", products, 64, 128, 40),
    HALVES("64 x 128, 72 of 128 deep, both by columns", products, 128, 128, 72),
    /* p v in the forward, ds k in the backward of queries; pT g and dsT q in that of keys */
    HALVES("64 x 64 += registers, 64 rows", accumulate_rows, 64, 64),
    HALVES("64 x 64 += registers, 128 rows", accumulate_rows, 128, 64),
    HALVES("64 x 128 += registers, 64 rows", accumulate_rows, 64, 128),
    HALVES("64 x 128 += registers, 128 rows", accumulate_rows, 128, 128),
    /* ds k of a pass of keys */
    HALVES("two times 64 x 64, left one stored transposed, by rows", crossed, 64, 128),
    HALVES("two times 64 x 64, left one stored transposed, by columns", crossed, 128, 64),
    HALVES("mma, 64 columns", mma_tiles, 64, 64, 64),
    HALVES("mma, 72 of 128 columns, 50 rows", mma_tiles, 128, 50, 72),
    HALVES("mma, 256 columns", mma_tiles, 256, 64, 256),
};
const block_table block_products = {rows, sizeof rows / sizeof *rows};

int block_device()
{
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major == 9;
}

const char *block_error() { return cudaGetErrorString(block_failure); }
