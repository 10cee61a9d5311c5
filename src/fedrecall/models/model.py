"""A network as pure functions of its weights.

``Model`` holds a module's structure and none of its numbers: weights come in with every call, so
a client, its teacher and the server can use one model object, one after another or all at once
under ``torch.func.vmap``.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.weak import WeakIdKeyDictionary

from fedrecall.errors import UserError, nearest
from fedrecall.models import habits, kernels, norms
from fedrecall.models.kernels import Layout
from fedrecall.models.layers import KeyedDropout
from fedrecall.models.slimmable import narrow, narrow_groups, slim
from fedrecall.trees import take

Params = dict[str, Tensor]
Made = TypeVar("Made")


class Weights(NamedTuple):
    """Everything that defines a trained network, and that a federation averages."""

    params: Params
    """What training changes by its gradient."""
    buffers: Params
    """What no gradient changes: the running statistics of batch norm, and frozen parameters."""


Structure = list[tuple[str, Tensor, int | None]]
"""Buffers by name, each with its version unless it has none."""


class Output(NamedTuple):
    """Logits and the features they are computed from."""

    logits: Tensor  # [B, C]
    features: Tensor  # [B, F]


class Traced(NamedTuple):
    """Logits, and what goes into and comes out of a group of layers on the way."""

    logits: Tensor
    given: Tensor
    made: Tensor


class Model:
    """The pure functions of one network structure."""

    def __init__(self, module: nn.Module, *, compute: torch.dtype | None = None):
        """``compute``: the type in which to run the network when it is not that of its weights."""
        learned = {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}
        frozen = {n: p.detach().clone() for n, p in module.named_parameters() if not p.requires_grad}
        if frozen and not learned:
            raise UserError("every parameter of the model is frozen (requires_grad=False): nothing to train.")
        statistics = {n: b.detach().clone() for n, b in module.named_buffers() if _kept(module, n)}
        self._initial = Weights(learned, statistics | frozen)
        self.constants = frozenset(frozen)
        """Names of the frozen parameters; they are among the buffers and nothing may move them."""
        self.compute = compute
        self.feature_layer: str | None = getattr(module, "feature_layer", None)
        self._train = equipped(module).train()
        self._eval = equipped(module).eval()
        self._exact = norms.of_norms(module)
        own = habits.of(module)
        self.layout = Layout.USUAL if own.views else Layout.KEPT
        """How far channels come last in memory, in single precision on a CPU."""
        self._writes = own.writes
        floating = {n: b for n, b in self._eval.named_buffers() if b.is_floating_point()}
        typed = floating.keys() - self._exact - own.changes if compute is not None else frozenset()
        self._typed = frozenset(typed & statistics.keys())
        self._typed_unsaved = {n: floating[n] for n in typed - statistics.keys()}
        self._known: Any = WeakIdKeyDictionary()
        self._dropouts = [n for n, m in module.named_modules() if isinstance(m, KeyedDropout)]
        self._fixed = bool(self.unsaved())

    @property
    def device(self) -> torch.device:
        """Where the network was made, and its weights with it."""
        return next((t.device for t in self._initial.params.values()), torch.device("cpu"))

    def contains(self, kind: type[nn.Module]) -> bool:
        """Whether the network has a layer of this kind."""
        return any(isinstance(m, kind) for m in self._train.modules())

    @property
    def drops_across(self) -> bool:
        """Whether a dropout's mask depends on how many examples there are."""
        return any(isinstance(m, KeyedDropout) and m.across for m in self._train.modules())

    def edited(self, edit: Callable[[nn.Module], None]) -> "Model":
        """The model with its network changed in place by ``edit``, but only for training."""
        other = copy.copy(self)
        other._train = copy.deepcopy(self._train)
        edit(other._train)
        return other

    def exact(self) -> "Model":
        """The model that computes in the type of its weights, whatever this one does."""
        if self.compute is None:
            return self
        other = copy.copy(self)
        other.compute, other._known = None, WeakIdKeyDictionary()
        return other

    def slower(self) -> "Model":
        """The model with channels last in fewer places, where somebody views what then cannot be viewed."""
        other = copy.copy(self)
        other.layout, other._known = Layout(self.layout - 1), WeakIdKeyDictionary()
        return other

    def initial(self) -> Weights:
        """A copy of the weights that the module was made with."""
        return Weights(
            {n: p.clone() for n, p in self._initial.params.items()},
            {n: b.clone() for n, b in self._initial.buffers.items()},
        )

    def unsaved(self) -> Params:
        """The buffers with ``persistent=False``, dropout's keys aside: structure, as it was built."""
        keys = {f"{name}.key" if name else "key" for name in self._dropouts}
        known = keys | self._initial.buffers.keys()
        return {n: b for n, b in self._train.named_buffers() if n not in known}

    def structure(self) -> Structure:
        """What `unsaved` has, to compare: nothing in it may change while a client trains."""
        if not self._fixed:
            return []
        return [(n, b, None if b.is_inference() else b._version) for n, b in self.unsaved().items()]

    @property
    def module(self) -> nn.Module:
        """The structure in evaluation mode, to look at; the numbers in it are nobody's."""
        return self._eval

    def student(self, buffers: Params, key: Tensor) -> "Student":
        """The model in training, whose running statistics start from ``buffers``."""
        return Student(self, buffers, key)

    def logits(self, weights: Weights, x: Tensor) -> Tensor:
        """Logits in evaluation mode; gradients flow to ``weights.params`` if they ask for them."""
        return self._run(self._eval, self._ready(weights.params), weights.buffers, x)

    def output(self, weights: Weights, x: Tensor) -> Output:
        """Logits and features in evaluation mode."""
        return self._run_with_features(self._eval, self._ready(weights.params), weights.buffers, x)

    def frozen(self, weights: Weights, x: Tensor) -> Tensor:
        """A teacher's logits: evaluation mode, its own running statistics, no gradient."""
        with torch.no_grad():
            return self.logits(weights, x)

    def frozen_many(self, stacked: Weights, x: Tensor) -> Tensor:
        """The logits of K teachers, whose weights have a leading axis over them, [K, B, C]."""
        count = next(iter(stacked.params.values())).shape[0]
        if x.device.type != "cpu":
            return vmap(self.frozen, in_dims=(0, None))(stacked, x)
        # On a CPU the grouped convolutions that vmap makes of this are slower than K plain passes.
        with torch.no_grad():
            rows = {n: self._ready_one(n, p, rows=True) for n, p in stacked.params.items()}
            each = [
                self._run(self._eval, {n: r[k] for n, r in rows.items()}, take(stacked.buffers, k), x)
                for k in range(count)
            ]
        return torch.stack(each)

    def frozen_output(self, weights: Weights, x: Tensor) -> Output:
        """A teacher's logits and features: evaluation mode, no gradient."""
        with torch.no_grad():
            return self.output(weights, x)

    def activations(self, weights: Weights, x: Tensor, layers: Iterable[str]) -> dict[str, Tensor]:
        """What the named layers give in evaluation mode, without gradient."""
        seen: dict[str, Tensor] = {}
        handles = []
        for name in layers:
            layer = self._layer(self._eval, name)
            handles.append(
                layer.register_forward_hook(lambda _m, _i, out, name=name: seen.__setitem__(name, out))
            )
        try:
            self.frozen(weights, x)
        finally:
            for handle in handles:
                handle.remove()
        return seen

    def laid_out(self, weights: Weights) -> Weights:
        """The same weights as training computes with them fastest."""
        if self.layout < Layout.KEPT:
            return weights
        return weights._replace(params={n: kernels.weight(p) for n, p in weights.params.items()})

    def part(self, weights: Weights) -> Weights:
        """Of weights what is the network's: an algorithm may train more."""
        if len(weights.params) == len(self._initial.params):
            return weights
        return weights._replace(params={n: weights.params[n] for n in self._initial.params})

    def _run(self, module: nn.Module, params: Params, buffers: Params, x: Tensor) -> Tensor:
        fixed = {n: self._ready_one(n, buffers[n]) for n in self.constants & buffers.keys()}
        typed = {} if self.compute is None else self._in_type(buffers)
        given = self._once(x, "images", self._images)
        state = params | buffers | fixed | typed
        training = module is self._train
        before = _versions(*typed.values()) if training else []
        out: Tensor = functional_call(module, state, (given.clone() if self._writes else given,))
        if buffers and training:  # what forward has assigned stands in the dict of the call
            kept = {n for (n, t), v in zip(typed.items(), before, strict=True) if _same(state[n], t, v)}
            buffers.update((n, state[n]) for n in buffers.keys() - self.constants - kept)
        return out.float() if self.compute is not None else out

    def _images(self, x: Tensor) -> Tensor:
        x = x if self.compute is None else x.to(self.compute)
        return kernels.images(x) if self.layout else x

    def _in_type(self, buffers: Params) -> Params:
        """The floating buffers that no pass changes, in the type to compute in."""
        held = {n: buffers[n] for n in self._typed & buffers.keys()} | self._typed_unsaved
        return {n: self._once(b, "typed", lambda t: t.to(self.compute)) for n, b in held.items()}

    def _ready(self, params: Params) -> Params:
        """Weights in the type and layout to compute with."""
        return {n: self._ready_one(n, p) for n, p in params.items()}

    def _ready_one(self, name: str, p: Tensor, rows: bool = False) -> Any:
        """One of them, or a list of them along the leading axis."""
        make = self._cast_rows if rows else self._cast
        return self._once(p, "rows" if rows else "whole", partial(make, name))

    def _once(self, source: Tensor, form: str, make: Callable[[Tensor], Any]) -> Any:
        """What ``make`` makes of a tensor; kept for as long as that is there and unchanged.

        So a teacher is cast once a visit and not at every step, and a batch once for all models that see it.
        """
        if (
            (source.requires_grad and torch.is_grad_enabled())
            or source.is_inference()
            or torch.is_inference_mode_enabled()
            or not kernels.plain(source)
        ):
            return make(source)
        known = self._known.get(source)
        if known is not None and known[:2] == (form, _versions(source, known[2])):
            return known[2]
        with torch.no_grad():
            made = make(source)
        tensors = made if isinstance(made, list) else [made]
        # A view would keep its source alive, and what torch.func wraps ends with the call it is made in.
        if kernels.plain(*tensors) and not any(t is source or t._base is source for t in tensors):
            self._known[source] = form, _versions(source, made), made
        return made

    def _cast(self, name: str, p: Tensor) -> Tensor:
        if self.compute is not None and name not in self._exact:
            p = p.to(self.compute)
        return kernels.weight(p) if self.layout else p

    def _cast_rows(self, name: str, p: Tensor) -> list[Tensor]:
        # Cloned: a view of p would keep p alive, and p is what the cache waits to see the end of.
        return [self._cast(name, row.clone()) for row in p]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_known"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._known = WeakIdKeyDictionary()

    def _run_with_features(self, module: nn.Module, params: Params, buffers: Params, x: Tensor) -> Output:
        if self.feature_layer is None:
            raise UserError(
                "this algorithm needs the model's features, and the model does not say where they are: "
                "give the module an attribute feature_layer = 'name of its last linear layer'."
            )
        seen: list[Tensor] = []
        layer = self._layer(module, self.feature_layer)
        handle = layer.register_forward_pre_hook(
            lambda _m, args, named: seen.append(received(args, named)), with_kwargs=True
        )
        try:
            logits = self._run(module, params, buffers, x)
        finally:
            handle.remove()
        features = seen[-1].flatten(1)
        return Output(logits, features.float() if self.compute is not None else features)

    def _layer(self, module: nn.Module, name: str) -> nn.Module:
        layers = dict(module.named_modules())
        if name not in layers:
            raise UserError(f"the model has no layer {name!r}; {nearest(name, filter(None, layers))}")
        found: nn.Module = layers[name]
        return found


