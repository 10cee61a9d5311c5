"""Seconds and bytes of a round of secure aggregation, beside training and Flower's messages.

    python -m benchmarks.secure [--clients 3,10,30] [--numbers 500000]

Both halves of the protocol in one process: what a client computes and sends, and what the server computes,
when everybody stays and when as many as can be spared drop out before their upload arrives.
"""

import argparse
import time

import torch
from flwr.app import RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from tests.flower.circles import Server

from fedrecall.flower import masks


class Measured(Server):
    """A server that counts what its clients take and what is sent."""

    def __init__(self, lost: dict[str, set[int]], uploads: dict[int, torch.Tensor]):
        super().__init__(lost, uploads)
        self.seconds = dict.fromkeys(uploads, 0.0)

    def answer(self, client: int, kind: str, content: RecordDict) -> RecordDict:
        """The client's answer, timed."""
        began = time.perf_counter()
        answer = super().answer(client, kind, content)
        self.seconds[client] += time.perf_counter() - began
        return answer


def size(content: RecordDict) -> int:
    """Bytes of a message's content as Flower sends it."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(content).values())


def measure(clients: int, numbers: int, dropped: int) -> tuple[float, float, float, float]:
    """Seconds of a client and of the server; kilobytes that a client receives and sends."""
    upload = torch.randn(numbers, generator=torch.Generator().manual_seed(0))
    lost = {"train.masked": set(range(dropped))}
    server = Measured(lost, dict.fromkeys(range(clients), upload))
    began = time.perf_counter()
    mean = server.play(dict.fromkeys(range(clients), 1))
    took = time.perf_counter() - began
    assert float((mean.up["w"] - upload).abs().max()) < 1e-6
    last = clients - 1
    asked = sum(size(content) for _, client, content, _ in server.said if client == last)
    answered = sum(size(answer) for _, client, _, answer in server.said if client == last)
    own = sum(server.seconds.values())
    return server.seconds[last], took - own, asked / 1e3, answered / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", default="3,10,30")
    parser.add_argument("--numbers", type=int, default=500_000)
    given = parser.parse_args()
    for clients in map(int, given.clients.split(",")):
        for dropped in sorted({0, clients - masks.present(clients)}):
            client, server, down, up = measure(clients, given.numbers, dropped)
            print(
                f"{clients:4} clients, {dropped:3} dropped: client {client:6.2f} s, server {server:6.2f} s, "
                f"client receives {down:8.1f} kB beside the model and sends {up:8.1f} kB",
                flush=True,
            )


if __name__ == "__main__":
    main()
