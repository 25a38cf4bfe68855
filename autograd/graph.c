/** @file graph.c  Inspects a recorded graph: names of nodes, edges, text and DOT output. */
// SPDX-License-Identifier: MIT
#include "autograd/function.h"
#include "include/tessera/check.h"

#include <inttypes.h>
#include <string.h>

ts_node *ts_grad_node(ts_tensor *t)
{
    return t && ts_requires_grad(t) ? ts_gradient_node(t) : NULL;
}

const char *ts_node_name(const ts_node *n)
{
    if (!n)
        return "?";
    return n->op == TS_NODE_LEAF       ? "leaf"
           : n->op == TS_NODE_FUNCTION ? ts_function_of(n)->fn.name
                                       : ts_op_name(n->op);
}

int ts_node_inputs(const ts_node *n) { return n ? (int)n->ninputs : 0; }
int ts_node_outputs(const ts_node *n) { return n ? n->nrets : 0; }
ts_tensor *ts_node_leaf(const ts_node *n) { return n && n->op == TS_NODE_LEAF ? n->leaf : NULL; }
ts_node *ts_node_retain(ts_node *n) { return n ? ts_node_ref(n) : NULL; }
void ts_node_release(ts_node *n)
{
    if (n)
        ts_node_unref(n);
}

ts_node *ts_node_next(const ts_node *n, int i, int *output)
{
    if (!n || i < 0 || (uint32_t)i >= n->ninputs || !n->inputs[i].next)
        return NULL;
    if (output)
        *output = n->inputs[i].shape.output;
    return n->inputs[i].next;
}

const char *ts_shape_text(char *buffer, size_t size, const int64_t *sizes, int ndim, int dtype)
{
    size_t used = strlen(ts_format_sizes(buffer, size, sizes, ndim));
    snprintf(buffer + used, size - used, " %s", ts_dtype_name((ts_dtype)dtype));
    return buffer;
}

int ts_node_describe(const ts_node *n, char *buffer, size_t size)
{
    size = buffer ? size : 0; /* only the length is requested */
    if (!n || n->op == TS_NODE_LEAF) {
        const ts_tensor *t = ts_node_leaf(n);
        if (!t)
            return snprintf(buffer, size, n ? "leaf (freed)" : "?");
        return snprintf(buffer, size, "leaf %s", TS_SHAPE_TEXT(t));
    }
    enum { SHOWN = 4 }; /* members of a list that a description shows */
    ts_value args[TS_MAX_ARGS];
    ts_tensor *lists[TS_MAX_ARGS][SHOWN];
    ts_tensor tensors[TS_MAX_ARGS][SHOWN]; /* headers only; on the stack, because a description may
                                              follow a failed allocation */
    for (int i = 0; i < n->nargs; i++) {
        const ts_end *in;
        for (uint32_t k = 0; k < SHOWN && (in = ts_node_input(n, i, k)); k++) {
            ts_tensor *t = lists[i][k] = &tensors[i][k];
            t->keys = TS_KEYSET(in->shape.device.backend);
            t->kind = in->shape.kind;
            memcpy(t->sizes, in->shape.sizes, sizeof t->sizes);
        }
        args[i] = n->args[i];
        if (args[i].tag == TS_TAG_TENSOR)
            args[i].t = lists[i][0];
        else if (args[i].tag == TS_TAG_TENSORS)
            args[i].list = lists[i];
    }
    return ts_call_describe(ts_node_name(n), args, n->nargs, buffer, size);
}

/* --------------------------------------------------------------------------------- print ---- */

typedef struct printer {
    FILE *out;
    ts_autograd_format format;
} printer;

/** A description is at most this long; calls with long lists of numbers are cut. */
enum { LINE = 512 };

static ts_status print_node(ts_run *walk, ts_node *n, uint32_t number, void *ctx)
{
    const printer *p = ctx;
    bool dot = p->format == TS_AUTOGRAD_DOT;
    char text[LINE], line[LINE];
    ts_node_describe(n, text, sizeof text);
    ts_escape(line, sizeof line, text, false);
    fprintf(p->out, dot ? "  n%" PRIu32 " [label=\"" : "%4" PRIu32 "  ", number);
    for (const char *c = line; *c; c++)
        fprintf(p->out, dot && (*c == '"' || *c == '\\') ? "\\%c" : "%c", *c);
    if (dot)
        fprintf(p->out, "\"%s];\n", n->op == TS_NODE_LEAF ? ", shape=box" : "");
    const char *before = "  -> ";
    for (const ts_end *in = n->inputs; in < n->inputs + n->ninputs; in++) {
        if (!in->next)
            continue;
        const ts_task *task = ts_run_schedule(walk, in->next);
        TS_TRY(task);
        uint32_t next = (uint32_t)(task - walk->tasks);
        if (dot) {
            fprintf(p->out, "  n%" PRIu32 " -> n%" PRIu32 ";\n", number, next);
            continue;
        }
        fprintf(p->out, "%s%" PRIu32, before, next);
        if (in->next->nrets > 1)
            fprintf(p->out, ":%d", in->shape.output);
        before = ", ";
    }
    if (!dot)
        fputc('\n', p->out);
    return TS_OK;
}

ts_status ts_autograd_write(ts_tensor *t, FILE *out, ts_autograd_format format)
{
    const void *site = __builtin_return_address(0);
    TS_TRY(TS_CHECK_TENSORS(t));
    TS_TRY(TS_CHECK_POINTERS(out));
    TS_TRY(TS_CHECK_VALUE(format, format == TS_AUTOGRAD_TEXT || format == TS_AUTOGRAD_DOT,
                          "TS_AUTOGRAD_TEXT or TS_AUTOGRAD_DOT"));
    if (!ts_requires_grad(t))
        return ts_fail_op(TS_ERR_AUTOGRAD, "autograd_write", site,
                          "make a leaf it depends on with ts_set_requires_grad()",
                          "argument 't': expected a tensor that requires grad");
    ts_node *root = ts_gradient_node(t);
    TS_TRY(root);
    printer p = {out, format};
    if (format == TS_AUTOGRAD_DOT)
        fputs("digraph graph {\n  rankdir=TB;\n  node [shape=ellipse];\n", out);
    TS_TRY(ts_engine_walk(root, print_node, &p));
    if (format == TS_AUTOGRAD_DOT)
        fputs("}\n", out);
    if (ferror(out))
        return ts_fail_op(TS_ERR_IO, "autograd_write", site, NULL, "writing failed");
    return TS_OK;
}
