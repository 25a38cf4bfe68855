"""
Classes of intended differences from PyTorch. Each has a line with its reason in
docs/differences.md, under the same name; a class without a line, or a line without a class, is an
error.
"""
# SPDX-License-Identifier: MIT
import contextlib
import math
import re

import numpy
import torch

CLASSES = {}
FOUR = 4  # denormal intermediates that least-numbers allows


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
    """Exits with an error unless each class has a line and each line has a class."""
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
    """Adds the class of calls that only the library refuses, with a message that matches `ours`."""
    CLASSES[name] = lambda d: d.kind == 'refused' and bool(re.search(ours, d.ours.refusal))


def accepted(name, theirs):
    """Adds the class of calls that only PyTorch refuses, with a message that matches `theirs`."""
    CLASSES[name] = lambda d: d.kind == 'accepted' and bool(re.search(theirs, d.theirs.refusal))


refused('out-dtype', "'out': expected dtype")
refused('out-sizes', "'out': expected sizes")
refused('out-expanded', "'out': expected distinct elements")
refused('in-place-shared', 'shares? .*memory|overlap')
refused('in-place-saved', 'was written in place since')
refused('in-place-views', 'in place')
refused('integers', 'expected a floating dtype|not defined for dtype|'
        'expected a dtype that has a kernel .* got bool|'
        'expected a whole number|expected an integer for self')
refused('cat-of-nothing', "cat: argument 'dim'")
refused('one-dtype', 'expected dtype .* (as argument|got)')
refused('numbers-that-do-not-fit', 'expected a number that fits')
refused('bias-of-one', "argument 'bias': expected sizes")
refused('indices-of-nothing', 'expected indices from 0 to -1')
accepted('torch-lacks', 'not implemented|does not support|not supported|Unsupported memory')
accepted('torch-refuses-a-mix', 'but got dtype|but found dtype|expected .*dtype|same dtype|'
         "can't be cast|data ?type")
accepted('torch-refuses-integers', 'Integer division|to be Long or Byte|must be .*Long|floating|'
         'integral')
accepted('numbers-overflow', 'without overflow|outside the representable')
accepted('scatter-src-larger', 'Scatter.*invalid gradient')
accepted('minus-one-of-nothing', 'unspecified dimension size -1')
accepted('group-norm-of-little', 'Expected more than 1 value per channel|Expected HxW')
accepted('large-windows-of-volumes', 'input image .* smaller than kernel size')
accepted('empty-transposed', 'Output size is too small|Only zero batch or zero channel')
accepted('torch-fails', 'primitive descriptor|must match the size of tensor b|'
         'match the broadcast shape|grad_input must be')


@explains('torch-drops')
def _(d):
    return d.kind == 'absent' and d.b is None and d.op in ('layer_norm', 'add_layer_norm') and \
        d.order == 2


@explains('truth-of-u8')
def _(d):
    return d.kind == 'dtype' and d.op in ('all', 'any') and str(d.b.dtype) == 'torch.uint8'


@explains('sum-to-size-dtype')
def _(d):
    return d.kind == 'dtype' and d.op == 'sum_to_size'


# ------------------------------------------------------------------------------------ values ----

def extreme(d):
    """True if a product or quotient of two of the case's numbers may leave the range of a dtype: a
    number is not finite, or close to the square root of the range's ends or beyond it."""
    def is_extreme(t):
        info = torch.finfo(t.dtype if t.is_floating_point() else torch.float32)
        size = t.detach().double().abs()
        far = (size > math.sqrt(info.max) / 4) | (size < math.sqrt(info.tiny) * 4) & (size > 0)
        return bool((far | ~torch.isfinite(size)).any())
    more = [d.case.upstream, *d.case.second] if d.order else []
    plain = [x for x in d.args if isinstance(x, (int, float)) and (x != x or abs(x) > 1e4)]
    return bool(plain) or any(map(is_extreme, [*d.case.tensors(), *more]))


