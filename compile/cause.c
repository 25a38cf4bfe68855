/** @file cause.c  Says why a recording needs a new plan: the first field in which it differs from
 * an earlier recording. Both streams are decoded, and their calls are compared in order. */
// SPDX-License-Identifier: MIT
#include "compile/cache.h"
#include "compile/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/** A decoded stream. */
typedef struct decoded {
    ts_graph *graph;
    ts_array storages; /* ts_plan_storage */
} decoded;

typedef struct comparison {
    decoded was, now;
    char *text; /* receives the sentence */
    size_t size;
} comparison;

static bool decode(decoded *d, const uint64_t *words, uint32_t count)
{
    d->graph = ts_graph_new();
    return d->graph && ts_plan_decode(words, count, d->graph, &d->storages);
}

static void end(decoded *d)
{
    ts_array_free(&d->storages, sizeof(ts_plan_storage));
    ts_graph_free(d->graph);
}

/* ------------------------------------------------------------------------- locations ---- */

enum { LOCATION_BYTES = 120 };

/** Writes "argument 'other' of call 3 (mul)"; member: index in a list argument, or -1. */
static const char *name_argument(char *text, const ts_graph *g, uint32_t call, int arg, int member)
{
    const ts_graph_node *n = ts_graph_node_at(g, call);
    char at[24] = "";
    if (member >= 0)
        snprintf(at, sizeof at, "member %d of ", member);
    snprintf(text, LOCATION_BYTES, "%sargument '%s' of call %u (%s)", at,
             ts_ops[n->op].schema.args[arg].name, call, ts_graph_node_name(g, n));
    return text;
}

static const char *name_result(char *text, const ts_graph *g, uint32_t call, int result)
{
    const ts_graph_node *n = ts_graph_node_at(g, call);
    char at[24] = "the result";
    if (n->nrets > 1)
        snprintf(at, sizeof at, "result %d", result);
    snprintf(text, LOCATION_BYTES, "%s of call %u (%s)", at, call, ts_graph_node_name(g, n));
    return text;
}

static uint32_t storage_of(const ts_graph *g, ts_id id)
{
    return ts_graph_value_at(g, id)->storage;
}

/** Names the first location of a recording that uses a storage. */
static const char *name_storage(char *text, const ts_graph *g, uint32_t storage)
{
    for (uint32_t call = 0; call < g->nodes.count; call++) {
        const ts_graph_node *n = ts_graph_node_at(g, call);
        const ts_graph_arg *a = ts_graph_args_of(g, n);
        for (int i = 0; i < n->nargs; i++) {
            bool list = a[i].tag == TS_TAG_TENSORS;
            for (uint32_t k = 0; k < (list ? a[i].count : a[i].tag == TS_TAG_TENSOR); k++)
                if (storage_of(g, list ? (ts_id)ts_graph_ints_at(g, a[i].at)[k] : a[i].id) ==
                    storage)
                    return name_argument(text, g, call, i, list ? (int)k : -1);
        }
        for (int i = 0; i < n->nrets; i++)
            if (n->rets[i] && storage_of(g, n->rets[i]) == storage)
                return name_result(text, g, call, i);
    }
    snprintf(text, LOCATION_BYTES, "no call");
    return text;
}

/* ----------------------------------------------------------------------- comparisons ---- */

/** Writes a sentence; returns true, which ends the comparison. */
static bool differs(const comparison *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static bool differs(const comparison *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->text, c->size, format, args);
    va_end(args);
    return true;
}

/** Compares the tensors at a location: device, dtype, memory, sizes, strides, offset. */
static bool compare_tensors(const comparison *c, const char *location, ts_id before, ts_id now)
{
    static const char *const fields[] = {"size", "stride"};
    const ts_graph *g = c->was.graph, *h = c->now.graph;
    const ts_graph_value *v = ts_graph_value_at(g, before), *w = ts_graph_value_at(h, now);
    if (memcmp(&v->device, &w->device, sizeof v->device) != 0) {
        char device[40];
        snprintf(device, sizeof device, "%s", ts_device_name(v->device));
        return differs(c, "%s was on %s, now on %s", location, device, ts_device_name(w->device));
    }
    if (v->dtype != w->dtype)
        return differs(c, "%s had dtype %s, now %s", location, ts_dtype_name(v->dtype),
                       ts_dtype_name(w->dtype));
    if (v->storage != w->storage) {
        char a[LOCATION_BYTES], b[LOCATION_BYTES];
        name_storage(a, g, v->storage);
        name_storage(b, h, w->storage);
        if (strcmp(a, location) == 0)
            return differs(c, "%s had memory of its own, now that of %s", location, b);
        return differs(c, "%s had the memory of %s, now %s%s", location, a,
                       strcmp(b, location) == 0 ? "memory of its own" : "that of ",
                       strcmp(b, location) == 0 ? "" : b);
    }
    if (v->ndim != w->ndim)
        return differs(c, "%s had %d dims, now %d", location, v->ndim, w->ndim);
    const int64_t *x = ts_graph_ints_at(g, v->ints), *y = ts_graph_ints_at(h, w->ints);
    for (int i = 0; i < 2 * v->ndim; i++)
        if (x[i] != y[i])
            return differs(c, "%s had %s %lld in dim %d, now %lld", location, fields[i / v->ndim],
                           (long long)x[i], i % v->ndim, (long long)y[i]);
    return v->offset != w->offset &&
           differs(c, "%s began at byte %lld of its memory, now at %lld", location,
                   (long long)v->offset, (long long)w->offset);
}

