import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flower.grids import Grid

from fedrecall import config as configs
from fedrecall import provenance
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.scaffold import Memory
from fedrecall.data.datasets import export, load
from fedrecall.errors import UserError
from fedrecall.flower import code as codes
from fedrecall.flower import wire
from fedrecall.flower.node import Kept, Node, Silo, held
from fedrecall.flower.nodes import _for_nodes
from fedrecall.flower.wire import Data
from fedrecall.ingredients import federate
from fedrecall.models.networks import build

RUN = "0123456789abcdef" * 2


def memory(value: float) -> Memory:
    return Memory({"w": torch.full((3,), value)})


def test_memories_are_kept_by_round_for_as_long_as_the_server_may_ask(tmp_path):
    kept = Kept(Node(client=4, data="digits", memory=str(tmp_path)), RUN)
    assert kept.get(0, memory(7)).variate["w"].tolist() == [7] * 3
    for number, keep, remembered in ((1, 0, 0), (2, 0, 1), (4, 0, 2), (5, 2, 4), (8, 4, 5)):
        kept.put((1, number), memory(number), keep, remembered, remembered)
    # 4 is needed still: a server that goes back to round 4 means it.
    assert rounds_of(kept) == [4, 5, 8]
    again = Kept(Node(client=4, data="digits", memory=str(tmp_path)), RUN)
    assert again.get(5, memory(0)).variate["w"].tolist() == [5] * 3
    with pytest.raises(UserError, match="what it remembered after round 2 is not in"):
        again.get(2, memory(0))


@settings(max_examples=40, deadline=None)
@given(every=st.integers(1, 7), took_part=st.sets(st.integers(1, 30)), lost=st.sets(st.integers(1, 30)))
def test_whatever_the_server_may_go_back_to_is_there_and_little_else(every, took_part, lost):
    """It means the last visit until then whose upload arrived."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Kept(Node(client=4, data="digits", memory=folder), RUN)
        arrived = [0]
        for number in sorted(took_part):
            newer = (number - 1) // every * every
            older = max(0, newer - every)
            kept.rewind((1, number), arrived[-1])
            kept.put((1, number), memory(number), older, arrived[-1], newer)
            meant = {max(r for r in arrived if r <= until) for until in (older, newer, number)}
            assert set(rounds_of(kept)) == meant - {0} | {number}
            if number not in lost:
                arrived.append(number)


def test_a_damaged_memory_is_not_trained_on(tmp_path):
    kept = Kept(Node(client=4, data="digits", memory=str(tmp_path)), RUN)
    kept.put((1, 1), memory(1), 0, 0, 0)
    (path,) = kept.folder.iterdir()
    content = bytearray(path.read_bytes())
    content[-1] ^= 64
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"is damaged: .*[Bb]ring the folder back, or begin the run anew"):
        kept.get(1, memory(0))
    kept.put((1, 1), memory(2), 0, 0, 0)  # the round is played again
    assert kept.get(1, memory(0)).variate["w"].tolist() == [2] * 3
    assert rounds_of(kept) == [1]


def rounds_of(kept: Kept) -> list[int]:
    return sorted(int(p.stem.split("-")[1]) for p in kept.folder.iterdir())


def test_what_the_server_means_is_kept_however_many_uploads_are_lost(tmp_path):
    """The upload of round 1 arrived, later ones did not: that of round 1 is the only one that counts."""
    kept = Kept(Node(client=4, data="digits", memory=str(tmp_path)), RUN)
    kept.put((1, 1), memory(1), 0, 0, 0)
    for number in range(2, 9):
        assert kept.get(1, memory(0)).variate["w"].tolist() == [1] * 3
        kept.rewind((1, 99), 1)
        kept.put((1, number), memory(number), number - 2, 1, 1)
        assert rounds_of(kept) == [1, number]
    kept.rewind((1, 99), 8)  # that of round 8 did, and a server that goes back two rounds means round 1
    kept.put((1, 9), memory(9), 7, 8, 8)
    assert rounds_of(kept) == [1, 8, 9]
    kept.put((1, 10), memory(10), 8, 9, 9)
    assert rounds_of(kept) == [8, 9, 10]


def test_what_the_server_has_no_upload_of_is_forgotten_by_the_next_visit(tmp_path):
    kept = Kept(Node(client=4, data="digits", memory=str(tmp_path)), RUN)
    kept.put((1, 1), memory(1), 0, 0, 0)
    kept.put((1, 2), memory(2), 0, 1, 1)  # whose upload is lost
    kept.put((1, 3), memory(3), 1, 1, 1)
    assert rounds_of(kept) == [1, 3]


def test_what_is_remembered_once_outlives_a_server_that_goes_back(tmp_path):
    kept = Kept(Node(client=4, data="digits", memory=str(tmp_path)), RUN, once=True)
    kept.put((1, 1), memory(1), 0, 0, 0)
    kept.rewind((1, 99), 0)
    assert kept.get(0, memory(0)).variate["w"].tolist() == [1] * 3


def test_others_cannot_look_into_a_nodes_memory_folder(tmp_path):
    kept = Kept(Node(client=4, data="digits", memory=str(tmp_path)), RUN)
    kept.folder.mkdir(0o755, parents=True)
    kept.put((1, 1), memory(1), 0, 0, 0)
    assert kept.folder.stat().st_mode & 0o777 == 0o700


def test_nodes_are_not_told_where_the_server_sends_its_numbers_nor_what_data_it_has():
    config = configs.make({"algorithm": "fedavg", "dataset": "digits", "sinks": ["mlflow:uri=http://host"]})
    assert config.sinks
    told = _for_nodes(config)
    assert told["sinks"] == []
    assert "digits" not in json.dumps(told["dataset"])


def test_a_visit_that_a_later_one_overtook_leaves_no_memory(tmp_path):
    kept = Kept(Node(client=4, data="digits", memory=str(tmp_path)), RUN)
    for number in (1, 3, 2):
        kept.put((1, number), memory(number), 0, min(number - 1, 1), min(number - 1, 1))
    assert rounds_of(kept) == [1, 3]
    kept.put((1, 4), memory(4), 2, 3, 3)
    assert rounds_of(kept) == [1, 3, 4]


def test_a_visit_that_a_later_one_overtook_forgets_nothing(tmp_path):
    """Its process was held up before it began, and the server has the later visit's upload already."""
    kept = Kept(Node(client=4, data="digits", memory=str(tmp_path)), RUN)
    for number in (1, 3):
        kept.put((1, number), memory(number), 0, number - 1, number - 1)
    with pytest.raises(UserError, match="a later visit has overtaken this one"):
        kept.rewind((1, 2), 1)
    assert rounds_of(kept) == [1, 3]


