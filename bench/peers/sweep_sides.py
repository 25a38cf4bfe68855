"""
Both sides of a case of the random sweep: drawn cases become calls of the library and of PyTorch,
results are compared, and the sides are timed on the CPU or on a GPU.
"""
# SPDX-License-Identifier: MIT
import contextlib
import ctypes
import math
import time
import warnings
from functools import partial
from itertools import repeat

import torch

from peers import cuda, sweep, tessera
from peers.oracle_sides import NAMES as DTYPE_NAMES
from peers.oracle_sides import Ours
from peers.oracle_draw import is_float
from peers.sweep import TooLarge
from peers.sweep_draw import GIB, LIMITS, NAMES, OPS, Large, draw_of
from peers.sweep_peers import RANDOM, calls

ATTEMPTS = 90
CASE_BYTES = {'cuda': 15 * GIB // 2, 'cpu': 3 * GIB // 2}  # most bytes of a case on both sides
REFUSALS = RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError
PRODUCTS = {'mm', 'bmm', 'matmul', 'addmm', 'linear', 'linear_backward', 'linear_gelu'}
ATTENTION = 'scaled_dot_product_attention'
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 4e-2, torch.float16: 4e-2}
WRONG = 0.01          # fraction of elements that may differ: ties, kinks, rounded quotients
CHUNK = 1 << 24
BACKWARD = 0.4        # fraction of differentiable cases that are timed with their gradients
BATCH_NS = 1.5e6
SETTLE_S = 0.03       # OpenMP's threads spin for a while after PyTorch's last loop
QUEUED = 100          # most calls queued behind a long kernel; the driver's queue has about 1,000
LONGEST_SLEEP_NS = 60e6
LONG_NS = 5e6         # the host time of calls that take longer is negligible


def flat(args):
    """The tensors among arguments, each once."""
    found = {}
    for a in args:
        for t in a if isinstance(a, (list, tuple)) else [a]:
            if isinstance(t, torch.Tensor):
                found[id(t)] = t
    return list(found.values())


def moved(args, device):
    """The arguments, with tensors of the CPU copied to the device in their layouts."""
    made = {}

    def one(a):
        if isinstance(a, (list, tuple)):
            return [one(x) for x in a] if a and isinstance(a[0], torch.Tensor) else a
        if not isinstance(a, torch.Tensor) or a.device.type == device:
            return a
        if id(a) not in made:
            if device == 'meta':
                made[id(a)] = torch.empty_strided(a.shape, a.stride(), dtype=a.dtype,
                                                  device='meta')
            else:
                whole = torch.empty(0, dtype=a.dtype).set_(a.untyped_storage()).to(device)
                made[id(a)] = whole.as_strided(a.shape, a.stride(), a.storage_offset())
        return made[id(a)]
    return [one(a) for a in args]


def arguments(seed, number, attempt, name, kind, device):
    d = Large(seed, number, attempt, kind, device)
    with torch.device(device):
        args = draw_of(name)(d)
    return d, moved(args, device)


def results_of(found):
    return [t for t in (found if isinstance(found, (list, tuple)) else [found])
            if isinstance(t, torch.Tensor)]


def size_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def check_size(name, kind, args, results):
    """Raises TooLarge if memory or the work of a product exceeds the limits."""
    tensors = flat(args)
    if any(not t.numel() for t in [*tensors, *results]):
        raise TooLarge  # nothing to time
    if 2 * size_of([*tensors, *results]) + 2 * size_of(tensors) > CASE_BYTES[kind]:
        raise TooLarge  # both sides, and gradients
    if name in PRODUCTS:
        largest = sorted(t.numel() for t in [*tensors, *results])[-3:]
        slow = 1 if all(is_float(t.dtype) for t in tensors) else 8
        if math.sqrt(math.prod(largest)) * slow > LIMITS[kind][3]:
            raise TooLarge


