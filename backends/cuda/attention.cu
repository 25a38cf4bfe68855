/**
 * @file attention.cu  Scaled dot-product attention and its gradients: description of a call, and
 * selection of its kernels.
 *
 * Depths that are multiples of 8 up to 256 use tensor cores: halves on Hopper use wgmma, unless an
 * option or the depth forbids it; other halves, and f32, use mma. Calls with few rows use kernels
 * that split the keys. All other calls, such as f64, use plain kernels.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/attention/attention.cuh"
#include "backends/cuda/frame.cuh"
#include "tessera/ops.h"
#include "tessera/program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

using namespace ts;

enum { PLAIN, MMA, WGMMA, SPLIT }; /* kernels, in order of preference */

/** True if kernels can use t in place: the last dim is dense, and the strides of other dims with
 * more than one element are multiples of `grain` elements. With grain > 1 the data must be 16-byte
 * aligned. */
static bool is_aligned(const ts_tensor *t, int grain)
{
    const int64_t *sizes = ts_sizes(t), *strides = ts_strides(t);
    if (sizes[3] > 1 && strides[3] != 1)
        return false;
    for (int d = 0; d < 3; d++)
        if (sizes[d] > 1 && strides[d] % grain)
            return false;
    return grain == 1 || (uintptr_t)ts_kernel_data(t) % 16 == 0;
}

static attention_operand operand_of(const ts_tensor *t, bool packed)
{
    const int64_t *sizes = ts_sizes(t), *strides = ts_strides(t);
    return {ts_kernel_data(t), packed || sizes[0] == 1 ? 0 : strides[0], strides[1], strides[2]};
}

/** Sets *to to an argument, or to a contiguous copy if the kernels cannot read it in place. The
 * scope owns the copy. */
static ts_status read_operand(attention_operand *to, ts_tensor *t, const attention_call &c,
                              int grain)
{
    if (!is_aligned(t, grain)) {
        t = ts_is_contiguous(t) ? ts_clone(t) : ts_contiguous(t);
        TS_CUDA_TRY(ts_status_of_pointer(t));
    }
    *to = operand_of(t, c.q_starts);
    return TS_OK;
}
/** Sets *to to dense statistics, in f64 if `dtype` is f64, else f32; NULL if absent. */
static ts_status read_statistic(const void **to, const ts_value &v, ts_dtype dtype)
{
    *to = nullptr;
    if (v.tag != TS_TAG_TENSOR)
        return TS_OK;
    ts_dtype wide = dtype == TS_F64 ? TS_F64 : TS_F32;
    ts_tensor *t = ts_contiguous(ts_dtype_of(v.t) == wide ? v.t : ts_to(v.t, wide));
    TS_CUDA_TRY(ts_status_of_pointer(t));
    *to = ts_kernel_data(t);
    return TS_OK;
}

/** A result (`wanted`; NULL: not requested) and the tensor that the kernels write (`made`): the
 * same, or a temporary that end_result() copies to the result. */
struct result {
    ts_tensor *wanted, *made;
};
static ts_status begin_result(result *r, const ts_value &v, bool fits)
{
    r->wanted = v.tag == TS_TAG_TENSOR ? v.t : nullptr;
    r->made = r->wanted;
    if (!r->wanted || fits)
        return TS_OK;
    r->made = ts_empty_on(ts_sizes(v.t), ts_ndim(v.t), ts_dtype_of(v.t), ts_device_of(v.t));
    return ts_status_of_pointer(r->made);
}
static ts_status end_result(const result &r)
{
    return r.made == r.wanted ? TS_OK : ts_status_of_pointer(ts_copy_(r.wanted, r.made));
}

static bool takes_tensor_cores(const ts_attention &a, ts_dtype dtype)
{
    int64_t most = a.depth > a.value_depth ? a.depth : a.value_depth;
    return dtype != TS_F64 && a.depth > 0 && a.value_depth > 0 && a.depth % 8 == 0 &&
           a.value_depth % 8 == 0 && most <= 256;
}

