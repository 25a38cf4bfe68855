/** @file timers_write.c  The timers' report as a table, CSV or JSON. In a build without timers the
 * report has no rows. */
// SPDX-License-Identifier: MIT
#include "dispatch/timers.h"
#include "include/tessera/program.h"

#include <limits.h>
#include <stdlib.h>

static int by_time(const void *a, const void *b)
{
    double x = ((const ts_timer_row *)a)->self_ns, y = ((const ts_timer_row *)b)->self_ns;
    return (x < y) - (x > y);
}

static void print_row(FILE *out, const ts_timer_row *l, double wall)
{
    char thread[16] = "";
    if (l->thread >= 0)
        snprintf(thread, sizeof thread, "%d", l->thread);
    fprintf(out, "%-37s %-12s %6s %12llu %12.3f %10.1f %6.2f%%\n", l->op, l->layer, thread,
            (unsigned long long)l->calls, l->self_ns / 1e6,
            l->calls ? l->self_ns / (double)l->calls : 0.0, 100 * l->self_ns / wall);
}

/** Prints the first `most` rows, the sum of the other rows, and the wall time. */
static void print_table(FILE *out, const ts_timer_rows *all, int most,
                        const ts_timer_totals *totals)
{
    double wall = totals->wall_ns > 0 ? totals->wall_ns : 1;
    char name[32];
    ts_timer_row rest = {name, "", 0, 0, -1};
    fprintf(out, "%-37s %-12s %6s %12s %12s %10s %7s\n", "op", "layer", "thread", "calls",
            "self ms", "ns/call", "% wall");
    for (int i = 0; i < all->count; i++) {
        if (i < most) {
            print_row(out, &all->items[i], wall);
        } else {
            rest.calls += all->items[i].calls;
            rest.self_ns += all->items[i].self_ns;
        }
    }
    if (all->count > most) {
        snprintf(name, sizeof name, "(%d more rows)", all->count - most);
        print_row(out, &rest, wall);
    }
    fprintf(out, "%-37s %-12s %6s %12llu %12.3f\n", "wall", "", "",
            (unsigned long long)totals->calls, totals->wall_ns / 1e6);
}

/** Prints every row with `format`, which takes op, layer, thread, calls and self time in ns;
 *  `between` separates rows. */
static void print_rows(FILE *out, const ts_timer_rows *all, const char *format, const char *between)
{
    for (const ts_timer_row *l = all->items, *end = l + all->count; l < end; l++) {
        fprintf(out, format, l->op, l->layer, l->thread, (unsigned long long)l->calls, l->self_ns);
        fputs(l + 1 < end ? between : "\n", out);
    }
}

static ts_status write_rows(FILE *out, ts_timers_format format, int most)
{
    if (!out)
        return ts_error_set(TS_ERR_NULL, "timers_write: argument 'out': expected a file, got NULL");
    if ((unsigned)format > TS_TIMERS_JSON)
        return ts_error_set(TS_ERR_VALUE,
                            "timers_write: argument 'format': expected a ts_timers_format, got %d",
                            (int)format);
    TS_C_LOCALE;
    ts_timer_rows all = {0};
    ts_timers_rows(&all);
    ts_timer_totals totals = ts_timers_totals();
    if (all.failed) {
        ts_sys_free(all.items);
        return ts_error_memory("the timers' report", 0);
    }
    if (all.count)
        qsort(all.items, (size_t)all.count, sizeof *all.items, by_time);
    if (format == TS_TIMERS_TABLE) {
        print_table(out, &all, most, &totals);
    } else if (format == TS_TIMERS_CSV) {
        fputs("op,layer,thread,calls,self_ns\n", out);
        print_rows(out, &all, "%s,%s,%d,%llu,%.0f", "\n");
    } else {
        fprintf(out,
                "{\"wall_ns\": %.0f, \"overhead_ns\": %.0f, \"unattributed_ns\": %.0f, "
                "\"stamp_ns\": %.2f,\n \"rows\": [\n",
                totals.wall_ns, totals.overhead_ns, totals.unattributed_ns, ts_timers_stamp_ns());
        print_rows(out, &all,
                   "  {\"op\": \"%s\", \"layer\": \"%s\", \"thread\": %d, \"calls\": %llu, "
                   "\"self_ns\": %.0f}",
                   ",\n");
        fputs(" ]}\n", out);
    }
    ts_sys_free(all.items);
    return ferror(out) ? ts_error_set(TS_ERR_IO, "timers_write: writing failed") : TS_OK;
}

ts_status ts_timers_write(FILE *out, ts_timers_format format)
{
    return write_rows(out, format, INT_MAX);
}

ts_status ts_timers_write_top(FILE *out, int rows)
{
    if (rows < 0)
        return ts_error_set(TS_ERR_VALUE,
                            "timers_write_top: argument 'rows': expected at least 0, got %d", rows);
    return write_rows(out, TS_TIMERS_TABLE, rows);
}
