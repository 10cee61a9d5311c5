"""The floor: federated training by hand, with nothing between PyTorch and the machine.

What somebody in a hurry would write for one algorithm: a network, an optimiser, two processes of one
thread that each train every other client, results in shared memory. Same data, shuffling, augmentation,
losses and optimiser as fedrecall (`tests/benchmarks/test_floor.py` holds what it computes to that), channels
last, the fused optimiser, and for bfloat16 a copy of the weights in that type. ``kernels`` gives it
fedrecall's own CPU kernels and its workers' memory settings too, so that what is left of a difference is the
framework.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrecall.backends.processes import WORKERS
from fedrecall.data.augmentation import Augmentation
from fedrecall.models import kernels
from fedrecall.models.networks import build

EPOCHS, BATCH, MOMENTUM, DECAY = 5, 50, 0.9, 1e-5


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """What a process that is started in this block finds; without settings what a shell would give it."""
    before = dict(os.environ)
    for name in WORKERS.keys() - {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}:
        os.environ.pop(name, None)
    os.environ.update(settings)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def network(with_kernels: bool) -> nn.Module:
    net = build("cnn", (3, 32, 32), 10)
    net = kernels.equip(net) if with_kernels else nn.Sequential(*net.children())
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def load(net: nn.Module, weights: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for p, w in zip(net.parameters(), weights, strict=True):
            p.copy_(w)


def ntd(student: Tensor, teacher: Tensor, y: Tensor) -> Tensor:
    """KL between the softmaxes of the logits without the label's, as FedNTD's authors compute it."""
    rest = torch.arange(student.shape[1] - 1).repeat(len(y), 1)
    rest = rest + (rest >= y[:, None])
    p, log_q = teacher.gather(1, rest).softmax(1), student.gather(1, rest).log_softmax(1)
    return F.kl_div(log_q, p, reduction="batchmean")


def sfedkd(student: Tensor, teachers: Tensor, y: Tensor, g: Tensor, h: Tensor) -> Tensor:
    """sum_j g_j KL(not-true) + 3 sum_j h_j KL(true against the rest)."""
    true = F.one_hot(y, student.shape[1]).bool()
    out = torch.zeros(())
    log_q = student.masked_fill(true, -1e9).log_softmax(1)
    margin_q = student.gather(1, y[:, None])[:, 0] - student.masked_fill(true, -1e9).logsumexp(1)
    for j, teacher in enumerate(teachers):
        log_p = teacher.masked_fill(true, -1e9).log_softmax(1)
        out = out + g[j] * F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
        margin_p = teacher.gather(1, y[:, None])[:, 0] - teacher.masked_fill(true, -1e9).logsumexp(1)
        pair = margin_p.sigmoid() * (F.logsigmoid(margin_p) - F.logsigmoid(margin_q))
        pair = pair + (-margin_p).sigmoid() * (F.logsigmoid(-margin_p) - F.logsigmoid(-margin_q))
        out = out + 3 * h[j] * pair.mean()
    return out


class Trainer:
    """Trains one client after another."""

    def __init__(self, algorithm: str, half: bool, with_kernels: bool, mean: Tensor, std: Tensor):
        self.algorithm, self.half, self.mean, self.std = algorithm, half, mean, std
        self.augmentation = Augmentation.parse("crop+flip+cutout")
        self.make = lambda: network(with_kernels)
        self.master = self.make()
        self.net = self.make().bfloat16() if half else self.master
        self.teachers: list[nn.Module] = []

    def teach(self, weights: Sequence[Sequence[Tensor]]) -> None:
        """Make these the teachers."""
        while len(self.teachers) < len(weights):
            self.teachers.append(self.make().eval().requires_grad_(False))
            if self.half:
                self.teachers[-1].bfloat16()
        for net, w in zip(self.teachers, weights, strict=True):
            load(net, w)

    def full(self, logits: Tensor) -> Tensor:
        """What the loss is computed of."""
        return logits.float() if self.half else logits

    def train(
        self,
        x: Tensor,
        y: Tensor,
        weights: Sequence[Tensor],
        lr: float,
        seed: int,
        shift: Sequence[Tensor] = (),
        epochs: int = EPOCHS,
        shares: tuple[Tensor, Tensor] | None = None,
    ) -> float:
        """Train ``self.master`` on one client from these weights; the mean loss."""
        load(self.master, weights)
        if self.half:
            load(self.net, weights)
        masters: list[Tensor] = list(self.master.parameters())
        params: list[Tensor] = list(self.net.parameters())
        shift = [s.contiguous(memory_format=torch.channels_last) if s.dim() == 4 else s for s in shift]
        sgd = torch.optim.SGD(masters, lr=lr, momentum=MOMENTUM, weight_decay=DECAY, fused=True)
        stream = torch.Generator().manual_seed(seed)
        losses = []
        for _ in range(epochs):
            order = torch.randperm(len(y), generator=stream)
            draws = self.augmentation.draw(stream, len(y))
            for start in range(0, len(y), BATCH):
                rows = slice(start, start + BATCH)
                place = order[rows]
                drawn = type(draws)(*(d[rows] for d in draws))
                a = self.augmentation.apply(x[place], drawn, self.mean, self.std)
                a, b = a.to(params[0].dtype).contiguous(memory_format=torch.channels_last), y[place]
                logits = self.full(self.net(a))
                loss = F.cross_entropy(logits, b)
                if self.teachers:
                    with torch.no_grad():
                        taught = torch.stack([self.full(t(a)) for t in self.teachers])
                    if shares is None:
                        loss = loss + ntd(logits, taught[0], b)
                    else:
                        loss = loss + sfedkd(logits, taught, b, *shares)
                for p in params:
                    p.grad = None
                loss.backward()
                if self.half:
                    for p, m in zip(params, masters, strict=True):
                        assert p.grad is not None
                        m.grad = p.grad.float()
                if shift:
                    torch._foreach_add_([m.grad for m in masters if m.grad is not None], shift)
                sgd.step()
                if self.half:
                    with torch.no_grad():
                        torch._foreach_copy_(params, masters)
                losses.append(loss.detach())
        return float(torch.stack(losses).mean())


def worker(pipe: Any, shared: dict[str, Any], trainer: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    made = Trainer(*trainer)
    while True:
        order = pipe.recv()
        if order is None:
            return
        slots, lr, number = order
        if made.algorithm == "fedntd":
            made.teach([shared["weights"]])
        losses = []
        for slot, client in slots:
            part = shared["parts"][client]
            shift: list[Tensor] = []
            if made.algorithm == "scaffold":
                variate = [v[client] for v in shared["variates"]]
                shift = [c - v for c, v in zip(shared["variate"], variate, strict=True)]
            x, y = shared["x"][part], shared["y"][part]
            losses.append(made.train(x, y, shared["weights"], lr, number * 1000 + client, shift))
            with torch.no_grad():
                for out, p in zip(shared["results"], made.master.parameters(), strict=True):
                    out[slot].copy_(p)
                if made.algorithm == "scaffold":
                    k = EPOCHS * -(-len(y) // BATCH)
                    length = lr * (k - MOMENTUM * (1 - MOMENTUM**k) / (1 - MOMENTUM)) / (1 - MOMENTUM)
                    pairs = zip(shared["weights"], made.master.parameters(), shift, strict=True)
                    for i, (w, p, s) in enumerate(pairs):
                        new = (w - p) / length - s
                        shared["changes"][i][slot].copy_(new - variate[i])
                        shared["variates"][i][client].copy_(new)
        pipe.send(losses)


class Floor:
    """Two processes of one thread each, and the average of what they train."""

    def __init__(
        self,
        algorithm: str,
        half: bool,
        with_kernels: bool,
        dataset: Any,
        parts: Any,
        weights: Sequence[Tensor],
        sampled: int,
        workers: int,
    ):
        d = dataset
        zeros = lambda n: [torch.zeros(n, *w.shape).share_memory_() for w in weights]  # noqa: E731
        self.shared = {
            "x": d.train.x.share_memory_(),
            "y": d.train.y.share_memory_(),
            "parts": [torch.from_numpy(p) for p in parts],
            "weights": [w.clone().share_memory_() for w in weights],
            "results": zeros(sampled),
        }
        if algorithm == "scaffold":
            self.shared["variate"] = [torch.zeros_like(w).share_memory_() for w in weights]
            self.shared |= {"variates": zeros(len(parts)), "changes": zeros(sampled)}
        context = mp.get_context("spawn")
        self.pipes, self.processes = [], []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            trainer = (algorithm, half, with_kernels, d.mean, d.std)
            process = context.Process(target=worker, args=(theirs, self.shared, trainer), daemon=True)
            with environment(WORKERS if with_kernels else {}):
                process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def round(self, sampled: Sequence[int], lr: float, number: int) -> float:
        """Train these clients and average; the mean loss."""
        slots = list(enumerate(sampled))
        for i, pipe in enumerate(self.pipes):
            pipe.send((slots[i :: len(self.pipes)], lr, number))
        losses = [loss for pipe in self.pipes for loss in pipe.recv()]
        sizes = torch.tensor([float(len(self.shared["parts"][k])) for k in sampled])
        shares = sizes / sizes.sum()
        for w, out in zip(self.shared["weights"], self.shared["results"], strict=True):
            w.copy_((out[: len(sampled)] * shares.view(-1, *[1] * w.dim())).sum(0))
        if "changes" in self.shared:
            for c, change in zip(self.shared["variate"], self.shared["changes"], strict=True):
                c.add_(change[: len(sampled)].sum(0), alpha=1 / len(self.shared["parts"]))
        return sum(losses) / len(losses)

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(10)
