"""The examples that the documentation shows run as they stand."""

import contextlib
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedrecall
from fedrecall import config as configs
from fedrecall import files, rounds
from fedrecall.algorithms.fedavg import Down, FedAvg
from fedrecall.cli import main
from fedrecall.experiment import Experiment
from fedrecall.measures.accuracy import accuracy, evaluate
from fedrecall.models.model import Weights
from fedrecall.training import visit
from tools import reliability

EXAMPLES = Path(__file__).parent.parent / "examples"
DOCS = Path(__file__).parent.parent / "docs"
BY_HAND = {
    "dataset": "digits",
    "model": "mlp:16",
    "workers": 2,
    "seed": 1,
    "precision": "float64",
    "momentum": 0.9,
    "batch_size": 10,
    "partition": "shards:2",
}
"""A federation that is trained by hand beside the package."""


def configs_of(page, folder):
    """The configs that a page's YAML makes."""
    found = []
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)):
        path = folder / f"{page.stem}-{number}.yaml"
        path.write_text(block)
        found.append(configs.make(configs.nested(configs.load(path))))
    return found


def test_five_lines_of_python(capsys):
    text = (EXAMPLES / "five_lines.py").read_text()
    assert '"rounds": 10,' in text
    exec(compile(text.replace('"rounds": 10,', '"rounds": 2,'), "five_lines.py", "exec"), {})
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["fedavg", "fedntd"]


def test_the_settings_that_the_documentation_shows_are_some(tmp_path):
    assert all(configs_of(page, tmp_path) for page in (DOCS / "settings.md", DOCS / "privacy.md"))
    long, short = configs_of(DOCS / "settings.md", tmp_path)
    assert long == short
    files.write_json(tmp_path / "config.json", configs.as_dict(long))
    assert configs.make(configs.load(tmp_path / "config.json")) == long


