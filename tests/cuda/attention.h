/**
 * @file attention.h  Calls of attention by their sizes and options, and their reference: separate
 * ops in f64 and in the call's own dtype (docs/attention.md has the formulas).
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_ATTENTION_H
#define TESSERA_TESTS_CUDA_ATTENTION_H

#include "tests/cuda/cuda.h"

/* Which kernels serve: the best ones, those of sm_80, plain ones.
 * Without the plain ones where halves on tensor cores are meant. */
enum { TENSOR_CORES = 2, KERNELS = 3 };
/** To be called before the backend is opened. */
void keep_to(int which);

/** How (B, H, S, D) operands lie. */
typedef enum layout {
    DENSE,
    SWAPPED,  /* rows outside heads */
    FRAMED,   /* within longer and wider rows, which hold NaN */
    REPEATED, /* one head for all, by a stride of 0 */
    ODD,      /* rows of an odd length: tensor cores need a copy */
    LAYOUTS
} layout;

typedef struct problem {
    ts_dtype dtype;
    int64_t batch, heads, groups, rows, keys, depth;
    int64_t value_depth; /* 0: depth */
    layout lies;
    bool causal, window;
    int64_t left, right;
    double scale, softcap, dropout_p;
    /* A letter a dim: b, h, q, k of that size, B and H by a stride
     * of 0, 1 of size 1. NULL: no mask. */
    const char *mask;
    ts_dtype mask_dtype;
    bool packed; /* `batch` sequences of unequal lengths, rows and keys
                    at most, some of them empty */
    bool lse_gradient;
} problem;

enum { SEQUENCES = 8 };

/** A problem's tensors, all on one device. */
typedef struct operands {
    ts_tensor *q, *k, *v, *g, *g_lse; // (B, H, Sq, D), (B, G, Sk, D), (B, G, Sk, E),
                                      // (B, H, Sq, E), (B, H, Sq)
    ts_tensor *mask, *starts[2];      // or NULL: not masked, not packed
    ts_attention_opts numbers;        /* without its tensors */
    int32_t q_starts[SEQUENCES + 1], k_starts[SEQUENCES + 1];
} operands;

/** Results of a call. */
enum { OUT, DQ, DK, DV, RESULTS };
typedef struct results {
    ts_tensor *all[RESULTS], *lse;
    ts_tensor *dead; // (B, H, Sq), bool: rows that see no key
} results;

/** All options of a call; they point into o. */
ts_attention_opts options_of(const operands *o);
/** Normal numbers; the device's generator goes on. */
operands draw(const problem *p, ts_device device);
/** The same on another device. */
operands operands_to(const problem *p, const operands *o, ts_device device);
/** Forward and backward by the ops of attention. */
results by_attention(const operands *o);
/** By separate ops in `dtype` and autograd; results in the problem's dtype, lse in `dtype`. */
results by_ops(const problem *p, const operands *o, ts_dtype dtype);

/**
 * Judges a problem: results of halves against f64, within twice the error of separate ops
 * in the same dtype and twice what adding and taking away 0.3 rounds; gradients under a softcap
 * within three times that error and 3e-4 more (Shah et al., FlashAttention-3, test suite). Of f32:
 * within 32 eps sqrt(depth) of the largest, or of 1. lse within 1e-5, absolute and relative.
 * Rows that see no key are 0, their lse -Inf. Nothing is NaN. All this in deterministic mode, too.
 * Counts the problem as a sample; prints what is wrong.
 * @param where  of the reference
 */
void judge(const problem *p, ts_device device, ts_device where);

/** Largest absolute value; Inf when one is not finite, 0 of nothing. */
double largest(ts_tensor *t);
/** Largest difference, likewise. */
double apart(ts_tensor *a, ts_tensor *b);
/** Whether two tensors of the same sizes and dtype have the same bits. */
bool same_bits(ts_tensor *a, ts_tensor *b);

#endif
