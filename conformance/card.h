/**
 * @file card.h  The score card: counts of test results per op and dtype. The card is in memory
 * shared with forked children, so results survive a crash of a child.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_CONFORMANCE_CARD_H
#define TESSERA_CONFORMANCE_CARD_H

#include <stdatomic.h>
#include <stdio.h>

#include "conformance/drive.h"

/** The property that a test of a sample checks. */
typedef enum ts_part { PART_VALUES, PART_GRADIENTS, PART_ERRORS, PART_COUNT } ts_part;

/** Numbers of tests by result. unsupported: the device refused the call. */
typedef struct ts_score {
    atomic_int passed, failed, unsupported;
} ts_score;

/** Results of one op in one dtype. */
typedef struct ts_cell {
    ts_score parts[PART_COUNT];
    atomic_int round_trips; /* calls that the backend ran on the CPU as fallback */
} ts_cell;

/** Verdict of an (op, dtype), computed by card_verdict(). */
typedef enum ts_verdict {
    NOT_LISTED,  /* no selected sample has this dtype */
    FAIL,        /* a test failed */
    UNSUPPORTED, /* the device refused tests of values and passed none of them, or refused other
                    tests and passed none at all */
    FALLBACK,    /* passed, but the op ran on the CPU */
    PASS,        /* passed on the device */
    SKIPPED,     /* no test passed, failed or was refused */
    VERDICT_COUNT
} ts_verdict;

enum { FAILURES_MOST = 2000, FAILURES_PER_OP = 5, FAILURE_TEXT = 1400 };

/** The text of a failed test. */
typedef struct ts_failure {
    int op;
    ts_dtype dtype;
    ts_part part;
    char text[FAILURE_TEXT];
} ts_failure;

/** Results of one op. */
typedef struct ts_op_row {
    const char *family;  /* NULL: no sample of this op was selected */
    uint16_t listed;     /* bit per dtype that the selected samples have */
    uint8_t rule;        /* ts_slot_rule of the backend's slot */
    atomic_int failures; /* failures noted; texts of the first FAILURES_PER_OP are kept */
    ts_cell cells[TS_DTYPE_COUNT];
} ts_op_row;

typedef struct ts_card {
    char backend[32], device[40], plugin[512]; /* plugin: path, "" for a built-in backend */
    char error[2048];                          /* why judge() failed; "" otherwise */
    int nops;             /* number of rows in `ops`, one per registered op */
    size_t bytes;         /* size of the card in shared memory */
    atomic_int nfailures; /* texts passed to card_note() and within FAILURES_PER_OP; the first
                             FAILURES_MOST are kept */
    ts_failure failures[FAILURES_MOST];
    ts_op_row ops[];
} ts_card;

/** Creates an empty card for the ops registered now, to be freed with card_free(). NULL if memory
 *  runs out; no error is recorded. */
ts_card *card_new(void);
void card_free(ts_card *card);
/** Keeps the text of a failure, up to FAILURES_PER_OP per op. Does not count the failure in a
 *  cell. */
void card_note(ts_card *card, int op, ts_dtype dtype, ts_part part, const char *text);

ts_verdict card_verdict(const ts_card *card, int op, ts_dtype dtype);
const char *verdict_name(ts_verdict verdict);
const char *part_name(ts_part part);
/** Number of (op, dtype) pairs that have this verdict. */
int card_count(const ts_card *card, ts_verdict verdict);
/** True if no (op, dtype) failed and, with strict, none is UNSUPPORTED or FALLBACK. */
bool card_is_good(const ts_card *card, bool strict);

/** Prints the table of totals: number of ops per dtype and verdict. */
void card_print_totals(const ts_card *card, FILE *out);
/** Prints the table of verdicts: a row per op, a column per dtype and one for gradients. */
void card_print_ops(const ts_card *card, FILE *out);
/** The following functions write all cards of a run: as a page of Markdown, as TSV, as JSON. JSON
 *  returns TS_ERR_IO if it cannot be written; for the others the caller checks `out`. */
ts_status cards_write_matrix(ts_card *const *cards, int count, FILE *out);
ts_status cards_write_tsv(ts_card *const *cards, int count, FILE *out);
ts_status cards_write_json(ts_card *const *cards, int count, FILE *out);

#endif
