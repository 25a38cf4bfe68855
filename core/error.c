/** @file error.c  The per-thread error record and the log. */
// SPDX-License-Identifier: MIT
#include "core/error.h"
#include "core/checked.h"
#include "core/thread.h"
#include "include/tessera/program.h"

#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const status_names[] = {
    [TS_OK] = "TS_OK",
    [TS_ERR_NULL] = "TS_ERR_NULL",
    [TS_ERR_VALUE] = "TS_ERR_VALUE",
    [TS_ERR_SHAPE] = "TS_ERR_SHAPE",
    [TS_ERR_DTYPE] = "TS_ERR_DTYPE",
    [TS_ERR_DEVICE] = "TS_ERR_DEVICE",
    [TS_ERR_INDEX] = "TS_ERR_INDEX",
    [TS_ERR_MEMORY] = "TS_ERR_MEMORY",
    [TS_ERR_IO] = "TS_ERR_IO",
    [TS_ERR_FORMAT] = "TS_ERR_FORMAT",
    [TS_ERR_AUTOGRAD] = "TS_ERR_AUTOGRAD",
    [TS_ERR_UNSUPPORTED] = "TS_ERR_UNSUPPORTED",
    [TS_ERR_REGISTRY] = "TS_ERR_REGISTRY",
    [TS_ERR_STATE] = "TS_ERR_STATE",
    [TS_ERR_INTERNAL] = "TS_ERR_INTERNAL",
};

const char *ts_status_name(ts_status status)
{
    return (unsigned)status < TS_COUNTOF(status_names) ? status_names[status] : "TS_ERR_?";
}

static ts_error *record(void) { return ts_thread_self()->error; }

ts_status ts_error_code(void) { return record()->code; }
const char *ts_error_message(void)
{
    ts_error *e = record();
    e->kept = false; /* the caller knows this failure now */
    return e->message;
}
const char *ts_error_op(void) { return record()->op; }
const char *ts_error_hint(void) { return record()->hint; }
const void *ts_error_site(void) { return record()->site; }

void ts_error_clear(void)
{
    ts_error *e = record();
    e->code = TS_OK;
    e->located = e->kept = false;
    e->site = NULL;
    e->op[0] = e->hint[0] = e->message[0] = 0;
}

void ts_error_print(void)
{
    ts_error *e = record();
    if (e->code == TS_OK)
        return;
    e->kept = false;
    fprintf(stderr, "error: %s (%s)\n", e->message, ts_status_name(e->code));
    if (e->hint[0])
        fprintf(stderr, "  hint: %s\n", e->hint);
    char site[256];
    if (e->site)
        fprintf(stderr, "  called from %s\n", ts_format_site(site, sizeof site, e->site));
}

/** True if a terminal shows the character c and does not interpret it. lines: true also for newline
 *  and tab. */
static bool is_shown(uint32_t c, bool lines)
{
    if (c < 0x20)
        return lines && (c == '\n' || c == '\t');
    return !(c >= 0x7f && c < 0xa0) && c != 0xad && c != 0x61c && c != 0x180e &&
           !(c >= 0x200b && c <= 0x200f) && !(c >= 0x2028 && c <= 0x202e) &&
           !(c >= 0x2060 && c <= 0x206f) && !(c >= 0xd800 && c < 0xe000) && c != 0xfeff &&
           !(c >= 0xfff9 && c <= 0xfffb) && !(c >= 0xe0000 && c < 0xe0080) && c <= 0x10ffff;
}

const char *ts_escape(char *out, size_t size, const char *text, bool lines)
{
    size_t used = 0;
    if (size == 0)
        return out;
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        int more = (*p & 0xe0) == 0xc0 ? 1 : (*p & 0xf0) == 0xe0 ? 2 : (*p & 0xf8) == 0xf0 ? 3 : 0;
        uint32_t c = more ? *p & (0x3fu >> more) : *p;
        int n = 1;
        while (n <= more && (p[n] & 0xc0) == 0x80)
            c = c << 6 | (p[n++] & 0x3f);
        bool shown = n == more + 1 && (more || *p < 0x80) && is_shown(c, lines) &&
                     c >= (const uint32_t[]){0, 0x80, 0x800, 0x10000}[more];
        size_t need = (size_t)n * (shown ? 1 : 4);
        if (used + need >= size)
            break;
        for (int i = 0; i < n; i++)
            if (shown)
                out[used++] = (char)p[i];
            else
                used += (size_t)snprintf(out + used, size - used, "\\x%02x", p[i]);
        p += n;
    }
    out[used] = 0;
    return out;
}

const char *ts_escape_text(char *buffer, size_t size, const char *text)
{
    return ts_escape(buffer, buffer ? size : 0, text ? text : "", false);
}

static ts_status fail(ts_status code, const char *op, const void *site, const char *hint,
                      const char *format, va_list args)
{
    ts_error *e = record();
    if (e->kept) {
        e->reported = false;
        e->count++;
        return e->code;
    }
    TS_C_LOCALE;
    /* arguments may point into the record, so the text is formatted before the record is cleared */
    char text[sizeof e->message];
    size_t used = op ? (size_t)snprintf(text, sizeof text, "%.400s: ", op) : 0;
    vsnprintf(text + used, sizeof text - used, format ? format : "?", args);
    char advice[sizeof e->hint];
    snprintf(advice, sizeof advice, "%s", hint ? hint : "");
    e->code = code == TS_OK ? TS_ERR_INTERNAL : code;
    e->reported = e->located = false;
    e->count++;
    e->site = site;
    ts_escape(e->op, sizeof e->op, op ? op : "", true);
    ts_escape(e->hint, sizeof e->hint, advice, true);
    ts_escape(e->message, sizeof e->message, text, true);
    return e->code;
}

