"""bfloat16 beside float32: every experiment that was run in both, from what `fedrecall reproduce` kept.

    python -m benchmarks.precision

Reads benchmarks/results/reproduction/ and trains nothing. Means over twenty rounds at a time, because one
round's accuracy swings by several points in either precision.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev

from fedrecall.papers.results import FOLDER, Outcome, name, read

ROUNDS = 20
HEAD = (
    "| experiment | rounds | float32, % | bfloat16, % | difference | round to round in float32 |\n"
    "|---|---|---|---|---|---|"
)


def pairs(folder: Path) -> list[tuple[Outcome, Outcome]]:
    """Runs that differ in their precision alone."""
    halves = sorted(folder.glob("*/seed*-bfloat16.json"))
    whole = [path.with_name(path.name.replace("-bfloat16", "")) for path in halves]
    return [(read(w), read(h)) for w, h in zip(whole, halves, strict=True) if w.exists()]


def rows(single: Outcome, half: Outcome) -> list[str]:
    """A line for every stretch of rounds that both played."""
    both = min(single.done, half.done)
    found = []
    for first in range(0, both - both % ROUNDS, ROUNDS):
        a, b = (100 * fmean(o.accuracy[first : first + ROUNDS]) for o in (single, half))
        steps = [single.accuracy[i + 1] - single.accuracy[i] for i in range(first, first + ROUNDS - 1)]
        found.append(
            f"| {name(single.config)}, seed {single.seed} | {first + 1} to {first + ROUNDS} "
            f"| {a:.2f} | {b:.2f} | {b - a:+.2f} | {100 * stdev(steps):.1f} |"
        )
    return found


def main() -> None:
    """Print the table."""
    print(HEAD)
    for single, half in pairs(FOLDER):
        print("\n".join(rows(single, half)))


if __name__ == "__main__":
    main()
