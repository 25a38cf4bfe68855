/**
 * @file check.h  Checks of a function's arguments: one line per check, and the same wording in all
 * messages. The library uses them, and programs may use them:
 *
 *     ts_status scores_add(scores *s, const char *name, const double *values, int64_t n)
 *     {
 *         TS_TRY(TS_CHECK_OBJECTS(s));
 *         TS_TRY(TS_CHECK_POINTERS(name));
 *         TS_TRY(TS_CHECK_LIST(values, n));
 *         TS_TRY(TS_CHECK_VALUE(n, n <= s->room, "at most the room that is left"));
 *
 * Each is an expression of type ts_status. Its message names the function that contains the check,
 * without a leading "ts_", and the argument as written in the check: "scores_add: argument 'name':
 * expected a pointer, got NULL".
 *
 * An object or a tensor comes from a call that may have failed: NULL in its place passes that
 * failure on, and is TS_ERR_NULL when none is recorded. Strings, arrays, callbacks and places for
 * results are the caller's own: NULL is always a new TS_ERR_NULL.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_CHECK_H
#define TESSERA_CHECK_H

#include "core.h"

TS_BEGIN_DECLS

/** Place of a check: the function, and its return address. */
typedef struct ts_check_place {
    const char *function;
    const void *site;
} ts_check_place;

/** TS_ERR_NULL for entry `index` of the names "a, b, c"; an object passes an earlier failure on. */
TS_API ts_status ts_check_null(ts_check_place at, const char *names, int index, bool object);
/** The first of n tensors of the names "a, b, c" that is NULL, which passes an earlier failure on,
 *  or TS_NONE (TS_ERR_NULL), or was released (TS_ERR_STATE). */
TS_API ts_status ts_check_tensors(ts_check_place at, const char *names,
                                  const ts_tensor *const *tensors, int n);
/** TS_ERR_VALUE for n < 0, TS_ERR_NULL for a NULL list of n > 0 entries. */
TS_API ts_status ts_check_list(ts_check_place at, const char *list_name, const char *n_name,
                               const void *list, int64_t n);
/** The same, and TS_ERR_NULL for a NULL entry. */
TS_API ts_status ts_check_strings(ts_check_place at, const char *list_name, const char *n_name,
                                  const char *const *list, int64_t n);
/** Like TS_CHECK_LIST for a list of tensors; checks entries like ts_check_tensors(). */
TS_API ts_status ts_check_tensor_list(ts_check_place at, const char *list_name, const char *n_name,
                                      ts_tensor *const *list, int64_t n);
/**
 * The rule for names: 1 to `most` printable ASCII characters, none a blank or one of `without`.
 * Errors: "__metadata__", which files reserve, and the words of `reserved`, separated by spaces.
 * TS_ERR_NULL, or TS_ERR_VALUE with the name.
 */
TS_API ts_status ts_check_name(ts_check_place at, const char *name, const char *text, int most,
                               const char *without, const char *reserved);
/** TS_ERR_VALUE for an argument that is not as expected. */
TS_API ts_status ts_check_refuse(ts_check_place at, const char *name, const char *expected,
                                 ts_scalar got);
/** Copies the options of a caller, as many bytes as its size, over zeros. */
TS_API ts_status ts_check_other_opts(ts_check_place at, const char *name, void *copy, size_t size,
                                     const void *opts);

/** The first NULL of n pointers, as ts_check_null() says. */
static inline ts_status ts_check_pointers(ts_check_place at, const char *names,
                                          const void *const *pointers, int n, bool objects)
{
    for (int i = 0; i < n; i++)
        if (!pointers[i])
            return ts_check_null(at, names, i, objects);
    return TS_OK;
}

/** Reads options; see TS_CHECK_OPTS(). */
static inline ts_status ts_check_opts(ts_check_place at, const char *name, void *copy, size_t size,
                                      const void *opts)
{
    if (!opts || *(const size_t *)opts != size)
        return ts_check_other_opts(at, name, copy, size, opts);
    __builtin_memcpy(copy, opts, size);
    return TS_OK;
}

#ifndef __cplusplus
/** The place in which it is written. */
#define TS_CHECK_HERE ((ts_check_place){__func__, __builtin_return_address(0)})
#define TS_CHECK_COUNT_(type, ...) ((int)(sizeof((type[]){__VA_ARGS__}) / sizeof(type)))

/** Objects that other calls made: modules, optimizers, files. NULL: that call failed. */
#define TS_CHECK_OBJECTS(...)                                                                      \
    ts_check_pointers(TS_CHECK_HERE, #__VA_ARGS__, (const void *const[]){__VA_ARGS__},             \
                      TS_CHECK_COUNT_(const void *, __VA_ARGS__), true)
/** Strings, callbacks and places for results. */
#define TS_CHECK_POINTERS(...)                                                                     \
    ts_check_pointers(TS_CHECK_HERE, #__VA_ARGS__, (const void *const[]){__VA_ARGS__},             \
                      TS_CHECK_COUNT_(const void *, __VA_ARGS__), false)
/** Tensors that are required. NULL: the call that made it failed. */
#define TS_CHECK_TENSORS(...)                                                                      \
    ts_check_tensors(TS_CHECK_HERE, #__VA_ARGS__, (const ts_tensor *const[]){__VA_ARGS__},         \
                     TS_CHECK_COUNT_(const ts_tensor *, __VA_ARGS__))
/** An array of n >= 0 entries; NULL is allowed for none. */
#define TS_CHECK_LIST(list, n) ts_check_list(TS_CHECK_HERE, #list, #n, list, n)
/** An array of n >= 0 strings. */
#define TS_CHECK_STRINGS(list, n) ts_check_strings(TS_CHECK_HERE, #list, #n, list, n)
/** An array of n >= 0 tensors, all required. */
#define TS_CHECK_TENSOR_LIST(list, n) ts_check_tensor_list(TS_CHECK_HERE, #list, #n, list, n)
/** A name; see ts_check_name(). */
#define TS_CHECK_NAME(name, most, without, reserved)                                               \
    ts_check_name(TS_CHECK_HERE, #name, name, most, without, reserved)
/** A number: TS_ERR_VALUE unless the condition holds, with what was expected and its value. */
#define TS_CHECK_VALUE(x, condition, expected)                                                     \
    ((condition) ? TS_OK : ts_check_refuse(TS_CHECK_HERE, #x, expected, TS_SCALAR(x)))
/**
 * Options, by the rule in core.h: reads *opts into *copy, a struct of the same type whose address
 * is given, with zero in the fields that the caller does not know; all zero for NULL. The size of
 * the copy is the library's own. TS_ERR_VALUE for a size of 0 or above that.
 */
#define TS_CHECK_OPTS(copy, opts)                                                                  \
    ts_check_opts(TS_CHECK_HERE, #opts, copy, sizeof *(copy), 1 ? (opts) : (copy))
#endif

TS_END_DECLS
#endif
