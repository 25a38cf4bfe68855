// A program in C++17: the headers' declarations link, scopes end with their blocks, options have
// their size, and functions take plain numbers.
// SPDX-License-Identifier: MIT
#include <cstdio>
#include <tessera/tessera.h>

static ts_tensor *twice(ts_tensor *x) { return ts_add(x, x); }

static bool throws = true;
static ts_status throwing(ts_frame *f)
{
    if (throws)
        throw f->op;
    return ts_redispatch(f);
}

// A layer's exception passes through the library and leaves the thread as it was.
static bool exceptions_pass()
{
    TS_SCOPE;
    TS_ENABLE_GRAD;
    ts_key key;
    const int64_t sizes[] = {2};
    ts_tensor *x = ts_set_requires_grad(ts_ones(sizes, 1, TS_F32), true);
    if (ts_register_layer("THROWS", "", &key) != TS_OK ||
        ts_register_kernel("mul", key, throwing, nullptr, nullptr) != TS_OK ||
        ts_layer_enable(key, true) != TS_OK)
        return false;
    ts_mask_guard before = ts_mask_get(), after;
    int caught = 0;
    for (int i = 0; i < 300; i++)
        try {
            TS_SCOPE;
            TS_NO_GRAD;
            ts_mul(x, x);
        } catch (uint16_t) {
            caught++;
        }
    throws = false;
    after = ts_mask_get();
    return caught == 300 && after.exclude == before.exclude && after.include == before.include &&
           ts_backward(ts_sum(ts_mul(x, x))) == TS_OK && ts_grad(x) != TS_NONE;
}

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
    return sum == 12 && cpu && kinds && exceptions_pass() ? 0 : 1;
}
