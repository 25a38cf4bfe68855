"""
Operators of the oracle for which PyTorch has no function of the same arguments: gradients that are
operators, attention, steps of optimizers. Formulas are written with PyTorch's functions, so that it
differentiates them.
"""
# SPDX-License-Identifier: MIT
import math
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.adam import adam as torch_adam
from torch.optim.adamw import adamw as torch_adamw
from torch.optim.sgd import sgd as torch_sgd

from peers.oracle_draw import HERE, is_float
from peers.oracle_ops import (REDUCTIONS, aten, classes, diagonal, divergence, index_dtype, layer,
                              linear, one, op, pair, probabilities, reduced, sliced, two, with_dim)
from peers.tessera import TENSORS, Value

HALVES = torch.bfloat16, torch.float16
MEAN, _, NO_REDUCTION, _ = range(len(REDUCTIONS))


def wide_of(dtype):
    """The dtype in which a call computes or keeps state: f32 for halves, else `dtype`."""
    return torch.float32 if dtype in HALVES else dtype


def finite(t):
    """t, or ones if t is not finite everywhere, as large numbers in halves may be."""
    return torch.ones_like(t) if not torch.isfinite(t).all() else t


# ------------------------------------------------------------------------ copies and views ----

op('fill', lambda d: [d.tensor(d.sizes(), d.dtype(), expand=False), d.number()], grad=False,
   function=torch.Tensor.fill_, writes=lambda args: args[:1], results=0)
op('to_device', lambda d: [*one(d), HERE], function=torch.clone, call=lambda f, x, _: f(x))
op('alias', one, function=aten.alias)
op('contiguous', one)


