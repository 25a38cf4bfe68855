/**
 * @file opcall.c  Fuzzes boxed calls: the first line of an input names the operator, the other
 * bytes choose arguments, destinations and recording. Each call gives complete results or an error
 * with a message, and so does each backward.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <string.h>

#include "core/testing.h"
#include "dispatch/op.h"
#include "include/tessera/tessera.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_BYTES = 1 << 22 };

typedef struct input {
    const uint8_t *at, *end;
} input;

static uint8_t byte(input *in) { return in->at < in->end ? *in->at++ : 0; }

static bool too_large(size_t bytes) { return bytes > MOST_BYTES; }

static int64_t number(input *in)
{
    static const int64_t odd[] = {INT64_MAX, INT64_MIN, (int64_t)1 << 45, -((int64_t)1 << 45),
                                  (int64_t)1 << 31, -((int64_t)1 << 31), 1000, -1000};
    uint8_t b = byte(in);
    return b < 240 ? (int64_t)(b % 16) - 4 : odd[b % 8];
}

static double real(input *in)
{
    static const double some[] = {0, -0.0, 1, -1, 0.5, 2, 1e300, -1e300, INFINITY, -INFINITY, NAN,
                                  1e-8, 0.1, 3, 100, -0.3};
    return some[byte(in) % 16];
}

/** A tensor of at most 4,096 elements in one of several layouts; sometimes NULL or TS_NONE. */
static ts_tensor *tensor(input *in, ts_tensor *const *made, int nmade)
{
    uint8_t kind = byte(in), shape = byte(in), layout = byte(in);
    if (kind >= 250)
        return kind == 250 ? NULL : kind == 251 ? TS_NONE : nmade ? made[shape % nmade] : TS_NONE;
    ts_dtype dtype = (ts_dtype)(kind % TS_DTYPE_COUNT);
    int64_t sizes[TS_MAX_DIMS] = {0};
    int ndim = shape % 5;
    if (shape >= 250)
        ndim = TS_MAX_DIMS;
    for (int d = 0; d < ndim; d++)
        sizes[d] = ndim > 4 ? 1 + (shape >> d & 1) : byte(in) % 6;
    ts_tensor *t = ts_full(sizes, ndim, TS_SCALAR(byte(in) % 4), dtype);
    if (t && layout & 1 && ndim > 1)
        t = ts_transpose(t, 0, ndim - 1);
    if (t && layout & 2 && ndim)
        t = ts_slice(t, ndim - 1, 0, sizes[0] ? 5 : 0, 2);
    if (t && layout & 4) {
        int64_t wide[TS_MAX_DIMS + 1] = {2};
        memcpy(wide + 1, ts_sizes(t), (size_t)ts_ndim(t) * sizeof *wide);
        t = ts_ndim(t) < TS_MAX_DIMS ? ts_expand(t, wide, ts_ndim(t) + 1) : t;
    }
    if (t && layout & 8 && ts_dtype_is_float(dtype))
        ts_set_requires_grad(t, true);
    return t;
}

/** Memory of the lists and texts that arguments point to. */
typedef struct buffers {
    ts_tensor *tensors[64];
    int ntensors;
    ts_tensor *lists[TS_MAX_ARGS][4];
    int64_t ints[TS_MAX_ARGS][10];
} buffers;

static ts_value value(input *in, buffers *r, int i, uint16_t kinds)
{
    static const char *const texts[] = {"", "none", "mean", "sum", "tanh",
                                        "a text that no op knows"};
    uint8_t choice = byte(in);
    int tag = choice % 10;
    /* usually changes the tag to one that the schema allows */
    for (int k = 0; choice < 240 && k < 10 && !(kinds >> tag & 1); k++)
        tag = (tag + 1) % 10;
    switch (tag) {
    case TS_TAG_BOOL: return ts_value_bool(byte(in) & 1);
    case TS_TAG_INT: return ts_value_int(number(in));
    case TS_TAG_FLOAT: return ts_value_float(real(in));
    case TS_TAG_TENSOR: {
        ts_tensor *t = tensor(in, r->tensors, r->ntensors);
        if (t && t != TS_NONE && r->ntensors < TS_COUNTOF(r->tensors))
            r->tensors[r->ntensors++] = t;
        return ts_value_tensor(t);
    }
    case TS_TAG_TENSORS: {
        int n = byte(in) % 5;
        for (int k = 0; k < n; k++)
            r->lists[i][k] = tensor(in, r->tensors, r->ntensors);
        return ts_value_tensors(n ? r->lists[i] : NULL, n);
    }
    case TS_TAG_INTS: {
        int n = byte(in) % 10;
        for (int k = 0; k < n; k++)
            r->ints[i][k] = number(in);
        return ts_value_ints(n ? r->ints[i] : NULL, n);
    }
    case TS_TAG_DTYPE: {
        ts_value v = ts_value_dtype(TS_F32);
        uint8_t b = byte(in);
        v.i = b < 240 ? b % TS_DTYPE_COUNT : b;
        return v;
    }
    case TS_TAG_DEVICE:
        return ts_value_device(byte(in) % 8 ? TS_DEVICE_CPU
                                            : (ts_device){byte(in) % 16, byte(in) % 2});
    case TS_TAG_STRING: return ts_value_string(texts[byte(in) % TS_COUNTOF(texts)]);
    default: return ts_value_none();
    }
}

