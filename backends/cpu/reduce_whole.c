/**
 * @file reduce_whole.c
 * Reductions whose value does not depend on the order of the elements: folds of integers, and
 * searches for zero or nonzero elements (all, any). A task computes whole results.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/reduction.h"

enum { ACROSS = 256 /* results that a task computes side by side */ };

/** Plans a pass in which one task folds all elements of a result. */
static void plan_whole(reduction *r, const ts_tensor *t, int64_t mask, void *results)
{
    plan_first(r, t, mask);
    if (r->width) { /* makes the columns a kept dim */
        memmove(r->kept_sizes + 1, r->kept_sizes, sizeof(int64_t) * (size_t)r->kept);
        memmove(r->kept_steps + 1, r->kept_steps, sizeof(int64_t) * (size_t)r->kept);
        r->kept_sizes[0] = r->width;
        r->kept_steps[0] = ts_dtype_sizes[t->dtype];
        r->kept++;
        r->results *= r->width;
    }
    r->all_runs = r->length / r->sizes[0];
    r->x = t->data;
    r->out = results;
}

/** True if a task folds several results side by side: results with short or strided runs, if at
 * least 8 are adjacent. */
static bool is_across(const reduction *r, int64_t item)
{
    return (r->steps[0] != item || r->sizes[0] * item < 128) && r->kept && r->kept_sizes[0] >= 8;
}

/* ---------------------------------------------------------------------- integers ---------- */

typedef struct whole_job {
    const reduction *r;
    whole_fold how;
} whole_job;

/* Results are folded one after the other along their runs, or up to ACROSS of them side by side. */
#define ALONG(T, take)                                                                             \
    if (step == (int64_t)sizeof(T))                                                                \
        for (int64_t k = 0; k < n; k++) {                                                          \
            T v = ((const T *)x)[k];                                                               \
            take;                                                                                  \
        }                                                                                          \
    else                                                                                           \
        for (int64_t k = 0; k < n; k++) {                                                          \
            T v = *(const T *)(x + k * step);                                                      \
            take;                                                                                  \
        }
