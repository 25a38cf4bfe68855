#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The code in docs/ works: test_docs.py BUILD SOURCE OP_SAMPLES (of a build without sanitizer).

Comments in the pages declare the kind of a block of code:

    <!-- FILE, before TEXT -->     code of add-an-op.md that goes before (`after`: after) the line
                                   of FILE that contains TEXT; FILE with all such code compiles
    <!-- from FILE -->             an excerpt of FILE, without its indentation; a line `...` stands
                                   for omitted lines
    <!-- program NAME=VALUE -->    a whole program: it compiles without warnings, and exits with 0
                                   with this environment variable (NAME=VALUE may be missing)
    <!-- output -->                the output of the program above
    <!-- code -->                  declarations; those of a page compile as one file
    <!-- code in (PARAMETERS) -->  statements of a function with these parameters, in that file

Each cell of Tessera's column in pytorch-to-tessera.md runs; each mistake in
when-something-is-wrong.md fails with the text beside it (cheat_sheet.c). The Python blocks of a
page are one program: it compiles, has no undefined name, and runs where torch can be imported.
"""
import ast
import builtins
import fnmatch
import glob
import importlib.util
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

BUILD, SOURCE, OP_SAMPLES = map(os.path.abspath, sys.argv[1:4])
del sys.argv[1:]
BLOCK = re.compile(r"<!-- (\S+), (before|after) (.*?) -->\n```(?:c|text)\n(.*?)```", re.S)
MARKED = re.compile(r"<!-- (from (\S+)|program(?: [A-Z_]+=\S+)?|output) -->\n"
                    r"```(?:c|text)\n(.*?)```", re.S)
CODE = re.compile(r"<!-- code(?: in (\(.*?\)))? -->\n```c\n(.*?)```", re.S)
IN_PYTHON = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
# Variables that the Python code of a page needs. If all have values, the code is run.
PYTHON = {"docs/from-nanogpt.md": {"path": __file__, "steps": 1},
          "docs/save-and-load.md": {"model": None}}
COLUMN = re.compile(r"\| `(examples/\S+)` \|\n\|.*\n((?:\|.*\n)*)")  # a column whose head is a file
COPIED = ("autograd", "backends", "bench/peers", "compile", "conformance", "core", "dispatch",
          "docs", "include", "layers", "ops", "tests", "tools", "tracing", "init.h")


def read(path):
    with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
        return file.read()


def page():
    return BLOCK.findall(read("docs/add-an-op.md"))


def pages():
    for path in sorted(glob.glob(os.path.join(SOURCE, "docs/*.md"))):
        yield os.path.relpath(path, SOURCE)


def table(path):
    """Yields (line number, cells) for each table row of a page whose first cell is code."""
    for number, line in enumerate(read(path).split("\n"), 1):
        if line.startswith("| `"):
            yield number, [cell.strip().replace("\\|", "|")
                           for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def shape(line):
    """A line of code with one letter for each word."""
    return re.sub(r"\w+", "w", line.strip())


def insert(path, place, text, block):
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    found = [i for i, line in enumerate(lines) if text in line]
    if len(found) != 1:
        raise AssertionError(f"{path}: {len(found)} lines hold {text!r}")
    line, at = lines[found[0]], found[0] + (place == "after")
    if path.endswith(".cu") and shape(block) != shape(line):  # nvcc may be absent
        raise AssertionError(f"{path}: {block!r} has other arguments than {line!r}")
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
            lines = {"logaddexp": {}, "softsign": {}}  # per operator and file
            for file, place, text, block in page():
                insert(os.path.join(folder, file), place, text, block)
                of = lines["softsign" if "softsign" in block else "logaddexp"]
                of[file] = of.get(file, 0) + block.count("\n")
            for name, of in lines.items():
                said = f"`{name}`: {sum(of.values())} lines in {len(of)} files"
                self.assertTrue(said in read("docs/add-an-op.md"), said)
            touched = {file for of in lines.values() for file in of}
            for file in touched:
                if file.endswith(".py"):
                    with open(os.path.join(folder, file), encoding="utf-8") as python:
                        ast.parse(python.read(), file)
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
            seen.add(source)  # some are compiled for several instruction sets
            here = os.path.join(folder, "build")
            os.makedirs(here, exist_ok=True)
            words[words.index("-c") + 1] = os.path.join(folder, source)
            words = [w for i, w in enumerate(words) if w not in ("-MD", "-MQ", "-MF", "-o")
                     and words[i - 1] not in ("-MQ", "-MF", "-o")]
            done = subprocess.run(words + ["-fsyntax-only", "-Werror"], cwd=here, check=False,
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(done.returncode, 0, done.stdout)
        # files of a GPU backend (not .c) are compiled only where that backend is built
        self.assertLessEqual({file for file in touched if file.endswith(".c")}, seen)


def spaceless(text):
    """Lines without their indentation, and without empty ones."""
    return [line.strip() for line in text.split("\n") if line.strip()]


def addressless(text):
    """Text without code offsets, which depend on the compiler."""
    return re.sub(r"\+0x[0-9a-f]+", "+0x", text)


class Excerpts(unittest.TestCase):
    def test_excerpts_are_in_their_files(self):
        count = 0
        for path in pages():
            for kind, file, block in MARKED.findall(read(path)):
                if not kind.startswith("from"):
                    continue
                lines, at = spaceless(read(file)), 0
                for piece in re.split(r"^\s*\.\.\.\s*$", block, flags=re.M):
                    wanted = spaceless(piece)
                    found = [i for i in range(at, len(lines) - len(wanted) + 1)
                             if lines[i:i + len(wanted)] == wanted]
                    self.assertTrue(found, f"{path}: not in {file}, in this order:\n{piece}")
                    at = found[0] + len(wanted)
                    count += 1
        self.assertGreater(count, 0)

    def test_cells_are_in_the_file_that_heads_their_column(self):
        count = 0
        for path in pages():
            for file, rows in COLUMN.findall(read(path)):
                flat = re.sub(r"\s+", " ", read(file))
                for code in re.findall(r"\| `([^`]*)`[^|]*\|$", rows, re.M):
                    self.assertIn(code, flat, path)
                    count += 1
        self.assertGreater(count, 0)


class Programs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tessera-docs-")
        self.addCleanup(shutil.rmtree, self.folder)

    def build(self, source, *flags):
        program = os.path.join(self.folder, "program")
        done = subprocess.run(
            ["cc", "-std=gnu17", "-Wall", "-Wextra", "-Werror", *flags, source, "-o", program,
             "-I", os.path.join(SOURCE, "include"), "-I", self.folder, "-L", BUILD, "-ltessera",
             f"-Wl,-rpath,{BUILD}", "-lm", "-pthread"],
            check=False, cwd=self.folder, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        return program

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def run_program(self, program, *variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TS_")}
        environment.update(variable.split("=") for variable in variables)
        done = subprocess.run([program], cwd=self.folder, check=False, text=True, env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_programs_print_the_output_on_the_page(self):
        count = 0
        for path in pages():
            for kind, _, block in MARKED.findall(read(path)):
                if kind.startswith("program"):
                    source, printed = os.path.basename(path)[:-3] + ".c", None
                    self.write(source, block)
                    with self.subTest(page=path, number=count):
                        printed = self.run_program(self.build(source),
                                                   *kind.split()[1:])
                    count += 1
                elif kind == "output" and printed is not None:
                    with self.subTest(page=path, output=count):
                        self.assertEqual(addressless(printed), addressless(block))
        self.assertGreater(count, 0)

    def test_code_of_a_page_compiles(self):
        headers = "".join(f"#include <{name}.h>\n" for name in
                          ("stdio", "tessera/tessera", "tessera/backend", "tessera/kernel"))
        count = 0
        for path in pages():
            parts, text = [headers], read(path)
            for found in CODE.finditer(text):
                parameters, code = found.groups()
                code = re.sub(r"^\s*\.\.\..*$", "", code, flags=re.M)
                line = f'#line {text.count(chr(10), 0, found.start(2)) + 1} "{path}"\n'
                if parameters:
                    code = (f"ts_status code_{count}{parameters}; "
                            f"ts_status code_{count}{parameters}\n{{\n{line}{code}\n"
                            "return TS_OK; }\n")
                parts.append(line + code)
                count += 1
            if parts[1:]:
                with self.subTest(page=path):
                    self.build(self.write("code.c", "".join(parts)), "-c", "-Wno-unused",
                               "-Wno-unused-parameter", "-Wno-missing-prototypes")
        self.assertGreater(count, 15)

    def test_each_block_of_c_is_tested(self):
        kind = r"^<!-- (code|program|from |\S+, (before|after) ).*-->$"
        for path in pages():
            for number, line in enumerate(re.findall(r"(.*)\n```c\n", read(path))):
                self.assertRegex(line, kind, f"{path}: block {number} has no kind")

    def run_rows(self, name, rows):
        """Compiles and runs cells of code, [(line, code, error or "")], with cheat_sheet.c."""
        functions, listed = [], []
        for number, code, error in rows:
            body = code if code.endswith(";") else f"TS_TRY({code});"
            row = f"row_{len(listed)}"
            functions.append(f'#line {number} "{name}"\n'
                             f"static ts_status {row}(void) {{ {body} return TS_OK; }}\n")
            listed.append(f"X({row}, {json.dumps(f'{name}:{number}')}, {json.dumps(error)})")
        self.write("rows.h", "".join(functions) + f"#define ROWS(X) {' '.join(listed)}\n")
        sheet = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cheat_sheet.c")
        self.run_program(self.build(sheet, "-Wno-unused-value"))

    def test_each_row_of_the_cheat_sheet_runs(self):
        rows = [(number, code, "") for number, cells in table("docs/pytorch-to-tessera.md")
                for code in re.findall(r"`([^`]*)`", cells[-1])]
        self.assertGreater(len(rows), 90)
        self.run_rows("docs/pytorch-to-tessera.md", rows)

    def test_mistakes_have_the_errors_that_the_page_shows(self):
        name = "docs/when-something-is-wrong.md"
        rows = [(number, cells[0].strip("`"), cells[1].strip("`").replace("` hint: `", " | "))
                for number, cells in table(name) if cells[1].startswith("`TS_ERR_")]
        self.assertGreater(len(rows), 10)
        self.run_rows(name, rows)


def undefined(tree, given):
    """Names that a module reads and never binds."""
    read_names, bound = set(), set(dir(builtins)) | set(given)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read_names if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
    return read_names - bound


class PythonColumns(unittest.TestCase):
    def test_the_python_of_a_page_is_a_program(self):
        for path in pages():
            blocks = IN_PYTHON.findall(read(path))
            self.assertEqual(bool(blocks), path in PYTHON, path)
            if not blocks:
                continue
            given = PYTHON[path]
            tree = ast.parse("\n".join(blocks), path)
            self.assertEqual(undefined(tree, given), set(), path)
            if None not in given.values() and importlib.util.find_spec("torch"):
                exec(compile(tree, path, "exec"), dict(given))  # pylint: disable=exec-used

    def test_an_undefined_name_is_found(self):
        tree = ast.parse("def f(x):\n    return [y + z for y in x]\n")
        self.assertEqual(undefined(tree, {}), {"z"})


NAME = re.compile(r"\b(?:ts|TS)_\w+")
FILE = re.compile(r"(?<![\w./~$*-])(?:[\w-]+/)*[\w-]+\.(?:c|h|cu|cuh|def|py|sed|tsv)\b")
MADE = {"ts_logaddexp", "ts_softsign", "ts_softsign_", "ts_softsign_out",  # of add-an-op.md
        "share/gdb/auto-load/tessera-gdb.py"}  # installed


def absent(text, names, files):
    """Names and files in the code spans of a page that are in neither set."""
    found = set()
    for span in re.findall(r"`([^`\n]+)`", re.sub(r"(?s)```.*?```", "", text)):
        found |= {name for name in NAME.findall(span)
                  if name not in names
                  and not (name.endswith("_") and any(known.startswith(name) for known in names))}
        found |= set(FILE.findall(span)) - files
    return found - MADE


class Names(unittest.TestCase):
    def test_the_names_and_files_on_the_pages_exist(self):
        names, files, count = set(), set(), 0
        for folder, folders, inside in os.walk(SOURCE):
            folders[:] = [name for name in folders
                          if not name.startswith(("build", ".")) and name != "runs"]
            for name in inside:
                path = os.path.relpath(os.path.join(folder, name), SOURCE)
                files |= {path, name, path.removeprefix("include/"),
                          path.removeprefix("include/tessera/"),
                          path.removeprefix("backends/cuda/")}
                if name.endswith((".c", ".h", ".cu", ".cuh", ".def", ".py")):
                    names |= set(NAME.findall(read(path)))
        for path in ["README.md", "CONTRIBUTING.md", "SECURITY.md", *pages()]:
            text = read(path)
            with self.subTest(page=path):
                self.assertEqual(absent(text, names, files), set())
            count += len(NAME.findall(text))
        self.assertGreater(count, 1000)

    def test_an_absent_name_is_found(self):
        text = "`ts_add(x)` calls `ts_sub_(x)` of `ops/no.c` and `TS_INIT_...`, not `$HOME/a.h`."
        self.assertEqual(absent(text, {"ts_add", "TS_INIT_X"}, set()), {"ts_sub_", "ops/no.c"})


class Links(unittest.TestCase):
    def test_links_of_the_pages_lead_to_files_of_the_repository(self):
        count = 0
        for path in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", *pages()]:
            text = re.sub(r"(?s)```.*?```|`[^`\n]*`", "", read(path))
            for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
                target = os.path.join(SOURCE, os.path.dirname(path), link)
                self.assertTrue(os.path.exists(target), f"{path}: nothing is at {link}")
                count += 1
        self.assertGreater(count, 200)


class Map(unittest.TestCase):
    def test_the_page_names_each_file_of_the_cuda_backend_once(self):
        section = read("docs/cuda.md").split("## Source files\n")[1].split("\n## ")[0]
        cells = " ".join(re.findall(r"^\|([^|]*)\|", section, re.M))
        spans = re.findall(r"`([^`]+)`", cells)
        room = os.path.join(SOURCE, "backends/cuda")
        for path in sorted(glob.glob(os.path.join(room, "**/*.*"), recursive=True)):
            name = os.path.relpath(path, room)
            if name != "meson.build" and not name.startswith("lean/"):
                found = [span for span in spans if fnmatch.fnmatch(name, span)]
                self.assertEqual(len(found), 1, f"{name}: {found}")


class Data(unittest.TestCase):
    def test_the_samples_are_those_of_the_table(self):
        made = subprocess.run([OP_SAMPLES], check=True, text=True, stdout=subprocess.PIPE).stdout
        self.assertEqual(read("docs/data/samples.tsv"), made,
                         "run build/tests/house/op_samples >docs/data/samples.tsv")

    def test_a_changed_figure_is_found(self):
        pages = [name for name in ["README.md", *sorted(
            os.path.relpath(path, SOURCE) for path in glob.glob(os.path.join(SOURCE, "docs/*.md")))]
            if "<!-- figures: " in read(name)]
        with tempfile.TemporaryDirectory(prefix="tessera-docs-") as folder:
            for name in ("tools/figures", "bench/figures", "bench/peers", "bench/results", *pages):
                path, copied = os.path.join(SOURCE, name), os.path.join(folder, name)
                os.makedirs(os.path.dirname(copied), exist_ok=True)
                (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, copied)
            check = [os.path.join(folder, "tools/figures"), "--check"]
            subprocess.run(check, check=True)
            for name in pages:
                path = os.path.join(folder, name)
                begin, block, end = re.split("(?s)(<!-- figures: .*?)(?=<!-- end of figures)",
                                             read(name), maxsplit=1)
                cells, bar, source = block.rpartition("|\n")
                head, digit, tail = re.fullmatch(r"(?s)(.*)(\d)(.*?)", cells).groups()
                tail += bar + source
                with open(path, "w", encoding="utf-8") as file:
                    file.write(begin + head + str((int(digit) + 1) % 10) + tail + end)
                done = subprocess.run(check, check=False, stderr=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 1)
                self.assertIn(name, done.stderr)
                shutil.copy(os.path.join(SOURCE, name), path)

    def test_each_operator_has_a_line_for_its_name_in_pytorch(self):
        names = [[line.split("\t")[0] for line in read(f"docs/data/{file}.tsv").splitlines()]
                 for file in ("pytorch", "samples")]
        self.assertEqual(sorted(names[0]), sorted(names[1]))


if __name__ == "__main__":
    tally.main()
