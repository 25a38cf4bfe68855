#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of tools/: each tool runs on a small made-up repository, build or system."""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tally  # noqa: E402
from tool_case import TOOLS, ToolCase, plain_environment  # noqa: E402


class Rooms(ToolCase):
    def setUp(self):
        super().setUp()
        self.write("include/tessera/core.h", "/* public */\n")
        self.write("core/tensor.h", '#include "tessera/core.h"\n')
        self.write("ops/kernels.h", "\n")
        self.write("ops/op.h", "\n")
        self.write("backends/cpu/vec.h", "\n")
        self.write("dispatch/call.c", '#include "core/tensor.h"\n')
        self.write("backends/cpu/add.c", '#include "vec.h"\n#include "ops/kernels.h"\n')
        self.write("nn/linear.c", "#include <tessera/core.h>\n#include <stdio.h>\n")
        self.write("tests/vec.c", '#include "backends/cpu/vec.h"\n')

    def refused(self, path, text, message):
        self.write(path, text)
        status, output = self.run_tool("rooms", self.folder)
        self.assertEqual(status, 1, output)
        self.assertIn(message, output)
        self.assertIn("\n1 errors\n", output)

    def test_allowed_includes_pass_and_are_counted(self):
        status, output = self.run_tool("rooms", self.folder)
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"dispatch +-> core +1\n")
        self.assertRegex(output, r"backends/cpu +-> ops +1\n")

    def test_the_reading_path_has_sizes_and_no_missing_file(self):
        self.write("README.md", "# x\n\n## A reading path\n\n`core/tensor.h`\n\n## End\n`a.c`\n")
        status, output = self.run_tool("rooms", self.folder)
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"  1  core/tensor.h\n +1  in 1 files\n")
        self.refused("README.md", "\n## A reading path\n`core/gone.c`", "names core/gone.c")
        self.refused("README.md", "\n## A reading path\nabout 2 lines: `core/tensor.h`",
                     "has 1 lines, not about 2 lines")

    def test_the_sizes_beside_the_reading_path_are_checked(self):
        self.write("core/large.c", "\n" * 600)
        self.write("tests/large.c", "\n" * 400)
        lines = [int(size) for size in re.findall(
            r"^(?:tests|all) +\d+ +(\d+)", self.run_tool("rooms", self.folder)[1], re.M)]
        whole, outside = lines[1], lines[1] - lines[0]
        said = "\n## A reading path\nabout {} lines of code, {} of them outside `tests/`"
        self.write("README.md", said.format(f"{whole:,}", outside))
        status, output = self.run_tool("rooms", self.folder)
        self.assertEqual(status, 0, output)
        self.refused("README.md", said.format(whole + 100, outside),
                     f"the repository has {whole} lines, not {whole + 100}")
        self.refused("README.md", said.format(whole, outside - 100),
                     f"the code outside tests/ has {outside} lines, not {outside - 100}")

    def test_upward_includes_are_refused(self):
        self.refused("core/bad.c", '\n#include "ops/op.h"\n',
                     "core/bad.c:2: core may not include ops")

    def test_a_private_header_in_nn_is_refused_in_any_spelling(self):
        for line in ('#include "core/tensor.h"', "# include <core/tensor.h>",
                     '#include "../core/tensor.h"'):
            self.refused("nn/bad.c", line, "nn may not include core")

    def test_a_public_header_includes_public_headers_only(self):
        self.refused("include/tessera/bad.h", '#include "core/tensor.h"', "may not include core")

    def test_no_room_includes_a_backend(self):
        self.refused("autograd/bad.c", '#include "backends/cpu/vec.h"',
                     "may not include backends/cpu")

    def test_a_backend_includes_no_other_backend(self):
        self.refused("backends/meta/bad.c", '#include "backends/cpu/vec.h"',
                     "backends/meta may not include backends/cpu")

    def test_a_backend_sees_only_the_kernel_headers_of_ops(self):
        self.refused("backends/cpu/bad.c", '#include "ops/op.h"', "may not include ops (ops/op.h)")

    def test_a_file_of_over_a_thousand_lines_is_refused(self):
        self.write("core/long.c", "\n" * 1000)
        self.assertEqual(self.run_tool("rooms", self.folder)[0], 0)
        self.refused("core/long.c", "\n" * 1001, "core/long.c: 1001 lines")

    def test_a_table_of_files_names_each_file_of_the_room_once(self):
        self.write("io/base.h", "")
        self.write("io/alloc.c", "")
        for named, wrong in (("`base.h` `alloc.c`", None), ("`base.h`", "alloc.c 0 times"),
                             ("`base.h` `alloc.c` `base.h`", "base.h 2 times"),
                             ("`base.h` `alloc.c` `gone.c`", "gone.c 1 times")):
            self.write("docs/architecture.md",
                       f"<!-- files: io -->\n| job | files |\n|---|---|\n| a | {named} |\n")
            status, output = self.run_tool("rooms", self.folder)
            self.assertEqual(status, 1 if wrong else 0, output)
            self.assertIn(wrong or "0 errors", output)

    def test_a_line_of_over_a_hundred_columns_is_refused_in_any_language(self):
        for path in ("core/wide.c", "tests/wide.py", "backends/cpu/wide.cuh", "tools/wide"):
            first = "#!/bin/sh\n"
            self.write(path, f"{first}# {'·' * 98}\n")  # columns, not bytes
            status, output = self.run_tool("rooms", self.folder)
            self.assertEqual(status, 0, output)
            self.refused(path, f"{first}# {'x' * 99}\n", f"{path}:2: 101 columns")
            os.remove(os.path.join(self.folder, path))

    @unittest.skipUnless(shutil.which("cc") and shutil.which("nm"), "needs cc and nm")
    def test_a_call_upward_is_refused_without_an_include(self):
        objects = os.path.join(self.folder, "build/libtessera.so.p")
        os.makedirs(objects)

        def compiled(name, text, *flags):
            self.write("build/source.c", text)
            subprocess.run(["cc", *flags, "-o", os.path.join(self.folder, "build", name),
                            os.path.join(self.folder, "build/source.c")], check=True)

        compiled("libtessera.so", "void ts_public(void) {}", "-shared", "-fPIC")
        compiled("libtessera.so.p/ops_add.c.o",
                 "void ts_public(void) {} void ts_own(void) {}", "-c")
        compiled("libtessera.so.p/nn_layer.c.o",
                 "void ts_public(void); void f(void) { ts_public(); }", "-c")
        status, output = self.run_tool("rooms", self.folder)
        self.assertEqual(status, 0, output)
        compiled("libtessera.so.p/core_bad.c.o", "void ts_own(void); void g(void) { ts_own(); }",
                 "-c")
        status, output = self.run_tool("rooms", self.folder)
        self.assertEqual(status, 1, output)
        self.assertIn("core/bad.c: core may not use ts_own of ops", output)


