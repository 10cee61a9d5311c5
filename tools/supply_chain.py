# ruff: noqa: E501  the page's lines are as wide as pages are, not as code is
"""Write docs/supply-chain.md: what is depended on, under which licence, locked how, with known holes or not.

    python -m tools.supply_chain

Licences are read from what is installed; known vulnerabilities are asked of the Python advisory database
by pip-audit, if it is installed (``pip install pip-audit``) and the network is there.
"""

from __future__ import annotations

import datetime
import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "supply-chain.md"
COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public)", re.IGNORECASE)


def locked() -> dict[str, tuple[str, int]]:
    """Of every package in requirements.lock its version and how many hashes it has."""
    found = {}
    for entry in re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements.lock").read_text()):
        match = re.match(r"([a-z0-9-]+)==(\S+)", entry)
        if match:
            found[match[1]] = (match[2], len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)))
    return found


def constraints() -> dict[str, str]:
    """The tested versions."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def licence(package: str) -> str:
    """What an installed package says of its licence."""
    try:
        about = metadata.metadata(package)
    except metadata.PackageNotFoundError:
        return "not installed here"
    if "License-Expression" in about:
        return about["License-Expression"]
    classes = [c.split(" :: ")[-1] for c in about.get_all("Classifier") or () if c.startswith("License ::")]
    written = about["License"].strip().splitlines() if "License" in about else []
    return ", ".join(dict.fromkeys(classes)) or (written[0][:60] if written else "not said")


def audit() -> str:
    """What pip-audit says of the locked versions, in a paragraph."""
    beside = Path(sys.executable).with_name("pip-audit")
    program = str(beside) if beside.exists() else shutil.which("pip-audit")
    if program is None:
        return "Not scanned: pip-audit is not installed here."
    command = [program, "-r", str(ROOT / "requirements.lock"), "--no-deps", "--disable-pip", "-f", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        held = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError, OSError):
        return "Not scanned: pip-audit could not reach the advisory database from here."
    holes = [(d["name"], d["version"], v["id"]) for d in held for v in d.get("vulns", [])]
    skipped = [d["name"] for d in held if "skip_reason" in d]
    if len(skipped) == len(held):
        return (
            "Not scanned: pip-audit ran, but the package index that it asked has no advisories. Where PyPI itself "
            "can be reached: `pip install pip-audit` and run the command above again."
        )
    said = f"pip-audit looked at {len(held) - len(skipped)} locked packages and knows of {len(holes)} holes"
    listed = "".join(f"\n- {name} {version}: {number}" for name, version, number in holes)
    return said + (":\n" + listed if listed else ".")


def main() -> None:
    """Write the page."""
    pinned, tested = locked(), constraints()
    bare = [name for name, (_, hashes) in pinned.items() if not hashes]
    unlike = [n for n, v in tested.items() if n != "torch" and (n not in pinned or pinned[n][0] != v)]
    if bare or unlike:
        raise SystemExit(f"requirements.lock and constraints.txt disagree ({unlike}) or lack hashes ({bare})")
    rows = [(name, version, licence(name)) for name, version in sorted(tested.items())]
    strict = [name for name, _, text in rows if COPYLEFT.search(text) and "LGPL" not in text]
    today = datetime.date.today().isoformat()
    text = f"""# Supply chain

Made by `python -m tools.supply_chain` on {today}.

- **Bounded**: every dependency in `pyproject.toml` has a lower bound, and those that a run needs an upper one, at the next
  major version (but Pillow, which has a major version every year).
- **Locked**: `constraints.txt` holds the {len(tested)} tested versions; `requirements.lock` holds the same with SHA-256
  hashes ({len(pinned)} packages, none without; torch apart, whose CPU and CUDA archives differ).
  `make test LOCKED=1`, in a clone without `.venv-test`, installs nothing whose hash differs; hatchling, which packs
  fedrecall itself, is fetched for that without. `make lock` resolves both anew.
- **No network**: after installation fedrecall fetches nothing but data sets that are neither bundled nor in a local copy
  (Flower has habits of its own, which [deploy.md](deploy.md) says how to switch off). A test trains, resumes and reports without any network interface (`tests/test_reliability_offline.py`).
- **Nothing unpickled** by fedrecall: it reads JSON, YAML, CSV, parquet, images, safetensors, and numpy arrays without objects.
  Ray pickles between its own processes ([ray.md](ray.md)).

## Known vulnerabilities

{audit()}

## Licences

{"None is under the GPL or AGPL." if not strict else "Under the GPL or AGPL: " + ", ".join(strict) + "."} As the
installed packages state them:

| package | version | licence |
|---|---|---|
"""
    PAGE.write_text(text + "".join(f"| {n} | {v} | {said.replace('|', '/')} |\n" for n, v, said in rows))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
