/** @file write.c  The text, DOT and JSON forms of a graph, checked by independent parsers. */
// SPDX-License-Identifier: MIT
#include "tests/tracing/common.h"

#include <ctype.h>
#include <jansson.h>

static ts_status step(TRACED)
{
    float two = 2;
    TS_SCOPE;
    ts_tensor *x = ts_dropout(ts_mul(in[0], ts_from_array(&two, TS_F32, TS_SIZES(1))), 0.5, true);
    ts_tensor *y = ts_matmul(ts_clamp(x, TS_SCALAR(-INFINITY), TS_SCALAR(1)),
                             in[1]); // (2, 3, 4) with (2, 4, 2)
    TS_TRY(ts_backward(ts_sum(y)));
    ts_tensor *const list[] = {in[2], ctx};
    TS_TRY(ts_scale_(list, 2, 0.5));
    out[0] = ts_keep(ts_detach(y));
    out[1] = TS_NONE;
    return TS_OK;
}

static ts_graph *record(void)
{
    ts_graph *graph;
    ts_tensor *out[2], *in[3] = {ts_set_requires_grad(numbers(1, TS_SIZES(2, 3, 4)), true),
                                 numbers(2, TS_SIZES(2, 4, 2)), numbers(3, TS_SIZES(3))};
    OK(ts_trace(step, ts_ones(TS_SIZES(2), TS_F32), in, 3, out, 2, &graph));
    ck_assert_str_eq(ts_graph_get_info(graph).reason, "");
    return graph;
}

/* --------------------------------------------------------------------------------- text ---- */

