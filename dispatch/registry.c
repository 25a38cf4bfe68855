/**
 * @file registry.c  Ops, keys and kernels by name; computes and publishes the tables.
 *
 * Registration is rare and serialised by one lock. Calls never take it: they read a table through
 * one acquire load, and a replaced table lives until the library unloads.
 */
// SPDX-License-Identifier: MIT
#include "dispatch/registry.h"

/* uthash must not exit on out of memory; a failed insert is reported through the add's result */
#define HASH_NONFATAL_OOM 1
#define uthash_malloc(size) ts_sys_alloc(size)
#define uthash_free(block, size) ts_sys_free(block)
#define uthash_nonfatal_oom(element) (oom_element = (element))
static void *oom_element;
#include <uthash.h>

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

struct ts_registration {
    char op[48]; /* "" for a fallback */
    ts_key key;
    ts_kernel kernel;
    ts_accepts accepts;
    char *schema; /* owned; NULL when unchecked */
    const void *site;
    ts_registration *older; /* same op and key */
};

/** All kernels of one op name, whether the op is known yet or not. */
typedef struct op_entry {
    char name[48];
    int op; /* -1 while undefined */
    ts_registration *kernels[TS_KEY_COUNT];
    UT_hash_handle hh;
} op_entry;

ts_op_info ts_ops[TS_MAX_OPS];
_Atomic(const ts_table *) ts_tables[TS_MAX_OPS];

static pthread_mutex_t lock;
static op_entry *entries;
static _Atomic int op_count;
static ts_registration *fallbacks[TS_KEY_COUNT];
static ts_keyset prefer_fallback;
static char key_names[TS_KEY_COUNT][24] = {
    [TS_KEY_CPU] = "CPU",           [TS_KEY_CUDA] = "CUDA",         [TS_KEY_LAZY] = "LAZY",
    [TS_KEY_META] = "META",         [TS_KEY_AUTOGRAD] = "AUTOGRAD", [TS_KEY_TRACING] = "TRACING",
    [TS_KEY_AUTOCAST] = "AUTOCAST", [TS_KEY_ABSENT] = "ABSENT",
};

__attribute__((constructor(102))) static void lock_init(void)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &attr);
    pthread_mutexattr_destroy(&attr);
}

/* -------------------------------------------------------------------------------- names ---- */

const char *ts_key_name(ts_key key)
{
    return key < TS_KEY_COUNT && key_names[key][0] ? key_names[key] : "?";
}

ts_key ts_key_by_name(const char *name)
{
    if (name && name[0])
        for (int k = 0; k < TS_KEY_COUNT; k++)
            if (strcmp(key_names[k], name) == 0)
                return (ts_key)k;
    return TS_KEY_INVALID;
}

int ts_op_count(void) { return atomic_load(&op_count); }
static bool valid_op(int op) { return op >= 0 && op < ts_op_count(); }
const char *ts_op_name(int op) { return valid_op(op) ? ts_ops[op].name : "?"; }
const char *ts_op_schema(int op) { return valid_op(op) ? ts_ops[op].schema_text : "?"; }

int ts_op_by_name(const char *name)
{
    if (!name)
        return -1;
    op_entry *e = NULL;
    pthread_mutex_lock(&lock);
    HASH_FIND_STR(entries, name, e);
    int op = e ? e->op : -1;
    pthread_mutex_unlock(&lock);
    return op;
}

/** Symbol and library of a code address, for messages. */
static const char *site_name(const void *site, char *buffer, size_t size)
{
    Dl_info info;
    if (site && dladdr((void *)site, &info)) {
        const char *file = info.dli_fname ? info.dli_fname : "?";
        const char *slash = strrchr(file, '/');
        snprintf(buffer, size, "%s+0x%zx in %s", info.dli_sname ? info.dli_sname : "code",
                 (size_t)((const char *)site - (const char *)(info.dli_saddr ? info.dli_saddr : info.dli_fbase)),
                 slash ? slash + 1 : file);
    } else {
        snprintf(buffer, size, "%p", site);
    }
    return buffer;
}

