/** @file card.c  Counts and verdicts of the score card. */
// SPDX-License-Identifier: MIT
#include "conformance/card.h"

#include <string.h>
#include <sys/mman.h>

ts_card *card_new(void)
{
    size_t bytes = sizeof(ts_card) + (size_t)ts_op_count() * sizeof(ts_op_row);
    ts_card *card = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (card == MAP_FAILED)
        return NULL;
    card->nops = ts_op_count();
    card->bytes = bytes;
    return card;
}

void card_free(ts_card *card)
{
    if (card)
        munmap(card, card->bytes);
}

void card_note(ts_card *card, int op, ts_dtype dtype, ts_part part, const char *text)
{
    if (op < 0 || op >= card->nops ||
        atomic_fetch_add(&card->ops[op].failures, 1) >= FAILURES_PER_OP)
        return;
    int at = atomic_fetch_add(&card->nfailures, 1);
    if (at >= FAILURES_MOST)
        return;
    ts_failure *f = &card->failures[at];
    f->op = op;
    f->dtype = dtype;
    f->part = part;
    snprintf(f->text, sizeof f->text, "%s", text);
}

ts_verdict card_verdict(const ts_card *card, int op, ts_dtype dtype)
{
    const ts_op_row *row = &card->ops[op];
    const ts_cell *cell = &row->cells[dtype];
    int passed = 0, failed = 0, unsupported = 0;
    for (int p = 0; p < PART_COUNT; p++) {
        passed += cell->parts[p].passed;
        failed += cell->parts[p].failed;
        unsupported += cell->parts[p].unsupported;
    }
    if (failed)
        return FAIL;
    if (!row->family || !(row->listed >> dtype & 1))
        return NOT_LISTED;
    const ts_score *values = &cell->parts[PART_VALUES];
    if (unsupported && (values->unsupported ? !values->passed : !passed))
        return UNSUPPORTED;
    if (!passed)
        return SKIPPED;
    return cell->round_trips || row->rule == TS_RULE_FALLBACK || row->rule == TS_RULE_FALLBACK_FIRST
               ? FALLBACK
               : PASS;
}

const char *verdict_name(ts_verdict verdict)
{
    static const char *const names[] = {"", "fail", "unsupported", "fallback", "pass", "skipped"};
    return names[verdict];
}

const char *part_name(ts_part part)
{
    static const char *const names[] = {"values", "gradients", "errors"};
    return names[part];
}

int card_count(const ts_card *card, ts_verdict verdict)
{
    int n = 0;
    for (int op = 0; op < card->nops; op++)
        for (int d = 0; d < TS_DTYPE_COUNT; d++)
            n += card_verdict(card, op, (ts_dtype)d) == verdict;
    return n;
}

bool card_is_good(const ts_card *card, bool strict)
{
    return !card_count(card, FAIL) &&
           !(strict && (card_count(card, UNSUPPORTED) || card_count(card, FALLBACK)));
}
