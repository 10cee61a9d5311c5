"""Many clients as one: their models stacked along a leading axis, every step taken by all at once.

What one client computes in a step is written for one client, by the algorithm; `torch.func.vmap`
maps it over the stack. What all clients share (the global model as teacher) is not stacked, so
that its forward pass is one ordinary pass over everybody's examples.

Clients are sorted by how long they train. Those still training are then always the first rows of
the stack, and a step works on a view of these: nobody is frozen by masks and nothing is computed
in vain. A last batch smaller than the others is filled up and masked, unless the network mixes
examples (batch norm); then a step is taken once for each size of batch.
"""

import re
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedrecall import contracts, streams, trees
from fedrecall.algorithms.fedavg import FedAvg, advances, settles
from fedrecall.algorithms.hooks import Sgd
from fedrecall.backends.backend import Job, Work
from fedrecall.backends.serial import Serial
from fedrecall.batches import Batch
from fedrecall.data.augmentation import Draws as AugmentationDraws
from fedrecall.data.client import shares
from fedrecall.errors import UserError
from fedrecall.models import kernels
from fedrecall.models.model import Model, Params, Weights
from fedrecall.specs import AT_LEAST_ONE
from fedrecall.training import (
    Begun,
    Failure,
    State,
    Visit,
    apart,
    begin,
    descend,
    end,
    failed,
    local_loss,
    overwrite,
    train,
)

GRAPHS_KEPT = 8  # recorded trainings a lane; each keeps its memory
TRIED_EVERY = 10  # maps, beside the first two: what a loss looks at may be nothing in the first round
CPU_CHUNK = 16  # there memory does not run out with an error that one could act on


@dataclass(frozen=True)
class Options:
    """How the stack is computed; none of these changes what is computed."""

    chunk: Annotated[int | None, AT_LEAST_ONE] = None
    """Clients stacked at once, halved when memory runs out; by default all, and 16 on a CPU."""
    convolutions: Literal["grouped", "matmul"] = "grouped"
    """Every client's own kernels as one grouped convolution, or as one batched matrix product."""
    graph: bool = False
    """Record the whole local training as a CUDA graph and replay it (on a GPU only)."""
    lanes: Annotated[int, AT_LEAST_ONE] = 1
    """Chunks begun before the first is finished; with `graph` each on a CUDA stream of its own."""


class Part(NamedTuple):
    """Some clients' batches of one step, all of one width."""

    rows: slice | Tensor
    """Which clients: the first ones, or any."""
    width: int
    filled: bool
    """Whether some of the batches are smaller than the width."""


class Stack(NamedTuple):
    """What a chunk of clients starts from, as tensors."""

    state: State  # each leaf [K, ...]
    anchor: Any  # each leaf [K, ...], or as it is where all clients share it
    x: Tensor  # [sum of n_k, ...], everybody's raw examples
    y: Tensor  # [sum of n_k]
    offset: Tensor  # [K], where a client's examples begin
    place: Tensor  # [K, S, B], each batch's places in the client's data
    taken: Tensor  # bool [K, S, B], False where a batch is filled up
    progress: Tensor  # [K, S], share of its own steps that a client has taken before
    augmentation: AugmentationDraws  # each [K, S, B, ...]
    key: Tensor  # [K]
    lr: Tensor  # []


class Held(NamedTuple):
    """What the clients of a stack hold on to while they train."""

    anchor: Any  # each leaf [K, ...], or as it is where all clients share it
    axes: Any  # for each leaf 0, or None where it is shared

    def of(self, rows: Any) -> Any:
        """Some clients' anchors, or one's."""
        return trees.transform(lambda t, a: t if a is None else t[rows], self.anchor, self.axes)

    def advanced(self, rows: slice | Tensor, count: int, new: Params) -> "Held":
        """With other values of some leaves for some of ``count`` clients, who do not share these any more."""
        before, after = trees.arrays(self.anchor), dict(new)
        if isinstance(rows, Tensor) or rows != slice(0, count):
            for name, values in new.items():
                t = before[name]
                after[name] = (t.expand(count, *t.shape) if t.dim() < values.dim() else t).clone()
                after[name][rows] = values
        anchor = trees.restore(self.anchor, before | after)
        axes = trees.transform(lambda t, now, a: a if now is t else 0, self.anchor, anchor, self.axes)
        return Held(anchor, axes)


