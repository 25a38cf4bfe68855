/** @file guard.c  The guards of a replay: the properties that a call must have in common with the
 * recorded calls. */
// SPDX-License-Identifier: MIT
#include "compile/replay.h"

#include <string.h>

#define AT(array, type, i) ((type *)(array).data + (i))

static bool has_layout(const ts_layout *l, const ts_tensor *t)
{
    return l->dtype == t->dtype && l->ndim == t->ndim && l->offset == ts_tensor_byte_offset(t) &&
           ts_same_sizes(l->sizes, t->sizes, t->ndim) &&
           ts_same_sizes(l->strides, t->strides, t->ndim);
}

/** Checks the storage of input i. Returns NULL, or the reason why its memory forbids a replay. */
static const char *check_memory(const ts_repeat *p, ts_tensor *const *inputs, uint32_t i,
                                bool granted)
{
    const ts_input_guard *g = AT(p->inputs, ts_input_guard, i);
    const ts_storage *s = inputs[i]->storage;
    if (!g->holder)
        return NULL;
    const ts_holder *h = AT(p->holders, ts_holder, g->holder - 1);
    bool fixed = h->origin == TS_ORIGIN_FIXED;
    if (fixed && s == h->storage)
        return NULL;
    if (fixed && granted)
        return "an input has other memory than before";
    if (h->origin == TS_ORIGIN_GRADIENT)
        return "an input is a gradient";
    if (!fixed && h->at != i)
        return s == inputs[h->at]->storage ? NULL : "inputs no longer share their memory";
    if (ts_replay_is_fixed(p, s))
        return "an input shares its memory with a tensor of the function";
    for (uint32_t k = 0; k < i; k++) {
        uint32_t other = AT(p->inputs, ts_input_guard, k)->holder;
        if (other && other != g->holder && inputs[k]->storage == s)
            return "inputs share their memory";
    }
    return NULL;
}

static const char *check_inputs(const ts_repeat *p, ts_tensor *const *inputs, bool granted)
{
    for (uint32_t i = 0; i < p->inputs.count; i++) {
        const ts_input_guard *g = AT(p->inputs, ts_input_guard, i);
        const ts_tensor *t = inputs[i];
        if (g->kind.bits != t->kind.bits)
            return "an input has another dtype, number of dims or device";
        if (!has_layout(&g->layout, t))
            return "an input has other sizes, strides or offset";
        if (g->keys != t->keys)
            return "requires_grad or the layers of an input changed";
        if (t->node)
            return "an input has a history";
        const char *why = check_memory(p, inputs, i, granted);
        if (why)
            return why;
    }
    return NULL;
}

ts_tensor *ts_leaf_of(const ts_leaf_rule *r, ts_tensor *const *inputs)
{
    return r->input ? inputs[r->input - 1] : r->leaf;
}

static const char *check_leaves(const ts_repeat *p, ts_tensor *const *inputs)
{
    for (uint32_t i = 0; i < p->leaves.count; i++) {
        const ts_leaf_rule *r = AT(p->leaves, ts_leaf_rule, i);
        ts_tensor *leaf = ts_leaf_of(r, inputs), *g = ts_leaf_tensor(r, leaf);
        if (leaf && !r->input &&
            atomic_load_explicit(&leaf->refs, memory_order_relaxed) <= r->held)
            return "the program has released a parameter";
        if (r->had != (g != NULL))
            return r->had ? "a gradient or declared tensor is missing"
                          : "a gradient or declared tensor exists already";
        if (!r->read)
            continue;
        bool alone = leaf && atomic_load_explicit(&g->refs, memory_order_relaxed) == 1 &&
                     atomic_load_explicit(&g->storage->refs, memory_order_relaxed) == 1;
        if (alone != r->alone || !has_layout(&r->before, g) || ts_is_promised(g->storage->data))
            return "a gradient has other holders or another layout";
    }
    return NULL;
}

/** Checks the storages of FIXED holders, whose versions it stores, and the outputs that are the
 *  same tensor in each call. */
static const char *check_fixed(const ts_repeat *p)
{
    ts_holder *holders = p->holders.data;
    for (uint32_t i = 0; i < p->holders.count; i++) {
        ts_holder *h = &holders[i];
        const ts_storage *s = h->storage;
        if (h->origin != TS_ORIGIN_FIXED)
            continue;
        h->version = s->version;
        if (TS_LIKELY(atomic_load_explicit(&s->refs, memory_order_relaxed) > h->held &&
                      !ts_is_promised(s->data)))
            continue;
        if (s->bytes)
            return ts_is_promised(s->data) ? "a tensor of the function has no values"
                                           : "the program has released a tensor of the function";
    }
    for (uint32_t i = 0; i < p->outputs.count; i++) {
        const ts_output_rule *r = AT(p->outputs, ts_output_rule, i);
        if (r->handle && atomic_load_explicit(&r->handle->refs, memory_order_relaxed) <= r->held)
            return "the program has released an output that is always the same tensor";
    }
    return NULL;
}

void ts_replay_unlock(const ts_repeat *p, ts_tensor *const *inputs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const ts_leaf_rule *r = AT(p->leaves, ts_leaf_rule, i);
        if (!r->slot)
            ts_node_unlock(ts_gradient_node(ts_leaf_of(r, inputs)));
    }
}

/** Locks the leaves of p, so that no other thread changes their gradients between the guards and
 *  the end of the run. False, with none locked, if a thread has locked one or memory for the node
 *  of a leaf runs out. */
static bool hold_leaves(const ts_repeat *p, ts_tensor *const *inputs)
{
    uint32_t self = ts_node_self(ts_thread_self());
    for (uint32_t i = 0; i < p->leaves.count; i++) {
        const ts_leaf_rule *r = AT(p->leaves, ts_leaf_rule, i);
        ts_node *leaf = r->slot ? NULL : ts_gradient_node(ts_leaf_of(r, inputs));
        if (!r->slot && (!leaf || !ts_node_try_lock(leaf, self))) {
            ts_replay_unlock(p, inputs, i);
            return false;
        }
    }
    return true;
}

const char *ts_replay_check(ts_repeat *p, const struct ts_replay_modes *modes,
                         ts_tensor *const *inputs, int n, bool granted)
{
    const char *why;
    if ((uint32_t)n != p->inputs.count)
        return "the number of inputs differs";
    if (p->modes.epoch != modes->epoch)
        return "a module, an optimizer, requires_grad of a tensor or the registry changed";
    if (memcmp(&p->modes, modes, sizeof *modes) != 0)
        return "modes of the thread changed: grad mode, autocast, layers, default device";
    for (uint32_t i = 0; i < p->dependencies.count; i++) {
        const ts_dependency *d = AT(p->dependencies, ts_dependency, i);
        if (memcmp(d->memory, (const char *)p->copies.data + d->at, d->bytes) != 0)
            return "memory that ts_depends_on() declares changed";
    }
    if ((why = check_inputs(p, inputs, granted)) != NULL)
        return why;
    ts_replay_count_held(p);
    if (!hold_leaves(p, inputs))
        return "another thread adds to a gradient";
    if ((why = check_leaves(p, inputs)) != NULL || (why = check_fixed(p)) != NULL)
        ts_replay_unlock(p, inputs, p->leaves.count);
    return why;
}
