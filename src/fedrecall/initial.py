"""The model that a run begins with where its seed does not draw it: another run's, or a file's."""

import stat
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from fedrecall import config as configs
from fedrecall import files, trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.errors import Missing, UserError
from fedrecall.models.model import Weights
from fedrecall.models.trained import Inputs
from fedrecall.records import INPUTS, RunFolder


def check(place: str) -> None:
    """Raise UserError unless a run or a file is there."""
    path = files.expanded(place)
    if not (RunFolder(path).started if files.found(path, stat.S_ISDIR) else files.found(path)):
        raise Missing(f"initial: {place} is neither a run folder nor a file: name one of them.")


def loaded(place: str, drawn: Weights, class_names: Sequence[str]) -> Weights:
    """The weights there instead of those that were drawn, or UserError if they are of another network."""
    check(place)
    path = files.expanded(place)
    if files.found(path, stat.S_ISDIR):
        flat = _of_run(path, drawn)
        _tell_other_classes(path, class_names)
    else:
        inside = {name.partition("/")[2]: name for name in trees.arrays(drawn)}  # a network knows no parts
        flat = {inside.get(name, name): t for name, t in files.read_arrays(path).items()}
    _check(place, flat, trees.arrays(drawn))
    weights = trees.restore(drawn, flat, f"initial: {place}")
    if not trees.finite(weights):
        raise UserError(f"initial: {place} holds numbers that are not finite: give another one.")
    return trees.transform(lambda t, like: t.to(like.dtype), weights, drawn)


def saved(algorithm: FedAvg, drawn: Weights, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arrays of the weights in a checkpoint of the algorithm, by their paths in weights such as these."""
    state = algorithm.start(drawn)
    places = {id(tensor): path for path, tensor in reversed(list(trees.leaves(state)))}
    # Where the algorithm keeps its model: `private` within what the protected one keeps.
    name, tensor = next(trees.leaves(state.weights))
    before = places[id(tensor)].removesuffix(name)
    return {
        path.removeprefix(before): t
        for path, t in arrays.items()
        if path.startswith(tuple(f"{before}{part}/" for part in Weights._fields))
    }


def digest(weights: Weights) -> str:
    """What tells weights from others."""
    return files.checksum(files.packed(trees.arrays(weights)))


def _of_run(path: Path, drawn: Weights) -> dict[str, Tensor]:
    """Those of the newest checkpoint that can be read."""
    folder, refused = RunFolder(path), list[str]()
    newest = next(folder.checkpoints(refused, remembering=False), None)
    if newest is None:
        raise UserError(" ".join([f"initial: {path} has no saved model: name another run.", *refused[:1]]))
    spec = configs.without_gone(folder.config()).get("algorithm")
    return saved(ALGORITHMS.make(spec), drawn, newest.arrays)


def _check(place: str, flat: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    remedy = "give weights of the network that the run trains."
    for name, like in wanted.items():
        word = name.partition("/")[2]
        if name not in flat:
            raise UserError(f"initial: {place} lacks {word}: {remedy}")
        if (shape := list(flat[name].shape)) != list(like.shape):
            raise UserError(
                f"initial: {word} is {shape} in {place}, and {list(like.shape)} in the network: {remedy}"
            )
    if extra := sorted(flat.keys() - wanted.keys()):
        word = extra[0].removeprefix("params/")
        raise UserError(f"initial: {place} has {word}, which the network lacks: {remedy}")


def _tell_other_classes(path: Path, class_names: Sequence[str]) -> None:
    if not files.found(path / INPUTS):  # earlier versions did not note it
        return
    before = Inputs.load(path / INPUTS).class_names
    if before != tuple(class_names):
        warnings.warn(
            f"initial: {path} was trained on the classes {', '.join(before)}, in this order, and here they "
            f"are {', '.join(class_names)}.",
            RuntimeWarning,
        )
