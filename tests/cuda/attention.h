/**
 * @file attention.h  Calls of attention by their sizes and options, and their reference: separate
 * ops in f64 and in the call's own dtype (docs/attention.md has the formulas).
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_ATTENTION_H
#define TESSERA_TESTS_CUDA_ATTENTION_H

#include "tests/cuda/cuda.h"

/* Sets of attention kernels, for keep_to(): 0 all kernels, 1 without split and wgmma kernels, 2
 * without tensor cores. The first TENSOR_CORES sets have tensor-core kernels. */
enum { TENSOR_CORES = 2, KERNELS = 3 };
/** Restricts the backend to set number `which` of attention kernels. Call it before the backend is
 *  opened. */
void keep_to(int which);

/** Memory layout of the (B, H, S, D) operands. */
typedef enum layout {
    DENSE,
    SWAPPED,  /* (B, S, H, D) in memory */
    FRAMED,   /* part of a tensor with more and longer rows, whose other elements are NaN */
    REPEATED, /* all heads share one head's memory, by a stride of 0 */
    ODD,      /* row stride of an odd number of elements: tensor cores need a copy */
    LAYOUTS
} layout;

/** Sizes and options of a call; docs/attention.md defines the letters. */
typedef struct problem {
    ts_dtype dtype;
    int64_t batch, heads, groups, rows, keys, depth; /* B, H, G, Sq, Sk, D of `operands` */
    int64_t value_depth; /* E of `operands`; 0: depth */
    layout lies;
    bool causal, window;
    int64_t left, right; /* ts_attention_opts.window_left and window_right, with `window` */
    double scale, softcap, dropout_p;
    /* One letter per dim of the mask: b, h, q, k: of that size; B, H: of that size with stride 0;
     * 1: of size 1. NULL: no mask. */
    const char *mask;
    ts_dtype mask_dtype;
    bool packed; /* `batch` packed sequences of unequal lengths, at most `rows` and `keys`; some are
                    empty */
    bool padded; /* keys have lengths per batch, some of them 0: at most 8 batches */
    uint32_t lengths; /* lengths of sequences or keys are drawn from this seed; 0: fixed shares */
    bool lse_gradient;
} problem;

enum { SEQUENCES = 8 };

/** A problem's tensors, all on one device. */
typedef struct operands {
    ts_tensor *q, *k, *v, *g, *g_lse; // (B, H, Sq, D), (B, G, Sk, D), (B, G, Sk, E),
                                      // (B, H, Sq, E), (B, H, Sq)
    ts_tensor *mask, *starts[2];      // NULL without a mask; NULL unless packed
    ts_tensor *key_lengths;           // NULL unless padded
    ts_attention_opts numbers;        /* options without tensors */
    int32_t q_starts[SEQUENCES + 1], k_starts[SEQUENCES + 1], k_lengths[SEQUENCES];
} operands;

/** Results of a call. */
enum { OUT, DQ, DK, DV, RESULTS };
typedef struct results {
    ts_tensor *all[RESULTS], *lse; // lse (B, H, Sq): log-sum-exp of each row's scores
    ts_tensor *dead; // (B, H, Sq), bool: rows that see no key
} results;

/** All options of a call. They point into o. */
ts_attention_opts options_of(const operands *o);
/** Draws standard normal operands on the device from the generator. */
operands draw(const problem *p, ts_device device);
/** Copies operands to another device. */
operands operands_to(const problem *p, const operands *o, ts_device device);
/** Forward and backward by the attention ops. */
results by_attention(const operands *o);
/** Forward and backward by separate ops in `dtype` with autograd. Results are in the problem's
 *  dtype, lse is in `dtype`. */
results by_ops(const problem *p, const operands *o, ts_dtype dtype);

/**
 * Tests a problem in normal and in deterministic mode. Counts it as a sample and prints wrong
 * results. Tolerances (Shah et al., FlashAttention-3, test suite):
 *   halves  against f64: twice the error of separate ops in the same dtype, plus twice the rounding
 *           error of adding and subtracting 0.3; gradients with a softcap: three times the error of
 *           separate ops, plus the same rounding error, plus 3e-4
 *   f32     2^-19 sqrt(depth) times the larger of 1 and the largest absolute value
 *   lse     1e-5 (1 + |lse|)
 * In rows without visible keys the output and the gradient of query must be 0, and lse -Inf. A NaN
 * is wrong.
 * @param where  device that computes the reference
 */
void judge(const problem *p, ts_device device, ts_device where);

/** Largest absolute value; Inf if an element is not finite, 0 for an empty tensor. */
double largest(ts_tensor *t);
/** Largest absolute difference, with the same special cases. */
double apart(ts_tensor *a, ts_tensor *b);
/** True if two tensors of the same sizes and dtype have the same bits. */
bool same_bits(ts_tensor *a, ts_tensor *b);

#endif
