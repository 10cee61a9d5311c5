import numpy as np
import pytest
from tests.measures.conftest import EYE, weights

from fedrecall.errors import UserError
from fedrecall.measures import features as F

ANGLES = np.linspace(-np.pi, np.pi, 721)[:-1]
STEP = ANGLES[1] - ANGLES[0]


def test_features_are_what_the_last_layer_is_given(moment):
    model = weights([[2.0, 0, 0], [0, -1, 0], [0, 0, 3]], EYE)
    found = F.features(moment.model, model, moment.federation.test)
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.values[::2].tolist() == [[2, 0, 0], [0, 0, 0], [0, 0, 3]]


def test_tsne_keeps_clusters_apart_and_repeats():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(c * 50, 1, (20, 5)) for c in range(2)])
    found = F.tsne(values, perplexity=5)
    assert found.shape == (40, 2)
    assert np.array_equal(found, F.tsne(values, perplexity=5))
    assert F.tsne(values[:5]).shape == (5, 2)  # a perplexity that many would need is lowered
    centres = found[:20].mean(0), found[20:].mean(0)
    spread = np.linalg.norm(found[:20] - centres[0], axis=1).max()
    assert np.linalg.norm(centres[0] - centres[1]) > spread
    with pytest.raises(UserError):
        F.tsne(values[:3])


def test_on_the_circle():
    found = F.on_circle(np.array([[3.0, 4.0], [0.0, -2.0], [0.0, 0.0]]))
    assert found == pytest.approx(np.array([[0.6, 0.8], [0.0, -1.0], [0.0, 0.0]]))
    with pytest.raises(UserError, match="circle"):
        F.on_circle(np.zeros((2, 3)))


def test_density_on_the_circle_is_one_in_all_and_does_not_know_where_it_is_cut():
    rng = np.random.default_rng(1)
    angles = rng.normal(np.pi, 0.4, 200)  # around the cut of arctan2
    points = np.stack([np.cos(angles), np.sin(angles)], 1)
    found = F.circle_density(points, ANGLES)
    assert found.sum() * STEP == pytest.approx(1, abs=1e-6)
    turned = F.circle_density(-points, ANGLES)  # by half a turn
    assert np.roll(found, 360) == pytest.approx(turned, abs=1e-9)
    assert abs(ANGLES[found.argmax()]) > 2.8


def test_the_bandwidth_on_the_circle_is_silvermans():
    found = np.array([-0.5, 0.5])  # their spread is 0.5
    width = 1.06 * 0.5 / 2**0.2
    around = ANGLES[:, None, None] - found[:, None] + 2 * np.pi * np.arange(-3, 4)
    bells = np.exp(-(around**2) / (2 * width**2)) / (width * np.sqrt(2 * np.pi))
    made = F.circle_density(np.stack([np.cos(found), np.sin(found)], 1), ANGLES)
    assert made == pytest.approx(bells.sum(2).mean(1), abs=1e-9)


def test_density_of_one_direction_is_a_narrow_bell():
    found = F.circle_density(np.tile([[0.0, 1.0]], (5, 1)), ANGLES, least=0.1)
    expected = np.exp(-((ANGLES - np.pi / 2) ** 2) / 0.02) / (0.1 * np.sqrt(2 * np.pi))
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("collapsed", [False, True])
def test_density_in_the_plane_is_one_in_all(collapsed):
    axis = np.linspace(-2, 2, 161)
    angles = np.full(50, 0.3) if collapsed else np.linspace(0, 5, 50)
    points = np.stack([np.cos(angles), np.sin(angles)], 1)
    found = F.plane_density(points, axis, axis)
    assert found.shape == (161, 161)
    assert found.sum() * (axis[1] - axis[0]) ** 2 == pytest.approx(1, abs=0.03)
    if collapsed:
        row, column = np.unravel_index(found.argmax(), found.shape)
        assert (axis[column], axis[row]) == pytest.approx((np.cos(0.3), np.sin(0.3)), abs=0.03)
