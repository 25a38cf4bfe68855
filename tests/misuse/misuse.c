/**
 * @file misuse.c
 * Calls public functions with drawn arguments, wrong ones among them, and judges what comes back.
 *
 * generate.py writes a caller for each function that the headers declare; operators are called by
 * ts_call_boxed() too, from the table. Most calls stand alone. Some are made in a row, with
 * tensors, objects and scopes in common, some of them in a second thread; and some rows in a
 * process of their own, where they may change the registry and what else is global. Every row is
 * made from its seed and number alone, so `--seed S --from K --calls 1` makes it again.
 *
 * A call must not crash, hang or take much memory. One that fails leaves a record with a code and a
 * printable message that begins with the name of a function, and changes no tensor, no place for a
 * result and no mode of the thread; one that succeeds leaves no record. After a row, memory in use
 * is what it was.
 */
// SPDX-License-Identifier: MIT
#include <inttypes.h>
#include <pthread.h>
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
#endif
#endif

typedef struct drawn_call {
    void (*run)(void);
    const char *name;
    object_kind needs; /* a call in flight; KINDS: none */
    bool world;        /* changes what is global */
} drawn_call;

/** What is said of a function. */
enum {
    MODES = 1,    /* it changes modes of the thread */
    OPENS = 2,    /* also when it fails */
    OWN_TEXT = 4  /* the caller writes the record */
};

/* ---------------------------------------------------------------------- the call in words ---- */

static uint64_t seed = 1;
static int64_t call_number;
static char words[4096];
static size_t used;
static int out = 2; /* for findings: the library has /dev/null */
char name[64];
bool disturbed, unbalanced, in_world;

void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(words + used, sizeof words - used, format, args);
    va_end(args);
    used += (size_t)n < sizeof words - used ? (size_t)n : sizeof words - used - 1;
}
void say_name(const char *argument) { say("%s%s=", used ? ", " : "", argument); }

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

