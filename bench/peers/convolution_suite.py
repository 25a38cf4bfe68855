"""
Compares convolutions with cuDNN (through PyTorch, in its benchmark mode) on a GPU: y, the gradient
of x and the gradient of the weight, on channels-last operands. Without --random it measures, in
bf16, the layers of ResNet-50 at batch 64 and of a U-Net with 31 million parameters at batch 16 and
256 x 256. --random N --seed S draws N layers, in bf16 and f16.

Calls are queued behind a long kernel, so the times are those of the device. Both sides run batches
of calls in turns, and the fastest batch counts; operands may be in the L2 cache. Results
are compared with PyTorch's in f32. speed: cuDNN's time / Tessera's (above 1: Tessera is faster).
"""
# SPDX-License-Identifier: MIT
import ctypes
import math
import re
from functools import partial

import numpy
import torch

from peers import sweep
from peers.sweep_sides import GpuClock, OnGpu, python_side
from peers.table import Table

aten = torch.ops.aten
DIRECTIONS = 'y', 'x', 'weight'
GIB = 1 << 30
MOST_BYTES, MOST_FLOPS, LEAST_FLOPS = GIB, 1 << 38, 1 << 27
LIMIT = 2e-2  # error of a result, relative to the norm


class Layer:
    """A convolution: sizes, and the arguments of aten.convolution after its tensors."""

    def __init__(self, n, c, size, o, kernel, stride=1, padding=None, dilation=1, groups=1,
                 transposed=False, dtype=torch.bfloat16):
        dims = len(size)
        if padding is None:
            padding = 0 if transposed else dilation * (kernel - 1) // 2
        self.x = [n, c, *size]
        self.weight = [c, o // groups] if transposed else [o, c // groups]
        self.weight += [kernel] * dims
        self.numbers = [[stride] * dims, [padding] * dims, [dilation] * dims, transposed,
                        [0] * dims, groups]
        self.dtype = dtype
        extra = ''.join(f'{key}{value}' for key, value, usual in [
            ('p', padding, dilation * (kernel - 1) // 2), ('d', dilation, 1), ('g', groups, 1)]
            if value != usual and not (transposed and key == 'p'))
        self.name = (f'{"x".join(map(str, self.x))} {"transposed " if transposed else ""}'
                     f'{o}k{kernel}s{stride}{extra} {str(dtype).split(".")[1][0]}16')
        with torch.device('meta'):
            y = aten.convolution(torch.empty(self.x), torch.empty(self.weight), None, *self.numbers)
        self.y = list(y.shape)
        places = math.prod(self.x[2:] if transposed else self.y[2:])
        self.flops = 2 * n * places * math.prod(self.weight)
        self.bytes = 2 * sum(map(math.prod, (self.x, self.weight, self.y)))

    def call(self, direction, x, w, g):
        if direction == 'y':
            return partial(aten.convolution, x, w, None, *self.numbers)
        mask = [direction == 'x', direction == 'weight', False]
        return partial(aten.convolution_backward, g, x, w, None, *self.numbers, mask)


def layers():
    """Yields the layers of ResNet-50 and of the U-Net."""
    size = [(64, 3, 224, 64, 7, 2), (64, 64, 56, 64, 1, 1), (64, 64, 56, 64, 3, 1),
            (64, 64, 56, 256, 1, 1), (64, 256, 56, 64, 1, 1), (64, 256, 56, 128, 1, 1),
            (64, 256, 56, 512, 1, 2), (64, 128, 56, 128, 3, 2), (64, 128, 28, 128, 3, 1),
            (64, 128, 28, 512, 1, 1), (64, 512, 28, 128, 1, 1), (64, 512, 28, 256, 1, 1),
            (64, 512, 28, 1024, 1, 2), (64, 256, 28, 256, 3, 2), (64, 256, 14, 256, 3, 1),
            (64, 256, 14, 1024, 1, 1), (64, 1024, 14, 256, 1, 1), (64, 1024, 14, 512, 1, 1),
            (64, 1024, 14, 2048, 1, 2), (64, 512, 14, 512, 3, 2), (64, 512, 7, 512, 3, 1),
            (64, 512, 7, 2048, 1, 1), (64, 2048, 7, 512, 1, 1), (16, 3, 256, 64, 3, 1)]
    for level in range(5):
        c, side = 64 << level, 256 >> level
        size += [(16, c // 2, side, c, 3, 1)] * (level > 0) + [(16, c, side, c, 3, 1)]
        size += [(16, 2 * c, side, c, 3, 1)] * (level < 4)
    for n, c, side, o, kernel, stride in [*size, (16, 64, 256, 2, 1, 1)]:
        yield Layer(n, c, [side, side], o, kernel, stride)
    for level in range(4):
        yield Layer(16, 128 << level, [128 >> level] * 2, 64 << level, 2, 2, transposed=True)


def draw(seed, number):
    """A layer as in networks of images: mostly 3x3 and 1x1, sizes and channels of all kinds."""
    r = numpy.random.Generator(numpy.random.PCG64([seed, number]))

    def pick(*choices):
        return choices[r.integers(len(choices))]

    def log(low, high):
        return int(round(math.exp(r.uniform(math.log(low), math.log(high)))))

    def channels(groups=1):
        wide = pick(64, 128, 256, 512, 1024) if r.random() < 0.4 else 8 * log(1, 160)
        return groups * max(8 if groups > 1 else 1, wide // groups)

    while True:
        kind = pick('plain', 'plain', 'plain', 'plain', 'first', 'strided', 'transposed', 'groups',
                    'depthwise', 'dilated')
        dims = 2 if r.random() < 0.9 else pick(1, 3)
        kernel = pick(1, 3, 3, 3, 5, 7) if dims < 3 else pick(1, 3)
        stride, dilation, groups = 1, 1, 1
        transposed = kind == 'transposed'
        if kind in ('strided', 'transposed'):
            stride = 2
            kernel = pick((2, 0), (4, 1), (3, 1)) if transposed else pick(1, 2, 3, 3, 4, 7)
        padding = None
        if transposed:
            kernel, padding = kernel
        if kind == 'dilated':
            kernel, dilation = 3, pick(2, 2, 3, 4, 6)
        if kind == 'groups':
            groups = pick(2, 4, 8, 16, 32)
        c, o = channels(groups), channels(groups)
        if kind == 'first':
            c, kernel, stride = pick(1, 3, 3, 4), pick(3, 5, 7, 4, 8, 16), pick(1, 2, 4)
        if kind == 'depthwise':
            c = o = groups = channels()
            kernel, stride = pick(3, 3, 5, 7), pick(1, 1, 2)
        side = log(7, {1: 65536, 2: 512, 3: 64}[dims])
        size = [side] * dims if r.random() < 0.7 else [max(1, int(side * r.uniform(0.4, 1)))
                                                       for _ in range(dims)]
        if min(size) < dilation * (kernel - 1) + 1:
            continue
        layer = Layer(log(1, 128), c, size, o, kernel, stride, padding, dilation, groups,
                      transposed, pick(torch.bfloat16, torch.bfloat16, torch.float16))
        if layer.bytes <= MOST_BYTES and LEAST_FLOPS <= layer.flops <= MOST_FLOPS and \
                (layer.flops >= LEAST_FLOPS * 8 or kind == 'depthwise'):
            return layer


def channels_last(t):
    if t.dim() in (4, 5):
        return t.contiguous(memory_format=torch.channels_last if t.dim() == 4
                            else torch.channels_last_3d)
    return t.movedim(1, -1).contiguous().movedim(-1, 1)


class Bench:
    def __init__(self, options):
        self.library = OnGpu(options.build)
        stream = torch.cuda.Stream()
        torch.cuda.set_stream(stream)
        self.library.use_stream(stream.cuda_stream)
        self.clock = GpuClock(torch.cuda)
        self.seconds = min(options.seconds, 0.25)
        backward = self.library.loop.compare_backward
        backward.restype = ctypes.c_double
        backward.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p),
                             ctypes.c_int, ctypes.c_int]

    def side(self, args, upstream, leaf, like):
        """Returns (run, result): of the convolution if leaf is None, else of its gradient for that
        leaf. run(turns) returns ns per call."""
        library = self.library
        for t in args[:2]:
            library.c.ts_set_requires_grad(library.tensor(t), t is leaf)
        if leaf is None:
            result = library.call('convolution', args)[0]
            return partial(library.run, library.sequence([('convolution', args)])), \
                library.read(result, like)
        leaves = (ctypes.c_void_p * 1)(library.tensor(leaf))
        root = library.call('convolution', args)[0]
        result = library.gradients(root, upstream, leaves, False)[0]

        def run(turns):
            ns = library.loop.compare_backward(root, upstream, leaves, 1, turns)
            if ns < 0:
                raise library.fail()
            return ns
        return run, library.read(result, like)

    def times(self, layer):
        """Yields (direction, Tessera's us, cuDNN's us)."""
        library = self.library
        torch.manual_seed(1)
        x, w, g = (channels_last(torch.randn(sizes, device='cuda', dtype=layer.dtype))
                   for sizes in (layer.x, layer.weight, layer.y))
        with library.scope(), torch.no_grad():
            try:
                args = [x, w, None, *layer.numbers]
                upstream, wide = library.tensor(g), (x.float(), w.float(), g.float())
                for i, (direction, leaf) in enumerate(zip(DIRECTIONS, (None, x, w))):
                    run, found = self.side(args, upstream, leaf, (g, x, w)[i])
                    right = layer.call(direction, *wide)()
                    right = right if i == 0 else right[i - 1]
                    error = ((found.float() - right).norm() / right.norm()).item()
                    if not error <= LIMIT:
                        raise ValueError(f'{direction}: relative error {error:.2g}')
                    del found, right
                    runs, _ = self.clock.runs([run, python_side(layer.call(direction, x, w, g))])
                    best = sweep.judge(partial(sweep.fastest, runs), self.seconds)
                    yield direction, best[0] / 1e3, best[1] / 1e3
            finally:
                library.release()
        torch.cuda.empty_cache()


def cases(options):
    if options.case:
        seed, number = map(int, options.case.split(':'))
        return [(options.case, draw(seed, number))]
    if options.random:
        return [(f'{options.seed}:{i}', draw(options.seed, i)) for i in range(options.random)]
    return [('-', layer) for layer in layers()]


def run(options, torch, library, write):
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    bench, failures, ratios = Bench(options), [], {}
    for label, layer in cases(options):
        if not re.search(options.only, layer.name):
            continue
        try:
            for direction, ours, theirs in bench.times(layer):
                write(label, layer, direction, ours, theirs)
                ratios.setdefault(direction, []).append(theirs / ours)
        except Exception as error:  # one layer must not hide the others
            failures.append(f'{label} {layer.name}: {error}')
    for direction, found in [*ratios.items(), ('all', sum(ratios.values(), []))]:
        write.note(f'{direction}: {len(found)} times, geometric mean '
                   f'{sweep.geometric_mean(found):.3f}, least {min(found, default=0):.3f}, '
                   f'5 % below {sweep.percentile(found, 0.05):.3f}, '
                   f'{sum(r < 0.85 for r in found)} below 0.85')
    return failures


class writer(Table):
    columns = 'case', 'layer', 'direction', 'ours_us', 'cudnn_us', 'speed', 'tflops'
    form = '{:<8} {:<44} {:<9} {:>10} {:>10} {:>7} {:>7}'

    def __call__(self, label, layer, direction, ours, theirs):
        self.row((label, layer.name, direction, f'{ours:.1f}', f'{theirs:.1f}',
                  f'{theirs / ours:.3f}', f'{layer.flops / ours / 1e6:.0f}'))
