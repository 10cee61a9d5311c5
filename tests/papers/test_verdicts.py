"""Published beside measured, on results made up by hand."""

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from tests.papers.outcomes import outcome

from fedrecall.errors import UserError
from fedrecall.papers import PAPERS, load_paper, table
from fedrecall.papers.results import Results, identity
from fedrecall.papers.verdicts import (
    NOT_REPRODUCED,
    NOT_RUN,
    PARTIAL,
    REPRODUCED,
    SOMETHING_ELSE,
    SPREADS,
    STAND_IN,
    STAND_IN_ALONE,
    WITH_SWITCH,
    best,
    closest,
    gain,
    guests,
    judge,
    level,
    level_agrees,
    measured_text,
    published_text,
    right_by_chance,
    tolerance,
    tried,
    unpaired,
)

TABLE1 = table("fedntd/table1")
CELL = TABLE1.cell("cifar10/shard2", "fedntd")  # 52.61 ± 1.00, F 0.43
BASE = TABLE1.cell("cifar10/shard2", "fedavg")  # 40.14 ± 1.15


def verdict(*runs, cell=CELL, quantity="accuracy", of=TABLE1, variant=None):
    return judge(load_paper(of.paper), of, cell, quantity, Results(runs), variant)


def ending(*last, rounds=200):
    return [last[0]] * (rounds - len(last)) + list(last)


@pytest.mark.parametrize(
    ("last", "word", "within"),
    [
        (52.0, REPRODUCED, True),
        (50.7, REPRODUCED, False),
        (54.60, REPRODUCED, False),
        (50.5, NOT_REPRODUCED, False),
    ],
)
def test_within_two_spreads_is_reproduced_and_within_one_is_said(last, word, within):
    v = verdict(outcome(CELL, ending(last)))
    assert (v.word, v.within) == (word, within)
    assert v.difference == pytest.approx(last - 52.61)
    assert v.measured.complete
    assert v.measured.summary.n == 1


def test_a_run_that_went_further_is_judged_by_the_papers_last_round():
    longer = outcome(CELL, [*ending(52.6), *[70.0] * 50], forgetting=[0.43] * 200 + [0.1] * 50, rounds=250)
    for quantity, measured in (("accuracy", 52.6), ("forgetting", 0.43)):
        v = verdict(longer, quantity=quantity)
        assert v.measured.summary.mean == pytest.approx(measured)
        assert v.word == REPRODUCED


def test_our_own_spread_widens_nothing():
    """Runs far from each other and from the published number are no reproduction of it on average."""
    runs = [outcome(CELL, ending(a), seed=s) for s, a in enumerate((46.0, 50.0, 54.0))]
    v = verdict(*runs)
    assert v.measured.summary.mean == pytest.approx(50.0)
    assert v.measured.summary.std == pytest.approx(4.0)
    assert v.allowed == pytest.approx(2.0)
    assert (v.word, v.within) == (NOT_REPRODUCED, False)


def test_a_run_that_failed_at_once_was_tried():
    paper = load_paper("fedntd")
    run = outcome(CELL, [], variant=paper.variant("lr-0.1"), failed="NaN")
    assert [v.name for v in tried(paper, CELL, Results([run]))] == ["lr-0.1"]


def test_a_run_without_augmentation_is_no_run_with_test_images_augmented():
    paper = load_paper("fedntd")
    config = CELL.config(variant=paper.variant("no-augmentation"))
    assert paper.reading(CELL, config).name == "no-augmentation"


def test_runs_of_two_precisions_are_neither_averaged_nor_paired():
    coarse = [outcome(c, ending(52.0), seed=s, precision="bfloat16") for s in range(2) for c in (CELL, BASE)]
    fine = [outcome(CELL, ending(60.0)), outcome(CELL, ending(60.0), seed=2)]
    v = verdict(*coarse, *fine[:1])
    assert (v.measured.summary.mean, v.measured.seeds) == (pytest.approx(52.0), (0, 1))
    v = verdict(*coarse, *fine)  # as many of each: the more precise ones
    assert (v.measured.summary.mean, v.measured.seeds) == (pytest.approx(60.0), (0, 2))
    assert gain(TABLE1, CELL, Results([*coarse, *fine[:1]])).measured.mean == pytest.approx(0.0)
    assert gain(TABLE1, CELL, Results([*coarse, *fine])) is None  # FedAvg was computed coarsely alone


def test_unfinished_runs_decide_nothing_and_are_compared_at_their_last_common_round():
    v = verdict(outcome(CELL, [20.0, 30.0, 40.0]), outcome(CELL, [22.0, 34.0], seed=1))
    assert v.word == PARTIAL
    assert v.within is None
    assert (v.measured.rounds, v.measured.complete) == (2, False)
    # FedNTD's authors report a moving average: 0.6 of what it was, 0.4 of the new round.
    assert v.measured.summary.mean == pytest.approx((0.6 * 20 + 0.4 * 30 + 0.6 * 22 + 0.4 * 34) / 2)


