"""Tables in files: what they say is what the numbers are, in signs that their readers take."""

import csv
import re
import statistics

import pytest

from fedrecall.errors import UserError
from fedrecall.reports import tables
from fedrecall.reports.statistics import paired_difference
from fedrecall.reports.tables import Entry

BASE, OTHER = [0.5, 0.6, 0.55], [0.6, 0.64, 0.71]
ENTRIES = [
    Entry("lda:0.1", "fedavg", 9, BASE, [0.1, 0.2, 0.3]),
    Entry("lda:0.1", "my_net.py:A&B", 9, OTHER, [0.0] * 3, "fedavg", paired_difference(BASE, OTHER)),
    Entry("iid", "fedavg", 9, [0.25], [0.125]),
    Entry("iid", "my_net.py:A&B", 9, [], [], "fedavg"),
]


def written(path, entries=ENTRIES):
    tables.check(path)
    tables.write(path, entries)
    return path.read_text()


def test_a_csv_has_every_digit(tmp_path):
    first, second, third, fourth = csv.DictReader(written(tmp_path / "t.csv").splitlines())
    assert float(first["accuracy"]) == pytest.approx(statistics.mean(BASE))
    assert float(first["accuracy_std"]) == pytest.approx(statistics.stdev(BASE))
    assert float(first["forgetting_std"]) == pytest.approx(0.1)
    assert (first["against"], first["difference"]) == ("", "")
    gains = [b - a for a, b in zip(BASE, OTHER, strict=True)]
    assert float(second["difference"]) == pytest.approx(statistics.mean(gains))
    assert (second["against"], second["pairs"], second["algorithm"]) == ("fedavg", "3", "my_net.py:A&B")
    assert (
        min(gains) <= float(second["low"]) < float(second["difference"]) < float(second["high"]) <= max(gains)
    )
    assert (third["seeds"], third["accuracy"], third["accuracy_std"]) == ("1", "0.25", "")
    assert (fourth["seeds"], fourth["accuracy"], fourth["difference"]) == ("0", "", "")


def test_a_latex_table_has_as_many_cells_as_columns_and_no_sign_that_commands(tmp_path):
    lines = [line for line in written(tmp_path / "t.tex").splitlines() if not line.startswith("%")]
    columns = re.fullmatch(r"\\begin\{tabular\}\{(l+r+)\}", lines[0])[1]
    rows = [re.split(r"(?<!\\) & ", line.removesuffix(r" \\")) for line in lines if line.endswith(r"\\")]
    assert [len(row) for row in rows] == [len(columns)] * 5
    assert rows[0] == ["setting", "algorithm", "seeds", r"accuracy (\%)", "forgetting", "accuracy - fedavg"]
    assert rows[1] == ["lda:0.1", "fedavg", "$3$", r"$55.00 \pm 5.00$", r"$0.200 \pm 0.100$", ""]
    assert rows[2][:2] == ["lda:0.1", r"my\_net.py:A\&B"]
    assert re.fullmatch(r"\$\+10\.00 \[\+\d+\.\d\d, \+\d+\.\d\d\]\$", rows[2][5])
    assert rows[3][3:] == ["$25.00$", "$0.125$", ""]
    assert rows[4][2:] == ["$0$", "", "", ""]


def test_a_markdown_table_says_how_it_is_read_and_names_what_differs(tmp_path):
    text = written(tmp_path / "t.md", [*ENTRIES[:1], ENTRIES[1]._replace(setting="a|b", rounds=8)])
    head, ruler, first, second = text.splitlines()[:4]
    assert head == "| setting | algorithm | rounds | seeds | accuracy (%) | forgetting | accuracy - fedavg |"
    assert ruler == "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    assert first == "| lda:0.1 | fedavg | 9 | 3 | 55.00 ± 5.00 | 0.200 ± 0.100 |  |"
    assert second.startswith(r"| a\|b | my_net.py:A&B | 8 | 3 | 65.00 ± 5.57 | 0.000 ± 0.000 | +10.00 [")
    assert tables.READING in text
    plain = written(tmp_path / "t.md", [ENTRIES[0]._replace(setting="")])
    assert plain.splitlines()[0] == "| algorithm | seeds | accuracy (%) | forgetting |"
    two = [ENTRIES[1], ENTRIES[1]._replace(against="fedprox")]
    assert "| algorithm | against | seeds |" in written(tmp_path / "t.md", two).splitlines()[0]


def test_differences_of_forgetting_and_tests_have_columns_where_there_are_any(tmp_path):
    base, other = [0.1 * k for k in range(1, 7)], [0.1 * k + 0.01 * k for k in range(1, 7)]
    gained, forgotten = paired_difference(base, other), paired_difference(other, base)
    held = [Entry("", "a", 9, base, other), Entry("", "b", 9, other, base, "a", gained, forgotten=forgotten)]
    head, _, first, second = (text := written(tmp_path / "t.md", held)).splitlines()[:4]
    assert head.endswith("| forgetting | accuracy - a | p | forgetting - a |")
    assert first.endswith("|  |  |  |")
    assert re.search(r"\| \+3\.50 \[.*\] \| 0\.031 \| -0\.035 \[-0\.\d{3}, -0\.\d{3}\] \|$", second)
    assert tables.TESTED.format(gained.test) in text  # six gains of one sign: 2 of 64
    (row,) = csv.DictReader(written(tmp_path / "t.csv", held[1:]).splitlines())
    assert float(row["forgetting_difference"]) == pytest.approx(-0.035)
    assert (float(row["p"]), float(row["forgetting_p"])) == (2 / 64, 2 / 64)
    assert float(row["forgetting_low"]) < -0.035 < float(row["forgetting_high"])
    few = written(tmp_path / "t.md", [ENTRIES[0], ENTRIES[1]._replace(forgotten=ENTRIES[1].difference)])
    assert "| accuracy - fedavg | forgetting - fedavg |" in few
    assert "uncorrected" not in few


