/** @file forms.c  Tests the forms of a call that do not make a new result: out=, in place, META. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"

#include <string.h>

/** Tests out= with destinations in a layout: the results must equal `fresh`. An op that does not
 * fill its results itself may refuse the destinations with an error, but not ignore them. */
static void form_out(ts_case c, ts_tensor *const *fresh, ts_layout layout)
{
    TS_SCOPE;
    int nrets = c.info->nrets;
    ts_made m;
    if (!made_build(&m, &c, NULL))
        return;
    ts_value rets[TS_MAX_RETS];
    ts_tensor *base[TS_MAX_RETS];
    uint32_t version[TS_MAX_RETS];
    c.form = layout == LAYOUT_TRANSPOSED ? "out= transposed"
             : layout == LAYOUT_STRIDED  ? "out= strided"
                                         : "out= offset";
    for (int i = 0; i < nrets; i++) {
        rets[i] = ts_value_none();
        if (!fresh[i])
            continue;
        ts_tensor *place = tensor_make(NULL, ts_dtype_of(fresh[i]), ts_sizes(fresh[i]),
                                       ts_ndim(fresh[i]), layout, c.device, &base[i]);
        if (!place) {
            sample_refused(&c);
            made_free(&m);
            return;
        }
        rets[i] = ts_value_tensor(place);
        version[i] = ts_version(place);
    }
    ts_tensor *given = rets[0].t;
    ts_status status = sample_call(&c, &m, rets);
    const char *wrong = made_intact(&m);
    bool refused = status != TS_OK && c.info->kind != TS_FILL;
    bool good = false;
    if (refused)
        good = strstr(ts_error_message(), c.s->op) != NULL;
    if (status != TS_OK && !good)
        sample_refused(&c);
    else if (!refused && wrong)
        sample_failed(&c, "%s", wrong);
    else if (!refused && rets[0].t != given)
        sample_failed(&c, "the given destination was replaced");
    else
        good = true;
    for (int i = 0; good && !refused && i < nrets; i++) {
        if (!fresh[i])
            continue;
        good = false;
        if (!c.s->undefined && !tensor_equal(rets[i].t, fresh[i]))
            sample_differs(&c, i, "is not what the new form gives");
        else if (tensor_spilled(rets[i].t, base[i]))
            sample_failed(&c, "elements outside result %d changed", i);
        else if (ts_version(rets[i].t) == version[i])
            sample_failed(&c, "the version of result %d did not change", i);
        else
            good = true;
    }
    if (good)
        sample_passed(&c);
    made_free(&m);
}

/** Tests the form whose result 0 is argument 0. An expanded argument 0 must be an error. */
static void form_in_place(ts_case c, ts_tensor *const *fresh)
{
    TS_SCOPE;
    c.form = "in place";
    ts_made m;
    if (!made_build(&m, &c, NULL))
        return;
    ts_made_tensor *self = &m.tensors[0];
    ts_value rets[TS_MAX_RETS] = {ts_value_tensor(self->t)};
    bool overlaps = false;
    for (int d = 0; d < ts_ndim(self->t); d++)
        overlaps |=
            ts_strides(self->t)[d] == 0 && ts_sizes(self->t)[d] > 1 && !ts_is_contiguous(self->t);
    ts_status status = sample_call(&c, &m, rets);
    uint32_t before = self->version;
    if (overlaps) {
        if (status == TS_OK)
            sample_failed(&c, "an expanded destination was accepted");
        else
            sample_passed(&c);
    } else if (status != TS_OK) {
        sample_refused(&c);
    } else {
        self->written = true; /* made_intact() then requires a new version and no write beside it */
        const char *wrong = made_intact(&m);
        if (rets[0].t != self->t)
            sample_failed(&c, "the given destination was replaced");
        else if (wrong)
            sample_failed(&c, "%s", wrong);
        else if (ts_version(self->t) != before + 1)
            sample_failed(&c, "the version went from %u to %u, expected one step", before,
                          ts_version(self->t));
        else if (!tensor_equal(self->t, fresh[0]))
            sample_differs(&c, 0, "is not what the new form gives");
        else
            sample_passed(&c);
    }
    made_free(&m);
}

void sample_form_meta(ts_case c, ts_tensor *const *fresh, int n)
{
    TS_SCOPE;
    c.device = TS_DEVICE_META;
    c.form = "on META";
    ts_made m;
    ts_value rets[TS_MAX_RETS] = {ts_value_none()};
    for (int i = 0; i < TS_MAX_RETS; i++)
        rets[i] = ts_value_none();
    if (!made_build(&m, &c, NULL))
        return;
    ts_tensor *out[TS_MAX_ARGS];
    if (sample_call(&c, &m, rets) != TS_OK) {
        sample_refused(&c);
        made_free(&m);
        return;
    }
    bool good = sample_results(&m, rets, c.info->nrets, out) == n;
    for (int i = 0; good && i < n; i++) {
        if (!out[i] && !fresh[i])
            continue;
        good = out[i] && fresh[i] && ts_ndim(out[i]) == ts_ndim(fresh[i]) &&
               ts_dtype_of(out[i]) == ts_dtype_of(fresh[i]) &&
               ts_device_of(out[i]).backend == TS_KEY_META;
        bool steps = good;
        for (int d = 0; good && d < ts_ndim(out[i]); d++) {
            good = ts_sizes(out[i])[d] == ts_sizes(fresh[i])[d];
            steps = steps &&
                    (ts_sizes(out[i])[d] < 2 || ts_strides(out[i])[d] == ts_strides(fresh[i])[d]);
        }
        if (!good)
            sample_failed(&c, "result %d is %s, on the CPU it is %s", i, meta_text(out[i]),
                          meta_text(fresh[i]));
        else if (!steps && ts_numel(out[i])) {
            good = false;
            sample_failed(&c, "result %d has other strides than on the CPU", i);
        }
    }
    if (good)
        sample_passed(&c);
    made_free(&m);
}

void sample_forms(ts_case c, ts_tensor *const *out, int n)
{
    int nrets = c.info->nrets;
    if (nrets && c.info->kind != TS_VIEW &&
        (c.layout == LAYOUT_CONTIGUOUS || c.layout == LAYOUT_MIXED)) {
        form_out(c, out, LAYOUT_OFFSET);
        form_out(c, out, LAYOUT_STRIDED);
        if (ts_ndim(out[0]) > 1)
            form_out(c, out, LAYOUT_TRANSPOSED);
    }
    if (c.s->inplace)
        form_in_place(c, out);
    if (!c.s->no_meta && on_cpu(c.device))
        sample_form_meta(c, out, n);
}
