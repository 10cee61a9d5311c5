"""The configuration of a run: one validated tree, from YAML, from the command line, from Python."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from fedrecall import backends, files, own_modules, specs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.data.augmentation import Augmentation, default_for
from fedrecall.data.datasets import DATASETS, original
from fedrecall.data.partitions import PARTITIONS
from fedrecall.errors import UserError, nearest, shown
from fedrecall.fields import check, fields
from fedrecall.measures import MEASURES
from fedrecall.models.networks import named
from fedrecall.sinks import SINKS
from fedrecall.specs import AT_LEAST_ONE, NON_NEGATIVE, POSITIVE, Range
from fedrecall.training import Recipe

REGISTRIES = {"algorithm": ALGORITHMS, "dataset": DATASETS, "partition": PARTITIONS}

LISTS = {"measures": MEASURES, "sinks": SINKS}
"""Settings that name any number of things."""

NEEDED = (*REGISTRIES, "model", "training", "clients", "sample", "rounds", "seed")
"""Settings that every saved config has."""

Spec = Any  # a name, "name:value,key=value", or a mapping with a name

DEEPEST = 50
"""Brackets within brackets in a config file: reading them takes the square of their depth."""


@dataclass(frozen=True)
class Config:
    """Everything that determines a run's result, and how it is computed."""

    algorithm: Spec = "fedavg"
    """The algorithm and its hyperparameters, see `fedrecall list algorithms`."""
    dataset: Spec = "digits"
    """The data set, see `fedrecall list datasets`, or folder:PATH."""
    partition: Spec = "shards:2"
    """How the training split is divided among clients, see `fedrecall list partitions`."""
    model: Spec = "cnn"
    """The network: a name, or a module of your own as package.module:factory or file.py:factory."""
    initial: str | None = None
    """The weights to begin with: a run folder's last, or a .safetensors file's; by default the seed's."""
    clients: Annotated[int, AT_LEAST_ONE] = 100
    """Number of clients, N."""
    sample: Annotated[int | float, POSITIVE] = 0.1
    """Clients sampled each round: a count, or a share up to 1.0, which is all of them; 1 is one."""
    chains: Annotated[int | None, AT_LEAST_ONE] = None
    """Chains that train side by side; by default one for sequential algorithms, else one a client."""
    rounds: Annotated[int, AT_LEAST_ONE] = 200
    """Number of rounds, T."""
    training: Recipe = field(default_factory=Recipe)
    """How a client trains."""
    augmentation: str | None = None
    """Augmentation: crop, reflect, flip, cutout joined by +, or none; by default what suits the data."""
    test_augmentation: str = "none"
    """What is done to test images: nothing, but to see whether a paper's numbers were made so."""
    normalisation: Literal["auto", "data", "fixed", "none"] = "auto"
    """Inputs' mean and deviation: of clients' data, fixed, or none; auto: data, but for `private` fixed."""
    auxiliary_per_class: Annotated[int | None, NON_NEGATIVE] = None
    """Training examples of each class set apart for the server; by default what the algorithm needs."""
    validation: Annotated[float, Range(0, 1, open_high=True)] = 0.0
    """Share of every training class that is held out and evaluated on in the place of the test split."""
    seed: Annotated[int, NON_NEGATIVE] = 0
    """Seed of everything random."""
    partition_seed: Annotated[int | None, NON_NEGATIVE] = None
    """Seed of the partition alone; by default the run's seed."""
    global_seed: Annotated[int | None, Range(0, 2**32 - 1)] = None
    """Seed with which released code (FedNTD's, FedML's) deals shards and lda; it draws clients as they do."""
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    """Arithmetic of training; bfloat16 keeps the weights themselves in float32."""
    evaluate_every: Annotated[int, AT_LEAST_ONE] = 1
    """Rounds from one evaluation on the test split to the next; forgetting looks back on these alone."""
    measures: tuple[Spec, ...] = ()
    """What else to record, see `fedrecall list measures`; none: nothing."""
    sinks: tuple[str, ...] = ()
    """Where else the numbers go while it runs, see `fedrecall list sinks`; none: nowhere."""
    backend: str = "auto"
    """Where clients are trained: serial, processes, vectorised (a GPU's) or ray; auto chooses."""
    workers: Annotated[int | None, AT_LEAST_ONE] = None
    """Workers of the backend; by default what the machine has."""
    device: str = "auto"
    """Where models and data are: cpu, cuda, or auto, a GPU if there is one and the backend is for one."""
    checkpoint_every: Annotated[int, AT_LEAST_ONE] = 1
    """Rounds from one checkpoint to the next."""
    keep_every: Annotated[int, NON_NEGATIVE] = 0
    """Rounds from one model that is kept for good to the next; 0: the last two checkpoints alone."""
    on_failure: Literal["exclude", "stop"] = "exclude"
    """What a client's NaN does: leave it out of the round, or stop the run."""

    def __post_init__(self) -> None:
        """Check every field, also of a config that a program makes, and complete what depends on others."""
        for known in fields(Config):
            object.__setattr__(self, known.name, check(known, getattr(self, known.name), "config"))
        for name, registry in REGISTRIES.items():
            object.__setattr__(self, name, registry.spec(registry.make(getattr(self, name))))
        object.__setattr__(self, "model", named(self.model))
        if self.initial is not None:  # in another folder it would be another one
            object.__setattr__(self, "initial", os.path.abspath(files.expanded(self.initial)))
        if not (isinstance(self.model, (str, Mapping)) or hasattr(self.model, "build")):
            raise UserError(f"config: model = {shown(self.model)} is neither a name nor a mapping.")
        for name, registry in LISTS.items():
            given = _several_or_none(name, getattr(self, name))
            object.__setattr__(self, name, tuple(_one_of_several(registry, spec) for spec in given))
        backends.parse(self.backend)
        augmentation = self.augmentation
        if augmentation is None:
            augmentation = str(default_for(original(self.dataset)))
        object.__setattr__(self, "augmentation", str(Augmentation.parse(augmentation)))
        object.__setattr__(self, "test_augmentation", str(Augmentation.parse(self.test_augmentation)))
        protects = REGISTRIES["algorithm"].make(self.algorithm).protects
        if self.normalisation == "auto":
            object.__setattr__(self, "normalisation", "fixed" if protects else "data")
        elif self.normalisation == "data" and protects:
            raise UserError(
                "normalisation = 'data' lets each client's data change every client's inputs, which "
                f"{self.algorithm['name']} does not protect: leave it out, or say fixed or none."
            )
        if self.global_seed is not None and self.partition_seed is not None:
            raise UserError("global_seed deals the partition by itself: leave partition_seed out.")
        if self.global_seed is not None and protects:
            raise UserError(
                "global_seed draws clients that everybody can foresee, which hides nobody: leave it out with "
                f"{self.algorithm['name']}."
            )
        object.__setattr__(self, "sample", _count_or_share(self.sample, self.clients))
        if self.sampled > self.clients:
            raise UserError(f"sample = {self.sample} of {self.clients} clients: there are not that many.")
        if self.chains is not None and self.chains > self.sampled:
            raise UserError(
                f"chains = {self.chains} needs at least as many sampled clients, not {self.sampled}."
            )
        if self.chains is not None and self.chains < self.sampled and protects:
            raise UserError(
                f"chains = {self.chains} of {self.sampled} clients show each client's model to the next, "
                f"which {self.algorithm['name']} does not protect: leave chains out."
            )

    @property
    def sampled(self) -> int:
        """M, how many clients take part in a round."""
        return sampled(self.sample, self.clients)

    @property
    def split(self) -> str:
        """What models are evaluated on: the test split, or one for validation."""
        return "validation" if self.validation else "test"

    @property
    def dealing_seed(self) -> int:
        """The seed of who holds which example."""
        chosen = (self.global_seed, self.partition_seed, self.seed)
        return next(s for s in chosen if s is not None)