class Case:
    """A drawn case with PyTorch's calls, of which at least one works."""

    def __init__(self, seed, number, name, kind, device):
        self.op, self.name, self.label, self.device = OPS[name], name, f'{seed}:{number}', device
        why = 'no attempt was within the limits'
        for attempt in range(ATTEMPTS):
            try:
                with contextlib.suppress(NotImplementedError):
                    self.try_on_meta(seed, number, attempt, kind)
                d, self.args = arguments(seed, number, attempt, name, kind, device)
                self.prepare(d)
                check_size(name, kind, self.args, self.results)
                return
            except TooLarge:
                continue
            except REFUSALS as error:
                why = first_line(error)
        raise sweep.Skipped(f'{name}: {why}')

    def try_on_meta(self, seed, number, attempt, kind):
        """Checks sizes and refusals on PyTorch's meta device, if that supports the operator."""
        try:
            _, args = arguments(seed, number, attempt, self.name, kind, 'meta')
            check_size(self.name, kind, args, [])
            found = calls(self.name, args, 'meta')
            check_size(self.name, kind, args, results_of(next(iter(found.values()))()))
        except REFUSALS as error:
            if 'meta' not in str(error).lower():
                raise

    def prepare(self, d):
        self.calls, self.results, errors = {}, None, []
        for name, call in calls(self.name, self.args, self.device).items():
            try:
                found = results_of(call())
            except REFUSALS as error:
                errors.append(error)
                continue
            self.calls[name] = call
            self.results = found if self.results is None else self.results
        if not self.calls:
            raise errors[0]
        if not self.op.writes:
            self.results = self.results[:self.op.results]
        if self.name == ATTENTION:
            self.results = self.results[:1]
        storages = {t.untyped_storage().data_ptr() for t in flat(self.args)}
        self.is_view = bool(self.results) and all(
            t.untyped_storage().data_ptr() in storages for t in self.results)
        if self.is_view and FAMILIES.get(self.name) != 'view' and not self.op.writes:
            raise TooLarge  # PyTorch gives its argument back, and there is nothing to do
        self.mode, self.leaves, self.chosen = 'forward', [], 0
        some = self.op.leaves(self.args) if self.op.leaves else flat(self.args)
        leaves = [t for t in flat(some) if is_float(t.dtype)]
        floats = [i for i, t in enumerate(self.results) if is_float(t.dtype)]
        if self.op.grad and leaves and floats and d.chance(BACKWARD) and len(leaves) <= 16:
            self.chosen = floats[0]
            self.record(leaves, torch.randn(
                self.results[self.chosen].shape, device=self.device, generator=d.generator,
                dtype=self.results[self.chosen].dtype))

    def record(self, leaves, upstream):
        """Replaces the calls by a forward with its gradients, if a result depends on the leaves."""
        forward, self.leaves, self.upstream = dict(self.calls), leaves, upstream
        for t in leaves:
            t.requires_grad_()
        for name, call in forward.items():
            try:
                self.gradients(call)
                self.calls[name] = partial(self.gradients, call)
            except REFUSALS:
                del self.calls[name]
        if self.calls:
            self.mode, self.forward = 'backward', forward
            return
        for t in leaves:  # no result depends on them, or PyTorch has no gradient
            t.requires_grad_(False)
        self.calls, self.leaves = forward, []

    def gradients(self, call):
        with torch.enable_grad():
            y = call()
            y = y[self.chosen] if isinstance(y, (list, tuple)) else y
            return torch.autograd.grad(y, self.leaves, self.upstream, allow_unused=True)

    def compile(self):
        """Adds the compiled form of PyTorch's first call. Returns 'not compiled' if that fails."""
        torch._dynamo.reset()
        forward = next(iter((self.forward if self.mode == 'backward' else self.calls).values()))
        call = torch.compile(lambda: forward(), dynamic=False)
        compiled = partial(self.gradients, call) if self.mode == 'backward' else call
        try:
            compiled()
            self.calls['compiled'] = compiled
        except Exception:  # a compiler may raise anything
            return 'not compiled'
        return ''

    @property
    def bytes(self):
        """Bytes of arguments and results, each once, and of gradients; 0 for a view."""
        if self.is_view:
            return 0
        return sum(min(size_of([t]), t.untyped_storage().nbytes())
                   for t in [*flat(self.args), *self.results, *self.leaves])

    @property
    def dtype(self):
        tensors = flat(self.args) or self.results
        floats = [t for t in tensors if is_float(t.dtype)]
        return DTYPE_NAMES[(floats or tensors)[0].dtype] if tensors else '-'

    @property
    def text(self):
        def one(a):
            if isinstance(a, torch.Tensor):
                sizes = 'x'.join(map(str, a.shape)) or 'scalar'
                where = f'+{a.storage_offset()}' if a.storage_offset() else ''
                strides = '' if a.is_contiguous() else '/' + ','.join(map(str, a.stride()))
                return f'{DTYPE_NAMES[a.dtype]}:{sizes}{strides}{where}'
            if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor):
                return f'[{len(a)} tensors, {sum(t.numel() for t in a)} elements]'
            if isinstance(a, (list, tuple)) and len(a) > 6:
                return f'[{len(a)} numbers]'
            if isinstance(a, torch.dtype):
                return DTYPE_NAMES[a]
            return str(a).replace(' ', '') if not isinstance(a, tessera.Value) else '[]'
        return ' '.join(map(one, self.args))


