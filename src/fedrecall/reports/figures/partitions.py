"""Who holds what."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from matplotlib.figure import Figure as Page

from fedrecall.data.partitions import out_local_distribution
from fedrecall.reports.figures.figure import COLOURS, Data, Figure, heat, page
from fedrecall.reports.runs import Run
from fedrecall.specs import AT_LEAST_ONE


@dataclass(frozen=True)
class InAndOutLocal(Figure):
    """FedNTD, figure 3: what clients hold and what they lack."""

    clients: Annotated[int, AT_LEAST_ONE] = 10
    """How many clients to show, the first ones."""

    caption: ClassVar[str] = (
        "Label distribution p of the first clients (left) and what is outside of it, p̃ = (1 − p)/(C − 1) "
        "(right)."
    )
    needs: ClassVar[str] = "one run, of any algorithm"
    commands: ClassVar[tuple[str, ...]] = (
        "fedrecall run --dataset cifar10 --partition lda:0.1 --clients 100 --rounds 1",
    )

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """Two matrices, clients by classes."""
        p = runs[0].distributions[: self.clients]
        outside = out_local_distribution(p)
        made, axes = page(1, 2, 2.6, 2.2)
        for ax, values, name in zip(axes[0], (p, outside), ("in-local p", "out-local p̃"), strict=True):
            image = heat(ax, values, vmin=0, cmap="cividis")
            made.colorbar(image, ax=ax)
            ax.set_title(name)
            ax.set_xlabel("class")
            ax.set_xticks(range(p.shape[1]))
        axes[0, 0].set_ylabel("client")
        return made, {"in_local": p, "out_local": outside, "classes": runs[0].class_names}


@dataclass(frozen=True)
class Bubbles(Figure):
    """FedSSD, figure 6: examples of every class at every client."""

    clients: Annotated[int, AT_LEAST_ONE] = 20
    """How many clients to show, the first ones."""

    caption: ClassVar[str] = "Examples of every class at every client: the area of a disc is their number."
    needs: ClassVar[str] = "one run for every partition to show"
    commands: ClassVar[tuple[str, ...]] = (
        "fedrecall run --dataset cifar10 --partition [dirichlet:0.5|classes:3] --clients 10 --sample 10 "
        "--rounds 1",
    )

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """A panel for every run."""
        made, axes = page(1, len(runs), 3.0, 2.6)
        data = []
        for ax, run in zip(axes[0], runs, strict=True):
            counts = run.counts[: self.clients]
            client, label = np.nonzero(counts)
            area = 120 * counts[client, label] / counts.max()
            ax.scatter(client, label, s=area, color=COLOURS[0], alpha=0.75, linewidths=0)
            ax.set(title=run.partition_name, xlabel="client", ylabel="class")
            ax.set_yticks(range(counts.shape[1]))
            data.append({"run": run.name, "partition": run.config["partition"], "counts": counts})
        return made, {"runs": data}
