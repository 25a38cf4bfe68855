/** @file training.c  Saving and resuming a run: nothing is lost, and a mismatch changes nothing. */
// SPDX-License-Identifier: MIT
#include "tests/io/folder.h"

/** A small run with all its parts; loss curves of two runs are compared bit for bit. */
typedef struct run {
    ts_training state;
    double losses[64];
} run;

static void make_text(void)
{
    unsigned char text[4000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (unsigned char)(i * i % 13);
    write_file(in_folder("text"), text, sizeof text);
}

static run start_sized(ts_optimizer_kind kind, int64_t width, uint64_t seed)
{
    run r = {.state.size = sizeof(ts_training)};
    ts_group_opts opts = ts_optimizer_defaults(kind, 0.05);
    opts.momentum = kind == TS_SGD ? 0.9 : 0;
    ts_loader_opts data = {.size = sizeof data, .batch = 2, .length = 8, .dtype = TS_U8, .seed = 3};
    ts_manual_seed(seed);
    ts_module *m = ts_sequential_new();
    ck_ok(ts_sequential_add(m, ts_embedding_new(13, width)));
    ck_ok(ts_sequential_add(m, ts_dropout_new(0.2)));
    ck_ok(ts_sequential_add(m, ts_linear_new(width, 13, true)));
    r.state.model = m;
    ck_ok(r.state.optimizer = ts_optimizer_for(m, kind, &opts));
    ck_ok(r.state.loader = ts_loader_open(in_folder("text"), &data));
    return r;
}

static run start(ts_optimizer_kind kind, uint64_t seed) { return start_sized(kind, 8, seed); }

static void steps(run *r, int64_t to)
{
    while (r->state.step < to) {
        TS_SCOPE;
        ts_batch batch;
        ck_ok(ts_loader_next(r->state.loader, &batch));
        ts_tensor *loss = ts_cross_entropy_last(ts_forward(r->state.model, batch.x), batch.y);
        ck_ok(ts_backward(loss));
        ck_ok(ts_optimizer_step(r->state.optimizer));
        ts_optimizer_zero_grad(r->state.optimizer);
        ck_ok(ts_item(loss, &r->losses[r->state.step++]));
    }
}

static void end(run *r)
{
    ts_optimizer_free(r->state.optimizer);
    ts_module_free(r->state.model);
    ts_loader_close(r->state.loader);
}

static bool same_values(const ts_named_tensors *a, const ts_named_tensors *b)
{
    bool same = a->n == b->n;
    for (int64_t i = 0; same && i < a->n; i++) {
        size_t bytes = (size_t)ts_numel(a->tensors[i]) * ts_dtype_size(ts_dtype_of(a->tensors[i]));
        same = strcmp(a->names[i], b->names[i]) == 0 &&
               ts_numel(a->tensors[i]) == ts_numel(b->tensors[i]) &&
               memcmp(ts_data(a->tensors[i]), ts_data(b->tensors[i]), bytes) == 0;
    }
    return same;
}

/** Parameters and the optimizer's state are equal bit for bit. */
static bool same_run(const run *a, const run *b)
{
    ts_named_tensors lists[4] = {0};
    ck_ok(ts_module_state_dict(a->state.model, &lists[0]));
    ck_ok(ts_module_state_dict(b->state.model, &lists[1]));
    ck_ok(ts_optimizer_state(a->state.optimizer, &lists[2]));
    ck_ok(ts_optimizer_state(b->state.optimizer, &lists[3]));
    bool same = same_values(&lists[0], &lists[1]) && same_values(&lists[2], &lists[3]);
    for (int i = 0; i < 4; i++)
        ts_named_tensors_free(&lists[i]);
    return same;
}

TS_TEST(a_resumed_run_is_bit_identical_with_one_without_interruption, IN_FOLDER, .loop = 2)
{
    ts_optimizer_kind kind = _i ? TS_ADAMW : TS_SGD;
    make_text();
    run straight = start(kind, 1);
    steps(&straight, 20);
    ts_optimizer_group(straight.state.optimizer, 0)->lr = 0.0123456789012345678;
    ck_ok(ts_training_save(&straight.state, test_folder));
    ts_rng_state rng = ts_rng_get_state();
    steps(&straight, 40);

    char text[256];
    /* other weights, generator state and step, as in a new process */
    run other = start(kind, 77);
    steps(&other, 3);
    ck_assert(!same_run(&straight, &other));
    ck_ok(ts_training_resume(&other.state, test_folder, text, sizeof text));
    ck_assert_int_eq(other.state.step, 20);
    ck_assert(ts_optimizer_group(other.state.optimizer, 0)->lr == 0.0123456789012345678);
    ck_assert(ts_rng_get_state().seed == rng.seed && ts_rng_get_state().offset == rng.offset);
    ck_assert_int_eq(ts_loader_get_state(other.state.loader).index, 20);
    ck_assert_ptr_nonnull(strstr(text, "step 20 from "));
    ck_assert_ptr_nonnull(strstr(text, test_folder));
    ck_assert_ptr_null(strchr(text, ';'));
    steps(&other, 40);
    for (int i = 20; i < 40; i++)
        ck_assert(other.losses[i] == straight.losses[i]);
    ck_assert(same_run(&straight, &other));
    end(&other);
    end(&straight);
}

/** Writes `bytes` bytes, which `change` changes starting at byte `from`, to the file "text". */
static void write_text(size_t bytes, size_t from, int change)
{
    unsigned char text[5000];
    for (size_t i = 0; i < bytes; i++)
        text[i] = (unsigned char)((i * i + (i >= from ? (size_t)change : 0)) % 13);
    write_file(in_folder("text"), text, bytes);
}

TS_TEST(a_run_resumes_only_with_the_data_that_it_had, IN_FOLDER)
{
    const struct {
        size_t bytes, from;
        int change;
        bool same;
    } cases[] = {{4000, 0, 0, true},
                 {4001, 4000, 1, false},   /* one more byte */
                 {4000, 0, 1, false},      /* another text of this length */
                 {4000, 3999, 1, false}};  /* another last byte */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(4000, 0, 0);
        run saved = start(TS_SGD, 1);
        steps(&saved, 2);
        ck_ok(ts_training_save(&saved.state, test_folder));
        write_text(cases[i].bytes, cases[i].from, cases[i].change);
        run other = start(TS_SGD, 5), twin = start(TS_SGD, 5);
        ts_status status = ts_training_resume(&other.state, test_folder, NULL, 0);
        if (cases[i].same) {
            ck_ok(status);
            ck_assert(same_run(&other, &saved));
        } else {
            char expected[700];
            snprintf(expected, sizeof expected, "4000 bytes of '%s', got other data, %zu bytes of "
                     "'%s'", in_folder("text"), cases[i].bytes, in_folder("text"));
            ck_assert_int_eq(status, TS_ERR_STATE);
            ck_failed(TS_ERR_STATE, expected);
            ck_assert_int_eq(other.state.step, 0);
            ck_assert(same_run(&other, &twin));
        }
        end(&saved), end(&other), end(&twin);
    }
}

