"""Bad input of every kind that is read from outside, and what may come of it: use, or one sentence.

Everything drawn is keyed: the same numbers of inputs are the same inputs.
"""

import contextlib
import copy
import csv
import io
import json
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib.font_manager  # noqa: F401  it starts a program when it is first imported
import numpy as np
import torch
import typer.main
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image
from tests.torture.watch import watched

import fedrecall
from fedrecall import cli, files, trees
from fedrecall import config as configs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.cli import papers
from fedrecall.cli.app import COMMANDS, app
from fedrecall.cli.commands.predict import predict_command
from fedrecall.data import partitions
from fedrecall.data.datasets import DATASETS, export, load
from fedrecall.data.partitions import PARTITIONS
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment
from fedrecall.measures import MEASURES, costs
from fedrecall.models.networks import MODELS
from fedrecall.papers import results
from fedrecall.records import RunFolder
from fedrecall.reports import report
from fedrecall.reports.figures import FIGURES
from fedrecall.reports.runs import Run

Check = Callable[[Any], None]


@dataclass(frozen=True)
class Campaign:
    """One kind of input."""

    inputs: st.SearchStrategy[Any]
    use: Check
    """Uses an input; may raise UserError, and nothing else."""
    folders: tuple[Path, ...]
    """Where it may write."""


def attack(campaign: Campaign, count: int, key: int) -> Counter[str]:
    """Use so many inputs; how many were used and how many refused."""
    outcomes: Counter[str] = Counter()

    @seed(key)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(campaign.inputs)
    def one(value: Any) -> None:
        with watched(*campaign.folders):
            try:
                campaign.use(value)
                outcomes["used"] += 1
            except UserError as error:
                _sentence(str(error))
                outcomes["refused"] += 1

    one()
    return outcomes


def _sentence(text: str) -> None:
    assert 0 < len(text) < 5_000, "nothing is said, or too much"


# Values, bytes and trees of values that are wrong in some way.

huge = st.sampled_from([2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, 1e308, 5e-324])
_ODD = "| |:|,|=|\0|..|../..|/|~|nan|inf|-inf|1e999|true|null|{}|[bold]|\\|\\["
_ODD += "|\u202e|\ud800|𝟙|１２|1_0|0x10|%s|{0}|$HOME|\n|'"
odd = st.sampled_from([*_ODD.split("|"), '"'])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 30),
    huge,
    st.floats(),
    st.text(max_size=8),
    odd,
    st.binary(max_size=4),
)
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(odd, st.text(max_size=5)), inner, max_size=3)
    ),
    max_leaves=6,
)
plain_junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 30), huge, st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a tree of JSON something stands."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value[:4]):
            yield from places(inner, (*path, i))


def changed(value: Any, path: tuple[Any, ...], other: Any, how: str) -> Any:
    """A tree with something else at a place, without it, or with it twice."""
    if not path:
        return other
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if how == "delete":
        del inner[path[-1]]
    elif how == "double" and isinstance(inner, list):
        inner.append(copy.deepcopy(inner[path[-1]]))
    elif how == "rename" and isinstance(inner, dict):
        inner[f"{path[-1]}x"] = inner.pop(path[-1])
    else:
        inner[path[-1]] = other
    return value


def trees_like(value: Any, inner: st.SearchStrategy[Any] = plain_junk) -> st.SearchStrategy[Any]:
    """Trees of JSON that differ from this one at one or two places."""
    where = st.sampled_from(list(places(value)))
    how = st.sampled_from(["replace", "replace", "delete", "double", "rename"])

    def twice(first: Any, second: Any) -> Any:
        found = value
        for path, other, kind in filter(None, (first, second)):
            with contextlib.suppress(KeyError, IndexError, TypeError, AttributeError):
                found = changed(found, path, other, kind)
        return found

    change = st.tuples(where, inner, how)
    return st.builds(twice, change, st.one_of(st.none(), change))


def bytes_like(content: bytes) -> st.SearchStrategy[bytes]:
    """Contents that differ from this one: bytes flipped, cut off, put in, or altogether others."""
    n = len(content)
    place = st.integers(0, max(n - 1, 0))
    flip = st.builds(
        lambda i, bit: content[:i] + bytes([content[i] ^ bit]) + content[i + 1 :] if n else b"",
        place,
        st.integers(1, 255),
    )
    cut = st.builds(lambda i: content[:i], place)
    put = st.builds(lambda i, b: content[:i] + b + content[i:], place, st.binary(min_size=1, max_size=9))
    over = st.builds(
        lambda i, b: content[:i] + b + content[i + len(b) :], place, st.binary(min_size=1, max_size=64)
    )
    return st.one_of(flip, cut, put, over, st.binary(max_size=40))


# Configs.

