"""Who is sampled, how chains are walked, and what is combined."""

import math
import zlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest
import torch

from fedrecall import rounds
from fedrecall.algorithms.fedavg import Down, FedAvg, Memory, Server, Up
from fedrecall.algorithms.hooks import Cohort
from fedrecall.errors import Diverged, UserError
from fedrecall.memories import Memories
from fedrecall.models.model import Weights
from fedrecall.training import Failure, Visit


def weights(*values):
    return Weights({"w": torch.tensor(values, dtype=torch.float64)}, {"count": torch.tensor(int(values[0]))})


class Scripted:
    """A backend whose client k adds k to the model, holds k + 1 examples, and fails if told to."""

    def __init__(self, failing=()):
        self.failing, self.jobs = failing, []

    def map(self, jobs):
        self.jobs.append([(j.chain, j.client, j.down.weights.params["w"][0].item()) for j in jobs])
        for j in jobs:
            if j.client in self.failing:
                yield Visit(
                    j.client, j.client + 1, None, j.memory, 0.0, 0.0, Failure(j.client, j.round, 1, "told to")
                )
            else:
                up = Up(weights(j.down.weights.params["w"][0].item() + j.client))
                yield Visit(j.client, j.client + 1, up, j.memory, 0.0, 0.0)

    def close(self):
        pass


def play(sampled, chains, failing=(), algorithm=None, backend=None):
    backend = backend or Scripted(failing)
    played = rounds.play(
        algorithm or FedAvg(),
        SimpleNamespace(constants=frozenset()),
        Server(weights(0.0)),
        Memories(Memory()),
        backend,
        None,
        population=10,
        sampled=sampled,
        chain_count=chains,
        round_number=1,
    )
    return played, backend.jobs


def test_sampling_is_without_replacement_keyed_and_covers_everyone():
    seen = set()
    for number in range(1, 60):
        chosen = rounds.sample(10, 3, 0, number)
        assert len(set(chosen)) == 3
        assert chosen == rounds.sample(10, 3, 0, number)
        seen |= set(chosen)
    assert seen == set(range(10))
    assert sorted(rounds.sample(10, 10, 0, 1)) == list(range(10))


def test_parallel_clients_all_start_from_the_server_and_are_averaged_by_examples():
    played, jobs = play([4, 1, 7], 3)
    assert jobs == [[(0, 4, 0.0), (1, 1, 0.0), (2, 7, 0.0)]]
    expected = (5 * 4 + 2 * 1 + 8 * 7) / 15
    assert played.server.weights.params["w"].item() == pytest.approx(expected, abs=1e-12)
    assert played.server.weights.buffers["count"].item() == round(expected)


def test_one_chain_hands_the_model_on():
    played, jobs = play([4, 1, 7], 1)
    assert jobs == [[(0, 4, 0.0)], [(0, 1, 4.0)], [(0, 7, 5.0)]]
    assert played.server.weights.params["w"].item() == 12


def test_a_grid_walks_chains_side_by_side_and_weighs_each_by_its_examples():
    played, jobs = play([4, 1, 7, 2, 5], 2)
    assert jobs == [[(0, 4, 0.0), (1, 2, 0.0)], [(0, 1, 4.0), (1, 5, 2.0)], [(0, 7, 5.0)]]
    first, second = 5 + 2 + 8, 3 + 6
    expected = (first * 12 + second * 7) / (first + second)
    assert played.server.weights.params["w"].item() == pytest.approx(expected, abs=1e-12)


def test_a_failed_client_is_left_out_and_a_chain_goes_on_past_it():
    played, _ = play([4, 1, 7], 3, failing=[4])
    assert played.server.weights.params["w"].item() == pytest.approx((2 * 1 + 8 * 7) / 10)
    played, jobs = play([4, 1, 7], 1, failing=[1])
    assert jobs[2] == [(0, 7, 4.0)]
    assert played.server.weights.params["w"].item() == 11


