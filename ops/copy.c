/** @file copy.c  Copies and conversions; reading values from tensors. */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "include/tessera/check.h"
#include "include/tessera/ops.h"
#include "include/tessera/program.h"
#include "ops/ops.h"
#include "ops/spatial.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------- rules ---- */

/** Plans a pointwise loop over argument 0, with a result like it. */
static void plan_copy(ts_frame *f)
{
    f->plan->pointwise = TS_POINTWISE;
    f->plan->operands = 1;
    ts_plan_like(f->plan, f->args[0].t);
}

/** Plans a channels-last result if the argument is channels-last with 4 or 5 dims, as in PyTorch;
 *  else returns false. */
static bool keep_channels_last(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    bool last = t->ndim >= 4 && ts_is_channels_last(t);
    if (last)
        ts_plan_channels_last(f->plan, 0, t->ndim);
    return last;
}

/** Plans a new result in the memory order of the argument (PyTorch's preserve_format). */
static void keep_order(ts_frame *f)
{
    if (!f->given && !keep_channels_last(f))
        ts_plan_dims(f->plan, f->args, 1);
}

/** Plans a conversion. The compute dtype, which the entry checks against the kernel's dtypes, is
 * that of the source if the kernel supports the dtype of the result; otherwise it is that of the
 * result. */
static void plan_conversion(ts_frame *f)
{
    uint8_t result = f->plan->ret[0].dtype;
    f->plan->converts = true;
    if (!(f->table->accepts[f->key].dtypes & TS_DT(result)))
        f->plan->compute = result;
}

/** A copy to META copies sizes only; a copy from META is an error. */
static ts_status check_values(ts_frame *f, ts_device to)
{
    if (f->args[0].t->storage->device.backend != TS_KEY_META || to.backend == TS_KEY_META)
        return TS_OK;
    return ts_fail_arg_hint(f, 0, TS_ERR_UNSUPPORTED, "make the tensor there with ts_empty_on()",
                            "a META tensor has no values that %s could hold", ts_device_name(to));
}

ts_status ts_infer_copy(ts_frame *f)
{
    plan_copy(f);
    keep_order(f);
    if (!f->given)
        return TS_OK;
    const ts_tensor *out = f->rets[0].t;
    TS_TRY(check_values(f, out->storage->device));
    TS_TRY(ts_check_broadcasts(f, 0, out->sizes, out->ndim));
    ts_plan_result_like(f->plan, 0, out, (ts_dtype)out->dtype);
    plan_conversion(f);
    return TS_OK;
}

ts_status ts_infer_contiguous(ts_frame *f)
{
    plan_copy(f);
    return TS_OK;
}

/** For backends that have a kernel of `copy` only. */
ts_status ts_composite_contiguous(ts_frame *f)
{
    ts_tensor *copy = ts_above.convert(f->args[0].t, (ts_dtype)f->args[0].t->dtype);
    TS_TRY(copy);
    f->rets[0] = V_T(copy);
    return TS_OK;
}

ts_status ts_infer_to(ts_frame *f)
{
    TS_TRY(ts_check_dtype_number(f, 1));
    plan_copy(f);
    f->plan->ret[0].dtype = (uint8_t)f->args[1].i;
    plan_conversion(f);
    keep_order(f);
    return TS_OK;
}

/** Shape rule of to_device, for copies to and from a backend. */
ts_status ts_infer_to_device(ts_frame *f)
{
    ts_device to = f->args[1].device;
    TS_TRY(check_values(f, to));
    plan_copy(f);
    f->plan->ret[0].device = to;
    const ts_op_table *copy = atomic_load_explicit(&ts_tables[TS_OP_copy], memory_order_acquire);
    if (!f->given &&
        (to.backend == TS_KEY_META || (copy->accepts[to.backend].takes & TS_TAKES_STRIDES)))
        keep_channels_last(f); /* else the device's copy kernel needs contiguous tensors */
    return TS_OK;
}

/* ------------------------------------------------------- functions for the generic entry ---- */

