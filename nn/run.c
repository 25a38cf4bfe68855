/** @file run.c  The folder of a run: lock, id, log, removal of an earlier run. */
// SPDX-License-Identifier: MIT
#include "include/tessera/nn/run.h"
#include "include/tessera/check.h"
#include "include/tessera/io.h"
#include "include/tessera/program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

/** The content of run.json. Padded numbers keep its length constant, so one write replaces all of
 *  it. */
#define RECORD "{\"run\": %16lld, \"pid\": %10ld}\n"
enum { RECORD_BYTES = 45, MOST_PATH = 4096, MOST_NAME = 63 };
static const char SETTINGS[] = "settings.json";

struct ts_run {
    char *dir;
    int64_t id;
    int fd; /* descriptor of run.json, locked */
    bool resumed;
};

/** Writes DIR/name to path, a buffer of MOST_PATH bytes; writes "" if it does not fit. */
static const char *in_dir(const ts_run *r, char *path, const char *name)
{
    path[0] = 0;
    if (strlen(r->dir) + strlen(name) + 2 <= MOST_PATH)
        stpcpy(stpcpy(stpcpy(path, r->dir), "/"), name);
    return path;
}

static bool is_there(const ts_run *r, const char *name)
{
    char path[MOST_PATH];
    return access(in_dir(r, path, name), F_OK) == 0;
}

/** Reads run.json; false if it is empty or has another format. */
static bool read_record(const ts_run *r, long long *id, long *pid)
{
    char text[RECORD_BYTES + 1] = "", again[2 * RECORD_BYTES];
    if (pread(r->fd, text, RECORD_BYTES, 0) != RECORD_BYTES ||
        sscanf(text, "{\"run\": %lld, \"pid\": %ld}", id, pid) != 2)
        return false;
    snprintf(again, sizeof again, RECORD, *id, *pid);
    return strcmp(text, again) == 0 && *id >= 1 && *id < (long long)1 << 53;
}

static ts_status write_record(const ts_run *r)
{
    char text[2 * RECORD_BYTES];
    snprintf(text, sizeof text, RECORD, (long long)r->id, (long)getpid());
    if (pwrite(r->fd, text, RECORD_BYTES, 0) != RECORD_BYTES ||
        ftruncate(r->fd, RECORD_BYTES) != 0 || fsync(r->fd) != 0)
        return ts_error_set(TS_ERR_IO, "run_open: cannot write '%s/run.json': %s", r->dir,
                            strerror(errno));
    return TS_OK;
}

static ts_status no_run(const ts_run *r)
{
    return ts_error_set_hint(
        TS_ERR_STATE, "start a new run",
        "run_open: there is no run to resume, and so no checkpoint, under '%s'", r->dir);
}

static ts_status fail_existing_run(const ts_run *r)
{
    return ts_error_set_hint(
        TS_ERR_STATE, "resume it, overwrite it, or give the new run a folder of its own",
        "run_open: '%s' holds an earlier run", r->dir);
}

/** True if the folder has log.csv or checkpoints, even without run.json. */
static bool has_results(const ts_run *r)
{
    return is_there(r, "log.csv") || is_there(r, "checkpoints");
}

static ts_status lock(ts_run *r)
{
    long long id;
    long pid;
    if (flock(r->fd, LOCK_EX | LOCK_NB) == 0)
        return TS_OK;
    if (errno != EWOULDBLOCK) {
        ts_log_write("run", "%s is not locked: %s", r->dir, strerror(errno));
        return TS_OK;
    }
    char who[32] = "another process";
    if (read_record(r, &id, &pid))
        snprintf(who, sizeof who, "process %ld", pid);
    return ts_error_set_hint(TS_ERR_STATE, "stop it first, or give each run a folder of its own",
                             "run_open: '%s' is in use by the run of %s", r->dir, who);
}

/** Removes checkpoints, log.csv, settings and outputs of an earlier run. run.json stays until the
 *  caller replaces it, so that an interrupted removal can be repeated. */
static ts_status remove_existing_run(const ts_run *r, const ts_run_opts *o)
{
    char path[MOST_PATH];
    TS_TRY(ts_checkpoint_remove_all(r->dir));
    for (int i = -2; i < o->noutputs; i++)
        if (unlink(in_dir(r, path, i == -2 ? SETTINGS : i < 0 ? "log.csv" : o->outputs[i])) != 0 &&
            errno != ENOENT)
            return ts_error_set(TS_ERR_IO, "run_open: cannot remove '%s': %s", path,
                                strerror(errno));
    return TS_OK;
}

