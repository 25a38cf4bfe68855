/**
 * @file misuse.c
 * Calls public functions with drawn arguments, wrong ones among them, and judges what comes back.
 *
 * generate.py writes a caller for each function that the headers declare; operators are called by
 * ts_call_boxed() too, from the table. Every call is made from its seed and number alone, so
 * `--seed S --from K --calls 1` makes call K again. A call must not crash, hang or take much
 * memory. One that fails leaves a record with a code and a printable message that begins with the
 * name of a function, and changes no tensor. At the end, memory in use is what it was.
 */
// SPDX-License-Identifier: MIT
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/tensor.h"
#include "dispatch/op.h"
#include "include/tessera/tessera.h"

enum {
    MOST_BYTES = 1 << 20, /* of an allocation */
    MOST_SECONDS = 60,    /* of a call, in a sanitizer build on a busy machine too */
    ENTRIES = 8,          /* of a list of tensors */
    NUMBERS = 16,         /* of a list of integers, more than a tensor has dims */
    PLACES = 64,          /* for results */
    MADE = 160            /* tensors of a call */
};

typedef struct drawn_call {
    void (*run)(void);
    const char *name;
} drawn_call;

/* ------------------------------------------------------------------------- random numbers ---- */

static uint64_t state;

static uint64_t next(void)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static int below(int n) { return (int)(next() % (uint64_t)n); }
static bool one_in(int n) { return below(n) == 0; }

/* ---------------------------------------------------------------------- the call in words ---- */

static uint64_t seed = 1;
static int64_t call_number;
static char words[4096], name[64];
static size_t used;

static __attribute__((format(printf, 1, 2))) void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(words + used, sizeof words - used, format, args);
    va_end(args);
    used += (size_t)n < sizeof words - used ? (size_t)n : sizeof words - used - 1;
}

static void say_tensor(const ts_tensor *t)
{
    char sizes[192];
    if (!t || t == TS_NONE)
        say("%s", t ? "TS_NONE" : "NULL");
    else
        say("%s %s%s%s%s", ts_format_sizes(sizes, sizeof sizes, t->sizes, t->ndim),
            ts_dtype_name(ts_dtype_of(t)), ts_is_contiguous(t) ? "" : " strided",
            ts_device_of(t).backend ? " meta" : "", ts_requires_grad(t) ? " grad" : "");
}

/** Writes what is under way, where a signal handler may. */
static void write_call(const char *what)
{
    char text[sizeof words + 256];
    int n = snprintf(text, sizeof text, "%s: --seed %" PRIu64 " --from %" PRId64
                     " --calls 1: %s(%s)\n", what, seed, call_number, name, words);
    if (write(2, text, (size_t)n) < 0)
        _exit(3);
}

static void crashed(int signal_number)
{
    write_call(signal_number == SIGALRM ? "hang" : "crash");
    signal(signal_number, SIG_DFL);
    raise(signal_number == SIGALRM ? SIGABRT : signal_number);
}

#ifdef __SANITIZE_ADDRESS__
void __sanitizer_set_death_callback(void (*callback)(void));
static void reported(void) { write_call("sanitizer"); }
#endif

/* ----------------------------------------------------------------------------- findings ---- */

static bool keep_going;
static int64_t findings;

static __attribute__((format(printf, 1, 2))) void finding(const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    write_call(text);
    findings++;
    if (!keep_going)
        exit(1);
}

/* ------------------------------------------------------------------------------- tensors ---- */

/** A tensor of the call, and what it held before. */
typedef struct made_tensor {
    ts_tensor *t, *base; /* base: contiguous, in memory; NULL on META */
    uint64_t sum;
    uint32_t version;
} made_tensor;

static made_tensor made[MADE];
static int nmade;
static ts_tensor *dying[4]; /* released when all arguments are drawn */
static int ndying;
static int64_t shape[TS_MAX_DIMS]; /* around which the tensors of a call are drawn */
static int dims;
static ts_dtype common;
static bool mostly_right, dead_allowed;

