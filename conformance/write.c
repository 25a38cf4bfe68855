/** @file write.c  The score card as tables, TSV, JSON and a page of Markdown. */
// SPDX-License-Identifier: MIT
#include "conformance/card.h"

#include <jansson.h>
#include <string.h>

/* ----------------------------------------------------------------------------- tables ---- */

ts_status card_print_totals(const ts_card *card, FILE *out)
{
    static const ts_verdict shown[] = {PASS, FALLBACK, UNSUPPORTED, SKIPPED, FAIL};
    const ts_column columns[] = {{.header = "dtype", .align = TS_ALIGN_LEFT}, {.header = "pass"},
                                 {.header = "fallback"},
                                 {.header = "unsupported"}, {.header = "skipped"},
                                 {.header = "fail"},
                                 {.header = "samples"}};
    ts_text_table *table = ts_text_table_new(columns, TS_COUNTOF(columns));
    TS_TRY(table);
    int64_t sums[TS_COUNTOF(columns)] = {0};
    for (int d = 0; d <= TS_DTYPE_COUNT; d++) {
        int64_t row[TS_COUNTOF(columns)] = {0}, any = 0;
        for (int op = 0; d < TS_DTYPE_COUNT && op < card->nops; op++) {
            ts_verdict v = card_verdict(card, op, (ts_dtype)d);
            for (int k = 0; k < TS_COUNTOF(shown); k++)
                any += row[k] += v == shown[k];
            for (int p = 0; p < PART_COUNT; p++) {
                const ts_score *s = &card->ops[op].cells[d].parts[p];
                row[TS_COUNTOF(shown)] += s->passed + s->failed + s->unsupported;
            }
        }
        bool total = d == TS_DTYPE_COUNT;
        if (!total && !any)
            continue;
        if (total)
            ts_text_table_rule(table);
        ts_text_table_text(table, total ? "all" : ts_dtype_name((ts_dtype)d));
        for (int k = 0; k <= TS_COUNTOF(shown); k++) {
            ts_text_table_number(table, (double)(total ? sums[k] : row[k]));
            sums[k] += row[k];
        }
    }
    char plugin[4 * sizeof card->plugin];
    fprintf(out, "%s%s%s: ops per dtype\n", card->device, card->plugin[0] ? ", from " : "",
            ts_escape_text(plugin, sizeof plugin, card->plugin));
    ts_status status = ts_text_table_print(table, out, TS_TEXT_TABLE_TERMINAL);
    ts_text_table_free(table);
    return status;
}

/** One row per selected op: a cell per dtype, and whether gradients were tested. */
static ts_status ops_table(const ts_card *card, FILE *out, ts_text_table_style style,
                           const char *const marks[VERDICT_COUNT])
{
    ts_column columns[TS_DTYPE_COUNT + 2] = {{.header = "op", .align = TS_ALIGN_LEFT}};
    for (int d = 0; d < TS_DTYPE_COUNT; d++)
        columns[1 + d] = (ts_column){.header = ts_dtype_name((ts_dtype)d), .align = TS_ALIGN_LEFT};
    columns[TS_DTYPE_COUNT + 1] = (ts_column){.header = "gradient", .align = TS_ALIGN_LEFT};
    ts_text_table *table = ts_text_table_new(columns, TS_COUNTOF(columns));
    TS_TRY(table);
    for (int op = 0; op < card->nops; op++) {
        const ts_op_row *row = &card->ops[op];
        if (!row->family)
            continue;
        int judged = 0, wrong = 0, lacking = 0;
        ts_text_table_text(table, ts_op_name(op));
        for (int d = 0; d < TS_DTYPE_COUNT; d++) {
            const ts_score *gradients = &row->cells[d].parts[PART_GRADIENTS];
            ts_text_table_text(table, marks[card_verdict(card, op, (ts_dtype)d)]);
            judged += gradients->passed;
            wrong += gradients->failed;
            lacking += gradients->unsupported;
        }
        ts_op_description about = {.size = sizeof about};
        bool differentiable =
            ts_op_describe(op, &about) == TS_OK && sample_is_differentiable(&about);
        ts_text_table_text(table, marks[!differentiable ? NOT_LISTED
                                   : wrong         ? FAIL
                                   : judged        ? PASS
                                   : lacking       ? UNSUPPORTED
                                                   : NOT_LISTED]);
    }
    ts_status status = ts_text_table_print(table, out, style);
    ts_text_table_free(table);
    return status;
}

ts_status card_print_ops(const ts_card *card, FILE *out)
{
    static const char *const marks[] = {"", "FAIL", "unsupp.", "fallback", "pass", "skipped"};
    return ops_table(card, out, TS_TEXT_TABLE_TERMINAL, marks);
}

ts_status cards_write_matrix(ts_card *const *cards, int count, FILE *out)
{
    static const char *const marks[] = {"", "✗", "–", "↺", "✓", "○"};
    fprintf(out, "# Operators, dtypes, backends\n\n"
                 "Written by `ts-conformance --matrix`. ✓ passes, ✗ fails, ↺ passes by way of the "
                 "CPU, – unsupported, ○ no sample can judge it there, blank: no sample has the "
                 "dtype.\n");
    for (int k = 0; k < count; k++) {
        fprintf(out, "\n## %s\n\n", cards[k]->backend);
        TS_TRY(ops_table(cards[k], out, TS_TEXT_TABLE_MARKDOWN, marks));
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
        json_t *text = json_string(f->text); /* NULL when a cut fell into a character */
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
