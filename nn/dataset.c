/** @file dataset.c  Batches of a dataset's samples; datasets of tensors in memory. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <stdlib.h>
#include <string.h>

/** A loader's payload: a dataset and the first sample of the range. */
typedef struct range {
    ts_dataset dataset;
    int64_t first;
} range;

/* -------------------------------------------------------------------------------- batches ---- */

/** An uninitialised batch of n samples: sizes (n, sizes of the sample), with the sample's dtype and
 *  order of dims in memory. NULL with an error. */
static ts_tensor *memory_like(const ts_nn_draw *d, const ts_tensor *sample)
{
    int ndim = ts_ndim(sample);
    int64_t order[TS_MAX_DIMS] = {0}, sizes[TS_MAX_DIMS] = {d->n}, dims[TS_MAX_DIMS] = {0};
    const int64_t *strides = ts_strides(sample);
    for (int i = 0; i < ndim; i++) { /* sorts by stride, the largest first */
        int at = i;
        for (; at > 0 && strides[order[at]] < strides[i]; at--)
            order[at + 1] = order[at];
        order[at + 1] = i;
    }
    for (int i = 1; i <= ndim; i++) {
        sizes[i] = ts_sizes(sample)[order[i]];
        dims[order[i] + 1] = i;
    }
    return ts_permute(ts_nn_batch_memory(d, sizes, ndim + 1, ts_dtype_of(sample)), dims, ndim + 1);
}

static ts_status check_field(const ts_dataset *set, const ts_tensor *t, int f)
{
    if (t == TS_NONE || !t)
        return ts_error_code() != TS_OK && !t
                   ? ts_error_code()
                   : ts_error_set(TS_ERR_NULL, "loader_next: field %d: expected a tensor, got %s",
                                  f,
                                  t ? "none" : "NULL");
    if (ts_device_of(t).backend != 0)
        return ts_error_set(TS_ERR_DEVICE,
                            "loader_next: field %d: expected a tensor on cpu, got %s",
                            f, ts_device_name(ts_device_of(t)));
    if (ts_ndim(t) >= TS_MAX_DIMS)
        return ts_error_set(TS_ERR_SHAPE, "loader_next: field %d of %d: expected at most %d dims, "
                            "got %d", f, set->fields, TS_MAX_DIMS - 1, ts_ndim(t));
    return TS_OK;
}

/** Copies a field of sample i into its batch. */
static ts_status put(ts_tensor *batch, int64_t i, ts_tensor *t, int f)
{
    char wanted[100], got[100];
    size_t ndim = (size_t)ts_ndim(t);
    if (ndim + 1 != (size_t)ts_ndim(batch) || ts_dtype_of(t) != ts_dtype_of(batch) ||
        (ndim && memcmp(ts_sizes(t), ts_sizes(batch) + 1, ndim * sizeof(int64_t)) != 0))
        return ts_error_set(
            ts_dtype_of(t) == ts_dtype_of(batch) ? TS_ERR_SHAPE : TS_ERR_DTYPE,
            "loader_next: field %d: expected %s %s, as in the batch's first sample, got %s %s", f,
            ts_dtype_name(ts_dtype_of(batch)),
            ts_format_sizes(wanted, sizeof wanted, ts_sizes(batch) + 1, ts_ndim(batch) - 1),
            ts_dtype_name(ts_dtype_of(t)),
            ts_format_sizes(got, sizeof got, ts_sizes(t), ts_ndim(t)));
    return TS_STATUS_OF(ts_copy_(ts_select(batch, 0, i), t));
}

static ts_status get_sample(const ts_dataset *set, int64_t index, ts_tensor **sample)
{
    ts_status status = set->get(set->payload, index, sample);
    if (status != TS_OK && ts_error_code() != status)
        return ts_error_set(status, "loader_next: the dataset failed without recording an error");
    for (int f = 0; f < set->fields && status == TS_OK; f++)
        status = check_field(set, sample[f], f);
    return status;
}

/** Copies sample `index` of the dataset to entry i of each field of a batch. Entry 0 makes the
 *  fields. */
static ts_status add_sample(const ts_dataset *set, const ts_nn_draw *d, int64_t i, int64_t index,
                            ts_tensor **fields)
{
    TS_SCOPE;
    ts_tensor *sample[TS_SAMPLE_FIELDS] = {NULL};
    TS_TRY(get_sample(set, index, sample));
    for (int f = 0; f < set->fields; f++) {
        if (i == 0)
            TS_TRY(fields[f] = ts_keep(memory_like(d, sample[f])));
        TS_TRY(put(fields[f], i, sample[f], f));
    }
    return TS_OK;
}