FAMILIES = sweep.families()


def first_line(error):
    return str(error).splitlines()[0][:150] if str(error) else repr(error)


# ------------------------------------------------------------------------------- our side ----

class Gradient(ctypes.Structure):
    """compare_gradient of compare_loop.c."""
    _fields_ = [('call', tessera.CallStruct), ('chosen', ctypes.c_int), ('nleaves', ctypes.c_int),
                ('upstream', ctypes.c_void_p), ('leaves', ctypes.POINTER(ctypes.c_void_p))]


class OnCpu(Ours):
    """The library on PyTorch's memory."""

    def __init__(self, build):
        super().__init__(build)
        self.loop.compare_gradients.restype = ctypes.c_double
        self.loop.compare_gradients.argtypes = [ctypes.POINTER(Gradient), ctypes.c_int]
        self.loop.compare_compile.restype = ctypes.c_void_p
        self.loop.compare_compile.argtypes = [ctypes.POINTER(Gradient)]
        self.loop.compare_compiled.restype = ctypes.c_double
        self.loop.compare_compiled.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        for name, given in (('ts_compiled_free', [ctypes.c_void_p]),
                            ('ts_compiled_call', [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int,
                                                  ctypes.POINTER(ctypes.c_void_p),
                                                  ctypes.c_int])):
            getattr(self.c, name).argtypes = given
        self.compiled = []

    def found(self, address, _like):
        return self.read(address, torch)

    def release(self):
        for compiled in self.compiled:
            self.c.ts_compiled_free(compiled)
        self.compiled.clear()
        self.known.clear()

    def run_gradients(self, gradient, turns):
        ns = self.loop.compare_gradients(ctypes.byref(gradient), turns)
        if ns < 0:
            raise self.fail()
        return ns

    def side(self, case):
        """Returns a function of `turns` that runs the case and returns host ns per turn."""
        if case.mode == 'forward':
            return partial(self.run, self.sequence([(case.name, case.args)]))
        return partial(self.run_gradients, self.gradient_of(case))

    def gradient_of(self, case):
        """The case as a compare_gradient; without leaves a forward."""
        leaves = (ctypes.c_void_p * max(len(case.leaves), 1))(*map(self.tensor, case.leaves))
        for leaf in leaves[:len(case.leaves)]:
            if not self.c.ts_set_requires_grad(leaf, True):
                raise self.fail()
        upstream = self.tensor(case.upstream) if case.leaves else None
        gradient = Gradient(self.prepare(case.name, case.args)[0], case.chosen, len(case.leaves),
                            upstream, leaves)
        self.alive.append((leaves, gradient))
        return gradient

    def compiled_side(self, case):
        """Like side(), with a compiled function; and its results."""
        gradient = self.gradient_of(case)
        compiled = self.loop.compare_compile(ctypes.byref(gradient))
        if not compiled:
            raise self.fail()
        self.compiled.append(compiled)
        count = gradient.nleaves or gradient.call.nrets
        results = (ctypes.c_void_p * count)()
        if self.c.ts_compiled_call(compiled, None, 0, results, count):
            raise self.fail()

        def side(turns):
            ns = self.loop.compare_compiled(compiled, count, turns)
            if ns < 0:
                raise self.fail()
            return ns
        return side, [r if r != self.none else None for r in results]

    def sizes_of(self, address):
        return [self.c.ts_sizes(address)[i] for i in range(self.c.ts_ndim(address))]


