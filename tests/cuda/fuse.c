/**
 * @file fuse.c
 * Fused groups of CUDA, tested without a GPU: kernels of random groups are compiled for two compute
 * capabilities, and their machine code is stored on disk.
 *
 * A mock device has the kernels of the CUDA backend, so plans group calls as they do on a GPU. It
 * uses host memory, and compiles the kernels without running them.
 */
// SPDX-License-Identifier: MIT
#include <tessera/backend.h>

#include "tests/cuda/folds.h"
#include "tests/cuda/rows.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Declarations of backends/cuda/fuse/fuse.h, which needs CUDA's headers. */
typedef struct compiled_code {
    void *image;
    size_t bytes;
    bool from_disk;
} compiled_code;
typedef ts_status (*compile_function)(const ts_group_call *calls, int count, int capability,
                                      compiled_code *compiled);
typedef ts_status (*compile_members_function)(const ts_group_call *calls, int count, int members,
                                              int capability, compiled_code *compiled);

static const ts_backend *cuda;
static compile_function compile_group;
static compile_members_function compile_members;
static int joined; /* number of groups with members */
static int groups, calls_in_groups, from_disk, capability;

static void *allocate(void *state, int index, int64_t bytes, ts_stream *stream)
{
    (void)state, (void)index, (void)stream;
    return calloc(1, (size_t)bytes);
}
static void release(void *state, int index, void *data, int64_t bytes)
{
    (void)state, (void)index, (void)bytes;
    free(data);
}
static ts_status copy(void *state, int index, void *to, const void *from, int64_t bytes,
                      ts_stream *stream)
{
    (void)state, (void)index, (void)stream;
    memcpy(to, from, (size_t)bytes);
    return TS_OK;
}
static ts_status install(void *state, ts_key key)
{
    (void)state;
    return cuda->install(cuda->state, key);
}
static bool group_takes(void *state, ts_frame *frame, ts_kernel kernel)
{
    (void)state;
    return cuda->group_takes(cuda->state, frame, kernel);
}
/** Asserts that a group's code is an ELF file, frees and counts it, and fills *report. */
static void take_code(const compiled_code *code, int count, ts_group_report *report)
{
    ck_assert_ptr_nonnull(code->image);
    ck_assert(memcmp(code->image, "\177ELF", 4) == 0);
    free(code->image);
    groups++;
    calls_in_groups += count;
    from_disk += code->from_disk;
    *report = (ts_group_report){.launches = 1, .compile_ms = 1, .from_disk = code->from_disk};
}

static ts_status group_run(void *state, int index, const ts_group_call *calls, int count,
                           ts_stream *stream, ts_group_report *report)
{
    (void)state, (void)index, (void)stream;
    compiled_code code = {0};
    TS_TRY(compile_group(calls, count, capability, &code));
    take_code(&code, count, report);
    return TS_OK;
}
static ts_status group_run_members(void *state, int index, const ts_group_call *calls, int count,
                                   int members, ts_stream *stream, ts_group_report *report)
{
    (void)state, (void)index, (void)stream;
    compiled_code code = {0};
    TS_TRY(compile_members(calls, count, members, capability, &code));
    take_code(&code, count * members, report);
    joined++;
    return TS_OK;
}
static bool with_epilogues;
static int64_t epilogue_cost(void *state, const ts_group_call *calls, int count)
{
    (void)state;
    return with_epilogues ? cuda->epilogue_cost(cuda->state, calls, count) : -1;
}
static const ts_backend mock = {
    .struct_size = sizeof mock, .abi_version = TS_BACKEND_ABI, .name = "FUSE", .install = install,
    .allocate = allocate, .free = release, .copy_in = copy, .copy_out = copy, .copy_within = copy,
    .group_takes = group_takes, .group_run = group_run,
    .group_run_members = group_run_members, .epilogue_cost = epilogue_cost};

