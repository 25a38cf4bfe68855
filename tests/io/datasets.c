/** @file datasets.c  Reading valid and damaged IDX, CIFAR, CSV and npz files. */
// SPDX-License-Identifier: MIT
#include "tests/io/folder.h"

#include <math.h>

static const char *make(const char *name, const void *bytes, size_t size)
{
    write_file(in_folder(name), bytes, size);
    return in_folder(name);
}

static void ck_values(ts_tensor *t, ts_dtype dtype, const void *values, size_t bytes)
{
    ck_ok(t);
    ck_assert_int_eq(ts_dtype_of(t), dtype);
    ck_assert_uint_eq((size_t)ts_numel(t) * ts_dtype_size(dtype), bytes);
    ck_assert_mem_eq(ts_data(t), values, bytes);
}

/* --------------------------------------------------------------------------------- IDX ---- */

#define IDX(...) make("x", (unsigned char[]){__VA_ARGS__}, sizeof((unsigned char[]){__VA_ARGS__}))

TS_TEST(idx_elements_of_each_type_are_read, IN_FOLDER)
{
    TS_SCOPE;
    ts_tensor *t = ts_idx_load(IDX(0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255));
    ck_values(t, TS_U8, "\1\2\3\4\5\377", 6);
    ck_assert_int_eq(ts_size(t, 0), 2);
    ck_assert_int_eq(ts_size(t, 1), 3);
    ck_values(ts_idx_load(IDX(0, 0, 9, 1, 0, 0, 0, 2, 127, 128)), TS_I32, (int32_t[]){127, -128},
              8);
    ck_values(ts_idx_load(IDX(0, 0, 11, 1, 0, 0, 0, 3, 0, 1, 255, 254, 127, 255)), TS_I32,
              (int32_t[]){1, -2, 32767}, 12);
    ck_values(ts_idx_load(IDX(0, 0, 12, 1, 0, 0, 0, 1, 255, 255, 255, 0)), TS_I32,
              (int32_t[]){-256}, 4);
    ck_values(ts_idx_load(IDX(0, 0, 13, 1, 0, 0, 0, 1, 0x3f, 0xc0, 0, 0)), TS_F32, (float[]){1.5F},
              4);
    ck_values(ts_idx_load(IDX(0, 0, 14, 1, 0, 0, 0, 1, 0xc0, 4, 0, 0, 0, 0, 0, 0)), TS_F64,
              (double[]){-2.5}, 8);
    ck_values(ts_idx_load(IDX(0, 0, 8, 0, 7)), TS_U8, "\7", 1);
    ck_assert_int_eq(ts_numel(ts_idx_load(IDX(0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 9))), 0);
}

TS_TEST(idx_files_that_break_a_rule_are_named, IN_FOLDER)
{
    TS_SCOPE;
    ck_assert_ptr_null(ts_idx_load(IDX(0, 0, 8)));
    ck_failed(TS_ERR_FORMAT, "at least 4 bytes, got 3");
    ck_assert_ptr_null(ts_idx_load(IDX(0x1f, 0x8b, 8, 0, 1)));
    ck_assert_ptr_null(ts_idx_load(IDX(0x1f, 0x8b, 8, 0, 1)));
    ck_assert_str_eq(ts_error_hint(), "decompress it with gunzip");
    ck_failed(TS_ERR_FORMAT, "gzip");
    ck_assert_ptr_null(ts_idx_load(IDX(0, 1, 8, 0, 1)));
    ck_failed(TS_ERR_FORMAT, "got 00 01 08");
    ck_assert_ptr_null(ts_idx_load(IDX(0, 0, 10, 0, 1)));
    ck_failed(TS_ERR_FORMAT, "got 00 00 0a");
    ck_assert_ptr_null(ts_idx_load(IDX(0, 0, 8, 9, 1)));
    ck_failed(TS_ERR_FORMAT, "at most 8 dimensions, got 9");
    ck_assert_ptr_null(ts_idx_load(IDX(0, 0, 8, 2, 0, 0, 0, 1)));
    ck_failed(TS_ERR_FORMAT, "expected 2 sizes");
    ck_assert_ptr_null(ts_idx_load(IDX(0, 0, 8, 1, 0, 0, 0, 2, 1)));
    ck_failed(TS_ERR_FORMAT, "for (2), got 1 bytes");
    ck_assert_ptr_null(ts_idx_load(IDX(0, 0, 8, 1, 0, 0, 0, 1, 1, 2)));
    ck_failed(TS_ERR_FORMAT, "got 2 bytes");
    ck_assert_ptr_null(ts_idx_load(IDX(0, 0, 14, 4, 255, 255, 255, 255, 255, 255, 255, 255, 255,
                                       255,
                                       255, 255, 255, 255, 255, 255)));
    ck_failed(TS_ERR_FORMAT, "8-byte elements");
    ck_assert_ptr_null(ts_idx_load(in_folder("absent")));
    ck_failed(TS_ERR_IO, "absent");
}

