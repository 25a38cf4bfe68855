/** @file parts.c  The page's tables of layers, and of scopes and modules. */
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "page.h"

/* A sum over rows: of a layer, or of a scope and the scopes inside it. */
typedef struct part_sum {
    char *name;
    double calls, self_ns, device_ns;
} part_sum;

typedef struct part_sums {
    part_sum *all;
    size_t count, capacity;
} part_sums;

/** Adds a row to the sum of this name, which is made if it does not exist. */
static bool add_part(part_sums *s, const char *name, size_t length, json_t *row, bool counts)
{
    size_t k = 0;
    while (k < s->count && (strncmp(s->all[k].name, name, length) != 0 || s->all[k].name[length]))
        k++;
    if (k == s->capacity) {
        part_sum *grown = realloc(s->all, (2 * s->capacity + 64) * sizeof *grown);
        if (!grown)
            return false;
        s->all = grown;
        s->capacity = 2 * s->capacity + 64;
    }
    if (k == s->count) {
        s->all[k] = (part_sum){.name = strndup(name, length)};
        if (!s->all[k].name)
            return false;
        s->count++;
    }
    s->all[k].calls += counts ? number(row, "calls") : 0;
    s->all[k].self_ns += number(row, "self_ns");
    s->all[k].device_ns += number(row, "device_ns");
    return true;
}

static void free_parts(part_sums *s)
{
    for (size_t k = 0; k < s->count; k++)
        free(s->all[k].name);
    free(s->all);
}

static int by_self_time(const void *a, const void *b)
{
    double x = ((const part_sum *)a)->self_ns, y = ((const part_sum *)b)->self_ns;
    return (x < y) - (x > y);
}

/** Compares paths so that a scope is followed by the scopes inside it. */
static int by_path(const void *a, const void *b)
{
    const char *x = ((const part_sum *)a)->name, *y = ((const part_sum *)b)->name;
    while (*x && *x == *y)
        x++, y++;
    return (*x == '/' ? 1 : (unsigned char)*x) - (*y == '/' ? 1 : (unsigned char)*y);
}

/** Prints a row of a table. hue: of the key before the name; -1: no key. */
static void print_part(const page *p, const part_sum *s, const char *name, int depth, int hue)
{
    fprintf(p->out, "<tr><td style=\"padding-left:%.1fem\">", 0.6 + 1.2 * depth);
    if (hue >= 0)
        fprintf(p->out, "<span class=key style=\"background:hsl(%d 45%% 45%%)\"></span> ", hue);
    print_text(p->out, name);
    fputs("</td>", p->out);
    print_number(p->out, s->calls, 0);
    print_number(p->out, s->self_ns / 1e6, 2);
    print_number(p->out, 100 * s->self_ns / p->wall_ns, 1);
    if (p->device) {
        print_number(p->out, s->device_ns / 1e6, 2);
        print_number(p->out, 100 * s->device_ns / p->time_ns, 1);
    }
    fputs("</tr>\n", p->out);
}

static int hue_of(size_t k) { return (int)((210 + 67 * k) % 360); }

ts_status print_layers(const page *p)
{
    part_sums s = {0};
    bool good = true;
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(p->root, "rows"), i, row) {
        const char *layer = text(row, "layer");
        layer = layer[0] == '-' ? text(row, "op") : layer;
        good = good && add_part(&s, layer, strlen(layer), row, true);
    }
    if (s.count)
        qsort(s.all, s.count, sizeof *s.all, by_self_time);
    fputs("<h2>Layers</h2>\n<div class=bar>", p->out);
    for (size_t k = 0; k < s.count; k++)
        fprintf(p->out, "<span style=\"width:%.2f%%;background:hsl(%d 45%% 45%%)\"></span>",
                100 * s.all[k].self_ns / p->wall_ns, hue_of(k));
    fprintf(p->out, "</div>\n<table><tr><th>layer<th>calls<th>self ms<th>%% of wall%s</tr>\n",
            p->device ? "<th>device ms<th>% of device" : "");
    for (size_t k = 0; k < s.count; k++)
        print_part(p, &s.all[k], s.all[k].name, 0, hue_of(k));
    fputs("</table>\n", p->out);
    free_parts(&s);
    return good ? TS_OK : TS_ERR_MEMORY;
}

ts_status print_scopes(const page *p)
{
    part_sums s = {0};
    bool good = true;
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(p->root, "rows"), i, row) {
        const char *scope = text(row, "scope");
        for (const char *end = scope; *end; end += *end == '/') {
            end += strcspn(end, "/");
            good = good && add_part(&s, scope, (size_t)(end - scope), row,
                                    json_is_true(json_object_get(row, "kernel")));
        }
    }
    if (s.count) {
        qsort(s.all, s.count, sizeof *s.all, by_path);
        fprintf(p->out,
                "<h2>Scopes and modules</h2><table><tr><th>scope, with those inside it<th>calls of "
                "kernels<th>ms<th>%% of wall%s</tr>\n",
                p->device ? "<th>device ms<th>% of device" : "");
    }
    for (size_t k = 0; k < s.count; k++) {
        const char *name = strrchr(s.all[k].name, '/');
        int depth = 0;
        for (const char *c = s.all[k].name; *c; c++)
            depth += *c == '/';
        print_part(p, &s.all[k], name ? name + 1 : s.all[k].name, depth, -1);
    }
    fputs(s.count ? "</table>\n" : "", p->out);
    free_parts(&s);
    return good ? TS_OK : TS_ERR_MEMORY;
}
