"""
Compares attention, forward and backward, with PyTorch's flash and cuDNN backends.

Cases have B * S = 16,384 and H * D = 2,048, as in the papers on FlashAttention, in bf16, on random
normal data. Tensors have 64 MiB, and calls alternate between two sets of them, so that no side
finds its operands in the caches. All sides compute the statistics that a backward needs. PyTorch's
calls are replays of CUDA graphs; Tessera's are calls, queued faster than they run. Rates count
4 B H S^2 D operations for a forward, half of that with a causal mask, and 2.5 times that for a
backward, whatever a side computes."""
# SPDX-License-Identifier: MIT
import re
import time
from dataclasses import dataclass
from functools import partial

from peers.cuda_suite import geometric_mean, graph_of, in_turns, replay_us

TOKENS, WIDTH = 16384, 2048
ROWS = 512, 1024, 2048, 4096, 8192, 16384
DEPTHS = 64, 128
PEERS = 'flash', 'cudnn'
SETS = 2
TURN_US = 10e3


@dataclass
class Case:
    depth: int
    causal: bool
    rows: int
    backward: bool
    deterministic: bool

    @property
    def sizes(self):
        return TOKENS // self.rows, WIDTH // self.depth, self.rows, self.depth

    @property
    def name(self):
        """(op, shape, dtype)"""
        op = '_'.join(['attention', *['backward'] * self.backward, f'hd{self.depth}',
                       'causal' if self.causal else 'full',
                       *['deterministic'] * self.deterministic])
        return op, 'x'.join(map(str, self.sizes[:3])), 'bf16'

    @property
    def flops(self):
        b, h, s, d = self.sizes
        return 4 * b * h * s * s * d // (2 if self.causal else 1) * (2.5 if self.backward else 1)

    @property
    def peers(self):
        """Torch does not offer cuDNN's backward in deterministic mode."""
        return PEERS[:1] if self.deterministic else PEERS


CASES = [Case(depth, causal, rows, backward, deterministic)
         for backward, deterministic in ((False, False), (True, False), (True, True))
         for depth in DEPTHS for causal in (False, True) for rows in ROWS]


class Sides:
    """The calls of each side for one set of arguments: (query, key, value, grad, results of each
    peer's forward)."""

    def __init__(self, torch, case):
        self.torch, self.case, self.aten = torch, case, torch.ops.aten

    def forward(self, peer, q, k, v):
        if peer == 'flash':
            return self.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, self.case.causal)
        return self.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0,
                                                             self.case.causal)

    def backward(self, peer, q, k, v, g, found):
        out, lse, q_starts, k_starts, q_most, k_most, seed, offset = found[:8]
        if peer == 'flash':
            return self.aten._scaled_dot_product_flash_attention_backward(
                g, q, k, v, out, lse, q_starts, k_starts, q_most, k_most, 0.0, self.case.causal,
                seed, offset)
        return self.aten._scaled_dot_product_cudnn_attention_backward(
            g, q, k, v, out, lse, seed, offset, None, q_starts, k_starts, q_most, k_most, 0.0,
            self.case.causal)

    def make(self):
        q, k, v, g = (self.torch.randn(self.case.sizes, device='cuda').bfloat16() for _ in range(4))
        found = ({peer: self.forward(peer, q, k, v) for peer in self.case.peers}
                 if self.case.backward else {})
        dense = [x.contiguous() for x in found['flash'][:2]] if found else []
        return q, k, v, g, found, dense

    def theirs(self, peer, q, k, v, g, found, _):
        return (self.backward(peer, q, k, v, g, found[peer]) if self.case.backward
                else self.forward(peer, q, k, v)[:2])

    def ours(self, q, k, v, g, _, dense):
        options = [None] * 4 + [[-1, 0] if self.case.causal else None, 0.0, 0.0]
        if self.case.backward:
            return ('scaled_dot_product_attention_backward',
                    [g, None, q, k, v, *dense, *options, 0, 0])
        return 'scaled_dot_product_attention', [q, k, v, *options]


