/**
 * @file calibrate.c  Ceilings of this machine, measured once and stored in a file.
 *
 * A ceiling is the best of several runs with as many threads as ops use. The memory bandwidth is
 * that of memcpy() or of memcmp(), which only reads, whichever is higher. The ceiling of matrix
 * products is the rate of the library's own kernel; other ceilings use no kernel of the library.
 */
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/files.h"
#include "core/parallel.h"
#include "core/testing.h"
#include "dispatch/timers.h"
#include "include/tessera/check.h"
#include "include/tessera/ops.h"
#include "include/tessera/program.h"
#include "profile/profile.h"

double ts_measure_time = 1;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double smaller(double a, double b) { return a < b ? a : b; }
static double larger(double a, double b) { return a > b ? a : b; }

static ts_tensor *halves(const int64_t *sizes, int ndim, ts_dtype dtype)
{
    return ts_fill_(ts_empty_on(sizes, ndim, dtype, TS_DEVICE_CPU), 0.5);
}

/* ------------------------------------------------------------------------------ compute ---- */

/* Eight independent chains of a multiplication and an addition each, which are not fused. */
#define CHAINS(name, bytes, attribute)                                                             \
    typedef float name##_vector __attribute__((vector_size(bytes)));                               \
    attribute static float name(int64_t rounds)                                                    \
    {                                                                                              \
        name##_vector a = {0}, b = a + 1, c = a + 2, d = a + 3, e = a + 4, f = a + 5, g = a + 6,   \
                      h = a + 7, by = a + 0.999f, more = a + 1e-3f;                                \
        for (int64_t i = 0; i < rounds; i++) {                                                     \
            a = a * by + more, b = b * by + more, c = c * by + more, d = d * by + more;            \
            e = e * by + more, f = f * by + more, g = g * by + more, h = h * by + more;            \
            __asm__ volatile("" ::: "memory");                                                     \
        }                                                                                          \
        a += b + c + d + e + f + g + h;                                                            \
        return a[0];                                                                               \
    }
CHAINS(chains_16, 16, )
#if TS_WIDE_VARIANTS
CHAINS(chains_32, 32, __attribute__((target("avx2"))))
CHAINS(chains_64, 64, __attribute__((target("avx512f"))))
#endif

typedef struct vector_work {
    float (*chains)(int64_t rounds);
    int64_t rounds;
    volatile float sink;
} vector_work;

static void run_chains(void *ctx, int64_t begin, int64_t end)
{
    vector_work *w = ctx;
    for (int64_t i = begin; i < end; i++)
        if (w->chains(w->rounds) < 0) /* never; keeps the loop */
            w->sink = 1;
}

static double measure_vectors(int threads)
{
    enum { ROUNDS = 200000, RUNS = 40 };
    vector_work w = {chains_16, ROUNDS, 0};
    double lanes = 4, best = 1e30;
#if TS_WIDE_VARIANTS
    if (__builtin_cpu_supports("avx2"))
        w.chains = chains_32, lanes = 8;
    if (__builtin_cpu_supports("avx512f"))
        w.chains = chains_64, lanes = 16;
#endif
    for (int run = 0; run < RUNS; run++) {
        double begin = now();
        ts_parallel_for(threads, 1, run_chains, &w);
        best = smaller(best, now() - begin);
    }
    return 16 * lanes * ROUNDS * threads / best;
}

/** Sets *rate to the best rate, in FLOP/s, of many short products: on a loaded machine some of them
 *  run undisturbed. */
static ts_status measure_products(ts_dtype dtype, double *rate)
{
    enum { LEAST = 512, MOST = 4096 };
    TS_SCOPE;
    PLAIN_CALLS;
    *rate = 0;
    double took = 0;
    for (int64_t n = LEAST; n <= MOST && took < 2e-3; n *= 2) {
        ts_tensor *a = halves(TS_SIZES(n, n), dtype), *out = halves(TS_SIZES(n, n), dtype);
        TS_TRY(ts_mm_out(out, a, a));
        double begin = now();
        took = 1e30;
        double most = dtype == TS_F32 ? ts_measure_time : ts_measure_time / 4; /* seconds */
        for (int run = 0; run < 300 && now() - begin < most; run++) {
            double before = now();
            TS_TRY(ts_mm_out(out, a, a));
            took = smaller(took, now() - before);
        }
        *rate = larger(*rate, 2.0 * (double)n * (double)n * (double)n / took);
    }
    return TS_OK;
}

