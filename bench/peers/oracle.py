"""
bench/compare.py --suite oracle: draws calls of each operator that PyTorch also has, in all forms
(new result, in place, out=), and compares them with PyTorch and with PyTorch in f64: values,
dtypes, sizes, first and second gradients, and refusals. docs/differences.md lists the accepted
differences.
"""
# SPDX-License-Identifier: MIT
import contextlib
import ctypes
import math
import re
import sys
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import numpy
import torch

from peers import oracle_classes, tessera
from peers.oracle_noise import ROUNDINGS, TRIALS, Rounding
from peers.oracle_draw import HERE, INTEGERS, Draw, is_float
from peers.oracle_ops import OPS
from peers import oracle_images, oracle_more, oracle_random  # which add operators

NAMES = {torch.float64: 'f64', torch.float32: 'f32', torch.bfloat16: 'bf16', torch.float16: 'f16',
         torch.int64: 'i64', torch.int32: 'i32', torch.uint8: 'u8', torch.bool: 'bool'}
HALVES = torch.bfloat16, torch.float16


class Options(ctypes.Structure):
    """ts_backward_opts."""
    _fields_ = [('size', ctypes.c_size_t), ('retain', ctypes.c_bool), ('create', ctypes.c_bool)]


class Ours(tessera.Library):
    """The library's side of a case."""

    def __init__(self, build):
        super().__init__(build)
        self.known = {}  # id of a PyTorch tensor -> its handle; each tensor has one handle
        self.none = ctypes.c_void_p.in_dll(self.c, 'ts_none').value
        pointer, pointers = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
        for name, result, arguments in [
                ('ts_set_requires_grad', pointer, [pointer, ctypes.c_bool]),
                ('ts_requires_grad', ctypes.c_bool, [pointer]),
                ('ts_manual_seed', None, [ctypes.c_uint64]),
                ('ts_grad_of', ctypes.c_int, [pointer, pointer, pointers, ctypes.c_int, pointers,
                                              ctypes.POINTER(Options)])]:
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments

    @staticmethod
    def handle(address):
        """A tensor of the library as an argument."""
        return tessera.Value(tessera.TENSOR, u=tessera.Union(p=address))

    def tensor(self, t):
        if id(t) not in self.known:
            self.alive.append(t)
            if t.numel():
                made = super().tensor(t)
            else:
                made = self.call('empty', [list(t.shape), t.dtype, HERE])[0]
            self.known[id(t)] = made
        return self.known[id(t)]

    def value(self, x):
        if isinstance(x, str):
            return tessera.Value(tessera.DEVICE)
        if isinstance(x, torch.dtype):
            return tessera.Value(tessera.DTYPE, u=tessera.Union(i=tessera.DTYPES[str(x)]))
        if isinstance(x, list) and x and isinstance(x[0], torch.Tensor):
            array = (ctypes.c_void_p * len(x))(*map(self.tensor, x))
            self.alive.append(array)
            return tessera.Value(tessera.TENSORS, count=len(x),
                                 u=tessera.Union(p=ctypes.addressof(array)))
        if isinstance(x, list):
            array = (ctypes.c_int64 * max(len(x), 1))(*x)
            self.alive.append(array)
            return tessera.Value(tessera.INTS, count=len(x),
                                 u=tessera.Union(p=ctypes.addressof(array)))
        return super().value(x)

    def gradients(self, output, upstream, inputs, create):
        """Addresses of gradients; None where there is none."""
        n = len(inputs)
        given, found = (ctypes.c_void_p * n)(*inputs), (ctypes.c_void_p * n)()
        options = Options(ctypes.sizeof(Options), True, create)
        if self.c.ts_grad_of(output, upstream, given, n, found, ctypes.byref(options)):
            raise self.fail()
        return [None if g is None or g == self.none else g for g in found]


# ------------------------------------------------------------------------------------ drawing ----

