import os
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import pytest

from fedrecall.flower import node
from fedrecall.flower.supernode import Brisk, _forking, _read_data, _without


def test_pauses_are_shortened_and_never_made_longer():
    asked = []

    class Clock:
        sleep = staticmethod(asked.append)
        monotonic = staticmethod(time.monotonic)

    brisk = Brisk(Clock, 0.5)
    brisk.sleep(3)
    brisk.sleep(0.2)
    assert asked == [0.5, 0.2]
    assert brisk.monotonic is time.monotonic


def test_what_is_changed_in_flower_is_there():
    """If an upgrade moves these, fedrecall-supernode has to follow: it says so and stops."""
    import importlib

    assert vars(importlib.import_module("flwr.supernode.start_client_internal"))["time"] is time
    assert "get_executor" in vars(importlib.import_module("flwr.supercore.superexec.run_superexec"))
    answering = vars(importlib.import_module("flwr.supernode.runtime.run_clientapp"))
    assert {"install_from_fab", "get_load_client_app_fn"} <= answering.keys()


def test_nodes_need_no_path_but_that_which_asks_for_keys():
    """As docs/deploy.md has it, so that a proxy can keep the others from them."""
    from flwr.supercore.routers.runtime.router import router as runtime
    from flwr.superlink.routers.control import router as control
    from flwr.supernode.fleet_http_client import FleetHttpClient

    asked = []
    client = SimpleNamespace(_unary_unary=lambda path, **_: asked.append(path))
    for name, method in vars(FleetHttpClient).items():
        if name[0].isupper():
            method(client, None)
    assert len(asked) >= 10
    assert all(path.startswith("/v1/fleet/") for path in asked)
    assert (control.prefix, runtime.prefix) == ("/v1/control", "/v1/runtime")


STRANGERS = {
    "pyproject.toml": """
[project]
name = "stranger"
version = "1"
[tool.flwr.app]
publisher = "stranger"
[tool.flwr.app.components]
serverapp = "strangers:app"
clientapp = "strangers:app"
""",
    "strangers.py": """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
@app.query()
def query(message, context):
    held = str(context.node_config["data"])
    return Message(RecordDict({"values": ConfigRecord({"stolen": held})}), reply_to=message)
""",
}
ANSWERED = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime import run_clientapp as place
from fedrecall.flower import supernode

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
message = Message(RecordDict({"values": ConfigRecord({"config": "{}", "code": "{}"})}), 1, "query")
message.metadata.__dict__["_message_id"] = "asked"
context = Context(1, 1, {"client": 0, "data": "folder:secret", "memory": "m"}, RecordDict(), {})
fab = build_fab_from_disk(Path("app"))
def pulled(client):
    digest = __import__("hashlib").sha256(fab).hexdigest()
    run = SimpleNamespace(fab_id="stranger/stranger", fab_version="1", run_id=1)
    return message, context, run, SimpleNamespace(content=fab, hash_str=digest)
