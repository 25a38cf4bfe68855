/**
 * @file run.h  A folder that belongs to one training run: only one process writes to it, and files
 * of different runs are never mixed.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_RUN_H
#define TESSERA_NN_RUN_H

#include "../report.h"

TS_BEGIN_DECLS

/** A run and the lock on its folder. */
typedef struct ts_run ts_run;

/** Options of ts_run_open(); zero is a new run in a folder without one. */
typedef struct ts_run_opts {
    size_t size;    /**< sizeof(ts_run_opts) */
    bool resume;    /**< continue the run in the folder */
    bool overwrite; /**< remove the run in the folder, then begin a new one */
    /** Files in the folder that the program writes besides log.csv and checkpoints, such as charts;
     *  overwriting a run removes them. */
    const char *const *outputs;
    int noutputs;
} ts_run_opts;

/**
 * Opens a folder for one run. A new run makes the folder if it is missing and gets an id, which
 * rows of ts_run_log() and checkpoints of ts_training_save() contain. DIR/run.json holds the id and
 * the number of the process; a lock on it lasts until ts_run_close() or the end of the process and
 * of children that it forked meanwhile. A file system without locks is no error.
 * @return NULL with TS_ERR_STATE if another process uses the folder (the message has its number),
 *         if the folder has a run and neither option is set, or if there is no run to resume
 */
TS_API ts_run *ts_run_open(const char *dir, const ts_run_opts *opts);
/** A random number from 1 to 2^53 - 1, so that a double holds it; kept by a resumed run. */
TS_API int64_t ts_run_id(const ts_run *run);
/**
 * The log DIR/log.csv: created by a new run, cut after last_step by a resumed run.
 * @param columns    of ts_csv_create(); the last one must be "run", where each row has ts_run_id()
 * @return owned by the caller; NULL with TS_ERR_STATE if a row of the file belongs to another run
 */
TS_API ts_csv *ts_run_log(const ts_run *run, const char *const *columns, int ncolumns,
                          int64_t last_step);
/** Releases the folder. NULL-safe. */
TS_API void ts_run_close(ts_run *run);

TS_END_DECLS
#endif