def test_an_algorithm_from_a_file_of_ones_own_on_the_command_line(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    small = (
        "--dataset digits --clients 20 --sample 2 --rounds 1 --model mlp:8 --backend processes --workers 2"
    )
    algorithm = f"{EXAMPLES / 'fedmargin.py'}:FedMargin:margin=0.5"
    monkeypatch.setattr(sys, "argv", ["fedrecall", "run", "--algorithm", algorithm, *small.split()])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code in (0, None)


def test_layers_that_a_network_does_not_have_are_told():
    algorithm = f"{EXAMPLES / 'fedper.py'}:FedPer:keep=fc9."
    with pytest.raises(fedrecall.UserError, match=r"no layer's name begins with 'fc9\.': .*fc2\.bias"):
        fedrecall.run(algorithm=algorithm, dataset="digits", clients=4, model="mlp:16")


@pytest.mark.parametrize("backend", ["serial", "processes", "vectorised"])
def test_layers_that_stay_with_clients(backend, tmp_path):
    algorithm = f"{EXAMPLES / 'fedper.py'}:FedPer"
    how = {**BY_HAND, "algorithm": algorithm, "clients": 4, "sample": 4, "backend": backend}
    how["measures"] = ["personal", "locals", "fairness"]
    done = fedrecall.run(tmp_path / "run", rounds=2, **how)
    fedrecall.run(tmp_path / "run", rounds=3, resume=True, **how)
    first, last = done.model.initial().params, done.weights.params
    assert all(torch.equal(first[n], last[n]) == n.startswith("fc2.") for n in first)
    # The same by hand: every client has a head of its own, and is judged with it.
    experiment = Experiment(done.config)
    model, federation = experiment.model, experiment.federation
    shared, own = dict(first), {k: {n: p for n, p in first.items() if n.startswith("fc2.")} for k in range(4)}
    recipe = done.config.training
    for number in (1, 2):
        made, sizes, had = {}, {}, {k: {**shared, **own[k]} for k in range(4)}
        for k in range(4):
            data = federation.client(k)
            params = {n: p.clone().requires_grad_() for n, p in {**shared, **own[k]}.items()}
            rate, decay = recipe.sgd(number, len(data)).lr, recipe.weight_decay
            sgd = torch.optim.SGD([*params.values()], rate, recipe.momentum, weight_decay=decay)
            draws = data.draw(recipe.local_epochs, 1, number, k)
            for batch in data.training_batches(draws, recipe.batch_size):
                sgd.zero_grad()
                logits = torch.func.functional_call(model.module, params, (batch.x,))
                torch.nn.functional.cross_entropy(logits, batch.y).backward()
                sgd.step()
            made[k], sizes[k] = {n: p.detach() for n, p in params.items()}, len(data)
            own[k] = {n: made[k][n] for n in own[k]}
        total = sum(sizes.values())
        shared |= {n: sum(made[k][n] * sizes[k] / total for k in range(4)) for n in shared if n not in own[0]}
    for n, p in shared.items():
        assert torch.allclose(last[n], p, atol=1e-12), n
    told = done.history[-1]["measures"]["personal"]
    for k, share in zip(told["clients"], told["train"], strict=True):
        mine = Weights({**made[k]}, {})
        assert share == accuracy(evaluate(model, mine, federation.client(k)).confusion)
    for k, share in zip(told["clients"], told["train_before"], strict=True):  # with the head that it had
        assert share == accuracy(evaluate(model, Weights(had[k], {}), federation.client(k)).confusion)
    fares = []
    for k in range(4):
        seen = evaluate(model, Weights({**shared, **own[k]}, {}), federation.test).confusion
        fares.append(federation.client(k).distribution.numpy() @ (np.diag(seen) / seen.sum(1)))
    fairness = done.history[-1]["measures"]["fairness"]
    assert fairness["mean"] == pytest.approx(np.mean(fares))
    assert fairness["worst_accuracy"] == pytest.approx(min(fares)) != pytest.approx(max(fares))


@pytest.mark.parametrize("backend", ["serial", "processes", "vectorised"])
def test_a_model_of_ones_own_beside_the_shared_one(backend, tmp_path):
    how = {**BY_HAND, "clients": 3, "sample": 3, "backend": backend}
    how["measures"] = ["personal", "locals", "divergence", "fairness"]
    plain = fedrecall.run(rounds=2, **how)
    done = fedrecall.run(
        tmp_path / "run", rounds=2, algorithm=f"{EXAMPLES / 'ditto.py'}:Ditto:lam=0.5", **how
    )
    for n, p in plain.weights.params.items():  # the two share no gradient
        assert torch.allclose(done.weights.params[n], p, atol=1e-12), n
    seen, alone = (run.history[-1]["measures"] for run in (done, plain))
    assert seen["locals"] == alone["locals"]
    assert seen["divergence"]["weights"] == pytest.approx(alone["divergence"]["weights"])
    # The same by hand: every client trains its own model towards the one that arrives.
    experiment = Experiment(done.config)
    model, federation, recipe = experiment.model, experiment.federation, done.config.training
    first = {n: p.double() for n, p in done.model.initial().params.items()}
    middle = fedrecall.run(rounds=1, **how).weights.params
    fares, told = [], seen["personal"]
    for k in range(3):
        own, data = {n: p.clone() for n, p in first.items()}, federation.client(k)
        for number, arrived in ((1, first), (2, middle)):
            params = {n: p.clone().requires_grad_() for n, p in own.items()}
            rate, decay = recipe.sgd(number, len(data)).lr, recipe.weight_decay
            sgd = torch.optim.SGD([*params.values()], rate, recipe.momentum, weight_decay=decay)
            for batch in data.training_batches(data.draw(recipe.local_epochs, 1, number, k), 10):
                sgd.zero_grad()
                logits = torch.func.functional_call(model.module, params, (batch.x,))
                away = sum(((params[n] - p) ** 2).sum() for n, p in arrived.items())
                (torch.nn.functional.cross_entropy(logits, batch.y) + 0.25 * away).backward()
                sgd.step()
            own = {n: p.detach() for n, p in params.items()}
        used = fedrecall.open_runs(tmp_path / "run")[0].own(k).params
        for n, p in own.items():
            assert torch.allclose(used[n].double(), p, atol=1e-6), n
        confusion = evaluate(model, Weights(own, {}), federation.test).confusion
        fares.append(data.distribution.numpy() @ (np.diag(confusion) / confusion.sum(1)))
        at = told["clients"].index(k)
        assert told["personalised"][at] == pytest.approx(fares[-1])
        assert told["train"][at] == accuracy(evaluate(model, Weights(own, {}), data).confusion)
    assert alone["fairness"]["mean"] + 0.1 < seen["fairness"]["mean"] == pytest.approx(np.mean(fares))


def test_what_an_algorithm_adds_to_the_network_is_trained_and_travels(tmp_path):
    section = (DOCS / "extending.md").read_text().split("### More than the network")[1]
    (code,) = re.findall(r"^```python\n(.*?)^```", section.split("###")[0], re.M | re.S)
    (tmp_path / "two.py").write_text(code)
    how = {"dataset": "digits", "clients": 4, "sample": 2, "rounds": 1, "model": "mlp:8", "momentum": 0.0}
    how |= {"precision": "float64", "weight_decay": 0.0, "algorithm": f"{tmp_path / 'two.py'}:TwoHeaded"}
    serial, stacked = (fedrecall.run(backend=b, **how) for b in ("serial", "vectorised"))
    begun = serial.model.initial().params
    for n, p in serial.weights.params.items():
        assert torch.allclose(p, stacked.weights.params[n], atol=1e-12)
        assert not torch.allclose(p, begun[n].double(), atol=1e-4)
    # Of cross-entropy's gradient with respect to logits, a head's biases' is the mean, whose sum is zero.
    moved = serial.weights.params["second.bias"] - begun["second.bias"].double()
    assert moved.sum().item() == pytest.approx(0, abs=1e-9)


def distance(algorithm, **settings):
    """How far one round with an algorithm ends from FedAvg's."""
    common = {
        "dataset": "digits",
        "clients": 20,
        "sample": 2,
        "rounds": 1,
        "model": "mlp:8",
        "backend": "serial",
        **settings,
    }
    mine, plain = (fedrecall.run(algorithm=a, **common) for a in (algorithm, "fedavg"))
    return max((mine.weights.params[n] - v).abs().max() for n, v in plain.weights.params.items())


def test_without_its_margin_the_example_is_fedavg():
    assert distance(f"{EXAMPLES / 'fedmargin.py'}:FedMargin:margin=0") < 1e-6


def test_equal_weights_are_those_of_fedavg_where_clients_hold_equally_much():
    equal = f"{EXAMPLES / 'fedequal.py'}:FedEqual"
    assert distance(equal, partition="iid") < 1e-6 < 1e-3 < distance(equal, partition="lda:0.1")


def test_the_example_with_a_memory_is_fedavg_without_its_teacher_and_remembers_when_it_goes_on(tmp_path):
    assert distance(f"{EXAMPLES / 'fedself.py'}:FedSelf:beta=0") < 1e-6
    own = f"{EXAMPLES / 'fedself.py'}:FedSelf:beta=100"
    settings = {"dataset": "digits", "clients": 4, "sample": 4, "model": "mlp:8", "backend": "serial"}
    whole = fedrecall.run(algorithm=own, rounds=3, **settings)
    fedrecall.run(tmp_path / "run", algorithm=own, rounds=2, **settings)
    assert len(list((tmp_path / "run" / "memories").iterdir())) >= 4
    resumed = fedrecall.run(tmp_path / "run", resume=True, rounds=3)
    for name, value in whole.weights.params.items():
        assert value.equal(resumed.weights.params[name])


@pytest.mark.parametrize("backend", ["serial", "processes", "vectorised"])
def test_a_server_that_learns_from_its_clients_models(backend, tmp_path):
    how = {
        "dataset": "digits",
        "clients": 4,
        "sample": 3,
        "model": "cnn:4",
        "backend": backend,
        "workers": 2,
        "seed": 1,
        "precision": "float64",
        "auxiliary_per_class": 4,
        "local_epochs": 1,
    }
    rate, spec = 0.1, f"{EXAMPLES / 'feddf.py'}:FedDF"
    taught = {"algorithm": f"{spec}:auxiliary_per_class=4,epochs=1,rate={rate}", **how}
    done = fedrecall.run(tmp_path / "run", rounds=2, **taught)
    resumed = fedrecall.run(tmp_path / "run", rounds=3, resume=True, **taught)
    whole = fedrecall.run(rounds=3, **taught)
    assert all(torch.equal(whole.weights.params[n], p) for n, p in resumed.weights.params.items())
    untaught = fedrecall.run(algorithm=f"{spec}:auxiliary_per_class=4,epochs=0", rounds=1, **how)
    plain = fedrecall.run(algorithm="fedavg", rounds=1, **how)
    for n, p in plain.weights.params.items():
        assert torch.equal(untaught.weights.params[n], p)
    # One round by hand: clients one by one, their logits' mean, one step of SGD a batch.
    experiment = Experiment(done.config)
    model, federation, down = experiment.model, experiment.federation, Down(experiment.model.initial())
    clients = []
    for k in rounds.sample(4, 3, 1, 1):
        data, place = federation.client(k), {"round_number": 1, "client": k}
        made = visit(FedAvg(), model, done.config.training, data, down, None, seed=1, **place)
        clients.append(made.up.weights)
    mean = plain.weights.params
    params = {n: p.clone().requires_grad_() for n, p in mean.items()}
    sgd = torch.optim.SGD([*params.values()], rate)
    for batch in federation.auxiliary.batches(32):
        logits = [torch.func.functional_call(model.module, c.params, (batch.x,)) for c in clients]
        soft = torch.stack(logits).mean(0).softmax(1)
        sgd.zero_grad()
        said = torch.func.functional_call(model.module, params, (batch.x,)).log_softmax(1)
        (soft * (soft.log() - said)).sum(1).mean().backward()
        sgd.step()
    once = fedrecall.run(rounds=1, **taught)
    for n, p in params.items():
        assert torch.allclose(once.weights.params[n], p, atol=1e-12), n
        assert not torch.equal(once.weights.params[n], mean[n])


def test_a_server_that_invites_whom_it_does_badly_by(tmp_path):
    hard = f"{EXAMPLES / 'fedhard.py'}:FedHard:power=50"
    how = {"dataset": "digits", "clients": 10, "sample": 2, "model": "mlp:8", "seed": 1, "local_epochs": 1}
    how |= {"partition": "shards:2", "precision": "float64", "backend": "serial"}
    whole = fedrecall.run(algorithm=hard, rounds=6, **how)
    begun = fedrecall.run(tmp_path / "run", algorithm=hard, rounds=1, **how)
    experiment = Experiment(begun.config, tmp_path / "run", resume=True)
    experiment.close()
    # By hand: who came in the first round, as anybody might have, and how the first model did there.
    first = rounds.sample(10, 2, 1, 1)
    losses = [evaluate(begun.model, begun.model.initial(), begun.federation.client(k)).loss for k in first]
    expected = -torch.ones(10).index_put((torch.tensor(first),), -torch.tensor(losses, dtype=torch.float32))
    torch.testing.assert_close(experiment.server.losses, expected)
    # The worst, and whom it never met, come; the others next to never.

    def invited(*losses):
        known = experiment.server._replace(losses=torch.tensor(losses))
        return {frozenset(experiment.algorithm.invite(known, 4, 2, n)) for n in range(20)}

    assert invited(1.0, -1.0, 3.0, 2.0) == {frozenset({1, 2})}
    assert invited(0.0, 2.5, 2.0, 0.0) == {frozenset({1, 2})}  # two that it knows all of
    assert len(invited(0.1, 0.1, 0.1, 0.1)) > 1  # however small
    assert len(invited(0.0, 0.0, 0.0, 0.0)) > 1
    assert len(invited(60.0, 60.0, 60.0, 60.0)) > 1
    chained = tmp_path / "chained"
    run = fedrecall.run(chained, algorithm=hard, rounds=1, **how | {"sample": 4, "chains": 2})
    with contextlib.closing(Experiment(run.config, chained, resume=True)) as found:
        assert (found.server.losses >= 0).sum() == 4
    resumed = fedrecall.run(tmp_path / "run", algorithm=hard, rounds=6, resume=True, **how)
    assert [r["chains"] for r in resumed.history] == [r["chains"] for r in whole.history]
    assert all(torch.equal(p, resumed.weights.params[n]) for n, p in whole.weights.params.items())


@pytest.mark.parametrize("backend", ["serial", "processes", "vectorised"])
def test_clients_that_send_the_largest_entries_of_their_updates_and_remember_the_others(backend, tmp_path):
    sparse = f"{EXAMPLES / 'fedsparse.py'}:FedSparse"
    assert distance(f"{sparse}:share=1", backend=backend, workers=2) < 1e-6
    how = {"dataset": "digits", "clients": 3, "sample": 3, "model": "mlp:8", "seed": 1, "local_epochs": 1}
    how |= {"precision": "float64", "backend": backend, "workers": 2, "partition": "shards:2"}
    whole = fedrecall.run(algorithm=f"{sparse}:share=0.1", rounds=2, **how)
    fedrecall.run(tmp_path / "run", algorithm=f"{sparse}:share=0.1", rounds=1, **how)
    resumed = fedrecall.run(tmp_path / "run", rounds=2, resume=True)
    assert all(torch.equal(p, resumed.weights.params[n]) for n, p in whole.weights.params.items())
    # By hand: of each client's update, and of what it has not said, a tenth.
    model, federation = whole.model, whole.federation
    now, unsaid = model.initial(), dict.fromkeys(range(3), 0.0)
    sizes = [len(federation.client(k)) for k in range(3)]
    for number in (1, 2):
        start, total = torch.cat([p.flatten() for p in now.params.values()]), 0.0
        for k in range(3):
            data, place = federation.client(k), {"round_number": number, "client": k}
            made = visit(FedAvg(), model, whole.config.training, data, Down(now), None, seed=1, **place)
            update = torch.cat([p.flatten() for p in made.up.weights.params.values()]) - start + unsaid[k]
            count = round(len(update) / 10)
            said = torch.where(update.abs() >= update.abs().sort().values[-count], update, 0.0)
            unsaid[k] = update - said
            assert int((said != 0).sum()) == count
            total = total + (start + said) * sizes[k] / sum(sizes)
        parts = total.split([p.numel() for p in now.params.values()])
        pairs = zip(now.params.items(), parts, strict=True)
        now = Weights({n: part.view(p.shape) for (n, p), part in pairs}, {})
    for n, p in now.params.items():
        torch.testing.assert_close(whole.weights.params[n], p, rtol=0, atol=1e-12)
    assert {r["bytes_up"] for r in whole.history} == {3 * (4 + 8) * count}


def step(optimiser, module, params, batch):
    """A step by PyTorch's own optimiser on cross-entropy."""
    optimiser.zero_grad()
    logits = torch.func.functional_call(module, params, (batch.x,))
    torch.nn.functional.cross_entropy(logits, batch.y).backward()
    optimiser.step()


def trained_by_hand(algorithm, backend, take, **settings):
    """The model after a round of an example, and what `take` makes of each client's model, averaged."""
    how = {"dataset": "digits", "clients": 4, "sample": 4, "model": "mlp:16", "seed": 1, "workers": 2}
    how |= {"precision": "float64", "partition": "lda:1", "batch_size": 10, "local_epochs": 3, "rounds": 1}
    done = fedrecall.run(algorithm=algorithm, backend=backend, **how, **settings)
    model, federation, total = done.model, done.federation, 0
    mean = {n: torch.zeros_like(p) for n, p in model.initial().params.items()}
    for k in range(4):
        data = federation.client(k)
        params = {n: p.clone().requires_grad_() for n, p in model.initial().params.items()}
        take(model.module, params, data.training_batches(data.draw(3, 1, 1, k), 10))
        mean = {n: m + params[n].detach() * len(data) for n, m in mean.items()}
        total += len(data)
    return done.weights.params, {n: m / total for n, m in mean.items()}


@pytest.mark.parametrize("backend", ["serial", "processes", "vectorised"])
def test_layers_that_are_trained_in_turn(backend):
    def take(module, params, batches):
        batches = list(batches)
        turn = math.ceil(0.4 * len(batches))
        for part, own in ((batches[:turn], True), (batches[turn:], False)):
            moved = [p.requires_grad_(n.startswith("fc2.") == own) for n, p in params.items()]
            sgd = torch.optim.SGD([p for p in moved if p.requires_grad], 0.01, 0.9, weight_decay=0.02)
            for batch in part:
                step(sgd, module, params, batch)

    in_turn = f"{EXAMPLES / 'fedrep.py'}:FedRep:first=0.4"
    settings = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.02}
    found, expected = trained_by_hand(in_turn, backend, take, **settings)
    shared = [n for n in expected if not n.startswith("fc2.")]
    assert shared
    for n in shared:
        torch.testing.assert_close(found[n], expected[n], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["serial", "processes", "vectorised"])
