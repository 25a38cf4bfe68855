/**
 * @file registry.c  Ops, keys and kernels by name.
 *
 * Registration is rare and serialised by one lock, which calls never take.
 */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "dispatch/recipe.h"
#include "dispatch/store.h"
#include "include/tessera/check.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

ts_op_info ts_ops[TS_MAX_OPS];
_Atomic int ts_ops_published;
ts_op_entry ts_fallbacks = {.op = -1}, *ts_entries = &ts_fallbacks;

/* -------------------------------------------------------------------------------- names ---- */

ts_key ts_key_by_name(const char *name)
{
    if (name && name[0] && strcmp(name, "?") != 0)
        for (int k = 0; k < TS_KEY_COUNT; k++)
            if (strcmp(ts_key_name((ts_key)k), name) == 0)
                return (ts_key)k;
    return TS_KEY_INVALID;
}

ts_status ts_device_from_name(const char *name, ts_device *device)
{
    TS_TRY(TS_CHECK_POINTERS(name, device));
    size_t n = strcspn(name, ":");
    const char *digits = name[n] ? name + n + 1 : "0";
    int64_t index;
    bool valid = ts_read_int(digits, 0, 255, &index);
    for (ts_key k = 0; valid && k < 16; k++) {
        const char *key = ts_key_name(k);
        if (strlen(key) == n && strncasecmp(key, name, n) == 0 && *key != '?') {
            *device = (ts_device){k, (uint8_t)index};
            return TS_OK;
        }
    }
    return ts_error_set(TS_ERR_VALUE,
                        "device_from_name: argument 'name': expected a device such as cpu, cuda:0 "
                        "or meta, got '%s'",
                        name);
}

int ts_op_count(void) { return atomic_load(&ts_ops_published); }
static bool valid_op(int op) { return op >= 0 && op < ts_op_count(); }
const char *ts_op_name(int op) { return valid_op(op) ? ts_ops[op].name : "?"; }
const char *ts_op_schema(int op) { return valid_op(op) ? ts_ops[op].schema_text : "?"; }

/** The first entry in the bucket of a name, in the hash table of op names. */
static ts_op_entry **hash_bucket(const char *name)
{
    static ts_op_entry *chains[256];
    unsigned hash = 0;
    for (; *name; name++)
        hash = 31 * hash + (unsigned char)*name;
    return &chains[hash % TS_COUNTOF(chains)];
}

/** The entry for a name, or NULL. Lock held. */
static ts_op_entry *entry_find(const char *name)
{
    ts_op_entry *e = *hash_bucket(name);
    while (e && strcmp(e->name, name) != 0)
        e = e->next_alike;
    return e;
}

int ts_op_by_name(const char *name)
{
    if (!name)
        return -1;
    ts_registry_begin();
    const ts_op_entry *e = entry_find(name);
    int op = e ? e->op : -1;
    ts_registry_end(TS_OK);
    return op;
}

/** Edit distance between names of at most 47 characters. */
static int distance(const char *a, const char *b)
{
    int row[48];
    int n = (int)strlen(b);
    for (int k = 0; k <= n; k++)
        row[k] = k;
    for (int i = 1; *a; a++, i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int k = 1; k <= n; k++) {
            int above = row[k];
            int least = diagonal + (b[k - 1] != *a);
            least = least < above + 1 ? least : above + 1;
            row[k] = least < row[k - 1] + 1 ? least : row[k - 1] + 1;
            diagonal = above;
        }
    }
    return row[n];
}

/** The op with the most similar name, or NULL if none is similar. */
static const char *nearest_op(const char *name)
{
    int ops = ts_reg.ops > ts_op_count() ? ts_reg.ops : ts_op_count(), best = 0;
    const char *like = NULL;
    for (int i = 0; ts_is_op_name(name) && i < ops; i++) {
        int d = distance(name, ts_ops[i].name);
        if (d <= 1 + (int)strlen(name) / 4 && (!like || d < best)) {
            best = d;
            like = ts_ops[i].name;
        }
    }
    return like;
}

ts_status ts_fail_unknown_op(const char *what, const char *name)
{
    char hint[100] = "";
    const char *like = nearest_op(name);
    if (like)
        snprintf(hint, sizeof hint, "did you mean '%s'?", like);
    return ts_error_set_hint(TS_ERR_REGISTRY, hint,
                             "%s: argument 'op': expected an op's name, got '%.200s'", what, name);
}

