/**
 * @file loss.c
 * Losses over classes (cross_entropy, nll_loss) and over pairs of elements (mse_loss and others),
 * and their gradients, each in one pass. A reduced loss is computed per position or per block, and
 * these parts are summed in f64 in a fixed order.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/copy.h"
#include "backends/cpu/slots.h"
#include "core/convert.h"
#include "core/parallel.h"
#include "include/tessera/kernel.h"
#include "include/tessera/ops/copy.h"
#include "include/tessera/ops/loss.h"
#include "ops/kernel.h"

enum { PAIR_BLOCK = 4096 }; /* elements of a task, and of a partial sum */

#define PAIRS PAIR(MSE) PAIR(L1) PAIR(SMOOTH_L1) PAIR(HUBER) PAIR(BCE) PAIR(KL) PAIR(KL_LOG)
typedef enum pair_kind {
#define PAIR(name) PAIR_##name,
    PAIRS
#undef PAIR
    PAIR_COUNT
} pair_kind;

/** A loss over classes, or its gradient. Logits are (outer, n, inner); a position is one of outer
 * times inner. */
typedef struct class_job {
    const void *x, *target, *g;
    void *losses, *lse, *out; /* loss and log(sum(exp)) per position; gradient of x */
    int64_t n, inner, positions, ignore;
    double smoothing, factor;
    bool short_target;        /* i32, else i64 */
    bool each;                /* reduction none: the result or g has one element per position */
    ts_dtype half;            /* nll_loss of bf16 or f16: the dtype of x, g and out; else 0 */
} class_job;

/** A loss over pairs of elements, or its gradient. */
typedef struct pair_job {
    const ts_tensor *x, *t, *g; /* self, target; upstream gradient, NULL in forward */
    ts_slots *slots;          /* rooms for blocks of operands that are not contiguous */
    /* out: loss, or gradient of self; dt: gradient of target. In backward either may be NULL.
     * parts: sum of the losses of each block of PAIR_BLOCK elements */
    void *out, *dt, *parts;
    int64_t n;
    double beta, factor;      /* beta: the op's number; factor: of the reduction */
    bool each;                /* reduction none: out or g has one element per pair */
    ts_dtype half;            /* bf16 or f16: the dtype of all elements but parts; else 0 */
} pair_job;

/** The elements of a block of x, t and, if there is one per pair, g. */
typedef struct pair_block {
    const char *x, *t, *g;
} pair_block;

/** Elements first to first + n - 1 of an operand: in place, or copied to `room`. */
static const char *block_of(const ts_tensor *t, int64_t first, int64_t n, char *room)
{
    if (t->flags & TS_TENSOR_CONTIGUOUS)
        return (const char *)t->data + first * ts_dtype_sizes[t->dtype];
    ts_cpu_gather(t, first, n, room);
    return room;
}
static pair_block pair_block_at(const pair_job *job, int64_t first, int64_t n, char *room)
{
    const int64_t each = PAIR_BLOCK * (int64_t)sizeof(double);
    return (pair_block){block_of(job->x, first, n, room), block_of(job->t, first, n, room + each),
                        job->g && job->each ? block_of(job->g, first, n, room + 2 * each) : NULL};
}
enum { PAIR_ROOM = 3 * PAIR_BLOCK * sizeof(double) }; /* bytes of a room */

/* Loads min(left, VF_LANES) elements of dtype `half`; the other lanes are 0. */
VEC_FN vf load_halves(const uint16_t *p, ts_dtype half, int64_t left)
{
    if (left >= VF_LANES)
        return half == TS_BF16 ? vf_load_bf16(p) : vf_load_f16(p);
    return half == TS_BF16 ? vf_load_bf16_n(p, left) : vf_load_f16_n(p, left);
}
VEC_FN void store_halves(uint16_t *p, ts_dtype half, vf v, int64_t left)
{
    if (left >= VF_LANES)
        half == TS_BF16 ? vf_store_bf16(p, v) : vf_store_f16(p, v);
    else
        half == TS_BF16 ? vf_store_bf16_n(p, v, left) : vf_store_f16_n(p, v, left);
}

