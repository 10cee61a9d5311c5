"""The command line: every command in a file of its own, gathered here."""

from fedrecall.cli.app import app, main
from fedrecall.cli.commands import compare, inspect, reports, run, watch

__all__ = ["app", "compare", "inspect", "main", "reports", "run", "watch"]
