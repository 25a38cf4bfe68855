/**
 * @file hooks.h  Functions that lower rooms call and upper rooms install.
 *
 * Each room's install function sets its own members. init.c calls the install functions before the
 * first use of the library. If one fails, no operators are registered, so no call reaches a NULL
 * member.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_HOOKS_H
#define TS_CORE_HOOKS_H

#include "core/thread.h"

typedef struct ts_storage ts_storage;

typedef struct ts_hooks {
    /** dispatch/: called when a thread ends, before its heap is released. */
    void (*thread_ended)(ts_thread *thread);
    /** ops/copy.c: a contiguous tensor of dtype with t's values, owned by the caller;
     *  NULL on failure. */
    ts_tensor *(*convert)(ts_tensor *t, ts_dtype dtype);
    /** ops/copy.c: copies values between tensors of the same sizes, of any dtypes and devices;
     *  counts as a write of op. */
    ts_status (*copy_into)(ts_tensor *destination, ts_tensor *source, uint16_t op);
    /** ops/copy.c: runs a call whose argument `arg` (nargs: a given result) is not on the kernel's
     *  device. */
    ts_status (*across)(ts_frame *f, int arg);
    /** autograd/node.c: releases a tensor's node and gradient. */
    void (*release_history)(ts_tensor *t);
    /** compile/lazy.c: runs the recorded calls, which compute t's values. */
    ts_status (*resolve)(ts_tensor *t);
    /** compile/lazy.c: whether the recording of the calling thread holds a reference to s. */
    bool (*holds)(const ts_storage *s);
    /** layers/autocast.c: runs body under the autocast state of an earlier call. */
    ts_status (*run_autocast)(uint32_t state, ts_status (*body)(void *ctx), void *ctx);
    /** layers/autocast.c: forgets the casts of leaves that the calling thread keeps. */
    void (*forget_casts)(void);
} ts_hooks;

extern ts_hooks ts_above;

#endif