_WORDS = {
    "algorithm": [*ALGORITHMS, "fedntd:beta=2", "file.py:X", "no.module:X", "a:b", "..:x", ":x"],
    "dataset": [*DATASETS, "synthetic:3,train=50", "folder:nowhere", "folder"],
    "partition": [*PARTITIONS, "lda:0.1,balance=false", "shards:2", "classes:3"],
    "model": [*MODELS, "mlp:8+4", "nn.py:Net", "a.b:c"],
    "measures": [*MEASURES, "locals:2"],
    "sinks": ["tensorboard", "nobody"],
    "augmentation": ["crop+flip", "cutout:4", "none", "crop:"],
    "backend": ["serial", "processes", "vectorised:chunk=2", "nobody"],
}


def spec_text(words: list[str]) -> st.SearchStrategy[str]:
    """A name with values after it, or something like it."""
    value = st.one_of(odd, st.integers(-2, 99).map(str), huge.map(lambda v: str(v)[:40]), st.text(max_size=4))
    part = st.one_of(
        value, st.builds("{}={}".format, st.sampled_from(["beta", "s", "alpha", "tau", "x"]), value)
    )
    return st.builds(
        lambda name, parts: name + (":" + ",".join(parts) if parts else ""),
        st.one_of(st.sampled_from(words), odd),
        st.lists(part, max_size=3),
    )


def config_values() -> st.SearchStrategy[dict[str, Any]]:
    """Mappings with a config's keys and others, and all sorts of values."""
    base = configs.as_dict(configs.make({"dataset": "synthetic", "model": "mlp"}))
    named = st.one_of(
        [st.fixed_dictionaries({key: st.one_of(spec_text(words), st.lists(spec_text(words), max_size=2))})
         for key, words in _WORDS.items()]
    )  # fmt: skip
    key = st.one_of(st.sampled_from([*base, *base["training"]]), odd, st.text(max_size=6))
    flat = st.dictionaries(key, junk, max_size=3)
    dotted = st.dictionaries(st.builds("{}.{}".format, key, key), junk, max_size=2)
    return st.one_of(
        trees_like(base, junk).filter(lambda v: isinstance(v, dict)),
        st.builds(lambda a, b: {**a, **b}, named, flat),
        st.builds(lambda a, b: {**a, "": b}, flat, dotted),
        flat,
    )


def use_config(values: dict[str, Any]) -> None:
    """Make a config, and again from what it writes down of itself."""
    dotted = values.pop("", None)
    if isinstance(dotted, dict):
        values = configs.override(values, dotted)
    made = configs.make(values)
    if isinstance(made.model, dict):
        return  # what it holds is checked when the network is made
    text = json.dumps(configs.as_dict(made))
    assert configs.make(json.loads(text)) == made


_YAML = """\
algorithm: {name: fedntd, beta: 1.5}
dataset: digits
partition: lda:0.3
training:
  lr: 0.05
  local_epochs: 2
clients: 10
sample: 0.5
measures: [locals]
"""
_BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 10)}]\n" for a, b in zip("abcdefghij", "bcdefghijk", strict=True)
)
_NASTY = [
    "!!python/object/apply:os.system ['touch pwned']",
    "algorithm: !!python/name:os.system",
    _BOMB,
    _BOMB + "clients: *k\n",
    "algorithm: &a [*a]",
    "? [a]\n: b",
    "rounds: !!binary aGVsbG8=",
    "seed: 2026-11-20",
    "seed: 1:1:1:1",
    "clients: .inf",
    "training: {lr: .nan}",
    "clients: 0x" + "f" * 5000,
    "{" * 3000,
    "- " * 3000,
    "<<: [a]",
    "a: !!set {x, y}",
    "training: !!omap [a: 1]",
]


def yaml_files(folder: Path) -> Campaign:
    """YAML files."""
    path = folder / "config.yaml"

    def use(content: bytes) -> None:
        path.write_bytes(content)
        use_config(configs.load(path))

    written = plain_junk.map(lambda v: yaml.dump({"training": v, "seed": v}).encode())
    other = st.one_of(st.sampled_from([n.encode() for n in _NASTY]), st.text().map(str.encode), written)
    return Campaign(st.one_of(bytes_like(_YAML.encode()), other), use, (folder,))


# The command line: all that it says it takes.

