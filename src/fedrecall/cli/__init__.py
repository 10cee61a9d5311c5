"""The command line: every command in a file of its own, imported when it is asked for."""

from fedrecall.cli.app import app, main

__all__ = ["app", "main"]
