"""
The operators that bench/compare.py --suite oracle compares: functions that draw the arguments, in
the order of the schema, and the operator's function in PyTorch (default: the one of the same name).
"""
# SPDX-License-Identifier: MIT
import math
from dataclasses import dataclass
from typing import Callable

import torch
import torch.nn.functional as F

from peers.oracle_draw import ALL, FLOATS, HERE, INTEGERS

aten = torch.ops.aten
REDUCTIONS = ['mean', 'sum', 'none', 'batchmean']  # ts_reduction


@dataclass
class Op:
    """An operator: draw(d) gives its arguments; call(f, *args) passes them to PyTorch's function f,
    which the forms in place and out= replace."""
    name: str
    draw: Callable
    function: Callable = None
    call: Callable = None
    results: int = 1       # number of results that are compared
    sums: bool = False     # results add up many terms: rounding depends on the order
    steps: bool = False    # halves are rounded between the steps of the call
    grad: bool = True
    arithmetic: bool = False  # integer arguments are numbers, not indices
    ulps: int = 4          # allowed error in f32 and f64; twice PyTorch's error is allowed, too
    leaves: Callable = None   # leaves(args): the arguments that have a gradient; None: all of them
    writes: Callable = None   # writes(args): the tensors that the call writes. They follow the
                              # results; PyTorch's function returns both
    ours: Callable = None     # the library's formula, which replaces `function` for rounding
    check: Callable = None    # of a random operator: judges a call instead of PyTorch


OPS = {}
PLACES = {'embedding', 'index_select', 'index_add', 'gather', 'scatter', 'scatter_add', 'one_hot',
          'cross_entropy', 'nll_loss'}  # their integer arguments are indices


def find(name):
    for place in (torch, F, torch.Tensor, aten):
        function = getattr(place, name, None)
        if function is not None:
            return function
    raise LookupError(f'PyTorch has no {name}')


def op(names, draw, **more):
    for name in names.split():
        call = more.get('call') or (lambda f, *args: f(*args))
        function = more.get('function') or find(name)
        more.setdefault('arithmetic', name not in PLACES)
        OPS[name] = Op(name, draw, function, call,
                       **{k: v for k, v in more.items() if k not in ('call', 'function')})


# ------------------------------------------------------------------------------- pointwise ----

def operands(d, n=2, numbers=True, dtypes=None, scalars=(0, 1)):
    """Tensors that broadcast, of one dtype or mixed; one may be a number or a tensor twice."""
    sizes = d.sizes()
    draw_dtype = (lambda: d.pick(dtypes)) if dtypes else d.dtype
    dtype, mixed = draw_dtype(), d.chance(0.35)
    args = []
    for _ in range(n):
        some = sizes if d.chance(0.6) else d.broadcast(sizes)
        args.append(d.tensor(some, draw_dtype() if mixed else dtype))
    if d.chance(0.05):
        args[-1] = args[0]
    if numbers and d.chance(0.35):
        args[d.pick(scalars)] = d.number()
    return args


def binary(d):
    return operands(d, scalars=(1, 1, 1, 0))


op('floor_divide', binary, grad=False)
op('add sub mul div remainder bitwise_and bitwise_or bitwise_xor', binary)
TURNED = {torch.lt: torch.gt, torch.le: torch.ge, torch.gt: torch.lt, torch.ge: torch.le,
          torch.eq: torch.eq, torch.ne: torch.ne}


def compare_call(f, a, b):
    """PyTorch compares numbers on the right only."""
    if isinstance(a, torch.Tensor):
        return f(a, b)
    if f not in TURNED:
        raise TypeError('out')
    return TURNED[f](b, a)


op('eq ne lt le gt ge', binary, call=compare_call)
op('pow', binary, ulps=8)
op('atan2 hypot maximum minimum logical_and logical_or logical_xor',
   lambda d: operands(d, numbers=False))
