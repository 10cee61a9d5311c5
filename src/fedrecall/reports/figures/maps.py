"""t-SNE maps of features, global and local models together (FedNTD, figures 19 to 21)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from matplotlib.figure import Figure as Page

from fedrecall.measures.features import features, tsne
from fedrecall.measures.landscape import subset
from fedrecall.models.model import Model, Weights
from fedrecall.reports.figures.figure import COLOURS, Data, Figure, class_colours, page
from fedrecall.reports.figures.replayed import stages
from fedrecall.reports.replay import stage
from fedrecall.reports.runs import Run
from fedrecall.specs import AT_LEAST_ONE, POSITIVE

_NTD = (
    "fedrecall run --dataset cifar10 --model cnn --clients 100 --sample 10 --rounds 100 --partition shards:2"
)
GREY = "#bbbbbb"


def joint_map(
    model: Model, weights: dict[str, Weights], data: Any, perplexity: float
) -> dict[str, dict[str, np.ndarray]]:
    """One map of all models' features of the same examples: points and labels of each."""
    seen = {name: features(model, w, data) for name, w in weights.items()}
    points = tsne(np.concatenate([s.values for s in seen.values()]), perplexity=perplexity)
    parts = np.split(points, len(seen))
    return {name: {"points": p, "labels": s.labels} for (name, s), p in zip(seen.items(), parts, strict=True)}


def scatter(ax: Any, points: np.ndarray, colour: Any, size: float = 4) -> None:
    """Points without axes, which mean nothing in such a map."""
    ax.scatter(*points.T, s=size, c=colour, linewidths=0)
    ax.grid(visible=False)
    ax.set_xticks([])
    ax.set_yticks([])


def by_class(labels: np.ndarray, classes: int) -> list[Any]:
    """Every point's colour by its class."""
    paint = class_colours(classes)
    return [paint[c] for c in labels]


@dataclass(frozen=True)
class Map(Figure):
    """What the maps share."""

    clients: Annotated[int, AT_LEAST_ONE] = 10
    """How many local models, of the first clients."""
    examples: Annotated[int, AT_LEAST_ONE] = 100
    """Test examples that every model maps."""
    perplexity: Annotated[float, POSITIVE] = 30.0
    """Of t-SNE."""
    partition: str = ""
    """How the heterogeneous locals' data are divided; by default as in the run."""

    def homogeneous_and_not(self, run: Run) -> dict[str, dict[str, dict[str, np.ndarray]]]:
        """Joint maps of the global model and of locals with even data, and with uneven data."""
        found = {}
        for name, partition in (("homogeneous", "iid"), ("heterogeneous", self.partition or None)):
            at = stage(run, partition=partition)
            chosen = range(min(self.clients, len(at.federation)))
            weights = {"global": at.weights}
            weights |= {f"client {k}": w for k, w in zip(chosen, at.locals(chosen), strict=True)}
            test = subset(at.federation.test, self.examples)
            found[name] = joint_map(run.model, weights, test, self.perplexity)
        return found


@dataclass(frozen=True)
class LocalFeatures(Map):
    """FedNTD, figure 19: features cluster by class, or by whose model they are of."""

    caption: ClassVar[str] = (
        "t-SNE of the same test examples' features in the global model and in local models. Left: locals "
        "with even data, coloured by class. Middle: locals with uneven data, by class. Right: the same, by "
        "client (grey: global)."
    )
    needs: ClassVar[str] = "one finished run with a skewed partition (its checkpoint is used)"
    commands: ClassVar[tuple[str, ...]] = (f"{_NTD} --algorithm fedavg",)

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """Three panels."""
        run = runs[0]
        maps = self.homogeneous_and_not(run)
        made, axes = page(1, 3, 2.4, 2.2)
        classes = len(run.class_names)
        for i, (name, models) in enumerate(maps.items()):
            points = np.concatenate([m["points"] for m in models.values()])
            labels = np.concatenate([m["labels"] for m in models.values()])
            scatter(axes[0, i], points, by_class(labels, classes))
            axes[0, i].set_title(f"{name} locals, by class")
        paint = [GREY, *class_colours(len(maps["heterogeneous"]) - 1)]
        for model, colour in zip(maps["heterogeneous"].values(), paint, strict=True):
            scatter(axes[0, 2], model["points"], colour)
        axes[0, 2].set_title("heterogeneous locals, by client")
        return made, {"maps": maps}


@dataclass(frozen=True)
class FeatureShift(Map):
    """FedNTD, figure 20: which region of the map each model's features are in."""

    shown: Annotated[int, AT_LEAST_ONE] = 4
    """How many of the local models get a panel."""

    caption: ClassVar[str] = (
        "The maps of figure 19 taken apart: the examples of one model coloured by class, those of all other "
        "models in grey. With even data (top) every model fills the map; with uneven data (bottom) each has "
        "its own region."
    )
    needs: ClassVar[str] = LocalFeatures.needs
    commands: ClassVar[tuple[str, ...]] = LocalFeatures.commands

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """A row for even and one for uneven locals, a column for every model."""
        run = runs[0]
        maps = self.homogeneous_and_not(run)
        count = min(self.shown, self.clients) + 1
        made, axes = page(2, count, 1.7, 1.6)
        for row, (name, models) in zip(axes, maps.items(), strict=True):
            everything = np.concatenate([m["points"] for m in models.values()])
            for ax, (whose, model) in zip(row, models.items(), strict=False):
                scatter(ax, everything, GREY, 2)
                scatter(ax, model["points"], by_class(model["labels"], len(run.class_names)), 5)
                ax.set_title(whose)
            row[0].set_ylabel(name)
        return made, {"maps": maps}


@dataclass(frozen=True)
class FeaturesByAlgorithm(Map):
    """FedNTD, figure 21: local features by the algorithm that trained them."""

    algorithms: tuple[str, ...] = ("fedavg", "fedntd")
    """What trains the local models, all from the run's global model."""

    caption: ClassVar[str] = (
        "t-SNE of the same test examples' features in the global model and in local models that two "
        "algorithms trained from it: by algorithm (left; grey: global) and by class (right)."
    )
    needs: ClassVar[str] = LocalFeatures.needs
    commands: ClassVar[tuple[str, ...]] = LocalFeatures.commands

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """Two panels of one map."""
        run = runs[0]
        weights: dict[str, Weights] = {"global": run.weights()}
        made_by = stages(run, self.algorithms, 0)
        for name, at in made_by.items():
            chosen = range(min(self.clients, len(at.federation)))
            weights |= {f"{name} {k}": w for k, w in zip(chosen, at.locals(chosen), strict=True)}
        test = subset(next(iter(made_by.values())).federation.test, self.examples)
        models = joint_map(run.model, weights, test, self.perplexity)
        made, axes = page(1, 2, 2.6, 2.3)
        kinds = {"global": GREY} | dict(zip(self.algorithms, COLOURS, strict=False))
        for kind, colour in kinds.items():
            mine = [m["points"] for name, m in models.items() if name.split(" ")[0] == kind]
            scatter(axes[0, 0], np.concatenate(mine), colour)
            axes[0, 0].scatter([], [], color=colour, label=kind, s=12)
        labels = np.concatenate([m["labels"] for m in models.values()])
        points = np.concatenate([m["points"] for m in models.values()])
        scatter(axes[0, 1], points, by_class(labels, len(run.class_names)))
        axes[0, 0].set_title("by algorithm")
        axes[0, 1].set_title("by class")
        made.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return made, {"models": models}
