"""Calls Tessera's ops on PyTorch's memory through ctypes, for bench/compare.py."""
# SPDX-License-Identifier: MIT
import contextlib
import ctypes
from pathlib import Path

NONE, BOOL, INT, FLOAT, TENSOR, TENSORS, INTS, DTYPE, DEVICE = range(9)
DTYPES = {'torch.float64': 0, 'torch.float32': 1, 'torch.bfloat16': 2, 'torch.float16': 3,
          'torch.int64': 4, 'torch.int32': 5, 'torch.uint8': 6, 'torch.bool': 7}
C_TYPES = {0: ctypes.c_double, 1: ctypes.c_float, 2: ctypes.c_uint16, 3: ctypes.c_uint16,
           4: ctypes.c_int64, 5: ctypes.c_int32, 6: ctypes.c_uint8, 7: ctypes.c_bool}


class Union(ctypes.Union):
    _fields_ = [('i', ctypes.c_int64), ('d', ctypes.c_double), ('p', ctypes.c_void_p)]


class Value(ctypes.Structure):
    """ts_value: a boxed argument."""
    _anonymous_ = ['u']
    _fields_ = [('tag', ctypes.c_uint8), ('reserved', ctypes.c_uint8),
                ('reserved2', ctypes.c_uint16),
                ('count', ctypes.c_uint32), ('u', Union)]


class CallStruct(ctypes.Structure):
    """compare_call of compare_loop.c."""
    _fields_ = [('op', ctypes.c_int), ('nargs', ctypes.c_int), ('nrets', ctypes.c_int),
                ('args', ctypes.POINTER(Value)), ('given', ctypes.POINTER(Value))]


class Failed(Exception):
    """A call failed; the text is the library's message."""


class Missing(Failed):
    """The library has no such op."""


def library(build):
    """Loads libtessera from a build folder, or from a folder that tools/gpu-suite carry wrote."""
    names = 'libtessera.so', 'libtessera.so.0'
    paths = [Path(build).resolve() / name for name in names]
    return ctypes.CDLL(str(next((path for path in paths if path.exists()), paths[0])),
                       mode=ctypes.RTLD_GLOBAL)


