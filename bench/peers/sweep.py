"""
The random sweep of bench/compare.py --random: the order of the operators, the sizes of a case, the
turns of the sides, and the distribution of the speeds. Nothing here needs PyTorch; sweep_draw.py
draws arguments, sweep_peers.py has PyTorch's calls, sweep_sides.py runs both sides.
"""
# SPDX-License-Identifier: MIT
import ctypes
import math
import random
import re
import sys
import time
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 0.95   # a slower case is timed again
AGAIN = 3      # at most this many times
MEGABYTE = 1e6
WORST = 10
COLUMNS = ('case', 'threads', 'op', 'class', 'mode', 'shapes', 'dtype', 'bytes', 'ours_us',
           'peer_us', 'peer', 'speed', 'ours_host_us', 'peer_host_us', 'note')


class Skipped(Exception):
    """A case without a time; the text is the reason."""


class TooLarge(Exception):
    """The arguments are beyond the limits: another attempt is drawn."""


class Lost(Exception):
    """The device takes no more work; the text is the reason."""


# ------------------------------------------------------------------------------------ drawing ----

def families():
    """{operator: family}: the section of ops/*.def with the operator's row, or 'view' if the
    operator makes an alias."""
    tables = sorted((ROOT / 'ops').glob('*.def'))
    if not tables:
        sys.exit(f'compare.py: expected operator tables in {ROOT / "ops"}, got none')
    text = '\n'.join(path.read_text() for path in tables)
    found, family = {}, None
    for part in re.split(r'(?=^TS_OP\(|^/\* ---- )', text, flags=re.M):
        heading = re.match(r'/\* ---- (\w+) ----', part)
        row = re.match(r'TS_OP\((\w+),', part)
        family = heading[1] if heading else family
        if row:
            found[row[1]] = 'view' if ' VIEW, ' in part else family
    return found


def operator_of(seed, number, names):
    """The operator of a case. Each round of len(names) cases has all names, in a random order."""
    turn, place = divmod(number, len(names))
    order = sorted(names)
    random.Random(f'{seed}:{turn}').shuffle(order)
    return order[place]


def numbers(seed, how_many, names, wanted):
    """The first numbers of cases whose operator matches, so that a label means the same case with
    and without a choice of operators."""
    if not any(re.search(wanted, name) for name in names):
        return []
    found = (n for n in count() if re.search(wanted, operator_of(seed, n, names)))
    return list(islice(found, how_many))


class Sizes:
    """Log-uniform sizes of one attempt at a case; the same label and attempt give the same."""

    def __init__(self, seed, number, attempt, most):
        self.r = random.Random(f'{seed}:{number}:{attempt}')
        self.most = most >> attempt // 3  # refused attempts become smaller

    def log_uniform(self, low, high):
        return 2 ** self.r.uniform(math.log2(low), math.log2(max(low, high)))

    def rounded(self, n):
        """n itself for half of the calls, else a multiple of 8 or a power of two."""
        kind = self.r.choice(['any', 'any', 'multiple', 'power'])
        n = max(1, round(n))
        if kind == 'multiple' and n > 8:
            return n // 8 * 8
        return 1 << n.bit_length() - 1 if kind == 'power' else n

    def shape(self, ndim, total=None):
        """Sizes of ndim dims with `total` elements or a drawn number of them."""
        if not ndim:
            return []
        total = total or self.log_uniform(64, self.most)
        parts = [self.r.expovariate(1) for _ in range(ndim)]
        sizes = [self.rounded(total ** (part / sum(parts))) for part in parts]
        while math.prod(sizes) > self.most:
            sizes[sizes.index(max(sizes))] //= 2
        return sizes

    def length(self, usual):
        """Length of a vector or of a side of a matrix, up to `usual`; rarely up to 2^20."""
        return self.rounded(self.log_uniform(1, 1 << 20 if self.r.random() < 0.12 else usual))


# -------------------------------------------------------------------------------- measuring ----

def fastest(runs, seconds, best=None, least=3, clock=time.monotonic):
    """Returns the fewest nanoseconds of each side; a run returns those of a batch, and the sides'
    batches alternate. Runs `least` rounds or more, until three in a row bring no improvement of
    1 %, or `seconds` are over. best: the result of an earlier call."""
    best = list(best or [math.inf] * len(runs))
    idle, rounds, deadline = 0, 0, clock() + seconds
    while rounds < least or (idle < 3 and clock() < deadline):
        before = list(best)
        for side, run in enumerate(runs):
            best[side] = min(best[side], run())
        rounds += 1
        idle = 0 if any(now < 0.99 * then for now, then in zip(best, before)) else idle + 1
    return best


