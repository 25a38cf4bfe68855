/** @file index.c  Samples of reading and writing by index. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

#include <string.h>

/** (outer, n, inner) of self around the dim in argument 1,
 * and the number of indices in argument 2. */
typedef struct slices {
    int64_t outer, n, inner, count;
} slices;

static slices slices_of(const ts_ref *r)
{
    slices s = {.count = r->a[2].numel};
    ref_split(&r->a[0], r->a[1].i, &s.outer, &s.n, &s.inner);
    return s;
}

static double *start_from(ts_ref *r, const ts_ref_arg *a)
{
    double *y = ref_ret_like(r, 0, a);
    memcpy(y, a->x, (size_t)a->numel * sizeof *y);
    return y;
}

static void ref_index_select(ts_ref *r)
{
    const ts_ref_arg *a = &r->a[0];
    slices s = slices_of(r);
    int64_t sizes[TS_MAX_DIMS];
    memcpy(sizes, a->sizes, sizeof sizes);
    if (a->ndim)
        sizes[r->a[1].i < 0 ? r->a[1].i + a->ndim : r->a[1].i] = s.count;
    double *y = ref_ret(r, 0, sizes, a->ndim);
    for (int64_t e = 0; e < r->ret[0].numel; e++) {
        int64_t i = e % s.inner, k = e / s.inner % s.count, o = e / s.inner / s.count;
        y[e] = a->x[(o * s.n + (int64_t)r->a[2].x[k]) * s.inner + i];
    }
}

static void ref_index_add(ts_ref *r)
{
    slices s = slices_of(r);
    double *y = start_from(r, &r->a[0]);
    for (int64_t e = 0; e < r->a[3].numel; e++) {
        int64_t i = e % s.inner, k = e / s.inner % s.count, o = e / s.inner / s.count;
        y[(o * s.n + (int64_t)r->a[2].x[k]) * s.inner + i] += r->a[3].x[e];
    }
}

/** Result (…, columns) for an index of sizes (…). */
static double *rows(ts_ref *r, const ts_ref_arg *index, int64_t columns)
{
    int64_t sizes[TS_MAX_DIMS];
    memcpy(sizes, index->sizes, sizeof sizes);
    sizes[index->ndim] = columns;
    return ref_ret(r, 0, sizes, index->ndim + 1);
}

static void ref_embedding(ts_ref *r)
{
    int64_t columns = r->a[0].sizes[1];
    double *y = rows(r, &r->a[1], columns);
    for (int64_t e = 0; e < r->ret[0].numel; e++)
        y[e] = r->a[0].x[(int64_t)r->a[1].x[e / columns] * columns + e % columns];
}

static void ref_embedding_backward(ts_ref *r)
{
    int64_t columns = r->a[0].sizes[r->a[0].ndim - 1];
    double *y = ref_ret(r, 0, (int64_t[]){r->a[2].i, columns}, 2);
    for (int64_t e = 0; e < r->a[0].numel; e++) {
        int64_t row = (int64_t)r->a[1].x[e / columns];
        if (row != r->a[3].i)
            y[row * columns + e % columns] += r->a[0].x[e];
    }
}

static void ref_one_hot(ts_ref *r)
{
    double *y = rows(r, &r->a[0], r->a[1].i);
    for (int64_t k = 0; k < r->a[0].numel; k++)
        y[k * r->a[1].i + (int64_t)r->a[0].x[k]] = 1;
}

/** Row-major position in `of` with the coordinates of element e of the index, except along `dim`,
 * where the coordinate is the index's value. dim -1: no exception. */
static int64_t partner(const ts_ref_arg *index, int64_t e, const ts_ref_arg *of, int64_t dim)
{
    int64_t at = 0, step = 1, rest = e;
    for (int d = of->ndim - 1; d >= 0; d--) {
        at += step * (d == dim ? (int64_t)index->x[e] : rest % index->sizes[d]);
        rest /= index->sizes[d];
        step *= of->sizes[d];
    }
    return at;
}

static int64_t dim_of(const ts_ref *r)
{
    return r->a[1].i < 0 ? r->a[1].i + r->a[0].ndim : r->a[1].i;
}

static void ref_gather(ts_ref *r)
{
    double *y = ref_ret_like(r, 0, &r->a[2]);
    for (int64_t e = 0; e < r->a[2].numel; e++)
        y[e] = r->a[0].x[partner(&r->a[2], e, &r->a[0], dim_of(r))];
}

static void ref_scatter(ts_ref *r)
{
    double *y = start_from(r, &r->a[0]);
    for (int64_t e = 0; e < r->a[2].numel; e++) {
        double from = r->a[3].tag == TS_TAG_TENSOR ? r->a[3].x[partner(&r->a[2], e, &r->a[3], -1)]
                                                   : r->a[3].d;
        y[partner(&r->a[2], e, &r->a[0], dim_of(r))] = from;
    }
}

