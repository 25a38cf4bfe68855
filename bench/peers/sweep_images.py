"""
Operators on images in the random sweep (convolutions, norms of channels, pools, pads, resizing) and
others that the oracle does not draw: drawn arguments, and PyTorch's calls.
"""
# SPDX-License-Identifier: MIT
import math
from functools import partial

import torch
import torch.nn.functional as F

from peers.oracle_draw import HERE
from peers.oracle_more import wide_of
from peers.oracle_ops import Op, aten
from peers.sweep import TooLarge

IMAGES = {}
MODES = ['nearest', ['linear', 'bilinear', 'trilinear'], 'bicubic']  # of each ts_interpolation
PADS = ['constant', 'reflect', 'replicate', 'circular']              # of each ts_pad_mode
ALL_THREE = [True] * 3


def image_op(name, draw, function, **more):
    """draw(d): arguments; function(*args): PyTorch's result."""
    IMAGES[name] = Op(name, draw, function, lambda f, *args: f(*args), **more)


def prepared(name, draw, prepare, **more):
    """prepare(*args): PyTorch's call, which may use tensors that a forward has kept."""
    image_op(name, draw, None, **more)
    IMAGES[name].prepare = prepare


# ----------------------------------------------------------------------------------- images ----

def sides(d, n):
    """(batch, channels, n spatial sizes): usual sizes of networks, or any."""
    if d.chance(0.5):
        return d.drawn.shape(2 + n)
    side = d.drawn.rounded(d.drawn.log_uniform(4, {1: 4096, 2: 256, 3: 48}[n]))
    return [d.drawn.rounded(d.drawn.log_uniform(1, 32)),
            d.pick([1, 3, 16, 32, 64, 64, 96, 128, 256, 512]), *[side] * n]


def image(d, n=None, sizes=None, dtype=None):
    """A dense, channels-last or otherwise laid out tensor of images."""
    sizes = sizes or sides(d, n or d.pick([1, 2, 2, 2, 2, 3]))
    dtype = dtype or d.float_dtype()
    if not all(sizes) or math.prod(sizes) > d.drawn.most:
        raise TooLarge
    if d.chance(0.2):
        return d.tensor(sizes, dtype, expand=False)
    x = d.values(sizes, dtype)
    if d.chance(0.5):
        return x.reshape(sizes[0], *sizes[2:], sizes[1]).movedim(-1, 1)
    return x.reshape(sizes)


def like(d, x):
    """A gradient of the sizes of x, mostly in its layout."""
    if d.chance(0.2):
        return image(d, sizes=list(x.shape), dtype=x.dtype)
    last = x.dim() > 2 and x.stride(1) == 1 and x.shape[1] > 1
    made = d.values(list(x.shape), x.dtype)
    n, c, *spatial = x.shape
    return made.reshape(n, *spatial, c).movedim(-1, 1) if last else made.reshape(x.shape)


def result_like(d, function, *args):
    """A gradient for the result of function(*args), whose sizes PyTorch's meta device computes."""
    def meta(a):
        return torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device='meta') \
            if isinstance(a, torch.Tensor) else a
    return like(d, function(*map(meta, args)))


# ----------------------------------------------------------------------------- convolutions ----

