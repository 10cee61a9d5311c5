"""How a run is hosted on Flower: what `flwr run` takes beside the run's own config."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fedrecall import config as configs
from fedrecall import own_digest, privacy, specs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.multi_teacher import MultiTeacher
from fedrecall.config import Config
from fedrecall.errors import UserError
from fedrecall.fields import fields
from fedrecall.flower import masks
from fedrecall.flower.node import ELSEWHERE
from fedrecall.ingredients import chain_count
from fedrecall.specs import AT_LEAST_ONE, NON_NEGATIVE, POSITIVE

NOT_HERE = {
    "backend": "nodes train their visits themselves",
    "workers": "nodes train their visits themselves",
    "measures": "they look at the clients' data, which stay at the nodes",
    "validation": "nodes evaluate on test examples of their own, which may be some that they held out",
}
"""Fields of the config that have no meaning in a federation, and why."""
DEFAULTS = {"dataset": ELSEWHERE, "sample": 1.0}
"""Of the fields that have others here: the data are at the nodes, and all nodes take part."""
OWN_CODE = ("algorithm", "model", "partition")
"""Fields of the config that may name code which the nodes need as well."""


@dataclass(frozen=True)
class Hosting:
    """What the server needs to know besides the run."""

    out: str | None = None
    """Run folder, on the server; without it nothing is kept."""
    resume: bool = False
    """Go on with the run in `out` if there is one."""
    class_names: tuple[str, ...] = ()
    """Names of all classes in one order, as a+b+c, where nodes do not all have all of them."""
    min_clients: Annotated[int, AT_LEAST_ONE] = 1
    """Fewest clients whose uploads make a round; with fewer the run stops and can be resumed."""
    wait: Annotated[float, NON_NEGATIVE] = 600.0
    """Seconds to wait at the start until all clients are there; then min_clients are enough."""
    timeout: Annotated[float, POSITIVE] = 600.0
    """Seconds to wait for the replies of one link; who has not answered then is left out of the round."""
    poll: Annotated[float, POSITIVE] = 0.2
    """Seconds between looks for replies, at least: each costs the SuperLink a request for every node."""
    secure: Literal["off", "examples", "equal"] = "off"
    """Secure aggregation: the server learns the clients' mean alone, by numbers of examples or all equal."""

    def __post_init__(self) -> None:
        """Classes are told from each other by their names, in which blanks around a plus have no part."""
        names = tuple(name.strip() for name in self.class_names)
        if "" in names:
            raise UserError(f"class_names = {'+'.join(names)!r} has a name that is empty: take it out.")
        if double := [name for name in names if names.count(name) > 1]:
            raise UserError(f"class_names has {double[0]!r} twice: name every class once.")
        object.__setattr__(self, "class_names", names)


def read(given: Mapping[str, Any]) -> tuple[Config, Hosting]:
    """The run's config and its hosting from Flower's run config, in which an empty text is no value."""
    values = {k.replace("-", "_"): v for k, v in given.items() if v != ""}
    own = {f.name for f in fields(Hosting)}
    for name, why in NOT_HERE.items():
        if name in values:
            raise UserError(f"{name} cannot be set in a federation: {why}.")
    if "clients" not in values:
        raise UserError(
            "clients is needed: how many nodes take part, which say client=0, client=1 and so on."
        )
    settings = {k: v for k, v in values.items() if k not in own}
    config = configs.make(configs.nested(DEFAULTS | settings))
    _check_named(config)
    hosting = specs.build(Hosting, {k: v for k, v in values.items() if k in own}, "run config")
    if hosting.min_clients > config.sampled:
        raise UserError(
            f"min_clients = {hosting.min_clients} is more than the {config.sampled} sampled a round."
        )
    _check_secret(config)
    if hosting.secure != "off":
        _check_secure(config, hosting)
    return config, hosting


def _check_named(config: Config) -> None:
    """Code of somebody's own is named as every node can import it: the server's files are the server's."""
    for name in OWN_CODE:
        if place := next((text for text in own_digest.texts(getattr(config, name)) if ".py:" in text), None):
            raise UserError(
                f"{name} = {Path(place).name!r} is a file of the server's: name it as package.module:Class, "
                "which the nodes import, where it is installed or on their PYTHONPATH."
            )


def _check_secret(config: Config) -> None:
    """Noise that follows from the seed, which every node is told, hides nothing from them."""
    algorithm = ALGORITHMS.make(config.algorithm)
    if isinstance(algorithm, privacy.Private) and algorithm.noise and not algorithm.secret:
        raise UserError(
            "private draws its noise from the run's seed, which every node is told and could subtract: say "
            "secret=true in its settings, or simulate the federation with fedrecall run."
        )
    if (
        isinstance(algorithm, MultiTeacher)
        and algorithm.share in ("laplace", "gaussian")
        and algorithm.noise
        and not algorithm.secret_noise
    ):
        raise UserError(
            f"share={algorithm.share} draws its noise from the run's seed, which every node is told and "
            "could subtract: say secret_noise=true in its settings, or simulate the federation with "
            "fedrecall run."
        )
    if algorithm.secret and config.checkpoint_every > 1:
        raise UserError(
            "with secret=true a round that is played again has other noise, and epsilon counts both: "
            "leave checkpoint_every at 1, so that no model is sent before it is saved."
        )


def _check_secure(config: Config, hosting: Hosting) -> None:
    algorithm, name = ALGORITHMS.make(config.algorithm), config.algorithm["name"]
    equal = hosting.secure == "equal"
    if not privacy.sums(algorithm, equal=equal):
        raise UserError(
            f"secure = {hosting.secure!r} cannot aggregate {name}, which needs more of the uploads than that "
            f"mean; it can: {', '.join(privacy.summed(equal=equal))}."
        )
    if chain_count(config, algorithm) < config.sampled:
        raise UserError(
            "in a chain every client sees the model of the one before, which secure aggregation would hide: "
            f"let every client be a chain with chains = {config.sampled}."
        )
    if config.sampled < masks.FEWEST:
        raise UserError(
            f"secure aggregation needs at least {masks.FEWEST} clients a round, not {config.sampled}."
        )
