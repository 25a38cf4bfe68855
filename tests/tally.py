# SPDX-License-Identifier: MIT
"""Main function of tests in Python: runs unittest and appends the numbers of passed, failed and
skipped test methods to the file TS_TEST_TALLY."""
import fcntl
import os
import sys
import unittest


def main():
    result = unittest.main(exit=False, verbosity=2).result
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    skipped = len(result.skipped)
    passed = max(0, result.testsRun - failed - skipped)
    path = os.environ.get("TS_TEST_TALLY")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(f"{passed} {failed} {skipped} {os.path.basename(sys.argv[0])}\n")
    sys.exit(1 if failed or result.testsRun == 0 else 0)
