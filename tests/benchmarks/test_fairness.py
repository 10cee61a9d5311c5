"""What is computed of a result is what the run itself would have recorded."""

from benchmarks.fairness import fares

import fedrecall
from fedrecall.papers.results import of_run


def test_how_clients_fare_is_that_of_the_measure(tmp_path):
    how = {"dataset": "digits", "clients": 12, "sample": 3, "model": "mlp:8", "local_epochs": 1, "seed": 3}
    how |= {"partition": "lda:0.1", "measures": ["fairness"], "backend": "serial"}
    result = fedrecall.run(tmp_path / "run", algorithm="fedavg", rounds=2, **how)
    found, recorded = fares(of_run(tmp_path / "run")), result.history[-1]["measures"]["fairness"]
    assert found.keys() == recorded.keys()
    assert found == recorded
    assert 0 <= found["worst_tenth"] < found["mean"] < found["best_tenth"] <= 1
