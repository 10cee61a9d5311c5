"""What a run cost and how soon it got somewhere, from its records alone."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

Record = Mapping[str, Any]
Clock = Literal["waiting", "working"]


class Cost(NamedTuple):
    """What a run took."""

    down: float
    """Bytes a client receives in a round (mean over visits)."""
    up: float
    """Bytes a client sends in a round (mean over visits)."""
    total_bytes: int
    """All that was sent, both ways, over the run, with what a federation's nodes evaluated."""
    memory: int
    """Bytes a client keeps between visits."""
    auxiliary: int
    """Examples that the server holds for itself."""
    waiting: float
    """Seconds of local training on the longest chain of every round, summed."""
    working: float
    """Seconds of local training of all clients, summed."""
    train: float
    """Seconds that playing the rounds took here."""
    evaluate: float
    """Seconds of evaluation."""
    measures: dict[str, float]
    """Seconds of every measure."""


def cost(records: Sequence[Record], auxiliary: int = 0) -> Cost:
    """The cost of all rounds."""
    visits = sum(len(chain) for r in records for chain in r["chains"])
    down, up = sum(r["bytes_down"] for r in records), sum(r["bytes_up"] for r in records)
    evaluation = sum(r.get(f"bytes_evaluation_{way}", 0) for r in records for way in ("down", "up"))
    measures: dict[str, float] = {}
    for r in records:
        for name, seconds in r["seconds"].get("measures", {}).items():
            measures[name] = measures.get(name, 0.0) + seconds
    return Cost(
        down=down / max(visits, 1),
        up=up / max(visits, 1),
        total_bytes=down + up + evaluation,
        memory=max((r.get("memory_bytes", 0) for r in records), default=0),
        auxiliary=auxiliary,
        waiting=sum(local_seconds(r, "waiting") for r in records),
        working=sum(local_seconds(r, "working") for r in records),
        train=sum(r["seconds"]["train"] for r in records),
        evaluate=sum(r["seconds"].get("evaluate", 0.0) for r in records),
        measures=measures,
    )


def local_seconds(record: Record, clock: Clock = "waiting") -> float:
    """Seconds of local training in a round.

    ``waiting``: of the chain that takes longest, what a federation waits for when every client has
    its own machine (parallel: the slowest client; sequential: all of them). ``working``: of all.
    """
    seconds = iter(record["seconds"]["clients"])
    chains = [sum(next(seconds) for _ in chain) for chain in record["chains"]]
    return max(chains, default=0.0) if clock == "waiting" else sum(chains)


def rounds_to(records: Sequence[Record], target: float) -> int | None:
    """The first evaluated round with at least this accuracy; None if there is none."""
    return next((int(r["round"]) for r in records if r.get("accuracy", -1.0) >= target), None)


def seconds_to(records: Sequence[Record], target: float, clock: Clock = "waiting") -> float | None:
    """Seconds of local training up to and with the first round of at least this accuracy."""
    reached = rounds_to(records, target)
    if reached is None:
        return None
    return sum(local_seconds(r, clock) for r in records if r["round"] <= reached)


def elapsed(records: Sequence[Record], clock: Clock = "waiting") -> list[float]:
    """Seconds of local training from the start to the end of every round."""
    total, found = 0.0, []
    for r in records:
        total += local_seconds(r, clock)
        found.append(total)
    return found
