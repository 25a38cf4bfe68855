/**
 * @file attention.c  Scaled dot-product attention in tiles, forward and backward.
 *
 * Forward uses online softmax: it keeps a running maximum and sum per row (Milakov and Gimelshein,
 * Online normalizer calculation for softmax, 2018) while it processes the keys tile by tile (Dao et
 * al., FlashAttention, 2022). Backward recomputes the probabilities from the saved logsumexp.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "backends/cpu/pack.h"
#include "backends/cpu/philox.h"
#include "backends/cpu/slots.h"
#include "backends/cpu/vmath.h"
#include "ops/kernel.h"

#define FORWARD_ROWS 128 /* most rows of a forward task */
#define BACKWARD_ROWS 64 /* most rows of a backward tile */
#define BACKWARD_KEYS 64 /* most keys of a backward tile */
#define MOST_KEYS 256    /* most keys of any tile */

/** A (batch, head, row, depth) operand whose depth is dense; steps in elements. */
typedef struct operand {
    void *data; /* NULL: not requested */
    int64_t batch, head, row;
} operand;

/** A decoded call. Tensors are borrowed. */
typedef struct attention {
    ts_attention c; /* the call; c.rows and c.keys are the sizes that index mask and dropout */
    operand q, k, v, out, g, dq, dk, dv;
    void *lse;             /* result (batch, heads, tokens) of forward, or NULL */
    const void *saved_lse; /* lse as input of backward */
    const void *g_lse;     /* gradient of lse, or NULL */
    int64_t heads, share;  /* heads of the query; query heads per key head */
    int64_t rows, keys;    /* largest numbers of rows and keys of a part */
    int64_t depth, value_depth;
    int64_t depth_room, value_room; /* depth and value_depth, rounded up to whole panels */
    int64_t tile;                   /* keys per tile */
    int64_t mask[4];                /* steps of c.mask by part, head, row and key;
                                       0 where it is broadcast */
    uint32_t threshold;             /* dropout drops a weight whose 24-bit number is below the
                                       threshold */
    double dropout_scale;           /* 1 / (1 - p): factor of the weights that dropout keeps */
    bool masked;                    /* scores have a mask, a softcap or a left window bound */
    bool zeroed;                    /* backward zeroes its results first, because tiles may not
                                       cover them */
    ts_slots slots;
} attention;

/** An independent attention problem: one batch element, or one packed sequence. `keys` are those
 * of its key_lengths. */
typedef struct part {
    int64_t index; /* among the parts */
    int64_t batch; /* batch index in the tensors; 0 for packed sequences */
    int64_t rows, keys, row0, key0; /* numbers of rows and keys; the first of each in the tensors */
} part;

/** Element i of the cumulative bounds or lengths t (i32, 1-D). */
static int64_t bound(const ts_tensor *t, int64_t i)
{
    return ((const int32_t *)t->data)[i * t->strides[0]];
}

/** Part i of the call. */
static part part_of(const attention *s, int64_t i)
{
    const ts_tensor *q = s->c.cu_seqlens_q, *k = s->c.cu_seqlens_k;
    if (s->c.key_lengths)
        return (part){i, i, s->rows, bound(s->c.key_lengths, i), 0, 0};
    if (!q)
        return (part){i, i, s->rows, s->keys, 0, 0};
    return (part){i, 0, bound(q, i + 1) - bound(q, i), bound(k, i + 1) - bound(k, i), bound(q, i),
                  bound(k, i)};
}

/** Index of row i of a head in lse and its gradient. */
static int64_t statistic(const attention *s, const part *at, int64_t head, int64_t i)
{
    return (at->batch * s->heads + head) * s->c.query->sizes[2] + at->row0 + i;
}

#define A_AT(x, b, h) ((A_T *)(x).data + (b) * (x).batch + (h) * (x).head)

/* Sets r to the transpose of the block from (rows, lanes) of at most A_L by A_L elements, padded
 * with zeros. */
VEC_FN void block_f32(vf r[VF_LANES], const float *from, int64_t row, int64_t rows, int64_t lanes)
{
    if (rows == VF_LANES && lanes == VF_LANES)
        TS_UNROLL(16) for (int i = 0; i < VF_LANES; i++) r[i] = vf_load(from + i * row);
    else
        for (int64_t i = 0; i < VF_LANES; i++)
            r[i] = i < rows ? vf_load_n(from + i * row, lanes) : vf_zero();
    vf_transpose(r);
}
VEC_FN void block_f64(vd r[VD_LANES], const double *from, int64_t row, int64_t rows, int64_t lanes)
{
    double column[VD_LANES];
    for (int64_t i = 0; i < VD_LANES; i++) {
        for (int64_t j = 0; j < VD_LANES; j++)
            column[j] = i < lanes && j < rows ? from[j * row + i] : 0;
        r[i] = vd_load(column);
    }
}

