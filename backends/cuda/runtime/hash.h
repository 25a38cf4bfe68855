/** @file hash.h  Hash function of the backend's tables: compiled kernels of groups, plans of matrix
 * products (GEMM), and choices of convolution engines. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_HASH_H
#define TS_CUDA_HASH_H

#include <stddef.h>
#include <stdint.h>

/** Hash of n words. Different words may have the same hash, so callers compare the words, too. */
static inline uint64_t ts_cuda_hash(const uint64_t *words, size_t n)
{
    uint64_t hash = 0xcbf29ce484222325u; /* offset basis of 64-bit FNV-1a */
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio, made odd */
        hash ^= hash >> 29;
    }
    return hash;
}

#endif
