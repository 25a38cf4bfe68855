/**
 * @file misuse.h  Declarations shared by the files of the misuse fuzzer, which calls public
 * functions with random, often invalid arguments. misuse.c makes the calls, and oracle.c judges
 * them. draw.c draws plain arguments and tensors, objects.c objects and files, callbacks.c
 * callbacks. A row is a sequence of calls that share objects; a hand is the state of one thread
 * that makes calls.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_TESTS_MISUSE_H
#define TS_TESTS_MISUSE_H

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/tensor.h"
#include "core/thread.h"
#include "include/tessera/tessera.h"

enum {
    MOST_BYTES = 1 << 20, /* maximum size of an allocation */
    MOST_SECONDS = 60,    /* maximum duration of a row of calls, also under a sanitizer */
    ENTRIES = 8,          /* members of a list of tensors */
    NUMBERS = 16,         /* members of a list of integers; more than TS_MAX_DIMS */
    RESULT_BYTES = 2048,  /* bytes of a buffer that receives results */
    MADE = 160,           /* maximum number of tensors of a row */
    HANDS = 5             /* the main thread's hand, and those of rows with several threads */
};

/* --------------------------------------------------------------------------------- hands ---- */

/** A tensor of the row, and its checksum and version from before the running call. */
typedef struct made_tensor {
    ts_tensor *t, *base; /* base: contiguous tensor of the whole memory; NULL on META */
    uint64_t sum;
    uint32_t version;
} made_tensor;

/** Objects that the library makes and the caller frees, and substitutes for arguments that exist
 *  only during a call (frames, rule calls, function calls). */
typedef enum object_kind {
    MODULE, OPTIMIZER, SCALER, LOADER, CSV, CHART, PROGRESS, RUN, SAFETENSORS, CHECKPOINT,
    PROFILE, DATASET, EMA, NPZ,
    GRAPH, COMPILED, LIST, KEPT, KEPT_NODE, HOOK, REGISTRATION, STREAM, EVENT, SCOPE, REGION,
    LOCALE, FRAME, RULE_CALL, FUNCTION_CALL, KINDS
} object_kind;

typedef struct object {
    object_kind kind;
    void *p;
} object;

/** State of one thread that draws and makes calls; each thread has its own. */
typedef struct hand {
    uint64_t state; /* state of the random numbers */
    _Atomic bool working;

    /* the row as text, for reports */
    char name[64]; /* name of the called function */
    char words[4096]; /* arguments and nested calls of all calls so far */
    size_t used;

    /* tensors, with sizes near `shape`; the first nborrowed belong to another hand */
    made_tensor made[MADE];
    int nmade, nborrowed;
    bool sharing;        /* the next argument is only read, so it may be a borrowed tensor */
    ts_tensor *dying[4]; /* released after all arguments are drawn, so the call gets dead tensors */
    int ndying;
    int64_t shape[TS_MAX_DIMS];
    int dims;
    ts_dtype common;   /* preferred dtype */
    bool mostly_right; /* draw invalid arguments rarely */
    bool held; /* tensors live as long as the row of calls that shares them */

    /* plain arguments */
    _Alignas(64) char memory[1 << 19]; /* handed out by arena() */
    size_t taken;
    int64_t count_of_call;     /* number of members of the call's lists */
    bool null_list, some_list; /* a list of the call is NULL; is not NULL */
    ts_tensor **places[32];    /* buffers that receive results */
    int nplaces;

    /* objects, the first nlent of them borrowed from another hand, and files */
    object objects[64];
    int nobjects, nlent;
    struct {
        object_kind kind;
        void **place;
    } object_places[16];
    int nobject_places;
    int *descriptors[16];
    int ndescriptors;
    char folder[80];  /* path of the row's folder */
    bool used_folder; /* it may contain files, so it is emptied with the row */
    int files;        /* number in the name of the newest file, 0 to 99 */

    /* calls that have not returned: one, and the calls that callbacks make inside it */
    struct {
        ts_modes modes;
        char name[64];
        int flags;
    } under_way[4];
    int nunder_way, nnoted, nesting;
    bool disturbed;       /* a callback made calls of its own */
    bool unbalanced;      /* a callback returned with changed modes or open scopes */
    ts_modes first_modes; /* the thread's modes before its first row, restored after each row */
} hand;

extern hand hands[HANDS];      /* the first is the main thread's */
extern _Thread_local hand *my;

/* -------------------------------------------------------------------------------- draw.c ---- */

extern bool dead_allowed; /* calls may get released tensors, whose headers stay readable */
extern FILE *stream;      /* /dev/null, opened for writing; the FILE argument of calls */

