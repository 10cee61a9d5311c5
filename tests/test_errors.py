"""What is said to a user, whoever said it first."""

import errno

import pytest

from fedrecall import errors, files
from fedrecall.backends.backend import NotStarted
from fedrecall.errors import UserError, nearest, of_one_run, printable, sentence, shown


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


@pytest.mark.parametrize(
    ("error", "alone"),
    [
        (UserError("`loss` returns nothing"), True),
        (errors.Diverged("NaN"), True),
        (AttributeError("x"), True),
        (FileNotFoundError(errno.ENOENT, "no such file"), True),
        (OSError(errno.ENOSPC, "disk full"), False),
        (files.refusal(OSError(errno.ENOSPC, "disk full"))("no room"), False),
        (files.refusal(PermissionError(errno.EACCES, "denied"))("not allowed"), False),
        (errors.Busy("another"), False),
        (NotStarted("workers"), False),
        (MemoryError(), False),
        (RuntimeError("CUDA out of memory."), False),
    ],
)
def test_what_other_runs_would_not_have_either_is_not_of_one_run(error, alone):
    assert of_one_run(error) is alone
