/** @file pointwise.c  Binary arithmetic with broadcasting and promotion. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

ts_status ts_infer_binary(ts_frame *f) { return ts_infer_pointwise(f, 2, TS_DTYPE_NONE, false); }

/** The forms of a binary op: tensors, scalar on the right, in place, destination first. */
#define BINARY(name)                                                                  \
    ts_tensor *ts_##name(ts_tensor *self, ts_tensor *other)                           \
    {                                                                                 \
        ts_value args[] = {V_T(self), V_T(other)};                                    \
        return ts_invoke(TS_OP_##name, args, TS_N(args), 1);                          \
    }                                                                                 \
    ts_tensor *(ts_##name##_scalar)(ts_tensor *self, ts_scalar other)                 \
    {                                                                                 \
        ts_value args[] = {V_T(self), V_S(other)};                                    \
        return ts_invoke(TS_OP_##name, args, TS_N(args), 1);                          \
    }                                                                                 \
    ts_tensor *ts_##name##_(ts_tensor *self, ts_tensor *other)                        \
    {                                                                                 \
        ts_value args[] = {V_T(self), V_T(other)};                                    \
        return ts_invoke_out(TS_OP_##name, args, TS_N(args), 1, self);                \
    }                                                                                 \
    ts_tensor *(ts_##name##_scalar_)(ts_tensor *self, ts_scalar other)                \
    {                                                                                 \
        ts_value args[] = {V_T(self), V_S(other)};                                    \
        return ts_invoke_out(TS_OP_##name, args, TS_N(args), 1, self);                \
    }                                                                                 \
    ts_tensor *ts_##name##_out(ts_tensor *out, ts_tensor *self, ts_tensor *other)     \
    {                                                                                 \
        ts_value args[] = {V_T(self), V_T(other)};                                    \
        return ts_invoke_out(TS_OP_##name, args, TS_N(args), 1, out);                 \
    }

BINARY(add)
BINARY(sub)
BINARY(mul)
