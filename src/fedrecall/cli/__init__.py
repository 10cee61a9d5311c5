"""The command line: every command in a file of its own, gathered here."""

from fedrecall.cli.app import app, main
from fedrecall.cli.commands import compare, inspect, predict, reports, reproduce, run, watch

__all__ = ["app", "compare", "inspect", "main", "predict", "reports", "reproduce", "run", "watch"]
