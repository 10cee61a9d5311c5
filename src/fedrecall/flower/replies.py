"""Replies to messages, as far as they have arrived: one that is on its way holds up no other."""

import math
import threading
import time
from collections.abc import Iterator, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from fedrecall.errors import Malformed

PATIENCE = 1.0
"""Seconds that a request for replies may hold up the next one."""
REQUESTS = 64
"""Most requests of a look. Of more nodes several share one, and so do their replies what becomes of it."""


class Pull(threading.Thread):
    """A request for replies: Flower ends it when those that nodes have begun to send are there in full.

    That may take as long as sending does, or for ever, and cannot be called off: the process ends without it.
    """

    def __init__(self, grid: Grid, identities: Sequence[str]):
        super().__init__(daemon=True)
        self.grid, self.identities = grid, identities
        self.found: list[Message] = []
        self.error: BaseException | None = None
        self.seconds = 0.0

    def run(self) -> None:
        """Ask, and keep what comes of it for whoever started this."""
        began = time.monotonic()
        try:
            self.found = list(self.grid.pull_messages(self.identities))
        except BaseException as error:
            self.error = error
        self.seconds = time.monotonic() - began


class Replies:
    """The replies that are waited for."""

    def __init__(self, grid: Grid, requests: int = REQUESTS):
        self.grid, self.requests = grid, requests
        self.waiting: dict[str, int] = {}
        """By id of the message the node that has it; what is taken out is not waited for any more."""
        self.in_vain = 0.0
        """Seconds that the last look took where there was no reply."""
        self._pulls: list[Pull] = []

    def arrived(self) -> Iterator[tuple[int, Message | Malformed]]:
        """The replies that are there, by node, or why one cannot be read; they are waited for no longer."""
        for identities in self._requests():
            pull = Pull(self.grid, identities)
            self._pulls.append(pull)
            pull.start()
            pull.join(PATIENCE)  # one at a time: where all are asked for at once, the SuperLink is busy
        ended = [pull for pull in self._pulls if not pull.is_alive()]
        self._pulls = [pull for pull in self._pulls if pull not in ended]
        self.in_vain = sum(pull.seconds for pull in ended if not pull.found)
        for pull in ended:
            yield from self._unreadable(pull)
        found = [reply for pull in ended for reply in pull.found]
        for reply in sorted(found, key=Message.has_error):  # one that was asked for twice comes once
            identity = reply.metadata.reply_to_message_id
            if reply.has_error() and any(identity in pull.identities for pull in self._pulls):
                continue
            if (node := self.waiting.pop(identity, None)) is not None:
                yield node, reply

    def _requests(self) -> list[list[str]]:
        """What to ask for: of those under way with others some may not have begun, and are asked for anew."""
        alone = {pull.identities[0] for pull in self._pulls if len(pull.identities) == 1}
        due = [i for i in self.waiting if i not in alone]
        size = max(1, math.ceil(len(due) / self.requests))
        return [due[k : k + size] for k in range(0, len(due), size)]

    def _unreadable(self, pull: Pull) -> Iterator[tuple[int, Malformed]]:
        if pull.error is None:
            return
        if not isinstance(pull.error, Exception):
            raise pull.error  # the run is over
        if len(pull.identities) == 1 and (node := self.waiting.pop(pull.identities[0], None)) is not None:
            yield node, Malformed(f"its reply cannot be read ({type(pull.error).__name__})")