/** The entry for a name, made on demand; NULL with an error. Lock held. */
static op_entry *entry_get(const char *name)
{
    op_entry *e = NULL;
    if (!name || strlen(name) >= sizeof e->name || !name[0]) {
        ts_error_set(TS_ERR_REGISTRY, "registry: expected an op name of 1 to 47 characters, got '%s'",
                     name ? name : "NULL");
        return NULL;
    }
    HASH_FIND_STR(entries, name, e);
    if (e)
        return e;
    e = ts_sys_calloc(sizeof *e);
    if (!e) {
        ts_fail_memory("an op's registry entry", sizeof *e);
        return NULL;
    }
    strcpy(e->name, name);
    e->op = -1;
    oom_element = NULL;
    HASH_ADD_STR(entries, name, e);
    if (oom_element) {
        ts_sys_free(e);
        ts_fail_memory("the registry's hash table", 0);
        return NULL;
    }
    return e;
}

/* ------------------------------------------------------------------------------- tables ---- */

/** The table of precedence: fills slot k of the table. First match wins. */
static void slot_fill(ts_table *t, const op_entry *e, int k)
{
    const ts_op_info *info = t->info;
    const ts_registration *own = e->kernels[k], *fallback = fallbacks[k];
    bool backend = k < 16;
    ts_kernel entry = info->kind == TS_FILL ? ts_enter_fill : info->kind == TS_VIEW ? ts_enter_view : ts_enter_whole;
    int rule;
    ts_kernel kernel = NULL;
    if (k == TS_KEY_ABSENT) {
        rule = TS_RULE_ABSENT;
        kernel = ts_absent_tensor;
    } else if (own) {
        rule = TS_RULE_KERNEL;
        kernel = own->kernel;
    } else if (fallback && (prefer_fallback >> k & 1)) {
        rule = TS_RULE_FALLBACK_FIRST;
    } else if (backend && info->composite) {
        rule = TS_RULE_COMPOSITE;
        kernel = info->composite;
        entry = ts_enter_whole;
    } else if (backend && info->kind == TS_VIEW) {
        rule = TS_RULE_VIEW;
    } else if (k == TS_KEY_META && info->kind == TS_FILL) {
        rule = TS_RULE_META;
    } else if (fallback) {
        rule = TS_RULE_FALLBACK;
    } else {
        rule = backend ? TS_RULE_MISSING : TS_RULE_NONE;
    }
    t->rule[k] = (uint8_t)rule;
    if (rule == TS_RULE_FALLBACK || rule == TS_RULE_FALLBACK_FIRST) {
        t->slot[k] = fallback->kernel;
    } else if (rule == TS_RULE_MISSING) {
        t->slot[k] = ts_missing_kernel;
    } else if (!backend) {
        t->slot[k] = kernel; /* layers are called as they are */
    } else {
        t->slot[k] = entry;
        t->impl[k] = kernel;
        if (own)
            t->accepts[k] = own->accepts;
    }
    if (rule != TS_RULE_NONE)
        t->mask |= TS_KEYSET(k);
}

/** A new snapshot for e's op, not yet visible. Lock held. */
static ts_table *table_build(const op_entry *e)
{
    ts_table *t = ts_sys_calloc(sizeof *t);
    if (!t) {
        ts_fail_memory("a dispatch table", sizeof *t);
        return NULL;
    }
    t->info = &ts_ops[e->op];
    t->op = (uint16_t)e->op;
    t->flags = t->info->flags & TS_OP_RANDOM;
    for (int i = 0; i < t->info->schema.nargs; i++)
        t->written |= (uint16_t)(t->info->schema.args[i].written << i);
    for (int k = 0; k < TS_KEY_COUNT; k++)
        slot_fill(t, e, k);
    t->older = atomic_load_explicit(&ts_tables[e->op], memory_order_relaxed);
    return t;
}

static void table_publish(ts_table *t)
{
    atomic_store_explicit(&ts_tables[t->op], t, memory_order_release);
}

