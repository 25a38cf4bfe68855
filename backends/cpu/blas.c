/** @file blas.c  Matrix products by CBLAS. OpenBLAS is set to one thread per call; the library's
 * thread pool makes several calls in parallel. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/gemm.h"
#include "core/process.h"

#include <cblas.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* OpenBLAS only; NULL with other CBLAS libraries. */
extern void openblas_set_num_threads(int threads) __attribute__((weak));

/**
 * Row-major transpose flag and leading dim of an operand with these steps. The step of a
 * single row or column is unused, and may be too small for the CBLAS.
 */
static CBLAS_TRANSPOSE layout(int64_t rows, int64_t columns, int64_t row, int64_t column,
                              int *leading)
{
    bool dense_rows = column == 1 || columns == 1;
    if (dense_rows && rows > 1 && row < columns) /* one column: dense either way */
        dense_rows = false;
    int64_t step = dense_rows ? row : column, least = dense_rows ? columns : rows;
    bool single = dense_rows ? rows == 1 : columns == 1;
    *leading = (int)(single || step < least ? least : step);
    return dense_rows ? CblasNoTrans : CblasTrans;
}

/* ------------------------------------------------------------------ the end of the process ---- */

static atomic_int active_calls; /* threads that are in the CBLAS */
static atomic_bool closed;

/** Waits at most PATIENCE ms for running calls, because the CBLAS frees its buffers in a
 *  destructor. */
static void close_blas(void)
{
    enum { PATIENCE = 5000 }; /* ms */
    atomic_store(&closed, true);
    for (int ms = 0; atomic_load(&active_calls) && ms < PATIENCE; ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/** A forked child has none of the parent's threads. */
static void reset_active_calls(void) { atomic_store(&active_calls, 0); }

/** Counts a CBLAS call. False if a size does not fit int or the process is ending; the caller then
 *  computes the product without the CBLAS. */
static bool enter(const ts_gemm *g)
{
    int64_t steps = ts_max64(ts_max64(g->a_row, g->a_column), ts_max64(g->b_row, g->b_column));
    if (ts_max64(ts_max64(steps, g->c_row), ts_max64(g->m, ts_max64(g->k, g->n))) > INT_MAX)
        return false;
    atomic_fetch_add(&active_calls, 1);
    if (!atomic_load(&closed))
        return true;
    atomic_fetch_sub(&active_calls, 1);
    return false;
}

/* ------------------------------------------------------------------------------- products ---- */

/* Unless g->add, rows of c are set to the bias, if any, or to 0 for k = 0. The product is added to
 * rows with a bias or with g->add, and replaces other rows. */
#define BLAS(T, name, gemm)                                                                        \
    bool name(const ts_gemm *g)                                                                    \
    {                                                                                              \
        if (!enter(g))                                                                             \
            return false;                                                                          \
        T *c = g->c;                                                                               \
        for (int64_t i = 0; i < g->m && !g->add && (g->bias || !g->k); i++) {                      \
            if (g->bias)                                                                           \
                memcpy(c + i * g->c_row, g->bias, (size_t)g->n * sizeof(T));                       \
            else                                                                                   \
                memset(c + i * g->c_row, 0, (size_t)g->n * sizeof(T));                             \
        }                                                                                          \
        int lda, ldb;                                                                              \
        CBLAS_TRANSPOSE ta = layout(g->m, g->k, g->a_row, g->a_column, &lda);                      \
        CBLAS_TRANSPOSE tb = layout(g->k, g->n, g->b_row, g->b_column, &ldb);                      \
        if (g->m && g->n && g->k)                                                                  \
            gemm(CblasRowMajor, ta, tb, (int)g->m, (int)g->n, (int)g->k, 1, g->a, lda, g->b, ldb,  \
                 g->bias || g->add ? 1 : 0, c, (int)ts_max64(g->c_row, g->n));                     \
        atomic_fetch_sub(&active_calls, 1);                                                        \
        return true;                                                                               \
    }
BLAS(float, ts_blas_f32, cblas_sgemm)
BLAS(double, ts_blas_f64, cblas_dgemm)

void ts_blas_install(void)
{
    if (openblas_set_num_threads)
        openblas_set_num_threads(1);
    TS_PROCESS_AT_END(close_blas);
    TS_FORK_IN_CHILD(reset_active_calls);
}
