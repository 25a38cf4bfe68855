/**
 * @file lazy.c  The LAZY backend: records calls instead of running them.
 *
 * While a thread records, its include mask holds LAZY, whose key is above all devices, so every
 * call that AUTOGRAD passes on reaches this backend. The shape rule runs, the results get promised
 * storages (a placeholder address, no memory), and the call is appended to the stream. Views are
 * made immediately, as layouts over promised storages. The recording holds no reference to a
 * promised storage; the storage reports its last release, after which its values need no memory
 * outside the run.
 */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"
#include "compile/compile.h"
#include "compile/replay.h"
#include "core/process.h"
#include "dispatch/entries.h"
#include "include/tessera/ops.h"
#include "init.h"
#include "ops/ops.h"

#include <string.h>

#define LAZY TS_KEYSET(TS_KEY_LAZY)

/* Another thread may release a storage of the recording thread. */
static pthread_mutex_t storages_lock = PTHREAD_MUTEX_INITIALIZER;
static void lock(void) { pthread_mutex_lock(&storages_lock); }
static void unlock(void) { pthread_mutex_unlock(&storages_lock); }

static ts_lazy_storage *storage_at(const ts_lazy *l, uint32_t i)
{
    return (ts_lazy_storage *)l->storages.data + i;
}

/* -------------------------------------------------------------------------- the stream ---- */

static bool mark_incomplete(ts_lazy *l)
{
    l->failed = true;
    return false;
}

static bool put(ts_lazy *l, ts_array *to, uint64_t word)
{
    if (!ts_array_reserve(to, 1, sizeof word))
        return mark_incomplete(l);
    *TS_PUSH(*to, uint64_t) = word;
    return true;
}
static bool put_word(ts_lazy *l, uint64_t word) { return put(l, &l->words, word); }
static bool put_number(ts_lazy *l, uint64_t bits) { return put(l, &l->numbers, bits); }

/* ----------------------------------------------------------------------- storage lookup ---- */

static uint32_t *slot_of(const ts_lazy *l, uint32_t *table, uint32_t capacity, const ts_storage *s)
{
    uint32_t at = ts_hash_pointer(s, capacity - 1);
    while (table[at] && storage_at(l, table[at] - 1)->storage != s)
        at = (at + 1) & (capacity - 1);
    return &table[at];
}

uint32_t ts_lazy_find(const ts_lazy *l, const ts_storage *s)
{
    return l->table.count ? *slot_of(l, l->table.data, l->table.count, s) : 0;
}

/** Adds a storage; false if out of memory, with nothing added. A promised storage in the list
 *  reports its last release. */
static bool add_storage(ts_lazy *l, ts_storage *s, const char *base, bool outside, uint32_t *at)
{
    if (!ts_array_reserve(&l->words, 2, sizeof(uint64_t)))
        return mark_incomplete(l);
    lock();
    bool ok = ts_array_reserve(&l->storages, 1, sizeof(ts_lazy_storage));
    if (ok) {
        *at = l->storages.count;
        *TS_PUSH(l->storages, ts_lazy_storage) = (ts_lazy_storage){
            .storage = s, .base = base, .version = s->version, .outside = outside};
    }
    unlock();
    return (ok || mark_incomplete(l)) &&
           put_word(l, TS_WORD_STORAGE | (uint64_t)outside << 8 |
                           (uint64_t)s->device.backend << 16 | (uint64_t)s->device.index << 24) &&
           put_word(l, outside ? 0 : (uint64_t)s->bytes);
}

static bool add_outside(ts_lazy *l, ts_storage *s, uint32_t *at)
{
    if (2 * l->outside >= l->table.count) { /* the table's count is its size */
        ts_array larger = {0};
        uint32_t capacity = l->table.count ? 2 * l->table.count : 64;
        if (!ts_array_reserve(&larger, capacity, sizeof(uint32_t)))
            return mark_incomplete(l);
        memset(larger.data, 0, capacity * sizeof(uint32_t));
        larger.count = capacity;
        for (uint32_t i = 0; i < l->storages.count; i++)
            if (storage_at(l, i)->outside)
                *slot_of(l, larger.data, capacity, storage_at(l, i)->storage) = i + 1;
        ts_array_free(&l->table, sizeof(uint32_t));
        l->table = larger;
    }
    if (!add_storage(l, s, l->next, true, at))
        return false;
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    *slot_of(l, l->table.data, l->table.count, s) = *at + 1;
    l->outside++;
    return true;
}

