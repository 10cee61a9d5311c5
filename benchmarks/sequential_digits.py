"""Sequential algorithms on the bundled digits: order, temperatures, CWC's search, disclosure.

python benchmarks/sequential_digits.py order
python benchmarks/sequential_digits.py cwc

Writes benchmarks/results/sequential-digits-SET.md, row by row.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import fedrecall
from fedrecall.data.datasets import Dataset, Split, load
from fedrecall.files import write

RESULTS = Path(__file__).parent / "results"
SETS = {
    "order": [
        "fedavg",
        "fedseq",
        "cwc",
        "fedseq+aver",
        "fedseq+ebkd",
        "fedseq+ca-mkd",
        "sfedkd:g=uniform,h=uniform",
        "sfedkd:h=uniform",
        "sfedkd:g=uniform",
        "sfedkd",
    ],
    "chains": ["fedseq@1", "fedseq@2", "fedseq@5", "fedseq@10", "sfedkd@1", "sfedkd@2", "sfedkd@5"],
    "tau": ["sfedkd", "sfedkd:tau=2", "sfedkd:tau=4"],
    "cwc": [f"cwc:lam={lam},sigma={sigma}" for lam in (1e-4, 1e-3, 1e-2, 1e-1) for sigma in (0.5, 0.9)],
    "disclosure": [
        "sfedkd",
        "sfedkd:share=grid,grid=4",
        "sfedkd:share=grid,grid=2",
        *(f"sfedkd:share={s},noise={n}" for s in ("laplace", "gaussian") for n in (0.05, 0.5)),
        "sfedkd:selection=random,g=uniform,h=uniform",
    ],
}


def held_out(dataset: Dataset) -> Dataset:
    """The training split with every fifth example as the test set: a search must not see the real one."""
    apart = torch.arange(len(dataset.train.y)) % 5 == 0
    train, test = (Split(dataset.train.x[rows], dataset.train.y[rows]) for rows in (~apart, apart))
    return replace(dataset, train=train, test=test)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--partition", default="exdir:2,0.5")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    digits = load("digits")
    digits = held_out(digits) if options.set == "cwc" else digits
    lines = ["| algorithm | mean of the last 10 rounds, each seed | mean | last round | forgetting |"]
    lines.append("|---|---|---|---|---|")
    for spec in SETS[options.set]:
        algorithm, _, chains = spec.partition("@")
        tails, lasts, forgetting = [], [], []
        for seed in range(options.seeds):
            result = fedrecall.run(
                algorithm=algorithm,
                dataset=digits,
                partition=options.partition,
                model="cnn",
                clients=30,
                sample=10,
                rounds=options.rounds,
                seed=seed,
                backend="serial",
                augmentation="none",
                chains=int(chains) if chains else None,
                training={
                    "local_epochs": 5,
                    "batch_size": 16,
                    "lr": 0.01,
                    "lr_decay": 1.0,
                    "momentum": 0.0,
                    "weight_decay": 1e-4,
                },
            )
            tails.append(np.mean([r["accuracy"] for r in result.history[-10:]]))
            lasts.append(result.accuracy)
            forgetting.append(result.forgetting)
        each = " ".join(f"{t:.1%}" for t in tails)
        lines.append(
            f"| {spec} | {each} | {np.mean(tails):.1%} | {np.mean(lasts):.1%} | {np.mean(forgetting):.2f} |"
        )
        print(lines[-1], flush=True)
        write(RESULTS / f"sequential-digits-{options.set}.md", ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
