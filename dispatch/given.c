/** @file given.c  Checks of the destinations that a caller passes to in-place and out= forms. */
// SPDX-License-Identifier: MIT
#include "dispatch/entries.h"

static bool same_layout(const ts_tensor *a, const ts_tensor *b)
{
    if (a->data != b->data || a->ndim != b->ndim || a->dtype != b->dtype)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->sizes[d] != b->sizes[d] || (a->sizes[d] > 1 && a->strides[d] != b->strides[d]))
            return false;
    return true;
}

/** Name of the argument that is the same tensor as the destination; NULL if none is. */
static TS_COLD const char *same_as(const ts_frame *f, const ts_tensor *out)
{
    for (int i = 0; i < f->nargs; i++)
        if (f->args[i].tag == TS_TAG_TENSOR && f->args[i].t == out)
            return f->table->info->schema.args[i].name;
    return NULL;
}
/** The two strings for "argument '%s%s" in an error about a destination. self: name of the argument
 *  that is written in place; NULL: the destination is `out`. */
#define NAMED(self) self ? self : "out", self ? "', written in place" : "'"

/** Records the error of a destination that does not fit; TS_OK if it is only not contiguous. */
static TS_COLD ts_status check_fit(const ts_frame *f, const ts_tensor *out, const ts_meta *m)
{
    char want[192], got[192];
    const char *op = ts_op_name(f->op), *self = same_as(f, out);
    if (out->ndim != m->ndim || !ts_same_sizes(out->sizes, m->sizes, m->ndim))
        return ts_fail_op(TS_ERR_SHAPE, op, f->site, NULL,
                          "argument '%s%s: expected sizes %s, got %s", NAMED(self),
                          ts_format_sizes(want, sizeof want, m->sizes, m->ndim),
                          ts_format_sizes(got, sizeof got, out->sizes, out->ndim));
    if (out->dtype != m->dtype)
        return ts_fail_op(TS_ERR_DTYPE, op, f->site,
                          "cast an argument, or use the form that returns a new tensor",
                          "argument '%s%s: expected dtype %s, got %s", NAMED(self),
                          ts_dtype_name((ts_dtype)m->dtype), ts_dtype_name((ts_dtype)out->dtype));
    if (!ts_same_device(out->device, m->device))
        return ts_fail_op(TS_ERR_DEVICE, op, f->site, NULL,
                          "argument '%s%s: expected device %s, got %s", NAMED(self),
                          ts_device_name(m->device), ts_device_name(out->device));
    if (ts_is_expanded(out))
        return ts_fail_op(TS_ERR_VALUE, op, f->site, "write to ts_clone() of it",
                          "argument '%s%s: expected distinct elements, got an expanded tensor",
                          NAMED(self));
    return TS_OK;
}

/** Error if argument `a` has elements in common with the destination, because the kernel could read
 *  elements that it has already overwritten. */
static __attribute__((noinline)) ts_status check_shared(const ts_frame *f, const ts_tensor *out,
                                                        int a)
{
    bool operand = f->plan->operands >> a & 1;
    uint32_t n;
    ts_tensor *const *t = ts_value_members(&f->args[a], &n);
    const char *arg = f->table->info->schema.args[a].name, *self = same_as(f, out);
    self = self == arg ? NULL : self;
    for (uint32_t k = 0; k < n; k++)
        if (t[k]->storage == out->storage && !(operand && same_layout(out, t[k])) &&
            ts_tensors_overlap(out, t[k]))
            return ts_fail_op(TS_ERR_VALUE, ts_op_name(f->op), f->site,
                              "write to another tensor, or pass ts_clone() of the argument",
                              "argument '%s%s: shares memory with argument '%s'", NAMED(self),
                              arg);
    return TS_OK;
}

TS_INLINE bool is_fit(const ts_tensor *out, const ts_meta *m)
{
    return out->kind.bits == m->kind.bits && (out->flags & TS_TENSOR_CONTIGUOUS) &&
           ts_same_sizes(out->sizes, m->sizes, m->ndim);
}

ts_status ts_check_fits_result(const ts_frame *f, const ts_tensor *out, const ts_meta *m)
{
    return TS_LIKELY(is_fit(out, m)) ? TS_OK : check_fit(f, out, m);
}

static __attribute__((noinline)) ts_status check_each(const ts_frame *f)
{
    for (unsigned left = f->given; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        const ts_tensor *out = f->rets[i].t;
        TS_TRY(ts_check_fits_result(f, out, &f->plan->ret[i]));
        for (int a = 0; a < f->nargs; a++)
            TS_TRY(check_shared(f, out, a));
    }
    return TS_OK;
}

/** The check of a frequent case: true if result 0 is the only destination and fits, all arguments
 *  are tensors or numbers, and none shares its storage, except an operand that is the same tensor.
 *  False proves nothing. */
TS_INLINE bool is_plain(const ts_frame *f)
{
    const ts_tensor *out = f->rets[0].t;
    unsigned operands = f->plan->operands;
    if (f->given != 1 || !is_fit(out, &f->plan->ret[0]))
        return false;
    for (const ts_value *v = f->args, *end = v + f->nargs; v < end; v++, operands >>= 1) {
        if (v->tag < TS_TAG_TENSOR)
            continue;
        if (v->tag != TS_TAG_TENSOR ||
            (v->t->storage == out->storage && !(v->t == out && (operands & 1))))
            return false;
    }
    return true;
}

ts_status ts_check_given(const ts_frame *f) { return is_plain(f) ? TS_OK : check_each(f); }