ts_status ts_fail_op(ts_status code, const char *op, const void *site, const char *hint,
                     const char *format, ...)
{
    va_list args;
    va_start(args, format);
    ts_status status = fail(code, op, site, hint, format, args);
    va_end(args);
    return status;
}

ts_status ts_error_set(ts_status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    ts_status status = fail(code, NULL, NULL, NULL, format, args);
    va_end(args);
    return status;
}

ts_status ts_error_set_hint(ts_status code, const char *hint, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    ts_status status = fail(code, NULL, NULL, hint, format, args);
    va_end(args);
    return status;
}

ts_status ts_error_within(const char *place)
{
    ts_error *e = record();
    if (e->code != TS_OK && !e->located && place) {
        char shown[256];
        size_t used = strlen(e->message);
        snprintf(e->message + used, sizeof e->message - used, " (in %s)",
                 ts_escape_text(shown, sizeof shown, place));
        e->located = true;
    }
    return e->code;
}

void ts_error_keep(void)
{
    ts_error *e = record();
    e->kept = e->code != TS_OK;
}

ts_status ts_fail_null(const char *op, const void *site, const char *argument)
{
    ts_error *e = record();
    e->reported = false;
    if (e->code != TS_OK)
        return e->code; /* the record already holds the failure that caused the NULL */
    return ts_fail_op(TS_ERR_NULL, op, site, "pass TS_NONE where an optional tensor is absent",
                      "argument '%s': expected a tensor, got NULL", argument);
}

ts_status ts_error_memory(const char *what, int64_t bytes)
{
    ts_memory_stats stats = ts_memory_get_stats();
    return ts_error_set_hint(TS_ERR_MEMORY, "release tensors or use a smaller batch",
                             "out of memory: %s needs %lld bytes (in use %lld, reserved %lld)",
                             what, (long long)bytes, (long long)stats.in_use,
                             (long long)stats.reserved);
}

ts_status ts_fail_within(const char *op, const void *site)
{
    ts_error *e = record();
    if (e->op[0])
        return e->code;
    return ts_fail_op(e->code, op, site, e->hint, "%s", e->message);
}

ts_status ts_fail_callback(ts_status status, const char *op, const void *site, const char *what)
{
    ts_status code = ts_error_code();
    if (status == TS_OK || code != TS_OK)
        return status == TS_OK ? status : code;
    return ts_fail_op(status, op, site, NULL, "%s failed without recording an error", what);
}

ts_status ts_status_of_pointer(const void *pointer)
{
    if (pointer)
        return TS_OK;
    ts_status code = ts_error_code();
    return code != TS_OK ? code : ts_error_set(TS_ERR_NULL, "NULL without a recorded failure");
}

const char *ts_format_sizes(char *buffer, size_t size, const int64_t *sizes, int ndim)
{
    if (!buffer)
        return "";
    size_t used = (size_t)snprintf(buffer, size, "(");
    for (int i = 0; sizes && i < ndim && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, "%s%lld", i ? ", " : "",
                                 (long long)sizes[i]);
    if (used < size)
        snprintf(buffer + used, size - used, ")");
    return buffer;
}

const char *ts_format_site(char *buffer, size_t size, const void *site)
{
    Dl_info info;
    if (!site || !dladdr(site, &info) || !info.dli_fname) {
        snprintf(buffer, size, "?");
        return buffer;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    char file[256]; /* escaped, because a file name may hold any byte */
    ts_escape(file, sizeof file, slash ? slash + 1 : info.dli_fname, false);
    /* addr2line expects absolute addresses for an executable that is linked to a fixed address */
    const ElfW(Ehdr) *image = info.dli_fbase;
    const char *base = image->e_type == ET_EXEC ? NULL : info.dli_fbase;
    if (info.dli_sname)
        snprintf(buffer, size, "%s+0x%zx in %s", info.dli_sname,
                 (size_t)((const char *)site - (const char *)info.dli_saddr), file);
    else
        snprintf(buffer, size, "%s+0x%zx", file, (size_t)((uintptr_t)site - (uintptr_t)base));
    return buffer;
}

/* --------------------------------------------------------------------------------- log ---- */

static struct {
    ts_log_fn callback;
    void *payload;
    char topics[128];
} sink;

void ts_log_set_callback(ts_log_fn callback, void *payload)
{
    sink.payload = payload;
    sink.callback = callback;
}

bool ts_log_on(const char *topic)
{
    if (!topic)
        return false;
    if (sink.callback)
        return true;
    return strcmp(sink.topics, "all") == 0 || strcmp(topic, "warning") == 0 ||
           ts_word_index(sink.topics, ',', topic) >= 0;
}

void ts_log_write(const char *topic, const char *format, ...)
{
    if (!ts_log_on(topic))
        return;
    char text[1024], line[sizeof text];
    va_list args;
    TS_C_LOCALE;
    va_start(args, format);
    vsnprintf(text, sizeof text, format ? format : "?", args);
    va_end(args);
    ts_escape(line, sizeof line, text, false);
    if (sink.callback)
        sink.callback(sink.payload, topic, line);
    else
        fprintf(stderr, "[tessera %s] %s\n", topic, line);
}

void ts_log_from_environment(void)
{
    const char *topics = getenv("TS_LOG");
    if (topics)
        snprintf(sink.topics, sizeof sink.topics, "%s", topics);
}
