/**
 * @file oracle.c  Judges a call: its error, its results, and the arguments that it must not change.
 */
// SPDX-License-Identifier: MIT
#include <string.h>

#include "core/alloc.h"
#include "core/testing.h"
#include "tests/misuse/misuse.h"

bool too_large(size_t bytes) { return bytes > MOST_BYTES; }

static uint64_t checksum(const ts_tensor *t)
{
    uint64_t h = 0xcbf29ce484222325u;
    const unsigned char *bytes = ts_data(t);
    int64_t n = bytes ? ts_numel(t) * (int64_t)ts_dtype_size(ts_dtype_of(t)) : 0;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * 0x100000001b3u;
    return h;
}

void begin(const char *function, int flags)
{
    snprintf(my->name, sizeof my->name, "%s", function);
    snprintf(my->under_way[my->nunder_way].name, sizeof my->name, "%s", function);
    my->under_way[my->nunder_way].modes = ts_tls.modes;
    my->under_way[my->nunder_way++].flags = flags;
    if (my->nunder_way == 1) {
        my->disturbed = my->unbalanced = false;
        my->nnoted = my->nmade;
        for (int i = 0; i < my->nmade; i++) {
            my->made[i].version = ts_version(my->made[i].t);
            my->made[i].sum = my->made[i].base ? checksum(my->made[i].base) : 0;
        }
    }
    for (; my->ndying; my->ndying--)
        ts_drop(my->dying[my->ndying - 1]);
    ts_error_clear();
    if (ts_alloc_fault != too_large) /* other threads read it, so it is not written needlessly */
        ts_alloc_fault = too_large;
    my->sharing = false; /* callbacks draw from the thread's own numbers */
}

/** Text that a terminal shows as it is: UTF-8 without control and bidi characters. */
static bool printable(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        int more = *p < 0x80 ? 0 : *p >= 0xc2 && *p < 0xe0 ? 1 : *p >= 0xe0 && *p < 0xf0 ? 2
                                                  : *p >= 0xf0 && *p < 0xf5 ? 3 : -1;
        uint32_t c = more < 0 ? 0 : more == 0 ? *p : *p & (0x3f >> more);
        for (int i = 1; i <= more; i++) {
            if ((p[i] & 0xc0) != 0x80)
                return false;
            c = c << 6 | (p[i] & 0x3f);
        }
        if (more < 0 || (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0) ||
            (c >= 0x200b && c <= 0x200f) ||
            (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff)
            return false;
        p += more + 1;
    }
    return true;
}

static void check_failure(ts_status status, int flags)
{
    const char *message = ts_error_message(), *op = ts_error_op();
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_. ";
    size_t n = strlen(op);
    ts_status code = ts_error_code();
    if (code == TS_OK)
        finding("a failure without a record");
    else if (status != code)
        finding("%s, but the record has %s: %s", ts_status_name(status), ts_status_name(code),
                message);
    else if (code == TS_ERR_INTERNAL && !(flags & OWN_TEXT) &&
             !(in_world && strstr(message, "without a result"))) /* odd_kernel() can cause it */
        finding("internal error: %s", message);
    else if ((!message[0] && !(flags & OWN_TEXT)) || !printable(message) ||
             !printable(ts_error_hint()))
        finding("a message that is no printable text: %s", message);
    else if (!(flags & OWN_TEXT) && !my->disturbed && code != TS_ERR_MEMORY &&
             (strncmp(message, op, n) != 0 || !strspn(message, word) ||
              strncmp(message + strspn(message, word), ": ", 2) != 0))
        finding("a message that does not begin with its function: %s", message);
    if (my->nunder_way || my->disturbed)
        return;
    if (!places_are_empty())
        finding("a result of a call that failed: %s", message);
    if (code == TS_ERR_MEMORY || strstr(message, "the first NaN or infinity"))
        return; /* such a failure may come after the op has written */
    for (int i = 0; i < my->nnoted; i++)
        if (ts_version(my->made[i].t) != my->made[i].version ||
            (my->made[i].base && checksum(my->made[i].base) != my->made[i].sum))
            finding("an argument was changed by a call that failed: %s", message);
}

