#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that compiled steps of the mixed-precision example print what eager ones print.
Usage: mlp_amp.py PROGRAM"""
import os
import re
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tally  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
STEPS = 1000


class MixedPrecision(unittest.TestCase):
    def run_in(self, dtype, *more):
        done = subprocess.run([PROGRAM, dtype, str(STEPS), *more], check=False, text=True,
                              env={**os.environ, "TS_LOG": "compile"}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def compiled_equals_eager(self, dtype):
        eager, compiled = self.run_in(dtype), self.run_in(dtype, "--compile")
        self.assertEqual(len(re.findall(r"^step +\d+  loss ", eager.stdout, re.M)), 11)
        self.assertEqual(compiled.stdout, eager.stdout)
        self.assertNotIn("step: ", eager.stderr)
        self.assertIn("step: later calls run without the function", compiled.stderr)

    def test_bf16(self):
        self.compiled_equals_eager("bf16")

    def test_f16_with_its_scaler(self):
        self.compiled_equals_eager("f16")

    def test_f32(self):
        self.compiled_equals_eager("f32")


if __name__ == "__main__":
    tally.main()
