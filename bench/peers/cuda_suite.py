"""
Runs the cases of cuda_cases.py: compares Tessera with PyTorch (eager and torch.compile) and with
the device's roof.

One turn runs several sets of arguments, which together exceed the caches. Each result of a turn has
its own memory, on both sides. PyTorch's turns are replays of a CUDA graph, so their times exclude
its host cost; Tessera's are calls, queued faster than they run. The roof of a case is the time of a
device copy that reads and writes as many bytes, over sets of the same size. The roof of a product
is the rate of 8192x8192x8192 in bf16.

torch.compile takes seconds per case on the host, so several processes share the cases: each
compiles its own cases, and when all have finished, they measure one at a time."""
# SPDX-License-Identifier: MIT
import contextlib
import math
import multiprocessing
import os
import re
import statistics
import time
from functools import partial

TURN_BYTES = 512 << 20  # bytes of a turn's arguments and results, at least
BATCH_US = 6e3    # duration of a batch of turns


def sets_of(case):
    return case.sets or max(2, math.ceil(TURN_BYTES / max(case.bytes, 1))) if case.bytes else 4


def graph_of(torch, function, sets):
    """Returns a CUDA graph of one turn, and the results that it writes."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for arguments in sets[:1] * 3:
            function(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [function(*arguments) for arguments in sets]
    return graph, kept


def replay_us(torch, graph, turns):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(turns):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / turns


def in_turns(sides, batch_us=BATCH_US):
    """Returns the median microseconds of a turn of each side; the sides' batches alternate."""
    turns = [max(1, int(batch_us / max(side(2), 1))) for side in sides]
    found = [[side(n) for side, n in zip(sides, turns)] for _ in range(5)]
    return [statistics.median(column) for column in zip(*found)]


