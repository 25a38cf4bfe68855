/**
 * @file core.h
 * Tensors, dtypes, devices, scopes, errors, random seeds, memory statistics.
 *
 * Ownership: a function that returns a new `ts_tensor *` adds it to the calling thread's innermost
 * scope (TS_SCOPE), which releases it when the block ends; outside of all scopes, the tensor is
 * released when the thread ends. If a function returns one of its arguments, that tensor keeps its
 * owner; so does a tensor that a comment calls "borrowed". ts_keep() moves a tensor to the parent
 * scope, ts_drop() releases it early; call both in the thread of the scope. Objects that hold
 * tensors use ts_retain() and ts_release().
 *
 * Errors: a failed call returns NULL or a status other than TS_OK, and writes code and message to
 * the calling thread's error record. A call that requires an object and gets the NULL of a failed
 * call fails too, with the code of that first failure (the root failure), and leaves the record
 * unchanged. A program may also read a size, count, stride, dtype or device of that NULL, or get -1
 * from ts_size(), and pass the value on. From then on, each call that fails returns the root
 * failure's code and leaves the record unchanged, until the program reads the message, or prints or
 * clears the record.
 *
 * Unless a comment says otherwise, a required argument that is NULL is TS_ERR_NULL, and a released
 * tensor is TS_ERR_STATE, also where the comment does not list these errors. A NULL-safe function
 * does nothing for NULL, without an error. A released tensor is detected until its header is
 * reused; TS_DEBUG=scopes delays the reuse.
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

/** Result of a call: TS_OK, or the kind of failure. Values are append-only. */
typedef enum ts_status {
    TS_OK = 0,
    TS_ERR_NULL,        /**< a required tensor or pointer was NULL */
    TS_ERR_VALUE,       /**< an argument has an invalid value */
    TS_ERR_SHAPE,       /**< sizes or number of dimensions do not fit */
    TS_ERR_DTYPE,       /**< a dtype is not accepted */
    TS_ERR_DEVICE,      /**< tensors on different devices, an unknown device, or a lost device */
    TS_ERR_INDEX,       /**< an index is out of range, or a name is unknown */
    TS_ERR_MEMORY,      /**< out of memory; later calls can succeed */
    TS_ERR_IO,          /**< a system call on a file failed */
    TS_ERR_FORMAT,      /**< a file or string is malformed */
    TS_ERR_AUTOGRAD,    /**< misuse of gradients: in-place writes, freed graphs, no rule */
    TS_ERR_UNSUPPORTED, /**< no kernel for this op on this device, or a missing feature */
    TS_ERR_REGISTRY,    /**< a registration was refused */
    TS_ERR_STATE,       /**< the object is not in a state that allows the call */
    TS_ERR_INTERNAL     /**< a bug in the library */
} ts_status;

/** Name of a status, such as "TS_ERR_SHAPE"; "TS_ERR_?" for any other number. */
TS_API const char *ts_status_name(ts_status status);

/** Code of the calling thread's last root failure; TS_OK when the record is empty. */
TS_API ts_status ts_error_code(void);
/* The texts of the record are borrowed; they are valid until the thread's record changes. */
/** Message of the last root failure; for an invalid argument: op, argument, expected and actual
 *  value. "" when the record is empty. */
TS_API const char *ts_error_message(void);
/** Name of the op or function that failed, without "ts_", or "" if the failure recorded none. */
TS_API const char *ts_error_op(void);
/** A remedy in one sentence, or "". */
TS_API const char *ts_error_hint(void);
/** Return address of the public function that failed (for symbolising), or NULL if unknown. */
TS_API const void *ts_error_site(void);
/** Empties the calling thread's record. */
TS_API void ts_error_clear(void);
/** Prints the record to stderr: message with code, hint and call site, one line each; no line for
 *  an absent hint or site. Prints nothing if the record is empty. */
TS_API void ts_error_print(void);
/**
 * Records a failure of user code as the root failure, which propagates like a library failure. The
 * message is cut to 1,199 bytes and escaped as by ts_escape_text() (program.h), except line feeds
 * and tabs.
 * @return status, so that a function can `return ts_error_set(TS_ERR_VALUE, "...", ...)`;
 *         TS_ERR_INTERNAL if status is TS_OK; the code of an earlier root failure if the record
 *         keeps that failure (see the top of this file)
 */
