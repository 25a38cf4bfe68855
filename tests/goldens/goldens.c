/**
 * @file goldens.c  Replays results of NumPy and PyTorch (made by tools/make-goldens): each case in
 * f64 and, where its arguments are exact there, in f32.
 */
// SPDX-License-Identifier: MIT
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch/op.h"
#include "include/tessera/tessera.h"
#include "tests/harness.h"

static ts_dtype dtype_of(const char *name)
{
    for (int d = 0; d < TS_DTYPE_COUNT; d++)
        if (name && strcmp(ts_dtype_name((ts_dtype)d), name) == 0)
            return (ts_dtype)d;
    ck_abort_msg("no dtype is called '%s'", name ? name : "NULL");
    return TS_DTYPE_NONE;
}

static double real(const json_t *v)
{
    if (json_is_string(v))
        return strtod(json_string_value(v), NULL);
    return json_is_boolean(v) ? json_is_true(v) : json_number_value(v);
}

/** Makes a tensor of the file; a floating-point tensor gets dtype `run`. */
static ts_tensor *tensor_of(const json_t *v, ts_dtype run)
{
    ts_dtype dtype = dtype_of(json_string_value(json_object_get(v, "dtype")));
    const json_t *sizes = json_object_get(v, "sizes"), *data = json_object_get(v, "data");
    int64_t dims[TS_MAX_DIMS], n = (int64_t)json_array_size(data);
    int ndim = (int)json_array_size(sizes);
    for (int d = 0; d < ndim; d++)
        dims[d] = json_integer_value(json_array_get(sizes, (size_t)d));
    if (ts_dtype_is_float(dtype))
        dtype = run;
    char *bytes = calloc((size_t)n + 1, 8);
    for (int64_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(data, (size_t)i);
        switch (dtype) {
        case TS_F64: ((double *)bytes)[i] = real(x); break;
        case TS_F32: ((float *)bytes)[i] = (float)real(x); break;
        case TS_I64: ((int64_t *)bytes)[i] = json_integer_value(x); break;
        case TS_I32: ((int32_t *)bytes)[i] = (int32_t)json_integer_value(x); break;
        default: bytes[i] = (char)real(x);
        }
    }
    ts_tensor *t = ts_from_array(bytes, dtype, dims, ndim);
    free(bytes);
    ck_assert_msg(t != NULL, "%s", ts_error_message());
    return t;
}

static ts_value box(const json_t *v, ts_dtype run, int64_t *ints)
{
    if (!v || json_is_null(v))
        return ts_value_none();
    if (json_is_boolean(v))
        return ts_value_bool(json_is_true(v));
    if (json_is_integer(v))
        return ts_value_int(json_integer_value(v));
    if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++)
            ints[i] = json_integer_value(json_array_get(v, i));
        return ts_value_ints(ints, (int64_t)json_array_size(v));
    }
    const json_t *number = json_object_get(v, "float");
    return number ? ts_value_float(real(number)) : ts_value_tensor(tensor_of(v, run));
}

static double element(const char *bytes, ts_dtype dtype, int64_t i)
{
    switch (dtype) {
    case TS_F64: return ((const double *)bytes)[i];
    case TS_F32: return ((const float *)bytes)[i];
    case TS_I64: return (double)((const int64_t *)bytes)[i];
    case TS_I32: return ((const int32_t *)bytes)[i];
    default: return ((const uint8_t *)bytes)[i];
    }
}

/** Compares sizes, dtype and elements of y with `want`, up to c eps sqrt(depth) max(|x|, scale),
 *  with c, depth and scale of the test. Prints the first difference. */
