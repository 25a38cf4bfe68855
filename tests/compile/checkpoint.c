/** @file checkpoint.c  Checkpoints of training steps that are replays. */
// SPDX-License-Identifier: MIT
#include "tests/compile/replay.h"
#include "tests/io/folder.h"

#include <dirent.h>

enum { STEPS = 100, MORE = 20 };

/** A run of STEPS + MORE steps with dropout, AdamW, clipping and a schedule of learning rates. */
typedef struct run {
    net net;
    ts_training state;
} run;

static run run_new(void)
{
    run r = {.net = net_new(0.3, TS_ADAMW), .state.size = sizeof(ts_training)};
    OK(ts_optimizer_set_max_norm(r.net.optimizer, 0.5));
    r.state.model = r.net.module;
    r.state.optimizer = r.net.optimizer;
    return r;
}

static void train(run *r, bool compiled, int64_t to)
{
    static const ts_schedule schedule = {.kind = TS_SCHEDULE_COSINE, .warmup_steps = 10,
                                         .total_steps = STEPS + MORE, .final_ratio = 0.1};
    ts_compiled *c = compiled ? replays_of(step, &r->net) : NULL;
    for (int64_t *k = &r->state.step; *k < to; ++*k) {
        TS_SCOPE;
        ts_tensor *loss, *batch[] = {numbers(10 + (uint64_t)*k, TS_SIZES(4, 6)),
                                     numbers(20 + (uint64_t)*k, TS_SIZES(4, 3))};
        OK(ts_schedule_apply(&schedule, r->net.optimizer, *k));
        OK(c ? ts_compiled_call(c, batch, 2, &loss, 1) : step(&r->net, batch, 2, &loss, 1));
    }
    ck_assert(!c || ran == 2); /* all other steps were replays */
    ts_compiled_free(c);
}

/** Checks that each file of a folder has the bytes of the file of that name in another folder;
 *  returns their number. */
static int compare_files(const char *a, const char *b)
{
    int count = 0;
    DIR *all = opendir(a);
    ck_assert_ptr_nonnull(all);
    for (struct dirent *d; (d = readdir(all)) != NULL;) {
        char paths[2][800];
        FILE *files[2];
        if (d->d_name[0] == '.')
            continue;
        for (int i = 0; i < 2; i++) {
            snprintf(paths[i], sizeof paths[i], "%s/%s", i ? b : a, d->d_name);
            ck_assert_ptr_nonnull(files[i] = fopen(paths[i], "rb"));
        }
        for (int x = 0, y = 0; x != EOF;) {
            x = fgetc(files[0]);
            y = fgetc(files[1]);
            ck_assert_msg(x == y, "%s differs", d->d_name);
        }
        fclose(files[0]), fclose(files[1]);
        count++;
    }
    closedir(all);
    return count;
}

TS_TEST(a_checkpoint_after_replays_has_the_bytes_of_eager_steps_and_resumes_either, IN_FOLDER)
{
    run runs[2], resumed[2];
    for (int compiled = 0; compiled < 2; compiled++) {
        runs[compiled] = run_new();
        ts_manual_seed(9);
        train(&runs[compiled], compiled, STEPS);
        OK(ts_training_save(&runs[compiled].state, in_folder(compiled ? "replays" : "eager")));
    }
    char eager[500];
    snprintf(eager, sizeof eager, "%s", in_folder("eager/checkpoints/100"));
    ck_assert_int_ge(compare_files(eager, in_folder("replays/checkpoints/100")), 3);
    for (int compiled = 0; compiled < 2; compiled++) { /* each continues the other's checkpoint */
        resumed[compiled] = run_new();
        OK(ts_training_resume(&resumed[compiled].state, in_folder(compiled ? "eager" : "replays"),
                              NULL, 0));
        ck_assert_int_eq(resumed[compiled].state.step, STEPS);
        train(&resumed[compiled], compiled, STEPS + MORE);
    }
    check_same_nets(resumed[0].net, resumed[1].net, false);
    check_same_states(resumed[0].net, resumed[1].net);
    run straight = run_new();
    ts_manual_seed(9);
    train(&straight, false, STEPS + MORE);
    check_same_nets(straight.net, resumed[1].net, false);
    for (int i = 0; i < 2; i++)
        net_free(runs[i].net), net_free(resumed[i].net);
    net_free(straight.net);
}
