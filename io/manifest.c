/**
 * @file manifest.c
 * Writes and parses manifest.json. Its last key is the hash of all other keys, so damage to the
 * step, to the list of files or to the caller's object is detected, like damage to the files.
 */
// SPDX-License-Identifier: MIT
#include "io/manifest.h"

#include <string.h>

#include "core/alloc.h"
#include "io/json.h"

#define FORMAT "tessera checkpoint"
#define VERSION 1
#define HASH "xxh3_128"
#define SUFFIX ".safetensors"

#define BAD(...) ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL, __VA_ARGS__)

bool ts_section_name_ok(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static const char all[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    size_t length = name ? strlen(name) : 0;
    return length > 0 && length < TS_SECTION_NAME && strspn(name, letters) > 0 &&
           strspn(name, all) == length;
}

static ts_status out_of_memory(void) { return ts_error_memory("a manifest", 1); }

/* ------------------------------------------------------------------------------ writing ---- */

static json_t *describe_files(const ts_manifest *manifest)
{
    json_t *files = json_object();
    for (int i = 0; files && i < manifest->nfiles; i++) {
        const ts_manifest_file *f = &manifest->files[i];
        char name[TS_SECTION_NAME + sizeof SUFFIX];
        stpcpy(stpcpy(name, f->name), SUFFIX);
        json_t *one = json_pack("{s:I, s:s}", "bytes", (json_int_t)f->bytes, HASH, f->hash);
        if (!one || json_object_set_new(files, name, one) != 0) {
            json_decref(files);
            return NULL;
        }
    }
    return files;
}

/* The hash of the current content of root. */
static ts_status hash_of(const json_t *root, char hash[TS_HASH_TEXT])
{
    size_t bytes;
    char *text = ts_json_text(root, JSON_COMPACT, &bytes);
    TS_TRY(text);
    ts_memory_hash(text, bytes, hash);
    ts_sys_free(text);
    return TS_OK;
}

ts_status ts_manifest_make(const char *op, const ts_manifest *manifest, char **text, size_t *bytes)
{
    char hash[TS_HASH_TEXT];
    const char *own = manifest->json ? manifest->json : "{}";
    json_t *user = ts_json_load(op, "json_text", own, strlen(own), JSON_REJECT_DUPLICATES, 0, NULL);
    TS_TRY(user);
    if (!json_is_object(user)) {
        ts_json_done(user);
        return BAD("argument 'json_text': expected a JSON object, got another value");
    }
    json_t *files = describe_files(manifest);
    if (!files) {
        ts_json_done(user);
        return out_of_memory();
    }
    /* json_pack() takes ownership of user and files, also when it fails */
    json_t *root = json_pack("{s:s, s:i, s:I, s:o, s:o}", "format", FORMAT, "version", VERSION,
                             "step", (json_int_t)manifest->step, "files", files, "user", user);
    ts_status status = root ? TS_OK : out_of_memory();
    if (status == TS_OK)
        status = hash_of(root, hash);
    if (status == TS_OK && json_object_set_new(root, HASH, json_string(hash)) != 0)
        status = out_of_memory();
    *text = status == TS_OK ? ts_json_text(root, JSON_INDENT(2), bytes) : NULL;
    ts_json_done(root);
    TS_TRY(status);
    TS_TRY(*text);
    if (*bytes > TS_MANIFEST_MAX) {
        ts_sys_free(*text);
        return ts_fail_op(TS_ERR_VALUE, op, NULL, "put large data into a section",
                          "argument 'json_text': expected a manifest of at most %d bytes, got %zu",
                          TS_MANIFEST_MAX, *bytes);
    }
    return TS_OK;
}

/* ------------------------------------------------------------------------------ reading ---- */

/* Verifies the hash. Removes its entry from root, because the hash covers the other keys only. */
static ts_status check_hash(const char *op, const char *path, json_t *root)
{
    char stated[TS_HASH_TEXT], real[TS_HASH_TEXT];
    const char *text = json_string_value(json_object_get(root, HASH));
    if (!text || strlen(text) != TS_HASH_TEXT - 1)
        return BAD("'%s': expected a hash of 32 digits as %s", path, HASH);
    memcpy(stated, text, TS_HASH_TEXT);
    json_object_del(root, HASH);
    TS_TRY(hash_of(root, real));
    if (strcmp(stated, real) != 0)
        return BAD("'%s': expected a manifest with hash %s, got %s", path, ts_quote(stated), real);
    return TS_OK;
}

static ts_status read_file(const char *op, const char *path, const char *name, const json_t *value,
                           ts_manifest_file *f)
{
    size_t length = strlen(name), suffix = sizeof SUFFIX - 1;
    const json_t *bytes = json_object_get(value, "bytes"), *hash = json_object_get(value, HASH);
    if (length > suffix && length - suffix < TS_SECTION_NAME &&
        strcmp(name + length - suffix, SUFFIX) == 0)
        memcpy(f->name, name, length - suffix);
    if (!ts_section_name_ok(f->name))
        return BAD(
            "'%s': files: expected NAME.safetensors with 1 to 64 of a-z A-Z 0-9 _ -, got '%s'",
            path, ts_quote(name));
    if (json_object_size(value) != 2 || !json_is_integer(bytes) || json_integer_value(bytes) < 0 ||
        json_string_length(hash) != TS_HASH_TEXT - 1 ||
        strspn(json_string_value(hash), "0123456789abcdef") != TS_HASH_TEXT - 1)
        return BAD("'%s': file '%s': expected bytes >= 0 and %s of 32 digits", path, ts_quote(name),
                   HASH);
    f->bytes = json_integer_value(bytes);
    memcpy(f->hash, json_string_value(hash), TS_HASH_TEXT);
    return TS_OK;
}

static ts_status read_root(const char *op, const char *path, json_t *root, ts_manifest *manifest)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    json_t *version = json_object_get(root, "version"), *step = json_object_get(root, "step");
    json_t *files = json_object_get(root, "files"), *user = json_object_get(root, "user");
    if (!format || strcmp(format, FORMAT) != 0)
        return BAD("'%s': expected format \"%s\", got '%s'", path, FORMAT,
                   ts_quote(format ? format : "none"));
    if (!json_is_integer(version) || json_integer_value(version) != VERSION)
        return BAD("'%s': expected version %d, got %lld", path, VERSION,
                   (long long)json_integer_value(version));
    TS_TRY(check_hash(op, path, root));
    if (!json_is_integer(step) || json_integer_value(step) < 0)
        return BAD("'%s': expected an integer >= 0 as step", path);
    if (!json_is_object(files) || json_object_size(files) > TS_MAX_SECTIONS ||
        !json_is_object(user) || json_object_size(root) != 5)
        return BAD("'%s': expected format, version, step, at most %d files, and user", path,
                   TS_MAX_SECTIONS);
    manifest->step = json_integer_value(step);
    manifest->files = ts_sys_calloc(json_object_size(files) * sizeof *manifest->files);
    if (!manifest->files)
        return out_of_memory();
    const char *name;
    json_t *value;
    json_object_foreach(files, name, value)
        TS_TRY(read_file(op, path, name, value, &manifest->files[manifest->nfiles++]));
    size_t bytes;
    manifest->json = ts_json_text(user, JSON_COMPACT, &bytes);
    return TS_STATUS_OF(manifest->json);
}

ts_status ts_manifest_parse(const char *op, const char *path, const char *text, size_t bytes,
                            ts_manifest *manifest)
{
    *manifest = (ts_manifest){0};
    if (bytes > TS_MANIFEST_MAX)
        return BAD("'%s': expected at most %d bytes, got %zu", path, TS_MANIFEST_MAX, bytes);
    json_t *root = ts_json_load(op, path, text, bytes, JSON_REJECT_DUPLICATES, 0, NULL);
    TS_TRY(root);
    ts_status status = read_root(op, path, root, manifest);
    ts_json_done(root);
    if (status != TS_OK)
        ts_manifest_free(manifest);
    return status;
}

void ts_manifest_free(ts_manifest *manifest)
{
    ts_sys_free(manifest->files);
    ts_sys_free(manifest->json);
    *manifest = (ts_manifest){0};
}
