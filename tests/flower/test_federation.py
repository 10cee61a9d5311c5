"""A SuperLink and three SuperNodes as processes on loopback, with TLS and authenticated nodes."""

import json
import signal
import time
from pathlib import Path

import pytest
import torch
from tests.flower.federation import LocalFederation, make_certificates, make_key

from fedrecall import config as configs
from fedrecall import trees
from fedrecall.experiment import Experiment
from fedrecall.files import read_arrays

CLIENTS = 3
BASE = {
    "clients": CLIENTS,
    "sample": CLIENTS,
    "rounds": 2,
    "dataset": "digits",
    "model": "mlp",
    "precision": "float64",
    "training__local_epochs": 1,
    "auxiliary_per_class": 8,
    "seed": 3,
}
RUNS = {
    "fedntd": {"algorithm": "fedntd"},
    "scaffold": {"algorithm": "scaffold"},
    "fedssd": {"algorithm": "fedssd:m_max=2,auxiliary_per_class=8"},
    "sfedkd": {"algorithm": "sfedkd"},
    "secure": {"algorithm": "fedntd", "seed": 5, "secure": "examples"},
}
PLAIN = ("-c", "from flwr.supernode.cli import flower_supernode; flower_supernode()")
LIAR = (
    "-c",
    "import torch\n"
    "from fedrecall.flower import client, wire\n"
    "from fedrecall.flower.supernode import main\n"
    "pack = wire.pack\n"
    "def more(values, tree=None):\n"
    "    tree = {'weights': tree.weights._asdict(), 'x': torch.zeros(9)} if tree is not None else None\n"
    "    return pack(values, tree)\n"
    "client.wire.pack = more\n"
    "main()\n",
)


class Federation(LocalFederation):
    def __init__(self, folder: Path):
        super().__init__(folder)
        self.start_link()
        self.keys = [make_key(folder / f"key{k}") for k in range(CLIENTS)]
        for key in self.keys:
            self.register(key)
        for k in range(CLIENTS):
            self.begin(k)

    def begin(self, k: int, launcher: tuple[str, ...] | None = None) -> None:
        usual, self.launcher = self.launcher, launcher or self.launcher
        config = f'client={k} data="digits" divide=true memory="{self.folder / "memory"}{k}"'
        self.start_node(f"node{k}", self.keys[k], config)
        self.launcher = usual

    def run(self, name: str, **settings: object) -> int:
        hosting = {"out": str(self.folder / name), "timeout": 240.0, "poll": 0.5}
        return self.submit(**(BASE | hosting | settings))

    def records(self, name: str) -> list[dict[str, object]]:
        path = self.folder / name / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def wait_for(self, name: str, rounds: int, seconds: float = 480) -> None:
        self.until(lambda: len(self.records(name)) >= rounds, seconds, f"round {rounds} of {name}")

    def state(self, name: str, rounds: int) -> dict[str, torch.Tensor]:
        path = self.folder / name / "checkpoints" / f"round-{rounds:06d}.json"
        self.until(path.exists, 60, "the checkpoint")
        return read_arrays(path.with_suffix(".safetensors"))


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        for name, settings in RUNS.items():
            made.run(name, **settings)  # all at once: each waits mostly
        yield made
    finally:
        made.close()


def alone(**settings: object) -> dict[str, torch.Tensor]:
    values = {k.replace("__", "."): v for k, v in (BASE | settings).items()}
    plain = {k: v for k, v in values.items() if "." not in k}
    dotted = {k: v for k, v in values.items() if "." in k}
    experiment = Experiment(configs.make(configs.override(plain, dotted) | {"backend": "serial"}))
    experiment.run()
    return trees.arrays(experiment.server)


def same(mine: dict[str, torch.Tensor], other: dict[str, torch.Tensor], within: float = 1e-12) -> None:
    torch.testing.assert_close(mine, other, rtol=within, atol=within)


