/**
 * @file compare_function.c
 * Functions of calls, written in reverse Polish notation, for bench/compare.py: eager, compiled, or
 * compiled as a graph.
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/tessera.h"

enum { STACK = 16 };

typedef struct compare_function {
    char *words; /* "x0 x1 add gelu mul:0.5 bf16": inputs, calls, calls with a number, dtypes */
    ts_compiled *compiled;
} compare_function;

/** Makes a function from words (see compare_function.words), which are copied. NULL if it cannot be
 *  allocated. compiled: not 0 to compile it; graph: not 0 to compile it as a graph. */
TS_API compare_function *compare_function_new(const char *words, int compiled, int graph);
TS_API void compare_function_free(compare_function *f);
/** Calls f `turns` times with n inputs. *out receives the result of the last call, in the caller's
 *  scope; out may be NULL. Returns a ts_status. */
TS_API int compare_function_run(compare_function *f, ts_tensor *const *in, int n, int turns,
                                ts_tensor **out);
/** Writes the milliseconds that compiling kernels took, and the number of kernels read from disk;
 *  both 0 if f is not compiled. */
TS_API void compare_function_stats(const compare_function *f, double *kernel_ms, int64_t *read);

static ts_tensor *softmax_rows(ts_tensor *t) { return ts_softmax(t, -1); }
static ts_tensor *norm_rows(ts_tensor *t) { return ts_layer_norm(t, TS_NONE, TS_NONE); }
static ts_tensor *sum_rows(ts_tensor *t)
{
    return ts_expand(ts_sum_dim(t, -1, true), ts_sizes(t), ts_ndim(t));
}
static ts_tensor *sum_columns(ts_tensor *t) { return ts_cumsum(t, 0); }
static ts_tensor *sum_all(ts_tensor *t) { return ts_sum(t); }
static ts_tensor *largest_of_columns(ts_tensor *t) { return ts_amax_dim(t, 0, false); }
static ts_tensor *mean_of_columns(ts_tensor *t) { return ts_mean_dim(t, 0, false); }
static ts_tensor *transposed(ts_tensor *t) { return ts_transpose(t, 0, -1); }

static const struct {
    const char *name;
    ts_tensor *(*call)(ts_tensor *);
} unary[] = {{"cos", ts_cos},   {"sin", ts_sin},         {"exp", ts_exp},   {"tanh", ts_tanh},
             {"gelu", ts_gelu}, {"sigmoid", ts_sigmoid}, {"relu", ts_relu}, {"silu", ts_silu},
             {"neg", ts_neg},   {"abs", ts_abs},         {"square", ts_square},
             {"softmax", softmax_rows}, {"norm", norm_rows}, {"sum", sum_rows},
             {"cumsum", sum_columns}, {"t", transposed}, {"total", sum_all},
             {"top0", largest_of_columns}, {"mean0", mean_of_columns}};
static const struct {
    const char *name;
    ts_tensor *(*call)(ts_tensor *, ts_tensor *);
} binary[] = {{"add", ts_add}, {"sub", ts_sub}, {"mul", ts_mul}, {"maximum", ts_maximum},
              {"minimum", ts_minimum}};

static ts_tensor *call_number(const char *word, size_t length, ts_tensor *t, double x)
{
    if (length == 3 && strncmp(word, "add", 3) == 0)
        return ts_add_scalar(t, x);
    if (length == 3 && strncmp(word, "mul", 3) == 0)
        return ts_mul_scalar(t, x);
    return length == 7 && strncmp(word, "dropout", 7) == 0 ? ts_dropout(t, x, true) : NULL;
}

/** Runs one word on the stack; false if it failed or is unknown. */
static bool step(const char *word, ts_tensor *const *in, int n, ts_tensor **stack, int *depth)
{
    const char *colon = strchr(word, ':');
    ts_tensor **top = &stack[*depth - 1];
    if (word[0] == 'x' && atoi(word + 1) < n && *depth < STACK) {
        stack[(*depth)++] = in[atoi(word + 1)];
        return true;
    }
    if (*depth < 1)
        return false;
    if (colon)
        return (*top = call_number(word, (size_t)(colon - word), *top, atof(colon + 1))) != NULL;
    for (ts_dtype d = 0; d < TS_DTYPE_COUNT; d++)
        if (strcmp(word, ts_dtype_name(d)) == 0)
            return (*top = ts_to(*top, d)) != NULL;
    for (size_t i = 0; i < sizeof unary / sizeof *unary; i++)
        if (strcmp(word, unary[i].name) == 0)
            return (*top = unary[i].call(*top)) != NULL;
    for (size_t i = 0; i < sizeof binary / sizeof *binary && *depth > 1; i++)
        if (strcmp(word, binary[i].name) == 0) {
            top[-1] = binary[i].call(top[-1], top[0]);
            return stack[--*depth - 1] != NULL;
        }
    return false;
}

static ts_status interpret(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    const compare_function *f = ctx;
    ts_tensor *stack[STACK];
    char text[512], *rest = text;
    int depth = 0;
    snprintf(text, sizeof text, "%s", f->words);
    for (char *word; (word = strtok_r(rest, " ", &rest));)
        if (!step(word, in, n, stack, &depth))
            return ts_error_code() != TS_OK ? ts_error_code()
                                            : ts_error_set(TS_ERR_VALUE, "word '%s'", word);
    out[m - 1] = stack[0];
    return TS_OK;
}

compare_function *compare_function_new(const char *words, int compiled, int graph)
{
    compare_function *f = calloc(1, sizeof *f);
    if (f && (f->words = strdup(words)) && compiled)
        f->compiled = ts_compile(interpret, f, TS_OPTS(ts_compile_opts, .graph = graph));
    return f;
}

void compare_function_free(compare_function *f)
{
    ts_compiled_free(f->compiled);
    free(f->words);
    free(f);
}

/** Calls it `turns` times; *out (may be NULL) is the last result, of the innermost scope. */
int compare_function_run(compare_function *f, ts_tensor *const *in, int n, int turns,
                         ts_tensor **out)
{
    for (int i = 0; i < turns; i++) {
        TS_SCOPE;
        ts_tensor *result;
        TS_TRY(f->compiled ? ts_compiled_call(f->compiled, in, n, &result, 1)
                           : interpret(f, in, n, &result, 1));
        if (out && i == turns - 1)
            *out = ts_keep(result);
    }
    return TS_OK;
}

void compare_function_stats(const compare_function *f, double *kernel_ms, int64_t *read)
{
    ts_compile_stats stats = ts_compiled_get_stats(f->compiled);
    *kernel_ms = stats.kernel_ms;
    *read = stats.kernels_read;
}
