"""How much work a probe may do."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Effort:
    """Sizes that cost time.

    Attributes:
      rows: transitions that distances between samples are formed from; their cost grows with the square.
      pairs: real and simulated next states that classifiers are trained on.
      visits: replayed episodes of each policy of the panel.
      visit_steps: steps of each of those.
      visit_samples: whether distances and classifiers are formed for each policy, too.
      certified: held-out episodes that certify states.
      paired_members: members of the ensemble that imagine every evaluated episode from its start; None: all.
    """

    rows: int
    pairs: int
    visits: int
    visit_steps: int
    visit_samples: bool
    certified: int
    paired_members: int | None


QUICK = Effort(rows=600, pairs=1000, visits=6, visit_steps=256, visit_samples=False, certified=192, paired_members=1)
FULL = Effort(
    rows=2000, pairs=8000, visits=30, visit_steps=1000, visit_samples=True, certified=1024, paired_members=None
)
