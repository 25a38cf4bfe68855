/** @file write_device.c  Writes the tables of idle time and memory, and the command that runs
 * Nsight Compute (ncu). */
// SPDX-License-Identifier: MIT
#include <ctype.h>
#include <fcntl.h>
#include <string.h>

#include "core/error.h"
#include "core/files.h"
#include "include/tessera/program.h"
#include "profile/profile.h"

/** Appends a word of a command, after a space and quoted for a shell if needed. False if `to` may
 * be too small. */
static bool append_word(char *to, size_t size, const char *word)
{
    size_t used = strlen(to), length = strlen(word);
    bool plain = length > 0;
    for (const char *c = word; *c; c++)
        plain = plain && (isalnum((unsigned char)*c) || strchr("_-./=:,+@%", *c));
    if (used + 4 * length + 4 > size)
        return false;
    if (used)
        to[used++] = ' ';
    if (plain) {
        memcpy(to + used, word, length + 1);
        return true;
    }
    to[used++] = '\'';
    for (const char *c = word; *c; c++) {
        if (*c == '\'') {
            memcpy(to + used, "'\\''", 4);
            used += 4;
        } else {
            to[used++] = *c;
        }
    }
    memcpy(to + used, "'", 2);
    return true;
}

void ts_profile_name_program(ts_profile *p)
{
    char text[4096];
    int fd;
    p->command[0] = 0;
    if (ts_open_file("profile_take", "/proc/self/cmdline", O_RDONLY, &fd) != TS_OK) {
        ts_error_clear();
        return;
    }
    ssize_t n = ts_files.pread(fd, text, sizeof text - 1, 0);
    ts_file_close(fd);
    text[n > 0 ? n : 0] = 0;
    for (ssize_t at = 0; at < n; at += (ssize_t)strlen(text + at) + 1)
        if (!append_word(p->command, sizeof p->command, text + at)) {
            p->command[0] = 0; /* too long */
            return;
        }
}

static void print_ncu(const ts_profile *p, FILE *out)
{
    const ts_device_part *d = &p->device;
    char name[600] = "";
    if (!d->kernel[0] || !append_word(name, sizeof name, d->kernel))
        return;
    fprintf(out,
            "\nthe kernel that loses most time, in Nsight Compute:\n"
            "  ncu --set full --kernel-name-base mangled --kernel-name %s --launch-skip %lld "
            "--launch-count 1 %s\n",
            name, (long long)(d->kernel_launches / 2), p->command[0] ? p->command : "PROGRAM");
}

static double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

static void print_idle(const ts_profile *p, FILE *out)
{
    static const char *const what[TS_IDLE_COUNT] = {
        "the host had not queued the next work",
        "the host was in a scope 'data'",
        "the host had waited for the device before",
        "the host allocated or freed device memory",
        "the work was on its way from the host to the device",
        "the work was queued and waited for other work",
        "the usual gap between two kernels",
        "the time of queuing is unknown"};
    const ts_device_part *d = &p->device;
    double all = ts_profile_time(p);
    if (d->idle_ns <= 0)
        return;
    fprintf(out, "\n%-12s %10s %7s  %s\n", "idle", "ms", "device", "cause");
    for (int i = 0; i < TS_IDLE_COUNT; i++)
        if (d->idle[i] > 0)
            fprintf(out, "%-12s %10.3f %6.1f%%  %s\n", ts_idle_names[i], d->idle[i] / 1e6,
                    percent(d->idle[i], all), what[i]);
    if (d->delay_ns > 0)
        fprintf(out, "a kernel begins %.1f us after the call that queues it (median)\n",
                d->delay_ns / 1e3);
    if (d->waits)
        fprintf(out, "the host waits for the device %lld times, %.3f ms in all%s%s\n",
                (long long)d->waits, d->wait_ns / 1e6, d->wait_row[0] ? "; longest in " : "",
                d->wait_row);
    for (int layer = 0; layer < 2; layer++) {
        int printed = 0;
        for (int64_t i = 0; i < p->nexposed && printed < 10; i++) {
            const ts_exposed *e = &p->exposed[i];
            if (e->layer != (layer == 1) || e->ns < 1e-3 * d->idle_ns)
                continue;
            if (!printed++)
                fprintf(out, "\n%-46s %10s %7s\n",
                        layer ? "layer while the device is idle" : "scope while the device is idle",
                        "ms", "device");
            fprintf(out, "%-46.46s %10.3f %6.1f%%\n",
                    e->name[0] ? e->name : layer ? "?" : "(program)", e->ns / 1e6,
                    percent(e->ns, all));
        }
    }
    int printed = 0;
    double least = 0.01 * d->idle_ns;
    for (double below = 1e300; printed < 8; printed++) {
        const ts_entry *next = NULL;
        for (int64_t i = 0; i < p->count; i++)
            if (p->entries[i].idle_ns > least && p->entries[i].idle_ns < below &&
                (!next || p->entries[i].idle_ns > next->idle_ns))
                next = &p->entries[i];
        if (!next)
            break;
        if (!printed)
            fprintf(out, "\n%-46s %10s %7s %9s\n", "call that the idle device waits for", "ms",
                    "device", "delay us");
        fprintf(out, "%-46.46s %10.3f %6.1f%% %9.1f\n", next->call, next->idle_ns / 1e6,
                percent(next->idle_ns, all),
                next->kernels ? next->delay_ns / (double)next->kernels / 1e3 : 0);
        below = next->idle_ns;
    }
}

static void print_memory(const ts_memory_part *m, FILE *out)
{
    if (!m->npoints)
        return;
    fprintf(out, "\nmemory of tensors on %s: peak %.2f MiB after %.3f s", m->device,
            m->peak_bytes / 1048576, m->peak_ns / 1e9);
    fputs(", in recorded and other steps", out);
    if (m->before > 0)
        fprintf(out, "; %.2f MiB were in use before", m->before / 1048576);
    if (m->capacity > 0)
        fprintf(out, "; the device has %.0f MiB", m->capacity / 1048576);
    fputc('\n', out);
    for (int i = TS_OWNERS - 1; i >= 0; i--)
        fprintf(out, "%s%s %.2f MiB (%.0f%%)", i == TS_OWNERS - 1 ? "  " : ", ", ts_owner_names[i],
                m->peak[i] / 1048576, percent(m->peak[i], m->peak_bytes));
    fprintf(out, "\n%-34s %-10s %10s %7s %7s  %s\n", "op at the peak", "for", "MiB", "peak",
            "blocks", "scope");
    for (int64_t i = 0; i < m->nholders; i++)
        fprintf(out, "%-34.34s %-10s %10.3f %6.1f%% %7lld  %s\n", m->holders[i].op,
                ts_owner_names[m->holders[i].owner], m->holders[i].bytes / 1048576,
                percent(m->holders[i].bytes, m->peak_bytes), (long long)m->holders[i].blocks,
                m->holders[i].scope);
    if (m->lost)
        fprintf(out, "INCOMPLETE: %lld allocations are missing from the log, which is full\n",
                (long long)m->lost);
}

void ts_profile_write_device(const ts_profile *p, FILE *out)
{
    if (ts_profile_is_of_device(p)) {
        print_idle(p, out);
        print_ncu(p, out);
    }
    print_memory(&p->memory, out);
}