op('lerp', lambda d: operands(d, 3, scalars=(2,), dtypes=FLOATS), sums=True)
op('addcmul addcdiv', lambda d: [*operands(d, 3, numbers=False), d.number()], sums=True,
   call=lambda f, x, a, b, v: f(x, a, b, value=v))


def bounded(d):
    args = [*operands(d, 1, False), d.number(), d.number()]
    drop = d.pick([None, None, 1, 2])
    if drop:
        args[drop] = None
    return args


op('clamp', bounded)
op('hardtanh', lambda d: [*operands(d, 1, False, FLOATS), float(d.integer(-3, 1)),
                          float(d.integer(1, 4))])


def one(d):
    return operands(d, 1, numbers=False)


op('logical_not bitwise_not isnan isinf isfinite neg abs sign square floor ceil round trunc frac '
   'exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh '
   'erf erfc relu sigmoid tanh', one)


def one_float(d):
    return operands(d, 1, numbers=False, dtypes=ALL if d.chance(0.1) else FLOATS)


op('log_sigmoid', one_float, function=F.logsigmoid)
op('silu mish', one_float)
op('leaky_relu', lambda d: [*one_float(d), d.pick([0.01, 0.0, 0.5, 1.0, 2.0])])
op('elu', lambda d: [*one_float(d), d.pick([1.0, 0.5, 2.0])])
op('softplus', lambda d: [*one_float(d), d.pick([1.0, 0.5, 2.0]), d.pick([20.0, 1.0])])
FORMS = {False: 'none', True: 'tanh'}
op('gelu', lambda d: [*one_float(d), d.flag()], sums=True,
   call=lambda f, x, tanh: f(x, approximate=FORMS[tanh]))


def where(d):
    args = binary(d)
    shape = next(a.shape for a in args if isinstance(a, torch.Tensor))
    return [d.tensor(d.broadcast(list(shape)), torch.bool), *args]


def filled(d):
    x = one(d)[0]
    value = d.tensor([], d.dtype()) if d.chance(0.3) else d.number()
    return [x, d.tensor(d.broadcast(list(x.shape)), torch.bool), value]


op('where', where)
op('masked_fill', filled)

# Operators that compute gradients: their arguments have one dtype, which recording guarantees.


def two(d):
    return operands(d, 2, numbers=False, dtypes=[d.float_dtype()])


op('threshold_backward', lambda d: [*two(d), d.pick([0.0, 1.0])])
op('leaky_relu_backward', lambda d: [*two(d), d.pick([0.01, 0.5])],
   call=lambda f, g, x, s: f(g, x, s, False))
op('elu_backward', lambda d: [*two(d), d.pick([1.0, 0.5])],
   call=lambda f, g, x, a: f(g, a, 1, 1, False, x))
op('sigmoid_backward tanh_backward silu_backward mish_backward', two, sums=True)
def two_dense(d):
    """Two dense tensors: a kernel of oneDNN crashes with other layouts."""
    sizes, dtype = d.sizes(), d.float_dtype()
    return [d.values(sizes, dtype).reshape(sizes) for _ in range(2)]


op('gelu_backward', lambda d: [*two_dense(d), d.flag()], sums=True,
   call=lambda f, g, x, t: f(g, x, approximate=FORMS[t]))
op('softplus_backward', lambda d: [*two(d), d.pick([1.0, 2.0]), d.pick([20.0, 1.0])])


# ------------------------------------------------------------------- copies, views, factories ----

op('copy', one, function=torch.clone)
op('to', lambda d: [*one(d), d.pick(ALL)], function=torch.Tensor.to)
op('full', lambda d: [d.sizes(), d.number(), d.pick(ALL), HERE], grad=False,
   call=lambda f, s, v, t, _: f(s, v, dtype=t))
op('arange', lambda d: [d.integer(-9, 9), d.integer(-9, 20), d.pick([1, 2, 3, -1]),
                        d.pick([*FLOATS, *INTEGERS[:2]]), HERE], grad=False,
   call=lambda f, a, b, s, t, _: f(a, b, s, dtype=t))
