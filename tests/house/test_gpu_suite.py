#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of tools/gpu-suite."""
import glob
import json
import os
import re
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tally  # noqa: E402
from tool_case import TOOLS, ToolCase, plain_environment  # noqa: E402


class GpuSuite(ToolCase):
    """tools/gpu-suite as it is carried, with programs that write down how they are called."""

    FAMILIES = ("attention", "matmul", "reduce")

    def setUp(self):
        super().setUp()
        for name in ("gpu-suite", "racecheck.txt"):
            shutil.copy(os.path.join(TOOLS, name), self.folder)
        self.write("sources.sha256", "abc\n")
        self.write("ptx80/libtessera_cuda.so.0", "")
        self.write("bin/nvidia-smi", "#!/bin/sh\necho A GPU, 1\n", 0o755)
        note = ('#!/bin/sh\necho "${0##*/} $* force=$CUDA_FORCE_PTX_JIT cache=$CUDA_CACHE_PATH '
                'most=$CUDA_CACHE_MAXSIZE library=$TS_CUDA" >> calls\n')
        listed = "".join(f"{family}\\top\\n" for family in self.FAMILIES)
        self.conformance = note + (f'[ "$1" = --list ] && {{ printf "{listed}"; exit 0; }}\n'
                                   'while [ $# -gt 0 ]; do [ "$1" = --json ] && cp card.json "$2"; '
                                   'shift; done\necho "cuda:0: conforms"\n')
        self.write("ts-conformance", self.conformance, 0o755)
        for name in ("test_cuda", "test_cuda_attention", "test_cuda_blocks", "test_cuda_rows"):
            self.write(name, note + f"echo {name}: 5 passed, 0 failed, 1 skipped\n", 0o755)
        self.card()

    def card(self, **verdicts):
        ops = [{"op": op, "dtypes": {"i64": {"verdict": verdict}}}
               for op, verdict in verdicts.items()]
        self.write("card.json", json.dumps({"cards": [{"ops": ops}]}))

    def suite(self, *arguments):
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        status, output = self.run_tool(os.path.join(self.folder, "gpu-suite"), "run", *arguments,
                                       env=plain_environment(PATH=path, PYTHONPATH=self.folder))
        with open(os.path.join(self.folder, "gpu.json"), encoding="utf-8") as file:
            return status, output, json.load(file)

    def calls(self):
        with open(os.path.join(self.folder, "calls"), encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file]

    def test_ptx_is_compiled_by_many_before_samples_and_these_before_tests(self):
        status, output, found = self.suite("--only", "ptx80")
        self.assertEqual(status, 0, output)
        steps = found["ptx80"]["steps"]
        self.assertEqual(list(steps),
                         ["compiled", "samples", "products", "compiled without force", "tests"])
        self.assertEqual(steps["tests"]["verdict"], "20 passed, 0 failed, 4 skipped")
        self.assertTrue(all(step["seconds"] >= 0 for step in steps.values()))
        calls = [line for line in self.calls() if "--list" not in line]
        order = ["samples" if "--json" in call else "tests" if call.startswith("test_cuda ")
                 else "compile"
                 for call in calls]
        many = order.index("samples")
        self.assertGreater(many, 15, "a process for each file")
        self.assertEqual(order[many:many + 2], ["samples", "samples"])
        self.assertEqual(order.index("tests"), 2 * many + 2)
        self.assertTrue(all("force=1 " in call for call in calls[:many + 1]))
        self.assertFalse(any("force=1 " in call for call in calls[many + 1:]))
        self.assertIn("--no-isolate --op op force=1", calls[many])
        self.assertIn("--family attention,convolution,matmul force= ", calls[many + 1])

    def test_what_the_driver_compiles_lies_in_one_folder_that_goes_away(self):
        self.suite("--only", "ptx80")
        caches = {line.split("cache=")[1].split()[0]
                  for line in self.calls() if "--list" not in line}
        self.assertEqual(len(caches), 1)
        self.assertFalse(os.path.exists(caches.pop()))
        rest = f"most={1 << 30} library={self.folder}/ptx80/libtessera_cuda.so.0"
        self.assertTrue(all(line.endswith(rest) for line in self.calls() if "--list" not in line))

    def test_a_step_that_takes_too_long_fails_and_the_next_runs(self):
        self.write("ts-conformance", self.conformance.replace("#!/bin/sh\n",
                   '#!/bin/sh\ncase "$*" in *"no-isolate"*) exec sleep 60;; esac\n'), 0o755)
        status, output, found = self.suite("--only", "ptx80", "--limit", "4")
        self.assertEqual(status, 1, output)
        steps = found["ptx80"]["steps"]
        self.assertEqual(steps["samples"]["failed"], 1)
        self.assertIn("op: status 124: ", steps["samples"]["failures"][0])
        self.assertIn("1 of 1 processes failed, 0 samples", steps["samples"]["verdict"])
        self.assertEqual(steps["tests"]["failed"], 0)

    def test_what_has_ended_stays_when_the_run_is_killed(self):
        self.write("test_cuda", "#!/bin/sh\nkill -KILL $PPID\n", 0o755)
        status, _, found = self.suite("--only", "ptx80")
        self.assertEqual(status, -9)
        self.assertEqual(list(found["ptx80"]["steps"])[-1], "compiled without force")
        self.assertIn("; tests: unfinished", found["ptx80"]["verdict"])
        self.assertGreater(found["ptx80"]["failed"], 0)

    def test_a_run_by_ptx_resumes_with_the_steps_that_have_not_passed(self):
        good = "test_cuda: 5 passed, 0 failed, 0 skipped"
        self.write("test_cuda", "#!/bin/sh\nexit 1\n", 0o755)
        self.assertEqual(self.suite("--only", "ptx80")[0], 1)
        before = len(self.calls())
        self.write("test_cuda", f"#!/bin/sh\necho {good}\n", 0o755)
        status, output, found = self.suite("--only", "ptx80", "--resume")
        self.assertEqual(status, 0, output)
        self.assertEqual(found["ptx80"]["failed"], 0)
        self.assertEqual(found["ptx80"]["steps"]["tests"]["passed"], 20)
        calls = [line for line in self.calls()[before:] if "--list" not in line]
        self.assertFalse(any("--json" in call or "force=1 " in call for call in calls))
        self.assertGreater(len(calls), 15, "what the tests need is compiled again")
        self.write("sources.sha256", "other\n")
        self.assertEqual(self.suite("--only", "ptx80", "--resume")[0], 0)
        self.assertTrue(any("--json" in call for call in self.calls()[before + len(calls) + 1:]))

    def test_sanitizers_that_have_ended_stay_when_the_run_is_killed(self):
        self.write("bin/compute-sanitizer",
                   '#!/bin/sh\n[ $2 = racecheck ] && kill -KILL $PPID\n'
                   'echo "========= ERROR SUMMARY: 0 errors"\n', 0o755)
        status, _, found = self.suite("--only", "sanitizers", "--commands", "unary",
                                      "--tool", "memcheck,racecheck")
        self.assertEqual(status, -9)
        self.assertRegex(found["sanitizers"]["verdict"],
                         r"^memcheck: 1 clean \(\d+ s\); racecheck: unfinished$")
        self.assertEqual(found["sanitizers"]["failed"], 1)

    def test_an_operator_that_the_driver_cannot_compile_is_named(self):
        self.write("ts-conformance", self.conformance.replace("#!/bin/sh\n",
                   '#!/bin/sh\ncase "$*" in *cumsum*) echo no PTX; exit 1;; esac\n'), 0o755)
        status, output, _ = self.suite("--only", "ptx80")
        self.assertEqual(status, 1)
        self.assertIn("cumsum: status 1: no PTX", output)

    def test_samples_by_ptx_are_judged_a_few_operators_a_process(self):
        listed = "".join(f"reduce\\top{n}\\tvalues\\n" * 2 for n in range(6))
        self.write("ts-conformance", self.conformance.replace(
            "#!/bin/sh\n", f'#!/bin/sh\n[ "$1" = --list ] && {{ printf "{listed}"; exit 0; }}\n'
            'case "$*" in *op5*) echo "FAIL op5 i64: off"; exit 1;; esac\n'), 0o755)
        ten = {"verdict": "pass", "values": {"passed": 9}, "errors": {"passed": 1}}
        self.write("card.json", json.dumps(
            {"cards": [{"ops": [{"op": "op0", "dtypes": {"i64": ten, "f32": ten}}]}]}))
        status, output, found = self.suite("--only", "ptx80")
        self.assertEqual(status, 1, output)
        samples = found["ptx80"]["steps"]["samples"]
        self.assertEqual(samples["verdict"], "1 of 2 processes failed, 20 samples of 2 pairs of "
                         "an operator and a dtype passed")
        self.assertEqual(samples["failures"], ["op4 op5: status 1: ", "FAIL op5 i64: off"])

    def test_samples_are_strict_and_name_what_is_unsupported(self):
        self.write("ts-conformance", self.conformance + 'exit 1\n', 0o755)
        self.card(add="pass", mm="unsupported", exp="fallback")
        status, output, found = self.suite("--only", "samples")
        self.assertEqual(status, 1)
        self.assertIn("--strict", self.calls()[0])
        self.assertEqual(found["samples"]["failures"],
                         ["FAIL mm i64: unsupported", "FAIL exp i64: fallback"])
        self.assertIn("FAIL mm i64: unsupported", output)

    def test_samples_without_their_table_fail(self):
        os.remove(os.path.join(self.folder, "card.json"))
        self.assertEqual(self.suite("--only", "samples")[0], 1)

    def test_tables_beside_peers_lie_with_the_record_which_has_their_sums(self):
        self.write("torch.py", "")
        self.write("bench/compare.py", "import sys\nout = sys.argv[sys.argv.index('--out') + 1]\n"
                   "open(out, 'w').write(' '.join(sys.argv[1:]))\n"
                   "print('a row\\n# date: today\\n# rows: 70 cases; of the roof 0.961')\n"
                   "sys.exit('cuda' in sys.argv and 'a case that failed')\n")
        status, output, found = self.suite("--only", "peers")
        self.assertEqual(status, 1)
        self.assertIn("a case that failed", output)
        suites = found["peers"]["suites"]
        self.assertEqual([suites[name]["failed"] for name in ("attention", "cuda")], [0, 1])
        self.assertEqual(suites["cuda"]["verdict"], "rows: 70 cases; of the roof 0.961")
        self.assertRegex(found["peers"]["verdict"],
                         r"^attention: rows: 70 cases; of the roof 0\.961 \(\d+ s\); cuda: rows: ")
        for suite, words in ("attention", ""), ("cuda", "--compile --jobs "):
            with open(os.path.join(self.folder, f"peers-{suite}.tsv"), encoding="utf-8") as file:
                self.assertIn(f"--suite {suite} {words}", file.read() + " ")

    def test_without_pytorch_peers_are_skipped(self):
        self.write("torch.py", "raise ImportError\n")
        status, output, found = self.suite("--only", "peers")
        self.assertEqual((status, found["peers"]["failed"]), (0, 0), output)
        self.assertRegex(found["peers"]["verdict"], "^skipped: .* has no PyTorch$")

    def test_parts_of_the_same_sources_stay_and_others_go(self):
        self.suite("--only", "samples")
        self.assertIn("samples", self.suite("--only", "tests")[2])
        self.write("sources.sha256", "def\n")
        self.assertNotIn("samples", self.suite("--only", "tests")[2])

    def test_without_a_gpu_nothing_runs_and_nothing_fails(self):
        self.write("gpu.json", "{}")
        self.write("bin/nvidia-smi", "#!/bin/sh\nexit 9\n", 0o755)
        status, output, _ = self.suite()
        self.assertEqual((status, output), (0, "gpu-suite: skipped: nvidia-smi shows no GPU\n"))

    def test_each_case_that_the_sanitizers_run_exists(self):
        with open(os.path.join(TOOLS, "gpu-suite"), encoding="utf-8") as file:
            named = re.findall(r'\["test_cuda\w*", "(\w+)"\]', file.read())
        cases = []
        for path in glob.glob(os.path.join(os.path.dirname(HERE), "cuda", "*.c")):
            with open(path, encoding="utf-8") as file:
                cases += re.findall(r"TS_TEST\((\w+)", file.read())
        self.assertGreater(len(named), 5)
        for name in named:
            self.assertTrue([case for case in cases if case.startswith(name)], name)


if __name__ == "__main__":
    tally.main()