class OnGpu(OnCpu, cuda.Library):
    """The library on a GPU, with copies of PyTorch's tensors."""

    def value(self, x):
        if isinstance(x, str):
            return tessera.Value(tessera.DEVICE, u=tessera.Union(
                i=self.device.backend | self.device.index << 8))
        return super().value(x)

    def found(self, address, like):
        return cuda.Library.read(self, address, like)

    def release(self):
        super().release()
        self.copies.clear()


# ------------------------------------------------------------------------------ comparison ----

def mean_size(t):
    return t.float().nan_to_num(0, 0, 0).abs().mean().item() if t.numel() else 0


def differing(a, b, tolerance, loose):
    """'' if two results agree, else a text. loose: random results, whose mean magnitudes are
    compared. Two of the dtype's smallest numbers are tolerated."""
    n = a.numel()
    scale = mean_size(b)
    if loose:
        mine = mean_size(a)
        off = abs(mine - scale) > (0.05 + 6 / math.sqrt(n)) * max(mine, scale)
        return f'mean {mine:.4g}, torch {scale:.4g}' if off and n > 100 else ''
    info = torch.finfo(a.dtype) if is_float(a.dtype) else None
    least = 2 * info.tiny * info.eps if info else 0
    tolerance = tolerance if info else 0
    wrong, first = 0, ''
    x, y = a.reshape(-1), b.reshape(-1)
    for i in range(0, n, CHUNK):
        p, q = (t[i:i + CHUNK].double() for t in (x, y))
        off = (p - q).abs() > tolerance * (scale + q.abs()) + least
        off |= p.isnan() != q.isnan()
        count = int(off.sum())
        if count and not first:
            at = int(off.int().argmax())
            first = f'at {i + at} {p[at].item():.6g}, torch {q[at].item():.6g}'
        wrong += count
    return f'{wrong} of {n} elements, {first}' if wrong > max(WRONG * n, n > 20) else ''


def wide_result(case, i):
    """PyTorch's result i, or gradient of leaf i, computed with halves converted to f32."""
    made = {}

    def wide(a):
        if isinstance(a, (list, tuple)):
            return [wide(x) for x in a]
        half = isinstance(a, torch.Tensor) and a.dtype in (torch.bfloat16, torch.float16)
        if half and id(a) not in made:
            made[id(a)] = a.detach().float().requires_grad_(a.requires_grad)
        return made[id(a)] if half else a
    with torch.set_grad_enabled(case.mode == 'backward'):
        args = wide(case.args)
        found = results_of(next(iter(calls(case.name, args, case.device).values()))())
        if case.mode != 'backward':
            return found[i]
        return torch.autograd.grad(found[case.chosen], wide(case.leaves[i]),
                                   wide(case.upstream.detach()).to(found[case.chosen].dtype))[0]


def compare(library, case):
    """Raises where the sides' results differ."""
    theirs_call = next(iter(case.calls.values()))
    if case.mode == 'backward':
        handles = [library.tensor(t) for t in case.leaves]
        for handle in handles:
            library.c.ts_set_requires_grad(handle, True)
        ys = library.call(case.name, case.args)
        ours = library.gradients(ys[case.chosen], library.tensor(case.upstream), handles, False)
        theirs = theirs_call()
        pairs = list(zip(ours, theirs))
    elif case.op.writes:
        written = case.op.writes(case.args)
        before = [t.clone() for t in written]
        library.call(case.name, case.args)
        ours = [library.found(library.tensor(t), t).clone() for t in written]
        for t, old in zip(written, before):
            t.copy_(old)
        theirs_call()
        pairs = list(zip(ours, [t.clone() for t in written]))
        for t, old in zip(written, before):
            t.copy_(old)
    else:
        ours = library.call(case.name, case.args)
        pairs = list(zip(ours, results_of(theirs_call())[:len(case.results)]))
    check(library, case, pairs)


