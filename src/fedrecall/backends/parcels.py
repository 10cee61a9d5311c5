"""Trees of tensors from one process to another on the same machine, without copying them twice.

A parcel is a short pickle in which every tensor is a number, and one anonymous shared memory file
that holds the tensors' bytes. The file has no name and goes from process to process as an open
descriptor over a Unix socket, so nothing is left behind however a process dies, and nobody else
can reach it: what is unpickled here was pickled by another process of the same run. Answers, which
come again and again and are of one size, lie in the rows of an arena that is kept. What is sent lies on
shelves, which are kept too, and what clients remember stays on one from one visit to the next.

Where something else carries the bytes (Ray, to other machines), a value is folded: the same pickle
beside one array of the tensors' bytes.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import pickle
import socket
import struct
import tempfile
import warnings
import weakref
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_ALIGNED = 64
_HEADER = struct.Struct("!QQ")  # bytes of pickle, bytes of tensors


class Unsendable(TypeError):
    """Something that another process could not find: it was defined in a prompt or a script's body."""


class Parcel(NamedTuple):
    """What `Channel.send` sends; the descriptor is the sender's to close, with `drop`.

    With a size and no descriptor its tensors are in memory that both sides have.
    """

    structure: bytes
    descriptor: int
    size: int

    def drop(self) -> None:
        """Give the memory back; whoever has received it keeps it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)


class _Pickler(pickle.Pickler):
    """Pickles a value with its tensors as places: where they are to be copied to, or where they are."""

    def __init__(self, file: io.BytesIO, *, copying: bool = True):
        super().__init__(file, protocol=5)
        self.tensors: list[Tensor] = []
        self.size = 0
        self._copying = copying
        self._places: dict[int, tuple[Any, ...]] = {}

    def persistent_id(self, value: Any) -> Any:
        if type(value) is not Tensor:  # a Parameter is taken apart until its data is a Tensor
            return None
        if id(value) not in self._places:
            self.tensors.append(value)  # which also keeps the id taken
            last = value.dim() == 4 and not value.is_contiguous()
            last = last and value.is_contiguous(memory_format=torch.channels_last)
            if not (self._copying or last or value.is_contiguous()):
                raise Unsendable("a tensor has gaps")
            shape = tuple(value.permute(0, 2, 3, 1).shape if last else value.shape)
            start = self.size if self._copying else value.storage_offset() * value.element_size()
            self._places[id(value)] = (start, value.dtype, shape, last)
            self.size += -(-value.numel() * value.element_size() // _ALIGNED) * _ALIGNED
        return self._places[id(value)]

    def fill(self, room: Tensor) -> None:
        """Copy the tensors to where the pickle says they are."""
        for tensor in self.tensors:
            start, dtype, shape, last = self._places[id(tensor)]
            flat = (tensor.permute(0, 2, 3, 1) if last else tensor).detach()
            size = flat.numel() * flat.element_size()
            if size:
                room[start : start + size].view(dtype).view(shape).copy_(flat)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            raise Unsendable(f"{value.__qualname__} is defined in the script that was started or in a prompt")
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: Tensor | None):
        super().__init__(file)
        self._bytes = memory

    def persistent_load(self, place: Any) -> Tensor:
        start, dtype, shape, last = place
        size = torch.Size(shape).numel() * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype)
        if self._bytes is None:
            raise pickle.UnpicklingError("a tensor came without the memory that it is in")
        found = self._bytes[start : start + size].view(dtype).view(shape)
        return found.permute(0, 3, 1, 2) if last else found


class Folded(NamedTuple):
    """A value as what any carrier of bytes and arrays can take."""

    structure: bytes
    tensors: np.ndarray[Any, np.dtype[np.uint8]]


def fold(value: Any) -> Folded:
    """Copy a value's tensors into one array, and pickle the rest."""
    structure, pickler = _pickled(value)
    room = torch.empty(pickler.size, dtype=torch.uint8)
    pickler.fill(room)
    return Folded(structure, room.numpy())


def unfold(folded: Folded, *, copy: bool = True) -> Any:
    """The value; without a copy its tensors are views of the array, which may be read only."""
    array = folded.tensors.copy() if copy else folded.tensors
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, that what is read only cannot be written
        return _Unpickler(io.BytesIO(folded.structure), torch.from_numpy(array)).load()


