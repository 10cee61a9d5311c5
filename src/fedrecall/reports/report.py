"""One self-contained HTML page about some runs: it opens from disk, asks no network, prints, and
shows its charts and numbers without a script; the script adds read-outs and CSV files.

Everything on it comes from the run folders. Names, configs and commands are other people's text and
are escaped by `markup`; a content security policy keeps the browser from running or fetching anything else.
"""

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall import files
from fedrecall.contracts import promise
from fedrecall.errors import NothingYet, UserError, nearest
from fedrecall.measures import costs
from fedrecall.measures.accuracy import credibility
from fedrecall.own_modules import named
from fedrecall.records import OF_OWN, how_often, looked_back_on, scalars, sites, used, worst
from fedrecall.reports import charts
from fedrecall.reports.charts import Interval, Line, heat, lines, scroller, table
from fedrecall.reports.markup import Html, tag, text
from fedrecall.reports.runs import (
    HELD,
    Group,
    Run,
    arrange,
    failure,
    failures,
    from_files,
    in_common,
    in_step,
    left_out,
    open_runs,
    partly_tested,
    unfinished,
    validated,
)
from fedrecall.reports.statistics import ENOUGH, WILCOXON, Difference, paired_difference, summary
from fedrecall.reports.tables import Entry

MOST_CELLS = 40_000
"""Of all class-wise heat maps together; rounds are thinned to stay below."""
MOST_SITES = 50
"""Of one experiment that are shown, the worst of them."""
MOST_FEDERATIONS = 5
"""That are drawn; more seeds of one partition show little more."""
SAMPLE_NOTE = "The line is the mean over seeds, the band one standard deviation (n - 1) on either side."


@dataclass(frozen=True)
class Page:
    """What a report is made of."""

    groups: Sequence[Group]
    targets: Sequence[float]
    baseline: str | None = None
    idle: Sequence[Run] = ()
    """Runs without an evaluated round."""

    @property
    def numbered(self) -> Iterator[tuple[int, Group]]:
        """Every group with its number."""
        return iter(enumerate(self.groups))

    @property
    def runs(self) -> list[Run]:
        """Every run that is shown, by group."""
        return [run for group in self.groups for run in group.runs]

    @property
    def astray(self) -> list[tuple[Run, str]]:
        """Runs that would cut the others of their experiment short, and why, in words."""
        return [pair for group in self.groups for pair in group.astray]

    @property
    def named(self) -> list[tuple[int | None, Run]]:
        """Every run with the number of its group, but for those that are in none."""
        shown = [(n, run) for n, group in self.numbered for run in (*group.runs, *group.failed)]
        return [*shown, *((None, run) for run, _ in self.astray), *((None, run) for run in self.idle)]


def report(
    runs: Path | str | Run | Iterable[Path | str | Run],
    out: Path | str = "report.html",
    *,
    title: str | None = None,
    targets: float | Sequence[float] = (),
    baseline: str | None = None,
) -> Path:
    """Put runs on one HTML page, as the command does: ``fedrecall.report("runs")``; returns where it is.

    ``runs``: folders, or what `open_runs` gave. ``targets``: accuracies in (0, 1] to count rounds and seconds
    to. ``baseline``: what the others are compared with.
    """
    given = [runs] if isinstance(runs, (str, Path, Run)) else list(runs)
    opened = [run for run in given if isinstance(run, Run)]
    if len(opened) < len(given) or not given:
        opened = open_runs([run.path if isinstance(run, Run) else run for run in given])
    several = [targets] if isinstance(targets, (int, float)) else targets
    built = build(opened, title=title, targets=several, baseline=baseline)
    out = files.expanded(out)
    with files.placing(out):
        files.write(out, built.encode(errors="replace"))  # a folder's name may be no text
    return out


@from_files
def build(
    runs: Sequence[Run],
    *,
    title: str | None = None,
    targets: Sequence[float] = (),
    baseline: str | None = None,
) -> str:
    """The page. ``targets``: accuracies in (0, 1]; ``baseline``: what the others are compared with."""
    page = _page(runs, targets, baseline)
    title = title or _title(page)
    style, script = _asset("report.css"), _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    # Switching a group off needs no script: the style sheet asks whether its box is ticked.
    switches = "".join(
        f"body:has(#t{n}:not(:checked)) .g{n}{{display:none!important}}" for n, _ in page.numbered
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(style + switches)),
    )
    made = [(name, part) for name, part in _sections(page) if part]
    body = tag(
        "body",
        tag("a", "Skip to the results", href="#results", class_="skip"),
        _header(page, title),
        _toolbar(page, [name for name, _ in made]),
        tag("main", *(part for _, part in made)),
        tag("footer", f"Made by fedrecall {metadata.version('fedrecall')} from the run folders alone."),
        tag("div", class_="tip", id="tip", hidden=True, aria_hidden="true"),
        tag("div", class_="unseen", id="said", aria_live="polite"),
        tag("script", Html(script)),
    )
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def _page(runs: Sequence[Run], targets: Sequence[float] = (), baseline: str | None = None) -> Page:
    """What the runs have to show, by experiment."""
    going = [run for run in runs if _has_rounds(run)]
    if not going:
        raise UserError("none of these runs has an evaluated round yet: there is nothing to report.")
    found = arrange([run for run in runs if run in going or run.fault is not None])
    groups = in_step(group for group in found if any(run in going for run in group.runs))
    called = [name for g in groups for name in (g.algorithm, g.label)]
    if baseline is not None and ":" in baseline and baseline not in called:
        baseline = named(baseline)
    if baseline is not None and baseline not in called:
        raise UserError(f"no run is called {baseline!r}; {nearest(baseline, [g.label for g in groups])}")
    bad = [t for t in targets if not 0 < t <= 1]
    if bad:
        raise UserError(f"target {bad[0]:g}: give a share in (0, 1], such as 0.6 for 60 %.")
    held = [run for group in groups for run in (*group.runs, *group.failed, *(r for r, _ in group.astray))]
    idle = [run for run in runs if run not in (*going, *held)]
    return Page(groups, sorted(targets) or default_targets(groups), baseline, idle)


