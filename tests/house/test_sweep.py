#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of bench/compare.py --random: drawing, timing and evaluation. PyTorch is not needed; where
it can be imported, arguments are drawn with it as well."""
import argparse
import contextlib
import importlib.util
import io
import math
import os
import random
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = os.path.join(ROOT, "bench"), os.path.join(ROOT, "tests")
import tally  # noqa: E402
from peers import sweep  # noqa: E402

NAMES = ["add", "exp", "mm", "sum", "where"]
HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "numpy"))


def row(label="1:0", family="unary", speed=1.0, size=1 << 21, **more):
    return sweep.Row(label, "1", "exp", family, "forward", "8", "f32", size, 2.0,
                     {"eager": 2.0 * speed, "compiled": 3.0 * speed}, **more)


class Draws(unittest.TestCase):
    def test_each_round_has_every_operator_once(self):
        for seed in range(5):
            for turn in range(3):
                found = [sweep.operator_of(seed, turn * 5 + i, NAMES) for i in range(5)]
                self.assertEqual(sorted(found), NAMES)

    def test_the_order_depends_on_the_seed_alone(self):
        def order(seed, names):
            return [sweep.operator_of(seed, i, names) for i in range(40)]
        self.assertEqual(order(3, NAMES), order(3, NAMES[::-1]))
        self.assertNotEqual(order(3, NAMES), order(4, NAMES))

    def test_a_choice_of_operators_keeps_the_numbers(self):
        found = sweep.numbers(7, 6, NAMES, "^(mm|exp)$")
        self.assertEqual(len(found), 6)
        self.assertLessEqual({sweep.operator_of(7, n, NAMES) for n in found}, {"mm", "exp"})
        self.assertEqual(sweep.numbers(7, 9, NAMES, ""), list(range(9)))
        self.assertEqual(sweep.numbers(7, 9, NAMES, "nothing"), [])

    def test_sizes_repeat_and_stay_below_the_limit(self):
        def some(*label):
            sizes = sweep.Sizes(*label, 1 << 24)
            return [sizes.shape(n) for n in range(6)] + [sizes.length(1024) for _ in range(9)]
        self.assertEqual(some(1, 2, 0), some(1, 2, 0))
        self.assertNotEqual(some(1, 2, 0), some(1, 2, 1))
        self.assertNotEqual(some(1, 2, 0), some(1, 3, 0))
        largest, odd = 0, 0
        for number in range(400):
            *shapes, last = some(5, number, 0)[:6]
            for shape in [*shapes, last]:
                self.assertTrue(all(n >= 1 for n in shape))
                self.assertLessEqual(math.prod(shape), 1 << 24)
                largest = max(largest, math.prod(shape))
            odd += last[-1] % 2
        self.assertGreater(largest, 1 << 22)
        self.assertTrue(100 < odd < 350, odd)

    def test_families_are_the_sections_of_the_operators(self):
        found = sweep.families()
        self.assertEqual((found["exp"], found["mm"], found["adamw"]), ("unary", "matmul", "optim"))
        self.assertEqual((found["transpose"], found["unreduce"], found["sum"]),
                         ("view", "view", "reduce"))

    @unittest.skipUnless(HAS_TORCH, "no PyTorch")
    def test_every_operator_is_drawn(self):
        from peers import sweep_draw
        self.assertEqual(set(sweep.families()) - set(sweep_draw.NAMES), {"noop"})

    @unittest.skipUnless(HAS_TORCH, "no PyTorch")
    def test_sizes_do_not_depend_on_the_hashes_of_strings(self):
        code = "from peers import sweep_draw as s; d = s.Large(1, 2, 0, 'cpu', 'cpu'); " \
               "print([list(t.shape) for t in s.OPS['bmm'].draw(d)])"
        found = {subprocess.run([sys.executable, "-c", code], check=True, capture_output=True,
                                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH":
                                     os.path.join(ROOT, "bench")}).stdout for seed in "123"}
        self.assertEqual(len(found), 1)

    @unittest.skipUnless(HAS_TORCH, "no PyTorch")
    def test_arguments_repeat(self):
        import torch
        from peers import sweep_draw, sweep_sides
        sweep_draw.LIMITS["cpu"] = 1 << 12, 1 << 20, 64, 1 << 20
        for number in range(len(sweep_sides.NAMES)):
            name = sweep.operator_of(2, number, sweep_sides.NAMES)
            first, again = (sweep_sides.Case(2, number, name, "cpu", "cpu") for _ in range(2))
            self.assertEqual((first.text, first.mode, list(first.calls)),
                             (again.text, again.mode, list(again.calls)))
            for a, b in zip(sweep_sides.flat(first.args), sweep_sides.flat(again.args)):
                self.assertTrue(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)), name)


class Times(unittest.TestCase):
    def test_sides_take_turns_and_the_fewest_counts(self):
        order = []
        times = {"ours": iter([5, 4, 6] + [4] * 99), "theirs": iter([9, 9, 8] + [9] * 99)}

        def run(side):
            order.append(side)
            return next(times[side])
        runs = [lambda: run("ours"), lambda: run("theirs")]
        self.assertEqual(sweep.fastest(runs, 60), [4, 8])
        self.assertEqual(order[:6], ["ours", "theirs"] * 3)
        self.assertEqual(len(order), 12)  # three turns after the last improvement

    def test_time_that_is_over_leaves_the_least_turns(self):
        calls = []
        sweep.fastest([lambda: calls.append(1) or random.random() ** 9], 0)
        self.assertEqual(len(calls), 3)

    def test_a_case_below_the_limit_is_timed_three_more_times(self):
        for found, turns in (([[10, 9.6]], 1), ([[10, 5]] * 4, 4), ([[10, 5], [5, 5]], 2)):
            left, before = list(found), []

            def timed(_seconds, best, left=left, before=before):
                before.append(best)
                return left.pop(0)
            self.assertEqual(sweep.judge(timed, 1), found[-1])
            self.assertEqual(before, [None, *found[:-1]])
            self.assertEqual(len(before), turns)

    def test_the_fastest_of_our_sides_is_judged(self):
        for found, turns in (([[10, 5, 5]], 1), ([[10, 6, 5]] * 4, 4)):
            left = list(found)
            sweep.judge(lambda _seconds, _best, left=left: left.pop(0), 1, 2)
            self.assertEqual(len(found) - len(left), turns)


class Distribution(unittest.TestCase):
    def test_the_speed_is_the_best_peers_time_over_ours(self):
        fast = row(speed=1.5)
        self.assertEqual((fast.speed, fast.peer), (1.5, "eager"))

    def test_means_and_percentiles(self):
        self.assertAlmostEqual(sweep.geometric_mean([0.5, 2, 4]), 4 ** (1 / 3))
        self.assertEqual(sweep.percentile([3], 0.05), 3)
        self.assertAlmostEqual(sweep.percentile([4, 1, 3, 2, 5], 0.05), 1.2)
        self.assertEqual(sweep.percentile([5, 1, 3], 0.5), 3)
        self.assertEqual(sweep.percentile([5, 1, 3], 1), 5)

    def test_classes_and_sizes_are_summed_up(self):
        rows = [row(speed=2), row(speed=0.5), row(family="matmul", speed=0.9, size=999_999),
                row(family="view", speed=8, size=0, host=(1.0, 4.0))]
        found = {line[0]: line[1:] for line in sweep.summary(rows)}
        self.assertEqual(found["unary"][0], 2)
        self.assertAlmostEqual(found["unary"][1], 1.0)
        self.assertEqual(found["unary"][3:], (0.5, 0.5))
        self.assertAlmostEqual(found["unary"][2], 0.575)
        self.assertEqual(found["all, 1 MB and more"][0], 2)
        self.assertEqual(found["all, below 1 MB"][0], 2)
        self.assertEqual(found["all"][0], 4)
        self.assertEqual(found["host cost, below 1 MB"][1], 4.0)
        self.assertEqual([line[0] for line in sweep.summary(rows)][:3], ["matmul", "unary", "view"])

    def test_the_slowest_are_printed_with_their_commands(self):
        lines = []
        sweep.print_summary([row(f"3:{i}", speed=1 + i) for i in range(20)], "compare --suite cpu",
                            lines.append)
        slowest = [line for line in lines if "--case" in line]
        self.assertEqual(len(slowest), 10)
        self.assertRegex(slowest[0], r"^ +1\.000  exp .*\n +compare --suite cpu --threads 1 "
                                     r"--case 3:0$")


class FakeBench:
    """Times of a few operators without a library."""
    names, settings, c = NAMES, [1, 2], None

    def __init__(self):
        self.asked, self.used = [], []

    def use(self, setting):
        self.used.append(setting)

    def time(self, seed, number, seconds):
        self.asked.append((seed, number))
        name = sweep.operator_of(seed, number, self.names)
        if name == "sum":
            raise sweep.Skipped("sum differs: 1 of 2 elements")
        return row(f"{seed}:{number}", speed=2.0)


class Runs(unittest.TestCase):
    def run_it(self, bench=None, **more):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        options = argparse.Namespace(**{
            "random": 5, "seed": 9, "case": None, "ops": None, "only": "", "minutes": 1,
            "seconds": 1, "suite": "cpu", "out": os.path.join(folder.name, "t.tsv"), **more})
        bench = bench or FakeBench()
        drawn = []
        self.addCleanup(setattr, sweep, "draw_chart", sweep.draw_chart)
        sweep.draw_chart = lambda c, rows, title, path: drawn.append((len(rows), path.name))
        text = io.StringIO()
        with open(options.out, "w", encoding="utf-8") as out, contextlib.redirect_stdout(text), \
                contextlib.redirect_stderr(io.StringIO()):
            status = sweep.run(options, bench, "command", out)
        with open(options.out, encoding="utf-8") as file:
            lines = [line.rstrip("\n").split("\t") for line in file if line[0] != "#"]
        return status, text.getvalue(), lines, bench, drawn

    def test_a_table_has_a_line_for_each_timed_case(self):
        status, text, lines, bench, drawn = self.run_it()
        self.assertEqual(status, 1)
        self.assertEqual(lines[0], list(sweep.COLUMNS))
        self.assertEqual(len(lines), 1 + 8)
        self.assertTrue(all(len(line) == len(lines[0]) for line in lines))
        self.assertEqual(bench.used, [1, 2])
        self.assertEqual(drawn, [(8, "t.svg")])
        self.assertEqual(text.count("not timed: --case 9:"), 2)

    def test_a_case_is_repeated_by_its_label(self):
        bench = self.run_it()[3]
        for seed, number in bench.asked:
            again = self.run_it(case=f"{seed}:{number}")[3]
            self.assertEqual(set(again.asked), {(seed, number)})

    def test_cases_beyond_the_minutes_are_counted(self):
        _, text, lines, bench, _ = self.run_it(minutes=0)
        self.assertEqual((len(lines), bench.asked), (1, []))
        self.assertIn("10 of 10 cases were not reached", text)

    def test_a_lost_device_ends_the_run(self):
        bench = FakeBench()

        def lost(*_):
            raise sweep.Lost("an illegal memory access")
        bench.time = lost
        status, text, lines, *_ = self.run_it(bench)
        self.assertEqual((status, len(lines)), (1, 1))
        self.assertIn("and what follows: an illegal memory access", text)

    def test_progress_is_shown_every_ten_seconds_without_a_terminal(self):
        text, now = io.StringIO(), [0.0]
        progress = sweep.Progress(4, 100, text, lambda: now[0])
        for done, at in enumerate((0, 5, 12, 13)):
            now[0] = at
            progress(done, "exp")
        self.assertEqual(text.getvalue(), "# case 1 of 4, 100 s left: exp\n"
                                          "# case 3 of 4, 12 s left: exp\n")


if __name__ == "__main__":
    tally.main()
