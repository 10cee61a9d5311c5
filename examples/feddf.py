"""An algorithm whose server learns: the mean of the clients' models is taught by all of them together.

    fedrecall run --algorithm examples/feddf.py:FedDF:epochs=5 --dataset digits --partition lda:0.1 \
        --clients 20 --sample 5 --rounds 10 --batch-size 10

As in ensemble distillation (Lin et al., NeurIPS 2020), but by plain SGD for a fixed number of epochs. The
server looks at no label of its examples.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedrecall import FedAvg, Weights, trees
from fedrecall.losses import kl
from fedrecall.specs import NON_NEGATIVE, POSITIVE


class Server(NamedTuple):
    """What the server keeps: its model, and between `aggregate` and `refine` the clients'."""

    weights: Weights
    clients: Weights  # [M, ...], and [0, ...] outside of these two


@dataclass(frozen=True)
class FedDF(FedAvg):
    """FedAvg, whose server distils what the clients' models say on average into their mean."""

    auxiliary_per_class: Annotated[int, POSITIVE] = 16
    """Examples of each class that the server holds for itself."""
    epochs: Annotated[int, NON_NEGATIVE] = 5
    """How often it goes through them each round."""
    rate: Annotated[float, NON_NEGATIVE] = 0.05
    """Its learning rate."""

    def start(self, weights: Weights) -> Server:
        """Before the first round there is no client's model."""
        return Server(weights, trees.transform(lambda t: t.new_empty(0, *t.shape), weights))

    def aggregate(self, server: Server, ups, cohort) -> Server:
        """The mean, and all that it is of."""
        return Server(cohort.mean(ups.weights), ups.weights)

    def refine(self, model, server: Server, auxiliary) -> Server:
        """The mean after it was taught."""
        params, buffers = server.weights

        def loss(params, x: Tensor, taught: Tensor) -> Tensor:
            return kl(taught, model.logits(Weights(params, buffers), x)).mean()

        batches = [(b.x, model.frozen_many(server.clients, b.x).mean(0)) for b in auxiliary.batches(32)]
        for _ in range(self.epochs):
            for x, taught in batches:
                grads = torch.func.grad(loss)(params, x, taught)
                params = {n: p - self.rate * grads[n] for n, p in params.items()}
        return self.start(Weights(params, buffers))
