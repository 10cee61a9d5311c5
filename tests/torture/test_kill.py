"""Killed anywhere, every run goes on to the same end; a full disk costs the round."""

import time

import pytest
from tests.torture import kills

from fedrecall.errors import UserError
from fedrecall.records import RunFolder

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("algorithm", kills.ALGORITHMS)
@pytest.mark.parametrize(("backend", "count"), [("serial", 40), ("processes", 10)])
def test_a_run_killed_anywhere_ends_as_if_it_had_not_been(algorithm, backend, count, tmp_path, figures):
    since = time.monotonic()
    done = kills.campaign(tmp_path, algorithm, backend, count, key=1)
    figures.add(
        f"kill/{algorithm}/{backend}",
        kills=sum(done.values()),
        moments=done,
        same=True,
        seconds=round(time.monotonic() - since, 1),
    )


def test_a_report_killed_while_it_is_written_is_whole_or_not_there(tmp_path, figures):
    figures.add("kill/report", kills=kills.killed_reports(tmp_path, 12, key=1))


@pytest.mark.parametrize("algorithm", kills.ALGORITHMS)
def test_a_full_disk_costs_the_round_and_no_more(algorithm, tmp_path, figures):
    expected = kills.run(None, algorithm, "serial")
    stops = 0
    with kills.small_disk(tmp_path / "disk", 400_000) as mounted:
        if not mounted:
            pytest.skip("a small disk cannot be mounted without root; the short form fills a pretended one")
        folder = tmp_path / "disk" / "run"
        filler = tmp_path / "disk" / "filler"
        for room in (8_000, 16_000, 24_000, 32_000, 40_000, 50_000, 70_000):
            free = kills.free(tmp_path / "disk")
            filler.write_bytes(b"x" * max(free - room, 0))
            try:
                kills.run(folder, algorithm, "serial")
            except UserError as error:
                stops += "No space left" in str(error)
            filler.unlink()
            kills.readable(folder)
        assert kills.same(kills.run(folder, algorithm, "serial"), expected)
        assert len(RunFolder(folder).metrics()) == 4
        assert stops
    figures.add(f"disk/{algorithm}", full=stops, same=True)
