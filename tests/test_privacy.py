"""Which algorithms need only the mean of uploads, and what noise on that mean hides."""

import csv
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.algorithms.cases import BATCH_NORM, NETS, assert_same, data, experiment

from fedrecall import config as configs
from fedrecall import privacy, trees
from fedrecall.algorithms import ALGORITHMS, FedAvg
from fedrecall.algorithms.fedavg import Anchor, advances, settles
from fedrecall.algorithms.hooks import Cohort
from fedrecall.data.augmentation import Augmentation
from fedrecall.data.client import ClientData
from fedrecall.data.federation import Federation
from fedrecall.data.store import Dataset, Split, fixed_statistics, statistics
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment
from fedrecall.models.model import Weights
from fedrecall.privacy import Private, epsilon, protectable, sums
from fedrecall.specs import spec_text

# What the documentation says; found by the tests below to be so.
MEAN = {
    "fedavg",
    "fedprox",
    "fedavgm",
    "moon",
    "fedalign",
    "fedlsd",
    "fedntd",
    "fedcad",
    "fedssd",
    "calibrated",
}
SECURE = MEAN | {"feddyn", "scaffold", "fedcurv", "fedtrio", "fedseq", "cwc"}
OTHERS = [n for n in ALGORITHMS if n != "private"]


@pytest.mark.parametrize("name", OTHERS)
def test_what_qualifies_is_what_the_documentation_says(name):
    algorithm = ALGORITHMS.make(name)
    assert (protectable(algorithm) is None) == (name in MEAN)
    assert sums(algorithm) == (name in SECURE)
    assert sums(algorithm, equal=False) == (name in MEAN | {"fedseq", "cwc"})


def documented() -> dict[str, tuple[bool, ...]]:
    """The table of docs/privacy.md: what its columns say of each algorithm."""
    page = (Path(__file__).parents[1] / "docs" / "privacy.md").read_text()
    table = page.split("| algorithm |")[1].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {
        name: tuple(cell == "yes" or name in cell.split(", ") for cell in cells)
        for names, *cells in rows
        for name in names.split(", ")
    }


def test_the_documentations_table_is_what_is_found_by_trying():
    found = {}
    for name in OTHERS:
        algorithm = ALGORITHMS.make(name)
        model_alone = privacy._template(algorithm)._fields == ("weights",)
        by_mean = (sums(algorithm, equal=False), sums(algorithm, equal=True))
        found[name] = (*by_mean, model_alone, protectable(algorithm) is None)
    assert documented() == found
    assert privacy.summed(equal=False) == [n for n in OTHERS if found[n][0]]
    assert privacy.summed(equal=True) == [n for n in OTHERS if found[n][1]]


def uploads(name: str, seed: int, count: int):
    """Random uploads of the algorithm's own kind, and a server of which nothing is zero."""
    algorithm = ALGORITHMS.make(name)
    run = experiment(name)
    stream = np.random.default_rng(seed)

    def drawn(t):
        return torch.from_numpy(stream.uniform(0.5, 2, size=t.shape)).to(t.dtype)

    template = privacy._template(algorithm) if name == "fedalign" else None
    if template is None:
        from fedrecall import payloads

        template = payloads.declared(algorithm, run.model, (1, 6, 6), 4).up
    ups = [trees.transform(drawn, template) for _ in range(count)]
    return algorithm, trees.transform(drawn, algorithm.start(ups[0].weights)), ups


@pytest.mark.parametrize("name", sorted(SECURE))
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**31), count=st.integers(2, 5))
def test_only_the_mean_of_the_uploads_matters(name, seed, count):
    """Moving something from one client's upload to another's changes nothing."""
    algorithm, server, ups = uploads(name, seed, count)
    cohort = Cohort(
        list(range(count)), [1 / count] * count, 3 * count, count, [0] * count, list(range(count))
    )
    stream = np.random.default_rng(seed + 1)
    gift = trees.transform(
        lambda t: (
            torch.from_numpy(stream.normal(size=t.shape)).to(t.dtype) if t.is_floating_point() else t * 0
        ),
        ups[0],
    )
    given_to = [
        trees.transform(lambda a, b: a - b, ups[0], gift),
        trees.transform(lambda a, b: a + b, ups[1], gift),
    ]
    before = algorithm.aggregate(server, trees.stack(ups), cohort)
    after = algorithm.aggregate(server, trees.stack([*given_to, *ups[2:]]), cohort)
    assert_same(after, before, 1e-9)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("scaffold", "Scaffold uploads change beside the model"),
        ("fedcurv", "FedCurv uploads change"),
        ("fednova", "FedNova uploads steps"),
        ("sfedkd", "SFedKD sends every client's model to the next"),
        ("fedseq", "FedSeq sends every client's model to the next"),
        ("private", "it cannot protect itself"),
    ],
)
def test_what_cannot_be_protected_is_refused(name, why):
    with pytest.raises(UserError, match=why):
        ALGORITHMS.make(f"private:{name}")


