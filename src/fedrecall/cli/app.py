"""The app that commands register with, and what happens to a user's mistake."""

import importlib
import inspect
import logging
import os
import sys
import warnings
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
import typer.main
import typer.models
from rich.console import Console

from fedrecall import own_faults
from fedrecall.errors import Diverged, Interrupted, NotNow, UserError, lacks_memory

COMMANDS = {
    "run": ("run", "Train one algorithm over one federation."),
    "compare": ("compare", "Train several algorithms over the same federation and print them side by side."),
    "reproduce": (
        "reproduce",
        "Run a paper's table in exactly its setup, and print published beside measured.",
    ),
    "watch": (
        "watch",
        "Show a running or finished run in the terminal; it reads the run folder and disturbs nobody.",
    ),
    "report": (
        "reports",
        "Put runs on one HTML page that needs nothing but a browser; seeds of one config become a band.",
    ),
    "figure": ("reports", "Draw one of the papers' figures from your runs."),
    "predict": ("predict", "Say which class a trained model takes images, or rows of a table, for."),
    "list": ("inspect", "List what can be named on the command line and in a config."),
    "show": (
        "inspect",
        "Explain one algorithm, data set, partition, model, measure, figure, sink, or paper's table.",
    ),
    "partition": ("inspect", "Show who gets what: clients × classes as a chart and in numbers."),
    "doctor": ("inspect", "Say what this machine offers: versions, threads, GPU, extras, data sets."),
}
"""Where each is, and its line in the list of them: PyTorch, which most need, takes seconds to import."""


class NamedPath(typer.models.TyperPath):
    """A file or folder by its name, in which ``~`` is the home: shells leave that of ``--out=~/x`` as it is.

    Of an empty one (``--out "$UNSET"``) `Path` makes the working folder.
    """

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The path, or a usage error."""
        if value == "":
            self.fail("the name of a file or folder is empty: name it, or leave the option out.", param, ctx)
        return super().convert(os.path.expanduser(value), param, ctx)


class Commands(typer.core.TyperGroup):
    """The commands; one that a signal stopped says so and ends with the signal's exit code.

    Here and not in `main`, for typer makes every KeyboardInterrupt that leaves the commands one exit code.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except Interrupted as stop:
            again = "" if ctx.invoked_subcommand == "run" else ", and the same command goes on with it"
            saved = f"; what was done is saved{again}" if stop.saved else ""
            err.print(f"{_escaped(str(stop))}{saved}.", soft_wrap=True)
            raise typer.Exit(128 + stop.signum) from None

    def __init__(self, **given: Any):
        super().__init__(**given)
        self._listed = False
        self.commands = {n: typer.core.TyperCommand(n, help=said) for n, (_, said) in COMMANDS.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order in which they are listed."""
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of them, for which none is imported."""
        self._listed = True
        super().format_help(ctx, formatter)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, with the help of its arguments, which click 8.5 takes from what typer 0.20 made."""
        if cmd_name in COMMANDS and not self._listed:
            importlib.import_module(f"fedrecall.cli.commands.{COMMANDS[cmd_name][0]}")
            (info,) = (i for i in app.registered_commands if i.name == cmd_name)
            self.commands[cmd_name] = typer.main.get_command_from_info(
                info, pretty_exceptions_short=False, rich_markup_mode=self.rich_markup_mode
            )
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.callback is not None:
            declared = inspect.signature(command.callback).parameters
            for param in command.params:
                if type(param.type) is typer.models.TyperPath:
                    param.type.__class__ = NamedPath
                if isinstance(param, typer.core.TyperArgument) and param.help is None:
                    marks = getattr(declared[str(param.name)].annotation, "__metadata__", ())
                    param.help = next(
                        (m.help for m in marks if isinstance(m, typer.models.ArgumentInfo)), None
                    )
        return command


app = typer.Typer(
    name="fedrecall",
    cls=Commands,
    help="Federated learning that does not forget: train, compare, measure forgetting, reproduce the papers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does
    context_settings={"help_option_names": ["-h", "--help"]},
)
BROKEN, MISTAKE, FAILED, NOT_NOW = 1, 2, 3, 75
"""Exit codes: an error in code (Python's); what was asked for cannot be had (click's); a run diverged; it may
do later (EX_TEMPFAIL)."""
NO_MEMORY = (
    "memory ran out. What a run folder holds is whole, and --resume goes on with it: take fewer workers, "
    "smaller batches or a smaller model."
)

out = Console()
err = Console(stderr=True)


def _version(wanted: bool) -> None:
    if wanted:
        from fedrecall import __version__

        out.print(__version__)
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before the command."""


def main() -> None:
    """Run the command line; what goes wrong ends in one sentence and an exit code that says of what kind."""
    if sys.platform == "win32":
        _refuse("fedrecall runs on Linux and macOS: on Windows use it in WSL (wsl --install).", MISTAKE)
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by who started this, as some daemons do
            setattr(sys, stream, Path(os.devnull).open("w"))  # noqa: SIM115 it is never closed
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may be no text
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # PyTorch's large tensors in huge pages, which the system clears in a third of the time: evaluation and
    # aggregation are made of new tensors.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if not sys.stdout.isatty():  # in a pipe or a file there is no width to keep to but a reader's
        os.environ.setdefault("COLUMNS", "120")
    logging.getLogger("datasets").setLevel(logging.ERROR)
    warnings.showwarning = _warn
    try:
        app()
    except UserError as error:
        if "--debug" in sys.argv:
            raise
        kinds = {NotNow: NOT_NOW, Diverged: FAILED}
        _refuse(str(error), next((code for kind, code in kinds.items() if isinstance(error, kind)), MISTAKE))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        if lacks_memory(error):
            _refuse(NO_MEMORY, NOT_NOW)
        said = own_faults.told(error)  # all of it where it is in no code of the user's
        said += "" if own_faults.where(error) is None else own_faults.WHOLE
        err.print(said, markup=False, highlight=False, soft_wrap=True)
        sys.exit(BROKEN)


def _warn(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any, **more: Any
) -> None:
    """What fedrecall itself warns of in one sentence, without the line of code that says it."""
    if Path(__file__).parents[1] in Path(filename).parents:
        with suppress(OSError, SystemExit):  # where it cannot be said, the work goes on all the same
            err.print(f"[yellow]warning:[/yellow] {_escaped(str(message))}", soft_wrap=True)
    else:
        _others_warn(message, category, filename, lineno, *rest, **more)


_others_warn = warnings.showwarning


def _refuse(sentence: str, code: int) -> None:
    err.print(f"[red]error:[/red] {_escaped(sentence)}", soft_wrap=True)
    sys.exit(code)


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")
