"""The papers as data: their setups, what they published, and how what is measured here compares.

Each paper is a YAML file beside this one. `paper` reads it into tables of cells, each with the
config that the paper's text makes of it; `results` holds what was measured as small JSON files;
`verdicts` sets the two side by side; `reproduction` runs what is missing; `page` writes
docs/reproduction.md.
"""

from fedrecall.papers.paper import PAPERS, Cell, Paper, Table, load_paper, table

__all__ = ["PAPERS", "Cell", "Paper", "Table", "load_paper", "table"]
