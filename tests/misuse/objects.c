/**
 * @file objects.c
 * Objects of the library, and files; callbacks.c has the callbacks that misbehave.
 *
 * All files are in one folder of the process. A write elsewhere is a finding and is prevented.
 */
// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/files.h"
#include "tests/misuse/misuse.h"
#include "tests/profile/small.h"

/* --------------------------------------------------------------------------------- files ---- */

static char top[64]; /* the process's folder, with a subfolder for each hand (thread) */

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(path);
}
static void empty_folder(void)
{
    nftw(my->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    mkdir(my->folder, 0777);
    my->used_folder = false;
}

void expect_files(void) { my->used_folder = true; }

static bool ours(const char *path)
{
    if (strncmp(path, top, strlen(top)) == 0 || !*path)
        return true;
    finding("the library would change '%s'", path);
    errno = EPERM;
    return false;
}
static ts_file_table real_files;
static int our_open(const char *path, int flags, mode_t mode)
{
    bool changes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
    return changes && !ours(path) ? -1 : real_files.open(path, flags, mode);
}
static int our_rename(const char *from, const char *to)
{
    return ours(from) && ours(to) ? real_files.rename(from, to) : -1;
}
static int our_unlink(const char *path) { return ours(path) ? real_files.unlink(path) : -1; }
static int our_mkdir(const char *path, mode_t mode)
{
    return ours(path) ? real_files.mkdir(path, mode) : -1;
}
static int our_rmdir(const char *path) { return ours(path) ? real_files.rmdir(path) : -1; }
static int no_fsync(int fd) { return (void)fd, 0; }

/** Contents of valid files. */
enum { TENSORS_FILE, NPY_FILE, NPZ_FILE, PNG_FILE, IDX_FILE, CSV_FILE, TOKENS_FILE, GOOD_FILES };
static struct {
    char bytes[1024];
    size_t size;
} good[GOOD_FILES];
static const char *const columns[] = {"step", "loss"};

static const char *in_folder(const char *file)
{
    char *path = arena(512);
    if (!path)
        return my->folder;
    snprintf(path, 512, "%s/%s", my->folder, file);
    return path;
}
static void save_valid_file(int which, const char *path)
{
    FILE *file = fopen(path, "rb");
    good[which].size = file ? fread(good[which].bytes, 1, sizeof good[which].bytes, file) : 0;
    if (file)
        fclose(file);
}

static ts_status write_bytes(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    if (file) {
        fwrite(bytes, 1, size, file);
        fclose(file);
    }
    return TS_OK;
}

void begin_objects(void)
{
    const char *parent = getenv("TMPDIR");
    if (!parent || strlen(parent) > 32)
        parent = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    snprintf(top, sizeof top, "%s/tessera-misuse-XXXXXX", parent);
    if (!mkdtemp(top)) {
        perror(top);
        exit(2);
    }
    for (int i = 0; i < HANDS; i++) {
        snprintf(hands[i].folder, sizeof hands[i].folder, "%s/%d", top, i);
        mkdir(hands[i].folder, 0777);
    }
    real_files = ts_files;
    ts_files.open = our_open, ts_files.rename = our_rename, ts_files.unlink = our_unlink;
    ts_files.mkdir = our_mkdir, ts_files.rmdir = our_rmdir, ts_files.fsync = no_fsync;
    TS_SCOPE;
    ts_tensor *pair[] = {ts_ones((int64_t[]){2, 3}, 2, TS_F32), ts_arange(0, 4, 1, TS_I64)};
    ts_safetensors_save(in_folder("good"), (const char *[]){"a", "b"}, pair, 2,
                        (const char *[]){"step"}, (const char *[]){"5"}, 1);
    save_valid_file(TENSORS_FILE, in_folder("good"));
    ts_npy_save(in_folder("npy"), pair[0]);
    save_valid_file(NPY_FILE, in_folder("npy"));
    ts_npz_save(in_folder("npz"), (const char *[]){"a", "b"}, pair, 2);
    save_valid_file(NPZ_FILE, in_folder("npz"));
    ts_png_save(in_folder("png"), ts_to(pair[0], TS_U8)); /* fails without libpng */
    save_valid_file(PNG_FILE, in_folder("png"));
    static const char idx[] = "\0\0\x08\1\0\0\0\3abc";
    memcpy(good[IDX_FILE].bytes, idx, good[IDX_FILE].size = sizeof idx - 1);
    static const char log[] = "step,loss\n1,2.5\n2,\n3,1.25\n";
    memcpy(good[CSV_FILE].bytes, log, good[CSV_FILE].size = sizeof log - 1);
    good[TOKENS_FILE].size = 600;
    for (int i = 0; i < 600; i++)
        good[TOKENS_FILE].bytes[i] = (char)(i % 7);
    empty_folder();
}

void end_objects(void) { nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

/** The kind of file that the running function reads, by its name. */
static int file_kind_of_function(void)
{
    return strstr(my->name, "npy")      ? NPY_FILE
           : strstr(my->name, "npz")    ? NPZ_FILE
           : strstr(my->name, "png")    ? PNG_FILE
           : strstr(my->name, "idx")    ? IDX_FILE
           : strstr(my->name, "csv")    ? CSV_FILE
           : strstr(my->name, "loader") ? TOKENS_FILE
                                    : TENSORS_FILE;
}

static const char *good_checkpoint(const char *dir)
{
    ts_tensor *t = ts_ones((int64_t[]){2}, 1, TS_F32);
    ts_checkpoint_section section = {"model", (const char *[]){"a"}, &t, 1};
    for (int64_t step = 1; step < 3; step++)
        ts_checkpoint_save(dir, step, &section, 1, "{\"a\": {\"b\": 1.5}, \"loss\": \"x\"}", NULL);
    ts_error_clear();
    return dir;
}

char *draw_path(const char *argument)
{
    char file[32], *path;
    bool ours_made = strstr(my->name, "checkpoint") || strstr(my->name, "training");
    int what = one_in(my->mostly_right ? 4 : 2) ? below(20) : ours_made ? 18 : 20;
    my->used_folder = true;
    my->files = (my->files + 1) % 100;
    snprintf(file, sizeof file, "f%d", my->files);
    path = (char *)in_folder(file);
    int which = one_in(4) ? below(GOOD_FILES) : file_kind_of_function();
    char bytes[sizeof good[0].bytes];
    size_t size = good[which].size;
    memcpy(bytes, good[which].bytes, sizeof bytes);
    switch (what) {
    case 0: path = NULL; break;
    case 1: path = (char *)""; break;
    case 2: write_bytes(path, bytes, (size_t)below((int)size + 1)); break;
    case 3: case 4:
        for (int i = below(6); i >= 0; i--)
            bytes[below((int)size)] = (char)next();
        write_bytes(path, bytes, size);
        break;
    case 5:
        for (size_t i = 0; i < size; i++)
            bytes[i] = (char)next();
        write_bytes(path, bytes, size);
        break;
    case 6: write_bytes(path, bytes, 0); break;
    case 7: mkdir(path, 0777); break;
    case 8: if (mkfifo(path, 0666)) path = NULL; break;
    case 9: if (symlink(path, path)) path = NULL; break;
    case 10:
        write_bytes(path, bytes, size);
        path = (char *)in_folder("link");
        if (symlink(file, path)) path = NULL;
        break;
    case 11:
        write_bytes(path, bytes, size);
        strcat(path, "/below");
        break;
    case 12: strcat(path, "\x1b[31m\n\xe2\x80\xae\xff"); break;
    case 13: memset(path + strlen(path), 'n', 300); break;
    case 14: strcat(path, "/no/such"); break;
    case 15: strcat(path, "/"); break;
    case 16: path = my->folder; break;
    case 17: break;
    case 18: good_checkpoint(path); break;
    case 19: strcat(good_checkpoint(path) ? path : my->folder, "/checkpoints/2"); break;
    default: write_bytes(path, bytes, size);
    }
    say_name(argument);
    say("path %d", what);
    return path;
}

/* ------------------------------------------------------------------------------- objects ---- */

void add_object(object_kind kind, const void *p)
{
    if (p && my->nobjects < TS_COUNTOF(my->objects))
        my->objects[my->nobjects++] = (object){kind, (void *)p};
}

bool any_object(object_kind kind)
{
    for (int i = 0; i < my->nobjects; i++)
        if (my->objects[i].kind == kind)
            return true;
    return false;
}

/** A dataset whose samples sometimes fail. The threads of a loader call it. */
static int64_t odd_length(void *payload) { return (void)payload, 5; }
static ts_status odd_get(void *payload, int64_t index, ts_tensor **sample)
{
    (void)payload;
    sample[0] = index == 1 ? NULL : ts_uniform((int64_t[]){2, index % 3}, 2, 0, 1, TS_F32);
    return index == 3 ? ts_error_set(TS_ERR_IO, "odd_get: the sample is odd") : TS_OK;
}
static const ts_dataset odd_dataset = {sizeof odd_dataset, odd_length, odd_get, NULL, 1};

static void free_object(object o)
{
    switch (o.kind) {
    case MODULE: ts_module_free(o.p); break;
    case OPTIMIZER: ts_optimizer_free(o.p); break;
    case SCALER: ts_grad_scaler_free(o.p); break;
    case LOADER: ts_loader_close(o.p); break;
    case EMA: ts_ema_free(o.p); break;
    case NPZ: ts_npz_close(o.p); break;
    case DATASET:
        if (o.p != (const void *)&odd_dataset)
            ts_tensor_dataset_free(o.p);
        break;
    case CSV: ts_csv_close(o.p); break;
    case CHART: ts_chart_free(o.p); break;
    case PROFILE: ts_profile_free(o.p); break;
    case PROGRESS: ts_progress_free(o.p); break;
    case RUN: ts_run_close(o.p); break;
    case SAFETENSORS: ts_safetensors_close(o.p); break;
    case CHECKPOINT: ts_checkpoint_close(o.p); break;
    case GRAPH: ts_graph_free(o.p); break;
    case COMPILED: ts_compiled_free(o.p); break;
    case LIST: ts_named_tensors_free(o.p); break;
    case KEPT: ts_release(o.p); break;
    case KEPT_NODE: ts_node_release(o.p); break;
    case LOCALE: ts_c_locale_leave(&o.p); break;
    default: break; /* its owner frees it */
    }
}

void free_row_objects(void)
{
    while (my->nobjects > my->nlent)
        free_object(my->objects[--my->nobjects]);
    my->nobjects = my->nlent = 0;
    for (my->nobject_places = 0; my->ndescriptors; my->ndescriptors--)
        if (*my->descriptors[my->ndescriptors - 1] > 2)
            close(*my->descriptors[my->ndescriptors - 1]);
    if (my->used_folder)
        empty_folder();
}

void borrow_objects(const hand *owner)
{
    memcpy(my->objects, owner->objects, (size_t)owner->nobjects * sizeof *my->objects);
    my->nobjects = my->nlent = owner->nobjects;
}

static ts_status small_part(void *ctx, ts_tensor *const *inputs, int n, ts_tensor **outputs, int m)
{
    (void)ctx, (void)n, (void)m;
    return TS_STATUS_OF(outputs[0] = ts_sum(ts_mul(inputs[0], inputs[0])));
}

/** Makes a valid object of a kind. */
static void *make_object(object_kind kind)
{
    static const ts_group_opts group = {.size = sizeof group, .lr = 0.1};
    ts_module *module;
    ts_tensor *t, *out = NULL;
    ts_graph *graph = NULL;
    switch (kind) {
    case MODULE:
        switch (below(4)) {
        case 0: return ts_linear_new(3, 2, one_in(2));
        case 1: return ts_layer_norm_new(2, 0, true);
        case 2: return ts_mlp_new(2, 3, NULL);
        default:
            module = ts_sequential_new();
            ts_sequential_add(module, ts_linear_new(3, 2, true));
            return module;
        }
    case OPTIMIZER: {
        module = draw_object(MODULE, "of");
        return module ? ts_optimizer_for(module, (ts_optimizer_kind)below(3), &group) : NULL;
    }
    case SCALER: return ts_grad_scaler_new(NULL);
    case EMA:
        module = draw_object(MODULE, "of");
        return module ? ts_ema_new(module, 0.5) : NULL;
    case NPZ:
        my->used_folder = true;
        write_bytes(in_folder("z"), good[NPZ_FILE].bytes, good[NPZ_FILE].size);
        return ts_npz_open(in_folder("z"));
    case DATASET:
        t = ts_ones((int64_t[]){6, 2}, 2, TS_F32);
        return one_in(2) ? (void *)&odd_dataset : (void *)ts_tensor_dataset_new(&t, 1);
    case LOADER:
        write_bytes(in_folder("tokens"), good[TOKENS_FILE].bytes, good[TOKENS_FILE].size);
        my->used_folder = true;
        return ts_loader_open(in_folder("tokens"),
                              TS_OPTS(ts_loader_opts, .batch = 2, .length = 4, .dtype = TS_U8,
                                      .no_thread = !one_in(20)));
    case CSV: return my->used_folder = true, ts_csv_create(in_folder("log"), columns, 2);
    case CHART: return ts_chart_new(NULL);
    case PROFILE:
        my->used_folder = true;
        write_bytes(in_folder("profile"), small_profile, sizeof small_profile - 1);
        return ts_profile_read(in_folder("profile"));
    case PROGRESS:
        return ts_progress_new(below(20), TS_OPTS(ts_progress_opts, .stream = stream,
                                                  .mode = (ts_progress_mode)below(4)));
    case RUN: return my->used_folder = true, ts_run_open(in_folder("run"), NULL);
    case SAFETENSORS:
        my->used_folder = true;
        write_bytes(in_folder("st"), good[TENSORS_FILE].bytes, good[TENSORS_FILE].size);
        return ts_safetensors_open(in_folder("st"), NULL);
    case CHECKPOINT: {
        ts_checkpoint *found = NULL;
        my->used_folder = true;
        ts_checkpoint_find(good_checkpoint(in_folder("dir")), &found);
        return found;
    }
    case GRAPH:
        t = ts_ones(my->shape, my->dims, TS_F32);
        ts_trace(small_part, NULL, &t, 1, &out, 1, &graph);
        return graph;
    case COMPILED: return ts_compile(small_part, NULL, NULL);
    case LIST: return arena(sizeof(ts_named_tensors));
    case KEPT: return ts_retain(pick_tensor());
    case SCOPE: return arena(sizeof(ts_scope));
    case REGION: return arena(sizeof(ts_autocast_region));
    case STREAM: case EVENT: return one_in(2) ? arena(16) : NULL;
    default: return NULL;
    }
}

int pick_object(object_kind kind, int first)
{
    int count = 0, picked = -1;
    for (int i = first; i < my->nobjects; i++)
        if (my->objects[i].kind == kind && one_in(++count))
            picked = i;
    return picked;
}

void *new_object(object_kind kind, const char *argument)
{
    void *p = one_in(my->mostly_right ? 40 : 12) ? NULL : make_object(kind);
    add_object(kind, p);
    say_name(argument);
    say(p ? "object" : "NULL");
    return p;
}

static void *draw_from(object_kind kind, const char *argument, int first)
{
    if (argument[0])
        say_name(argument);
    bool none = one_in(my->mostly_right ? 40 : 12) && kind < FRAME;
    int picked = none || one_in(6) ? -1 : pick_object(kind, first);
    if (picked < 0 && !none) {
        add_object(kind, make_object(kind));
        picked = pick_object(kind, first);
    }
    say(picked < 0 ? "NULL" : "object");
    return picked < 0 ? NULL : my->objects[picked].p;
}
void *draw_object(object_kind kind, const char *argument) { return draw_from(kind, argument, 0); }
/** A scope that is not entered yet, or NULL; TS_SCOPE has its own. */
ts_scope *draw_scope(const char *argument)
{
    ts_scope *scope = one_in(12) ? NULL : arena(sizeof *scope);
    say_name(argument);
    say(scope ? "object" : "NULL");
    if (scope)
        add_object(SCOPE, scope);
    return scope;
}
void *give_object(object_kind kind, const char *argument)
{
    /* inside a callback, only objects that it has made itself are freed */
    int first = my->nesting ? my->nobjects : my->nlent;
    void *p = draw_from(kind, argument, first);
    for (int i = first; p && i < my->nobjects; i++)
        if (my->objects[i].kind == kind && my->objects[i].p == p)
            return my->objects[i] = my->objects[--my->nobjects], p;
    return p;
}

void **draw_locale(const char *argument)
{
    void **place = arena(sizeof *place);
    if (place)
        *place = give_object(LOCALE, argument);
    return place;
}

void *draw_object_place(object_kind kind, const char *argument)
{
    void **place = one_in(my->mostly_right ? 60 : 12) ? NULL : arena(64);
    say_name(argument);
    say(place ? "place" : "NULL");
    if (place && my->nobject_places < TS_COUNTOF(my->object_places)) {
        my->object_places[my->nobject_places].kind = kind;
        my->object_places[my->nobject_places++].place = place;
    }
    return place;
}
int *draw_descriptor(const char *argument)
{
    (void)argument;
    bool full = my->ndescriptors == TS_COUNTOF(my->descriptors);
    int *fd = one_in(12) || full ? NULL : arena(sizeof *fd);
    if (fd)
        *fd = -1, my->descriptors[my->ndescriptors++] = fd;
    return fd;
}
void collect_places(void)
{
    while (my->nobject_places) {
        int i = --my->nobject_places;
        if (my->object_places[i].kind < KINDS)
            add_object(my->object_places[i].kind, *my->object_places[i].place);
    }
}

void make_shared_objects(void)
{
    static const object_kind kinds[] = {GRAPH, SAFETENSORS};
    for (int i = 0; i < TS_COUNTOF(kinds); i++)
        add_object(kinds[i], make_object(kinds[i]));
}
