/** @file safetensors.c  Fuzzes the index of safetensors files, and reads accepted files. */
// SPDX-License-Identifier: MIT
#include "io/safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    TS_SCOPE;
    ts_error_clear();
    ts_safetensors *st =
        ts_safetensors_open_fd("fuzz", "input", fuzz_file(data, size), (int64_t)size,
                               &(ts_safetensors_opts){0});
    if (!st) {
        FUZZ_CHECK(ts_error_code() == TS_ERR_FORMAT || ts_error_code() == TS_ERR_DTYPE);
        return 0;
    }
    for (int64_t i = 0; i < ts_safetensors_count(st); i++) {
        FUZZ_CHECK(ts_safetensors_find(st, ts_safetensors_name(st, i)) == i);
        ts_tensor *t = ts_safetensors_load_at(st, i);
        FUZZ_CHECK(t || ts_error_code() == TS_ERR_FORMAT); /* bools */
        FUZZ_CHECK(!t ||
                   (ts_numel(t) <= (int64_t)size && ts_dtype_of(t) == ts_safetensors_dtype(st, i)));
        ts_drop(t);
    }
    for (int64_t i = 0; i < ts_safetensors_metadata_count(st); i++)
        FUZZ_CHECK(ts_safetensors_metadata(st, ts_safetensors_metadata_key(st, i)));
    ts_safetensors_close(st);
    return 0;
}
