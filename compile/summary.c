/** @file summary.c  Makes the ts_repeat of a recorded call: guards, sources of numbers and
 * storages, results. */
// SPDX-License-Identifier: MIT
#include "compile/replay.h"
#include "core/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(array, type, i) ((type *)(array).data + (i))

/* --------------------------------------------------------------------------------- text ---- */

/** Writes the argument and the call of a number, and `what`, to `why`. */
void ts_replay_refuse_number(char *why, size_t size, const ts_exec *e, const ts_number_rule *r,
                          const void *site, const char *what)
{
    char text[160];
    const ts_graph_node *n = ts_graph_node_at(e->graph, r->node);
    snprintf(why, size, "number '%s' of %.40s, called from %.80s, %s",
             r->arg == UINT8_MAX ? "seed" : ts_ops[n->op].schema.args[r->arg].name,
             ts_graph_node_name(e->graph, n), ts_format_site(text, sizeof text, site), what);
}

/** Writes `what` and the first call that uses a storage to `why`. */
void ts_replay_refuse_storage(char *why, size_t size, const ts_exec *e, const ts_array *sites,
                           uint32_t storage, const char *what)
{
    char text[160];
    const ts_graph *g = e->graph;
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        const ts_graph_arg *a = ts_graph_args_of(g, n);
        bool touches = false;
        for (int k = 0; k < n->nrets; k++)
            touches |= n->rets[k] && ts_graph_value_at(g, n->rets[k])->storage == storage;
        for (int k = 0; k < n->nargs; k++) {
            bool list = a[k].tag == TS_TAG_TENSORS;
            for (uint32_t j = 0; j < (list ? a[k].count : a[k].tag == TS_TAG_TENSOR); j++) {
                ts_id id = list ? (ts_id)ts_graph_ints_at(g, a[k].at)[j] : a[k].id;
                touches |= ts_graph_value_at(g, id)->storage == storage;
            }
        }
        if (touches) {
            snprintf(why, size, "%s %.40s, called from %.100s", what, ts_graph_node_name(g, n),
                     ts_format_site(text, sizeof text, *AT(*sites, const void *, n->end)));
            return;
        }
    }
    snprintf(why, size, "%s an output", what);
}

/* ------------------------------------------------------------------------------ holding ---- */

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static ts_repeat *list;
static void lock(void) { pthread_mutex_lock(&list_lock); }
static void unlock(void) { pthread_mutex_unlock(&list_lock); }
void ts_replays_install(void) { TS_FORK_GUARD(&list_lock); }

