# SPDX-License-Identifier: MIT
"""Compares the sides of a case of the oracle, with tolerances that it derives from rounding."""
import numpy
import torch

from peers.oracle_draw import INTEGERS, is_float
from peers.oracle_noise import ROUNDINGS, TRIALS, Rounding
from peers.oracle_sides import HALVES, NAMES, run_torch


class Difference:
    """A difference between the sides of a case; oracle_classes.py explains the accepted ones."""

    def __init__(self, case, kind, text, **more):
        self.case, self.kind, self.text = case, kind, text
        self.op, self.args, self.form = case.op.name, case.args, case.form
        self.__dict__.update(more)

    def look_at(self, at):
        """Sets mine, other and exact, which the classes examine, to the values of element `at`."""
        self.at = at
        self.mine, self.other = self.a[at].item(), self.b[at].item()
        self.exact = None if self.ref is None else self.ref[at].item()


def wide(case, layout):
    """Returns a function that copies a tensor in a memory format, in f64 if its elements count as
    real numbers."""
    mixed = any(is_float(t.dtype) for t in case.tensors())

    def change(t):
        whole = t.dtype in INTEGERS and (case.op.arithmetic or not mixed)
        if is_float(t.dtype) or (case.real and whole):
            t = t.detach().double()
        return t.detach().clone(memory_format=layout)
    return change


def contiguous(t):
    """A contiguous copy of t."""
    return t.detach().clone(memory_format=torch.contiguous_format)


def numbers(t):
    return t.detach().double().numpy()


def spacing(x, dtype):
    """Distance between adjacent numbers of a dtype around x."""
    info = torch.finfo(dtype)
    _, exponent = numpy.frexp(numpy.where(numpy.isfinite(x), x, 1.0))
    return numpy.maximum(numpy.ldexp(float(info.eps), exponent - 1), info.tiny * info.eps)


def wrong_elements(ours, theirs, ref, ulps, slack, signs):
    """Mask of elements of ours that neither equal PyTorch's nor are close to PyTorch's in f64."""
    if not is_float(ours.dtype):
        return (ours != theirs).numpy()
    a, b = numbers(ours), numbers(theirs)
    same = (a == b) | (numpy.isnan(a) & numpy.isnan(b))
    if signs:
        same &= ~((a == 0) & (b == 0) & (numpy.signbit(a) != numpy.signbit(b)))
    if same.all():
        return ~same
    r = b if ref is None else numbers(ref)
    if ours.dtype in HALVES or ours.dtype == torch.float32:
        rounded = numbers(torch.from_numpy(numpy.ascontiguousarray(r)).to(ours.dtype))
    else:
        rounded = r
    same |= (numpy.isnan(a) & numpy.isnan(r)) | ((a == rounded) & ~((a == 0) & signs))
    with numpy.errstate(all='ignore'):
        off, theirs_off = numpy.abs(a - r), numpy.abs(b - r)
        limit = numpy.fmax(ulps * spacing(r, ours.dtype), 2 * theirs_off)
        near = numpy.isfinite(a) & (off <= limit + slack)
        if signs:
            near &= ~((a == 0) & (b == 0))
    return ~(same | near)


def ulps_of(op, dtype):
    """Allowed error of a kernel in ulps; twice as many in f64, where the reference has it too."""
    return 1 if dtype in HALVES else op.ulps * (2 if dtype == torch.float64 else 1)


