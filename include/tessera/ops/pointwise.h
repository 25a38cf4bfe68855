/**
 * @file pointwise.h
 * Binary arithmetic. Shapes broadcast (numpy's rules); dtypes promote as in PyTorch: tensors with
 * dims decide, 0-dim tensors and scalars only raise the category (bool < integer < float).
 * In-place and _out forms need the exact result shape, dtype and device.
 * Errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_POINTWISE_H
#define TESSERA_OPS_POINTWISE_H

#include "../core.h"

TS_BEGIN_DECLS

/** The five forms of a binary op. */
#define TS_DECLARE_BINARY(name)                                                                 \
    TS_API ts_tensor *ts_##name(ts_tensor *self, ts_tensor *other);                             \
    TS_API ts_tensor *ts_##name##_scalar(ts_tensor *self, ts_scalar other);                     \
    TS_API ts_tensor *ts_##name##_(ts_tensor *self, ts_tensor *other);                          \
    TS_API ts_tensor *ts_##name##_scalar_(ts_tensor *self, ts_scalar other);                    \
    TS_API ts_tensor *ts_##name##_out(ts_tensor *out, ts_tensor *self, ts_tensor *other);

/** self + other. */
TS_DECLARE_BINARY(add)
/** self - other. */
TS_DECLARE_BINARY(sub)
/** self * other. */
TS_DECLARE_BINARY(mul)

#ifndef __cplusplus
/* plain C numbers where a ts_scalar is expected */
#define ts_add_scalar(self, other) ts_add_scalar(self, TS_SCALAR(other))
#define ts_add_scalar_(self, other) ts_add_scalar_(self, TS_SCALAR(other))
#define ts_sub_scalar(self, other) ts_sub_scalar(self, TS_SCALAR(other))
#define ts_sub_scalar_(self, other) ts_sub_scalar_(self, TS_SCALAR(other))
#define ts_mul_scalar(self, other) ts_mul_scalar(self, TS_SCALAR(other))
#define ts_mul_scalar_(self, other) ts_mul_scalar_(self, TS_SCALAR(other))
#endif

TS_END_DECLS
#endif
