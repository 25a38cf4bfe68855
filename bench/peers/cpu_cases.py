"""
Cases of bench/compare.py on the CPU: the ops of one training step of a small GPT, forward and
backward, and a few ops on a million elements. A case is a pair: calls of our ops and a function of
torch's that does the same to the same memory.
"""
# SPDX-License-Identifier: MIT
from dataclasses import dataclass, field
from functools import partial
from typing import Callable

import torch
import torch.nn.functional as F

B, T, C, H, D, MLP, V, L = 16, 128, 128, 4, 32, 512, 256, 4
N = B * T
aten = torch.ops.aten
MEAN = 0  # TS_REDUCTION_MEAN


@dataclass
class Case:
    ours: list                # calls: (op, args) or (op, args, given results)
    theirs: Callable          # no arguments; results in the order of ours
    same: int = 1             # number of results of the last call that are compared
    after: list = field(default_factory=list)  # or pairs to compare, (ours, theirs), after a call
    rtol: float = 1e-4        # tolerance relative to the largest magnitude


CASES = {}  # (name, shape) -> (function that makes the case, part of the GPT step?)


def case(name, shape, step=True):
    def add(make):
        CASES[name, shape] = (make, step)
        return make
    return add


def normal(*sizes):
    return torch.randn(*sizes)


def text(*sizes):
    return 'x'.join(map(str, sizes))


# ------------------------------------------------------------------------------- embedding ----

@case('embedding', f'{V}x{C} by {N}')
def _():
    weight, index = normal(V, C), torch.randint(0, V, (B, T))
    return Case([('embedding', [weight, index, -1])], partial(F.embedding, index, weight))


@case('embedding_backward', f'{V}x{C} by {N}')
def _():
    grad, index = normal(B, T, C), torch.randint(0, V, (B, T))
    return Case([('embedding_backward', [grad, index, V, -1])],
                partial(aten.embedding_dense_backward, grad, index, V, -1, False))


# ------------------------------------------------------------------------------- pointwise ----

@case('add', text(N, C))
def _():
    a, b = normal(N, C), normal(N, C)
    return Case([('add', [a, b])], partial(torch.add, a, b))


@case('add_', text(N, C))
def _():
    a, b = normal(N, C), torch.zeros(N, C)
    return Case([('add', [a, b], [a])], partial(a.add_, b), after=[(a, a)])


@case('add positions', f'{B}x{T}x{C} + {T}x{C}')
def _():
    a, b = normal(B, T, C), normal(T, C)
    return Case([('add', [a, b])], partial(torch.add, a, b))


@case('positions backward', f'{B}x{T}x{C} -> {T}x{C}')
def _():
    a = normal(B, T, C)
    return Case([('sum_to_size', [a, [T, C]])], partial(torch.sum, a, 0))


@case('add bias', f'{N}x{C} + {C}')
def _():
    a, b = normal(N, C), normal(C)
    return Case([('add', [a, b])], partial(torch.add, a, b))


@case('gelu', text(N, MLP))
def _():
    x = normal(N, MLP)
    return Case([('gelu', [x, True])], partial(F.gelu, x, approximate='tanh'))


@case('gelu_backward', text(N, MLP))
def _():
    x, grad = normal(N, MLP), normal(N, MLP)
    return Case([('gelu_backward', [grad, x, True])],
                partial(aten.gelu_backward, grad, x, approximate='tanh'))


# -------------------------------------------------------------------------------- row ops ----

@case('layer_norm', text(N, C))
def _():
    x, w, b = normal(N, C), normal(C), normal(C)
    return Case([('layer_norm', [x, 1, w, b, 1e-5])],
                partial(torch.native_layer_norm, x, [C], w, b, 1e-5))


@case('layer_norm_backward', text(N, C))
def _():
    x, w, b, grad = normal(N, C), normal(C), normal(C), normal(N, C)
    _, mean, rstd = torch.native_layer_norm(x, [C], w, b, 1e-5)
    return Case([('layer_norm_backward', [grad, x, mean, rstd, w, 1])],
                partial(aten.native_layer_norm_backward, grad, x, [C], mean, rstd, w, b,
                        [True] * 3), same=3)


@case('cross_entropy', text(N, V))
def _():
    x, y = normal(N, V), torch.randint(0, V, (N,))
    return Case([('cross_entropy', [x, y, MEAN, -100, 0.0])], partial(F.cross_entropy, x, y))


@case('cross_entropy_backward', text(N, V))
def _():
    x, y, one = normal(N, V), torch.randint(0, V, (N,)), torch.ones(())
    log_p, lse = torch.log_softmax(x, 1), torch.logsumexp(x, 1)
    count = torch.tensor(float(N))

    def theirs():
        grad = aten.nll_loss_backward(one, log_p, y, None, 1, -100, count)
        return aten._log_softmax_backward_data(grad, log_p, 1, torch.float32)
    return Case([('cross_entropy_backward', [one, x, y, lse, MEAN, -100, 0.0])], theirs)


# -------------------------------------------------------------------------------- products ----