@dataclass(frozen=True)
class Median(FedAvg):
    """Needs every upload."""

    def aggregate(self, server, ups, cohort):
        return server._replace(weights=trees.transform(lambda t: t.median(0).values, ups.weights))


def test_a_users_aggregation_that_needs_every_upload_is_found_out():
    assert not sums(Median())
    assert protectable(Median()) == "Median's aggregation needs more of the uploads than their mean"


def start(run):
    down = run.algorithm.broadcast(run.model, run.server, run.federation.auxiliary)
    return down, down.weights.params


class Prototypes(NamedTuple):
    weights: Any
    table: torch.Tensor


@dataclass(frozen=True)
class OfTenClasses(FedAvg):
    def prepare(self, model, down, memory, data):
        return Prototypes(down.weights, torch.zeros(10))

    def finish(self, model, weights, anchor, memory, data, sgd):
        return Prototypes(weights, anchor.table + data.counts), memory


def test_what_cannot_be_tried_is_not_known():
    for trial in (sums, protectable):
        with pytest.raises(UserError, match=r"OfTenClasses fails on the small network of 3 classes .*Error"):
            trial(OfTenClasses())


@dataclass(frozen=True)
class NoisyServer(FedAvg):
    def aggregate(self, server, ups, cohort):
        mean = cohort.mean(ups.weights)
        return server._replace(
            weights=mean._replace(params={n: p + torch.randn_like(p) for n, p in mean.params.items()})
        )


def test_a_server_that_adds_noise_needs_no_more_than_the_mean():
    assert sums(NoisyServer())


def test_no_update_leaves_longer_than_the_clip_and_short_ones_as_they_are():
    for clip, longer in ((0.01, True), (1e3, False)):
        run = experiment({"name": "private", "clip": clip})
        plain = experiment("fedavg", normalisation="fixed")
        from tests.algorithms.test_all import play

        made, expected = play(run, [0, 1, 2], 3), play(plain, [0, 1, 2], 3)
        before = run.server.weights.params
        for mine, other in zip(made.visits, expected.visits, strict=True):
            moved = {n: (w - before[n]).numpy() for n, w in mine.up.weights.params.items()}
            free = {n: (w - before[n]).numpy() for n, w in other.up.weights.params.items()}
            length = math.sqrt(sum((m**2).sum() for m in moved.values()))
            full = math.sqrt(sum((m**2).sum() for m in free.values()))
            assert (full > clip) == longer
            assert length == pytest.approx(min(full, clip), rel=1e-9)
            for n, m in moved.items():  # shortened, not turned
                np.testing.assert_allclose(m, free[n] * length / full, rtol=1e-9, atol=1e-12)


def cohort(count: int, sampled: int, population: int = 50) -> Cohort:
    """``count`` uploads of unequal clients, of ``sampled`` that were asked."""
    shares = np.arange(1.0, count + 1)
    shares = (shares / shares.sum()).tolist()
    return Cohort(list(range(count)), shares, population, sampled, [0] * count, list(range(count)))


def ups_of(rows: list[list[float]]):
    from fedrecall.algorithms.fedavg import Up

    return Up(Weights({"w": torch.tensor(rows, dtype=torch.float64)}, {}))


def server_of(algorithm: Private, values: list[float]):
    return algorithm.start(Weights({"w": torch.tensor(values, dtype=torch.float64)}, {}))


