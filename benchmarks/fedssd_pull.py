"""How hard FedSSD pulls: its gradient on the logits beside cross-entropy's, at the end of a visit.

    python benchmarks/fedssd_pull.py
    python benchmarks/fedssd_pull.py --run runs/fedssd

Trains FedSSD on digits (10 clients, Dirichlet 0.5, 20 rounds), or takes the global model where a run of
FedSSD is, lets every client train once more, and averages over all examples the norm of each term's gradient
with respect to the local model's logits.
"""

import argparse
import sys
from pathlib import Path

import torch

from fedrecall import config as configs
from fedrecall import trees
from fedrecall.algorithms.fedssd import Anchor, Down, FedSSD
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment
from fedrecall.losses import cross_entropy
from fedrecall.reports.runs import Run
from fedrecall.training import visit

SETTINGS = {
    "algorithm": "fedssd:auxiliary_per_class=10",
    "dataset": "digits",
    "partition": "dirichlet:0.5",
    "clients": 10,
    "sample": 10,
    "rounds": 20,
    "training": {"local_epochs": 5, "batch_size": 32},
    "backend": "serial",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, help="a run of FedSSD, which is not changed")
    options = parser.parse_args()
    if options.run is None:
        run = Experiment(configs.make(SETTINGS))
        run.run()
        played, accuracy = len(run.history), run.history[-1]["accuracy"]
    else:
        made = Run(options.run)
        run = Experiment(configs.make(made.config | {"backend": "serial"}))
        found = next(iter(made.folder.checkpoints([])), None)
        if found is None:
            raise UserError(f"{options.run} has no checkpoint that can be read.")
        run.server = trees.restore(run.server, found.arrays, "checkpoint")
        played, accuracy = found.round_number, made.records[found.round_number - 1]["accuracy"]
    algorithm, model, federation = run.algorithm, run.model, run.federation
    if not isinstance(algorithm, FedSSD):
        raise UserError(f"{options.run} is not a run of FedSSD.")
    print(f"accuracy of the global model after {played} rounds: {accuracy:.1%}")
    down: Down = algorithm.broadcast(model, run.server, federation.auxiliary)
    norms: dict[str, list[torch.Tensor]] = {"cross-entropy": [], "M in the square": [], "M outside": []}
    weights, differences = [], []
    for client in range(len(federation)):
        data = federation.client(client)
        anchor: Anchor = algorithm.prepare(model, down, (), data)
        done = visit(
            algorithm, model, run.config.training, data, down, (),
            seed=run.config.seed, round_number=played + 1, client=client,
        )  # fmt: skip
        for batch in data.batches():
            teacher = model.frozen(down.weights, batch.x)
            student = model.frozen(done.up.weights, batch.x).requires_grad_()
            m = algorithm.weights(teacher, anchor.class_weights, batch.y)
            (slope,) = torch.autograd.grad(cross_entropy(student, batch.y).sum(), student)
            difference = (student - teacher).detach()
            norms["cross-entropy"].append(slope.norm(dim=-1))
            norms["M in the square"].append((2 * m.square() * difference).norm(dim=-1))
            norms["M outside"].append((2 * m * difference).norm(dim=-1))
            weights.append(m)
            differences.append(difference.abs())
        print(f"client {client + 1} of {len(federation)}", file=sys.stderr)
    print(f"mean M: {torch.cat(weights).mean():.5f}; mean |z - z^g|: {torch.cat(differences).mean():.2f}")
    for name, values in norms.items():
        print(f"mean gradient norm, {name}: {torch.cat(values).mean():.5f}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