class Arena:
    """Shared memory in rows, used again and again: its pages are there already.

    Values of one structure in its rows lie as a stack of them would, and `trees.stack` finds that. The rows
    are lent in parts of ``rows`` each: one file holds the answers of many links. What was never written to
    takes no memory.
    """

    def __init__(self, rows: int, row_bytes: int, parts: int = 1):
        self.rows, self.row_bytes, self.parts = rows, row_bytes, parts
        self._size = parts * rows * row_bytes
        self.descriptor = _anonymous()
        os.ftruncate(self.descriptor, self._size)
        self._mapped = mmap.mmap(self.descriptor, self._size)
        self._lent: list[Any] = [None] * parts

    @property
    def free(self) -> bool:
        """Whether no tensor lies in it any more."""
        return all(map(self._is_free, range(self.parts)))

    @property
    def has_room(self) -> bool:
        """Whether no tensor lies in one of its parts."""
        return any(map(self._is_free, range(self.parts)))

    def _is_free(self, part: int) -> bool:
        lent = self._lent[part]
        return lent is None or lent() is None

    def lend(self) -> tuple[int, Tensor]:
        """A free part: the number of its first row, and its memory.

        It is not free while this tensor lives, or another with the same storage.
        """
        part = next(filter(self._is_free, range(self.parts)))
        first = part * self.rows
        view = memoryview(self._mapped)[first * self.row_bytes : (first + self.rows) * self.row_bytes]
        self._lent[part] = weakref.ref(view)
        return first, torch.frombuffer(view, dtype=torch.uint8)

    def row(self, number: int) -> slice:
        """The bytes of a row."""
        return slice(number * self.row_bytes, (number + 1) * self.row_bytes)

    def parcel(self) -> Parcel:
        """What tells another process of it; see `Borrowed`."""
        return Parcel(ANSWERS, self.descriptor, self._size)

    def close(self) -> None:
        """No more of it for others; tensors in it stay."""
        os.close(self.descriptor)


class Lying(NamedTuple):
    """A value that lies in memory which both sides have; `Borrowed.private` reads it."""

    shelf: bytes
    part: slice
    structure: bytes


class Shelf:
    """Shared memory in places of one size, lent one by one. A place is free again when no tensor lies in it.

    What was never written to takes no memory.
    """

    def __init__(self, name: bytes, places: int, size: int):
        self.descriptor = -1
        self.name, self.places = name, places
        self.size = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self.descriptor = _anonymous()
        os.ftruncate(self.descriptor, places * self.size)
        self._mapped = mmap.mmap(self.descriptor, places * self.size)
        self._free = list(range(places))[::-1]
        self._lent: dict[int, tuple[int, Any]] = {}  # by address

    def lend(self) -> tuple[slice, Tensor] | None:
        """A free place, if there is one."""
        if not self._free:
            return None
        place = self._free.pop()
        part = slice(place * self.size, (place + 1) * self.size)
        view = memoryview(self._mapped)[part]
        memory = torch.frombuffer(view, dtype=torch.uint8)
        address = memory.untyped_storage().data_ptr()
        lent, free = self._lent, self._free

        def back(_: Any) -> None:
            lent.pop(address, None)
            free.append(place)

        lent[address] = (place, weakref.ref(view, back))
        return part, memory

    def put(self, value: Any) -> tuple[Lying, Tensor] | None:
        """Copy a value to a free place, if one is large enough; it lies there as long as the tensor lives."""
        lent = self.lend()
        if lent is None:
            return None
        part, memory = lent
        parcel = pack(value, memory)
        if parcel.descriptor >= 0 or not parcel.size:
            parcel.drop()
            return None
        return Lying(self.name, part, parcel.structure), memory

    def find(self, value: Any) -> Lying | None:
        """Where the value lies, if all its tensors are in one place."""
        file = io.BytesIO()
        pickler = _Pickler(file, copying=False)
        try:
            pickler.dump(value)
        except (Unsendable, pickle.PicklingError, AttributeError):
            return None
        addresses = {tensor.untyped_storage().data_ptr() for tensor in pickler.tensors}
        place, _ = self._lent.get(addresses.pop(), (None, None)) if len(addresses) == 1 else (None, None)
        if place is None:
            return None
        return Lying(self.name, slice(place * self.size, (place + 1) * self.size), file.getvalue())

    def parcel(self) -> Parcel:
        """What tells another process of it; see `Borrowed`."""
        return Parcel(self.name, self.descriptor, len(self._mapped))

    def close(self) -> None:
        """No more of it for others; tensors in it stay."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def __del__(self) -> None:
        self.close()


ANSWERS, DATA, DOWNS, MEMORIES = b"answers", b"data", b"downs", b"memories"
"""Names of the arena and the shelves, which their parcels have in place of a pickle."""


class Borrowed:
    """An arena or a shelf as the other process has it, from the parcel that told of it."""

    def __init__(self, parcel: Parcel):
        self._parcel = parcel
        self._shared = torch.frombuffer(mmap.mmap(parcel.descriptor, parcel.size), dtype=torch.uint8)

    def room(self, part: slice) -> Tensor:
        """To be written to for the lender."""
        return self._shared[part]

    def private(self, lying: Lying) -> Any:
        """The value that lies there. Writing to it copies the page first."""
        start, size = lying.part.start, lying.part.stop - lying.part.start
        mapped = mmap.mmap(self._parcel.descriptor, size, flags=mmap.MAP_PRIVATE, offset=start)
        return _Unpickler(io.BytesIO(lying.structure), torch.frombuffer(mapped, dtype=torch.uint8)).load()

    def close(self) -> None:
        """Give it back; tensors in it stay."""
        self._parcel.drop()


def pack(value: Any, room: Tensor | None = None) -> Parcel:
    """Copy a value's tensors into shared memory, this if there is room, and pickle the rest."""
    structure, pickler = _pickled(value)
    if not pickler.size:
        return Parcel(structure, -1, 0)
    if room is not None and pickler.size <= room.numel():
        pickler.fill(room)
        return Parcel(structure, -1, pickler.size)
    descriptor = _anonymous()
    try:
        os.ftruncate(descriptor, pickler.size)
        pickler.fill(torch.frombuffer(mmap.mmap(descriptor, pickler.size), dtype=torch.uint8))
    except BaseException:
        os.close(descriptor)
        raise
    return Parcel(structure, descriptor, pickler.size)


