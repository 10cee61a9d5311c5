"""Learning curves: a row for every quantity, a column for every setup, a line for every algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from matplotlib.figure import Figure as Page

from fedrecall.reports.figures.figure import Data, Figure, band, colours, legend_below, page, short
from fedrecall.reports.figures.quantities import QUANTITIES, as_measured, over_seeds
from fedrecall.reports.runs import Run, arrange

_NTD = "fedrecall run --dataset cifar10 --model cnn --clients 100 --sample 10 --rounds 200"
_SSD = "--partition dirichlet:0.5 --batch-size 64 --lr-decay 1"
_SSD_RUNS = tuple(
    f"fedrecall run --dataset {data} {_SSD} --augmentation {augmentation} --rounds {rounds} "
    f"--local-epochs 10 --auxiliary-per-class 64 --algorithm [fedavg|fedprox:mu={mu}|fedcurv:lam={lam}|"
    f"moon:mu={moon},projection=256|fedntd|fedcad|fedssd:m_max={m_max}]"
    for data, augmentation, rounds, mu, lam, moon, m_max in (
        ("cifar10 --model lenet_cifar", "crop+flip", 100, 0.01, 1e-3, 5, 0.01),
        ("cifar100 --model resnet50", "crop+flip", 100, 0.001, 1e-4, 1, 0.001),
        ("tiny_imagenet --model resnet50", "none", 30, 0.001, 1e-5, 1, 0.001),
    )
)
"""Of every data set all methods, each with the hyperparameters that the paper gives for it there."""
_ALIGN = (
    "fedrecall run --dataset cifar10 --model resnet56 --sample 16 --rounds 25 --local-epochs 20 "
    "--batch-size 64 --lr-decay 1 --weight-decay 1e-4 --augmentation crop+flip"
)


@dataclass(frozen=True)
class Curves(Figure):
    """Learning curves with one standard deviation over seeds around them."""

    rows: ClassVar[tuple[str, ...]]
    needs: ClassVar[str] = "runs of the algorithms to compare, in one or more setups, with any seeds"

    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """One panel for every quantity and setup."""
        groups = arrange(runs)
        setups = list(dict.fromkeys(g.setup for g in groups))
        made, axes = page(len(self.rows), len(setups), share=True)
        paint, lines = colours([g.algorithm for g in groups]), []
        for i, row in enumerate(self.rows):
            shown = [as_measured(group, row) for group in groups]
            for group, quantity in zip(groups, shown, strict=True):
                j = setups.index(group.setup)
                rounds, values = over_seeds(group, quantity)
                band(axes[i, j], rounds, values, group.algorithm, *paint[group.algorithm])
                std = values.std(0, ddof=1) if len(values) > 1 else None
                lines.append(
                    {
                        "quantity": quantity,
                        "setup": group.setup,
                        "algorithm": group.algorithm,
                        "seeds": group.seeds,
                        "rounds": rounds,
                        "mean": values.mean(0),
                        "std": std,
                    }
                )
            axes[i, 0].set_ylabel("\n".join(QUANTITIES[quantity].label for quantity in dict.fromkeys(shown)))
            for j, setup in enumerate(setups):
                if i == 0:
                    axes[i, j].set_title(short(setup))
        for ax in axes[-1]:
            ax.set_xlabel("round")
        legend_below(made, *axes.flat)
        return made, {"lines": lines}


@dataclass(frozen=True)
class LocalAndGlobal(Curves):
    """FedNTD, figure 7: in-local, out-local and global accuracy at several heterogeneity levels."""

    rows: ClassVar[tuple[str, ...]] = ("in-local", "out-local", "accuracy")
    caption: ClassVar[str] = (
        "Accuracy of local models on what their clients hold (top) and on what they lack (middle), and of "
        "the global model (bottom). Distillation of not-true classes keeps the middle row up."
    )
    commands: ClassVar[tuple[str, ...]] = (
        f"{_NTD} --algorithm [fedavg|fedntd] --partition [shards:2|lda:0.1] --local-epochs [1|10] "
        "--measure locals:5",
    )


@dataclass(frozen=True)
class Distillation(Curves):
    """FedNTD, figure 11: distilling all classes (KD) against the not-true ones (NTD)."""

    rows: ClassVar[tuple[str, ...]] = ("personalised", "accuracy")
    caption: ClassVar[str] = (
        "Accuracy of local models on their clients' own test examples (top) and of the global model "
        "(bottom), when all classes are distilled (kd_mix=0) or the not-true ones alone (kd_mix=1)."
    )
    commands: ClassVar[tuple[str, ...]] = (
        f"{_NTD} --algorithm [fedavg|fedntd:kd_mix=0|fedntd] --partition shards:2 --measure personal:5",
    )


@dataclass(frozen=True)
class Personalised(Curves):
    """FedNTD, figure 12: local train, personalised and global accuracy of many methods."""

    rows: ClassVar[tuple[str, ...]] = ("local train", "personalised", "accuracy")
    caption: ClassVar[str] = (
        "Accuracy of local models on their clients' own training examples (top) and own test examples "
        "(middle), and of the global model (bottom)."
    )
    commands: ClassVar[tuple[str, ...]] = (
        f"{_NTD} --algorithm [fedavg|fedprox|scaffold|fedntd] --partition [shards:2|lda:0.1] "
        "--measure personal:5",
    )


@dataclass(frozen=True)
class AgainstFedAlign(Curves):
    """FedNTD, figure 13: learning curves of the global model in FedAlign's setup."""

    rows: ClassVar[tuple[str, ...]] = ("accuracy",)
    caption: ClassVar[str] = "Accuracy of the global model, a column for every setup."
    commands: ClassVar[tuple[str, ...]] = (
        f"{_ALIGN} --algorithm [fedavg|fedalign|fedntd] --partition [lda:0.05|lda:0.1|lda:0.5] "
        "--clients [16|64]",
    )


@dataclass(frozen=True)
class Participation(Curves):
    """FedSSD, figure 8: learning curves of the global model by the share of clients in a round."""

    rows: ClassVar[tuple[str, ...]] = ("accuracy",)
    caption: ClassVar[str] = "Accuracy of the global model, a column for every setup."
    commands: ClassVar[tuple[str, ...]] = tuple(
        f"{command} --clients 100 --sample [10|20]" for command in _SSD_RUNS[:2]
    )


@dataclass(frozen=True)
class GlobalAndLocal(Curves):
    """FedSSD, figure 7: the global model against the local models' average."""

    rows: ClassVar[tuple[str, ...]] = ("accuracy", "local average")
    caption: ClassVar[str] = (
        "Accuracy of the global model (top) and mean accuracy of the round's local models on the same test "
        "set (bottom): what the second lacks, local training forgot."
    )
    commands: ClassVar[tuple[str, ...]] = tuple(
        f"{command} --clients 10 --sample 10 --measure locals" for command in _SSD_RUNS
    )


@dataclass(frozen=True)
class GlobalAndLocalOfFedCAD(GlobalAndLocal):
    """FedCAD, figure 1: the global model against the local models' average."""

    commands: ClassVar[tuple[str, ...]] = (
        f"fedrecall run --dataset cifar10 --model lenet_cifar {_SSD} --augmentation crop+flip --rounds 100 "
        "--local-epochs 5 --algorithm [fedavg|fedprox:mu=0.01|fedlsd:alpha=0.25|fedcad] --clients 10 "
        "--sample 10 --measure locals",
    )