static uint64_t checksum(const ts_tensor *t)
{
    uint64_t h = 0xcbf29ce484222325u;
    const unsigned char *bytes = ts_data(t);
    int64_t n = bytes ? ts_numel(t) * (int64_t)ts_dtype_size(ts_dtype_of(t)) : 0;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * 0x100000001b3u;
    return h;
}

static ts_tensor *add_made(ts_tensor *t, ts_tensor *base)
{
    if (t && nmade < MADE)
        made[nmade++] = (made_tensor){.t = t, .base = base};
    return t;
}

/** A tensor near the call's shape. */
static ts_tensor *new_tensor(void)
{
    int64_t sizes[TS_MAX_DIMS];
    int n = dims;
    memcpy(sizes, shape, sizeof sizes);
    if (one_in(mostly_right ? 6 : 2)) {
        n = below(6);
        for (int d = 0; d < n; d++)
            sizes[d] = one_in(3) ? below(2) : (int[]){1, 2, 3, 4, 5, 7}[below(6)];
    } else if (one_in(4)) {
        for (int d = 0; d < n; d++)
            sizes[d] = one_in(3) ? 1 : sizes[d];
    } else if (n && one_in(4)) {
        n--;
    }
    ts_dtype dtype = one_in(mostly_right ? 6 : 2) ? (ts_dtype)below(TS_DTYPE_COUNT) : common;
    bool meta = one_in(mostly_right ? 60 : 15);
    ts_tensor *base = meta     ? ts_empty_on(sizes, n, dtype, TS_DEVICE_META)
                      : one_in(3) ? ts_full(sizes, n, TS_SCALAR(one_in(9) ? NAN : below(4)), dtype)
                                  : ts_full(sizes, n, TS_SCALAR(below(5)), dtype);
    ts_tensor *t = base;
    if (t && n > 1 && one_in(6))
        t = ts_transpose(t, 0, n - 1);
    if (t && n && one_in(8))
        t = ts_slice(t, n - 1, 0, INT64_MAX, 2);
    if (t && one_in(8)) {
        int64_t wide[TS_MAX_DIMS + 1] = {below(3)};
        memcpy(wide + 1, ts_sizes(t), (size_t)ts_ndim(t) * sizeof *wide);
        t = ts_expand(t, wide, ts_ndim(t) + 1);
    }
    if (t && ts_dtype_is_float(dtype) && one_in(4)) {
        if (t == base)
            ts_set_requires_grad(t, true);
        if (one_in(3))
            t = ts_mul_scalar(ts_set_requires_grad(ts_detach(t), true), TS_SCALAR(1)), base = NULL;
    }
    return add_made(t, meta ? NULL : base);
}

static ts_tensor *pick_tensor(void)
{
    int what = below(mostly_right ? 120 : 24);
    if (what == 0)
        return NULL;
    if (what == 1)
        return TS_NONE;
    if (what == 2 && dead_allowed && ndying < TS_COUNTOF(dying)) {
        say("dead ");
        return dying[ndying++] = ts_ones(shape, dims, common);
    }
    if (nmade && (what == 3 || one_in(8)))
        return made[below(nmade)].t;
    return new_tensor();
}

static ts_tensor *draw_tensor(const char *argument)
{
    say("%s%s=", used ? ", " : "", argument);
    ts_tensor *t = pick_tensor();
    say_tensor(t);
    return t;
}

/* ------------------------------------------------------------------------ other arguments ---- */

