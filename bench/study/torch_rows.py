#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
Measures PyTorch for the lessons softmax and launch of bench/study. Prints rows with the columns of
the lesson's table; `study LESSON --peers ROWS.tsv` adds them to that table:

    bench/study/torch_rows.py softmax|launch [--device cuda] [--compile] [--out ROWS.tsv]

Times are measured as in study.c: the mean time of a call in the fastest of several batches of at
least 2 ms, each with a wait for the device at its end. --compile adds torch.compile to softmax.
"""
import argparse
import sys
import time

import torch

CHAIN = 64


class Clock:
    def __init__(self, device):
        self.gpu = device == 'cuda'

    def batch(self, run, calls):
        if self.gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        if self.gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def us(self, run):
        self.batch(run, 6)
        calls = 1
        while (took := self.batch(run, calls)) < 2e-3:
            calls *= 10 if took < 1e-4 else 2
        best, begin, turns = took / calls, time.perf_counter(), 0
        while turns < 7 or (turns < 400 and time.perf_counter() - begin < 0.5):
            best = min(best, self.batch(run, calls) / calls)
            turns += 1
        return best * 1e6


def naive(x):
    e = torch.exp(x - x.amax(1, keepdim=True))
    return e / e.sum(1, keepdim=True)


def softmax(options, clock, row):
    count = 8192
    for width in (128, 512, 2048, 8192, 32768):
        if options.device == 'cpu' and width > 4096:
            break
        x = torch.randn(count, width, device=options.device)
        ways = {'PyTorch, five calls': naive, 'PyTorch, softmax': lambda x: torch.softmax(x, 1)}
        if options.compile:
            torch._dynamo.reset()
            ways['PyTorch, compiled'] = torch.compile(naive)
        for name, way in ways.items():
            us = clock.us(lambda way=way: way(x))
            row(count, width, name, f'{us:.1f}', f'{8e-3 * count * width / us:.1f}')


def chain(x, one):
    for _ in range(CHAIN):
        x = x + one
    return x


def launch(options, clock, row):
    n = 1
    while n <= (16 << 20 if options.device == 'cuda' else 1 << 20):
        x, one = (torch.randn(n, device=options.device) for _ in range(2))
        row(n, 'PyTorch, eager', f'{clock.us(lambda: chain(x, one)) / CHAIN:.3f}')
        if options.device == 'cuda':
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                chain(x, one)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                chain(x, one)
            row(n, 'PyTorch, graph', f'{clock.us(graph.replay) / CHAIN:.3f}')
        n *= 1024 if n < 1024 else 4


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('lesson', choices=('softmax', 'launch'))
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
    parser.add_argument('--compile', action='store_true')
    parser.add_argument('--out', metavar='ROWS.tsv', type=argparse.FileType('w'))
    options = parser.parse_args()

    def row(*values):
        line = '\t'.join(map(str, values))
        print(line, flush=True)
        if options.out:
            print(line, file=options.out, flush=True)

    with torch.no_grad():
        {'softmax': softmax, 'launch': launch}[options.lesson](options, Clock(options.device), row)
    return 0


if __name__ == '__main__':
    sys.exit(main())
