"""
Compares compiled functions with torch.compile, and with a device copy of as many bytes as the group
moves. The functions are chains of pointwise calls over tensors larger than the caches; some have a
call on rows (softmax, layer norm, sum) among them.

The first cases are fixed: single calls and chains. The others are drawn by --seed. A function is
written in reverse Polish notation, from which both sides are made."""
# SPDX-License-Identifier: MIT
import ctypes
import random
from functools import partial

from peers import cuda_suite

DTYPES = {'f32': 'float32', 'bf16': 'bfloat16', 'f16': 'float16'}
SIZE = 268435456  # elements of the tensors in the cases of cos
UNARY = ['cos', 'sin', 'exp', 'tanh', 'gelu', 'sigmoid', 'relu', 'silu', 'neg', 'abs', 'square']
BINARY = ['add', 'sub', 'mul', 'maximum', 'minimum']
IN_TORCH = {'gelu': 'torch.nn.functional.gelu', 'relu': 'torch.relu',
            'silu': 'torch.nn.functional.silu'}
ROWS = {'softmax': 'torch.softmax({0}, -1)', 'sum': '{0}.sum(-1, True).expand_as({0})',
        'norm': 'torch.nn.functional.layer_norm({0}, {0}.shape[-1:])'}
FOLDS = {'total': '{0}.sum()', 'top0': '{0}.amax(0)', 'mean0': '{0}.mean(0)'}


class Case:
    """A function: `words` in reverse Polish notation, and its inputs, a list of (shape, dtype)."""
    def __init__(self, words, inputs):
        self.words, self.inputs = words, inputs

    def make(self, torch):
        return [torch.randn(shape, device='cuda').to(getattr(torch, DTYPES[dtype]))
                for shape, dtype in self.inputs]

    def torch_function(self, torch):
        """The function as a Python function of PyTorch's calls."""
        stack, lines = [], []
        for word in self.words.split():
            name, _, number = word.partition(':')
            if word[0] == 'x':
                stack.append(word)
                continue
            a = stack.pop()
            if name in BINARY and not number:
                a, b = stack.pop(), a
                text = f'torch.{name}({a}, {b})'
            elif name == 'dropout':
                text = f'torch.nn.functional.dropout({a}, {number}, True)'
            elif number:
                text = f'{a} {"+" if name == "add" else "*"} {number}'
            elif name in ROWS:
                text = ROWS[name].format(a)
            elif name in FOLDS:
                text = FOLDS[name].format(a)
            elif name in DTYPES:
                text = f'{a}.to(torch.{DTYPES[name]})'
            else:
                text = f'{IN_TORCH.get(name, "torch." + name)}({a})'
            stack.append(f'v{len(lines)}')
            lines.append(f'    {stack[-1]} = {text}\n')
        names = ', '.join(f'x{i}' for i in range(len(self.inputs)))
        scope = {'torch': torch}
        exec(f'def function({names}):\n{"".join(lines)}    return {stack[0]}\n', scope)
        return scope['function']


def drawn(seed, count):
    """Chains of 3 to 12 calls over 2-d tensors and rows of them; every other one has a call on
    rows."""
    draw = random.Random(seed)
    for k in range(count):
        columns = draw.choice([1024, 4096, 5000, 3072])
        dtype = draw.choice(['f32', 'bf16', 'f32', 'bf16', 'f16'])
        rows = (256 << 20) // columns // (4 if dtype == 'f32' else 2)
        inputs, words = [((rows, columns), dtype)], ['x0']
        for _ in range(draw.randint(3, 12)):
            kind = draw.random()
            if kind < 0.35:
                shape = draw.choice([(rows, columns), (columns,), (rows, 1)])
                if len(inputs) < 4 and draw.random() < 0.6:
                    inputs.append((shape, dtype))
                    words.append(f'x{len(inputs) - 1}')
                else:
                    words.append(f'x{draw.randrange(len(inputs))}')
                words.append(draw.choice(BINARY))
            elif kind < 0.55:
                words.append(f'{draw.choice(["add", "mul"])}:{draw.uniform(-1, 1):.3f}')
            else:
                words.append(draw.choice([w for w in UNARY if w != 'exp']))
        if k % 2:
            words.insert(draw.choice([i for i, word in enumerate(words, 1) if word[0] != 'x'] or
                                     [len(words)]), draw.choice(list(ROWS)))
        if draw.random() < 0.3:
            words.append('f32' if dtype == 'bf16' else 'bf16')
        yield (f'drawn {k}: {" ".join(words)}', f'{rows}x{columns}', dtype), \
            Case(' '.join(words), inputs)


