"""Seconds a round, a sequential hop and a secure round take in a real Flower federation on this machine.

    python -m benchmarks.flower [--rounds 5] [--only "--poll 0.5"]

Three SuperNodes on loopback with TLS and authenticated nodes train a small network on digits, for
which training itself is next to nothing: what is measured is what Flower and the processes cost.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from tests.flower.federation import LocalFederation, make_key

PLAIN = ("-c", "from flwr.supernode.cli import flower_supernode; flower_supernode()")
QUICK = ("-m", "fedrecall.flower.supernode")
CASES = {
    "flower-supernode": (PLAIN, {}),
    "flower-supernode, task poll 0.1 s": (PLAIN, {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}),
    "fedrecall-supernode --poll 0.5": ((*QUICK, "--poll", "0.5"), {}),
    "fedrecall-supernode --poll 0.1": ((*QUICK, "--poll", "0.1"), {}),
}


RUNS = {
    "round": {"algorithm": "fedavg"},
    "hop": {"algorithm": "fedseq"},
    "secure": {"algorithm": "fedavg", "secure": "examples"},
}


def measure(launcher: tuple[str, ...], environment: dict[str, str], rounds: int) -> dict[str, float]:
    """Median seconds of a parallel round, of a hop of a chain, and of a round with secure aggregation."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        f = LocalFederation(folder, launcher)
        f.environment.pop("FLWR_SUPEREXEC_TASK_POLL_INTERVAL")
        f.environment |= environment
        try:
            f.start_link()
            for k in range(3):
                key = make_key(folder / f"key{k}")
                f.register(key)
                f.start_node(f"node{k}", key, f'client={k} data="digits" divide=true')
            seconds = {}
            for name, run in RUNS.items():
                out = folder / name
                f.submit(
                    **run, clients=3, sample=3, rounds=rounds, dataset="digits", model="mlp",
                    training__local_epochs=1, out=str(out),
                )  # fmt: skip
                f.until(lambda out=out: len(_rounds(out)) >= rounds, 600, f"{name} to end")
                seconds[name] = statistics.median(r["seconds"]["train"] for r in _rounds(out))
        finally:
            f.close()
    return seconds | {"hop": seconds["hop"] / 3}


def _rounds(out: Path) -> list[dict]:
    from fedrecall.records import read_metrics

    return list(read_metrics(out / "metrics.jsonl"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="cases whose name has this in it", default="")
    given = parser.parse_args()
    for name, (launcher, environment) in CASES.items():
        if given.only in name:
            began = time.perf_counter()
            found = measure(launcher, environment, given.rounds)
            took = time.perf_counter() - began
            each = ", ".join(f"{what} {seconds:5.2f} s" for what, seconds in found.items())
            print(f"{name:36} {each} ({took:.0f} s in all)", flush=True)


if __name__ == "__main__":
    main()
