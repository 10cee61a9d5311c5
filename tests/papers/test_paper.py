"""The papers' facts: whole, consistent with one another and with what the papers' texts say of them."""

from collections import defaultdict

import pytest

from fedrecall.algorithms import ALGORITHMS
from fedrecall.errors import UserError
from fedrecall.papers import PAPERS, load_paper, table
from fedrecall.papers.quantities import QUANTITIES
from fedrecall.papers.results import identity
from fedrecall.specs import spec_text

TABLES = [(p, t) for p in PAPERS for t in load_paper(p).tables]


@pytest.mark.parametrize(("paper", "name"), TABLES)
def test_every_cell_is_a_config_and_has_a_number_of_every_quantity(paper, name):
    t = table(f"{paper}/{name}")
    assert len(t.cells) == len(t.columns) * len(t.methods)
    assert set(t.quantities) <= set(QUANTITIES)
    for cell in t.cells:
        config = cell.config(seed=7)
        assert config.seed == 7
        assert config.rounds <= t.rounds
        assert set(cell.published) <= set(t.quantities)
        for variant in load_paper(paper).variants.values():
            if variant.applies(config):
                cell.config(variant=variant)
    if t.baseline is not None:
        assert t.baseline in t.methods


def test_every_row_has_as_many_numbers_as_columns_and_spreads_where_given():
    from importlib import resources

    import yaml

    for paper in PAPERS:
        held = yaml.safe_load((resources.files("fedrecall.papers") / f"{paper}.yaml").read_text())
        for name, given in held["tables"].items():
            methods = set(given["methods"])
            for rows in (*given.get("published", {}).values(), *given.get("std", {}).values()):
                assert set(rows) == methods, (paper, name)
                assert {len(row) for row in rows.values()} == {len(given["columns"])}, (paper, name)


def test_fedntds_setup_is_appendix_b():
    for column, clients, sampled, epochs in (
        ("mnist/shard2", 100, 10, 3),
        ("cifar10/lda0.1", 100, 10, 5),
        ("cifar100/shard10", 100, 10, 5),
        ("cinic10/lda0.1", 200, 10, 5),
    ):
        config = table("fedntd/table7").cell(column, "fedntd").config()
        assert (config.clients, config.sampled, config.training.local_epochs) == (clients, sampled, epochs)
        t = config.training
        assert (t.lr, t.lr_decay, t.momentum, t.weight_decay, t.batch_size) == (0.01, 0.99, 0.9, 1e-5, 50)
        assert config.rounds == 200
        assert config.augmentation == ("crop+reflect+flip" if "cinic" in column else "crop+flip+cutout")
    moon = table("fedntd/table1").cell("cifar10/shard2", "moon").config().algorithm
    assert (moon["mu"], moon["tau"], moon["projection"]) == (1.0, 0.5, 0)


def test_fedssds_hyperparameters_are_those_of_each_data_set():
    cells = {c: table("fedssd/table1") for c in ("cifar10", "cifar100", "tinyimagenet")}

    def value(column, method, key):
        return cells[column].cell(column, method).config().algorithm[key]

    assert [value(c, "fedprox", "mu") for c in cells] == [0.01, 0.001, 0.001]
    assert [value(c, "fedssd", "m_max") for c in cells] == [0.01, 0.001, 0.001]
    assert [value(c, "fedcurv", "lam") for c in cells] == [1e-3, 1e-4, 1e-5]
    assert [value(c, "moon", "mu") for c in cells] == [5, 1, 1]
    assert {value(c, "moon", "projection") for c in cells} == {256}
    tiny = cells["tinyimagenet"].cell("tinyimagenet", "fedavg").config()
    assert (tiny.rounds, tiny.model, tiny.clients, tiny.auxiliary_per_class) == (30, "resnet50", 10, 64)


def test_columns_set_hyperparameters_of_every_method():
    assert table("fedssd/table3").cell("alpha0.5", "kl").config().algorithm["m_max"] == 0.5
    k = table("sfedkd/table3").cell("exdir2-1/K6", "random").config()
    assert (k.algorithm["teachers"], k.algorithm["selection"], k.partition["alpha"]) == (6, "random", 1.0)
    assert table("fedntd/table10").cell("R0.3", "fedavg").config().sampled == 30


