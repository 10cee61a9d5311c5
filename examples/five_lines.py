"""A first experiment from Python, as it would stand in a notebook."""

import fedrecall

for algorithm in ("fedavg", "fedntd"):
    settings = {"clients": 20, "sample": 5, "rounds": 10, "batch_size": 10}
    result = fedrecall.run(algorithm=algorithm, dataset="digits", **settings)
    print(f"{algorithm}: accuracy {result.accuracy:.2%}, forgetting {result.forgetting:.3f}")