def packed_size(value: Any) -> int:
    """The bytes of shared memory that a value takes."""
    return _pickled(value)[1].size


def _pickled(value: Any) -> tuple[bytes, _Pickler]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, AttributeError) as error:
        raise Unsendable(str(error)) from error
    return file.getvalue(), pickler


def unpack(parcel: Parcel, room: Tensor | None = None, *, copied: bool = False) -> Any:
    """The value; its tensors lie in the shared memory. Writing to them copies the page first, if it is not
    an arena's, where the row is the receiver's. As long as they do, a file is open, of which a process may
    have a thousand: of whom many values are kept should have them ``copied``."""
    memory = room
    if parcel.descriptor >= 0:
        mapped = mmap.mmap(parcel.descriptor, parcel.size, flags=mmap.MAP_PRIVATE)
        memory = torch.frombuffer(mapped, dtype=torch.uint8)
        memory = memory.clone() if copied else memory
        parcel.drop()
    return _Unpickler(io.BytesIO(parcel.structure), memory).load()


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedrecall", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Channel:
    """Parcels over one end of a Unix socket pair; EOFError when the other end is gone, and what the system
    raises (EMFILE) where a descriptor that came cannot be taken."""

    def __init__(self, end: socket.socket):
        self._end = end

    def fileno(self) -> int:
        """For ``select``."""
        return self._end.fileno()

    def send(self, parcel: Parcel) -> None:
        """Send it; the receiver gets a descriptor of its own."""
        header = _HEADER.pack(len(parcel.structure), parcel.size)
        try:
            if parcel.descriptor >= 0:
                sent = socket.send_fds(self._end, [header], [parcel.descriptor])
            else:
                sent = self._end.send(header)
            self._end.sendall(header[sent:] + parcel.structure)
        except OSError as error:
            raise EOFError from error

    def receive(self) -> Parcel:
        """Wait for the next parcel."""
        try:
            header, descriptors, flags, _ = socket.recv_fds(self._end, _HEADER.size, 1)
            if flags & socket.MSG_CTRUNC:  # Linux drops it without an error
                raise OSError(errno.EMFILE, "what was sent is lost: this process may not open more files")
            if not header:
                raise EOFError
            header += self._exactly(_HEADER.size - len(header))
            length, size = _HEADER.unpack(header)
            return Parcel(self._exactly(length), descriptors[0] if descriptors else -1, size)
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise
            raise EOFError from error

    def close(self) -> None:
        """Hang up."""
        self._end.close()

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._end.recv(count)
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
