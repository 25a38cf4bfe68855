/** @file npy.c  NumPy files: NumPy's own bytes, round trips, files that break one rule each. */
// SPDX-License-Identifier: MIT
#include "core/tensor.h"
#include "tests/io/folder.h"

/* Writes a .npy file of a format version: header, newline, data. Returns its path. */
static const char *make(int version, const char *header, const void *data, size_t bytes)
{
    unsigned char file[1024] = "\x93NUMPY";
    size_t length = strlen(header) + 1, prefix = version == 1 ? 10 : 12;
    ck_assert_uint_lt(prefix + length + bytes, sizeof file);
    file[6] = (unsigned char)version;
    file[8] = (unsigned char)length;
    file[9] = (unsigned char)(length >> 8);
    memcpy(file + prefix, header, length - 1);
    file[prefix + length - 1] = '\n';
    if (bytes)
        memcpy(file + prefix + length, data, bytes);
    write_file(in_folder("file.npy"), file, prefix + length + bytes);
    return in_folder("file.npy");
}

/* np.save of np.arange(6, dtype='f4').reshape(2, 3), as NumPy 2 writes it. */
static const char numpy_header[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
                                   "                                                          ";

TS_TEST(same_bytes_as_numpy_both_ways, IN_FOLDER)
{
    TS_SCOPE;
    static const float values[] = {0, 1, 2, 3, 4, 5};
    ts_tensor *t = ts_npy_load(make(1, numpy_header, values, sizeof values));
    ck_ok(t);
    ck_assert_int_eq(ts_ndim(t), 2);
    ck_assert_int_eq(ts_size(t, 0), 2);
    ck_assert_mem_eq(ts_data(t), values, sizeof values);
    ck_ok(ts_npy_save(in_folder("again.npy"), t));
    size_t want, got;
    unsigned char *numpy = read_file(in_folder("file.npy"), &want),
                  *ours = read_file(in_folder("again.npy"), &got);
    ck_assert_uint_eq(want, 128 + sizeof values);
    ck_assert_uint_eq(got, want);
    ck_assert_mem_eq(ours, numpy, want);
    free(numpy);
    free(ours);
}

TS_TEST(fortran_order_and_later_versions_are_read, .loop = 3, IN_FOLDER)
{
    TS_SCOPE;
    static const int32_t stored[] = {1, 4, 2, 5, 3, 6}, want[] = {1, 2, 3, 4, 5, 6};
    ts_tensor *t =
        ts_npy_load(make(_i + 1, "{\"shape\":(2,3),\"fortran_order\":True,\"descr\":\"<i4\"}",
                         stored, sizeof stored));
    ck_ok(t);
    ck_assert(ts_is_contiguous(t));
    ck_assert_mem_eq(ts_data(t), want, sizeof want);
}

TS_TEST(npy_round_trips_dtypes_and_shapes, .loop = TS_DTYPE_COUNT, IN_FOLDER)
{
    static const int64_t shapes[][8] = {{0}, {5}, {0}, {3, 4}, {2, 0, 3}, {2, 1, 3, 1, 2, 1, 1, 2}};
    static const int ndims[] = {0, 1, 1, 2, 3, 8};
    for (int i = 0; i < 6; i++) {
        TS_SCOPE;
        unsigned char data[24 * 8];
        for (size_t b = 0; b < sizeof data; b++)
            data[b] = (unsigned char)(_i == TS_BOOL ? b & 1 : b * 37 + (size_t)i);
        ts_tensor *t = ts_from_array(data, (ts_dtype)_i, shapes[i], ndims[i]);
        if (_i == TS_BF16) {
            ck_assert_int_eq(ts_npy_save(in_folder("t.npy"), t), TS_ERR_DTYPE);
            ck_failed(TS_ERR_DTYPE, "got bf16");
            continue;
        }
        ck_ok(ts_npy_save(in_folder("t.npy"), t));
        ts_tensor *u = ts_npy_load(in_folder("t.npy"));
        ck_ok(u);
        ck_assert_int_eq(ts_dtype_of(u), _i);
        ck_assert_int_eq(ts_ndim(u), ndims[i]);
        ck_assert_mem_eq(ts_sizes(u), shapes[i], (size_t)ndims[i] * 8);
        if (ts_numel(t))
            ck_assert_mem_eq(ts_data(u), data, (size_t)ts_numel(t) * ts_dtype_size((ts_dtype)_i));
    }
}

/* Files of np.save(): arrays of sizes (2, 3), little-endian and big-endian, in C and Fortran order.
 * `want`: the bytes of the tensor, little-endian and in C order. */
static const struct {
    const char *header;
    ts_dtype dtype;
    const char *data, *want;
} arrays[] = {
    {"{'descr': '|i1', 'fortran_order': False, 'shape': (2, 3), }", TS_I32,
     "\x80\xff\x00\x01\x7f\x05",
     "\x80\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00\x01\x00\x00\x00\x7f\x00\x00\x00"
     "\x05\x00\x00\x00"},
    {"{'descr': '|i1', 'fortran_order': True, 'shape': (2, 3), }", TS_I32,
     "\x80\x01\xff\x7f\x00\x05",
     "\x80\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00\x01\x00\x00\x00\x7f\x00\x00\x00"
     "\x05\x00\x00\x00"},
    {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }", TS_U8,
     "\x00\x01\x02\x80\xff\x05",
     "\x00\x01\x02\x80\xff\x05"},
    {"{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }", TS_U8,
     "\x00\x80\x01\xff\x02\x05",
     "\x00\x01\x02\x80\xff\x05"},
    {"{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }", TS_I32,
     "\x00\x80\xfe\xff\x00\x00\x02\x01\xff\x7f\x05\x00",
     "\x00\x80\xff\xff\xfe\xff\xff\xff\x00\x00\x00\x00\x02\x01\x00\x00\xff\x7f\x00\x00"
     "\x05\x00\x00\x00"},
    {"{'descr': '>i2', 'fortran_order': False, 'shape': (2, 3), }", TS_I32,
     "\x80\x00\xff\xfe\x00\x00\x01\x02\x7f\xff\x00\x05",
     "\x00\x80\xff\xff\xfe\xff\xff\xff\x00\x00\x00\x00\x02\x01\x00\x00\xff\x7f\x00\x00"
     "\x05\x00\x00\x00"},
    {"{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }", TS_I32,
     "\x80\x00\x01\x02\xff\xfe\x7f\xff\x00\x00\x00\x05",
     "\x00\x80\xff\xff\xfe\xff\xff\xff\x00\x00\x00\x00\x02\x01\x00\x00\xff\x7f\x00\x00"
     "\x05\x00\x00\x00"},
    {"{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }", TS_I32,
     "\x00\x00\x01\x00\x02\x01\x00\x80\xff\xff\x05\x00",
     "\x00\x00\x00\x00\x01\x00\x00\x00\x02\x01\x00\x00\x00\x80\x00\x00\xff\xff\x00\x00"
     "\x05\x00\x00\x00"},
    {"{'descr': '>u2', 'fortran_order': False, 'shape': (2, 3), }", TS_I32,
     "\x00\x00\x00\x01\x01\x02\x80\x00\xff\xff\x00\x05",
     "\x00\x00\x00\x00\x01\x00\x00\x00\x02\x01\x00\x00\x00\x80\x00\x00\xff\xff\x00\x00"
     "\x05\x00\x00\x00"},
    {"{'descr': '>u2', 'fortran_order': True, 'shape': (2, 3), }", TS_I32,
     "\x00\x00\x80\x00\x00\x01\xff\xff\x01\x02\x00\x05",
     "\x00\x00\x00\x00\x01\x00\x00\x00\x02\x01\x00\x00\x00\x80\x00\x00\xff\xff\x00\x00"
     "\x05\x00\x00\x00"},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }", TS_I32,
     "\x00\x00\x00\x80\xfe\xff\xff\xff\x00\x00\x00\x00\x04\x03\x02\x01\xff\xff\xff\x7f"
     "\x05\x00\x00\x00",
     "\x00\x00\x00\x80\xfe\xff\xff\xff\x00\x00\x00\x00\x04\x03\x02\x01\xff\xff\xff\x7f"
     "\x05\x00\x00\x00"},
    {"{'descr': '>i4', 'fortran_order': False, 'shape': (2, 3), }", TS_I32,
     "\x80\x00\x00\x00\xff\xff\xff\xfe\x00\x00\x00\x00\x01\x02\x03\x04\x7f\xff\xff\xff"
     "\x00\x00\x00\x05",
     "\x00\x00\x00\x80\xfe\xff\xff\xff\x00\x00\x00\x00\x04\x03\x02\x01\xff\xff\xff\x7f"
     "\x05\x00\x00\x00"},
    {"{'descr': '>i4', 'fortran_order': True, 'shape': (2, 3), }", TS_I32,
     "\x80\x00\x00\x00\x01\x02\x03\x04\xff\xff\xff\xfe\x7f\xff\xff\xff\x00\x00\x00\x00"
     "\x00\x00\x00\x05",
     "\x00\x00\x00\x80\xfe\xff\xff\xff\x00\x00\x00\x00\x04\x03\x02\x01\xff\xff\xff\x7f"
     "\x05\x00\x00\x00"},
    {"{'descr': '<u4', 'fortran_order': False, 'shape': (2, 3), }", TS_I64,
     "\x00\x00\x00\x00\x01\x00\x00\x00\x04\x03\x02\x01\x00\x00\x00\x80\xff\xff\xff\xff"
     "\x05\x00\x00\x00",
     "\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x04\x03\x02\x01"
     "\x00\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00"
     "\x05\x00\x00\x00\x00\x00\x00\x00"},
    {"{'descr': '>u4', 'fortran_order': False, 'shape': (2, 3), }", TS_I64,
     "\x00\x00\x00\x00\x00\x00\x00\x01\x01\x02\x03\x04\x80\x00\x00\x00\xff\xff\xff\xff"
     "\x00\x00\x00\x05",
     "\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x04\x03\x02\x01"
     "\x00\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00"
     "\x05\x00\x00\x00\x00\x00\x00\x00"},
    {"{'descr': '>u4', 'fortran_order': True, 'shape': (2, 3), }", TS_I64,
     "\x00\x00\x00\x00\x80\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\x01\x02\x03\x04"
     "\x00\x00\x00\x05",
     "\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x04\x03\x02\x01"
     "\x00\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00"
     "\x05\x00\x00\x00\x00\x00\x00\x00"},
    {"{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }", TS_I64,
     "\x00\x00\x00\x00\x00\x00\x00\x80\xfe\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00"
     "\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\x7f"
     "\x05\x00\x00\x00\x00\x00\x00\x00",
     "\x00\x00\x00\x00\x00\x00\x00\x80\xfe\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00"
     "\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\x7f"
     "\x05\x00\x00\x00\x00\x00\x00\x00"},
    {"{'descr': '>i8', 'fortran_order': False, 'shape': (2, 3), }", TS_I64,
     "\x80\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xfe\x00\x00\x00\x00"
     "\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03\x7f\xff\xff\xff\xff\xff\xff\xff"
     "\x00\x00\x00\x00\x00\x00\x00\x05",
     "\x00\x00\x00\x00\x00\x00\x00\x80\xfe\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00"
     "\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\x7f"
     "\x05\x00\x00\x00\x00\x00\x00\x00"},
    {"{'descr': '>i8', 'fortran_order': True, 'shape': (2, 3), }", TS_I64,
     "\x80\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff\xff"
     "\xff\xff\xff\xfe\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00"
     "\x00\x00\x00\x00\x00\x00\x00\x05",
     "\x00\x00\x00\x00\x00\x00\x00\x80\xfe\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00"
     "\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\x7f"
     "\x05\x00\x00\x00\x00\x00\x00\x00"},
    {"{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }", TS_F16,
     "\x00\x00\x00\xbe\xff\x7b\x01\x00\x00\x34\x00\x45",
     "\x00\x00\x00\xbe\xff\x7b\x01\x00\x00\x34\x00\x45"},
    {"{'descr': '>f2', 'fortran_order': False, 'shape': (2, 3), }", TS_F16,
     "\x00\x00\xbe\x00\x7b\xff\x00\x01\x34\x00\x45\x00",
     "\x00\x00\x00\xbe\xff\x7b\x01\x00\x00\x34\x00\x45"},
    {"{'descr': '>f2', 'fortran_order': True, 'shape': (2, 3), }", TS_F16,
     "\x00\x00\x00\x01\xbe\x00\x34\x00\x7b\xff\x45\x00",
     "\x00\x00\x00\xbe\xff\x7b\x01\x00\x00\x34\x00\x45"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", TS_F32,
     "\x00\x00\x00\x00\x00\x00\xc0\xbf\xe6\xb1\x61\x7f\xc2\x16\x01\x00\x00\x00\x80\x3e"
     "\x00\x00\xa0\x40",
     "\x00\x00\x00\x00\x00\x00\xc0\xbf\xe6\xb1\x61\x7f\xc2\x16\x01\x00\x00\x00\x80\x3e"
     "\x00\x00\xa0\x40"},
    {"{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }", TS_F32,
     "\x00\x00\x00\x00\xbf\xc0\x00\x00\x7f\x61\xb1\xe6\x00\x01\x16\xc2\x3e\x80\x00\x00"
     "\x40\xa0\x00\x00",
     "\x00\x00\x00\x00\x00\x00\xc0\xbf\xe6\xb1\x61\x7f\xc2\x16\x01\x00\x00\x00\x80\x3e"
     "\x00\x00\xa0\x40"},
    {"{'descr': '>f4', 'fortran_order': True, 'shape': (2, 3), }", TS_F32,
     "\x00\x00\x00\x00\x00\x01\x16\xc2\xbf\xc0\x00\x00\x3e\x80\x00\x00\x7f\x61\xb1\xe6"
     "\x40\xa0\x00\x00",
     "\x00\x00\x00\x00\x00\x00\xc0\xbf\xe6\xb1\x61\x7f\xc2\x16\x01\x00\x00\x00\x80\x3e"
     "\x00\x00\xa0\x40"},
    {"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }", TS_F64,
     "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xf8\xbf\x35\x58\x00\x66"
     "\x2d\xeb\x51\x7e\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xd0\x3f"
     "\x00\x00\x00\x00\x00\x00\x14\x40",
     "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xf8\xbf\x35\x58\x00\x66"
     "\x2d\xeb\x51\x7e\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xd0\x3f"
     "\x00\x00\x00\x00\x00\x00\x14\x40"},
    {"{'descr': '>f8', 'fortran_order': False, 'shape': (2, 3), }", TS_F64,
     "\x00\x00\x00\x00\x00\x00\x00\x00\xbf\xf8\x00\x00\x00\x00\x00\x00\x7e\x51\xeb\x2d"
     "\x66\x00\x58\x35\x00\x00\x00\x00\x00\x00\x00\x01\x3f\xd0\x00\x00\x00\x00\x00\x00"
     "\x40\x14\x00\x00\x00\x00\x00\x00",
     "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xf8\xbf\x35\x58\x00\x66"
     "\x2d\xeb\x51\x7e\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xd0\x3f"
     "\x00\x00\x00\x00\x00\x00\x14\x40"},
    {"{'descr': '>f8', 'fortran_order': True, 'shape': (2, 3), }", TS_F64,
     "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\xbf\xf8\x00\x00"
     "\x00\x00\x00\x00\x3f\xd0\x00\x00\x00\x00\x00\x00\x7e\x51\xeb\x2d\x66\x00\x58\x35"
     "\x40\x14\x00\x00\x00\x00\x00\x00",
     "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xf8\xbf\x35\x58\x00\x66"
     "\x2d\xeb\x51\x7e\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xd0\x3f"
     "\x00\x00\x00\x00\x00\x00\x14\x40"},
};

