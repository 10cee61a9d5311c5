"""SFedKD and its rivals: losses against plain numpy, teachers' logits, server state, disclosure."""

import os

import numpy as np
import pytest
import torch
from scipy import stats
from tests.algorithms.cases import BATCH_NORM, assert_same, experiment
from tests.algorithms.test_all import moment, play

from fedrecall import payloads, rounds, streams, trees
from fedrecall.algorithms import ALGORITHMS, multi_teacher
from fedrecall.algorithms.multi_teacher import Said
from fedrecall.algorithms.teachers import at_random, complementary
from fedrecall.losses import kl, not_true_kl, true_class_kl
from fedrecall.models.model import Weights
from fedrecall.training import Failure, hooks_chance

RIVALS = ["fedseq+aver", "fedseq+ebkd", "fedseq+ca-mkd"]
ALL = ["sfedkd", *RIVALS]


def softmax(z, axis=-1):
    e = np.exp(z - z.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def plain_kl(p, q):
    return sum(a * (np.log(a) - np.log(b)) for a, b in zip(p, q, strict=True) if a > 0)


def drawn(k=3, b=4, c=5, scale=2.0, seed=0):
    g = np.random.default_rng(seed)
    return g.normal(size=(k, b, c)) * scale, g.normal(size=(b, c)) * scale, g.integers(0, c, b)


def distil(algorithm, teachers, student, y, distances):
    made = ALGORITHMS.make(algorithm)
    tensors = [torch.from_numpy(np.asarray(v)) for v in (teachers, student, y, distances)]
    return made.distil(*tensors).numpy()


@pytest.mark.parametrize("tau", [1.0, 2.5])
@pytest.mark.parametrize("k", [1, 3])
def test_sfedkd_term_against_numpy(tau, k):
    teachers, student, y = drawn(k)
    d = np.array([0.4, 1.1, 2.0])[:k]
    found = distil(f"sfedkd:gamma=1.5,beta=0.7,tau={tau},epsilon=0.01", teachers, student, y, d)
    g, h = d / d.sum(), (1 / (d + 0.01)) / (1 / (d + 0.01)).sum()
    for i, label in enumerate(y):
        expected = 0.0
        for j in range(k):
            rest = [c for c in range(5) if c != label]
            nckd = plain_kl(softmax(teachers[j, i, rest] / tau), softmax(student[i, rest] / tau))
            p, q = softmax(teachers[j, i] / tau)[label], softmax(student[i] / tau)[label]
            tckd = plain_kl([p, 1 - p], [q, 1 - q])
            expected += tau**2 * (1.5 * g[j] * nckd + 0.7 * h[j] * tckd)
        assert found[i] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_kl_is_its_two_parts(tau):
    teachers, student, y = (torch.from_numpy(v) for v in drawn(1, 50))
    whole = kl(teachers, student, tau)
    p_y = (teachers / tau).softmax(-1)[0].gather(-1, y[:, None])[:, 0]
    parts = true_class_kl(teachers, student, y, tau) + (1 - p_y) * not_true_kl(teachers, student, y, tau)
    torch.testing.assert_close(whole, parts, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("which", ["g", "h"])
def test_weights_can_be_uniform_one_at_a_time(which):
    teachers, student, y = drawn()
    d, even = np.array([0.1, 1.0, 5.0]), np.ones(3)
    off = {"g": "beta", "h": "gamma"}[which]  # the other term
    alone = distil(f"sfedkd:{which}=uniform,{off}=0", teachers, student, y, d)
    np.testing.assert_allclose(alone, distil(f"sfedkd:{off}=0", teachers, student, y, even), rtol=1e-12)
    assert not np.allclose(alone, distil(f"sfedkd:{off}=0", teachers, student, y, d))


@pytest.mark.parametrize("tau", [1.0, 2.0])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("name", RIVALS)
def test_rivals_against_numpy(name, k, tau):
    teachers, student, y = drawn(k)
    found = distil(f"{name}:beta=2,tau={tau}", teachers, student, y, np.ones(k))
    for i, label in enumerate(y):
        p = softmax(teachers[:, i])
        if k == 1:
            w = np.ones(1)
        elif name == "fedseq+aver":
            w = np.full(k, 1 / k)
        elif name == "fedseq+ebkd":
            entropy = np.array([-sum(v * np.log(v)) for v in p])
            w = (1 - entropy / entropy.sum()) / (k - 1)
        else:
            wrong = np.exp(-np.log(p[:, label]))
            w = (1 - wrong / wrong.sum()) / (k - 1)
        terms = [plain_kl(softmax(teachers[j, i] / tau), softmax(student[i] / tau)) for j in range(k)]
        assert w.sum() == pytest.approx(1)
        assert found[i] == pytest.approx(2 * tau**2 * (w @ terms), rel=1e-10)


@pytest.mark.parametrize("classes", [1, 2, 10])
@pytest.mark.parametrize("name", ALL)
def test_extreme_logits_give_finite_terms_and_gradients(name, classes):
    for k in (1, 3):
        teachers, student, y = (torch.from_numpy(v) for v in drawn(k, 6, classes, scale=1e4))
        student.requires_grad_(True)
        term = ALGORITHMS.make(name).distil(teachers, student, y, torch.zeros(k, dtype=torch.float64))
        (gradient,) = torch.autograd.grad(term.sum(), student)
        assert bool(torch.isfinite(term).all())
        assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("name", ALL)
def test_a_student_that_equals_its_teachers_pays_nothing(name):
    _, student, y = drawn()
    term = distil(name, np.stack([student] * 3), student, y, np.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(term, 0, atol=1e-12)


def after_one_round(spec, **settings):
    run = experiment(spec, **settings)
    run.server = play(run, [0, 1, 2, 3], settings.get("chains", 1)).server
    return run


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_looked_up_logits_are_those_of_a_pass_over_the_teachers(norm):
    settings = {"model": BATCH_NORM} if norm == "batch" else {}
    run = after_one_round("sfedkd:teachers=3", **settings)
    down, memory, local, batch = moment(run)
    cached = run.algorithm.prepare(run.model, down, memory, local)
    assert cached.logits.shape == (len(local), 3, 4)
    assert not cached.teachers.params
    live = cached._replace(teachers=down.teachers, logits=torch.empty(0))
    losses = []
    for anchor in (cached, live):
        student = run.model.student(down.weights.buffers, torch.tensor(0))
        losses.append(run.algorithm.loss(student, down.weights.params, anchor, batch))
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0)
    # Each teacher alone, in evaluation mode with its own statistics.
    for j in range(3):
        alone = run.model.frozen(trees.take(down.teachers, j), batch.x)
        torch.testing.assert_close(cached.logits[batch.place, j], alone, rtol=1e-10, atol=1e-10)


def test_augmented_data_are_shown_to_the_teachers_as_the_student_sees_them():
    run = after_one_round("sfedkd:teachers=2", augmentation="flip")
    down, memory, local, batch = moment(run)
    anchor = run.algorithm.prepare(run.model, down, memory, local)
    assert anchor.logits.numel() == 0
    student = run.model.student(down.weights.buffers, torch.tensor(0))
    found = run.algorithm.loss(student, down.weights.params, anchor, batch)
    teachers = torch.stack([run.model.frozen(trees.take(down.teachers, j), batch.x) for j in range(2)])
    logits = run.model.frozen(down.weights, batch.x)  # the net has neither dropout nor batch norm
    expected = torch.nn.functional.cross_entropy(logits, batch.y)
    expected += run.algorithm.distil(teachers, logits, batch.y, anchor.distances).mean()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("chains", [1, 2])
def test_teachers_are_the_chosen_clients_models_of_every_chain(chains):
    run = experiment("sfedkd:teachers=3")
    played = play(run, [5, 1, 2, 0], chains)
    distributions = torch.stack([run.federation.client(k).distribution for k in (5, 1, 2, 0)])
    chosen = complementary(distributions, 3, "kl", 1e-4)
    assert chosen != [0, 1, 2]  # or the test shows nothing
    models = [v.up.weights for v in played.visits]
    assert [v.client for v in played.visits] == [5, 1, 2, 0]
    assert_same(played.server.teachers, trees.stack([models[i] for i in chosen]))
    torch.testing.assert_close(played.server.distributions, distributions[chosen])
    assert int(played.server.round) == 1
    if chains == 1:
        assert_same(played.server.weights, models[-1])
    # And they are what travels next, to every client of the chain.
    down = run.algorithm.broadcast(run.model, played.server, None)
    later = run.algorithm.relay(down, played.visits[0].up)
    assert_same(later.teachers, played.server.teachers)
    assert_same(later.weights, models[0])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sfedkd:teachers=9", 4),
        ("sfedkd:teachers=2", 2),
        ("sfedkd:teachers=0", 0),
        ("sfedkd:selection=all,teachers=2", 4),
        ("sfedkd:selection=all,teachers=0", 0),
        ("sfedkd:selection=random,teachers=3", 3),
    ],
)
def test_number_of_teachers(spec, expected):
    run = after_one_round(spec)
    assert run.server.distributions.shape == (expected, 4 if run.algorithm.asks else 0)
    assert all(p.shape[0] == expected for p in run.server.teachers.params.values())


