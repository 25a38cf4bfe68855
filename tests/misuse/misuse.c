/**
 * @file misuse.c  Calls public functions with drawn arguments, including wrong ones, and checks the
 * results.
 *
 * generate.py writes a caller for each function that the headers declare. Operators are also called
 * by ts_call_boxed(). A row is one call, or several calls that share tensors, objects and scopes,
 * of which some run in a second thread. Some rows run in several threads at once, over shared
 * tensors, graphs and files that all threads only read. Other rows run in a new process, where they
 * may change the registry and other global state. A row depends only on its seed and number, so the
 * options `--seed S --from K --calls 1` repeat the row, except for the order of threads.
 *
 * A call must not crash, hang or use much memory. A call that fails leaves a record with a code and
 * a printable message that begins with the name of a function. It changes no tensor, writes no
 * result and changes no mode of the thread. A call that succeeds leaves no record. After a row,
 * memory in use is the same as before.
 */
// SPDX-License-Identifier: MIT
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/testing.h"
#include "core/thread.h"
#include "dispatch/op.h"
#include "tests/misuse/misuse.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#elif __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

typedef struct drawn_call {
    void (*run)(void);
    const char *name;
    object_kind needs; /* kind of the callback in which it must be called; KINDS: none */
    bool world;        /* it changes global state */
    bool reads;        /* it only reads its tensors, which other threads may use meanwhile */
} drawn_call;

/* ---------------------------------------------------------------------- the call in words ---- */

static uint64_t seed = 1;
static int64_t call_number;
static int out = 2; /* descriptor for findings; 1 and 2 become /dev/null, for the library */
hand hands[HANDS];
_Thread_local hand *my = &hands[0];
bool in_world;

void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(my->words + my->used, sizeof my->words - my->used, format, args);
    va_end(args);
    size_t room = sizeof my->words - my->used;
    my->used += (size_t)n < room ? (size_t)n : room - 1;
}
void say_name(const char *argument) { say("%s%s=", my->used ? ", " : "", argument); }

void say_tensor(const ts_tensor *t)
{
    char sizes[192];
    if (!t || t == TS_NONE || ts_tensor_is_dead(t))
        say("%s", !t ? "NULL" : t == TS_NONE ? "TS_NONE" : "dead");
    else
        say("%s %s%s%s%s", ts_format_sizes(sizes, sizeof sizes, t->sizes, t->ndim),
            ts_dtype_name(ts_dtype_of(t)), ts_is_contiguous(t) ? "" : " strided",
            ts_device_of(t).backend ? " meta" : "", ts_requires_grad(t) ? " grad" : "");
}

static void write_hand(const char *what, const hand *h)
{
    char text[sizeof h->words + 2304];
    int n = snprintf(text, sizeof text, "%s: --seed %" PRIu64 " --from %" PRId64
                     " --calls 1: %s(%s)\n", what, seed, call_number, h->name, h->words);
    for (char *p = text; p[1]; p++) /* makes drawn texts printable */
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = '?';
    if (write(out, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1) < 0)
        _exit(3);
}

/** Writes the running calls of all threads, safely in a signal handler. */
static void write_call(const char *what)
{
    write_hand(what, my);
    for (const hand *h = hands; h < hands + HANDS; h++)
        if (h != my && atomic_load(&h->working))
            write_hand("at the same time", h);
}

