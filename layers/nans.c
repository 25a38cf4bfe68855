/** @file nans.c  The NaN finder: reports the first op that makes NaN or infinity from finite
 * arguments. */
// SPDX-License-Identifier: MIT
#include "layers/watch.h"
#include "include/tessera/ops.h"

#include <math.h>
#include <string.h>

static _Atomic bool found;

void ts_nan_finder_reset(void) { atomic_store(&found, false); }

/** True if t holds NaN or infinity, computed on t's device. On failure false, and *status is
 * set. */
static bool has_bad(ts_tensor *t, ts_status *status)
{
    if (*status != TS_OK || !ts_has_values(t) || !ts_dtype_is_float((ts_dtype)t->dtype))
        return false;
    TS_SCOPE;
    int64_t finite = 1;
    *status = ts_item_int(ts_all(ts_isfinite(t)), &finite);
    return *status == TS_OK && !finite;
}

/** True if a value (tensor, list or number) holds NaN or infinity. */
static bool is_bad(const ts_value *v, ts_status *status)
{
    if (v->tag == TS_TAG_TENSOR)
        return has_bad(v->t, status);
    for (uint32_t k = 0; v->tag == TS_TAG_TENSORS && k < v->count; k++)
        if (has_bad(v->list[k], status))
            return true;
    return v->tag == TS_TAG_FLOAT && !isfinite(v->d);
}

/** Name of the first result or written argument that is not finite, or NULL. */
static const char *bad_output(const ts_frame *f, ts_status *status)
{
    static const char *const results[TS_MAX_RETS] = {"result 0", "result 1", "result 2",
                                                     "result 3"};
    for (int i = 0; i < f->nrets; i++)
        if (is_bad(&f->rets[i], status))
            return results[i];
    for (int i = 0; i < f->nargs; i++)
        if (ts_is_written_arg(f, i) && is_bad(&f->args[i], status))
            return f->table->info->schema.args[i].name;
    return NULL;
}

static ts_status find_nans(ts_frame *f)
{
    bool look = !atomic_load_explicit(&found, memory_order_relaxed) &&
                strcmp(f->table->info->name, "empty") != 0;
    ts_status status = TS_OK;
    bool had = false; /* an argument was not finite, so this op is not the origin */
    ts_keyset layers = ~TS_BACKEND_KEYS;
    if (look && (f->given || f->table->written)) {
        ts_mask_guard masks = ts_mask_push(0, layers);
        /* checked before the call, which may overwrite arguments */
        for (int i = 0; i < f->nargs && !had; i++)
            had = is_bad(&f->args[i], &status);
        ts_mask_pop(masks);
        TS_TRY(status);
    }
    TS_TRY(ts_redispatch(f));
    if (!look || had)
        return TS_OK;
    ts_mask_guard masks = ts_mask_push(0, layers);
    const char *where = bad_output(f, &status);
    for (int i = 0; where && i < f->nargs && !had; i++)
        had = !ts_is_written_arg(f, i) && !f->given && is_bad(&f->args[i], &status);
    ts_mask_pop(masks);
    if (status != TS_OK || (where && !had && !atomic_exchange(&found, true))) {
        if (status == TS_OK) {
            char call[700], what[80];
            snprintf(what, sizeof what, "the first NaN or infinity, in %s", where);
            ts_watcher_report(&ts_watch_nans, f, what);
            ts_watcher_describe(f, what, call, sizeof call);
            status = ts_fail_op(TS_ERR_VALUE, f->table->info->name, f->site,
                                "call ts_nan_finder_reset() to look for the next one", "%s", call);
        }
        ts_drop_results(f, status);
    }
    return status;
}

ts_watcher ts_watch_nans = {.name = "nan", .layer = "NANS", .kernel = find_nans};

ts_status ts_nan_finder(ts_layer_scope scope, bool on)
{
    return ts_watcher_switch(&ts_watch_nans, scope, on);
}
