#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of ts-conformance: META and the CPU pass, and planted faults are found and named."""
import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tally  # noqa: E402

PROGRAM, PLUGIN, MINE = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
# ts-conformance, not a sanitizer, must handle a crash.
SANITIZER = os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0"


def judge(*arguments, mode=""):
    env = {**os.environ, "ASAN_OPTIONS": SANITIZER, "TS_TEST_PLUGIN": mode}
    done = subprocess.run([PROGRAM, *arguments], text=True, check=False, env=env,
                          stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return done.returncode, done.stdout, done.stderr


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tessera-conformance-")
        self.addCleanup(shutil.rmtree, self.folder)

    def card(self, *arguments, mode="", status=0):
        """The JSON card of one backend, and the output."""
        path = os.path.join(self.folder, "card.json")
        got, out, err = judge(*arguments, "--json", path, mode=mode)
        self.assertEqual(got, status, out + err)
        with open(path, encoding="utf-8") as file:
            cards = json.load(file)["cards"]
        self.assertEqual(len(cards), 1)
        return cards[0], out

    def verdicts(self, card, op):
        rows = [row for row in card["ops"] if row["op"] == op]
        self.assertEqual(len(rows), 1)
        return {dtype: cell["verdict"] for dtype, cell in rows[0]["dtypes"].items()}


class Passing(Case):
    def test_meta_conforms(self):
        card, out = self.card("--backend", "meta")
        self.assertEqual(card["totals"]["fail"], 0)
        self.assertGreater(card["totals"]["pass"], 900)
        self.assertIn("meta: conforms", out)
        # its sizes depend on values
        self.assertEqual(self.verdicts(card, "nonzero")["f64"], "skipped")

    def test_the_cpu_conforms(self):
        card, _ = self.card("--backend", "cpu", "--family", "softmax,scan", "--op",
                            "softmax,cumsum")
        self.assertEqual({row["op"] for row in card["ops"]}, {"softmax", "cumsum"})
        self.assertEqual(self.verdicts(card, "softmax")["f32"], "pass")
        cell = [row for row in card["ops"] if row["op"] == "softmax"][0]["dtypes"]["f32"]
        for part in ("values", "gradients", "errors"):
            self.assertGreater(cell[part]["passed"], 0, part)
            self.assertEqual(cell[part]["failed"], 0, part)

    def test_processes_do_not_change_the_card(self):
        tables = []
        for how in (["--no-isolate"], ["--jobs", "3"], []):
            path = os.path.join(self.folder, "card.tsv")
            status, out, err = judge("--backend", "cpu", "--op", "relu,neg,dropout", "--tsv", path,
                                     *how)
            self.assertEqual(status, 0, out + err)
            with open(path, encoding="utf-8") as file:
                tables.append(file.read())
        self.assertEqual(tables[0], tables[1])
        self.assertEqual(tables[0], tables[2])
        self.assertTrue(
            tables[0].startswith("backend\top\tfamily\tdtype\tverdict\tvalues_passed\t"))

    def test_a_correct_plugin_passes_and_its_round_trips_are_reported(self):
        card, _ = self.card("--plugin", PLUGIN, "--op", "relu,neg,uniform,normal,masked_select")
        self.assertEqual(card["backend"], "PLANTED")
        self.assertEqual(self.verdicts(card, "relu")["f32"], "pass")
        self.assertEqual(self.verdicts(card, "relu")["f64"], "fallback")
        self.assertEqual(self.verdicts(card, "normal")["f32"], "fallback")
        self.assertEqual(judge("--plugin", PLUGIN, "--op", "relu,neg", "--strict")[0], 1)

    def test_the_example_of_a_backend_conforms(self):
        card, _ = self.card("--plugin", MINE, "--op", "relu,tanh,sum,linear")
        self.assertEqual(card["totals"]["fail"], 0)
        for op in ("relu", "tanh", "sum", "linear"):
            self.assertEqual(self.verdicts(card, op)["f32"], "pass", op)

    def test_ops_without_a_kernel_are_unsupported(self):
        card, out = self.card("--plugin", PLUGIN, "--op", "relu,neg", mode="lacking")
        self.assertEqual(set(self.verdicts(card, "neg").values()), {"unsupported"})
        self.assertEqual(self.verdicts(card, "relu")["f32"], "pass")
        self.assertIn("conforms", out)
        status, out, _ = judge("--plugin", PLUGIN, "--op", "neg", "--strict", mode="lacking")
        self.assertEqual(status, 1)
        self.assertIn("does not conform", out)


class Planted(Case):
    def found(self, mode, *words, options=()):
        card, out = self.card("--plugin", PLUGIN, "--op", "relu,neg", *options, mode=mode, status=1)
        self.assertEqual(self.verdicts(card, "relu")["f32"], "fail")
        self.assertNotIn("fail", self.verdicts(card, "neg").values())
        texts = [failure["text"] for failure in card["failures"]]
        self.assertTrue(texts)
        for text in texts:
            self.assertTrue(text.startswith("relu '"), text)
            self.assertIn("FAIL " + text, out)
        self.assertTrue(any(all(word in text for word in words) for text in texts), texts)

    def test_a_wrong_tail_is_named_with_its_element(self):
        self.found("tail", "f32", "1 of ", "worst at (", "got ", "expected ", "allowed ")

    def test_a_kernel_that_forgets_strides_is_named_with_the_layout(self):
        self.found("layout", "f32 transposed")

    def test_a_write_beside_the_elements_is_found(self):
        self.found("spill", "out= ", "elements outside result 0 changed")

    def test_a_crash_is_one_failure_of_the_sample(self):
        self.found("crash", "crashed: Segmentation fault")

    def test_an_exit_of_the_process_is_a_failure(self):
        card, _ = self.card("--plugin", PLUGIN, "--op", "relu", mode="exit", status=1)
        self.assertIn("ended the process", card["failures"][-1]["text"])

    def test_a_kernel_that_hangs_is_ended(self):
        card, _ = self.card("--plugin", PLUGIN, "--op", "relu", "--timeout", "1", mode="hang",
                            status=1)
        self.assertIn("did not end within 1 s", card["failures"][-1]["text"])

    def test_an_error_of_a_kernel_is_a_failure_with_its_text(self):
        self.found("late", "TS_ERR_MEMORY", "no room")


def drawn_on(terminal):
    """The whole output to a pseudo-terminal, until its other side is closed."""
    text = b""
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while piece := os.read(terminal, 65536):
            text += piece
    return text.decode()


class CommandLine(Case):
    def wrong(self, *arguments, says, mode=""):
        status, out, err = judge(*arguments, mode=mode)
        self.assertEqual(status, 2, out + err)
        self.assertIn(says, err)

    def test_wrong_usage_is_an_error(self):
        self.wrong(says="name a backend")
        self.wrong("--backend", "cpu", "--op", "no_such_op", says="'no_such_op'")
        self.wrong("--backend", "cpu", "--family", "no_such", says="'no_such'")
        self.wrong("--backend", "cpu", "--dtype", "f31", says="'f31'")
        self.wrong("--backend", "cpu", "--part", "thoughts", says="'thoughts'")
        self.wrong("--backend", "cpu", "--jobs", "0", says="'0'")
        self.wrong("--backend", "cpu", "--timeout", "1s", says="'1s'")
        self.wrong("--backend", "cpu", "more", says="'more'")
        self.wrong("--no-such-option", says="no-such-option")

    def test_a_backend_that_cannot_be_opened_is_an_error(self):
        self.wrong("--backend", "abacus", says="'abacus'")
        self.wrong("--backend", "cuda:7", says="cuda:7")
        self.wrong("--plugin", os.path.join(self.folder, "none.so"), says="none.so")
        self.wrong("--plugin", PROGRAM, says=os.path.basename(PROGRAM))
        self.wrong("--plugin", PLUGIN, says="no device answers", mode="install")

    def test_a_file_that_cannot_be_written_is_an_error(self):
        for option in ("--json", "--tsv", "--matrix"):
            self.wrong("--backend", "meta", "--op", "add", option,
                       os.path.join(self.folder, "no", "file"), says="/no/")
        self.wrong("--backend", "meta", "--op", "add", "--json", "/dev/full", says="/dev/full")

    def test_help_version_and_list(self):
        status, out, _ = judge("--help")
        self.assertEqual(status, 0)
        for word in ("--backend", "--plugin", "--strict", "--json", "Status: 0"):
            self.assertIn(word, out)
        self.assertRegex(judge("--version")[1], r"^\d+\.\d+\.\d+\n$")
        status, out, _ = judge("--list", "--op", "add", "--dtype", "f32")
        self.assertEqual(status, 0)
        self.assertIn("pointwise\tadd\tsame sizes\tf32\n", out)
        self.assertNotIn("sub", out)

    def test_several_backends_make_one_matrix(self):
        path = os.path.join(self.folder, "matrix.md")
        status, out, err = judge("--backend", "cpu", "--backend", "meta", "--op", "relu", "--part",
                                 "values", "--card",
                                 "--matrix", path)
        self.assertEqual(status, 0, err)
        with open(path, encoding="utf-8") as file:
            page = file.read()
        self.assertIn("## CPU", page)
        self.assertIn("## META", page)
        self.assertEqual(page.count("| relu"), 2)
        self.assertEqual(out.count("\nrelu"), 2)

    def test_progress_is_drawn_on_a_terminal_alone(self):
        main, side = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "TS_TEST_PLUGIN": ""}
        with subprocess.Popen([PROGRAM, "--backend", "meta", "--op", "add,sub"], env=env,
                              stderr=side,
                              stdout=subprocess.DEVNULL) as done:
            os.close(side)
            text = drawn_on(main)
        os.close(main)
        self.assertEqual(done.returncode, 0)
        self.assertIn("/2", text)  # the progress line; the number of drawn lines depends on time
        self.assertIn("2 steps", text)
        self.assertEqual(judge("--backend", "meta", "--op", "add,sub")[2], "")


if __name__ == "__main__":
    tally.main()