#define A_T float
#define A_V vf
#define A_L VF_LANES
#define A_(name) name##_f32
#define A_P(name) vf_##name
#define A_MICRO TS_V(ts_micro_f32)
#define A_EXP vf_exp
#define A_FIRST vm_first_n
#define A_TRANSPOSE vf_pack_transposed
#define A_BLOCK block_f32
#include "backends/cpu/attention_loops.h"
#undef A_T
#undef A_V
#undef A_L
#undef A_
#undef A_P
#undef A_MICRO
#undef A_EXP
#undef A_FIRST
#undef A_TRANSPOSE
#undef A_BLOCK

VEC_FN vd exp_f64(vd x)
{
    for (int i = 0; i < VD_LANES; i++)
        x[i] = exp(x[i]);
    return x;
}

/* vf_pack_transposed() for f64. */
VEC_FN void transpose_f64(double *to, int64_t width, const double *from, int64_t row,
                          int64_t columns, int64_t k)
{
    for (int64_t p = 0; p < k; p++)
        for (int64_t j = 0; j < width; j++)
            to[p * width + j] = j < columns ? from[j * row + p] : 0;
}

#define A_T double
#define A_V vd
#define A_L VD_LANES
#define A_(name) name##_f64
#define A_P(name) vd_##name
#define A_MICRO TS_V(ts_micro_f64)
#define A_EXP exp_f64
#define A_FIRST vdm_first_n
#define A_TRANSPOSE transpose_f64
#define A_BLOCK block_f64
#include "backends/cpu/attention_loops.h"

/* ----------------------------------------------------------------------------- kernels ---- */

static operand operand_of(const ts_value *v)
{
    if (v->tag != TS_TAG_TENSOR)
        return (operand){0};
    return (operand){v->t->data, v->t->strides[0], v->t->strides[1], v->t->strides[2]};
}

static int64_t round_up(int64_t n, int64_t to) { return ts_ceil_div(n, to) * to; }

/** Checks the key lengths: each is from 0 to the number of keys. Otherwise returns TS_ERR_VALUE. */
static ts_status check_lengths(const ts_frame *f, const ts_attention *c)
{
    for (int64_t i = 0; i < c->batch; i++) {
        int64_t length = bound(c->key_lengths, i);
        if (length >= 0 && length <= c->keys)
            continue;
        return ts_fail_op(TS_ERR_VALUE, ts_op_name(f->op), f->site, NULL,
                          "argument 'key_lengths': expected 0 to %lld, the number of keys, got "
                          "%lld in batch %lld",
                          (long long)c->keys, (long long)length, (long long)i);
    }
    return TS_OK;
}

/** Checks the cumulative bounds t of packed sequences: they run from 0 to `tokens`, with lengths
 * from 0 to `most`. Otherwise returns TS_ERR_VALUE. *longest receives the largest length. */
static ts_status check_bounds(const ts_frame *f, const ts_tensor *t, int64_t tokens, int64_t most,
                              int64_t *longest)
{
    int arg = 0; /* the list that t is in */
    while (f->args[arg].tag != TS_TAG_TENSORS)
        arg++;
    int64_t parts = t->sizes[0] - 1;
    *longest = 0;
    if (bound(t, 0) != 0 || bound(t, parts) != tokens)
        return ts_fail_arg(f, arg, TS_ERR_VALUE,
                           "expected bounds from 0 to the %lld tokens, got %lld to %lld",
                           (long long)tokens, (long long)bound(t, 0), (long long)bound(t, parts));
    for (int64_t i = 0; i < parts; i++) {
        int64_t length = bound(t, i + 1) - bound(t, i);
        if (length < 0 || length > most)
            return ts_fail_arg(f, arg, TS_ERR_VALUE,
                               "expected 0 to %lld tokens a sequence, as argument 'max_seqlens' "
                               "says, got %lld in sequence %lld",
                               (long long)most, (long long)length, (long long)i);
        *longest = ts_max64(*longest, length);
    }
    return TS_OK;
}

/** Sets the steps of the mask, whose dims are aligned at the last one; 0 for broadcast dims. */
static void describe_mask(attention *s)
{
    const ts_tensor *t = s->c.mask;
    for (int d = 0; d < t->ndim; d++)
        s->mask[4 - t->ndim + d] = t->sizes[d] == 1 ? 0 : t->strides[d];
}

static void log_path(const ts_frame *f, bool masked)
{
    if (!ts_log_on("attention"))
        return;
    char call[512];
    ts_frame_describe(f, call, sizeof call);
    ts_log_write("attention", "cpu, tiles in %s%s: %s", ts_dtype_name(f->plan->compute),
                 masked ? ", scores masked or capped" : "", call);
}

