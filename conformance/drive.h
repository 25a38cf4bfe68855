/**
 * @file drive.h
 * Common types of the driver of the samples: the run, cases, generated arguments, failures.
 *
 * A run tests one device, the candidate:
 *
 *   CPU     results are compared with the references, f64 gradients with central differences,
 *           other gradients with those in f64
 *   META    sizes, strides and dtypes are compared with the CPU's results
 *   other   results are compared with the references, gradients with the CPU's in f64;
 *           ts_to_device() moves all tensors
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_CONFORMANCE_DRIVE_H
#define TESSERA_CONFORMANCE_DRIVE_H

#include <stdlib.h>

#include "conformance/sample.h"

/** Memory layout of the tensors of a call. */
typedef enum ts_layout {
    LAYOUT_CONTIGUOUS,
    LAYOUT_TRANSPOSED, /* dims in the reverse order in memory */
    LAYOUT_EXPANDED,   /* one dim with stride 0 */
    LAYOUT_OFFSET,     /* contiguous, starting at the fourth element of a larger buffer */
    LAYOUT_STRIDED,    /* every second element of a buffer, starting at the second */
    LAYOUT_MIXED,      /* the layouts above in turn, one per tensor of a call */
    LAYOUT_COUNT
} ts_layout;

/** One combination of sample, dtype, layout, size and device. */
typedef struct ts_case {
    const ts_sample *s;
    int op;
    const ts_op_description *info; /* valid until the next sample_case() */
    ts_dtype dtype;
    ts_layout layout;
    int64_t sweep;    /* the size that replaces SWEEP */
    ts_device device;
    bool large;       /* see LARGE_FACTOR */
    const char *form; /* form of the call, for messages */
} ts_case;

/**
 * A large case has about 10⁵ results, to test the tails of loops and the sizes of grids. Results
 * near zero have large relative errors, and the reference, which sums in double, has errors too.
 * The tolerance of each element is therefore LARGE_FACTOR times that of sample.h, with the largest
 * |value| of the whole result in place of |w|.
 */
#define LARGE_FACTOR 8

/** The tests to run and the callbacks for results; set before the run starts. */
typedef struct ts_sample_run {
    ts_device device; /* the candidate; the CPU by default */
    uint16_t dtypes;  /* bit per dtype to test; 0 is all */
    bool brief;       /* tests values in one size and two layouts, and large cases: for slow
                         checkers such as sanitizers */
    bool small;       /* skips large cases, for lower kernel variants and emulators */
    bool few; /* tests values in two layouts, LAYOUT_CONTIGUOUS and LAYOUT_MIXED, as bf16 and f16
                 always are; compares every fourth element of a gradient with central
                 differences */
    void *ctx;
    /** NULL, or called before arguments are generated for a case. */
    void (*begins)(void *ctx, const ts_case *c);
    /** NULL, or called before and after a call of the op itself. */
    void (*calls)(void *ctx, const ts_case *c, bool after);
    void (*passed)(void *ctx, const ts_case *c);
    void (*failed)(void *ctx, const ts_case *c, const char *text);
    /** Called when the device refuses a case with TS_ERR_UNSUPPORTED or TS_ERR_DTYPE. Not called
     * for the CPU. */
    void (*unsupported)(void *ctx, const ts_case *c, const char *text);
} ts_sample_run;
extern ts_sample_run sample_run;

