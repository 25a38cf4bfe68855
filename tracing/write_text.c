/** @file write_text.c  Writes a graph as readable text, one line per call. */
// SPDX-License-Identifier: MIT
#include "include/tessera/check.h"
#include "include/tessera/program.h"
#include "tracing/graph.h"

#include <string.h>

/* --------------------------------------------------------------------------------- parts ---- */

static void put_id(FILE *out, ts_id id)
{
    if (id)
        fprintf(out, "%%%u", ts_id_index(id));
    else
        fputs("none", out);
}

static void put_shape(FILE *out, const ts_graph *g, ts_id id)
{
    char sizes[192];
    const ts_graph_value *v = ts_graph_value_at(g, id);
    fprintf(out, "%s %s",
            ts_format_sizes(sizes, sizeof sizes, ts_graph_ints_at(g, v->ints), v->ndim),
            ts_dtype_name((ts_dtype)v->dtype));
    if (v->device.backend != TS_DEVICE_CPU.backend)
        fprintf(out, " %s", ts_device_name(v->device));
}

static void put_ints(FILE *out, const int64_t *ints, uint32_t n)
{
    fputc('(', out);
    for (uint32_t i = 0; i < n; i++)
        fprintf(out, "%s%lld", i ? ", " : "", (long long)ints[i]);
    fputc(')', out);
}

static void put_arg(FILE *out, const ts_graph *g, const ts_graph_arg *a, bool written)
{
    switch (a->tag) {
    case TS_TAG_BOOL: fputs(a->i ? "true" : "false", out); break;
    case TS_TAG_INT:
        fprintf(out,
                a->role == TS_ROLE_SEED     ? "seed"
                : a->role == TS_ROLE_OFFSET ? "draw+%lld"
                                            : "%lld",
                (long long)a->i);
        break;
    case TS_TAG_FLOAT: fprintf(out, "%.9g", a->d); break;
    case TS_TAG_TENSOR:
        put_id(out, a->id);
        fputs(written ? "!" : "", out);
        break;
    case TS_TAG_TENSORS:
        fputc('[', out);
        for (uint32_t k = 0; k < a->count; k++) {
            fputs(k ? ", " : "", out);
            put_id(out, (ts_id)ts_graph_ints_at(g, a->at)[k]);
            fputs(written ? "!" : "", out);
        }
        fputc(']', out);
        break;
    case TS_TAG_INTS: put_ints(out, ts_graph_ints_at(g, a->at), a->count); break;
    case TS_TAG_DTYPE: fputs(ts_dtype_name((ts_dtype)a->i), out); break;
    case TS_TAG_DEVICE: fputs(ts_device_name(a->device), out); break;
    case TS_TAG_STRING: {
        char text[512];
        fprintf(out, "'%s'", ts_escape(text, sizeof text, ts_graph_text_at(g, a->at), false));
        break;
    }
    default: fputs("none", out);
    }
}

/** "%5 (2, 3) f32, %6 (2) f32 = " or "%5! = ". */
static void put_rets(FILE *out, const ts_graph *g, const ts_graph_node *n)
{
    int last = -1;
    for (int i = 0; i < n->nrets; i++)
        last = n->rets[i] ? i : last;
    for (int i = 0; i <= last; i++) {
        fputs(i ? ", " : "", out);
        put_id(out, n->rets[i]);
        if (n->given >> i & 1) {
            fputc('!', out);
        } else if (n->rets[i]) {
            fputc(' ', out);
            put_shape(out, g, n->rets[i]);
        }
    }
    fputs(last < 0 ? "" : " = ", out);
}

static void put_call(FILE *out, const ts_graph *g, const ts_graph_node *n)
{
    const ts_graph_arg *args = ts_graph_args_of(g, n);
    put_rets(out, g, n);
    fprintf(out, "%s(", ts_graph_node_name(g, n));
    for (int i = 0; i < n->nargs; i++) {
        fputs(i ? ", " : "", out);
        put_arg(out, g, &args[i], n->op != TS_OP_NONE && ts_ops[n->op].schema.args[i].written);
    }
    fputc(')', out);
}

