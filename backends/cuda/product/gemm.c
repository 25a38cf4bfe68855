/**
 * @file gemm.c  cuBLASLt: handles, plans, workspace.
 *
 * cuBLASLt is column-major, tensors are row-major: c = a b by rows equals c' = b' a' by columns, so
 * b is cuBLASLt's first operand and a its second. The layouts and the algorithm of a product are
 * determined once per shape and cached for the first PLANS shapes. A call looks up the plan, takes
 * workspace and launches.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/product/gemm.h"
#include "backends/cuda/runtime/hash.h"
#include "tessera/program.h"

#include <cublasLt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE = 32 << 20, BUCKETS = 1024, PLANS = 4096 };

/** Everything that a plan depends on. Compared as bytes, so it must be zeroed before it is
 * filled. */
typedef struct key {
    int64_t m, n, k, batches;
    int64_t lda, ldb, ldc, stride_a, stride_b, stride_c;
    uint8_t device, dtype, result, transposed_a, transposed_b; /* result: dtype of c */
    uint8_t zero;
    uint16_t epilogue; /* a cublasLtEpilogue_t */
} key;

typedef struct plan {
    struct plan *next;
    key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
    bool missing; /* cuBLASLt has no algorithm */
    bool kept;    /* false: the caller owns the plan and frees it */
} plan;

static cublasLtHandle_t handles[TS_CUDA_DEVICES];
static _Atomic(plan *) plans[BUCKETS];
static int nplans;
/* guards writes of handles, plans and nplans; reading plans needs no lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ts_status check(cublasStatus_t status, const ts_frame *f)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return TS_OK;
    /* the error may belong to an earlier kernel */
    TS_TRY(ts_cuda_check(cudaPeekAtLastError(), "%s", ts_op_name(f->op)));
    return ts_error_set(status == CUBLAS_STATUS_ALLOC_FAILED ? TS_ERR_MEMORY : TS_ERR_DEVICE,
                        "%s: cuBLASLt reports %s", ts_op_name(f->op),
                        cublasLtGetStatusString(status));
}

static cudaDataType_t type_of(ts_dtype dtype)
{
    return dtype == TS_F64    ? CUDA_R_64F
           : dtype == TS_BF16 ? CUDA_R_16BF
           : dtype == TS_F16  ? CUDA_R_16F
                              : CUDA_R_32F;
}

bool ts_cuda_tf32(void)
{
    static _Atomic int known; /* 0 unknown, 1 no, 2 yes */
    int is = atomic_load_explicit(&known, memory_order_relaxed);
    if (!is) {
        atomic_store(&known, is = ts_variable_choice("TS_CUDA_TF32", "1|0") == 0 ? 2 : 1);
    }
    return is == 2;
}

