"""How fast fedrecall is on this machine's CPU, beside a loop written by hand for each algorithm.

    python -m benchmarks.bench                 # everything; writes benchmarks/results/bench.json
    python -m benchmarks.bench --only floor --repeats 5
    python -m benchmarks.bench --table         # docs/performance.md anew from what was written

W1: CIFAR-10 (random images of its shape where it is not at hand: the same speed), 100 clients shards:2
(500 images each), 10 sampled, E = 5, B = 50, `cnn`, crop + flip + Cutout, SGD 0.01/0.9/1e-5, no
evaluation. Who is compared takes turns round by round, so that a busy machine slows all of them alike;
a ratio is the median over the turns of product over floor.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as the command line does

import torch

from benchmarks.floor import Floor, Trainer
from fedrecall import config as configs
from fedrecall import rounds
from fedrecall.backends import open_backend
from fedrecall.backends.backend import Work
from fedrecall.backends.processes import Nursery, Processes
from fedrecall.data.datasets import load
from fedrecall.data.store import Dataset, Split
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment
from fedrecall.files import read_json, write_json
from fedrecall.processors import cores

RESULTS = Path(__file__).parent / "results" / "bench.json"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
W1 = {
    "partition": "shards:2",
    "model": "cnn",
    "clients": 100,
    "sample": 10,
    "augmentation": "crop+flip+cutout",
}
BARS = {"fedavg": 1.05, "fedntd": 1.05, "scaffold": 1.10, "sfedkd": 1.10}
"""How many times the floor a round may take."""
OUTSIDE, START, COPIES, WHOLE = 0.15, 3.0, 1.2, 600.0
"""At most: seconds of a round outside training and from a bare interpreter to the first results, copies of
the data in all processes together, seconds of all of this."""


def synthetic(count: int, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> Dataset:
    stream = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, *shape), generator=stream, dtype=torch.uint8)
    y = torch.arange(count) % classes
    split = Split(x, y)
    test = Split(x[:classes], y[:classes])
    moments = torch.full((shape[0],), 0.5), torch.full((shape[0],), 0.25)
    return Dataset("synthetic", tuple(map(str, range(classes))), split, test, *moments)


def cifar10() -> Dataset:
    try:
        return load("cifar10")
    except UserError:
        return synthetic(50_000)


class Product:
    """Rounds of fedrecall, one at a time."""

    def __init__(self, dataset: Dataset, backend: str, **settings: Any):
        config = configs.make({"rounds": 1000, "backend": backend, **settings})
        self.run = run = Experiment(config, dataset=dataset)
        self.chains = config.chains or (1 if run.algorithm.sequential else config.sampled)
        work = Work(run.algorithm, run.model, config.training, run.federation, config.seed, self.chains)
        self.backend = open_backend(backend, replace(work, workers=config.workers))
        self.outside: list[float] = []
        """Seconds of each round beyond its visits' own, which means something with one worker."""

    def round(self, number: int, clients: int | None = None, sampled: Sequence[int] | None = None) -> float:
        """Play one round, with as many clients as configured or fewer, or with these; the loss."""
        run, config = self.run, self.run.config
        if sampled is None:
            sampled = rounds.sample(config.clients, clients or config.sampled, config.seed, number)
        count = len(sampled)
        since = time.perf_counter()
        played = rounds.play(
            run.algorithm,
            run.model,
            run.server,
            run.memories,
            self.backend,
            run.federation.auxiliary,
            population=config.clients,
            sampled=sampled,
            chain_count=min(self.chains, count),
            round_number=number,
        )
        run.server = played.server
        self.outside.append(time.perf_counter() - since - sum(v.seconds for v in played.visits))
        self.loss = statistics.fmean(v.loss for v in played.visits)
        return self.loss

    def close(self) -> None:
        """End the workers."""
        self.backend.close()
        self.run.memories.close()


