"""Does a combination beat each paper on its own ground? Selected on held-out training data, tested once.

    python benchmarks/beyond/run.py select --seeds 3    # resumes; as long as there is time
    python benchmarks/beyond/run.py test                # once: the one that was selected
    python benchmarks/beyond/run.py confirm             # once: where the test says that it pays; resumes
    python benchmarks/beyond/run.py show                # what they found, as tables

`select` sets a tenth of the training split apart (the same for all, a tenth of every class) and trains on
the rest; the test split is not touched. What counts is the mean accuracy over the last tenth of the rounds,
for one round's goes up and down with its clients. Setting by setting and seed by seed, a candidate stays in
the race while it is ahead of the best baseline on at least half of the settings that it has played, and of
the baselines of a setting the best stays. After the first seed the best three go on, and after three seeds
or more the best of those still in it is selected. `test` trains it and the best baseline of each setting on
the whole training split, for all of the paper's rounds, evaluates on the test split, and refuses to look at
that a second time. A candidate wins a setting when the bootstrap interval of its paired lead is above zero,
and deserves to become an algorithm when it wins three. What came of it is written to benchmarks/results/.

The selected one won where clients differ in size, and by half a point elsewhere. `confirm` asks whether that
is a rule, in settings that nobody had looked at when it was written down: the same method as it stood, beside
FedNTD, and beside the simplest of its parts, which is to say what the others add.
"""

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrecall import config as configs
from fedrecall.data.datasets import Dataset, Split, load
from fedrecall.errors import Interrupted, UserError
from fedrecall.experiment import Experiment
from fedrecall.files import read_json, write_json
from fedrecall.papers import table
from fedrecall.provenance import environment
from fedrecall.reports.statistics import paired_difference
from fedrecall.streams import numpy_stream

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
SETTINGS = {
    "fedntd/table8:E1": 60,
    "fedntd/table9:E1": 60,
    "fedntd/table1:mnist/shard2": 30,
    "fedntd/table1:mnist/lda0.1": 30,
}
"""Columns of the papers' tables, and rounds that tell methods apart. One local epoch is cheap, and where
forgetting is worst."""
BASELINES = ("fedavg", "fedavgm", "fedntd", "scaffold")
COMBINATIONS = f"{HERE / 'combinations.py'}"
CANDIDATES = {
    "class-wise ntd": f"{COMBINATIONS}:ClassWiseNTD",
    "class-wise ntd 0-2": f"{COMBINATIONS}:ClassWiseNTD:low=0,high=2",
    "credible ntd": f"{COMBINATIONS}:CredibleNTD",
    "momentum ntd": f"{COMBINATIONS}:MomentumNTD",
    "scaffold ntd": "fedtrio:calibration=0",
    "momentum scaffold ntd": f"{COMBINATIONS}:MomentumScaffoldNTD",
    "calibrated scaffold": "fedtrio:beta=0",
    "calibrated scaffold ntd": "fedtrio",
    "half-calibrated scaffold ntd": "fedtrio:calibration=0.5",
    # By itself and together: what each of its parts is worth.
    "calibrated": "calibrated",
    "averaged": f"{COMBINATIONS}:SteadyNTD:beta=0,calibration=0",
    "calibrated ntd": f"{COMBINATIONS}:SteadyNTD:keep=0",
    "averaged ntd": f"{COMBINATIONS}:SteadyNTD:calibration=0",
    "old-teacher ntd": f"{COMBINATIONS}:SteadyNTD:calibration=0,old_teacher=true",
    "steady ntd": f"{COMBINATIONS}:SteadyNTD",
}
SEQUENTIAL: dict[str, Any] = {
    "setting": "sfedkd/table1:cifar10/exdir2-0.5",
    "baselines": ("fedseq", "sfedkd"),
    # The same teachers; five chains of two links, or two of five, train side by side and are averaged.
    "candidates": {"sfedkd 2x5": ("sfedkd", 2), "sfedkd 5x2": ("sfedkd", 5)},
}
"""A race on SFedKD's ground, with `select --settings`; it has not been played."""
CONFIRMED = ("fedntd/table1:mnist/lda0.1", "fedntd/table1:cifar10/lda0.05", "fedntd/table1:cifar10/lda0.3")
"""With one local epoch, as in table 9's first column, where the selected one won: it is cheap."""
CONFIRMING = ("fedntd", "calibrated", "calibrated scaffold ntd")
HELD_OUT = 0.1
FINALISTS, ENOUGH_SEEDS, ENOUGH_WINS = 3, 3, 3
Accuracies = dict[str, dict[str, list[float]]]
"""By setting and method, one of every seed from 0 on."""
Curves = dict[str, dict[str, list[list[float]]]]
"""The same by tenths of the rounds."""


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
    """A method, or a combination, in a setting of a paper; the paper's rounds unless told otherwise."""
    named, _, column = setting.partition(":")
    paper = table(named)
    cell = next(c for c in paper.cells if c.column == column)
    changes: dict[str, Any] = {"measures": (), **how}
    if rounds is not None:
        changes["rounds"] = rounds
    if name in SEQUENTIAL["candidates"]:
        changes["algorithm"], changes["chains"] = SEQUENTIAL["candidates"][name]
    elif name in {c.method for c in paper.cells}:
        cell = paper.cell(column, name)
    else:
        changes["algorithm"] = CANDIDATES.get(name, name)
    return cell.config(seed, **changes)


