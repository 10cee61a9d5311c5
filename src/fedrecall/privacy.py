"""Which uploads can be added up before anybody sees them, and learning in which no client stands out.

Two protections rest on one property: that the server needs of a round's uploads no more than their
mean. Then secure aggregation can give it the mean alone, and noise on the mean protects every
client whatever is computed from it later. Which algorithms have the property is found by trying,
so it holds for a user's own algorithm, too.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedrecall import payloads, specs, streams, trees
from fedrecall.algorithms import ALGORITHMS, FedAvg
from fedrecall.algorithms.fedavg import packs, wraps
from fedrecall.algorithms.hooks import Cohort, Sgd
from fedrecall.batches import Batch, LocalData
from fedrecall.errors import UserError
from fedrecall.models.model import Model, Params, Student, Weights
from fedrecall.models.networks import build
from fedrecall.specs import NON_NEGATIVE, POSITIVE, Range

_PROBED = 4  # uploads in the trial
_SCALES = (1.0, 1e-3, 1e3)  # of how far apart they are
_TOLERANCE = 1e-9
_CLASSES = 3


_Found = TypeVar("_Found")


def _once(trial: Callable[..., _Found]) -> Callable[..., _Found]:
    """Remember what trying an algorithm found: a config that names it is checked wherever it is read."""
    found: dict[Any, _Found] = {}

    @functools.wraps(trial)
    def remembered(algorithm: FedAvg, **how: Any) -> _Found:
        key = type(algorithm), repr(specs.plain(algorithm)), *how.items()
        if key not in found:
            try:
                found[key] = trial(algorithm, **how)
            except UserError:
                raise
            except Exception as error:  # whatever a user's code makes of a network that is not his
                raise UserError(
                    f"{type(algorithm).__name__} fails on the small network of {_CLASSES} classes that it is "
                    f"tried on ({type(error).__name__}: {error})"
                ) from error
        return found[key]

    return remembered


@_once
def sums(algorithm: FedAvg, *, equal: bool = True) -> bool:
    """Whether the mean of a round's uploads is all that `aggregate` makes use of.

    ``equal``: the mean with equal weights, of clients that count alike; otherwise weighted by
    numbers of examples. What has the property can run behind secure aggregation. What `protects` has
    not, since it looks at every upload, even where it finds nothing to shorten; nor has what clients pack.
    """
    if algorithm.protects or packs(algorithm):
        return False
    return _sums(algorithm, _template(algorithm), equal)


def summed(*, equal: bool = True) -> list[str]:
    """Names of the algorithms of which `sums` is true."""
    return [n for n in ALGORITHMS if sums(ALGORITHMS.make(n), equal=equal)]


@_once
def protectable(algorithm: FedAvg) -> str | None:
    """Why noise on the mean update cannot protect clients of this algorithm; None if it can."""
    name = type(algorithm).__name__
    if algorithm.sequential:
        return f"{name} sends every client's model to the next client as it is"
    if type(algorithm).invite is not FedAvg.invite:
        return f"{name} invites clients of its choice, which a random draw would hide"
    if packs(algorithm):
        return f"{name} packs its uploads, which can only be shortened and averaged as they are"
    if wraps(algorithm):
        return f"{name} wraps what it sends, and updates are measured from the model as the server has it"
    if algorithm.mirrors:
        return f"{name} keeps at the server what its clients remember, from which noise would part it"
    up = _template(algorithm)
    if beyond := [field for field in up._fields if field != "weights"]:
        return f"{name} uploads {' and '.join(beyond)} beside the model, which have no bound"
    if not _sums(algorithm, up, equal=True):
        return f"{name}'s aggregation needs more of the uploads than their mean"
    return None


def _template(algorithm: FedAvg) -> Any:
    """An upload of the algorithm, of a small network in float64."""
    shape, classes = (1, 8, 8), _CLASSES
    with torch.random.fork_rng(devices=[]):  # building a network draws from torch's global stream
        torch.manual_seed(0)
        for network in ("cnn:4", "resnet10:width=4"):
            try:
                module = algorithm.equip(build(network, shape, classes)).double()
                return payloads.declared(algorithm, Model(module), shape, classes).up
            except UserError as error:
                refused = error
    raise refused


def _sums(algorithm: FedAvg, up: Any, equal: bool) -> bool:
    """Tried with uploads of any kind: near each other and far, of one sign and of both."""
    stream = streams.torch_stream(0, "sums")
    shares = [1 / _PROBED] * _PROBED
    if not equal:
        drawn = torch.rand(_PROBED, generator=stream, dtype=torch.float64) + 0.1
        shares = (drawn / drawn.sum()).tolist()
    everyone = list(range(_PROBED))
    cohort = Cohort(everyone, shares, 10 * _PROBED, _PROBED, [0] * _PROBED, everyone)

    def draw(like: Tensor, scale: float, signed: bool) -> Tensor:
        if not like.is_floating_point():
            return torch.randint(0, 20, like.shape, generator=stream).to(like.dtype)
        found = torch.rand(like.shape, generator=stream, dtype=torch.float64)
        return scale * (2 * found - 1 if signed else found).to(like.dtype)

    def enough(scale: float, signed: bool) -> bool:
        def noisy(t: Tensor) -> Tensor:
            return t + draw(t, scale, signed)

        server = algorithm.start(up.weights)  # the model that uploads are around, as clients begin with it
        for _ in range(2):  # once from where it starts, and once from what it makes
            stacked = trees.stack([trees.transform(noisy, up) for _ in range(_PROBED)])
            same = trees.stack([cohort.mean(stacked)] * _PROBED)
            with streams.seeded(0, "sums"):
                made = algorithm.aggregate(server, stacked, cohort)
            with streams.seeded(0, "sums"):  # the same noise, if it adds any
                other = algorithm.aggregate(server, same, cohort)
            if not _close(made, other):
                return False
            server = made
        return True

    return all(enough(scale, signed) for scale in _SCALES for signed in (False, True))


def _close(a: Any, b: Any) -> bool:
    left, right = trees.arrays(a), trees.arrays(b)
    if left.keys() != right.keys():
        return False
    for name, x in left.items():
        y = right[name]
        if x.shape != y.shape:
            return False
        x, y = x.double(), y.double()
        if x.numel() and not (x - y).abs().max() <= _TOLERANCE * max(1.0, float(y.abs().max())):
            return False
    return True


@functools.lru_cache(maxsize=4096)
def epsilon(
    noise_multiplier: float, population: int, sampled: int, rounds: int, delta: float
) -> float | None:
    """What an adversary learns of any client from all models of these rounds; None: without bound.

    Every round ``sampled`` of ``population`` clients are drawn without replacement and each moves the
    noisy sum by at most the clip. Two federations are neighbours if one client's data differ, which
    moves the sum by twice the clip. Nobody may know who was drawn; where ``sampled`` is ``population``
    it makes no difference. By Renyi differential privacy (dp-accounting).
    """
    if not noise_multiplier:
        return None
    dp, rdp = _accounting("dp_accounting"), _accounting("dp_accounting.rdp")
    event = dp.GaussianDpEvent(noise_multiplier / 2)
    if sampled < population:
        event = dp.SampledWithoutReplacementDpEvent(population, sampled, event)
    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    found = float(accountant.compose(event, rounds).get_epsilon(delta))
    if sampled < population:
        # Drawing clients cannot tell more than asking all (the divergence of two mixtures is at most that of
        # the worst pair in them), though the bound for it may be worse where nearly all are drawn.
        whole = epsilon(noise_multiplier, population, population, rounds, delta)
        found = found if whole is None else min(found, whole)
    return found if np.isfinite(found) else None


def _accounting(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            "private learning counts epsilon with dp-accounting, which is not installed: "
            "pip install 'fedrecall[dp]'."
        ) from None


class Server(NamedTuple):
    """What the server keeps between rounds."""

    inner: Any
    """What the protected algorithm keeps."""
    round: Tensor  # int64 []
    """Means so far: one a round, and those of rounds that were played again."""
    sizes: Tensor  # int64 [2]
    """How many clients there are, and how many are asked each round; 0 before the first."""
    key: Tensor  # int64 []
    """What the noise is drawn from: a function of the model the run began with."""

    @property
    def weights(self) -> Weights:
        """The global model."""
        weights: Weights = self.inner.weights
        return weights


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    inner: Any
    weights: Weights
    """The model that arrived, from which its update is measured."""


@dataclass(frozen=True)
class Private(FedAvg):
    """Client-level differential privacy for another algorithm (McMahan et al., ICLR 2018).

    A client shortens its update w_k - w to the length ``clip``; the server adds Gaussian noise of
    standard deviation ``noise`` times ``clip`` to the sum and divides by the number of clients it asked,
    all counting alike and those that failed as 0. The protected algorithm is given this mean as if every
    client had sent it, so whatever it computes from uploads is covered. So that a client's data change
    no other client's update, inputs are normalised with fixed statistics (``Config.normalisation``).
    What a run records beside the model (who took part, losses, failures, measures) is not covered.
    """

    protects: ClassVar[bool] = True

    of: Any = "fedavg"
    """The algorithm to protect: a name, or with its hyperparameters in brackets, as (fedntd:beta=0.5)."""
    clip: Annotated[float, POSITIVE] = 1.0
    """Longest update of a client, as the Euclidean length over all parameters."""
    noise: Annotated[float, NON_NEGATIVE] = 1.0
    """Standard deviation of the noise on the sum of updates, in units of `clip`; 0: none, and no privacy."""
    delta: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 1e-5
    """Probability with which epsilon may not hold; choose less than one over the number of clients."""
    secret: bool = False
    """Draw noise and clients from the operating system, as real clients need: no run can be repeated."""

    def __post_init__(self) -> None:
        """Refuse what cannot be protected."""
        object.__setattr__(self, "of", ALGORITHMS.spec(ALGORITHMS.make(self.of)))
        if isinstance(self.inner, Private):
            raise UserError("private: it cannot protect itself; name one other algorithm.")
        if why := protectable(self.inner):
            raise UserError(
                f"private cannot protect {self.of['name']}: {why}. It can: {', '.join(protected())}."
            )
        if self.inner.secret:  # its noise protects, too
            object.__setattr__(self, "secret", True)
        if self.noise:
            _accounting("dp_accounting")

    @property
    def remembers_once(self) -> bool:  # type: ignore[override]
        """As the protected algorithm does."""
        return self.inner.remembers_once

    @functools.cached_property
    def inner(self) -> FedAvg:
        """The protected algorithm."""
        made: FedAvg = ALGORITHMS.make(self.of)
        return made

    @property
    def auxiliary_per_class(self) -> int:
        """What the protected algorithm needs."""
        return self.inner.auxiliary_per_class

    def equip(self, module: nn.Module) -> nn.Module:
        """What the protected algorithm adds."""
        return self.inner.equip(module)

    def start(self, weights: Weights) -> Server:
        """No rounds yet."""
        if weights.buffers:
            raise UserError(
                "private: the model has running statistics of the clients' data, which would leave without "
                "noise, or frozen parameters; choose one without batch normalisation, such as cnn, that "
                "learns all its parameters."
            )
        digest = hashlib.blake2b(digest_size=8)
        for tensor in weights.params.values():
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        key = int.from_bytes(digest.digest(), "big") >> 1
        return Server(
            self.inner.start(weights), torch.tensor(0), torch.zeros(2, dtype=torch.int64), torch.tensor(key)
        )

    def remember(self, weights: Weights) -> Any:
        """What the protected algorithm's clients remember; it never leaves them."""
        return self.inner.remember(weights)

    def personal(self, weights: Weights, memory: Any) -> Weights:
        """As the protected algorithm does."""
        return self.inner.personal(weights, memory)

    def deploy(self, weights: Weights, memory: Any) -> Weights:
        """As the protected algorithm does."""
        return self.inner.deploy(weights, memory)

    def arrange(self, sampled: Sequence[int], round_number: int) -> Sequence[int]:
        """As the protected algorithm does."""
        return self.inner.arrange(sampled, round_number)

    def broadcast(self, model: Model, server: Server, auxiliary: LocalData | None) -> Any:
        """What the protected algorithm sends."""
        return self.inner.broadcast(model, server.inner, auxiliary)

    def prepare(self, model: Model, down: Any, memory: Any, data: LocalData) -> Anchor:
        """What the protected algorithm holds on to, and the model that arrived."""
        return Anchor(self.inner.prepare(model, down, memory, data), down.weights)

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """The protected algorithm's."""
        return self.inner.loss(model, params, anchor.inner, batch)

    def correct(self, grads: Params, anchor: Anchor) -> Params:
        """As the protected algorithm does."""
        return self.inner.correct(grads, anchor.inner)

    def settle(self, params: Params, before: Params, anchor: Anchor, batch: Batch) -> Params:
        """As the protected algorithm does."""
        return self.inner.settle(params, before, anchor.inner, batch)

    def advance(self, anchor: Anchor, weights: Weights, grads: Params, batch: Batch) -> Anchor:
        """As the protected algorithm does."""
        return anchor._replace(inner=self.inner.advance(anchor.inner, weights, grads, batch))

    def finish(
        self, model: Model, weights: Weights, anchor: Anchor, memory: Any, data: LocalData, sgd: Sgd
    ) -> tuple[Any, Any]:
        """Shorten the update before it leaves."""
        up, memory = self.inner.finish(model, weights, anchor.inner, memory, data, sgd)
        before = anchor.weights.params
        moved = {n: w - before[n] for n, w in up.weights.params.items()}
        scale = float(self._scales(trees.stack([moved]))[0])
        params = {n: w + scale * moved[n] for n, w in before.items()}
        return up._replace(weights=Weights(params, {})), memory

    def relay(self, down: Any, up: Any) -> Any:
        """Refuse: the next client of a chain would see this one's model without noise."""
        raise UserError(
            "private: a chain shows each client's model to the next; let every client be a chain."
        )

    def aggregate(self, server: Server, ups: Any, cohort: Cohort) -> Server:
        """Add noise to the sum of updates, and let the protected algorithm go on with the mean."""
        before = server.weights.params
        # Shortened once more, so that the bound holds whatever a client sends.
        moved = {n: w - before[n] for n, w in ups.weights.params.items()}  # [clients, ...]
        total = cohort.sum(moved, self._scales(moved).tolist())
        number = int(server.round) + 1
        if self.noise:
            drawn = self._noise(int(server.key), number, total)
            total = {n: t + self.noise * self.clip * drawn[n] for n, t in total.items()}
        m = cohort.sampled
        mean = {n: w + total[n] / m for n, w in before.items()}
        told = ups._replace(weights=Weights({n: w.expand(m, *w.shape) for n, w in mean.items()}, {}))
        everyone = replace(
            cohort, clients=[-1] * m, shares=[1 / m] * m, link=[0] * m, chain=list(range(m))
        )  # who took part is not told, either
        sizes = torch.tensor([cohort.population, m])
        return Server(
            self.inner.aggregate(server.inner, told, everyone), torch.tensor(number), sizes, server.key
        )

    def refine(self, model: Model, server: Server, auxiliary: LocalData | None) -> Server:
        """As the protected algorithm does: of the mean with its noise, and of the server's own examples."""
        return server._replace(inner=self.inner.refine(model, server.inner, auxiliary))

    def recount(self, server: Server, rounds: int) -> Server:
        """A mean that others may have seen counts, though the round is played again, with other noise."""
        inner = self.inner.recount(server.inner, rounds)
        return server._replace(inner=inner, round=server.round.clamp_min(rounds))

    def report(self, server: Server) -> dict[str, float]:
        """What the protected algorithm says, and epsilon so far, at ``delta``, where there is a bound."""
        said = self.inner.report(server.inner)
        population, sampled = server.sizes.tolist()
        if not population:
            return said
        with streams.seeded(0, "made up"):
            remembers = bool(trees.arrays(self.inner.remember(server.weights)))
        if remembers:
            # What such a client sends depends on when it took part before, and so does what it tells of
            # who else did. That rounds draw their clients hides nothing then.
            sampled = population
        found = epsilon(self.noise, population, sampled, int(server.round), self.delta)
        return said if found is None else {**said, "epsilon": found, "delta": self.delta}

    def _scales(self, moved: Params) -> Tensor:
        """What to multiply each update [clients, ...] by so that none is longer than ``clip``, [clients]."""
        lengths = [
            torch.linalg.vector_norm(m.reshape(len(m), -1), dim=1, dtype=torch.float64)
            for m in moved.values()
        ]
        length = torch.linalg.vector_norm(torch.stack(lengths), dim=0)
        scales: Tensor = (self.clip / length.clamp_min(1e-300)).clamp_max(1.0)
        return scales

    def _noise(self, key: int, number: int, like: Params) -> Params:
        """Standard normal numbers of these shapes, each parameter's its own."""
        stream = streams.torch_stream(key, "privacy", number)
        drawn = {}
        for name, t in like.items():
            if self.secret:
                normal = _from_the_system(t.numel()).view(t.shape)
            else:
                normal = torch.randn(t.shape, generator=stream, dtype=torch.float64)
            drawn[name] = normal.to(t)
        return drawn


def _from_the_system(count: int) -> Tensor:
    """Standard normal numbers that nobody can compute, by inversion."""
    drawn: Tensor = torch.special.ndtri(streams.secret_uniforms(count))
    return drawn


def protected() -> list[str]:
    """Names of the algorithms that `private` can protect."""
    return [n for n in ALGORITHMS if n != "private" and protectable(ALGORITHMS.make(n)) is None]
