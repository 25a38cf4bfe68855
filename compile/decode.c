/** @file decode.c  Decodes the stream of words that lazy.c records into a graph. */
// SPDX-License-Identifier: MIT
#include "compile/plan.h"

typedef struct reader {
    const uint64_t *words;
    uint32_t at, count; /* index of the next word; number of words */
    uint32_t numbers;   /* how many of the recording's numbers the calls read so far use */
    ts_graph *graph;
    ts_array storages;
} reader;

static uint64_t next(reader *r) { return r->words[r->at++]; }

static bool read_storage(reader *r, uint64_t head)
{
    uint32_t at;
    if (!ts_array_reserve(&r->storages, 1, sizeof(ts_plan_storage)))
        return false;
    bool outside = head >> 8 & 1;
    *TS_PUSH(r->storages, ts_plan_storage) =
        (ts_plan_storage){.bytes = (int64_t)next(r), .outside = outside,
                          .device = {(uint8_t)(head >> 16), (uint8_t)(head >> 24)},
                          .first = UINT32_MAX, .last = UINT32_MAX};
    return ts_graph_add_storage(r->graph, outside ? TS_SOURCE_CAPTURE : TS_SOURCE_RESULT, 0, &at);
}

static bool read_value(reader *r, uint64_t head)
{
    ts_id id;
    uint32_t storage = (uint32_t)(head >> 32);
    const ts_plan_storage *s = (const ts_plan_storage *)r->storages.data + storage;
    ts_storage none = {.device = s->device};
    ts_tensor t = {.storage = &none};
    t.dtype = (uint8_t)(head >> 8);
    t.ndim = (uint8_t)(head >> 16);
    int64_t offset = (int64_t)next(r);
    for (int d = 0; d < t.ndim; d++)
        t.sizes[d] = (int64_t)next(r);
    for (int d = 0; d < t.ndim; d++)
        t.strides[d] = (int64_t)next(r);
    if (!ts_graph_add_value(r->graph, &t, s->outside ? TS_SOURCE_CAPTURE : TS_SOURCE_RESULT, 0,
                            storage, &id))
        return false;
    ts_graph_value_at(r->graph, id)->offset = offset;
    return true;
}

static bool read_list(reader *r, ts_graph_arg *a, bool ids)
{
    uint32_t n = a->count, ignored;
    a->at = r->graph->ints.count;
    for (uint32_t k = 0; k < n; k++) {
        int64_t word = (int64_t)next(r);
        if (ids)
            word = (int64_t)ts_id_make(r->graph, (uint32_t)word);
        if (!ts_graph_add_ints(r->graph, &word, 1, &ignored))
            return false;
    }
    return true;
}

static bool read_arg(reader *r, ts_graph_arg *a)
{
    uint64_t head = next(r);
    *a = (ts_graph_arg){.tag = (uint8_t)head, .role = (uint8_t)(head >> 8),
                        .count = (uint32_t)(head >> 32)};
    bool number = a->role == TS_ROLE_VALUE;
    switch (a->tag) {
    case TS_TAG_NONE: return true;
    case TS_TAG_TENSOR: a->id = ts_id_make(r->graph, (uint32_t)next(r)); return true;
    case TS_TAG_TENSORS: return read_list(r, a, true);
    case TS_TAG_STRING: {
        uint32_t words = (a->count + 7) / 8;
        bool ok = ts_graph_add_text(r->graph, (const char *)(r->words + r->at), &a->at);
        r->at += words;
        return ok;
    }
    case TS_TAG_INTS:
        if (!number)
            return read_list(r, a, false);
        a->at = r->numbers;
        r->numbers += a->count;
        return true;
    case TS_TAG_DEVICE: {
        uint64_t word = next(r);
        a->device = (ts_device){(uint8_t)word, (uint8_t)(word >> 8)};
        return true;
    }
    default:
        if (number)
            a->at = r->numbers++;
        else
            a->i = (int64_t)next(r);
        return true;
    }
}

/** Reads a call. The node's `name` is the index of the call's record in the stream, for messages
 *  about differing streams; its `end` is the number of the call. */
static bool read_call(reader *r, uint64_t head)
{
    ts_graph_node n = {.name = r->at - 1, .op = (uint16_t)(head >> 8), .kind = TS_NODE_CALL,
                       .nargs = (uint8_t)(head >> 24), .nrets = (uint8_t)(head >> 32),
                       .want = (uint8_t)(head >> 40), .given = (uint8_t)(head >> 48),
                       .flags = head >> 56 & 1 ? TS_NODE_RANDOM : 0,
                       .end = r->graph->nodes.count};
    if (!ts_graph_add_args(r->graph, n.nargs, &n.args))
        return false;
    for (int i = 0; i < n.nargs; i++) {
        ts_graph_arg a;
        if (!read_arg(r, &a))
            return false;
        ts_graph_args_of(r->graph, &n)[i] = a;
    }
    for (int i = 0; i < n.nrets; i++) {
        uint64_t value = next(r);
        n.rets[i] = value ? ts_id_make(r->graph, (uint32_t)value - 1) : 0;
        if (value)
            ts_graph_value_at(r->graph, n.rets[i])->slot = r->graph->nodes.count;
    }
    if (n.flags & TS_NODE_RANDOM) {
        n.rng.offset = r->numbers; /* index of seed and offset */
        r->numbers += 2;
    }
    return ts_graph_add_node(r->graph, &n, NULL);
}

static bool read_words(reader *r)
{
    bool ok = true;
    while (ok && r->at < r->count) {
        uint64_t head = next(r);
        switch ((enum ts_word)(head & 0xff)) {
        case TS_WORD_STORAGE: ok = read_storage(r, head); break;
        case TS_WORD_VALUE: ok = read_value(r, head); break;
        case TS_WORD_CALL: ok = read_call(r, head); break;
        case TS_WORD_END:
            for (uint32_t i = 0; i < r->storages.count; i += 64) {
                uint64_t bits = next(r);
                for (uint32_t k = i; k < i + 64 && k < r->storages.count; k++)
                    ((ts_plan_storage *)r->storages.data)[k].held = bits >> (k - i) & 1;
            }
        }
    }
    return ok;
}

bool ts_plan_decode(const uint64_t *words, uint32_t count, ts_graph *graph, ts_array *storages)
{
    reader r = {.words = words, .count = count, .graph = graph};
    bool ok = read_words(&r);
    *storages = r.storages;
    if (ok)
        ts_graph_finish(graph);
    return ok;
}

uint32_t ts_plan_next_draw(const ts_exec *e, uint32_t call)
{
    ts_graph *g = ts_graph_new();
    ts_array storages = {0};
    uint32_t at = UINT32_MAX;
    bool ok = g && ts_plan_decode(e->words, e->nwords, g, &storages);
    for (uint32_t i = call + 1; ok && i < g->nodes.count && at == UINT32_MAX; i++)
        if (ts_graph_node_at(g, i)->flags & TS_NODE_RANDOM)
            at = (uint32_t)ts_graph_node_at(g, i)->rng.offset;
    ts_array_free(&storages, sizeof(ts_plan_storage));
    ts_graph_free(g);
    return at;
}