def take_turns(players: Mapping[str, Callable[[int], Any]], turns: int) -> dict[str, list[float]]:
    """Seconds of each player's rounds 2, 3, ...; round 1 of each warms up. Who begins changes."""
    seconds: dict[str, list[float]] = {name: [] for name in players}
    names = list(players)
    for turn in range(turns + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            since = time.perf_counter()
            players[name](turn + 1)
            if turn:
                seconds[name].append(time.perf_counter() - since)
    return seconds


def summary(seconds: Mapping[str, list[float]], floor: str) -> dict[str, Any]:
    return {
        name: {
            "seconds": [round(s, 4) for s in own],
            "median": statistics.median(own),
            "ratio": statistics.median(a / b for a, b in zip(own, seconds[floor], strict=True)),
        }
        for name, own in seconds.items()
    }


@contextmanager
def closing(*things: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for thing in things:
            thing.close()


def parallel(dataset: Dataset, algorithm: str, precision: str, turns: int) -> dict[str, Any]:
    """The floor, the floor with fedrecall's kernels, and the `processes` backend."""
    product = Product(dataset, "processes", algorithm=algorithm, precision=precision, **W1)
    weights = list(product.run.model.initial().params.values())
    parts, half, workers = product.run.federation.parts, precision == "bfloat16", cores()
    floors = {
        name: Floor(algorithm, half, kernels, dataset, parts, weights, 10, workers)
        for name, kernels in (("floor", False), ("floor with kernels", True))
    }
    lr = product.run.config.training.sgd(1, 1).lr
    losses: dict[str, float] = {}

    def play(name: str) -> Callable[[int], None]:
        def go(number: int) -> None:
            losses[name] = floors[name].round(
                rounds.sample(100, clients(number), 0, number), lr * 0.99 ** (number - 1), number
            )

        return go

    def clients(number: int) -> int:
        return 10 if number > 1 else workers  # to warm up, a visit for each worker

    with closing(product, *floors.values()):
        ours = {"processes": lambda number: product.round(number, clients(number))}
        seconds = take_turns({**{n: play(n) for n in floors}, **ours}, turns)
    found = summary(seconds, "floor")
    found["processes"]["over kernels"] = statistics.median(
        a / b for a, b in zip(seconds["processes"], seconds["floor with kernels"], strict=True)
    )
    return found | {"loss": losses | {"processes": product.loss}, "bar": BARS[algorithm]}


def sequential(dataset: Dataset, turns: int) -> dict[str, Any]:
    """SFedKD with five teachers: five clients in a row, one epoch each, with all threads of one process."""
    torch.set_num_threads(cores())
    settings = W1 | {"sample": 5, "training": {"local_epochs": 1}}
    product = Product(dataset, "processes", algorithm="sfedkd:teachers=5", **settings)
    initial = list(product.run.model.initial().params.values())
    floors = {
        name: Trainer("sfedkd", False, kernels, dataset.mean, dataset.std)
        for name, kernels in (("floor", False), ("floor with kernels", True))
    }
    parts, equal = product.run.federation.parts, torch.full((5,), 0.2)

    def play(trainer: Trainer) -> Callable[[int], None]:
        def go(number: int) -> None:
            weights = initial
            if number > 1:
                trainer.teach([initial] * 5)
            for client in rounds.sample(100, 5, 0, number):
                part = torch.from_numpy(parts[client])
                x, y = dataset.train.x[part], dataset.train.y[part]
                trainer.train(x, y, weights, 0.01, client, epochs=1, shares=(equal, equal))
                weights = [p.detach().clone() for p in trainer.master.parameters()]

        return go

    with closing(product):
        seconds = take_turns({**{n: play(t) for n, t in floors.items()}, "processes": product.round}, turns)
    found = summary(seconds, "floor")
    found["processes"]["over kernels"] = statistics.median(
        a / b for a, b in zip(seconds["processes"], seconds["floor with kernels"], strict=True)
    )
    return found | {"bar": BARS["sfedkd"]}


def backends(dataset: Dataset, turns: int) -> dict[str, Any]:
    """`serial` with all threads, and `processes`, on one epoch of W1."""
    torch.set_num_threads(cores())
    settings = W1 | {"algorithm": "fedavg", "training": {"local_epochs": 1}}
    players = {name: Product(dataset, name, **settings) for name in ("serial", "processes")}
    with closing(*players.values()):
        return summary(take_turns({n: p.round for n, p in players.items()}, turns), "serial")


def overhead(dataset: Dataset, turns: int) -> dict[str, float]:
    """Median seconds of a round of W1's ten visits that are not training.

    With one worker, so that nobody waits for somebody else's visit; one epoch, which changes nothing here.
    Of clients that were visited before, as most are in a run; then, where clients remember, of new ones.
    """
    found = {}
    for algorithm in ("fedavg", "fedntd", "scaffold"):
        settings = W1 | {"algorithm": algorithm, "training": {"local_epochs": 1}, "workers": 1}
        product = Product(dataset, "processes", **settings)
        with closing(product):
            ten = [range(start, start + 10) for start in range(0, 10 * (turns + 1), 10)]
            take_turns({algorithm: partial(product.round, sampled=ten[0])}, turns)
            found[algorithm] = statistics.median(product.outside[1:])
            if not product.run.memories.empty:
                for turn, others in enumerate(ten[1:]):
                    product.round(turns + 2 + turn, sampled=others)
                found[f"{algorithm}, first visits"] = statistics.median(product.outside[-turns:])
    return found


def _plain(count: int, clients: int) -> Product:
    training = {"local_epochs": 1}
    settings = {"partition": "iid", "clients": clients, "augmentation": "none", "training": training}
    return Product(synthetic(count), "processes", **W1 | {"algorithm": "fedavg"} | settings)


def started(since: float) -> None:
    """Print the seconds since then until everything is set up, and of the first round beyond the second's."""
    product = _plain(1000, clients=100)
    ready = time.perf_counter()
    product.round(1)
    done = time.perf_counter()
    product.round(2)
    print(ready - since, done - ready - (time.perf_counter() - done))
    product.close()


def held(count: int) -> None:
    """Print the bytes of this process, of that which workers are forked from, and of every worker."""
    product = _plain(count, clients=count // 100)
    product.round(1)
    assert isinstance(product.backend, Processes)
    pids = [Nursery.shared()._process.pid, *(w.pid for w in product.backend._workers)]
    print(proportional("self"), *map(proportional, pids))
    product.close()


def apart(code: str) -> list[float]:
    """The numbers that a Python of its own prints."""
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    return [float(v) for v in done.stdout.split()]


def start_up(times: int) -> dict[str, Any]:
    """Seconds from the backend's opening to its first result, beyond what a later round takes."""
    clock = "import time; since = time.perf_counter(); "
    found = [apart(clock + "from benchmarks.bench import started; started(since)") for _ in range(times)]
    return {
        "imports and set-up": statistics.median(f[0] for f in found),
        "workers": statistics.median(f[1] for f in found),
    }


def proportional(pid: int | str) -> int:
    """Bytes of memory of a process, of what it shares with others its part."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def memory(small: int, large: int) -> dict[str, Any]:
    """How many copies of the data there are: what more of it adds to all processes together."""
    if not Path("/proc/self/smaps_rollup").exists():
        return {}
    totals = {n: apart(f"from benchmarks.bench import held; held({n})") for n in (small, large)}
    data = (large - small) * (3 * 32 * 32 + 8)
    return {
        "copies of the data": (sum(totals[large]) - sum(totals[small])) / data,
        "bytes of a worker": int(totals[small][-1]),
        "bytes of the process": int(totals[small][0]),
    }


def scaling(
    turns: int, clients: Sequence[int], sampled: Sequence[int], widths: Mapping[int, int]
) -> dict[str, Any]:
    """Median round in `processes` as the federation, the sample and the model grow.

    ``widths``: of a network's two hidden layers, by about how many parameters that gives it.
    """
    tiny = {"partition": "iid", "augmentation": "none", "algorithm": "fedavg"}
    once = {"local_epochs": 1, "batch_size": 10}

    def median(dataset: Dataset, **settings: Any) -> float:
        product = Product(dataset, "processes", **tiny, **settings)
        with closing(product):
            return statistics.median(take_turns({"it": product.round}, turns)["it"])

    def rows(count: int) -> Dataset:
        return synthetic(20 * count, (1, 8, 8))

    five, thousand = {"local_epochs": 5, "batch_size": 10}, rows(1000)
    return {
        "clients": {n: median(rows(n), clients=n, sample=10, training=five) for n in clients},
        "sampled": {m: median(thousand, clients=1000, sample=m, training=five) for m in sampled},
        "parameters": {
            n: median(thousand, clients=1000, sample=10, training=once, model=f"mlp:{width}+{width}")
            for n, width in widths.items()
        },
    }


def machine() -> dict[str, Any]:
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return {"cpu": cpu, "cores": cores(), "torch": torch.__version__, "python": platform.python_version()}


def measure(only: set[str], repeats: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "load": os.getloadavg()[0],
    }

    def part(name: str, make: Callable[[], Any]) -> None:
        if not only or any(f"{name}/".startswith(f"{begin}/") for begin in only):
            since = time.perf_counter()
            found[name] = make()
            print(f"{name}: {time.perf_counter() - since:.0f} s", file=sys.stderr, flush=True)

    begun, dataset = time.perf_counter(), cifar10()
    found["data"] = dataset.name
    for algorithm in ("fedavg", "fedntd"):
        for precision in ("float32", "bfloat16"):
            part(
                f"floor/{algorithm}/{precision}",
                partial(parallel, dataset, algorithm, precision, repeats),
            )
    part("floor/scaffold/float32", lambda: parallel(dataset, "scaffold", "float32", max(1, repeats - 1)))
    part("floor/sfedkd/float32", lambda: sequential(dataset, repeats))
    part("backends", lambda: backends(dataset, repeats))
    part("overhead", lambda: overhead(dataset, repeats))
    part("start", lambda: start_up(3))
    part("memory", lambda: memory(10_000, 110_000))  # 0.3 GB more
    grown = (100, 1000, 10_000), (10, 30, 100), {10**5: 280, 10**6: 960, 10**7: 3120}
    part("scaling", lambda: scaling(5, *grown))
    if not only:
        found["seconds"] = round(time.perf_counter() - begun, 1)
    return found


def tables(found: Mapping[str, Any]) -> str:
    """What was measured, as Markdown."""
    m = found["machine"]
    lines = [
        f"{m['cores']} cores of {m['cpu']}, torch {m['torch']}, Python {m['python']}, {found['date']}, load "
        f"{found['load']:.1f} at the start, {found['data']}.",
        "",
        "| W1 | floor, s | floor with our kernels, s | `processes`, s | / floor | bar "
        "| / floor with kernels |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        if name.startswith("floor/"):
            p = row["processes"]
            lines.append(
                f"| {name[6:].replace('/', ', ')} | {row['floor']['median']:.2f} "
                f"| {row['floor with kernels']['median']:.2f} | {p['median']:.2f} | **{p['ratio']:.3f}** "
                f"| {row['bar']:.2f}: {_judged(p['ratio'], row['bar'])} | {p['over kernels']:.3f} |"
            )
    lines.append("")
    if "backends" in found:
        b = found["backends"]
        lines += [
            f"One epoch of W1 (FedAvg, float32): `serial` with all threads {b['serial']['median']:.2f} s, "
            f"`processes` {b['processes']['median']:.2f} s.",
            "",
        ]
    if beside := _beside_training(found):
        lines += ["| beside training | measured | bar | |", "|---|---|---|---|", *beside, ""]
    if found.get("memory"):
        worker = found["memory"]["bytes of a worker"] / 2**20
        lines += [f"A worker takes {worker:.0f} MiB (of shared pages its part).", ""]
    if "scaling" in found:
        lines += ["| grows | to | round, s |", "|---|---|---|"]
        for what, row in found["scaling"].items():
            lines += [f"| {what} | {int(n):,} | {s:.3f} |" for n, s in row.items()]
    return "\n".join(lines).rstrip() + "\n"


def _beside_training(found: Mapping[str, Any]) -> list[str]:
    """Rows of what is bounded beside the rounds themselves."""
    rows = [
        (f"a round outside training, {name}", seconds, f"{seconds:.2f} s", OUTSIDE, "s")
        for name, seconds in found.get("overhead", {}).items()
    ]
    if "start" in found:
        set_up, workers = found["start"]["imports and set-up"], found["start"]["workers"]
        parts = f"{set_up:.1f} s of imports and set-up, {workers:.1f} s until workers have made first visits"
        both = set_up + workers
        rows.append((f"from a bare interpreter: {parts}", both, f"{both:.1f} s", START, "s"))
    if found.get("memory"):
        copies = found["memory"]["copies of the data"]
        rows.append(("copies of the data in all processes", copies, f"{copies:.2f}", COPIES, ""))
    if "seconds" in found:
        rows.append(("all of this", found["seconds"], f"{found['seconds']:.0f} s", WHOLE, "s"))
    return [
        f"| {what} | {said} | {f'{bar:g} {unit}'.strip()} | {_judged(value, bar)} |"
        for what, value, said, bar, unit in rows
    ]


def _judged(value: float, bar: float) -> str:
    return "met" if value <= bar else "**not met**"


def put_into_page(table: str) -> None:
    """Replace what docs/performance.md shows of this machine."""
    begin, end = "<!-- bench -->\n", "<!-- /bench -->"
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(begin)
    PAGE.write_text(head + begin + table + end + rest.partition(end)[2], encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--only",
        default="",
        help="floor (or floor/fedntd/bfloat16), overhead, backends, start, memory, scaling; separated by\n"
        "commas; then nothing is written but to --out",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--table", action="store_true", help="only put what was measured before into the page"
    )
    asked = parser.parse_args()
    if asked.table:
        table = tables(read_json(asked.out or RESULTS))
        put_into_page(table)
        print(table)
        return
    found = measure(set(filter(None, asked.only.split(","))), asked.repeats)
    Nursery.shared().close()
    out = asked.out or (None if asked.only else RESULTS)
    if out is not None:
        write_json(out, json.loads(json.dumps(found)))
    print(tables(found))
    if out == RESULTS:
        put_into_page(tables(found))


if __name__ == "__main__":
    main()