/** True if a value's record has t's dtype, offset, sizes and strides. */
static bool is_layout(const uint64_t *w, const ts_tensor *t)
{
    if ((w[0] >> 8 & 0xff) != t->dtype || (w[0] >> 16 & 0xff) != t->ndim ||
        (int64_t)w[1] != ts_tensor_byte_offset(t))
        return false;
    for (int d = 0; d < t->ndim; d++)
        if ((int64_t)w[2 + d] != t->sizes[d] || (int64_t)w[2 + t->ndim + d] != t->strides[d])
            return false;
    return true;
}

/** Finds or adds the value for tensor t; *value receives its number. */
static bool value_of(ts_lazy *l, ts_tensor *t, uint32_t *value)
{
    uint32_t s;
    l->keys |= t->keys;
    if (t->id >> TS_ID_BITS == l->serial) { /* t has a value, unless its layout has changed since */
        const ts_lazy_value *v = (const ts_lazy_value *)l->values.data + ts_id_index(t->id);
        *value = ts_id_index(t->id);
        if (is_layout((const uint64_t *)l->words.data + v->word, t))
            return true;
    }
    bool ours = t->storage->id >> TS_ID_BITS == l->serial;
    if (ours)
        s = ts_id_index(t->storage->id);
    else if ((s = ts_lazy_find(l, t->storage)) != 0)
        s--;
    else if (!add_outside(l, t->storage, &s))
        return false;
    uint32_t next = storage_at(l, s)->newest;
    for (const ts_lazy_value *v; next; next = v->before) {
        v = (const ts_lazy_value *)l->values.data + (next - 1);
        if (is_layout((const uint64_t *)l->words.data + v->word, t))
            break;
    }
    if (!next) {
        uint32_t word = l->words.count;
        if (!ts_array_reserve(&l->values, 1, sizeof(ts_lazy_value)) ||
            !ts_array_reserve(&l->words, 2 + 2u * t->ndim, sizeof(uint64_t)))
            return mark_incomplete(l);
        put_word(l, TS_WORD_VALUE | (uint64_t)t->dtype << 8 | (uint64_t)t->ndim << 16 |
                        (uint64_t)(t->flags & TS_TENSOR_CONTIGUOUS) << 24 | (uint64_t)s << 32);
        put_word(l, (uint64_t)ts_tensor_byte_offset(t));
        for (int d = 0; d < t->ndim; d++)
            put_word(l, (uint64_t)t->sizes[d]);
        for (int d = 0; d < t->ndim; d++)
            put_word(l, (uint64_t)t->strides[d]);
        *TS_PUSH(l->values, ts_lazy_value) = (ts_lazy_value){storage_at(l, s)->newest, word};
        next = storage_at(l, s)->newest = l->values.count;
    }
    *value = next - 1;
    if (ours) /* made by this thread, so no other thread reads t->id */
        t->id = l->serial << TS_ID_BITS | next;
    return true;
}

/* ------------------------------------------------------------------------------- calls ---- */

/** True if argument i may change from run to run without a new plan: floats, and the integers
 *  `steps`, `seed` and `offset`. */
static bool is_number(const ts_frame *f, int i)
{
    const ts_value *v = &f->args[i];
    const char *name = f->table->info->schema.args[i].name;
    if (v->tag == TS_TAG_FLOAT)
        return true;
    if (v->tag == TS_TAG_INTS)
        return strcmp(name, "steps") == 0;
    return v->tag == TS_TAG_INT && (strcmp(name, "seed") == 0 || strcmp(name, "offset") == 0);
}

