/**
 * @file text.c
 * Strings, numbers as text, UTF-8 and whole files for the reports.
 */
// SPDX-License-Identifier: MIT
#include "report/text.h"

#include <tessera/program.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool ts_copy_string(char **copy, const char *string)
{
    *copy = string ? strdup(string) : NULL;
    return *copy || !string;
}

bool ts_copy_shown(char **copy, const char *string)
{
    size_t size = string ? 4 * strlen(string) + 1 : 0;
    *copy = string ? malloc(size) : NULL;
    ts_escape_text(*copy, size, string);
    return *copy || !string;
}

bool ts_grow(void *array_pointer, size_t count, size_t element)
{
    void **array = array_pointer;

    // Capacities are 4, 8, 16, ..., so the count shows when the array is full.
    if (count && (count < 4 || (count & (count - 1))))
        return true;
    void *bigger = reallocarray(*array, count ? 2 * count : 4, element);
    if (!bigger)
        return false;
    *array = bigger;
    return true;
}

/* ---------------------------------------------------------------------------- UTF-8 ---- */

/** Decodes the code point at *string, which must not be the end of the text, and advances *string
 * to after it. An invalid byte gives U+FFFD and advances by one byte. */
static uint32_t next_code_point(const char **string)
{
    const unsigned char *s = (const unsigned char *)*string;
    int more = s[0] < 0x80 ? 0 : s[0] >= 0xf0 ? 3 : s[0] >= 0xe0 ? 2 : 1;
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    uint32_t c = more == 0 ? s[0] : s[0] & (0x3f >> more);

    (*string)++;
    if (s[0] >= 0x80 && (s[0] < 0xc2 || s[0] > 0xf4))
        return 0xfffd;
    for (int i = 1; i <= more; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0xfffd;
        c = c << 6 | (s[i] & 0x3f);
    }
    if (c < least[more] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0xfffd;
    *string += more;
    return c;
}

/* ------------------------------------------------------------------ growing strings ---- */

static bool reserve(ts_text *text, size_t more)
{
    size_t need, capacity;

    if (text->failed)
        return false;
    if (__builtin_add_overflow(text->size, more, &need) || need >= SIZE_MAX / 2) {
        text->failed = true;
        return false;
    }
    if (need < text->capacity)
        return true;
    capacity = need + need / 2 + 64;
    char *data = realloc(text->data, capacity);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

static void append(ts_text *text, const char *bytes, size_t size)
{
    if (!reserve(text, size))
        return;
    if (size)
        memcpy(text->data + text->size, bytes, size);
    text->size += size;
    text->data[text->size] = '\0';
}

void ts_text_string(ts_text *text, const char *string)
{
    append(text, string, strlen(string));
}

void ts_text_repeat(ts_text *text, const char *string, int times)
{
    for (int i = 0; i < times; i++)
        ts_text_string(text, string);
}

void ts_text_printf(ts_text *text, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    ts_text_vprintf(text, format, args);
    va_end(args);
}

void ts_text_vprintf(ts_text *text, const char *format, va_list args)
{
    va_list again;
    TS_C_LOCALE;

    va_copy(again, args);
    int size = vsnprintf(NULL, 0, format, args);
    if (size < 0) {
        text->failed = true;
    } else if (reserve(text, (size_t)size)) {
        vsnprintf(text->data + text->size, (size_t)size + 1, format, again);
        text->size += (size_t)size;
    }
    va_end(again);
}

void ts_text_xml(ts_text *text, const char *string)
{
    while (*string) {
        const char *start = string;
        uint32_t c = next_code_point(&string);
        // XML 1.0 has no way to write control characters or U+FFFE and U+FFFF.
        bool legal =
            c == '\t' || c == '\n' || c == '\r' || (c >= 0x20 && c < 0xfffe) || c >= 0x10000;
        if (c == '&')
            ts_text_string(text, "&amp;");
        else if (c == '<')
            ts_text_string(text, "&lt;");
        else if (c == '>')
            ts_text_string(text, "&gt;");
        else if (c == '"')
            ts_text_string(text, "&quot;");
        else if (c == 0xfffd || !legal)
            ts_text_string(text, "\xef\xbf\xbd");
        else
            append(text, start, (size_t)(string - start));
    }
}

void ts_text_csv(ts_text *text, const char *string)
{
    if (!strpbrk(string, ",\"\r\n")) {
        ts_text_string(text, string);
        return;
    }
    append(text, "\"", 1);
    for (; *string; string++) {
        if (*string == '"')
            append(text, "\"", 1);
        append(text, string, 1);
    }
    append(text, "\"", 1);
}

ts_status ts_text_status(const ts_text *text)
{
    return text->failed ? ts_error_memory("a text", (int64_t)text->capacity) : TS_OK;
}

void ts_text_free(ts_text *text)
{
    free(text->data);
    *text = (ts_text){0};
}

/* -------------------------------------------------------------------------- numbers ---- */

void ts_format(char *buffer, size_t size, const char *format, ...)
{
    va_list args;
    TS_C_LOCALE;

    va_start(args, format);
    vsnprintf(buffer, size, format, args);
    va_end(args);
}

void ts_format_cell(char buffer[40], double value, int digits)
{
    buffer[0] = '\0';
    if (isnan(value))
        return;
    if (fabs(value) < 0x1p53 && value == rint(value)) {
        ts_format(buffer, 40, "%.0f", value);
        return;
    }
    ts_format(buffer, 40, "%.*g", digits, value);
    // 17 digits are always exact, but print 0.1 as 0.10000000000000001: use 15 or 16 if exact too.
    for (int fewer = 15; digits == 17 && fewer < 17; fewer++) {
        char shorter[40];
        ts_format(shorter, sizeof shorter, "%.*g", fewer, value);
        if (ts_parse_double(shorter, NULL) == value) {
            strcpy(buffer, shorter);
            break;
        }
    }
}

void ts_format_si(char *buffer, size_t size, double value, int digits, const char *unit, bool ascii)
{
    static const char *const prefixes[] = {"p", "n", "\xc2\xb5", "m", "", "k", "M", "G", "T", "P"};
    enum { NONE = 4, LAST = 9 };
    int at = NONE;
    double scaled = value;

    if (isfinite(value) && value != 0) {
        at = (int)floor(log10(fabs(value)) / 3) + NONE;
        at = at < 0 ? 0 : at > LAST ? LAST : at;
        scaled = value / pow(10, 3 * (at - NONE));
        // 999.96 rounds to 1000 at three digits: it belongs to the next prefix.
        double step = pow(10, 3 - digits);
        if (at < LAST && fabs(rint(scaled / step) * step) >= 1000) {
            at++;
            scaled /= 1000;
        }
    }
    int before = fabs(scaled) >= 99.95 ? 3 : fabs(scaled) >= 9.995 ? 2 : 1;
    int decimals = digits > before && value != 0 && isfinite(value) ? digits - before : 0;
    // A count below a thousand is a whole number, not a measurement of three digits.
    if (at == NONE && !*unit && value == rint(value))
        decimals = 0;
    const char *prefix = ascii && at == 2 ? "u" : prefixes[at];
    ts_format(buffer, size, "%.*f%s%s%s", decimals, scaled, *unit || *prefix ? " " : "", prefix,
              unit);
}

double ts_parse_double(const char *string, char **end)
{
    TS_C_LOCALE;
    return strtod(string, end);
}

/* ------------------------------------------------------------------------- terminals ---- */

int ts_text_width(const char *string)
{
    static const struct {
        uint32_t first, last;
        int width;
    } ranges[] = {
        {0x0300, 0x036f, 0},   {0x200b, 0x200f, 0},   {0x20d0, 0x20ff, 0},   {0xfe00, 0xfe0f, 0},
        {0x1100, 0x115f, 2},   {0x2e80, 0x303e, 2},   {0x3041, 0xa4cf, 2},   {0xac00, 0xd7a3, 2},
        {0xf900, 0xfaff, 2},   {0xfe30, 0xfe6f, 2},   {0xff00, 0xff60, 2},   {0xffe0, 0xffe6, 2},
        {0x1f300, 0x1f64f, 2}, {0x1f900, 0x1f9ff, 2}, {0x20000, 0x3fffd, 2},
    };
    int width = 0;

    while (*string) {
        uint32_t c = next_code_point(&string);
        int own = 1;
        for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
            if (c >= ranges[i].first && c <= ranges[i].last)
                own = ranges[i].width;
        width += own;
    }
    return width;
}

bool ts_locale_is_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value && *value)
            return strcasestr(value, "utf-8") || strcasestr(value, "utf8");
    }
    return false;
}

/* ---------------------------------------------------------------------------- files ---- */

bool ts_write_all(int fd, const char *data, size_t size)
{
    while (size) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        data += n;
        size -= (size_t)n;
    }
    return true;
}

ts_status ts_read_whole(const char *path, char **data, size_t *size, const char *function)
{
    int fd, error = 0;
    ts_text text = {0};

    TS_TRY(ts_open_file(function, path, O_RDONLY, &fd));
    append(&text, "", 0);
    while (reserve(&text, 1 << 16)) {
        ssize_t n = read(fd, text.data + text.size, 1 << 16);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            error = n < 0 ? errno : 0;
            break;
        }
        text.size += (size_t)n;
    }
    close(fd);
    if (text.failed || error) {
        ts_text_free(&text);
        return error ? ts_error_set(TS_ERR_IO, "%s: cannot read '%s': %s", function, path,
                                    strerror(error))
                     : ts_error_memory("a file", (int64_t)text.size);
    }
    text.data[text.size] = '\0';
    *data = text.data;
    *size = text.size;
    return TS_OK;
}
