/** @file checkpoint.c  Checkpoints: retention, search, damaged files, invalid manifests, misuse. */
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "io/manifest.h"
#include "tests/io/run.h"

static char dir[128];

static void in_run(void)
{
    folder_setup();
    snprintf(dir, sizeof dir, "%s", in_folder("run"));
}
#define IN_RUN .setup = in_run, .teardown = folder_teardown

static const char *file_of(int64_t step, const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/checkpoints/%lld/%s", dir, (long long)step, name);
    return path;
}

TS_TEST(a_checkpoint_round_trips, IN_RUN)
{
    int64_t step;
    int life;
    ts_files.fsync = fsync;
    ck_assert(!run_find(dir, &step, &life)); /* no checkpoint is not an error */
    ck_ok(run_save(dir, 0, 1, 0));
    ck_assert(run_find(dir, &step, &life) && step == 0 && life == 1);
    ts_checkpoint *c = ts_checkpoint_open(file_of(0, ""));
    ck_ok(c);
    run_check(c);
    ck_assert_ptr_null(ts_checkpoint_section_of(c, "optimizer"));
    ck_failed(TS_ERR_INDEX, "got 'optimizer'");
    ts_checkpoint_close(c);
    ck_assert_int_eq(count_files(dir), 5);
}

TS_TEST(two_checkpoints_are_kept_and_steps_compare_as_numbers, IN_RUN)
{
    int64_t step;
    int life;
    ck_ok(run_save(dir, 9, 1, 0));
    ck_ok(run_save(dir, 10, 1, 0));
    ck_ok(run_save(dir, 100, 1, 0));
    ck_assert(!has(dir, "9") && has(dir, "10") && has(dir, "100"));
    ck_assert(run_find(dir, &step, &life) && step == 100);
    ck_ok(run_save(dir, 101, 1, 3));
    ck_assert(has(dir, "10") && has(dir, "100") && has(dir, "101"));
    ck_ok(run_save(dir, 102, 1, 1));
    ck_assert_int_eq(count_files(dir), 5);
}

static char logged[4096];
static void keep_log(void *payload, const char *topic, const char *line)
{
    (void)payload;
    if (strcmp(topic, "io") == 0)
        strncat(strncat(logged, line, 1000), "\n", 2);
}

TS_TEST(later_steps_stay_when_an_earlier_one_is_saved, IN_RUN)
{
    ck_ok(run_save(dir, 50, 1, 0));
    ck_ok(run_save(dir, 60, 1, 0));
    ts_log_set_callback(keep_log, NULL);
    ck_ok(run_save(dir, 10, 2, 1));
    ck_assert(has(dir, "10") && has(dir, "50") && has(dir, "60"));
    ck_assert_ptr_nonnull(strstr(logged, "60 is newer than step 10"));
}

TS_TEST(other_files_in_the_folder_are_not_touched, IN_RUN)
{
    static const char *const names[] = {"notes.txt", "07", "-1", "1e3", "20.tmp", "20.tmp-",
                                        "20.tmp-x", "20.bak", "99999999999999999999", " 5"};
    int64_t step;
    int life;
    ck_ok(run_save(dir, 20, 1, 0));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/checkpoints/%s", dir, names[i]);
        ck_assert_int_eq(mkdir(path, 0700), 0);
    }
    ck_ok(run_save(dir, 30, 1, 1));
    ck_assert(run_find(dir, &step, &life) && step == 30);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        ck_assert_msg(has(dir, names[i]), "%s", names[i]);
}

TS_TEST(removing_a_checkpoint_does_not_follow_a_link_in_its_place, IN_RUN)
{
    char link[256];
    ck_ok(run_save(dir, 20, 1, 0));
    ck_assert_int_eq(rename(file_of(20, ""), in_folder("elsewhere")), 0);
    snprintf(link, sizeof link, "%s/checkpoints/20", dir);
    ck_assert_int_eq(symlink(in_folder("elsewhere"), link), 0);
    ck_ok(run_save(dir, 30, 1, 1));
    ck_assert(!has(dir, "20"));
    ck_assert_int_eq(count_files(in_folder("elsewhere")), 3);
}