static bool put_arg(ts_lazy *l, const ts_frame *f, int i)
{
    const ts_value *v = &f->args[i];
    uint64_t head = v->tag | (uint64_t)(is_number(f, i) ? TS_ROLE_VALUE : TS_ROLE_PLAIN) << 8 |
                    (uint64_t)v->count << 32;
    uint32_t value, n;
    bool ok = true;
    switch (v->tag) {
    case TS_TAG_NONE: return put_word(l, head);
    case TS_TAG_TENSOR:
    case TS_TAG_TENSORS: {
        ts_tensor *const *t = ts_value_members(v, &n);
        ok = put_word(l, (head & UINT32_MAX) | (uint64_t)n << 32);
        for (uint32_t k = 0; k < n && ok; k++)
            ok = value_of(l, t[k], &value) && put_word(l, value);
        return ok;
    }
    case TS_TAG_INTS:
        ok = put_word(l, head);
        for (uint32_t k = 0; k < v->count && ok; k++)
            ok = is_number(f, i) ? put_number(l, (uint64_t)v->ints[k])
                                 : put_word(l, (uint64_t)v->ints[k]);
        return ok;
    case TS_TAG_STRING: {
        size_t bytes = strlen(v->str) + 1;
        ok = put_word(l, (head & UINT32_MAX) | (uint64_t)bytes << 32);
        for (size_t at = 0; at < bytes && ok; at += 8) {
            uint64_t word = 0;
            memcpy(&word, v->str + at, bytes - at < 8 ? bytes - at : 8);
            ok = put_word(l, word);
        }
        return ok;
    }
    default:
        return put_word(l, head) && (is_number(f, i) ? put_number(l, (uint64_t)v->i)
                                     : v->tag == TS_TAG_DEVICE
                                         ? put_word(l, v->device.backend |
                                                           (uint64_t)v->device.index << 8)
                                         : put_word(l, (uint64_t)v->i));
    }
}

/** Adds records for new values before the call that uses them first. */
static bool name_values(ts_lazy *l, const ts_frame *f)
{
    uint32_t value, n;
    for (int i = 0; i < f->nargs; i++) {
        ts_tensor *const *t = ts_value_members(&f->args[i], &n);
        for (uint32_t k = 0; k < n; k++)
            if (!value_of(l, t[k], &value))
                return false;
    }
    for (int i = 0; i < f->nrets; i++)
        if (f->rets[i].tag == TS_TAG_TENSOR && !value_of(l, f->rets[i].t, &value))
            return false;
    return true;
}

static ts_status record(ts_frame *f)
{
    ts_lazy *l = f->thread->lazy;
    bool random = f->table->flags & TS_OP_RANDOM;
    uint32_t value;
    bool ok = name_values(l, f) && ts_array_reserve(&l->sites, 1, sizeof(void *)) &&
              put_word(l, TS_WORD_CALL | (uint64_t)f->op << 8 | (uint64_t)f->nargs << 24 |
                              (uint64_t)f->nrets << 32 | (uint64_t)f->want << 40 |
                              (uint64_t)f->given << 48 | (uint64_t)random << 56);
    for (int i = 0; i < f->nargs && ok; i++) {
        uint32_t first = l->numbers.count;
        ok = put_arg(l, f, i);
        if (TS_UNLIKELY(l->notes != NULL) && ok)
            ts_notes_bind(l, f, i, first);
    }
    for (int i = 0; i < f->nrets && ok; i++) {
        bool there = f->rets[i].tag == TS_TAG_TENSOR;
        ok = (!there || value_of(l, f->rets[i].t, &value)) &&
             put_word(l, there ? (uint64_t)value + 1 : 0);
    }
    if (ok && random)
        ok = put_number(l, f->rng.seed) && put_number(l, f->rng.offset);
    if (!ok) {
        l->failed = true;
        return ts_error_memory("a recording", 0);
    }
    *TS_PUSH(l->sites, const void *) = f->site;
    return TS_OK;
}

/* ----------------------------------------------------------------------------- promises ---- */

/** Called at the last release of a promised storage: removes it from the recording. */
static void on_last_release(void *foreign, void *data, int64_t bytes)
{
    (void)bytes;
    ts_lazy *l = foreign;
    if (!l)
        return;
    lock();
    uint32_t low = 0, high = l->storages.count;
    while (high - low > 1) { /* the last storage whose address is at most data */
        uint32_t mid = low + (high - low) / 2;
        if (storage_at(l, mid)->base <= (const char *)data)
            low = mid;
        else
            high = mid;
    }
    storage_at(l, low)->storage = NULL;
    unlock();
}