static ts_status take(ts_run *r, const ts_run_opts *o)
{
    char path[MOST_PATH];
    long long id;
    long pid;
    if (o->resume && !is_there(r, "run.json"))
        return no_run(r);
    if (!o->resume) {
        TS_TRY(ts_make_folders(r->dir));
        if (!o->overwrite && !is_there(r, "run.json") && has_results(r))
            return fail_existing_run(r);
    }
    TS_TRY(ts_open_file("run_open", in_dir(r, path, "run.json"),
                        O_RDWR | (o->resume ? 0 : O_CREAT), &r->fd));
    TS_TRY(lock(r));
    bool known = read_record(r, &id, &pid);
    if (o->resume) {
        if (!known)
            return no_run(r);
        r->id = id;
    } else {
        if (!o->overwrite && (known || has_results(r)))
            return fail_existing_run(r);
        TS_TRY(remove_existing_run(r, o));
        uint64_t bits = 0;
        while (!r->id) {
            if (getrandom(&bits, sizeof bits, 0) != sizeof bits)
                return ts_error_set(TS_ERR_IO, "run_open: cannot draw an id: %s", strerror(errno));
            r->id = (int64_t)(bits >> 11);
        }
    }
    r->resumed = o->resume;
    return write_record(r);
}

ts_run *ts_run_open(const char *dir, const ts_run_opts *opts)
{
    ts_run_opts o;
    TS_TRY_NULL(TS_CHECK_POINTERS(dir));
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    TS_TRY_NULL(TS_CHECK_STRINGS(o.outputs, o.noutputs));
    if (!*dir || strlen(dir) > MOST_PATH - 300 || (o.resume && o.overwrite)) {
        ts_error_set(TS_ERR_VALUE,
                     "run_open: expected a folder of 1 to %d characters, and at most one of resume "
                     "and overwrite, got %zu characters%s",
                     MOST_PATH - 300, strlen(dir), o.resume && o.overwrite ? " and both" : "");
        return NULL;
    }
    for (int i = 0; i < o.noutputs; i++)
        if (!*o.outputs[i] || strchr(o.outputs[i], '/')) {
            ts_error_set(TS_ERR_VALUE,
                         "run_open: argument 'outputs[%d]': expected the name of a file in the "
                         "folder, got '%s'", i, o.outputs[i]);
            return NULL;
        }
    ts_run *r = calloc(1, sizeof *r);
    if (!r || !(r->dir = strdup(dir))) {
        free(r);
        ts_error_memory("a run", sizeof *r);
        return NULL;
    }
    r->fd = -1;
    if (take(r, &o) != TS_OK) {
        ts_run_close(r);
        return NULL;
    }
    return r;
}

int64_t ts_run_id(const ts_run *run) { return run ? run->id : 0; }

void ts_run_close(ts_run *run)
{
    if (!run)
        return;
    if (run->fd >= 0)
        close(run->fd); /* releases the lock, too */
    free(run->dir);
    free(run);
}

/* ------------------------------------------------------------------------------ settings ---- */

typedef struct settings {
    const char *const *names;
    const int64_t *values;
    int n;
} settings;

static ts_status write_settings(FILE *out, void *ctx)
{
    const settings *s = ctx;
    for (int i = 0; i < s->n; i++)
        fprintf(out, "%s\n  \"%s\": %lld", i ? "," : "{", s->names[i], (long long)s->values[i]);
    fprintf(out, "%s\n}\n", s->n ? "" : "{");
    return TS_OK;
}

static ts_status check_setting(const ts_run *r, const settings *s, const char *name, int64_t saved)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->names[i], name) == 0 && s->values[i] != saved)
            return ts_error_set_hint(
                TS_ERR_STATE, "resume with the settings of the saved run, or start a new run",
                "run_settings: '%s': expected %s %lld, as in the saved run, got %lld", r->dir, name,
                (long long)saved, (long long)s->values[i]);
    return TS_OK;
}

