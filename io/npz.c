/**
 * @file npz.c  NumPy's npz files: zip archives whose members are npy files. Names, sizes and CRCs
 * come from the directory at the archive's end. Members are stored, or deflated; zlib, which
 * inflates them, is opened at first use.
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/tensor.h"
#include "include/tessera/io.h"
#include "include/tessera/ops.h"
#include "io/library.h"
#include "io/npy.h"

/* bytes of the fixed part of each record */
enum { END = 22, ENTRY = 46, LOCAL = 30, LOCATOR = 20, END64 = 56 };
enum { STORED = 0, DEFLATED = 8, ENCRYPTED = 1, MOST_NAME = 1024 };
#define MOST_MEMBERS 1000000

typedef struct member {
    char *name; /* in the archive's block of names, without ".npy" */
    int method;
    uint32_t crc;
    int64_t packed, bytes; /* size in the archive; size of the npy file */
    int64_t at;            /* offset of its local header */
} member;

struct ts_npz {
    char *path;
    int fd;
    int64_t directory; /* offset of the directory: members end before it */
    member *members;   /* count */
    int64_t count;
    char *names;
};

static const char op[] = "npz_open";
#define BAD(...) ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL, __VA_ARGS__)

static uint64_t number(const unsigned char *at, int bytes)
{
    uint64_t x = 0;
    while (bytes--)
        x = x << 8 | at[bytes];
    return x;
}

/** Adds `bytes` bytes to a CRC-32 as in zip files; the first call gets 0. */
static uint32_t crc32_of(uint32_t crc, const void *data, int64_t bytes)
{
    uint32_t table[256];
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int k = 0; k < 8; k++)
            table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
    }
    crc = ~crc;
    for (const unsigned char *at = data; bytes > 0; bytes--, at++)
        crc = table[(crc ^ *at) & 0xff] ^ crc >> 8;
    return ~crc;
}

/* ------------------------------------------------------------------------ the directory ---- */

typedef struct directory {
    int64_t at, bytes, count;
} directory;

/** Reads *d from the zip64 record, which holds numbers that do not fit the end record at `end`. */
static ts_status read_end64(const char *path, int fd, int64_t end, directory *d)
{
    unsigned char bytes[END64];
    if (end < LOCATOR + END64)
        return BAD("'%s': expected a zip64 record before the archive's end", path);
    TS_TRY(ts_file_read(op, path, fd, bytes, LOCATOR, end - LOCATOR));
    uint64_t at = number(bytes + 8, 8);
    if (number(bytes, 4) != 0x07064b50 || at > (uint64_t)(end - LOCATOR - END64))
        return BAD("'%s': expected a zip64 record before the archive's end", path);
    TS_TRY(ts_file_read(op, path, fd, bytes, END64, (int64_t)at));
    if (number(bytes, 4) != 0x06064b50)
        return BAD("'%s': expected a zip64 record at byte %lld", path, (long long)at);
    uint64_t count = number(bytes + 32, 8), size = number(bytes + 40, 8),
             from = number(bytes + 48, 8);
    if (count > MOST_MEMBERS || from > at || size > at - from)
        return BAD("'%s': expected a directory within the archive, got %llu bytes at %llu", path,
                   (unsigned long long)size, (unsigned long long)from);
    *d = (directory){(int64_t)from, (int64_t)size, (int64_t)count};
    return TS_OK;
}

