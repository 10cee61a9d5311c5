"""How hard FedSSD pulls: its gradient on the logits beside cross-entropy's, at the end of a visit.

    python benchmarks/fedssd_pull.py

Trains FedSSD on digits (10 clients, Dirichlet 0.5, 20 rounds), lets every client train once more, and
averages over all examples the norm of each term's gradient with respect to the local model's logits.
"""

import torch

from fedrecall import config as configs
from fedrecall.algorithms.fedssd import Anchor, Down, FedSSD
from fedrecall.experiment import Experiment
from fedrecall.losses import cross_entropy
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
    run = Experiment(configs.make(SETTINGS))
    print(f"accuracy of the global model: {run.run().accuracy:.1%}")
    algorithm, model, federation = run.algorithm, run.model, run.federation
    assert isinstance(algorithm, FedSSD)
    down: Down = algorithm.broadcast(model, run.server, federation.auxiliary)
    norms: dict[str, list[torch.Tensor]] = {"cross-entropy": [], "M in the square": [], "M outside": []}
    weights, differences = [], []
    for client in range(len(federation)):
        data = federation.client(client)
        anchor: Anchor = algorithm.prepare(model, down, (), data)
        number = SETTINGS["rounds"] + 1  # type: ignore[operator]
        done = visit(
            algorithm, model, run.config.training, data, down, (), seed=0, round_number=number, client=client
        )
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
    print(f"mean M: {torch.cat(weights).mean():.4f}; mean |z - z^g|: {torch.cat(differences).mean():.2f}")
    for name, values in norms.items():
        print(f"mean gradient norm, {name}: {torch.cat(values).mean():.5f}")


if __name__ == "__main__":
    main()
