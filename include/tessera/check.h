/**
 * @file check.h  Checks of a function's arguments: one line per check, and the same wording in all
 * messages. The library uses them, and programs may use them:
 *
 *     ts_status scores_add(scores *s, const char *name, const double *values, int64_t n)
 *     {
 *         TS_TRY(TS_CHECK_OBJECTS(s));
 *         TS_TRY(TS_CHECK_POINTERS(name));
 *         TS_TRY(TS_CHECK_LIST(values, n));
 *         TS_TRY(TS_CHECK_VALUE(n, n <= s->unused, "at most the number of unused entries"));
 *
 * A check is an expression of type ts_status. Its message names the function that contains the
 * check, without a leading "ts_", and the argument as written in the check: "scores_add: argument
 * 'name': expected a name, got NULL". For a number, name, list or options, the message has only the
 * part of the argument after the last dot.
 *
 * A NULL object or tensor is usually the result of a failed call: the check returns the recorded
 * failure, or a new TS_ERR_NULL if none is recorded. For NULL strings, arrays, callbacks and result
 * pointers, which the caller provides, it records a new TS_ERR_NULL, except where core.h says that
 * an earlier failure stays.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_CHECK_H
#define TESSERA_CHECK_H

#include "core.h"

TS_BEGIN_DECLS

/** Location of a check. */
typedef struct ts_check_place {
    const char *function; /**< name of the function that contains the check */
    const void *site;     /**< return address of that function, as in ts_error_site() */
} ts_check_place;

/** Records and returns TS_ERR_NULL for argument number `index`, from 0, of the list `names`
 *  ("a, b, c"). If `object` is true and a failure is recorded already, returns that failure. */
TS_API ts_status ts_check_null(ts_check_place at, const char *names, int index, bool object)
    __attribute__((cold));
/** Checks n tensors, called "a, b, c" in `names`. The first invalid one decides the error: NULL
 *  returns an earlier failure, or TS_ERR_NULL; TS_NONE is TS_ERR_NULL; a released tensor is
 *  TS_ERR_STATE. The list itself is checked as by ts_check_list(). */
TS_API ts_status ts_check_tensors(ts_check_place at, const char *names,
                                  const ts_tensor *const *tensors, int n);
/** TS_ERR_VALUE for n < 0, TS_ERR_NULL for a NULL list of n > 0 entries. */
TS_API ts_status ts_check_list(ts_check_place at, const char *list_name, const char *n_name,
                               const void *list, int64_t n);
/** Like ts_check_list(), and TS_ERR_NULL for a NULL entry. */
TS_API ts_status ts_check_strings(ts_check_place at, const char *list_name, const char *n_name,
                                  const char *const *list, int64_t n);
/** Like ts_check_list(), and checks each entry like ts_check_tensors(). */
TS_API ts_status ts_check_tensor_list(ts_check_place at, const char *list_name, const char *n_name,
                                      ts_tensor *const *list, int64_t n);
/**
 * Checks that `text` is a valid name: 1 to `most` printable ASCII characters without blanks.
 * @param name      the argument's name, for the message
 * @param without   further characters that are not allowed, such as ":,"; "" or NULL for none
 * @param reserved  names that are not allowed, separated by spaces; "" or NULL for none.
 *                  "__metadata__", which safetensors files reserve, is never allowed
 * Errors: TS_ERR_NULL, or TS_ERR_VALUE with the text in the message.
 */
TS_API ts_status ts_check_name(ts_check_place at, const char *name, const char *text, int most,
                               const char *without, const char *reserved);
/** Records and returns TS_ERR_VALUE: "argument 'NAME': expected EXPECTED, got GOT". NAME is the
 *  part of `name` after its last dot. */
TS_API ts_status ts_check_refuse(ts_check_place at, const char *name, const char *expected,
                                 ts_scalar got);
/** Slow path of ts_check_opts(), for a NULL argument and for options of another size. */
TS_API ts_status ts_check_other_opts(ts_check_place at, const char *name, void *copy, size_t size,
                                     const void *opts);

/** Calls ts_check_null() for the first NULL of n pointers. */
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
    if (!copy || !opts || *(const size_t *)opts != size)
        return ts_check_other_opts(at, name, copy, size, opts);
    __builtin_memcpy(copy, opts, size);
    return TS_OK;
}

#ifndef __cplusplus
/** The location of the macro's use. */
#define TS_CHECK_HERE ((ts_check_place){__func__, __builtin_return_address(0)})
#define TS_CHECK_COUNT_(type, ...) ((int)(sizeof((type[]){__VA_ARGS__}) / sizeof(type)))

/** Checks objects that other calls made (modules, optimizers, files) for NULL, which means that
 *  such a call failed. */
#define TS_CHECK_OBJECTS(...)                                                                      \
    ts_check_pointers(TS_CHECK_HERE, #__VA_ARGS__, (const void *const[]){__VA_ARGS__},             \
                      TS_CHECK_COUNT_(const void *, __VA_ARGS__), true)
/** Checks strings, callbacks and result pointers: NULL is TS_ERR_NULL. */
#define TS_CHECK_POINTERS(...)                                                                     \
    ts_check_pointers(TS_CHECK_HERE, #__VA_ARGS__, (const void *const[]){__VA_ARGS__},             \
                      TS_CHECK_COUNT_(const void *, __VA_ARGS__), false)
/** Checks required tensors; see ts_check_tensors(). */
#define TS_CHECK_TENSORS(...)                                                                      \
    ts_check_tensors(TS_CHECK_HERE, #__VA_ARGS__, (const ts_tensor *const[]){__VA_ARGS__},         \
                     TS_CHECK_COUNT_(const ts_tensor *, __VA_ARGS__))
/** Checks an array of n >= 0 entries. It may be NULL if n is 0. */
#define TS_CHECK_LIST(list, n) ts_check_list(TS_CHECK_HERE, #list, #n, list, n)
/** Checks an array of n >= 0 strings, none NULL. */
#define TS_CHECK_STRINGS(list, n) ts_check_strings(TS_CHECK_HERE, #list, #n, list, n)
/** Checks an array of n >= 0 required tensors. */
#define TS_CHECK_TENSOR_LIST(list, n) ts_check_tensor_list(TS_CHECK_HERE, #list, #n, list, n)
/** Checks a name; see ts_check_name(). */
#define TS_CHECK_NAME(name, most, without, reserved)                                               \
    ts_check_name(TS_CHECK_HERE, #name, name, most, without, reserved)
/** Checks a number x: TS_ERR_VALUE unless `condition` holds. `expected` is the message's text for
 *  valid numbers, such as "at least 1". */
#define TS_CHECK_VALUE(x, condition, expected)                                                     \
    ((condition) ? TS_OK : ts_check_refuse(TS_CHECK_HERE, #x, expected, TS_SCALAR(x)))
/**
 * Checks options by the rule in core.h and copies *opts to *copy, a struct of the same type. Fields
 * that the caller's older version of the struct lacks become 0. If opts is NULL, all fields become
 * 0. copy->size is then set to the library's size. TS_ERR_VALUE if opts->size is 0, above the
 * library's size, or not a multiple of sizeof(size_t).
 */
#define TS_CHECK_OPTS(copy, opts)                                                                  \
    ts_check_opts(TS_CHECK_HERE, #opts, copy, sizeof *(copy), 1 ? (opts) : (copy))
#endif

TS_END_DECLS
#endif