/** Sets the fields of *c that forward and backward share. The caller adds the operands. */
static ts_status describe(ts_frame *f, const ts_attention &a, ts_dtype dtype,
                          const ts_cuda_device *device, attention_call *c)
{
    constexpr int64_t most = 1 << 29;
    if (a.rows >= most || a.keys >= most || ts_size(a.query, 2) >= most ||
        ts_size(a.key, 2) >= most)
        return ts_kernel_error(f, 0, TS_ERR_SHAPE, nullptr,
                               "expected fewer than 2^29 rows and keys on CUDA, got %lld and %lld",
                               (long long)a.rows, (long long)a.keys);
    c->type = dtype == TS_F64    ? ATTENTION_F64
              : dtype == TS_BF16 ? ATTENTION_BF16
              : dtype == TS_F16  ? ATTENTION_F16
                                 : ATTENTION_F32;
    c->processors = device->sms;
    c->shared = device->shared;
    /* scores without columns are 0, and 1 / sqrt(0) is not finite */
    c->scale = a.depth ? a.scale : 0;
    c->batches = (int)a.batch;
    c->heads = (int)a.heads;
    c->share = a.groups ? (int)(a.heads / a.groups) : 1;
    c->rows = (int)a.rows;
    c->keys = (int)a.keys;
    c->depth = (int)a.depth;
    c->value_depth = (int)a.value_depth;
    c->left = (int)a.left;
    c->right = (int)a.right;
    c->q_tokens = ts_size(a.query, 2);
    c->k_tokens = ts_size(a.key, 2);
    if (a.cu_seqlens_q) {
        c->q_starts = (const int *)ts_kernel_data(a.cu_seqlens_q);
        c->k_starts = (const int *)ts_kernel_data(a.cu_seqlens_k);
        c->q_starts_step = ts_strides(a.cu_seqlens_q)[0];
        c->k_starts_step = ts_strides(a.cu_seqlens_k)[0];
    }
    if (a.key_lengths) {
        c->k_lengths = (const int *)ts_kernel_data(a.key_lengths);
        c->k_lengths_step = ts_strides(a.key_lengths)[0];
    }
    c->uneven = c->q_starts || c->k_lengths;
    c->softcap = (float)a.softcap;
    c->by_softcap = a.softcap > 0 ? (float)(c->scale / a.softcap) : 0;
    if (a.mask) {
        ts_dtype of = ts_dtype_of(a.mask);
        c->mask = ts_kernel_data(a.mask);
        c->mask_type = of == TS_BOOL ? MASK_BOOL : of == dtype ? MASK_OWN : MASK_F32;
        int n = ts_ndim(a.mask);
        for (int d = 0; d < n; d++)
            c->mask_steps[4 - n + d] = ts_size(a.mask, d) == 1 ? 0 : ts_strides(a.mask)[d];
    }
    c->dropout = a.dropout_p > 0;
    c->dropped = (uint32_t)ceil(a.dropout_p * 0x1p24);
    c->dropout_scale = a.dropout_p < 1 ? 1 / (1 - a.dropout_p) : 0;
    c->dropout_scale_half = (float)c->dropout_scale;
    c->seed = a.rng.seed;
    c->offset = a.rng.offset;
    /* the maximum of raw scores gives the maximum of scaled scores only if the scale is positive */
    c->adjusted = c->mask_type > MASK_BOOL || c->softcap > 0 || !(a.scale > 0) || isinf(a.scale);
    c->rules = c->adjusted || c->mask_type != NO_MASK || c->dropout;
    c->raw_to_log2 = (float)(a.scale * log2_e);
    c->by_scale = (float)(1 / a.scale);
    c->to_log2 = c->adjusted ? log2_e : c->raw_to_log2;
    return TS_OK;
}

/** The most preferred kernels that TS_CUDA_ATTENTION (plain or mma) allows. Tests set the variable
 * to run less preferred kernels. */
static int allowed_path()
{
    static int known; /* 1 + path */
    int is = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!is) {
        int choice = ts_variable_choice("TS_CUDA_ATTENTION", "plain|mma");
        is = 1 + (choice == 0 ? PLAIN : choice == 1 ? MMA : WGMMA);
        __atomic_store_n(&known, is, __ATOMIC_RELAXED);
    }
    return is - 1;
}

/** True if a mask's stride of rows or keys does not fit 32 bits. */
static bool far_apart(const int64_t steps[4])
{
    return llabs(steps[2]) > INT32_MAX || llabs(steps[3]) > INT32_MAX;
}

/** Selects the kernels. Sets *why to the reason why the call cannot use more preferred kernels, or
 * to NULL. `deepest`: maximum depth of Hopper's kernels. */