static int64_t odd_number(void)
{
    static const int64_t odd[] = {INT64_MAX, INT64_MIN,   (int64_t)1 << 45,  -((int64_t)1 << 45),
                                  INT32_MAX, INT32_MIN,   (int64_t)1 << 32,  1000,
                                  -1000,     UINT32_MAX, INT64_MAX / 2 + 1, INT64_MIN + 1};
    return odd[below(TS_COUNTOF(odd))];
}
static int64_t pick_number(void)
{
    return one_in(mostly_right ? 40 : 6) ? odd_number() : one_in(3) ? below(10) - 4 : below(4);
}
static int64_t draw_int64(const char *argument)
{
    int64_t v = pick_number();
    say("%s%s=%" PRId64, used ? ", " : "", argument, v);
    return v;
}
static int draw_int(const char *argument) { return (int)draw_int64(argument); }
static uint64_t draw_uint64(const char *argument) { return (uint64_t)draw_int64(argument); }
static int draw_enum(const char *argument) { return (int)draw_int64(argument); }

static double pick_double(void)
{
    static const double some[] = {0,        -0.0,      1,   -1,   0.5, 2,   1e300, -1e300,
                                  INFINITY, -INFINITY, NAN, 1e-8, 0.1, 0.9, 100,   -0.3};
    return mostly_right && !one_in(8) ? some[below(2) ? 4 : 13] : some[below(TS_COUNTOF(some))];
}
static double draw_double(const char *argument)
{
    double v = pick_double();
    say("%s%s=%g", used ? ", " : "", argument, v);
    return v;
}
static bool draw_bool(const char *argument)
{
    bool v = one_in(2);
    say("%s%s=%d", used ? ", " : "", argument, v);
    return v;
}
static size_t draw_bytes(const char *argument)
{
    size_t v = one_in(8) ? (size_t)-1 : (size_t)below(600);
    say("%s%s=%zu", used ? ", " : "", argument, v);
    return v;
}
static ts_scalar draw_scalar(const char *argument)
{
    ts_scalar s = one_in(2) ? ts_scalar_float(pick_double())
                  : one_in(4) ? ts_scalar_bool(one_in(2)) : ts_scalar_int(pick_number());
    if (one_in(mostly_right ? 100 : 12))
        s.kind = (uint8_t)(one_in(2) ? below(16) : below(256));
    say("%s%s={%d, %" PRId64 "}", used ? ", " : "", argument, s.kind, s.i);
    return s;
}
static ts_dtype draw_dtype(const char *argument)
{
    int v = one_in(mostly_right ? 40 : 6) ? (int)odd_number()
            : one_in(20)                  ? 250 + below(8)
                                          : below(TS_DTYPE_COUNT);
    say("%s%s=dtype %d", used ? ", " : "", argument, v);
    return (ts_dtype)v;
}
static ts_device draw_device(const char *argument)
{
    ts_device d = !one_in(mostly_right ? 20 : 3) ? TS_DEVICE_CPU
                  : one_in(2)                    ? TS_DEVICE_META
                                  : (ts_device){(uint8_t)below(256), (uint8_t)below(256)};
    say("%s%s=device %d:%d", used ? ", " : "", argument, d.backend, d.index);
    return d;
}
static ts_rng_state draw_rng_state(const char *argument)
{
    say("%s%s=state", used ? ", " : "", argument);
    return (ts_rng_state){next(), next()};
}
static const char *const texts[] = {"", "none", "mean", "sum", "tanh", "add", "cpu", "meta",
                                    "cpu:3", "a text that no op knows", "\x1b[31m\xc2\x9b\n",
                                    "\xe2\x80\xae", "\xff\xfe", "%s%n"};
static char *draw_string(const char *argument)
{
    const char *text = one_in(8) ? NULL : texts[below(TS_COUNTOF(texts))];
    say("%s%s=text %.20s", used ? ", " : "", argument, text ? text : "NULL");
    return (char *)text;
}

/* --------------------------------------------------------------------------------- lists ---- */

static union {
    ts_tensor *tensors[ENTRIES];
    int64_t ints[NUMBERS];
    double doubles[NUMBERS];
    ts_scalar scalars[NUMBERS];
    ts_tensor *places[PLACES];
    char bytes[1024];
} rooms[24];
static int nrooms;
static int64_t count_of_call;
static bool null_list;

