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
