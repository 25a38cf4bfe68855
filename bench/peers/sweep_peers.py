"""
The fastest calls of PyTorch for drawn cases of operators whose result the oracle compares with a
formula or not at all. A function of PEERS takes the operator's arguments and returns a call without
arguments, or several by name; calls that raise are omitted.
"""
# SPDX-License-Identifier: MIT
import math
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from peers.oracle_draw import HERE
from peers.oracle_ops import aten
from peers.sweep_draw import OPS, seen_mask

ATEN = [1, 2, 0]      # PyTorch's number of each ts_reduction
REDUCTIONS = ['mean', 'sum', 'none']
BACKENDS = {'flash': SDPBackend.FLASH_ATTENTION, 'cudnn': SDPBackend.CUDNN_ATTENTION,
            'efficient': SDPBackend.EFFICIENT_ATTENTION, 'math': SDPBackend.MATH}
MATH_BYTES = 1 << 28  # with larger scores, the backend 'math' is omitted
RANDOM = {'uniform', 'normal', 'randint', 'randperm', 'bernoulli', 'multinomial', 'dropout',
          'dropout_backward'}
PEERS = {}


def peer(names):
    def add(make):
        for name in names.split():
            PEERS[name] = partial(make, name) if ' ' in names else make
        return make
    return add


def eager(name, args, device):
    """The call that the oracle makes."""
    op = OPS[name]
    makes = args and args[-1] is HERE and name != 'to_device'
    return partial(op.call, partial(op.function, device=device) if makes else op.function, *args)


def calls(name, args, device):
    """PyTorch's calls for an operator, by name."""
    make = PEERS.get(name) or getattr(OPS[name], 'prepare', None)
    if make is None:
        return {'eager': eager(name, args, device)}
    found = make(*args) if name not in RANDOM else make(*args, device)
    return found if isinstance(found, dict) else {'eager': found}


# ------------------------------------------------------------------------------------ random ----

PEERS['uniform'] = lambda sizes, low, high, dtype, _, device: (
    lambda: torch.empty(sizes, dtype=dtype, device=device).uniform_(low, high))
PEERS['normal'] = lambda sizes, mean, std, dtype, _, device: (
    lambda: torch.empty(sizes, dtype=dtype, device=device).normal_(mean, std))
PEERS['randint'] = lambda sizes, low, high, dtype, _, device: (
    lambda: torch.randint(low, high, sizes, dtype=dtype, device=device))
PEERS['randperm'] = lambda n, dtype, _, device: (
    lambda: torch.randperm(n, dtype=dtype, device=device))
PEERS['multinomial'] = lambda p, n, again, device: partial(torch.multinomial, p, n, again)
PEERS['dropout'] = lambda x, p, device: partial(F.dropout, x, p)


@peer('bernoulli')
def bernoulli(p, sizes, dtype, _, device):
    if isinstance(p, torch.Tensor):
        return partial(torch.bernoulli, p)
    return lambda: torch.empty(sizes, dtype=dtype, device=device).bernoulli_(p)


@peer('dropout_backward')
def dropout_backward(grad, p, _seed, _offset, device):
    mask = torch.rand(grad.shape, device=device) > p  # as a forward pass saves it
    return partial(aten.native_dropout_backward, grad, mask, 1 / (1 - p))


# ------------------------------------------------------------------------------------- norms ----

@peer('layer_norm_backward')
def layer_norm_backward(g, x, mean, rstd, w, n):
    last = list(x.shape[x.dim() - n:])
    one = torch.ones(last, dtype=x.dtype, device=x.device) if w is None else w
    # the kernel reads statistics as if they were contiguous
    return {'aten': partial(aten.native_layer_norm_backward, g, x, last, mean.contiguous(),
                            rstd.contiguous(), one, one, [True] * 3),
            'formula': eager('layer_norm_backward', [g, x, mean, rstd, w, n], None)}


@peer('rms_norm_backward')
def rms_norm_backward(g, x, rstd, w, n):
    last = list(x.shape[x.dim() - n:])
    one = torch.ones(last, dtype=x.dtype, device=x.device) if w is None else w
    return {'aten': partial(aten._fused_rms_norm_backward, g, x, last, rstd.contiguous(), one,
                            [True] * 2),
            'formula': eager('rms_norm_backward', [g, x, rstd, w, n], None)}


@peer('clamp_backward')
def clamp_backward(g, x, low, high, is_open):
    if is_open and low is not None and high is not None and g.shape == x.shape:
        return partial(aten.hardtanh_backward, g, x, low, high)
    bounds = [(less if is_open else least, bound) for less, least, bound in
              ((torch.gt, torch.ge, low), (torch.lt, torch.le, high)) if bound is not None]

    def call():
        inside = [function(x, bound) for function, bound in bounds]
        if not inside:
            return g.clone()
        return torch.where(inside[0] if len(inside) == 1 else inside[0] & inside[1], g, 0)
    return call