def test_the_server_adds_up_shortened_updates_and_divides_by_all_it_asked():
    algorithm = Private(clip=5, noise=0)
    server = server_of(algorithm, [1.0, 1.0])
    # Updates (3, 4) of length 5 and (30, 40), which a client should not have sent; one client failed.
    after = algorithm.aggregate(server, ups_of([[4.0, 5.0], [31.0, 41.0]]), cohort(2, 3))
    np.testing.assert_allclose(after.weights.params["w"].numpy(), [1 + 6 / 3, 1 + 8 / 3], rtol=1e-12)
    assert int(after.round) == 1
    assert algorithm.report(after) == {}  # without noise there is no epsilon


def test_what_the_server_must_know_as_clients_remember_it_is_not_protected():
    """FedDyn's correction is the mean of its clients' gradients; of shortened updates it would be another."""
    with pytest.raises(UserError, match="private cannot protect feddyn: FedDyn keeps at the server what"):
        ALGORITHMS.make("private:feddyn")


def test_an_algorithm_is_told_the_mean_as_if_all_had_sent_it():
    algorithm = ALGORITHMS.make({"name": "private", "of": "fedavgm:beta=0.5", "clip": 100, "noise": 0})
    server, m = server_of(algorithm, [1.0, 2.0]), 3
    rows = np.array([[2.0, 2.0], [0.0, 1.0], [3.0, 5.0]])
    after = algorithm.aggregate(server, ups_of(rows.tolist()), cohort(m, m, 50))
    np.testing.assert_allclose(after.weights.params["w"].numpy(), rows.mean(0), rtol=1e-12)
    again = algorithm.aggregate(after, ups_of(rows.tolist()), cohort(m, m, 50))  # moves it no further
    expected = rows.mean(0) + 0.5 * (rows.mean(0) - [1.0, 2.0])
    np.testing.assert_allclose(again.weights.params["w"].numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("secret", [False, True])
def test_the_noise_is_normal_of_the_promised_size_and_fresh_each_round(secret):
    algorithm = Private(clip=2.0, noise=1.5, secret=secret)
    size, m = 40_000, 4
    server = server_of(algorithm, [0.0] * size)
    still = ups_of([[0.0] * size] * m)
    first = algorithm.aggregate(server, still, cohort(m, m))
    where_it_is = ups_of([first.weights.params["w"].tolist()] * m)  # uploads that change nothing
    second = algorithm.aggregate(first, where_it_is, cohort(m, m))
    a = first.weights.params["w"].numpy()
    b = (second.weights.params["w"] - first.weights.params["w"]).numpy()
    for noise in (a, b):
        assert stats.kstest(noise * m / (2.0 * 1.5), "norm").pvalue > 1e-4
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(size)
    again = algorithm.aggregate(server, still, cohort(m, m)).weights.params["w"].numpy()
    assert (again == a).all() != secret  # keyed noise is the same in a run that is repeated
    other = algorithm.aggregate(server_of(algorithm, [1.0] * size), ups_of([[1.0] * size] * m), cohort(m, m))
    assert abs(np.corrcoef(a, other.weights.params["w"].numpy() - 1)[0, 1]) < 5 / math.sqrt(size)


def delta_of_gaussian(epsilon: float, sensitivity_over_sigma: float) -> float:
    """Exact delta of the Gaussian mechanism (Balle and Wang, ICML 2018, theorem 8)."""
    mu, cdf = sensitivity_over_sigma, stats.norm.cdf
    return float(cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 1), (4.0, 10), (8.0, 100)])
def test_epsilon_of_everybody_every_round_is_just_above_the_exact_one(noise, rounds):
    delta = 1e-5
    found = epsilon(noise, 100, 100, rounds, delta)
    # Replacing a client moves the sum by up to two clips; T rounds are one of sqrt(T) times that.
    mu = 2 * math.sqrt(rounds) / noise
    assert delta_of_gaussian(found, mu) <= delta
    low, high = 0.0, 200.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of_gaussian(middle, mu) > delta else (low, middle)
    assert high <= found <= 1.1 * high
    # The textbook conversion of Renyi privacy, T alpha mu_1^2 / 2, is never better.
    orders = np.linspace(1.01, 500, 20_000)
    assert found <= (orders * mu**2 / 2 + math.log(1 / delta) / (orders - 1)).min() + 1e-3


