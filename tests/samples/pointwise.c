/** @file pointwise.c  Samples of binary arithmetic. */
// SPDX-License-Identifier: MIT
#include "tests/samples/sample.h"

REF_POINTWISE(ref_add, 2, a + b)
REF_POINTWISE(ref_sub, 2, a - b)
REF_POINTWISE(ref_mul, 2, a * b)

static void ref_add_bool(ts_ref *r)
{
    ref_add(r);
    for (int64_t i = 0; i < r->ret[0].numel; i++)
        r->ret[0].x[i] = r->ret[0].x[i] != 0;
}

#define BROADCASTS(op, ref, types)                                                                                \
    {op, "same sizes", {T(SWEEP, 3), T(SWEEP, 3)}, ref, .c = 1, .dtypes = types, .grad = true, .inplace = true},  \
    {op, "row", {T(2, SWEEP, 5), T(5)}, ref, .c = 1, .dtypes = types, .grad = true, .inplace = true},             \
    {op, "column", {T(3, SWEEP), T(3, 1)}, ref, .c = 1, .dtypes = types, .grad = true, .inplace = true},          \
    {op, "outer", {T(SWEEP, 1), T(1, 4)}, ref, .c = 1, .dtypes = types, .grad = true},                            \
    {op, "0-dim", {T(3, SWEEP), T()}, ref, .c = 1, .dtypes = types, .grad = true, .inplace = true},               \
    {op, "0-dim both", {T(), T()}, ref, .c = 1, .dtypes = types, .grad = true, .inplace = true},                  \
    {op, "8 dims", {T(1, 2, 1, 2, 1, 2, 1, SWEEP), T(2, 1, 2, 1, 2, 1, 2, 1)}, ref, .c = 1, .dtypes = types,      \
     .most = 33, .many = 1009},                                                                                   \
    {op, "whole scalar", {T(SWEEP, 2), INT(3)}, ref, .c = 1, .dtypes = (types) & DT_NUMBERS, .grad = true,        \
     .inplace = true, .bad = {{1, T_OF(TS_F32, 5, 4), TS_ERR_SHAPE, "broadcast"}}},                               \
    {op, "real scalar", {T(SWEEP, 2), FLOAT(0.75)}, ref, .c = 1, .grad = true, .inplace = true},                  \
    {op, "real scalar with integers", {T(SWEEP, 2), FLOAT(0.75)}, ref, .c = 1, .dtypes = DT_INTS, .out = {OUT_FLOAT}}, \
    {op, "scalar first", {FLOAT(0.75), T(SWEEP, 2)}, ref, .c = 1, .grad = true},                                  \
    {op, "special", {T_SPECIAL(20, 19), T_SPECIAL(20, 1)}, ref, .c = 0},                                          \
    {op, "integer and real tensors", {T(SWEEP, 3), T_OF(TS_F32, 3)}, ref, .c = 1, .dtypes = DT_INTS | TS_DT(TS_F32), \
     .out = {OUT_FLOAT}},                                                                                         \
    {op, "wider 0-dim", {T(SWEEP, 3), T_OF(TS_F64)}, ref, .c = 1, .scale = 4, .dtypes = TS_DT(TS_F32), \
     .inplace = true} /* the number is rounded first, so the error is one of the number's size */

static const ts_sample samples[] = {
    BROADCASTS("add", ref_add, DT_NUMBERS),
    {"add", "bool", {T(SWEEP, 3), T(3)}, ref_add_bool, .dtypes = TS_DT(TS_BOOL), .inplace = true},
    BROADCASTS("sub", ref_sub, DT_NUMBERS),
    BROADCASTS("mul", ref_mul, DT_NUMBERS),
    {"mul", "bool", {T(SWEEP, 3), T(3)}, ref_mul, .dtypes = TS_DT(TS_BOOL), .inplace = true},
};
TS_SAMPLES(pointwise, samples)