static ts_tensor *new_promised(ts_frame *f, const ts_meta *m)
{
    ts_lazy *l = f->thread->lazy;
    ts_meta counted = *m;
    int64_t bytes;
    uint32_t at;
    if (!ts_layout_ok(NULL, NULL, (ts_dtype)m->dtype, m->sizes, m->ndim, &counted.numel, &bytes))
        return NULL;
    if (!bytes) /* no bytes to promise */
        return ts_tensor_new_unchecked(f->thread, &counted);
    if (bytes > (int64_t)1 << 42) {
        ts_error_memory("a tensor", bytes);
        return NULL;
    }
    ts_tensor *t = ts_tensor_promise(f->thread, &counted, l->next, l, on_last_release);
    if (!t)
        return NULL;
    if (!add_storage(l, t->storage, l->next, false, &at)) {
        t->storage->foreign = NULL;
        ts_tensor_unref(t);
        ts_error_memory("a recording", 0);
        return NULL;
    }
    t->storage->id = l->serial << TS_ID_BITS | (at + 1);
    l->next += (bytes + 127) & ~(int64_t)63;
    return t;
}

/* ------------------------------------------------------------------------------ the key ---- */

/** Points handles to memory that was allocated meanwhile. TS_ERR_STATE if the memory is still
 *  promised by another recording. */
static ts_status require_values(const ts_frame *f, ts_tensor *t, const ts_lazy *mine)
{
    if (!(t->keys & LAZY) || ts_tensor_take_address(t) || (mine && t->storage->foreign == mine))
        return TS_OK;
    return ts_fail_op(TS_ERR_STATE, f ? ts_op_name(f->op) : NULL, f ? f->site : NULL,
                      "use results of a compiled function after it has returned, and handle its "
                      "errors",
                      "a tensor of sizes %s has no values: its compiled function still runs, or "
                      "has failed",
                      TS_SIZES_TEXT(t));
}

static ts_status require_all_values(const ts_frame *f, const ts_lazy *mine)
{
    uint32_t n;
    for (int i = 0; i < f->nargs + f->nrets; i++) {
        const ts_value *v = i < f->nargs ? &f->args[i] : &f->rets[i - f->nargs];
        ts_tensor *const *t = ts_value_members(v, &n);
        for (uint32_t k = 0; k < n; k++)
            TS_TRY(require_values(f, t[k], mine));
    }
    return TS_OK;
}

/** Runs the call on its device, as without this backend. */
static ts_status run_eagerly(ts_frame *f)
{
    TS_TRY(require_all_values(f, NULL));
    return ts_redispatch_new(f, f->args);
}

/** How a linear_backward is recorded. SUM: its bias gradient as a separate sum over rows, which can
 *  join the group that computes the incoming gradient; linear_backward joins no group. HALVES: the
 *  gradients of input and weight as two calls, which a graph can run at the same time as others. */
enum { SUM = 1, HALVES = 2 };

static int parts_of(const ts_frame *f, const ts_lazy *l)
{
    enum { BOTH = 3, BIAS = 4, MOST = 1 << 30 /* multiplications; more occupy a device alone */ };
    if (f->op != TS_OP_linear_backward || f->given || !ts_compiled_by_rows(l->compiled) ||
        f->args[0].tag != TS_TAG_TENSOR)
        return 0;
    const ts_tensor *g = f->args[0].t, *x = f->args[1].tag == TS_TAG_TENSOR ? f->args[1].t : NULL;
    const ts_backend *b = ts_backend_of(g->storage->device);
    bool sum = f->want & BIAS && f->want != BIAS && g->ndim > 1 && b && b->group_takes,
         halves = (f->want & BOTH) == BOTH && l->compiled->opts.graph && b && b->capture_order &&
                  x && x->ndim && (double)g->numel * (double)x->sizes[x->ndim - 1] <= MOST;
    return (sum ? SUM : 0) | (halves ? HALVES : 0);
}

/** Records the gradient of input (want is 1), then the others, as two calls. */
static ts_status record_halves(ts_frame *f, uint8_t want)
{
    enum { INPUT = 1, WEIGHT };
    const ts_value *all = f->args;
    ts_value args[] = {all[0], ts_value_none(), all[WEIGHT]};
    f->args = args;
    f->want = 1;
    ts_status status = ts_enter_deferred(f, new_promised, record);
    if (status == TS_OK) {
        ts_value first = f->rets[0];
        args[INPUT] = all[INPUT];
        args[WEIGHT] = f->rets[0] = ts_value_none();
        f->want = want & ~1;
        status = ts_enter_deferred(f, new_promised, record);
        if (status == TS_OK)
            f->rets[0] = first;
        else
            ts_tensor_unref(first.t);
    }
    f->args = all;
    return status;
}

