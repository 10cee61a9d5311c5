"""The local training loop: against PyTorch's own SGD, and when numbers stop being numbers."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.algorithms.cases import assert_same, experiment
from tests.algorithms.nets import Centred
from torch import nn

from fedrecall import losses, trees
from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.algorithms.fednova import FedNova
from fedrecall.algorithms.scaffold import Scaffold
from fedrecall.data.client import ClientData
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment
from fedrecall.models.layers import KeyedDropout
from fedrecall.models.model import Model
from fedrecall.records import RunFolder
from fedrecall.training import Recipe, Sgd, descend, overwrite, visit


def client(n: int = 23) -> ClientData:
    g = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (n, 1, 4, 4), generator=g, dtype=torch.uint8)
    y = torch.randint(0, 3, (n,), generator=g)
    return ClientData(x, y, 3, torch.tensor([0.4]), torch.tensor([0.3]), dtype=torch.float64)


def network(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(3)] if norm else []
    return nn.Sequential(nn.Conv2d(1, 3, 3), *norms, nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).double()


def go(algorithm: Any, module: nn.Module, recipe: Recipe, data: ClientData, **where: int) -> Any:
    model = Model(module)
    down = algorithm.broadcast(model, algorithm.start(model.initial()), None)
    place = {"seed": 5, "round_number": 2, "client": 7} | where
    return visit(algorithm, model, recipe, data, down, algorithm.remember(model.initial()), **place)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_a_visit_is_torch_sgd(norm, momentum, decay):
    recipe, data = Recipe(3, 10, 0.1, 0.9, momentum, decay), client()
    done = go(FedAvg(), network(norm), recipe, data)
    module = network(norm).train()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1 * 0.9, momentum=momentum, weight_decay=decay)
    each, sizes = [], []
    for batch in data.training_batches(data.draw(3, 5, 2, 7), 10):
        sgd.zero_grad()
        loss = nn.functional.cross_entropy(module(batch.x), batch.y)
        loss.backward()
        sgd.step()
        each.append(loss.item())
        sizes.append(len(batch.y))
    assert sizes == [10, 10, 3] * 3  # the last batch of an epoch is used
    assert recipe.steps(23) == 9
    assert_same(done.up.weights.params, {n: p.detach() for n, p in module.named_parameters()}, 1e-13)
    assert_same(done.up.weights.buffers, dict(module.named_buffers()), 1e-13)
    assert done.loss == pytest.approx(sum(each) / 9, rel=1e-12)
    assert (done.examples, done.client, done.failure) == (23, 7, None)


@pytest.mark.parametrize("n", [1, 21])
def test_a_batch_of_one_example_is_normalised_by_running_statistics(n):
    def flat() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)]
        return nn.Sequential(*layers).double()

    recipe, data = Recipe(2, 10, 0.1, 0.9, 0.9, 0.01), client(n)
    done = go(FedAvg(), flat(), recipe, data)
    module = flat().train()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1 * 0.9, momentum=0.9, weight_decay=0.01)
    for batch in data.training_batches(data.draw(2, 5, 2, 7), 10):
        module[2].train(len(batch.y) > 1)
        sgd.zero_grad()
        nn.functional.cross_entropy(module(batch.x), batch.y).backward()
        sgd.step()
    assert done.failure is None
    assert_same(done.up.weights.params, {n: p.detach() for n, p in module.named_parameters()}, 1e-13)
    assert_same(done.up.weights.buffers, dict(module.named_buffers()), 1e-13)
    assert done.up.weights.buffers["2.num_batches_tracked"].item() == (0 if n == 1 else 4)


@dataclass(frozen=True)
class Sharp(FedAvg):
    """The loss where the gradient leads up to, as in sharpness-aware minimisation."""

    functional: bool = True

    def loss(self, model, params, anchor, batch):
        def at(where):
            return batch.mean(losses.cross_entropy(model(where, batch.x), batch.y))

        moved = dict(params)
        if self.functional:
            grads = torch.func.grad(at)(moved)
        else:
            grads = dict(zip(moved, torch.autograd.grad(at(moved), [*moved.values()]), strict=True))
        for n, g in grads.items():
            moved[n] = moved[n] + 0.1 * g.detach()  # in the dict that the first pass was made with
        return at(moved)


@pytest.mark.parametrize("functional", [True, False])
def test_a_loss_may_take_a_gradient_of_its_own(functional):
    recipe, data = Recipe(2, 10, 0.1, 0.9, 0.9, 0.01), client()
    done = go(Sharp(functional), network(norm=True), recipe, data)
    module = network(norm=True).train()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1 * 0.9, momentum=0.9, weight_decay=0.01)
    for batch in data.training_batches(data.draw(2, 5, 2, 7), 10):
        first = nn.functional.cross_entropy(module(batch.x), batch.y)
        grads = torch.autograd.grad(first, [*module.parameters()])
        with torch.no_grad():
            for p, g in zip(module.parameters(), grads, strict=True):
                p.add_(0.1 * g)
        sgd.zero_grad()
        nn.functional.cross_entropy(module(batch.x), batch.y).backward()
        with torch.no_grad():
            for p, g in zip(module.parameters(), grads, strict=True):
                p.sub_(0.1 * g)
        sgd.step()
    assert_same(done.up.weights.params, {n: p.detach() for n, p in module.named_parameters()}, 1e-12)
    assert_same(done.up.weights.buffers, dict(module.named_buffers()), 1e-12)


@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_running_statistics_that_forward_assigns_are_kept(precision):
    def centred() -> nn.Module:
        module = network()
        return nn.Sequential(module[0], Centred(3), *module[1:]).to(precision)

    recipe, data = Recipe(2, 10, 0.1, 0.9, 0.9, 0.01), client()
    data.dtype = precision
    done = go(FedAvg(), centred(), recipe, data)
    module = centred().train()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1 * 0.9, momentum=0.9, weight_decay=0.01)
    for batch in data.training_batches(data.draw(2, 5, 2, 7), 10):
        sgd.zero_grad()
        nn.functional.cross_entropy(module(batch.x), batch.y).backward()
        sgd.step()
        module[1].mean = module[1].mean.detach()  # whose graph the step has used up
    tolerance = 1e-13 if precision == torch.float64 else 1e-5
    assert_same(done.up.weights.params, {n: p.detach() for n, p in module.named_parameters()}, tolerance)
    assert_same(done.up.weights.buffers, dict(module.named_buffers()), tolerance)
    assert done.up.weights.buffers["1.seen"].item() == 6
    assert done.up.weights.buffers["1.mean"].abs().min() > 0.01


def test_a_running_statistic_of_another_shape_is_refused():
    wrong = network()
    wrong.insert(1, Centred(1))
    with pytest.raises(UserError, match=r"'1.mean' of shape \[1\] one of shape \[3\]"):
        go(FedAvg(), wrong.double(), Recipe(1, 10), client())


def test_a_visit_with_frozen_layers_is_torch_sgd_on_the_others():
    def frozen() -> nn.Module:
        module = network(True)
        module[0].requires_grad_(False)
        module[1].bias.requires_grad_(False)
        return module

    recipe, data = Recipe(3, 10, 0.1, 0.9, 0.9, 0.01), client()
    done = go(FedAvg(), frozen(), recipe, data)
    module = frozen().train()
    learned = {n: p for n, p in module.named_parameters() if p.requires_grad}
    sgd = torch.optim.SGD(learned.values(), lr=0.1 * 0.9, momentum=0.9, weight_decay=0.01)
    for batch in data.training_batches(data.draw(3, 5, 2, 7), 10):
        sgd.zero_grad()
        nn.functional.cross_entropy(module(batch.x), batch.y).backward()
        sgd.step()
    params, buffers = done.up.weights
    assert_same(params, {n: p.detach() for n, p in learned.items()}, 1e-13)
    assert {**params, **buffers}.keys() == module.state_dict().keys()
    for name in ("0.weight", "0.bias", "1.bias"):
        assert torch.equal(buffers[name], frozen().get_parameter(name))


def test_a_model_with_nothing_to_train_is_refused():
    with pytest.raises(UserError, match="nothing to train"):
        Model(network().requires_grad_(False))


@pytest.mark.parametrize("which", range(4))
def test_a_step_goes_number_by_number_however_these_lie_in_memory(which):
    stream = torch.Generator().manual_seed(0)
    tensors = [torch.randn(4, 3, 5, 5, generator=stream) for _ in range(3)]
    w, g, v = (t.double() for t in tensors)
    if which < 3:  # one of them unlike the other two; or all alike
        tensors[which] = tensors[which].to(memory_format=torch.channels_last)
    params, grads, velocity = ({"w": t} for t in tensors)
    descend(params, grads, velocity, Sgd(lr=0.1, momentum=0.9, weight_decay=0.01, steps=1))
    v = 0.9 * v + g + 0.01 * w
    torch.testing.assert_close(velocity["w"].double(), v, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(params["w"].double(), w - 0.1 * v, rtol=1e-6, atol=1e-6)


def test_a_visit_leaves_what_it_was_given_alone():
    model, data, algorithm = Model(network(True)), client(), Scaffold()
    server = algorithm.start(model.initial())
    down = algorithm.broadcast(model, server, None)
    memory = algorithm.remember(model.initial())
    before = trees.detached((down, memory))
    state = torch.get_rng_state()
    for _ in range(2):
        done = visit(algorithm, model, Recipe(1, 10), data, down, memory, seed=1, round_number=1, client=0)
    assert_same((down, memory), before)
    assert torch.equal(torch.get_rng_state(), state)  # nothing drawn from the hidden stream
    assert not any(t.requires_grad for _, t in trees.leaves((done.up, done.memory)))


@pytest.mark.parametrize("changed", ["seed", "round_number", "client"])
def test_the_order_depends_on_seed_round_and_client(changed):
    recipe = Recipe(1, 10, lr_decay=1.0)
    usual = go(FedAvg(), network(), recipe, client())
    assert_same(go(FedAvg(), network(), recipe, client()).up, usual.up)
    other = go(FedAvg(), network(), recipe, client(), **{changed: 99})
    assert not torch.equal(other.up.weights.params["0.weight"], usual.up.weights.params["0.weight"])


# When numbers stop being numbers.


def test_who_straggles_and_how_early_it_stops_is_drawn_for_every_client_and_round():
    recipe = Recipe(local_epochs=4, stragglers=0.6)
    made = [recipe.epochs(5, t, k) for t in range(1, 101) for k in range(100)]
    found = [made.count(e) / len(made) for e in (1, 2, 3, 4)]
    assert found == pytest.approx([0.2, 0.2, 0.2, 0.4], abs=0.02)  # four deviations
    alone = [Recipe(local_epochs=4, stragglers=1.0).epochs(5, t, 3) for t in range(1, 401)]
    assert [alone.count(e) / 400 for e in (1, 2, 3, 4)] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=0.1)
    assert alone[:20] != [Recipe(local_epochs=4, stragglers=1.0).epochs(6, t, 3) for t in range(1, 21)]
    assert {Recipe(local_epochs=4).epochs(5, t, 3) for t in range(1, 50)} == {4}
    with pytest.raises(UserError, match="stragglers make fewer passes than local_epochs, which is 1"):
        Recipe(local_epochs=1, stragglers=0.1)


@pytest.mark.parametrize(
    "algorithm", [FedAvg(), Scaffold(), FedNova()], ids=["fedavg", "scaffold", "fednova"]
)
def test_a_straggler_makes_the_visit_of_somebody_who_has_so_few_epochs(algorithm):
    late, data = Recipe(4, 10, 0.1, 0.9, 0.9, 0.01, stragglers=1.0), client()
    seen = set()
    for number in range(1, 13):
        where = {"seed": 5, "round_number": number, "client": 7}
        epochs = late.epochs(**where)
        seen.add(epochs)
        found = go(algorithm, network(), late, data, **where)
        expected = go(algorithm, network(), Recipe(epochs, 10, 0.1, 0.9, 0.9, 0.01), data, **where)
        assert_same((found.up, found.memory, found.loss), (expected.up, expected.memory, expected.loss), 0)
        if isinstance(algorithm, FedNova):
            sgd = Sgd(0.1, 0.9, 0.01, epochs * 3)  # 23 examples are three batches of ten
            assert float(found.up.steps) == pytest.approx(sgd.effective_steps(), abs=1e-12)
    assert seen == {1, 2, 3}


def test_a_loss_that_is_no_number_ends_the_visit():
    @dataclass(frozen=True)
    class Poisoned(Scaffold):
        def loss(self, model: Any, params: Any, anchor: Any, batch: Any) -> torch.Tensor:
            bad = (batch.place == 4).any()  # one example of the client
            return super().loss(model, params, anchor, batch) / torch.where(bad, 0.0, 1.0)

    data, recipe = client(), Recipe(2, 10)
    order = data.draw(2, 5, 2, 7).order[0].tolist()
    done = go(Poisoned(), network(), recipe, data)
    assert done.failure is not None
    assert done.failure.step == order.index(4) // 10 + 1
    assert str(done.failure).startswith(f"client 7, round 2, step {done.failure.step}: the loss became inf")
    assert done.up is None
    assert_same(done.memory, Scaffold().remember(Model(network()).initial()))
    assert math.isnan(done.loss)


def test_losses_whose_mean_is_no_number_end_the_visit():
    class Huge(FedAvg):
        def loss(self, model: Any, params: Any, anchor: Any, batch: Any) -> torch.Tensor:
            return -torch.finfo(torch.float64).max + 0 * super().loss(model, params, anchor, batch)

    done = go(Huge(), network(), Recipe(1, 10), client())
    assert str(done.failure) == "client 7, round 2, step 3: the mean of the losses became -inf"


def test_a_model_that_overflows_in_its_last_step_is_refused():
    done = go(FedAvg(), network(), Recipe(1, 100, lr=1e300, momentum=0.0, weight_decay=1e300), client())
    assert "client 7, round 2, step 1" in str(done.failure)
    assert done.up is None


def test_an_upload_that_is_no_number_is_refused():
    @dataclass(frozen=True)
    class Broken(Scaffold):
        def finish(self, *args: Any) -> Any:
            up, memory = super().finish(*args)
            return up._replace(change={n: c * math.nan for n, c in up.change.items()}), memory

    done = go(Broken(), network(), Recipe(1, 10), client())
    assert "step 3: the upload holds NaN or Inf, first in change/0.weight" in str(done.failure)


def test_a_memory_that_is_no_number_is_refused_and_the_old_one_kept():
    @dataclass(frozen=True)
    class Forgetful(Scaffold):
        def finish(self, *args: Any) -> Any:
            up, memory = super().finish(*args)
            return up, trees.transform(lambda t: t + math.inf, memory)

    done = go(Forgetful(), network(), Recipe(1, 10), client())
    assert "step 3: what the client would remember holds NaN or Inf" in str(done.failure)
    assert done.up is None
    assert_same(done.memory, Scaffold().remember(Model(network()).initial()))


def test_a_parameter_that_no_logit_depends_on_only_decays():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = network(), nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, x):
            return self.used(x)

    recipe = Recipe(1, 10, lr=0.1, lr_decay=1.0, momentum=0.0, weight_decay=0.01)
    done = go(FedAvg(), Spare(), recipe, client())
    assert done.failure is None
    assert done.up.weights.params["spare"].tolist() == pytest.approx([(1 - 0.1 * 0.01) ** 3] * 3, rel=1e-12)


def test_every_step_of_a_visit_drops_other_units_and_every_visit_too():
    masks = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.drop = network(), KeyedDropout(0.5, salt=1)

        def forward(self, x):
            if self.training:
                masks.append(tuple((self.drop(torch.ones(20)) == 0).tolist()))
            return self.net(x)

    for place in ({}, {"round_number": 3}, {"client": 8}, {"seed": 6}):
        go(FedAvg(), Watched(), Recipe(2, 10), client(), **place)
    assert len(masks) == len(set(masks)) == 4 * 6


def test_a_client_without_examples_is_left_out():
    done = go(FedAvg(), network(), Recipe(1, 10), client(0))
    assert str(done.failure) == "client 7, round 2: it has no examples"


@dataclass(frozen=True)
class Poison(Scaffold):
    """Clients with an even number of examples send their models to infinity from round 2 on."""

    everyone: bool = False
    """All clients."""

    def finish(self, model: Any, weights: Any, anchor: Any, memory: Any, data: Any, sgd: Any) -> Any:
        up, kept = super().finish(model, weights, anchor, memory, data, sgd)
        first = all(not v.any() for v in memory.variate.values())
        if (self.everyone or len(data) % 2 == 0) and not first:
            up = up._replace(change={n: c / 0.0 for n, c in up.change.items()})
        return up, kept


def poisoned(out: Any = None, **settings: Any) -> Experiment:
    everyone = settings.pop("everyone", False)
    spec = {"name": f"{__file__}:Poison", "everyone": everyone}
    return experiment(spec, out, sample=6, **settings)


def test_a_poisoned_client_is_left_out_of_the_round_and_named():
    run = poisoned(rounds=2)
    even = [k for k in range(6) if run.federation.size(k) % 2 == 0]
    assert 0 < len(even) < 6
    sent = trees.detached(run.server.weights)
    history = run.run().history
    assert history[0]["failures"] == []
    told = sorted(history[1]["failures"])
    assert [t.partition(", step")[0] for t in told] == [f"client {k}, round 2" for k in even]
    assert all("step" in t and "NaN or Inf" in t for t in told)
    assert trees.finite(run.server)
    assert not torch.equal(run.server.weights.params["fc.bias"], sent.params["fc.bias"])
    # The excluded clients remember what they did before, and c is the mean of what all remember.
    mean = trees.zeros(run.server.variate)
    for k in range(6):
        own = run.memories.get(k).variate
        mean = {n: m + own[n] / 6 for n, m in mean.items()}
    assert_same(run.server.variate, mean, 1e-12)


def test_a_poisoned_client_can_stop_the_run():
    with pytest.raises(UserError, match=r"client \d, round 2, step \d+: .*without a folder keeps no model"):
        poisoned(rounds=3, on_failure="stop").run()


def test_when_all_clients_fail_the_run_stops_and_keeps_the_last_good_model(tmp_path):
    run = poisoned(tmp_path / "run", rounds=3, everyone=True)
    with pytest.raises(UserError, match=r"every client of the round failed, first client \d, round 2"):
        run.run()
    good = poisoned(rounds=1, everyone=True)
    good.run()
    checkpoint = next(RunFolder(tmp_path / "run").checkpoints())
    assert checkpoint.round_number == 1
    assert_same(trees.restore(good.server, checkpoint.arrays), good.server)
    assert [r["round"] for r in RunFolder(tmp_path / "run").metrics()] == [1]


def test_the_training_loss_is_that_of_the_clients_that_count(monkeypatch):
    finish = FedAvg.finish

    def losses(*failing: int) -> float:
        def refuses(*given: Any) -> Any:
            up, memory = finish(*given)
            bad = trees.transform(lambda t: t * float("nan") if t.is_floating_point() else t, up)
            return (bad if given[5].number in failing else up), memory

        monkeypatch.setattr(FedAvg, "finish", refuses)
        run = experiment("fedavg", rounds=1, sample=3)
        record = run.run().history[0]
        drawn.update(k for chain in record["chains"] for k in chain)
        assert len(record["failures"]) == len(failing)
        return float(record["train_loss"])

    drawn: set[int] = set()
    losses()
    a, b, c = sorted(drawn)
    assert losses(c) == pytest.approx((losses(b, c) + losses(a, c)) / 2, rel=1e-12)


def test_each_hook_of_a_visit_draws_numbers_of_its_own():
    drawn = {}

    @dataclass(frozen=True)
    class Draws(FedAvg):
        def prepare(self, model: Any, down: Any, memory: Any, data: Any) -> Any:
            drawn["prepare"] = torch.rand(4, dtype=torch.float64)
            return super().prepare(model, down, memory, data)

        def loss(self, model: Any, params: Any, anchor: Any, batch: Any) -> Any:
            drawn.setdefault("steps", torch.rand(4, dtype=torch.float64))
            return super().loss(model, params, anchor, batch)

        def finish(self, model: Any, weights: Any, anchor: Any, memory: Any, data: Any, sgd: Any) -> Any:
            drawn["finish"] = torch.rand(4, dtype=torch.float64)
            return super().finish(model, weights, anchor, memory, data, sgd)

    go(Draws(), network(), Recipe(local_epochs=1), client(), seed=0, round_number=1, client=0)
    assert len({tuple(t.tolist()) for t in drawn.values()}) == 3


def test_parameters_may_take_each_others_places():
    params = {"a": torch.ones(2, 2), "b": torch.full((2, 2), 2.0), "c": torch.tensor([[1.0, 2], [3, 4]])}
    overwrite(params, {"a": params["b"], "b": params["a"], "c": params["c"].t()})
    assert params["a"].tolist() == [[2, 2], [2, 2]]
    assert params["b"].tolist() == [[1, 1], [1, 1]]
    assert params["c"].tolist() == [[1, 3], [2, 4]]
