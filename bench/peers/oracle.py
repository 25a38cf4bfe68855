"""
bench/compare.py --suite oracle: draws calls of each operator that PyTorch also has, in all forms
(new result, in place, out=), and compares them with PyTorch and with PyTorch in f64: values,
dtypes, sizes, first and second gradients, and refusals. docs/differences.md lists the accepted
differences.
"""
# SPDX-License-Identifier: MIT
import math
import re
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

from peers import oracle_classes
from peers.oracle_draw import is_float
from peers.oracle_judge import Difference, Judge, pick, spacing, ulps_of
from peers.oracle_ops import OPS
from peers.oracle_sides import HALVES, Case, Ours, run_ours, run_torch
from peers import oracle_images, oracle_more, oracle_random  # which add operators


# ---------------------------------------------------------------------------------- the suite ----

def run_case(library, seed, number, names, mistake=None):
    """The case and its difference, or None. mistake(case, ours, theirs) corrupts our results, if
    possible."""
    library.known.clear()
    torch.manual_seed(0)
    with library.scope():
        case = Case(seed, number, names)
        case.real = False
        if case.op.check:
            text = case.op.check(library, case.d, case.args)
            return case, text and Difference(case, 'random', text)
        plain = run_torch(case)
        case.draw_form(library, plain.values)
        theirs = run_torch(case) if case.form != 'new' or case.orders else plain
        ours = run_ours(library, case, theirs)
        if mistake and not mistake(case, ours, theirs):
            return case, None
        found = next(Judge(case, ours, theirs).differences(), None)
    return case, found


# -------------------------------------------------------------------------------- self-test ----

def coarse(t):
    return t.to({torch.float64: torch.float32, torch.float32: torch.bfloat16}
                .get(t.dtype, t.dtype)).to(t.dtype)


def off(t):
    return t * (1 + (1e-3 if t.dtype not in HALVES else 2 ** -3))


MISTAKES = {'scaled': off, 'negated': torch.neg, 'in another dtype': coarse,
            'moved': lambda t: t.flatten().roll(1).reshape(t.shape),
            'zero': torch.zeros_like,
            'beyond rounding': None,
            'one element': lambda t: torch.where(t == t.flatten()[t.abs().argmax()], off(t), t)}


BEYOND = 4  # multiple of the rounding error


def put_beyond(case, ours, theirs, order):
    """Moves the largest element of a result just beyond the rounding error."""
    found = ours.values if order == 0 else ours.grads.get(order, [])
    other = theirs.values if order == 0 else theirs.grads.get(order, [])
    judge = Judge(case, ours, theirs)
    case.real = True
    for i, (a, b) in enumerate(zip(found, other)):
        if a is None or b is None or not is_float(a.dtype) or not a.numel() or \
                a.shape != b.shape or a.dtype != b.dtype or not torch.isfinite(b).all():
            continue
        r = pick(judge.wide(), order, i)
        if r is None or r.shape != a.shape or not torch.isfinite(r).all():
            continue
        at = int(r.abs().flatten().argmax())
        info, size = torch.finfo(a.dtype), abs(r.flatten()[at].item())
        if not math.sqrt(info.tiny) < size < math.sqrt(info.max):
            continue
        limit = max(ulps_of(case.op, a.dtype) * spacing(size, a.dtype),
                    2 * abs(r.flatten()[at].item() - b.flatten()[at].item()))
        if case.op.sums or order:
            limit += judge.noise(order, i, tuple(a.shape)).flatten()[at]
        wrong = a.flatten().clone()
        wrong[at] = r.flatten()[at] + BEYOND * limit
        found[i] = wrong.reshape(a.shape)
        return bool(torch.isfinite(found[i]).all())
    return False


