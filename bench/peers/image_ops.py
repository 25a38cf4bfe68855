"""
Benchmark cases that compare image operators (norms, pooling, padding, resizing) with PyTorch's,
contiguous and channels-last. A case is a Tessera call and a PyTorch function on the same memory.
"""
# SPDX-License-Identifier: MIT
from functools import partial

import torch
import torch.nn.functional as F

aten = torch.ops.aten


def image(sizes, last, dtype, device):
    format = torch.channels_last if last and len(sizes) == 4 else torch.contiguous_format
    return torch.randn(sizes, device=device).to(dtype).contiguous(memory_format=format)


def batch_norm(sizes, make):
    x, g, c = make(sizes), make(sizes), sizes[1]
    w, b = (torch.randn(c, device=x.device) for _ in range(2))
    mean, var = torch.zeros(c, device=x.device), torch.ones(c, device=x.device)
    dims = [0, *range(2, len(sizes))]
    m, v = x.float().mean(dims), x.float().var(dims, unbiased=False)
    yield ('batch_norm', [x, None, None, w, b, 1e-5],
           partial(F.batch_norm, x, None, None, w, b, True, 0.1, 1e-5))
    yield ('batch_norm eval', [x, mean, var, w, b, 1e-5],
           partial(F.batch_norm, x, mean, var, w, b, False, 0.1, 1e-5))
    yield ('batch_norm_backward', [g, x, m, v, w, 1e-5, False],
           partial(aten.native_batch_norm_backward, g, x, w, mean, var, m, (v + 1e-5).rsqrt(), True,
                   1e-5, [True] * 3))


def group_norm(sizes, make):
    x, g, (n, c) = make(sizes), make(sizes), sizes[:2]
    w, b = (torch.randn(c, device=x.device).to(x.dtype) for _ in range(2))
    groups, spatial = 8, x[0, 0].numel()
    _, m, r = aten.native_group_norm(x, w, b, n, c, spatial, groups, 1e-5)
    v = r.float() ** -2 - 1e-5
    yield 'group_norm', [x, groups, w, b, 1e-5], partial(F.group_norm, x, groups, w, b, 1e-5)
    yield ('group_norm_backward', [g, x, m.float(), v, w, groups, 1e-5],
           partial(aten.native_group_norm_backward, g, x, m, r, w, n, c, spatial, groups,
                   [True] * 3))


NO_SCALES = [0.0, 0.0, 0.0]


def pool(sizes, make):
    x, (n, c, h, w) = make(sizes), sizes
    for k, stride, padding in (2, 2, 0), (3, 2, 1):
        text = f'{k}/{stride}'
        yield (f'max_pool {text}', [x, [k, k], [stride, stride], [padding] * 2, [1, 1], False],
               partial(F.max_pool2d, x, k, stride, padding, return_indices=True))
        y, at = F.max_pool2d(x, k, stride, padding, return_indices=True)
        g = torch.randn_like(y)
        yield (f'max_pool_backward {text}',
               [g, at, [h, w], [k, k], [stride, stride], [padding] * 2, [1, 1]],
               partial(aten.max_pool2d_with_indices_backward, g, x, [k, k], [stride, stride],
                       [padding] * 2, [1, 1], False, at))
        yield (f'avg_pool {text}', [x, [k, k], [stride, stride], [padding] * 2, False, True, 0],
               partial(F.avg_pool2d, x, k, stride, padding))
        yield (f'avg_pool_backward {text}',
               [g, [h, w], [k, k], [stride, stride], [padding] * 2, False, True, 0],
               partial(aten.avg_pool2d_backward, g, x, [k, k], [stride, stride], [padding] * 2,
                       False, True, None))
    yield 'adaptive_avg_pool', [x, [1, 1]], partial(F.adaptive_avg_pool2d, x, 1)


def resize(sizes, make):
    x, (n, c, h, w) = make(sizes), sizes
    large = make((n, c, 2 * h, 2 * w))
    for mode, name in (0, 'nearest'), (1, 'bilinear'), (2, 'bicubic'):
        corners = {} if mode == 0 else {'align_corners': False}
        yield (f'interpolate {name}', [x, [2 * h, 2 * w], mode, False, *NO_SCALES],
               partial(F.interpolate, x, (2 * h, 2 * w), mode=name, **corners))
        backward = getattr(aten, f'upsample_{name}2d_backward')
        flags = [] if mode == 0 else [False]
        yield (f'interpolate_backward {name}', [large, [h, w], mode, False, *NO_SCALES],
               partial(backward, large, [2 * h, 2 * w], list(sizes), *flags))


def pad(sizes, make):
    x = make(sizes)
    for mode, name in enumerate(['constant', 'reflect', 'replicate', 'circular']):
        yield f'pad {name}', [x, [1, 2, 1, 1], mode, 0.0], partial(F.pad, x, [1, 2, 1, 1], name)
    g = make((*sizes[:2], sizes[2] + 2, sizes[3] + 3))
    yield ('pad_backward reflect', [g, [1, 2, 1, 1], 1],
           partial(aten.reflection_pad2d_backward, g, x, [1, 2, 1, 1]))
    yield ('pad_backward constant', [g, [1, 2, 1, 1], 0], partial(F.pad, g, [-1, -2, -1, -1]))


SHAPES = [(8, 64, 64, 64), (8, 256, 14, 14), (4, 3, 128, 128), (32, 512, 7, 7), (2, 64, 256, 256)]
IMAGES = [(8, 64, 64, 64), (4, 3, 224, 224), (16, 256, 14, 14)]
FAMILIES = {'batch_norm': (batch_norm, SHAPES),
            'group_norm': (group_norm, [s for s in SHAPES if s[1] % 8 == 0]),
            'pool': (pool, IMAGES), 'resize': (resize, IMAGES), 'pad': (pad, IMAGES)}


def cases(family, dtype, device, scale=1, shapes=None):
    """Yields (name, shape, Tessera call, PyTorch function)."""
    make_all, usual = FAMILIES[family]
    for sizes in shapes or usual:
        for last in (False, True):
            sizes = (sizes[0] * scale, *sizes[1:])
            for name, args, theirs in make_all(sizes, lambda s: image(s, last, dtype, device)):
                text = 'x'.join(map(str, sizes)) + (' last' if last else '')
                yield name, text, (name.split()[0], args), theirs


def on_cpu(case, chosen):
    """For bench/compare.py: functions that create the cases, by name and shape. chosen: shapes by
    family."""
    made = {}

    def maker(family, index):
        def make():
            _, _, call, theirs = list(cases(family, torch.float32, 'cpu',
                                            shapes=chosen[family]))[index]
            return case([call], theirs, rtol=1e-3)
        return make

    for family, shapes in chosen.items():
        for i, (name, shape, _, _) in enumerate(cases(family, torch.float32, 'meta',
                                                      shapes=shapes)):
            made[name, shape] = maker(family, i), False
    return made