@from_files
def entries(runs: Sequence[Run], baseline: str | None = None) -> list[Entry]:
    """The experiments as lines of a table, each compared as on the page."""
    page = _page(runs, baseline=baseline)
    against = {id(group): (base, shared) for base, _, group, shared in pairs(page.groups, page.baseline)}
    found = []
    for group in page.groups:
        rounds, accuracy = group.series("accuracy")
        ends = accuracy[:, -1].tolist(), group.series("forgetting")[1][:, -1].tolist()
        lost = [run for run in (*group.runs, *group.failed) if run.fault is not None]
        told = [np.isfinite(values).all() and group.runs[0] not in lost for values in ends]
        own, forgotten = (values if known else [] for values, known in zip(ends, told, strict=True))
        split = "validation" if validated(group.runs) else "test"
        entry = Entry(group.setup, group.algorithm, int(rounds[-1]), own, forgotten, split=split)
        planned = group.runs[0].config["rounds"]
        found.append(entry._replace(failed=len(lost), planned=planned, behind=len(group.astray)))
        if id(group) in against:
            base, shared = against[id(group)]
            name = base.algorithm if base.setup == group.setup else base.label
            after = _common_round(shared)
            gained, forgotten = (_difference(shared, of, after) for of in ("accuracy", "forgetting"))
            if _unlike([run for pair in shared for run in pair]):  # forgetting looked back on other rounds
                forgotten = None
            found[-1] = found[-1]._replace(
                against=name, difference=gained, after=after or None, forgotten=forgotten
            )
    return found


def default_targets(groups: Sequence[Group]) -> list[float]:
    """Round accuracies (steps of 5 or 10 points) that at least one run reached, the highest four; if it
    reached none, the best accuracy rounded down."""
    best = max(float(np.nanmax(run.series("accuracy"))) for group in groups for run in group.runs)
    step = 0.1 if best >= 0.5 else 0.05
    reached = [round(k * step, 2) for k in range(1, math.floor(best / step + 1e-9) + 1)]
    return reached[-4:] or [min(best, math.floor(1e4 * best) / 1e4)]


def _has_rounds(run: Run) -> bool:
    try:
        return bool(run.evaluated)
    except NothingYet:
        return False


def _sections(page: Page) -> Iterator[tuple[str, Html]]:
    yield "Results", _section("Results", "", _results(page))
    yield "Federation", _section("Federation", "Who holds what.", _federations(page))
    whole = "" if partly_tested(page.runs) or validated(page.runs) else "On the whole test split."
    yield "Accuracy", _section("Accuracy", whole, *_accuracy(page))
    yield (
        "Forgetting",
        _section(
            "Forgetting",
            "Mean over classes of the best accuracy that a class once had minus the one it has "
            "(FedNTD, eq. 5): 0 is nothing forgotten.",
            *_forgetting(page),
        ),
    )
    yield "Classes", _section("Classes", "Accuracy of each class, mean over seeds.", *_classes(page))
    yield (
        "Sites",
        _section(
            "Sites",
            "The global model, or clients' own ones, on the test examples of each site, or client.",
            *_sites(page),
        ),
    )
    yield (
        "Local",
        _section(
            "Local",
            "The model that clients receive, what each makes of it, and what the server makes of those. "
            "In-local accuracy weighs classes as the client's own data do, out-local the other way round "
            "(FedNTD, eq. 6 and 7).",
            *_local(page),
        ),
    )
    yield "Targets", _section("Targets", "", _targets(page))
    yield "Cost", _section("Cost", "", *_cost(page))
    yield (
        "Confusion",
        _section(
            "Confusion",
            "Which classes the model takes for which, at the last round that recorded it; "
            "counts are summed over seeds.",
            *_confusion(page),
        ),
    )
    yield "Comparison", _section("Comparison", "", *_comparison(page))
    yield (
        "Measures",
        _section(
            "Measures",
            "Whatever else was recorded; lists over clients are shown by their mean.",
            *_others(page),
        ),
    )
    yield "Runs", _section("Runs", "What made each run.", *_runs(page))


def _section(name: str, note: str, *parts: Html) -> Html:
    parts = tuple(p for p in parts if p)
    if not parts:
        return Html("")
    identity = name.lower()
    return tag(
        "section",
        tag("div", tag("h2", name, id=f"{identity}-title"), tag("p", note) if note else None, class_="head"),
        tag("div", *parts, class_="grid-of-charts"),
        id=identity,
        aria_labelledby=f"{identity}-title",
    )


# The head of the page.


def _title(page: Page) -> str:
    names = list(dict.fromkeys(g.algorithm.split()[0] for g in page.groups))
    data = list(dict.fromkeys(run.data_name for run in page.runs))
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return f"{shown} on {' and '.join(data)}"


