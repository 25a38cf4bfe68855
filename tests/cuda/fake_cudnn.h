/** @file fake_cudnn.h  Control of a fake cuDNN library, whose engines run nothing. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_CUDA_FAKE_CUDNN_H
#define TESTS_CUDA_FAKE_CUDNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_ENGINES = 4, FAKE_TENSORS = 8 };

typedef struct fake_cudnn {
    /* set by a test */
    size_t version; /* result of cudnnGetVersion() */
    int engines;    /* number of engines that the heuristic lists */
    int notes[FAKE_ENGINES], behaviors[FAKE_ENGINES]; /* per engine: its numerical and behavior
                                                         notes, a bit per note */
    int64_t workspaces[FAKE_ENGINES]; /* per engine: bytes of workspace */
    unsigned no_plan, fails; /* bit i: engine i has no plan; its executions fail */

    /* set by the fake */
    int handles;            /* number of calls of cudnnCreate() */
    int live;               /* number of descriptors not destroyed */
    int runs[FAKE_ENGINES]; /* per engine: number of executions */
    int last;               /* engine of the last execution */
    void *pointers[FAKE_TENSORS], *workspace; /* of the last execution: address of each tensor, by
                                                 id; workspace */
    int64_t sizes[FAKE_TENSORS][5], strides[FAKE_TENSORS][5]; /* per tensor, by id */
    bool is_virtual[FAKE_TENSORS]; /* per tensor, by id: it has no memory */
    int64_t before[3], after[3], operations; /* of the last graph: padding before and after each
                                                spatial dim; number of operations */
} fake_cudnn;

#endif
