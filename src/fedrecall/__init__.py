"""Federated learning that does not forget."""

import os
import sys
from typing import Any

from fedrecall import processors

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
    "compare",
    "from_arrays",
    "open_runs",
    "report",
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
    "compare": "fedrecall.api",
    "from_arrays": "fedrecall.data.arrays",
    "open_runs": "fedrecall.reports.runs",
    "report": "fedrecall.reports.report",
    "run": "fedrecall.api",
    "trained": "fedrecall.reports.runs",
}

# Threads that wait for each other spin, for milliseconds by GNU OpenMP's default. Where another program wants
# the cores, that is time that the awaited one does not get, and training takes ten times as long
# (docs/performance.md). It is read when torch is loaded; whoever has set either of them knows better.
if "torch" not in sys.modules and not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ):
    os.environ["GOMP_SPINCOUNT"] = "3000"

# PyTorch takes a thread for each core that it sees, though a container or a batch job may have a share alone.
_share = processors.cores()
if "torch" not in sys.modules and _share < processors.bound():
    os.environ.setdefault("OMP_NUM_THREADS", str(_share))


def __getattr__(name: str) -> Any:
    """Load what is asked for: importing the package alone costs nothing."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'fedrecall' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