def _header(page: Page, title: str) -> Html:
    said = f"{_count(len(page.groups), 'experiment')}, {_count(len(page.runs), 'run')}."
    warnings = [("Failed: ", f"{w}.") for w in failures(run for _, run in page.named)]
    short = "the curves and numbers of its experiment end where it does, and so do comparisons with it"
    warnings += [("Not finished: ", f"{w}: {short}.") for w in unfinished(page.runs)]
    warnings += [
        ("Not finished: ", f"{run.name} has no evaluated round yet and is left out.")
        for run in page.idle
        if run.fault is None
    ]
    warnings += [("Left out: ", f"{run.name} {why}.") for run, why in page.astray]
    if often := _unlike(page.runs):
        looks = "forgetting, consistency and the best round look back on other rounds, and do not compare"
        warnings.append(("Not alike: ", f"runs were evaluated {' or '.join(often)}: {looks}."))
    warnings += [("Validation: ", f"{w}.") for w in validated(page.runs)]
    warnings += [("Tested in part: ", f"{w}.") for w in partly_tested(page.runs)]
    warnings += [("Twice: ", f"{w}.") for w in left_out(page.groups)]
    warnings += [("Not compared: ", f"{w}.") for w in not_paired(page.groups, page.baseline)]
    return tag(
        "header",
        tag("h1", title),
        tag("p", said),
        *(tag("p", tag("strong", head), w, class_="warning") for head, w in warnings),
    )


def _unlike(runs: Sequence[Run]) -> list[str]:
    """How often runs were evaluated, in words, if some look back on other rounds than others do."""
    looked = {run.path: looked_back_on(run.records) for run in runs}
    longest = looked[max(runs, key=lambda run: len(run.records)).path]
    alike = all(looked[run.path] == [r for r in longest if r < len(run.records)] for run in runs)
    return [] if alike else list(dict.fromkeys(map(how_often, looked.values())))


def _toolbar(page: Page, names: Sequence[str]) -> Html:
    toggles = [
        tag(
            "label",
            tag("input", type="checkbox", id=f"t{n}", checked=True, autocomplete="off"),
            charts.swatch(n),
            tag("span", group.label),
            class_="toggle",
        )
        for n, group in page.numbered
    ]
    return tag(
        "nav",
        tag("div", *(tag("a", n, href=f"#{n.lower()}") for n in names), class_="links"),
        tag("fieldset", tag("legend", "Show", class_="unseen"), *toggles, class_="toggles"),
        tag("button", "Theme: auto", type="button", id="theme", hidden=True),
        class_="toolbar",
        aria_label="Sections and experiments",
    )


# Sections, in the order of the page.


def _results(page: Page) -> Html:
    seeds = max(len(g.runs) for g in page.groups)
    columns = ["experiment", "seeds", "rounds", "accuracy, last round (%)", "accuracy, best round (%)"]
    columns += ["forgetting", "loss", "training (s)"]
    private = any(map(promise, (end for group in page.groups for end in _ends(group))))
    if private:
        columns.append("epsilon")
    body = []
    for n, group in page.numbered:
        rounds, accuracy = group.series("accuracy")
        _, forgetting = group.series("forgetting")
        _, loss = group.series("loss")
        seconds = [sum(r["seconds"]["train"] for r in records) for records in _played(group)]
        cells = [
            _seeds(group),
            int(rounds[-1]),
            _summary(accuracy[:, -1], 100),
            _summary(accuracy.max(1), 100),
            _summary(forgetting[:, -1], digits=4),
            _summary(loss[:, -1], digits=4),
            _summary(seconds, digits=1),
        ]
        if private:
            cells.append(_promise(_ends(group)))
        name = tag("th", charts.swatch(n), group.label, scope="row", class_="name")
        body.append([name, *(tag("td", c) for c in cells)])
    note = "One seed each: no spread."
    if seeds > 1:
        note = f"Mean ± standard deviation (n - 1) over up to {seeds} seeds."
    in_hand = "held-out examples" if validated(page.runs) else "test split"
    note += f" The last round is the headline; the best one is chosen with the {in_hand} in hand."
    if private:
        note += " Epsilon is what each client was promised, at the delta beside it; none: nothing."
    note += _of_what_travels(page.runs)
    return _numbers("Last round", note, "results-table", columns, body)


def _seeds(group: Group) -> str:
    """How many there are, and how many are shown where some of them failed."""
    shown, seeds = len(group.runs), len(group.runs) + len(group.failed)
    failed = sum(run.fault is not None for run in (*group.runs, *group.failed))
    said = f"{shown} of {seeds}" if shown < seeds else str(seeds)
    share = f"{failed} " if failed < seeds else "all " if seeds > 1 else ""
    return f"{said}, {share}failed" if failed else said


def _played(group: Group) -> list[list[dict[str, Any]]]:
    """Each run's records up to the last round that all of them evaluated."""
    last = group.series("accuracy")[0][-1]
    return [[r for r in run.records if r["round"] <= last] for run in group.runs]


def _ends(group: Group) -> list[dict[str, Any]]:
    """Each run's record of the last round that all of them evaluated."""
    return [records[-1] for records in _played(group)]


def _of_what_travels(runs: Iterable[Run]) -> str:
    """A sentence on what is evaluated, for the algorithms whose clients may have other models than that."""
    names = list(dict.fromkeys(run.algorithm for run in runs if run.may_keep_layers))
    if not names:
        return ""
    return (
        f" Clients of {' and '.join(names)} may keep layers of their own: accuracy, loss and forgetting are "
        "of what travels, which such clients do not have; of their models: --measure fairness,personal, or "
        "in a federation whose nodes evaluate what sites have."
    )


def _promise(ends: Sequence[dict[str, Any]]) -> str:
    """The epsilon of runs' last rounds; those of other deltas are no numbers to take a mean of."""
    spent = set(filter(None, map(promise, ends)))
    if not spent:
        return "none"
    deltas = sorted({delta for _, delta in spent})
    return ", ".join(f"{max(e for e, d in spent if d == delta):.2f} at {delta:g}" for delta in deltas)


