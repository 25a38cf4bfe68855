/** @file safetensors.c  Safetensors files: bytes of the reference library, round trips, misuse. */
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/stat.h>

#include "core/tensor.h"
#include "tests/growth.h"
#include "tests/io/folder.h"
#include "tests/io/golden.h"
#include "tests/threads.h"

static ts_safetensors *open_golden(void)
{
    write_file(in_folder("golden.safetensors"), golden, sizeof golden);
    ts_safetensors *st = ts_safetensors_open(in_folder("golden.safetensors"), NULL);
    ck_ok(st);
    return st;
}

TS_TEST(golden_index_is_read, IN_FOLDER)
{
    static const struct {
        const char *name;
        ts_dtype dtype;
        int ndim;
        int64_t sizes[2];
    } want[] = {
        {"a", TS_I64, 0, {0}},      {"none", TS_F64, 2, {0, 4}}, {"b.weight", TS_F32, 2, {2, 3}},
        {"h", TS_F16, 1, {2}},      {"größe", TS_U8, 1, {2}},    {"mask", TS_BOOL, 1, {3}},
    };
    ts_safetensors *st = open_golden();
    ck_assert_int_eq(ts_safetensors_count(st), 6);
    for (int i = 0; i < 6; i++) {
        ck_assert_str_eq(ts_safetensors_name(st, i), want[i].name);
        ck_assert_int_eq(ts_safetensors_find(st, want[i].name), i);
        ck_assert_int_eq(ts_safetensors_dtype(st, i), want[i].dtype);
        ck_assert_int_eq(ts_safetensors_ndim(st, i), want[i].ndim);
        ck_assert_mem_eq(ts_safetensors_sizes(st, i), want[i].sizes, (size_t)want[i].ndim * 8);
    }
    ck_assert_int_eq(ts_safetensors_find(st, "b"), -1);
    ck_assert_int_eq(ts_safetensors_metadata_count(st), 1);
    ck_assert_str_eq(ts_safetensors_metadata(st, "format"), "np");
    ck_assert_ptr_null(ts_safetensors_metadata(st, "author"));
    ck_assert_ptr_null(ts_safetensors_name(st, 6));
    ck_assert_ptr_null(ts_safetensors_name(st, -1));
    ts_safetensors_close(st);
}

TS_TEST(golden_values_are_read, IN_FOLDER)
{
    static const float weight[] = {-2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f};
    static const uint16_t half[] = {0x3e00, 0xc000};
    TS_SCOPE;
    ts_safetensors *st = open_golden();
    ts_tensor *all[6];
    int64_t seven;
    ck_ok(ts_safetensors_load_all(st, all));
    ts_safetensors_close(st); /* tensors do not need the file */
    ck_ok(ts_item_int(all[0], &seven));
    ck_assert_int_eq(seven, 7);
    ck_assert_int_eq(ts_numel(all[1]), 0);
    ck_assert_mem_eq(ts_data(all[2]), weight, sizeof weight);
    ck_assert_mem_eq(ts_data(all[3]), half, sizeof half);
    ck_assert_mem_eq(ts_data(all[4]), "\x01\xff", 2);
    ck_assert_mem_eq(ts_data(all[5]), "\x01\x00\x01", 3);
}

TS_TEST(same_tensors_give_the_golden_bytes_in_any_order, .loop = 6, IN_FOLDER)
{
    TS_SCOPE;
    ts_safetensors *st = open_golden();
    ts_tensor *all[6], *turned[6];
    const char *names[6], *format = "format", *np = "np";
    ck_ok(ts_safetensors_load_all(st, all));
    for (int i = 0; i < 6; i++) {
        turned[i] = all[(i * 5 + _i) % 6];
        names[i] = ts_safetensors_name(st, (i * 5 + _i) % 6);
    }
    ck_ok(ts_safetensors_save(in_folder("again"), names, turned, 6, &format, &np, 1));
    size_t bytes;
    unsigned char *data = read_file(in_folder("again"), &bytes);
    ck_assert_uint_eq(bytes, sizeof golden);
    ck_assert_mem_eq(data, golden, sizeof golden);
    free(data);
    ts_safetensors_close(st);
}