TS_TEST(the_text_has_one_line_per_call_with_shapes_and_sites)
{
    TS_SCOPE;
    ts_graph *graph = record();
    char *text = written(graph, TS_GRAPH_TEXT);
    const char *const parts[] = {"graph: 3 inputs, 1 captured, 1 constants",
                                 "(2, 3, 4) f32 = input 0  ; requires grad",
                                 " = captured 0", " = constant(", "(2, 3, 4) f32 = dropout(",
                                 ", draw+0", "backward {", "(2, 3, 2) f32 = matmul(",
                                 "dropout_backward(", "0.5, seed, draw+0)", ".grad = %", "scale([%",
                                 "!], 0.5)", "return (%", ", none)", "-inf"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        ck_assert_msg(strstr(text, parts[i]), "'%s' is not in:\n%s", parts[i], text);
    int depth = 0, lines = 0, sites = 0;
    for (const char *p = text; *p; p++) {
        depth += (*p == '{') - (*p == '}');
        ck_assert_int_ge(depth, 0);
        lines += *p == '\n';
        sites += *p == '+' && p[1] == '0' && p[2] == 'x';
    }
    ck_assert_int_eq(depth, 0);
    ts_graph_info info = ts_graph_get_info(graph);
    ck_assert_int_ge(lines, (int)(info.calls + info.regions + info.inputs + info.captures));
    ck_assert_int_ge(sites, (int)info.calls); /* dladdr knows the module at least */
    free(text);
    ts_graph_free(graph);
}

/* ---------------------------------------------------------------------------------- DOT ---- */

/**
 * The part of Graphviz's grammar that matters: graph ID { statements }, where a statement
 * is an edge, a node with attributes, a default, ID = value, or a subgraph; IDs are names,
 * numbers or quoted strings.
 */
typedef struct dot {
    const char *p;
    char declared[256][16];
    int ndeclared, nedges, nclusters;
} dot;

static void blanks(dot *d)
{
    while (isspace((unsigned char)*d->p))
        d->p++;
}

static bool take(dot *d, const char *word)
{
    blanks(d);
    size_t n = strlen(word);
    if (strncmp(d->p, word, n) != 0)
        return false;
    d->p += n;
    return true;
}

static void id(dot *d, char *out, size_t size)
{
    blanks(d);
    size_t n = 0;
    if (*d->p == '"') {
        for (d->p++; *d->p && *d->p != '"'; d->p++)
            if (*d->p == '\\') {
                d->p++;
                ck_assert(*d->p != 0);
            }
        ck_assert_msg(take(d, "\""), "a string does not end");
        if (size)
            out[0] = 0;
        return;
    }
    while (isalnum((unsigned char)d->p[n]) || d->p[n] == '_' || d->p[n] == '.')
        n++;
    ck_assert_msg(n > 0, "an ID is missing at: %.40s", d->p);
    if (size)
        snprintf(out, size, "%.*s", (int)n, d->p);
    d->p += n;
}

static void attributes(dot *d)
{
    while (take(d, "[")) {
        while (!take(d, "]")) {
            id(d, NULL, 0);
            ck_assert(take(d, "="));
            id(d, NULL, 0);
            take(d, ",");
        }
    }
}

static void statements(dot *d)
{
    char name[64], to[64];
    while (!take(d, "}")) {
        if (take(d, "subgraph")) {
            id(d, name, sizeof name);
            ck_assert(strncmp(name, "cluster_", 8) == 0 && take(d, "{"));
            d->nclusters++;
            statements(d);
            continue;
        }
        id(d, name, sizeof name);
        if (take(d, "=")) {
            id(d, NULL, 0);
        } else if (take(d, "->")) {
            id(d, to, sizeof to);
            d->nedges++;
            bool from_known = false, to_known = false;
            for (int i = 0; i < d->ndeclared; i++) {
                from_known |= strcmp(d->declared[i], name) == 0;
                to_known |= strcmp(d->declared[i], to) == 0;
            }
            ck_assert_msg(from_known && to_known, "%s -> %s joins what is not declared", name, to);
            attributes(d);
        } else {
            attributes(d);
            ck_assert_int_lt(d->ndeclared, 256);
            snprintf(d->declared[d->ndeclared++], sizeof d->declared[0], "%.15s", name);
        }
        take(d, ";");
    }
}

TS_TEST(the_dot_form_obeys_its_grammar_and_joins_what_it_declares)
{
    TS_SCOPE;
    ts_graph *graph = record();
    char *text = written(graph, TS_GRAPH_DOT);
    static dot d;
    d.p = text;
    ck_assert(take(&d, "digraph"));
    id(&d, NULL, 0);
    ck_assert(take(&d, "{"));
    statements(&d);
    blanks(&d);
    ck_assert_int_eq(*d.p, 0);
    ts_graph_info info = ts_graph_get_info(graph);
    ck_assert_int_eq(d.nclusters, info.regions);
    ck_assert_int_ge(d.nedges, info.calls);
    free(text);
    ts_graph_free(graph);
}

/* --------------------------------------------------------------------------------- JSON ---- */

TS_TEST(the_json_form_parses_and_holds_everything)
{
    TS_SCOPE;
    ts_graph *graph = record();
    char *text = written(graph, TS_GRAPH_JSON);
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(root != NULL, "%s at line %d", error.text, error.line);
    ts_graph_info info = ts_graph_get_info(graph);
    const json_t *tensors = json_object_get(root, "tensors"),
                 *calls = json_object_get(root, "calls"), *member, *arg;
    ck_assert(json_is_true(json_object_get(root, "complete")));
    ck_assert_int_eq((int)json_array_size(json_object_get(root, "inputs")), info.inputs);
    ck_assert_int_eq((int)json_array_size(tensors), info.tensors);
    ck_assert(json_is_null(json_array_get(json_object_get(root, "outputs"), 1)));
    size_t i, k;
    json_int_t n = (json_int_t)json_array_size(tensors);
    int ncalls = 0, nregions = 0, seeds = 0, infinite = 0, written_args = 0, grads = 0;
    json_array_foreach (tensors, i, member) {
        ck_assert_int_eq(json_integer_value(json_object_get(member, "id")), (json_int_t)i);
        ck_assert(json_array_size(json_object_get(member, "sizes")) ==
                  json_array_size(json_object_get(member, "strides")));
        ck_assert_str_ne(json_string_value(json_object_get(member, "dtype")), "?");
    }
    json_array_foreach (calls, i, member) {
        const char *kind = json_string_value(json_object_get(member, "kind"));
        ncalls += strcmp(kind, "call") == 0;
        nregions += strcmp(kind, "region") == 0;
        grads += strcmp(kind, "set_grad") == 0;
        if (strcmp(kind, "call") == 0)
            ck_assert(strstr(json_string_value(json_object_get(member, "site")), "+0x"));
        json_array_foreach (json_object_get(member, "args"), k, arg) {
            const json_t *value = json_object_get(arg, "value");
            if (strcmp(json_string_value(json_object_get(arg, "kind")), "tensor") == 0)
                ck_assert(json_is_integer(value) && json_integer_value(value) < n);
            const char *role = json_string_value(json_object_get(arg, "role"));
            seeds += role && strcmp(role, "seed") == 0;
            infinite += json_is_string(value) && strcmp(json_string_value(value), "-inf") == 0;
            written_args += json_is_true(json_object_get(arg, "written"));
        }
    }
    ck_assert_int_eq(ncalls, info.calls);
    ck_assert_int_eq(nregions, info.regions);
    ck_assert_int_ge(seeds, 1);
    ck_assert_int_ge(infinite, 1);
    ck_assert_int_eq(written_args, 1); /* the list of scale */
    ck_assert_int_eq(grads, 1);
    json_decref(root);
    free(text);
    ts_graph_free(graph);
}

TS_TEST(failing_streams_and_wrong_arguments_are_errors)
{
    TS_SCOPE;
    ts_graph *graph = record();
    FAILS(TS_ERR_NULL, ts_graph_write(NULL, stdout, TS_GRAPH_TEXT));
    FAILS(TS_ERR_NULL, ts_graph_write(graph, NULL, TS_GRAPH_TEXT));
    FAILS(TS_ERR_VALUE, ts_graph_write(graph, stdout, (ts_graph_format)7));
    FILE *full = fopen("/dev/full", "w");
    if (full) {
        for (int format = TS_GRAPH_TEXT; format <= TS_GRAPH_JSON; format++)
            FAILS(TS_ERR_IO, ts_graph_write(graph, full, (ts_graph_format)format));
        fclose(full);
    }
    ts_graph_free(graph);
}
