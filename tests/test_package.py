"""What importing the package does, and what there is of it where it is installed."""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fedrecall.papers.results import FOLDER, PACKED

ROOT = Path(__file__).parent.parent

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


AROUND = {"backends", "rounds", "experiment", "together", "comparison", "flower", "papers", "cli"}
"""What is built around hooks, data, networks and measures."""
INSIDE = {"algorithms", "data", "models", "training", "measures"}
UNKNOWN = {
    "fields": {"specs", "config", *INSIDE, *AROUND},
    "specs": {"config", *INSIDE, *AROUND},
    "algorithms": {"data", "training", *AROUND},
    "data": {"algorithms", "models", "training", "measures", *AROUND},
    "models": {"algorithms", "training", "measures", *AROUND},
    "measures": AROUND,
    "training": {"measures", *AROUND},
    "backends": AROUND - {"backends"},
    "rounds": AROUND - {"rounds", "backends"},
    "reports": AROUND - {"backends", "rounds"},
}
"""Of a part, those that it does not import."""


def imported(part):
    """The parts of the package that some module of this one imports, anywhere in it."""
    within = ROOT / "src" / "fedrecall"
    found = set()
    for path in [*(within / part).rglob("*.py"), *within.glob(f"{part}.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{name.name}" for name in node.names}
            elif isinstance(node, ast.Import):
                found |= {name.name for name in node.names}
    return {name.split(".")[1] for name in found if name.startswith("fedrecall.")} - {part}


@pytest.mark.parametrize("part", UNKNOWN)
def test_imports_go_one_way(part):
    assert imported(part)
    assert imported(part) & UNKNOWN[part] == set()


def test_reports_are_known_to_who_shows_them_alone():
    parts = {path.stem for path in (ROOT / "src" / "fedrecall").iterdir()} - {"reports"}
    assert {part for part in parts if "reports" in imported(part)} == {"cli", "comparison", "papers"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """What `make wheel` builds."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


def files_in(folder):
    """Their names, without what Python and editors leave."""
    found = (p for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {p.relative_to(ROOT / folder).as_posix() for p in found}


def test_a_wheel_has_every_file_of_the_package_and_what_was_measured(wheel):
    packed = PACKED.relative_to(ROOT / "src").as_posix()
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == files_in("src") | {f"{packed}/{name}" for name in files_in(FOLDER)}


def test_what_a_wheel_installs_works_away_from_the_repository(wheel, tmp_path):
    """The program, the papers' tables, and what was measured of them."""
    site, home = tmp_path / "site", tmp_path / "home"
    home.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    others = {k: v for k, v in os.environ.items() if not k.startswith("FEDRECALL")}

    def said(*words):
        return subprocess.run(
            [sys.executable, *words],
            cwd=home,
            env=others | {"PYTHONPATH": str(site), "HOME": str(home), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert said("-c", "import fedrecall; print(fedrecall.__file__)").startswith(str(site))
    cells = said("-m", "fedrecall", "show", "paper", "fedntd/table1")
    assert "cifar10/shard2 fedavg" in " ".join(cells.split())
    assert list(home.iterdir()) == []
