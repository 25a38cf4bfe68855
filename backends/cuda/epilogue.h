/** @file epilogue.h  Products that also compute the calls after them (ts_backend.epilogue_cost). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_EPILOGUE_H
#define TS_CUDA_EPILOGUE_H

#include "backends/cuda/gemm.h"
#include "tessera/backend.h"

TS_BEGIN_DECLS

/** The calls after a product, as its epilogue. */
typedef struct ts_cuda_after {
    int of;             /* index of the product's result that the calls read */
    ts_tensor *result;  /* what the product stores instead of that result */
    ts_tensor *added;   /* added to the product; NULL: none */
    ts_tensor *gelu_of; /* arguments of gelu, by whose derivative there the product is multiplied;
                           NULL: none */
    ts_tensor *linear;  /* receives the argument of gelu; NULL: not stored */
    bool gelu, wide;    /* fields of ts_cuda_epilogue */
    int64_t cost;       /* as of ts_backend.epilogue_cost */
} ts_cuda_after;

/** A call that is a product (matmul.c). */
typedef struct ts_cuda_product {
    ts_kernel kernel;
    /** Queues the call with an epilogue. The frame's tensors have addresses (ts_kernel_data()) but
     *  no storage objects. */
    ts_status (*run)(ts_frame *f, const ts_cuda_after *after);
    /** Whether the product can take the epilogue: sizes, layouts and alignment allow it. */
    bool (*takes)(const ts_frame *f, const ts_cuda_after *after);
} ts_cuda_product;
/** The product that a kernel computes; NULL if it computes none. */
const ts_cuda_product *ts_cuda_product_of(ts_kernel kernel);

/** ts_backend.epilogue_cost. */
int64_t ts_cuda_epilogue_cost(void *state, const ts_group_call *calls, int count);
/** Queues a product with the calls after it. TS_ERR_UNSUPPORTED, without an effect, if it cannot
 *  run so, for example because a tensor is not 16-byte aligned. */
ts_status ts_cuda_product_run(const ts_group_call *calls, int count);

TS_END_DECLS
#endif
