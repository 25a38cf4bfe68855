#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the GPT example as a process: killed, interrupted, resumed, with wrong arguments.
Usage: resume.py PROGRAM PRELOADED STEPS"""
import collections
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tally  # noqa: E402

PROGRAM, STUCK = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
STEPS = int(sys.argv.pop(1))  # of a run, with a checkpoint halfway
HALF = STEPS // 2
ROOM = 1 << 30  # bytes; all runs together write a third of it
# One thread, so that a loaded machine does not make threads wait for each other.
# A trainer that a signal ends frees nothing: its loaders may wait for data that never comes.
ENVIRONMENT = {**os.environ, "TS_NUM_THREADS": "1",
               "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}
with open("/proc/cpuinfo", encoding="ascii", errors="replace") as cpuinfo:
    BLAS = {"OPENBLAS_CORETYPE": "Haswell"} if " avx2" in cpuinfo.read() else {}


def pseudo_text(count):
    """Words of a small vocabulary in an order that a seed fixes."""
    draw = random.Random(7)
    letters = "etaoinshrdlucm"
    words = ["".join(draw.choice(letters) for _ in range(draw.randint(1, 8))) for _ in range(200)]
    text = ""
    while len(text) < count:
        text += draw.choice(words) + draw.choice("    \n")
    return text[:count]


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def log_of(folder):
    """The log without tokens_per_s, which is wall-clock time, and run, a random number; the other
    columns stay as text."""
    with open(os.path.join(folder, "log.csv"), newline="", encoding="ascii") as file:
        rows = list(csv.reader(file))
    kept = [i for i, name in enumerate(rows[0]) if name not in ("tokens_per_s", "run")]
    return [[row[i] for i in kept] for row in rows]


def ids_of(folder):
    """Ids of the run in a folder: of run.json, of each row of the log, of each checkpoint."""
    ids = [json.loads(read(folder, "run.json"))["run"]]
    with open(os.path.join(folder, "log.csv"), newline="", encoding="ascii") as file:
        ids += [int(row["run"]) for row in csv.DictReader(file)]
    for step in os.listdir(os.path.join(folder, "checkpoints")):
        ids.append(json.loads(read(folder, "checkpoints", step, "manifest.json"))["user"]["run"])
    return set(ids)


def tree(folder):
    """Contents of all files of a folder except run.json, which contains the last process's id."""
    return {os.path.join(at, name): read(at, name) for at, _, names in os.walk(folder)
            for name in names if name != "run.json"}


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # nohup ignores SIGHUP, and the trainers would inherit that
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        place = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
        if place and shutil.disk_usage(place).free < ROOM:  # /dev/shm has 64 MB in containers
            place = None
        cls.folder = tempfile.mkdtemp(prefix="tessera-train-", dir=place)
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.data = os.path.join(cls.folder, "text.txt")
        with open(cls.data, "w", encoding="ascii") as file:
            file.write(pseudo_text(60000))
        cls.straight = os.path.join(cls.folder, "straight")
        done = cls.run_to_end(cls.straight)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)

    @classmethod
    def command(cls, out, *more, steps=STEPS, save_every=HALF, data=None):
        if "--sample" not in more:  # 300 bytes by default take as long as four steps
            more += "--sample", "20"
        return [PROGRAM, "--data", data or cls.data, "--out", out, "--steps", str(steps),
                "--save-every", str(save_every), "--val-every", "1000", *more]

    @classmethod
    def run_to_end(cls, out, *more, env=None, **options):
        return subprocess.run(cls.command(out, *more, **options), check=False, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env={**ENVIRONMENT, **(env or {})})

    def stop_at(self, out, path, number, save_every=HALF):
        """Runs until path exists, then sends the signal; None when the run was done before that."""
        with subprocess.Popen(self.command(out, save_every=save_every), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, env=ENVIRONMENT) as run:
            while run.poll() is None and not os.path.exists(path):
                time.sleep(0.002)
            run.send_signal(number)
            errors = run.communicate()[1]
            return (run.returncode, errors) if run.returncode != 0 else None

    def stopped(self, name, path, number, **options):
        """A folder with a run that the signal stopped before its last step;
        a signal that is late gets more turns."""
        for turn in range(20):
            out = os.path.join(self.folder, f"{name}{turn}")
            result = self.stop_at(out, os.path.join(out, path), number, **options)
            if result and not os.path.exists(os.path.join(out, "checkpoints", str(STEPS))):
                return out, *result
            shutil.rmtree(out)
        self.fail("the run ended before the signal, twenty times")

    def assert_same_run(self, out, other=None):
        other = other or self.straight
        self.assertEqual(log_of(out), log_of(other))
        self.assertTrue(read(out, "model.safetensors") == read(other, "model.safetensors"),
                        "the trained models differ")

    def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(self):
        self.assertEqual(len(log_of(self.straight)), STEPS + 1)
        out, status, _ = self.stopped("killed", f"checkpoints/{HALF}", signal.SIGKILL)
        self.assertEqual(status, -signal.SIGKILL)
        self.assertFalse(os.path.exists(os.path.join(out, "model.safetensors")))
        done = self.run_to_end(out, "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"resuming at step {HALF} ", done.stderr)
        self.assert_same_run(out)

    def test_a_compiled_run_equals_an_eager_one_and_resumes_it(self):
        compiled = os.path.join(self.folder, "compiled")
        done = self.run_to_end(compiled, "--compile")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"mode: replay, [1-9][0-9]* calls ran without the function")
        self.assert_same_run(compiled)
        for step in HALF, STEPS:
            files = [{name: data for name, data in tree(os.path.join(
                out, "checkpoints", str(step))).items() if not name.endswith("manifest.json")}
                for out in (compiled, self.straight)]  # the manifest has the id of the run
            eager = {name.replace(self.straight, compiled): data for name, data in files[1].items()}
            self.assertTrue(files[0] == eager and files[0], f"checkpoints {step} differ")
        out = os.path.join(self.folder, "compiled_after_eager")
        shutil.copytree(self.straight, out)
        shutil.rmtree(os.path.join(out, "checkpoints", str(STEPS)))
        os.remove(os.path.join(out, "model.safetensors"))
        done = self.run_to_end(out, "--resume", "--compile")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"resuming at step {HALF} ", done.stderr)
        self.assert_same_run(out)

    def test_an_interrupted_run_saves_and_prints_how_to_resume(self):
        # no checkpoint is due before the end, so the only one is that of the interrupt
        out, status, errors = self.stopped("interrupted", "log.csv", signal.SIGINT, save_every=1000)
        self.assertEqual(status, 130, errors)
        self.assertIn("--resume", errors)
        saved = os.listdir(os.path.join(out, "checkpoints"))
        steps = [int(name) for name in saved if name.isdigit()]
        self.assertEqual(len(steps), 1, saved)
        self.assertIn(f"saved at step {steps[0]}", errors)
        self.assertEqual(len(log_of(out)), steps[0] + 1)
        done = self.run_to_end(out, "--resume", save_every=1000)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_same_run(out)

    def test_signals_at_any_moment_lose_nothing(self):
        draw, out = random.Random(), os.path.join(self.folder, "drawn")
        seed = draw.randrange(1 << 32)
        draw.seed(seed)
        left, resumed, ended = 20, 0, collections.Counter()
        while True:
            more = ["--resume"] if os.path.exists(os.path.join(out, "checkpoints")) and any(
                name.isdigit() for name in os.listdir(os.path.join(out, "checkpoints"))
            ) else ["--overwrite"]
            resumed += more == ["--resume"]
            with subprocess.Popen(self.command(out, *more), text=True, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                  env=ENVIRONMENT) as run:
                number = draw.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
                try:
                    errors = run.communicate(timeout=draw.uniform(0, 0.4) if left else None)[1]
                except subprocess.TimeoutExpired:
                    run.send_signal(number)
                    errors = run.communicate()[1]
                    # a signal before main() ends the process by default
                    self.assertIn(run.returncode, (128 + number, -number, 0), (seed, errors))
                    if run.returncode == 128 + number:
                        # in the report, all is saved already
                        self.assertRegex(errors, "saved at step|train: [0-9]+ steps")
                        ended[number] += 1
                    left -= 1
                    continue
                self.assertEqual(run.returncode, 0, (seed, errors))
                break
        print(f"seed {seed}: {dict(ended)}, {resumed} resumed", file=sys.stderr)
        self.assert_same_run(out)

    def test_a_signal_ends_the_wait_for_data(self):
        # the trainer first reads the validation text, then each batch by 16 calls
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            out = os.path.join(self.folder, f"waiting{number}")
            with subprocess.Popen(self.command(out, save_every=1000), text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE,
                                  env={**ENVIRONMENT, "LD_PRELOAD": STUCK,
                                       "ASAN_OPTIONS": ENVIRONMENT["ASAN_OPTIONS"] +
                                       ":verify_asan_link_order=0",
                                       "STUCK_FILE": self.data, "STUCK_AFTER": "250"}) as run:
                rows = -1
                while run.poll() is None and rows != self.rows(out):
                    rows = self.rows(out)
                    time.sleep(1)
                self.assertIsNone(run.poll())
                run.send_signal(number)
                try:
                    errors = run.communicate(timeout=60)[1]
                except subprocess.TimeoutExpired:
                    run.kill()
                    raise
            self.assertLess(rows, STEPS)
            self.assertEqual(run.returncode, 128 + number, errors)
            self.assertIn("saved at step", errors)
            done = self.run_to_end(out, "--resume", save_every=1000)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assert_same_run(out)

    @staticmethod
    def rows(out):
        """Whole rows of a log, 0 before there is one."""
        path = os.path.join(out, "log.csv")
        return read(path).count(b"\n") - 1 if os.path.exists(path) else 0

    def test_a_signal_that_is_ignored_stays_ignored(self):
        out = os.path.join(self.folder, "nohup")
        done = subprocess.run(["sh", "-c", 'trap "" HUP; "$@" & sleep 0.5; kill -HUP $!; wait $!',
                               "sh", *self.command(out)], check=False, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, env=ENVIRONMENT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_same_run(out)

    def test_output_that_cannot_be_written_is_an_error(self):
        closed = os.path.join(self.folder, "closed")
        short = os.path.join(self.folder, "short")
        done = self.run_to_end(short, steps=1)
        self.assertEqual(done.returncode, 0, done.stderr)
        ends = os.pipe()
        os.close(ends[0])
        with open("/dev/full", "w", encoding="ascii") as full:
            for name, out, says in (("pipe", ends[1], "Broken pipe"), ("full", full, "No space")):
                done = subprocess.run(self.command(closed + name, steps=1), check=False, text=True,
                                      stdin=subprocess.DEVNULL, stdout=out, env=ENVIRONMENT,
                                      stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("cannot write to standard output", done.stderr)
                self.assertIn(says, done.stderr)
                self.assert_same_run(closed + name, short)
        os.close(ends[1])
        for redirection in ">&-", "2>&-", "<&-", "<&- >&- 2>&-":
            out = closed + redirection
            done = subprocess.run(["sh", "-c", f'"$@" {redirection}', "sh",
                                   *self.command(out, steps=1)], check=False, text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, env=ENVIRONMENT)
            self.assertEqual(done.returncode, int(" >&-" in " " + redirection), done.stderr)
            self.assert_same_run(out, short)
        # a failed write of the progress line must not stop the run
        done = subprocess.run(["sh", "-c", '"$@" 2>/dev/full', "sh",
                               *self.command(closed + "log", steps=1)],
                              check=False, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        self.assertEqual(done.returncode, 0)

    def test_a_limit_on_the_size_of_files_is_an_error(self):
        # a limit of 1 KiB, which the log exceeds too; and of 2 MB, which only a checkpoint exceeds
        for blocks in 2, 4000:
            out = os.path.join(self.folder, f"limit{blocks}")
            done = subprocess.run(["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh",
                                   *self.command(out, steps=30, save_every=2)], check=False,
                                  text=True, stdin=subprocess.DEVNULL, capture_output=True,
                                  env=ENVIRONMENT)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("File too large", done.stderr)
            self.assertIn(out, done.stderr)
            self.assertEqual(os.listdir(os.path.join(out, "checkpoints")), [])

    def test_a_log_that_cannot_be_written_leaves_a_checkpoint(self):
        out = os.path.join(self.folder, "unwritable")
        with subprocess.Popen(self.command(out, save_every=1000), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE,
                              env={**ENVIRONMENT, "LD_PRELOAD": STUCK, "FULL_AFTER": "8",
                                   "ASAN_OPTIONS": ENVIRONMENT["ASAN_OPTIONS"] +
                                   ":verify_asan_link_order=0"}) as run:
            errors = run.communicate()[1]
        self.assertEqual(run.returncode, 1, errors)
        self.assertIn("log.csv': No space left", errors)
        steps = [int(name) for name in os.listdir(os.path.join(out, "checkpoints"))]
        self.assertEqual(len(steps), 1)
        self.assertIn(f"saved at step {steps[0]}", errors)
        done = self.run_to_end(out, "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(read(out, "model.safetensors") == read(self.straight, "model.safetensors"))

    def test_resuming_without_a_run_is_an_error(self):
        out = os.path.join(self.folder, "empty")
        os.mkdir(out)
        done = self.run_to_end(out, "--resume")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("no checkpoint", done.stderr)
        self.assertIn(out, done.stderr)
        self.assertEqual(os.listdir(out), [])

    def copied(self, name):
        out = os.path.join(self.folder, name)
        shutil.copytree(self.straight, out)
        return out

    def refused(self, out, *more, says, **options):
        before = tree(out)
        done = self.run_to_end(out, *more, **options)
        self.assertEqual(done.returncode, 1, done.stderr)
        for word in says:
            self.assertIn(word, done.stderr)
        self.assertTrue(tree(out) == before, "files have changed")

    def test_all_parts_of_a_run_have_its_id(self):
        self.assertEqual(len(ids_of(self.straight)), 1)
        out, _, errors = self.stopped("ids", f"checkpoints/{HALF}", signal.SIGINT)
        before = ids_of(out)
        done = self.run_to_end(out, "--resume")
        self.assertEqual(done.returncode, 0, errors + done.stderr)
        self.assertEqual(ids_of(out), before)
        self.assertNotEqual(ids_of(out), ids_of(self.straight))

    def test_a_folder_with_a_run_is_refused(self):
        self.refused(self.copied("second"), says=("second", "holds an earlier run"))
        for lost in "run.json", "log.csv", "checkpoints":
            out = self.copied("second-without-" + lost)
            path = os.path.join(out, lost)
            (shutil.rmtree if os.path.isdir(path) else os.remove)(path)
            self.refused(out, says=(out, "holds an earlier run"))

    def test_overwriting_removes_the_old_run(self):
        out = self.copied("overwritten")
        note = os.path.join(out, "my-notes.txt")
        with open(note, "w", encoding="ascii"):
            pass
        done = self.run_to_end(out, "--overwrite", steps=10, save_every=5)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(os.listdir(os.path.join(out, "checkpoints"))), ["10", "5"])
        self.assertEqual(len(log_of(out)), 11)
        self.assertEqual(len(ids_of(out) | ids_of(self.straight)), 2)
        self.assertTrue(os.path.exists(note))
        # a run that is killed early leaves no model, not that of the old run
        old = read(out, "run.json")
        with subprocess.Popen(self.command(out, "--overwrite", steps=100000),
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, env=ENVIRONMENT) as run:
            while run.poll() is None and (read(out, "run.json")[:24] == old[:24] or
                                          not os.path.exists(os.path.join(out, "log.csv"))):
                time.sleep(0.01)
            run.kill()
        own = ("log.csv", "run.json", "settings.json", "my-notes.txt")
        self.assertEqual([name for name in os.listdir(out)
                          if not name.startswith("checkpoints") and name not in own], [])

    def test_a_second_trainer_is_refused_while_the_first_lives(self):
        out = os.path.join(self.folder, "shared")
        with subprocess.Popen(self.command(out, steps=100000), stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env=ENVIRONMENT) as first:
            while first.poll() is None and not os.path.exists(
                    os.path.join(out, f"checkpoints/{HALF}")):
                time.sleep(0.01)
            for more in [], ["--resume"], ["--overwrite"]:
                done = self.run_to_end(out, *more)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(f"process {first.pid}", done.stderr)
                self.assertIn(out, done.stderr)
            self.assertIsNone(first.poll())
            first.kill()
        done = self.run_to_end(out, "--overwrite", steps=2)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_options_that_do_not_fit_the_saved_run_are_named(self):
        out = self.copied("with-options")
        self.refused(out, "--resume", "--seed", "2",
                     says=(out, "expected --seed 1, as in the saved run, got 2"))
        done = self.run_to_end(out, "--resume", steps=STEPS - 1)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"'--steps': expected at least {STEPS}, the step of the checkpoint, got "
                      f"{STEPS - 1}", done.stderr)
        self.assert_same_run(out)

    def test_two_runs_are_never_mixed(self):
        other = os.path.join(self.folder, "other")
        done = self.run_to_end(other, "--seed", "2", steps=STEPS + HALF)
        self.assertEqual(done.returncode, 0, done.stderr)
        (mine,), (theirs,) = ids_of(self.straight), ids_of(other)
        out = self.copied("with-checkpoint")
        last = f"checkpoints/{STEPS + HALF}"
        shutil.copytree(os.path.join(other, last), os.path.join(out, last))
        self.refused(out, "--resume", says=(last, str(mine), str(theirs)))
        out = self.copied("with-log")
        shutil.copy(os.path.join(other, "log.csv"), out)
        self.refused(out, "--resume", says=("log.csv", str(mine), str(theirs)))
        out = self.copied("with-id")
        shutil.copy(os.path.join(other, "run.json"), out)
        self.refused(out, "--resume", says=(f"checkpoints/{STEPS}", str(mine), str(theirs)))
        for text in "", "{}", "{\"run\": 5}", "x" * 1000:
            out = self.copied(f"with-damage{len(text)}")
            with open(os.path.join(out, "run.json"), "w", encoding="ascii") as file:
                file.write(text)
            self.refused(out, "--resume", says=(out, "no run to resume"))
            self.refused(out, says=(out, "holds an earlier run"))

    def test_a_run_resumes_only_with_its_data(self):
        out, more = self.copied("other-data"), STEPS + 1
        other = os.path.join(self.folder, "other.txt")
        with open(other, "wb") as file:
            file.write(read(self.data)[::-1])
        self.refused(out, "--resume", data=other, says=(self.data, other), steps=more)
        moved = os.path.join(self.folder, "moved.txt")
        shutil.copy(self.data, moved)
        done = self.run_to_end(out, "--resume", data=moved, steps=more)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_missing_data_is_an_error(self):
        out = os.path.join(self.folder, "without-data")
        missing = os.path.join(self.folder, "no-such-text")
        done = self.run_to_end(out, data=missing)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(missing, done.stderr)
        self.assertFalse(os.path.exists(out))

    def test_a_full_disk_is_an_error_and_keeps_the_old_checkpoint(self):
        disk = os.path.join(self.folder, "disk")
        os.mkdir(disk)
        # one checkpoint of this model takes about 10 MB: two do not fit
        if os.geteuid() != 0 or subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=False,
                stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("needs to mount a small tmpfs")
        self.addCleanup(subprocess.run, ["umount", disk], check=True)
        out = os.path.join(disk, "run")
        done = self.run_to_end(out, steps=3, save_every=2)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("No space left on device", done.stderr)
        self.assertIn(out, done.stderr)
        self.assertEqual([n for n in os.listdir(os.path.join(out, "checkpoints")) if n.isdigit()],
                         ["2"])
        # moved to a larger disk, the run goes on from there, and its hashes are checked on the way
        moved = os.path.join(self.folder, "moved")
        shutil.copytree(out, moved)
        done = self.run_to_end(moved, "--resume", steps=3, save_every=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("resuming at step 2 ", done.stderr)

    def test_threads_do_not_change_the_model(self):
        models = []
        for threads in "1", "2":
            out = os.path.join(self.folder, "threads" + threads)
            done = self.run_to_end(out, steps=10, env={**BLAS, "TS_NUM_THREADS": threads})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"{threads} threads", done.stderr)
            models.append(read(out, "model.safetensors"))
        self.assertTrue(models[0] == models[1], "the trained models differ")

    def test_the_sample_is_safe_for_terminals(self):
        done = self.run_to_end(os.path.join(self.folder, "sample"), "--sample", "300",
                               steps=1)
        self.assertEqual(done.returncode, 0, done.stderr)
        sample = done.stdout.split("A sample:")[1]
        self.assertRegex(sample, r"\A[\n -~]{300,}\Z")
        self.assertIn("\\x", sample)  # an untrained model draws any byte

    def test_wrong_options_print_the_usage(self):
        for bad in (["--steps", "0"], ["--out", ""], ["--save-every", "0"], ["--nonsense"]):
            done = self.run_to_end(os.path.join(self.folder, "unused"), *bad)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("usage: train_gpt", done.stderr)


if __name__ == "__main__":
    tally.main()
