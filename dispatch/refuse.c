/** @file refuse.c  Error messages of calls that cannot run: op, argument, expected and actual
 * value, hint. */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "dispatch/invoke.h"
#include "dispatch/registry.h"
#include "include/tessera/program.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------------- call as text ---- */

static __attribute__((format(printf, 4, 5))) int put(char *buffer, size_t size, int used,
                                                     const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t at = (size_t)used < size ? (size_t)used : size;
    int n = vsnprintf(buffer ? buffer + at : NULL, size - at, format, args);
    va_end(args);
    return used + (n > 0 ? n : 0);
}

static int put_tensor(char *buffer, size_t size, int used, const ts_tensor *t)
{
    char sizes[192];
    if (!t || t == TS_NONE)
        return put(buffer, size, used, "none");
    ts_format_sizes(sizes, sizeof sizes, t->sizes, t->ndim);
    used = put(buffer, size, used, "%s %s", sizes, ts_dtype_name(t->dtype));
    if (t->keys & ~TS_KEYSET(TS_KEY_CPU) & TS_BACKEND_KEYS)
        used = put(buffer, size, used, " %s", ts_device_name(t->device));
    return used;
}

int ts_frame_describe(const ts_frame *f, char *buffer, size_t size)
{
    if (size && TS_CHECK_POINTERS(buffer) != TS_OK)
        return 0;
    if (TS_CHECK_LENT(f, "frame") == TS_OK)
        return ts_call_describe(ts_op_name(f->op), f->args, f->nargs, buffer, size);
    if (size)
        buffer[0] = 0;
    return 0;
}

int ts_call_describe(const char *name, const ts_value *args, int nargs, char *buffer, size_t size)
{
    TS_C_LOCALE;
    int used = put(buffer, size, 0, "%s(", name);
    for (int i = 0; i < nargs; i++) {
        const ts_value *v = &args[i];
        if (i)
            used = put(buffer, size, used, ", ");
        switch (v->tag) {
        case TS_TAG_BOOL: used = put(buffer, size, used, "%s", v->i ? "true" : "false"); break;
        case TS_TAG_INT: used = put(buffer, size, used, "%lld", (long long)v->i); break;
        case TS_TAG_FLOAT: used = put(buffer, size, used, "%g", v->d); break;
        case TS_TAG_TENSOR: used = put_tensor(buffer, size, used, v->t); break;
        case TS_TAG_TENSORS:
            used = put(buffer, size, used, "[");
            for (uint32_t k = 0; k < v->count && k < 4; k++) {
                used = put(buffer, size, used, k ? ", " : "");
                used = put_tensor(buffer, size, used, v->list[k]);
            }
            used = put(buffer, size, used, v->count > 4 ? ", … %u]" : "]", v->count);
            break;
        case TS_TAG_INTS: {
            char ints[192];
            ts_format_sizes(ints, sizeof ints, v->ints, v->count > 16 ? 16 : (int)v->count);
            used = put(buffer, size, used, "%s", ints);
            break;
        }
        case TS_TAG_DTYPE:
            used = put(buffer, size, used, "%s", ts_dtype_name((ts_dtype)v->i));
            break;
        case TS_TAG_DEVICE: used = put(buffer, size, used, "%s", ts_device_name(v->device)); break;
        case TS_TAG_STRING: {
            char text[80];
            used = put(buffer, size, used, "'%s'", ts_escape_text(text, sizeof text, v->str));
            break;
        }
        default: used = put(buffer, size, used, "none");
        }
    }
    return put(buffer, size, used, ")");
}

/* ----------------------------------------------------------------------------- refusals ---- */

/** Writes the name of argument `arg`, "?" for one that the op does not have, or "name[member]" for
 *  a member >= 0 of a list. Returns name. */