static void crashed(int signal_number)
{
    write_call(signal_number == SIGALRM ? "hang" : "crash");
    signal(signal_number, SIG_DFL);
    raise(signal_number == SIGALRM ? SIGABRT : signal_number);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
void __sanitizer_set_death_callback(void (*callback)(void));
void __sanitizer_set_report_fd(void *fd);
static void reported(void) { write_call("sanitizer"); }

/** UBSan calls it before it prints, to descriptor 2, independent of AddressSanitizer's log_path. */
void __ubsan_on_report(void);
void __ubsan_on_report(void)
{
    dup2(out, 2);
    write_call("sanitizer");
}
#endif

/* ----------------------------------------------------------------------------- findings ---- */

static bool keep_going;
static _Atomic int64_t findings;

void finding(const char *format, ...)
{
    static atomic_flag ending = ATOMIC_FLAG_INIT;
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    while (!keep_going && atomic_flag_test_and_set(&ending))
        pause(); /* another thread ends the process */
    write_call(text);
    findings++;
    if (keep_going)
        return;
    if (!in_world)
        end_objects();
    _exit(1);
}

#include "misuse_calls.inc"

/* ---------------------------------------------------------------------------- boxed calls ---- */

static void boxed(void)
{
    int op = below(ts_op_count());
    const ts_schema *s = &ts_ops[op].schema;
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    for (int i = 0; i < s->nargs; i++) {
        my->sharing = my->nborrowed && !s->args[i].written;
        args[i] = draw_value(&(ts_op_arg){s->args[i].name, s->args[i].kinds, s->args[i].optional,
                                          s->args[i].written});
    }
    my->sharing = false;
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
    ts_value before[TS_MAX_RETS];
    memcpy(before, rets, sizeof rets);
    begin(ts_op_name(op), 0);
    ts_status status = ts_call_boxed(id, args, nargs, rets, nrets);
    bool good = ended(status);
    for (int i = 0; !good && i < nrets; i++)
        if (given >> i & 1 ? rets[i].t != before[i].t : rets[i].tag == TS_TAG_TENSOR && rets[i].t)
            finding("a result of a call that failed: %s", ts_error_message());
    for (int i = 0; good && i < nrets; i++) {
        ts_tensor *t = rets[i].tag == TS_TAG_TENSOR ? rets[i].t : NULL;
        if (!t && !(i && strcmp(ts_op_name(op), "split") == 0)) /* split may give fewer parts */
            finding("a success without result %d", i);
        if (!(given >> i & 1))
            ts_adopt(t);
        if (t && t != TS_NONE && !ts_tensor_is_dead(t)) {
            check_result(t);
            if (ts_requires_grad(t) && ts_numel(t) < 4096)
                backward_of(t);
        }
    }
}

/* --------------------------------------------------------------------------------- a call ---- */

static const char *only; /* name of the only function to call; NULL: all */

/** Takes scratch memory and gives it back. */
static void scratch(void)
{
    ts_device device = draw_device("device");
    int64_t bytes = draw_int64("bytes");
    begin("ts_scratch_take", 0);
    void *data = ts_scratch_take(device, bytes);
    if (ended(data ? TS_OK : ts_error_code()))
        ts_scratch_give(device, data, bytes);
}

static void one_call(void)
{
    int which = 0;
    if (only) {
        for (; which < TS_COUNTOF(calls) && strcmp(calls[which].name, only); which++)
            ;
        if (which == TS_COUNTOF(calls)) {
            dprintf(out, "misuse: no function %s\n", only);
            exit(2);
        }
    } else if (one_in(my->nesting ? 2 : 3)) {
        which = -1;
    } else {
        for (int tries = 0; tries < 8; tries++) {
            which = below(TS_COUNTOF(calls));
            if ((!calls[which].world || in_world) &&
                (calls[which].needs == KINDS || any_object(calls[which].needs)))
                break;
            which = -1;
        }
    }
    if (which < 0)
        one_in(200) ? scratch() : boxed();
    else if ((!calls[which].world || in_world) &&
             (calls[which].needs == KINDS || any_object(calls[which].needs))) {
        my->sharing = my->nborrowed && calls[which].reads;
        calls[which].run();
    }
}

void nested_call(void)
{
    if (my->nesting >= 2 || !my->nunder_way || my->nunder_way >= 3)
        return;
    my->nesting++;
    say(" {");
    char outer[sizeof my->name];
    memcpy(outer, my->name, sizeof outer);
    one_call();
    memcpy(my->name, outer, sizeof outer);
    say("} ");
    my->nesting--;
}

/** Makes a call in a new thread, which may end with open scopes. */
static void *in_thread(void *of_row)
{
    my = of_row;
    static _Thread_local ts_scope scope;
    if (one_in(2))
        ts_scope_enter(&scope, "thread");
    one_call();
    return NULL;
}

/** Calls that have tensors, objects and scopes in common. */
static void row(int ncalls)
{
    for (int i = 0; i < ncalls; i++) {
        pthread_t thread;
        if (my->held && one_in(16) && pthread_create(&thread, NULL, in_thread, my) == 0)
            pthread_join(thread, NULL);
        else
            one_call();
    }
}

/** Runs a row in a forked process. */
static void run_in_child(void)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(MOST_SECONDS);
        in_world = true;
        findings = 0;
        row(1 + below(24));
        _exit(findings != 0);
    }
    int status = 0;
    expect_files();
    if (child < 0 || waitpid(child, &status, 0) < 0 || status == 0)
        return;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1) {
        finding("a process that ended with %s %d", WIFSIGNALED(status) ? "signal" : "status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        return;
    }
    findings++;
    if (!keep_going) {
        end_objects();
        exit(1);
    }
}

/** Restarts the random numbers and everything drawn from them. */
static void begin_row(int thread)
{
    my->state = seed * 0x2545f4914f6cdd1du ^ (uint64_t)call_number * 0x9e3779b97f4a7c15u ^
                (uint64_t)thread * 0xd6e8feb86659fd93u;
    next();
    my->used = 0;
    my->words[0] = 0;
    my->nesting = my->nunder_way = 0;
    my->disturbed = my->unbalanced = false;
    snprintf(my->name, sizeof my->name, "arguments of a call");
    ts_rng_set_state((ts_rng_state){7, (uint64_t)thread << 32});
}

/* Threads that begin at the same moment. */
static _Atomic bool started;