TS_TEST(types_and_byte_orders_of_numpy_are_read, .loop = sizeof arrays / sizeof *arrays, IN_FOLDER)
{
    TS_SCOPE;
    const char *order = strpbrk(arrays[_i].header, "<>|"); /* "<i4' ..." */
    size_t bytes = 6 * (size_t)(order[2] - '0');
    ts_tensor *t = ts_npy_load(make(1, arrays[_i].header, arrays[_i].data, bytes));
    ck_ok(t);
    ck_assert_int_eq(ts_dtype_of(t), arrays[_i].dtype);
    ck_assert_int_eq(ts_size(t, 0), 2);
    ck_assert(ts_is_contiguous(t));
    ck_assert_mem_eq(ts_data(t), arrays[_i].want, 6 * ts_dtype_size(arrays[_i].dtype));
    ck_assert_ptr_null(ts_npy_load(make(1, arrays[_i].header, arrays[_i].data, bytes - 1)));
    ck_failed(TS_ERR_FORMAT, "bytes of data");
}

TS_TEST(strided_tensor_is_saved_row_major, IN_FOLDER)
{
    TS_SCOPE;
    static const float data[] = {0, 1, 2, 3, 4, 5}, want[] = {0, 3, 1, 4, 2, 5};
    ts_tensor *t = ts_from_array(data, TS_F32, TS_SIZES(2, 3));
    ts_tensor *turned =
        ts_tensor_alias(ts_thread_self(), t, (int64_t[]){3, 2}, (int64_t[]){1, 3}, 2, 0);
    ck_ok(turned);
    ts_scope_adopt(ts_thread_self(), turned);
    ck_ok(ts_npy_save(in_folder("t.npy"), turned));
    ck_assert_mem_eq(ts_data(ts_npy_load(in_folder("t.npy"))), want, sizeof want);
}

