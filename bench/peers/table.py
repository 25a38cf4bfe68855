"""The table that a suite prints and writes."""
# SPDX-License-Identifier: MIT


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
