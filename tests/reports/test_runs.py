import json
import re
import shutil

import numpy as np
import pytest
import torch
from tests.papers.outcomes import outcome
from tests.reports.synthetic import AGREED, MADE, changed, of_nodes, write

import fedrecall
from fedrecall import config as configs
from fedrecall import own_digest, trees
from fedrecall.errors import UserError
from fedrecall.measures.accuracy import accuracy, evaluate
from fedrecall.papers import table
from fedrecall.papers.results import save
from fedrecall.reports.figures.quantities import over_seeds
from fedrecall.reports.report import build, pairs
from fedrecall.reports.runs import (
    Run,
    arrange,
    duration,
    in_words,
    open_runs,
    partly_tested,
    unfinished,
    value,
)

SMALL = {
    "dataset": "synthetic:4,train=200,test=60",
    "model": "mlp",
    "clients": 6,
    "sample": 3,
    "rounds": 3,
    "partition": "shards:2",
    "training.local_epochs": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for algorithm in ("fedavg", "fedntd:beta=2", "fedntd:beta=0.5"):
        for seed in (1, 0):
            name = f"{algorithm.replace(':', '-')}-{seed}"
            fedrecall.run(root / name, algorithm=algorithm, seed=seed, measures=["locals:2"], **SMALL)
    return root


def test_what_a_run_says_of_itself(folder):
    run = Run(folder / "fedavg-0")
    assert run.counts.shape == (6, 4)
    assert run.counts.sum() == 200
    assert run.distributions.sum(1) == pytest.approx(np.ones(6))
    assert run.rounds.tolist() == [1, 2, 3]
    assert run.finished
    assert np.isnan(run.series("consistency")[0])
    assert run.series("class_accuracy").shape == (3, 4)
    assert run.made[0]["versions"]["torch"]


def test_a_report_of_an_older_run_has_no_passwords(tmp_path):
    """Of before they were refused."""
    write(tmp_path / "run", made={**MADE, "command": "flwr-serverapp --token hunter2"})
    path = tmp_path / "run/config.json"
    sinks = {"sinks": ["mlflow:uri=http://bob:hunter2@host:5000"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | sinks))
    page = build(open_runs([tmp_path / "run"]))
    assert "hunter2" not in page
    assert "http://bob:***@host:5000" in page
    assert "flwr-serverapp --token" in page


def test_measures_are_recorded_every_n_rounds_and_at_the_end(folder):
    run = Run(folder / "fedavg-0")
    assert [number for number, _ in run.measured("locals")] == [2, 3]
    assert set(run.records[1]["seconds"]["measures"]) == {"locals"}
    with pytest.raises(UserError, match="--measure alignment"):
        run.measured("alignment")


def test_a_measure_of_ones_own_is_one_though_earlier_rounds_name_its_folder(tmp_path):
    write(tmp_path / "run")
    path, told = tmp_path / "run" / "metrics.jsonl", {"/home/me/m.py:M": 1.0, "locals": 2.0}
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record, measures in zip(records, (told, {"m.py:M": 3.0}), strict=False):
        record["measures"], record["seconds"]["measures"] = measures, measures
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    run = Run(tmp_path / "run")
    for name in ("m.py:M", "/home/me/m.py:M"):
        assert run.measured(name) == [(1, 1.0), (2, 3.0)]
    assert run.records[0]["seconds"]["measures"] == {"m.py:M": 1.0, "locals": 2.0}


def test_the_loaded_model_is_the_one_that_was_evaluated(folder):
    run = Run(folder / "fedntd-beta=2-1")
    test = run.dataset.test
    from fedrecall.data.client import ClientData

    data = ClientData(test.x, test.y, run.dataset.classes, run.dataset.mean, run.dataset.std)
    for number in (2, 3):
        found = accuracy(evaluate(run.model, run.weights(number), data).confusion)
        assert found == run.records[number - 1]["accuracy"]
    assert trees.finite(run.weights())
    with pytest.raises(UserError, match="only of 2 and 3"):
        run.weights(1)


def test_a_share_of_clients_is_as_many_of_them(tmp_path):
    for seed, sample in enumerate((0.5, 3, 2)):
        written = write(tmp_path / str(seed), seed=seed) / "config.json"
        held = json.loads(written.read_text()) | {"clients": 6, "sample": sample}
        written.write_text(json.dumps(held))
    groups = arrange(open_runs([tmp_path]))
    assert sorted(len(group.runs) for group in groups) == [1, 2]
    assert [group.runs[0].complete["sample"] for group in groups if len(group.runs) == 2] == [3]


def test_the_sample_of_an_old_run_is_what_it_goes_on_with(tmp_path):
    for seed, sample in enumerate((1.0, 1, 1.0)):
        path = write(tmp_path / str(seed), seed=seed) / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"sample": sample}))
    runs = open_runs([tmp_path])
    assert [run.complete["sample"] for run in runs] == [1] * 3 == [run.settings.sampled for run in runs]
    (group,) = arrange(runs)
    assert group.seeds == [0, 1, 2]


