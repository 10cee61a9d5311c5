"""What a run was made from."""

import json
import shutil
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import tensor

import fedrecall
from fedrecall import config as configs
from fedrecall import provenance
from fedrecall.data.datasets import Dataset, Split, load
from fedrecall.errors import UserError
from fedrecall.provenance import check_code, check_data, environment, facts, git_revision


def test_what_made_a_run_names_the_gpu_that_it_ran_on(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device=None: f"GPU {device}")
    for device, name in [(None, "GPU None"), ("cpu", None), ("cuda:1", "GPU cuda:1")]:
        found = environment(torch.device(device) if device else None)
        assert found["gpu"] == name
        assert ("tensor floats" in found) == (name is not None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "/bin/flwr-serverapp --insecure --token 5ec4 --run 3",
            "flwr-serverapp --insecure --token '***' --run 3",
        ),
        ("x --api-key=5ec4 --wandb-api-key 5ec4 run", "x '--api-key=***' --wandb-api-key '***' run"),
        ("x run --algorithm private:secret=true,noise=1", "x run --algorithm private:secret=true,noise=1"),
        ("x --token", "x --token"),
    ],
)
def test_a_command_is_kept_without_its_secrets(given, said, monkeypatch):
    monkeypatch.setattr("sys.argv", given.split())
    assert environment()["command"] == said


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_revision_is_that_of_the_code_and_says_whether_it_was_changed(tmp_path):
    def git(*words):
        mine = ("-c", "user.name=me", "-c", "user.email=me@localhost")
        return subprocess.run(
            ["git", "-C", tmp_path, *mine, *words], check=True, capture_output=True, text=True
        )

    git("init", "--quiet")
    code, installed, note = (tmp_path / n for n in ("pkg/code.py", ".venv/pkg/code.py", "note.txt"))
    for path in (code, installed, note):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    assert git_revision(code) is None  # no repository holds it yet
    git("add", "pkg", "note.txt")
    git("commit", "--quiet", "--message=one")
    head = git("rev-parse", "HEAD").stdout.strip()
    note.write_text("2")  # not of the code
    assert git_revision(code) == head
    assert git_revision(installed) is None
    (code.parent / "new.py").write_text("1")
    assert git_revision(code) == f"{head}+"
    (code.parent / "new.py").unlink()
    code.write_text("2")
    assert git_revision(code) == f"{head}+"
    assert git_revision(tmp_path / "gone" / "code.py") is None


# Data.


def table(x, mean=0.25, dtype=torch.float32):
    split = Split(tensor(x, dtype=dtype), tensor([0, 1, 0]))
    return Dataset("t", ("a", "b"), split, split, tensor([mean]), tensor([1.0]))


ROWS = [[0.5, 1.0], [0.25, 0.0], [0.0, 2.0]]


def test_the_digest_is_of_a_tables_first_example_and_of_rounded_statistics():
    found = facts(table(ROWS))["digest"]
    assert facts(table([[0.75, 1.0], *ROWS[1:]]))["digest"] != found
    assert facts(table(ROWS, mean=0.250001))["digest"] == found != facts(table(ROWS, mean=0.2503))["digest"]
    pixels = [facts(table(x, dtype=torch.uint8))["digest"] for x in ([[1, 2]] * 3, [[3, 2]] * 3)]
    assert pixels[0] == pixels[1]  # of images the sketch tells, and the statistics


def test_what_tells_data_is_found_once_while_they_are_there(monkeypatch):
    asked, whole = [], provenance._sketch
    monkeypatch.setattr(provenance, "_sketch", lambda x: asked.append(len(x)) or whole(x))
    held = table(ROWS)
    split = replace(held.train, origin=tensor([0, 1, 0]))
    held = replace(held, train=split, test=split, origins=("here", "there"))
    expected = facts(replace(held))  # another one of the same tensors, of which nothing is known
    asked.clear()
    for _ in range(3):
        found = facts(held.to(torch.device("cpu")))
        assert found == expected
        found["name"] = "another"
    assert asked == [3, 3]
    found = expected
    for changed in (split.x, split.y, split.origin, held.mean, held.std):
        changed.copy_(changed.flip(0) + 1)  # as somebody may in a notebook
        assert facts(held) == facts(replace(held)) != found
        found = facts(held)
    split.y.numpy()[0] = 7  # of which torch knows nothing
    assert facts(held)["digest"] != found["digest"]
    place = id(held)
    del held
    assert place not in provenance._known
    assert facts(table([[9.0, 9.0], *ROWS[1:]])) != expected