class Plan:
    """What a chunk's training depends on besides the tensors: who has how many examples when."""

    def __init__(self, begun: Sequence[Begun], batch_size: int, mixing: bool, device: torch.device):
        first = begun[0]
        self.sgd = first.sgd
        self.augmentation, self.dtype = first.data.augmentation, first.data.dtype
        self.mean, self.std = first.data.mean.to(device), first.data.std.to(device)
        self.axes, self.shared = _axes([b.anchor for b in begun])
        sizes = [len(b.data) for b in begun]
        epochs = [len(b.draws.order) for b in begun]
        self.widths = tuple(
            tuple(min(batch_size, n - start) for start in range(0, n, batch_size)) * e
            for n, e in zip(sizes, epochs, strict=True)
        )
        self.steps = [self._parts(step, mixing, device) for step in range(len(self.widths[0]))]
        self.emptiest = self._emptiest()

    def _emptiest(self) -> tuple[int, int, int] | None:
        """Row, step and size of the batch that has the fewest examples of those that are filled up."""
        least = [(min(w), row, w.index(min(w))) for row, w in enumerate(self.widths)]
        short = [(n, r, s) for n, r, s in least if (p := self.steps[s][0]).filled and n < p.width]
        size, row, step = min(short, default=(0, 0, 0))
        return (row, step, size) if size else None

    def _parts(self, step: int, mixing: bool, device: torch.device) -> list[Part]:
        widths = [w[step] for w in self.widths if len(w) > step]  # of the first rows: they are sorted
        if len(set(widths)) == 1 or not mixing:
            return [Part(slice(0, len(widths)), max(widths), len(set(widths)) > 1)]
        found = []
        for width in sorted(set(widths), reverse=True):
            rows = [i for i, w in enumerate(widths) if w == width]
            found.append(Part(torch.tensor(rows, device=device), width, filled=False))
        return found