VEC_FN int64_t target_at(const class_job *job, int64_t r)
{
    return job->short_target ? ((const int32_t *)job->target)[r]
                             : ((const int64_t *)job->target)[r];
}

#define TS_REAL 32
#include "backends/cpu/loss_real.h"
#undef TS_REAL
#define TS_REAL 64
#include "backends/cpu/loss_real.h"
#undef TS_REAL

/* ---------------------------------------------------------------------- classes ----------- */

/** Reads the arguments, checks every target, and counts targets that are not ignored. TS_ERR_INDEX
 *  if a target is not a class. */
static ts_status read_targets(ts_frame *f, class_job *job, int target_arg, int64_t *count)
{
    const ts_plan *plan = f->plan;
    job->target = f->args[target_arg].t->data;
    job->short_target = f->args[target_arg].t->dtype == TS_I32;
    job->n = plan->count;
    job->inner = plan->inner;
    job->positions = plan->outer * plan->inner;
    int64_t ignored = 0, wrong = 0;
    for (int64_t r = 0; r < job->positions; r++) { /* no branches: vectors of targets */
        int64_t c = target_at(job, r);
        ignored += c == job->ignore;
        wrong += (c != job->ignore) & (c < 0 || c >= job->n);
    }
    *count = job->positions - ignored;
    for (int64_t r = 0; wrong; r++) {
        int64_t c = target_at(job, r);
        if (c != job->ignore && (c < 0 || c >= job->n))
            return ts_fail_arg(
                f, target_arg, TS_ERR_INDEX,
                "expected classes from 0 to %lld (or %lld to ignore), got %lld at position %lld",
                (long long)job->n - 1, (long long)job->ignore, (long long)c, (long long)r);
    }
    return TS_OK;
}

static void run_classes(const ts_frame *f, const class_job *job, ts_parallel_body body, int cost)
{
    bool wide = f->plan->compute == TS_F64;
    ts_parallel_for(job->positions, TS_CPU_GRAIN(wide ? 8 * cost : cost) / ts_max64(job->n, 1) + 1,
                    body, (void *)job);
}

/** Stores the sum of n parts times factor at `out`, as `half` unless it is 0. */
static void store_total(const ts_frame *f, const void *parts, int64_t n, double factor,
                        ts_dtype half, void *out)
{
    float total;
    if (!half) {
        (f->plan->compute == TS_F64 ? total_f64 : total_f32)(parts, n, factor, out);
        return;
    }
    total_f32(parts, n, factor, &total);
    store_halves(out, half, vf_set1(total), 1);
}

/** The compute dtype if it is a half, else 0 (TS_F64, which is not a half). */
static ts_dtype half_of(const ts_frame *f)
{
    return ts_dtype_is_half(f->plan->compute) ? f->plan->compute : 0;
}

/** Forward over classes; args[2] is the reduction. */
static ts_status forward_classes(ts_frame *f, class_job *job, ts_parallel_body body, int cost)
{
    bool wide = f->plan->compute == TS_F64;
    int64_t reduction = f->args[2].i, count;
    ts_tensor *out = f->rets[0].t;
    job->x = f->args[0].t->data;
    TS_TRY(ts_checked(f, read_targets(f, job, 1, &count)));
    job->each = reduction == TS_REDUCTION_NONE;
    if (job->each) {
        job->losses = out->data;
        run_classes(f, job, body, cost);
        return TS_OK;
    }
    size_t bytes = (size_t)job->positions * (wide ? 8 : 4);
    job->losses = ts_alloc(f->thread, bytes);
    if (!job->losses)
        return ts_error_memory("the losses of positions", (int64_t)bytes);
    run_classes(f, job, body, cost);
    double factor = reduction == TS_REDUCTION_MEAN ? 1 / (double)count : 1;
    store_total(f, job->losses, job->positions, factor, job->half, out->data);
    ts_free(f->thread, job->losses, bytes);
    return TS_OK;
}