def spoil(change, order, number):
    """Returns a function that applies `change` to all results of an order (None: put_beyond()), and
    returns True if it made a noticeable mistake."""
    def apply(case, ours, theirs):
        if ours.refusal or case.op.check:
            return False
        if change is None:
            return not theirs.refusal and put_beyond(case, ours, theirs, order)
        found = ours.values if order == 0 else ours.grads.get(order, [])
        changed = False
        for i, t in enumerate(found):
            if t is None or not is_float(t.dtype) or not t.numel() or not torch.isfinite(t).all():
                continue
            size = t.abs().max()
            info = torch.finfo(t.dtype)
            if size < math.sqrt(info.tiny) or size > math.sqrt(info.max):
                continue
            wrong = change(t)
            far = (wrong.double() - t.double()).abs() > 4e-4 * size
            if far.any():
                found[i], changed = wrong, True
        return changed
    return apply


def self_test(library, options, names):
    """Makes mistakes in our results and counts the reported ones, and the others by class. Returns
    0 if at least 19 of 20 are reported."""
    caught, missed = Counter(), Counter()
    for number in range(options.cases):
        kind = list(MISTAKES)[number // len(names) % len(MISTAKES)]
        order = number // len(names) // len(MISTAKES) % 3
        did = []

        def mistake(*sides):
            did.append(spoil(MISTAKES[kind], order, number)(*sides))
            return did[0]
        case, found = run_case(library, options.seed, number, names, mistake)
        if not did or not did[0]:
            continue
        label = oracle_classes.explain(found) if found else 'right'
        if label is None:
            caught[kind] += 1
        else:
            missed[label] += 1
            if options.show:
                print(f'{label} --case {options.seed}:{number} {kind} order {order}: '
                      f'{case.text()}\n    {found.text if found else ""}')
    reported, silent = sum(caught.values()), sum(missed.values())
    print(f'{reported} mistakes reported:',
          ', '.join(f'{count} {kind}' for kind, count in caught.items()))
    print(f'{silent} not reported:',
          ', '.join(f'{count} {label}' for label, count in missed.most_common()))
    return 1 if reported < 19 * silent else 0


def run(options):
    library = Ours(options.build)
    warnings.filterwarnings('ignore', module='torch|peers')
    torch.set_num_threads(1)
    library.c.ts_set_num_threads(1)
    names = [name for name in OPS if re.fullmatch(options.ops or '.*', name)]
    if not names:
        sys.exit(f'compare.py: no operator matches {options.ops}')
    seed, numbers_ = options.seed, range(options.cases)
    if options.case:
        seed, number = map(int, options.case.split(':'))
        numbers_ = [number]
    words = oracle_classes.documented(Path(__file__).parents[2] / 'docs' / 'differences.md')
    oracle_classes.check(words)
    if options.self_test:
        return self_test(library, options, names)
    counts, unexplained, shown = Counter(), 0, Counter()
    chosen = f" --ops '{options.ops}'" if options.ops else ''
    begin = last = time.monotonic()
    for done, number in enumerate(numbers_):
        case, found = run_case(library, seed, number, names)
        if found:
            label = oracle_classes.explain(found)
            counts[label] += 1
            if label is None:
                unexplained += 1
            if (label is None and shown[case.op.name, found.kind] < options.show) or options.case:
                shown[case.op.name, found.kind] += 1
                print(f'{label or "UNEXPLAINED"} --case {seed}:{number}{chosen}: {case.text()}\n'
                      f'    {found.kind}: {found.text}', flush=True)
        elif options.case:
            print(f'equal: {case.text()}')
        now = time.monotonic()
        if now - last > 10 and sys.stderr.isatty():
            last = now
            print(f'# {done + 1} of {len(numbers_)} cases, {(done + 1) / (now - begin):.0f} a '
                  f'second, {unexplained} unexplained', file=sys.stderr, flush=True)
    print(f'{len(numbers_)} cases of {len(names)} operators, seed {seed}, '
          f'{time.monotonic() - begin:.0f} s')
    for label, count in counts.most_common():
        print(f'{count:8}  {label or "UNEXPLAINED"}: {words.get(label, "")}')
    return 1 if unexplained else 0
