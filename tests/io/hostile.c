/** @file hostile.c  Safetensors files that break one rule each, are cut, or have a flipped bit. */
// SPDX-License-Identifier: MIT
#include "tests/io/folder.h"
#include "tests/io/golden.h"

/* A valid description of a tensor, and headers with one (ONE) or two (TWO) of them. */
#define ENTRY(dtype, shape, offsets)                                                               \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE(dtype, shape, offsets) "{\"a\":" ENTRY(dtype, shape, offsets) "}"
#define TWO(first, second)                                                                         \
    "{\"a\":" ENTRY("F32", "[2]", first) ",\"b\":" ENTRY("F32", "[2]", second) "}"

/* Headers that break one rule each. data: number of bytes after the header. */
static const struct hostile {
    const char *rule, *header;
    int data;
    ts_status code;
    const char *message;
} hostile[] = {
    {"two names", "{\"a\":" ENTRY("U8", "[0]", "[0,0]") ",\"a\":" ENTRY("U8", "[0]", "[0,0]") "}",
     0, TS_ERR_FORMAT, "distinct names, got 'a' twice"},
    {"two names, one escaped",
     "{\"a\":" ENTRY("U8", "[0]", "[0,0]") ",\"\\u0061\":" ENTRY("U8", "[0]", "[0,0]") "}", 0,
     TS_ERR_FORMAT, "got 'a' twice"},
    {"two dtypes",
     "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
     TS_ERR_FORMAT, "duplicate"},
    {"two shapes", "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"shape\":[0],\"data_offsets\":[0,0]}}",
     0, TS_ERR_FORMAT, "duplicate"},
    {"two metadata", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, TS_ERR_FORMAT,
     "one __metadata__"},
    {"two metadata keys", "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, TS_ERR_FORMAT,
     "'k' twice"},
    {"metadata is a list", "{\"__metadata__\":[]}", 0, TS_ERR_FORMAT, "'{' of the metadata"},
    {"metadata is null", "{\"__metadata__\":null}", 0, TS_ERR_FORMAT, "'{' of the metadata"},
    {"metadata value is a number", "{\"__metadata__\":{\"k\":1}}", 0, TS_ERR_FORMAT,
     "a metadata value"},
    {"metadata value is an object", "{\"__metadata__\":{\"k\":{}}}", 0, TS_ERR_FORMAT,
     "a metadata value"},
    {"metadata without colon", "{\"__metadata__\":{\"k\" \"v\"}}", 0, TS_ERR_FORMAT, "':'"},
    {"metadata with a comma at its end", "{\"__metadata__\":{\"k\":\"v\",}}", 0, TS_ERR_FORMAT,
     "a metadata key"},
    {"metadata not closed", "{\"__metadata__\":{\"k\":\"v\"", 0, TS_ERR_FORMAT,
     "end of the metadata"},
    {"a hole at the start", ONE("F32", "[2]", "[8,16]"), 16, TS_ERR_FORMAT,
     "begin 0, got 8 (a hole)"},
    {"a hole between", TWO("[0,8]", "[12,20]"), 20, TS_ERR_FORMAT, "begin 8, got 12 (a hole)"},
    {"an overlap by a part", TWO("[0,8]", "[4,12]"), 12, TS_ERR_FORMAT,
     "begin 8, got 4 (an overlap)"},
    {"an overlap in whole", TWO("[0,8]", "[0,8]"), 8, TS_ERR_FORMAT, "begin 8, got 0 (an overlap)"},
    {"bytes after the data", ONE("F32", "[2]", "[0,8]"), 9, TS_ERR_FORMAT,
     "expected 8 bytes of data by the header, got 9"},
    {"data cut", ONE("F32", "[2]", "[0,8]"), 7, TS_ERR_FORMAT, "at most 7 bytes, got an end at 8"},
    {"data absent", ONE("F32", "[2]", "[0,8]"), 0, TS_ERR_FORMAT, "at most 0 bytes"},
    {"data without tensors", "{}", 1, TS_ERR_FORMAT, "expected 0 bytes"},
    {"an end before its begin", ONE("F32", "[2]", "[8,0]"), 8, TS_ERR_FORMAT,
     "0 <= begin <= end, got 8 and 0"},
    {"a negative begin", ONE("F32", "[2]", "[-8,0]"), 0, TS_ERR_FORMAT,
     "0 <= begin <= end, got -8 and 0"},
    {"both offsets negative", ONE("U8", "[2]", "[-4,-2]"), 0, TS_ERR_FORMAT, "0 <= begin"},
    {"one offset", ONE("U8", "[0]", "[0]"), 0, TS_ERR_FORMAT, "two integers as data_offsets"},
    {"three offsets", ONE("U8", "[0]", "[0,0,0]"), 0, TS_ERR_FORMAT,
     "two integers as data_offsets"},
    {"no offsets", ONE("U8", "[0]", "[]"), 0, TS_ERR_FORMAT, "two integers as data_offsets"},
    {"offsets as an object", ONE("U8", "[0]", "{}"), 0, TS_ERR_FORMAT,
     "two integers as data_offsets"},
    {"offsets as strings", ONE("U8", "[0]", "[\"0\",\"0\"]"), 0, TS_ERR_FORMAT,
     "two integers as data_offsets"},
    {"offsets as reals", ONE("U8", "[0]", "[0.0,0.0]"), 0, TS_ERR_FORMAT,
     "two integers as data_offsets"},
    {"an offset beyond 63 bits", ONE("U8", "[0]", "[0,9223372036854775808]"), 0, TS_ERR_FORMAT,
     "too big"},
    {"an end at 2^63-1", ONE("U8", "[9223372036854775807]", "[0,9223372036854775807]"), 8,
     TS_ERR_FORMAT, "at most 8 bytes"},
    {"ends that wrap",
     "{\"a\":" ENTRY("U8", "[9223372036854775807]", "[0,9223372036854775807]")
     ",\"b\":" ENTRY("U8", "[9223372036854775807]",
                     "[9223372036854775807,9223372036854775807]") "}",
     8, TS_ERR_FORMAT, "expected 9223372036854775807 bytes"},
    {"a shape larger than its bytes", ONE("F32", "[3]", "[0,8]"), 8, TS_ERR_FORMAT,
     "expected 12 bytes for F32 of shape (3), got 8"},
    {"a shape smaller than its bytes", ONE("F32", "[1]", "[0,8]"), 8, TS_ERR_FORMAT,
     "expected 4 bytes"},
    {"a shape for another dtype", ONE("F64", "[2]", "[0,8]"), 8, TS_ERR_FORMAT,
     "expected 16 bytes for F64"},
    {"a scalar of two elements", ONE("F32", "[]", "[0,8]"), 8, TS_ERR_FORMAT, "expected 4 bytes"},
    {"a product that wraps to 0", ONE("U8", "[4294967296,4294967296]", "[0,0]"), 0, TS_ERR_FORMAT,
     "63 bits"},
    {"a product that wraps to 8", ONE("F64", "[2305843009213693953]", "[0,8]"), 8, TS_ERR_FORMAT,
     "63 bits"},
    {"a wrap behind a zero", ONE("U8", "[0,9223372036854775807,9223372036854775807]", "[0,0]"), 0,
     TS_ERR_FORMAT, "63 bits"},
    {"bytes that wrap", ONE("F64", "[1152921504606846976,2]", "[0,0]"), 0, TS_ERR_FORMAT,
     "63 bits"},
    {"a negative size", ONE("U8", "[-1]", "[0,0]"), 0, TS_ERR_FORMAT, "integer >= 0 as size 0"},
    {"two negative sizes", ONE("U8", "[-2,-2]", "[0,4]"), 4, TS_ERR_FORMAT,
     "integer >= 0 as size 0"},
    {"a real size", ONE("U8", "[1.0]", "[0,1]"), 1, TS_ERR_FORMAT, "integer >= 0 as size 0"},
    {"a true size", ONE("U8", "[1,true]", "[0,1]"), 1, TS_ERR_FORMAT, "integer >= 0 as size 1"},
    {"a size as a string", ONE("U8", "[\"1\"]", "[0,1]"), 1, TS_ERR_FORMAT, "integer >= 0"},
    {"a size as a list", ONE("U8", "[[1]]", "[0,1]"), 1, TS_ERR_FORMAT, "integer >= 0"},
    {"a size beyond 63 bits", ONE("U8", "[18446744073709551617]", "[0,1]"), 1, TS_ERR_FORMAT,
     "too big"},
    {"nine dimensions", ONE("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, TS_ERR_FORMAT,
     "at most 8 dimensions, got 9"},
    {"a shape as a number", ONE("U8", "1", "[0,1]"), 1, TS_ERR_FORMAT, "an array as shape"},
    {"a shape as null", ONE("U8", "null", "[0,1]"), 1, TS_ERR_FORMAT, "an array as shape"},
    {"no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0, TS_ERR_FORMAT,
     "exactly dtype, shape"},
    {"no dtype", "{\"a\":{\"shape\":[0],\"data_offsets\":[0,0]}}", 0, TS_ERR_FORMAT,
     "exactly dtype, shape"},
    {"no offsets key", "{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, TS_ERR_FORMAT,
     "exactly dtype, shape"},
    {"a key too many", "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":0}}", 0,
     TS_ERR_FORMAT, "exactly dtype, shape"},
    {"another key instead", "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"offsets\":[0,0]}}", 0,
     TS_ERR_FORMAT, "exactly dtype, shape"},
    {"an empty description", "{\"a\":{}}", 0, TS_ERR_FORMAT, "exactly dtype, shape"},
    {"a description as a list", "{\"a\":[]}", 0, TS_ERR_FORMAT, "'{' of a tensor's description"},
    {"a description as null", "{\"a\":null}", 0, TS_ERR_FORMAT, "'{' of a tensor's description"},
    {"dtype as a number", "{\"a\":{\"dtype\":4,\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
     TS_ERR_FORMAT, "a string as dtype"},
    {"dtype in small letters", ONE("f32", "[0]", "[0,0]"), 0, TS_ERR_DTYPE, "got 'f32'"},
    {"an unknown dtype", ONE("F8_E4M3", "[0]", "[0,0]"), 0, TS_ERR_DTYPE, "got 'F8_E4M3'"},
    {"an empty dtype", ONE("", "[0]", "[0,0]"), 0, TS_ERR_DTYPE, "got ''"},
    {"dtype with control characters", ONE("\\u001b[2J", "[0]", "[0,0]"), 0, TS_ERR_DTYPE,
     "got '\\x1b[2J'"},
    {"white space in front", " {}", 0, TS_ERR_FORMAT, "begins with '{', got 0x20"},
    {"a list", "[]", 0, TS_ERR_FORMAT, "begins with '{', got 0x5b"},
    {"a byte order mark", "\xef\xbb\xbf{}", 0, TS_ERR_FORMAT, "begins with '{', got 0xef"},
    {"a tab as padding", "{}\t", 0, TS_ERR_FORMAT,
     "only spaces after the closing brace, got 0x09"},
    {"a second object", "{}{}", 0, TS_ERR_FORMAT, "only spaces after the closing brace, got 0x7b"},
    {"a comma at the end", "{\"a\":" ENTRY("U8", "[0]", "[0,0]") ",}", 0, TS_ERR_FORMAT,
     "'\"' of a name"},
    {"a comma at the start", "{,}", 0, TS_ERR_FORMAT, "'\"' of a name"},
    {"no comma", "{\"a\":" ENTRY("U8", "[0]", "[0,0]") "\"b\":" ENTRY("U8", "[0]", "[0,0]") "}", 0,
     TS_ERR_FORMAT, "end of the header"},
    {"no colon", "{\"a\"" ENTRY("U8", "[0]", "[0,0]") "}", 0, TS_ERR_FORMAT, "':' after a name"},
    {"a name without quotes", "{a:" ENTRY("U8", "[0]", "[0,0]") "}", 0, TS_ERR_FORMAT, "of a name"},
    {"a name not closed", "{\"a:}", 0, TS_ERR_FORMAT, "expected JSON"},
    {"a header not closed", "{\"a\":" ENTRY("U8", "[0]", "[0,0]"), 0, TS_ERR_FORMAT, "got the end"},
    {"nothing but a brace", "{ ", 0, TS_ERR_FORMAT, "got the end"},
    {"a name that is not UTF-8", "{\"\xff\":" ENTRY("U8", "[0]", "[0,0]") "}", 0, TS_ERR_FORMAT,
     "unable to decode byte 0xff"},
    {"an overlong encoding", "{\"\xc0\xaf\":" ENTRY("U8", "[0]", "[0,0]") "}", 0, TS_ERR_FORMAT,
     "unable to decode byte 0xc0"},
    {"half a surrogate pair", "{\"\\ud800\":" ENTRY("U8", "[0]", "[0,0]") "}", 0, TS_ERR_FORMAT,
     "Unicode"},
    {"a zero in a name", "{\"a\\u0000b\":" ENTRY("U8", "[0]", "[0,0]") "}", 0, TS_ERR_FORMAT,
     "u0000"},
    {"a newline in a name", "{\"a\nb\":" ENTRY("U8", "[0]", "[0,0]") "}", 0, TS_ERR_FORMAT,
     "expected JSON"},
    {"a comment", "{/**/}", 0, TS_ERR_FORMAT, "of a name"},
    {"NaN as a size", ONE("U8", "[NaN]", "[0,0]"), 0, TS_ERR_FORMAT, "expected JSON"},
    {"a hexadecimal size", ONE("U8", "[0x0]", "[0,0]"), 0, TS_ERR_FORMAT, "expected JSON"},
    {"a size with a zero in front", ONE("U8", "[00]", "[0,0]"), 0, TS_ERR_FORMAT, "expected JSON"},
};

