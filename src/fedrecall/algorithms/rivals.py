"""SFedKD's rivals: the same sequential rounds and teachers, known ways to weigh them."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrecall.algorithms.multi_teacher import MultiTeacher
from fedrecall.losses import cross_entropy, kl
from fedrecall.specs import NON_NEGATIVE


@dataclass(frozen=True)
class WeighedTeachers(MultiTeacher):
    """CE + beta sum_j w_j KL(teacher j || student) over all classes; a subclass gives w [K, B]."""

    beta: Annotated[float, NON_NEGATIVE] = 1.0
    """Weight of the distillation term; SFedKD's paper does not give its rivals'."""

    @abstractmethod
    def weigh(self, teachers: Tensor, y: Tensor) -> Tensor:
        """Each teacher's share for each example, [K, B], of logits [K, B, C]."""

    def distil(self, teachers: Tensor, student: Tensor, y: Tensor, distances: Tensor) -> Tensor:
        """beta sum_j w_j KL_j."""
        return self.beta * (self.weigh(teachers, y) * kl(teachers, student, self.tau)).sum(0)


@dataclass(frozen=True)
class Aver(WeighedTeachers):
    """FedSeq + AVER (You et al., KDD 2017): every teacher counts the same.

    CE + beta / K sum_j tau^2 KL(teacher j || student), over all classes.
    """

    def weigh(self, teachers: Tensor, y: Tensor) -> Tensor:
        """1 / K."""
        return torch.full_like(teachers[..., 0], 1 / teachers.shape[0])


@dataclass(frozen=True)
class EBKD(WeighedTeachers):
    """FedSeq + EBKD (Kwon et al., ICASSP 2020): the surer a teacher is of an example, the more it counts.

    CE + beta sum_j w_j tau^2 KL(teacher j || student), over all classes; w_j = (1 - H_j / sum H) / (K - 1),
    H_j the entropy of teacher j's prediction.
    """

    def weigh(self, teachers: Tensor, y: Tensor) -> Tensor:
        """(1 - H_j / sum H) / (K - 1), H_j the entropy of teacher j's prediction."""
        log_p = F.log_softmax(teachers, -1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        total = entropy.sum(0)
        shares = torch.where(total > 0, entropy / torch.where(total > 0, total, 1), 1 / teachers.shape[0])
        return _the_smaller_the_better(shares)


@dataclass(frozen=True)
class CAMKD(WeighedTeachers):
    """FedSeq + CA-MKD (Zhang et al., ICASSP 2022): the better a teacher knows the label, the more it counts.

    CE + beta sum_j w_j tau^2 KL(teacher j || student), over all classes;
    w_j = (1 - e^L_j / sum e^L) / (K - 1), L_j teacher j's cross-entropy with the label. Its loss on logits;
    the paper's second loss, between features, is not part of the comparison.
    """

    def weigh(self, teachers: Tensor, y: Tensor) -> Tensor:
        """(1 - e^{L_j} / sum e^L) / (K - 1), L_j teacher j's cross-entropy with the label."""
        return _the_smaller_the_better(F.softmax(cross_entropy(teachers, y.expand(teachers.shape[:-1])), 0))


def _the_smaller_the_better(shares: Tensor) -> Tensor:
    """(1 - s_j) / (K - 1) of shares [K, B] that sum to one over the teachers; 1 for a single teacher."""
    count = shares.shape[0]
    return torch.ones_like(shares) if count == 1 else (1 - shares) / (count - 1)
