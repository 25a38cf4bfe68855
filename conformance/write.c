/** @file write.c  The score card as tables, TSV, JSON and a page of Markdown. */
// SPDX-License-Identifier: MIT
#include "conformance/card.h"

#include <jansson.h>
#include <string.h>

/* ----------------------------------------------------------------------------- tables ---- */

void card_print_totals(const ts_card *card, FILE *out)
{
    static const ts_verdict shown[] = {PASS, FALLBACK, UNSUPPORTED, SKIPPED, FAIL};
    enum { SAMPLES = TS_COUNTOF(shown), COLUMNS };
    static const char heads[] =
        "dtype      pass  fallback  unsupported  skipped      fail   samples";
    static const int widths[COLUMNS] = {9, 10, 13, 9, 10, 10};
    int64_t sums[COLUMNS] = {0};
    char plugin[4 * sizeof card->plugin];
    fprintf(out, "%s%s%s: ops per dtype\n%s\n", card->device, card->plugin[0] ? ", from " : "",
            ts_escape_text(plugin, sizeof plugin, card->plugin), heads);
    for (int d = 0; d <= TS_DTYPE_COUNT; d++) {
        int64_t row[COLUMNS] = {0}, any = 0;
        for (int op = 0; d < TS_DTYPE_COUNT && op < card->nops; op++) {
            ts_verdict v = card_verdict(card, op, (ts_dtype)d);
            for (int k = 0; k < TS_COUNTOF(shown); k++)
                any += row[k] += v == shown[k];
            for (int p = 0; p < PART_COUNT; p++) {
                const ts_score *s = &card->ops[op].cells[d].parts[p];
                row[SAMPLES] += s->passed + s->failed + s->unsupported;
            }
        }
        bool total = d == TS_DTYPE_COUNT;
        if (!total && !any)
            continue;
        fprintf(out, "%-6s", total ? "all" : ts_dtype_name((ts_dtype)d));
        for (int k = 0; k < COLUMNS; k++) {
            fprintf(out, "%*lld", widths[k], (long long)(total ? sums[k] : row[k]));
            sums[k] += row[k];
        }
        fprintf(out, "\n");
    }
}

/** The verdict of an op's gradients, over all dtypes. */
static ts_verdict gradient_verdict(const ts_card *card, int op)
{
    ts_op_description about = {.size = sizeof about};
    int judged = 0, wrong = 0, lacking = 0;
    if (ts_op_describe(op, &about) != TS_OK || !sample_is_differentiable(&about))
        return NOT_LISTED;
    for (int d = 0; d < TS_DTYPE_COUNT; d++) {
        const ts_score *gradients = &card->ops[op].cells[d].parts[PART_GRADIENTS];
        judged += gradients->passed;
        wrong += gradients->failed;
        lacking += gradients->unsupported;
    }
    return wrong ? FAIL : judged ? PASS : lacking ? UNSUPPORTED : NOT_LISTED;
}

/** Prints a row of the table of ops: the op, a cell per dtype, the last cell. */
static void print_row(FILE *out, bool markdown, int width, const char *op,
                      const char *const cells[TS_DTYPE_COUNT + 1])
{
    fprintf(out, "%s%-*s", markdown ? "| " : "", width, op);
    for (int d = 0; d <= TS_DTYPE_COUNT; d++)
        fprintf(out, markdown ? " | %s" : "  %-8s", cells[d]);
    fprintf(out, markdown ? " |\n" : "\n");
}

/** Prints a row per selected op: its verdict per dtype, and the verdict of its gradients. */
static void print_ops(const ts_card *card, FILE *out, bool markdown,
                      const char *const marks[VERDICT_COUNT])
{
    const char *cells[TS_DTYPE_COUNT + 1] = {[TS_DTYPE_COUNT] = "gradient"};
    int width = 0;
    for (int d = 0; d < TS_DTYPE_COUNT; d++)
        cells[d] = ts_dtype_name((ts_dtype)d);
    for (int op = 0; op < card->nops && !markdown; op++)
        if (card->ops[op].family && (int)strlen(ts_op_name(op)) > width)
            width = (int)strlen(ts_op_name(op));
    print_row(out, markdown, width, "op", cells);
    if (markdown) {
        for (int d = 0; d < TS_DTYPE_COUNT + 2; d++)
            fprintf(out, "|:--");
        fprintf(out, "|\n");
    }
    for (int op = 0; op < card->nops; op++) {
        if (!card->ops[op].family)
            continue;
        for (int d = 0; d < TS_DTYPE_COUNT; d++)
            cells[d] = marks[card_verdict(card, op, (ts_dtype)d)];
        cells[TS_DTYPE_COUNT] = marks[gradient_verdict(card, op)];
        print_row(out, markdown, width, ts_op_name(op), cells);
    }
}

