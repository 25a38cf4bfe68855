/** @file anomaly.c  Anomaly mode: checks every gradient and records the call stack of each node. */
// SPDX-License-Identifier: MIT
#include "autograd/engine.h"
#include "dispatch/store.h"
#include "include/tessera/ops.h"

#include <execinfo.h>
#include <string.h>

_Atomic bool ts_anomaly_on;

void ts_anomaly_enable(bool on) { atomic_store_explicit(&ts_anomaly_on, on, memory_order_relaxed); }
bool ts_anomaly_enabled(void) { return atomic_load_explicit(&ts_anomaly_on, memory_order_relaxed); }

/* ------------------------------------------------------------------------------- trails ---- */

static ts_trail *trail_of(const ts_node *node)
{
    return node->trail ? (ts_trail *)((char *)node + node->bytes - sizeof(ts_trail)) : NULL;
}

void ts_trail_take(ts_node *node)
{
    node->trail = true;
    ts_trail *t = trail_of(node);
    t->n = backtrace(t->frames, TS_COUNTOF(t->frames));
}

/** Appends `before` and `what` to text, of which at most size - 1 bytes are kept. */
static void put(char *text, size_t size, const char *before, const char *what)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", before, what);
}

/** Appends the node's call, the site of the call and, from the node's trail, up to six outer
 *  frames, innermost first. */
static void put_call(const ts_node *node, char *text, size_t size)
{
    char part[300];
    ts_node_describe(node, part, sizeof part);
    put(text, size, "", part);
    if (!node->site)
        return;
    put(text, size, ", called at ", ts_format_site(part, sizeof part, node->site));
    const ts_trail *t = trail_of(node);
    int at = 0;
    while (t && at < t->n && t->frames[at] != node->site)
        at++;
    enum { SHOWN = 6 };
    for (int i = at + 1; t && i < t->n && i <= at + SHOWN; i++)
        put(text, size, " < ", ts_format_site(part, sizeof part, t->frames[i]));
}

/* ------------------------------------------------------------------------------- checks ---- */

/** "NaN" or "Inf"; NULL if all elements are finite, or t is not floating or has no values (META).
 *  *status receives an error of the check. */
static const char *not_finite(ts_tensor *t, ts_status *status)
{
    if (!ts_dtype_is_float((ts_dtype)t->dtype) ||
        !(t->keys & ~TS_KEYSET(TS_KEY_META) & TS_BACKEND_KEYS))
        return NULL;
    TS_SCOPE;
    TS_NO_GRAD;
    double finite = 1, nan = 0;
    if ((*status = ts_item(ts_all(ts_isfinite(t)), &finite)) != TS_OK || finite != 0)
        return NULL;
    *status = ts_item(ts_any(ts_isnan(t)), &nan);
    return nan != 0 ? "NaN" : "Inf";
}

ts_status ts_anomaly_check(const ts_node *node, ts_tensor *const *given, int n, const char *what)
{
    for (int i = 0; i < n; i++) {
        ts_status status = TS_OK;
        const char *kind = given[i] ? not_finite(given[i], &status) : NULL;
        TS_TRY(status);
        if (kind)
            return ts_fail_op(TS_ERR_AUTOGRAD, ts_node_name(node), node->site,
                              "look at the values of the forward call", "%s %d is %s", what, i,
                              kind);
    }
    return TS_OK;
}

ts_status ts_anomaly_explain(const ts_node *node, ts_status status)
{
    const char *message = ts_error_message();
    if (node->op == TS_NODE_LEAF || ts_error_code() == TS_OK || strstr(message, "; forward call: "))
        return status; /* an inner backward has added its forward call to the message */
    char text[800] = "";
    put_call(node, text, sizeof text);
    /* the message begins with its op's name already */
    char op[48], hint[256];
    snprintf(op, sizeof op, "%s", ts_error_op());
    snprintf(hint, sizeof hint, "%s", ts_error_hint());
    size_t skip = op[0] && strncmp(message, op, strlen(op)) == 0 && message[strlen(op)] == ':'
                      ? strlen(op) + 2
                      : 0;
    return ts_fail_op(ts_error_code(), op[0] ? op : ts_node_name(node), node->site, hint,
                      "%.*s; forward call: %s", 380, message + skip, text);
}
