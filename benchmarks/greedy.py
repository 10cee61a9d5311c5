"""How far greedy teacher selection is from the best choice, on the label distributions of ExDir clients.

python benchmarks/greedy.py
"""

import itertools

import numpy as np
import torch

from fedrecall.algorithms.teachers import complementary, distance_to_uniform
from fedrecall.data.partitions import PARTITIONS, label_counts

EPSILON, ROUNDS = 1e-4, 100
LABELS = np.repeat(np.arange(10), 500)


def main() -> None:
    print("| partition | K of 10 | optimum found | greedy's distance, median | optimum's | of all choices |")
    print("|---|---|---|---|---|---|")
    for partition in ("exdir:2,0.5", "exdir:2,10", "lda:0.5"):
        counts = label_counts(LABELS, PARTITIONS.make(partition).split(LABELS, 100, 0), 10)
        shares = torch.from_numpy(counts / np.maximum(counts.sum(1, keepdims=True), 1))
        shares = shares[torch.from_numpy(counts.sum(1) > 0)]
        for k in (2, 3, 5, 7):
            stream, rows = np.random.default_rng(0), []
            subsets = torch.tensor(list(itertools.combinations(range(10), k)))
            for _ in range(ROUNDS):
                cohort = shares[torch.from_numpy(stream.choice(len(shares), 10, replace=False))]
                every = distance_to_uniform(cohort[subsets], "kl", EPSILON)
                greedy = distance_to_uniform(cohort[complementary(cohort, k, "kl", EPSILON)], "kl", EPSILON)
                rows.append((float(greedy), float(every.min()), float(every.median())))
            greedy, best, middle = np.array(rows).T
            reached = np.mean(greedy <= best + 1e-12)
            print(
                f"| {partition} | {k} | {reached:.0%} | {np.median(greedy):.3f} "
                f"| {np.median(best):.3f} | {np.median(middle):.3f} |"
            )


if __name__ == "__main__":
    main()