/* Writes a file: the header length, the header, and `data` zero bytes. Returns its path. */
static const char *make(uint64_t length, const char *header, size_t header_bytes, size_t data)
{
    unsigned char *bytes = calloc(1, 8 + header_bytes + data);
    ck_assert_ptr_nonnull(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(length >> (8 * i));
    memcpy(bytes + 8, header, header_bytes);
    const char *path = in_folder("hostile.safetensors");
    write_file(path, bytes, 8 + header_bytes + data);
    free(bytes);
    return path;
}

static void refuse(const char *rule, const char *path, ts_status code, const char *message)
{
    ts_error_clear();
    ts_safetensors *st = ts_safetensors_open(path, NULL);
    bool ok = !st && ts_error_code() == code && strstr(ts_error_message(), message) &&
              strstr(ts_error_message(), path);
    if (!ok) {
        printf("%s: expected %s with \"%s\", got %s: %s\n", rule, ts_status_name(code), message,
               st ? "a file" : ts_status_name(ts_error_code()), ts_error_message());
        fflush(stdout);
    }
    ts_safetensors_close(st);
    ts_tally(ok, !ok, 0);
}

TS_TEST(files_that_break_one_rule_are_refused_by_name, IN_FOLDER)
{
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        const struct hostile *h = &hostile[i];
        refuse(h->rule, make(strlen(h->header), h->header, strlen(h->header), (size_t)h->data),
               h->code, h->message);
    }
}

