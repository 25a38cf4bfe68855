/** @file loader.c  Reads windows of tokens from a file; a thread prepares batches ahead. */
// SPDX-License-Identifier: MIT
#include "include/tessera/nn/loader.h"
#include "include/tessera/check.h"
#include "include/tessera/profile.h"
#include "include/tessera/program.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/** A prepared batch. */
typedef struct slot {
    int64_t *x, *y; /* (B, T) each, one block */
    ts_loader_state at;
    int failed;     /* why it could not be filled: an errno, or CUT_SHORT */
} slot;

enum { SLOTS = 3, CUT_SHORT = -1 };

struct ts_loader {
    ts_loader_opts opts;
    char *path;
    int fd;
    char *window; /* T + 1 tokens of the file; used by the preparing thread */
    int64_t first, tokens; /* start and length of the range, in tokens */
    int64_t batches;
    ts_loader_state next;  /* state of the batch to return next */
    slot slots[SLOTS];
    /* the thread's side: slots head .. head + filled - 1 are ready */
    pthread_t thread;
    bool threaded;
    pid_t process;         /* process of the thread */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ts_loader_state ahead; /* state of the batch to prepare next */
    int head, filled;
    uint64_t turn;         /* incremented when the state is set: batches in preparation are stale */
    bool stop;
};

/* --------------------------------------------------------------------------- the order ---- */