def test_a_server_that_went_back_is_later_than_all_that_it_asked_before(tmp_path):
    kept = Kept(Node(client=4, data="digits", memory=str(tmp_path)), RUN)
    for number in (1, 3, 5):
        kept.put((1, number), memory(number), 0, number - 1, min(number - 1, 1))
    kept.rewind((2, 4), 1)
    assert rounds_of(kept) == [1]
    kept.put((2, 4), memory(4), 0, 1, 1)
    with pytest.raises(UserError, match="overtaken"):
        kept.rewind((1, 6), 5)  # asked before, and later by its round alone
    kept.put((1, 6), memory(6), 4, 5, 5)
    assert rounds_of(kept) == [1, 4]


def test_what_a_killed_visit_left_half_written_is_swept_away(tmp_path):
    kept = Kept(Node(client=4, data="digits", memory=str(tmp_path)), RUN)
    kept.put((1, 1), memory(1), 0, 0, 0)
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True)
    gone, here = (kept.folder / f".round-000002-x.{pid}.tmp" for pid in (int(ended.stdout), os.getpid()))
    for path in (gone, here):
        path.write_bytes(b"half")
    kept.put((1, 3), memory(3), 0, 1, 1)
    assert (gone.exists(), here.exists()) == (False, True)


def test_runs_and_clients_have_their_own_memories(tmp_path):
    node = Node(client=4, data="digits", memory=str(tmp_path))
    Kept(node, RUN).put((1, 1), memory(1), 0, 0, 0)
    for other in (Kept(node, RUN[::-1]), Kept(replace(node, client=5), RUN)):
        with pytest.raises(UserError, match="is not in"):
            other.get(1, memory(0))


