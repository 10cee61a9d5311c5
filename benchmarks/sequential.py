"""Sequential against parallel learning on CIFAR-10, at the setting of SFedKD's tables 1 and 2.

    python benchmarks/sequential.py --runs runs/sequential --hours 3
    python benchmarks/sequential.py --runs runs/sequential --plot

100 clients, 10 of them sampled, E = 5, B = 64, lr 0.01, no momentum, weight decay 1e-4. The paper
names no augmentation, so there is none. Runs take turns, a few rounds each, so that whenever this is
stopped all of them have come equally far; started again it goes on. Several of these may share a
folder if their algorithms, partitions or models differ. The curves are written to benchmarks/results/
after every turn.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import fedrecall
from fedrecall.errors import Interrupted
from fedrecall.files import read_json, write
from fedrecall.records import read_metrics

RESULTS = Path(__file__).parent / "results"
ALGORITHMS = ("fedavg", "fedseq", "cwc", "sfedkd")
PARTITIONS = ("exdir:2,0.5", "exdir:2,10")
TRAINING = {
    "local_epochs": 5,
    "batch_size": 64,
    "lr": 0.01,
    "lr_decay": 1.0,
    "momentum": 0.0,
    "weight_decay": 1e-4,
}


def slug(*parts: object) -> str:
    text = "-".join(map(str, parts))
    return "".join(c if c.isalnum() or c in "-+." else "_" for c in text)


def advance(folder: Path, rounds: int, **settings: object) -> None:
    """Take one run to this round, from wherever it is."""
    fedrecall.run(
        folder,
        resume=(folder / "config.json").exists(),
        rounds=rounds,
        dataset="cifar10",
        augmentation="none",
        clients=100,
        sample=10,
        training=TRAINING,
        checkpoint_every=5,
        evaluate_every=1,
        **settings,
    )


def played(folder: Path) -> int:
    return sum(1 for _ in read_metrics(folder / "metrics.jsonl"))


def collect(runs: Path) -> Path:
    """Write the curves of every run in the folder, and what they were made with, into one file.

    Runs that are not in the folder, of another machine or another day, stay in the file as they are.
    """
    path = RESULTS / f"{runs.name}.json"
    curves, made = {}, {}
    if path.exists():
        before = read_json(path)
        curves, made = before["curves"], before["made"]
    for folder in sorted(p.parent for p in runs.glob("*/config.json")):
        records = list(read_metrics(folder / "metrics.jsonl"))
        if not records:
            continue
        config = read_json(folder / "config.json")
        curves[folder.name] = {
            "algorithm": config["algorithm"],
            "partition": config["partition"],
            "model": config["model"],
            "seed": config["seed"],
            "precision": config["precision"],
            "rounds": len(records),
            "accuracy": [round(r["accuracy"], 4) for r in records],
            "forgetting": [round(r["forgetting"], 4) for r in records],
            "bytes_down": records[-1]["bytes_down"],
            "bytes_up": records[-1]["bytes_up"],
        }
        start = read_json(folder / "made.json")[-1]
        made = {k: start[k] for k in ("versions", "cpu", "gpu", "threads", "git", "started")}
    # One number a line would be thousands of lines.
    text = json.dumps({"training": TRAINING, "made": made, "curves": dict(sorted(curves.items()))})
    write(path, (text.replace('}, "', '},\n"').replace('], "', '],\n"') + "\n").encode())
    return path


def named(spec: dict[str, object]) -> str:
    """A spec in short: its name and what is in it."""
    values = [str(v) for k, v in spec.items() if k not in ("name", "min_size", "draws")]
    return ":".join([str(spec["name"]), ",".join(values)]) if values else str(spec["name"])


def load(path: Path) -> dict[str, dict[str, Any]]:
    """The curves, by name, with short names of what made them."""
    curves = read_json(path)["curves"]
    for c in curves.values():
        c["partition"] = named(c["partition"])
        c["model"] = c["model"] if isinstance(c["model"], str) else c["model"]["name"]
        c["algorithm"] = c["algorithm"]["name"]
    return dict(curves)


def summary(path: Path) -> str:
    """Means over the last tenth of the rounds, for as many rounds as one run after the other has."""
    curves = load(path).values()
    lines = [
        "| partition | model | rounds | algorithm | last | mean of last tenth | best |",
        "|" + "---|" * 7,
    ]
    for setting in sorted({(c["partition"], c["model"]) for c in curves}):
        alike = [c for c in curves if (c["partition"], c["model"]) == setting]
        for n in sorted({c["rounds"] for c in alike}):
            reached = [c for c in alike if c["rounds"] >= n]
            for c in reached if len(reached) > 1 else ():
                a = c["accuracy"][:n]
                tail = a[-max(1, n // 10) :]
                lines.append(
                    f"| {' | '.join(setting)} | {n} | {c['algorithm']} | {a[-1]:.2%} "
                    f"| {sum(tail) / len(tail):.2%} | {max(a):.2%} |"
                )
    return "\n".join(lines)


def plot(path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    curves = load(path)
    panels = sorted({(c["model"], c["partition"]) for c in curves.values()})
    names = sorted({c["algorithm"] for c in curves.values()})
    colours = {name: f"C{i}" for i, name in enumerate(names)}
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 3.6), squeeze=False, sharey=True)
    for axis, (model, partition) in zip(axes[0], panels, strict=True):
        for c in curves.values():
            if (c["model"], c["partition"]) == (model, partition):
                a, window = c["accuracy"], 5
                smooth = [
                    sum(a[max(0, i - window + 1) : i + 1]) / len(a[max(0, i - window + 1) : i + 1])
                    for i in range(len(a))
                ]
                axis.plot(range(1, len(a) + 1), smooth, color=colours[c["algorithm"]])
        axis.set(title=f"{model}, {partition}", xlabel="round")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("test accuracy, mean of 5 rounds")
    lines = [Line2D([], [], color=colours[name]) for name in names]
    figure.tight_layout()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names))
    figure.subplots_adjust(bottom=0.24)
    figure.savefig(path.with_suffix(".svg"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, required=True, help="where the run folders are or will be")
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--partitions", nargs="+", default=list(PARTITIONS))
    parser.add_argument("--models", nargs="+", default=["cnn"], help="cnn, alexnet8")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--turn", type=int, default=10, help="rounds a run plays before the next one's turn")
    parser.add_argument("--hours", type=float, default=1e9, help="start no further turn after this long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="serial", help="chains of one leave nothing to do side by side")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--plot", action="store_true", help="only draw and print what there is")
    options = parser.parse_args()
    names = {
        slug(model, partition, algorithm, f"s{options.seed}"): {
            "algorithm": algorithm,
            "partition": partition,
            "model": model,
            "seed": options.seed,
        }
        for model in options.models
        for partition in options.partitions
        for algorithm in options.algorithms
    }
    if not options.plot:
        torch.set_num_threads(options.threads)
        since = time.monotonic()
        for goal in range(options.turn, options.rounds + options.turn, options.turn):
            for name, settings in names.items():
                if played(options.runs / name) >= min(goal, options.rounds):
                    continue
                if time.monotonic() - since > options.hours * 3600:
                    break
                goal_now = min(goal, options.rounds)
                how = {"backend": options.backend, "precision": options.precision}
                advance(options.runs / name, goal_now, **how, **settings)
                collect(options.runs)
                last = next(reversed(list(read_metrics(options.runs / name / "metrics.jsonl"))))
                print(f"{name}: round {goal_now}, accuracy {last['accuracy']:.2%}", flush=True)
    results = collect(options.runs)
    plot(results)
    print(summary(results))


if __name__ == "__main__":
    try:
        main()
    except Interrupted as stop:  # the round was finished and saved; the same command goes on
        print(stop)