def _several_or_none(name: str, given: Sequence[Any]) -> tuple[Any, ...]:
    """What a list names; the word none, or an empty text, stands for an empty list."""
    words = ("", "none")
    if len(given) == 1 and given[0] in words:
        return ()
    if "none" in given:
        raise UserError(
            f"config: {name} = none stands for an empty list, so that nothing else can be beside it."
        )
    return tuple(given)


def _one_of_several(registry: specs.Registry, spec: Spec) -> Spec:
    """As it is written down: a text stays one, a class or an instance becomes the mapping that makes it."""
    made = registry.make(spec)
    return own_modules.absolute(spec) if isinstance(spec, str) else registry.spec(made)


def sampled(sample: float, clients: int) -> int:
    """How many clients a setting of ``sample``, a number or a share of them, stands for."""
    return max(1, round(sample * clients)) if isinstance(sample, float) else sample


def _count_or_share(sample: float, clients: int) -> int | float:
    """A share of clients below 1, else how many: what is written down cannot be read as the other."""
    if not isinstance(sample, float) or sample < 1:
        return sample
    if sample != 1 and not sample.is_integer():
        raise UserError(
            f"sample = {sample:g} is no number of clients: give a whole number, or a share of at most 1.0."
        )
    return clients if sample == 1 else int(sample)


