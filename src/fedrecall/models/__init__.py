"""The papers' networks, and a user's own."""

from fedrecall.models.layers import KeyedDropout, key_dropouts
from fedrecall.models.networks import MODELS, activation_layer, build, module_from

__all__ = ["MODELS", "KeyedDropout", "activation_layer", "build", "key_dropouts", "module_from"]
