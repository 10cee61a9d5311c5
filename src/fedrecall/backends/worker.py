"""The other side of the `processes` backend: a nursery that forks workers, and what a worker does.

The nursery imports torch once, starts no thread and does no arithmetic, so that forking it is safe
and takes milliseconds, which forking the user's process would not be. When the user's process
ends, however it ends, the nursery reads an end of file, kills its workers and leaves.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from contextlib import suppress
from mmap import mmap
from typing import Any, NamedTuple

import torch

from fedrecall import own_faults
from fedrecall.backends.parcels import (
    ANSWERS,
    DATA,
    DOWNS,
    MEMORIES,
    Borrowed,
    Channel,
    Lying,
    Parcel,
    fold,
    pack,
    unfold,
    unpack,
)
from fedrecall.backends.places import Places
from fedrecall.errors import UserError, lacks_memory, sentence
from fedrecall.training import Visit, visit

BEAT_SECONDS = 0.5
STOPS = (signal.SIGINT, signal.SIGTERM)


class Failed(NamedTuple):
    """An exception on its way to the user's process."""

    error: BaseException
    text: str


def told(error: Exception) -> Failed:
    """An exception; one that says the same where it cannot be sent and made again."""
    text = own_faults.told(error)
    try:
        unfold(fold(error))
    except Exception:
        return Failed(RuntimeError(f"{type(error).__name__}: {error}"), text)
    return Failed(error, text)


def unsent(error: Exception) -> Failed:
    """What is sent instead of an answer that cannot be sent; to be called where the error is caught."""
    refused = UserError(
        f"what a client's visit returned cannot be sent between processes: {sentence(error)} Define the "
        "classes of what travels and is remembered at the top of their file, or use the serial backend."
    )
    return Failed(refused, traceback.format_exc())


def nursery(control: int) -> None:
    """Fork a worker whenever asked to, until the other end hangs up."""
    for signum in STOPS:
        signal.signal(signum, signal.SIG_IGN)  # the user's process hears them and decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)  # it was started with them held back
    gc.collect()
    gc.freeze()  # what is here now stays shared between the workers
    end = socket.socket(fileno=control)
    workers: set[int] = set()
    try:
        while True:
            order, descriptors, _, _ = socket.recv_fds(end, 8, 2)
            if len(order) < 8:
                return
            (pid,) = struct.unpack("!q", order)
            if pid == 0:
                try:
                    born = os.fork()
                except OSError as error:  # no memory, or no more processes for this user
                    born = -(error.errno or errno.EAGAIN)
                if born == 0:
                    end.close()
                    _live(*descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                if born > 0:
                    workers.add(born)
                end.sendall(struct.pack("!q", born))
            else:
                workers.discard(pid)
                end.sendall(struct.pack("!q", _bury(pid)))
    except OSError:
        return
    finally:
        for pid in workers:
            _bury(pid)


def _bury(pid: int) -> int:
    """Kill a child if it lives; what it died of, as a signal (negative) or an exit code."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return 0


def _live(orders: int, pulse: int) -> None:
    code = 1
    try:
        _die_with_parent()
        torch.set_num_threads(1)
        threading.Thread(target=_beat, args=(pulse,), daemon=True).start()
        channel = Channel(socket.socket(fileno=orders))  # open until the end, so that it ends with a code
        work(channel)
        code = 0
    except EOFError:
        code = 0
    except BaseException as error:
        if lacks_memory(error):
            code = errno.ENOMEM  # who hired it knows this sign
        else:
            traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _die_with_parent() -> None:
    """Ask Linux to kill this process, even a stopped one, when the nursery ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _beat(descriptor: int) -> None:
    """Count up in shared memory: who sees the number stand still knows that this process does."""
    memory = mmap(descriptor, 8)
    os.close(descriptor)
    count = 0
    while True:
        count += 1
        memory[:8] = struct.pack("!Q", count)
        time.sleep(BEAT_SECONDS)


def work(channel: Channel) -> None:
    """Make visits until the channel closes."""
    code: Places = unpack(channel.receive())
    sys.path[:] = code.path
    fixed: Any = None
    down: Any = None
    rooms: dict[bytes, Borrowed] = {}

    def read(value: Any) -> Any:
        return rooms[value.shelf].private(value) if isinstance(value, Lying) else value

    while True:
        place: Any = None
        spare: Any = None
        parcel = channel.receive()
        if parcel.structure in (ANSWERS, DATA, DOWNS, MEMORIES):
            if parcel.structure in rooms:
                rooms[parcel.structure].close()
            rooms[parcel.structure] = Borrowed(parcel)
            continue
        try:
            if fixed is None:
                code.load()  # where a user's own classes are defined
                fixed = unpack(parcel)
                answer: Any = None
            else:
                kind, *rest = unpack(parcel)
                if kind == "down":
                    down = read(*rest)
                    continue
                data, memory, round_number, client, row, free = rest
                place = row and rooms[ANSWERS].room(row)
                spare = free and rooms[MEMORIES].room(free)
                algorithm, model, recipe, seed = fixed
                answer = visit(
                    algorithm,
                    model,
                    recipe,
                    read(data),
                    down,
                    read(memory),
                    seed=seed,
                    round_number=round_number,
                    client=client,
                )
        except Exception as error:
            if lacks_memory(error):
                raise  # this process ends, and another one tries
            answer = told(error)
        packed = _pack(answer, place, spare)
        del answer
        for part in packed:
            channel.send(part)
            part.drop()


def _pack(answer: Any, place: Any, spare: Any) -> list[Parcel]:
    """An answer, and on its own what the client remembers if there is a place for it."""
    try:
        if spare is not None and isinstance(answer, Visit):
            return [pack(answer._replace(memory=None), place), pack(answer.memory, spare)]
        return [pack(answer, place)]
    except Exception as error:
        if lacks_memory(error):
            raise
        return [pack(unsent(error))]
