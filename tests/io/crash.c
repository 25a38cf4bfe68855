/** @file crash.c  Saves of which each system call fails once, and saves that are killed between any
 * two calls. */
// SPDX-License-Identifier: MIT
#include <sys/wait.h>

#include "core/testing.h"
#include "tests/io/faults.h"
#include "tests/io/scenario.h"

/* After a save that returned or was killed: the old or the new checkpoint loads. must_be_new: the
 * new one. */
static void check_saved(const scenario *s, bool must_be_new)
{
    static char place[sizeof fault.trace + 40];
    snprintf(place, sizeof place, "call %d (%s)", fault.at, fault.trace);
    check_after(s, must_be_new, place);
}

static void sweep(const scenario *s, fault_kind kind, int error)
{
    bool met = true;
    for (int n = 1; met; n++) {
        make_folder(s);
        fault_plant(kind, n, error);
        ts_error_clear();
        ts_status status = run_save(dir, s->step, 2, 2);
        fault_lift();
        met = fault.met;
        /* a save that met no fault succeeds */
        ck_assert_msg(met || status == TS_OK, "%s: %s", s->name, ts_error_message());
        ck_assert(status == TS_OK || ts_error_message()[0]);
        check_saved(s, status == TS_OK);
        ts_tally_as(TS_COUNT_FAULT_POINTS, 1, 0, 0);
    }
}

TS_TEST(each_call_failing_once_leaves_old_or_new, .loop = SCENARIOS, IN_FOLDER)
{
    sweep(&scenarios[_i], FAULT_ONCE, EIO);
    sweep(&scenarios[_i], FAULT_ONCE, EINTR);
}

TS_TEST(each_call_failing_for_ever_leaves_old_or_new, .loop = SCENARIOS, IN_FOLDER)
{
    sweep(&scenarios[_i], FAULT_FOREVER, EIO);
}

TS_TEST(a_disk_that_fills_up_leaves_old_or_new, .loop = SCENARIOS, IN_FOLDER)
{
    int writes = 0;
    for (int n = 1; writes < 2; n++) { /* ends after two saves without a fault */
        make_folder(&scenarios[_i]);
        fault_plant(FAULT_PART, n, 0);
        ts_error_clear();
        ts_status status = run_save(dir, scenarios[_i].step, 2, 2);
        fault_lift();
        ck_assert(fault.met == (status != TS_OK));
        if (fault.met) {
            ck_assert_int_eq(ts_error_code(), TS_ERR_IO);
            ck_assert_ptr_nonnull(strstr(ts_error_message(), "No space left on device"));
        }
        writes += !fault.met;
        check_saved(&scenarios[_i], status == TS_OK);
        ts_tally_as(TS_COUNT_FAULT_POINTS, 1, 0, 0);
    }
}

TS_TEST(short_reads_and_writes_are_retried, IN_FOLDER)
{
    make_folder(&scenarios[1]);
    fault_plant(FAULT_SHORT, 1, 0);
    ck_ok(run_save(dir, 20, 2, 2));
    int64_t step;
    int life;
    ck_assert(run_find(dir, &step, &life));
    fault_lift();
    ck_assert(fault.met && step == 20 && life == 2);
}

TS_TEST(killed_between_any_two_calls_leaves_old_or_new, .loop = SCENARIOS, IN_FOLDER)
{
    const scenario *s = &scenarios[_i];
    for (int n = 1, ended = 0; !ended; n++) {
        make_folder(s);
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            fault_plant(FAULT_KILL, n, 0);
            _exit(run_save(dir, s->step, 2, 2) == TS_OK ? 0 : 1);
        }
        int status;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFEXITED(status) && (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 0));
        ended = WEXITSTATUS(status) == 0;
        check_saved(s, ended);
        ts_tally_as(TS_COUNT_FAULT_POINTS, 1, 0, 0);
    }
}

/* A crash of the machine may lose unflushed data and keep later renames, so the order matters. */
TS_TEST(files_are_flushed_before_they_are_renamed, IN_FOLDER)
{
    make_folder(&scenarios[1]);
    fault_plant(FAULT_NONE, 0, 0);
    ck_ok(run_save(dir, 20, 2, 2));
    fault_lift();
    const char *at = fault.trace;
    static const char *const order[] = {
        "mkdir(20.tmp-", "open(model.safetensors) write",
        "fsync() close() open(state.safetensors) write",
        "fsync() close() open(manifest.json) write", "fsync() close() open(20.tmp-",
        "fsync() close() open(manifest.json) fstat",
        "pread", "rename(20) fsync()",
    };
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        const char *next = strstr(at, order[i]);
        ck_assert_msg(next != NULL, "expected \"%s\" in \"%s\"", order[i], at);
        at = next + 1;
    }
    ck_assert_ptr_null(strstr(strstr(fault.trace, "pread"), "write"));
}

