/** @file record.c  Rows of a profile, found by op, layer, scope and shapes. See record.h. */
// SPDX-License-Identifier: MIT
#include "dispatch/record.h"

#include <math.h>
#include <string.h>

/* -------------------------------------------------------------------------------- rows ---- */

/** Mixes kind and sizes of a tensor. The products of sizes and random odd numbers do not depend on
 *  one another, so the processor computes them side by side. */
TS_INLINE uint64_t mix_tensor(uint64_t hash, const ts_tensor *t)
{
    static const uint64_t random[TS_MAX_DIMS] = {
        0x51c9bc701e7ea419u, 0xf38b2ffc80a4df5bu, 0xa5aec7978306d03bu, 0xf3f49249dc28ff91u,
        0xe255accb1a466885u, 0xe512148239292d23u, 0x9f19950499dd251du, 0x6bad6be28e7aa6e9u};
    uint64_t word = t->kind.bits | (uint64_t)(t->flags & TS_TENSOR_CONTIGUOUS) << 32;
    for (int d = 0; d < t->ndim; d++)
        word += (uint64_t)t->sizes[d] * random[d];
    return ts_hash_word(hash, word);
}

/** Mixes the lists of ints of a call without tensors, such as the sizes of a new tensor. */
static uint64_t mix_sizes(const ts_frame *f, uint64_t hash)
{
    for (int i = 0; i < f->nargs; i++)
        for (uint32_t k = 0; f->args[i].tag == TS_TAG_INTS && k < f->args[i].count; k++)
            hash = ts_hash_word(hash, (uint64_t)f->args[i].ints[k]);
    return hash;
}

/** Hashes the class of a call: its tensors (of a list, only the first and the last) and its flags;
 *  without either, its lists of ints. Other numbers are ignored, because they may differ in each
 *  step. */
static uint64_t hash_call(const ts_frame *f, const uint64_t seed)
{
    uint64_t hash = seed;
    for (int i = 0; i < f->nargs; i++) {
        const ts_value *v = &f->args[i];
        if (v->tag == TS_TAG_TENSOR) {
            hash = mix_tensor(hash, v->t);
        } else if (v->tag == TS_TAG_TENSORS) {
            hash = ts_hash_word(hash, v->count);
            if (v->count)
                hash = mix_tensor(mix_tensor(hash, v->list[0]), v->list[v->count - 1]);
        } else if (v->tag == TS_TAG_BOOL) {
            hash = ts_hash_word(hash, (uint64_t)v->i + 1);
        }
    }
    return TS_UNLIKELY(hash == seed) ? mix_sizes(f, seed) : hash;
}

static uint8_t dtype_of(const ts_frame *f)
{
    for (int i = 0; i < f->nargs; i++) {
        uint32_t n;
        ts_tensor *const *t = ts_value_members(&f->args[i], &n);
        if (n && !(t[0]->flags & TS_TENSOR_NONE))
            return t[0]->dtype;
    }
    for (int i = 0; i < f->nargs; i++)
        if (f->args[i].tag == TS_TAG_DTYPE)
            return (uint8_t)f->args[i].i;
    return (uint8_t)TS_DTYPE_NONE;
}

enum { ALL_ROWS = TS_TALLY_CHUNK * TS_TALLY_CHUNKS };

static bool (*_Atomic chained_ops)(int op);
void ts_tally_chain(bool (*is_chained)(int op)) { atomic_store(&chained_ops, is_chained); }

static bool grow_index(ts_tally_table *r)
{
    uint32_t capacity = r->index ? 2 * (r->mask + 1) : 512;
    uint32_t *index = ts_sys_calloc(capacity * sizeof *index);
    if (!index)
        return false;
    int count = atomic_load_explicit(&r->count, memory_order_relaxed);
    for (int i = 0; i < count; i++) {
        uint32_t at = (uint32_t)ts_tally_at(r, i)->hash & (capacity - 1);
        while (index[at])
            at = (at + 1) & (capacity - 1);
        index[at] = (uint32_t)i + 1;
    }
    ts_sys_free(r->index);
    r->index = index;
    r->mask = capacity - 1;
    return true;
}

/** Makes a row, which readers do not see before publish(). NULL if the table has `most` rows or
 *  more, or memory ran out. */
