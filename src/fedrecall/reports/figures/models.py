"""Figures of models themselves: the loss around them, what their neurons mean, where features lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Page

from fedrecall.measures.alignment import SILENT, alignment, last_linear, preferences
from fedrecall.measures.features import circle_density, features, on_circle, plane_density
from fedrecall.measures.landscape import (
    SIZES,
    Loss,
    perturbation_curve,
    subset,
    surface,
    top_eigenvectors,
)
from fedrecall.reports.figures.figure import (
    Data,
    Figure,
    band,
    class_colours,
    colours,
    heat,
    page,
    short,
)
from fedrecall.reports.replay import stage
from fedrecall.reports.runs import Run, arrange
from fedrecall.rounds import combine
from fedrecall.specs import AT_LEAST_ONE, POSITIVE, Range

_NTD = "fedrecall run --dataset cifar10 --model cnn --clients 100 --sample 10 --rounds 200"


@dataclass(frozen=True)
class LossSpace(Figure):
    """FedNTD, figure 14: how the loss rises around the learned model."""

    examples: Annotated[int, AT_LEAST_ONE] = 500
    """Test examples to take the loss on."""
    sizes: tuple[float, ...] = SIZES
    """Standard deviations of the noise."""
    draws: Annotated[int, AT_LEAST_ONE] = 5
    """Directions of noise to average over."""
    extent: Annotated[float, POSITIVE] = 1.0
    """How far the surface goes along each unit eigenvector."""
    points: Annotated[int, Range(3)] = 11
    """Points of the surface along each."""
    iterations: Annotated[int, AT_LEAST_ONE] = 50
    """At most this many steps of power iteration an eigenvector."""

    caption: ClassVar[str] = (
        "Loss of the final global model under Gaussian noise on its weights (left; band: one standard "
        "deviation over directions), and along the two Hessian eigenvectors whose eigenvalues are largest in "
        "magnitude."
    )
    needs: ClassVar[str] = "a finished run of each algorithm (its checkpoint is used)"
    commands: ClassVar[tuple[str, ...]] = (
        "fedrecall run --dataset cifar10 --model resnet56 --clients 16 --sample 16 --partition lda:0.5 "
        "--rounds 25 --local-epochs 20 --batch-size 64 --lr-decay 1 --weight-decay 1e-4 --augmentation "
        "crop+flip --algorithm [fedavg|fedntd]",
    )

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """The curves, and a contour panel for every group (its first seed)."""
        groups = arrange(runs)
        made, axes = page(1, len(groups) + 1, 2.5, 2.2)
        paint = colours([g.label for g in groups])
        data: list[dict[str, Any]] = []
        steps = np.linspace(-self.extent, self.extent, self.points)
        for group in groups:
            run = group.runs[0]
            test = stage(run).federation.test
            loss = Loss(run.model, run.weights(), subset(test, self.examples))
            curve = perturbation_curve(loss, self.sizes, self.draws)
            spectrum = top_eigenvectors(loss, 2, self.iterations)
            grid = surface(loss, spectrum.vectors, steps.tolist(), steps.tolist())
            band(axes[0, 0], self.sizes, curve, group.label, *paint[group.label])
            data.append(
                {
                    "group": group.label,
                    "sizes": self.sizes,
                    "curve": curve,
                    "eigenvalues": spectrum.values,
                    "converged": spectrum.converged,
                    "steps": steps,
                    "surface": grid,
                }
            )
        axes[0, 0].set(xlabel="size of the noise", ylabel="loss")
        axes[0, 0].legend()
        low, high = min(d["surface"].min() for d in data), max(d["surface"].max() for d in data)
        levels = np.linspace(low, max(high, low + 1e-9), 16)
        for ax, entry in zip(axes[0, 1:], data, strict=True):
            image = ax.contourf(steps, steps, entry["surface"].T, levels, cmap="viridis")
            values = ", ".join(f"{v:.3g}" for v in entry["eigenvalues"])
            ax.set(title=f"{short(entry['group'], 26)}\nλ = {values}", xlabel="ε₀", ylabel="ε₁")
            ax.grid(visible=False)
        made.colorbar(image, ax=list(axes[0, 1:]), label="loss")
        return made, {"models": data}


@dataclass(frozen=True)
class PreferredClasses(Figure):
    """FedNTD, figure 17: the class that each neuron answers to, before, in clients, and after."""

    layer: str = ""
    """Which layer; by default the last but one fully connected."""
    clients: Annotated[int, AT_LEAST_ONE] = 3
    """How many of the round's clients to show."""

    caption: ClassVar[str] = (
        "The class that each neuron of the last hidden layer answers to most (one colour a class, white: "
        "none), in the global model sent in the last round, in clients' models, and in their aggregate; the "
        "number is the share of neurons that agree with the first picture."
    )
    needs: ClassVar[str] = "a finished run of each algorithm (its last two checkpoints are used)"
    commands: ClassVar[tuple[str, ...]] = (f"{_NTD} --algorithm [fedavg|fedntd] --partition [iid|shards:2]",)

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """A row for every group (its first seed)."""
        groups = arrange(runs)
        made, axes = page(len(groups), self.clients + 2, 1.5, 1.05)
        data = []
        for row, group in zip(axes, groups, strict=True):
            run = group.runs[0]
            last = run.checkpoint().round_number
            at = stage(run, round_number=last - 1)
            played = next(r for r in run.records if r["round"] == last)["chains"]
            chosen = [k for chain in played for k in chain][: self.clients]
            layer = self.layer or last_linear(run.model, at.federation.test)[0]
            weights = {"global, sent": at.weights}
            weights |= {f"client {k}": w for k, w in zip(chosen, at.locals(chosen), strict=True)}
            weights["aggregated"] = run.weights(last)
            test = at.federation.test
            found = {name: preferences(run.model, w, test, (layer,))[layer] for name, w in weights.items()}
            sent = found["global, sent"]
            shares = {name: alignment(sent, mine) for name, mine in found.items()}
            for ax, (name, mine) in zip(row, found.items(), strict=False):
                self._picture(ax, mine, len(run.class_names))
                ax.set_title(name if name == "global, sent" else f"{name}: {shares[name]:.2f}", size=7)
            row[0].set_ylabel(short(group.label, 24), size=7)
            for ax in row[len(found) :]:
                ax.remove()
            data.append({"group": group.label, "layer": layer, "preferred": found, "alignment": shares})
        return made, {"rows": data}

    @staticmethod
    def _picture(ax: Any, preferred: np.ndarray, classes: int) -> None:
        width = 2 ** int(np.ceil(np.log2(max(len(preferred), 1)) / 2))
        cells = np.full(-(-len(preferred) // width) * width, SILENT)
        cells[: len(preferred)] = preferred
        cmap = ListedColormap(["white", *class_colours(classes)])
        heat(ax, cells.reshape(-1, width), cmap=cmap, vmin=SILENT - 0.5, vmax=classes - 0.5, aspect="equal")
        ax.set_xticks([])
        ax.set_yticks([])


@dataclass(frozen=True)
class Hypersphere(Figure):
    """FedNTD, figure 18: where local training moves features on a circle."""

    clients: Annotated[int, AT_LEAST_ONE] = 3
    """How many clients to show."""
    averaged: Annotated[int, AT_LEAST_ONE] = 10
    """How many clients to average, the shown ones among them."""
    partition: str = ""
    """How the locals' data are divided, such as shards:2; by default as in the run."""

    caption: ClassVar[str] = (
        "Test examples' features on the unit circle: density in the plane (top) and by angle, one line a "
        "class (bottom), in the global model, in clients' models after training, and in their aggregate."
    )
    needs: ClassVar[str] = "a finished run with --model circle of each algorithm (its checkpoint is used)"
    commands: ClassVar[tuple[str, ...]] = (
        "fedrecall run --dataset cifar10 --model circle --clients 100 --sample 10 --rounds 100 --partition "
        "iid --algorithm [fedavg|fedntd]  # drawn with fedntd/fig18:partition=shards:2",
    )

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """Two rows for every group (its first seed)."""
        groups = arrange(runs)
        made, axes = page(2 * len(groups), self.clients + 2, 1.55, 1.45)
        axis, angles = np.linspace(-1.4, 1.4, 81), np.linspace(-np.pi, np.pi, 181)
        data = []
        for g, group in enumerate(groups):
            run = group.runs[0]
            at = stage(run, partition=self.partition or None)
            visits = [at.visit(k) for k in range(min(self.averaged, len(at.federation)))]
            shown = visits[: self.clients]
            server = combine(at.algorithm, at.server, [[v] for v in visits], len(at.federation))
            weights = {"global": at.weights}
            weights |= {f"client {v.client}": at.trained(v) for v in shown}
            weights["aggregated"] = server.weights
            entry: Data = {"group": group.label, "models": {}}
            for j, (name, w) in enumerate(weights.items()):
                found = features(run.model, w, at.federation.test)
                points = on_circle(found.values)
                plane = plane_density(points, axis, axis)
                lines = [
                    circle_density(points[found.labels == c], angles)
                    if (found.labels == c).any()
                    else 0 * angles
                    for c in range(len(run.class_names))
                ]
                self._draw(axes[2 * g, j], axes[2 * g + 1, j], axis, angles, plane, lines)
                axes[2 * g, j].set_title(name, size=7)
                entry["models"][name] = {"angles": angles, "classes": lines}
            axes[2 * g, 0].set_ylabel(short(group.label, 22), size=7)
            axes[2 * g + 1, 0].set_ylabel("density", size=7)
            for ax in axes[2 * g : 2 * g + 2, len(weights) :].flat:
                ax.remove()
            data.append(entry)
        return made, {"rows": data}

    @staticmethod
    def _draw(
        top: Any, below: Any, axis: np.ndarray, angles: np.ndarray, plane: np.ndarray, lines: list[np.ndarray]
    ) -> None:
        top.imshow(plane, extent=(-1.4, 1.4, -1.4, 1.4), origin="lower", cmap="viridis")
        top.grid(visible=False)
        top.set_xticks([])
        top.set_yticks([])
        for line, colour in zip(lines, class_colours(len(lines)), strict=True):
            below.plot(angles, line, color=colour, linewidth=0.9)
        below.set_xticks([-np.pi, 0, np.pi], ["−π", "0", "π"])
        below.set_yticks([])