TS_TEST(header_lengths_are_checked_against_file_and_cap, IN_FOLDER)
{
    static const struct {
        uint64_t length;
        const char *message;
    } bad[] = {
        {0, "a header of 2 to 2 bytes"},      {1, "a header of 2 to 2 bytes"},
        {3, "(the file's end), got 3"},
        {(16 << 20) + 1, "at most 16777216 bytes, got 16777217"},
        {16 << 20, "(the file's end)"},       {100000001, "at most 16777216 bytes"},
        {1ull << 32, "at most"},              {(1ull << 63) - 1, "at most"},
        {1ull << 63, "got 9223372036854775808"}, {UINT64_MAX, "got 18446744073709551615"},
        {UINT64_MAX - 7, "at most"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuse("header length", make(bad[i].length, "{}", 2, 0), TS_ERR_FORMAT, bad[i].message);
}

TS_TEST(a_header_that_would_need_much_memory_is_refused_early, IN_FOLDER)
{
    /* a shape of two million elements, for which jansson would allocate thirty times the header */
    size_t bytes = 4 << 20;
    char *header = malloc(bytes);
    ck_assert_ptr_nonnull(header);
    size_t used = (size_t)sprintf(header, "{\"a\":{\"shape\":[");
    while (used + 2 < bytes) {
        header[used++] = '1';
        header[used++] = ',';
    }
    ts_memory_stats before = ts_memory_get_stats();
    refuse("a long list", make(used, header, used, 0), TS_ERR_FORMAT, "expected JSON");
    ck_assert_uint_lt(ts_memory_get_stats().system_allocs - before.system_allocs, 5000);

    memset(header, '[', bytes);
    memcpy(header, "{\"a\":{\"shape\":", 14);
    refuse("a deep nest", make(bytes, header, bytes, 0), TS_ERR_FORMAT, "expected JSON");
    memset(header, 'n', bytes);
    memcpy(header, "{\"", 2);
    memcpy(header + bytes - 4, "\":{}", 4);
    refuse("a long name", make(bytes, header, bytes, 0), TS_ERR_FORMAT,
           "a name of at most 1024 bytes");
    free(header);
}

TS_TEST(a_bool_that_is_neither_0_nor_1_is_refused, IN_FOLDER)
{
    TS_SCOPE;
    unsigned char bytes[sizeof golden];
    memcpy(bytes, golden, sizeof golden);
    bytes[sizeof golden - 2] = 2;
    write_file(in_folder("file"), bytes, sizeof bytes);
    ts_safetensors *st = ts_safetensors_open(in_folder("file"), NULL);
    ck_ok(st);
    ck_assert_ptr_null(ts_safetensors_load(st, "mask"));
    ck_failed(TS_ERR_FORMAT, "got 2 in element 1");
    ts_tensor *mask = ts_zeros(TS_SIZES(3), TS_BOOL), *all[6];
    ck_assert_int_eq(ts_safetensors_read_into(st, "mask", mask), TS_ERR_FORMAT);
    ck_assert_mem_eq(ts_data(mask), "\0\0\0", 3);
    ck_assert_int_eq(ts_safetensors_load_all(st, all), TS_ERR_FORMAT);
    ts_safetensors_close(st);
}

TS_TEST(a_file_cut_while_it_is_open_is_an_error_of_the_read, IN_FOLDER)
{
    TS_SCOPE;
    write_file(in_folder("file"), golden, sizeof golden);
    ts_safetensors *st = ts_safetensors_open(in_folder("file"), NULL);
    ck_ok(st);
    ck_assert_int_eq(truncate(in_folder("file"), sizeof golden - 1), 0);
    ck_assert_ptr_null(ts_safetensors_load(st, "mask"));
    ck_failed(TS_ERR_FORMAT, "expected 3 bytes from position 430, got 2");
    ck_ok(ts_safetensors_load(st, "a"));
    ts_safetensors_close(st);
}

TS_TEST(a_file_cut_at_any_byte_is_refused, IN_FOLDER)
{
    for (size_t length = 0; length < sizeof golden; length++) {
        write_file(in_folder("cut"), golden, length);
        ts_error_clear();
        ts_safetensors *st = ts_safetensors_open(in_folder("cut"), NULL);
        bool ok = !st && ts_error_code() == TS_ERR_FORMAT;
        ts_safetensors_close(st);
        ts_tally_as(TS_COUNT_FUZZ_INPUTS, ok, !ok, 0);
    }
}

/* A file that is accepted after a flip (in a name, a metadata text, padding) must still be
   valid. */
TS_TEST(flipped_bits_are_refused_or_harmless, IN_FOLDER)
{
    unsigned char bytes[sizeof golden];
    int opened = 0, refused = 0;
    size_t header = 8 + golden[0] + 256u * golden[1];
    for (size_t bit = 0; bit < header * 8; bit++) {
        TS_SCOPE;
        memcpy(bytes, golden, sizeof golden);
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        write_file(in_folder("flip"), bytes, sizeof bytes);
        ts_error_clear();
        ts_safetensors *st = ts_safetensors_open(in_folder("flip"), NULL);
        if (!st) {
            ck_assert(ts_error_code() == TS_ERR_FORMAT || ts_error_code() == TS_ERR_DTYPE);
            refused++;
            continue;
        }
        opened++;
        for (int64_t i = 0; i < ts_safetensors_count(st); i++) {
            ts_tensor *t = ts_safetensors_load(st, ts_safetensors_name(st, i));
            ck_assert(t || ts_error_code() == TS_ERR_FORMAT); /* bools */
        }
        ts_safetensors_close(st);
    }
    printf("%d flips opened, %d were refused\n", opened, refused);
    ck_assert_int_gt(opened, 0);
    ck_assert_int_gt(refused, 1500);
}
