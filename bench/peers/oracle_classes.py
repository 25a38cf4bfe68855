"""
Classes of differences from PyTorch that are meant. Each has a line with its reason in
docs/differences.md, under the same name; a class without a line, or a line without a class, is an
error.
"""
# SPDX-License-Identifier: MIT
import math
import re

import numpy
import torch

CLASSES = {}


def explains(name):
    def add(holds):
        CLASSES[name] = holds
        return holds
    return add


def documented(path):
    """The line of each class, by name."""
    lines = {}
    for line in path.read_text(encoding='utf-8').splitlines():
        row = re.match(r'\| `([a-z0-9-]+)` \| (.*) \|$', line)
        if row:
            lines[row[1]] = row[2]
    return lines


def check(words):
    """Every class has its line, and every line its class."""
    odd = set(words) ^ set(CLASSES)
    if odd:
        raise SystemExit('compare.py: docs/differences.md and bench/peers/oracle_classes.py differ '
                         f'in {", ".join(sorted(odd))}')


def explain(difference):
    """Name of the first class that a difference belongs to, or None."""
    for name, holds in CLASSES.items():
        if holds(difference):
            return name
    return None


# ------------------------------------------------------------------- calls that are refused ----

def refused(name, ours):
    """A call that is refused here, by a text, and not by PyTorch."""
    CLASSES[name] = lambda d: d.kind == 'refused' and bool(re.search(ours, d.ours.refusal))


def accepted(name, theirs):
    """A call that PyTorch refuses, by a text, and that is not refused here."""
    CLASSES[name] = lambda d: d.kind == 'accepted' and bool(re.search(theirs, d.theirs.refusal))


refused('out-dtype', "'out': expected dtype")
refused('out-sizes', "'out': expected sizes")
refused('out-expanded', "'out': expected distinct elements")
refused('in-place-shared', 'shares? .*memory|overlap')
refused('in-place-saved', 'was written in place since')
refused('in-place-views', 'in place')
refused('integers', 'expected a floating dtype|not defined for dtype|no kernel for dtype bool|'
        'expected a whole number|expected an integer for self')
refused('cat-of-nothing', "cat: argument 'dim'")
refused('one-dtype', 'expected dtype .* (as argument|got)')
refused('numbers-that-do-not-fit', 'expected a number that fits')
refused('bias-of-one', "argument 'bias': expected sizes")
refused('indices-of-nothing', 'expected indices from 0 to -1')
accepted('torch-lacks', 'not implemented|does not support|not supported')
accepted('torch-refuses-a-mix', 'but got dtype|but found dtype|expected .*dtype|same dtype|'
         "can't be cast|data ?type")
accepted('torch-refuses-integers', 'Integer division|to be Long or Byte|must be .*Long|floating|'
         'integral')
accepted('numbers-overflow', 'without overflow|outside the representable')
accepted('scatter-src-larger', 'Scatter.*invalid gradient')
accepted('minus-one-of-nothing', 'unspecified dimension size -1')
accepted('group-norm-of-little', 'Expected more than 1 value per channel|Expected HxW')
accepted('torch-fails', 'primitive descriptor|must match the size of tensor b|'
         'match the broadcast shape|grad_input must be')


@explains('torch-drops')
def _(d):
    return d.kind == 'absent' and d.b is None and d.op == 'layer_norm' and d.order == 2


@explains('truth-of-u8')
def _(d):
    return d.kind == 'dtype' and d.op in ('all', 'any') and str(d.b.dtype) == 'torch.uint8'


@explains('sum-to-size-dtype')
def _(d):
    return d.kind == 'dtype' and d.op == 'sum_to_size'


# ------------------------------------------------------------------------------------ values ----

def extreme(d):
    """Whether the case holds numbers whose products or quotients leave the range of a dtype."""
    def is_extreme(t):
        info = torch.finfo(t.dtype if t.is_floating_point() else torch.float32)
        size = t.detach().double().abs()
        far = (size > math.sqrt(info.max) / 4) | (size < math.sqrt(info.tiny) * 4) & (size > 0)
        return bool((far | ~torch.isfinite(size)).any())
    more = [d.case.upstream, *d.case.second] if d.order else []
    plain = [x for x in d.args if isinstance(x, (int, float)) and (x != x or abs(x) > 1e4)]
    return bool(plain) or any(map(is_extreme, [*d.case.tensors(), *more]))


def is_value(d, ops='.*', order=None):
    return d.kind == 'value' and re.fullmatch(ops, d.op) and order in (None, d.order)


@explains('clamp-bounds')
def _(d):
    return is_value(d, 'clamp') and d.order and 0 in (d.mine, d.other)


@explains('kinks')
def _(d):
    return is_value(d, 'elu|elu_backward|(smooth_l1|huber|l1)_loss(_backward)?|relu|leaky_relu|'
                    'hardtanh|softplus|softplus_backward|leaky_relu_backward') and d.order


@explains('degrees-of-freedom')
def _(d):
    if not is_value(d, 'var|std') or not d.order:
        return False
    x, dims, _, correction = d.args
    sizes = x.shape if not dims else [x.shape[k] for k in dims]
    return math.prod(sizes) <= correction or bool(math.prod(sizes) <= 1)


@explains('zero-sign')
def _(d):
    return is_value(d, order=0) and d.mine == 0 == d.other