def check(library, sides, arguments):
    """Raises ValueError unless our results are within 2 % of each peer's largest element."""
    ours = library.call(*sides.ours(*arguments))
    for peer in sides.case.peers:
        theirs = sides.theirs(peer, *arguments)
        if not sides.case.backward and peer == 'cudnn':
            theirs = theirs[:1]  # cuDNN's statistics have another shape
        for i, right in enumerate(theirs):
            a, b = library.read(ours[i], right).float(), right.float()
            worst, limit = (a - b).abs().max().item(), 2e-2 * b.abs().max().item()
            if not worst <= limit:
                raise ValueError(f'result {i}: differs from {peer} by {worst:.3g}, '
                                 f'allowed {limit:.3g}')


def measure(torch, library, case):
    """Microseconds of ours and of each peer."""
    sides = Sides(torch, case)
    sets = [sides.make() for _ in range(SETS)]
    check(library, sides, sets[0])
    sequence = library.sequence([sides.ours(*arguments) for arguments in sets])
    graphs = [graph_of(torch, partial(sides.theirs, peer), sets) for peer in case.peers]
    runs = ([partial(library.microseconds, sequence)]
            + [partial(replay_us, torch, graph) for graph, _ in graphs])
    return [us / SETS for us in in_turns(runs, TURN_US)]


def run(options, torch, library, write):
    # otherwise PyTorch runs an additional kernel, which fills uninitialised memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    failures, deadline = [], time.monotonic() + options.minutes * 60
    for case in CASES:
        label = ' '.join(case.name)
        if not re.search(options.only, label):
            continue
        if time.monotonic() > deadline:
            failures.append(f'{label} and what follows: out of time')
            break
        torch.manual_seed(1)
        torch.use_deterministic_algorithms(case.deterministic)
        library.check(library.c.ts_set_deterministic(case.deterministic))
        with library.scope(), torch.no_grad():
            try:
                write(case, measure(torch, library, case))
            except Exception as error:  # one broken case must not hide the others
                failures.append(f'{label}: {error}')
                write(case, [], str(error).splitlines()[0] if str(error) else repr(error))
            library.release()
        torch.cuda.empty_cache()
    write.summary()
    return failures


class Writer:
    """Writes a row to stdout and, tab separated, to out."""
    columns = ('op', 'shape', 'dtype', 'ours_us', 'flash_us', 'cudnn_us', 'gflop', 'ours_tflops',
               'flash_tflops', 'cudnn_tflops', 'note')
    form = '{:<44} {:<11} {:<5} {:>9} {:>9} {:>9} {:>9} {:>11} {:>12} {:>12}  {}'

    def __init__(self, out):
        self.out, self.rows = out, []
        print(self.form.format(*self.columns))
        if out:
            print(*self.columns, sep='\t', file=out)

    def __call__(self, case, times, note=''):
        times = [*times, None, None, None][:1 + len(PEERS)]
        rates = [us and case.flops / us / 1e6 for us in times]
        row = (*case.name, *(f'{us:.1f}' if us else '-' for us in times),
               f'{case.flops / 1e9:.1f}', *(f'{rate:.0f}' if rate else '-' for rate in rates), note)
        last = max(filter(None, rates[1:]), default=0)
        mark = f'{rates[0] / last:.2f} of the faster' if rates[0] and last else ''
        print(self.form.format(*row) + mark, flush=True)
        if self.out:
            print(*row, sep='\t', file=self.out, flush=True)
        if rates[0]:
            self.rows.append((case, times))

    def summary(self):
        """Summary of the rows: a line for forward, backward and its deterministic mode, also in
        out."""
        kinds = {'forward': (False, False), 'backward': (True, False),
                 'backward, deterministic': (True, True)}
        for kind, which in kinds.items():
            rows = [(case, times) for case, times in self.rows
                    if (case.backward, case.deterministic) == which]
            line = f'# {kind}: {len(rows)} cases'
            for i, peer in enumerate(PEERS, 1):
                ratios = [(times[i] / times[0], ' '.join(case.name[:2])) for case, times in rows
                          if times[i]]
                if ratios:
                    line += (f'; {peer} takes {geometric_mean([r for r, _ in ratios]):.3f} times '
                             f'as long, least {min(ratios)[0]:.3f} ({min(ratios)[1]})')
            if rows:
                print(line)
                if self.out:
                    print(line, file=self.out)


writer = Writer  # the interface of a suite for compare.py