/** Writes what is under way, where a signal handler may. */
static void write_call(const char *what)
{
    static char text[sizeof words + 2304];
    int n = snprintf(text, sizeof text, "%s: --seed %" PRIu64 " --from %" PRId64
                     " --calls 1: %s(%s)\n", what, seed, call_number, name, words);
    for (char *p = text; p < text + n - 1; p++) /* drawn texts are not for a terminal */
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = '?';
    if (write(out, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1) < 0)
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
void __sanitizer_set_report_fd(void *fd);
static void reported(void) { write_call("sanitizer"); }

/** UBSan calls it before it prints, to the descriptor 2 whatever AddressSanitizer was told. */
void __ubsan_on_report(void);
void __ubsan_on_report(void)
{
    dup2(out, 2);
    write_call("sanitizer");
}
#endif

/* ----------------------------------------------------------------------------- findings ---- */

static bool keep_going;
static int64_t findings;

void finding(const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    write_call(text);
    findings++;
    if (keep_going)
        return;
    if (in_world)
        _exit(1);
    end_objects();
    exit(1);
}

/* -------------------------------------------------------------------------------- oracle ---- */

static bool too_large(size_t bytes) { return bytes > MOST_BYTES; }

static uint64_t checksum(const ts_tensor *t)
{
    uint64_t h = 0xcbf29ce484222325u;
    const unsigned char *bytes = ts_data(t);
    int64_t n = bytes ? ts_numel(t) * (int64_t)ts_dtype_size(ts_dtype_of(t)) : 0;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * 0x100000001b3u;
    return h;
}

static ts_modes first_modes; /* of the thread: a row leaves none that it changed */

/** The calls that are under way: one, and those that callbacks make in it. */
static struct {
    ts_modes modes;
    char name[64];
    int flags;
} under_way[4];
static int nunder_way, nnoted;

/** Arguments are drawn: what they hold is noted, and what is to be dead dies. */
static void begin(const char *function, int flags)
{
    snprintf(name, sizeof name, "%s", function);
    snprintf(under_way[nunder_way].name, sizeof name, "%s", function);
    under_way[nunder_way].modes = ts_tls.modes;
    under_way[nunder_way++].flags = flags;
    if (nunder_way == 1) {
        disturbed = unbalanced = false;
        nnoted = nmade;
        for (int i = 0; i < nmade; i++) {
            made[i].version = ts_version(made[i].t);
            made[i].sum = made[i].base ? checksum(made[i].base) : 0;
        }
    }
    for (; ndying; ndying--)
        ts_drop(dying[ndying - 1]);
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
        if (more < 0 || (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0) ||
            (c >= 0x200b && c <= 0x200f) ||
            (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff)
            return false;
        p += more + 1;
    }
    return true;
}

static void check_failure(ts_status status, int flags)
{
    const char *message = ts_error_message(), *op = ts_error_op();
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_. ";
    size_t n = strlen(op);
    ts_status code = ts_error_code();
    if (code == TS_OK)
        finding("a failure without a record");
    else if (status != code)
        finding("%s, but the record has %s: %s", ts_status_name(status), ts_status_name(code),
                message);
    else if (code == TS_ERR_INTERNAL && !(flags & OWN_TEXT) &&
             !(in_world && strstr(message, "without a result"))) /* of odd_kernel() */
        finding("internal error: %s", message);
    else if ((!message[0] && !(flags & OWN_TEXT)) || !printable(message) ||
             !printable(ts_error_hint()))
        finding("a message that is no printable text: %s", message);
    else if (!(flags & OWN_TEXT) && !disturbed && code != TS_ERR_MEMORY &&
             (strncmp(message, op, n) != 0 || !strspn(message, word) ||
              strncmp(message + strspn(message, word), ": ", 2) != 0))
        finding("a message that does not begin with its function: %s", message);
    if (nunder_way || disturbed)
        return;
    if (!places_are_empty())
        finding("a result of a call that failed: %s", message);
    if (code == TS_ERR_MEMORY)
        return; /* it may come from the middle of a kernel */
    for (int i = 0; i < nnoted; i++)
        if (ts_version(made[i].t) != made[i].version ||
            (made[i].base && checksum(made[i].base) != made[i].sum))
            finding("an argument was changed by a call that failed: %s", message);
}

/** Reads all of a result; a sanitizer sees what lies outside. */
static void check_result(ts_tensor *t)
{
    ts_modes drawn = ts_tls.modes;
    int64_t n = 1;
    for (int d = 0; d < ts_ndim(t); d++)
        n *= ts_sizes(t)[d];
    if (ts_ndim(t) > TS_MAX_DIMS || n != ts_numel(t))
        finding("a result whose sizes are wrong");
    static char copy[1 << 16];
    size_t bytes = (size_t)n * ts_dtype_size(ts_dtype_of(t));
    if (ts_device_of(t).backend != TS_KEY_CPU || n <= 0 || n > 4096 || bytes > sizeof copy)
        return;
    ts_tls.modes = first_modes; /* masks may be drawn */
    ts_status status = ts_copy_to(t, copy, bytes);
    ts_tls.modes = drawn;
    if (status != TS_OK && status != TS_ERR_MEMORY)
        finding("a result that cannot be read: %s", ts_error_message());
}

static int64_t succeeded, failed;

/** The end of a call; true when it succeeded. */
static bool ended(ts_status status)
{
    nunder_way--;
    const ts_modes *before = &under_way[nunder_way].modes;
    int flags = under_way[nunder_way].flags;
    snprintf(name, sizeof name, "%s", under_way[nunder_way].name);
    if (status != TS_OK)
        failed++, check_failure(status, flags);
    else
        succeeded++;
    if (status == TS_OK && ts_error_code() != TS_OK && !disturbed && !(flags & OWN_TEXT))
        finding("a success that leaves the record of a failure: %s", ts_error_message());
    if (flags & MODES && nunder_way)
        unbalanced = true;
    if (!unbalanced && !(flags & (status == TS_OK ? MODES : OPENS)) &&
        memcmp(before, &ts_tls.modes, sizeof *before) != 0)
        finding("a call that changed the thread's modes");
    forget_places();
    collect_places();
    return status == TS_OK;
}

static void backward_of(ts_tensor *t)
{
    ts_tensor *ones = ts_ones_like(t);
    if (!ones)
        return;
    ts_backward_opts opts = {
        .size = sizeof opts, .retain_graph = one_in(2), .create_graph = one_in(4)};
    snprintf(name, sizeof name, "backward of %.40s", under_way[nunder_way].name);
    nnoted = nmade;
    for (int i = 0; i < nmade; i++) { /* the call itself may have changed them */
        made[i].version = ts_version(made[i].t);
        made[i].sum = made[i].base ? checksum(made[i].base) : 0;
    }
    ts_error_clear();
    ts_status status = ts_backward_ex(t, ones, &opts);
    if (status != TS_OK)
        check_failure(status, OWN_TEXT);
    for (int i = 0; !nunder_way && i < nmade; i++)
        ts_zero_grad(made[i].t);
}

static void end_status(ts_status status) { ended(status); }
static void end_nothing(void) { ended(ts_error_code()); }
static void end_object(object_kind kind, const void *p)
{
    if (ended(p ? TS_OK : ts_error_code()))
        add_object(kind, p);
}
static void end_tensor(ts_tensor *t)
{
    if (!ended(t ? TS_OK : ts_error_code() == TS_OK ? TS_ERR_NULL : ts_error_code()))
        return;
    if (t == TS_NONE || ts_tensor_is_dead(t)) /* handed through */
        return;
    check_result(t);
    if (ts_requires_grad(t) && ts_numel(t) < 4096)
        backward_of(t);
}

#include "misuse_calls.inc"

/* ---------------------------------------------------------------------------- boxed calls ---- */

static void boxed(void)
{
    int op = below(ts_op_count());
    const ts_schema *s = &ts_ops[op].schema;
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    for (int i = 0; i < s->nargs; i++)
        args[i] = draw_value(&(ts_op_arg){s->args[i].name, s->args[i].kinds, s->args[i].optional,
                                          s->args[i].written});
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
        if (!t && !(i && strcmp(ts_op_name(op), "split") == 0)) /* fewer parts */
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

static const char *only; /* the one function that is called */
static int nesting;

/** Memory for a kernel is taken and given. */
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
    } else if (one_in(nesting ? 2 : 3)) {
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
             (calls[which].needs == KINDS || any_object(calls[which].needs)))
        calls[which].run();
}

