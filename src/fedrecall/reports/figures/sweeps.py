"""What a setting does: the end of a run against a hyperparameter, other settings held fixed."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from matplotlib.figure import Figure as Page

from fedrecall.data.partitions import PARTITIONS
from fedrecall.errors import UserError
from fedrecall.reports.figures.figure import Data, Figure, colours, legend_below, page
from fedrecall.reports.figures.quantities import QUANTITIES
from fedrecall.reports.runs import Group, Run, arrange, in_words, noted_apart, value, written
from fedrecall.reports.statistics import Summary, summary

_NTD = "fedrecall run --dataset cifar10 --model cnn --clients 100 --sample 10 --rounds 200"
_SFED = (
    "fedrecall run --dataset cifar10 --model alexnet8 --clients 100 --sample 10 --rounds 1000 "
    "--batch-size 64 --lr 0.01 --lr-decay 1 --momentum 0 --weight-decay 1e-4 --augmentation none"
)


def setting(group: Group, key: str) -> Any:
    """A group's value of a setting, None if its algorithm (or partition) has no such field."""
    config = group.runs[0].complete
    if key == "partition":
        return written(PARTITIONS, config["partition"])
    if key == "sample":
        return config["sample"]
    try:
        return value(config, key)
    except UserError:
        return None


def panels(groups: Sequence[Group], keys: Sequence[str]) -> list[tuple[str, list[Group], list[Group]]]:
    """For every key: the groups that vary it alone, and the groups that have no such setting.

    Of the other keys, a group must have the most common value, so that one set of runs around a common
    centre serves all panels.
    """
    centre = {}
    for key in keys:
        seen = Counter(json.dumps(v) for g in groups if (v := setting(g, key)) is not None)
        if seen:
            centre[key] = json.loads(seen.most_common(1)[0][0])
    found = []
    for key in keys:
        own: list[Group] = []
        without: list[Group] = []
        for group in groups:
            others = [k for k in centre if k != key]
            if any(setting(group, k) not in (None, centre[k]) for k in others):
                continue
            (without if setting(group, key) is None else own).append(group)
        if not own:
            raise UserError(f"none of the runs has a setting {key!r}: this figure compares its values.")
        found.append((key, own, without))
    return found


def line_name(group: Group, groups: Sequence[Group], keys: Sequence[str]) -> str:
    """The algorithm and, where they differ, other settings that are not being swept."""
    words = [group.runs[0].algorithm]
    swept = {key.removeprefix("training.") for key in keys}
    setups = [in_words(g.runs[0].complete) for g in groups]
    for name, mine in in_words(group.runs[0].complete).items():
        if name not in swept and len({setup.get(name) for setup in setups}) > 1:
            words.append(mine)
    fields = group.runs[0].complete["algorithm"]
    for name, mine in fields.items():
        if f"algorithm.{name}" in keys or name == "name":
            continue
        others = {
            json.dumps(g.runs[0].complete["algorithm"].get(name))
            for g in groups
            if g.runs[0].algorithm == words[0]
        }
        if len(others) > 1:
            words.append(f"{name}={mine}")
    words += noted_apart(group.runs[0], [g.runs[0] for g in groups]).values()
    return " ".join(words)


@dataclass(frozen=True)
class Sweep(Figure):
    """The last round's value against settings; dotted lines are algorithms that lack the setting."""

    keys: ClassVar[tuple[str, ...]]
    quantity: ClassVar[str] = "accuracy"

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """One panel a setting."""
        groups = arrange(runs)
        made, axes = page(1, len(self.keys))
        points: list[dict[str, Any]] = []
        names = {id(g): line_name(g, groups, self.keys) for g in groups}
        paint = colours(list(names.values()))
        for ax, (key, own, without) in zip(axes[0], panels(groups, self.keys), strict=True):
            places = ordered({setting(g, key) for g in own})
            for name in dict.fromkeys(names[id(g)] for g in own):
                mine: dict[Any, Summary] = {}
                for g in (g for g in own if names[id(g)] == name):
                    if setting(g, key) in mine:
                        raise UserError(
                            f"two experiments would be the point {key} = {setting(g, key)} of {name!r}: "
                            "leave one of them out."
                        )
                    mine[setting(g, key)] = summary(g.last(self.quantity))
                at = [i for i, place in enumerate(places) if place in mine]
                found = [mine[places[i]] for i in at]
                colour, dash = paint[name]
                bars = [s.std or 0.0 for s in found]
                ax.errorbar(
                    at,
                    [s.mean for s in found],
                    bars,
                    color=colour,
                    linestyle=dash,
                    marker="o",
                    ms=3,
                    capsize=2,
                    label=name,
                )
                for i, s in zip(at, found, strict=True):
                    points.append(
                        {"setting": key, "line": name, "x": places[i], "mean": s.mean, "std": s.std, "n": s.n}
                    )
            for group in without:
                s = summary(group.last(self.quantity))
                name = names[id(group)]
                ax.axhline(s.mean, color=paint[name][0], linestyle=":", label=name)
                points.append(
                    {"setting": key, "line": name, "x": None, "mean": s.mean, "std": s.std, "n": s.n}
                )
            ax.set_xticks(range(len(places)), [f"{p:g}" if isinstance(p, float) else str(p) for p in places])
            ax.set_xlabel(key.split(".")[-1])
        axes[0, 0].set_ylabel(QUANTITIES[self.quantity].label)
        legend_below(made, axes[0, 0])
        return made, {"points": points}