place.pull_task_input = pulled
place.push_task_output = lambda **_: None
place.HeartbeatSender = lambda _: SimpleNamespace(start=lambda: None, is_running=False)
place.push_message = lambda client, reply, context: print("said", dict(reply.content["values"]), flush=True)
os.fork = lambda: 0
supernode._run_clients = lambda own, parent: place.run_clientapp("127.0.0.1:1", "token", True)
supernode.main(sys.argv[1:])
"""


@pytest.mark.parametrize(("options", "stolen"), [([], False), (["--any-app"], True)])
def test_the_app_that_a_run_sends_is_run_only_if_the_owner_says_so(options, stolen, tmp_path):
    """Whoever reaches the server can submit one; --any-app is what flower-supernode does."""
    (tmp_path / "app").mkdir()
    for name, content in STRANGERS.items():
        (tmp_path / "app" / name).write_text(content)
    done = subprocess.run(
        [sys.executable, "-c", ANSWERED, *options],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=tmp_path,
        env=os.environ | {"FLWR_HOME": str(tmp_path / "home"), "FLWR_TELEMETRY_ENABLED": "0"},
    )
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("said")]
    assert ("'stolen': 'folder:secret'" in said) == stolen, done.stderr
    assert ("what the server says of its code lacks 'digests'" in said) != stolen
    assert ((tmp_path / "home" / "apps").exists()) == stolen


def test_a_task_of_another_kind_is_not_begun():
    """Flower has more kinds than ClientApps, whose code comes with the run as well."""
    launched = _forking().launch(SimpleNamespace(task_type="flwr-agentapp"))
    assert (launched.status, launched.message) == ("failed", "a flwr-agentapp is not fedrecall's")


def test_data_that_have_changed_are_read_anew_once(tmp_path, monkeypatch, caplog):
    """By the process that is forked for each message, not by every one of its copies."""
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "fork", lambda: 1)
    caplog.set_level("INFO", logger="flwr")
    config = f'client=0 data="folder:{tmp_path}/data"'
    executor = _forking(False, partial(_read_data, config))
    (tmp_path / "data").mkdir()
    for count, told in ((40, 0), (30, 1)):
        rows = [f"{k},{k % 2}" for k in range(count)]
        (tmp_path / "data" / "train.csv").write_text("\n".join(["x,label", *rows]))
        for _ in range(2):
            executor.launch(SimpleNamespace(task_type="flwr-clientapp"))
            reads = node._read.cache_info().misses
            assert len(node.held(node.Node(0, f"folder:{tmp_path}/data")).train) == count * 4 / 5
            assert node._read.cache_info().misses == reads
        assert caplog.text.count("are read anew") == told


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--poll", "0.1", "--insecure"], ["--insecure"]),
        (["--poll=0.1", "--port", "1"], ["--port", "1"]),
        (["--node-config", "client=0"], ["--node-config", "client=0"]),
    ],
)
def test_flower_is_not_given_what_it_does_not_know(given, expected):
    assert _without(given, "--poll") == expected


def test_isolation_is_its_own():
    command = [sys.executable, "-m", "fedrecall.flower.supernode", "--isolation", "process"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "leave --isolation out" in done.stderr


ENDED = """
import os, signal, threading, time
from fedrecall.flower.supernode import _end_without
if (child := os.fork()) == 0:
    {how}
signal.signal(signal.SIGTERM, lambda *_: (print("goodbye", flush=True), os._exit(0)))
threading.Thread(target=_end_without, args=(child,), daemon=True).start()
for _ in range(600):  # one long sleep may begin just after the signal has come
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process that runs ClientApps was killed by signal 9"),
        ("os._exit(3)", "the process that runs ClientApps ended with status 3"),
        ("os.kill(os.getpid(), signal.SIGTERM)", ""),
    ],
)
def test_a_node_that_can_answer_no_more_does_not_stay(how, said):
    code = [sys.executable, "-c", ENDED.format(how=how)]
    done = subprocess.run(code, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (0, "goodbye\n")
    assert said in done.stderr
    assert bool(done.stderr) == bool(said)


def test_a_node_that_does_not_manage_to_say_goodbye_ends_all_the_same():
    stuck = ENDED.format(how="os._exit(3)").replace("(print", "(time.sleep(60), print")
    brief = "from fedrecall.flower import supernode; supernode.GOODBYE = 0.1\n"
    assert subprocess.run([sys.executable, "-c", brief + stuck], timeout=50).returncode == 1


BURIED = """
import os, signal, types
from fedrecall.flower import supernode
supernode._in_child = lambda command, spec: ({how}, os._exit(0))
executor = supernode._forking()
executor.launch(types.SimpleNamespace(task_type="flwr-clientapp"))
os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # it has ended, and is not buried yet
executor.reconcile()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("buried")
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "fedrecall-supernode: the process of a task was killed by signal 9: is there enough memory?\n",
        ),
        ("None", ""),
    ],
)
def test_a_task_that_was_killed_is_said(how, said):
    """As the kernel does when memory is short; one that has ended well is buried without a word."""
    code = [sys.executable, "-c", BURIED.format(how=how)]
    done = subprocess.run(code, capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.stderr) == ("buried\n", said)