/* --------------------------------------------------------------------------- round trips ---- */

static const int64_t shapes[][8] = {{0}, {5}, {0}, {3, 4}, {2, 0, 3}, {2, 1, 3, 1, 2, 1, 1, 2}};
static const int ndims[] = {0, 1, 1, 2, 3, 8};

TS_TEST(every_dtype_and_shape_round_trips, .loop = TS_DTYPE_COUNT, IN_FOLDER)
{
    TS_SCOPE;
    ts_tensor *tensors[6];
    const char *names[] = {"zero-dim", "one", "empty", "matrix", "hollow", "eight"};
    for (int i = 0; i < 6; i++) {
        unsigned char data[24 * 8];
        for (size_t b = 0; b < sizeof data; b++)
            data[b] = (unsigned char)(_i == TS_BOOL ? b & 1 : b * 37 + (size_t)i);
        tensors[i] = ts_from_array(data, (ts_dtype)_i, shapes[i], ndims[i]);
        ck_ok(tensors[i]);
    }
    ck_ok(ts_safetensors_save(in_folder("file"), names, tensors, 6, NULL, NULL, 0));
    ts_safetensors *st = ts_safetensors_open(in_folder("file"), NULL);
    ck_ok(st);
    for (int i = 0; i < 6; i++) {
        ts_tensor *t = ts_safetensors_load(st, names[i]);
        ck_ok(t);
        ck_assert_int_eq(ts_dtype_of(t), _i);
        ck_assert_int_eq(ts_ndim(t), ndims[i]);
        ck_assert_mem_eq(ts_sizes(t), shapes[i], (size_t)ndims[i] * 8);
        if (ts_numel(t))
            ck_assert_mem_eq(ts_data(t), ts_data(tensors[i]),
                             (size_t)ts_numel(t) * ts_dtype_size((ts_dtype)_i));
    }
    ts_safetensors_close(st);
}

TS_TEST(a_file_without_tensors_round_trips, IN_FOLDER)
{
    ck_ok(ts_safetensors_save(in_folder("file"), NULL, NULL, 0, NULL, NULL, 0));
    ts_safetensors *st = ts_safetensors_open(in_folder("file"), NULL);
    ck_ok(st);
    ck_assert_int_eq(ts_safetensors_count(st), 0);
    ck_assert_int_eq(ts_safetensors_find(st, ""), -1);
    ck_ok(ts_safetensors_load_all(st, NULL));
    ts_safetensors_close(st);
}

TS_TEST(names_and_metadata_of_all_kinds_round_trip, IN_FOLDER)
{
    TS_SCOPE;
    char longest[1025];
    memset(longest, 'n', 1024);
    longest[1024] = 0;
    const char *names[] = {"", "\"quoted\\\"", "new\nline\t\x01", "日本語", longest, "a/../b"};
    const char *keys[] = {"z", "", "\x7f", "m\"\\"}, *values[] = {"", "\n", "[1, {\"x\": 2}]", "ä"};
    ts_tensor *tensors[6];
    for (int i = 0; i < 6; i++)
        ck_ok(tensors[i] = ts_full(TS_SIZES(1), TS_SCALAR(i), TS_I32));
    ck_ok(ts_safetensors_save(in_folder("file"), names, tensors, 6, keys, values, 4));
    ts_safetensors *st = ts_safetensors_open(in_folder("file"), NULL);
    ck_ok(st);
    for (int i = 0; i < 6; i++) {
        int64_t got;
        ck_ok(ts_item_int(ts_safetensors_load(st, names[i]), &got));
        ck_assert_int_eq(got, i);
    }
    ck_assert_int_eq(ts_safetensors_metadata_count(st), 4);
    ck_assert_str_eq(ts_safetensors_metadata_key(st, 0), "");
    ck_assert_str_eq(ts_safetensors_metadata_value(st, 0), "\n");
    for (int i = 0; i < 4; i++)
        ck_assert_str_eq(ts_safetensors_metadata(st, keys[i]), values[i]);
    ts_safetensors_close(st);
}

