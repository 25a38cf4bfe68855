/** @file flow.c  Minimum cuts of random networks, compared with the least of all cuts. */
// SPDX-License-Identifier: MIT
#include "compile/flow.h"
#include "tests/expect.h"
#include "tests/harness.h"

#include <stdlib.h>

enum { MOST = 12 /* vertices */, SOURCE = 0, SINK = 1 };

typedef struct network {
    int vertices;
    int64_t capacity[MOST][MOST]; /* 0: no edge */
} network;

static uint32_t below(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33) % n;
}

/** Sum of the capacities of the edges that leave a set of vertices (bit v: vertex v). */
static int64_t leaving(const network *n, uint32_t set)
{
    int64_t sum = 0;
    for (int a = 0; a < n->vertices; a++)
        for (int b = 0; b < n->vertices; b++)
            if ((set >> a & 1) && !(set >> b & 1) && sum < TS_FLOW_UNLIMITED)
                sum += n->capacity[a][b];
    return sum < TS_FLOW_UNLIMITED ? sum : TS_FLOW_UNLIMITED;
}

TS_TEST(a_cut_is_the_least_of_all_cuts)
{
    uint64_t state = 7;
    for (int turn = 0; turn < 2000; turn++) {
        network n = {.vertices = 2 + (int)below(&state, MOST - 1)};
        uint32_t density = 1 + below(&state, 6), most = below(&state, 2) ? 3 : 1000;
        ts_flow f;
        ck_assert(ts_flow_begin(&f, (uint32_t)n.vertices));
        for (int a = 0; a < n.vertices; a++)
            for (int b = 0; b < n.vertices; b++) {
                if (a == b || below(&state, density))
                    continue;
                n.capacity[a][b] = below(&state, 9) ? below(&state, most) : TS_FLOW_UNLIMITED;
                ck_assert(ts_flow_add(&f, (uint32_t)a, (uint32_t)b, n.capacity[a][b]));
            }
        int64_t least = INT64_MAX, found;
        uint32_t smallest = 0;
        for (uint32_t set = 0; set < 1u << n.vertices; set++) {
            int64_t sum = leaving(&n, set);
            if (!(set >> SOURCE & 1) || (set >> SINK & 1))
                continue;
            if (sum < least || (sum == least && __builtin_popcount(set) <
                                                    __builtin_popcount(smallest))) {
                least = sum;
                smallest = set;
            }
        }
        bool reached[MOST];
        uint32_t set = 0;
        ck_assert(ts_flow_cut(&f, SOURCE, SINK, reached, &found));
        for (int v = 0; v < n.vertices; v++)
            set |= (uint32_t)reached[v] << v;
        if (least >= TS_FLOW_UNLIMITED) {
            ck_assert_int_ge(found, TS_FLOW_UNLIMITED);
        } else {
            ck_assert_int_eq(found, least);
            ck_assert_uint_eq(set, smallest);
        }
        ts_flow_free(&f);
    }
}

/* A chain of 100,000 vertices: the search does not recurse. */
TS_TEST(a_long_chain_has_the_cut_of_its_least_edge)
{
    enum { LENGTH = 100000 };
    ts_flow f;
    int64_t found;
    bool *reached = malloc(LENGTH);
    ck_assert(ts_flow_begin(&f, LENGTH));
    for (uint32_t v = 0; v + 1 < LENGTH; v++)
        ck_assert(ts_flow_add(&f, v, v + 1, v == LENGTH / 2 ? 5 : 6));
    ck_assert(ts_flow_cut(&f, 0, LENGTH - 1, reached, &found));
    ck_assert_int_eq(found, 5);
    ck_assert(reached[LENGTH / 2] && !reached[LENGTH / 2 + 1]);
    ts_flow_free(&f);
    free(reached);
}