static uint64_t mix(uint64_t x)
{
    /* Stafford's thirteenth mixer of 64 bits */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/**
 * Element i of a pseudorandom permutation of [0, n): a Feistel network over an even number of bits,
 * repeated until the value is below n (cycle walking). Needs no table, and constant expected time.
 */
static int64_t permute(int64_t i, int64_t n, uint64_t key)
{
    int bits = 2;
    while (bits < 64 && (uint64_t)1 << bits < (uint64_t)n)
        bits += 2;
    int half = bits / 2;
    uint64_t mask = ((uint64_t)1 << half) - 1, x = (uint64_t)i;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (int round = 0; round < 4; round++) {
            uint64_t swap =
                left ^ (mix(right + key + (uint64_t)round * 0x9e3779b97f4a7c15ull) & mask);
            left = right;
            right = swap;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

/** First token of window w of an epoch, from the start of the range. */
static int64_t window(const ts_loader *l, int64_t epoch, int64_t w)
{
    int64_t t = l->opts.length;
    if (l->opts.in_order)
        return w * t;
    uint64_t key = mix(l->opts.seed ^ mix((uint64_t)epoch + 1));
    /* an epoch has one window fewer than fit, so that every offset leaves room for all windows */
    int64_t windows = l->batches * l->opts.batch, spare = l->tokens - 1 - windows * t;
    int64_t offset = (int64_t)(mix(key) % (uint64_t)((spare < t ? spare : t - 1) + 1));
    return offset + permute(w, windows, key) * t;
}

/* -------------------------------------------------------------------------- preparation ---- */

static int64_t item_size(ts_dtype dtype) { return (int64_t)ts_dtype_size(dtype); }

/** Token k of the window. */
static int64_t token(const ts_loader *l, int64_t k)
{
    int32_t narrow;
    int64_t wide;
    switch (l->opts.dtype) {
    case TS_U8: return (unsigned char)l->window[k];
    case TS_I32: memcpy(&narrow, l->window + 4 * k, 4); return narrow;
    default: memcpy(&wide, l->window + 8 * k, 8); return wide;
    }
}

/**
 * Reads T + 1 tokens of the file from token `from` on; returns 0, an errno or CUT_SHORT. The file
 * is not mapped, because another process may truncate it, and an access to a mapping beyond the end
 * of the file raises SIGBUS.
 */
static int read_window(const ts_loader *l, int64_t from)
{
    int64_t item = item_size(l->opts.dtype), bytes = (l->opts.length + 1) * item, done = 0;
    while (done < bytes) {
        ssize_t n =
            pread(l->fd, l->window + done, (size_t)(bytes - done), (off_t)(from * item + done));
        if (n == 0)
            return CUT_SHORT;
        if (n < 0 && errno != EINTR)
            return errno;
        done += n > 0 ? n : 0;
    }
    return 0;
}

static void prepare(const ts_loader *l, slot *s, ts_loader_state at)
{
    int64_t b = l->opts.batch, t = l->opts.length;
    s->at = at;
    s->failed = 0;
    for (int64_t i = 0; i < b && !s->failed; i++) {
        int64_t *x = s->x + i * t, *y = s->y + i * t;
        s->failed = read_window(l, l->first + window(l, at.epoch, at.index * b + i));
        for (int64_t k = 0; k < t && !s->failed; k++) {
            x[k] = token(l, k);
            y[k] = token(l, k + 1);
        }
    }
}

static ts_loader_state after(const ts_loader *l, ts_loader_state s)
{
    s.index++;
    if (s.index >= l->batches)
        s = (ts_loader_state){s.epoch + 1, 0};
    return s;
}

static void *work(void *arg)
{
    ts_loader *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (l->filled == SLOTS - 1) { /* the caller may be reading the last slot */
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        slot *s = &l->slots[(l->head + l->filled) % SLOTS];
        ts_loader_state at = l->ahead;
        uint64_t turn = l->turn;
        pthread_mutex_unlock(&l->lock);
        prepare(l, s, at);
        pthread_mutex_lock(&l->lock);
        if (turn == l->turn) {
            l->filled++;
            l->ahead = after(l, at);
            pthread_cond_broadcast(&l->changed);
        }
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ------------------------------------------------------------------------ open and close ---- */

static ts_status check(const ts_loader_opts *o)
{
    int64_t tokens, bytes;
    if (__builtin_mul_overflow(o->batch, o->length, &tokens) ||
        __builtin_mul_overflow(tokens, (int64_t)(2 * sizeof(int64_t)), &bytes))
        return ts_error_set(TS_ERR_VALUE,
                            "loader_open: a batch of %lld x %lld tokens does not fit 63 bits",
                            (long long)o->batch, (long long)o->length);
    if (o->dtype != TS_U8 && o->dtype != TS_I32 && o->dtype != TS_I64)
        return ts_error_set(TS_ERR_DTYPE,
                            "loader_open: argument 'dtype': expected u8, i32 or i64, got %s",
                            ts_dtype_name(o->dtype));
    return TS_OK;
}

/** The number of tokens in the first `fraction` of `all`. A fraction of 1 gives exactly `all`, also
 *  if a double cannot represent it. */
static int64_t part(int64_t all, double fraction)
{
    return fraction >= 1 ? all : (int64_t)((double)all * fraction);
}

static ts_status open_file(ts_loader *l)
{
    struct stat info;
    TS_TRY(ts_open_file("loader", l->path, O_RDONLY, &l->fd));
    if (fstat(l->fd, &info) != 0)
        return ts_error_set(TS_ERR_IO, "loader: cannot examine '%s': %s", l->path, strerror(errno));
    int64_t all = info.st_size / item_size(l->opts.dtype);
    l->first = part(all, l->opts.from);
    l->tokens = part(all, l->opts.to == 0 ? 1 : l->opts.to) - l->first;
    int64_t windows = (l->tokens - 1) / l->opts.length;
    if (!l->opts.in_order && windows > l->opts.batch)
        windows--;
    l->batches = l->tokens > 0 ? windows / l->opts.batch : 0;
    if (l->batches < 1)
        return ts_error_set_hint(
            TS_ERR_SHAPE, "use a larger file, a smaller batch or shorter sequences",
            "loader: '%s' has %lld tokens in the range; a batch of %lld x %lld needs %lld", l->path,
            (long long)l->tokens, (long long)l->opts.batch, (long long)l->opts.length,
            (long long)(l->opts.batch * l->opts.length + 1));
    return TS_OK;
}

static ts_status make_slots(ts_loader *l)
{
    size_t elements = (size_t)l->opts.batch * (size_t)l->opts.length,
           bytes = 2 * elements * sizeof(int64_t);
    for (int i = 0; i < SLOTS; i++) {
        if (!(l->slots[i].x = malloc(bytes)))
            return ts_error_memory("a batch", (int64_t)bytes);
        l->slots[i].y = l->slots[i].x + elements;
    }
    bytes = ((size_t)l->opts.length + 1) * (size_t)item_size(l->opts.dtype);
    if (!(l->window = malloc(bytes)))
        return ts_error_memory("a sequence", (int64_t)bytes);
    return TS_OK;
}

/** Starts the thread. If it cannot start, batches are prepared in the caller's thread. */
static void start(ts_loader *l)
{
    if (l->opts.no_thread)
        return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    l->process = getpid();
    l->threaded = pthread_create(&l->thread, NULL, work, l) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/** Initialises lock and condition. Waits use the monotonic clock, which does not jump when the
 *  system time is set. */
static void make_lock(ts_loader *l)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/** A forked child has no such thread, and the thread may have held the lock. A child therefore
 * prepares batches in the caller's thread. */
static void detach_after_fork(ts_loader *l)
{
    if (!l->threaded || l->process == getpid())
        return;
    l->threaded = false;
    make_lock(l);
}

ts_loader *ts_loader_open(const char *path, const ts_loader_opts *opts)
{
    ts_loader_opts o;
    TS_TRY_NULL(TS_CHECK_POINTERS(path, opts));
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    TS_TRY_NULL(TS_CHECK_VALUE(o.batch, o.batch >= 1, "at least 1"));
    TS_TRY_NULL(TS_CHECK_VALUE(o.length, o.length >= 1, "at least 1"));
    TS_TRY_NULL(TS_CHECK_VALUE(o.from, o.from >= 0 && o.from <= o.to, "0 to opts.to"));
    TS_TRY_NULL(TS_CHECK_VALUE(o.to, o.to <= 1, "at most 1"));
    TS_TRY_NULL(check(&o));
    ts_loader *l = calloc(1, sizeof *l);
    char *copy = l ? malloc(strlen(path) + 1) : NULL;
    if (!copy) {
        free(l);
        ts_error_memory("a loader", sizeof *l);
        return NULL;
    }
    l->opts = o;
    l->path = strcpy(copy, path);
    l->fd = -1;
    make_lock(l);
    if (open_file(l) != TS_OK || make_slots(l) != TS_OK) {
        ts_loader_close(l);
        return NULL;
    }
    start(l);
    return l;
}

void ts_loader_close(ts_loader *l)
{
    if (!l)
        return;
    detach_after_fork(l);
    if (l->threaded) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    for (int i = 0; i < SLOTS; i++)
        free(l->slots[i].x);
    free(l->window);
    if (l->fd >= 0)
        close(l->fd);
    free(l->path);
    free(l);
}

/* -------------------------------------------------------------------------------- batches ---- */

static ts_status deliver(const ts_loader *l, const slot *s, ts_batch *batch)
{
    if (s->failed > 0)
        return ts_error_set(TS_ERR_IO, "loader: cannot read '%s': %s", l->path,
                            strerror(s->failed));
    if (s->failed)
        return ts_error_set(TS_ERR_IO, "loader: '%s' has become shorter since it was opened",
                            l->path);
    int64_t sizes[2] = {l->opts.batch, l->opts.length};
    ts_tensor *x = ts_from_array(s->x, TS_I64, sizes, 2),
              *y = ts_from_array(s->y, TS_I64, sizes, 2);
    TS_TRY(x);
    TS_TRY(y);
    *batch = (ts_batch){x, y, s->at.epoch, s->at.index};
    return TS_OK;
}

/** Waits for a prepared batch. False if the program was interrupted and the file read has not
 *  returned in time. */
static bool wait_for_batch(ts_loader *l)
{
    enum { TENTHS = 5 };
    int stopped = 0;
    while (!l->filled && !l->opts.stop)
        pthread_cond_wait(&l->changed, &l->lock);
    for (; !l->filled && stopped < TENTHS; stopped += *l->opts.stop != 0) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 100000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&l->changed, &l->lock, &until);
    }
    return l->filled > 0;
}

ts_status ts_loader_next(ts_loader *loader, ts_batch *batch)
{
    TS_TRY(TS_CHECK_OBJECTS(loader));
    TS_TRY(TS_CHECK_POINTERS(batch));
    TS_PROF_SCOPE("data");
    ts_loader *l = loader;
    slot *s;
    detach_after_fork(l);
    if (l->threaded) {
        pthread_mutex_lock(&l->lock);
        if (!wait_for_batch(l)) {
            pthread_mutex_unlock(&l->lock);
            return ts_error_set(TS_ERR_STATE, "loader: interrupted while waiting for '%s'",
                                l->path);
        }
        s = &l->slots[l->head];
        l->head = (l->head + 1) % SLOTS;
        l->filled--;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
    } else {
        s = &l->slots[0];
        prepare(l, s, l->next);
    }
    ts_status status = deliver(l, s, batch);
    if (status == TS_OK)
        l->next = after(l, l->next);
    else
        ts_loader_set_state(l, l->next); /* the batch is not lost: the next call tries it again */
    return status;
}

int64_t ts_loader_batches(const ts_loader *l) { return l ? l->batches : 0; }
int64_t ts_loader_tokens(const ts_loader *l) { return l ? l->tokens : 0; }
ts_loader_state ts_loader_get_state(const ts_loader *l)
{
    return l ? l->next : (ts_loader_state){0, 0};
}

ts_status ts_loader_set_state(ts_loader *loader, ts_loader_state state)
{
    TS_TRY(TS_CHECK_OBJECTS(loader));
    ts_loader *l = loader;
    if (state.epoch < 0 || state.index < 0 || state.index >= l->batches)
        return ts_error_set(
            TS_ERR_VALUE,
            "loader_set_state: expected an epoch >= 0 and a batch below %lld, got %lld and %lld",
            (long long)l->batches, (long long)state.epoch, (long long)state.index);
    detach_after_fork(l);
    pthread_mutex_lock(&l->lock);
    l->next = l->ahead = state;
    l->filled = 0;
    l->turn++;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return TS_OK;
}