/** Opens the test's device; false, with a reason, where there is no CUDA backend or no NVRTC. */
static bool open_device(ts_device *device, const char **why)
{
    ts_key key;
    *why = "no CUDA backend";
    if (ts_backend_open("cuda", NULL) != TS_OK)
        return false;
    void *library = dlopen("libtessera_cuda.so.0", RTLD_NOW | RTLD_NOLOAD);
    ck_assert_msg(library, "%s", dlerror());
    const ts_backend *(*entry)(void);
    *(void **)&entry = dlsym(library, TS_BACKEND_ENTRY_NAME);
    *(void **)&compile_group = dlsym(library, "ts_cuda_group_compile");
    *(void **)&compile_members = dlsym(library, "ts_cuda_members_compile");
    bool (*has_nvrtc)(const char **);
    *(void **)&has_nvrtc = dlsym(library, "ts_cuda_nvrtc");
    ck_assert(entry && compile_group && compile_members && has_nvrtc);
    cuda = entry();
    if (!has_nvrtc(why))
        return false;
    OK(ts_register_backend(&mock, &key));
    *device = (ts_device){(uint8_t)key, 0};
    return true;
}
#define DEVICE(device)                                                                             \
    ts_device device;                                                                              \
    const char *why;                                                                               \
    if (!open_device(&device, &why))                                                               \
    TS_SKIP("%s", why)

/** A folder of this process for machine code. */
static char folder[64];
static void set_folder(void)
{
    strcpy(folder, "/tmp/tessera-groups-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    setenv("TS_CUDA_CACHE", folder, 1);
}
static void end_folder(void)
{
    DIR *dir = opendir(folder);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.')
            unlink(path);
    }
    if (dir)
        closedir(dir);
    rmdir(folder);
}
#define FOLDER .setup = set_folder, .teardown = end_folder

/** Compiles the groups of a program. Its other calls fail, because there is no GPU. */
static void run_program(const group_program *p, ts_device device)
{
    TS_SCOPE;
    ts_tensor *in[GROUP_INPUTS], *out[GROUP_OUTPUTS];
    ts_manual_seed(p->seed);
    for (int k = 0; k < GROUP_INPUTS; k++)
        OK(in[k] = group_input(p, k, device));
    ts_compiled *c = ts_compile(group_function, (void *)p, NULL);
    ts_status status = ts_compiled_call(c, in, GROUP_INPUTS, out, GROUP_OUTPUTS);
    ck_assert_msg(status == TS_OK || status == TS_ERR_DEVICE, "seed %llu: %s",
                  (unsigned long long)p->seed, ts_error_message());
    ck_assert_int_le(groups, 1000);
    ts_error_clear();
    ts_compiled_free(c);
}

TS_TEST(kernels_of_drawn_groups_compile_for_two_capabilities, FOLDER, .loop = 2, .timeout = 300)
{
    DEVICE(device);
    capability = _i ? 90 : 80;
    for (uint64_t seed = 0; seed < 40; seed++) {
        group_program p = draw_group(seed + 1000 * (uint64_t)_i);
        run_program(&p, device);
    }
    ck_assert_int_gt(groups, 20);
    ck_assert_int_gt(calls_in_groups, 4 * groups);
}

TS_TEST(kernels_of_the_same_calls_on_many_tensors_compile, FOLDER, .loop = 2, .timeout = 300)
{
    DEVICE(device);
    capability = _i ? 90 : 80;
    for (uint64_t seed = 0; seed < 24; seed++) {
        TS_SCOPE;
        group_program p = draw_group(seed + 1000 * (uint64_t)_i);
        ts_tensor *in[ALIKE_INPUTS], *out[ALIKE_INPUTS];
        for (int k = 0; k < ALIKE_INPUTS; k++)
            OK(in[k] = alike_input(&p, k, device));
        ts_compiled *c = ts_compile(alike_function, &p, NULL);
        OK(ts_compiled_call(c, in, ALIKE_INPUTS, out, ALIKE_INPUTS));
        ts_compiled_free(c);
    }
    ck_assert_int_gt(joined, 20);
    ck_assert_int_gt(calls_in_groups, 4 * groups);
}