def test_if_everyone_fails_the_server_keeps_its_state():
    played, _ = play([4, 1], 2, failing=[4, 1])
    assert played.server.weights.params["w"].item() == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_sound_uploads_that_make_what_is_no_number_end_the_run(bad):
    """Whoever made the visits: every host and backend combines here, before anything is saved."""

    @dataclass(frozen=True)
    class Dividing(FedAvg):
        def aggregate(self, server: Any, ups: Any, cohort: Cohort) -> Any:
            return super().aggregate(server, ups, cohort)._replace(weights=weights(1.0, bad))

    with pytest.raises(Diverged, match="uploads make holds NaN or Inf\\."):
        play([4, 1], 2, algorithm=Dividing())
    played, _ = play([4, 1], 2, failing=[4, 1], algorithm=Dividing())  # nothing arrived: nothing is made
    assert played.server.weights.params["w"].item() == 0


def test_a_server_refines_what_it_aggregated_and_nothing_if_everyone_fails():
    @dataclass(frozen=True)
    class Doubling(FedAvg):
        by: float = 2.0

        def refine(self, model: Any, server: Any, auxiliary: Any) -> Any:
            params = {n: p * self.by for n, p in server.weights.params.items()}
            return server._replace(weights=server.weights._replace(params=params))

    plain, _ = play([4, 1], 2)
    refined, _ = play([4, 1], 2, algorithm=Doubling())
    assert refined.server.weights.params["w"].item() == 2 * plain.server.weights.params["w"].item() != 0
    with pytest.raises(Diverged, match="what `refine` makes of them holds NaN or Inf\\."):
        play([4, 1], 2, algorithm=Doubling(math.nan))
    played, _ = play([4, 1], 2, failing=[4, 1], algorithm=Doubling(math.nan))
    assert played.server.weights.params["w"].item() == 0


class Coded(NamedTuple):
    code: torch.Tensor  # int8 []


LEARNT = torch.tensor([*range(9), math.nan], dtype=torch.float64)


@dataclass(frozen=True)
class Codebook(FedAvg):
    """Clients send the number of what they learnt."""

    def unpack(self, up: Any, down: Any) -> Any:
        if up.code == -50:
            zlib.decompress(bytes(8))
        assert up.code != -60
        if up.code == -70:
            torch.zeros(2**55)
        if up.code == -80:
            return Up(weights(1.0, 2.0))
        learnt = down.weights.params["w"] + LEARNT[up.code.long()]
        return Up(Weights({"w": learnt}, down.weights.buffers))


class Coding(Scripted):
    """Its clients send the codes that they are told, or their number."""

    def __init__(self, codes=None):
        super().__init__()
        self.codes = codes or {}

    def map(self, jobs):
        for j, visit in zip(jobs, super().map(jobs), strict=True):
            yield visit._replace(up=Coded(torch.tensor(self.codes.get(j.client, j.client), dtype=torch.int8)))


def test_what_clients_pack_is_unpacked_with_what_each_of_them_was_sent():
    played, backend = play([4, 1, 7], 1, algorithm=Codebook(), backend=Coding())
    assert backend == [[(0, 4, 0.0)], [(0, 1, 4.0)], [(0, 7, 5.0)]]  # the next is sent what was unpacked
    assert played.server.weights.params["w"].item() == 12
    assert [v.up.weights.params["w"].item() for v in played.visits] == [4, 5, 12]
    assert (played.bytes_down, played.bytes_up) == (3 * 16, 3)  # counted as it travels


@dataclass(frozen=True)
class Rounding(FedAvg):
    """Clients are sent the whole numbers of a model."""

    def wrap(self, down: Any) -> Any:
        return Coded(down.weights.params["w"].floor().to(torch.int8))

    def unwrap(self, sent: Any) -> Any:
        return Down(weights(sent.code.item()))

    def relay(self, down: Any, up: Any) -> Any:
        w = up.weights.params["w"]
        return Down(weights((w + 0.75).item()))


