"""Every algorithm trains on digits at its defaults, and as it did before (see `golden.py`)."""

import json
import math

import pytest
from tests.algorithms.cases import Case, each
from tests.algorithms.golden import FILE, short_run


@pytest.mark.no_cover  # others cover it, and an algorithm at a time is what takes longest
@pytest.mark.parametrize(**each())
def test_trains_on_digits_as_before(case: Case):
    kept = json.loads(FILE.read_text())
    assert case.spec in kept, f"record it: python -m tests.algorithms.golden {case.name}"
    found, expected = short_run(case.spec), kept[case.spec]
    assert found["failures"] == 0
    assert math.isfinite(found["loss"])
    assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=0.006)  # two of 360 test examples
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-6)