static int best_path(const attention_call &c, const ts_attention &a, ts_dtype dtype,
                     const ts_cuda_device *device, int deepest, const char **why)
{
    int depth = c.depth > c.value_depth ? c.depth : c.value_depth, most = allowed_path();
    *why = most == PLAIN                   ? "TS_CUDA_ATTENTION"
           : dtype == TS_F64               ? "f64"
           : !takes_tensor_cores(a, dtype) ? "a depth is not a multiple of 8 up to 256"
                                           : nullptr;
    if (*why)
        return PLAIN;
    *why = most == MMA         ? "TS_CUDA_ATTENTION"
           : dtype == TS_F32   ? "f32"
           : !device->hopper   ? "not a Hopper GPU, or no code for one"
           : depth > deepest   ? "a depth above 128"
           : c.mask_type > MASK_BOOL && far_apart(c.mask_steps) ? "a mask with steps beyond 2^31"
           : !c.keys || !c.k_tokens ? "no keys"
           : !c.batches             ? "no sequences"
                                    : nullptr;
    return *why ? MMA : WGMMA;
}

/** best_path(), or the kernels for few rows. */
static int best_forward_path(const attention_call &c, const ts_attention &a, ts_dtype dtype,
                             const ts_cuda_device *device, const char **why)
{
    int path = best_path(c, a, dtype, device, 256, why);
    if (path == MMA && !attention_mma_holds(c, false)) {
        *why = "too little shared memory for the depth";
        return PLAIN;
    }
    if (path == PLAIN || allowed_path() < WGMMA || !attention_splits(c))
        return path;
    *why = nullptr;
    return SPLIT;
}

/** best_path(), or the kernels for few rows, or plain kernels where a block lacks shared memory. */
static int best_backward_path(const attention_call &c, const ts_attention &a, ts_dtype dtype,
                              const ts_cuda_device *device, const char **why)
{
    int path = best_path(c, a, dtype, device, 128, why);
    if (path != PLAIN && allowed_path() == WGMMA && attention_splits_backward(c)) {
        *why = nullptr;
        return SPLIT;
    }
    if (path != MMA || attention_mma_holds(c, true))
        return path;
    *why = "too little shared memory for the depth";
    return PLAIN;
}

/** Strides of operands must be multiples of this number of elements: 16 bytes for tensor cores. */
static int grain_of(int path, ts_dtype dtype)
{
    return path == PLAIN ? 1 : dtype == TS_F32 ? 4 : 8;
}

/** Logs the kernels of a call. */
static void log_path(const ts_frame *f, int path, const char *why)
{
    static const char *const names[] = {"plain", "mma", "wgmma", "split"};
    if (!ts_log_on("attention"))
        return;
    char call[512];
    ts_frame_describe(f, call, sizeof call);
    ts_log_write("attention", "cuda, %s kernels%s%s: %s", names[path], why ? ", because of: " : "",
                 why ? why : "", call);
}

template <class T>
static cudaError_t run_forward(const attention_call &c, int path, cudaStream_t stream)
{
    cudaError_t e = path == SPLIT ? attention_split_forward<T>(c, stream) : cudaErrorNotSupported;
    if constexpr (sizeof(T) == 2)
        if (path == WGMMA)
            e = attention_wgmma_forward<T>(c, stream);
    if (path == WGMMA && e == cudaErrorNotSupported)
        ts_log_write("attention",
                     "cuda, mma instead of wgmma kernels: TMA does not accept these operands");
    return e == cudaErrorNotSupported ? attention_mma_forward<T>(c, stream) : e;
}

/** True if the pass over keys also computes dq, by atomic additions in no fixed order. */
static bool takes_one_pass(const attention_call &c, int path)
{
    return path == WGMMA && !ts_deterministic() && c.dq.data && (c.dk.data || c.dv.data);
}

/** Bytes of c.parts: of the runs of split kernels, or the larger need of the two passes of the mma
 * kernels; 0 for other kernels. */
static int64_t part_bytes(const attention_call &c, int path)
{
    if (path == SPLIT)
        return attention_split_backward_bytes(c);
    if (path != MMA)
        return 0;
    int64_t keys = c.dk.data || c.dv.data ? attention_mma_part_bytes(c, true) : 0,
            queries = c.dq.data ? attention_mma_part_bytes(c, false) : 0;
    return keys > queries ? keys : queries;
}

