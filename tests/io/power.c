/**
 * @file power.c  The machine loses power: unflushed data is lost, torn or present, in any
 * combination.
 *
 * The test records the system calls of a save. For each prefix of the record it builds a folder as
 * a crash may leave it. A name that was created, renamed or removed is certain after its folder was
 * flushed; data is certain after its file was flushed. Any other change may be present or lost,
 * independent of later ones, and data may be cut or zeros. The complete old or new state must load.
 */
// SPDX-License-Identifier: MIT
#include <fcntl.h>

#include "tests/io/scenario.h"

typedef enum step_kind {
    STEP_CREATE,
    STEP_WRITE,
    STEP_FLUSH,
    STEP_RENAME,
    STEP_UNLINK,
    STEP_MKDIR,
    STEP_RMDIR
} step_kind;

typedef struct step {
    step_kind kind;
    char path[240], to[240];
    char *data;
    size_t bytes;
} step;

enum { MOST_STEPS = 400, MOST_FDS = 1024 };
static step steps[MOST_STEPS];
static int nsteps;
static char open_path[MOST_FDS][240];
static ts_file_table real;

/* ---------------------------------------------------------------------------- recording ---- */

static step *record(step_kind kind, const char *path)
{
    ck_assert_int_lt(nsteps, MOST_STEPS);
    step *s = &steps[nsteps++];
    *s = (step){.kind = kind};
    snprintf(s->path, sizeof s->path, "%s", path);
    return s;
}

static int record_open(const char *path, int flags, mode_t mode)
{
    int fd = real.open(path, flags, mode);
    ck_assert_int_lt(fd, MOST_FDS);
    if (fd >= 0) {
        int length = (int)strlen(path);
        length -= path[length - 1] == '/';
        snprintf(open_path[fd], sizeof open_path[fd], "%.*s", length, path);
    }
    if (fd >= 0 && flags & O_CREAT)
        record(STEP_CREATE, path);
    return fd;
}

static ssize_t record_write(int fd, const void *data, size_t bytes)
{
    ssize_t n = real.write(fd, data, bytes);
    if (n > 0) {
        step *s = record(STEP_WRITE, open_path[fd]);
        s->data = malloc((size_t)n);
        ck_assert_ptr_nonnull(s->data);
        memcpy(s->data, data, (size_t)n);
        s->bytes = (size_t)n;
    }
    return n;
}

static int record_fsync(int fd)
{
    record(STEP_FLUSH, open_path[fd]);
    return 0;
}

static int record_rename(const char *from, const char *to)
{
    int result = real.rename(from, to);
    if (result == 0)
        snprintf(record(STEP_RENAME, from)->to, sizeof steps->to, "%s", to);
    return result;
}

#define RECORD_NAME(call, kind)                    \
    static int record_##call(const char *path)     \
    {                                              \
        int result = real.call(path);              \
        if (result == 0)                           \
            record(kind, path);                    \
        return result;                             \
    }
RECORD_NAME(unlink, STEP_UNLINK)
RECORD_NAME(rmdir, STEP_RMDIR)

static int record_mkdir(const char *path, mode_t mode)
{
    int result = real.mkdir(path, mode);
    if (result == 0)
        record(STEP_MKDIR, path);
    return result;
}

static void begin_record(void)
{
    real = ts_files;
    nsteps = 0;
    ts_files.open = record_open;
    ts_files.write = record_write;
    ts_files.fsync = record_fsync;
    ts_files.rename = record_rename;
    ts_files.unlink = record_unlink;
    ts_files.mkdir = record_mkdir;
    ts_files.rmdir = record_rmdir;
}

static void end_record(void) { ts_files = real; }

static void clear_record(void)
{
    while (nsteps)
        free(steps[--nsteps].data);
}

/* --------------------------------------------------------------------- after the crash ---- */

/* Unflushed entries that survive: none, all, or a random choice. */
typedef enum fate { FATE_LOST, FATE_KEPT, FATE_RANDOM } fate;

static uint64_t draw(uint64_t seed, int i)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 30)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* True if the folder that contains step i's path was flushed after step i and before step `end`. */
static bool name_is_certain(int i, int end)
{
    size_t length = (size_t)(strrchr(steps[i].path, '/') - steps[i].path);
    for (int k = i + 1; k < end; k++)
        if (steps[k].kind == STEP_FLUSH && strlen(steps[k].path) == length &&
            memcmp(steps[k].path, steps[i].path, length) == 0)
            return true;
    return false;
}

/* Writes the file that step i created, with flushed data and the part of other data that `data`
 * selects. */
