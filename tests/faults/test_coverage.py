#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Each exported function is swept by the programs of this folder or listed in exempt.txt.

Usage: test_coverage.py LIBRARY EXEMPT HEADER PROGRAM...
HEADER declares the functions generated from ops.def; ops.c sweeps these by their rows. The section
ts_faults of a program contains the texts of the expressions that it sweeps.
"""
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import tally  # noqa: E402

LIBRARY, EXEMPT, HEADER, *PROGRAMS = sys.argv[1:]
del sys.argv[1:]


# (ts_manual_seed(5), ts_uniform_(x)): the code before the last comma is preparation
PREPARES = re.compile(r"(ts_rng_set_state\(\(ts_rng_state\){9, 0}\)|ts_manual_seed\(\d\)|"
                      r"ts_zero_grad\([wy]\)|rewind\(out\)), ")


def output(*command):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def exported():
    lines = output("nm", "-D", "--defined-only", LIBRARY).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] in "TW"}


def swept():
    """Names of the functions that are called first in a swept text; inner calls are arguments."""
    names = set()
    for program in PROGRAMS:
        for line in output("readelf", "-p", "ts_faults", program).splitlines():
            text = line.split("]", 1)[-1]
            found = re.search(r"\b(ts_\w+)\(", PREPARES.sub("", text))
            names |= {found.group(1)} if found else set()
    return names


def generated():
    with open(HEADER, encoding="utf-8") as file:
        return set(re.findall(r"^TS_API [^(]*\b(ts_\w+)\(", file.read(), re.MULTILINE))


def exempt():
    rows = {}
    with open(EXEMPT, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                name, reason = line.split(None, 1)
                rows[name] = reason.strip()
    return rows


class Coverage(unittest.TestCase):
    maxDiff = None

    def test_each_exported_function_is_swept_or_exempt(self):
        self.assertEqual(sorted(exported() - swept() - generated() - set(exempt())), [],
                         "sweep them in tests/faults/calls_*.c, or say in exempt.txt why not")

    def test_only_existing_functions_without_a_sweep_are_exempt(self):
        self.assertEqual(sorted(set(exempt()) & swept()), [])
        self.assertEqual(sorted(set(exempt()) - exported()), [])

    def test_each_exemption_has_a_reason(self):
        self.assertEqual([name for name, reason in exempt().items() if len(reason) < 10], [])


if __name__ == "__main__":
    tally.main()