/** Rebuilds every op; all or nothing, so that a failure leaves the tables as they were. Lock held. */
static ts_status tables_rebuild_all(void)
{
    ts_table *made = NULL;
    for (op_entry *e = entries; e; e = e->hh.next) {
        if (e->op < 0)
            continue;
        ts_table *t = table_build(e);
        if (!t) {
            while (made) {
                ts_table *next = (ts_table *)made->older;
                ts_sys_free(made);
                made = next;
            }
            return TS_ERR_MEMORY;
        }
        t->older = made;
        made = t;
    }
    while (made) {
        ts_table *next = (ts_table *)made->older;
        made->older = atomic_load_explicit(&ts_tables[made->op], memory_order_relaxed);
        table_publish(made);
        made = next;
    }
    return TS_OK;
}

static ts_status table_rebuild(const op_entry *e)
{
    if (e->op < 0)
        return TS_OK;
    ts_table *t = table_build(e);
    if (!t)
        return TS_ERR_MEMORY;
    table_publish(t);
    return TS_OK;
}

/* --------------------------------------------------------------------------------- ops ---- */

/** A kernel's schema must agree with the op's in arity and kinds; names the first difference (F27). */
static ts_status schema_check(const ts_schema *op, const char *kernel_text, ts_key key)
{
    ts_schema k;
    TS_TRY(ts_schema_parse(kernel_text, &k));
    if (k.nargs != op->nargs || k.nrets != op->nrets)
        return ts_error_set(TS_ERR_REGISTRY,
                            "%s: kernel for %s was written for %d arguments and %d results, the op has %d and %d",
                            op->name, ts_key_name(key), k.nargs, k.nrets, op->nargs, op->nrets);
    for (int i = 0; i < k.nargs; i++)
        if (k.args[i].kinds != op->args[i].kinds || k.args[i].optional != op->args[i].optional ||
            k.args[i].written != op->args[i].written)
            return ts_error_set(TS_ERR_REGISTRY,
                                "%s: kernel for %s: argument %d ('%s') has another type than the op's '%s'",
                                op->name, ts_key_name(key), i, k.args[i].name, op->args[i].name);
    return TS_OK;
}

/** Gives an entry its op number. Lock held. */
static ts_status op_define(const ts_op_info *row)
{
    op_entry *e = entry_get(row->schema.name);
    if (!e)
        return ts_error_code();
    char a[160], b[160];
    if (e->op >= 0)
        return ts_error_set(TS_ERR_REGISTRY, "register_op: '%s' is defined already: first at %s, again at %s",
                            e->name, site_name(ts_ops[e->op].site, a, sizeof a), site_name(row->site, b, sizeof b));
    int op = ts_op_count();
    if (op >= TS_MAX_OPS - 1)
        return ts_error_set(TS_ERR_REGISTRY, "register_op: the registry holds at most %d ops", TS_MAX_OPS - 1);
    for (int k = 0; k < TS_KEY_COUNT; k++)
        for (ts_registration *r = e->kernels[k]; r; r = r->older)
            if (r->schema)
                TS_TRY(schema_check(&row->schema, r->schema, (ts_key)k));
    ts_ops[op] = *row;
    if (row->reserve)
        ts_ops[op].flags |= TS_OP_RANDOM;
    e->op = op;
    ts_table *t = table_build(e);
    if (!t) {
        e->op = -1;
        return TS_ERR_MEMORY;
    }
    table_publish(t);
    atomic_store(&op_count, op + 1);
    return TS_OK;
}