/** Reports a passed or a failed test to sample_run. */
void sample_passed(const ts_case *c);
void sample_failed(const ts_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Reports that result i is wrong ("result i <how>") or, if an error is recorded, that it cannot be
 *  read. */
void sample_differs(const ts_case *c, int i, const char *how);
/** Reports a failed call that should have succeeded, with the recorded error: as unsupported if
 *  sample_is_refusal(), else as failed. */
void sample_refused(const ts_case *c);
/** "op 'sample' dtype layout (sizes of arguments), form: what", cut to the size of text. */
void sample_text(char *text, size_t size, const ts_case *c, const char *what);
/** True if status is TS_ERR_UNSUPPORTED or TS_ERR_DTYPE and the run's device is not the CPU: the
 *  device may lack the kernel. */
bool sample_is_refusal(const ts_case *c, ts_status status);

enum { MADE_MOST = 64 };

typedef struct ts_made_tensor {
    ts_tensor *t, *base; /* base is the whole buffer, with sentinels around t's elements; t itself
                            if t is contiguous without an offset */
    char *before;        /* bytes of base before the call; NULL on META */
    double *values;      /* numel, row-major, rounded to the dtype */
    uint32_t version;    /* before the call */
    int arg;             /* index of the op's argument */
    bool written, differentiable;
} ts_made_tensor;

/** The boxed arguments of a call, and the tensors and lists that they refer to. */
typedef struct ts_made {
    ts_value args[TS_MAX_ARGS];
    int nargs, ntensors;
    ts_made_tensor tensors[MADE_MOST];
    ts_tensor *lists[TS_MAX_ARGS][8];
    int64_t ints[TS_MAX_ARGS][TS_MAX_DIMS];
} ts_made;

/**
 * Generates the arguments of a case; the innermost scope owns the tensors. Free the rest with
 * made_free(). Returns false after it reported a failure; nothing needs to be freed then.
 * @param values  NULL, or for each tensor the values to use instead of generated ones
 */
bool made_build(ts_made *m, const ts_case *c, double *const *values);
void made_free(ts_made *m);
/** NULL, or the text of an error: an unwritten argument or its version changed, the version of a
 *  written argument did not change, or a write went outside a tensor. */
const char *made_intact(const ts_made *m);
/** Fills r with copies of the arguments as a reference sees them. Free it with ref_close(). */
void ref_open(ts_ref *r, const ts_case *c, const ts_made *m);
void ref_close(ts_ref *r);

bool on_cpu(ts_device device);
bool on_meta(ts_device device);
/**
 * Creates a tensor with these row-major values in a layout; NULL on failure. The scope owns it.
 * @param values  NULL leaves the elements unset; in LAYOUT_EXPANDED, values along the expanded dim
 *                are overwritten with equal ones
 * @param base    NULL, or receives the tensor of the whole buffer
 */
ts_tensor *tensor_make(double *values, ts_dtype dtype, const int64_t *sizes, int ndim,
                       ts_layout layout, ts_device device, ts_tensor **base);
/** Returns the elements as doubles, row-major; the caller frees them. NULL on failure. After a copy
 *  to the CPU, it reads through the strides without calling an op. */
double *tensor_values(const ts_tensor *t);
/** Returns the bytes of the elements, row-major; the caller frees them. NULL on failure. */
char *tensor_bytes(const ts_tensor *t);
/** True if a byte of base outside t's elements is not the sentinel, or base cannot be read. */
bool tensor_spilled(const ts_tensor *t, const ts_tensor *base);
/** True if dtype, count and the bits of all elements are equal; any NaN equals any NaN. META
 *  tensors have no elements to compare. */
bool tensor_equal(const ts_tensor *a, const ts_tensor *b);
/** x rounded to a value of dtype; integers wrap. */
double round_to(double x, ts_dtype dtype);
/** Unit of tolerances: 2^-52 (f64), 2^-23 (f32), 2^-8 (bf16), 2^-11 (f16); 0 for other dtypes. */
double dtype_eps(ts_dtype dtype);
/** Deterministic random numbers: normal (0, 1), and uniform in [0, 1). */
double random_normal(uint64_t *state);
double random_uniform(uint64_t *state);

/** Sizes and dtype of a tensor as text, "nothing" for NULL; valid for the next three calls. */
const char *meta_text(const ts_tensor *t);
/** Calls the op with seed 1234 and offset 0. rets: given destinations or none on entry, results on
 *  return; the scope owns new results. Errors: those of the op; TS_ERR_INTERNAL if a new result is
 *  the handle of an argument. */
ts_status sample_call(const ts_case *c, const ts_made *m, ts_value *rets);
/** Writes the results of a call to out, at most TS_MAX_ARGS: rets (NULL where absent), then written
 *  arguments. Returns their number. */
int sample_results(const ts_made *m, const ts_value *rets, int nrets, ts_tensor **out);
/** Runs the other forms of a call (out=, in place, META) that apply, and compares their results
 *  with the n results of the form that makes new tensors (`out`, `fresh`). sample_form_meta() runs
 *  the META form only. */
void sample_forms(ts_case c, ts_tensor *const *out, int n);
void sample_form_meta(ts_case c, ts_tensor *const *fresh, int n);
/** True if the op has a gradient rule, or its gradient goes through its parts. */
bool sample_is_differentiable(const ts_op_description *info);
/** Tests the gradient of the gradient in f64. */
void sample_check_second(ts_case c);
/** Initializes the case of a sample on the run's device. Returns false after it reported a failure
 *  if no op has the sample's name. */
bool sample_case(const ts_sample *s, ts_case *c);
/** Bit per dtype in which this run tests the sample. */
uint16_t sample_dtypes(const ts_sample *s);
/** dtype that result i must have. */
ts_dtype sample_out(const ts_case *c, int i);
/** True if SWEEP occurs among the sample's arguments. */
bool sample_sweeps(const ts_sample *s);
/** A size of a sample; SWEEP is replaced by c->sweep. */
int64_t sample_size(const ts_case *c, int64_t size);
/** Name of a layout. */
const char *layout_name(ts_layout layout);

#endif
