#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""TS_PROF and ts-prof: a program's profile, its page, wrong settings.
Usage: programs.py MLP TS_PROF"""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import tally  # noqa: E402

MLP, TS_PROF = map(os.path.abspath, sys.argv[1:3])
del sys.argv[1:3]
CACHE = tempfile.TemporaryDirectory()
RUNS = {}  # (setting, steps) -> (folder of a run with this profile, its output)


def picture_rows(data):
    """The rows of a PNG as filtered bytes; equal rows of one colour have few different bytes."""
    at, packed, width = 8, b"", struct.unpack(">I", data[16:20])[0]
    channels = {2: 3, 6: 4}[data[25]]
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        packed += data[at + 8:at + 8 + size] if kind == b"IDAT" else b""
        at += size + 12
    raw, length = zlib.decompress(packed), width * channels + 1
    return [raw[i:i + length] for i in range(0, len(raw), length)]


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_program(self, *words, setting=None, status=0, folder=None):
        environment = {**os.environ, "XDG_CACHE_HOME": CACHE.name}
        environment.pop("TS_PROF", None)
        if setting is not None:
            environment["TS_PROF"] = setting
        done = subprocess.run(words, check=False, text=True, cwd=folder or self.folder, timeout=300,
                              env=environment, capture_output=True)
        if words[0] != MLP:  # which says whether so few steps were enough
            self.assertEqual(done.returncode, status, done.stderr)
        return done

    def profile(self, setting="1,out=p", steps="20"):
        """The profile and the output of a run; its files are in p. Tests share runs."""
        if (setting, steps) not in RUNS:
            folder = tempfile.TemporaryDirectory()
            RUNS[setting, steps] = folder, self.run_program(MLP, steps, setting=setting,
                                                            folder=folder.name)
        folder, done = RUNS[setting, steps]
        if "has no timers" in done.stderr:
            self.skipTest("built without timers")
        shutil.copytree(os.path.join(folder.name, "p"), os.path.join(self.folder, "p"))
        with open(os.path.join(self.folder, "p", "profile.json"), encoding="utf-8") as file:
            return json.load(file), done

    def test_a_relative_folder_is_that_of_the_start(self):
        os.mkdir(os.path.join(self.folder, "elsewhere"))
        code = ("import ctypes, os, sys; tessera = ctypes.CDLL(sys.argv[1]); "
                "os.chdir('elsewhere'); "
                "tessera.ts_ones.restype = ctypes.c_void_p; "
                "tessera.ts_ones((ctypes.c_int64 * 1)(3), 1, 7)")
        library = os.path.join(os.path.dirname(MLP), "..", "libtessera.so")
        done = self.run_program(sys.executable, "-c", code, library, setting="1,out=p")
        if "has no timers" in done.stderr:
            self.skipTest("built without timers")
        self.assertTrue(os.path.exists(os.path.join(self.folder, "p", "profile.json")), done.stderr)

    def test_a_program_prints_its_verdict_at_its_end_beside_its_own_output(self):
        profile, done = self.profile()
        self.assertIn("profile: " + profile["verdict"], done.stderr)
        self.assertEqual(done.stdout, self.run_program(MLP, "20").stdout)
        self.assertAlmostEqual(sum(profile["shares"].values()), 1, places=4)
        rows = sum(row["self_ns"] for row in profile["rows"])
        self.assertAlmostEqual((rows + profile["profiler_ns"]) / profile["wall_ns"], 1, places=4)
        self.assertLess(abs(len(profile["steps"]) - 20), 2)
        known = [row for row in profile["rows"] if row["op"] == "linear"]
        self.assertGreater(sum(row["flops"] for row in known), 0)
        self.assertTrue(all(row["unknown"] == 0 for row in profile["rows"]))

    def test_steps_can_be_chosen(self):
        profile, _ = self.profile("steps=3:7,out=p")
        self.assertEqual((profile["first_step"], len(profile["steps"])), (3, 5))
        updates = [row["calls"] for row in profile["rows"] if row["op"] == "adamw"]
        self.assertEqual(sum(updates), 5)

    def test_a_trace_nests_and_has_all_calls(self):
        profile, done = self.profile("trace,steps=3:7,out=p")
        self.assertIn("trace.json", done.stderr)
        with open(os.path.join(self.folder, "p", "trace.json"), encoding="utf-8") as file:
            trace = json.load(file)
        self.assertEqual(trace["otherData"]["lost_calls"], 0)
        slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
        steps = [e["name"] for e in slices if e["name"].startswith("step ")]
        self.assertEqual(steps, [f"step {n}" for n in range(3, 8)])
        calls = [e for e in slices if "args" in e]
        self.assertEqual(len(calls), sum(r["calls"] for r in profile["rows"] if r["kernel"]))
        open_ends = []
        for e in sorted(slices, key=lambda e: (e["tid"], e["ts"], -e["dur"])):
            while open_ends and open_ends[-1] <= e["ts"] + 0.0015:
                open_ends.pop()
            if open_ends:
                self.assertLessEqual(e["ts"] + e["dur"], open_ends[-1] + 0.0025)
            open_ends.append(e["ts"] + e["dur"])
        threads = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"]
                   if e["name"] == "thread_name" and e["pid"] == 1}
        self.assertEqual(threads.keys(), {e["tid"] for e in calls})
        stepping = next(e["tid"] for e in slices if e["name"].startswith("step "))
        self.assertEqual(threads[stepping], f"thread {stepping}, with the steps")
        for e in calls:
            self.assertAlmostEqual(sum(e["args"]["layers_ns"].values()) / 1e3, e["dur"], delta=0.01)

    def test_arrows_of_a_trace_lead_from_forward_to_backward_calls(self):
        self.profile("trace,memory,steps=3:7,out=p")
        with open(os.path.join(self.folder, "p", "trace.json"), encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        calls = {(e["tid"], e["ts"]): e for e in events if e["ph"] == "X" and "args" in e}
        starts = {e["id"]: e for e in events if e["ph"] == "s"}
        ends = {e["id"]: e for e in events if e["ph"] == "f"}
        self.assertEqual(starts.keys(), ends.keys())
        linear = 0
        for number, start in starts.items():
            end = ends[number]
            forward, backward = (calls[e["tid"], e["ts"]] for e in (start, end))
            self.assertGreaterEqual(end["ts"], forward["ts"] + forward["dur"])
            scope = forward["args"]["scope"].replace("forward", "", 1).lstrip("/")
            self.assertEqual(backward["args"]["scope"].removeprefix("backward").lstrip("/"), scope)
            linear += forward["name"] == "linear"
            if forward["name"] == "linear":
                self.assertEqual(backward["name"], "linear_backward")
        self.assertEqual(linear, sum(e["name"] == "linear" for e in calls.values()))
        self.assertGreater(linear, 0)
        counters = [e for e in events if e["ph"] == "C"]
        self.assertTrue(counters)
        self.assertTrue(any(e["args"]["parameter"] > 0 for e in counters))

    def test_wrong_settings_are_errors_and_change_nothing(self):
        for setting in ("yes", "steps=5", "steps=5:3", "steps=0:3", "steps=a:b", "out=",
                        "1,what=2", "active=0", "wait=-1", "warmup=x", "repeat"):
            done = self.run_program(MLP, "3", setting=setting)
            self.assertIn("TS_PROF: expected", done.stderr, setting)
            self.assertNotIn("profile: ", done.stderr)
        for setting in ("", "0"):
            self.assertEqual(self.run_program(MLP, "3", setting=setting).stderr, "")

    def test_settings_without_effect_are_reported(self):
        self.profile()  # skips builds without timers, and measures the machine
        done = self.run_program(MLP, "6", setting="steps=20:30")
        self.assertRegex(done.stderr, r"TS_PROF: steps=20:30: the program ended after step [56]; ")
        done = self.run_program(MLP, "6", setting="steps=2:30")
        self.assertRegex(done.stderr, r"TS_PROF: steps=2:30: the program ended after step [56]\n")
        self.assertNotIn("TS_PROF", self.run_program(MLP, "6", setting="steps=2:4").stderr)
        done = self.run_program(MLP, "6", setting="wait=20,active=2")
        self.assertIn("TS_PROF: the program ended before the first step", done.stderr)
        for word in ("trace", "flight"):
            done = self.run_program(MLP, "3", setting=word)
            self.assertIn(f"TS_PROF: '{word}' without out=FOLDER", done.stderr)
        for first, second in (("steps=1:2", "steps=3:4"), ("out=a", "out=a"), ("1", "1")):
            done = self.run_program(MLP, "3", setting=f"{first},nvtx,{second}")
            self.assertIn(f"got '{first}' and '{second}'; no profile", done.stderr)
            self.assertNotIn("profile: ", done.stderr)

    def test_a_folder_that_cannot_be_written_is_an_error(self):
        done = self.run_program(MLP, "3", setting="out=/proc/no/such")
        if "has no timers" not in done.stderr:
            self.assertIn("TS_PROF: ", done.stderr)

    def test_folders_are_made_before_the_program_runs(self):
        done = self.run_program(MLP, "3", setting="1,out=deep/er/p")
        if "has no timers" in done.stderr:
            self.skipTest("built without timers")
        self.assertEqual(os.listdir(os.path.join(self.folder, "deep/er/p")), ["profile.json"])
        done = self.run_program(MLP, "3", setting="1,out=/proc/no/such")
        self.assertTrue(done.stderr.startswith("[tessera warning] TS_PROF: "), done.stderr)
        self.assertIn("profile: ", done.stderr)

    def test_a_schedule_writes_a_folder_per_cycle(self):
        self.profile()  # skips builds without timers, and measures the machine
        done = self.run_program(
            MLP, "30", setting="skip_first=2,wait=1,warmup=2,active=4,repeat=3,out=s")
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "s"))),
                         ["cycle-1", "cycle-2", "cycle-3"])
        for cycle in (1, 2, 3):
            path = os.path.join(self.folder, "s", f"cycle-{cycle}", "profile.json")
            with open(path, encoding="utf-8") as file:
                profile = json.load(file)
            self.assertEqual((profile["first_step"], len(profile["steps"])), (7 * cycle - 1, 4))
            self.assertEqual(sum(r["calls"] for r in profile["rows"] if r["op"] == "adamw"), 4)
            self.assertIn(f"cycle {cycle}: " + profile["verdict"], done.stderr)
        done = self.run_program(MLP, "8", setting="active=3")  # the last cycle has two steps
        self.assertEqual(re.findall(r"cycle (\d)\nprofile: ", done.stderr), ["1", "2", "3"])

    def test_a_second_process_writes_to_a_separate_folder(self):
        self.profile()  # skips builds without timers, and measures the machine
        started = subprocess.Popen([MLP, "100000000"], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL,
                                   env={**os.environ, "XDG_CACHE_HOME": CACHE.name,
                                        "TS_PROF": "1,out=shared"})
        started.stdout.readline()  # its first steps are done
        done = self.run_program(MLP, "3", setting="1,out=shared")
        os.kill(started.pid, signal.SIGTERM)
        started.communicate(timeout=120)
        self.run_program(MLP, "3", setting="1,out=shared")  # nobody writes there any more
        (other,) = set(os.listdir(os.path.join(self.folder, "shared"))) - {"profile.json"}
        self.assertRegex(other, r"^process-\d+$")
        self.assertIn(f"/shared/{other}/profile.json;", done.stderr)

    def test_ts_prof_is_not_profiled(self):
        self.profile()
        path = os.path.join(self.folder, "p", "profile.json")
        with open(path, encoding="utf-8") as file:
            before = file.read()
        plain = self.run_program(TS_PROF, "report", "p/profile.json")
        done = self.run_program(TS_PROF, "report", "p/profile.json", setting="1,out=p")
        self.assertEqual((done.stdout, done.stderr), (plain.stdout, ""))
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read(), before)

    def test_a_signal_that_ends_the_program_ends_the_profile(self):
        self.profile()  # skips builds without timers, and measures the machine
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV)
        # a checked program takes half a minute to print as much as a pipe's buffer holds
        for number in numbers[:1] if os.environ.get("TS_TEST_BRIEF") else numbers:
            folder = f"by{number}"
            started = subprocess.Popen(
                [MLP, "100000000"], cwd=self.folder, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, env={**os.environ, "XDG_CACHE_HOME": CACHE.name,
                                             "TS_PROF": f"1,out={folder}"})
            started.stdout.readline()  # its first steps are done
            started.send_signal(number)
            _, errors = started.communicate(timeout=120)
            if "Sanitizer" in errors:  # it handles crashes itself
                continue
            self.assertEqual(started.returncode, -number)
            self.assertEqual(errors.count("profile: "), 1, errors)
            with open(os.path.join(self.folder, folder, "profile.json"), encoding="utf-8") as file:
                profile = json.load(file)
            self.assertGreater(sum(row["calls"] for row in profile["rows"]), 100)

    def test_the_page_has_the_numbers_of_the_json_and_loads_nothing(self):
        profile, _ = self.profile()
        self.run_program(TS_PROF, "report", "p/profile.json", "--html", "r.html", "--csv", "r.csv",
                         "--folded", "r.txt")
        with open(os.path.join(self.folder, "r.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertLess(len(page), 2 << 20)
        self.assertEqual(set(re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?(?!#)\S+", page)), set())
        self.assertNotIn("<script", page)
        charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
        self.assertEqual(len(charts), 2)
        for chart in charts:
            xml.etree.ElementTree.fromstring(chart)
        self.assertIn(f"<h1>{profile['verdict']}</h1>", page)
        longest = max(profile["rows"], key=lambda row: row["self_ns"])
        self.assertIn(f"<td>{longest['self_ns'] / 1e6:.2f}</td>", page)
        self.assertEqual(sorted(os.listdir(self.folder)), ["p", "r.csv", "r.html", "r.txt"])
        with open(os.path.join(self.folder, "r.csv"), encoding="utf-8") as file:
            self.assertEqual(len(file.readlines()), 1 + len(profile["rows"]))

    def test_each_number_of_the_table_of_operators_is_of_the_json(self):
        profile, _ = self.profile()
        self.run_program(TS_PROF, "report", "p/profile.json", "--html", "r.html")
        with open(os.path.join(self.folder, "r.html"), encoding="utf-8") as file:
            page = file.read()
        table = page[page.index("<h2>Operators"):page.index("<h2>Layers")]
        rows = [re.findall(r"<td>(.*?)</td>", row) for row in table.split("<tr>")[2:]]
        sums = {}
        for row in profile["rows"]:
            if row["kernel"]:
                kept = sums.setdefault(row["op"], dict.fromkeys(
                    ("calls", "self_ns", "flops", "bytes"), 0))
                for name in kept:
                    kept[name] += row[name]
        self.assertEqual(sorted(row[0] for row in rows), sorted(sums))
        for op, calls, self_ms, share, flops, rate, _, regime in rows:
            s = sums[op]
            times = {}
            for row in profile["rows"]:
                if row["op"] == op and row["kernel"]:
                    times[row["regime"]] = times.get(row["regime"], 0) + row["self_ns"]
            self.assertEqual(regime, max(times, key=times.get))
            for shown, value in ((calls, s["calls"]), (self_ms, s["self_ns"] / 1e6),
                                 (share, 100 * s["self_ns"] / profile["wall_ns"]),
                                 (flops, s["flops"] / s["self_ns"]),
                                 (rate, s["bytes"] / s["self_ns"])):
                digits = len(shown.partition(".")[2])
                self.assertAlmostEqual(0 if shown == "–" else float(shown), value,
                                       delta=0.51 * 10 ** -digits)

    def test_the_page_has_layers_and_a_tree_of_scopes(self):
        profile, _ = self.profile()
        self.run_program(TS_PROF, "report", "p/profile.json", "--html", "r.html")
        with open(os.path.join(self.folder, "r.html"), encoding="utf-8") as file:
            page = file.read()
        layers = page[page.index("<h2>Layers"):page.index("<h2>Scopes")]
        scopes = page[page.index("<h2>Scopes"):page.index("<h2>Calls")]
        cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in layers.split("<tr>")[2:]]
        self.assertIn("AUTOGRAD", layers)
        self.assertAlmostEqual(sum(float(row[2]) for row in cells if row[2] != "–"),
                               (profile["wall_ns"] - profile["profiler_ns"]) / 1e6,
                               delta=0.01 * len(cells))
        path, shown = [], {}
        for depth, name, ms in re.findall(r'padding-left:([0-9.]+)em">(\w+)</td><td>.*?</td>'
                                          r'<td>(.*?)</td>', scopes):
            path[round((float(depth) - 0.6) / 1.2):] = [name]
            shown["/".join(path)] = 0 if ms == "–" else float(ms)
        whole = {}
        for row in profile["rows"]:
            parts = row["scope"].split("/") if row["scope"] else []
            for n in range(1, len(parts) + 1):
                name = "/".join(parts[:n])
                whole[name] = whole.get(name, 0) + row["self_ns"] / 1e6
        self.assertEqual(shown.keys(), whole.keys())
        for name, ms in whole.items():
            self.assertAlmostEqual(shown[name], ms, delta=0.006)

    def test_page_and_report_count_lost_records(self):
        profile, _ = self.profile("memory,out=p")
        profile["integrity"].update(lost_calls=712, overwritten_calls=713, shared_calls=714)
        profile["memory"].update(lost=715)
        with open(os.path.join(self.folder, "p/profile.json"), "w", encoding="utf-8") as file:
            json.dump(profile, file)
        text = self.run_program(TS_PROF, "report", "p/profile.json").stdout
        self.run_program(TS_PROF, "report", "p/profile.json", "--html", "r.html")
        with open(os.path.join(self.folder, "r.html"), encoding="utf-8") as file:
            page = file.read()
        for shown in (text, page):
            for number in ("712", "713", "714", "715"):
                self.assertRegex(shown, number + " (older|calls|allocations)")
        self.assertNotIn("1 threads", page)
        self.assertIn("+ optimizer", page)

    def test_a_browser_shows_the_page_at_two_widths(self):
        browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser",
                                                       "google-chrome"))), None)
        if not browser:
            self.skipTest("no browser: install chromium")
        self.profile("memory,out=p")
        self.run_program(TS_PROF, "report", "p/profile.json", "--html", "r.html")
        for width in (1280, 480):
            picture = os.path.join(self.folder, f"{width}.png")
            subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu",
                            "--hide-scrollbars", f"--user-data-dir={self.folder}/browser",
                            f"--screenshot={picture}", f"--window-size={width},1600",
                            f"file://{self.folder}/r.html"],
                           check=False, timeout=120, capture_output=True)
            if not os.path.exists(picture):
                self.skipTest("the browser cannot run here")
            with open(picture, "rb") as file:
                data = file.read()
            self.assertEqual(struct.unpack(">II", data[16:24]), (width, 1600))
            pixels = picture_rows(data)
            drawn = [len(set(row)) > 12 for row in pixels]  # more than a plain background
            self.assertGreater(sum(drawn), 400)  # text and charts, not an empty page

    def test_memory_and_parts_are_recorded_on_request(self):
        profile, done = self.profile("memory,detail,out=p", "40")
        memory = profile["memory"]
        self.assertGreater(memory["peak_bytes"], 0)
        self.assertAlmostEqual(max(sum(p["bytes"]) for p in memory["points"]),
                               memory["peak_bytes"])
        owners = dict(zip(memory["owners"], memory["peak"]))
        self.assertGreater(owners["parameter"], 0)
        self.assertGreater(owners["optimizer"], 0)
        self.assertLessEqual({r["part"] for r in profile["rows"]},
                             {"", "rule", "allocation", "casts"})
        self.assertTrue(any(r["part"] == "rule" and r["self_ns"] > 0 for r in profile["rows"]))
        self.assertIn("memory of tensors on cpu: peak", done.stderr)
        self.run_program(TS_PROF, "report", "p/profile.json", "--html", "r.html")
        with open(os.path.join(self.folder, "r.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("Memory of tensors", page)
        charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
        self.assertEqual(len(charts), 3)
        for chart in charts:
            xml.etree.ElementTree.fromstring(chart)
        text = self.run_program(TS_PROF, "report", "p/profile.json").stdout
        self.assertEqual(text[text.index("memory of tensors"):],
                         done.stderr[done.stderr.index("memory of tensors"):
                                     done.stderr.index("wrote ")])

    def test_a_flight_recording_is_a_trace(self):
        _, done = self.profile("flight,out=p")
        self.assertIn("trace.json", done.stderr)

    def test_the_page_shows_device_times(self):
        profile, _ = self.profile()
        rows = sorted((row for row in profile["rows"] if row["kernel"]),
                      key=lambda row: row["self_ns"])
        other = next(row for row in reversed(rows) if row["op"] != rows[-1]["op"])
        for row in (rows[-1], other):
            row.update(device_ns=4.321e9, kernels=57)
        profile["device_times"].update(source="CUPTI <7>", kernels=114, copies=3, busy_ns=8.642e9,
                                       idle_ns=1.358e9)
        profile["steps"] = [step[:5] + [4e6, 1e6] for step in profile["steps"]]
        with open(os.path.join(self.folder, "p/profile.json"), "w", encoding="utf-8") as file:
            json.dump(profile, file)
        text = self.run_program(TS_PROF, "report", "p/profile.json").stdout
        self.run_program(TS_PROF, "report", "p/profile.json", "--html", "r.html")
        self.assertIn("busy 8642.000 ms, idle 1358.000 ms (13.6%)", text)
        self.assertRegex(text, r"op +calls +self ms device ms device")
        self.assertRegex(text, rf"(?m)^{rows[-1]['op']} .* 4321.00  43.2%")
        with open(os.path.join(self.folder, "r.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("CUPTI &lt;7&gt;: busy 8642.000 ms with 114 kernels and 3 copies", page)
        self.assertIn("<td>4321.000</td><td>57</td><td>43.2</td>", page)
        self.assertIn("device idle", page)

    def test_profiles_are_compared_by_step(self):
        self.profile()
        self.run_program(MLP, "40", setting="out=q")
        text = self.run_program(TS_PROF, "compare", "p/profile.json", "q/profile.json").stdout
        self.assertRegex(text, r"wall a step: .* times")
        self.assertRegex(text, r"linear +CPU +3\.\d +3\.\d")

    def test_the_machine_is_measured_and_kept(self):
        self.profile()  # skips without timers
        done = self.run_program(TS_PROF, "calibrate")
        self.assertIn("GFLOP/s", done.stdout)
        first = done.stdout.splitlines()[:3]
        self.assertEqual(self.run_program(TS_PROF, "calibrate").stdout.splitlines()[1:3], first[1:])

    def test_words_that_a_command_does_not_take_are_refused(self):
        for words in (["report"], ["compare", "a"], ["report", "a", "b"], ["calibrate", "a"],
                      ["compare", "a", "b", "--html", "x"], ["report", "a", "--anew"],
                      ["what"], []):
            done = self.run_program(TS_PROF, *words, status=2)
            self.assertEqual(done.stdout, "", words)
        done = self.run_program(TS_PROF, "report", "none.json", status=1)
        self.assertIn("none.json", done.stderr)

    def test_help_lists_the_arguments_of_the_command(self):
        done = self.run_program(TS_PROF, "calibrate", "--help")
        self.assertIn("--device", done.stdout)
        self.assertNotIn("--html", done.stdout)
        self.assertIn("--html", self.run_program(TS_PROF, "--help").stdout)
        done = self.run_program(TS_PROF, "--version")
        self.assertRegex(done.stdout, r"^ts-prof \d+\.\d+\.\d+\n$")

    def test_an_error_names_the_program_once(self):
        self.profile()
        done = self.run_program(TS_PROF, "report", "p/profile.json", "--csv", "no/such/r.csv",
                                status=1)
        self.assertEqual(done.stderr.count("ts-prof"), 1, done.stderr)

    def test_the_report_says_why_a_verdict_is_unreliable(self):
        profile, _ = self.profile()
        slow = max((row for row in profile["rows"] if row["kernel"]), key=lambda r: r["self_ns"])
        slow["flops"] = 1e20
        with open(os.path.join(self.folder, "p/profile.json"), "w", encoding="utf-8") as file:
            json.dump(profile, file)
        text = self.run_program(TS_PROF, "report", "p/profile.json").stdout
        share = 100 * slow["self_ns"] / profile["wall_ns"]
        self.assertIn(f"({share:.0f}% above a ceiling, most in {slow['op']})", text)
        self.assertIn(f"unreliable: ERROR rows take {share:.1f}%", text)


if __name__ == "__main__":
    tally.main()