def test_runs_with_a_seed_for_teachers_belong_to_those_without(tmp_path):
    for seed, earlier in enumerate(({"teacher_seed": 0}, {})):
        path = write(tmp_path / str(seed), seed=seed, algorithm="sfedkd") / "config.json"
        held = json.loads(path.read_text())
        held["algorithm"] |= earlier
        path.write_text(json.dumps(held))
    (group,) = arrange(open_runs([tmp_path]))
    assert group.seeds == [0, 1]


def test_seeds_are_grouped_and_groups_named_by_what_differs(folder):
    groups = arrange(open_runs([folder]))
    assert [g.label for g in groups] == ["fedavg", "fedntd beta=0.5", "fedntd beta=2"]
    assert [g.seeds for g in groups] == [[0, 1]] * 3
    rounds, values = groups[0].series("accuracy")
    assert rounds.tolist() == [1, 2, 3]
    assert values.shape == (2, 3)
    assert groups[0].last("accuracy") == values[:, -1].tolist()


def test_runs_of_other_code_or_data_are_other_experiments(tmp_path):
    def made(code, digest):
        data = {"name": "mine", "train": 9, "test": 3, "digest": digest}
        return MADE | {"code": {"mine.py:Mine": code}, "data": data}

    for name, seed, code, digest in (
        ("old", 0, "aaaaaaaaaaaa", "d1"),
        ("new0", 0, "bbbbbbbbbbbb", "d1"),
        ("new1", 1, "bbbbbbbbbbbb", "d1"),
    ):
        write(tmp_path / "code" / name, seed=seed, made=made(code, digest))
    groups = arrange(open_runs([tmp_path / "code"]))
    assert sorted((g.label, g.seeds) for g in groups) == [
        ("fedavg mine.py:Mine=aaaaaaaa", [0]),
        ("fedavg mine.py:Mine=bbbbbbbb", [0, 1]),
    ]
    assert not any(g.left_out for g in groups)
    for name, digest in (("one", "d1"), ("two", "d2")):
        write(tmp_path / "data" / name, seed=len(name) % 2, made=made("a", digest))
        write(tmp_path / "data" / f"{name}n", seed=0, algorithm="fedntd", made=made("a", digest))
    groups = arrange(open_runs([tmp_path / "data"]))
    assert sorted(g.label for g in groups) == [
        f"{name} (data 9+3 {digest})" for name in ("fedavg", "fedntd") for digest in ("d1", "d2")
    ]
    page = build(open_runs([tmp_path / "data"]))
    assert "data 9+3 d2" in page


def test_what_runs_noted_is_not_told_where_their_configs_tell_them_apart(tmp_path):
    write(tmp_path / "a", made=MADE | {"code": {"mine.py:Mine": "a"}})
    write(tmp_path / "b", algorithm="fedntd", made=MADE | {"data": {"digest": "d"}})
    assert [g.label for g in arrange(open_runs([tmp_path]))] == ["fedavg", "fedntd"]


def test_setups_are_named_too(folder, tmp_path):
    other = {**SMALL, "partition": "lda:0.3,min_size=2", "training.local_epochs": 2}
    fedrecall.run(tmp_path / "other", algorithm="fedavg", **other)
    groups = arrange([Run(folder / "fedavg-0"), Run(tmp_path / "other")])
    assert [g.setup for g in groups] == ["shards:2, local_epochs=1", "lda:0.3,min_size=2, local_epochs=2"]
    assert value(Run(folder / "fedavg-0").config, "training.local_epochs") == 1


def test_a_run_that_is_being_written_is_read_up_to_its_last_whole_line(folder, tmp_path):
    path = tmp_path / "going"
    path.mkdir()
    (path / "config.json").write_text((folder / "fedavg-0" / "config.json").read_text())
    line = (folder / "fedavg-0" / "metrics.jsonl").read_text().splitlines()[0]
    (path / "metrics.jsonl").write_text(line + "\n" + line[:9])
    run = Run(path)
    assert len(run.records) == 1
    assert not run.finished


def test_the_rows_of_runs_are_as_many_as_rounds_whoever_has_none_yet(tmp_path):
    for seed, played in enumerate((2, 0, 3)):
        write(tmp_path / str(seed), seed=seed, played=played)
    rows = [row for run in open_runs(tmp_path) for row in run.rows]
    assert [(row["seed"], row["round"]) for row in rows] == [(0, 1), (0, 2), (2, 1), (2, 2), (2, 3)]


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a run"):
        Run(tmp_path)
    with pytest.raises(UserError, match="neither"):
        open_runs([tmp_path])