/** Random numbers of the thread's hand: 64 bits; 0 to n - 1; true in one of n cases. */
uint64_t next(void);
int below(int n);
bool one_in(int n);
/** An extreme number, which is seldom a valid argument. */
int64_t odd_number(void);
/** Each pick_ function draws a value, but adds no argument to the text of the call. */
int64_t pick_number(void);
double pick_double(void);
ts_tensor *pick_tensor(void);
const char *pick_text(void);

/** Makes tensors for several threads. */
void make_tensors(int n);
/** From now on, draws tensors like the owner's; arguments that are only read may be the owner's
 *  tensors themselves. */
void borrow_tensors(const hand *owner);
/** Call it before the calls of a row: draws the common properties of the row's tensors. */
void begin_drawing(void);
/** Zeroed memory for arguments, aligned to 16 bytes, until the next row; NULL if none is left. */
void *arena(size_t bytes);
/** Releases the tensors of a row of calls. */
void free_row_tensors(void);
/** True if all result buffers of the call are still NULL, as a failed call must leave them. */
bool places_are_empty(void);
void clear_places(void);

/* Each draw_ function draws an argument of its type. Most add it to the text of the call, with the
 * name `argument`. */
/** Draws the number of members of the call's lists. drawn_count() returns it as an argument, or any
 *  number if all lists are NULL. */
void draw_count(void);
int64_t drawn_count(const char *argument);
ts_tensor *draw_tensor(const char *argument);
ts_tensor **draw_tensors(const char *argument);
ts_tensor **draw_places(const char *argument);
ts_tensor ***draw_place_list(const char *argument);
int64_t draw_int64(const char *argument);
int draw_int(const char *argument);
uint64_t draw_uint64(const char *argument);
int draw_enum(const char *argument);
double draw_double(const char *argument);
bool draw_bool(const char *argument);
size_t draw_bytes(const char *argument);
ts_scalar draw_scalar(const char *argument);
ts_dtype draw_dtype(const char *argument);
ts_device draw_device(const char *argument);
ts_rng_state draw_rng_state(const char *argument);
ts_loader_state draw_loader_state(const char *argument);
ts_mask_guard draw_mask_guard(const char *argument);
ts_rows draw_rows(const char *argument);
ts_check_place draw_check_place(const char *argument);
ts_keyset draw_keyset(const char *argument);
ts_key draw_key(const char *argument);
char *draw_string(const char *argument);
char *draw_letters(const char *argument);
const char **draw_strings(const char *argument);
char **draw_words(const char *argument);
int64_t *draw_ints(const char *argument);
int64_t *draw_few(const char *argument);
double *draw_doubles(const char *argument);
int draw_argc(const char *argument);
int *draw_int_place(const char *argument);
ts_scalar *draw_scalar_place(const char *argument);
void *draw_buffer(const char *argument);
void *draw_memory(const char *argument);
ts_step_guard *draw_guard(const char *argument);
FILE *draw_stream(const char *argument);
ts_node *draw_node(const char *argument);
ts_value *draw_values(const char *argument);
ts_value *draw_results(const char *argument);
ts_value draw_value(const ts_op_arg *p);
/** An options struct whose size field is right, 0 or wrong. */
void *draw_sized(const char *argument, void *options, size_t size);
void *draw_struct(const char *argument, void *options);
/** A list whose members all equal `one`. */
void *draw_structs(const char *argument, const void *one, size_t size);

/* ----------------------------------------------------------------------------- objects.c ---- */

/** Creates the folder of all files, and the objects that exist once. */
void begin_objects(void);
void end_objects(void);
/** The row's folder may contain files of a child process: it is emptied with the row. */
void expect_files(void);
/** Frees the objects that the calls of a row made. */
void free_row_objects(void);
/** Adds an object to the row's objects, unless it is NULL or the list is full. */
void add_object(object_kind kind, const void *object);
/** Objects that several threads may use at once. */
void make_shared_objects(void);
void borrow_objects(const hand *owner);
/** Index of one of the row's objects of this kind, at least `first`; -1 if there is none. */
int pick_object(object_kind kind, int first);
/** One of the row's objects, a new one, or NULL. */
void *draw_object(object_kind kind, const char *argument);
/** A new object, or NULL. */
void *new_object(object_kind kind, const char *argument);
/** Like draw_object(), for an object that the call frees. */
void *give_object(object_kind kind, const char *argument);
/** A pointer that receives an object or a descriptor, which the row then frees or closes. */
void *draw_object_place(object_kind kind, const char *argument);
int *draw_descriptor(const char *argument);
/** Adds the objects that a call returned through these pointers to the row's objects. */
void collect_places(void);
ts_scope *draw_scope(const char *argument);
/** Address of a saved locale or NULL, to which the call switches back. */
void **draw_locale(const char *argument);
/** True if the row has an object of this kind. */
bool any_object(object_kind kind);
char *draw_path(const char *argument);
const ts_backend *draw_backend(const char *argument);

