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
