"""The page about measures has every figure's runs."""

from tools.docs import MEASURES, with_commands


def test_the_page_lists_every_figures_runs():
    text = MEASURES.read_text()
    assert with_commands(text) == text, "run: make docs"
