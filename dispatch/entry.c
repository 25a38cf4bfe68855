/**
 * @file entry.c  The generic entries in the backend slots: what every op of a kind does around its
 * kernel, written once for all backends.
 */
// SPDX-License-Identifier: MIT
#include "core/convert.h"
#include "core/device.h"
#include "dispatch/registry.h"

#include <string.h>


/* ------------------------------------------------------------------------------ scalars ---- */

void ts_scalar_store(const ts_value *v, ts_dtype dtype, void *place)
{
    bool real = v->tag == TS_TAG_FLOAT;
    double d = real ? v->d : (double)v->i;
    float single = real ? ts_odd_f32(v->d) : ts_odd_f32_of(v->i); /* for the halves */
    int64_t i;
    switch (dtype) {
    case TS_F64: memcpy(place, &d, 8); break;
    case TS_F32: *(float *)place = (float)d; break;
    case TS_BF16: *(uint16_t *)place = ts_f32_to_bf16(single); break;
    case TS_F16: *(uint16_t *)place = ts_f32_to_f16(single); break;
    case TS_I64:
        i = real ? ts_trunc_i64(d) : v->i;
        memcpy(place, &i, 8);
        break;
    case TS_I32: *(int32_t *)place = real ? ts_trunc_i32(d) : (int32_t)v->i; break;
    case TS_U8: *(uint8_t *)place = (uint8_t)(real ? ts_trunc_i64(d) : v->i); break;
    default: *(uint8_t *)place = real ? d != 0 : v->i != 0;
    }
}

/* ------------------------------------------------------------------- pointwise iteration ---- */

/** Adds operand k with t's strides, broadcast to the result's sizes;
 * dims are outermost first here. */
static void operand_add(ts_iter *it, int k, const ts_tensor *t, const ts_tensor *result)
{
    int item = ts_dtype_sizes[t->dtype], shift = result->ndim - t->ndim;
    it->data[k] = t->data;
    for (int d = 0; d < result->ndim; d++) {
        int s = d - shift;
        it->strides[k][d] =
            s < 0 || (t->sizes[s] == 1 && result->sizes[d] != 1) ? 0 : t->strides[s] * item;
    }
}

void ts_iter_collapse(ts_iter *it, const int64_t *sizes, int ndim)
{
    int n = 0;
    int64_t steps[TS_MAX_OPERANDS][TS_MAX_DIMS];
    for (int d = ndim - 1; d >= 0; d--) {
        if (sizes[d] == 1)
            continue;
        bool merge = n > 0;
        for (int k = 0; merge && k < it->operands; k++)
            merge = it->strides[k][d] == steps[k][n - 1] * it->sizes[n - 1];
        if (merge) {
            it->sizes[n - 1] *= sizes[d];
            continue;
        }
        it->sizes[n] = sizes[d];
        for (int k = 0; k < it->operands; k++)
            steps[k][n] = it->strides[k][d];
        n++;
    }
    if (n == 0) { /* one element */
        it->sizes[0] = 1;
        for (int k = 0; k < it->operands; k++)
            steps[k][0] = 0;
        n = 1;
    }
    it->ndim = n;
    for (int k = 0; k < it->operands; k++)
        memcpy(it->strides[k], steps[k], (size_t)n * sizeof(int64_t));
}

