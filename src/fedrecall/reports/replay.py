"""A saved run brought back to life: what its clients would do next.

Some figures show models that no record holds, such as every client's own model. From the checkpoint
of a run the clients are sent the global model once more and train as the run's next round would have
them, always on this machine's CPU.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from fedrecall import streams, trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.backends.backend import Job
from fedrecall.data.federation import Federation
from fedrecall.data.partitions import PARTITIONS, Partition
from fedrecall.downloads import travelled
from fedrecall.errors import UserError
from fedrecall.ingredients import federate, make_model
from fedrecall.memories import Memories
from fedrecall.models.model import Model, Weights
from fedrecall.reports.runs import Run
from fedrecall.rounds import drawing, received
from fedrecall.training import Recipe, Visit, begin, stepper, train, visit


@dataclass(frozen=True)
class Stage:
    """The moment after a run's last saved round."""

    model: Model
    federation: Federation
    algorithm: FedAvg
    recipe: Recipe
    server: Any
    memories: Memories
    seed: int
    round_number: int
    """Of the round that is about to be played."""

    @property
    def weights(self) -> Weights:
        """The global model."""
        weights: Weights = self.server.weights
        return weights

    def visit(self, client: int) -> Visit:
        """One client's visit."""
        down, memory = self._given(client)
        made = visit(
            self.algorithm,
            self.model,
            self.recipe,
            self.federation.client(client),
            down,
            memory,
            seed=self.seed,
            round_number=self.round_number,
            client=client,
        )
        made = received(self.algorithm, self.model, made, Job(0, client, self.round_number, down, memory))
        if made.failure is not None:
            raise UserError(f"replaying {made.failure}.")
        return made

    def locals(self, clients: Sequence[int]) -> list[Weights]:
        """What these clients make of the global model."""
        return [self.trained(self.visit(client)) for client in clients]

    def trained(self, visit: Visit) -> Weights:
        """What training made of the model in a visit."""
        return self.model.part(self.algorithm.personal(visit.up.weights, visit.memory))

    def epochs(self, client: int) -> Iterator[Weights]:
        """The client's model before training and after every local epoch."""
        down, memory = self._given(client)
        begun = begin(
            self.algorithm,
            self.model,
            self.recipe,
            self.federation.client(client),
            down,
            memory,
            seed=self.seed,
            round_number=self.round_number,
            client=client,
        )
        state, anchor = begun.state, begun.anchor
        epochs = len(begun.draws.order)
        steps = begun.sgd.steps // epochs
        yield self.model.part(Weights(*trees.detached((state.params, state.buffers))))
        step = stepper(self.algorithm, self.model, begun.sgd)
        batches = begun.data.training_batches(begun.draws, self.recipe.batch_size)
        with streams.seeded(begun.chance, "steps"):
            at = streams.places()
        for epoch in range(epochs):
            key = begun.draws.key + epoch * steps
            with streams.seeded(begun.chance, "steps"):
                streams.go_on(at)  # where the epoch before left off
                state, anchor, _ = train(step, state, anchor, islice(batches, steps), key)
                at = streams.places()
            yield self.model.part(Weights(*trees.detached((state.params, state.buffers))))

    def _given(self, client: int) -> tuple[Any, Any]:
        seed = None if self.algorithm.secret else self.seed
        with drawing(seed, self.round_number, "broadcast"):
            down = self.algorithm.broadcast(self.model, self.server, self.federation.auxiliary)
        with drawing(seed, self.round_number, "wrap", 0, 0):
            _, down = travelled(self.algorithm, self.model, down)
        return down, self.memories.get(client)


def stage(
    run: Run, *, algorithm: Any = None, partition: Any = None, round_number: int | None = None, **recipe: Any
) -> Stage:
    """The stage after a run's last saved round (or this one).

    Another ``algorithm`` starts from the run's global model with nothing remembered; another
    ``partition`` divides the same data anew, by the run's global seed if that deals it; ``recipe`` replaces
    how clients train, such as ``local_epochs=10``, which all make then.
    """
    if "local_epochs" in recipe:
        recipe = {"stragglers": 0.0, **recipe}
    settings = run.settings
    other = algorithm is not None
    if other:
        settings = replace(settings, algorithm=algorithm)
    if partition is not None:
        dealt_globally = type(PARTITIONS.make(partition)).global_owners is not Partition.global_owners
        seed = settings.global_seed if dealt_globally else None
        settings = replace(settings, partition=partition, global_seed=seed)
    made = ALGORITHMS.make(settings.algorithm)
    checkpoint = run.checkpoint(round_number)
    weights = run.weights(checkpoint.round_number)
    model = run.model
    if other and type(made).equip is not FedAvg.equip:  # it notes or adds something in the network
        model = make_model(settings, run.inputs, made)
        needed, held = ({n: t.shape for n, t in trees.leaves(w)} for w in (model.initial(), weights))
        if needed != held:
            raise UserError(
                f"{settings.algorithm['name']} trains another network than that of {run.path}: leave it out, "
                "or give a run that was made with it."
            )
    server = made.start(weights)
    memories = Memories(made.remember(weights), run.path / "memories")
    if not other:
        server = trees.restore(server, checkpoint.arrays, f"the checkpoint of {run.path}")
        if partition is None:
            memories.load(checkpoint.memories)
    return Stage(
        model,
        federate(settings, run.dataset, made, run.folder if partition is None else None),
        made,
        replace(settings.training, **recipe),
        server,
        memories,
        settings.seed,
        checkpoint.round_number + 1,
    )
