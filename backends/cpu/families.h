/* Kernel families of the CPU backend: FAMILY(name) for backends/cpu/name.c. */
// SPDX-License-Identifier: MIT
FAMILY(cat)
FAMILY(copy)
FAMILY(factory)
FAMILY(matmul)
FAMILY(pointwise)
FAMILY(random)
FAMILY(reduce)
FAMILY(slice)
