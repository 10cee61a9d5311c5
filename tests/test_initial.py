"""A run that begins with another's model, or a file's, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

import fedrecall
from fedrecall import config as configs
from fedrecall import trees
from fedrecall.data.datasets import load
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment, check
from fedrecall.reports.runs import Run, arrange

SETTINGS = {
    "dataset": "synthetic:classes=3,train=60,test=30",
    "clients": 3,
    "sample": 3,
    "model": "mlp:4",
    "rounds": 1,
    "local_epochs": 1,
    "seed": 5,
}
STILL = {"lr": 1e-30, "weight_decay": 0.0}
"""Training that leaves every weight as it is."""


def begun(**settings: object) -> object:
    """The model before the first round."""
    experiment = Experiment(configs.make(configs.nested({**SETTINGS, **settings})))
    experiment.close()
    return experiment.server.weights


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A run of another seed, in its folder."""
    out = tmp_path_factory.mktemp("before") / "run"
    return fedrecall.run(out, progress=False, **SETTINGS | {"seed": 6, "rounds": 2})


@pytest.mark.parametrize("backend", ["serial", "processes", "vectorised"])
def test_a_run_begins_with_another_runs_last_model_on_every_backend(backend, before):
    assert not torch.equal(begun().params["fc1.weight"], before.weights.params["fc1.weight"])
    settings = SETTINGS | STILL | {"backend": backend, "initial": str(before.out), "workers": 1}
    result = fedrecall.run(progress=False, **settings)
    torch.testing.assert_close(trees.arrays(result.weights), trees.arrays(before.weights), rtol=1e-6, atol=0)
    assert result.accuracy == before.accuracy


def test_an_algorithms_other_state_begins_afresh(before):
    moved = Experiment(
        configs.make(configs.nested({**SETTINGS, "algorithm": "scaffold", "initial": str(before.out)}))
    )
    moved.close()
    assert trees.arrays(moved.server.weights).keys() == trees.arrays(before.weights).keys()
    others = {n: t for n, t in trees.leaves(moved.server) if not n.startswith("weights/")}
    assert others
    assert not any(t.any() for t in others.values())


@pytest.mark.parametrize("inner", ["fedavg", "fedavgm"])
def test_the_model_of_a_protected_run_is_found(inner, tmp_path):
    run = SETTINGS | {"algorithm": f"private:{inner},noise=0"}
    first = fedrecall.run(tmp_path / "run", progress=False, **run)
    found = begun(initial=str(tmp_path / "run"), algorithm="private:fedavg,noise=0")
    torch.testing.assert_close(trees.arrays(found), trees.arrays(first.weights), rtol=0, atol=0)


def test_a_run_of_an_earlier_version_is_begun_with(tmp_path):
    first = fedrecall.run(tmp_path / "run", progress=False, **SETTINGS | {"algorithm": "sfedkd"})
    path = tmp_path / "run" / "config.json"
    saved = json.loads(path.read_text())
    saved["algorithm"]["teacher_seed"] = 0  # which no setting says any more
    path.write_text(json.dumps(saved))
    found = begun(initial=str(tmp_path / "run"))
    torch.testing.assert_close(trees.arrays(found), trees.arrays(first.weights), rtol=0, atol=0)


def test_a_file_of_a_networks_state_is_begun_with(before, tmp_path):
    state = fedrecall.trained(before.out).network.state_dict()
    save_file(state, tmp_path / "old.safetensors")
    found = begun(initial=str(tmp_path / "old.safetensors"), precision="float64")
    assert {n: t.float().tolist() for n, t in found.params.items()} == {
        n: t.tolist() for n, t in state.items()
    }
    assert {t.dtype for t in found.params.values()} == {torch.float64}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: {n: t for n, t in s.items() if n != "fc2.bias"},
            r"lacks fc2\.bias: give weights of the network",
        ),
        (lambda s: s | {"fc9.bias": torch.zeros(1)}, r"has fc9\.bias, which the network lacks"),
        (lambda s: s | {"fc2.bias": torch.zeros(9)}, r"fc2\.bias is \[9\] in .*, and \[3\] in the network"),
        (lambda s: s | {"fc2.bias": torch.full((3,), torch.nan)}, "holds numbers that are not finite"),
    ],
)
def test_weights_of_another_network_are_refused(change, message, before, tmp_path):
    path = tmp_path / "old.safetensors"
    save_file(change(fedrecall.trained(before.out).network.state_dict()), path)
    with pytest.raises(UserError, match=message):
        begun(initial=str(path))


