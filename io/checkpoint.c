/**
 * @file checkpoint.c  Saving a checkpoint: atomic even if the process or the machine stops.
 *
 * The order of the calls gives the guarantee: write files, then the manifest, in a folder with a
 * temporary name; flush and read back everything; rename the folder; flush the rename; remove older
 * checkpoints. A checkpoint of the same step is first renamed to STEP.old-PID, which
 * ts_checkpoint_find() also reads.
 */
// SPDX-License-Identifier: MIT
#include "io/checkpoint.h"

#include <errno.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/alloc.h"
#include "io/safetensors.h"

static const char op[] = "checkpoint_save";

typedef struct save {
    int64_t step;
    const ts_checkpoint_section *sections; /* manifest.nfiles entries; borrowed */
    ts_st_plan *plans;    /* manifest.nfiles entries; the first `planned` are made and owned */
    int planned;
    ts_manifest manifest; /* json is borrowed */
    char *root;      /* dir/checkpoints */
    char *path;      /* root/STEP */
    char *temporary; /* root/STEP.tmp-PID */
    char *aside;     /* root/STEP.old-PID */
    int root_fd;     /* of root, locked if the file system has locks; -1: not open */
} save;

/* ----------------------------------------------------------------------- before writing ---- */

static ts_status check_sections(const save *s, ts_check_place at)
{
    for (int i = 0; i < s->manifest.nfiles; i++) {
        const ts_checkpoint_section *section = &s->sections[i];
        const char *name = section->name;
        if (!name)
            return ts_check_null(at, "sections.name", 0, false);
        if (!ts_section_name_ok(name))
            return ts_fail_op(TS_ERR_VALUE, op, NULL, NULL,
                              "section %d: expected a name of 1 to 64 of a-z A-Z 0-9 _ - that "
                              "begins with a letter, got '%s'",
                              i, ts_quote(name));
        if (section->count > TS_ST_MAX_TENSORS)
            return ts_check_refuse(at, "sections.count", "at most 1000000",
                                   ts_scalar_int(section->count));
        TS_TRY(ts_check_strings(at, "sections.names", "sections.count", section->names,
                                section->count));
        TS_TRY(ts_check_tensor_list(at, "sections.tensors", "sections.count", section->tensors,
                                    section->count));
        for (int j = 0; j < i; j++)
            if (strcmp(name, s->sections[j].name) == 0)
                return ts_fail_op(TS_ERR_VALUE, op, NULL, NULL,
                                  "expected sections of distinct names, got '%s' twice", name);
    }
    return TS_OK;
}

/* Checks all arguments and builds all headers and paths before anything is written to disk. */
static ts_status prepare(save *s, const char *dir, ts_check_place at)
{
    int n = s->manifest.nfiles;
    char *text;
    size_t bytes;
    TS_TRY(check_sections(s, at));
    s->plans = ts_sys_calloc((size_t)n * sizeof *s->plans);
    s->manifest.files = ts_sys_calloc((size_t)n * sizeof *s->manifest.files);
    if (!s->plans || !s->manifest.files)
        return ts_error_memory("a checkpoint", n * (int64_t)sizeof *s->plans);
    for (; s->planned < n; s->planned++) {
        const ts_checkpoint_section *section = &s->sections[s->planned];
        strcpy(s->manifest.files[s->planned].name, section->name);
        TS_TRY(ts_st_plan_make(&s->plans[s->planned], op, section->name, section->names,
                               section->tensors, section->count, NULL, NULL, 0));
    }
    TS_TRY(ts_manifest_make(op, &s->manifest, &text, &bytes));
    ts_sys_free(text);
    TS_TRY(s->root = ts_path("%s/checkpoints", dir));
    TS_TRY(s->path = ts_path("%s/%lld", s->root, (long long)s->step));
    TS_TRY(s->temporary = ts_path("%s.tmp-%ld", s->path, (long)getpid()));
    TS_TRY(s->aside = ts_path("%s.old-%ld", s->path, (long)getpid()));
    return TS_OK;
}

