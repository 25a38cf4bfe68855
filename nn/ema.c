/** @file ema.c  Exponential moving averages of a module's tensors. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <stdlib.h>
#include <string.h>

struct ts_ema {
    double decay;
    /* The averages, owned, under the names of the state dict; the last entry is "steps". */
    ts_named_tensors state;
    ts_named_tensors values; /* the module's tensors, without an entry for "steps" */
    int64_t steps;           /* updates so far */
    ts_tensor **own;         /* the module's values during a swap (ts_ema_swap()); else NULL */
};

/** A new average: a copy of t, in f32 if t is bf16 or f16. */
static ts_tensor *begin_average(ts_tensor *t)
{
    return ts_dtype_is_half(ts_dtype_of(t)) ? ts_to(t, TS_F32) : ts_clone(ts_detach(t));
}

static ts_status begin(ts_ema *e)
{
    TS_SCOPE;
    TS_NO_GRAD;
    int64_t n = e->values.n;
    char *block = ts_nn_alloc(2 * (n + 1), sizeof(void *), "averages");
    if (!block)
        return TS_ERR_MEMORY;
    e->state.names = (const char **)(void *)block;
    e->state.tensors = (ts_tensor **)(void *)(e->state.names + n + 1);
    for (int64_t i = 0; i <= n; i++) {
        ts_tensor *t = i < n ? begin_average(e->values.tensors[i])
                             : ts_from_array(&e->steps, TS_I64, &(int64_t){1}, 1);
        TS_TRY(t);
        e->state.names[i] = i < n ? e->values.names[i] : "steps";
        e->state.tensors[i] = ts_retain(t);
        e->state.n++;
    }
    return TS_OK;
}

ts_ema *ts_ema_new(const ts_module *m, double decay)
{
    TS_TRY_NULL(TS_CHECK_OBJECTS(m));
    TS_TRY_NULL(TS_CHECK_VALUE(decay, decay >= 0 && decay <= 1, "0 to 1"));
    ts_ema *e = ts_nn_alloc(1, sizeof *e, "averages");
    if (!e)
        return NULL;
    e->decay = decay;
    if (ts_module_state_dict(m, &e->values) == TS_OK && begin(e) == TS_OK)
        return e;
    ts_ema_free(e);
    return NULL;
}

/** Releases the values that were set aside, and returns `status`. */
static ts_status drop_own(ts_ema *e, ts_status status)
{
    for (int64_t i = 0; e->own && i < e->values.n; i++)
        ts_release(e->own[i]);
    free(e->own);
    e->own = NULL;
    return status;
}

void ts_ema_free(ts_ema *e)
{
    if (!e)
        return;
    drop_own(e, TS_OK);
    ts_named_tensors_free(&e->state);
    ts_named_tensors_free(&e->values);
    free(e);
}

static ts_status check_own(const ts_ema *e, const char *function)
{
    return e->own ? ts_error_set_hint(TS_ERR_STATE, "call ts_ema_swap() first",
                                          "%s: the module has the averages", function)
                      : TS_OK;
}

ts_status ts_ema_update(ts_ema *ema)
{
    TS_TRY(TS_CHECK_OBJECTS(ema));
    TS_TRY(check_own(ema, "ema_update"));
    TS_SCOPE;
    TS_NO_GRAD;
    double first = (1 + (double)ema->steps) / (10 + (double)ema->steps),
           d = first < ema->decay ? first : ema->decay;
    for (int64_t i = 0; i < ema->values.n; i++) {
        ts_tensor *average = ema->state.tensors[i], *value = ema->values.tensors[i];
        TS_TRY(ts_dtype_is_float(ts_dtype_of(value))
                   ? ts_lerp_scalar_(average, ts_detach(value), 1 - d)
                   : ts_copy_(average, value));
    }
    ema->steps++;
    return TS_OK;
}

/** Copies the module's values to e->own. */
static ts_status copy_module_values(ts_ema *e)
{
    TS_SCOPE;
    if (!(e->own = ts_nn_alloc(e->values.n, sizeof *e->own, "averages")))
        return TS_ERR_MEMORY;
    for (int64_t i = 0; i < e->values.n; i++) {
        ts_tensor *copy = ts_clone(ts_detach(e->values.tensors[i]));
        TS_TRY(copy);
        e->own[i] = ts_retain(copy);
    }
    return TS_OK;
}