def methods(setting: str) -> tuple[list[str], list[str]]:
    """(baselines, candidates) of a setting."""
    if setting == SEQUENTIAL["setting"]:
        return list(SEQUENTIAL["baselines"]), list(SEQUENTIAL["candidates"])
    return list(BASELINES), list(CANDIDATES)


def tenths(accuracies: Mapping[int, float], rounds: int) -> list[float]:
    """The mean over every tenth of the rounds, of those that were evaluated; the last one, the level, is what
    counts. A remainder of rounds is left out at the beginning."""
    size = max(1, rounds // 10)
    ends = range(rounds, size - 1, -size)[:10]
    found = [[a for r, a in accuracies.items() if end - size < r <= end] for end in reversed(ends)]
    return [float(np.mean(values)) for values in found]


def played(config_: configs.Config, folder: Path, data: Dataset, seldom: int) -> list[float]:
    """The run's accuracy by tenths. Before the last one ``seldom`` rounds go by from one evaluation to the
    next: one takes half as long as the training of a round, and changes nothing that counts."""
    tenth = max(1, config_.rounds // 10)
    early, seldom = config_.rounds - tenth, min(seldom, tenth)
    metrics = folder / "metrics.jsonl"
    begun = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    if seldom > 1 and begun < early:
        first = dataclasses.replace(config_, rounds=early, evaluate_every=seldom)
        Experiment(first, folder, resume=True, dataset=data).run()
    result = Experiment(config_, folder, resume=True, dataset=data).run()
    return tenths({r["round"]: r["accuracy"] for r in result.history if "accuracy" in r}, len(result.history))


def measure(
    runs: Path,
    settings: list[str],
    chosen: Mapping[str, list[str]] | None,
    seeds: int,
    rounds: int | None,
    kept: Path | None = None,
    seldom: int = 1,
    **how: object,
) -> tuple[Accuracies, Curves]:
    """The level by setting, method and seed, and the way there: of who is in the race, on held-out training
    data, or of those ``chosen`` for each setting, on the test split. What ``kept`` has is not played again,
    and what is played is added to it."""
    found: Accuracies = {s: {} for s in settings}
    curves: Curves = {s: {} for s in settings}
    known: Curves = read_json(kept)["tenths"] if kept is not None and kept.exists() else {}
    test = chosen is not None
    for seed in range(seeds):
        for setting in settings:
            racers = list(chosen[setting]) if chosen is not None else racing(setting, found)
            length = rounds if test or rounds is not None else SETTINGS.get(setting)
            made = {name: config(setting, name, seed, length, **how) for name in racers}
            whole = load(made[racers[0]].dataset)
            data = whole if test else held_out(whole)
            for name, config_ in made.items():
                before = known.get(setting, {}).get(name, [])
                if seed < len(before):
                    curve = before[seed]
                else:
                    place = setting.replace(":", "/"), name.replace(" ", "-"), f"seed{seed}"
                    folder = runs.joinpath("test" if test else "select", *place)
                    curve = played(config_, folder, data, seldom)
                curves[setting].setdefault(name, []).append(curve)
                found[setting].setdefault(name, []).append(curve[-1])
                if kept is not None and seed >= len(before):
                    known.setdefault(setting, {})[name] = [*before, curve]
                    write_json(kept, {"tenths": known})
                split = "test" if test else "held out"
                print(f"{split} {setting} {name} seed {seed}: {curve[-1]:.2%}", flush=True)
    return found, curves


def racing(setting: str, found: Accuracies) -> list[str]:
    """Who plays the next seed of a setting."""
    baselines, candidates = methods(setting)
    best = best_baseline(setting, found[setting])
    begun = any(c in played for played in found.values() for c in candidates)
    stay = still_racing(found) if begun else set(candidates)
    if found[setting]:
        stay = set(sorted(stay, key=lambda c: mean_lead(leads(found)[c]), reverse=True)[:FINALISTS])
    return [b for b in baselines if best in (None, b)] + [c for c in candidates if c in stay]


def best_baseline(setting: str, by_method: Mapping[str, list[float]]) -> str | None:
    """Of those with the most seeds the one with the best mean; None before any has played."""
    played = {b: by_method[b] for b in methods(setting)[0] if b in by_method}
    if not played:
        return None
    most = max(map(len, played.values()))
    return max((b for b in played if len(played[b]) == most), key=lambda b: float(np.mean(played[b])))


def leads(accuracies: Accuracies) -> dict[str, dict[str, dict[str, Any]]]:
    """By candidate and setting, its paired lead over the best baseline, on the seeds that it has played."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for setting, by_method in accuracies.items():
        best = best_baseline(setting, by_method)
        if best is None:
            continue
        for name in (c for c in methods(setting)[1] if c in by_method):
            mine = by_method[name]
            d = paired_difference(by_method[best][: len(mine)], mine)
            found.setdefault(name, {})[setting] = {
                "over": best,
                "lead": d.mean,
                "low": d.low,
                "high": d.high,
                "seeds": d.n,
            }
    return found


def mean_lead(by_setting: Mapping[str, Mapping[str, Any]]) -> float:
    """A candidate's lead, averaged over its settings."""
    return float(np.mean([d["lead"] for d in by_setting.values()]))


def still_racing(accuracies: Accuracies) -> set[str]:
    """Who has played all that any candidate has, and is ahead on at least half of those settings."""
    found = leads(accuracies)
    most = {
        setting: max(d[setting]["seeds"] for d in found.values() if setting in d)
        for setting in {s for d in found.values() for s in d}
    }
    return {
        name
        for name, d in found.items()
        if all(setting in d and d[setting]["seeds"] == n for setting, n in most.items())
        and 2 * sum(s["lead"] > 0 for s in d.values()) >= len(d)
    }


def selected(accuracies: Accuracies) -> str | None:
    """Of those in the race after enough seeds the one with the largest lead: one is tested, not the luckiest
    of several."""
    found = leads(accuracies)
    enough = [
        c for c in still_racing(accuracies) if all(d["seeds"] >= ENOUGH_SEEDS for d in found[c].values())
    ]
    return max(enough, key=lambda c: mean_lead(found[c]), default=None)


def wins(by_setting: Mapping[str, Mapping[str, Any]]) -> int:
    """Settings in which the interval of the lead is above zero, over enough seeds."""
    return sum(
        d["low"] is not None and d["low"] > 0 and d["seeds"] >= ENOUGH_SEEDS for d in by_setting.values()
    )


def shown(said: Mapping[str, Any]) -> str:
    """A race or a test as tables: who has played enough seeds beside the best baseline, at the end and on
    the way there."""
    found = [
        (name, setting, d)
        for name, by_setting in said["leads"].items()
        for setting, d in by_setting.items()
        if all(d["seeds"] >= ENOUGH_SEEDS for d in by_setting.values())
    ]
    lines = [
        "| setting | best baseline | method | its lead, with its 95 % interval | seeds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, setting, d in found:
        two = [f"{n} {percent(said['accuracy'][setting][n])}" for n in (d["over"], name)]
        lead = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*(100 * d[k] for k in ("lead", "low", "high")))
        lines.append(f"| {setting} | {two[0]} | {two[1]} | {lead} | {d['seeds']} |")
    if curves := said.get("tenths"):
        ahead = [
            100 * (np.array(curves[setting][name]) - curves[setting][d["over"]][: d["seeds"]]).mean(0)
            for name, setting, d in found
        ]
        columns = max(map(len, ahead), default=0)
        lines += [
            "",
            "| its mean lead by tenths of the rounds |" + " |" * columns,
            "| --- |" + " --- |" * columns,
        ]
        for (name, setting, _), values in zip(found, ahead, strict=True):
            lines.append(f"| {setting}, {name} |" + "".join(f" {v:+.1f} |" for v in values))
    return "\n".join(lines) + "\n"


def percent(accuracies: list[float]) -> str:
    """Mean and standard deviation over seeds."""
    values = 100 * np.array(accuracies)
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("select", "test", "confirm", "show"))
    parser.add_argument(
        "--settings", nargs="+",
        help=f"select: in place of {', '.join(SETTINGS)}, also {SEQUENTIAL['setting']}; "
        "test: play these alone, side by side with others, and conclude nothing yet",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="fewer: in every setting instead of its own")
    parser.add_argument("--runs", type=Path, default=Path("runs/beyond"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--precision", default="float32")
    options = parser.parse_args()
    first, last, again = (options.results / f"beyond-{name}.json" for name in ("select", "test", "confirm"))
    if options.what == "show":
        if not first.exists():
            raise UserError(f"{first} is not there yet: select writes it.")
        kept_files = [read_json(file) for file in (first, last, again) if file.exists()]
        print("\n".join(shown(s) for s in kept_files if "leads" in s))
        return
    settings, chosen = options.settings or list(SETTINGS), None
    if options.what == "test":
        if last.exists():
            raise UserError(f"the test split was looked at once, and {last} says what was seen.")
        raced = read_json(first)
        if not raced["selected"]:
            raise UserError(f"{first} selected nobody: there is nothing to test.")
        if options.seeds < ENOUGH_SEEDS and not options.settings:
            raise UserError(f"the single look at the test split is worth {ENOUGH_SEEDS} seeds or more.")
        chosen = {
            s: [str(best_baseline(s, by_method)), raced["selected"]]
            for s, by_method in raced["accuracy"].items()
        }
        settings = options.settings or list(chosen)
        if unknown := [s for s in settings if s not in chosen]:
            raise UserError(f"{first} has no race in {unknown[0]}.")
    how = {"backend": options.backend, "workers": options.workers, "precision": options.precision}
    kept, seldom, steps = None, 1, {}
    if options.what == "confirm":
        if again.exists() and "leads" in read_json(again):
            raise UserError(f"the test split was looked at, and {again} says what was seen.")
        settings, kept, seldom = list(CONFIRMED), again, 20
        steps = {"training.local_epochs": 1}
        chosen = {s: list(CONFIRMING) for s in settings}
        options.runs /= "confirm"
    found, curves = measure(
        options.runs, settings, chosen, options.seeds, options.rounds, kept,
        seldom, checkpoint_every=20, **steps, **how,
    )  # fmt: skip
    if kept is not None and options.seeds < ENOUGH_SEEDS:
        print(f"played; {ENOUGH_SEEDS} seeds conclude.")
        return
    ahead = leads(found)
    said: dict[str, Any] = {"rounds": options.rounds, "accuracy": found, "leads": ahead, "tenths": curves}
    said |= {**how, "made": environment()}
    if options.what == "select":
        write_json(first, said | {"selected": selected(found)})
        print("selected:", selected(found) or "nobody")
    elif chosen is not None and set(settings) < set(chosen):
        print("played; test without --settings concludes once all of them are.")
    else:
        worthy = [n for n, d in ahead.items() if wins(d) >= ENOUGH_WINS]
        write_json(kept or last, said | {"worthy": worthy})
        print("to become an algorithm:", ", ".join(worthy) or "nobody")


if __name__ == "__main__":
    try:
        main()
    except Interrupted as stop:
        sys.exit(f"{stop}; the same command goes on from there.")
    except UserError as error:
        sys.exit(f"error: {error}")