ts_status ts_plan_iterate(ts_frame *f)
{
    ts_plan *plan = f->plan;
    ts_iter *it = &plan->iter;
    const ts_tensor *result = f->rets[0].t;
    bool simple = result->flags & TS_TENSOR_CONTIGUOUS;
    int n = 1;
    it->numel = result->numel;
    it->data[0] = result->data;
    it->strides[0][0] = ts_dtype_sizes[result->dtype];
    if (TS_LIKELY(plan->flat && simple)) {
        for (int i = 0; i < f->nargs; i++) {
            if (!(plan->operands >> i & 1))
                continue;
            if (TS_LIKELY(f->args[i].tag == TS_TAG_TENSOR)) {
                it->data[n] = f->args[i].t->data;
                it->strides[n][0] = ts_dtype_sizes[f->args[i].t->dtype];
            } else {
                ts_scalar_store(&f->args[i], plan->compute, &plan->scalars[n]);
                it->data[n] = (char *)&plan->scalars[n];
                it->strides[n][0] = 0;
            }
            n++;
        }
        it->operands = n;
        it->ndim = 1;
        it->sizes[0] = it->numel;
        return TS_OK;
    }
    for (int i = 0; i < f->nargs; i++) {
        if (!(plan->operands >> i & 1) || f->args[i].tag == TS_TAG_NONE)
            continue;
        if (f->args[i].tag == TS_TAG_TENSOR) {
            const ts_tensor *t = f->args[i].t;
            it->data[n] = t->data;
            it->strides[n][0] = t->numel == 1 ? 0 : ts_dtype_sizes[t->dtype];
            simple = simple && (t->numel == 1 ||
                                ((t->flags & TS_TENSOR_CONTIGUOUS) && t->numel == result->numel));
        } else {
            ts_scalar_store(&f->args[i], plan->compute, &plan->scalars[n]);
            it->data[n] = (char *)&plan->scalars[n];
            it->strides[n][0] = 0;
        }
        n++;
    }
    it->operands = n;
    if (TS_LIKELY(simple)) {
        it->ndim = 1;
        it->sizes[0] = it->numel;
        return TS_OK;
    }
    n = 1;
    operand_add(it, 0, result, result);
    for (int i = 0; i < f->nargs; i++) {
        if (!(plan->operands >> i & 1) || f->args[i].tag == TS_TAG_NONE)
            continue;
        if (f->args[i].tag == TS_TAG_TENSOR)
            operand_add(it, n, f->args[i].t, result);
        else
            memset(it->strides[n], 0, sizeof it->strides[n]);
        n++;
    }
    ts_iter_collapse(it, result->sizes, result->ndim);
    return TS_OK;
}

/* -------------------------------------------------------------------------------- fill ---- */

/** First and last byte that t's elements touch. */
static void extent(const ts_tensor *t, const char **first, const char **last)
{
    int64_t low = 0, high = 0, item = ts_dtype_sizes[t->dtype];
    for (int d = 0; d < t->ndim; d++) {
        int64_t reach = (t->sizes[d] - 1) * t->strides[d];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    *first = t->data + low * item;
    *last = t->data + high * item + item - 1;
}

static bool same_layout(const ts_tensor *a, const ts_tensor *b)
{
    if (a->data != b->data || a->ndim != b->ndim || a->dtype != b->dtype)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->sizes[d] != b->sizes[d] || (a->sizes[d] > 1 && a->strides[d] != b->strides[d]))
            return false;
    return true;
}

/** A destination must fit exactly and must not be read half-written. */
static TS_COLD ts_status check_given(ts_frame *f, int i)
{
    const ts_tensor *out = f->rets[i].t;
    const ts_meta *m = &f->plan->ret[i];
    char want[192], got[192];
    const char *op = ts_op_name(f->op);
    bool fits = out->ndim == m->ndim;
    for (int d = 0; fits && d < m->ndim; d++)
        fits = out->sizes[d] == m->sizes[d];
    if (!fits)
        return ts_fail_op(TS_ERR_SHAPE, op, f->site, NULL,
                          "argument 'out': expected sizes %s, got %s",
                          ts_format_sizes(want, sizeof want, m->sizes, m->ndim),
                          ts_format_sizes(got, sizeof got, out->sizes, out->ndim));
    if (out->dtype != m->dtype)
        return ts_fail_op(TS_ERR_DTYPE, op, f->site,
                          "cast an argument, or use the form that returns a new tensor",
                          "argument 'out': expected dtype %s, got %s", ts_dtype_name(m->dtype),
                          ts_dtype_name((ts_dtype)out->dtype));
    if (!ts_same_device(out->storage->device, m->device))
        return ts_fail_op(TS_ERR_DEVICE, op, f->site, NULL,
                          "argument 'out': expected device %s, got %s", ts_device_name(m->device),
                          ts_device_name(out->storage->device));
    if (!(out->flags & TS_TENSOR_CONTIGUOUS))
        for (int d = 0; d < out->ndim; d++)
            if (out->sizes[d] > 1 && out->strides[d] == 0)
                return ts_fail_op(
                    TS_ERR_VALUE, op, f->site, "write to ts_clone() of it",
                    "argument 'out': expected distinct elements, got an expanded tensor");
    for (int a = 0; a < f->nargs; a++) {
        const ts_value *v = &f->args[a];
        uint32_t n = v->tag == TS_TAG_TENSOR ? 1 : v->tag == TS_TAG_TENSORS ? v->count : 0;
        for (uint32_t k = 0; k < n; k++) {
            const ts_tensor *t = v->tag == TS_TAG_TENSOR ? v->t : v->list[k];
            if (t->storage != out->storage || !t->numel || !out->numel || !out->data)
                continue;
            if ((f->plan->operands >> a & 1) && same_layout(out, t))
                continue;
            const char *first[2], *last[2];
            extent(out, &first[0], &last[0]);
            extent(t, &first[1], &last[1]);
            if (first[0] <= last[1] && first[1] <= last[0])
                return ts_fail_op(TS_ERR_VALUE, op, f->site,
                                  "write to another tensor, or pass ts_clone() of the argument",
                                  "argument 'out': shares memory with argument '%s'",
                                  f->table->info->schema.args[a].name);
        }
    }
    return TS_OK;
}

