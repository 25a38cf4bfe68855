"""
CPU cases of bench/compare.py for image operators: the convolutions, batch norms and pools of
ResNet-50 and of a U-Net with 31 M parameters, contiguous and channels-last, forward and backward.
"""
# SPDX-License-Identifier: MIT
from functools import partial

import torch

from peers.cpu_cases import Case, text
from peers.image_ops import on_cpu

aten = torch.ops.aten
CASES = {}

# (batch, channels, side, features, kernel, stride); padding keeps the side
RESNET = [(2, 3, 224, 64, 7, 2),
          (4, 64, 56, 64, 1, 1), (4, 64, 56, 64, 3, 1), (4, 64, 56, 256, 1, 1),
          (4, 256, 56, 64, 1, 1), (4, 256, 56, 512, 1, 2), (4, 128, 56, 128, 3, 2),
          (4, 128, 28, 128, 3, 1), (4, 128, 28, 512, 1, 1), (4, 512, 28, 128, 1, 1),
          (4, 256, 28, 256, 3, 2), (4, 256, 14, 256, 3, 1), (4, 256, 14, 1024, 1, 1),
          (4, 1024, 14, 256, 1, 1), (4, 512, 14, 512, 3, 2), (4, 512, 7, 512, 3, 1),
          (4, 512, 7, 2048, 1, 1), (4, 2048, 7, 512, 1, 1)]
UNET = [(1, 3, 128, 64, 3, 1), (1, 64, 128, 64, 3, 1), (1, 128, 64, 128, 3, 1),
        (1, 256, 32, 256, 3, 1), (1, 512, 16, 512, 3, 1), (1, 1024, 8, 1024, 3, 1),
        (1, 128, 128, 64, 3, 1), (1, 64, 128, 2, 1, 1)]
UP = [(1, 128, 64, 64), (1, 1024, 8, 512)]  # transposed, kernel and stride 2
# inputs of batch norms and pools
NORMED = [(4, 64, 112, 112), (4, 256, 56, 56), (4, 512, 28, 28), (4, 2048, 7, 7),
          (1, 64, 128, 128), (1, 512, 16, 16)]
POOLED = [(4, 64, 112, 112), (4, 2048, 7, 7), (1, 64, 128, 128), (1, 512, 16, 16)]
GROUPS = [(4, 96, 56, 96, 3, 1, 96), (4, 256, 28, 256, 3, 1, 32)]


def convolution(n, c, side, o, k, stride, last, groups=1, transposed=False):
    shape = (f'{text(n, c, side, side)} {o}k{k}s{stride}' + (f'g{groups}' if groups > 1 else '') +
             (' last' if last else ''))
    name = 'conv_transpose' if transposed else 'conv'
    padding = 0 if transposed else k // 2
    numbers = [[stride] * 2, [padding] * 2, [1, 1], transposed, [0, 0], groups]

    def tensors():
        x = torch.randn(n, c, side, side)
        first = (c, o // groups) if transposed else (o, c // groups)
        w, b = torch.randn(*first, k, k), torch.randn(o)
        if last:
            x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
        return x, w, b

    def forward():
        x, w, b = tensors()
        return Case([('convolution', [x, w, b, *numbers])],
                    partial(aten.convolution, x, w, b, *numbers))

    def backward():
        x, w, b = tensors()
        grad = torch.randn_like(aten.convolution(x, w, b, *numbers))
        sizes = list(x.shape), list(w.shape)
        return Case([('convolution_backward', [grad, x, w, *sizes, *numbers])],
                    partial(aten.convolution_backward, grad, x, w, [o], *numbers, [True] * 3),
                    same=3)

    CASES[name, shape] = forward, False
    CASES[name + '_backward', shape] = backward, False


for last in (False, True):
    for shape in RESNET + UNET:
        convolution(*shape, last)
    for shape in UP:
        convolution(*shape, 2, 2, last, transposed=True)
    for *shape, groups in GROUPS:
        convolution(*shape, last, groups)
CASES.update(on_cpu(Case, {'batch_norm': NORMED, 'pool': POOLED}))