static void ref_scatter_add(ts_ref *r)
{
    double *y = start_from(r, &r->a[0]);
    for (int64_t e = 0; e < r->a[2].numel; e++)
        y[partner(&r->a[2], e, &r->a[0], dim_of(r))] +=
            r->a[3].x[partner(&r->a[2], e, &r->a[3], -1)];
}

#define EVERY (DT_ALL | TS_DT(TS_BF16) | TS_DT(TS_F16))
#define WHOLES(type, from, to, ...) \
    {.tag = TS_TAG_TENSOR, .dtype = 1 + (type), .gen = GEN_WHOLE, .low = from, .high = to,         \
     SIZES_(__VA_ARGS__)}
#define INDEX32(bound, ...) WHOLES(TS_I32, 0, bound, __VA_ARGS__)
/* out of range, above and below */
#define ABOVE(...) WHOLES(TS_I64, 5, 9, __VA_ARGS__)
#define BELOW(...) WHOLES(TS_I64, -3, 0, __VA_ARGS__)
#define BAD_INDEX(arg, ...)                                                                  \
    {arg, ABOVE(__VA_ARGS__), TS_ERR_INDEX, "from 0 to 4"},                                  \
    {arg, BELOW(__VA_ARGS__), TS_ERR_INDEX, "at position"},                                  \
    {arg, T_OF(TS_F32, __VA_ARGS__), TS_ERR_DTYPE, "i64 or i32"}

/* Sums: each element is the result of about count / 5 additions, so the depth is bounded by the
   sweep. */
