import itertools
import json
import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.measures.conftest import EYE, SWAP, in_chains, weights
from torch import nn

from fedrecall.algorithms.fedavg import FedAvg, Memory
from fedrecall.data.augmentation import plain
from fedrecall.data.client import ClientData
from fedrecall.data.datasets import Split
from fedrecall.errors import UserError
from fedrecall.fields import fields
from fedrecall.measures import MEASURES
from fedrecall.measures.alignment import SILENT, alignment, last_linear, preferences, preferred
from fedrecall.measures.divergence import distribution_distance, weight_divergence
from fedrecall.measures.diversity import full_gradient, gradient_diversity
from fedrecall.measures.landscape import Loss, perturbation_curve
from fedrecall.measures.moment import Measure
from fedrecall.models.model import Model
from fedrecall.records import scalars
from fedrecall.reports.figures.quantities import mean

CLEAR = {"landscape": {"examples": 6, "draws": 1, "sizes": (0.0, 0.1)}}


@pytest.mark.parametrize("name", list(MEASURES))
def test_every_measure_makes_json_and_explains_its_options(name, moment):
    measure = MEASURES.make({"name": name, **CLEAR.get(name, {})})
    assert isinstance(measure, Measure)
    assert type(measure).__doc__
    assert all(f.doc for f in fields(type(measure)))
    assert MEASURES.make(f"{name}:7").every == 7
    found = measure(moment)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_locals(moment):
    found = MEASURES.make("locals")(moment)
    assert found["clients"] == [0, 1]  # the failed visit is left out
    assert found["local_accuracy"] == pytest.approx([1 / 3, 1])
    assert found["local_average_accuracy"] == pytest.approx(2 / 3)
    assert found["received_accuracy"] == [np.mean(row) for row in found["received_class_accuracy"]]
    assert found["received_class_accuracy"] == [[1, 1, 1]] * 2
    # Client 0 holds (3/4, 1/4, 0), so outside (1/8, 3/8, 4/8); it gets only class 2 right afterwards.
    assert found["in_local"]["before"] == pytest.approx([1, 1])
    assert found["in_local"]["local"] == pytest.approx([0, 1])
    assert found["out_local"]["local"] == pytest.approx([0.5, 1])
    # The aggregate has classes 0 and 2 right (its logits tie on class 0, and the first one wins).
    assert found["in_local"]["after"] == pytest.approx([0.75, 1])
    assert found["out_local"]["after"] == pytest.approx([1 / 8 + 1 / 2, 0.5])
    assert found["class_accuracy"] == [[0, 0, 1], [1, 1, 1]]


def test_of_a_client_without_a_tested_class_nothing_is_said(moment):
    federation = moment.federation
    kept = federation.dataset.test.y == 2
    test = Split(federation.dataset.test.x[kept], federation.dataset.test.y[kept])
    part = replace(federation, dataset=replace(federation.dataset, test=test))
    confusion = moment.evaluation.confusion.copy()
    confusion[:2] = 0
    seen = replace(moment, federation=part, evaluation=moment.evaluation._replace(confusion=confusion))
    found = MEASURES.make("locals")(seen)
    assert found["in_local"]["local"][0] is None  # client 0 holds classes 0 and 1
    assert found["out_local"]["local"][0] == pytest.approx(1)  # it gets class 2 right, which it lacks
    assert MEASURES.make("personal")(seen)["personalised"][0] is None
    record = {"round": 1, "measures": {"locals": found}}
    told = [v for v in found["in_local"]["local"] if v is not None]
    assert told
    assert scalars(record)["measures/locals/in_local/local"] == pytest.approx(sum(told) / len(told))
    assert mean(found["in_local"]["local"]) == pytest.approx(sum(told) / len(told))


class Own(NamedTuple):
    weights: Any


@dataclass(frozen=True)
class Keeps(FedAvg):
    """Clients have what they remember; before their first visit, what is right always."""

    def remember(self, weights):
        return Own(weights._replace(params={n: torch.eye(3).double() for n in weights.params}))

    def personal(self, weights, memory):
        return memory.weights