/* The transpose (n, m) of t, (m, n), as a view. */
static ts_tensor *transposed(const ts_tensor *t)
{
    int64_t sizes[] = {t->sizes[1], t->sizes[0]}, strides[] = {t->strides[1], t->strides[0]};
    ts_tensor *alias = ts_tensor_alias(ts_thread_self(), t, sizes, strides, 2, 0);
    ck_ok(alias);
    return ts_scope_adopt(ts_thread_self(), alias);
}

TS_TEST(strided_tensors_are_written_row_major, IN_FOLDER)
{
    TS_SCOPE;
    static const float data[] = {0, 1, 2, 3, 4, 5};
    ts_tensor *t = transposed(ts_from_array(data, TS_F32, TS_SIZES(2, 3)));
    const char *name = "t";
    ck_ok(t);
    ck_assert(!ts_is_contiguous(t));
    ck_ok(ts_safetensors_save(in_folder("file"), &name, &t, 1, NULL, NULL, 0));
    ts_safetensors *st = ts_safetensors_open(in_folder("file"), NULL);
    ck_ok(st);
    ts_tensor *u = ts_safetensors_load(st, "t");
    static const float want[] = {0, 3, 1, 4, 2, 5};
    ck_assert_mem_eq(ts_data(u), want, sizeof want);

    /* reading into a tensor that is not contiguous */
    ts_tensor *base = ts_zeros(TS_SIZES(2, 3), TS_F32);
    ck_ok(ts_safetensors_read_into(st, "t", transposed(base)));
    ck_assert_mem_eq(ts_data(base), data, sizeof data);
    ts_safetensors_close(st);
}

TS_TEST(read_into_writes_in_place_without_history, IN_FOLDER)
{
    TS_SCOPE;
    ts_safetensors *st = open_golden();
    ts_tensor *w = ts_zeros(TS_SIZES(2, 3), TS_F32);
    ck_ok(ts_set_requires_grad(w, true));
    uint32_t before = ts_version(w);
    const void *data = ts_data(w);
    ck_ok(ts_safetensors_read_into(st, "b.weight", w));
    ck_assert_uint_gt(ts_version(w), before);
    ck_assert_ptr_eq(ts_data(w), data);
    ck_assert_float_eq(((const float *)data)[5], 2.5f);
    ts_safetensors_close(st);
}

/* -------------------------------------------------------------------------------- misuse ---- */