def test_a_model_needs_no_memories_and_an_older_one_is_said_to_be(tmp_path):
    run = tmp_path / "run"
    fedrecall.run(run, algorithm="scaffold", **SMALL)
    newest = run / "checkpoints" / "round-000003.safetensors"
    whole = fedrecall.trained(run)
    shutil.rmtree(run / "memories")
    assert torch.equal(
        *(t.network.state_dict()[next(iter(t.network.state_dict()))] for t in (whole, fedrecall.trained(run)))
    )
    newest.write_bytes(newest.read_bytes() + b"x")
    with pytest.warns(RuntimeWarning, match=r"round-000003.safetensors is damaged: .* Taking round 2's"):
        fedrecall.trained(run)
    with pytest.raises(UserError, match=r"no checkpoint of round 3, only of 2\. .*round-000003.* damaged"):
        fedrecall.trained(run, 3)


def without(run, *keys):
    """Leave keys out of a run's config, as a version wrote it that had no such settings."""
    config = json.loads((run / "config.json").read_text())
    for key in keys:
        part, _, rest = key.partition(".")
        del (config[part] if rest else config)[rest or part]
    (run / "config.json").write_text(json.dumps(config))


def test_a_folder_that_is_named_twice_is_one_run(tmp_path):
    run = write(tmp_path / "runs" / "a")
    (tmp_path / "link").symlink_to(run)
    named = [tmp_path / "runs", run, tmp_path / "runs" / ".." / "runs" / "a", tmp_path / "link"]
    assert [r.path for r in open_runs(named)] == [run]


def test_a_folder_is_searched_some_levels_deep_but_not_inside_a_run(tmp_path):
    found = [write(tmp_path / p, seed=n) for n, p in enumerate(("a/seed0", "a/seed1", "b/c/seed0", "d"))]
    for unseen in ("d/seed0", "a/seed0/checkpoints/seed0", ".hidden/seed0", "a/.hidden", "e/f/g/seed0"):
        write(tmp_path / unseen)
    (tmp_path / "up").symlink_to(tmp_path)  # and round again
    (tmp_path / "file").write_text("")
    assert [r.path.resolve() for r in open_runs([tmp_path])] == found
    assert [r.path for r in open_runs([tmp_path / "b", found[1]])] == [found[2], found[1]]
    assert [r.path for r in open_runs([tmp_path / ".hidden"])] == [tmp_path / ".hidden/seed0"]
    assert [r.path for r in open_runs([tmp_path / "e"])] == [tmp_path / "e/f/g/seed0"]
    write(tmp_path / "h/i/j/k/seed0")
    with pytest.raises(UserError, match=r"h is neither a run nor a folder of runs: .* 3 folders down"):
        open_runs([tmp_path / "h"])


def test_which_models_are_kept_is_nothing_that_tells_experiments_apart(tmp_path):
    for seed in (0, 1):
        write(tmp_path / str(seed), seed=seed, keep_every=seed)
    assert [group.label for group in arrange(open_runs([tmp_path]))] == ["fedavg"]


def test_runs_of_a_folder_are_in_the_order_of_their_numbers(tmp_path):
    for name in ("r10", "r2", "r1-b", "r1"):
        write(tmp_path / name)
    assert [run.name for run in open_runs([tmp_path])] == ["r1", "r1-b", "r2", "r10"]


def test_what_reproduce_keeps_of_runs_is_no_run_and_says_where_it_is_shown(tmp_path):
    cell = table("fedntd/table1").cells[0]
    path = save(outcome(cell, [50.0]), tmp_path / "kept")
    for named in (path, path.parent, tmp_path / "kept", tmp_path):
        with pytest.raises(UserError, match=r"holds results of reproduce, .* --seeds 0 --results FOLDER"):
            open_runs([named])
    run = write(tmp_path / "kept" / "run")  # beside one they are passed over
    assert [found.path for found in open_runs([tmp_path])] == [run]


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["a/seed0"], ["seed0"]),
        (["a/seed0", "a/seed1"], ["seed0", "seed1"]),
        (["a/seed0", "b/seed0", "b/seed1"], ["a/seed0", "b/seed0", "b/seed1"]),
        (["a/x/seed0", "b/x/seed0", "b/c"], ["a/x/seed0", "b/x/seed0", "runs/b/c"]),
    ],
)
def test_runs_are_named_with_the_parents_that_tell_them_apart(tmp_path, folders, names):
    for number, folder in enumerate(folders):
        write(tmp_path / "runs" / folder, seed=number)
    assert sorted(run.name for run in open_runs([tmp_path / "runs"])) == names


def test_whatever_dealt_the_partition_is_its_seed(tmp_path):
    for number, (given, dealt) in enumerate([({}, 3), ({"partition_seed": 1}, 1), ({"global_seed": 7}, 7)]):
        assert Run(write(tmp_path / str(number), seed=3, **given)).seeds == (3, dealt)


def test_an_experiment_has_one_run_of_a_seed(tmp_path):
    write(tmp_path / "a", played=4)
    shutil.copytree(write(tmp_path / "b"), tmp_path / "copy")
    write(tmp_path / "elsewhere", device="cpu", backend="serial", evaluate_every=2, partition_seed=0)
    write(tmp_path / "partition", partition_seed=1)
    write(tmp_path / "other", seed=1)
    (group,) = arrange(open_runs([tmp_path]))
    assert [r.name for r in group.runs] == ["b", "partition", "other"]
    assert group.names == ["seed 0, partition 0", "seed 0, partition 1", "seed 1"]
    assert [(r.name, kept.name) for r, kept in group.left_out] == [
        ("a", "b"),
        ("copy", "b"),
        ("elsewhere", "b"),
    ]