@pytest.mark.parametrize(
    "spec",
    [
        "sfedkd:selection=random,g=uniform,h=uniform",
        "sfedkd:selection=all,g=uniform,h=uniform,share=laplace",
        "sfedkd:teachers=0",
        "fedseq+aver:selection=all",
    ],
)
def test_where_nothing_depends_on_label_distributions_none_is_sent(spec):
    run = after_one_round(spec)
    assert run.server.distributions.shape[1] == 0
    down, memory, local, _ = moment(run)
    assert not isinstance(memory, Said)
    anchor = run.algorithm.prepare(run.model, down, memory, local)
    assert anchor.distances.tolist() == [0] * len(run.server.distributions)
    said = run.algorithm.finish(run.model, down.weights, anchor, memory, local, None)[0]
    assert said.distribution.numel() == 0


@pytest.mark.parametrize("spec", ["sfedkd:selection=all,h=uniform", "fedseq+aver", "sfedkd:selection=random"])
def test_where_something_does_they_are(spec):
    assert after_one_round(spec).server.distributions.shape[1] == 4


def test_teachers_that_are_sure_of_everything_count_alike():
    sure = torch.full((3, 2, 4), -1e6, dtype=torch.float64)
    sure[..., 0] = 1e6
    weights = ALGORITHMS.make("fedseq+ebkd").weigh(sure, torch.zeros(2, dtype=torch.int64))
    assert weights.flatten().tolist() == pytest.approx([1 / 3] * 6)