#define FOLD_INTEGERS(T, U, name)                                                                  \
    VEC_FN T name##_two(whole_fold how, T y, T v)                                                  \
    {                                                                                              \
        return how == WHOLE_MAX    ? v > y ? v : y                                                 \
               : how == WHOLE_MIN  ? v < y ? v : y                                                 \
               : how == WHOLE_PROD ? (T)((U)y * (U)v)                                              \
                                  : (T)((U)y + (U)v);                                              \
    }                                                                                              \
    VEC_FN void name##_along(whole_fold how, const reduction *r, int64_t begin, int64_t end)       \
    {                                                                                              \
        int64_t n = r->sizes[0], step = r->steps[0];                                               \
        walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, begin);                     \
        for (int64_t o = begin; o < end; o++, walker_next(&kept)) {                                \
            walker run = walker_at(r->reduced - 1, r->sizes + 1, r->steps + 1, 0);                 \
            T y = how == WHOLE_SUM ? 0 : how == WHOLE_PROD ? 1 : *(const T *)(r->x + kept.offset); \
            for (int64_t i = 0; i < r->all_runs; i++, walker_next(&run)) {                         \
                const char *x = r->x + kept.offset + run.offset;                                   \
                ALONG(T, y = name##_two(how, y, v))                                                \
            }                                                                                      \
            ((T *)r->out)[o] = y;                                                                  \
        }                                                                                          \
    }                                                                                              \
    VEC_FN void name##_across(whole_fold how, const reduction *r, int64_t begin, int64_t end)      \
    {                                                                                              \
        walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, begin);                     \
        for (int64_t o = begin, n; o < end; o += n, walker_move(&kept, n)) {                       \
            T y[ACROSS];                                                                           \
            int64_t step = walker_step(&kept);                                                     \
            n = walker_run(&kept, ts_min64(end - o, ACROSS));                                      \
            const char *x = r->x + kept.offset;                                                    \
            ALONG(T, y[k] = v)                                                                     \
            walker one = walker_at(r->reduced, r->sizes, r->steps, 0);                             \
            for (int64_t i = 1; i < r->length; i++) {                                              \
                walker_next(&one);                                                                 \
                x = r->x + kept.offset + one.offset;                                               \
                ALONG(T, y[k] = name##_two(how, y[k], v))                                          \
            }                                                                                      \
            memcpy((T *)r->out + o, y, (size_t)n * sizeof(T));                                     \
        }                                                                                          \
    }                                                                                              \
    VEC_FN void name##_tasks(whole_fold how, const whole_job *job, int64_t begin, int64_t end)     \
    {                                                                                              \
        (is_across(job->r, sizeof(T)) ? name##_across : name##_along)(how, job->r, begin, end);    \
    }                                                                                              \
    static void name(void *ctx, int64_t begin, int64_t end)                                        \
    {                                                                                              \
        const whole_job *job = ctx;                                                                \
        switch (job->how) {                                                                        \
        case WHOLE_MAX: name##_tasks(WHOLE_MAX, job, begin, end); break;                           \
        case WHOLE_MIN: name##_tasks(WHOLE_MIN, job, begin, end); break;                           \
        case WHOLE_PROD: name##_tasks(WHOLE_PROD, job, begin, end); break;                         \
        default: name##_tasks(WHOLE_SUM, job, begin, end);                                         \
        }                                                                                          \
    }
FOLD_INTEGERS(int64_t, uint64_t, fold_i64)
FOLD_INTEGERS(int32_t, uint32_t, fold_i32)
FOLD_INTEGERS(uint8_t, uint8_t, fold_u8)

void TS_V(ts_reduce_integers)(const ts_tensor *t, int64_t mask, whole_fold how, void *results)
{
    reduction r;
    plan_whole(&r, t, mask, results);
    whole_job job = {&r, how};
    ts_parallel_for(r.results, TS_CPU_GRAIN(1) / r.length + 1,
                    t->dtype == TS_I64 ? fold_i64 : t->dtype == TS_I32 ? fold_i32 : fold_u8, &job);
}

/* ---------------------------------------------------------------------- truth ------------- */

typedef struct truth_job {
    const reduction *r;
    uint64_t bits; /* bits of an element to test: without the sign of a float */
    bool all;      /* true: search for a zero; false: search for a nonzero element */
} truth_job;

/* Elements are tested as unsigned words of their size. A result along runs stops at the first block
 * that contains a deciding element. */
#define FOLD_TRUTH(T, name)                                                                        \
    typedef T name##_word __attribute__((may_alias));                                              \
    VEC_FN void name##_along(const truth_job *job, T bits, int64_t begin, int64_t end)             \
    {                                                                                              \
        const reduction *r = job->r;                                                               \
        int64_t size = r->sizes[0], step = r->steps[0];                                            \
        walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, begin);                     \
        for (int64_t o = begin; o < end; o++, walker_next(&kept)) {                                \
            walker run = walker_at(r->reduced - 1, r->sizes + 1, r->steps + 1, 0);                 \
            int found = 0;                                                                         \
            for (int64_t i = 0; i < r->all_runs && !found; i++, walker_next(&run))                 \
                for (int64_t from = 0; from < size && !found; from += RUN_BLOCK) {                 \
                    const char *x = r->x + kept.offset + run.offset + from * step;                 \
                    int64_t n = ts_min64(size - from, RUN_BLOCK);                                  \
                    ALONG(name##_word, found |= ((v & bits) == 0) == job->all)                     \
                }                                                                                  \
            ((uint8_t *)r->out)[o] = (uint8_t)(found != job->all);                                 \
        }                                                                                          \
    }                                                                                              \
    VEC_FN void name##_across(const truth_job *job, T bits, int64_t begin, int64_t end)            \
    {                                                                                              \
        const reduction *r = job->r;                                                               \
        walker kept = walker_at(r->kept, r->kept_sizes, r->kept_steps, begin);                     \
        for (int64_t o = begin, n; o < end; o += n, walker_move(&kept, n)) {                       \
            uint8_t found[ACROSS] = {0};                                                           \
            int64_t step = walker_step(&kept);                                                     \
            n = walker_run(&kept, ts_min64(end - o, ACROSS));                                      \
            walker one = walker_at(r->reduced, r->sizes, r->steps, 0);                             \
            for (int64_t i = 0; i < r->length; i++, walker_next(&one)) {                           \
                const char *x = r->x + kept.offset + one.offset;                                   \
                ALONG(name##_word, found[k] |= ((v & bits) == 0) == job->all)                      \
            }                                                                                      \
            for (int64_t k = 0; k < n; k++)                                                        \
                ((uint8_t *)r->out)[o + k] = (uint8_t)(found[k] != job->all);                      \
        }                                                                                          \
    }                                                                                              \
    static void name(void *ctx, int64_t begin, int64_t end)                                        \
    {                                                                                              \
        const truth_job *job = ctx;                                                                \
        (is_across(job->r, sizeof(T)) ? name##_across : name##_along)(job, (T)job->bits, begin,    \
                                                                      end);                        \
    }
FOLD_TRUTH(uint64_t, truth_8)
FOLD_TRUTH(uint32_t, truth_4)
FOLD_TRUTH(uint16_t, truth_2)
FOLD_TRUTH(uint8_t, truth_1)

void TS_V(ts_reduce_truth)(const ts_tensor *t, int64_t mask, bool all, uint8_t *results)
{
    size_t item = ts_dtype_sizes[t->dtype];
    bool real = ts_dtype_is_float((ts_dtype)t->dtype);
    reduction r;
    plan_whole(&r, t, mask, results);
    truth_job job = {&r, UINT64_MAX >> (64 - 8 * item + real), all};
    ts_parallel_for(r.results, TS_CPU_GRAIN(1) / r.length + 1,
                    item == 8   ? truth_8
                    : item == 4 ? truth_4
                    : item == 2 ? truth_2
                                : truth_1,
                    &job);
}