def test_runs_from_before_a_setting_existed_belong_to_those_with_its_default(tmp_path):
    write(tmp_path / "new", algorithm="fedntd", seed=0)
    old = write(tmp_path / "old", algorithm="fedntd", seed=1)
    gone = ("normalisation", "test_augmentation", "precision", "augmentation", "partition_seed")
    without(old, *gone, "algorithm.kd_mix", "training.momentum")
    (group,) = arrange(open_runs([tmp_path]))
    assert group.seeds == [0, 1]
    assert group.label == "fedntd"


def test_a_setting_that_one_of_two_runs_lacks_is_named(tmp_path):
    old = write(tmp_path / "a")
    write(tmp_path / "b", precision="float64")
    later = write(tmp_path / "c")
    without(old, "precision")
    config = json.loads((later / "config.json").read_text())
    (later / "config.json").write_text(json.dumps({**config, "gravity": 9.81}))
    groups = arrange(open_runs([tmp_path]))
    assert [g.setup for g in groups] == [
        "precision=float32",
        "precision=float64",
        "precision=float32, gravity=9.81",
    ]


def test_numbers_that_are_equal_are_one_setting(tmp_path):
    write(tmp_path / "a", seed=0)
    same = write(tmp_path / "b", seed=1)
    config = json.loads((same / "config.json").read_text())
    config["training"]["lr_decay"] = 1
    (same / "config.json").write_text(json.dumps(config))
    first = json.loads((tmp_path / "a" / "config.json").read_text())
    first["training"]["lr_decay"] = 1.0
    (tmp_path / "a" / "config.json").write_text(json.dumps(first))
    (group,) = arrange(open_runs([tmp_path]))
    assert group.seeds == [0, 1]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"secure": "masks"}, "secure=masks"),
        ({"shape": [3, 8, 8]}, "nodes' data (3x8x8, 3 classes, 150 examples"),
        ({"class_names": ["a", "b", "d"]}, "nodes' data (1x8x8, 3 classes, 150 examples"),
        ({"columns": ["x"]}, "nodes' data (1x8x8, 3 classes, 150 examples"),
        ({"statistics": "0a1b2c3e"}, "nodes' data (1x8x8, 3 classes, 150 examples"),
        ({"examples": [100, 51]}, "nodes' data (1x8x8, 3 classes, 151 examples"),
        ({"examples": None}, "nodes' data (1x8x8, 3 classes, digest"),
    ],
)
def test_federations_over_other_data_are_other_experiments(tmp_path, other, said):
    of_nodes(tmp_path / "a", AGREED)
    of_nodes(tmp_path / "b", AGREED, seed=1)
    of_nodes(tmp_path / "c", {**AGREED, **other})
    one, two = arrange(open_runs([tmp_path]))
    assert (one.seeds, two.seeds) == ([0, 1], [0])
    assert said in two.setup
    assert one.setup != two.setup
    assert not one.left_out
    assert not two.left_out


def test_federations_of_earlier_versions_are_told_apart_by_what_they_noted(tmp_path):
    early = {"classes": ["a", "b", "c"], "mean": [0.5], "std": [0.25]}
    of_nodes(tmp_path / "a", early)
    of_nodes(tmp_path / "b", early, seed=1)
    of_nodes(tmp_path / "c", {**early, "mean": [0.4]}, seed=1)
    of_nodes(tmp_path / "d", {})
    assert [g.seeds for g in arrange(open_runs([tmp_path]))] == [[0, 1], [1], [0]]
    (tmp_path / "d" / "federation.json").write_text("[]")
    with pytest.raises(UserError, match="does not say what the nodes agreed on"):
        arrange(open_runs([tmp_path]))


def test_classes_have_their_names_where_nobody_knows_who_holds_what(tmp_path):
    of_nodes(tmp_path / "run", AGREED)
    inputs = {"shape": [1, 8, 8], "class_names": ["cat", "dog", "eel"], "mean": [0.5], "std": [0.5]}
    (tmp_path / "run" / "inputs.json").write_text(json.dumps({**inputs, "columns": []}))
    assert Run(tmp_path / "run").class_names == ["cat", "dog", "eel"]


def test_what_a_run_was_tested_without_is_said(tmp_path):
    path = write(tmp_path / "run", rounds=9, evaluate_every=1) / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for number, clients in {2: [1], 3: [1], 4: [1, 0], 9: [1]}.items():
        records[number - 1]["untested"] = [f"client {k}, evaluation of round {number}: gone" for k in clients]
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    assert partly_tested(open_runs([tmp_path])) == [
        "run was tested without client 1 in rounds 2 to 4 and 9, client 0 in round 4"
    ]


