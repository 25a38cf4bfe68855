/** @file fault.c  A malloc() that fails on demand, and a sweep that lets each allocation of a body
 * fail once. */
// SPDX-License-Identifier: MIT
#include "tests/faults/fault.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/testing.h"

struct fault_try {
    const char *name;
    uint64_t digest;
    bool good;
    int watched;
    struct {
        const ts_tensor *t;
        void *bytes;
        size_t size;
        uint32_t version;
        ts_keyset keys;
        bool grad, leaf, written;
    } watch[16];
};

/* The fault of the running attempt. */
static struct {
    int at; /* 0: none */
    bool forever, met;
    long count;
} plan;
static _Thread_local bool armed __attribute__((tls_model("initial-exec")));

/* OpenBLAS's small AVX-512 kernels use the result of malloc without a check. */
static bool is_cblas(const void *caller)
{
    Dl_info where;
    if (!caller || !dladdr(caller, &where) || !where.dli_fname)
        return false;
    const char *slash = strrchr(where.dli_fname, '/'), *name = slash ? slash + 1 : where.dli_fname;
    return strncmp(name, "libopenblas", 11) == 0;
}

static bool refuses(const void *caller)
{
    if (!armed || is_cblas(caller))
        return false;
    plan.count++;
    bool fails = plan.at && (plan.count == plan.at || (plan.forever && plan.count > plan.at));
    if (fails) {
        plan.met = true;
        errno = ENOMEM;
    }
    return fails;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)

static bool hook(size_t bytes)
{
    (void)bytes;
    return refuses(NULL);
}
static void install(void) { ts_alloc_fault = hook; }
static long blocks(void) { return (long)ts_memory_get_stats().in_use; }

#else

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
void __libc_free(void *block);

static atomic_long live; /* number of allocated blocks */

static void *counted(void *block)
{
    if (block)
        atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return block;
}

#define REFUSES refuses(__builtin_return_address(0))
void *malloc(size_t bytes) { return REFUSES ? NULL : counted(__libc_malloc(bytes)); }
void *calloc(size_t n, size_t bytes) { return REFUSES ? NULL : counted(__libc_calloc(n, bytes)); }
void *memalign(size_t align, size_t bytes)
{
    return REFUSES ? NULL : counted(__libc_memalign(align, bytes));
}
void *aligned_alloc(size_t align, size_t bytes) { return memalign(align, bytes); }
int posix_memalign(void **out, size_t align, size_t bytes)
{
    void *block = memalign(align, bytes);
    if (block)
        *out = block;
    return block ? 0 : ENOMEM;
}
void free(void *block)
{
    if (block)
        atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    __libc_free(block);
}
void *realloc(void *block, size_t bytes)
{
    if (!block)
        return malloc(bytes);
    if (bytes == 0) {
        free(block);
        return NULL;
    }
    return REFUSES ? NULL : __libc_realloc(block, bytes);
}

static void install(void) {}
static long blocks(void) { return atomic_load(&live); }

#endif

/* Runs after the library chooses its allocator (priority 101) and before its first allocation. From
 * then on every block comes from malloc(). */
__attribute__((constructor(102))) static void every_block_from_malloc(void)
{
    ts_alloc_system = true;
}

/* -------------------------------------------------------------------------- attempts ---- */

void fault_begin(fault_try *f)
{
    (void)f;
    ts_error_clear();
    armed = true;
}
void fault_end(fault_try *f)
{
    (void)f;
    armed = false;
}
long fault_allocations(void) { return plan.count; }
bool fault_whole(void)
{
    const char *wanted = getenv("TS_FAULTS");
    return wanted && strcmp(wanted, "all") == 0;
}