static TS_COLD ts_tally_row *make_row(ts_tally_table *r, uint64_t hash, uint16_t op, ts_key key,
                                      int most)
{
    int count = atomic_load_explicit(&r->count, memory_order_relaxed);
    if (count >= most)
        return NULL;
    if ((!r->index || (uint32_t)count * 2 > r->mask) && !grow_index(r))
        return NULL;
    ts_tally_row **chunk = &r->chunk[count / TS_TALLY_CHUNK];
    if (!*chunk && !(*chunk = ts_sys_calloc(TS_TALLY_CHUNK * sizeof **chunk)))
        return NULL;
    ts_tally_row *row = ts_tally_at(r, count);
    row->hash = hash;
    row->scope = r->scope;
    row->op = op;
    row->key = key;
    row->dtype = (uint8_t)TS_DTYPE_NONE;
    bool (*is_chained)(int op) = atomic_load_explicit(&chained_ops, memory_order_relaxed);
    row->chains = ts_key_runs(key) && op < TS_ROW_GROUP && is_chained && is_chained(op);
    uint32_t at = (uint32_t)hash & r->mask;
    while (r->index[at])
        at = (at + 1) & r->mask;
    r->index[at] = (uint32_t)count + 1;
    return row;
}

/** Makes the row of the last make_row() visible to readers. */
static void publish(ts_tally_table *r)
{
    atomic_fetch_add_explicit(&r->count, 1, memory_order_release);
}

TS_INLINE ts_tally_row *find_row(const ts_tally_table *r, uint64_t hash)
{
    if (TS_UNLIKELY(!r->index))
        return NULL;
    for (uint32_t at = (uint32_t)hash & r->mask; r->index[at]; at = (at + 1) & r->mask) {
        ts_tally_row *row = ts_tally_at(r, (int)r->index[at] - 1);
        if (row->hash == hash) /* a 64-bit collision among a profile's few classes is negligible */
            return row;
    }
    return NULL;
}

TS_INLINE uint64_t hash_row(uint16_t op, ts_key key, uint32_t scope)
{
    return ts_hash_word(op | (uint64_t)key << 16 | (uint64_t)scope << 32, 0x5bd1e995);
}

ts_tally_row *ts_tally_hop(ts_tally_table *r, const ts_frame *f)
{
    uint64_t scoped = hash_row(f->op, f->key, r->scope);
    bool shapes = f->key < 16;
    uint64_t hash = shapes ? hash_call(f, ~scoped) : scoped; /* never that of a shared row */
    ts_tally_row *row = find_row(r, hash);
    if (TS_LIKELY(row != NULL))
        return row;
    row = make_row(r, hash, f->op, f->key, shapes ? TS_TALLY_SHAPED : TS_TALLY_SCOPED);
    if (!row) {
        if (ts_key_runs(f->key))
            atomic_fetch_add_explicit(&r->shared, 1, memory_order_relaxed);
        return ts_tally_other(r, f->op, f->key, ts_op_name(f->op));
    }
    if (shapes) {
        ts_frame_describe(f, row->call, sizeof row->call);
        row->dtype = dtype_of(f);
    } else {
        snprintf(row->call, sizeof row->call, "%s", ts_op_name(f->op));
    }
    publish(r);
    return row;
}

/** The row for op and key without shapes in a scope; NULL if it is new and the table has `most`
 *  rows or more, or memory ran out. */
static ts_tally_row *shared_row(ts_tally_table *r, uint16_t op, ts_key key, uint32_t scope,
                                const char *name, int most)
{
    uint64_t hash = hash_row(op, key, scope);
    ts_tally_row *row = find_row(r, hash);
    if (!row && (row = make_row(r, hash, op, key, most))) {
        snprintf(row->call, sizeof row->call, "%s", name);
        row->scope = scope;
        publish(r);
    }
    return row;
}

ts_tally_row *ts_tally_other(ts_tally_table *r, uint16_t op, ts_key key, const char *name)
{
    ts_tally_row *row = shared_row(r, op, key, r->scope, name, TS_TALLY_SCOPED);
    return TS_LIKELY(row != NULL) ? row : shared_row(r, op, key, TS_SCOPE_REST, name, ALL_ROWS);
}