/** Compares the settings with those of a file, a name and a number in each line but the outer. */
static ts_status check_settings(const ts_run *r, const settings *s, const char *path)
{
    int fd, end;
    char line[256], name[MOST_NAME + 1];
    long long saved;
    ts_status status = TS_OK;
    TS_TRY(ts_open_file("run_settings", path, O_RDONLY, &fd));
    FILE *file = fdopen(fd, "r");
    if (!file) {
        close(fd);
        return ts_error_memory("the stream of a file", BUFSIZ);
    }
    errno = 0;
    while (status == TS_OK && fgets(line, sizeof line, file)) {
        if (strcmp(line, "{\n") == 0 || strcmp(line, "}\n") == 0)
            continue;
        end = 0;
        if (sscanf(line, " \"%63[^\"]\": %lld%n", name, &saved, &end) == 2 &&
            (strcmp(line + end, ",\n") == 0 || strcmp(line + end, "\n") == 0))
            status = check_setting(r, s, name, saved);
        else
            status = ts_error_set(TS_ERR_FORMAT, "run_settings: '%s': expected a name and a number "
                                  "in each line", path);
    }
    if (status == TS_OK && ferror(file))
        status = ts_error_set(errno == ENOMEM ? TS_ERR_MEMORY : TS_ERR_IO,
                              "run_settings: cannot read '%s': %s", path, strerror(errno));
    fclose(file);
    return status;
}

ts_status ts_run_settings(const ts_run *run, const char *const *names, const int64_t *values, int n)
{
    char path[MOST_PATH];
    settings s = {names, values, n};
    TS_TRY(TS_CHECK_OBJECTS(run));
    TS_TRY(TS_CHECK_STRINGS(names, n));
    TS_TRY(TS_CHECK_LIST(values, n));
    for (int i = 0; i < n; i++)
        TS_TRY(TS_CHECK_NAME(names[i], MOST_NAME, "\"\\", NULL));
    in_dir(run, path, SETTINGS);
    if (!run->resumed)
        return ts_replace_file("run_settings", path, write_settings, &s);
    return is_there(run, SETTINGS) ? check_settings(run, &s, path) : TS_OK;
}

/* ----------------------------------------------------------------------------------- log ---- */

/** The last cell of each complete row must be the run's id; the CSV code checks the header. */
static ts_status check_rows(const ts_run *r, const char *path)
{
    int fd;
    char id[24], *line = NULL;
    size_t bytes = 0;
    ssize_t length;
    ts_status status = TS_OK;
    TS_TRY(ts_open_file("run_log", path, O_RDONLY, &fd));
    FILE *file = fdopen(fd, "r");
    if (!file) {
        close(fd);
        return ts_error_memory("the stream of a log", BUFSIZ);
    }
    snprintf(id, sizeof id, ",%lld\n", (long long)r->id);
    errno = 0;
    for (int64_t row = 0; status == TS_OK && (length = getline(&line, &bytes, file)) > 0; row++) {
        const char *cell = strrchr(line, ',');
        if (row && line[length - 1] == '\n' && (!cell || strcmp(cell, id) != 0))
            status = ts_error_set(
                TS_ERR_STATE, "run_log: '%s' line %lld: expected a row of run %lld, got \"%.*s\"",
                path, (long long)row + 1, (long long)r->id, (int)length - 1, line);
    }
    if (status == TS_OK && !feof(file))
        status = ts_error_set(errno == ENOMEM ? TS_ERR_MEMORY : TS_ERR_IO,
                              "run_log: cannot read '%s': %s", path, strerror(errno));
    free(line);
    fclose(file);
    return status;
}

ts_csv *ts_run_log(const ts_run *run, const char *const *columns, int ncolumns, int64_t last_step)
{
    char path[MOST_PATH];
    TS_TRY_NULL(TS_CHECK_OBJECTS(run));
    TS_TRY_NULL(TS_CHECK_STRINGS(columns, ncolumns));
    if (ncolumns < 2 || strcmp(columns[ncolumns - 1], "run") != 0) {
        ts_error_set(TS_ERR_VALUE,
                     "run_log: argument 'columns': expected at least two, the last one \"run\", "
                     "got %d", ncolumns);
        return NULL;
    }
    in_dir(run, path, "log.csv");
    if (!run->resumed)
        return ts_csv_create(path, columns, ncolumns);
    if (is_there(run, "log.csv"))
        TS_TRY_NULL(check_rows(run, path));
    return ts_csv_resume(path, columns, ncolumns, last_step);
}
