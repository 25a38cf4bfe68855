/** @file fake_cudnn.c  The functions of cuDNN's graph interface that the backend uses, over
 * descriptors that only record their attributes. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/fake_cudnn.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
/** cudnnBackendDescriptorType_t */
enum { CONVOLUTION = 1, PLAN = 5, GRAPH = 15, PACK = 16, TENSOR = 17 };
/** cudnnBackendAttributeName_t */
enum { PADDING_AFTER = 104, PADDING_BEFORE = 105, HEURISTIC_RESULTS = 202, CONFIG_ENGINE = 300,
       PLAN_CONFIG = 401, PLAN_WORKSPACE = 402, GRAPH_OPERATIONS = 801, TENSOR_SIZES = 902,
       TENSOR_STRIDES = 903, TENSOR_ID = 906, TENSOR_VIRTUAL = 907, PACK_IDS = 1000,
       PACK_POINTERS = 1001, PACK_WORKSPACE = 1003, ENGINE_NOTES = 1303, ENGINE_BEHAVIOR = 1305 };
enum { UNSUPPORTED = 3000, FAILED = 5000 }; /* cudnnStatus_t */
enum { MOST = 8 /* entries of a list */ };

typedef struct descriptor {
    int type, engine;
    bool finished;
    int64_t id, n;                        /* tensors: id; packs: number of pointers */
    int64_t sizes[5], strides[5], ids[MOST];
    void *pointers[MOST], *workspace;
    int64_t before[3], after[3];
    bool is_virtual;
} descriptor;

EXPORT fake_cudnn fake = {.version = 90100};

EXPORT size_t cudnnGetVersion(void);
EXPORT const char *cudnnGetErrorString(int status);
EXPORT int cudnnCreate(void **handle);
EXPORT int cudnnSetStream(void *handle, void *stream);
EXPORT int cudnnBackendCreateDescriptor(int type, descriptor **made);
EXPORT int cudnnBackendDestroyDescriptor(descriptor *d);
EXPORT int cudnnBackendSetAttribute(descriptor *d, int name, int type, int64_t n,
                                    const void *values);
EXPORT int cudnnBackendGetAttribute(descriptor *d, int name, int type, int64_t most, int64_t *n,
                                    void *values);
EXPORT int cudnnBackendFinalize(descriptor *d);
EXPORT int cudnnBackendExecute(void *handle, descriptor *plan, descriptor *pack);

size_t cudnnGetVersion(void) { return fake.version; }
const char *cudnnGetErrorString(int status) { return status == FAILED ? "FAKE_FAILED" : "FAKE"; }
int cudnnCreate(void **handle)
{
    *handle = &fake;
    fake.handles++;
    return 0;
}
int cudnnSetStream(void *handle, void *stream)
{
    (void)stream;
    return handle == &fake ? 0 : FAILED;
}

int cudnnBackendCreateDescriptor(int type, descriptor **made)
{
    if (!(*made = calloc(1, sizeof **made)))
        return FAILED;
    (*made)->type = type;
    fake.live++;
    return 0;
}
int cudnnBackendDestroyDescriptor(descriptor *d)
{
    fake.live--;
    free(d);
    return 0;
}

int cudnnBackendSetAttribute(descriptor *d, int name, int type, int64_t n, const void *values)
{
    /* by cudnnBackendAttributeType_t */
    static const int64_t bytes_of[] = {8, 4, 1, 8, 4, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 8};
    void *to = name == TENSOR_SIZES     ? d->sizes
               : name == TENSOR_STRIDES ? d->strides
               : name == TENSOR_ID      ? (void *)&d->id
               : name == TENSOR_VIRTUAL ? (void *)&d->is_virtual
               : name == PADDING_AFTER  ? d->after
               : name == PADDING_BEFORE ? d->before
               : name == PACK_IDS       ? d->ids
               : name == PACK_POINTERS  ? (void *)d->pointers
               : name == PACK_WORKSPACE ? (void *)&d->workspace
                                        : NULL;
    if (d->finished || n > MOST)
        return FAILED;
    if (to)
        memcpy(to, values, (size_t)(n * bytes_of[type]));
    if (name == PACK_POINTERS || name == GRAPH_OPERATIONS)
        d->n = n;
    if (name == PLAN_CONFIG)
        d->engine = (*(descriptor *const *)values)->engine;
    return 0;
}

/** Writes the numbers of the set bits to notes, at most `most`. */
static int put_notes(int bits, int64_t most, int64_t *n, int *notes)
{
    *n = 0;
    for (int i = 0; i < 31 && *n < most; i++)
        if (bits >> i & 1)
            notes[(*n)++] = i;
    return 0;
}

int cudnnBackendGetAttribute(descriptor *d, int name, int type, int64_t most, int64_t *n,
                             void *values)
{
    (void)type;
    descriptor **of = values;
    switch (name) {
    case HEURISTIC_RESULTS:
        for (*n = 0; *n < fake.engines && *n < most; ++*n)
            of[*n]->engine = (int)*n;
        return 0;
    case CONFIG_ENGINE: of[0]->engine = d->engine; return 0;
    case PLAN_WORKSPACE: *(int64_t *)values = fake.workspaces[d->engine]; return 0;
    case ENGINE_NOTES: return put_notes(fake.notes[d->engine], most, n, values);
    case ENGINE_BEHAVIOR: return put_notes(fake.behaviors[d->engine], most, n, values);
    default: return FAILED;
    }
}

int cudnnBackendFinalize(descriptor *d)
{
    d->finished = true;
    if (d->type == TENSOR) {
        memcpy(fake.sizes[d->id], d->sizes, sizeof d->sizes);
        memcpy(fake.strides[d->id], d->strides, sizeof d->strides);
        fake.is_virtual[d->id] = d->is_virtual;
    } else if (d->type == CONVOLUTION) {
        memcpy(fake.before, d->before, sizeof d->before);
        memcpy(fake.after, d->after, sizeof d->after);
    } else if (d->type == GRAPH) {
        fake.operations = d->n;
    }
    return d->type == PLAN && fake.no_plan >> d->engine & 1 ? UNSUPPORTED : 0;
}

int cudnnBackendExecute(void *handle, descriptor *plan, descriptor *pack)
{
    if (handle != &fake || plan->type != PLAN || pack->type != PACK || !pack->finished)
        return FAILED;
    fake.last = plan->engine;
    fake.runs[plan->engine]++;
    for (int64_t i = 0; i < pack->n; i++)
        fake.pointers[pack->ids[i]] = pack->pointers[i];
    fake.workspace = pack->workspace;
    return fake.fails >> plan->engine & 1 ? FAILED : 0;
}
