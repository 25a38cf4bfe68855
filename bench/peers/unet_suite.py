"""
Compares a U-Net with 31 million parameters (examples/unet_model.h: batch norm, 64 to 1,024
channels) on a GPU: training (forward, cross-entropy, backward, AdamW) and inference in evaluation
mode, images of 256 x 256, channels-last, under autocast to bf16, without recorded gradients in
inference. All sides start from the same weights and use the same images. The mean absolute logits
must agree, and the losses after the first steps.

The sides of a batch size take turns in one process. A turn is 10 steps and one wait; the median of
five turns counts. kernels_us is the time of a step's kernels by torch.profiler; a kernel that
starts before the one in front has ended counts its wait. host_us is the host's time for a step
(Tessera only). peak_mib is the peak memory of tensors in the last of a side's first steps, model
included; inference runs first, before the optimizer has state. "step graph": a compiled function
with `graph` and `replay`. --kernels N lists the N kernels that take longest on each side.
"""
# SPDX-License-Identifier: MIT
import contextlib
import ctypes
import statistics
import time
from functools import partial
from pathlib import Path

from peers.table import Table, each

BATCHES = 16, 1
SIDE, WIDTH, CLASSES, LEVELS = 256, 64, 2, 5
SIDES = 'eager', 'compiled', 'step graph', 'torch eager', 'torch.compile', 'torch.compile, graphs'
FIRST, TURNS, ROUNDS = 5, 10, 5
WORKS = 'inference', 'training'
LIMIT = 5e-2  # relative difference of losses and of mean logits


