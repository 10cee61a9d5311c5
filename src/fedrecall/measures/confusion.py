"""Which classes a model takes for which (FedCAD fig. 2, FedSSD fig. 4)."""

from dataclasses import dataclass
from typing import Any

from fedrecall.measures.accuracy import credibility, evaluate
from fedrecall.measures.moment import Measure, Moment


@dataclass(frozen=True)
class Confusion(Measure):
    """The global model's confusion matrix on the test set, and its credibility on the auxiliary set.

    `credibility` is what FedSSD's server sends in the next round; null when the server holds no
    examples. Costs an evaluation on the auxiliary set, with ``locals`` one on the test set a client.
    """

    locals: bool = False
    """Also record every local model's confusion matrix."""

    def __call__(self, moment: Moment) -> dict[str, Any]:
        """Counts (rows: true class, columns: predicted) and shares."""
        auxiliary = moment.federation.auxiliary
        found: dict[str, Any] = {"global": moment.evaluation.confusion.tolist(), "credibility": None}
        if auxiliary is not None:
            seen = evaluate(moment.model, moment.after, auxiliary)
            found["credibility"] = credibility(seen.confusion).tolist()
        if self.locals:
            found["clients"] = [v.client for v in moment.good]
            found["locals"] = [e.confusion.tolist() for e in moment.local_evaluations]
        return found
