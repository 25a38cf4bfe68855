/**
 * @file bench_cuda_decode.c
 * Times attention of few queries over many keys on a GPU, as in decoding, on random normal numbers
 * in bf16. Prints microseconds of device time, and TB/s of keys and values.
 *
 *   bench_cuda_decode [B H G ROWS KEYS DEPTH] ...      without arguments: the built-in cases
 *
 * B: batch size; H, G: heads of queries and of keys; ROWS: queries. Calls alternate between sets of
 * keys and values that have 300 MB together, or 16 sets if these have less, so that large sets are
 * not in the L2 cache.
 */
// SPDX-License-Identifier: MIT
#include "cuda_clock.h"

enum { SETS = 16, NUMBERS = 6 };

typedef struct operands {
    ts_tensor *q, *k[SETS], *v[SETS];
    int sets;
} operands;

static ts_status attend(void *ctx, int i)
{
    TS_SCOPE;
    const operands *o = ctx;
    return TS_STATUS_OF(ts_scaled_dot_product_attention_ex(o->q, o->k[i % o->sets],
                                                           o->v[i % o->sets], NULL, NULL));
}

static ts_status attention(const int64_t *n)
{
    TS_SCOPE;
    double bytes = 4.0 * (double)n[0] * (double)n[2] * (double)n[4] * (double)n[5], us;
    int calls = (int)(3e-3 / (bytes / 2e12 + 5e-6)) + 1;
    operands o = {.sets = (int)(300e6 / bytes) + 1};
    if (o.sets > SETS)
        o.sets = SETS;
    TS_TRY(o.q = drawn(TS_SIZES(n[0], n[1], n[3], n[5])));
    for (int i = 0; i < o.sets; i++) {
        TS_TRY(o.k[i] = drawn(TS_SIZES(n[0], n[2], n[4], n[5])));
        TS_TRY(o.v[i] = drawn(TS_SIZES(n[0], n[2], n[4], n[5])));
    }
    TS_TRY(clock_median(attend, &o, calls, &us));
    for (int i = 0; i < NUMBERS; i++)
        printf("%lld\t", (long long)n[i]);
    printf("%.1f\t%.2f\n", us, bytes / us * 1e-6);
    return TS_OK;
}

static ts_status each(int argc, char **argv)
{
    static const int64_t list[][NUMBERS] = {
        {1, 16, 16, 1, 8192, 128}, {1, 16, 16, 1, 65536, 128}, {8, 32, 8, 1, 8192, 128},
        {64, 32, 8, 1, 2048, 128}, {1, 32, 8, 1, 65536, 64},   {4, 16, 16, 1, 4096, 256},
        {2, 16, 4, 5, 16384, 128}, {1, 8, 1, 1, 32768, 128},   {16, 12, 12, 1, 1024, 64},
        {1, 12, 12, 1, 1024, 64},  {4, 32, 8, 16, 8192, 128},
    };
    if (argc == 1)
        for (size_t i = 0; i < sizeof list / sizeof *list; i++)
            TS_TRY(attention(list[i]));
    for (int i = 1; i + NUMBERS <= argc; i += NUMBERS) {
        int64_t n[NUMBERS];
        for (int k = 0; k < NUMBERS; k++)
            n[k] = strtoll(argv[i + k], NULL, 10);
        TS_TRY(attention(n));
    }
    return TS_OK;
}

int main(int argc, char **argv)
{
    return clock_main("usage: bench_cuda_decode [B H G ROWS KEYS DEPTH] ...\n\n"
                      "Times attention of few queries over many keys in bf16.\n"
                      "B: batch; H, G: heads of queries and of keys; ROWS: queries.\n"
                      "Default: built-in cases.",
                      "B\tH\tG\trows\tkeys\tdepth\tus\tTB/s", each, argc, argv);
}
