# ruff: noqa: E501  the page's lines are as wide as pages are, not as code is
"""Write docs/reliability.md from benchmarks/results/reliability.json: `make torture`, or this alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "reliability.json"
PAGE = ROOT / "docs" / "reliability.md"

HEAD = """\
# It keeps working: faults, bad input, long runs

`make torture` measures every number on this page and writes the page; `make test` runs a short form of each
(`tests/test_reliability_*.py`). {machine}

"""

PROMISES = """\
## What may differ, and what may not

The same seed on the same machine gives the same bits: after any interruption, and with any number of workers of the
`processes` backend (tested with 1, 2 and 3). Which clients are drawn, who holds which example and every visit's
order are whole numbers from keyed streams: they are the same everywhere.

What may differ, in rounding alone: another processor (other vector instructions), another version of torch, numpy or
the mathematics library below them, another number of threads within one visit (a chain that trains alone, in the
main process), a GPU, and one backend against another. In float32 with momentum such differences grow over rounds;
in float64 they stay small enough to compare. A test holds three rounds in float64 to the same computation written in
plain numpy, to 1e-9, and the clients drawn to the same numbers (`tests/test_reliability_long.py`); another holds every
algorithm to its own earlier results (`tests/algorithms/golden.json`). `made.json` in a run folder records versions,
processor and threads.

## The draws of other people's code

Much research code, FedML's and FedNTD's among it, seeds the global generators of Python and NumPy: once for who holds
how much of which class, and with the round's number for its clients. Every trial then meets the same clients in the
same order, and where a run ends depends on whom the last rounds draw. `--global-seed` gives such a federation, so that
a published number can be compared without that luck:

    fedrecall run --dataset cifar10 --partition lda:0.1 --clients 100 --sample 10 --global-seed 19940817

has FedNTD's LDA 0.1, class by class and client by client, and its clients in each of the 200 rounds; it works with
`lda`, and with `shards` if no shard mixes classes. `--seed` still changes the initial model, the batches and the
augmentation. The numbers are those of the authors' code (`python benchmarks/arbiter/draws.py --code CLONE` compares
them). Which examples of a class a client has is our own draw, one for each `--global-seed`. It cannot go with `private`:
clients that everybody can foresee are not hidden by being drawn.

## What a client's data may be

| client | outcome |
|---|---|
| no examples | left out of the round: `it has no examples` |
| NaN or infinite values | left out: `the loss became nan`, with the step |
| values that explode | left out: the loss, the model or the upload `became` NaN or Inf |
| one example, or one class | takes part |
| 1 to 100,000 examples side by side | take part |
| labels that are no class | the run is refused before anything is trained |
| every client of a round fails | the run ends in a sentence that says which model is kept: the last good one, or with `checkpoint_every` the last that was saved |