class Vectorised:
    """Visits side by side in one process, on the device that holds the model and the data."""

    def __init__(self, work: Work, options: Options | None = None):
        self.work = work
        self.options = options or Options()
        self._model = work.model
        if self.options.convolutions == "matmul":
            self._model = with_matmul_convolutions(work.model)
        self._mixing = mixes_examples(work.model)
        on_cpu = work.model.device.type == "cpu"
        if self.options.graph and on_cpu:
            raise UserError("graph = true needs a GPU, and this run is on the CPU.")
        self._chunk = self.options.chunk or (CPU_CHUNK if on_cpu else None)
        self._graphs: dict[int, OrderedDict[Any, Recorded]] = {}
        self._maps, self._untried = 0, False

    def map(self, jobs: Sequence[Job]) -> Iterator[Visit]:
        """The visits in the order of their jobs."""
        return self.map_all([(self.work, job) for job in jobs])

    def map_all(self, tasks: Sequence[tuple[Work, Job]]) -> Iterator[Visit]:
        """The visits of several federations at once.

        Their algorithm, network, data set and batch size must be this backend's; seeds,
        partitions and learning rates may differ. One rate is one stack.
        """
        self._maps += 1
        self._untried |= self._maps <= 2 or self._maps % TRIED_EVERY == 0
        done: dict[int, Visit] = {}
        left: list[int] = []
        for i, (work, job) in enumerate(tasks):
            if work.federation.size(job.client):
                left.append(i)
            else:
                failure = Failure(job.client, job.round, None, "it has no examples")
                done[i] = failed(job.client, work.federation.client(job.client), job.memory, 0.0, failure)
        steps = {i: tasks[i][0].steps(tasks[i][1]) for i in left}
        left.sort(key=lambda i: -steps[i])
        # Not a generator: the first chunks are under way when this returns.
        return self._results(tasks, left, self._launch(tasks, left), done)

    def _results(
        self, tasks: Sequence[tuple[Work, Job]], left: list[int], wave: "_Wave", done: dict[int, Visit]
    ) -> Iterator[Visit]:
        while wave.size:
            try:
                done |= self._collect(tasks, wave)
                left = left[wave.size :]
            except RuntimeError as error:  # a visit is a function of its job: made again, it is the same
                if not (for_want_of_memory(error) and self._halve(wave.size)):
                    raise
            del wave  # before the next one needs its memory
            wave = self._launch(tasks, left)
        for i in range(len(tasks)):
            yield done.pop(i)

    def close(self) -> None:
        """Free the recorded trainings."""
        self._graphs.clear()

    def _launch(self, tasks: Sequence[tuple[Work, Job]], left: Sequence[int]) -> "_Wave":
        """Start the training of the next chunks: recorded ones overlap with each other."""
        while True:
            try:
                return self._attempt(tasks, left)
            except RuntimeError as error:
                if not (for_want_of_memory(error) and self._halve(len(left))):
                    raise

    def _attempt(self, tasks: Sequence[tuple[Work, Job]], left: Sequence[int]) -> "_Wave":
        # A frame of its own: when it fails for want of memory, what it held is free before the next one.
        size = self._size(len(left))
        wave = _Wave(time.perf_counter(), min(size * self.options.lanes, len(left)), [], {})
        for lane in range(self.options.lanes if size else 0):
            under_way: Counter[Any] = Counter()
            chunk = left[lane * size : (lane + 1) * size]
            if len(chunk) == 1 and not self.options.graph:
                work, job = tasks[chunk[0]]
                (wave.done[chunk[0]],) = Serial(work).map([job])
                continue
            begun = {i: self._begin(*tasks[i]) for i in chunk}
            for group in self._alike(begun):
                if len(group) == 1 and not self.options.graph:
                    (i,) = group
                    work, job = tasks[i]
                    (wave.done[i],) = Serial(work).map([job])
                else:
                    wave.under_way.append(self._train(group, lane, under_way))
        return wave

    def _size(self, count: int) -> int:
        return min(self._chunk or count, count)

    def _halve(self, count: int) -> bool:
        """Whether the chunks that ``count`` clients were divided into can be smaller; then the next are."""
        size = self._size(count)
        if size == 1:
            return False
        device = self.work.model.device
        if device.type == "cuda":  # nothing may still read or write what is let go
            torch.cuda.synchronize(device)
        self._graphs.clear()  # of larger chunks than will come again; those under way live with their wave
        self._chunk = size // 2
        return True

    def _collect(self, tasks: Sequence[tuple[Work, Job]], wave: "_Wave") -> dict[int, Visit]:
        """Finish every visit of a wave."""
        done = dict(wave.done)
        goes_on = advances(self.work.algorithm)
        for group, state, held, losses, recorded, plan, stack in wave.under_way:
            if recorded is not None:
                recorded.wait()
            if self._untried:
                trained = stack._replace(state=state)
                self._untried = not try_filling(self.work.algorithm, self._model, plan, trained, held)
            state = state._replace(velocity={})  # which nobody asks for any more
            for row, (i, begun) in enumerate(group.items()):
                mine = trees.detached(trees.take(state, row))  # a view would keep the whole stack alive
                if goes_on:
                    begun = begun._replace(anchor=trees.detached(held.of(row)))
                work, job = tasks[i]
                found = losses[: begun.sgd.steps, row]
                done[i] = end(work.algorithm, work.model, begun, mine, found, job.round)
        # Nobody's own time can be told from the others': it is shared out by the number of steps.
        seconds = time.perf_counter() - wave.since
        steps = {i: tasks[i][0].steps(tasks[i][1]) for i in done}
        total = sum(steps.values())
        return {i: v._replace(seconds=seconds * steps[i] / total) for i, v in done.items()}

    @staticmethod
    def _begin(work: Work, job: Job) -> Begun:
        return begin(
            work.algorithm,
            work.model,
            work.recipe,
            work.federation.client(job.client),
            job.down,
            job.memory,
            seed=work.seed,
            round_number=job.round,
            client=job.client,
        )

    @staticmethod
    def _alike(begun: dict[int, Begun]) -> list[dict[int, Begun]]:
        """Clients whose tensors have the same shapes and whose optimisers are the same."""
        groups: dict[Any, dict[int, Begun]] = {}
        for i, b in begun.items():
            shapes = tuple((n, t.shape, t.dtype) for n, t in trees.leaves((b.anchor, b.state)))
            groups.setdefault((b.sgd._replace(steps=0), shapes), {})[i] = b
        return list(groups.values())

    def _train(self, group: dict[int, Begun], lane: int, under_way: "Counter[Any]") -> "_UnderWay":
        """The stack's last state, and the losses [S, K].

        ``under_way`` counts the lane's recorded trainings whose results still lie where they were made.
        """
        begun = list(group.values())
        batch_size = self.work.recipe.batch_size
        device = next(iter(begun[0].state.params.values())).device
        for name, value in trees.others(begun[0].anchor):
            raise UserError(
                f"what `prepare` returns has {name} = {value!r}, which cannot be stacked for many clients: "
                "make it a tensor, or take the serial backend, processes or ray."
            )
        plan = Plan(begun, batch_size, self._mixing, device)
        stack = stacked(begun, batch_size, plan.axes, device)
        if not self.options.graph:
            with _nothing_drawn(begun[0].chance, device):
                trained = local_training(self.work.algorithm, self._model, plan, stack)
            return _UnderWay(group, *trained, None, plan, stack)
        shapes = tuple((n, t.shape, t.dtype) for n, t in trees.leaves(stack))
        alike = (plan.widths, plan.sgd._replace(lr=0.0), plan.shared, shapes)
        key = (*alike, under_way[alike])
        under_way[alike] += 1
        kept = self._graphs.setdefault(lane, OrderedDict())
        if key not in kept:
            while len(kept) >= GRAPHS_KEPT:
                kept.popitem(last=False)
            with _nothing_drawn(begun[0].chance, device):
                kept[key] = Recorded(self.work.algorithm, self._model, plan, stack)
        kept.move_to_end(key)
        return _UnderWay(group, *kept[key].start(stack), kept[key], plan, stack)


