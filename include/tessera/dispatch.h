/**
 * @file dispatch.h
 * The dispatcher: keys, values, frames, registration, redispatch, timers.
 *
 * A key is the number of a layer or a backend. A tensor has a set of keys, and a thread adds keys.
 * An op has a table with one slot, a kernel, per key: bit i of a key set selects slot i. A call
 * passes one frame through the slots of its key set, from the highest key to the lowest. A layer
 * does its work and calls ts_redispatch(), which excludes the layer's key and calls the next slot.
 * The lowest slot is a backend's kernel.
 *
 * A composite computes an op by calls of other ops, on backends without a kernel for the op. A
 * fallback is a key's kernel for all ops that have no other kernel for the key.
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
/** Number of a key, 0 to 63; higher keys run first. Numbers may change between versions, names do
 *  not. */
typedef uint8_t ts_key;

/** Keys of the library. Keys 0 to 15 are backends; ts_register_backend_key() names 2 to 13. Keys 16
 *  to 62 are layers; ts_register_layer() names those that the library does not use. */
enum {
    TS_KEY_CPU = 0,
    TS_KEY_CUDA = 1,
    TS_KEY_LAZY = 14,     /**< records the calls of compiled functions (compile.h) */
    TS_KEY_META = 15,     /**< shape inference only: tensors without memory */
    TS_KEY_AUTOGRAD = 24, /**< records calls for backward (autograd.h) */
    TS_KEY_TRACING = 36,  /**< records calls as a graph (trace.h) */
    TS_KEY_AUTOCAST = 48, /**< casts arguments (autocast.h) */
    TS_KEY_ABSENT = 63,   /**< key of TS_NONE and of released tensors: a call with one as a
                               required tensor reaches this slot, which returns an error */
    TS_KEY_COUNT = 64,
    TS_KEY_INVALID = 255
};
/** The set of all backend keys. */
#define TS_BACKEND_KEYS ((ts_keyset)0xffff)
/** The set that contains one key. */
#define TS_KEYSET(key) ((ts_keyset)1 << (key))

/** Name of a key: "CPU", "AUTOGRAD", ...; "?" for an unused key. */
TS_API const char *ts_key_name(ts_key key);
/** Key by name (case matters); TS_KEY_INVALID if unknown. */
TS_API ts_key ts_key_by_name(const char *name);
/** Key set of a tensor; 0 for NULL. */
TS_API ts_keyset ts_keys_of(const ts_tensor *t);

/* ----------------------------------------------------------------------------- values ---- */

/** Kinds of a boxed argument. Each comment names the fields of ts_value that hold the value. */
typedef enum ts_tag {
    TS_TAG_NONE = 0, /**< an absent optional argument */
    TS_TAG_BOOL,    /**< i; the numbers of BOOL, INT and FLOAT are those of ts_scalar_kind */
    TS_TAG_INT,     /**< i */
    TS_TAG_FLOAT,   /**< d */
    TS_TAG_TENSOR,  /**< t */
    TS_TAG_TENSORS, /**< list, count */
    TS_TAG_INTS,    /**< ints, count */
    TS_TAG_DTYPE,   /**< i */
    TS_TAG_DEVICE,  /**< device */
    TS_TAG_STRING   /**< str */
} ts_tag;

