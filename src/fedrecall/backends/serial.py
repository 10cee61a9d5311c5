"""The reference: one client after another in this process."""

from collections.abc import Iterator, Sequence

from fedrecall.backends.backend import Job, Work
from fedrecall.training import Visit, visit


class Serial:
    """Visits one after another."""

    def __init__(self, work: Work):
        self.work = work

    def map(self, jobs: Sequence[Job]) -> Iterator[Visit]:
        """The visits in the order of their jobs."""
        w = self.work
        for job in jobs:
            yield visit(
                w.algorithm,
                w.model,
                w.recipe,
                w.federation.client(job.client),
                job.down,
                job.memory,
                seed=w.seed,
                round_number=job.round,
                client=job.client,
            )

    def close(self) -> None:
        """Nothing to free."""
