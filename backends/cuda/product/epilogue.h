/** @file epilogue.h  Products of matrices and convolutions that also compute the calls after them,
 * their epilogue. The planner of compiled functions asks ts_cuda_epilogue_cost() whether calls can
 * be an epilogue; ts_backend's slot group_run then runs them by ts_cuda_product_run(). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_EPILOGUE_H
#define TS_CUDA_EPILOGUE_H

#include "backends/cuda/product/gemm.h"
#include "tessera/backend.h"

TS_BEGIN_DECLS

/** The calls after a product, as its epilogue. gelu is the tanh form. */
typedef struct ts_cuda_after {
    int of;             /* index of the product's result (frame->rets) that the calls read */
    ts_tensor *result;  /* result of the last call, which the product stores instead of its own */
    ts_tensor *added;   /* added to the product; NULL: none */
    ts_tensor *gelu_of; /* unless NULL, the product is multiplied by gelu's derivative at these
                           values */
    ts_tensor *curve;   /* receives gelu of gelu_of; NULL: not wanted */
    ts_tensor *linear;  /* receives the argument of gelu; NULL: not stored */
    bool gelu, wide;    /* fields of ts_cuda_epilogue */
    ts_tensor *sums;    /* receives the sums of the result's columns; NULL: none. Requires
                           gelu_of */
    ts_frame *norm;     /* unless NULL, the product is an image and this batch norm, whose
                           statistics are arguments, is applied to it before the addition */
    bool relu_first, relu_last; /* relu before, and after, the addition */
    int64_t cost;       /* the value that ts_backend.epilogue_cost returns, in bytes */
} ts_cuda_after;

/** A kernel that computes a product. */
typedef struct ts_cuda_product {
    ts_kernel kernel;
    /** Queues the call with an epilogue; after NULL: none. Each tensor of the call that has an
     *  address (ts_kernel_data()) also has a storage, so this function may make views of it. */
    ts_status (*run)(ts_frame *f, const ts_cuda_after *after);
    /** True if the product can take the epilogue: fields, sizes, layouts and alignment allow it.
     *  Sets after->cost to 0 if the product's kernel applies the epilogue at no cost. */
    bool (*takes)(const ts_frame *f, ts_cuda_after *after);
} ts_cuda_product;
/** The product that a kernel computes; NULL if it computes none. */
const ts_cuda_product *ts_cuda_product_of(ts_kernel kernel);

enum { TS_CUDA_MATMULS = 3 };
extern const ts_cuda_product ts_cuda_matmul_products[TS_CUDA_MATMULS], /* matmul.c */
    ts_cuda_convolution_product;                                       /* convolution.c */

/** The slot ts_backend.epilogue_cost (tessera/backend.h). */
int64_t ts_cuda_epilogue_cost(void *state, const ts_group_call *calls, int count);
/** Queues calls[0], a product, with calls[1] to calls[count - 1] as its epilogue. Returns
 *  TS_ERR_UNSUPPORTED, without an effect, if the product cannot compute them, for example because a
 *  tensor is not 16-byte aligned; else the status of the product. */
ts_status ts_cuda_product_run(const ts_group_call *calls, int count);

TS_END_DECLS
#endif
