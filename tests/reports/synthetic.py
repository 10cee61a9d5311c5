"""Run folders with everything recorded, made of formulas: reports need no training to be tested."""

import json

import numpy as np

from fedrecall import config as configs

MADE = {
    "command": "fedrecall run --algorithm fedavg",
    "started": "2026-11-20T10:00:00+0000",
    "python": "3.11.7",
    "versions": {"torch": "2.13.0"},
    "platform": "Linux",
    "cpu": "a processor",
    "threads": 1,
    "gpu": None,
    "git": "0123abcd",
}


def accuracies(seed, better, rounds, classes):
    """Class accuracies [T, C]: the class c of seed s after t rounds."""
    t, c = np.arange(1, rounds + 1)[:, None], np.arange(classes)
    wave = 0.05 * np.sin(t * (1 + c) + seed)
    return np.clip(0.1 + 0.6 * (1 - np.exp(-t / 8)) + wave + 0.05 * better + 0.01 * seed, 0, 1)


def write(
    folder,
    *,
    algorithm="fedavg",
    seed=0,
    rounds=6,
    clients=5,
    classes=3,
    better=0,
    played=None,
    made=MADE,
    names=None,
    **settings,
):
    """A run folder; ``played`` rounds of it are there."""
    folder.mkdir(parents=True)
    config = configs.make(
        {"algorithm": algorithm, "seed": seed, "rounds": rounds, "clients": clients, "sample": 2, **settings}
    )
    (folder / "config.json").write_text(json.dumps(configs.as_dict(config)))
    (folder / "made.json").write_text(json.dumps([made]))
    counts = [[(3 * k + c + seed) % 7 for c in range(classes)] for k in range(clients)]
    names = names or [f"class {c}" for c in range(classes)]
    meta = {"class_names": names, "counts": counts, "auxiliary": 6}
    (folder / "partition.json").write_text(json.dumps({"meta": meta}))
    table = accuracies(seed, better, rounds, classes)
    lines = []
    for i, row in enumerate(table[: rounds if played is None else played]):
        acc = float(row.mean())
        record = {
            "round": i + 1,
            "lr": 0.1,
            "chains": [[i % clients], [(i + 1) % clients]],
            "train_loss": 1 - acc,
            "failures": [],
            "bytes_down": 2000,
            "bytes_up": 3000,
            "memory_bytes": 40,
            "seconds": {"train": 2.0, "clients": [1.0, 1.5], "evaluate": 0.5, "measures": {"locals": 0.25}},
            "accuracy": acc,
            "loss": 1 - acc,
            "class_accuracy": row.tolist(),
            "forgetting": 0.0 if i == 0 else float((table[:i].max(0) - row).mean()),
            "consistency": None if i == 0 else 0.9,
            "measures": {
                "locals": {
                    "clients": [0, 1],
                    "local_average_accuracy": acc / 2,
                    "in_local": {"before": [acc, acc], "local": [0.9, 0.8], "after": [acc, acc]},
                    "out_local": {"before": [acc, acc], "local": [0.1, 0.2], "after": [acc, acc]},
                },
                "divergence": {"clients": [0, 1], "weights": [3.0, 5.0]},
            },
        }
        if i + 1 == rounds:
            confusion = (100 * (0.1 + np.eye(classes))).astype(int).tolist()
            record["measures"]["confusion"] = {"global": confusion, "credibility": np.eye(classes).tolist()}
        lines.append(json.dumps(record) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def changed(run, change):
    """The run with its records as ``change`` leaves each."""
    path = run / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        change(record)
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return records


def of_nodes(folder, agreed, **settings):
    """The run folder of a federation's server: its data set has no name, its nodes agreed on this."""
    write(folder, **settings)
    (folder / "partition.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["dataset"] = {"name": "fedrecall.flower.node:Elsewhere"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "federation.json").write_text(json.dumps({"run": folder.name, **agreed}))
    return folder


AGREED = {
    "secure": "off",
    "shape": [1, 8, 8],
    "class_names": ["a", "b", "c"],
    "columns": None,
    "statistics": "0a1b2c3d",
    "examples": [100, 50],
}