static ts_status decays(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)m;
    const double *factor = ctx;
    for (int i = 0; i < n; i++)
        TS_TRY(out[i] = ts_add(ts_mul_scalar(in[i], i == 5 ? *factor : 0.25 + i), in[i]));
    return TS_OK;
}

/** One of several equal products has the factor 1. The product is not folded, so it remains a
 *  member of their group. */
TS_TEST(a_factor_of_1_splits_no_list, FOLDER)
{
    DEVICE(device);
    capability = 90;
    TS_SCOPE;
    ts_tensor *in[ALIKE_INPUTS], *out[ALIKE_INPUTS];
    for (int k = 0; k < ALIKE_INPUTS; k++)
        OK(in[k] = ts_to_device(ts_ones(TS_SIZES(64 + k), TS_F32), device));
    double factor = 1;
    ts_compiled *c = ts_compile(decays, &factor, NULL);
    for (int run = 0; run < 2; run++) {
        OK(ts_compiled_call(c, in, ALIKE_INPUTS, out, ALIKE_INPUTS));
        factor = 2; /* the same plan */
    }
    ck_assert_int_eq(joined, 2);
    ck_assert_int_eq(calls_in_groups, 4 * ALIKE_INPUTS);
    ck_assert_int_eq(ts_compiled_get_stats(c).compiles, 1);
    ts_compiled_free(c);
}

/** Each group of a function with calls by rows compiles to one kernel. */
TS_TEST(kernels_of_groups_by_rows_compile, FOLDER, .loop = 2, .timeout = 300)
{
    DEVICE(device);
    capability = _i ? 90 : 80;
    for (uint64_t seed = 0; seed < 48; seed++) {
        TS_SCOPE;
        row_program p = draw_rows(seed + 1000 * (uint64_t)_i);
        ts_tensor *in[ROW_INPUTS], *out[ROW_OUTPUTS];
        for (int k = 0; k < ROW_INPUTS; k++)
            OK(in[k] = ts_to_device(row_input(&p, k), device));
        ts_compiled *c = ts_compile(row_function, &p, NULL);
        ts_status status = ts_compiled_call(c, in, ROW_INPUTS, out, ROW_OUTPUTS);
        ck_assert_msg(status == TS_OK || status == TS_ERR_DEVICE, "%s: %s", row_kinds[p.kind],
                      ts_error_message());
        ts_error_clear();
        ts_compiled_free(c);
    }
    ck_assert_int_gt(groups, 30);
}

/** Each group of a function with reductions of adjacent dims compiles. */
TS_TEST(kernels_of_groups_with_folds_compile, FOLDER, .loop = 2, .timeout = 300)
{
    DEVICE(device);
    capability = _i ? 90 : 80;
    for (uint64_t seed = 0; seed < 48; seed++) {
        TS_SCOPE;
        fold_program p = draw_fold(seed + 1000 * (uint64_t)_i);
        ts_tensor *in[FOLD_INPUTS], *out[FOLD_OUTPUTS];
        for (int k = 0; k < FOLD_INPUTS; k++)
            OK(in[k] = fold_input(&p, k, device));
        ts_compiled *c = ts_compile(fold_function, &p, NULL);
        ts_status status = ts_compiled_call(c, in, FOLD_INPUTS, out, FOLD_OUTPUTS);
        ck_assert_msg(status == TS_OK || status == TS_ERR_DEVICE, "seed %llu: %s",
                      (unsigned long long)p.seed, ts_error_message());
        ts_error_clear();
        ts_compiled_free(c);
    }
    ck_assert_int_gt(groups, 30);
    ck_assert_int_gt(calls_in_groups, 3 * groups);
}

