"""The page in a real browser: nothing complains, charts are there, switches and keys work."""

import csv
import time

import pytest
from tests.reports.browser import Browser, find
from tests.reports.synthetic import write
from tests.reports.test_report import EVIL

from fedrecall.reports.report import build
from fedrecall.reports.runs import open_runs

pytestmark = pytest.mark.skipif(
    find() is None, reason="needs Chromium or Chrome (apt install chromium, or set $CHROME)"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    for seed in (0, 1):
        write(root / "runs" / f"avg-{seed}", seed=seed, names=["cat, or dog", '="x"', "frog"])
        write(root / "runs" / f"ntd-{seed}", algorithm="fedntd", seed=seed, better=1)
    write(root / "runs" / "seq", algorithm="fedseq")
    path = root / "report.html"
    path.write_text(build(open_runs([root / "runs"]), title=EVIL))
    return path


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def browser(chromium, page):
    chromium.size(1280, 900)
    chromium.scheme("light")
    chromium.open(page)
    yield chromium
    assert chromium.complaints == []
    assert chromium.requests == [page.as_uri()]


CENTRE = """(selector => {
  const e = document.querySelector(selector); e.scrollIntoView({block: "center"});
  const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2];
})"""


def test_every_chart_is_drawn_and_has_its_numbers(browser):
    found = browser.run("""[...document.querySelectorAll("figure")].map(f => {
      const box = e => { const b = e.getBoundingClientRect(); return [b.width, b.height]; };
      return {id: f.id, plot: [...f.querySelectorAll(".plot")].map(box),
        lines: [...f.querySelectorAll("svg path.line")].filter(e => !e.closest(".swatch")).map(box),
        pictures: [...f.querySelectorAll(".plot img")].map(e => e.naturalWidth * e.naturalHeight),
        rows: f.querySelectorAll("tbody tr").length, csv: f.querySelectorAll(".csv:not([hidden])").length};
    })""")
    assert len(found) > 25
    for figure in found:
        assert figure["rows"] > 0, figure
        assert figure["csv"] == 1, figure
        visible = figure["id"].startswith("federation") or all(min(b) > 50 for b in figure["plot"])
        assert visible, figure
        assert all(pixels > 1 for pixels in figure["pictures"]), figure
    drawn = {f["id"]: f["lines"] for f in found}
    for name in ("accuracy", "forgetting", "consistency", "in-local-after", "accuracy-seconds"):
        assert len(drawn[name]) == 3
        assert all(width > 50 for width, _ in drawn[name]), name


def test_nothing_is_wider_than_the_page(browser):
    for width in (320, 390, 768, 1280):
        browser.size(width, 800, mobile=width < 500)
        assert browser.run("document.documentElement.scrollWidth") <= width


def test_text_keeps_its_size_on_a_phone(browser):
    browser.size(390, 844, mobile=True)
    sizes = browser.run(
        """[...document.querySelectorAll(".plot span, td, .key")].map(
        e => parseFloat(getComputedStyle(e).fontSize))"""
    )
    assert min(sizes) >= 12


RAGGED = """[...document.querySelectorAll("tbody tr")].filter(row => {
  const seen = r => [...r.cells].filter(c => getComputedStyle(c).display !== "none").length;
  return getComputedStyle(row).display !== "none" && seen(row) !== seen(row.closest("table").rows[0]);
}).length"""
"""Rows that have other cells than there are headings."""


def test_a_switch_hides_an_experiment_everywhere(browser):
    everything = "[...document.querySelectorAll('figure:not(.g1) svg g.g1, tr.g1, td.g1, figure.g1')]"
    shown = f"{everything}.filter(e => getComputedStyle(e).display !== 'none').length"
    before = browser.run(shown)
    assert before > 15
    browser.run("document.getElementById('t1').click()")
    assert browser.run(shown) == 0
    assert browser.run(RAGGED) == 0
    assert browser.run("getComputedStyle(document.querySelector('#accuracy g.g0')).display") != "none"
    browser.run("document.getElementById('t1').click()")
    assert browser.run(shown) == before


def test_hovering_reads_the_values_of_what_is_switched_on(browser):
    x, y = browser.run(f"{CENTRE}('#accuracy .plot')")
    browser.point(x, y)
    browser.until("!document.getElementById('tip').hidden")
    said = browser.run("document.getElementById('tip').innerText")
    assert said.startswith("round ")
    assert all(name in said for name in ("fedavg", "fedntd", "fedseq"))
    number = int(said.split()[1])
    row = browser.run(
        f"[...document.querySelectorAll('#accuracy tbody tr')][{number - 1}].cells[1].textContent"
    )
    assert f"{float(row):g}" in said
    assert browser.run("document.querySelectorAll('#accuracy .dot').length") == 3
    browser.run("document.getElementById('t2').click()")
    browser.point(x + 3, y)
    browser.until("!document.getElementById('tip').innerText.includes('fedseq')")
    browser.point(2, 2)
    browser.until("document.getElementById('tip').hidden")


def test_keys_reach_and_read_a_chart(browser):
    browser.run("document.querySelector('#forgetting .plot').focus()")
    for key, number in (("ArrowRight", 1), ("ArrowRight", 2), ("End", 6), ("ArrowLeft", 5)):
        browser.press(key)
        said = browser.run("document.getElementById('said').textContent")
        assert said.startswith(f"round {number};")
        assert "fedntd" in said
    browser.press("Escape")
    assert browser.run("document.getElementById('tip').hidden")
    browser.run("document.querySelector('#classes-0 .plot').focus()")
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    said = browser.run("document.getElementById('said').textContent")
    cell = browser.run("document.querySelectorAll('#classes-0 tbody tr')[1].cells[2].textContent")
    assert said == f'class ="x", round 2: {cell} %'


def test_tab_goes_through_everything_that_can_be_used(browser):
    reached = set()
    for _ in range(40):
        browser.press("Tab")
        reached.add(browser.run("document.activeElement.id || document.activeElement.className"))
    assert {"skip", "t0", "t1", "t2", "theme", "scroll", "csv"} <= reached
    browser.run("document.getElementById('t0').focus()")
    browser.press(" ")
    assert browser.run("document.getElementById('t0').checked") is False
    browser.run("document.querySelector('#accuracy summary').focus()")
    browser.press("Enter")
    assert browser.run("document.querySelector('#accuracy details').open")


def test_the_theme_follows_the_system_and_the_button(browser):
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(paper)
    browser.scheme("dark")
    dark = browser.run(paper)
    assert light != dark
    for expected in (light, dark, dark):  # light, dark, and auto again, which is dark now
        browser.run("document.getElementById('theme').click()")
        assert browser.run(paper) == expected
    assert browser.run("document.getElementById('theme').textContent") == "Theme: auto"


CONTRAST = """(() => {
  const rgb = c => { const t = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    t.fillStyle = c; t.fillRect(0, 0, 1, 1); return [...t.getImageData(0, 0, 1, 1).data].slice(0, 3); };
  const light = c => rgb(c).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
  const of = (a, b) => {
    const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
  const paper = getComputedStyle(document.body).backgroundColor;
  const probe = document.body.appendChild(document.createElement("i"));
  const found = {};
  for (const name of ["c0", "c1", "c2", "c3", "c4", "c5", "ink", "soft", "link"]) {
    probe.style.color = `var(--${name})`; found[name] = of(getComputedStyle(probe).color, paper);
  }
  probe.remove();
  return found;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_stand_out(browser, scheme):
    browser.scheme(scheme)
    for name, contrast in browser.run(CONTRAST).items():  # WCAG: 3 for lines, 4.5 for text
        assert contrast >= (3 if name.startswith("c") else 4.5), (name, contrast)


def test_a_table_is_saved_as_csv(browser, tmp_path):
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.run("document.querySelector('#classes-0 .csv').click()")
    end = time.monotonic() + 20
    while not (found := list(tmp_path.glob("*.csv"))) and time.monotonic() < end:
        time.sleep(0.05)
    lines = found[0].read_text().splitlines()
    assert found[0].name == "classes-0.csv"
    assert lines[0] == r"class \ round,1,2,3,4,5,6"
    assert lines[1].startswith('"cat, or dog",')
    assert lines[2].startswith('"\'=""x"""')  # a spreadsheet would run it
    assert len(lines) == 4


def test_a_mean_and_its_deviation_are_two_columns_of_the_csv(browser, tmp_path):
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    cells = (
        "[...document.querySelectorAll('#results-table tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    header, *shown = browser.run(cells)
    browser.run("document.querySelector('#results-table td:last-of-type').textContent = '-1,234.5'")
    browser.run("document.querySelector('#results-table .csv').click()")
    end = time.monotonic() + 20
    while not (found := list(tmp_path.glob("*.csv"))) and time.monotonic() < end:
        time.sleep(0.05)
    with open(found[0], newline="") as file:
        heads, *rows = csv.reader(file)
    assert "forgetting, std" in heads
    assert any("±" in cell for row in shown for cell in row)
    assert not any("±" in cell for row in rows for cell in row)
    assert rows[0][-2 if heads[-1].endswith(", std") else -1] == "-1234.5"  # no text, no thousands apart
    for row, cells in zip(rows, shown, strict=True):
        told = dict(zip(heads, row, strict=True))
        for head, cell in zip(header[:-1], cells, strict=False):
            mean, _, std = cell.partition(" ± ")
            assert told[head] == mean
            assert told.get(f"{head}, std", "") == std


def test_without_a_script_all_is_there(browser, page):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        found = browser.call("DOM.getDocument", depth=1)["root"]["nodeId"]
        for selector, least in (("#accuracy path.line", 3), ("#accuracy tbody tr", 6), (".plot.heat img", 6)):
            nodes = browser.call("DOM.querySelectorAll", nodeId=found, selector=selector)["nodeIds"]
            assert len(nodes) >= least
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_print_has_legends_and_no_controls(browser, tmp_path):
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        display = "getComputedStyle(document.querySelector('{}')).display"
        assert browser.run(display.format(".toolbar")) == "none"
        assert browser.run(display.format(".csv")) == "none"
        assert browser.run(display.format("#accuracy .legend")) == "flex"
        browser.pdf(tmp_path / "report.pdf")
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