def test_a_finished_run_is_not_averaged_with_an_unfinished_one():
    v = verdict(outcome(CELL, ending(52.0)), outcome(CELL, [22.0, 34.0], seed=1))
    assert (v.word, v.measured.seeds) == (REPRODUCED, (0,))


def test_rounds_asked_for_on_the_command_line_do_not_replace_the_papers():
    assert verdict(outcome(CELL, [52.0] * 30, rounds=30)).word == PARTIAL


def test_another_method_another_seed_another_setting_is_another_matter():
    assert verdict().word == NOT_RUN
    assert verdict(outcome(BASE, ending(52.0))).word == NOT_RUN
    paper = load_paper("fedntd")
    run = outcome(CELL, ending(52.0), variant=paper.variant("no-cutout"))
    assert verdict(run).word == NOT_RUN
    assert verdict(run, variant=paper.variant("no-cutout")).word == REPRODUCED


def test_a_switch_that_reproduces_a_cell_is_said_to():
    paper, switch = load_paper("fedntd"), load_paper("fedntd").variant("augmented-test")

    def said(*runs):
        return best(paper, TABLE1, CELL, Results(runs))

    high, low = outcome(CELL, ending(63.0)), outcome(CELL, ending(52.0), variant=switch)
    far, begun = outcome(CELL, ending(58.0), variant=switch), outcome(CELL, [20.0], variant=switch)
    assert tried(paper, CELL, Results([high, low])) == [switch]
    assert tried(paper, CELL, Results([high])) == []
    assert said() == NOT_RUN
    assert said(high) == said(high, far) == said(far) == said(high, begun) == NOT_REPRODUCED
    assert said(low) == said(high, low) == WITH_SWITCH
    assert said(begun) == PARTIAL
    assert said(outcome(CELL, ending(52.0)), far) == REPRODUCED


def test_a_stand_in_is_no_verdict_on_the_cell():
    paper, switch, table13 = (
        load_paper("fedntd"),
        load_paper("fedntd").variant("lenet"),
        table("fedntd/table13"),
    )
    cell = table13.cell("64/lda0.1", "fedalign")  # 39.31
    run = outcome(cell, ending(39.31, rounds=25), variant=switch)
    v = verdict(run, cell=cell, of=table13, variant=switch)
    assert (v.word, v.difference, v.within) == (STAND_IN, None, None)
    assert best(paper, table13, cell, Results([run])) == STAND_IN_ALONE
    assert not CELL.changed_by(switch)  # it is for that table alone


SSD = table("fedssd/table1")
PLAIN = SSD.cell("cifar10", "fedssd")  # 73.38, the last round's as it is


def test_a_level_agrees_where_the_last_rounds_swing_as_far_as_what_was_published():
    for swing, word in ((3.0, False), (4.0, True)):
        last = [77.0 + swing * (-1) ** k for k in range(20)]
        assert level_agrees(SSD, PLAIN, Results([outcome(PLAIN, ending(*last, rounds=100))])) is word
    assert not level_agrees(SSD, PLAIN, Results([]))


def test_where_the_clients_are_the_papers_own_a_swing_excuses_nothing():
    paper, last = load_paper("fedntd"), [52.0 + 8.0 * (-1) ** k for k in range(20)]
    for switch, word in (("augmented-test", True), ("authors-draw+augmented-test", False)):
        v = paper.variant(switch)
        assert level_agrees(TABLE1, CELL, Results([outcome(CELL, ending(*last), variant=v)]), v) is word


def test_a_level_swings_as_much_as_what_is_reported():
    """A moving average with weight w of what goes up and down by s does so by s (1 - w) / (1 + w)."""
    found = level(TABLE1, CELL, Results([outcome(CELL, [50.0 + 4.0 * (-1) ** k for k in range(200)])]))
    assert found.mean == pytest.approx(50.0)
    assert found.std == pytest.approx(4.0 * 0.4 / 1.6 * math.sqrt(20 / 19))


def test_a_level_swings_from_round_to_round_not_from_seed_to_seed():
    """Two seeds three points apart, each within half a point of its own mean."""
    runs = [
        outcome(PLAIN, ending(*(mean + 0.5 * (-1) ** k for k in range(20)), rounds=100), seed=seed)
        for seed, mean in enumerate((73.38 + 1.0, 73.38 + 4.0))
    ]
    found = level(SSD, PLAIN, Results(runs))
    assert found.mean == pytest.approx(73.38 + 2.5)
    assert found.std == pytest.approx(0.5 * math.sqrt(20 / 19))
    assert not level_agrees(SSD, PLAIN, Results(runs))


def test_a_level_is_that_of_the_rounds_that_count():
    longer = outcome(CELL, ending(40.0, rounds=200) + [90.0] * 20)
    assert level(TABLE1, CELL, Results([longer])).mean == pytest.approx(40.0)