static void draw_count(void)
{
    count_of_call = one_in(mostly_right ? 30 : 5) ? (int[]){-1, INT32_MIN, -4, 0}[below(4)]
                    : one_in(3)                   ? below(ENTRIES + 1)
                                                  : dims;
}
/** Comes after the lists: without one it may be any number. */
static int64_t drawn_count(const char *argument)
{
    if (null_list && one_in(2))
        count_of_call = odd_number();
    say(", %s=%" PRId64, argument, count_of_call);
    return count_of_call;
}

/** Room for a list; NULL now and then. */
static void *room(const char *argument)
{
    bool none = one_in(mostly_right ? 60 : 12) || nrooms == TS_COUNTOF(rooms);
    say("%s%s=%s", used ? ", " : "", argument, none ? "NULL" : "");
    null_list |= none;
    return none ? NULL : memset(&rooms[nrooms++], 0, sizeof *rooms);
}
static ts_tensor **draw_tensors(const char *argument)
{
    ts_tensor **list = room(argument);
    say("[");
    for (int i = 0; list && i < ENTRIES; i++) {
        list[i] = i && one_in(2) ? list[below(i)] : pick_tensor();
        say(i ? ", " : "");
        say_tensor(list[i]);
    }
    say("]");
    return list;
}
static ts_tensor **draw_places(const char *argument) { return room(argument); }
static int64_t *draw_ints(const char *argument)
{
    int64_t *list = room(argument);
    say("[");
    for (int i = 0; list && i < NUMBERS; i++) {
        list[i] = mostly_right && i < dims && one_in(2) ? shape[i] : pick_number();
        if (i < 9)
            say("%s%" PRId64, i ? ", " : "", list[i]);
    }
    say("]");
    return list;
}
static double *draw_doubles(const char *argument)
{
    double *list = room(argument);
    for (int i = 0; list && i < NUMBERS; i++)
        list[i] = pick_double();
    return list;
}
static int *draw_int_place(const char *argument) { return room(argument); }
static ts_scalar *draw_scalar_place(const char *argument)
{
    ts_scalar *list = room(argument);
    if (list)
        *list = draw_scalar("*");
    return list;
}
static void *draw_buffer(const char *argument) { return room(argument); }
static ts_step_guard *draw_guard(const char *argument)
{
    static ts_step_guard guard;
    if (one_in(2))
        return NULL;
    say("%s%s=guard", used ? ", " : "", argument);
    guard.found = draw_tensor("found");
    guard.skipped = draw_tensors("skipped");
    return &guard;
}
static FILE *stream;
static FILE *draw_stream(const char *argument)
{
    FILE *file = one_in(8) ? NULL : stream;
    say("%s%s=%s", used ? ", " : "", argument, file ? "stream" : "NULL");
    return file;
}
static ts_node *draw_node(const char *argument)
{
    ts_tensor *t = draw_tensor(argument);
    ts_node *node = t && t != TS_NONE && ts_requires_grad(t) ? ts_grad_node(t) : NULL;
    say(" node%s", node ? "" : " NULL");
    return node;
}

/** Options, of a size that is right, missing, or wrong. */
static const void *draw_sized(const char *argument, void *options, size_t size)
{
    size_t given = !one_in(mostly_right ? 40 : 6)
                       ? size
                       : (size_t[]){0, 1, 7, size - 1, size + 1, (size_t)-1}[below(6)];
    memcpy(options, &given, sizeof given);
    bool none = one_in(6);
    say("%s%s=%s of size %zu", used ? ", " : "", argument, none ? "NULL" : "options", given);
    return none ? NULL : options;
}
static const void *draw_struct(const char *argument, const void *options)
{
    bool none = one_in(20);
    say("%s%s=%s", used ? ", " : "", argument, none ? "NULL" : "struct");
    return none ? NULL : options;
}

/* -------------------------------------------------------------------------------- oracle ---- */

static bool too_large(size_t bytes) { return bytes > MOST_BYTES; }

