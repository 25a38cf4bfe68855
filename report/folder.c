/** @file folder.c  Folders for the output of a run. */
// SPDX-License-Identifier: MIT
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <tessera/check.h>
#include <tessera/report.h>

ts_status ts_make_folders(const char *path)
{
    char part[4096];
    TS_TRY(TS_CHECK_POINTERS(path));
    if (!path[0] || strlen(path) >= sizeof part)
        return ts_error_set(TS_ERR_VALUE,
                            "make_folders: expected a path of 1 to %zu characters, got %zu",
                            sizeof part - 1, strlen(path));
    for (size_t n = 1; n <= strlen(path); n++) {
        if (path[n] && path[n] != '/')
            continue;
        memcpy(part, path, n);
        part[n] = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return ts_error_set(TS_ERR_IO, "make_folders: cannot make '%s': %s", part,
                                strerror(errno));
    }
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return ts_error_set(TS_ERR_IO, "make_folders: '%s' is not a folder", path);
    return TS_OK;
}
