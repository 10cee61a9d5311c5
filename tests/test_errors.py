"""What is said to a user, whoever said it first."""

import pytest

from fedrecall.errors import nearest, printable, sentence, shown


@pytest.mark.parametrize(
    ("said", "ended"), [("no", "no."), ("no.", "no."), ("cut short ...", "cut short ..."), (3, "3.")]
)
def test_a_sentence_has_one_full_stop(said, ended):
    assert sentence(said) == ended


@pytest.mark.parametrize(
    ("word", "known", "said"),
    [
        ("fedntt", ["fedavg", "fedntd"], "did you mean 'fedntd'?"),
        ("fedNTD", ["fedavg", "fedntd", "sfedkd"], "did you mean 'fedntd'?"),
        ("fednet", ["FedAvg", "FedNet"], "did you mean 'FedNet'?"),
        ("x", ["b", "a"], "known: a, b."),
        ("x", [], "there are none."),
    ],
)
def test_the_nearest_name_is_offered_or_all(word, known, said):
    assert nearest(word, known) == said


def test_whatever_is_shown_of_a_value_is_short():
    assert len(shown("x" * 1000)) <= 120
    assert len(shown(10**1000)) <= 120
    assert shown(10**10_000) == "a number of thousands of digits"
    many = shown([["y" * 90] * 10] * 10)
    assert len(many) == 303
    assert many.endswith("...")


def test_nothing_commands_the_terminal():
    assert printable(
        "a\x1b[2J\nb\u202e é"
    ) == "a\N{REPLACEMENT CHARACTER}[2J" + "\N{REPLACEMENT CHARACTER}b" + ("\N{REPLACEMENT CHARACTER} é")