class CollectText(ToolCase):
    def setUp(self):
        super().setUp()
        for path, text in (("b.txt", "b"), ("a/z.c", "z"), ("a.c", "a"), ("B.md", "B"),
                           ("nul.bin", b"x\0y"), ("latin.txt", b"\xff\xfe"), (".hidden", "h"),
                           ("a/.hidden/file", "h"), ("\xe9.txt", "\xe9")):
            self.write(path, text)
        self.text = "Baz" + "b" + "\xe9"

    def collected(self, output="build/corpus.txt"):
        output = os.path.join(self.folder, output)
        status, said = self.run_tool("collect-text", output, "--root", self.folder)
        self.assertEqual(status, 0, said)
        with open(output, encoding="utf-8") as file:
            return file.read()

    def test_a_walk_is_sorted_by_bytes_and_leaves_binary_and_written_files_out(self):
        self.write("build/x.txt", "no")
        self.write("runs/log.csv", "no")
        self.assertEqual(self.collected(), self.text)
        self.assertEqual(self.collected("corpus.txt"), self.text, "it collected its own output")
        self.assertEqual(self.collected("corpus.txt"), self.text)

    @unittest.skipUnless(shutil.which("git"), "needs git")
    def test_git_gives_the_same_and_ignores_untracked_files(self):
        for command in (["init", "-q"], ["add", "-A"]):
            subprocess.run(["git", *command], cwd=self.folder, check=True, env=plain_environment())
        self.write("untracked.txt", "no")
        self.assertEqual(self.collected(), self.text)


