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

/** Options of ts_run_open(). Zero begins a new run; the folder must not contain a run yet. */
typedef struct ts_run_opts {
    size_t size;    /**< sizeof(ts_run_opts) */
    bool resume;    /**< continue the run in the folder */
    bool overwrite; /**< remove the run in the folder, if any, then begin a new one; not with
                         resume */
    /** `noutputs` names, without '/', of further files that the program writes to the folder
     *  besides log.csv, settings.json and checkpoints, such as charts. A new run removes them. */
    const char *const *outputs;
    int noutputs;
} ts_run_opts;

/**
 * Opens a folder for one run. For a new run, makes the folder if it is missing and draws an id,
 * which rows of ts_run_log() and checkpoints of ts_training_save() contain. DIR/run.json has the id
 * and the number of the process. The function locks that file. Children that the process forks
 * share the lock, which lasts until the process and each of these children have called
 * ts_run_close(), executed another program or ended. A file system without locks is not an error.
 * @param dir  1 to 3,796 bytes; the other 300 of a path's 4,096 bytes are for names in the folder
 * @return owned by the caller; NULL with TS_ERR_STATE if another process uses the folder (the
 *         message has its number), if the folder has a run and neither resume nor overwrite is set,
 *         or if there is no run to resume; with TS_ERR_VALUE, TS_ERR_NULL, TS_ERR_IO or
 *         TS_ERR_MEMORY
 */
TS_API ts_run *ts_run_open(const char *dir, const ts_run_opts *opts);
/** The run's id: a random integer from 1 to 2^53 - 1, which a double represents exactly. A resumed
 *  run keeps its id. 0 for NULL. */
TS_API int64_t ts_run_id(const ts_run *run);
/**
 * Stores the settings of a run that must not change when it is resumed, such as options that
 * determine sizes of its model or its batches. For a new run, writes them to DIR/settings.json. For
 * a resumed run, compares the settings that the file has; a missing file is no error.
 * @param names   n names, such as "--batch", of 1 to 63 printable ASCII characters without blanks,
 *                '"' and '\\'
 * @param values  n numbers
 * Errors: TS_ERR_STATE if a setting of the saved run differs (the message has its name and both
 * values), TS_ERR_VALUE (names), TS_ERR_FORMAT (other contents of the file), TS_ERR_NULL,
 * TS_ERR_IO, TS_ERR_MEMORY.
 */
TS_API ts_status ts_run_settings(const ts_run *run, const char *const *names, const int64_t *values,
                                 int n);
/**
 * Opens the log DIR/log.csv: with ts_csv_create() for a new run, with ts_csv_resume() after
 * last_step for a resumed run.
 * @param columns  as for ts_csv_create(), at least 2; the last one must be "run", in which the
 *                 caller writes ts_run_id() to each row
 * @return owned by the caller; NULL with TS_ERR_STATE if a row of the file belongs to another run,
 *         or with an error of these functions
 */
TS_API ts_csv *ts_run_log(const ts_run *run, const char *const *columns, int ncolumns,
                          int64_t last_step);
/** Frees a run and ends this process's share of the lock (see ts_run_open()). NULL-safe. */
TS_API void ts_run_close(ts_run *run);

TS_END_DECLS
#endif
