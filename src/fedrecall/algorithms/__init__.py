"""Every algorithm by name: adding one is a file beside this one and a line here."""

from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.specs import Registry

__all__ = ["ALGORITHMS", "FedAvg"]

ALGORITHMS = Registry(
    "algorithm",
    {
        "fedavg": "fedrecall.algorithms.fedavg:FedAvg",
        "fedprox": "fedrecall.algorithms.fedprox:FedProx",
        "fedavgm": "fedrecall.algorithms.fedavgm:FedAvgM",
        "fednova": "fedrecall.algorithms.fednova:FedNova",
        "scaffold": "fedrecall.algorithms.scaffold:Scaffold",
        "feddyn": "fedrecall.algorithms.feddyn:FedDyn",
        "fedcurv": "fedrecall.algorithms.fedcurv:FedCurv",
        "moon": "fedrecall.algorithms.moon:Moon",
        "fedalign": "fedrecall.algorithms.fedalign:FedAlign",
        "fedlsd": "fedrecall.algorithms.fedlsd:FedLSD",
        "fedntd": "fedrecall.algorithms.fedntd:FedNTD",
        "fedcad": "fedrecall.algorithms.fedcad:FedCAD",
        "fedssd": "fedrecall.algorithms.fedssd:FedSSD",
        "calibrated": "fedrecall.algorithms.calibrated:Calibrated",
        "fedtrio": "fedrecall.algorithms.fedtrio:FedTrio",
        "fedseq": "fedrecall.algorithms.fedseq:FedSeq",
        "cwc": "fedrecall.algorithms.cwc:CWC",
        "sfedkd": "fedrecall.algorithms.sfedkd:SFedKD",
        "fedseq+aver": "fedrecall.algorithms.rivals:Aver",
        "fedseq+ebkd": "fedrecall.algorithms.rivals:EBKD",
        "fedseq+ca-mkd": "fedrecall.algorithms.rivals:CAMKD",
        "private": "fedrecall.privacy:Private",
    },
    base="fedrecall.algorithms.fedavg:FedAvg",
)