def test_that_nobody_tested_a_round_is_said(tmp_path):
    def untested(record, at):
        if record["round"] in at:
            for key in ("accuracy", "loss", "class_accuracy", "forgetting", "consistency"):
                del record[key]
            who = f"client 1, evaluation of round {record['round']}: gone"
            record["untested"] = [who, f"nobody evaluated the model of round {record['round']}: no node"]
        elif record["round"] == 2:
            record["untested"] = ["client 0, evaluation of round 2: gone"]

    changed(write(tmp_path / "a"), lambda record: untested(record, (4, 5, 6)))
    changed(write(tmp_path / "b", rounds=1), lambda record: untested(record, (1,)))
    assert partly_tested(open_runs([tmp_path])) == [
        "a was tested without client 0 in round 2 and by nobody in rounds 4 to 6",
        "b was tested by nobody in round 1",
    ]


@pytest.mark.parametrize(
    ("count", "ends"), [(4, "client 3"), (5, "client 4"), (6, "1 others"), (9, "4 others")]
)
def test_of_many_nodes_without_which_a_run_was_tested_some_are_named(count, ends, tmp_path):
    path = write(tmp_path / "run", rounds=2) / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records[1]["untested"] = [f"client {k}, evaluation of round 2: gone" for k in range(count)]
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    (said,) = partly_tested(open_runs([tmp_path]))
    assert said.removesuffix(" in round 2").endswith(ends)
    assert said.count("client") == min(count, 5)


def test_of_equal_runs_the_one_that_was_looked_at_more_often_counts(tmp_path):
    seldom = write(tmp_path / "a") / "metrics.jsonl"
    records = [json.loads(line) for line in seldom.read_text().splitlines()]
    del records[2]["accuracy"]
    seldom.write_text("".join(json.dumps(r) + "\n" for r in records))
    write(tmp_path / "b", evaluate_every=1)
    (group,) = arrange(open_runs([tmp_path]))
    assert [r.name for r in group.runs] == ["b"]


def test_data_have_the_digest_that_was_noted_and_where_they_are_from(tmp_path):
    data = {"name": "mine", "train": 9, "test": 3, "digest": "abcd"}
    told = []
    for name, more in (("a", {}), ("b", {"origins": "ef"})):
        told.append(Run(write(tmp_path / name, made={**MADE, "data": data | more})).noted["data"])
    assert told == ["data 9+3 abcd", "data 9+3 abcd ef"]


def test_a_client_without_examples_has_no_distribution(tmp_path):
    run = write(tmp_path / "run")
    held = json.loads((run / "partition.json").read_text())
    held["meta"]["counts"] = [[0, 0, 0], [1, 2, 1]]
    (run / "partition.json").write_text(json.dumps(held))
    assert Run(run).distributions.tolist() == [[0, 0, 0], [0.25, 0.5, 0.25]]
    held["meta"]["counts"][0][1] = -1
    (run / "partition.json").write_text(json.dumps(held))
    with pytest.raises(UserError, match="counts are not whole numbers"):
        _ = Run(run).counts


def test_a_run_is_looked_at_on_the_cpu_and_with_its_own_data_alone(tmp_path):
    made = fedrecall.run(tmp_path / "run", **SMALL | {"rounds": 1})
    path = tmp_path / "run" / "config.json"
    held = json.loads(path.read_text())
    path.write_text(json.dumps(held | {"device": "cuda", "backend": "vectorised"}))
    run = Run(tmp_path / "run")
    assert (run.settings.device, str(run.settings.backend)) == ("cpu", "serial")
    assert torch.equal(run.dataset.test.y, made.federation.dataset.test.y)
    path.write_text(json.dumps(held | {"dataset": held["dataset"] | {"seed": 1}}))
    with pytest.raises(UserError, match=r"begun on other data.*name their folder with --data-root"):
        _ = Run(tmp_path / "run").dataset


MINE = """
from dataclasses import dataclass
from typing import NamedTuple

from fedrecall import FedAvg
from fedrecall.models.model import Weights

class State(NamedTuple):
    weights: Weights
    first: Weights

@dataclass(frozen=True)
class Mine(FedAvg):
    \"\"\"Keeps the model that it began with.\"\"\"
    def start(self, weights):
        return State(weights, weights)
    def aggregate(self, server, ups, cohort):
        return State(cohort.mean(ups.weights), server.first)
"""