op('linspace', lambda d: [float(d.integer(-9, 9)), float(d.integer(-9, 9)), d.length(),
                          d.float_dtype(), HERE], grad=False, sums=True,
   call=lambda f, a, b, n, t, _: f(a, b, n, dtype=t))
op('eye', lambda d: [d.length(), d.length(), d.pick(ALL), HERE], grad=False,
   call=lambda f, n, m, t, _: f(n, m, dtype=t))


def reshaped(d):
    x = one(d)[0]
    sizes = [n for n in x.shape if n != 1]
    if d.chance(0.5) and len(sizes) > 1:
        sizes = [sizes[0] * sizes[1], *sizes[2:]]
    sizes = [sizes[int(i)] for i in d.r.permutation(len(sizes))]
    if d.chance(0.4) and sizes and all(sizes):
        sizes[d.integer(0, len(sizes))] = -1
    if d.chance(0.3):
        sizes.insert(d.integer(0, len(sizes) + 1), 1)
    return [x, sizes]


def with_dim(d):
    x = one(d)[0]
    return [x, d.dim(x.dim())]


def with_two_dims(d):
    x = one(d)[0]
    return [x, d.dim(x.dim()), d.dim(x.dim())]


def permuted(d):
    x = one(d)[0]
    return [x, [int(i) - (x.dim() if d.chance(0.2) else 0) for i in d.r.permutation(x.dim())]]


def expanded(d):
    x = one(d)[0]
    sizes = [d.pick([2, 3, -1]) if n == 1 else n for n in x.shape]
    front = [2] if len(sizes) < 5 and d.chance(0.3) else []
    return [x, [*front, *sizes]]


def squeezed(d):
    x = one(d)[0]
    dims = d.dims(x.dim())
    return [x, dims]


def sliced(d):
    x, dim = with_dim(d)
    return [x, dim, d.integer(-9, 9), d.integer(-9, 9), d.integer(1, 4)]


def selected(d):
    x, dim = with_dim(d)
    return [x, dim, d.integer(-3, 3)]


def diagonal(d):
    x, a, b = with_two_dims(d)
    return [x, d.integer(-3, 4), a, b]


def slice_scatter(d):
    x, dim, start, end, step = sliced(d)
    try:
        part = aten.slice(x, dim, start, end, step)
    except (RuntimeError, IndexError):
        part = x
    dtype = x.dtype if d.chance(0.9) else d.dtype()
    return [x, d.tensor(list(part.shape), dtype), dim, start, end, step]


op('view reshape', reshaped, grad=True)
op('permute', permuted)
op('transpose', with_two_dims)
op('expand', expanded)
op('squeeze', squeezed, call=lambda f, x, dims: f(x) if dims is None else f(x, dims))
op('unsqueeze', lambda d: (lambda x: [x, d.integer(-x.dim() - 1, x.dim() + 1)])(one(d)[0]))
op('slice', sliced, function=aten.slice)
op('select', selected)
op('diagonal', diagonal)
op('slice_scatter', slice_scatter)
op('detach', one, grad=False)
op('tril triu', lambda d: [d.tensor(d.sizes(2 if d.chance(0.95) else 0), d.dtype()),
                           d.integer(-4, 5)])


# ------------------------------------------------------------------------------ reductions ----

def reduced(d):
    x = one(d)[0]
    return [x, d.dims(x.dim()), d.flag()]


def reduce_call(f, x, dims, keep, **more):
    """An absent or empty list of dims means all dims."""
    return f(x, dims if dims else list(range(x.dim())), keepdim=keep, **more)


def prod_call(f, x, dims, keep):
    """PyTorch multiplies along one dim or all."""
    if f is not torch.prod:
        raise TypeError('out')
    if dims is None:
        y = f(x)
        return y.reshape([1] * x.dim()) if keep else y
    for dim in sorted((e % x.dim() for e in dims), reverse=True):
        x = f(x, dim, keep)
    return x


