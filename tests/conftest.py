"""Settings of the whole test suite."""

import os

import torch

# Small networks are slower on several threads, and many times slower beside other programs.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)
