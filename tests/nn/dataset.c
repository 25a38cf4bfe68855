/** @file dataset.c  Datasets, the batches that loaders make of them, and ts_augment(). */
// SPDX-License-Identifier: MIT
#include "include/tessera/nn/loader.h"
#include "tests/dispatch/common.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SAMPLES = 103 };

/** Sample i: (2, 3) f32 of i, and a random number, i64 (). */
static int64_t count(void *payload) { return payload ? *(int64_t *)payload : SAMPLES; }
static ts_status numbered(void *payload, int64_t index, ts_tensor **sample)
{
    (void)payload;
    for (int64_t i = index % 5; i > 0; i--) /* so that threads finish out of order */
        sched_yield();
    sample[0] = ts_full(TS_SIZES(2, 3), TS_SCALAR((double)index), TS_F32);
    return TS_STATUS_OF(sample[1] = ts_select(ts_randint(TS_SIZES(1), 0, INT64_C(1) << 40), 0, 0));
}
static const ts_dataset numbers = {sizeof numbers, count, numbered, NULL, 0};

static ts_loader_opts options(int workers)
{
    return (ts_loader_opts){.size = sizeof(ts_loader_opts), .batch = 8, .seed = 3,
                            .workers = workers, .no_thread = !workers};
}

static int64_t number_of(const ts_batch *b, int64_t i)
{
    return (int64_t)((const float *)ts_data(b->x))[6 * i];
}

TS_TEST(each_epoch_has_each_sample_once_in_another_order, .threads = true)
{
    ts_loader_opts o = options(3);
    ts_loader *l = ts_loader_new(&numbers, &o);
    OK(l);
    ck_assert_int_eq(ts_loader_batches(l), 13);
    ck_assert_int_eq(ts_loader_tokens(l), SAMPLES);
    int64_t order[2][SAMPLES] = {{0}};
    for (int epoch = 0; epoch < 2; epoch++) {
        bool seen[SAMPLES] = {false};
        for (int64_t k = 0, at = 0; k < 13; k++) {
            TS_SCOPE;
            ts_batch b;
            OK(ts_loader_next(l, &b));
            ck_assert(b.epoch == epoch && b.index == k);
            ck_assert_int_eq(ts_size(b.x, 0), k < 12 ? 8 : 7);
            ck_assert_int_eq(ts_ndim(b.x), 3);
            ck_assert(b.fields[0] == b.x && b.fields[1] == b.y && b.fields[2] == TS_NONE);
            for (int64_t i = 0; i < ts_size(b.x, 0); i++) {
                int64_t n = order[epoch][at++] = number_of(&b, i);
                ck_assert(n >= 0 && n < SAMPLES && !seen[n]);
                seen[n] = true;
            }
        }
    }
    ck_assert_mem_ne(order[0], order[1], sizeof order[0]);
    ts_loader_close(l);
}

static void same(ts_tensor *a, ts_tensor *b)
{
    ck_assert_int_eq(ts_numel(a), ts_numel(b));
    ck_assert_mem_eq(ts_data(a), ts_data(b),
                     (size_t)ts_numel(a) * ts_dtype_size(ts_dtype_of(a)));
}

TS_TEST(batches_do_not_depend_on_threads_or_on_the_place_of_resuming, .threads = true)
{
    ts_loader_opts o[3] = {options(0), options(1), options(4)};
    ts_loader *l[3];
    for (int i = 0; i < 3; i++)
        OK(l[i] = ts_loader_new(&numbers, &o[i]));
    ts_rng_state before = ts_rng_get_state();
    for (int turn = 0; turn < 60; turn++) {
        TS_SCOPE;
        ts_batch b[3];
        if (turn % 7 == 6) /* while threads prepare batches */
            for (int i = 0; i < 3; i++)
                OK(ts_loader_set_state(l[i], (ts_loader_state){turn % 3, turn * 5 % 13}));
        for (int i = 0; i < 3; i++)
            OK(ts_loader_next(l[i], &b[i]));
        for (int i = 1; i < 3; i++) {
            same(b[0].x, b[i].x);
            same(b[0].y, b[i].y); /* random numbers, too */
        }
    }
    ts_rng_state after = ts_rng_get_state();
    ck_assert(before.seed == after.seed && before.offset == after.offset);
    for (int i = 0; i < 3; i++)
        ts_loader_close(l[i]);
}

