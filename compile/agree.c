/** @file agree.c  Compares two calls of one plan. If they are equal, later calls may be replays. */
// SPDX-License-Identifier: MIT
#include "compile/replay.h"

#include <stdio.h>
#include <string.h>

#define AT(array, type, i) ((type *)(array).data + (i))

static bool numbers_agree(const ts_exec *e, const ts_repeat *a, const ts_repeat *b, char *why,
                          size_t size)
{
    const uint64_t *before = a->numbers.data, *now = b->numbers.data;
    bool declared = a->modes.epoch == b->modes.epoch && a->matched; /* `predicted` is valid */
    for (uint32_t i = 0; i < b->rules.count; i++) {
        const ts_number_rule *x = AT(a->rules, ts_number_rule, i),
                             *y = AT(b->rules, ts_number_rule, i);
        const char *what = NULL;
        char text[100];
        ts_number_kind kind = y->kind;
        if (x->kind != y->kind || (kind != TS_NUMBER_FIXED && kind != TS_NUMBER_SEED &&
                                   x->distance != y->distance)) {
            what = "has another source in each call";
        } else if (kind == TS_NUMBER_FIXED && before[i] != now[i]) {
            double was, is;
            memcpy(&was, &before[i], sizeof was);
            memcpy(&is, &now[i], sizeof is);
            snprintf(text, sizeof text, "was %g and is %g (ts_number_from() declares it)", was, is);
            what = text;
        } else if (declared && (kind == TS_NUMBER_CELL || kind == TS_NUMBER_COUNT) &&
                   *AT(a->predicted, uint64_t, i) != now[i]) {
            what = "is changed by the function itself before the call takes it";
        }
        if (what) {
            ts_replay_refuse_number(why, size, e, y, *AT(b->sites, const void *,
                                     ts_graph_node_at(e->graph, y->node)->end),
                                    what);
            return false;
        }
    }
    return true;
}

/* ------------------------------------------------------------------------- guards, as text ---- */

/** Writes in which mode the thread differs from p's call. */
static void name_modes(const ts_repeat *p, const struct ts_replay_modes *now, char *text,
                       size_t size)
{
    static const char *const states[] = {"off", "on"};
    const struct ts_replay_modes *was = &p->modes;
    ts_keyset include = was->include ^ now->include, exclude = was->exclude ^ now->exclude;
    if (exclude & TS_KEYSET(TS_KEY_AUTOGRAD)) {
        bool on = !(now->exclude & TS_KEYSET(TS_KEY_AUTOGRAD));
        snprintf(text, size, "grad mode was %s, now %s", states[!on], states[on]);
    } else if (was->autocast != now->autocast || was->no_cast_cache != now->no_cast_cache ||
               (include | exclude) & TS_KEYSET(TS_KEY_AUTOCAST)) {
        snprintf(text, size, "autocast has changed");
    } else if (include | exclude) {
        ts_key key = ts_highest_key(include | exclude);
        bool on = (now->include & ~now->exclude) >> key & 1;
        snprintf(text, size, "the layer %s was %s, now %s", ts_key_name(key), states[!on],
                 states[on]);
    } else if (!ts_same_device(was->device, now->device)) {
        char device[40];
        snprintf(device, sizeof device, "%s", ts_device_name(was->device));
        snprintf(text, size, "the default device was %s, now %s", device,
                 ts_device_name(now->device));
    } else {
        snprintf(text, size, "deterministic mode was %s, now %s", states[was->deterministic],
                 states[now->deterministic]);
    }
}

