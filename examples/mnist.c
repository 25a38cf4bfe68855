/**
 * @file mnist.c
 * Trains a small convolutional network on the digits of MNIST and prints its accuracy.
 *
 *     mnist --data DIR [--epochs N] [--device auto|cpu|cuda] [--compile] [--save FILE] ...
 *
 * DIR contains train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
 * t10k-labels-idx1-ubyte, decompressed.
 */
// SPDX-License-Identifier: MIT
#include <tessera/tessera.h>

enum { CLASSES = 10 };

static ts_tensor *flatten(ts_tensor *x) // (B, C, H, W) -> (B, C * H * W)
{
    return ts_reshape(x, TS_SIZES(ts_size(x, 0), -1));
}

/** (B, 1, height, width) -> (B, CLASSES) */
static ts_module *network(int64_t height, int64_t width)
{
    const ts_conv_opts same = {.size = sizeof same, .padding = {1, 1}};
    const ts_pool_opts half = {.size = sizeof half, .kernel = {2, 2}};
    ts_module *m = ts_sequential_new();
    bool ok = m != NULL;
    for (int64_t in = 1, out = 16; out <= 32; in = out, out *= 2)
        ok = ok && !ts_sequential_add(m, ts_conv_new(in, out, TS_SIZES(3, 3), true, &same)) &&
             !ts_sequential_add(m, ts_activation_new("ReLU", ts_relu)) &&
             !ts_sequential_add(m, ts_max_pool_new(2, &half));
    if (ok && !ts_sequential_add(m, ts_activation_new("Flatten", flatten)) &&
        !ts_sequential_add(m, ts_linear_new(32 * (height / 4) * (width / 4), CLASSES, true)))
        return m;
    ts_module_free(m);
    return NULL;
}

/** A dataset of the images and labels in two files of `dir` whose names begin with `part`. *images:
 *  (N, H, W) u8, in the caller's scope. NULL on failure; else freed by ts_tensor_dataset_free(). */
static const ts_dataset *read_part(const char *dir, const char *part, ts_tensor **images)
{
    char path[2][4096];
    snprintf(path[0], sizeof path[0], "%s/%s-images-idx3-ubyte", dir, part);
    snprintf(path[1], sizeof path[1], "%s/%s-labels-idx1-ubyte", dir, part);
    ts_tensor *y = ts_to(ts_idx_load(path[1]), TS_I64);
    *images = ts_idx_load(path[0]);
    return *images && y ? ts_tensor_dataset_new((ts_tensor *[]){*images, y}, 2) : NULL;
}

typedef struct classifier {
    ts_module *m;
    ts_optimizer *o; // NULL: evaluates without training
} classifier;

/** A step over images in[0], (B, height, width) u8, and labels in[1], (B). *out: the number of
 * images whose largest logit is the label's, 0-dim. */
static ts_status step(void *ctx, ts_tensor *const *in, int nin, ts_tensor **out, int nout)
{
    (void)nin, (void)nout;
    const classifier *c = ctx;
    TS_SCOPE;
    ts_tensor *x = ts_to(ts_unsqueeze(in[0], 1), TS_F32), // (B, 1, height, width)
              *logits = ts_forward(c->m, ts_div_scalar(x, 255));
    if (c->o) {
        TS_TRY(ts_backward(ts_cross_entropy(logits, in[1])));
        TS_TRY(ts_optimizer_step(c->o));
        ts_optimizer_zero_grad(c->o);
    }
    *out = ts_keep(ts_sum(ts_eq(ts_argmax_dim(logits, 1, false), in[1])));
    return TS_STATUS_OF(*out);
}

/** One pass over the samples. compiled: the step of c, or NULL for eager steps. *right: accuracy
 * in %. */
