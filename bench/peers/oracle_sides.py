# SPDX-License-Identifier: MIT
"""Both sides of a case of the oracle: the drawn call, run by PyTorch and by the library."""
import contextlib
import ctypes
from functools import partial

import torch

from peers import tessera
from peers.oracle_draw import HERE, Draw, is_float
from peers.oracle_ops import OPS

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