def test_distances_are_from_the_teachers_client_to_the_student():
    run = after_one_round("sfedkd:teachers=2,metric=l1")
    down, memory, local, _ = moment(run, client=4)
    anchor = run.algorithm.prepare(run.model, down, memory, local)
    counts = np.bincount(local.y.numpy(), minlength=4) / len(local)
    expected = np.abs(down.distributions.numpy() - counts).sum(1)
    np.testing.assert_allclose(anchor.distances.numpy(), expected, rtol=1e-12)
    # KL is of the teacher's client from the student's, not the other way round.
    kl_algorithm = ALGORITHMS.make("sfedkd:teachers=2,epsilon=0.01")
    found = kl_algorithm.prepare(run.model, down, memory, local).distances.numpy()
    expected = [stats.entropy(p + 0.01, counts + 0.01) for p in down.distributions.numpy()]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_bytes_are_those_of_the_tuples():
    run = experiment("sfedkd:teachers=3", rounds=2, sample=4)
    records = run.run().history
    model = trees.size_in_bytes(run.server.weights)
    assert records[0]["bytes_down"] == 4 * model  # no teachers yet
    assert records[1]["bytes_down"] == 4 * (4 * model + 3 * 4 * 8)
    assert records[1]["bytes_up"] == 4 * (model + 4 * 8)


@pytest.mark.parametrize(("share", "kept"), [("exact", 0), ("grid", 0), ("laplace", 4), ("gaussian", 4)])
def test_the_record_counts_what_clients_keep_of_what_they_said(share, kept):
    run = experiment(f"sfedkd:share={share}", rounds=1)
    (record,) = run.run().history
    assert record["memory_bytes"] == kept * 8  # a share of every class in double precision
    for client in record["chains"][0]:
        assert trees.size_in_bytes(run.memories.get(client)) == kept * 8


def test_what_a_client_keeps_is_found_where_the_model_is():
    elsewhere = torch.device("meta")  # as on a GPU
    weights = Weights({"w": torch.empty(2, dtype=torch.float64, device=elsewhere)}, {})
    for shape in ((1, 2, 2), (3,)):
        data = payloads._made_up(shape, 4, weights)
        assert {t.device for t in (data.x, data.y, data.mean, data.std)} == {elsewhere}
        assert data.dtype == torch.float64


