/** @file amp.c  The gradient scaler. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/** State of an optimizer since the last update. */
typedef enum stage { READY, UNSCALED, STEPPED } stage;

typedef struct optimizer_entry {
    const ts_optimizer *o;
    stage stage;
    ts_tensor *found; /* owned: not 0 if a gradient is not finite; NULL before unscaling */
} optimizer_entry;

/** Indices of the numbers that steps and updates change, in ts_grad_scaler.device_numbers. */
enum { SCALE, TRACKER, SKIPPED, CHANGING };

/* all numbers are doubles, so that checkpoints store one kind of number */
struct ts_grad_scaler {
    double scale, growth_factor, backoff_factor, growth_interval, growth_tracker, skipped;
    /* Owned: scale, growth_tracker and skipped as 0-dim f32 tensors on the device, which replace
     * the fields above. Each change makes new tensors. NULL before the first use. */
    ts_tensor *device_numbers[CHANGING];
    bool disabled;
    optimizer_entry *list; /* optimizers seen since the last update */
    int64_t n, capacity;
    ts_tensor **grads; /* scratch */
    int64_t grads_capacity;
};

/* ---------------------------------------------------------------------- create and free ---- */

/* a normal f32, so that the inverse is finite too */
static bool is_scale(double x) { return x >= FLT_MIN && x <= FLT_MAX; }
static bool is_growth(double x) { return x > 1 && isfinite(x); }
static bool is_backoff(double x) { return x > 0 && x < 1; }
/* f32 holds all whole numbers up to 2^24 */
static bool is_count(double x) { return x >= 0 && x <= 0x1p24 && x == floor(x); }
static bool is_interval(double x) { return is_count(x) && x > 0; }

static const struct {
    const char *name, *expected;
    size_t offset;
    bool (*fits)(double);
} numbers[] = {
    {"scale", "a normal positive number of f32", offsetof(ts_grad_scaler, scale), is_scale},
    {"growth_factor", "more than 1", offsetof(ts_grad_scaler, growth_factor), is_growth},
    {"backoff_factor", "a number between 0 and 1", offsetof(ts_grad_scaler, backoff_factor),
     is_backoff},
    {"growth_interval", "a whole number from 1 to 2^24", offsetof(ts_grad_scaler, growth_interval),
     is_interval},
    {"growth_tracker", "a whole number from 0 to 2^24", offsetof(ts_grad_scaler, growth_tracker),
     is_count},
    {"skipped", "a whole number from 0 to 2^24", offsetof(ts_grad_scaler, skipped), is_count},
};
/** Offsets of the fields that the tensors in `device_numbers` replace. */
static const size_t offsets[CHANGING] = {offsetof(ts_grad_scaler, scale),
                                         offsetof(ts_grad_scaler, growth_tracker),
                                         offsetof(ts_grad_scaler, skipped)};
enum {
    NUMBERS = sizeof numbers / sizeof numbers[0],
    SCALE_NUMBER = 0,
    SKIPPED_NUMBER = NUMBERS - 1
};

static double *number_at(const ts_grad_scaler *s, int k)
{
    return (double *)((char *)s + numbers[k].offset);
}

/** Reads a number from the device and waits for it. If the device fails, returns the last known
 * value. */
static double number_of(const ts_grad_scaler *s, int k)
{
    double x = *number_at(s, k);
    for (int i = 0; i < CHANGING; i++)
        if (s->device_numbers[i] && offsets[i] == numbers[k].offset)
            ts_item(s->device_numbers[i], &x);
    return x;
}

static void release_numbers(ts_grad_scaler *s)
{
    ts_state_changed();
    for (int i = 0; i < CHANGING; i++) {
        ts_release(s->device_numbers[i]);
        s->device_numbers[i] = NULL;
    }
}

/** Replaces the tensors of the changing numbers by `fresh`, tensors of the caller's scope. */
static void replace(ts_grad_scaler *s, ts_tensor *const *fresh)
{
    for (int i = 0; i < CHANGING; i++) {
        ts_tensor *old = s->device_numbers[i];
        s->device_numbers[i] = ts_retain(fresh[i]);
        ts_release(old);
    }
}

