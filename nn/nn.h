/** @file nn.h  Declarations shared by the files of nn/: modules, steps of optimizers, and the
 * loaders of batches. */
// SPDX-License-Identifier: MIT
#ifndef TS_NN_NN_H
#define TS_NN_NN_H

#include <pthread.h>

#include "tessera/tessera.h"

/** A parameter, a buffer or a child of a module. */
typedef struct ts_member {
    char *name;
    ts_tensor *tensor; /* owned reference; NULL for a child */
    ts_tensor **tensor_slot; /* the caller's variable that holds the tensor; NULL: none */
    ts_module *child;  /* owned; NULL for a tensor */
    ts_member_kind kind;
} ts_member;

struct ts_module {
    const ts_module_type *given; /* the type passed to ts_module_new(); borrowed */
    ts_module_type type;         /* a copy; fields that *given lacks are 0 */
    ts_module *parent;
    int index;                       /* index of this child in parent->members */
    ts_forward_list_fn forward_list; /* NULL: none */
    void *payload;
    ts_member *members;
    int nmembers, capacity;
    struct ts_nn_hook *hooks; /* in the order in which they were added */
    int64_t last_hook;        /* id of the last hook that was added; 0: none yet */
    _Atomic int running;      /* calls of ts_forward() that have not returned, of all threads */
    bool training;
};

/** Returns m if status, that of its construction, is TS_OK; otherwise frees m and returns NULL. */
ts_module *ts_nn_built(ts_module *m, ts_status status);
/** Releases the hooks of a module that is being freed. */
void ts_nn_free_hooks(ts_module *m);

typedef ts_tensor *(*ts_nn_forward_fn)(ts_module *m, ts_tensor *x);
/** Like ts_forward(m, x), with another function in place of the module's own. */
ts_tensor *ts_nn_forward_by(ts_module *m, ts_tensor *x, ts_nn_forward_fn forward);

/** Allocates `count` zeroed items of `item` bytes, to be freed with free(); NULL with
 *  TS_ERR_MEMORY. `what` names the memory in the error. */
void *ts_nn_alloc(int64_t count, size_t item, const char *what);

/** True if t is in the list of n tensors. */
bool ts_nn_contains(ts_tensor *const *list, int64_t n, const ts_tensor *t);
/** A copy of text, to be freed with free(); NULL with TS_ERR_MEMORY. */
char *ts_nn_copy_text(const char *text, const char *what);
/** Finds each tensor of `own` by name: sets given[i], one per own tensor, to its index in
 *  names[0..n). TS_ERR_VALUE, with a message that begins with `function`, unless names, sizes and
 *  dtypes agree. */
ts_status ts_nn_match_exactly(const char *function, const ts_named_tensors *own,
                              const char *const *names, ts_tensor *const *tensors, int64_t n,
                              int64_t *given);
/** Checks the tensors for ts_ema_load_state(). given: as in ts_nn_match_exactly(), with an entry
 *  for each average and for "steps"; NULL if the caller does not need it. */
ts_status ts_nn_ema_check(const ts_ema *ema, const char *const *names, ts_tensor *const *tensors,
                          int64_t n, int64_t *given);
/** Reads all tensors of a file. The caller's scope owns the tensors, and the file owns the names.
 *  The caller frees both arrays by free(list->names), also after an error. */
ts_status ts_nn_read_all(const ts_safetensors *file, ts_named_tensors *list);

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
 * @param norm    norm of the gradients after they are multiplied by factor, for clipping; NULL: if
 *                the optimizer clips, the norm of the gradients as they are
 * @param factor  f32: multiplies the gradients as the step reads them, before clipping
 * @param found   f32: if not 0, the device skips the step and does not count it
 */
ts_status ts_nn_step(ts_optimizer *o, ts_tensor *norm, ts_tensor *factor, ts_tensor *found);

/* ------------------------------------------------------------------------------- loaders ---- */

/** Pinned memory that is reused. Several threads may use it. */
typedef struct ts_nn_pins {
    pthread_mutex_t lock;
    struct {
        ts_tensor *memory; /* owned */
        bool used;
    } *entries; /* n, at most capacity */
    int n, capacity;
} ts_nn_pins;
/** Initialises *p for at most `capacity` tensors. Errors: TS_ERR_MEMORY; ts_nn_pins_end() is then
 *  allowed. */
ts_status ts_nn_pins_begin(ts_nn_pins *p, int capacity);
/** Releases the memory. */
void ts_nn_pins_end(ts_nn_pins *p);
/** Returns a tensor over uninitialised pinned memory for `device`, in the caller's scope; NULL with
 *  an error. If all `capacity` entries are in use, the memory is new and not kept for reuse. */
ts_tensor *ts_nn_pins_take(ts_nn_pins *p, const int64_t *sizes, int ndim, ts_dtype dtype,
                           ts_device device);
/** Returns memory for reuse; t is a tensor over it, or NULL. */
void ts_nn_pins_give(ts_nn_pins *p, const ts_tensor *t);

/** The samples of a batch: entries first .. first + n - 1 of an epoch's order. */
typedef struct ts_nn_draw {
    int64_t first, n, samples; /* samples: number of samples in the epoch */
    uint64_t key;              /* hash of seed and epoch: the key of the permutation */
    bool in_order;             /* true: no permutation */
    ts_device device;
    ts_nn_pins *pins; /* for the memory of batches; NULL: the device is the CPU */
} ts_nn_draw;
/** Index of the batch's entry i in the loader's range (ts_loader_opts.from and to), from 0 to
 *  samples - 1. */
int64_t ts_nn_drawn(const ts_nn_draw *d, int64_t i);
/** Mixes 64 bits to 64 pseudorandom bits (Stafford's Mix13, the finalizer of SplitMix64). */
uint64_t ts_nn_mix(uint64_t x);
/** all * fraction, rounded down; `all` if fraction >= 1. */
int64_t ts_nn_part(int64_t all, double fraction);
/** Returns an uninitialised tensor for a field of a batch, pinned if d->pins is not NULL, in the
 *  caller's scope; NULL with an error. */
ts_tensor *ts_nn_batch_memory(const ts_nn_draw *d, const int64_t *sizes, int ndim, ts_dtype dtype);

/** The source of a loader's samples: a dataset or a file of tokens. */
typedef struct ts_nn_source {
    void *payload;   /* owned; freed by close() */
    char *path;      /* file of tokens; NULL: a dataset. Freed with the loader */
    int64_t bytes;   /* length of that file */
    uint64_t hash;   /* of its first MiB */
    int64_t samples; /* samples per epoch */
    int64_t tokens;  /* tokens in the loader's range (ts_loader_opts.from and to); for a dataset,
                        samples in the range */
    int nfields;     /* tensors of a batch */
    /** Writes the fields of a batch, in the caller's scope. Several threads call it. */
    ts_status (*make)(const void *payload, const ts_nn_draw *d, ts_tensor **fields);
    void (*close)(void *payload);
} ts_nn_source;
/** Checks the options that both kinds of loaders have. TS_ERR_VALUE, TS_ERR_DEVICE. */
ts_status ts_nn_check_loader(ts_check_place at, const ts_loader_opts *o);
/** Makes a loader and starts its threads. Takes ownership of the source, which it closes on
 *  failure. NULL with an error. */
ts_loader *ts_nn_loader_new(const ts_loader_opts *o, const ts_nn_source *source);
/** The source of a loader, borrowed; NULL for NULL. */
const ts_nn_source *ts_nn_loader_source(const ts_loader *l);

#endif
