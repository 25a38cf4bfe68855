/** @file npy.c  Fuzzes the reader of NumPy files. */
// SPDX-License-Identifier: MIT
#include "include/tessera/io.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    TS_SCOPE;
    char path[64];
    int fd = fuzz_file(data, size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ts_error_clear();
    ts_tensor *t = ts_npy_load(path);
    close(fd);
    FUZZ_CHECK(t || ts_error_code() == TS_ERR_FORMAT || ts_error_code() == TS_ERR_DTYPE);
    FUZZ_CHECK(!t || (ts_is_contiguous(t) && ts_numel(t) <= (int64_t)size));
    return 0;
}
