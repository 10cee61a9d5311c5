"""What left a node, for its owner to look up: a line of JSON for each answer, beside the node's memories."""

import json
import os
import time
from contextlib import suppress
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedrecall import files
from fedrecall.errors import Malformed
from fedrecall.flower import wire
from fedrecall.flower.node import Node


def note(node: Node, message: Message, answer: RecordDict) -> None:
    """Append what is to leave, before it does; UserError if that cannot be written."""
    folder = files.expanded(node.memory)
    line = wire.as_json(_line(message, answer)) + "\n"
    with files.writing(folder, then="and it takes part again"):
        folder.mkdir(0o700, parents=True, exist_ok=True)
        path = folder / f"answers-{node.client:06d}.jsonl"
        with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def _line(message: Message, answer: RecordDict) -> dict[str, Any]:
    asked, said, arrays = _values(message.content), _values(answer), answer.get("arrays")
    line: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "kind": message.metadata.message_type,
        "flower_run": message.metadata.run_id,
    }
    line |= {name: _short(asked[name]) for name in ("run", "round") if name in asked}
    if isinstance(text := asked.get("config"), str):
        algorithm = _mapping(text).get("algorithm")
        line["config"] = files.checksum(text.encode())
        line["algorithm"] = _short(algorithm.get("name") if isinstance(algorithm, dict) else algorithm)
    if (refusal := wire.refused(answer)) is not None:
        return {**line, "refused": refusal.reason}
    line["values"] = sorted(said)
    if "examples" in said:
        line["examples"] = said["examples"]
    elif "confusion" in said:
        line["examples"] = sum(said["confusion"])
    if isinstance(arrays, ArrayRecord):
        packed = arrays[wire.FORMAT].data
        line |= {"arrays": _shapes(packed), "bytes": len(packed)}
        line["masked"] = message.metadata.message_type == "train.masked"
    return line


def _values(content: RecordDict) -> dict[str, Any]:
    """Those of a message, and those of a task in it."""
    record = content.get("values")
    values: dict[str, Any] = dict(record) if isinstance(record, ConfigRecord) else {}
    task = values.get("task")
    return values | _mapping(task) if isinstance(task, str) else values


def _mapping(text: str) -> dict[str, Any]:
    """What a server sent as JSON, if it is that."""
    with suppress(Malformed):
        return wire.from_json(text, "")
    return {}


def _shapes(packed: bytes) -> dict[str, list[int]]:
    """Of the arrays in a text of safetensors, which begins with the length of a JSON header, and that."""
    header = json.loads(packed[8 : 8 + int.from_bytes(packed[:8], "little")])
    return {name: told["shape"] for name, told in header.items() if name != "__metadata__"}


def _short(given: Any) -> Any:
    return given if type(given) is int else wire.tidy(str(given))
