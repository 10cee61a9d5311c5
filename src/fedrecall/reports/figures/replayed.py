"""What one round of local training does, replayed from a run's checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from matplotlib.figure import Figure as Page

from fedrecall.algorithms import ALGORITHMS
from fedrecall.errors import UserError
from fedrecall.measures.accuracy import class_accuracy, credibility, evaluate, in_local, out_local
from fedrecall.reports.figures.figure import Data, Figure, band, colours, heat, legend_below, page
from fedrecall.reports.replay import Stage, stage
from fedrecall.reports.runs import Run, arrange
from fedrecall.specs import AT_LEAST_ONE, NON_NEGATIVE


@dataclass(frozen=True)
class DuringTraining(Figure):
    """FedNTD, figure 6: accuracy while clients train."""

    clients: Annotated[int, AT_LEAST_ONE] = 10
    """How many clients to train, the first ones."""
    epochs: Annotated[int, NON_NEGATIVE] = 10
    """Local epochs; 0: as many as the run has."""

    caption: ClassVar[str] = (
        "Accuracy on what a client holds (left) and lacks (right) after each local epoch, from the run's "
        "last global model; the band is one standard deviation over clients."
    )
    needs: ClassVar[str] = "a finished run of each algorithm (its checkpoint is used)"
    commands: ClassVar[tuple[str, ...]] = (
        "fedrecall run --dataset cifar10 --model cnn --clients 100 --sample 10 --rounds 200 --algorithm "
        "[fedavg|fedntd] --partition shards:2",
    )

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """Two panels, a line for every group (its first seed)."""
        groups = arrange(runs)
        made, axes = page(1, 2, 2.6, 2.1)
        paint, data = colours([g.label for g in groups]), []
        for group in groups:
            recipe = {"local_epochs": self.epochs} if self.epochs else {}
            at = stage(group.runs[0], **recipe, stragglers=0.0)
            inside, outside = [], []
            for client in range(min(self.clients, len(at.federation))):
                share = group.runs[0].distributions[client]
                seen = [evaluate(at.model, w, at.federation.test).confusion for w in at.epochs(client)]
                accuracies = [class_accuracy(c) for c in seen]
                inside.append([in_local(share, a) for a in accuracies])
                outside.append([out_local(share, a) for a in accuracies])
            epochs = range(len(inside[0]))
            band(axes[0, 0], epochs, np.array(inside), group.label, *paint[group.label])
            band(axes[0, 1], epochs, np.array(outside), group.label, *paint[group.label])
            data.append({"group": group.label, "in_local": inside, "out_local": outside})
        for ax, side in zip(axes[0], ("in-local", "out-local"), strict=True):
            ax.set(xlabel="local epoch", ylabel=f"{side} accuracy", ylim=(-0.02, 1.02))
        legend_below(made, axes[0, 0])
        return made, {"lines": data}


def stages(run: Run, algorithms: Sequence[str], epochs: int) -> dict[str, Stage]:
    """The run's last model in the hands of each algorithm, with the settings that are named with it."""
    found, own = {}, ALGORITHMS.make(run.settings.algorithm)
    for spec in algorithms:
        algorithm = ALGORITHMS.make(spec)
        needed = algorithm.auxiliary_per_class
        held = run.partition["auxiliary"] // len(run.class_names)
        if needed > held:
            raise UserError(
                f"{spec} needs auxiliary examples, and {run.path} holds {held} of each class: "
                f"run it with --auxiliary-per-class {needed}."
            )
        # The algorithm that the run itself had keeps its server's and its clients' memory.
        found[spec] = stage(
            run,
            algorithm=None if algorithm == own else spec,
            **({"local_epochs": epochs} if epochs else {}),
        )
    return found


