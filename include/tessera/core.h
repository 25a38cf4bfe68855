/**
 * @file core.h
 * Tensors, dtypes, devices, scopes, errors, random seeds, memory statistics.
 *
 * Ownership in one paragraph: a function that returns a `ts_tensor *` gives it to the calling
 * thread's innermost scope (TS_SCOPE), which releases it when the block ends. ts_keep() moves a
 * tensor to the parent scope, ts_drop() releases it early, ts_retain()/ts_release() are for
 * objects that hold tensors. Errors travel like NaN: a failed call returns NULL, NULL arguments
 * propagate, and the per-thread error record keeps the root failure.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_CORE_H
#define TESSERA_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
#define TS_BEGIN_DECLS extern "C" {
#define TS_END_DECLS }
#else
#define TS_BEGIN_DECLS
#define TS_END_DECLS
#endif

/** Marks a function as part of the public ABI. */
#define TS_API __attribute__((visibility("default")))

TS_BEGIN_DECLS

/** Largest number of dimensions of a tensor. */
#define TS_MAX_DIMS 8

typedef struct ts_tensor ts_tensor;

/* ------------------------------------------------------------------ status and errors ---- */

/** Result of every function that does not return a tensor. Values are append-only. */
typedef enum ts_status {
    TS_OK = 0,
    TS_ERR_NULL,        /**< a required tensor or pointer was NULL */
    TS_ERR_VALUE,       /**< an argument has an invalid value */
    TS_ERR_SHAPE,       /**< sizes or number of dimensions do not fit */
    TS_ERR_DTYPE,       /**< a dtype is not accepted */
    TS_ERR_DEVICE,      /**< tensors on devices that cannot be mixed */
    TS_ERR_INDEX,       /**< an index is out of range */
    TS_ERR_MEMORY,      /**< out of memory; everything still works */
    TS_ERR_IO,          /**< the operating system refused a read or write */
    TS_ERR_FORMAT,      /**< a file or string is malformed */
    TS_ERR_AUTOGRAD,    /**< misuse of gradients: in-place writes, freed graphs, no rule */
    TS_ERR_UNSUPPORTED, /**< no kernel for this op on this device */
    TS_ERR_REGISTRY,    /**< a registration was refused */
    TS_ERR_STATE,       /**< the object is not in a state that allows the call */
    TS_ERR_INTERNAL     /**< a bug in the library */
} ts_status;

/** Short constant name of a status, e.g. "TS_ERR_SHAPE". */
TS_API const char *ts_status_name(ts_status status);

/** Code of the calling thread's last root failure; TS_OK when the record is empty. */
TS_API ts_status ts_error_code(void);
/** Message of the last root failure: op, argument, expected and actual value. "" when empty. */
TS_API const char *ts_error_message(void);
/** Name of the op that failed, or "" when the failure was not in an op. */
TS_API const char *ts_error_op(void);
/** A remedy in one sentence, or "". */
TS_API const char *ts_error_hint(void);
/** Return address of the public function that failed (for symbolising), or NULL. */
TS_API const void *ts_error_site(void);
/** Empties the calling thread's record. */
TS_API void ts_error_clear(void);
/** Prints code, message and hint to stderr as at most three lines; prints nothing if the record is
 * empty. */
TS_API void ts_error_print(void);
/**
 * Records a root failure from user code, so that an application's errors propagate likewise.
 * @return status, for `return ts_error_set(TS_ERR_VALUE, "...", ...)`.
 */
