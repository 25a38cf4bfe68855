#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Hostile command lines: each program prints --help, and refuses unknown arguments. Usage:
command_lines.py PROGRAM..."""
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tally  # noqa: E402

PROGRAMS = {os.path.basename(path): os.path.abspath(path) for path in sys.argv[1:]}
del sys.argv[1:]
# For each program: (arguments before a number, name of the number in an error message).
NUMBERS = {"mlp": [([], "STEPS")], "mlp_amp": [(["bf16"], "STEPS")],
           "train_gpt": [(["--data", __file__, "--" + name], "--" + name)
                         for name in ("steps", "seed", "save-every", "val-every", "sample")],
           "unet": [(["--" + name], "--" + name)
                    for name in ("steps", "seed", "size", "width", "batch", "save-every",
                                 "val-every")],
           "bench_dispatch": [(["--only", "noop_call", "--iters"], "--iters")],
           "ts-conformance": [(["--backend", "meta", "--" + name], "--" + name)
                              for name in ("jobs", "timeout")]}
NO_NUMBERS = ("1e3", "ten", "5x", "0x5", " 5", "5 ", "+5", "1.5", "1,000", "", "-9",
              "99999999999999999999", "nan", "5\n", "٣")


class CommandLines(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_program(self, name, *words, out=subprocess.PIPE):
        return subprocess.run([PROGRAMS[name], *words], check=False, text=True, cwd=self.folder,
                              stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE,
                              timeout=60)

    def refused(self, name, *words, says):
        done = self.run_program(name, *words)
        self.assertEqual(done.returncode, 2, (name, words, done.stderr))
        self.assertIn(says, done.stderr, (name, words))
        self.assertEqual(done.stdout, "", (name, words))
        self.assertEqual(os.listdir(self.folder), [], (name, words))

    def test_help_is_there(self):
        for name in PROGRAMS:
            done = self.run_program(name, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            self.assertIn("usage: " + name, done.stdout.lower())
            self.assertIn("--help", done.stdout)
            with open("/dev/full", "w", encoding="ascii") as full:
                done = self.run_program(name, "--help", out=full)
            self.assertNotEqual(done.returncode, 0, name)

    def test_output_that_cannot_be_written_is_an_error(self):
        for name, words in {"ts-conformance": ["--list"], "bench_dispatch": ["--list"],
                            "trace": ["dot"], "my_layer": [], "my_op": []}.items():
            if name in PROGRAMS:
                with open("/dev/full", "w", encoding="ascii") as full:
                    done = self.run_program(name, *words, out=full)
                self.assertNotEqual(done.returncode, 0, name)
                self.assertIn("cannot write to standard output", done.stderr, name)

    def test_unknown_arguments_are_refused(self):
        for name in PROGRAMS:
            self.refused(name, "--nonsense", says="--nonsense")
            self.refused(name, "-x", says="x")
            known = {"train_gpt": ["--data", "x"], "mlp": ["7"], "mlp_amp": ["bf16", "7"],
                     "trace": ["dot"], "plot_cuda": ["a", "b"]}.get(name, [])
            self.refused(name, *known, "more", says="'more'")

    def test_numbers_are_strict(self):
        for name in NUMBERS:
            for before, option in NUMBERS[name] if name in PROGRAMS else []:
                for text in NO_NUMBERS:
                    self.refused(name, *before, text,
                                 says=text.strip() if text == "-9" and option == "STEPS"
                                 else option.strip("-"))

    def test_a_value_is_not_an_option(self):
        for words in (["--data"], ["--data", "--resume"], ["--data", ""], ["--data="],
                      ["--data", "x", "--out", "--overwrite"], ["--data", "x", "--resume=1"], []):
            self.refused("train_gpt", *words, says="usage: train_gpt")


if __name__ == "__main__":
    tally.main()