def not_finite(d):
    """True if the element is not finite on one side or both. Underflow belongs to least-numbers."""
    return d.a.is_floating_point() and not (math.isfinite(d.mine) and math.isfinite(d.other))


def is_value(d, ops='.*', order=None):
    return d.kind == 'value' and re.fullmatch(ops, d.op) and order in (None, d.order)


@explains('clamp-bounds')
def _(d):
    return is_value(d, 'clamp') and d.order and 0 in (d.mine, d.other)


def is_kink(d):
    """True if the element's operand is at a jump of the derivative, or NaN. If operand and gradient
    have different sizes: if any element of the operand is."""
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
    return is_value(d, 'gelu|linear_gelu|silu|mish|(gelu|silu|mish)_backward') and \
        d.mine == 0 and (d.other != d.other or d.exact is not None and d.exact != d.exact)


@explains('torch-remainder')
def _(d):
    return is_value(d, 'remainder|floor_divide') and d.other != d.other and not d.order


@explains('torch-hyperbolic')
def _(d):
    """PyTorch overflows although the dtype holds the result, in f64 too: math is the reference."""
    if not is_value(d, 'sinh|cosh', 0) or math.isfinite(d.other) or not math.isfinite(d.mine):
        return False
    x = d.args[0][d.at].item()
    with contextlib.suppress(OverflowError):
        right = getattr(math, d.op)(x)
        return abs(x) > math.log(torch.finfo(d.a.dtype).max) and \
            abs(d.mine - right) <= 4 * torch.finfo(d.a.dtype).eps * abs(right)
    return False


@explains('torch-vectors')
def _(d):
    return is_value(d, 'elu_backward|hardtanh|softplus_backward|threshold_backward') and any(
        bool(torch.isnan(t).any()) for t in d.case.tensors() if t.is_floating_point())


@explains('losses-at-infinity')
def _(d):
    """A product or quotient of two arguments may leave the range, and the element did on one side
    at least. Which intermediates overflow depends on the order of operations."""
    return is_value(d, '.*(loss|entropy|logits|kl_div).*', 0) and extreme(d) and \
        not_finite(d)


@explains('overflow-within')
def _(d):
    """As in losses-at-infinity."""
    return is_value(d, '.*norm|var|std|norm|addmm|mm|bmm|matmul|linear|linear_gelu|'
                    '.*_backward|.*_loss|logsumexp|prod|mean|sum|sum_to_size|lerp|addc.*|erf.*|'
                    'hypot', 0) and extreme(d) and \
        not_finite(d)


@explains('order-of-products')
def _(d):
    """As in losses-at-infinity, for gradients: upstream gradients are factors too."""
    return is_value(d) and d.order > 0 and extreme(d) and not_finite(d)


@explains('integers-beyond-halves')
def _(d):
    """An operand that f32 holds but f16 does not; or an integer factor that is rounded to the half
    before the result is rounded, which makes two errors of eps / 2."""
    def beyond(x):
        if isinstance(x, torch.Tensor):
            return not x.is_floating_point() and x.numel() == 1 and beyond(x.item())
        return isinstance(x, (int, float)) and 65504 < abs(x) < math.inf
    if not is_value(d, 'mul|div|add|sub', 0) or d.a.dtype not in (torch.float16, torch.bfloat16):
        return False
    eps = torch.finfo(d.a.dtype).eps
    held = all(t.is_floating_point() or bool((t.to(d.a.dtype).double() == t.double()).all())
               for t in d.case.tensors())
    twice = d.exact is not None and not held and d.op in ('mul', 'div') and \
        abs(d.mine - d.exact) <= eps * (1 + eps) * abs(d.exact)
    return twice or d.a.dtype == torch.float16 and any(map(beyond, d.args))


@explains('floor-divide-numbers')
def _(d):
    return is_value(d, 'floor_divide') and str(d.a.dtype) in ('torch.bfloat16', 'torch.float16')


