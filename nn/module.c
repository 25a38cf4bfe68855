/** @file module.c  Modules: members, traversal of the tree, operations on the whole tree. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <stdlib.h>
#include <string.h>

enum {
    NAME_MOST = 511,  /* most bytes of a dotted name, without the terminating 0 */
    ALIGNMENT = 64
};

void *ts_nn_alloc(int64_t count, size_t item, const char *what)
{
    void *block = count < 0 ? NULL : calloc(count ? (size_t)count : 1, item);
    if (!block)
        ts_error_memory(what, count * (int64_t)item);
    return block;
}

char *ts_nn_copy_text(const char *text, const char *what)
{
    char *copy = strdup(text);
    if (!copy)
        ts_error_memory(what, (int64_t)strlen(text) + 1);
    return copy;
}

bool ts_nn_contains(ts_tensor *const *list, int64_t n, const ts_tensor *t)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == t)
            return true;
    return false;
}

/* ---------------------------------------------------------------------- create and free ---- */

ts_module *ts_module_new(const ts_module_type *type)
{
    ts_module_type t;
    TS_TRY_NULL(TS_CHECK_POINTERS(type));
    TS_TRY_NULL(TS_CHECK_OPTS(&t, type));
    TS_TRY_NULL(TS_CHECK_NAME(t.name, NAME_MOST, "", ""));
    ts_module *m = ts_nn_alloc(1, sizeof *m, "a module");
    if (!m)
        return NULL;
    m->given = type;
    m->type = t;
    m->training = true;
    if (t.payload) {
        size_t bytes = (t.payload + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        m->payload = bytes >= t.payload ? aligned_alloc(ALIGNMENT, bytes) : NULL;
        if (!m->payload) {
            ts_error_memory("the payload of a module", (int64_t)t.payload);
            free(m);
            return NULL;
        }
        memset(m->payload, 0, bytes);
    }
    return m;
}

ts_module *ts_nn_built(ts_module *m, ts_status status)
{
    if (status == TS_OK)
        return m;
    ts_module_free(m);
    return NULL;
}

void ts_module_free(ts_module *m)
{
    if (!m || m->parent)
        return;
    ts_state_changed();
    if (m->type.free && m->payload)
        m->type.free(m->payload);
    for (int i = 0; i < m->nmembers; i++) {
        ts_member *e = &m->members[i];
        ts_release(e->tensor);
        if (e->child) {
            e->child->parent = NULL;
            ts_module_free(e->child);
        }
        free(e->name);
    }
    ts_nn_free_hooks(m);
    free(m->members);
    free(m->payload);
    free(m);
}

void *ts_module_payload(const ts_module *m) { return m ? m->payload : NULL; }
const ts_module_type *ts_module_type_of(const ts_module *m)
{
    return m ? m->given : NULL;
}

/* ------------------------------------------------------------------------------ members ---- */

/** Checks the name of a member. */
#define CHECK_MEMBER_NAME(name) TS_CHECK_NAME(name, NAME_MOST, ".", "")

/** A new member; NULL with an error, also if the name is taken. The caller increments nmembers when
 *  it succeeds. */
static ts_member *new_member(ts_module *m, const char *function, const char *name)
{
    for (int i = 0; i < m->nmembers; i++)
        if (strcmp(m->members[i].name, name) == 0) {
            ts_error_set(TS_ERR_VALUE,
                         "%s: argument 'name': expected a new name, got '%s', which this %s has "
                         "already", function, name, m->type.name);
            return NULL;
        }
    if (m->nmembers == m->capacity) {
        int capacity = m->capacity ? 2 * m->capacity : 4;
        ts_member *members = realloc(m->members, (size_t)capacity * sizeof *members);
        if (!members) {
            ts_error_memory("the members of a module", capacity * (int64_t)sizeof *members);
            return NULL;
        }
        m->members = members;
        m->capacity = capacity;
    }
    ts_member *e = &m->members[m->nmembers];
    *e = (ts_member){.name = ts_nn_copy_text(name, "the name of a member")};
    ts_state_changed();
    return e->name ? e : NULL;
}

static ts_status add_tensor(ts_module *m, const char *function, const char *name, ts_tensor *t,
                            ts_member_kind kind, ts_tensor **slot)
{
    if (t == TS_NONE) {
        if (slot)
            *slot = TS_NONE;
        return TS_OK;
    }
    if (kind == TS_MEMBER_PARAMETER && !ts_is_leaf(t))
        return ts_error_set_hint(
            TS_ERR_AUTOGRAD, "make it under TS_NO_GRAD, or pass ts_detach() of it",
            "%s: argument 't': expected a leaf as '%s', got the result of an op", function, name);
    ts_member *e = new_member(m, function, name);
    if (!e)
        return ts_error_code();
    if (kind == TS_MEMBER_PARAMETER && !ts_set_requires_grad(t, true)) {
        free(e->name);
        return ts_error_code();
    }
    e->tensor = ts_retain(t);
    e->tensor_slot = slot;
    e->kind = kind;
    m->nmembers++;
    if (slot)
        *slot = t;
    return TS_OK;
}

ts_status ts_module_add_parameter(ts_module *m, const char *name, ts_tensor *t, ts_tensor **slot)
{
    TS_TRY(TS_CHECK_OBJECTS(m));
    if (t != TS_NONE)
        TS_TRY(TS_CHECK_TENSORS(t));
    TS_TRY(CHECK_MEMBER_NAME(name));
    return add_tensor(m, "module_add_parameter", name, t, TS_MEMBER_PARAMETER, slot);
}

ts_status ts_module_add_buffer(ts_module *m, const char *name, ts_tensor *t, bool persistent,
                               ts_tensor **slot)
{
    TS_TRY(TS_CHECK_OBJECTS(m));
    if (t != TS_NONE)
        TS_TRY(TS_CHECK_TENSORS(t));
    TS_TRY(CHECK_MEMBER_NAME(name));
    return add_tensor(m, "module_add_buffer", name, t,
                      persistent ? TS_MEMBER_BUFFER : TS_MEMBER_TEMPORARY, slot);
}

static const ts_module *root_of(const ts_module *m)
{
    while (m->parent)
        m = m->parent;
    return m;
}

ts_status ts_module_add(ts_module *m, const char *name, ts_module *child, ts_module **slot)
{
    ts_status status = TS_CHECK_OBJECTS(m, child);
    /* this error leaves the child to its owner; all other errors free the child */
    if (status == TS_OK && (child->parent || child == root_of(m)))
        return ts_error_set(
            TS_ERR_VALUE,
            "module_add: argument 'child': expected a module without a parent that does not "
            "contain this one, got a module %s that %s", child->type.name,
            child->parent ? "has a parent" : "contains it");
    if (status == TS_OK)
        status = CHECK_MEMBER_NAME(name);
    ts_member *e = status == TS_OK ? new_member(m, "module_add", name) : NULL;
    if (!e) {
        ts_module_free(child);
        return ts_error_code();
    }
    e->child = child;
    child->parent = m;
    child->index = m->nmembers++;
    if (slot)
        *slot = child;
    return TS_OK;
}

/* ------------------------------------------------------------------------------ walking ---- */

int ts_module_num_children(const ts_module *m)
{
    int n = 0;
    for (int i = 0; m && i < m->nmembers; i++)
        n += m->members[i].child != NULL;
    return n;
}

static const ts_member *child_at(const ts_module *m, int index)
{
    for (int i = 0; m && index >= 0 && i < m->nmembers; i++)
        if (m->members[i].child && index-- == 0)
            return &m->members[i];
    return NULL;
}

ts_module *ts_module_child(const ts_module *m, int index)
{
    const ts_member *e = child_at(m, index);
    return e ? e->child : NULL;
}

const char *ts_module_child_name(const ts_module *m, int index)
{
    const ts_member *e = child_at(m, index);
    return e ? e->name : NULL;
}

/** Visits the tensors of m and of all modules below. name: buffer of NAME_MOST + 2 bytes, which
 *  starts with the dotted prefix of m, `length` bytes. */
static ts_status walk(const ts_module *m, char *name, size_t length, ts_module_visit visit,
                      void *ctx)
{
    for (int i = 0; i < m->nmembers; i++) {
        const ts_member *e = &m->members[i];
        size_t n = strlen(e->name);
        if (length + n > NAME_MOST)
            return ts_error_set(
                TS_ERR_VALUE,
                "the dotted name of '%s' in a %s is longer than %d bytes", e->name,
                m->type.name, NAME_MOST);
        memcpy(name + length, e->name, n + 1);
        if (e->tensor) {
            ts_status status = visit(ctx, name, e->tensor, e->kind);
            if (status != TS_OK)
                return ts_error_code() != TS_OK
                           ? ts_error_code()
                           : ts_error_set(status,
                                          "module_each: visit failed without recording an error");
        } else {
            name[length + n] = '.';
            name[length + n + 1] = 0;
            TS_TRY(walk(e->child, name, length + n + 1, visit, ctx));
        }
    }
    return TS_OK;
}

ts_status ts_module_each(const ts_module *m, ts_module_visit visit, void *ctx)
{
    char name[NAME_MOST + 2] = ""; /* a prefix may have NAME_MOST bytes, a dot and a 0 */
    TS_TRY(TS_CHECK_OBJECTS(m));
    TS_TRY(TS_CHECK_POINTERS(visit));
    return walk(m, name, 0, visit, ctx);
}

ts_tensor *ts_module_tensor(const ts_module *m, const char *name)
{
    TS_TRY_NULL(TS_CHECK_OBJECTS(m));
    TS_TRY_NULL(TS_CHECK_POINTERS(name));
    const char *rest = name;
    for (const ts_module *at = m; at && rest;) {
        size_t n = strcspn(rest, ".");
        const ts_member *e = NULL;
        for (int i = 0; i < at->nmembers && !e; i++)
            if (strncmp(at->members[i].name, rest, n) == 0 && !at->members[i].name[n])
                e = &at->members[i];
        if (e && e->tensor && !rest[n])
            return e->tensor;
        at = e ? e->child : NULL;
        rest = rest[n] ? rest + n + 1 : NULL;
    }
    ts_error_set(TS_ERR_INDEX,
                 "module_tensor: argument 'name': expected a tensor of this %s, got '%.200s'",
                 m->type.name, name);
    return NULL;
}

/** Calls fn for m and all modules below it. */
static void each_module(ts_module *m, void (*fn)(ts_module *m, void *ctx), void *ctx)
{
    fn(m, ctx);
    for (int i = 0; i < m->nmembers; i++)
        if (m->members[i].child)
            each_module(m->members[i].child, fn, ctx);
}

/* --------------------------------------------------------------------------- whole tree ---- */

static void set_training(ts_module *m, void *ctx)
{
    bool train = *(bool *)ctx;
    if (m->training != train)
        ts_state_changed();
    m->training = train;
}

void ts_module_train(ts_module *m, bool train)
{
    if (m)
        each_module(m, set_training, &train);
}

bool ts_module_training(const ts_module *m) { return m && m->training; }

static ts_status set_requires_grad(void *ctx, const char *name, ts_tensor *t, ts_member_kind kind)
{
    (void)name;
    return kind == TS_MEMBER_PARAMETER ? TS_STATUS_OF(ts_set_requires_grad(t, *(bool *)ctx))
                                       : TS_OK;
}

ts_status ts_module_set_requires_grad(ts_module *m, bool requires_grad)
{
    TS_TRY(TS_CHECK_OBJECTS(m));
    return ts_module_each(m, set_requires_grad, &requires_grad);
}

static void zero_grad(ts_module *m, void *ctx)
{
    (void)ctx;
    for (int i = 0; i < m->nmembers; i++)
        if (m->members[i].tensor)
            ts_zero_grad(m->members[i].tensor);
}

void ts_module_zero_grad(ts_module *m)
{
    if (m)
        each_module(m, zero_grad, NULL);
}

int64_t ts_module_num_parameters(const ts_module *m)
{
    ts_named_tensors list;
    int64_t n = 0;
    if (TS_CHECK_OBJECTS(m) != TS_OK || ts_module_parameters(m, &list) != TS_OK)
        return -1;
    for (int64_t i = 0; i < list.n; i++)
        n += ts_numel(list.tensors[i]);
    ts_named_tensors_free(&list);
    return n;
}

/* --------------------------------------------------------------------------- conversion ---- */

/** A conversion of all tensors of a tree of modules. */
typedef struct exchange {
    /* returns t itself if it stays */
    ts_tensor *(*converted)(const struct exchange *x, ts_tensor *t);
    ts_dtype dtype;
    ts_tensor **old, **made; /* made[i] takes the place of old[i] */
    int64_t n, capacity;
} exchange;

static ts_status count_tensor(void *ctx, const char *name, ts_tensor *t, ts_member_kind kind)
{
    (void)name, (void)t, (void)kind;
    ((exchange *)ctx)->capacity++;
    return TS_OK;
}

static ts_status convert_tensor(void *ctx, const char *name, ts_tensor *t, ts_member_kind kind)
{
    (void)name, (void)kind;
    exchange *x = ctx;
    if (ts_nn_contains(x->old, x->n, t))
        return TS_OK;
    TS_SCOPE;
    TS_NO_GRAD;
    ts_tensor *made = x->converted(x, t);
    if (made == t)
        return TS_OK;
    if (!made || !ts_set_requires_grad(made, ts_requires_grad(t)))
        return ts_error_code();
    x->old[x->n] = t;
    x->made[x->n++] = ts_retain(made);
    return TS_OK;
}

static void replace_tensors(ts_module *m, void *ctx)
{
    const exchange *x = ctx;
    for (int i = 0; i < m->nmembers; i++) {
        ts_member *e = &m->members[i];
        for (int64_t k = 0; e->tensor && k < x->n; k++) {
            if (e->tensor != x->old[k])
                continue;
            e->tensor = ts_retain(x->made[k]);
            if (e->tensor_slot)
                *e->tensor_slot = e->tensor;
            ts_release(x->old[k]);
            break;
        }
    }
}

static ts_status exchange_tensors(ts_module *m, exchange x)
{
    TS_TRY(ts_module_each(m, count_tensor, &x));
    x.old = ts_nn_alloc(2 * x.capacity, sizeof *x.old, "a module's new tensors");
    if (!x.old)
        return TS_ERR_MEMORY;
    x.made = x.old + x.capacity;
    ts_status status = ts_module_each(m, convert_tensor, &x);
    if (status == TS_OK) {
        ts_state_changed();
        for (int64_t i = 0; i < x.n; i++)
            ts_retain(x.old[i]); /* so that no new tensor gets the address of an old one */
        each_module(m, replace_tensors, &x);
        for (int64_t i = 0; i < x.n; i++)
            ts_release(x.old[i]);
    }
    for (int64_t i = 0; i < x.n; i++)
        ts_release(x.made[i]);
    free(x.old);
    return status;
}

static ts_tensor *cast_floats(const exchange *x, ts_tensor *t)
{
    return ts_dtype_is_float(ts_dtype_of(t)) && ts_dtype_of(t) != x->dtype ? ts_to(t, x->dtype) : t;
}

ts_status ts_module_to(ts_module *m, ts_dtype dtype)
{
    TS_TRY(TS_CHECK_OBJECTS(m));
    if (!ts_dtype_is_float(dtype))
        return ts_error_set(TS_ERR_DTYPE,
                            "module_to: argument 'dtype': expected a floating dtype, got %s",
                            ts_dtype_name(dtype));
    return exchange_tensors(m, (exchange){.converted = cast_floats, .dtype = dtype});
}

static ts_tensor *to_channels_last(const exchange *x, ts_tensor *t)
{
    (void)x;
    int n = ts_ndim(t);
    bool kept = (n != 4 && n != 5) || ts_is_contiguous(ts_movedim(t, 1, -1));
    return kept ? t : ts_to_channels_last(t);
}

ts_status ts_module_to_channels_last(ts_module *m)
{
    TS_TRY(TS_CHECK_OBJECTS(m));
    return exchange_tensors(m, (exchange){.converted = to_channels_last});
}
