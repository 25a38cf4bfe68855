# SPDX-License-Identifier: MIT
"""Files of bench/results/, and tables of their rows."""
import math
import pathlib
import re
import sys

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "results"


class File:
    """One result file: `head` is its comments, `rows` are its lines by column name."""
    read = {}  # the files whose rows were read since the last clear(), by name

    def __init__(self, name):
        self.name, self.head, self.lines, columns = name, {}, [], None
        for line in (RESULTS / name).read_text("utf-8").splitlines():
            if line.startswith("# "):
                key, _, value = line[2:].partition(": ")
                self.head[key] = value
            elif columns is None:
                columns = line.split("\t")
            else:
                self.lines.append(dict(zip(columns, line.split("\t"))))

    @property
    def rows(self):
        File.read[self.name] = self
        return self.lines

    @property
    def origin(self):
        """Machine, date and commit."""
        commit = self.head.get("commit", "not recorded")
        return (self.head.get("machine", "machine not recorded"),
                self.head.get("date", "date not recorded"),
                commit if commit.startswith("sources") else f"commit {commit}")

    @property
    def source(self):
        """Machine, date and commit, with a note of the head about a later run."""
        note = self.head.get("command", "").partition("; ")[2]
        return "; ".join([*self.origin, *([note] if re.search(r"\brun\b", note) else [])])

    @property
    def command(self):
        """The command of the head that repeats the measurement, without --out, --commit, a choice
        of cases and notes. A copy for a machine without a compiler has its build in `.`."""
        text = re.sub(r" --only '.*?'| --(out|commit) \S+|; .*| \([^|]*\)$", "",
                      self.head["command"])
        return re.sub(r"--build \.(?= |$)", "--build build-cuda", text)

    def find(self, **wanted):
        """The one row with these values."""
        found = [row for row in self.rows if wanted.items() <= row.items()]
        if len(found) != 1:
            sys.exit(f"figures: {self.name} has {len(found)} rows with {wanted}")
        return found[0]

    def mean(self, ratio, chosen):
        """Geometric mean of `ratio` over the rows for which `chosen` holds, and their number."""
        logs = [math.log(ratio(row)) for row in self.rows if chosen(row)]
        return math.exp(sum(logs) / len(logs)), len(logs)


def recorded(name):
    """The file of an H200 if there is one, else of an H100. `name` has {} for the GPU."""
    names = [name.format(machine) for machine in ("h200", "h100")]
    return File(next((name for name in names if (RESULTS / name).exists()), names[0]))


def sources(files):
    """A line below a table with the files that it was read from."""
    groups = {}
    for file in files:
        groups.setdefault(file.source, []).append(f"`{file.name}`")
    if len(groups) > 3:
        return "\nMachine, date and commit of each file: `bench/results/README.md`.\n"
    return "".join(f"\n{', '.join(names)}: {source}.\n" for source, names in groups.items())


def speed(row, peer="peer_us"):
    """Time of the peer / Tessera's, from the column of the peer's time if the row has no speed."""
    return float(row["speed"]) if "speed" in row else float(row[peer]) / float(row["ours_us"])


def number(value):
    """Three significant digits."""
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |",
             "".join("|--:" if name in ("figure", "Tessera") else "|---" for name in columns) + "|"]
    return "\n".join(lines + ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |"
                              for row in rows]) + "\n"


def numbers(file, titles, rows=None):
    """The rows of a file under other titles. A missing figure is an empty cell."""
    def cell(text):
        if text == "-":
            return ""
        return f"{int(text):,}" if re.fullmatch("[0-9]{4,}", text) else text
    lines = [[cell(value) for value in row.values()] for row in rows or file.rows]
    right = [all(re.fullmatch("[0-9.,]*", line[k]) for line in lines) for k in range(len(titles))]
    return "\n".join(["| " + " | ".join(titles) + " |",
                      "".join("|--:" if column else "|---" for column in right) + "|",
                      *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def pivot(name, key, column, value, titles, order=None):
    """One row for each value of `key` (a tuple of columns), one cell for each value of `column`."""
    file, cells = File(name), {}
    columns = order or list(dict.fromkeys(row[column] for row in file.rows))
    for row in file.rows:
        cells.setdefault(tuple(row[k] for k in key), {})[row[column]] = row[value]
    rows = [dict(enumerate([*group, *(found.get(c, "-") for c in columns)]))
            for group, found in cells.items()]
    return numbers(file, (*titles, *columns), rows)
