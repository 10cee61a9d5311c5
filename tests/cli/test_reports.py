"""`report`, `figure` and `watch` on run folders made of formulas."""

import csv
import io
import json
import shutil
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from tests.data.test_datasets import mirror
from tests.reports.synthetic import AGREED, of_nodes, write
from typer.testing import CliRunner

import fedrecall
from fedrecall.cli import app, progress
from fedrecall.cli.commands import watch
from fedrecall.errors import UserError
from fedrecall.records import Fault, RunFolder
from fedrecall.reports.runs import Run

runner = CliRunner()


def invoke(*words):
    return runner.invoke(app, [str(w) for w in words], catch_exceptions=True)


@pytest.fixture
def runs(tmp_path):
    for seed in (0, 1):
        write(tmp_path / "runs" / f"avg-{seed}", seed=seed)
    return tmp_path / "runs"


def test_report_writes_one_page_and_says_where(runs, tmp_path):
    found = invoke("report", runs, "--out", tmp_path / "deep" / "x.html", "--target", 0.3, "--title", "A & B")
    assert found.exit_code == 0, found.output
    assert "report:" in found.output
    page = (tmp_path / "deep" / "x.html").read_text()
    assert "<title>A &amp; B</title>" in page
    assert "30 %: rounds" in page


def test_report_writes_its_numbers_as_a_table(runs, tmp_path):
    for seed in (0, 1):
        write(runs / f"ntd-{seed}", algorithm="fedntd", seed=seed, better=1)
    words = ("report", runs, "--out", tmp_path / "x.html", "--baseline", "fedntd")
    found = invoke(*words, "--table", tmp_path / "deep/t.csv")
    assert found.exit_code == 0, found.output
    avg, ntd = csv.DictReader((tmp_path / "deep/t.csv").read_text().splitlines())
    last = {run.path.name: run.records[-1]["accuracy"] for run in fedrecall.open_runs(runs)}
    gains = [last[f"avg-{seed}"] - last[f"ntd-{seed}"] for seed in (0, 1)]
    assert (avg["algorithm"], avg["against"], avg["pairs"], ntd["against"]) == ("fedavg", "fedntd", "2", "")
    assert float(avg["difference"]) == pytest.approx(sum(gains) / 2)
    assert [float(avg[end]) for end in ("low", "high")] == pytest.approx(sorted(gains))
    assert float(ntd["accuracy"]) == pytest.approx((last["ntd-0"] + last["ntd-1"]) / 2)
    forgot = {run.path.name: run.records[-1]["forgetting"] for run in fedrecall.open_runs(runs)}
    more = sum(forgot[f"avg-{seed}"] - forgot[f"ntd-{seed}"] for seed in (0, 1)) / 2
    assert float(avg["forgetting_difference"]) == pytest.approx(more)
    found = invoke(*words, "--table", tmp_path / "t.doc")
    assert "name a file that ends in .tex, .csv, .md" in str(found.exception)


def test_python_writes_the_page_that_the_command_does(tmp_path, monkeypatch):
    runs = [write(tmp_path / "runs" / name, algorithm=name) for name in ("fedavg", "fedntd")]
    options = {"title": "Mine", "targets": 0.3, "baseline": "fedntd"}
    said = invoke(
        "report", *runs, "--out", tmp_path / "a.html", "--title=Mine", "--target=0.3", "--baseline=fedntd"
    )
    assert said.exit_code == 0, said.output
    page = (tmp_path / "a.html").read_bytes()
    opened = fedrecall.open_runs(runs)
    for given in (runs, opened, (str(runs[0]), opened[1]), tmp_path / "runs"):
        assert fedrecall.report(given, str(tmp_path / "b.html"), **options).read_bytes() == page
        options["targets"] = [0.3]
    monkeypatch.chdir(tmp_path)
    assert fedrecall.report(opened[0]) == Path("report.html")
    assert b"fedntd" not in Path("report.html").read_bytes()
    with pytest.raises(UserError, match="name at least one run"):
        fedrecall.report([])
    with pytest.raises(UserError, match=r"cannot write .*: Is a directory"):
        fedrecall.report(runs, tmp_path)


def test_report_of_nothing_is_a_users_mistake(tmp_path):
    found = invoke("report", tmp_path)
    assert isinstance(found.exception, UserError)
    assert "neither a run nor a folder of runs" in str(found.exception)
    found = invoke("report", write(tmp_path / "run"), "--out", tmp_path / "run" / "config.json" / "x.html")
    assert isinstance(found.exception, UserError)
    for nameless in (".", "/"):
        found = invoke("report", tmp_path / "run", "--out", nameless)
        assert str(found.exception) == f"cannot write {nameless}: Is a directory."


