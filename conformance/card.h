/**
 * @file card.h  The score card: results of the samples per op and dtype. It is in memory shared
 * with forked children, so results survive a crash of a child.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_CONFORMANCE_CARD_H
#define TESSERA_CONFORMANCE_CARD_H

#include <stdatomic.h>
#include <stdio.h>

#include "conformance/drive.h"

/** The property that a sample tests. */
typedef enum ts_part { PART_VALUES, PART_GRADIENTS, PART_ERRORS, PART_COUNT } ts_part;

typedef struct ts_score {
    atomic_int passed, failed, unsupported;
} ts_score;

/** One op in one dtype. */
typedef struct ts_cell {
    ts_score parts[PART_COUNT];
    atomic_int round_trips; /* calls that went to the CPU and back */
} ts_cell;

/** In falling order of precedence, except NOT_LISTED: no sample has this dtype. */
typedef enum ts_verdict {
    NOT_LISTED,
    FAIL,
    UNSUPPORTED,
    FALLBACK,
    PASS,
    SKIPPED,
    VERDICT_COUNT
} ts_verdict;

enum { FAILURES_MOST = 2000, FAILURES_PER_OP = 5, FAILURE_TEXT = 1400 };

typedef struct ts_failure {
    int op;
    ts_dtype dtype;
    ts_part part;
    char text[FAILURE_TEXT];
} ts_failure;

typedef struct ts_op_row {
    const char *family; /* NULL: no sample of this op was selected */
    uint16_t listed;    /* one bit per selected dtype of its samples */
    uint8_t rule;       /* ts_slot_rule of the backend's slot */
    atomic_int failures; /* texts kept */
    ts_cell cells[TS_DTYPE_COUNT];
} ts_op_row;

typedef struct ts_card {
    char backend[32], device[40], plugin[512]; /* plugin is "" without */
    char error[2048];                          /* why the backend could not be opened */
    int nops;
    size_t bytes;
    atomic_int nfailures; /* may exceed FAILURES_MOST */
    ts_failure failures[FAILURES_MOST];
    ts_op_row ops[];
} ts_card;

/** A card for the ops known now; NULL when memory ran out. */
ts_card *card_new(void);
void card_free(ts_card *card);
/** Keeps the text of a failure, unless the op has enough of them. Counts nothing. */
void card_note(ts_card *card, int op, ts_dtype dtype, ts_part part, const char *text);

ts_verdict card_verdict(const ts_card *card, int op, ts_dtype dtype);
const char *verdict_name(ts_verdict verdict);
const char *part_name(ts_part part);
/** Number of (op, dtype) with a verdict. */
int card_count(const ts_card *card, ts_verdict verdict);
/** True if nothing failed and, with strict, nothing was unsupported or ran on the CPU as
 *  fallback. */
bool card_is_good(const ts_card *card, bool strict);

/** The short table of totals: ops per dtype and verdict. */
void card_print_totals(const ts_card *card, FILE *out);
/** All ops and dtypes. */
void card_print_ops(const ts_card *card, FILE *out);
/** A page of ops, dtypes and backends. */
ts_status cards_write_matrix(ts_card *const *cards, int count, FILE *out);
ts_status cards_write_tsv(ts_card *const *cards, int count, FILE *out);
ts_status cards_write_json(ts_card *const *cards, int count, FILE *out);

#endif
