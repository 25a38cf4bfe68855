#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
Measures convolutions with each engine of TS_CUDA_CONV, on one GPU:

    bench/study/convolution.py --build DIR [--seed S] [--out FILE] [--commit HASH]

The layers are drawn as in bench/compare.py --suite convolution --random: the first one of each
class of CLASSES. An engine runs in a process of its own, which reads TS_CUDA_CONV once; the
processes start together and measure one after another. Times are those of the device, by the clock
of that suite, which also compares the results with PyTorch's.

tflops, gbs: operations, and bytes of the three tensors, over the time. roof: the least time by the
two rates in the header over the time. The header's rates are measured first: the product of two
8192 x 8192 matrices in bf16, and a copy of 1 GiB, which reads and writes.
"""
import argparse
import json
import os
import subprocess
import sys
import types
from datetime import date
from pathlib import Path

BENCH = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(BENCH))
STAGES = 'matrix', 'mma', 'own', 'cudnn'
CLASSES = {
    'stride 1': lambda a: a.weight[2] == 3 and a.numbers[0][0] == 1 and a.weight[1] >= 64,
    'stride 2': lambda a: a.numbers[0][0] == 2 and a.weight[1] >= 64 and a.weight[2] > 1,
    'few channels': lambda a: a.weight[1] < 8,
}
LEAST_FLOPS = 1 << 32  # of a layer: the launch is a small part of the time
SECONDS = 0.05         # of measurement per time


def layers(seed):
    """{class: layer}: the first drawn layer of each class, with two dims and one group."""
    from peers import convolution_suite as suite
    found, number = {}, 0
    while len(found) < len(CLASSES):
        layer = suite.draw(seed, number)
        number += 1
        plain = len(layer.x) == 4 and layer.numbers[5] == 1 and not layer.numbers[3] and \
            layer.numbers[2][0] == 1 and layer.flops >= LEAST_FLOPS
        for name, fits in CLASSES.items():
            if plain and name not in found and fits(layer):
                found[name] = layer
                break
    return {name: found[name] for name in CLASSES}


def rates(torch):
    """FLOP/s of a product, and bytes per second of a copy."""
    def seconds(run, turns=10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):
            run()
        begin.record()
        for _ in range(turns):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / turns / 1e3
    a, b = (torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16) for _ in range(2))
    big = torch.randn(1 << 28, device='cuda')
    to = torch.empty_like(big)
    return (2 * 8192**3 / seconds(lambda: a @ b),
            2 * 4 * big.numel() / seconds(lambda: to.copy_(big)))


def measure(options):
    """Waits for a line of input, then prints the times of one engine as lines of JSON. With
    --rates, the first line describes the machine."""
    import torch
    from peers import convolution_suite as suite
    torch.backends.cudnn.benchmark = True
    bench = suite.Bench(types.SimpleNamespace(build=options.build, seconds=SECONDS))
    drawn = layers(options.seed)
    print('ready', flush=True)
    sys.stdin.readline()
    if options.rates:
        flops, bytes_ = rates(torch)
        print(json.dumps({'machine': f'{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}',
                          'torch': torch.__version__, 'flops': flops, 'bytes': bytes_}))
    for name, layer in drawn.items():
        for direction, ours, _ in bench.times(layer):
            print(json.dumps({'class': name, 'layer': layer.name, 'direction': direction,
                              'us': ours, 'flops': layer.flops, 'bytes': layer.bytes}), flush=True)
    return 0


def start(options, stage, *words):
    command = [sys.executable, __file__, '--build', options.build, '--seed', str(options.seed),
               '--one', *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env={**os.environ, 'TS_CUDA_CONV': stage})


def lines_of(process):
    text, _ = process.communicate('go\n')
    if process.returncode:
        sys.exit(f'convolution.py: an engine ended with status {process.returncode}')
    return [json.loads(line) for line in text.splitlines() if line.startswith('{')]


def commit():
    return subprocess.run(['git', '-C', str(BENCH), 'rev-parse', '--short', 'HEAD'],
                          capture_output=True, text=True).stdout.strip() or 'unknown'


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--build', required=True, help='folder with libtessera.so')
    parser.add_argument('--seed', type=int, default=1, help='seed of the drawn layers (default 1)')
    parser.add_argument('--out', help='file for the table, tab separated')
    parser.add_argument('--commit', help='commit to record, for sources outside version control')
    parser.add_argument('--one', action='store_true', help='measure the engine of TS_CUDA_CONV')
    parser.add_argument('--rates', action='store_true', help='with --one: measure the rates, too')
    options = parser.parse_args()
    if options.one:
        return measure(options)
    processes = [start(options, stage, *['--rates'] * (stage == STAGES[0])) for stage in STAGES]
    for process in processes:
        process.stdout.readline()
    (head, *first), *others = [lines_of(process) for process in processes]
    rows = dict(zip(STAGES, [first, *others]))
    text = [f'# date: {date.today().isoformat()}', f'# machine: {head["machine"]}',
            f'# commit: {options.commit or commit()}', f'# torch: {head["torch"]}',
            f'# command: bench/study/convolution.py --seed {options.seed}',
            f'# rates: {head["flops"] / 1e12:.0f} TFLOP/s, {head["bytes"] / 1e9:.0f} GB/s',
            '\t'.join(['class', 'layer', 'direction', 'engine', 'us', 'tflops', 'gbs', 'roof'])]
    for i, _ in enumerate(first):
        for stage in STAGES:
            r = rows[stage][i]
            least = max(r['flops'] / head['flops'], r['bytes'] / head['bytes']) * 1e6
            text.append('\t'.join([r['class'], r['layer'], r['direction'], stage, f'{r["us"]:.1f}',
                                   f'{r["flops"] / r["us"] / 1e6:.0f}',
                                   f'{r["bytes"] / r["us"] / 1e3:.0f}',
                                   f'{least / r["us"]:.2f}']))
    print(*text, sep='\n')
    if options.out:
        Path(options.out).write_text('\n'.join(text) + '\n', encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
