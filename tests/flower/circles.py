"""Secure aggregation without a federation: the nodes' half and the server's half in one process."""

from collections.abc import Callable

import torch
from flwr.app import RecordDict

from fedrecall.errors import Malformed
from fedrecall.flower import member, wire
from fedrecall.flower.secure import Mean, Round
from fedrecall.flower.wire import Call, MaskedTask, Members, Task, Unmasking
from fedrecall.training import Visit

RUN = "0123456789abcdef" * 2


class Circle:
    """Members that have sent keys and shares, as the node's half keeps them."""

    def __init__(self, count: int = 4, round_number: int = 3):
        self.clients = [10 * k for k in range(count)]
        self.round = round_number
        self.states = {c: RecordDict() for c in self.clients}
        self.keys = {c: member.offer(self.states[c], Call(RUN, round_number, c)) for c in self.clients}
        self.parcels = {c: member.share(self.states[c], self.members(c)) for c in self.clients}

    def members(self, client: int) -> Members:
        keys = [self.keys[c] for c in self.clients]
        return Members(
            *(
                RUN,
                self.round,
                client,
                list(self.clients),
                [k.sealing for k in keys],
                [k.masking for k in keys],
            )
        )

    def parcel(self, sender: int, receiver: int) -> bytes:
        return self.parcels[sender].parcels[[c for c in self.clients if c != sender].index(receiver)]

    def task(self, client: int, clients: list[int] | None = None) -> MaskedTask:
        others = [c for c in clients or self.clients if c != client]
        return MaskedTask("", 0.25, others, [self.parcel(c, client) for c in others])

    def mask(self, client: int, asked: MaskedTask, value: float = 1.0, loss: float = 2.0) -> wire.Masked:
        up = {"w": torch.full((2, 3), value)}
        task = Task("", "", RUN, self.round, client, 0, 0, "", "", 1, 0)
        return member.mask(self.states[client], task, asked, lambda: Visit(client, 5, up, None, loss, 0.5))[0]

    def unmasking(self, client: int, present: list[int]) -> Unmasking:
        return Unmasking(RUN, self.round, client, present)

    def secrets(self, client: int) -> tuple[bytes, bytes]:
        """A member's seed and private masking key, before it has masked anything."""
        kept = self.states[client][member.STATE]
        return kept["seed"], kept["masking"]


class Server:
    """The server's half over members whose visits are made, and some of whose answers are lost."""

    def __init__(self, lost: dict[str, set[int]], uploads: dict[int, torch.Tensor]):
        self.lost, self.visits = lost, {}
        for client, upload in uploads.items():
            self.visits[client] = Visit(client, 1, {"w": upload}, None, float(client), 0.5)
        self.states = {client: RecordDict() for client in uploads}
        self.said: list[tuple[str, int, RecordDict, RecordDict]] = []
        """Every question and its answer."""
        self.round = Round(self.ask, RUN, 3, {"w": next(iter(uploads.values()))})

    def play(self, weights: dict[int, int]) -> Mean:
        tasks = {c: Task("", "", RUN, 3, c, 0, 0, "", "", 1, 0) for c in self.visits}
        downs = {c: wire.pack_arrays({}) for c in self.visits}
        return self.round.play(tasks, downs, weights.__getitem__)

    def ask(self, contents, kind: str, read: Callable) -> dict[int, object]:
        found: dict[int, object] = {}
        for client, content in contents.items():
            try:
                if client in self.lost.get(kind, set()):
                    raise Malformed("lost")
                answer = self.answer(client, kind, content)
                self.said.append((kind, client, content, answer))
                found[client] = read(client, answer)
            except ValueError as error:
                found[client] = error
        return found

    def answer(self, client: int, kind: str, content: RecordDict) -> RecordDict:
        state = self.states[client]
        if kind == "query.keys":
            return wire.pack(member.offer(state, wire.unpack(content, Call, "")[0]))
        if kind == "query.shares":
            return wire.pack(member.share(state, wire.unpack(content, Members, "")[0]))
        if kind == "query.unmask":
            return wire.pack(member.reveal(state, wire.unpack(content, Unmasking, "")[0]))
        asked = wire.unpack(content, MaskedTask, "")[0]
        task = wire.values(wire.from_json(asked.task, ""), Task, "")
        hidden, seconds = member.mask(state, task, asked, lambda: self.visits[client])
        return wire.pack(wire.MaskedReport(task.round, client, seconds), hidden)