ts_status ts_kernels_have_ops(const char *what)
{
    for (const ts_op_entry *e = ts_entries; e; e = e->next)
        for (int k = 0; k <= TS_KEY_COUNT && e != &ts_fallbacks && e->op < 0; k++)
            if (e->newest[k] && e->newest[k]->transaction == ts_reg.transaction) {
                char hint[160];
                const char *like = nearest_op(e->name);
                snprintf(hint, sizeof hint, like ? "did you mean '%s'?" :
                         "register the op in the same install, or ask ts_op_by_name() first", like);
                return ts_error_set_hint(
                    TS_ERR_REGISTRY, hint,
                    "%s: registers %s of op '%s' for %s, and there is no such op", what,
                    k == TS_KEY_COUNT ? "the gradient" : "a kernel", e->name,
                    k == TS_KEY_COUNT ? "AUTOGRAD" : ts_key_name((ts_key)k));
            }
    return TS_OK;
}

/** The entry for a name, made on demand; NULL with an error that begins with `what`. Lock held. */
static ts_op_entry *entry_get(const char *what, const char *name)
{
    ts_op_entry *e;
    if (!name || !ts_is_op_name(name)) {
        ts_error_set(name ? TS_ERR_REGISTRY : TS_ERR_NULL,
                     "%s: argument 'op': expected an op's name of 1 to 47 letters, digits, '_' and "
                     "'.', no digit first, got %s%.200s%s",
                     what, name ? "'" : "", name ? name : "NULL", name ? "'" : "");
        return NULL;
    }
    if ((e = entry_find(name)))
        return e;
    if (!(e = ts_sys_calloc(sizeof *e))) {
        ts_error_memory("an op's registry entry", sizeof *e);
        return NULL;
    }
    strcpy(e->name, name);
    e->op = -1;
    ts_op_entry **chain = hash_bucket(name);
    e->next_alike = *chain;
    e->next = ts_entries;
    *chain = ts_entries = e;
    return e;
}

/* --------------------------------------------------------------------------------- ops ---- */

/** Checks that a kernel's schema has the op's arity and kinds. The error names the first
 * difference. */
static ts_status schema_check(const ts_schema *op, const char *kernel_text, ts_key key)
{
    ts_schema k;
    if (ts_schema_parse(kernel_text, &k) != TS_OK)
        return ts_fail_within("register_kernel", NULL);
    if (k.nargs != op->nargs || k.nrets != op->nrets)
        return ts_error_set(
            TS_ERR_REGISTRY,
            "%s: kernel for %s was written for %d arguments and %d results, the op has %d and %d",
            op->name, ts_key_name(key), k.nargs, k.nrets, op->nargs, op->nrets);
    for (int i = 0; i < k.nargs; i++)
        if (k.args[i].kinds != op->args[i].kinds || k.args[i].optional != op->args[i].optional ||
            k.args[i].written != op->args[i].written)
            return ts_error_set(
                TS_ERR_REGISTRY,
                "%s: kernel for %s: argument %d ('%s') has another type than the op's '%s'",
                op->name, ts_key_name(key), i, k.args[i].name, op->args[i].name);
    return TS_OK;
}

/** Copies row to ts_ops and gives the entry of its name the next op number. Call it in a
 *  transaction. */
static ts_status op_define(const ts_op_info *row)
{
    ts_op_entry *e = entry_get("register_op", row->schema.name);
    if (!e)
        return ts_error_code();
    char a[160], b[160];
    if (e->op >= 0)
        return ts_error_set(TS_ERR_REGISTRY,
                            "register_op: '%s' is defined already: first at %s, again at %s",
                            e->name, ts_format_site(a, sizeof a, ts_ops[e->op].site),
                            ts_format_site(b, sizeof b, row->site));
    int op = ts_reg.ops;
    if (op >= TS_MAX_OPS - 2)
        return ts_error_set(TS_ERR_REGISTRY, "register_op: the registry holds at most %d ops",
                            TS_MAX_OPS - 2);
    for (int k = 0; k < TS_KEY_COUNT; k++)
        for (ts_registration *r = e->newest[k]; r; r = r->older)
            if (r->schema)
                TS_TRY(schema_check(&row->schema, r->schema, (ts_key)k));
    ts_ops[op] = *row;
    ts_ops[op].name = ts_ops[op].schema.name;
    if (row->reserve)
        ts_ops[op].flags |= TS_OP_RANDOM;
    e->op = op;
    ts_reg.ops = op + 1;
    ts_tables_touch(e);
    return TS_OK;
}

ts_status ts_registry_install(const ts_op_info *rows, int count)
{
    ts_registry_begin();
    ts_status status = TS_OK;
    for (int i = 0; i < count && status == TS_OK; i++) {
        ts_op_info row = rows[i];
        status = ts_schema_parse(row.schema_text, &row.schema);
        if (status == TS_OK)
            status = op_define(&row);
    }
    return ts_registry_end(status);
}

