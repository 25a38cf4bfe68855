/** @file state.c  Lists of named tensors: parameters, state dicts, and files of them. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------- lists ---- */

/** The context of two walks over a module: the first counts tensors and bytes of names, the second
 *  fills the lists. */
typedef struct collector {
    bool parameters; /* true: each parameter once; false: parameters and persistent buffers */
    int64_t n, capacity;
    size_t bytes;
    const char **names; /* NULL while counting */
    ts_tensor **tensors;
    char *text;
} collector;

static ts_status collect(void *ctx, const char *name, ts_tensor *t, ts_member_kind kind)
{
    collector *c = ctx;
    size_t bytes = strlen(name) + 1;
    if (kind == TS_MEMBER_TEMPORARY || (c->parameters && kind != TS_MEMBER_PARAMETER))
        return TS_OK;
    if (!c->names) {
        c->capacity++;
        c->bytes += bytes;
        return TS_OK;
    }
    if (c->parameters && ts_nn_contains(c->tensors, c->n, t))
        return TS_OK;
    memcpy(c->text, name, bytes);
    c->names[c->n] = c->text;
    c->text += bytes;
    c->tensors[c->n++] = ts_retain(t);
    return TS_OK;
}

static ts_status collect_all(const ts_module *m, bool parameters, ts_named_tensors *list)
{
    collector c = {.parameters = parameters};
    *list = (ts_named_tensors){0};
    TS_TRY(ts_module_each(m, collect, &c));
    size_t bytes = (size_t)c.capacity * 2 * sizeof(void *) + c.bytes + 1;
    char *block = malloc(bytes);
    if (!block)
        return ts_error_memory("a list of tensors", (int64_t)bytes);
    c.names = (const char **)(void *)block;
    c.tensors = (ts_tensor **)(void *)(c.names + c.capacity);
    c.text = (char *)(c.tensors + c.capacity);
    TS_TRY(ts_module_each(m, collect, &c)); /* does not fail, because the first walk did not */
    *list = (ts_named_tensors){c.n, c.names, c.tensors};
    return TS_OK;
}

void ts_named_tensors_free(ts_named_tensors *list)
{
    if (!list)
        return;
    for (int64_t i = 0; i < list->n; i++)
        ts_release(list->tensors[i]);
    free(list->names);
    *list = (ts_named_tensors){0};
}

ts_status ts_module_parameters(const ts_module *m, ts_named_tensors *list)
{
    TS_TRY(TS_CHECK_OBJECTS(m));
    TS_TRY(TS_CHECK_POINTERS(list));
    return collect_all(m, true, list);
}
ts_status ts_module_state_dict(const ts_module *m, ts_named_tensors *list)
{
    TS_TRY(TS_CHECK_OBJECTS(m));
    TS_TRY(TS_CHECK_POINTERS(list));
    return collect_all(m, false, list);
}

/* ------------------------------------------------------------------------------ loading ---- */

enum { NAMED_MOST = 8 };

