/**
 * @file environment.c  TS_PROF: profiles a program without a change to it. The report is written
 * when the program ends, also by a signal; with a schedule, after each cycle.
 */
// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/files.h"
#include "core/process.h"
#include "core/testing.h"
#include "dispatch/device_times.h"
#include "dispatch/memory_log.h"
#include "dispatch/timers.h"
#include "include/tessera/check.h"
#include "include/tessera/program.h"
#include "init.h"
#include "profile/profile.h"
#include "profile/schedule.h"
#include "profile/signals.h"

/* Maximum wait in ms for a report of another thread, and after a signal for the devices' part,
 * which is never ready if a crashed thread holds a lock of the driver. [1]: after a crash. */
int ts_profile_wait_ms[2] = {30000, 5000};

static struct {
    char out[288]; /* a folder, or "" */
    int lock;      /* descriptor of the folder while this process owns it; -1: none */
    bool scheduled;
    int64_t first_step, last_step, cycles; /* of ts_prof_opts; cycles: number of reported ones */
    _Atomic enum { OFF, ARMED, WRITES } state; /* WRITES: a thread writes a report */
} from_environment = {.lock = -1};

/* ------------------------------------------------------------------------------ reports ---- */

static ts_status print_json(FILE *out, void *ctx)
{
    return ts_profile_write(ctx, out, TS_PROFILE_JSON);
}
static ts_status print_chrome(FILE *out, void *ctx)
{
    return ts_profile_write(ctx, out, TS_PROFILE_CHROME);
}

/** Writes a file of the profile. cycle: its number in a schedule, which has a folder per cycle; 0:
 *  no schedule. Adds a line about it to `out`, unless it is NULL. */
static ts_status write_output(const ts_profile *p, int64_t cycle, const char *name, FILE *out)
{
    bool json = strcmp(name, "profile.json") == 0;
    char folder[32] = "";
    if (cycle)
        snprintf(folder, sizeof folder, "/cycle-%lld", (long long)cycle);
    char *path = ts_path("%s%s", from_environment.out, folder);
    if (path && cycle)
        ts_files.mkdir(path, 0777); /* an existing folder is fine; other failures show below */
    ts_sys_free(path);
    path = ts_path("%s%s/%s", from_environment.out, folder, name);
    ts_status status = path ? ts_replace_file("TS_PROF", path, json ? print_json : print_chrome,
                                              (void *)(uintptr_t)p)
                            : TS_ERR_MEMORY;
    if (status == TS_OK && out)
        fprintf(out, "wrote %s; %s\n", path,
                json ? "`ts-prof report` prints and draws it" : "ui.perfetto.dev opens it");
    ts_sys_free(path);
    return status;
}

static ts_status write_report(const ts_profile *p, int64_t cycle, FILE *out)
{
    if (cycle && from_environment.out[0])
        ts_profile_write_verdict(p, out);
    else
        TS_TRY(ts_profile_write(p, out, TS_PROFILE_TABLES));
    if (!from_environment.out[0])
        return TS_OK;
    TS_TRY(write_output(p, cycle, "profile.json", out));
    return p->traced ? write_output(p, cycle, "trace.json", out) : TS_OK;
}

/** Says if the program ended before the steps that TS_PROF requests. */
static void print_missed_steps(const ts_profile *p, FILE *out)
{
    int64_t first = from_environment.first_step, last = from_environment.last_step;
    int64_t reached = p->nsteps ? p->first_step + p->nsteps + p->lost_steps - 1 : 0;
    if (reached < last)
        fprintf(out, "TS_PROF: steps=%lld:%lld: the program ended %s %lld%s\n", (long long)first,
                (long long)last, p->nsteps ? "after step" : "in step",
                (long long)(p->nsteps ? reached : 1),
                reached < first ? "; the profile has all its calls" : "");
}

/** Writes the files and prints the report to the descriptor of stderr, because a crashed thread may
 *  hold the stream's lock. p: NULL prints the error. */
static void report(const ts_profile *p, int64_t cycle)
{
    char *text = NULL;
    size_t size = 0, done = 0;
    FILE *memory = open_memstream(&text, &size), *out = memory ? memory : stderr;
    if (cycle)
        fprintf(out, from_environment.out[0] ? "cycle %lld: " : "\ncycle %lld", (long long)cycle);
    ts_status status = p ? write_report(p, cycle, out) : ts_error_code();
    if (status != TS_OK)
        fprintf(out, "%s%s\n", p ? "" : "TS_PROF: ", ts_error_message());
    if (p)
        print_missed_steps(p, out);
    if (memory)
        fclose(memory);
    for (ssize_t n = 1; text && done < size && n > 0; done += n > 0 ? (size_t)n : 0)
        n = write(STDERR_FILENO, text + done, size - done);
    free(text);
}

/** Claims the right to write. False if the report is written. If another thread writes for longer
 *  than `ms`, it hangs or crashed, and the caller writes, too. */
