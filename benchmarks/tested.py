"""Accuracy of runs' last models on test images as they are, and augmented as training images are.

    python -m benchmarks.tested runs/reproduction/*/*

FedNTD's published accuracies may be those of augmented test images (docs/reproduction.md).
"""

import argparse
from dataclasses import replace
from pathlib import Path

from fedrecall.data.augmentation import Augmentation
from fedrecall.measures.accuracy import accuracy, evaluate
from fedrecall.reports.replay import stage
from fedrecall.reports.runs import Run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument(
        "--augmentations", nargs="+", default=["none", "crop+flip", "cutout", "crop+flip+cutout"]
    )
    options = parser.parse_args()
    print("| run | round | " + " | ".join(options.augmentations) + " |")
    print("|" + "---|" * (2 + len(options.augmentations)))
    for path in options.runs:
        at = stage(Run(path))
        found = []
        for text in options.augmentations:
            test = replace(at.federation, test_augmentation=Augmentation.parse(text)).test
            found.append(f"{accuracy(evaluate(at.model, at.weights, test).confusion):.2%}")
        print(f"| {path.name} | {at.round_number - 1} | " + " | ".join(found) + " |", flush=True)


if __name__ == "__main__":
    main()
