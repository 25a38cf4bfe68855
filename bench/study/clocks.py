#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
Compares the device times (us per call) that three profilers measure for the same six calls:

    bench/study/clocks.py --build DIR [--ncu PATH] [--out FILE] [--commit HASH]

Tessera's profiler measures `study kernels`, ncu measures `study kernels --bare`, and
torch.profiler measures the same calls of Tessera, made from Python. They run one after another,
because only one tool at a time can use CUPTI. Needs PyTorch; without ncu, its columns have dashes.
The exit status is 1 if the profile's time of a call above 20 us differs by more than 3 % from
torch.profiler's or 5 % from ncu's, or if torch.profiler's kernels cannot be assigned to calls.
"""
import argparse
import csv
import datetime
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
CALLS = 20
NCU = ['--clock-control', 'none', '--cache-control', 'none', '--csv', '--metrics',
       'gpu__time_duration.sum']
# Prefixes of the calls' names in the profile, in the order of study_kernels().
ORDER = ('mm((4096, 4096) bf16', 'mm((2048, 2048) f32', 'relu(', 'add(', 'softmax(', 'sum(')


def run_study(build, *words):
    program = next(path for path in (build / 'bench/study', build / 'study') if path.exists())
    return [str(program), 'kernels', '--device', 'cuda', *words]


def ours(build):
    done = subprocess.run(run_study(build), check=True, capture_output=True, text=True)
    rows = [line.split('\t') for line in done.stdout.splitlines() if '\t' in line][1:]
    return {part: (name, float(us)) for name, us in rows for part in ORDER
            if name.startswith(part)}


def by_torch(build):
    """Runs Tessera's calls of study_kernels() on PyTorch's memory, under torch.profiler. Returns
    the same as assign()."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from peers import cuda
    library, device = cuda.Library(build, torch), 'cuda'
    matrix = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    single = torch.randn(2048, 2048, device=device)
    big = torch.randn(64 << 20, device=device)
    rows = torch.randn(8192, 8192, device=device)
    calls = [('mm', [matrix, matrix]), ('mm', [single, single]), ('relu', [big]),
             ('add', [big, big]), ('softmax', [rows, 1, None]), ('sum', [rows, [1], False])]
    with library.scope():
        sequence = library.sequence(calls)
        library.run(sequence, CALLS)
        library.check(library.c.ts_synchronize(library.device))
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            library.run(sequence, CALLS)
            library.check(library.c.ts_synchronize(library.device))
    events = sorted((event for event in profiled.events() if event.self_device_time_total
                     and not event.name.startswith(('Memset', 'Memcpy'))),
                    key=lambda event: event.time_range.start)
    return assign([(event.name, event.self_device_time_total) for event in events])


def by_ncu(build, ncu):
    """Runs `study kernels --bare` under ncu. Returns the same as assign(), or None if ncu measured
    nothing."""
    done = subprocess.run([ncu, *NCU, *run_study(build, '--bare')], check=False,
                          capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    if not rows:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
        return None
    scale = {'nsecond': 1e-3, 'ns': 1e-3, 'usecond': 1, 'us': 1, 'msecond': 1e3, 'ms': 1e3}
    times = [(row['Kernel Name'], float(row['Metric Value'].replace(',', ''))
              * scale[row['Metric Unit']]) for row in rows]
    return assign(times)


def assign(times):
    """Returns {member of ORDER: median us} from a list of (kernel, us) in the order of execution,
    or None if the kernels cannot be assigned. The list ends with CALLS equal rounds of the calls;
    kernels before them made the arguments. Kernels that add the parts of a product (splitK) count
    as parts of the product's call."""
    for count in range(len(ORDER), 4 * len(ORDER)):
        last = times[-count * CALLS:]
        names = [name for name, _ in last]
        if len(last) == count * CALLS and names == names[:count] * CALLS:
            break
    else:
        print('clocks: no equal rounds:', [name for name, _ in times[-30:]], file=sys.stderr)
        return None
    medians = [statistics.median(us for _, us in last[k::count]) for k in range(count)]
    found, k = {}, 0
    for part in ORDER:
        found[part] = medians[k]
        k += 1
        while k < count and part.startswith('mm') and 'splitK' in names[k]:
            found[part] += medians[k]
            k += 1
    if k != count:
        print('clocks: unknown kernels:', names[:count], file=sys.stderr)
        return None
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', type=Path, required=True)
    parser.add_argument('--ncu', default='ncu')
    parser.add_argument('--out')
    parser.add_argument('--commit', default='unknown')
    options = parser.parse_args()
    mine = ours(options.build.resolve())
    torchs = by_torch(options.build.resolve())
    if not torchs:
        return 1
    try:
        ncus = by_ncu(options.build.resolve(), options.ncu)
    except FileNotFoundError:
        ncus = None
    import torch
    out = open(options.out, 'w', encoding='utf-8') if options.out else None
    head = [f'# date: {datetime.date.today()}', f'# machine: {torch.cuda.get_device_name()}',
            f'# commit: {options.commit}', f'# torch: {torch.__version__}',
            '# command: bench/study/clocks.py --build build-cuda',
            'call\tours_us\ttorch_profiler_us\tncu_us\tover_torch\tover_ncu']
    wrong = 0
    for line in head:
        print(line, file=out or sys.stdout)
    for part in ORDER:
        name, us = mine[part]
        ncu_us = ncus[part] if ncus else None
        ratios = us / torchs[part], us / ncu_us if ncu_us else None
        wrong += us > 20 and (abs(ratios[0] - 1) > 0.03
                              or (ratios[1] is not None and abs(ratios[1] - 1) > 0.05))
        row = '\t'.join([name, f'{us:.2f}', f'{torchs[part]:.2f}',
                         f'{ncu_us:.2f}' if ncu_us else '-', f'{ratios[0]:.4f}',
                         f'{ratios[1]:.4f}' if ratios[1] else '-'])
        print(row)
        if out:
            print(row, file=out)
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
