"""What is forgotten, from the records: class by class, inside and outside of clients' data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from matplotlib.figure import Figure as Page

from fedrecall.data.partitions import PARTITIONS
from fedrecall.errors import UserError
from fedrecall.measures.accuracy import normalised
from fedrecall.own_modules import named, placeless
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
    short,
)
from fedrecall.reports.figures.quantities import mean, over_seeds
from fedrecall.reports.runs import Group, Run, arrange, written
from fedrecall.reports.statistics import correlation, summary
from fedrecall.specs import NON_NEGATIVE

_NTD = "fedrecall run --dataset cifar10 --model cnn --clients 100 --sample 10 --rounds 200"


def skew(run: Run) -> float:
    """How far clients are from the whole: mean total variation distance of p^k to the global one."""
    counts = run.counts
    whole = counts.sum(0) / counts.sum()
    return float(np.abs(run.distributions - whole).sum(1).mean() / 2)


def by_skew(groups: Sequence[Group]) -> list[Group]:
    """The groups from the most even partition to the most skewed."""
    return sorted(groups, key=lambda g: skew(g.runs[0]))


def partition_text(group: Group) -> str:
    """``lda:0.1``."""
    return written(PARTITIONS, group.runs[0].complete["partition"])


def pair_of(groups: Sequence[Group], wanted: tuple[str, str]) -> list[Group]:
    """The groups of two partitions; for one that no group has, the most even or the most skewed other."""
    if len(groups) < 2:
        return list(groups)
    asked = [PARTITIONS.spec(PARTITIONS.make(text)) for text in wanted]
    names = [written(PARTITIONS, placeless(spec, {named(spec["name"])})) for spec in asked]
    found = [next((g for g in groups if partition_text(g) == name), None) for name in names]
    others = [g for g in by_skew(groups) if g not in found]
    return [g or others[at] for g, at in zip(found, (0, -1), strict=True)]


def forgetting_bars(ax: Any, datasets: Mapping[str, Sequence[Group]]) -> list[Data]:
    """The forgetting of every group's last round, with its spread over seeds; a colour a data set."""
    data: list[Data] = []
    names: list[str] = []
    for colour, (dataset, groups) in zip(colours(list(datasets)).values(), datasets.items(), strict=True):
        for i, group in enumerate(by_skew(groups)):
            s = summary(group.last("forgetting"))
            label = dataset if i == 0 else None
            ax.bar(len(names), s.mean, yerr=s.std, color=colour[0], capsize=2, width=0.7, label=label)
            names.append(partition_text(group))
            data.append({"dataset": dataset, "group": group.label, "mean": s.mean, "std": s.std, "n": s.n})
    ax.set_xticks(range(len(names)), names, rotation=40, ha="right")
    ax.set_title("forgetting F")
    if len(datasets) > 1:
        legend_below(ax.figure, ax)
    return data


def class_heat(ax: Any, run: Run, values: np.ndarray, title: str, top: float | None = 1.0) -> Any:
    """Class-wise values [rounds, C] as a picture, classes upwards of rounds."""
    image = heat(ax, values.T, run.rounds, vmin=0, vmax=top)
    ax.set(title=short(title), xlabel="round", ylabel="class")
    return image