GROUP: Any = typer.main.get_command(app)
TAKES: dict[str, list[Any]] = {name: GROUP.get_command(None, name).params for name in COMMANDS}
"""The arguments and options of every command."""
GIVEN = {
    # Arguments.
    "config": ["config.yaml", "run/config.json", "nowhere.yaml", "run", "fedntd"],
    "algorithms": ["fedavg", "fedntd:beta=2", "scaffold", "fedseq", "fedprox:mu=x", "nn.py:X", "nobody"],
    "name": ["fedntd", "iid", "digits", "mlp", "locals", "nobody", "fedntd/table1", "fedcad/fig1",
             "sfedkd/time_to_accuracy", "fedntd/nobody", *FIGURES],
    "runs": ["run", "run", ".", "nowhere", "run/config.json", "config.yaml"],
    "run": ["run", "run", "nowhere", ".", "x.png"],
    "examples": ["x.png", "x.png", "large.png", "broken.png", "t.csv", "nowhere.png", "run"],
    "kind": ["algorithms", "algorithm", "datasets", "partition", "models", "measure", "figure", "figures",
             "sinks", "papers", "nobody"],
    # Options.
    "--algorithm": _WORDS["algorithm"],
    "--dataset": ["digits", "synthetic:3,train=50,test=9,size=4", "folder:nowhere", "nobody"],
    "--partition": _WORDS["partition"],
    "--model": ["mlp:4", "cnn:4", "nobody", "nn.py:Net", "resnet10:width=1"],
    "--initial": ["run", "nowhere", "x.png", "."],
    "--clients": ["1", "5", "0", "-1", "1e3", "x", "99999999999999999999"],
    "--sample": ["1", "0.5", "2", "0", "nan", "1e999"],
    "--chains": ["1", "2", "99"],
    "--rounds": ["1", "2", "0", "-5", "1.5"],
    "--local-epochs": ["1", "0"],
    "--batch-size": ["7", "0", "1e9"],
    "--lr": ["0.1", "1e30", "-1", "nan", "0"],
    "--lr-decay": ["1", "0.5", "0", "2"],
    "--momentum": ["0.9", "1", "2"],
    "--weight-decay": ["0", "0.1", "-1", "1e400"],
    "--stragglers": ["0", "0.5", "1", "1.1", "-1", "nan"],
    "--seed": ["0", "7", "-1", "9" * 30],
    "--partition-seed": ["0", "-1", "x"],
    "--global-seed": ["0", "5", "9" * 30],
    "--precision": ["float64", "float16", "bfloat16"],
    "--normalisation": ["none", "dataset", "x"],
    "--auxiliary-per-class": ["0", "2", "9999", "-1"],
    "--validation": ["0", "0.1", "0.999", "1", "-1"],
    "--measure": ["locals", "confusion:locals=true", "fairness", "nobody"],
    "--sink": ["nobody", "tensorboard"],
    "--backend": ["serial", "nobody", "vectorised:chunk=0"],
    "--workers": ["1", "0"],
    "--device": ["cpu", "cuda", "meta", "xla:9", "nobody"],
    "--augmentation": ["flip", "crop:99", "none"],
    "--test-augmentation": ["flip", "none", "crop:-1"],
    "--evaluate-every": ["1", "3"],
    "--checkpoint-every": ["1", "2", "0"],
    "--keep-every": ["2", "0", "-1"],
    "--on-failure": ["exclude", "stop", "x"],
    "--set": ["training.lr=0.2", "algorithm.beta=2", "x", "=", "a.b.c=1", "training=1", "model.x=1"],
    "--over": ["lr=0.01,0.1", "partition=iid,lda:0.5", "rounds=1,1", "seed=1,2", "x", "=,", "clients=2,x"],
    "--config": ["config.yaml", "run/config.json", "nowhere.yaml", "x.png"],
    "--columns": ["cifar10/shard2", "mnist", "x", ","],
    "--methods": ["fedavg", "fedavg,fedntd:beta=2", "nn.py:X", "fedntd:", ","],
    "--switch": ["constant-lr", "lenet+no-cutout", "x", "+"],
    "--results": ["results", "nowhere", "run", "config.yaml"],
    "--from": ["run", "nowhere", "."],
    "--seeds": ["0", "1", "2", "-1", "x"],
    "--target": ["0.5", "x", "nan", "-1"],
    "--baseline": ["fedavg", "scaffold", "nobody"],
    "--title": ["", "<b>", "x"],
    "--every": ["1", "0", "nan", "1e9"],
    "--round": ["1", "0", "-1", "9" * 30],
    "--client": ["0", "1", "99", "-1", "x", "9" * 30],
    "--memory": ["run", "nowhere", "x.png"],
    "--data-root": ["nowhere", "."],
    "--out": ["out", "run", "a/b", "run/config.json", "\udcff"],
    "--json": ["a.json", "run", "nowhere/a.json", "run/config.json"],
    "--csv": ["a.csv", "x.png", "nowhere/a.csv"],
    "--table": ["t.tex", "t.csv", "t.md", "x.png", "nowhere/t.tex"],
    "--save": ["p.json", "run", "nowhere/p.json"],
    "--picture": ["p.png", "p.svg", "p.x", "nowhere/p.png"],
}  # fmt: skip
"""Good and bad values of every argument and of every option that takes one."""
READ = ("--config", "--data-root", "--from", "--memory")
"""Options that name a path and write nothing there."""
_SHORT = ["--rounds=1", "--clients=3", "--sample=1", "--local-epochs=1", "--model=mlp:4", "--backend=serial",
          "--dataset=synthetic:3,train=50,test=9,size=4"]  # fmt: skip