op('sum mean', reduced, call=reduce_call, sums=True)
op('prod', reduced, call=prod_call, sums=True)
op('amax amin all any', reduced, call=reduce_call)
op('logsumexp', reduced, call=reduce_call, sums=True)


def spread_call(f, x, dims, keep, correction):
    return f(x, dims, correction=correction, keepdim=keep)


op('var std', lambda d: [*reduced(d), d.pick([1.0, 0.0, 0.5, 2.0])], call=spread_call, sums=True)
op('norm', lambda d: [*reduced(d), d.pick([2.0, 1.0, math.inf])],
   function=torch.linalg.vector_norm, call=lambda f, x, dims, keep, p: f(x, p, dims, keep),
   sums=True)


def summed_to(d):
    sizes = d.sizes()
    return [d.tensor(sizes, d.dtype()), d.broadcast(sizes)]


op('sum_to_size', summed_to, sums=True)


def along(d):
    x, dim = with_dim(d)
    return [x, dim, d.flag()]


op('argmax argmin', lambda d: (lambda x, k: [x, d.dim(x.dim()) if d.chance(0.7) else None, k])(
    one(d)[0], d.flag()), grad=False)
op('max_dim', along, function=torch.max, results=2)
op('min_dim', along, function=torch.min, results=2)


def cumsum_call(f, x, dim, back):
    if not back:
        return f(x, dim)
    if f is not torch.cumsum:
        raise TypeError('out')
    return f(x.flip(dim), dim).flip(dim)


op('cumsum', lambda d: [*with_dim(d), d.flag()], sums=True, call=cumsum_call)
op('softmax log_softmax', lambda d: [*with_dim(d), d.pick([None, None, *FLOATS])], sums=True,
   call=lambda f, x, dim, t: f(x, dim, dtype=t))


def softmax_gradients(d):
    g = two(d)[0]
    dim = d.integer(-max(g.dim(), 1), max(g.dim(), 1))
    y = torch.softmax(d.values(list(g.shape), torch.float64).reshape(g.shape), dim)
    return [g, y.to(g.dtype), dim]


op('softmax_backward', softmax_gradients, function=aten._softmax_backward_data, sums=True,
   call=lambda f, g, y, dim: f(g, y, dim, y.dtype))
op('log_softmax_backward', lambda d: (lambda g, y, dim: [g, y.log(), dim])(*softmax_gradients(d)),
   function=aten._log_softmax_backward_data, sums=True,
   call=lambda f, g, y, dim: f(g, y, dim, y.dtype))


# -------------------------------------------------------------------------------- products ----

def product_dtype(d):
    return d.float_dtype() if d.chance(0.85) else d.pick(INTEGERS)


def matrices(*shapes):
    """Operands of the shapes that letters name, seldom with one letter that differs."""
    def draw(d):
        length = {letter: d.length() for letter in sorted(set(''.join(shapes)))}
        dtype = product_dtype(d)
        args = []
        for shape in shapes:
            sizes = [length[x] if d.chance(0.995) else d.length() for x in shape]
            args.append(d.tensor(sizes, dtype if d.chance(0.985) else d.dtype()))
        return args
    return draw


def product(d):
    a, b = d.pick([('k', 'k'), ('mk', 'k'), ('k', 'kn'), ('mk', 'kn'), ('bmk', 'kn'),
                   ('bmk', 'bkn'), ('k', 'bkn'), ('abmk', 'bkn'), ('bmk', 'k')])
    x, y = matrices(a, b)(d)
    return [x, y]


def linear(d):
    x = d.pick(['k', 'nk', 'bnk', 'abnk'])
    args = matrices(x, 'ok', 'o')(d)
    if d.chance(0.3):
        args[2] = None
    return args