/** Arguments as the kernel accepts them. made[] holds what is to be released after the call. */
static ts_status convert_args(ts_frame *f, const ts_accepts *accepts, ts_value *args,
                              ts_tensor **made, int *nmade)
{
    const ts_plan *plan = f->plan;
    bool copied = false;
    for (int i = 0; i < f->nargs; i++) {
        if (f->args[i].tag != TS_TAG_TENSOR)
            continue;
        ts_tensor *t = f->args[i].t;
        bool cast = (plan->cast >> i & 1) && t->dtype != plan->compute;
        bool read = f->table->packed >> f->key & 1 ? !(f->table->written >> i & 1)
                                                   : !(plan->strided >> i & 1);
        bool pack =
            !(t->flags & TS_TENSOR_CONTIGUOUS) && !accepts->strided && !plan->pointwise && read;
        if (TS_LIKELY(!cast && !pack))
            continue;
        ts_tensor *c = ts_above.convert(t, cast ? plan->compute : (ts_dtype)t->dtype);
        if (!c)
            return ts_error_code();
        if (!copied)
            memcpy(args, f->args, f->nargs * sizeof *args);
        copied = true;
        f->args = args;
        args[i].t = c;
        made[(*nmade)++] = c;
    }
    return TS_OK;
}

static TS_COLD ts_status fail_dtype(ts_frame *f)
{
    const ts_backend *b = ts_backend_of((ts_device){f->key, 0});
    if (b && (b->flags & TS_BACKEND_CPU_FALLBACK))
        return ts_round_trip(f);
    return ts_fail_op(TS_ERR_DTYPE, ts_op_name(f->op), f->site, "cast with ts_to()",
                      "no kernel for dtype %s on %s", ts_dtype_name(f->plan->compute),
                      ts_key_name(f->key));
}

static bool is_half(int64_t dtype) { return dtype == TS_BF16 || dtype == TS_F16; }

/** Arguments with f32 for every bf16 and f16, tensors and dtypes alike; made[] holds the copies. */
static ts_status widen_args(const ts_frame *f, ts_value *args, ts_tensor **made, int *nmade)
{
    for (int i = 0; i < f->nargs; i++) {
        ts_value *v = &args[i];
        *v = f->args[i];
        if (v->tag == TS_TAG_DTYPE && is_half(v->i))
            v->i = TS_F32;
        if (v->tag != TS_TAG_TENSOR || !is_half(v->t->dtype))
            continue;
        v->t = ts_above.convert(v->t, TS_F32);
        if (!v->t)
            return ts_error_code();
        made[(*nmade)++] = v->t;
    }
    return TS_OK;
}

ts_status ts_run_widened(ts_frame *f)
{
    ts_value args[TS_MAX_ARGS], wide[TS_MAX_RETS];
    ts_tensor *made[TS_MAX_ARGS];
    int nmade = 0;
    ts_frame inner = *f;
    inner.args = args;
    inner.rets = wide;
    inner.given = inner.want = 0;
    for (int i = 0; i < f->nrets; i++) {
        wide[i] = ts_value_none();
        inner.want |= (uint8_t)((f->rets[i].tag == TS_TAG_TENSOR) << i);
    }
    ts_status status = widen_args(f, args, made, &nmade);
    if (status == TS_OK)
        status = ts_enter_fill(&inner);
    for (int i = 0; i < f->nrets; i++) {
        if (wide[i].tag != TS_TAG_TENSOR)
            continue;
        ts_tensor *w = wide[i].t, *out = f->rets[i].t;
        if (w->dtype == out->dtype && !(f->given >> i & 1)) {
            f->rets[i].t = w;
            w = out;
        } else if (status == TS_OK && (status = ts_above.copy_into(out, w)) == TS_OK) {
            out->storage->version--; /* the entry that called counts the write */
        }
        ts_tensor_unref(w);
    }
    for (int i = 0; i < nmade; i++)
        ts_tensor_unref(made[i]);
    return status;
}