def local_training(
    algorithm: FedAvg, model: Model, plan: Plan, stack: Stack, lr: Tensor | None = None
) -> tuple[State, Held, Tensor]:
    """Train the whole stack from its first step to its last; a function of tensors alone."""
    take_step = mapped_stepper(algorithm, model, plan.sgd, lr)
    with contracts.untouched(stack.anchor, *contracts.IN_STEPS):
        return train(take_step, stack.state, Held(stack.anchor, plan.axes), batches(plan, stack), stack.key)


def mapped_stepper(algorithm: FedAvg, model: Model, sgd: Sgd, lr: Tensor | None = None) -> Any:
    """A step of local SGD for a stack of clients, as `training.stepper` is one for one client."""

    def gradient(
        params: Params, buffers: Params, anchor: Any, batch: Batch, key: Tensor
    ) -> tuple[Params, Tensor, Params, Params]:
        def objective(params: Params) -> tuple[Tensor, Params]:
            student = model.student(buffers, key)
            loss = contracts.objective(local_loss(algorithm, student, params, anchor, batch))
            return loss, student.buffers

        grads, (loss, buffers) = grad_and_value(objective, has_aux=True)(params)
        corrected = contracts.gradients(algorithm.correct(dict(grads), anchor), params)
        return corrected, loss, buffers, grads if goes_on else {}

    def left(params: Params, before: Params, anchor: Any, batch: Batch) -> Params:
        return contracts.settled(algorithm.settle(dict(params), before, anchor, batch), params)

    def going_on(anchor: Any, weights: Weights, grads: Params, batch: Batch) -> Params:
        made = contracts.advanced(algorithm.advance(anchor, weights, grads, batch), anchor)
        before = trees.arrays(anchor)
        return {name: t for name, t in trees.leaves(made) if t is not before[name]}

    keeps_before, goes_on = settles(algorithm), advances(algorithm)

    def take_step(
        state: State, held: Held, parts: Iterable[tuple[slice | Tensor, Batch]], key: Tensor
    ) -> tuple[State, Held, Tensor]:
        losses = torch.zeros(len(key), dtype=_dtype(state), device=key.device)
        for rows, batch in parts:
            params, buffers, velocity = trees.take(state, rows)
            mine, axes = held.of(rows), held.axes
            batch_axes = Batch(0, 0, 0, None if batch.mask is None else 0, 0)  # type: ignore[arg-type]
            copied = mine if isinstance(rows, Tensor) else ()  # where a change would be lost without a trace
            with explained(*UNMAPPED), contracts.untouched(copied, *contracts.IN_STEPS):
                grads, loss, buffers, raw = vmap(
                    gradient, in_dims=(0, 0, axes, batch_axes, 0), randomness="different"
                )(params, buffers, mine, batch, key[rows])
            before = trees.detached(params) if keeps_before else {}
            descend(params, grads, velocity, sgd, lr)
            if keeps_before:
                with explained(*UNMAPPED), contracts.untouched(copied, *contracts.IN_STEPS):
                    settle = vmap(left, in_dims=(0, 0, axes, batch_axes), randomness="different")
                    overwrite(params, settle(params, before, mine, batch))
            if goes_on:
                weights = Weights(params, buffers)
                with explained(*UNMAPPED), contracts.untouched(copied, *contracts.IN_STEPS):
                    advance = vmap(going_on, in_dims=(axes, 0, 0, batch_axes), randomness="different")
                    made = advance(mine, weights, raw, batch)
                held = held.advanced(rows, len(key), apart(made, weights))
            losses[rows] = loss
            for name, values in buffers.items():
                state.buffers[name][rows] = values
            if isinstance(rows, Tensor):  # then what was descended is a copy
                for whole, changed in ((state.params, params), (state.velocity, velocity)):
                    for name, values in changed.items():
                        whole[name][rows] = values
        return state, held, losses

    return take_step