/** Arguments are drawn: what they hold is noted, and what is to be dead dies. */
static void begin(const char *function)
{
    snprintf(name, sizeof name, "%s", function);
    for (int i = 0; i < nmade; i++) {
        made[i].version = ts_version(made[i].t);
        made[i].sum = made[i].base ? checksum(made[i].base) : 0;
    }
    for (int i = 0; i < ndying; i++)
        ts_drop(dying[i]);
    ts_error_clear();
    ts_alloc_fault = too_large;
}

/** Text that a terminal shows as it is: UTF-8 without control and bidi characters. */
static bool printable(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        int more = *p < 0x80 ? 0 : *p >= 0xc2 && *p < 0xe0 ? 1 : *p >= 0xe0 && *p < 0xf0 ? 2
                                                  : *p >= 0xf0 && *p < 0xf5 ? 3 : -1;
        uint32_t c = more < 0 ? 0 : more == 0 ? *p : *p & (0x3f >> more);
        for (int i = 1; i <= more; i++) {
            if ((p[i] & 0xc0) != 0x80)
                return false;
            c = c << 6 | (p[i] & 0x3f);
        }
        if (more < 0 || c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x200b && c <= 0x200f) ||
            (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff)
            return false;
        p += more + 1;
    }
    return true;
}

static void check_failure(ts_status status)
{
    const char *message = ts_error_message(), *op = ts_error_op();
    size_t n = strlen(op);
    ts_status code = ts_error_code();
    if (code == TS_OK)
        finding("a failure without a record");
    else if (status != code)
        finding("%s, but the record has %s: %s", ts_status_name(status), ts_status_name(code),
                message);
    else if (code == TS_ERR_INTERNAL)
        finding("internal error: %s", message);
    else if (!message[0] || !printable(message) || !printable(ts_error_hint()))
        finding("a message that is no printable text");
    else if (n == 0 || strncmp(message, op, n) != 0 || strncmp(message + n, ": ", 2) != 0)
        finding("a message that does not begin with its function: %s", message);
    if (code == TS_ERR_MEMORY)
        return; /* it may come from the middle of a kernel */
    for (int i = 0; i < nmade; i++)
        if (ts_version(made[i].t) != made[i].version ||
            (made[i].base && checksum(made[i].base) != made[i].sum))
            finding("an argument was changed by a call that failed: %s", message);
}

/** Reads all of a result; a sanitizer sees what lies outside. */
static void check_result(ts_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < ts_ndim(t); d++)
        n *= ts_sizes(t)[d];
    if (ts_ndim(t) > TS_MAX_DIMS || n != ts_numel(t))
        finding("a result whose sizes are wrong");
    static char copy[1 << 16];
    size_t bytes = (size_t)n * ts_dtype_size(ts_dtype_of(t));
    if (ts_device_of(t).backend != TS_KEY_CPU || n <= 0 || n > 4096 || bytes > sizeof copy)
        return;
    TS_NO_GRAD;
    ts_status status = ts_copy_to(t, copy, bytes);
    if (status != TS_OK && status != TS_ERR_MEMORY)
        finding("a result that cannot be read: %s", ts_error_message());
}

static void backward_of(ts_tensor *t)
{
    ts_error_clear();
    ts_tensor *ones = ts_ones_like(t);
    if (!ones)
        return;
    ts_backward_opts opts = {
        .size = sizeof opts, .retain_graph = one_in(2), .create_graph = one_in(4)};
    ts_status status = ts_backward_ex(t, ones, &opts);
    if (status != TS_OK)
        check_failure(status);
    for (int i = 0; i < nmade; i++)
        ts_zero_grad(made[i].t);
}

static int64_t succeeded, failed;

