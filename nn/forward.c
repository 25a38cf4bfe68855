/** @file forward.c  Runs a module: forward hooks, the module's path in errors and profiles, the
 * summary. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------- paths ---- */

enum { PATH_MOST = 512, MOST_INPUTS = 16, MOST_NESTED = 256 };

/** The innermost module that the thread runs. */
static _Thread_local ts_module *innermost;

/** Writes the dotted path of m below its ancestor `above`. If `above` is not an ancestor of m, the
 *  path starts with the type of the outermost module. Omits the outer parts of a path that does not
 *  fit. Returns a pointer into text. */
static const char *path_below(const ts_module *m, const ts_module *above, char text[PATH_MOST])
{
    size_t at = PATH_MOST - 1;
    text[at] = 0;
    for (; m != above; m = m->parent) {
        const char *outermost = text[at] ? "" : m->type.name;
        const char *name = m->parent ? m->parent->members[m->index].name : outermost;
        size_t n = strlen(name), dot = n && text[at];
        if (n + dot > at)
            break;
        at -= n + dot;
        memcpy(text + at, name, n);
        if (dot)
            text[at + n] = '.';
        if (!m->parent)
            break;
    }
    return text + at;
}

/* ------------------------------------------------------------------------------- hooks ---- */

typedef struct ts_nn_hook {
    struct ts_nn_hook *next;
    int64_t id;
    ts_forward_hook is;
} ts_nn_hook;

ts_status ts_module_add_forward_hook(ts_module *m, const ts_forward_hook *hook, int64_t *id)
{
    ts_forward_hook is;
    TS_TRY(TS_CHECK_OBJECTS(m));
    TS_TRY(TS_CHECK_POINTERS(hook));
    TS_TRY(TS_CHECK_OPTS(&is, hook));
    if (m->running)
        return ts_error_set(TS_ERR_STATE, "module_add_forward_hook: this %s is running",
                            m->type.name);
    ts_nn_hook *made = ts_nn_alloc(1, sizeof *made, "a forward hook"), **last = &m->hooks;
    if (!made)
        return TS_ERR_MEMORY;
    made->is = is;
    made->id = ++m->last_hook;
    while (*last)
        last = &(*last)->next;
    *last = made;
    ts_state_changed();
    if (id)
        *id = made->id;
    return TS_OK;
}

static void free_hook(ts_nn_hook *h)
{
    if (h->is.release)
        h->is.release(h->is.payload);
    free(h);
}

ts_status ts_module_remove_forward_hook(ts_module *m, int64_t id)
{
    TS_TRY(TS_CHECK_OBJECTS(m));
    if (m->running)
        return ts_error_set(TS_ERR_STATE, "module_remove_forward_hook: this %s is running",
                            m->type.name);
    for (ts_nn_hook **at = &m->hooks; *at; at = &(*at)->next)
        if ((*at)->id == id) {
            ts_nn_hook *gone = *at;
            *at = gone->next;
            ts_state_changed();
            free_hook(gone);
            return TS_OK;
        }
    return ts_error_set(TS_ERR_INDEX,
                        "module_remove_forward_hook: argument 'id': expected a hook of this %s, "
                        "got %lld", m->type.name, (long long)id);
}

void ts_nn_free_hooks(ts_module *m)
{
    for (ts_nn_hook *h = m->hooks, *next; h; h = next) {
        next = h->next;
        free_hook(h);
    }
}

/* ------------------------------------------------------------------------------ forward ---- */

/** State that ts_forward() restores, also if an exception in user code ends it. */
typedef struct running_forward {
    ts_module *m, *outer;
    bool profiled;
} running_forward;

static void end_forward(running_forward *p)
{
    if (p->profiled)
        ts_prof_leave();
    p->m->running--;
    innermost = p->outer;
}

static bool has_forward(const ts_module *m) { return m->type.forward || m->forward_list; }

/** Records that `what` ("a hook of a", "a") of m failed, unless it recorded an error. */
static void fail_silent(const ts_module *m, const char *what)
{
    if (ts_error_code() == TS_OK)
        ts_error_set(TS_ERR_NULL, "forward: %s %s failed without recording an error", what,
                     m->type.name);
}

/** Calls a hook's functions before a forward, which may replace inputs. False if one failed. */
static bool run_hook(const ts_nn_hook *h, ts_module *m, ts_tensor **inputs, int n)
{
    if (h->is.before && !(inputs[0] = h->is.before(h->is.payload, m, inputs[0])))
        return false;
    if (h->is.before_list && h->is.before_list(h->is.payload, m, inputs, n) != TS_OK)
        return false;
    for (int i = 0; i < n; i++)
        if (!inputs[i])
            return false;
    return true;
}

