/* Kernel families of the CPU backend: FAMILY(name) for backends/cpu/name.c. */
// SPDX-License-Identifier: MIT
FAMILY(activation)
FAMILY(compare)
FAMILY(copy)
FAMILY(factory)
FAMILY(norm)
FAMILY(optim)
FAMILY(pointwise)
FAMILY(random)
FAMILY(reduce)
FAMILY(softmax)
FAMILY(unary)