class RunTests(ToolCase):
    """tools/run-tests with substitutes for ninja and meson."""

    def last_line(self, results, lines="", meson=0, ninja=0, also=()):
        log = "".join(json.dumps({"name": "n", "duration": 1.0, "returncode": 0, "stdout": "said",
                                  "command": [f"/b/{program}"], "result": result}) + "\n"
                      for program, result in results)
        self.write("results", log)
        self.write("lines", lines)
        self.write("bin/ninja", f'#!/bin/sh\necho "$*" >> built\nexit {ninja}\n', 0o755)
        self.write("bin/meson", '#!/bin/sh\necho "$*" >> ran\n'
                   'cp results $3/meson-logs/testlog.json\n'
                   f'cat lines >> "$TS_TEST_TALLY"\nexit {meson}\n', 0o755)
        for build in "b", "other":
            os.makedirs(os.path.join(self.folder, build, "meson-logs"), exist_ok=True)
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        status, output = self.run_tool("run-tests", "-C", "b", *also,
                                       env=plain_environment(PATH=path))
        *_, self.counts, last = output.splitlines()
        self.assertEqual(status, 0 if " 0 failed" in last else 1, output)
        return last

    def test_no_tests(self):
        self.assertEqual(self.last_line([]), "0 passed, 0 failed, 0 skipped")

    def test_tallies_are_summed_and_other_tests_count_one(self):
        self.assertEqual(self.last_line([("a", "OK"), ("b", "OK"), ("c", "OK"), ("d", "SKIP")],
                                        "10 0 2 a\n5 0 0 b\n"), "16 passed, 0 failed, 3 skipped")

    def test_the_line_before_the_last_splits_the_sum_and_counts_the_other_kinds(self):
        lines = "10 1 2 a samples=9 gradients=4\n1 0 0 b fuzz_inputs=500\n1 0 0 c gradients=1\n"
        self.assertEqual(self.last_line([("a", "FAIL"), ("b", "OK"), ("c", "OK")], lines),
                         "12 passed, 1 failed, 2 skipped")
        self.assertEqual(self.counts, "counts: 4 test cases, 9 samples, 5 gradient checks, "
                                      "0 wrong calls, 0 fault points, 500 fuzz inputs")

    def test_counted_failures_are_not_counted_twice(self):
        self.assertEqual(self.last_line([("a", "FAIL"), ("b", "OK")], "10 3 0 a\n1 0 0 b\n", 1),
                         "11 passed, 3 failed, 0 skipped")

    def test_a_crash_before_the_tally_is_a_failure(self):
        self.assertEqual(self.last_line([("a", "FAIL"), ("b", "TIMEOUT"), ("c", "OK")], "", 2),
                         "1 passed, 2 failed, 0 skipped")

    def test_a_failure_after_a_clean_tally_is_a_failure(self):
        self.assertEqual(self.last_line([("a", "FAIL")], "10 0 0 a\n", 1),
                         "10 passed, 1 failed, 0 skipped")

    def test_one_executable_that_runs_twice_and_dies_once(self):
        self.assertEqual(self.last_line([("a", "OK"), ("a", "FAIL")], "4 0 0 a\n", 1),
                         "4 passed, 1 failed, 0 skipped")

    def test_a_program_of_another_build_is_counted_with_the_others(self):
        also = ("--no-suite", "slow", "--also", "other:tests/some/prog")
        self.assertEqual(self.last_line([("a", "OK"), ("b", "OK")], "10 0 2 a\n", also=also),
                         "22 passed, 0 failed, 4 skipped")
        self.assertEqual(self.text_of("built"),
                         "-C b all meson-test-prereq\n-C other tests/some/prog\n")
        self.assertEqual(self.text_of("ran"), "test -C other --no-rebuild prog\n"
                         "test -C b --no-rebuild --no-suite=slow\n")
        self.assertEqual(self.last_line([("a", "FAIL")], "", 1, also=also),
                         "0 passed, 2 failed, 0 skipped")

    def test_named_tests_are_built_by_meson(self):
        self.assertEqual(self.last_line([("a", "OK")], also=("a", "--suite", "ops")),
                         "1 passed, 0 failed, 0 skipped")
        self.assertEqual(self.text_of("ran"), "test -C b a --suite=ops\n")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "built")))

    def test_a_runner_that_breaks_is_a_failure(self):
        self.assertEqual(self.last_line([], "", 1), "0 passed, 1 failed, 0 skipped")

    def test_a_build_that_breaks_is_a_failure(self):
        self.assertEqual(self.last_line([("a", "OK")], "", 0, 1), "0 passed, 1 failed, 0 skipped")