def cases_of(options):
    yield ('cos', f'{SIZE}', 'f32'), Case('x0 cos', [((SIZE,), 'f32')])
    yield ('cos cos', f'{SIZE}', 'f32'), Case('x0 cos cos', [((SIZE,), 'f32')])
    shape = (32768, 3072)
    yield ('bias gelu dropout residual', '32768x3072', 'bf16'), \
        Case('x0 x1 add gelu dropout:0.1 x2 add',
             [(shape, 'bf16'), ((3072,), 'bf16'), (shape, 'bf16')])
    yield ('add scale cast', '32768x3072', 'f32'), \
        Case('x0 x1 add mul:0.5 bf16', [(shape, 'f32'), (shape, 'f32')])
    for dtype, columns in [('f32', 3072), ('bf16', 3072), ('bf16', 5000)]:
        shape = ((128 << 20) // columns, columns)
        for fold in FOLDS:
            yield (f'mul {fold}', 'x'.join(map(str, shape)), dtype), \
                Case(f'x0 x1 mul abs {fold} neg', [(shape, dtype), (shape, dtype)])
    yield from drawn(options.seed, options.cases if options.cases < 1000 else 12)


class Function:
    """Tessera's side: a function of compare_function.c, eager or compiled."""
    def __init__(self, library, words, compiled):
        self.library, c = library, library.loop
        c.compare_function_new.restype = ctypes.c_void_p
        c.compare_function_new.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
        c.compare_function_free.argtypes = [ctypes.c_void_p]
        c.compare_function_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int,
                                           ctypes.c_int, ctypes.c_void_p]
        self.at = c.compare_function_new(words.encode(), compiled, 0)

    def run(self, tensors, turns, out=None):
        array = (ctypes.c_void_p * len(tensors))(*tensors)
        self.library.check(self.library.loop.compare_function_run(
            self.at, array, len(tensors), turns, ctypes.byref(out) if out is not None else None))

    def microseconds(self, tensors, turns):
        library, (begin, end) = self.library, self.library.events
        ms, c = ctypes.c_double(), self.library.c
        library.check(c.ts_synchronize(library.device))
        library.check(c.ts_event_record(library.device, begin))
        self.run(tensors, turns)
        library.check(c.ts_event_record(library.device, end))
        library.check(c.ts_event_synchronize(library.device, end))
        library.check(c.ts_event_elapsed(library.device, begin, end, ctypes.byref(ms)))
        return ms.value * 1e3 / turns

    def free(self):
        self.library.loop.compare_function_free(self.at)


def measure(torch, library, case):
    """Microseconds of ours, torch, torch.compile, and the bytes that a group moves."""
    theirs = case.torch_function(torch)
    compiled = torch.compile(theirs, dynamic=False)
    arguments = case.make(torch)
    with library.scope():
        ours = Function(library, case.words, True)
        tensors = [library.tensor(t) for t in arguments]
        out = ctypes.c_void_p()
        ours.run(tensors, 2, out)
        expected = theirs(*arguments)
        if 'dropout' not in case.words:
            got = library.read(out, expected).double()
            worst, most = (got - expected.double()).abs().max().item(), \
                expected.double().abs().max().item()
            half = any(dtype != 'f32' for _, dtype in case.inputs) or 'bf16' in case.words
            if not worst <= (5e-2 if half else 1e-4) * max(most, 1e-3):
                raise ValueError(f'differs by {worst:.3g} of {most:.3g}')
            del got
        count = sum(t.nbytes for t in arguments) + expected.nbytes
        del expected
        graphs = [cuda_suite.graph_of(torch, f, [arguments])[0] for f in (theirs, compiled)]
        times = cuda_suite.in_turns(
            [partial(ours.microseconds, tensors)]
            + [partial(cuda_suite.replay_us, torch, graph) for graph in graphs])
        ours.free()
    library.release()
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    return times, count


def run(options, torch, library, write):
    roof, failures = cuda_suite.Roof(torch), []
    for name, case in cases_of(options):
        if options.only and options.only not in ' '.join(name):
            continue
        try:
            times, count = measure(torch, library, case)
            write(name, *times, roof.copy(count))
        except Exception as error:  # one broken case must not hide the others
            text = str(error).splitlines()[0] if str(error) else repr(error)
            failures.append(f'{" ".join(name)}: {text}')
            write(name, None, None, None, None, text)
            library.release()
    write.summary()
    return failures


writer = cuda_suite.Writer