op('mm', matrices('mk', 'kn'), sums=True)
op('bmm', matrices('bmk', 'bkn'), sums=True)
op('matmul', product, sums=True)
op('addmm', lambda d: [*matrices(d.pick(['mn', 'n', 'mn']), 'mk', 'kn')(d),
                       d.pick([1, 1, 0, 2, 0.5]), d.pick([1, 1, 0, 2, -0.5])], sums=True,
   call=lambda f, x, a, b, beta, alpha: f(x, a, b, beta=beta, alpha=alpha))
op('linear', linear, sums=True)


# ----------------------------------------------------------------------------------- norms ----

def layer(d, bias=True):
    x = d.tensor(d.sizes(1), d.float_dtype())
    n = d.integer(1, min(x.dim(), 3) + 1)
    w, b = (d.tensor(list(x.shape[-n:]), x.dtype) if d.chance(0.7) else None for _ in range(2))
    return [x, n, w, b, d.pick([1e-5, 1e-6])] if bias else [x, n, w, d.pick([1e-5, 1e-6])]


def groups(d):
    sizes = d.sizes(2)
    groups = d.pick([1, 2, 3])
    sizes[1] = groups * d.integer(1, 3)
    x = d.tensor(sizes, d.float_dtype())
    w, b = (d.tensor([sizes[1]], x.dtype) if d.chance(0.7) else None for _ in range(2))
    return [x, groups, w, b, 1e-5]


op('layer_norm', layer, sums=True,
   call=lambda f, x, n, w, b, eps: f(x, list(x.shape[x.dim() - n:]), w, b, eps))
op('rms_norm', lambda d: layer(d, False), sums=True,
   call=lambda f, x, n, w, eps: f(x, list(x.shape[x.dim() - n:]), w, eps))
op('group_norm', groups, function=F.group_norm, sums=True)


# --------------------------------------------------------------------------------- indices ----

def index_dtype(d):
    return d.pick([torch.int64, torch.int64, torch.int32])


def embedding(d):
    weight = d.tensor([d.length(), d.length()], d.float_dtype())
    index = d.between(d.sizes(0, 3), 0, weight.shape[0], index_dtype(d))
    return [weight, index, d.pick([-1, -1, 0]) if weight.shape[0] else -1]


op('embedding', embedding, sums=True,
   call=lambda f, w, i, pad: F.embedding(i, w, None if pad < 0 else pad))


def index_select(d):
    x, dim = with_dim(d)
    n = x.shape[dim] if x.dim() and -x.dim() <= dim < x.dim() else 1
    return [x, dim, d.between([d.length()], 0, n, index_dtype(d))]


def index_add(d):
    x, dim, index = index_select(d)
    sizes = list(x.shape)
    if sizes and -x.dim() <= dim < x.dim():
        sizes[dim] = index.shape[0]
    return [x, dim, index, d.tensor(sizes, x.dtype)]


def gathered(d):
    x, dim = with_dim(d)
    if not -max(x.dim(), 1) <= dim < max(x.dim(), 1):
        dim = 0
    sizes = [d.integer(0, n + 1) for n in x.shape]
    if sizes:
        sizes[dim] = d.length()
    n = x.shape[dim] if x.dim() else 1
    if not n:
        sizes[dim] = 0
    return [x, dim, d.between(sizes, 0, n)]


def scattered(d):
    x, dim, index = gathered(d)
    sizes = [n + (d.integer(0, 3) if d.chance(0.2) else 0) for n in index.shape]
    return [x, dim, index, d.tensor(sizes, x.dtype)]


def distinct(d):
    """Arguments of scatter with distinct indices: for equal indices, PyTorch does not define which
value is stored."""
    x, dim, index, src = scattered(d)
    if index.numel() and index.dim():
        index = index.argsort(dim) % max(x.shape[dim], 1)
        index = index.narrow(dim, 0, min(index.shape[dim], x.shape[dim]))
        index = index.argsort(dim)
    return [x, dim, index, src]