def strided(d):
    """Sizes and strides within the storage of a dense tensor."""
    sizes = d.sizes(1, 3)
    x = d.values(sizes, d.dtype()).reshape(sizes)
    shape, strides, left = [], [], max(x.numel(), 1) - 1
    for _ in range(d.integer(0, 4)):
        stride = d.integer(0, 4)
        n = d.integer(1, min(4, left // stride + 1 if stride else 4) + 1) if x.numel() else 0
        left -= stride * (n - 1) if n else 0
        shape.append(n)
        strides.append(stride)
    if not x.numel() and not shape:
        shape, strides = [0], [1]
    return [x, shape, strides, d.integer(0, left + 1)]


op('as_strided', strided)


def split(d):
    x, dim = with_dim(d)
    n = x.shape[dim] if x.dim() and -x.dim() <= dim < x.dim() else 1
    return [x, max(1, -(-n // d.integer(1, 5))), dim]


op('split', split, results=4)


def slice_gradient(d):
    x, dim, start, end, step = sliced(d)
    try:
        part = aten.slice(x, dim, start, end, step)
    except (RuntimeError, IndexError):
        part = x
    return [d.tensor(list(part.shape), x.dtype), list(x.shape), dim, start, end, step]


def diagonal_gradient(d):
    x, offset, a, b = diagonal(d)
    try:
        part = torch.diagonal(x, offset, a, b)
    except (RuntimeError, IndexError):
        part = x
    return [d.tensor(list(part.shape), x.dtype), list(x.shape), offset, a, b]


op('slice_backward', slice_gradient)
op('diagonal_backward', diagonal_gradient)


def unreduce(g, sizes, dims):
    dims = sorted(k % len(sizes) for k in (dims or range(len(sizes))))
    if g.dim() != len(sizes):
        for k in dims:
            g = g.unsqueeze(k)
    return g.expand(sizes)


def unreduced(d):
    x, dims, keep = reduced(d)
    return [d.tensor(list(torch.sum(x.float(), dims or list(range(x.dim())), keep).shape), x.dtype),
            list(x.shape), dims]


op('unreduce', unreduced, function=unreduce)

# --------------------------------------------------------------------------------- gradients ----


def clamp_gradient(g, x, low, high, is_open):
    inside = torch.ones(torch.broadcast_shapes(g.shape, x.shape), dtype=torch.bool)
    for bound, less, least in ((low, torch.gt, torch.ge), (high, torch.lt, torch.le)):
        if bound is not None:
            inside = inside & (less if is_open else least)(x, bound)
    return torch.where(inside, g, 0)


def bounds(d):
    args = [*two(d), d.number(), d.number(), d.flag()]
    if d.chance(0.5):
        args[d.pick([2, 3])] = None
    return args


op('clamp_backward', bounds, function=clamp_gradient)


def linear_gradient(g, x, w):
    n = math.prod(g.shape[:-1])
    rows = g.reshape(n, g.shape[-1])
    return g @ w, rows.t() @ x.reshape(n, x.shape[-1]), rows.sum(0)


def linear_gradients(d):
    while True:
        x, w, _ = linear(d)
        if x.dtype == w.dtype and x.shape[-1] == w.shape[1] and is_float(x.dtype):
            break
    return [d.tensor([*x.shape[:-1], w.shape[0]], x.dtype), x, w]


op('linear_backward', linear_gradients, function=linear_gradient, results=3, sums=True)


def linear_gelu(x, w, bias, tanh):
    y = F.linear(x, w, bias)
    return F.gelu(y, approximate='tanh' if tanh else 'none'), y


def linear_floats(d):
    while True:
        args = linear(d)
        if all(t is None or is_float(t.dtype) for t in args):
            return [*args, d.flag()]


op('linear_gelu', linear_floats, function=linear_gelu, results=2, sums=True,
   steps=True)


def layer_norm_gradient(g, x, mean, rstd, w, n):
    dims = list(range(x.dim() - n, x.dim()))
    rest = list(range(x.dim() - n))
    wide = wide_of(x.dtype)
    up, q = g.to(wide), g.to(wide) * (1 if w is None else w.to(wide))
    h = (x.to(wide) - mean) * rstd
    dx = rstd * (q - q.mean(dims, True) - h * (q * h).mean(dims, True))
    return [t.to(x.dtype) for t in (dx, (up * h).sum(rest) if rest else up * h,
                                    up.sum(rest) if rest else up)]


def rms_norm_gradient(g, x, rstd, w, n):
    dims = list(range(x.dim() - n, x.dim()))
    rest = list(range(x.dim() - n))
    wide = wide_of(x.dtype)
    up, q = g.to(wide), g.to(wide) * (1 if w is None else w.to(wide))
    h = x.to(wide) * rstd
    dx = rstd * (q - h * (q * h).mean(dims, True))
    return [t.to(x.dtype) for t in (dx, (up * h).sum(rest) if rest else up * h)]


def norm_gradients(statistics):
    def draw(d):
        x, n, w, *_ = layer(d)
        kept = [*x.shape[:x.dim() - n], *[1] * n]
        numbers = [d.tensor(kept, wide_of(x.dtype)) for _ in range(statistics)]
        numbers[-1] = numbers[-1].abs()
        return [d.tensor(list(x.shape), x.dtype), x, *numbers, w, n]
    return draw


op('layer_norm_backward', norm_gradients(2), function=layer_norm_gradient, results=3, sums=True)
op('rms_norm_backward', norm_gradients(1), function=rms_norm_gradient, results=2, sums=True)


def add_layer_norm(x, residual, n, w, b, eps):
    total = x + residual
    y, mean, rstd = torch.native_layer_norm(total, list(x.shape[x.dim() - n:]), w, b, eps)
    wide = wide_of(x.dtype)
    return y, total, mean.to(wide), rstd.to(wide)


def add_layer(d):
    x, *rest = layer(d)
    return [x, d.tensor(list(x.shape), x.dtype), *rest]


op('add_layer_norm', add_layer, function=add_layer_norm, results=2, sums=True,
   steps=True)


def embedding_gradient(d):
    index = d.between(d.sizes(0, 3), 0, n := d.integer(1, 9), index_dtype(d))
    return [d.tensor([*index.shape, d.length()], d.float_dtype()), index, n, d.pick([-1, -1, 0])]


op('embedding_backward', embedding_gradient, sums=True, arithmetic=False,
   function=aten.embedding_dense_backward, call=lambda f, g, i, n, pad: f(g, i, n, pad, False))


def gradient_of(loss, x, t, g, both):
    """Gradients of a loss that can be differentiated once more."""
    x, t = (v if v.requires_grad or not v.is_floating_point() else v.detach().requires_grad_()
            for v in (x, t))
    with torch.enable_grad():
        y = loss(x, t)
        return torch.autograd.grad(y, [x, t] if both else [x], g.to(y.dtype), create_graph=True)


def upstream(d, x, t, reduction):
    return d.tensor(list(t.shape) if reduction == NO_REDUCTION else [], x.dtype)


def pair_gradients(draw):
    def call(d):
        x, t, reduction, *rest = draw(d)
        return [upstream(d, x, x, reduction), x, t, reduction, *rest]
    return call


def pair_gradient(loss, *names):
    def call(g, x, t, reduction, *more):
        more = dict(zip(names, more))
        return gradient_of(lambda a, b: loss(a, b, reduction=REDUCTIONS[reduction], **more),
                           x, t, g, True)
    return call


for name, draw, names in (
        ('mse_loss', pair, ()), ('l1_loss', pair, ()),
        ('smooth_l1_loss', lambda d: [*pair(d), d.pick([1.0, 0.5, 2.0])], ('beta',)),
        ('huber_loss', lambda d: [*pair(d), d.pick([1.0, 0.5, 2.0])], ('delta',)),
        ('binary_cross_entropy_with_logits', probabilities, ()),
        ('kl_div', divergence, ('log_target',))):
    op(f'{name}_backward', pair_gradients(draw), function=pair_gradient(getattr(F, name), *names),
       results=2, sums=True)


def nll_gradient(g, x, t, reduction, ignore):
    return gradient_of(lambda a, b: F.nll_loss(a, b.long(), reduction=REDUCTIONS[reduction],
                                               ignore_index=ignore), x, t, g, False)[0]


def nll_gradients(d):
    x, t, reduction, ignore = classes(d)
    return [upstream(d, x, t, reduction), x, t, reduction, ignore]


op('nll_loss_backward', nll_gradients, function=nll_gradient, sums=True, arithmetic=False)


def entropy_gradient(g, x, t, _lse, reduction, ignore, smoothing):
    """(softmax(x) - smoothed target) g, over the positions that count for a mean."""
    dim, wide = 1 if x.dim() > 1 else 0, wide_of(x.dtype)
    counts = (t != ignore).unsqueeze(dim)
    c = x.shape[dim]
    where = F.one_hot(torch.where(t != ignore, t.long(), 0), c).movedim(-1, dim).to(wide)
    p = torch.softmax(x.to(wide), dim)
    up = g.to(wide).unsqueeze(dim) if reduction == NO_REDUCTION else g.to(wide)
    up = up / counts.sum().clamp(min=1) if reduction == MEAN else up
    dx = (p - (1 - smoothing) * where - smoothing / c) * up
    return torch.where(counts, dx, 0).to(x.dtype)


def entropy_gradients(d):
    x, t, reduction, ignore = classes(d)
    lse = torch.logsumexp(x.to(wide_of(x.dtype)), 1 if x.dim() > 1 else 0)
    return [upstream(d, x, t, reduction), x, t, lse, reduction, ignore, d.pick([0.0, 0.1, 1.0])]


op('cross_entropy_backward', entropy_gradients, function=entropy_gradient, sums=True,
   arithmetic=False, grad=False)  # the part of the gradient through lse is not defined


def entropy_and_gradient(x, t, reduction, ignore, smoothing):
    wide = x.to(wide_of(x.dtype))
    g = torch.ones(list(t.shape) if reduction == NO_REDUCTION else [], dtype=wide.dtype)
    loss = F.cross_entropy(wide, t.long(), reduction=REDUCTIONS[reduction], ignore_index=ignore,
                           label_smoothing=smoothing)
    return entropy_gradient(g, wide, t, None, reduction, ignore, smoothing).to(x.dtype), loss


op('cross_entropy_grad', lambda d: [*classes(d), d.pick([0.0, 0.0, 0.1])], results=2, sums=True,
   function=entropy_and_gradient, grad=False, arithmetic=False)

# --------------------------------------------------------------------------------- attention ----


def visible_of(q, k, mask, window):
    """(…, Sq, Sk): the keys that each row sees, and the addends of scores."""
    rows, keys = q.shape[2], k.shape[2]
    gap = torch.arange(keys) - torch.arange(rows).unsqueeze(1) - (keys - rows)
    left, right = window or (-1, -1)
    seen = ((gap >= -left) | (left < 0)) & ((gap <= right) | (right < 0))
    seen = seen.expand(q.shape[0], q.shape[1], rows, keys)
    if mask is None:
        return seen, 0
    if mask.dtype == torch.bool:
        return seen & mask, 0
    return seen & (mask != -math.inf), torch.where(mask != -math.inf, mask, 0)


def scores(q, k, mask, scale, window, softcap):
    """Scores with -inf where hidden, in the dtype that they are computed in."""
    wide = wide_of(q.dtype)
    seen, added = visible_of(q, k, mask, window)
    heads = q.shape[1] // max(k.shape[1], 1)
    t = q.to(wide) @ k.to(wide).repeat_interleave(heads, 1).transpose(2, 3) * scale
    if softcap:
        t = softcap * torch.tanh(t / softcap)
    return torch.where(seen, t + added, -math.inf), seen


def attention(q, k, v, mask, _lists, _most, scale, window, softcap, _dropout, by_lse=False):
    """PyTorch's attention if it has the options, else the formula. Hidden scores are -inf only in
    rows that see a key. by_lse: computes the gradient as P (dP - sum(grad out)), as in
    docs/attention.md."""
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    s, seen = scores(q, k, mask, scale, window, softcap)
    some = seen.any(3, True)
    lse = torch.logsumexp(torch.where(some, s, 0), 3)
    lse = torch.where(some.squeeze(3), lse, -math.inf)
    if by_lse or softcap or not (q.numel() and k.numel() and v.numel()):
        heads = q.shape[1] // max(k.shape[1], 1)
        constant = lse.detach().unsqueeze(3)
        p = torch.exp(torch.where(some, s - constant, 0)) if by_lse else \
            torch.softmax(torch.where(some, s, 0), 3)
        y = p @ v.to(p.dtype).repeat_interleave(heads, 1)
        if by_lse:
            y = y * torch.exp(torch.where(some, constant - lse.unsqueeze(3), 0))
    else:
        _, added = visible_of(q, k, mask, window)
        bias = torch.where(seen | ~some, torch.zeros([], dtype=q.dtype) + added, -math.inf)
        with sdpa_kernel(SDPBackend.MATH):  # which has second gradients
            y = F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), scale=scale,
                                               enable_gqa=True)
    return torch.where(some, y, 0).to(q.dtype), lse.to(wide_of(q.dtype))


def attended(d):
    """Arguments without packed sequences and dropout. Queries and keys exclude special values: a
    score with a rounding error of 1 or more has no defined result."""
    kind, d.kind = d.kind, 'whole' if d.kind == 'whole' else 'plain'
    b, g, s, t, depth, e = (d.pick([1, 1, 2, 3, 5, 8, 17]) for _ in range(6))
    if d.chance(0.05):
        b, t = d.pick([(0, t), (b, 0)])
    heads, dtype = g * d.pick([1, 1, 2, 3]), d.float_dtype()
    q, k = (d.tensor(sizes, dtype) for sizes in ([b, heads, s, depth], [b, g, t, depth]))
    d.kind = 'large' if kind == 'large' else d.kind
    v = finite(d.tensor([b, g, t, e], dtype))
    mask, d.kind = None, 'plain'
    if d.chance(0.5):
        sizes = d.broadcast([b, heads, s, t])
        mask = d.tensor(sizes, d.pick([torch.bool, torch.bool, dtype]))
        if mask.dim() > 4 or any(n not in (1, m) for n, m in zip(reversed(mask.shape),
                                                                 (t, s, heads, b))):
            mask = None
        elif is_float(mask.dtype) and d.chance(0.5):
            mask = torch.where(mask > 0, mask, -math.inf)
    window = d.pick([None, None, [-1, 0], [-1, 0], [d.integer(-1, 4), d.integer(-1, 4)]])
    return [q, k, v, mask, None, None, d.pick([None, None, 0.5]), window,
            d.pick([0.0, 0.0, 0.0, 2.0]), 0.0]


op('scaled_dot_product_attention', attended, function=attention,
   ours=partial(attention, by_lse=True), results=2, sums=True, leaves=lambda args: args[:3])


def attention_gradient(grad, grad_lse, q, k, v, out, lse, mask, _lists, _most, scale, window,
                       softcap, *_):
    """The formulas of docs/attention.md."""
    wide = wide_of(q.dtype)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    s, seen = scores(q, k, mask, scale, window, 0)
    heads = q.shape[1] // max(k.shape[1], 1)
    many = [t.to(wide).repeat_interleave(heads, 1) for t in (k, v)]
    grad, out = grad.to(wide), out.to(wide)
    slope = 1
    if softcap:
        s, _ = scores(q, k, mask, scale, window, softcap)
        u = torch.tanh(q.to(wide) @ many[0].transpose(2, 3) * scale / softcap)
        slope = 1 - u * u
    seen = seen & (lse != -math.inf).unsqueeze(3)
    p = torch.where(seen, torch.exp(s - lse.unsqueeze(3)), 0)
    delta = (grad * out).sum(3) - (0 if grad_lse is None else grad_lse)
    dt = torch.where(seen, p * (grad @ many[1].transpose(2, 3) - delta.unsqueeze(3)) * slope, 0)

    def of_groups(t):
        return t.reshape(k.shape[0], k.shape[1], heads, *t.shape[2:]).sum(2)
    dq, dk = scale * dt @ many[0], scale * dt.transpose(2, 3) @ q.to(wide)
    dv = p.transpose(2, 3) @ grad
    return [t.to(q.dtype) for t in (dq, of_groups(dk), of_groups(dv))]


def attention_gradients(d):
    args = attended(d)
    out, lse = attention(*(a.double() if isinstance(a, torch.Tensor) and is_float(a.dtype) else a
                           for a in args))
    dtype, wide = args[0].dtype, wide_of(args[0].dtype)
    grad_lse = d.tensor(list(lse.shape), wide) if d.chance(0.3) else None
    return [d.tensor(list(out.shape), dtype), grad_lse, *args[:3], out.to(dtype), lse.to(wide),
            *args[3:], 0, 0]


op('scaled_dot_product_attention_backward', attention_gradients, function=attention_gradient,
   results=3, sums=True, grad=False)

# -------------------------------------------------------------------------------- optimizers ----


def parameters(d, lists, positive=()):
    """Lists of tensors of the same sizes, of one dtype, or halves with a state of f32."""
    d.kind = 'plain' if d.kind == 'special' else d.kind
    dtype = d.float_dtype()
    state = wide_of(dtype) if d.chance(0.5) else dtype
    shapes = [d.sizes(0, 3) for _ in range(d.integer(1, 4))]
    made = []
    for i in range(lists):
        some = [finite(d.tensor(s, dtype if i < 2 else state, expand=False)) for s in shapes]
        made.append([t.abs() for t in some] if i in positive else some)
    return made


def guard(d, n):
    if d.chance(0.7):
        return [None, None]
    return [torch.tensor(float(d.flag())),
            [torch.tensor(0.0) for _ in range(n)]]


def grad_scale(d):
    return d.pick([None, None, torch.tensor(0.25)])


def stepped(call, lists, found, skipped, scale):
    """Runs call(lists) on copies in the dtype that a step is computed in, and rounds the written
    tensors."""
    if found is not None and found.item():
        return [*(t for part in lists[:1] + lists[2:] for t in part), *(s + 1 for s in skipped)]
    work = [[t.to(wide_of(t.dtype)).clone() for t in part] for part in lists]
    if scale is not None:
        work[1] = [g * scale for g in work[1]]
    call(*work)
    return [*(w.to(t.dtype) for part, now in zip(lists[:1] + lists[2:], work[:1] + work[2:])
              for t, w in zip(part, now)), *(skipped or [])]


NO_TENSORS = Value(TENSORS, count=0)


def adamw(params, grads, averages, squares, steps, lr, beta1, beta2, eps, decay, decoupled, found,
          skipped, scale):
    def call(p, g, m, v):
        step = torch_adamw if decoupled else torch_adam
        step(p, g, m, v, [], [torch.tensor(n - 1.0, dtype=torch.float64) for n in steps],
             foreach=False, amsgrad=False, beta1=beta1, beta2=beta2, lr=lr, weight_decay=decay,
             eps=eps, maximize=False)
    return stepped(call, [params, grads, averages, squares], found, skipped, scale)


def sgd(params, grads, buffers, steps, lr, momentum, dampening, decay, nesterov, found, skipped,
        scale):
    def call(p, g, b=None):
        held = [None if not b or n == 1 else t for t, n in zip(b or p, steps)]
        torch_sgd(p, g, held, foreach=False, weight_decay=decay, momentum=momentum, lr=lr,
                            dampening=dampening, nesterov=nesterov, maximize=False)
        for t, h in zip(b or (), held):
            t.copy_(h)
    lists = [params, grads, buffers] if momentum else [params, grads]
    return stepped(call, lists, found, skipped, scale)


def adamw_step(d):
    lists = parameters(d, 4, positive=(3,))
    n = len(lists[0])
    return [*lists, [d.integer(1, 9) for _ in range(n)], d.pick([0.1, 0.001]), d.pick([0.9, 0.0]),
            d.pick([0.999, 0.9]), d.pick([1e-8, 1e-3]), d.pick([0.0, 0.1]), d.flag(), *guard(d, n),
            grad_scale(d)]


def sgd_step(d):
    lists, momentum = parameters(d, 3), d.pick([0.0, 0.9])
    n, nesterov = len(lists[0]), bool(momentum) and d.flag()
    dampening = 0.0 if nesterov else d.pick([0.0, 0.1])
    return [*lists[:2], lists[2] if momentum else NO_TENSORS, [d.integer(1, 4) for _ in range(n)],
            d.pick([0.1, 0.001]), momentum, dampening, d.pick([0.0, 0.1]), nesterov, *guard(d, n),
            grad_scale(d)]


def members(*places):
    def writes(args):
        return [t for i in places if isinstance(args[i], list) for t in args[i]]
    return writes


op('adamw', adamw_step, function=adamw, results=0, writes=members(0, 2, 3, 12), sums=True,
   grad=False)
op('sgd', sgd_step, function=sgd, results=0, writes=members(0, 2, 10), sums=True, grad=False)


def listed(d):
    return parameters(d, 1)[0]


def total_norm(tensors):
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return torch.linalg.vector_norm(torch.cat([t.to(dtype).flatten() for t in tensors]))


def factor(d):
    x = d.pick([0.5, 3.0, 1e-3, 0.1])
    return torch.tensor(x) if d.chance(0.4) else x


def scaled(tensors, by):
    return [(t.to(wide_of(t.dtype)) * by).to(t.dtype) for t in tensors]


def unscaled(tensors, by):
    made = scaled(tensors, by)
    return [torch.tensor(float(not all(torch.isfinite(t).all() for t in made))), *made]


def clipped(tensors, norm, most):
    return scaled(tensors, torch.clamp(most / (norm + 1e-6), max=1.0))


op('global_norm', lambda d: [listed(d)], function=total_norm, sums=True, grad=False)
op('scale', lambda d: [listed(d), factor(d)], function=scaled, results=0, writes=members(0),
   grad=False)
op('unscale', lambda d: [listed(d), factor(d)], function=unscaled, writes=members(0), grad=False)
op('clip_norm', lambda d: (lambda x: [x, total_norm(x), d.pick([0.5, 1.0, 1e6])])(listed(d)),
   function=clipped, results=0, writes=members(0), grad=False)