void check_result(ts_tensor *t)
{
    ts_modes drawn = ts_tls.modes;
    int64_t n = 1;
    for (int d = 0; d < ts_ndim(t); d++)
        n *= ts_sizes(t)[d];
    if (ts_ndim(t) > TS_MAX_DIMS || n != ts_numel(t))
        finding("a result whose sizes are wrong");
    static _Thread_local char copy[1 << 16];
    size_t bytes = (size_t)n * ts_dtype_size(ts_dtype_of(t));
    if (ts_device_of(t).backend != TS_KEY_CPU || n <= 0 || n > 4096 || bytes > sizeof copy)
        return;
    ts_tls.modes = my->first_modes; /* drawn masks do not apply here */
    ts_status status = ts_copy_to(t, copy, bytes);
    ts_tls.modes = drawn;
    if (status != TS_OK && status != TS_ERR_MEMORY)
        finding("a result that cannot be read: %s", ts_error_message());
}

_Atomic int64_t succeeded, failed;

bool ended(ts_status status)
{
    my->nunder_way--;
    const ts_modes *before = &my->under_way[my->nunder_way].modes;
    int flags = my->under_way[my->nunder_way].flags;
    snprintf(my->name, sizeof my->name, "%s", my->under_way[my->nunder_way].name);
    (*(status == TS_OK ? &succeeded : &failed))++;
    if (status != TS_OK)
        check_failure(status, flags);
    if (status == TS_OK && ts_error_code() != TS_OK && !my->disturbed && !(flags & OWN_TEXT))
        finding("a success that leaves the record of a failure: %s", ts_error_message());
    if (flags & MODES && my->nunder_way)
        my->unbalanced = true;
    if (!my->unbalanced && !(flags & (status == TS_OK ? MODES : OPENS)) &&
        memcmp(before, &ts_tls.modes, sizeof *before) != 0)
        finding("a call that changed the thread's modes");
    if (!my->nunder_way) { /* else the outer call still needs its places */
        clear_places();
        collect_places();
    }
    return status == TS_OK;
}

void backward_of(ts_tensor *t)
{
    ts_tensor *ones = ts_ones_like(t);
    if (!ones)
        return;
    ts_backward_opts opts = {
        .size = sizeof opts, .retain_graph = one_in(2), .create_graph = one_in(4)};
    snprintf(my->name, sizeof my->name, "backward of %.40s", my->under_way[my->nunder_way].name);
    my->nnoted = my->nmade;
    for (int i = 0; i < my->nmade; i++) { /* the call may have changed them */
        my->made[i].version = ts_version(my->made[i].t);
        my->made[i].sum = my->made[i].base ? checksum(my->made[i].base) : 0;
    }
    ts_error_clear();
    ts_status status = ts_backward_ex(t, ones, &opts);
    if (status != TS_OK)
        check_failure(status, OWN_TEXT);
    for (int i = my->nborrowed; !my->nunder_way && i < my->nmade; i++)
        ts_zero_grad(my->made[i].t);
}

void end_status(ts_status status) { ended(status); }
void end_nothing(void) { ended(ts_error_code()); }
void end_object(object_kind kind, const void *p)
{
    if (ended(p ? TS_OK : ts_error_code()))
        add_object(kind, p);
}
void end_tensor(ts_tensor *t)
{
    if (!ended(t ? TS_OK : ts_error_code() == TS_OK ? TS_ERR_NULL : ts_error_code()))
        return;
    if (t == TS_NONE || ts_tensor_is_dead(t)) /* an argument was returned */
        return;
    check_result(t);
    if (ts_requires_grad(t) && ts_numel(t) < 4096)
        backward_of(t);
}
