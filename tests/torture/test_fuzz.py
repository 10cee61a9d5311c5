"""Ten thousand bad inputs: each is used or refused in a sentence, quickly, and writes nowhere else."""

import time

import pytest
from tests.torture.fuzzing import CAMPAIGNS, attack

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", CAMPAIGNS)
def test_bad_input_is_used_or_refused_in_a_sentence(kind, tmp_path, figures):
    make, count = CAMPAIGNS[kind]
    campaign = make(tmp_path)
    since = time.monotonic()
    outcomes = attack(campaign, count, key=2026)
    figures.add(
        f"fuzz/{kind}",
        inputs=sum(outcomes.values()),
        used=outcomes["used"],
        refused=outcomes["refused"],
        seconds=round(time.monotonic() - since, 1),
    )


def test_that_makes_ten_thousand():
    assert sum(count for _, count in CAMPAIGNS.values()) >= 10_000