# ------------------------------------------------------------------------------------ losses ----

@peer('mse_loss_backward smooth_l1_loss_backward huber_loss_backward')
def pair_backward(name, g, x, t, reduction, *more):
    function = getattr(aten, name)

    def call():
        dx = function(g, x, t, ATEN[reduction], *more)
        return dx, -dx
    return call


def per_element(g, x, reduction):
    return g / x.numel() if reduction == 0 else g


@peer('l1_loss_backward')
def l1_loss_backward(g, x, t, reduction):
    def call():
        dx = torch.sign(x - t) * per_element(g, x, reduction)
        return dx, -dx
    return call


@peer('binary_cross_entropy_with_logits_backward')
def logits_backward(g, x, t, reduction):
    def call():
        by = per_element(g, x, reduction)
        return (torch.sigmoid(x) - t) * by, x * -by
    return call


@peer('kl_div_backward')
def kl_div_backward(g, x, t, reduction, log):
    def call():
        by = per_element(g, x, reduction)
        if reduction == 3:
            by = g / x.shape[0] if x.dim() else g
        if log:
            p = t.exp()
            return -p * by, p * (t - x + 1) * by
        return -t * by, (t.log() - x + 1) * by
    return call


@peer('nll_loss_backward')
def nll_loss_backward(g, x, t, reduction, ignore):
    """The call gets the number of positions that are not ignored, as from a forward pass. PyTorch
    has only the form for images for (rows, classes, positions)."""
    count = (t != ignore).sum().to(x.dtype)
    if x.dim() == 2:
        return partial(aten.nll_loss_backward, g, x, t, None, ATEN[reduction], ignore, count)
    g = g.unsqueeze(1).contiguous() if g.dim() else g
    image, places = x.unsqueeze(2).contiguous(), t.unsqueeze(1).contiguous()
    return lambda: aten.nll_loss2d_backward(g, image, places, None, ATEN[reduction], ignore,
                                            count).squeeze(2)


@peer('cross_entropy_backward')
def cross_entropy_backward(g, x, t, _lse, reduction, ignore, smoothing):
    """Reads the log-probabilities that a forward pass saves; with smoothing, uses autograd."""
    if smoothing:
        y = x.detach().requires_grad_()
        with torch.enable_grad():
            loss = F.cross_entropy(y, t, reduction=REDUCTIONS[reduction], ignore_index=ignore,
                                   label_smoothing=smoothing)
        return lambda: torch.autograd.grad(loss, y, g.to(loss.dtype), retain_graph=True)[0]
    log_p = torch.log_softmax(x, 1)
    first = nll_loss_backward(g, log_p, t, reduction, ignore)
    return lambda: aten._log_softmax_backward_data(first(), log_p, 1, x.dtype)


@peer('cross_entropy_grad')
def cross_entropy_grad(x, t, reduction, ignore, smoothing):
    y = x.detach().requires_grad_()
    shape = list(t.shape) if reduction == 2 else []
    one = torch.ones(shape, dtype=x.dtype, device=x.device)

    def call():
        with torch.enable_grad():
            loss = F.cross_entropy(y, t, reduction=REDUCTIONS[reduction], ignore_index=ignore,
                                   label_smoothing=smoothing)
            return torch.autograd.grad(loss, y, one)[0], loss.float() if x.dtype in (
                torch.bfloat16, torch.float16) else loss
    return call


# ------------------------------------------------------------------------------------- optim ----

@peer('adamw')
def adamw(params, grads, averages, squares, _steps, lr, beta1, beta2, eps, decay, *_):
    steps = [torch.tensor(1.0, device=params[0].device) for _ in params]
    return partial(torch._fused_adamw_, params, grads, averages, squares, [], steps, lr=lr,
                   beta1=beta1, beta2=beta2, weight_decay=decay, eps=eps, amsgrad=False,
                   maximize=False)


@peer('sgd')
def sgd(params, grads, buffers, _steps, lr, momentum, dampening, decay, *_):
    return partial(torch._fused_sgd_, params, grads, buffers if momentum else [],
                   weight_decay=decay, momentum=momentum, lr=lr, dampening=dampening,
                   nesterov=False, maximize=False, is_first_step=False)


@peer('global_norm')
def global_norm(tensors):
    wide = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
    return lambda: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors, 2,
                                                                            dtype=wide)))


@peer('scale')
def scale(tensors, by):
    return partial(torch._foreach_mul_, tensors, by)


@peer('unscale')
def unscale(tensors, by):
    found = torch.zeros(1, device=tensors[0].device)
    factor = torch.tensor(by, device=tensors[0].device)

    def call():
        torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, factor)
        return found.squeeze(0)
    return call