@pytest.mark.no_cover  # others cover it, and in a long loop that is what takes longest
@pytest.mark.parametrize(("noise", "rounds", "delta"), [(2, 50, 1e-3), (0.5, 3, 1e-2)])
def test_drawing_fewer_clients_never_tells_more(noise, rounds, delta):
    found = [epsilon(noise, 20, drawn, rounds, delta) for drawn in (1, 2, 3, 5, 8, 12, 16, 19, 20)]
    assert found == sorted(found)


def test_epsilon_falls_with_noise_and_sampling_and_rises_with_rounds():
    base = epsilon(4.0, 1000, 50, 10, 1e-5)
    assert epsilon(8.0, 1000, 50, 10, 1e-5) < base < epsilon(4.0, 1000, 50, 20, 1e-5)
    assert base < epsilon(4.0, 1000, 1000, 10, 1e-5)
    assert epsilon(0.0, 1000, 50, 10, 1e-5) is None


def test_drawing_clients_hides_nothing_where_clients_remember():
    """What such a client sends tells when it took part before, and so who else did not."""
    found = {}
    for name in ("fedavg", "moon"):
        run = experiment({"name": "private", "of": name, "noise": 4.0}, rounds=2)
        found[name] = run.run().history[-1]["epsilon"]
    assert found["fedavg"] == epsilon(4.0, 6, 3, 2, 1e-5)
    assert found["moon"] == epsilon(4.0, 6, 6, 2, 1e-5) > found["fedavg"]


def test_secret_runs_draw_their_clients_where_nobody_can_follow():
    drawn = {
        secret: [
            experiment(
                {"name": "private", "secret": secret}, clients=40, sample=20, rounds=1, partition="iid"
            )
            .run()
            .history[0]["chains"]
            for _ in range(2)
        ]
        for secret in (False, True)
    }
    assert drawn[False][0] == drawn[False][1]
    assert drawn[True][0] != drawn[True][1]  # but for one time in 10^29
    assert len({k for chain in drawn[True][0] for k in chain}) == 20


def test_a_run_says_its_epsilon_and_says_the_same_when_resumed(tmp_path):
    spec = {"name": "private", "of": {"name": "fedntd", "beta": 0.5}, "noise": 2.0}
    whole = experiment(spec)
    history = whole.run().history
    assert history[-1]["epsilon"] == epsilon(2.0, 6, 3, 3, 1e-5)
    assert [r["epsilon"] for r in history] == sorted(r["epsilon"] for r in history)
    experiment(spec, tmp_path / "run", rounds=2).run()
    again = experiment(spec, tmp_path / "run", resume=True)
    assert again.run().history[-1]["epsilon"] == history[-1]["epsilon"]
    assert_same(again.server, whole.server)


@pytest.mark.parametrize("secret", [False, True])
def test_a_round_that_is_played_again_with_other_noise_counts(secret, tmp_path):
    """Its first model may have been seen: nodes get it to train on, and a folder can be copied."""
    spec = {"name": "private", "noise": 2.0, "secret": secret}
    settings = {"checkpoint_every": 1}

    def spent() -> float:
        return experiment(spec, tmp_path, resume=True, **settings).run().history[-1]["epsilon"]

    experiment(spec, tmp_path, **settings).run()
    for again in (1, 2):
        (tmp_path / "checkpoints" / "round-000003.json").unlink()
        assert spent() == epsilon(2.0, 6, 3, 3 + again * secret, 1e-5)
    settings["rounds"] = 4
    assert spent() == epsilon(2.0, 6, 3, 4 + 2 * secret, 1e-5)
    newest = tmp_path / "checkpoints" / "round-000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match=r"is damaged.* Going on from round 3"):
        assert spent() == epsilon(2.0, 6, 3, 4 + 3 * secret, 1e-5)
    (tmp_path / "made.json").unlink()  # as one may who goes on with other code
    (tmp_path / "checkpoints" / "round-000004.json").unlink()
    assert spent() == epsilon(2.0, 6, 3, 4 + 4 * secret, 1e-5)


