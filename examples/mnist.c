/**
 * @file mnist.c  Trains a convolutional network on the digits of MNIST and prints its accuracy.
 *
 *     mnist --data DIR [--epochs N] [--device auto|cpu|cuda] [--compile] [--save FILE] ...
 */
// SPDX-License-Identifier: MIT
#include <tessera/tessera.h>

enum { CLASSES = 10 };

typedef struct part { // a part of the data, and what is done with it
    const ts_dataset *data;
    ts_loader *loader;
    ts_module *model;        // of both parts
    ts_optimizer *optimizer; // NULL: evaluates without training
    ts_compiled *compiled;   // the step as a compiled function; NULL: eager
} part;

static ts_tensor *flatten(ts_tensor *x) { return ts_flatten(x, 1, -1); } // to (B, C * H * W)

/** Opens the data and makes a model from (B, 1, height, width) to (B, CLASSES). */
static ts_status prepare(part *train, part *test, const char *dir, ts_loader_opts opts)
{
    TS_SCOPE;
    const ts_conv_opts same = {.size = sizeof same, .padding = {1, 1}};
    const ts_group_opts adamw = ts_optimizer_defaults(TS_ADAMW, 1e-3);
    ts_tensor *t[4]; // images (N, height, width) u8 and labels (N), for training and for the test
    TS_TRY(ts_mnist_load(dir, CLASSES, &t[0], &t[1], &t[2], &t[3]));
    int64_t height = ts_size(t[0], 1), width = ts_size(t[0], 2);
    if (height < 4 || width < 4)
        return ts_error_set(TS_ERR_SHAPE, "mnist: expected images of at least 4 x 4 pixels, got "
                            "%lld x %lld", (long long)height, (long long)width);
    TS_TRY(train->data = ts_tensor_dataset_new(t, 2));
    TS_TRY(test->data = ts_tensor_dataset_new(t + 2, 2));
    TS_TRY(train->loader = ts_loader_new(train->data, &opts));
    opts.in_order = true;
    TS_TRY(test->loader = ts_loader_new(test->data, &opts));
    ts_module *m = train->model = test->model = ts_sequential_new();
    for (int64_t in = 1, out = 16; out <= 32; in = out, out *= 2) {
        TS_TRY(ts_sequential_add(m, ts_conv_new(in, out, TS_SIZES(3, 3), true, &same)));
        TS_TRY(ts_sequential_add(m, ts_activation_new("ReLU", ts_relu)));
        TS_TRY(ts_sequential_add(m, ts_max_pool_new(2, TS_OPTS(ts_pool_opts, .kernel = {2, 2}))));
    }
    TS_TRY(ts_sequential_add(m, ts_activation_new("Flatten", flatten)));
    TS_TRY(ts_sequential_add(m, ts_linear_new(32 * (height / 4) * (width / 4), CLASSES, true)));
    return TS_STATUS_OF(train->optimizer = ts_optimizer_for(m, TS_ADAMW, &adamw));
}

/** A step on images in[0] and labels in[1] of B samples. *out: the number of images whose largest
 * logit is the label's, 0-dim. */
static ts_status step(void *ctx, ts_tensor *const *in, int nin, ts_tensor **out, int nout)
{
    (void)nin, (void)nout;
    const part *p = ctx;
    TS_SCOPE;
    ts_tensor *x = ts_to(ts_unsqueeze(in[0], 1), TS_F32), // (B, 1, height, width)
              *logits = ts_forward(p->model, ts_div_scalar(x, 255));
    if (p->optimizer) {
        TS_TRY(ts_backward(ts_cross_entropy(logits, in[1])));
        TS_TRY(ts_optimizer_step(p->optimizer));
        ts_optimizer_zero_grad(p->optimizer);
    }
    return TS_STATUS_OF(*out = ts_keep(ts_sum(ts_eq(ts_argmax_dim(logits, 1, false), in[1]))));
}

/** One pass over the samples. *right: accuracy in %. */
static ts_status epoch(part *p, double *right)
{
    double sum = 0, hits;
    for (int64_t k = ts_loader_batches(p->loader); k > 0; k--, sum += hits) {
        TS_SCOPE;
        ts_batch batch;
        ts_tensor *count;
        TS_TRY(ts_loader_next(p->loader, &batch));
        TS_TRY(p->compiled ? ts_compiled_call(p->compiled, batch.fields, 2, &count, 1)
                           : step(p, batch.fields, 2, &count, 1));
        TS_TRY(ts_item(count, &hits));
    }
    *right = 100 * sum / (double)p->data->length(p->data->payload);
    return TS_OK;
}

int main(int argc, char **argv)
{
    const char *dir = "data/mnist", *device = "auto", *file = NULL;
    int64_t epochs = 2, batch = 64, seed = 1;
    bool compile = false;
    const ts_argument arguments[] = {
        {"--data", "folder of the four files of MNIST, decompressed", .text = &dir, .value = "DIR"},
        {"--epochs", "passes over the images", .number = &epochs, .least = 1, .most = 1000},
        {"--batch", "images per step", .number = &batch, .least = 1, .most = 65536},
        {"--seed", "seed of weights and order of images", .number = &seed, .most = INT64_MAX},
        {"--device", "auto (CUDA or else CPU), cpu, cuda or a device name", .text = &device},
        {"--compile", "run each step as a compiled function", .flag = &compile},
        {"--save", "file for the trained weights", .text = &file, .value = "FILE"},
    };
    int result;
    if (!ts_program_begin(argc, argv, "Trains a network on the digits of MNIST.", arguments,
                          sizeof arguments / sizeof *arguments, &result))
        return result;
    part train = {0}, test = {0};
    ts_loader_opts opts = {.size = sizeof opts, .batch = batch, .seed = (uint64_t)seed};
    ts_compile_opts graph = {.size = sizeof graph, .name = "step", .graph = true, .replay = true};
    ts_manual_seed((uint64_t)seed);
    bool ok = !ts_device_open(device, &opts.device, NULL, 0) &&
              !ts_set_default_device(opts.device) && !prepare(&train, &test, dir, opts) &&
              (!compile || (train.compiled = ts_compile(step, &train, &graph)));
    for (int64_t e = 1; e <= epochs && ok; e++) {
        double trained, tested;
        if ((ok = !epoch(&train, &trained) && !epoch(&test, &tested)))
            printf("epoch %lld: training %.2f %%, test %.2f %%\n", (long long)e, trained, tested);
    }
    ok = ok && (!file || !ts_module_save(train.model, file));
    ts_error_print(); // if there is one
    ts_loader_close(train.loader), ts_loader_close(test.loader);
    ts_tensor_dataset_free(train.data), ts_tensor_dataset_free(test.data);
    ts_compiled_free(train.compiled);
    ts_optimizer_free(train.optimizer), ts_module_free(train.model);
    return ts_program_end(ok ? 0 : 1);
}