void ts_graph_write_node(const ts_graph *g, const ts_graph_node *n, FILE *out)
{
    const ts_graph_arg *args = ts_graph_args_of(g, n);
    switch ((ts_node_kind)n->kind) {
    case TS_NODE_CALL:
    case TS_NODE_CONSTANT:
    case TS_NODE_ALIAS: put_call(out, g, n); break;
    case TS_NODE_REGION:
        if (n->op == TS_OP_NONE)
            fputs(ts_graph_node_name(g, n), out);
        else
            put_call(out, g, n);
        break;
    case TS_NODE_GET_GRAD:
        put_rets(out, g, n);
        put_id(out, args[0].id);
        fputs(".grad", out);
        break;
    case TS_NODE_SET_GRAD:
        put_id(out, args[0].id);
        fputs(".grad = ", out);
        put_arg(out, g, &args[1], false);
    }
}

/* --------------------------------------------------------------------------------- whole ---- */

static void put_outside(FILE *out, const ts_graph *g)
{
    static const char *const names[] = {
        [TS_SOURCE_INPUT] = "input", [TS_SOURCE_CAPTURE] = "captured"};
    for (int source = TS_SOURCE_INPUT; source <= TS_SOURCE_CAPTURE; source++)
        for (uint32_t i = 0; i < g->values.count; i++) {
            ts_id id = ts_id_make(g, i);
            const ts_graph_value *v = ts_graph_value_at(g, id);
            if (v->source != source)
                continue;
            fputs("  ", out);
            put_id(out, id);
            fputc(' ', out);
            put_shape(out, g, id);
            fprintf(out, " = %s %u%s\n", names[source], v->slot,
                    v->requires_grad ? "  ; requires grad" : "");
        }
}

static ts_status write_text(const ts_graph *g, FILE *out)
{
    ts_graph_info info = ts_graph_get_info(g);
    char site[256];
    fprintf(out,
            "graph: %lld inputs, %lld captured, %lld constants, %lld calls, %lld outputs%s%s\n",
            (long long)info.inputs, (long long)info.captures, (long long)info.constants,
            (long long)info.calls, (long long)info.outputs,
            info.complete ? "" : "; incomplete: ", info.reason);
    put_outside(out, g);
    int depth = 1;
    uint32_t ends[TS_MAX_DEPTH], open = 0;
    for (uint32_t i = 0; i <= g->nodes.count; i++) {
        while (open && ends[open - 1] <= i) {
            open--;
            fprintf(out, "%*s}\n", 2 * --depth, "");
        }
        if (i == g->nodes.count)
            break;
        const ts_graph_node *n = ts_graph_node_at(g, i);
        bool region = n->kind == TS_NODE_REGION;
        fprintf(out, "%*s", 2 * depth, "");
        ts_graph_write_node(g, n, out);
        fputs(region ? " {" : "", out);
        if (n->site)
            fprintf(out, "  ; %s", ts_format_site(site, sizeof site, n->site));
        if (n->flags & (TS_NODE_INSERTED | TS_NODE_AUTOCAST))
            fprintf(out, "%s inserted by %s", n->site ? "," : "  ;",
                    n->flags & TS_NODE_AUTOCAST ? "AUTOCAST" : "a layer above");
        if (n->flags & TS_NODE_RANDOM)
            fprintf(out,
                    n->flags & TS_NODE_RNG_ABSOLUTE ? ", draws at %llu of another seed"
                                                    : ", draw+%llu",
                    (unsigned long long)n->rng.offset);
        fputc('\n', out);
        if (region && open < TS_MAX_DEPTH) {
            ends[open++] = n->end;
            depth++;
        }
    }
    fputs("  return (", out);
    for (uint32_t i = 0; i < g->outputs.count; i++) {
        fputs(i ? ", " : "", out);
        put_id(out, ts_graph_id_at(&g->outputs, i));
    }
    fputs(")\n", out);
    return TS_OK;
}

ts_status ts_graph_write(const ts_graph *graph, FILE *out, ts_graph_format format)
{
    const ts_graph *g = graph;
    TS_TRY(TS_CHECK_OBJECTS(graph));
    TS_TRY(TS_CHECK_POINTERS(out));
    TS_C_LOCALE;
    ts_status status = TS_OK;
    switch (format) {
    case TS_GRAPH_TEXT: status = write_text(g, out); break;
    case TS_GRAPH_DOT: status = ts_graph_write_dot(g, out); break;
    case TS_GRAPH_JSON: status = ts_graph_write_json(g, out); break;
    default:
        return ts_error_set(TS_ERR_VALUE,
                            "graph_write: argument 'format': expected a ts_graph_format, got %d",
                            (int)format);
    }
    if (status == TS_OK && (fflush(out) != 0 || ferror(out)))
        return ts_error_set(TS_ERR_IO, "graph_write: the stream refused a write");
    return status;
}