#define HEAD(descr, order, shape)                                                                  \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }"

static const struct hostile {
    const char *rule, *header;
    size_t data;
    ts_status code;
    const char *message;
} hostile[] = {
    {"objects", HEAD("'|O'", "False", "(1,)"), 8, TS_ERR_DTYPE, "got '|O'"},
    {"a record", HEAD("[('a', '<f4')]", "False", "(1,)"), 4, TS_ERR_DTYPE, "a record"},
    {"64 bits without a sign", HEAD("'>u8'", "False", "(1,)"), 8, TS_ERR_DTYPE, "got '>u8'"},
    {"an order of single bytes", HEAD("'>u1'", "False", "(1,)"), 1, TS_ERR_DTYPE, "got '>u1'"},
    {"a number without an order", HEAD("'|i4'", "False", "(1,)"), 4, TS_ERR_DTYPE, "got '|i4'"},
    {"no descr", HEAD("''", "False", "(1,)"), 4, TS_ERR_DTYPE, "got ''"},
    {"data for wider elements", HEAD("'<u2'", "False", "(2,)"), 8, TS_ERR_FORMAT,
     "expected 4 bytes of data for elements of 2 bytes and shape (2), got 8"},
    {"a wrap after widening", HEAD("'|i1'", "False", "(2305843009213693952,)"), 0, TS_ERR_FORMAT,
     "63 bits"},
    {"complex", HEAD("'<c8'", "False", "(1,)"), 8, TS_ERR_DTYPE, "got '<c8'"},
    {"a long descr", HEAD("'<f4<f4<f4<f4<f4<f4<f4<f4<f4<f4<f4<f4'", "False", "(1,)"), 4,
     TS_ERR_FORMAT, "short string"},
    {"descr as a number", HEAD("4", "False", "(1,)"), 4, TS_ERR_FORMAT, "as descr"},
    {"an escape", HEAD("'\\x3cf4'", "False", "(1,)"), 4, TS_ERR_FORMAT, "short string"},
    {"a call", HEAD("__import__('os')", "False", "(1,)"), 4, TS_ERR_FORMAT, "as descr"},
    {"order as a number", HEAD("'<f4'", "0", "(1,)"), 4, TS_ERR_FORMAT, "True or False"},
    {"too much data", HEAD("'<f4'", "False", "(1,)"), 5, TS_ERR_FORMAT,
     "expected 4 bytes of data for elements of 4 bytes and shape (1), got 5"},
    {"too little data", HEAD("'<f4'", "False", "(1,)"), 3, TS_ERR_FORMAT, "got 3"},
    {"a product that wraps", HEAD("'|u1'", "False", "(4294967296, 4294967296)"), 0, TS_ERR_FORMAT,
     "63 bits"},
    {"a wrap behind a zero", HEAD("'|u1'", "False", "(0, 4294967296, 4294967296)"), 0,
     TS_ERR_FORMAT, "63 bits"},
    {"a size beyond 63 bits", HEAD("'|u1'", "False", "(9223372036854775808,)"), 0, TS_ERR_FORMAT,
     "63 bits"},
    {"a negative size", HEAD("'|u1'", "False", "(-1,)"), 0, TS_ERR_FORMAT, "expected a size"},
    {"a real size", HEAD("'|u1'", "False", "(1.0,)"), 1, TS_ERR_FORMAT, "','"},
    {"a zero in front", HEAD("'|u1'", "False", "(01,)"), 1, TS_ERR_FORMAT, "expected a size"},
    {"a number in parentheses", HEAD("'|u1'", "False", "(1)"), 1, TS_ERR_FORMAT, "','"},
    {"only a comma", HEAD("'|u1'", "False", "(,)"), 1, TS_ERR_FORMAT, "expected a size"},
    {"a list as shape", HEAD("'|u1'", "False", "[1]"), 1, TS_ERR_FORMAT, "'(' of the shape"},
    {"a shape not closed", HEAD("'|u1'", "False", "(1, "), 1, TS_ERR_FORMAT, "expected a size"},
    {"nine dimensions", HEAD("'|u1'", "False", "(1,1,1,1,1,1,1,1,1)"), 1, TS_ERR_FORMAT,
     "at most 8 dimensions"},
    {"no shape", "{'descr': '|u1', 'fortran_order': False}", 1, TS_ERR_FORMAT, "got less"},
    {"nothing", "{}", 0, TS_ERR_FORMAT, "got less"},
    {"two shapes", "{'shape': (1,), 'shape': (1,), 'descr': '|u1'}", 1, TS_ERR_FORMAT,
     "'shape' twice"},
    {"a fourth key", "{'shape': (1,), 'x': 1, 'descr': '|u1'}", 1, TS_ERR_FORMAT, "got 'x'"},
    {"no comma", "{'shape': (1,) 'descr': '|u1'}", 1, TS_ERR_FORMAT, "',' between keys"},
    {"no colon", "{'shape' (1,)}", 1, TS_ERR_FORMAT, "':' after a key"},
    {"text after", HEAD("'|u1'", "False", "(1,)") "x", 1, TS_ERR_FORMAT, "nothing after"},
    {"not closed", "{'shape': (1,)", 1, TS_ERR_FORMAT, "',' between keys"},
    {"no dict", "(1,)", 1, TS_ERR_FORMAT, "'{' of the header"},
    {"an empty header", "", 0, TS_ERR_FORMAT, "'{' of the header"},
};

