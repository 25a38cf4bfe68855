"""
Checks random operators: range, moments and distribution of their numbers (Kolmogorov-Smirnov;
Pearson's chi-squared), and that a seed gives the same numbers again. Each limit is such that about
one of 10^7 correct calls is reported.
"""
# SPDX-License-Identifier: MIT
import math

import numpy
import torch

from peers.oracle_draw import ALL, FLOATS, HERE, INTEGERS
from peers.oracle_ops import OPS, Op

DEVIATIONS = 5.5    # largest error of a mean, in standard deviations of the mean
KOLMOGOROV = 2.9       # sup |F_n - F| sqrt(n): 2 exp(-2 x^2) = 1e-7
EXACT = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8,
         torch.int64: 62, torch.int32: 30, torch.uint8: 7, torch.bool: 1}


def drawn(library, name, args, seed):
    library.c.ts_manual_seed(seed)
    return library.read(library.call(name, args)[0], torch)


def random(name, draw):
    """Adds an operator. check(args, result, values in f64) returns a text if values are wrong."""
    def add(check):
        def both(library, d, args):
            seed = d.integer(0, 1 << 40)
            first, again, other = (drawn(library, name, args, s) for s in (seed, seed, seed + 1))
            if not torch.equal(first, again):
                return 'the same seed gives other numbers'
            kept = isinstance(args[0], torch.Tensor) and torch.equal(first, args[0])
            if first.numel() > 64 and not kept and torch.unique(first).numel() > 1 and \
                    torch.equal(first, other):
                return 'another seed gives the same numbers'
            return check(args, first, first.double().numpy().ravel())
        OPS[name] = Op(name, draw, check=both, grad=False)
        return both
    return add


def off_mean(x, mean, deviation, more=0.0):
    """A text if the mean of x is wrong, else None. more: additional tolerance, for rounding."""
    if not x.size:
        return None
    off = abs(x.mean() - mean)
    limit = DEVIATIONS * deviation / math.sqrt(x.size) + more
    return f'mean {x.mean()!r}, expected {mean!r} +- {limit!r}' if x.size > 30 and off > limit \
        else None


def off_distribution(x, cdf):
    n = x.size
    if n < 100:
        return None
    x = numpy.sort(x)
    f = cdf(x)
    far = max(numpy.abs(f - numpy.arange(n) / n).max(), numpy.abs(f - numpy.arange(1, n + 1) / n)
              .max()) * math.sqrt(n)
    return f'Kolmogorov-Smirnov distance {far:.3g}' if far > KOLMOGOROV else None


def off_counts(x, p):
    """A text if integers x from 0 to len(p) - 1 contradict their probabilities p, else None."""
    counts = numpy.bincount(x.astype(int), minlength=len(p))
    if counts[p == 0].any():
        return 'drawn although its probability is 0'
    some = p * x.size > 5
    chi = ((counts - p * x.size)[some] ** 2 / (p * x.size)[some]).sum()
    k = some.sum()
    return f'chi-squared {chi:.3g} of {k} classes' if k and chi > k + 8 * math.sqrt(2 * k) + 30 \
        else None


def sizes(d):
    return [d.pick([64, 63, 97]), d.pick([64, 33])] if d.chance(0.7) else d.sizes()


def spacing(dtype, x):
    return torch.finfo(dtype).eps * x


@random('uniform', lambda d: [sizes(d), low := float(d.pick([0, -1, 3, -0.25])),
                              low + float(d.pick([1, 2, 0.5, 100])), d.float_dtype(), HERE])
def uniform(args, t, x):
    low, high, dtype = args[1:4]
    if (x < low).any() or (x >= high).any():
        return f'outside of [{low}, {high}): {x.min()!r} to {x.max()!r}'
    more = spacing(dtype, max(abs(low), abs(high)))
    return off_mean(x, (low + high) / 2, (high - low) / math.sqrt(12), more) or (
        off_distribution(x, lambda v: (v - low) / (high - low))
        if dtype in (torch.float64, torch.float32) else None)


@random('normal', lambda d: [sizes(d), float(d.pick([0, 1, -3])), float(d.pick([1, 2, 0.5, 0])),
                             d.float_dtype(), HERE])
def normal(args, t, x):
    mean, std, dtype = args[1:4]
    if not std:
        return None if (x == mean).all() else 'not the mean'
    more = spacing(dtype, abs(mean) + std)
    bad = off_mean(x, mean, std, more) or off_mean((x - mean) ** 2, std * std,
                                                   std * std * math.sqrt(2), 8 * std * more)
    if bad or dtype not in (torch.float64, torch.float32):
        return bad
    erf = numpy.vectorize(math.erf)
    return off_distribution(x, lambda v: 0.5 + 0.5 * erf((v - mean) / std / math.sqrt(2)))


def integers(d):
    dtype = d.pick([*FLOATS, *INTEGERS])
    bits = d.integer(1, EXACT[dtype])
    low = 0 if dtype == torch.uint8 else d.pick([0, -(1 << bits - 1), 1])
    return [sizes(d), low, low + d.pick([1, 2, 5, 1 << bits - 1]), dtype, HERE]