class Case:
    """One call: operator, arguments, form, and which gradients are asked for."""

    def __init__(self, seed, number, names):
        d = self.d = Draw(seed, number)
        self.op = OPS[names[number % len(names)]]
        self.args = self.op.draw(d)
        self.label = f'{seed}:{number}'
        self.form, self.into, self.orders, self.chosen = 'new', None, 0, 0
        self.wanted = []  # tensors whose gradient is asked for

    def tensors(self):
        found = []
        for a in self.args:
            for t in a if isinstance(a, list) else [a]:
                if isinstance(t, torch.Tensor) and not any(t is u for u in found):
                    found.append(t)
        return found

    def draw_form(self, library, results):
        """Draws the form (in place and out= if the library has it; the out= destination is
        sometimes invalid), and the result and leaves whose gradients are compared."""
        d, name = self.d, self.op.name
        first, result = self.args[0], results[0] if results else None
        if self.op.writes:
            return
        if d.chance(0.2) and hasattr(library.c, f'ts_{name}_') and isinstance(first, torch.Tensor) \
                and hasattr(torch.Tensor, self.op.function.__name__ + '_'):
            self.form = 'in place'
        elif d.chance(0.15) and hasattr(library.c, f'ts_{name}_out') and \
                isinstance(result, torch.Tensor):
            self.form = 'out'
            sizes = list(result.shape) if d.chance(0.95) else d.sizes()
            self.into = d.tensor(sizes, result.dtype if d.chance(0.9) else d.dtype(), expand=False)
        floats = [i for i, t in enumerate(results) if t is not None and is_float(t.dtype)]
        if self.form != 'out' and self.op.grad and floats:
            self.chosen = d.pick(floats)
            result = results[self.chosen]
            some = self.op.leaves(self.args) if self.op.leaves else self.tensors()
            leaves = [t for t in some if is_float(t.dtype) and d.chance(0.8)]
            self.wanted = leaves
            self.orders = d.pick([0, 1, 1, 2]) if leaves else 0
            if self.form == 'in place' and d.chance(0.6):
                self.orders = 0
            self.upstream = d.tensor(list(result.shape), result.dtype)
            self.second = [d.values(list(t.shape), t.dtype).reshape(t.shape) for t in leaves]

    def upstreams(self, order):
        """The upstream gradients of one order."""
        return [self.upstream, *(self.second if order == 2 else [])] if order else []

    def text(self):
        def one(a):
            if isinstance(a, torch.Tensor):
                strides = '' if a.is_contiguous() else f' strides {tuple(a.stride())}'
                values = f' = {a.tolist()}' if a.numel() <= 12 else ''
                grad = ' grad' if any(a is t for t in self.wanted) else ''
                return f'{NAMES[a.dtype]}{tuple(a.shape)}{strides}{grad}{values}'
            if isinstance(a, list):
                return '[' + ', '.join(map(one, a)) + ']'
            return NAMES[a] if isinstance(a, torch.dtype) else repr(a)
        into = f' into {one(self.into)}' if self.into is not None else ''
        return f'{self.op.name}({", ".join(map(one, self.args))}) {self.form}{into}'


def detached(t):
    """A copy of t in t's layout."""
    if t.is_contiguous() or not t.numel():
        return t.detach().clone(memory_format=torch.contiguous_format)
    storage = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage().clone())
    return storage.as_strided(t.shape, t.stride(), t.storage_offset())


# ---------------------------------------------------------------------------------- both sides ----

class Result:
    """Result of a side: the text of a refusal, or values and gradients by order."""

    def __init__(self):
        self.refusal, self.values, self.grads = None, [], {}


def run_torch(case, change=None, rounding=None):
    """Runs PyTorch's side. change(t) replaces each tensor, for example by one in f64. rounding: a
    mode that perturbs each operation by rounding errors (oracle_noise.py)."""
    with rounding or contextlib.nullcontext():
        return call_torch(case, change, rounding)