static ts_status chain_of_bytes(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    return TS_STATUS_OF(out[0] = ts_maximum(ts_add(in[0], in[0]), in[0]));
}

TS_TEST(kernels_of_more_than_32_bits_of_elements_compile, FOLDER, .loop = 2)
{
    DEVICE(device);
    capability = _i ? 90 : 80;
    TS_SCOPE;
    int64_t n = ((int64_t)1 << 31) + 5; /* no element is accessed */
    ts_tensor *x = ts_narrow(ts_empty_on(TS_SIZES(n + 1), TS_U8, device), 0, 1, n), *y;
    ts_compiled *c = ts_compile(chain_of_bytes, NULL, NULL);
    OK(ts_compiled_call(c, &x, 1, &y, 1));
    ck_assert_int_eq(groups, 1);
    ts_compiled_free(c);
}

/* ctx: how a function uses the gradient of the input beside that of the weight */
enum { UNWANTED, RETURNED, DROPPED, ADDED };
static ts_status add_gradient(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    int use = *(const int *)ctx;
    ts_tensor *dx = TS_NONE, *dw;
    TS_TRY(ts_linear_backward(in[0], in[1], in[2], use == UNWANTED ? NULL : &dx, &dw, NULL));
    out[1] = use == RETURNED ? dx : TS_NONE;
    return TS_STATUS_OF(out[0] = ts_add(dw, use == ADDED ? dx : in[3]));
}

/* The plan gives no memory to a gradient that is not used after the epilogue. */
TS_TEST(epilogues_do_not_compute_gradients_without_memory, .loop = 4)
{
    DEVICE(device);
    TS_SCOPE;
    with_epilogues = true;
    ts_tensor *in[4], *out[2];
    for (int i = 0; i < 4; i++)
        OK(in[i] = ts_to_device(ts_ones(TS_SIZES(16, 16), TS_F32), device));
    ts_compiled *c = ts_compile(add_gradient, &_i, NULL);
    ck_assert_int_eq(ts_compiled_call(c, in, 4, out, 2), TS_ERR_DEVICE); /* there is no GPU */
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    OK(ts_explain(c, stream));
    fclose(stream);
    bool has = strstr(text, "product with an epilogue") != NULL;
    ck_assert_msg(has == (_i == UNWANTED || _i == RETURNED), "%s", text);
    free(text);
    ts_compiled_free(c);
}

static int own_calls;
static ts_status own_relu(ts_frame *f)
{
    (void)f;
    own_calls++;
    return TS_OK;
}
static ts_status with_relu(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    return TS_STATUS_OF(out[0] = ts_relu(ts_mul(ts_add(in[0], in[0]), in[0])));
}

TS_TEST(a_kernel_from_outside_joins_no_group, FOLDER)
{
    DEVICE(device);
    capability = 90;
    TS_SCOPE;
    ts_kernel_opts opts = {.size = sizeof opts, .dtypes = TS_DTYPE_BIT(TS_F32), .strided = true};
    OK(ts_register_kernel_ex("relu", (ts_key)device.backend, own_relu, &opts, NULL));
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(64), TS_F32), device), *y;
    ts_compiled *c = ts_compile(with_relu, NULL, NULL);
    OK(ts_compiled_call(c, &x, 1, &y, 1));
    ck_assert_int_eq(calls_in_groups, 2);
    ck_assert_int_eq(own_calls, 1); /* it was not run for a description */
    ts_compiled_free(c);
}

/* --------------------------------------------------------------------------------- on disk ---- */

static ts_status small(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    return TS_STATUS_OF(out[0] = ts_mul(ts_add(in[0], in[1]), in[0]));
}