/* ------------------------------------------------------------------------- single files ---- */

TS_TEST(a_failing_call_leaves_the_old_file_or_the_new_one, .loop = 2, IN_FOLDER)
{
    TS_SCOPE;
    static const int errors[] = {EIO, ENOSPC};
    ts_tensor *old = ts_full(TS_SIZES(50), TS_SCALAR(1), TS_F32),
              *new = ts_full(TS_SIZES(50), TS_SCALAR(2), TS_F32);
    const char *name = "t";
    float values[50];
    bool met = true;
    char path[128];
    snprintf(path, sizeof path, "%s", in_folder("file"));
    for (int n = 1; met; n++) {
        TS_SCOPE;
        ck_ok(_i ? ts_npy_save(path, old)
                 : ts_safetensors_save(path, &name, &old, 1, NULL, NULL, 0));
        fault_plant(n % 2 ? FAULT_ONCE : FAULT_PART, (n + 1) / 2, errors[n % 2]);
        ts_status status =
            _i ? ts_npy_save(path, new) : ts_safetensors_save(path, &name, &new, 1, NULL, NULL, 0);
        fault_lift();
        met = fault.met || fault.calls >= (n + 1) / 2;
        ts_safetensors *st = _i ? NULL : ts_safetensors_open(path, NULL);
        ck_ok(ts_copy_to(_i ? ts_npy_load(path) : ts_safetensors_load(st, "t"), values,
                         sizeof values));
        ts_safetensors_close(st);
        for (int i = 1; i < 50; i++)
            ck_assert_float_eq(values[i], values[0]);
        ck_assert(values[0] == 2 || (values[0] == 1 && status != TS_OK));
        /* the temporary file is removed, unless its removal failed */
        ck_assert_int_eq(count_files(test_folder), 1);
        ts_tally_as(TS_COUNT_FAULT_POINTS, 1, 0, 0);
    }
}

/* -------------------------------------------------------------------------- out of memory ---- */

static int memory_calls, memory_at;
static bool memory_fault(size_t bytes)
{
    (void)bytes;
    return ++memory_calls == memory_at;
}

/* Each allocation from the system fails once, also those of jansson. */
TS_TEST(running_out_of_memory_leaves_old_or_new, IN_FOLDER)
{
    for (memory_at = 1, memory_calls = 1; memory_calls >= memory_at; memory_at++) {
        make_folder(&scenarios[1]);
        memory_calls = 0;
        ts_error_clear();
        ts_alloc_fault = memory_fault;
        ts_status status = run_save(dir, 20, 2, 2);
        ts_alloc_fault = NULL;
        ck_assert_msg(status == TS_OK || status == TS_ERR_MEMORY, "allocation %d: %s", memory_at,
                      ts_error_message());
        check_saved(&scenarios[1], status == TS_OK);
        ts_tally_as(TS_COUNT_FAULT_POINTS, 1, 0, 0);
    }
}

TS_TEST(running_out_of_memory_while_finding_is_an_ordinary_error, IN_FOLDER)
{
    make_folder(&scenarios[2]);
    for (memory_at = 1, memory_calls = 1; memory_calls >= memory_at; memory_at++) {
        ts_checkpoint *c = NULL;
        memory_calls = 0;
        ts_error_clear();
        ts_alloc_fault = memory_fault;
        ts_status status = ts_checkpoint_find(dir, &c);
        ts_alloc_fault = NULL;
        /* if memory runs out, find() is an error and does not return an older checkpoint */
        ck_assert_msg(status == TS_OK ? ts_checkpoint_step(c) == 20 : status == TS_ERR_MEMORY && !c,
                      "allocation %d: %s", memory_at, ts_error_message());
        ts_checkpoint_close(c);
        ts_tally_as(TS_COUNT_FAULT_POINTS, 1, 0, 0);
    }
    int64_t step;
    int life;
    ck_assert(run_find(dir, &step, &life) && step == 20);
}
