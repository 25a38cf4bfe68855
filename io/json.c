/** @file json.c  Parsing and serializing with jansson, with Tessera's allocator and errors. */
// SPDX-License-Identifier: MIT
#include "io/json.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "core/alloc.h"
#include "init.h"
#include "io/files.h"

/* ------------------------------------------------------------------------------ memory ---- */

/* The memory block of the thread's parser: allocated from sequentially, freed as a whole. */
static _Thread_local struct {
    char *base;
    size_t used, size;
    bool open; /* the parser is running, so allocations come from the block */
} block;

static void *json_block_alloc(size_t bytes)
{
    if (!block.open)
        return ts_sys_alloc(bytes);
    size_t step = (bytes + 15) & ~(size_t)15;
    assert(step >= bytes && step <= block.size - block.used);
    if (step < bytes || step > block.size - block.used)
        return ts_sys_alloc(bytes);
    void *p = block.base + block.used;
    block.used += step;
    return p;
}

static void json_block_free(void *p)
{
    if (!block.base || (uintptr_t)p - (uintptr_t)block.base >= block.size)
        ts_sys_free(p);
}

static bool ours; /* jansson allocates with json_block_alloc() */

static void choose_memory(void)
{
    json_malloc_t allocate;
    json_free_t release;
    json_get_alloc_funcs(&allocate, &release);
    /* memory from a program's own allocator must be freed by it */
    ours = allocate == malloc && release == free;
    if (ours)
        json_set_alloc_funcs(json_block_alloc, json_block_free);
}

void ts_json_ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose_memory);
}

void ts_io_remove(void)
{
    json_malloc_t allocate;
    json_free_t release;
    json_get_alloc_funcs(&allocate, &release);
    if (allocate == json_block_alloc) /* memory allocated outside of parsing is from malloc() */
        json_set_alloc_funcs(malloc, free);
}

/*
 * Upper bound in bytes of the parser's memory for the value at the start of text. Each value and
 * each member follows one of { [ , : and needs a few allocations: an object with its first buckets
 * takes 208 bytes, a member 96, its share of the buckets 64, all rounded up. A string is stored at
 * most twice, and the buffer of the longest token grows from 16 bytes by doubling.
 */
static size_t most_of(const char *text, size_t bytes)
{
    size_t marks = 1, depth = 0, i = 0;
    for (bool quoted = false; i < bytes; i++) {
        char c = text[i];
        if (quoted) {
            i += c == '\\';
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
            continue;
        } else if (c == '{' || c == '[') {
            depth++;
            marks++;
        } else if (c == ',' || c == ':') {
            marks++;
        } else if ((c == '}' || c == ']') && depth) {
            depth--;
        } else {
            continue;
        }
        if (!quoted && !depth)
            break;
    }
    return 1024 + 512 * marks + 8 * ((i < bytes ? i : bytes) + 1);
}

/* ------------------------------------------------------------------------------- values ---- */

json_t *ts_json_load(const char *op, const char *path, const char *text, size_t bytes, size_t flags,
                     int64_t at, size_t *consumed)
{
    json_error_t error;
    ts_json_ready();
    if (ours) {
        size_t most = most_of(text, bytes);
        ts_json_done(NULL);
        block.base = ts_sys_alloc(most);
        if (!block.base) {
            ts_error_memory("a JSON value", (int64_t)most);
            return NULL;
        }
        block.size = most;
        block.used = 0;
        block.open = true;
    }
    json_t *value = json_loadb(text, bytes, flags, &error);
    block.open = false;
    if (value) {
        if (consumed)
            *consumed = (size_t)error.position;
        return value;
    }
    ts_json_done(NULL);
    /* a parser that ran out of memory often reports nothing */
    if (!error.text[0] || json_error_code(&error) == json_error_out_of_memory)
        ts_error_memory("a JSON value", 1);
    else
        ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL, "'%s': expected JSON, got byte %lld: %s", path,
                   (long long)(at + error.position), ts_quote(error.text));
    return NULL;
}

void ts_json_done(json_t *value)
{
    json_decref(value);
    ts_sys_free(block.base);
    block.base = NULL;
}

char *ts_json_text(const json_t *value, size_t flags, size_t *bytes)
{
    size_t size = json_dumpb(value, NULL, 0, flags);
    char *text = size ? ts_sys_alloc(size + 1) : NULL;
    if (!text || json_dumpb(value, text, size, flags) != size) {
        ts_sys_free(text);
        ts_error_memory("a JSON text", (int64_t)size);
        return NULL;
    }
    text[size] = 0;
    *bytes = size;
    return text;
}