def check(library, case, pairs):
    """Raises where a result of ours differs from PyTorch's; pairs of both."""
    tolerance = max([TOLERANCE[t.dtype] for t in [*flat(case.args), *case.results]
                     if is_float(t.dtype)], default=0)
    loose = case.name in RANDOM or case.name == ATTENTION and case.args[9] > 0
    for i, (a, b) in enumerate(pairs):
        if a is None or b is None:
            continue  # a leaf without a gradient
        if not isinstance(a, torch.Tensor):
            sizes, dtype = library.sizes_of(a), library.c.ts_dtype_of(a)
            b = b.detach()
            if sizes != list(b.shape):
                raise sweep.Skipped(f'{case.name} differs, result {i}: sizes {sizes}, torch '
                                    f'{list(b.shape)}; {case.text}')
            if dtype != tessera.DTYPES[str(b.dtype)]:
                continue  # an intermediate of another precision, such as statistics
            a = library.found(a, b)
        text = differing(a, b, tolerance, loose)
        if text and not case.op.writes and \
                not differing(a, wide_result(case, i), tolerance, loose):
            text = ''  # PyTorch accumulates in a half
        if text:
            raise sweep.Skipped(f'{case.name} {case.mode} differs, result {i}: {text}; '
                                f'{case.dtype} {case.text}')


# ---------------------------------------------------------------------------------- timing ----

def python_side(call):
    def side(turns):
        begin = time.perf_counter_ns()
        for _ in repeat(None, turns):
            call()
        return (time.perf_counter_ns() - begin) / turns
    return side


class CpuClock:
    """Times on the CPU. runs(sides) returns a function per side, which times a batch in ns per
    call, and a note."""

    def __init__(self, settle):
        self.settle = settle

    def runs(self, sides):
        found = []
        for i, side in enumerate(sides):
            side(1)
            turns = max(1, int(BATCH_NS / side(1)))
            found.append(partial(self.batch, side, turns, self.settle if i == 0 else 0))
        return found, ''

    @staticmethod
    def batch(side, turns, settle):
        time.sleep(settle)
        if turns == 1:
            return side(1)
        side(1)
        return min(side(turns) for _ in range(3))


class GpuClock:
    """Times on a GPU, with the interface of CpuClock. Calls are queued behind a kernel that runs
    until all of them are queued, so their times exclude host cost. Long calls, and calls that wait
    for the device, such as for the size of a result, are timed with the wait instead."""

    def __init__(self, gpu):
        self.gpu = gpu   # torch.cuda, or a stand-in
        self.begin, self.end = (gpu.Event(enable_timing=True) for _ in range(2))
        gpu._sleep(1000)
        gpu.synchronize()
        self.cycles_per_ns = 1.0
        ms = self.between(lambda: gpu._sleep(20_000_000))
        self.cycles_per_ns = 20_000_000 / (ms * 1e6)

    def between(self, work):
        self.begin.record()
        work()
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end)

    def queued(self, side, turns, sleep_ns):
        """(nanoseconds of a call on the device, whether all were queued before the first ran)"""
        gpu = self.gpu
        gpu.synchronize()
        gpu._sleep(int(sleep_ns * self.cycles_per_ns))
        self.begin.record()
        side(turns)
        behind = not self.begin.query()
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end) * 1e6 / turns, behind

    def host_ns(self, side, turns=8, rounds=3):
        best = math.inf
        for _ in range(rounds):
            self.gpu.synchronize()
            best = min(best, side(turns))
        self.gpu.synchronize()
        return best

    def with_wait(self, side, turns):
        self.gpu.synchronize()
        begin = time.perf_counter_ns()
        side(turns)
        self.gpu.synchronize()
        return (time.perf_counter_ns() - begin) / turns

    def plan(self, side):
        """(turns, nanoseconds of sleep) of a batch; None if the side waits for the device."""
        host = self.host_ns(side)
        for longer in (1, 4, 16):
            sleep = min(longer * (2e5 + 3 * host), LONGEST_SLEEP_NS)
            ns, behind = self.queued(side, 1, sleep)
            if behind:
                turns = max(1, min(QUEUED, int(BATCH_NS / max(ns, 1)), int(2e7 / host)))
                return turns, min(longer * (2e5 + 2 * turns * host), LONGEST_SLEEP_NS)
        return None

    def runs(self, sides):
        for side in sides:
            side(2)
        long = max(self.with_wait(side, 1) for side in sides) > LONG_NS
        plans = [None if long else self.plan(side) for side in sides]
        if None in plans:
            turns = [max(1, min(QUEUED, int(BATCH_NS / max(self.with_wait(side, 2), 1))))
                     for side in sides]
            return [partial(self.with_wait, side, n) for side, n in zip(sides, turns)], \
                '' if long else 'waits for the device'
        return [partial(self.batch, side, *plan) for side, plan in zip(sides, plans)], ''

    def batch(self, side, turns, sleep):
        while True:
            ns, behind = self.queued(side, turns, sleep)
            if behind or sleep >= LONGEST_SLEEP_NS and turns == 1:
                return ns
            if sleep >= LONGEST_SLEEP_NS:
                turns //= 2
            sleep = min(2 * sleep, LONGEST_SLEEP_NS)


