"""What is sent to clients in the place of what the algorithm says, and what they make of it."""

from typing import Any

import torch

from fedrecall import contracts, streams, trees
from fedrecall.algorithms.fedavg import FedAvg, wraps
from fedrecall.errors import Diverged, UserError
from fedrecall.models.model import Model


def travelled(algorithm: FedAvg, model: Model, down: Any) -> tuple[Any, Any]:
    """What is sent of a download, and what arrives of it: the download itself if nothing is wrapped."""
    if not wraps(algorithm):
        return down, down
    with contracts.untouched(down, "wrap", "what it is given"):
        sent = trees.without_graph(algorithm.wrap(down))
    contracts.carries(sent, "wrap", "what is sent down")
    if not hasattr(sent, "_fields"):
        raise UserError("`wrap` returns no named tuple: give what is sent names, as `broadcast` does.")
    if not trees.finite(sent):
        raise Diverged("what `wrap` makes of the model holds NaN or Inf.")
    made = arrived(algorithm, sent)
    contracts.weighted(made, "unwrap", "what travels down")
    contracts.alike(made, down, "unwrap", "what travels down", "broadcast")
    contracts.full(made.weights, down.weights, "unwrap", "what travels down")
    for name in model.constants:
        if not torch.equal(made.weights.buffers[name], down.weights.buffers[name]):
            raise UserError(f"`unwrap` changes {name!r}, which is frozen: send it as it is.")
    if not trees.finite(made):
        raise Diverged("what `unwrap` makes of what is sent holds NaN or Inf.")
    return sent, made


def arrived(algorithm: FedAvg, sent: Any) -> Any:
    """What a client makes of what it is sent."""
    if not wraps(algorithm):
        return sent
    with contracts.untouched(sent, "unwrap", "what it is given"), streams.seeded(0, "unwrap"):
        at = streams.places()
        made = trees.without_graph(algorithm.unwrap(sent))
        if streams.moved(at):
            raise UserError(
                "`unwrap` draws random numbers, and every client would make another model: draw in `wrap`."
            )
    return made