def ordered(values: set[Any]) -> list[Any]:
    """Numbers by size, words by the alphabet."""
    numbers = all(isinstance(v, (int, float)) for v in values)
    return sorted(values, key=(lambda v: v) if numbers else str)


@dataclass(frozen=True)
class BetaAndTauAccuracy(Sweep):
    """FedNTD, figure 15: accuracy by β and τ."""

    keys: ClassVar[tuple[str, ...]] = ("algorithm.beta", "algorithm.tau")
    caption: ClassVar[str] = "Accuracy of FedNTD by the weight β and the temperature τ; dotted: FedAvg."
    needs: ClassVar[str] = "runs of fedntd with several beta and several tau around a centre, and of fedavg"
    commands: ClassVar[tuple[str, ...]] = (
        f"{_NTD} --partition [shards:2|lda:0.1] --algorithm [fedavg|fedntd:beta=0.1|fedntd:beta=0.5|fedntd|"
        "fedntd:beta=3|fedntd:tau=0.5|fedntd:tau=3|fedntd:tau=5]",
    )


@dataclass(frozen=True)
class BetaAndTauForgetting(BetaAndTauAccuracy):
    """FedNTD, figure 16: forgetting by β and τ."""

    quantity: ClassVar[str] = "forgetting"
    caption: ClassVar[str] = "Forgetting of FedNTD by the weight β and the temperature τ; dotted: FedAvg."


@dataclass(frozen=True)
class LocalEpochs(Sweep):
    """FedSSD, figure 9: accuracy by the number of local epochs."""

    keys: ClassVar[tuple[str, ...]] = ("training.local_epochs",)
    caption: ClassVar[str] = "Accuracy of the final global model by the number of local epochs."
    needs: ClassVar[str] = "runs of the algorithms with several numbers of local epochs"
    commands: ClassVar[tuple[str, ...]] = (
        "fedrecall run --dataset cifar10 --model lenet_cifar --partition dirichlet:0.5 --clients 10 "
        "--sample 10 --rounds 100 --batch-size 64 --lr-decay 1 --augmentation crop+flip "
        "--auxiliary-per-class 64 --local-epochs [1|5|10|20] "
        "--algorithm [fedavg|moon:mu=5,projection=256|fedssd]",
    )


@dataclass(frozen=True)
class GammaAndBeta(Sweep):
    """SFedKD, figure 3: accuracy by γ and β."""

    keys: ClassVar[tuple[str, ...]] = ("algorithm.gamma", "algorithm.beta")
    caption: ClassVar[str] = "Accuracy of SFedKD by the weights γ of not-true and β of true-class knowledge."
    needs: ClassVar[str] = "runs of sfedkd with several gamma and several beta around a centre"
    commands: ClassVar[tuple[str, ...]] = (
        f"{_SFED} --partition exdir:2,0.5 --algorithm "
        "[sfedkd|sfedkd:gamma=0.5|sfedkd:gamma=2|sfedkd:gamma=3|"
        "sfedkd:gamma=5|sfedkd:beta=0.5|sfedkd:beta=1|sfedkd:beta=2|sfedkd:beta=5]",
    )


@dataclass(frozen=True)
class Teachers(Sweep):
    """SFedKD, figure 4: accuracy by the number of teachers K."""

    keys: ClassVar[tuple[str, ...]] = ("algorithm.teachers",)
    caption: ClassVar[str] = "Accuracy of SFedKD by the number of teachers; none is FedSeq."
    needs: ClassVar[str] = "runs of sfedkd with several numbers of teachers"
    commands: ClassVar[tuple[str, ...]] = (
        f"{_SFED} --partition [exdir:2,0.5|exdir:2,10] --algorithm [sfedkd:teachers=0|sfedkd:teachers=1|"
        "sfedkd:teachers=3|sfedkd|sfedkd:teachers=7|sfedkd:teachers=10]",
    )


@dataclass(frozen=True)
class FourArguments(Sweep):
    """SFedKD, figure 5: accuracy by local epochs, rounds, clients a round, and heterogeneity."""

    keys: ClassVar[tuple[str, ...]] = ("training.local_epochs", "rounds", "sample", "partition")
    caption: ClassVar[str] = (
        "Accuracy by local epochs E, rounds R, clients a round M, and the partition's concentration α."
    )
    needs: ClassVar[str] = "runs of the algorithms that vary one of the four at a time around a centre"
    commands: ClassVar[tuple[str, ...]] = (
        f"{_SFED} --partition dirichlet:0.1 --algorithm [fedavg|fedseq|cwc|sfedkd]  # and, one at a time, "
        "--local-epochs [1|2|5|10], --rounds [250|500|750|1000], --sample [5|10|15|20], "
        "--partition dirichlet:[0.1|0.2|0.5|1]",
    )