@dataclass(frozen=True)
class Forgetting(Figure):
    """FedNTD, figure 2: the global model forgets more, the more its clients differ."""

    pair: tuple[str, ...] = ("iid", "lda:0.1")
    """Two partitions for all panels but the last; one that no run has: the most even, the most skewed."""

    caption: ClassVar[str] = (
        "Class-wise accuracy of the global model with two partitions (one seed, the first data set), cosine "
        "similarity of the class-wise accuracies of consecutive rounds, and forgetting F by data set and "
        "partition."
    )
    needs: ClassVar[str] = "runs of one algorithm with two or more partitions, of one or more data sets"
    commands: ClassVar[tuple[str, ...]] = (
        "fedrecall run --dataset [cifar10|cifar100] --model cnn --clients 100 --sample 10 --rounds 200 "
        "--lr-decay 1 --algorithm fedavg --partition [iid|lda:0.5|lda:0.3|lda:0.1|lda:0.05,draws=300000]",
    )

    def __post_init__(self) -> None:
        """The two are compared."""
        if len(self.pair) != 2:
            raise ValueError("pair is two partitions, as in iid+lda:0.1")

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """Two pictures, one panel of curves, one of bars."""
        datasets = by_dataset(runs)
        ends = pair_of(next(iter(datasets.values())), (self.pair[0], self.pair[1]))
        made, axes = page(1, 4, 2.3, 2.1)
        data: Data = {"class_accuracy": [], "consistency": []}
        for ax, group in zip(axes[0], ends, strict=False):
            run = group.runs[0]
            values = run.series("class_accuracy")
            image = class_heat(ax, run, values, partition_text(group))
            data["class_accuracy"].append({"group": group.label, "rounds": run.rounds, "values": values})
        made.colorbar(image, ax=list(axes[0, :2]), shrink=0.8, label="accuracy")
        for i, group in enumerate(ends):
            rounds, values = over_seeds(group, "consistency")
            band(axes[0, 2], rounds[1:], values[:, 1:], partition_text(group), COLOURS[i])
            data["consistency"].append(
                {"group": group.label, "rounds": rounds[1:], "mean": values[:, 1:].mean(0)}
            )
        axes[0, 2].set(xlabel="round", title="cosine with round before", ylim=(None, 1.02))
        axes[0, 2].legend(loc="upper left", bbox_to_anchor=(0, 0.9))
        data["forgetting"] = forgetting_bars(axes[0, 3], datasets)
        for ax in axes[0, len(ends) : 2]:
            ax.remove()
        return made, data


@dataclass(frozen=True)
class InAndOutAccuracy(Figure):
    """FedNTD, figure 4: training and averaging, seen from what clients hold and what they lack."""

    caption: ClassVar[str] = (
        "Accuracy on what the round's clients hold (top) and lack (bottom), the mean over clients, each "
        "counted alike however many examples it holds: of the global model that was sent, of their local "
        "models (bars: standard deviation over clients), and of the average of these."
    )
    needs: ClassVar[str] = "one run or more, each a column"
    commands: ClassVar[tuple[str, ...]] = (
        f"{_NTD} --lr-decay 1 --algorithm fedavg --partition lda:0.1 --measure locals:10",
    )

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """Two rows, a column for every group (its first seed)."""
        groups = arrange(runs)
        made, axes = page(2, len(groups), share=True)
        data = []
        for j, group in enumerate(groups):
            measured = group.runs[0].measured("locals")
            rounds = [n for n, _ in measured]
            for i, side in enumerate(("in_local", "out_local")):
                local = [[v for v in m[side]["local"] if v is not None] for _, m in measured]
                entry = {
                    "group": group.label,
                    "side": side,
                    "rounds": rounds,
                    "sent": [mean(m[side]["before"]) for _, m in measured],
                    "local": [mean(v) for v in local],
                    "local_std": [np.std(v, ddof=1) if len(v) > 1 else 0.0 for v in local],
                    "aggregated": [mean(m[side]["after"]) for _, m in measured],
                }
                ax = axes[i, j]
                ax.plot(rounds, entry["sent"], color=COLOURS[5], linestyle=":", label="global, sent")
                ax.errorbar(
                    rounds,
                    entry["local"],
                    entry["local_std"],
                    color=COLOURS[1],
                    capsize=1.5,
                    lw=1,
                    label="local",
                )
                ax.plot(rounds, entry["aggregated"], color=COLOURS[0], label="global, aggregated")
                ax.set_ylim(-0.02, 1.02)
                data.append(entry)
            axes[0, j].set_title(short(group.label))
            axes[1, j].set_xlabel("round")
        axes[0, 0].set_ylabel("in-local accuracy")
        axes[1, 0].set_ylabel("out-local accuracy")
        legend_below(made, axes[0, 0])
        return made, {"lines": data}


