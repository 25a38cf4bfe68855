/** @file flow.c  Dinic's algorithm: breadth-first levels, then a blocking flow along them. */
// SPDX-License-Identifier: MIT
#include "compile/flow.h"

#include <string.h>

typedef struct edge {
    uint32_t to, next; /* next: index + 1 of the next edge from the same vertex; 0: none */
    int64_t residual;  /* residual capacity */
} edge;

/** State of the search. */
typedef struct search {
    ts_flow *flow;
    uint32_t *level; /* per vertex: 1 + its distance from the source; 0: not reached */
    uint32_t *at;    /* per vertex: index + 1 of the edge to try next; 0: none left */
    uint32_t *path;  /* fill_paths(): edges of the current path; find_levels(): queue of vertices */
} search;

static edge *edge_at(const ts_flow *f, uint32_t i) { return (edge *)f->edges.data + i; }

bool ts_flow_begin(ts_flow *f, uint32_t vertices)
{
    size_t bytes = (vertices + 1) * sizeof *f->first;
    *f = (ts_flow){.vertices = vertices, .first = ts_alloc(ts_thread_self(), bytes)};
    if (f->first)
        memset(f->first, 0, bytes);
    return f->first != NULL;
}

bool ts_flow_add(ts_flow *f, uint32_t from, uint32_t to, int64_t capacity)
{
    if (!ts_array_reserve(&f->edges, 2, sizeof(edge)))
        return false;
    *TS_PUSH(f->edges, edge) = (edge){to, f->first[from], capacity};
    f->first[from] = f->edges.count;
    *TS_PUSH(f->edges, edge) = (edge){from, f->first[to], 0};
    f->first[to] = f->edges.count;
    return true;
}

/** Sets the levels of the vertices that edges with residual capacity connect to the source; level 0
 *  for the others. */
static void find_levels(const search *s, uint32_t source)
{
    const ts_flow *f = s->flow;
    uint32_t count = 1;
    memset(s->level, 0, f->vertices * sizeof *s->level);
    s->level[source] = 1;
    s->path[0] = source;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = f->first[s->path[i]]; k; k = edge_at(f, k - 1)->next) {
            const edge *e = edge_at(f, k - 1);
            if (!e->residual || s->level[e->to])
                continue;
            s->level[e->to] = s->level[s->path[i]] + 1;
            s->path[count++] = e->to;
        }
}

/** Pushes as much flow as possible along the path of n edges to the sink and adds it to *flow.
 *  Returns the index in the path of the first edge without residual capacity. */
static uint32_t push(const search *s, uint32_t n, int64_t *flow)
{
    int64_t most = INT64_MAX;
    uint32_t full = 0;
    for (uint32_t i = 0; i < n; i++)
        if (edge_at(s->flow, s->path[i])->residual < most)
            most = edge_at(s->flow, s->path[i])->residual;
    for (uint32_t i = n; i-- > 0;) {
        edge_at(s->flow, s->path[i])->residual -= most;
        edge_at(s->flow, s->path[i] ^ 1)->residual += most;
        full = edge_at(s->flow, s->path[i])->residual ? full : i;
    }
    *flow += most;
    return full;
}

/** Finds a blocking flow: fills all shortest paths from source to sink. Returns the flow; stops
 *  early if it reaches TS_FLOW_UNLIMITED. */
static int64_t fill_paths(const search *s, uint32_t source, uint32_t sink)
{
    const ts_flow *f = s->flow;
    int64_t flow = 0;
    uint32_t n = 0, v = source;
    memcpy(s->at, f->first, f->vertices * sizeof *s->at);
    while (flow < TS_FLOW_UNLIMITED) {
        if (v == sink) {
            n = push(s, n, &flow);
            v = edge_at(f, s->path[n] ^ 1)->to;
            continue;
        }
        uint32_t k = s->at[v];
        while (k &&
               (!edge_at(f, k - 1)->residual || s->level[edge_at(f, k - 1)->to] != s->level[v] + 1))
            k = edge_at(f, k - 1)->next;
        s->at[v] = k;
        if (k) {
            s->path[n++] = k - 1;
            v = edge_at(f, k - 1)->to;
        } else if (v == source) {
            break;
        } else { /* a dead end */
            s->level[v] = 0;
            v = edge_at(f, s->path[--n] ^ 1)->to;
        }
    }
    return flow;
}

bool ts_flow_cut(ts_flow *f, uint32_t source, uint32_t sink, bool *reached, int64_t *capacity)
{
    size_t bytes = 3 * (size_t)f->vertices * sizeof(uint32_t);
    uint32_t *block = ts_alloc(ts_thread_self(), bytes);
    if (!block)
        return false;
    search s = {f, block, block + f->vertices, block + 2 * (size_t)f->vertices};
    *capacity = 0;
    for (;;) {
        find_levels(&s, source);
        if (!s.level[sink] || *capacity >= TS_FLOW_UNLIMITED)
            break;
        *capacity += fill_paths(&s, source, sink);
    }
    for (uint32_t v = 0; v < f->vertices; v++)
        reached[v] = s.level[v] != 0;
    ts_free(ts_thread_self(), block, bytes);
    return true;
}

void ts_flow_free(ts_flow *f)
{
    if (f->first)
        ts_free(ts_thread_self(), f->first, (f->vertices + 1) * sizeof *f->first);
    f->first = NULL;
    ts_array_free(&f->edges, sizeof(edge));
}
