"""Replies: what becomes of one that is late, or that nobody can read, is nobody else's loss."""

import threading

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedrecall.errors import Malformed
from fedrecall.flower import replies
from fedrecall.flower.replies import Replies


def reply(identity: str, error: bool = False) -> Message:
    question = Message(RecordDict(), 1, "query")
    question.metadata.__dict__["_message_id"] = identity
    return Message(Error(code=3), reply_to=question) if error else Message(RecordDict(), reply_to=question)


class Grid:
    """As Flower's: what was taken once is not there any more, and of that an error says so."""

    def __init__(self, *broken: str, stuck: str = ""):
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # what a message is from
        self.there: set[str] = set()
        self.taken: set[str] = set()
        self.requests: list[list[str]] = []
        self.broken, self.stuck, self.over = broken, stuck, threading.Event()

    def pull_messages(self, identities):
        self.requests.append(list(identities))
        gone = [reply(i, error=True) for i in identities if i in self.taken]
        mine = [i for i in identities if i in self.there]
        self.there -= set(mine)
        self.taken |= set(mine)
        if self.stuck in mine:
            self.over.wait(60)
        if broken := [i for i in mine if i in self.broken]:
            raise KeyError(broken[0])
        return gone + [reply(i) for i in mine]


def waiting(grid: Grid, count: int, **more: int) -> Replies:
    made = Replies(grid, **more)
    made.waiting.update({f"m{k}": k for k in range(count)})
    return made


def good(found) -> set[int]:
    return {node for node, answer in found if not isinstance(answer, Malformed) and not answer.has_error()}


@pytest.mark.parametrize("count", [0, 1, 64, 65, 1000])
def test_a_look_asks_once_for_every_reply_in_a_bounded_number_of_requests(count):
    grid = Grid()
    made = waiting(grid, count)
    assert list(made.arrived()) == []
    assert sorted(i for request in grid.requests for i in request) == sorted(made.waiting)
    assert len(grid.requests) <= replies.REQUESTS
    assert max(map(len, grid.requests), default=0) <= 1 + count // replies.REQUESTS  # so few share one


@pytest.mark.parametrize("count", [3, 64])
def test_of_few_replies_one_that_nobody_can_read_costs_no_other(count):
    grid = Grid("m1")
    made = waiting(grid, count)
    grid.there |= set(made.waiting)
    found = dict(made.arrived())
    assert made.waiting == {}
    assert good(found.items()) == set(range(count)) - {1}
    assert str(found[1]) == "its reply cannot be read (KeyError)"


def test_of_many_it_costs_those_that_came_with_it():
    grid = Grid("m1")
    made = waiting(grid, 8, requests=2)
    grid.there |= {"m0", "m1", "m7"}  # m0 shares the request with m1
    assert good(made.arrived()) == {7}
    grid.there |= {"m2", "m3", "m4", "m5", "m6"}
    assert good(made.arrived()) == {2, 3, 4, 5, 6}
    assert made.waiting == {}


def test_one_that_was_asked_for_twice_counts_though_the_first_to_end_has_not_got_it():
    grid = Grid()
    made = waiting(grid, 1)
    for answer in (reply("m0", error=True), reply("m0")):
        pull = replies.Pull(grid, ["m0"])
        pull.found = [answer]  # it never began, so it has ended
        made._pulls.append(pull)
    assert good(made.arrived()) == {0}


@pytest.mark.parametrize("requests", [1, 2, 8])
def test_one_that_is_on_its_way_holds_up_none_that_begins_later(requests, monkeypatch):
    monkeypatch.setattr(replies, "PATIENCE", 0.1)
    grid = Grid(stuck="m1")
    made = waiting(grid, 8, requests=requests)
    grid.there.add("m1")
    assert list(made.arrived()) == []
    grid.there |= set(made.waiting) - {"m1"}
    assert good(made.arrived()) == set(range(8)) - {1}
    assert list(made.waiting) == ["m1"]
    grid.over.set()
    for pull in made._pulls:
        pull.join(10)
    assert good(made.arrived()) == {1}


def test_a_reply_that_is_not_waited_for_any_more_is_taken_and_that_is_all(monkeypatch):
    monkeypatch.setattr(replies, "PATIENCE", 0.1)
    grid = Grid(stuck="m1")
    made = waiting(grid, 3)
    grid.there.add("m1")
    assert list(made.arrived()) == []
    del made.waiting["m1"]
    grid.over.set()
    for pull in made._pulls:
        pull.join(10)
    assert list(made.arrived()) == []
    assert made._pulls == []


def test_a_run_that_is_over_ends_the_look():
    class Over(BaseException):
        """As Flower's RunNotRunningException."""

    class Ended(Grid):
        def pull_messages(self, identities):
            raise Over

    with pytest.raises(Over):
        list(waiting(Ended(), 2).arrived())
