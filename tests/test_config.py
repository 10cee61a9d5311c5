import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedrecall import config as configs
from fedrecall.config import Config
from fedrecall.data.datasets import export, load
from fedrecall.errors import UserError
from fedrecall.measures import MEASURES
from fedrecall.measures.locals import Locals


def test_the_effective_config_makes_itself_again():
    made = configs.make(
        {"algorithm": "fedprox:0.3", "partition": "lda:0.5", "training": {"lr": 0.1}, "sample": 0.2}
    )
    again = configs.make(configs.as_dict(made))
    assert again == made
    assert made.algorithm == {"name": "fedprox", "mu": 0.3}
    assert made.sampled == 20


@pytest.mark.parametrize(
    ("sample", "clients", "expected"),
    [
        (0.1, 100, 10),
        (0.29, 100, 29),
        (0.36, 10, 4),
        (0.001, 100, 1),
        (7, 100, 7),
        (1, 5, 1),
        (1.0, 5, 5),
        (3.0, 5, 3),
    ],
)
def test_a_share_below_one_and_a_count_above(sample, clients, expected):
    direct = Config(sample=sample, clients=clients)
    assert direct.sampled == expected
    for given in (sample, str(sample)):  # from YAML, from the command line
        made = configs.make({"sample": given, "clients": clients})
        assert made.sampled == expected
        assert configs.make(configs.as_dict(made)) == configs.begun(configs.as_dict(made)) == made == direct


@pytest.mark.parametrize("none", [(), [], "", "none", [""], ["none"]])
@pytest.mark.parametrize("name", ["measures", "sinks"])
def test_the_word_none_stands_for_an_empty_list(name, none):
    made = configs.make({name: none})
    assert getattr(made, name) == ()
    assert configs.as_dict(made) == configs.as_dict(Config())


def test_a_measure_is_given_as_a_name_a_mapping_a_class_or_an_instance():
    given = ["locals:2", {"name": "locals", "every": 2}, Locals(every=2), Locals]
    made = configs.make({"measures": given})
    every = [{"name": "locals", "every": every} for every in (2, 2, 1)]
    assert made.measures == ("locals:2", *every)
    assert [MEASURES.make(m).every for m in made.measures] == [2, 2, 2, 1]
    assert configs.make(json.loads(json.dumps(configs.as_dict(made)))) == made
    for slip in (Locals, {"name": "locals"}):
        with pytest.raises(UserError, match="is not a list of names or mappings"):
            configs.make({"measures": slip})
    with pytest.raises(UserError, match="locals has no 'evry'; did you mean 'every'"):
        configs.make({"measures": [{"name": "locals", "evry": 2}]})
    with pytest.raises(UserError, match="a name, a mapping or a dataclass is wanted, not 3"):
        configs.make({"measures": [3]})


def test_a_share_of_one_was_one_client_in_runs_begun_before():
    whole = configs.as_dict(configs.make({"clients": 5}))
    assert configs.begun({**whole, "sample": 1.0}).sampled == 1