static bool claim_report(int ms)
{
    unsigned state = ARMED;
    while (!atomic_compare_exchange_strong(&from_environment.state, &state, WRITES)) {
        if (state == OFF || ms-- == 0)
            return state != OFF;
        state = ARMED;
        usleep(1000);
    }
    return true;
}

/** ts_prof_opts.ready: reports a cycle of a schedule. */
static void report_cycle(ts_profile *p, int64_t cycle, void *unused)
{
    (void)unused;
    unsigned writes = WRITES;
    if (claim_report(ts_profile_wait_ms[0]))
        report(p, cycle);
    from_environment.cycles = cycle;
    atomic_compare_exchange_strong(&from_environment.state, &writes, ARMED);
    ts_profile_free(p);
}

static void release_folder(void)
{
    ts_file_close(from_environment.lock);
    from_environment.lock = -1;
}

void ts_profile_report(void)
{
    if (from_environment.state == OFF)
        return;
    if (from_environment.scheduled)
        ts_prof_stop(); /* reports the last cycle */
    if (!claim_report(ts_profile_wait_ms[0]))
        return;
    if (!from_environment.scheduled) {
        ts_prof_stop();
        ts_profile *p = ts_profile_take();
        report(p, 0);
        ts_profile_free(p);
    } else if (!from_environment.cycles) {
        ts_log_write("warning", "TS_PROF: the program ended before the first step that the "
                                "schedule records; no profile is made");
    }
    ts_profile_ignore_signals();
    from_environment.state = OFF;
    release_folder();
}

static void report_at_end(void)
{
    ts_profile_report();
    ts_profile_await_signal();
}

/* ----------------------------------------------------------------------- after a signal ---- */

static ts_profile *whole; /* of take_with_devices() */

static void take_with_devices(void)
{
    ts_device_times_end();
    whole = ts_profile_take();
}

/** Writes the host's part first. The devices' part needs drivers, so another thread fetches it; if
 *  it is ready in time, the whole profile replaces the host's part. */
static void report_after_signal(bool crashed)
{
    ts_machine_measure_no_more(); /* it takes seconds, and other threads still compute */
    if (crashed) {
        ts_memory_log_abandon();
        ts_process_break_locks();
    }
    if (!claim_report(ts_profile_wait_ms[crashed]))
        return;
    ts_timers_halt();
    int64_t cycle = from_environment.scheduled ? ts_schedule_recorded() : 0;
    ts_profile *p = cycle || !from_environment.scheduled ? ts_profile_take_host() : NULL;
    if (p && p->device.incomplete) {
        if (from_environment.out[0] && write_output(p, cycle, "profile.json", NULL) != TS_OK)
            ts_error_clear();
        if (ts_profile_run_within(ts_profile_wait_ms[crashed], take_with_devices) && whole)
            p = whole;
    }
    if (p || !from_environment.scheduled)
        report(p, cycle);
    ts_profile_ignore_signals();
    from_environment.state = OFF;
}

/* ----------------------------------------------------------------------------- settings ---- */

/** Parses `word`, if it is "name=" and a number of at least `least`, into *value. */
static bool take_number(const char *word, const char *name, int64_t least, int64_t *value)
{
    size_t length = strlen(name);
    bool good = strncmp(word, name, length) == 0 && word[length] == '=' &&
                ts_parse_int(name, word + length + 1, least, INT64_MAX, value) == TS_OK;
    ts_error_clear();
    return good;
}

/** Parses "steps=FIRST:LAST". */
static bool take_steps(char *word, ts_prof_opts *o)
{
    char *colon = strchr(word, ':');
    if (strncmp(word, "steps=", 6) != 0 || !colon)
        return false;
    *colon = 0;
    bool good = ts_parse_int("steps", word + 6, 1, INT64_MAX, &o->first_step) == TS_OK &&
                ts_parse_int("steps", colon + 1, o->first_step, INT64_MAX, &o->last_step) == TS_OK;
    ts_error_clear();
    return good;
}

/** Parses one word of TS_PROF, such as "trace" or "steps=3:5", into *o or from_environment.out;
 *  false if it is invalid. */
static bool take_setting(const char *word, size_t length, ts_prof_opts *o)
{
    char text[280];
    if (length >= sizeof text)
        return false;
    memcpy(text, word, length);
    text[length] = 0;
    if (strcmp(text, "1") == 0)
        return true;
    const struct {
        const char *word;
        bool *option;
    } options[] = {{"trace", &o->trace}, {"memory", &o->memory}, {"nvtx", &o->ranges},
                   {"detail", &o->detail}, {"flight", &o->flight}};
    for (int i = 0; i < TS_COUNTOF(options); i++)
        if (strcmp(text, options[i].word) == 0) {
            o->trace = o->trace || options[i].option == &o->flight;
            return *options[i].option = true;
        }
    const struct {
        const char *name;
        int64_t least, *value;
    } numbers[] = {{"skip_first", 0, &o->skip_first}, {"wait", 0, &o->wait},
                   {"warmup", 0, &o->warmup}, {"active", 1, &o->active}, {"repeat", 0, &o->repeat}};
    for (int i = 0; i < TS_COUNTOF(numbers); i++)
        if (take_number(text, numbers[i].name, numbers[i].least, numbers[i].value))
            return true;
    if (strncmp(text, "out=", 4) == 0 && text[4] && length - 4 < 256) {
        memcpy(from_environment.out, text + 4, length - 3);
        return true;
    }
    return take_steps(text, o);
}