op('index_select', index_select, sums=True)
op('index_add', index_add, sums=True)
op('gather', gathered, sums=True)
op('scatter', distinct)
op('scatter_add', scattered, sums=True)
op('one_hot', lambda d: (lambda n: [d.between(d.sizes(0, 4), 0, n), n])(d.integer(1, 6)),
   grad=False)
op('nonzero', one, grad=False)


def masked(d):
    x = one(d)[0]
    return [x, d.tensor(d.broadcast(list(x.shape)), torch.bool)]


def masked_scatter(d):
    x, mask = masked(d)
    n = max(x.numel(), mask.numel())
    return [x, mask, d.tensor([n + d.integer(0, 2)], x.dtype)]


op('masked_select', masked)
op('masked_scatter', masked_scatter)


def joined(d):
    sizes = d.sizes(1, 4)
    dim = d.dim(len(sizes))
    dtype, mixed = d.dtype(), d.chance(0.2)
    parts = []
    for _ in range(d.integer(1, 4)):
        some = list(sizes)
        if -len(sizes) <= dim < len(sizes):
            some[dim] = d.length()
        parts.append(d.tensor([0] if d.chance(0.03) else some, d.dtype() if mixed else dtype))
    return [parts, dim]


def stacked(d):
    sizes, dtype = d.sizes(0, 4), d.dtype()
    parts = [d.tensor(sizes, dtype) for _ in range(d.integer(1, 4))]
    if d.chance(0.1):
        parts[-1] = parts[0]
    return [parts, d.dim(len(sizes) + 1)]


op('cat', joined)
op('stack', stacked)


# ---------------------------------------------------------------------------------- losses ----

def classes(d):
    sizes = d.sizes(1, 4)
    c = d.integer(1, 9)
    sizes[1 if len(sizes) > 1 else 0] = c
    where = [sizes[0], *sizes[2:]] if len(sizes) > 1 else []
    target = d.between(where, 0, c, index_dtype(d) if d.chance(0.1) else torch.int64)
    ignore = d.pick([-100, -100, 0])
    return d.tensor(sizes, d.float_dtype()), target, d.integer(0, 3), ignore


def class_call(f, x, t, reduction, ignore, *smoothing):
    more = {'label_smoothing': smoothing[0]} if smoothing else {}
    return f(x, t, ignore_index=ignore, reduction=REDUCTIONS[reduction], **more)


op('cross_entropy', lambda d: [*classes(d), d.pick([0.0, 0.0, 0.1, 1.0])], call=class_call,
   sums=True)
op('nll_loss', lambda d: [*classes(d)], call=class_call, sums=True)


def pair(d):
    sizes, dtype = d.sizes(), d.float_dtype()
    return [d.tensor(sizes, dtype), d.tensor(sizes, dtype), d.integer(0, 3)]


def pair_call(f, x, t, reduction, **more):
    return f(x, t, reduction=REDUCTIONS[reduction], **more)


def probabilities(d):
    x, t, reduction = pair(d)
    return [x, torch.sigmoid(t), reduction]


op('mse_loss l1_loss', pair, call=pair_call, sums=True)
op('binary_cross_entropy_with_logits', probabilities, call=pair_call, sums=True,
   function=F.binary_cross_entropy_with_logits)
op('smooth_l1_loss', lambda d: [*pair(d), d.pick([1.0, 0.5, 2.0])], sums=True,
   call=lambda f, x, t, r, beta: pair_call(f, x, t, r, beta=beta))
op('huber_loss', lambda d: [*pair(d), d.pick([1.0, 0.5, 2.0])], sums=True,
   call=lambda f, x, t, r, delta: pair_call(f, x, t, r, delta=delta))


def divergence(d):
    x, t, _ = probabilities(d)
    log = d.flag()
    return [x, t.log() if log else t, d.integer(0, 4), log]


op('kl_div', divergence, function=F.kl_div, sums=True,
   call=lambda f, x, t, r, log: pair_call(f, x, t, r, log_target=log))