TS_TEST(misuse_of_a_reader_is_named, IN_FOLDER)
{
    TS_SCOPE;
    ts_safetensors *st = open_golden();
    ck_assert_ptr_null(ts_safetensors_open(NULL, NULL));
    ck_failed(TS_ERR_NULL, "'path'");
    ck_assert_ptr_null(ts_safetensors_open(in_folder("nowhere"), NULL));
    ck_failed(TS_ERR_IO, "No such file");
    ck_assert_ptr_null(ts_safetensors_open(test_folder, NULL));
    ck_failed(TS_ERR_IO, "expected a regular file");
    ck_assert_int_eq(mkfifo(in_folder("pipe"), 0600), 0);
    ck_assert_ptr_null(ts_safetensors_open(in_folder("pipe"), NULL));
    ck_failed(TS_ERR_IO, "expected a regular file");
    ck_assert_ptr_null(ts_safetensors_load(st, "b"));
    ck_failed(TS_ERR_INDEX, "got 'b'");
    ck_assert_ptr_null(ts_safetensors_load(NULL, "b"));
    ck_failed(TS_ERR_NULL, "'st'");
    ck_assert_ptr_null(ts_safetensors_load(st, NULL));
    ck_failed(TS_ERR_NULL, "'name'");
    ck_assert_ptr_null(ts_safetensors_load_at(st, 6));
    ck_failed(TS_ERR_INDEX, "below 6, got 6");
    ck_assert_int_eq(ts_safetensors_read_into(st, "a", NULL), TS_ERR_NULL);
    ck_failed(TS_ERR_NULL, "'dst'");
    ck_assert_int_ne(ts_safetensors_read_into(st, "b.weight", ts_zeros(TS_SIZES(3, 2), TS_F32)),
                     TS_OK);
    ck_failed(TS_ERR_SHAPE, "expected shape (3, 2), got (2, 3)");
    ck_assert_int_ne(ts_safetensors_read_into(st, "b.weight", ts_zeros(TS_SIZES(2, 3), TS_F64)),
                     TS_OK);
    ck_failed(TS_ERR_DTYPE, "expected dtype f64, got f32");
    ck_assert_int_ne(ts_safetensors_read_into(st, "b.weight",
                                              ts_empty_on(TS_SIZES(2, 3), TS_F32, TS_DEVICE_META)),
                     TS_OK);
    ck_failed(TS_ERR_DEVICE, "meta");
    ck_assert_int_eq(ts_safetensors_count(NULL), 0);
    ts_safetensors_close(NULL);
    ts_safetensors_close(st);
}

TS_TEST(misuse_of_the_writer_is_named_and_leaves_the_file, IN_FOLDER)
{
    TS_SCOPE;
    char path[128], too_long[1026];
    snprintf(path, sizeof path, "%s", in_folder("file"));
    memset(too_long, 'n', 1025);
    too_long[1025] = 0;
    ts_tensor *t = ts_zeros(TS_SIZES(2), TS_F32), *two[] = {t, t}, *missing = NULL, *none = TS_NONE;
    ts_tensor *meta = ts_empty_on(TS_SIZES(2), TS_F32, TS_DEVICE_META);
    const char *x[] = {"x", "x"}, *reserved = "__metadata__", *latin = "gr\xf6\xdf",
               *too = too_long, *null = NULL;
    write_file(path, golden, sizeof golden);
#define REFUSED(code, text, names, tensors, n, keys, values, m)                                    \
    do {                                                                                           \
        ck_assert_int_eq(ts_safetensors_save(path, names, tensors, n, keys, values, m), code);     \
        ck_failed(code, text);                                                                     \
    } while (0)
    REFUSED(TS_ERR_VALUE, "'x' twice", x, two, 2, NULL, NULL, 0);
    REFUSED(TS_ERR_VALUE, "the format's own", &reserved, &t, 1, NULL, NULL, 0);
    REFUSED(TS_ERR_VALUE, "UTF-8", &latin, &t, 1, NULL, NULL, 0);
    REFUSED(TS_ERR_VALUE, "at most 1024 bytes, got 1025", &too, &t, 1, NULL, NULL, 0);
    REFUSED(TS_ERR_NULL, "'names[0]': expected a string", &null, &t, 1, NULL, NULL, 0);
    REFUSED(TS_ERR_NULL, "'tensors[0]'", x, &missing, 1, NULL, NULL, 0);
    REFUSED(TS_ERR_NULL, "got TS_NONE", x, &none, 1, NULL, NULL, 0);
    REFUSED(TS_ERR_DEVICE, "expected values of tensor 'x', got meta", x, &meta, 1, NULL, NULL, 0);
    REFUSED(TS_ERR_NULL, "got NULL", NULL, NULL, 1, NULL, NULL, 0);
    REFUSED(TS_ERR_VALUE, "got -1", x, &t, -1, NULL, NULL, 0);
    REFUSED(TS_ERR_VALUE, "'x' twice", x, &t, 1, x, x, 2);
    REFUSED(TS_ERR_NULL, "'keys[0]'", x, &t, 1, &null, x, 1);
    REFUSED(TS_ERR_NULL, "'values[0]'", x, &t, 1, x, &null, 1);
    REFUSED(TS_ERR_VALUE, "a metadata value", x, &t, 1, x, &latin, 1);
    ck_assert_int_eq(ts_safetensors_save(NULL, x, &t, 1, NULL, NULL, 0), TS_ERR_NULL);
    ck_assert_int_eq(ts_safetensors_save("/dev/full", x, &t, 1, NULL, NULL, 0), TS_ERR_IO);
    ck_failed(TS_ERR_IO, "regular file");
    ck_assert_int_eq(ts_safetensors_save(in_folder("no/file"), x, &t, 1, NULL, NULL, 0), TS_ERR_IO);
    size_t bytes;
    unsigned char *data = read_file(path, &bytes);
    ck_assert_uint_eq(bytes, sizeof golden);
    ck_assert_mem_eq(data, golden, bytes);
    free(data);
    ck_assert_int_eq(count_files(test_folder), 1);
}

