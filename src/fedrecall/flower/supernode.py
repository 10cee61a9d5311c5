"""A SuperNode that is quick: `fedrecall-supernode` takes the same options as `flower-supernode`.

Flower's own starts a fresh Python for every message, which imports PyTorch anew, and asks for work
every three seconds. Nothing in its options changes that, so this runs Flower's own code with three
differences: a process that has everything imported is forked for a message instead of a new one
being started, the pauses are shorter, and messages are answered by `fedrecall.flower.client` alone,
whatever app a run has sent here. What is said over the network, certificates and keys included, is
Flower's and the same.
"""

import argparse
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from fedrecall.errors import UserError

POLL = 0.5
GOODBYE = 10.0
"""Seconds that Flower has to end in good order."""


class Brisk:
    """The module ``time`` with shorter pauses."""

    def __init__(self, module: ModuleType, longest: float):
        self.module, self.longest = module, longest

    def sleep(self, seconds: float) -> None:
        """Sleep, but not for longer than the longest pause."""
        self.module.sleep(min(seconds, self.longest))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def main(arguments: Sequence[str] | None = None) -> None:
    """Start Flower's SuperNode, and beside it the process that is forked for every message."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, _ = _parser().parse_known_args(given)
    if own.isolation != "subprocess":
        sys.exit(
            "fedrecall-supernode runs ClientApps itself: leave --isolation out, or use flower-supernode."
        )
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", str(min(max(own.poll / 2, 0.01), 60)))
    try:
        from flwr.supernode.cli import flower_supernode

        loop = importlib.import_module("flwr.supernode.start_client_internal")
        vars(loop)["time"] = Brisk(vars(loop)["time"], own.poll)
        if not own.any_app:
            _ignore_apps()
    except (ImportError, KeyError) as error:
        sys.exit(f"fedrecall-supernode does not know this version of flwr ({error}): use flower-supernode.")
    before = os.getpid()
    if (clients := os.fork()) == 0:
        _run_clients(own, before)
    threading.Thread(target=_end_without, args=(clients,), daemon=True).start()
    flowers = [word for word in _without(given, "--poll") if word != "--any-app"]
    sys.argv = ["flower-supernode", *flowers, "--isolation", "process"]
    flower_supernode()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedrecall-supernode",
        description="Start a Flower SuperNode that is quick. Options not listed are flower-supernode's.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--poll",
        type=float,
        default=POLL,
        help="longest pause between questions for work, in seconds (%(default)s)",
    )
    parser.add_argument(
        "--any-app",
        action="store_true",
        help="run the app that a run sends, whatever it does, as flower-supernode would; by default messages "
        "are answered by the installed fedrecall alone",
    )
    parser.add_argument("--isolation", default="subprocess", help=argparse.SUPPRESS)
    parser.add_argument("--host", default="127.0.0.1", help="host for the node's own API (%(default)s)")
    parser.add_argument("--port", type=int, default=9094, help="port for the node's own API (%(default)s)")
    parser.add_argument("--ssl-certfile", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--ssl-ca-certfile", default=None, help=argparse.SUPPRESS)
    parser.add_argument(
        "--node-config", default="", help="the node's settings, such as 'client=0 data=\"folder:here\"'"
    )
    return parser


def _without(given: Sequence[str], option: str) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in given:
        if skip:
            skip = False
        elif word == option:
            skip = True
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept


def _ignore_apps() -> None:
    """Neither unpack nor import what runs send: who submits one may be anybody who reaches the server."""
    places = vars(importlib.import_module("flwr.supernode.runtime.run_clientapp"))
    for name, ours in (
        ("install_from_fab", lambda *_fab, **_options: None),
        ("get_load_client_app_fn", lambda *_where, **_options: _own_app),
    ):
        _ = places[name]  # it is there
        places[name] = ours


def _own_app(*_run: str) -> Any:
    from fedrecall.flower.client import app

    return app


def _run_clients(own: argparse.Namespace, parent: int) -> NoReturn:
    """In a process of its own: wait for messages and fork for each."""
    try:
        module = importlib.import_module("flwr.supercore.superexec.run_superexec")
        _import_everything(own.node_config)
        executor = _forking(own.any_app, partial(_read_data, own.node_config))
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        vars(module)["get_executor"] = lambda *_args, **_options: executor
        sys.argv = ["flower-superexec"]
        module.run_superexec(
            runtime_api_address=f"[{own.host}]:{own.port}" if ":" in own.host else f"{own.host}:{own.port}",
            insecure=own.ssl_certfile is None,
            root_certificates_path=own.ssl_ca_certfile,
        )
    except SystemExit as done:
        _leave(done)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def _end_with(parent: int) -> None:
    """End when the SuperNode does. (Flower's own way waits until somebody has buried it, too.)"""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(0)


def _end_without(clients: int) -> None:
    """End when the process that answers messages has: nodes that are there are waited for."""
    _, status = os.waitpid(clients, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGINT, -signal.SIGTERM):
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        sys.stderr.write(f"fedrecall-supernode: the process that runs ClientApps {how}; stopping.\n")
        sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGTERM)  # so that Flower says goodbye
    time.sleep(GOODBYE)
    os._exit(1)