static bool run_before(ts_module *m, ts_tensor **inputs, int n)
{
    for (const ts_nn_hook *h = m->hooks; h; h = h->next)
        if (!run_hook(h, m, inputs, n)) {
            fail_silent(m, "a hook of a");
            return false;
        }
    return true;
}

static ts_tensor *run_after(ts_module *m, ts_tensor *const *inputs, int n, ts_tensor *y)
{
    for (const ts_nn_hook *h = m->hooks; h && y; h = h->next) {
        if (h->is.after)
            y = h->is.after(h->is.payload, m, inputs[0], y);
        if (y && h->is.after_list)
            y = h->is.after_list(h->is.payload, m, inputs, n, y);
        if (!y)
            fail_silent(m, "a hook of a");
    }
    return y;
}

/** forward: the module's own if NULL; several inputs have none */
static ts_tensor *run(ts_module *m, ts_tensor *const *inputs, int n, ts_nn_forward_fn forward)
{
    ts_tensor *given[MOST_INPUTS];
    if (m->hooks) {
        memcpy(given, inputs, (size_t)n * sizeof *given);
        if (!run_before(m, given, n))
            return NULL;
        inputs = given;
    }
    forward = forward ? forward : m->type.forward;
    ts_tensor *y = n > 1 || !forward ? m->forward_list(m, inputs, n) : forward(m, inputs[0]);
    return m->hooks ? run_after(m, inputs, n, y) : y;
}

/** inputs: n, none NULL; forward: as in run() */
static ts_tensor *enter(ts_module *m, ts_tensor *const *inputs, int n, ts_nn_forward_fn forward)
{
    char path[PATH_MOST];
    if (!has_forward(m) || (n > 1 && !m->forward_list)) {
        ts_error_set(TS_ERR_UNSUPPORTED, "forward: a %s has no forward of %s", m->type.name,
                     n > 1 ? "several tensors" : "one tensor");
        return NULL;
    }
    if (m->running >= MOST_NESTED) {
        ts_error_set(TS_ERR_STATE,
                     "forward: expected a module that ends its recursion, got a %s that runs %d "
                     "times inside itself", m->type.name, MOST_NESTED);
        return NULL;
    }
    running_forward p __attribute__((cleanup(end_forward))) = {m, innermost, ts_prof_active()};
    innermost = m;
    m->running++;
    if (p.profiled)
        p.profiled = ts_prof_enter(m == p.outer ? "again" : path_below(m, p.outer, path)) == TS_OK;
    ts_tensor *y = run(m, inputs, n, forward);
    if (!y) {
        fail_silent(m, "a");
        ts_error_within(path_below(m, NULL, path));
    }
    return y;
}

ts_tensor *ts_forward(ts_module *m, ts_tensor *x)
{
    TS_TRY_NULL(TS_CHECK_OBJECTS(m, x));
    return enter(m, &x, 1, NULL);
}

ts_tensor *ts_nn_forward_by(ts_module *m, ts_tensor *x, ts_nn_forward_fn forward)
{
    return enter(m, &x, 1, forward);
}

ts_status ts_module_set_forward_list(ts_module *m, ts_forward_list_fn forward)
{
    TS_TRY(TS_CHECK_OBJECTS(m));
    TS_TRY(TS_CHECK_POINTERS(forward));
    m->forward_list = forward;
    ts_state_changed();
    return TS_OK;
}

ts_tensor *ts_forward_list(ts_module *m, ts_tensor *const *inputs, int n)
{
    TS_TRY_NULL(TS_CHECK_OBJECTS(m));
    TS_TRY_NULL(TS_CHECK_LIST(inputs, n));
    TS_TRY_NULL(TS_CHECK_VALUE(n, n >= 1 && n <= MOST_INPUTS, "1 to 16"));
    for (int i = 0; i < n; i++)
        TS_TRY_NULL(TS_CHECK_OBJECTS(inputs[i]));
    return enter(m, inputs, n, NULL);
}

/* ------------------------------------------------------------------------------ summary ---- */

/** A row of a summary: a module and the data of its forwards during the run. */
typedef struct summary_row {
    ts_module *m;
    int64_t id; /* of its hook; 0: no hook */
    ts_work before, work; /* counted before the current forward; sum over all forwards */
    char sizes[96];       /* of the last result; "-" without one */
} summary_row;