_FIRST = {"run": _SHORT, "compare": _SHORT, "partition": _SHORT[-1:], "reproduce": ["--rounds=1"],
          "watch": ["--once"]}  # fmt: skip
"""What makes a command a matter of a moment, unless something after it says otherwise."""


def called(taken: Any) -> str:
    """By what an argument's or option's values are found."""
    return str(taken.name if taken.param_type_name == "argument" else taken.opts[-1])


def console() -> io.TextIOWrapper:
    """As a terminal's, which takes no text that is none."""
    return io.TextIOWrapper(io.BytesIO(), "utf-8")


def stays(path: str) -> bool:
    """Whether it is within the working folder."""
    return not os.path.isabs(path) and ".." not in Path(path).parts


EVERY = (*COMMANDS, *COMMANDS, "run", "compare", "nobody")


def argument_lists(commands: Sequence[str] = EVERY) -> st.SearchStrategy[list[str]]:
    """Command lines: one of the commands, with good and bad values of what it takes, and words."""
    word = st.one_of(
        st.sampled_from(["run", "nowhere", "fedntd", "--help", "--", "-", "--resume", "--nobody", "-s"]),
        odd.filter(lambda w: "\0" not in w and "\ud800" not in w),
        st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=6),
    )

    def value(taken: Any) -> st.SearchStrategy[str]:
        known = st.sampled_from(GIVEN[called(taken)])
        writes = isinstance(taken.type, typer.models.TyperPath) and called(taken) not in READ
        other = word.filter(stays) if writes and taken.param_type_name == "option" else word
        return st.one_of(known, known, known, other)

    def option(taken: Any) -> st.SearchStrategy[list[str]]:
        name = st.sampled_from(taken.opts)
        if taken.is_flag:
            return name.map(lambda n: [n])
        return st.tuples(name, value(taken)).map(list)

    def argument(taken: Any) -> st.SearchStrategy[list[str]]:
        return st.lists(value(taken), min_size=taken.required, max_size=1 if taken.nargs == 1 else 2)

    def flat(found: Any) -> list[str]:
        return [w for some in found for w in some]

    def line(command: str) -> st.SearchStrategy[list[str]]:
        own = TAKES.get(command, ())
        arguments = [argument(p) for p in own if p.param_type_name == "argument"]
        options = [option(p) for p in own if p.param_type_name == "option"]
        several = st.lists(st.one_of(options), max_size=4) if options else st.just([])
        rest = st.one_of(st.just([]), st.just([]), st.just([]), st.lists(word, max_size=2))
        first = [command, *_FIRST.get(command, ())]
        return st.builds(
            lambda a, o, r: [*first, *flat(a), *flat(o), *r], st.tuples(*arguments), several, rest
        )

    lines = {command: line(command) for command in commands}  # made once: there are hundreds
    return st.sampled_from(commands).flatmap(lambda command: lines[command])


def command_lines(folder: Path) -> Campaign:
    """Command lines in a folder with a run, a config and examples in it, and no data set anywhere."""
    base, whole, nothing = folder / "cwd", folder / "whole", folder / "nothing"
    nothing.mkdir()
    small_run(whole / "run", rounds=1)
    (whole / "config.yaml").write_text(_YAML + "rounds: 1\nmodel: mlp:4\n")
    for name, content in {"x.png": picture(), "large.png": picture(9), "broken.png": picture()[:40]}.items():
        (whole / name).write_bytes(content)
    (whole / "t.csv").write_text("a,b\n1,2\n")
    papers.overview()  # what it reads is kept, and is no command's own time
    here = {"MPLCONFIGDIR": folder, "FEDRECALL_DATA": nothing, "FEDRECALL_CACHE": folder / "cache"}

    def use(arguments: list[str]) -> None:
        shutil.rmtree(base, ignore_errors=True)
        shutil.copytree(whole, base)
        said = console()
        before = os.getcwd()
        os.chdir(base)
        try:
            with (
                mock.patch.dict(os.environ, {name: str(path) for name, path in here.items()}),
                mock.patch.object(sys, "argv", ["fedrecall", *arguments]),
                contextlib.redirect_stdout(said),
                contextlib.redirect_stderr(said),
            ):
                cli.main()
        except SystemExit as done:
            said.flush()
            _exit(done.code, said.buffer.getvalue().decode())
        finally:
            os.chdir(before)

    return Campaign(argument_lists(), use, (folder,))


def _exit(code: Any, said: str) -> None:
    assert code in (0, 1, 2, None), code
    assert "Traceback" not in said
    if code:
        raise UserError("refused")


