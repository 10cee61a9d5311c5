"""Every figure on the digits that come with the package: ``python -m tools.gallery docs``.

Makes the runs (a few minutes on two cores), draws all figures from them, and writes ``gallery.md`` with
the pictures in ``gallery/`` beside it. The runs are far too short to say which algorithm is better: the
page shows what each figure looks like.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from fedrecall import config as configs
from fedrecall import files, provenance
from fedrecall.experiment import Experiment
from fedrecall.reports.figures import FIGURES, draw

COLOURS = 96  # of a committed picture, which keeps it small
MOST_BYTES = 60_000


class Picture(NamedTuple):
    """A figure with its options, and the runs to draw it from."""

    figure: str
    runs: tuple[str, ...]


_BASE = {"dataset": "digits", "model": "cnn", "backend": "serial", "training.lr": 0.05}
_PARALLEL = {**_BASE, "clients": 20, "sample": 5, "rounds": 12, "training.local_epochs": 3}
_SHARDS = {**_PARALLEL, "partition": "shards:2"}
_LDA = {**_PARALLEL, "partition": "lda:0.1"}
_SEEN = {"measures": ["locals", "personal", "divergence"]}
_FEW = {
    **_BASE,
    "clients": 10,
    "sample": 10,
    "rounds": 8,
    "partition": "dirichlet:0.5",
    "auxiliary_per_class": 64,
    "training.local_epochs": 3,
    "measures": ["locals"],
}
_CHAIN = {
    **_BASE,
    "clients": 20,
    "sample": 6,
    "rounds": 8,
    "partition": "dirichlet:0.2",
    "training.local_epochs": 2,
    "training.momentum": 0,
}

RUNS: dict[str, dict[str, Any]] = {
    "fedavg-shards-0": {**_SHARDS, **_SEEN, "algorithm": "fedavg"},
    "fedavg-shards-1": {**_SHARDS, **_SEEN, "algorithm": "fedavg", "seed": 1},
    "fedntd-shards-0": {**_SHARDS, **_SEEN, "algorithm": "fedntd"},
    "fedntd-shards-1": {**_SHARDS, **_SEEN, "algorithm": "fedntd", "seed": 1},
    "fedkd-shards-0": {**_SHARDS, **_SEEN, "algorithm": "fedntd:kd_mix=0"},
    "fedavg-lda-0": {**_LDA, **_SEEN, "algorithm": "fedavg"},
    "fedntd-lda-0": {**_LDA, **_SEEN, "algorithm": "fedntd"},
    "fedavg-lda5-0": {**_PARALLEL, "partition": "lda:0.5", "algorithm": "fedavg"},
    "fedavg-iid-0": {**_PARALLEL, "partition": "iid", "algorithm": "fedavg"},
    "beta-0.3": {**_SHARDS, "algorithm": "fedntd:beta=0.3"},
    "beta-3": {**_SHARDS, "algorithm": "fedntd:beta=3"},
    "tau-0.5": {**_SHARDS, "algorithm": "fedntd:tau=0.5"},
    "tau-3": {**_SHARDS, "algorithm": "fedntd:tau=3"},
    "circle-fedavg": {
        **_PARALLEL,
        "partition": "iid",
        "model": "circle",
        "training.lr": 0.01,
        "algorithm": "fedavg",
    },
    "circle-fedntd": {
        **_PARALLEL,
        "partition": "iid",
        "model": "circle",
        "training.lr": 0.01,
        "algorithm": "fedntd",
    },
    **{f"few-{a}": {**_FEW, "algorithm": a} for a in ("fedavg", "fedlsd", "fedcad", "fedssd")},
    **{f"few-{p}": {**_FEW, "algorithm": "fedavg", "partition": p} for p in ("iid", "classes:2")},
    **{f"half-{a}": {**_FEW, "algorithm": a, "sample": 5} for a in ("fedavg", "fedssd")},
    **{
        f"epochs-{e}-{a}": {**_FEW, "algorithm": a, "training.local_epochs": e}
        for e in (1, 6)
        for a in ("fedavg", "fedssd")
    },
    **{
        f"seq-{p}": {**_CHAIN, "algorithm": "fedseq", "partition": p, "clients": 10, "sample": 10}
        | {"rounds": 6, "measures": ["chain"]}
        for p in ("dirichlet:100", "dirichlet:1", "dirichlet:0.2")
    },
    **{
        f"chain-{a}": {**_CHAIN, "algorithm": a}
        for a in (
            "fedseq",
            "sfedkd",
            "sfedkd:teachers=0",
            "sfedkd:teachers=3",
            "sfedkd:gamma=0.5",
            "sfedkd:gamma=2",
            "sfedkd:beta=1",
            "sfedkd:beta=5",
        )
    },
    **{
        f"arguments-{a}-{key.split('.')[-1]}": {**_CHAIN, "algorithm": a, key: value}
        for a in ("fedseq", "sfedkd")
        for key, value in (
            ("training.local_epochs", 1),
            ("rounds", 4),
            ("sample", 3),
            ("partition", "dirichlet:1"),
        )
    },
}

_AVG, _NTD = ("fedavg-shards-0", "fedavg-shards-1"), ("fedntd-shards-0", "fedntd-shards-1")
_BOTH = (_AVG[0], _NTD[0])
_SWEEP = (*_BOTH, "beta-0.3", "beta-3", "tau-0.5", "tau-3")
_FOUR = tuple(f"few-{a}" for a in ("fedavg", "fedlsd", "fedcad", "fedssd"))
_TEACHERS = ("chain-sfedkd:teachers=0", "chain-sfedkd:teachers=3", "chain-sfedkd")

PICTURES = (
    Picture("fedntd/fig2", (*_AVG, "fedavg-lda-0", "fedavg-lda5-0", "fedavg-iid-0")),
    Picture("fedntd/fig3", ("fedavg-lda-0",)),
    Picture("fedntd/fig4", _BOTH),
    Picture("fedntd/fig6:clients=5,epochs=6", _BOTH),
    Picture("fedntd/fig7", (*_AVG, *_NTD, "fedavg-lda-0", "fedntd-lda-0")),
    Picture("fedntd/fig8", (*_AVG, *_NTD)),
    Picture("fedntd/fig10", _BOTH),
    Picture("fedntd/fig11", (*_AVG, *_NTD, "fedkd-shards-0")),
    Picture("fedntd/fig12", (*_AVG, *_NTD, "fedavg-lda-0", "fedntd-lda-0")),
    Picture("fedntd/fig13", (*_AVG, *_NTD, "fedavg-lda-0", "fedntd-lda-0")),
    Picture("fedntd/fig14:examples=100,points=7,draws=3", _BOTH),
    Picture("fedntd/fig15", _SWEEP),
    Picture("fedntd/fig16", _SWEEP),
    Picture("fedntd/fig17:clients=3", _BOTH),
    Picture("fedntd/fig18:averaged=5,partition=shards:2", ("circle-fedavg", "circle-fedntd")),
    Picture("fedntd/fig19:clients=5,examples=60", ("fedavg-shards-0",)),
    Picture("fedntd/fig20:clients=5,examples=60", ("fedavg-shards-0",)),
    Picture("fedntd/fig21:clients=4,examples=60", ("fedavg-shards-0",)),
    Picture("fedcad/fig1", _FOUR),
    Picture("fedcad/fig2:epochs=5", ("few-fedavg",)),
    Picture("fedssd/fig2", ("few-fedavg", "few-iid", "few-classes:2")),
    Picture("fedssd/fig3", ("few-fedavg",)),
    Picture("fedssd/fig4:epochs=5", ("few-fedavg",)),
    Picture("fedssd/fig6", ("few-fedavg", "few-classes:2")),
    Picture("fedssd/fig7", _FOUR),
    Picture("fedssd/fig8", ("few-fedavg", "few-fedssd", "half-fedavg", "half-fedssd")),
    Picture(
        "fedssd/fig9",
        ("few-fedavg", "few-fedssd", *(f"epochs-{e}-{a}" for e in (1, 6) for a in ("fedavg", "fedssd"))),
    ),
    Picture("sfedkd/fig1", ("seq-dirichlet:100", "seq-dirichlet:1", "seq-dirichlet:0.2")),
    Picture(
        "sfedkd/fig3",
        ("chain-sfedkd", *(f"chain-sfedkd:{v}" for v in ("gamma=0.5", "gamma=2", "beta=1", "beta=5"))),
    ),
    Picture("sfedkd/fig4", _TEACHERS),
    Picture(
        "sfedkd/fig5",
        (
            "chain-fedseq",
            "chain-sfedkd",
            *(
                f"arguments-{a}-{k}"
                for a in ("fedseq", "sfedkd")
                for k in ("local_epochs", "rounds", "sample", "partition")
            ),
        ),
    ),
    Picture("sfedkd/fig6", _TEACHERS),
    Picture("sfedkd/fig7", _TEACHERS),
)


def gallery(docs: Path, runs: Path | None = None, workers: int | None = None) -> Path:
    """Make the runs (or take those that ``runs`` holds already), draw everything, write the page."""
    since = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fedrecall-gallery-") as scratch:
        folder = Path(scratch) / "runs" if runs is None else runs
        todo = [name for name in RUNS if not _finished(folder / name)]
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            workers or os.cpu_count(), mp_context=spawn, initializer=_one_thread
        ) as pool:
            list(pool.map(_run, [folder / name for name in todo], [RUNS[name] for name in todo]))
            jobs = [
                (p, [folder / r for r in p.runs], Path(scratch) / "drawn", docs / "gallery") for p in PICTURES
            ]
            captions = list(pool.map(_draw, *zip(*jobs, strict=True)))
    seconds = time.perf_counter() - since if len(todo) == len(RUNS) else None
    page = docs / "gallery.md"
    files.write(page, _page(captions, seconds).encode())
    return page


def _one_thread() -> None:
    torch.set_num_threads(1)


def _finished(folder: Path) -> bool:
    return (folder / "metrics.jsonl").exists()


def _run(folder: Path, settings: dict[str, Any]) -> None:
    Experiment(configs.make(configs.nested(settings)), folder).run()


def _draw(picture: Picture, runs: Sequence[Path], drawn: Path, out: Path) -> str:
    made = draw(picture.figure, runs, drawn)
    with Image.open(made.files[0]) as opened:
        image = opened.convert("RGB")
    content = _small(image)
    while len(content) > MOST_BYTES:
        image = image.resize((image.width * 4 // 5, image.height * 4 // 5), Image.Resampling.LANCZOS)
        content = _small(image)
    files.write(out / made.files[0].name, content)
    return made.caption


def _small(image: Image.Image) -> bytes:
    content = BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(content, format="PNG", optimize=True)
    return content.getvalue()


def _page(captions: Sequence[str], seconds: float | None) -> str:
    here = provenance.environment()
    took = f" in {seconds:.0f} s" if seconds is not None else ""
    lines = [
        "# Gallery",
        "",
        "Every figure that `fedrecall figure NAME RUN…` can draw, on the digits that come with the package.",
        f"`python -m tools.gallery docs` played {len(RUNS)} short runs and drew them{took}, on",
        f"{here['cpu']}, torch {here['versions']['torch']}, {here['started'][:10]}.",
        "The runs are a dozen rounds of one or two seeds: they show what the figures look like, not which",
        "algorithm is better. The commands for the papers' own settings are in [measures.md](measures.md).",
        "",
    ]
    for picture, caption in zip(PICTURES, captions, strict=True):
        name = FIGURES.parse(picture.figure)[0]
        title = (FIGURES.cls(name).__doc__ or "").strip().splitlines()[0]
        picture_file = f"gallery/{name.replace('/', '-')}.png"
        lines += [f"## {name}", "", title, "", f"![{name}]({picture_file})", "", caption, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("docs", type=Path, help="folder to write gallery.md and gallery/ into")
    parser.add_argument(
        "--runs", type=Path, help="folder to keep the runs in, and to take finished ones from"
    )
    given = parser.parse_args()
    gallery(given.docs, given.runs)
