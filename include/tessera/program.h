/**
 * @file program.h
 * Helpers for programs: files that are opened and replaced safely, numbers that are the same in
 * every locale, a strict command line.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_PROGRAM_H
#define TESSERA_PROGRAM_H

#include <stdio.h>

#include "core.h"

TS_BEGIN_DECLS

/* ---------------------------------------------------------------------------- files ---- */

/**
 * Opens a regular file. A folder, FIFO, socket or device is TS_ERR_IO, without waiting. The
 * descriptor is above 2, also if standard streams are closed, and is closed on exec. A new file has
 * mode 0666 less the umask.
 * @param function  name at the beginning of error messages
 * @param flags     those of open(), such as O_WRONLY | O_CREAT
 * @param fd        receives the descriptor, owned by the caller
 */
TS_API ts_status ts_open_file(const char *function, const char *path, int flags, int *fd);
/**
 * Replaces path by a new file: writes to memory, then to a temporary file in the same folder,
 * flushes it to disk and renames it. After an error path is unchanged. The new file has the mode of
 * the old one, or 0666 less the umask; a symbolic link is replaced, not followed. TS_ERR_IO if path
 * is another kind of file.
 * @param function  name at the beginning of error messages
 * @param write     prints the contents to out; its failure is returned
 */
TS_API ts_status ts_replace_file(const char *function, const char *path,
                                 ts_status (*write)(FILE *out, void *ctx), void *ctx);

/* ---------------------------------------------------------------------------- texts ---- */

/**
 * Escapes text for a terminal: invalid UTF-8, control characters, invisible marks and marks that
 * change the direction become `\xNN`. Use it for names from files. NULL gives ""; text that does
 * not fit is cut. Returns buffer.
 */
TS_API const char *ts_escape_text(char *buffer, size_t size, const char *text);

/* -------------------------------------------------------------------------- numbers ---- */

/** Switches the calling thread to the C locale; returns the locale before. */
TS_API void *ts_c_locale_enter(void);
/** Restores the locale that ts_c_locale_enter() returned. NULL-safe. */
TS_API void ts_c_locale_leave(void **previous);
/** For the rest of the block, printf and strtod of this thread use a decimal point independent of
 * setlocale(). The library uses it wherever it writes or reads a number. */
#define TS_C_LOCALE                                                                                \
    void *TS_CAT(ts_locale_, __LINE__) __attribute__((cleanup(ts_c_locale_leave), unused)) =       \
        ts_c_locale_enter()

/**
 * Reads an integer: digits, with an optional minus sign if `least` is negative, and nothing else.
 * TS_ERR_VALUE names `name`, the expected range and the text.
 */
TS_API ts_status ts_parse_int(const char *name, const char *text, int64_t least, int64_t most,
                              int64_t *value);

/* ------------------------------------------------------------- environment variables ---- */

/**
 * Index of an environment variable's value in the list one_of, such as "mma|plain". -1 if the
 * variable is unset, empty, or has another value, which also logs a warning.
 */
TS_API int ts_variable_choice(const char *name, const char *one_of);

/* --------------------------------------------------------------------- command lines ---- */

/** One argument of a program. Exactly one of flag, number and text is not NULL. */
typedef struct ts_argument {
    const char *name;  /**< an option, "--steps", or a positional argument, "FILE" */
    const char *help;  /**< description, for --help */
    bool *flag;        /**< an option without a value; set to true if it is given */
    int64_t *number;   /**< receives an integer from least to most */
    int64_t least, most;
    const char **text; /**< receives a string that is not empty, borrowed from argv */
    const char *one_of; /**< accepted strings, "bf16|f16|f32"; NULL: any */
    bool required;
    const char *value;  /**< name of an option's value in --help, "FILE"; NULL: N, one_of or TEXT */
} ts_argument;

/**
 * Reads a command line: options as --name VALUE or --name=VALUE in any order, "--" if needed,
 * positional arguments in the order of their rows. --help prints `about` and all arguments; their
 * values before the call are shown as the defaults. A mistake is printed to stderr with the usage.
 * @param about   description of the program, as whole lines
 * @param status  receives main()'s result if the program must end: 0 after --help, 2 after a
 *                mistake
 * @return true if the program continues
 */
TS_API bool ts_program_begin(int argc, char **argv, const char *about,
                             const ts_argument *arguments, int n, int *status);
/**
 * Flushes standard output and returns main()'s result: status, or 1 instead of 0 if output was lost
 * to a full disk or a closed pipe, which it prints to stderr.
 */
TS_API int ts_program_end(int status);

TS_END_DECLS
#endif