static void *beside_others(void *hand_of_thread)
{
    my = hand_of_thread;
    my->first_modes = ts_tls.modes;
    atomic_store(&my->working, true);
    while (!atomic_load(&started))
        sched_yield();
    {
        TS_SCOPE; /* kept from the inner scope */
        TS_SCOPE;
        begin_row((int)(my - hands));
        my->held = true;
        begin_drawing();
        borrow_tensors(&hands[0]);
        borrow_objects(&hands[0]);
        ts_tensor *one = my->nmade ? ts_retain(my->made[below(my->nmade)].t) : NULL;
        for (int ncalls = 2 + below(4); ncalls; ncalls--)
            one_call();
        ts_release(one);
        clear_places();
        free_row_objects();
        free_row_tensors();
    }
    ts_tls.modes = my->first_modes;
    ts_autocast_clear_cache();
    atomic_store(&my->working, false);
    return NULL;
}

/** Calls in several threads at once, which share tensors that all only read, graphs and files. */
static void together(void)
{
    pthread_t threads[HANDS];
    int n = 2 + below(HANDS - 2), there = 0;
    my->nunder_way = 0;
    ts_alloc_fault = too_large;
    make_tensors(2 + below(5));
    make_shared_objects();
    snprintf(my->name, sizeof my->name, "%d threads", n);
    atomic_store(&started, false);
    for (; there < n; there++)
        if (pthread_create(&threads[there], NULL, beside_others, &hands[1 + there]) != 0)
            break;
    atomic_store(&started, true);
    while (there)
        pthread_join(threads[--there], NULL);
}

static bool only_together;
/** Kinds of rows by a number below 512: 0: a row in a process; below SECOND_ROWS: a row in one
 *  thread; below OTHER_ROWS: several threads; others: a single call. */
enum { SECOND_ROWS = 48, OTHER_ROWS = 56 };

static void call_once(void)
{
    TS_SCOPE; /* kept from the inner scope */
    {
        TS_SCOPE;
        begin_row(0);
        int what = only_together ? SECOND_ROWS : below(512);
        my->held = what < OTHER_ROWS;
        begin_drawing();
        if (what == 0)
            run_in_child();
        else if (what >= SECOND_ROWS && my->held)
            together();
        else
            row(my->held ? 2 + below(7) : 1);
        ts_alloc_fault = NULL;
        clear_places();
        free_row_objects();
        free_row_tensors();
    }
    ts_alloc_fault = NULL;
    ts_tls.modes = my->first_modes;
    ts_error_clear();
}

/** Makes the call of this number. If memory in use grows in each of four repetitions, it reports a
 *  leak. */
static void call(int64_t number)
{
    call_number = number;
    int64_t before = ts_memory_get_stats().in_use, after = before;
    for (int times = 0; times < 4; times++) {
        call_once();
        ts_autocast_clear_cache();
        after = ts_memory_get_stats().in_use;
        if (after <= before || ts_scopes_watched) /* watching keeps headers of released tensors */
            return;
        if (times == 3)
            finding("memory in use grew by %" PRId64 " bytes", after - before);
        before = after;
    }
}

/* ----------------------------------------------------------------------------------- main ---- */

static const char usage[] =
    "usage: %s [--seed S] [--calls N] [--from K] [--seconds T] [--only FUNCTION] [--together]\n"
    "          [--keep-going]\n"
    "Calls public functions with random arguments, and checks results, errors and memory.\n"
    "  --seed S         seed of the rows (1)\n"
    "  --calls N        number of rows (100000)\n"
    "  --from K         number of the first row (0)\n"
    "  --seconds T      end after T seconds (no limit)\n"
    "  --only FUNCTION  call only this function\n"
    "  --together       make only rows that run in several threads\n"
    "  --keep-going     do not end at the first finding, unless it is a crash\n";

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
        else if (strcmp(argv[i], "--together") == 0)
            only_together = true;
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
    out = dup(2); /* the library's output is discarded */
    dup2(fileno(stream), 1);
    dup2(fileno(stream), 2);
    ts_set_num_threads(1);
    my->first_modes = ts_tls.modes;
    begin_objects();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    __sanitizer_set_report_fd((void *)(intptr_t)dup(out)); /* a copy: UBSan closes it */
    __sanitizer_set_death_callback(reported);
    signal(SIGALRM, crashed);
#else
    for (size_t i = 0; i < 6; i++)
        signal((int[]){SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL, SIGALRM}[i], crashed);
#endif
    dead_allowed = !ts_alloc_system || ts_scopes_watched;
    int64_t done = 0;
    double started = now(), reported = started;
    for (; done < ncalls; done++) {
        alarm(MOST_SECONDS);
        call(first + done);
        if (done % 1024 == 1023 && now() - reported > 5) {
            reported = now();
            dprintf(out, "misuse: %" PRId64 " calls, %" PRId64 " findings, %.0f s\n", done + 1,
                    findings, reported - started);
            if (most > 0 && reported - started > most)
                break;
        }
    }
    alarm(0);
    end_objects();
    dprintf(out, "misuse: %" PRId64 " calls of seed %" PRIu64 ": %" PRId64 " succeeded, %" PRId64
            " failed as they should, %" PRId64 " findings\n", done, seed, succeeded, failed,
            findings);
    fclose(stream);
    return findings != 0;
}