/** cross_entropy(self, target, reduction, ignore_index, label_smoothing) -> (loss, lse) */
static ts_status cross_entropy(ts_frame *f)
{
    class_job job = {.ignore = f->args[3].i, .smoothing = f->args[4].d};
    if (f->rets[1].tag == TS_TAG_TENSOR)
        job.lse = f->rets[1].t->data;
    return forward_classes(
        f, &job, f->plan->compute == TS_F64 ? cross_entropy_rows_f64 : cross_entropy_rows_f32, 4);
}

/** nll_loss(self, target, reduction, ignore_index) */
static ts_status nll_loss(ts_frame *f)
{
    class_job job = {.ignore = f->args[3].i, .half = half_of(f)};
    return forward_classes(f, &job, f->plan->compute == TS_F64 ? nll_rows_f64 : nll_rows_f32, 1);
}

static ts_status backward_classes(ts_frame *f, class_job *job, int64_t reduction,
                                  ts_parallel_body body, int cost)
{
    int64_t count;
    job->g = f->args[0].t->data;
    job->out = f->rets[0].t->data;
    TS_TRY(ts_checked(f, read_targets(f, job, 2, &count)));
    job->each = reduction == TS_REDUCTION_NONE;
    job->factor = reduction == TS_REDUCTION_MEAN ? 1 / (double)count : 1;
    run_classes(f, job, body, cost);
    return TS_OK;
}

/** cross_entropy_backward(grad, self, target, lse, reduction, ignore_index, label_smoothing) */
static ts_status cross_entropy_backward(ts_frame *f)
{
    class_job job = {.x = f->args[1].t->data, .lse = f->args[3].t->data, .ignore = f->args[5].i,
                     .smoothing = f->args[6].d};
    return backward_classes(f, &job, f->args[4].i,
                            f->plan->compute == TS_F64 ? cross_entropy_backward_rows_f64
                                                       : cross_entropy_backward_rows_f32,
                            4);
}

/** cross_entropy_grad(self, target, reduction, ignore_index, label_smoothing) ->
 * (gradient for an incoming 1, loss) */
static ts_status cross_entropy_grad(ts_frame *f)
{
    bool wide = f->plan->compute == TS_F64, each = f->args[2].i == TS_REDUCTION_NONE;
    int64_t count;
    void *loss = f->rets[1].tag == TS_TAG_TENSOR ? f->rets[1].t->data : NULL;
    class_job job = {.x = f->args[0].t->data, .ignore = f->args[3].i, .smoothing = f->args[4].d,
                     .g = wide ? (const void *)&one_f64 : &one_f32};
    if (f->rets[0].tag == TS_TAG_TENSOR)
        job.out = f->rets[0].t->data;
    TS_TRY(ts_checked(f, read_targets(f, &job, 1, &count)));
    job.factor = f->args[2].i == TS_REDUCTION_MEAN ? 1 / (double)count : 1;
    size_t bytes = (size_t)job.positions * (wide ? 8 : 4);
    char *sums = ts_alloc(f->thread, 2 * bytes);
    if (!sums)
        return ts_error_memory("the sums of positions", 2 * (int64_t)bytes);
    job.lse = sums;
    job.losses = each && loss ? loss : sums + bytes;
    run_classes(f, &job, wide ? cross_entropy_grad_rows_f64 : cross_entropy_grad_rows_f32, 8);
    if (loss && !each)
        (wide ? total_f64 : total_f32)(job.losses, job.positions, job.factor, loss);
    ts_free(f->thread, sums, 2 * bytes);
    return TS_OK;
}

/** nll_loss_backward(grad, self, target, reduction, ignore_index) */
static ts_status nll_loss_backward(ts_frame *f)
{
    class_job job = {.ignore = f->args[4].i, .half = half_of(f)};
    return backward_classes(
        f, &job, f->args[3].i,
        f->plan->compute == TS_F64 ? nll_backward_rows_f64 : nll_backward_rows_f32, 1);
}

/* ---------------------------------------------------------------------- pairs ------------- */

