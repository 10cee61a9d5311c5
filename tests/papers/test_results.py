"""Result files: what a run is the same as, partial rounds, damage, and never less than before."""

import dataclasses
import json
from pathlib import Path

import pytest
from tests.papers import outcomes

from fedrecall import config as configs
from fedrecall.errors import UserError
from fedrecall.papers import load_paper, table
from fedrecall.papers.results import (
    FOLDER,
    Keeper,
    Results,
    identity,
    machine_of,
    name,
    outcome,
    path_of,
    read,
    run_folder,
    save,
    unusual,
)

CELL = table("fedntd/table1").cell("cifar10/shard2", "fedntd")


def record(number, accuracy=0.5):
    return {
        "round": number,
        "accuracy": accuracy,
        "forgetting": 0.25,
        "class_accuracy": [accuracy] * 10,
        "failures": ["client 3, round 1: the loss became nan"] if number == 1 else [],
        "bytes_down": 10,
        "bytes_up": 20,
        "seconds": {"train": 3.0, "clients": [1.0, 2.0]},
    }


def test_identity_is_what_a_config_computes():
    plain = CELL.config()
    for same in (
        CELL.config(seed=3),
        CELL.config(rounds=5),
        CELL.config(backend="serial", workers=2, precision="bfloat16", checkpoint_every=7, measures=()),
        configs.make(configs.as_dict(plain)),
        configs.make(
            {"algorithm": "fedntd", "dataset": "cifar10", "sample": 0.1}
        ),  # the defaults are this paper's setup
    ):
        assert identity(same) == identity(plain)
    for other in (
        CELL.config(clients=99),
        CELL.config(**{"training.lr": 0.02}),
        CELL.config(**{"algorithm.beta": 0.5}),
        CELL.config(partition_seed=0),
        CELL.config(augmentation="none"),
        CELL.config(auxiliary_per_class=3),
    ):
        assert identity(other) != identity(plain)


def test_what_is_at_its_default_does_not_enter_an_identity_however_deep():
    plain = unusual(configs.make({"algorithm": "fedntd", "dataset": "cifar10"}))
    assert plain["algorithm"] == {"name": "fedntd"}
    assert not {"partition", "training", "clients", "model"} & set(plain)
    other = unusual(CELL.config(**{"algorithm.tau": 3.0, "training.lr": 0.02, "seed": 4}))
    assert other == plain | {"algorithm": {"name": "fedntd", "tau": 3.0}, "training": {"lr": 0.02}}


def test_committed_results_lie_where_a_run_would_look():
    folder = Path(__file__).parents[2] / FOLDER
    kept = sorted(folder.glob("*/seed*.json"))
    assert kept
    assert [path_of(read(path).config, folder) for path in kept] == kept


def test_names_are_readable_and_tell_seeds_and_precisions_apart(tmp_path):
    config = CELL.config(seed=2, precision="bfloat16")
    path = path_of(config, tmp_path)
    assert path.parent.name == name(config) == name(CELL.config())
    assert path.parent.name.startswith("cifar10-shards_2-fedntd")
    assert path.name == "seed2-bfloat16.json"
    assert run_folder(CELL.config(1), tmp_path).name == "seed1"


def test_what_is_saved_is_read_again(tmp_path):
    made = outcomes.outcome(CELL, [12.345, 23.456], seed=1, measures={"alignment": {"layers": {}}})
    path = save(made, tmp_path)
    found = read(path)
    assert found.accuracy == [0.1235, 0.2346]  # four digits
    assert (found.seed, found.done, found.config, found.measures) == (1, 2, made.config, made.measures)
    held = json.loads(path.read_text())
    assert held["rounds"] == {"done": 2, "planned": 200}
    assert len(path.read_text().splitlines()) < 20  # a curve is one line


def test_a_shorter_run_does_not_replace_a_longer_one(tmp_path):
    save(outcomes.outcome(CELL, [10.0, 20.0, 30.0]), tmp_path)
    path = save(outcomes.outcome(CELL, [11.0]), tmp_path)
    assert read(path).done == 3
    save(outcomes.outcome(CELL, [11.0, 21.0, 31.0]), tmp_path)
    assert read(path).accuracy[-1] == 0.31


