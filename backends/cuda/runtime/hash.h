/** @file hash.h  Hash function of the backend's tables: compiled kernels and GEMM plans. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_HASH_H
#define TS_CUDA_HASH_H

#include <stddef.h>
#include <stdint.h>

/** Hash of n words. Different words may have the same hash, so compare the words, too. */
static inline uint64_t ts_cuda_hash(const uint64_t *words, size_t n)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

#endif
