"""Flower's own SuperLink, in memory and without a network, and SuperNodes that work when they are sent to."""

import hashlib
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    iterate_object_tree,
    pull_objects,
)
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers as fleet
from flwr.superlink.servicer.runtime import runtime_handlers as runtime

from fedrecall.flower import client

Whether = Callable[[int, Metadata], bool]


def never(_client: int, _sent: Metadata) -> bool:
    return False


class Link(HttpGrid):
    """The grid of a run, and behind it the handlers of Flower's SuperLink.

    A node that is ``dead`` to a message takes it, and that is all; one that is ``slow`` sends its reply
    when the server next sends something.
    """

    def __init__(self, held: Iterable[dict[str, Any]], *, dead: Whether = never, slow: Whether = never):
        super().__init__(token="none")
        self.store = InMemoryObjectStore()
        self.state = InMemoryLinkState(NoOpFederationManager(), self.store)
        self.number = self.state.create_run(
            "app",
            "1",
            hashlib.sha256(b"").hexdigest(),
            {},
            NOOP_FEDERATION_ID,
            None,
            None,
            TaskType.SERVER_APP,
        )
        (self._run,) = self.state.get_run_info(run_ids=[self.number])
        task_id = self._run.primary_task_id
        self.state.claim_task(task_id)
        self.state.activate_task(task_id)
        (task,) = self.state.get_tasks(task_ids=[task_id])
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task_id, self.number, 1
        self._client = SimpleNamespace(
            GetNodes=lambda asked: runtime.get_nodes(asked, self.state, task),
            PushMessages=lambda asked: runtime.push_messages(asked, self.state, task),
            PullMessages=lambda asked: runtime.pull_messages(asked, self.state, task),
            PushObject=lambda asked: runtime.push_object(asked, self.state, task),
            PullObject=lambda asked: runtime.pull_object(asked, self.state, task),
            ConfirmMessageReceived=lambda asked: runtime.confirm_message_received(asked, self.state, task),
        )
        self.dead, self.slow = dead, slow
        self.held_back: list[Callable[[], None]] = []
        self.configs = {self._join(config): config for config in held}

    def _join(self, config: dict[str, Any]) -> int:
        node = self.state.create_node("", "", f"key {config['client']}".encode(), 3600.0)
        self.state.activate_node(node, 3600.0)
        return node

    @property
    def bytes_held(self) -> int:
        """What the SuperLink has of messages' contents."""
        return sum(len(entry.content) for entry in self.store.store.values())

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        while self.held_back:
            self.held_back.pop()()
        made = super().push_messages(list(messages))
        for node in self.configs:
            while self._work(node) or self._work(node):  # of a task that was taken back it gets nothing
                pass
        return made

    def _work(self, number: int) -> bool:
        """As a SuperNode does: take a message, say that it is there, let the ClientApp answer, send."""
        node, config = Node(node_id=number), self.configs[number]
        taken = fleet.pull_messages(PullMessagesRequest(node=node), self.state, self.store)
        if not taken.messages_list:
            return False
        sent = message_from_proto(taken.messages_list[0]).metadata
        if self.dead(config["client"], sent):
            return True
        ask = make_pull_object_fn_protobuf(lambda r: fleet.pull_object(r, self.state), node, self.number)
        tree = iterate_object_tree(taken.message_object_trees[0])
        parts = pull_objects([part.object_id for part in tree], pull_object_fn=ask)
        confirmed = ConfirmMessageReceivedRequest(
            node=node, run_id=self.number, message_object_id=sent.message_id
        )
        fleet.confirm_message_received(confirmed, self.state, self.store)
        message: Any = inflate_object_from_contents(sent.message_id, parts)
        message.metadata.__dict__["_message_id"] = sent.message_id
        context = Context(
            run_id=self.number, node_id=number, node_config=config, state=RecordDict(), run_config={}
        )
        reply = client.app(message=message, context=context)
        if self.slow(config["client"], sent):
            self.held_back.append(lambda: self._send(node, reply))
        else:
            self._send(node, reply)
        return True

    def _send(self, node: Node, reply: Message) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            tree = get_object_tree(reply)
            parts = {identity: part.deflate() for identity, part in get_all_nested_objects(reply).items()}
        shell = message_to_proto(remove_content_from_message(reply))
        asked = PushMessagesRequest(node=node, messages_list=[shell], message_object_trees=[tree])
        wanted = fleet.push_messages(asked, self.state)
        for identity in wanted.objects_to_push:
            part = PushObjectRequest(
                node=node,
                run_id=self.number,
                session_id=wanted.session_id,
                object_id=identity,
                object_content=parts[identity],
            )
            fleet.push_object(part, self.state)
