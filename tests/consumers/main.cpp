// A program in C++17: the headers' declarations link, scopes end with their blocks, options have
// their size, and functions take plain numbers.
// SPDX-License-Identifier: MIT
#include <cstdio>
#include <tessera/tessera.h>

static ts_tensor *twice(ts_tensor *x) { return ts_add(x, x); }

int main()
{
    TS_SCOPE;
    TS_NO_GRAD;
    const int64_t sizes[] = {2, 3};
    double sum = 0;
    auto opts = ts_opts<ts_mlp_opts>();
    opts.activation = twice;
    ts_module *mlp = ts_mlp_new(3, 4, &opts);
    ts_tensor *x = ts_full(sizes, 2, ts_scalar_int(1), TS_F32);
    ts_tensor *y = ts_sum(ts_add(x, ts_ones(sizes, 2, TS_F64)));
    ts_tensor *whole = ts_mul_scalar(ts_full(sizes, 2, ts_scalar_of(3), TS_I64), 2);
    ts_tensor *real = ts_clamp(ts_where_scalars(ts_gt_scalar(x, true), 1, 2u), 0, 1.5f);
    bool kinds = ts_dtype_of(whole) == TS_I64 && ts_dtype_of(real) == TS_F32;
    if (ts_item(y, &sum) != TS_OK || !ts_forward(mlp, x))
        ts_error_print();
    bool cpu = ts_device_of(y).backend == TS_DEVICE_CPU.backend;
    ts_module_free(mlp);
    std::printf("the sum is %g\n", sum);
    return sum == 12 && cpu && kinds ? 0 : 1;
}
