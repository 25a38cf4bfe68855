/** @file page.h  The HTML page that html.c and parts.c write. */
// SPDX-License-Identifier: MIT
#ifndef TS_PROF_PAGE_H
#define TS_PROF_PAGE_H

#include <jansson.h>
#include <stdio.h>
#include <tessera/tessera.h>

enum { OPS_MOST = 256, REGIMES_MOST = 16 };

/** Sums over the rows of one op. */
typedef struct op_sum {
    const char *name;
    double calls, self_ns, flops, bytes, roof_ns, overhead_ns, device_ns;
    struct {
        const char *regime;
        double ns;
    } in[REGIMES_MOST]; /* time by regime; the first without a regime ends the list */
} op_sum;

/** The page that is being written. */
typedef struct page {
    json_t *root;     /* profile.json as an object */
    FILE *out;
    const char *path; /* of the page, for errors */
    op_sum ops[OPS_MOST];
    int nops;
    double wall_ns;
    json_t *device; /* device times; NULL: none */
    double time_ns; /* shares are fractions of it: wall time, or busy and idle time of the device */
} page;

/** A member of an object: 0 or "" if it is missing. */
double number(json_t *object, const char *name);
const char *text(json_t *object, const char *name);
/** Prints text, escaped for HTML. */
void print_text(FILE *out, const char *s);
/** Prints a cell of a table: a dash for zero, negative and infinite values. */
void print_number(FILE *out, double value, int digits);

/** Prints the host time of each layer as a stack and as a table. Error: TS_ERR_MEMORY. */
ts_status print_layers(const page *p);
/** Prints scopes and modules as a tree. The time of a scope includes the scopes inside it. Error:
 *  TS_ERR_MEMORY. */
ts_status print_scopes(const page *p);

#endif