/* ------------------------------------------------------------------------------- MNIST ---- */

/** Writes an IDX file of u8 with n x height x width elements i % 10, or of n if height is 0. */
static void make_mnist(const char *name, int n, int height, int width)
{
    unsigned char bytes[16 + 400] = {0, 0, 8, height ? 3 : 1, [7] = (unsigned char)n};
    int at = height ? 16 : 8, size = n * (height ? height * width : 1);
    if (height)
        bytes[11] = (unsigned char)height, bytes[15] = (unsigned char)width;
    for (int i = 0; i < size; i++)
        bytes[at + i] = (unsigned char)(i % 10);
    make(name, bytes, (size_t)(at + size));
}

TS_TEST(files_of_mnist_become_images_and_labels, IN_FOLDER)
{
    TS_SCOPE;
    ts_tensor *x[4];
    make_mnist("train-images-idx3-ubyte", 11, 4, 5);
    make_mnist("train-labels-idx1-ubyte", 11, 0, 0);
    make_mnist("t10k-images.idx3-ubyte", 3, 4, 5); /* the name that some programs extract */
    make_mnist("t10k-labels-idx1-ubyte", 3, 0, 0);
    ck_ok(ts_mnist_load(test_folder, 10, &x[0], &x[1], &x[2], &x[3]));
    ck_values(x[1], TS_I64, (int64_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0}, 88);
    ck_values(x[3], TS_I64, (int64_t[]){0, 1, 2}, 24);
    ck_assert_int_eq(ts_size(x[0], 0), 11);
    ck_assert_int_eq(ts_size(x[2], 1), 4);
    ck_assert_int_eq(((const unsigned char *)ts_data(x[2]))[59], 9);
}