class Judge:
    """Compares the sides of a case. layout: the memory format of PyTorch's arguments in f64."""

    def __init__(self, case, ours, theirs, layout=torch.preserve_format):
        self.case, self.ours, self.theirs, self.layout = case, ours, theirs, layout
        self.reference, self.trials = None, None
        case.results, case.multiplies = ours.values, False

    def wide(self):
        if self.reference is None:
            self.reference = run_torch(self.case, wide(self.case, self.layout))
        return self.reference

    def noise(self, order, i, shape):
        """How far rounding may move values of result i."""
        if self.trials is None:
            generator = torch.Generator().manual_seed(1)
            change = wide(self.case, self.layout)
            modes = [Rounding(generator, *self.dtypes()) for _ in range(TRIALS)]
            modes.append(Rounding(None, *self.dtypes()))
            self.trials = [run_torch(self.case, change, mode) for mode in modes]
            self.case.multiplies = modes[0].multiplies
            odd = [t.refusal for t in self.trials if t.refusal and not self.wide().refusal]
            if odd:  # the mode itself is at fault, and would judge nothing
                raise RuntimeError(f'{self.case.label}: {self.case.text()}: {odd[0]}')
        base = pick(self.wide(), order, i)
        most = numpy.zeros(shape)
        for trial in self.trials:
            moved = pick(trial, order, i)
            if base is not None:
                x, y = 0 if moved is None else numbers(moved), numbers(base)  # None counts as 0
                with numpy.errstate(all='ignore'):
                    far = numpy.abs(x - y)
                left = numpy.isfinite(y) & ~numpy.isfinite(x)
                if numpy.isinf(x[left] if left.any() else 0).any():
                    far = numpy.where(left, numpy.inf, far)  # rounding overflows: all allowed
                most = numpy.maximum(most, numpy.nan_to_num(far, nan=0, posinf=numpy.inf))
        return ROUNDINGS * most

    def dtypes(self):
        """(dtype in which the call computes; dtype to which its gradients are rounded between
        operations). The first is f32 for halves, unless op.steps; the second is the coarsest of
        arguments and results."""
        found = [t.dtype for t in self.ours.values if t is not None and is_float(t.dtype)]
        first = found[0] if found else torch.float32
        if first in HALVES and not self.case.op.steps:
            first = torch.float32
        found += [t.dtype for t in self.case.tensors() if is_float(t.dtype)]
        return first, max(found, default=first, key=lambda dtype: torch.finfo(dtype).eps)

    def differences(self):
        case, ours, theirs = self.case, self.ours, self.theirs
        for order in (0, 1, 2):  # also results before a refusal
            mine = ours.values if order == 0 else ours.grads.get(order, [])
            other = theirs.values if order == 0 else theirs.grads.get(order, [])
            if (ours.refusal or theirs.refusal) and not (mine and other):
                break
            for i in range(max(len(mine), len(other))):
                found = self.compare(order, i, mine[i] if i < len(mine) else None,
                                     other[i] if i < len(other) else None)
                if found:
                    yield found
                    return
        if ours.refusal or theirs.refusal:
            if ours.refusal and theirs.refusal and ours.stage == theirs.stage:
                return
            which = 'refused' if ours.refusal and not (theirs.refusal and
                                                       theirs.stage <= ours.stage) else 'accepted'
            yield Difference(case, which, f'ours: {ours.refusal}; torch: {theirs.refusal}',
                             ours=ours, theirs=theirs, stage=(ours if ours.refusal else theirs)
                             .stage)

    def compare(self, order, i, a, b):
        case = self.case
        what = f'result {i}' if order == 0 else f'gradient {i} of order {order}'
        if a is None and b is None:
            return None
        if a is None or b is None:  # a missing result counts as zeros
            some = a if b is None else b
            if not some.numel() or not torch.nan_to_num(some).any():
                return None
            return Difference(case, 'absent', f'{what}: ours {a}, torch {b}', order=order, a=a, b=b)
        if a.shape != b.shape:
            return Difference(case, 'sizes', f'{what}: {tuple(a.shape)}, torch {tuple(b.shape)}',
                              order=order, a=a, b=b)
        if a.dtype != b.dtype:
            return Difference(case, 'dtype', f'{what}: {NAMES[a.dtype]}, torch {NAMES[b.dtype]}',
                              order=order, a=a, b=b)
        if torch.equal(a, b) and (order or case.op.sums or not is_float(a.dtype)):
            return None
        ref = None
        ulps = ulps_of(case.op, a.dtype)
        signs = order == 0 and not case.op.sums
        wrong = wrong_elements(a, b, None, 0, 0, signs)
        if not wrong.any():
            return None
        if is_float(a.dtype):
            case.real = True
            known = a.dtype == torch.float64 and not case.op.arithmetic
            ref = None if known else pick(self.wide(), order, i)
            if ref is not None and ref.shape != a.shape:
                ref = None
            wrong = wrong_elements(a, b, ref, ulps, 0, signs)
            if wrong.any() and (case.op.sums or order):
                slack = self.noise(order, i, tuple(a.shape))
                wrong = wrong_elements(a, b, ref, ulps, slack, signs)
        if not numpy.any(wrong):
            return None
        at = tuple(map(int, numpy.unravel_index(numpy.flatnonzero(wrong)[0], tuple(a.shape))))
        values = [t[at].item() for t in (a, b)]
        there = f'; f64 {ref[at].item():.9g}' if ref is not None else ''
        text = (f'{what} {NAMES[a.dtype]}: {int(wrong.sum())} of {a.numel()} differ, at {at} ours '
                f'{values[0]!r}, torch {values[1]!r}{there}{self.operands(at, a)}')
        return Difference(case, 'value', text, order=order, a=a, b=b, ref=ref, wrong=wrong,
                          agrees_for_copies=self.agrees_for_copies)

    def agrees_for_copies(self):
        """True if all results and gradients agree with PyTorch's for contiguous copies of the
        tensors."""
        theirs = run_torch(self.case, contiguous)
        judge = Judge(self.case, self.ours, theirs, torch.contiguous_format)
        return next(judge.differences(), None) is None

    def operands(self, at, result):
        """Text with the operands' values at position `at`, if they broadcast to the result."""
        parts = []
        for x in self.case.args:
            if not isinstance(x, torch.Tensor):
                parts.append('list' if isinstance(x, list) else repr(x))
                continue
            try:
                parts.append(repr(x.expand(result.shape)[at].item()))
            except RuntimeError:
                return ''
        return f'; of {", ".join(parts)}'


def pick(result, order, i):
    found = result.values if order == 0 else result.grads.get(order, [])
    return found[i] if i < len(found) else None
