/** @file check.c  Checks of arguments, with the same wording for all functions. */
// SPDX-License-Identifier: MIT
#include "include/tessera/check.h"
#include "include/tessera/program.h"

#include <stdio.h>
#include <string.h>

#include "core/tensor.h"

/** The function's name without "ts_", as messages show it. */
static const char *op_of(ts_check_place at)
{
    return at.function && strncmp(at.function, "ts_", 3) == 0 ? at.function + 3 : at.function;
}

/** An argument's name as messages show it: of a field of options, without its struct. */
static const char *shown(const char *name)
{
    const char *dot = name ? strrchr(name, '.') : NULL;
    return dot ? dot + 1 : name ? name : "?";
}

/** Writes entry `index` of "a, b, c" to `name`. */
static const char *name_at(const char *names, int index, char *name, size_t size)
{
    names = names ? names : "?";
    for (; index > 0 && strchr(names, ','); index--) {
        names = strchr(names, ',') + 1;
        names += strspn(names, " ");
    }
    snprintf(name, size, "%.*s", (int)strcspn(names, ","), names);
    return name;
}

/** The noun for an argument in messages, such as "a path". The noun follows from the argument's
 * name, which the library uses for one kind of argument only. */
static const char *noun_of(const char *name, bool object)
{
    static const struct {
        bool object;
        const char *noun, *names;
    } nouns[] = {
        {false, "a path", "path dir"},
        {false, "a name", "name column x_column y_column activation function op"},
        {false, "a text", "text label about format schema topic buffer json_text"},
        {false, "a list", "argv args rets values inputs outputs parts knobs"},
        {false, "a function", "fn visit write hook kernel callback get length forward step"},
        {false, "a rule", "rule"},
        {false, "an address for a tensor", "images labels test_images test_labels"},
        {false, "options", "opts"},
        {false, "a ts_module_type", "type"},
        {false, "a ts_training", "training"},
        {false, "a schedule", "schedule"},
        {false, "a backend", "backend"},
        {false, "a region", "region"},
        {false, "a registration", "registration"},
        {false, "a running call", "frame call"},
        {false, "an operand of a space", "operand"},
        {false, "a boxed number", "number"},
        {false, "an address for an element", "element"},
        {false, "a list of 3 windows", "axis"},
        {false, "a file", "file out"},
        {false, "an address for the result", "description status batch checkpoint device fd list "
                                          "graph stats stream event value ms work machine "
                                          "shares"},
        {true, "a module", "m child model sequential"},
        {true, "an optimizer", "o optimizer"},
        {true, "a scaler", "s"},
        {true, "an open file", "st"},
        {true, "a chart", "chart"},
        {true, "a CSV log", "csv"},
        {true, "a table", "table"},
        {true, "a progress line", "progress"},
        {true, "a checkpoint", "checkpoint"},
        {true, "a loader", "loader"},
        {true, "a dataset", "dataset"},
        {true, "averages", "ema"},
        {true, "an archive", "npz"},
        {true, "a run", "run"},
        {true, "a graph", "graph"},
        {true, "a profile", "profile before after"},
        {true, "a node", "node"},
        {true, "a running call", "call"},
        {true, "a tensor", "t x loss grad gradient"},
    };
    for (int i = 0; i < TS_COUNTOF(nouns); i++)
        if (nouns[i].object == object && ts_word_index(nouns[i].names, ' ', shown(name)) >= 0)
            return nouns[i].noun;
    return object ? "an object" : "a pointer";
}

/** The error for NULL. object: the argument is a handle, which a failed call may have returned as
 *  NULL; a recorded error then remains. */
static ts_status fail_null(ts_check_place at, const char *name, const char *expected, bool object)
{
    if (object && ts_error_code() != TS_OK)
        return ts_error_code();
    return ts_fail_op(TS_ERR_NULL, op_of(at), at.site, NULL,
                      "argument '%s': expected %s, got NULL", name, expected);
}

ts_status ts_check_null(ts_check_place at, const char *names, int index, bool object)
{
    char name[64];
    name_at(names, index, name, sizeof name);
    return fail_null(at, name, noun_of(name, object), object);
}

/** The error for NULL, TS_NONE or a released tensor. */
static ts_status refuse_tensor(ts_check_place at, const char *name, const ts_tensor *t)
{
    if (!t)
        return fail_null(at, name, "a tensor", true);
    return ts_fail_tensor(op_of(at), at.site, name, t);
}

/** True if t is a live tensor. TS_NONE and released tensors have the bit TS_KEY_ABSENT. */
static bool is_tensor(const ts_tensor *t) { return TS_LIKELY(t && !(t->keys >> TS_KEY_ABSENT)); }