def test_what_earlier_runs_drew_from_a_seed_of_its_own_follows_from_the_runs():
    now = configs.as_dict(configs.make({"algorithm": "sfedkd:selection=random"}))
    before = {**now, "algorithm": {**now["algorithm"], "teacher_seed": 2}}
    assert configs.as_dict(configs.begun(before)) == now
    with pytest.raises(UserError, match="no 'teacher_seed'"):
        configs.make(before)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rouns": 3}, "config has no 'rouns'; did you mean 'rounds'?"),
        ({"rounds": 0}, "rounds = 0 must be >= 1"),
        ({"sample": 11, "clients": 10}, "there are not that many"),
        ({"sample": 2.7, "clients": 10}, "sample = 2.7 is no number of clients"),
        ({"sample": "2.7", "clients": 10}, "sample = 2.7 is no number of clients"),
        ({"chains": 11}, "at least as many sampled clients"),
        ({"chains": 2, "algorithm": "private:fedavg"}, "does not protect: leave chains out"),
        ({"global_seed": 2**32}, "global_seed = 4294967296 must be in [0, 4.29497e+09]"),
        ({"model": 3}, "model = 3 is neither a name nor a mapping"),
        ({"sinks": ["nowhere"]}, "unknown sink 'nowhere'"),
        ({"backend": "proceses"}, "unknown backend 'proceses'; did you mean 'processes'?"),
        ({"backend": "ray:local,memory=x"}, "memory = 'x' is not a number"),
        ({"backend": "auto:4"}, "the auto backend has no options, such as '4'"),
        ({"measures": ["drift"]}, "unknown measure 'drift'; it is part of the measure chain."),
        ({"measures": ["forgetting"]}, "unknown measure 'forgetting'; every run records it."),
        ({"sinks": ["none", "wandb"]}, "sinks = none stands for an empty list"),
        ({"measures": "locals+none"}, "measures = none stands for an empty list"),
        ({"precision": "float16"}, "one of float32, float64, bfloat16"),
        ({"measures": ["nothing"]}, "unknown measure"),
        ({"training": {"momentum": 1.0}}, "momentum = 1.0 must be in [0, 1)"),
        ({"training": 3}, "training must be a mapping"),
        ({"augmentation": "crap"}, "unknown augmentation"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(values, said):
    with pytest.raises(UserError) as caught:
        configs.make(values)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"clients": 4.5}, "clients = 4.5 is not a whole number and >= 1"),
        ({"clients": "four"}, "clients = 'four' is not a whole number"),
        ({"rounds": 0}, "rounds = 0 must be >= 1"),
        ({"seed": None}, "seed = None is not a whole number"),
        ({"training": {"lr": 0.1}}, "training = {'lr': 0.1} is not Recipe"),
        ({"precision": "float16"}, "one of float32, float64, bfloat16"),
        ({"measures": 3}, "measures = 3 is not a list of names or mappings"),
        ({"device": 0}, "device = 0 is not text"),
    ],
)
def test_a_config_that_a_program_makes_is_checked_as_one_from_outside(values, said):
    with pytest.raises(UserError, match=f"^config: .*{re.escape(said)}"):
        Config(**values)


def test_a_config_that_a_program_makes_takes_what_is_taken_from_outside():
    assert Config(clients="4", sample="2", measures="locals") == configs.make(
        {"clients": 4, "sample": 2, "measures": ["locals"]}
    )


def test_dotted_keys_reach_into_specs_and_sections():
    values = configs.override({"algorithm": "fedntd:beta=2"}, {"algorithm.tau": "3", "training.lr": "0.5"})
    made = configs.make(values)
    assert made.algorithm["beta"] == 2
    assert made.algorithm["tau"] == 3
    assert made.training.lr == 0.5
    assert configs.make(configs.override({}, {"partition.s": 3})).partition == {"name": "shards", "s": 3}
    mapped = "tests.test_specs:Mapped:usual.b=2"
    assigned = {"algorithm.rates.fc1.weight": "0.1", "algorithm.usual.c": 3, "algorithm.numbered": '{"1": 2}'}
    for algorithm in (mapped, configs.make({"algorithm": mapped}).algorithm):  # an entry's key has dots, too
        made = configs.make(configs.override({"algorithm": algorithm}, assigned)).algorithm
        assert made["rates"] == {"fc1.weight": 0.1}
        assert made["usual"] == {"a": 0.5, "b": 2.0, "c": 3.0}
        assert made["numbered"] == {"1": 2.0}
    # A spec that lacks what only the key says.
    values = configs.override({"dataset": "folder"}, {"dataset.path": "here"})
    assert configs.make(values).dataset["path"].endswith("here")


@pytest.mark.parametrize(
    "content",
    ["a: [", "- 1", "[]", "{[]: 1, []: 2}", "\x00", "&a [*a]", "!!python/object/apply:os.getcwd []"],
)
def test_a_bad_yaml_file_is_a_sentence(tmp_path, content):
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=r"c\.yaml"):
        configs.load(path)


@pytest.mark.parametrize(("written", "read"), [("010", 8), ("-017", -15), ("1:30", 90), ("00", 0)])
def test_a_number_that_yaml_reads_as_another_is_refused(tmp_path, written, read):
    path = tmp_path / "c.yaml"
    path.write_text(f"rounds: 3\nseed: {written}\n")
    with pytest.raises(UserError, match=f"line 2: {written} is {read} in YAML"):
        configs.load(path)
    path.write_text(f"seed: '{written}'\nmeasures: [0, 10, -3, +3, 1_000, 0x1f, 0.5, 010.5]\n")
    assert configs.load(path) == {"seed": written, "measures": [0, 10, -3, 3, 1000, 31, 0.5, 10.5]}


