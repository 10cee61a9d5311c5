"""Does a combination beat each paper on its own ground? Selected on held-out training data, tested once.

    python benchmarks/beyond/run.py select --rounds 60 --seeds 3    # resumes; as long as there is time
    python benchmarks/beyond/run.py test                            # once: those that were selected

`select` sets a tenth of the training split apart (the same for all, a tenth of every class) and trains on
the rest; the test split is not touched. A candidate is selected if, over at least three seeds, it is ahead
of the better of the baselines on at least half of the settings. `test` trains the selected ones and the
baselines on the whole training split and evaluates on the test split, and refuses to look at that a second
time. A candidate wins a setting when the bootstrap interval of its paired lead is above zero, and deserves
to become an algorithm when it wins three. What came of it is written to benchmarks/results/.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import numpy as np
import torch

from fedrecall import config as configs
from fedrecall.data.datasets import Dataset, Split, load
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment, environment
from fedrecall.files import read_json, write_json
from fedrecall.papers import table
from fedrecall.reports.statistics import paired_difference
from fedrecall.streams import numpy_stream

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
SETTINGS = ("cifar10/shard2", "cifar10/lda0.1", "mnist/shard2", "mnist/lda0.1")
BASELINES = ("fedavg", "fedntd", "scaffold")
COMBINATIONS = f"{HERE / 'combinations.py'}"
CANDIDATES = {
    "class-wise ntd": f"{COMBINATIONS}:ClassWiseNTD",
    "class-wise ntd 0-2": f"{COMBINATIONS}:ClassWiseNTD:low=0,high=2",
    "momentum ntd 0.5": f"{COMBINATIONS}:MomentumNTD",
    "momentum ntd 0.9": f"{COMBINATIONS}:MomentumNTD:server_momentum=0.9",
    "scaffold ntd": f"{COMBINATIONS}:ScaffoldNTD",
}
SEQUENTIAL = {
    "setting": "cifar10/exdir2-0.5",
    "baselines": ("fedseq", "sfedkd"),
    # The same teachers; five chains of two links, or two of five, train side by side and are averaged.
    "candidates": {"sfedkd 2x5": ("sfedkd", 2), "sfedkd 5x2": ("sfedkd", 5)},
}
HELD_OUT = 0.1
ENOUGH_SEEDS, ENOUGH_WINS = 3, 3


def held_out(dataset: Dataset, share: float = HELD_OUT) -> Dataset:
    """The data set with a share of every training class in the place of its test split."""
    labels = dataset.train.y.numpy()
    stream = numpy_stream(0, "held out")
    chosen = []
    for c in range(dataset.classes):
        places = np.flatnonzero(labels == c)
        chosen.append(stream.choice(places, round(share * len(places)), replace=False))
    out = np.zeros(len(labels), bool)
    out[np.concatenate(chosen)] = True
    parts = [
        Split(dataset.train.x[torch.from_numpy(m)], dataset.train.y[torch.from_numpy(m)]) for m in (~out, out)
    ]
    return dataclasses.replace(dataset, name=f"{dataset.name}, held out", train=parts[0], test=parts[1])


def config(setting: str, name: str, seed: int, rounds: int | None, **how: object) -> configs.Config:
    """A method, or a combination, in a setting of a paper."""
    sequential = setting == SEQUENTIAL["setting"]
    cell = (
        table("sfedkd/table1").cell(setting, "sfedkd")
        if sequential
        else table("fedntd/table1").cell(setting, "fedavg")
    )
    changes: dict[str, object] = {"measures": (), **how}
    if rounds is not None:
        changes["rounds"] = rounds
    if name in SEQUENTIAL["candidates"]:
        changes["algorithm"], changes["chains"] = SEQUENTIAL["candidates"][name]
    else:
        changes["algorithm"] = CANDIDATES.get(name, name)
    return cell.config(seed, **changes)


def methods(setting: str) -> tuple[list[str], list[str]]:
    """(baselines, candidates) of a setting."""
    if setting == SEQUENTIAL["setting"]:
        return list(SEQUENTIAL["baselines"]), list(SEQUENTIAL["candidates"])
    return list(BASELINES), list(CANDIDATES)


def measure(
    runs: Path,
    settings: list[str],
    names: set[str] | None,
    seeds: int,
    rounds: int | None,
    *,
    test: bool,
    **how: object,
) -> dict:
    """Final accuracy by setting, method and seed: one seed of everything first."""
    found: dict[str, dict[str, list[float]]] = {s: {} for s in settings}
    for seed in range(seeds):
        for setting in settings:
            whole = load(setting.partition("/")[0])
            data = whole if test else held_out(whole)
            baselines, candidates = methods(setting)
            for name in [*baselines, *(c for c in candidates if names is None or c in names)]:
                made = config(setting, name, seed, rounds, **how)
                folder = (
                    runs / ("test" if test else "select") / setting / name.replace(" ", "-") / f"seed{seed}"
                )
                result = Experiment(made, folder, resume=True, dataset=data).run()
                accuracy = result.history[made.rounds - 1]["accuracy"]  # it may have gone further before
                found[setting].setdefault(name, []).append(accuracy)
                print(
                    f"{'test' if test else 'held out'} {setting} {name} seed {seed}: {accuracy:.2%}",
                    flush=True,
                )
    return found


def leads(accuracies: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, dict]]:
    """By candidate and setting, its paired lead over the baseline with the best mean."""
    found: dict[str, dict[str, dict]] = {}
    for setting, by_method in accuracies.items():
        baselines, candidates = methods(setting)
        best = max((b for b in baselines if b in by_method), key=lambda b: float(np.mean(by_method[b])))
        for name in (c for c in candidates if c in by_method):
            d = paired_difference(by_method[best], by_method[name])
            found.setdefault(name, {})[setting] = {
                "over": best,
                "lead": d.mean,
                "low": d.low,
                "high": d.high,
                "seeds": d.n,
            }
    return found


def selected(found: dict[str, dict[str, dict]]) -> list[str]:
    """Who is ahead on at least half of its settings, over enough seeds."""
    return [
        name
        for name, by_setting in found.items()
        if all(d["seeds"] >= ENOUGH_SEEDS for d in by_setting.values())
        and 2 * sum(d["lead"] > 0 for d in by_setting.values()) >= len(by_setting)
    ]


def wins(by_setting: dict[str, dict]) -> int:
    """Settings in which the interval of the lead is above zero, over enough seeds."""
    return sum(
        d["low"] is not None and d["low"] > 0 and d["seeds"] >= ENOUGH_SEEDS for d in by_setting.values()
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("select", "test"))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), help=f"also {SEQUENTIAL['setting']}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="fewer than the paper's")
    parser.add_argument("--runs", type=Path, default=Path("runs/beyond"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--backend", default="auto")
    options = parser.parse_args()
    first, last = options.results / "beyond-select.json", options.results / "beyond-test.json"
    names = None
    if options.what == "test":
        if last.exists():
            raise UserError(f"the test split was looked at once, and {last} says what was seen.")
        chosen = read_json(first)
        names = set(chosen["selected"])
        if not names:
            raise UserError(f"{first} selected nobody: there is nothing to test.")
        options.settings = list(chosen["accuracy"])
    found = measure(
        options.runs, options.settings, names, options.seeds, options.rounds,
        test=options.what == "test", backend=options.backend,
    )  # fmt: skip
    ahead = leads(found)
    said = {"rounds": options.rounds, "accuracy": found, "leads": ahead, "made": environment()}
    if options.what == "select":
        write_json(first, said | {"selected": selected(ahead)})
        print("selected:", ", ".join(selected(ahead)) or "nobody")
    else:
        worthy = [n for n, d in ahead.items() if wins(d) >= ENOUGH_WINS]
        write_json(last, said | {"worthy": worthy})
        print("to become an algorithm:", ", ".join(worthy) or "nobody")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