static const char *name_argument(int op, int arg, int64_t member, char *name, size_t size)
{
    const ts_schema *s = &ts_ops[op].schema;
    const char *plain = arg >= 0 && arg < s->nargs ? s->args[arg].name : "?";
    snprintf(name, size, member < 0 ? "%s" : "%s[%lld]", plain, (long long)member);
    return name;
}

/** Records the error of an argument called `name`; returns status. */
static __attribute__((format(printf, 5, 0))) ts_status fail_argument(const ts_frame *f,
                                                                     const char *name,
                                                                     ts_status status,
                                                                     const char *hint,
                                                                     const char *format,
                                                                     va_list args)
{
    char text[900];
    TS_C_LOCALE;
    vsnprintf(text, sizeof text, format, args);
    return ts_fail_op(status, ts_op_name(f->op), f->site, hint, "argument '%s': %s", name, text);
}

ts_status ts_fail_null_arg(int op, int index, const void *site)
{
    const ts_param *arg = &ts_ops[op].schema.args[index];
    if (arg->kinds >> TS_TAG_INTS & 1)
        return ts_fail_op(TS_ERR_NULL, ts_op_name(op), site, NULL,
                          "argument '%s': expected a list of numbers, got NULL", arg->name);
    if (ts_error_code() == TS_OK && (arg->kinds >> TS_TAG_TENSORS & 1))
        return ts_fail_op(TS_ERR_NULL, ts_op_name(op), site, NULL,
                          "argument '%s': expected a list of tensors, got NULL or a list with NULL",
                          arg->name);
    return ts_fail_null(ts_op_name(op), site, arg->name);
}

ts_status ts_fail_refused(int op, int index, const ts_value *v, const void *site)
{
    const char *name = ts_ops[op].schema.args[index].name;
    int64_t number = (int64_t)(((uint64_t)v->i & ~(uint64_t)UINT32_MAX) | v->count);
    if (v->reserved == TS_TAG_NONE)
        return ts_fail_op(TS_ERR_VALUE, ts_op_name(op), site, "make numbers with TS_SCALAR()",
                          "argument '%s': expected a scalar of kind 1 to 3, got kind %lld", name,
                          (long long)number);
    return ts_fail_op(TS_ERR_VALUE, ts_op_name(op), site, NULL,
                      "argument '%s': expected 0 to %d entries, got %lld", name, INT32_MAX,
                      (long long)number);
}

ts_status ts_fail_absent_tensor(ts_frame *f)
{
    char name[40] = "out";
    const ts_tensor *dead = NULL;
    for (int i = f->nrets - 1; i >= 0; i--)
        if ((f->given >> i & 1) && ts_tensor_is_dead(f->rets[i].t))
            dead = f->rets[i].t;
    for (int i = f->nargs - 1; i >= 0; i--) {
        const ts_value *v = &f->args[i];
        if (ts_is_refused(v))
            return ts_fail_refused(f->op, i, v, f->site);
        if (v->tag == TS_TAG_DEVICE && v->device.backend > 15)
            return ts_fail_arg_hint(f, i, TS_ERR_DEVICE,
                                    "ts_device_from_name() makes a device from a name like cuda:0",
                                    "expected a device, got backend number %d", v->device.backend);
        uint32_t n;
        ts_tensor *const *t = ts_value_members(v, &n);
        for (uint32_t k = 0; k < n; k++)
            if (ts_is_none(t[k]) || ts_tensor_is_dead(t[k])) {
                name_argument(f->op, i, v->tag == TS_TAG_TENSORS ? (int64_t)k : -1, name,
                              sizeof name);
                dead = ts_is_none(t[k]) ? NULL : t[k];
            }
    }
    return ts_fail_tensor(ts_op_name(f->op), f->site, name, dead ? dead : TS_NONE);
}

ts_status ts_fail_destination(int op, const ts_value *args, int nargs, const ts_tensor *out,
                              const void *site)
{
    bool in_place = nargs && args[0].tag == TS_TAG_TENSOR && args[0].t == out;
    return ts_fail_tensor(ts_op_name(op), site, in_place ? ts_ops[op].schema.args[0].name : "out",
                          out);
}