def test_toml_is_told_that_it_is(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('seed = 1\ndataset = "digits"\n')
    with pytest.raises(UserError, match=r"c\.toml is TOML: write it as YAML"):
        configs.load(path)


def test_brackets_may_stand_within_one_another_but_not_without_end(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("a: " + "[" * configs.DEEPEST + "]" * configs.DEEPEST)
    assert "a" in configs.load(path)
    for deep in (configs.DEEPEST + 1, 100_000):
        path.write_text("a: " + "[" * deep + "]" * deep)
        with pytest.raises(UserError, match=f"more than {configs.DEEPEST} brackets within one another"):
            configs.load(path)


def test_an_empty_yaml_file_is_the_defaults(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("# nothing\n")
    assert configs.make(configs.load(path)) == Config()


def test_the_augmentation_none_is_none_and_not_the_data_sets_usual_one():
    assert configs.make({"dataset": "cifar10", "augmentation": "none"}).augmentation == "none"
    assert configs.make({"dataset": "cifar10", "augmentation": None}).augmentation == "crop+flip+cutout"
    assert configs.make({"dataset": "cifar10", "partition_seed": "none", "chains": "none"}).chains is None


def test_an_exported_data_set_has_the_augmentation_of_what_it_was_made_of(tmp_path):
    made = load("synthetic:classes=2,train=4,test=2")
    export(replace(made, name="cifar10"), tmp_path / "exported")
    given = {"dataset": f"folder:{tmp_path / 'exported'}"}
    config = configs.make(given)
    assert config.augmentation == "crop+flip+cutout"
    assert configs.make({**given, "augmentation": "none"}).augmentation == "none"
    saved = configs.as_dict(config)
    assert saved["augmentation"] == "crop+flip+cutout"
    for name, usual in (("mine", "none"), ("ham10000", "flip")):
        export(replace(made, name=name), tmp_path / "exported")
        assert configs.make(given).augmentation == usual
    (tmp_path / "exported" / "dataset.json").write_text("[1")
    assert configs.make(given).augmentation == "none"  # whoever loads it says what is wrong
    shutil.rmtree(tmp_path / "exported")
    assert configs.make(given).augmentation == "none"
    assert configs.make(saved) == config  # what is written down does not ask again


def test_a_setting_of_the_training_is_among_those_that_may_be_meant():
    with pytest.raises(UserError, match="config has no 'batchsize'; did you mean 'batch_size'"):
        configs.make({"batchsize": 3})


def test_a_saved_config_without_what_every_run_has_is_damaged():
    with pytest.raises(UserError, match="the saved config is damaged: it has no 'algorithm'"):
        configs.begun({})


def test_whole_numbers_of_other_libraries_are_taken():
    made = configs.make({"seed": np.int64(7), "clients": np.int32(9), "sample": np.float64(0.5)})
    assert (made.seed, made.clients, made.sampled) == (7, 9, 4)
    assert type(made.seed) is int


def test_what_is_said_twice_is_refused(tmp_path):
    with pytest.raises(UserError, match="says mu twice"):
        configs.make({"algorithm": "fedprox:mu=1,mu=2"})
    (tmp_path / "x.yaml").write_text("seed: 1\ntraining:\n  lr: 1\n  lr: 2\n")
    with pytest.raises(UserError, match="line 3: it says lr twice"):
        configs.load(tmp_path / "x.yaml")


def test_configs_differ_where_either_has_what_the_other_has_not():
    one = {"a": 1, "training": {"lr": 1, "momentum": 0}, "same": [1]}
    other = {"training": {"lr": 2, "batch_size": 3}, "same": [1], "b": None, "c": 4}
    assert set(configs.differing(one, other)) == {
        ("a", 1, None),
        ("training.lr", 1, 2),
        ("training.momentum", 0, None),
        ("training.batch_size", None, 3),
        ("c", None, 4),
    }
