"""Federated learning that does not forget."""

from typing import Any

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "Cohort",
    "Config",
    "Dataset",
    "Experiment",
    "FedAvg",
    "UserError",
    "Weights",
    "run",
    "trained",
]

_HOMES = {
    "Batch": "fedrecall.batches",
    "Cohort": "fedrecall.algorithms.hooks",
    "Config": "fedrecall.config",
    "Dataset": "fedrecall.data.datasets",
    "Experiment": "fedrecall.experiment",
    "FedAvg": "fedrecall.algorithms.fedavg",
    "UserError": "fedrecall.errors",
    "Weights": "fedrecall.models.model",
    "run": "fedrecall.experiment",
    "trained": "fedrecall.reports.runs",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for: importing the package alone costs nothing."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'fedrecall' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