def test_the_text_of_sfedkd_agrees_with_its_table():
    """Section 4.2: at least 6.40 and 1.73 over sequential, 29.08 and 17.53 over parallel methods, ..."""
    t = table("sfedkd/table1")

    def lead(column, over):
        best = max(t.cell(column, m).published["accuracy"].value for m in over)
        return round(t.cell(column, "sfedkd").published["accuracy"].value - best, 2)

    sequential, parallel = ["fedseq", "cwc"], ["fedavg", "fedprox", "fedcurv", "fedntd"]
    assert lead("fashion_mnist/exdir2-0.5", [*sequential, *parallel]) == 1.81
    assert [lead(f"{d}/exdir2-0.5", sequential) for d in ("cifar10", "cinic10")] == [6.40, 1.73]
    # The text says 17.53 of CINIC-10, the table's FedProx 29.25 leaves 17.09 and FedCurv's 28.81 17.53.
    assert [lead(f"{d}/exdir2-0.5", parallel) for d in ("cifar10", "cinic10")] == [29.08, 17.09]
    assert lead("cifar100/exdir20-1", [*sequential, *parallel]) == 4.94
    assert lead("ham10000/exdir2-1", [*sequential, *parallel]) == 2.40


def test_cells_of_the_same_experiment_have_the_same_number_unless_the_paper_disagrees_with_itself():
    numbers = defaultdict(set)
    for paper, name in TABLES:
        for cell in table(f"{paper}/{name}").cells:
            p = cell.published.get("accuracy")
            if p is not None and p.value is not None:
                numbers[paper, identity(cell.config())].add((p.value, cell.key))
    disagreeing = set()
    for found in numbers.values():
        values = [v for v, _ in found]
        if max(values) - min(values) > 0.05:
            disagreeing |= {key for _, key in found}
    # Every one of these is named among the papers' gaps.
    assert disagreeing == {
        "fedntd/table1 cifar10/lda0.1 fedntd",
        "fedntd/table9 E5 fedntd",
        "fedntd/table11 R0.1 fedntd",
        "fedntd/table12 lda0.1 lambda=1",
        "fedssd/table1 cifar10 fedssd",
        "fedssd/table2 dirichlet0.5 fedssd",
        "fedssd/table3 alpha0.01 ssd",
        *(
            f"sfedkd/table1 cifar10/exdir2-{a} {m}"
            for a in ("0.5", "10")
            for m in ("fedseq", "cwc", "sfedkd")
        ),
        *(f"sfedkd/table2 exdir2-{a} {m}" for a in ("0.5", "10") for m in ("fedseq", "cwc", "sfedkd")),
        *(f"sfedkd/table3 exdir2-{a}/K5 greedy" for a in ("0.5", "10")),
        *(f"sfedkd/table4 exdir2-{a} kl" for a in ("0.5", "10")),
    }


def test_no_published_forgetting_is_of_more_than_there_ever_was():
    """Accuracy and forgetting are the mean over classes of their best accuracy, which ends at 100 %.

    Accuracy is published smoothed, which may add some points, but only one pair needs them: a slip
    of ours would show.
    """
    more = set()
    for paper, name in TABLES:
        for cell in table(f"{paper}/{name}").cells:
            accuracy, forgetting = (cell.published.get(q) for q in ("accuracy", "forgetting"))
            values = [p.value for p in (accuracy, forgetting) if p is not None and p.value is not None]
            if len(values) == 2 and values[0] + 100 * values[1] > 100:
                more.add(cell.key)
    assert more == {"fedntd/table11 R0.5 fednova"}  # named among the paper's gaps


@pytest.mark.parametrize("name", PAPERS)
def test_a_switch_can_be_named(name):
    paper = load_paper(name)
    for switch, variant in paper.variants.items():
        assert paper.variant(switch) == variant


def test_names_that_are_not_there_are_answered_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'fedntd'"):
        table("fedndt/table1")
    with pytest.raises(UserError, match="did you mean 'table13'"):
        table("fedntd/tabel13")
    with pytest.raises(UserError, match="table1, table2"):
        table("fedntd")
    with pytest.raises(UserError, match="no column 'cifar10/shards2'; did you mean 'cifar10/shard2'"):
        table("fedntd/table1").choose(["cifar10/shards2"], None)
    with pytest.raises(UserError, match="no method 'fedntt'; did you mean 'fedntd'"):
        table("fedntd/table1").choose(None, ["fedntt"])
    with pytest.raises(UserError, match="no method 'calibratd'; did you mean 'calibrated'"):
        table("fedntd/table1").choose(None, ["calibratd"])
    with pytest.raises(UserError, match="no column 'fedavg'"):
        table("fedntd/table1").choose(["fedavg"], None)
    with pytest.raises(UserError, match="fedtrio has no 'betta'"):
        table("fedntd/table1").choose(None, ["fedtrio:betta=2"])
    with pytest.raises(UserError, match=r"there is no file .*mine\.py"):
        table("fedntd/table1").choose(None, ["mine.py:Mine"])
    with pytest.raises(UserError, match="name at least one method"):
        table("fedntd/table1").choose(None, [])
    with pytest.raises(UserError, match="did you mean 'no-cutout'"):
        load_paper("fedntd").variant("no-cutuot")