def test_gains_with_a_switch_are_over_the_baseline_with_it():
    switch = load_paper("fedntd").variant("augmented-test")
    runs = [
        outcome(CELL, ending(63.0)),
        outcome(BASE, ending(50.0)),
        outcome(CELL, ending(54.0), variant=switch),
        outcome(BASE, ending(42.0), variant=switch),
    ]
    assert gain(TABLE1, CELL, Results(runs)).measured.mean == pytest.approx(13.0)
    assert gain(TABLE1, CELL, Results(runs), switch).measured.mean == pytest.approx(12.0)


def test_forgetting_may_be_off_by_its_rounding():
    for value, word in ((0.454, REPRODUCED), (0.406, REPRODUCED), (0.456, NOT_REPRODUCED)):
        run = outcome(CELL, ending(52.0), forgetting=[0.9] * 199 + [value])
        assert verdict(run, quantity="forgetting").word == word


def test_where_a_table_gives_no_spread_the_papers_usual_one_counts():
    t = table("fedntd/table12")
    cell = t.cell("shard2", "lambda=0.5")  # 47.6
    usual = load_paper("fedntd").usual_std
    for off, word in ((1.9 * usual, REPRODUCED), (-2.1 * usual, NOT_REPRODUCED)):
        v = verdict(outcome(cell, ending(47.6 + off)), cell=cell, of=t)
        assert (v.word, v.within) == (word, None)


def test_a_spread_of_nothing_is_none_given():
    cell = TABLE1.cell("cifar10/lda0.5", "moon")  # 63.10 ± 0.00
    paper = load_paper("fedntd")
    assert cell.published["accuracy"].std == 0
    assert paper.spread(cell, "accuracy") is None
    usual = paper.usual_std
    for off, word in ((1.9 * usual, REPRODUCED), (-2.1 * usual, NOT_REPRODUCED)):
        assert verdict(outcome(cell, ending(63.1 + off)), cell=cell).word == word
    given = [
        p.std
        for t in paper.tables.values()
        for c in t.cells
        if (p := c.published.get("accuracy")) and p.std is not None
    ]
    assert given.count(0) == 1
    assert usual == np.median([std for std in given if std])


def test_algorithms_that_the_paper_has_not_are_guests_whatever_other_papers_have():
    paper, switch = load_paper("fedntd"), load_paper("fedntd").variant("authors-draw+augmented-test")
    strangers = ["fedtrio", "fedcad", "fedntd:beta=3,tau=1"]
    of_its_own = TABLE1.guest("cifar10/shard2", "fedprox:0.3", {"name": "fedprox", "mu": 0.3})
    within = table("fedntd/table14").cell("shard2", "mse beta=0.1")  # in this setup, of another table
    runs = [
        *(outcome(TABLE1.guest("cifar10/shard2", s), [30.0], variant=switch) for s in strangers),
        outcome(TABLE1.guest("mnist/lda0.1", "fedlsd"), [30.0]),
        outcome(CELL, [30.0]),
        outcome(CELL, [30.0], variant=switch),
        outcome(within, [30.0]),
        outcome(of_its_own, [30.0]),
    ]
    found = [(c.column, c.method) for c in guests(paper, TABLE1, Results(runs))]
    assert found == [
        *(("cifar10/shard2", m) for m in ("fedcad", "fedntd:3", "fedprox:0.3", "fedtrio")),
        ("mnist/lda0.1", "fedlsd"),
    ]


def test_nothing_is_gained_over_a_baseline_whose_clients_hold_other_examples():
    own = TABLE1.guest("cifar10/shard2", "fedssd")
    results = Results([outcome(own, [44.0]), outcome(BASE, [40.0]), outcome(CELL, [50.0])])
    assert gain(TABLE1, own, results) is None
    assert gain(TABLE1, CELL, results).measured.mean == pytest.approx(10.0)
    assert unpaired(TABLE1, [own, CELL, BASE]) == [own]
    t = table("fedssd/table1")
    assert unpaired(t, t.cells) == []  # there the server holds as many for every method


def test_a_failure_is_reproduced_by_a_failure_or_by_chance():
    failed = TABLE1.cell("cifar10/lda0.05", "fednova")
    assert verdict(outcome(failed, ending(10.0)), cell=failed).word == REPRODUCED
    assert verdict(outcome(failed, ending(25.0)), cell=failed).word == NOT_REPRODUCED
    assert verdict(outcome(failed, ending(12.004)), cell=failed).word == REPRODUCED  # shown as 12.00
    assert verdict(outcome(failed, ending(12.006)), cell=failed).word == NOT_REPRODUCED
    assert verdict(outcome(failed, [10.0] * 3, failed="NaN"), cell=failed).word == REPRODUCED
    assert verdict(outcome(CELL, [10.0] * 3, failed="NaN")).word == NOT_REPRODUCED
    t = table("fedntd/table14")
    unreported = t.cell("shard2", "mse beta=0.3")
    assert verdict(outcome(unreported, [10.0] * 3, failed="NaN"), cell=unreported, of=t).word == REPRODUCED
    assert verdict(outcome(unreported, ending(40.0)), cell=unreported, of=t).word == NOT_REPRODUCED
    assert verdict(outcome(unreported, ending(10.0)), cell=unreported, of=t).word == REPRODUCED


