"""Where a model puts the examples: features, their t-SNE map, and their density on the unit circle."""

from typing import NamedTuple

import numpy as np
import torch

from fedrecall import streams
from fedrecall.batches import LocalData
from fedrecall.errors import UserError
from fedrecall.models.model import Model, Weights


class Features(NamedTuple):
    """A model's penultimate features of a data set."""

    values: np.ndarray
    """[n, F]"""
    labels: np.ndarray
    """[n]"""


def features(model: Model, weights: Weights, data: LocalData) -> Features:
    """The features of all examples in evaluation mode."""
    values, labels = [], []
    for batch in data.batches():
        values.append(model.frozen_output(weights, batch.x).features.cpu())
        labels.append(batch.y.cpu())
    return Features(torch.cat(values).cpu().numpy(), torch.cat(labels).cpu().numpy())


def tsne(values: np.ndarray, perplexity: float = 30.0) -> np.ndarray:
    """A map of the rows in the plane that keeps neighbours together, [n, 2]; repeatable."""
    from sklearn.manifold import TSNE  # its import takes a second

    if len(values) < 4:
        raise UserError(f"t-SNE needs at least 4 points, not {len(values)}.")
    perplexity = min(perplexity, (len(values) - 1) / 3)
    state = streams.key(0, "tsne") % 2**32
    return np.asarray(TSNE(2, perplexity=perplexity, init="pca", random_state=state).fit_transform(values))


def on_circle(values: np.ndarray) -> np.ndarray:
    """The rows scaled to length one, [n, 2]."""
    if values.ndim != 2 or values.shape[1] != 2:
        raise UserError(
            f"features on the unit circle need a model with 2 features, not {values.shape[1]}: "
            "train one with --model circle."
        )
    length = np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(values / np.where(length > 0, length, 1))


def circle_density(points: np.ndarray, angles: np.ndarray, least: float = 0.05) -> np.ndarray:
    """Density of the points' angles over the circle, a Gaussian kernel wrapped around it.

    The bandwidth is Silverman's, by the spread of the angles around their mean direction, and at
    least ``least`` radians (features often collapse to one direction).
    """
    found = np.arctan2(points[:, 1], points[:, 0])
    centre = np.arctan2(np.sin(found).mean(), np.cos(found).mean())
    spread = np.angle(np.exp(1j * (found - centre))).std()
    width = max(least, 1.06 * spread * len(found) ** -0.2)
    turns = angles[:, None] - found[None, :] + 2 * np.pi * np.arange(-2, 3)[:, None, None]
    return np.asarray(_gaussian(turns / width).sum(0).mean(1) / width)


LEAST = 0.05
"""Of the features' plane, the least bandwidth of a density on it."""


def plane_density(points: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Gaussian kernel density of the points in the plane on a grid, [len(y), len(x)].

    The bandwidth is scipy's (Scott); points that lie on a line or on one spot get `LEAST`.
    """
    grid = np.stack(np.meshgrid(x, y)).reshape(2, -1)
    if min(np.linalg.svd(points - points.mean(0), compute_uv=False)) > LEAST * np.sqrt(len(points)):
        from scipy.stats import gaussian_kde  # which takes a second to import

        found = gaussian_kde(points.T)(grid)
    else:
        away = np.linalg.norm(grid[:, :, None] - points.T[:, None, :], axis=0)
        found = (_gaussian(away / LEAST) / (LEAST**2 * np.sqrt(2 * np.pi))).mean(1)
    return np.asarray(found.reshape(len(y), len(x)))


def _gaussian(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-(values**2) / 2) / np.sqrt(2 * np.pi))