/** Records a linear_backward as several calls. parts: SUM, HALVES or both. */
static ts_status record_apart(ts_frame *f, int parts)
{
    enum { BOTH = 3, BIAS = 2 };
    TS_SCOPE;
    const ts_tensor *g = f->args[0].t;
    uint8_t want = f->want;
    f->want = want & (parts & SUM ? BOTH : UINT8_MAX);
    ts_status status = parts & HALVES ? record_halves(f, f->want)
                                      : ts_enter_deferred(f, new_promised, record);
    f->want = want;
    if (status != TS_OK || !(parts & SUM))
        return status;
    ts_tensor *sum = ts_sum_to_size(f->args[0].t, &g->sizes[g->ndim - 1], 1);
    if (!sum)
        return ts_drop_results(f, ts_error_code());
    ts_tensor_ref(sum);
    f->rets[BIAS] = ts_value_tensor(sum);
    return TS_OK;
}

/** The kernel of LAZY for all ops: records the call. An op that cannot be recorded ends the
 *  recording and runs eagerly. */
static ts_status defer(ts_frame *f)
{
    ts_lazy *l = f->thread->lazy;
    const ts_op_info *op = f->table->info;
    if (!l || l->running || !(f->thread->include & LAZY))
        return run_eagerly(f);
    TS_TRY(require_all_values(f, l));
    int parts = parts_of(f, l);
    if (parts)
        return record_apart(f, parts);
    if (op->kind == TS_FILL)
        return ts_enter_deferred(f, new_promised, record);
    if (op->kind == TS_VIEW)
        return ts_enter_view(f);
    if (op->composite && !(op->flags & TS_OP_RUNTIME))
        return ts_run_whole(f, op->composite);
    TS_TRY(ts_lazy_flush(l, op->name, f->site));
    return run_eagerly(f);
}

static ts_status resolve(ts_tensor *t, const void *site)
{
    ts_lazy *l = ts_tls.lazy;
    if (l && !l->running)
        TS_TRY(ts_lazy_flush(l, "a read of values", site));
    return require_values(NULL, t, NULL);
}

static int32_t holds(const ts_storage *s)
{
    const ts_lazy *l = ts_tls.lazy;
    return (l && ts_lazy_find(l, s) != 0) + ts_replays_hold(s);
}

/* ------------------------------------------------------------------------------ leaves ---- */

/** Locks leaf n until the recording has run, because until then its gradient may have no values. A
 *  recording that has locked leaves runs before it waits for another, so no two wait for each
 *  other. */
static ts_status hold_leaf(ts_node *n)
{
    ts_lazy *l = ts_tls.lazy;
    uint32_t self = ts_node_self(l->thread);
    if (atomic_load_explicit(&n->owner, memory_order_relaxed) == self)
        return TS_OK;
    if (!ts_array_reserve(&l->leaves, 1, sizeof n))
        return ts_error_memory("a recording", 0);
    if (!ts_node_try_lock(n, self)) {
        if (l->leaves.count && !l->running)
            TS_TRY(ts_lazy_flush(l, "a gradient that another thread adds to", NULL));
        ts_node_wait(n, self);
    }
    ts_node_ref(n);
    *TS_PUSH(l->leaves, ts_node *) = n;
    return TS_OK;
}

static void release_leaves(ts_lazy *l)
{
    if (l->leaves.count)
        atomic_fetch_add(&ts_leaf_runs, 1);
    for (; l->leaves.count; l->leaves.count--) {
        ts_node *n = ((ts_node **)l->leaves.data)[l->leaves.count - 1];
        if (n->leaf && n->leaf->grad->grad)
            ts_tensor_take_address(n->leaf->grad->grad); /* other threads may read it from now on */
        ts_node_unlock(n);
        ts_node_unref(n);
    }
}

/* ------------------------------------------------------------------------ begin, flush ---- */