template <class T> static cudaError_t run_backward(attention_call c, int path, cudaStream_t stream)
{
    if (path == SPLIT)
        return attention_split_backward<T>(c, stream);
    cudaError_t e = cudaErrorNotSupported;
    if constexpr (sizeof(T) == 2)
        if (c.owned)
            e = attention_wgmma_backward<T>(c, true, stream);
    if (e != cudaErrorNotSupported)
        return e;
    c.owned = false;
    e = attention_pairs<T>(c, stream);
    for (int keys = 1; keys >= 0 && e == cudaSuccess; keys--) {
        if (keys ? !c.dk.data && !c.dv.data : !c.dq.data || c.sums)
            continue;
        e = cudaErrorNotSupported;
        if constexpr (sizeof(T) == 2)
            if (path == WGMMA)
                e = attention_wgmma_backward<T>(c, keys, stream);
        if (e == cudaErrorNotSupported) {
            c.sums = nullptr;
            e = attention_mma_backward<T>(c, keys, stream);
        }
    }
    return e;
}

/* arguments: query, key, value, options; results: out and, if requested, lse */
static ts_status forward(ts_frame *f)
{
    TS_SCOPE;
    ts_attention a = ts_kernel_attention(f);
    ts_dtype dtype = ts_kernel_dtype(f);
    attention_call c = {};
    ts_device where = ts_kernel_device(f);
    ts_cuda_device *device = ts_cuda_use(where.index);
    if (!device)
        return ts_error_code();
    TS_CUDA_TRY(describe(f, a, dtype, device, &c));
    const char *why;
    int path = best_forward_path(c, a, dtype, device, &why), grain = grain_of(path, dtype);
    log_path(f, path, why);
    const int64_t *sizes = ts_sizes(a.query);
    /* Nothing to compute without rows. With depth 0 there still is an lse to compute. */
    if (!sizes[0] || !sizes[1] || !sizes[2])
        return TS_OK;

    result out, lse;
    TS_CUDA_TRY(begin_result(&out, f->rets[0], is_aligned(f->rets[0].t, grain)));
    TS_CUDA_TRY(begin_result(&lse, f->rets[1],
                             f->rets[1].tag != TS_TAG_TENSOR || ts_is_contiguous(f->rets[1].t)));
    TS_CUDA_TRY(read_operand(&c.q, f->args[0].t, c, grain));
    TS_CUDA_TRY(read_operand(&c.k, f->args[1].t, c, grain));
    TS_CUDA_TRY(read_operand(&c.v, f->args[2].t, c, grain));
    c.out = operand_of(out.made, c.q_starts);
    c.lse = lse.made ? ts_kernel_data(lse.made) : nullptr;
    int64_t part_bytes = 0, taken_bytes = 0;
    c.early = device->clusters;
    void *taken = nullptr;
    if (path == WGMMA) {
        bool listed = attention_rules_of(c) >= LENGTHS;
        taken_bytes = listed ? attention_list_bytes(c, attention_unit_room(c, false, 64))
                             : (int64_t)sizeof *c.taken;
        if (!(taken = ts_scratch_take(where, taken_bytes)))
            return ts_error_code();
        c.taken = (unsigned *)taken;
        if (listed)
            attention_place_list(c, taken);
    }
    if (path == SPLIT) {
        c.splits = attention_split_count(c);
        part_bytes = attention_split_bytes(c);
        if (part_bytes && !(c.parts = (float *)ts_scratch_take(where, part_bytes)))
            return ts_error_code();
    }
    ts_status status = on_device(f, [&](const call &on) {
        if (path == PLAIN)
            return dtype == TS_F64 ? attention_plain_forward<double>(c, on.stream)
                                   : attention_plain_forward<float>(c, on.stream);
        return dtype == TS_F32    ? run_forward<float>(c, path, on.stream)
               : dtype == TS_BF16 ? run_forward<bf16>(c, path, on.stream)
                                  : run_forward<f16>(c, path, on.stream);
    });
    if (taken)
        ts_scratch_give(where, taken, taken_bytes);
    if (c.parts)
        ts_scratch_give(where, c.parts, part_bytes);
    TS_CUDA_TRY(status);
    TS_CUDA_TRY(end_result(out));
    return end_result(lse);
}

/* arguments: grad, grad_lse, query, key, value, out, lse, options; results: gradients of query, key
 * and value */