ts_tally_row *ts_tally_part(ts_tally_table *r, ts_tally_row *whole, ts_part part)
{
    uint64_t hash = ts_hash_word(whole->hash, part);
    ts_tally_row *row = find_row(r, hash);
    if (!row && (row = make_row(r, hash, whole->op, whole->key, TS_TALLY_SHAPED))) {
        memcpy(row->call, whole->call, sizeof row->call);
        row->scope = whole->scope;
        row->dtype = whole->dtype;
        row->part = (uint8_t)part;
        row->whole = whole;
        publish(r);
    }
    return row;
}

uint64_t ts_tally_hash(const ts_frame *f, uint64_t hash)
{
    return hash_call(f, ts_hash_word(hash, f->op));
}

ts_tally_row *ts_tally_named(ts_tally_table *r, uint64_t hash, uint16_t op, ts_key key,
                             uint8_t dtype, const char *text)
{
    hash = ts_hash_word(hash, hash_row(op, key, r->scope));
    ts_tally_row *row = find_row(r, hash);
    if (!row && (row = make_row(r, hash, op, key, TS_TALLY_SHAPED))) {
        snprintf(row->call, sizeof row->call, "%s", text);
        row->dtype = dtype;
        publish(r);
    }
    return row ? row : ts_tally_other(r, op, key, ts_row_op(op));
}

ts_tally_row *ts_tally_in_scope(ts_tally_table *r, const ts_tally_row *row)
{
    return ts_tally_other(r, row->op, row->key,
                          row->op == TS_ROW_OUTSIDE ? row->call : ts_row_op(row->op));
}

/* -------------------------------------------------------------------------------- work ---- */

/** Adds without an atomic read-modify-write, because only the thread that owns the table adds. */
static void add_to(_Atomic double *slot, double value)
{
    double sum = atomic_load_explicit(slot, memory_order_relaxed) + value;
    atomic_store_explicit(slot, sum, memory_order_relaxed);
}

