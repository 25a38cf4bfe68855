#!/usr/bin/env python3
"""
Compares Tessera with PyTorch, in one process and on the same memory.

    bench/compare.py --suite cpu|images [--threads 1,2] [--seconds S] [--realtime]
                     [--only REGEX] [--out FILE]
    bench/compare.py --suite host [--realtime] [--out FILE]
    bench/compare.py --suite cuda [--compile] [--jobs N] [--widths N,N] [--only REGEX]
                     [--out FILE] [--build build-cuda]
    bench/compare.py --suite attention [--only REGEX] [--out FILE] [--build build-cuda]
    bench/compare.py --suite steps|unet [--kernels N] [--only REGEX] [--out FILE]
                     [--build build-cuda]
    bench/compare.py --suite convolution [--random N] [--seed S] [--only REGEX] [--out FILE]
                     [--build build-cuda]
    bench/compare.py --suite compile [--cases N] [--seed S] [--only TEXT] [--out FILE]
    bench/compare.py --suite compile --random N [--seed S] [--threads 1] [--only TEXT] [--out FILE]
    bench/compare.py --suite cpu|cuda|attention --random N [--seed S] [--ops REGEX] [--compile]
                     [--threads 1,2] [--seconds S] [--realtime] [--minutes M]
                     [--out FILE] [--case SEED:NUMBER]
    bench/compare.py --suite oracle [--cases N] [--seed S] [--ops REGEX] [--case SEED:NUMBER]

Compares the results first. Then the two sides alternate short batches of calls. The fastest batch
of each side counts on the CPU, the median of five on a GPU. Prints one line per case: op, shape,
Tessera's and PyTorch's time in microseconds, and on the CPU the speed, PyTorch's time / Tessera's
time (above 1: Tessera is faster). --random draws cases and prints the distribution of their speeds.
docs/performance.md explains the output. PyTorch must be importable (pip install torch).
"""
# SPDX-License-Identifier: MIT
import argparse
import contextlib
import importlib
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from datetime import date
from functools import partial
from itertools import repeat
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))

BATCH_NS = 1.5e6    # a batch of calls: short, so that some batches run undisturbed
PROCESSORS = os.sched_getaffinity(0) if hasattr(os, 'sched_getaffinity') else ()
MIB = 1 << 20
# bound the instruction sets: of Tessera, of PyTorch, of oneDNN
INSTRUCTION_SETS = 'TS_ISA', 'ATEN_CPU_CAPABILITY', 'ONEDNN_MAX_CPU_ISA'
SETTLE_S = 0.03     # OpenMP's threads spin for a while after torch's last loop


def time_python(function, turns):
    begin = time.perf_counter_ns()
    for _ in repeat(None, turns):
        function()
    return (time.perf_counter_ns() - begin) / turns


def pin_threads(torch, library, threads, realtime):
    """
    Starts the thread pools of both sides and pins each thread to a processor. Without pins, the
    scheduler may queue a woken worker on the processor of its caller while another process uses
    the second processor; the case then runs on one thread. libgomp's threads spin instead of
    sleeping, so Tessera would lose more time than PyTorch."""
    processors = sorted(PROCESSORS)
    os.sched_setaffinity(0, PROCESSORS)  # a pool spins or sleeps depending on its affinity
    x = torch.zeros(1 << 20)
    with library.scope():
        library.run(library.sequence([('add', [x, x])]), 3)
    torch.add(x, x)
    main, others = os.getpid(), 0
    for task in sorted(int(t.name) for t in Path('/proc/self/task').iterdir()):
        worker = re.fullmatch(r'tessera-(\d+)',
                              Path(f'/proc/self/task/{task}/comm').read_text().strip())
        slot = 0 if task == main else int(worker[1]) if worker else 1 + others % max(1, threads - 1)
        others += task != main and not worker
        os.sched_setaffinity(task, {processors[slot % len(processors)]})
        if realtime:
            os.sched_setscheduler(task, os.SCHED_FIFO, os.sched_param(1))


def leave_realtime():
    """
    Gives all threads normal priority, before a child is awaited: Linux may spin without end when
    a thread with real-time priority frees a child that another thread still uses."""
    for task in Path('/proc/self/task').iterdir():
        os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))


def turns_for(measure):
    """Returns the number of calls that fill a batch of BATCH_NS."""
    measure(1)
    return max(1, int(BATCH_NS / min(measure(1), measure(1))))


