"""FedCurv against the penalty it stands for."""

import torch
from tests.algorithms.cases import assert_same, experiment
from tests.algorithms.test_all import play

from fedrecall.algorithms.fedcurv import FedCurv
from fedrecall.algorithms.fisher import diagonal_fisher


def test_gradient_is_that_of_the_direct_sum():
    run = experiment("fedcurv:lam=0.7,s=40")
    latest = {}
    for number, sampled in enumerate(([0, 1, 2], [3, 1, 0], [1, 4, 2]), start=1):
        played = play(run, sampled, 3, number)
        run.server = played.server
        for v in played.visits:
            w = v.up.weights
            fisher = diagonal_fisher(run.model, w, run.federation.client(v.client), 40)
            assert_same(v.memory.own.importance, fisher)
            latest[v.client] = fisher, w.params
    params = {n: (p + 0.3).requires_grad_(True) for n, p in run.server.weights.params.items()}
    student = run.model.student({}, torch.tensor(0))
    for k in (1, 4, 5):  # seen three times, once, never
        local = run.federation.client(k)
        batch = next(iter(local.batches(5)))
        memory = run.memories.get(k) or run.algorithm.remember(run.server.weights)
        down = run.algorithm.broadcast(run.model, run.server, None)
        anchor = run.algorithm.prepare(run.model, down, memory, local)
        found = torch.autograd.grad(run.algorithm.loss(student, params, anchor, batch), list(params.values()))
        plain = FedCurv(lam=0).loss(student, params, anchor, batch)
        direct = sum(
            (f[n] * (params[n] - w[n]) ** 2).sum() for j, (f, w) in latest.items() if j != k for n in params
        )
        expected = torch.autograd.grad(plain + 0.7 * direct, list(params.values()))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_the_server_holds_the_latest_of_everyone_in_chains_too():
    run = experiment("fedcurv", sample=5, chains=2)
    run.run()
    seen = {k for r in run.history for chain in r["chains"] for k in chain}
    own = [run.memories.get(k).own for k in sorted(seen)]
    for part in ("importance", "weighted"):
        total = {n: sum(getattr(o, part)[n] for o in own) for n in getattr(own[0], part)}
        assert_same(getattr(run.server.all, part), total, 1e-12)
