"""
Operators over images for bench/compare.py --suite oracle: convolutions, norms by channel, pooling,
padding and resizing. Values are finite: with infinities a sum depends on the order of its terms.
"""
# SPDX-License-Identifier: MIT
import contextlib
import math
from functools import partial

import torch
import torch.nn.functional as F

from peers.oracle_draw import ALL, FLOATS, Draw
from peers.oracle_more import wide_of
from peers.oracle_ops import op

aten = torch.ops.aten
MODES = [['nearest'] * 3, ['linear', 'bilinear', 'trilinear'], ['', 'bicubic', '']]
PADS = ['constant', 'reflect', 'replicate', 'circular']


def calm(d):
    """Replaces special values of the case, and large ones, which overflow in f16."""
    d.kind = 'plain' if d.kind in ('special', 'large') else d.kind


def tensor(d, sizes, dtype):
    """A tensor in a drawn layout, often channels-last."""
    t = d.tensor(sizes, dtype)
    if len(sizes) in (4, 5) and d.chance(0.4):
        last = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
        t = t.contiguous(memory_format=last)
    return t


def drawn(d, n, low, high):
    """n integers from low to high."""
    return [d.integer(low, high + 1) for _ in range(n)]


def batch(d, single=True):
    """Sizes before the spatial ones."""
    channels = [d.integer(1, 5)]
    return channels if single and d.chance(0.15) else [d.integer(0 if d.chance(0.1) else 1, 4),
                                                       *channels]


# ---------------------------------------------------------------------------- convolutions ----