static bool same(const char *what, ts_tensor *y, const json_t *want, const json_t *test,
                 ts_dtype run)
{
    TS_SCOPE;
    ts_tensor *w = tensor_of(want, run);
    bool fits = ts_ndim(y) == ts_ndim(w) && ts_dtype_of(y) == ts_dtype_of(w);
    for (int d = 0; fits && d < ts_ndim(w); d++)
        fits = ts_sizes(y)[d] == ts_sizes(w)[d];
    if (!fits) {
        printf("%s: sizes or dtype of the result differ\n", what);
        return false;
    }
    double eps = ts_dtype_of(y) == TS_F64 ? 0x1p-52 : ts_dtype_of(y) == TS_F32 ? 0x1p-23 : 0;
    double unit = json_number_value(json_object_get(test, "c")) * eps *
                  sqrt(json_number_value(json_object_get(test, "depth")));
    double scale = json_number_value(json_object_get(test, "scale"));
    int64_t n = ts_numel(y);
    size_t bytes = (size_t)n * ts_dtype_size(ts_dtype_of(y));
    char *got = malloc(bytes + 1);
    ck_assert_int_eq(ts_copy_to(y, got, bytes), TS_OK);
    bool good = true;
    for (int64_t i = 0; good && i < n; i++) {
        double g = element(got, ts_dtype_of(y), i),
               x = real(json_array_get(json_object_get(want, "data"), (size_t)i));
        double wanted = ts_dtype_of(y) == TS_F32 ? (double)(float)x : x;
        good = (isnan(g) && isnan(wanted)) || g == wanted ||
               fabs(g - x) <= unit * fmax(fabs(x), scale);
        if (!good)
            printf("%s: element %lld is %.17g, expected %.17g\n", what, (long long)i, g, x);
    }
    free(got);
    return good;
}

/** One case in one dtype: 1 passed, 0 failed, -1 the op does not exist. */
static int replay(const json_t *test, ts_dtype run)
{
    TS_SCOPE;
    const char *name = json_string_value(json_object_get(test, "op"));
    const json_t *args = json_object_get(test, "args"), *rets = json_object_get(test, "rets");
    int op = ts_op_by_name(name);
    if (op < 0)
        return -1;
    char what[256];
    snprintf(what, sizeof what, "%s '%s' %s", name,
             json_string_value(json_object_get(test, "name")), ts_dtype_name(run));
    const ts_schema *s = &ts_ops[op].schema;
    ts_value values[TS_MAX_ARGS], results[TS_MAX_RETS];
    int64_t ints[TS_MAX_ARGS][TS_MAX_DIMS];
    size_t used = 0;
    for (int i = 0; i < s->nargs; i++) {
        const json_t *v = json_object_get(args, s->args[i].name);
        used += v != NULL;
        values[i] = box(v, run, ints[i]);
    }
    if (used != json_object_size(args)) {
        printf("%s: rename its arguments in tools/make-goldens: %s\n", what, ts_op_schema(op));
        return 0;
    }
    for (int i = 0; i < TS_MAX_RETS; i++)
        results[i] = ts_value_none();
    if (ts_call_boxed(op, values, s->nargs, results, s->nrets) != TS_OK) {
        printf("%s: %s\n", what, ts_error_message());
        return 0;
    }
    bool good = json_array_size(rets) > 0; /* nothing to compare is a fault of the file */
    for (int i = 0; i < s->nrets; i++)
        if (results[i].tag == TS_TAG_TENSOR)
            ts_adopt(results[i].t);
    int at = -1;
    for (size_t i = 0; good && i < json_array_size(rets); i++) {
        if (!s->nrets) /* the results of an op without results are the arguments that it writes */
            do
                at++;
            while (at < s->nargs && !s->args[at].written);
        ts_tensor *y = s->nrets ? results[i].t : values[at].t;
        good = same(what, y, json_array_get(rets, i), test, run);
    }
    return good;
}

static bool has_reals(const json_t *test)
{
    const char *key;
    json_t *v;
    json_object_foreach (json_object_get(test, "args"), key, v)
        if (json_is_object(v) && json_object_get(v, "dtype") &&
            ts_dtype_is_float(dtype_of(json_string_value(json_object_get(v, "dtype")))))
            return true;
    return false;
}

/** A file beside this one. TS_SOURCE_ROOT is set by `meson test`. */
static json_t *load(const char *name)
{
    char path[4096];
    json_error_t error;
    const char *root = getenv("TS_SOURCE_ROOT");
    snprintf(path, sizeof path, "%s/tests/goldens/%s", root && *root ? root : ".", name);
    json_t *file = json_load_file(path, 0, &error);
    ck_assert_msg(file != NULL, "%s: %s (TS_SOURCE_ROOT names the source tree)", path, error.text);
    return file;
}

