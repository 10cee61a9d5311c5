"""What the command line does before and around every command."""

import os
import shlex
import subprocess
import sys
from importlib import import_module
from inspect import cleandoc
from pathlib import Path

import pytest

from fedrecall.cli.app import COMMANDS, app, main
from fedrecall.errors import lacks_memory

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")

FLAGS = """
import sys
sys.argv = ["fedrecall", "--version"]
from fedrecall.cli import main
try:
    main()
except SystemExit:
    pass
import torch
large, inside = torch.ones(10_000_000), False
for line in open("/proc/self/smaps"):
    word = line.split()[0]
    if "-" in word:
        begin, end = (int(part, 16) for part in word.split("-"))
        inside = begin <= large.data_ptr() < end
    elif inside and word == "VmFlags:":
        print(line)
"""


@pytest.mark.skipif(
    not THP.exists() or "[never]" in THP.read_text(),
    reason="this system has no huge pages, whoever asks",
)
def test_large_tensors_ask_for_huge_pages():
    done = subprocess.run([sys.executable, "-c", FLAGS], capture_output=True, text=True, check=True)
    assert "hg" in done.stdout.split("VmFlags:")[1].split()


LIGHT = """
import sys
sys.argv = ["fedrecall", *{words}]
from fedrecall.cli import main
try:
    main()
finally:
    assert not {{"torch", "scipy", "yaml"}} & sys.modules.keys()
"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--help"], 0, "partition"),
        ([], 2, "partition"),
        (["--version"], 0, "."),
        (["rnu"], 2, "No such command 'rnu'. Did you mean 'run'?"),
    ],
)
def test_what_needs_no_command_is_there_at_once(words, code, said):
    done = subprocess.run([sys.executable, "-c", LIGHT.format(words=words)], capture_output=True, text=True)
    assert (done.returncode, "Error" in done.stdout, "Traceback" in done.stderr) == (code, False, False)
    assert said in done.stdout + done.stderr


def test_the_list_of_commands_says_what_they_say():
    for place, _ in COMMANDS.values():
        import_module(f"fedrecall.cli.commands.{place}")
    told = {i.name: (i.callback.__module__, cleandoc(i.callback.__doc__)) for i in app.registered_commands}
    assert told.keys() == COMMANDS.keys()
    for name, (place, said) in COMMANDS.items():
        assert told[name][0] == f"fedrecall.cli.commands.{place}"
        assert told[name][1].partition("\n\n")[0].replace("\n", " ") == said


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "fedrecall", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "compare" in done.stdout


def test_in_a_pipe_a_line_is_as_long_as_its_reader_says():
    own = {name: value for name, value in os.environ.items() if name != "COLUMNS"}

    def widest(**given):
        line = [sys.executable, "-m", "fedrecall", "list", "algorithms"]
        done = subprocess.run(line, capture_output=True, text=True, check=True, env=own | given)
        return max(map(len, done.stdout.splitlines()))

    assert 80 < widest() <= 120
    assert widest(COLUMNS="70") <= 70


WARNING = """
import sys, warnings
sys.argv = ["fedrecall", "--version"]
from fedrecall.cli import main
try:
    main()
except SystemExit:
    pass
warnings.warn_explicit("another's [b]", UserWarning, "/elsewhere/module.py", 7)
import fedrecall
warnings.warn_explicit("ours [b]", RuntimeWarning, fedrecall.__file__, 7)
"""


def test_our_warnings_are_a_sentence_and_others_say_where_they_are_from():
    done = subprocess.run([sys.executable, "-c", WARNING], capture_output=True, text=True, check=True)
    assert done.stderr == "/elsewhere/module.py:7: UserWarning: another's [b]\nwarning: ours [b]\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(closed):
    line = f"{shlex.quote(sys.executable)} -m fedrecall list algorithms {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


RUN = (
    "-m fedrecall run --dataset synthetic:classes=4,train=160,test=80,size=8 --model mlp:8 "
    "--clients 8 --sample 3 --rounds 3 --backend serial --out x"
)


@pytest.mark.parametrize("reader", ["> /dev/full", "| true", "2>&1 | true"])
def test_a_run_goes_on_when_its_progress_cannot_be_shown(reader, tmp_path):
    line = f"({shlex.quote(sys.executable)} {RUN}; echo $? > code) {reader}"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert (tmp_path / "code").read_text() == "0\n"
    assert len((tmp_path / "x" / "metrics.jsonl").read_text().splitlines()) == 3
    assert "Traceback" not in done.stderr
    assert ("progress cannot be shown any more" in done.stderr) == ("2>&1" not in reader)


def test_a_lack_of_memory_is_told_from_what_is_not_there():
    assert lacks_memory(RuntimeError("could not create a primitive"))
    assert not lacks_memory(RuntimeError("could not create a primitive descriptor for a convolution"))


def test_windows_is_told_where_it_runs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "on Windows use it in WSL" in capsys.readouterr().err


def test_a_lack_of_memory_is_a_sentence():
    line = ["run", "--model", "mlp:10000000000000", "--rounds", "1", "--backend", "serial"]
    done = subprocess.run([sys.executable, "-m", "fedrecall", *line], capture_output=True, text=True)
    assert done.returncode == 75
    assert "memory ran out" in done.stderr
    assert "Traceback" not in done.stderr
