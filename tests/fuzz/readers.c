/**
 * @file readers.c  Fuzzes the readers of IDX, CIFAR, CSV, npz and PNG files. The first byte of an
 * input selects the reader; the rest is the file.
 */
// SPDX-License-Identifier: MIT
#include "include/tessera/tessera.h"
#include "tests/fuzz/fuzz.h"

static void read_archive(const char *path, size_t size)
{
    ts_npz *z = ts_npz_open(path);
    FUZZ_CHECK(z || ts_error_code() == TS_ERR_FORMAT);
    FUZZ_CHECK(ts_npz_count(z) <= (int64_t)size);
    for (int64_t i = 0; i < ts_npz_count(z); i++) {
        ts_error_clear();
        ts_tensor *t = ts_npz_load(z, ts_npz_name(z, i));
        FUZZ_CHECK(t || ts_error_code() == TS_ERR_FORMAT || ts_error_code() == TS_ERR_DTYPE);
        FUZZ_CHECK(ts_npz_find(z, ts_npz_name(z, i)) == i);
    }
    ts_npz_close(z);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    TS_SCOPE;
    char path[64];
    ts_tensor *t = TS_NONE, *labels;
    if (!size)
        return 0;
    int fd = fuzz_file(data + 1, size - 1);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ts_error_clear();
    switch (data[0] & 7) {
    case 0: t = ts_idx_load(path); break;
    case 1: t = ts_csv_load(path, NULL); break;
    case 2: read_archive(path, size); break;
    case 3: t = ts_png_load(path, NULL); break;
    case 4: t = ts_png_load(path, TS_OPTS(ts_png_opts, .channels = 1, .indices = true)); break;
    case 5: t = ts_png_load(path, TS_OPTS(ts_png_opts, .channels = 4)); break;
    case 6:
        t = ts_csv_load(path, TS_OPTS(ts_csv_load_opts, .separator = ';', .skip_lines = 1));
        break;
    case 7: t = ts_cifar_load(path, 10, &t, &labels) == TS_OK ? t : NULL; break;
    }
    close(fd);
    FUZZ_CHECK(t || ts_error_code() == TS_ERR_FORMAT);
    FUZZ_CHECK(!t || t == TS_NONE || ts_numel(t) <= 5000 * (int64_t)size);
    return 0;
}
