/** @file advice.c  Writes the advice of the rules that fire, and reads sizes of products from the
 * text of calls. */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profile/advice.h"

double ts_advice_share(const ts_profile *p, double ns)
{
    double all = ts_profile_time(p);
    return all > 0 ? ns / all : 0;
}

/** Reads the next sizes in *text, such as "(2, 3)", and moves *text to after them. Returns their
 *  number; 0 if there are none, or more than `most`. */
static int read_sizes(const char **text, int64_t *sizes, int most)
{
    const char *at = strchr(*text, '(');
    int n = 0;
    while (at && n < most && (*at == '(' || *at == ',')) {
        char *end;
        sizes[n] = strtoll(at + 1, &end, 10);
        if (end == at + 1)
            break;
        n++;
        at = end;
    }
    *text = at && *at == ')' ? at + 1 : "";
    return at && *at == ')' ? n : 0;
}

bool ts_advice_product(const ts_entry *e, ts_gemm_sizes *sizes)
{
    static const char *const transposed[] = {"linear", "linear_gelu", "linear_backward"};
    static const char *const plain[] = {"mm", "matmul"};
    int64_t a[8], b[8], rows = 1;
    const char *text = strchr(e->call, '(');
    int kind = 0;
    for (size_t i = 0; i < 3; i++)
        kind = strcmp(e->op, transposed[i]) == 0 ? 1 + (i == 2) : kind;
    for (size_t i = 0; i < 2; i++)
        kind = strcmp(e->op, plain[i]) == 0 ? 3 : kind;
    if (!kind || !text)
        return false;
    text++;
    int na = read_sizes(&text, a, 8), nb = read_sizes(&text, b, 8);
    if (!na || !nb || (kind != 2 && nb != 2))
        return false;
    for (int i = 0; i + 1 < na; i++)
        rows *= a[i];
    /* the arguments of linear_backward are the gradient of the result, the input, the weight */
    *sizes = kind == 2 ? (ts_gemm_sizes){rows, a[na - 1], b[nb - 1]}
             : kind == 1 ? (ts_gemm_sizes){rows, a[na - 1], b[0]}
                         : (ts_gemm_sizes){rows, a[na - 1], b[1]};
    return true;
}

/** ts_profile_time(), per step if the profile has steps. */
static double time_per_step(const ts_profile *p)
{
    return ts_profile_time(p) / (double)(p->nsteps ? p->nsteps : 1);
}

void ts_profile_compare_advice(const ts_profile *before, const ts_profile *after, FILE *out)
{
    bool titled = false;
    double longer = time_per_step(before) > 0 ? time_per_step(after) / time_per_step(before) : 0;
    for (size_t i = 0; before->measured && after->measured && i < TS_RULES; i++) {
        ts_advice a = ts_rules[i].ask(before);
        if (!a.fires || a.gain <= 0)
            continue;
        double left = ts_rules[i].ask(after).gain * longer;
        if (!titled)
            fprintf(out, "\n%-6s %8s %8s %8s\n", "advice", "at most", "left", "saved");
        titled = true;
        fprintf(out, "%-6s %7.1f%% %7.1f%% %7.1f%%  %s\n", ts_rules[i].id, 100 * a.gain, 100 * left,
                100 * (a.gain - left), ts_rules[i].what);
    }
    if (titled)
        fprintf(out, "%-6s %8s %8s %7.1f%%\n", "step", "", "", 100 * (1 - longer));
}

int ts_profile_write_advice(const ts_profile *p, FILE *out, bool json)
{
    int fired = 0;
    for (size_t i = 0; p->measured && i < TS_RULES; i++) {
        const ts_rule *r = &ts_rules[i];
        ts_advice a = r->ask(p);
        if (!a.fires)
            continue;
        if (json)
            fprintf(out,
                    "%s\n {\"id\": \"%s\", \"what\": \"%s\", \"evidence\": \"%s\", "
                    "\"gain_at_most\": %.4f}",
                    fired ? "," : "", r->id, r->what, a.evidence, a.gain);
        else
            fprintf(out, "  %-4s %s\n       because %s; gain at most %.0f%%\n", r->id, r->what,
                    a.evidence, 100 * a.gain);
        fired++;
    }
    return fired;
}
