/** @file json.c  jansson: memory, errors, texts. */
// SPDX-License-Identifier: MIT
#include "io/json.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/alloc.h"
#include "io/files.h"

static void choose_memory(void)
{
    json_malloc_t allocate;
    json_free_t release;
    json_get_alloc_funcs(&allocate, &release);
    /* blocks made by a program's own allocator must go back to it */
    if (allocate == malloc && release == free)
        json_set_alloc_funcs(ts_sys_alloc, ts_sys_free);
}

void ts_json_ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose_memory);
}

ts_status ts_json_fail(const char *op, const char *path, const json_error_t *error, int64_t at)
{
    /* a parser that ran out of memory often says nothing at all */
    if (!error->text[0] || json_error_code(error) == json_error_out_of_memory)
        return ts_fail_memory("a JSON value", 1);
    return ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL, "'%s': expected JSON, got byte %lld: %s", path,
                      (long long)(at + error->position), ts_quote(error->text));
}

char *ts_json_text(const json_t *value, size_t flags, size_t *bytes)
{
    size_t size = json_dumpb(value, NULL, 0, flags);
    char *text = size ? ts_sys_alloc(size + 1) : NULL;
    if (!text || json_dumpb(value, text, size, flags) != size) {
        ts_sys_free(text);
        ts_fail_memory("a JSON text", (int64_t)size);
        return NULL;
    }
    text[size] = 0;
    *bytes = size;
    return text;
}