/** A new contiguous tensor with t's values in `dtype`; the caller owns it. NULL with an error. */
static ts_tensor *convert(ts_tensor *t, ts_dtype dtype)
{
    bool cast = t->dtype != dtype;
    ts_tensor *packed = ts_tensor_new(&ts_tls, dtype, t->sizes, t->ndim, t->storage->device);
    if (!packed)
        return NULL;
    ts_value args[] = {V_T(t), V_DT(dtype)}, ret = V_T(packed);
    if (ts_call(cast ? TS_OP_to : TS_OP_copy, args, cast ? 2 : 1, &ret, 1, 1, 1, NULL) == TS_OK)
        return packed;
    ts_tensor_unref(packed);
    return NULL;
}

static ts_status copy_into(ts_tensor *destination, ts_tensor *source, uint16_t op)
{
    ts_value args[] = {V_T(source)}, ret = V_T(destination);
    TS_TRY(ts_call(TS_OP_copy, args, 1, &ret, 1, 1, 1, NULL));
    destination->storage->writer = op;
    return TS_OK;
}

/** Handles a call with tensors on several devices: runs copies and transfers, and records an error
 *  about argument `arg` for other ops. */
static ts_status across(ts_frame *f, int arg)
{
    if (f->op == TS_OP_to_device)
        return ts_enter_fill(f);
    if (f->op == TS_OP_copy && f->given) {
        ts_tensor *out = f->rets[0].t, *source = f->args[0].t;
        if (!ts_same_device(out->storage->device, source->storage->device)) {
            ts_value args[] = {V_T(source), V_DEV(out->storage->device)}, moved = ts_value_none();
            TS_TRY(ts_call(TS_OP_to_device, args, 2, &moved, 1, 0, 1, f->site));
            ts_status status = copy_into(out, moved.t, f->op);
            ts_tensor_unref(moved.t);
            return status;
        }
    }
    ts_device device = ts_kernel_device(f);
    TS_TRY(ts_check_devices(f, true, &device));
    /* the arguments are on one device, but a device argument or the destination is another */
    const char *name = "out";
    ts_device got = device;
    if (arg < f->nargs) {
        name = f->table->info->schema.args[arg].name;
        device = ts_kernel_device(f);
    }
    for (int i = 0; i < f->nrets && arg == f->nargs; i++)
        if ((f->given >> i & 1) && !ts_same_device(f->rets[i].t->storage->device, device))
            got = f->rets[i].t->storage->device;
    return ts_fail_op(TS_ERR_DEVICE, ts_op_name(f->op), f->site, ts_move_hint(got, device),
                      "argument '%s': expected device %s, got %s", name, ts_device_name(device),
                      ts_device_name(got));
}

void ts_copy_install(void)
{
    ts_above.across = across;
    ts_above.convert = convert;
    ts_above.copy_into = copy_into;
}

/* ---------------------------------------------------------------------------- reading ---- */

/** ts_resolve() with the call site of the public function, which breaks are reported with. */
static ts_status resolve_at(const ts_tensor *t, const void *site)
{
    if (TS_LIKELY(!((t->keys | ts_tls.include) & TS_KEYSET(TS_KEY_LAZY))))
        return TS_OK;
    return ts_resolve_lazy(t, site);
}

/** Copies the elements of t, `bytes` bytes, to host memory for the function `op`. */
static ts_status copy_out(ts_tensor *t, void *data, size_t bytes, const char *op, const void *site)
{
    if (bytes && !t->storage->data)
        return ts_fail_op(TS_ERR_DEVICE, op, site, NULL,
                          "argument 't': expected a tensor with values, got one on %s",
                          ts_device_name(t->storage->device));
    TS_SCOPE;
    ts_tensor *c = t->flags & TS_TENSOR_CONTIGUOUS ? t : ts_contiguous(t);
    TS_TRY(c);
    TS_TRY(resolve_at(c, site));
    return ts_device_copy(TS_DEVICE_CPU, data, c->storage->device, c->data, (int64_t)bytes);
}

