"""Write the generated pages of docs/: ``python -m tools.docs``, run from the repository."""

from pathlib import Path

from fedrecall import files
from fedrecall.reports.figures import FIGURES
from fedrecall.reports.figures.figure import Figure
from tools import measured, reproduction

MEASURES = Path("docs/measures.md")
COMMANDS = "### Every figure's runs\n\n`[a|b]` stands for one run each; seeds are added with `--seed`.\n"
"""What stands before the list of figures, the last part of the page."""


def with_commands(text: str) -> str:
    """The page about measures with the runs that every figure is drawn from."""
    before, heading, _ = text.partition(COMMANDS)
    assert heading, f"{MEASURES} lacks its heading"
    parts = []
    for name in FIGURES:
        figure: type[Figure] = FIGURES.cls(name)
        parts.append("\n".join([f"**{name}**: {figure.needs}.", "", "```", *figure.commands, "```"]))
    return before + heading + "\n" + "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    reproduction.main()
    measured.main()
    files.write(MEASURES, with_commands(MEASURES.read_text()).encode())
