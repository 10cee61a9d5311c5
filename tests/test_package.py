"""What importing the package does."""

import os
import subprocess
import sys

import pytest

SAY = "import os; print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'))"


@pytest.mark.parametrize(
    ("before", "given", "said"),
    [
        ("", {}, "3000 None"),
        ("", {"GOMP_SPINCOUNT": "7"}, "7 None"),
        ("", {"OMP_WAIT_POLICY": "active"}, "None active"),
        ("import torch; ", {}, "None None"),  # it would do nothing more
    ],
)
def test_waiting_threads_spin_briefly_unless_somebody_said_otherwise(before, given, said):
    others = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", f"{before}import fedrecall; {SAY}"],
        env={**others, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == said