def received(args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """What a layer was called with, be it by name."""
    return args[0] if args else next(iter(named.values()))


class Student:
    """A model in training mode for one step, which keeps the running statistics it makes."""

    def __init__(self, model: Model, buffers: Params, key: Tensor):
        self.model = model
        self.buffers = dict(buffers)
        self._given: tuple[list[Tensor], list[int | None]] = [], []
        self._cast: Params = {}
        self._key, self._passes = key, 0

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """The student's logits; batch norm uses and updates the statistics of this batch."""
        return self._followed(self.model._run, params, x)

    def output(self, params: Params, x: Tensor) -> Output:
        """The student's logits and features."""
        return self._followed(self.model._run_with_features, params, x)

    def traced(self, params: Params, x: Tensor, layers: Sequence[str]) -> Traced:
        """Logits, and what goes into the first and comes out of the last of these layers."""
        module = self.model._train
        seen: dict[str, Tensor] = {}
        first, last = (self.model._layer(module, n) for n in (layers[0], layers[-1]))
        handles = [
            first.register_forward_pre_hook(
                lambda _m, args, named: seen.__setitem__("given", received(args, named)), with_kwargs=True
            ),
            last.register_forward_hook(lambda _m, _args, out: seen.__setitem__("made", out)),
        ]
        try:
            logits = self(params, x)
        finally:
            for handle in handles:
                handle.remove()
        return Traced(logits, seen["given"], seen["made"])

    def narrow(
        self, params: Params, given: Tensor, layers: Sequence[str], width: float
    ) -> tuple[Tensor, Tensor]:
        """The first channels of ``given``, and what these consecutive layers make of it at this width.

        Running statistics are those of the full width and stay as they are.
        """
        x = kept = given.narrow(1, 0, slim(given.shape[1], width))
        state = {**params, **self._state()}
        cast = params.keys() | self.model.constants if self.model.compute is not None else frozenset()
        cast = cast - self.model._exact | self.model._typed
        for name in layers:
            layer = self.model._layer(self.model._train, name)
            own = {n.removeprefix(f"{name}."): t for n, t in state.items() if n.startswith(f"{name}.")}
            thin = narrow(own, width)
            scratch = {n: t.clone() if f"{name}.{n}" in self.buffers else t for n, t in thin.items()}
            scratch = {n: t.to(x.dtype) if f"{name}.{n}" in cast else t for n, t in scratch.items()}
            with narrow_groups(layer, width):
                x = functional_call(layer, scratch, (x,))
        return kept, x

    def frozen(self, weights: Weights, x: Tensor) -> Tensor:
        """A teacher's logits."""
        return self.model.frozen(weights, x)

    def frozen_many(self, stacked: Weights, x: Tensor) -> Tensor:
        """The logits of K teachers, [K, B, C]."""
        return self.model.frozen_many(stacked, x)

    def frozen_output(self, weights: Weights, x: Tensor) -> Output:
        """A teacher's logits and features."""
        return self.model.frozen_output(weights, x)

    def _followed(
        self, run: Callable[[nn.Module, Params, Params, Tensor], Made], params: Params, x: Tensor
    ) -> Made:
        """Run the network; running statistics that it assigned, not changed in place, are kept too.

        Each pass changes copies: autograd, and `torch.func.grad` in a loss, may need those of the one before.
        """
        state = self._state() | {
            n: b.clone() for n, b in self.buffers.items() if n not in self.model.constants
        }
        self._passes += 1
        made = run(self.model._train, self._ready(params), state, x)
        for name, old in self.buffers.items():
            new = state[name]
            if name not in self.model.constants:
                if new.shape != old.shape:
                    was, now = list(old.shape), list(new.shape)
                    raise UserError(
                        f"the model's forward makes its running statistic {name!r} of shape {was} one of "
                        f"shape {now}: register it in the shape that it will have."
                    )
                self.buffers[name] = new.detach().to(old.dtype)
        return made

    def _state(self) -> Params:
        """Buffers, and dropout's key: another one for each pass of a step, as two passes are to differ."""
        key = self._key + (self._passes << 33) if self._passes and self.model._dropouts else self._key
        return {**self.buffers, **{f"{n}.key" if n else "key": key for n in self.model._dropouts}}

    def _ready(self, params: Params) -> Params:
        """The weights of this step as the network computes with them: cast once, however often it runs."""
        now = [*params.values()]
        given, versions = self._given
        same = len(now) == len(given) and all(a is b for a, b in zip(now, given, strict=True))
        if not same or versions != _versions(
            *now
        ):  # a loss may take steps of its own in one and the same dict
            self._given, self._cast = (now, _versions(*now)), self.model._ready(params)
        return self._cast


def equipped(module: nn.Module) -> nn.Module:
    """A copy of the network whose layers know the faster kernels."""
    return norms.equip(kernels.equip(copy.deepcopy(module).requires_grad_(False)))


def _versions(*tensors: Any) -> list[int | None]:
    """How often each was changed in place: a network may do that to the images it is given."""
    return [getattr(t, "_version", None) for t in tensors]


def _same(now: Any, before: Tensor, version: int | None) -> bool:
    """Whether it is the same tensor still, with the numbers that it had."""
    return now is before and _versions(now) == [version]


def _kept(module: nn.Module, name: str) -> bool:
    owner, _, leaf = name.rpartition(".")
    return leaf not in module.get_submodule(owner)._non_persistent_buffers_set