/** A call in bf16 or f16 whose kernel takes f32: all arguments are tensors
 * that are read, or numbers. */
static TS_COLD bool can_widen(const ts_frame *f, const ts_accepts *accepts)
{
    if (!is_half(f->plan->compute) || !(accepts->dtypes >> TS_F32 & 1) || f->table->written)
        return false;
    for (int i = 0; i < f->nargs; i++)
        for (uint32_t k = 0; f->args[i].tag == TS_TAG_TENSORS && k < f->args[i].count; k++)
            if (is_half(f->args[i].list[k]->dtype))
                return false; /* kernels over lists say themselves what they take */
    return true;
}

/** Gives a fresh tensor of 4 dims the strides of one whose dims 1 and 2 were exchanged. */
static TS_COLD void swap_layout(ts_tensor *t)
{
    const int64_t sizes[] = {t->sizes[0], t->sizes[2], t->sizes[1], t->sizes[3]};
    int64_t strides[4];
    ts_strides_fill(sizes, 4, strides);
    t->strides[1] = strides[2];
    t->strides[2] = strides[1];
    if (!ts_strides_contiguous(t->sizes, t->strides, 4))
        t->flags &= (uint8_t)~TS_TENSOR_CONTIGUOUS;
}

/** What a shape rule finds; the rest it writes. */
TS_INLINE void plan_clear(ts_plan *plan)
{
    plan->cast = plan->strided = plan->operands = 0;
    plan->swapped = 0;
    plan->pointwise = plan->flat = false;
    plan->compute = TS_F32;
}

static TS_COLD ts_status fill_unaccepted(ts_frame *f, const ts_accepts *accepts);

