#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
Compares the device times (us per call) that three profilers measure for the same six calls, and
the work that a profile counts for them with the GPU's counters:

    bench/study/clocks.py --build DIR [--ncu PATH] [--out FILE] [--commit HASH]

Tessera's profiler and torch.profiler measure the calls of one process, in the same memory and one
after another, because only one tool at a time can use CUPTI. ncu measures a process of its own
(--bare). Without ncu, its columns have dashes. Needs PyTorch.
The exit status is 1 if the profile's time of a call above 20 us differs by more than 3 % from
torch.profiler's or 5 % from ncu's, if the sums of all calls differ by more than 2 % from
torch.profiler's, or if kernels cannot be assigned to calls.
"""
import argparse
import csv
import ctypes
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
ROUNDS = 50   # of the calls, in one profile
REPEATS = 5   # profiles; the shortest of their times counts
BARE = 20     # rounds for ncu
WARM = 0.5    # seconds of calls before the first profile
JSON = 1      # TS_PROFILE_JSON
NCU = ['--clock-control', 'none', '--cache-control', 'none', '--csv', '--print-units', 'base',
       '--metrics']
TIME = 'gpu__time_duration.sum'
READ, WRITTEN = 'dram__bytes_read.sum', 'dram__bytes_write.sum'
TENSOR = 'sm__ops_path_tensor_src_bf16_dst_fp32.sum'  # FLOPs of tensor cores on bf16
# Prefixes of the calls' names in the profile, in the order of the calls.
ORDER = ('mm((4096, 4096) bf16', 'mm((2048, 2048) f32', 'relu(', 'add(', 'softmax(', 'sum(')


class Calls:
    """The six calls, made on Tessera from Python, as `with Calls(build) as calls`."""

    def __init__(self, build):
        import torch

        from peers import cuda
        self.library = cuda.Library(build, torch)
        c, pointer = self.library.c, ctypes.c_void_p
        c.ts_profile_take.restype = pointer
        c.ts_profile_write.argtypes = [pointer, pointer, ctypes.c_int]
        c.ts_profile_free.argtypes = [pointer]
        matrix = torch.randn(4096, 4096, device='cuda', dtype=torch.bfloat16)
        single = torch.randn(2048, 2048, device='cuda')
        big = torch.randn(64 << 20, device='cuda')
        rows = torch.randn(8192, 8192, device='cuda')
        self.calls = [('mm', [matrix, matrix]), ('mm', [single, single]), ('relu', [big]),
                      ('add', [big, big]), ('softmax', [rows, 1, None]),
                      ('sum', [rows, [1], False])]

    def __enter__(self):
        self.scope = self.library.scope()
        self.scope.__enter__()
        self.sequence = self.library.sequence(self.calls)
        return self

    def __exit__(self, *reason):
        self.scope.__exit__(*reason)

    def run(self, rounds):
        self.library.run(self.sequence, rounds)
        self.library.check(self.library.c.ts_synchronize(self.library.device))

    def warm(self):
        end = time.monotonic() + WARM
        while time.monotonic() < end:
            self.run(ROUNDS)

    def ours(self):
        """{member of ORDER: (call, us, FLOPs, bytes)} by Tessera's profiler."""
        c, check, libc = self.library.c, self.library.check, ctypes.CDLL(None)
        libc.fopen.restype = ctypes.c_void_p
        libc.fclose.argtypes = [ctypes.c_void_p]
        check(c.ts_prof_start(None))
        self.run(ROUNDS)
        check(c.ts_prof_stop())
        profile = c.ts_profile_take()
        if not profile:
            raise self.library.fail()
        with tempfile.NamedTemporaryFile() as file:
            out = libc.fopen(file.name.encode(), b'w')
            check(c.ts_profile_write(profile, out, JSON))
            libc.fclose(out)
            rows = json.load(file)['rows']
        c.ts_profile_free(profile)
        return {part: (row['call'], row['device_ns'] / 1e3 / ROUNDS, row['flops'] / ROUNDS,
                       row['bytes'] / ROUNDS) for row in rows
                for part in ORDER if row['call'].startswith(part) and row['device_ns'] > 0}

    def torchs(self):
        """{member of ORDER: us} by torch.profiler; None if its kernels cannot be assigned."""
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
            self.run(ROUNDS)
        events = sorted((event for event in profiled.events() if event.self_device_time_total
                         and not event.name.startswith(('Memset', 'Memcpy'))),
                        key=lambda event: event.time_range.start)
        return assign([(event.name, event.self_device_time_total) for event in events], ROUNDS,
                      statistics.mean)