/** Moves the changing numbers to a device, or creates them on it. */
static ts_status move_numbers_to(ts_grad_scaler *s, ts_device device)
{
    TS_SCOPE;
    TS_NO_GRAD;
    ts_tensor *fresh[CHANGING];
    for (int i = 0; i < CHANGING; i++) {
        if (!s->device_numbers[i]) {
            fresh[i] = ts_fill_(ts_empty_on(NULL, 0, TS_F32, device),
                                *(const double *)((const char *)s + offsets[i]));
        } else {
            ts_device at = ts_device_of(s->device_numbers[i]);
            if (at.backend == device.backend && at.index == device.index)
                return TS_OK;
            fresh[i] = ts_to_device(s->device_numbers[i], device);
        }
        TS_TRY(fresh[i]);
    }
    replace(s, fresh);
    return TS_OK;
}

/** t if it is on the device, otherwise a copy on it. */
static ts_tensor *on_device(ts_tensor *t, ts_device device)
{
    ts_device at = t ? ts_device_of(t) : device;
    return at.backend == device.backend && at.index == device.index ? t : ts_to_device(t, device);
}

/** Declares to a compiled function the variables that the scaler's call replaces and the count that
 *  decides which calls it makes. w: NULL if the call does not replace w->found. */
static ts_status declare(ts_grad_scaler *s, optimizer_entry *w)
{
    for (int i = 0; i < CHANGING; i++)
        TS_TRY(ts_replaces(&s->device_numbers[i]));
    /* n is the same at each compiled call only if the function includes the update */
    TS_TRY(ts_depends_on(&s->n, sizeof s->n));
    return w ? ts_replaces(&w->found) : TS_OK;
}

static ts_status set_number(ts_grad_scaler *s, const char *function, int k, double value)
{
    if (!numbers[k].fits(value))
        return ts_error_set(TS_ERR_VALUE, "%s: %s: expected %s, got %g", function, numbers[k].name,
                            numbers[k].expected, value);
    *number_at(s, k) = value;
    return TS_OK;
}

ts_grad_scaler *ts_grad_scaler_new(const ts_grad_scaler_opts *opts)
{
    ts_grad_scaler_opts o;
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    const double given[] = {o.init_scale != 0 ? o.init_scale : 65536,
                            o.growth_factor != 0 ? o.growth_factor : 2,
                            o.backoff_factor != 0 ? o.backoff_factor : 0.5,
                            o.growth_interval != 0 ? (double)o.growth_interval : 2000};
    ts_grad_scaler *s = ts_nn_alloc(1, sizeof *s, "a gradient scaler");
    ts_status status = s ? TS_OK : TS_ERR_MEMORY;
    for (int k = 0; k < 4 && status == TS_OK; k++)
        status = set_number(s, "grad_scaler_new", k, given[k]);
    if (status == TS_OK) {
        s->disabled = o.disabled;
        return s;
    }
    free(s);
    return NULL;
}

void ts_grad_scaler_free(ts_grad_scaler *s)
{
    if (!s)
        return;
    for (int64_t i = 0; i < s->capacity; i++)
        ts_release(s->list[i].found);
    release_numbers(s);
    free(s->list);
    free(s->grads);
    free(s);
}

/* ---------------------------------------------------------------------------------- steps ---- */

ts_tensor *ts_grad_scaler_scale(ts_grad_scaler *s, ts_tensor *loss)
{
    TS_TRY_NULL(TS_CHECK_OBJECTS(s));
    TS_TRY_NULL(TS_CHECK_TENSORS(loss));
    if (s->disabled)
        return loss;
    TS_TRY_NULL(declare(s, NULL));
    TS_TRY_NULL(move_numbers_to(s, ts_device_of(loss)));
    /* f16 cannot hold the default scale, 65536 */
    bool wide = ts_dtype_of(loss) == TS_F32 || ts_dtype_of(loss) == TS_F64;
    return ts_mul(wide ? loss : ts_to(loss, TS_F32), s->device_numbers[SCALE]);
}

/** The entry of optimizer o, made at its first use since the last update; NULL with
 *  TS_ERR_MEMORY. */
