/** @file blocks.h  Kernels built from the tensor-core building blocks, for the checks in
 * blocks.c. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_BLOCKS_H
#define TESSERA_TESTS_CUDA_BLOCKS_H

#ifdef __cplusplus
extern "C" {
#endif

/** A check of one building block. Its inputs are small integers, so all sums are exact. */
typedef struct block_row {
    const char *name;
    int (*run)(void); /* number of elements that differ from the host's result; -1: CUDA reports an
                         error */
} block_row;

typedef struct block_table {
    const block_row *rows;
    int count;
} block_table;

extern const block_table block_products, block_copies;

/** True if the current device is a Hopper GPU. block_error(): the text of the error of
 * the last check that returned -1. */
int block_device(void);
const char *block_error(void);

#ifdef __cplusplus
}
#endif

#endif