def convolved(d):
    n = d.pick([1, 2, 2, 2, 2, 3])
    sizes = sides(d, n)
    transposed = d.chance(0.2)
    c = sizes[1]
    groups = d.pick([1, 1, 1, 1, c, next(g for g in (4, 3, 2, 1) if c % g == 0)])
    features = groups * max(1, d.pick([1, 2, 16, 32, 64, 64, 128, 256]) // groups)
    one = d.pick([1, 1, 2, 3, 3, 3, 5, 7])
    kernel = [one] * n if d.chance(0.8) else [d.pick([1, 2, 3, 5]) for _ in range(n)]
    stride = [d.pick([1, 1, 1, 2, 3])] * n
    dilation = [d.pick([1, 1, 1, 1, 2])] * n
    padding = [d.pick([0, k // 2, k // 2]) * step for k, step in zip(kernel, dilation)]
    more = [d.pick([0, s - 1]) if transposed else 0 for s in stride]
    weight = [c, features // groups, *kernel] if transposed else [features, c // groups, *kernel]
    dtype = d.float_dtype()
    numbers = [stride, padding, dilation, transposed, more, groups]
    y = aten.convolution(torch.empty(sizes, device='meta'), torch.empty(weight, device='meta'),
                         None, *numbers)
    products = math.prod(weight[1:]) * (math.prod(sizes) if transposed else y.numel())
    if 2 * products > d.operations or y.numel() > d.drawn.most or not y.numel():
        raise TooLarge
    x, w = image(d, sizes=sizes, dtype=dtype), image(d, sizes=weight, dtype=dtype)
    b = d.tensor([features], dtype, expand=False) if d.chance(0.7) else None
    return [x, w, b, *numbers]


def convolution_gradients(d):
    x, w, _, *numbers = convolved(d)
    g = result_like(d, aten.convolution, x, w, None, *numbers)
    return [g, x, w, list(x.shape), list(w.shape), *numbers]


def convolution_backward(g, x, w, _, w_sizes, *numbers):
    features = w_sizes[1] * numbers[-1] if numbers[3] else w_sizes[0]
    return aten.convolution_backward(g, x, w, [features], *numbers, ALL_THREE)


image_op('convolution', convolved, aten.convolution)
image_op('convolution_backward', convolution_gradients, convolution_backward, results=3,
         grad=False)


# ------------------------------------------------------------------------------------ norms ----

def channels(d, x):
    """A vector with an element per channel, in the dtype of parameters."""
    return d.values([x.shape[1]], wide_of(x.dtype))


def statistics(x):
    dims = [0, *range(2, x.dim())]
    wide = x.to(wide_of(x.dtype))
    return wide.mean(dims), wide.var(dims, unbiased=False)


def batch(d):
    x = image(d)
    w, b = (channels(d, x) if d.chance(0.8) else None for _ in range(2))
    constant = d.chance(0.4)
    return [x, *(statistics(x) if constant else [None, None]), w, b, 1e-5]


def batch_norm(x, mean, var, w, b, eps):
    return F.batch_norm(x, mean, var, w, b, mean is None, 0.1, eps)


def batch_gradients(d, bias=False):
    x = image(d)
    b = [channels(d, x)] if bias else []
    return [like(d, x), x, *statistics(x), channels(d, x), *b, 1e-5, d.flag()]


def batch_norm_backward(g, x, mean, var, w, eps, constant):
    return partial(aten.native_batch_norm_backward, g, x, w, mean, var, mean, (var + eps).rsqrt(),
                   not constant, eps, ALL_THREE)


def batch_norm_relu_backward(g, x, mean, var, w, b, eps, constant):
    y = F.relu(F.batch_norm(x, mean, var, w, b, False, 0.1, eps))  # which a forward has kept

    def call():
        up = aten.threshold_backward(g, y, 0)
        return batch_norm_backward(up, x, mean, var, w, eps, constant)()
    return call


def running(d):
    dtype = d.pick([torch.float32, torch.float64])
    c = d.drawn.rounded(d.drawn.log_uniform(1, 4096))
    mean, var, now, spread = (d.values([c], dtype) for _ in range(4))
    return [mean, var.abs(), now, spread.abs(), d.pick([2, 64, 10000]), 0.1]


def batch_norm_update(mean, var, now, spread, count, momentum):
    mean.lerp_(now, momentum)
    var.lerp_(spread * (count / (count - 1)), momentum)
    return mean, var


def group_gradients(d):
    x = image(d)
    groups = d.pick([g for g in (1, 2, 3, 8, 32, x.shape[1]) if x.shape[1] % g == 0])
    n, c = x.shape[:2]
    wide = x.to(wide_of(x.dtype)).reshape(n, groups, -1)
    mean, var = wide.mean(2), wide.var(2, unbiased=False)
    return [like(d, x), x, mean, var, d.values([c], x.dtype), groups, 1e-5]


def group_norm_backward(g, x, mean, var, w, groups, eps):
    n, c, rstd = x.shape[0], x.shape[1], (var + eps).rsqrt()
    return partial(aten.native_group_norm_backward, g, x, mean.to(x.dtype), rstd.to(x.dtype), w, n,
                   c, x.numel() // (n * c), groups, ALL_THREE)


def leaves_of_batch(args):
    return [args[0], *args[3:5]]


image_op('batch_norm', batch, batch_norm, leaves=leaves_of_batch)
image_op('batch_norm_relu', batch, lambda *args: F.relu(batch_norm(*args)), leaves=leaves_of_batch)
prepared('batch_norm_backward', batch_gradients, batch_norm_backward, results=3, grad=False)
prepared('batch_norm_relu_backward', partial(batch_gradients, bias=True), batch_norm_relu_backward,
         results=3, grad=False)
image_op('batch_norm_update', running, batch_norm_update, results=0, grad=False,
         writes=lambda args: args[:2])
prepared('group_norm_backward', group_gradients, group_norm_backward, results=3, grad=False)


# ------------------------------------------------------------------------------------ pools ----

def of_rank(name, n):
    """PyTorch's function for n spatial dims: {} in the name is n."""
    return getattr(F if hasattr(F, name.format(n)) else aten, name.format(n))


def windows(d, x):
    n = x.dim() - 2
    kernel = [min(d.pick([2, 2, 3, 3, 5]), s) for s in x.shape[2:]]
    stride = [d.pick([1, 2, 2, 3])] * n if d.flag() else list(kernel)
    padding = [d.pick([0, 0, k // 2]) for k in kernel]
    return [kernel, stride, padding]


def max_pool(x, kernel, stride, padding, dilation, ceil):
    return of_rank('max_pool{}d', x.dim() - 2)(x, kernel, stride, padding, dilation, ceil, True)


def max_pooled(d):
    x = image(d)
    kernel, stride, padding = windows(d, x)
    return [x, kernel, stride, padding, [1] * len(kernel), d.chance(0.2)]


def adaptive(d):
    x = image(d)
    return [x, [d.integer(1, min(s, 64) + 1) if d.chance(0.6) else 1 for s in x.shape[2:]]]


def adaptive_max_pool(x, sizes):
    return of_rank('adaptive_max_pool{}d', len(sizes))(x, sizes, True)


def max_gradients(d):
    if d.chance(0.2):
        x, sizes = adaptive(d)
        y, at = adaptive_max_pool(x, sizes)
        return [like(d, y), at, list(x.shape[2:]), [], [], [], []]
    x, *numbers = max_pooled(d)
    y, at = max_pool(x, *numbers)
    return [like(d, y), at, list(x.shape[2:]), *numbers[:4]]


def as_planes(t):
    """(N, C, L) as (N, C, 1, L), for functions that exist for planes only."""
    return t.unsqueeze(2)


def max_pool_backward(g, at, sizes, kernel, stride, padding, dilation):
    x = torch.empty([*g.shape[:2], *sizes], dtype=g.dtype, device=g.device)
    n = len(sizes)
    if n == 1:
        call = max_pool_backward(*map(as_planes, (g, at)), [1, *sizes],
                                 *([first, *some] if some else [] for first, some in
                                   ((1, kernel), (1, stride), (0, padding), (1, dilation))))
        return lambda: call().squeeze(2)
    if not kernel:
        return partial(of_rank('adaptive_max_pool{}d_backward', n), g, x, at)
    return partial(of_rank('max_pool{}d_with_indices_backward', n), g, x, kernel, stride, padding,
                   dilation, False, at)


def averaged(d):
    x = image(d)
    more = [d.chance(0.2), d.flag(), d.pick([0, 0, 0, 3]) if x.dim() > 3 else 0]
    return [x, *windows(d, x), *more]


def avg_pool(x, kernel, stride, padding, ceil, count, divisor):
    more = [divisor or None] if x.dim() > 3 else []
    return of_rank('avg_pool{}d', x.dim() - 2)(x, kernel, stride, padding, ceil, count, *more)


def average_gradients(d):
    x, *numbers = averaged(d)
    return [result_like(d, avg_pool, x, *numbers), list(x.shape[2:]), *numbers]


def avg_pool_backward(g, sizes, kernel, stride, padding, ceil, count, divisor):
    if len(sizes) == 1:
        call = avg_pool_backward(as_planes(g), [1, *sizes], [1, *kernel], [1, *stride],
                                 [0, *padding], ceil, count, divisor)
        return lambda: call().squeeze(2)
    x = torch.empty([*g.shape[:2], *sizes], dtype=g.dtype, device=g.device)
    return partial(of_rank('avg_pool{}d_backward', len(sizes)), g, x, kernel, stride, padding, ceil,
                   count, divisor or None)


def adaptive_avg_pool(x, sizes):
    return of_rank('adaptive_avg_pool{}d', len(sizes))(x, sizes)


def adaptive_gradients(d):
    x, sizes = adaptive(d)
    return [result_like(d, adaptive_avg_pool, x, sizes), list(x.shape[2:])]


def adaptive_avg_pool_backward(g, sizes):
    if len(sizes) == 1:
        call = adaptive_avg_pool_backward(as_planes(g), [1, *sizes])
        return lambda: call().squeeze(2)
    x = torch.empty([*g.shape[:2], *sizes], dtype=g.dtype, device=g.device)
    return partial(of_rank('_adaptive_avg_pool{}d_backward', len(sizes)), g, x)


image_op('max_pool', max_pooled, max_pool, results=2)
image_op('adaptive_max_pool', adaptive, adaptive_max_pool, results=2)
prepared('max_pool_backward', max_gradients, max_pool_backward, grad=False)
image_op('avg_pool', averaged, avg_pool)
prepared('avg_pool_backward', average_gradients, avg_pool_backward, grad=False)
image_op('adaptive_avg_pool', adaptive, adaptive_avg_pool)
prepared('adaptive_avg_pool_backward', adaptive_gradients, adaptive_avg_pool_backward, grad=False)


# ----------------------------------------------------------------------- pads and resizing ----

def resized(d):
    x = image(d)
    n = x.dim() - 2
    mode = d.pick([0, 1, 1, 2]) if n == 2 else d.pick([0, 1])
    sizes = [max(1, round(s * d.pick([2, 2, 0.5, 1.5, 3]))) for s in x.shape[2:]]
    if math.prod(x.shape[:2]) * math.prod(sizes) > d.drawn.most:
        raise TooLarge
    return [x, sizes, mode, bool(mode) and d.chance(0.3), 0.0, 0.0, 0.0]


def name_of(mode, n):
    return MODES[mode][n - 1] if mode == 1 else MODES[mode]


def interpolate(x, sizes, mode, corners, *_scales):
    return F.interpolate(x, sizes, mode=name_of(mode, len(sizes)),
                         align_corners=corners if mode else None)


def resize_gradients(d):
    x, sizes, *rest = resized(d)
    return [result_like(d, interpolate, x, sizes, *rest), list(x.shape[2:]), *rest]


def interpolate_backward(g, sizes, mode, corners, *_scales):
    function = getattr(aten, f'upsample_{name_of(mode, len(sizes))}{len(sizes)}d_backward')
    flags = [corners] if mode else []
    return function(g, list(g.shape[2:]), [*g.shape[:2], *sizes], *flags)


def padded(d):
    x = image(d)
    n = x.dim() - 2
    mode = d.pick([0, 0, 1, 2, 3])
    least = -1 if mode == 0 else 0
    padding = []
    for s in reversed(x.shape[2:]):
        most = max(1, min(s, 17) if mode else 17)
        padding += [d.integer(least, most) if s > 2 or mode else d.integer(0, 3) for _ in range(2)]
    if len(padding) != 2 * n:
        raise TooLarge
    return [x, padding, mode, d.pick([0.0, 1.5])]


def pad(x, padding, mode, value):
    return F.pad(x, padding, PADS[mode], *([] if mode else [value]))


def pad_gradients(d):
    x, padding, mode, value = padded(d)
    return [result_like(d, pad, x, padding, mode, value), padding, mode]


def pad_backward(g, padding, mode):
    if mode == 0:
        return partial(F.pad, g, [-n for n in padding])
    sizes = [s - a - b for s, a, b in zip(reversed(g.shape), padding[::2], padding[1::2])][::-1]
    x = torch.empty([*g.shape[:2], *sizes], dtype=g.dtype, device=g.device)
    if mode < 3:
        name = ('reflection' if mode == 1 else 'replication') + '_pad{}d_backward'
        return partial(of_rank(name, len(sizes)), g, x, padding)
    with torch.enable_grad():
        y = pad(x.requires_grad_(), padding, mode, 0)
    return lambda: torch.autograd.grad(y, x, g, retain_graph=True)[0]


def shuffled(d, deep=True):
    f = d.pick([2, 2, 3, 4])
    n, c, h, w = sides(d, 2)
    sizes = [n, c * f * f, h, w] if deep else [n, c, h * f, w * f]
    return [image(d, sizes=sizes), f]


image_op('interpolate', resized, interpolate)
image_op('interpolate_backward', resize_gradients, interpolate_backward, grad=False)
image_op('pad', padded, pad)
prepared('pad_backward', pad_gradients, pad_backward, grad=False)
image_op('pixel_shuffle', shuffled, torch.pixel_shuffle)
image_op('pixel_unshuffle', partial(shuffled, deep=False), torch.pixel_unshuffle)

# ----------------------------------------------------------------------------------- others ----

image_op('empty', lambda d: [d.sizes(), d.float_dtype(), HERE],
         lambda sizes, dtype, _, device=None: torch.empty(sizes, dtype=dtype, device=device),
         results=0, grad=False)  # the values are undefined