def test_clients_that_train_with_adam(backend):
    def take(module, params, batches):
        adam = torch.optim.Adam([*params.values()], 0.002, (0.8, 0.95), eps=1e-6)
        for batch in batches:
            step(adam, module, params, batch)

    adam = f"{EXAMPLES / 'localadam.py'}:LocalAdam:beta1=0.8,beta2=0.95,eps=1e-6"
    settings = {"lr": 0.002, "momentum": 0.0, "weight_decay": 0.0}
    found, expected = trained_by_hand(adam, backend, take, **settings)
    for n, value in expected.items():
        torch.testing.assert_close(found[n], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["serial", "processes", "vectorised"])
@pytest.mark.parametrize("keep", [0.75, 1.0])
def test_clients_that_are_taught_by_the_running_mean_of_their_own_models(backend, keep):
    def take(module, params, batches):
        sgd = torch.optim.SGD([*params.values()], 0.05, 0.9)
        teacher = {n: p.detach().clone() for n, p in params.items()}
        for batch in batches:
            sgd.zero_grad()
            logits, taught = (
                torch.func.functional_call(module, p, (batch.x,)).log_softmax(1) for p in (params, teacher)
            )
            said = -(taught.exp() * (logits - taught)).sum(1).mean()
            (torch.nn.functional.nll_loss(logits, batch.y) + 2 * said).backward()
            sgd.step()
            teacher = {n: keep * t + (1 - keep) * params[n].detach() for n, t in teacher.items()}

    mean = f"{EXAMPLES / 'fedmean.py'}:FedMean:beta=2,keep={keep}"
    found, expected = trained_by_hand(mean, backend, take, lr=0.05, momentum=0.9, weight_decay=0.0)
    for n, value in expected.items():
        torch.testing.assert_close(found[n], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["serial", "processes", "vectorised"])