def test_watch_of_nothing_is_a_users_mistake(tmp_path):
    found = invoke("watch", tmp_path, "--once")
    assert isinstance(found.exception, UserError)
    assert "neither a run nor a folder of runs" in str(found.exception)


def test_watch_shows_a_run_once_that_is_named_twice(runs):
    found = invoke("watch", runs, runs / "avg-0", "--once")
    assert found.output.count("avg-0: round 6 of 6") == 1


def test_figures_are_listed_explained_and_drawn(runs, tmp_path):
    assert "fedntd/fig4" in invoke("list", "figures").output
    assert "fedrecall run" in invoke("show", "figure", "fedntd/fig4").output
    found = invoke("figure", "fedntd/fig13", runs, "--out", tmp_path / "drawn")
    assert found.exit_code == 0, found.exception
    assert sorted(p.name for p in (tmp_path / "drawn").iterdir()) == [
        f"fedntd-fig13.{kind}" for kind in ("json", "pdf", "png")
    ]


def test_a_figure_that_trains_anew_takes_the_runs_data_from_the_root(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDRECALL_DATA", str(tmp_path / "nowhere"))
    root, run = tmp_path / "data", tmp_path / "run"
    mirror(root, "mnist", train=30, rest=6)
    small = {"clients": 2, "sample": 2, "rounds": 1, "partition": "iid", "backend": "serial"}
    fedrecall.run(run, dataset="mnist", model="mlp:8", auxiliary_per_class=2, data_root=root, **small)
    words = ("figure", "fedcad/fig2:epochs=1", run, "--out", tmp_path / "drawn")
    found = invoke(*words, "--data-root", root)
    assert found.exit_code == 0, found.exception
    assert (tmp_path / "drawn/fedcad-fig2.png").exists()


def test_a_figure_that_cannot_be_written_is_a_users_mistake(runs, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file"):
        app(["figure", "fedntd/fig13", str(runs), "--out", str(tmp_path / "file")], standalone_mode=False)


def test_watch_once_says_how_runs_stand_in_plain_lines(runs):
    write(runs / "going", algorithm="fedntd", played=4)
    write(runs / "begun", played=0)
    found = invoke("watch", runs, "--once")
    assert found.exit_code == 0, found.exception
    assert "avg-0: round 6 of 6, finished" in found.output
    assert "going: round 4 of 6, last round" in found.output
    assert "begun: round 0 of 6, no round finished yet" in found.output
    assert "\x1b" not in found.output


@pytest.fixture
def reproduced(tmp_path):
    """Runs as `reproduce` keeps them: FOLDER/EXPERIMENT/seedN."""
    for algorithm, played in (("fedavg", 6), ("fedntd", 4)):
        write(tmp_path / "reproduction" / algorithm / "seed0", algorithm=algorithm, played=played)
    return tmp_path / "reproduction"


def test_folders_as_reproduce_makes_them_are_reported_drawn_and_watched(reproduced, tmp_path):
    for folder in (tmp_path, reproduced):
        assert invoke("report", folder, "--out", tmp_path / "x.html").exit_code == 0
        page = (tmp_path / "x.html").read_text()
        assert "2 experiments, 2 runs." in page
        assert "fedntd/seed0 stands at round 4 of 6" in page
        assert invoke("figure", "fedntd/fig13", folder, "--out", tmp_path / "drawn").exit_code == 0
        found = invoke("watch", folder, "--once")
        assert found.exit_code == 0, found.exception
        assert "fedavg/seed0: round 6 of 6, finished" in found.output
        assert "fedntd/seed0: round 4 of 6, last round" in found.output


def test_watch_follows_a_run_to_its_end(runs, tmp_path):
    path = runs / "avg-0" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:30])  # cut short, as while it is being written

    def grow():
        for more in (lines[2][30:], *lines[3:]):
            time.sleep(0.15)
            with path.open("a") as file:  # as a run does: what is there is never written again
                file.write(more)

    writer = threading.Thread(target=grow)
    writer.start()
    found = invoke("watch", runs / "avg-0", "--every", 0.05)
    writer.join()
    told = [line.split()[2] for line in found.output.splitlines()[1:]]
    assert told == ["2/6", "3/6", "4/6", "5/6", "6/6"]


