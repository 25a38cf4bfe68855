/**
 * @file recorder.h  What a recorder of calls above wants to know from the rooms below, besides the
 * calls themselves: which calls belong together, and what changes tensors without being a call.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_RECORDER_H
#define TS_CORE_RECORDER_H

#include "core/thread.h"

#define TS_NO_REGION UINT32_MAX

/** First member of a recorder's own struct. Hears only of the thread whose recorder it is. */
struct ts_recorder {
    /** Calls until leave() are parts of `name`; TS_NO_REGION when they are not recorded. */
    uint32_t (*enter)(ts_recorder *r, const char *name, const void *site);
    void (*leave)(ts_recorder *r, uint32_t region);
    /** The call in flight is about to run its composite with the layers on:
     * its calls are parts of it. */
    uint32_t (*parts)(ts_recorder *r, const ts_frame *f);
    void (*parts_end)(ts_recorder *r, uint32_t region, const ts_frame *f);
    /** Result i of the call in flight was made although the caller does
     * not want it, and is kept. */
    void (*extra)(ts_recorder *r, int i, ts_tensor *t);
    /** A tensor was made from values of the program. */
    void (*constant)(ts_recorder *r, ts_tensor *t);
    /** The gradient of a leaf is about to be read; has got another handle, or NULL. */
    void (*grad_read)(ts_recorder *r, ts_tensor *leaf, ts_tensor *grad);
    void (*grad_set)(ts_recorder *r, ts_tensor *leaf, ts_tensor *grad);
    /** The gradient of a leaf, of which there is none, was asked for or removed. */
    void (*grad_absent)(ts_recorder *r, ts_tensor *leaf);
    /** Calls that are made now, until the thread's exclude mask is put back,
     * stand before the call in flight. */
    void (*before)(ts_recorder *r);
    bool compiles; /* a compiled call's, and no trace's */
};

/** Tells the thread's recorder, if there is one. */
#define TS_TELL(thread, event, ...)                                       \
    do {                                                                  \
        ts_recorder *ts_told = (thread)->recorder;                        \
        if (TS_UNLIKELY(ts_told != NULL))                                 \
            ts_told->event(ts_told, __VA_ARGS__);                         \
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