# What may differ between a run and its continuation: how far and where, not what.
MAY_CHANGE = (
    *("rounds", "backend", "workers", "device"),
    *("checkpoint_every", "keep_every", "evaluate_every", "measures", "sinks"),
)


def what(config: Config) -> dict[str, Any]:
    """The part of a config that may not differ between a run and its continuation."""
    return {k: v for k, v in as_dict(config).items() if k not in MAY_CHANGE}


def make(values: Mapping[str, Any]) -> Config:
    """A config from outside values, each checked."""
    values = dict(values)
    if "training" in values and not isinstance(values["training"], Recipe):
        values["training"] = specs.build(Recipe, _mapping(values["training"], "training"), "training")
    known = [f.name for cls in (Config, Recipe) for f in fields(cls)]
    for key in values:  # those of the training may be meant, too
        if key not in {f.name for f in fields(Config)}:
            if key in known:
                raise UserError(f"config has {key!r} among those of the training: give training.{key}.")
            raise UserError(f"config has no {key!r}; {nearest(key, known)}")
    return specs.build(Config, values, "config")


def begun(values: Mapping[str, Any]) -> Config:
    """The config of a run that was begun earlier, perhaps before a setting existed: with its default.

    That is not the default of ``normalisation`` for every algorithm: all runs had the data's statistics.
    A share of 1.0 was taken for one client, and is no longer written down.
    """
    lacking = next((key for key in NEEDED if key not in values), None)
    if lacking is not None:
        raise UserError(f"the saved config is damaged: it has no {lacking!r}.")
    values = without_gone(values)
    if isinstance(values.get("sample"), float) and values["sample"] == 1:
        values = {**values, "sample": 1}
    return make({"normalisation": "data", **values})


def without_gone(values: Mapping[str, Any]) -> dict[str, Any]:
    """A saved config without what no setting says any more.

    Algorithms with teachers had a ``teacher_seed`` of their own for what now follows from the run's seed.
    """
    algorithm = values.get("algorithm")
    if not isinstance(algorithm, Mapping) or str(algorithm.get("name")) not in ALGORITHMS:
        return dict(values)
    return {**values, "algorithm": {k: v for k, v in algorithm.items() if k != "teacher_seed"}}


