/**
 * @file bench_cuda_decode.c
 * Times attention of few rows over many keys on a GPU, as in decoding, over random normal numbers
 * in bf16: microseconds of device time and TB/s of keys and values.
 *
 *   bench_cuda_decode [B H G ROWS KEYS DEPTH] ...      without arguments: a list
 *
 * Calls take turns among operands of 300 MB together, so that none is in the second-level cache,
 * and are queued behind a long product, so that the host's time is not part of the figure. Each
 * line is the median of seven batches.
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>

#include "tessera/tessera.h"

enum { BATCHES = 7, SETS = 16, NUMBERS = 6 };

static ts_device device;
static ts_event *begin, *end;
static ts_tensor *plug;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static ts_tensor *drawn(int64_t b, int64_t h, int64_t s, int64_t d)
{
    return ts_to(ts_normal_on(TS_SIZES(b, h, s, d), 0, 1, TS_F32, device), TS_BF16);
}

static ts_status attention(const int64_t *n)
{
    TS_SCOPE;
    TS_NO_GRAD;
    double bytes = 4.0 * (double)n[0] * (double)n[2] * (double)n[4] * (double)n[5];
    int sets = (int)(300e6 / bytes) + 1, calls = (int)(3e-3 / (bytes / 2e12 + 5e-6)) + 1;
    if (sets > SETS)
        sets = SETS;
    ts_tensor *q, *k[SETS], *v[SETS];
    TS_TRY(q = drawn(n[0], n[1], n[3], n[5]));
    for (int i = 0; i < sets; i++) {
        TS_TRY(k[i] = drawn(n[0], n[2], n[4], n[5]));
        TS_TRY(v[i] = drawn(n[0], n[2], n[4], n[5]));
    }
    double times[BATCHES];
    for (int i = -1; i < BATCHES; i++) {
        TS_SCOPE;
        TS_TRY(ts_mm(plug, plug));
        TS_TRY(ts_event_record(device, begin));
        for (int c = 0; c < calls; c++) {
            TS_SCOPE;
            TS_TRY(ts_scaled_dot_product_attention_ex(q, k[c % sets], v[c % sets], NULL, NULL));
        }
        TS_TRY(ts_event_record(device, end));
        TS_TRY(ts_event_synchronize(device, end));
        double ms;
        TS_TRY(ts_event_elapsed(device, begin, end, &ms));
        if (i >= 0)
            times[i] = ms * 1e3 / calls;
    }
    qsort(times, BATCHES, sizeof *times, by_value);
    for (int i = 0; i < NUMBERS; i++)
        printf("%lld\t", (long long)n[i]);
    printf("%.1f\t%.2f\n", times[BATCHES / 2], bytes / times[BATCHES / 2] * 1e-6);
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
    TS_SCOPE;
    if (ts_device_open("cuda", &device, NULL, 0) != TS_OK ||
        ts_event_new(device, &begin) != TS_OK || ts_event_new(device, &end) != TS_OK ||
        !(plug = drawn(1, 1, 8192, 8192)) ||
        !(plug = ts_view(plug, TS_SIZES(8192, 8192)))) {
        ts_error_print();
        return 1;
    }
    printf("B\tH\tG\trows\tkeys\tdepth\tus\tTB/s\n");
    ts_status status = each(argc, argv);
    if (status != TS_OK)
        ts_error_print();
    ts_event_free(device, begin);
    ts_event_free(device, end);
    return status != TS_OK;
}