/* Callbacks that misbehave, for example fail or make calls of their own. */
typedef void (*blob_release)(void *payload, void *data, int64_t bytes);
typedef ts_tensor *(*activation)(ts_tensor *x);
typedef ts_tensor *(*module_forward)(ts_module *m, ts_tensor *x);
typedef ts_tensor *(*before_forward)(void *payload, ts_module *m, ts_tensor *x);
typedef ts_tensor *(*after_forward)(void *payload, ts_module *m, ts_tensor *x, ts_tensor *y);
typedef ts_status (*before_list)(void *payload, ts_module *m, ts_tensor **inputs, int n);
typedef ts_tensor *(*after_list)(void *payload, ts_module *m, ts_tensor *const *inputs, int n,
                                 ts_tensor *y);
typedef ts_status (*replace_write)(FILE *out, void *ctx);
typedef ts_status (*function_forward)(ts_function_call *call, void *ctx, ts_tensor *const *inputs,
                                      int n, ts_tensor **outputs, int m);
typedef double (*progress_clock)(void);
typedef void (*profile_ready)(ts_profile *profile, int64_t cycle, void *user);
typedef void (*end_of_context)(void *ctx);
typedef uint64_t (*op_reserve)(const ts_frame *frame);
blob_release draw_blob_release(const char *argument);
activation draw_activation(const char *argument);
module_forward draw_module_forward(const char *argument);
before_forward draw_before_forward(const char *argument);
after_forward draw_after_forward(const char *argument);
before_list draw_before_list(const char *argument);
after_list draw_after_list(const char *argument);
replace_write draw_replace_write(const char *argument);
function_forward draw_forward(const char *argument);
function_forward draw_backward(const char *argument);
progress_clock draw_clock(const char *argument);
profile_ready draw_ready(const char *argument);
end_of_context draw_end_of_context(const char *argument);
op_reserve draw_reserve(const char *argument);
ts_cost draw_cost(const char *argument);
ts_grad_hook draw_grad_hook(const char *argument);
ts_node_pre_hook draw_pre_hook(const char *argument);
ts_node_post_hook draw_post_hook(const char *argument);
ts_recompute_fn draw_part(const char *argument);
ts_module_visit draw_visit(const char *argument);
ts_parameter_filter draw_filter(const char *argument);
ts_forward_list_fn draw_forward_list(const char *argument);
ts_layer_report_fn draw_report_fn(const char *argument);
ts_log_fn draw_log_fn(const char *argument);
ts_kernel draw_kernel(const char *argument);
ts_vjp_rule draw_rule(const char *argument);

/* ------------------------------------------------------------------------------ oracle.c ---- */

/** Flags of the called function, for begin(). */
enum {
    MODES = 1,    /* it changes modes of the thread */
    OPENS = 2,    /* it opens a region, also if it fails */
    OWN_TEXT = 4  /* its caller supplies the text of the error record */
};

extern _Atomic int64_t succeeded, failed; /* number of calls */

/** Call it after the arguments are drawn: saves the modes, and versions and checksums of tensors,
 *  and frees tensors that are meant to be dead. */
void begin(const char *function, int flags);
/** Checks the outcome of a call. True if it succeeded. */
bool ended(ts_status status);
/** Each end_ function checks the outcome of a call by its result. */
void end_status(ts_status status);
void end_nothing(void);
void end_object(object_kind kind, const void *p);
void end_tensor(ts_tensor *t);
/** Checks the sizes of a result, and reads it if it is on the CPU and has at most 4,096 elements,
 *  so that a sanitizer detects accesses outside. */
void check_result(ts_tensor *t);
/** Runs a backward from a result. */
void backward_of(ts_tensor *t);
/** True for an allocation of more than MOST_BYTES, which ts_alloc_fault lets fail. */
bool too_large(size_t bytes);

/* ------------------------------------------------------------------------------ misuse.c ---- */

extern bool in_world;   /* in a separate process, where global state may change */

/** Adds to the text of the call. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);
/** Begins an argument: "name=", after a comma unless it is the first. */
void say_name(const char *argument);
void say_tensor(const ts_tensor *t);
/** Reports a defect of the library with the text of the call, and ends the process unless the run
 *  was started to keep going. */
__attribute__((format(printf, 1, 2))) void finding(const char *format, ...);
/** Makes a random call inside a callback of another call. */
void nested_call(void);

#endif
