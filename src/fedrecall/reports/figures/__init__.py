"""The papers' figures by name, drawn from runs: adding one is a class in these files and a line here.

``draw("fedntd/fig4", [folder], out)`` writes ``fedntd-fig4.png``, ``.pdf`` and ``.json`` (the numbers
that were drawn) into ``out``. A figure's fields are its options: ``fedntd/fig6:clients=5``.
"""

from collections.abc import Sequence
from pathlib import Path

from fedrecall import files
from fedrecall.reports.figures.figure import Drawn, Figure, save
from fedrecall.reports.runs import from_files, open_runs
from fedrecall.specs import Registry

__all__ = ["FIGURES", "Drawn", "Figure", "draw"]

FIGURES = Registry(
    "figure",
    {
        "fedntd/fig2": "fedrecall.reports.figures.forgetting:Forgetting",
        "fedntd/fig3": "fedrecall.reports.figures.partitions:InAndOutLocal",
        "fedntd/fig4": "fedrecall.reports.figures.forgetting:InAndOutAccuracy",
        "fedntd/fig6": "fedrecall.reports.figures.replayed:DuringTraining",
        "fedntd/fig7": "fedrecall.reports.figures.curves:LocalAndGlobal",
        "fedntd/fig8": "fedrecall.reports.figures.forgetting:Distances",
        "fedntd/fig10": "fedrecall.reports.figures.forgetting:NormalisedAccuracy",
        "fedntd/fig11": "fedrecall.reports.figures.curves:Distillation",
        "fedntd/fig12": "fedrecall.reports.figures.curves:Personalised",
        "fedntd/fig13": "fedrecall.reports.figures.curves:AgainstFedAlign",
        "fedntd/fig14": "fedrecall.reports.figures.models:LossSpace",
        "fedntd/fig15": "fedrecall.reports.figures.sweeps:BetaAndTauAccuracy",
        "fedntd/fig16": "fedrecall.reports.figures.sweeps:BetaAndTauForgetting",
        "fedntd/fig17": "fedrecall.reports.figures.models:PreferredClasses",
        "fedntd/fig18": "fedrecall.reports.figures.models:Hypersphere",
        "fedntd/fig19": "fedrecall.reports.figures.maps:LocalFeatures",
        "fedntd/fig20": "fedrecall.reports.figures.maps:FeatureShift",
        "fedntd/fig21": "fedrecall.reports.figures.maps:FeaturesByAlgorithm",
        "fedcad/fig1": "fedrecall.reports.figures.curves:GlobalAndLocalOfFedCAD",
        "fedcad/fig2": "fedrecall.reports.figures.replayed:SpecialConfusion",
        "fedssd/fig2": "fedrecall.reports.figures.forgetting:GlobalAgainstLocal",
        "fedssd/fig3": "fedrecall.reports.figures.forgetting:OneClient",
        "fedssd/fig4": "fedrecall.reports.figures.replayed:ConfusionMatrices",
        "fedssd/fig6": "fedrecall.reports.figures.partitions:Bubbles",
        "fedssd/fig7": "fedrecall.reports.figures.curves:GlobalAndLocal",
        "fedssd/fig8": "fedrecall.reports.figures.curves:Participation",
        "fedssd/fig9": "fedrecall.reports.figures.sweeps:LocalEpochs",
        "sfedkd/fig1": "fedrecall.reports.figures.sequential:SequentialForgetting",
        "sfedkd/fig3": "fedrecall.reports.figures.sweeps:GammaAndBeta",
        "sfedkd/fig4": "fedrecall.reports.figures.sweeps:Teachers",
        "sfedkd/fig5": "fedrecall.reports.figures.sweeps:FourArguments",
        "sfedkd/fig6": "fedrecall.reports.figures.sequential:AccuracyOverTime",
        "sfedkd/fig7": "fedrecall.reports.figures.sequential:TimeToTarget",
    },
)


@from_files
def draw(name: str, runs: Sequence[Path | str], out: Path | str, data_root: Path | None = None) -> Drawn:
    """Draw a figure from run folders (or folders of them) into ``out``; ``data_root`` has their data."""
    figure: Figure = FIGURES.make(name)
    return save(FIGURES.parse(name)[0], figure, open_runs(runs, data_root), files.expanded(out))
