/** @file advice.h  Rules of advice: each has a condition, evidence, and an upper bound of its gain.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_PROFILE_ADVICE_H
#define TS_PROFILE_ADVICE_H

#include "profile/profile.h"

/** What a rule says about a profile. */
typedef struct ts_advice {
    bool fires;
    double gain; /* share of the time that the change saves, at most */
    char evidence[160];
} ts_advice;

typedef struct ts_rule {
    const char *id, *what;
    ts_advice (*ask)(const ts_profile *p);
} ts_rule;

enum { TS_RULES = 15 };
extern const ts_rule ts_rules[TS_RULES]; /* A1 to A15 */

/** Share of the profile's time. */
double ts_advice_share(const ts_profile *p, double ns);
/** Share of the time that a fused group of the memory-bound calls could save, at most. */
double ts_advice_fusion(const ts_profile *p);
/** Share of the time in which an idle device waits for the host to queue work. */
double ts_advice_late_host(const ts_profile *p);
/** Sizes of a matrix product. */
typedef struct ts_gemm_sizes {
    int64_t m, k, n;
} ts_gemm_sizes;
/** Reads the sizes of an entry's product from its text; false if it is none of two matrices. */
bool ts_advice_product(const ts_entry *e, ts_gemm_sizes *sizes);

#endif