static void replay_file(const char *name)
{
    json_t *file = load(name), *test;
    size_t index;
    char unknown[2048] = " "; /* names that were printed */
    json_array_foreach (json_object_get(file, "cases"), index, test) {
        if (!json_object_get(test, "args"))
            continue;
        for (int f32 = 0; f32 < 2; f32++) {
            if (f32 && (!json_is_true(json_object_get(test, "f32")) || !has_reals(test)))
                continue;
            int result = replay(test, f32 ? TS_F32 : TS_F64);
            ts_tally(result > 0, result == 0, result < 0);
            char word[64];
            snprintf(word, sizeof word, " %s ", json_string_value(json_object_get(test, "op")));
            if (result < 0 && !strstr(unknown, word)) {
                printf("skipped: no op is called%s\n", word);
                strncat(unknown, word, sizeof unknown - strlen(unknown) - 1);
            }
        }
    }
    json_decref(file);
}

TS_TEST(numpy_agrees) { replay_file("numpy.json"); }
TS_TEST(torch_agrees) { replay_file("torch.json"); }
TS_TEST(torch_agrees_with_each_row) { replay_file("rows.json"); }
TS_TEST(torch_agrees_on_convolutions) { replay_file("convolution.json"); }
TS_TEST(torch_agrees_on_images) { replay_file("images.json"); }

/* --------------------------------------------------------------------------- higher orders ---- */

/** Loss of the case "network" of higher.json; p: its leaves. */
static ts_tensor *network(const json_t *args, ts_tensor *const *p)
{
    ts_tensor *x = tensor_of(json_object_get(args, "x"), TS_F64),
              *target = tensor_of(json_object_get(args, "target"), TS_F64);
    ts_tensor *h = ts_gelu(ts_layer_norm(ts_linear(x, p[0], p[1]), p[2], p[3]));
    ts_loss_opts opts = {.size = sizeof opts, .label_smoothing = 0.125};
    return ts_cross_entropy_ex(ts_linear(h, p[4], p[5]), target, &opts);
}

static ts_tensor *attention(const json_t *args, ts_tensor *const *p)
{
    ts_attention_opts opts = {.size = sizeof opts, .causal = true};
    ts_tensor *y = ts_scaled_dot_product_attention_ex(p[0], p[1], p[2], NULL, &opts);
    return ts_sum(ts_mul(y, tensor_of(json_object_get(args, "g"), TS_F64)));
}

static ts_tensor *attention_options(const json_t *args, ts_tensor *const *p)
{
    ts_attention_opts opts = {.size = sizeof opts, .scale = 0.75, .softcap = 1.5, .window = true,
                              .window_left = 2, .window_right = 1};
    ts_tensor *mask = tensor_of(json_object_get(args, "bias"), TS_F64);
    opts.mask = &mask;
    ts_tensor *y = ts_scaled_dot_product_attention_ex(p[0], p[1], p[2], NULL, &opts);
    return ts_sum(ts_mul(y, tensor_of(json_object_get(args, "g"), TS_F64)));
}

/** Compares gradients of order 1 to 3 of a case with PyTorch's. Order k + 1 is the gradient of the
 *  sum of order k times fixed directions. n: number of leaves. */
