/**
 * @file dispatch.h
 * The dispatcher: keys, values, frames, registration, redispatch, timers.
 *
 * One frame travels down the layers of a call. Each layer does one thing, masks itself and
 * redispatches; the lowest slot belongs to a backend. One bit of the key set is one slot of the
 * op's table, and the order of the bits is the order of priority.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_DISPATCH_H
#define TESSERA_DISPATCH_H

#include <stdio.h>
#include "core.h"

TS_BEGIN_DECLS

/* ------------------------------------------------------------------------------- keys ---- */

/** A set of dispatch keys: bit i is key i. */
typedef uint64_t ts_keyset;
/** Number of a key, 0 to 63; higher runs first. Names, not numbers, are the stable interface. */
typedef uint8_t ts_key;

enum {
    TS_KEY_CPU = 0,
    TS_KEY_CUDA = 1,       /**< 2 to 13 are named at run time by ts_register_backend_key() */
    TS_KEY_LAZY = 14,
    TS_KEY_META = 15,
    TS_KEY_AUTOGRAD = 24,  /**< 16 to 23: layers placed between the backends and AUTOGRAD */
    TS_KEY_TRACING = 36,
    TS_KEY_AUTOCAST = 48,
    TS_KEY_ABSENT = 63,    /**< carried by TS_NONE alone; its slot is the error
                                of a tensor that is required */
    TS_KEY_COUNT = 64,
    TS_KEY_INVALID = 255
};
/** Keys that name backends. */
#define TS_BACKEND_KEYS ((ts_keyset)0xffff)
#define TS_KEYSET(key) ((ts_keyset)1 << (key))

/** "CPU", "AUTOGRAD", ...; "?" for an unused bit. */
TS_API const char *ts_key_name(ts_key key);
/** Key by name (case matters), TS_KEY_INVALID if unknown. */
TS_API ts_key ts_key_by_name(const char *name);
/** Keys a tensor carries. */
TS_API ts_keyset ts_keys_of(const ts_tensor *t);

/* ----------------------------------------------------------------------------- values ---- */

/** Kinds of a boxed argument. */
typedef enum ts_tag {
    TS_TAG_NONE = 0,
    TS_TAG_BOOL,    /**< i; numbers equal those of ts_scalar_kind */
    TS_TAG_INT,     /**< i */
    TS_TAG_FLOAT,   /**< d */
    TS_TAG_TENSOR,  /**< t; TS_TAG_NONE when an optional tensor is absent */
    TS_TAG_TENSORS, /**< list, count */
    TS_TAG_INTS,    /**< ints, count */
    TS_TAG_DTYPE,   /**< i */
    TS_TAG_DEVICE,  /**< device */
    TS_TAG_STRING   /**< str */
} ts_tag;

/** A boxed argument or result; 16 bytes; everything in it is borrowed. */
typedef struct ts_value {
    uint8_t tag;
    uint8_t reserved;
    uint16_t reserved2;
    uint32_t count;
    union {
        ts_tensor *t;
        ts_tensor *const *list;
        const int64_t *ints;
        int64_t i;
        double d;
        ts_device device;
        const char *str;
    };
} ts_value;

/** A ts_value of each kind; lists are borrowed. ts_value_optional() takes TS_NONE for "not given".
 * A list of fewer than 0 or more than INT32_MAX entries, and a number without a valid kind, become
 * a value that every call refuses. */
static inline ts_value ts_value_none(void)
{
    ts_value v = {TS_TAG_NONE, 0, 0, 0, {0}};
    return v;
}
static inline ts_value ts_value_tensor(ts_tensor *t)
{
    ts_value v = {TS_TAG_TENSOR, 0, 0, 0, {t}};
    return v;
}
static inline ts_value ts_value_optional(ts_tensor *t)
{
    ts_value v = {(uint8_t)(t == TS_NONE ? TS_TAG_NONE : TS_TAG_TENSOR), 0, 0, 0, {t}};
    return v;
}
/** Represents a value that cannot be boxed, such as a count of 2^32: an invalid device, with the
 *  expected kind and the number. */
