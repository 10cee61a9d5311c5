"""Sequential federations: forgetting along the chain, and accuracy against time (SFedKD)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Page

from fedrecall.errors import UserError
from fedrecall.measures.costs import elapsed, rounds_to, seconds_to
from fedrecall.reports.figures.figure import (
    COLOURS,
    Data,
    Figure,
    band,
    by_dataset,
    colours,
    heat,
    legend_below,
    page,
)
from fedrecall.reports.figures.forgetting import by_skew, forgetting_bars, partition_text
from fedrecall.reports.runs import Group, Run
from fedrecall.reports.statistics import summary
from fedrecall.specs import AT_LEAST_ONE

_SFED = (
    "--clients 100 --sample 10 --rounds 1000 --local-epochs 5 --batch-size 64 --lr 0.01 --lr-decay 1 "
    "--momentum 0 --weight-decay 1e-4 --augmentation none --partition exdir:2,0.5"
)


def chains(run: Run) -> list[dict[str, Any]]:
    """What `chain` recorded of every chain, in the order of visits."""
    return [chain for _, m in run.measured("chain") for chain in m["chains"] if chain["clients"]]


def begins(run: Run) -> np.ndarray:
    """For every visit of `chains`, whether its client did not get the model of the visit before.

    So it is where a chain begins, unless it is its round's only one and the round before's was recorded.
    """
    found: list[bool] = []
    last: tuple[int, bool] | None = None
    for number, measured in run.measured("chain"):
        alone = len(measured["chains"]) == 1
        for chain in measured["chains"]:
            if chain["clients"]:
                goes_on = alone and last == (number - 1, True)
                found += [not goes_on, *[False] * (len(chain["clients"]) - 1)]
                last = (number, alone)
    return np.array(found, dtype=bool)


@dataclass(frozen=True)
class SequentialForgetting(Figure):
    """SFedKD, figure 1: each client's training undoes the one before."""

    last: Annotated[int, AT_LEAST_ONE] = 100
    """How many clients, from the end of the run, the first three panels show."""

    caption: ClassVar[str] = (
        "Along a sequence of clients: class-wise test accuracy after each one (most even and most skewed "
        "partition of the first data set), cosine similarity with the model that the client got (the line "
        "breaks where that is not the one before), accuracy on a client's own data of its model and of the "
        "next client's, and forgetting F by data set and partition."
    )
    needs: ClassVar[str] = (
        "runs of one sequential algorithm with two or more partitions, of one or more data sets"
    )
    commands: ClassVar[tuple[str, ...]] = (
        "fedrecall run --dataset [cifar10|cifar100] --model cnn --algorithm fedseq --clients 10 --sample 10 "
        "--rounds 10 --batch-size 64 --lr-decay 1 --momentum 0 --weight-decay 1e-4 --augmentation none "
        "--partition [dirichlet:100|dirichlet:1|dirichlet:0.5|dirichlet:0.1] --measure chain",
    )

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """Two pictures, two panels of curves, one of bars."""
        datasets = by_dataset(runs)
        groups = by_skew(next(iter(datasets.values())))
        ends = [groups[0], groups[-1]] if len(groups) > 1 else groups
        made, axes = page(1, 5, 2.2, 2.1)
        data: Data = {"class_accuracy": [], "consistency": [], "drift": []}
        for i, group in enumerate(ends):
            found = chains(group.runs[0])
            values = np.concatenate([chain["class_accuracy"] for chain in found])[-self.last :]
            place = np.arange(1, len(values) + 1)
            image = heat(axes[0, i], values.T, place, vmin=0, vmax=1)
            axes[0, i].set(title=partition_text(group), xlabel="client in sequence", ylabel="class")
            similar = np.concatenate([chain["consistency"] for chain in found])[-self.last :]
            breaks = np.flatnonzero(begins(group.runs[0])[-self.last :][1:]) + 1
            axes[0, 2].plot(
                np.insert(place.astype(float), breaks, np.nan),
                np.insert(similar, breaks, np.nan),
                color=COLOURS[i],
                lw=1,
                marker="." if len(breaks) else None,
                ms=2,
                label=partition_text(group),
            )
            data["class_accuracy"].append({"group": group.label, "values": values})
            data["consistency"].append(
                {"group": group.label, "values": similar, "breaks_before": place[breaks]}
            )
        made.colorbar(image, ax=list(axes[0, :2]), shrink=0.8, label="accuracy")
        axes[0, 2].set(title="cosine with client before", xlabel="client in sequence", ylim=(None, 1.02))
        axes[0, 2].legend()
        own, after, breaks = self._drift(ends[-1].runs[0])
        place = np.arange(1, len(own) + 1)
        for i, (values, label) in enumerate(((own, "its own model"), (after, "the next client's"))):
            broken = np.insert(place.astype(float), breaks, np.nan), np.insert(values, breaks, np.nan)
            axes[0, 3].plot(
                *broken, color=COLOURS[i], lw=1, marker="." if len(breaks) else None, ms=2, label=label
            )
        axes[0, 3].set(title=f"on a client's data, {partition_text(ends[-1])}", xlabel="client in sequence")
        axes[0, 3].set_ylim(-0.02, 1.02)
        axes[0, 3].legend()
        data["drift"].append(
            {"group": ends[-1].label, "own": own, "next": after, "breaks_before": place[breaks]}
        )
        data["forgetting"] = forgetting_bars(axes[0, 4], datasets)
        for ax in axes[0, len(ends) : 2]:
            ax.remove()
        return made, data

    def _drift(self, run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Accuracy of a client's own and of the next one's model on its data, and where a chain begins."""
        found = [chain["drift"] for chain in chains(run) if "drift" in chain]
        if not found:
            raise UserError(f"{run.path} lacks the drift along its chains: run it with --measure chain.")
        own, after = (np.array([v for d in found for v in d[key]])[-self.last :] for key in ("own", "next"))
        first = np.array([i == 0 for d in found for i in range(len(d["own"]))], dtype=bool)[-self.last :]
        return own, after, np.flatnonzero(first[1:]) + 1


@dataclass(frozen=True)
class AccuracyOverTime(Figure):
    """SFedKD, figure 6: accuracy against seconds of local training."""

    clock: Literal["waiting", "working"] = "waiting"
    """Seconds of the longest chain of each round, or of all clients together."""

    caption: ClassVar[str] = (
        "Accuracy of the global model against seconds of local training so far, a panel for every data set."
    )
    needs: ClassVar[str] = "runs of sfedkd with several numbers of teachers (or any runs to compare)"
    commands: ClassVar[tuple[str, ...]] = tuple(
        f"fedrecall run --dataset {data} {_SFED} --algorithm "
        "[sfedkd:teachers=3|sfedkd|sfedkd:teachers=7|sfedkd:teachers=10,selection=all]"
        for data in ("fashion_mnist --model lenet5", "[cifar10|cinic10] --model alexnet8")
    )

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """A line for every group; seconds are the mean over its seeds."""
        datasets = by_dataset(runs)
        made, axes = page(1, len(datasets), 3.4, 2.4)
        paint, data = colours([g.label for groups in datasets.values() for g in groups]), []
        for ax, (dataset, groups) in zip(axes[0], datasets.items(), strict=True):
            for group in groups:
                rounds, values = group.series("accuracy")
                clocks = []
                for run in group.runs:
                    spent = dict(
                        zip((r["round"] for r in run.records), elapsed(run.records, self.clock), strict=True)
                    )
                    clocks.append([spent[n] for n in rounds])
                seconds = np.mean(clocks, axis=0)
                band(ax, seconds, values, group.label, *paint[group.label])
                line = {"rounds": rounds, "seconds": seconds, "mean": values.mean(0)}
                data.append({"dataset": dataset, "group": group.label, **line})
            ax.set(xlabel="seconds of local training", title=dataset if len(datasets) > 1 else "")
        axes[0, 0].set_ylabel("global accuracy")
        legend_below(made, *axes.flat)
        return made, {"clock": self.clock, "lines": data}


@dataclass(frozen=True)
class TimeToTarget(Figure):
    """SFedKD, figure 7: seconds of local training until target accuracies."""

    targets: tuple[float, ...] = ()
    """Accuracies; by default half, three quarters and nine tenths of what all runs of a data set reach."""
    clock: Literal["waiting", "working"] = "waiting"
    """Seconds of the longest chain of each round, or of all clients together."""

    def __post_init__(self) -> None:
        """Refuse what is no accuracy."""
        if wrong := [t for t in self.targets if not 0 < t <= 1]:
            raise UserError(f"targets: {wrong[0]:g} is no accuracy above 0 and up to 1, such as 0.6.")

    caption: ClassVar[str] = (
        "Seconds of local training until the global model first reaches an accuracy (mean over seeds, bar: "
        "standard deviation; no bar where a seed never does), a panel for every data set."
    )
    needs: ClassVar[str] = AccuracyOverTime.needs
    commands: ClassVar[tuple[str, ...]] = AccuracyOverTime.commands

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """Bars by target, one colour a group."""
        datasets = by_dataset(runs)
        made, axes = page(1, len(datasets), 3.4, 2.4)
        paint = colours([g.label for groups in datasets.values() for g in groups])
        data: list[Data] = []
        for ax, (dataset, groups) in zip(axes[0], datasets.items(), strict=True):
            data += [{"dataset": dataset, **bar} for bar in self._bars(ax, groups, paint)]
            ax.set(xlabel="target accuracy", title=dataset if len(datasets) > 1 else "")
        axes[0, 0].set_ylabel("seconds of local training")
        legend_below(made, *axes.flat)
        return made, {"clock": self.clock, "bars": data}

    def _bars(self, ax: Axes, groups: Sequence[Group], paint: dict[str, tuple[str, str]]) -> list[Data]:
        reached = min(float(run.series("accuracy").max()) for group in groups for run in group.runs)
        targets = self.targets or tuple(round(f * reached, 3) for f in (0.5, 0.75, 0.9))
        data, width = [], 0.8 / len(groups)
        for i, group in enumerate(groups):
            for j, target in enumerate(targets):
                entry: Data = {"group": group.label, "target": target, "seconds": None, "std": None}
                entry["rounds"] = [rounds_to(run.records, target) for run in group.runs]
                seconds = [seconds_to(run.records, target, self.clock) for run in group.runs]
                known = [s for s in seconds if s is not None]
                if len(known) == len(seconds):
                    s = summary(known)
                    entry |= {"seconds": s.mean, "std": s.std}
                    ax.bar(
                        j + (i - (len(groups) - 1) / 2) * width,
                        s.mean,
                        width,
                        yerr=s.std,
                        color=paint[group.label][0],
                        capsize=2,
                        label=group.label if j == 0 else None,
                    )
                data.append(entry)
        ax.set_xticks(range(len(targets)), [f"{t:.1%}" for t in targets])
        return data
