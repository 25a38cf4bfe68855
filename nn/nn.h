/** @file nn.h  Declarations shared by the files of this room. */
// SPDX-License-Identifier: MIT
#ifndef TS_NN_NN_H
#define TS_NN_NN_H

#include "tessera/tessera.h"

/** A parameter, a buffer or a child of a module. */
typedef struct ts_member {
    char *name;
    ts_tensor *tensor; /* owned reference; NULL for a child */
    ts_tensor **tensor_slot;
    ts_module *child;
    ts_member_kind kind;
} ts_member;

struct ts_module {
    const ts_module_type *given; /* the type passed to ts_module_new(); borrowed */
    ts_module_type type;         /* a copy; fields that *given lacks are 0 */
    ts_module *parent;
    void *payload;
    ts_member *members;
    int nmembers, room;
    struct ts_nn_hook *hooks; /* in the order in which they were added */
    _Atomic int running;      /* by any thread: calls of ts_forward() that have not returned */
    bool training;
};

/** Releases the hooks of a module that is being freed. */
void ts_nn_free_hooks(ts_module *m);

/** Allocates `count` zeroed items of `item` bytes, to be freed with free(); NULL with
 *  TS_ERR_MEMORY. `what` names the memory in the error. */
void *ts_nn_alloc(int64_t count, size_t item, const char *what);
/** True if t is in the list of n tensors. */
bool ts_nn_contains(ts_tensor *const *list, int64_t n, const ts_tensor *t);
/** A copy of text, to be freed with free(); NULL with TS_ERR_MEMORY. */
char *ts_nn_copy_text(const char *text, const char *what);
/** Sets given[i] to the index of own tensor i in names[0..n), or -1 if it is missing. Reports names
 *  that are missing, unexpected or repeated, and sizes that differ; *report must be zeroed. */
void ts_nn_match(const ts_named_tensors *own, const char *const *names, ts_tensor *const *tensors,
                 int64_t n, int64_t *given, ts_load_report *report);

/** Adds the member "dropout" if p is not 0, and stores it in *dropout. */
ts_status ts_nn_add_dropout(ts_module *m, double p, ts_module **dropout);

/** The initial learning rate of a group. */
double ts_nn_initial_lr(const ts_optimizer *o, int group);
/** Norm of all gradients of an optimizer, as by ts_global_norm(); the caller's scope owns it. NULL
 *  with an error. */
ts_tensor *ts_nn_grad_norm(ts_optimizer *o);
/**
 * Makes an optimizer step without a host sync. The tensors are 0-dim, on the parameters' device,
 * and may be NULL.
 * @param norm  norm of the gradients times factor, for clipping; NULL: computed if needed, without
 *              factor
 * @param factor  f32: multiplies gradients as they are read, before clipping
 * @param found   f32: if not 0, the device skips the step and does not count it
 */
ts_status ts_nn_step(ts_optimizer *o, ts_tensor *norm, ts_tensor *factor, ts_tensor *found);

#endif
