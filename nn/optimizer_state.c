/** @file optimizer_state.c  Step counts, state and hyperparameters of an optimizer, as checkpoints
 *  store them. */
// SPDX-License-Identifier: MIT
#include "nn/optimizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const state_names[3][TS_NN_STATES] = {
    [TS_SGD] = {"momentum_buffer", NULL, "master"},
    [TS_ADAM] = {"exp_avg", "exp_avg_sq", "master"},
    [TS_ADAMW] = {"exp_avg", "exp_avg_sq", "master"},
};

ts_status ts_nn_count_steps(const ts_optimizer *o, int64_t *steps)
{
    TS_SCOPE;
    if (o->n)
        memset(steps, 0, (size_t)o->n * sizeof *steps);
    for (const ts_nn_group *g = o->groups; g < o->groups + o->ngroups; g++) {
        if (g->skipped)
            TS_TRY(ts_copy_to(ts_to(g->skipped, TS_I64), steps + g->first,
                              (size_t)g->n * sizeof *steps));
        for (int64_t i = 0; i < g->n; i++)
            steps[g->first + i] = g->records[i].steps - steps[g->first + i];
    }
    return TS_OK;
}

void ts_nn_set_steps(ts_optimizer *o, const int64_t *steps)
{
    ts_state_changed();
    for (ts_nn_group *g = o->groups; g < o->groups + o->ngroups; g++) {
        for (int64_t i = 0; i < g->n; i++)
            g->records[i].steps = steps[g->first + i];
        ts_release(g->skipped);
        g->skipped = NULL;
    }
}

ts_status ts_optimizer_state(const ts_optimizer *o, ts_named_tensors *list)
{
    TS_TRY(TS_CHECK_OBJECTS(o));
    TS_TRY(TS_CHECK_POINTERS(list));
    *list = (ts_named_tensors){0};
    int64_t count = 1, at = 0;
    size_t bytes = sizeof "steps";
    for (const ts_nn_group *g = o->groups; g < o->groups + o->ngroups; g++)
        for (const ts_nn_record *r = g->records; r < g->records + g->n; r++)
            for (int k = 0; k < TS_NN_STATES; k++)
                if (r->states[k]) {
                    count++;
                    bytes += strlen(state_names[o->kind][k]) + strlen(r->name) + 2;
                }
    TS_SCOPE;
    TS_TRY(ts_nn_count_steps(o, o->lists.steps));
    ts_tensor *steps = ts_from_array(o->lists.steps, TS_I64, &o->n, 1);
    TS_TRY(steps);
    char *block =
        ts_nn_alloc((int64_t)((size_t)count * 2 * sizeof(void *) + bytes), 1, "a list of states");
    if (!block)
        return TS_ERR_MEMORY;
    *list = (ts_named_tensors){count, (const char **)(void *)block,
                               (ts_tensor **)(void *)block + count};
    char *text = block + (size_t)count * 2 * sizeof(void *);
    for (int k = 0; k < TS_NN_STATES; k++)
        for (const ts_nn_group *g = o->groups; g < o->groups + o->ngroups; g++)
            for (const ts_nn_record *r = g->records; r < g->records + g->n; r++) {
                if (!r->states[k])
                    continue;
                list->names[at] = text;
                list->tensors[at++] = ts_retain(r->states[k]);
                text += sprintf(text, "%s.%s", state_names[o->kind][k], r->name) + 1;
            }
    list->names[at] = strcpy(text, "steps");
    list->tensors[at] = ts_retain(steps);
    return TS_OK;
}

/** Checks the whole state, then copies it; on an error nothing changes. own: the current state. */
static ts_status take_state(ts_optimizer *o, const ts_named_tensors *own, const char *const *names,
                            ts_tensor *const *tensors, int64_t n, int64_t *given)
{
    TS_TRY(ts_nn_match_exactly("optimizer_load_state", own, names, tensors, n, given));
    TS_NO_GRAD;
    size_t bytes = (size_t)o->n * sizeof *o->lists.steps;
    TS_TRY(ts_copy_to(tensors[given[own->n - 1]], o->lists.steps, bytes));
    for (int64_t i = 0; i < o->n; i++)
        if (o->lists.steps[i] < 0)
            return ts_error_set(TS_ERR_VALUE,
                                "optimizer_load_state: 'steps': expected numbers of "
                                "at least 0, got %lld",
                                (long long)o->lists.steps[i]);
    for (int64_t i = 0; i < own->n - 1; i++)
        TS_TRY(ts_copy_(own->tensors[i], tensors[given[i]]));
    ts_nn_set_steps(o, o->lists.steps);
    return TS_OK;
}

ts_status ts_optimizer_load_state(ts_optimizer *o, const char *const *names,
                                  ts_tensor *const *tensors, int64_t n)
{
    TS_TRY(TS_CHECK_OBJECTS(o));
    TS_TRY(TS_CHECK_STRINGS(names, n));
    TS_TRY(TS_CHECK_TENSOR_LIST(tensors, n));
    ts_named_tensors own;
    TS_TRY(ts_optimizer_state(o, &own));
    int64_t *given = ts_nn_alloc(own.n, sizeof *given, "a match of names");
    ts_status status = given ? take_state(o, &own, names, tensors, n, given) : TS_ERR_MEMORY;
    free(given);
    ts_named_tensors_free(&own);
    return status;
}

static const struct {
    const char *name;
    size_t offset;
} numbers[] = {
    {"lr", offsetof(ts_nn_group, opts.lr)},
    {"initial_lr", offsetof(ts_nn_group, initial_lr)},
    {"weight_decay", offsetof(ts_nn_group, opts.weight_decay)},
    {"momentum", offsetof(ts_nn_group, opts.momentum)},
    {"dampening", offsetof(ts_nn_group, opts.dampening)},
    {"beta1", offsetof(ts_nn_group, opts.beta1)},
    {"beta2", offsetof(ts_nn_group, opts.beta2)},
    {"eps", offsetof(ts_nn_group, opts.eps)},
};
enum { NUMBERS = sizeof numbers / sizeof numbers[0] };

static void name_number(char *name, size_t size, int group, int k)
{
    snprintf(name, size, "groups.%d.%s", group, numbers[k].name);
}

int64_t ts_optimizer_numbers(const ts_optimizer *o, ts_named_number *out, int64_t capacity)
{
    int64_t at = 0;
    for (int i = 0; o && i < o->ngroups; i++)
        for (int k = 0; k < NUMBERS; k++, at++) {
            if (at >= capacity || !out)
                continue;
            name_number(out[at].name, sizeof out[at].name, i, k);
            out[at].value = *(const double *)((const char *)&o->groups[i] + numbers[k].offset);
        }
    return at;
}

ts_status ts_optimizer_set_number(ts_optimizer *o, const char *name, double value)
{
    char text[48];
    TS_TRY(TS_CHECK_OBJECTS(o));
    TS_TRY(TS_CHECK_POINTERS(name));
    for (int i = 0; i < o->ngroups; i++)
        for (int k = 0; k < NUMBERS; k++) {
            name_number(text, sizeof text, i, k);
            if (strcmp(text, name) != 0)
                continue;
            *(double *)((char *)&o->groups[i] + numbers[k].offset) = value;
            return TS_OK;
        }
    return ts_error_set(TS_ERR_INDEX,
                        "optimizer_set_number: argument 'name': expected the name of a number of "
                        "the optimizer, got '%.200s'", name);
}