def test_clients_that_are_sent_a_byte_for_each_number(backend):
    def take(module, params, batches):
        with torch.no_grad():
            for p in params.values():
                levels = torch.linspace(p.min(), p.max(), 256, dtype=torch.float64)
                p.copy_(levels[(p.flatten()[:, None] - levels).abs().argmin(1)].view_as(p))
        sgd = torch.optim.SGD([*params.values()], 0.05, 0.9)
        for batch in batches:
            step(sgd, module, params, batch)

    byte = f"{EXAMPLES / 'fedbyte.py'}:FedByte"
    found, expected = trained_by_hand(byte, backend, take, lr=0.05, momentum=0.9, weight_decay=0.0)
    for n, value in expected.items():
        torch.testing.assert_close(found[n], value, rtol=0, atol=1e-12)


def test_a_byte_for_each_number_is_what_is_counted():
    settings = {"dataset": "digits", "clients": 4, "sample": 3, "model": "mlp:8", "backend": "serial"}
    done = fedrecall.run(algorithm=f"{EXAMPLES / 'fedbyte.py'}:FedByte", rounds=1, **settings)
    params = done.weights.params
    assert done.history[0]["bytes_down"] == 3 * sum(p.numel() + 2 * 4 for p in params.values())
    assert done.history[0]["bytes_up"] == 3 * sum(4 * p.numel() for p in params.values())


