#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of the Makefile's settings, in a folder whose programs write down their arguments."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tally  # noqa: E402

MAKEFILE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "Makefile")
RECORDER = "#!/bin/sh\nfor word; do printf '%s\\n' \"$word\"; done >\"$0.arguments\"\n"
PROGRAMS = ("build/examples/train_gpt", "build/examples/unet", "bin/ninja", "bin/meson",
            "tools/collect-text", "tools/setup", "tools/fuzz")


@unittest.skipUnless(shutil.which("make"), "needs make")
class Settings(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tessera-make-")
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copy(MAKEFILE, self.folder)
        for path in PROGRAMS:
            whole = os.path.join(self.folder, path)
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            with open(whole, "w", encoding="utf-8") as file:
                file.write(RECORDER)
            os.chmod(whole, 0o755)
        for path in ("build/build.ninja", "build-fuzz/build.ninja"):
            os.makedirs(os.path.join(self.folder, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(self.folder, path), "w", encoding="utf-8"):
                pass

    def make(self, program, *words):
        path = os.path.join(self.folder, "bin") + os.pathsep + os.environ["PATH"]
        plain = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
        done = subprocess.run(["make", *words], cwd=self.folder, env={**plain, "PATH": path},
                              text=True, check=False, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(os.path.join(self.folder, program + ".arguments"), encoding="utf-8") as file:
            return file.read().splitlines()

    def trained(self, *words):
        return self.make("build/examples/train_gpt", "train", *words)

    def test_without_settings_the_defaults_are_used(self):
        self.assertEqual(self.trained(), ["--data", "build/corpus.txt", "--out", "runs/gpt",
                                          "--overwrite"])

    def test_only_the_default_folder_is_overwritten_without_a_request(self):
        self.assertNotIn("--overwrite", self.trained("OUT=runs/mine"))
        self.assertNotIn("--overwrite", self.trained("RESUME=1"))
        self.assertIn("--overwrite", self.trained("OUT=runs/mine", "OVERWRITE=1"))

    def test_each_setting_becomes_its_option(self):
        words = self.trained("STEPS=5", "OUT=a b", "SEED=7", "DATA=c", "RESUME=1", "DEVICE=cpu")
        self.assertEqual(words, ["--data", "c", "--out", "a b", "--device", "cpu", "--steps", "5",
                                 "--seed", "7", "--resume"])

    def test_the_unet_takes_the_same_settings(self):
        self.assertEqual(self.make("build/examples/unet", "unet"),
                         ["--out", "runs/unet", "--overwrite"])
        self.assertEqual(self.make("build/examples/unet", "unet", "OUT=a b", "STEPS=5", "AMP=1"),
                         ["--out", "a b", "--steps", "5", "--amp"])
        self.assertEqual(self.make("build/examples/unet", "unet", "OUT=a", "SIZE=3 2", "WIDTH=$x",
                                   "BATCH=9", "DATA=d", "CLASSES=4", "DEVICE=cpu"),
                         ["--out", "a", "--device", "cpu", "--data", "d", "--classes", "4",
                          "--size", "3 2", "--width", "$x", "--batch", "9"])

    def test_no_setting_is_run(self):
        for value in ("x'; touch pwned; echo '", "$(shell touch pwned)", "$$(touch pwned)",
                      "`touch pwned`", '"; touch pwned; "', "a\\$b"):
            for setting in ("OUT", "DATA", "DEVICE", "STEPS", "SEED"):
                words = self.trained(f"{setting}={value}")
                self.assertIn(value, words)
                self.assertFalse(os.path.exists(os.path.join(self.folder, "pwned")), value)

    def test_the_fuzzer_gets_its_settings_as_text(self):
        words = self.make("tools/fuzz", "fuzz", "SECONDS=9", "HARNESS=a'b")
        self.assertEqual(words, ["--seconds", "9", "a'b"])
        self.assertEqual(self.make("tools/fuzz", "fuzz"), [])


if __name__ == "__main__":
    tally.main()
