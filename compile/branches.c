/**
 * @file branches.c  Which steps of a graph must wait for which earlier steps.
 *
 * A step waits for an earlier one if both use a storage that one of them writes, if it is the first
 * to use bytes of the arena that the earlier one used for another storage, or if both use the same
 * scratch memory. The device may run steps at the same time if no chain of such pairs connects
 * them.
 */
// SPDX-License-Identifier: MIT
#include "compile/capture.h"

#include <string.h>

enum { MOST_STEPS = 4096 /* of a plan whose steps get an order: a bit per pair is kept */ };

/** A step that reads a storage. */
typedef struct reader {
    uint32_t step, next; /* next: index of another reader + 1; 0: none */
} reader;

/** The latest uses of a storage, or of scratch memory. */
typedef struct user {
    uint32_t writer;  /* last step that writes it, + 1; 0: none */
    uint32_t readers; /* steps that have read it since: index of the first + 1; 0: none */
} user;

typedef struct ordering {
    const ts_captured *k;
    const ts_exec *e;
    user *users;       /* per storage, then per scratch memory */
    ts_array readers;  /* of reader */
    uint64_t *before;  /* per step, `words` words: bit d: step d runs before it */
    uint64_t *waits;   /* of the current step: bit d: it must wait for step d */
    uint32_t words;
    bool failed;       /* out of memory */
} ordering;

static void wait_for(const ordering *o, uint32_t step)
{
    o->waits[step / 64] |= (uint64_t)1 << step % 64;
}

/** Makes the current step wait for uses: for the last write, and for reads if `writes`. */
static void wait_for_uses(const ordering *o, const user *u, bool writes)
{
    if (u->writer)
        wait_for(o, u->writer - 1);
    for (uint32_t i = writes ? u->readers : 0; i;) {
        const reader *r = (const reader *)o->readers.data + (i - 1);
        wait_for(o, r->step);
        i = r->next;
    }
}

static void note_use(ordering *o, user *u, uint32_t step, bool writes)
{
    if (writes) {
        *u = (user){.writer = step + 1};
    } else if (!ts_array_reserve(&o->readers, 1, sizeof(reader))) {
        o->failed = true;
    } else {
        *TS_PUSH(o->readers, reader) = (reader){step, u->readers};
        u->readers = o->readers.count;
    }
}

/** Makes the current step wait for all uses of the arena's bytes that become storage i. */
static void wait_for_memory(const ordering *o, uint32_t i)
{
    const int64_t *offsets = o->k->offsets.data;
    int64_t begin = offsets[i], end = begin + o->e->storages[i].bytes;
    if (begin < 0)
        return;
    for (uint32_t j = 0; j < o->e->nstorages; j++)
        if (j != i && offsets[j] >= 0 && offsets[j] < end &&
            offsets[j] + o->e->storages[j].bytes > begin)
            wait_for_uses(o, &o->users[j], true);
}

/** Finds the steps that step s must wait for. */
static void find_waits(ordering *o, uint32_t s)
{
    const part *p = (const part *)o->k->parts.data + s;
    memset(o->waits, 0, o->words * sizeof(uint64_t));
    for (uint32_t t = 0; t < p->touches; t++) {
        touch x = touches_of(o->k, p)[t];
        user *u = &o->users[x.storage];
        wait_for_uses(o, u, x.writes);
        if (!u->writer && !u->readers)
            wait_for_memory(o, x.storage);
    }
    user *scratch = &o->users[o->e->nstorages + s % o->k->lanes];
    if (p->scratch) {
        wait_for_uses(o, scratch, true);
        note_use(o, scratch, s, true);
    }
    for (int writes = 0; writes < 2; writes++) /* a step's own reads come before its writes */
        for (uint32_t t = 0; t < p->touches; t++) {
            touch x = touches_of(o->k, p)[t];
            if (x.writes == (writes == 1))
                note_use(o, &o->users[x.storage], s, writes);
        }
}

/** Adds the pairs of step s, without those that follow from others. */
static void add_pairs(ordering *o, uint32_t s, ts_array *pairs)
{
    uint64_t *own = o->before + (size_t)s * o->words;
    for (uint32_t d = s; d-- > 0;) { /* the latest first: those before it need no pair */
        uint64_t bit = (uint64_t)1 << d % 64;
        if (!(o->waits[d / 64] & bit) || own[d / 64] & bit)
            continue;
        const uint64_t *earlier = o->before + (size_t)d * o->words;
        for (uint32_t w = 0; w < o->words; w++)
            own[w] |= earlier[w];
        own[d / 64] |= bit;
        if (!ts_array_reserve(pairs, 1, sizeof(ts_part_pair))) {
            o->failed = true;
            return;
        }
        *TS_PUSH(*pairs, ts_part_pair) = (ts_part_pair){(int)d, (int)s};
    }
}

bool ts_captured_order(const ts_captured *k, const ts_exec *e, ts_array *pairs)
{
    ordering o = {.k = k, .e = e, .words = (e->nsteps + 63) / 64};
    if (e->nsteps > MOST_STEPS)
        return false;
    size_t users = (e->nstorages + k->lanes) * sizeof(user),
           bits = ((size_t)e->nsteps + 1) * o.words * sizeof(uint64_t);
    char *block = ts_alloc(ts_thread_self(), users + bits);
    if (!block)
        return false;
    memset(block, 0, users + bits);
    o.before = (uint64_t *)block;
    o.waits = o.before + (size_t)e->nsteps * o.words;
    o.users = (user *)(block + bits);
    const part *p = k->parts.data;
    for (uint32_t s = 0; s < e->nsteps && !o.failed; s++) {
        if (p[s].where != INSIDE)
            continue;
        find_waits(&o, s);
        add_pairs(&o, s, pairs);
    }
    ts_array_free(&o.readers, sizeof(reader));
    ts_free(ts_thread_self(), block, users + bits);
    return !o.failed;
}
