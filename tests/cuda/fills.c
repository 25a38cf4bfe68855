/** @file fills.c  Memsets in graphs, short ones of which run as kernels: drawn sizes, dtypes and
 * addresses. Results have the bits of eager calls. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/bits.h"
#include "tests/cuda/cuda.h"

typedef struct drawn {
    int64_t rows, columns, at, length;
    ts_dtype dtype;
} drawn;

static int64_t draw(uint64_t *state, int64_t n)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (int64_t)(*state >> 33) % n;
}

/* Rows of zeros in which the transposed input is a slice: a memset of the result and a copy. */
static ts_status rows_of_zeros(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    const drawn *d = ctx;
    (void)n, (void)m;
    out[0] = ts_slice_backward(ts_transpose(in[0], 0, 1), TS_SIZES(d->rows, d->columns), 1, d->at,
                               d->at + d->length, 1);
    return TS_STATUS_OF(out[0]);
}

TS_TEST(drawn_memsets_of_graphs_follow_their_addresses, .loop = 3, .timeout = 120)
{
    GPU(device);
    POINTWISE_GROUPS_ONLY;
    static const ts_dtype dtypes[] = {TS_U8, TS_BF16, TS_F32, TS_F64};
    for (uint64_t k = 0; k < 12; k++) {
        TS_SCOPE;
        uint64_t seed = k + 100 * (uint64_t)_i, s = seed * 0x9e3779b97f4a7c15ull + 3;
        draw(&s, 2);
        drawn d = {.rows = 2 + draw(&s, k % 3 ? 9 : 700), .columns = 3 + draw(&s, 300)};
        d.length = 2 + draw(&s, d.columns - 2);
        d.at = draw(&s, d.columns - d.length + 1);
        d.dtype = dtypes[draw(&s, 4)];
        size_t bytes = (size_t)(d.rows * d.columns) * ts_dtype_size(d.dtype);
        ts_compiled *c = ts_compile(rows_of_zeros, &d, TS_OPTS(ts_compile_opts, .graph = true));
        enum { CALLS = 8 };
        ts_tensor *got[CALLS], *want[CALLS]; /* all are kept, so each has its own address */
        for (int call = 0; call < CALLS; call++) {
            ts_tensor *x = ts_to(ts_randint_on(TS_SIZES(d.length, d.rows), 1, 100, TS_I64, device),
                                 d.dtype), *in[] = {x};
            OK(ts_compiled_call(c, in, 1, &got[call], 1));
            OK(rows_of_zeros(&d, in, 1, &want[call], 1));
        }
        char *a = malloc(bytes), *b = malloc(bytes);
        for (int call = 0; call < CALLS; call++) {
            OK(ts_copy_to(got[call], a, bytes));
            OK(ts_copy_to(want[call], b, bytes));
            ck_assert_msg(memcmp(a, b, bytes) == 0, "seed %llu, %s (%lld, %lld): call %d differs",
                          (unsigned long long)seed, ts_dtype_name(d.dtype), (long long)d.rows,
                          (long long)d.columns, call);
        }
        free(a), free(b);
        ck_assert_int_eq(ts_compiled_get_stats(c).captures, 1);
        ck_assert_int_eq(ts_compiled_get_stats(c).replays, CALLS - 2);
        ts_compiled_free(c);
    }
}
