/** @file manifest.c  Fuzzes manifests: the input as a manifest, and as the JSON object of the
 * caller in a valid manifest. */
// SPDX-License-Identifier: MIT
#include <string.h>

#include "core/alloc.h"
#include "io/manifest.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ts_manifest in, out;
    char *text, *own;
    size_t bytes;
    ts_error_clear();
    if (ts_manifest_parse("fuzz", "input", (const char *)data, size, &in) == TS_OK)
        ts_manifest_free(&in);
    else
        FUZZ_CHECK(ts_error_code() == TS_ERR_FORMAT);

    /* an accepted object is written back, and a second round gives the same text */
    FUZZ_CHECK((own = strndup((const char *)data, size)));
    in = (ts_manifest){.step = 7, .json = own};
    if (ts_manifest_make("fuzz", &in, &text, &bytes) == TS_OK) {
        FUZZ_CHECK(ts_manifest_parse("fuzz", "own", text, bytes, &out) == TS_OK && out.step == 7);
        ts_sys_free(text);
        in.json = out.json;
        FUZZ_CHECK(ts_manifest_make("fuzz", &in, &text, &bytes) == TS_OK);
        ts_manifest again;
        FUZZ_CHECK(ts_manifest_parse("fuzz", "again", text, bytes, &again) == TS_OK);
        FUZZ_CHECK(strcmp(again.json, out.json) == 0);
        ts_sys_free(text);
        ts_manifest_free(&again);
        ts_manifest_free(&out);
    }
    free(own);
    return 0;
}