@pytest.mark.parametrize("name", ["", "..", "../" * 8, RUN + "/", RUN.upper(), RUN[1:]])
def test_a_server_cannot_choose_a_folder(name, tmp_path):
    with pytest.raises(ValueError, match="hexadecimal"):
        Kept(Node(client=4, data="digits", memory=str(tmp_path)), name)


def test_divided_nodes_hold_what_clients_of_one_machine_hold():
    values = {"clients": 3, "sample": 3, "algorithm": "fedssd:auxiliary_per_class=5", "partition": "lda:0.5"}
    config = configs.make(values)
    whole = federate(config, load("digits"), ALGORITHMS.make(config.algorithm))
    silos = [Silo(Node(client=k, data="digits", divide=True, device="cpu"), config) for k in range(3)]
    for k, silo in enumerate(silos):
        assert torch.equal(silo.train.x, whole.client(k).x)
        assert torch.equal(silo.train.y, whole.client(k).y)
    tested = np.sort(np.concatenate([s.test.x.reshape(len(s.test), -1) for s in silos]), axis=0)
    everything = np.sort(whole.test.x.reshape(len(whole.test), -1).numpy(), axis=0)
    assert np.array_equal(tested, everything)


def test_a_node_reads_no_file_that_a_servers_partition_names(tmp_path):
    config = configs.make({"clients": 3, "sample": 3, "partition": f"file:{tmp_path / 'p.json'}"})
    with pytest.raises(UserError, match="partition is a file of another machine"):
        Silo(Node(client=0, data="digits", divide=True, device="cpu"), config)
    Silo(Node(client=0, data="digits", device="cpu"), config)  # which holds what it holds


def test_divided_nodes_may_hold_a_site_each(tmp_path):
    rows = "".join(f"{k},{'ab'[k % 2]},{('north', 'south')[k // 30]},p{k // 3}\n" for k in range(60))
    (tmp_path / "all.csv").write_text(f"height,label,site,patient\n{rows}")
    data = f"folder:{tmp_path},origin=site,undivided=patient,standardise=false"
    config = configs.make({"clients": 2, "sample": 2, "partition": "natural"})
    agreed = Data(["0", "a", "b"], [0.0], [1.0])  # another node has a class more
    for k in range(2):
        silo = Silo(Node(client=k, data=data, divide=True, device="cpu"), config, agreed)
        assert {int(x) // 30 for x in silo.train.x} == {k}
        assert {int(x) // 3 for x in silo.train.x}.isdisjoint(int(x) // 3 for x in silo.test.x)
        assert silo.train.y.tolist() == [1 + int(x) % 2 for x in silo.train.x]


@pytest.mark.parametrize("divide", [False, True])
def test_augmentation_of_a_nodes_table_is_refused(divide, tmp_path):
    for split in ("train", "test"):
        rows = "".join(f"{k},{k % 3},{'ab'[k % 2]}\n" for k in range(24))
        (tmp_path / f"{split}.csv").write_text(f"height,width,label\n{rows}")
    node = Node(client=0, data=f"folder:{tmp_path}", divide=divide, device="cpu")
    values = {"clients": 1, "sample": 1, "partition": "iid"}
    assert len(Silo(node, configs.make(values)).train) == 24
    for name in ("augmentation", "test_augmentation"):
        with pytest.raises(UserError, match=f"^{name} = 'flip' is for images"):
            Silo(node, configs.make({**values, name: "flip"}))


@pytest.mark.parametrize("exported", [False, True])
def test_data_that_are_withdrawn_are_not_trained_on_any_more(exported, tmp_path, monkeypatch, caplog):
    """The process has read them; those who are given a message of it are copies."""
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    caplog.set_level("INFO", logger="flwr")
    folder, rows = tmp_path / "data", [f"{k},{(-1) ** k},{'ab'[k % 2]}" for k in range(40)]

    def put(count: int) -> None:
        table = tmp_path / "tables" / str(count) if exported else folder
        table.mkdir(parents=True, exist_ok=True)
        (table / "train.csv").write_text("\n".join(["x,y,label", *rows[:count]]))
        if exported:
            shutil.rmtree(folder, ignore_errors=True)
            export(load(f"folder:{table}"), folder)

    put(40)
    node = Node(client=0, data=f"folder:{folder}")
    assert len(held(node).train) == 32  # a fifth is held out
    assert held(node) is held(node)
    assert "read anew" not in caplog.text
    put(30)
    assert len(held(node).train) == 24
    assert held(node) is held(node)
    assert caplog.text.count("client 0: its data have changed since they were read and are read anew") == 1
    shutil.rmtree(folder)
    with pytest.raises(UserError, match="cannot read its data"):
        held(node)


def test_labels_follow_the_names_that_the_federation_agreed_on():
    config = configs.make({"clients": 1, "sample": 1})
    node = Node(client=0, data="digits", device="cpu")
    names = [*map(str, range(9, -1, -1)), "none of these"]
    mine, theirs = Silo(node, config), Silo(node, config, Data(names, [0.25], [0.5]))
    assert torch.equal(theirs.train.y, 9 - mine.train.y)
    assert theirs.dataset.classes == 11
    assert (theirs.train.mean.item(), theirs.train.std.item()) == (0.25, 0.5)
    with pytest.raises(UserError, match="its class '9' is not among the federation's"):
        Silo(node, config, Data(names[1:], [0.25], [0.5]))
    with pytest.raises(
        UserError, match=r"are \[1, 8, 8\], for which the federation's 3 means and 3 deviations"
    ):
        Silo(node, config, Data(names, [0.1] * 3, [0.1] * 3))


@pytest.mark.parametrize(
    ("settings", "statistics"),
    [({"algorithm": "private:fedavg,noise=0"}, (0.5, 0.5)), ({"normalisation": "none"}, (0.0, 1.0))],
)
def test_fixed_normalisation_is_the_nodes_own_whatever_the_server_says(settings, statistics):
    config = configs.make({"clients": 1, "sample": 1, **settings})
    node = Node(client=0, data="digits", device="cpu")
    silo = Silo(node, config, Data([f"{k}" for k in range(10)], [0.25], [0.1]))
    for seen in (silo.train, silo.test):
        assert (seen.mean.item(), seen.std.item()) == statistics


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": "digits"}, "needs 'client'"),
        ({"client": -1, "data": "digits"}, "client = -1 must be >= 0"),
        ({"client": 0, "data": "digits", "memroy": "x"}, "did you mean 'memory'"),
    ],
)
def test_a_nodes_settings_are_checked(given, message):
    with pytest.raises(UserError, match=message):
        Node.of(given)


