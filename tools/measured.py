"""What was measured of an algorithm, in its own page: the blocks that `python -m tools.docs` writes.

A page says ``<!-- measured: NAME ... -->`` and ``<!-- /measured -->``; what stands between them is written
from the results, the cells of all tables whose algorithm has one of the names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tools.reproduction import MEASURED, listed, measured_rows

from fedrecall import files
from fedrecall.papers.paper import PAPERS, Cell, Paper, Table, load_paper
from fedrecall.papers.results import FOLDER, Results, identity
from fedrecall.papers.verdicts import guests

BLOCK = re.compile(r"(<!-- measured: (?P<names>[^>]+?) -->\n).*?(<!-- /measured -->)", re.DOTALL)
HEAD = ("table", *MEASURED)


class Pages:
    """What pages say of these results."""

    def __init__(self, results: Results):
        self.results = results

    @cached_property
    def _cells(self) -> list[tuple[Paper, Table, Cell]]:
        """All that there are, and those of algorithms that no paper has."""
        tables = [(paper, table) for paper in map(load_paper, PAPERS) for table in paper.tables.values()]
        return [(p, t, cell) for p, t in tables for cell in (*t.cells, *guests(p, t, self.results))]

    def block(self, names: Sequence[str]) -> str:
        """These algorithms' cells, once what shares runs and numbers: measured ones, then the others."""
        cells: list[list[list[str]]] = []
        seen: set[object] = set()
        for paper, table, cell in self._cells:
            config = cell.config()
            if config.algorithm["name"] not in names:
                continue
            said = identity(config), tuple((q, p.value) for q, p in cell.published.items())
            if said not in seen:
                seen.add(said)
                own = measured_rows(paper, table, cell, self.results)
                cells.append([[f"{paper.name}/{table.name}", *row] for row in own])
        if not seen:
            return "No table of the four papers has it.\n"
        return listed(HEAD, cells)

    def fill(self, text: str) -> str:
        """A page with its blocks as the results have it now."""
        return BLOCK.sub(lambda m: f"{m[1]}{self.block(m['names'].split())}{m[3]}", text)


def main(docs: Path = Path("docs"), folder: Path = FOLDER) -> None:
    """Fill every page that has a block; run from the repository."""
    pages = Pages(Results.load(folder))
    for path in sorted(docs.rglob("*.md")):
        text = path.read_text()
        if (filled := pages.fill(text)) != text:
            files.write(path, filled.encode())
