/** @file calls_data.c  Out-of-memory sweeps: datasets and their readers, averages, files of
 * weights. */
// SPDX-License-Identifier: MIT
#include "tests/faults/calls.h"
#include "tests/io/folder.h"
#include "tests/io/png_file.h"

static int64_t four(void *payload) { return (void)payload, 4; }
static ts_status numbered(void *payload, int64_t index, ts_tensor **sample)
{
    (void)payload;
    return TS_STATUS_OF(sample[0] = ts_full(TS_SIZES(3), TS_SCALAR(index), TS_F32));
}

static void sweep_dataset(fault_try *f, bool no_thread)
{
    TS_SCOPE;
    const ts_dataset set = {sizeof set, four, numbered, NULL, 1};
    ts_loader_opts opts = {.size = sizeof opts, .batch = 2, .no_thread = no_thread};
    ts_loader *l = NULL;
    ts_batch batch;
    FAULTY(f, l = ts_loader_new(&set, &opts));
    for (int i = 0; i < 3; i++) {
        FAULTY(f, ts_loader_next(l, &batch));
        fault_see(f, batch.x);
    }
    ts_loader_close(l);
}

CALLS(dataset) { sweep_dataset(f, true); }
CALLS(dataset_with_a_thread) { sweep_dataset(f, false); }

CALLS(tensor_dataset)
{
    TS_SCOPE;
    ts_tensor *t = ts_reshape(ts_arange(0, 12, 1, TS_F32), TS_SIZES(3, 2, 2)), *out[1];
    const ts_dataset *set = NULL;
    FAULTY(f, set = ts_tensor_dataset_new(&t, 1));
    QUIET(f, ts_tensor_dataset_free(set));
    const ts_augment_opts opts = {.size = sizeof opts, .flip = 0.5, .padding = 1, .height = 2,
                                  .brightness = 0.1, .contrast = 0.1, .saturation = 0.1};
    FAULTY(f, (ts_manual_seed(5), ts_augment(&t, 1, &opts, out)));
    fault_see(f, out[0]);
}

static bool is_bias(void *ctx, const char *name, ts_tensor *t)
{
    (void)ctx, (void)name;
    return ts_ndim(t) == 1;
}

CALLS_WITH(averages, 0, IN_FOLDER)
{
    TS_SCOPE;
    ts_manual_seed(4);
    ts_module *m = ts_linear_new(4, 3, true);
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.1);
    ts_optimizer *o = ts_optimizer_new(TS_ADAMW);
    ts_ema *e = NULL;
    ts_named_tensors list = {0};
    FAULTY(f, ts_optimizer_add_group_where(o, m, is_bias, NULL, &opts));
    FAULTY(f, e = ts_ema_new(m, 0.5));
    FAULTY(f, ts_ema_update(e));
    FAULTY(f, ts_ema_swap(e));
    fault_see(f, ts_module_tensor(m, "weight"));
    ck_assert_int_eq(ts_ema_swap(e), TS_OK);
    FAULTY(f, ts_ema_state(e, &list));
    FAULTY(f, ts_ema_load_state(e, list.names, list.tensors, list.n));
    ts_named_tensors_free(&list);
    QUIET(f, ts_ema_free(e));
    FAULTY(f, ts_module_save(m, in_folder("weights")));
    fault_watch_written(f, ts_module_tensor(m, "weight"));
    FAULTY(f, ts_module_load(m, in_folder("weights")));
    fault_unwatch(f);
    ts_optimizer_free(o);
    ts_module_free(m);
}

static ts_tensor *sum_of(ts_module *m, ts_tensor *const *inputs, int n)
{
    (void)m;
    return ts_add(inputs[0], inputs[n - 1]);
}

CALLS(forward_of_a_list)
{
    TS_SCOPE;
    ts_module *m = ts_linear_new(1, 1, true);
    ts_tensor *x[] = {ts_ones(TS_SIZES(2), TS_F32), ts_ones(TS_SIZES(2), TS_F32)};
    QUIET(f, ts_module_set_forward_list(m, sum_of));
    NEW(ts_forward_list(m, x, 2));
    ts_module_free(m);
}

CALLS_WITH(archives, 0, IN_FOLDER)
{
    static const unsigned char deflated[] = {
#include "tests/io/deflated.h"
    };
    static const char *const names[] = {"a", "b"};
    TS_SCOPE;
    ts_tensor *tensors[] = {ts_ones(TS_SIZES(2, 3), TS_F32), ts_t(ts_eye(3, 2, TS_F64))};
    ts_npz *z = NULL;
    FAULTY(f, ts_npz_save(in_folder("a.npz"), names, tensors, 2));
    FAULTY(f, z = ts_npz_open(in_folder("a.npz")));
    QUIET(f, ts_npz_count(z));
    QUIET(f, ts_npz_name(z, 1));
    QUIET(f, ts_npz_find(z, "b"));
    NEW(ts_npz_load(z, "b"));
    QUIET(f, ts_npz_close(z));
    write_file(in_folder("d.npz"), deflated, sizeof deflated);
    z = ts_npz_open(in_folder("d.npz"));
    ts_tensor *t = ts_npz_load(z, "d"); /* loads zlib; a failure of that is no TS_ERR_MEMORY */
    if (t)
        NEW(ts_npz_load(z, "d"));
    ts_npz_close(z);
}

CALLS_WITH(pictures, 0, IN_FOLDER)
{
    TS_SCOPE;
    ts_tensor *t = ts_full(TS_SIZES(3, 2, 4), TS_SCALAR(7), TS_U8);
    if (ts_png_save(in_folder("a.png"), t) != TS_OK)
        return; /* no libpng */
    FAULTY(f, ts_png_save(in_folder("b.png"), t));
    NEW(ts_png_load(in_folder("a.png"), NULL));
    NEW(ts_png_load(in_folder("a.png"), TS_OPTS(ts_png_opts, .channels = 2)));
    static const uint16_t values[3 * 5] = {0, 1, 2, 3, 300, 65535};
    unsigned char *file = malloc(65000);
    write_file(in_folder("c.png"), file,
               png_write(file, &(png_picture){5, 3, 16, 0, true, values}, NULL, 0));
    free(file);
    NEW(ts_png_load(in_folder("c.png"), NULL));
    NEW(ts_png_load(in_folder("c.png"), TS_OPTS(ts_png_opts, .indices = true)));
}

CALLS_WITH(data_sets, 0, IN_FOLDER)
{
    TS_SCOPE;
    char record[3073] = {4};
    ts_tensor *images, *labels;
    write_file(in_folder("idx"), "\0\0\x0b\1\0\0\0\1\1\2", 10);
    NEW(ts_idx_load(in_folder("idx")));
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                            "t10k-images.idx3-ubyte", "t10k-labels-idx1-ubyte"};
        static const unsigned char image[] = {0, 0, 8, 3, [7] = 1, [11] = 1, [15] = 1, [16] = 9},
                                   label[] = {0, 0, 8, 1, [7] = 1, [8] = 3};
        write_file(in_folder(names[i]), i % 2 ? label : image, i % 2 ? sizeof label : sizeof image);
    }
    ts_tensor *tests, *answers;
    FAULTY(f, ts_mnist_load(test_folder, 10, &images, &labels, &tests, &answers));
    fault_see(f, images);
    fault_see(f, answers);
    write_file(in_folder("cifar"), record, sizeof record);
    FAULTY(f, ts_cifar_load(in_folder("cifar"), 10, &images, &labels));
    fault_see(f, labels);
    write_file(in_folder("table"), "1,2\n3,4\n", 8);
    NEW(ts_csv_load(in_folder("table"), NULL));
}
