/**
 * @file compare_unet.c
 * Steps of the U-Net of examples/unet_model.h for bench/compare.py: training (forward, cross
 * entropy, backward, AdamW) and inference, under autocast to bf16, on channels-last images.
 */
// SPDX-License-Identifier: MIT
#include <stdlib.h>

#include "compare_steps.h"
#include "examples/unet_model.h"

typedef struct compare_unet {
    ts_module *model;
    ts_optimizer *optimizer;
    ts_tensor *images, *classes; // (B, 3, S, S) f32, (B, S, S) i64
    bool half;                   // the forward runs under autocast to bf16
    compare_steps training, inference;
} compare_unet;

TS_API compare_unet *compare_unet_new(const int64_t *dims, const float *const *values,
                                      const float *images, const int64_t *classes);
TS_API void compare_unet_free(compare_unet *u);
TS_API int compare_unet_compile(compare_unet *u, bool graph, bool replay);
TS_API double compare_unet_run(compare_unet *u, bool train, int turns, double *value);
TS_API double compare_unet_host(const compare_unet *u, bool train);

static ts_tensor *forward(compare_unet *u)
{
    TS_AUTOCAST(ts_device_of(u->images), u->half ? TS_BF16 : TS_DTYPE_NONE);
    return ts_forward(u->model, u->images);
}

static ts_status learn(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)in, (void)n, (void)m;
    compare_unet *u = ctx;
    TS_SCOPE;
    ts_tensor *logits = forward(u), *wide = ts_to(logits, TS_F32),
              *loss = ts_cross_entropy(wide, u->classes);
    ts_drop(logits), ts_drop(wide); /* as temporaries of an expression in Python */
    TS_TRY(ts_backward(loss));
    TS_TRY(ts_optimizer_step(u->optimizer));
    ts_optimizer_zero_grad(u->optimizer);
    return TS_STATUS_OF(*out = ts_keep(ts_detach(loss)));
}

static ts_status infer(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)in, (void)n, (void)m;
    TS_NO_GRAD;
    TS_SCOPE;
    return TS_STATUS_OF(*out = ts_keep(forward(ctx)));
}

static ts_status set_parameters(ts_module *model, const float *const *values)
{
    TS_NO_GRAD;
    ts_named_tensors list;
    ts_status status = ts_module_parameters(model, &list);
    for (int64_t i = 0; i < list.n && status == TS_OK; i++) {
        TS_SCOPE;
        ts_tensor *t = list.tensors[i];
        status = TS_STATUS_OF(
            ts_copy_(t, compare_placed(values[i], TS_F32, ts_sizes(t), ts_ndim(t))));
    }
    ts_named_tensors_free(&list);
    return status;
}

/**
 * Makes a U-Net with its data; NULL after an error. The first call that trains makes the optimizer
 * and its state; PyTorch allocates the state in the first step.
 * @param dims     batch B, side S, channels of the first level, classes; 1 for autocast, else 0
 * @param values   one f32 array per parameter, in the order of ts_module_parameters()
 * @param images   (B, S, S, 3)
 * @param classes  (B, S, S)
 */
compare_unet *compare_unet_new(const int64_t *dims, const float *const *values, const float *images,
                               const int64_t *classes)
{
    compare_unet *u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    TS_SCOPE;
    const int64_t sizes[] = {dims[0], dims[1], dims[1], 3};
    u->half = dims[4];
    u->training = (compare_steps){.run = learn, .ctx = u};
    u->inference = (compare_steps){.run = infer, .ctx = u};
    u->images = ts_retain(ts_permute(compare_placed(images, TS_F32, sizes, 4),
                                     TS_SIZES(0, 3, 1, 2)));
    u->classes = ts_retain(compare_placed(classes, TS_I64, sizes, 3));
    u->model = unet_new(dims[2], dims[3]);
    if (u->images && u->classes && u->model && set_parameters(u->model, values) == TS_OK &&
        ts_module_to_channels_last(u->model) == TS_OK)
        return u;
    compare_unet_free(u);
    return NULL;
}

void compare_unet_free(compare_unet *u)
{
    ts_compiled_free(u->training.compiled);
    ts_compiled_free(u->inference.compiled);
    ts_optimizer_free(u->optimizer);
    ts_module_free(u->model);
    ts_release(u->images);
    ts_release(u->classes);
    free(u);
}

/** Compiles both steps. Returns 0, or 1 after an error. */
int compare_unet_compile(compare_unet *u, bool graph, bool replay)
{
    return compare_steps_compile(&u->training, "U-Net, training", graph, replay, 0) ||
           compare_steps_compile(&u->inference, "U-Net, inference", graph, replay, 0);
}

/** Runs `turns` steps of training or inference and waits after the last; see
 *  compare_steps_run(). */
double compare_unet_run(compare_unet *u, bool train, int turns, double *value)
{
    ts_group_opts adamw = ts_optimizer_defaults(TS_ADAMW, 1e-3);
    if (train && !u->optimizer &&
        !(u->optimizer = ts_optimizer_for(u->model, TS_ADAMW, &adamw)))
        return -1;
    ts_module_train(u->model, train);
    return compare_steps_run(train ? &u->training : &u->inference, turns, true, value);
}

double compare_unet_host(const compare_unet *u, bool train)
{
    return train ? u->training.host_ns : u->inference.host_ns;
}