def call_torch(case, change, rounding):
    op, out = case.op, Result()
    function = op.ours if rounding and op.ours else op.function
    made = {}

    def convert(a):
        if isinstance(a, list) and a and isinstance(a[0], torch.Tensor):
            return [convert(t) for t in a]
        if isinstance(a, torch.Tensor):
            if id(a) not in made:
                t = change(a) if change else detached(a)
                made[id(a)] = t.requires_grad_(any(a is w for w in case.wanted)
                                               and case.orders > 0)
            return made[id(a)]
        if change and isinstance(a, torch.dtype) and is_float(a):
            return torch.float64
        return a
    args = [convert(a) for a in case.args]
    try:
        if case.form == 'in place' and not change:
            args[0] = args[0].clone() if case.orders else args[0]
            try:
                y = op.call(getattr(torch.Tensor, op.function.__name__ + '_'), *args)
            except TypeError:
                y = op.call(op.function, *args)
                if (y.shape, y.dtype) != (args[0].shape, args[0].dtype):
                    raise
        elif case.form == 'out' and not change:
            y = into = detached(case.into)
            try:
                op.call(partial(op.function, out=into), *args)
            except TypeError:  # PyTorch has no such form
                y = op.call(op.function, *args)
                if isinstance(y, torch.Tensor) and (y.shape, y.dtype) != (into.shape, into.dtype):
                    raise
        else:
            y = op.call(function, *args)
        ys = list(y) if isinstance(y, (tuple, list)) else [y]
        ys = ys if op.writes else ys[:op.results]
        out.values = [t if t is None else t.detach() for t in ys]
        if not case.orders or not ys[case.chosen].requires_grad:
            return out
        y = ys[case.chosen]
        if rounding:
            rounding.backward()
        leaves = [made[id(t)] for t in case.wanted]
        upstream = change(case.upstream) if change else case.upstream.clone()
        upstream = upstream.to(y.dtype)
        twice = case.orders == 2
        grads = torch.autograd.grad(y, leaves, upstream.requires_grad_(twice),
                                    create_graph=twice, allow_unused=True)
        out.grads[1] = [None if g is None else g.detach() for g in grads]
        if twice:
            pairs = [(g, change(s) if change else s) for g, s in zip(grads, case.second)
                     if g is not None and g.requires_grad]
            seconds = [None] * (len(leaves) + 1)
            out.chosen = next((i for i, g in enumerate(grads)
                               if g is not None and g.requires_grad), None)
            for g, s in pairs[:1]:
                seconds = list(torch.autograd.grad(g, [*leaves, upstream], s, allow_unused=True))
            out.grads[2] = seconds
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        out.refusal = str(error).splitlines()[0] if str(error) else repr(error)
        out.stage = len(out.values) and 1 + len(out.grads)
    return out


def run_ours(library, case, theirs):
    """The library's side; asks for the second gradients that PyTorch has."""
    out, c = Result(), library.c
    copies = {id(t): detached(t) for t in case.tensors()}

    def convert(a):
        if isinstance(a, torch.Tensor):
            return copies[id(a)]
        if isinstance(a, list) and a and isinstance(a[0], torch.Tensor):
            return [copies[id(t)] for t in a]
        return a
    args = [convert(a) for a in case.args]
    try:
        leaves = [library.tensor(copies[id(t)]) for t in case.wanted]
        for leaf in leaves if case.orders else ():
            if not c.ts_set_requires_grad(leaf, True):
                raise library.fail()
        given = ()
        if case.form == 'in place':
            if case.orders:
                clone = library.call('copy', [args[0]])[0]
                args[0] = library.handle(clone)
            given = [args[0]]
        elif case.form == 'out':
            given = [detached(case.into)]
        ys = library.call(case.op.name, args, given)
        if given:
            ys[0] = library.value(given[0]).u.p
        ys = ys[:case.op.results]
        out.values = [y and library.read(y, torch) for y in ys]
        if case.op.writes:
            out.values += [t.clone() for t in case.op.writes(args)]
        if not case.orders or not c.ts_requires_grad(ys[case.chosen]):
            return out
        first = ys[case.chosen]
        upstream = library.tensor(case.upstream)
        twice = case.orders == 2
        if twice:
            c.ts_set_requires_grad(upstream, True)
        grads = library.gradients(first, upstream, leaves, twice)
        out.grads[1] = [None if g is None else library.read(g, torch) for g in grads]
        if twice and 2 in theirs.grads:
            seconds = [None] * (len(leaves) + 1)
            g = None if theirs.chosen is None else grads[theirs.chosen]
            if g is not None and c.ts_requires_grad(g):
                s = library.tensor(case.second[theirs.chosen])
                seconds = library.gradients(g, s, [*leaves, upstream], False)
                seconds = [None if x is None else library.read(x, torch) for x in seconds]
            out.grads[2] = seconds
    except tessera.Failed as error:
        out.refusal = str(error)
        out.stage = len(out.values) and 1 + len(out.grads)
    return out


