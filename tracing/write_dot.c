/**
 * @file write_dot.c  Writes a graph for Graphviz. Boxes are calls, edges are tensors from the call
 * that made or last wrote them, clusters are regions with their parts.
 */
// SPDX-License-Identifier: MIT
#include "tracing/graph.h"

#include <string.h>

/** Writes a quoted DOT string. */
static void put_quoted(FILE *out, const char *text)
{
    char shown[2048];
    fputc('"', out);
    for (text = ts_escape(shown, sizeof shown, text, true); *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        if (*text == '\n')
            fputs("\\n", out);
        else
            fputc(*text, out);
    }
    fputc('"', out);
}

static void describe(char *buffer, size_t size, const ts_graph *g, ts_id id)
{
    char sizes[192];
    const ts_graph_value *v = ts_graph_value_at(g, id);
    snprintf(buffer, size, "%s %s",
             ts_format_sizes(sizes, sizeof sizes, ts_graph_ints_at(g, v->ints), v->ndim),
             ts_dtype_name((ts_dtype)v->dtype));
}

typedef struct arrows {
    FILE *out;
    const ts_graph *graph;
    uint32_t node;
    const uint32_t *writer; /* per value: index + 1 of the node that last wrote it; 0: none */
} arrows;

static void put_from(const arrows *a, ts_id id)
{
    uint32_t writer = a->writer[ts_id_index(id)];
    if (writer)
        fprintf(a->out, "c%u", writer - 1);
    else
        fprintf(a->out, "v%u", ts_id_index(id));
}

static void put_arrow(void *ctx, int arg, ts_id id)
{
    const arrows *a = ctx;
    char text[256];
    (void)arg;
    describe(text, sizeof text, a->graph, id);
    fputs("  ", a->out);
    put_from(a, id);
    fprintf(a->out, " -> c%u [label=", a->node);
    put_quoted(a->out, text);
    fputs("];\n", a->out);
}

static void put_box(FILE *out, const ts_graph *g, const ts_graph_node *n, uint32_t i)
{
    char label[512], site[256], text[256];
    int used = snprintf(label, sizeof label, "%s", ts_graph_node_name(g, n));
    for (int k = 0; k < n->nrets; k++)
        if (n->rets[k] && used < (int)sizeof label) {
            describe(text, sizeof text, g, n->rets[k]);
            used += snprintf(label + used, sizeof label - (size_t)used, "\n%s", text);
        }
    if (n->site && used < (int)sizeof label)
        snprintf(label + used, sizeof label - (size_t)used, "\n%s",
                 ts_format_site(site, sizeof site, n->site));
    fprintf(out, "  c%u [shape=box, label=", i);
    put_quoted(out, label);
    fputs(n->flags & TS_NODE_INSERTED ? ", style=dashed];\n" : "];\n", out);
}

/** Makes n the producer of the values that n writes. */
static void note_writes(const ts_graph *g, const ts_graph_node *n, uint32_t i, uint32_t *writer)
{
    const ts_graph_arg *args = ts_graph_args_of(g, n);
    for (int k = 0; k < n->nrets; k++)
        if (n->rets[k])
            writer[ts_id_index(n->rets[k])] = i + 1;
    for (int k = 0; k < n->nargs && n->op != TS_OP_NONE; k++) {
        if (!ts_ops[n->op].schema.args[k].written)
            continue;
        if (args[k].tag == TS_TAG_TENSOR)
            writer[ts_id_index(args[k].id)] = i + 1;
        for (uint32_t m = 0; args[k].tag == TS_TAG_TENSORS && m < args[k].count; m++)
            writer[ts_id_index((ts_id)ts_graph_ints_at(g, args[k].at)[m])] = i + 1;
    }
}

static void put_outside(FILE *out, const ts_graph *g)
{
    char text[256], label[320];
    for (uint32_t i = 0; i < g->values.count; i++) {
        ts_id id = ts_id_make(g, i);
        const ts_graph_value *v = ts_graph_value_at(g, id);
        if (v->source == TS_SOURCE_RESULT)
            continue;
        describe(text, sizeof text, g, id);
        snprintf(label, sizeof label, "%s %u\n%s",
                 v->source == TS_SOURCE_INPUT ? "input" : "captured", v->slot, text);
        fprintf(out, "  v%u [shape=ellipse, label=", i);
        put_quoted(out, label);
        fputs(v->source == TS_SOURCE_INPUT ? "];\n" : ", style=dashed];\n", out);
    }
}

static void put_nodes(FILE *out, const ts_graph *g, uint32_t *writer)
{
    /* nodes are written inside clusters, edges after all clusters */
    uint32_t ends[TS_MAX_DEPTH], open = 0;
    for (uint32_t i = 0; i <= g->nodes.count; i++) {
        for (; open && ends[open - 1] <= i; open--)
            fputs("  }\n", out);
        if (i == g->nodes.count)
            break;
        const ts_graph_node *n = ts_graph_node_at(g, i);
        if (n->kind != TS_NODE_REGION) {
            put_box(out, g, n, i);
        } else if (open < TS_MAX_DEPTH) {
            fprintf(out, "  subgraph cluster_%u {\n  label=", i);
            put_quoted(out, ts_graph_node_name(g, n));
            fputs(";\n", out);
            ends[open++] = n->end;
        }
    }
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        if (n->kind == TS_NODE_REGION)
            continue;
        arrows a = {out, g, i, writer};
        ts_graph_each_arg(g, n, put_arrow, &a);
        note_writes(g, n, i, writer);
    }
    for (uint32_t i = 0; i < g->outputs.count; i++) {
        ts_id id = ts_graph_id_at(&g->outputs, i);
        fprintf(out, "  o%u [shape=ellipse, label=\"output %u\"];\n", i, i);
        if (!id)
            continue;
        fputs("  ", out);
        put_from(&(arrows){.out = out, .writer = writer}, id);
        fprintf(out, " -> o%u;\n", i);
    }
}

ts_status ts_graph_write_dot(const ts_graph *g, FILE *out)
{
    ts_thread *thread = ts_thread_self();
    size_t bytes = (g->values.count + 1) * sizeof(uint32_t);
    uint32_t *writer = ts_alloc(thread, bytes);
    if (!writer)
        return ts_error_memory("a table of writers", (int64_t)bytes);
    memset(writer, 0, bytes);
    fputs("digraph trace {\n  node [fontname=\"monospace\", fontsize=10];\n  edge [fontsize=8];\n",
          out);
    put_outside(out, g);
    put_nodes(out, g, writer);
    fputs("}\n", out);
    ts_free(thread, writer, bytes);
    return TS_OK;
}
