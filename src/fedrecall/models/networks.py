"""The papers' networks (sizes follow from the input's shape) and the door for a user's own.

Every network is a module with ``forward(x) -> logits`` and a ``feature_layer``: the dotted name
of its classifier, whose input are the penultimate features. Weights start as PyTorch's layers
start them; seed torch before ``build``.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import nn

from fedrecall import own_modules, specs
from fedrecall.errors import UserError, nearest
from fedrecall.models import kernels, trial
from fedrecall.models.layers import KeyedDropout, key_dropouts
from fedrecall.models.resnets import BasicBlock, Block, Bottleneck, ResNet, norm_layer
from fedrecall.specs import AT_LEAST_ONE, Range, Registry

Shape = tuple[int, ...]
"""Of one example: (channels, height, width) of an image, (features,) of a row."""

Count = Annotated[int, AT_LEAST_ONE]
Rate = Annotated[float, Range(0, 1, open_high=True)]

MODELS = Registry(
    "model",
    {
        "cnn": "fedrecall.models.networks:CNN",
        "lenet_cifar": "fedrecall.models.networks:LeNetCifar",
        "lenet5": "fedrecall.models.networks:LeNet5",
        "alexnet8": "fedrecall.models.networks:AlexNet8",
        "simple_cnn": "fedrecall.models.networks:SimpleCNN",
        "resnet10": "fedrecall.models.networks:ResNet10",
        "resnet18": "fedrecall.models.networks:ResNet18",
        "resnet50": "fedrecall.models.networks:ResNet50",
        "resnet56": "fedrecall.models.resnet56:ResNet56",
        "mlp": "fedrecall.models.networks:MLP",
        "circle": "fedrecall.models.circle:Circle",
    },
)


class Chain(nn.Sequential):
    """Named layers applied in turn; a layer's nonlinearity is named ``<layer>_act``."""

    feature_layer: str

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last layer's output."""
        return kernels.chain(list(self), x)


def activation_layer(module: nn.Module, name: str) -> str:
    """The layer whose output is the activation of layer ``name``: its nonlinearity, if it has its own."""
    known = dict(module.named_modules())
    if name not in known or not name:
        raise UserError(f"the model has no layer {name!r}; {nearest(name, filter(None, known))}")
    return f"{name}_act" if f"{name}_act" in known else name


def _chain(layers: Mapping[str, nn.Module]) -> Chain:
    chain = Chain()
    for name, layer in layers.items():
        chain.add_module(name, layer)
    chain.feature_layer = list(layers)[-1]
    return chain


def _head(
    sizes: tuple[int, ...], act: Callable[[], nn.Module] = nn.ReLU, dropout: float = 0.0
) -> dict[str, nn.Module]:
    """Flatten, then fully connected layers fc1, fc2, ... of these sizes; the last one is bare."""
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    last = len(sizes) - 1
    for i in range(1, last + 1):
        layers[f"fc{i}"] = nn.Linear(sizes[i - 1], sizes[i])
        if i < last:
            layers[f"fc{i}_act"] = act()
            if dropout:
                layers[f"drop{i}"] = KeyedDropout(dropout, salt=i)
    return layers


def _image(name: str, shape: Shape, least: int) -> tuple[int, int, int]:
    if len(shape) != 3:
        also = f", or give images as {(1, *shape)}" if len(shape) == 2 else ""
        raise UserError(
            f"model {name} needs images (channels, height, width), not data of shape {tuple(shape)}; "
            f"use mlp or a network of your own{also}."
        )
    channels, height, width = shape
    if min(height, width) < least:
        raise UserError(
            f"model {name} needs images of at least {least}x{least}, not {height}x{width};"
            " cnn, simple_cnn and the resnets take smaller ones."
        )
    return channels, height, width