@pytest.mark.parametrize(
    ("sketch", "same"),
    [
        ([0.1, 0.2], True),
        ([0.11, 0.19], True),
        ([0.13, 0.2], False),
        ([0.1], False),
        ([0.1, 0.2, 0.3], False),
        (None, True),
        ([0.1, None], False),
        ([], False),
        ({"0": 0.1}, False),
    ],
)
def test_data_are_the_same_if_their_sketches_are_alike(sketch, same, tmp_path):
    data = {"name": "t", "train": 3, "test": 3, "digest": "d"}
    starts, now = [{"data": {**data, "sketch": sketch}}], {**data, "sketch": [0.1, 0.2]}
    check_data(tmp_path, [{"data": {k: v for k, v in data.items() if k != "digest"}}], now, "?")
    refused = pytest.raises(UserError, match=r"begun on other data.*: put them back")
    with nullcontext() if same else refused:
        check_data(tmp_path, starts, now, "put them back")


def test_the_code_is_compared_with_that_of_the_last_start(tmp_path):
    starts = [{"code": {"a.py:A": "1", "b.py:B": "5"}}, {"code": {"a.py:A": "2", "b.py:B": "5"}}]
    check_code(tmp_path, starts, {"a.py:A": "2", "b.py:B": "5", "new.py:C": "9"}, "")
    check_code(tmp_path, starts, {"a.py:A": "2"}, "")  # of what is not named any more nothing is asked
    check_code(tmp_path, [{}], {"a.py:A": "2"}, "")  # an earlier version did not say
    with pytest.raises(UserError, match=r"other code than a\.py:A has now"):
        check_code(tmp_path, starts, {"a.py:A": "1", "b.py:B": "5"}, "")


def test_data_that_moved_are_the_same_data(tmp_path, monkeypatch):
    run, play = tmp_path / "run", partial(fedrecall.run, resume=True)
    settings = {"algorithm": "fedavg", "partition": "iid", "model": "mlp:4"}
    settings |= {"clients": 4, "sample": 2, "backend": "serial"}
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rows = ["a,b,label", *(f"{i % 7},{i % 5},{'xy'[i % 2]}" for i in range(60))]
    for name, count in (("data", 61), ("others", 51)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.csv").write_text("\n".join(rows[:count]))
    play(run, rounds=1, **settings | {"dataset": "folder:data"})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    made = configs.begun(json.loads((run / "config.json").read_text()))
    assert load(made.dataset).name == "folder"  # from wherever it is gone on with
    (tmp_path / "data").rename(tmp_path / "moved")
    play(run, rounds=2, **settings | {"dataset": f"folder:{tmp_path}/moved"})
    with pytest.raises(UserError, match="begun on other data"):
        play(run, rounds=3, **settings | {"dataset": f"folder:{tmp_path}/others"})
    path = run / "made.json"
    starts = json.loads(path.read_text())
    for start in starts:  # as of an earlier version, which did not note what the data were
        del start["data"]["digest"]
    path.write_text(json.dumps(starts))
    (tmp_path / "moved").rename(tmp_path / "again")
    with pytest.raises(UserError, match=r"was begun with dataset\.path"):
        play(run, rounds=3, **settings | {"dataset": f"folder:{tmp_path}/again"})


def test_fedrecalls_version_tells_one_code_that_trains_from_another(tmp_path, monkeypatch):
    package = tmp_path / "fedrecall"
    shutil.copytree(Path(provenance.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "__file__", str(package / "provenance.py"))
    version = provenance.version.__wrapped__
    assert version() == provenance.version()
    number, digest = version().split("+")
    assert number == fedrecall.__version__
    assert len(digest) == 8
    training, shown = package / "training.py", package / "cli" / "app.py"
    shown.write_text("# what is shown changes nothing that is trained\n" + shown.read_text())
    training.write_bytes(training.read_bytes().replace(b"\n", b"\r\n"))
    assert version() == provenance.version()
    training.write_text(training.read_text() + "# other code\n")
    assert version() != provenance.version()