void nested_call(void)
{
    if (nesting >= 2 || !nunder_way || nunder_way >= 3)
        return;
    nesting++;
    say(" {");
    char outer[sizeof name];
    memcpy(outer, name, sizeof name);
    one_call();
    memcpy(name, outer, sizeof name);
    say("} ");
    nesting--;
}

/** A call in a thread of its own, which ends inside of its scopes. */
static void *in_thread(void *ignored)
{
    (void)ignored;
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
        if (held && one_in(16) && pthread_create(&thread, NULL, in_thread, NULL) == 0)
            pthread_join(thread, NULL);
        else
            one_call();
    }
}

/** The same in a process of its own. */
static void world(void)
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
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1)
        finding("a process that ended with %s %d", WIFSIGNALED(status) ? "signal" : "status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    else if (findings++, !keep_going) {
        end_objects();
        exit(1);
    }
}

static void call_once(void)
{
    TS_SCOPE; /* what the inner one keeps */
    {
        TS_SCOPE;
        state = seed * 0x2545f4914f6cdd1du ^ (uint64_t)call_number * 0x9e3779b97f4a7c15u;
        next();
        used = 0;
        words[0] = 0;
        nesting = nunder_way = 0;
        disturbed = unbalanced = false;
        int what = below(512);
        held = what < 48;
        begin_drawing();
        ts_rng_set_state((ts_rng_state){7, 0});
        snprintf(name, sizeof name, "arguments of a call");
        if (what == 0)
            world();
        else
            row(held ? 2 + below(7) : 1);
        ts_alloc_fault = NULL;
        forget_places();
        give_up_objects();
        give_up_tensors();
    }
    ts_alloc_fault = NULL;
    ts_tls.modes = first_modes;
    ts_error_clear();
}

/** Makes the call of this number. One that takes memory each time it is made loses it. */
static void call(int64_t number)
{
    call_number = number;
    int64_t before = ts_memory_get_stats().in_use, after = before;
    for (int times = 0; times < 4; times++) {
        call_once();
        ts_autocast_clear_cache();
        after = ts_memory_get_stats().in_use;
        if (after <= before || ts_scopes_watched) /* which keeps headers of the dead */
            return;
        if (times == 3)
            finding("memory in use grew by %" PRId64 " bytes", after - before);
        before = after;
    }
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
    out = dup(2); /* what the library prints is not for the user of this program */
    dup2(fileno(stream), 1);
    dup2(fileno(stream), 2);
    ts_set_num_threads(1);
    first_modes = ts_tls.modes;
    begin_objects();
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_set_report_fd((void *)(intptr_t)dup(out)); /* UBSan's first report closes it */
    __sanitizer_set_death_callback(reported);
    signal(SIGALRM, crashed);
#else
    for (size_t i = 0; i < 6; i++)
        signal((int[]){SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL, SIGALRM}[i], crashed);
#endif
    dead_allowed = !ts_alloc_system || ts_scopes_watched;
    int64_t done = 0;
    double started = now(), told = started;
    for (; done < ncalls; done++) {
        alarm(MOST_SECONDS);
        call(first + done);
        if (done % 1024 == 1023 && now() - told > 5) {
            told = now();
            dprintf(out, "misuse: %" PRId64 " calls, %" PRId64 " findings, %.0f s\n", done + 1,
                    findings, told - started);
            if (most > 0 && told - started > most)
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
