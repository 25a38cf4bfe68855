/** @file fake_cudnn.c  The functions of cuDNN's graph interface that the backend uses, over
 * descriptors that only record their attributes. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/fake_cudnn.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { CONFIG = 3, PLAN = 5, GRAPH = 15, PACK = 16, TENSOR = 17, CONVOLUTION = 1,
       UNSUPPORTED = 3000, FAILED = 5000, MOST = 8 };

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
    static const int64_t bytes_of[] = {8, 4, 1, 8, 4, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 8};
    void *to = name == 902    ? d->sizes
               : name == 903  ? d->strides
               : name == 906  ? (void *)&d->id
               : name == 907  ? (void *)&d->is_virtual
               : name == 104  ? d->after
               : name == 105  ? d->before
               : name == 1000 ? d->ids
               : name == 1001 ? (void *)d->pointers
               : name == 1003 ? (void *)&d->workspace
                              : NULL;
    if (d->finished || n > MOST)
        return FAILED;
    if (to)
        memcpy(to, values, (size_t)(n * bytes_of[type]));
    if (name == 1001 || name == 801)
        d->n = n;
    if (name == 401)
        d->engine = (*(descriptor *const *)values)->engine;
    return 0;
}

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
    case 202:
        for (*n = 0; *n < fake.engines && *n < most; ++*n)
            of[*n]->engine = (int)*n;
        return 0;
    case 300: of[0]->engine = d->engine; return 0;
    case 402: *(int64_t *)values = fake.workspaces[d->engine]; return 0;
    case 1303: return put_notes(fake.notes[d->engine], most, n, values);
    case 1305: return put_notes(fake.behaviors[d->engine], most, n, values);
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