/* -------------------------------------------------------------------------------- damage ---- */

static const char *const files[] = {"model.safetensors", "state.safetensors", "manifest.json"};

/* After checkpoint 20 was damaged: find() returns checkpoint 10 and reports why. */
static void check_falls_back(const char *what, const char *why)
{
    ts_checkpoint *c;
    *logged = 0;
    ts_error_clear();
    ts_log_set_callback(keep_log, NULL);
    ck_ok(ts_checkpoint_find(dir, &c));
    ts_log_set_callback(NULL, NULL);
    ck_assert_msg(c && ts_checkpoint_step(c) == 10, "%s", what);
    ck_assert_int_eq(ts_error_code(), TS_OK);
    run_check(c);
    ck_assert_msg(strstr(ts_checkpoint_report(c), "/checkpoints/20: ") &&
                      strstr(ts_checkpoint_report(c), why),
                  "%s: expected \"%s\" in \"%s\"", what, why, ts_checkpoint_report(c));
    ck_assert_ptr_nonnull(strstr(logged, "skipped checkpoint "));
    ts_checkpoint_close(c);
}

TS_TEST(a_flipped_byte_in_any_file_loads_the_older_checkpoint, .loop = 3, IN_RUN)
{
    size_t bytes = 0;
    ck_ok(run_save(dir, 10, 1, 0));
    ck_ok(run_save(dir, 20, 1, 0));
    unsigned char *data = read_file(file_of(20, files[_i]), &bytes);
    for (size_t at = 0; at < bytes; at += bytes > 2000 ? 37 : 1) {
        if (_i == 2 && (data[at] == ' ' || data[at] == '\n'))
            continue; /* white space in a manifest does not matter */
        data[at] ^= 0x20;
        write_file(file_of(20, files[_i]), data, bytes);
        data[at] ^= 0x20;
        check_falls_back(files[_i], "expected");
        ts_tally_as(TS_COUNT_FUZZ_INPUTS, 1, 0, 0);
    }
    free(data);
}

TS_TEST(missing_truncated_and_longer_files_load_the_older_checkpoint, .loop = 3, IN_RUN)
{
    size_t bytes = 0;
    ck_ok(run_save(dir, 10, 1, 0));
    ck_ok(run_save(dir, 20, 1, 0));
    unsigned char *data = read_file(file_of(20, files[_i]), &bytes);
    data[bytes] = 'x';
    write_file(file_of(20, files[_i]), data, bytes + 1);
    check_falls_back("longer", "expected");
    write_file(file_of(20, files[_i]), data, bytes - 1);
    check_falls_back("cut", "expected");
    write_file(file_of(20, files[_i]), data, 0);
    check_falls_back("empty", "expected");
    unlink(file_of(20, files[_i]));
    check_falls_back("missing", "No such file");
    free(data);
    /* a new checkpoint 20 replaces the damaged one */
    ck_ok(run_save(dir, 20, 2, 0));
    int64_t step;
    int life;
    ck_assert(run_find(dir, &step, &life) && step == 20 && life == 2);
}

TS_TEST(if_all_checkpoints_are_damaged_the_error_names_each, IN_RUN)
{
    ts_checkpoint *c = NULL;
    ck_ok(run_save(dir, 10, 1, 0));
    ck_ok(run_save(dir, 20, 1, 0));
    unlink(file_of(20, "manifest.json"));
    ck_assert_int_eq(truncate(file_of(10, "model.safetensors"), 100), 0);
    ck_assert_int_eq(ts_checkpoint_find(dir, &c), TS_ERR_FORMAT);
    ck_assert_ptr_null(c);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "No such file"));
    ck_failed(TS_ERR_FORMAT, "got 2 that do not");
    ck_assert_ptr_null(ts_checkpoint_open(file_of(10, "")));
    ck_failed(TS_ERR_FORMAT, "bytes, got 100");
}