def test_what_is_no_run_and_no_file_is_refused(before, tmp_path):
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UserError, match="is neither a run folder nor a file: name one of them"):
            begun(initial=str(place))
    with pytest.raises(UserError, match=r"a{300} cannot be looked up"):
        begun(initial="a" * 300)
    with pytest.raises(UserError, match=r"fc1\.weight is \[4, \d+\] in .*, and \[5, \d+\] in the network"):
        begun(initial=str(before.out), model="mlp:5")
    with pytest.raises(UserError, match=r"has fc2\..*, which the network lacks|lacks .*"):
        begun(initial=str(before.out), model="cnn")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="has no saved model: name another run"):
        begun(initial=str(tmp_path))


def test_other_classes_are_told(before):
    data = replace(load(SETTINGS["dataset"]), class_names=("b", "a", "c"))
    config = configs.make(configs.nested(SETTINGS | {"initial": str(before.out)}))
    with pytest.warns(
        RuntimeWarning, match="trained on the classes 0, 1, 2, in this order, and here they are b"
    ):
        Experiment(config, dataset=data)


def test_a_run_goes_on_without_what_it_began_with_and_notes_what_that_was(before, tmp_path):
    path = tmp_path / "old.safetensors"
    save_file(fedrecall.trained(before.out).network.state_dict(), path)
    run = SETTINGS | {"initial": str(path)}
    first = fedrecall.run(tmp_path / "part", progress=False, **run)
    path.rename(tmp_path / "elsewhere")
    again = fedrecall.run(tmp_path / "part", resume=True, progress=False, **run | {"rounds": 2})
    starts = json.loads((tmp_path / "part" / "made.json").read_text())
    assert len({start["initial"] for start in starts}) == 1
    (tmp_path / "elsewhere").rename(path)
    whole = fedrecall.run(tmp_path / "whole", progress=False, **run | {"rounds": 2})
    assert trees.finite(first.weights)
    torch.testing.assert_close(trees.arrays(again.weights), trees.arrays(whole.weights), rtol=0, atol=0)
    assert fedrecall.trained(tmp_path / "part").inputs == fedrecall.trained(tmp_path / "whole").inputs
    with pytest.raises(UserError, match=r"was begun with initial = '.*old\.safetensors', not None"):
        fedrecall.run(tmp_path / "part", resume=True, progress=False, **SETTINGS | {"rounds": 3})
    assert Run(tmp_path / "part").weights().params.keys() == again.weights.params.keys()


def test_a_run_with_a_checkpoint_can_go_on_where_its_beginning_is_gone_or_lies_elsewhere(before, tmp_path):
    path, moved, other = (tmp_path / f"{name}.safetensors" for name in ("old", "moved", "other"))
    state = fedrecall.trained(before.out).network.state_dict()
    save_file(state, path)
    save_file({n: t + 1 for n, t in state.items()}, other)
    run, out = SETTINGS | {"initial": str(path)}, tmp_path / "run"
    fedrecall.run(out, progress=False, **run)
    path.rename(moved)

    def going_on(place):
        config = configs.make(configs.nested(run | {"initial": str(place), "rounds": 2}))
        return (
            lambda: check(config, out, load(config.dataset)),
            lambda: Experiment(config, out, resume=True).close(),
        )

    for place in (path, moved):
        for go_on in going_on(place):
            go_on()
    for go_on in going_on(other):
        with pytest.raises(UserError, match=r"other\.safetensors holds another model than when the run"):
            go_on()


