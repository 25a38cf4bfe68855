"""
Estimates how far rounding alone may move the results of a formula. PyTorch's formula runs in f64,
and the result of each operation (fused ones are decomposed) is perturbed by a random rounding error
of the dtype in which the case computes.
"""
# SPDX-License-Identifier: MIT
import math

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

TRIALS = 8
# N roundings of up to eps / 2 add up to N eps / 2 at most. Drawn within eps, the largest of eight
# such sums is about 0.9 sqrt(N) eps, so four times that covers up to 50 of the worst roundings.
ROUNDINGS = 4
ULPS = 4  # error of an elementary function, unless its result is rounded to a half
ARITHMETIC = set('add sub rsub mul div sqrt square neg reciprocal addcmul addcdiv lerp'.split())
SUMS = set('add sub rsub'.split())

EXACT = set('''_efficientzerotensor abs alias amax amin as_strided cat clamp clamp_max clamp_min
    clone copy_ detach diag_embed diagonal empty empty_like empty_strided expand eye fill fill_
    flip full full_like gather index index_select lift_fresh masked_fill masked_fill_
    masked_scatter masked_select max maximum min minimum nan_to_num neg new_empty new_empty_strided
    new_full new_ones new_zeros one_hot ones ones_like permute repeat reshape roll scatter select
    select_backward sgn sign slice slice_backward slice_scatter split squeeze stack t
    threshold_backward to _to_copy transpose tril triu unbind unsqueeze view where zero_ zeros
    zeros_like _unsafe_view _reshape_alias relu diagonal_backward'''.split())
FUSED = set('''_fused_rms_norm _fused_rms_norm_backward _log_softmax _log_softmax_backward_data
    _softmax _softmax_backward_data addcdiv addcmul addmm baddbmm binary_cross_entropy_with_logits
    elu_backward gelu gelu_backward hardtanh_backward huber_loss huber_loss_backward lerp
    log_sigmoid_backward log_sigmoid_forward logsumexp mish mish_backward mse_loss
    mse_loss_backward native_group_norm native_group_norm_backward native_layer_norm
    native_layer_norm_backward silu silu_backward sigmoid_backward smooth_l1_loss
    smooth_l1_loss_backward softplus softplus_backward tanh_backward'''.split())


def leaves(x):
    """The tensors of real numbers among arguments."""
    if isinstance(x, torch.Tensor):
        return [x] if x.dtype == torch.float64 else []
    return [t for y in x for t in leaves(y)] if isinstance(x, (list, tuple)) else []


class Rounding(TorchDispatchMode):
    """Changes each operation's result by up to one rounding error, and arguments and result of a
    sum over n terms by up to 1 + log2(n). `first` is the dtype of the call's roundings, `later`
    that of its gradients. Without a generator, rounds to nearest: numbers that a dtype does not
    distinguish become equal, which random errors do not show.
    """

    def __init__(self, generator, first, later):
        super().__init__()
        self.generator, self.now, self.later = generator, first, later
        self.multiplies = False  # True once an operation other than a sum has rounded

    def backward(self):
        self.now = self.later

    def moved(self, t, depth=1.0, of=None):
        if t._is_zerotensor():  # which has no storage
            return t
        info = torch.finfo(self.now)
        if self.generator is None:
            rounded = t.clamp(info.min, info.max).to(self.now).double()
            return torch.where(torch.isfinite(t), rounded, t)
        size = (t.abs() if of is None else of).clamp(min=info.tiny)
        by = depth * info.eps * (2 * torch.rand(t.shape, generator=self.generator,
                                                dtype=torch.float64) - 1)
        by = torch.where(size > info.max / 2, -by.abs(), by)  # keeps the result in the range
        moved = torch.where(t < 0, t - size * by, t + size * by)
        return torch.where(torch.isfinite(t) & (t != 0), moved, t)

    def __torch_dispatch__(self, function, types, args=(), more=None):
        more = more or {}
        name = function._schema.name.split('::')[1]
        if name in FUSED and function in decomposition_table and all(
                t.numel() for t in leaves(args)):  # decompositions divide by the number of elements
            with self:
                return decomposition_table[function](*args, **more)
        plain = name.rstrip('_')
        exact = name in EXACT or any(r.alias_info and not r.alias_info.is_write
                                     for r in function._schema.returns)
        exact = exact or 'norm' in name and any(x == math.inf for x in args
                                                if isinstance(x, float))  # infinity norm: exact
        sums = not exact and torch.Tag.pointwise not in function.tags
        self.multiplies |= not exact and plain not in SUMS and 'sum' not in plain
        by = 1.0 if sums or plain in ARITHMETIC or torch.finfo(self.now).bits == 16 else ULPS
        if sums and not function._schema.is_mutable:
            terms = max((t.numel() for t in leaves(args)), default=1)
            by = 1 + math.log2(max(terms, 1))  # also for the result: errors of equal terms add up
            args = [self.moved(a, by) if leaves(a) and
                    isinstance(a, torch.Tensor) else a for a in args]
        found = function(*args, **more)
        if exact:
            return found
        if function._schema.is_mutable:
            for t in leaves([found]):
                t.copy_(self.moved(t, by))
            return found
        if isinstance(found, (list, tuple)):
            return type(found)(self.moved(t, by) if leaves(t) and isinstance(t, torch.Tensor) else t
                               for t in found)
        if not leaves(found):
            return found
        ends = name == 'linspace' and found.numel()  # errors are relative to the largest element
        return self.moved(found, by, found.abs().max() if ends else None)