/* ------------------------------------------------------------------------------- memory ---- */

typedef struct memory_work {
    char *from, *to;
    int64_t at, bytes, repeats; /* piece of each buffer: offset and size; passes over the piece */
    int threads;
    bool copy;
    volatile int sink;
} memory_work;

static void run_memory(void *ctx, int64_t begin, int64_t end)
{
    memory_work *w = ctx;
    for (int64_t part = begin; part < end; part++) {
        size_t size = (size_t)(w->bytes / w->threads), at = (size_t)w->at + (size_t)part * size;
        for (int64_t i = 0; i < w->repeats; i++) {
            if (w->copy)
                memcpy(w->to + at, w->from + at, size);
            else if (memcmp(w->to + at, w->from + at, size) != 0)
                w->sink = 1;
            __asm__ volatile("" ::: "memory");
        }
    }
}

/** Bytes per second of reads and writes of `bytes`, half in each buffer. Large buffers are
 *  processed in pieces, repeatedly, and the fastest piece counts: when a piece is repeated, the
 *  other pieces have evicted it from the caches. */
static double measure_bandwidth(memory_work *w, double bytes)
{
    enum { PIECE = 4 << 20 };
    double best = 0;
    int64_t half = (int64_t)bytes / 2;
    w->bytes = half < PIECE ? half : PIECE;
    for (int copy = 1; copy >= 0; copy--) {
        w->copy = copy;
        w->at = 0;
        w->repeats = 1;
        while (half <= PIECE && w->repeats < 1 << 20) { /* a loop long enough to be timed */
            double begin = now();
            ts_parallel_for(w->threads, 1, run_memory, w);
            if (now() - begin > 2e-4)
                break;
            w->repeats *= 2;
        }
        double begin = now();
        for (int run = 0; run < 2000 && now() - begin < 0.2 * ts_measure_time; run++) {
            double before = now();
            ts_parallel_for(w->threads, 1, run_memory, w);
            double rate = 2 * (double)(w->bytes * w->repeats) / (now() - before);
            /* the first runs over large buffers do not count */
            if (half <= PIECE || now() - begin > 0.02 * ts_measure_time)
                best = larger(best, rate);
            w->at = w->at + 2 * w->bytes <= half ? w->at + w->bytes : 0;
        }
    }
    return best;
}

static ts_status measure_memory(ts_prof_machine *m)
{
    double most = 32768 * (double)(1 << 2 * (TS_PROF_CURVE - 1));
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    while (pages > 0 && most > 1 << 20 && most > 0.125 * (double)pages * (double)page)
        most /= 4;
    char *block = ts_sys_alloc((size_t)most);
    while (!block && most > 1 << 20)
        block = ts_sys_alloc((size_t)(most /= 4));
    if (!block)
        return ts_error_memory("a measurement of bandwidth", (int64_t)most);
    memset(block, 1, (size_t)most);
    for (int i = 0; i < TS_PROF_CURVE; i++) {
        m->bytes_at[i] = 32768 * (double)(1 << 2 * i);
        memory_work w = {.from = block,
                         .to = block + (size_t)smaller(most, m->bytes_at[i]) / 2,
                         .threads = m->threads};
        m->bandwidth[i] = m->bytes_at[i] <= most ? measure_bandwidth(&w, m->bytes_at[i])
                                                 : m->bandwidth[i - 1];
    }
    ts_sys_free(block);
    return TS_OK;
}

double ts_machine_bandwidth(const ts_prof_machine *m, double bytes)
{
    int i = TS_PROF_CURVE - 1;
    while (bytes > 0 && i > 0 && bytes < m->bytes_at[i])
        i--;
    double best = 0; /* a cache is at least as fast as the next level */
    for (; i < TS_PROF_CURVE; i++)
        best = larger(best, m->bandwidth[i]);
    return bytes > 0 ? best : m->bandwidth[TS_PROF_CURVE - 1];
}

/* -------------------------------------------------------------------------------- calls ---- */