static ts_status epoch(classifier *c, ts_compiled *compiled, ts_loader *loader, double *right)
{
    double all = 0, sum = 0;
    for (int64_t k = ts_loader_batches(loader); k > 0; k--) {
        TS_SCOPE;
        ts_batch batch;
        double hits;
        TS_TRY(ts_loader_next(loader, &batch));
        ts_tensor *in[] = {batch.x, batch.y}, *count;
        TS_TRY(compiled ? ts_compiled_call(compiled, in, 2, &count, 1)
                        : step(c, in, 2, &count, 1));
        TS_TRY(ts_item(count, &hits));
        sum += hits, all += (double)ts_numel(batch.y);
    }
    *right = 100 * sum / all;
    return TS_OK;
}

int main(int argc, char **argv)
{
    const char *dir = "data/mnist", *device = "auto", *file = NULL;
    int64_t epochs = 2, batch = 64, seed = 1;
    bool compile = false;
    const ts_argument arguments[] = {
        {"--data", "folder of the four IDX files", .text = &dir, .value = "DIR"},
        {"--epochs", "passes over the images", .number = &epochs, .least = 1, .most = 1000},
        {"--batch", "images per step", .number = &batch, .least = 1, .most = 65536},
        {"--seed", "seed of weights and order of images", .number = &seed, .most = INT64_MAX},
        {"--device", "auto (CUDA or else CPU), cpu, cuda or a device name", .text = &device},
        {"--compile", "run each step as a compiled function", .flag = &compile},
        {"--save", "file for the trained weights", .text = &file, .value = "FILE"},
    };
    int status;
    if (!ts_program_begin(argc, argv, "Trains a network on the digits of MNIST.", arguments,
                          sizeof arguments / sizeof *arguments, &status))
        return status;
    TS_SCOPE;
    ts_loader_opts opts = {.size = sizeof opts, .batch = batch, .seed = (uint64_t)seed};
    ts_group_opts adamw = ts_optimizer_defaults(TS_ADAMW, 1e-3);
    ts_tensor *images, *tests;
    const ts_dataset *train = NULL, *test = NULL;
    ts_loader *batches = NULL, *held_out = NULL;
    ts_module *m = NULL;
    ts_optimizer *o = NULL;
    ts_manual_seed((uint64_t)seed);
    bool opened = ts_device_open(device, &opts.device, NULL, 0) == TS_OK;
    bool ok = opened && (train = read_part(dir, "train", &images)) &&
         (test = read_part(dir, "t10k", &tests));
    if (opened && !ok)
        fprintf(stderr, "mnist: '%s' must have the four files of MNIST, decompressed\n", dir);
    ok = ok && ts_set_default_device(opts.device) == TS_OK &&
         (m = network(ts_size(images, 1), ts_size(images, 2))) &&
         (o = ts_optimizer_for(m, TS_ADAMW, &adamw)) && (batches = ts_loader_new(train, &opts)) &&
         (opts.in_order = true, held_out = ts_loader_new(test, &opts));
    classifier training = {m, o}, testing = {m, NULL};
    ts_compiled *compiled = NULL;
    ok = ok && (!compile || (compiled = ts_compile(step, &training,
                                                   TS_OPTS(ts_compile_opts, .name = "step",
                                                           .graph = true, .replay = true))));
    for (int64_t e = 1; e <= epochs && ok; e++) {
        double trained, tested;
        if ((ok = !epoch(&training, compiled, batches, &trained) &&
                  !epoch(&testing, NULL, held_out, &tested)))
            printf("epoch %lld: training %.2f %%, test %.2f %%\n", (long long)e, trained, tested);
    }
    ok = ok && (!file || ts_module_save(m, file) == TS_OK);
    if (!ok)
        ts_error_print();
    ts_loader_close(batches), ts_loader_close(held_out);
    ts_tensor_dataset_free(train), ts_tensor_dataset_free(test);
    ts_compiled_free(compiled);
    ts_optimizer_free(o), ts_module_free(m);
    return ts_program_end(ok ? 0 : 1);
}