def shortest(profiles):
    return {part: min(profile[part] for profile in profiles) for part in ORDER}


def by_ncu(build, ncu, metrics):
    """Runs this program with --bare under ncu. Returns {metric: result of assign()}; {} if ncu
    measured nothing."""
    command = [ncu, *NCU, ','.join(metrics), sys.executable, __file__, '--build', str(build),
               '--bare']
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        return {}
    rows = list(csv.DictReader(line for line in done.stdout.splitlines() if line.startswith('"')))
    if not rows:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
    found = {}
    for metric in metrics:
        values = [(row['Kernel Name'], float(row['Metric Value'].replace(',', '')))
                  for row in rows if row['Metric Name'] == metric and row['Metric Value'][0] != 'n']
        found[metric] = assign(values, BARE, statistics.median) if values else None
    return {metric: values for metric, values in found.items() if values}


def assign(times, rounds, average):
    """Returns {member of ORDER: average} from a list of (kernel, value) in the order of execution,
    or None if the kernels cannot be assigned. The list ends with equal rounds of the calls; kernels
    before them made the arguments. Kernels that add the parts of a product (splitK) count
    as parts of the product's call."""
    for count in range(len(ORDER), 4 * len(ORDER)):
        last = times[-count * rounds:]
        names = [name for name, _ in last]
        if len(last) == count * rounds and names == names[:count] * rounds:
            break
    else:
        print('clocks: no equal rounds:', [name for name, _ in times[-30:]], file=sys.stderr)
        return None
    averages = [average([us for _, us in last[k::count]]) for k in range(count)]
    found, k = {}, 0
    for part in ORDER:
        found[part] = averages[k]
        k += 1
        while k < count and part.startswith('mm') and 'splitK' in names[k]:
            found[part] += averages[k]
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
    parser.add_argument('--bare', action='store_true', help='only make the calls, for ncu')
    options = parser.parse_args()
    build = options.build.resolve()
    with Calls(build) as calls:
        if options.bare:
            calls.run(BARE)
            return 0
        calls.warm()
        profiles = [calls.ours() for _ in range(REPEATS)]
        torchs = [calls.torchs() for _ in range(REPEATS)]
    if not all(torchs):
        return 1
    mine, torchs = shortest(profiles), shortest(torchs)
    ncus = {**by_ncu(build, options.ncu, [TIME]),  # ncu measures nothing if it lacks a metric
            **(by_ncu(build, options.ncu, [READ, WRITTEN, TENSOR])
               or by_ncu(build, options.ncu, [READ, WRITTEN]))}
    import torch
    out = open(options.out, 'w', encoding='utf-8') if options.out else None
    head = [f'# date: {datetime.date.today()}', f'# machine: {torch.cuda.get_device_name()}',
            f'# commit: {options.commit}', f'# torch: {torch.__version__}',
            '# command: bench/study/clocks.py --build build-cuda',
            '\t'.join(('call', 'ours_us', 'torch_profiler_us', 'ncu_us', 'over_torch', 'over_ncu',
                       'ours_flops', 'ncu_tensor_flops', 'ours_bytes', 'ncu_dram_bytes',
                       'bytes_over_ncu'))]
    both = sum(mine[part][1] for part in ORDER) / sum(torchs[part] for part in ORDER)
    head.insert(-1, f'# sum of the calls over that of torch.profiler: {both:.4f}')
    wrong = abs(both - 1) > 0.02

    def ratio(a, b, digits):
        return f'{a / b:.{digits}f}' if b else '-'

    def counted(metric, part, scale=1.0, digits=0):
        return f'{ncus[metric][part] * scale:.{digits}f}' if metric in ncus else '-'
    for line in head:
        print(line, file=out or sys.stdout)
    for part in ORDER:
        name, us, flops, moved = mine[part]
        ncu_us = ncus[TIME][part] / 1e3 if TIME in ncus else 0
        dram = ncus[READ][part] + ncus[WRITTEN][part] if {READ, WRITTEN} <= ncus.keys() else 0
        wrong += us > 20 and (abs(us / torchs[part] - 1) > 0.03
                              or (ncu_us > 0 and abs(us / ncu_us - 1) > 0.05))
        row = '\t'.join([name, f'{us:.2f}', f'{torchs[part]:.2f}', counted(TIME, part, 1e-3, 2),
                         ratio(us, torchs[part], 4), ratio(us, ncu_us, 4), f'{flops:.0f}',
                         counted(TENSOR, part), f'{moved:.0f}', f'{dram:.0f}' if dram else '-',
                         ratio(moved, dram, 3)])
        print(row)
        if out:
            print(row, file=out)
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
