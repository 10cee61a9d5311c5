"""`fedrecall list`, `show`, `partition`, `doctor`: what there is, and what it would do."""

import io
import os
import platform
from collections.abc import Sequence
from dataclasses import MISSING, is_dataclass
from importlib import metadata
from inspect import cleandoc, signature
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fedrecall import config as configs
from fedrecall import files, payloads, privacy, provenance, trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import keeps_own
from fedrecall.backends import BACKENDS
from fedrecall.cli.app import app, out
from fedrecall.cli.options import DataRoot, Set, Settings, gather, with_config
from fedrecall.cli.progress import OF_WHAT_TRAVELS, megabytes
from fedrecall.data import datasets, partitions
from fedrecall.data.datasets import DATASETS, Dataset
from fedrecall.data.partitions import PARTITIONS
from fedrecall.errors import UserError, nearest, sentence
from fedrecall.fields import Field, fields
from fedrecall.ingredients import describe, federate
from fedrecall.measures import MEASURES
from fedrecall.models import kernels
from fedrecall.models.model import Model
from fedrecall.models.networks import MODELS, build, factory_of
from fedrecall.processors import cores
from fedrecall.sinks import SINKS
from fedrecall.specs import Registry
from fedrecall.training import Recipe

KINDS: dict[str, Registry] = {
    "algorithms": ALGORITHMS,
    "datasets": DATASETS,
    "partitions": PARTITIONS,
    "models": MODELS,
    "measures": MEASURES,
    "sinks": SINKS,
}


def _kind(word: str, *besides: str) -> Registry:
    plural = word if word.endswith("s") else word + "s"
    if plural == "figures":  # it brings matplotlib, which nobody else here needs
        from fedrecall.reports.figures import FIGURES

        return FIGURES
    if plural not in KINDS:
        raise UserError(f"there are no {word!r} to show; {nearest(plural, [*KINDS, 'figures', *besides])}")
    return KINDS[plural]


@app.command("list")
def list_command(
    kind: Annotated[
        str,
        typer.Argument(help="algorithms, datasets, partitions, models, measures, figures, sinks or papers."),
    ],
) -> None:
    """List what can be named on the command line and in a config.

    Example: fedrecall list algorithms
    """
    if kind.startswith("paper"):
        from fedrecall.cli import papers

        out.print(papers.overview())
        papers.say(papers.pointer())
        return
    registry = _kind(kind, "papers")
    shown = Table(box=None, pad_edge=False)
    shown.add_column("name", style="bold", no_wrap=True)
    shown.add_column("parameters")
    shown.add_column("what it is")
    for name in registry:
        cls = registry.cls(name)
        parameters = ", ".join(_assignment(f) for f in fields(cls))
        shown.add_row(name, Text(parameters), Text(summary(cls)))
    out.print(shown)


