"""FedAvg whose clients count equally, whatever they hold, as algorithm 1 of FedNTD's paper averages.

    fedrecall run --algorithm examples/fedequal.py:FedEqual --dataset digits --partition lda:0.1 \
        --clients 20 --sample 5 --rounds 10 --batch-size 10
"""

from dataclasses import dataclass
from typing import Any

from fedrecall import FedAvg
from fedrecall.algorithms.hooks import Cohort


@dataclass(frozen=True)
class FedEqual(FedAvg):
    """The plain mean of the clients' models, instead of the mean by numbers of examples."""

    def aggregate(self, server: Any, ups: Any, cohort: Cohort) -> Any:
        """The server's state after the round."""
        return server._replace(weights=cohort.mean(ups.weights, cohort.uniform()))
