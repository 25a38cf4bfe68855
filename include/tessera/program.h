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
 * Opens a regular file. Any other kind of file (folder, FIFO, socket, device) is TS_ERR_IO; the
 * call never waits for such a file. The descriptor is above 2, even if standard streams are closed,
 * and is closed on exec. A new file has mode 0666 less the umask.
 * @param function  name of the calling function, with which error messages begin
 * @param flags     those of open(), such as O_WRONLY | O_CREAT
 * @param fd        receives the descriptor, owned by the caller; -1 if the file cannot be opened
 * Errors: TS_ERR_IO, TS_ERR_NULL, TS_ERR_MEMORY.
 */
TS_API ts_status ts_open_file(const char *function, const char *path, int flags, int *fd);
/**
 * Replaces the file at `path` atomically: collects the contents in memory, writes them to a
 * temporary file in the same folder, flushes that to disk and renames it to `path`. After an error
 * the old file is unchanged, except if the flush of the folder fails, which comes after the rename.
 * The new file has the mode of the old one, or 0666 less the umask. A symbolic link is replaced,
 * not followed. Errors: TS_ERR_IO, also if `path`, or the file to which the link points, is not a
 * regular file; TS_ERR_NULL; TS_ERR_MEMORY.
 * @param function  name of the calling function, with which error messages begin
 * @param write     prints the contents to out; gets ctx; its failure is returned
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

/** Switches the calling thread to the C locale; returns the previous locale. */
TS_API void *ts_c_locale_enter(void);
/** Restores the locale *previous, which ts_c_locale_enter() returned. NULL-safe. */
TS_API void ts_c_locale_leave(void **previous);
/** For the rest of the block, printf and strtod of this thread use a decimal point, whatever locale
 *  the program has set. The library uses TS_C_LOCALE wherever it writes or reads a number. */
#define TS_C_LOCALE                                                                                \
    void *TS_CAT(ts_locale_, __LINE__) __attribute__((cleanup(ts_c_locale_leave), unused)) =       \
        ts_c_locale_enter()

/**
 * Reads a decimal integer from least to most; text has digits after an optional minus sign, and
 * nothing else. Any other text is TS_ERR_VALUE, with `name`, the range and the text in the message;
 * *value is then unchanged. Further error: TS_ERR_NULL.
 */
TS_API ts_status ts_parse_int(const char *name, const char *text, int64_t least, int64_t most,
                              int64_t *value);

/* ------------------------------------------------------------- environment variables ---- */

/**
 * Index of an environment variable's value in the list one_of, such as "mma|plain". -1 if the
 * variable is unset, empty, or has a value that is not in the list; the last case logs a warning.
 */
TS_API int ts_variable_choice(const char *name, const char *one_of);

/* --------------------------------------------------------------------- command lines ---- */

/** One argument of a program. Exactly one of flag, number and text is not NULL. */
typedef struct ts_argument {
    const char *name;  /**< name of an option ("--steps") or of a positional argument ("FILE") */
    const char *help;  /**< description, for --help */
    bool *flag;        /**< for an option without a value: set to true if the option is given */
    int64_t *number;   /**< for an integer: receives it */
    int64_t least, most; /**< smallest and largest accepted integer */
    const char **text; /**< for a string: receives it, borrowed from argv; an empty string is a
                             mistake */
    const char *one_of; /**< for a string: the accepted strings, as in "bf16|f16|f32"; NULL: any */
    bool required;     /**< a command line without the argument is a mistake */
    const char *value;  /**< name of an option's value in --help, such as "FILE"; NULL: "N" for an
                             integer, one_of or "TEXT" for a string */
} ts_argument;

/**
 * Reads a command line. Options are --name (a flag), --name VALUE or --name=VALUE, in any order. A
 * word of two or more characters that begins with '-' is an option, except after the word "--". A
 * VALUE that begins with "--" needs the form with '='. Positional arguments come in the order of
 * their entries. --help prints `about` and all arguments, with the variables' values as the
 * defaults. A mistake in the command line is printed to stderr with the usage.
 * @param about      description of the program, as whole lines
 * @param arguments  n descriptions, n <= 64
 * @param status     receives main()'s result for a program that ends here: 0 after --help (1 if the
 *                   help cannot be written), else 2. No meaning if the call returns true
 * @return true if the program continues; false also, without output, if an argument of this call is
 *         invalid (TS_ERR_NULL, TS_ERR_VALUE)
 */
TS_API bool ts_program_begin(int argc, char **argv, const char *about,
                             const ts_argument *arguments, int n, int *status);
/**
 * Flushes standard output and returns main()'s result: status, or 1 instead of 0 if output was lost
 * (a full disk, a closed pipe). Prints an error line to stderr if output was lost.
 */
TS_API int ts_program_end(int status);

TS_END_DECLS
#endif
