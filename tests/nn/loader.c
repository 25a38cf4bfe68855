/** @file loader.c  Windows, order, resuming, errors of the data loader. */
// SPDX-License-Identifier: MIT
#include "include/tessera/nn/loader.h"
#include "tests/dispatch/common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

static char path[] = "/tmp/tessera-loader-XXXXXX";

static void name_file(void)
{
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
}
static void remove_file(void) { unlink(path); }
#define WITH_FILE .setup = name_file, .teardown = remove_file

/** Writes n bytes to the file `path`; byte i is i mod 251. */
static void make_file(int64_t n)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    for (int64_t i = 0; i < n; i++)
        fputc((int)(i % 251), f);
    ck_assert_int_eq(fclose(f), 0);
}

static void same(ts_tensor *a, ts_tensor *b)
{
    ck_assert_int_eq(ts_numel(a), ts_numel(b));
    ck_assert_int_eq(memcmp(ts_data(a), ts_data(b), (size_t)ts_numel(a) * 8), 0);
}

TS_TEST(targets_are_the_tokens_after, .threads = true, WITH_FILE)
{
    make_file(10000);
    for (int threads = 0; threads < 2; threads++) {
        ts_loader *l = ts_loader_open(path, &(ts_loader_opts){.size = sizeof(ts_loader_opts),
                                                              .batch = 4,
                                                              .length = 16,
                                                              .dtype = TS_U8,
                                                              .seed = 3,
                                                              .no_thread = !threads});
        OK(l);
        for (int k = 0; k < 500; k++) {
            TS_SCOPE;
            ts_batch b;
            OK(ts_loader_next(l, &b));
            ck_assert_int_eq(ts_size(b.x, 0), 4);
            ck_assert_int_eq(ts_size(b.y, 1), 16);
            const int64_t *x = ts_data(b.x), *y = ts_data(b.y);
            for (int i = 0; i < 64; i++)
                ck_assert_int_eq(y[i], (x[i] + 1) % 251);
        }
        ts_loader_close(l);
    }
}

TS_TEST(an_epoch_visits_each_window_once, WITH_FILE)
{
    make_file(8 * 251 * 4 + 1);
    ts_loader *l = ts_loader_open(
        path,
        &(ts_loader_opts){
            .size = sizeof(ts_loader_opts), .batch = 1, .length = 8, .dtype = TS_U8, .seed = 9});
    OK(l);
    /* 251 and 8 are coprime, so the first tokens of windows cycle through all residues */
    int64_t batches = ts_loader_batches(l);
    ck_assert_int_ge(batches, 1002);
    int seen[251] = {0};
    bool shuffled = false;
    int64_t last = -1;
    for (int64_t k = 0; k < batches; k++) {
        TS_SCOPE;
        ts_batch b;
        OK(ts_loader_next(l, &b));
        ck_assert_int_eq(b.epoch, 0);
        ck_assert_int_eq(b.index, k);
        int64_t first = *(const int64_t *)ts_data(b.x);
        seen[first]++;
        shuffled |= last >= 0 && (last + 8) % 251 != first;
        last = first;
    }
    ck_assert(shuffled);
    for (int i = 0; i < 251; i++)
        ck_assert_int_le(seen[i], 4 + 1);
    ts_loader_close(l);
}

