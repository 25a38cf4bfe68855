"""
The training step of a small GPT on both sides, with the same weights and the same batch. As a
program, `gpt.py ours BUILD THREADS` or `gpt.py torch BUILD THREADS` prints the bytes by which its
process grows over a few steps.
"""
# SPDX-License-Identifier: MIT
import ctypes
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from peers import tessera  # noqa: E402, it is a program too

B, T, C, H, L, V = 16, 128, 128, 4, 4, 256
HALF = False  # True: the forward runs under autocast to bf16
DROPOUT = 0.0
SHAPE = f'B={B} T={T} C={C} H={H} L={L} V={V}'


def peak(build, reset):
    """Peak bytes in use on the library's default device since the last reset. reset: resets the
    peak first."""
    found = ctypes.c_int64()
    c = ctypes.CDLL(str(Path(build).resolve() / 'bench' / 'libcompare.so'))
    c.compare_gpt_peak.argtypes = [ctypes.c_bool, ctypes.c_void_p]
    if c.compare_gpt_peak(reset, ctypes.byref(found)):
        raise RuntimeError('no figures of memory')
    return found.value


class Ours:
    """The step of compare_gpt.c."""

    def __init__(self, build, values=None, tokens=None, targets=None):
        tessera.library(build)
        self.c = c = ctypes.CDLL(str(Path(build).resolve() / 'bench' / 'libcompare.so'))
        c.compare_gpt_new.restype = ctypes.c_void_p
        c.compare_gpt_run.restype = ctypes.c_double
        for name in ('compare_gpt_run', 'compare_gpt_memory', 'compare_gpt_free'):
            getattr(c, name).argtypes = [ctypes.c_void_p]
        pointers = (ctypes.c_void_p * len(values))(*values) if values else None
        self.loss = ctypes.c_double()
        c.compare_gpt_new.argtypes = [ctypes.c_void_p, ctypes.c_double] + [ctypes.c_void_p] * 3
        self.model = c.compare_gpt_new((ctypes.c_int64 * 7)(B, T, C, H, L, V, HALF), DROPOUT,
                                       pointers, tokens, targets)
        if not self.model:
            raise MemoryError('compare_gpt_new')

    def compile(self, graph, replay, recompute):
        self.c.compare_gpt_compile.argtypes = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool,
                                               ctypes.c_int64]
        if self.c.compare_gpt_compile(self.model, graph, replay, recompute):
            raise MemoryError('compare_gpt_compile')

    def explain(self):
        self.c.compare_gpt_explain.argtypes = [ctypes.c_void_p]
        self.c.compare_gpt_explain(self.model)

    def host(self):
        """Mean host nanoseconds of a step in the last run(), without the read of the loss."""
        self.c.compare_gpt_host.argtypes = [ctypes.c_void_p]
        self.c.compare_gpt_host.restype = ctypes.c_double
        return self.c.compare_gpt_host(self.model)

    def run(self, turns):
        ns = self.c.compare_gpt_run(self.model, ctypes.c_int(turns), ctypes.byref(self.loss))
        if ns < 0:
            self.c.ts_error_print()
            raise RuntimeError('the step failed')
        return ns

    def memory(self):
        """Bytes in use before a step and after its forward, and the peak."""
        found = (ctypes.c_int64 * 3)()
        if self.c.compare_gpt_memory(self.model, found):
            raise RuntimeError('the step failed')
        return list(found)

    def free(self):
        self.c.compare_gpt_free(self.model)


def torch_model():
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.qkv, self.out = nn.LayerNorm(C), nn.Linear(C, 3 * C), nn.Linear(C, C)
            self.norm2, self.up, self.down = (nn.LayerNorm(C), nn.Linear(C, 4 * C),
                                              nn.Linear(4 * C, C))
            self.drop = nn.Dropout(DROPOUT)

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).split(C, 2)
            q, k, v = (t.view(B, T, H, C // H).transpose(1, 2) for t in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=DROPOUT)
            x = x + self.drop(self.out(y.transpose(1, 2).reshape(B, T, C)))
            return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)), approximate='tanh')))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(V, C)
            self.positions = nn.Embedding(T, C)
            self.blocks = nn.ModuleList(Block() for _ in range(L))
            self.norm, self.head = nn.LayerNorm(C), nn.Linear(C, V, bias=False)
            self.drop = nn.Dropout(DROPOUT)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, tokens, targets):
            x = self.drop(self.tokens(tokens) + self.positions.weight)
            for block in self.blocks:
                x = block(x)
            return F.cross_entropy(self.head(self.norm(x)).view(B * T, V), targets)

    torch.manual_seed(1)
    return GPT(), torch.randint(0, V, (B, T)), torch.randint(0, V, (B * T,))


def torch_step(model, tokens, targets, fused):
    import torch
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1,
                                  fused=fused)

    def step():
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=HALF):
            loss = model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()
    return step


def status(field):
    """A field of /proc/self/status in bytes."""
    with open('/proc/self/status', encoding='ascii') as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def reset_peak():
    """Resets the process's peak of resident memory (VmHWM)."""
    with open('/proc/self/clear_refs', 'w', encoding='ascii') as file:
        file.write('5')


def growth(side, build, threads):
    """Prints the peak of resident memory over the steps minus that before the model existed."""
    steps = 5
    if side == 'ours':
        library = tessera.library(build)
        library.ts_set_num_threads(threads)
        reset_peak()
        before = status('VmRSS')
        Ours(build).run(steps)
    else:
        import torch
        torch.set_num_threads(threads)
        small = torch.randn(64, 64, requires_grad=True)
        (small @ small).sum().backward()  # loads the libraries of product and backward
        reset_peak()
        before = status('VmRSS')
        step = torch_step(*torch_model(), fused=True)
        for _ in range(steps):
            step()
    print(status('VmHWM') - before)


if __name__ == '__main__':
    growth(sys.argv[1], sys.argv[2], int(sys.argv[3]))