/** Finds the directory by the record at the archive's end, which a comment may follow. */
static ts_status find_directory(const char *path, int fd, int64_t file_bytes, directory *d)
{
    int64_t tail = ts_min64(file_bytes, END + 0xffff), end = -1;
    unsigned char *bytes = tail >= END ? ts_sys_alloc((size_t)tail) : NULL;
    if (tail < END)
        return BAD("'%s': expected at least %d bytes, got %lld", path, END, (long long)file_bytes);
    if (!bytes)
        return ts_error_memory("the end of an archive", tail);
    ts_status status = ts_file_read(op, path, fd, bytes, tail, file_bytes - tail);
    for (int64_t i = tail - END; i >= 0 && end < 0 && status == TS_OK; i--)
        if (number(bytes + i, 4) == 0x06054b50 &&
            (int64_t)number(bytes + i + 20, 2) == tail - END - i)
            end = i;
    const unsigned char *at = bytes + (end < 0 ? 0 : end);
    uint64_t disks = number(at + 4, 4), count = number(at + 10, 2), size = number(at + 12, 4),
             from = number(at + 16, 4);
    ts_sys_free(bytes);
    TS_TRY(status);
    if (end < 0)
        return BAD("'%s': expected a zip archive, got no end record", path);
    end += file_bytes - tail;
    *d = (directory){(int64_t)from, (int64_t)size, (int64_t)count};
    if (count == 0xffff || size == 0xffffffff || from == 0xffffffff)
        return read_end64(path, fd, end, d);
    if (disks || from > (uint64_t)end || size > (uint64_t)end - from)
        return BAD("'%s': expected a directory within the archive, got %llu bytes at %llu", path,
                   (unsigned long long)size, (unsigned long long)from);
    return TS_OK;
}

/** Replaces numbers of an entry that are 0xffffffff by the 64-bit numbers of its zip64 extra field,
 *  then checks the member's offset and sizes. */
static ts_status read_extra(const ts_npz *z, const unsigned char *extra, int64_t bytes, member *m)
{
    int64_t *wanted[] = {&m->bytes, &m->packed, &m->at};
    while (bytes >= 4) {
        int64_t length = (int64_t)number(extra + 2, 2), used = 0;
        if (length > bytes - 4)
            break;
        for (int i = 0; i < 3 && number(extra, 2) == 1; i++)
            if (*wanted[i] == 0xffffffff && used + 8 <= length) {
                *wanted[i] = (int64_t)(number(extra + 4 + used, 8) & INT64_MAX);
                used += 8;
            }
        extra += 4 + length;
        bytes -= 4 + length;
    }
    if (m->at > z->directory || m->packed > z->directory - m->at)
        return BAD("'%s': member '%s': expected its data before the directory at %lld", z->path,
                   ts_quote(m->name), (long long)z->directory);
    /* deflate shrinks data to no less than 1/1032 */
    if (m->method == STORED ? m->packed != m->bytes : m->bytes / 1032 > m->packed)
        return BAD("'%s': member '%s': expected %lld bytes to hold %lld", z->path,
                   ts_quote(m->name), (long long)m->packed, (long long)m->bytes);
    return TS_OK;
}

/** Reads entry number z->count of the directory at `at`, where `bytes` bytes of the directory are
 *  left. *names: next free byte of z->names; *used receives the bytes of the entry. */
