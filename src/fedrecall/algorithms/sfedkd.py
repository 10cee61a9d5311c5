"""SFedKD."""

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from fedrecall.algorithms.multi_teacher import MultiTeacher
from fedrecall.algorithms.teachers import far_weights, near_weights, uniform_weights
from fedrecall.losses import not_true_kl, true_class_kl
from fedrecall.specs import NON_NEGATIVE


@dataclass(frozen=True)
class SFedKD(MultiTeacher):
    """Sequential FL with discrepancy-aware multi-teacher distillation (Xu et al., 2025, eq. 3 to 7).

    CE + gamma L_NCKD + beta L_TCKD: what teachers say about the classes that are not the label
    counts the more the less their client's data resemble the student's (g), what they say
    about the label counts the more the more they do (h).

    Deviations: the paper gives no temperature (here 1, where its formulas without tau^2 and ours
    with it, as in decoupled distillation, agree), no order of the arguments of its KL distance
    (here KL(teacher's client || student's)) and no smoothing of empty classes (here epsilon).
    With all distances zero g is uniform.
    """

    gamma: Annotated[float, NON_NEGATIVE] = 1.0
    """Weight of L_NCKD, on the classes that are not the label."""
    beta: Annotated[float, NON_NEGATIVE] = 3.0
    """Weight of L_TCKD, on the label against the rest."""
    g: Literal["weighted", "uniform"] = "weighted"
    """How teachers share L_NCKD: by distance, or equally."""
    h: Literal["weighted", "uniform"] = "weighted"
    """How teachers share L_TCKD: by closeness, or equally."""

    @property
    def by_distance(self) -> bool:
        """Unless both are shared equally."""
        return "weighted" in (self.g, self.h)

    def distil(self, teachers: Tensor, student: Tensor, y: Tensor, distances: Tensor) -> Tensor:
        """gamma sum_j g_j NCKD_j + beta sum_j h_j TCKD_j."""
        g = far_weights(distances) if self.g == "weighted" else uniform_weights(distances)
        h = near_weights(distances, self.epsilon) if self.h == "weighted" else uniform_weights(distances)
        nckd = not_true_kl(teachers, student, y, self.tau)  # [K, B]
        tckd = true_class_kl(teachers, student, y, self.tau)
        g, h = (w.to(student.dtype).unsqueeze(-1) for w in (g, h))  # [K, 1]
        return (self.gamma * g * nckd + self.beta * h * tckd).sum(0)