static inline ts_value ts_value_refused(ts_tag kind, int64_t number)
{
    ts_value v = {TS_TAG_DEVICE, (uint8_t)kind, 0, (uint32_t)number, {0}};
    v.i = (int64_t)((uint64_t)number & ~(uint64_t)UINT32_MAX) | 0xffff;
    return v;
}
/** A kind whose value is a number in `i`. */
static inline ts_value ts_value_integral(ts_tag kind, int64_t i)
{
    ts_value v = {(uint8_t)kind, 0, 0, 0, {0}};
    v.i = i;
    return v;
}
static inline ts_value ts_value_list(ts_tag kind, const void *list, int64_t count)
{
    if (count != (int32_t)count || count < 0)
        return ts_value_refused(kind, count);
    ts_value v = {(uint8_t)kind, 0, 0, (uint32_t)count, {0}};
    v.ints = (const int64_t *)list;
    return v;
}
static inline ts_value ts_value_tensors(ts_tensor *const *list, int64_t count)
{
    return ts_value_list(TS_TAG_TENSORS, list, count);
}
static inline ts_value ts_value_ints(const int64_t *ints, int64_t count)
{
    return ts_value_list(TS_TAG_INTS, ints, count);
}
static inline ts_value ts_value_int(int64_t i) { return ts_value_integral(TS_TAG_INT, i); }
static inline ts_value ts_value_bool(bool b) { return ts_value_integral(TS_TAG_BOOL, b); }
static inline ts_value ts_value_dtype(ts_dtype dtype)
{
    return ts_value_integral(TS_TAG_DTYPE, dtype);
}
static inline ts_value ts_value_float(double d)
{
    ts_value v = {TS_TAG_FLOAT, 0, 0, 0, {0}};
    v.d = d;
    return v;
}
static inline ts_value ts_value_scalar(ts_scalar s)
{
    if ((uint8_t)(s.kind - 1) >= TS_SCALAR_FLOAT)
        return ts_value_refused(TS_TAG_NONE, s.kind);
    return ts_value_integral((ts_tag)s.kind, s.i);
}
static inline ts_value ts_value_device(ts_device device)
{
    ts_value v = {TS_TAG_DEVICE, 0, 0, 0, {0}};
    v.device = device;
    return v;
}
static inline ts_value ts_value_string(const char *str)
{
    ts_value v = {TS_TAG_STRING, 0, 0, 0, {0}};
    v.str = str;
    return v;
}

/** A boxed number as a double. */
static inline double ts_value_number(const ts_value *v)
{
    return v->tag == TS_TAG_FLOAT ? v->d : (double)v->i;
}
/** A boxed number with its kind. */
static inline ts_scalar ts_value_unbox(const ts_value *v)
{
    return v->tag == TS_TAG_FLOAT ? ts_scalar_float(v->d)
           : v->tag == TS_TAG_INT ? ts_scalar_int(v->i)
                                  : ts_scalar_bool(v->i);
}

/* ------------------------------------------------------------------------------ frames ---- */

typedef struct ts_thread ts_thread;
typedef struct ts_op_table ts_op_table;
typedef struct ts_plan ts_plan;
typedef struct ts_frame ts_frame;

/** The type of every kernel of every layer and backend. */
typedef ts_status (*ts_kernel)(ts_frame *frame);

/** Most arguments and results an op may have. */
#define TS_MAX_ARGS 16
#define TS_MAX_RETS 4

/**
 * A call in flight. It lives on the caller's C stack and never outlives the call; arguments are
 * borrowed and const. A kernel puts results into rets: a tensor found there on entry is the
 * destination (in-place and out= forms) and stays; a tensor the kernel puts there carries one
 * reference, which passes to the caller.
 */
