/** @file unet_model.c  The U-Net as a module of modules, and its loss. */
// SPDX-License-Identifier: MIT
#include <math.h>

#include "unet_model.h"

enum { LEVELS = 5 };

typedef struct unet {
    ts_module *encode[LEVELS], *up[LEVELS], *decode[LEVELS], *pool, *head;
} unet;

static ts_tensor *unet_forward(ts_module *m, ts_tensor *x) // (B, 3, H, W) -> (B, classes, H, W)
{
    unet *u = ts_module_payload(m);
    ts_tensor *skip[LEVELS];
    for (int l = 0; l < LEVELS; l++) {
        TS_SCOPE; // releases the other results of a level early
        skip[l] = x = ts_keep(ts_forward(u->encode[l], l ? ts_forward(u->pool, x) : x));
    }
    for (int l = LEVELS - 2; l >= 0; l--) {
        TS_SCOPE;
        ts_tensor *up = ts_forward(u->up[l], x), *both = ts_cat((ts_tensor *[]){skip[l], up}, 2, 1);
        ts_drop(up), ts_drop(x), ts_drop(skip[l]); // without gradients, their memory becomes free
        x = ts_keep(ts_forward(u->decode[l], both));
    }
    return ts_forward(u->head, x);
}

/** 3x3 convolution, batch norm and ReLU, twice. The momentum of 0.02 averages running statistics
 *  over about 50 batches, because batches are small. */
static ts_module *double_conv(int64_t in, int64_t out)
{
    const ts_conv_opts same = {.size = sizeof same, .padding = {1, 1}};
    const ts_batch_norm_opts slow = {.size = sizeof slow, .momentum = 0.02, .relu = true};
    ts_module *m = ts_sequential_new();
    for (int i = 0; i < 2; i++)
        if (ts_sequential_add(m, ts_conv_new(i ? out : in, out, TS_SIZES(3, 3), false, &same)) ||
            ts_sequential_add(m, ts_batch_norm_new(out, &slow))) {
            ts_module_free(m);
            return NULL;
        }
    return m;
}

/** Initialises the weights of convolutions for ReLUs (He et al. 2015). The default weights are
 *  smaller. Batch norm makes the output independent of their scale, but a step changes smaller
 *  weights relatively more, so training would be noisier. */
static ts_status init_weight(void *ctx, const char *name, ts_tensor *t, ts_member_kind kind)
{
    (void)ctx, (void)name, (void)kind;
    return ts_ndim(t) == 4 ? ts_init_kaiming_normal(t, TS_FAN_IN, sqrt(2)) : TS_OK;
}

ts_module *unet_new(int64_t width, int64_t classes)
{
    static const ts_module_type type = {sizeof type, "UNet", sizeof(unet), unet_forward, NULL};
    const ts_conv_opts twice = {.size = sizeof twice, .stride = {2, 2}};
    ts_module *m = ts_module_new(&type);
    unet *u = ts_module_payload(m);
    bool ok = m != NULL;
    for (int l = 0; l < LEVELS && ok; l++) {
        int64_t n = width << l; // channels
        char name[3][24]; // any int fits
        snprintf(name[0], sizeof *name, "encode%d", l);
        snprintf(name[1], sizeof *name, "up%d", l);
        snprintf(name[2], sizeof *name, "decode%d", l);
        ok = !ts_module_add(m, name[0], double_conv(l ? n / 2 : 3, n), &u->encode[l]) &&
             (l == LEVELS - 1 ||
              (!ts_module_add(m, name[1],
                              ts_conv_transpose_new(2 * n, n, TS_SIZES(2, 2), true, &twice),
                              &u->up[l]) &&
               !ts_module_add(m, name[2], double_conv(2 * n, n), &u->decode[l])));
    }
    if (ok &&
        !ts_module_add(m, "pool", ts_max_pool_new(2, TS_OPTS(ts_pool_opts, .kernel = {2, 2})),
                       &u->pool) &&
        !ts_module_add(m, "head", ts_conv_new(width, classes, TS_SIZES(1, 1), true, NULL),
                       &u->head) &&
        !ts_module_each(m, init_weight, NULL))
        return m;
    ts_module_free(m);
    return NULL;
}

ts_tensor *unet_loss(ts_tensor *logits, ts_tensor *y)
{
    static const int64_t pixels[] = {0, 2, 3};
    ts_tensor *classes = ts_arange(0, ts_size(logits, 1), 1, TS_I64),
              *p = ts_softmax(logits, 1),
              *is = ts_to(ts_eq(ts_unsqueeze(y, 1), ts_reshape(classes, TS_SIZES(1, -1, 1, 1))),
                          TS_F32),
              *both = ts_sum_dims(ts_mul(p, is), pixels, 3, false),
              *sizes = ts_sum_dims(ts_add(p, is), pixels, 3, false),
              *dice = ts_div(ts_mul_scalar(both, 2), ts_add_scalar(sizes, 1));
    return ts_sub(ts_cross_entropy(logits, y), ts_add_scalar(ts_mean(dice), -1));
}
