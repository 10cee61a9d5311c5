"""What batches a client and the test split give."""

import pytest
import torch

from fedrecall import config as configs
from fedrecall import streams
from fedrecall.data.augmentation import Augmentation
from fedrecall.data.client import ClientData, TestData
from fedrecall.data.datasets import Dataset, Split, load
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment


def test_augmented_test_images_are_the_same_whenever_and_however_they_are_looked_at():
    stream = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (11, 3, 8, 8), generator=stream).to(torch.uint8)
    y = torch.arange(11) % 4
    mean, std = torch.full((3,), 0.5), torch.full((3,), 0.25)
    asked = Augmentation.parse("crop:2+flip+cutout:3")
    data = TestData(x, y, 4, mean, std, asked)
    whole = torch.cat([b.x for b in data.batches(11)])
    assert torch.equal(whole, torch.cat([b.x for b in data.batches(4)]))
    drawn = asked.draw(streams.torch_stream(0, "test"), 11)
    assert torch.equal(whole, asked.apply(x, drawn, mean, std))
    untouched = torch.cat([b.x for b in TestData(x, y, 4, mean, std).batches(4)])
    assert torch.equal(untouched, torch.cat([b.x for b in ClientData(x, y, 4, mean, std).batches(4)]))
    changed = (whole != untouched).flatten(1).any(1)
    assert changed.all()
    assert torch.equal(torch.cat([b.y for b in data.batches(4)]), y)


def test_an_experiment_is_trained_the_same_whatever_is_done_to_its_test_images():
    found = []
    for how in ("none", "crop+flip"):
        made = {"rounds": 1, "clients": 4, "sample": 2, "model": "cnn:8", "test_augmentation": how}
        data = load("synthetic:train=80,test=200,channels=3,size=8,classes=4")
        run = Experiment(configs.make({**made, "partition": "iid"}), dataset=data)
        result = run.run()
        found.append((run.server.weights.params["fc1.weight"].clone(), result.history[-1]["loss"]))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] != found[1][1]


@pytest.mark.parametrize("name", ["augmentation", "test_augmentation"])
def test_augmentation_of_a_table_is_refused_and_none_is_what_a_table_gets(name):
    x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    table = Dataset("rows", ("0", "1"), Split(x, y), Split(x[:8], y[:8]), torch.zeros(3), torch.ones(3))
    made = {"rounds": 1, "clients": 2, "sample": 2, "model": "mlp:4", "partition": "iid"}
    run = Experiment(configs.make(made), dataset=table)
    assert not run.federation.client(0).augmented
    run.run()
    with pytest.raises(UserError, match=f"^{name} = 'crop:2\\+flip' .* of rows .*: set {name} = 'none'"):
        Experiment(configs.make({**made, name: "crop:2+flip"}), dataset=table)


def test_what_dropout_masks_are_hashed_from_is_the_visits_own():
    data = ClientData(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), 2, torch.zeros(2), torch.ones(2))
    visits = [(0, 1, 0), (0, 2, 0), (0, 1, 1), (1, 1, 0)]  # seed, round, client
    keys = [int(data.draw(1, *visit).key) for visit in visits]
    assert len(set(keys)) == 4
    assert [int(data.draw(1, *visit).key) for visit in visits] == keys


def test_a_clients_label_distribution_is_equation_6():
    none, flat = torch.zeros(0, 1, 2, 2, dtype=torch.uint8), torch.zeros(1)
    pictures = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    some = ClientData(pictures, torch.tensor([1, 0, 0, 0]), 3, flat, flat + 1)
    assert some.distribution.tolist() == [0.75, 0.25, 0.0]
    assert some.distribution.dtype == torch.float64
    assert (
        ClientData(none, torch.zeros(0, dtype=torch.long), 3, flat, flat + 1).distribution.tolist()
        == [0.0] * 3
    )