ts_status ts_check_tensors(ts_check_place at, const char *names, const ts_tensor *const *tensors,
                           int n)
{
    char name[64];
    TS_TRY(ts_check_list(at, names, "n", tensors, n));
    for (int i = 0; i < n; i++)
        if (!is_tensor(tensors[i]))
            return refuse_tensor(at, name_at(names, i, name, sizeof name), tensors[i]);
    return TS_OK;
}

ts_status ts_check_list(ts_check_place at, const char *list_name, const char *n_name,
                        const void *list, int64_t n)
{
    if (n < 0)
        return ts_check_refuse(at, n_name, "at least 0", ts_scalar_int(n));
    if (list || n == 0)
        return TS_OK;
    return ts_fail_op(TS_ERR_NULL, op_of(at), at.site, NULL,
                      "argument '%s': expected %lld entries, got NULL", shown(list_name),
                      (long long)n);
}

ts_status ts_check_strings(ts_check_place at, const char *list_name, const char *n_name,
                           const char *const *list, int64_t n)
{
    char name[64];
    TS_TRY(ts_check_list(at, list_name, n_name, list, n));
    for (int64_t i = 0; i < n; i++)
        if (!list[i]) {
            snprintf(name, sizeof name, "%s[%lld]", shown(list_name), (long long)i);
            return fail_null(at, name, "a string", false);
        }
    return TS_OK;
}

ts_status ts_check_tensor_list(ts_check_place at, const char *list_name, const char *n_name,
                               ts_tensor *const *list, int64_t n)
{
    char name[64];
    TS_TRY(ts_check_list(at, list_name, n_name, list, n));
    for (int64_t i = 0; i < n; i++)
        if (!is_tensor(list[i])) {
            snprintf(name, sizeof name, "%s[%lld]", shown(list_name), (long long)i);
            return refuse_tensor(at, name, list[i]);
        }
    return TS_OK;
}

ts_status ts_check_name(ts_check_place at, const char *name, const char *text, int most,
                        const char *without, const char *reserved)
{
    if (!text)
        return fail_null(at, shown(name), "a name", false);
    size_t length = strlen(text);
    bool good = length && most > 0 && length <= (size_t)most;
    without = without ? without : "";
    for (const char *p = text; *p; p++) /* printable ASCII, which files, messages and variables can
                                           hold */
        good &= *p > ' ' && *p < 0x7f && !strchr(without, *p);
    if (!good)
        return ts_fail_op(TS_ERR_VALUE, op_of(at), at.site, NULL,
                          "argument '%s': expected a name of 1 to %d printable ASCII characters "
                          "without blanks%s%s%s, got '%.200s'",
                          shown(name), most, *without ? " and without the characters '" : "",
                          without, *without ? "'" : "", text);
    if (strcmp(text, "__metadata__") == 0 || (reserved && ts_word_index(reserved, ' ', text) >= 0))
        return ts_fail_op(TS_ERR_VALUE, op_of(at), at.site, NULL,
                          "argument '%s': expected a name that is not reserved, got '%s'",
                          shown(name), text);
    return TS_OK;
}

ts_status ts_check_refuse(ts_check_place at, const char *name, const char *expected, ts_scalar got)
{
    char text[32];
    TS_C_LOCALE;
    if (got.kind == TS_SCALAR_FLOAT)
        snprintf(text, sizeof text, "%g", got.d);
    else
        snprintf(text, sizeof text, "%lld", (long long)got.i);
    return ts_fail_op(TS_ERR_VALUE, op_of(at), at.site, NULL, "argument '%s': expected %s, got %s",
                      shown(name), expected ? expected : "another value", text);
}

ts_status ts_check_other_opts(ts_check_place at, const char *name, void *copy, size_t size,
                              const void *opts)
{
    if (!copy)
        return fail_null(at, "copy", "an address for the options", false);
    size_t given = opts ? *(const size_t *)opts : size;
    /* in every version the struct's size is a multiple of sizeof(size_t) */
    if (given < sizeof given || given > size || given % sizeof given)
        return ts_fail_op(TS_ERR_VALUE, op_of(at), at.site,
                          "set .size to the size of the struct, or use TS_OPTS()",
                          "argument '%s': expected a .size of %zu, or a smaller multiple of %zu "
                          "from an earlier version, got %zu",
                          shown(name), size, sizeof given, given);
    memset(copy, 0, size);
    if (opts)
        memcpy(copy, opts, given);
    memcpy(copy, &size, sizeof size);
    return TS_OK;
}