@app.command("show")
def show_command(
    kind: Annotated[
        str, typer.Argument(help="algorithm, dataset, partition, model, measure, figure, sink or paper.")
    ],
    name: Annotated[str, typer.Argument(help="Its name, as `fedrecall list` prints it.")],
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="Of an algorithm: the network that its bytes are measured with (default: cnn, or resnet10).",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Of an algorithm: whose examples that network is for (default: digits).",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Explain one algorithm, data set, partition, model, measure, figure, sink, or paper's table.

    Example: fedrecall show algorithm fedntd
    """
    if (model or dataset) and not kind.startswith("algorithm"):
        raise UserError(f"show {kind}: --model and --dataset are what an algorithm is measured with.")
    if kind in ("paper", "papers"):
        from fedrecall.cli import papers

        papers.show(name)
        return
    registry = _kind(kind, "papers")
    chosen, _, _ = registry.parse(name)
    own = factory_of(chosen) if registry is MODELS and ":" in chosen else None
    cls: Any = registry.cls(chosen) if own is None else own
    out.print(Panel(Text(flowing(cls.__doc__ or "")), title=Text(chosen), title_align="left"))
    if own is not None and not is_dataclass(own):  # a network, or a function that makes one
        out.print(f"called as {own.__name__}{signature(own)}", soft_wrap=True, markup=False, highlight=False)
        return
    if known := fields(cls):
        shown = Table("parameter", "default", "allowed", "meaning", box=None, pad_edge=False)
        for f in known:
            default = "(needed)" if _is_missing(f.default) else str(f.default)
            shown.add_row(Text(f.name, "bold"), Text(default), Text(f"{f.allowed}{f.how}"), Text(f.doc))
        out.print(shown)
    if kind.startswith("figure"):
        out.print(f"needs {cls.needs}. For example:", soft_wrap=True, markup=False)
        for command in cls.commands:
            out.print(f"  {command}", soft_wrap=True, markup=False, highlight=False)
    if registry is ALGORITHMS:
        algorithm = ALGORITHMS.make(name)
        out.print(_protections(algorithm))
        networks = ("cnn", "resnet10") if model is None else (model,)
        out.print(_footprint(algorithm, networks, datasets.load(dataset or "digits", root=data_root)))


def flowing(doc: str) -> str:
    """A docstring with a line for each paragraph, for any width; lists and indented lines stay."""
    paragraphs = [p.split("\n") for p in cleandoc(doc).split("\n\n")]
    return "\n\n".join(
        ("\n" if any(line[:1] in (" ", "-", "*") for line in lines) else " ").join(lines)
        for lines in paragraphs
    )


def _protections(algorithm: Any) -> Table:
    """What can keep the server from learning one client's upload."""
    shown = Table(show_header=False, box=None, pad_edge=False)
    shown.add_row("differential privacy", Text(_noise(algorithm)))
    shown.add_row("secure aggregation", Text(_summing(algorithm)))
    if keeps_own(algorithm):
        shown.add_row("accuracy", Text(OF_WHAT_TRAVELS))
    return shown


def _noise(algorithm: Any) -> str:
    if isinstance(algorithm, privacy.Private):
        return "this is it"
    try:
        why = privacy.protectable(algorithm)
    except UserError as error:
        return f"not known: {error}"
    return "yes, with private" if why is None else f"no: {why}"


def _summing(algorithm: Any) -> str:
    try:
        enough, by_examples = (privacy.sums(algorithm, equal=equal) for equal in (True, False))
    except UserError as error:
        return f"not known: {error}"
    if not enough:
        return "no: the server needs more of the uploads than their mean"
    chains = ", where every client is a chain of its own" if algorithm.sequential else ""
    return ("by examples or with equal weights" if by_examples else "with equal weights") + chains


def _footprint(algorithm: Any, networks: Sequence[str], dataset: Dataset) -> Group:
    """What travels and what is remembered, for the first of the networks that the algorithm runs with."""
    shape, classes = dataset.shape, dataset.classes
    refused: list[Exception] = []
    for network in networks:
        try:
            model = Model(algorithm.equip(build(network, shape, classes)))
            found = payloads.declared(algorithm, model, shape, classes)
            break
        except Exception as error:  # whatever somebody's own code makes of a network that is not his
            refused.append(error)
    else:
        first, *others = refused
        why = str(first) if isinstance(first, UserError) else f"{type(first).__name__}: {first}"
        nor = f" (nor with {' or '.join(networks[1:])})" if others else ""
        raise UserError(
            f"it could not be measured with {networks[0]} on {dataset.name}{nor}: {sentence(why)} Give "
            "--model and --dataset that it is for."
        ) from first
    one = trees.size_in_bytes(model.initial())
    title = f"measured with {network} on {dataset.name} ({megabytes(one)} MB), in the first round"
    shown = Table(box=None)
    for heading in ("where", "what", "bytes", "of a model"):
        shown.add_column(heading, justify="right" if heading in ("bytes", "of a model") else "left")
    for where, tree in (("down", found.down), ("up", found.up), ("memory", found.memory)):
        for part in tree._fields:
            size = trees.size_in_bytes(getattr(tree, part))
            shown.add_row(where, part, f"{size:,}", f"{size / one:.2f} ×")
        if not tree._fields:
            shown.add_row(where, "nothing", "0", "0")
    if algorithm.auxiliary_per_class:
        shown.add_row("server", f"{algorithm.auxiliary_per_class} auxiliary examples per class", "", "")
    return Group(title, shown)


@app.command("partition")
@with_config(
    without=(
        *("algorithm", "model", "initial", *(f.name for f in fields(Recipe)), "precision"),
        *("sample", "chains", "augmentation", "test_augmentation", *configs.MAY_CHANGE, "on_failure"),
    )
)
def partition_command(
    *,
    set_: Set = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write the partition as JSON.", show_default=False)
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw it: a .png, .pdf or .svg file.", show_default=False)
    ] = None,
    data_root: DataRoot = None,
    settings: Settings,
) -> None:
    """Show who gets what: clients × classes as a chart and in numbers.

    Example: fedrecall partition --dataset digits --partition shards:2 --clients 20
    """
    values = gather(None, settings, set_)
    config = configs.make(values)
    dataset = datasets.load(config.dataset, root=data_root)
    federation = federate(config, dataset, ALGORITHMS.make(config.algorithm))
    counts = federation.counts
    out.print(_chart(counts, dataset.class_names, federation.origins))
    sizes, owned = counts.sum(1), (counts > 0).sum(1)
    shown = Table(box=None, pad_edge=False)
    for heading in ("", "least", "median", "most"):
        shown.add_column(heading, justify="right" if heading else "left")
    for what, values_ in (
        ("examples a client", sizes),
        ("classes a client", owned),
        ("clients a class", (counts > 0).sum(0)),
    ):
        shown.add_row(what, f"{values_.min()}", f"{np.median(values_):g}", f"{values_.max()}")
    out.print(shown)
    if save is not None:
        parts, told = describe(federation)
        settings = {key: getattr(config, key) for key in _DEALT_BY}
        with files.placing(save):
            partitions.save(save, parts, {**settings, **told, "data": provenance.facts(dataset)})
        out.print(f"partition: {save}", markup=False)
    if picture is not None:
        drawn = draw_partition(counts, dataset.class_names, picture)
        out.print(f"picture: {drawn}", markup=False)


