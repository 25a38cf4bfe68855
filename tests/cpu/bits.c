/*
 * Prints the variant of the CPU kernels that runs, and a hash of the results of reductions and row
 * kernels over drawn tensors, one a line:
 *
 *     variant avx2: fma
 *     always sum f32 3x70x33 layout 1 dims 5: 0123456789abcdef
 *
 * tests/cpu/variants.py compares the lines of two variants. Lines that begin with `always` are
 * equal in all variants; lines that begin with `fma` in all variants with fused multiply-adds.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/isa.h"
#include "include/tessera/tessera.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char where[128]; /* dtype, shape and layout of the tensors in use */

/** FNV-1a over the values as f64; every NaN counts as the same. */
static void print_hash(const char *group, const char *name, int detail, ts_tensor *t)
{
    TS_SCOPE;
    ts_tensor *wide = ts_contiguous(ts_to(t, TS_F64));
    if (!wide) {
        fprintf(stderr, "%s %s %d: %s\n", name, where, detail, ts_error_message());
        exit(1);
    }
    const unsigned char *bytes = ts_data(wide);
    uint64_t hash = 0xcbf29ce484222325;
    for (int64_t i = 0; i < ts_numel(wide); i++) {
        double x;
        memcpy(&x, bytes + i * 8, 8);
        x = isnan(x) ? (double)NAN : x;
        uint64_t bits;
        memcpy(&bits, &x, 8);
        hash = (hash ^ bits) * 0x100000001b3;
        hash ^= hash >> 29;
    }
    printf("%s %s %s dims %d: %016llx\n", group, name, where, detail, (unsigned long long)hash);
}

/** Random numbers in [-2, 2); if `odd`, also signed zeros, infinities and NaN. */
static ts_tensor *draw(uint64_t seed, const int64_t *sizes, int ndim, ts_dtype dtype, bool odd)
{
    ts_tensor *t = ts_empty(sizes, ndim, TS_F32);
    float *x = t ? ts_data_mut(t) : NULL;
    for (int64_t i = 0; x && i < ts_numel(t); i++) {
        static const float values[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN};
        uint64_t z = (seed << 40) + (uint64_t)i * 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        x[i] = (float)(z >> 40) * 0x1p-22f - 2;
        if (odd && z % 97 < 5)
            x[i] = values[z % 97];
    }
    return ts_to(t, dtype);
}

static void print_reductions(ts_tensor *t)
{
    for (int mask = 1; mask < 8; mask++) {
        TS_SCOPE;
        int64_t dims[3];
        int n = 0;
        for (int d = 0; d < 3; d++)
            if (mask >> d & 1)
                dims[n++] = d;
        print_hash("always", "sum", mask, ts_sum_dims(t, dims, n, false));
        print_hash("always", "mean", mask, ts_mean_dims(t, dims, n, false));
        print_hash("always", "prod", mask, ts_prod_dims(t, dims, n, false));
        print_hash("always", "amax", mask, ts_amax_dims(t, dims, n, false));
        print_hash("always", "amin", mask, ts_amin_dims(t, dims, n, false));
        print_hash("always", "var", mask, ts_var_dims(t, dims, n, 1, false));
        print_hash("always", "std", mask, ts_std_dims(t, dims, n, 1, false));
        ts_tensor *near = ts_add_scalar(ts_mul_scalar(t, 0x1p-24), 1 / 3.0);
        print_hash("always", "var of near ones", mask, ts_var_dims(near, dims, n, 1, false));
        print_hash("always", "norm1", mask, ts_norm_dims(t, 1, dims, n, false));
        print_hash("always", "norm2", mask, ts_norm_dims(t, 2, dims, n, false));
        print_hash("always", "norminf", mask, ts_norm_dims(t, INFINITY, dims, n, false));
        print_hash("fma", "logsumexp", mask, ts_logsumexp_dims(t, dims, n, false));
    }
}

static void print_scans(ts_tensor *t)
{
    for (int d = 0; d < 3; d++) {
        TS_SCOPE;
        print_hash("always", "cumsum", d, ts_cumsum(t, d));
        print_hash("always", "cumsum_reversed", d, ts_cumsum_reversed(t, d));
        print_hash("always", "argmax", d, ts_argmax_dim(t, d, false));
        ts_tensor *y = ts_softmax(t, d), *log = ts_log_softmax(t, d);
        print_hash("fma", "softmax", d, y);
        print_hash("fma", "log_softmax", d, log);
        print_hash("fma", "softmax_backward", d, ts_softmax_backward(t, t, d));
        print_hash("fma", "log_softmax_backward", d, ts_log_softmax_backward(t, log, d));
    }
}

static void print_rows(ts_tensor *t, const int64_t *sizes, ts_dtype dtype)
{
    TS_SCOPE;
    ts_tensor *w = draw(71, &sizes[2], 1, dtype, false), *b = draw(72, &sizes[2], 1, dtype, false);
    print_hash("always", "global_norm", 0, ts_global_norm(&t, 1));
    print_hash("always", "rms_norm", 0, ts_rms_norm(t, w));
    print_hash("fma", "layer_norm", 0, ts_layer_norm(t, w, b));
    ts_tensor *x = ts_set_requires_grad(ts_to(t, TS_F32), true);
    ts_tensor *scale = ts_set_requires_grad(ts_to(w, TS_F32), true);
    ts_tensor *shift = ts_set_requires_grad(ts_to(b, TS_F32), true);
    ts_tensor *loss = ts_add(ts_mse_loss(ts_layer_norm(x, scale, shift), ts_detach(x)),
                             ts_sum(ts_rms_norm(x, scale)));
    if (ts_backward(loss) != TS_OK)
        exit(1);
    print_hash("fma", "norm_backward x", 0, ts_grad(x));
    print_hash("fma", "norm_backward weight", 0, ts_grad(scale));
    print_hash("fma", "norm_backward bias", 0, ts_grad(shift));
}

int main(void)
{
#ifdef __FP_FAST_FMAF
    bool fma = true;
#else
    bool fma = ts_cpu_isa() != TS_ISA_BASELINE;
#endif
    printf("variant %s: %s\n", ts_isa_name(ts_cpu_isa()), fma ? "fma" : "plain");
    static const int64_t shapes[][3] = {{2, 3, 4},   {7, 1, 65},    {3, 70, 33},  {2, 1500, 3},
                                        {70, 3, 140}, {2, 2, 9000}, {1, 1, 100003}};
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16, TS_F16};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int k = 0; k < 4; k++)
            for (int layout = 0; layout < 4; layout++) {
                TS_SCOPE;
                const int64_t *n = shapes[s];
                bool odd = layout == 3;
                snprintf(where, sizeof where, "%s %dx%dx%d layout %d", ts_dtype_name(dtypes[k]),
                         (int)n[0], (int)n[1], (int)n[2], layout);
                ts_tensor *t = draw(s + 1, n, 3, dtypes[k], odd);
                t = layout == 1 ? ts_transpose(t, 0, 2) : layout == 2 ? ts_transpose(t, 1, 2) : t;
                print_reductions(t);
                print_scans(t);
                if (layout == 0)
                    print_rows(t, n, dtypes[k]);
            }
    return 0;
}