def test_gains_are_paired_by_seed_at_the_last_common_round():
    runs = [
        outcome(CELL, [20.0, 30.0, 44.0], seed=0),
        outcome(BASE, [11.0, 25.0], seed=0),
        outcome(CELL, [20.0, 32.0], seed=1),
        outcome(BASE, [10.0, 25.0, 26.0], seed=1),
        outcome(CELL, [90.0], seed=2),  # nothing to pair it with
    ]
    g = gain(TABLE1, CELL, Results(runs))
    assert g.published == pytest.approx(52.61 - 40.14)
    assert g.measured.mean == pytest.approx(0.6 * (9 + 10) / 2 + 0.4 * (5 + 7) / 2)  # of moving averages
    assert (g.measured.n, g.rounds) == (2, 2)
    assert gain(TABLE1, BASE, Results(runs)) is None
    assert gain(TABLE1, CELL, Results(runs[:1])) is None


def test_gains_of_whole_runs_leave_unfinished_ones_out():
    runs = [
        outcome(CELL, ending(52.0)),
        outcome(BASE, ending(41.0)),
        *(outcome(c, [9.0], seed=1) for c in (CELL, BASE)),
    ]
    g = gain(TABLE1, CELL, Results(runs))
    assert (g.measured.mean, g.measured.n, g.rounds) == (pytest.approx(11.0), 1, 200)


def test_rounds_to_the_baselines_accuracy_are_those_of_the_same_seed():
    t = table("fedssd/table1")
    mine, base = t.cell("cifar10", "fedssd"), t.cell("cifar10", "fedavg")
    climbing = [float(r) / 2 for r in range(1, 101)]  # 0.5 ... 50
    runs = [outcome(mine, climbing), outcome(base, [20.0] * 100), outcome(base, [1.0] * 100, seed=1)]
    v = verdict(*runs, cell=mine, quantity="rounds_to_baseline", of=t)
    assert v.measured.summary.mean == 40  # 20 % at round 40; published 33
    assert v.word == REPRODUCED
    v = verdict(
        outcome(mine, [5.0] * 100),
        outcome(base, [20.0] * 100),
        cell=mine,
        quantity="rounds_to_baseline",
        of=t,
    )
    assert (v.word, v.measured.text(0), v.difference) == (NOT_REPRODUCED, "never with 1 of 1 seeds", None)
    # One seed that got there does not speak for two that did not.
    runs = [
        outcome(c, curve, seed=s)
        for s in range(3)
        for c, curve in ((mine, [5.0] * 100), (base, [20.0] * 100))
    ]
    runs[0] = outcome(mine, climbing)
    v = verdict(*runs, cell=mine, quantity="rounds_to_baseline", of=t)
    assert (v.word, v.measured.text(0)) == (NOT_REPRODUCED, "never with 2 of 3 seeds")
    # What FedAvg needs to its own last accuracy is no claim of the paper: 100 are all its rounds.
    flat = [*climbing[:45], *[22.5] * 55]
    v = verdict(outcome(base, flat), cell=base, quantity="rounds_to_baseline", of=t)
    assert (v.word, v.measured.summary.mean, v.published, v.difference) == ("", 45, 100, None)
    v = verdict(outcome(base, climbing[:9]), cell=base, quantity="rounds_to_baseline", of=t)
    assert (v.word, v.measured) == (PARTIAL, None)
    assert verdict(cell=base, quantity="rounds_to_baseline", of=t).word == NOT_RUN
    begun = [outcome(mine, [5.0] * 9), outcome(base, [20.0] * 9)]
    v = verdict(*begun, cell=mine, quantity="rounds_to_baseline", of=t)
    assert (v.word, v.measured.text(0)) == (PARTIAL, "not yet")
    # That of the paper's last round, should the baseline have gone further.
    runs = [outcome(mine, climbing), outcome(base, [20.0] * 100 + [90.0] * 50, rounds=150)]
    v = verdict(*runs, cell=mine, quantity="rounds_to_baseline", of=t)
    assert v.measured.summary.mean == 40
    # Where the baseline goes on, it is its last accuracy all the same.
    begun = [outcome(mine, [5.0] * 9), outcome(base, [1.0] * 9 + [20.0] * 91)]
    v = verdict(*begun, cell=mine, quantity="rounds_to_baseline", of=t)
    assert (v.word, v.measured.text(0)) == (PARTIAL, "not yet")


@pytest.mark.parametrize(("reached", "word"), [(13, REPRODUCED), (14, NOT_REPRODUCED), (16, NOT_REPRODUCED)])
def test_rounds_to_an_accuracy_may_be_off_by_a_tenth_of_the_cells_own(reached, word):
    """Ten of 30 rounds would be half of what lies between the best method and the worst."""
    t = table("fedssd/table1")
    mine, base = t.cell("tinyimagenet", "fedssd"), t.cell("tinyimagenet", "fedavg")
    assert (mine.config().rounds, mine.published["rounds_to_baseline"].value) == (30, 10)
    runs = [outcome(mine, [5.0] * (reached - 1) + [30.0] * (31 - reached)), outcome(base, [20.0] * 30)]
    v = verdict(*runs, cell=mine, quantity="rounds_to_baseline", of=t)
    assert (v.word, v.measured.summary.mean) == (word, reached)


