# SPDX-License-Identifier: MIT
"""Shows tensors in gdb:

    (gdb) source PREFIX/share/gdb/auto-load/tessera-gdb.py
    (gdb) print x          a pointer to a tensor: dtype, sizes, device, values
    (gdb) ts-tensor x      all fields of its header, and all values

It only reads memory, so it works on core files too. It knows the layout of struct ts_tensor
(core/tensor.h), so the library needs no debug information. tests/house/test_gdb.py checks that the
two agree.
"""
import struct

import gdb

# Offsets in struct ts_tensor and ts_storage, and bits of flags.
KEYS, STORAGE, DATA, NUMEL, REFS, DTYPE, NDIM, BACKEND, INDEX, FLAGS = (
    0, 8, 16, 24, 32, 36, 37, 38, 39, 40)
NODE, GRAD, SIZES, STRIDES, BYTES = 48, 56, 88, 152, 216
VERSION = 4
CONTIGUOUS, REQUIRES_GRAD, VIEW, NONE = 1, 2, 4, 8
ABSENT_KEY = 63  # a bit of TS_NONE and of handles whose scope has ended
DTYPES = (("f64", "d"), ("f32", "f"), ("bf16", "H"), ("f16", "e"), ("i64", "q"), ("i32", "i"),
          ("u8", "B"), ("bool", "?"))
DEVICES = {0: "cpu", 15: "meta"}
SHOWN = 60  # most elements that print shows


class Tensor:
    def __init__(self, address):
        self.address = address
        head = self.read(address, BYTES)
        self.keys, self.storage, self.data, self.numel = struct.unpack_from("<QQQq", head)
        self.refs, = struct.unpack_from("<i", head, REFS)
        self.dtype, self.ndim, self.backend, self.index, self.flags = head[DTYPE:FLAGS + 1]
        self.node, self.grad = struct.unpack_from("<QQ", head, NODE)
        self.sizes = struct.unpack_from(f"<{min(self.ndim, 8)}q", head, SIZES)
        self.strides = struct.unpack_from(f"<{min(self.ndim, 8)}q", head, STRIDES)

    @staticmethod
    def read(address, size):
        return bytes(gdb.selected_inferior().read_memory(address, size))

    def problem(self):
        """Text for a handle that is not a usable tensor; None for a tensor."""
        if self.keys >> ABSENT_KEY & 1:
            return "TS_NONE" if self.flags & NONE else f"released tensor at {self.address:#x}"
        if self.dtype >= len(DTYPES) or self.ndim > 8:
            return f"no tensor at {self.address:#x}"
        return None

    def head(self):
        device = DEVICES.get(self.backend, "cuda" if self.backend == 1 else f"key {self.backend}")
        index = f":{self.index}" if self.backend not in DEVICES else ""
        return f"{DTYPES[self.dtype][0]} {numbers(self.sizes)} {device}{index}"

    def element(self, offset):
        name, code = DTYPES[self.dtype]
        size = struct.calcsize(code)
        raw = self.read(self.data + offset * size, size)
        if name == "bf16":
            return f"{struct.unpack('<f', bytes(2) + raw)[0]:.4g}"
        value, = struct.unpack("<" + code, raw)
        if name == "bool":
            return str(value).lower()
        return f"{value:.7g}" if isinstance(value, float) else str(value)

    def values(self, most):
        """The elements as nested lists; those beyond `most` are left out."""
        if self.backend != 0:
            return "(values are on the device)"
        self.left = most

        def part(dim, offset):
            if dim == self.ndim:
                self.left -= 1
                return self.element(offset)
            said = []
            for i in range(self.sizes[dim]):
                if self.left <= 0:
                    said.append("...")
                    break
                said.append(part(dim + 1, offset + i * self.strides[dim]))
            return f"[{', '.join(said)}]"

        return part(0, 0)

    def version(self):
        return struct.unpack("<I", self.read(self.storage + VERSION, 4))[0]


def numbers(values):
    return f"({', '.join(map(str, values))})"


class Printer:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        if int(self.value) == 0:
            return "NULL"
        try:
            tensor = Tensor(int(self.value))
            return tensor.problem() or f"{tensor.head()} {tensor.values(SHOWN)}"
        except gdb.MemoryError:
            return f"no tensor at {int(self.value):#x}"


def is_tensor(value):
    kind = value.type.strip_typedefs()
    return kind.code == gdb.TYPE_CODE_PTR and \
        kind.target().unqualified().strip_typedefs().tag == "ts_tensor"


def find(value):
    return Printer(value) if is_tensor(value) else None


class Show(gdb.Command):
    """Prints the fields of a tensor's header and all values: ts-tensor EXPRESSION"""

    def __init__(self):
        super().__init__("ts-tensor", gdb.COMMAND_DATA, gdb.COMPLETE_EXPRESSION)

    def invoke(self, argument, _from_tty):
        value = gdb.parse_and_eval(argument)
        if not is_tensor(value):
            raise gdb.GdbError(f"{argument} is not a pointer to a tensor")
        if int(value) == 0:
            print("NULL")
            return
        tensor = Tensor(int(value))
        if tensor.problem():
            print(tensor.problem())
            return
        notes = [word for bit, word in ((CONTIGUOUS, "contiguous"), (VIEW, "a view"))
                 if tensor.flags & bit]
        grad = "grad" if tensor.flags & REQUIRES_GRAD else "no grad"
        print(tensor.head())
        print(f"strides      {', '.join([numbers(tensor.strides), *notes])}")
        print(f"requires     {grad}, {'made by a recorded call' if tensor.node else 'leaf'}")
        print(f"references   {tensor.refs}")
        print(f"version      {tensor.version()}, of the storage")
        print(f"data         {tensor.data:#x}")
        print(tensor.values(1 << 62))


gdb.pretty_printers.append(find)
Show()
