import subprocess
import sys
import time

import pytest

from fedrecall.flower.supernode import Brisk, _without


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