/** 1 / n for a mean, 1 / batch for batchmean, else 1. */
static double pair_factor(const ts_tensor *x, int64_t reduction)
{
    if (reduction == TS_REDUCTION_MEAN)
        return 1 / (double)x->numel;
    return reduction == TS_REDUCTION_BATCHMEAN && x->ndim ? 1 / (double)x->sizes[0] : 1;
}

static void run_tasks(const ts_frame *f, pair_job *job, pair_kind kind, bool backward)
{
    bool wide = f->plan->compute == TS_F64;
    int cost = kind >= PAIR_BCE ? 8 : 1;
    ts_parallel_for(ts_ceil_div(job->n, PAIR_BLOCK),
                    TS_CPU_GRAIN(wide ? 4 * cost : cost) / PAIR_BLOCK + 1,
                    (wide ? pair_bodies_f64 : pair_bodies_f32)[kind][backward], job);
}

static bool is_packed(const ts_tensor *t) { return !t || (t->flags & TS_TENSOR_CONTIGUOUS); }
static const ts_tensor *result_of(const ts_frame *f, int i)
{
    return i < f->nrets && f->rets[i].tag == TS_TAG_TENSOR ? f->rets[i].t : NULL;
}

/** run_pairs() if an operand or a result is not contiguous. Operands that ts_cpu_gather() would
 * read slowly are copied before, results afterwards. */
static __attribute__((noinline)) ts_status run_strided(ts_frame *f, pair_job *job, pair_kind kind,
                                                       bool backward)
{
    const ts_tensor **operands[] = {&job->x, &job->t, &job->g};
    ts_tensor *made[2] = {NULL, NULL};
    void **results[] = {&job->out, &job->dt};
    bool gathers = false;
    ts_slots slots;
    TS_SCOPE;
    for (int i = 0; i < 3; i++) {
        if (is_packed(*operands[i]))
            continue;
        if (ts_cpu_gathers_well(*operands[i]))
            gathers = true;
        else
            TS_TRY(*operands[i] = ts_contiguous((ts_tensor *)*operands[i]));
    }
    for (int i = 0; i < 2; i++)
        if (!is_packed(result_of(f, i))) {
            TS_TRY(made[i] = ts_contiguous(f->rets[i].t));
            *results[i] = made[i]->data;
        }
    if (gathers && job->n) {
        TS_TRY(ts_slots_begin(f, &slots, ts_ceil_div(job->n, PAIR_BLOCK), PAIR_ROOM,
                              "blocks of a loss"));
        job->slots = &slots;
    }
    run_tasks(f, job, kind, backward);
    if (job->slots)
        ts_slots_end(f, &slots);
    for (int i = 0; i < 2; i++)
        if (made[i])
            ts_cpu_copy_to(f->rets[i].t, made[i]);
    return TS_OK;
}

/** Runs the tasks. TS_ERR_MEMORY without memory for copies of operands. */
static ts_status run_pairs(ts_frame *f, pair_job *job, pair_kind kind, bool backward)
{
    if (!is_packed(job->x) || !is_packed(job->t) || !is_packed(job->g) ||
        !is_packed(result_of(f, 0)) || !is_packed(result_of(f, 1)))
        return run_strided(f, job, kind, backward);
    run_tasks(f, job, kind, backward);
    return TS_OK;
}

/** name(self, target, reduction[, number]) */
static ts_status forward_pairs(ts_frame *f, pair_kind kind, double beta)
{
    const ts_tensor *x = f->args[0].t;
    bool wide = f->plan->compute == TS_F64;
    double one; /* the part of a single block */
    pair_job job = {.x = x, .t = f->args[1].t, .out = f->rets[0].t->data, .n = x->numel,
                    .beta = beta, .half = half_of(f),
                    .each = f->args[2].i == TS_REDUCTION_NONE, .parts = &one};
    int64_t blocks = ts_ceil_div(job.n, PAIR_BLOCK);
    size_t bytes = !job.each && blocks > 1 ? (size_t)blocks * (wide ? 8 : 4) : 0;
    if (bytes && !(job.parts = ts_alloc(f->thread, bytes)))
        return ts_error_memory("the parts of a loss", (int64_t)bytes);
    ts_status status = run_pairs(f, &job, kind, false);
    if (status == TS_OK && !job.each)
        store_total(f, job.parts, blocks, pair_factor(x, f->args[2].i), job.half, job.out);
    if (bytes)
        ts_free(f->thread, job.parts, bytes);
    return status;
}

