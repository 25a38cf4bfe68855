#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of the MNIST example as a process, on IDX files that it draws. Usage: mnist.py PROGRAM"""
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tally  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
ENVIRONMENT = {**os.environ, "TS_NUM_THREADS": "1"}
SIDE = 12


class Mnist(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="tessera-mnist-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        draw = random.Random(1)
        shapes = [[draw.random() < 0.4 for _ in range(SIDE * SIDE)] for _ in range(10)]
        for part, n in ("train", 1500), ("t10k", 200):
            labels = bytes(draw.randrange(10) for _ in range(n))
            pixels = bytes(draw.randrange(120, 256) if on != (draw.random() < 0.1)
                           else draw.randrange(80) for k in labels for on in shapes[k])
            cls.write(f"{part}-images-idx3-ubyte", (n, SIDE, SIDE), pixels)
            cls.write(f"{part}-labels-idx1-ubyte", (n,), labels)

    @classmethod
    def write(cls, name, sizes, data):
        with open(os.path.join(cls.folder, name), "wb") as file:
            file.write(bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + data)

    def run_on(self, folder, *more):
        command = [PROGRAM, "--data", folder, "--device", "cpu", "--batch", "20", *more]
        return subprocess.run(command, check=False, text=True, env=ENVIRONMENT,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)

    def test_it_learns_the_shapes_and_saves_the_weights(self):
        weights = os.path.join(self.folder, "weights")
        done = self.run_on(self.folder, "--epochs", "6", "--save", weights)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = [float(x) for x in re.findall(r"test ([\d.]+) %", done.stdout)]
        self.assertEqual(len(found), 6)
        self.assertGreater(found[-1], 95)
        self.assertEqual(self.run_on(self.folder, "--epochs", "6").stdout, done.stdout)
        self.assertGreater(os.path.getsize(weights), 4 * 32 * (SIDE // 4) ** 2 * 10)

    def test_compiled_steps_have_the_results_of_eager_ones(self):
        files = [os.path.join(self.folder, name) for name in ("eager", "compiled")]
        runs = [self.run_on(self.folder, "--epochs", "2", "--save", files[0]),
                self.run_on(self.folder, "--epochs", "2", "--save", files[1], "--compile")]
        self.assertEqual(runs[1].returncode, 0, runs[1].stderr)
        self.assertEqual(runs[0].stdout, runs[1].stdout)
        weights = []
        for name in files:
            with open(name, "rb") as file:
                weights.append(file.read())
        self.assertTrue(weights[0] == weights[1], "the weights differ")

    def test_missing_files_are_named(self):
        done = self.run_on(os.path.join(self.folder, "absent"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("absent': expected the four files of MNIST, found no train-", done.stderr)

    def test_wrong_files_are_named_before_training(self):
        folder = os.path.join(self.folder, "wrong")
        os.mkdir(folder)
        for name, sizes, text in (
                ("train-images-idx3-ubyte", (5, 3, 3), "at least 4 x 4 pixels, got 3 x 3"),
                ("train-labels-idx1-ubyte", (4,), "got 5 train-images and 4 train-labels")):
            for part in "train", "t10k":
                self.write(f"wrong/{part}-images-idx3-ubyte", (5, 3, 3), bytes(45))
                self.write(f"wrong/{part}-labels-idx1-ubyte", (5,), bytes(5))
            self.write("wrong/" + name, sizes, bytes(math.prod(sizes)))
            done = self.run_on(folder)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(text, done.stderr)
            self.assertEqual(len(re.findall("^error: ", done.stderr, re.M)), 1, done.stderr)


if __name__ == "__main__":
    tally.main()