@dataclass(frozen=True)
class SpecialConfusion(Figure):
    """FedCAD, figure 2: one client's data, the model that it got, and what algorithms make of it."""

    client: Annotated[int, NON_NEGATIVE] = 0
    """Which client."""
    algorithms: tuple[str, ...] = ("fedavg", "fedlsd", "fedcad")
    """What trains the client's model."""
    epochs: Annotated[int, NON_NEGATIVE] = 10
    """Local epochs; 0: as many as the run has."""

    caption: ClassVar[str] = (
        "A client's label distribution, the per-class accuracy of the global model it was sent, and of its "
        "own model after training with each algorithm."
    )
    needs: ClassVar[str] = "one run, best of fedavg for ten rounds (its checkpoint is used)"
    commands: ClassVar[tuple[str, ...]] = (
        "fedrecall run --dataset cifar10 --model lenet_cifar --algorithm fedavg --partition dirichlet:0.5 "
        "--clients 10 --sample 10 --rounds 10 --batch-size 64 --local-epochs 5 --lr-decay 1 --augmentation "
        "crop+flip",
    )

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """One matrix with its numbers in it."""
        run = runs[0]
        run.check_client(self.client)
        made_by = stages(run, self.algorithms, self.epochs)
        first = next(iter(made_by.values()))
        test = first.federation.test
        rows = {
            "labels": run.distributions[self.client],
            "global": class_accuracy(evaluate(first.model, first.weights, test).confusion),
        }
        for name, at in made_by.items():
            (trained,) = at.locals([self.client])
            rows[name] = class_accuracy(evaluate(at.model, trained, test).confusion)
        values = np.array(list(rows.values()))
        made, axes = page(1, 1, 0.42 * values.shape[1] + 1.2, 0.3 * len(values) + 0.5)
        ax = axes[0, 0]
        image = heat(ax, values, vmin=0, vmax=1)
        for (i, j), v in np.ndenumerate(values):
            ax.text(j, i, f"{v:.2f}", ha="center", va="center", size=6, color="black" if v > 0.6 else "white")
        ax.set_yticks(range(len(rows)), list(rows))
        ax.set_xticks(range(values.shape[1]))
        ax.set(xlabel="class", title=f"client {self.client}")
        made.colorbar(image, ax=ax)
        return made, {"client": self.client, "rows": rows}


@dataclass(frozen=True)
class ConfusionMatrices(SpecialConfusion):
    """FedSSD, figure 4: confusion matrices before and after local training."""

    algorithms: tuple[str, ...] = ("fedavg", "fedssd")
    """What trains the client's model."""

    caption: ClassVar[str] = (
        "Confusion matrices (rows: true class, scaled to one) of the global model that a client was sent, "
        "and of the client's model after training with each algorithm; the bars are the client's labels."
    )
    commands: ClassVar[tuple[str, ...]] = (
        "fedrecall run --dataset cifar10 --model lenet_cifar --algorithm fedavg --partition dirichlet:0.5 "
        "--clients 10 --sample 10 --rounds 10 --batch-size 64 --local-epochs 10 --lr-decay 1 --augmentation "
        "crop+flip --auxiliary-per-class 64",
    )

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """A matrix for every model."""
        run = runs[0]
        run.check_client(self.client)
        made_by = stages(run, self.algorithms, self.epochs)
        first = next(iter(made_by.values()))
        test = first.federation.test
        found = {"global": credibility(evaluate(first.model, first.weights, test).confusion)}
        for name, at in made_by.items():
            (trained,) = at.locals([self.client])
            found[name] = credibility(evaluate(at.model, trained, test).confusion)
        made, axes = page(1, len(found) + 1, 2.1, 2.0)
        share = run.distributions[self.client]
        axes[0, 0].barh(range(len(share)), share)
        axes[0, 0].invert_yaxis()
        axes[0, 0].set(title=f"labels of client {self.client}", xlabel="share", ylabel="class")
        for ax, (name, matrix) in zip(axes[0, 1:], found.items(), strict=True):
            image = heat(ax, matrix, vmin=0, vmax=1, aspect="equal")
            ax.set(title=name, xlabel="predicted", ylabel="true")
        made.colorbar(image, ax=list(axes[0, 1:]), shrink=0.8)
        return made, {"client": self.client, "distribution": share, "matrices": found}
