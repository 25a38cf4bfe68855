/* Kernel families of the CUDA backend: FAMILY(name) for backends/cuda/name.cu. */
// SPDX-License-Identifier: MIT
FAMILY(activation)
FAMILY(compare)
FAMILY(copy)
FAMILY(factory)
FAMILY(loss)
FAMILY(matmul)
FAMILY(norm)
FAMILY(optim)
FAMILY(pointwise)
FAMILY(reduce)
FAMILY(softmax)
FAMILY(unary)