def _leave(done: SystemExit) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(done.code if isinstance(done.code, int) else int(done.code is not None))


def _import_everything(node_config: str) -> None:
    """What a message needs, the node's data included; on one thread, as threads do not survive a fork."""
    import torch

    import fedrecall.flower.client

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    _read_data(node_config)
    fedrecall.flower.client.threads = threads


def _read_data(node_config: str) -> None:
    """Hold the node's data as they are now, so that no copy of this process has to read them."""
    from flwr.common.config import parse_config_args

    from fedrecall.flower.node import Node, held

    with suppress(UserError, ValueError):  # then the next message is refused
        held(Node.of(parse_config_args([node_config] if node_config else None)))


def _forking(any_app: bool = False, prepare: Callable[[], None] = lambda: None) -> Any:
    from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
    from flwr.supernode.cli import flwr_clientapp

    class Forking(SubprocessExecutor):
        """Runs the command `flwr-clientapp` in a copy of this process."""

        def launch(self, spec: ExecutionSpec) -> LaunchResult:
            """Prepare and fork; the child ends as the command does."""
            if spec.task_type != "flwr-clientapp":
                refused = LaunchResult.failed(f"a {spec.task_type} is not fedrecall's")
                return super().launch(spec) if any_app else refused
            prepare()
            sys.stdout.flush()
            sys.stderr.flush()
            if os.fork() == 0:
                _in_child(flwr_clientapp, spec)
            return LaunchResult.accepted()

        def reconcile(self) -> None:
            """Bury children that have ended, and say of whom the system killed."""
            try:
                while (found := os.waitpid(-1, os.WNOHANG))[0]:
                    code = os.waitstatus_to_exitcode(found[1])
                    if code < 0 and -code not in (signal.SIGINT, signal.SIGTERM):
                        how = f"was killed by signal {-code}: is there enough memory?"
                        sys.stderr.write(f"fedrecall-supernode: the process of a task {how}\n")
                        sys.stderr.flush()
            except ChildProcessError:
                pass

    return Forking()


def _in_child(command: Callable[[], None], spec: Any) -> NoReturn:
    try:
        from flwr.supercore.exit import exit_handler

        exit_handler.registered_exit_handlers.clear()  # they are the parent's
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        sys.argv = [
            "flwr-clientapp",
            "--runtime-api-address",
            spec.runtime_api_address,
            "--token",
            spec.token,
        ]
        sys.argv += ["--insecure"] if spec.insecure else []
        if spec.root_certificates_path is not None:
            sys.argv += ["--root-certificates", spec.root_certificates_path]
        sys.argv += ["--parent-pid", str(os.getppid())]
        command()
    except SystemExit as done:
        _leave(done)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(1)


if __name__ == "__main__":
    main()