@peer('clip_norm')
def clip_norm(tensors, norm, most):
    return lambda: torch._foreach_mul_(tensors, torch.clamp(most / (norm + 1e-6), max=1.0))


# --------------------------------------------------------------------------------- attention ----

def bias_of(q, k, mask, window):
    """{suffix of the call's name: arguments is_causal or attn_mask}. PyTorch aligns is_causal with
    the first key, the library with the last."""
    rows, keys = q.shape[2], k.shape[2]
    if mask is not None:
        return {'': {'attn_mask': mask}}
    if not window or rows == 1 and window[0] < 0:
        return {'': {}}
    gap = torch.arange(keys, device=q.device) - torch.arange(rows, device=q.device).unsqueeze(1) \
        - (keys - rows)
    seen = (gap <= window[1]) & ((gap >= -window[0]) | (window[0] < 0))
    masked = {', mask': {'attn_mask': seen}}
    if window != [-1, 0]:
        return masked
    if rows == keys:
        return {'': {'is_causal': True}, **masked}
    return {'': {'attn_mask': causal_lower_right(rows, keys)}, **masked}


def packed_attention(q, k, v, bounds, most, scale_, causal, dropout):
    """Attention of packed sequences: flash's kernels for them, and one call per sequence."""
    found, ends = {}, bounds.tolist()

    def flash():
        rows = (t[0].transpose(0, 1) for t in (q, k, v))
        y = torch.ops.aten._flash_attention_forward(*rows, bounds, bounds, *most, dropout, causal,
                                                    False, scale=scale_)[0]
        return y.transpose(0, 1).unsqueeze(0)

    def each():
        return torch.cat([F.scaled_dot_product_attention(
            *(t[:, :, i:j] for t in (q, k, v)), dropout_p=dropout, scale=scale_, is_causal=causal,
            enable_gqa=k.shape[1] != q.shape[1]) for i, j in zip(ends, ends[1:])], 2)
    found['eager, each sequence'] = each
    if q.is_cuda and q.element_size() == 2:
        found['flash, packed'] = flash
    return found


def capped_attention(q, k, v, mask, scale_, window, softcap):
    """Attention with a softcap by its formula; no function of PyTorch has the option."""
    hidden = list(bias_of(q, k, mask, window).values())[-1].get('attn_mask')
    heads = q.shape[1] // k.shape[1]

    def formula():
        t = q @ k.repeat_interleave(heads, 1).transpose(2, 3) * \
            (scale_ or 1 / math.sqrt(q.shape[3]))
        t = softcap * torch.tanh(t / softcap)
        if hidden is not None:
            t = t.masked_fill(~hidden, -math.inf) if hidden.dtype == torch.bool else t + hidden
        return torch.softmax(t, 3) @ v.repeat_interleave(heads, 1)
    return {'formula': formula}


@peer('scaled_dot_product_attention')
def attention(q, k, v, mask, lists, most, scale_, window, softcap, dropout):
    if lists and len(lists) == 2:
        return packed_attention(q, k, v, lists[0], most, scale_, window is not None, dropout)
    if lists:
        mask = seen_mask(mask, lists[0], k.shape[2])
    if softcap:
        return capped_attention(q, k, v, mask, scale_, window, softcap)
    found = {}
    scores = math.prod(q.shape[:3]) * k.shape[2] * q.element_size()
    for kind, more in bias_of(q, k, mask, window).items():
        plain = partial(F.scaled_dot_product_attention, q, k, v, dropout_p=dropout, scale=scale_,
                        enable_gqa=k.shape[1] != q.shape[1], **more)
        found['eager' + kind] = plain  # the backend that PyTorch chooses
        for name, backend in BACKENDS.items():
            if name == 'math' and scores > MATH_BYTES:
                continue

            def call(backend=backend, plain=plain):
                with sdpa_kernel(backend):
                    return plain()
            found[name + kind] = call
    if k.shape[1] != q.shape[1]:  # grouped heads, which not every backend supports
        heads = q.shape[1] // k.shape[1]
        first = next(iter(bias_of(q, k, mask, window).values()))

        def repeated():
            return F.scaled_dot_product_attention(
                q, k.repeat_interleave(heads, 1), v.repeat_interleave(heads, 1),
                dropout_p=dropout, scale=scale_, **first)
        found['repeated'] = repeated
    return found


@peer('scaled_dot_product_attention_backward')
def attention_backward(g, _lse, q, k, v, _out, _lse_out, mask, *more):
    """The gradients of recorded forwards, one per backend."""
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    found, errors = {}, []
    for name, call in attention(*leaves, mask, *more[:6]).items():
        try:
            with torch.enable_grad():
                y = call()
            found[name] = partial(torch.autograd.grad, y, leaves, g, retain_graph=True)
        except RuntimeError as error:  # the backend does not support the case
            errors.append(error)
    if not found:
        raise errors[0]
    return found
