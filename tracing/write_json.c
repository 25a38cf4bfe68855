/** @file write_json.c  Writes a whole graph as JSON; docs/tracing.md documents the format. */
// SPDX-License-Identifier: MIT
#include "tracing/graph.h"

#include <jansson.h>
#include <math.h>

static json_t *ints(const int64_t *list, uint32_t n)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < n; i++)
        if (json_array_append_new(a, json_integer(list[i])) != 0) {
            json_decref(a);
            return NULL;
        }
    return a;
}

/** JSON has no NaN and no infinities; they are written as strings. */
static json_t *number(double d)
{
    return isnan(d)   ? json_string("nan")
           : isinf(d) ? json_string(d > 0 ? "inf" : "-inf")
                      : json_real(d);
}

static json_t *id_json(ts_id id) { return id ? json_integer(ts_id_index(id)) : json_null(); }

static json_t *ids(const int64_t *list, uint32_t n)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < n; i++)
        if (json_array_append_new(a, id_json((ts_id)list[i])) != 0) {
            json_decref(a);
            return NULL;
        }
    return a;
}

static json_t *value_json(const ts_graph *g, uint32_t i)
{
    static const char *const sources[] = {"input", "capture", "result"};
    const ts_graph_value *v = ts_graph_value_at(g, ts_id_make(g, i));
    const int64_t *sizes = ts_graph_ints_at(g, v->ints);
    return json_pack("{s:i, s:s, s:i, s:o, s:o, s:s, s:s, s:i, s:I, s:b}", "id", (int)i, "source",
                     sources[v->source], "slot", (int)v->slot, "sizes", ints(sizes, v->ndim),
                     "strides", ints(sizes + v->ndim, v->ndim), "dtype",
                     ts_dtype_name((ts_dtype)v->dtype), "device", ts_device_name(v->device),
                     "storage", (int)v->storage, "offset", (json_int_t)v->offset, "requires_grad",
                     v->requires_grad != 0);
}

static json_t *arg_value(const ts_graph *g, const ts_graph_arg *a)
{
    switch (a->tag) {
    case TS_TAG_BOOL: return json_boolean(a->i);
    case TS_TAG_INT: return json_integer(a->i);
    case TS_TAG_FLOAT: return number(a->d);
    case TS_TAG_TENSOR: return id_json(a->id);
    case TS_TAG_TENSORS: return ids(ts_graph_ints_at(g, a->at), a->count);
    case TS_TAG_INTS: return ints(ts_graph_ints_at(g, a->at), a->count);
    case TS_TAG_DTYPE: return json_string(ts_dtype_name((ts_dtype)a->i));
    case TS_TAG_DEVICE: return json_string(ts_device_name(a->device));
    case TS_TAG_STRING: return json_string(ts_graph_text_at(g, a->at));
    default: return json_null();
    }
}

static json_t *arg_json(const ts_graph *g, const ts_graph_node *n, int i)
{
    static const char *const kinds[] = {
        [TS_TAG_NONE] = "none",    [TS_TAG_BOOL] = "bool",     [TS_TAG_INT] = "int",
        [TS_TAG_FLOAT] = "float",  [TS_TAG_TENSOR] = "tensor", [TS_TAG_TENSORS] = "tensors",
        [TS_TAG_INTS] = "ints",    [TS_TAG_DTYPE] = "dtype",   [TS_TAG_DEVICE] = "device",
        [TS_TAG_STRING] = "string"};
    static const char *const roles[] = {"plain", "seed", "offset"};
    const ts_graph_arg *a = ts_graph_args_of(g, n) + i;
    const ts_param *p = n->op == TS_OP_NONE ? NULL : &ts_ops[n->op].schema.args[i];
    json_t *o = json_pack("{s:s, s:o}", "kind", kinds[a->tag], "value", arg_value(g, a));
    if (o && p && (json_object_set_new(o, "name", json_string(p->name)) != 0 ||
                   (p->written && json_object_set_new(o, "written", json_true()) != 0))) {
        json_decref(o);
        return NULL;
    }
    if (o && a->role && json_object_set_new(o, "role", json_string(roles[a->role])) != 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static json_t *args_json(const ts_graph *g, const ts_graph_node *n)
{
    json_t *a = json_array();
    for (int i = 0; i < n->nargs; i++)
        if (json_array_append_new(a, arg_json(g, n, i)) != 0) {
            json_decref(a);
            return NULL;
        }
    return a;
}

static json_t *node_json(const ts_graph *g, uint32_t i)
{
    static const char *const kinds[] = {"call", "region", "constant", "alias", "get_grad",
                                        "set_grad"};
    const ts_graph_node *n = ts_graph_node_at(g, i);
    char site[256];
    ts_format_site(site, sizeof site, n->site);
    json_t *o = json_pack(
        "{s:s, s:s, s:o, s:o, s:i, s:i, s:o, s:b, s:b, s:b, s:s}", "kind", kinds[n->kind], "name",
        ts_graph_node_name(g, n), "args", args_json(g, n), "results",
        ids((const int64_t *)n->rets, n->nrets), "want", n->want, "given", n->given, "parent",
        n->parent ? json_integer(n->parent - 1) : json_null(), "inserted",
        (n->flags & TS_NODE_INSERTED) != 0, "autocast", (n->flags & TS_NODE_AUTOCAST) != 0,
        "no_grad", (n->flags & TS_NODE_NO_GRAD) != 0, "site", site);
    bool ok = o != NULL;
    if (ok && n->kind == TS_NODE_REGION)
        ok = json_object_set_new(o, "end", json_integer(n->end)) == 0;
    if (ok && (n->flags & TS_NODE_RANDOM)) {
        json_t *rng =
            json_pack("{s:b, s:I, s:I}", "absolute", (n->flags & TS_NODE_RNG_ABSOLUTE) != 0, "seed",
                      (json_int_t)n->rng.seed, "offset", (json_int_t)n->rng.offset);
        ok = json_object_set_new(o, "rng", rng) == 0;
    }
    if (!ok)
        json_decref(o);
    return ok ? o : NULL;
}

static json_t *list(const ts_graph *g, uint32_t n, json_t *(*member)(const ts_graph *g, uint32_t i))
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < n; i++)
        if (json_array_append_new(a, member(g, i)) != 0) {
            json_decref(a);
            return NULL;
        }
    return a;
}

ts_status ts_graph_write_json(const ts_graph *g, FILE *out)
{
    json_t *root = json_pack(
        "{s:i, s:b, s:s, s:o, s:o, s:o, s:o}", "version", 1, "complete", !g->reason, "reason",
        g->reason ? g->reason : "", "inputs", ids(g->inputs.data, g->inputs.count), "outputs",
        ids(g->outputs.data, g->outputs.count), "tensors", list(g, g->values.count, value_json),
        "calls", list(g, g->nodes.count, node_json));
    if (!root)
        return ts_error_memory("a graph as JSON", (int64_t)(g->nodes.count * 1024));
    bool ok = json_dumpf(root, out, JSON_INDENT(1)) == 0 && fputc('\n', out) != EOF;
    json_decref(root);
    return ok ? TS_OK : ts_error_set(TS_ERR_IO, "graph_write: the stream refused a write");
}