# Run folders.

SMALL = {
    "algorithm": "scaffold",
    "dataset": "synthetic:classes=3,train=60,test=30,size=4",
    "model": "mlp:4",
    "clients": 4,
    "sample": 2,
    "rounds": 2,
    "partition": "iid",
    "backend": "serial",
    "precision": "float64",
    "training.local_epochs": 1,
}


def small_run(folder: Path, **changes: Any) -> Any:
    """A run in a moment."""
    return fedrecall.run(folder, **{**SMALL, **changes})


def partition_files(folder: Path) -> Campaign:
    """partition.json."""
    path = folder / "partition.json"
    partitions.save(
        path, [np.array([0, 2]), np.array([1, 3, 5])], {"counts": [[1, 1]], "class_names": ["a", "b"]}
    )
    content = path.read_bytes()

    def use(content: bytes) -> None:
        path.write_bytes(content)
        parts, _ = partitions.load(path, 6)
        together = np.concatenate(parts)
        assert len(set(together.tolist())) == len(together)
        assert all(p.dtype == np.int64 and (p >= 0).all() and (p < 6).all() for p in parts)

    inputs = st.one_of(bytes_like(content), trees_like(json.loads(content)).map(_json))
    return Campaign(inputs, use, (folder,))


def _json(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def checkpoints(folder: Path) -> Campaign:
    """A run folder of which one file of its newest checkpoint was changed: the one before is used."""
    run, whole = folder / "run", folder / "whole"
    small_run(whole)
    shutil.copytree(whole, run)
    sound = {c.round_number: c for c in RunFolder(whole).checkpoints()}
    newest = sound[2]
    paths = [run / "checkpoints" / "round-000002.json", run / "checkpoints" / "round-000002.safetensors"]
    paths += [run / "memories" / n for n in newest.memories.values() if n not in sound[1].memories.values()]
    contents = {p: p.read_bytes() for p in paths}

    def use(change: tuple[Path, bytes]) -> None:
        path, content = change
        try:
            path.write_bytes(content)
            found = list(RunFolder(run).checkpoints())
            same = content == contents[path]
            if not same and path.suffix == ".json":  # white space is no damage
                with contextlib.suppress(ValueError, RecursionError):
                    same = json.loads(content) == json.loads(contents[path])
            assert [c.round_number for c in found] == ([2, 1] if same else [1])
            for checkpoint in found:
                expected = sound[checkpoint.round_number]
                assert checkpoint.memories == expected.memories
                assert all(torch.equal(t, expected.arrays[n]) for n, t in checkpoint.arrays.items())
            if not same:
                raise UserError("passed over")
        finally:
            path.write_bytes(contents[path])

    inputs = st.one_of([st.tuples(st.just(p), bytes_like(c)) for p, c in contents.items()])
    return Campaign(inputs, use, (folder,))


def forged_checkpoints(folder: Path) -> Campaign:
    """Checkpoints with a right checksum and a wrong content, resumed."""
    run, whole = folder / "run", folder / "whole"
    small_run(whole)
    manifest = json.loads((whole / "checkpoints" / "round-000002.json").read_text())
    manifest.pop("checksum")
    arrays = files.read_arrays(whole / "checkpoints" / "round-000002.safetensors")
    config = configs.make(configs.override({k: v for k, v in SMALL.items() if "." not in k},
                                           {k: v for k, v in SMALL.items() if "." in k}))  # fmt: skip
    names = sorted(arrays)
    tensor = st.one_of(
        st.just(None), st.builds(torch.zeros, st.lists(st.integers(0, 3), max_size=3).map(tuple)),
        st.just(torch.full((1,), math.nan)), st.just(torch.zeros(2, dtype=torch.int64)),
    )  # fmt: skip

    def use(change: tuple[Any, tuple[str, torch.Tensor | None] | None]) -> None:
        from fedrecall import records

        held, swap = change
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        if swap is not None:
            name, value = swap
            other = {n: t for n, t in arrays.items() if n != name or value is not None}
            if value is not None:
                other[name] = value
            digest = files.write_arrays(run / "checkpoints" / "round-000002.safetensors", other)
            if isinstance(held, dict) and "arrays" in held:
                held = {**held, "arrays": digest}
        if isinstance(held, dict):
            held = {**held, "checksum": records._digest(held)}
        (run / "checkpoints" / "round-000002.json").write_bytes(_json(held))
        Experiment(config, run, resume=True).run()

    only_weights = [n for n in names if n.startswith("weights/")]
    inputs = st.one_of(
        st.tuples(trees_like(manifest), st.none()),
        st.tuples(st.just(manifest), st.tuples(st.sampled_from(only_weights), tensor)),
    )
    return Campaign(inputs, use, (folder,))


def run_files(folder: Path) -> Campaign:
    """A run folder of which config, partition, metrics or made was changed: resumed, and reported."""
    run, whole = folder / "run", folder / "whole"
    small_run(whole, measures=["locals", "confusion", "divergence"])
    names = ["metrics.jsonl", "config.json", "partition.json", "made.json"]
    contents = {name: (whole / name).read_bytes() for name in names}
    lines = [json.loads(line) for line in contents["metrics.jsonl"].splitlines()]

    def use(change: tuple[str, bytes, bool]) -> None:
        name, content, page = change
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        (run / name).write_bytes(content)
        found = Run(run)
        if page:
            report.build([found])
            return
        costs.cost(found.records)
        found.series("accuracy"), found.series("class_accuracy"), found.counts, found.distributions
        Experiment(configs.make(RunFolder(run).config()), run, resume=True).run()

    def text(values: list[Any]) -> bytes:
        return b"".join(_json(v) + b"\n" for v in values)

    metrics = trees_like(lines).map(lambda v: text(v) if isinstance(v, list) else _json(v))
    others = [st.tuples(st.just(n), trees_like(json.loads(contents[n])).map(_json)) for n in names[1:]]
    flipped = [st.tuples(st.just(n), bytes_like(c)) for n, c in contents.items()]
    both = st.one_of(st.tuples(st.just("metrics.jsonl"), metrics), *others, *flipped)
    page = st.sampled_from([False, False, False, True])
    return Campaign(st.builds(lambda b, p: (*b, p), both, page), use, (folder,))


def result_files(folder: Path) -> Campaign:
    """A kept result of a paper's table."""
    made = small_run(folder / "run")
    kept = results.outcome(made.config, list(made.history), [{"cpu": "y"}, {"cpu": "x"}])
    path = results.save(kept, folder)
    content = path.read_bytes()

    def use(content: bytes) -> None:
        path.write_bytes(content)
        for found in results.Results.load(folder):
            assert found.done == len(found.forgetting)
            json.dumps(found.as_dict()), found.machines

    inputs = st.one_of(bytes_like(content), trees_like(json.loads(content)).map(_json))
    return Campaign(inputs, use, (folder,))


# What a trained model is asked, and what it says of its inputs.


def _table_of(rows: int, *labels: str) -> str:
    given = [f"{i},{i * i},{labels[i % len(labels)]}\n" for i in range(rows)]
    return "a,b,label\n" + "".join(given)


def _models(folder: Path) -> dict[str, Path]:
    """A run on images and one on a table, by how the examples' files end."""
    found = {".png": folder / "images", ".csv": folder / "table"}
    (folder / "data").mkdir()
    (folder / "data" / "t.csv").write_text(_table_of(12, "x", "y"))
    small_run(found[".png"], rounds=1)
    data = {"dataset": f"folder:{folder / 'data'}", "clients": 2, "sample": 1}
    small_run(found[".csv"], rounds=1, **data)
    return found


def _predict(run: Path, example: Path, told: Path, **options: Any) -> None:
    with contextlib.redirect_stdout(console()):
        predict_command(run, [example], csv_=told, **options)
    with told.open(newline="") as file:  # a name may hold what else ends lines
        (_, _, *names), *rows = csv.reader(file)
    assert rows
    for _, best, *shares in rows:
        assert abs(sum(map(float, shares)) - 1) < 1e-4
        assert max(shares) in [s for n, s in zip(names, shares, strict=True) if n == best]


def examples(folder: Path) -> Campaign:
    """Images and tables that `predict` is given."""
    runs, text = _models(folder), _table_of(3, "x", "y")
    pictures = [picture(), picture(5), picture(mode="RGB"), picture(mode="I;16"), picture(mode="RGBA"),
                picture(mode="P"), picture(mode="F", kind="TIFF"), picture(kind="GIF")]  # fmt: skip
    cell = st.one_of(odd, st.text(max_size=5), st.sampled_from(["1.5", "1,5", "1e999", "1e300", ""]))
    with_other = st.builds(with_cell, st.just(text), st.integers(0, 3), st.integers(0, 2), cell)
    tables = st.one_of(bytes_like(text.encode()), with_other)
    images = st.one_of(st.sampled_from(pictures), st.sampled_from(pictures).flatmap(bytes_like))

    def use(given: tuple[tuple[str, bytes], str, bool]) -> None:
        (kind, content), name, resize = given
        shutil.rmtree(folder / "here", ignore_errors=True)
        example = folder / "here" / f"{name}{kind}"
        example.parent.mkdir()
        example.write_bytes(content)
        _predict(runs[kind], example, folder / "told" / "a.csv", resize=resize)

    given = st.one_of(st.tuples(st.just(".png"), images), st.tuples(st.just(".csv"), tables))
    name = st.sampled_from(["x", "x", "a,b", "[bold]", "\udcff", "n\n", "-", "é"])
    return Campaign(st.tuples(given, name, st.booleans()), use, (folder,))


def run_inputs(folder: Path) -> Campaign:
    """A run folder of which what its model is given was changed: asked."""
    runs = _models(folder)
    sound = {".png": picture(), ".csv": _table_of(3, "x", "y").encode()}
    contents = {kind: (run / "inputs.json").read_bytes() for kind, run in runs.items()}
    for kind, content in sound.items():
        (folder / f"example{kind}").write_bytes(content)

    def use(given: tuple[str, bytes]) -> None:
        kind, content = given
        (runs[kind] / "inputs.json").write_bytes(content)
        _predict(runs[kind], folder / f"example{kind}", folder / "told" / "a.csv")

    number = st.one_of(st.integers(-1, 5), huge, st.floats())
    part = st.one_of(
        st.tuples(st.sampled_from(["shape", "mean", "std"]), st.lists(number, min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["class_names", "columns"]), st.lists(odd, min_size=1, max_size=3)),
    )

    def with_part(content: bytes) -> st.SearchStrategy[bytes]:
        return part.map(lambda other: _json({**json.loads(content), other[0]: other[1]}))

    changed = [
        st.tuples(st.just(kind), some)
        for kind, content in contents.items()
        for some in (trees_like(json.loads(content)).map(_json), bytes_like(content), with_part(content))
    ]
    return Campaign(st.one_of(changed), use, (folder,))


# Data set folders.


def picture(size: int = 4, mode: str = "L", kind: str = "PNG") -> bytes:
    """An image file."""
    out = io.BytesIO()
    Image.new(mode, (size, size), 7).save(out, kind)
    return out.getvalue()


def image_folders(folder: Path) -> Campaign:
    """Images in a folder per class of which something is wrong."""
    data, cache, secret = folder / "data", folder / "cache", folder / "secret.png"
    secret.write_bytes(picture(mode="RGB"))
    pictures = [picture(), picture(5), picture(mode="RGB"), picture(mode="RGBA"), picture(mode="I;16"),
                picture(mode="P"), picture(kind="JPEG"), picture(kind="GIF"), picture(kind="BMP"),
                picture(mode="F", kind="TIFF"), picture(kind="WEBP", mode="RGB")]  # fmt: skip
    content = st.one_of(st.sampled_from(pictures), st.sampled_from(pictures).flatmap(bytes_like))
    name = st.sampled_from(["a/1.png", "a/2.png", "b/1.png", "b/2.jpg", "train/a/1.png", "test/a/1.png",
                            "1.png", "a/b/1.png", ".hidden/1.png", "a/.x.png", "c\udcff/1.png",
                            "a/\udcff.png", "a/n\n.png", "[a]/1.png", "a/x.txt", "validation/b/3.png",
                            "train/b/2.png", "a/3.csv"])  # fmt: skip
    special = st.sampled_from(["fifo", "outside", "loop", "dangling", "folder", "device", "inside", "up"])
    entry = st.tuples(name, st.one_of(content, content, content, special))

    def use(given: tuple[list[tuple[str, bytes | str]], str]) -> None:
        entries, options = given
        shutil.rmtree(data, ignore_errors=True)
        shutil.rmtree(cache, ignore_errors=True)
        data.mkdir()
        for name, content in entries:
            path = data / name
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)  # else a pipe would be written to
                if isinstance(content, bytes):
                    path.write_bytes(content)
                elif content == "fifo":
                    os.mkfifo(path)
                elif content == "folder":
                    path.mkdir()
                else:
                    aims = {"outside": secret, "loop": path.name, "dangling": "nothing",
                            "device": "/dev/zero", "up": "../..",
                            "inside": "../a/1.png"}  # fmt: skip
                    path.symlink_to(aims[content])
        found = load(f"folder:{data}{options}", cache=cache)
        _sound(found)

    base = [("a/1.png", picture()), ("a/2.png", picture()), ("b/1.png", picture()), ("b/2.png", picture())]
    inputs = st.tuples(
        st.lists(entry, max_size=3).map(lambda more: base + more),
        st.sampled_from(["", "", ",size=6", ",held_out=0.9"]),
    )
    return Campaign(inputs, use, (folder,))