/** Least ns of a call of one element, over short batches. */
static double time_calls(ts_tensor *out, ts_tensor *one)
{
    enum { CALLS = 100, BATCHES = 60 };
    double best = 1e30;
    for (int batch = 0; batch < BATCHES; batch++) {
        double begin = now();
        for (int i = 0; i < CALLS; i++)
            ts_add_out(out, one, one);
        best = smaller(best, (now() - begin) * 1e9 / CALLS);
    }
    return best;
}

static ts_prof_machine calls; /* result of ts_prof_measure_calls(): only fields that end in _ns */

ts_status ts_prof_measure_calls(bool trace)
{
    ts_prof_machine *m = &calls;
    TS_SCOPE;
    PLAIN_CALLS;
    /* two dims, as most calls have: the hash of a call takes time for each */
    ts_tensor *one = halves(TS_SIZES(1, 1), TS_F32), *out = halves(TS_SIZES(1, 1), TS_F32);
    TS_TRY(out);
    bool timed = ts_timers_enabled();
    double plain = time_calls(out, one);
    TS_TRY(ts_timers_record(true));
    m->stamp_ns = ts_timers_stamp_ns();
    ts_timers_record_cost(0, 0);
    double recorded = time_calls(out, one);
    ts_timer_cell inside = ts_timers_get("add", "CPU");
    TS_TRY(ts_timers_record(false));
    ts_timers_reset();
    m->record_ns = larger(0, recorded - plain - (timed ? 0 : 2 * m->stamp_ns));
    double traced = recorded;
    if (trace) {
        ts_timers_record_as(&(ts_recording){.trace = true});
        TS_TRY(ts_timers_record(true));
        time_calls(out, one);
        ts_timers_reset(); /* the same events again, whose memory now exists */
        traced = time_calls(out, one);
        TS_TRY(ts_timers_record(false));
        ts_timers_reset();
        ts_timers_record_as(&(ts_recording){0});
    }
    ts_timers_record_cost(m->record_ns, larger(0, traced - recorded));
    /* the mean may include disturbed runs; the inner time cannot exceed that of the whole call */
    m->call_ns = inside.calls ? smaller(plain, inside.self_ns / (double)inside.calls) : plain;
    m->entry_ns = plain - m->call_ns;
    return TS_OK;
}

/* ------------------------------------------------------------------------------ the file ---- */