def test_the_runs_of_a_config_are_of_one_precision_that_of_most_rounds():
    short, rough, fine = (
        outcomes.outcome(CELL, [10.0]),
        outcomes.outcome(CELL, [20.0, 20.0], precision="bfloat16"),
        outcomes.outcome(CELL, [30.0, 30.0]),
    )
    for order in ((short, rough, fine), (fine, rough, short), (rough, fine, short)):
        held = Results(order)
        assert held.of(CELL.config())[0] is fine
        assert held.of(CELL.config(), "bfloat16") == {0: rough}
        assert held.of(CELL.config(), "float64") == {}
        assert len(held) == len(list(held)) == 2
    assert Results((short, rough)).of(CELL.config())[0] is rough
    second = outcomes.outcome(CELL, [20.0], seed=1, precision="bfloat16")
    assert Results((fine, rough, second)).of(CELL.config()) == {0: rough, 1: second}
    # Rounds beyond the paper's do not weigh.
    long = outcomes.outcome(CELL, [30.0] * 500)
    two = [outcomes.outcome(CELL, [20.0] * 200, seed=s, precision="bfloat16") for s in range(2)]
    assert list(Results((long, *two)).of(CELL.config())) == [0, 1]
    seeds = Results([outcomes.outcome(CELL, [1.0], seed=s) for s in (2, 0, 1)])
    assert list(seeds.of(CELL.config())) == [0, 1, 2]


def test_a_failure_is_not_replaced_by_as_many_rounds_that_do_not_say_so(tmp_path):
    gone = outcomes.outcome(CELL, [10.0, 20.0], failed="NaN")
    path = save(gone, tmp_path)
    save(outcomes.outcome(CELL, [10.0, 20.0]), tmp_path)
    assert read(path).failed == "NaN"
    save(outcomes.outcome(CELL, [10.0, 20.0, 30.0]), tmp_path)
    assert (read(path).failed, read(path).done) == (None, 3)


def test_every_start_of_a_run_is_kept():
    starts = [{"cpu": "x", "git": "a", "command": "secret"}, {"cpu": "y", "git": "b", "python": "3"}]
    made = outcome(CELL.config(), [record(1)], starts)
    assert made.made == {"cpu": "y", "git": "b", "python": "3", "earlier": [{"cpu": "x", "git": "a"}]}
    assert made.machines == ["x", "y"]
    assert [start["git"] for start in made.starts] == ["a", "b"]
    assert outcome(CELL.config(), [record(1)], starts[:1]).made == {"cpu": "x", "git": "a"}


def test_a_keeper_leaves_the_rounds_that_were_played(tmp_path):
    config = CELL.config()
    made = {"cpu": "x", "command": "secret", "git": "abc", "data": {"train": 3}}
    keeper = Keeper(config, tmp_path, lambda: [made])
    keeper.begin({}, [record(1)])
    keeper.record(record(2, 0.625))
    kept = read(path_of(config, tmp_path))  # at once: the run may be killed
    assert (kept.accuracy, kept.failures, kept.client_seconds) == ([0.5, 0.625], 1, [3.0, 3.0])
    assert (kept.bytes_down, kept.bytes_up) == (10, 20)
    assert kept.made == {"cpu": "x", "git": "abc", "data": {"train": 3}}
    keeper.record(record(3))  # too soon after the last for another write
    assert read(path_of(config, tmp_path)).done == 2
    keeper.end()
    assert read(path_of(config, tmp_path)).done == 3
    keeper.failed("NaN everywhere")
    assert read(path_of(config, tmp_path)).failed == "NaN everywhere"


def test_a_keeper_that_was_told_nothing_writes_nothing(tmp_path):
    config = CELL.config()
    keeper = Keeper(config, tmp_path, list)
    keeper.begin({}, [])
    keeper.end()
    assert not list(tmp_path.rglob("*.json"))


def test_a_round_that_was_not_evaluated_is_refused():
    blind = {k: v for k, v in record(2).items() if k != "accuracy"}
    with pytest.raises(UserError, match="round 2 was not evaluated"):
        outcome(CELL.config(), [record(1), blind, record(3)])
    with pytest.raises(UserError, match="round 2 was not evaluated"):
        outcome(CELL.config(), [record(1), record(3)])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda held: held.update(format="other"), "is not a result"),
        (lambda held: held.pop("accuracy"), "is not a whole result"),
        (lambda held: held["accuracy"].pop(), "do not agree"),
        (lambda held: held["forgetting"].pop(), "do not agree"),
        (lambda held: held["client_seconds"].pop(), "do not agree"),
        (lambda held: held["rounds"].update(done=1), "do not agree"),
        (lambda held: held["config"].update(colour="red"), "has no 'colour'"),
        (lambda held: held["made"].update(earlier={"cpu": "x"}), "is not a whole result"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, harm, said):
    path = save(outcomes.outcome(CELL, [10.0, 20.0]), tmp_path)
    held = json.loads(path.read_text())
    harm(held)
    path.write_text(json.dumps(held))
    with pytest.raises(UserError, match=said) as error:
        Results.load(tmp_path)
    assert str(path) in str(error.value)


def test_no_folder_means_no_results(tmp_path):
    assert len(Results.load(tmp_path / "none")) == 0