static ts_status make_batch(const void *payload, const ts_nn_draw *d, ts_tensor **fields)
{
    const range *r = payload;
    for (int64_t i = 0; i < d->n; i++) {
        int64_t index = r->first + ts_nn_drawn(d, i);
        ts_rng_set_state((ts_rng_state){ts_nn_mix(d->key ^ ts_nn_mix((uint64_t)index + 1)), 0});
        if (add_sample(&r->dataset, d, i, index, fields) != TS_OK) {
            char sample[40];
            snprintf(sample, sizeof sample, "sample %lld", (long long)index);
            return ts_error_within(sample);
        }
    }
    return TS_OK;
}

ts_loader *ts_loader_new(const ts_dataset *dataset, const ts_loader_opts *opts)
{
    ts_dataset set;
    ts_loader_opts o;
    TS_TRY_NULL(TS_CHECK_OBJECTS(dataset));
    TS_TRY_NULL(TS_CHECK_OPTS(&set, dataset));
    TS_TRY_NULL(TS_CHECK_POINTERS(opts));
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    TS_TRY_NULL(ts_nn_check_loader(TS_CHECK_HERE, &o));
    TS_TRY_NULL(TS_CHECK_POINTERS(set.length, set.get));
    TS_TRY_NULL(TS_CHECK_VALUE(set.fields, set.fields >= 0 && set.fields <= TS_SAMPLE_FIELDS,
                               "0 to 8"));
    set.fields = set.fields ? set.fields : 2;
    int64_t all = set.length(set.payload);
    if (all < 0) {
        if (ts_error_code() == TS_OK)
            ts_error_set(TS_ERR_VALUE, "loader_new: expected a dataset's length of at least 0, got "
                         "%lld", (long long)all);
        return NULL;
    }
    range *r = ts_nn_alloc(1, sizeof *r, "a loader");
    if (!r)
        return NULL;
    *r = (range){set, ts_nn_part(all, o.from)};
    int64_t n = ts_nn_part(all, o.to == 0 ? 1 : o.to) - r->first;
    if (n < 1 || (o.drop_last && n < o.batch)) {
        free(r);
        ts_error_set(TS_ERR_SHAPE,
                     "loader_new: argument 'opts': expected a range with the %lld samples of a "
                     "batch, got %lld of %lld samples", (long long)(o.drop_last ? o.batch : 1),
                     (long long)n, (long long)all);
        return NULL;
    }
    return ts_nn_loader_new(&o, &(ts_nn_source){.payload = r, .samples = n, .tokens = n,
                                                .nfields = set.fields, .make = make_batch,
                                                .close = free});
}

/* ------------------------------------------------------------------------ tensors as data ---- */

typedef struct tensors {
    ts_dataset dataset;
    ts_tensor *fields[TS_SAMPLE_FIELDS];
} tensors;

static int64_t tensors_length(void *payload) { return ts_size(((tensors *)payload)->fields[0], 0); }

static ts_status tensors_get(void *payload, int64_t index, ts_tensor **sample)
{
    tensors *s = payload;
    for (int f = 0; f < s->dataset.fields; f++)
        TS_TRY(sample[f] = ts_select(s->fields[f], 0, index));
    return TS_OK;
}

const ts_dataset *ts_tensor_dataset_new(ts_tensor *const *list, int n)
{
    TS_TRY_NULL(TS_CHECK_VALUE(n, n >= 1 && n <= TS_SAMPLE_FIELDS, "1 to 8"));
    TS_TRY_NULL(ts_check_tensor_list(TS_CHECK_HERE, "tensors", "n", list, n));
    for (int f = 0; f < n; f++) {
        if (ts_device_of(list[f]).backend != 0) {
            ts_error_set(TS_ERR_DEVICE,
                         "tensor_dataset_new: tensor %d: expected one on cpu, got %s",
                         f, ts_device_name(ts_device_of(list[f])));
            return NULL;
        }
        if (!ts_ndim(list[f]) || ts_sizes(list[f])[0] != ts_sizes(list[0])[0]) {
            char got[100];
            ts_error_set(TS_ERR_SHAPE,
                         "tensor_dataset_new: tensor %d: expected tensor 0's first size, got %s",
                         f,
                         ts_format_sizes(got, sizeof got, ts_sizes(list[f]), ts_ndim(list[f])));
            return NULL;
        }
    }
    tensors *s = ts_nn_alloc(1, sizeof *s, "a dataset");
    if (!s)
        return NULL;
    s->dataset = (ts_dataset){sizeof s->dataset, tensors_length, tensors_get, s, n};
    for (int f = 0; f < n; f++)
        s->fields[f] = ts_retain(list[f]);
    return &s->dataset;
}

void ts_tensor_dataset_free(const ts_dataset *dataset)
{
    tensors *s = dataset ? dataset->payload : NULL;
    for (int f = 0; s && f < TS_SAMPLE_FIELDS; f++)
        ts_release(s->fields[f]);
    free(s);
}