@dataclass(frozen=True)
class Distances(Figure):
    """FedNTD, figure 8: how far the weights go, against how far the client's data are."""

    caption: ClassVar[str] = (
        "Distance of a client's weights from the global model against distance of its labels from what the "
        "global model knows, one point a visit, later rounds darker (r: Pearson's); and both distances over "
        "rounds."
    )
    needs: ClassVar[str] = "runs of the algorithms to compare, in one setup"
    commands: ClassVar[tuple[str, ...]] = (
        f"{_NTD} --algorithm [fedavg|fedntd] --partition shards:2 --measure divergence",
    )

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """A scatter panel for every group, then the two distances."""
        groups = arrange(runs)
        made, axes = page(1, len(groups) + 2, 2.2, 2.0)
        paint = colours([g.label for g in groups])
        data: Data = {"scatter": [], "curves": []}
        for ax, group in zip(axes[0], groups, strict=False):
            measured = [pair for run in group.runs for pair in run.measured("divergence")]
            rounds = np.concatenate([[n] * len(m["clients"]) for n, m in measured])
            weights = np.concatenate([m["weights"] for _, m in measured])
            labels = np.concatenate([m["distribution"] for _, m in measured])
            r = correlation(labels.tolist(), weights.tolist())
            shade = 0.15 + 0.85 * rounds / rounds.max()
            ax.scatter(labels, weights, s=8, color=paint[group.label][0], alpha=shade, linewidths=0)
            ax.set_title(short(group.label) + (f"\nr = {r:.2f}" if r is not None else ""))
            ax.set_xlabel("‖Â_G − p_k‖₁")
            data["scatter"].append(
                {
                    "group": group.label,
                    "round": rounds,
                    "weights": weights,
                    "distribution": labels,
                    "correlation": r,
                }
            )
        for ax in axes[0, 1 : len(groups)]:
            ax.sharey(axes[0, 0])
        axes[0, 0].set_ylabel("‖w − w_k‖₁")
        for ax, name in zip(axes[0, -2:], ("weight divergence", "distribution distance"), strict=True):
            for group in groups:
                at, values = over_seeds(group, name)
                band(ax, at, values, group.label, *paint[group.label])
                data["curves"].append(
                    {"group": group.label, "quantity": name, "rounds": at, "mean": values.mean(0)}
                )
            ax.set(title=name, xlabel="round")
        axes[0, -1].legend()
        return made, data


@dataclass(frozen=True)
class NormalisedAccuracy(Figure):
    """FedNTD, figure 10: which classes the global model's accuracy is made of."""

    caption: ClassVar[str] = (
        "Class-wise accuracy of the global model, scaled to sum to one in every round (one seed): even "
        "columns are a model that knows all classes alike."
    )
    needs: ClassVar[str] = "runs of the algorithms to compare"
    commands: ClassVar[tuple[str, ...]] = (
        f"{_NTD} --algorithm [fedavg|fedntd] --partition [shards:2|lda:0.1]",
    )

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """A picture for every group."""
        groups = arrange(runs)
        made, axes = page(1, len(groups), 2.4, 2.1)
        data = []
        for ax, group in zip(axes[0], groups, strict=True):
            run = group.runs[0]
            values = normalised(run.series("class_accuracy"))
            top = 4 / values.shape[1]
            image = class_heat(ax, run, values, group.label, top)
            data.append({"group": group.label, "rounds": run.rounds, "values": values})
        made.colorbar(image, ax=list(axes[0]), shrink=0.8, label="share", extend="max")
        return made, {"pictures": data}


_UNKNOWN = (
    "{} was measured by an earlier version, which did not note how the models do that clients were sent: "
    "along its chains these are others than the global one, or no round before a measured one is evaluated. "
    "Measure it anew."
)


def _received(run: Run, round_number: int, measured: dict[str, Any], what: str) -> list[Any]:
    """Accuracies of the model that each of the round's clients was sent; none where that is not known."""
    if (found := measured.get(f"received_{what}")) is not None:
        return list(found)
    # Earlier versions: the global model, but along a chain.
    if any(len(chain) > 1 for chain in run.records[round_number - 1]["chains"]):
        return []
    before = [r[what] for r in run.evaluated if r["round"] == round_number - 1]
    return before * len(measured["clients"])


