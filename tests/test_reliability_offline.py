"""With local data nothing needs a network, and the lock files say the same with hashes."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SCRIPT = """
import socket, sys

def refuse(*arguments, **named):
    raise SystemExit("it wanted a network")

if sys.argv[2] == "blocked":  # worker processes talk over Unix sockets, which are no network
    socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse
import fedrecall
from fedrecall.reports.report import build
from fedrecall.reports.runs import open_runs

settings = dict(dataset="digits", clients=6, sample=3, model="mlp:4", algorithm="fedntd", workers=2)
settings["training.local_epochs"] = 1
for backend in ("serial", "processes"):
    out = f"{sys.argv[1]}/{backend}"
    fedrecall.run(out, rounds=1, backend=backend, **settings)
    fedrecall.run(out, rounds=2, backend=backend, resume=True, **settings)
assert len(build(open_runs([sys.argv[1]]))) > 10_000
"""


def without_network() -> list[str]:
    """What puts before a command takes its network away, where that is permitted."""
    unshare = shutil.which("unshare")
    for options in (["-n"], ["-rn"]):
        command = [str(unshare), *options]
        if unshare and not subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
            return command
    return []


def test_runs_resumes_and_reports_without_a_network(tmp_path):
    before = without_network()
    command = [*before, sys.executable, "-c", SCRIPT, str(tmp_path), "alone" if before else "blocked"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


def test_the_lock_has_a_hash_for_every_tested_version():
    tested = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    entries = re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements.lock").read_text())
    locked = {}
    for entry in entries:
        head = re.match(r"([a-z0-9-]+)==(\S+)", entry)
        if head:
            assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), head[1]
            locked[head[1]] = head[2]
    assert tested.pop("torch")
    assert locked == tested
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wanted in project["dependencies"]:
        assert ">=" in wanted
        name = re.match(r"[a-z0-9-]+", wanted)
        assert name is not None
        assert name[0] in {*locked, "torch"}


@pytest.mark.parametrize("word", ["pickle.load", "torch.load(", "eval(", "allow_pickle=True", "shell=True"])
def test_nothing_in_the_package_runs_what_it_reads(word):

    found = {
        path.name
        for path in (ROOT / "src").rglob("*.py")
        if re.search(r"(?<![\w.])" + re.escape(word), path.read_text())
    }
    assert not found
