"""Normalisation layers where PyTorch's own stop: a batch that is one value for each channel.

The last batch of an epoch may be one example, and a client may hold no more. Where its map has shrunk
to one pixel there is nothing to take batch norm's statistics of, and PyTorch refuses.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedrecall.models.kernels import plain


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch; a single value by the running statistics, which it leaves alone."""
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        if x.numel() != x.shape[1]:
            return super().forward(x)
        # Without running statistics the value is its own mean, and the layer gives its bias.
        own, cudnn = self.running_mean is None, torch.backends.cudnn.enabled
        statistics = (self.running_mean, self.running_var, own, 0.0)
        return torch.batch_norm(x, self.weight, self.bias, *statistics, self.eps, cudnn)


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """Batch norm of vectors and sequences."""


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """Batch norm of images."""


class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """Batch norm of volumes."""


class GroupNorm(nn.GroupNorm):
    """Group norm, also of one example with one value a group, and under ``torch.func``."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each example's groups of channels."""
        if not plain(x):  # the kernel copies images with channels last as such, which vmap cannot do
            x = x.contiguous()
        # Not F.group_norm: of groups of one value it takes two examples and refuses one.
        cudnn = torch.backends.cudnn.enabled
        return torch.group_norm(x, self.num_groups, self.weight, self.bias, self.eps, cudnn)


KINDS: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
    nn.GroupNorm: GroupNorm,
}


def equip(module: nn.Module) -> nn.Module:
    """The module, its norms replaced in place by those above; same weights."""
    for layer in module.modules():
        if type(layer) in KINDS:
            layer.__class__ = KINDS[type(layer)]
    return module