@random('randint', integers)
def randint(args, t, x):
    low, high = args[1:3]
    whole = t.to(torch.int64)
    if (whole < low).any() or (whole >= high).any() or (whole.to(t.dtype) != t).any():
        return f'not integers of [{low}, {high})'
    n = high - low
    if n <= 64:
        return off_counts((whole - low).numpy().ravel(), numpy.full(n, 1 / n))
    return off_distribution(x, lambda v: (v - low + 0.5) / n) if n > 1 << 16 else None


@random('randperm', lambda d: [d.pick([0, 1, 2, 17, 200, 1000]), torch.int64, HERE])
def randperm(args, t, x):
    n = args[0]
    if (numpy.sort(x) != numpy.arange(n)).any():
        return 'not a permutation'
    fixed = int((x == numpy.arange(n)).sum())  # of mean 1 and deviation 1
    return f'{fixed} elements stay' if n > 100 and fixed > 12 else None


def chances(d):
    """A number, or a tensor of probabilities."""
    if d.chance(0.5):
        return [d.pick([0.0, 1.0, 0.5, 0.1, 0.999]), sizes(d), d.pick(ALL), HERE]
    dtype = d.float_dtype()
    p = torch.from_numpy(d.r.random(sizes(d))).to(dtype)
    p = d.lay_out(list(p.shape), torch.where(p < 0.2, 0, torch.where(p > 0.8, 1, p)).to(dtype))
    return [p, list(p.shape), dtype, HERE]


@random('bernoulli', chances)
def bernoulli(args, t, x):
    p = args[0].double().numpy().ravel() if isinstance(args[0], torch.Tensor) \
        else numpy.full(x.size, args[0])
    if ((x != 0) & (x != 1)).any() or x[p == 0].any() or (x[p == 1] != 1).any():
        return 'not 0 or 1, or drawn although that cannot be'
    return off_mean(x, p.mean(), math.sqrt((p * (1 - p)).mean()) + 1e-9, 1e-6) if x.size else None


def weights(d):
    c, rows = d.integer(2, 9), d.pick([None, 1, 3])
    shape = [c] if rows is None else [rows, c]
    p = d.r.random(shape) * (d.r.random(shape) < 0.8)
    p[..., 0] += 0.1
    again = d.flag()
    most = int((p > 0).sum(-1).min())
    return [d.lay_out(shape, torch.from_numpy(p).to(d.float_dtype()), expand=False),
            d.pick([1, 2000]) if again else d.integer(1, most + 1), again]


@random('multinomial', weights)
def multinomial(args, t, x):
    p, n, again = args
    rows = p.double().reshape(-1, p.shape[-1]).numpy()
    for weight, places in zip(rows, t.reshape(-1, n).numpy()):
        if not again and len(set(places)) < n:
            return 'drawn twice'
        if (weight[places] == 0).any():
            return 'drawn although its weight is 0'
        bad = again and off_counts(places, weight / weight.sum())
        if bad:
            return bad
    return None


def dropped(d):
    some = sizes(d)
    x = d.tensor(some, d.float_dtype())
    return [torch.where(torch.isfinite(x) & (x != 0), x, torch.ones([], dtype=x.dtype)),
            d.pick([0.0, 0.5, 0.1, 1.0])]


@random('dropout', dropped)
def dropout(args, t, x):
    was, p = args
    if p == 1:
        return 'not dropped' if x.any() else None
    kept = torch.where(t != 0, was.double() / (1 - p), 0).to(t.dtype)
    near = torch.isclose(kept.double(), t.double(), rtol=2 * torch.finfo(t.dtype).eps, atol=0)
    tiny = torch.finfo(t.dtype).tiny
    if not (near | (t == kept) | (was.abs() < 4 * tiny)).all():
        return 'neither 0 nor scaled'
    large = (was.abs() >= tiny).numpy().ravel()
    return off_mean((x == 0)[large].astype(float), p, math.sqrt(p * (1 - p)) + 1e-9)


def same_places(library, d, args):
    """dropout_backward and the gradient of dropout drop the same elements as dropout."""
    grad, p = args
    seed = d.integer(0, 1 << 40)
    forward = drawn(library, 'dropout', [grad, p], seed)
    backward = library.read(library.call('dropout_backward', [grad, p, seed, 0])[0], torch)
    if not torch.equal(forward, backward):
        return 'drops other elements than dropout'
    leaf = library.tensor(grad.clone())
    library.c.ts_set_requires_grad(leaf, True)
    library.c.ts_manual_seed(seed)
    copy = library.tensor(grad)
    y = library.call('dropout', [library.handle(leaf), p])[0]
    found = library.gradients(y, copy, [leaf], False)[0]
    return None if found and torch.equal(library.read(found, torch), forward) \
        else "the gradient of dropout is not dropout_backward's"


OPS['dropout_backward'] = Op('dropout_backward', dropped, check=same_places, grad=False)