def test_watch_follows_a_run_that_goes_back_and_on_with_more_rounds(runs, monkeypatch):
    path, config = runs / "avg-0" / "metrics.jsonl", runs / "avg-0" / "config.json"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5]))
    steps = iter([lines[:3], lines[:4], lines[:6], lines])  # resumed from round 3, gone on with, ended

    def work(_):
        path.write_text("".join(next(steps)))

    config.write_text(json.dumps(json.loads(config.read_text()) | {"rounds": 8}))
    followed = watch.Follower(Run(runs / "avg-0"))
    followed.look()
    assert not followed.finished
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rounds": 6}))
    path.write_text("".join(lines))
    followed.look()
    assert followed.finished
    path.write_text("".join(lines[:5]))
    monkeypatch.setattr(watch.time, "sleep", work)
    found = invoke("watch", runs / "avg-0")
    told = [line.split()[2] for line in found.output.splitlines()[1:]]
    assert told == ["5/6", "4/6", "5/6", "6/6"]


def test_watch_names_the_last_who_failed(tmp_path):
    follower = watch.Follower(Run(write(tmp_path / "run")))
    follower.look()
    follower.records[1]["failures"] = ["client 4 gave NaN"]
    follower.records[3]["failures"] = ["client 7 gave NaN", "client 2 gave NaN"]
    console = Console(width=200, force_terminal=False, record=True, file=io.StringIO())
    console.print(watch.view(follower, 200))
    said = console.export_text()
    assert "3 visits left out, last in round 4: client 2 gave NaN" in said
    assert "2.75 s a round; " in said


def test_watch_draws_a_panel_on_a_terminal(runs):
    run = watch.Follower(Run(runs / "avg-0"))
    assert run.look()
    assert not run.look()  # nothing new
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(watch.view(run, 80))
    said = console.export_text()
    last = run.records[-1]
    assert "round 6 of 6" in said
    assert f"{last['accuracy']:.2%}" in said
    assert f"{last['forgetting']:.3f}" in said
    assert max(map(len, said.splitlines())) <= 80


def test_watch_calls_a_federation_by_what_its_nodes_hold(tmp_path):
    run = watch.Follower(Run(of_nodes(tmp_path / "run", AGREED)))
    run.look()
    console = Console(file=io.StringIO(), width=120)
    console.print(watch.view(run, 120))
    shown = console.file.getvalue()
    assert "on nodes' data (1x8x8, 3 classes, 150 examples, digest" in shown
    assert "5 clients, seed 0" in " ".join(shown.replace("│", "").split())
    assert "shards" not in shown


def test_watch_holds_no_lock_and_writes_nothing(runs):
    before = {p: p.stat().st_mtime_ns for p in runs.rglob("*")}
    invoke("watch", runs, "--once")
    assert {p: p.stat().st_mtime_ns for p in runs.rglob("*")} == before


def test_time_left_is_the_pace_of_the_last_rounds(tmp_path):
    run = watch.Follower(Run(write(tmp_path / "run", rounds=10, played=4)))
    run.look()
    assert run.left == pytest.approx(6 * (2.0 + 0.5 + 0.25))
    run = watch.Follower(Run(write(tmp_path / "longer", rounds=20, played=15)))
    run.look()
    for record in run.records[:5]:  # something else was going on there
        record["seconds"]["train"] = 100.0
    assert run.left == pytest.approx(5 * (2.0 + 0.5 + 0.25))


def test_a_rounds_seconds_are_all_that_it_took_wherever_they_are_shown():
    seconds = {
        "train": 1.0,
        "clients": [1.0],
        "evaluate": 0.5,
        "measures": {"alignment": 10.0},
        "memories": 0.1,
    }
    record = {"round": 1, "failures": [], "seconds": seconds}
    assert progress.seconds(record) == pytest.approx(11.6)
    assert progress.line(record) == "11.60 s/round"


def test_a_sparkline_is_the_mean_of_what_it_stands_for():
    assert watch.sparkline([0, 0.5, 1], 10) == "▁▅█"
    assert watch.sparkline([0, 0, 1, 1], 2) == "▁█"
    assert watch.sparkline([float("nan"), 2.0], 9) == " █"
    assert watch.sparkline([], 9) == ""
    assert watch.sparkline([0.0, 0.0], 9, 0.0, 0.0) == "▁▁"  # of a loss that is none


def test_a_run_cannot_command_the_terminal(tmp_path):
    run = write(tmp_path / "run", algorithm="fedntd")
    config = json.loads((run / "config.json").read_text())
    config["algorithm"]["beta"] = "\x1b]0;owned\x07"
    (run / "config.json").write_text(json.dumps(config))
    follower = watch.Follower(Run(run))
    follower.look()
    follower.records[-1]["failures"] = ["\x1b[2J"]
    console = Console(width=80, force_terminal=False, record=True, file=io.StringIO())
    console.print(watch.view(follower, 80))
    assert "\x1b" not in console.export_text()


