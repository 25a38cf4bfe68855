/**
 * @file recorder.h  Events that lower rooms report to the recorder of a trace (tracing/) or of a
 * compiled call (compile/): begin and end of groups of calls, and changes of tensors outside of
 * calls.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_RECORDER_H
#define TS_CORE_RECORDER_H

#include "core/thread.h"

#define TS_NO_REGION UINT32_MAX

/** Callbacks of a recorder. The recorders of traces (tracing/layer.c) and of compiled calls
 *  (compile/notes.c) are structs that begin with a ts_recorder. A recorder receives only the events
 *  of the thread that it records. */
struct ts_recorder {
    /** Starts the region `name`, a group of calls that ends with leave(). TS_NO_REGION if its calls
     *  are not recorded. */
    uint32_t (*enter)(ts_recorder *r, const char *name, const void *site);
    void (*leave)(ts_recorder *r, uint32_t region);
    /** The current call is about to run its composite with layers enabled; the composite's calls
     * are the call's parts. parts() starts a region as enter() does; parts_end() ends it. */
    uint32_t (*parts)(ts_recorder *r, const ts_frame *f);
    void (*parts_end)(ts_recorder *r, uint32_t region, const ts_frame *f);
    /** The current call computed result i, which the caller did not request, to save it for
     *  backward. */
    void (*extra)(ts_recorder *r, int i, ts_tensor *t);
    /** ts_from_array() has created t. */
    void (*constant)(ts_recorder *r, ts_tensor *t);
    /** grad_read: a leaf's gradient is about to be read. grad_set: `grad` has become the
     *  leaf's gradient; NULL: the gradient is about to be removed. */
    void (*grad_read)(ts_recorder *r, ts_tensor *leaf, ts_tensor *grad);
    void (*grad_set)(ts_recorder *r, ts_tensor *leaf, ts_tensor *grad);
    /** The gradient of a leaf that has none was read or removed. */
    void (*grad_absent)(ts_recorder *r, ts_tensor *leaf);
    /** The AUTOGRAD layer is about to make calls on behalf of the current call, such as a copy of a
     *  value that it overwrites. They are recorded before the current call, until the layer
     *  restores the thread's exclude mask. */
    void (*before)(ts_recorder *r);
    bool compiles; /* true: the recorder of a compiled call; false: of a trace */
};

/** Reports an event to the thread's recorder, if there is one. */
#define TS_REPORT_EVENT(thread, event, ...)                                                        \
    do {                                                                                           \
        ts_recorder *ts_receiver = (thread)->recorder;                                             \
        if (TS_UNLIKELY(ts_receiver != NULL))                                                      \
            ts_receiver->event(ts_receiver, __VA_ARGS__);                                          \
    } while (0)

TS_INLINE uint32_t ts_region_enter(const ts_thread *thread, const char *name, const void *site)
{
    ts_recorder *r = thread->recorder;
    return TS_UNLIKELY(r != NULL) ? r->enter(r, name, site) : TS_NO_REGION;
}
TS_INLINE void ts_region_leave(const ts_thread *thread, uint32_t region)
{
    if (TS_UNLIKELY(region != TS_NO_REGION))
        thread->recorder->leave(thread->recorder, region);
}

#endif