/** name_backward(grad, self, target, reduction[, number]) -> (dself, dtarget) */
static ts_status backward_pairs(ts_frame *f, pair_kind kind, double beta)
{
    const ts_tensor *x = f->args[1].t;
    pair_job job = {.g = f->args[0].t, .x = x, .t = f->args[2].t, .n = x->numel,
                    .beta = beta, .half = half_of(f),
                    .each = f->args[3].i == TS_REDUCTION_NONE,
                    .factor = pair_factor(x, f->args[3].i)};
    if (f->rets[0].tag == TS_TAG_TENSOR)
        job.out = f->rets[0].t->data;
    if (f->rets[1].tag == TS_TAG_TENSOR)
        job.dt = f->rets[1].t->data;
    return run_pairs(f, &job, kind, true);
}

static ts_status mse_loss(ts_frame *f) { return forward_pairs(f, PAIR_MSE, 0); }
static ts_status mse_loss_backward(ts_frame *f) { return backward_pairs(f, PAIR_MSE, 0); }
static ts_status l1_loss(ts_frame *f) { return forward_pairs(f, PAIR_L1, 0); }
static ts_status l1_loss_backward(ts_frame *f) { return backward_pairs(f, PAIR_L1, 0); }
static ts_status smooth_l1_loss(ts_frame *f)
{
    return forward_pairs(f, PAIR_SMOOTH_L1, f->args[3].d);
}
static ts_status smooth_l1_loss_backward(ts_frame *f)
{
    return backward_pairs(f, PAIR_SMOOTH_L1, f->args[4].d);
}
static ts_status huber_loss(ts_frame *f) { return forward_pairs(f, PAIR_HUBER, f->args[3].d); }
static ts_status huber_loss_backward(ts_frame *f)
{
    return backward_pairs(f, PAIR_HUBER, f->args[4].d);
}
static ts_status bce_with_logits(ts_frame *f) { return forward_pairs(f, PAIR_BCE, 0); }
static ts_status bce_with_logits_backward(ts_frame *f) { return backward_pairs(f, PAIR_BCE, 0); }
static ts_status kl_div(ts_frame *f)
{
    return forward_pairs(f, f->args[3].i ? PAIR_KL_LOG : PAIR_KL, 0);
}
static ts_status kl_div_backward(ts_frame *f)
{
    return backward_pairs(f, f->args[4].i ? PAIR_KL_LOG : PAIR_KL, 0);
}

#define BOTH(name, dtypes, takes) {TS_OP_##name, name, {dtypes, takes}},                           \
    {TS_OP_##name##_backward, name##_backward, {dtypes, takes}}
#define PAIRS_OF(name) BOTH(name, REALS, TS_TAKES_STRIDES)
#define REALS (TS_DT_FLOATS | TS_DT_HALVES)

TS_CPU_FAMILY(loss, BOTH(cross_entropy, TS_DT_FLOATS, 0),
    {TS_OP_cross_entropy_grad, cross_entropy_grad, {TS_DT_FLOATS, 0}},
    BOTH(nll_loss, REALS, 0), PAIRS_OF(mse_loss), PAIRS_OF(l1_loss), PAIRS_OF(smooth_l1_loss),
    PAIRS_OF(huber_loss), PAIRS_OF(kl_div),
    {TS_OP_binary_cross_entropy_with_logits, bce_with_logits, {REALS, TS_TAKES_STRIDES}},
    {TS_OP_binary_cross_entropy_with_logits_backward, bce_with_logits_backward,
     {REALS, TS_TAKES_STRIDES}})
