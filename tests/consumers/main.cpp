// A program in C++17: the headers' declarations link, and scopes end with their blocks.
// SPDX-License-Identifier: MIT
#include <cstdio>
#include <tessera/tessera.h>

int main()
{
    TS_SCOPE;
    const int64_t sizes[] = {2, 3};
    double sum = 0;
    ts_tensor *y = ts_sum(ts_add(ts_ones(sizes, 2, TS_F32), ts_ones(sizes, 2, TS_F64)));
    if (ts_item(y, &sum) != TS_OK)
        ts_error_print();
    std::printf("the sum is %g\n", sum);
    return sum == 12 ? 0 : 1;
}
