/** @file fake_cudnn.h  Control of a fake cuDNN library, whose engines run nothing. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_CUDA_FAKE_CUDNN_H
#define TESTS_CUDA_FAKE_CUDNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_ENGINES = 4, FAKE_TENSORS = 8 };

typedef struct fake_cudnn {
    size_t version;
    int engines; /* that the heuristic lists */
    int notes[FAKE_ENGINES], behaviors[FAKE_ENGINES]; /* a bit per note */
    int64_t workspaces[FAKE_ENGINES];
    unsigned no_plan, fails; /* bit i: engine i has no plan; its execution fails */

    int live;               /* descriptors not destroyed */
    int runs[FAKE_ENGINES]; /* executions */
    int last;               /* engine of the last execution */
    void *pointers[FAKE_TENSORS], *workspace; /* of the last execution; by id */
    int64_t sizes[FAKE_TENSORS][5], strides[FAKE_TENSORS][5]; /* of tensors, by id */
    bool is_virtual[FAKE_TENSORS];
    int64_t before[3], after[3], operations; /* of the last graph */
} fake_cudnn;

#endif
