"""Results made up by hand, as if a paper's cell had been run."""

from fedrecall.papers.results import Outcome

MADE = {
    "cpu": "a CPU",
    "gpu": None,
    "versions": {"torch": "2.13.0"},
    "started": "2026-11-20T12:00:00",
}


def outcome(
    cell,
    accuracy,
    seed=0,
    forgetting=None,
    variant=None,
    failed=None,
    measures=None,
    seconds=None,
    git="abc",
    **changes,
):
    """A run of a cell with this accuracy after every round (in percent)."""
    return Outcome(
        config=cell.config(seed, variant, **changes),
        accuracy=[a / 100 for a in accuracy],
        forgetting=list(forgetting or [0.1] * len(accuracy)),
        class_accuracy=[0.5] * 10,
        client_seconds=list(seconds or [1.0] * len(accuracy)),
        bytes_down=1,
        bytes_up=1,
        failures=0,
        measures=measures or {},
        made=MADE | {"git": git},
        failed=failed,
    )