def range_of(d, t, divides=False):
    """(least, largest) factor that a tensor contributes to the element, 1 included. A pointwise op
    uses the tensor's value at the element, other ops all values. divides: as divisors, too."""
    if t.shape == d.a.shape and not d.case.op.sums:
        t = t[d.at]
    sizes = torch.nan_to_num(t.detach().double().abs(), 1, 1, 1)
    sizes = sizes[sizes > 0].clamp(1e-320, 1e308)  # so that reciprocals are finite
    if not sizes.numel():
        return 1.0, 1.0
    low, high = min(1.0, float(sizes.min())), max(1.0, float(sizes.max()))
    return (min(low, 1 / high), max(high, 1 / low)) if divides else (low, high)


@explains('least-numbers')
def _(d):
    """A denormal intermediate has an error of up to half of the least number. The factors after it
    multiply this error: arguments, results and upstream gradients, and in a gradient of a pointwise
    op or prod also divisors. Allows FOUR such intermediates, each multiplied by all factors. Holds
    only if a product of factors or the result is small enough, and the sign does not change.
    PyTorch's sigmoid, 1 / (1 + exp(-x)), underflows below 1 / max, about tiny."""
    if not is_value(d) or not d.a.is_floating_point():
        return False
    info = torch.finfo(d.a.dtype)
    sigmoid = re.fullmatch('(mish|silu)(_backward)?', d.op)
    off, least = abs(d.mine - d.other), info.tiny * (1 if sigmoid else info.eps)
    few = FOUR * least
    if d.op in ('std', 'norm') and not d.order:  # the root of a sum of squares
        few = math.sqrt(few * d.args[0].numel())
    if off <= few:
        return True
    if not (d.order or d.op.endswith('_backward') or d.op == 'prod') or not d.case.multiplies or \
            re.fullmatch('(nll|l1)_loss.*|where|masked.*', d.op):  # their slopes are constants
        return False
    divides = not d.case.op.sums or d.op == 'prod'
    ranges = [range_of(d, t) for t in d.case.upstreams(d.order)]
    ranges += [range_of(d, t, divides) for t in d.case.tensors()] * max(1, d.order)
    if divides and d.case.results:  # a factor of the gradient of exp, for example
        ranges.append(range_of(d, d.case.results[0]))
    ranges += [(min(1.0, abs(x) or 1.0), max(1.0, abs(x))) for x in d.args
               if isinstance(x, (int, float)) and x == x]
    low, high = (math.prod(r[k] for r in ranges) for k in (0, 1))
    least_side = min(abs(d.mine), abs(d.other))
    is_small = min(low, least_side) < info.tiny / info.eps
    same_sign = (d.mine > 0) == (d.other > 0) or least_side <= few  # 0 has no sign
    return is_small and same_sign and off <= few * high


@explains('angle-of-zero')
def _(d):
    return is_value(d, 'atan2|hypot') and d.order > 0 and d.mine != d.mine


@explains('pow-of-zero')
def _(d):
    return is_value(d, 'pow') and d.order > 0 and d.other != d.other


@explains('divergence-of-zero')
def _(d):
    return is_value(d, 'kl_div(_backward)?') and abs(d.mine) == math.inf


@explains('factors-of-integers')
def _(d):
    return is_value(d, 'addcmul|addcdiv') and d.order > 0 and not all(
        t.is_floating_point() for t in d.case.tensors())


@explains('exponents-are-rounded')
def _(d):
    """The exponent is rounded to f32, as are those of the gradients, smaller by 1 and by 2."""
    number = d.args[1] if is_value(d, 'pow') and d.a.dtype != torch.float64 else None
    return isinstance(number, (int, float)) and any(
        float(numpy.float32(number - k)) != number - k for k in range(d.order + 1))


@explains('large-powers')
def _(d):
    return is_value(d, 'pow') and d.a.dtype != torch.float64 and \
        abs(d.mine - d.other) <= 2 ** -17 * abs(d.other)


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


@explains('torch-strided-batch-norm')
def _(d):
    return is_value(d, 'batch_norm') and d.order > 0 and d.agrees_for_copies()