ts_status ts_registry_install(const ts_op_info *rows, int count)
{
    pthread_mutex_lock(&lock);
    ts_status status = TS_OK;
    for (int i = 0; i < count && status == TS_OK; i++) {
        ts_op_info row = rows[i];
        status = ts_schema_parse(row.schema_text, &row.schema);
        if (status == TS_OK)
            status = op_define(&row);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

ts_status ts_register_op(const char *schema, int *op)
{
    ts_op_info row = {.kind = TS_WHOLE, .flags = TS_OP_RUNTIME, .doc = "registered at run time",
                      .site = __builtin_return_address(0)};
    TS_TRY(ts_schema_parse(schema, &row.schema));
    char *text = ts_sys_alloc(strlen(schema) + 1 + strlen(row.schema.name) + 1);
    if (!text)
        return ts_fail_memory("an op's schema", (int64_t)strlen(schema));
    strcpy(text, schema);
    char *name = text + strlen(schema) + 1;
    strcpy(name, row.schema.name);
    row.schema_text = text;
    row.name = name;
    pthread_mutex_lock(&lock);
    int number = ts_op_count();
    ts_status status = op_define(&row);
    pthread_mutex_unlock(&lock);
    if (status != TS_OK)
        ts_sys_free(text);
    else if (op)
        *op = number;
    return status;
}

/* -------------------------------------------------------------------------------- keys ---- */

static bool key_name_taken(const char *name)
{
    return ts_key_by_name(name) != TS_KEY_INVALID;
}

static ts_status key_take(const char *what, const char *name, int from, int to, const char *full, ts_key *key)
{
    if (!name || !name[0] || strlen(name) >= sizeof key_names[0])
        return ts_error_set(TS_ERR_REGISTRY, "%s: expected a name of 1 to 23 characters, got '%s'", what,
                            name ? name : "NULL");
    ts_status status = TS_OK;
    pthread_mutex_lock(&lock);
    if (key_name_taken(name)) {
        status = ts_error_set(TS_ERR_REGISTRY, "%s: the name '%s' is taken", what, name);
    } else {
        int k = from;
        while (k <= to && key_names[k][0])
            k++;
        if (k > to) {
            status = ts_error_set(TS_ERR_REGISTRY, "%s: no room for '%s': %s (keys %d to %d) is full", what, name,
                                  full, from, to);
        } else {
            strcpy(key_names[k], name);
            if (key)
                *key = (ts_key)k;
        }
    }
    pthread_mutex_unlock(&lock);
    return status;
}

ts_status ts_register_backend(const char *name, ts_key *key)
{
    return key_take("register_backend", name, TS_KEY_CUDA + 1, TS_KEY_LAZY - 1, "the range of run-time backends", key);
}

ts_status ts_register_layer(const char *name, const char *above, ts_key *key)
{
    int from = 16;
    if (above && above[0] && strcmp(above, "backends") != 0) {
        ts_key below = ts_key_by_name(above);
        if (below == TS_KEY_INVALID)
            return ts_error_set(TS_ERR_REGISTRY, "register_layer: argument 'above': expected a key's name, got '%s'", above);
        from = below < 16 ? 16 : below + 1;
    }
    /* the gap ends below the next of the library's own layers */
    int to = from <= TS_KEY_AUTOGRAD ? TS_KEY_AUTOGRAD - 1 : from <= TS_KEY_TRACING ? TS_KEY_TRACING - 1
             : from <= TS_KEY_AUTOCAST ? TS_KEY_AUTOCAST - 1 : TS_KEY_COUNT - 1;
    char gap[80];
    snprintf(gap, sizeof gap, "the gap above %s", above && above[0] ? above : "backends");
    return key_take("register_layer", name, from, to, gap, key);
}

/* ----------------------------------------------------------------------------- kernels ---- */

static ts_registration *registration_new(const char *op, ts_key key, ts_kernel kernel, ts_accepts accepts,
                                         const char *schema, const void *site)
{
    ts_registration *r = ts_sys_calloc(sizeof *r);
    if (r && schema && !(r->schema = ts_sys_alloc(strlen(schema) + 1))) {
        ts_sys_free(r);
        r = NULL;
    }
    if (!r) {
        ts_fail_memory("a kernel's registration", sizeof *r);
        return NULL;
    }
    if (schema)
        strcpy(r->schema, schema);
    snprintf(r->op, sizeof r->op, "%s", op);
    r->key = key;
    r->kernel = kernel;
    r->accepts = accepts;
    r->site = site;
    return r;
}

static void registration_free(ts_registration *r)
{
    ts_sys_free(r->schema);
    ts_sys_free(r);
}

static ts_status kernel_add(const char *op, ts_key key, ts_kernel kernel, ts_accepts accepts, const char *schema,
                            const void *site, ts_registration **out)
{
    if (!kernel || key >= TS_KEY_COUNT)
        return ts_error_set(TS_ERR_REGISTRY, "register_kernel: expected a kernel and a key below 64 for '%s', got key %d",
                            op ? op : "NULL", key);
    pthread_mutex_lock(&lock);
    ts_status status = TS_OK;
    op_entry *e = entry_get(op);
    ts_registration *r = NULL;
    if (!e)
        status = ts_error_code();
    if (status == TS_OK && schema && e->op >= 0)
        status = schema_check(&ts_ops[e->op].schema, schema, key);
    if (status == TS_OK && !(r = registration_new(op, key, kernel, accepts, schema, site)))
        status = TS_ERR_MEMORY;
    if (status == TS_OK) {
        r->older = e->kernels[key];
        e->kernels[key] = r;
        status = table_rebuild(e);
        if (status != TS_OK) {
            e->kernels[key] = r->older;
            registration_free(r);
        } else {
            if (r->older && ts_log_on("dispatch")) {
                char a[160], b[160];
                ts_log_write("dispatch", "%s: kernel for %s at %s replaces the one at %s", op, ts_key_name(key),
                       site_name(site, a, sizeof a), site_name(r->older->site, b, sizeof b));
            }
            if (out)
                *out = r;
        }
    }
    pthread_mutex_unlock(&lock);
    return status;
}

ts_status ts_register_kernel(const char *op, ts_key key, ts_kernel kernel, const char *schema, ts_registration **out)
{
    return kernel_add(op, key, kernel, (ts_accepts){0}, schema, (const void *)kernel, out);
}

ts_status ts_register_kernels(ts_key key, const ts_kernel_def *defs, int count, const char *site)
{
    for (int i = 0; i < count; i++) {
        ts_status s = kernel_add(ts_op_name(defs[i].op), key, defs[i].kernel, defs[i].accepts, NULL,
                                 (const void *)defs[i].kernel, NULL);
        if (s != TS_OK) {
            ts_log_write("dispatch", "%s: %s", site, ts_error_message());
            return s;
        }
    }
    return TS_OK;
}

ts_status ts_register_fallback(ts_key key, ts_kernel kernel, ts_registration **out)
{
    if (!kernel || key >= TS_KEY_COUNT)
        return ts_error_set(TS_ERR_REGISTRY, "register_fallback: expected a kernel and a key below 64, got key %d", key);
    const void *site = (const void *)kernel;
    ts_status status = TS_OK;
    pthread_mutex_lock(&lock);
    ts_registration *r = NULL;
    if (fallbacks[key]) {
        char a[160], b[160];
        status = ts_error_set(TS_ERR_REGISTRY, "register_fallback: %s has a fallback already: first at %s, again at %s",
                              ts_key_name(key), site_name(fallbacks[key]->site, a, sizeof a),
                              site_name(site, b, sizeof b));
    } else if (!(r = registration_new("", key, kernel, (ts_accepts){0}, NULL, site))) {
        status = TS_ERR_MEMORY;
    } else {
        fallbacks[key] = r;
        status = tables_rebuild_all();
        if (status != TS_OK) {
            fallbacks[key] = NULL;
            registration_free(r);
        } else if (out) {
            *out = r;
        }
    }
    pthread_mutex_unlock(&lock);
    return status;
}

ts_status ts_unregister(ts_registration *r)
{
    if (!r)
        return ts_error_set(TS_ERR_NULL, "unregister: expected a registration, got NULL");
    ts_status status = TS_OK;
    pthread_mutex_lock(&lock);
    if (!r->op[0]) {
        fallbacks[r->key] = NULL;
        status = tables_rebuild_all();
        if (status != TS_OK)
            fallbacks[r->key] = r;
    } else {
        op_entry *e = entry_get(r->op);
        ts_registration **place = e ? &e->kernels[r->key] : NULL;
        while (place && *place && *place != r)
            place = &(*place)->older;
        if (!place || !*place) {
            status = ts_error_set(TS_ERR_REGISTRY, "unregister: '%s' does not hold this registration", r->op);
        } else {
            *place = r->older;
            status = table_rebuild(e);
            if (status != TS_OK)
                *place = r;
        }
    }
    pthread_mutex_unlock(&lock);
    if (status == TS_OK)
        registration_free(r);
    return status;
}

ts_status ts_key_prefer_fallback(ts_key key, bool prefer)
{
    if (key >= TS_KEY_COUNT)
        return ts_error_set(TS_ERR_REGISTRY, "key_prefer_fallback: expected a key below 64, got %d", key);
    pthread_mutex_lock(&lock);
    ts_keyset before = prefer_fallback;
    prefer_fallback = prefer ? before | TS_KEYSET(key) : before & ~TS_KEYSET(key);
    ts_status status = tables_rebuild_all();
    if (status != TS_OK)
        prefer_fallback = before;
    pthread_mutex_unlock(&lock);
    return status;
}

/* ------------------------------------------------------------------------------- dumps ---- */

static const char *const rules[] = {
    [TS_RULE_NONE] = "falls through",
    [TS_RULE_KERNEL] = "own kernel",
    [TS_RULE_FALLBACK_FIRST] = "fallback, preferred",
    [TS_RULE_COMPOSITE] = "composite",
    [TS_RULE_VIEW] = "view: no kernel",
    [TS_RULE_META] = "shapes only",
    [TS_RULE_FALLBACK] = "fallback",
    [TS_RULE_MISSING] = "missing: error",
    [TS_RULE_ABSENT] = "TS_NONE: error",
};

ts_status ts_op_dump(const char *name, FILE *out)
{
    int op = ts_op_by_name(name);
    if (op < 0 || !out)
        return ts_error_set(TS_ERR_REGISTRY, "op_dump: expected a known op and a file, got '%s'", name ? name : "NULL");
    pthread_mutex_lock(&lock);
    const ts_table *t = atomic_load(&ts_tables[op]);
    op_entry *e = NULL;
    HASH_FIND_STR(entries, name, e);
    fprintf(out, "%s\n", ts_ops[op].schema_text);
    for (int k = TS_KEY_COUNT - 1; k >= 0; k--) {
        if (!key_names[k][0] || !e)
            continue;
        const ts_registration *r = t->rule[k] == TS_RULE_KERNEL ? e->kernels[k] : NULL;
        const void *site = r ? r->site
                           : t->rule[k] == TS_RULE_FALLBACK || t->rule[k] == TS_RULE_FALLBACK_FIRST
                               ? fallbacks[k]->site
                           : t->rule[k] == TS_RULE_COMPOSITE ? (const void *)t->info->composite : NULL;
        char where[160] = "";
        if (site)
            site_name(site, where, sizeof where);
        fprintf(out, "%3d %-16s %-20s %s\n", k, key_names[k], rules[t->rule[k]], where);
    }
    pthread_mutex_unlock(&lock);
    return TS_OK;
}

__attribute__((destructor(102))) static void registry_free(void)
{
    op_entry *e, *next_e;
    HASH_ITER (hh, entries, e, next_e) {
        HASH_DEL(entries, e);
        for (int k = 0; k < TS_KEY_COUNT; k++)
            for (ts_registration *r = e->kernels[k], *older; r; r = older) {
                older = r->older;
                registration_free(r);
            }
        ts_sys_free(e);
    }
    for (int k = 0; k < TS_KEY_COUNT; k++)
        if (fallbacks[k]) {
            registration_free(fallbacks[k]);
            fallbacks[k] = NULL;
        }
    for (int op = 0; op < ts_op_count(); op++) {
        for (const ts_table *t = atomic_exchange(&ts_tables[op], NULL), *older; t; t = older) {
            older = t->older;
            ts_sys_free((void *)t);
        }
        if (ts_ops[op].flags & TS_OP_RUNTIME)
            ts_sys_free((void *)ts_ops[op].schema_text);
    }
}