static void higher(const char *name, ts_tensor *(*loss)(const json_t *args, ts_tensor *const *p),
                   int n)
{
    enum { MOST = 6, ORDERS = 3 };
    TS_SCOPE;
    json_t *file = load("higher.json"), *test = NULL, *each;
    size_t index;
    json_array_foreach (json_object_get(file, "cases"), index, each)
        if (strcmp(json_string_value(json_object_get(each, "name")), name) == 0)
            test = each;
    ck_assert_ptr_nonnull(test);
    const json_t *args = json_object_get(test, "args"), *rets = json_object_get(test, "rets");
    ts_tensor *p[MOST], *v[MOST], *grads[MOST];
    char what[64];
    for (int i = 0; i < n; i++) {
        snprintf(what, sizeof what, "p%d", i);
        p[i] = ts_set_requires_grad(tensor_of(json_object_get(args, what), TS_F64), true);
        snprintf(what, sizeof what, "v%d", i);
        v[i] = tensor_of(json_object_get(args, what), TS_F64);
    }
    ts_tensor *value = loss(args, p);
    ck_assert_msg(value && same(name, value, json_array_get(rets, 0), test, TS_F64), "%s",
                  ts_error_message());
    ts_backward_opts opts = {.size = sizeof opts, .create_graph = true};
    for (int order = 0; order < ORDERS; order++) {
        ck_assert_msg(ts_grad_of(value, TS_NONE, p, n, grads, &opts) == TS_OK, "%s",
                      ts_error_message());
        value = NULL;
        for (int i = 0; i < n; i++) {
            snprintf(what, sizeof what, "%s: order %d of leaf %d", name, order + 1, i);
            ck_assert(same(what, grads[i], json_array_get(rets, (size_t)(1 + order * n + i)), test,
                           TS_F64));
            ts_tensor *product = ts_sum(ts_mul(grads[i], v[i]));
            value = value ? ts_add(value, product) : product;
        }
    }
    json_decref(file);
}

TS_TEST(three_orders_of_gradients_of_a_network_equal_torch) { higher("network", network, 6); }
TS_TEST(three_orders_of_gradients_of_attention_equal_torch) { higher("attention", attention, 3); }

/** dtype of add(a, b), computed on META, so that every dtype is supported. */
static ts_dtype sum_dtype(ts_value a, ts_value b)
{
    ts_value args[] = {a, b}, ret = ts_value_none();
    ck_assert_msg(ts_call_boxed(ts_op_by_name("add"), args, 2, &ret, 1) == TS_OK, "%s",
                  ts_error_message());
    return ts_dtype_of(ts_adopt(ret.t));
}

TS_TEST(promotion_equals_torch)
{
    TS_SCOPE;
    json_t *file = load("torch.json"), *test;
    size_t index;
    int seen = 0;
    const int64_t two = 2;
    json_array_foreach (json_object_get(file, "cases"), index, test) {
        const char *key;
        json_t *v;
        if (strcmp(json_string_value(json_object_get(test, "op")), "promote") != 0)
            continue;
        seen++;
        ts_dtype a = dtype_of(json_string_value(json_object_get(test, "name")));
        ts_value dims = ts_value_tensor(ts_empty_on(&two, 1, a, TS_DEVICE_META));
        ts_value zero = ts_value_tensor(ts_empty_on(NULL, 0, a, TS_DEVICE_META));
        json_object_foreach (json_object_get(test, "pairs"), key, v) {
            ts_dtype b = dtype_of(key);
            ts_dtype want = dtype_of(json_string_value(json_object_get(v, "dims")));
            ck_assert_msg(ts_dtype_promote(a, b) == want, "%s with %s", ts_dtype_name(a), key);
            ck_assert_int_eq(
                sum_dtype(dims, ts_value_tensor(ts_empty_on(&two, 1, b, TS_DEVICE_META))), want);
            ts_dtype got =
                sum_dtype(dims, ts_value_tensor(ts_empty_on(NULL, 0, b, TS_DEVICE_META)));
            const char *wanted = json_string_value(json_object_get(v, "zero"));
            ck_assert_msg(got == dtype_of(wanted), "%s with a 0-dim %s is %s, expected %s",
                          ts_dtype_name(a), key, ts_dtype_name(got), wanted);
        }
        const ts_value numbers[] = {ts_value_bool(true), ts_value_int(1), ts_value_float(1.5)};
        const char *const kinds[] = {"bool", "int", "float"};
        for (int k = 0; k < 3; k++) {
            const char *want =
                json_string_value(json_object_get(json_object_get(test, "numbers"), kinds[k]));
            ck_assert_str_eq(ts_dtype_name(sum_dtype(dims, numbers[k])), want);
            want =
                json_string_value(json_object_get(json_object_get(test, "zero_numbers"), kinds[k]));
            ck_assert_str_eq(ts_dtype_name(sum_dtype(zero, numbers[k])), want);
        }
    }
    ck_assert_int_eq(seen, TS_DTYPE_COUNT);
    json_decref(file);
}
TS_TEST(three_orders_of_gradients_of_attention_with_options_equal_torch)
{
    higher("attention_options", attention_options, 3);
}
