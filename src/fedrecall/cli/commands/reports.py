"""`fedrecall report` and `figure`: what run folders have to show."""

from pathlib import Path
from typing import Annotated

import typer

from fedrecall.cli.app import app, out
from fedrecall.cli.options import DataRoot, Runs, Table


@app.command("report")
def report_command(
    runs: Runs,
    *,
    out_: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
    target: Annotated[
        list[float] | None,
        typer.Option(
            help="Accuracy to count rounds and seconds to, such as 0.6; again for more "
            "(default: round numbers that were reached).",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="What the others are compared with (default: the first).", show_default=False),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.", show_default=False)] = None,
    table: Table = None,
) -> None:
    """Put runs on one HTML page that needs nothing but a browser; seeds of one config become a band.

    Example: fedrecall report runs/ --out report.html
    """
    from fedrecall.reports import tables
    from fedrecall.reports.report import entries, report
    from fedrecall.reports.runs import open_runs

    if table is not None:
        tables.check(table)
    opened = open_runs(runs)
    report(opened, out_, title=title, targets=target or (), baseline=baseline)
    out.print(f"report: {out_} ({out_.stat().st_size / 1e6:.1f} MB)", markup=False, soft_wrap=True)
    if table is not None:
        tables.write(table, entries(opened, baseline))
        out.print(f"table: {table}", markup=False, soft_wrap=True)


@app.command("figure")
def figure_command(
    name: Annotated[
        str, typer.Argument(help="A figure, as `fedrecall list figures` prints it; fedntd/fig6:clients=5.")
    ],
    runs: Runs,
    *,
    out_: Annotated[Path, typer.Option("--out", help="Folder for the PNG, the PDF and the numbers.")] = Path(
        "figures"
    ),
    data_root: DataRoot = None,
) -> None:
    """Draw one of the papers' figures from your runs.

    Example: fedrecall figure fedntd/fig4 runs/ --out figures
    """
    from fedrecall.reports.figures import draw

    drawn = draw(name, runs, out_, data_root)
    for said in (drawn.caption, *drawn.notes):
        out.print(said, markup=False, highlight=False)
    for path in drawn.files:
        out.print(f"figure: {path}", markup=False, soft_wrap=True)