TS_TEST(batches_are_a_function_of_seed_epoch_and_number, .threads = true, WITH_FILE)
{
    make_file(3000);
    ts_loader_opts o = {.size = sizeof o, .batch = 2, .length = 32, .dtype = TS_U8, .seed = 5};
    ts_loader *a = ts_loader_open(path, &o), *b;
    o.no_thread = true;
    b = ts_loader_open(path, &o);
    OK(a);
    OK(b);
    int64_t n = ts_loader_batches(a);
    for (int64_t k = 0; k < 3 * n; k++) { /* three epochs */
        TS_SCOPE;
        ts_batch x, y;
        OK(ts_loader_next(a, &x));
        OK(ts_loader_next(b, &y));
        ck_assert(x.epoch == k / n && x.index == k % n);
        same(x.x, y.x);
    }
    /* resumed in the middle, also backwards and while batches are prepared ahead */
    for (int64_t k = 0; k < 2 * n; k += 7) {
        TS_SCOPE;
        ts_batch x, y;
        ts_loader_state s = {k / n, k % n};
        OK(ts_loader_set_state(a, s));
        OK(ts_loader_set_state(b, s));
        OK(ts_loader_next(a, &x));
        OK(ts_loader_next(b, &y));
        same(x.x, y.x);
        same(x.y, y.y);
        ck_assert(ts_loader_get_state(a).index == (s.index + 1) % n);
    }
    ts_loader_close(a);
    ts_loader_close(b);
    ts_loader_close(NULL);
}

TS_TEST(ranges_do_not_overlap_and_order_is_kept_on_request, WITH_FILE)
{
    make_file(1000);
    ts_loader_opts o = {.size = sizeof o, .batch = 1, .length = 10, .dtype = TS_U8, .from = 0.9,
                        .to = 1, .in_order = true};
    ts_loader *l = ts_loader_open(path, &o);
    OK(l);
    ck_assert_int_eq(ts_loader_tokens(l), 100);
    ck_assert_int_eq(ts_loader_batches(l), 9);
    for (int k = 0; k < 9; k++) {
        TS_SCOPE;
        ts_batch b;
        OK(ts_loader_next(l, &b));
        ck_assert_int_eq(*(const int64_t *)ts_data(b.x), (900 + 10 * k) % 251);
    }
    ts_loader_close(l);
}

TS_TEST(errors_name_invalid_files_and_options, WITH_FILE)
{
    make_file(100);
    ts_loader_opts o = {.size = sizeof o, .batch = 4, .length = 32, .dtype = TS_U8};
    FAILS(TS_ERR_SHAPE, ts_loader_open(path, &o));
    SAYS(path);
    SAYS("needs 129");
    FAILS(TS_ERR_IO, ts_loader_open("/nowhere/at/all", &o));
    SAYS("/nowhere/at/all");
    FAILS(TS_ERR_IO, ts_loader_open("/dev/null", &o));
    FAILS(TS_ERR_IO, ts_loader_open("/", &o));
    FAILS(TS_ERR_NULL, ts_loader_open(NULL, &o));
    FAILS(TS_ERR_NULL, ts_loader_open(path, NULL));
    o.batch = 0;
    FAILS(TS_ERR_VALUE, ts_loader_open(path, &o));
    o.batch = 1;
    o.dtype = TS_F32;
    FAILS(TS_ERR_DTYPE, ts_loader_open(path, &o));
    o.dtype = TS_U8;
    o.from = 0.9;
    o.to = 0.5;
    FAILS(TS_ERR_VALUE, ts_loader_open(path, &o));
}

TS_TEST(batches_beyond_63_bits_are_refused, WITH_FILE)
{
    make_file(100);
    const int64_t huge[][2] = {{INT64_C(1) << 32, INT64_C(1) << 32},
                               {INT64_MAX, 1},
                               {1, INT64_MAX},
                               {INT64_C(1) << 31, INT64_C(1) << 30}};
    for (int i = 0; i < 4; i++) {
        FAILS(TS_ERR_VALUE, ts_loader_open(path, &(ts_loader_opts){.size = sizeof(ts_loader_opts),
                                                                   .batch = huge[i][0],
                                                                   .length = huge[i][1],
                                                                   .dtype = TS_U8}));
        SAYS("63 bits");
    }
    /* the largest valid options, for which the file is too small */
    FAILS(TS_ERR_SHAPE, ts_loader_open(path, &(ts_loader_opts){.size = sizeof(ts_loader_opts),
                                                               .batch = 1,
                                                               .length = INT64_MAX / 16,
                                                               .dtype = TS_I64}));
    SAYS("needs 576460752303423488");
}