def test_watch_says_whose_test_examples_are_missing(tmp_path):
    follower = watch.Follower(Run(write(tmp_path / "run")))
    follower.look()
    follower.records[2]["untested"] = ["client 1, evaluation of round 3: its node is not connected"]
    follower.records[4]["untested"] = ["client 2, evaluation of round 5: \x1b[2J"]
    console = Console(width=200, force_terminal=False, record=True, file=io.StringIO())
    console.print(watch.view(follower, 200))
    said = console.export_text()
    assert "2 rounds without all test examples, last round 5: client 2, evaluation of round 5" in said
    assert "\x1b" not in said


def test_watch_says_at_which_site_the_model_is_worst(tmp_path):
    metrics = write(tmp_path / "run") / "metrics.jsonl"
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    for share, record in zip((0.5, 0.25), records[-2:], strict=True):
        numbers = {key: [0.75, share] for key in ("examples", "accuracy", "balanced_accuracy")}
        record["measures"]["sites"] = {"sites": ["north", "so\x1b[2Juth"], **numbers}
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    follower = watch.Follower(Run(tmp_path / "run"))
    follower.look()
    console = Console(width=200, force_terminal=False, record=True, file=io.StringIO())
    console.print(watch.view(follower, 200))
    (line,) = (line for line in console.export_text().splitlines() if "worst site" in line)
    assert "25.00%" in line
    assert "uth" in line
    assert "\x1b" not in line


def test_watch_in_a_folder_waits_for_runs_that_begin_later(runs, monkeypatch):
    def later(_):
        if (runs / "ntd-0").exists():
            raise KeyboardInterrupt
        write(runs / "ntd-0", algorithm="fedntd", played=2)

    monkeypatch.setattr(watch.time, "sleep", later)
    found = invoke("watch", runs)
    assert found.exit_code != 0
    assert "avg-1: round 6 of 6, finished" in found.output
    *_, begun, one, two = found.output.split("Aborted")[0].strip().splitlines()
    assert begun.startswith("ntd-0: round 2 of 6, last round")
    assert [line.partition("  ")[0] for line in (one, two)] == ["ntd-0: round 1/6", "ntd-0: round 2/6"]
    monkeypatch.setattr(watch.time, "sleep", lambda _: pytest.fail("it waits for a run that is over"))
    assert invoke("watch", runs / "avg-0", runs / "avg-1").exit_code == 0


@pytest.mark.parametrize("named", ["runs", "runs/a"])
def test_watch_goes_on_while_a_run_that_recorded_nothing_is_begun_anew(named, tmp_path, monkeypatch):
    run = write(tmp_path / "runs" / "a", played=0)
    config = (run / "config.json").read_text()
    whole = (write(tmp_path / "whole") / "metrics.jsonl").read_text()

    def begin():
        (run / "config.json").write_text(config)
        (run / "metrics.jsonl").write_text(whole)

    def work(_):
        if steps:
            return steps.pop(0)()
        raise KeyboardInterrupt

    steps = [RunFolder(run).forget, lambda: None, begin]
    monkeypatch.setattr(watch.time, "sleep", work)
    found = invoke("watch", tmp_path / named)
    told = found.output.split("Aborted")[0].strip().splitlines()
    assert told[0].startswith("a: round 0 of 6, ")
    assert [line.partition("  ")[0] for line in told[1:]] == [f"a: round {t}/6" for t in range(1, 7)]
    assert (found.exit_code == 0) == (named == "runs/a")  # in a folder others may begin


def test_where_a_watched_run_is_removed_others_are_waited_for_in_a_folder_alone(tmp_path, monkeypatch):
    def work(_):
        if not (tmp_path / "runs/a").exists():
            raise KeyboardInterrupt
        shutil.rmtree(tmp_path / "runs/a")

    monkeypatch.setattr(watch.time, "sleep", work)
    write(tmp_path / "runs/a", played=2)
    looks = watch._looks([tmp_path / "runs"], once=False, every=1)
    assert [len(next(looks)), len(next(looks))] == [1, 0]
    console_of(80, 24).print(watch.page([], console_of(80, 24)))
    write(tmp_path / "runs/a", played=2)
    assert "is not a run" in str(invoke("watch", tmp_path / "runs/a").exception)