def test_what_was_never_reached_in_the_paper_is_reproduced_by_never():
    t = table("fedssd/table1")
    mine, base = t.cell("cifar100", "fedcad"), t.cell("cifar100", "fedavg")
    assert math.isinf(mine.published["rounds_to_baseline"].value)
    for accuracy, word in ((5.0, REPRODUCED), (30.0, NOT_REPRODUCED)):
        runs = [outcome(mine, [accuracy] * 100), outcome(base, [20.0] * 100)]
        v = verdict(*runs, cell=mine, quantity="rounds_to_baseline", of=t)
        assert (v.word, v.difference) == (word, None)


def test_visits_that_were_left_out_are_counted():
    runs = [replace(outcome(CELL, ending(52.0), seed=s), failures=n) for s, n in enumerate((3, 4))]
    assert verdict(*runs).left_out == 7


def test_a_client_that_became_nan_fails_a_run_where_the_paper_has_a_failure():
    failing = TABLE1.cell("cifar10/lda0.05", "fednova")
    for cell, word in ((failing, REPRODUCED), (CELL, NOT_REPRODUCED)):
        without = replace(outcome(cell, ending(25.0)), failures=1)
        assert (verdict(without, cell=cell).word, verdict(without, cell=cell).left_out) == (word, 1)
        unfinished = replace(outcome(cell, [25.0] * 10), failures=1)
        assert verdict(unfinished, cell=cell).word == PARTIAL
    sound = [outcome(failing, ending(25.0), seed=s) for s in (1, 2)]
    spoilt = replace(outcome(failing, ending(25.0)), failures=1)
    assert verdict(spoilt, sound[0], cell=failing).word == REPRODUCED
    assert verdict(spoilt, *sound, cell=failing).word == NOT_REPRODUCED


def test_a_run_that_lost_a_client_to_nan_reproduces_no_other_cell():
    sound, spoilt = outcome(CELL, ending(52.0), seed=1), replace(outcome(CELL, ending(52.0)), failures=1)
    assert verdict(sound).word == REPRODUCED
    assert verdict(spoilt).word == verdict(sound, spoilt).word == NOT_REPRODUCED


def test_what_the_baseline_would_reproduce_as_well_says_so():
    prox = TABLE1.cell("cifar10/shard2", "fedprox")  # 41.48 ± 1.08, F 0.57
    for baseline, also in ((39.5, "fedavg"), (39.3, None), (43.7, None)):
        v = verdict(outcome(prox, ending(41.5)), outcome(BASE, ending(baseline)), cell=prox)
        assert (v.word, v.also) == (REPRODUCED, also)
        assert v.text == "reproduced" + " (so would fedavg be)" * bool(also)
    v = verdict(outcome(prox, ending(45.0)), outcome(BASE, ending(41.5)), cell=prox)
    assert (v.text, v.also) == ("not reproduced", None)
    assert verdict(outcome(prox, ending(41.5)), outcome(BASE, [41.5] * 9), cell=prox).also is None
    assert verdict(outcome(BASE, ending(40.0)), cell=BASE).also is None
    # With a switch that is the method's alone, the baseline is the paper's.
    shipped = load_paper("fedntd").variant("fedprox-shipped")
    runs = [outcome(prox, ending(41.5), variant=shipped), outcome(BASE, ending(41.0))]
    assert verdict(*runs, cell=prox, variant=shipped).also == "fedavg"


def test_how_often_the_very_thing_would_be_reproduced():
    draw = np.random.default_rng(0)
    for runs in (1, 2, 3):
        theirs, ours = draw.standard_normal((200_000, 3)), draw.standard_normal((200_000, runs))
        near = abs(ours.mean(1) - theirs.mean(1)) <= SPREADS * theirs.std(1, ddof=1)
        assert right_by_chance(runs) == pytest.approx(near.mean(), abs=0.005)


def test_of_all_that_was_tried_what_is_nearest_is_shown():
    paper = load_paper("fedntd")
    own, theirs = (paper.variant(name) for name in ("augmented-test", "authors-draw+augmented-test"))

    def shown(*runs):
        found = closest(paper, TABLE1, CELL, Results(runs))
        return found and (found[0] and found[0].name, found[1].word)

    assert shown() is None
    assert shown(outcome(CELL, [50.0] * 9)) is None
    plain = outcome(CELL, ending(62.0))
    assert shown(plain) == (None, NOT_REPRODUCED)
    near, far = outcome(CELL, ending(55.0), variant=own), outcome(CELL, ending(58.0), variant=theirs)
    assert shown(plain, near, far) == (own.name, NOT_REPRODUCED)
    more = outcome(CELL, ending(58.0), variant=theirs, seed=1)
    assert shown(plain, near, far, more) == (theirs.name, NOT_REPRODUCED)
    assert shown(outcome(CELL, ending(52.0)), near, far, more) == (None, REPRODUCED)


