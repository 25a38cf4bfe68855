/**
 * @file drive.h
 * Common types of the samples' driver: the run, cases, made arguments, failures.
 *
 * A run has one device, the candidate. On the CPU results are judged by the references, gradients
 * in f64 by differences. On another device results are judged by the same references, and gradients
 * by those of the CPU in f64; ts_to_device() moves all tensors. META is judged by the sizes and
 * strides of the CPU's results.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_CONFORMANCE_DRIVE_H
#define TESSERA_CONFORMANCE_DRIVE_H

#include <stdlib.h>

#include "conformance/sample.h"

typedef enum ts_layout {
    LAYOUT_CONTIGUOUS,
    LAYOUT_TRANSPOSED, /* dims in the reverse order in memory */
    LAYOUT_EXPANDED,   /* one dim with stride 0 */
    LAYOUT_OFFSET,     /* contiguous, from the fourth element of a larger buffer */
    LAYOUT_STRIDED,    /* every second element of the last dim */
    LAYOUT_MIXED,      /* each tensor another one */
    LAYOUT_COUNT
} ts_layout;

/** One point of the matrix. */
typedef struct ts_case {
    const ts_sample *s;
    int op;
    const ts_op_description *info; /* valid until the next sample_case() */
    ts_dtype dtype;
    ts_layout layout;
    int64_t sweep;
    ts_device device;
    bool large;       /* see LARGE_FACTOR */
    const char *form; /* for messages */
} ts_case;

/**
 * A large case is there for tails and grids. Among its 10⁵ elements are some nearer to zero
 * than any of a small one, and its reference sums in double too: c counts this many times,
 * of the result's largest.
 */
#define LARGE_FACTOR 8


/** The tests to run and the callbacks for results; set before the run starts. */
typedef struct ts_sample_run {
    ts_device device; /* the candidate; the CPU by default */
    uint16_t dtypes;  /* bit per dtype that is driven; 0 is all */
    bool brief;       /* values in one size and two layouts, beside large cases:
                         for checkers that are slow */
    bool small;       /* skips large cases, for lower kernel variants and emulators */
    void *ctx;
    /** NULL, or called whenever arguments are made for a case. */
    void (*begins)(void *ctx, const ts_case *c);
    /** NULL, or called before and after a call of the op itself. */
    void (*calls)(void *ctx, const ts_case *c, bool after);
    void (*passed)(void *ctx, const ts_case *c);
    void (*failed)(void *ctx, const ts_case *c, const char *text);
    /** The device says by an error that it lacks the kernel or the dtype.
     * Not called for the CPU. */
    void (*unsupported)(void *ctx, const ts_case *c, const char *text);
} ts_sample_run;
extern ts_sample_run sample_run;

/** Counts a sample. */
void sample_passed(const ts_case *c);
void sample_failed(const ts_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Reports a wrong result, or one that cannot be read; the error record has the reason. */
void sample_differs(const ts_case *c, int i, const char *how);
/** Counts a call that should have succeeded: unsupported when the device says so, else failed. */
void sample_refused(const ts_case *c);
/** "op 'sample' dtype layout (sizes of arguments), form: what", cut to the size of text. */
void sample_text(char *text, size_t size, const ts_case *c, const char *what);
/** True when the record holds a refusal that another device than the CPU is free to give. */
bool sample_is_refusal(const ts_case *c, ts_status status);

enum { MADE_MOST = 64 };

typedef struct ts_made_tensor {
    ts_tensor *t, *base; /* base owns the buffer, sentinels included */
    char *before;        /* the buffer's bytes as made; NULL on META */
    double *values;      /* numel, row-major, rounded */
    uint32_t version;
    int arg;
    bool written, differentiable;
} ts_made_tensor;

/** Boxed arguments, with the tensors and lists that they refer to. */
typedef struct ts_made {
    ts_value args[TS_MAX_ARGS];
    int nargs, ntensors;
    ts_made_tensor tensors[MADE_MOST];
    ts_tensor *lists[TS_MAX_ARGS][8];
    int64_t ints[TS_MAX_ARGS][TS_MAX_DIMS];
} ts_made;

/**
 * Makes the arguments of a case in the innermost scope. False after a reported failure; nothing is
 * held then.
 * @param values  NULL, or for each tensor the values to use instead of generated ones
 */
bool made_build(ts_made *m, const ts_case *c, double *const *values);
void made_free(ts_made *m);
/** NULL, or an error: an unwritten argument changed, or a write went outside a tensor. */
const char *made_intact(const ts_made *m);
/** A reference's view of the arguments, and the end of it. */
void ref_open(ts_ref *r, const ts_case *c, const ts_made *m);
void ref_close(ts_ref *r);

bool on_cpu(ts_device device);
bool on_meta(ts_device device);
/** A tensor with these values in one layout, NULL on failure; *base owns the buffer.
 *  Values of an expanded dim are made equal. */
ts_tensor *tensor_make(double *values, ts_dtype dtype, const int64_t *sizes, int ndim,
                       ts_layout layout, ts_device device, ts_tensor **base);
/** Elements as doubles, row-major, to be freed; NULL on failure.
 *  Reads through the strides without the library, once the values are on the CPU. */
double *tensor_values(const ts_tensor *t);
/** Elements' bytes, row-major, to be freed; NULL on failure. */
char *tensor_bytes(const ts_tensor *t);
/** True when bytes of base outside t's elements are no sentinels. */
bool tensor_spilled(const ts_tensor *t, const ts_tensor *base);
/** Same elements: equal bits, and NaN equals NaN. On META: same dtype and count. */
bool tensor_equal(const ts_tensor *a, const ts_tensor *b);
/** x as a value of dtype. */
double round_to(double x, ts_dtype dtype);
double dtype_eps(ts_dtype dtype);
/** Deterministic numbers. */
double random_normal(uint64_t *state);
double random_uniform(uint64_t *state);

/** Result sizes and such, in text. */
const char *meta_text(const ts_tensor *t);
/** Calls the op with a fixed state of the generator. rets: results, owned by the scope. */
ts_status sample_call(const ts_case *c, const ts_made *m, ts_value *rets);
/** Results of a call: rets, then arguments that were written. Returns how many. */
int sample_results(const ts_made *m, const ts_value *rets, int nrets, ts_tensor **out);
/** Runs the other forms of a call with n known results, if they apply. The second function runs
 * META only. */
void sample_forms(ts_case c, ts_tensor *const *out, int n);
void sample_form_meta(ts_case c, ts_tensor *const *fresh, int n);
bool sample_is_differentiable(const ts_op_description *info);
/** Judges the gradient of the gradient. */
void sample_check_second(ts_case c);
/** The case of a row on the run's device. False, after a complaint, when no op has its name. */
bool sample_case(const ts_sample *s, ts_case *c);
/** Dtypes in which a row is driven in this run. */
uint16_t sample_dtypes(const ts_sample *s);
/** dtype that result i must have. */
ts_dtype sample_out(const ts_case *c, int i);
bool sample_sweeps(const ts_sample *s);
/** A size of a sample with the case's own in place of SWEEP. */
int64_t sample_size(const ts_case *c, int64_t size);
/** Name of a layout. */
const char *layout_name(ts_layout layout);

#endif
