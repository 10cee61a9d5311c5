"""What was measured of an algorithm, in its own page: the blocks that `python -m tools.docs` writes.

A page says ``<!-- measured: NAME ... -->`` and ``<!-- /measured -->``; what stands between them is written
from the results, the cells of all tables whose algorithm has one of the names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedrecall import files
from fedrecall.papers.page import MEASURED, folded, grid, measured_rows
from fedrecall.papers.paper import PAPERS, load_paper
from fedrecall.papers.results import FOLDER, Results, identity
from fedrecall.papers.verdicts import NOT_RUN

BLOCK = re.compile(r"(<!-- measured: (?P<names>[^>]+?) -->\n).*?(<!-- /measured -->)", re.DOTALL)
HEAD = ("table", *MEASURED)


def block(names: Sequence[str], results: Results) -> str:
    """The cells of these algorithms, once what shares runs and numbers: measured ones, then the others."""
    rows: dict[bool, list[list[str]]] = {True: [], False: []}  # by whether they were run
    seen: set[object] = set()
    for name in PAPERS:
        paper = load_paper(name)
        for table in paper.tables.values():
            for cell in table.cells:
                config = cell.config()
                said = identity(config), tuple((q, p.value) for q, p in cell.published.items())
                if config.algorithm["name"] in names and said not in seen:
                    seen.add(said)
                    own = measured_rows(paper, table, cell, results)
                    done = [row for row in own if row[-1] != NOT_RUN]  # as it stands, or with a switch
                    rows[bool(done)] += [[f"{name}/{table.name}", *row] for row in done or own]
    if not seen:
        return "No table of the four papers has it.\n"
    parts = [grid(HEAD, rows[True])] if rows[True] else []
    if rows[False]:
        parts.append(folded(f"{len(rows[False])} cells not run yet", grid(HEAD, rows[False])))
    return "\n".join(parts)


def fill(text: str, results: Results) -> str:
    """A page with its blocks as the results have it now."""
    return BLOCK.sub(lambda m: f"{m[1]}{block(m['names'].split(), results)}{m[3]}", text)


def main(docs: Path = Path("docs"), folder: Path = FOLDER) -> None:
    """Fill every page that has a block; run from the repository."""
    results = Results.load(folder)
    for path in sorted(docs.rglob("*.md")):
        text = path.read_text()
        if (filled := fill(text, results)) != text:
            files.write(path, filled.encode())
