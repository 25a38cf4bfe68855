#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of the U-Net example as a process: interrupted, resumed, compiled, misused.
Usage: unet.py PROGRAM"""
import csv
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tally  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
ENVIRONMENT = {**os.environ, "TS_NUM_THREADS": "1"}
STEPS, SIZE = 8, 16


def log_of(folder):
    """Columns of a log that are equal in two runs with the same seed."""
    with open(os.path.join(folder, "log.csv"), newline="", encoding="ascii") as file:
        return [[row[name] for name in ("step", "loss", "val_iou", "val_accuracy", "lr")]
                for row in csv.DictReader(file)]


class UNet(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="tessera-unet-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.straight = os.path.join(cls.folder, "straight")
        done = cls.run_to_end(cls.straight)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        cls.output = done.stdout

    @classmethod
    def command(cls, out, *more):
        return [PROGRAM, "--out", out, "--device", "cpu", "--steps", str(STEPS), "--size",
                str(SIZE), "--width", "2", "--batch", "4", "--save-every", "3", "--val-every", "4",
                *more]

    @classmethod
    def run_to_end(cls, out, *more):
        return subprocess.run(cls.command(out, *more), check=False, text=True, env=ENVIRONMENT,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)

    def test_a_run_writes_its_files(self):
        log = log_of(self.straight)
        self.assertEqual([row[0] for row in log], [str(i + 1) for i in range(STEPS)])
        self.assertLess(float(log[-1][1]), float(log[0][1]))
        self.assertEqual([row[0] for row in log if row[2]], ["4", "8"])
        self.assertIn("held-out scenes: IoU 0.", self.output)
        self.assertTrue(os.path.exists(os.path.join(self.straight, "loss.svg")))
        picture = os.path.join(self.straight, "validation.png")
        if os.path.exists(picture):  # the build has libpng
            with open(picture, "rb") as file:
                head = file.read(24)
            self.assertEqual(head[:8], b"\x89PNG\r\n\x1a\n")
            self.assertEqual(struct.unpack(">II", head[16:]), (8 * SIZE, 3 * SIZE))

    def test_interrupted_and_resumed_equals_straight(self):
        for turn in range(20):  # a signal that is late gets more turns
            out = os.path.join(self.folder, f"stopped{turn}")
            with subprocess.Popen(self.command(out), env=ENVIRONMENT, text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE) as run:
                while run.poll() is None and not os.path.exists(f"{out}/checkpoints/3"):
                    time.sleep(0.002)
                run.send_signal(signal.SIGTERM)
                errors = run.communicate()[1]
            if run.returncode != 0:
                break
        self.assertEqual(run.returncode, 128 + signal.SIGTERM, errors)
        self.assertIn("--resume", errors)
        done = self.run_to_end(out, "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(log_of(out), log_of(self.straight))
        self.assertEqual(done.stdout.splitlines()[0], self.output.splitlines()[0])

    def test_compiled_steps_have_the_same_bits(self):
        out = os.path.join(self.folder, "compiled")
        done = self.run_to_end(out, "--compile")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(log_of(out), log_of(self.straight))

    def test_mixed_precision_computes_other_bits_of_the_same_training(self):
        out = os.path.join(self.folder, "amp")
        done = self.run_to_end(out, "--amp")
        self.assertEqual(done.returncode, 0, done.stderr)
        first, second = log_of(out), log_of(self.straight)
        self.assertNotEqual(first, second)
        for a, b in zip(first, second):
            self.assertAlmostEqual(float(a[1]), float(b[1]), delta=0.05)

    def test_a_size_that_cannot_be_halved_is_refused(self):
        done = self.run_to_end(os.path.join(self.folder, "odd"), "--size", "40")
        self.assertEqual(done.returncode, 1)
        self.assertIn("expected a multiple of 16, got 40", done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "odd")))


if __name__ == "__main__":
    tally.main()