def test_one_low_round_is_no_failure_where_accuracies_are_smoothed():
    failing = TABLE1.cell("cifar10/lda0.05", "fednova")
    assert verdict(outcome(failing, [*ending(25.0)[:-1], 11.0]), cell=failing).word == NOT_REPRODUCED


def test_failed_seeds_count():
    scaffold, failing = (TABLE1.cell(c, "scaffold") for c in ("cifar10/shard2", "cifar10/lda0.05"))
    assert failing.failed
    for cell, word in ((scaffold, NOT_REPRODUCED), (failing, REPRODUCED)):
        runs = [
            outcome(cell, ending(44.6), seed=2),
            *(outcome(cell, [9.0], seed=s, failed="NaN") for s in (0, 1)),
        ]
        v = verdict(*runs, cell=cell)
        assert (v.word, v.failed, v.measured.summary.n) == (word, 2, 1)
    runs = [outcome(failing, ending(44.6), seed=s) for s in (1, 2)] + [outcome(failing, [9.0], failed="NaN")]
    assert verdict(*runs, cell=failing).word == NOT_REPRODUCED
    runs = [outcome(failing, ending(10.0), seed=s) for s in (1, 2)] + [outcome(failing, [9.0], failed="NaN")]
    assert verdict(*runs, cell=failing).word == REPRODUCED  # chance is a failure, too


def test_runs_that_failed_count_against_those_that_went_through_alone():
    failing = TABLE1.cell("cifar10/lda0.05", "scaffold")
    failure = outcome(failing, [9.0], failed="NaN")
    as_many = [failure, outcome(failing, ending(44.6), seed=1)]
    assert verdict(*as_many, cell=failing).word == REPRODUCED
    on_their_way = [outcome(failing, [44.6] * 10, seed=s) for s in (1, 2)]
    assert verdict(failure, *on_their_way, cell=failing).word == REPRODUCED


def test_what_is_allowed_is_two_spreads_or_the_rounding_whichever_is_more():
    paper = load_paper("fedntd")
    assert tolerance(paper, "accuracy", 1.5, 200) == 3.0
    assert tolerance(paper, "forgetting", 0.005, 200) == 0.02
    assert tolerance(paper, "forgetting", 0.05, 200) == 0.1
    assert tolerance(paper, "rounds_to_baseline", None, 100) == 10
    assert tolerance(paper, "rounds_to_baseline", None, 30) == 3


def test_the_level_is_of_runs_that_are_as_far():
    runs = [outcome(CELL, ending(52.0)), outcome(CELL, [5.0] * 30, seed=1)]
    found = level(TABLE1, CELL, Results(runs))
    assert (found.mean, found.n) == (pytest.approx(52.0), 1)


def test_a_stand_in_reproduces_nothing():
    paper = load_paper("sfedkd")
    t = paper.tables["table1"]
    small = paper.variant("small")
    cell = next(c for c in t.cells if c.changed_by(small) and c.published["accuracy"].value)
    run = outcome(cell, [cell.published["accuracy"].value] * cell.config().rounds, variant=small)
    results = Results([run])
    assert [v.name for v in tried(paper, cell, results)] == ["small"]
    assert best(paper, t, cell, results) == STAND_IN_ALONE


def test_what_was_measured_after_another_round_is_not_of_the_papers_last():
    t = table("fedntd/table2")
    cell, found = t.cells[0], {"alignment": {"layers": {"fc1": {"local_mean": 0.5}}}}
    quantity = next(q for q in t.quantities if q == "fc1_local")
    rounds = cell.config().rounds
    for done, said in ((rounds + 100, False), (rounds, True)):
        run = outcome(cell, [50.0] * done, rounds=done, measures=found)
        v = verdict(run, cell=cell, quantity=quantity, of=t)
        assert (v.word != PARTIAL) == (v.measured is not None) == said


def test_a_baselines_accuracy_is_its_last_of_the_papers_rounds_in_the_same_precision():
    t = table("fedssd/table1")
    mine, base = t.cell("cifar10", "fedcad"), t.cell("cifar10", "fedavg")
    climbing = [0.5 * n for n in range(1, 101)]
    peaked = [60.0] * 50 + [20.0] * 50

    def rounds(*runs):
        v = verdict(*runs, cell=mine, quantity="rounds_to_baseline", of=t)
        return v.measured and v.measured.summary.mean

    assert rounds(outcome(mine, climbing), outcome(base, peaked)) == 40
    assert rounds(outcome(mine, climbing), outcome(base, peaked[:60])) is None  # it is not as far
    assert rounds(outcome(mine, climbing, precision="bfloat16"), outcome(base, peaked)) is None