def _federations(page: Page) -> Html:
    """Every distinct federation, one of each setup first: the first one open, the others folded."""
    users: dict[str, list[Run]] = {}
    for run in page.runs:
        try:
            found = json.dumps([run.partition["counts"], run.class_names])
        except UserError:  # a folder without a partition file
            continue
        users.setdefault(found, []).append(run)
    seen: dict[str, int] = {}
    order = []
    for same in users.values():
        c = same[0].config
        setup = f"{same[0].data_name}, {same[0].partition_name}, {c['clients']} clients"
        seen[setup] = seen.get(setup, 0) + 1
        order.append((seen[setup], f"{setup}: {', '.join(run.name for run in same)}", same[0]))
    order.sort(key=lambda entry: entry[0])
    parts = []
    for n, (_, head, run) in enumerate(order[:MOST_FEDERATIONS]):
        drawn = tag("div", *_federation(run, f"federation-{n}"), class_="grid-of-charts")
        if n == 0:
            parts.append(tag("div", tag("p", head), drawn, class_="wide"))
        else:
            parts.append(tag("details", tag("summary", head), drawn, class_="wide more"))
    if rest := [head for _, head, _ in order[MOST_FEDERATIONS:]]:
        parts.append(tag("p", "Not drawn: ", "; ".join(rest), ".", class_="wide"))
    return text(*parts)


def _federation(run: Run, identity: str) -> list[Html]:
    counts, names = run.counts, run.class_names
    sizes = counts.sum(1)
    auxiliary = int(run.partition["auxiliary"])
    note = f"{int(sizes.sum()):,} examples; a client holds {sizes.min():,} to {sizes.max():,}, "
    note += f"the median is {np.median(sizes):,.0f}."
    if auxiliary:
        note += f" The server holds {auxiliary:,} more for itself."
    return [
        heat(
            "Examples of each class at each client",
            "A column a client, a row a class.",
            counts.T.astype(float),
            identity=f"{identity}-partition",
            rows=names,
            columns=range(len(counts)),
            row_name="class",
            column_name="client",
            high=float(max(counts.max(), 1)),
            digits=0,
        ),
        charts.bars(
            "Examples at each client",
            note,
            sizes.tolist(),
            identity=f"{identity}-sizes",
            x_name="client",
            y_name="examples",
        ),
    ]


def _accuracy(page: Page) -> list[Html]:
    seeds = SAMPLE_NOTE if any(len(g.runs) > 1 for g in page.groups) else ""
    found = [
        _curves(
            page,
            "accuracy",
            "Accuracy per round (%)",
            seeds,
            100,
            bounds=(0, 100),
            unit=" %",
            digits=2,
            seeds=True,
        ),
        _curves(page, "loss", "Test loss per round", "Mean cross-entropy.", bounds=(0, math.inf)),
    ]
    timed = []
    for n, group in page.numbered:
        rounds, accuracy = group.series("accuracy")
        at = np.array([_elapsed(run, rounds) for run in group.runs])
        places = charts.thin(len(rounds))
        timed.append(Line(n, group.label, at.mean(0)[places], 100 * accuracy.mean(0)[places]))
    found.append(
        lines(
            "Accuracy after seconds of local training (%)",
            "What a federation waits for: the longest chain of each round. Means over seeds; as fast as "
            "the machines that ran it, so compare only runs of one machine.",
            timed,
            identity="accuracy-seconds",
            x_name="seconds",
            own_x=True,
            bounds=(0, 100),
            unit=" %",
        )
    )
    return found


def _forgetting(page: Page) -> list[Html]:
    return [
        _curves(page, "forgetting", "Forgetting per round", "", seeds=True),
        _curves(
            page,
            "consistency",
            "Consistency per round",
            "Cosine similarity of the class-wise accuracies of consecutive evaluations: 1 is no swing.",
            bounds=(0, 1),
        ),
    ]


