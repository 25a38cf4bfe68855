#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of the installed library: each public header alone, and the symbols of the shared library.

Usage: test_library.py LIBRARY RELEASE, with RELEASE yes when assertions are compiled out and no
sanitizer is in.
"""
import glob
import os
import platform
import re
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tally  # noqa: E402

INCLUDE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "include")
LIBRARY = sys.argv.pop(1)
RELEASE = sys.argv.pop(1) == "yes"
# How a library ends or leaves its caller.
FORBIDDEN = {"abort", "exit", "_exit", "_Exit", "quick_exit", "__assert_fail", "__assert",
             "siglongjmp"}
SETJMP = re.compile(r"setjmp\.h|\blongjmp|_longjmp")
ROOMS = ("autograd", "backends", "compile", "core", "dispatch", "include", "io", "layers", "nn",
         "ops", "profile", "report", "tracing")


def symbols(*options):
    done = subprocess.run(["nm", "-D", *options, LIBRARY], check=True, text=True,
                          stdout=subprocess.PIPE)
    return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}


class Headers(unittest.TestCase):
    def compiled(self, compiler, standard, language):
        if not shutil.which(compiler):
            self.skipTest(f"needs {compiler}")
        headers = glob.glob("tessera/**/*.h", root_dir=INCLUDE, recursive=True)
        self.assertTrue(headers)
        for name in sorted(headers):
            # Twice, for the guard.
            source = f'#include "{name}"\n' * 2
            done = subprocess.run(
                [compiler, f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I",
                 INCLUDE,
                 "-fsyntax-only", "-x", language, "-"], input=source, text=True, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(done.returncode, 0, f"{name} as {standard}:\n{done.stdout}")

    def test_each_compiles_alone_as_c11(self):
        self.compiled("gcc", "c11", "c")

    def test_each_compiles_alone_as_c17(self):
        self.compiled("gcc", "c17", "c")

    def test_each_compiles_alone_as_cpp17(self):
        self.compiled("g++", "c++17", "c++")


@unittest.skipUnless(shutil.which("nm"), "needs nm")
class Symbols(unittest.TestCase):
    @unittest.skipUnless(RELEASE, "assertions or a sanitizer may end the process")
    def test_nothing_that_ends_the_process_is_imported(self):
        self.assertEqual(symbols("--undefined-only") & FORBIDDEN, set())

    def test_only_the_reader_of_png_files_jumps(self):
        """It jumps from libpng's frames back into its own."""
        root, found = os.path.dirname(INCLUDE), set()
        for name in glob.glob("**/*.[ch]*", root_dir=root, recursive=True):
            if name.split(os.sep)[0] in ROOMS:
                with open(os.path.join(root, name), encoding="utf-8") as file:
                    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read(), flags=re.S)
                if SETJMP.search(code):
                    found.add(name)
        self.assertEqual(found, {os.path.join("io", "png.c")})

    @unittest.skipUnless(RELEASE, "a sanitizer exports symbols of its own")
    def test_only_names_with_our_prefix_are_exported(self):
        strangers = {name for name in symbols("--defined-only")
                     if not name.startswith(("ts_", "TESSERA_"))}
        self.assertEqual(strangers, set())


@unittest.skipUnless(shutil.which("readelf"), "needs readelf")
class Hardening(unittest.TestCase):
    def read(self, *options):
        return subprocess.run(["readelf", "-W", *options, LIBRARY], check=True, text=True,
                              stdout=subprocess.PIPE).stdout

    def test_addresses_of_functions_are_read_only_before_the_first_call(self):
        self.assertIn("BIND_NOW", self.read("-d"))
        self.assertIn("GNU_RELRO", self.read("-l"))

    def test_the_stack_is_not_executable(self):
        stack = re.search(r"GNU_STACK.*", self.read("-l"))
        self.assertRegex(stack.group(), r" RW +0x")

    @unittest.skipUnless(platform.machine() == "x86_64", "a mark of x86-64 programs")
    def test_a_shadow_stack_is_allowed(self):
        self.assertIn("SHSTK", self.read("-n"))

    @unittest.skipUnless(RELEASE, "of release builds")
    def test_buffers_are_checked(self):
        self.assertIn("__stack_chk_fail", symbols("--undefined-only"))
        self.assertTrue({"__snprintf_chk", "__vsnprintf_chk"} & symbols("--undefined-only"))


if __name__ == "__main__":
    tally.main()