class Roof:
    def __init__(self, torch):
        self.torch, self.copies, self.rate = torch, {}, None

    def us(self, case):
        return self.product(case.flops) if case.flops else self.copy(case.bytes)

    def copy(self, count):
        """Microseconds of a copy that moves `count` bytes, half of them read. Above 256 MiB it is
        the time of 256 MiB pieces, because larger copies run slower than kernels do."""
        torch, half = self.torch, -(-count // 2)
        piece = min(half, TURN_BYTES // 2)
        if piece not in self.copies:
            sets = [tuple(torch.zeros(piece, dtype=torch.uint8, device='cuda') for _ in range(2))
                    for _ in range(max(2, math.ceil(TURN_BYTES / (2 * piece))))]
            graph, _ = graph_of(torch, lambda a, b: a.copy_(b), sets)
            self.copies[piece] = in_turns([partial(replay_us, torch, graph)])[0] / len(sets)
        return self.copies[piece] * half / piece

    def product(self, flops):
        if not self.rate:
            n, torch = 8192, self.torch
            sets = [tuple(torch.randn(n, n, device='cuda').bfloat16() for _ in range(2))
                    for _ in range(2)]
            graph, _ = graph_of(torch, torch.mm, sets)
            self.rate = 2 * n ** 3 * len(sets) / in_turns([partial(replay_us, torch, graph)])[0]
        return flops / self.rate


def differences(torch, library, case, arguments, dtype):
    """'' if both sides agree, else the difference."""
    calls = case.ours(*arguments)
    for call in calls[:-1]:
        library.call(*call)
    ours = library.call(*calls[-1])
    theirs = case.theirs(*arguments)
    theirs = list(theirs) if isinstance(theirs, (tuple, list)) else [theirs]
    pairs = [(ours[i], theirs[i]) for i in range(case.same)] or \
        [(library.tensor(t), t) for t in arguments[0][:20]]
    for i, (address, right) in enumerate(pairs):
        a, b = library.read(address, right).double(), right.double()
        worst, most = (a - b).abs().max().item(), b.abs().max().item()
        limit = (2e-2 if dtype == 'bf16' else 1e-4) * most
        if not worst <= limit:
            return f'result {i}: differs by {worst:.3g}, allowed {limit:.3g}'
    return ''


class Bench:
    """Cases that one process compiles and measures."""
    def __init__(self, torch, library):
        self.torch, self.library, self.compiled = torch, library, {}

    def compile(self, name):
        from peers import cuda_cases
        case = cuda_cases.CASES[name]
        if not case.compiles:
            return
        # cases share code, and torch.compile would stop at its recompile limits
        self.torch._dynamo.config.recompile_limit = 1 << 20
        self.torch._dynamo.config.accumulated_recompile_limit = 1 << 20
        self.compiled[name] = self.torch.compile(case.theirs, dynamic=False)
        with contextlib.suppress(Exception):  # measure() reports the failure
            self.compiled[name](*case.make())
        self.torch.cuda.empty_cache()

    def measure(self, name):
        """(ours, eager, compiled or None) in microseconds."""
        from peers import cuda_cases
        torch, library, case = self.torch, self.library, cuda_cases.CASES[name]
        torch.manual_seed(1)
        try:
            with library.scope():
                sets = [case.make() for _ in range(sets_of(case))]
                note = differences(torch, library, case, sets[0], name[2])
                if note:
                    raise ValueError(note)
                sequence = library.sequence([call for arguments in sets
                                             for call in case.ours(*arguments)])
                graphs = [graph_of(torch, function, sets)
                          for function in (case.theirs, self.compiled.get(name)) if function]
                sides = ([partial(library.microseconds, sequence)]
                         + [partial(replay_us, torch, graph) for graph, _ in graphs])
                times = [us / len(sets) for us in in_turns(sides)]
                return times[0], times[1], times[2] if len(times) > 2 else None
        finally:
            library.release()
            sets = graphs = sides = None
            torch.cuda.empty_cache()


def measured(bench, name):
    """(times, what went wrong): one broken case must not hide the others."""
    try:
        return bench.measure(name), ''
    except Exception as error:
        return None, str(error).splitlines()[0] if str(error) else repr(error)


def work(pipe, build, widths, names):
    """A process of run(): compiles, reports it, and measures the cases that it receives."""
    os.environ['TORCHINDUCTOR_COMPILE_THREADS'] = '1'  # one process per processor
    import torch
    from peers import cuda, cuda_cases
    cuda_cases.add_widths(widths)
    bench = Bench(torch, cuda.Library(build, torch))
    for name in names:
        bench.compile(name)
    pipe.send('ready')
    for name in iter(pipe.recv, None):
        pipe.send(measured(bench, name))


def run_steps(options, torch, library, write, failures):
    from peers import steps
    for name in ('small', 'GPT-2 124M'):
        key = 'training step', name, steps.dtype(name)
        if re.search(options.only, ' '.join(key)):
            try:
                mine, theirs = steps.median_us(torch, library, options.build, name,
                                               ('eager', 'torch eager'))
                write(key, mine, theirs, None, None)
            except Exception as error:
                failures.append(f'{" ".join(key)}: {error}')
                write(key, None, None, None, None,
                      str(error).splitlines()[0] if str(error) else repr(error))
            torch.cuda.empty_cache()


def chosen_cases(options):
    from peers import cuda_cases
    cuda_cases.add_widths(options.widths)
    return [name for name, case in cuda_cases.CASES.items()
            if re.search(options.only, ' '.join(name)) and
            (not options.widths or case.columns in options.widths)]


def compiled_elsewhere(options, chosen):
    """Compiles the cases in processes, a run of neighbours in each. Then yields (name, times,
    trouble) for each case; a process ends, and frees its memory, after its last case."""
    context = multiprocessing.get_context('spawn')
    jobs, workers = min(options.jobs, len(chosen)), []
    for i in range(jobs):
        here, there = context.Pipe()
        share = chosen[len(chosen) * i // jobs:len(chosen) * (i + 1) // jobs]
        workers.append((here, share, context.Process(
            target=work, daemon=True, args=(there, options.build, options.widths, share))))
        workers[-1][-1].start()
    for pipe, _, _ in workers:
        pipe.recv()
    await_signal(options)
    for pipe, share, process in workers:
        for name in share:
            pipe.send(name)
            yield name, *pipe.recv()
        pipe.send(None)
        process.join()


def eager(options, torch, library, chosen):
    """Yields (name, times, trouble) for each case."""
    await_signal(options)
    bench = Bench(torch, library)
    for name in chosen:
        yield name, *measured(bench, name)


def await_signal(options):
    if options.begin_with:
        print('compiled', flush=True)
        while not os.path.exists(options.begin_with):
            time.sleep(0.1)


def run(options, torch, library, write):
    from peers import cuda_cases
    chosen, failures, roof = chosen_cases(options), [], Roof(torch)
    deadline = time.monotonic() + options.minutes * 60
    for name, times, trouble in (compiled_elsewhere(options, chosen) if options.compile else
                                 eager(options, torch, library, chosen)):
        if trouble:
            failures.append(f'{" ".join(name)}: {trouble}')
            write(name, None, None, None, None, trouble)
        else:
            write(name, *times, roof.us(cuda_cases.CASES[name]))
        if time.monotonic() > deadline and name != chosen[-1]:
            failures.append(f'what follows {name}: out of time')
            break
    if not options.widths:
        run_steps(options, torch, library, write, failures)
    write.summary()
    return failures


def class_of(op, shape):
    """The class of a case, as 'rows, backward'. None: a product, a loss, an optimizer, a step."""
    if op.split()[0] in ('linear', 'mm', 'adamw', 'training') or op.startswith('cross_entropy'):
        return None
    kind = 'convolutions' if op.startswith('conv') else 'rows' if 'x' in shape else 'pointwise'
    return kind + ', backward' * ('backward' in op)


class Writer:
    """Writes a row to stdout and, tab separated, to out;
    `of_roof` is how much of the roof is reached."""
    columns = ('op', 'shape', 'dtype', 'ours_us', 'eager_us', 'compiled_us', 'roof_us', 'of_roof',
               'note')
    form = '{:<26} {:<16} {:<5} {:>9} {:>9} {:>11} {:>9} {:>8}  {}'

    def __init__(self, out):
        self.out, self.rows = out, []
        print(self.form.format(*self.columns))
        if out:
            print(*self.columns, sep='\t', file=out)

    def __call__(self, name, ours, eager, compiled_us, roof, note=''):
        def number(x, digits=1):
            return '-' if x is None else f'{x:.{digits}f}'
        share = roof / ours if ours and roof else None
        row = (*name, number(ours), number(eager), number(compiled_us), number(roof),
               number(share, 3), note)
        mark = ' <' if ours and ours > 1.02 * min(x for x in (eager, compiled_us) if x) else ''
        print(self.form.format(*row) + mark, flush=True)
        if self.out:
            print(*row, sep='\t', file=self.out, flush=True)
        if ours:
            self.rows.append((name, ours, eager, compiled_us, share))

    def summary(self):
        """Summary of the rows: a line for each class, also in out."""
        classes = {}
        for row in self.rows:
            if row[4] and class_of(*row[0][:2]):
                classes.setdefault(class_of(*row[0][:2]), []).append(row)
        for which, rows in sorted(classes.items()):
            lowest = min(rows, key=lambda row: row[4])
            line = (f'# {which}: {len(rows)} cases; '
                    f'of the roof {geometric_mean([row[4] for row in rows]):.3f}, '
                    f'least {lowest[4]:.3f} ({" ".join(lowest[0])})')
            for column, peer in (2, 'eager'), (3, 'torch.compile'):
                ratios = [(row[column] / row[1], ' '.join(row[0])) for row in rows if row[column]]
                if ratios:
                    line += (f'; {peer} takes '
                             f'{geometric_mean([r for r, _ in ratios]):.3f} times as long, '
                             f'least {min(ratios)[0]:.3f} ({min(ratios)[1]})')
            print(line)
            if self.out:
                print(line, file=self.out)


writer = Writer  # the interface of a suite for compare.py


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
