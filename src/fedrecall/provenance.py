"""What a run was made from: its data and what computed it, and whether its data and code are still those."""

import hashlib
import platform
import shlex
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrecall import __version__, files, own_digest, secrecy
from fedrecall.data.datasets import Dataset
from fedrecall.errors import UserError


@cache
def version() -> str:
    """fedrecall's version with a digest of its code that trains: two of one number may differ in hooks."""
    package, digest = Path(__file__).parent, hashlib.blake2b(digest_size=4)
    for path in sorted(package.rglob("*.py")):
        part = path.relative_to(package).as_posix()
        if not part.startswith(("cli/", "papers/", "reports/")):
            digest.update(part.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n"))
    return f"{__version__}+{digest.hexdigest()}"


def starts(path: Path) -> list[dict[str, Any]]:
    """What made the run so far, a part for every start."""
    found = files.read_json(path) if path.exists() else []
    if not isinstance(found, list) or not all(
        isinstance(start, dict) and all(isinstance(start.get(part, {}), dict) for part in ("data", "code"))
        for start in found
    ):
        raise UserError(f"{path} is damaged: move it elsewhere to go on.")
    return found


_known: dict[int, tuple[list[int | None], list[float]]] = {}
"""Of data sets that are there the sketch, and at which versions of their examples."""


def facts(dataset: Dataset) -> dict[str, Any]:
    """What tells data from other data, and costs little: sizes, a digest of labels and statistics, a sketch.

    The statistics are rounded: the same files may be decoded a little differently elsewhere.
    """
    digest = hashlib.blake2b(digest_size=8)
    for split in (dataset.train, dataset.test):
        digest.update(split.y.cpu().to(torch.int64).numpy().tobytes())
    # A table's columns have been moved and scaled, and say no more: its first example does.
    first = [s.x[:1] for s in (dataset.train, dataset.test) if s.x.is_floating_point()]
    for values in (dataset.mean, dataset.std, *first):
        digest.update(" ".join(f"{v:.4g}" for v in values.flatten().tolist()).encode())
    sizes = {"train": len(dataset.train.y), "test": len(dataset.test.y)}
    found = {"name": dataset.name, **sizes, "digest": digest.hexdigest(), "sketch": _sketched(dataset)}
    if dataset.train.origin is not None:
        found["origins"] = _whence(dataset.train.origin, _of_training(dataset))
    if dataset.test.origin is not None:
        found[TESTED] = _whence(dataset.test.origin, dataset.origins)
    return found


def _sketched(dataset: Dataset) -> list[float]:
    """The sketch of both splits, which alone looks at all examples: a comparison asks for it with every run.

    It is kept as long as the data set is, and as its examples are, as far as torch knows.
    """
    place, splits = id(dataset), (dataset.train, dataset.test)
    versions = [None if s.x.is_inference() else s.x._version for s in splits]
    if place not in _known:
        weakref.finalize(dataset, _known.pop, place, None)
    if place not in _known or _known[place][0] != versions:
        _known[place] = versions, [v for s in splits for v in _sketch(s.x)]
    return _known[place][1]


def _whence(origin: Tensor, names: Sequence[str]) -> str:
    where = origin.numpy().tobytes() + "\0".join(names).encode()
    return hashlib.blake2b(where, digest_size=8).hexdigest()


def _of_training(dataset: Dataset) -> list[str]:
    """The origins without those that test examples alone are from, which earlier versions did not know of."""
    trained, tested = (
        set() if split.origin is None else set(np.unique(split.origin.numpy()).tolist())
        for split in (dataset.train, dataset.test)
    )
    return [name for i, name in enumerate(dataset.origins) if i not in tested - trained]


TESTED = "test_origins"
"""What `facts` calls where test examples are from."""
SKETCHED = 4
"""Numbers that tell examples from others of the same labels and statistics."""
DECODED = 0.02
"""By how much each may differ where it is computed: decoders of JPEG differ by a thousandth of what other
images, or the same in another order, make."""


def _sketch(x: Tensor) -> list[float]:
    """Sums over all examples with fixed random signs, each divided by its standard deviation over signs."""
    if not len(x):
        return []
    flat = x.reshape(len(x), -1)
    shape = flat.shape[1], SKETCHED
    signs = torch.from_numpy(np.random.default_rng(0).choice([-1.0, 1.0], shape).astype(np.float32))
    mine = torch.cat([flat[i : i + 4096].cpu().float() @ signs for i in range(0, len(flat), 4096)]).double()
    by_example = torch.from_numpy(np.random.default_rng(1).choice([-1.0, 1.0], (len(x), 1)))
    sums = (mine * by_example).sum(0) / mine.square().sum(0).sqrt().clamp_min(1e-30)
    return [round(v, 6) for v in sums.tolist()]


def _resembles(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the examples may be the same, as far as both were sketched."""
    one, other = before.get("sketch"), now.get("sketch")
    if one is None or other is None:
        return True
    if not isinstance(one, list) or not all(type(v) in (int, float) for v in one):
        return False
    return len(one) == len(other) and all(abs(a - b) <= DECODED for a, b in zip(one, other, strict=True))


def said(data: Mapping[str, Any]) -> str:
    """What `facts` says, in words."""
    digest = f" (digest {data['digest']})" if "digest" in data else ""
    return f"{data.get('name')} of {data.get('train')} and {data.get('test')} examples{digest}"


def check_data(
    folder: Path, starts: Sequence[Mapping[str, Any]], data: Mapping[str, Any], remedy: str
) -> None:
    """Raise UserError if the run in the folder was begun on other data; ``remedy`` ends the message."""
    before = starts[-1].get("data", data) if starts else data
    if not same(before, data):
        raise UserError(f"{folder} was begun on other data, {said(before)}, not {said(data)}: {remedy}")


def same(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether these facts are of the same data, as far as both tell."""
    left_out = {"sketch", *({"digest", TESTED} - before.keys())}  # earlier versions had none of them
    one, other = ({k: v for k, v in part.items() if k not in left_out} for part in (before, now))
    return one == other and _resembles(before, now)


def check_code(
    folder: Path,
    starts: Sequence[Mapping[str, Any]],
    code: Mapping[str, str],
    remedy: str,
    *,
    values: bool = True,
) -> None:
    """Raise UserError if the owner's code that the run in the folder was begun with has changed since.

    So it is with the ``values`` that this looks up. ``remedy``: what would do, but for putting the code back.
    """
    before = starts[-1].get("code", {}) if starts else {}
    for name, digest in before.items():
        owner = own_digest.looking_up(name)
        if owner and not values:
            continue
        now = code.get(name, "no setting" if owner in code else digest)
        if own_digest.UNKNOWN in (digest, now):
            warnings.warn(
                f"whether {name} is still what {folder} was begun with cannot be told, as it was made in a "
                "prompt: write it into a file.",
                RuntimeWarning,
                stacklevel=2,
            )
        elif own_digest.differs(digest, now):
            what = "another value" if owner else "other code"
            raise UserError(
                f"{folder} was begun with {what} than {name} has now: put that back{remedy}. "
                f"To go on with the new code all the same, move {folder / 'made.json'} elsewhere."
            )


def environment(device: torch.device | None = None) -> dict[str, Any]:
    """What made a result: versions, hardware, git revision, command, time.

    Of several GPUs it names ``device``, or the one that torch takes by default; none if that is the CPU.
    """
    packages = ("fedrecall", "torch", "numpy", "safetensors", "datasets", "ray", "flwr")
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    on_gpu = torch.cuda.is_available() and (device is None or device.type == "cuda")
    gpu = torch.cuda.get_device_name(device) if on_gpu else None
    rounding = {
        "convolutions": torch.backends.cudnn.allow_tf32,
        "products": torch.backends.cuda.matmul.allow_tf32,
    }
    return {
        "command": shlex.join(secrecy.in_words([Path(sys.argv[0]).name, *sys.argv[1:]])),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "versions": versions,
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        **({"tensor floats": rounding} if on_gpu else {}),
        "git": git_revision(),
    }


def cpu_name() -> str:
    """What the processor calls itself."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def git_revision(code: Path = Path(__file__)) -> str | None:
    """The revision that holds this file, with a plus if its folder has been changed since.

    None of a file that no repository holds: an installed package may lie inside somebody else's.
    """

    def ask(*words: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(code.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", code.name)
        return ask("rev-parse", "HEAD") + ("+" if ask("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