# ------------------------------------------------------------------------------------ judging ----

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


# ---------------------------------------------------------------------------------- the suite ----

def run_case(library, seed, number, names, mistake=None):
    """The case and its difference, or None. mistake(case, ours, theirs) corrupts our results, if
    possible."""
    library.known.clear()
    torch.manual_seed(0)
    with library.scope():
        case = Case(seed, number, names)
        case.real = False
        if case.op.check:
            text = case.op.check(library, case.d, case.args)
            return case, text and Difference(case, 'random', text)
        plain = run_torch(case)
        case.draw_form(library, plain.values)
        theirs = run_torch(case) if case.form != 'new' or case.orders else plain
        ours = run_ours(library, case, theirs)
        if mistake and not mistake(case, ours, theirs):
            return case, None
        found = next(Judge(case, ours, theirs).differences(), None)
    return case, found


# -------------------------------------------------------------------------------- self-test ----

def coarse(t):
    return t.to({torch.float64: torch.float32, torch.float32: torch.bfloat16}
                .get(t.dtype, t.dtype)).to(t.dtype)


def off(t):
    return t * (1 + (1e-3 if t.dtype not in HALVES else 2 ** -3))


MISTAKES = {'scaled': off, 'negated': torch.neg, 'in another dtype': coarse,
            'moved': lambda t: t.flatten().roll(1).reshape(t.shape),
            'zero': torch.zeros_like,
            'beyond rounding': None,
            'one element': lambda t: torch.where(t == t.flatten()[t.abs().argmax()], off(t), t)}


BEYOND = 4  # multiple of the rounding error


def put_beyond(case, ours, theirs, order):
    """Moves the largest element of a result just beyond the rounding error."""
    found = ours.values if order == 0 else ours.grads.get(order, [])
    other = theirs.values if order == 0 else theirs.grads.get(order, [])
    judge = Judge(case, ours, theirs)
    case.real = True
    for i, (a, b) in enumerate(zip(found, other)):
        if a is None or b is None or not is_float(a.dtype) or not a.numel() or \
                a.shape != b.shape or a.dtype != b.dtype or not torch.isfinite(b).all():
            continue
        r = pick(judge.wide(), order, i)
        if r is None or r.shape != a.shape or not torch.isfinite(r).all():
            continue
        at = int(r.abs().flatten().argmax())
        info, size = torch.finfo(a.dtype), abs(r.flatten()[at].item())
        if not math.sqrt(info.tiny) < size < math.sqrt(info.max):
            continue
        limit = max(ulps_of(case.op, a.dtype) * spacing(size, a.dtype),
                    2 * abs(r.flatten()[at].item() - b.flatten()[at].item()))
        if case.op.sums or order:
            limit += judge.noise(order, i, tuple(a.shape)).flatten()[at]
        wrong = a.flatten().clone()
        wrong[at] = r.flatten()[at] + BEYOND * limit
        found[i] = wrong.reshape(a.shape)
        return bool(torch.isfinite(found[i]).all())
    return False