TS_TEST(random_numbers_of_a_sample_change_with_the_epoch)
{
    ts_loader_opts o = options(0);
    o.in_order = true;
    ts_loader *l = ts_loader_new(&numbers, &o);
    TS_SCOPE;
    ts_batch a, b;
    OK(ts_loader_next(l, &a));
    OK(ts_loader_set_state(l, (ts_loader_state){1, 0}));
    OK(ts_loader_next(l, &b));
    ck_assert_int_eq(number_of(&a, 3), 3);
    ck_assert_int_eq(number_of(&b, 3), 3);
    const int64_t *first = ts_data(a.y), *second = ts_data(b.y);
    for (int i = 0; i < 8; i++)
        ck_assert_int_ne(first[i], second[i]);
    ts_loader_close(l);
}

TS_TEST(ranges_and_last_batches_follow_the_options)
{
    ts_loader_opts o = options(0);
    o.in_order = o.drop_last = true, o.from = 0.5, o.to = 1;
    ts_loader *l = ts_loader_new(&numbers, &o);
    TS_SCOPE;
    ts_batch b;
    ck_assert_int_eq(ts_loader_batches(l), 6); /* of 52 samples */
    OK(ts_loader_next(l, &b));
    ck_assert_int_eq(number_of(&b, 0), 51);
    ts_loader_close(l);
}

/* A dataset whose sample 5 is an error until `mended` is set. */
static atomic_bool mended;
static ts_status failing(void *payload, int64_t index, ts_tensor **sample)
{
    if (index == 5 && !atomic_load(&mended))
        return payload ? TS_ERR_IO
                       : ts_error_set_hint(TS_ERR_FORMAT, "mend it", "sample five is broken");
    return numbered(NULL, index, sample);
}
static int64_t few(void *payload) { return (void)payload, 16; }

TS_TEST(a_failure_names_the_sample_and_loses_no_batch, .threads = true, .loop = 2)
{
    const ts_dataset set = {sizeof set, few, failing, NULL, 2};
    ts_loader_opts o = options(_i);
    o.in_order = true;
    atomic_store(&mended, false); /* before the loader's threads start */
    ts_loader *l = ts_loader_new(&set, &o);
    TS_SCOPE;
    ts_batch b;
    for (int i = 0; i < 3; i++) {
        FAILS(TS_ERR_FORMAT, ts_loader_next(l, &b));
        SAYS("sample five is broken (in sample 5)");
        ck_assert_str_eq(ts_error_hint(), "mend it");
    }
    atomic_store(&mended, true);
    ts_status status; /* a batch prepared before may still fail */
    while ((status = ts_loader_next(l, &b)) != TS_OK)
        ck_assert_int_eq(status, TS_ERR_FORMAT);
    ck_assert_int_eq(b.index, 0);
    ts_loader_close(l);
}

static ts_status uneven(void *payload, int64_t index, ts_tensor **sample)
{
    int kind = *(int *)payload;
    bool odd = index == 3;
    sample[1] = ts_zeros(TS_SIZES(1), TS_F32);
    switch (kind) {
    case 0: sample[0] = ts_zeros(TS_SIZES(odd ? 3 : 2), TS_F32); break;
    case 1: sample[0] = ts_zeros(TS_SIZES(2), odd ? TS_F64 : TS_F32); break;
    case 2: sample[0] = odd ? TS_NONE : ts_zeros(TS_SIZES(2), TS_F32); break;
    case 3: sample[0] = odd ? NULL : ts_zeros(TS_SIZES(2), TS_F32); break;
    case 4:
        sample[0] = ts_empty_on(TS_SIZES(2), TS_F32, odd ? TS_DEVICE_META : TS_DEVICE_CPU);
        break;
    case 5: return odd ? TS_ERR_IO : numbered(NULL, index, sample);
    default: sample[0] = ts_zeros((int64_t[]){1, 1, 1, 1, 1, 1, 1, 1}, 8, TS_F32);
    }
    return TS_OK;
}

