/** @file manifest.h  manifest.json of a checkpoint: its step, the files of the folder with sizes
 * and hashes, and the caller's JSON object. `op` is the prefix of error messages. */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_MANIFEST_H
#define TS_IO_MANIFEST_H

#include "io/files.h"

/** Largest manifest in bytes. It bounds memory: jansson's values take many times the text. */
#define TS_MANIFEST_MAX (4 << 20)
#define TS_SECTION_NAME 65 /* bytes of a section name with its NUL */
#define TS_MAX_SECTIONS 64

/** One section's file, NAME.safetensors. */
typedef struct ts_manifest_file {
    char name[TS_SECTION_NAME]; /* name of the section */
    char hash[TS_HASH_TEXT];
    int64_t bytes;
} ts_manifest_file;

typedef struct ts_manifest {
    int64_t step;
    int nfiles;
    ts_manifest_file *files; // nfiles
    char *json; /* the caller's JSON object as text; when writing, NULL means {} */
} ts_manifest;

/** True if name has 1 to 64 of the characters a-z A-Z 0-9 _ - and begins with a letter. */
bool ts_section_name_ok(const char *name);

/**
 * Serializes a manifest, with a hash of its content as last key.
 * @param text   receives the text, *bytes long; the caller frees it with ts_sys_free()
 * @return TS_ERR_FORMAT if manifest->json is not one JSON object, TS_ERR_VALUE if the text exceeds
 *         TS_MANIFEST_MAX, TS_ERR_MEMORY
 */
ts_status ts_manifest_make(const char *op, const ts_manifest *manifest, char **text, size_t *bytes);
/** Parses `bytes` bytes of text, the contents of the file `path`, and verifies the hash. On TS_OK
 *  the caller frees the result with ts_manifest_free(). Errors: TS_ERR_FORMAT, TS_ERR_MEMORY. */
ts_status ts_manifest_parse(const char *op, const char *path, const char *text, size_t bytes,
                            ts_manifest *manifest);
/** Frees files and json; call it only for a manifest of ts_manifest_parse(). */
void ts_manifest_free(ts_manifest *manifest);

#endif
