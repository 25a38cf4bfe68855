/**
 * @file random.h
 * Random numbers. Bits are Philox4x32-10 of (seed, position): a call reserves the positions it
 * needs from the thread's generator (ts_manual_seed) and element i of the result is a function
 * of seed, position and i alone, whatever the layout or the number of threads.
 *
 * In-place forms write every element and return t; a leaf that requires grad is written under
 * TS_NO_GRAD. Errors: TS_ERR_VALUE for parameters, TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_RANDOM_H
#define TESSERA_OPS_RANDOM_H

#include "../core.h"

TS_BEGIN_DECLS

/** Uniform in [low, high), f32 or f64, on the default device; low <= high, both finite. */
TS_API ts_tensor *ts_uniform(const int64_t *sizes, int ndim, double low, double high,
                             ts_dtype dtype);
TS_API ts_tensor *ts_uniform_on(const int64_t *sizes, int ndim, double low, double high,
                                ts_dtype dtype, ts_device device);
TS_API ts_tensor *ts_uniform_(ts_tensor *t, double low, double high);

/** Normal of a mean and a standard deviation >= 0 (Box-Muller), f32 or f64. */
TS_API ts_tensor *ts_normal(const int64_t *sizes, int ndim, double mean, double std,
                            ts_dtype dtype);
TS_API ts_tensor *ts_normal_on(const int64_t *sizes, int ndim, double mean, double std,
                               ts_dtype dtype, ts_device device);
TS_API ts_tensor *ts_normal_(ts_tensor *t, double mean, double std);

/** Integers in [low, high), i64; low < high. */
TS_API ts_tensor *ts_randint(const int64_t *sizes, int ndim, int64_t low, int64_t high);
/** As above in any dtype that holds the range exactly. */
TS_API ts_tensor *ts_randint_on(const int64_t *sizes, int ndim, int64_t low, int64_t high,
                                ts_dtype dtype, ts_device device);
TS_API ts_tensor *ts_randint_(ts_tensor *t, int64_t low, int64_t high);

/** Random permutation of 0 to n - 1, (n) i64, by Fisher and Yates. */
TS_API ts_tensor *ts_randperm(int64_t n);

/** 1 with the probability that p's element states, else 0;
 * sizes and dtype of p, which is f32 or f64. */
TS_API ts_tensor *ts_bernoulli(ts_tensor *p);
/** The same of one probability in [0, 1]; dtype f32, f64, i64, i32, u8 or bool. */
TS_API ts_tensor *ts_bernoulli_p(const int64_t *sizes, int ndim, double p, ts_dtype dtype);
TS_API ts_tensor *ts_bernoulli_(ts_tensor *t, double p);

/**
 * Draws indices by weight.
 * @param probs        (C) or (N, C), f32 or f64: finite weights >= 0, not all zero in a row; they
 *                     need not sum to 1
 * @param num_samples  S >= 1; without replacement at most the number of weights > 0 in each row
 * @return (S) or (N, S), i64; without replacement in the order of drawing
 *
 * Without replacement the draws are the smallest E_c / p_c with E exponential (Efraimidis and
 * Spirakis, "Weighted random sampling with a reservoir", 2006).
 */
TS_API ts_tensor *ts_multinomial(ts_tensor *probs, int64_t num_samples, bool replacement);

/**
 * In training sets each element to 0 with probability p in [0, 1] and multiplies the others by
 * 1 / (1 - p); else, and for p = 0, an alias of x. No mask is kept: backward draws it again.
 */
TS_API ts_tensor *ts_dropout(ts_tensor *x, double p, bool train);
TS_API ts_tensor *ts_dropout_(ts_tensor *x, double p, bool train);
/** What dropout at the generator's state `at` did, done to grad. */
TS_API ts_tensor *ts_dropout_backward(ts_tensor *grad, double p, ts_rng_state at);

TS_END_DECLS
#endif