TS_TEST(samples_that_do_not_fit_are_errors, .loop = 7)
{
    static const struct {
        ts_status code;
        const char *text;
    } wanted[] = {{TS_ERR_SHAPE, "expected f32 (2), as in the batch's first sample, got f32 (3)"},
                  {TS_ERR_DTYPE, "got f64 (2)"},
                  {TS_ERR_NULL, "field 0: expected a tensor, got none"},
                  {TS_ERR_NULL, "got NULL"},
                  {TS_ERR_DEVICE, "expected a tensor on cpu, got meta"},
                  {TS_ERR_IO, "without recording an error"},
                  {TS_ERR_SHAPE, "at most 7 dims, got 8"}};
    const ts_dataset set = {sizeof set, few, uneven, &_i, 2};
    ts_loader_opts o = options(0);
    o.in_order = true;
    ts_loader *l = ts_loader_new(&set, &o);
    ts_batch b;
    FAILS(wanted[_i].code, ts_loader_next(l, &b));
    SAYS(wanted[_i].text);
    ts_loader_close(l);
}

static int64_t no_length(void *payload) { return (void)payload, -1; }

TS_TEST(datasets_and_options_are_checked)
{
    ts_dataset set = numbers;
    ts_loader_opts o = options(0);
    int64_t none = 0;
    FAILS(TS_ERR_NULL, ts_loader_new(NULL, &o));
    FAILS(TS_ERR_NULL, ts_loader_new(&set, NULL));
    set.get = NULL;
    FAILS(TS_ERR_NULL, ts_loader_new(&set, &o));
    set = numbers, set.fields = 9;
    FAILS(TS_ERR_VALUE, ts_loader_new(&set, &o));
    set = numbers, set.length = no_length;
    FAILS(TS_ERR_VALUE, ts_loader_new(&set, &o));
    SAYS("length of at least 0, got -1");
    set = numbers, set.payload = &none;
    FAILS(TS_ERR_SHAPE, ts_loader_new(&set, &o));
    o.batch = SAMPLES + 1, o.drop_last = true;
    FAILS(TS_ERR_SHAPE, ts_loader_new(&numbers, &o));
    SAYS("the 104 samples of a batch, got 103 of 103 samples");
    o = options(257);
    FAILS(TS_ERR_VALUE, ts_loader_new(&numbers, &o));
    SAYS("'workers'");
    o = options(1), o.ahead = 1025;
    FAILS(TS_ERR_VALUE, ts_loader_new(&numbers, &o));
    o = options(1), o.device = TS_DEVICE_META;
    FAILS(TS_ERR_DEVICE, ts_loader_new(&numbers, &o));
    o = options(1), o.device = (ts_device){7, 0};
    FAILS(TS_ERR_DEVICE, ts_loader_new(&numbers, &o));
}