def test_a_switch_for_one_method_leaves_the_baseline_as_it_is():
    tried_out = 0
    for paper in map(load_paper, PAPERS):
        for t in paper.tables.values():
            for v in paper.variants.values():
                for cell in (c for c in t.cells if c.changed_by(v) and c.method != t.baseline):
                    runs = [outcome(cell, [20.0, 30.0], variant=v)]
                    if t.baseline is not None:
                        base = t.cell(cell.column, t.baseline)
                        runs.append(outcome(base, [10.0, 20.0], variant=v if base.changed_by(v) else None))
                        found = gain(t, cell, Results(runs), v)
                        assert (found is None) == ("accuracy" not in t.quantities), (cell.key, v.name)
                        if found is not None:
                            said = [c.published.get("accuracy") for c in (cell, base)]
                            assert found.measured.mean == pytest.approx(10)
                            assert (found.published is None) == any(
                                p is None or p.value is None for p in said
                            )
                    for quantity in t.quantities:
                        verdict(*runs, cell=cell, quantity=quantity, of=t, variant=v)
                    tried_out += 1
                    break  # one cell of every table and switch
    assert tried_out > 50


def test_switches_together_count_where_each_means_something():
    paper = load_paper("fedntd")
    both = paper.variant("augmented-test+moon-shipped")
    assert both == paper.variant("moon-shipped+augmented-test")
    moon, fedavg = TABLE1.cell(CELL.column, "moon"), BASE
    made = moon.config(variant=both)
    assert (made.algorithm["mu"], made.test_augmentation) == (0.1, made.augmentation)
    assert fedavg.config(variant=both) == fedavg.config(variant=paper.variant("augmented-test"))
    assert fedavg.changed_by(both)
    runs = Results([outcome(moon, ending(40.0), variant=both), outcome(fedavg, ending(38.0), variant=both)])
    assert [v.name for v in tried(paper, moon, runs)] == [both.name]
    assert [v.name for v in tried(paper, fedavg, runs)] == ["augmented-test"]
    assert gain(TABLE1, moon, runs, both).measured.mean == pytest.approx(2.0)
    # The test images are cut as this training's are, whatever that is.
    cut = CELL.config(variant=paper.variant("no-cutout+augmented-test"))
    assert cut.augmentation == cut.test_augmentation == "crop+flip"
    assert paper.variant("lenet+uniform").stand_in
    # Any number of them, each found again in the run that it made, and no other.
    nova = TABLE1.cell(CELL.column, "fednova")
    names = ("fednova-shipped", "no-cutout", "lr-0.1", "augmented-test")
    for chosen in (c for n in range(1, 5) for c in combinations(names, n)):
        v = paper.variant("+".join(reversed(chosen)))
        run = outcome(nova, ending(40.0), variant=v)
        assert set(v.name.split("+")) == set(chosen)
        assert tried(paper, nova, Results([run])) == [v]
    strange = outcome(nova, ending(40.0), variant=v)
    strange = replace(strange, config=nova.config(variant=v, **{"training.batch_size": 7}))
    assert tried(paper, nova, Results([strange])) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("moon-shiped+uniform", "did you mean 'moon-shipped'"),
        ("uniform+uniform", "different ones"),
        ("uniform+no-cutout+lr-0.1+no-augmentation", "no-cutout and no-augmentation both set augmentation"),
        ("no-cutout+no-augmentation", "both set augmentation"),
        ("uniform+", "no switch ''"),
    ],
)
def test_switches_that_cannot_be_combined_say_why(name, said):
    with pytest.raises(UserError, match=re.escape(said)):
        load_paper("fedntd").variant(name)


def test_speed_up_is_the_ratio_of_training_seconds_to_the_target():
    t = table("sfedkd/time_to_accuracy")
    mine, everyone = t.cell("cifar10/60%", "k3"), t.cell("cifar10/60%", "all")
    runs = [
        outcome(mine, [50.0, 61.0] + [70.0] * 998, seconds=[2.0, 2.0] + [9.0] * 998),
        outcome(everyone, [30.0, 59.9, 60.0] + [70.0] * 997, seconds=[3.0, 3.0, 4.0] + [9.0] * 997),
    ]
    v = verdict(*runs, cell=mine, quantity="speedup", of=t)
    assert v.measured.summary.mean == pytest.approx(10 / 4)
    assert v.word == REPRODUCED
    never = outcome(mine, [50.0] * 1000, seconds=[2.0] * 1000)
    assert verdict(never, runs[1], cell=mine, quantity="speedup", of=t).word == NOT_REPRODUCED
    further = outcome(mine, [50.0, 61.0] + [70.0] * 999, seconds=[2.0, 2.0] + [9.0] * 999, rounds=1001)
    assert verdict(further, runs[1], cell=mine, quantity="speedup", of=t).word == REPRODUCED
    elsewhere = replace(runs[1], made={"gpu": "another"})
    assert verdict(runs[0], elsewhere, cell=mine, quantity="speedup", of=t).word == PARTIAL
    gone = outcome(everyone, [30.0, 59.9, 60.0], seconds=[3.0, 3.0, 4.0], failed="NaN")
    assert verdict(runs[0], gone, cell=mine, quantity="speedup", of=t).word == PARTIAL
    assert verdict(runs[1], cell=everyone, quantity="speedup", of=t).word == ""  # nothing is published of it