def convolved(d):
    calm(d)
    n, transposed, groups = d.integer(1, 4), d.chance(0.4), d.pick([1, 1, 1, 2, 3])
    channels, features = (groups * d.integer(1, 4) for _ in range(2))
    kernel, stride, dilation = drawn(d, n, 1, 4), drawn(d, n, 1, 3), drawn(d, n, 1, 2)
    padding, size = drawn(d, n, 0, 3), drawn(d, n, 1, 7)
    more = [d.integer(0, max(s, k)) if transposed else 0 for s, k in zip(stride, dilation)]
    first = [channels, features // groups] if transposed else [features, channels // groups]
    dtype = d.float_dtype()
    x = tensor(d, [d.integer(1, 4), channels, *size], dtype)
    w = tensor(d, [*first, *kernel], dtype)
    bias = d.tensor([features], dtype) if d.flag() else None
    return [x, w, bias, stride, padding, dilation, transposed, more, groups]


def convolution_gradient(g, x, w, _input_sizes, _weight_sizes, *numbers):
    transposed, groups = numbers[3], numbers[5]
    features = w.shape[1] * groups if transposed else w.shape[0]
    return aten.convolution_backward(g, x, w, [features], *numbers, [True] * 3)


def convolution_gradients(d):
    while True:
        x, w, _, *numbers = convolved(d)
        try:
            y = aten.convolution(x, w, None, *numbers)
        except RuntimeError:  # sizes that do not fit
            continue
        if not y.numel():
            continue
        g = tensor(d, list(y.shape), x.dtype)
        return [g, x, w, list(x.shape), list(w.shape), *numbers]


op('convolution', convolved, function=aten.convolution, sums=True)
op('convolution_backward', convolution_gradients, function=convolution_gradient, results=3,
   sums=True)


# ---------------------------------------------------------------------------------- norms ----

def normed(d, groups=1, mixed=None):
    """An image of at least two elements per channel, weight, bias, and the dtype of statistics.
    mixed: weight and bias have that dtype; None: drawn."""
    calm(d)
    dtype = d.float_dtype()
    wide = wide_of(dtype)
    sizes = [d.integer(2, 4), groups * d.integer(1, 4), *drawn(d, d.integer(0, 4), 1, 5)]
    mixed = d.flag() if mixed is None else mixed
    weight = d.tensor([sizes[1]], wide if mixed else dtype) if d.chance(0.7) else None
    bias = None if weight is None else d.tensor([sizes[1]], weight.dtype)
    return tensor(d, sizes, dtype), weight, bias, wide


def statistics(d, sizes, dtype):
    return d.tensor(sizes, dtype), d.tensor(sizes, dtype).abs()


def batch_normed(d):
    evaluates = d.chance(0.4)  # PyTorch then requires one dtype of statistics and weight
    x, w, b, wide = normed(d, mixed=True if evaluates else None)
    given = statistics(d, [x.shape[1]], wide) if evaluates else (None, None)
    return [x, *given, w, b, d.pick([1e-5, 1e-3, 0.1])]


def batch_norm(x, mean, var, w, b, eps):
    return F.batch_norm(x, mean, var, w, b, mean is None, 0.1, eps)


def in_groups(t, groups):
    """(N, C, ...) as (N, groups, C / groups, positions)."""
    return t.reshape(t.shape[0], groups, t.shape[1] // groups, -1)


def norm_gradient(g, x, mean, var, w, groups, dims, eps, constant):
    """Gradients of a norm with statistics over `dims` of in_groups()."""
    wide, c = wide_of(x.dtype), x.shape[1]
    w_wide = torch.ones(c, dtype=wide) if w is None else w.to(wide)
    up, values = in_groups(g.to(wide), groups), in_groups(x.to(wide), groups)
    q = up * w_wide.reshape(1, groups, -1, 1)
    shape = [-1 if 0 not in dims else 1, groups, 1, 1]
    rstd = torch.rsqrt(var.to(wide).reshape(shape) + eps)
    z = (values - mean.to(wide).reshape(shape)) * rstd
    dx = q if constant else q - q.mean(dims, True) - z * (q * z).mean(dims, True)
    dtype = x.dtype if w is None else w.dtype
    sums = [(t.sum((0, 3)).reshape(c)).to(dtype) for t in (up * z, up)]
    return [(rstd * dx).reshape(x.shape).to(x.dtype), *sums]


def batch_norm_gradient(g, x, mean, var, w, eps, constant):
    return norm_gradient(g, x, mean, var, w, x.shape[1], [0, 2, 3], eps, constant)


def batch_norm_gradients(d):
    x, w, _, wide = normed(d)
    return [tensor(d, list(x.shape), x.dtype), x, *statistics(d, [x.shape[1]], wide), w,
            d.pick([1e-3, 0.1]), d.flag()]


def batch_norm_relu_gradient(g, x, mean, var, w, b, eps, constant):
    wide, shape = wide_of(x.dtype), [1, -1, *[1] * (x.dim() - 2)]
    y = (x.to(wide) - mean.reshape(shape)) * torch.rsqrt(var.reshape(shape) + eps)
    if w is not None:
        y = y * w.to(wide).reshape(shape) + b.to(wide).reshape(shape)
    return batch_norm_gradient(torch.where(y > 0, g, 0), x, mean, var, w, eps, constant)


def batch_norm_relu_gradients(d):
    g, x, mean, var, w, *numbers = batch_norm_gradients(d)
    bias = None if w is None else d.tensor([x.shape[1]], w.dtype)
    return [g, x, mean, var, w, bias, *numbers]


def updated(mean, var, m, v, count, momentum):
    return [(mean + momentum * (m - mean)).to(mean.dtype),
            (var + momentum * (v * count / (count - 1) - var)).to(var.dtype)]


def updates(d):
    calm(d)
    dtype, sizes = d.pick(FLOATS[:2]), [d.integer(1, 9)]
    tensors = [d.values(sizes, dtype).abs() for _ in range(4)]
    return [*tensors, d.integer(2, 100), d.pick([0.0, 0.1, 0.3, 1.0])]


def group_normed(d):
    groups = d.integer(1, 4)
    x, w, b, _ = normed(d, groups)
    return [x, groups, w, b, d.pick([1e-5, 1e-3, 0.1])]


def group_norm_gradient(g, x, mean, var, w, groups, eps):
    return norm_gradient(g, x, mean, var, w, groups, [2, 3], eps, False)


def group_norm_gradients(d):
    groups = d.integer(1, 4)
    x, w, _, wide = normed(d, groups)
    return [tensor(d, list(x.shape), x.dtype), x, *statistics(d, [x.shape[0], groups], wide), w,
            groups, d.pick([1e-3, 0.1])]


def parameters(*places):
    """The arguments that have a gradient."""
    return lambda args: [args[i] for i in places if args[i] is not None]


op('batch_norm', batch_normed, function=batch_norm, sums=True, leaves=parameters(0, 3, 4))
op('batch_norm_relu', batch_normed, function=lambda *args: F.relu(batch_norm(*args)), sums=True,
   grad=False)
op('batch_norm_backward', batch_norm_gradients, function=batch_norm_gradient, results=3, sums=True)
op('batch_norm_relu_backward', batch_norm_relu_gradients, function=batch_norm_relu_gradient,
   results=3, sums=True, grad=False)
op('batch_norm_update', updates, function=updated, sums=True, grad=False, results=0,
   writes=lambda args: args[:2])
op('group_norm', group_normed, function=F.group_norm, sums=True)
op('group_norm_backward', group_norm_gradients, function=group_norm_gradient, results=3, sums=True)


# ---------------------------------------------------------------------------------- pools ----

def windows(d, dilated):
    """An image and the numbers of windows, which may be larger than the padded image."""
    calm(d)
    n = d.integer(1, 4)
    kernel, stride = drawn(d, n, 1, 5), drawn(d, n, 1, 5)
    dilation = drawn(d, n, 1, 3) if dilated else [1] * n
    padding = [d.integer(0, k // 2 + 1) for k in kernel]
    x = tensor(d, [*batch(d), *drawn(d, n, 1, 9)], d.float_dtype())
    return x, kernel, stride, padding, dilation, d.flag()


def max_pool(x, kernel, *numbers):
    return getattr(F, f'max_pool{len(kernel)}d')(x, kernel, *numbers, True)


def max_pooled(d):
    """No window lies in the padding alone: PyTorch's gradient then writes out of bounds."""
    while True:
        args = windows(d, True)
        with contextlib.suppress(RuntimeError):  # sizes that do not fit
            if torch.isinf(max_pool(torch.zeros_like(args[0]), *args[1:])[0]).any():
                continue
        return list(args)


def avg_pooled(d):
    x, kernel, stride, padding, _, ceil = windows(d, False)
    divisor = d.pick([0, 0, 1, 3]) if len(kernel) > 1 else 0
    return [x, kernel, stride, padding, ceil, d.flag(), divisor]


def avg_pool(x, kernel, stride, padding, ceil, count, divisor):
    more = [divisor or None] if len(kernel) > 1 else []
    return getattr(F, f'avg_pool{len(kernel)}d')(x, kernel, stride, padding, ceil, count, *more)


def adaptive(d):
    calm(d)
    n = d.integer(1, 4)
    return [tensor(d, [*batch(d), *drawn(d, n, 1, 9)], d.float_dtype()), drawn(d, n, 1, 9)]


def adaptive_avg_pool(x, sizes):
    return getattr(F, f'adaptive_avg_pool{len(sizes)}d')(x, sizes)


def adaptive_max_pool(x, sizes):
    return getattr(F, f'adaptive_max_pool{len(sizes)}d')(x, sizes, True)


def max_pool_gradient(g, places, sizes, *_windows):
    n = len(sizes)
    zeros = torch.zeros([*g.shape[:-n], math.prod(sizes)], dtype=g.dtype)
    return zeros.scatter_add(-1, places.flatten(-n), g.flatten(-n)).reshape(*g.shape[:-n], *sizes)


def max_pool_gradients(d):
    while True:
        args = adaptive(d) if d.chance(0.3) else max_pooled(d)
        try:
            y, places = (adaptive_max_pool if len(args) == 2 else max_pool)(*args)
        except (RuntimeError, ValueError):  # sizes that do not fit
            continue
        lists = [[]] * 4 if len(args) == 2 else args[1:5]
        n = len(args[1])
        return [tensor(d, list(y.shape), y.dtype), places, list(args[0].shape[-n:]), *lists]


def linear_gradient(function, g, sizes):
    """The gradient of a linear function of a tensor, for a tensor with these last sizes."""
    x = torch.zeros([*g.shape[:g.dim() - len(sizes)], *sizes], dtype=g.dtype, requires_grad=True)
    with torch.enable_grad():
        return torch.autograd.grad(function(x), x, g, create_graph=True)[0]


def upstream(draw, function):
    """draw(d) with a gradient of the result in place of the first argument, and the last sizes of
    that argument: as many as the list that follows it has numbers."""
    def call(d):
        while True:
            x, first, *numbers = draw(d)
            try:
                y = function(x, first, *numbers)
            except (RuntimeError, ValueError):  # sizes that do not fit
                continue
            return [tensor(d, list(y.shape), y.dtype), list(x.shape[-len(first):]), first, *numbers]
    return call


def avg_pool_gradient(g, sizes, *numbers):
    return linear_gradient(lambda x: avg_pool(x, *numbers), g, sizes)


def adaptive_gradient(g, sizes):
    return linear_gradient(lambda x: adaptive_avg_pool(x, list(g.shape[-len(sizes):])), g, sizes)


op('max_pool', max_pooled, function=max_pool, results=2)
op('adaptive_max_pool', adaptive, function=adaptive_max_pool, results=2)
op('max_pool_backward', max_pool_gradients, function=max_pool_gradient, sums=True,
   leaves=parameters(0))
op('avg_pool', avg_pooled, function=avg_pool, sums=True)
op('avg_pool_backward', upstream(avg_pooled, avg_pool), function=avg_pool_gradient, sums=True)
op('adaptive_avg_pool', adaptive, function=adaptive_avg_pool, sums=True)
op('adaptive_avg_pool_backward', lambda d: upstream(adaptive, adaptive_avg_pool)(d)[:2],
   function=adaptive_gradient, sums=True)


# ---------------------------------------------------------------------- padding, resizing ----

def resized(d):
    calm(d)
    n, mode = d.integer(1, 4), d.pick([0, 1, 1, 2])
    n = 2 if mode == 2 else n
    x = tensor(d, [d.integer(1, 3), d.integer(1, 4), *drawn(d, n, 1, 9)], d.float_dtype())
    return [x, drawn(d, n, 1, 12), mode, mode > 0 and d.flag(), 0.0, 0.0, 0.0]


def interpolate(x, sizes, mode, corners, *_scales):
    return F.interpolate(x, sizes, mode=MODES[mode][len(sizes) - 1],
                         **({'align_corners': corners} if mode else {}))


def padded(d):
    mode, n = d.integer(0, 4), d.integer(1, 4)
    size = drawn(d, n, 2, 7)
    most = [{0: 4, 1: s - 1, 2: 5, 3: s}[mode] for s in reversed(size)]
    padding = [v for m in most for v in drawn(d, 2, -1 if mode == 0 else 0, m)]
    x = tensor(d, [*batch(d), *size], d.pick(ALL) if mode == 0 else d.float_dtype())
    return [x, padding, mode, float(d.integer(0, 3))]


def pad(x, padding, mode, value):
    return F.pad(x, padding, PADS[mode], *([value] if mode == 0 else []))


def keys(x):
    """The cubic kernel of Keys with a = -0.75, for 0 <= x <= 2."""
    near = (1.25 * x - 2.25) * x * x + 1
    return torch.where(x <= 1, near, ((-0.75 * x + 3.75) * x - 6) * x + 3)


def matrix(size, out, mode, corners):
    """Weights (out, size) of a dim, whose positions are rounded."""
    at, first = torch.arange(out, dtype=torch.float64), torch.zeros(out, dtype=torch.int64)
    if corners:
        at = at * ((size - 1) / (out - 1) if out > 1 else 0)
    else:
        at = (at + 0.5) * (size / out) - 0.5
    at = at.clamp(min=0) if mode == 1 else at
    first, weights = at.floor(), torch.zeros(out, size, dtype=torch.float64)
    for k in range(-1, 3):
        apart = (at - (first + k)).abs()
        weight = keys(apart) if mode == 2 else (1 - apart).clamp(min=0)
        index = (first + k).clamp(0, size - 1).long()
        weights = weights.scatter_add(1, index[:, None], weight[:, None])
    return weights


def interpolate_by_matrices(x, sizes, mode, corners, *scales):
    if mode == 0:
        return interpolate(x, sizes, mode, corners, *scales)
    for d, out in enumerate(sizes):
        w = matrix(x.shape[2 + d], out, mode, corners).to(x.dtype)
        x = (x.movedim(2 + d, -1) @ w.t()).movedim(-1, 2 + d)
    return x


def interpolate_gradient(g, sizes, *numbers, function=interpolate):
    out = list(g.shape[-len(sizes):])
    return linear_gradient(lambda x: function(x, out, *numbers), g, sizes)


def resized_gradients(d):
    g, sizes, _, *numbers = upstream(resized, interpolate)(d)
    return [g, sizes, *numbers]


def pad_gradient(g, padding, mode):
    n = len(padding) // 2
    sizes = [g.shape[-1 - k] - sum(padding[2 * k:2 * k + 2]) for k in reversed(range(n))]
    return linear_gradient(lambda x: pad(x, padding, mode, 0.0), g, sizes)


def padded_gradients(d):
    calm(d)
    while True:
        x, padding, mode, value = padded(d)
        if x.is_floating_point():
            y = pad(x, padding, mode, value)
            return [tensor(d, list(y.shape), y.dtype), padding, mode]


def shuffled(back):
    def draw(d):
        by, size = d.integer(1, 4), drawn(d, 2, 1, 5)
        by_size = [by * s for s in size] if back else size
        channels = d.integer(1, 4) * (1 if back else by * by)
        lead = drawn(d, d.integer(0, 3), 1, 3)
        make = tensor if len(lead) == 1 else Draw.tensor  # PyTorch refuses channels_last_3d
        return [make(d, [*lead, channels, *by_size], d.pick(ALL)), by]
    return draw


op('interpolate', resized, function=interpolate, sums=True, ours=interpolate_by_matrices)
op('interpolate_backward', resized_gradients, function=interpolate_gradient, sums=True,
   ours=partial(interpolate_gradient, function=interpolate_by_matrices))
op('pad_backward', padded_gradients, function=pad_gradient, sums=True, steps=True)
op('pad', padded, function=pad, arithmetic=True)
op('pixel_shuffle', shuffled(False))
op('pixel_unshuffle', shuffled(True))
