"""Losses as pure functions of logits: one number an example, [B], no reduction over the batch.

Masks are made with ``where`` and comparisons, never by indexing with booleans, so that every
function also works under ``torch.func.vmap``. Teachers may have further leading axes
([K, B, C] for K teachers of one student [B, C]); the result then has them too.
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


def soft_cross_entropy(teacher: Tensor, student: Tensor, tau: float = 1.0) -> Tensor:
    """-sum_k p_k log q_k, teacher's p and student's q both at temperature tau, no tau^2 (FedCAD, eq. 2)."""
    return -(F.softmax(teacher / tau, -1) * F.log_softmax(student / tau, -1)).sum(-1)


def not_true_log_softmax(logits: Tensor, y: Tensor, tau: float = 1.0) -> Tensor:
    """log softmax over the C - 1 classes that are not the label; 0 at the label itself."""
    true = is_true(logits, y)
    log_q = F.log_softmax(torch.where(true, -torch.inf, logits / tau), dim=-1)
    return torch.where(true, 0.0, log_q)


def kl(teacher: Tensor, student: Tensor, tau: float = 1.0, *, tau_squared: bool = True) -> Tensor:
    """tau^2 KL(teacher || student) of the softmaxes at temperature tau; tau^2 keeps gradients' size."""
    log_p, log_q = F.log_softmax(teacher / tau, -1), F.log_softmax(student / tau, -1)
    return _scale(tau, tau_squared) * (log_p.exp() * (log_p - log_q)).sum(-1)


def not_true_kl(
    teacher: Tensor, student: Tensor, y: Tensor, tau: float = 1.0, *, tau_squared: bool = True
) -> Tensor:
    """tau^2 KL(teacher || student) of the not-true softmaxes at temperature tau."""
    log_p = not_true_log_softmax(teacher, y, tau)
    log_q = not_true_log_softmax(student, y, tau)
    return _scale(tau, tau_squared) * (log_p.exp() * (log_p - log_q)).sum(-1)  # 1 · (0 - 0) at the label


def true_class_kl(
    teacher: Tensor, student: Tensor, y: Tensor, tau: float = 1.0, *, tau_squared: bool = True
) -> Tensor:
    """tau^2 KL(teacher || student) of the pairs [p_y, 1 - p_y] at temperature tau.

    ``kl == true_class_kl + (1 - p_y of the teacher) * not_true_kl``, one example at a time.
    """
    t, s = _true_margin(teacher / tau, y), _true_margin(student / tau, y)
    true = t.sigmoid() * (F.logsigmoid(t) - F.logsigmoid(s))
    rest = (-t).sigmoid() * (F.logsigmoid(-t) - F.logsigmoid(-s))
    return _scale(tau, tau_squared) * (true + rest)


def weighted_square(teacher: Tensor, student: Tensor, weights: Tensor | float = 1.0) -> Tensor:
    """sum_c weights_c (teacher_c - student_c)^2 of the logits."""
    return (weights * (teacher - student).square()).sum(-1)


def not_true_square(teacher: Tensor, student: Tensor, y: Tensor) -> Tensor:
    """Mean squared difference of the C - 1 not-true logits (FedNTD, appendix L)."""
    difference = torch.where(is_true(student, y), 0.0, teacher - student)
    return difference.square().sum(-1) / max(student.shape[-1] - 1, 1)


def _true_margin(logits: Tensor, y: Tensor) -> Tensor:
    """log p_y - log(1 - p_y), without ever forming 1 - p_y."""
    true = is_true(logits, y)
    # Finite, so that with a single class 0 * (a - a) is 0 and not NaN.
    lowest = torch.finfo(logits.dtype).min / 2
    rest = torch.where(true, lowest, logits).logsumexp(-1)
    return torch.where(true, logits, 0.0).sum(-1) - rest


def _scale(tau: float, tau_squared: bool) -> float:
    return tau**2 if tau_squared else 1.0
