#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of bench/figures/ and tools/figures: heads of result files, and tables of both forms."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(SOURCE / "bench"), str(SOURCE / "tests")]
import tally  # noqa: E402
from figures import files, pages  # noqa: E402
from peers.cuda_suite import class_of  # noqa: E402


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tessera-figures-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, *lines):
        (self.folder / name).write_text("".join(line + "\n" for line in lines), "utf-8")


class Heads(Folder):
    def file(self, *lines):
        self.write("a.tsv", *lines)
        with mock.patch.object(files, "RESULTS", self.folder):
            return files.File("a.tsv")

    def test_a_command_has_no_output_choice_or_note(self):
        for text, command in (
                ("bench/compare.py --suite cpu --realtime --out bench/results/a.tsv",
                 "bench/compare.py --suite cpu --realtime"),
                ("bench/compare.py --suite steps --build . --commit abc --only '^(a|b) c$'",
                 "bench/compare.py --suite steps --build build-cuda"),
                ("bench/compare.py --build build-cuda; some rows by a later run, at abc",
                 "bench/compare.py --build build-cuda"),
                ("make train (1,000 bytes)", "make train")):
            self.assertEqual(self.file(f"# command: {text}").command, command)

    def test_a_missing_commit_or_date_is_said(self):
        self.assertEqual(self.file("# machine: M").source, "M; date not recorded; "
                         "commit not recorded")
        self.assertEqual(self.file("# machine: M", "# date: D", "# commit: C",
                                   "# command: c; rows by a later run").source,
                         "M; D; commit C; rows by a later run")

    def test_files_whose_rows_were_read_are_known(self):
        file = self.file("# machine: M", "a\tb", "1\t2")
        files.File.read.clear()
        self.assertEqual(file.find(a="1"), {"a": "1", "b": "2"})
        self.assertIs(files.File.read["a.tsv"], file)


class Tables(Folder):
    def test_groups_are_read_from_both_forms(self):
        self.write("compile-h100.tsv", "function\tshape\tgroups_us\tcompiled_us\teager_us\tcopy_us",
                   "cos, cos\t16 f32\t1\t2\t3\t4")
        with mock.patch.object(files, "RESULTS", self.folder):
            self.assertEqual(pages.groups().splitlines()[2:],
                             ["| cos, cos | 16 f32 | 1 | 2 | 3 | 4 |"])
        self.write("compile-h100.tsv",
                   "op\tshape\tdtype\tours_us\teager_us\tcompiled_us\troof_us\tof_roof\tnote",
                   "cos cos\t16\tf32\t1.0\t3.0\t2.0\t4.0\t4.000\t",
                   "mul total\t4x4\tf32\t-\t-\t-\t-\t-\tfailed",
                   "drawn 1: x0 sin x1 add\t4x4\tf16\t5.0\t7.0\t6.0\t8.0\t1.600\t")
        with mock.patch.object(files, "RESULTS", self.folder):
            self.assertEqual(pages.groups().splitlines()[2:], [
                "| cos, cos | 16 f32 | 1.0 | 2.0 | 3.0 | 4.0 |",
                "| drawn 1, 2 calls with a sine | 4 × 4 f16 | 5.0 | 6.0 | 7.0 | 8.0 |"])

    def test_the_file_of_an_h200_is_preferred(self):
        self.write("decode-h100.tsv", "a")
        with mock.patch.object(files, "RESULTS", self.folder):
            self.assertEqual(files.recorded("decode-{}.tsv").name, "decode-h100.tsv")
            self.write("decode-h200.tsv", "a")
            self.assertEqual(files.recorded("decode-{}.tsv").name, "decode-h200.tsv")

    def test_a_cell_may_contain_a_bar(self):
        self.assertIn(r"| `a\|b` |", files.table(("command",), [("`a|b`",)]))

    def test_convolutions_are_no_rows(self):
        for op, shape, expected in (
                ("softmax", "4x8", "rows"), ("layer_norm_backward", "4x8", "rows, backward"),
                ("add", "64", "pointwise"), ("conv", "4x3 -> 8", "convolutions"),
                ("conv_transpose_backward", "4x3", "convolutions, backward"),
                ("cross_entropy_grad", "4x8", None), ("mm for dx", "4x8 by 8x4", None)):
            self.assertEqual(class_of(op, shape), expected)


class Index(Folder):
    def test_a_file_that_no_page_reads_is_an_error(self):
        for name in ("bench/figures", "bench/peers", "bench/results", "docs"):
            shutil.copytree(SOURCE / name, self.folder / name, ignore=lambda folder, names: [
                n for n in names if folder.endswith("docs") and not n.endswith(".md")])
        os.makedirs(self.folder / "tools")
        for name in ("tools/figures", "README.md"):
            shutil.copy(SOURCE / name, self.folder / name)
        check = [sys.executable, self.folder / "tools/figures", "--check"]
        subprocess.run(check, check=True)
        self.write("bench/results/unread.tsv", "# machine: M", "a")
        done = subprocess.run(check, check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no page reads or names bench/results/unread.tsv", done.stderr)


if __name__ == "__main__":
    tally.main()