def test_how_often_rounds_were_played_again_is_known_or_nothing_goes_on(tmp_path):
    spec = {"name": "private", "noise": 2.0, "secret": True}
    made, noted = tmp_path / "made.json", tmp_path / "again.json"

    def spent(rounds: int) -> float:
        found = experiment(spec, tmp_path, resume=True, rounds=rounds, checkpoint_every=1).run()
        return found.history[-1]["epsilon"]

    spent(1)
    starts = json.loads(made.read_text())
    made.write_text(json.dumps([{**starts[0], "played again": 2}]))  # as earlier versions noted it
    noted.unlink()
    assert spent(2) == epsilon(2.0, 6, 3, 2 + 2, 1e-5)
    made.unlink()
    assert spent(3) == epsilon(2.0, 6, 3, 3 + 2, 1e-5)
    for content in ("[]", '{"rounds": -1}', '{"rounds": "2"}'):
        noted.write_text(content)
        with pytest.raises(UserError, match=r"again\.json is damaged"):
            spent(4)
    made.unlink()
    noted.unlink()
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=r"neither again\.json nor made\.json.* put one of them back"):
        spent(4)
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def test_chains_batch_norm_and_a_missing_accountant_are_explained(monkeypatch):
    with pytest.raises(UserError, match="chains = 1 of 3 clients show each client's model to the next"):
        experiment("private", chains=1)  # before anything is begun
    with pytest.raises(UserError, match="let every client be a chain"):
        Private().relay(None, None)
    experiment("private", chains=3)
    with pytest.raises(UserError, match="without batch normalisation"):
        experiment("private", model=BATCH_NORM)
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"pip install 'fedrecall\[dp\]'"):
        Private()
    assert Private(noise=0.0).noise == 0  # counts nothing


def test_a_client_that_changes_its_mind_moves_the_sum_by_at_most_two_clips():
    algorithm = Private(clip=0.3, noise=0)
    stream = np.random.default_rng(0)
    for _ in range(50):
        server = server_of(algorithm, [0.0] * 3)
        rows = stream.normal(size=(4, 3)) * stream.choice([0.01, 1, 100], size=(4, 1))
        other = rows.copy()
        other[2] = stream.normal(size=3) * 50
        a, b = (
            algorithm.aggregate(server, ups_of(r.tolist()), cohort(4, 4)).weights.params["w"]
            for r in (rows, other)
        )
        assert float((a - b).norm()) * 4 <= 2 * 0.3 * (1 + 1e-9)
    assert replace(algorithm, noise=1.0).clip == 0.3


# What one client's data change.

CLIP = 0.01


def images(replaced: bool) -> Dataset:
    """Twelve examples for each of ten clients; ``replaced``: the first client's are white, of one class."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randint(0, 100, (132, 1, 6, 6), generator=stream, dtype=torch.uint8)
    y = torch.arange(132) % 4
    if replaced:
        x[:12], y[:12] = 255, 0
    test = Split(x[120:], y[120:])
    return Dataset("toy", tuple("abcd"), Split(x, y), test, *statistics(x))


def sum_of_updates(name: str, replaced: bool) -> np.ndarray:
    """The global model after a round of all clients, times their number; the last dozen is the server's."""
    training = {"local_epochs": 2, "batch_size": 6, "lr": 0.1}
    config = configs.make(
        {
            "algorithm": {"name": "private", "of": name, "clip": CLIP, "noise": 0},
            "model": "mlp:8" if name == "fedalign" else NETS,
            "clients": 10,
            "sample": 10,
            "rounds": 1,
            "training": training,
            "precision": "float64",
            "backend": "serial",
            "device": "cpu",
        }
    )
    parts = np.split(np.arange(120), 10)
    federation = Federation(images(replaced), parts, Augmentation(), torch.float64, np.arange(120, 132))
    found = Experiment(config, federation=federation).run().weights.params
    return 10 * torch.cat([p.flatten() for p in found.values()]).numpy()


def moved_by(name: str) -> float:
    return float(np.linalg.norm(sum_of_updates(name, replaced=False) - sum_of_updates(name, replaced=True)))


@pytest.mark.no_cover  # others cover it, and in a long loop that is what takes longest
@pytest.mark.parametrize("name", sorted(MEAN))
def test_replacing_one_clients_data_moves_the_sum_by_at_most_two_clips(name, monkeypatch):
    bound = 2 * CLIP
    moved = moved_by(name)
    assert 0.1 * bound < moved <= bound * (1 + 1e-9)
    monkeypatch.setattr(Dataset, "fixed", lambda dataset, mapped: dataset)
    assert moved_by(name) > bound  # with statistics of the data everyone's update moves