def test_a_run_that_saved_nothing_does_not_go_on_with_another_model(before, tmp_path):
    path = tmp_path / "old.safetensors"
    state = fedrecall.trained(before.out).network.state_dict()
    save_file(state, path)
    config = configs.make(configs.nested(SETTINGS | {"initial": str(path)}))
    begun = Experiment(config, tmp_path / "run")
    begun.begin()
    begun.close()
    save_file({n: t + 1 for n, t in state.items()}, path)
    with pytest.raises(UserError, match="holds another model than when the run was begun"):
        Experiment(config, tmp_path / "run", resume=True)


def test_runs_that_began_with_other_models_are_other_experiments(before, tmp_path):
    path, runs = tmp_path / "old.safetensors", []
    state = fedrecall.trained(before.out).network.state_dict()
    for seed, more in ((0, 0), (1, 0), (2, 1)):
        save_file({n: t + more for n, t in state.items()}, path)
        settings = SETTINGS | {"seed": seed, "initial": str(path)}
        fedrecall.run(tmp_path / f"{seed}", progress=False, **settings)
        runs.append(Run(tmp_path / f"{seed}"))
    groups = arrange(runs)
    assert [[run.path.name for run in group.runs] for group in groups] == [["0", "1"], ["2"]]
    assert len({group.settings["initial"] for group in groups}) == 2


def test_seeds_that_began_with_one_model_are_of_one_experiment_wherever_it_lay(before, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = fedrecall.trained(before.out).network.state_dict()
    save_file(state, "old.safetensors")
    save_file(state, "copy.safetensors")
    save_file({n: t + 1 for n, t in state.items()}, "other.safetensors")
    places = ["old.safetensors", "./old.safetensors", str(tmp_path / "old.safetensors"), "copy.safetensors"]
    for seed, place in enumerate([*places, str(before.out)]):
        fedrecall.run(f"fedavg{seed}", progress=False, **SETTINGS | {"seed": seed, "initial": place})
    for place in ("other", "copy"):
        other = {"algorithm": "fedntd", "initial": f"{place}.safetensors"}
        fedrecall.run(f"fedntd-{place}", progress=False, **SETTINGS | other)
    groups = arrange(list(map(Run, ["fedavg0", "fedavg1", "fedavg2", "fedavg3", "fedavg4", "fedntd-copy"])))
    assert [(group.label, group.seeds) for group in groups] == [("fedavg", [*range(5)]), ("fedntd", [5])]
    groups = arrange(list(map(Run, ["fedavg3", "fedntd-other", "fedntd-copy"])))
    ours, others = (Run(name).begun_with for name in ("fedavg3", "fedntd-other"))
    assert [group.setup for group in groups] == [
        f"initial=copy.safetensors {ours}",
        f"initial=other.safetensors {others}",
        f"initial=copy.safetensors {ours}",
    ]


def test_a_run_that_saved_nothing_goes_on_in_another_folder(before, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    save_file(fedrecall.trained(before.out).network.state_dict(), "old.safetensors")
    config = configs.make(configs.nested(SETTINGS | STILL | {"initial": "old.safetensors"}))
    begun = Experiment(config, tmp_path / "run")
    begun.begin()
    begun.close()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = fedrecall.run(tmp_path / "run", resume=True, progress=False)
    assert result.accuracy == before.accuracy


def test_a_run_of_an_earlier_version_goes_on_which_noted_the_place_as_it_was_given(
    before, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    save_file(fedrecall.trained(before.out).network.state_dict(), "old.safetensors")
    run = SETTINGS | {"initial": "old.safetensors"}
    whole = fedrecall.run("whole", progress=False, **run | {"rounds": 2})
    fedrecall.run("part", progress=False, **run)
    saved = json.loads((tmp_path / "part/config.json").read_text())
    assert saved["initial"] == str(tmp_path / "old.safetensors")
    (tmp_path / "part/config.json").write_text(json.dumps(saved | {"initial": "old.safetensors"}))
    again = fedrecall.run("part", resume=True, progress=False, **run | {"rounds": 2})
    torch.testing.assert_close(trees.arrays(again.weights), trees.arrays(whole.weights), rtol=0, atol=0)
