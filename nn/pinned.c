/** @file pinned.c  Pinned memory for a loader's batches. It is reused, because allocating and
 * freeing it may wait for all devices. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <stdlib.h>
#include <string.h>

static bool fits(const ts_tensor *t, const int64_t *sizes, int ndim, ts_dtype dtype)
{
    return ts_ndim(t) == ndim && ts_dtype_of(t) == dtype &&
           memcmp(ts_sizes(t), sizes, (size_t)ndim * sizeof *sizes) == 0;
}

ts_status ts_nn_pins_begin(ts_nn_pins *p, int capacity)
{
    pthread_mutex_init(&p->lock, NULL);
    p->entries = ts_nn_alloc(capacity, sizeof *p->entries, "the memory of batches");
    p->capacity = p->entries ? capacity : 0;
    return p->entries ? TS_OK : TS_ERR_MEMORY;
}

void ts_nn_pins_end(ts_nn_pins *p)
{
    for (int i = 0; i < p->n; i++)
        ts_release(p->entries[i].memory);
    if (p->capacity)
        pthread_mutex_destroy(&p->lock);
    free(p->entries);
    *p = (ts_nn_pins){0};
}

ts_tensor *ts_nn_pins_take(ts_nn_pins *p, const int64_t *sizes, int ndim, ts_dtype dtype,
                           ts_device device)
{
    pthread_mutex_lock(&p->lock);
    int at = -1, spare = p->n < p->capacity ? p->n : -1;
    for (int i = 0; i < p->n; i++)
        if (!p->entries[i].used) {
            if (fits(p->entries[i].memory, sizes, ndim, dtype))
                at = i;
            else if (spare < 0)
                spare = i;
        }
    ts_tensor *t = NULL;
    if (at < 0 && (t = ts_empty_pinned(sizes, ndim, dtype, device)) && spare >= 0) {
        at = spare;
        if (at < p->n)
            ts_release(p->entries[at].memory);
        else
            p->n++;
        p->entries[at].memory = ts_retain(t);
    } else if (at >= 0) {
        t = ts_adopt(ts_retain(p->entries[at].memory));
    }
    if (at >= 0)
        p->entries[at].used = true;
    pthread_mutex_unlock(&p->lock);
    return t;
}

void ts_nn_pins_give(ts_nn_pins *p, const ts_tensor *t)
{
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->n && t; i++)
        if (ts_data(p->entries[i].memory) == ts_data(t))
            p->entries[i].used = false;
    pthread_mutex_unlock(&p->lock);
}
