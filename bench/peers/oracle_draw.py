"""Generators for cases of bench/compare.py --suite oracle: sizes, values, layouts, numbers."""
# SPDX-License-Identifier: MIT
import math

import numpy
import torch

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.uint8]
ALL = [*FLOATS, *INTEGERS, torch.bool]
NUMPY = {torch.int64: numpy.int64, torch.int32: numpy.int32, torch.uint8: numpy.uint8}
HERE = 'here'  # the device of a new tensor
LENGTHS = [0, 1, 1, 2, 3, 3, 4, 5, 7]


def is_float(dtype):
    return dtype in FLOATS


def special_values(dtype):
    """Special values of a dtype: zero, the smallest and largest numbers, infinities, NaN."""
    if dtype == torch.bool:
        return [False, True]
    if not is_float(dtype):
        info = torch.iinfo(dtype)
        return [0, 1, 2, 3, info.max, info.max - 1, info.min, info.min + 1, info.max // 2]
    info = torch.finfo(dtype)
    least = info.tiny * info.eps
    positive = [0.0, 1.0, 2.0, 0.5, 3.0, least, info.tiny, info.max, math.inf, info.eps,
                1 + info.eps, 1e3, 1e-3, math.pi / 2, 88.0, 1 / info.eps]
    return [*positive, *(-x for x in positive), math.nan]


class Draw:
    """Draws the parts of one case; the same seed and case give the same parts."""

    def __init__(self, seed, case):
        self.r = numpy.random.Generator(numpy.random.PCG64([seed, case]))
        self.kind = self.pick(['plain', 'plain', 'plain', 'whole', 'special', 'special', 'large'])

    def pick(self, choices):
        return choices[int(self.r.integers(len(choices)))]

    def chance(self, p):
        return self.r.random() < p

    def integer(self, low, high):
        return int(self.r.integers(low, high))

    def float_dtype(self):
        return self.pick([torch.float32, *FLOATS])

    def dtype(self):
        return self.float_dtype() if self.chance(0.6) else self.pick(ALL)

    def length(self):
        return self.pick([8, 16, 17, 33, 65]) if self.chance(0.08) else self.pick(LENGTHS)

    def sizes(self, least=0, most=5):
        ndim = min(most, max(least, self.pick([0, 1, 1, 2, 2, 2, 3, 3, 4, 5])))
        sizes = [self.length() for _ in range(ndim)]
        while math.prod(sizes) > 1500:
            sizes[sizes.index(max(sizes))] = 2
        return sizes

    def broadcast(self, sizes):
        """Sizes that broadcast to `sizes`; rarely, sizes that do not."""
        if self.chance(0.02):
            return self.sizes()
        sizes = sizes[self.integer(0, len(sizes) + 1):] if self.chance(0.25) else sizes
        return [1 if self.chance(0.2) else n for n in sizes]

    def values(self, sizes, dtype):
        n = math.prod(sizes)
        if dtype == torch.bool:
            return torch.from_numpy(self.r.random(n) < 0.5)
        if is_float(dtype):
            if self.kind == 'special':
                pool = numpy.array(special_values(dtype))
                x = numpy.where(self.r.random(n) < 0.6, pool[self.r.integers(len(pool), size=n)],
                                self.r.standard_normal(n))
            elif self.kind == 'whole':
                x = self.r.integers(-3, 4, n).astype(float)
            elif self.kind == 'large':
                x = self.r.standard_normal(n) * 10.0 ** self.integer(-6, 7)
            else:
                x = self.r.standard_normal(n)
            return torch.from_numpy(x).to(dtype)
        info = torch.iinfo(dtype)
        if self.kind in ('special', 'large'):
            pool = numpy.array(special_values(dtype), dtype=NUMPY[dtype])
            some = pool[self.r.integers(len(pool), size=n)]
            any_ = self.r.integers(info.min, info.max, n, dtype=NUMPY[dtype], endpoint=True)
            return torch.from_numpy(numpy.where(self.r.random(n) < 0.5, some, any_))
        return torch.from_numpy(self.r.integers(max(info.min, -9), 10, n).astype(NUMPY[dtype]))

    def lay_out(self, sizes, values, expand=True):
        """The values in a drawn layout: dense, permuted, sliced, shifted or expanded."""
        t = values.reshape(sizes)
        how = self.pick(['dense', 'dense', 'dense', 'permuted', 'sliced', 'shifted', 'expanded'])
        if how == 'permuted' and len(sizes) > 1:
            order = [int(d) for d in self.r.permutation(len(sizes))]
            back = [order.index(d) for d in range(len(sizes))]
            return t.permute(order).contiguous().permute(back)
        if how in ('sliced', 'shifted') and sizes:
            d, step = self.integer(0, len(sizes)), 2 if how == 'sliced' else 1
            wide = list(sizes)
            wide[d] = wide[d] * step + 1
            whole = torch.ones(wide, dtype=t.dtype)
            hole = whole.narrow(d, 1, wide[d] - 1)
            hole = hole[(slice(None),) * d + (slice(None, None, step),)]
            hole.copy_(t)
            return hole
        if how == 'expanded' and expand and sizes and t.numel():
            d = self.integer(0, len(sizes))
            return t.narrow(d, 0, 1).contiguous().expand(sizes)
        return t

    def tensor(self, sizes, dtype, expand=True):
        return self.lay_out(sizes, self.values(sizes, dtype), expand)

    def between(self, sizes, low, high, dtype=torch.int64):
        """Indices i with low <= i < high; out of range if there is no such i."""
        x = self.r.integers(low, max(high, low + 1), math.prod(sizes))
        return self.lay_out(sizes, torch.from_numpy(x.astype(numpy.int64)).to(dtype))

    def number(self):
        """A plain number of any kind."""
        return self.pick([
            lambda: bool(self.r.random() < 0.5),
            lambda: self.integer(-4, 5),
            lambda: self.pick([0, 1, 2, 3, -1, 255, 256, 1 << 31, (1 << 31) - 1, -(1 << 31), 1000]),
            lambda: float(self.r.standard_normal()),
            lambda: self.pick([0.0, -0.0, 0.1, 0.5, 1.0, 2.0, 3.0, -1.0, -2.0, 1e5, 1e-5, 1.0001]),
            lambda: self.pick([math.inf, -math.inf, math.nan, 1e300, -1e300, 1e-300, 65520.0])
            if self.kind == 'special' else float(self.integer(-4, 5)),
        ])()

    def dim(self, ndim):
        """A dim, counted from either end; rarely out of range."""
        n = max(ndim, 1)
        return self.integer(-n, n) if self.chance(0.98) else self.pick([n, -n - 1])

    def dims(self, ndim):
        """None or some dims, each once, from either end."""
        if self.chance(0.25) or not ndim:
            return None
        order = [int(d) for d in self.r.permutation(ndim)][:self.integer(1, ndim + 1)]
        return [d - ndim if self.chance(0.3) else d for d in order]

    def flag(self):
        return bool(self.r.random() < 0.5)