TS_TEST(files_of_mnist_that_do_not_belong_together_are_named, IN_FOLDER)
{
    static const struct {
        const char *name; /* of a file that is replaced by one with these sizes */
        int n, height, width;
        ts_status code;
        const char *message;
    } wrong[] = {{"train-labels-idx1-ubyte", 8, 0, 0, TS_ERR_FORMAT,
                  "got 9 train-images and 8 train-labels"},
                 {"t10k-labels-idx1-ubyte", 10, 0, 0, TS_ERR_FORMAT,
                  "got 9 t10k-images and 10 t10k-labels"},
                 {"t10k-images-idx3-ubyte", 9, 5, 4, TS_ERR_FORMAT,
                  "got 4 x 5 in train-images and 5 x 4 in t10k-images"},
                 {"train-images-idx3-ubyte", 9, 0, 0, TS_ERR_FORMAT, "expected u8 with 3 dims, got "
                  "u8 (9)"},
                 {"t10k-labels-idx1-ubyte", 3, 3, 1, TS_ERR_FORMAT, "expected u8 with 1 dims, got "
                  "u8 (3, 3, 1)"},
                 {"train-labels-idx1-ubyte", -1, 0, 0, TS_ERR_IO, "expected the four files of "
                  "MNIST, found no train-labels-idx1-ubyte"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        TS_SCOPE;
        ts_tensor *x[4];
        make_mnist("train-images-idx3-ubyte", 9, 4, 5);
        make_mnist("train-labels-idx1-ubyte", 9, 0, 0);
        make_mnist("t10k-images-idx3-ubyte", 9, 4, 5);
        make_mnist("t10k-labels-idx1-ubyte", 9, 0, 0);
        if (wrong[i].n >= 0)
            make_mnist(wrong[i].name, wrong[i].n, wrong[i].height, wrong[i].width);
        else
            unlink(in_folder(wrong[i].name));
        ck_assert_int_eq(ts_mnist_load(test_folder, 9, &x[0], &x[1], &x[2], &x[3]), wrong[i].code);
        ck_failed(wrong[i].code, wrong[i].message);
    }
    TS_SCOPE;
    ts_tensor *x[4];
    make_mnist("train-labels-idx1-ubyte", 9, 0, 0);
    ck_assert_int_eq(ts_mnist_load(test_folder, 7, &x[0], &x[1], &x[2], &x[3]), TS_ERR_FORMAT);
    ck_failed(TS_ERR_FORMAT, "expected classes below 7, got 7 at position 7 of train-labels");
    for (int i = 0; i < 2; i++)
        make_mnist(i ? "train-images-idx3-ubyte" : "train-labels-idx1-ubyte", 0, 4 * i, 5);
    ck_assert_int_eq(ts_mnist_load(test_folder, 9, &x[0], &x[1], &x[2], &x[3]), TS_ERR_FORMAT);
    ck_failed(TS_ERR_FORMAT, "at least one image, got 0 train-images and 0 train-labels");
}

/* ------------------------------------------------------------------------------- CIFAR ---- */

TS_TEST(cifar_records_become_images_and_labels, .loop = 2, IN_FOLDER)
{
    TS_SCOPE;
    enum { N = 300 }; /* more than are read at once */
    int labels_of_one = 1 + _i, record = 3072 + labels_of_one;
    unsigned char *bytes = malloc((size_t)(N * record));
    for (int i = 0; i < N; i++)
        for (int k = 0; k < record; k++)
            bytes[i * record + k] = (unsigned char)(k >= labels_of_one       ? i * 7 + k
                                                    : k == labels_of_one - 1 ? i % 10
                                                                             : 200);
    const char *path = make("batch.bin", bytes, (size_t)(N * record));
    ts_tensor *x, *y;
    ck_ok(ts_cifar_load(path, _i ? 100 : 10, &x, &y));
    ck_assert_int_eq(ts_size(x, 0), N);
    ck_assert_int_eq(ts_size(x, 1), 3);
    ck_assert_int_eq(ts_size(x, 3), 32);
    for (int i = 0; i < N; i++) {
        ck_assert_mem_eq((const char *)ts_data(x) + 3072 * i, bytes + i * record + labels_of_one,
                         3072);
        ck_assert_int_eq(((const int64_t *)ts_data(y))[i], i % 10);
    }
    ck_assert_int_eq(ts_cifar_load(path, _i ? 10 : 100, &x, &y), TS_ERR_FORMAT);
    ck_failed(TS_ERR_FORMAT, "records of");
    bytes[record * 299 + labels_of_one - 1] = _i ? 100 : 10;
    path = make("batch.bin", bytes, (size_t)(N * record));
    ck_assert_int_eq(ts_cifar_load(path, _i ? 100 : 10, &x, &y), TS_ERR_FORMAT);
    ck_failed(TS_ERR_FORMAT, "record 299: expected a class below");
    ck_assert_int_eq(ts_cifar_load(make("batch.bin", bytes, 0), 10, &x, &y), TS_ERR_FORMAT);
    ck_assert_int_eq(ts_cifar_load(path, 20, &x, &y), TS_ERR_VALUE);
    free(bytes);
}

/* --------------------------------------------------------------------------------- CSV ---- */

static ts_tensor *table(const char *text, const ts_csv_load_opts *opts)
{
    return ts_csv_load(make("table.csv", text, strlen(text)), opts);
}

TS_TEST(tables_of_numbers_are_read, IN_FOLDER)
{
    TS_SCOPE;
    ts_tensor *t = table("1,-2.5,3e2\r\n\r\n 4 , 5,0.1", NULL);
    ck_values(t, TS_F64, (double[]){1, -2.5, 300, 4, 5, 0.1}, 48);
    ck_assert_int_eq(ts_size(t, 0), 2);
    t = table("a;b\n\n1;2\n;inf\n", TS_OPTS(ts_csv_load_opts, .separator = ';', .skip_lines = 1));
    const double *x = ts_data(t);
    ck_assert(x[0] == 1 && x[1] == 2 && isnan(x[2]) && isinf(x[3]) && ts_numel(t) == 4);
    ck_values(table("7", NULL), TS_F64, (double[]){7}, 8);
    ck_values(table("\xef\xbb\xbf" "7,8\n", NULL), TS_F64, (double[]){7, 8}, 16);
    ck_values(table("\xef\xbb\xbf" "a\n9\n", TS_OPTS(ts_csv_load_opts, .skip_lines = 1)), TS_F64,
              (double[]){9}, 8);
    ck_values(table("1\t2\n", TS_OPTS(ts_csv_load_opts, .separator = '\t')), TS_F64,
              (double[]){1, 2}, 16);
}

TS_TEST(cells_may_be_quoted_and_have_blanks_around_them, IN_FOLDER)
{
    static const struct {
        const char *text;
        double values[4];
    } right[] = {{"\"1\",\"-2.5\"\n3,\"4\"", {1, -2.5, 3, 4}},
                 {"\"1\" , \"2\"\t\r\n\t\" 3 \",4 \t\n", {1, 2, 3, 4}},
                 {"1,2\r3,4\r", {1, 2, 3, 4}},
                 {"1,2\r\r\n\n3,4", {1, 2, 3, 4}},
                 {"1, 2\t\n \t\n3,4\t\n  ", {1, 2, 3, 4}}};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        TS_SCOPE;
        ts_tensor *t = table(right[i].text, NULL);
        ck_values(t, TS_F64, right[i].values, sizeof right[i].values);
        ck_assert_int_eq(ts_size(t, 0), 2);
    }
    TS_SCOPE;
    const double *x = ts_data(table("\"\",\"1\"\r,\n", NULL));
    ck_assert(isnan(x[0]) && x[1] == 1 && isnan(x[2]) && isnan(x[3]));
    ts_csv_load_opts tabs = {.size = sizeof tabs, .separator = '\t'};
    x = ts_data(table("1 \t\t 2\t\r\t\t\t4\n", &tabs));
    ck_assert(x[0] == 1 && isnan(x[1]) && x[2] == 2 && isnan(x[4]) && isnan(x[6]) && x[7] == 4);
    /* names with separators, quotes and line ends are one line */
    ts_csv_load_opts skip = {.size = sizeof skip, .skip_lines = 2};
    ck_values(table("a 5\" disc\n\"a,b\n\"\"c\"\"\r\",d\n1,2\n", &skip), TS_F64,
              (double[]){1, 2}, 16);
    ck_assert_ptr_null(table("\na\n\"a,b\r\n\"\"c\"\"\r\"\r1\r\nx", &skip));
    ck_failed(TS_ERR_FORMAT, "line 7, column 1: expected a number, got 'x'");
}