@dataclass
class Row:
    """A timed case; times in microseconds."""
    label: str
    threads: str
    op: str
    family: str
    mode: str
    shapes: str
    dtype: str
    bytes: int
    ours: float = math.nan
    peers: dict = field(default_factory=dict)
    host: tuple = None       # host times of ours and of PyTorch's eager call
    note: str = ''

    @property
    def peer(self):
        return min(self.peers, key=self.peers.get)

    @property
    def speed(self):
        """Time of the fastest peer / ours."""
        return self.peers[self.peer] / self.ours

    def cells(self):
        timed = bool(self.peers)
        host = [f'{us:.2f}' for us in self.host] if self.host else ['-', '-']
        times = ([f'{self.ours:.3f}', f'{self.peers[self.peer]:.3f}', self.peer,
                  f'{self.speed:.3f}'] if timed else ['-'] * 4)
        return [self.label, self.threads, self.op, self.family, self.mode, self.shapes, self.dtype,
                str(self.bytes), *times, *host, self.note]


def judge(timed, seconds, ours=1):
    """Times a case, and again up to AGAIN times while its speed is below LIMIT. timed(seconds,
    best) returns nanoseconds of each side, those of `ours` sides first; best: its earlier result,
    or None."""
    best = timed(seconds, None)
    for _ in range(AGAIN):
        if min(best[ours:]) / min(best[:ours]) >= LIMIT:
            break
        best = timed(seconds, best)
    return best


# ----------------------------------------------------------------------------- distribution ----

def geometric_mean(speeds):
    return math.exp(sum(map(math.log, speeds)) / len(speeds)) if speeds else math.nan


def percentile(speeds, part):
    """The value at `part` (0 to 1) of the sorted speeds, interpolated linearly."""
    speeds = sorted(speeds)
    place = part * (len(speeds) - 1)
    low = math.floor(place)
    high = min(low + 1, len(speeds) - 1)
    return speeds[low] + (speeds[high] - speeds[low]) * (place - low)


def summary(rows):
    """(name, count, geometric mean, 5th percentile, minimum, share below 1) of each class and of
    all; classes in order of their means."""
    groups = {}
    for row in rows:
        groups.setdefault(row.family, []).append(row.speed)
    lines = sorted(groups.items(), key=lambda item: geometric_mean(item[1]))
    lines.append(('all, 1 MB and more', [r.speed for r in rows if r.bytes >= MEGABYTE]))
    lines.append(('all, below 1 MB', [r.speed for r in rows if r.bytes < MEGABYTE]))
    lines.append(('all', [r.speed for r in rows]))
    host = [r.host[1] / r.host[0] for r in rows if r.host]
    lines.append(('host cost, below 1 MB', host))
    return [(name, len(found), geometric_mean(found), percentile(found, 0.05), min(found),
             sum(x < 1 for x in found) / len(found)) for name, found in lines if found]


def print_summary(rows, command, write):
    if not rows:
        return
    write(f'{"class":<24} {"cases":>6} {"geo. mean":>10} {"5th perc.":>10} {"minimum":>8} '
          f'{"below 1":>8}')
    for name, n, mean, fifth, least, below in summary(rows):
        write(f'{name:<24} {n:>6} {mean:>10.3f} {fifth:>10.3f} {least:>8.3f} {below:>8.0%}')
    write(f'the slowest {min(WORST, len(rows))}, time of the best peer over ours:')
    for row in sorted(rows, key=lambda row: row.speed)[:WORST]:
        threads = f' --threads {row.threads}' if row.threads != '-' else ''
        write(f'{row.speed:7.3f}  {row.op} {row.mode} {row.dtype} {row.shapes}: {row.ours:.1f} us, '
              f'{row.peer} {row.peers[row.peer]:.1f} us\n'
              f'         {command}{threads} --case {row.label}')


class ChartOptions(ctypes.Structure):
    """ts_chart_opts."""
    _fields_ = [('size', ctypes.c_size_t), ('title', ctypes.c_char_p), ('x_title', ctypes.c_char_p),
                ('y_title', ctypes.c_char_p), ('width', ctypes.c_int), ('height', ctypes.c_int),
                ('log_x', ctypes.c_bool), ('log_y', ctypes.c_bool)]


class LineOptions(ctypes.Structure):
    """ts_line_opts."""
    _fields_ = [('size', ctypes.c_size_t), ('smoothing', ctypes.c_double),
                ('bridge_gaps', ctypes.c_bool), ('markers', ctypes.c_bool)]