static void end_status(ts_status status)
{
    if (status != TS_OK)
        failed++, check_failure(status);
    else
        succeeded++;
}
static void end_tensor(ts_tensor *t)
{
    if (!t) {
        end_status(ts_error_code() == TS_OK ? TS_ERR_NULL : ts_error_code());
        return;
    }
    succeeded++;
    if (t == TS_NONE || t->keys >> TS_KEY_ABSENT) /* a dead one, handed through */
        return;
    check_result(t);
    if (ts_requires_grad(t) && ts_numel(t) < 4096)
        backward_of(t);
}
static void end_nothing(void)
{
    if (ts_error_code() != TS_OK)
        failed++, check_failure(ts_error_code());
    else
        succeeded++;
}

#include "misuse_calls.inc"

/* ---------------------------------------------------------------------------- boxed calls ---- */

static ts_value draw_value(const ts_param *p)
{
    int tag = below(10);
    uint16_t kinds = p->kinds;
    bool free_choice = one_in(mostly_right ? 100 : 20);
    if (!free_choice && p->optional && one_in(3))
        return say(", %s=none", p->name), ts_value_none();
    for (int k = 0; !free_choice && k < 10 && !(kinds >> tag & 1); k++)
        tag = (tag + 1) % 10;
    switch (tag) {
    case TS_TAG_BOOL: return ts_value_bool(draw_bool(p->name));
    case TS_TAG_INT: return ts_value_int(draw_int64(p->name));
    case TS_TAG_FLOAT: return ts_value_float(draw_double(p->name));
    case TS_TAG_TENSOR: return ts_value_tensor(draw_tensor(p->name));
    case TS_TAG_TENSORS: {
        ts_tensor **list = draw_tensors(p->name);
        int n = list ? below(ENTRIES + 1) : one_in(2) ? (int)odd_number() : 0;
        say(" %d", n);
        return ts_value_tensors(list, n);
    }
    case TS_TAG_INTS: {
        int64_t *list = draw_ints(p->name);
        int n = list ? one_in(2) ? dims : below(NUMBERS) : one_in(2) ? (int)odd_number() : 0;
        say(" %d", n);
        return ts_value_ints(list, n);
    }
    case TS_TAG_DTYPE: return ts_value_dtype(draw_dtype(p->name));
    case TS_TAG_DEVICE: return ts_value_device(draw_device(p->name));
    case TS_TAG_STRING: return ts_value_string(draw_string(p->name));
    default: say(", %s=none", p->name); return ts_value_none();
    }
}

static void boxed(void)
{
    int op = below(ts_op_count());
    const ts_schema *s = &ts_ops[op].schema;
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    for (int i = 0; i < s->nargs; i++)
        args[i] = draw_value(&s->args[i]);
    int given = 0;
    for (int i = 0; i < TS_MAX_RETS; i++) {
        rets[i] = ts_value_none();
        if (i < s->nrets && one_in(5)) {
            rets[i] = ts_value_tensor(draw_tensor("result"));
            given |= (rets[i].t != NULL) << i;
        }
    }
    int id = one_in(200) ? (int)odd_number() : op;
    int nargs = one_in(100) ? below(20) - 2 : s->nargs;
    int nrets = one_in(100) ? below(6) - 2 : s->nrets;
    nargs = nargs > s->nargs ? s->nargs : nargs;
    nrets = nrets > s->nrets ? s->nrets : nrets;
    say(" op %d, %d args, %d rets", id, nargs, nrets);
    begin(ts_op_name(op));
    ts_status status = ts_call_boxed(id, args, nargs, rets, nrets);
    end_status(status);
    for (int i = 0; status == TS_OK && i < nrets; i++)
        if (rets[i].tag == TS_TAG_TENSOR && rets[i].t) {
            if (!(given >> i & 1))
                ts_adopt(rets[i].t);
            end_tensor(rets[i].t);
        }
}

/* --------------------------------------------------------------------------------- a call ---- */

static const char *only; /* the one function that is called */