def test_strangers_are_refused(federation, tmp_path):
    """A node whose key nobody registered, and one that trusts another authority than the server's."""
    make_certificates(tmp_path / "others")
    federation.launcher, usual = PLAIN, federation.launcher
    unknown = federation.start_node("unknown", make_key(tmp_path / "unknown"), 'client=0 data="digits"')
    astray = federation.start_node(
        "astray", federation.keys[0], 'client=0 data="digits"', ca=tmp_path / "others" / "ca.crt"
    )
    federation.launcher = usual
    federation.until(lambda: unknown.poll() is not None, 90, "the unknown node to be refused")
    federation.until(
        lambda: "certificate verify failed" in federation.log("astray").lower() or astray.poll(),
        90,
        "the server to be refused",
    )
    assert unknown.poll() != 0
    assert "SuperNode ID" not in federation.log("unknown") + federation.log("astray")
    for name in ("unknown", "astray"):
        federation.stop(name, signal.SIGKILL)


@pytest.mark.parametrize("name", RUNS)
def test_a_real_federation_computes_what_one_machine_does(name, federation):
    federation.wait_for(name, rounds=2)
    run = {key: given for key, given in RUNS[name].items() if key != "secure"}
    same(federation.state(name, 2), alone(**run), 1e-12 if run == RUNS[name] else 1e-9)
    assert [r["failures"] for r in federation.records(name)] == [[], []]


def test_a_federation_goes_on_after_server_and_node_were_stopped(federation):
    """In the middle of a round; control variates come from the node's disk, the rest from the checkpoint."""
    settings = {"algorithm": "scaffold", "rounds": 4, "seed": 4}
    federation.run("stopped", **settings)
    federation.wait_for("stopped", 2)
    federation.stop("node1")
    federation.stop("superlink")
    assert 2 <= len(federation.records("stopped")) < 4
    federation.start_link()
    federation.begin(1)
    federation.run("stopped", **settings, resume=True)
    federation.wait_for("stopped", 4)
    same(federation.state("stopped", 4), alone(**settings))
    assert [r["failures"] for r in federation.records("stopped")] == [[]] * 4
    assert len(json.loads((federation.folder / "stopped" / "made.json").read_text())) == 2


def test_a_node_that_vanishes_in_a_round_is_left_out(federation):
    for name in RUNS:  # whose tests may not have run; theirs would be the message that is waited for
        federation.wait_for(name, rounds=2)
    seen = federation.log("node2").count("Receiving: train")
    federation.run("vanished", timeout=10.0, min_clients=2, training__local_epochs=40)
    federation.until(
        lambda: federation.log("node2").count("Receiving: train") > seen, 120, "node 2 to be asked"
    )
    federation.stop("node2", signal.SIGKILL, wait=0)
    federation.wait_for("vanished", 2)
    first, second = federation.records("vanished")
    assert first["failures"] == ["client 2, round 1: no reply within 10 s"]
    assert len(second["failures"]) == 1
    assert second["failures"][0].startswith("client 2, round 2: ")


def test_a_node_that_sends_more_than_is_declared_is_left_out(federation, tmp_path):
    federation.register(make_key(tmp_path / "another"))  # the SuperLink takes a minute to see that one died
    federation.keys[2] = tmp_path / "another"
    if "node2" in federation.processes:
        federation.stop("node2", signal.SIGKILL)
    federation.begin(2, LIAR)
    federation.run("lied", rounds=1)
    federation.wait_for("lied", 1)
    (record,) = federation.records("lied")
    assert record["failures"] == ["client 2, round 1: its reply has an undeclared 'x' (1 undeclared)"]


def test_what_the_server_says_is_in_flowers_log(federation):
    run = federation.run("refused", algorithm="fedntd:beta=-1")
    deadline = time.monotonic() + 90
    while not (said := federation.flwr("log", str(run), "here", "--show")).count("beta"):
        assert time.monotonic() < deadline, said
        time.sleep(0.5)
    assert "beta = -1 must be" in said.replace("\n", " ") or "beta = '-1' must be" in said


def test_flowers_own_supernode_computes_the_same(federation):
    """It starts a Python of its own for every message."""
    for name in RUNS:  # where this test runs alone
        federation.wait_for(name, rounds=2)
    if "node2" in federation.processes:
        federation.stop("node2")
    federation.begin(2, PLAIN)
    federation.run("plain", rounds=1, algorithm="scaffold")
    federation.wait_for("plain", 1)
    same(federation.state("plain", 1), alone(rounds=1, algorithm="scaffold"))
    assert [r["failures"] for r in federation.records("plain")] == [[]]
