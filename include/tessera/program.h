/**
 * @file program.h
 * What a program around the library needs to be right for every user: files that are opened and
 * replaced safely, numbers that look the same in every locale, a strict command line.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_PROGRAM_H
#define TESSERA_PROGRAM_H

#include <stdio.h>

#include "core.h"

TS_BEGIN_DECLS

/* ---------------------------------------------------------------------------- files ---- */

/**
 * open() for regular files. A folder, FIFO, socket or device is TS_ERR_IO and the call never waits
 * for one. The descriptor is above 2, also while standard streams are closed, and is closed on
 * exec. A new file has mode 0666 less the umask.
 * @param function  what the error begins with
 * @param flags     those of open(), such as O_WRONLY | O_CREAT
 * @param fd        receives the descriptor, owned by the caller
 */
TS_API ts_status ts_open_file(const char *function, const char *path, int flags, int *fd);
/**
 * Puts a new file in the place of path: written to memory, then to a file beside it, flushed to
 * disk, renamed. After an error path is as it was. The new file has the mode of the one that it
 * replaces, else 0666 less the umask; a symbolic link is replaced, not followed. What is there and
 * no regular file is TS_ERR_IO.
 * @param function  what the error begins with
 * @param write     prints the contents; its failure is passed on
 */
TS_API ts_status ts_replace_file(const char *function, const char *path,
                                 ts_status (*write)(FILE *out, void *ctx), void *ctx);

/* -------------------------------------------------------------------------- numbers ---- */

/** Switches the calling thread to the C locale; returns what it had. */
TS_API void *ts_c_locale_enter(void);
/** Goes back to what ts_c_locale_enter() returned. NULL-safe. */
TS_API void ts_c_locale_leave(void **previous);
/** For the rest of the block, printf and strtod of this thread use a decimal point whatever
 * setlocale() says. The library does so wherever it writes or reads a number. */
#define TS_C_LOCALE                                                                                \
    void *TS_CAT(ts_locale_, __LINE__) __attribute__((cleanup(ts_c_locale_leave), unused)) =       \
        ts_c_locale_enter()

TS_END_DECLS
#endif
