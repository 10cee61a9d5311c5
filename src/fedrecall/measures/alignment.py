"""Whether a neuron means the same class in two models (FedNTD, table 2, figure 17, eq. 19)."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedrecall.batches import LocalData
from fedrecall.errors import UserError
from fedrecall.measures.moment import Measure, Moment
from fedrecall.models.model import Model, Weights
from fedrecall.models.networks import activation_layer

SILENT = -1
"""The preferred class of a neuron that answers to none."""


@dataclass(frozen=True)
class Alignment(Measure):
    """Share of a layer's neurons that prefer the same class in two models.

    The global model at the start of the round against each local model, and against the global
    model at its end. Costs a pass over the test set for every sampled client and two more.
    """

    layers: tuple[str, ...] = ()
    """Layers to look at; by default the model's last two fully connected ones that it calls."""

    def __call__(self, moment: Moment) -> dict[str, Any]:
        """For every layer: `local` (one a client), `local_mean`, `next_global`, and how many are silent."""
        test = moment.federation.test
        layers = self.layers or last_linear(moment.model, test)
        before = preferences(moment.model, moment.before, test, layers)
        after = preferences(moment.model, moment.after, test, layers)
        own = [preferences(moment.model, moment.trained(v), test, layers) for v in moment.good]
        found: dict[str, Any] = {"clients": [v.client for v in moment.good], "layers": {}}
        for layer in layers:
            local = [alignment(before[layer], mine[layer]) for mine in own]
            found["layers"][layer] = {
                "neurons": len(before[layer]),
                "silent": int((before[layer] == SILENT).sum()),
                "local": local,
                "local_mean": sum(local) / max(len(local), 1),
                "next_global": alignment(before[layer], after[layer]),
            }
        return found


def last_linear(model: Model, data: LocalData) -> tuple[str, ...]:
    """The names of the last two fully connected layers that the model calls.

    Attention computes with the weights of its ``out_proj`` and never calls it.
    """
    found = [n for n, layer in model.module.named_modules() if isinstance(layer, nn.Linear)]
    for batch in itertools.islice(data.batches(1), 1):
        called = model.activations(model.initial(), batch.x, found)
        found = [n for n in found if n in called]
    if not found:
        raise UserError(
            "the model has no fully connected layer that it calls: name the layers, as in "
            "alignment:layers=layer1+layer2."
        )
    return tuple(found[-2:])


def preferences(
    model: Model, weights: Weights, data: LocalData, layers: Sequence[str]
) -> dict[str, np.ndarray]:
    """For every layer the class that each neuron answers to most, by `preferred`.

    What counts is the layer's output after its own nonlinearity; a channel of a convolution is one
    neuron, and answers with its mean over the image; a feature of a linear layer that is called with
    many tokens an example, with its mean over these.
    """
    outputs = {name: activation_layer(model.module, name) for name in layers}
    last = {name: _features_last(model.module.get_submodule(name)) for name in layers}
    sums: dict[str, Tensor] = {}
    for batch in data.batches():
        seen = model.activations(weights, batch.x, outputs.values())
        one_hot = torch.nn.functional.one_hot(batch.y, data.classes).double()
        for name, output in outputs.items():
            neurons = _given(seen, output, len(batch.y)).double()
            if neurons.dim() > 2:
                neurons = neurons.flatten(1, -2).mean(1) if last[name] else neurons.flatten(2).mean(2)
            answered = (one_hot.T @ neurons).cpu()  # [C, neurons]
            sums[name] = sums[name] + answered if name in sums else answered
    counts = data.counts.double().cpu()[:, None]
    # A class without examples has no mean: neurons cannot prefer it.
    means = {name: torch.where(counts > 0, total / counts, -torch.inf) for name, total in sums.items()}
    return {name: preferred(mean.numpy()) for name, mean in means.items()}


def _features_last(layer: nn.Module) -> bool:
    """Whether the layer's neurons are along the last axis of what it gives, [B, ..., F], not the second."""
    parts = list(layer.modules())
    linear = any(isinstance(part, (nn.Linear, nn.LayerNorm)) for part in parts)
    return linear and not any(isinstance(part, _ConvNd) for part in parts)


def _given(seen: Mapping[str, Any], layer: str, examples: int) -> Tensor:
    """What the layer gave, or UserError if those are no neurons' answers to each example."""
    if layer not in seen:
        raise UserError(f"measure alignment: the network never calls its layer {layer!r}: name another.")
    found = seen[layer]
    if not isinstance(found, Tensor):
        kind = type(found).__name__
        raise UserError(
            f"measure alignment: layer {layer!r} gives a {kind}, not one tensor: name another, such as one "
            "within it or after it."
        )
    if found.dim() < 2 or len(found) != examples:
        raise UserError(
            f"measure alignment: layer {layer!r} gives {list(found.shape)} for {examples} examples, which "
            "have to be the first axis, and neurons another: name another layer."
        )
    return found


def preferred(mean_activations: np.ndarray) -> np.ndarray:
    """argmax_c of the mean activations [C, neurons], minus infinity for a class without examples.

    SILENT for a neuron that is 0 for every class.
    """
    silent = np.isin(mean_activations, (0, -np.inf)).all(0)
    return np.where(silent, SILENT, mean_activations.argmax(0))


def alignment(a: np.ndarray, b: np.ndarray) -> float:
    """Share of neurons with the same preferred class, of those that are not silent in both models.

    A neuron that is dead in both prefers nothing, so that counting it as agreeing would reward dead
    layers; one that died or came to life changed its meaning. All silent: 1.
    """
    alive = (a != SILENT) | (b != SILENT)
    return float((a == b)[alive].mean()) if alive.any() else 1.0