def test_the_usual_spread_is_the_median_of_the_published_ones():
    spreads = sorted(
        p.std for t in load_paper("fedssd").tables.values() for c in t.cells
        if (p := c.published.get("accuracy")) and p.std is not None
    )  # fmt: skip
    assert len(spreads) == 56
    assert load_paper("fedssd").usual_std == (spreads[27] + spreads[28]) / 2
    assert load_paper("fedcad").usual_std is None


def test_a_switch_is_of_the_data_sets_and_partitions_that_it_speaks_of():
    fedntd, fedssd = (load_paper(p) for p in ("fedntd", "fedssd"))
    uncut = fedntd.variant("no-cutout")
    plain = {c: fedntd.tables["table1"].cell(c, "fedavg") for c in fedntd.tables["table1"].columns}
    changed = {c.partition("/")[0] for c, cell in plain.items() if cell.changed_by(uncut)}
    assert changed == {"mnist", "cifar10", "cifar100"}  # CINIC-10 has none to leave out
    assert plain["cinic10/lda0.1"].config().augmentation == "crop+reflect+flip"
    table1, table2 = fedssd.tables["table1"], fedssd.tables["table2"]
    reflect, balanced = fedssd.variant("reflect"), fedssd.variant("balanced")
    assert [table1.cell(c, "moon").changed_by(reflect) for c in table1.columns] == [True, False, False]
    assert [table2.cell(c, "moon").changed_by(balanced) for c in table2.columns] == [
        False,
        False,
        True,
        True,
        True,
    ]
    both = table2.cell("dirichlet10", "fedssd").config(variant=fedssd.variant("balanced+reflect"))
    assert (both.augmentation, both.partition["balance"], both.partition["delta"]) == (
        "crop+reflect+flip",
        True,
        10,
    )


@pytest.mark.parametrize(("paper", "name"), TABLES)
def test_another_algorithm_is_played_in_the_setup_of_the_tables_own(paper, name):
    """A method of the table, named as if it were none, is the same experiment in every column."""
    t = table(f"{paper}/{name}")
    for cell in t.cells:
        made = cell.config()
        guest = t.guest(cell.column, spec_text(ALGORITHMS, made.algorithm))
        assert guest.config() == made
        assert (guest.target, guest.published, guest.failed) == (cell.target, {}, False)


def test_what_goes_by_a_methods_name_is_not_taken_for_it():
    t, paper = table("fedntd/table1"), load_paper("fedntd")
    other = t.guest("cifar10/shard2", "fedprox", {"name": "fedprox", "mu": 0.3})
    own, shipped = t.cell("cifar10/shard2", "fedprox"), paper.variant("fedprox-shipped")
    assert other.key == own.key
    for cell, mu in ((other, 0.3), (own, 0.1), (other, 0.3)):
        assert cell.config().algorithm["mu"] == mu
        assert cell.config(variant=shipped).algorithm["mu"] == 1
        assert paper.reading(cell, cell.config()) is None
        assert cell.changes(shipped)[0]["algorithm.mu"] == mu


def test_other_algorithms_stand_below_the_tables_methods_column_by_column():
    t, columns = table("fedntd/table1"), ["cifar10/shard2", "mnist/shard2"]
    cells = t.choose(columns, ["calibrated", "fedntd", "fedtrio:beta=0", "calibrated"])
    assert [c.method for c in cells] == ["fedntd"] * 2 + ["calibrated", "fedtrio:beta=0"] * 2
    assert [c.column for c in cells[2:]] == [columns[0]] * 2 + [columns[1]] * 2
    assert [c.config().training.local_epochs for c in cells[2:]] == [5, 5, 3, 3]
    assert cells[3].config().algorithm["beta"] == 0


def test_a_columns_setting_of_its_methods_is_for_those_that_have_it_and_do_not_say_it():
    t = table("sfedkd/table3")

    def taught(algorithm):
        return t.guest("exdir2-0.5/K3", algorithm).config().algorithm.get("teachers")

    assert [taught(a) for a in ("sfedkd", "sfedkd:teachers=2", "fedavg")] == [3, 2, None]
