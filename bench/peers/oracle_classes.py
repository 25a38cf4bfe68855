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
    """Name of the first class that a difference belongs to, or None. Each wrong element must belong
    to some class; the name is the first element's."""
    def one():
        return next((name for name, holds in CLASSES.items() if holds(difference)), None)
    if difference.kind != 'value':
        return one()
    first = None
    for at in numpy.argwhere(numpy.reshape(difference.wrong, difference.a.shape)):
        difference.look_at(tuple(map(int, at)))
        name = one()
        if name is None:
            return None
        first = first or name
    return first


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


def largest(tensors):
    """The largest finite number among tensors."""
    most = [torch.nan_to_num(t.detach().double(), 0, 0, 0).abs().max().item() for t in tensors
            if isinstance(t, torch.Tensor) and t.numel()]
    return max(most, default=0.0)


def has_left(d):
    """Whether the element left the dtype's range on one side: it is not finite, or it vanished."""
    if not d.a.is_floating_point():
        return False
    info = torch.finfo(d.a.dtype)
    return not (math.isfinite(d.mine) and math.isfinite(d.other)) or \
        min(abs(d.mine), abs(d.other)) < info.tiny / info.eps


def has_tiny(d):
    """Whether the case holds numbers whose quotients are denormal, and so lose digits."""
    if not d.a.is_floating_point():
        return False
    tensors = [*d.case.tensors(), d.case.upstream, *d.case.second]
    sizes = [t.double().abs() for t in tensors if t.is_floating_point()]
    return any(bool(((t > 0) & (t < 1e4 * torch.finfo(d.a.dtype).tiny)).any()) for t in sizes)


def is_within(d, roundings):
    """Whether the element errs by so many roundings of the result's largest one, or little more
    than PyTorch does somewhere in it."""
    if not d.a.is_floating_point():
        return False
    a, b = (torch.nan_to_num(t.double(), 0, 0, 0) for t in (d.a, d.b))
    off = abs(d.mine - d.other)
    if off <= roundings * torch.finfo(d.a.dtype).eps * max(a.abs().max(), b.abs().max()):
        return True
    if d.ref is None:
        return False
    theirs = torch.nan_to_num((d.b.double() - d.ref.double()).abs(), 0, 0, 0).max()
    return abs(d.mine - d.exact) <= 4 * theirs


def is_value(d, ops='.*', order=None):
    return d.kind == 'value' and re.fullmatch(ops, d.op) and order in (None, d.order)


@explains('clamp-bounds')
def _(d):
    return is_value(d, 'clamp') and d.order and 0 in (d.mine, d.other)


def is_kink(d):
    """Whether the element's operands lie where the derivative jumps, or are NaN; for a gradient of
    other sizes, whether some do."""
    args = list(d.args)
    if d.op.endswith('_backward'):
        args = args[1:]
    x = args[0].double()
    if 'loss' in d.op:
        x = x - args[1].double()
        jumps = {'l1_loss': [0.0]}.get(d.op.removesuffix('_backward'), [args[-1], -args[-1], 0.0])
    elif d.op.startswith('softplus'):
        jumps = [args[2] / args[1]]
    else:
        jumps = args[1:3] if d.op == 'hardtanh' else [0.0]
    near = 8 * torch.finfo(d.a.dtype).eps
    ties = torch.isnan(x)
    for jump in jumps:
        ties |= (x - jump).abs() <= near * max(1.0, abs(jump))
    return bool(ties[d.at]) if ties.shape == d.a.shape else bool(ties.any())


@explains('kinks')
def _(d):
    return is_value(d, 'elu|(smooth_l1|huber|l1)_loss(_backward)?|relu|leaky_relu|hardtanh|'
                    'softplus|(elu|leaky_relu|softplus|threshold)_backward') and d.order and \
        is_kink(d)


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
    return is_value(d, 'gelu|linear_gelu|silu|mish|gelu_backward|silu_backward') and \
        d.mine == 0 and (d.other != d.other or d.exact is not None and d.exact != d.exact)


@explains('torch-remainder')
def _(d):
    return is_value(d, 'remainder|floor_divide') and d.other != d.other and not d.order


@explains('torch-vectors')
def _(d):
    return is_value(d, 'elu_backward|hardtanh|softplus_backward|threshold_backward') and any(
        bool(torch.isnan(t).any()) for t in d.case.tensors() if t.is_floating_point())


@explains('losses-at-infinity')
def _(d):
    return is_value(d, '.*(loss|entropy|logits|kl_div).*', 0) and extreme(d) and \
        (has_left(d) or is_within(d, 8))


@explains('overflow-within')
def _(d):
    return is_value(d, '.*norm|var|std|norm|addmm|mm|bmm|matmul|linear|linear_gelu|'
                    '.*_backward|.*_loss|logsumexp|prod|mean|sum|sum_to_size|lerp|addc.*|erf.*|'
                    'hypot', 0) and extreme(d) and \
        (has_left(d) or is_within(d, 8))