UNMAPPED = (
    "vmap|functorch|[Bb]atching rule|captured Tensor|broadcast shape",
    "(such as .item(), boolean indexing, spectral norm, a change in place of what it is given) that the "
    "vectorised backend cannot do for many clients at once: take the serial backend, processes or ray.",
)
UNRECORDED = (
    "captur",
    "(a tensor made of numbers, a wait for the device) that cannot be recorded: leave graph=true out, in a "
    "new process, as this one may have lost its GPU.",
)
"""What PyTorch's error has in it, and what is to be said then."""


@contextmanager
def explained(signs: str, sentence: str) -> Iterator[None]:
    """Say in a sentence that a network or an algorithm does what cannot be done here."""
    try:
        yield
    except RuntimeError as error:
        text = " ".join(str(error).split())
        if for_want_of_memory(error) or not re.search(signs, text):
            raise
        raise UserError(
            f"the network or the algorithm does something {sentence} PyTorch says: {text[:300]}"
        ) from error


def try_filling(algorithm: FedAvg, model: Model, plan: Plan, stack: Stack, held: Held) -> bool:
    """Whether there is a batch that is filled up; UserError unless its loss is what it would be elsewhere.

    Of one client with the weights that it has by now: what a loss looks at may be nothing before a first
    step. In double precision, because what a norm makes of rounding can be anything.
    """
    if plan.emptiest is None:
        return False
    row, step, size = plan.emptiest
    alone = Part(slice(row, row + 1), plan.steps[step][0].width, filled=True)
    filled = Batch(*trees.take(batch_of(plan, stack, step, alone), 0))
    x, y = 1 - filled.x[size:], (filled.y[size:] + 1) % (stack.y.max() + 1)
    other = filled._replace(x=torch.cat([filled.x[:size], x]), y=torch.cat([filled.y[:size], y]))
    params, buffers, _ = trees.take(stack.state, row)
    given = params, buffers, held.of(row)

    def loss(batch: Batch, params: Params, buffers: Params, anchor: Any) -> Tensor:
        student = model.exact().student(buffers, stack.key[row])
        return contracts.scalar(local_loss(algorithm, student, params, anchor, batch))

    def close(one: Tensor, two: Tensor) -> bool:
        return torch.allclose(one, two, rtol=1e-5, atol=1e-6)

    with torch.no_grad():
        try:
            exact, full = trees.transform(_doubled, (given, other))
            cut = {part: getattr(full, part)[:size] for part in ("x", "y", "place")}
            one, two = loss(full, *exact), loss(full._replace(mask=None, **cut), *exact)
        except RuntimeError:  # it has numbers in single precision of its own: in batches of one size, then
            exact, full = given, filled
            one, two = loss(filled, *given), loss(other, *given)
        if not two.isfinite() or close(one, two):
            return True
        if not close(one, loss(full, *exact)):
            raise UserError(
                "`loss` says something else when it is asked the same again (it draws random numbers of "
                "Python's or of a generator of its own, or keeps count), which the vectorised backend could "
                "not repeat: draw in `prepare`, or take the serial backend, processes or ray."
            )
    raise UserError(
        "`loss` counts what a small batch is filled up with here: average the examples' losses with "
        "batch.mean, not with .mean(), .sum() or len(batch.y); what is made of several examples at once "
        "needs batch.mask."
    )


