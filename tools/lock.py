"""Write constraints.txt and requirements.lock from what pip resolves today: `make lock`.

constraints.txt holds the versions alone and serves every platform. requirements.lock adds the
SHA-256 of each archive, so it serves one: Linux on x86-64 with the Python that wrote it.

Two things are left out of the lock. torch: its CPU build, which most want, and its CUDA build are
different archives of one version, so no one hash is right. And what torch's CUDA build brings with it
(nvidia-*, cuda-*, triton), which torch itself pins exactly.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TORCH = "torch==2.13.0"
EXTRAS = "dev,ray,flower,dp"
OWN_BUSINESS = re.compile(r"(torch|triton|(nvidia|cuda)-.*|fedrecall)$")


def resolve(root: Path) -> list[tuple[str, str, str]]:
    """Name, version and SHA-256 of every archive that a fresh environment would get."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), TORCH, f"{root}[{EXTRAS}]"]
        # Only what everybody has: no mirror or wheel folder of this machine.
        clean = {k: v for k, v in os.environ.items() if k not in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL")}
        subprocess.run(command, check=True, env=clean | {"PIP_CONFIG_FILE": os.devnull})
        items = json.loads(report.read_text())["install"]
    found = []
    for item in items:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if not OWN_BUSINESS.match(name):
            found.append(
                (name, item["metadata"]["version"], item["download_info"]["archive_info"]["hashes"]["sha256"])
            )
    return sorted(found)


def main() -> None:
    """Write both files beside pyproject.toml."""
    root = Path(__file__).resolve().parent.parent
    found = resolve(root)
    made = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, by `make lock`"
    (root / "constraints.txt").write_text(
        f"# The versions that are tested ({made}).\n"
        "# A constraint installs nothing. torch is installed first and with its exact version, so that pip\n"
        "# takes the CPU build where one is offered instead of gigabytes of CUDA libraries.\n"
        f"{TORCH}\n" + "".join(f"{name}=={version}\n" for name, version, _ in found)
    )
    (root / "requirements.lock").write_text(
        f"# The same versions with their archives' hashes ({made}): only for that platform.\n"
        "# Use: make test LOCKED=1. Without torch, whose CPU and CUDA archives of one version differ.\n"
        + "".join(f"{name}=={version} \\\n    --hash=sha256:{sha}\n" for name, version, sha in found)
    )
    print(f"{len(found)} packages locked.")


if __name__ == "__main__":
    main()