struct ts_frame {
    const ts_op_table *table;  /**< snapshot of the op's slots */
    ts_keyset keys;         /**< keys still to be visited, the running one included */
    const ts_value *args;   /**< nargs values */
    ts_value *rets;         /**< nrets values */
    ts_thread *thread;
    ts_plan *plan;          /**< written by the op's infer; valid in backend kernels */
    const void *site;       /**< return address of the public function */
    ts_rng_state rng;       /**< reserved for this call when the op is random */
    uint16_t op;            /**< op number */
    uint8_t nargs, nrets;
    uint8_t key;            /**< the running key */
    uint8_t want;           /**< bit i: result i is wanted */
    uint8_t given;          /**< bit i: result i was given by the caller */
};

/**
 * Continues below the running key with the same arguments. Until it returns, the running key and
 * all above are excluded in the thread, so calls made underneath do not visit those layers.
 */
TS_API ts_status ts_redispatch(ts_frame *frame);
/**
 * Continues below the running key with other arguments (same count and kinds); keys below the
 * running one are recomputed from them. For layers that change arguments, such as casts.
 */
TS_API ts_status ts_redispatch_new(ts_frame *frame, const ts_value *args);
/** Calls an op by number with boxed arguments from the top. rets as in ts_frame, results with one
 *  reference each that the caller owns (ts_release) or gives to a scope (ts_adopt). A result that
 *  the schema calls Tensor? is TS_TAG_NONE where the call has none. */
TS_API ts_status ts_call_boxed(int op, const ts_value *args, int nargs, ts_value *rets, int nrets);
/** Like ts_call_boxed(), for a layer that calls another op on behalf of a frame: errors and layers
 *  below see the frame's call site. */
TS_API ts_status ts_call_for(const ts_frame *frame, int op, const ts_value *args, int nargs,
                             ts_value *rets, int nrets);
/** Gives an owned reference to the innermost scope; returns t. */
TS_API ts_tensor *ts_adopt(ts_tensor *t);
/** Prints op and shapes, dtypes of its arguments: "add((2, 3) f32, (3) f32)". Returns length. */
TS_API int ts_frame_describe(const ts_frame *frame, char *buffer, size_t size);

/* -------------------------------------------------------------------------- registration -- */

/** Number of an op by name, -1 when unknown. A cold path: not for use in a loop. */
TS_API int ts_op_by_name(const char *name);
/** Name of an op; "?" for an invalid number. */
TS_API const char *ts_op_name(int op);
/** Schema string of an op, e.g. "add(Tensor|Scalar self, Tensor|Scalar other) -> Tensor". */
TS_API const char *ts_op_schema(int op);
/** Number of ops known now. */
TS_API int ts_op_count(void);

/**
 * Registers an op. Kernels may be registered before it, by name.
 * @param schema  "ns.name(Tensor a, Scalar b) -> Tensor"
 * @param op      receives the number; may be NULL
 * A name has 1 to 47 letters, digits, '_' and '.', no digit first.
 * Errors: TS_ERR_FORMAT for a malformed schema, TS_ERR_REGISTRY for a duplicate (names both sites).
 */
TS_API ts_status ts_register_op(const char *schema, int *op);
/** Names a new backend; its key is one of the free bits 2 to 13. Names of keys follow
 *  ts_check_name(), with at most 23 characters without ':' and ',', and differ in more than case;
 *  "auto", "backends" and "?" are reserved. */
TS_API ts_status ts_register_backend_key(const char *name, ts_key *key);
/**
 * Places a new layer just above the layer or boundary `above` ("" or "backends" = directly above
 * the backends, else a key's name), in load order within its gap. A full gap is an error naming it.
 */
TS_API ts_status ts_register_layer(const char *name, const char *above, ts_key *key);

/** A registered kernel; used to remove it. */
typedef struct ts_registration ts_registration;
/**
 * Registers a kernel for (op, key). The newest registration wins; removing it restores the older
 *                one.
 * @param op      name of the op; it may be registered later, but for a backend's kernels before its
 *                load ends
 * @param schema  the schema the kernel was written for; NULL skips the check. A mismatch is an
 *                error now or, if the op is registered later, at that time.
 * @param out     receives a handle for ts_unregister(); may be NULL
 */