static ts_status print_nothing(FILE *out, void *ctx)
{
    (void)out, (void)ctx;
    return TS_OK;
}

/** Locks the folder from_environment.out. If another running process has locked it, such as the
 *  program that executed this one, appends /process-PID to the path instead. */
static void own_folder(void)
{
    int *fd = &from_environment.lock;
    size_t used = strlen(from_environment.out);
    if (ts_folder_open("TS_PROF", from_environment.out, fd) != TS_OK) {
        ts_error_clear(); /* make_folder() reports it */
        return;
    }
    if (ts_files.flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return;
    ts_file_close(*fd);
    *fd = -1;
    snprintf(from_environment.out + used, sizeof from_environment.out - used, "/process-%lld",
             (long long)getpid());
}

/** Makes the folder and its missing parents. */
static void make_folder(void)
{
    char path[sizeof from_environment.out];
    snprintf(path, sizeof path, "%s", from_environment.out);
    for (char *at = path + 1; (at = strchr(at, '/')) != NULL; *at++ = '/') {
        *at = 0;
        ts_files.mkdir(path, 0777); /* an existing folder is fine */
    }
    ts_files.mkdir(path, 0777);
}

/** Makes the folder, tries to write there, and keeps other processes from it. */
static ts_status take_folder(void)
{
    char path[sizeof from_environment.out + 16];
    make_folder();
    own_folder();
    make_folder();
    char *whole = realpath(from_environment.out, NULL); /* the program may change its folder */
    if (whole && strlen(whole) < sizeof from_environment.out)
        strcpy(from_environment.out, whole);
    free(whole);
    snprintf(path, sizeof path, "%s/.tried", from_environment.out);
    TS_TRY(ts_replace_file("TS_PROF", path, print_nothing, NULL));
    unlink(path);
    return TS_OK;
}

/** Warns and returns false if an earlier word of `words` has the name of the word at `p`. */
static bool is_new(const char *words, const char *p, size_t length)
{
    size_t name = strcspn(p, "=,");
    for (const char *q = words; q < p; q += strcspn(q, ",") + 1)
        if (strcspn(q, "=,") == name && strncmp(q, p, name) == 0) {
            ts_log_write("warning",
                         "TS_PROF: expected '%.*s' once, got '%.*s' and '%.*s'; no profile is made",
                         (int)name, p, (int)strcspn(q, ","), q, (int)length, p);
            return false;
        }
    return true;
}

/** Parses all words. Warns and returns false if one is invalid. */
static bool take_settings(const char *words, ts_prof_opts *o)
{
    for (const char *p = words; *p; p += strcspn(p, ","), p += *p == ',') {
        size_t length = strcspn(p, ",");
        if (!is_new(words, p, length))
            return false;
        if (!take_setting(p, length, o)) {
            ts_log_write("warning",
                         "TS_PROF: expected 1, trace, memory, detail, flight, nvtx, "
                         "steps=FIRST:LAST, a schedule (skip_first=N, wait=N, warmup=N, active=N, "
                         "repeat=N) or out=FOLDER, separated by commas, got '%.*s'; no profile is "
                         "made",
                         (int)length, p);
            return false;
        }
    }
    return true;
}

/** In a forked child: disables the report at exit, because the parent prints these figures. */
static void disable_in_child(void)
{
    from_environment.state = OFF;
    release_folder(); /* the parent keeps it */
}

void ts_profile_from_environment(void)
{
    const char *words = getenv("TS_PROF");
    ts_prof_opts o = {.size = sizeof o, .ready = report_cycle};
    if (!words || !words[0] || strcmp(words, "0") == 0 || !take_settings(words, &o))
        return;
    if (from_environment.out[0] && take_folder() != TS_OK) { /* reported at the start of a run */
        ts_log_write("warning", "%s; only the report is printed", ts_error_message());
        ts_error_clear();
        from_environment.out[0] = 0;
    } else if (o.trace && !from_environment.out[0]) {
        ts_log_write("warning", "TS_PROF: '%s' without out=FOLDER: no trace is written",
                     o.flight ? "flight" : "trace");
    }
    from_environment.scheduled = o.active > 0;
    from_environment.first_step = o.first_step;
    from_environment.last_step = o.last_step;
    from_environment.cycles = 0;
    if (ts_prof_start(&o) != TS_OK) {
        ts_log_write("warning", "TS_PROF: %s", ts_error_message());
        ts_error_clear();
        return;
    }
    ts_profile_watch_signals(report_after_signal);
    from_environment.state = ARMED;
    TS_PROCESS_AT_END(report_at_end);
    TS_FORK_IN_CHILD(disable_in_child);
}