static ts_status lock(save *s, const char *on_behalf)
{
    TS_TRY(ts_folder_open(on_behalf, s->root, &s->root_fd));
    /* on a file system without locks, save without a lock */
    if (ts_files.flock(s->root_fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return ts_fail_op(TS_ERR_STATE, on_behalf, NULL, "give each run a folder of its own",
                          "'%s': another save is running", s->root);
    return TS_OK;
}

static bool has_whole(const ts_checkpoint_list *list, int64_t step)
{
    for (int64_t i = 0; i < list->count; i++)
        if (list->folders[i].step == step && list->folders[i].kind == TS_CHECKPOINT_WHOLE)
            return true;
    return false;
}

/* Cleans up after killed saves: renames STEP.old-PID back to STEP if STEP is missing, and removes
 * all other folders with temporary names. */
static ts_status clean_up_after_kills(const save *s)
{
    ts_checkpoint_list list;
    ts_status status = ts_checkpoint_list_make(op, s->root, &list);
    for (int64_t i = 0; status == TS_OK && i < list.count; i++) {
        const ts_checkpoint_folder *f = &list.folders[i];
        char *path = ts_path("%s/%s", s->root, f->name), *back = NULL;
        status = TS_STATUS_OF(path);
        if (status == TS_OK && f->kind == TS_CHECKPOINT_ASIDE && !has_whole(&list, f->step)) {
            back = ts_path("%s/%lld", s->root, (long long)f->step);
            status = TS_STATUS_OF(back);
            if (status == TS_OK && ts_files.rename(path, back) != 0)
                status = ts_file_refused(op, "bring back", path);
        } else if (status == TS_OK && f->kind != TS_CHECKPOINT_WHOLE) {
            if (!ts_folder_remove(path))
                ts_log_write("io", "cannot remove %s: %s", path, strerror(errno));
        }
        ts_sys_free(back);
        ts_sys_free(path);
    }
    ts_checkpoint_list_free(&list);
    return status;
}

/* ------------------------------------------------------------------------------ writing ---- */

static ts_status write_section(save *s, int i)
{
    ts_writer w;
    ts_manifest_file *f = &s->manifest.files[i];
    char *path = ts_path("%s/%s.safetensors", s->temporary, f->name);
    TS_TRY(path);
    ts_status status = ts_writer_open(&w, op, path);
    if (status == TS_OK) {
        status = ts_st_plan_write(&w, &s->plans[i]);
        f->bytes = w.bytes;
        if (status == TS_OK)
            status = ts_writer_finish(&w, f->hash);
        else
            ts_writer_abandon(&w);
    }
    ts_sys_free(path);
    return status;
}

static ts_status write_manifest(save *s)
{
    ts_writer w;
    char *text = NULL;
    size_t bytes;
    char *path = ts_path("%s/%s", s->temporary, TS_MANIFEST);
    ts_status status = path ? ts_manifest_make(op, &s->manifest, &text, &bytes) : ts_error_code();
    if (status == TS_OK)
        status = ts_writer_open(&w, op, path);
    if (status == TS_OK) {
        status = ts_writer_write(&w, text, (int64_t)bytes);
        if (status == TS_OK)
            status = ts_writer_finish(&w, NULL);
        else
            ts_writer_abandon(&w);
    }
    if (text)
        ts_sys_free(text);
    ts_sys_free(path);
    return status;
}

/* Writes the folder under its temporary name, flushes it, and reads it back to verify hashes. */
static ts_status write_folder(save *s)
{
    int fd;
    if (ts_files.mkdir(s->temporary, 0777) != 0)
        return ts_file_refused(op, "make the folder", s->temporary);
    for (int i = 0; i < s->manifest.nfiles; i++)
        TS_TRY(write_section(s, i));
    TS_TRY(write_manifest(s));
    TS_TRY(ts_folder_open(op, s->temporary, &fd));
    ts_status status = ts_folder_sync(op, s->temporary, fd);
    ts_file_close(fd);
    TS_TRY(status);
    ts_checkpoint *written = ts_checkpoint_read(op, s->temporary);
    TS_TRY(written);
    ts_checkpoint_close(written);
    return TS_OK;
}

/* Renames the temporary folder to STEP. An existing STEP is renamed to STEP.old-PID first. */
static ts_status put_in_place(save *s)
{
    struct stat old;
    bool there = ts_files.stat(s->path, &old) == 0;
    if (!there && errno != ENOENT)
        return ts_file_refused(op, "examine", s->path);
    if (there && ts_files.rename(s->path, s->aside) != 0)
        return ts_file_refused(op, "move aside", s->path);
    if (ts_files.rename(s->temporary, s->path) != 0) {
        ts_status status = ts_file_refused(op, "rename the new checkpoint to", s->path);
        if (there && ts_files.rename(s->aside, s->path) != 0)
            ts_log_write("io", "cannot rename %s back to %s: %s", s->aside, s->path,
                         strerror(errno));
        return status;
    }
    return ts_folder_sync(op, s->root, s->root_fd);
}

/* ----------------------------------------------------------------------- after the save ---- */

/* Removes a checkpoint. It is renamed to STEP.tmp-PID first, because a half-removed folder must not
 * look like a checkpoint. */
static bool discard(const save *s, const ts_checkpoint_folder *f)
{
    char *path = ts_path("%s/%s", s->root, f->name);
    char *temporary =
        path ? ts_path("%s/%lld.tmp-%ld", s->root, (long long)f->step, (long)getpid()) : NULL;
    bool removed =
        temporary && ts_files.rename(path, temporary) == 0 && ts_folder_remove(temporary);
    if (!removed)
        ts_log_write("io", "cannot remove %s: %s", f->name,
                     temporary ? strerror(errno) : "out of memory");
    ts_sys_free(temporary);
    ts_sys_free(path);
    return removed;
}

/* Removes STEP.old-PID folders, and older checkpoints so that `keep` remain. The new checkpoint is
 * already safe, so failures are only logged; the next save tries again. */
static void prune(const save *s, int keep)
{
    ts_checkpoint_list list;
    int older = 0;
    if (ts_checkpoint_list_make(op, s->root, &list) != TS_OK) {
        ts_log_write("io", "cannot remove old checkpoints: %s", ts_error_message());
        ts_error_clear();
    }
    for (int64_t i = 0; i < list.count; i++) {
        const ts_checkpoint_folder *f = &list.folders[i];
        bool whole = f->kind == TS_CHECKPOINT_WHOLE;
        if (whole && f->step > s->step)
            ts_log_write("io", "%s/%s is newer than step %lld, which was just saved; it stays",
                         s->root, f->name, (long long)s->step);
        if (whole && f->step < s->step)
            older++;
        if (f->kind == TS_CHECKPOINT_ASIDE || (whole && f->step < s->step && older >= keep))
            discard(s, f);
    }
    ts_checkpoint_list_free(&list);
}

static void finish(save *s)
{
    for (int i = 0; i < s->planned; i++)
        ts_st_plan_free(&s->plans[i]);
    ts_sys_free(s->plans);
    ts_sys_free(s->manifest.files);
    ts_sys_free(s->root);
    ts_sys_free(s->path);
    ts_sys_free(s->temporary);
    ts_sys_free(s->aside);
    ts_file_close(s->root_fd);
}

ts_status ts_checkpoint_save(const char *dir, int64_t step, const ts_checkpoint_section *sections,
                             int nsections, const char *json_text, const ts_checkpoint_opts *opts)
{
    ts_checkpoint_opts o;
    TS_TRY(TS_CHECK_POINTERS(dir));
    TS_TRY(TS_CHECK_LIST(sections, nsections));
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    if (!*dir)
        return ts_fail_op(TS_ERR_VALUE, op, __builtin_return_address(0), NULL,
                          "argument 'dir': expected the path of a folder, got ''");
    TS_TRY(TS_CHECK_VALUE(step, step >= 0, "at least 0"));
    TS_TRY(TS_CHECK_VALUE(nsections, nsections <= TS_MAX_SECTIONS, "at most 64 sections"));
    TS_TRY(TS_CHECK_VALUE(o.keep, o.keep >= 0, "at least 1, or 0 for 2"));
    save s = {.step = step, .sections = sections, .root_fd = -1};
    s.manifest =
        (ts_manifest){.step = step, .nfiles = nsections, .json = (char *)(uintptr_t)json_text};
    ts_status status = prepare(&s, dir, TS_CHECK_HERE);
    if (status == TS_OK)
        status = ts_folder_make(op, dir);
    if (status == TS_OK)
        status = ts_folder_make(op, s.root);
    if (status == TS_OK)
        status = lock(&s, op);
    if (status == TS_OK)
        status = clean_up_after_kills(&s);
    if (status == TS_OK) {
        status = write_folder(&s);
        if (status == TS_OK)
            status = put_in_place(&s);
        if (status == TS_OK)
            prune(&s, o.keep ? o.keep : 2);
        else
            ts_folder_remove(s.temporary);
    }
    finish(&s);
    return status;
}

ts_status ts_checkpoint_remove_all(const char *dir)
{
    static const char remove_all[] = "checkpoint_remove_all";
    TS_TRY(TS_CHECK_POINTERS(dir));
    struct stat there;
    save s = {.root_fd = -1};
    ts_checkpoint_list list = {0};
    TS_TRY(s.root = ts_path("%s/checkpoints", dir));
    ts_status status = TS_OK;
    if (ts_files.stat(s.root, &there) == 0) {
        status = lock(&s, remove_all);
        if (status == TS_OK)
            status = ts_checkpoint_list_make(remove_all, s.root, &list);
        /* oldest first, so that the newest state survives a kill */
        for (int64_t i = list.count - 1; status == TS_OK && i >= 0; i--)
            if (!discard(&s, &list.folders[i]))
                status = ts_file_refused(remove_all, "remove all checkpoints in", s.root);
    } else if (errno != ENOENT) {
        status = ts_file_refused(remove_all, "examine", s.root);
    }
    ts_checkpoint_list_free(&list);
    finish(&s);
    return status;
}