TS_API ts_status ts_register_kernel(const char *op, ts_key key, ts_kernel kernel,
                                    const char *schema, ts_registration **out);
/** Removes a kernel or fallback. The handle is invalid afterwards. */
TS_API ts_status ts_unregister(ts_registration *registration);
/** One kernel for all ops, present and future, that have no other
 * for `key`. A second is an error. */
TS_API ts_status ts_register_fallback(ts_key key, ts_kernel kernel, ts_registration **out);
/** Lets the key's fallback win over composites (a backend that wants whole ops). */
TS_API ts_status ts_key_prefer_fallback(ts_key key, bool prefer);

/** Switches a layer on or off for the calling thread. Off restores selection by the tensors'
 *  keys. */
TS_API ts_status ts_layer_enable(ts_key key, bool on);
/** Like ts_layer_enable() for all threads, present and future. */
TS_API ts_status ts_layer_enable_all(ts_key key, bool on);

/** A saved pair of key masks of the calling thread. */
typedef struct ts_mask_guard {
    ts_keyset include, exclude;
} ts_mask_guard;
/** Adds layers to the thread's include and exclude sets (exclude wins); returns the previous sets,
 * to restore. Backend keys and TS_KEY_ABSENT are ignored: the device of a tensor chooses its
 * backend, and TS_KEY_ABSENT refuses TS_NONE. `exclude` of ~0 thus excludes every layer. */
TS_API ts_mask_guard ts_mask_push(ts_keyset include, ts_keyset exclude);
/** Restores exactly the layers of the sets that ts_mask_push() returned. */
TS_API void ts_mask_pop(ts_mask_guard guard);
/** The calling thread's current masks. */
TS_API ts_mask_guard ts_mask_get(void);

/* --------------------------------------------------------------- properties of an op ---- */

/** Contents of an op's backend slots. */
typedef enum ts_op_kind {
    TS_FILL,     /**< shapes are inferred, arguments converted,
                      results allocated; the kernel fills */
    TS_VIEW,     /**< results are aliases; there is no kernel */
    TS_WHOLE,    /**< the kernel does everything */
    TS_COMPOSITE /**< composed of other ops on every backend without a kernel for it */
} ts_op_kind;

/** How an op is differentiated. */
typedef enum ts_op_gradient {
    TS_GRADIENT_RULE,   /**< by its own rule */
    TS_GRADIENT_PARTS,  /**< by the rules of the ops that it is made of */
    TS_GRADIENT_NEVER,  /**< results never require grad */
    TS_GRADIENT_REFUSED /**< a gradient through it is an error that names the op */
} ts_op_gradient;

/** One argument in an op's schema. */
typedef struct ts_op_arg {
    const char *name;
    uint16_t kinds; /**< bit per ts_tag that it may be */
    bool optional;  /**< may be TS_TAG_NONE */
    bool written;   /**< marked (a!): the call writes to it */
} ts_op_arg;

/** Properties of an op. Strings live as long as the library. */
typedef struct ts_op_description {
    size_t size; /**< set by the caller: sizeof(ts_op_description) */
    const char *name, *schema, *doc;
    ts_op_kind kind;
    ts_op_gradient gradient;
    bool random;    /**< draws random numbers */
    bool composite; /**< can be made of other ops */
    bool runtime;   /**< registered at run time */
    uint8_t nargs, nrets;
    ts_op_arg args[TS_MAX_ARGS];
} ts_op_description;

/**
 * Describes op number `op`.
 * Errors: TS_ERR_REGISTRY for an unknown number, TS_ERR_NULL, TS_ERR_VALUE
 * for a size of another version.
 */
TS_API ts_status ts_op_describe(int op, ts_op_description *description);