static ts_tensor *note_begin(void *payload, ts_module *m, ts_tensor *x)
{
    (void)m;
    ((summary_row *)payload)->before = ts_work_counted();
    return x;
}

static ts_tensor *note_end(void *payload, ts_module *m, ts_tensor *x, ts_tensor *y)
{
    (void)m, (void)x;
    summary_row *row = payload;
    ts_work now = ts_work_counted();
    if (y != TS_NONE)
        ts_format_sizes(row->sizes, sizeof row->sizes, ts_sizes(y), ts_ndim(y));
    row->work.flops += now.flops - row->before.flops;
    row->work.bytes += now.bytes - row->before.bytes;
    return y;
}

static int64_t count_modules(const ts_module *m)
{
    int64_t n = 1;
    for (int i = 0; i < ts_module_num_children(m); i++)
        n += count_modules(ts_module_child(m, i));
    return n;
}

/** Lists m and all below it, depth first, and hooks those that have a forward. */
static ts_status list_modules(ts_module *m, summary_row *rows, int64_t *n)
{
    summary_row *row = &rows[(*n)++];
    row->m = m;
    snprintf(row->sizes, sizeof row->sizes, "-");
    if (has_forward(m))
        TS_TRY(ts_module_add_forward_hook(
            m, TS_OPTS(ts_forward_hook, .before = note_begin, .after = note_end, .payload = row),
            &row->id));
    for (int i = 0; i < ts_module_num_children(m); i++)
        TS_TRY(list_modules(ts_module_child(m, i), rows, n));
    return TS_OK;
}

/** True if the calling thread counts work already. */
static bool counts_work(void)
{
    ts_key key = ts_key_by_name("WORK"); /* registered when the counter is first switched on */
    return key != TS_KEY_INVALID && (ts_mask_get().include & TS_KEYSET(key));
}

/** Runs m on x with the work counter on, and leaves the caller's counter as it was. */
static ts_status run_counted(ts_module *m, ts_tensor *x)
{
    TS_SCOPE;
    TS_NO_GRAD;
    bool counting = counts_work();
    if (!counting)
        TS_TRY(ts_work_counter(true));
    ts_status status = ts_status_of_pointer(ts_forward(m, x));
    if (!counting)
        ts_work_counter(false);
    return status;
}

/** Parameters of m itself, without its children. */
static int64_t own_parameters(const ts_module *m)
{
    int64_t n = 0;
    for (int i = 0; i < m->nmembers; i++)
        if (m->members[i].tensor && m->members[i].kind == TS_MEMBER_PARAMETER)
            n += ts_numel(m->members[i].tensor);
    return n;
}

static void print_rows(const ts_module *root, const summary_row *rows, int64_t n, FILE *out)
{
    char path[PATH_MOST];
    int widest = 6;
    for (int64_t i = 0; i < n; i++) {
        int width = (int)strlen(path_below(rows[i].m, rows[i].m == root ? NULL : root, path));
        widest = width > widest ? width : widest;
    }
    fprintf(out, "%-*s  %-12s  %-20s  %12s  %14s\n", widest, "module", "type", "result",
            "parameters", "FLOPs");
    for (int64_t i = 0; i < n; i++) {
        const summary_row *row = &rows[i];
        fprintf(out, "%-*s  %-12s  %-20s  %12lld  %14.6g\n", widest,
                path_below(row->m, row->m == root ? NULL : root, path), row->m->type.name,
                row->sizes, (long long)own_parameters(row->m), row->work.flops);
    }
    fprintf(out, "%lld parameters, %.6g FLOPs and at least %.6g bytes in a forward pass\n",
            (long long)ts_module_num_parameters(root), rows[0].work.flops, rows[0].work.bytes);
}

ts_status ts_module_summary(ts_module *m, ts_tensor *x, FILE *out)
{
    int64_t n = 0;
    TS_TRY(TS_CHECK_OBJECTS(m, x));
    TS_TRY(TS_CHECK_POINTERS(out));
    summary_row *rows = ts_nn_alloc(count_modules(m), sizeof *rows, "a summary");
    if (!rows)
        return TS_ERR_MEMORY;
    ts_status status = list_modules(m, rows, &n);
    if (status == TS_OK)
        status = run_counted(m, x);
    for (int64_t i = 0; i < n; i++)
        if (rows[i].id)
            ts_module_remove_forward_hook(rows[i].m, rows[i].id);
    if (status == TS_OK)
        print_rows(m, rows, n, out);
    free(rows);
    if (status == TS_OK && ferror(out))
        return ts_error_set(TS_ERR_IO, "module_summary: the stream failed");
    return status;
}