def test_measures_see_what_the_sent_entries_stand_for():
    found = {}
    for algorithm in ("fedavg", f"{EXAMPLES / 'fedsparse.py'}:FedSparse:share=1"):
        how = {"dataset": "digits", "clients": 4, "sample": 4, "model": "mlp:8", "precision": "float64"}
        measures = ["locals", "divergence"]
        result = fedrecall.run(algorithm=algorithm, rounds=2, backend="serial", measures=measures, **how)
        found[algorithm] = [result.history[-1]["measures"][m] for m in measures]
    one, other = found.values()
    assert_alike(one, other)


def assert_alike(one, other):
    """Numbers of one form, to rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_alike(one[name], other[name])
    elif isinstance(one, list):
        for a, b in zip(one, other, strict=True):
            assert_alike(a, b)
    else:
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)


def test_a_data_set_of_ones_own_is_that_of_its_arrays(tmp_path, monkeypatch):
    stream = np.random.default_rng(3)
    x, y = stream.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 3
    site = np.array(["north", "south", "west"])[np.arange(60) // 20]
    np.savez(tmp_path / "scans.npz", x=x, y=y, site=site)
    how = {"partition": "natural", "clients": 3, "sample": 2, "model": "mlp:8", "backend": "serial"}
    monkeypatch.chdir(tmp_path)
    own = f"{EXAMPLES / 'npz.py'}:Npz:scans.npz"
    fedrecall.run(tmp_path / "run", dataset=own, rounds=1, **how)
    monkeypatch.chdir(EXAMPLES)
    resumed = fedrecall.run(tmp_path / "run", resume=True, rounds=2)
    same = fedrecall.run(dataset=fedrecall.from_arrays(x, y, origin=site), rounds=2, **how)
    assert resumed.federation.origins == [["north"], ["south"], ["west"]]
    assert all(torch.equal(resumed.weights.params[n], v) for n, v in same.weights.params.items())
    with pytest.raises(fedrecall.UserError, match="there is no file"):
        fedrecall.run(dataset=f"{EXAMPLES / 'npz.py'}:Npz:other.npz", rounds=1, **how)


@pytest.mark.parametrize("name", ["fedmargin", "npz"])
def test_the_page_on_extending_shows_the_examples_as_they_are(name):
    code = (EXAMPLES / f"{name}.py").read_text().split('"""\n\n', 1)[1]
    assert f"```python\n{code}```" in (DOCS / "extending.md").read_text()


def test_the_page_on_reliability_is_that_of_its_results():
    assert reliability.PAGE.read_text() == reliability.page(json.loads(reliability.RESULTS.read_text()))