def verify(torch, library, sequence, case):
    """'' if both sides agree, else the difference."""
    if case.after:
        library.run(sequence, 1)
        case.theirs()
        pairs = case.after
    else:
        name, args = case.ours[-1][:2]
        ours = library.call(name, args)[:case.same]
        theirs = case.theirs()
        theirs = theirs if isinstance(theirs, (tuple, list)) else [theirs]
        pairs = [(library.read(address, torch), tensor) for address, tensor in zip(ours, theirs)]
    for i, (a, b) in enumerate(pairs):
        if a.shape != b.shape:
            return f'result {i}: sizes {tuple(a.shape)}, torch has {tuple(b.shape)}'
        worst = (a.double() - b.double()).abs().max().item() if a.numel() else 0
        limit = case.rtol * max(1e-3, b.double().abs().max().item() if b.numel() else 0)
        if not worst <= limit:
            return f'result {i}: differs by {worst:.3g}, allowed {limit:.3g}'
    return ''


def measure(ours, run_theirs, threads, seconds):
    """Returns ns per call of the fastest batch of each side: [ours, theirs]. Runs 6 rounds or more,
    until 5 rounds in a row bring no improvement of 1 %, or `seconds` are over."""
    def theirs(turns):
        return time_python(run_theirs, turns)
    settle = SETTLE_S if threads > 1 else 0
    turns = turns_for(ours), turns_for(theirs)
    best = [math.inf, math.inf]
    idle, rounds, deadline = 0, 0, time.monotonic() + seconds
    while rounds < 6 or (idle < 5 and time.monotonic() < deadline):
        before = list(best)
        for side, run in enumerate((ours, theirs)):
            if side == 0:
                time.sleep(settle)
            run(1)
            for _ in range(3):
                best[side] = min(best[side], run(turns[side]))
        rounds += 1
        idle = 0 if any(now < 0.99 * then for now, then in zip(best, before)) else idle + 1
    return best


def machine():
    name = platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path('/proc/cpuinfo').read_text().splitlines()
        name = next(line.split(':', 1)[1].strip()
                    for line in lines if line.startswith('model name'))
        flags = next(line.split() for line in lines if line.startswith('flags'))
        name += ' (AVX-512)' if 'avx512f' in flags else ' (AVX2)' if 'avx2' in flags else ''
    cores = subprocess.run(['nproc'], capture_output=True, text=True).stdout.strip() or '?'
    return f'{name}, {cores} cores'


def commit():
    def git(*words):
        return subprocess.run(['git', '-C', str(ROOT), *words], capture_output=True,
                              text=True).stdout.strip()
    return (git('rev-parse', '--short', 'HEAD')
            + (' and changes' if git('status', '--porcelain', '-uno') else ''))


def geometric_mean(speeds):
    return math.exp(sum(map(math.log, speeds)) / len(speeds)) if speeds else math.nan


def head(torch, options):
    one = torch.ones(1)
    overhead = min(time_python(lambda: torch.add(one, one), 2000) for _ in range(20)) / 1e3
    return [('date', date.today().isoformat()), ('machine', machine()),
            ('commit', options.commit or commit()), ('torch', torch.__version__),
            ('threads', ','.join(map(str, options.threads))),
            ('command', shlex.join(['bench/compare.py', *sys.argv[1:]])),
            ('torch per call',
             f'{overhead:.2f} us for one element, Python included, is part of its times')]


def run_suite(options, torch, library, cases, write):
    failures = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        library.c.ts_set_num_threads(threads)
        if hasattr(os, 'sched_setaffinity'):
            pin_threads(torch, library, threads, options.realtime)
        speeds, step_speeds = [], []
        for (name, shape), (make, in_step) in cases.items():
            if not re.search(options.only, f'{name} {shape}'):
                continue
            torch.manual_seed(1)
            with library.scope(), torch.no_grad():
                try:
                    case = make()
                    sequence = library.sequence(case.ours)
                    trouble = verify(torch, library, sequence, case)
                    if trouble:
                        raise ValueError(trouble)
                    ours, theirs = measure(partial(library.run, sequence), case.theirs, threads,
                                           options.seconds)
                except Exception as error:  # one broken case must not hide the others
                    failures.append(f'{name} {shape}: {error}')
                    write(threads, name, shape, None, None, None, str(error).splitlines()[0])
                    continue
            speeds.append(theirs / ours)
            if in_step:
                step_speeds.append(theirs / ours)
            write(threads, name, shape, ours / 1e3, theirs / 1e3, theirs / ours,
                  'step' if in_step else '')
        for what, values in (('ops of the step', step_speeds), ('all cases', speeds)):
            if values:
                write(threads, 'geometric mean', what, None, None, geometric_mean(values), '')
        if re.search(options.only, 'training step'):
            try:
                run_step(options, torch, threads, write)
            except Exception as error:
                failures.append(f'training step: {error}')
    return failures


