/** @file advice.h  The rules of advice (rules.c) and the numbers that they compute from a profile.
 * Gains and shares are fractions of ts_profile_time(), so 0.1 is 10 %. The gain of A15 is a
 * fraction of the wall time of all steps. */
// SPDX-License-Identifier: MIT
#ifndef TS_PROFILE_ADVICE_H
#define TS_PROFILE_ADVICE_H

#include "profile/profile.h"

/** The result of a rule for a profile. */
typedef struct ts_advice {
    bool fires;         /* the rule applies */
    double gain;        /* upper bound of the share of the time that the change saves */
    char evidence[160]; /* the observation, as text */
} ts_advice;

/** A rule of advice. */
typedef struct ts_rule {
    const char *id, *what; /* "A1"; the change that it advises */
    ts_advice (*ask)(const ts_profile *p); /* p is judged (ts_profile_judge()) */
} ts_rule;

enum { TS_RULES = 15 };
extern const ts_rule ts_rules[TS_RULES]; /* A1 to A15 */

/** ns as a share of ts_profile_time(). */
double ts_advice_share(const ts_profile *p, double ns);
/** True if a compiled function may run calls of the op in a fused group. False for an op that reads
 *  no tensor (fills, random numbers), writes an argument, may refuse elements (TS_OP_CHECKED), is
 *  not of kind TS_FILL (a view, for example), or was registered by the program. */
bool ts_advice_op_joins(int op);
/** Upper bound of the share of the time that fusing all memory-bound calls saves, whether or not
 *  they read results of one another. */
double ts_advice_fusion(const ts_profile *p);
/** Share of the time in which the device is idle because of the host or of launch delays (causes
 *  host, launch and unknown); 0 without device times. */
double ts_advice_late_host(const ts_profile *p);
/** Sizes of a matrix product (m, k) × (k, n). */
typedef struct ts_gemm_sizes {
    int64_t m, k, n;
} ts_gemm_sizes;
/** Reads the sizes of a product from e->op and e->call (mm, matmul, linear, linear_gelu; for
 *  linear_backward, of the gradient of its input). Batch dims count as rows, m. False if e is
 *  another op, or if the second operand of another op than linear_backward is not a matrix. */
bool ts_advice_product(const ts_entry *e, ts_gemm_sizes *sizes);

/** Writes the rules that fire for `before` with a gain above 0: the bound of the gain, the part of
 *  it that is left in `after`, and the saved part, as shares of the time of a step in `before`. The
 *  last line has the change of that time. Writes nothing if no rule applies, or if a profile has no
 *  measured ceilings. */
void ts_profile_compare_advice(const ts_profile *before, const ts_profile *after, FILE *out);

#endif
