/** @file run.c  Starting and stopping a profile, its scopes and steps, TS_PROF. */
// SPDX-License-Identifier: MIT
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hooks.h"
#include "core/process.h"
#include "dispatch/device_times.h"
#include "dispatch/timers.h"
#include "include/tessera/check.h"
#include "include/tessera/program.h"
#include "init.h"
#include "ops/kernel.h"
#include "profile/device.h"

ts_status ts_prof_start(const ts_prof_opts *opts)
{
    static const int updates[] = {TS_OP_adamw, TS_OP_sgd};
    ts_prof_opts o;
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    if (o.first_step < 0 || o.last_step < 0 || (o.last_step && o.last_step < o.first_step))
        return ts_error_set(TS_ERR_VALUE,
                            "prof_start: expected 0 <= first_step <= last_step, or last_step 0, "
                            "got %lld and %lld",
                            (long long)o.first_step, (long long)o.last_step);
    if (ts_timers_recording())
        return ts_error_set(TS_ERR_STATE, "prof_start: a profile records already");
    TS_TRY(ts_prof_measure_calls(o.trace));
    ts_timers_mark_updates(updates, TS_COUNTOF(updates));
    ts_timers_record_as(&(ts_recording){o.first_step, o.last_step, o.trace, o.flight, o.detail});
    ts_above.profile_ended = ts_device_measure_early;
    ts_memory_begin();
    ts_device_times_begin();
    ts_device_times_name_ranges(o.ranges);
    ts_memory_log_begin(o.memory);
    ts_status status = ts_timers_record(true);
    if (status != TS_OK) {
        ts_memory_log_end();
        ts_device_times_end();
    }
    return status;
}

ts_status ts_prof_stop(void) { return ts_timers_recording() ? ts_timers_record(false) : TS_OK; }
bool ts_prof_active(void) { return ts_timers_recording(); }
void ts_prof_step(void) { ts_timers_step(); }

ts_status ts_prof_enter(const char *name)
{
    TS_TRY(TS_CHECK_POINTERS(name));
    ts_timers_scope(name);
    return TS_OK;
}

void ts_prof_leave(void) { ts_timers_scope(NULL); }

/* -------------------------------------------------------------------------- environment ---- */

static struct {
    char out[256]; /* a folder, or "" */
    _Atomic enum { OFF, ARMED, WRITES } state; /* WRITES: a thread writes the report */
} from_environment;

static ts_status print_json(FILE *out, void *ctx)
{
    return ts_profile_write(ctx, out, TS_PROFILE_JSON);
}
static ts_status print_chrome(FILE *out, void *ctx)
{
    return ts_profile_write(ctx, out, TS_PROFILE_CHROME);
}

static ts_status keep_as(ts_profile *p, const char *name, ts_status (*print)(FILE *out, void *ctx),
                         const char *what)
{
    char *path = ts_path("%s/%s", from_environment.out, name);
    ts_status status = path ? ts_replace_file("TS_PROF", path, print, p) : TS_ERR_MEMORY;
    if (status == TS_OK)
        fprintf(stderr, "wrote %s; %s\n", path, what);
    ts_sys_free(path);
    return status;
}

static ts_status keep(ts_profile *p)
{
    TS_TRY(keep_as(p, "profile.json", print_json, "`ts-prof report` prints and draws it"));
    return p->traced ? keep_as(p, "trace.json", print_chrome, "ui.perfetto.dev opens it") : TS_OK;
}

/** In a forked child: disables the report at exit, because the parent prints these figures. */
static void leave_to_parent(void) { from_environment.state = OFF; }

void ts_profile_report(void)
{
    unsigned armed = ARMED;
    if (!atomic_compare_exchange_strong(&from_environment.state, &armed, WRITES))
        return;
    ts_prof_stop();
    ts_profile *p = ts_profile_take();
    ts_status status = p ? ts_profile_write(p, stderr, TS_PROFILE_TABLES) : ts_error_code();
    if (status == TS_OK && from_environment.out[0])
        status = keep(p);
    if (status != TS_OK)
        fprintf(stderr, "%s%s\n", p ? "" : "TS_PROF: ", ts_error_message());
    ts_profile_free(p);
    ts_profile_ignore_signals();
    from_environment.state = OFF;
}

static void report_at_end(void)
{
    ts_profile_report();
    ts_profile_await_signal();
}

/** After a signal. If exit() writes the report already, waits for it; a crash there ends the wait
 *  of the crashed thread later (PATIENCE). */
static void report_after_signal(void)
{
    ts_machine_measure_no_more(); /* it takes seconds, and other threads still compute */
    ts_profile_report();
    while (from_environment.state == WRITES)
        usleep(1000);
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
    if (strncmp(text, "out=", 4) == 0 && text[4] && length - 4 < sizeof from_environment.out) {
        memcpy(from_environment.out, text + 4, length - 3);
        return true;
    }
    char *colon = strchr(text, ':');
    if (strncmp(text, "steps=", 6) != 0 || !colon)
        return false;
    *colon = 0;
    bool good = ts_parse_int("steps", text + 6, 1, INT64_MAX, &o->first_step) == TS_OK &&
                ts_parse_int("steps", colon + 1, o->first_step, INT64_MAX, &o->last_step) == TS_OK;
    ts_error_clear();
    return good;
}

static ts_status print_nothing(FILE *out, void *ctx)
{
    (void)out, (void)ctx;
    return TS_OK;
}

/** Makes the folder and those around it, and tries to write there. */
static ts_status make_folder(void)
{
    char path[sizeof from_environment.out + 16];
    snprintf(path, sizeof path, "%s", from_environment.out);
    for (char *at = path + 1; (at = strchr(at, '/')) != NULL; *at++ = '/') {
        *at = 0;
        ts_files.mkdir(path, 0777); /* there already: fine */
    }
    ts_files.mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/.tried", from_environment.out);
    TS_TRY(ts_replace_file("TS_PROF", path, print_nothing, NULL));
    unlink(path);
    return TS_OK;
}

void ts_profile_from_environment(void)
{
    const char *words = getenv("TS_PROF");
    ts_prof_opts o = {.size = sizeof o};
    if (!words || !words[0] || strcmp(words, "0") == 0)
        return;
    for (const char *p = words; *p; p += strcspn(p, ","), p += *p == ',') {
        size_t length = strcspn(p, ",");
        if (!take_setting(p, length, &o)) {
            ts_log_write("warning",
                         "TS_PROF: expected 1, trace, memory, detail, flight, nvtx, "
                         "steps=FIRST:LAST or out=FOLDER, separated by commas, got '%.*s'; no "
                         "profile is made",
                         (int)length, p);
            return;
        }
    }
    if (from_environment.out[0] && make_folder() != TS_OK) { /* told now, not after hours */
        ts_log_write("warning", "%s; only the report is printed", ts_error_message());
        ts_error_clear();
        from_environment.out[0] = 0;
    }
    if (ts_prof_start(&o) != TS_OK) {
        ts_log_write("warning", "TS_PROF: %s", ts_error_message());
        ts_error_clear();
        return;
    }
    ts_profile_watch_signals(report_after_signal);
    from_environment.state = ARMED;
    ts_process_at_end(report_at_end);
    ts_fork_in_child(leave_to_parent);
}