static int by_address(const void *a, const void *b)
{
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

bool ts_replay_is_fixed(const ts_repeat *p, const ts_storage *s)
{
    return p->fixed.count &&
           bsearch(&s, p->fixed.data, p->fixed.count, sizeof s, by_address) != NULL;
}

/** References to a storage or tensor that p has. */
static int32_t held_by(const ts_repeat *p, const void *x)
{
    const void **all = p->fixed.data,
               **at = p->fixed.count
                          ? bsearch(&x, all, p->fixed.count, sizeof x, by_address) : NULL;
    int32_t n = at != NULL;
    for (const void **k = at; n && k > all && k[-1] == x; k--)
        n++;
    for (const void **k = at; n && k + 1 < all + p->fixed.count && k[1] == x; k++)
        n++;
    return n;
}

/** References that all listed ts_repeats have. The caller holds the list's lock. */
static int32_t held_by_all(const void *x)
{
    int32_t n = 0;
    for (const ts_repeat *p = list; p; p = p->next)
        n += held_by(p, x);
    return n;
}

int32_t ts_replays_hold(const ts_storage *s)
{
    lock();
    int32_t n = held_by_all(s);
    unlock();
    return n;
}

static _Atomic uint64_t list_changes = 1;

void ts_replay_count_held(ts_repeat *p)
{
    if (TS_LIKELY(p->counted == atomic_load_explicit(&list_changes, memory_order_acquire)))
        return;
    lock();
    p->counted = atomic_load(&list_changes);
    for (uint32_t i = 0; i < p->holders.count; i++) {
        ts_holder *h = AT(p->holders, ts_holder, i);
        h->held = h->storage ? held_by_all(h->storage) : 0;
    }
    for (uint32_t i = 0; i < p->leaves.count; i++) {
        ts_leaf_rule *r = AT(p->leaves, ts_leaf_rule, i);
        r->held = r->leaf ? held_by_all(r->leaf) : 0;
    }
    for (uint32_t i = 0; i < p->outputs.count; i++) {
        ts_output_rule *r = AT(p->outputs, ts_output_rule, i);
        r->held = r->handle ? held_by_all(r->handle) : 0;
    }
    unlock();
}

void ts_replay_list(ts_repeat *p)
{
    lock();
    p->next = list;
    p->link = &list;
    if (list)
        list->link = &p->next;
    list = p;
    atomic_fetch_add(&list_changes, 1);
    unlock();
    atomic_fetch_add(&ts_replays, 1);
}

static void remove_from_list(ts_repeat *p)
{
    lock();
    bool listed = p->link != NULL;
    if (listed)
        *p->link = p->next;
    if (listed && p->next)
        p->next->link = p->link;
    atomic_fetch_add(&list_changes, (uint64_t)listed);
    unlock();
    atomic_fetch_sub(&ts_replays, listed);
}

/* ------------------------------------------------------------------------------ summary ---- */

static bool copy_array(ts_array *to, const ts_array *from, size_t item)
{
    if (from->count && !ts_array_reserve(to, from->count, item))
        return false;
    if (from->count)
        memcpy(to->data, from->data, from->count * item);
    to->count = from->count;
    return true;
}

static bool zeroed(ts_array *a, uint32_t n, size_t item)
{
    if (n && !ts_array_reserve(a, n, item))
        return false;
    if (n)
        memset(a->data, 0, n * item);
    a->count = n;
    return true;
}

void ts_layout_of(ts_layout *l, const ts_tensor *t)
{
    memset(l, 0, sizeof *l); /* compared byte by byte */
    l->dtype = t->dtype;
    l->ndim = t->ndim;
    l->flags = t->flags & (TS_TENSOR_CONTIGUOUS | TS_TENSOR_VIEW);
    l->offset = ts_tensor_byte_offset(t);
    memcpy(l->sizes, t->sizes, t->ndim * sizeof *l->sizes);
    memcpy(l->strides, t->strides, t->ndim * sizeof *l->strides);
}

static ts_storage *hold(ts_storage *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

/** Index + 1 of the first input on storage s; 0: none. */
static uint32_t input_on(const ts_notes *n, const ts_storage *s)
{
    for (int i = 0; i < n->ninputs; i++)
        if (n->inputs[i]->storage == s)
            return (uint32_t)i + 1;
    return 0;
}

/** Fills p->holders with the origin of each storage of the recording. */
static bool add_holders(ts_repeat *p, const ts_lazy *l)
{
    const ts_notes *n = l->notes;
    if (!zeroed(&p->holders, l->storages.count, sizeof(ts_holder)))
        return false;
    for (uint32_t i = 0; i < l->storages.count; i++) {
        const ts_lazy_storage *s = AT(l->storages, ts_lazy_storage, i);
        ts_holder *h = AT(p->holders, ts_holder, i);
        if (!s->storage)
            continue;
        h->writes = s->storage->version - (s->outside ? s->version : 0);
        h->writer = s->storage->writer;
        if (!s->outside)
            continue;
        h->origin = TS_ORIGIN_FIXED;
        h->input = input_on(n, s->storage);
    }
    for (uint32_t k = 0; k < n->leaves.count; k++) {
        const ts_leaf *leaf = AT(n->leaves, ts_leaf, k);
        uint32_t i = leaf->memory ? ts_lazy_find(l, leaf->memory) : 0;
        if (i && !AT(p->holders, ts_holder, i - 1)->input) {
            AT(p->holders, ts_holder, i - 1)->origin = TS_ORIGIN_GRADIENT;
            AT(p->holders, ts_holder, i - 1)->at = k;
        }
    }
    for (uint32_t i = 0; i < l->storages.count; i++)
        if (AT(p->holders, ts_holder, i)->origin == TS_ORIGIN_FIXED)
            AT(p->holders, ts_holder, i)->storage =
                hold(AT(l->storages, ts_lazy_storage, i)->storage);
    return true;
}

/** Sets *holder to the index of t's storage in p->holders; adds a holder if no call used it. */
static bool holder_of(ts_repeat *p, const ts_lazy *l, const ts_tensor *t, uint32_t *holder)
{
    if (t->storage->id >> TS_ID_BITS == l->serial) {
        *holder = ts_id_index(t->storage->id);
        return true;
    }
    uint32_t found = ts_lazy_find(l, t->storage);
    for (uint32_t i = l->storages.count; i < p->holders.count && !found; i++)
        if (AT(p->holders, ts_holder, i)->storage == t->storage)
            found = i + 1;
    if (!found) {
        if (!ts_array_reserve(&p->holders, 1, sizeof(ts_holder)))
            return false;
        *TS_PUSH(p->holders, ts_holder) =
            (ts_holder){.storage = hold(t->storage), .input = input_on(l->notes, t->storage),
                        .origin = TS_ORIGIN_FIXED};
        found = p->holders.count;
    }
    *holder = found - 1;
    return true;
}

static bool add_inputs(ts_repeat *p, const ts_lazy *l)
{
    ts_notes *n = l->notes;
    if (!zeroed(&p->inputs, (uint32_t)n->ninputs, sizeof(ts_input_guard)))
        return false;
    for (int i = 0; i < n->ninputs; i++) {
        ts_input_guard *g = AT(p->inputs, ts_input_guard, i);
        const ts_tensor *t = n->inputs[i];
        g->keys = t->keys & ~TS_KEYSET(TS_KEY_LAZY);
        g->kind = t->kind;
        ts_layout_of(&g->layout, t);
        for (uint32_t k = 0; k < p->holders.count && !g->holder; k++)
            if (AT(p->holders, ts_holder, k)->storage == t->storage)
                g->holder = k + 1;
        if (t->node)
            ts_notes_refuse(n, "an input with a history", NULL);
    }
    return true;
}

/** Fills p->leaves with the gradients and declared variables before and after the call. handles[i]:
 *  number of handles on storage i that a replay would make. */
static bool add_leaves(ts_repeat *p, const ts_lazy *l, uint32_t *handles)
{
    const ts_notes *n = l->notes;
    if (!zeroed(&p->leaves, n->leaves.count, sizeof(ts_leaf_rule)))
        return false;
    for (uint32_t i = 0; i < n->leaves.count; i++) {
        const ts_leaf *noted = AT(n->leaves, ts_leaf, i);
        ts_leaf_rule *r = AT(p->leaves, ts_leaf_rule, i);
        r->slot = noted->slot;
        r->leaf = noted->leaf ? ts_tensor_ref(noted->leaf) : NULL;
        const ts_tensor *now = ts_leaf_tensor(r, noted->leaf);
        for (int k = 0; k < n->ninputs && !r->input && r->leaf; k++)
            r->input = n->inputs[k] == noted->leaf ? (uint32_t)k + 1 : 0;
        r->had = noted->before != NULL;
        r->alone = noted->alone;
        uint32_t touched = noted->memory ? ts_lazy_find(l, noted->memory) : 0;
        r->read = touched != 0;
        r->before = noted->layout;
        bool fresh = now && now->storage->id >> TS_ID_BITS == l->serial;
        if (!now) {
            r->after = r->slot ? TS_GRADIENT_KEPT : TS_GRADIENT_NONE;
            if (r->slot && r->had)
                ts_notes_refuse(l->notes, "a declared variable that loses its tensor", NULL);
        } else if (now == noted->before && !fresh) {
            r->after = TS_GRADIENT_KEPT;
        } else {
            r->after = TS_GRADIENT_NEW;
            ts_layout_of(&r->now, now);
            if (!holder_of(p, l, now, &r->holder))
                return false;
            if (fresh)
                handles[r->holder] += atomic_load(&now->refs) == 1 ? 1 : UINT16_MAX;
            if (now->node)
                ts_notes_refuse(l->notes, "a gradient or a declared variable with a history",
                                NULL);
        }
    }
    return true;
}

static bool add_outputs(ts_repeat *p, const ts_lazy *l, uint32_t *handles)
{
    ts_notes *n = l->notes;
    if (!zeroed(&p->outputs, (uint32_t)n->noutputs, sizeof(ts_output_rule)))
        return false;
    for (int i = 0; i < n->noutputs; i++) {
        ts_output_rule *r = AT(p->outputs, ts_output_rule, i);
        ts_tensor *t = n->outputs[i];
        r->kind = TS_OUTPUT_NONE;
        if (!t) {
            ts_notes_refuse(n, "an output that is NULL", NULL);
            return true;
        }
        if (t == TS_NONE)
            continue;
        for (int k = 0; k < n->ninputs && r->kind == TS_OUTPUT_NONE; k++)
            if (t == n->inputs[k])
                *r = (ts_output_rule){.kind = TS_OUTPUT_INPUT, .at = (uint32_t)k};
        for (int k = 0; k < i && r->kind == TS_OUTPUT_NONE; k++)
            if (t == n->outputs[k])
                *r = (ts_output_rule){.kind = TS_OUTPUT_SAME, .at = (uint32_t)k};
        for (uint32_t k = 0; k < p->leaves.count && r->kind == TS_OUTPUT_NONE; k++) {
            const ts_leaf_rule *leaf = AT(p->leaves, ts_leaf_rule, k);
            if (leaf->after == TS_GRADIENT_NEW && ts_leaf_tensor(leaf, leaf->leaf) == t)
                *r = (ts_output_rule){.kind = TS_OUTPUT_GRADIENT, .at = k};
        }
        if (r->kind != TS_OUTPUT_NONE)
            continue;
        bool fresh = t->storage->id >> TS_ID_BITS == l->serial;
        if (t->node)
            ts_notes_refuse(n, "an output with a history (ts_detach() cuts it)", NULL);
        else if (fresh && ts_requires_grad(t))
            ts_notes_refuse(n, "an output that requires grad", NULL);
        if (!holder_of(p, l, t, &r->at))
            return false;
        r->kind = TS_OUTPUT_NEW;
        ts_layout_of(&r->layout, t);
        if (fresh)
            handles[r->at] += atomic_load(&t->refs) == 1 && t->link ? 1 : UINT16_MAX;
        else /* the same tensor or a new view in each call? ts_replay_agrees() decides */
            r->handle = ts_tensor_ref(t);
    }
    return true;
}

static bool is_number(const ts_graph_arg *a)
{
    return a->role == TS_ROLE_VALUE && a->tag != TS_TAG_NONE;
}

/** Marks two numbers as the generator's seed and offset if the seed is the one before the call. */
static void set_rng_rules(ts_repeat *p, const uint64_t *numbers, uint32_t seed, uint32_t offset)
{
    ts_number_rule *rules = p->rules.data;
    if (numbers[seed] != p->rng.seed)
        return;
    rules[seed].kind = TS_NUMBER_SEED;
    rules[offset].kind = TS_NUMBER_OFFSET;
    rules[offset].distance = numbers[offset] - p->rng.offset;
}

/** Fills p->rules with the source of each number: first from the calls, then from declarations. */
static bool add_numbers(ts_repeat *p, const ts_lazy *l, const ts_exec *e)
{
    ts_notes *n = l->notes;
    const ts_graph *g = e->graph;
    const uint64_t *numbers = l->numbers.data;
    if (!copy_array(&p->numbers, &l->numbers, sizeof(uint64_t)) ||
        !copy_array(&p->sites, &l->sites, sizeof(void *)) ||
        !zeroed(&p->rules, l->numbers.count, sizeof(ts_number_rule)))
        return false;
    ts_number_rule *rules = p->rules.data;
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        const ts_graph_node *node = ts_graph_node_at(g, i);
        const ts_graph_arg *a = ts_graph_args_of(g, node);
        for (int k = 0; k < node->nargs; k++) {
            uint32_t count = a[k].tag == TS_TAG_INTS ? a[k].count : 1;
            for (uint32_t m = 0; is_number(&a[k]) && m < count; m++)
                rules[a[k].at + m] = (ts_number_rule){.node = i, .arg = (uint8_t)k};
        }
        for (int k = 0; k + 1 < node->nargs; k++) /* seed and offset of an earlier draw */
            if (is_number(&a[k]) && is_number(&a[k + 1]) && a[k].tag == TS_TAG_INT &&
                a[k + 1].tag == TS_TAG_INT && numbers[a[k + 1].at] - n->rng.offset < p->drawn)
                set_rng_rules(p, numbers, a[k].at, a[k + 1].at);
        if (!(node->flags & TS_NODE_RANDOM))
            continue;
        uint32_t at = (uint32_t)node->rng.offset;
        rules[at] = rules[at + 1] = (ts_number_rule){.node = i, .arg = UINT8_MAX};
        set_rng_rules(p, numbers, at, at + 1);
    }
    for (uint32_t i = 0; i < n->cells.count; i++) {
        const ts_cell *c = AT(n->cells, ts_cell, i);
        rules[c->at].kind = c->kind;
        rules[c->at].cell = c->address;
        if (memcmp(c->address, &numbers[c->at], sizeof(uint64_t)) != 0 && !n->why[0])
            ts_replay_refuse_number(n->why, sizeof n->why, e, &rules[c->at],
                          *AT(l->sites, const void *,
                              ts_graph_node_at(g, rules[c->at].node)->end),
                          c->kind == TS_NUMBER_COUNT
                              ? "is not the declared count, which the function must advance"
                              : "is not the declared one, or the function has changed it since");
    }
    if (n->waiting.count && !n->why[0])
        snprintf(n->why, sizeof n->why, "no call of %s took its declared number",
                 ts_op_name(AT(n->waiting, ts_cell, 0)->op));
    return true;
}

/** Refuses replays if the program keeps a result that is no output, gradient or declared variable,
 *  because a replay would not make the result. */
static void find_kept(const ts_lazy *l, const ts_exec *e, const uint32_t *handles)
{
    ts_notes *n = l->notes;
    for (uint32_t i = 0; i < l->storages.count && !n->why[0]; i++) {
        const ts_lazy_storage *s = AT(l->storages, ts_lazy_storage, i);
        if (!s->outside && s->storage &&
            (uint32_t)atomic_load(&s->storage->refs) != handles[i])
            ts_replay_refuse_storage(n->why, sizeof n->why, e, &l->sites, i,
                           "the function keeps a tensor that is not an output, of");
    }
}

bool ts_replay_add_fixed(ts_repeat *p, const ts_exec *e)
{
    p->fixed.count = p->varying.count = 0;
    uint32_t most = p->holders.count + p->leaves.count + p->outputs.count + 1;
    if (!ts_array_reserve(&p->fixed, most, sizeof(void *)) ||
        !ts_array_reserve(&p->varying, p->holders.count + 1, sizeof(uint32_t)) ||
        !zeroed(&p->stays, e->nstorages + 1, sizeof(bool)))
        return false;
    for (uint32_t i = 0; i < p->storages.count; i++) {
        bool stays = AT(p->holders, ts_holder, i)->origin == TS_ORIGIN_FIXED;
        *AT(p->stays, bool, i) = stays;
        if (!stays)
            *TS_PUSH(p->varying, uint32_t) = i;
    }
    for (uint32_t i = 0; i < p->holders.count; i++)
        if (AT(p->holders, ts_holder, i)->origin == TS_ORIGIN_FIXED &&
            AT(p->holders, ts_holder, i)->storage->bytes)
            *TS_PUSH(p->fixed, void *) = AT(p->holders, ts_holder, i)->storage;
    for (uint32_t i = 0; i < p->leaves.count; i++)
        if (AT(p->leaves, ts_leaf_rule, i)->leaf)
            *TS_PUSH(p->fixed, void *) = AT(p->leaves, ts_leaf_rule, i)->leaf;
    for (uint32_t i = 0; i < p->outputs.count; i++)
        if (AT(p->outputs, ts_output_rule, i)->handle)
            *TS_PUSH(p->fixed, void *) = AT(p->outputs, ts_output_rule, i)->handle;
    qsort(p->fixed.data, p->fixed.count, sizeof(void *), by_address);
    return true;
}

/** Refuses replays if the function changed memory that ts_depends_on() declares, because a replay
 *  would not change it. */
static void find_changed_memory(const ts_lazy *l)
{
    ts_notes *n = l->notes;
    for (uint32_t i = 0; i < n->dependencies.count; i++) {
        const ts_dependency *d = AT(n->dependencies, ts_dependency, i);
        if (memcmp(d->memory, (const char *)n->copies.data + d->at, d->bytes) != 0)
            ts_notes_refuse(n, "a change of memory that ts_depends_on() declares", NULL);
    }
}

/** Refuses replays if a layer of the user saw the function's calls: a replay makes no calls that a
 *  layer could see. */
static void find_layers(const ts_lazy *l)
{
    ts_notes *n = l->notes;
    const ts_keyset ours = TS_KEYSET(TS_KEY_AUTOGRAD) | TS_KEYSET(TS_KEY_AUTOCAST) |
                           TS_KEYSET(TS_KEY_TRACING) | TS_KEYSET(TS_KEY_ABSENT) | TS_BACKEND_KEYS;
    ts_keyset others = (n->modes.include | l->keys) & ~n->modes.exclude & ~ours;
    if (others && !n->why[0])
        snprintf(n->why, sizeof n->why, "the layer %s sees its calls",
                 ts_key_name(ts_highest_key(others)));
}

ts_repeat *ts_replay_of(const ts_lazy *l, const ts_exec *e)
{
    ts_notes *n = l->notes;
    ts_thread *thread = n->thread;
    if (n->why[0])
        return NULL;
    if (n->modes.epoch != atomic_load_explicit(&ts_epoch, memory_order_relaxed)) {
        snprintf(n->why, sizeof n->why, "a module, an optimizer, requires_grad of a tensor or the "
                                        "registry changed in the function");
        return NULL;
    }
    ts_array handles = {0}; /* uint32_t per storage: number of handles that a replay makes */
    ts_repeat *p = ts_alloc(thread, sizeof *p);
    if (p)
        *p = (ts_repeat){.modes = n->modes, .rng = n->rng, .agreed = 1,
                         .drawn = thread->rng.offset - n->rng.offset};
    bool ok = p && !n->failed && zeroed(&handles, l->storages.count + 1, sizeof(uint32_t)) &&
              add_holders(p, l) && add_leaves(p, l, handles.data) &&
              add_outputs(p, l, handles.data) && add_inputs(p, l) && add_numbers(p, l, e) &&
              copy_array(&p->dependencies, &n->dependencies, sizeof(ts_dependency)) &&
              copy_array(&p->copies, &n->copies, 1) &&
              copy_array(&p->predicted, &l->numbers, sizeof(uint64_t)) &&
              zeroed(&p->storages, l->storages.count, sizeof(ts_lazy_storage)) &&
              ts_replay_add_fixed(p, e) &&
              zeroed(&p->made, p->leaves.count + p->outputs.count, sizeof(ts_tensor *));
    if (ok) {
        find_kept(l, e, handles.data);
        find_layers(l);
        find_changed_memory(l);
        if (thread->rng.seed != n->rng.seed)
            ts_notes_refuse(n, "a new state of the generator", NULL);
    } else if (!n->why[0]) {
        n->failed = true;
        snprintf(n->why, sizeof n->why, "out of memory for what a replay needs");
    }
    ts_array_free(&handles, sizeof(uint32_t));
    if (!n->why[0])
        return p;
    ts_replay_free(p);
    return NULL;
}

void ts_replay_free(ts_repeat *p)
{
    if (!p)
        return;
    remove_from_list(p);
    for (uint32_t i = 0; i < p->holders.count; i++)
        if (AT(p->holders, ts_holder, i)->storage)
            ts_storage_release(AT(p->holders, ts_holder, i)->storage);
    for (uint32_t i = 0; i < p->leaves.count; i++)
        if (AT(p->leaves, ts_leaf_rule, i)->leaf)
            ts_tensor_unref(AT(p->leaves, ts_leaf_rule, i)->leaf);
    for (uint32_t i = 0; i < p->outputs.count; i++)
        if (AT(p->outputs, ts_output_rule, i)->handle)
            ts_tensor_unref(AT(p->outputs, ts_output_rule, i)->handle);
    ts_array_free(&p->inputs, sizeof(ts_input_guard));
    ts_array_free(&p->holders, sizeof(ts_holder));
    ts_array_free(&p->leaves, sizeof(ts_leaf_rule));
    ts_array_free(&p->outputs, sizeof(ts_output_rule));
    ts_array_free(&p->fixed, sizeof(void *));
    ts_array_free(&p->stays, sizeof(bool));
    ts_array_free(&p->varying, sizeof(uint32_t));
    ts_array_free(&p->numbers, sizeof(uint64_t));
    ts_array_free(&p->rules, sizeof(ts_number_rule));
    ts_array_free(&p->sites, sizeof(void *));
    ts_array_free(&p->predicted, sizeof(uint64_t));
    ts_array_free(&p->dependencies, sizeof(ts_dependency));
    ts_array_free(&p->copies, 1);
    ts_array_free(&p->storages, sizeof(ts_lazy_storage));
    ts_array_free(&p->made, sizeof(ts_tensor *));
    ts_free(&ts_tls, p, sizeof *p);
}