def run_step(options, torch, threads, write):
    """The whole step: time, and memory of each side in a process of its own."""
    from peers import gpt
    sides = {}
    for fused in (True, False):  # the faster one counts
        model, tokens, targets = gpt.torch_model()
        if fused:
            ours = gpt.Ours(options.build, [p.data_ptr() for p in model.parameters()],
                            tokens.data_ptr(),
                            targets.data_ptr())
        sides[fused] = gpt.torch_step(model, tokens, targets, fused)
    losses = [sides[True]() for _ in range(3)]
    ours.run(3)
    if abs(ours.loss.value - losses[-1]) > 1e-4 * losses[-1]:
        raise ValueError(f'losses differ after 3 steps: {ours.loss.value} and {losses[-1]}')
    timed = [measure(ours.run, step, threads, options.seconds) for step in sides.values()]
    ns, torch_ns = min(t[0] for t in timed), min(t[1] for t in timed)
    write(threads, 'training step', gpt.SHAPE, ns / 1e3, torch_ns / 1e3, torch_ns / ns, '')
    before, after, peak = ours.memory()
    params = sum(p.numel() for p in model.parameters()) * 4
    largest = gpt.B * gpt.T * 4 * gpt.C * 4
    bound = before + params + (after - before) + largest
    ours.free()
    note = (f'ours / (in use before {before / MIB:.2f} + gradients {params / MIB:.2f} + saved '
            f'{(after - before) / MIB:.2f} + largest result {largest / MIB:.2f})')
    write(threads, 'peak bytes / bound', gpt.SHAPE, None, None, peak / bound, note)
    if options.realtime:
        leave_realtime()
    grown = [int(subprocess.run([sys.executable, gpt.__file__, side, options.build, str(threads)],
                                check=True, capture_output=True, text=True).stdout)
             for side in ('ours', 'torch')]
    write(threads, 'growth of process', gpt.SHAPE, None, None, grown[1] / grown[0],
          f'ours {grown[0] / MIB:.1f} MiB, torch {grown[1] / MIB:.1f} MiB')


def writer(out):
    """A function that writes a row to stdout and, tab separated, to out. `speed` is PyTorch's time
    (memory for 'growth of process') / Tessera's; 'peak bytes / bound' has the quotient of that name
    there."""
    columns = 'threads', 'op', 'shape', 'ours_us', 'torch_us', 'speed', 'note'
    print('{:>7}  {:<24} {:<24} {:>10} {:>10} {:>7}  {}'.format(*columns))
    if out:
        print(*columns, sep='\t', file=out)

    def write(threads, name, shape, ours, theirs, speed, note):
        def number(x, digits):
            return '-' if x is None else f'{x:.{digits}f}'
        mark = ' <' if speed is not None and speed < 1 / 1.2 and ours is not None else ''
        print(f'{threads:>7}  {name:<24} {shape:<24} {number(ours, 1):>10} {number(theirs, 1):>10} '
              f'{number(speed, 2):>7}  {note}{mark}', flush=True)
        if out:
            print(threads, name, shape, number(ours, 2), number(theirs, 2), number(speed, 3), note,
                  sep='\t', file=out,
                  flush=True)
    return write


def write_head(lines, out):
    for key, value in lines:
        print(f'# {key}: {value}')
        if out:
            print(f'# {key}: {value}', file=out)


def machines(torch, device):
    gpu = f'{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}; ' if device == 'cuda' else ''
    return gpu + machine()


def sweep_of(options, torch, out):
    """Drawn cases: peers/sweep.py draws them and evaluates the times."""
    from peers import sweep, sweep_sides, tessera
    device = options.device or ('cpu' if options.suite == 'cpu' else 'cuda')
    sets = ''.join(f'{name}={os.environ[name]} ' for name in INSTRUCTION_SETS if name in os.environ)
    try:
        bench = sweep_sides.Bench(options, device, pin_threads)
    except (OSError, tessera.Failed) as error:
        sys.exit(f'compare.py: {error}')
    write_head([('date', date.today().isoformat()), ('machine', machines(torch, device)),
                ('commit', options.commit or commit()), ('torch', torch.__version__),
                ('command', sets + shlex.join(['bench/compare.py', *sys.argv[1:]]))], out)
    again = f'{sets}bench/compare.py --suite {options.suite}' + ''.join(
        f' {flag}' for flag, given in ((f'--device {options.device}', options.device),
                                       ('--compile', options.compile),
                                       (f'--build {options.build}',
                                        options.build != str(ROOT / 'build'))) if given)
    return sweep.run(options, bench, again, out)


def short_head(options, torch, device):
    return [('date', date.today().isoformat()), ('machine', machines(torch, device)),
            ('commit', options.commit or commit()), ('torch', torch.__version__),
            ('command', shlex.join(['bench/compare.py', *sys.argv[1:]]))]


def compare_host(options, torch, out):
    from peers import host_suite
    write_head(short_head(options, torch, 'cpu'), out)
    try:
        host_suite.run(options, torch, host_suite.writer(out))
    except host_suite.Failed as error:
        sys.exit(f'compare.py: {error}')
    return 0