/** Registers an op at run time, with copies of the strings. *op receives its number; op may be
 *  NULL. */
static ts_status op_add(const char *schema, const ts_op_opts *o, const void *site, int *op)
{
    ts_op_info row = {
        .kind = o->rule ? TS_FILL : o->composite ? TS_COMPOSITE : TS_WHOLE,
        .infer = o->rule ? ts_infer_declared : NULL,
        .rule = o->rule,
        .composite = o->composite,
        .reserve = o->reserve,
        .cost = o->cost,
        /* gradients go through the ops of a composite, unless a rule is registered */
        .flags = TS_OP_RUNTIME | (o->not_differentiable ? TS_OP_NODIFF
                                  : o->composite        ? TS_OP_BY_PARTS
                                                        : 0),
        .site = site,
    };
    if (ts_schema_parse(schema, &row.schema) != TS_OK)
        return ts_fail_within("register_op", site);
    const char *doc = o->doc ? o->doc : "registered at run time";
    size_t schema_size = strlen(schema) + 1, doc_size = strlen(doc) + 1;
    char *text = ts_sys_alloc(schema_size + doc_size);
    if (!text)
        return ts_error_memory("an op's schema", (int64_t)schema_size);
    row.schema_text = memcpy(text, schema, schema_size);
    row.doc = memcpy(text + schema_size, doc, doc_size);
    ts_registry_begin();
    int number = ts_reg.ops;
    ts_status status = op_define(&row);
    if (status != TS_OK)
        ts_sys_free(text); /* after TS_OK, the row in ts_ops owns the text */
    status = ts_registry_end(status);
    if (status == TS_OK && op)
        *op = number;
    return status;
}

ts_status ts_register_op(const char *schema, int *op)
{
    TS_TRY(TS_CHECK_POINTERS(schema));
    return op_add(schema, &(ts_op_opts){0}, __builtin_return_address(0), op);
}

ts_status ts_register_op_ex(const char *schema, const ts_op_opts *opts, int *op)
{
    ts_op_opts o;
    TS_TRY(TS_CHECK_POINTERS(schema));
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    return op_add(schema, &o, __builtin_return_address(0), op);
}

/* -------------------------------------------------------------------------------- keys ---- */

enum { NAME_BYTES = 24 };

/** A copy of a key's name that never changes: readers take no lock and may still hold the name of a
 *  key whose transaction failed. NULL if there are too many names. */
static const char *name_keep(const char *name)
{
    static char names[4 * TS_KEY_COUNT][NAME_BYTES];
    static int used;
    int i = 0;
    while (i < used && strcmp(names[i], name) != 0)
        i++;
    if (i == TS_COUNTOF(names))
        return NULL;
    if (i == used)
        strcpy(names[used++], name);
    return names[i];
}

ts_status ts_key_take(const char *what, const char *name, int from, int to, const char *full,
                      ts_key *key)
{
    const ts_check_place at = {what, __builtin_return_address(0)};
    TS_TRY(ts_check_name(at, "name", name, NAME_BYTES - 1, ":,", "? auto backends"));
    for (int i = 0; i < TS_KEY_COUNT; i++) /* devices are found by names in any case */
        if (strcasecmp(ts_key_name((ts_key)i), name) == 0)
            return ts_error_set(TS_ERR_REGISTRY, "%s: the name '%s' is taken by key %d, %s", what,
                                name, i, ts_key_name((ts_key)i));
    int k = from;
    while (k <= to && (ts_reg.named >> k & 1))
        k++;
    if (k > to)
        return ts_error_set(TS_ERR_REGISTRY, "%s: no room for '%s': %s (keys %d to %d) is full",
                            what, name, full, from, to);
    const char *kept = name_keep(name);
    if (!kept)
        return ts_error_set(TS_ERR_REGISTRY, "%s: no room for '%s': too many registrations failed",
                            what, name);
    ts_reg.named |= TS_KEYSET(k);
    atomic_store_explicit(&ts_key_names[k], kept, memory_order_release);
    if (key)
        *key = (ts_key)k;
    return TS_OK;
}

ts_status ts_register_backend_key(const char *name, ts_key *key)
{
    ts_registry_begin();
    return ts_registry_end(ts_key_take("register_backend_key", name, TS_KEY_CUDA + 1,
                                       TS_KEY_LAZY - 1, "the range of run-time backends", key));
}