def test_fairness(moment):
    # The global model has classes 0 and 2 right; client 0 holds (3/4, 1/4, 0) and client 1 class 2.
    assert MEASURES.make("fairness")(moment) == {
        "mean": pytest.approx(7 / 8),
        "deviation": pytest.approx(1 / 8),
        "worst": "client 0",
        "worst_accuracy": pytest.approx(3 / 4),
        "worst_tenth": pytest.approx(3 / 4),
        "best_tenth": pytest.approx(1),
    }
    # Client 0 swaps classes 0 and 1; client 1 was never there.
    swapped = Own(moment.visits[0].up.weights)
    kept = replace(moment, algorithm=Keeps(), remembered={0: swapped}.get)
    found = MEASURES.make("fairness")(kept)
    assert (found["mean"], found["worst"], found["worst_accuracy"]) == (pytest.approx(1 / 2), "client 0", 0)
    assert MEASURES.make("fairness")(replace(kept, remembered={}.get))["mean"] == pytest.approx(1)


def at_home(moment, origins):
    """The moment where the training examples are from these places."""
    dataset = moment.federation.dataset
    dataset = replace(dataset, train=replace(dataset.train, origin=torch.tensor(origins)))
    return replace(moment, federation=replace(moment.federation, dataset=dataset))


def test_clients_are_tested_where_they_are(moment):
    """Client 0 at north, where classes 0, 0, 1 are tested, and client 1 at south, with 1, 2, 2."""
    there = at_home(moment, [0, 0, 0, 0, 2, 2])
    assert [places.tolist() for places in there.federation.at_home] == [[0, 1, 2], [3, 4, 5]]
    found = MEASURES.make("fairness")(there)["at_home"]
    assert found["mean"] == found["worst_accuracy"] == pytest.approx(2 / 3)  # not 3/4 and 1, as by classes
    assert MEASURES.make("personal")(there)["at_home"] == [0, 1]
    # What is by classes has another name, so that nothing averages the two.
    for name, alike in (("fairness", set()), ("personal", {"train_before", "train"})):
        ways = [scalars({name: MEASURES.make(name)(one)}).keys() for one in (there, moment)]
        assert ways[0] & ways[1] == {f"{name}/{key}" for key in alike}
    assert "own_accuracy" not in MEASURES.make("sites")(there)
    # Client 0 swaps classes 0 and 1; client 1 was never there, and is right always.
    swapped = {0: Own(moment.visits[0].up.weights)}.get
    kept = replace(there, algorithm=Keeps(), remembered=swapped)
    assert MEASURES.make("fairness")(kept)["at_home"]["mean"] == pytest.approx(1 / 2)
    found = MEASURES.make("sites")(kept)
    assert found["own_accuracy"] == [0, 1]
    assert found["accuracy"] == [pytest.approx(2 / 3)] * 2  # of the global model
    away = replace(at_home(moment, [1, 1, 1, 1, 2, 2]), algorithm=Keeps(), remembered=swapped)
    assert MEASURES.make("fairness")(away)["at_home"]["worst"] == "client 1"  # nothing is tested at west
    assert MEASURES.make("personal")(at_home(moment, [1, 1, 1, 1, 2, 2]))["at_home"] == [None, 1]
    assert MEASURES.make("sites")(away)["own_accuracy"] == [None, 1]  # and nobody is at north


@pytest.mark.parametrize("origins", [[0, 0, 0, 2, 2, 2], [1, 1, 1, 1, 1, 1], [1] * 6])
def test_where_clients_share_a_place_their_mixtures_of_classes_count(moment, origins):
    shared = at_home(moment, origins)
    assert shared.federation.at_home is None
    for name in ("fairness", "personal"):
        assert MEASURES.make(name)(shared) == MEASURES.make(name)(moment)


def test_a_tenth_of_the_clients_that_can_be_tested_rounded_up(moment):
    y = torch.arange(3).repeat_interleave(11)
    split = Split(torch.eye(3)[y], y)
    dataset = replace(moment.federation.dataset, train=split)
    parts = [np.array([k]) for k in range(32)] + [np.array([], dtype=np.int64)]
    seen = replace(moment, federation=replace(moment.federation, dataset=dataset, parts=parts))
    # Eleven clients of class 0 and ten of class 2 are served, eleven of class 1 are not; one has nothing.
    found = MEASURES.make("fairness")(seen)
    assert found["mean"] == pytest.approx(21 / 32)
    assert found["deviation"] == pytest.approx(math.sqrt(21 * 11) / 32)
    assert (found["worst"], found["worst_tenth"], found["best_tenth"]) == ("client 11", 0, 1)
    unfair = replace(seen, federation=replace(seen.federation, parts=parts[:12]))
    assert MEASURES.make("fairness")(unfair)["worst_tenth"] == pytest.approx(1 / 2)  # one and one of twelve
    confusion = moment.evaluation.confusion.copy()
    confusion[[0, 2]] = 0
    untested = replace(unfair, evaluation=moment.evaluation._replace(confusion=confusion))
    assert MEASURES.make("fairness")(untested)["mean"] == 0  # of client 11 alone
    confusion[:] = 0
    assert MEASURES.make("fairness")(untested) == {}


