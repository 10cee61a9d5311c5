"""What was measured of an algorithm, in its own page: the blocks that `python -m tools.docs` writes.

A page says ``<!-- measured: NAME ... -->`` and ``<!-- /measured -->``; what stands between them is written
from the results, the cells of all tables whose algorithm has one of the names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tools.reproduction import MEASURED, listed, measured_rows

from fedrecall import files
from fedrecall.papers.paper import PAPERS, load_paper
from fedrecall.papers.results import FOLDER, Results, identity
from fedrecall.papers.verdicts import guests

BLOCK = re.compile(r"(<!-- measured: (?P<names>[^>]+?) -->\n).*?(<!-- /measured -->)", re.DOTALL)
HEAD = ("table", *MEASURED)


def block(names: Sequence[str], results: Results) -> str:
    """The cells of these algorithms, once what shares runs and numbers: measured ones, then the others."""
    cells: list[list[list[str]]] = []
    seen: set[object] = set()
    for name in PAPERS:
        paper = load_paper(name)
        for table in paper.tables.values():
            for cell in (*table.cells, *guests(paper, table, results)):
                config = cell.config()
                if config.algorithm["name"] not in names:
                    continue
                said = identity(config), tuple((q, p.value) for q, p in cell.published.items())
                if said not in seen:
                    seen.add(said)
                    own = measured_rows(paper, table, cell, results)
                    cells.append([[f"{name}/{table.name}", *row] for row in own])
    if not seen:
        return "No table of the four papers has it.\n"
    return listed(HEAD, cells)


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