@explains('order-of-products')
def _(d):
    return is_value(d) and d.order > 0 and extreme(d) and (
        has_left(d) or is_within(d, 8) or
        has_tiny(d) and abs(d.mine - d.other) <= 2 ** -10 * abs(d.other))


@explains('halves-in-steps')
def _(d):
    return is_value(d) and d.order and d.a.dtype in (torch.bfloat16, torch.float16) and \
        is_within(d, 8)


@explains('cross-entropy-digits')
def _(d):
    if not is_value(d, 'cross_entropy|cross_entropy_(backward|grad)'):
        return False
    ups = [d.case.upstream, *d.case.second] if d.order else [d.args[0]]
    up = math.prod(max(1.0, largest([t])) for t in ups) if d.op != 'cross_entropy_grad' else 1.0
    return is_within(d, 64) or abs(d.mine - d.other) <= 64 * torch.finfo(d.a.dtype).eps * up


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


NORMS = '(add_layer|layer|rms|group)_norm(_backward)?|norm'


def steepness(d):
    """The largest 1 / sqrt(variance + eps) of a normalisation's rows, or 1 / norm."""
    x = d.args[1 if d.op.endswith('_backward') else 0].detach().double()
    if d.op == 'norm':
        return float(1 / x.abs().clamp(min=1e-30).max()) if x.numel() else 1.0
    if d.op.endswith('_backward'):
        found = d.args[2 if d.op.startswith('rms') else 3].double().abs()
    else:
        if d.op == 'add_layer_norm':
            x = x + d.args[1].double()
        if d.op == 'group_norm':
            rows = x.reshape(x.shape[0] * d.args[1], -1)
        else:
            rows = x.flatten(x.dim() - d.args[2 if d.op == 'add_layer_norm' else 1])
        spread = rows.square().mean(-1) if d.op == 'rms_norm' else rows.var(-1, correction=0)
        found = (spread + d.args[-1]).rsqrt()
    return max(1.0, float(found.max())) if found.numel() else 1.0


@explains('cancellation')
def _(d):
    """Norms and second gradients subtract terms of about the size of the largest number."""
    if not is_value(d) or not d.a.is_floating_point():
        return False
    unit = torch.finfo(d.a.dtype).eps
    if not (d.order == 2 or unit < 1e-9 or
            re.fullmatch(f'{NORMS}|log_softmax(_backward)?|tanh', d.op)):
        return False
    if extreme(d) and (has_left(d) or is_within(d, 64)):
        return True
    most = largest([*d.case.tensors(), d.a])
    for ups in ([d.case.upstream], d.case.second)[:d.order] if d.order else ():
        most *= max(1.0, largest(ups))
    if unit < 1e-9 and abs(d.mine - d.other) <= 1e-9 * abs(d.other) + 1e-12:
        return True
    if extreme(d) and most > 1e12:
        return False
    steep = steepness(d) ** (d.order + 1) if re.fullmatch(NORMS, d.op) else 1
    return abs(d.mine - d.other) <= 64 * steep * unit * max(1.0, most)


@explains('tails-of-gelu')
def _(d):
    if not is_value(d, 'gelu|linear_gelu|gelu_backward'):
        return False
    factors = [d.case.upstream, *d.case.second] if d.order else []
    factors += [d.args[0]] if d.op == 'gelu_backward' else []
    most = math.prod(max([1.0, *t.double().abs().nan_to_num(1, 1, 1).flatten().tolist()])
                     for t in factors)
    return abs(d.mine - d.other) <= 2e-5 * (most + abs(d.other))


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
    if not is_value(d, 'softmax|log_softmax') or d.args[2] is None:
        return False
    x, eps = d.args[0].double(), torch.finfo(d.args[2]).eps
    if d.args[0].is_floating_point() and eps <= torch.finfo(d.args[0].dtype).eps:
        return False
    most = x.abs().max()
    up = max([1.0] + [float(t.double().abs().max()) for t in [d.case.upstream, *d.case.second]
                      if t.numel()]) if d.order else 1.0
    return not most * eps < 0.5 or abs(d.mine - d.other) <= 8 * eps * max(1.0, most) * up


@explains('zero-by-zero')
def _(d):
    return is_value(d) and d.order == 2 and any(
        x is not None and not math.isfinite(x) for x in (d.mine, d.other, d.exact))


@explains('product-of-much')
def _(d):
    return is_value(d, 'prod') and d.order > 0 and d.other != d.other


@explains('nothing-to-reduce')
def _(d):
    return is_value(d) and d.order and any(not t.numel() for t in d.case.tensors()) and \
        (d.mine != d.mine or d.other != d.other)
