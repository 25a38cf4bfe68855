#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the U-Net example as a process: interrupted, resumed, compiled, with wrong arguments.
Usage: unet.py PROGRAM"""
import csv
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

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


def packed(values, depth):
    """Bytes of a row of values of `depth` bits, of which the last byte is padded."""
    bits = "".join(f"{value:0{depth}b}" for value in values)
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def write_png(path, side, colour, row, depth=8):
    """Writes a square PNG image of equal rows, with `depth` bits per channel."""
    def chunk(name, data):
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check
    head = struct.pack(">IIBBBBB", side, side, depth, colour, 0, 0, 0)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) +
                   chunk(b"IDAT", zlib.compress((b"\0" + row) * side)) + chunk(b"IEND", b""))


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

    def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one(self):
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

    def pairs(self, name, masks, depth=8):
        """A folder of images whose left part is red; there their grey masks of `depth` bits have
        the value `masks`."""
        folder = os.path.join(self.folder, name)
        for part in "images", "masks":
            os.makedirs(os.path.join(folder, part))
        for i in range(20):
            edge = 4 + i % 9
            row = bytes(c for x in range(SIZE + 3)
                        for c in ((220, 30, 40) if x < edge else (40, 60, 70 + 5 * (x % 3))))
            write_png(os.path.join(folder, "images", f"{i:02}.png"), SIZE + 3, 2, row)
            write_png(os.path.join(folder, "masks", f"{i:02}.png"), SIZE + 3, 0,
                      packed([masks * (x < edge) for x in range(SIZE + 3)], depth), depth)
        return folder

    def test_pairs_of_files_train_and_resume(self):
        folder, runs = self.pairs("data", 1), []
        for i in range(2):
            out = os.path.join(self.folder, f"pairs{i}")
            more = ["--data", folder, "--classes", "2"]
            if i:  # half of the run first
                done = self.run_to_end(out, *more, "--steps", "75", "--width", "4")
                self.assertEqual(done.returncode, 0, done.stderr)
                more.append("--resume")
            done = self.run_to_end(out, *more, "--steps", "150", "--width", "4")
            if "libpng" in done.stderr and done.returncode:
                self.skipTest("no libpng")
            self.assertEqual(done.returncode, 0, done.stderr)
            runs.append(done.stdout)
        found = [float(re.search(r"IoU (0\.\d+|1\.0*)", text)[1]) for text in runs]
        self.assertGreater(found[0], 0.8)
        self.assertGreater(found[1], 0.8)
        self.assertTrue(os.path.exists(os.path.join(self.folder, "pairs0", "validation.png")))

    def test_wrong_pairs_are_named(self):
        out = os.path.join(self.folder, "wrong")
        done = self.run_to_end(out, "--data", self.pairs("more", 5), "--classes", "2")
        if "libpng" in done.stderr:
            self.skipTest("no libpng")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr,
                         r"masks/\d\d.png': expected classes below 2 in the mask, got 5")
        done = self.run_to_end(out, "--data", self.folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("found no PNG file", done.stderr)

    def test_a_missing_mask_is_named_before_training(self):
        folder = self.pairs("missing", 1)
        os.remove(os.path.join(folder, "masks", "13.png"))
        out = os.path.join(self.folder, "unmasked")
        done = self.run_to_end(out, "--data", folder, "--classes", "2")
        self.assertEqual(done.returncode, 1)
        self.assertIn("masks/13.png': No such file", done.stderr)
        self.assertFalse(os.path.exists(out))

    def test_pairs_that_do_not_fit_are_named_before_training(self):
        folder, out = self.pairs("sizes", 1), os.path.join(self.folder, "unfit")
        for _ in range(6):
            part, name = random.choice(("images", "masks")), f"{random.randrange(20):02}.png"
            path = os.path.join(folder, part, name)
            with open(path, "rb") as file:
                saved = file.read()
            side = random.choice((SIZE - 1, SIZE, SIZE + 2, SIZE + 4, 0))
            if side:
                row = bytes((3 if part == "images" else 1) * side)
                write_png(path, side, 2 if part == "images" else 0, row)
            else:
                with open(path, "wb") as file:
                    file.write(saved[:random.randrange(24)])
            done = self.run_to_end(out, "--data", folder, "--classes", "2")
            self.assertEqual(done.returncode, 1, (part, name, side))
            self.assertIn(f"{part}/{name}'", done.stderr)
            if side:
                for other in "images", "masks":
                    self.assertIn(f"{other}/{name}'", done.stderr)
                self.assertIn(f"{side} x {side} in", done.stderr)
            else:
                self.assertIn("expected a PNG image", done.stderr)
            self.assertFalse(os.path.exists(out))
            with open(path, "wb") as file:
                file.write(saved)

    def test_masks_of_any_depth_have_the_same_classes(self):
        logs = []
        for depth in 1, 2, 4, 8, 16:
            folder = self.pairs(f"depth{depth}", 1, depth)
            out = os.path.join(self.folder, f"of{depth}")
            done = self.run_to_end(out, "--data", folder, "--classes", "2")
            if "libpng" in done.stderr and done.returncode:
                self.skipTest("no libpng")
            self.assertEqual(done.returncode, 0, done.stderr)
            logs.append(log_of(out))
            self.assertEqual(logs[0], logs[-1])

    def test_drawn_scenes_have_three_classes(self):
        out = os.path.join(self.folder, "classes")
        for classes in "2", "5":
            done = self.run_to_end(out, "--classes", classes)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"'--classes': expected 3 .*, got {classes}")
            self.assertFalse(os.path.exists(out))

    def test_a_resumed_run_names_the_option_that_differs(self):
        out = os.path.join(self.folder, "options")
        shutil.copytree(self.straight, out)
        for option, saved, value in (("--batch", 4, 8), ("--width", 2, 3), ("--seed", 1, 2),
                                     ("--size", SIZE, 2 * SIZE)):
            done = self.run_to_end(out, "--resume", option, str(value))
            self.assertEqual(done.returncode, 1, option)
            self.assertIn(f"expected {option} {saved}, as in the saved run, got {value}",
                          done.stderr)
        done = self.run_to_end(out, "--resume", "--data", self.pairs("other", 1), "--classes", "2")
        self.assertIn("expected --classes 3, as in the saved run, got 2", done.stderr)
        done = self.run_to_end(out, "--resume", "--steps", "5")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"'--steps': expected at least {STEPS}, the step of the checkpoint, got 5",
                      done.stderr)
        self.assertEqual(log_of(out), log_of(self.straight))
        done = self.run_to_end(out, "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_first_of_several_errors_is_printed(self):
        done = self.run_to_end(os.path.join(self.folder, "one"), "--size", "16", "--batch", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("batch_norm_relu: argument 'self': expected more than one element per "
                      "channel", done.stderr)

    def test_a_size_that_cannot_be_halved_is_refused(self):
        done = self.run_to_end(os.path.join(self.folder, "odd"), "--size", "40")
        self.assertEqual(done.returncode, 1)
        self.assertIn("expected a multiple of 16, got 40", done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "odd")))


if __name__ == "__main__":
    tally.main()