def test_a_run_cannot_make_a_node_import_things_unless_allowed():
    node = Node(client=0, data="digits")
    for key, spec in (
        ("algorithm", {"name": "some.module:Evil"}),
        ("algorithm", "evil.py:Evil:beta=1"),
        ("model", "os:getcwd"),
        ("partition", "evil.py:Evil"),
        ("measures", ["locals", "evil.py:Evil"]),
    ):
        with pytest.raises(UserError, match="allow it with custom=true"):
            node.allow({key: spec})
        replace(node, custom=True).allow({key: spec})
    node.allow(configs.as_dict(configs.make({"model": "mlp:hidden=8+4", "algorithm": "fedntd:beta=2"})))


EVIL = """
from dataclasses import dataclass
from pathlib import Path
from fedrecall.algorithms.fedavg import FedAvg

Path(__file__).with_suffix(".ran").touch()


@dataclass(frozen=True)
class Evil(FedAvg):
    pass
"""


@pytest.mark.parametrize(
    "spec",
    [
        "{0}:Evil",
        "private:{0}:Evil",
        "private:evil_module:Evil,noise=0",
        {"name": "private", "of": "{0}:Evil", "noise": 0},
        {"name": "private", "of": "evil_module:Evil", "noise": 0},
        {"name": "private", "of": {"name": "{0}:Evil"}, "noise": 0},
        {"name": "private", "of": {"name": "private", "of": "{0}:Evil"}, "noise": 0},
    ],
)
def test_what_an_algorithm_is_made_of_is_not_imported_either(spec, tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text(EVIL)
    monkeypatch.syspath_prepend(tmp_path)
    text = json.dumps({"algorithm": spec, "clients": 3, "sample": 3})
    text = text.replace("{0}", f"{tmp_path}/evil_module.py")
    node = {"client": 0, "data": "digits"}
    reply = announced(node, text)
    assert "is not one of fedrecall's: allow it with custom=true" in reply["reason"]
    assert "evil_module" not in sys.modules
    assert not (tmp_path / "evil_module.ran").exists()


def announced(node: dict[str, object], config: str) -> dict[str, object]:
    code = wire.as_json(wire.Code(provenance.version(), "", [], []))
    with tempfile.TemporaryDirectory() as folder:
        grid = Grid({1000: {"memory": folder, **node}})  # as whom what follows is sent
        question = Message(wire.pack(wire.Question(config, code)), 1000, "query")
        question.metadata.__dict__["_message_id"] = "question"
        return dict(grid.answer(1000, question).content["values"])


def test_the_owner_of_a_node_may_name_data_of_its_own(tmp_path):
    """They are its own wish, not the run's: custom=true is not needed for them."""
    text = "from dataclasses import dataclass\nfrom fedrecall.data.datasets import Digits\n"
    (tmp_path / "mine.py").write_text(text + "@dataclass(frozen=True)\nclass Mine(Digits):\n    pass\n")
    said = announced({"client": 0, "data": f"{tmp_path}/mine.py:Mine"}, '{"clients": 3, "sample": 3}')
    assert said["classes"] == [f"{k}" for k in range(10)]


def test_where_only_registered_names_are_allowed_no_other_model_is_built():
    with Node(client=0, data="digits").guard():
        with pytest.raises(UserError, match="custom=true"):
            build("torch.nn:Linear", (1, 8, 8), 10)
        build("mlp:4", (1, 8, 8), 10)
    build("torch.nn:Flatten", (10,), 10)


def test_code_is_not_looked_at_that_the_owner_has_not_allowed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "foreign_net.py").write_text("raise SystemExit('it was imported')\n")
    config = configs.make({"model": "foreign_net:Net"})
    with Node(client=0, data="digits").guard(), pytest.raises(UserError, match="custom=true"):
        codes.own(config)
    assert "foreign_net" not in sys.modules