@dataclass(frozen=True)
class CNN:
    """Two 5x5 convolutions and two fully connected layers (McMahan et al. 2017; FedNTD's network)."""

    hidden: Count = 512
    """Width of fc1."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """conv 32, pool, conv 64, pool, fc1 512, fc2 classes."""
        channels, height, width = _image("cnn", shape, 4)
        return _chain(
            {
                "conv1": nn.Conv2d(channels, 32, 5, padding=2),
                "conv1_act": nn.ReLU(),
                "pool1": nn.MaxPool2d(2),
                "conv2": nn.Conv2d(32, 64, 5, padding=2),
                "conv2_act": nn.ReLU(),
                "pool2": nn.MaxPool2d(2),
                **_head((64 * (height // 4) * (width // 4), self.hidden, classes)),
            }
        )


@dataclass(frozen=True)
class LeNetCifar:
    """LeNet with unpadded convolutions (FedSSD's network on CIFAR)."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """conv 6, pool, conv 16, pool, fc1 120, fc2 84, fc3 classes."""
        channels, height, width = _image("lenet_cifar", shape, 16)
        side = [((n - 4) // 2 - 4) // 2 for n in (height, width)]
        return _chain(_lenet(channels, side, classes, 0, nn.ReLU, nn.MaxPool2d))


@dataclass(frozen=True)
class LeNet5:
    """LeCun's LeNet-5 (SFedKD on Fashion-MNIST).

    The paper names the network alone; ReLU and max-pooling are today's reading of it, LeCun's
    own were tanh and average pooling: ``lenet5:tanh,avg``.
    """

    activation: Literal["relu", "tanh"] = "relu"
    """Nonlinearity after every layer but the last."""
    pool: Literal["max", "avg"] = "max"
    """How 2x2 pixels become one."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """conv 6 padded by 2, pool, conv 16, pool, fc1 120, fc2 84, fc3 classes."""
        channels, height, width = _image("lenet5", shape, 12)
        side = [(n // 2 - 4) // 2 for n in (height, width)]
        act = {"relu": nn.ReLU, "tanh": nn.Tanh}[self.activation]
        pool = {"max": nn.MaxPool2d, "avg": nn.AvgPool2d}[self.pool]
        return _chain(_lenet(channels, side, classes, 2, act, pool))


def _lenet(
    channels: int,
    side: list[int],
    classes: int,
    padding: int,
    act: Callable[[], nn.Module],
    pool: Callable[[int], nn.Module],
) -> dict[str, nn.Module]:
    return {
        "conv1": nn.Conv2d(channels, 6, 5, padding=padding),
        "conv1_act": act(),
        "pool1": pool(2),
        "conv2": nn.Conv2d(6, 16, 5),
        "conv2_act": act(),
        "pool2": pool(2),
        **_head((16 * side[0] * side[1], 120, 84, classes), act),
    }


@dataclass(frozen=True)
class AlexNet8:
    """AlexNet's five convolutions and three fully connected layers at 32x32 scale (SFedKD).

    Deviation: fc1 and fc2 are 1024 and 512 wide, not 4096 and 4096, and there is no dropout:
    3.8 M parameters instead of 23.3 M on CIFAR-10. ``alexnet8:4096+4096,0.5`` is the wide one.
    """

    hidden: tuple[int, ...] = (1024, 512)
    """Widths of fc1 and fc2."""
    dropout: Rate = 0.0
    """Dropout rate after fc1 and fc2."""

    def __post_init__(self) -> None:
        if len(self.hidden) != 2 or min(self.hidden) < 1:
            raise UserError(f"hidden = {self.hidden} must be two positive widths, such as 1024+512.")

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Convolutions 64 (stride 2), 192, 384, 256, 256 of 3x3, pooled after the 1st, 2nd and 5th."""
        channels, height, width = _image("alexnet8", shape, 15)
        side = [(n + 1) // 2 // 8 for n in (height, width)]
        widths = (channels, 64, 192, 384, 256, 256)
        layers: dict[str, nn.Module] = {}
        for i in range(1, 6):
            layers[f"conv{i}"] = nn.Conv2d(widths[i - 1], widths[i], 3, stride=2 if i == 1 else 1, padding=1)
            layers[f"conv{i}_act"] = nn.ReLU()
            if i in (1, 2, 5):
                layers[f"pool{i}"] = nn.MaxPool2d(2)
        sizes = (256 * side[0] * side[1], *self.hidden, classes)
        return _chain(layers | _head(sizes, dropout=self.dropout))


@dataclass(frozen=True)
class SimpleCNN:
    """Three 3x3 convolutions and two fully connected layers (SFedKD on CIFAR-100 and HAM10000).

    The paper gives neither padding, pooling nor the hidden width; padding 1, pooling after the
    first two convolutions and 128 are this package's choice.
    """

    hidden: Count = 128
    """Width of fc1."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """conv 32, pool, conv 64, pool, conv 64, fc1, fc2 classes."""
        channels, height, width = _image("simple_cnn", shape, 4)
        return _chain(
            {
                "conv1": nn.Conv2d(channels, 32, 3, padding=1),
                "conv1_act": nn.ReLU(),
                "pool1": nn.MaxPool2d(2),
                "conv2": nn.Conv2d(32, 64, 3, padding=1),
                "conv2_act": nn.ReLU(),
                "pool2": nn.MaxPool2d(2),
                "conv3": nn.Conv2d(64, 64, 3, padding=1),
                "conv3_act": nn.ReLU(),
                **_head((64 * (height // 4) * (width // 4), self.hidden, classes)),
            }
        )


@dataclass(frozen=True)
class ResNet10:
    """ResNet-10 with the CIFAR stem: one basic block per stage."""

    norm: Literal["batch", "group"] = "batch"
    """Batch normalisation (its running statistics are averaged with the weights) or group normalisation."""
    groups: Count = 32
    """Groups of group normalisation; the largest common divisor with the number of channels is used."""
    width: Count = 64
    """Channels of the first stage; every stage doubles them."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Stem, four stages, global average, fc."""
        return self._build(BasicBlock, (1, 1, 1, 1), shape, classes)

    def _build(
        self, block: type[Block], depths: tuple[int, int, int, int], shape: Shape, classes: int
    ) -> nn.Module:
        channels, _, _ = _image("resnet", shape, 1)
        return ResNet(block, depths, channels, classes, self.width, norm_layer(self.norm, self.groups))


@dataclass(frozen=True)
class ResNet18(ResNet10):
    """ResNet-18 with the CIFAR stem: two basic blocks per stage."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Stem, four stages, global average, fc."""
        return self._build(BasicBlock, (2, 2, 2, 2), shape, classes)


@dataclass(frozen=True)
class ResNet50(ResNet10):
    """ResNet-50 with the CIFAR stem: 3, 4, 6 and 3 bottleneck blocks."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Stem, four stages, global average, fc."""
        return self._build(Bottleneck, (3, 4, 6, 3), shape, classes)


@dataclass(frozen=True)
class MLP:
    """Fully connected layers with ReLU, for tabular data (images are flattened)."""

    hidden: tuple[int, ...] = (64,)
    """Widths of the hidden layers, such as 64+32."""
    dropout: Rate = 0.0
    """Dropout rate after every hidden layer."""

    def __post_init__(self) -> None:
        if min(self.hidden, default=1) < 1:
            raise UserError(f"hidden = {self.hidden} must be positive widths, such as 64+32.")

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """fc1, fc2, ... with ReLU between; the last is the classifier."""
        inputs = torch.Size(shape).numel()
        return _chain(_head((inputs, *self.hidden, classes), dropout=self.dropout))


def build(spec: Any, shape: Shape, classes: int) -> nn.Module:
    """The network a spec names: ``cnn``, ``resnet18:group``, a mapping, or a user's own by path.

    A user's own is ``package.module:name`` or ``file.py:name``, see ``module_from``. The caller
    seeds torch; the same seed gives the same weights.
    """
    if hasattr(spec, "build"):
        return spec.build(tuple(shape), classes)  # type: ignore[no-any-return]
    name, positional, values = MODELS.parse(spec)
    if name in MODELS.entries or ":" not in name:
        return MODELS.make(spec).build(tuple(shape), classes)  # type: ignore[no-any-return]
    if positional:
        raise UserError(f"model {name}: give its options as key=value, not {positional[0]!r} alone.")
    return module_from(name, tuple(shape), classes, **values)


def named(model: Any) -> Any:
    """The spec of a model, also of a class, a function, or an instance with its settings, for any folder."""
    if isinstance(model, str):
        return own_modules.absolute(model)
    if isinstance(model, Mapping) and isinstance(model.get("name"), str):
        return {**model, "name": own_modules.absolute(model["name"])}
    if isinstance(model, nn.Module):
        raise UserError(
            f"the model is a {type(model).__name__} that is made already: give its class, or a function that "
            "returns a new one, so that every run can start it from its own seed."
        )
    network = isinstance(model, type) and issubclass(model, nn.Module)
    if dataclasses.is_dataclass(model) and not network:
        return MODELS.said(model)
    if isinstance(model, type) or inspect.isfunction(model):
        name = own_modules.origin(model)
        own_modules.findable("model", model, factory_of, name)
        return name
    return model


def real(module: nn.Module) -> nn.Module:
    """The network, or a UserError if a change of type would cut its complex numbers to their real parts."""
    for kind, held in ("parameter", module.named_parameters()), ("buffer", module.named_buffers()):
        for name, t in held:
            if t.is_complex():
                raise UserError(
                    f"the model's {kind} {name!r} is {t.dtype}, and a run's numbers are real: hold its two "
                    "parts (torch.view_as_real), of which forward makes it again (torch.view_as_complex)."
                )
    return module


def module_from(
    path: str, shape: Shape, classes: int, feature_layer: str | None = None, **options: Any
) -> nn.Module:
    """A user's network: an ``nn.Module`` class, or a function that returns one, by dotted path.

    It is called with those of ``shape``, ``classes``, ``num_classes``, ``channels`` and
    ``in_channels`` that it names, and with ``options``. Its dropouts become keyed ones. Features
    are the input of ``feature_layer``: the one given here, else the module's own attribute, else
    its last ``nn.Linear``; without any, ``module.feature_layer`` is None.
    """
    factory = factory_of(path)
    if isinstance(factory, type) and not issubclass(factory, nn.Module) and hasattr(factory, "build"):
        settings = specs.build(factory, options, f"model {path}")
        made = _network(f"{path}.build", settings.build(shape, classes))
        trial.attempt(path, made, shape, classes)
        return made
    arguments = _arguments(path, factory, shape, classes, options)
    shown = ", ".join(f"{k}={v!r}" for k, v in arguments.items())
    try:
        made = factory(**arguments)
    except Exception as error:
        raise UserError(f"model {path}({shown}) failed: {type(error).__name__}: {error}") from error
    module = key_dropouts(_network(f"{path}({shown})", made))
    trial.attempt(path, module, shape, classes)
    module.feature_layer = _feature_layer(path, module, feature_layer)  # type: ignore[assignment]
    return module


def _network(maker: str, made: Any) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise UserError(f"model {maker} made a {type(made).__name__}, not a torch.nn.Module.")
    return made


def factory_of(path: str) -> Callable[..., Any]:
    """A user's class or function that makes a network, by its path."""
    specs.permit("model", path)
    place, _, attribute = path.rpartition(":")
    found: Any = own_modules.module_at(place, f"model {path!r}")
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
            raise UserError(f"model {path!r}: {place} has no {attribute!r}; {nearest(part, known)}")
        found = getattr(found, part)
    if isinstance(found, nn.Module) or not callable(found):
        raise UserError(
            f"model {path!r} is a {type(found).__name__}; name an nn.Module class, or a function that returns"
            " a new module, so that every run can start it from its own seed."
        )
    # It is about to be called with what the spec says, which may come from somebody else's run folder.
    if isinstance(found, type):
        if not (issubclass(found, nn.Module) or hasattr(found, "build")):
            raise UserError(f"model {path!r} is the class {found.__name__}, which is no torch.nn.Module.")
    elif _package(_module(found)) in _NO_NETWORKS or _package(place) in _NO_NETWORKS:
        raise UserError(f"model {path!r} is a function of Python's or PyTorch's own, which makes no network.")
    return found  # type: ignore[no-any-return]


_NO_NETWORKS = {*sys.stdlib_module_names, "torch"}
"""What has functions that do all manner of things, none of which makes a network."""


def _module(function: Any) -> str:
    """Where a function, or what a partial one stands for, was defined."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__


def _package(module: str) -> str:
    return "" if module.endswith(".py") else module.partition(".")[0]


_EXPECTED = "a class or function with any of shape, classes, num_classes, channels, in_channels"


def _arguments(
    path: str, factory: Callable[..., Any], shape: Shape, classes: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What the factory is called with; a UserError if it wants what nobody gave."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError) as error:
        raise UserError(f"model {path!r} has no readable signature; expected {_EXPECTED}.") from error
    given: dict[str, Any] = {
        "shape": shape,
        "classes": classes,
        "num_classes": classes,
        "channels": shape[0],
        "in_channels": shape[0],
    }
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    arguments = {n: v for n, v in given.items() if n in named}
    if anything and not named & {"classes", "num_classes"}:
        arguments["num_classes"] = classes
    for key, value in options.items():
        if key not in named and not anything:
            raise UserError(f"model {path} takes no {key!r}; {nearest(key, {*named, 'feature_layer'})}")
        arguments[key] = _literal(value)
    for name, parameter in parameters.items():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in arguments and parameter.default is parameter.empty and not variadic:
            raise UserError(
                f"model {path} needs {name!r}, which nobody gives: expected {_EXPECTED};"
                f" other values come as options, {path}:{name}=..."
            )
    return arguments


def _literal(value: Any) -> Any:
    """An option's text as the Python literal it spells (``32``, ``0.5``, ``None``), else as text."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def _feature_layer(path: str, module: nn.Module, asked: str | None) -> str | None:
    known = [n for n, _ in module.named_modules() if n]
    name = asked or getattr(module, "feature_layer", None)
    if name is not None:
        if name not in known:
            raise UserError(
                f"model {path} has no layer {name!r} to take features from; {nearest(name, known)}"
            )
        return str(name)
    linears = [n for n, m in module.named_modules() if isinstance(m, nn.Linear) and n]
    return linears[-1] if linears else None