def test_a_variant_that_does_not_apply_is_told_apart():
    paper = load_paper("fedntd")
    config = CELL.config()
    applying = {v.name for v in paper.variants.values() if v.applies(config)}
    assert {"no-cutout", "fixed-partition", "no-tau-squared"} <= applying
    assert not {"unbalanced", "momentum-unaware", "moon-shipped"} & applying
    changing = {v.name for v in paper.variants.values() if CELL.changed_by(v)}
    assert applying - changing == {"lenet"}  # which is for another table


def test_somebodys_code_is_loaded_only_if_it_was_asked_for(tmp_path, monkeypatch):
    """A result says which file its algorithm is in: who sends results could have it run."""
    monkeypatch.chdir(tmp_path)
    text = "from dataclasses import dataclass\nfrom fedrecall import FedAvg\nfrom pathlib import Path\n"
    text += 'Path("ran").touch()\n@dataclass(frozen=True)\nclass Sent(FedAvg):\n    pass\n'
    (tmp_path / "sent.py").write_text(text)
    path = save(outcomes.outcome(CELL, [50.0]), tmp_path / "results")
    for algorithm in ({"name": "sent.py:Sent"}, {"name": "private", "of": {"name": "sent.py:Sent"}}):
        held = json.loads(path.read_text())
        held["config"]["algorithm"] = algorithm
        path.write_text(json.dumps(held))
        assert len(Results.load(tmp_path / "results")) == 0
        assert len(Results.load(tmp_path / "results", {"other.py:Other": "other.py:Other"})) == 0
        with pytest.raises(UserError, match=r"is of sent\.py:Sent, which was not asked for"):
            read(path)
        assert not (tmp_path / "ran").exists()
    other = {"algorithm": "sent.py:Sent"}, {"algorithm": {"name": "private", "of": "sent.py:Sent"}}
    other += {"measures": ["sent.py:Sent"]}, {"sinks": ["sent.py:Sent"]}, {"dataset": "sent.py:Sent"}
    for forged in other:  # as no result is written
        plain = {**held["config"], "algorithm": {"name": "fedavg"}}
        path.write_text(json.dumps({**held, "config": plain | forged}))
        with pytest.raises(UserError, match="is read without anybody's code"):
            Results.load(tmp_path / "results")
        assert not (tmp_path / "ran").exists()
    held["config"]["algorithm"] = {"name": "elsewhere/sent.py:Sent"}
    path.write_text(json.dumps(held))
    (found,) = Results.load(tmp_path / "results", {"sent.py:Sent": f"{tmp_path}/sent.py:Sent"})
    assert (tmp_path / "ran").exists()
    assert found.as_dict()["config"]["algorithm"] == {"name": "sent.py:Sent"}  # no place of this machine
    assert name(found.config).startswith("cifar10-shards_2-sent.py_Sent-")
    assert save(found, tmp_path / "results") == save(found, tmp_path / "results")  # reads what it replaces


def test_what_looked_on_and_what_was_told_is_not_kept(tmp_path, monkeypatch):
    """Measures and sinks of somebody's own, which others could not load, leave a result that all can read."""
    monkeypatch.chdir(tmp_path)
    text = "from dataclasses import dataclass\nfrom fedrecall.measures.moment import Measure\n"
    text += "@dataclass(frozen=True)\nclass Look(Measure):\n"
    (tmp_path / "look.py").write_text(text + "    def __call__(self, moment):\n        return {}\n")
    made = outcomes.outcome(CELL, [50.0], measures=None)
    config = configs.make(
        configs.as_dict(made.config)
        | {"measures": ["alignment:every=2", "look.py:Look"], "sinks": ["tensorboard"]}
    )
    path = save(dataclasses.replace(made, config=config), tmp_path / "results")
    found = read(path).config
    assert (found.measures, found.sinks) == (("alignment:every=2",), ())
    assert identity(found) == identity(config)


def test_what_is_kept_of_a_run_is_of_its_last_round():
    records = [
        {"round": n, "accuracy": a, "forgetting": 0.0, "class_accuracy": [a, a], "failures": [],
         "seconds": {"clients": [1.0, 2.0]}, "bytes_down": n, "bytes_up": n}
        for n, a in ((1, 0.2), (2, 0.6))
    ]  # fmt: skip
    found = outcome(CELL.config(), records)
    assert (found.class_accuracy, found.bytes_down, found.client_seconds) == ([0.6, 0.6], 2, [3.0, 3.0])


def test_of_two_runs_as_far_the_first_is_kept():
    first, second = (outcomes.outcome(CELL, [a]) for a in (20.0, 30.0))
    assert list(Results([first, second])) == [first]


def test_a_run_on_a_gpu_was_computed_on_that():
    assert machine_of({"gpu": "a GPU", "cpu": "a CPU"}) == "a GPU"
    assert machine_of({"gpu": None, "cpu": "a CPU"}) == "a CPU"