def table(folder: Path, count: int) -> str:
    """A node's data: rows of which two columns say who it is of."""
    folder.mkdir()
    for split, rows in (("train", count), ("test", 1)):
        text = "".join(f"{2e4 + 7 * k},{1900 + k},{'ab'[k % 2]}\n" for k in range(rows))
        (folder / f"{split}.csv").write_text(f"income,born,label\n{text}")
    return f"folder:{folder}"


@pytest.mark.parametrize("count", [1, 2, 9])
def test_statistics_of_few_rows_of_a_table_are_not_told(count, tmp_path, monkeypatch):
    """Those of one row are the row, mean and deviation of two are both of them."""
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    node = {"client": 0, "data": table(tmp_path / "rows", count)}
    said = announced(node, '{"clients": 3, "sample": 3}')
    assert said.keys() == {"reason", "client"}
    assert "fewer than 10 numbers tell what these are" in said["reason"]
    fixed = announced(node, '{"clients": 3, "sample": 3, "normalisation": "fixed"}')
    assert (fixed["examples"], fixed["mean"], fixed["std"]) == (count, [], [])
    as_it_is = announced({**node, "data": f"{node['data']},standardise=false"}, '{"clients": 3, "sample": 3}')
    assert (as_it_is["mean"], as_it_is["std"]) == ([0, 0], [1, 1])  # are of no row


def test_statistics_of_many_rows_and_of_the_pixels_of_images_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    config = '{"clients": 3, "sample": 3}'
    of_rows = announced({"client": 0, "data": table(tmp_path / "rows", 10)}, config)
    assert of_rows["mean"] == pytest.approx([2e4 + 7 * 4.5, 1904.5])
    few = {"client": 0, "data": "synthetic:train=2,test=1,classes=2,size="}
    assert announced({**few, "data": few["data"] + "8"}, config)["mean"] != []
    assert "reason" in announced({**few, "data": few["data"] + "2"}, config)  # of 8 pixels


class Text(str):
    """Remembers how much of it was looked at."""

    def split(self, *how):
        raise AssertionError("all of it was looked at")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("no\n  such\tfile\x1b[2J", "no such file\N{REPLACEMENT CHARACTER}[2J"),
        ("x" * 500, "x" * 500),
        ("x" * 501, "x" * 500 + " ..."),
        (Text("x" * 5_000), "x" * 500 + " ..."),
        ("why" + " " * 5_000 + "not", "why ..."),
    ],
)
def test_of_what_others_say_one_short_line_is_quoted(said, line):
    assert wire.tidy(said) == line
