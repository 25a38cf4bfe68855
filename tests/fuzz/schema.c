/** @file schema.c  Fuzzes schema strings, as programs and plugins hand them in. */
// SPDX-License-Identifier: MIT
#include <string.h>

#include "dispatch/op.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ts_schema schema, again;
    char *text = strndup((const char *)data, size);
    FUZZ_CHECK(text);
    ts_error_clear();
    memset(&schema, 0x55, sizeof schema);
    memset(&again, 0xaa, sizeof again);
    ts_status status = ts_schema_parse(text, &schema);
    FUZZ_CHECK(status == ts_schema_parse(text, &again));
    if (status == TS_OK) {
        FUZZ_CHECK(schema.name[0] && strlen(schema.name) < sizeof schema.name &&
                   strcmp(schema.name, again.name) == 0);
        FUZZ_CHECK(schema.nargs <= TS_MAX_ARGS && schema.nrets <= TS_MAX_RETS &&
                   schema.nargs == again.nargs);
        for (int i = 0; i < schema.nargs; i++) {
            const ts_param *p = &schema.args[i], *q = &again.args[i];
            FUZZ_CHECK(p->kinds && p->name[0] && strcmp(p->name, q->name) == 0);
            FUZZ_CHECK(p->kinds == q->kinds && p->optional == q->optional &&
                       p->written == q->written);
        }
    } else {
        FUZZ_CHECK(ts_error_code() == status && ts_error_message()[0]);
    }
    free(text);
    return 0;
}
