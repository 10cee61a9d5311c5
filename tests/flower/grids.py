"""A grid without processes: every node's ClientApp is called in this one, and may be tampered with."""

from collections.abc import Callable, Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.supercore.task_identity import TaskIdentity

from fedrecall.flower import client

Tamper = Callable[[int, Message], Message | None]


class Grid:
    """Nodes by id, each with the config of a SuperNode."""

    def __init__(self, nodes: dict[int, dict[str, object]], tamper: Tamper | None = None):
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # what a message is from
        self.nodes, self.tamper = nodes, tamper
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self.states: dict[int, RecordDict] = {}
        self._replies: dict[str, Message] = {}
        self._count = 0

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        identities = []
        for message in messages:
            self._count += 1
            identity = f"message-{self._count}"
            message.metadata.__dict__["_message_id"] = identity
            self.sent.append(message)
            identities.append(identity)
            node = message.metadata.dst_node_id
            reply = self.answer(node, message)
            if self.tamper is not None:
                reply = self.tamper(node, reply)
            if reply is not None:
                self.received.append(reply)
                self._replies[identity] = reply
        return identities

    def answer(self, node: int, message: Message) -> Message:
        """As Flower's flwr-clientapp does it."""
        state = self.states.get(node, RecordDict())
        context = Context(run_id=1, node_id=node, node_config=self.nodes[node], state=state, run_config={})
        try:
            return client.app(message=message, context=context)
        except Exception as error:
            return Message(Error(code=2, reason=repr(error)), reply_to=message)
        finally:
            self.states[node] = context_from_proto(context_to_proto(context)).state

    def pull_messages(self, identities: Iterable[str]) -> list[Message]:
        # Latest first: replies come in any order.
        return [self._replies.pop(i) for i in reversed(list(identities)) if i in self._replies]