def compare_on_gpu(options, torch, out):
    from peers import cuda, tessera
    suite = importlib.import_module(
        f'peers.{options.suite}' + ('' if options.suite == 'steps' else '_suite'))
    try:
        library = cuda.Library(options.build, torch)
    except (OSError, tessera.Failed) as error:
        sys.exit(f'compare.py: {error}')
    write_head(short_head(options, torch, 'cuda'), out)
    failures = suite.run(options, torch, library, suite.writer(out))
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--suite',
                        choices=['cpu', 'host', 'images', 'cuda', 'attention', 'convolution',
                                 'compile', 'steps', 'unet', 'oracle'],
                        required=True, help='what to compare; docs/performance.md describes '
                        'each, docs/differences.md describes oracle')
    parser.add_argument('--threads', default='1,2', type=lambda s: [int(n) for n in s.split(',')],
                        help='on the CPU: numbers of threads, one table each (default 1,2)')
    parser.add_argument('--only', default='',
                        help='cases whose "op shape" matches this regular expression; compile: '
                        'contains this text')
    parser.add_argument('--seconds', type=float, default=5,
                        help='cpu, images, random: longest time for a case (default 5)')
    parser.add_argument('--realtime', action='store_true',
                        help='use real-time priority (as root), for a machine with other users')
    parser.add_argument('--compile', action='store_true',
                        help='cuda: measure torch.compile as well')
    parser.add_argument('--jobs', type=int, default=len(PROCESSORS) or 1,
                        help='cuda: number of processes that compile the cases first')
    parser.add_argument('--widths', default='',
                        type=lambda s: [int(n) for n in s.split(',')] if s else [],
                        help='cuda: only ops on rows, with these numbers of columns')
    parser.add_argument('--kernels', type=int, default=0, metavar='N',
                        help='steps, unet: list the N slowest kernels of each side')
    parser.add_argument('--begin-with', metavar='FILE',
                        help='cuda: compile, then wait until FILE exists before measuring, '
                        'for a GPU with other users until then')
    parser.add_argument('--minutes', type=float, default=60,
                        help='random, on a GPU: longest time for all cases (default 60)')
    parser.add_argument('--build', default=str(ROOT / 'build'), help='folder with libtessera.so')
    parser.add_argument('--commit',
                        help='commit to record, for sources outside version control')
    parser.add_argument('--cases', type=int, default=10000,
                        help='oracle, compile: number of drawn cases (default: oracle 10000, '
                        'compile 12)')
    parser.add_argument('--random', type=int, default=0, metavar='N',
                        help='cpu, cuda, attention, convolution: draw N cases and print the '
                        'distribution of their speeds; compile: compare N drawn functions with '
                        'eager calls')
    parser.add_argument('--device', choices=['cpu', 'cuda'],
                        help='random: device (default: cpu for --suite cpu, else cuda)')
    parser.add_argument('--seed', type=int, default=1,
                        help='oracle, compile, random: seed of the draws (default 1)')
    parser.add_argument('--ops',
                        help='oracle, random: only operators whose name matches this expression')
    parser.add_argument('--self-test', action='store_true',
                        help='oracle: change results on purpose; the oracle must report this')
    parser.add_argument('--case', metavar='SEED:NUMBER',
                        help='oracle, random: repeat one case, by its printed numbers; the oracle '
                        'numbers the cases of the operators of --ops')
    parser.add_argument('--show', type=int, default=3,
                        help='oracle: most unexplained cases to print per operator and kind')
    parser.add_argument('--out', help='file for the table, tab separated')
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit('compare.py: PyTorch is not importable by ' + sys.executable
                 + ': run it with a Python that '
                 'has it (python3 -m venv v && v/bin/pip install torch numpy && '
                 'v/bin/python bench/compare.py ...)')
    if options.suite == 'oracle':
        from peers import oracle
        return oracle.run(options)
    out = open(options.out, 'w', encoding='utf-8') if options.out else None
    if options.random and options.suite == 'compile':
        from peers import compile_random
        write_head(head(torch, options), out)

        def write(line):
            for to in (sys.stdout, out)[:2 if out else 1]:
                print(line, file=to, flush=True)
        return compile_random.run(options, torch, write)
    if options.suite != 'convolution' and (options.random or options.case):
        return sweep_of(options, torch, out)
    if options.suite == 'host':
        return compare_host(options, torch, out)
    if options.suite not in ('cpu', 'images'):
        return compare_on_gpu(options, torch, out)
    from peers import cpu_cases, image_cases, tessera
    cases = image_cases.CASES if options.suite == 'images' else cpu_cases.CASES
    try:
        library = tessera.Library(options.build)
    except OSError as error:
        sys.exit(f'compare.py: {error}; build first: ninja -C build')
    write_head(head(torch, options), out)
    failures = run_suite(options, torch, library, cases, writer(out))
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