/** The least work of a call. */
typedef struct ts_work {
    double flops; /**< additions, products and functions such as exp, each as one; NaN: unknown */
    double bytes; /**< read from and written to memory; NaN: unknown */
} ts_work;
/** The work of a call that has ended: its results are in the frame. */
typedef ts_work (*ts_cost)(const ts_frame *frame);
/**
 * The least work of a call, by the cost column of the table of operators. Call it in a layer after
 * ts_redispatch() has returned TS_OK. Each element of an argument counts once, however often
 * broadcasting repeats it; a view costs nothing. A composite's work is the work of the whole call;
 * adding the work of inner calls counts it twice. Errors: TS_ERR_NULL. For an op without a cost,
 * both fields of *work are NaN; that is no error.
 */
TS_API ts_status ts_op_cost(const ts_frame *frame, ts_work *work);

/** The rule that filled a slot of an op's table. From KERNEL to MISSING, the first that applies. */
typedef enum ts_slot_rule {
    TS_RULE_NONE,           /**< a layer that the call skips */
    TS_RULE_KERNEL,         /**< a kernel registered for the op and the key */
    TS_RULE_FALLBACK_FIRST, /**< the key's fallback, which its backend prefers */
    TS_RULE_META,           /**< shapes are enough on META */
    TS_RULE_COMPOSITE,      /**< the op's composite */
    TS_RULE_VIEW,           /**< a view needs no kernel */
    TS_RULE_FALLBACK,       /**< the key's fallback */
    TS_RULE_MISSING,        /**< no kernel: a call is an error that names the remedy */
    TS_RULE_ABSENT          /**< the error of a missing tensor */
} ts_slot_rule;

/** The rule by which op's slot for `key` was filled; TS_RULE_MISSING for an unknown op or key. */
TS_API ts_slot_rule ts_op_slot(int op, ts_key key);

/** Prints the computed table of an op: for each slot its kernel, the rule
 * that chose it, its site. */
TS_API ts_status ts_op_dump(const char *op, FILE *out);

/* ------------------------------------------------------------------------------ timers ---- */

/** Switches the timers of all threads; TS_ERR_UNSUPPORTED in a build without them, TS_ERR_STATE if
 * the system's clock does not advance. */
TS_API ts_status ts_timers_enable(bool on);
TS_API bool ts_timers_enabled(void);
/** Sets all counters of all threads to zero. */
TS_API void ts_timers_reset(void);

/** Forms of the report. */
typedef enum ts_timers_format { TS_TIMERS_TABLE, TS_TIMERS_CSV, TS_TIMERS_JSON } ts_timers_format;
/**
 * Writes calls and self time per (op, layer) and thread, the timers' own calibrated cost and the
 * unattributed time, which is stamped like the rest: all rows sum to the wall time exactly. A build
 * without timers writes no rows.
 */
TS_API ts_status ts_timers_write(FILE *out, ts_timers_format format);
/**
 * The table of the `rows` costliest rows, the sum of the others in one more, and the wall time.
 * TS_ERR_VALUE for rows below 0.
 */
TS_API ts_status ts_timers_write_top(FILE *out, int rows);

/** One cell, summed over threads. */
typedef struct ts_timer_cell {
    uint64_t calls;
    double self_ns;
} ts_timer_cell;
/** The cell of an op at a layer; zeros if there was none. */
TS_API ts_timer_cell ts_timers_get(const char *op, const char *layer);

/** Totals over threads in ns: wall = attributed + overhead + unattributed. */
typedef struct ts_timer_totals {
    double wall_ns, attributed_ns, overhead_ns, unattributed_ns;
    uint64_t calls;
} ts_timer_totals;
/** Counters of all threads since the last reset. */
TS_API ts_timer_totals ts_timers_totals(void);

/** An op without work; its time is the dispatcher's cost. Kernels may be registered for it. */
TS_API ts_status ts_noop(ts_tensor *a, ts_tensor *b, ts_scalar c);

TS_END_DECLS
#endif
