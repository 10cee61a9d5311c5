"""What is said to a user, whoever said it first."""

import pytest

from fedrecall.errors import nearest, printable, sentence


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


def test_nothing_commands_the_terminal():
    assert printable(
        "a\x1b[2J\nb\u202e é"
    ) == "a\N{REPLACEMENT CHARACTER}[2J" + "\N{REPLACEMENT CHARACTER}b" + ("\N{REPLACEMENT CHARACTER} é")