static void check_error(ts_status status)
{
    if (status == TS_ERR_INTERNAL)
        fprintf(stderr, "%s\n", ts_error_message());
    FUZZ_CHECK(status != TS_ERR_INTERNAL);
    FUZZ_CHECK(ts_error_code() != TS_OK && ts_error_message()[0]);
}

/** Reads the whole result, so that a sanitizer detects accesses outside. */
static void check_result(ts_tensor *t)
{
    FUZZ_CHECK(t && t != TS_NONE && ts_ndim(t) <= TS_MAX_DIMS && ts_numel(t) >= 0);
    int64_t n = 1;
    for (int d = 0; d < ts_ndim(t); d++)
        n *= ts_sizes(t)[d];
    FUZZ_CHECK(n == ts_numel(t));
    if (ts_device_of(t).backend != TS_KEY_CPU || !n || n > MOST_BYTES)
        return;
    TS_SCOPE;
    TS_NO_GRAD;
    size_t bytes = (size_t)n * ts_dtype_size(ts_dtype_of(t));
    char *copy = malloc(bytes);
    FUZZ_CHECK(copy);
    ts_status status = ts_copy_to(t, copy, bytes);
    FUZZ_CHECK(status == TS_OK || status == TS_ERR_MEMORY);
    free(copy);
}

/**
 * The operator that the first line names, so that a seed does not depend on the numbers of ops. If
 * the line is no name, its hash selects the operator.
 */
static int operator_of(input *in)
{
    char name[64] = "";
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (size_t n = 0; in->at < in->end; n++) {
        uint8_t c = byte(in);
        if (c == '\n')
            break;
        hash = (hash ^ c) * 16777619u;
        if (n + 1 < sizeof name)
            name[n] = (char)c;
    }
    int op = ts_op_by_name(name);
    return op >= 0 ? op : (int)(hash % (uint32_t)ts_op_count());
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    TS_SCOPE;
    static buffers r;
    input in = {data, data + size};
    int op = operator_of(&in);
    const ts_schema *s = &ts_ops[op].schema;
    uint8_t mode = byte(&in);
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    ts_set_num_threads(1);
    ts_rng_set_state((ts_rng_state){7, 0});
    ts_error_clear();
    r.ntensors = 0;
    for (int i = 0; i < s->nargs; i++)
        args[i] =
            value(&in, &r, i, s->args[i].kinds | (s->args[i].optional ? 1 << TS_TAG_NONE : 0));
    for (int i = 0; i < TS_MAX_RETS; i++)
        rets[i] = ts_value_none();
    int given = 0;
    for (int i = 0; i < s->nrets; i++)
        if (mode >> i & 1) {
            ts_tensor *t =
                mode & 16 && r.ntensors ? r.tensors[0] : tensor(&in, r.tensors, r.ntensors);
            rets[i] = ts_value_tensor(t);
            given |= (t != NULL) << i; /* NULL: the call makes the result */
        }
    ts_error_clear(); /* an argument that could not be made is NULL, an error of the call */
    ts_alloc_fault = too_large;
    ts_status status = ts_call_boxed(op, args, s->nargs, rets, s->nrets);
    if (status != TS_OK)
        check_error(status);
    for (int i = 0; status == TS_OK && i < s->nrets; i++)
        if (rets[i].tag == TS_TAG_TENSOR) {
            if (!(given >> i & 1))
                ts_adopt(rets[i].t);
            check_result(rets[i].t);
        }
    for (int i = 0; status == TS_OK && i < s->nrets; i++)
        if (rets[i].tag == TS_TAG_TENSOR && ts_requires_grad(rets[i].t)) {
            ts_backward_opts opts = {
                .size = sizeof opts, .retain_graph = true, .create_graph = mode >> 5 & 1};
            ts_status back = ts_backward_ex(rets[i].t, ts_ones_like(rets[i].t), &opts);
            if (back != TS_OK)
                check_error(back);
        }
    ts_alloc_fault = NULL;
    for (int i = 0; i < r.ntensors; i++) {
        if (ts_grad(r.tensors[i]) != TS_NONE)
            check_result(ts_grad(r.tensors[i]));
        ts_zero_grad(r.tensors[i]);
    }
    return 0;
}
