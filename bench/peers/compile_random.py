"""
Compares compiled functions with eager ones on the CPU. The functions are drawn: pointwise calls,
and calls that end groups, over tensors of 1 Ki to 4 Mi elements. Both sides take turns in short
batches, and the fastest batch of each counts. Prints the ratio compiled / eager of each function,
and how many are above the limit."""
# SPDX-License-Identifier: MIT
import ctypes
import math
import random
import time

from peers import compile_suite, tessera

LIMIT = 1.03
APART = ['softmax', 'norm', 'sum', 'cumsum', 't']  # calls by rows, and calls that join no group


def draw(seed, number):
    """Words of a function (compare_function.c), and its inputs: a list of (shape, dtype)."""
    of = random.Random(f'{seed}:{number}')
    columns = of.choice([32, 100, 768, 1024, 4096])
    rows = max(1, 2 ** of.randint(10, 22) // columns)
    dtype = of.choice(['f32', 'f32', 'f32', 'bf16', 'f64'])
    inputs, words = [((rows, columns), dtype)], ['x0']
    for _ in range(of.randint(2, 14)):
        kind = of.random()
        if kind < 0.4:
            if len(inputs) < 4 and of.random() < 0.6:
                shape = of.choice([(rows, columns), (rows, columns), (columns,), (rows, 1)])
                inputs.append((shape, dtype))
                words.append(f'x{len(inputs) - 1}')
            else:
                words.append(f'x{of.randrange(len(inputs))}')
            words.append(of.choice(compile_suite.BINARY))
        elif kind < 0.6:
            words.append(f'{of.choice(["add", "mul"])}:{of.uniform(-1, 1):.3f}')
        elif kind < 0.9:
            words.append(of.choice([w for w in compile_suite.UNARY if w != 'exp']))
        elif of.random() < 0.75:
            words.append(of.choice(APART[:-1]))
        else:
            words += ['t', 'abs', 't']
    return ' '.join(words), inputs


def batch_us(library, side, tensors, turns):
    array = (ctypes.c_void_p * len(tensors))(*tensors)
    begin = time.perf_counter_ns()
    if library.loop.compare_function_run(ctypes.c_void_p(side.at), array, len(tensors), turns,
                                         None):
        raise library.fail()
    return (time.perf_counter_ns() - begin) / turns / 1e3


def measure(library, torch, words, inputs, seconds):
    """Microseconds of a call, eager and compiled."""
    types = {**compile_suite.DTYPES, 'f64': 'float64'}
    generator = torch.Generator().manual_seed(1)
    with library.scope():
        tensors = [library.tensor(torch.randn(shape, generator=generator)
                                  .to(getattr(torch, types[dtype]))) for shape, dtype in inputs]
        sides = [compile_suite.Function(library, words, compiled) for compiled in (0, 1)]
        us = batch_us(library, sides[0], tensors, 2)
        for side in sides:  # a compiled function decides within 97 calls whether it records
            batch_us(library, side, tensors, 100 if us < 1e4 else 2)
        turns = max(1, int(2e3 / us))
        best, deadline = [math.inf, math.inf], time.monotonic() + seconds
        while time.monotonic() < deadline:
            for k, side in enumerate(sides):
                best[k] = min(best[k], batch_us(library, side, tensors, turns))
        for side in sides:
            library.loop.compare_function_free(ctypes.c_void_p(side.at))
    return best


def run(options, torch, write):
    library = tessera.Library(options.build)
    library.c.ts_set_num_threads(options.threads[0])
    ratios = []
    for k in range(options.random):
        words, inputs = draw(options.seed, k)
        if options.only not in words:
            continue
        eager, compiled = measure(library, torch, words, inputs, min(options.seconds, 0.4))
        if compiled > LIMIT * eager:  # again, longer: the machine may have other users
            eager, compiled = measure(library, torch, words, inputs, options.seconds)
        shape = 'x'.join(map(str, inputs[0][0])) + ' ' + inputs[0][1]
        write(f'{k}\t{shape}\t{eager:.1f}\t{compiled:.1f}\t{compiled / eager:.3f}\t{words}')
        ratios.append(compiled / eager)
    if not ratios:
        return 1
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    write(f'{len(ratios)} functions: compiled / eager {mean:.3f} in the geometric mean, at most '
          f'{max(ratios):.3f}; {sum(r > LIMIT for r in ratios)} above {LIMIT}')
    return 0
