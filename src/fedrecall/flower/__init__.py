"""A real federation on Flower: the same algorithms, visits and rounds, with the data at the nodes.

`flwr run` is given the folder `APP`, which names `server.app` and `client.app`; `python -m
fedrecall.flower` prints it. `docs/deploy.md` takes a reader from two laptops to a federation.
"""

from pathlib import Path

APP = Path(__file__).parent / "app"