def test_protecting_algorithms_normalise_without_the_data():
    def normalisation(**settings):
        return configs.make(settings).normalisation

    assert normalisation() == normalisation(normalisation="auto") == "data"
    assert normalisation(algorithm="private") == "fixed"
    assert normalisation(algorithm="private", normalisation="fixed") == "fixed"
    assert normalisation(normalisation="fixed") == "fixed"
    assert normalisation(algorithm="private", normalisation="none") == "none"
    with pytest.raises(UserError, match="'data' lets each client's data change every client's inputs"):
        normalisation(algorithm="private", normalisation="data")
    for name, mean, std in (("private", 0.5, 0.5), ("fedavg", data().mean.item(), data().std.item())):
        run = experiment(name)
        for seen in (run.federation.client(0), run.federation.test):
            assert (seen.mean.item(), seen.std.item()) == (mean, std)
    for mapped, seen in ((True, [-1, 1]), (False, [0, 1])):
        x, y = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1), torch.tensor([0, 1])
        pixels = ClientData(x, y, 2, *fixed_statistics((1, 1, 1), mapped))
        np.testing.assert_allclose(next(pixels.batches()).x.flatten(), seen)


def without_normalisation(folder: Path) -> None:
    """As the config was written before the setting existed."""
    path = folder / "config.json"
    path.write_text(
        json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "normalisation"})
    )


def test_a_run_begun_before_normalisation_could_be_chosen_goes_on_as_it_was_or_not_at_all(tmp_path):
    whole = experiment("fedavg")
    whole.run()
    experiment("fedavg", tmp_path / "plain", rounds=2).run()
    without_normalisation(tmp_path / "plain")
    again = experiment("fedavg", tmp_path / "plain", resume=True)
    again.run()
    assert_same(again.server, whole.server)
    experiment("private", tmp_path / "private", rounds=2).run()
    without_normalisation(tmp_path / "private")
    with pytest.raises(UserError, match="private cannot be continued: normalisation = 'data' lets"):
        experiment("private", tmp_path / "private", resume=True)


def test_a_tables_columns_must_not_have_been_standardised_by_everyone(tmp_path):
    stream = np.random.default_rng(0)
    rows = [[*stream.normal(5, 2, 3).round(3), k % 2] for k in range(60)]
    for part in ("train", "test"):
        with open(tmp_path / f"{part}.csv", "w", newline="") as file:
            csv.writer(file).writerows([["a", "b", "c", "label"], *rows])

    def run(**more):
        config = configs.make(
            {
                "algorithm": "private",
                "dataset": {"name": "folder", "path": str(tmp_path), **more},
                "partition": "iid",
                "model": "mlp:4",
                "clients": 6,
                "sample": 3,
                "rounds": 1,
            }
        )
        return Experiment(config)

    with pytest.raises(UserError, match=r"standardised by all clients' data.*standardise=false"):
        run()
    seen = run(standardise=False).federation
    assert torch.equal(next(seen.test.batches()).x, torch.tensor([r[:3] for r in rows], dtype=torch.float32))


def test_a_parameter_that_is_one_number_is_protected_like_others():
    moved = {"scale": torch.tensor([3.0, 0.0]), "weight": torch.tensor([[4.0, 0.0], [0.3, 0.4]])}
    algorithm = Private("fedavg", clip=1.0, noise=0.0)
    torch.testing.assert_close(algorithm._scales(moved), torch.tensor([0.2, 1.0], dtype=torch.float64))
    server = algorithm.start(Weights({"scale": torch.tensor(1.0)}, {}))
    assert int(server.round) == 0


def test_what_is_made_private_is_named_as_it_is_written():
    for written, shown in [
        ("private:fedntd,clip=0.5,noise=1", "private:fedntd,clip=0.5"),
        ({"name": "private", "of": {"name": "fedntd", "beta": 2}}, "private:(fedntd:2)"),
    ]:
        text = spec_text(ALGORITHMS, ALGORITHMS.spec(ALGORITHMS.make(written)))
        assert text.startswith(shown), text
        assert "{" not in text