def test_noise_is_drawn_once_for_each_client():
    run = experiment("sfedkd:share=laplace,noise=0.3", rounds=1)
    first = play(run, [0, 1, 2], 1)
    again = play(run, [2, 1, 0], 1, number=7)
    said = {v.client: v.up.distribution for v in first.visits}
    for v in again.visits:
        assert torch.equal(v.up.distribution, said[v.client])
        assert isinstance(v.memory, Said)
    assert not torch.equal(said[0], said[1])
    for k, p in said.items():
        assert not torch.equal(p, run.federation.client(k).distribution)
    other = experiment(
        "sfedkd:share=laplace,noise=0.3", seed=run.config.seed + 1, partition_seed=run.config.seed
    )
    assert torch.equal(other.federation.client(0).distribution, run.federation.client(0).distribution)
    moved = {v.client: v.up.distribution for v in play(other, [0, 1, 2], 1).visits}
    assert not torch.equal(moved[0], said[0])


def test_random_teachers_follow_from_the_runs_seed_and_the_round(monkeypatch):
    drawn = []

    def noted(population, count):
        drawn.append(tuple(found := at_random(population, count)))
        return found

    monkeypatch.setattr(multi_teacher, "at_random", noted)
    spec = "sfedkd:selection=random,teachers=3,g=uniform,h=uniform"
    found = []
    for seed in (3, 4, 3):
        experiment(spec, seed=seed, partition_seed=3, sample=6, rounds=4).run()
        found.append([*drawn])
        drawn.clear()
    assert found[0] == found[2] != found[1]
    assert len(set(found[0])) > 1


def test_clients_with_the_same_labels_say_different_things():
    run = experiment("sfedkd:share=laplace,noise=0.1")
    down, memory, local, _ = moment(run)
    anchor = run.algorithm.prepare(run.model, down, memory, local)
    said = []
    for k in (1, 2, 1):
        with streams.seeded(hooks_chance(run.algorithm, run.config.seed, 1, k), "finish"):
            up, _ = run.algorithm.finish(run.model, down.weights, anchor, memory, local.numbered(k), None)
        said.append(up.distribution)
    assert not torch.equal(said[0], said[1])
    assert torch.equal(said[0], said[2])


def test_secret_noise_cannot_be_drawn_again_but_stays():
    spec = "sfedkd:share=gaussian,noise=0.3,secret_noise=true"
    one, two = experiment(spec), experiment(spec)
    a, b = play(one, [0], 1).visits[0], play(two, [0], 1).visits[0]
    assert not torch.equal(a.up.distribution, b.up.distribution)
    assert torch.equal(play(one, [0], 1, number=2).visits[0].up.distribution, a.up.distribution)


@pytest.mark.parametrize("share", ["gaussian", "laplace"])
def test_secret_noise_is_made_of_the_systems_bytes_and_of_no_generators(share, monkeypatch):
    asked = []

    def same(count):
        asked.append(count)
        return bytes(1 + place % 250 for place in range(count))

    monkeypatch.setattr(os, "urandom", same)
    runs = [experiment(f"sfedkd:share={share},noise=0.3,secret_noise=true") for _ in range(2)]
    asked.clear()
    a, b = (play(run, [0], 1).visits[0].up.distribution for run in runs)
    assert torch.equal(a, b)
    assert asked.count(8 * len(a)) == 2  # 53 bits of chance for every share, not a seed for all of them


def test_a_client_that_failed_teaches_nobody():
    run = experiment("sfedkd:teachers=5")
    made = play(run, [0, 1, 2], 1)
    first, failed, last = made.visits
    lost = failed._replace(up=None, failure=Failure(1, 1, None, "it was lost"))
    after = rounds.combine(run.algorithm, run.server, [[first, lost, last]], 6)
    taught = torch.stack([first.up.distribution, last.up.distribution])
    assert sorted(after.distributions.tolist()) == sorted(taught.tolist())
    assert len(made.server.distributions) == 3


@pytest.mark.parametrize("share", ["exact", "laplace"])
def test_what_is_resumed_lies_with_the_weights(share):
    """On a GPU, too; there is a device everywhere on which things only lie."""
    run = experiment(f"sfedkd:share={share}")
    away = trees.transform(lambda t: t.to("meta"), run.server.weights)
    assert run.algorithm.start(away).distributions.device.type == "meta"
    assert all(t.device.type == "meta" for t in trees.arrays(run.algorithm.remember(away)).values())
    down = run.algorithm.broadcast(run.model, run.algorithm.start(away), None)
    anchor = run.algorithm.prepare(run.model, down, (), run.federation.client(0))
    assert {anchor.logits.device.type, anchor.distances.device.type} == {"meta"}
