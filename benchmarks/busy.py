"""Training on a machine that others use, too: waiting threads that spin briefly, and as OpenMP has it.

    python -m benchmarks.busy

The `serial` backend with all threads on digits, alone and beside a program that keeps every core busy; the
median round without the first. Taking turns. See GOMP_SPINCOUNT in src/fedrecall/__init__.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedrecall.files import write_json

RESULT = Path(__file__).parent / "results" / "busy.json"
RUN = (
    *("run", "--algorithm", "fedntd", "--dataset", "digits", "--clients", "20", "--sample", "5"),
    *("--batch-size", "20", "--backend", "serial"),
)
OPENMP = "300000"
"""What GNU OpenMP's spin count is where threads are no more than cores."""


@contextmanager
def neighbour() -> Iterator[None]:
    """Another program that wants every core, of the same priority."""
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
            stack.callback(spinning.wait)
            stack.callback(spinning.kill)
        yield


def seconds(spins: str | None, rounds: int) -> float:
    """The median round."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        others = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        given = others if spins is None else {**others, "GOMP_SPINCOUNT": spins}
        command = [sys.executable, "-m", "fedrecall", *RUN, "--rounds", str(rounds), "--out", str(out)]
        subprocess.run(command, env=given, check=True, capture_output=True)
        lines = (out / "metrics.jsonl").read_text().splitlines()
        return statistics.median(json.loads(line)["seconds"]["train"] for line in lines[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    for turn in range(options.turns):
        for where in ("alone", "beside another"):
            for how, spins in (("fedrecall", None), ("OpenMP's default", OPENMP)):
                with ExitStack() as stack:
                    if where != "alone":
                        stack.enter_context(neighbour())
                    taken = seconds(spins, options.rounds)
                found.setdefault(f"{where}, {how}", []).append(taken)
                print(f"turn {turn + 1}: {where}, {how}: {taken:.2f} s a round", flush=True)
    medians = {name: statistics.median(taken) for name, taken in found.items()}
    write_json(RESULT, {"median round, s": medians, "rounds": found})
    print("\n| digits, a round | seconds |\n|---|---|")
    for name, taken in medians.items():
        print(f"| {name} | {taken:.2f} |")


if __name__ == "__main__":
    main()
