"""Calls Tessera on a GPU through ctypes. Its tensors are copies of PyTorch's, because a backend
owns its memory."""
# SPDX-License-Identifier: MIT
import ctypes
import importlib
import math

from peers import tessera

HALVES = {'torch.bfloat16': 2, 'torch.float16': 3}


class Device(ctypes.Structure):
    """ts_device."""
    _fields_ = [('backend', ctypes.c_uint8), ('index', ctypes.c_uint8)]


class Library(tessera.Library):
    def __init__(self, build, torch=None):
        super().__init__(build)
        self.torch = torch or importlib.import_module('torch')
        c, pointer = self.c, ctypes.c_void_p
        for name, result, arguments in [
                ('ts_device_open', ctypes.c_int,
                 [ctypes.c_char_p, ctypes.POINTER(Device), pointer, ctypes.c_size_t]),
                ('ts_empty_on', pointer,
                 [ctypes.POINTER(ctypes.c_int64), ctypes.c_int, ctypes.c_int, Device]),
                ('ts_data_mut', pointer, [pointer]),
                ('ts_set_default_device', ctypes.c_int, [Device]),
                ('ts_set_deterministic', ctypes.c_int, [ctypes.c_bool]),
                ('ts_stream_use', ctypes.c_int, [Device, pointer]),
                ('ts_synchronize', ctypes.c_int, [Device]),
                ('ts_event_new', ctypes.c_int, [Device, ctypes.POINTER(pointer)]),
                ('ts_event_record', ctypes.c_int, [Device, pointer]),
                ('ts_event_synchronize', ctypes.c_int, [Device, pointer]),
                ('ts_event_elapsed', ctypes.c_int,
                 [Device, pointer, pointer, ctypes.POINTER(ctypes.c_double)])]:
            function = getattr(c, name)
            function.restype, function.argtypes = result, arguments
        self.device = Device()
        self.check(c.ts_device_open(b'cuda', ctypes.byref(self.device), None, 0))
        self.events = [pointer(), pointer()]
        for event in self.events:
            self.check(c.ts_event_new(self.device, ctypes.byref(event)))
        self.runtime = ctypes.CDLL('libcudart.so.13')
        self.copies = {}  # id of a PyTorch tensor -> (address of its copy, the tensor)

    def check(self, status):
        if status:
            raise self.fail()

    def copy(self, to, source, count):
        self.torch.cuda.synchronize()
        self.check(self.c.ts_synchronize(self.device))
        if self.runtime.cudaMemcpy(ctypes.c_void_p(to), ctypes.c_void_p(source),
                                   ctypes.c_size_t(count), 3):
            raise tessera.Failed('cudaMemcpy')
        self.torch.cuda.synchronize()  # a copy within the device returns before it is complete

    def tensor(self, t):
        """A copy of t, made once, in the innermost scope."""
        found = self.copies.get(id(t))
        if found:
            return found[0]
        if t.is_contiguous() and not t.storage_offset():
            address = self.copied(t.data_ptr(), list(t.shape), t)
        else:  # copies the whole storage, then makes a view with t's strides and offset
            storage = t.untyped_storage()
            whole = self.copied(storage.data_ptr(), [storage.nbytes() // t.element_size()], t)
            address = self.call('as_strided',
                                [tessera.Value(tessera.TENSOR, u=tessera.Union(p=whole)),
                                 list(t.shape), list(t.stride()), t.storage_offset()])[0]
        self.copies[id(t)] = address, t
        return address

    def copied(self, source, sizes, like):
        """A new tensor with a copy of torch's memory."""
        dtype = {**tessera.DTYPES, **HALVES}[str(like.dtype)]
        given = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
        address = self.c.ts_empty_on(given, len(sizes), dtype, self.device)
        if not address:
            raise self.fail()
        self.copy(self.c.ts_data_mut(address), source, math.prod(sizes) * like.element_size())
        return address

    def use_stream(self, stream):
        """Makes the library run its work on a PyTorch stream, given by its address."""
        self.check(self.c.ts_stream_use(self.device, stream))

    def read(self, address, like):
        """A torch tensor with a copy of the values, of the sizes and dtype of `like`."""
        dense = self.c.ts_contiguous(address)
        if not dense:
            raise self.fail()
        made = self.torch.empty(like.shape, dtype=like.dtype, device=like.device)
        self.copy(made.data_ptr(), self.c.ts_data(dense), made.numel() * made.element_size())
        return made

    def release(self):
        self.copies.clear()

    def microseconds(self, sequence, turns):
        """Device time of one turn, the mean over `turns`."""
        begin, end = self.events
        ms = ctypes.c_double()
        self.check(self.c.ts_synchronize(self.device))
        self.check(self.c.ts_event_record(self.device, begin))
        self.run(sequence, turns, hold=True)
        self.check(self.c.ts_event_record(self.device, end))
        self.check(self.c.ts_event_synchronize(self.device, end))
        self.check(self.c.ts_event_elapsed(self.device, begin, end, ctypes.byref(ms)))
        return ms.value * 1e3 / turns