/** Compiles one group. True if its code came from disk. */
static bool run_small(ts_device device)
{
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(64), TS_F32), device), *in[] = {x, x}, *y;
    ts_compiled *c = ts_compile(small, NULL, NULL);
    int before = from_disk, ran = groups;
    OK(ts_compiled_call(c, in, 2, &y, 1));
    ck_assert_int_eq(groups, ran + 1);
    ck_assert_int_eq(ts_compiled_get_stats(c).kernels_read, from_disk - before);
    ts_compiled_free(c);
    return from_disk > before;
}

/** Path of the only file in the folder. */
static const char *the_file(void)
{
    static char path[400];
    DIR *dir = opendir(folder);
    int files = 0;
    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            files++;
        }
    closedir(dir);
    ck_assert_int_eq(files, 1);
    return path;
}

/** Changes one byte of the file at `at` times its length, or (cut) truncates the file there. */
static void damage(const char *path, double at, bool cut)
{
    FILE *f = fopen(path, "r+");
    fseek(f, 0, SEEK_END);
    long place = (long)(at * (double)(ftell(f) - 1));
    if (cut) {
        ck_assert_int_eq(ftruncate(fileno(f), place), 0);
    } else {
        fseek(f, place, SEEK_SET);
        int c = fgetc(f);
        fseek(f, place, SEEK_SET);
        fputc(c ^ 4, f);
    }
    fclose(f);
}

TS_TEST(cached_code_is_read_from_disk_and_damaged_files_are_rejected, FOLDER)
{
    DEVICE(device);
    capability = 90;
    ck_assert(!run_small(device));
    ck_assert(run_small(device));
    for (int cut = 0; cut < 2; cut++)
        for (int k = 0; k <= 8; k++) {
            damage(the_file(), k / 8.0, cut);
            ck_assert_msg(!run_small(device), "a file with damage at %d / 8 was read", k);
            ck_assert(run_small(device));
        }
    capability = 80; /* another name */
    ck_assert(!run_small(device));
}

TS_TEST(cached_code_that_others_may_write_is_rejected, FOLDER)
{
    DEVICE(device);
    struct stat status;
    capability = 90;
    ck_assert(!run_small(device));
    ck_assert_int_eq(stat(the_file(), &status), 0);
    ck_assert_int_eq(status.st_mode & 0777, 0600);
    ck_assert_int_eq(chmod(the_file(), 0622), 0);
    ck_assert(!run_small(device)); /* and replaced */
    ck_assert(run_small(device));
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(the_file(), 12345, 12345), 0);
        ck_assert(!run_small(device));
        ck_assert(run_small(device));
    }
    char link[400], target[420];
    snprintf(link, sizeof link, "%s", the_file());
    snprintf(target, sizeof target, "%s-moved", link);
    ck_assert_int_eq(rename(link, target), 0);
    ck_assert_int_eq(symlink(target, link), 0);
    ck_assert(!run_small(device)); /* a link is not followed */
    unlink(target);
}

TS_TEST(without_a_cache_folder_code_is_compiled_in_each_process, FOLDER)
{
    DEVICE(device);
    capability = 90;
    static const char *const none[] = {"0", "/proc/no/such", "relative"};
    for (int i = 0; i < 3; i++) {
        setenv("TS_CUDA_CACHE", none[i], 1);
        ck_assert(!run_small(device));
        ck_assert(!run_small(device));
    }
    setenv("TS_CUDA_CACHE", folder, 1);
}

TS_TEST(processes_that_store_the_same_code_do_not_conflict, FOLDER)
{
    DEVICE(device);
    capability = 90;
    pid_t children[6];
    for (int i = 0; i < 6; i++)
        if ((children[i] = fork()) == 0) {
            run_small(device);
            _exit(run_small(device) ? 0 : 1);
        }
    for (int i = 0; i < 6; i++) {
        int status;
        ck_assert_int_eq(waitpid(children[i], &status, 0), children[i]);
        ck_assert_int_eq(status, 0);
    }
    the_file();
    ck_assert(run_small(device));
}