TS_TEST(a_checkpoint_without_data_resumes_with_any_file, IN_FOLDER)
{
    make_text();
    run saved = start(TS_SGD, 1), other = start(TS_SGD, 5);
    ts_loader *of_file = saved.state.loader;
    steps(&saved, 2);
    saved.state.loader = NULL;
    ck_ok(ts_training_save(&saved.state, test_folder));
    ck_ok(ts_training_resume(&other.state, test_folder, NULL, 0)); /* no file was saved */
    ck_assert(same_run(&other, &saved));
    saved.state.loader = of_file;
    end(&saved), end(&other);
}

TS_TEST(a_run_that_does_not_fit_is_refused_unchanged, IN_FOLDER)
{
    make_text();
    run saved = start(TS_SGD, 1);
    steps(&saved, 2);
    ck_ok(ts_training_save(&saved.state, test_folder));
    for (int i = 0; i < 2; i++) {
        /* a model of another width; another optimizer, detected after the model was read */
        run other = i ? start(TS_ADAM, 5) : start_sized(TS_SGD, 9, 5);
        run twin = i ? start(TS_ADAM, 5) : start_sized(TS_SGD, 9, 5);
        ts_rng_state rng = ts_rng_get_state();
        ck_assert_int_eq(ts_training_resume(&other.state, test_folder, NULL, 0), TS_ERR_VALUE);
        ck_failed(TS_ERR_VALUE, i ? "exp_avg" : "0.weight");
        ck_assert_int_eq(other.state.step, 0);
        ck_assert(ts_rng_get_state().offset == rng.offset && ts_rng_get_state().seed == rng.seed);
        ck_assert(same_run(&other, &twin));
        end(&other);
        end(&twin);
    }
    end(&saved);
}

