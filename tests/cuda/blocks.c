/** @file blocks.c  The building blocks of tensor cores, one way of using each at a time. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/blocks.h"
#include "tests/cuda/cuda.h"

TS_TEST(building_blocks_of_tensor_cores_are_exact_on_whole_numbers)
{
    GPU(device);
    OK(ts_synchronize(device));
    if (!block_device())
        TS_SKIP("not a Hopper GPU");
    for (int i = 0; i < block_row_count; i++) {
        int wrong = block_rows[i].run();
        if (wrong)
            printf("%s: %d elements are wrong%s%s\n", block_rows[i].name, wrong, wrong < 0 ? ": " : "", wrong < 0 ? block_error() : "");
        ts_tally(!wrong, wrong != 0, 0);
    }
}