static ts_status read_entry(ts_npz *z, const unsigned char *at, int64_t bytes, char **names,
                            int64_t *used)
{
    if (bytes < ENTRY || number(at, 4) != 0x02014b50)
        return BAD("'%s': expected entry %lld of the directory", z->path, (long long)z->count);
    int64_t name = (int64_t)number(at + 28, 2), extra = (int64_t)number(at + 30, 2),
            comment = (int64_t)number(at + 32, 2);
    *used = ENTRY + name + extra + comment;
    if (*used > bytes)
        return BAD("'%s': expected entry %lld of the directory to end within it", z->path,
                   (long long)z->count);
    member *m = &z->members[z->count];
    *m = (member){.name = *names, .method = (int)number(at + 10, 2),
                  .crc = (uint32_t)number(at + 16, 4), .packed = (int64_t)number(at + 20, 4),
                  .bytes = (int64_t)number(at + 24, 4), .at = (int64_t)number(at + 42, 4)};
    memcpy(m->name, at + ENTRY, (size_t)name);
    m->name[name] = 0;
    *names += name + 1;
    if (name < 5 || name > MOST_NAME || strlen(m->name) != (size_t)name ||
        memcmp(m->name + name - 4, ".npy", 4) != 0)
        return BAD("'%s': expected a member NAME.npy, got '%s'", z->path, ts_quote(m->name));
    m->name[name - 4] = 0;
    if ((number(at + 8, 2) & ENCRYPTED) || (m->method != STORED && m->method != DEFLATED))
        return BAD("'%s': member '%s': expected a stored or deflated member, got method %d%s",
                   z->path, ts_quote(m->name), m->method,
                   number(at + 8, 2) & ENCRYPTED ? ", encrypted" : "");
    TS_TRY(read_extra(z, at + ENTRY + name, extra, m));
    z->count++;
    return TS_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/** Sorts names. Returns a name that occurs twice, or NULL. */
static const char *sort_names(const char **names, int64_t n)
{
    qsort(names, (size_t)n, sizeof *names, by_name);
    for (int64_t i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return names[i];
    return NULL;
}

static ts_status check_distinct(const ts_npz *z)
{
    const char **sorted = ts_sys_alloc((size_t)(z->count + 1) * sizeof *sorted);
    if (!sorted)
        return ts_error_memory("the names of an archive", z->count * (int64_t)sizeof *sorted);
    for (int64_t i = 0; i < z->count; i++)
        sorted[i] = z->members[i].name;
    const char *twice = sort_names(sorted, z->count);
    ts_sys_free(sorted);
    return twice ? BAD("'%s': expected distinct names, got '%s' twice", z->path, ts_quote(twice))
                 : TS_OK;
}

static ts_status read_directory(ts_npz *z, const directory *d)
{
    if (d->count > d->bytes / ENTRY)
        return BAD("'%s': expected %lld entries in a directory of %lld bytes", z->path,
                   (long long)d->count, (long long)d->bytes);
    z->directory = d->at;
    z->members = ts_sys_alloc((size_t)(d->count + 1) * sizeof *z->members);
    z->names = ts_sys_alloc((size_t)d->bytes + 1); /* an entry is longer than its name and a 0 */
    unsigned char *bytes = ts_sys_alloc((size_t)d->bytes + 1);
    ts_status status = z->members && z->names && bytes
                           ? ts_file_read(op, z->path, z->fd, bytes, d->bytes, d->at)
                           : ts_error_memory("the directory of an archive", d->bytes);
    char *names = z->names;
    int64_t at = 0, used = 0;
    for (int64_t i = 0; i < d->count && status == TS_OK; i++, at += used)
        status = read_entry(z, bytes + at, d->bytes - at, &names, &used);
    ts_sys_free(bytes);
    return status == TS_OK ? check_distinct(z) : status;
}

ts_npz *ts_npz_open(const char *path)
{
    directory d = {0};
    int64_t bytes;
    TS_TRY_NULL(TS_CHECK_POINTERS(path));
    ts_npz *z = ts_sys_calloc(sizeof *z);
    if (!z) {
        ts_error_memory("an archive", sizeof *z);
        return NULL;
    }
    z->fd = -1;
    if ((z->path = ts_path("%s", path)) && ts_file_open(op, path, &z->fd, &bytes) == TS_OK &&
        find_directory(path, z->fd, bytes, &d) == TS_OK && read_directory(z, &d) == TS_OK)
        return z;
    ts_npz_close(z);
    return NULL;
}

void ts_npz_close(ts_npz *npz)
{
    if (!npz)
        return;
    ts_file_close(npz->fd);
    ts_sys_free(npz->names);
    ts_sys_free(npz->members);
    ts_sys_free(npz->path);
    ts_sys_free(npz);
}

int64_t ts_npz_count(const ts_npz *npz) { return npz ? npz->count : 0; }
const char *ts_npz_name(const ts_npz *npz, int64_t index)
{
    return npz && index >= 0 && index < npz->count ? npz->members[index].name : NULL;
}
int64_t ts_npz_find(const ts_npz *npz, const char *name)
{
    for (int64_t i = 0; npz && name && i < npz->count; i++)
        if (strcmp(npz->members[i].name, name) == 0)
            return i;
    return -1;
}

/* ----------------------------------------------------------------------------- members ---- */

#undef BAD
#define BAD(...) ts_fail_op(TS_ERR_FORMAT, "npz_load", NULL, NULL, __VA_ARGS__)

/** zlib's z_stream, whose layout has not changed since version 1.2. */
typedef struct inflater {
    const unsigned char *next_in;
    unsigned available_in;
    unsigned long total_in;
    unsigned char *next_out;
    unsigned available_out;
    unsigned long total_out;
    const char *message;
    void *state;
    void *(*allocate)(void *ctx, unsigned n, unsigned bytes);
    void (*release)(void *ctx, void *block);
    void *ctx;
    int kind;
    unsigned long check, reserved;
} inflater;

static struct {
    const char *(*version)(void);
    int (*begin)(inflater *, int window_bits, const char *version, int bytes);
    int (*run)(inflater *, int flush);
    int (*end)(inflater *);
} lib;
static const char *const zlib_names[] = {"zlibVersion", "inflateInit2_", "inflate", "inflateEnd"};
static ts_library zlib = {"libz.so.1", "TS_ZLIB", zlib_names, (void **)&lib, 4, 0};
enum { RAW = -15, NO_FLUSH = 0, STREAM_END = 1, NO_MEMORY = -4 };

static void *take_memory(void *ctx, unsigned n, unsigned bytes)
{
    (void)ctx;
    return ts_sys_alloc((size_t)n * bytes);
}
static void give_memory(void *ctx, void *block) { (void)ctx, ts_sys_free(block); }

/** Inflates a member into `out`, of m->bytes bytes. */
static ts_status inflate_into(const ts_span *packed, const member *m, char *out)
{
    enum { CHUNK = 1 << 16 };
    inflater z = {.allocate = take_memory, .release = give_memory};
    TS_TRY(ts_library_open(&zlib, "npz_load"));
    unsigned char *chunk = ts_sys_alloc(CHUNK);
    int state = chunk ? lib.begin(&z, RAW, lib.version(), (int)sizeof z) : NO_MEMORY;
    int64_t in = 0, done = 0;
    ts_status status = TS_OK;
    if (state != 0) {
        ts_sys_free(chunk);
        return ts_error_memory("inflating a member of an archive", CHUNK);
    }
    while (state == 0 && status == TS_OK) {
        if (!z.available_in && in < packed->bytes) {
            int64_t n = ts_min64(CHUNK, packed->bytes - in);
            status = ts_span_read(packed, chunk, n, in);
            z.next_in = chunk;
            z.available_in = (unsigned)n;
            in += n;
        }
        /* when `out` is full, inflate into a spare byte: a member that fills it is too long */
        unsigned char spare;
        unsigned capacity = (unsigned)ts_min64(1 << 30, m->bytes - done);
        z.next_out = capacity ? (unsigned char *)out + done : &spare;
        z.available_out = capacity ? capacity : 1;
        if (status == TS_OK)
            state = lib.run(&z, NO_FLUSH);
        int64_t made = (capacity ? capacity : 1) - z.available_out;
        done += made;
        if (!made && !z.available_in && in == packed->bytes && state == 0)
            break;
        if (done > m->bytes)
            break;
    }
    lib.end(&z);
    ts_sys_free(chunk);
    TS_TRY(status);
    if (state == NO_MEMORY)
        return ts_error_memory("inflating a member of an archive", CHUNK);
    return state == STREAM_END && done == m->bytes && !z.available_in && in == packed->bytes
               ? TS_OK
               : BAD("'%s': expected deflated data of %lld bytes", packed->path,
                     (long long)m->bytes);
}

static ts_status check_sum(const ts_span *file, const member *m)
{
    enum { CHUNK = 1 << 16 };
    uint32_t crc = 0;
    char *chunk = file->memory ? NULL : ts_sys_alloc(CHUNK);
    ts_status status = file->memory || chunk ? TS_OK : ts_error_memory("reading a member", CHUNK);
    if (file->memory)
        crc = crc32_of(0, file->memory, file->bytes);
    for (int64_t at = 0; chunk && at < file->bytes && status == TS_OK; at += CHUNK) {
        int64_t n = ts_min64(CHUNK, file->bytes - at);
        if ((status = ts_span_read(file, chunk, n, at)) == TS_OK)
            crc = crc32_of(crc, chunk, n);
    }
    ts_sys_free(chunk);
    TS_TRY(status);
    return crc == m->crc ? TS_OK : BAD("'%s': expected CRC-32 %08x, got %08x", file->path, m->crc,
                                       crc);
}

static ts_tensor *read_member(ts_span *file, const member *m)
{
    char *inflated = NULL;
    ts_status status = TS_OK;
    if (m->method == DEFLATED) {
        inflated = ts_sys_alloc((size_t)m->bytes + 1);
        status = inflated ? inflate_into(file, m, inflated)
                          : ts_error_memory("inflating a member of an archive", m->bytes);
        file->memory = inflated;
        file->bytes = m->bytes;
    }
    ts_tensor *t = status == TS_OK && check_sum(file, m) == TS_OK ? ts_npy_read(file) : NULL;
    ts_sys_free(inflated);
    return t;
}

ts_tensor *ts_npz_load(const ts_npz *npz, const char *name)
{
    unsigned char local[LOCAL];
    TS_TRY_NULL(TS_CHECK_OBJECTS(npz));
    TS_TRY_NULL(TS_CHECK_POINTERS(name));
    int64_t index = ts_npz_find(npz, name);
    if (index < 0) {
        ts_fail_op(TS_ERR_INDEX, "npz_load", NULL, NULL, "'%s': expected the name of a member, "
                   "got '%s'", npz->path, ts_quote(name));
        return NULL;
    }
    const member *m = &npz->members[index];
    char *path = ts_path("%s/%s", npz->path, ts_quote(name));
    ts_span file = {.op = "npz_load", .path = path, .fd = npz->fd, .bytes = npz->directory};
    ts_tensor *t = NULL;
    if (path && ts_span_read(&file, local, LOCAL, m->at) == TS_OK) {
        int64_t data =
            m->at + LOCAL + (int64_t)(number(local + 26, 2) + number(local + 28, 2));
        if (number(local, 4) != 0x04034b50 || data > npz->directory - m->packed) {
            BAD("'%s': expected a member at byte %lld", path, (long long)m->at);
        } else {
            file.at = data;
            file.bytes = m->packed;
            t = read_member(&file, m);
        }
    }
    ts_sys_free(path);
    return t;
}

/* ----------------------------------------------------------------------------- writing ---- */

typedef struct archive {
    const char *const *names;
    ts_tensor *const *tensors; /* contiguous */
    int64_t n;
    uint32_t *sums; /* CRC-32 of each member, which write_archive() sets */
} archive;

static void put(unsigned char **at, uint64_t x, int bytes)
{
    for (; bytes; bytes--, x >>= 8)
        *(*at)++ = (unsigned char)x;
}

static int64_t bytes_of(const ts_tensor *t) { return t->numel * ts_dtype_sizes[t->dtype]; }

/** Fields that a member's local header and its entry of the directory share. */
static void put_common(unsigned char **at, const char *name, uint32_t crc, int64_t bytes)
{
    put(at, 20, 2);                     /* version of zip that can read it */
    put(at, 1 << 11, 2);                /* the name is UTF-8 */
    put(at, STORED, 2);
    put(at, 0 | 33u << 16, 4);          /* 1980-01-01: same content, same bytes */
    put(at, crc, 4);
    put(at, (uint64_t)bytes, 4);
    put(at, (uint64_t)bytes, 4);
    put(at, strlen(name) + 4, 2);
    put(at, 0, 2);
}

static ts_status write_name(ts_writer *w, const unsigned char *fixed, int bytes, const char *name)
{
    TS_TRY(ts_writer_write(w, fixed, bytes));
    TS_TRY(ts_writer_write(w, name, (int64_t)strlen(name)));
    return ts_writer_write(w, ".npy", 4);
}

/** Writes member i: its local header, npy header and data; or with in_directory its entry of the
 *  directory. from: offset of its local header in the archive. */
static ts_status write_member(ts_writer *w, const archive *a, int64_t i, bool in_directory,
                              int64_t from)
{
    char text[TS_NPY_HEADER];
    unsigned char fixed[ENTRY], *at = fixed;
    const ts_tensor *t = a->tensors[i];
    int header = ts_npy_header(t, text);
    if (!in_directory)
        a->sums[i] = crc32_of(crc32_of(0, text, header), t->data, bytes_of(t));
    put(&at, in_directory ? 0x02014b50 : 0x04034b50, 4);
    if (in_directory)
        put(&at, 20, 2);
    put_common(&at, a->names[i], a->sums[i], header + bytes_of(t));
    if (in_directory) {
        put(&at, 0, 10); /* no comment, first disk, no attributes */
        put(&at, (uint64_t)from, 4);
        return write_name(w, fixed, (int)(at - fixed), a->names[i]);
    }
    TS_TRY(write_name(w, fixed, (int)(at - fixed), a->names[i]));
    TS_TRY(ts_writer_write(w, text, header));
    return ts_writer_write(w, t->data, bytes_of(t));
}

/** Bytes of a member in the archive: local header, npy header and data. */
static int64_t member_bytes(const archive *a, int64_t i)
{
    char text[TS_NPY_HEADER];
    return LOCAL + (int64_t)strlen(a->names[i]) + 4 + ts_npy_header(a->tensors[i], text) +
           bytes_of(a->tensors[i]);
}

static ts_status write_archive(ts_writer *w, void *ctx)
{
    const archive *a = ctx;
    unsigned char end[END], *at = end;
    int64_t from = 0;
    for (int64_t i = 0; i < a->n; i++)
        TS_TRY(write_member(w, a, i, false, 0));
    int64_t directory = w->bytes;
    for (int64_t i = 0; i < a->n; i++) {
        TS_TRY(write_member(w, a, i, true, from));
        from += member_bytes(a, i);
    }
    put(&at, 0x06054b50, 4);
    put(&at, 0, 4);
    put(&at, (uint64_t)a->n, 2);
    put(&at, (uint64_t)a->n, 2);
    put(&at, (uint64_t)(w->bytes - directory), 4);
    put(&at, (uint64_t)directory, 4);
    put(&at, 0, 2);
    return ts_writer_write(w, end, END);
}

static ts_status check_names(const char *const *names_of, int64_t n)
{
    const ts_check_place at = {"npz_save", __builtin_return_address(0)};
    for (int64_t i = 0; i < n; i++)
        TS_TRY(ts_check_name(at, "names", names_of[i], MOST_NAME - 4, "/\\", ""));
    const char **sorted = ts_sys_alloc((size_t)(n + 1) * sizeof *sorted);
    if (!sorted)
        return ts_error_memory("the names of an archive", n * (int64_t)sizeof *sorted);
    for (int64_t i = 0; i < n; i++)
        sorted[i] = names_of[i];
    const char *twice = sort_names(sorted, n);
    ts_sys_free(sorted);
    return twice ? ts_fail_op(TS_ERR_VALUE, "npz_save", NULL, NULL,
                              "argument 'names': expected distinct names, got '%s' twice",
                              ts_quote(twice))
                 : TS_OK;
}

ts_status ts_npz_save(const char *path, const char *const *names, ts_tensor *const *tensors,
                      int64_t n)
{
    TS_TRY(TS_CHECK_POINTERS(path));
    TS_TRY(TS_CHECK_VALUE(n, n <= 0xfffe, "at most 65,534"));
    TS_TRY(TS_CHECK_STRINGS(names, n));
    TS_TRY(TS_CHECK_TENSOR_LIST(tensors, n));
    TS_TRY(check_names(names, n));
    TS_SCOPE;
    ts_tensor **ready = ts_sys_alloc((size_t)(n + 1) * sizeof *ready);
    archive a = {names, ready, n, ts_sys_alloc((size_t)(n + 1) * sizeof *a.sums)};
    ts_status status = ready && a.sums
                           ? TS_OK
                           : ts_error_memory("a list of tensors", n * (int64_t)sizeof *ready);
    int64_t bytes = 0;
    for (int64_t i = 0; i < n && status == TS_OK; i++) {
        status = TS_STATUS_OF(ready[i] = ts_npy_writable("npz_save", tensors[i]));
        bytes += status == TS_OK ? member_bytes(&a, i) : 0;
        if (bytes > 0xff000000)
            status = ts_fail_op(TS_ERR_VALUE, "npz_save", NULL, "use ts_safetensors_save()",
                                "'%s': expected less than 4 GB of tensors", path);
    }
    if (status == TS_OK)
        status = ts_writer_replace("npz_save", path, write_archive, &a);
    ts_sys_free(ready);
    ts_sys_free(a.sums);
    return status;
}