static const ts_sample samples[] = {
    {"embedding", "rows", {T(5, 7), T_INDEX(5, SWEEP), INT(-1)}, ref_embedding, .dtypes = EVERY,
     .grad = true,
     .bad = {BAD_INDEX(1, 3), {0, T(5), TS_ERR_SHAPE, "dims"}, {2, INT(5), TS_ERR_INDEX, "below 5"},
             {2, INT(-2), TS_ERR_INDEX, "-1"}}},
    {"embedding", "columns", {T(5, SWEEP), INDEX32(5, 2, 3), INT(-1)}, ref_embedding, .grad = true},
    {"embedding", "padding", {T(5, 3), T_INDEX(5, SWEEP, 2), INT(2)}, ref_embedding},
    {"embedding", "one", {T(5, SWEEP), T_INDEX(5), INT(-1)}, ref_embedding, .grad = true},
    {"embedding_backward", "rows", {T(SWEEP, 7), T_INDEX(5, SWEEP), INT(5), INT(-1)},
     ref_embedding_backward,
     .dtypes = DT_NUMBERS, .c = 2, .scale = 4, .depth = SWEEP, .grad = true,
     .bad = {BAD_INDEX(1, 3), {0, T(4, 7), TS_ERR_SHAPE, "index"},
             {2, INT(-1), TS_ERR_VALUE, "at least 0"}}},
    {"embedding_backward", "columns", {T(2, 3, SWEEP), INDEX32(5, 2, 3), INT(6), INT(-1)},
     ref_embedding_backward,
     .c = 2, .scale = 4, .depth = 6, .grad = true},
    {"embedding_backward", "padding", {T(SWEEP, 2), T_INDEX(5, SWEEP), INT(5), INT(1)},
     ref_embedding_backward,
     .c = 2, .scale = 4, .depth = SWEEP, .grad = true},

    {"index_select", "first dim", {T(5, 3), INT(0), T_INDEX(5, SWEEP)}, ref_index_select,
     .dtypes = EVERY, .grad = true,
     .bad = {BAD_INDEX(2, 3), {1, INT(2), TS_ERR_INDEX, "dim"},
             {2, T_INDEX(5, 2, 2), TS_ERR_SHAPE, "one dim"}}},
    {"index_select", "middle", {T(2, 5, SWEEP), INT(-2), INDEX32(5, 4)}, ref_index_select,
     .grad = true},
    {"index_select", "last dim", {T(SWEEP, 5), INT(-1), T_INDEX(5, 7)}, ref_index_select,
     .grad = true},
    {"index_select", "special", {T_SPECIAL(19, 2), INT(0), T_INDEX(19, SWEEP)}, ref_index_select},
    {"index_select", "0-dim", {T(), INT(0), T_INDEX(1, 1)}, ref_index_select, .grad = true},

    {"index_add", "first dim", {T(5, 3), INT(0), T_INDEX(5, SWEEP), T(SWEEP, 3)}, ref_index_add,
     .dtypes = DT_NUMBERS, .c = 2,
     .scale = 4, .depth = SWEEP, .grad = true, .inplace = true,
     .bad = {BAD_INDEX(2, 3), {3, T(2, 3), TS_ERR_SHAPE, "sizes"},
             {3, T_OF(TS_I64, 3, 3), TS_ERR_DTYPE, "dtype"}}},
    {"index_add", "middle", {T(2, 5, SWEEP), INT(1), INDEX32(5, 4), T(2, 4, SWEEP)}, ref_index_add,
     .c = 2, .scale = 4, .depth = 4,
     .grad = true, .inplace = true},
    {"index_add", "last dim", {T(SWEEP, 5), INT(-1), T_INDEX(5, 7), T(SWEEP, 7)}, ref_index_add,
     .c = 2, .scale = 4, .depth = 7,
     .grad = true, .inplace = true},
    {"index_add", "0-dim", {T(), INT(0), T_INDEX(1, 1), T()}, ref_index_add, .c = 2, .scale = 4,
     .grad = true, .inplace = true},

    {"gather", "first dim", {T(5, 4), INT(0), T_INDEX(5, SWEEP, 3)}, ref_gather, .dtypes = EVERY,
     .grad = true,
     .bad = {BAD_INDEX(2, 3, 3), {2, T_INDEX(5, 3), TS_ERR_SHAPE, "dims"},
             {2, T_INDEX(5, 3, 5), TS_ERR_SHAPE, "at most"}}},
    {"gather", "middle", {T(2, 5, SWEEP), INT(1), INDEX32(5, 2, 3, SWEEP)}, ref_gather,
     .grad = true},
    {"gather", "last dim", {T(SWEEP, 5), INT(-1), T_INDEX(5, SWEEP, 7)}, ref_gather, .grad = true},
    {"gather", "0-dim", {T(), INT(0), T_INDEX(1)}, ref_gather, .grad = true},

    {"scatter", "first dim", {T(5, 4), INT(0), T_INDEX(5, SWEEP, 3), T(SWEEP, 4)}, ref_scatter,
     .dtypes = EVERY, .inplace = true,
     .bad = {BAD_INDEX(2, 3, 3), {3, T(2, 4), TS_ERR_SHAPE, "at least"},
             {3, T_OF(TS_I64, 3, 4), TS_ERR_DTYPE, "dtype"},
             {2, T_INDEX(5, 3, 5), TS_ERR_SHAPE, "at most"}}},
    {"scatter", "middle", {T(2, 5, SWEEP), INT(1), INDEX32(5, 2, 3, SWEEP), T(2, 3, SWEEP)},
     ref_scatter, .inplace = true},
    /* one index per line: with equal indices, overwritten sources still get a gradient, as in
     * PyTorch */
    {"scatter", "last dim", {T(SWEEP, 5), INT(-1), T_INDEX(5, SWEEP, 1), T(SWEEP, 2)}, ref_scatter,
     .grad = true, .inplace = true},
    {"scatter", "a number", {T(SWEEP, 5), INT(1), T_INDEX(5, SWEEP, 3), INT(7)}, ref_scatter,
     .dtypes = DT_NUMBERS, .grad = true,
     .inplace = true},
    {"scatter", "0-dim", {T(), INT(0), T_INDEX(1), T()}, ref_scatter, .grad = true,
     .inplace = true},

    {"scatter_add", "first dim", {T(5, 4), INT(0), T_INDEX(5, SWEEP, 3), T(SWEEP, 4)},
     ref_scatter_add, .dtypes = DT_NUMBERS,
     .c = 2, .scale = 4, .depth = SWEEP, .grad = true, .inplace = true,
     .bad = {BAD_INDEX(2, 3, 3), {3, T(2, 4), TS_ERR_SHAPE, "at least"},
             {3, T_OF(TS_I64, 3, 4), TS_ERR_DTYPE, "dtype"}}},
    {"scatter_add", "middle", {T(2, 5, SWEEP), INT(1), INDEX32(5, 2, 3, SWEEP), T(2, 4, SWEEP)},
     ref_scatter_add, .c = 2,
     .scale = 4, .depth = 3, .grad = true, .inplace = true},
    {"scatter_add", "last dim", {T(SWEEP, 5), INT(-1), T_INDEX(5, SWEEP, 7), T(SWEEP, 7)},
     ref_scatter_add, .c = 2, .scale = 4,
     .depth = 7, .grad = true, .inplace = true},

    {"one_hot", "vector", {T_WHOLE(0, 5, SWEEP), INT(5)}, ref_one_hot,
     .dtypes = TS_DT(TS_I64) | TS_DT(TS_I32), .out = {OUT(TS_I64)},
     .bad = {BAD_INDEX(0, 3), {1, INT(0), TS_ERR_VALUE, "at least 1"}}},
    {"one_hot", "matrix", {T_WHOLE(0, 3, 2, SWEEP), INT(17)}, ref_one_hot,
     .dtypes = TS_DT(TS_I64) | TS_DT(TS_I32),
     .out = {OUT(TS_I64)}},
};
TS_SAMPLES(index, samples)
