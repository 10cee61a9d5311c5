"""That the cost of secure aggregation can still be measured, whoever drops out."""

import pytest
from benchmarks.secure import measure

from fedrecall.flower import masks


@pytest.mark.parametrize("clients", [3, 4])
def test_sums_are_right_and_what_travels_is_counted(clients: int) -> None:
    for dropped in {0, clients - masks.present(clients)}:
        client, server, down, up = measure(clients, 100, dropped)

        assert client > 0
        assert server > 0
        assert up > 0.8  # 100 masked numbers of 8 bytes
        assert down > 0
