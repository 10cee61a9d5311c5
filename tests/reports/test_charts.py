"""What a chart draws is what the numbers say, in units worked out by hand."""

import base64
import io
import math
import re

import numpy as np
import pytest
from PIL import Image

from fedrecall.reports import charts
from fedrecall.reports.figures.quantities import QUANTITIES


def pixels(address: str) -> np.ndarray:
    """A picture's colours, [height, width, 3]."""
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)


def test_a_matrix_goes_from_the_darkest_to_the_brightest_colour_between_its_bounds():
    shown = pixels(charts._png(np.array([[0.5, 0.75, 1.0], [0.0, 2.0, np.nan]]), 0.5, 1.0))
    dark, middle, bright = shown[0]
    assert dark.tolist() == [68, 1, 84]  # where viridis begins
    assert bright.tolist() == [253, 231, 37]  # and ends
    assert dark.sum() < middle.sum() < bright.sum()
    assert shown[1, 0].tolist() == dark.tolist()  # beyond the bounds: the nearest of them
    assert shown[1, 1].tolist() == bright.tolist()
    assert shown[1, 2].tolist() == [128, 128, 128]
    assert pixels(charts._png(np.array([[0.3]]), 0.3, 0.3)).shape == (1, 1, 3)


def test_bars_are_as_high_as_their_values_on_the_axis():
    page = str(charts.bars("t", "", [3.0, 7.0], identity="b", x_name="x", y_name="y"))
    top = charts._nice(np.array([0.0, 3.0, 7.0]))[1]
    assert top > 7  # or the axis and the highest bar would be the same
    found = [
        (float(y), float(h)) for y, h in re.findall(r'<rect[^>]* y="([\d.]+)"[^>]* height="([\d.]+)"', page)
    ]
    assert [h for _, h in found] == pytest.approx([1000 * 3 / top, 1000 * 7 / top], abs=0.05)
    assert [y + h for y, h in found] == pytest.approx([1000, 1000], abs=0.1)  # all stand on the axis


def test_a_band_is_one_deviation_to_either_side():
    line = charts.Line(0, "a", np.array([1.0, 2.0]), np.array([0.5, 0.6]), np.array([0.1, 0.2]))
    low, high = charts._band(line)
    assert low.tolist() == pytest.approx([0.4, 0.4])
    assert high.tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.25, "0.25"), (9000, "9000"), (20_000, "20k"), (3_000_000, "3M"), (-2e9, "-2G")],
)
def test_ticks_are_short(value, shown):
    assert charts._number(value) == shown


def test_an_axis_ends_where_values_cannot_go_though_a_band_may():
    line = charts.Line(0, "a", np.array([1.0, 2.0]), np.array([0.2, 0.9]), np.array([0.5, 0.5]))
    for bounds, within in (((0.0, 1.0), True), ((-math.inf, math.inf), False)):
        page = str(charts.lines("t", "", [line], identity="l", bounds=bounds))
        ticks = [float(t) for t in re.findall(r'<span class="y"[^>]*>([-.\d]+)</span>', page)]
        assert len(ticks) > 2
        assert (min(ticks) >= 0 and max(ticks) <= 1) == within


def test_every_quantity_is_its_own():
    class Seen:
        rounds = np.array([1])

        def series(self, key):
            return np.array([{"accuracy": 0.1, "forgetting": 0.2, "consistency": 0.3}[key]])

        def measured(self, name):
            return [(1, {
                "locals": {
                    "local_average_accuracy": 0.4, "in_local": {"local": [0.5]}, "out_local": {"local": [0.6]}
                },
                "personal": {"train": [0.7], "personalised": [0.8], "at_home": [0.85]},
                "divergence": {"weights": [0.9], "distribution": [1.0]},
            }[name])]  # fmt: skip

    found = {name: float(q.of(Seen())[1][0]) for name, q in QUANTITIES.items()}
    assert list(found.values()) == pytest.approx([*(n / 10 for n in range(1, 9)), 0.85, 0.9, 1.0])
    assert list(found) == [
        *("accuracy", "forgetting", "consistency", "local average", "in-local", "out-local"),
        *("local train", "personalised", "at home", "weight divergence", "distribution distance"),
    ]


def marked(row: str, group: int) -> int:
    """How many cells of a row of a table a group's switch hides."""
    return len(re.findall(rf'<t[dh][^>]* class="g{group}"', row))


@pytest.mark.parametrize("own_x", [False, True])
def test_a_switch_hides_whole_columns_of_a_charts_table(own_x):
    x = np.array([1.0, 2.0, 3.0])
    rows = [charts.Line(0, "a", x, x, x, {"seed 0": x}), charts.Line(1, "b", x[:2], x[:2])]
    page = str(charts.lines("t", "", rows, identity="l", own_x=own_x))
    head, *body = page[page.index("<table>") :].split("<tr>")[1:]
    assert len(body) == 3
    for group, columns in ((0, 3 + own_x), (1, 1 + own_x)):
        assert [marked(row, group) for row in (head, *body)] == [columns] * 4


def test_no_two_experiments_of_many_have_one_colour_and_dash_pattern():
    assert len({charts.dash(g) for g in range(charts.DASHES)}) == charts.DASHES == 7
    looks = [(g % charts.COLOURS, charts.dash(g)) for g in range(charts.COLOURS * charts.DASHES)]
    assert len(set(looks)) == 42