/** Appends to the report's text and truncates it at the end of the buffer. */
static void append_to_report(ts_load_report *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void append_to_report(ts_load_report *r, const char *format, ...)
{
    size_t used = strlen(r->text);
    va_list args;
    va_start(args, format);
    vsnprintf(r->text + used, sizeof r->text - used, format, args);
    va_end(args);
}

/** Increments *count, and adds the name to the text if it is among the first NAMED_MOST. */
static void note(ts_load_report *r, int64_t *count, const char *kind, const char *name,
                 const char *detail)
{
    char shown[512];
    ts_escape_text(shown, sizeof shown, name);
    if (*count == 0)
        append_to_report(r, "%s%s: ", r->text[0] ? "; " : "", kind);
    if (*count < NAMED_MOST)
        append_to_report(r, "%s%s%s", *count ? ", " : "", shown, detail);
    else if (*count == NAMED_MOST)
        append_to_report(r, ", ...");
    ++*count;
}

static int64_t find(const ts_named_tensors *list, const char *name)
{
    for (int64_t i = 0; i < list->n; i++)
        if (strcmp(list->names[i], name) == 0)
            return i;
    return -1;
}

static const char *sizes_of(const ts_tensor *t, char *text, size_t size)
{
    return ts_format_sizes(text, size, ts_sizes(t), ts_ndim(t));
}

static bool same_sizes(const ts_tensor *a, const ts_tensor *b)
{
    size_t bytes = (size_t)ts_ndim(a) * sizeof(int64_t);
    return ts_ndim(a) == ts_ndim(b) && (!bytes || memcmp(ts_sizes(a), ts_sizes(b), bytes) == 0);
}

/** Finds each tensor of `own` by name: sets given[i], one per own tensor, to its index in
 *  names[0..n), or to -1. Adds missing, unexpected and repeated names, and sizes that differ, to
 *  *r, which the caller has zeroed. */
static void match(const ts_named_tensors *own, const char *const *names, ts_tensor *const *tensors,
                  int64_t n, int64_t *given, ts_load_report *r)
{
    for (int64_t i = 0; i < own->n; i++)
        given[i] = -1;
    for (int64_t k = 0; k < n; k++) {
        int64_t i = find(own, names[k]);
        if (i >= 0 && given[i] < 0)
            given[i] = k;
    }
    for (int64_t i = 0; i < own->n; i++)
        if (given[i] < 0)
            note(r, &r->missing, "missing", own->names[i], "");
    for (int64_t k = 0; k < n; k++) {
        int64_t i = find(own, names[k]);
        if (i < 0 || given[i] != k)
            note(r, &r->unexpected, "unexpected", names[k], i < 0 ? "" : " (twice)");
    }
    for (int64_t i = 0; i < own->n; i++) {
        char detail[200], wanted[80], got[80];
        if (given[i] < 0 || same_sizes(own->tensors[i], tensors[given[i]]))
            continue;
        snprintf(detail, sizeof detail, " expected %s got %s",
                 sizes_of(own->tensors[i], wanted, sizeof wanted),
                 sizes_of(tensors[given[i]], got, sizeof got));
        note(r, &r->mismatched, "sizes differ", own->names[i], detail);
    }
}

ts_status ts_nn_match_exactly(const char *function, const ts_named_tensors *own,
                              const char *const *names, ts_tensor *const *tensors, int64_t n,
                              int64_t *given)
{
    ts_load_report r = {0};
    match(own, names, tensors, n, given, &r);
    if (r.missing || r.unexpected || r.mismatched)
        return ts_error_set(TS_ERR_VALUE, "%s: %s", function, r.text);
    for (int64_t i = 0; i < own->n; i++) {
        ts_dtype mine = ts_dtype_of(own->tensors[i]), got = ts_dtype_of(tensors[given[i]]);
        if (got != mine)
            return ts_error_set(TS_ERR_VALUE, "%s: '%s': expected dtype %s, got %s", function,
                                own->names[i], ts_dtype_name(mine), ts_dtype_name(got));
    }
    return TS_OK;
}

/** Copies tensors by name. path: the file that has them, for the error; NULL: no file. */
static ts_status load(const ts_named_tensors *own, const char *const *names,
                      ts_tensor *const *tensors, int64_t n, bool strict, const char *path,
                      int64_t *given, ts_load_report *r)
{
    match(own, names, tensors, n, given, r);
    if (r->mismatched || (strict && (r->missing || r->unexpected)))
        return path ? ts_error_set(TS_ERR_VALUE, "module_load: '%.200s': %s", path, r->text)
                    : ts_error_set(TS_ERR_VALUE, "module_load_state_dict: %s", r->text);
    TS_NO_GRAD;
    for (int64_t i = 0; i < own->n; i++)
        if (given[i] >= 0)
            TS_TRY(ts_copy_(own->tensors[i], tensors[given[i]]));
    return TS_OK;
}

/** load() for all parameters and persistent buffers of m. */
static ts_status load_module(ts_module *m, const char *const *names, ts_tensor *const *tensors,
                             int64_t n, bool strict, const char *path, ts_load_report *r)
{
    ts_named_tensors own;
    TS_TRY(ts_module_state_dict(m, &own));
    int64_t *given = ts_nn_alloc(own.n, sizeof *given, "a match of names");
    ts_status status =
        given ? load(&own, names, tensors, n, strict, path, given, r) : TS_ERR_MEMORY;
    free(given);
    ts_named_tensors_free(&own);
    return status;
}

ts_status ts_module_load_state_dict(ts_module *m, const char *const *names,
                                    ts_tensor *const *tensors, int64_t n, bool strict,
                                    ts_load_report *report)
{
    ts_load_report local;
    ts_load_report *r = report ? report : &local;
    memset(r, 0, sizeof *r);
    TS_TRY(TS_CHECK_STRINGS(names, n));
    TS_TRY(TS_CHECK_TENSOR_LIST(tensors, n));
    return load_module(m, names, tensors, n, strict, NULL, r);
}

/* -------------------------------------------------------------------------------- files ---- */

ts_status ts_module_save(const ts_module *m, const char *path)
{
    ts_named_tensors list;
    TS_TRY(TS_CHECK_POINTERS(path));
    TS_TRY(ts_module_state_dict(m, &list));
    ts_status status =
        ts_safetensors_save(path, list.names, list.tensors, list.n, NULL, NULL, 0);
    ts_named_tensors_free(&list);
    return status;
}

ts_status ts_nn_read_all(const ts_safetensors *file, ts_named_tensors *list)
{
    int64_t n = ts_safetensors_count(file);
    *list = (ts_named_tensors){0};
    char *block = ts_nn_alloc(2 * (n + 1), sizeof(void *), "the names of a file");
    if (!block)
        return TS_ERR_MEMORY;
    list->names = (const char **)(void *)block;
    list->tensors = (ts_tensor **)(void *)(list->names + n + 1);
    TS_TRY(ts_safetensors_load_all(file, list->tensors));
    for (; list->n < n; list->n++)
        list->names[list->n] = ts_safetensors_name(file, list->n);
    return TS_OK;
}

ts_status ts_module_load(ts_module *m, const char *path)
{
    TS_SCOPE;
    ts_named_tensors list = {0};
    ts_load_report report = {0};
    TS_TRY(TS_CHECK_OBJECTS(m));
    TS_TRY(TS_CHECK_POINTERS(path));
    ts_safetensors *file = ts_safetensors_open(path, NULL);
    TS_TRY(file);
    ts_status status = ts_nn_read_all(file, &list);
    if (status == TS_OK)
        status = load_module(m, list.names, list.tensors, list.n, true, path, &report);
    free(list.names);
    ts_safetensors_close(file);
    return status;
}
