/** @file base.h  Compiler helpers used in every room (top-level folder) of the library. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_BASE_H
#define TS_CORE_BASE_H

#include "include/tessera/core.h"

#define TS_LIKELY(x) __builtin_expect(!!(x), 1)
#define TS_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define TS_INLINE static inline __attribute__((always_inline))
/* For long functions with many callers. Sanitizer builds do not force them inline, because the
 * instrumented copies take long to compile. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define TS_INLINE_LONG static inline
#else
#define TS_INLINE_LONG TS_INLINE
#endif
#define TS_COLD __attribute__((cold, noinline))
#define TS_COUNTOF(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* Placed before a loop. TS_UNROLL(n): unrolls n iterations, or all if there are fewer.
 * TS_INDEPENDENT: no iteration reads memory that another writes. TS_INDEPENDENT is empty for clang,
 * whose vectorised loops check this at run time. */
#define TS_PRAGMA(words) _Pragma(#words)
#ifdef __clang__
#define TS_UNROLL(n) TS_PRAGMA(unroll n)
#define TS_INDEPENDENT
#else
#define TS_UNROLL(n) TS_PRAGMA(GCC unroll n)
#define TS_INDEPENDENT TS_PRAGMA(GCC ivdep)
#endif

/** The bit of a dtype in a set of dtypes. */
#define TS_DT(d) ((uint16_t)(1u << (d)))
#define TS_DT_FLOATS (TS_DT(TS_F32) | TS_DT(TS_F64))
#define TS_DT_HALVES (TS_DT(TS_BF16) | TS_DT(TS_F16))
#define TS_DT_ALL ((uint16_t)((1u << TS_DTYPE_COUNT) - 1))

/** Hash of an address: an index into a table of mask + 1 = 2^n entries, n <= 24. */
TS_INLINE uint32_t ts_hash_pointer(const void *object, uint32_t mask)
{
    return (uint32_t)(((uintptr_t)object >> 6) * 0x9e3779b97f4a7c15ull >> 40) & mask;
}

/** A hash of `hash` and a word. */
TS_INLINE uint64_t ts_hash_word(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 29;
}
/** FNV-1a hash of `hash`, 0 for none, and a string. */
TS_INLINE uint64_t ts_hash_string(uint64_t hash, const char *string)
{
    for (hash = hash ? hash : 0xcbf29ce484222325ull; *string; string++)
        hash = (hash ^ (uint8_t)*string) * 0x100000001b3ull;
    return hash;
}

TS_INLINE int64_t ts_min64(int64_t a, int64_t b) { return a < b ? a : b; }
TS_INLINE int64_t ts_max64(int64_t a, int64_t b) { return a > b ? a : b; }
/** a / b rounded up, for a >= 0 and b > 0. */
TS_INLINE int64_t ts_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

#endif