ts_status ts_register_layer(const char *name, const char *above, ts_key *key)
{
    int from = 16;
    if (above && above[0] && strcmp(above, "backends") != 0) {
        ts_key below = ts_key_by_name(above);
        if (below == TS_KEY_INVALID || below == TS_KEY_ABSENT)
            return ts_error_set(TS_ERR_REGISTRY,
                                "register_layer: argument 'above': expected the name of a layer or "
                                "a backend, got '%s'", above);
        from = below < 16 ? 16 : below + 1;
    }
    /* the gap ends below the library's next layer */
    int to = from <= TS_KEY_AUTOGRAD   ? TS_KEY_AUTOGRAD - 1
             : from <= TS_KEY_TRACING  ? TS_KEY_TRACING - 1
             : from <= TS_KEY_AUTOCAST ? TS_KEY_AUTOCAST - 1
                                       : TS_KEY_COUNT - 1;
    char gap[80];
    snprintf(gap, sizeof gap, "the gap above %s", above && above[0] ? above : "backends");
    ts_registry_begin();
    return ts_registry_end(ts_key_take("register_layer", name, from, to, gap, key));
}

/* ----------------------------------------------------------------------------- kernels ---- */

/** Adds a registration as the newest of a slot of e; NULL with an error. In a transaction.
 * @param handle  receives the user's handle; may be NULL */
static ts_registration *push(ts_op_entry *e, int slot, const char *schema,
                             ts_registration **handle)
{
    size_t length = schema ? strlen(schema) + 1 : 0;
    ts_registration *r = ts_sys_alloc(sizeof *r + length);
    if (!r) {
        ts_error_memory("a kernel's registration", sizeof *r);
        return NULL;
    }
    *r = (ts_registration){
        .entry = e,
        .slot = (uint8_t)slot,
        .schema = schema ? memcpy(r + 1, schema, length) : NULL,
        .transaction = ts_reg.transaction,
        .older = e->newest[slot],
    };
    e->newest[slot] = r;
    ts_tables_touch(e);
    if (handle) /* on an error, the end of the transaction removes r */
        TS_TRY_NULL(ts_handle_give(r, handle));
    return r;
}

static ts_status check_kernel(const char *what, ts_key key, ts_kernel kernel)
{
    if (!kernel)
        return ts_check_null((ts_check_place){what, NULL}, "kernel", 0, false);
    if (key < TS_KEY_COUNT && key != TS_KEY_ABSENT && (ts_reg.named >> key & 1))
        return TS_OK;
    return ts_error_set_hint(TS_ERR_REGISTRY,
                             "ts_key_by_name(), ts_register_layer() and ts_register_backend() give "
                             "keys",
                             "%s: argument 'key': expected the key of a layer or a backend, got %d",
                             what, key);
}

ts_status ts_kernel_add(const char *op, ts_key key, ts_kernel kernel, ts_accepts accepts,
                        const char *schema, ts_registration **out)
{
    TS_TRY(check_kernel("register_kernel", key, kernel));
    ts_op_entry *e = entry_get("register_kernel", op);
    if (!e)
        return ts_error_code();
    if (schema && e->op >= 0)
        TS_TRY(schema_check(&ts_ops[e->op].schema, schema, key));
    const ts_registration *newest = e->newest[key];
    if (!out && newest && !newest->handle && newest->kernel == kernel &&
        memcmp(&newest->accepts, &accepts, sizeof accepts) == 0 &&
        (schema ? newest->schema && strcmp(newest->schema, schema) == 0 : !newest->schema))
        return TS_OK; /* the same kernel again; without a handle, neither can be removed */
    ts_registration *r = push(e, key, schema, out);
    TS_TRY(r);
    r->kernel = kernel;
    r->accepts = accepts;
    if (r->older && ts_log_on("dispatch")) {
        char a[160], b[160];
        ts_log_write("dispatch", "%s: kernel for %s at %s replaces the one at %s", op,
                     ts_key_name(key), ts_format_site(a, sizeof a, (const void *)kernel),
                     ts_format_site(b, sizeof b, (const void *)r->older->kernel));
    }
    return TS_OK;
}

ts_status ts_register_kernel_ex(const char *op, ts_key key, ts_kernel kernel,
                                const ts_kernel_opts *opts, ts_registration **out)
{
    ts_kernel_opts o;
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    if (o.dtypes & ~(uint32_t)TS_DT_ALL)
        return ts_error_set(TS_ERR_VALUE,
                            "register_kernel_ex: argument 'dtypes': expected bits of 0x%x, got "
                            "0x%x", TS_DT_ALL, o.dtypes);
    ts_accepts accepts = {(uint16_t)o.dtypes,
                          (uint16_t)((o.strided   ? TS_TAKES_STRIDES
                                      : o.layouts ? 0
                                                  : TS_STRIDES_PACKED) |
                                     (o.converts ? TS_TAKES_DTYPES : 0))};
    ts_registry_begin();
    return ts_registry_end(ts_kernel_add(op, key, kernel, accepts, o.schema, out));
}