TS_TEST(tables_that_break_a_rule_are_named, IN_FOLDER)
{
    TS_SCOPE;
    static const struct {
        const char *text, *message;
    } wrong[] = {{"1,2\r\n\r\n3,x4\n", "line 3, column 2: expected a number, got 'x4'"},
                 {"1,2\n3,4 5\n", "line 2, column 2: expected a number, got '4 5'"},
                 {"1,2\n3\n", "line 2: expected 2 columns, got 1"},
                 {"1\n2,3", "line 2: expected 1 columns, got 2"},
                 {"1,\"2\n", "line 1, column 2: expected a number, got '\"2'"},
                 {"1,\"2\"3\n", "got '\"2\"3'"},
                 {"1,2\"\n", "got '2\"'"},
                 {"\"1,2\",3\n", "column 1: expected a number, got '1,2'"},
                 {"1,\"2\"\"\"\n", "got '2\"\"'"},
                 {"1\r\n\"\n2\"\r3", "line 2, column 1: expected a number, got '\\x0a2'"},
                 {"1\r\n\"2\r\n\"\r3", "line 2, column 1: expected a number, got '2\\x0d\\x0a'"},
                 {"1,2\r3\r", "line 2: expected 2 columns, got 1"},
                 {"\n\n", "expected a row of numbers"},
                 {"", "expected a row of numbers"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_ptr_null(table(wrong[i].text, NULL));
        ck_failed(TS_ERR_FORMAT, wrong[i].message);
    }
    ck_assert_ptr_null(ts_csv_load(make("table.csv", "1,2\n3\0,4", 8), NULL));
    ck_failed(TS_ERR_FORMAT, "a byte 0 at 5");
    ck_assert_ptr_null(table("1\n", TS_OPTS(ts_csv_load_opts, .skip_lines = 2)));
    ck_failed(TS_ERR_FORMAT, "more lines than the 1");
    ck_assert_ptr_null(table("1\n", TS_OPTS(ts_csv_load_opts, .separator = 'e')));
    ck_failed(TS_ERR_VALUE, "separator");
}

/* --------------------------------------------------------------------------------- npz ---- */

/* numpy.savez_compressed(d=numpy.zeros(4, "f4")) without a date. */
static unsigned char deflated[] = {
#include "tests/io/deflated.h"
};

TS_TEST(archives_round_trip, IN_FOLDER)
{
    TS_SCOPE;
    static const char *const names[] = {"a", "layer.weight", "empty"};
    ts_tensor *tensors[] = {ts_arange(0, 6, 1, TS_I64), ts_t(ts_eye(3, 2, TS_F32)),
                            ts_zeros(TS_SIZES(0, 4), TS_F64)};
    const char *path = in_folder("a.npz");
    ck_ok(ts_npz_save(path, names, tensors, 3));
    ts_npz *z = ts_npz_open(path);
    ck_ok(z);
    ck_assert_int_eq(ts_npz_count(z), 3);
    for (int i = 0; i < 3; i++) {
        ck_assert_str_eq(ts_npz_name(z, i), names[i]);
        ck_assert_int_eq(ts_npz_find(z, names[i]), i);
        ts_tensor *t = ts_npz_load(z, names[i]);
        ck_ok(t);
        ck_assert_int_eq(ts_dtype_of(t), ts_dtype_of(tensors[i]));
        ck_assert_int_eq(ts_ndim(t), ts_ndim(tensors[i]));
        if (ts_numel(t))
            ck_assert_mem_eq(ts_data(t), ts_data(ts_contiguous(tensors[i])),
                             (size_t)ts_numel(t) * ts_dtype_size(ts_dtype_of(t)));
    }
    ck_assert_ptr_null(ts_npz_name(z, 3));
    ck_assert_int_eq(ts_npz_find(z, "b"), -1);
    ck_assert_ptr_null(ts_npz_load(z, "b"));
    ck_failed(TS_ERR_INDEX, "expected the name of a member, got 'b'");
    ts_npz_close(z);
    ts_npz_close(NULL);
    ck_assert_int_eq(ts_npz_save(path, (const char *[]){"a", "a"}, tensors, 2), TS_ERR_VALUE);
    ck_failed(TS_ERR_VALUE, "distinct");
    ck_assert_int_eq(ts_npz_save(path, (const char *[]){"../a"}, tensors, 1), TS_ERR_VALUE);
    ts_tensor *half = ts_zeros(TS_SIZES(2), TS_BF16);
    ck_assert_int_eq(ts_npz_save(path, names, &half, 1), TS_ERR_DTYPE);
    ts_error_clear();
}

TS_TEST(deflated_members_are_inflated_and_checked, IN_FOLDER)
{
    TS_SCOPE;
    ts_npz *z = ts_npz_open(make("d.npz", deflated, sizeof deflated));
    ck_ok(z);
    ts_tensor *t = ts_npz_load(z, "d");
    if (!t && ts_error_code() == TS_ERR_UNSUPPORTED)
        TS_SKIP("no zlib");
    ck_values(t, TS_F32, (float[4]){0}, 16);
    ts_npz_close(z);
    /* reading with one changed byte is an error, or gives the same values (a byte of the date) */
    int refused = 0;
    for (size_t i = 0; i < sizeof deflated; i++) {
        deflated[i] ^= 0x55;
        z = ts_npz_open(make("d.npz", deflated, sizeof deflated));
        t = z ? ts_npz_load(z, "d") : NULL;
        if (t)
            ck_values(t, TS_F32, (float[4]){0}, 16);
        else
            refused++;
        ts_npz_close(z);
        ts_error_clear();
        deflated[i] ^= 0x55;
    }
    ck_assert_int_gt(refused, 100);
    for (size_t size = 0; size < sizeof deflated; size++) {
        ck_assert_ptr_null(ts_npz_open(make("d.npz", deflated, size)));
        ck_failed(TS_ERR_FORMAT, "npz_open");
    }
}

TS_TEST(a_library_that_is_missing_is_an_error, IN_FOLDER)
{
    TS_SCOPE;
    setenv("TS_ZLIB", "0", 1);
    setenv("TS_LIBPNG", "/no/such/libpng.so", 1);
    ts_npz *z = ts_npz_open(make("d.npz", deflated, sizeof deflated));
    ck_ok(z);
    ck_assert_ptr_null(ts_npz_load(z, "d"));
    ck_failed(TS_ERR_UNSUPPORTED,
              "npz_load: cannot open the library libz.so.1: TS_ZLIB=0 disables it");
    ts_npz_close(z);
    ck_assert_ptr_null(ts_png_load(in_folder("d.npz"), NULL));
    ck_failed(TS_ERR_UNSUPPORTED, "/no/such/libpng.so");
    setenv("TS_LIBPNG", "libz.so.1", 1);
    ck_assert_ptr_null(ts_png_load(in_folder("d.npz"), NULL));
    ck_failed(TS_ERR_UNSUPPORTED, "has no png_");
}