TS_TEST(a_forked_child_continues_with_the_same_batches, .threads = true)
{
#ifdef __SANITIZE_ADDRESS__
    TS_SKIP("a child may inherit a lock of AddressSanitizer's allocator that a worker holds");
#endif
    ts_loader_opts o = options(2);
    ts_loader *l = ts_loader_new(&numbers, &o);
    TS_SCOPE;
    ts_batch a, b;
    OK(ts_loader_next(l, &a));
    pid_t child = fork();
    OK(ts_loader_next(l, &b));
    if (child == 0) {
        bool right = b.index == 1 && number_of(&b, 0) >= 0;
        ts_loader_close(l);
        _exit(right ? 40 + (int)(number_of(&b, 0) % 40) : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 40 + (int)(number_of(&b, 0) % 40));
    ts_loader_close(l);
}

TS_TEST(tensors_in_memory_are_a_dataset_and_keep_their_layout)
{
    TS_SCOPE;
    ts_tensor *images = ts_permute(ts_reshape(ts_arange(0, 10 * 4 * 5 * 3, 1, TS_F32),
                                              TS_SIZES(10, 4, 5, 3)), TS_SIZES(0, 3, 1, 2)),
              *labels = ts_arange(0, 10, 1, TS_I64);
    const ts_dataset *set = ts_tensor_dataset_new((ts_tensor *[]){images, labels}, 2);
    OK(set);
    ts_loader_opts o = options(2);
    o.batch = 4;
    ts_loader *l = ts_loader_new(set, &o);
    OK(l);
    for (int k = 0; k < 3; k++) {
        ts_batch b;
        OK(ts_loader_next(l, &b));
        ck_assert_int_eq(ts_strides(b.x)[1], 1); /* channels-last, as the images */
        ck_assert_int_eq(ts_strides(b.x)[3], 3);
        for (int64_t i = 0; i < ts_size(b.y, 0); i++)
            same(ts_contiguous(ts_select(b.x, 0, i)),
                 ts_contiguous(ts_select(images, 0, ((const int64_t *)ts_data(b.y))[i])));
    }
    ts_loader_close(l);
    ts_tensor_dataset_free(set);
    ts_tensor_dataset_free(NULL);
    ts_tensor *uneven_pair[] = {images, ts_zeros(TS_SIZES(9), TS_F32)};
    FAILS(TS_ERR_SHAPE, ts_tensor_dataset_new(uneven_pair, 2));
    SAYS("tensor 1");
    FAILS(TS_ERR_VALUE, ts_tensor_dataset_new(&images, 0));
    FAILS(TS_ERR_DEVICE, ts_tensor_dataset_new(
                             (ts_tensor *[]){ts_empty_on(TS_SIZES(2), TS_F32, TS_DEVICE_META)}, 1));
}

/* -------------------------------------------------------------------------------- images ---- */

/** (2, 4, 6) f32 of 0, 1/48, ... */
static ts_tensor *ramp(void)
{
    return ts_div_scalar(ts_reshape(ts_arange(0, 48, 1, TS_F32), TS_SIZES(2, 4, 6)), 48);
}
static double at(ts_tensor *t, int64_t y, int64_t x)
{
    double value;
    while (ts_ndim(t) > 2)
        t = ts_select(t, 0, 0);
    OK(ts_item(ts_select(ts_select(t, 0, y), 0, x), &value));
    return value;
}

TS_TEST(flips_are_exact_and_the_same_for_all_images)
{
    TS_SCOPE;
    ts_tensor *mask = ts_reshape(ts_arange(0, 24, 1, TS_I64), TS_SIZES(4, 6)),
              *images[] = {ramp(), mask}, *out[2];
    OK(ts_augment(images, 2, TS_OPTS(ts_augment_opts, .flip = 1), out));
    OK(ts_augment(out, 2, TS_OPTS(ts_augment_opts, .flip_vertical = 1), out));
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 6; x++) {
            ck_assert(at(out[0], y, x) == at(images[0], 3 - y, 5 - x));
            ck_assert(at(out[1], y, x) == at(mask, 3 - y, 5 - x));
        }
    ck_assert_int_eq(ts_dtype_of(out[1]), TS_I64);
    int flipped = 0;
    ts_manual_seed(1);
    for (int i = 0; i < 1000; i++) {
        TS_SCOPE;
        OK(ts_augment(images, 1, TS_OPTS(ts_augment_opts, .flip = 0.25), out));
        flipped += at(out[0], 0, 0) != at(images[0], 0, 0);
    }
    ck_assert(flipped > 200 && flipped < 300);
    OK(ts_augment(images, 1, NULL, out));
    same(out[0], images[0]);
}

TS_TEST(crops_reach_each_place_and_mirror_beyond_the_ends)
{
    TS_SCOPE;
    ts_tensor *mask = ts_reshape(ts_arange(0, 24, 1, TS_I64), TS_SIZES(4, 6)), *out[1];
    int tops = 0, lefts = 0; /* bits: offsets that occurred */
    ts_manual_seed(7);
    for (int i = 0; i < 400; i++) {
        TS_SCOPE;
        OK(ts_augment(&mask, 1, TS_OPTS(ts_augment_opts, .padding = 2, .height = 3, .width = 5),
                      out));
        ck_assert_int_eq(ts_size(out[0], 0), 3);
        ck_assert_int_eq(ts_size(out[0], 1), 5);
        int found = 0;
        for (int top = -2; top <= 3; top++)
            for (int left = -2; left <= 3; left++) {
                bool equal = true;
                for (int y = 0; y < 3; y++)
                    for (int x = 0; x < 5; x++) {
                        int r = abs(top + y), c = abs(left + x);
                        r = r > 3 ? 6 - r : r, c = c > 5 ? 10 - c : c;
                        equal = equal && at(out[0], y, x) == 6 * r + c;
                    }
                if (equal)
                    found++, tops |= 1 << (top + 2), lefts |= 1 << (left + 2);
            }
        ck_assert_int_eq(found, 1);
    }
    ck_assert_int_eq(tops, 63);
    ck_assert_int_eq(lefts, 63);
}