def test_personal(moment):
    found = MEASURES.make("personal")(moment)
    assert found["train_before"] == [1, 1]
    assert found["train"] == [0, 1]
    assert found["personalised"] == [0, 1]


def test_in_a_chain_what_a_client_received_is_what_the_one_before_it_made(moment):
    along = in_chains(moment, [[0, 1, 1]])
    found = MEASURES.make("locals")(along)
    # Client 0 swapped classes 0 and 1; the next one that does not fail, client 1, has class 2 alone.
    assert found["in_local"]["before"] == pytest.approx([1, 1])
    assert found["out_local"]["before"] == pytest.approx([1, 0])
    assert MEASURES.make("locals")(moment)["out_local"]["before"] == pytest.approx([1, 1])
    assert along.received[1][0] is along.visits[0].up.weights
    assert MEASURES.make("personal")(along)["train_before"] == [1, 1]


class Shifted(FedAvg):
    """Clients have another last layer than what travels: with 0 and 1 swapped."""

    def personal(self, weights, memory):
        first, last = weights.params["fc1.weight"], weights.params["fc2.weight"]
        return weights._replace(params={"fc1.weight": first, "fc2.weight": last[[1, 0, 2]]})


def test_what_travels_along_a_chain_is_looked_at_where_a_client_has_something_of_its_own(moment):
    along = in_chains(moment, [[0, 1, 1]], algorithm=Shifted())
    found = MEASURES.make("locals")(along)
    # As without: client 0 passed on a model that takes 0 for 1 and 1 for 0, though its own knows both.
    assert found["in_local"]["before"] == pytest.approx([1, 1])
    assert found["out_local"]["before"] == pytest.approx([1, 0])
    assert found["class_accuracy"] == [[1, 1, 1], [0, 0, 1]]
    (chain,) = MEASURES.make("chain")(along)["chains"]
    assert chain["drift"] == {"own": [1.0], "next": [0.0]}


def test_before_its_visit_a_client_has_what_it_was_sent_with_what_it_kept(moment):
    """At a first visit with what it remembers of what arrives then; failed visits have a memory, too."""
    own = replace(moment, algorithm=Shifted(), memories=[None, Memory(), Memory()])
    found = MEASURES.make("personal")(own)
    assert found["train_before"] == [0, 1]  # all is right of what was sent, but not with 0 and 1 swapped
    assert found["train"] == [1, 1]


def test_what_was_sent_is_what_arrived_whatever_the_server_has(moment):
    swapped = weights(EYE, SWAP)  # which takes 0 for 1 and 1 for 0, as `wrap` or `broadcast` may have it
    coded = replace(moment, sent=[swapped] * 3)
    assert coded.begun == [swapped] * 2
    found = MEASURES.make("locals")(coded)
    assert found["in_local"]["before"] == [0, 1]
    assert MEASURES.make("personal")(coded)["train_before"] == [0, 1]


def test_a_client_with_layers_of_its_own_has_neurons_of_its_own(moment):
    own = MEASURES.make("alignment")(replace(moment, algorithm=Shifted()))["layers"]["fc2"]["local"]
    assert own == pytest.approx([1, 1 / 3])  # swapped once more, and swapped


def test_gradient_diversity_is_of_the_clients_that_count_at_the_model_they_began_with(moment):
    found = MEASURES.make("diversity")(moment)
    expected = [full_gradient(moment.model, moment.before, moment.federation.client(k)) for k in (0, 1)]
    assert found["clients"] == [0, 1]
    assert found["norms"] == pytest.approx([float(g.norm()) for g in expected])
    assert full_gradient(moment.model, moment.after, moment.federation.client(0)).norm() != expected[0].norm()