def test_the_draw_that_epsilon_counts_is_of_all_that_were_asked():
    algorithm = Private(of="fedavg", noise=1.0)
    server = algorithm.aggregate(server_of(algorithm, [0.0]), ups_of([[1.0], [2.0]]), cohort(2, 5))
    assert server.sizes.tolist() == [50, 5]  # three of the five failed


def test_noise_follows_from_all_of_the_first_model():
    def key(last: float) -> int:
        params = {"a": torch.zeros(2), "b": torch.tensor([last])}
        return int(Private(of="fedavg", noise=1.0).start(Weights(params, {})).key)

    assert key(0.0) == key(0.0)
    assert key(0.0) != key(1.0)


@dataclass(frozen=True)
class Shortening(FedAvg):
    """A mean as long as uploads lie near the model."""

    def aggregate(self, server, ups, cohort):
        near = {n: w + (ups.weights.params[n] - w).clamp(-10, 10) for n, w in server.weights.params.items()}
        return server._replace(weights=cohort.mean(ups.weights._replace(params=near)))


class Later(NamedTuple):
    weights: Any
    round: torch.Tensor


@dataclass(frozen=True)
class LaterMedian(FedAvg):
    """A mean in the first round alone."""

    def start(self, weights):
        return Later(weights, torch.tensor(0))

    def aggregate(self, server, ups, cohort):
        mean = cohort.mean(ups.weights)
        made = trees.transform(lambda t: t.median(0).values, ups.weights) if server.round else mean
        return Later(made, server.round + 1)


@pytest.mark.parametrize("algorithm", [Shortening(), LaterMedian()])
def test_what_is_more_than_a_mean_far_away_or_later_on_is_found_out(algorithm):
    assert not sums(algorithm)


def test_a_long_update_is_measured_in_double_precision():
    moved = {"w": torch.full((1, 2), 3e38)}  # whose length is beyond single precision
    scale = float(Private(clip=1.0, noise=0.0)._scales(moved)[0])
    assert scale == pytest.approx(1 / (3e38 * math.sqrt(2)), rel=1e-6, abs=0)


@dataclass(frozen=True)
class Halving(FedAvg):
    def refine(self, model, server, auxiliary):
        return server._replace(weights=trees.transform(lambda t: t / 2, server.weights))


def test_a_protected_algorithm_refines_what_has_its_noise():
    algorithm = Private(of=Halving, noise=1.0)
    server = server_of(algorithm, [4.0])
    refined = algorithm.refine(None, server, None)
    assert refined.weights.params["w"].tolist() == [2.0]
    assert refined[1:] == server[1:]


@dataclass(frozen=True)
class Choosy(FedAvg):
    def invite(self, server, population, count, round_number):
        return range(count)


@dataclass(frozen=True)
class Holding(FedAvg):
    def settle(self, params, before, anchor, batch):
        return {n: before[n] + anchor.weights.params[n] for n in params}


def test_a_protected_algorithm_has_the_last_word_in_its_steps():
    algorithm = Private(of=Holding)
    anchor = SimpleNamespace(inner=SimpleNamespace(weights=Weights({"w": 3.0}, {})))
    assert settles(algorithm)
    assert not settles(Private(of="fedavg"))
    assert algorithm.settle({"w": 1.0}, {"w": 2.0}, anchor, None) == {"w": 5.0}


@dataclass(frozen=True)
class Counting(FedAvg):
    def advance(self, anchor, weights, grads, batch):
        moved = {n: a - weights.params[n] + grads[n] for n, a in anchor.weights.params.items()}
        return anchor._replace(weights=Weights(moved, {}))


def test_what_a_protected_algorithm_holds_on_to_goes_on():
    algorithm = Private(of=Counting)
    assert advances(algorithm)
    assert not advances(Private(of="fedavg"))
    anchor = privacy.Anchor(Anchor(Weights({"w": 1.0}, {})), "what arrived")
    found = algorithm.advance(anchor, Weights({"w": 2.0}, {}), {"w": 4.0}, None)
    assert found == (Anchor(Weights({"w": 3.0}, {})), "what arrived")


class Spoken(NamedTuple):
    weights: Weights
    rounds: Any


