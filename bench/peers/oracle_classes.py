"""
Classes of differences from PyTorch that are meant. Each has a line with its reason in
docs/differences.md, under the same name; a class without a line, or a line without a class, is an
error.
"""
# SPDX-License-Identifier: MIT
import re

CLASSES = {}


def explains(name):
    def add(holds):
        CLASSES[name] = holds
        return holds
    return add


def documented(path):
    """The line of each class, by name."""
    lines = {}
    for line in path.read_text(encoding='utf-8').splitlines():
        row = re.match(r'\| `([a-z0-9-]+)` \| (.*) \|$', line)
        if row:
            lines[row[1]] = row[2]
    return lines


def explain(difference):
    """Name of the first class that a difference belongs to, or None."""
    for name, holds in CLASSES.items():
        if holds(difference):
            return name
    return None


# ------------------------------------------------------------------- calls that are refused ----

def refused(name, ours, theirs='.*'):
    """A call that is refused here, by a text, and not by PyTorch."""
    CLASSES[name] = lambda d: d.kind == 'refused' and bool(re.search(ours, d.ours.refusal))


def accepted(name, theirs):
    """A call that PyTorch refuses, by a text, and that is not refused here."""
    CLASSES[name] = lambda d: d.kind == 'accepted' and bool(re.search(theirs, d.theirs.refusal))


refused('out-dtype', "'out': expected dtype")
refused('out-sizes', "'out': expected sizes")
refused('out-expanded', "'out': expected distinct elements")
refused('in-place-shared', 'shares? .*memory|overlap')
refused('in-place-saved', 'was written in place since')
refused('in-place-views', 'in place')
refused('integers', 'expected a floating dtype|not defined for dtype|no kernel for dtype bool|'
        'expected a whole number|expected an integer for self')
refused('numbers-that-do-not-fit', 'expected a number that fits')
refused('indices-of-nothing', 'expected indices from 0 to -1')
accepted('torch-lacks', 'not implemented|does not support|not supported')
accepted('torch-refuses-a-mix', 'but got dtype|but found dtype|expected .*dtype|same dtype|'
         "can't be cast|data ?type")
accepted('torch-refuses-integers', 'to be Long or Byte|must be .*Long|floating|integral')
accepted('numbers-overflow', 'without overflow')
accepted('scatter-src-larger', 'Scatter.*invalid gradient')
accepted('minus-one-of-nothing', 'unspecified dimension size -1')
accepted('one-value-a-group', 'Expected more than 1 value per channel')


@explains('truth-of-u8')
def _(d):
    return d.kind == 'dtype' and d.op in ('all', 'any') and str(d.b.dtype) == 'torch.uint8'


@explains('sum-to-size-dtype')
def _(d):
    return d.kind == 'dtype' and d.op == 'sum_to_size'