def _classes(page: Page) -> Iterable[Html]:
    cells = sum(g.runs[0].series("class_accuracy").size for g in page.groups)
    for n, group in page.numbered:
        rounds, values = group.series("class_accuracy")
        places = charts.thin(len(rounds), max(10, len(rounds) * MOST_CELLS // max(cells, MOST_CELLS)))
        thinned = "" if len(places) == len(rounds) else f"{len(places)} of {len(rounds)} evaluated rounds."
        yield heat(
            f"{group.label}: accuracy of each class (%)",
            thinned,
            100 * values.mean(0)[places].T,
            identity=f"classes-{n}",
            rows=_class_names(group, values.shape[-1]),
            columns=rounds[places].tolist(),
            row_name="class",
            column_name="round",
            unit=" %",
            group=n,
        )


def _sites(page: Page) -> Iterable[Html]:
    yield _measured(
        page, "sites", lambda found: worst(found)[1], "Accuracy at the worst site (%)", "worst-site"
    )
    for n, group in page.numbered:
        of_runs = [dict(found) for run in group.runs if (found := _recorded(run, "sites"))]
        if of_runs:
            names = _worst_first([found[max(found)] for found in of_runs])
            yield _site_table(n, group, of_runs, names)
            yield _site_map(n, group, of_runs, names)


def _worst_first(last: Sequence[dict[str, Any]]) -> list[str]:
    """The sites' names, by their mean accuracy in these records, last those where no client is."""
    held: dict[str, list[float | None]] = {}
    for found in last:
        for name, accuracy in zip(found["sites"], used(found), strict=True):
            held.setdefault(name, []).append(accuracy)
    return sorted(held, key=lambda name: np.nan_to_num(_mean(held[name]), nan=math.inf))


def _site_table(n: int, group: Group, of_runs: Sequence[dict[int, Any]], names: Sequence[str]) -> Html:
    last = [found[max(found)] for found in of_runs]
    own = all(OF_OWN in found for found in last)
    body = []
    for name in names[:MOST_SITES]:
        parts = [
            [found[part][found["sites"].index(name)] for found in last if name in found["sites"]]
            for part in ("examples", "accuracy", "balanced_accuracy", *([OF_OWN] if own else []))
        ]
        cells = [_summary(parts[0], digits=0)]
        cells += [_summary(values, 100) if None not in values else "" for values in parts[1:]]
        body.append([tag("th", name, scope="row", class_="name"), *(tag("td", c) for c in cells)])
    rounds = " and ".join(map(str, sorted({max(found) for found in of_runs})))
    some = f"the worst {MOST_SITES} of {len(names)} sites" if len(names) > MOST_SITES else "the worst"
    note = (
        f"Round {rounds}, {_count(len(last), 'seed')}, {some} first. "
        "Balanced accuracy is the mean of the class accuracies of the classes that a site has."
    )
    columns = ["site", "test examples", "accuracy (%)", "balanced accuracy (%)"]
    columns += ["of its client's own model (%)"] if own else []
    return _numbers(f"{group.label}: each site", note, f"sites-table-{n}", columns, body, group=n)


def _site_map(n: int, group: Group, of_runs: Sequence[dict[int, Any]], names: Sequence[str]) -> Html:
    """Accuracy of each site along rounds, mean over seeds; grey where a site was not tested."""
    of_runs, rounds = _shared(of_runs)
    shown = names[:MOST_SITES]
    rounds = [rounds[i] for i in charts.thin(len(rounds), MOST_CELLS // 4 // len(shown))]
    note = "The worst of the last round first; grey where a site was not tested."
    if any(used(found) != found["accuracy"] for of_run in of_runs for found in of_run.values()):
        note += " Of the model that each site's client has; grey where there is none, too."
    values = np.full((len(of_runs), len(shown), len(rounds)), np.nan)
    for seed, found in enumerate(of_runs):
        for t, number in enumerate(rounds):
            known = dict(zip(found[number]["sites"], used(found[number]), strict=True))
            values[seed, :, t] = [known.get(name, math.nan) for name in shown]
    return heat(
        f"{group.label}: accuracy at each site (%)",
        " ".join(filter(None, [note, _of_how_many(group, len(of_runs))])),
        100 * values.mean(0),
        identity=f"sites-{n}",
        rows=shown,
        columns=rounds,
        row_name="site",
        column_name="round",
        unit=" %",
        group=n,
    )


def _local(page: Page) -> Iterable[Html]:
    stages = {
        "before": "of the model received",
        "local": "of the local models",
        "after": "of the aggregate",
    }
    for where, words in (("in_local", "In-local"), ("out_local", "Out-local")):
        for stage, whose in stages.items():
            yield _measured(
                page,
                "locals",
                lambda found, w=where, s=stage: _mean(found[w][s]),
                f"{words} accuracy {whose} (%)",
                f"{where.replace('_', '-')}-{stage}",
            )
    yield _measured(
        page,
        "locals",
        lambda found: found["local_average_accuracy"],
        "Local average accuracy (%)",
        "local-average",
        "Mean accuracy of the round's local models on the whole test split.",
    )


def _targets(page: Page) -> Html:
    body = []
    for n, group in page.numbered:
        cells = []
        for target in page.targets:
            reached = [costs.rounds_to(run.records, target) for run in group.runs]
            seconds = [costs.seconds_to(run.records, target) for run in group.runs]
            rounds = [float(r) for r in reached if r is not None]
            share = (
                f" ({len(rounds)} of {len(reached)} seeds)" if len(rounds) < len(reached) and rounds else ""
            )
            cells.append(
                summary(rounds).text(digits=0 if len(rounds) == 1 else 1) + share if rounds else "not reached"
            )
            cells.append(summary([s for s in seconds if s is not None]).text() if rounds else "not reached")
        name = tag("th", charts.swatch(n), group.label, scope="row", class_="name")
        body.append([name, *(tag("td", c) for c in cells)])
    columns = ["experiment"]
    for t in page.targets:
        columns += [f"{100 * t:g} %: rounds", f"{100 * t:g} %: seconds"]
    note = (
        "The first evaluated round with at least this accuracy, and the seconds of local training up to its "
        "end on the longest chain of each round. Mean ± standard deviation over the seeds that reached it."
    )
    return _numbers("Rounds and seconds to a target accuracy", note, "targets-table", columns, body)


def _cost(page: Page) -> list[Html]:
    measures = sorted({m for run in page.runs for r in run.records for m in r["seconds"].get("measures", {})})
    sent, spent = [], []
    for n, group in page.numbered:
        played = _played(group)
        found = [costs.cost(*known) for known in zip(played, map(_auxiliary, group.runs), strict=True)]
        name = tag("th", charts.swatch(n), group.label, scope="row", class_="name")
        cells = [
            _bytes([getattr(c, part) for c in found]) for part in ("down", "up", "total_bytes", "memory")
        ]
        cells.append(f"{max(c.auxiliary for c in found):,}")
        sent.append([name, *(tag("td", c) for c in cells)])
        times = [[getattr(c, part) for c in found] for part in ("waiting", "working", "train", "evaluate")]
        times += [[c.measures.get(m, 0.0) for c in found] for m in measures]
        spent.append([name, tag("td", len(played[0])), *(tag("td", _summary(t)) for t in times)])
    columns = ["down, a visit", "up, a visit", "sent in all", "memory of a client", "auxiliary examples"]
    clocks = [
        "rounds",
        "longest chains",
        "all clients",
        "rounds here",
        "evaluation",
        *(f"measure {m}" for m in measures),
    ]
    return [
        _numbers(
            "Bytes",
            "Mean over runs. A visit is one client in one round; memory is what a client keeps between "
            "visits; the server holds the auxiliary examples. In all: with what a federation's nodes "
            "are sent to evaluate.",
            "cost-bytes",
            ["experiment", *columns],
            sent,
        ),
        _numbers(
            "Seconds in all",
            "Of the rounds that all of an experiment's runs have. Longest chains: the local training that a "
            "federation waits for. All clients: local training summed. Rounds here: playing them on the "
            "machine that did.",
            "cost-seconds",
            ["experiment", *clocks],
            spent,
        ),
    ]


def _confusion(page: Page) -> Iterable[Html]:
    trusts = []
    for n, group in page.numbered:
        last = [found[-1] for run in group.runs if (found := _recorded(run, "confusion"))]
        if not last:
            continue
        rounds = sorted({number for number, _ in last})
        when = f"Round {' and '.join(map(str, rounds))}, {_count(len(last), 'seed')}; a row a true class."
        counts = np.sum([found["global"] for _, found in last], axis=0)
        names = _class_names(group, len(counts))
        look: dict[str, Any] = {"rows": names, "columns": names, "row_name": "true"}
        look["column_name"] = "predicted"
        yield heat(
            f"{group.label}: confusion on the test split",
            f"{when} Colours are shares of the row (%), the table has counts.",
            100 * credibility(counts),
            identity=f"confusion-{n}",
            digits=0,
            group=n,
            numbers=counts,
            square=True,
            **look,
        )
        trust = [found["credibility"] for _, found in last if found.get("credibility") is not None]
        if trust:
            trusts.append(
                heat(
                    f"{group.label}: credibility (%)",
                    f"{when} On the server's own examples, as FedSSD sends it; mean over seeds.",
                    100 * np.mean(trust, axis=0),
                    identity=f"credibility-{n}",
                    unit=" %",
                    group=n,
                    square=True,
                    **look,
                )
            )
    yield from trusts


def _comparison(page: Page) -> list[Html]:
    found = list(pairs(page.groups, page.baseline))
    if not found:
        return []
    drawn: list[Html] = []
    for key, name, scale, digits, better in (
        ("accuracy", "Accuracy of the last round, percentage points", 100.0, 2, "higher"),
        ("forgetting", "Forgetting after the last round", 1.0, 4, "lower"),
    ):
        rows, body = [], []
        for base, n, group, shared in found:
            common = _common_round(shared)
            d = _difference(shared, key, common)
            if d is None:
                continue
            label = f"{group.label} − {base.label}"
            if common is not None:
                label += f", after round {common}"
            ends = [None if v is None else v * scale for v in (d.low, d.high)]
            rows.append(Interval(n, label, d.mean * scale, ends[0], ends[1]))
            body.append(_difference_row(label, d, scale, digits))
        if not rows:
            continue
        confidence = "95 % interval"
        columns = ["difference", "pairs", "mean", confidence, "higher / equal / lower", "p", "test"]
        note = (
            f"Mean of paired differences (same seed); {better} is better. The whisker is a {confidence} "
            "(percentile bootstrap of the mean). "
        )
        if any(_common_round(shared) is not None for *_, shared in found):
            note += (
                "Where runs are not finished, or nobody tested their last round, it is after the last round "
                "that all of them evaluated."
            )
        drawn.append(
            charts.intervals(
                name,
                note,
                rows,
                identity=f"comparison-{key}",
                x_name="difference",
                numbers=table([[tag("th", c, scope="col") for c in columns]], body, [r.group for r in rows]),
            )
        )
    caution = tag(
        "p",
        "With few seeds bootstrap intervals are too narrow: of 2 pairs they are just the two values, of 3 a "
        "nominal 95 % interval holds the true mean in about 74 % of cases, of 5 in 87 %, of 10 in 92 %. A "
        f"p-value is given from {ENOUGH} pairs on, by the test named beside it ({WILCOXON}), and is not "
        "corrected for how many comparisons there are.",
        class_="wide",
    )
    return [*drawn, caution] if drawn else []


def pairs(
    groups: Sequence[Group], baseline: str | None
) -> Iterator[tuple[Group, int, Group, list[tuple[Run, Run]]]]:
    """(baseline, number, group, their runs of one seed each) for whatever can be compared.

    Groups are compared with the first one of their setup; if no setup has two, with the first one of
    their data set; with a ``baseline``, with that one. One whose clients hold other examples is passed
    over, as `not_paired` says.
    """
    for n, (group, bases) in enumerate(zip(groups, _bases(groups, baseline), strict=True)):
        for base in bases:
            alike, unlike = _of_one_seed(base, group)
            if alike:
                yield base, n, group, alike
            if alike or not unlike:
                break


def not_paired(groups: Sequence[Group], baseline: str | None) -> list[str]:
    """A sentence for every experiment that others are not compared with for what their clients hold."""
    found: dict[str, list[str]] = {}
    for group, bases in zip(groups, _bases(groups, baseline), strict=True):
        for base in bases[:1]:
            alike, unlike = _of_one_seed(base, group)
            some = f" of seed {' and '.join(str(run.seed) for _, run in unlike)}" if alike else ""
            if unlike:
                found.setdefault(base.label, []).append(group.label + some)
    return [f"{', '.join(own)} with {base}: their clients hold other examples" for base, own in found.items()]


def _bases(groups: Sequence[Group], baseline: str | None) -> Iterator[list[Group]]:
    """For every group those that it may be compared with, the first one first; none after itself."""
    same = [json.dumps({k: v for k, v in g.settings.items() if k != HELD}) for g in groups]
    if len(set(same)) == len(groups):
        same = [json.dumps(g.runs[0].complete["dataset"]) for g in groups]
    named = [g for g in groups if baseline in (g.algorithm, g.label)]
    for group, own in zip(groups, same, strict=True):
        mates = [g for g, s in zip(groups, same, strict=True) if s == own]
        if baseline is not None:
            mates = [g for g in mates if g in named] or named
        before = mates[: mates.index(group)] if group in mates else mates
        before = [g for g in before if any(run.fault is None for run in g.runs)]
        yield [g for g in before if _of_one_data_set(g.runs[0], group.runs[0])]


def _of_one_seed(base: Group, group: Group) -> tuple[list[tuple[Run, Run]], list[tuple[Run, Run]]]:
    """Their runs of one seed each: those whose clients hold the same examples, and the others.

    Where a run does not say what clients hold, they are taken for the same. One that failed has no end to
    compare.
    """
    theirs = {run.seeds: run for run in base.runs if run.fault is None}
    both = [(theirs[run.seeds], run) for run in group.runs if run.seeds in theirs and run.fault is None]
    unlike = [pair for pair in both if len({run.dealt for run in pair} - {None}) > 1]
    return [pair for pair in both if pair not in unlike], unlike


def _of_one_data_set(one: Run, other: Run) -> bool:
    known = [run.noted["data"] for run in (one, other) if "data" in run.noted]
    return one.complete["dataset"] == other.complete["dataset"] and len(set(known)) < 2


def _others(page: Page) -> Iterable[Html]:
    shown = {"locals", "confusion", "sites"}
    names = sorted({m for run in page.runs for r in run.records for m in r.get("measures", {})} - shown)
    for measure in names:
        keys: dict[str, None] = {}
        for run in page.runs:
            for _, found in _recorded(run, measure):
                keys |= dict.fromkeys(scalars({"measures": {measure: found}}))
        for key in keys:
            yield _measured(
                page,
                measure,
                lambda found, m=measure, k=key: scalars({"measures": {m: found}}).get(k, math.nan),
                key.removeprefix("measures/").replace("/", ": ", 1).replace("_", " "),
                "measure-" + "".join(c if c.isalnum() else "-" for c in key),
                scale=1.0,
                digits=4,
            )


def _runs(page: Page) -> Iterable[Html]:
    runs = page.named
    shared = {
        k: v for k, v in runs[0][1].config.items() if all(run.config.get(k) == v for _, run in runs[1:])
    }
    if len(runs) > 1:
        yield tag(
            "details",
            tag("summary", "What the configs of all these runs share"),
            tag("pre", json.dumps(shared, indent=2, ensure_ascii=False), tabindex=0),
            class_="wide",
        )
    yield tag("div", *(_provenance(run, n) for n, run in runs), class_="wide")


def _provenance(run: Run, n: int | None) -> Html:
    starts = []
    for made in run.made:
        facts = [
            ("command", tag("code", made.get("command", "unknown"))),
            ("started", made.get("started", "unknown")),
            ("machine", _machine(made)),
            ("versions", ", ".join(f"{k} {v}" for k, v in _mapping(made.get("versions")).items())),
            ("git revision", made.get("git") or "none"),
        ]
        starts.append(tag("dl", *(text(tag("dt", k), tag("dd", v)) for k, v in facts)))
    return tag(
        "details",
        tag(
            "summary",
            charts.swatch(n) if n is not None else None,
            tag("strong", run.name),
            f" · {_state(run)}",
            tag("code", run.made[0].get("command", "")) if run.made else None,
        ),
        *starts,
        tag("h3", "Config"),
        tag("pre", json.dumps(run.config, indent=2, ensure_ascii=False), tabindex=0),
        class_="run" if n is None else f"run g{n}",
    )


def _state(run: Run) -> str:
    """How far it is, in words."""
    if run.fault is not None:
        return failure(run.fault, run.config)
    try:
        last = run.records[-1]["round"]
    except NothingYet:
        return "not begun"
    if run.finished:
        return f"finished, {_count(len(run.records), 'round')}"
    return f"not finished: at round {last} of {run.config['rounds']}"


# What several sections need.


def _curves(
    page: Page,
    key: str,
    title: str,
    note: str,
    scale: float = 1.0,
    *,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    unit: str = "",
    digits: int = 4,
    seeds: bool = False,
) -> Html:
    """A recorded number along rounds."""
    rows = []
    for n, group in page.numbered:
        rounds, values = group.series(key)
        rows.append(_line(n, group, rounds, values * scale, seeds))
    return lines(title, note, rows, identity=key, bounds=bounds, unit=unit, digits=digits)


def _line(n: int, group: Group, rounds: np.ndarray, values: np.ndarray, seeds: bool) -> Line:
    places = charts.thin(len(rounds))
    values = values[:, places]
    many = len(values) > 1
    return Line(
        n,
        group.label,
        rounds[places],
        values.mean(0),
        values.std(0, ddof=1) if many else None,
        dict(zip(group.names, values, strict=True)) if seeds and many else {},
    )


def _measured(
    page: Page,
    measure: str,
    read: Any,
    title: str,
    identity: str,
    note: str = "",
    scale: float = 100.0,
    digits: int = 2,
) -> Html:
    """A measure's number along the rounds that all seeds of a group recorded, of those that did at all."""
    rows, notes = [], [note]
    for n, group in page.numbered:
        told = [{n: read(f) for n, f in _recorded(run, measure)} for run in group.runs]
        found, rounds = _shared([f for f in told if not np.isnan(np.array([*f.values()], float)).all()])
        if rounds:
            values = np.array([[f[r] for r in rounds] for f in found], dtype=float)
            rows.append(_line(n, group, np.array(rounds), values * scale, False))
            notes.append(_of_how_many(group, len(found)))
    share = scale == 100.0
    return lines(
        title,
        " ".join(filter(None, notes)),
        rows,
        identity=identity,
        bounds=(0, 100) if share else (-math.inf, math.inf),
        unit=" %" if share else "",
        digits=digits,
    )


def _shared(found: Sequence[dict[int, Any]]) -> tuple[list[dict[int, Any]], list[int]]:
    """What some seeds recorded, by round, without those that have no round in common; and these rounds."""
    kept = [found[i] for i in in_common(found)]
    return kept, sorted(set.intersection(*map(set, kept))) if kept else []


def _of_how_many(group: Group, seeds: int) -> str:
    """A sentence where it is not all of the group's."""
    return f"{group.label}: {seeds} of {len(group.runs)} seeds." if seeds < len(group.runs) else ""


def _recorded(run: Run, measure: str) -> list[tuple[int, dict[str, Any]]]:
    if measure == "sites":  # which a federation records without being asked
        return [(r["round"], found) for r in run.records if (found := sites(r)) is not None]
    return [(r["round"], r["measures"][measure]) for r in run.records if measure in r.get("measures", {})]


def _numbers(
    title: str,
    note: str,
    identity: str,
    columns: Sequence[str],
    body: Sequence[Sequence[Html]],
    group: int | None = None,
) -> Html:
    """A section whose numbers are the chart: open, one row a group that its switch hides, or all of one."""
    head = tag("tr", *(tag("th", c, scope="col") for c in columns))
    rows = [tag("tr", *cells, class_=f"g{n if group is None else group}") for n, cells in enumerate(body)]
    shown = tag("table", tag("thead", head), tag("tbody", *rows), class_="summary")
    return tag(
        "figure",
        tag("figcaption", tag("h3", title), tag("p", note)),
        scroller(shown),
        charts.download(identity),
        class_="chart wide" if group is None else f"chart wide g{group}",
        id=identity,
    )


def _common_round(shared: Sequence[tuple[Run, Run]]) -> int | None:
    """None if all of these runs are finished and tested to the end: each is taken after its own last round.

    Otherwise the last round that all of them evaluated; 0 if there is none.
    """
    runs = [run for pair in shared for run in pair]
    if all(run.finished and "accuracy" in run.records[-1] for run in runs):
        return None
    return int(max(set.intersection(*(set(run.rounds.tolist()) for run in runs)), default=0))


def _difference(shared: Sequence[tuple[Run, Run]], key: str, after: int | None) -> Difference | None:
    """The group's values minus the baseline's, after this round of every run, None: after its last."""
    if after == 0:
        return None
    a, b = (
        [float(run.series(key)[-1 if after is None else run.rounds == after].item()) for run in side]
        for side in zip(*shared, strict=True)
    )
    if not np.isfinite([*a, *b]).all():
        return None
    return paired_difference(a, b)


def _difference_row(label: str, d: Difference, scale: float, digits: int) -> list[Html]:
    interval = "one pair: none"
    if d.low is not None and d.high is not None:
        interval = f"[{d.low * scale:+.{digits}f}, {d.high * scale:+.{digits}f}]"
    cells = [
        d.n,
        f"{d.mean * scale:+.{digits}f}",
        interval,
        f"{d.wins} / {d.ties} / {d.n - d.wins - d.ties}",
        "" if d.p is None else f"{d.p:.3g}",
        d.test or f"none: needs {ENOUGH} pairs",
    ]
    return [tag("th", label, scope="row"), *(tag("td", c) for c in cells)]


def _elapsed(run: Run, rounds: np.ndarray) -> np.ndarray:
    at = dict(zip([r["round"] for r in run.records], costs.elapsed(run.records), strict=True))
    return np.array([at[r] for r in rounds.tolist()])


def _summary(values: Iterable[float], scale: float = 1.0, digits: int = 2) -> str:
    found = [float(v) for v in values]
    return summary(found).text(scale, digits) if np.isfinite(found).all() else "not a number"


def _bytes(values: Sequence[float]) -> str:
    return f"{np.mean(values):,.0f}"


def _mean(values: Sequence[float | None]) -> float:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else math.nan


def _class_names(group: Group, count: int) -> list[str]:
    try:
        names = group.runs[0].class_names
    except UserError:
        names = []
    return names if len(names) == count else [str(c) for c in range(count)]


def _auxiliary(run: Run) -> int:
    try:
        return int(run.partition["auxiliary"])
    except UserError:
        return 0


def _machine(made: dict[str, Any]) -> str:
    parts = [made.get("cpu"), made.get("gpu"), made.get("platform")]
    parts.append(f"{made['threads']} threads" if "threads" in made else None)
    parts.append(f"Python {made['python']}" if "python" in made else None)
    return ", ".join(str(p) for p in parts if p)


def _mapping(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _asset(name: str) -> str:
    return (resources.files("fedrecall.reports") / "assets" / name).read_text(encoding="utf-8")