static void refuse(const char *rule, const char *path, ts_status code, const char *message)
{
    ts_error_clear();
    ts_tensor *t = ts_npy_load(path);
    bool ok = !t && ts_error_code() == code && strstr(ts_error_message(), message) &&
              strstr(ts_error_message(), path);
    if (!ok) {
        printf("%s: expected %s with \"%s\", got %s: %s\n", rule, ts_status_name(code), message,
               t ? "a tensor" : ts_status_name(ts_error_code()), ts_error_message());
        fflush(stdout);
    }
    ts_tally(ok, !ok, 0);
}

TS_TEST(npy_files_that_break_one_rule_are_refused_by_name, IN_FOLDER)
{
    static const char zeros[16];
    TS_SCOPE;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        refuse(hostile[i].rule, make(1, hostile[i].header, zeros, hostile[i].data), hostile[i].code,
               hostile[i].message);
    refuse("version 4.0", make(4, numpy_header, zeros, 16), TS_ERR_FORMAT, "got 4.0");
    refuse("version 0.0", make(0, numpy_header, zeros, 16), TS_ERR_FORMAT, "got 0.0");
    write_file(in_folder("file.npy"), "\x93NUMPX\1\0\0\0\0\0", 12);
    refuse("another magic", in_folder("file.npy"), TS_ERR_FORMAT, "begins with");
    write_file(in_folder("file.npy"), "\x93NUMPY\1\0\x11\x27\0\0", 12);
    refuse("a long header", in_folder("file.npy"), TS_ERR_FORMAT, "at most 10000 bytes, got 10001");
    write_file(in_folder("file.npy"), "\x93NUMPY\2\0\xff\xff\xff\xff", 12);
    refuse("a very long header", in_folder("file.npy"), TS_ERR_FORMAT, "got 4294967295");
    write_file(in_folder("file.npy"), "\x93NUMPY\1\0\3\0{}", 12);
    refuse("a header beyond the end", in_folder("file.npy"), TS_ERR_FORMAT,
           "got 2 before the file's end");
    write_file(in_folder("file.npy"), "\x93NUMPY\1\0\2\0{}", 12);
    refuse("no newline", in_folder("file.npy"), TS_ERR_FORMAT, "ends with a newline");
    write_file(in_folder("file.npy"), "\x93NUMPY\1\0\4\0{\0}\n", 14);
    refuse("a zero byte", in_folder("file.npy"), TS_ERR_FORMAT, "a header of text");
    refuse("a bool of 2", make(1, HEAD("'|b1'", "False", "(2,)"), "\1\2", 2), TS_ERR_FORMAT,
           "got 2 in element 1");
}

