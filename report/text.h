/**
 * @file text.h
 * Shared helpers of the reports: a growing string, number formatting, UTF-8, whole files.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_REPORT_TEXT_H
#define TS_REPORT_TEXT_H

#include <stdarg.h>

#include <tessera/check.h>

/** Name of the enclosing public function for messages: __func__ without "ts_". */
#define TS_OP (&__func__[3])

/** A growing string; {0} is empty. After a failed allocation further appends do nothing, so callers
 *  check once, with ts_text_status(). Free it with ts_text_free(). */
typedef struct ts_text {
    char *data; /**< NUL-terminated once anything was added; else NULL */
    size_t size; /**< bytes without the NUL */
    size_t capacity;
    bool failed; /**< an allocation or a format failed */
} ts_text;

/** Append to *text: a string; a string `times` times. */
void ts_text_string(ts_text *text, const char *string);
void ts_text_repeat(ts_text *text, const char *string, int times);
/** Append formatted text to *text, as printf() does in the C locale. */
void ts_text_printf(ts_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ts_text_vprintf(ts_text *text, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
/** Appends a string as XML character data: escaped, with U+FFFD for invalid bytes and
 *  characters that XML does not allow. */
void ts_text_xml(ts_text *text, const char *string);
/** Appends a CSV field as in RFC 4180, quoted only if necessary. */
void ts_text_csv(ts_text *text, const char *string);
/** TS_OK, or TS_ERR_MEMORY if an append has failed. */
ts_status ts_text_status(const ts_text *text);
void ts_text_free(ts_text *text);

/** snprintf in the C locale. */
void ts_format(char *buffer, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** Formats a number for a CSV cell: integers below 2^53 in full, NaN as "", other numbers with
 *  `digits` significant digits. If digits is 17, uses 15 or 16 when reading them back gives the
 *  same value. */
void ts_format_cell(char buffer[40], double value, int digits);
/** Formats a number with an SI prefix from p to P and `digits` significant digits, "12.3 µs". Whole
 *  numbers below 1000 without unit, and 0, have no decimals. A space precedes prefix and unit if
 *  one of them is not empty. ascii: the prefix µ becomes u. */
void ts_format_si(char *buffer, size_t size, double value, int digits, const char *unit,
                  bool ascii);
/** strtod in the C locale. */
double ts_parse_double(const char *string, char **end);

/** Terminal columns of a string: 0 for combining marks, 2 for wide characters. */
int ts_text_width(const char *string);
/** True if the environment (LC_ALL, LC_CTYPE, LANG) selects a UTF-8 locale. */
bool ts_locale_is_utf8(void);

/** Reads a whole file into a NUL-terminated buffer, which the caller frees with free(). *size
 *  excludes the NUL. Errors, which name `function`: TS_ERR_IO, TS_ERR_MEMORY. */
ts_status ts_read_whole(const char *path, char **data, size_t *size, const char *function);
/** Calls write() until all bytes are written; false with errno set after a failure. */
bool ts_write_all(int fd, const char *data, size_t size);
/** Sets *copy to a duplicate of string (NULL for NULL), to be freed with free(). Returns false if
 *  memory runs out. */
bool ts_copy_string(char **copy, const char *string);
/** Like ts_copy_string(), but the copy is escaped for a terminal by ts_escape_text(). */
bool ts_copy_shown(char **copy, const char *string);
/** Reserves memory for one more element in an array of `count` elements of `element` bytes. The
 *  array's capacity follows from `count`, so only ts_grow() may grow it. array_pointer is the
 *  address of the array pointer, NULL before the first element. The caller increments the count,
 *  and frees the array with free(). False if memory runs out; the array is unchanged then. */
bool ts_grow(void *array_pointer, size_t count, size_t element);

#endif