/** widened: the kernel is ts_run_widened(), whatever the table holds. */
static inline __attribute__((always_inline)) ts_status fill(ts_frame *f, bool widened)
{
    static const ts_accepts anything = {0, 1};
    ts_plan plan;
    plan_clear(&plan);
    f->plan = &plan;
    const ts_op_table *table = f->table;
    const ts_accepts *accepts = widened ? &anything : &table->accepts[f->key];
    const ts_value *outer_args = f->args;
    ts_value args[TS_MAX_ARGS];
    ts_tensor *made[TS_MAX_ARGS], *shadow[TS_MAX_RETS];
    int nmade = 0, fresh = 0, shadowed = 0;

    ts_status status = table->info->infer(f);
    if (TS_UNLIKELY(status != TS_OK))
        goto done;
    if (TS_UNLIKELY(accepts->dtypes && !(accepts->dtypes >> plan.compute & 1)))
        return fill_unaccepted(f, accepts);
    if (f->given)
        for (int i = 0; i < f->nrets; i++)
            if ((f->given >> i & 1) && (status = check_given(f, i)) != TS_OK)
                goto done;
    if (plan.cast || !(accepts->strided || plan.pointwise)) {
        status = convert_args(f, accepts, args, made, &nmade);
        if (TS_UNLIKELY(status != TS_OK))
            goto done;
    }

    for (int i = 0; i < f->nrets; i++) {
        ts_tensor *out = NULL;
        if (f->given >> i & 1) {
            if (plan.pointwise || accepts->strided || (f->rets[i].t->flags & TS_TENSOR_CONTIGUOUS))
                continue;
        } else if (!(f->want >> i & 1)) {
            f->rets[i] = ts_value_none();
            continue;
        }
        const ts_meta *m = &plan.ret[i];
        out = m->numel ? ts_tensor_new_unchecked(f->thread, m->dtype, m->sizes, m->ndim, m->numel,
                                                 m->device)
                       : ts_tensor_new(f->thread, m->dtype, m->sizes, m->ndim, m->device);
        if (TS_UNLIKELY(!out)) {
            status = ts_fail_within(ts_op_name(f->op), f->site);
            goto done;
        }
        if (TS_UNLIKELY((plan.swapped >> i & 1) && !(table->packed >> f->key & 1)))
            swap_layout(out);
        if (f->given >> i & 1) { /* the kernel writes a contiguous stand-in, copied out below */
            shadow[i] = f->rets[i].t;
            shadowed |= 1 << i;
        } else {
            fresh |= 1 << i;
        }
        f->rets[i] = ts_value_tensor(out);
    }
    if (plan.pointwise)
        ts_plan_iterate(f);
    ts_kernel kernel = widened ? ts_run_widened : table->impl[f->key];
    status = kernel ? kernel(f) : TS_OK;

    for (int i = 0; f->given >> i; i++) {
        if (TS_UNLIKELY(shadowed >> i & 1)) {
            ts_tensor *out = f->rets[i].t;
            f->rets[i].t = shadow[i];
            if (status == TS_OK && (status = ts_above.copy_into(shadow[i], out)) == TS_OK)
                shadow[i]->storage->writer = f->op; /* the copy has counted the write */
            ts_tensor_unref(out);
            shadowed &= ~(1 << i);
        } else if (f->given >> i & 1) {
            ts_storage_wrote(f->rets[i].t->storage, f->op);
        }
    }
    if (TS_UNLIKELY(table->written))
        for (int i = 0; i < f->nargs; i++) {
            if (!(table->written >> i & 1))
                continue;
            if (outer_args[i].tag == TS_TAG_TENSOR)
                ts_storage_wrote(outer_args[i].t->storage, f->op);
            else if (outer_args[i].tag == TS_TAG_TENSORS)
                for (uint32_t k = 0; k < outer_args[i].count; k++)
                    ts_storage_wrote(outer_args[i].list[k]->storage, f->op);
        }
done:
    if (TS_UNLIKELY(nmade)) {
        for (int i = 0; i < nmade; i++)
            ts_tensor_unref(made[i]);
        f->args = outer_args;
    }
    if (TS_UNLIKELY(status != TS_OK)) {
        for (int i = 0; i < f->nrets; i++) {
            if (shadowed >> i & 1) {
                ts_tensor_unref(f->rets[i].t);
                f->rets[i].t = shadow[i];
            }
            if (fresh >> i & 1) {
                ts_tensor_unref(f->rets[i].t);
                f->rets[i] = ts_value_none();
            }
        }
    }
    f->plan = NULL;
    return status;
}

ts_status ts_enter_fill(ts_frame *f) { return fill(f, false); }

/** Again from the shape rule on, with the widened run as the kernel, or an error. */
static TS_COLD ts_status fill_unaccepted(ts_frame *f, const ts_accepts *accepts)
{
    ts_status status = can_widen(f, accepts) ? fill(f, true) : fail_dtype(f);
    f->plan = NULL;
    return status;
}

/* ------------------------------------------------------------------------ view and whole ---- */

ts_status ts_enter_view(ts_frame *f)
{
    if (TS_UNLIKELY(f->given))
        return ts_fail_op(TS_ERR_VALUE, ts_op_name(f->op), f->site, NULL,
                          "a view has no out= form");
    ts_kernel own = f->table->impl[f->key];
    return own ? own(f) : f->table->info->infer(f);
}

/** Composites know nothing of destinations: their results are made anew
 * and copied to where they belong. */