def test_what_has_begun_is_not_called_not_run_because_its_number_needs_another_run():
    t, paper = table("sfedkd/time_to_accuracy"), load_paper("sfedkd")
    mine, everyone = t.cell("cifar10/60%", "k5"), t.cell("cifar10/60%", "all")
    for cell in (mine, everyone):
        results = Results([outcome(cell, [50.0] * 268)])
        assert judge(paper, t, cell, "speedup", results).word == PARTIAL
        assert best(paper, t, cell, results) == PARTIAL
    failed = Results([outcome(mine, [50.0] * 268, failed="NaN")])
    assert judge(paper, t, mine, "speedup", failed).word == ""  # it was run, and there is nothing to say
    assert judge(paper, t, mine, "speedup", Results()).word == NOT_RUN


def test_alignment_is_read_from_the_last_rounds_measure():
    t = table("fedntd/table2")
    cell = t.cell("shard2", "fedntd")
    layers = {"fc1": {"local_mean": 0.70, "next_global": 0.5}}
    run = outcome(cell, ending(50.0), measures={"alignment": {"layers": layers}})
    assert verdict(run, cell=cell, quantity="fc1_local", of=t).word == REPRODUCED
    assert verdict(run, cell=cell, quantity="fc1_next_global", of=t).word == NOT_REPRODUCED
    assert verdict(run, cell=cell, quantity="fc2_local", of=t).word == f"{SOMETHING_ELSE}, {PARTIAL}"
    layers["fc2"] = {"local_mean": 0.5, "next_global": 0.5}
    looked = verdict(run, cell=cell, quantity="fc2_local", of=t)
    assert (looked.word, looked.difference) == (SOMETHING_ELSE, None)
    assert math.isclose(verdict(run, cell=cell, quantity="fc1_local", of=t).difference, 0.70 - 0.703)


def test_a_number_without_a_spread_has_that_of_the_same_number_elsewhere():
    paper = load_paper("fedntd")
    with_, without = (
        paper.tables[t].cell(c, "fedavg") for t, c in (("table1", "cifar10/shard2"), ("table8", "E5"))
    )
    assert (with_.published["accuracy"].value, with_.published["accuracy"].std) == (40.14, 1.15)
    assert (without.published["accuracy"].value, without.published["accuracy"].std) == (40.14, None)
    assert paper.spread(without, "accuracy") == 1.15
    other = paper.tables["table8"].cell("E1", "fedavg")  # whose number stands in no other table
    assert paper.spread(other, "accuracy") is None
    shorter, another = (paper.tables["table12"].cell(c, "lambda=1") for c in ("shard2", "lda0.1"))
    assert shorter.published["accuracy"].value == 52.6  # table 1 has 52.61 of these runs
    assert paper.spread(shorter, "accuracy") == 1.00
    assert another.published["accuracy"].value == 54.9  # and of these 54.42
    assert paper.spread(another, "accuracy") is None


def test_a_stand_in_that_is_under_way_says_nothing_of_the_cell():
    paper, of = load_paper("fedntd"), table("fedntd/table13")
    cell = of.cell("64/lda0.1", "fedalign")
    lenet = paper.variant("lenet")
    run, base = (outcome(c, [20.0], variant=lenet) for c in (cell, of.cell("64/lda0.1", "fedavg")))
    assert best(paper, of, cell, Results([run])) == STAND_IN_ALONE
    assert best(paper, of, cell, Results()) == NOT_RUN
    v = verdict(run, cell=cell, of=of, variant=lenet)
    assert (v.word, v.difference) == (f"{STAND_IN}, {PARTIAL}", None)
    assert v.measured.summary.mean == pytest.approx(20.0)
    assert gain(of, cell, Results([run, base]), lenet).measured.mean == pytest.approx(0.0)  # which compares


@pytest.mark.parametrize("name", PAPERS)
def test_every_switch_that_changes_a_cell_is_read_from_what_was_run_with_it(name):
    paper = load_paper(name)
    for t in paper.tables.values():
        for cell in {c.method: c for c in t.cells}.values():
            changing = {v.name: cell.config(variant=v) for v in paper.variants.values() if cell.changed_by(v)}
            alike = Counter(map(identity, changing.values()))
            for variant, config in changing.items():
                read = paper.reading(cell, config)
                assert read is not None
                assert read.name == variant or alike[identity(config)] > 1, (cell.key, variant)
            assert paper.reading(cell, cell.config()) is None


def test_what_failed_has_failed_in_accuracy_alone():
    cell = next(c for t in load_paper("fedntd").tables.values() for c in t.cells if c.failed)
    ours = outcome(CELL, [10.0] * 99, failed="round 100: NaN")
    texts = [
        (published_text(cell, q), measured_text(verdict(ours, quantity=q), q))
        for q in ("accuracy", "forgetting")
    ]
    assert texts == [("failed", "failed"), ("", "")]