@explains('limits-at-infinity')
def _(d):
    return is_value(d, 'gelu|linear_gelu|silu|mish|gelu_backward|silu_backward') and d.mine == 0


@explains('torch-remainder')
def _(d):
    return is_value(d, 'remainder|floor_divide') and d.other != d.other and not d.order


@explains('torch-vectors')
def _(d):
    return is_value(d, 'elu_backward|hardtanh|softplus_backward|threshold_backward') and any(
        bool(torch.isnan(t).any()) for t in d.case.tensors() if t.is_floating_point())


@explains('losses-at-infinity')
def _(d):
    return is_value(d, '.*(loss|entropy|logits|kl_div).*', 0) and extreme(d)


@explains('overflow-within')
def _(d):
    return is_value(d, '.*norm|var|std|norm|addmm|mm|bmm|matmul|linear|.*_backward|.*_loss|'
                    'logsumexp|prod|mean|sum|sum_to_size|lerp|addc.*|erf.*|hypot', 0) and extreme(d)


@explains('order-of-products')
def _(d):
    return is_value(d) and d.order > 0 and extreme(d)


@explains('halves-in-steps')
def _(d):
    """Gradients in halves that differ by few roundings of the largest step."""
    if not is_value(d) or not d.order or str(d.a.dtype) not in ('torch.bfloat16', 'torch.float16'):
        return False
    unit = torch.finfo(d.a.dtype).eps
    most = max([float(t.detach().double().abs().max()) for t in
                [*d.case.tensors(), d.case.upstream, *d.case.second, d.a, d.b]
                if t.numel() and t.is_floating_point()] or [0])
    return abs(d.mine - d.other) <= 32 * unit * max(1.0, most) ** 2 or extreme(d)


@explains('cross-entropy-digits')
def _(d):
    return is_value(d, 'cross_entropy') and d.order and abs(d.mine - d.other) <= 2 ** -17 * max(
        1.0, float(d.case.upstream.detach().double().abs().max()))


@explains('integers-beyond-halves')
def _(d):
    """A factor or term that f16 does not hold, and f32 does."""
    def beyond(x):
        if isinstance(x, torch.Tensor):
            return not x.is_floating_point() and x.numel() == 1 and beyond(x.item())
        return isinstance(x, (int, float)) and 65504 < abs(x) < math.inf
    return is_value(d, 'mul|div|add|sub', 0) and str(d.a.dtype) == 'torch.float16' and any(
        map(beyond, d.args))


@explains('floor-divide-numbers')
def _(d):
    return is_value(d, 'floor_divide') and str(d.a.dtype) in ('torch.bfloat16', 'torch.float16')


@explains('least-numbers')
def _(d):
    if not is_value(d) or not d.a.is_floating_point():
        return False
    info = torch.finfo(d.a.dtype)
    return abs(d.mine - d.other) <= 8 * info.tiny * info.eps


@explains('angle-of-zero')
def _(d):
    return is_value(d, 'atan2|hypot') and d.order > 0 and d.mine != d.mine


@explains('pow-of-zero')
def _(d):
    return is_value(d, 'pow') and d.order > 0 and d.other != d.other


@explains('divergence-of-zero')
def _(d):
    return is_value(d, 'kl_div(_backward)?') and abs(d.mine) == math.inf


@explains('cancellation')
def _(d):
    """Norms and second gradients subtract terms of about the size of the largest number."""
    unit = torch.finfo(d.a.dtype).eps if is_value(d) and d.a.is_floating_point() else 0
    if d.kind != 'value' or not unit or not (
            d.order == 2 or unit < 1e-9 or
            re.fullmatch('.*norm|log_softmax(_backward)?|tanh', d.op)):
        return False
    tensors = [*d.case.tensors(), d.a]
    if d.order:
        tensors += [d.case.upstream, *d.case.second]
    most = max(float(t.detach().double().abs().max()) for t in tensors if t.numel())
    times = 1000 if d.op.endswith('norm') else 1  # 1 / sqrt(eps)
    return abs(d.mine - d.other) <= 64 * times * unit * max(1.0, most)


@explains('tails-of-gelu')
def _(d):
    return is_value(d, 'gelu|gelu_backward') and abs(d.mine - d.other) <= 2e-5 * (1 + abs(d.other))


@explains('factors-of-integers')
def _(d):
    return is_value(d, 'addcmul|addcdiv') and d.order > 0 and not all(
        t.is_floating_point() for t in d.case.tensors())


@explains('exponents-are-rounded')
def _(d):
    number = d.args[1] if is_value(d, 'pow') else None
    return isinstance(number, (int, float)) and float(numpy.float32(number)) != number


@explains('large-powers')
def _(d):
    return is_value(d, 'pow') and abs(d.mine - d.other) <= 2 ** -17 * abs(d.other)


@explains('softmax-converts-first')
def _(d):
    return is_value(d, 'softmax|log_softmax') and d.args[2] is not None


@explains('zero-by-zero')
def _(d):
    return is_value(d) and d.order == 2 and (d.mine != d.mine or d.other != d.other)


@explains('product-of-much')
def _(d):
    return is_value(d, 'prod') and d.order > 0 and d.other != d.other


@explains('nothing-to-reduce')
def _(d):
    return is_value(d) and d.order and any(not t.numel() for t in d.case.tensors())