class Bench:
    """The interface of sweep.run() for cases and times."""

    def __init__(self, options, kind, pin_threads=None):
        self.options, self.kind, self.pin_threads = options, kind, pin_threads
        self.device = kind
        self.names = [ATTENTION] if options.suite == 'attention' else NAMES
        torch.set_grad_enabled(False)
        warnings.filterwarnings('ignore', module='torch|peers')
        if kind == 'cuda':
            self.library, self.settings = OnGpu(options.build), ['-']
            stream = torch.cuda.Stream()
            torch.cuda.set_stream(stream)
            self.library.use_stream(stream.cuda_stream)
            self.clock = GpuClock(torch.cuda)
        else:
            self.library, self.settings = OnCpu(options.build), options.threads
        self.c = self.library.c

    def use(self, threads):
        self.threads = str(threads)
        if self.kind == 'cpu':
            torch.set_num_threads(threads)
            self.c.ts_set_num_threads(threads)
            self.pin_threads(torch, self.library, threads, self.options.realtime)
            self.library.release()
            self.clock = CpuClock(SETTLE_S if threads > 1 else 0)

    def time(self, seed, number, seconds):
        name = sweep.operator_of(seed, number, self.names)
        try:
            with self.library.scope():
                return self.time_case(Case(seed, number, name, self.kind, self.device), seconds)
        except (tessera.Failed, *REFUSALS) as error:
            raise sweep.Skipped(f'{name}: {first_line(error)}') from error
        finally:
            self.library.release()
            if self.kind == 'cuda':
                self.check_device()

    @staticmethod
    def check_device():
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError as error:  # a kernel failed, and CUDA runs no further ones
            raise sweep.Lost(first_line(error)) from error

    def time_case(self, case, seconds):
        compare(self.library, case)
        notes, ours = [], [self.library.side(case)]
        if self.kind == 'cuda' and self.options.compile:
            notes.append(case.compile())
            try:
                ours.append(self.compiled_side(case))
            except tessera.Failed as error:
                notes.append(f'ours not compiled: {first_line(error)}')
        sides = [*ours, *map(python_side, case.calls.values())]
        runs, why = self.clock.runs(sides)
        best = sweep.judge(lambda limit, best: sweep.fastest(runs, limit, best), seconds,
                           len(ours))
        mine, theirs = best[:len(ours)], best[len(ours):]
        if len(ours) > 1:
            notes.append(f'ours {"compiled" if mine[1] < mine[0] else "eager"}')
        row = sweep.Row(case.label, self.threads, case.name, FAMILIES.get(case.name, 'other'),
                        case.mode, case.text, case.dtype, case.bytes, min(mine) / 1e3,
                        {name: ns / 1e3 for name, ns in zip(case.calls, theirs)},
                        note='; '.join(filter(None, [why, *notes])))
        if self.kind == 'cuda' and case.bytes < sweep.MEGABYTE:
            host = [self.clock.host_ns(side, 32, 5) / 1e3 for side in (sides[0], sides[len(ours)])]
            row.host = tuple(host)
        return row

    def compiled_side(self, case):
        """Our side as a compiled function, whose results must equal those of PyTorch."""
        side, found = self.library.compiled_side(case)
        if case.op.writes:
            return side
        theirs = next(iter(case.calls.values()))()
        check(self.library, case, list(zip(found, theirs if case.mode == 'backward'
                                           else results_of(theirs)[:len(case.results)])))
        return side