TS_TEST(a_checkpoint_in_the_folder_of_another_step_is_skipped, IN_RUN)
{
    ck_ok(run_save(dir, 10, 1, 0));
    ck_ok(run_save(dir, 15, 1, 0));
    char moved[256];
    snprintf(moved, sizeof moved, "%s", file_of(20, ""));
    ck_assert_int_eq(rename(file_of(15, ""), moved), 0);
    check_falls_back("renamed", "expected step 20 in the manifest, got 15");
}

/* ----------------------------------------------------------------------------- manifests ---- */

/* Replaces the manifest of step 10 by one with these members and their correct hash. */
static void replace_manifest(const char *body)
{
    char hash[TS_HASH_TEXT], text[2048], compact[1024];
    snprintf(compact, sizeof compact, "{%s}", body);
    ts_memory_hash(compact, strlen(compact), hash);
    snprintf(text, sizeof text, "{%s,\"xxh3_128\":\"%s\"}", body, hash);
    write_file(file_of(10, "manifest.json"), text, strlen(text));
}

#define START "\"format\":\"tessera checkpoint\",\"version\":1,\"step\":10,"
#define DIGITS "0123456789abcdef0123456789abcdef"

TS_TEST(hostile_manifests_are_refused_by_name, IN_RUN)
{
    static const struct {
        const char *body, *message;
    } bad[] = {
        {"\"format\":\"other\",\"version\":1,\"step\":10,\"files\":{},\"user\":{}",
         "expected format"},
        {"\"format\":\"tessera checkpoint\",\"version\":2,\"step\":10,\"files\":{},\"user\":{}",
         "version 1, got 2"},
        {"\"format\":\"tessera checkpoint\",\"version\":1,\"step\":-1,\"files\":{},\"user\":{}",
         "as step"},
        {"\"format\":\"tessera checkpoint\",\"version\":1,\"step\":\"10\",\"files\":{},\"user\":{}",
         "as step"},
        {START "\"files\":[],\"user\":{}", "files, and user"},
        {START "\"files\":{},\"user\":[]", "files, and user"},
        {START "\"files\":{}", "files, and user"},
        {START "\"files\":{},\"user\":{},\"more\":1", "files, and user"},
        {START "\"files\":{},\"user\":{},\"user\":{}", "duplicate"},
        {START "\"files\":{\"../model.safetensors\":{\"bytes\":1,\"xxh3_128\":\"" DIGITS
               "\"}},\"user\":{}",
         "NAME.safetensors"},
        {START "\"files\":{\"/etc/passwd\":{\"bytes\":1,\"xxh3_128\":\"" DIGITS "\"}},\"user\":{}",
         "got '/etc/passwd'"},
        {START "\"files\":{\"a/b.safetensors\":{\"bytes\":1,\"xxh3_128\":\"" DIGITS
               "\"}},\"user\":{}",
         "NAME.safetensors"},
        {START "\"files\":{\".safetensors\":{\"bytes\":1,\"xxh3_128\":\"" DIGITS "\"}},\"user\":{}",
         "NAME.safetensors"},
        {START "\"files\":{\"..safetensors\":{\"bytes\":1,\"xxh3_128\":\"" DIGITS
               "\"}},\"user\":{}",
         "NAME.safetensors"},
        {START "\"files\":{\"model\":{\"bytes\":1,\"xxh3_128\":\"" DIGITS "\"}},\"user\":{}",
         "got 'model'"},
        {START "\"files\":{\"model.safetensors\":{\"bytes\":-1,\"xxh3_128\":\"" DIGITS
               "\"}},\"user\":{}",
         "bytes >= 0"},
        {START "\"files\":{\"model.safetensors\":{\"bytes\":1.0,\"xxh3_128\":\"" DIGITS
               "\"}},\"user\":{}",
         "bytes >= 0"},
        {START "\"files\":{\"model.safetensors\":{\"bytes\":1}},\"user\":{}", "32 digits"},
        {START "\"files\":{\"model.safetensors\":{\"bytes\":1,\"xxh3_128\":\"0123\"}},\"user\":{}",
         "32 digits"},
        {START "\"files\":{\"model.safetensors\":{\"bytes\":1,\"xxh3_128\":\"" DIGITS
               "\",\"x\":1}},\"user\":{}",
         "32 digits"},
        {START "\"files\":{\"model.safetensors\":7},\"user\":{}", "32 digits"},
        {START "\"files\":{\"absent.safetensors\":{\"bytes\":1,\"xxh3_128\":\"" DIGITS
               "\"}},\"user\":{}",
         "No such file"},
        {START "\"files\":{\"model.safetensors\":{\"bytes\":1,\"xxh3_128\":\"" DIGITS
               "\"}},\"user\":{}",
         "expected 1 bytes"},
    };
    ck_ok(run_save(dir, 10, 1, 0));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        replace_manifest(bad[i].body);
        ts_checkpoint *c = ts_checkpoint_open(file_of(10, ""));
        ck_assert_msg(!c && strstr(ts_error_message(), bad[i].message),
                      "%s: expected \"%s\" in \"%s\"", bad[i].body, bad[i].message,
                      ts_error_message());
        ts_tally(1, 0, 0);
    }
    replace_manifest(START "\"files\":{},\"user\":{\"x\":1}"); /* the unchanged members are valid */
    ts_checkpoint *c = ts_checkpoint_open(file_of(10, ""));
    ck_ok(c);
    ck_assert_str_eq(ts_checkpoint_json(c), "{\"x\":1}");
    ts_checkpoint_close(c);
}