ts_status ts_copy_to(ts_tensor *t, void *data, size_t bytes)
{
    const void *site = __builtin_return_address(0);
    if (!ts_tensor_ok(t, "copy_to", "t", site))
        return ts_error_code();
    size_t need = (size_t)t->numel * ts_dtype_sizes[t->dtype];
    if (bytes != need)
        return ts_fail_op(TS_ERR_VALUE, "copy_to", site, NULL,
                          "argument 'bytes': expected %zu for the tensor's elements, got %zu", need,
                          bytes);
    TS_TRY(TS_CHECK_LIST(data, bytes));
    return copy_out(t, data, bytes, "copy_to", site);
}

/** Reads the element of a one-element tensor for the function `op`. */
static ts_status item(ts_tensor *t, ts_value *v, const char *op, const void *site)
{
    if (!ts_tensor_ok(t, op, "t", site))
        return ts_error_code();
    if (t->numel != 1)
        return ts_fail_op(TS_ERR_SHAPE, op, site, "reduce it first, or index an element",
                          "argument 't': expected one element, got sizes %s", TS_SIZES_TEXT(t));
    uint64_t bits[1];
    TS_TRY(copy_out(t, bits, ts_dtype_sizes[t->dtype], op, site));
    *v = ts_scalar_load(bits, (ts_dtype)t->dtype);
    return TS_OK;
}

ts_status ts_item(ts_tensor *t, double *value)
{
    ts_value v = ts_value_none();
    TS_TRY(TS_CHECK_POINTERS(value));
    TS_TRY(item(t, &v, "item", __builtin_return_address(0)));
    *value = ts_value_number(&v);
    return TS_OK;
}

ts_status ts_item_int(ts_tensor *t, int64_t *value)
{
    const void *site = __builtin_return_address(0);
    ts_value v = ts_value_none();
    TS_TRY(TS_CHECK_POINTERS(value));
    if (!ts_tensor_ok(t, "item_int", "t", site))
        return ts_error_code();
    if (ts_dtype_is_float((ts_dtype)t->dtype))
        return ts_fail_op(TS_ERR_DTYPE, "item_int", site, "use ts_item()",
                          "argument 't': expected an integer or bool dtype, got %s",
                          ts_dtype_name((ts_dtype)t->dtype));
    TS_TRY(item(t, &v, "item_int", site));
    *value = v.i;
    return TS_OK;
}

/** Prints the dims starting at `dim`. large: prints only the first and last 3 elements of a dim. */
static void print_dim(const char *p, const ts_tensor *t, int dim, const int64_t *steps, bool large)
{
    int item = ts_dtype_sizes[t->dtype];
    if (dim == t->ndim) {
        ts_value v = ts_scalar_load(p, (ts_dtype)t->dtype);
        if (v.tag == TS_TAG_FLOAT)
            printf("%.6g", v.d);
        else
            printf("%lld", (long long)v.i);
        return;
    }
    printf("[");
    int64_t n = t->sizes[dim];
    for (int64_t k = 0; k < n; k++) {
        if (k)
            printf(dim + 1 == t->ndim ? ", " : ",\n%*s", dim + 1, "");
        if (large && n > 6 && k == 3) {
            printf(dim + 1 == t->ndim ? "..., " : "...,\n%*s", dim + 1, "");
            k = n - 3;
        }
        print_dim(p + k * steps[dim] * item, t, dim + 1, steps, large);
    }
    printf("]");
}

ts_status ts_print(ts_tensor *t)
{
    const void *site = __builtin_return_address(0);
    TS_TRY(TS_CHECK_TENSORS(t));
    TS_SCOPE;
    TS_C_LOCALE;
    if (t->storage->data) {
        ts_tensor *c = t->storage->device.backend != TS_KEY_CPU ? ts_to_device(t, TS_DEVICE_CPU)
                       : t->flags & TS_TENSOR_CONTIGUOUS        ? t
                                                                : ts_contiguous(t);
        TS_TRY(c);
        TS_TRY(resolve_at(c, site));
        int64_t steps[TS_MAX_DIMS];
        ts_strides_fill(c->sizes, c->ndim, steps);
        print_dim(c->data, c, 0, steps, c->numel > 1000);
        printf(" ");
    }
    printf("%s %s %s\n", TS_SIZES_TEXT(t), ts_dtype_name((ts_dtype)t->dtype),
           ts_device_name(t->storage->device));
    return TS_OK;
}