static optimizer_entry *entry_of(ts_grad_scaler *s, const ts_optimizer *o)
{
    for (int64_t i = 0; i < s->n; i++)
        if (s->list[i].o == o)
            return &s->list[i];
    if (s->n == s->capacity) {
        int64_t capacity = s->capacity ? 2 * s->capacity : 4;
        optimizer_entry *list =
            ts_nn_alloc(capacity, sizeof *list, "the optimizers of a gradient scaler");
        if (!list)
            return NULL;
        if (s->n)
            memcpy(list, s->list, (size_t)s->n * sizeof *list);
        free(s->list);
        s->list = list;
        s->capacity = capacity;
        ts_state_changed(); /* a compiled function may hold addresses in the old list */
    }
    s->list[s->n].o = o;
    s->list[s->n].stage = READY;
    return &s->list[s->n++];
}

static void note_found(optimizer_entry *w, ts_tensor *found)
{
    ts_release(w->found);
    w->found = ts_retain(found);
}

/** Divides o's gradients by the scale; w->found, on the device, records whether all are finite. */
static ts_status unscale(ts_grad_scaler *s, optimizer_entry *w, ts_optimizer *o)
{
    int64_t n, count = 0;
    ts_tensor *const *params = ts_optimizer_params(o, &n);
    if (n > s->grads_capacity) {
        ts_tensor **grads = ts_nn_alloc(n, sizeof *grads, "a list of gradients");
        if (!grads)
            return TS_ERR_MEMORY;
        free(s->grads);
        s->grads = grads;
        s->grads_capacity = n;
    }
    for (int64_t i = 0; i < n; i++) {
        if (ts_grad(params[i]) == TS_NONE)
            continue;
        if (ts_dtype_of(params[i]) == TS_F16)
            return ts_error_set_hint(
                TS_ERR_DTYPE, "keep parameters in f32 and run the forward in TS_AUTOCAST",
                "grad_scaler_unscale: gradients of f16 would vanish without their scale");
        s->grads[count++] = ts_grad(params[i]);
    }
    TS_SCOPE;
    TS_NO_GRAD;
    ts_device device = count ? ts_device_of(s->grads[0]) : TS_DEVICE_CPU;
    if (!s->device_numbers[SCALE])
        TS_TRY(move_numbers_to(s, device));
    ts_tensor *found =
        ts_unscale_by_(s->grads, count, on_device(ts_reciprocal(s->device_numbers[SCALE]), device));
    TS_TRY(found);
    note_found(w, found);
    w->stage = UNSCALED;
    return TS_OK;
}

/** For a step with scaled gradients: computes 1 / scale and the norm of the unscaled gradients,
 *  which also shows whether all are finite. Gradients are not written. */
static ts_status find_norm(ts_grad_scaler *s, optimizer_entry *w, ts_optimizer *o, ts_tensor **norm,
                           ts_tensor **inverse)
{
    ts_tensor *scaled = ts_nn_grad_norm(o);
    TS_TRY(scaled);
    ts_device device = ts_device_of(scaled);
    if (!s->device_numbers[SCALE])
        TS_TRY(move_numbers_to(s, device));
    *inverse = on_device(ts_reciprocal(s->device_numbers[SCALE]), device);
    *norm = ts_mul(scaled, *inverse);
    ts_tensor *found = ts_to(ts_logical_not(ts_isfinite(*norm)), TS_F32);
    TS_TRY(found);
    note_found(w, found);
    return TS_OK;
}

ts_status ts_grad_scaler_unscale(ts_grad_scaler *s, ts_optimizer *o)
{
    TS_TRY(TS_CHECK_OBJECTS(s, o));
    if (s->disabled)
        return TS_OK;
    TS_TRY(declare(s, NULL));
    optimizer_entry *w = entry_of(s, o);
    if (!w)
        return TS_ERR_MEMORY;
    TS_TRY(declare(s, w));
    if (w->stage != READY)
        return ts_error_set_hint(
            TS_ERR_STATE, "call ts_grad_scaler_update() after each step",
            "grad_scaler_unscale: the gradients of this optimizer are unscaled already");
    return unscale(s, w, o);
}