def _sound(found: Any) -> None:
    for split in (found.train, found.test):
        assert len(split.x) == len(split.y) > 0
        assert 0 <= int(split.y.min()) <= int(split.y.max()) < found.classes
        assert split.x.shape[1:] == found.train.x.shape[1:]
    assert trees.finite((found.mean, found.std, found.train.x, found.test.x))


def with_cell(text: str, row: int, column: int, value: str) -> bytes:
    """A table with something else in one place."""
    rows = [line.split(",") for line in text.splitlines()]
    row %= len(rows)
    rows[row][column % len(rows[row])] = value
    return ("\n".join(",".join(r) for r in rows) + "\n").encode("utf-8", "surrogatepass")


def tables(folder: Path) -> Campaign:
    """CSV files of numbers or image paths, of which something is wrong."""
    data, cache = folder / "data", folder / "cache"
    numbers = "a,b,label\n" + "".join(f"{i},{i * i},{'xy'[i % 2]}\n" for i in range(8))
    paths = "image,label\n" + "".join(f"{i}.png,{i % 2}\n" for i in range(6))
    cell = st.one_of(
        odd, st.text(max_size=5), st.sampled_from(["1.5", "../secret.png", "/etc/passwd", "0.png", "\0.png"])
    )

    text = st.sampled_from([numbers, paths])
    inputs = st.one_of(
        text.map(str.encode).flatmap(bytes_like),
        st.builds(with_cell, text, st.integers(0, 9), st.integers(0, 3), cell),
    )

    def use(content: bytes) -> None:
        shutil.rmtree(data, ignore_errors=True)
        shutil.rmtree(cache, ignore_errors=True)
        data.mkdir()
        for i in range(6):
            (data / f"{i}.png").write_bytes(picture())
        (data / "t.csv").write_bytes(content)
        _sound(load(f"folder:{data}", cache=cache))

    return Campaign(inputs, use, (folder,))


