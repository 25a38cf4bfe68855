#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""package/tessera-gdb.py prints tensors: test_gdb.py PROGRAM SCRIPT."""
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import tally  # noqa: E402

PROGRAM, SCRIPT = map(os.path.abspath, sys.argv[1:3])
del sys.argv[1:]


def has_python():
    done = subprocess.run(["gdb", "-nx", "-batch", "-ex", "python print('yes')"], check=False,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout == "yes\n"


@unittest.skipUnless(shutil.which("gdb") and has_python(), "needs gdb with Python")
class Printer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        dtypes = ["continue", "print x"] * 8
        commands = [f"source {SCRIPT}", "break stop_here", "run", "print x", "print y",
                    "print dead", "print none", "print failed", "ts-tensor y", "ts-tensor x",
                    *dtypes, "continue", "print x", "print y", "print dead", "print none"]
        words = [word for command in commands for word in ("-ex", command)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DEBUGINFOD")}
        cls.done = subprocess.run(["gdb", "-nx", "-batch", *words, PROGRAM], check=False, text=True,
                                  env=environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        cls.lines = cls.done.stdout.split("\n")
        cls.printed = [line.split(" = ", 1)[1] for line in cls.lines if line.startswith("$")]

    def setUp(self):
        if "ptrace" in self.done.stdout or "Cannot create process" in self.done.stdout:
            self.skipTest("nothing may be traced here")
        self.assertGreater(len(self.printed), 16, self.done.stdout)

    def test_values_follow_the_strides(self):
        self.assertEqual(self.printed[0], "f32 (2, 3) cpu [[1, 2, 3], [4, 5, 6]]")
        self.assertEqual(self.printed[1], "f32 (3, 2) cpu [[1, 4], [2, 5], [3, 6]]")

    def test_a_value_that_is_no_tensor_is_shown_as_such(self):
        self.assertRegex(self.printed[2], "^released tensor at 0x")
        self.assertEqual(self.printed[3:5], ["TS_NONE", "NULL"])

    def test_each_dtype(self):
        self.assertEqual(self.printed[5:13], [
            "f64 (2) cpu [0, 1.5]", "f32 (2) cpu [0, 1.5]", "bf16 (2) cpu [0, 1.5]",
            "f16 (2) cpu [0, 1.5]", "i64 (2) cpu [0, 1]", "i32 (2) cpu [0, 1]",
            "u8 (2) cpu [0, 1]", "bool (2) cpu [false, true]"])

    def test_long_empty_and_device_tensors(self):
        self.assertRegex(self.printed[13], r"^i64 \(1000\) cpu \[0, 1, .*, 59, \.\.\.\]$")
        self.assertEqual(self.printed[14:17], ["f32 (4) meta (values are on the device)",
                                               "f64 () cpu 2.5", "f32 (0, 3) cpu []"])

    def test_the_command_shows_the_header(self):
        at = self.lines.index("f32 (3, 2) cpu")
        self.assertEqual(self.lines[at + 1:at + 3], ["strides      (1, 3), a view",
                                                     "requires     grad, made by a recorded call"])
        at = self.lines.index("f32 (2, 3) cpu")
        self.assertEqual(self.lines[at + 1:at + 5], [
            "strides      (3, 1), contiguous", "requires     grad, leaf", "references   1",
            "version      0, of the storage"])
        self.assertEqual(self.lines[at + 6], "[[1, 2, 3], [4, 5, 6]]")


if __name__ == "__main__":
    tally.main()
