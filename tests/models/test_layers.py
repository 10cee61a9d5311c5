import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedrecall.errors import UserError
from fedrecall.models import KeyedDropout, build, key_dropouts
from fedrecall.models.layers import keyed_uniform


def keyed(layer: nn.Module, key: int | torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return functional_call(layer, {"key": torch.as_tensor(key)}, (x,))


def test_uniform_is_flat_and_independent_across_keys_salts_and_positions():
    n = 1 << 16
    draws = [
        keyed_uniform(torch.tensor(key), salt, (n,)).double() / 2**32
        for key, salt in [(0, 1), (1, 1), (2, 1), (1, 2), (1 << 40, 1), (2**63 - 1, 1)]
    ]
    for u in draws:
        assert u.min() >= 0
        assert u.max() < 1
        counts = torch.histc(u.float(), 64, 0, 1)
        chi2 = ((counts - n / 64) ** 2 / (n / 64)).sum()
        assert chi2 < 63 + 5 * math.sqrt(2 * 63)
        assert abs(torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1]) < 5 / math.sqrt(n)
    off_diagonal = torch.corrcoef(torch.stack(draws)) - torch.eye(len(draws), dtype=torch.float64)
    assert off_diagonal.abs().max() < 5 / math.sqrt(n)


def test_uniform_is_the_hash_written_in_plain_integers():
    def mix(x: int) -> int:
        x = ((x ^ (x >> 16)) * 0x21F0AAAD) % 2**32
        x = ((x ^ (x >> 15)) * 0x735A2D97) % 2**32
        return x ^ (x >> 15)

    key, salt = 0x1234_5678_9ABC_DEF0, 7
    first = mix(mix(key % 2**32) ^ salt)
    second = mix(mix(key >> 32) ^ first)
    expected = [mix((mix(i ^ first) + second) % 2**32) for i in range(50)]
    assert keyed_uniform(torch.tensor(key), salt, (5, 10)).flatten().tolist() == expected


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_zeroes_the_stated_share_and_keeps_the_mean(p):
    x, n = torch.ones(200, 500, dtype=torch.float64), 100_000
    y = keyed(KeyedDropout(p), 3, x)
    sigma = math.sqrt(p * (1 - p) / n)
    assert abs((y == 0).double().mean() - p) < 5 * sigma
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - p)))


def test_masks_differ_between_steps_and_layers_and_repeat_for_the_same_key():
    x = torch.ones(1000)
    one = keyed(KeyedDropout(0.5, salt=1), 10, x)
    assert torch.equal(one, keyed(KeyedDropout(0.5, salt=1), 10, x))
    for other in (keyed(KeyedDropout(0.5, salt=2), 10, x), keyed(KeyedDropout(0.5, salt=1), 11, x)):
        assert 400 < (one == other).sum() < 600


def test_dropout_is_the_identity_in_evaluation_and_at_rate_zero_and_nothing_at_rate_one():
    x = torch.randn(4, 5)
    assert KeyedDropout(0.5).eval()(x) is x
    assert KeyedDropout(0.0)(x) is x
    assert not KeyedDropout(1.0)(x).any()
    with pytest.raises(UserError, match=r"\[0, 1\], not 1.5"):
        KeyedDropout(1.5)


def test_the_key_is_no_part_of_the_state_and_stays_an_integer():
    layer = KeyedDropout(0.5).to(torch.float64)
    assert not layer.state_dict()
    assert layer.key.dtype == torch.int64
    assert keyed(layer, 1, torch.ones(3, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_real_row_keeps_its_mask_when_the_batch_is_padded():
    layer, x = KeyedDropout(0.5), torch.ones(3, 8)
    padded = torch.cat([x, torch.zeros(5, 8)])
    assert torch.equal(keyed(layer, 4, padded)[:3], keyed(layer, 4, x))


def test_vmap_over_keys_equals_a_loop():
    net = build("mlp:32,dropout=0.5", (12,), 3).double()
    params = dict(net.named_parameters())
    keys, x = torch.arange(5) + 2**40, torch.randn(5, 7, 12, dtype=torch.float64)

    def loss(params, key, x):
        return functional_call(net, {**params, "drop1.key": key}, (x,)).square().mean()

    batched = vmap(grad(loss), (None, 0, 0))(params, keys, x)
    for i in range(5):
        single = grad(loss)(params, keys[i], x[i])
        for name in single:
            torch.testing.assert_close(batched[name][i], single[name])


def test_the_gradient_passes_kept_elements_scaled_and_stops_at_dropped_ones():
    x = torch.randn(100, dtype=torch.float64)
    slope = grad(lambda x: keyed(KeyedDropout(0.25), 5, x).sum())(x)
    kept = keyed(KeyedDropout(0.25), 5, x) != 0
    torch.testing.assert_close(slope, kept.double() / 0.75)


@pytest.mark.parametrize(
    ("layer", "shape", "shared"),
    [
        (nn.Dropout1d(), (4, 50, 7), (2,)),
        (nn.Dropout2d(), (4, 50, 5, 6), (2, 3)),
        (nn.Dropout2d(), (4, 50, 7), (2,)),
        (nn.Dropout3d(), (4, 50, 2, 3, 4), (2, 3, 4)),
    ],
)
def test_channel_dropouts_drop_whole_channels(layer, shape, shared):
    net = key_dropouts(nn.Sequential(layer))
    y = net(torch.ones(shape))
    share = (y != 0).float().mean(shared)
    assert set(share.flatten().tolist()) == {0.0, 1.0}
    assert 60 < share.sum() < 140


class Twice(nn.Module):
    """Applies one dropout layer twice, as users do."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5, inplace=True)
        self.fc = nn.Linear(500, 500)
        nn.init.eye_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x):
        return torch.stack([self.drop(x), self.drop(self.fc(x))])


def test_a_layer_applied_twice_draws_twice_and_repeats_in_the_next_pass():
    net = copy.deepcopy(key_dropouts(Twice()))
    x = torch.ones(1, 500)
    first, second = net(x)
    assert 150 < (first == second).sum() < 350
    assert torch.equal(net(x), torch.stack([first, second]))


def test_key_dropouts_gives_every_layer_its_own_salt_in_place():
    shared = nn.Dropout(0.1)
    net = nn.Sequential(
        nn.Linear(4, 4), shared, nn.Sequential(nn.Dropout2d(0.3), shared), KeyedDropout(0.2, 9)
    )
    net.eval()
    assert key_dropouts(net) is net
    layers = [m for m in net.modules() if isinstance(m, KeyedDropout)]
    assert len({m.salt for m in layers}) == len(layers) == 3
    assert net[1] is net[2][1]
    assert [net[1].p, net[2][0].p, net[2][0].spatial] == [0.1, 0.3, 2]
    assert not any(m.training for m in layers)
    assert not any(isinstance(m, nn.Dropout) for m in net.modules())


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.AlphaDropout(), "AlphaDropout at '0'"),
        (nn.RReLU(), "RReLU"),
        (nn.MultiheadAttention(8, 2, dropout=0.1), "dropout=0.1 inside"),
        (nn.LSTM(4, 4, 2, dropout=0.5), "LSTM"),
    ],
)
def test_layers_with_a_hidden_stream_are_refused(layer, named):
    with pytest.raises(UserError, match=named):
        key_dropouts(nn.Sequential(layer))


def test_a_lone_dropout_is_refused():
    with pytest.raises(UserError, match="nothing to train"):
        key_dropouts(nn.Dropout())