def test_how_clients_fare_has_columns_where_it_was_measured(tmp_path):
    fared = paired_difference(BASE, OTHER)
    held = [
        Entry("", "a", 9, BASE, BASE, clients=BASE, worst_tenth=[0.1] * 3),
        Entry("", "b", 9, BASE, BASE, "a", paired_difference(BASE, BASE), clients=OTHER, fared=fared),
        Entry("", "c", 9, BASE, BASE, "a", paired_difference(BASE, BASE), clients=OTHER[:2]),
    ]
    head, _, first, second, third = written(tmp_path / "t.md", held).splitlines()[:5]
    assert head.endswith("| clients (%) | worst tenth of clients (%) | clients - a |")
    assert first.endswith("| 55.00 ± 5.00 | 10.00 ± 0.00 |  |")
    assert (
        f"| {100 * statistics.mean(OTHER):.2f} ± {100 * statistics.stdev(OTHER):.2f} |  | +10.00 [" in second
    )
    assert third.endswith("| 62.00 ± 2.83 (2) |  |  |")
    rows = list(csv.DictReader(written(tmp_path / "t.csv", held).splitlines()))
    assert [row["clients_difference"] for row in rows] == ["", str(fared.mean), ""]
    assert float(rows[0]["worst_tenth"]) == pytest.approx(0.1)
    assert rows[1]["worst_tenth"] == ""


def test_how_many_seeds_failed_is_said(tmp_path):
    lines = written(tmp_path / "t.md", [ENTRIES[0]._replace(failed=2), ENTRIES[1]]).splitlines()
    assert (
        lines[0] == "| setting | algorithm | seeds | failed | accuracy (%) | forgetting | accuracy - fedavg |"
    )
    assert "| fedavg | 3 | 2 | 55.00 ± 5.00 |" in lines[2]
    rows = csv.DictReader(written(tmp_path / "t.csv", [ENTRIES[0]._replace(failed=2)]).splitlines())
    assert [row["failed"] for row in rows] == ["2"]


def test_a_table_of_unfinished_runs_says_after_which_round_every_number_is(tmp_path):
    done = ENTRIES[0]._replace(setting="", planned=9)
    going = ENTRIES[1]._replace(setting="", rounds=8, planned=9, behind=2, after=8)
    text = written(tmp_path / "t.md", [done, going])
    head, _, first, second = text.splitlines()[:4]
    assert (
        "| rounds | seeds | too far behind | accuracy (%) | forgetting | after round | accuracy - fedavg |"
        in head
    )
    assert "| fedavg | 9 | 3 | 0 | 55.00 ± 5.00 | 0.200 ± 0.100 |  |  |" in first
    assert "| 8/9 | 3 | 2 | 65.00 ± 5.57 | 0.000 ± 0.000 | 8 | +10.00 [" in second
    assert text.endswith(f"{tables.READING}{tables.UNFINISHED}\n")
    alike = written(tmp_path / "t.tex", [done._replace(rounds=8), going])
    assert alike.count("$8/9$") == 2  # though all have as many
    assert f"{tables.READING}{tables.UNFINISHED}" in alike
    assert tables.UNFINISHED not in written(tmp_path / "t.md")
    rows = csv.DictReader(written(tmp_path / "t.csv", [done, going, ENTRIES[1]]).splitlines())
    found = [(r["rounds"], r["planned"], r["behind"], r["after_round"]) for r in rows]
    assert found == [("9", "9", "0", ""), ("8", "9", "2", "8"), ("9", "9", "0", "")]


def test_what_was_held_out_of_training_is_no_test_split(tmp_path):
    held = ENTRIES[0]._replace(split="validation")
    assert "| validation accuracy (%) |" in written(tmp_path / "t.md", [held]).splitlines()[0]
    head, _, first, second = written(tmp_path / "t.md", [held, ENTRIES[0]]).splitlines()[:4]
    assert "| split | seeds | accuracy (%) |" in head
    assert ("| validation |" in first, "| test |" in second) == (True, True)
    rows = csv.DictReader(written(tmp_path / "t.csv", [held, ENTRIES[0]]).splitlines())
    assert [row["split"] for row in rows] == ["validation", "test"]


def test_another_file_is_refused_before_the_work(tmp_path):
    with pytest.raises(UserError, match=r"t.xlsx: name a file that ends in .tex, .csv, .md"):
        tables.check(tmp_path / "t.xlsx")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        tables.check(tmp_path / "file" / "t.csv")
