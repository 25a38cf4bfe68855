#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the executable of cases that misbehave on purpose and checks the harness's counts."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import tally  # noqa: E402

PROGRAM = sys.argv.pop(1)


def run(*arguments, **variables):
    """Exit status, tally line split in words (or None) and output of one run."""
    with tempfile.TemporaryDirectory() as folder:
        counts = os.path.join(folder, "tally")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("CK_", "TS_"))}
        done = subprocess.run([PROGRAM, *arguments], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False,
                              env={**inherited, "TS_TEST_TALLY": counts, **variables})
        line = None
        if os.path.exists(counts):
            with open(counts, encoding="utf-8") as file:
                line = file.read().split()
    return done.returncode, line, done.stdout


class Harness(unittest.TestCase):
    def counted(self, word, *counts, status, kinds=(), **variables):
        returned, line, output = run(word, **variables)
        self.assertEqual(line, [*map(str, counts), os.path.basename(PROGRAM), *kinds], output)
        self.assertEqual(returned, status, output)
        return output

    def test_passing_cases_and_turns_of_loops_count_one_each(self):
        self.counted("passes", 6, 0, 0, status=0)

    def test_a_failed_assertion_fails_the_executable(self):
        self.assertIn("fails_an_assertion", self.counted("fails", 0, 1, 0, status=1))

    def test_a_crash_is_a_failure(self):
        self.counted("crashes", 0, 1, 0, status=1)

    def test_a_hang_is_a_failure(self):
        self.counted("hangs", 0, 1, 0, status=1)

    def test_expected_deaths_pass(self):
        self.counted("as_expected", 2, 0, 0, status=0)

    def test_expected_deaths_are_skipped_without_fork(self):
        self.counted("as_expected", 0, 0, 2, status=0, CK_FORK="no")

    def test_a_skip_is_counted_and_gives_its_reason(self):
        self.assertIn("number 7", self.counted("skips", 0, 0, 1, status=0))

    def test_samples_count_instead_of_their_case(self):
        for fork in ("yes", "no"):
            self.counted("samples_that_pass", 11, 0, 2, status=0, kinds=["samples=11"],
                         CK_FORK=fork)
            output = self.counted("samples_that_fail", 5, 3, 0, status=1, kinds=["samples=8"],
                                  CK_FORK=fork)
            self.assertIn("3 of 8 samples failed", output)

    def test_a_crash_after_samples_is_a_failure_of_its_own(self):
        self.counted("samples_then", 2, 1, 0, status=1, kinds=["samples=2"])

    def test_checks_of_other_kinds_have_counts_of_their_own_beside_their_case(self):
        for fork in ("yes", "no"):
            self.counted("checks_that_pass", 1, 0, 0, status=0,
                         kinds=["gradients=4", "fault_points=7"], CK_FORK=fork)
            output = self.counted("checks_that_fail", 0, 1, 0, status=1, kinds=["fault_points=9"],
                                  CK_FORK=fork)
            self.assertIn("2 checks failed", output)

    def test_all_at_once_is_the_sum(self):
        self.counted("", 6 + 2 + 1 + 11 + 5 + 2 + 1, 1 + 1 + 1 + 3 + 1 + 1, 1 + 2, status=1,
                     kinds=["samples=22", "gradients=4", "fault_points=16"])

    def test_cases_with_threads_can_be_listed_alone(self):
        _, _, output = run("--list", "--threads")
        self.assertEqual(output.split(), ["counts_in_a_thread"])
        for fork in ("yes", "no"):
            returned, line, _ = run("--threads", CK_FORK=fork)
            self.assertEqual((returned, line[:3]), (0, ["1", "0", "0"]))

    def test_a_failed_case_without_fork_runs_no_cleanup_handlers(self):
        returned, line, output = run("fails_an_assertion", CK_FORK="no")
        self.assertEqual((returned, line[:3]), (1, ["0", "1", "0"]), output)

    def test_list_prints_names_only_and_runs_nothing(self):
        returned, line, output = run("--list", "pass")
        self.assertEqual((returned, line), (0, None))
        self.assertEqual(output.split(),
                         ["passes", "passes_four_times", "passes_prepared", "samples_that_pass",
                          "checks_that_pass"])

    def test_a_case_is_chosen_by_the_environment(self):
        returned, line, _ = run(CK_RUN_CASE="passes")
        self.assertEqual((returned, line[:3]), (0, ["1", "0", "0"]))

    def test_a_word_that_matches_nothing_is_an_error(self):
        returned, line, output = run("no such case")
        self.assertEqual((returned, line), (2, None), output)

    def test_a_tally_that_cannot_be_written_is_an_error(self):
        returned, _, output = run("passes", TS_TEST_TALLY="/nonexistent/tally")
        self.assertEqual(returned, 2, output)


if __name__ == "__main__":
    tally.main()