def network(torch):
    """The model of examples/unet_model.c, with its order of parameters."""
    nn = torch.nn

    def double_conv(into, out):
        layers = []
        for n in into, out:
            layers += [nn.Conv2d(n, out, 3, padding=1, bias=False),
                       nn.BatchNorm2d(out, momentum=0.02), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            for level in range(LEVELS):
                n = WIDTH << level
                self.add_module(f'encode{level}', double_conv(n // 2 if level else 3, n))
                if level < LEVELS - 1:
                    self.add_module(f'up{level}', nn.ConvTranspose2d(2 * n, n, 2, 2))
                    self.add_module(f'decode{level}', double_conv(2 * n, n))
            self.head = nn.Conv2d(WIDTH, CLASSES, 1)

        def forward(self, x):
            skips = []
            for level in range(LEVELS):
                x = nn.functional.max_pool2d(x, 2) if level else x
                skips.append(x := self.get_submodule(f'encode{level}')(x))
            for level in reversed(range(LEVELS - 1)):
                up = self.get_submodule(f'up{level}')(x)
                x = self.get_submodule(f'decode{level}')(torch.cat([skips[level], up], 1))
            return self.head(x)
    model = UNet()
    for p in model.parameters():
        if p.dim() == 4:
            nn.init.kaiming_normal_(p, nonlinearity='relu')
    return model


def data(torch, batch):
    """(model, images in channels-last, classes): the same in each call, on the CPU."""
    torch.manual_seed(1)
    return (network(torch),
            torch.randn(batch, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last),
            torch.randint(0, CLASSES, (batch, SIDE, SIDE)))


class Ours:
    """The steps of compare_unet.c."""

    def __init__(self, torch, library, options, batch, way):
        from peers import gpt
        self.library = library
        self.c = c = ctypes.CDLL(str(Path(options.build).resolve() / 'bench' / 'libcompare.so'))
        pointer = ctypes.c_void_p
        for name, result, arguments in [
                ('new', pointer, [pointer] * 4), ('free', None, [pointer]),
                ('compile', ctypes.c_int, [pointer, ctypes.c_bool, ctypes.c_bool]),
                ('run', ctypes.c_double, [pointer, ctypes.c_bool, ctypes.c_int, pointer]),
                ('host', ctypes.c_double, [pointer, ctypes.c_bool])]:
            function = getattr(c, f'compare_unet_{name}')
            function.restype, function.argtypes = result, arguments
        in_use = partial(gpt.peak, options.build, True)
        before = in_use()
        model, images, classes = data(torch, batch)
        values = [p.data_ptr() for p in model.parameters()]
        self.u = c.compare_unet_new((ctypes.c_int64 * 5)(batch, SIDE, WIDTH, CLASSES, True),
                                    (pointer * len(values))(*values), images.data_ptr(),
                                    classes.data_ptr())
        if not self.u:
            raise library.fail()
        if way != 'eager' and c.compare_unet_compile(self.u, 'graph' in way, 'graph' in way):
            raise library.fail()
        self.value, self.peak, self.first = ctypes.c_double(), {}, {}
        own = in_use() - before
        for work in WORKS:
            before = in_use() - own  # without the memory of the other work's graph
            self.us(work, FIRST - 1)
            in_use()
            self.us(work, 1)
            self.peak[work] = gpt.peak(options.build, False) - before
            self.first[work] = self.value.value

    def us(self, work, turns):
        ns = self.c.compare_unet_run(self.u, work == 'training', turns, ctypes.byref(self.value))
        if ns < 0:
            raise self.library.fail()
        return ns / 1e3

    def host_us(self, work):
        return self.c.compare_unet_host(self.u, work == 'training') / 1e3

    def free(self):
        self.c.compare_unet_free(self.u)


class Torch:
    def __init__(self, torch, _library, _options, batch, way):
        before = torch.cuda.memory_allocated()
        model, images, self.classes = data(torch, batch)
        self.torch, self.images = torch, images.cuda()
        self.classes = self.classes.cuda()
        self.model = model.cuda().to(memory_format=torch.channels_last)
        mode = 'reduce-overhead' if 'graphs' in way else None
        self.call = self.model if way == 'torch eager' else torch.compile(self.model, mode=mode)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.999),
                                           eps=1e-8, weight_decay=0.01, fused=True)
        self.peak, self.first = {}, {}
        for work in WORKS:
            self.us(work, FIRST - 1)
            torch.cuda.reset_peak_memory_stats()
            self.us(work, 1)
            self.peak[work] = None if 'graphs' in way else \
                torch.cuda.max_memory_allocated() - before  # graphs have memory of their own
            last = self.last if work == 'training' else self.last.float().abs().mean()
            self.first[work] = last.item()

    def learn(self):
        torch = self.torch
        with torch.autocast('cuda', torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.call(self.images), self.classes)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def infer(self):
        with self.torch.no_grad(), self.torch.autocast('cuda', self.torch.bfloat16):
            return self.call(self.images)

    def us(self, work, turns):
        if self.model.training != (work == 'training'):
            self.model.train(work == 'training')
        step = self.learn if work == 'training' else self.infer
        self.torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(turns):
            self.last = step()
        self.torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e6 / turns

    def host_us(self, _work):
        return None

    def free(self):
        self.call = self.model = self.optimizer = self.last = None


def kernels_of(torch, side, work):
    """{name: (microseconds, launches) per step} of kernels and copies."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        side.us(work, TURNS)
        torch.cuda.synchronize()
    return {event.key: (event.self_device_time_total / TURNS, event.count / TURNS)
            for event in profiled.key_averages() if event.self_device_time_total}


def check(sides):
    for work in WORKS:
        losses = {way: side.first[work] for way, side in sides.items()}
        size = max(map(abs, losses.values()))
        if not max(losses.values()) - min(losses.values()) <= LIMIT * size:
            raise ValueError(f'{work}: values after {FIRST} steps differ: {losses}')


def measure(options, torch, library, write, batch, ways):
    library.check(library.c.ts_set_default_device(library.device))
    torch.backends.cudnn.benchmark = True
    sides = {}
    with contextlib.ExitStack() as stack:
        for way in ways:
            kind = Torch if way.startswith('torch') else Ours
            sides[way] = kind(torch, library, options, batch, way)
            stack.callback(sides[way].free)
        check(sides)
        for work in WORKS:
            rounds = [[side.us(work, TURNS) for side in sides.values()] for _ in range(ROUNDS)]
            medians = [statistics.median(column) for column in zip(*rounds)]
            for (way, side), us in zip(sides.items(), medians):
                host = side.host_us(work)
                kernels = kernels_of(torch, side, work)
                write(batch, work, way, us, sum(us for us, _ in kernels.values()), host,
                      side.peak[work])
                longest = sorted(kernels.items(), key=lambda item: -item[1][0])
                for kernel, (each, count) in longest[:options.kernels]:
                    write.note(f'{each:9.1f} us {count:6.1f} times  {kernel[:150]}')
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def run(options, torch, library, write):
    return each(BATCHES, 'batch {}', SIDES, options.only,
                lambda batch, ways: measure(options, torch, library, write, batch, ways))


class writer(Table):
    columns = 'batch', 'work', 'side', 'images_per_s', 'step_us', 'kernels_us', 'host_us', \
        'peak_mib'
    form = '{:<6} {:<10} {:<22} {:>12} {:>10} {:>10} {:>10} {:>9}'

    def __call__(self, batch, work, way, us, kernels, host, peak):
        self.row((batch, work, way, f'{batch / us * 1e6:.0f}', f'{us:.1f}', f'{kernels:.1f}',
                  '-' if host is None else f'{host:.1f}',
                  '-' if peak is None else f'{peak / 2**20:.0f}'))