def _doubled(t: Tensor) -> Tensor:
    return t.double() if t.is_floating_point() else t


@contextmanager
def _nothing_drawn(chance: int | None, device: torch.device) -> Iterator[None]:
    """Refuse steps that draw from the shared streams: whose numbers they get depends on who is stacked."""
    with streams.seeded(chance, "steps"):
        at, on_device = streams.places(), _on_device(device)
        yield
        if streams.moved(at) or not torch.equal(on_device, _on_device(device)):
            raise UserError(
                "the network or the algorithm draws random numbers in its steps, or seeds them (F.dropout, "
                "torch.randn, np.random, ...), which the vectorised backend could not repeat: use nn.Dropout "
                "as a layer, draw in `prepare`, or take the serial backend, processes or ray."
            )


def _on_device(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.empty(0)


def batches(plan: Plan, stack: Stack) -> Iterator[list[tuple[slice | Tensor, Batch]]]:
    """Every step's batches of the clients that still train."""
    for step, parts in enumerate(plan.steps):
        yield [(part.rows, batch_of(plan, stack, step, part)) for part in parts]


def batch_of(plan: Plan, stack: Stack, step: int, part: Part) -> Batch:
    """A part's batches of a step, [k, B, ...]."""
    rows, width, filled = part
    place = stack.place[rows, step, :width]  # [k, B]
    index = place + stack.offset[rows, None]
    drawn = trees.transform(lambda d: d[rows, step, :width], stack.augmentation)
    x = plan.augmentation.apply(stack.x[index], drawn, plan.mean, plan.std, plan.dtype)
    mask = stack.taken[rows, step, :width] if filled else None
    return Batch(x, stack.y[index], place, mask, stack.progress[rows, step])


def stacked(begun: Sequence[Begun], batch_size: int, axes: Any, device: torch.device) -> Stack:
    """Begun visits, longest first, as one stack on the device."""
    last = max(b.sgd.steps for b in begun)
    batch_size = min(batch_size, max(len(b.data) for b in begun))  # no wider than anybody fills

    def steps_of(drawn: Tensor) -> Tensor:
        """[E, n, ...] in the order of training as [S, B, ...], filled up with zeros."""
        epochs, n = drawn.shape[:2]
        count = -(-n // batch_size)
        filled = drawn.new_zeros(last, batch_size, *drawn.shape[2:])
        by_epoch = drawn.new_zeros(epochs, count * batch_size, *drawn.shape[2:])
        by_epoch[:, :n] = drawn
        filled[: epochs * count] = by_epoch.view(epochs * count, batch_size, *drawn.shape[2:])
        return filled

    # Stacked before they are moved: one transfer, not one for each client.
    draws = trees.stack([trees.transform(steps_of, (b.draws.order, b.draws.augmentation)) for b in begun])
    taken = torch.stack([steps_of(torch.ones_like(b.draws.order, dtype=torch.bool)) for b in begun])
    (place, augmentation), taken, key = trees.transform(
        lambda t: t.to(device), (draws, taken, torch.stack([b.draws.key for b in begun]))
    )
    progress = torch.zeros(len(begun), last, dtype=begun[0].data.dtype)
    for row, b in enumerate(begun):
        progress[row, : b.sgd.steps] = shares(b.sgd.steps, progress.dtype, progress.device)
    sizes = torch.tensor([0, *(len(b.data) for b in begun[:-1])])
    anchors = [b.anchor for b in begun]
    return Stack(
        state=trees.stack([b.state for b in begun]),
        anchor=trees.transform(
            lambda t, a, *ts: t if a is None else torch.stack([t, *ts]), anchors[0], axes, *anchors[1:]
        ),
        x=torch.cat([b.data.x for b in begun]),
        y=torch.cat([b.data.y for b in begun]),
        offset=sizes.cumsum(0).to(device),
        place=place,
        taken=taken,
        progress=progress.to(device),
        augmentation=augmentation,
        key=key,
        lr=torch.tensor(begun[0].sgd.lr, dtype=_dtype(begun[0].state)).to(device),
    )


def for_want_of_memory(error: RuntimeError) -> bool:
    """Whether the device has no room left, in the words of PyTorch, CUDA or cuBLAS."""
    said = re.search("out of memory|ALLOC_FAILED", str(error))
    return isinstance(error, torch.OutOfMemoryError) or (said is not None and "CU" in str(error))


class Recorded:
    """A whole local training as a CUDA graph: recorded once, replayed on other tensors.

    The learning rate is one of the tensors, everything else that is not (momentum, who has how
    many examples) must be as it was.
    """

    def __init__(self, algorithm: FedAvg, model: Model, plan: Plan, stack: Stack):
        self._inputs: Stack = trees.detached(stack)
        self._device = stack.key.device  # not always torch's current one, which streams and graphs are of
        with torch.cuda.device(self._device):
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream())
            self._warm_up(algorithm, model, plan, stack)
            self._graph = torch.cuda.CUDAGraph()
            # Within its stream, because the one before is not put back where a recording fails.
            recording = torch.cuda.graph(self._graph, stream=self._stream)
            with explained(*UNRECORDED), torch.cuda.stream(self._stream), recording:
                self._outputs = local_training(algorithm, model, plan, self._inputs, self._inputs.lr)
        self._plan = plan  # the graph reads its tensors

    def _warm_up(self, algorithm: FedAvg, model: Model, plan: Plan, stack: Stack) -> None:
        """Train once for real, so that libraries choose their kernels."""
        with torch.cuda.stream(self._stream):
            warm: Stack = trees.detached(stack)
            local_training(algorithm, model, plan, warm, warm.lr)

    def start(self, stack: Stack) -> tuple[State, Held, Tensor]:
        """Begin to train this stack, which must live until `wait`; the result is valid after that."""
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                trees.transform(lambda mine, given: mine.copy_(given), self._inputs, stack)
                self._graph.replay()
        return self._outputs

    def wait(self) -> None:
        """Let whatever is asked of the device from now on come after the training."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


class _UnderWay(NamedTuple):
    """A stack in training, or trained."""

    group: dict[int, Begun]
    state: State
    held: Held
    losses: Tensor
    recorded: Recorded | None
    plan: Plan
    stack: Stack  # alive while another stream may read it


class _Wave(NamedTuple):
    """Chunks that are begun before the first of them is finished."""

    since: float
    size: int
    under_way: list[_UnderWay]
    done: dict[int, Visit]


def mixes_examples(model: Model) -> bool:
    """Whether an example's logits depend on the rest of its batch, as far as one can tell."""
    statistics = model.initial().buffers.keys() - model.constants
    return bool(statistics) or model.contains(_BatchNorm) or model.drops_across


def with_matmul_convolutions(model: Model) -> Model:
    """The same network, its plain convolutions as matrix products when it trains."""
    return model.edited(_use_matmul)


def _use_matmul(module: nn.Module) -> None:
    for layer in module.modules():
        if not kernels.is_convolution(layer):
            continue
        if (layer.groups, layer.padding_mode, layer.dilation) == (1, "zeros", (1, 1)):
            layer.__class__ = _MatmulConv2d


class _MatmulConv2d(nn.Conv2d):
    """One matrix product for the whole batch, so that a stack of kernels is one batched product."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, self._reversed_padding_repeated_twice)
        (b, c), (h, w) = x.shape[:2], x.shape[-2:]
        # Examples as channels: on a GPU there is one launch for each entry of what is unfolded.
        windows = F.unfold(x.reshape(1, b * c, h, w), self.kernel_size, stride=self.stride)
        h = (h - self.kernel_size[0]) // self.stride[0] + 1
        w = (w - self.kernel_size[1]) // self.stride[1] + 1
        windows = windows.view(b, -1, h * w)  # [B, C k k, H W]
        columns = windows.transpose(0, 1).flatten(1)  # [C k k, B H W]
        y = self.weight.flatten(1) @ columns
        if self.bias is not None:
            y = y + self.bias[:, None]
        return y.view(-1, b, h, w).transpose(0, 1)


def _axes(anchors: Sequence[Any]) -> tuple[Any, tuple[bool, ...]]:
    """For each leaf None if it is the same tensor for all clients, else 0; and whether it is, in order."""
    shared: list[bool] = []

    def axis(first: Tensor, *others: Tensor) -> int | None:
        shared.append(all(t is first for t in others))
        return None if shared[-1] else 0

    return trees.transform(axis, anchors[0], *anchors[1:]), tuple(shared)


def _dtype(state: State) -> torch.dtype:
    return next(iter(state.params.values())).dtype