class Library:
    def __init__(self, build):
        build = Path(build).resolve()
        self.c = c = library(build)
        self.loop = ctypes.CDLL(str(build / 'bench' / 'libcompare.so'))
        pointer, size_list = ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64)
        for name, result, arguments in [
                ('ts_error_message', ctypes.c_char_p, []),
                ('ts_error_clear', None, []),
                ('ts_op_by_name', ctypes.c_int, [ctypes.c_char_p]),
                ('ts_op_schema', ctypes.c_char_p, [ctypes.c_int]),
                ('ts_version_string', ctypes.c_char_p, []),
                ('ts_set_num_threads', ctypes.c_int, [ctypes.c_int]),
                ('ts_from_blob', pointer,
                 [pointer, ctypes.c_int, size_list, ctypes.c_int, pointer, pointer]),
                ('ts_call_boxed', ctypes.c_int,
                 [ctypes.c_int, ctypes.POINTER(Value), ctypes.c_int, ctypes.POINTER(Value),
                  ctypes.c_int]),
                ('ts_adopt', pointer, [pointer]),
                ('ts_release', None, [pointer]),
                ('ts_contiguous', pointer, [pointer]),
                ('ts_data', pointer, [pointer]),
                ('ts_sizes', size_list, [pointer]),
                ('ts_ndim', ctypes.c_int, [pointer]),
                ('ts_dtype_of', ctypes.c_int, [pointer])]:
            function = getattr(c, name)
            function.restype, function.argtypes = result, arguments
        self.loop.compare_run.restype = ctypes.c_double
        self.loop.compare_run.argtypes = [ctypes.POINTER(CallStruct), ctypes.c_int, ctypes.c_int,
                                          ctypes.c_int]
        self.alive = []  # keeps objects that C points to

    @contextlib.contextmanager
    def scope(self):
        """A scope: tensors and objects for C that are made inside are released at its end."""
        memory = (ctypes.c_void_p * 2)()  # a ts_scope
        self.c.ts_scope_enter(memory, None)
        try:
            yield
        finally:
            self.c.ts_scope_leave(memory)
            self.alive.clear()

    def fail(self):
        text = self.c.ts_error_message().decode()
        self.c.ts_error_clear()
        return Failed(text or 'failed without a message')

    def tensor(self, t):
        """A tensor over t's memory, in the innermost scope."""
        dtype = DTYPES[str(t.dtype)]
        self.alive.append(t)
        if t.is_contiguous():
            sizes = (ctypes.c_int64 * max(t.dim(), 1))(*t.shape)
            made = self.c.ts_from_blob(t.data_ptr(), dtype, sizes, t.dim(), None, None)
        else:
            storage = t.untyped_storage()
            count = storage.nbytes() // t.element_size()
            sizes = (ctypes.c_int64 * 1)(count)
            base = self.c.ts_from_blob(storage.data_ptr(), dtype, sizes, 1, None, None)
            made = base and self.call('as_strided', [Value(TENSOR, u=Union(p=base)), list(t.shape),
                                                     list(t.stride()), t.storage_offset()])[0]
        if not made:
            raise self.fail()
        return made

    def value(self, x):
        """Boxes a Python value: tensors, lists of them, numbers, lists of int, None."""
        if isinstance(x, Value):
            return x
        if x is None:
            return Value(NONE)
        if isinstance(x, bool):
            return Value(BOOL, u=Union(i=x))
        if isinstance(x, int):
            return Value(INT, u=Union(i=x))
        if isinstance(x, float):
            return Value(FLOAT, u=Union(d=x))
        if isinstance(x, (list, tuple)):
            tensors = bool(x) and not isinstance(x[0], int)
            kind = ctypes.c_void_p if tensors else ctypes.c_int64
            array = (kind * max(len(x), 1))(*(self.tensor(t) if tensors else t for t in x))
            self.alive.append(array)
            return Value(TENSORS if tensors else INTS, count=len(x),
                         u=Union(p=ctypes.addressof(array)))
        return Value(TENSOR, u=Union(p=self.tensor(x)))

    def prepare(self, name, args, given=()):
        op = self.c.ts_op_by_name(name.encode())
        if op < 0:
            raise Missing(f'no op {name}')
        schema = self.c.ts_op_schema(op).decode()
        results = schema.rsplit('->', 1)[1].strip()
        nrets = 0 if results == '()' else results.count(',') + 1
        boxed = (Value * max(len(args), 1))(*map(self.value, args))
        rets = (Value * max(nrets, 1))(*map(self.value, given))
        self.alive.append((boxed, rets))
        return CallStruct(op, len(args), nrets, boxed, rets), rets

    def sequence(self, calls):
        """calls: (op, args) or (op, args, given results)."""
        structs = [self.prepare(*call)[0] for call in calls]
        sequence = (CallStruct * len(structs))(*structs)
        self.alive.append(sequence)
        return sequence

    def call(self, name, args, given=()):
        """Results as addresses of tensors in the innermost scope."""
        struct, rets = self.prepare(name, args, given)
        if self.c.ts_call_boxed(struct.op, struct.args, struct.nargs, rets, struct.nrets):
            raise self.fail()
        found = [rets[i].p if rets[i].tag == TENSOR else None for i in range(struct.nrets)]
        for i, address in enumerate(found):
            if address and i >= len(given):
                self.c.ts_adopt(address)
        return found

    def read(self, address, torch):
        """A torch tensor with a copy of the values."""
        dense = self.c.ts_contiguous(address)
        if not dense:
            raise self.fail()
        sizes = [self.c.ts_sizes(dense)[i] for i in range(self.c.ts_ndim(dense))]
        dtype = self.c.ts_dtype_of(dense)
        count = 1
        for size in sizes:
            count *= size
        names = {number: name for name, number in DTYPES.items()}
        torch_dtype = getattr(torch, names[dtype].split('.')[1])
        if not count:
            return torch.empty(sizes, dtype=torch_dtype)
        memory = (C_TYPES[dtype] * count).from_address(self.c.ts_data(dense))
        return torch.frombuffer(memory, dtype=torch_dtype).clone().reshape(sizes)

    def run(self, sequence, turns, hold=False):
        """Nanoseconds of one turn through the sequence; hold: results live to its end."""
        ns = self.loop.compare_run(sequence, len(sequence), turns, hold)
        if ns < 0:
            raise self.fail()
        return ns