TS_TEST(without_a_checkpoint_there_is_nothing_to_resume, IN_FOLDER)
{
    make_text();
    run r = start(TS_SGD, 1);
    ck_assert_int_eq(ts_training_resume(&r.state, test_folder, NULL, 0), TS_ERR_STATE);
    ck_failed(TS_ERR_STATE, test_folder);
    ck_assert_int_eq(ts_training_resume(&r.state, NULL, NULL, 0), TS_ERR_NULL);
    ck_failed(TS_ERR_NULL, "training_resume");
    ck_assert_int_eq(ts_training_save(NULL, test_folder), TS_ERR_NULL);
    ck_failed(TS_ERR_NULL, "training_save");
    end(&r);
}

TS_TEST(a_damaged_checkpoint_is_skipped_and_named, IN_FOLDER)
{
    make_text();
    run r = start(TS_SGD, 1);
    char dir[300], file[400];
    snprintf(dir, sizeof dir, "%s", in_folder("run\x1b[2J\xc2\x9b\xe2\x80\xae"));
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    steps(&r, 5);
    ck_ok(ts_training_save(&r.state, dir));
    steps(&r, 9);
    ck_ok(ts_training_save(&r.state, dir));
    const char *path = file;
    snprintf(file, sizeof file, "%s/checkpoints/9/state.safetensors", dir);
    size_t bytes;
    unsigned char *data = read_file(path, &bytes);
    ck_assert_ptr_nonnull(data);
    data[bytes - 1] ^= 1;
    write_file(path, data, bytes);
    free(data);
    char text[1024];
    run other = start(TS_SGD, 2);
    ck_ok(ts_training_resume(&other.state, dir, text, sizeof text));
    ck_assert_int_eq(other.state.step, 5);
    ck_assert_ptr_nonnull(strstr(text, "step 5 from "));
    ck_assert_ptr_nonnull(strstr(text, "run\\x1b[2J\\xc2\\x9b\\xe2\\x80\\xae/checkpoints/5; "));
    ck_assert_ptr_nonnull(strstr(text, "run\\x1b[2J\\xc2\\x9b\\xe2\\x80\\xae/checkpoints/9: "));
    for (const char *at = text; *at; at++)
        ck_assert(*at == '\n' || (*at >= ' ' && *at < 0x7f));
    steps(&other, 9);
    ck_assert(same_run(&r, &other));
    /* no valid checkpoint is left: an error */
    snprintf(file, sizeof file, "%s/checkpoints/5/manifest.json", dir);
    ck_assert_int_eq(truncate(path, 10), 0);
    ck_assert_int_eq(ts_training_resume(&other.state, dir, NULL, 0), TS_ERR_FORMAT);
    ck_failed(TS_ERR_FORMAT, "checkpoints/");
    ck_assert_int_eq(other.state.step, 9);
    end(&other);
    end(&r);
}

TS_TEST(a_run_may_have_many_groups, IN_FOLDER)
{
    enum { GROUPS = 70 };
    TS_SCOPE;
    ts_group_opts opts = ts_optimizer_defaults(TS_SGD, 0.5);
    ts_training t = {.size = sizeof t, .model = ts_linear_new(2, 2, true)};
    ck_ok(t.optimizer = ts_optimizer_new(TS_SGD));
    char name[8];
    for (int i = 0; i < GROUPS; i++) {
        ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(1), TS_F32), true);
        snprintf(name, sizeof name, "w%d", i);
        ck_ok(ts_optimizer_add_group(t.optimizer, (const char *const[]){name}, &w, 1, &opts));
    }
    ts_optimizer_group(t.optimizer, GROUPS - 1)->lr = 0.25;
    ck_ok(ts_training_save(&t, in_folder("run")));
    ts_optimizer_group(t.optimizer, GROUPS - 1)->lr = 0.5;
    ck_ok(ts_training_resume(&t, in_folder("run"), NULL, 0));
    ck_assert_double_eq(ts_optimizer_group(t.optimizer, GROUPS - 1)->lr, 0.25);
    ts_optimizer_free(t.optimizer);
    ts_module_free(t.model);
}
