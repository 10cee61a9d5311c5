"""Start the authors' main.py, in the folder it lies in, without what only slows it down."""

import functools
import runpy
import sys
import types

import torch
from torch.utils import data

# Their package of models imports a file that is not in the repository.
sys.modules["train_tools.models.models"] = types.ModuleType("train_tools.models.models")

whole = data.DataLoader.__init__


@functools.wraps(whole)
def without_workers(self, *args, **options):
    whole(self, *args, **{**options, "num_workers": 0})


data.DataLoader.__init__ = without_workers

import algorithms.BaseClientTrainer as trainer  # noqa: E402


def no_local_stats(self):
    """Every visit would otherwise end with its own evaluation on the whole test set."""
    return {"train_acc": 0.0, "test_acc": 0.0, "classwise_accuracy": torch.zeros(self.num_classes)}


trainer.BaseClientTrainer._get_local_stats = no_local_stats
sys.argv[0] = "main.py"
runpy.run_path("main.py", run_name="__main__")