TS_API ts_status ts_error_set(ts_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** Like ts_error_set(), with a remedy (copied, cut to 255 bytes; NULL: none). */
TS_API ts_status ts_error_set_hint(ts_status status, const char *hint, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** Appends " (in PLACE)", with the text of `place`, to the message of the recorded failure, unless
 *  an earlier call appended one. Returns the recorded code. Changes nothing if place is NULL or no
 *  failure is recorded. ts_forward() appends the path of the innermost module. */
TS_API ts_status ts_error_within(const char *place);
/** Records that allocating `bytes` bytes of host memory for `what` ("a tensor") failed. Returns as
 *  ts_error_set(TS_ERR_MEMORY, ...). */
TS_API ts_status ts_error_memory(const char *what, int64_t bytes)
    __attribute__((cold, noinline));

/** The status of a call that returned `pointer`: TS_OK if it is not NULL, else the recorded code,
 *  or a new TS_ERR_NULL if none is recorded. */
TS_API ts_status ts_status_of_pointer(const void *pointer);
static inline ts_status ts_status_of_status(ts_status status) { return status; }

#ifndef __cplusplus
/**
 * Never called; it keeps compiler errors short. TS_STATUS_OF() stores its argument in a variable of
 * this name. If the argument does not compile, gcc does not declare the variable, finds this
 * function instead, and reports only the mistake itself.
 */
static inline void ts_tried(void) {}
/** Selected by TS_STATUS_OF() after such a mistake. */
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
/** Returns NULL from the enclosing function (which returns a pointer) when `expr` failed. */
#define TS_TRY_NULL(expr)                 \
    do {                                  \
        if (TS_STATUS_OF(expr) != TS_OK)  \
            return NULL;                  \
    } while (0)
#endif

/* -------------------------------------------------------------------------- logging ------ */

/** Receives one log line, without newline, in the thread that logs it. topic: a name such as
 *  "dispatch". */
typedef void (*ts_log_fn)(void *payload, const char *topic, const char *line);
/**
 * Sets the callback that receives the log lines of all topics and threads; NULL restores the
 * default. Call it while no other thread logs. The default prints to stderr the topics that the
 * environment variable TS_LOG names (separated by commas, or "all"), and always the topic
 * "warning", which reports, for example, an environment variable with an invalid value.
 * @param payload  passed to callback
 */
TS_API void ts_log_set_callback(ts_log_fn callback, void *payload);
/** True if the log writes lines of `topic`; false for NULL. Check it before formatting an expensive
 *  line. */
TS_API bool ts_log_on(const char *topic);
/** Formats one line (without newline) and logs it if ts_log_on(topic). The text is escaped as by
 *  ts_escape_text() and cut to 1,023 bytes. */
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
    TS_BOOL, /**< one byte: 0 or 1; kernels may give other results for other bytes */
    TS_DTYPE_COUNT,
    TS_DTYPE_NONE = 255 /**< no dtype; as an argument that has a default: not given */
} ts_dtype;

/** Bytes of one element; 0 for an invalid dtype. */
TS_API size_t ts_dtype_size(ts_dtype dtype);
/** "f32", "i64", ...; "?" for an invalid dtype. */
TS_API const char *ts_dtype_name(ts_dtype dtype);
/** True for f64, f32, bf16 and f16. */
TS_API bool ts_dtype_is_float(ts_dtype dtype);
/** True for bf16 and f16; kernels compute them in f32. */
static inline bool ts_dtype_is_half(ts_dtype dtype) { return dtype == TS_BF16 || dtype == TS_F16; }
/** Common dtype of two dtypes by PyTorch's promotion table; `a` if either is invalid. */
TS_API ts_dtype ts_dtype_promote(ts_dtype a, ts_dtype b);

/** A device. Tensors on META have sizes and dtype but no memory. */
typedef struct ts_device {
    uint8_t backend; /**< dispatch key of its backend: 0 CPU, 1 CUDA, 15 META, or a plugin's */
    uint8_t index;   /**< number of the device in its backend */
} ts_device;

#if defined(__cplusplus)
#define TS_DEVICE_CPU (ts_device{0, 0})
#define TS_DEVICE_META (ts_device{15, 0})
#else
#define TS_DEVICE_CPU ((ts_device){0, 0})
#define TS_DEVICE_META ((ts_device){15, 0})
#endif

/** "cpu", "cuda:0", "meta"; also the name of a device that does not exist, such as "cpu:3". Eight
 *  later calls in the thread overwrite the text; the library's error messages make such calls, so
 *  copy a text that must last. */
TS_API const char *ts_device_name(ts_device device);
/** Parses a device name in upper or lower case: "cpu", "meta", "cuda", "cuda:1" or the name of a
 *  loaded plugin, with an index up to 255. Neither opens the backend nor checks that the device
 *  exists; ts_device_open() does both. Errors: TS_ERR_VALUE for any other name, TS_ERR_NULL. */
TS_API ts_status ts_device_from_name(const char *name, ts_device *device);
/** The calling thread's default device: factories without a device argument create tensors on it.
 *  Initially the CPU. */
TS_API ts_device ts_default_device(void);
/** Sets the calling thread's default device. TS_ERR_DEVICE for an unknown backend, or for an index
 *  beyond the devices of a backend that has any. CUDA is accepted even if ts_backend_open() has not
 *  opened it, or if the machine has no CUDA device; factories then fail. */
TS_API ts_status ts_set_default_device(ts_device device);

/* ---------------------------------------------------------------------------- scalars ---- */

/** A number and its kind (bool, integer, float); dtype promotion depends on the kind. */
typedef struct ts_scalar {
    uint8_t kind; /**< a ts_scalar_kind; a float is in d, the other kinds are in i */
    union {
        int64_t i;
        double d;
    };
} ts_scalar;

typedef enum ts_scalar_kind { TS_SCALAR_BOOL = 1, TS_SCALAR_INT, TS_SCALAR_FLOAT } ts_scalar_kind;

/** Constructors of a ts_scalar; TS_SCALAR() selects one by the type of its argument. */
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
/** Selected by TS_SCALAR() if its argument does not compile. */
static inline ts_scalar ts_scalar_of_mistake(void (*boxed)(void))
{
    return ts_scalar_bool(boxed != NULL);
}
/** A ts_scalar from a C number: a floating type gives a float, bool a bool; any other type is
 *  converted to int64_t. Before C23 the constants true and false have type int. */
#define TS_SCALAR(x)                                                                               \
    __extension__({                                                                                \
        __auto_type ts_boxed = (x);                                                                \
        ts_scalar ts_boxed_scalar = _Generic(ts_boxed, ts_scalar: ts_scalar_same,                  \
            bool: ts_scalar_bool, float: ts_scalar_float, double: ts_scalar_float,                 \
            long double: ts_scalar_float,                                                          \
            void (*)(void): ts_scalar_of_mistake, default: ts_scalar_int)(ts_boxed);               \
        ts_boxed_scalar;                                                                           \
    })
#endif

/* ---------------------------------------------------------------------------- options ---- */

/*
 * Options. The first field of an options struct, `size`, is sizeof the struct in the caller's
 * headers; TS_OPTS() sets it. NULL options are all defaults; zero in a field is its default.
 *
 * New versions only append fields. A newer library reads `size` bytes and treats the fields after
 * them as zero. A size that no version can have (0, above the library's, not a multiple of
 * sizeof(size_t)) is TS_ERR_VALUE (TS_CHECK_OPTS() of check.h). The same rule applies to the other
 * structs that begin with `size`, such as ts_module_type. A ts_backend must have the library's own
 * size.
 *
 * Where callers need 0 although it is not the default, the field is a pointer to the number; NULL
 * means the default. A field for an optional tensor is the address of a variable: NULL means no
 * tensor. If the variable itself is NULL, the call that made the tensor failed, and the call with
 * the options returns that failure.
 */
#ifndef __cplusplus
/** The address of a struct of options with its size, for one call:
 *  ts_mlp_new(C, 4 * C, TS_OPTS(ts_mlp_opts, .dropout = 0.1)). */
#define TS_OPTS(type, ...) (&(const type){.size = sizeof(type), __VA_ARGS__})
#endif

/* ---------------------------------------------------------------------------- tensors ---- */

/** Represents an absent optional argument or result; programs write TS_NONE. NULL, in contrast,
 *  means that a call failed. */
TS_API extern ts_tensor *const ts_none;
/** Alias of ts_none, spelled like the other constants. */
#define TS_NONE ts_none

/* If t is NULL, the functions from ts_ndim() to ts_data_mut() return 0, NULL, false, TS_DTYPE_NONE
 * or the CPU and record no error; ts_size() returns -1, with TS_ERR_NULL unless a failure is
 * recorded already. After a call of ts_ndim() to ts_device_of() with NULL, and whenever ts_size()
 * returns -1, the recorded failure stays, even if the returned value makes another call fail. For
 * TS_NONE and a released tensor, ts_version() is 0 and ts_data() and ts_data_mut() are NULL; the
 * results of the others have no meaning. */

/** Number of dims; 0 for a scalar tensor. */
TS_API int ts_ndim(const ts_tensor *t);
/** Size along `dim` (negative counts from the end); -1 with TS_ERR_INDEX when out of range. */
TS_API int64_t ts_size(const ts_tensor *t, int dim);
/** Array of ts_ndim() sizes, borrowed from t. */
TS_API const int64_t *ts_sizes(const ts_tensor *t);
/** Array of ts_ndim() strides in elements, borrowed from t. */
TS_API const int64_t *ts_strides(const ts_tensor *t);
/** Number of elements. */
TS_API int64_t ts_numel(const ts_tensor *t);
/** Element type. */
TS_API ts_dtype ts_dtype_of(const ts_tensor *t);
/** Device whose memory holds the elements. */
TS_API ts_device ts_device_of(const ts_tensor *t);
/** True if the elements are adjacent in row-major order. */
TS_API bool ts_is_contiguous(const ts_tensor *t);
/** Writes sizes as "(2, 3)" into a buffer of `size` bytes; cuts a longer text. Returns buffer, or
 *  "" if buffer is NULL. sizes NULL or ndim below 0: no dims. */
TS_API const char *ts_format_sizes(char *buffer, size_t size, const int64_t *sizes, int ndim);
/** Version of t's storage, which t shares with its views: each in-place write increments it. */
TS_API uint32_t ts_version(const ts_tensor *t);
/** Address of the first element, for reading, in the memory of t's device. NULL for META and empty
 *  tensors. Does not wait for the device. If a compiled function has recorded the calls that
 *  compute t, runs them; NULL, with their error, if that fails. */
TS_API const void *ts_data(const ts_tensor *t);
/** Like ts_data(), for writing: increments ts_version() if the result is not NULL. */
TS_API void *ts_data_mut(ts_tensor *t);

/**
 * Copies a C array into a new contiguous tensor on the CPU.
 * @param data   numel elements of `dtype`, row-major; may be NULL when numel is 0
 * @param sizes  ndim sizes
 * Errors: TS_ERR_DTYPE, TS_ERR_SHAPE, TS_ERR_NULL, TS_ERR_MEMORY.
 */
TS_API ts_tensor *ts_from_array(const void *data, ts_dtype dtype, const int64_t *sizes, int ndim);
/**
 * Wraps the caller's memory as a contiguous tensor on the CPU, without a copy. Ops that write to
 * the tensor write to that memory.
 * @param data     numel elements of `dtype`, row-major, aligned to the element's size; may be NULL
 *                 when numel is 0
 * @param sizes    ndim sizes
 * @param release  frees the memory: called once with payload, data and its size in bytes, in the
 *                 thread that releases the last tensor that uses the memory. That thread may be
 *                 inside any library call, so release must not call ops. NULL: the caller keeps the
 *                 memory valid until all these tensors are freed, including tensors that autograd
 *                 saves
 * @param payload  passed to release
 *
 * After an error the caller still owns the memory, and release is not called.
 * Errors: TS_ERR_DTYPE, TS_ERR_SHAPE, TS_ERR_NULL, TS_ERR_VALUE (alignment), TS_ERR_MEMORY.
 */
TS_API ts_tensor *ts_from_blob(void *data, ts_dtype dtype, const int64_t *sizes, int ndim,
                               void (*release)(void *payload, void *data, int64_t bytes),
                               void *payload);
/* ----------------------------------------------------------------------------- scopes ---- */

/** Handle of an open scope. Use TS_SCOPE; the fields are private. */
typedef struct ts_scope {
    uint64_t serial;
    int64_t at;
} ts_scope;

/**
 * Opens a scope; TS_SCOPE calls it at the start of its block. Always returns 0. If memory runs out,
 * no scope opens and the enclosing scope owns the temporaries.
 * @param scope  for NULL no scope opens and TS_ERR_NULL is recorded
 * @param place  "file:line" for messages, a string constant; may be NULL
 */
TS_API int ts_scope_enter(ts_scope *scope, const char *place);
/**
 * Ends a scope; TS_SCOPE calls it at the end of its block. Releases the scope's temporaries, and
 * those of inner scopes that a jump or an exception skipped. Restores the key masks (dispatch.h),
 * the grad mode and the autocast regions that the thread had when the scope opened. For a scope
 * that did not open (ts_scope_enter()) it does nothing. If the scope was ended before or belongs to
 * another thread, it only records TS_ERR_STATE; for NULL, TS_ERR_NULL.
 */
TS_API void ts_scope_leave(ts_scope *scope);

#define TS_CAT_(a, b) a##b
#define TS_CAT(a, b) TS_CAT_(a, b)
#define TS_TEXT_(x) #x
#define TS_TEXT(x) TS_TEXT_(x)
/** First line of a block: the block's end releases the temporaries made in the block, also after
 *  return, break, goto or an exception. */
#define TS_SCOPE                                                                                   \
    ts_scope TS_CAT(ts_scope_, __LINE__) __attribute__((cleanup(ts_scope_leave)));                 \
    int TS_CAT(ts_entered_, __LINE__) __attribute__((unused)) =                                    \
        ts_scope_enter(&TS_CAT(ts_scope_, __LINE__), __FILE__ ":" TS_TEXT(__LINE__))

/** Moves t from the innermost scope to its parent; a tensor that the innermost scope does not own
 *  keeps its owner. Returns t, or NULL with TS_ERR_STATE if t was released. NULL-safe. */
TS_API ts_tensor *ts_keep(ts_tensor *t);
/** Releases the reference of the scope that owns t, before that scope ends. Does nothing if no
 *  scope owns t. Records TS_ERR_STATE if t was released already. NULL-safe. */
TS_API void ts_drop(ts_tensor *t);
/** Adds a reference for an object that holds t. Returns t, or NULL with TS_ERR_STATE if t was
 *  released. NULL-safe. */
TS_API ts_tensor *ts_retain(ts_tensor *t);
/** Releases a reference that ts_retain() added. Records TS_ERR_STATE if t was released already, or
 *  if its only reference is that of a scope. NULL-safe. */
TS_API void ts_release(ts_tensor *t);

/* --------------------------------------------------------------------- random numbers ---- */

/** State of a thread's random generator, Philox4x32-10. */
typedef struct ts_rng_state {
    uint64_t seed;   /**< Philox key */
    uint64_t offset; /**< next Philox counter; each random op advances it by the number of
                          counters that the op uses */
} ts_rng_state;

/** Seeds the calling thread's generator; the offset restarts at 0. */
TS_API void ts_manual_seed(uint64_t seed);
/** The state of the calling thread's generator. */
TS_API ts_rng_state ts_rng_get_state(void);
/** Sets the state of the calling thread's generator. */
TS_API void ts_rng_set_state(ts_rng_state state);

/* ------------------------------------------------------------------ threads and memory ---- */

/** Number of threads that one op may use, the calling thread included; an op uses at most 256.
 *  Initially the value of the environment variable TS_NUM_THREADS, else the number of processors
 *  that the process may use. */
TS_API int ts_num_threads(void);
/** Sets ts_num_threads() for the whole program. Ops that run meanwhile may use the old or the new
 *  number. The number may exceed the number of processors; results do not depend on it.
 *  TS_ERR_VALUE below 1. */
TS_API ts_status ts_set_num_threads(int threads);

/** Statistics of an allocator, of the host or of a device. */
typedef struct ts_memory_stats {
    int64_t in_use;         /**< bytes in blocks that are allocated now */
    int64_t peak;           /**< largest in_use since the last reset */
    int64_t reserved;       /**< bytes that the allocator's pools hold from the system */
    uint64_t system_allocs; /**< calls to the system allocator so far */
} ts_memory_stats;

/** Statistics of the host allocator over all threads. The allocator takes small blocks from larger
 *  ones of 64 KiB, each of which counts as in use as a whole. With the environment variable
 *  TS_ALLOC=system there are no pools: `reserved` is 0. For a device: ts_device_memory_stats(). */
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

/** TS_OPTS() of C++: zeroed options with their size; the caller then sets fields.
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
