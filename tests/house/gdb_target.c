/** @file gdb_target.c  Tensors for gdb to print; test_gdb.py stops at stop_here(). */
// SPDX-License-Identifier: MIT
#include <tessera/tessera.h>

void stop_here(ts_tensor *x, ts_tensor *y, ts_tensor *dead, ts_tensor *none, ts_tensor *failed);

__attribute__((noinline)) void stop_here(ts_tensor *x, ts_tensor *y, ts_tensor *dead,
                                         ts_tensor *none, ts_tensor *failed)
{
    __asm__ volatile("" ::"r"(x), "r"(y), "r"(dead), "r"(none), "r"(failed) : "memory");
}

int main(void)
{
    TS_SCOPE;
    ts_tensor *list[TS_DTYPE_COUNT], *dead;
    ts_tensor *x = ts_from_array((float[]){1, 2, 3, 4, 5, 6}, TS_F32, TS_SIZES(2, 3));
    ts_set_requires_grad(x, true);
    ts_tensor *turned = ts_t(x);
    {
        TS_SCOPE;
        dead = ts_exp(x);
    }
    stop_here(x, turned, dead, TS_NONE, NULL);
    for (int d = 0; d < TS_DTYPE_COUNT; d++) {
        list[d] = ts_to(ts_from_array((float[]){0, 1.5f}, TS_F32, TS_SIZES(2)), (ts_dtype)d);
        stop_here(list[d], NULL, NULL, NULL, NULL);
    }
    stop_here(ts_arange(0, 1000, 1, TS_I64), ts_empty_on(TS_SIZES(4), TS_F32, TS_DEVICE_META),
              ts_scalar_tensor(2.5, TS_F64), ts_zeros(TS_SIZES(0, 3), TS_F32), NULL);
    return ts_error_code() != TS_OK;
}