static TS_COLD ts_status whole_into(ts_frame *f)
{
    ts_value given[TS_MAX_RETS];
    uint8_t was = f->given;
    for (int i = 0; i < f->nrets; i++) {
        given[i] = f->rets[i];
        if (was >> i & 1)
            f->rets[i] = ts_value_none();
    }
    f->given = 0;
    ts_plan plan;
    plan.pointwise = false;
    ts_status status = f->table->impl[f->key](f);
    f->given = was;
    for (int i = 0; i < f->nrets; i++) { /* all checks come before the first write */
        ts_tensor *y = f->rets[i].tag == TS_TAG_TENSOR ? f->rets[i].t : NULL;
        if (status != TS_OK || !(was >> i & 1) || !y)
            continue;
        plan.ret[i] = (ts_meta){.sizes = y->sizes,
                                .dtype = (ts_dtype)y->dtype,
                                .device = y->storage->device,
                                .ndim = y->ndim,
                                .numel = y->numel};
        f->plan = &plan;
        f->rets[i] = given[i];
        uint8_t nargs = f->nargs;
        /* the results are there already: sharing memory with an argument does no harm */
        f->nargs = 0;
        status = check_given(f, i);
        f->nargs = nargs;
        f->rets[i] = ts_value_tensor(y);
        f->plan = NULL;
    }
    for (int i = 0; i < f->nrets; i++) {
        ts_tensor *y = f->rets[i].tag == TS_TAG_TENSOR ? f->rets[i].t : NULL;
        if (was >> i & 1) {
            if (status == TS_OK && y && (status = ts_above.copy_into(given[i].t, y)) == TS_OK)
                given[i].t->storage->writer = f->op;
            f->rets[i] = given[i];
        } else if (status != TS_OK) {
            f->rets[i] = ts_value_none();
        }
        if (y && (was >> i & 1 || status != TS_OK))
            ts_tensor_unref(y);
    }
    return status;
}

ts_status ts_enter_whole(ts_frame *f)
{
    return TS_LIKELY(!f->given) ? f->table->impl[f->key](f) : whole_into(f);
}

ts_status ts_run_parts(ts_frame *f, ts_kernel composite)
{
    if (f->table->info->kind != TS_FILL)
        return composite(f);
    ts_plan plan;
    plan_clear(&plan);
    f->plan = &plan;
    ts_status status = f->table->info->infer(f);
    if (status == TS_OK)
        status = composite(f);
    f->plan = NULL;
    return status;
}

ts_status ts_enter_parts(ts_frame *f) { return ts_run_parts(f, ts_enter_whole); }

ts_status ts_enter_foreign(ts_frame *f)
{
    /* checks that a kernel from outside could not make with the same words */
    if (f->table->info->infer)
        TS_TRY(f->table->info->infer(f));
    ts_status status = ts_enter_whole(f);
    for (int i = 0; status != TS_OK && i < f->nrets; i++)
        if (!(f->given >> i & 1) && f->rets[i].tag == TS_TAG_TENSOR) {
            ts_tensor_unref(f->rets[i].t);
            f->rets[i] = ts_value_none();
        }
    return status;
}

/* ----------------------------------------------------------------------------- devices ---- */

/**
 * Whether a kernel of key may be handed t: on its device, or one number on the CPU,
 * which it reads there. *index is that of the first tensor of the key, -1 before it is seen.
 */
static bool is_near(const ts_tensor *t, ts_key key, int *index)
{
    ts_device device = t->storage->device;
    if (device.backend != key)
        return device.backend == TS_KEY_CPU && t->ndim == 0;
    if (*index < 0)
        *index = device.index;
    return device.index == *index;
}

int ts_find_far(const ts_frame *f)
{
    int index = -1;
    for (int i = 0; i < f->nargs; i++) {
        const ts_value *v = &f->args[i];
        if (v->tag == TS_TAG_TENSOR && !is_near(v->t, f->key, &index))
            return i;
        for (uint32_t k = 0; v->tag == TS_TAG_TENSORS && k < v->count; k++)
            if (!ts_is_none(v->list[k]) && !is_near(v->list[k], f->key, &index))
                return i;
    }
    for (int i = 0; i < f->nrets; i++) {
        if (!(f->given >> i & 1))
            continue;
        ts_device device = f->rets[i].t->storage->device;
        if (device.backend != f->key || (index >= 0 && device.index != index))
            return f->nargs;
    }
    return -1;
}

ts_status ts_enter_device(ts_frame *f)
{
    const ts_backend *b = ts_backend_of((ts_device){f->key, 0});
    if (TS_UNLIKELY(!b))
        return ts_missing_kernel(f);
    int far = ts_find_far(f);
    if (TS_UNLIKELY(far >= 0))
        return ts_above.across(f, far);
    bool own = f->table->impl[f->key] != ts_transfer; /* which is the library's */
    if (own && b->supports && !b->supports(b->state, f))
        return ts_unsupported_call(f);
    ts_op_kind kind = f->table->info->kind;
    return kind == TS_FILL   ? ts_enter_fill(f)
           : kind == TS_VIEW ? ts_enter_view(f)
                             : ts_enter_foreign(f);
}