def test_what_is_sent_is_wrapped_and_clients_have_what_is_made_of_it():
    played, backend = play([4, 1, 7], 1, algorithm=Rounding())
    assert backend == [[(0, 4, 0.0)], [(0, 1, 4.0)], [(0, 7, 5.0)]]  # a relayed one, too: of 4.75 and 5.75
    assert (played.bytes_down, played.bytes_up) == (3, 3 * 16)  # counted as it travels
    played, backend = play([4, 1, 7], 3, algorithm=Rounding())
    assert backend == [[(0, 4, 0.0), (1, 1, 0.0), (2, 7, 0.0)]]
    assert played.bytes_down == 3


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (9, "Malformed: it holds NaN or Inf"),
        (99, "IndexError: index 99 is out of bounds for dimension 0"),
        (-50, "error: Error -"),
        (-60, "AssertionError: "),
        (-70, "RuntimeError: "),  # that there is not so much memory
        (-80, "Malformed: an upload, which `unpack` returns, has 'w' of shape [2], and the model's is [1]."),
    ],
)
def test_a_client_whose_upload_cannot_be_unpacked_failed(code, said):
    played, _ = play([4, 1, 7], 3, algorithm=Codebook(), backend=Coding({7: code}))
    alone, _ = play([4, 1], 2)
    assert torch.equal(played.server.weights.params["w"], alone.server.weights.params["w"])
    *good, lost = played.visits
    assert [v.failure for v in good] == [None, None]
    assert lost.up is None
    assert math.isnan(lost.loss)
    assert str(lost.failure).startswith(f"client 7, round 1: `unpack` makes nothing of its upload ({said}")


@pytest.mark.parametrize("error", [NameError("cods"), TypeError("Coded"), UserError("no codes")])
def test_what_is_wrong_with_unpack_itself_ends_the_run(error):
    @dataclass(frozen=True)
    class Broken(FedAvg):
        def unpack(self, up: Any, down: Any) -> Any:
            raise error

    with pytest.raises(type(error), match=str(error)):
        play([4, 1, 7], 3, algorithm=Broken(), backend=Coding())


def test_each_client_is_noted_with_the_model_that_arrived_there():
    def arrived(*where: Any, **how: Any) -> list[float]:
        return [w.params["w"].item() for w in play(*where, **how)[0].sent]

    assert arrived([4, 1, 7], 3) == [0, 0, 0]
    assert arrived([4, 1, 7], 1) == [0, 4, 5]
    assert arrived([4, 1, 7], 1, failing=[1]) == [0, 4, 4]
    assert arrived([4, 1, 7, 2, 5], 2) == [0, 4, 5, 0, 2]  # chain by chain, as visits are
    assert arrived([4, 1, 7], 1, algorithm=Rounding()) == [0, 4, 5]  # of 4.75 and 5.75


@dataclass(frozen=True)
class Coarse(FedAvg):
    """Up to ``most`` of a model can be sent."""

    most: float = 3.0
    in_unwrap: bool = False

    def wrap(self, down: Any) -> Any:
        return down if self.in_unwrap else self._capped(down, torch.inf)

    def unwrap(self, sent: Any) -> Any:
        return self._capped(sent, torch.nan) if self.in_unwrap else sent

    def _capped(self, down: Any, beyond: float) -> Any:
        w, count = down.weights.params["w"], down.weights.buffers
        return Down(Weights({"w": torch.where(w > self.most, beyond, w)}, count))


@pytest.mark.parametrize("in_unwrap", [False, True])
def test_whose_model_cannot_be_passed_on_failed_and_the_chain_goes_on(in_unwrap):
    hook = "`unwrap` makes of what is sent" if in_unwrap else "`wrap` makes of the model"
    played, backend = play([1, 4, 7], 1, algorithm=Coarse(3.0, in_unwrap))
    assert backend == [[(0, 1, 0.0)], [(0, 4, 1.0)], [(0, 7, 1.0)]]
    first, lost, last = played.visits
    assert str(lost.failure) == (
        f"client 4, round 1: its upload cannot be passed on: what {hook} holds NaN or Inf."
    )
    assert lost.up is None
    assert (first.failure, last.failure) == (None, None)
    assert played.server.weights.params["w"].item() == 8
    with pytest.raises(Diverged, match=f"^what {hook} holds NaN or Inf.$"):
        play([1, 4], 2, algorithm=Coarse(-1.0, in_unwrap))


def test_an_order_that_takes_a_client_out_of_the_list_it_was_given_is_told():
    @dataclass(frozen=True)
    class Popping(FedAvg):
        def arrange(self, sampled: Any, round_number: int) -> Any:
            sampled.pop()
            return sampled

    with pytest.raises(UserError, match=r"`arrange` returns \[4, 1\]: it must be the clients"):
        play([4, 1, 7], 3, algorithm=Popping())