static void make_file(int i, int end, fate data, uint64_t seed)
{
    size_t size = 0, certain = 0;
    for (int k = i + 1; k < end; k++) {
        if (strcmp(steps[k].path, steps[i].path) != 0)
            continue;
        size += steps[k].kind == STEP_WRITE ? steps[k].bytes : 0;
        certain = steps[k].kind == STEP_FLUSH ? size : certain;
    }
    char *bytes = malloc(size + 1);
    ck_assert_ptr_nonnull(bytes);
    size_t at = 0;
    for (int k = i + 1; k < end; k++)
        if (steps[k].kind == STEP_WRITE && strcmp(steps[k].path, steps[i].path) == 0) {
            memcpy(bytes + at, steps[k].data, steps[k].bytes);
            at += steps[k].bytes;
        }
    size_t keep = data == FATE_LOST ? certain : size;
    if (data == FATE_RANDOM && size > certain) {
        keep = certain + draw(seed, i) % (size - certain + 1);
        if (draw(seed, i + 1000) & 1) /* the file's length is new, its data is zeros */
            memset(bytes + certain, 0, size - certain);
    }
    FILE *file = fopen(steps[i].path, "wb");
    if (file) { /* its folder may be lost, too */
        ck_assert_uint_eq(fwrite(bytes, 1, keep, file), keep);
        fclose(file);
    }
    free(bytes);
}

/* Applies the first `end` steps to the previous state, as a crash leaves them. */
static void crash(int end, fate names, fate data, uint64_t seed)
{
    for (int i = 0; i < end; i++) {
        const step *s = &steps[i];
        if (s->kind == STEP_WRITE || s->kind == STEP_FLUSH)
            continue;
        if (!name_is_certain(i, end) &&
            (names == FATE_LOST || (names == FATE_RANDOM && draw(seed, i + 2000) & 1)))
            continue;
        switch (s->kind) {
        case STEP_CREATE: make_file(i, end, data, seed); break;
        case STEP_RENAME: rename(s->path, s->to); break;
        case STEP_UNLINK: unlink(s->path); break;
        case STEP_MKDIR: mkdir(s->path, 0777); break;
        default: rmdir(s->path);
        }
    }
}

enum { FATES = 12 };
static fate fate_of_names(int f) { return f < 6 ? (fate)(f / 3) : FATE_RANDOM; }
static fate fate_of_data(int f) { return (fate)(f % 3); }

/* ---------------------------------------------------------------------------- checkpoints ---- */

/* The folder of the run exists before the save. */
static void make_folder_and_run(const scenario *s)
{
    make_folder(s);
    mkdir(dir, 0777);
}

TS_TEST(a_power_cut_at_any_point_leaves_old_or_new, .loop = SCENARIOS, IN_FOLDER)
{
    const scenario *s = &scenarios[_i];
    make_folder_and_run(s);
    begin_record();
    ck_ok(run_save(dir, s->step, 2, 2));
    end_record();
    for (int end = 0; end <= nsteps; end++)
        for (int f = 0; f < FATES; f++) {
            char place[80];
            make_folder_and_run(s);
            crash(end, fate_of_names(f), fate_of_data(f), (uint64_t)end * FATES + (uint64_t)f);
            snprintf(place, sizeof place, "cut after step %d of %d, fate %d", end, nsteps, f);
            check_after(s, end == nsteps, place);
            ts_tally_as(TS_COUNT_FAULT_POINTS, 1, 0, 0);
        }
    printf("%s: %d crash points\n", s->name, (nsteps + 1) * FATES);
    clear_record();
}

/* --------------------------------------------------------------------------- single files ---- */

TS_TEST(a_power_cut_leaves_the_old_file_or_the_new_one, .loop = 2, IN_FOLDER)
{
    TS_SCOPE;
    const char *name = "t";
    char path[128];
    float values[50];
    ts_tensor *t[2] = {ts_full(TS_SIZES(50), TS_SCALAR(1), TS_F32),
                       ts_full(TS_SIZES(50), TS_SCALAR(2), TS_F32)};
    snprintf(path, sizeof path, "%s", in_folder("file"));
#define SAVE(k)                                                                                    \
    (_i ? ts_npy_save(path, t[k]) : ts_safetensors_save(path, &name, &t[k], 1, NULL, NULL, 0))
    ck_ok(SAVE(0));
    begin_record();
    ck_ok(SAVE(1));
    end_record();
    for (int end = 0; end <= nsteps; end++)
        for (int f = 0; f < FATES; f++) {
            TS_SCOPE;
            unlink(path);
            ck_ok(SAVE(0));
            crash(end, fate_of_names(f), fate_of_data(f), (uint64_t)end * FATES + (uint64_t)f);
            ts_safetensors *st = _i ? NULL : ts_safetensors_open(path, NULL);
            ck_ok(ts_copy_to(_i ? ts_npy_load(path) : ts_safetensors_load(st, "t"), values,
                             sizeof values));
            ts_safetensors_close(st);
            ck_assert(values[0] == 2 || (values[0] == 1 && end < nsteps));
            for (int i = 1; i < 50; i++)
                ck_assert_float_eq(values[i], values[0]);
            ts_tally_as(TS_COUNT_FAULT_POINTS, 1, 0, 0);
        }
    clear_record();
}