static bool read_all(int number, void *ctx)
{
    ts_safetensors *st = ctx;
    for (int i = 0; i < 50; i++) {
        TS_SCOPE;
        int at = (number + i) % ts_safetensors_count(st);
        int64_t first;
        ts_tensor *t = ts_safetensors_load_at(st, at);
        if (!t || ts_item_int(ts_select(t, 0, 0), &first) != TS_OK || first != at ||
            ts_safetensors_find(st, "none") != -1)
            return false;
    }
    return true;
}

TS_TEST(threads_read_one_opened_file_at_once, .threads = true, IN_FOLDER)
{
    TS_SCOPE;
    static const char *const names[] = {"a", "b", "c"};
    ts_tensor *tensors[3];
    for (int i = 0; i < 3; i++)
        tensors[i] = (ts_full)(TS_SIZES(1000), ts_scalar_int(i), TS_I64);
    ck_ok(ts_safetensors_save(in_folder("shared"), names, tensors, 3, NULL, NULL, 0));
    ts_safetensors *st = ts_safetensors_open(in_folder("shared"), NULL);
    ck_ok(st);
    ck_assert_int_eq(ts_together(4, read_all, st), 4);
    ts_safetensors_close(st);
}

TS_TEST(a_reader_keeps_the_old_file_while_it_is_replaced, IN_FOLDER)
{
    TS_SCOPE;
    ts_tensor *a = ts_full(TS_SIZES(3), TS_SCALAR(1), TS_F32),
              *b = ts_full(TS_SIZES(3), TS_SCALAR(2), TS_F32);
    const char *name = "t";
    float values[3];
    ts_files.fsync = fsync;
    ck_ok(ts_safetensors_save(in_folder("file"), &name, &a, 1, NULL, NULL, 0));
    ts_safetensors *st = ts_safetensors_open(in_folder("file"), NULL);
    ck_ok(ts_safetensors_save(in_folder("file"), &name, &b, 1, NULL, NULL, 0));
    ck_ok(ts_copy_to(ts_safetensors_load(st, "t"), values, sizeof values));
    ck_assert_float_eq(values[0], 1);
    ts_safetensors_close(st);
    ck_assert_int_eq(count_files(test_folder), 1);
}

/* -------------------------------------------------------------------------------- limits ---- */

/* A header of n tensors without data, as bytes of a file. */
static char *many(int n, size_t *bytes)
{
    char *text = malloc((size_t)n * 100 + 64);
    ck_assert_ptr_nonnull(text);
    size_t used = 9;
    text[8] = '{';
    for (int i = 0; i < n; i++)
        used += (size_t)sprintf(text + used,
                                "%s\"layers.%d.attention.weight\":{\"dtype\":\"F32\",\"shape\":[0,"
                                "3],\"data_offsets\":[0,0]}",
                                i ? "," : "", i);
    text[used++] = '}';
    for (int i = 0; i < 8; i++)
        text[i] = (char)((used - 8) >> (8 * i) & 0xff);
    *bytes = used;
    return text;
}