TS_TEST(npy_file_cut_at_any_byte_is_refused, IN_FOLDER)
{
    static const float values[] = {0, 1, 2, 3, 4, 5};
    size_t bytes = 0;
    unsigned char *data = read_file(make(1, numpy_header, values, sizeof values), &bytes);
    for (size_t length = 0; length < bytes; length++) {
        TS_SCOPE;
        write_file(in_folder("cut.npy"), data, length);
        refuse("a cut file", in_folder("cut.npy"), TS_ERR_FORMAT, "expected");
    }
    free(data);
}

TS_TEST(npy_flipped_bits_are_refused_or_harmless, IN_FOLDER)
{
    static const float values[] = {0, 1, 2, 3, 4, 5};
    size_t bytes = 0;
    unsigned char *data = read_file(make(1, numpy_header, values, sizeof values), &bytes);
    int opened = 0;
    for (size_t bit = 0; bit < 128 * 8; bit++) {
        TS_SCOPE;
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        write_file(in_folder("flip.npy"), data, bytes);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        ts_error_clear();
        ts_tensor *t = ts_npy_load(in_folder("flip.npy"));
        opened += t != NULL;
        ck_assert(t ? ts_numel(t) * (int64_t)ts_dtype_size(ts_dtype_of(t)) == (int64_t)sizeof values
                    : ts_error_code() == TS_ERR_FORMAT || ts_error_code() == TS_ERR_DTYPE);
    }
    /* <f4 to <i4 and the like; spaces of the padding become no other white space by one bit */
    ck_assert_int_lt(opened, 10);
    free(data);
}

TS_TEST(misuse_of_npy_is_named, IN_FOLDER)
{
    TS_SCOPE;
    ts_tensor *t = ts_zeros(TS_SIZES(2), TS_F32);
    ck_assert_ptr_null(ts_npy_load(NULL));
    ck_failed(TS_ERR_NULL, "'path'");
    ck_assert_ptr_null(ts_npy_load(in_folder("nowhere")));
    ck_failed(TS_ERR_IO, "No such file");
    ck_assert_int_eq(ts_npy_save(NULL, t), TS_ERR_NULL);
    ck_failed(TS_ERR_NULL, "'path'");
    ck_assert_int_eq(ts_npy_save(in_folder("t.npy"), NULL), TS_ERR_NULL);
    ck_failed(TS_ERR_NULL, "'t'");
    ck_assert_int_eq(
        ts_npy_save(in_folder("t.npy"), ts_empty_on(TS_SIZES(2), TS_F32, TS_DEVICE_META)),
        TS_ERR_DEVICE);
    ck_failed(TS_ERR_DEVICE, "got meta");
    ck_assert_int_eq(ts_npy_save(in_folder("no/t.npy"), t), TS_ERR_IO);
    ck_assert_int_eq(count_files(test_folder), 0);
}