void fault_wrong(fault_try *f, const char *format, ...)
{
    static int complaints;
    f->good = false;
    if (++complaints > 20)
        return;
    printf("%s, allocation %d%s: ", f->name, plan.at, plan.forever ? " and all that follow" : "");
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

void fault_watch(fault_try *f, const ts_tensor *t)
{
    ck_assert_int_lt(f->watched, TS_COUNTOF(f->watch));
    size_t size = (size_t)ts_numel(t) * ts_dtype_size(ts_dtype_of(t));
    void *bytes = malloc(size + 1);
    ck_assert_ptr_nonnull(bytes);
    if (size)
        ck_assert_int_eq(ts_copy_to((ts_tensor *)t, bytes, size), TS_OK);
    f->watch[f->watched].t = t;
    f->watch[f->watched].bytes = bytes;
    f->watch[f->watched].size = size;
    f->watch[f->watched].version = ts_version(t);
    f->watch[f->watched].keys = ts_keys_of(t);
    f->watch[f->watched].grad = ts_requires_grad(t);
    f->watch[f->watched].written = false;
    f->watch[f->watched++].leaf = ts_is_leaf(t);
}

void fault_watch_written(fault_try *f, const ts_tensor *t)
{
    fault_watch(f, t);
    f->watch[f->watched - 1].written = true;
}

void fault_unwatch(fault_try *f)
{
    while (f->watched)
        free(f->watch[--f->watched].bytes);
}

void fault_unwatch_one(fault_try *f, const ts_tensor *t)
{
    for (int i = 0; i < f->watched; i++)
        if (f->watch[i].t == t) {
            free(f->watch[i].bytes);
            f->watch[i] = f->watch[--f->watched];
            return;
        }
}

static void check_watched(fault_try *f, const char *text)
{
    for (int i = 0; i < f->watched; i++) {
        const ts_tensor *t = f->watch[i].t;
        size_t size = f->watch[i].size;
        char *now = malloc(size + 1);
        if (ts_version(t) != f->watch[i].version && !f->watch[i].written)
            fault_wrong(f, "%s: the version of watched tensor %d went from %u to %u", text, i,
                        f->watch[i].version, ts_version(t));
        else if (ts_keys_of(t) != f->watch[i].keys || ts_requires_grad(t) != f->watch[i].grad ||
                 ts_is_leaf(t) != f->watch[i].leaf)
            fault_wrong(f, "%s: the history of watched tensor %d changed", text, i);
        else if (size && (ts_copy_to((ts_tensor *)t, now, size) != TS_OK ||
                          memcmp(now, f->watch[i].bytes, size) != 0))
            fault_wrong(f, "%s: watched tensor %d was written", text, i);
        free(now);
    }
}

bool fault_judge(fault_try *f, const char *text, ts_status status)
{
    if (!plan.met) {
        fault_wrong(f, "%s fails by itself: %s", text, ts_error_message());
        return false;
    }
    if (status != TS_ERR_MEMORY || ts_error_code() != TS_ERR_MEMORY)
        fault_wrong(f, "%s: expected TS_ERR_MEMORY, got %s, recorded %s: %s", text,
                    ts_status_name(status), ts_status_name(ts_error_code()), ts_error_message());
    else if (!strstr(ts_error_message(), "memory"))
        fault_wrong(f, "%s: the message does not say what happened: %s", text, ts_error_message());
    check_watched(f, text);
    ts_error_clear();
    return true;
}

void fault_repeated(fault_try *f, const char *text, ts_status status)
{
    if (status != TS_OK && f->good)
        fault_wrong(f, "%s, repeated: %s", text, ts_error_message());
}

void fault_see_bytes(fault_try *f, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++)
        f->digest = (f->digest ^ p[i]) * 0x100000001b3u; /* FNV-1a */
}

void fault_see_number(fault_try *f, double x) { fault_see_bytes(f, &x, sizeof x); }