/** Writes in which property input i differs from its guard; false if its header is as before. */
static bool name_input(const ts_input_guard *g, const ts_tensor *t, uint32_t i, char *text,
                       size_t size)
{
    const ts_layout *l = &g->layout;
    char device[40];
    if (g->kind.dtype != t->dtype) {
        snprintf(text, size, "input %u had dtype %s, now %s", i, ts_dtype_name(g->kind.dtype),
                 ts_dtype_name(t->dtype));
        return true;
    }
    if (g->kind.ndim != t->ndim) {
        snprintf(text, size, "input %u had %d dims, now %d", i, g->kind.ndim, t->ndim);
        return true;
    }
    if (g->kind.bits != t->kind.bits) {
        snprintf(device, sizeof device, "%s", ts_device_name(g->kind.device));
        snprintf(text, size, "input %u was on %s, now on %s", i, device,
                 ts_device_name(t->device));
        return true;
    }
    for (int k = 0; k < 2 * t->ndim; k++) {
        int d = k % t->ndim;
        int64_t was = k < t->ndim ? l->sizes[d] : l->strides[d],
                now = k < t->ndim ? t->sizes[d] : t->strides[d];
        if (was != now) {
            snprintf(text, size, "input %u had %s %lld in dim %d, now %lld", i,
                     k < t->ndim ? "size" : "stride", (long long)was, d, (long long)now);
            return true;
        }
    }
    if (l->offset != ts_tensor_byte_offset(t)) {
        snprintf(text, size, "input %u began at byte %lld of its memory, now at %lld", i,
                 (long long)l->offset, (long long)ts_tensor_byte_offset(t));
        return true;
    }
    bool required = g->keys & TS_KEYSET(TS_KEY_AUTOGRAD);
    if (g->keys == t->keys || required == ts_requires_grad(t))
        return false;
    snprintf(text, size, "input %u %s, now it %s", i,
             required ? "required grad" : "did not require grad", required ? "does not" : "does");
    return true;
}

void ts_replay_name_miss(const ts_repeat *p, const struct ts_replay_modes *now,
                         ts_tensor *const *inputs, int n, const char *why, char *text, size_t size)
{
    snprintf(text, size, "%s", why);
    if ((uint32_t)n != p->inputs.count || p->modes.epoch != now->epoch)
        return;
    if (memcmp(&p->modes, now, sizeof *now) != 0) {
        name_modes(p, now, text, size);
        return;
    }
    for (uint32_t i = 0; i < p->inputs.count; i++)
        if (name_input(AT(p->inputs, ts_input_guard, i), inputs[i], i, text, size))
            return;
}

/* ---------------------------------------------------------------------------- comparisons ---- */

/** Compares the origins of storages. If both calls have a storage of the same input but the two
 *  storages differ, its origin becomes TS_ORIGIN_INPUT. */
static bool holders_agree(const ts_exec *e, const ts_repeat *a, ts_repeat *b, bool *varies,
                          char *why, size_t size)
{
    for (uint32_t i = 0; i < b->holders.count; i++) {
        const ts_holder *x = AT(a->holders, ts_holder, i);
        ts_holder *y = AT(b->holders, ts_holder, i);
        bool inputs = x->origin == TS_ORIGIN_INPUT ? x->at + 1 == y->input
                                                   : x->input && x->input == y->input;
        if (x->writes != y->writes) {
            snprintf(why, size, "the number of writes to a tensor differs");
            return false;
        }
        if (y->origin == TS_ORIGIN_FIXED && inputs &&
            (x->origin == TS_ORIGIN_INPUT || x->storage != y->storage)) {
            ts_storage_release(y->storage);
            *y = (ts_holder){.at = y->input - 1, .origin = TS_ORIGIN_INPUT, .writer = y->writer,
                             .writes = y->writes};
            continue;
        }
        bool equal = x->origin == y->origin &&
                     (y->origin == TS_ORIGIN_FIXED ? x->storage == y->storage || !y->storage->bytes
                                                   : x->at == y->at);
        if (equal)
            continue;
        *varies = x->origin == TS_ORIGIN_FIXED && y->origin == TS_ORIGIN_FIXED &&
                  /* the program still holds the earlier one */
                  atomic_load(&x->storage->refs) > ts_replays_hold(x->storage);
        ts_replay_refuse_storage(why, size, e, &b->sites, i,
                       "a tensor that is not an input differs from call to call, of");
        return false;
    }
    return true;
}

