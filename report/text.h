/**
 * @file text.h
 * Common parts of the reports: a growing string, numbers as text, UTF-8, whole files.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_REPORT_TEXT_H
#define TS_REPORT_TEXT_H

#include <stdarg.h>

#include <tessera/check.h>

/** The enclosing public function as messages name it: without "ts_". */
#define TS_OP (&__func__[3])

/** A growing string. A failed allocation sticks; the one check is ts_text_status(). */
typedef struct ts_text {
    char *data; /**< NUL-terminated once anything was added; else NULL */
    size_t size;
    size_t capacity;
    bool failed;
} ts_text;

void ts_text_append(ts_text *text, const char *bytes, size_t size);
void ts_text_string(ts_text *text, const char *string);
void ts_text_repeat(ts_text *text, const char *string, int times);
/** printf in the C locale. */
void ts_text_printf(ts_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ts_text_vprintf(ts_text *text, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
/** A string as XML character data: escaped, invalid bytes replaced by U+FFFD. */
void ts_text_xml(ts_text *text, const char *string);
/** A CSV field by RFC 4180, quoted only where needed. */
void ts_text_csv(ts_text *text, const char *string);
ts_status ts_text_status(const ts_text *text);
void ts_text_free(ts_text *text);

/** snprintf in the C locale. */
void ts_format(char *buffer, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** A number for a CSV cell: whole numbers in full, others to `digits`; NaN is "". */
void ts_format_cell(char buffer[40], double value, int digits);
/** A number with an SI prefix, "12.3 µ"; a space only before a prefix or when `unit` follows. */
void ts_format_si(char *buffer, size_t size, double value, int digits, const char *unit,
                  bool ascii);
/** strtod in the C locale. */
double ts_parse_double(const char *string, char **end);

/** Next code point; advances *string by at least one byte. U+FFFD for invalid bytes. */
uint32_t ts_utf8_next(const char **string);
/** Terminal columns of a string: 0 for combining marks, 2 for wide characters. */
int ts_text_width(const char *string);
/** Whether the environment's locale writes UTF-8. */
bool ts_locale_is_utf8(void);

/** Reads a whole file into an owned NUL-terminated buffer. */
ts_status ts_read_whole(const char *path, char **data, size_t *size, const char *function);
/** write() until done; false with errno set. */
bool ts_write_all(int fd, const char *data, size_t size);
/** Duplicate of a string, NULL for NULL; false when out of memory. */
bool ts_copy_string(char **copy, const char *string);
/** Appends text escaped by ts_escape_text() for a terminal. */
bool ts_copy_shown(char **copy, const char *string);
/** Room for one more element of an array of `count`; array_pointer is the pointer's address. The
 *  caller counts the element once it is filled. False when out of memory. */
bool ts_grow(void *array_pointer, size_t count, size_t element);
/** TS_ERR_MEMORY naming the function. */

#endif
