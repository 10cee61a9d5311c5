"""Losses as pure functions of logits: one number an example, [B], no reduction over the batch.

Masks are made with ``where`` and comparisons, never by indexing with booleans, so that every
function also works under ``torch.func.vmap``.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(logits)[y]."""
    return -F.log_softmax(logits, dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def is_true(logits: Tensor, y: Tensor) -> Tensor:
    """True at each example's own class, [B, C]."""
    return torch.arange(logits.shape[-1], device=logits.device) == y.unsqueeze(-1)


def not_true_log_softmax(logits: Tensor, y: Tensor, tau: float = 1.0) -> Tensor:
    """log softmax over the C - 1 classes that are not the label; 0 at the label itself."""
    true = is_true(logits, y)
    log_q = F.log_softmax(torch.where(true, -torch.inf, logits / tau), dim=-1)
    return torch.where(true, 0.0, log_q)


def kl(teacher: Tensor, student: Tensor, tau: float = 1.0) -> Tensor:
    """tau^2 KL(teacher || student) of the softmaxes at temperature tau."""
    log_p, log_q = F.log_softmax(teacher / tau, -1), F.log_softmax(student / tau, -1)
    return tau**2 * (log_p.exp() * (log_p - log_q)).sum(-1)


def not_true_kl(teacher: Tensor, student: Tensor, y: Tensor, tau: float = 1.0) -> Tensor:
    """tau^2 KL(teacher || student) of the not-true softmaxes at temperature tau."""
    log_p = not_true_log_softmax(teacher, y, tau)
    log_q = not_true_log_softmax(student, y, tau)
    p = torch.where(is_true(teacher, y), 0.0, log_p.exp())
    return tau**2 * (p * (log_p - log_q)).sum(-1)