def test_the_model_is_the_one_that_clients_get_whatever_else_the_server_keeps(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    result = fedrecall.run(tmp_path / "run", algorithm=f"{tmp_path}/mine.py:Mine", **SMALL)
    found, first = Run(tmp_path / "run").weights(), result.model.initial()
    for name, trained in result.weights.params.items():
        assert torch.equal(found.params[name], trained)
        assert not torch.equal(trained, first.params[name])


def test_an_own_algorithm_is_called_the_same_wherever_its_file_lies(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(MINE)
    for place, algorithm in (("a", f"{tmp_path}/here/mine.py:Mine"), ("b", "fedavg")):
        fedrecall.run(tmp_path / "runs" / place, algorithm=algorithm, **SMALL)
    runs = open_runs([tmp_path / "runs"])
    assert [run.algorithm for run in runs] == ["mine.py:Mine", "fedavg"]
    assert [group.algorithm for group in arrange(runs)] == ["mine.py:Mine", "fedavg"]
    assert str(tmp_path) not in re.sub("<pre.*?</pre>", "", build(runs), flags=re.DOTALL)  # configs are whole
    for baseline in ("mine.py:Mine", f"{tmp_path}/here/mine.py:Mine"):
        assert "mine.py:Mine" in build(runs, baseline=baseline)
    with pytest.raises(UserError, match=r"no run is called 'mine.py:Other'"):
        build(runs, baseline=f"{tmp_path}/mine.py:Other")
    # Runs of an earlier version, which noted no code, are told apart by where it is.
    fedrecall.run(tmp_path / "runs" / "c", algorithm=f"{tmp_path}/there/mine.py:Mine", **SMALL)
    for place in "ac":
        path = tmp_path / "runs" / place / "made.json"
        path.write_text(
            json.dumps([{k: v for k, v in json.loads(path.read_text())[0].items() if k != "code"}])
        )
    names = {group.algorithm for group in arrange(open_runs([tmp_path / "runs"]))}
    assert names == {"fedavg", *(f"{tmp_path}/{place}/mine.py:Mine" for place in ("here", "there"))}


OWN = """
from dataclasses import dataclass
import numpy as np
from torch import nn
from fedrecall.algorithms import FedAvg
from fedrecall.data.partitions import Partition

def net(classes, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, classes))

@dataclass(frozen=True)
class Mine(FedAvg):
    mu: float = 0.5
    kind = 3

@dataclass(frozen=True)
class Turns(Partition):
    step: int = 1

    def owners(self, labels, clients, rng):
        return np.arange(len(labels)) * self.step % clients
"""


def test_seeds_that_were_run_in_two_checkouts_are_of_one_experiment(tmp_path, monkeypatch):
    def begun(name, **settings):
        code = own_digest.code(configs.as_dict(configs.make(settings)))
        assert ("Mine.kind of mine.py:Mine" in code) == ("mine.py" in str(settings.get("algorithm")))
        if name.startswith("there"):  # as of an earlier version
            code = {of: digest for of, digest in code.items() if own_digest.looking_up(of) is None}
        write(tmp_path / "runs" / name, made=MADE | {"code": code}, **settings)

    for seed, place in enumerate(("here", "there", "changed")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mine.py").write_text(OWN + ("print()\n" if place == "changed" else ""))
        monkeypatch.chdir(tmp_path / place)
        own = {"algorithm": "mine.py:Mine", "partition": "mine.py:Turns", "seed": seed}
        begun(f"{place}0", **own, model="mine.py:net")
        begun(f"{place}1", **own, model="mine.py:net:width=3")
        private = "private:of=mine.py:Mine,noise=0.1,secret=false"
        begun(f"{place}2", **own | {"algorithm": private}, model="mine.py:net")
    begun("other", partition="../here/mine.py:Turns:step=5")
    monkeypatch.chdir(tmp_path)
    groups = arrange(open_runs([tmp_path / "runs"]))
    assert sorted(tuple(g.seeds) for g in groups) == [*[(0,), (0, 1), (0, 1), (0, 1)], *[(2,)] * 3]
    said = [g.label for g in groups]
    assert len({*said}) == 7
    assert {"mine.py:Turns(step=1)", "mine.py:Turns(step=5)"} == {g.settings["partition"] for g in groups}
    assert {g.settings["model"] for g in groups} == {"cnn", "mine.py:net", "mine.py:net:width=3"}
    page = build([run for group in groups for run in group.runs])
    assert str(tmp_path) not in " ".join(said) + re.sub("<pre.*?</pre>", "", page, flags=re.DOTALL)


def test_seeds_whose_data_lay_elsewhere_are_of_one_experiment(tmp_path):
    def begun(place, seed, digest):
        facts = {"data": {"train": 9, "test": 3, "digest": digest}} if digest else {}
        data, deal = f"folder:/{place}/scans", f"file:/{place}/deal.json"
        name = f"{place}{seed}{digest}"
        write(tmp_path / name, made=MADE | facts, seed=seed, dataset=data, partition=deal)

    for seed, place in enumerate(("a", "b")):
        begun(place, seed, "01")
        begun(place, seed, "")  # which data these are nobody knows
    begun("b", 2, "02")
    found = arrange(open_runs([tmp_path]))
    assert sorted(tuple(g.seeds) for g in found) == [(0,), (0, 1), (1,), (2,)]
    (of_two,) = [g for g in found if len(g.runs) == 2]
    settings = in_words(of_two.runs[0].complete)
    assert (settings["dataset"], settings["partition"]) == ("folder:scans", "file:deal.json")


def test_what_another_content_of_a_partitions_file_dealt_is_another_experiment(tmp_path):
    deal = tmp_path / "deal.json"
    for name, share in (("a", 100), ("b", 60), ("c", 60)):
        parts = [list(range(share)), list(range(share, 200))]
        deal.write_text(json.dumps({"format": "fedrecall partition 1", "meta": {}, "clients": parts}))
        settings = SMALL | {"partition": f"file:{deal}", "clients": 2, "sample": 2}
        fedrecall.run(tmp_path / name, algorithm="fedntd" if name == "c" else "fedavg", **settings)
    a, b, c = open_runs([tmp_path / name for name in "abc"])
    assert a.noted["data"] != b.noted["data"] == c.noted["data"]
    assert [len(group.runs) for group in arrange([a, b, c])] == [1, 1, 1]
    assert [base.label for base, *_ in pairs(arrange([a, c]), None)] == []
    assert len(list(pairs(arrange([b, c]), None))) == 1


def test_no_auxiliary_examples_may_be_said_or_not(tmp_path):
    for name, changes in (("a", {}), ("b", {"auxiliary_per_class": 0, "seed": 1})):
        fedrecall.run(tmp_path / name, **{**SMALL, "algorithm": "fedavg", **changes})
    needed = {"algorithm": "fedssd:auxiliary_per_class=3"}
    for name, algorithm in (("c", {"algorithm": "fedavg"}), ("d", needed)):
        fedrecall.run(tmp_path / name, **{**SMALL, **algorithm, "auxiliary_per_class": 3})
    fedrecall.run(tmp_path / "e", **{**SMALL, **needed, "auxiliary_per_class": 4})
    groups = arrange(open_runs([tmp_path]))
    assert [len(group.runs) for group in groups] == [2, 1, 1, 1]
    c, d = (in_words(group.runs[0].complete) for group in groups[1:3])
    assert c["auxiliary_per_class"] == d["auxiliary_per_class"]  # as compare has it, for all alike
    compared = [(base.algorithm, group.algorithm) for base, _, group, _ in pairs(groups, None)]
    assert compared == [("fedavg", "fedssd")]  # those of which the server holds three of each class
    fedrecall.run(tmp_path / "b", resume=True, **{**SMALL, "algorithm": "fedavg", "seed": 1, "rounds": 4})
    resumed = {**SMALL, **needed, "auxiliary_per_class": 3, "rounds": 4}
    fedrecall.run(
        tmp_path / "d", resume=True, **{k: v for k, v in resumed.items() if k != "auxiliary_per_class"}
    )
    with pytest.raises(UserError, match="begun with auxiliary_per_class = 4, not 3"):
        fedrecall.run(tmp_path / "e", resume=True, **{**SMALL, **needed, "rounds": 4})


def test_what_an_algorithm_needs_is_what_the_server_holds_where_nothing_is_said(tmp_path):
    protected = {"name": "private", "of": {"name": "fedssd"}, "noise": 0}
    for n, algorithm in enumerate(({"name": "fedavg"}, {"name": "fedssd"}, protected)):
        for seed, said in enumerate((None, 64 if n else 0)):
            written = write(tmp_path / f"{n}-{seed}", seed=seed, auxiliary_per_class=said) / "config.json"
            config = json.loads(written.read_text()) | {"algorithm": algorithm}
            written.write_text(json.dumps(config))
    groups = arrange(open_runs([tmp_path]))
    assert [group.seeds for group in groups] == [[0, 1]] * 3
    held = [f"auxiliary_per_class={n}" for n in (0, 64, 64)]
    assert [group.setup for group in groups] == held


def test_algorithms_with_other_mappings_are_told_apart_by_what_these_hold(tmp_path):
    for rate in (0.5, 2.0):
        run = write(tmp_path / str(rate))
        config = json.loads((run / "config.json").read_text())
        own = {
            "name": "mine.py:Mine",
            "rates": {"fc1.weight": rate, "a b": rate} if rate > 1 else {"0.bias": rate},
        }
        (run / "config.json").write_text(json.dumps(config | {"algorithm": own}))
    assert [group.algorithm for group in arrange(open_runs([tmp_path]))] == [
        "mine.py:Mine rates.0.bias=0.5",
        'mine.py:Mine rates={"fc1.weight": 2, "a b": 2}',
    ]


def test_of_an_own_algorithm_the_partition_says_what_the_server_held(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('it was loaded')")
    own = {"algorithm": {"name": f"{tmp_path}/mine.py:Mine"}}
    for seed, said, held in ((0, None, 9), (1, 3, 9), (2, None, 0)):
        run = write(tmp_path / str(seed), seed=seed, auxiliary_per_class=said)
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(config | own))
        divided = json.loads((run / "partition.json").read_text())
        divided["meta"]["auxiliary"] = held
        (run / "partition.json").write_text(json.dumps(divided))
    groups = arrange(open_runs([tmp_path]))
    assert [(g.seeds, g.setup) for g in groups] == [
        ([0, 1], "auxiliary_per_class=3"),
        ([2], "auxiliary_per_class=0"),
    ]
    (tmp_path / "2" / "partition.json").unlink()
    assert Run(tmp_path / "2").complete["auxiliary_per_class"] is None


@pytest.mark.parametrize("own", [False, True])
def test_a_federations_data_are_called_by_what_the_server_and_the_nodes_have(own, tmp_path):
    for name, partition in (("a", "iid"), ("b", "shards:2")):
        run = of_nodes(tmp_path / name, AGREED, partition=partition)
        if own:
            held = json.loads((run / "config.json").read_text())
            (run / "config.json").write_text(json.dumps(held | {"dataset": {"name": "digits"}}))
    said = [in_words(run.complete) for run in open_runs([tmp_path])]
    assert said[0]["dataset"] == said[1]["dataset"]
    assert said[0]["dataset"].startswith("digits and nodes' data (" if own else "nodes' data (")
    assert [w["partition"] for w in said] == ["iid where nodes divide", "shards:2 where nodes divide"]


def test_experiments_whose_numbers_differ_late_have_names_of_their_own(tmp_path):
    for name, lr in (("a", 1e-5), ("b", 1e-5 + 1e-12)):
        write(tmp_path / name, training={"lr": lr})
    assert [g.label for g in arrange(open_runs([tmp_path]))] == [
        "fedavg (lr=1e-05)",
        "fedavg (lr=1.0000001e-05)",
    ]


def test_of_a_group_the_last_value_counts_and_the_rounds_that_all_have(tmp_path):
    for seed, every in ((0, 1), (1, 2)):
        path = write(tmp_path / str(seed), seed=seed) / "metrics.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            if record["round"] % every:
                for name in ("accuracy", "loss", "class_accuracy", "forgetting", "consistency"):
                    del record[name]
            elif record["round"] == 6:
                record["accuracy"] = 0.125  # below those of before
        path.write_text("".join(json.dumps(r) + "\n" for r in records))
    (group,) = arrange(open_runs([tmp_path]))
    rounds, values = group.series("accuracy")
    assert rounds.tolist() == [2, 4, 6]
    expected = [[r["accuracy"] for r in run.records if r["round"] in (2, 4, 6)] for run in group.runs]
    assert values.tolist() == expected
    assert group.last("accuracy") == [0.125, 0.125]


def test_runs_without_a_round_in_common_have_no_curve(tmp_path):
    for seed in (0, 1):
        path = write(tmp_path / str(seed), seed=seed) / "metrics.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            if record["round"] % 2 == seed:
                for name in ("accuracy", "loss", "class_accuracy", "forgetting", "consistency", "measures"):
                    del record[name]
        path.write_text("".join(json.dumps(r) + "\n" for r in records))
    (group,) = arrange(open_runs([tmp_path]))
    with pytest.raises(UserError, match=r"the runs of .* have no evaluated round in common"):
        group.series("accuracy")
    with pytest.raises(UserError, match=r"the runs of .* have no measured round in common"):
        over_seeds(group, "local average")


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        (None, "does not say how many examples of each class the clients hold"),
        ({"counts": [], "auxiliary": 0}, "does not say how many examples"),
        ({"counts": [[1, 2, "x"]]}, "counts are not whole numbers, a row a client"),
        ({"counts": [[1, 2]]}, "counts are not whole numbers"),
        ({"counts": [[1, 2, -1]]}, "counts are not whole numbers"),
    ],
)
def test_a_damaged_partition_is_told(meta, said, tmp_path):
    path = write(tmp_path / "run") / "partition.json"
    known = json.loads(path.read_text())["meta"]
    whole = known | meta if meta is not None and len(meta) == 1 else meta
    path.write_text(json.dumps({"meta": whole}))
    with pytest.raises(UserError, match=said):
        print(Run(tmp_path / "run").counts)


def test_a_model_that_is_not_the_configs_is_told(tmp_path):
    fedrecall.run(tmp_path / "run", **SMALL | {"rounds": 1})
    path = tmp_path / "run" / "config.json"
    for model in ("mlp:7", "cnn"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model": model}))
        with pytest.raises(UserError, match="run is not of the model that the config names"):
            Run(tmp_path / "run").weights()


def test_no_runs_are_none():
    with pytest.raises(UserError, match="name at least one run"):
        open_runs([])


def test_a_run_that_is_through_is_not_unfinished(tmp_path):
    write(tmp_path / "done")
    write(tmp_path / "begun", seed=1, played=2)
    write(tmp_path / "idle", seed=2, played=0)
    assert unfinished(open_runs([tmp_path])) == ["begun stands at round 2 of 6"]


def test_a_duration_is_said_roughly():
    assert [duration(s) for s in (40.2, 89.0, 720, 11_100)] == ["40 s", "89 s", "12 min", "3 h 05 min"]


def test_a_run_is_of_the_code_that_it_was_last_gone_on_with(tmp_path):
    path = write(tmp_path / "a") / "made.json"
    starts = [MADE | {"code": {"mine.py:Mine": digest * 16}} for digest in "ab"]
    path.write_text(json.dumps(starts))
    assert Run(tmp_path / "a").noted == {"code": "mine.py:Mine=bbbbbbbb"}