static void name_processor(char *name, size_t size)
{
    snprintf(name, size, "unknown processor");
    int fd;
    char text[4096];
    if (ts_open_file("prof_calibrate", "/proc/cpuinfo", O_RDONLY, &fd) != TS_OK) {
        ts_error_clear();
        return;
    }
    ssize_t n = ts_files.pread(fd, text, sizeof text - 1, 0);
    ts_file_close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *model = strstr(text, "model name");
    const char *value = model ? strchr(model, ':') : NULL;
    if (value)
        snprintf(name, size, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
}

/** Returns the path of the file for `identity` and sets *folder to its folder; ts_sys_free() frees
 *  both. NULL without a home folder or memory. */
static char *cache_path(const char *identity, int threads, char **folder)
{
    char host[256] = "";
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    gethostname(host, sizeof host - 1);
    bool own = cache && cache[0] == '/';
    if (!own && !(home && home[0] == '/'))
        return NULL;
    *folder = ts_path("%s%s/tessera", own ? cache : home, own ? "" : "/.cache");
    uint64_t hash = ts_hash_string(ts_hash_string(0, host), identity);
    char *path = *folder ? ts_path("%s/machine-%016llx-%d.txt", *folder, (unsigned long long)hash,
                                   threads)
                         : NULL;
    if (!path) {
        ts_sys_free(*folder);
        *folder = NULL;
    }
    return path;
}

#define FILE_FORMAT "tessera-machine 5\n"

/** The content of a machine's file. */
typedef struct kept_machine {
    ts_prof_machine is;
    double preempted; /* share of the measurement's time in which the system ran other threads */
} kept_machine;

/** Parses a text that print_machine() wrote; false for other content. */
static bool parse_machine(const char *text, kept_machine *kept)
{
    ts_prof_machine *m = &kept->is;
    enum { SINGLE = 8, ALWAYS = 3 }; /* numbers before the curve; those that are never 0 */
    TS_C_LOCALE;
    double all[SINGLE + 2 * TS_PROF_CURVE];
    if (strncmp(text, FILE_FORMAT, sizeof FILE_FORMAT - 1) != 0)
        return false;
    text += sizeof FILE_FORMAT - 1;
    for (int i = 0; i < TS_COUNTOF(all); i++) {
        char *end;
        all[i] = strtod(text, &end);
        if (end == text || *end != '\n' || !(all[i] >= 0 && all[i] < 1e30) ||
            (all[i] == 0 && (i < ALWAYS || i >= SINGLE)))
            return false;
        text = end + 1;
    }
    if (*text)
        return false;
    m->gemm_flops = all[0];
    m->vector_flops = all[1];
    m->measured_at = all[2];
    m->half_flops = all[3];
    m->double_flops = all[4];
    m->kernel_ns = all[5];
    m->call_ns = all[6];
    kept->preempted = all[7];
    memcpy(m->bytes_at, all + SINGLE, sizeof m->bytes_at);
    memcpy(m->bandwidth, all + SINGLE + TS_PROF_CURVE, sizeof m->bandwidth);
    return true;
}

static ts_status print_machine(FILE *out, void *ctx)
{
    const kept_machine *kept = ctx;
    const ts_prof_machine *m = &kept->is;
    TS_C_LOCALE;
    fprintf(out, FILE_FORMAT "%.6g\n%.6g\n%.0f\n%.6g\n%.6g\n%.6g\n%.6g\n%.3f\n",
            m->gemm_flops, m->vector_flops, m->measured_at, m->half_flops, m->double_flops,
            m->kernel_ns, m->call_ns, kept->preempted);
    for (int i = 0; i < TS_PROF_CURVE; i++)
        fprintf(out, "%.0f\n", m->bytes_at[i]);
    for (int i = 0; i < TS_PROF_CURVE; i++)
        fprintf(out, "%.6g\n", m->bandwidth[i]);
    return TS_OK;
}

/** Reads a machine's file into *m. False if the file is missing or invalid, or if another user
 *  owns it or may write it. */
static bool read_machine(const char *path, kept_machine *m)
{
    int fd;
    struct stat status;
    char text[4096];
    if (ts_open_file("prof_calibrate", path, O_RDONLY | O_NOFOLLOW, &fd) != TS_OK) {
        ts_error_clear();
        return false;
    }
    bool good = ts_files.fstat(fd, &status) == 0 && status.st_uid == geteuid() &&
                !(status.st_mode & (S_IWGRP | S_IWOTH));
    ssize_t n = good ? ts_files.pread(fd, text, sizeof text - 1, 0) : -1;
    ts_file_close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0 && parse_machine(text, m);
}

/** Writes *m to the file and makes its folder. A failure is only logged: the next profile measures
 *  again. */
static void keep_machine(const char *folder, const char *path, kept_machine *m)
{
    char *parent = ts_folder_of(folder);
    if (parent) {
        ts_files.mkdir(parent, 0700); /* an existing folder is fine; other failures show below */
        ts_files.mkdir(folder, 0700);
        mode_t mask = umask(0077);
        if (ts_replace_file("prof_calibrate", path, print_machine, m) != TS_OK)
            ts_log_write("profile", "%s", ts_error_message());
        umask(mask);
    }
    ts_sys_free(parent);
    ts_error_clear();
}

static ts_status measure(void *ctx, ts_prof_machine *m)
{
    (void)ctx;
    m->vector_flops = measure_vectors(m->threads);
    TS_TRY(measure_products(TS_F32, &m->gemm_flops));
    TS_TRY(measure_products(TS_F64, &m->double_flops));
    TS_TRY(measure_memory(m));
    m->vector_flops = larger(m->vector_flops, measure_vectors(m->threads));
    m->measured_at = (double)time(NULL);
    return TS_OK;
}

/** Sum of ts_preempted_ns() over the threads of this process; 0: unknown. */
static double preempted_ns(void)
{
    DIR *tasks = ts_files.opendir("/proc/self/task");
    double sum = 0;
    for (struct dirent *e; tasks && (e = ts_files.readdir(tasks));)
        sum += e->d_name[0] == '.' ? 0 : larger(0, (double)ts_preempted_ns(atoi(e->d_name)));
    if (tasks)
        ts_files.closedir(tasks);
    return sum;
}

/** Calls measuring() and sets kept->preempted. */
static ts_status measure_watched(ts_status (*measuring)(void *ctx, ts_prof_machine *m), void *ctx,
                                 kept_machine *kept)
{
    ts_thread *self = ts_thread_self();
    uint32_t timing = TS_THREAD_TIMING & atomic_fetch_and(&self->state,
                                                          ~(uint32_t)TS_THREAD_TIMING);
    double begin = now(), before = preempted_ns();
    ts_status status = measuring(ctx, &kept->is);
    double waited = larger(0, preempted_ns() - before), all = 1e9 * (now() - begin);
    double share = smaller(1, waited / larger(1, all * kept->is.threads));
    kept->preempted = round(1000 * share) / 1000; /* as the file stores it, for equal warnings */
    atomic_fetch_or(&self->state, timing);
    return status;
}

static atomic_bool ending;

void ts_machine_measure_no_more(void) { atomic_store(&ending, true); }

ts_status ts_machine_kept(const char *identity, bool anew,
                          ts_status (*measuring)(void *ctx, ts_prof_machine *m), void *ctx,
                          ts_prof_machine *m)
{
    char *folder = NULL, *path = identity ? cache_path(identity, m->threads, &folder) : NULL;
    ts_status status = TS_OK;
    kept_machine kept = {*m, 0};
    bool found = !anew && path && read_machine(path, &kept);
    if (!found) {
        if (atomic_load(&ending)) {
            ts_sys_free(path);
            ts_sys_free(folder);
            return ts_error_set(TS_ERR_STATE, "a program that a signal ends is not calibrated");
        }
        status = measure_watched(measuring, ctx, &kept);
        if (status == TS_OK && path)
            keep_machine(folder, path, &kept);
    }
    static atomic_bool noted; /* a schedule uses the file for each of its profiles */
    if (status == TS_OK && kept.preempted > TS_PREEMPTED_NOTED &&
        (!found || !atomic_exchange(&noted, true)))
        ts_log_write("warning",
                     "ceilings of %s: while they were measured, the processors ran other threads "
                     "for %.0f %% of the time, so the ceilings may be too low; measure again on an "
                     "idle machine with ts-prof calibrate --anew",
                     kept.is.name, 100 * kept.preempted);
    *m = kept.is;
    ts_sys_free(path);
    ts_sys_free(folder);
    return status;
}

static ts_prof_machine assumed; /* set by ts_prof_assume(); threads 0: not set */

void ts_prof_assume(const ts_prof_machine *machine)
{
    assumed = machine ? *machine : (ts_prof_machine){0};
}

/** Ceilings of the machine, from the file or measured. Timers do not see the measurement. */
static ts_status find_ceilings(bool anew, ts_prof_machine *m)
{
    *m = (ts_prof_machine){.size = sizeof *m, .threads = ts_num_threads()};
    m->threads = m->threads < TS_PARALLEL_MAX ? m->threads : TS_PARALLEL_MAX;
    name_processor(m->name, sizeof m->name);
    if (assumed.threads) {
        *m = assumed;
        return TS_OK;
    }
    return ts_machine_kept(m->name, anew, measure, NULL, m);
}

/** Sets the costs of calls in *m to those that ts_prof_measure_calls() measured. */
static void add_calls(ts_prof_machine *m)
{
    m->call_ns = calls.call_ns;
    m->entry_ns = calls.entry_ns;
    m->stamp_ns = calls.stamp_ns;
    m->record_ns = calls.record_ns;
}

ts_status ts_prof_find_machine(ts_prof_machine *m)
{
    ts_prof_machine ceilings;
    TS_TRY(find_ceilings(false, &ceilings));
    add_calls(&ceilings);
    *m = ceilings;
    return TS_OK;
}

ts_status ts_prof_calibrate(bool anew, ts_prof_machine *machine)
{
    ts_prof_machine m;
    TS_TRY(TS_CHECK_POINTERS(machine));
    TS_TRY(TS_CHECK_OPTS(&m, machine));
    if (!TS_TIMERS)
        return ts_error_set(TS_ERR_UNSUPPORTED,
                            "prof_calibrate: this build has no timers (-Dtimers=false)");
    if (ts_prof_active())
        return ts_error_set(TS_ERR_STATE, "prof_calibrate: a profile records; stop it first");
    size_t size = machine->size;
    TS_TRY(find_ceilings(anew, &m));
    TS_TRY(ts_prof_measure_calls(false));
    add_calls(&m);
    m.size = size;
    memcpy(machine, &m, size);
    return TS_OK;
}