TS_TEST(manifests_without_a_right_hash_are_refused, IN_RUN)
{
    static const char *const texts[] = {
        "", "{", "[]", "null", "{}", "{} {}", "{" START "\"files\":{},\"user\":{}}",
        "{" START "\"files\":{},\"user\":{},\"xxh3_128\":7}",
        "{" START "\"files\":{},\"user\":{},\"xxh3_128\":\"" DIGITS "\"}",
    };
    ck_ok(run_save(dir, 10, 1, 0));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file(file_of(10, "manifest.json"), texts[i], strlen(texts[i]));
        ck_assert_ptr_null(ts_checkpoint_open(file_of(10, "")));
        ck_failed(TS_ERR_FORMAT, "expected");
    }
    FILE *file = fopen(file_of(10, "manifest.json"), "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(ftruncate(fileno(file), TS_MANIFEST_MAX + 1), 0);
    fclose(file);
    ck_assert_ptr_null(ts_checkpoint_open(file_of(10, "")));
    ck_failed(TS_ERR_FORMAT, "at most 4194304 bytes");
}

/* -------------------------------------------------------------------------------- misuse ---- */

TS_TEST(misuse_of_checkpoints_is_named_and_writes_nothing, IN_RUN)
{
    TS_SCOPE;
    ts_tensor *t = ts_zeros(TS_SIZES(2), TS_F32);
    const char *name = "t", *twice[] = {"t", "t"};
    ts_tensor *two[] = {t, t};
    ts_checkpoint *c;
    static const char *const names[] = {"",    ".",   "..", "../x", "a/b", "/a",
                                        "a.b", "a b", "1a", "-a",   "ä",   "a\n"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ck_assert_int_ne(ts_checkpoint_save(dir, 1,
                                            &(ts_checkpoint_section){names[i], &name, &t, 1}, 1,
                                            NULL, NULL),
                         TS_OK);
        ck_failed(TS_ERR_VALUE, "section 0: expected a name");
    }
    char longest[66];
    memset(longest, 'a', 65);
    longest[65] = 0;
    ts_checkpoint_section s = {longest, &name, &t, 1};
    ck_assert_int_eq(ts_checkpoint_save(dir, 1, &s, 1, NULL, NULL), TS_ERR_VALUE);
    s.name = NULL;
    ck_assert_int_eq(ts_checkpoint_save(dir, 1, &s, 1, NULL, NULL), TS_ERR_NULL);
    ck_failed(TS_ERR_NULL, "'sections.name'");
    s.name = "model";
    ck_assert_int_eq(ts_checkpoint_save(dir, 1, (ts_checkpoint_section[]){s, s}, 2, NULL, NULL),
                     TS_ERR_VALUE);
    ck_failed(TS_ERR_VALUE, "got 'model' twice");
    ck_assert_int_eq(ts_checkpoint_save(dir, -1, &s, 1, NULL, NULL), TS_ERR_VALUE);
    ck_assert_int_eq(ts_checkpoint_save(dir, 1, &s, -1, NULL, NULL), TS_ERR_VALUE);
    ck_assert_int_eq(
        ts_checkpoint_save(dir, 1, &s, 1, NULL, TS_OPTS(ts_checkpoint_opts, .keep = -1)),
        TS_ERR_VALUE);
    ck_assert_int_eq(ts_checkpoint_save(NULL, 1, &s, 1, NULL, NULL), TS_ERR_NULL);
    ck_assert_int_eq(ts_checkpoint_save("", 1, &s, 1, NULL, NULL), TS_ERR_VALUE);
    ck_assert_int_eq(ts_checkpoint_save(dir, 1, NULL, 1, NULL, NULL), TS_ERR_NULL);
    ck_assert_int_eq(
        ts_checkpoint_save(dir, 1, &(ts_checkpoint_section){"model", twice, two, 2}, 1, NULL, NULL),
        TS_ERR_VALUE);
    ck_failed(TS_ERR_VALUE, "'model': expected distinct names, got 't' twice");
    static const char *const json[] = {
        "", "[]", "1", "{\"a\":1,\"a\":2}", "{\"a\":NaN}", "{} x", "{\"a\":18446744073709551615}"};
    for (size_t i = 0; i < sizeof json / sizeof *json; i++) {
        ck_assert_int_eq(ts_checkpoint_save(dir, 1, &s, 1, json[i], NULL), TS_ERR_FORMAT);
        ck_failed(TS_ERR_FORMAT, "json_text");
    }
    ck_assert_int_eq(count_files(test_folder), 0);

    ck_assert_int_eq(ts_checkpoint_save(in_folder("no/run"), 1, &s, 1, NULL, NULL), TS_ERR_IO);
    ck_failed(TS_ERR_IO, "No such file");
    write_file(in_folder("file"), "", 0);
    ck_assert_int_eq(ts_checkpoint_save(in_folder("file"), 1, &s, 1, NULL, NULL), TS_ERR_IO);
    ck_failed(TS_ERR_IO, "Not a directory");
    ck_assert_int_eq(ts_checkpoint_find(in_folder("file"), &c), TS_ERR_IO);
    ck_assert_int_eq(ts_checkpoint_find(NULL, &c), TS_ERR_NULL);
    ck_assert_int_eq(ts_checkpoint_find(dir, NULL), TS_ERR_NULL);
    ck_assert_ptr_null(ts_checkpoint_open(NULL));
    ck_assert_ptr_null(ts_checkpoint_section_of(NULL, "x"));
    ts_checkpoint_close(NULL);
}

TS_TEST(a_second_saver_is_refused, IN_RUN)
{
    ck_ok(run_save(dir, 10, 1, 0));
    int fd = open(in_folder("run/checkpoints"), O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    ck_assert_int_eq(run_save(dir, 20, 1, 0), TS_ERR_STATE);
    ck_failed(TS_ERR_STATE, "another save is running");
    close(fd);
    ck_ok(run_save(dir, 20, 1, 0));
}

TS_TEST(a_checkpoint_without_tensors_round_trips, IN_RUN)
{
    ts_checkpoint *c;
    ck_ok(ts_checkpoint_save(dir, 3, NULL, 0, NULL, NULL));
    ck_ok(ts_checkpoint_find(dir, &c));
    ck_assert_int_eq(ts_checkpoint_step(c), 3);
    ck_assert_str_eq(ts_checkpoint_json(c), "{}");
    ts_checkpoint_close(c);
}