TS_TEST(colours_change_by_their_formulas_within_0_to_1)
{
    static const float weights[] = {0.299F, 0.587F, 0.114F};
    ts_tensor *image = ts_uniform_on(TS_SIZES(3, 8, 8), 0.3, 0.6, TS_F32, TS_DEVICE_CPU), *out;
    const float *x = ts_data(image);
    double first = -1, mean = 0;
    bool varied = false;
    for (int i = 0; i < 192; i++)
        mean += (double)(weights[i / 64] * x[i]) / 64;
    ts_manual_seed(3);
    for (int turn = 0; turn < 100; turn++) {
        TS_SCOPE;
        OK(ts_augment(&image, 1, TS_OPTS(ts_augment_opts, .brightness = 0.5), &out));
        const float *y = ts_data(out);
        double factor = (double)y[0] / (double)x[0];
        ck_assert(factor > 0.499 && factor < 1.501);
        varied |= first >= 0 && factor != first;
        first = factor;
        for (int i = 0; i < 192; i++)
            ck_assert_double_eq_tol((double)y[i], factor * (double)x[i], 1e-6);
        OK(ts_augment(&image, 1, TS_OPTS(ts_augment_opts, .contrast = 0.5), &out));
        y = ts_data(out);
        factor = ((double)y[0] - mean) / ((double)x[0] - mean);
        for (int i = 0; i < 192; i++)
            ck_assert_double_eq_tol((double)y[i], mean + factor * ((double)x[i] - mean), 1e-4);
        OK(ts_augment(&image, 1, TS_OPTS(ts_augment_opts, .saturation = 1), &out));
        y = ts_data(out);
        for (int i = 0; i < 64; i++) { /* a pixel keeps its grey value */
            double before = 0, after = 0;
            for (int c = 0; c < 3; c++)
                before += (double)(weights[c] * x[64 * c + i]),
                    after += (double)(weights[c] * y[64 * c + i]);
            ck_assert_double_eq_tol(before, after, 1e-5);
        }
    }
    ck_assert(varied);
    ts_tensor *bright = ts_full(TS_SIZES(1, 2, 2), TS_SCALAR(0.9), TS_F32);
    for (int turn = 0; turn < 20; turn++) {
        OK(ts_augment(&bright, 1, TS_OPTS(ts_augment_opts, .brightness = 1), &out));
        ck_assert(at(out, 0, 0) >= 0 && at(out, 0, 0) <= 1);
    }
}

TS_TEST(wrong_images_and_options_of_changes_are_named)
{
    TS_SCOPE;
    ts_tensor *image = ramp(), *small = ts_zeros(TS_SIZES(4, 5), TS_I64), *out[2],
              *both[] = {image, small}, *bytes = ts_zeros(TS_SIZES(3, 4, 4), TS_U8);
    FAILS(TS_ERR_SHAPE, ts_augment(both, 2, NULL, out));
    SAYS("image 1: expected the height and width of image 0, (4, 6)");
    FAILS(TS_ERR_VALUE, ts_augment(&image, 1, TS_OPTS(ts_augment_opts, .flip = 1.5), out));
    FAILS(TS_ERR_VALUE, ts_augment(&image, 1, TS_OPTS(ts_augment_opts, .height = -1), out));
    FAILS(TS_ERR_SHAPE, ts_augment(&image, 1, TS_OPTS(ts_augment_opts, .padding = 4), out));
    FAILS(TS_ERR_SHAPE, ts_augment(&image, 1, TS_OPTS(ts_augment_opts, .width = 7), out));
    FAILS(TS_ERR_DTYPE, ts_augment(&bytes, 1, TS_OPTS(ts_augment_opts, .contrast = 0.1), out));
    FAILS(TS_ERR_SHAPE, ts_augment(&small, 1, TS_OPTS(ts_augment_opts, .contrast = 0.1), out));
    FAILS(TS_ERR_VALUE, ts_augment(&image, 0, NULL, out));
    FAILS(TS_ERR_NULL, ts_augment(&image, 1, NULL, NULL));
}