static void layout(cublasStatus_t *status, cublasLtMatrixLayout_t *made, const key *k,
                   uint8_t dtype, int64_t rows, int64_t columns, int64_t leading, int64_t stride)
{
    int32_t batches = (int32_t)k->batches;
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status = cublasLtMatrixLayoutCreate(made, type_of((ts_dtype)dtype), (uint64_t)rows,
                                             (uint64_t)columns, leading);
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status = cublasLtMatrixLayoutSetAttribute(*made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                   &batches, sizeof batches);
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status = cublasLtMatrixLayoutSetAttribute(
            *made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
}

static void attribute(cublasStatus_t *status, cublasLtMatmulDesc_t product,
                      cublasLtMatmulDescAttributes_t name, const void *value, size_t size)
{
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status = cublasLtMatmulDescSetAttribute(product, name, value, size);
}

static cublasLtEpilogue_t epilogue_of(const ts_cuda_epilogue *then)
{
    if (then->sums)
        return CUBLASLT_EPILOGUE_BGRADB; /* a is cuBLASLt's second operand */
    if (then->gelu_of)
        return CUBLASLT_EPILOGUE_DGELU;
    if (then->gelu)
        return then->bias
                   ? then->linear ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS
               : then->linear ? CUBLASLT_EPILOGUE_GELU_AUX
                              : CUBLASLT_EPILOGUE_GELU;
    if (then->relu)
        return then->bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    return then->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/** Sets the epilogue's addresses in the product's descriptor. */
static void point(cublasStatus_t *status, cublasLtMatmulDesc_t product,
                  const ts_cuda_epilogue *then)
{
    const void *row = then->sums ? then->sums : then->bias;
    const void *beside = then->gelu_of ? then->gelu_of : then->linear;
    if (row)
        attribute(status, product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &row, sizeof row);
    if (beside)
        attribute(status, product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &beside,
                  sizeof beside);
}

static void drop(plan *p)
{
    if (p->product)
        cublasLtMatmulDescDestroy(p->product);
    if (p->a)
        cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        cublasLtMatrixLayoutDestroy(p->b);
    if (p->c)
        cublasLtMatrixLayoutDestroy(p->c);
    free(p);
}

/** Makes a plan. k->m, n, k are sizes in cuBLASLt's column-major view, (m, k) (k, n). `then`:
 * epilogue of the first call. */
static cublasStatus_t make(const key *k, const ts_cuda_epilogue *then, plan **out)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    plan *p = calloc(1, sizeof *p);
    if (!p)
        return CUBLAS_STATUS_ALLOC_FAILED;
    p->key = *k;
    bool wide = k->dtype == TS_F64;
    bool tf32 = k->dtype == TS_F32 && ts_cuda_tf32();
    cublasComputeType_t compute = wide   ? CUBLAS_COMPUTE_64F
                                  : tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                         : CUBLAS_COMPUTE_32F;
    status = cublasLtMatmulDescCreate(&p->product, compute, wide ? CUDA_R_64F : CUDA_R_32F);
    cublasOperation_t op_a = k->transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                      op_b = k->transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    attribute(&status, p->product, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    attribute(&status, p->product, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    const cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)k->epilogue;
    attribute(&status, p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (then->linear || then->gelu_of)
        attribute(&status, p->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->ldc,
                  sizeof k->ldc);
    point(&status, p->product, then);
    layout(&status, &p->a, k, k->dtype, k->transposed_a ? k->k : k->m,
           k->transposed_a ? k->m : k->k, k->lda, k->stride_a);
    layout(&status, &p->b, k, k->dtype, k->transposed_b ? k->n : k->k,
           k->transposed_b ? k->k : k->n, k->ldb, k->stride_b);
    layout(&status, &p->c, k, k->result, k->m, k->n, k->ldc, k->stride_c);
    cublasLtMatmulPreference_t want = NULL;
    cublasLtMatmulHeuristicResult_t found = {0};
    size_t most = WORKSPACE;
    const uint32_t aligned = 16;
    int count = 0;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceCreate(&want);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(
            want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    static const cublasLtMatmulPreferenceAttributes_t places[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (size_t i = 0; i < sizeof places / sizeof *places && status == CUBLAS_STATUS_SUCCESS; i++)
        status = cublasLtMatmulPreferenceSetAttribute(want, places[i], &aligned, sizeof aligned);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(handles[k->device], p->product, p->a, p->b, p->c,
                                                p->c, want, 1, &found, &count);
    if (want)
        cublasLtMatmulPreferenceDestroy(want);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && !count)) {
        p->missing = true;
        status = CUBLAS_STATUS_SUCCESS;
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        drop(p);
        return status;
    }
    p->algo = found.algo;
    p->workspace = found.workspaceSize;
    *out = p;
    return status;
}

static plan *find(_Atomic(plan *) *bucket, const key *k)
{
    plan *p = atomic_load_explicit(bucket, memory_order_acquire);
    while (p && memcmp(&p->key, k, sizeof *k) != 0)
        p = p->next;
    return p;
}

static ts_status plan_of(const ts_frame *f, const key *k, const ts_cuda_epilogue *then, plan **out)
{
    const uint64_t *words = (const uint64_t *)k;
    _Atomic(plan *) *bucket = &plans[ts_cuda_hash(words, sizeof *k / 8) % BUCKETS];
    if (__builtin_expect((*out = find(bucket, k)) != NULL, 1))
        return TS_OK;
    pthread_mutex_lock(&lock);
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (!(*out = find(bucket, k))) {
        if (!handles[k->device])
            status = cublasLtCreate(&handles[k->device]);
        if (status == CUBLAS_STATUS_SUCCESS)
            status = make(k, then, out);
        if (status == CUBLAS_STATUS_SUCCESS && nplans < PLANS) {
            nplans++;
            (*out)->kept = true;
            (*out)->next = atomic_load(bucket);
            atomic_store_explicit(bucket, *out, memory_order_release);
        }
    }
    pthread_mutex_unlock(&lock);
    return check(status, f);
}

static void done_with(plan *p)
{
    if (!p->kept)
        drop(p);
}

static key key_of(const ts_frame *f, ts_dtype dtype, const ts_cuda_matrix *a,
                  const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                  const ts_cuda_epilogue *then)
{
    key k;
    memset(&k, 0, sizeof k);
    k.m = c->columns;
    k.n = c->rows;
    k.k = a->columns;
    k.batches = batches;
    /* an operand with dense columns is the transpose of a row-major one */
    k.transposed_a = b->column != 1;
    k.transposed_b = a->column != 1;
    k.lda = k.transposed_a ? b->column : b->row;
    k.ldb = k.transposed_b ? a->column : a->row;
    k.ldc = c->row;
    k.stride_a = b->batch;
    k.stride_b = a->batch;
    k.stride_c = c->batch;
    k.device = ts_kernel_device(f).index;
    k.dtype = (uint8_t)dtype;
    k.result = then->wide ? TS_F32 : k.dtype;
    k.epilogue = (uint16_t)epilogue_of(then);
    return k;
}

bool ts_cuda_gemm_is_there(const ts_frame *f, ts_dtype dtype, const ts_cuda_matrix *a,
                           const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                           const ts_cuda_epilogue *then)
{
    key k = key_of(f, dtype, a, b, c, batches, then);
    const ts_cuda_device *device = ts_cuda_use(k.device);
    plan *p;
    if (device && dtype == TS_F32 && !ts_cuda_tf32() &&
        ts_cuda_takes_f32(device, a, b, c, batches, then))
        return true;
    if (!device || plan_of(f, &k, then, &p) != TS_OK)
        return true;
    bool missing = p->missing;
    done_with(p);
    return !missing;
}

/** Allocates the workspace and launches the product. */
static ts_status launch(const ts_frame *f, const ts_cuda_device *device, const plan *p,
                        const ts_cuda_matrix *a, const ts_cuda_matrix *b, const ts_cuda_matrix *c,
                        const ts_cuda_epilogue *then)
{
    if (p->missing)
        return check(CUBLAS_STATUS_NOT_SUPPORTED, f);
    ts_device where = ts_kernel_device(f);
    void *workspace = NULL;
    if (p->workspace && !(workspace = ts_scratch_take(where, (int64_t)p->workspace)))
        return ts_error_code();
    cudaStream_t stream = ts_cuda_stream(device, ts_kernel_stream(f));
    const double alpha = then->factors ? then->factors[0] : 1,
                 beta = then->factors ? then->factors[1] : 0;
    const float alpha_f = (float)alpha, beta_f = (float)beta;
    bool wide = p->key.dtype == TS_F64;
    cublasLtMatmulDesc_t product = p->product;
    cublasLtMatmulDescOpaque_t own;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (p->key.epilogue != CUBLASLT_EPILOGUE_DEFAULT) { /* a copy: other threads share the plan */
        memcpy(&own, p->product, sizeof own);
        product = (cublasLtMatmulDesc_t)&own;
        point(&status, product, then);
    }
    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            cublasLtMatmul(handles[where.index], product, wide ? (const void *)&alpha : &alpha_f,
                           b->data, p->a, a->data, p->b, wide ? (const void *)&beta : &beta_f,
                           then->added ? then->added : c->data, p->c, c->data, p->c, &p->algo,
                           workspace, p->workspace, stream);
    if (workspace)
        ts_scratch_give(where, workspace, (int64_t)p->workspace);
    TS_TRY(check(status, f));
    return ts_cuda_launched(f, cudaSuccess, stream);
}

ts_status ts_cuda_gemm(const ts_frame *f, ts_dtype dtype, const ts_cuda_matrix *a,
                       const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                       const ts_cuda_epilogue *then)
{
    const ts_cuda_device *device = ts_cuda_use(ts_kernel_device(f).index);
    if (!device)
        return ts_error_code();
    if (batches > INT32_MAX)
        return ts_error_set(TS_ERR_UNSUPPORTED, "%s: expected at most %d matrices, got %lld",
                            ts_op_name(f->op), INT32_MAX, (long long)batches);
    if (dtype == TS_F32 && !ts_cuda_tf32() && ts_cuda_takes_f32(device, a, b, c, batches, then))
        return ts_cuda_gemm_f32(f, a, b, c, batches, then);
    if (ts_cuda_takes_slope(device, dtype, a, b, c, batches, then))
        return ts_cuda_gemm_slope(f, dtype, a, b, c, then);
    key k = key_of(f, dtype, a, b, c, batches, then);
    plan *p;
    TS_TRY(plan_of(f, &k, then, &p));
    ts_status status = launch(f, device, p, a, b, c, then);
    done_with(p);
    return status;
}
