"""An algorithm of one's own in one file: FedAvg whose clients see a margin on the true class.

Run it as it lies here, without touching the package:

    fedrecall run --algorithm examples/fedmargin.py:FedMargin:margin=0.5 \
        --dataset digits --clients 20 --sample 5 --rounds 10 --batch-size 10
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, where

from fedrecall import Batch, FedAvg
from fedrecall.losses import cross_entropy, is_true
from fedrecall.specs import NON_NEGATIVE


@dataclass(frozen=True)
class FedMargin(FedAvg):
    """Cross-entropy that asks the true class to win by a margin."""

    margin: Annotated[float, NON_NEGATIVE] = 0.5
    """How much the true logit is lowered before the softmax."""

    def loss(self, model, params, anchor, batch: Batch) -> Tensor:
        """The local objective on one batch."""
        logits = model(params, batch.x)
        lowered = where(is_true(logits, batch.y), logits - self.margin, logits)
        return batch.mean(cross_entropy(lowered, batch.y))
