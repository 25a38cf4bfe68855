/** @file dump.c  Files of the stages of plans in the folder that TS_DUMP names. */
// SPDX-License-Identifier: MIT
#include "compile/testing.h"
#include "tests/compile/explains.h"
#include "tests/compile/whole.h"

#include <dirent.h>
#include <unistd.h>

static char folder[] = "/tmp/tessera-stages-XXXXXX";
static void set_up(void) { ck_assert_ptr_nonnull(mkdtemp(folder)); }
static void tear_down_folder(void) { ck_assert_int_eq(rmdir(folder), 0); }

/** True if a file of the folder, whose name begins with the stage's, has the words. Removes all
 *  files. */
static bool dumps(const char *stage, const char *want)
{
    char path[400], line[300];
    bool found = false;
    DIR *all = opendir(folder);
    for (struct dirent *d; all && (d = readdir(all)) != NULL;) {
        if (d->d_name[0] == '.')
            continue;
        bool named = strncmp(d->d_name, stage, strlen(stage)) == 0 &&
                     d->d_name[strlen(stage)] == '-';
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof line, file))
            found |= named && strstr(line, want) != NULL;
        if (file)
            fclose(file);
        remove(path);
    }
    closedir(all);
    return found;
}

static ts_status each_stage(TRACED)
{
    ts_tensor *lower = ts_tril(ts_ones(TS_SIZES(9, 9), TS_F32), 0),
              *h = ts_mul(ts_mul_scalar(in[0], 1.0), lower), *unread = ts_exp(in[1]);
    TS_TRY(unread);
    return TS_STATUS_OF(out[0] = ts_matmul(ts_add(ts_tanh(h), ts_tanh(h)), in[1]));
}

TS_TEST(the_report_and_the_dump_name_the_stages, .setup = set_up, .teardown = tear_down_folder)
{
    static const char *const files[][2] = {
        {"decompose", "calls in"}, {"fold", "call 2, mul, has its argument's elements"},
        {"fold", "is constant and runs once"}, {"common", "call 6, tanh, equals call 5"},
        {"dead", "call 4: "}, {"recompute", "recomputed:"}, {"fuse", "3 calls over (9, 9)"},
        {"epilogue", "calls in"}, {"horizontal", "calls in"}, {"plan", "step 1"},
        {"memory", "arena of"}};
    TS_SCOPE;
    ts_tensor *in[] = {numbers(1, TS_SIZES(9, 9)), numbers(2, TS_SIZES(9, 9))}, *out;
    for (int i = 0; i < TS_COUNTOF(files); i++) {
        setenv("TS_DUMP", folder, 1);
        ts_compiled *c = ts_compile(each_stage, NULL, NULL);
        OK(ts_compiled_call(c, in, 2, &out, 1));
        unsetenv("TS_DUMP");
        ck_assert_msg(dumps(files[i][0], files[i][1]), "no '%s' in %s", files[i][1],
                      files[i][0]);
        ck_assert(explains(c, "  1 calls have their argument's elements and were dropped: mul\n"));
        ck_assert(explains(c, "  2 calls are constant and run once: full tril\n"));
        ts_compiled_free(c);
    }
}

/** Number of files of the folder whose names begin and end with these words. */
static int count_files(const char *begin, const char *end)
{
    int count = 0;
    DIR *all = opendir(folder);
    for (struct dirent *d; all && (d = readdir(all)) != NULL;) {
        size_t length = strlen(d->d_name), rest = strlen(end);
        count += strncmp(d->d_name, begin, strlen(begin)) == 0 && length > rest &&
                 strcmp(d->d_name + length - rest, end) == 0;
    }
    closedir(all);
    return count;
}

TS_TEST(plans_with_equal_hashes_have_files_of_their_own, .setup = set_up,
        .teardown = tear_down_folder)
{
    TS_SCOPE;
    ts_compiled *c = ts_compile(each_stage, NULL, NULL);
    ts_plan_hash_mask = 0;
    setenv("TS_DUMP", folder, 1);
    for (int64_t columns = 1; columns <= 3; columns++) {
        ts_tensor *in[] = {numbers(1, TS_SIZES(9, 9)), numbers(2, TS_SIZES(9, columns))}, *out;
        OK(ts_compiled_call(c, in, 2, &out, 1));
    }
    unsetenv("TS_DUMP");
    ck_assert_int_eq(ts_compiled_get_stats(c).compiles, 3);
    ck_assert_int_eq(count_files("plan-0000000000000000", ".txt"), 3);
    ck_assert_int_eq(count_files("plan-0000000000000000", "0.txt"), 1);
    ck_assert_int_eq(count_files("plan-0000000000000000", ".2.txt"), 1);
    ck_assert_int_eq(count_files("plan-0000000000000000", ".3.txt"), 1);
    ck_assert(dumps("plan", "calls in"));
    ts_compiled_free(c);
}

/** A norm of f32 copies of two halves, which the plan reads instead. */
static ts_status norm_of_halves(TRACED)
{
    ts_tensor *grads[] = {ts_to(in[0], TS_F32), ts_to(in[1], TS_F32)};
    return TS_STATUS_OF(out[0] = ts_global_norm(grads, 2));
}
/** The first sum is read at the end only, and two others are in use at the same time before. */
static ts_status early_sum(TRACED)
{
    ts_tensor *early = ts_cumsum(in[0], 0), *sum = ts_cumsum(ts_cumsum(in[0], 1), 0);
    return TS_STATUS_OF(out[0] = ts_sum(ts_cumsum(ts_mul(early, ts_amax(sum)), 1)));
}
/** A cat of results that their calls write in place. */
static ts_status beside(TRACED)
{
    ts_tensor *parts[] = {ts_cumsum(in[0], 1), ts_cumsum(in[1], 0)};
    return TS_STATUS_OF(out[0] = ts_cumsum(ts_cat(parts, 2, 1), 0));
}

static void set_up_device(void)
{
    set_up();
    set_up_whole_groups();
}
static void tear_down_device(void)
{
    tear_down_whole();
    tear_down_folder();
}

TS_TEST(passes_over_the_calls_and_steps_have_files_of_what_they_did, .setup = set_up_device,
        .teardown = tear_down_device, .loop = 3)
{
    TS_SCOPE;
    const struct {
        ts_trace_fn fn;
        const char *stage, *words;
        ts_tensor *in[2];
    } all[] = {
        {norm_of_halves, "widen", "call 2, global_norm, takes 2 halves in place of f32 copies",
         {ts_to(numbers(1, TS_SIZES(30)), TS_BF16), ts_to(numbers(2, TS_SIZES(20)), TS_BF16)}},
        {early_sum, "order", "step 0 (cumsum) moved to position 2: at most ",
         {numbers(1, TS_SIZES(64, 64)), numbers(2, TS_SIZES(1))}},
        {beside, "cats", "call 2, cat of 2 parts, was dropped: 768 bytes are not copied",
         {remote(1, TS_SIZES(12, 8)), remote(2, TS_SIZES(12, 8))}},
    }, *t = &all[_i];
    ts_tensor *out;
    ts_compiled *c = ts_compile(t->fn, NULL, NULL);
    setenv("TS_DUMP", folder, 1);
    OK(ts_compiled_call(c, t->in, 2, &out, 1));
    unsetenv("TS_DUMP");
    ck_assert_msg(dumps(t->stage, t->words), "no '%s' in %s", t->words, t->stage);
    ts_compiled_free(c);
}