def exports(folder: Path) -> Campaign:
    """What `export` wrote, changed."""
    data, whole = folder / "data", folder / "whole"
    export(load("synthetic:classes=3,train=20,test=10,size=2"), whole)
    contents = {p.name: p.read_bytes() for p in whole.iterdir()}
    index = json.loads(contents["dataset.json"])
    archived = io.BytesIO()
    np.savez(archived, array=np.array([object()], dtype=object))
    bare = io.BytesIO()
    np.save(bare, np.zeros(3))
    part = next(n for n in contents if n.endswith(".npz"))

    def use(change: tuple[str, bytes]) -> None:
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(whole, data)
        (data / change[0]).write_bytes(change[1])
        _sound(load(f"folder:{data}"))

    inputs = st.one_of(
        st.tuples(st.just("dataset.json"), trees_like(index).map(_json)),
        st.one_of([st.tuples(st.just(n), bytes_like(c)) for n, c in contents.items()]),
        st.tuples(st.just(part), st.sampled_from([archived.getvalue(), bare.getvalue(), b""])),
    )
    return Campaign(inputs, use, (folder,))


def parquet_files(folder: Path) -> Campaign:
    """Parquet files of images, changed or of other columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data, cache = folder / "data", folder / "cache"

    def table(images: Any, labels: Any) -> bytes:
        out = io.BytesIO()
        pq.write_table(pa.table({"image": images, "label": labels}), out)
        return out.getvalue()

    good = [{"bytes": picture(), "path": None}] * 6
    contents = [
        table(good, [0, 1] * 3),
        table(good, ["a", "b"] * 3),
        table(good, [0.5] * 6),
        table(good, [None, 1] * 3),
        table(good, [[1]] * 6),
        table([{"bytes": picture(), "path": None}, {"bytes": picture(6), "path": None}] * 3, [0, 1] * 3),
        table([1] * 6, [0, 1] * 3),
        table([{"bytes": None, "path": "/etc/passwd"}] * 6, [0, 1] * 3),
        table([{"bytes": None, "path": "http://127.0.0.1:9/x.png"}] * 6, [0, 1] * 3),
        table(good[:0], pa.array([], pa.int64())),
    ]

    def use(content: bytes) -> None:
        shutil.rmtree(data, ignore_errors=True)
        shutil.rmtree(cache, ignore_errors=True)
        data.mkdir()
        (data / "train.parquet").write_bytes(content)
        _sound(load(f"folder:{data}", cache=cache))

    return Campaign(st.one_of(st.sampled_from(contents), bytes_like(contents[0])), use, (folder,))


def config_mappings(folder: Path) -> Campaign:
    """Mappings as they come from Python, YAML or JSON."""
    return Campaign(config_values(), use_config, (folder,))


CAMPAIGNS: dict[str, tuple[Callable[[Path], Campaign], int]] = {
    "configs": (config_mappings, 3000),
    "YAML files": (yaml_files, 1500),
    "command lines": (command_lines, 1000),
    "partition files": (partition_files, 1200),
    "checkpoints with a changed byte": (checkpoints, 1500),
    "forged checkpoints": (forged_checkpoints, 200),
    "files of a run": (run_files, 600),
    "result files": (result_files, 800),
    "inputs of a model": (run_inputs, 600),
    "examples to predict": (examples, 600),
    "image folders": (image_folders, 500),
    "CSV files": (tables, 500),
    "exported data": (exports, 700),
    "parquet files": (parquet_files, 100),
}
"""Every kind of input, and how many of them the long test uses."""