@dataclass(frozen=True)
class GlobalAgainstLocal(Figure):
    """FedSSD, figure 2: the global model against the local models' average, round by round."""

    caption: ClassVar[str] = (
        "Left: accuracy of the global model that the round's clients were sent against the mean accuracy of "
        "what they made of it, one point a round; above the diagonal local training forgot. Right: their "
        "difference over rounds."
    )
    needs: ClassVar[str] = "runs of one algorithm with several partitions"
    commands: ClassVar[tuple[str, ...]] = (
        "fedrecall run --dataset cifar10 --model lenet_cifar --algorithm fedavg --clients 10 --sample 10 "
        "--rounds 100 --local-epochs 10 --batch-size 64 --lr-decay 1 --augmentation crop+flip --partition "
        "[iid|dirichlet:0.5|classes:3|classes:2] --measure locals",
    )

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """Points, and curves."""
        groups = by_skew(arrange(runs))
        made, axes = page(1, 2, 2.8, 2.4)
        paint = colours([g.label for g in groups])
        data = []
        for group in groups:
            run = group.runs[0]
            found = [
                (n, mean(sent), m["local_average_accuracy"])
                for n, m in run.measured("locals")
                if (sent := _received(run, n, m, "accuracy"))
            ]
            if not found:
                raise UserError(_UNKNOWN.format(run.path))
            rounds, whole, local = map(np.array, zip(*found, strict=True))
            axes[0, 0].scatter(local, whole, s=9, color=paint[group.label][0], label=group.label)
            axes[0, 1].plot(rounds, whole - local, color=paint[group.label][0])
            data.append({"group": group.label, "rounds": rounds, "global": whole, "local": local})
        axes[0, 0].axline((0, 0), slope=1, color="#999999", linewidth=0.8)
        axes[0, 0].set(xlabel="mean local accuracy", ylabel="global, sent", xlim=(0, 1), ylim=(0, 1))
        axes[0, 1].axhline(0, color="#999999", linewidth=0.8)
        axes[0, 1].set(xlabel="round", ylabel="global − local")
        legend_below(made, axes[0, 0])
        return made, {"points": data}


@dataclass(frozen=True)
class OneClient(Figure):
    """FedSSD, figure 3: the global model and one client's, class by class."""

    client: Annotated[int, NON_NEGATIVE] = 0
    """Which client."""

    caption: ClassVar[str] = (
        "Class-wise accuracy over the rounds in which the client took part: of the global model that it was "
        "sent, of what it made of that, and its share of each class."
    )
    needs: ClassVar[str] = "one run in which the client takes part often (best: in every round)"
    commands: ClassVar[tuple[str, ...]] = GlobalAgainstLocal.commands

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """Two pictures and the client's labels."""
        run = runs[0]
        took = [
            (n, m, m["clients"].index(self.client))
            for n, m in run.measured("locals")
            if self.client in m["clients"]
        ]
        if not took:
            raise UserError(f"client {self.client} took part in no measured round of {run.path}.")
        found = [
            (n, sent[at], m["class_accuracy"][at])
            for n, m, at in took
            if (sent := _received(run, n, m, "class_accuracy"))
        ]
        if not found:
            raise UserError(_UNKNOWN.format(run.path))
        rounds = [n for n, *_ in found]
        whole, local = (np.array([row[i] for row in found]) for i in (1, 2))
        made, axes = page(1, 3, 2.3, 2.1)
        for ax, values, title in zip(
            axes[0], (whole, local), ("global model", f"client {self.client}"), strict=False
        ):
            image = heat(ax, values.T, rounds, vmin=0, vmax=1)
            ax.set(title=title, xlabel="round", ylabel="class")
        made.colorbar(image, ax=list(axes[0, :2]), shrink=0.8, label="accuracy")
        share = run.distributions[self.client]
        axes[0, 2].barh(range(len(share)), share, color=COLOURS[0])
        axes[0, 2].invert_yaxis()
        axes[0, 2].set(title=f"labels of client {self.client}", xlabel="share", ylabel="class")
        data = {"rounds": rounds, "global": whole, "local": local, "distribution": share}
        return made, data