TS_API ts_status ts_error_set(ts_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** Like ts_error_set(), with a remedy. */
TS_API ts_status ts_error_set_hint(ts_status status, const char *hint, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** Adds " (in place)" to the message of the recorded failure, unless it has a place already.
 *  Returns the recorded code. ts_forward() adds the path of the innermost module. */
TS_API ts_status ts_error_within(const char *place);
/** Records that there is no memory for `what`, of `bytes`. Returns TS_ERR_MEMORY. */
TS_API ts_status ts_error_memory(const char *what, int64_t bytes)
    __attribute__((cold, noinline));

/** The status behind a pointer result: TS_OK when not NULL, else the recorded code. */
TS_API ts_status ts_status_of_pointer(const void *pointer);
static inline ts_status ts_status_of_status(ts_status status) { return status; }

#ifndef __cplusplus
/**
 * TS_STATUS_OF() and TS_SCALAR() select by the type of their argument, which they store in a
 * variable of this name. If the argument does not compile, gcc does not declare the variable and
 * finds this function instead, so it reports the mistake once. Nothing calls the function.
 */
static inline void ts_tried(void) {}
/** The choice of TS_STATUS_OF() after such a mistake. */
static inline ts_status ts_status_of_mistake(void (*tried)(void))
{
    return tried ? TS_ERR_INTERNAL : TS_OK;
}

/** Status of an expression that is either a ts_status or a pointer. */
#define TS_STATUS_OF(expr)                                                                         \
    __extension__({                                                                                \
        __auto_type ts_tried = (expr);                                                             \
        ts_status ts_tried_status =                                                                \
            _Generic(ts_tried, ts_status: ts_status_of_status,                                     \
                void (*)(void): ts_status_of_mistake, default: ts_status_of_pointer)(ts_tried);    \
        ts_tried_status;                                                                           \
    })
/** Returns from the enclosing function (which returns ts_status) when `expr` failed. */
#define TS_TRY(expr)                                  \
    do {                                              \
        ts_status ts_try_status = TS_STATUS_OF(expr); \
        if (ts_try_status != TS_OK)                   \
            return ts_try_status;                     \
    } while (0)
/** Leaves the enclosing function, which returns a pointer, with NULL when `expr` failed. */
#define TS_TRY_NULL(expr)                 \
    do {                                  \
        if (TS_STATUS_OF(expr) != TS_OK)  \
            return NULL;                  \
    } while (0)
#endif

/* -------------------------------------------------------------------------- logging ------ */

/** Receives one line without newline; `topic` is e.g. "dispatch", "memory". */
typedef void (*ts_log_fn)(void *payload, const char *topic, const char *line);
/**
 * Installs the log sink for all threads; NULL restores the default. The default prints to stderr
 * the topics named in TS_LOG (comma separated, or "all") and the topic "warning", which has a line
 * for each environment variable with an invalid value.
 */
TS_API void ts_log_set_callback(ts_log_fn callback, void *payload);
/** True if the log writes lines of `topic`. Check it before formatting an expensive line. */
TS_API bool ts_log_on(const char *topic);
/** Writes one line, without newline, if ts_log_on(topic): the first 1,023 bytes of its text,
 *  escaped as by ts_escape_text(). */
TS_API void ts_log_write(const char *topic, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ----------------------------------------------------------------- dtypes and devices ---- */

/** Element types. Append-only: the numbers are written to files. */
typedef enum ts_dtype {
    TS_F64,
    TS_F32,
    TS_BF16,
    TS_F16,
    TS_I64,
    TS_I32,
    TS_U8,
    TS_BOOL,
    TS_DTYPE_COUNT,
    TS_DTYPE_NONE = 255 /**< "not given" in options */
} ts_dtype;

/** Bytes of one element; 0 for an invalid dtype. */
TS_API size_t ts_dtype_size(ts_dtype dtype);
/** "f32", "i64", ...; "?" for an invalid dtype. */
TS_API const char *ts_dtype_name(ts_dtype dtype);
/** True for f64, f32, bf16 and f16. */
TS_API bool ts_dtype_is_float(ts_dtype dtype);
/** Whether it is bf16 or f16, whose values are computed in f32. */
static inline bool ts_dtype_is_half(ts_dtype dtype) { return dtype == TS_BF16 || dtype == TS_F16; }
/** Result dtype of combining two tensor dtypes, as PyTorch's promotion table. */
TS_API ts_dtype ts_dtype_promote(ts_dtype a, ts_dtype b);

/** A device: the number of its backend's dispatch key (0 CPU, 1 CUDA, 15 META) and an index. */
typedef struct ts_device {
    uint8_t backend;
    uint8_t index;
} ts_device;

#if defined(__cplusplus)
#define TS_DEVICE_CPU (ts_device{0, 0})
#define TS_DEVICE_META (ts_device{15, 0})
#else
#define TS_DEVICE_CPU ((ts_device){0, 0})
#define TS_DEVICE_META ((ts_device){15, 0})
#endif

/** "cpu", "cuda:0", "meta" into a per-thread ring of eight buffers; "cpu:3" for a device that does
 *  not exist. */
TS_API const char *ts_device_name(ts_device device);
/** Device by name ("cpu", "cuda", "cuda:1", a plugin's name). TS_ERR_VALUE when unknown. */
TS_API ts_status ts_device_from_name(const char *name, ts_device *device);
/** Device of factories that get none, for the calling thread; CPU at first. */
TS_API ts_device ts_default_device(void);
TS_API ts_status ts_set_default_device(ts_device device);

/* ---------------------------------------------------------------------------- scalars ---- */

/** A number that remembers its kind, so that integers stay integers in promotion. */
typedef struct ts_scalar {
    uint8_t kind; /**< one of the three kinds of ts_scalar_kind */
    union {
        int64_t i;
        double d;
    };
} ts_scalar;

typedef enum ts_scalar_kind { TS_SCALAR_BOOL = 1, TS_SCALAR_INT, TS_SCALAR_FLOAT } ts_scalar_kind;

/** A ts_scalar from a number of one kind; TS_SCALAR() chooses among them. */
static inline ts_scalar ts_scalar_bool(bool v)
{
    ts_scalar s; s.kind = TS_SCALAR_BOOL; s.i = v; return s;
}
static inline ts_scalar ts_scalar_int(int64_t v)
{
    ts_scalar s; s.kind = TS_SCALAR_INT; s.i = v; return s;
}
static inline ts_scalar ts_scalar_float(double v)
{
    ts_scalar s; s.kind = TS_SCALAR_FLOAT; s.d = v; return s;
}
static inline ts_scalar ts_scalar_same(ts_scalar v) { return v; }

#ifndef __cplusplus
/** Like ts_tried(), for TS_SCALAR(). */
static inline void ts_boxed(void) {}
/** The choice of TS_SCALAR() after a mistake in its argument. */
static inline ts_scalar ts_scalar_of_mistake(void (*boxed)(void))
{
    return ts_scalar_bool(boxed != NULL);
}
/** A ts_scalar from a C number: integers stay integers, bool stays bool. */
#define TS_SCALAR(x)                                                                               \
    __extension__({                                                                                \
        __auto_type ts_boxed = (x);                                                                \
        ts_scalar ts_boxed_scalar = _Generic(ts_boxed, ts_scalar: ts_scalar_same,                  \
            bool: ts_scalar_bool, float: ts_scalar_float, double: ts_scalar_float,                 \
            void (*)(void): ts_scalar_of_mistake, default: ts_scalar_int)(ts_boxed);               \
        ts_boxed_scalar;                                                                           \
    })
#endif

/* ---------------------------------------------------------------------------- options ---- */

/*
 * Options. The first field of a struct of options is `size`, sizeof the struct in the caller's
 * headers. A NULL struct, or zero in a field, means the default.
 *
 * New fields are appended only. A newer library reads `size` bytes and takes the other fields as
 * zero. A size of 0, or above the library's, is TS_ERR_VALUE (TS_CHECK_OPTS() of check.h). The same
 * holds for ts_module_type, ts_function and ts_training. A ts_backend must have the library's own
 * size.
 *
 * A number whose default is not 0, and an optional tensor, are given by address; NULL means the
 * default. A NULL tensor at the address means a failed call, as elsewhere.
 */
#ifndef __cplusplus
/** The address of a struct of options with its size, for one call:
 *  ts_mlp_new(C, 4 * C, TS_OPTS(ts_mlp_opts, .dropout = 0.1)). */
#define TS_OPTS(type, ...) (&(const type){.size = sizeof(type), __VA_ARGS__})
#endif

/* ---------------------------------------------------------------------------- tensors ---- */

/** Stands for "no tensor" where an argument is optional; NULL always means "failed". */
TS_API extern ts_tensor *const ts_none;
/** Spelled like the constant it is; exported under a name with the library's prefix. */
#define TS_NONE ts_none

/** Number of dims; 0 for a tensor of one number. */
TS_API int ts_ndim(const ts_tensor *t);
/** Size along `dim` (negative counts from the end); -1 with an error when out of range. */
TS_API int64_t ts_size(const ts_tensor *t, int dim);
/** Borrowed array of ts_ndim() sizes. */
TS_API const int64_t *ts_sizes(const ts_tensor *t);
/** Borrowed array of ts_ndim() strides, in elements. */
TS_API const int64_t *ts_strides(const ts_tensor *t);
TS_API int64_t ts_numel(const ts_tensor *t);
TS_API ts_dtype ts_dtype_of(const ts_tensor *t);
TS_API ts_device ts_device_of(const ts_tensor *t);
TS_API bool ts_is_contiguous(const ts_tensor *t);
/** Writes sizes as "(2, 3)" into a buffer of `size` bytes, cut to it. Returns buffer. */
TS_API const char *ts_format_sizes(char *buffer, size_t size, const int64_t *sizes, int ndim);
/** Number of times the storage was written; views share it. */
TS_API uint32_t ts_version(const ts_tensor *t);
/** Address of the first element for reading; NULL for META and empty tensors. */
TS_API const void *ts_data(const ts_tensor *t);
/** Address of the first element for writing; increments the version. */
TS_API void *ts_data_mut(ts_tensor *t);

/**
 * Copies a C array into a new contiguous tensor on the CPU.
 * @param data   numel elements of `dtype`, row-major; may be NULL when numel is 0
 * @param sizes  ndim sizes
 */
TS_API ts_tensor *ts_from_array(const void *data, ts_dtype dtype, const int64_t *sizes, int ndim);
/**
 * Contiguous tensor on the CPU over memory of the caller. Nothing is copied; ops that write to the
 * tensor write to that memory.
 * @param data     numel elements of `dtype`, row-major, at a multiple of the element's size; may be
 *                 NULL when numel is 0
 * @param sizes    ndim sizes
 * @param release  called once with payload, data and its bytes, in the thread that releases the
 *                 last tensor of the memory; must not call ops. NULL: the caller keeps the memory
 *                 alive while any such tensor lives (nodes of a graph hold some).
 * @param payload  passed to release
 *
 * After an error release is never called and the memory is still the caller's.
 * Errors: TS_ERR_DTYPE, TS_ERR_SHAPE, TS_ERR_NULL, TS_ERR_VALUE (alignment), TS_ERR_MEMORY.
 */
TS_API ts_tensor *ts_from_blob(void *data, ts_dtype dtype, const int64_t *sizes, int ndim,
                               void (*release)(void *payload, void *data, int64_t bytes),
                               void *payload);
/* ----------------------------------------------------------------------------- scopes ---- */

/** Names a scope that is open. Use TS_SCOPE; the fields are private. */
typedef struct ts_scope {
    uint64_t serial;
    int64_t at;
} ts_scope;

/**
 * Opens a scope; TS_SCOPE calls it at the start of its block. Returns 0, also if out of memory:
 * then the enclosing scope owns the temporaries.
 * @param place  "file:line" for messages, a constant; may be NULL
 */
TS_API int ts_scope_enter(ts_scope *scope, const char *place);
/**
 * Ends a scope; TS_SCOPE calls it at the end of its block. Releases the scope's temporaries, and
 * those of inner scopes that a jump or an exception skipped. Restores key masks, grad mode and
 * autocast regions of the scope's start. If the scope is not open in the calling thread, because it
 * or a scope around it has ended, records TS_ERR_STATE and does nothing else.
 */
TS_API void ts_scope_leave(ts_scope *scope);

#define TS_CAT_(a, b) a##b
#define TS_CAT(a, b) TS_CAT_(a, b)
#define TS_TEXT_(x) #x
#define TS_TEXT(x) TS_TEXT_(x)
/** First line of a block: temporaries made in the block are released when it is left in any way. */
#define TS_SCOPE                                                                                   \
    ts_scope TS_CAT(ts_scope_, __LINE__) __attribute__((cleanup(ts_scope_leave)));                 \
    int TS_CAT(ts_entered_, __LINE__) __attribute__((unused)) =                                    \
        ts_scope_enter(&TS_CAT(ts_scope_, __LINE__), __FILE__ ":" TS_TEXT(__LINE__))

/** Moves t from the innermost scope to its parent and returns it; a tensor of an outer scope stays
 *  there. NULL-safe. */
TS_API ts_tensor *ts_keep(ts_tensor *t);
/** Releases a temporary before its scope ends. NULL-safe. */
TS_API void ts_drop(ts_tensor *t);
/** Adds a reference for an object that holds t; returns t. NULL-safe. */
TS_API ts_tensor *ts_retain(ts_tensor *t);
/** Releases a reference taken by ts_retain(). NULL-safe. */
TS_API void ts_release(ts_tensor *t);

/* --------------------------------------------------------------------- random numbers ---- */

/** State of the calling thread's generator: Philox4x32-10 key and next counter. */
typedef struct ts_rng_state {
    uint64_t seed;
    uint64_t offset;
} ts_rng_state;

/** Seeds the calling thread's generator; the offset restarts at 0. */
TS_API void ts_manual_seed(uint64_t seed);
TS_API ts_rng_state ts_rng_get_state(void);
TS_API void ts_rng_set_state(ts_rng_state state);

/* ------------------------------------------------------------------ threads and memory ---- */

/** Number of threads that one op may use, the caller included;
 * TS_NUM_THREADS or the cores at first. */
TS_API int ts_num_threads(void);
/** TS_ERR_VALUE below 1; more than the machine has is allowed. Results never depend on it. */
TS_API ts_status ts_set_num_threads(int threads);

typedef struct ts_memory_stats {
    int64_t in_use;         /**< bytes held by live blocks */
    int64_t peak;           /**< largest in_use since the last reset */
    int64_t reserved;       /**< bytes taken from the system */
    uint64_t system_allocs; /**< calls to the system allocator so far */
} ts_memory_stats;

/** Statistics of the host allocator over all threads. */
TS_API ts_memory_stats ts_memory_get_stats(void);
/** Resets the peak to the bytes in use now. For a device: ts_device_memory_reset_peak(). */
TS_API void ts_memory_reset_peak(void);

/** Library version, e.g. "0.1.0". */
TS_API const char *ts_version_string(void);

TS_END_DECLS

#if defined(__cplusplus)
extern "C++" {
/** TS_SCALAR() of C++: a ts_scalar from a number; integers stay integers, bool stays bool. */
static inline ts_scalar ts_scalar_of(ts_scalar v) { return v; }
static inline ts_scalar ts_scalar_of(bool v) { return ts_scalar_bool(v); }
template <typename T> static inline ts_scalar ts_scalar_of(T v)
{
    bool real = static_cast<T>(0.5) != static_cast<T>(0);
    return real ? ts_scalar_float(static_cast<double>(v)) : ts_scalar_int(static_cast<int64_t>(v));
}

/** TS_OPTS() of C++: options with their size, whose fields are then set.
 *  auto opts = ts_opts<ts_mlp_opts>(); opts.dropout = 0.1; ts_mlp_new(C, 4 * C, &opts); */
template <typename T> static inline T ts_opts()
{
    T opts = {};
    opts.size = sizeof(T);
    return opts;
}
}
#endif
#endif
