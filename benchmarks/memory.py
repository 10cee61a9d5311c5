"""How much RAM and disk a federation of clients that remember a model each takes.

    python -m benchmarks.memory --clients 1000 --sample 10 --algorithm scaffold

Every client is visited once, in rounds of --sample clients; each has a few synthetic images of
CIFAR's size. Prints one line of JSON. Peak RSS is that of this process, network and data included; of worker
processes and of what they share with this one there is the peak of all together between rounds.
"""

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.bench import proportional
from fedrecall import rounds
from fedrecall.algorithms import ALGORITHMS
from fedrecall.backends import open_backend
from fedrecall.backends.backend import Work
from fedrecall.data.augmentation import Augmentation
from fedrecall.data.datasets import load
from fedrecall.data.federation import Federation
from fedrecall.memories import Memories
from fedrecall.models.model import Model
from fedrecall.models.networks import build
from fedrecall.training import Recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--sample", type=int, default=10)
    parser.add_argument("--examples", type=int, default=4)
    parser.add_argument("--algorithm", default="scaffold")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--backend", default="serial")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    count = args.clients * args.examples
    dataset = load(f"synthetic:train={count},test=10,channels=3,size=32")
    algorithm = ALGORITHMS.make(args.algorithm)
    model = Model(algorithm.equip(build(args.model, dataset.shape, dataset.classes)))
    parts = np.split(np.arange(count), args.clients)
    federation = Federation(dataset, parts, Augmentation())
    server = algorithm.start(model.initial())
    backend = open_backend(args.backend, Work(algorithm, model, Recipe(local_epochs=1), federation, 0))
    start, base, together = time.perf_counter(), peak(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        memories = Memories(algorithm.remember(model.initial()), Path(folder))
        order = np.random.default_rng(0).permutation(args.clients)
        groups = np.array_split(order, -(-args.clients // args.sample))
        for number, group in enumerate(groups, start=1):
            played = rounds.play(
                algorithm,
                model,
                server,
                memories,
                backend,
                None,
                population=args.clients,
                sampled=[int(k) for k in group],
                chain_count=len(group),
                round_number=number,
            )
            server = played.server
            del played
            together = max(together, memory_of_all())
        saved = memories.save()
        backend.close()
        disk = sum(f.stat().st_size for f in Path(folder).iterdir())
    print(
        json.dumps(
            {
                **vars(args),
                "parameters": sum(p.numel() for p in model.initial().params.values()),
                "clients_remembered": len(saved),
                "peak_rss_mib": round(peak()),
                "peak_of_all_processes_mib": round(together),
                "rss_before_first_round_mib": round(base),
                "memories_on_disk_mib": round(disk / 2**20),
                "seconds": round(time.perf_counter() - start, 1),
                "python": platform.python_version(),
                "torch": torch.__version__,
            }
        )
    )


def memory_of_all() -> float:
    """MiB of this process and all that it started, what they share counted once."""
    found, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        found += proportional(pid)
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            waiting += map(int, children.read_text().split())
    return found / 2**20


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
