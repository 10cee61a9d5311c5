"""A projection head before the classifier."""

from torch import Tensor, nn

from fedrecall.errors import UserError


class Projected(nn.Module):
    """Two layers that project the features, and the classifier of what they make."""

    def __init__(self, features: int, width: int, classes: int):
        super().__init__()
        self.hidden = nn.Linear(features, features)
        self.project = nn.Linear(features, width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of features."""
        return self.classifier(self.project(self.hidden(x).relu()))  # type: ignore[no-any-return]


def add_projection(module: nn.Module, width: int) -> nn.Module:
    """The module with its classifier replaced, in place, by a projection head and a new classifier.

    The projected features become the module's features, as in MOON's own network.
    """
    name = getattr(module, "feature_layer", None)
    layer = dict(module.named_modules()).get(name) if isinstance(name, str) else None
    if not name or not isinstance(layer, nn.Linear):
        raise UserError(
            "a projection head needs to know the model's classifier: give the module an attribute "
            "feature_layer = 'name of its last nn.Linear', or choose projection=0."
        )
    head = Projected(layer.in_features, width, layer.out_features)
    parent, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(parent), leaf, head)
    module.feature_layer = f"{name}.classifier"  # type: ignore[assignment]
    return module