void card_print_ops(const ts_card *card, FILE *out)
{
    static const char *const marks[] = {"", "FAIL", "unsupp.", "fallback", "pass", "skipped"};
    print_ops(card, out, false, marks);
}

ts_status cards_write_matrix(ts_card *const *cards, int count, FILE *out)
{
    static const char *const marks[] = {"", "✗", "–", "↺", "✓", "○"};
    fprintf(out, "# Operators, dtypes, backends\n\n"
                 "Written by `ts-conformance --matrix`. ✓ passes, ✗ fails, ↺ passes on the CPU "
                 "(fallback), – unsupported, ○ skipped: no test gave a result, blank: no sample "
                 "has the dtype.\n");
    for (int k = 0; k < count; k++) {
        fprintf(out, "\n## %s\n\n", cards[k]->backend);
        print_ops(cards[k], out, true, marks);
    }
    return TS_OK;
}

ts_status cards_write_tsv(ts_card *const *cards, int count, FILE *out)
{
    fprintf(out, "backend\top\tfamily\tdtype\tverdict");
    for (int p = 0; p < PART_COUNT; p++)
        fprintf(out, "\t%s_passed\t%s_failed\t%s_unsupported", part_name((ts_part)p),
                part_name((ts_part)p), part_name((ts_part)p));
    fprintf(out, "\n");
    for (int k = 0; k < count; k++)
        for (int op = 0; op < cards[k]->nops; op++)
            for (int d = 0; d < TS_DTYPE_COUNT; d++) {
                ts_verdict v = card_verdict(cards[k], op, (ts_dtype)d);
                if (v == NOT_LISTED)
                    continue;
                fprintf(out, "%s\t%s\t%s\t%s\t%s", cards[k]->backend, ts_op_name(op),
                        cards[k]->ops[op].family, ts_dtype_name((ts_dtype)d), verdict_name(v));
                for (int p = 0; p < PART_COUNT; p++) {
                    const ts_score *s = &cards[k]->ops[op].cells[d].parts[p];
                    fprintf(out, "\t%d\t%d\t%d", s->passed, s->failed, s->unsupported);
                }
                fprintf(out, "\n");
            }
    return TS_OK;
}

/* ------------------------------------------------------------------------------- JSON ---- */

static json_t *cell_json(const ts_card *card, int op, ts_dtype dtype)
{
    json_t *cell = json_pack("{s:s}", "verdict", verdict_name(card_verdict(card, op, dtype)));
    for (int p = 0; cell && p < PART_COUNT; p++) {
        const ts_score *s = &card->ops[op].cells[dtype].parts[p];
        json_object_set_new(cell, part_name((ts_part)p),
                            json_pack("{s:i, s:i, s:i}", "passed", s->passed, "failed", s->failed,
                                      "unsupported", s->unsupported));
    }
    return cell;
}

static json_t *card_json(const ts_card *card)
{
    json_t *totals = json_object(), *ops = json_array(), *failures = json_array();
    for (ts_verdict v = FAIL; v < VERDICT_COUNT; v++)
        json_object_set_new(totals, verdict_name(v), json_integer(card_count(card, v)));
    for (int op = 0; op < card->nops; op++) {
        if (!card->ops[op].family)
            continue;
        json_t *dtypes = json_object();
        for (int d = 0; d < TS_DTYPE_COUNT; d++)
            if (card_verdict(card, op, (ts_dtype)d) != NOT_LISTED)
                json_object_set_new(dtypes, ts_dtype_name((ts_dtype)d),
                                    cell_json(card, op, (ts_dtype)d));
        json_array_append_new(ops, json_pack("{s:s, s:s, s:o}", "op", ts_op_name(op), "family",
                                             card->ops[op].family, "dtypes", dtypes));
    }
    for (int i = 0; i < card->nfailures && i < FAILURES_MOST; i++) {
        const ts_failure *f = &card->failures[i];
        json_t *text = json_string(f->text); /* NULL if the cut split a UTF-8 character */
        json_array_append_new(failures,
                              json_pack("{s:s, s:s, s:s, s:o}", "op", ts_op_name(f->op), "dtype",
                                        ts_dtype_name(f->dtype), "part", part_name(f->part), "text",
                                        text ? text : json_string("(not UTF-8)")));
    }
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o}", "backend", card->backend, "device",
                     card->device, "plugin", card->plugin, "totals", totals, "ops", ops, "failures",
                     failures);
}

ts_status cards_write_json(ts_card *const *cards, int count, FILE *out)
{
    json_t *list = json_array();
    for (int k = 0; k < count; k++)
        json_array_append_new(list, card_json(cards[k]));
    json_t *root = json_pack("{s:s, s:o}", "tessera", ts_version_string(), "cards", list);
    bool good = root && json_dumpf(root, out, JSON_INDENT(1)) == 0 && fputc('\n', out) != EOF;
    json_decref(root);
    return good ? TS_OK : ts_error_set(TS_ERR_IO, "the JSON could not be written");
}
