/**
 * @file bench_cuda_matmul.c
 * Times products of random normal numbers on a GPU: microseconds of device time and TFLOP/s.
 *
 *   bench_cuda_matmul stairs             M from 128 to 4352, N = K = 4096, bf16
 *   bench_cuda_matmul inner              K near 4096; N near 50257
 *   bench_cuda_matmul M N K [LAYOUT] ... each product; LAYOUT: nn (default), nt, tn, tt, or
 *                                        linear, backward (with bias, weight (N, K))
 *
 * TS_CUDA_MATMUL chooses between padded copies and none.
 */
// SPDX-License-Identifier: MIT
#include <string.h>

#include "cuda_clock.h"

typedef struct subject {
    ts_tensor *a, *b, *bias, *grad;
    bool linear, backward;
} subject;

static ts_status run(void *ctx, int i)
{
    (void)i;
    TS_SCOPE;
    const subject *s = ctx;
    ts_tensor *d[3];
    if (s->backward)
        return ts_linear_backward(s->grad, s->a, s->b, &d[0], &d[1], &d[2]);
    return ts_status_of_pointer(s->linear ? ts_linear(s->a, s->b, s->bias) : ts_mm(s->a, s->b));
}

static ts_status product(int64_t m, int64_t n, int64_t k, const char *layout)
{
    TS_SCOPE;
    subject s = {.linear = strcmp(layout, "linear") == 0,
                 .backward = strcmp(layout, "backward") == 0};
    bool layer = s.linear || s.backward;
    if (!layer && (strlen(layout) != 2 || strspn(layout, "nt") != 2)) {
        fprintf(stderr, "bench_cuda_matmul: expected nn, nt, tn, tt, linear or backward, got %s\n",
                layout);
        return TS_ERR_VALUE;
    }
    s.a = layer || layout[0] == 'n' ? drawn(TS_SIZES(m, k)) : ts_t(drawn(TS_SIZES(k, m)));
    s.b = layer              ? drawn(TS_SIZES(n, k))
          : layout[1] == 'n' ? drawn(TS_SIZES(k, n))
                             : ts_t(drawn(TS_SIZES(n, k)));
    if (layer)
        TS_TRY(s.bias = drawn(TS_SIZES(n)));
    if (s.backward)
        TS_TRY(s.grad = drawn(TS_SIZES(m, n)));
    TS_TRY(s.a);
    TS_TRY(s.b);
    double flops = 2.0 * (double)m * (double)n * (double)k * (s.backward ? 2 : 1), us;
    TS_TRY(clock_median(run, &s, (int)(2e-3 / (flops / 400e12 + 4e-6)) + 2, &us));
    printf("%lld\t%lld\t%lld\t%s\t%.1f\t%.0f\n", (long long)m, (long long)n, (long long)k, layout,
           us, flops / us * 1e-6);
    return TS_OK;
}

static ts_status stairs(void)
{
    static const int64_t offsets[] = {0, 8, 1};
    for (int o = 0; o < 3; o++)
        for (int64_t m = 128; m <= 4352; m += 128)
            TS_TRY(product(m + offsets[o], 4096, 4096, "nn"));
    for (int o = 0; o < 3; o++)
        for (int64_t n = 128; n <= 4352; n += 128)
            TS_TRY(product(4096, n + offsets[o], 4096, "nn"));
    return TS_OK;
}

/** Inner dims of both parities, then the last layer of GPT-2 with and without padding. */
static ts_status inner(void)
{
    static const int64_t offsets[] = {0, 1, 2, 4, 8, 16, 32, 64}, words[] = {50257, 50258, 50260,
                                                                            50264, 50304};
    for (int i = 0; i < 8; i++)
        TS_TRY(product(4096, 4096, 4096 + offsets[i], "nn"));
    for (int i = 0; i < 5; i++)
        TS_TRY(product(4096, words[i], 768, "linear"));
    return TS_OK;
}

static ts_status each(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "stairs") == 0)
        return stairs();
    if (argc == 2 && strcmp(argv[1], "inner") == 0)
        return inner();
    for (int i = 1; i + 2 < argc; i += 3) {
        int64_t sizes[3];
        for (int k = 0; k < 3; k++)
            sizes[k] = strtoll(argv[i + k], NULL, 10);
        bool given = i + 3 < argc && (argv[i + 3][0] < '0' || argv[i + 3][0] > '9');
        TS_TRY(product(sizes[0], sizes[1], sizes[2], given ? argv[i + 3] : "nn"));
        i += given;
    }
    return TS_OK;
}

int main(int argc, char **argv)
{
    static const char usage[] =
        "usage: bench_cuda_matmul stairs | inner | M N K [LAYOUT] ...\n\n"
        "Times products in bf16.\n"
        "  stairs    M from 128 to 4352, N = K = 4096\n"
        "  inner     K near 4096; N near 50257\n"
        "  LAYOUT    nn (default), nt, tn, tt; linear and backward: with bias, weight (N, K)";
    if (argc < 2) {
        fprintf(stderr, "%s\n", usage);
        return 2;
    }
    return clock_main(usage, "M\tN\tK\tlayout\tus\tTFLOP/s", each, argc, argv);
}
