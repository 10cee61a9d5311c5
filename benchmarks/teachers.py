"""What K teachers cost: seconds of a visit and bytes down, taking turns on a busy machine.

python benchmarks/teachers.py --repeats 5
"""

import argparse
import statistics
import time

import torch

from fedrecall import trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.multi_teacher import Down
from fedrecall.data.augmentation import Augmentation
from fedrecall.data.client import ClientData
from fedrecall.models.model import Model
from fedrecall.models.networks import build
from fedrecall.training import Recipe, visit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--teachers", type=int, nargs="+", default=[0, 1, 2, 3, 5, 7, 10])
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model(build(options.model, (3, 32, 32), 10))
    weights = model.initial()
    x = torch.randint(0, 256, (options.examples, 3, 32, 32), dtype=torch.uint8)
    y = torch.randint(0, 10, (options.examples,))
    half = torch.full((3,), 0.5)
    recipe = Recipe(local_epochs=options.epochs, batch_size=64, momentum=0.0)
    algorithm = ALGORITHMS.make("sfedkd:teachers=10")
    seconds: dict[tuple[int, str], list[float]] = {}
    sizes = {}
    counts = sorted({0, *options.teachers})
    for _ in range(options.repeats):
        for k in counts:
            down = Down(
                weights,
                trees.transform(lambda t, k=k: t.expand(k, *t.shape).contiguous(), weights),
                torch.full((k, 10), 0.1, dtype=torch.float64),
            )
            sizes[k] = trees.size_in_bytes(down)
            for name in ("none", "flip"):
                data = ClientData(x, y, 10, half, half, Augmentation.parse(name))
                memory = algorithm.remember(weights)
                since = time.perf_counter()
                visit(algorithm, model, recipe, data, down, memory, seed=0, round_number=1, client=0)
                seconds.setdefault((k, name), []).append(time.perf_counter() - since)
    median = {key: statistics.median(v) for key, v in seconds.items()}
    print(f"{options.model}, {options.examples} examples, {options.epochs} epochs, one thread\n")
    print("| K | no augmentation, s | times K = 0 | augmented, s | times K = 0 | MB down a client |")
    print("|---|---|---|---|---|---|")
    for k in counts:
        plain, augmented = median[k, "none"], median[k, "flip"]
        print(
            f"| {k} | {plain:.2f} | {plain / median[0, 'none']:.2f} | {augmented:.2f} "
            f"| {augmented / median[0, 'flip']:.2f} | {sizes[k] / 1e6:.1f} |"
        )


if __name__ == "__main__":
    main()
