# SPDX-License-Identifier: MIT
"""Sums, extremes, norms and softmax have the same bits in each variant of the CPU kernels.

variants.py BITS VARIANT...: runs BITS (tests/cpu/bits.c) once per variant; MESON_EXE_WRAPPER, if
set, runs it for another architecture. The output must equal that of the first variant, and that of
another architecture, which the file TS_TEST_BITS contains.
"""
import functools
import os
import shlex
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tally  # noqa: E402 # pylint: disable=wrong-import-position

PROGRAM, *VARIANTS = sys.argv[1:]
del sys.argv[1:]
OTHER = os.environ.get("TS_TEST_BITS")


def hashes(text):
    """Parses the output of BITS: (variant, True if it has FMA, hashes by op and tensor)."""
    first, *rest = text.splitlines()
    variant, kind = first.removeprefix("variant ").split(": ")
    return variant, kind == "fma", dict(line.rsplit(": ", 1) for line in rest)


@functools.cache
def run(variant):
    command = shlex.split(os.environ.get("MESON_EXE_WRAPPER", "")) + [PROGRAM]
    return hashes(subprocess.run(command, env={**os.environ, "TS_ISA": variant}, text=True,
                                 check=True, stdout=subprocess.PIPE).stdout)


class Bits(unittest.TestCase):
    def same(self, one, other):
        groups = ("always", "fma") if one[1] and other[1] else ("always",)
        names = [name for name in one[2] if name.split()[0] in groups]
        self.assertEqual(one[2].keys(), other[2].keys())
        self.assertGreater(len(names), 1000)
        wrong = [name for name in names if one[2][name] != other[2][name]]
        self.assertEqual(len(wrong), 0, f"of {len(names)} lines of {one[0]} and {other[0]}: "
                                        f"{', '.join(wrong[:5])}")


def case(variant):
    def test(self):
        mine = run(variant)
        if mine[0] != variant:
            self.skipTest(f"this machine has no {variant}")
        self.same(run(VARIANTS[0]), mine)
    return test


for name in VARIANTS[1:]:
    setattr(Bits, f"test_{name}", case(name))

if OTHER or len(VARIANTS) == 1:
    def test_other_architecture(self):
        if not OTHER:
            self.skipTest("one variant, and TS_TEST_BITS names no file")
        with open(OTHER, encoding="utf-8") as file:
            self.same(hashes(file.read()), run(VARIANTS[0]))
    Bits.test_other_architecture = test_other_architecture

if __name__ == "__main__":
    tally.main()