/** Writes the keys of the call from the highest down to the backend to text, such as "AUTOCAST,
 *  AUTOGRAD, CPU"; returns text. */
static const char *name_visited(const ts_frame *f, char *text, size_t size)
{
    int used = 0;
    for (ts_keyset keys = f->keys; keys && used < (int)size;) {
        ts_key key = ts_highest_key(keys);
        used = put(text, size, used, "%s%s", used ? ", " : "", ts_key_name(key));
        keys = key < 16 ? 0 : keys & ~TS_KEYSET(key);
    }
    return text;
}

ts_status ts_call_failed(ts_frame *f, ts_status status)
{
    char keys[200] = "";
    ts_error *e = f->thread->error;
    if (e->code == TS_OK || e->reported)
        ts_fail_op(status, ts_op_name(f->op), f->site, "record why with ts_error_set()",
                   "failed without recording an error; the call passes %s",
                   name_visited(f, keys, sizeof keys));
    e->reported = f->thread->depth == 0;
    return ts_drop_results(f, e->code); /* the kernel's status may differ from the record */
}

ts_status ts_fail_no_result(ts_frame *f)
{
    char keys[200] = "";
    return ts_call_failed(
        f, ts_fail_op(TS_ERR_INTERNAL, ts_op_name(f->op), f->site,
                      "a layer calls ts_redispatch(), or puts a tensor into frame->rets",
                      "returned TS_OK without a result; the call passes %s",
                      name_visited(f, keys, sizeof keys)));
}

ts_tensor *ts_adopt_linked(ts_tensor *t, int op, const void *site)
{
    bool none = ts_is_none(t);
    if (!none && atomic_load_explicit(&t->refs, memory_order_acquire) > 1)
        return ts_adopt(t);
    ts_fail_op(TS_ERR_INTERNAL, ts_op_name(op), site,
               "a kernel sets results with ts_kernel_give(), or ts_retain()s what it puts into "
               "frame->rets",
               "expected a tensor with a reference for the caller as the result, got %s",
               none ? "TS_NONE" : "one that only a scope owns");
    return NULL;
}

ts_status ts_fail_no_keys(const ts_frame *f)
{
    return ts_fail_op(TS_ERR_UNSUPPORTED, ts_op_name(f->op), f->site,
                      "pass at least one tensor or a device; check what the thread excludes",
                      "no dispatch key is left: the arguments have no keys, or the thread excludes "
                      "them");
}

ts_status ts_missing_kernel(ts_frame *f)
{
    char call[512];
    ts_frame_describe(f, call, sizeof call);
    int device = -1; /* the argument that names the device: moving tensors is useless */
    for (int i = 0; i < f->nargs; i++)
        if (f->args[i].tag == TS_TAG_DEVICE && f->args[i].device.backend == f->key)
            device = i;
    bool loaded =
        f->key == TS_KEY_CPU || f->key == TS_KEY_META || ts_backend_of((ts_device){f->key, 0});
    if (device >= 0 && strcmp(ts_key_name(f->key), "?") == 0)
        return ts_fail_arg_hint(f, device, TS_ERR_DEVICE, "load its backend with ts_backend_load()",
                                "expected the device of a known backend, got backend number %d",
                                f->key);
    return ts_fail_op(
        TS_ERR_UNSUPPORTED, ts_op_name(f->op), f->site,
        device >= 0 && !loaded ? "load the device's backend with ts_backend_load()"
        : device >= 0
            ? "make the tensor on the CPU, or register a kernel or a fallback for this backend"
            : "move the tensors with ts_to_device(), or register a kernel or a fallback for "
              "this backend",
        "no kernel for %s; called as %s", ts_key_name(f->key), call);
}