static bool leaves_agree(const ts_repeat *a, const ts_repeat *b)
{
    for (uint32_t i = 0; i < b->leaves.count; i++) {
        const ts_leaf_rule *x = AT(a->leaves, ts_leaf_rule, i), *y = AT(b->leaves, ts_leaf_rule, i);
        bool same = y->input ? x->input == y->input
                             : !x->input && x->leaf == y->leaf && x->slot == y->slot;
        if (!same || x->had != y->had || x->alone != y->alone || x->read != y->read ||
            x->after != y->after || x->holder != y->holder ||
            memcmp(&x->before, &y->before, sizeof x->before) != 0 ||
            memcmp(&x->now, &y->now, sizeof x->now) != 0)
            return false;
    }
    return true;
}

static bool outputs_agree(const ts_repeat *a, ts_repeat *b)
{
    for (uint32_t i = 0; i < b->outputs.count; i++) {
        const ts_output_rule *x = AT(a->outputs, ts_output_rule, i);
        ts_output_rule *y = AT(b->outputs, ts_output_rule, i);
        bool decided = x->kind == TS_OUTPUT_HANDLE || (x->kind == TS_OUTPUT_NEW && !x->handle);
        if (y->kind == TS_OUTPUT_NEW && y->handle) { /* the same tensor, or a new view? */
            bool itself = decided ? x->kind == TS_OUTPUT_HANDLE && x->handle == y->handle
                                  : x->handle == y->handle;
            if (x->kind == TS_OUTPUT_HANDLE && !itself)
                return false;
            y->kind = itself ? TS_OUTPUT_HANDLE : TS_OUTPUT_NEW;
            if (!itself) {
                if (ts_requires_grad(y->handle))
                    return false;
                ts_tensor_unref(y->handle);
                y->handle = NULL;
            }
        }
        if ((x->kind != y->kind && !(x->kind == TS_OUTPUT_NEW && x->handle)) || x->at != y->at ||
            memcmp(&x->layout, &y->layout, sizeof x->layout) != 0)
            return false;
    }
    return true;
}

static bool same_bytes(const ts_array *a, const ts_array *b, size_t item)
{
    return a->count == b->count && (!a->count || memcmp(a->data, b->data, a->count * item) == 0);
}

static bool inputs_agree(const ts_repeat *a, const ts_repeat *b)
{
    return same_bytes(&a->inputs, &b->inputs, sizeof(ts_input_guard));
}

bool ts_replay_agrees(const ts_exec *e, const ts_repeat *a, ts_repeat *b, bool *varies, char *why,
                      size_t size)
{
    struct ts_replay_modes modes = a->modes;
    const char *what = NULL;
    *varies = false;
    modes.epoch = b->modes.epoch;
    if (memcmp(&modes, &b->modes, sizeof modes) != 0)
        what = "modes of the thread have changed: grad mode, autocast, layers, default device";
    else if (a->dependencies.count != b->dependencies.count ||
             !same_bytes(&a->dependencies, &b->dependencies, sizeof(ts_dependency)) ||
             !same_bytes(&a->copies, &b->copies, 1))
        what = "memory that ts_depends_on() declares has changed";
    else if (!inputs_agree(a, b))
        what = "inputs have other layouts, dtypes, devices or requires_grad";
    else if (a->holders.count != b->holders.count || a->leaves.count != b->leaves.count ||
             !leaves_agree(a, b))
        what = "gradients existed before one call and not before another";
    else if (a->outputs.count != b->outputs.count || !outputs_agree(a, b))
        what = "outputs have other layouts or are other tensors";
    else if (a->drawn != b->drawn)
        what = "the number of random numbers differs";
    if (what) {
        snprintf(why, size, "%s", what);
        return false;
    }
    bool alike = holders_agree(e, a, b, varies, why, size);
    /* b may be kept whether or not the calls agree, and some of its storages may be released now */
    if (!ts_replay_add_fixed(b, e) || !alike)
        return false;
    *varies = !numbers_agree(e, a, b, why, size);
    return !*varies;
}