/** A boxed argument or result, 16 bytes. Its pointers are borrowed. */
typedef struct ts_value {
    uint8_t tag;        /**< a ts_tag */
    uint8_t reserved;
    uint16_t reserved2;
    uint32_t count;     /**< length of a list */
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

/** Constructors of a ts_value, one per kind; lists and strings are borrowed. ts_value_optional()
 *  boxes TS_NONE as TS_TAG_NONE. A list with a count below 0 or above INT32_MAX, and a scalar
 *  without a valid kind, become a value that every call rejects with an error. */
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
/** Boxes an invalid argument, such as a list with a count of 2^32, as a device that does not exist.
 *  The call fails; its error message reads the expected kind and the number from this value. */
static inline ts_value ts_value_refused(ts_tag kind, int64_t number)
{
    ts_value v = {TS_TAG_DEVICE, (uint8_t)kind, 0, (uint32_t)number, {0}};
    v.i = (int64_t)((uint64_t)number & ~(uint64_t)UINT32_MAX) | 0xffff;
    return v;
}
/** A value of a kind that is stored in `i`. */
static inline ts_value ts_value_integral(ts_tag kind, int64_t i)
{
    ts_value v = {(uint8_t)kind, 0, 0, 0, {0}};
    v.i = i;
    return v;
}
/** ts_value_list() boxes a borrowed list of `count` entries; kind: TS_TAG_TENSORS or TS_TAG_INTS.
 *  The functions after it box a borrowed list, a number, a dtype, a device or a borrowed string.
 *  The rules at ts_value_none() apply. */
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

/** A boxed number as a double; 0 for NULL. */
static inline double ts_value_number(const ts_value *v)
{
    return !v ? 0 : v->tag == TS_TAG_FLOAT ? v->d : (double)v->i;
}
/** A boxed number with its kind; false for NULL. */
static inline ts_scalar ts_value_unbox(const ts_value *v)
{
    return !v                      ? ts_scalar_bool(false)
           : v->tag == TS_TAG_FLOAT ? ts_scalar_float(v->d)
           : v->tag == TS_TAG_INT ? ts_scalar_int(v->i)
                                  : ts_scalar_bool(v->i);
}

/* ------------------------------------------------------------------------------ frames ---- */

typedef struct ts_thread ts_thread;     /**< the library's state of a thread; opaque */
typedef struct ts_op_table ts_op_table; /**< the slots of an op; opaque */
typedef struct ts_plan ts_plan;         /**< what a shape rule computes (kernel.h); opaque */
typedef struct ts_frame ts_frame;

/** Type of all kernels: of layers, composites, fallbacks and backends. */
typedef ts_status (*ts_kernel)(ts_frame *frame);

/** Most arguments and results an op may have. */
#define TS_MAX_ARGS 16
#define TS_MAX_RETS 4

/**
 * One call of an op. The frame is on the caller's C stack and is valid during the call only;
 * arguments are borrowed and const. A function that takes a frame expects that of a running call.
 * For NULL it records TS_ERR_NULL and returns it, or NULL, 0 or false, TS_DTYPE_NONE, or the CPU.
 *
 * If rets[i] has a tensor on entry, it is the destination of an in-place or out= form: the kernel
 * writes to it and leaves it there. Otherwise the kernel stores result i with one reference, which
 * the caller then owns.
 */
struct ts_frame {
    const ts_op_table *table;  /**< snapshot of the op's slots */
    ts_keyset keys;         /**< the running key and the keys below it that are still to run */
    const ts_value *args;   /**< nargs values */
    ts_value *rets;         /**< nrets values */
    ts_thread *thread;      /**< the library's state of the calling thread */
    ts_plan *plan;          /**< written by the op's shape rule, for backend kernels and composites;
                                 NULL in layers, and for ops without a rule */
    const void *site;       /**< return address of the public function */
    ts_rng_state rng;       /**< random op: the counters reserved for this call */
    uint16_t op;            /**< op number */
    uint8_t nargs, nrets;
    uint8_t key;            /**< the running key */
    uint8_t want;           /**< bit i: the caller requests result i */
    uint8_t given;          /**< bit i: the caller passed the destination of result i */
};

/**
 * Calls the next slot below the running key with the same arguments. Until it returns, the running
 * key and all higher keys are excluded in the thread, so nested calls skip those layers too.
 */
TS_API ts_status ts_redispatch(ts_frame *frame);
/**
 * Like ts_redispatch(), with other arguments of the same count, for layers that change arguments,
 * for example by casts. The dispatcher computes the keys below the running key from the new
 * arguments. Further errors: TS_ERR_VALUE for a kind that the schema does not accept, TS_ERR_NULL
 * if args, a tensor or a member of a list is NULL.
 */
TS_API ts_status ts_redispatch_new(ts_frame *frame, const ts_value *args);
/** Calls an op by number with boxed arguments, through all layers. rets as in ts_frame; the caller
 *  owns one reference to each new result and passes it to ts_release() or ts_adopt(). A result that
 *  is Tensor? in the schema is TS_TAG_NONE if the call has none. Errors, after which there are no
 *  new results: TS_ERR_REGISTRY for an unknown op, TS_ERR_VALUE for counts or kinds that do not fit
 *  its schema, and those of the op. */
TS_API ts_status ts_call_boxed(int op, const ts_value *args, int nargs, ts_value *rets, int nrets);
/** Like ts_call_boxed(), for a layer that calls another op on behalf of a frame: errors and lower
 *  layers get the frame's call site. */
TS_API ts_status ts_call_for(const ts_frame *frame, int op, const ts_value *args, int nargs,
                             ts_value *rets, int nrets);
/** Moves the caller's reference to the innermost scope, which releases it; if t is in a scope
 *  already, t stays there and the reference is released. Returns t, or NULL with TS_ERR_STATE if t
 *  was released. NULL-safe. */
TS_API ts_tensor *ts_adopt(ts_tensor *t);
/** Writes the call as text, tensors as shapes and dtypes: "add((2, 3) f32, (3) f32)". Returns the
 *  length of the whole text, as snprintf. buffer may be NULL if size is 0. */
TS_API int ts_frame_describe(const ts_frame *frame, char *buffer, size_t size);

/* -------------------------------------------------------------------------- registration -- */

/** Number of an op by name; -1 when unknown. Locks the registry, so do not call it in a loop. */
TS_API int ts_op_by_name(const char *name);
/** Name of an op; "?" for an invalid number. */
TS_API const char *ts_op_name(int op);
/** Schema string of an op, e.g. "add(Tensor|Scalar self, Tensor|Scalar other) -> Tensor"; "?" for
 *  an invalid number. */
TS_API const char *ts_op_schema(int op);
/** Number of registered ops; their numbers are below it. */
TS_API int ts_op_count(void);

/**
 * Registers an op. Its kernels may be registered earlier, by name.
 * @param schema  "ns.name(Tensor a, Scalar b) -> Tensor"; a name has 1 to 47 letters, digits, '_'
 *                and '.', and does not begin with a digit; names of arguments have at most 23
 *                characters
 * @param op      receives the number; may be NULL
 * Errors: TS_ERR_FORMAT for a malformed schema; TS_ERR_REGISTRY for a registered name (the message
 * has both call sites), a kernel that was registered for another schema, or a full registry;
 * TS_ERR_NULL; TS_ERR_MEMORY.
 */
TS_API ts_status ts_register_op(const char *schema, int *op);
/** Reserves a free key, 2 to 13, for a new backend and names it. A key's name follows
 *  ts_check_name(), has at most 23 characters and no ':' or ',', and differs from other names in
 *  more than case; "auto", "backends" and "?" are reserved. Errors: TS_ERR_NULL or TS_ERR_VALUE for
 *  an invalid name, TS_ERR_REGISTRY for a used name or if no key is free. */
TS_API ts_status ts_register_backend_key(const char *name, ts_key *key);
/**
 * Reserves and names the lowest free key above the key called `above` and below the library's next
 * layer. `above` NULL, "" or "backends" means above the backends. Errors: TS_ERR_NULL or
 * TS_ERR_VALUE for an invalid name (rules as for a backend's key), TS_ERR_REGISTRY for an `above`
 * that is "ABSENT" or not the name of a key, a used name, or if no key is free there.
 */
TS_API ts_status ts_register_layer(const char *name, const char *above, ts_key *key);

/** A registered kernel; used to remove it. */
typedef struct ts_registration ts_registration;
/**
 * Registers a kernel for (op, key). The newest registration is used; removing it restores the
 * previous one.
 * @param op      name of the op, which may be registered later; for a kernel that a backend
 *                registers in install(), before the load of the backend ends
 * @param schema  the schema that the kernel was written for; NULL skips the check. Numbers of
 *                arguments and results and the types of arguments must be the op's; names do not
 *                matter. A mismatch is an error of this call or, if the op is registered later, of
 *                that registration
 * @param out     receives a handle for ts_unregister(); may be NULL
 * Errors: TS_ERR_NULL, TS_ERR_REGISTRY (invalid op name, unknown key, another schema),
 * TS_ERR_FORMAT (malformed schema), TS_ERR_MEMORY.
 */
TS_API ts_status ts_register_kernel(const char *op, ts_key key, ts_kernel kernel,
                                    const char *schema, ts_registration **out);
/** Removes a kernel, a fallback or an autocast policy; the handle is invalid afterwards. Errors,
 *  after which nothing is removed: TS_ERR_NULL, TS_ERR_REGISTRY for a handle that was removed
 *  before, TS_ERR_STATE while a backend loads, TS_ERR_MEMORY. */
TS_API ts_status ts_unregister(ts_registration *registration);
/** Registers a kernel for all present and future ops that have no other kernel for `key`. out: as
 *  in ts_register_kernel(). Errors: TS_ERR_REGISTRY if the key is unknown or has a fallback
 *  already, TS_ERR_NULL, TS_ERR_MEMORY. */
TS_API ts_status ts_register_fallback(ts_key key, ts_kernel kernel, ts_registration **out);
/** Sets whether the key's fallback takes precedence over composites, so that the backend gets the
 *  composite ops as whole calls. Errors: TS_ERR_REGISTRY for a key above 63, TS_ERR_MEMORY. */
TS_API ts_status ts_key_prefer_fallback(ts_key key, bool prefer);

/** Switches a layer on or off for all calls of the calling thread; the end of a scope does not undo
 *  it. A layer that is off still gets calls with a tensor that has the layer's key. TS_ERR_VALUE
 *  for a key that is not a layer's. */
TS_API ts_status ts_layer_enable(ts_key key, bool on);
/** Like ts_layer_enable() for all threads, present and future. */
TS_API ts_status ts_layer_enable_all(ts_key key, bool on);

/** The key masks of a thread. A call visits the layers of its tensors' keys and of `include`, less
 *  those of `exclude`. */
typedef struct ts_mask_guard {
    ts_keyset include, exclude;
} ts_mask_guard;
/** Adds layers to the calling thread's include and exclude sets and returns the previous sets, for
 *  ts_mask_pop(). A layer in both sets is excluded. Backend keys and TS_KEY_ABSENT in the arguments
 *  are ignored, so `exclude` = ~0 excludes all layers but no backend. */
TS_API ts_mask_guard ts_mask_push(ts_keyset include, ts_keyset exclude);
/** Restores the sets that ts_mask_push() returned. */
TS_API void ts_mask_pop(ts_mask_guard guard);
/** The calling thread's current masks. */
TS_API ts_mask_guard ts_mask_get(void);

/* --------------------------------------------------------------- properties of an op ---- */

/** How an op runs on a backend. */
typedef enum ts_op_kind {
    TS_FILL,     /**< the library infers shapes, converts arguments and allocates results;
                      the kernel computes the elements */
    TS_VIEW,     /**< results are aliases of an argument; there is no kernel */
    TS_WHOLE,    /**< the kernel checks arguments and allocates results itself */
    TS_COMPOSITE /**< calls other ops, on each backend without a kernel for the op */
} ts_op_kind;

/** How an op is differentiated. */
typedef enum ts_op_gradient {
    TS_GRADIENT_RULE,   /**< by its own gradient rule */
    TS_GRADIENT_PARTS,  /**< by the rules of the ops that it calls */
    TS_GRADIENT_NEVER,  /**< results never require grad */
    TS_GRADIENT_REFUSED /**< a backward through the op is an error that names it */
} ts_op_gradient;

/** One argument in an op's schema. */
typedef struct ts_op_arg {
    const char *name;
    uint16_t kinds; /**< accepted kinds: bit i is ts_tag i */
    bool optional;  /**< TS_TAG_NONE is accepted */
    bool written;   /**< marked (a!) in the schema: the call writes to it */
} ts_op_arg;

/** Properties of an op. Strings live as long as the library. */
typedef struct ts_op_description {
    size_t size; /**< set by the caller: sizeof(ts_op_description) */
    const char *name, *schema, *doc; /**< doc: the op's documentation */
    ts_op_kind kind;
    ts_op_gradient gradient;
    bool random;    /**< draws random numbers */
    bool composite; /**< has a composite: it can run as calls of other ops */
    bool runtime;   /**< registered at run time */
    uint8_t nargs, nrets;
    ts_op_arg args[TS_MAX_ARGS];
} ts_op_description;

/**
 * Describes op number `op` in *description.
 * Errors: TS_ERR_REGISTRY for an unknown number, TS_ERR_NULL, TS_ERR_VALUE for a size that the rule
 * for options in core.h does not allow.
 */
TS_API ts_status ts_op_describe(int op, ts_op_description *description);

/** The minimal work of a call. */
typedef struct ts_work {
    double flops; /**< operations; an addition, product or function such as exp is one each.
                       NaN: unknown */
    double bytes; /**< bytes read from and written to memory; NaN: unknown */
} ts_work;
/** Computes the minimal work of a completed call from its frame, which has the results. */
typedef ts_work (*ts_cost)(const ts_frame *frame);
/**
 * Computes the minimal work of a call by the op's cost formula. Call it in a layer after
 * ts_redispatch() has returned TS_OK. Each element of an argument counts once, even if it is
 * broadcast or if two arguments are the same tensor; a view costs nothing. The work of a composite
 * includes its inner calls, so do not add theirs. For an op without a formula both fields of *work
 * are NaN, without an error. Errors: TS_ERR_NULL.
 */
TS_API ts_status ts_op_cost(const ts_frame *frame, ts_work *work);

/** Reasons for the contents of a slot of an op's table. From KERNEL to MISSING, the first reason
 *  that applies decides. */
typedef enum ts_slot_rule {
    TS_RULE_NONE,           /**< a layer without a kernel for the op: calls skip it */
    TS_RULE_KERNEL,         /**< a kernel registered for the op and the key */
    TS_RULE_FALLBACK_FIRST, /**< the key's fallback, by ts_key_prefer_fallback() */
    TS_RULE_META,           /**< META: shape inference without a kernel */
    TS_RULE_COMPOSITE,      /**< the op's composite */
    TS_RULE_VIEW,           /**< a view, which needs no kernel */
    TS_RULE_FALLBACK,       /**< the key's fallback */
    TS_RULE_MISSING,        /**< no kernel: a call is an error with a hint */
    TS_RULE_ABSENT          /**< TS_KEY_ABSENT: the error for a missing tensor */
} ts_slot_rule;

/** The rule that filled the op's slot for `key`; TS_RULE_MISSING for an unknown op or key. */
TS_API ts_slot_rule ts_op_slot(int op, ts_key key);

/** Prints the table of an op: its schema, then for each key in use a line with the number, the
 *  name, the rule that filled the slot and, where a kernel or a composite fills it, the code
 *  address. Errors: TS_ERR_REGISTRY for an unknown op, TS_ERR_NULL. */
TS_API ts_status ts_op_dump(const char *op, FILE *out);

/* ------------------------------------------------------------------------------ timers ---- */

/** Switches the timers of all threads on or off. TS_ERR_UNSUPPORTED in a build without timers,
 *  TS_ERR_STATE if the system's clock does not advance, TS_ERR_MEMORY. */
TS_API ts_status ts_timers_enable(bool on);
/** True while the timers are on. */
TS_API bool ts_timers_enabled(void);
/** Sets all counters of all threads to zero. */
TS_API void ts_timers_reset(void);

/** Formats of the report. */
typedef enum ts_timers_format { TS_TIMERS_TABLE, TS_TIMERS_CSV, TS_TIMERS_JSON } ts_timers_format;
/**
 * Writes, for each thread, a row per (op, layer) with calls and self time (without inner calls),
 * and rows for the backward engine, the timers' own calibrated cost and the time between calls. The
 * rows sum exactly to the wall time summed over threads. A build without timers writes no rows.
 * Errors: TS_ERR_NULL, TS_ERR_VALUE (format), TS_ERR_MEMORY, TS_ERR_IO.
 */
TS_API ts_status ts_timers_write(FILE *out, ts_timers_format format);
/**
 * Writes the `rows` rows with the most time as a table, one row for the sum of the others, and the
 * wall time. Errors: TS_ERR_VALUE for rows below 0, and those of ts_timers_write().
 */
TS_API ts_status ts_timers_write_top(FILE *out, int rows);

/** Calls of an op at a layer and their self time (without inner calls) in ns, summed over
 *  threads. */
typedef struct ts_timer_cell {
    uint64_t calls;
    double self_ns;
} ts_timer_cell;
/** The counters of an op at a layer, both by name; zeros if there were no calls. */
TS_API ts_timer_cell ts_timers_get(const char *op, const char *layer);

/** Totals over threads in ns: wall = attributed (to ops and the backward engine) + overhead (of the
 *  timers) + unattributed (between calls). */
typedef struct ts_timer_totals {
    double wall_ns, attributed_ns, overhead_ns, unattributed_ns;
    uint64_t calls;
} ts_timer_totals;
/** Counters of all threads since the last reset. */
TS_API ts_timer_totals ts_timers_totals(void);

/** Calls the op "noop", which does nothing, to measure the dispatcher. Kernels may be registered
 *  for the op. Errors: TS_ERR_NULL, TS_ERR_STATE (released), and those of such kernels. */
TS_API ts_status ts_noop(ts_tensor *a, ts_tensor *b, ts_scalar c);

TS_END_DECLS
#endif
