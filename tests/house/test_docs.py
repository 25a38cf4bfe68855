#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What docs/add-an-op.md says compiles: test_docs.py BUILD SOURCE.

A comment `<!-- FILE, before TEXT -->` or `after TEXT` in front of a block of code says where the
block goes: in front of the line that holds TEXT, or behind it. The test does so in a copy of the
tree, writes what follows from the rows, and compiles each file that changed, with the flags of the
build.
"""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import tally  # noqa: E402

BUILD, SOURCE = map(os.path.abspath, sys.argv[1:3])
del sys.argv[1:]
BLOCK = re.compile(r"<!-- (\S+), (before|after) (.*?) -->\n```c\n(.*?)```", re.S)
COPIED = ("autograd", "backends", "conformance", "core", "dispatch", "docs", "include", "layers",
          "ops", "tests/ops", "tools", "init.h")


def page():
    with open(os.path.join(SOURCE, "docs/add-an-op.md"), encoding="utf-8") as file:
        return BLOCK.findall(file.read())


def insert(path, place, text, block):
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    found = [i for i, line in enumerate(lines) if text in line]
    if len(found) != 1:
        raise AssertionError(f"{path}: {len(found)} lines hold {text!r}")
    at = found[0] + (place == "after")
    lines[at:at] = block.rstrip("\n").split("\n")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))


class AddAnOp(unittest.TestCase):
    def test_what_the_page_adds_compiles(self):
        with tempfile.TemporaryDirectory(prefix="tessera-docs-") as folder:
            for name in COPIED:
                path = os.path.join(SOURCE, name)
                copy = shutil.copytree if os.path.isdir(path) else shutil.copy
                copy(path, os.path.join(folder, name))
            touched = set()
            for file, place, text, block in page():
                insert(os.path.join(folder, file), place, text, block)
                touched.add(file)
            self.assertEqual(len(touched), 5, touched)
            subprocess.run([os.path.join(folder, "tools/make-ops"), "--root", folder], check=True,
                           stdout=subprocess.DEVNULL)
            self.compile(folder, touched | {"ops/table.c", "ops/generated.c", "autograd/rules.c"})

    def compile(self, folder, touched):
        with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
            commands = json.load(file)
        seen = set()
        for command in commands:
            source = os.path.relpath(os.path.join(command["directory"], command["file"]), SOURCE)
            words = shlex.split(command["command"])
            if source not in touched - seen or "-c" not in words:
                continue
            seen.add(source)  # one of those that are compiled for several instruction sets
            here = os.path.join(folder, "build")
            os.makedirs(here, exist_ok=True)
            words[words.index("-c") + 1] = os.path.join(folder, source)
            words = [w for i, w in enumerate(words) if w not in ("-MD", "-MQ", "-MF", "-o")
                     and words[i - 1] not in ("-MQ", "-MF", "-o")]
            done = subprocess.run(words + ["-fsyntax-only", "-Werror"], cwd=here, check=False,
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(done.returncode, 0, done.stdout)
        # those of a GPU are compiled where the backend is built
        self.assertLessEqual({file for file in touched if file.endswith(".c")}, seen)


if __name__ == "__main__":
    tally.main()