/** Decodes the arguments of forward or backward. qkv: the three arguments query, key and value. */
static ts_status describe(attention *s, const ts_frame *f, const ts_value *qkv)
{
    const ts_attention *c = &s->c;
    s->c = ts_kernel_attention(f);
    s->q = operand_of(&qkv[0]);
    s->k = operand_of(&qkv[1]);
    s->v = operand_of(&qkv[2]);
    s->heads = c->heads;
    s->share = c->groups ? c->heads / c->groups : 1;
    s->rows = c->rows;
    s->keys = c->keys;
    if (c->cu_seqlens_q) {
        TS_TRY(ts_checked(
            f, check_bounds(f, c->cu_seqlens_q, c->query->sizes[2], c->rows, &s->rows)));
        TS_TRY(ts_checked(
            f, check_bounds(f, c->cu_seqlens_k, c->key->sizes[2], c->keys, &s->keys)));
    }
    if (c->key_lengths)
        TS_TRY(ts_checked(f, check_lengths(f, c)));
    s->depth = c->depth;
    s->value_depth = c->value_depth;
    int64_t panel = c->query->dtype == TS_F32 ? MICRO_COLUMNS_F : MICRO_COLUMNS_D;
    s->depth_room = round_up(s->depth, panel);
    s->value_room = round_up(s->value_depth, panel);
    bool narrow = c->left < c->rows + c->keys;
    s->masked = narrow || c->mask || c->softcap > 0;
    if (c->mask)
        describe_mask(s);
    if (c->dropout_p > 0) {
        s->threshold = (uint32_t)ceil(c->dropout_p * 0x1p24);
        s->dropout_scale = c->dropout_p < 1 ? 1 / (1 - c->dropout_p) : 0;
    }
    log_path(f, s->masked);
    return TS_OK;
}

/** Fills all requested results with 0. They are dense, in any order of dims. */
static void zero_results(ts_frame *f)
{
    for (int i = 0; i < f->nrets; i++) {
        const ts_value *v = &f->rets[i];
        if (v->tag == TS_TAG_TENSOR && v->t->numel)
            memset(v->t->data, 0, (size_t)v->t->numel * ts_dtype_sizes[v->t->dtype]);
    }
}

/** Runs the tasks on the thread pool with scratch of `elements` elements per thread. work:
 * multiply-adds of a task. TS_ERR_MEMORY. */
static ts_status run(ts_frame *f, attention *s, int64_t tasks, int64_t elements, double work,
                     ts_parallel_body body)
{
    TS_TRY(ts_slots_begin(f, &s->slots, tasks, elements * ts_dtype_sizes[f->plan->compute],
                          "tiles of attention"));
    if (s->zeroed)
        zero_results(f);
    ts_parallel_for(tasks, 1 + (int64_t)((1 << 20) / (work + 1)), body, s);
    ts_slots_end(f, &s->slots);
    return TS_OK;
}

/* (query, key, value, options) -> (out, lse) */
static ts_status forward(ts_frame *f)
{
    attention s = {.out = operand_of(&f->rets[0])};
    const ts_value *a = f->args;
    TS_TRY(describe(&s, f, a));
    if (f->rets[1].tag == TS_TAG_TENSOR)
        s.lse = f->rets[1].t->data;
    int64_t tasks = s.c.batch * s.heads * ts_ceil_div(s.rows, FORWARD_ROWS);
    if (!tasks)
        return TS_OK;
    int64_t most = ts_max64(s.depth_room, s.value_room);
    s.tile = most <= 64 ? MOST_KEYS : most <= 128 ? 128 : 64;
    double work = (double)ts_min64(s.rows, FORWARD_ROWS) * (double)s.keys *
                  (double)(s.depth + s.value_depth + 16);
    return run(f, &s, tasks, s.tile * (s.depth_room + s.value_room + MICRO_ROWS), work,
               f->plan->compute == TS_F32 ? forward_f32 : forward_f64);
}

/* (grad, grad_lse, query, key, value, out, lse, options) -> gradients of query, key and value */
static ts_status backward(ts_frame *f)
{
    const ts_value *a = f->args;
    attention s = {.g = operand_of(&a[0]), .out = operand_of(&a[5]), .saved_lse = a[6].t->data,
                   .dq = operand_of(&f->rets[0]), .dk = operand_of(&f->rets[1]),
                   .dv = operand_of(&f->rets[2])};
    TS_TRY(describe(&s, f, &a[2]));
    if (a[1].tag == TS_TAG_TENSOR)
        s.g_lse = a[1].t->data;
    int64_t shared = s.heads / s.share, tasks = s.c.batch * shared;
    s.zeroed = s.c.left < s.c.rows + s.c.keys || s.c.cu_seqlens_q || s.c.key_lengths;
    if (!tasks || !s.rows || !s.keys) {
        zero_results(f);
        return TS_OK;
    }
    s.tile = BACKWARD_KEYS;
    int64_t elements = s.tile * (2 * s.depth_room + s.value_room) +
                       BACKWARD_ROWS * (s.depth_room + s.value_room + 2 * s.tile) +
                       s.share * s.rows;
    double work = (double)s.rows * (double)s.keys * (double)s.share *
                  (double)(s.depth + s.value_depth + 16) * 2.5;
    return run(f, &s, tasks, elements, work,
               f->plan->compute == TS_F32 ? backward_f32 : backward_f64);
}

TS_CPU_FAMILY(attention,
    {TS_OP_scaled_dot_product_attention, forward, {TS_DT_FLOATS, 0}},
    {TS_OP_scaled_dot_product_attention_backward, backward, {TS_DT_FLOATS, 0}})