def test_silent_neurons_are_those_of_the_model_before(moment):
    dead = moment.before._replace(
        params={n: 0 * p if n == "fc1.weight" else p for n, p in moment.before.params.items()}
    )
    assert MEASURES.make("alignment")(replace(moment, after=dead))["layers"]["fc1"]["silent"] == 0
    assert MEASURES.make("alignment")(replace(moment, before=dead))["layers"]["fc1"]["silent"] == 3


def test_a_channel_answers_with_its_mean_over_the_image():
    net = nn.Sequential(
        OrderedDict(conv=nn.Conv2d(1, 1, 1, bias=False), flat=nn.Flatten(), fc=nn.Linear(4, 2))
    )
    model = Model(net.double())
    weights = model.initial()
    weights.params["conv.weight"].fill_(1.0)
    bright, spot = torch.full((1, 2, 2), 100), torch.tensor([[[250, 0], [0, 0]]])
    x = torch.stack([spot, bright]).to(torch.uint8)
    data = ClientData(x, torch.tensor([0, 1]), 2, torch.zeros(1), torch.ones(1), dtype=torch.float64)
    assert preferences(model, weights, data, ["conv"])["conv"].tolist() == [1]  # 100 on average, not 250 once


def test_the_landscape_is_that_of_the_model_after_and_a_mean_over_directions(moment):
    found = MEASURES.make("landscape:examples=6,draws=2,iterations=1")(moment)
    loss = Loss(moment.model, moment.after, moment.federation.test)
    assert found["loss"][0] == pytest.approx(moment.evaluation.loss)
    assert found["loss"][0] != pytest.approx(moment.evaluation_before.loss)
    curve = perturbation_curve(loss, found["sizes"], 2)
    assert not np.array_equal(curve[0, 1:], curve[1, 1:])
    assert found["loss"] == pytest.approx(curve.mean(0).tolist())


def test_confusion_and_credibility(moment):
    found = MEASURES.make("confusion:locals=true")(moment)
    assert found["global"] == [[2, 0, 0], [2, 0, 0], [0, 0, 2]]
    assert found["credibility"] == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]  # one auxiliary example a class
    assert found["locals"][0] == [[0, 2, 0], [2, 0, 0], [0, 0, 2]]


def test_divergence(moment):
    found = MEASURES.make("divergence")(moment)
    assert found["weights"] == [4, 0]  # EYE to SWAP changes four entries by one
    # The model before knows all classes equally, 1/3 each; |3/4 - 1/3| + |1/4 - 1/3| + 1/3, and 2/3 twice.
    assert found["distribution"] == pytest.approx([5 / 12 + 1 / 12 + 4 / 12, 4 / 3])


def test_distances_are_those_of_plain_numpy(moment):
    a, b = np.array([0.1, 0.3, 0.6]), np.array([0.5, 0.5, 0.0])
    assert distribution_distance(a * 0.7, b) == pytest.approx(0.4 + 0.2 + 0.6)
    assert weight_divergence(moment.before, moment.after) == 2
    far = {n: p + 2.5 for n, p in moment.before.params.items()}  # 18 entries: neither squared nor a root
    assert weight_divergence(moment.before, moment.before._replace(params=far)) == pytest.approx(45)


def test_alignment_of_a_round(moment):
    found = MEASURES.make("alignment")(moment)
    assert set(found["layers"]) == {"fc1", "fc2"}  # the last two fully connected layers
    fc1, fc2 = found["layers"]["fc1"], found["layers"]["fc2"]
    assert fc1["local"] == [1, 1]
    assert fc1["next_global"] == 1
    assert fc2["local"] == pytest.approx([1 / 3, 1])  # the two swapped neurons mean another class now
    assert fc2["local_mean"] == pytest.approx(2 / 3)
    # In `after` neuron 0 and neuron 1 both answer to class 0.
    assert fc2["next_global"] == pytest.approx(2 / 3)
    only = MEASURES.make("alignment:layers=fc1")(moment)
    assert set(only["layers"]) == {"fc1"}


def test_preferred_class_takes_the_nonlinearity_and_mean_into_account(moment):
    from tests.measures.conftest import EYE, weights

    # Neuron 0 is 1 on class 0, neuron 1 is negative on class 1 (so silent), neuron 2 larger on 1 than 2.
    model = weights([[1.0, 0, 0], [0, -1, 0], [0, 2, 1]], EYE)
    found = preferences(moment.model, model, moment.federation.test, ("fc1",))
    assert found["fc1"].tolist() == [0, SILENT, 1]


