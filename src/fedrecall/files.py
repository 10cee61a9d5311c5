"""Files that are either whole or not there: atomic writes, and reads that trust nothing."""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from fedrecall.errors import Gone, NotNow, OfMachine, UserError


def expanded(path: Path | str) -> Path:
    """The path with what ``~`` stands for."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # nobody's home
        raise UserError(f"{path}: {error}") from error


def found(path: Path, kind: Callable[[int], bool] = bool) -> bool:
    """Whether something is there, of this kind (`stat.S_ISDIR`), or a UserError where that cannot be told.

    `Path.exists` and its like raise or say no, as Python's version has it, in a folder that may not be
    entered and for a name that is too long.
    """
    try:
        return kind(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a null character is a ValueError
        return False
    except OSError as error:
        raise UserError(
            f"{path} cannot be looked up: {error.strerror}. Allow it, or name another."
        ) from error


def write(path: Path, content: bytes, *, folder_later: bool = False) -> None:
    """Write the file so that after any crash it holds the old content or the new, never a part.

    Where a link leads is written, not in its place; what is no regular file, as a pipe, is written to.
    ``folder_later``: whoever writes many calls `sync_folder` once, without which a new file may be gone.
    """
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    if found(path, _special):
        path.write_bytes(content)
        return
    if not path.name:  # "." or "/", of which no neighbour can be named
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    if not folder_later:
        sync_folder(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what takes the path's place once it is on disk, if nothing is raised until then."""
    temporary = _beside(path)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """A name in the same folder for this process alone."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def sync_folder(path: Path) -> None:
    """Have on disk which files are in the folder."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _special(mode: int) -> bool:
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON."""
    write(path, (json.dumps(value, indent=2, sort_keys=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON, or raise a UserError that names the file; `Gone` where there is none."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        kind = Gone if isinstance(error, (FileNotFoundError, NotADirectoryError)) else UserError
        raise kind(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from error


def write_arrays(path: Path, arrays: Mapping[str, Tensor]) -> str:
    """Write named arrays as safetensors; returns the checksum of the file."""
    content = packed(arrays)
    write(path, content)
    return checksum(content)


def packed(arrays: Mapping[str, Tensor]) -> bytes:
    """Named arrays as the content of a safetensors file."""
    # Copied because safetensors refuses two names for the same memory.
    return save({n: t.detach().cpu().clone(memory_format=torch.contiguous_format) for n, t in arrays.items()})


def read_arrays(path: Path, expected: str | None = None) -> dict[str, Tensor]:
    """Read named arrays, or raise a UserError; ``expected`` is the checksum they must have."""
    try:
        if expected is not None and checksum(path.read_bytes()) != expected:
            raise UserError(f"{path} is damaged: its checksum is not the one it was saved with.")
        # Cloned because the loaded tensors map the file, which may be replaced.
        return {n: t.clone() for n, t in load_file(path).items()}
    except (OSError, safetensors.SafetensorError, ValueError, RuntimeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read as safetensors: {error}.") from error


def intact(path: Path, expected: str) -> bool:
    """Whether the file can be read and has this checksum."""
    try:
        return checksum(path.read_bytes()) == expected
    except (OSError, ValueError):  # a name with a null character is a ValueError
        return False


def sweep(folder: Path, alone: bool = True) -> None:
    """Delete what writers that were killed left half written in a folder.

    Nobody may be writing to it, or, unless ``alone``, nobody whose process is not seen from here.
    """
    for path in folder.glob(".*.tmp"):
        writer = path.stem.rpartition(".")[2]
        if writer.isdecimal() and (alone or not _lives(int(writer))):  # as `write` names them
            with suppress(OSError):
                path.unlink()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it is another's, or nobody's number
        pass
    return True


@contextmanager
def writing(folder: Path, then: str = "then resume the run") -> Iterator[None]:
    """Say in a sentence that a folder cannot be written, as when the disk is full; ``then`` ends it."""
    try:
        yield
    except OSError as error:
        raise refusal(error)(
            f"cannot write to {folder}: {error.strerror or error}. What was saved before is kept: see to it "
            f"that there is room and that the folder may be written, {then}."
        ) from error


@contextmanager
def placing(path: Path) -> Iterator[None]:
    """Say in a sentence that a file that somebody asked for cannot be written."""
    try:
        yield
    except OSError as error:
        raise refusal(error)(f"cannot write {path}: {error.strerror or error}.") from error


def refusal(error: OSError) -> type[UserError]:
    """What not being able to write is: of a full disk, something that may go well another time."""
    return NotNow if error.errno in (errno.ENOSPC, errno.EDQUOT) else OfMachine


def check_writable(path: Path) -> None:
    """Raise UserError if the file could not be written, before the work that it is to hold."""
    with placing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.is_symlink():
            path = Path(os.path.realpath(path))
        if found(path, _special):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = _beside(path)
        probe.touch()
        probe.unlink()


def checksum(content: bytes) -> str:
    """A short digest of a file's content."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