def test_every_link_is_given_to_algorithms_that_ask():
    @dataclass(frozen=True)
    class Nosy(FedAvg):
        every_link: ClassVar[bool] = True

        def aggregate(self, server: Any, ups: Any, cohort: Cohort) -> Any:
            seen.append(
                (
                    list(cohort.clients),
                    list(cohort.link),
                    list(cohort.shares),
                    cohort.population,
                    cohort.sampled,
                )
            )
            return super().aggregate(server, ups, cohort)

    seen: list[Any] = []
    played, _ = play([4, 1, 7], 1, algorithm=Nosy())
    assert seen == [([4, 1, 7], [0, 1, 2], [0.0, 0.0, 1.0], 10, 3)]
    assert played.server.weights.params["w"].item() == 12


def test_bytes_are_counted_where_they_travel():
    played, _ = play([4, 1, 7], 3)
    one = 8 + 8  # a float64 and an int64
    assert (played.bytes_down, played.bytes_up) == (3 * one, 3 * one)
    assert Down._fields == ("weights",)


def test_a_round_counts_all_that_were_drawn_and_weighs_a_chain_by_those_that_trained():
    seen: list[Cohort] = []

    @dataclass(frozen=True)
    class Watches(FedAvg):
        def aggregate(self, server, ups, cohort):
            seen.append(cohort)
            return super().aggregate(server, ups, cohort)

    play([4, 1, 7, 2], 2, failing={1}, algorithm=Watches())  # two chains; of the first one client is left
    (cohort,) = seen
    assert (cohort.sampled, cohort.population) == (4, 10)
    assert cohort.clients == [4, 2]
    assert cohort.shares == pytest.approx([5 / 16, 11 / 16])


def test_what_a_servers_hooks_draw_differs_by_hook_chain_link_and_round_and_is_repeated():
    drawn: dict[tuple[Any, ...], float] = {}

    @dataclass(frozen=True)
    class Draws(FedAvg):
        sequential: ClassVar[bool] = True

        def note(self, *what):
            drawn[(*now, *what)] = torch.rand((), dtype=torch.float64).item()

        def arrange(self, sampled, round_number):
            self.note("arrange")
            return sampled

        def relay(self, down, up):
            self.note("relay", up.weights.params["w"].item())
            return super().relay(down, up)

        def unpack(self, up, down):
            self.note("unpack", up.weights.params["w"].item())
            return up

        def wrap(self, down):
            self.note("wrap", down.weights.params["w"].item())
            return down

        def aggregate(self, server, ups, cohort):
            self.note("aggregate")
            return super().aggregate(server, ups, cohort)

        def refine(self, model, server, auxiliary):
            self.note("refine")
            return server

    def walked(number):
        backend = Scripted()
        dialogue = rounds.walk(
            Draws(),
            SimpleNamespace(constants=frozenset()),
            Server(weights(0.0)),
            Memories(Memory()),
            None,
            population=10,
            sampled=[4, 1, 7, 2, 9, 3],
            chain_count=2,
            round_number=number,
            seed=5,
        )
        rounds.drive(dialogue, backend.map)

    for now in ((1,), (2,)):
        walked(*now)
    assert len(drawn) == 2 * (1 + 2 * 3 + 2 * 2 + 2 + (1 + 2 * 2))  # the first download is one for all
    assert len(set(drawn.values())) == len(drawn)
    before = dict(drawn)
    for now in ((1,), (2,)):
        walked(*now)
    assert drawn == before


def test_bytes_down_are_those_of_what_each_link_is_sent():
    """What travels along a chain may grow on its way."""

    class Growing(NamedTuple):
        weights: Weights
        more: torch.Tensor

    @dataclass(frozen=True)
    class Grows(FedAvg):
        def broadcast(self, model: Any, server: Any, auxiliary: Any) -> Any:
            return Growing(server.weights, torch.zeros(0, dtype=torch.float64))

        def relay(self, down: Any, up: Any) -> Any:
            return Growing(up.weights, torch.cat([down.more, torch.zeros(2, dtype=torch.float64)]))

    played, _ = play([4, 1, 7], 1, algorithm=Grows())
    assert played.bytes_down == sum(8 * numbers + 8 for numbers in (1, 3, 5))