TS_TEST(limits_on_header_and_tensors_hold, IN_FOLDER)
{
    size_t bytes;
    char *text = many(11, &bytes), path[128];
    snprintf(path, sizeof path, "%s", in_folder("file"));
    write_file(path, text, bytes);
    free(text);
    int64_t header = (int64_t)bytes - 8;
    ck_assert_ptr_null(ts_safetensors_open(path, TS_OPTS(ts_safetensors_opts, .max_tensors = 10)));
    ck_failed(TS_ERR_FORMAT, "at most 10 tensors");
    ck_assert_ptr_null(
        ts_safetensors_open(path, TS_OPTS(ts_safetensors_opts, .max_header_bytes = header - 1)));
    ck_failed(TS_ERR_FORMAT, "a header of at most");
    ck_assert_ptr_null(
        ts_safetensors_open(path, TS_OPTS(ts_safetensors_opts, .max_tensors = 1000001)));
    ck_failed(TS_ERR_VALUE, "1 to 1000000 tensors");
    ck_assert_ptr_null(
        ts_safetensors_open(path, TS_OPTS(ts_safetensors_opts, .max_header_bytes = 100000001)));
    ck_failed(TS_ERR_VALUE, "2 to 100000000 header bytes");
    ck_assert_ptr_null(
        ts_safetensors_open(path, TS_OPTS(ts_safetensors_opts, .max_header_bytes = -1)));
    ck_failed(TS_ERR_VALUE, "got -1");
    ts_safetensors *st = ts_safetensors_open(
        path, TS_OPTS(ts_safetensors_opts, .max_tensors = 11, .max_header_bytes = header));
    ck_ok(st);
    ts_safetensors_close(st);
}

/* Peak of resident memory in KiB, since the last reset of the kernel's mark. */
static long peak_resident(void)
{
    char line[256];
    long peak = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "VmHWM: %ld", &peak);
    if (file)
        fclose(file);
    return peak;
}

static void open_and_close(void *folder, int n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%d", (const char *)folder, n);
    ts_safetensors *st = ts_safetensors_open(path, NULL);
    ck_assert_int_eq(ts_safetensors_count(st), n);
    ts_safetensors_close(st);
}

TS_TEST(the_time_to_open_grows_with_the_number_of_tensors, IN_FOLDER)
{
    enum { LESS = 2000, MORE = 60000 };
    for (int i = 0; i < 2; i++) {
        int n = i ? MORE : LESS;
        char name[16];
        size_t bytes;
        char *text = many(n, &bytes);
        snprintf(name, sizeof name, "%d", n);
        write_file(in_folder(name), text, bytes);
        free(text);
    }
    ck_assert_double_lt(ts_growth(open_and_close, test_folder, LESS, MORE), TS_GROWTH_BOUND);
}

TS_TEST(a_hundred_thousand_tensors_open_in_little_memory, IN_FOLDER)
{
    size_t bytes;
    char *text = many(100000, &bytes);
    write_file(in_folder("file"), text, bytes);
    free(text);
    int fd = open("/proc/self/clear_refs", O_WRONLY);
    bool can_reset = fd >= 0 && write(fd, "5", 1) == 1;
    if (fd >= 0)
        close(fd);
    long before = peak_resident();
    ts_safetensors *st = ts_safetensors_open(in_folder("file"), NULL);
    long grown = peak_resident() - before;
    ck_ok(st);
    ck_assert_int_eq(ts_safetensors_count(st), 100000);
    ck_assert_int_eq(
        ts_safetensors_ndim(st, ts_safetensors_find(st, "layers.77777.attention.weight")), 2);
    ts_safetensors_close(st);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (can_reset)
        ck_assert_double_lt((double)grown * 1024, 8.0 * (double)bytes);
#else
    (void)can_reset, (void)grown;
#endif
}