static ts_status set_values(ts_ema *e, ts_tensor *const *to)
{
    for (int64_t i = 0; i < e->values.n; i++)
        TS_TRY(ts_copy_(e->values.tensors[i], to[i]));
    return TS_OK;
}

ts_status ts_ema_swap(ts_ema *ema)
{
    TS_TRY(TS_CHECK_OBJECTS(ema));
    TS_SCOPE;
    TS_NO_GRAD;
    if (ema->own) {
        TS_TRY(set_values(ema, ema->own));
        return drop_own(ema, TS_OK);
    }
    ts_status status = copy_module_values(ema); /* all allocations come before the first write */
    if (status == TS_OK && (status = set_values(ema, ema->state.tensors)) != TS_OK)
        for (int64_t i = 0; i < ema->values.n; i++) /* the module gets its own values back */
            ts_copy_(ema->values.tensors[i], ema->own[i]);
    return status == TS_OK ? TS_OK : drop_own(ema, status);
}

/* ----------------------------------------------------------------------------- checkpoints ---- */

ts_status ts_ema_state(const ts_ema *ema, ts_named_tensors *list)
{
    TS_TRY(TS_CHECK_OBJECTS(ema));
    TS_TRY(TS_CHECK_POINTERS(list));
    TS_TRY(check_own(ema, "ema_state"));
    *(int64_t *)ts_data_mut(ema->state.tensors[ema->values.n]) = ema->steps;
    int64_t n = ema->state.n;
    size_t bytes = 0;
    for (int64_t i = 0; i < n; i++)
        bytes += strlen(ema->state.names[i]) + 1;
    char *block = ts_nn_alloc((int64_t)((size_t)n * 2 * sizeof(void *) + bytes), 1,
                              "a list of averages");
    if (!block)
        return TS_ERR_MEMORY;
    *list = (ts_named_tensors){n, (const char **)(void *)block, (ts_tensor **)(void *)block + n};
    char *text = (char *)(list->tensors + n);
    for (int64_t i = 0; i < n; i++) {
        list->names[i] = strcpy(text, ema->state.names[i]);
        text += strlen(text) + 1;
        list->tensors[i] = ts_retain(ema->state.tensors[i]);
    }
    return TS_OK;
}

ts_status ts_nn_ema_check(const ts_ema *e, const char *const *names, ts_tensor *const *tensors,
                          int64_t n, int64_t *given)
{
    TS_TRY(check_own(e, "ema_load_state"));
    int64_t *own = given ? given : ts_nn_alloc(e->state.n, sizeof *own, "a match of names"), steps;
    if (!own)
        return TS_ERR_MEMORY;
    ts_status status = ts_nn_match_exactly("ema_load_state", &e->state, names, tensors, n, own);
    if (status == TS_OK)
        status = ts_copy_to(tensors[own[e->values.n]], &steps, sizeof steps);
    if (status == TS_OK && steps < 0)
        status = ts_error_set(TS_ERR_VALUE,
                              "ema_load_state: 'steps': expected at least 0, got %lld",
                              (long long)steps);
    if (!given)
        free(own);
    return status;
}

ts_status ts_ema_load_state(ts_ema *ema, const char *const *names, ts_tensor *const *tensors,
                            int64_t n)
{
    TS_TRY(TS_CHECK_OBJECTS(ema));
    TS_TRY(TS_CHECK_STRINGS(names, n));
    TS_TRY(TS_CHECK_TENSOR_LIST(tensors, n));
    TS_NO_GRAD;
    int64_t *given = ts_nn_alloc(ema->state.n, sizeof *given, "a match of names");
    ts_status status = given ? ts_nn_ema_check(ema, names, tensors, n, given) : TS_ERR_MEMORY;
    for (int64_t i = 0; i < ema->state.n && status == TS_OK; i++)
        status = TS_STATUS_OF(ts_copy_(ema->state.tensors[i], tensors[given[i]]));
    if (status == TS_OK)
        status = ts_copy_to(ema->state.tensors[ema->values.n], &ema->steps, sizeof ema->steps);
    free(given);
    return status;
}
