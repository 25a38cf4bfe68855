"""
Cases of bench/compare.py on a GPU. A case makes sets of arguments, and has the calls of our ops and
of torch for one set. `bytes` is the minimum traffic: each input read once, each result written
once.
"""
# SPDX-License-Identifier: MIT
from dataclasses import dataclass
from functools import partial
from typing import Callable

import torch
import torch.nn.functional as F

aten = torch.ops.aten
MIB = 1 << 20
# Bytes of a large tensor: no cache holds it, and launch overhead is 1 % of a kernel's time.
TENSOR = 256 * MIB
COLUMNS = 768, 1024, 2048, 4096, 5120, 8192, 16384, 32768, 65536, 131072
MEAN = 0  # TS_REDUCTION_MEAN
EPS = 1e-5


@dataclass
class Case:
    make: Callable            # () -> tuple of tensors, one set of arguments
    theirs: Callable          # torch's function of one set
    ours: Callable            # one set -> calls (op, args) or (op, args, given results)
    bytes: int = 0            # least bytes that are moved
    flops: int = 0            # FLOPs of a product; if not 0, the roof is the rate of products
    same: int = 1             # number of results of the last call that are compared;
                              # 0: compares the first 20 tensors of the first argument
    compiles: bool = True     # torch.compile is measured too
    sets: int = 0             # sets of arguments; 0: as many as exceed the caches
    columns: int = 0          # length of a row, for ops on rows


CASES = {}  # (op, shape, dtype) -> Case


def size_of(dtype):
    return torch.empty((), dtype=dtype).element_size()


def normal(*sizes, dtype=torch.float32):
    return torch.randn(*sizes, dtype=torch.float32, device='cuda').to(dtype)


def short(dtype):
    return {torch.float32: 'f32', torch.bfloat16: 'bf16'}[dtype]


# ------------------------------------------------------------------------------- pointwise ----

def pointwise(dtype):
    n = TENSOR // size_of(dtype)

    def add(name, inputs, theirs, ours):
        CASES[name, str(n), short(dtype)] = Case(
            lambda: tuple(normal(n, dtype=dtype) for _ in range(inputs)), theirs, ours,
            bytes=(inputs + 1) * TENSOR)
    add('add', 2, torch.add, lambda a, b: [('add', [a, b])])
    add('mul', 2, torch.mul, lambda a, b: [('mul', [a, b])])
    add('exp', 1, torch.exp, lambda a: [('exp', [a])])
    add('relu', 1, torch.relu, lambda a: [('relu', [a])])
    add('relu backward', 2, lambda g, a: aten.threshold_backward(g, a, 0),
        lambda g, a: [('threshold_backward', [g, a, 0.0])])
    add('tanh', 1, torch.tanh, lambda a: [('tanh', [a])])
    add('tanh_backward', 2, aten.tanh_backward, lambda g, y: [('tanh_backward', [g, y])])
    add('sigmoid', 1, torch.sigmoid, lambda a: [('sigmoid', [a])])
    add('silu', 1, F.silu, lambda a: [('silu', [a])])
    add('silu_backward', 2, aten.silu_backward, lambda g, a: [('silu_backward', [g, a])])
    for form in 'none', 'tanh':
        tanh = form == 'tanh'
        add('gelu' + ' (tanh)' * tanh, 1, partial(F.gelu, approximate=form),
            lambda a, tanh=tanh: [('gelu', [a, tanh])])
        add('gelu_backward' + ' (tanh)' * tanh, 2, partial(aten.gelu_backward, approximate=form),
            lambda g, a, tanh=tanh: [('gelu_backward', [g, a, tanh])])


# ------------------------------------------------------------------------------------ rows ----

def stats(x, dims):
    x = x.float()
    mean = x.mean(-1, keepdim=True)
    return mean, torch.rsqrt(x.var(-1, correction=0, keepdim=True) + EPS)


