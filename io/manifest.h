/** @file manifest.h  manifest.json of a checkpoint: the files of the folder,
 * and the caller's own object. */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_MANIFEST_H
#define TS_IO_MANIFEST_H

#include "io/files.h"

/** A manifest is small; more would cost many times its size as values of jansson. */
#define TS_MANIFEST_MAX (4 << 20)
#define TS_SECTION_NAME 65 /* with the end of the string */
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
    char *json; /* the caller's object */
} ts_manifest;

/** True for 1 to 64 of a-z A-Z 0-9 _ - beginning with a letter. */
bool ts_section_name_ok(const char *name);

/** Text by ts_sys_alloc(); json may be NULL. TS_ERR_FORMAT when it is not one JSON object. */
ts_status ts_manifest_make(const char *op, const ts_manifest *manifest, char **text, size_t *bytes);
/** Parses and checks the text of path. On TS_OK the caller frees the result with
 *  ts_manifest_free(). */
ts_status ts_manifest_parse(const char *op, const char *path, const char *text, size_t bytes,
                            ts_manifest *manifest);
void ts_manifest_free(ts_manifest *manifest);

#endif