def in_full(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with those of the local training, which may be named alone, by their dotted keys."""
    recipe = {f.name for f in fields(Recipe)}
    return {f"training.{k}" if k in recipe else k: v for k, v in settings.items()}


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a config has them; those of the local training may be named alone, and any be dotted."""
    known = in_full(settings)
    plain = {k: v for k, v in known.items() if "." not in k}
    return override(plain, {k: v for k, v in known.items() if "." in k})


class _Plain(yaml.SafeLoader):
    """Plain values, as `yaml.safe_load` reads them, and no deeper than a config ever is."""

    def fetch_flow_collection_start(self, token: Any) -> None:
        if self.flow_level >= DEEPEST:
            raise yaml.YAMLError(f"more than {DEEPEST} brackets within one another")
        super().fetch_flow_collection_start(token)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        written = [key.value for key, _ in node.value]
        twice = next((key for key in written if written.count(key) > 1), None)
        if twice is not None:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: it says {twice} twice")
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:
        """A whole number, unless it is written as few know that YAML reads it: 010 is 8, and 1:30 is 90."""
        found = int(super().construct_yaml_int(node))
        written = node.value.replace("_", "").lstrip("+-")
        if ":" in written or (written.isdecimal() and written != str(abs(found))):
            where = f"line {node.start_mark.line + 1}"
            raise yaml.YAMLError(f"{where}: {node.value} is {found} in YAML: write the number that is meant")
        return found


_Plain.add_constructor("tag:yaml.org,2002:int", _Plain.construct_yaml_int)


def load(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        found = _Plain(path.read_text(encoding="utf-8")).get_single_data()
    except OSError as error:
        raise UserError(f"config {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"config {path} cannot be read: {error}.") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"config {path} is not valid YAML: {' '.join(str(error).split())}.") from error
    if path.suffix == ".toml" and not isinstance(found, Mapping):
        raise UserError(f"config {path} is TOML: write it as YAML, which has key: value for key = value.")
    return _mapping(found if found is not None else {}, f"config {path}")


def override(values: Mapping[str, Any], assignments: Mapping[str, Any]) -> dict[str, Any]:
    """The values with dotted keys (``training.lr``, ``algorithm.beta``) replaced."""
    result = dict(values)
    for key, value in assignments.items():
        head, _, rest = key.partition(".")
        if not rest:
            result[head] = value
            continue
        inner = result.get(head, {})
        if isinstance(inner, str) and head in REGISTRIES:  # "fedntd:beta=2" as a mapping
            name, placed = REGISTRIES[head].placed(inner)
            inner = placed | {"name": name}
        elif dataclasses.is_dataclass(inner) and not isinstance(inner, type):
            inner = specs.plain(inner)
        elif head in REGISTRIES and not inner:
            default = getattr(Config, head)
            inner = REGISTRIES[head].spec(REGISTRIES[head].make(default))
        inner = _mapping(inner, head)
        if head in REGISTRIES and specs.is_spec(inner):
            known = REGISTRIES[head].cls(inner["name"])
            whole = specs.gathered(known, {**inner, rest: value})
            if rest not in whole:  # an entry of a mapping, whose key may have dots
                result[head] = whole
                continue
        result[head] = override(inner, {rest: value})
    return result


def merged(begun: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was begun with what is given in its place, of two mappings key by key.

    One of another name is another thing, and stands for itself.
    """
    if given.get("name", begun.get("name")) != begun.get("name"):
        return dict(given)
    result = {str(key): value for key, value in begun.items()}  # as JSON has them, also of a mapping's own
    for key, value in given.items():
        key = str(key)
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def differing(a: Mapping[str, Any], b: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The dotted keys at which two configs' values differ, with both."""
    for key in {**a, **b}:
        one, other = a.get(key), b.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from differing(one, other, f"{head}{key}.")
        elif one != other:
            yield f"{head}{key}", one, other


def as_dict(config: Config) -> dict[str, Any]:
    """The effective config as JSON and YAML hold it; `make` takes it back."""
    values = specs.plain(config)
    return {
        **values,
        "training": specs.plain(config.training),
        "measures": list(config.measures),
        "sinks": list(config.sinks),
    }


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be a mapping of keys to values, not {shown(value)}.")
    return {str(k): v for k, v in value.items()}