@dataclass(frozen=True)
class Telling(FedAvg):
    """Its clients add noise of their own, what they draw first stays, and its server has something to say."""

    remembers_once: ClassVar[bool] = True

    @property
    def secret(self):
        return True

    def start(self, weights):
        return Spoken(weights, torch.tensor(0))

    def aggregate(self, server, ups, cohort):
        return Spoken(cohort.mean(ups.weights), server.rounds + 1)

    def recount(self, server, rounds):
        return server._replace(rounds=torch.tensor(rounds))

    def report(self, server):
        return {"aggregated": float(server.rounds)}


@dataclass(frozen=True)
class Seeing(FedAvg):
    """Notes the generator that its hooks draw from."""

    secret: bool = True
    seen: ClassVar[list[torch.Tensor]] = []

    def finish(self, model, weights, anchor, memory, data, sgd):
        self.seen.append(torch.get_rng_state())
        return super().finish(model, weights, anchor, memory, data, sgd)

    def aggregate(self, server, ups, cohort):
        self.seen.append(torch.get_rng_state())
        return super().aggregate(server, ups, cohort)


def seeded_words(state: torch.Tensor) -> bool:
    """Whether the words of a Mersenne twister's state follow from 32 bits, as the seeding of one has it."""
    words = state[24 : 24 + 8 * 624].view(torch.int64).tolist()
    made = [(1812433253 * (w ^ (w >> 30)) + i) % 2**32 for i, w in enumerate(words[:-1], start=1)]
    return made == words[1:]


@pytest.mark.parametrize("secret", [True, False])
def test_what_protects_is_drawn_from_more_than_the_bits_of_a_seed(secret):
    run = experiment({"name": f"{__file__}:Seeing", "secret": secret}, backend="serial", rounds=2)
    found = type(run.algorithm).seen
    found.clear()
    before = torch.get_rng_state()
    run.run()
    assert torch.equal(torch.get_rng_state(), before)
    assert len(found) == 2 * (3 + 1)
    assert all(seeded_words(state) != secret for state in found)
    with torch.random.fork_rng():
        drawn = []
        for state in found:
            torch.set_rng_state(state)
            drawn.append(torch.rand(2000).numpy())
    assert all(stats.kstest(d, "uniform").pvalue > 1e-4 for d in drawn)
    assert len({d.tobytes() for d in drawn}) == len(drawn)


def test_what_a_protected_algorithm_says_of_itself_holds():
    algorithm = Private(of=Telling, noise=1.0)
    assert algorithm.secret
    assert algorithm.remembers_once
    assert ALGORITHMS.spec(algorithm)["secret"]  # where everybody can read it
    assert not Private(of="fedavg").secret
    assert not Private(of="fedavg").remembers_once
    server = algorithm.recount(server_of(algorithm, [4.0]), 5)
    assert (int(server.round), int(server.inner.rounds)) == (5, 5)
    assert algorithm.report(server) == {"aggregated": 5.0}
    history = experiment({"name": "private", "of": f"{__file__}:Telling", "noise": 2.0}).run().history
    assert [r["aggregated"] for r in history] == [1, 2, 3]
    assert history[-1]["epsilon"] == epsilon(2.0, 6, 3, 3, 1e-5)


@dataclass(frozen=True)
class Packing(FedAvg):
    def unpack(self, up, down):
        return up


def test_what_clients_pack_is_no_mean_and_has_no_bound():
    assert not sums(Packing())
    with pytest.raises(
        UserError, match="Packing packs its uploads, which can only be shortened and averaged"
    ):
        Private(of=Packing)


@dataclass(frozen=True)
class Wrapping(FedAvg):
    def wrap(self, down):
        return down


def test_what_is_wrapped_is_not_what_updates_are_measured_from():
    assert sums(Wrapping())  # their mean is one all the same
    with pytest.raises(UserError, match="Wrapping wraps what it sends, and updates are measured from"):
        Private(of=Wrapping)


def test_whom_an_algorithm_invites_no_draw_hides():
    assert protectable(Choosy()) == "Choosy invites clients of its choice, which a random draw would hide"
    with pytest.raises(UserError, match="Choosy invites clients of its choice"):
        Private(of=Choosy)
