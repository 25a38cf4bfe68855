"""
Host cost of calls on the CPU: bench_dispatch beside libtorch.cpp, which makes the same calls of
PyTorch's C++ library. libtorch.cpp is compiled first, with the headers of the Python package. The
programs take turns on one processor. The least of TURNS runs of each case counts; of a difference
between two cases, such as layer_added, the median. PyTorch's rows are named libtorch.cpp_*.
Allocations (mallocs) are counted for Tessera only.
"""
# SPDX-License-Identifier: MIT
import os
import shlex
import statistics
import subprocess
import tempfile
from pathlib import Path

from peers.table import Table

TURNS = 3


class Failed(Exception):
    """A program failed; the text has its command and the last lines of its output."""


def output_of(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f'{shlex.join(map(str, command))}: exit status {done.returncode}\n'
                     f'{done.stderr[-2000:]}')
    return done.stdout


def compile_peer(torch, folder):
    """The program of libtorch.cpp, linked with the libraries of the package torch."""
    from torch.utils import cpp_extension
    libraries = Path(torch.__file__).parent / 'lib'
    program = Path(folder) / 'libtorch'
    output_of(os.environ.get('CXX', 'c++'), '-std=c++20', '-O2', '-w', '-o', program,
              Path(__file__).with_name('libtorch.cpp'),
              *(f'-isystem{path}' for path in cpp_extension.include_paths()),
              f'-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}',
              f'-L{libraries}', f'-Wl,-rpath,{libraries}', '-ltorch', '-ltorch_cpu', '-lc10')
    return program


def run(options, torch, write):
    ours = Path(options.build).resolve() / 'bench' / 'bench_dispatch'
    if not ours.exists():
        raise Failed(f'{ours} does not exist; build first: ninja -C build')
    processor = max(os.sched_getaffinity(0))
    place = ['taskset', '-c', str(processor)]
    if options.realtime:
        place = ['chrt', '-f', '1', *place]
    runs, units = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        programs = ours, compile_peer(torch, folder)
        for _ in range(TURNS):
            for program in programs:
                for line in output_of(*place, program).splitlines():
                    case, value, units[case] = line.split('\t')
                    runs.setdefault(case, []).append(float(value))
    for case, values in runs.items():
        timed = case.startswith('libtorch.') or f'{case}.mallocs' in runs
        write(case, min(values) if timed else statistics.median(values), units[case])


class writer(Table):
    columns = 'case', 'value', 'unit'
    form = '{:<28} {:>12} {}'

    def __call__(self, case, value, unit):
        self.row((case, f'{value:.6g}', unit))