def test_a_channel_of_a_convolution_is_one_neuron():
    from torch import nn

    from fedrecall.data.client import ClientData
    from fedrecall.models.model import Model

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 1, bias=False)
            self.head = nn.Sequential(nn.Flatten(), nn.Linear(8, 2))

        def forward(self, x):
            return self.head(self.conv(x))

    model = Model(Net())
    start = model.initial()
    start.params["conv.weight"][:] = torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)
    x = torch.tensor([[[[0.0, 0], [0, 1]]], [[[2.0, 2], [2, 2]]]])  # class 1 is brighter than class 0
    data = ClientData(x, torch.tensor([0, 1]), 2, torch.zeros(1), torch.ones(1))
    assert preferences(model, start, data, ("conv",))["conv"].tolist() == [1, 0]


class Tokens(nn.Module):
    """Rows of four numbers as two tokens of two, which attend to each other."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(2, 4)
        self.embed_act = nn.ReLU()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.mixed = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3))
        self.head = nn.Linear(3, 2)
        self.never = nn.Linear(3, 3)

    def forward(self, x):
        tokens = self.embed_act(self.embed(x.view(-1, 2, 2)))
        across = self.attention(tokens, tokens, tokens)[0]
        return self.head(self.mixed(across).mean(1))


def tokens(count: int = 6) -> tuple[Model, ClientData]:
    stream = torch.Generator().manual_seed(0)
    x, y = torch.randn(count, 4, generator=stream, dtype=torch.float64), torch.arange(count) % 2
    data = ClientData(x, y, 2, torch.zeros(4), torch.ones(4), dtype=torch.float64)
    return Model(Tokens().double()), data


def test_a_neuron_of_a_linear_layer_answers_with_its_mean_over_the_tokens():
    model, data = tokens()
    weights = model.initial()
    rows = plain(data.x, data.mean, data.std, data.dtype).view(-1, 2, 2)
    embedded = torch.relu(rows @ weights.params["embed.weight"].T + weights.params["embed.bias"])
    by_class = torch.stack([embedded[data.y == c].mean((0, 1)) for c in range(2)])  # [C, F], of four neurons
    found = preferences(model, weights, data, ("embed", "mixed"))
    assert found["embed"].tolist() == preferred(by_class.numpy()).tolist()
    assert len(found["mixed"]) == 3  # a block's features are its last axis as well


def test_layers_that_the_network_never_calls_are_not_its_last(moment):
    model, data = tokens()
    assert last_linear(model, data) == ("mixed.1", "head")  # neither the attention's out_proj nor `never`
    split, weights = Split(data.x, data.y), model.initial()
    dataset = replace(moment.federation.dataset, train=split, test=split, mean=data.mean, std=data.std)
    federation = replace(moment.federation, dataset=dataset)
    seen = replace(moment, model=model, federation=federation, before=weights, after=weights, visits=[])
    assert set(MEASURES.make("alignment")(seen)["layers"]) == {"mixed.1", "head"}


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ("attention.out_proj", "the network never calls its layer 'attention.out_proj'"),
        ("attention", "layer 'attention' gives a tuple"),
        ("first", r"layer 'first' gives \[2, 6, 4\] for 6 examples"),
    ],
)
def test_a_layer_without_neurons_to_look_at_is_told(layer, words):
    model, data = tokens()

    class TokensFirst(Tokens):
        def __init__(self):
            super().__init__()
            self.first = nn.Identity()

        def forward(self, x):
            self.first(self.embed(x.view(-1, 2, 2)).transpose(0, 1))
            return super().forward(x)

    model = Model(TokensFirst().double())
    with pytest.raises(UserError, match=words):
        preferences(model, model.initial(), data, (layer,))


def test_a_network_without_a_linear_layer_that_is_called_has_to_have_its_layers_named():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.never = nn.Parameter(torch.eye(2)), nn.Linear(2, 2)

        def forward(self, x):
            return x @ self.weight

    data = ClientData(torch.eye(2), torch.tensor([0, 1]), 2, torch.zeros(2), torch.ones(2))
    with pytest.raises(UserError, match="no fully connected layer that it calls: name the layers"):
        last_linear(Model(Product()), data)


def test_no_neuron_prefers_a_class_without_examples():
    from torch import nn

    from fedrecall.data.client import ClientData
    from fedrecall.models.model import Model

    # Neuron 0 answers to classes 0, 1 and 3 with -9, -8 and -7; neuron 1 is silent. There is no class 2 or 4.
    model = Model(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 5)))
    start = model.initial()
    start.params["0.weight"][:] = torch.tensor([[1.0], [0.0]])
    start.params["0.bias"][:] = torch.tensor([-10.0, 0.0])
    x, y = torch.tensor([[1.0], [2.0], [3.0], [3.0]]), torch.tensor([0, 1, 3, 3])
    data = ClientData(x, y, 5, torch.zeros(1), torch.ones(1))
    assert preferences(model, start, data, ("0",))["0"].tolist() == [3, SILENT]


def test_silent_neurons_neither_agree_nor_hide_a_change():
    assert preferred(np.array([[0.0, 1.0], [0.0, 3.0]])).tolist() == [SILENT, 1]
    a, b = np.array([0, 1, SILENT, SILENT]), np.array([0, 2, SILENT, 1])
    assert alignment(a, b) == pytest.approx(1 / 3)
    assert alignment(np.array([SILENT]), np.array([SILENT])) == 1


def test_full_gradient_is_that_of_the_whole_data_at_once(moment):
    data = moment.federation.client(0)
    w = {n: p.clone().requires_grad_() for n, p in moment.after.params.items()}
    x, y = moment.federation.dataset.train.x[:4].double(), torch.tensor([0, 0, 0, 1])
    logits = torch.relu(x @ w["fc1.weight"].T) @ w["fc2.weight"].T
    loss = torch.nn.functional.cross_entropy(logits, y)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*w.values()])])
    assert full_gradient(moment.model, moment.after, data) == pytest.approx(expected.numpy(), abs=1e-14)


def test_diversity_of_orthogonal_opposite_and_equal_gradients():
    e = torch.eye(4, dtype=torch.float64)
    # Orthogonal and of one length, K of them: mean square 1, square of the mean 1/K.
    assert gradient_diversity(iter(e))[0] == pytest.approx(4)
    assert gradient_diversity(iter([e[0], e[0], e[0]]))[0] == pytest.approx(1)
    assert gradient_diversity(iter([e[0], -e[0]])) == (None, [1, 1])
    # (3, 0) and (1, 4): mean square (9 + 17) / 2 = 13, mean (2, 2).
    pair = [torch.tensor([3.0, 0]).double(), torch.tensor([1.0, 4]).double()]
    assert gradient_diversity(iter(pair))[0] == pytest.approx(13 / 8)
    assert all(torch.equal(g, h) for g, h in zip(e, torch.eye(4, dtype=torch.float64), strict=True))


def test_proposition_1_diversity_falls_as_beta_grows():
    # Class gradients orthogonal and of one length; client k has sum_c (p_c + beta p~_c) g_c. Shards of
    # two classes for five clients, so that the global distribution is uniform as the proof asks.
    classes, clients = 10, 5
    p = np.zeros((clients, classes))
    for k in range(clients):
        p[k, 2 * k : 2 * k + 2] = 0.5
    outside = (1 - p) / (classes - 1)
    values = []
    for beta in np.linspace(0, classes / 2 - 1, 9):
        gradients = [torch.from_numpy(row) for row in p + beta * outside]
        values.append(gradient_diversity(gradients)[0])
    assert all(a > b for a, b in itertools.pairwise(values))
    assert values[0] == pytest.approx(0.5 / (classes * 0.1**2))
    # The closed form, from the squares of each client's 2 own and 8 other entries.
    beta = classes / 2 - 1
    own, other = 0.5 + beta * 0.5 / 9, beta / 9
    expected = (2 * own**2 + 8 * other**2) / (classes * ((1 + beta) / classes) ** 2)
    assert values[-1] == pytest.approx(expected)


def test_moment_works_each_evaluation_out_once(moment, monkeypatch):
    from fedrecall.measures import moment as module

    calls = []
    real = module.evaluate
    monkeypatch.setattr(module, "evaluate", lambda *a: calls.append(1) or real(*a))
    for name in ("locals", "personal", "divergence"):
        MEASURES.make(name)(moment)
    assert len(calls) == 3  # two local models and the model before
    assert math.isfinite(MEASURES.make("diversity")(moment)["diversity"])