def rows(dtype, n):
    m = -(-TENSOR // (n * size_of(dtype)))
    m = -(-m // 8) * 8
    one = m * n * size_of(dtype)
    shape = f'{m}x{n}'

    def add(name, passes, make, theirs, ours, same=1):
        CASES[name, shape, short(dtype)] = Case(make, theirs, ours, bytes=passes * one, same=same,
                                                columns=n)

    def plain(k):
        return lambda: tuple(normal(m, n, dtype=dtype) for _ in range(k))

    def softmax_result(log):
        def make():
            y = (F.log_softmax if log else F.softmax)(normal(m, n), -1).to(dtype)
            return normal(m, n, dtype=dtype), y
        return make

    def norm(both):
        def make():
            x, w, b = normal(m, n, dtype=dtype), normal(n, dtype=dtype), normal(n, dtype=dtype)
            return (x, w, b) if both else (x, w)
        return make

    def add_layer_norm(r, x, w, b):
        s = x + r
        return torch.native_layer_norm(s, [n], w, b, EPS)[0], s

    def norm_grad(layer):
        def make():
            x, w, b = normal(m, n, dtype=dtype), normal(n, dtype=dtype), normal(n, dtype=dtype)
            g = normal(m, n, dtype=dtype)
            if layer:
                return (g, x, *stats(x, n), w, b)
            return g, x, torch.rsqrt(x.float().square().mean(-1, keepdim=True) + EPS), w
        return make

    add('softmax', 2, plain(1), lambda x: F.softmax(x, -1), lambda x: [('softmax', [x, -1, None])])
    add('log_softmax', 2, plain(1), lambda x: F.log_softmax(x, -1),
        lambda x: [('log_softmax', [x, -1, None])])
    add('softmax_backward', 3, softmax_result(False),
        lambda g, y: aten._softmax_backward_data(g, y, -1, dtype),
        lambda g, y: [('softmax_backward', [g, y, -1])])
    add('log_softmax_backward', 3, softmax_result(True),
        lambda g, y: aten._log_softmax_backward_data(g, y, -1, dtype),
        lambda g, y: [('log_softmax_backward', [g, y, -1])])
    add('layer_norm', 2, norm(True), lambda x, w, b: torch.native_layer_norm(x, [n], w, b, EPS),
        lambda x, w, b: [('layer_norm', [x, 1, w, b, EPS])])
    add('layer_norm_backward', 3, norm_grad(True),
        lambda g, x, mean, rstd, w, b: aten.native_layer_norm_backward(g, x, [n], mean, rstd, w,
                                                                       b, [True] * 3),
        lambda g, x, mean, rstd, w, b: [('layer_norm_backward', [g, x, mean, rstd, w, 1])], same=3)
    add('add_layer_norm', 4, lambda: (normal(m, n, dtype=dtype), *norm(True)()), add_layer_norm,
        lambda r, x, w, b: [('add_layer_norm', [x, r, 1, w, b, EPS])], same=2)
    add('rms_norm', 2, norm(False), lambda x, w: aten._fused_rms_norm(x, [n], w, EPS),
        lambda x, w: [('rms_norm', [x, 1, w, EPS])])
    add('rms_norm_backward', 3, norm_grad(False),
        lambda g, x, rstd, w: aten._fused_rms_norm_backward(g, x, [n], rstd, w, [True, True]),
        lambda g, x, rstd, w: [('rms_norm_backward', [g, x, rstd, w, 1])], same=2)


# ------------------------------------------------------------------------------------ loss ----

def loss(dtype, m, n):
    def make():
        return (normal(m, n, dtype=dtype), torch.randint(0, n, (m,), device='cuda'),
                torch.ones((), dtype=dtype, device='cuda'),
                torch.empty((), dtype=dtype, device='cuda'), torch.empty(m, device='cuda'))

    def theirs(x, y, *_):
        x = x.detach().requires_grad_(True)
        return torch.autograd.grad(F.cross_entropy(x, y), x)[0]

    def recorded(x, y, one, mean, lse):
        return [('cross_entropy', [x, y, MEAN, -100, 0.0], [mean, lse]),
                ('cross_entropy_backward', [one, x, y, lse, MEAN, -100, 0.0])]

    def add(name, ours):
        CASES[name, f'{m}x{n}', short(dtype)] = Case(make, theirs, ours,
                                                     bytes=2 * m * n * size_of(dtype), sets=2)
    add('cross_entropy and gradient', recorded)
    add('cross_entropy_grad', lambda x, y, *_: [('cross_entropy_grad', [x, y, MEAN, -100, 0.0])])


# ------------------------------------------------------------------------------- optimizer ----

def adamw():
    V, T, C, L = 50304, 1024, 768, 12
    block = [(C,), (C,), (3 * C, C), (3 * C,), (C, C), (C,), (C,), (C,), (4 * C, C), (4 * C,),
             (C, 4 * C), (C,)]
    shapes = [(V, C), (T, C)] + block * L + [(C,), (C,)]
    count, n = len(shapes), sum(torch.Size(s).numel() for s in shapes)

    def make():
        lists = ([[normal(*s) for s in shapes] for _ in range(2)]
                 + [[torch.zeros(s, device='cuda') for s in shapes] for _ in range(2)])
        return *lists, [torch.tensor(1.0, device='cuda') for _ in shapes]

    def theirs(params, grads, mean, square, steps):
        torch._fused_adamw_(params, grads, mean, square, [], steps, lr=1e-3, beta1=0.9, beta2=0.999,
                            weight_decay=0.01,
                            eps=1e-8, amsgrad=False, maximize=False)
        return params

    def ours(params, grads, mean, square, steps):
        return [('adamw', [params, grads, mean, square, [1] * count, 1e-3, 0.9, 0.999, 1e-8, 0.01,
                           True, None, None, None])]
    CASES['adamw', f'GPT-2, {count} tensors, {n}', 'f32'] = Case(
        make, theirs, ours, bytes=7 * 4 * n, same=0, compiles=False, sets=1)


# -------------------------------------------------------------------------------- products ----

def linear(m, k, n):
    dtype = torch.bfloat16
    CASES['linear', f'{m}x{k} -> {n}', 'bf16'] = Case(
        lambda: (normal(m, k, dtype=dtype), normal(n, k, dtype=dtype), normal(n, dtype=dtype)),
        F.linear,
        lambda x, w, b: [('linear', [x, w, b])], flops=2 * m * k * n, compiles=False)
    CASES['mm for dx', f'{m}x{n} by {n}x{k}', 'bf16'] = Case(
        lambda: (normal(m, n, dtype=dtype), normal(n, k, dtype=dtype)), torch.mm,
        lambda g, w: [('mm', [g, w])], flops=2 * m * k * n, compiles=False)
    CASES['mm for dW', f'{n}x{m} by {m}x{k}', 'bf16'] = Case(
        lambda: (normal(m, n, dtype=dtype).t(), normal(m, k, dtype=dtype)), torch.mm,
        lambda g, x: [('mm', [g, x])], flops=2 * m * k * n, compiles=False)


# ---------------------------------------------------------------------------- convolutions ----

def convolution(n, c, side, o, k, stride, groups=1, transposed=False):
    """Channels-last. Padding keeps the side; a transposed convolution has no padding. The backward
    call computes the gradients of x, w and a bias on both sides."""
    dtype, last = torch.bfloat16, torch.channels_last
    padding = 0 if transposed else k // 2
    numbers = [[stride] * 2, [padding] * 2, [1, 1], transposed, [0, 0], groups]
    out = side * stride if transposed else (side - 1) // stride + 1
    flops = 2 * n * (side if transposed else out) ** 2 * c * o // groups * k * k
    shape = f'{n}x{c}x{side} -> {o}, {k}x{k} by {stride}' + (f' in {groups}' if groups > 1 else '')
    name = 'conv_transpose' if transposed else 'conv'

    def make():
        first = (c, o // groups) if transposed else (o, c // groups)
        return (normal(n, c, side, side, dtype=dtype).contiguous(memory_format=last),
                normal(*first, k, k, dtype=dtype).contiguous(memory_format=last),
                normal(n, o, out, out, dtype=dtype).contiguous(memory_format=last))

    CASES[name, shape, 'bf16'] = Case(
        make, lambda x, w, g: aten.convolution(x, w, None, *numbers),
        lambda x, w, g: [('convolution', [x, w, None, *numbers])], flops=flops, compiles=False)
    CASES[name + '_backward', shape, 'bf16'] = Case(
        make, lambda x, w, g: aten.convolution_backward(g, x, w, [o], *numbers, [True] * 3),
        lambda x, w, g: [('convolution_backward', [g, x, w, list(x.shape), list(w.shape),
                                                   *numbers])],
        flops=2 * flops, same=3, compiles=False)


def add_widths(widths):
    """Adds cases with rows of these lengths, except those of COLUMNS."""
    for width in set(widths) - set(COLUMNS):
        for dtype in torch.bfloat16, torch.float32:
            rows(dtype, width)


for d in torch.bfloat16, torch.float32:
    pointwise(d)
    for columns in COLUMNS:
        rows(d, columns)
loss(torch.bfloat16, 8192, 50304)
adamw()
for k_, n_ in (768, 2304), (768, 768), (768, 3072), (3072, 768), (768, 50304):
    linear(8192, k_, n_)
for case_ in ((32, 3, 224, 64, 7, 2), (32, 64, 56, 64, 3, 1), (32, 256, 56, 64, 1, 1),
              (32, 128, 56, 128, 3, 2), (32, 256, 14, 256, 3, 1), (32, 512, 7, 512, 3, 1),
              (16, 64, 256, 64, 3, 1), (16, 256, 64, 256, 3, 1), (16, 1024, 16, 1024, 3, 1),
              (32, 96, 56, 96, 3, 1, 96), (16, 128, 128, 64, 2, 2, 1, True)):
    convolution(*case_)
