"""The gallery shows every figure, and says of it what the figure itself says."""

from pathlib import Path

from tools.gallery import PICTURES, RUNS

from fedrecall import config
from fedrecall.reports.figures import FIGURES

PAGE = Path(__file__).parent.parent.parent / "docs" / "gallery.md"


def test_the_gallery_has_every_figures_title_and_caption():
    page = PAGE.read_text()
    for name in FIGURES:
        figure = FIGURES.cls(name)
        title = (figure.__doc__ or "").strip().splitlines()[0]
        assert f"\n## {name}\n\n{title}\n\n" in page, name
        assert f"\n{figure.caption}\n" in page, name


def test_the_gallery_shows_every_figure_from_runs_that_it_makes():
    assert {FIGURES.parse(p.figure)[0] for p in PICTURES} == set(FIGURES)
    assert {r for p in PICTURES for r in p.runs} == set(RUNS)
    for picture in PICTURES:
        FIGURES.make(picture.figure)
    for settings in RUNS.values():
        config.make(config.nested(settings))
