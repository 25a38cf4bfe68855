/** @file blocks.c  Building blocks of the tensor-core kernels, each tested alone: products, and
 * copies to and from shared memory. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/blocks.h"
#include "tests/cuda/cuda.h"

static void judge_table(const block_table *table)
{
    GPU(device);
    OK(ts_synchronize(device));
    if (!block_device())
        TS_SKIP("not a Hopper GPU");
    for (int i = 0; i < table->count; i++) {
        const block_row *row = &table->rows[i];
        int wrong = row->run();
        if (wrong)
            printf("%s: %d elements are wrong%s%s\n", row->name, wrong, wrong < 0 ? ": " : "",
                   wrong < 0 ? block_error() : "");
        ts_tally(!wrong, wrong != 0, 0);
    }
}

TS_TEST(products_of_integers_in_halves_on_tensor_cores_are_exact) { judge_table(&block_products); }
TS_TEST(copies_to_and_from_shared_memory_are_complete) { judge_table(&block_copies); }