static bool compare_lists(const comparison *c, uint32_t call, int arg, const ts_graph_arg *a,
                          const ts_graph_arg *b)
{
    char location[LOCATION_BYTES];
    bool tensors = a->tag == TS_TAG_TENSORS;
    if (a->count != b->count)
        return differs(c, "%s had %u members, now %u",
                       name_argument(location, c->now.graph, call, arg, -1), a->count, b->count);
    if (a->role == TS_ROLE_VALUE)
        return false;
    const int64_t *x = ts_graph_ints_at(c->was.graph, a->at),
                  *y = ts_graph_ints_at(c->now.graph, b->at);
    for (uint32_t k = 0; k < a->count; k++) {
        name_argument(location, c->now.graph, call, arg, (int)k);
        if (tensors ? compare_tensors(c, location, (ts_id)x[k], (ts_id)y[k])
                    : x[k] != y[k] && differs(c, "%s was %lld, now %lld", location, (long long)x[k],
                                              (long long)y[k]))
            return true;
    }
    return false;
}

static bool compare_args(const comparison *c, uint32_t call, int arg, const ts_graph_arg *a,
                         const ts_graph_arg *b)
{
    static const char *const kinds[] = {
        "absent", "a bool", "an integer", "a float", "a tensor", "a list of tensors",
        "a list of integers", "a dtype", "a device", "a string"};
    char location[LOCATION_BYTES];
    name_argument(location, c->now.graph, call, arg, -1);
    if (a->tag != b->tag)
        return differs(c, "%s was %s, now %s", location, kinds[a->tag], kinds[b->tag]);
    switch (a->tag) {
    case TS_TAG_NONE: return false;
    case TS_TAG_TENSOR: return compare_tensors(c, location, a->id, b->id);
    case TS_TAG_TENSORS:
    case TS_TAG_INTS: return compare_lists(c, call, arg, a, b);
    case TS_TAG_STRING: {
        const char *x = ts_graph_text_at(c->was.graph, a->at),
                   *y = ts_graph_text_at(c->now.graph, b->at);
        return strcmp(x, y) != 0 && differs(c, "%s was '%.40s', now '%.40s'", location, x, y);
    }
    case TS_TAG_DEVICE: {
        char device[40];
        snprintf(device, sizeof device, "%s", ts_device_name(a->device));
        return memcmp(&a->device, &b->device, sizeof a->device) != 0 &&
               differs(c, "%s was %s, now %s", location, device, ts_device_name(b->device));
    }
    case TS_TAG_DTYPE:
        return a->i != b->i &&
               differs(c, "%s was %s, now %s", location, ts_dtype_name((ts_dtype)a->i),
                       ts_dtype_name((ts_dtype)b->i));
    case TS_TAG_BOOL:
        return a->i != b->i && differs(c, "%s was %s, now %s", location, a->i ? "true" : "false",
                                       b->i ? "true" : "false");
    default:
        return a->role != TS_ROLE_VALUE && a->i != b->i &&
               differs(c, "%s was %lld, now %lld", location, (long long)a->i, (long long)b->i);
    }
}

static bool compare_calls(const comparison *c, uint32_t call)
{
    const ts_graph *g = c->was.graph, *h = c->now.graph;
    const ts_graph_node *n = ts_graph_node_at(g, call), *m = ts_graph_node_at(h, call);
    if (n->op != m->op)
        return differs(c, "call %u was %s, now %s", call, ts_graph_node_name(g, n),
                       ts_graph_node_name(h, m));
    const ts_graph_arg *a = ts_graph_args_of(g, n), *b = ts_graph_args_of(h, m);
    for (int i = 0; i < n->nargs && i < m->nargs; i++)
        if (compare_args(c, call, i, &a[i], &b[i]))
            return true;
    for (int i = 0; i < n->nrets && i < m->nrets; i++) {
        static const char *const states[] = {"not computed", "new", "a given tensor"};
        int was = n->given >> i & 1 ? 2 : n->want >> i & 1, now = m->given >> i & 1 ? 2
                                                                  : m->want >> i & 1;
        char location[LOCATION_BYTES];
        name_result(location, h, call, i);
        if (was != now)
            return differs(c, "%s was %s, now %s", location, states[was], states[now]);
        if (n->rets[i] && m->rets[i] && compare_tensors(c, location, n->rets[i], m->rets[i]))
            return true;
    }
    return false;
}