_DEALT_BY = ("dataset", "partition", "clients", "validation", "seed", "partition_seed", "global_seed")
SHADES = " ░▒▓█"


def _chart(counts: np.ndarray, names: tuple[str, ...], origins: list[list[str]] | None) -> Text:
    """A row a client and a column a class, darker where a client has more of it, and where that is from."""
    most = max(int(counts.max()), 1)
    wide = 2 if len(names) <= 30 else 1
    label = len(str(len(counts) - 1))
    text = Text("client  classes " + f"{names[0]} … {names[-1]}\n", style="dim")
    shown = range(len(counts)) if len(counts) <= 60 else [*range(50), len(counts) - 1]
    for k in shown:
        if len(counts) > 60 and k == len(counts) - 1:
            text.append(f"{'…':>{label}}\n")
        cells = "".join(SHADES[-(-(len(SHADES) - 1) * int(c) // most)] * wide for c in counts[k])
        text.append(f"{k:>{label}} ")
        text.append(cells)
        own = [] if origins is None else origins[k]
        told = "".join(f"  {name}" for name in own[:3]) + (f"  and {len(own) - 3} more" if own[3:] else "")
        text.append(f" {int(counts[k].sum())}{told}\n", style="dim")
    return text


WIDEST = 200.0
"""Inches of a picture; there are viewers, and formats, that take no more than some ten thousand dots."""


def draw_partition(counts: np.ndarray, names: tuple[str, ...], path: Path) -> Path:
    """The chart as a picture, bubbles of clients × classes; returns its path (.png if no kind is named)."""
    from matplotlib.figure import Figure

    if path.name and not path.suffix:
        path = path.with_name(f"{path.name}.png")

    width, height = max(4.0, 0.14 * len(counts)), max(2.5, 0.28 * len(names))
    figure = Figure(figsize=(min(width, WIDEST), min(height, WIDEST)), layout="constrained")
    axes = figure.subplots()
    clients, classes = np.nonzero(counts)
    sizes = counts[clients, classes]
    axes.scatter(clients, classes, s=120 * sizes / counts.max(), color="#0072B2")
    axes.set(xlabel="client", ylabel="class", title="examples of each class at each client (area)")
    if len(names) <= 30:
        axes.set_yticks(range(len(names)), names)
    content = io.BytesIO()
    try:
        figure.savefig(content, format=path.suffix[1:])
    except ValueError as error:
        raise UserError(f"cannot draw {path}: {error}.") from error
    with files.placing(path):
        files.write(path, content.getvalue())
    return path


@app.command("doctor")
def doctor_command(data_root: DataRoot = None) -> None:
    """Say what this machine offers: versions, threads, GPU, extras, data sets.

    Example: fedrecall doctor --data-root FOLDER
    """
    import torch

    shown = Table(show_header=False, box=None, pad_edge=False)
    for package in ("fedrecall", "torch", "numpy", "datasets", "safetensors"):
        shown.add_row(package, _version(package) or "not installed")
    shown.add_row("Python", platform.python_version())
    shown.add_row("threads", f"{torch.get_num_threads()}")
    shown.add_row("cores", f"{cores()} of {os.cpu_count()} may be used")
    shown.add_row("bfloat16 on CPU", f"{'faster' if kernels.FAST_BFLOAT16 else 'slower'} than float32")
    shown.add_row("GPU", torch.cuda.get_device_name() if torch.cuda.is_available() else "none")
    shown.add_row("backends", ", ".join(BACKENDS))
    for extra, package in {"ray": "ray", "flower": "flwr", "dp": "dp-accounting"}.items():
        version = _version(package)
        shown.add_row(f"extra {extra}", Text(version or f"not installed: pip install 'fedrecall[{extra}]'"))
    sinks = [s for s in ("tensorboard", "mlflow", "wandb", "trackio") if _version(s)]
    shown.add_row("sinks", Text(", ".join(sinks) or "none installed: pip install 'fedrecall[sinks]'"))
    out.print(shown)
    out.print("\ndata sets that can be opened without a network:")
    if (lacking := datasets.missing_root(data_root)) is not None:
        named = "--data-root" if data_root is not None else "FEDRECALL_DATA"
        out.print(
            f"  there is no folder {lacking}, which {named} names: what is looked for there is not here.",
            markup=False,
            soft_wrap=True,
        )
    for found in datasets.available(data_root):
        out.print(
            f"  {found.name:15}{'yes' if found.here else 'no ':4} {found.where}", markup=False, soft_wrap=True
        )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def summary(cls: type) -> str:
    """The first sentence of a docstring."""
    lines = (cls.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(lines.split())


def _assignment(field: Field) -> str:
    return field.name if _is_missing(field.default) else f"{field.name}={field.default}"


def _is_missing(default: Any) -> bool:
    return default is MISSING
