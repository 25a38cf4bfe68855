"""
Compares training steps of GPTs on a GPU. All sides start from the same weights and read the loss.
Tessera: eager, compiled, as a graph, and as a graph without running the step's C code (replay).
PyTorch: eager, compiled, and compiled with CUDA graphs. The sides of a model take turns in one
process.

step_us is the time of a step, kernels_us that of its kernels by torch.profiler; the rest of a step
is launches and waiting. host_us is the host's time before the read of the loss (Tessera only).
peak_mib is the peak memory of tensors in the last of a side's first steps, model included. A side
"kept" recomputes no value (docs/compile.md). --kernels N lists the N operators or kernels that take
longest on each side.
"""
# SPDX-License-Identifier: MIT
import contextlib
import statistics
import time

from peers.table import Table, each

ROUNDS = 5
STEPS_A_ROUND = 5
FIRST = 4  # steps of a side before it is measured: compilation, and runs before a graph exists

MODELS = {
    'small': {'B': 16, 'T': 128, 'C': 128, 'H': 4, 'L': 4, 'V': 256, 'HALF': False},
    'character': {'B': 64, 'T': 256, 'C': 384, 'H': 6, 'L': 6, 'V': 65, 'HALF': True,
                  'DROPOUT': 0.2},
    'GPT-2 124M': {'B': 8, 'T': 1024, 'C': 768, 'H': 12, 'L': 12, 'V': 50304, 'HALF': True},
    'GPT-2 124M, B 4': {'B': 4, 'T': 1024, 'C': 768, 'H': 12, 'L': 12, 'V': 50304, 'HALF': True},
    'GPT-2 124M, B 32': {'B': 32, 'T': 1024, 'C': 768, 'H': 12, 'L': 12, 'V': 50304, 'HALF': True},
}
SIDES = ('eager', 'compiled', 'graph', 'replay', 'replay, kept',
         'torch eager', 'torch.compile', 'torch.compile, graphs')


def dtype(name):
    return 'bf16' if MODELS[name]['HALF'] else 'f32'


class Ours:
    def __init__(self, build, data, way):
        from peers import gpt
        model, tokens, targets = data
        before = gpt.peak(build, True)
        self.model = gpt.Ours(build, [p.data_ptr() for p in model.parameters()],
                              tokens.data_ptr(), targets.data_ptr())
        if way != 'eager':
            self.model.compile(way != 'compiled', 'replay' in way, -1 if 'kept' in way else 0)
        self.us(FIRST - 1)
        gpt.peak(build, True)
        self.us(1)
        self.peak = gpt.peak(build, False) - before

    def us(self, turns):
        return self.model.run(turns) / 1e3

    def host_us(self):
        return self.model.host() / 1e3

    def loss(self):
        return self.model.loss.value

    def free(self):
        self.model.free()


class Torch:
    def __init__(self, torch, data, way):
        from peers import gpt
        before = torch.cuda.memory_allocated()
        model, tokens, targets = (x.cuda() for x in data)
        if way != 'torch eager':
            model = torch.compile(model, mode='reduce-overhead' if 'graphs' in way else None)
        self.step, self.last = gpt.torch_step(model, tokens, targets, True), None
        self.us(FIRST - 1)
        torch.cuda.reset_peak_memory_stats()
        self.us(1)
        self.peak = torch.cuda.max_memory_allocated() - before

    def us(self, turns):
        begin = time.perf_counter()
        for _ in range(turns):
            self.last = self.step()
        return (time.perf_counter() - begin) * 1e6 / turns

    def host_us(self):
        return None

    def loss(self):
        return self.last

    def free(self):
        self.step = None


@contextlib.contextmanager
def sides_of(torch, library, build, name, ways):
    """The sides after their first steps, by name; their losses must agree."""
    sides = {}
    try:
        start(sides, torch, library, build, name, ways)
        yield sides
    finally:
        for side in sides.values():
            side.free()
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def start(sides, torch, library, build, name, ways):
    from peers import gpt
    for key, value in {'DROPOUT': 0.0, **MODELS[name]}.items():
        setattr(gpt, key, value)
    library.check(library.c.ts_set_default_device(library.device))
    for way in ways:
        data = gpt.torch_model()  # seeded: the same each time
        sides[way] = (Torch(torch, data, way) if way.startswith('torch')
                      else Ours(build, data, way))
    losses = {way: side.loss() for way, side in sides.items()}
    limit = 0.1 if gpt.DROPOUT else 2e-2 if gpt.HALF else 1e-3
    if not max(losses.values()) - min(losses.values()) <= limit * max(losses.values()):
        raise ValueError(f'losses after {FIRST} steps differ: {losses}')


def in_turns(sides):
    rounds = [[side.us(STEPS_A_ROUND) for side in sides.values()] for _ in range(ROUNDS)]
    return [statistics.median(column) for column in zip(*rounds)]


def median_us(torch, library, build, name, ways):
    """Microseconds of a step of each side."""
    with sides_of(torch, library, build, name, ways) as sides:
        return in_turns(sides)


def kernels_of(torch, side):
    """{name: (microseconds, launches) per step} of kernels and copies."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        side.us(STEPS_A_ROUND)
        torch.cuda.synchronize()
    return {event.key: (event.self_device_time_total / STEPS_A_ROUND, event.count / STEPS_A_ROUND)
            for event in profiled.key_averages() if event.self_device_time_total}


def measure(options, torch, library, write, name, ways):
    with sides_of(torch, library, options.build, name, ways) as sides:
        for (way, side), us in zip(sides.items(), in_turns(sides)):
            host = side.host_us()
            kernels = kernels_of(torch, side)
            write(name, way, us, sum(us for us, _ in kernels.values()), host, side.peak)
            longest = sorted(kernels.items(), key=lambda item: -item[1][0])
            for kernel, (each, count) in longest[:options.kernels]:
                write.note(f'{each:9.1f} us {count:6.1f} times  {kernel[:150]}')


def run(options, torch, library, write):
    return each(MODELS, '{}', SIDES, options.only,
                lambda name, ways: measure(options, torch, library, write, name, ways))


class writer(Table):
    columns = 'model', 'side', 'dtype', 'step_us', 'kernels_us', 'host_us', 'tokens_per_s', \
        'peak_mib'
    form = '{:<18} {:<22} {:<5} {:>10} {:>10} {:>10} {:>12} {:>9}'

    def __call__(self, name, way, us, kernels, host, peak):
        tokens = MODELS[name]['B'] * MODELS[name]['T'] / us * 1e6
        self.row((name, way, dtype(name), f'{us:.1f}', f'{kernels:.1f}',
                  '-' if host is None else f'{host:.1f}', f'{tokens:.0f}', f'{peak / 2**20:.0f}'))