/** Compares which results the program still holds at the end of the recordings. */
static bool compare_held(const comparison *c)
{
    const ts_plan_storage *a = c->was.storages.data, *b = c->now.storages.data;
    char location[LOCATION_BYTES];
    for (uint32_t i = 0; i < c->was.storages.count && i < c->now.storages.count; i++)
        if (a[i].held != b[i].held)
            return differs(c, "%s was %s by the program after the recording, now %s",
                           name_storage(location, c->now.graph, i), a[i].held ? "held" : "not held",
                           b[i].held ? "held" : "not held");
    return false;
}

static bool compare(const comparison *c)
{
    uint32_t was = c->was.graph->nodes.count, now = c->now.graph->nodes.count;
    for (uint32_t call = 0; call < was && call < now; call++)
        if (compare_calls(c, call))
            return true;
    if (was == now)
        return compare_held(c);
    const ts_graph *longer = was > now ? c->was.graph : c->now.graph;
    uint32_t first = was > now ? now : was;
    return differs(c, "there were %u calls, now %u: call %u (%s) is %s", was, now, first,
                   ts_graph_node_name(longer, ts_graph_node_at(longer, first)),
                   was > now ? "missing" : "new");
}

/* --------------------------------------------------------------------------- numbers ---- */

/** Names the argument that has number `at` of a plan's recording. */
static const char *name_number(char *text, const ts_graph *g, uint32_t at)
{
    for (uint32_t call = 0; call < g->nodes.count; call++) {
        const ts_graph_node *n = ts_graph_node_at(g, call);
        const ts_graph_arg *a = ts_graph_args_of(g, n);
        for (int i = 0; i < n->nargs; i++) {
            uint32_t count = a[i].tag == TS_TAG_INTS ? a[i].count : 1;
            if (a[i].role == TS_ROLE_VALUE && a[i].tag != TS_TAG_NONE && a[i].at <= at &&
                at < a[i].at + count)
                return name_argument(text, g, call, i,
                                     a[i].tag == TS_TAG_INTS ? (int)(at - a[i].at) : -1);
        }
    }
    snprintf(text, LOCATION_BYTES, "the generator's state");
    return text;
}

static double as_double(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

/** Compares numbers on which plan e depends (ts_exec_serves()). */
static void compare_numbers(const comparison *c, const ts_exec *e, const uint64_t *numbers)
{
    const ts_known_number *known = e->known.data;
    const ts_equal_numbers *equal = e->equal.data;
    char a[LOCATION_BYTES], b[LOCATION_BYTES];
    for (uint32_t i = 0; i < e->known.count; i++)
        if (numbers[known[i].at] != known[i].bits) {
            differs(c, "numbers that were folded differ: %s was %g, now %g",
                    name_number(a, c->was.graph, known[i].at), as_double(known[i].bits),
                    as_double(numbers[known[i].at]));
            return;
        }
    for (uint32_t i = 0; i < e->equal.count; i++) {
        uint32_t first = equal[i].a < equal[i].b ? equal[i].a : equal[i].b,
                 second = equal[i].a ^ equal[i].b ^ first;
        if (numbers[first] == numbers[second])
            continue;
        differs(c, "numbers that were equal differ: %s is %g, %s is %g",
                name_number(a, c->was.graph, first), as_double(numbers[first]),
                name_number(b, c->was.graph, second), as_double(numbers[second]));
        return;
    }
}

/** The most recently used plan that served recording number `segment` of a call; NULL: none. */
static const ts_exec *earlier_plan(const ts_compiled *c, uint32_t segment)
{
    const ts_exec *found = NULL;
    for (int64_t i = 0; i < c->nplans; i++) {
        const ts_exec *e = c->plans[i];
        if (e->segments >> segment & 1 && (!found || e->used > found->used))
            found = e;
    }
    return found;
}

void ts_cause_find(ts_compiled *c, const ts_lazy *l)
{
    uint32_t segment = ts_lazy_segment(l);
    const ts_exec *e = earlier_plan(c, segment);
    comparison with = {.text = c->cause, .size = sizeof c->cause};
    if (segment) {
        int used = snprintf(c->cause, sizeof c->cause, "after break %u: ", segment);
        with.text += used;
        with.size -= (size_t)used;
    }
    if (!e) {
        snprintf(with.text, with.size, "%s", c->seen >> segment & 1
                                                 ? "no plan of an earlier recording is kept"
                                                 : "the first recording");
    } else {
        snprintf(with.text, with.size, "another recording");
        bool same = e->nwords == l->words.count &&
                    memcmp(e->words, l->words.data, e->nwords * sizeof *e->words) == 0;
        if (decode(&with.was, e->words, e->nwords) &&
            (same || decode(&with.now, l->words.data, l->words.count))) {
            if (same)
                compare_numbers(&with, e, l->numbers.data);
            else
                compare(&with);
        }
        end(&with.was);
        end(&with.now);
    }
    c->seen |= (uint64_t)1 << segment;
}