static ts_status backward(ts_frame *f)
{
    TS_SCOPE;
    ts_attention a = ts_kernel_attention(f);
    ts_dtype dtype = ts_kernel_dtype(f);
    attention_call c = {};
    ts_device where = ts_kernel_device(f);
    ts_cuda_device *device = ts_cuda_use(where.index);
    if (!device)
        return ts_error_code();
    TS_CUDA_TRY(describe(f, a, dtype, device, &c));
    const char *why;
    int path = best_backward_path(c, a, dtype, device, &why), grain = grain_of(path, dtype);
    log_path(f, path, why);

    result grads[3];
    attention_operand *results[3] = {&c.dq, &c.dk, &c.dv};
    for (int i = 0; i < 3; i++) {
        bool wanted = f->rets[i].tag == TS_TAG_TENSOR;
        bool aligned = !wanted || is_aligned(f->rets[i].t, grain);
        TS_CUDA_TRY(begin_result(&grads[i], f->rets[i], aligned));
        if (grads[i].made)
            *results[i] = operand_of(grads[i].made, c.q_starts);
        if (c.k_lengths && i && grads[i].made) /* kernels write no gradients beyond the lengths */
            TS_CUDA_TRY(ts_status_of_pointer(ts_zero_(grads[i].made)));
    }
    TS_CUDA_TRY(read_operand(&c.g, f->args[0].t, c, grain));
    TS_CUDA_TRY(read_operand(&c.q, f->args[2].t, c, grain));
    TS_CUDA_TRY(read_operand(&c.k, f->args[3].t, c, grain));
    TS_CUDA_TRY(read_operand(&c.v, f->args[4].t, c, grain));
    TS_CUDA_TRY(read_operand(&c.out, f->args[5].t, c, grain));
    TS_CUDA_TRY(read_statistic(&c.g_lse, f->args[1], dtype));
    const void *lse;
    TS_CUDA_TRY(read_statistic(&lse, f->args[6], dtype));
    c.lse = (void *)lse;
    c.early = device->clusters;

    /* Hopper's kernels copy the pairs of whole tiles, so rows are padded to a multiple of 128 */
    c.pair_rows = path == WGMMA ? (c.q_tokens + 127) / 128 * 128 : c.q_tokens;
    bool listed = path == WGMMA && attention_rules_of(c) >= LENGTHS;
    c.owned = path == WGMMA && attention_rules_of(c) == NO_RULES && c.keys <= 128 &&
              attention_sum_columns(c) == 64;
    int64_t list = 0;
    if (listed) {
        int64_t keys = attention_unit_room(c, true, 128),
                queries = attention_unit_room(c, false, 128);
        list = (attention_list_bytes(c, keys > queries ? keys : queries) + 127) / 128 * 128;
        if (c.q_starts) /* and padding between sequences: first_pair_of() */
            c.pair_rows += (int64_t)c.batches * 128;
    }
    if (path == SPLIT)
        c.splits = attention_split_backward_count(c);
    int64_t rows = path == SPLIT ? 0 : (c.q_starts ? 1 : a.batch) * a.heads * c.pair_rows,
            pairs = (rows * (dtype == TS_F64 ? 16 : 8) + 15) / 16 * 16,
            sums = takes_one_pass(c, path) && !c.owned
                       ? rows * attention_sum_columns(c) * (int64_t)sizeof(float)
                       : 0,
            taken = path == WGMMA && !listed ? 16 : 0, parts = part_bytes(c, path),
            bytes = list + pairs + sums + taken + parts;
    char *scratch = nullptr;
    if (bytes && !(scratch = (char *)ts_scratch_take(where, bytes)))
        return ts_error_code();
    c.pairs = bytes ? scratch + list : nullptr;
    c.sums = sums ? (float *)((char *)c.pairs + pairs) : nullptr;
    c.taken = taken ? (unsigned *)((char *)c.pairs + pairs + sums) : nullptr;
    c.parts = parts ? (float *)((char *)c.pairs + pairs + sums + taken) : nullptr;
    if (listed)
        attention_place_list(c, scratch);
    ts_status status = on_device(f, [&](const call &on) {
        if (path == PLAIN)
            return dtype == TS_F64 ? attention_plain_backward<double>(c, on.stream)
                                   : attention_plain_backward<float>(c, on.stream);
        return dtype == TS_F32    ? run_backward<float>(c, path, on.stream)
               : dtype == TS_BF16 ? run_backward<bf16>(c, path, on.stream)
                                  : run_backward<f16>(c, path, on.stream);
    });
    if (scratch)
        ts_scratch_give(where, scratch, bytes);
    TS_CUDA_TRY(status);
    for (int i = 0; i < 3; i++)
        TS_CUDA_TRY(end_result(grads[i]));
    return TS_OK;
}

TS_CUDA_FAMILY(attention, {"scaled_dot_product_attention", forward, floats, true},
               {"scaled_dot_product_attention_backward", backward, floats, true}, )