ts_status ts_register_kernel(const char *op, ts_key key, ts_kernel kernel, const char *schema,
                             ts_registration **out)
{
    const ts_kernel_opts opts = {.size = sizeof opts, .schema = schema};
    return ts_register_kernel_ex(op, key, kernel, &opts, out);
}

/** Recipes of CPU kernels, by op. */
static const ts_recipe *recipe_of[TS_MAX_OPS];

void ts_register_recipes(const ts_recipe *recipes, int count)
{
    for (int i = 0; i < count; i++)
        recipe_of[recipes[i].op] = &recipes[i];
}

const ts_recipe *ts_kernel_recipe(const ts_op_table *t)
{
    const ts_recipe *r = recipe_of[t->op];
    return r && r->kernel == t->impl[TS_KEY_CPU] ? r : NULL;
}

ts_status ts_register_kernels(ts_key key, const ts_kernel_def *defs, int count, const char *site)
{
    ts_registry_begin();
    ts_status status = TS_OK;
    for (int i = 0; i < count && status == TS_OK; i++)
        status = ts_kernel_add(ts_ops[defs[i].op].name, key, defs[i].kernel, defs[i].accepts, NULL,
                               NULL);
    status = ts_registry_end(status);
    if (status != TS_OK)
        ts_log_write("dispatch", "%s: %s", site, ts_error_message());
    return status;
}

static ts_status fallback_add(ts_key key, ts_kernel kernel, ts_registration **out)
{
    char a[160], b[160];
    TS_TRY(check_kernel("register_fallback", key, kernel));
    const ts_registration *first = ts_fallbacks.newest[key];
    if (first)
        return ts_error_set(
            TS_ERR_REGISTRY,
            "register_fallback: %s has a fallback already: first at %s, again at %s",
            ts_key_name(key), ts_format_site(a, sizeof a, (const void *)first->kernel),
            ts_format_site(b, sizeof b, (const void *)kernel));
    ts_registration *r = push(&ts_fallbacks, key, NULL, out);
    TS_TRY(r);
    r->kernel = kernel;
    return TS_OK;
}

ts_status ts_register_fallback(ts_key key, ts_kernel kernel, ts_registration **out)
{
    ts_registry_begin();
    return ts_registry_end(fallback_add(key, kernel, out));
}

static ts_status unregister(const ts_registration *handle)
{
    ts_registration *r = ts_handle_find(handle);
    if (!r)
        return ts_error_set(TS_ERR_REGISTRY, "unregister: argument 'registration': expected a "
                                             "handle, got one whose kernel was removed before");
    if (ts_reg.depth > 1)
        return ts_error_set(TS_ERR_STATE, "unregister: not while a backend is being loaded");
    ts_registration **link = &r->entry->newest[r->slot];
    while (*link != r)
        link = &(*link)->older;
    *link = r->older;
    ts_tables_touch(r->entry);
    ts_status status = ts_tables_publish(); /* before the end of the transaction, because an error
                                               must put r back */
    if (status == TS_OK)
        ts_registration_free(r);
    else
        *link = r;
    return status;
}

ts_status ts_unregister(ts_registration *registration)
{
    TS_TRY(TS_CHECK_POINTERS(registration));
    ts_registry_begin();
    return ts_registry_end(unregister(registration));
}

ts_status ts_key_prefer_fallback(ts_key key, bool prefer)
{
    if (key >= TS_KEY_COUNT)
        return ts_error_set(TS_ERR_REGISTRY,
                            "key_prefer_fallback: argument 'key': expected a key below %d, got %d",
                            TS_KEY_COUNT, key);
    ts_registry_begin();
    if (prefer)
        ts_reg.prefer_fallback |= TS_KEYSET(key);
    else
        ts_reg.prefer_fallback &= ~TS_KEYSET(key);
    ts_tables_touch(&ts_fallbacks);
    return ts_registry_end(TS_OK);
}

ts_status ts_vjp_set(const char *op, const ts_vjp *vjp)
{
    ts_op_entry *e = entry_get("register_vjp", op);
    if (!e)
        return ts_error_code();
    if (e->newest[TS_KEY_COUNT] && e->newest[TS_KEY_COUNT]->vjp == vjp)
        return TS_OK;
    ts_registration *r = push(e, TS_KEY_COUNT, NULL, NULL);
    TS_TRY(r);
    r->vjp = vjp;
    return TS_OK;
}