A round with failures equals the round of the others. `on_failure: stop` ends the run at the first one instead.
"""


def main() -> None:
    """Write the page."""
    found = json.loads(RESULTS.read_text())
    PAGE.write_text(page(found))
    print(f"wrote {PAGE.relative_to(ROOT)}")


def page(found: dict[str, Any]) -> str:
    """The page of these results."""
    parts = [
        HEAD.format(machine=machines(found)),
        kills(found),
        workers(found),
        fuzzing(found),
        long(found),
        PROMISES,
    ]
    return "\n".join(filter(None, parts))


NAMES = {
    "disk": "full disks",
    "fuzz": "bad input",
    "kill": "kills",
    "large": "large inputs",
    "long": "long runs",
}


def machines(found: dict[str, Any]) -> str:
    """When and on what the sections were measured; of several, which."""
    where: dict[str, list[str]] = {}
    for section, held in sorted(found.items()):
        m = held["measured"]
        said = (
            f"{m['date']}: {m['cores']} cores of {m['cpu']}, {m['memory_gb']} GB, "
            f"Python {m['python']}, torch {m['torch']}"
        )
        where.setdefault(said, []).append(section)
    usual, *others = sorted(where, key=lambda said: -len(where[said]))
    apart = "".join(f" On {said}: {', '.join(_headed(where[said], found))}." for said in others)
    return f"Measured on {usual}.{apart}"


def _headed(names: list[str], found: dict[str, Any]) -> list[str]:
    """The sections by their headings, where these have no others."""
    heads: dict[str, list[str]] = {}
    for name in names:
        heads.setdefault(name.split("/")[0], []).append(name)
    whole = {head: all(n in names for n in found if n.split("/")[0] == head) for head in heads}
    return [said for head, own in heads.items() for said in ([NAMES.get(head, head)] if whole[head] else own)]


def sections(found: dict[str, Any], head: str) -> dict[str, Any]:
    """The sections below a heading."""
    return {k.removeprefix(head + "/"): v for k, v in sorted(found.items()) if k.startswith(head + "/")}


def kills(found: dict[str, Any]) -> str:
    """Kills and full disks."""
    held = sections(found, "kill")
    report, full = held.pop("report", {"kills": 0}), sections(found, "disk")
    if not held:
        return ""
    total = sum(v["kills"] for v in held.values())
    lines = [
        "## Killed anywhere\n",
        f"SIGKILL at {total} keyed moments: between any two writes, with half a file written, after a visit, around an "
        "evaluation, while old files are deleted, or at any time by the clock; every run up to twice. "
        "After every kill the folder was readable and had lost the round at most; every run then went on to the same "
        "parameters and records, bit for bit, and left no process, shared memory or temporary file.\n",
        "| algorithm | backend | kills | with half a file written | same result |",
        "|---|---|---|---|---|",
    ]
    for name, v in held.items():
        algorithm, backend = name.split("/")
        half = v["moments"].get("half a file", 0)
        lines.append(f"| {algorithm} | {backend} | {v['kills']} | {half} | {'yes' if v['same'] else 'no'} |")
    lines.append(
        f"\nA report that was killed while it was written ({report['kills']} times) was whole or not there."
    )
    if full:
        times = ", ".join(f"{v['full']} times under {k}" for k, v in full.items())
        lines.append(
            f"\nA disk of 400 kB that filled up during the run ({times}) ended it in a sentence; with room again it "
            "went on to the same result."
        )
    return "\n".join(lines) + "\n"


def workers(found: dict[str, Any]) -> str:
    """Workers that were harmed."""
    held = sections(found, "workers")
    if not held:
        return ""
    lines = [
        "## Workers\n",
        "A worker of the `processes` backend was harmed in the middle of a link. It was replaced, its visit made again, and "
        "all visits were those of `serial`, bit for bit; no process was left.\n",
        "| what happened to it | times | same result |",
        "|---|---|---|",
        *(f"| {k} | {v['times']} | {'yes' if v['same'] else 'no'} |" for k, v in held.items()),
    ]
    return "\n".join(lines) + "\n"


def fuzzing(found: dict[str, Any]) -> str:
    """Bad input."""
    held = sections(found, "fuzz")
    if not held:
        return ""
    total = sum(v["inputs"] for v in held.values())
    lines = [
        "## Bad input\n",
        f"{total:,} inputs (hypothesis, keyed). Each was used, or refused in a sentence: no traceback, none computed for "
        "5 s, and an audit hook saw no write outside the run's folders, no other program, no connection and nothing "
        "unpickled.\n",
        "| what was fed | inputs | used | refused |",
        "|---|---|---|---|",
        *(f"| {k} | {v['inputs']:,} | {v['used']:,} | {v['refused']:,} |" for k, v in held.items()),
        "\nA checkpoint, or a client's memory that it names, with any changed byte is passed over for the one before; "
        "used were those that came out the same (white space in a manifest).",
    ]
    return "\n".join(lines) + "\n"


def long(found: dict[str, Any]) -> str:
    """Long and large."""
    lines = ["## Long and large\n"]
    if v := found.get("long"):
        reading = ", ".join(f"{n} rounds in {s} s" for n, s in v["reading_seconds_by_rounds"].items())
        memory = ", ".join(f"{m} MB at {r}" for r, m in v["memory_mb"].items())
        every = ", ".join(f"{k} every {n}" if n > 1 else k for k, n in v["every"].items())
        lines.append(
            f"{v['rounds']:,} rounds on digits with these measures ({every}; the landscape on 100 examples): memory grows by "
            f"{v['slope_mb_per_1000_rounds']} MB a thousand rounds ({memory}), {v['descriptors']} open files from "
            f"beginning to end, {v['metrics_mb']} MB of metrics, read in linear time ({reading}). The records of a run "
            "with a folder are on disk alone; without a folder they are kept in memory.\n"
        )
    for name, v in sections(found, "large").items():
        lines.append(
            f"{v['clients']:,} clients, {v['sampled']} a round, under {name}: {v['seconds_a_round']} s a round, "
            f"{v['memory_mb']} MB more than the process held after the long run.\n"
        )
    if v := found.get("report"):
        lines.append(f"A report over {v['runs']} runs of 50 rounds: {v['seconds']} s, {v['mb']} MB.\n")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
