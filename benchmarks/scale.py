"""What a round costs at the server and at a client, and how well docs/scale.md's formulas say so.

    python -m benchmarks.scale            # two minutes; writes benchmarks/results/scale.json
    python -m benchmarks.scale --table    # the tables of docs/scale.md anew from what was written

The server's part is a round of the real loop in which clients answer at once with uploads of the
declared shapes, so that what is timed is broadcast, collecting and aggregation. Every cell is a
process of its own, whose peak memory is what it adds to a process that has imported everything.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import synthetic
from fedrecall import payloads, rounds, trees
from fedrecall.algorithms import ALGORITHMS, FedAvg
from fedrecall.backends.backend import Job
from fedrecall.data.client import ClientData
from fedrecall.errors import UserError
from fedrecall.files import read_json, write_json
from fedrecall.memories import Memories
from fedrecall.models.model import Model
from fedrecall.models.networks import build
from fedrecall.training import Recipe, Visit, visit

RESULTS = Path(__file__).parent / "results" / "scale.json"
PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
SHAPE, CLASSES, EXAMPLES, REPEATS = (1, 8, 8), 10, 64, 5
WIDTHS = {100_000: 1333, 1_000_000: 13_333, 10_000_000: 133_333}  # of `mlp`, by parameters
# (parameters, clients that take part, of how many): no cell takes more than 2 GiB.
CELLS = [
    *((100_000, m, max(m, 100)) for m in (1, 10, 100, 1000)),
    (100_000, 100, 10_000),
    (20_000, 10_000, 10_000),
    *((1_000_000, m, 1000) for m in (1, 10, 100)),
    *((10_000_000, m, 1000) for m in (1, 10)),
]
EACH = (100_000, 50, 200)  # the same of every algorithm's own cell


def network(parameters: int, algorithm: FedAvg) -> Model:
    width = WIDTHS.get(parameters, parameters // 75)
    torch.manual_seed(0)
    try:
        return Model(algorithm.equip(build(f"mlp:{width}", SHAPE, CLASSES)))
    except UserError:  # it needs blocks of convolutions
        return Model(algorithm.equip(build("resnet10:width=10", SHAPE, CLASSES)))


def server_cell(spec: str, parameters: int, sampled: int, population: int, repeats: int) -> dict[str, Any]:
    """Seconds and bytes of a round at the server, whose clients take no time."""
    algorithm = ALGORITHMS.make(spec)
    model = network(parameters, algorithm)
    declared = payloads.declared(algorithm, model, SHAPE, CLASSES)
    plain = FedAvg()  # takes turns with the algorithm, so that both see the same machine
    turns = [(algorithm, declared), (plain, payloads.declared(plain, model, SHAPE, CLASSES))]
    servers = [a.start(model.initial()) for a, _ in turns]
    auxiliary = payloads._made_up(SHAPE, CLASSES, model.initial())
    chains = 1 if algorithm.sequential else sampled
    seconds: list[list[float]] = [[], []]
    sent: list[tuple[int, int]] = []
    baseline = resident()
    for number in range(1, repeats + 1):
        for turn, (played_by, answers) in enumerate(turns):
            if turn and spec == "fedavg":
                continue
            memories = Memories(answers.memory)
            waited, begun = 0.0, time.perf_counter()

            def answer(
                jobs: Sequence[Job], up: Any = answers.up, memory: Any = answers.memory
            ) -> list[Visit]:
                nonlocal waited
                since = time.perf_counter()
                made = [
                    Visit(
                        j.client, 50, trees.detached(up), memory if j.memory is None else j.memory, 0.0, 0.0
                    )
                    for j in jobs
                ]
                waited += time.perf_counter() - since
                return made

            played = rounds.drive(
                rounds.walk(
                    played_by,
                    model,
                    servers[turn],
                    memories,
                    auxiliary,
                    population=population,
                    sampled=rounds.sample(population, sampled, 0, number),
                    chain_count=chains,
                    round_number=number,
                ),
                answer,
            )
            seconds[turn].append(time.perf_counter() - begun - waited)
            servers[turn] = played.server
            if turn == 0:
                sent.append((played.bytes_down, played.bytes_up))
            del played
            memories.close()
    return {
        "algorithm": spec,
        "parameters": sum(p.numel() for p in model.initial().params.values()),
        "sampled": sampled,
        "population": population,
        "seconds": statistics.median(seconds[0]),
        "relative": statistics.median(a / b for a, b in zip(*seconds, strict=False)) if seconds[1] else 1.0,
        "bytes_down": sent[-1][0],
        "bytes_up": sent[-1][1],
        "first_down": sent[0][0],
        "declared_down": trees.size_in_bytes(declared.down),
        "declared_up": trees.size_in_bytes(declared.up),
        "declared_memory": trees.size_in_bytes(declared.memory),
        "model": trees.size_in_bytes(declared.down.weights),
        "links": 1 if chains > 1 or sampled == 1 else sampled,
        "peak": max(0, peak() - baseline),
    }


def client_cell(parameters: int) -> dict[str, Any]:
    """Seconds and bytes of a visit."""
    algorithm = FedAvg()
    model = network(parameters, algorithm)
    split = synthetic(EXAMPLES, SHAPE, CLASSES).train
    data = ClientData(split.x, split.y, CLASSES, torch.tensor([0.5]), torch.tensor([0.3]))
    recipe = Recipe(local_epochs=1, batch_size=EXAMPLES // 4)
    down = algorithm.broadcast(model, algorithm.start(model.initial()), None)
    baseline, seconds = resident(), []
    for number in range(1, REPEATS + 1):
        done = visit(algorithm, model, recipe, data, down, (), seed=0, round_number=number, client=0)
        seconds.append(done.seconds)
    size = trees.size_in_bytes(down)
    return {
        "parameters": size // 4,
        "seconds": statistics.median(seconds),
        "model": size,
        "peak": max(0, peak() - baseline),
    }


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def apart(cell: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The cell's result from a process of its own."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            os.write(writer, json.dumps(cell()).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        found = file.read()
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError(f"the cell {cell} failed")
    return dict(json.loads(found))


def measure() -> dict[str, Any]:
    grid = []
    for parameters, sampled, population in CELLS:
        repeats = REPEATS if parameters * sampled < 10**8 else 2
        grid.append(apart(partial(server_cell, "fedavg", parameters, sampled, population, repeats)))
        print(json.dumps(grid[-1]), flush=True)
    table = []
    for name in [n for n in ALGORITHMS if n != "private"] + ["private"]:
        table.append(apart(partial(server_cell, name, *EACH, REPEATS)))
        print(json.dumps(table[-1]), flush=True)
    visits = [apart(partial(client_cell, parameters)) for parameters in WIDTHS]
    return {
        "machine": platform.machine(),
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "grid": grid,
        "algorithms": table,
        "visits": visits,
    }


# The formulas of docs/scale.md. One constant each is fitted: the median over the cells.


def touched(cell: dict[str, Any]) -> float:
    """Bytes of uploads that the server walks through."""
    return float(cell["bytes_up"])


def held(cell: dict[str, Any]) -> float:
    """Bytes at the server: every upload twice, as it came and stacked, and three models."""
    links = cell["links"]
    return float(cell["bytes_up"] * (1 + 1 / links) + 3 * cell["model"])


def tables(found: dict[str, Any]) -> str:
    large = [c for c in found["grid"] if touched(c) >= 4e6]
    pace = statistics.median(c["seconds"] / touched(c) for c in large)
    lines = [
        "| parameters | clients in the round | of | up, MB | seconds / formula | peak memory / formula |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for c in found["grid"]:
        speed = f"{c['seconds'] / (pace * touched(c)):.2f}" if c in large else "(small)"
        room = f"{c['peak'] / held(c):.2f}" if held(c) > 5e7 else "(small)"
        lines.append(
            f"| {c['parameters']:,} | {c['sampled']:,} | {c['population']:,} | {c['bytes_up'] / 1e6:,.1f} "
            f"| {speed} | {room} |"
        )
    lines += [
        "",
        "| algorithm | down, first round | down later | up | client memory | bytes as declared "
        "| server seconds / FedAvg's |",
        "|---|---:|---:|---:|---:|:---:|---:|",
    ]
    for c in found["algorithms"]:
        down, up, one, m = c["declared_down"], c["declared_up"], c["model"], c["sampled"]
        agree = "yes" if (c["first_down"], c["bytes_up"]) == (down * m, up * m) else "no"
        note = " (resnet10)" if c["algorithm"] == "fedalign" else ""
        lines.append(
            f"| {c['algorithm']}{note} | {down / one:.2f} | {c['bytes_down'] / m / one:.2f} | {up / one:.2f} "
            f"| {c['declared_memory'] / one:.2f} | {agree} | {c['relative']:.1f} |"
        )
    first = found["visits"][0]
    lines += [
        "",
        "| parameters | visit seconds per parameter, first row = 1 | peak memory in models |",
        "|---:|---:|---:|",
    ]
    for v in found["visits"]:
        relative = v["seconds"] / v["parameters"] / (first["seconds"] / first["parameters"])
        room = f"{v['peak'] / v['model']:.1f}" if v["model"] > 2e6 else "(small)"
        lines.append(f"| {v['parameters']:,} | {relative:.2f} | {room} |")
    lines += ["", f"Server's pace: {pace * 1e9:.2f} s for each GB of uploads (one thread, machine shared)."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only write the tables anew")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if not asked.table:
        write_json(RESULTS, measure())
    text = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- measured: begin -->\n", "<!-- measured: end -->"
    before, rest = text.split(begin)
    PAGE.write_text(before + begin + tables(read_json(RESULTS)) + "\n" + end + rest.split(end)[1], "utf-8")


if __name__ == "__main__":
    main()