def draw_chart(c, rows, title, path):
    """Draws the speed over the bytes, one dot per case, with the charts of report/."""
    pointer = ctypes.c_void_p
    c.ts_chart_new.restype, c.ts_chart_new.argtypes = pointer, [pointer]
    c.ts_chart_line.argtypes = [pointer, ctypes.c_char_p, pointer, pointer, ctypes.c_int64, pointer]
    c.ts_chart_reference.argtypes = [pointer, ctypes.c_char_p, ctypes.c_double]
    c.ts_chart_write.argtypes = [pointer, ctypes.c_char_p]
    c.ts_chart_free.argtypes = [pointer]
    options = ChartOptions(ctypes.sizeof(ChartOptions), title.encode(),
                           b'bytes of arguments and results', b'time of the best peer / ours',
                           log_x=True, log_y=True)
    line = LineOptions(ctypes.sizeof(LineOptions), markers=True)
    chart = c.ts_chart_new(ctypes.byref(options))
    failed = not chart
    for mode in sorted({row.mode for row in rows}):
        some = sorted((max(row.bytes, 1), row.speed) for row in rows if row.mode == mode)
        dots = [dot for x, y in some for dot in ((x, y), (x, math.nan))]  # a gap behind each
        xs, ys = ((ctypes.c_double * len(dots))(*column) for column in zip(*dots))
        failed = failed or c.ts_chart_line(chart, mode.encode(), xs, ys, len(dots),
                                           ctypes.byref(line))
    failed = failed or c.ts_chart_reference(chart, b'as fast', 1.0) or \
        c.ts_chart_write(chart, str(path).encode())
    c.ts_chart_free(chart)
    if failed:
        print(f'compare.py: no chart in {path}', file=sys.stderr)


# ---------------------------------------------------------------------------------- the run ----

class Progress:
    """Prints case i of n and the time left to stderr: in place on a terminal, else every 10 s."""

    def __init__(self, total, deadline, stream=None, clock=time.monotonic):
        self.total, self.deadline, self.clock = total, deadline, clock
        self.stream = stream or sys.stderr
        self.begin, self.last = clock(), -math.inf
        self.place = self.stream.isatty()

    def __call__(self, done, what):
        now = self.clock()
        if now - self.last < (0.2 if self.place else 10):
            return
        self.last = now
        pace = (now - self.begin) / done if done else math.inf
        left = min(pace * (self.total - done), self.deadline - now)
        text = f'# case {done + 1} of {self.total}, {max(0, left):.0f} s left: {what}'
        print(f'\r{text:<79.79}' if self.place else text, file=self.stream, flush=True,
              end='' if self.place else '\n')

    def end(self):
        if self.place:
            print(f'\r{"":<79}\r', file=self.stream, end='', flush=True)


def run(options, bench, command, out):
    """Runs a sweep and returns the exit status. bench has `names` of operators, `settings` (numbers
    of threads), use(setting), time(seed, number, seconds), which returns a Row or raises Skipped or
    Lost, and `c`, the library with the charts."""
    seed = options.seed
    if options.case:
        seed, number = map(int, options.case.split(':'))
        chosen = [number]
    else:
        chosen = numbers(seed, options.random, bench.names, options.ops or options.only)
    if not chosen:
        sys.exit('compare.py: no operator matches')
    rows, failures = [], []

    def write(line):
        print(line, flush=True)
        if out:
            print('\n'.join(f'# {part}' for part in line.split('\n')), file=out, flush=True)
    if out:
        print(*COLUMNS, sep='\t', file=out)
    cases = [(setting, number) for setting in bench.settings for number in chosen]
    deadline = time.monotonic() + options.minutes * 60
    progress = Progress(len(cases), deadline)
    now, done = None, 0
    for setting, number in cases:
        left = deadline - time.monotonic()
        if left < 0:
            break
        if setting != now:
            bench.use(now := setting)
        progress(done, operator_of(seed, number, bench.names))
        try:
            row = bench.time(seed, number, min(options.seconds, 0.3 * left / (len(cases) - done)))
        except Skipped as error:
            failures.append(f'--case {seed}:{number}: {error}')
            continue
        except Lost as error:
            failures.append(f'--case {seed}:{number} and what follows: {error}')
            break
        finally:
            done += 1
        rows.append(row)
        if out:
            print(*row.cells(), sep='\t', file=out, flush=True)
        if options.case:
            print(*(f'{name}: {cell}' for name, cell in zip(COLUMNS, row.cells())),
                  *(f'{peer}: {us:.3f} us' for peer, us in row.peers.items()), sep='\n')
    progress.end()
    if done < len(cases):
        write(f'{len(cases) - done} of {len(cases)} cases were not reached')
    for line in failures:
        write(f'not timed: {line}')
    print_summary(rows, command, write)
    if out and rows:
        draw_chart(bench.c, rows, f'{options.suite}, {len(rows)} drawn cases, seed {seed}',
                   Path(options.out).with_suffix('.svg'))
    return 1 if any('differs' in line for line in failures) or not rows else 0
