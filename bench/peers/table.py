"""The table that a suite prints and writes, and the loop over its models."""
# SPDX-License-Identifier: MIT
import re


class Table:
    """Writes rows to stdout by `form` and, tab separated, to the file out unless it is None. A
    subclass sets columns and form, and has a __call__() that makes a row of a result."""
    columns = ()
    form = ''

    def __init__(self, out):
        self.out = out
        self.row(self.columns)

    def row(self, row):
        print(self.form.format(*map(str, row)), flush=True)
        if self.out:
            print(*row, sep='\t', file=self.out, flush=True)

    def note(self, line):
        print('#', line)
        if self.out:
            print('#', line, file=self.out)


def each(models, title, sides, only, measure):
    """Calls measure(model, ways) for each model with the sides whose name 'TITLE SIDE' matches the
    regular expression `only`. Returns the failures: one broken model does not hide the others."""
    failures = []
    for model in models:
        name = title.format(model)
        ways = [way for way in sides if re.search(only, f'{name} {way}')]
        try:
            if ways:
                measure(model, ways)
        except Exception as error:
            failures.append(f'{name}: {error}')
    return failures