static void call(int64_t number)
{
    TS_SCOPE;
    call_number = number;
    state = seed * 0x2545f4914f6cdd1du ^ (uint64_t)number * 0x9e3779b97f4a7c15u;
    next();
    nmade = ndying = nrooms = 0;
    used = 0;
    words[0] = 0;
    null_list = false;
    mostly_right = !one_in(3);
    dims = below(5);
    for (int d = 0; d < dims; d++)
        shape[d] = one_in(12) ? 0 : 1 + below(4);
    common = one_in(2) ? TS_F32 : (ts_dtype)below(TS_DTYPE_COUNT);
    count_of_call = dims;
    ts_rng_set_state((ts_rng_state){7, 0});
    snprintf(name, sizeof name, "arguments of a call");
    int which = below(TS_COUNTOF(calls));
    if (only) {
        for (which = 0; which < TS_COUNTOF(calls) && strcmp(calls[which].name, only); which++)
            ;
        if (which == TS_COUNTOF(calls)) {
            fprintf(stderr, "misuse: no function %s\n", only);
            exit(2);
        }
    } else if (one_in(3)) {
        which = -1;
    }
    if (which < 0)
        boxed();
    else
        calls[which].run();
    ts_alloc_fault = NULL;
    ts_error_clear();
}

/* ----------------------------------------------------------------------------------- main ---- */

static const char usage[] =
    "usage: %s [--seed S] [--calls N] [--from K] [--seconds T] [--only FUNCTION] [--keep-going]\n"
    "Calls public functions with drawn arguments and judges what comes back.\n"
    "  --seed S         row of calls (1)\n"
    "  --calls N        how many (100000)\n"
    "  --from K         number of the first (0)\n"
    "  --seconds T      end after T seconds (no end)\n"
    "  --only FUNCTION  call this function alone\n"
    "  --keep-going     print all findings that are no crash\n";

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    int64_t ncalls = 100000, first = 0;
    double most = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--help") == 0)
            return printf(usage, argv[0]) < 0;
        if (strcmp(argv[i], "--keep-going") == 0)
            keep_going = true;
        else if (value && strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[++i], NULL, 10);
        else if (value && strcmp(argv[i], "--calls") == 0)
            ncalls = strtoll(argv[++i], NULL, 10);
        else if (value && strcmp(argv[i], "--from") == 0)
            first = strtoll(argv[++i], NULL, 10);
        else if (value && strcmp(argv[i], "--seconds") == 0)
            most = strtod(argv[++i], NULL);
        else if (value && strcmp(argv[i], "--only") == 0)
            only = argv[++i];
        else
            return fprintf(stderr, usage, argv[0]), 2;
    }
    stream = fopen("/dev/null", "w");
    if (!stream)
        return perror("/dev/null"), 2;
    ts_set_num_threads(1);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_set_death_callback(reported);
    signal(SIGALRM, crashed);
#else
    for (size_t i = 0; i < 6; i++)
        signal((int[]){SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL, SIGALRM}[i], crashed);
    dead_allowed = !ts_alloc_system || ts_scopes_watched;
#endif
    int64_t before = 0, done = 0;
    double started = now(), told = started;
    for (; done < ncalls; done++) {
        alarm(MOST_SECONDS);
        call(first + done);
        if (done % 1024 == 1023 && now() - told > 5) {
            told = now();
            fprintf(stderr, "misuse: %" PRId64 " calls, %" PRId64 " findings, %.0f s\n", done + 1,
                    findings, told - started);
            if (most > 0 && told - started > most)
                break;
        }
        if (done == ncalls / 2)
            before = ts_memory_get_stats().in_use;
    }
    alarm(0);
    int64_t after = ts_memory_get_stats().in_use;
    printf("%" PRId64 " calls of seed %" PRIu64 ": %" PRId64 " succeeded, %" PRId64
           " failed as they should, %" PRId64 " findings; memory in use %" PRId64 " bytes, %" PRId64
           " after half\n", done, seed, succeeded, failed, findings, after, before);
    if (after > before + (1 << 16) && ncalls > 1000) {
        fprintf(stderr, "misuse: memory in use grew\n");
        findings++;
    }
    fclose(stream);
    return findings != 0;
}