def spoil(change, order, number):
    """Returns a function that applies `change` to all results of an order (None: put_beyond()), and
    returns True if it made a noticeable mistake."""
    def apply(case, ours, theirs):
        if ours.refusal or case.op.check:
            return False
        if change is None:
            return not theirs.refusal and put_beyond(case, ours, theirs, order)
        found = ours.values if order == 0 else ours.grads.get(order, [])
        changed = False
        for i, t in enumerate(found):
            if t is None or not is_float(t.dtype) or not t.numel() or not torch.isfinite(t).all():
                continue
            size = t.abs().max()
            info = torch.finfo(t.dtype)
            if size < math.sqrt(info.tiny) or size > math.sqrt(info.max):
                continue
            wrong = change(t)
            far = (wrong.double() - t.double()).abs() > 4e-4 * size
            if far.any():
                found[i], changed = wrong, True
        return changed
    return apply


def self_test(library, options, names):
    """Makes mistakes in our results and counts the reported ones, and the others by class. Returns
    0 if at least 19 of 20 are reported."""
    caught, missed = Counter(), Counter()
    for number in range(options.cases):
        kind = list(MISTAKES)[number // len(names) % len(MISTAKES)]
        order = number // len(names) // len(MISTAKES) % 3
        did = []

        def mistake(*sides):
            did.append(spoil(MISTAKES[kind], order, number)(*sides))
            return did[0]
        case, found = run_case(library, options.seed, number, names, mistake)
        if not did or not did[0]:
            continue
        label = oracle_classes.explain(found) if found else 'right'
        if label is None:
            caught[kind] += 1
        else:
            missed[label] += 1
            if options.show:
                print(f'{label} --case {options.seed}:{number} {kind} order {order}: '
                      f'{case.text()}\n    {found.text if found else ""}')
    reported, silent = sum(caught.values()), sum(missed.values())
    print(f'{reported} mistakes reported:',
          ', '.join(f'{count} {kind}' for kind, count in caught.items()))
    print(f'{silent} not reported:',
          ', '.join(f'{count} {label}' for label, count in missed.most_common()))
    return 1 if reported < 19 * silent else 0


def run(options):
    library = Ours(options.build)
    warnings.filterwarnings('ignore', module='torch|peers')
    torch.set_num_threads(1)
    library.c.ts_set_num_threads(1)
    names = [name for name in OPS if re.fullmatch(options.ops or '.*', name)]
    if not names:
        sys.exit(f'compare.py: no operator matches {options.ops}')
    seed, numbers_ = options.seed, range(options.cases)
    if options.case:
        seed, number = map(int, options.case.split(':'))
        numbers_ = [number]
    words = oracle_classes.documented(Path(__file__).parents[2] / 'docs' / 'differences.md')
    oracle_classes.check(words)
    if options.self_test:
        return self_test(library, options, names)
    counts, unexplained, shown = Counter(), 0, Counter()
    chosen = f" --ops '{options.ops}'" if options.ops else ''
    begin = last = time.monotonic()
    for done, number in enumerate(numbers_):
        case, found = run_case(library, seed, number, names)
        if found:
            label = oracle_classes.explain(found)
            counts[label] += 1
            if label is None:
                unexplained += 1
            if (label is None and shown[case.op.name, found.kind] < options.show) or options.case:
                shown[case.op.name, found.kind] += 1
                print(f'{label or "UNEXPLAINED"} --case {seed}:{number}{chosen}: {case.text()}\n'
                      f'    {found.kind}: {found.text}', flush=True)
        elif options.case:
            print(f'equal: {case.text()}')
        now = time.monotonic()
        if now - last > 10 and sys.stderr.isatty():
            last = now
            print(f'# {done + 1} of {len(numbers_)} cases, {(done + 1) / (now - begin):.0f} a '
                  f'second, {unexplained} unexplained', file=sys.stderr, flush=True)
    print(f'{len(numbers_)} cases of {len(names)} operators, seed {seed}, '
          f'{time.monotonic() - begin:.0f} s')
    for label, count in counts.most_common():
        print(f'{count:8}  {label or "UNEXPLAINED"}: {words.get(label, "")}')
    return 1 if unexplained else 0