ts_status ts_grad_scaler_step(ts_grad_scaler *s, ts_optimizer *o)
{
    TS_TRY(TS_CHECK_OBJECTS(s, o));
    if (s->disabled)
        return ts_optimizer_step(o);
    TS_TRY(declare(s, NULL));
    optimizer_entry *w = entry_of(s, o);
    if (!w)
        return TS_ERR_MEMORY;
    TS_TRY(declare(s, w));
    if (w->stage == STEPPED)
        return ts_error_set_hint(
            TS_ERR_STATE, "call ts_grad_scaler_update() after each step",
            "grad_scaler_step: this optimizer was stepped already since the last update");
    TS_SCOPE;
    TS_NO_GRAD;
    /* unscaled gradients need neither norm nor inverse */
    ts_tensor *norm = NULL, *inverse = NULL;
    if (w->stage == READY)
        TS_TRY(find_norm(s, w, o, &norm, &inverse));
    ts_tensor *fresh[CHANGING] = {s->device_numbers[SCALE], s->device_numbers[TRACKER]};
    ts_tensor *skipped = s->device_numbers[SKIPPED];
    fresh[SKIPPED] = ts_add(skipped, on_device(w->found, ts_device_of(skipped)));
    TS_TRY(fresh[SKIPPED]);
    TS_TRY(ts_nn_step(o, norm, inverse, w->found));
    replace(s, fresh);
    w->stage = STEPPED;
    return TS_OK;
}

ts_status ts_grad_scaler_update(ts_grad_scaler *s)
{
    TS_TRY(TS_CHECK_OBJECTS(s));
    if (s->disabled)
        return TS_OK;
    TS_TRY(declare(s, NULL));
    TS_SCOPE;
    TS_NO_GRAD;
    ts_tensor *found = NULL;
    for (int64_t i = 0; i < s->n; i++)
        if (s->list[i].stage != READY) {
            ts_tensor *more = on_device(s->list[i].found, ts_device_of(s->device_numbers[SCALE]));
            TS_TRY(found = found ? ts_maximum(found, more) : more);
        }
    if (!found)
        return ts_error_set_hint(
            TS_ERR_STATE, "call ts_grad_scaler_step() first",
            "grad_scaler_update: no gradients were unscaled since the last update");
    /* selected on the device, because the host does not know `found` */
    ts_tensor *odd = ts_gt_scalar(found, 0), *scale = s->device_numbers[SCALE],
              *steps = ts_add_scalar(s->device_numbers[TRACKER], 1);
    ts_tensor *due = ts_ge_scalar(steps, s->growth_interval),
              *grown = ts_mul_scalar(scale, s->growth_factor);
    ts_tensor *fits = ts_logical_and(due, ts_le_scalar(grown, FLT_MAX));
    ts_tensor *less = ts_maximum_scalar(ts_mul_scalar(scale, s->backoff_factor), FLT_MIN);
    ts_tensor *fresh[CHANGING] = {ts_where(odd, less, ts_where(fits, grown, scale)),
                                  ts_masked_fill_scalar(steps, ts_logical_or(odd, due), 0),
                                  s->device_numbers[SKIPPED]};
    TS_TRY(fresh[SCALE]);
    TS_TRY(fresh[TRACKER]);
    replace(s, fresh);
    s->n = 0;
    return TS_OK;
}

/* -------------------------------------------------------------------------------- numbers ---- */

double ts_grad_scaler_get_scale(const ts_grad_scaler *s)
{
    return s && !s->disabled ? number_of(s, SCALE_NUMBER) : 1;
}
int64_t ts_grad_scaler_skipped(const ts_grad_scaler *s)
{
    return s ? (int64_t)number_of(s, SKIPPED_NUMBER) : 0;
}

int64_t ts_grad_scaler_numbers(const ts_grad_scaler *s, ts_named_number *out, int64_t capacity)
{
    for (int k = 0; s && out && k < NUMBERS && k < capacity; k++) {
        strcpy(out[k].name, numbers[k].name);
        out[k].value = number_of(s, k);
    }
    return s ? NUMBERS : 0;
}

ts_status ts_grad_scaler_set_number(ts_grad_scaler *s, const char *name, double value)
{
    TS_TRY(TS_CHECK_OBJECTS(s));
    TS_TRY(TS_CHECK_POINTERS(name));
    for (int k = 0; k < NUMBERS; k++)
        if (strcmp(numbers[k].name, name) == 0) {
            TS_TRY(set_number(s, "grad_scaler_set_number", k, value));
            for (int i = 0; i < NUMBERS && s->device_numbers[SCALE]; i++)
                if (i != k)
                    *number_at(s, i) = number_of(s, i);
            release_numbers(s);
            return TS_OK;
        }
    return ts_error_set(TS_ERR_INDEX,
                        "grad_scaler_set_number: argument 'name': expected the name of a number of "
                        "the scaler, got '%.200s'", name);
}
