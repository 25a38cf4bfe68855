/** @file load.c  Loading backends: errors, the registry after them, loads in several threads. Uses
 * public headers only. */
// SPDX-License-Identifier: MIT
#include "tests/expect.h"
#include "tests/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *path_of(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/plugin_%s.so", TS_PLUGINS, name);
    return path;
}

/** All information that the registry reports, as text; the caller frees it. */
static char *registry_text(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    for (int op = 0; op < ts_op_count(); op++)
        ts_op_dump(ts_op_name(op), file);
    for (int k = 0; k < TS_KEY_COUNT; k++)
        fprintf(file, "%s ", ts_key_name((ts_key)k));
    fclose(file);
    return text;
}

static void refused(const char *name, ts_status status, const char *says)
{
    char *before = registry_text();
    ts_error_clear();
    ts_status got = ts_backend_load(path_of(name), NULL);
    ck_assert_msg(got == status, "%s: expected %s, got %s: %s", name, ts_status_name(status),
                  ts_status_name(got), ts_error_message());
    ck_assert_msg(strstr(ts_error_message(), says), "'%s' is not in: %s", says, ts_error_message());
    ck_assert_msg(strstr(ts_error_message(), name), "'%s' is not in: %s", name, ts_error_message());
    char *after = registry_text();
    ck_assert_str_eq(before, after);
    free(before);
    free(after);
}

TS_TEST(a_library_that_cannot_be_a_backend_is_refused_by_name_and_leaves_the_registry_as_it_was)
{
    refused("missing", TS_ERR_IO, "backend_load: cannot open '");
    refused("no_symbol", TS_ERR_FORMAT, "exports no 'ts_backend_entry'");
    refused("wrong_abi", TS_ERR_FORMAT, "got ABI 9");
    refused("wrong_size", TS_ERR_FORMAT, "got 16");
    refused("wrong_schema", TS_ERR_REGISTRY, "add: kernel for PLUGIN was written for 1 arguments");
    refused("silent", TS_ERR_STATE, "install failed without recording an error");
    ts_error_clear();
    ck_assert_int_eq(ts_backend_load(NULL, NULL), TS_ERR_NULL);
}

TS_TEST(a_path_that_is_no_regular_file_is_refused_before_the_dynamic_linker_opens_it)
{
    char folder[] = "/tmp/tessera-load-XXXXXX", fifo[64];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ts_key key;
    FAILS(TS_ERR_IO, ts_backend_load(fifo, &key));
    SAYS("backend_load: '/tmp/tessera-load-");
    SAYS("expected a regular file, got a FIFO");
    setenv("TS_CUDA", fifo, 1);
    FAILS(TS_ERR_IO, ts_backend_open("cuda", &key));
    SAYS("expected a regular file, got a FIFO");
    FAILS(TS_ERR_IO, ts_backend_load(folder, &key));
    SAYS("expected a regular file, got a folder");
    FAILS(TS_ERR_IO, ts_backend_load("/dev/null", &key));
    SAYS("expected a regular file, got a character device");
    remove(fifo);
    remove(folder);
}

TS_TEST(a_library_is_loaded_once_and_its_name_is_taken)
{
    ts_key key = TS_KEY_INVALID;
    OK(ts_backend_load(path_of("good"), &key));
    ck_assert_str_eq(ts_key_name(key), "GOOD");
    ck_assert_int_ge(ts_op_by_name("GOOD.own"), 0);
    refused("good", TS_ERR_REGISTRY, "is loaded already");
    refused("same_name", TS_ERR_REGISTRY, "the name 'GOOD' is taken");
}

static float first(ts_tensor *t)
{
    float values[2];
    OK(ts_copy_to(t, values, sizeof values));
    return values[0];
}

TS_TEST(two_loaded_backends_work_side_by_side)
{
    TS_SCOPE;
    ts_device a = {0, 0}, b = {0, 0};
    OK(ts_backend_load(path_of("good"), &a.backend));
    OK(ts_backend_load(path_of("second"), &b.backend));
    ck_assert_int_ne(a.backend, b.backend);
    ts_tensor *x = ts_ones(TS_SIZES(2), TS_F32);
    /* the relu of each backend adds 10: on_a is 11, on_b is 21 */
    ts_tensor *on_a = ts_relu(ts_to_device(x, a)), *on_b = ts_relu(ts_to_device(on_a, b));
    ck_assert(first(on_b) == 21);
    ck_assert(first(ts_add(ts_to_device(on_b, a), on_a)) == 32); /* a round trip: neither has add */
    ts_error_clear();
    ck_assert_ptr_null(ts_add(on_a, on_b));
    ck_assert_int_eq(ts_error_code(), TS_ERR_DEVICE);
    ts_device named;
    OK(ts_device_from_name("second:0", &named));
    ck_assert_int_eq(named.backend, b.backend);
}

/** Threads 0 and 1 load different libraries. Thread 2 loads an invalid one, and thread 3 the same
 *  one as thread 0. */
static bool load(int number, void *ctx)
{
    static const char *const names[] = {"good", "second", "wrong_schema", "good"};
    char path[4096];
    ts_key *keys = ctx;
    snprintf(path, sizeof path, "%s/plugin_%s.so", TS_PLUGINS, names[number]);
    return ts_backend_load(path, &keys[number]) == TS_OK;
}

TS_TEST(libraries_are_loaded_by_several_threads_at_once, .threads = true)
{
    ts_key keys[4];
    memset(keys, TS_KEY_INVALID, sizeof keys);
    ck_assert_int_eq(ts_together(4, load, keys), 2);
    ck_assert_int_ne(keys[1], TS_KEY_INVALID);
    ck_assert_int_eq(keys[2], TS_KEY_INVALID);
    ck_assert((keys[0] == TS_KEY_INVALID) != (keys[3] == TS_KEY_INVALID));
    refused("good", TS_ERR_REGISTRY, "is loaded already");
    refused("second", TS_ERR_REGISTRY, "is loaded already");
}
