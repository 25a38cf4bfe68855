// A program in C++17: the headers' declarations link, scopes end with their blocks, and options
// have their size.
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
    if (ts_item(y, &sum) != TS_OK || !ts_forward(mlp, x))
        ts_error_print();
    bool cpu = ts_device_of(y).backend == TS_DEVICE_CPU.backend;
    ts_module_free(mlp);
    std::printf("the sum is %g\n", sum);
    return sum == 12 && cpu ? 0 : 1;
}