/** True if the argument names this dtype, or is or contains a tensor of it. */
static bool has_dtype(const ts_value *v, ts_dtype dtype)
{
    uint32_t n;
    ts_tensor *const *t = ts_value_members(v, &n);
    bool found = v->tag == TS_TAG_DTYPE && v->i == (int64_t)dtype;
    for (uint32_t k = 0; k < n; k++)
        found |= !ts_is_none(t[k]) && t[k]->dtype == dtype;
    return found;
}

/** The name of the first argument from which a call has this compute dtype; "out" for a destination
 *  that has it; NULL if only the promotion of several arguments gives it. */
static const char *dtype_source(const ts_frame *f, ts_dtype dtype)
{
    for (int i = 0; i < f->nargs; i++)
        if (has_dtype(&f->args[i], dtype))
            return ts_ops[f->op].schema.args[i].name;
    for (int i = 0; i < f->nrets; i++)
        if ((f->given >> i & 1) && has_dtype(&f->rets[i], dtype))
            return "out";
    return NULL;
}

ts_status ts_fail_kernel_dtype(const ts_frame *f, uint16_t dtypes)
{
    char list[128] = "none";
    for (int d = 0, used = 0, left = dtypes; left; d++) {
        if (!(left >> d & 1))
            continue;
        left &= ~(1 << d);
        used = put(list, sizeof list, used, "%s%s", !used ? "" : left ? ", " : " or ",
                   ts_dtype_name((ts_dtype)d));
    }
    ts_dtype compute = f->plan->compute;
    const char *arg = dtype_source(f, compute);
    return ts_fail_op(TS_ERR_DTYPE, ts_op_name(f->op), f->site, "cast with ts_to()",
                      "%s%s%s: expected a dtype that has a kernel on %s (%s), got %s",
                      arg ? "argument '" : "the arguments' common dtype", arg ? arg : "",
                      arg ? "'" : "", ts_key_name(f->key), list, ts_dtype_name(compute));
}

ts_status ts_kernel_error(const ts_frame *f, int arg, ts_status status, const char *hint,
                          const char *format, ...)
{
    TS_TRY(TS_CHECK_LENT(f, "frame"));
    char name[40];
    va_list args;
    va_start(args, format);
    status = fail_argument(f, name_argument(f->op, arg, -1, name, sizeof name), status, hint,
                           format ? format : "?", args);
    va_end(args);
    return status;
}

ts_status ts_fail_member(const ts_frame *f, int arg, int64_t member, ts_status status,
                         const char *hint, const char *format, ...)
{
    char name[40];
    va_list args;
    va_start(args, format);
    status = fail_argument(f, name_argument(f->op, arg, member, name, sizeof name), status, hint,
                           format, args);
    va_end(args);
    return status;
}

ts_tensor *ts_fail_as(const char *function, int op, const void *site)
{
    ts_error *e = ts_thread_self()->error;
    const char *name = ts_op_name(op);
    size_t used = strlen(name);
    if (e->site == site && strcmp(e->op, name) == 0 && strncmp(e->message, name, used) == 0) {
        char rest[sizeof e->message];
        strcpy(rest, e->message + used);
        snprintf(e->message, sizeof e->message, "%s%s", function, rest);
        snprintf(e->op, sizeof e->op, "%s", function);
    }
    return NULL;
}

ts_status ts_unsupported_call(ts_frame *f)
{
    const ts_backend *b = ts_backend_of((ts_device){f->key, 0});
    if (b->flags & TS_BACKEND_CPU_FALLBACK)
        return ts_round_trip(f);
    char call[512];
    ts_frame_describe(f, call, sizeof call);
    return ts_fail_op(
        TS_ERR_UNSUPPORTED, ts_op_name(f->op), f->site,
        "move the tensors with ts_to_device(), or cast them to a dtype that the backend supports",
        "the kernel for %s does not support this call; called as %s", ts_key_name(f->key), call);
}
