"""
Draws the arguments of the random sweep with the oracle's functions (oracle_ops.py, oracle_more.py)
and larger sizes. Operators whose arguments the oracle keeps small have their own functions here.
"""
# SPDX-License-Identifier: MIT
import itertools
import math

import numpy
import torch

from peers.oracle_draw import ALL, FLOATS, HERE, Draw
from peers import oracle_ops
from peers.oracle_more import NO_TENSORS, attention, wide_of
from peers import oracle_random  # noqa: F401  which adds operators
from peers.sweep import Sizes, TooLarge
from peers.sweep_images import IMAGES

OPS = {**oracle_ops.OPS, **IMAGES}
GIB = 1 << 30
# Limits: elements of a tensor, bytes of all arguments, a usual length, operations of a product.
LIMITS = {'cuda': (1 << 28, 5 * GIB // 4, 4096, 1 << 41), 'cpu': (1 << 24, GIB // 2, 1024, 1 << 30)}
DTYPES = {'cuda': [torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float16],
          'cpu': [torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16]}


class Large(Draw):
    """The oracle's draw with sizes of a sweep, on a device; 'meta' draws all but the values. `kind`
    is the device that limits are for."""

    def __init__(self, seed, number, attempt, kind, device):
        super().__init__(seed, number)
        self.r = numpy.random.Generator(numpy.random.PCG64([seed, number, attempt]))
        self.kind, self.device, self.limits = 'plain', device, kind
        most, self.bytes_left, self.usual, self.operations = LIMITS[kind]
        self.drawn = Sizes(seed, number, attempt, most)
        self.generator = None
        if device != 'meta':
            self.generator = torch.Generator(device).manual_seed(
                (seed * 1000003 + number) * 1000 + attempt)

    def pick(self, choices):
        if all(isinstance(x, torch.dtype) for x in choices):
            known = {*DTYPES[self.limits], torch.int64, torch.int32, torch.uint8, torch.bool} \
                if hasattr(self, 'limits') else choices
            choices = [x for x in choices if x in known] or choices
        return super().pick(choices)

    def float_dtype(self):
        return self.pick(DTYPES[self.limits])

    def dtype(self):
        return self.float_dtype() if self.chance(0.8) else \
            self.pick([torch.int64, *(x for x in ALL if x not in FLOATS)])

    def length(self):
        return self.drawn.length(self.usual)

    def sizes(self, least=0, most=5):
        return self.drawn.shape(min(most, max(least, self.pick([1, 2, 2, 2, 3, 3, 4, 5]))))

    def broadcast(self, sizes):
        sizes = sizes[self.integer(0, len(sizes) + 1):] if self.chance(0.25) else sizes
        return [1 if self.chance(0.2) else n for n in sizes]

    def take(self, sizes, dtype):
        n = math.prod(sizes)
        self.bytes_left -= n * torch.empty([], dtype=dtype, device='meta').element_size()
        if self.bytes_left < 0:
            raise TooLarge
        return n

    def values(self, sizes, dtype):
        n = self.take(sizes, dtype)
        more = {'generator': self.generator, 'device': self.device}
        if dtype in FLOATS:
            return torch.randn(n, dtype=dtype, **more)
        if dtype == torch.bool:
            return torch.randint(0, 2, (n,), **more, dtype=torch.uint8).bool()
        return torch.randint(0 if dtype == torch.uint8 else -9, 10, (n,), dtype=dtype, **more)

    def between(self, sizes, low, high, dtype=torch.int64):
        n = self.take(sizes, dtype)
        x = torch.randint(low, max(high, low + 1), (n,), dtype=dtype, device=self.device,
                          generator=self.generator)
        return self.lay_out(sizes, x)

    def dim(self, ndim):
        return self.integer(-max(ndim, 1), max(ndim, 1))


# ---------------------------------------------------------- operators with draws of their own ----

def classes(d):
    """Rows by classes, sometimes with positions in later dims, and targets."""
    sizes = [d.length(), max(2, d.length()), *([d.integer(1, 65)] if d.chance(0.2) else [])]
    return [d.tensor(sizes, d.float_dtype()), d.between([sizes[0], *sizes[2:]], 0, sizes[1]),
            d.integer(0, 3), -100]


def upstream(d, x, target, reduction):
    return d.tensor(list(target.shape) if reduction == 2 else [], x.dtype)


def class_gradient(d):
    x, target, reduction, ignore = classes(d)
    return [upstream(d, x, target, reduction), x, target, reduction, ignore]


def entropy_gradient(d):
    g, x, target, reduction, ignore = class_gradient(d)
    lse = torch.logsumexp(x.to(wide_of(x.dtype)), 1)
    return [g, x, target, lse, reduction, ignore, d.pick([0.0, 0.1])]


def groups(d):
    n = d.pick([1, 2, 8, 32])
    sizes = [max(1, d.length() // 16), n * d.integer(1, 9), 8 * d.integer(1, 65)]
    x = d.tensor(sizes, d.float_dtype())
    w, b = (d.tensor([sizes[1]], x.dtype) if d.chance(0.7) else None for _ in range(2))
    return [x, n, w, b, 1e-5]


def embedding_gradient(d):
    n = d.length()
    index = d.between(d.sizes(0, 3), 0, n)
    return [d.tensor([*index.shape, d.length()], d.float_dtype()), index, n, -1]


def lists(d, count):
    """Lists of tensors of the same sizes, as parameters of a model are."""
    dtype, n = d.float_dtype(), d.pick([1, 4, 16, 50])
    total = max(1, round(d.drawn.log_uniform(16, d.drawn.most / (4 * count))))
    shapes = [d.drawn.shape(d.integer(1, 3), max(1, total // n)) for _ in range(n)]
    return [[d.values(s, dtype).reshape(s) for s in shapes] for _ in range(count)]


def adamw(d):
    params, grads, averages, squares = lists(d, 4)
    return [params, grads, averages, [t.abs() for t in squares], [1] * len(params), 1e-3, 0.9,
            0.999, 1e-8, d.pick([0.0, 0.1]), True, None, None, None]


def sgd(d):
    momentum = d.pick([0.0, 0.9])
    made = lists(d, 3 if momentum else 2)
    return [*made[:2], made[2] if momentum else NO_TENSORS, [2] * len(made[0]), 1e-3, momentum, 0.0,
            d.pick([0.0, 0.1]), False, None, None, None]


def clipped(d):
    """The factor stays 1, so that repeated calls do not end in denormals."""
    return [lists(d, 1)[0], torch.tensor(2.0, device=d.device), 1e6]


def chances(d):
    if d.chance(0.5):
        return [d.pick([0.5, 0.1, 0.999]), d.sizes(), d.float_dtype(), HERE]
    p = torch.rand(d.take(some := d.sizes(), torch.float32), device=d.device, generator=d.generator)
    dtype = d.float_dtype()
    return [d.lay_out(some, p.to(dtype)), some, dtype, HERE]


def weights(d):
    rows, c = max(1, d.length() // 8), min(d.length(), 1 << 16) + 1
    n = d.take([rows, c], torch.float32)
    p = torch.rand(n, device=d.device, generator=d.generator).reshape(rows, c) + 0.01
    again = d.flag()
    return [p, d.integer(1, 65) if again else d.integer(1, min(c, 64) + 1), again]


def dropped(d):
    return [d.tensor(d.sizes(), d.float_dtype()), d.pick([0.5, 0.1, 0.9])]


OWN = {
    'adamw': adamw,
    'sgd': sgd,
    'global_norm': lambda d: [lists(d, 1)[0]],
    'scale': lambda d: [lists(d, 1)[0], 1.0],
    'unscale': lambda d: [lists(d, 1)[0], 1.0],
    'clip_norm': clipped,
    'cross_entropy': lambda d: [*classes(d), d.pick([0.0, 0.0, 0.1])],
    'cross_entropy_grad': lambda d: [*classes(d), d.pick([0.0, 0.0, 0.1])],
    'cross_entropy_backward': entropy_gradient,
    'nll_loss': classes,
    'nll_loss_backward': class_gradient,
    'group_norm': groups,
    'embedding_backward': embedding_gradient,
    'one_hot': lambda d: (lambda n: [d.between(d.sizes(0, 4), 0, n), n])(d.integer(2, 257)),
    'arange': lambda d: [0, math.prod(d.sizes()), 1, d.pick([torch.int64, torch.float32]), HERE],
    'linspace': lambda d: [0.0, 1.0, math.prod(d.sizes()), d.float_dtype(), HERE],
    'uniform': lambda d: [d.sizes(), 0.0, 1.0, d.float_dtype(), HERE],
    'normal': lambda d: [d.sizes(), 0.0, 1.0, d.float_dtype(), HERE],
    'randint': lambda d: [d.sizes(), 0, d.pick([2, 100, 1 << 20]), torch.int64, HERE],
    'randperm': lambda d: [math.prod(d.drawn.shape(1)), torch.int64, HERE],
    'bernoulli': chances,
    'multinomial': weights,
    'dropout': dropped,
    'dropout_backward': lambda d: [*dropped(d), 1, 0],
}


# ------------------------------------------------------------------------------- attention ----

def attended(d):
    """Arguments of attention: self, cross, or one row as in decoding; mostly halves. Some have
    packed sequences, key lengths or a softcap."""
    kind = d.pick(['self', 'self', 'cross', 'decode'])
    longest, operations = (16384, d.operations << 2) if d.limits == 'cuda' else (1024, d.operations)
    depth = d.pick([32, 40, 64, 64, 64, 80, 96, 128, 128, 128, 160, 192, 256])
    groups_ = d.pick([1, 2, 4, 8, 16])
    heads = groups_ * d.pick([1, 1, 1, 2, 4, 8])
    rows = 1 if kind == 'decode' else d.drawn.rounded(d.drawn.log_uniform(16, longest))
    keys = rows if kind == 'self' else d.drawn.rounded(d.drawn.log_uniform(16, 4 * longest))
    batch = d.drawn.rounded(d.drawn.log_uniform(1, 64))
    if 4 * batch * heads * rows * keys * depth > operations:
        raise TooLarge
    half = d.pick([torch.bfloat16, torch.bfloat16, torch.float16])
    dtype = torch.float32 if d.chance(0.1 if d.limits == 'cuda' else 0.6) else half

    packed = kind == 'self' and d.chance(0.15)
    lengths = [d.integer(1, rows + 1) for _ in range(batch)] if packed else []
    batches, tokens = (1, sum(lengths)) if packed else (batch, 0)

    def operand(h, s):
        """(batch, h, s, depth): dense, or a view of (batch, s, h, depth) as of a projection."""
        s = tokens or s
        if d.chance(0.5):
            return d.values([batches, h, s, depth], dtype).reshape(batches, h, s, depth)
        x = d.values([batches, s, h, depth], dtype).reshape(batches, s, h, depth)
        return x.transpose(1, 2)
    q, k, v = operand(heads, rows), operand(groups_, keys), operand(groups_, keys)
    mask = window = bounds = longest = None
    if packed:
        bounds = [torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)] * 2
        longest = [max(lengths)] * 2
    hides = d.pick(['nothing', 'causal', 'causal', 'window', 'mask', 'bias'])
    if packed and hides not in ('nothing', 'causal'):
        hides = 'nothing'
    if hides in ('mask', 'bias'):
        sizes = [batch if d.flag() else 1, heads if d.flag() else 1, rows, keys]
        mask = d.values(sizes, torch.bool if hides == 'mask' else dtype).reshape(sizes)
        if hides == 'mask':
            mask[..., 0] = True
    elif hides != 'nothing' and rows <= keys:
        window = [-1, 0] if hides == 'causal' else [d.integer(1, 1025), d.pick([0, 0, 64])]
    if not packed and window is None and d.chance(0.2):
        bounds = [torch.tensor([d.integer(1, keys + 1) for _ in range(batch)], dtype=torch.int32)]
    dropout = 0.1 if d.chance(0.1) else 0.0
    few = batch * heads * rows * keys <= MOST_SCORES  # the peer's formula keeps all scores
    softcap = d.pick([10.0, 30.0, 50.0]) if few and not packed and d.chance(0.15) else 0.0
    if softcap:
        dropout = 0.0
    return [q, k, v, mask, bounds, longest, None, window, softcap, dropout]


MOST_SCORES = 1 << 28  # which the formula of the forward keeps


def seen_mask(mask, lengths, keys):
    """A mask that also hides the keys beyond their lengths."""
    seen = torch.arange(keys, device=lengths.device) < lengths.view(-1, 1, 1, 1)
    if mask is None:
        return seen
    if mask.dtype == torch.bool:
        return mask & seen
    return torch.where(seen, mask, torch.full([], -math.inf, dtype=mask.dtype, device=mask.device))


def attention_of_lists(q, k, v, mask, lists, most, *more):
    """attention() with key lengths, as a mask, or of packed sequences, one by one."""
    if not lists:
        return attention(q, k, v, mask, lists, most, *more)
    if len(lists) == 1:
        return attention(q, k, v, seen_mask(mask, lists[0], k.shape[2]), None, None, *more)
    if q.device.type == 'meta':
        return attention(q, k, v, None, None, None, *more)
    bounds = lists[0].tolist()
    parts = [attention(*(t[:, :, i:j] for t in (q, k, v)), None, None, None, *more)
             for i, j in zip(bounds, bounds[1:])]
    return [torch.cat([p[i] for p in parts], 2) for i in (0, 1)]


def attention_gradients(d):
    q, k, v, *more = attended(d)
    more[-1] = 0.0  # without dropout, whose random numbers the sides do not share
    if math.prod(q.shape[:3]) * k.shape[2] > MOST_SCORES:
        raise TooLarge
    out, lse = attention_of_lists(q, k, v, *more)
    return [d.values(list(out.shape), q.dtype).reshape(out.shape), None, q, k, v, out, lse, *more,
            0, 0]


OWN['scaled_dot_product_attention'] = attended
OWN['scaled_dot_product_attention_backward'] = attention_gradients


def draw_of(name):
    return OWN.get(name) or OPS[name].draw


NAMES = list(OPS)  # all operators except noop, which computes nothing