void fault_see(fault_try *f, ts_tensor *t)
{
    if (!t) {
        if (f->good)
            fault_wrong(f, "a result is missing");
        return;
    }
    if (t == TS_NONE) {
        fault_see_number(f, -1);
        return;
    }
    size_t size = (size_t)ts_numel(t) * ts_dtype_size(ts_dtype_of(t));
    fault_see_number(f, ts_dtype_of(t));
    fault_see_bytes(f, ts_sizes(t), (size_t)ts_ndim(t) * sizeof(int64_t));
    if (!size || ts_device_of(t).backend != TS_KEY_CPU)
        return;
    char *bytes = malloc(size);
    ck_assert_ptr_nonnull(bytes);
    if (ts_copy_to(t, bytes, size) != TS_OK)
        fault_wrong(f, "a result cannot be read: %s", ts_error_message());
    fault_see_bytes(f, bytes, size);
    free(bytes);
}

/* ---------------------------------------------------------------------------- sweeps ---- */

static atomic_long *points; /* shared by the forked cases */

__attribute__((constructor)) static void share_points(void)
{
    points = mmap(NULL, sizeof *points, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (points == MAP_FAILED)
        abort();
}

long fault_points(void) { return atomic_load(points); }

/** Result of an attempt. */
typedef struct outcome {
    bool met, good;
    uint64_t digest;
    long left; /* number of blocks that were not freed */
} outcome;

static outcome attempt_here(const char *name, fault_body body, void *ctx, int at, bool forever)
{
    fault_try f = {.name = name, .digest = 0xcbf29ce484222325u, .good = true};
    long before = blocks();
    plan.at = at;
    plan.forever = forever;
    plan.met = false;
    plan.count = 0;
    body(&f, ctx);
    fault_unwatch(&f);
    armed = false;
    return (outcome){plan.met, f.good, f.digest, blocks() - before};
}

static outcome attempt_apart(const char *name, fault_body body, void *ctx, int at, bool forever)
{
    outcome *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        *shared = attempt_here(name, body, ctx, at, forever);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        printf("%s, allocation %d%s: the process ended with status %d\n", name, at,
               forever ? " and all that follow" : "", status);
        *shared = (outcome){.met = at > 0};
    }
    outcome o = *shared;
    munmap(shared, sizeof *shared);
    return o;
}

/** Reports an attempt with a fault whose results or remaining blocks differ from those without a
 *  fault. Returns false if it did. */
static bool as_without(const char *name, outcome o, outcome without, unsigned flags)
{
    fault_try f = {.name = name, .good = o.good};
    if (f.good && o.digest != without.digest)
        fault_wrong(&f, "the call after the failed one gave other results");
    /* a registration that is rolled back keeps its block and schema, as a removed one does */
    if (f.good && (flags & FAULT_KEEPS ? o.left > without.left + 4 : o.left != 0))
        fault_wrong(&f, "%ld blocks were lost", o.left - without.left);
    return f.good;
}

long fault_sweep(const char *name, fault_body body, void *ctx, unsigned flags)
{
    outcome (*attempt)(const char *, fault_body, void *, int, bool) =
        flags & FAULT_FRESH ? attempt_apart : attempt_here;
    outcome o, without;
    long done = 0;
    install();
    attempt(name, body, ctx, 0, false); /* fills caches that stay */
    attempt(name, body, ctx, 0, false);
    without = attempt(name, body, ctx, 0, false);
    if (without.good && without.left && !(flags & FAULT_KEEPS)) {
        printf("%s: without a fault it leaves %ld blocks behind\n", name, without.left);
        without.good = false;
    }
    if (!without.good) {
        ts_tally_as(TS_COUNT_FAULT_POINTS, 0, 1, 0);
        return 0;
    }
    for (int forever = 0; forever < 2; forever++)
        for (int at = 1; (o = attempt(name, body, ctx, at, forever)).met;
             at += flags & FAULT_SPARSE ? 1 + at / 8 : 1) {
            bool good = as_without(name, o, without, flags);
            ts_tally_as(TS_COUNT_FAULT_POINTS, good, !good, 0);
            done++;
        }
    atomic_fetch_add(points, done);
    return done;
}
