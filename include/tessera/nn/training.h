/**
 * @file training.h  Checkpoints of a training run. ts_training_save() writes the state that the run
 * needs to continue with the same bits. A program calls ts_training_resume() once before its loop
 * of steps, and ts_training_save() after a step.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_TRAINING_H
#define TESSERA_NN_TRAINING_H

#include "amp.h"
#include "ema.h"
#include "loader.h"
#include "optimizer.h"
#include "run.h"

TS_BEGIN_DECLS

/** The parts of a training run, borrowed. The calling thread's random generator is saved and
 *  restored too. */
typedef struct ts_training {
    size_t size;             /**< sizeof(ts_training) */
    ts_module *model;        /**< not NULL */
    ts_optimizer *optimizer; /**< may be NULL */
    ts_loader *loader;       /**< may be NULL */
    int64_t step;            /**< steps done */
    ts_grad_scaler *scaler;  /**< may be NULL */
    const ts_run *run;       /**< the run whose id checkpoints contain; may be NULL */
    ts_ema *ema;             /**< averages of the model; may be NULL */
} ts_training;

/**
 * Writes a checkpoint of the run under dir with ts_checkpoint_save() (io.h). It contains:
 *
 * - the model's parameters and persistent buffers
 * - the optimizer's state and numbers (ts_optimizer_numbers())
 * - the averages and the scaler's numbers
 * - the loader's position; for a file of tokens also the file's path, length and hash
 * - the state of the calling thread's random generator
 * - the run's id
 *
 * Errors: those of ts_checkpoint_save(), ts_module_state_dict(), ts_optimizer_state() and
 * ts_ema_state(), and TS_ERR_VALUE (size).
 */
TS_API ts_status ts_training_save(const ts_training *training, const char *dir);
/**
 * Loads the checkpoint that ts_checkpoint_find() opens under dir into *training, which must
 * have the structure of the saved run. The function reads and verifies the whole checkpoint
 * before it changes *training. Names, sizes or numbers that do not match, and a checkpoint without
 * the scaler's numbers, are TS_ERR_VALUE. If the checkpoint lacks another whole part, such as the
 * averages, or a number of the optimizer, the error is TS_ERR_INDEX. After an error the parts of
 * *training are as before.
 * @param text  receives one line about the loaded checkpoint and the reasons why newer ones were
 *              skipped, with paths escaped, cut to text_size - 1 bytes; may be NULL
 * @return TS_OK; TS_ERR_STATE if there is no checkpoint, if that one does not belong to
 *         training->run, or if training->loader reads another file of tokens than the saved run
 *         (another length or another hash of the first MiB; the path may differ); else an error of
 *         ts_checkpoint_find() or of loading a part
 */
TS_API ts_status ts_training_resume(ts_training *training, const char *dir, char *text,
                                    size_t text_size);

TS_END_DECLS
#endif