class Corpora(unittest.TestCase):
    """The seeds of tests/fuzz."""
    FOLDER = os.path.join(os.path.dirname(HERE), "fuzz", "corpus")

    def files(self):
        return [os.path.join(folder, name) for folder, _, names in os.walk(self.FOLDER)
                for name in names]

    def test_seeds_are_few_and_have_names(self):
        self.assertLessEqual(len(self.files()), 60)
        for path in self.files():
            self.assertRegex(os.path.basename(path), r"^[a-z][a-z0-9_]{1,39}$")

    def test_a_seed_of_a_call_begins_with_the_name_of_an_operator(self):
        operators = set()
        for table in ("ops.def", "training.def", "images.def"):
            path = os.path.join(os.path.dirname(TOOLS), "ops", table)
            with open(path, encoding="utf-8") as file:
                operators |= set(re.findall(r"^TS_OP\((\w+),", file.read(), re.M))
        seeds = [path for path in self.files() if path.split(os.sep)[-2] == "opcall"]
        self.assertGreater(len(seeds), 20)
        for path in seeds:
            with open(path, "rb") as file:
                name = file.readline().decode("ascii", "replace").rstrip("\n")
            self.assertIn(name, operators, path)


class Setup(ToolCase):
    """tools/setup with a PATH that contains only the test's programs; never a real apt-get."""

    def setUp(self):
        super().setUp()
        self.program("apt-get", 'echo "ran apt-get $*"')
        self.program("env", 'shift; "$@"')
        self.program("cmp", "exit 0")  # the Python packages of the site are there
        self.packages("gcc libc6-dev meson ninja-build pkg-config python3 "
                      "libjansson-dev libxxhash-dev libopenblas-dev libpng16-16 libdnnl2")
        self.user(1000)

    def program(self, name, script):
        self.write(f"bin/{name}", f"#!/bin/sh\n{script}\n", 0o755)

    def packages(self, names):
        self.program("dpkg-query", "".join(f"echo {name}=installed;" for name in names.split()))

    def user(self, number):
        self.program("id", f"echo {number}")

    def setup(self, *arguments):
        return self.run_tool("setup", *arguments, command=["/bin/sh"],
                             env={"PATH": os.path.join(self.folder, "bin"), "CC": "no-such-cc",
                                  "CXX": "no-such-c++"})

    def test_does_nothing_if_all_packages_are_installed(self):
        self.assertEqual(self.setup(), (0, ""))

    def test_root_installs_what_is_missing_and_says_which(self):
        self.user(0)
        status, output = self.setup("docs")
        self.assertEqual(status, 0, output)
        self.assertIn("missing Debian packages: doxygen python3-venv\n", output)
        self.assertIn("ran apt-get update", output)
        self.assertIn("ran apt-get install -y --no-install-recommends doxygen python3-venv\n",
                      output)

    def test_groups_add_up(self):
        self.user(0)
        _, output = self.setup("build", "test", "docs", "package")
        self.assertIn("packages: check python3-numpy valgrind g++ doxygen python3-venv cmake "
                      "groff-base\n", output)

    def test_others_use_sudo(self):
        self.program("sudo", 'echo "sudo $*"; shift; "$@"')
        status, output = self.setup("docs")
        self.assertEqual(status, 0, output)
        self.assertIn("sudo -n apt-get update", output)
        self.assertIn("ran apt-get install -y --no-install-recommends doxygen python3-venv\n",
                      output)

    def test_without_root_and_sudo_it_prints_the_line_and_changes_nothing(self):
        status, output = self.setup("docs")
        self.assertEqual(status, 1)
        self.assertIn("    apt-get update && apt-get install -y --no-install-recommends doxygen "
                      "python3-venv\n", output)
        self.assertNotIn("ran apt-get", output)

    def test_check_changes_nothing(self):
        self.user(0)
        status, output = self.setup("--check", "docs")
        self.assertEqual((status, output), 
                         (1, "setup: missing Debian packages: doxygen python3-venv\n"))
        self.assertEqual(self.setup("--check"), (0, ""))

    def test_an_installation_that_fails_is_an_error(self):
        self.user(0)
        self.program("apt-get", "exit 100")
        self.assertEqual(self.setup("docs")[0], 1)

    def test_a_program_without_its_package_counts_as_installed(self):
        self.user(0)
        self.program("doxygen", "exit 0")
        self.program("python3", "exit 0")
        self.assertEqual(self.setup("docs"), (0, ""))

    def test_the_packages_of_the_site_go_into_a_folder_of_the_build(self):
        self.program("doxygen", "exit 0")
        self.program("cmp", "/usr/bin/cmp \"$@\"")
        self.program("cp", "/bin/cp \"$@\"")
        self.program("python3", '[ "$2" = venv ] || exit 0\n/bin/mkdir -p "$4/bin"\n'
                     'echo "echo pip \\$*" >"$4/bin/pip"; /bin/chmod +x "$4/bin/pip"')
        self.write("docs/site/requirements.txt", "sphinx==9.9\n")
        self.write("build/build.ninja", "")
        with open(os.path.join(TOOLS, "setup"), encoding="utf-8") as file:
            tool = self.write("tools/setup", file.read())

        def setup(*words):
            done = subprocess.run(["/bin/sh", tool, *words], check=False, text=True,
                                  env={"PATH": os.path.join(self.folder, "bin")},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            return done.returncode, done.stdout

        said = "setup: Python packages of docs/site/requirements.txt, into build/docs-venv\n"
        self.assertEqual(setup("--check", "docs"), (1, said))
        status, output = setup("docs")
        self.assertEqual(status, 0, output)
        self.assertRegex(output, "pip install .*/docs/site/requirements.txt")
        self.assertEqual(setup("docs"), (0, ""))
        self.write("docs/site/requirements.txt", "sphinx==9.10\n")
        self.assertEqual(setup("--check", "docs"), (1, said))

    def test_other_systems_get_the_names(self):
        os.remove(os.path.join(self.folder, "bin/apt-get"))
        status, output = self.setup("docs")
        self.assertEqual(status, 1)
        self.assertIn("Debian names: gcc libc6-dev meson", output)
        self.assertIn("doxygen", output)

    def test_a_wrong_word_is_an_error(self):
        self.assertEqual(self.setup("everything")[0], 2)


class PtxasGate(ToolCase):
    FINE = ("ptxas info    : Compiling entry function '_Z4fineIfE' for 'sm_90a'\n"
            "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
            "ptxas info    : Used 168 registers, used 16 barriers\n")

    def judge(self, printed, listed="sum.cu fine\n", *options, path=os.environ["PATH"]):
        self.write("build/backends/cuda/sum.ptxas", printed)
        return self.run_tool("ptxas-gate", "build", self.write("list", listed), *options,
                             env=plain_environment(PATH=path))

    def test_kernels_without_spills_pass(self):
        self.assertEqual(self.judge(self.FINE), (0, "ptxas-gate: 1 kernels, 0 bad\n"))

    def test_a_listed_kernel_that_spills_fails_and_others_may(self):
        spilled = self.FINE.replace("0 bytes spill stores", "8 bytes spill stores")
        status, output = self.judge(spilled)
        self.assertEqual(status, 1)
        self.assertIn("_Z4fineIfE for sm_90a: 8 bytes of spills, 168 registers", output)
        self.assertEqual(self.judge(self.FINE + spilled.replace("fine", "other"))[0], 0)

    def test_a_line_that_no_kernel_fits_fails(self):
        self.assertEqual(self.judge(self.FINE, "sum.cu gone\n")[0], 1)

    def test_products_that_wait_for_each_other_fail_in_any_kernel(self):
        for remark in ("(C7520) Potential Performance Loss: "
                       "wgmma.mma_async instructions are serialized due to",
                       "(C7517) warpgroup.wait is injected in around line 76"):
            status, output = self.judge(f"ptxas info    : {remark} in function '_Z5other'\n"
                                        + self.FINE)
            self.assertEqual(status, 1)
            self.assertIn(remark, output)

    def test_accesses_that_the_compiler_split_fail_where_machine_code_can_be_read(self):
        def of(narrow, listed="sum.cu fine 2\n"):
            self.write("bin/cuobjdump", "#!/bin/sh\ncat <<'END'\n\tFunction : _Z4fineIfE\n"
                       + "\t/*0010*/  LDG.E.128 R4, desc[UR4][R2.64] ;\n"
                       + "\t/*0020*/  @P0 STG.E.U16 desc[UR4][R2.64+0x2], R4 ;\n" * narrow
                       + "\t/*0030*/  LDG.E.CONSTANT R4, desc[UR4][R2.64] ;\nEND\n", 0o755)
            return self.judge(self.FINE, listed, "--disassembler",
                              os.path.join(self.folder, "bin"))
        self.write("bin/nvdisasm", "", 0o755)
        self.assertEqual(of(2), (0, "ptxas-gate: 1 kernels, accesses of 1, 0 bad\n"))
        status, output = of(3)
        self.assertEqual(status, 1)
        self.assertIn("_Z4fineIfE for sm_90a: 3 accesses of less than 16 bytes", output)
        self.assertEqual(of(3, "sum.cu fineIf 3\nsum.cu fine 2\n")[0], 0, "the longest decides")
        self.assertEqual(of(3, "sum.cu fineIf 2\nsum.cu fine 3\n")[0], 1)

    def test_without_disassemblers_it_says_how_to_install_them(self):
        os.symlink(sys.executable, os.path.join(self.folder, "python3"))
        status, output = self.judge(self.FINE, "sum.cu fine 2\n", path=self.folder)
        self.assertEqual(status, 0)
        self.assertIn("pip install", output)

    def test_machine_code_that_cannot_be_read_is_an_error_that_says_so(self):
        self.write("bin/nvdisasm", "", 0o755)
        self.write("bin/cuobjdump", "#!/bin/sh\necho no such file >&2\nexit 1\n", 0o755)
        status, output = self.judge(self.FINE, "sum.cu fine 2\n", "--disassembler",
                                    os.path.join(self.folder, "bin"))
        self.assertEqual(status, 1)
        self.assertIn("sum.cu.o: no such file", output)



STAND_IN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static volatile long sink;
int main(int argc, char **argv)
{
    if (argc != 5 || strcmp(argv[1], "--only") != 0 || strcmp(argv[3], "--iters") != 0)
        return 2;
    int work = strcmp(argv[2], "heavy") == 0 ? 50 : 5;
    if (strcmp(argv[2], "deaf") == 0)
        return 0;
    for (long i = atol(argv[4]); i > 0; i--)
        for (int j = 0; j < work; j++)
            sink++;
    return 0;
}
"""


@unittest.skipUnless(shutil.which("valgrind") and shutil.which("cc"),
                     "needs valgrind and a compiler")
class Budgets(ToolCase):
    def setUp(self):
        super().setUp()
        source = self.write("bench.c", STAND_IN)
        self.program = os.path.join(self.folder, "bench")
        subprocess.run(["cc", "-O1", "-o", self.program, source], check=True)
        self.table = os.path.join(self.folder, "budgets.tsv")

    def budgets(self, *arguments):
        return self.run_tool("budgets", "--program", self.program, "--table", self.table,
                             *arguments)

    def read(self):
        with open(self.table, encoding="utf-8") as file:
            return dict(line.rstrip("\n").split("\t") for line in file if line[0] != "#")

    def test_update_then_pass_then_fail_over_three_percent(self):
        self.assertEqual(self.budgets("--update", "light", "heavy")[0], 0)
        values = self.read()
        light, heavy = float(values["light"]), float(values["heavy"])
        self.assertGreater(light, 5)
        self.assertGreater(heavy, 5 * light)
        status, output = self.budgets()
        self.assertEqual(status, 0, output)
        self.write("budgets.tsv", f"light\t{light / 1.02:.1f}\nheavy\t{heavy / 1.05:.1f}\n")
        status, output = self.budgets()
        self.assertEqual(status, 1, output)
        self.assertRegex(output, r"heavy .*OVER\n1 of 2 over budget")

    def test_errors_name_the_argument(self):
        self.assertIn("empty or missing", self.budgets()[1])
        self.write("budgets.tsv", "light 5\n")
        self.assertIn("budgets.tsv:1: expected NAME<TAB>INSTRUCTIONS", self.budgets()[1])
        self.write("budgets.tsv", "deaf\t5\n")
        status, output = self.budgets()
        self.assertEqual(status, 1)
        self.assertIn("is --iters ignored?", output)
        self.assertIn("has no other", self.budgets("other")[1])


class Help(ToolCase):
    def test_each_tool_prints_help_and_refuses_unknown_options(self):
        names = [entry.name for entry in sorted(os.scandir(TOOLS), key=lambda entry: entry.name)
                 if entry.is_file() and os.access(entry, os.X_OK)]
        self.assertIn("compile-cuda", names)
        for name in [*names, "../bench/compare.py", "../bench/study/run"]:
            status, output = self.run_tool(name, "--help")
            self.assertEqual(status, 0, f"{name}: {output}")
            self.assertGreater(len(output.split()), 15, name)
            status, output = self.run_tool(name, "--no-such-option")
            self.assertEqual(status, 2, f"{name}: {output}")
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    tally.main()