TS_TEST(options_of_another_size_are_read_up_to_their_size, WITH_FILE)
{
    make_file(1000);
    ts_loader_opts o = {.batch = 2, .length = 16, .dtype = TS_U8, .from = 0.5, .to = 2};
    FAILS(TS_ERR_VALUE, ts_loader_open(path, &o));
    SAYS("size");
    o.size = sizeof o + 8;
    FAILS(TS_ERR_VALUE, ts_loader_open(path, &o));
    SAYS("size");
    /* with the size of an older struct, `from` and `to` are not read */
    o.size = offsetof(ts_loader_opts, from);
    ts_loader *l = ts_loader_open(path, &o);
    OK(l);
    ck_assert_int_eq(ts_loader_tokens(l), 1000);
    ts_loader_close(l);
}

TS_TEST(wide_tokens_are_read_from_their_places, WITH_FILE)
{
    make_file(0);
    FILE *f = fopen(path, "wb");
    for (int32_t i = 0; i < 100; i++)
        fwrite(&(int32_t){i * 70000 - 9}, 4, 1, f);
    fclose(f);
    ts_loader *l = ts_loader_open(path, &(ts_loader_opts){.size = sizeof(ts_loader_opts),
                                                          .batch = 3,
                                                          .length = 11,
                                                          .dtype = TS_I32,
                                                          .in_order = true});
    OK(l);
    ck_assert_int_eq(ts_loader_batches(l), 3);
    for (int64_t k = 0; k < 3; k++) {
        TS_SCOPE;
        ts_batch b;
        OK(ts_loader_next(l, &b));
        const int64_t *x = ts_data(b.x), *y = ts_data(b.y);
        for (int64_t i = 0; i < 33; i++) {
            ck_assert_int_eq(x[i], (33 * k + i) * 70000 - 9);
            ck_assert_int_eq(y[i], (33 * k + i + 1) * 70000 - 9);
        }
    }
    ts_loader_close(l);
}

/** Truncates and restores the length of the file in a loop, until `enough`. */
static atomic_bool enough;
static void *cut(void *arg)
{
    while (!atomic_load(&enough))
        if (truncate(arg, 1) != 0 || truncate(arg, 100000) != 0)
            return arg;
    return NULL;
}

TS_TEST(a_file_truncated_while_it_is_read_does_not_end_the_process, .threads = true, WITH_FILE)
{
    make_file(100000);
    ts_loader *l = ts_loader_open(
        path, &(ts_loader_opts){
                  .size = sizeof(ts_loader_opts), .batch = 8, .length = 1024, .dtype = TS_U8});
    OK(l);
    pthread_t thread;
    atomic_store(&enough, false);
    ck_assert_int_eq(pthread_create(&thread, NULL, cut, path), 0);
    int delivered = 0, refused = 0; /* runs until both are 20 */
    while (delivered < 20 || refused < 20) {
        TS_SCOPE;
        ts_batch b;
        if (ts_loader_next(l, &b) == TS_OK)
            delivered++;
        else
            refused++;
        ck_assert(refused == 0 || ts_error_code() == TS_ERR_IO); /* of the last failure */
    }
    atomic_store(&enough, true);
    void *failed;
    pthread_join(thread, &failed);
    ck_assert_ptr_null(failed);
    ts_loader_close(l);
}

TS_TEST(a_file_that_shrinks_is_an_error_not_a_crash, WITH_FILE)
{
    make_file(100000);
    ts_loader_opts o = {
        .size = sizeof o, .batch = 2, .length = 64, .dtype = TS_U8, .no_thread = true};
    ts_loader *l = ts_loader_open(path, &o);
    OK(l);
    ts_batch b;
    OK(ts_loader_next(l, &b));
    ck_assert_int_eq(truncate(path, 100), 0);
    FAILS(TS_ERR_IO, ts_loader_next(l, &b));
    SAYS("shorter");
    make_file(100000);
    OK(ts_loader_next(l, &b)); /* the batch that failed, not the one after */
    ck_assert_int_eq(b.index, 1);
    ts_loader_close(l);
}