def linear(k, n):
    @case('linear', f'{N}x{k} -> {n}')
    def _():
        x, w, b = normal(N, k), normal(n, k), normal(n)
        return Case([('linear', [x, w, b])], partial(F.linear, x, w, b))

    @case('linear_backward', f'{N}x{k} -> {n}')
    def _():
        x, w, grad = normal(N, k), normal(n, k), normal(N, n)

        def theirs():
            return grad.mm(w), grad.t().mm(x), grad.sum(0)
        return Case([('linear_backward', [grad, x, w])], theirs, same=3)

    @case('mm for dx', f'{N}x{n} by {n}x{k}')
    def _():
        w, grad = normal(n, k), normal(N, n)
        return Case([('mm', [grad, w])], partial(torch.mm, grad, w))

    @case('mm for dW', f'{n}x{N} by {N}x{k}')
    def _():
        x, grad = normal(N, k), normal(N, n).t()
        return Case([('mm', [grad, x])], partial(torch.mm, grad, x))


for k, n in ((C, 3 * C), (C, C), (C, MLP), (MLP, C), (C, V)):
    linear(k, n)


# ------------------------------------------------------------------------------- attention ----

def heads():
    """q, k, v as in the training step: views of the thirds of a (B, T, 3*C) tensor."""
    return [t.view(B, T, H, D).transpose(1, 2) for t in normal(B, T, 3 * C).split(C, 2)]


@case('attention', text(B, H, T, D))
def _():
    q, k, v = heads()
    return Case([('scaled_dot_product_attention',
                  [q, k, v, None, None, None, None, [-1, 0], 0.0, 0.0])],
                partial(F.scaled_dot_product_attention, q, k, v, is_causal=True))


@case('attention_backward', text(B, H, T, D))
def _():
    q, k, v = heads()
    grad = normal(B, T, H, D).transpose(1, 2)
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    return Case([('scaled_dot_product_attention_backward',
                  [grad, None, q, k, v, out, lse, None, None, None, None, [-1, 0], 0.0, 0.0, 0,
                                                             0])],
                partial(aten._scaled_dot_product_flash_attention_for_cpu_backward, grad, q, k, v,
                        out, lse, 0.0,
                        True), same=3)


@case('copy of heads', text(B, H, T, D))
def _():
    x = normal(B, T, H, D).transpose(1, 2)
    return Case([('copy', [x])], partial(x.clone, memory_format=torch.contiguous_format))


# ------------------------------------------------------------------------------- optimizer ----

def parameters():
    """Shapes of the GPT's parameters."""
    block = [(C,), (C,), (3 * C, C), (3 * C,), (C, C), (C,), (C,), (C,), (MLP, C), (MLP,), (C, MLP),
             (C,)]
    return [normal(*s) for s in [(V, C), (T, C), *block * L, (C,), (C,), (V, C)]]


@case('adamw', 'all parameters')
def _():
    params = parameters()
    grads = [torch.randn_like(p) for p in params]
    ours = [p.clone() for p in params]
    state = [[torch.zeros_like(p) for p in params] for _ in range(4)]
    steps = [torch.tensor(1.0) for _ in params]

    def theirs():  # steps stay at 1, on both sides
        torch._fused_adamw_(params, grads, state[0], state[1], [], steps, lr=1e-3, beta1=0.9,
                            beta2=0.999,
                            weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False)
    return Case([('adamw', [ours, grads, state[2], state[3], [1] * len(params), 1e-3, 0.9, 0.999,
                            1e-8, 0.01, True, None, None, None])],
                theirs, after=list(zip(ours, params)))


@case('clip_grad_norm', 'all parameters')
def _():
    params = parameters()
    for p in params:
        p.grad = torch.randn_like(p)
    grads, norm = [p.grad.clone() for p in params], torch.empty(())
    return Case([('global_norm', [grads], [norm]), ('clip_norm', [grads, norm, 1.0])],
                partial(torch.nn.utils.clip_grad_norm_, params, 1.0),
                after=[(a, p.grad) for a, p in zip(grads, params)])


# ---------------------------------------------------------------------- a million elements ----

M = 1024


@case('add', text(M, M), step=False)
def _():
    a, b = normal(M, M), normal(M, M)
    return Case([('add', [a, b])], partial(torch.add, a, b))


@case('mul', text(M, M), step=False)
def _():
    a, b = normal(M, M), normal(M, M)
    return Case([('mul', [a, b])], partial(torch.mul, a, b))


for unary in ('exp', 'tanh', 'sqrt', 'relu', 'silu', 'sigmoid', 'log'):
    @case(unary, text(M, M), step=False)
    def _(unary=unary):
        x = normal(M, M).abs_() if unary in ('sqrt', 'log') else normal(M, M)
        function = F.silu if unary == 'silu' else getattr(torch, unary)
        return Case([(unary, [x])], partial(function, x))

for reduction in ('sum', 'mean'):
    for dims, shape in ((None, 'all'), ([0], 'columns'), ([1], 'rows')):
        @case(reduction, f'{M}x{M} {shape}', step=False)
        def _(reduction=reduction, dims=dims):
            x = normal(M, M)
            return Case([(reduction, [x, dims, False])],
                        partial(getattr(torch, reduction), x, *([dims] if dims else [])), rtol=1e-3)


@case('softmax', text(M, M), step=False)
def _():
    x = normal(M, M)
    return Case([('softmax', [x, -1, None])], partial(torch.softmax, x, -1))


@case('copy', text(M, M), step=False)
def _():
    x = normal(M, M)
    return Case([('copy', [x])], partial(torch.clone, x))


@case('copy transposed', text(M, M), step=False)
def _():
    x = normal(M, M).t()
    return Case([('copy', [x])], partial(x.clone, memory_format=torch.contiguous_format))


@case('fill_', text(M, M), step=False)
def _():
    x = normal(M, M)
    return Case([('fill', [x, 1.5])], partial(x.fill_, 1.5), after=[(x, x)])
