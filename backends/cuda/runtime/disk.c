/** @file disk.c  Files of results for later processes. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/disk.h"
#include "tessera/program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/** Header of a file, followed by the key and the data. */
typedef struct head {
    char magic[8];
    uint64_t key, bytes, digest; /* bytes of the key; bytes of the data; hash of both */
} head;
static const char magic[8] = "TSCACHE1";
enum { MOST_BYTES = 1 << 30 /* of data */ };
#define FIRST_HASH 0xcbf29ce484222325u

static uint64_t digest_of(const char *data, size_t bytes, uint64_t hash)
{
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (uint8_t)data[i]) * 0x100000001b3u;
    return hash;
}

/** The folder of a kind. False if there is none, also if TS_CUDA_CACHE is not an absolute path. */
static bool folder_of(const char *kind, char *folder, size_t size)
{
    const char *own = getenv("TS_CUDA_CACHE"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int n = -1;
    if (own && *own)
        n = own[0] == '/' ? snprintf(folder, size, "%s", own) : -1;
    else if (cache && cache[0] == '/')
        n = snprintf(folder, size, "%s/tessera/%s", cache, kind);
    else if (home && home[0] == '/')
        n = snprintf(folder, size, "%s/.cache/tessera/%s", home, kind);
    return n > 0 && (size_t)n < size;
}

/** Path of a file; also sets the folder. False if there is none. */
static bool path_of(const ts_cuda_disk *disk, const void *key, size_t key_bytes, char folder[512],
                    char path[600])
{
    if (!folder_of(disk->kind, folder, 512))
        return false;
    snprintf(path, 600, "%s/%s-%016llx", folder, disk->kind,
             (unsigned long long)digest_of(key, key_bytes, FIRST_HASH));
    return true;
}

/** True if only the current user owns and may write a file or folder. */
static bool is_own(const struct stat *status)
{
    return status->st_uid == geteuid() && !(status->st_mode & (S_IWGRP | S_IWOTH));
}

static bool read_all(int fd, void *into, size_t bytes)
{
    char *at = into;
    while (bytes) {
        ssize_t n = read(fd, at, bytes);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        }
    }
    return true;
}

void *ts_cuda_disk_read(const ts_cuda_disk *disk, const void *key, size_t key_bytes, size_t *bytes)
{
    int fd;
    head h;
    struct stat status;
    char folder[512], path[600], *all = NULL;
    if (!path_of(disk, key, key_bytes, folder, path))
        return NULL;
    if (ts_open_file(disk->kind, path, O_RDONLY | O_NOFOLLOW, &fd) != TS_OK) {
        ts_error_clear();
        return NULL;
    }
    bool good = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && is_own(&status) &&
                read_all(fd, &h, sizeof h) && memcmp(h.magic, magic, 8) == 0 &&
                h.key == key_bytes && h.bytes > 0 && h.bytes < MOST_BYTES &&
                (all = malloc(h.key + h.bytes)) && read_all(fd, all, h.key + h.bytes) &&
                digest_of(all, h.key + h.bytes, FIRST_HASH) == h.digest &&
                memcmp(all, key, key_bytes) == 0;
    close(fd);
    if (good) {
        *bytes = h.bytes;
        memmove(all, all + h.key, h.bytes);
        return all;
    }
    free(all);
    return NULL;
}

typedef struct contents {
    head h;
    const void *key, *data;
} contents;
static ts_status write_contents(FILE *out, void *ctx)
{
    const contents *c = ctx;
    fwrite(&c->h, sizeof c->h, 1, out);
    fwrite(c->key, c->h.key, 1, out);
    fwrite(c->data, c->h.bytes, 1, out);
    return TS_OK;
}

/** Makes the folder and its parents, accessible to the user only. */
static void make_folder(char *folder)
{
    for (char *at = folder + 1; *at; at++)
        if (*at == '/') {
            *at = '\0';
            mkdir(folder, 0700); /* an existing folder is fine; other failures show below */
            *at = '/';
        }
    mkdir(folder, 0700);
}

void ts_cuda_disk_keep(const ts_cuda_disk *disk, const void *key, size_t key_bytes,
                       const void *data, size_t bytes)
{
    char folder[512], path[600];
    struct stat status;
    contents c = {{.key = key_bytes, .bytes = bytes}, key, data};
    memcpy(c.h.magic, magic, sizeof magic);
    c.h.digest = digest_of(data, bytes, digest_of(key, key_bytes, FIRST_HASH));
    if (!path_of(disk, key, key_bytes, folder, path))
        return;
    make_folder(folder);
    if (stat(folder, &status) != 0 || !is_own(&status))
        ts_log_write(disk->topic, "%s is not cached: other users may write %s", disk->what, folder);
    else if (ts_replace_file(disk->kind, path, write_contents, &c) != TS_OK) {
        if (ts_log_on(disk->topic))
            ts_log_write(disk->topic, "%s is not cached: %s", disk->what, ts_error_message());
        ts_error_clear();
    } else {
        chmod(path, 0600);
    }
}