static void count_up(_Atomic int64_t *slot, int64_t n)
{
    atomic_store_explicit(slot, atomic_load_explicit(slot, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

static ts_tally_writer *writer_of(ts_tally_table *r, const void *data)
{
    return &r->writers[ts_hash_pointer(data, TS_TALLY_WRITERS - 1)];
}

/** Counts a call in ts_tally_row.examined and .chained. A view writes nothing, so its memory keeps
 *  its writer. Memory that the program itself fills after a chained call wrote it still counts as
 *  the result of that call. */
static TS_COLD void note_chain(ts_tally_table *r, ts_tally_row *row, const ts_frame *f)
{
    bool reads = false, view = f->table->info->kind == TS_VIEW;
    r->examined++;
    count_up(&row->examined, 1);
    for (int i = 0; i < f->nargs && row->chains; i++) {
        const void *data = f->args[i].tag == TS_TAG_TENSOR ? f->args[i].t->data : NULL;
        ts_tally_writer *w = writer_of(r, data);
        if (!data || w->data != data || !w->row)
            continue;
        if (!w->counted)
            count_up(&w->row->chained, 1);
        w->counted = reads = true;
    }
    for (int i = 0; i < f->nrets; i++) {
        const void *data = f->rets[i].tag == TS_TAG_TENSOR ? f->rets[i].t->data : NULL;
        if (!view || data != f->args[0].t->data)
            *writer_of(r, data) = (ts_tally_writer){data, row->chains ? row : NULL, reads};
    }
    if (reads)
        count_up(&row->chained, 1);
}

void ts_tally_work(ts_tally_table *r, ts_tally_row *row, const ts_frame *f, double flops,
                   double bytes)
{
    if (f->key >= TS_KEY_LAZY || f->table->rule[f->key] == TS_RULE_COMPOSITE)
        return; /* a recorded call computes nothing; a composite's inner calls do the work */
    if (TS_UNLIKELY(r->examined < TS_TALLY_EXAMINED))
        note_chain(r, row, f);
    if (r->flops < flops || r->bytes < bytes)
        flops = bytes = 0; /* ts_tally_clear() ran in the call: all work since then is inside it */
    ts_cost cost = f->table->info->cost;
    ts_work all = cost ? cost(f) : (ts_work){NAN, NAN},
            own = {all.flops - (r->flops - flops), all.bytes - (r->bytes - bytes)};
    if (TS_UNLIKELY(isnan(all.flops) || isnan(all.bytes))) {
        count_up(&row->unknown, 1);
        return;
    }
    own.flops = own.flops > 0 ? own.flops : 0;
    own.bytes = own.bytes > 0 ? own.bytes : 0;
    add_to(&row->flops, own.flops);
    add_to(&row->bytes, own.bytes);
    r->flops += own.flops;
    r->bytes += own.bytes;
}

void ts_tally_sum(const ts_tally_table *r, int64_t parts[TS_PART_COUNT])
{
    int count = atomic_load_explicit(&r->count, memory_order_acquire);
    for (int i = 0; i < count; i++) {
        const ts_tally_row *row = ts_tally_at(r, i);
        int part = row->op == TS_ROW_OUTSIDE ? (row->key ? TS_PART_OUTSIDE : TS_PART_LAYERS)
                   : ts_key_runs(row->key)   ? TS_PART_KERNELS
                                             : TS_PART_LAYERS;
        parts[part] += atomic_load_explicit(&row->cell.ticks, memory_order_relaxed);
    }
}

/* ------------------------------------------------------------------------------ events ---- */

int ts_event_chunks_most = TS_EVENT_CHUNKS;
static _Atomic int64_t events_taken; /* events that memory was allocated for, of all threads */

/** Memory for event number n; NULL if the list is full or memory ran out. */
static ts_event *next_event(ts_tally_table *r, int64_t n)
{
    n = r->ring ? n % r->ring : n;
    int64_t k = n / TS_EVENT_CHUNK;
    if (k >= TS_EVENT_CHUNKS)
        return NULL;
    if (!r->events && !(r->events = ts_sys_calloc(TS_EVENT_CHUNKS * sizeof *r->events)))
        return NULL;
    if (!r->events[k]) {
        if (atomic_fetch_add(&events_taken, TS_EVENT_CHUNK) <=
            (int64_t)(ts_event_chunks_most - 1) * TS_EVENT_CHUNK)
            r->events[k] = ts_sys_alloc(TS_EVENT_CHUNK * sizeof(ts_event));
        if (!r->events[k]) {
            atomic_fetch_sub(&events_taken, TS_EVENT_CHUNK);
            return NULL;
        }
    }
    return &r->events[k][n % TS_EVENT_CHUNK];
}

TS_COLD void ts_event_prepare(ts_tally_table *r)
{
    int64_t n = atomic_load_explicit(&r->nevents, memory_order_relaxed);
    ts_event *e = next_event(r, n); /* NULL: the call will count as lost */
    int64_t first = n % TS_EVENT_PIECE;
    if (e && (!r->ring || n < r->ring)) /* later events of a ring have the memory of earlier ones */
        memset(e, 0, (size_t)(TS_EVENT_PIECE - first) * sizeof *e);
    r->ready = n - first + TS_EVENT_PIECE;
}

/** Ticks since e began, shifted right by e->shift; increases the shift if they exceed 32 bits. */
static uint32_t since(ts_event *e, int64_t now)
{
    int64_t ticks = now > e->begin ? now - e->begin : 0;
    while (ticks >> e->shift > UINT32_MAX) {
        e->shift += 8;
        for (int i = 0; i < TS_EVENT_LAYERS; i++) {
            e->leave[i] >>= 8;
            if (i < TS_EVENT_LAYERS - 1)
                e->enter[i] >>= 8;
        }
    }
    return (uint32_t)(ticks >> e->shift);
}

/** The index i with ts_tally_at(r, i) == row. */
static uint32_t number_of(const ts_tally_table *r, const ts_tally_row *row)
{
    uint32_t at = (uint32_t)row->hash & r->mask;
    while (r->index[at] && ts_tally_at(r, (int)r->index[at] - 1) != row)
        at = (at + 1) & r->mask;
    return r->index[at] - 1;
}

int64_t ts_event_begin(ts_tally_table *r, const ts_frame *f, const ts_tally_row *row, int64_t now)
{
    int64_t before = r->open;
    int64_t n = atomic_load_explicit(&r->nevents, memory_order_relaxed);
    ts_event *e = ts_event_is_kept(r, before, n) ? ts_event_at(r, before) : NULL;
    if (e && e->inside && e->depth == f->thread->depth && e->op == f->op) {
        int layer = e->inside; /* a lower layer of this call */
        if (layer < TS_EVENT_LAYERS) {
            e->enter[layer - 1] = since(e, now);
            e->keys[layer] = f->key;
            e->layers = (uint8_t)(layer < e->layers ? e->layers : layer + 1);
        }
        e->inside++;
        e->row = number_of(r, row);
        return before;
    }
    e = next_event(r, n);
    if (!e) {
        count_up(&r->lost_events, 1);
        r->open = -1; /* layers of this call are lost with it */
        return before;
    }
    *e = (ts_event){.begin = now, .row = number_of(r, row), .scope = row->scope,
                    .parent = (uint32_t)(before + 1), .op = f->op, .depth = f->thread->depth,
                    .layers = 1, .inside = 1, .keys = {f->key}, .seq = r->rule,
                    .backward = r->rule != 0};
    r->open = n;
    atomic_store_explicit(&r->nevents, n + 1, memory_order_release);
    return before;
}

void ts_event_end(ts_tally_table *r, int64_t before, ts_status status, int64_t now)
{
    int64_t n = atomic_load_explicit(&r->nevents, memory_order_relaxed);
    if (ts_event_is_kept(r, r->open, n)) {
        ts_event *e = ts_event_at(r, r->open);
        int layer = e->inside ? --e->inside : 0;
        if (layer < TS_EVENT_LAYERS)
            e->leave[layer] = since(e, now);
        e->failed = status != TS_OK;
    }
    r->open = before < n ? before : -1; /* ts_tally_clear() may have dropped event `before` */
}

void ts_event_note_node(ts_tally_table *r, uint64_t seq)
{
    int64_t n = atomic_load_explicit(&r->nevents, memory_order_relaxed);
    ts_event *e = ts_event_is_kept(r, r->open, n) ? ts_event_at(r, r->open) : NULL;
    if (e && !e->backward)
        e->seq = (uint32_t)seq;
}

void ts_tally_clear(ts_tally_table *r)
{
    atomic_store_explicit(&r->nevents, 0, memory_order_relaxed);
    atomic_store_explicit(&r->lost_events, 0, memory_order_relaxed);
    r->open = -1;
    r->ready = 0;
    int count = atomic_load_explicit(&r->count, memory_order_relaxed);
    for (int i = 0; i < count; i++) {
        ts_tally_row *row = ts_tally_at(r, i);
        atomic_store_explicit(&row->cell.calls, 0, memory_order_relaxed);
        atomic_store_explicit(&row->cell.ticks, 0, memory_order_relaxed);
        atomic_store_explicit(&row->flops, 0, memory_order_relaxed);
        atomic_store_explicit(&row->bytes, 0, memory_order_relaxed);
        atomic_store_explicit(&row->unknown, 0, memory_order_relaxed);
        atomic_store_explicit(&row->examined, 0, memory_order_relaxed);
        atomic_store_explicit(&row->chained, 0, memory_order_relaxed);
    }
    memset(r->writers, 0, sizeof r->writers);
    r->examined = 0;
    atomic_store_explicit(&r->shared, 0, memory_order_relaxed);
    r->flops = r->bytes = 0;
}

bool ts_tally_has_calls(const ts_tally_table *r)
{
    for (int i = 0, n = atomic_load_explicit(&r->count, memory_order_acquire); i < n; i++)
        if (atomic_load_explicit(&ts_tally_at(r, i)->cell.calls, memory_order_relaxed))
            return true;
    return false;
}

static void free_blocks(ts_tally_table *r)
{
    for (int i = 0; r->events && i < TS_EVENT_CHUNKS; i++)
        if (r->events[i]) {
            ts_sys_free(r->events[i]);
            atomic_fetch_sub(&events_taken, TS_EVENT_CHUNK);
        }
    ts_sys_free(r->events);
    r->events = NULL;
}

void ts_events_compact(ts_tally_table *r, int thread)
{
    int64_t n = atomic_load_explicit(&r->nevents, memory_order_relaxed);
    int64_t first = r->ring && n > r->ring ? n - r->ring : 0, count = n - first;
    ts_event_list *list = n ? ts_sys_alloc(sizeof *list + (size_t)count * sizeof(ts_event)) : NULL;
    if (n && !list)
        return;
    for (int64_t i = 0; i < count; i++) {
        ts_event *e = &list->events[i];
        *e = *ts_event_at(r, first + i);
        e->parent = e->parent > first ? e->parent - (uint32_t)first : 0;
    }
    if (list) {
        list->thread = thread;
        list->count = count;
        list->overwritten = first;
        list->next = r->ended;
        r->ended = list;
        atomic_fetch_add(&events_taken, count);
        atomic_store_explicit(&r->nevents, 0, memory_order_relaxed);
    }
    free_blocks(r);
}

/** Moves lists of events to another table. rows: the number there of each row; NULL: the events
 *  count as lost. */
static void move_lists(ts_tally_table *to, ts_tally_table *from, const uint32_t *rows)
{
    ts_event_list *next;
    for (ts_event_list *l = from->ended; l && rows; l = next) {
        next = l->next;
        for (int64_t i = 0; i < l->count; i++)
            l->events[i].row = rows[l->events[i].row];
        l->next = to->ended;
        to->ended = l;
        from->ended = next;
    }
    for (const ts_event_list *l = from->ended; l; l = l->next)
        count_up(&to->lost_events, l->count);
}

bool ts_tally_merge(ts_tally_table *to, ts_tally_table *from)
{
    int count = atomic_load_explicit(&from->count, memory_order_acquire);
    uint32_t *rows = from->ended ? ts_sys_calloc((size_t)(count + 1) * sizeof *rows) : NULL;
    bool whole = true;
    for (int i = 0; i < count; i++) {
        const ts_tally_row *row = ts_tally_at(from, i);
        int64_t calls = atomic_load_explicit(&row->cell.calls, memory_order_relaxed);
        int64_t ticks = atomic_load_explicit(&row->cell.ticks, memory_order_relaxed);
        if (!calls && !ticks)
            continue;
        ts_tally_row *mine = find_row(to, row->hash);
        to->scope = row->scope;
        if (!mine && (mine = make_row(to, row->hash, row->op, row->key, TS_TALLY_SHAPED))) {
            mine->dtype = row->dtype;
            mine->part = row->part;
            memcpy(mine->call, row->call, sizeof mine->call);
            publish(to);
        } else if (!mine && (mine = ts_tally_in_scope(to, row)) != NULL && ts_key_runs(row->key)) {
            count_up(&to->shared, calls);
        }
        if (!mine) {
            whole = false;
            continue;
        }
        if (rows)
            rows[i] = number_of(to, mine);
        count_up(&mine->cell.calls, calls);
        count_up(&mine->cell.ticks, ticks);
        count_up(&mine->unknown, atomic_load_explicit(&row->unknown, memory_order_relaxed));
        count_up(&mine->examined, atomic_load_explicit(&row->examined, memory_order_relaxed));
        count_up(&mine->chained, atomic_load_explicit(&row->chained, memory_order_relaxed));
        add_to(&mine->flops, atomic_load_explicit(&row->flops, memory_order_relaxed));
        add_to(&mine->bytes, atomic_load_explicit(&row->bytes, memory_order_relaxed));
    }
    count_up(&to->shared, atomic_load_explicit(&from->shared, memory_order_relaxed));
    count_up(&to->lost_events, atomic_load_explicit(&from->lost_events, memory_order_relaxed) +
                                   atomic_load_explicit(&from->nevents, memory_order_relaxed));
    move_lists(to, from, whole ? rows : NULL);
    ts_sys_free(rows);
    return whole;
}

void ts_tally_free(ts_tally_table *r)
{
    free_blocks(r);
    for (ts_event_list *l = r->ended, *next; l; l = next) {
        next = l->next;
        atomic_fetch_sub(&events_taken, l->count);
        ts_sys_free(l);
    }
    for (int i = 0; i < TS_TALLY_CHUNKS; i++)
        ts_sys_free(r->chunk[i]);
    ts_sys_free(r->index);
}
