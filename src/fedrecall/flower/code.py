"""Whether a node runs the code that the server runs: fedrecall's version, and what is somebody's own."""

import hashlib
import importlib
import logging
import platform
from contextlib import suppress

from flwr.app import RecordDict

from fedrecall import own_digest, provenance, specs
from fedrecall.config import Config
from fedrecall.errors import Malformed, UserError
from fedrecall.flower import wire
from fedrecall.flower.hosting import OWN_CODE
from fedrecall.flower.wire import Code
from fedrecall.models.networks import MODELS

log = logging.getLogger("flwr")


def own(config: Config) -> Code:
    """What this side runs."""
    _import_model(config)
    found: dict[str, str] = {}
    for _, module in own_digest.modules([getattr(config, name) for name in OWN_CODE]):
        for name, source in own_digest.sources(module).items():
            found[name] = hashlib.blake2b(source, digest_size=8).hexdigest()
    return Code(provenance.version(), _python(), list(found), list(found.values()))


def check(servers: Code, config: Config) -> None:
    """Raise UserError if a module of somebody's own is not here what it is at the server.

    One that is here a package's and there a file by itself, or the other way round, is not compared, and
    nothing is where Python's versions differ, which write the same source down in different ways.
    """
    mine = own(config)
    if mine.python != servers.python:
        return
    here = dict(zip(mine.modules, mine.digests, strict=True))
    for module, digest in zip(servers.modules, servers.digests, strict=False):
        if here.get(module, digest) != digest:
            raise UserError(f"its {module} is other code than the server's: install the same at both.")


def check_server(question: RecordDict) -> None:
    """Raise UserError if the server has another version, of which nothing else need be as it is here."""
    servers = None
    with suppress(Malformed):  # which is said when it is read
        servers = wire.from_json(wire.said(question, "code", ""), "").get("fedrecall")
    if isinstance(servers, str):
        _check_same("this node", provenance.version(), servers)


def check_node(answer: RecordDict) -> None:
    """Raise UserError if a node has another version than this server."""
    if nodes := wire.said(answer, "version", ""):
        client = wire.said(answer, "client", wire.UNKNOWN)
        _check_same(f"client {client}", nodes, provenance.version())


def _check_same(who: str, nodes: str, servers: str) -> None:
    """Refuse another number; of one number with other code, as where one side was mended, warn alone."""
    differ = f"fedrecall {wire.tidy(nodes)}, the server has {wire.tidy(servers)}: install the same at both"
    if nodes.partition("+")[0] != servers.partition("+")[0]:
        raise UserError(f"it has {differ}, and start them again.")
    if nodes != servers:
        log.warning("%s has %s.", who, differ)


def warn(servers: Code, config: Config) -> None:
    """Say in the node's log in what it differs from the server without being refused for it."""
    if servers.python != _python() and own(config).modules:
        log.warning(
            "the server has Python %s, this node has %s: whether the run's own code is the same at both "
            "cannot be told.",
            servers.python,
            _python(),
        )


def _import_model(config: Config) -> None:
    """An algorithm is imported by its config; what is wrong with a network is said when it is made."""
    name = "" if hasattr(config.model, "build") else MODELS.parse(config.model)[0]
    if ":" in name and name not in MODELS.entries:
        specs.permit("model", name)
        with suppress(Exception):
            importlib.import_module(name.partition(":")[0])


def _python() -> str:
    return ".".join(platform.python_version_tuple()[:2])