def console_of(width, height):
    return Console(width=width, height=height, force_terminal=True, color_system=None, file=io.StringIO())


def test_of_more_runs_than_there_is_room_for_each_is_a_line(tmp_path):
    for seed in range(12):
        write(tmp_path / f"run-with-a-long-name-{seed}", seed=seed, rounds=6, played=6 if seed < 3 else 4)
    RunFolder(tmp_path / "run-with-a-long-name-4").fail(Fault(5, "client 3 gave NaN."))
    followed = next(watch._looks([tmp_path], once=True, every=1))
    order = [3, *range(5, 12), 4, 0, 1, 2]  # those that go on, that failed, that are through
    assert [run.name for run in followed] == [f"run-with-a-long-name-{seed}" for seed in order]
    for width, whole, rows in ((80, True, 12), (120, False, 7)):
        console = console_of(width, 10)
        console.print(watch.page(followed, console, whole))
        heading, *lines = console.file.getvalue().splitlines()
        assert heading.split() == ["run", "round", "accuracy", "left"]
        assert [line.split()[0] for line in lines[:rows]] == [run.name for run in followed[:rows]]
        assert lines[rows:] == ([] if whole else ["and 5 more"])
        accuracy = f"{followed[0].records[-1]['accuracy']:.2%}"
        assert lines[0].split()[1:8] == ["4", "of", "6", accuracy, "6", "s", "last"]  # two rounds of 2.75 s
        assert not whole or "failed at round 5" in lines[8]
        assert max(map(len, lines)) <= width
    console = console_of(60, 10)
    console.print(watch.page(followed, console))
    assert "run-wi…ame-3 " in console.file.getvalue()  # its ends
    followed[0].records[-1]["split"] = "validation"
    console = console_of(120, 10)
    console.print(watch.page(followed, console))
    assert console.file.getvalue().count("validation") == 1  # which is no test result
    two = followed[:2]
    console = console_of(80, 60)
    console.print(watch.page(two, console))
    assert console.file.getvalue().count("╭") == 2  # there is room for panels
    console = console_of(80, 10)
    console.print(watch.page(two[:1], console))
    assert console.file.getvalue().count("╭") == 1  # nothing else is to be shown


def test_watch_says_that_a_run_failed_and_ends(runs, monkeypatch):
    def work(_):
        assert not failed.fault
        failed.fail(Fault(5, "client 3 gave \x1b[2J."))

    path = runs / "avg-0" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    failed = RunFolder(runs / "avg-0")
    monkeypatch.setattr(watch.time, "sleep", work)
    found = invoke("watch", runs / "avg-0")
    assert found.exit_code == 0, found.exception
    said = "failed at round 5 of 6: client 3 gave \N{REPLACEMENT CHARACTER}[2J"
    assert found.output.splitlines()[-1] == f"avg-0: {said}"
    run = watch.Follower(Run(runs / "avg-0"))
    run.look()
    assert run.left is None
    console = console_of(100, 40)
    console.print(watch.view(run, 100))
    assert said in console.file.getvalue()


def test_a_run_that_an_error_ended_after_its_last_record_has_failed_for_whoever_looks(tmp_path):
    """As where the disk had room for a line and none for the model."""
    run = write(tmp_path / "runs" / "avg")
    RunFolder(run).fail(Fault(6, "no room."))
    found = invoke("watch", run)
    assert found.output.splitlines()[0] == "avg: round 6 of 6, failed at round 6 of 6: no room"
    (followed,) = next(watch._looks([run], once=True, every=1))
    console = console_of(100, 40)
    console.print(watch.view(followed, 100))
    assert "failed at round 6 of 6: no room" in console.file.getvalue()
    found = invoke("report", run, "--out", tmp_path / "x.html", "--table", tmp_path / "t.csv")
    (row,) = csv.DictReader((tmp_path / "t.csv").read_text().splitlines())
    assert (row["seeds"], row["failed"], Run(run).finished, followed.finished) == ("0", "1", False, False)


def test_watch_on_a_terminal_ends_with_the_run(runs, monkeypatch):
    path = runs / "avg-0" / "metrics.jsonl"
    whole = path.read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[:3]))
    drawn = io.StringIO()
    monkeypatch.setattr(watch, "out", Console(file=drawn, force_terminal=True, width=80))
    writer = threading.Timer(0.3, path.write_text, [whole])
    writer.start()
    assert invoke("watch", runs / "avg-0", "--every", 0.05).exit_code == 0
    writer.join()
    assert "round 3 of 6" in drawn.getvalue()
    assert "round 6 of 6" in drawn.getvalue()