/** Releases the outside storages. Storages that are still promised never get values. */
static void drop_storages(ts_lazy *l)
{
    lock();
    for (uint32_t i = 0; i < l->storages.count; i++) {
        ts_storage *s = storage_at(l, i)->storage;
        if (s && !storage_at(l, i)->outside && ts_is_promised(s->data))
            s->foreign = NULL;
    }
    ts_array storages = l->storages;
    l->storages = (ts_array){0};
    unlock();
    for (uint32_t i = 0; i < storages.count; i++) {
        const ts_lazy_storage *s = (const ts_lazy_storage *)storages.data + i;
        if (s->outside)
            ts_storage_release(s->storage);
    }
    ts_array_free(&storages, sizeof(ts_lazy_storage));
    l->words.count = l->numbers.count = l->values.count = l->sites.count = 0;
    ts_array_free(&l->table, sizeof(uint32_t));
    l->table = (ts_array){0};
    l->outside = 0;
    l->failed = false;
    l->keys = 0;
    l->serial = ts_graph_serial();
    if ((uintptr_t)l->next >> 43 & 1) /* half of the range is used */
        l->next = (char *)((uintptr_t)l->next >> 44 << 44);
    release_leaves(l);
}

/** Ends the stream with a record of the promised storages that are still referenced, because the
 *  plan depends on them. */
static bool put_end(ts_lazy *l)
{
    uint64_t bits = 0;
    bool ok = put_word(l, TS_WORD_END | (uint64_t)l->storages.count << 32);
    for (uint32_t i = 0; i < l->storages.count && ok; i++) {
        bits |= (uint64_t)(storage_at(l, i)->storage != NULL) << i % 64;
        if (i % 64 == 63 || i + 1 == l->storages.count) {
            ok = put_word(l, bits);
            bits = 0;
        }
    }
    return ok;
}

ts_status ts_lazy_flush(ts_lazy *l, const char *why, const void *site)
{
    if (why && l->notes)
        ts_notes_refuse(l->notes, why, site);
    if (!l->sites.count && !l->failed) {
        if (!why)
            drop_storages(l);
        release_leaves(l);
        return TS_OK;
    }
    if (why)
        TS_TRY(ts_compiled_break(l->compiled, why, site));
    ts_status status = l->failed || !put_end(l) ? ts_error_memory("a recording", 0) : TS_OK;
    ts_exec *e = NULL;
    if (status == TS_OK && !(e = ts_compiled_plan(l->compiled, l)))
        status = ts_error_code();
    if (e) {
        ts_repeat *call = l->notes ? ts_replay_of(l, e) : NULL;
        l->running = true;
        status = ts_exec_run(e, l);
        l->running = false;
        if (l->notes)
            status = ts_replay_learn(l, e, call, status);
        ts_compiled_ran(l->compiled, e);
    }
    l->segment++;
    drop_storages(l);
    return status;
}

void ts_lazy_begin(ts_lazy *l, ts_compiled *c)
{
    static _Atomic uint64_t threads;
    /* each recording has its own address range; ranges repeat after thousands of recordings */
    uint64_t n = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
    *l = (ts_lazy){.compiled = c, .thread = ts_thread_self(), .serial = ts_graph_serial()};
    l->next = (char *)((uintptr_t)TS_PROMISED_TAG << 48 | (n % 15 + 1) << 44);
}

void ts_lazy_end(ts_lazy *l)
{
    drop_storages(l);
    ts_array_free(&l->words, sizeof(uint64_t));
    ts_array_free(&l->numbers, sizeof(uint64_t));
    ts_array_free(&l->values, sizeof(ts_lazy_value));
    ts_array_free(&l->sites, sizeof(void *));
    ts_array_free(&l->leaves, sizeof(ts_node *));
}

ts_status ts_compile_install(void)
{
    TS_FORK_GUARD(&storages_lock);
    ts_replays_install();
    ts_compiled_install();
    ts_compiled_from_environment();
    ts_emit_from_environment();
    ts_arenas_from_environment();
    ts_above.resolve = resolve;
    ts_above.unrepeatable = ts_notes_unrepeatable;
    ts_above.holds = holds;
    ts_above.hold_leaf = hold_leaf;
    TS_TRY(ts_register_fallback(TS_KEY_LAZY, defer, NULL));
    return ts_key_prefer_fallback(TS_KEY_LAZY, true);
}
