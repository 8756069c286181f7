"""What will be asked, written down before the first cell: estimands, contrasts, rules of exclusion; and their hash.

A study that looks first and asks later finds something. The hash is SHA-256 of canonical JSON (sorted keys, no spaces);
an analysis compares what it does with what was registered, and says so in its results.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from worldmodel.fidelity.estimates import json_safe
from worldmodel.study.contrasts import PREREGISTERED
from worldmodel.study.estimands import Estimand, Tolerance
from worldmodel.study.means import WorldModelMeans
from worldmodel.study.transfer import conditions, headroom_of


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """A rule that leaves out whole conditions (environment, complexity, diversity, deployment), never single runs.

    "no_headroom": training in reality is not clearly better than none. "ceiling": the reference's mean is above
    `limit`, so that conditions there carry no information.
    """

    rule: Literal["no_headroom", "ceiling"]
    limit: float | None = None

    def __post_init__(self):
        if (self.rule == "ceiling") != (self.limit is not None):
            raise ValueError(f"rule 'ceiling' has a limit, 'no_headroom' has none; got {self.rule!r} with {self.limit}")


@dataclasses.dataclass(frozen=True)
class Preregistration:
    """The questions of a study.

    Attributes:
      estimands: thresholds to be found, the primary one first.
      contrasts: tested together, with Holm's correction.
      scale: of the contrasts' primary analysis; the other is reported beside it.
      exclusions: see `Exclusion`.
      seeds: world models per cell.
      policies: per world model.
      alpha: of tests.
    """

    estimands: Sequence[Estimand] = (Tolerance(0.1),)
    contrasts: Sequence[str] = PREREGISTERED
    scale: Literal["raw", "logit"] = "raw"
    exclusions: Sequence[Exclusion] = (Exclusion("no_headroom"),)
    seeds: int = 5
    policies: int = 2
    alpha: float = 0.05

    def to_json(self) -> dict[str, Any]:
        """Plain values; an estimand carries its kind."""
        kinds = [{"kind": type(e).__name__, **dataclasses.asdict(e)} for e in self.estimands]
        rules = [dataclasses.asdict(rule) for rule in self.exclusions]
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json_safe({**own, "estimands": kinds, "exclusions": rules})

    @property
    def sha256(self) -> str:
        """Of the canonical JSON."""
        return digest(self.to_json())


def digest(value: Any) -> str:
    """SHA-256 of canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def register(registration: Preregistration, path: Path, *, rows: Path) -> str:
    """Writes the registration with its hash to `path`, before there is any row; the same one again changes nothing.

    Raises:
      ValueError: `rows` holds results already, or `path` holds another registration.
    """
    if path.exists():
        said = compare(registration, path)
        if said["changed"]:
            raise ValueError(f"{path} holds another registration (it differs in {', '.join(said['changed'])})")
        return registration.sha256
    if rows.exists() and rows.read_text(encoding="utf-8").strip():
        raise ValueError(f"{rows} holds results already: a registration comes before the first cell")
    content = {"sha256": registration.sha256, "registration": registration.to_json()}
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return registration.sha256


def compare(registration: Preregistration, path: Path) -> dict[str, Any]:
    """What an analysis must say: `{"registered", "used": hashes, "changed": names of fields, "edited": bool}`.

    `changed` are fields in which what is used differs from the file; `edited` says that the file no longer has the hash
    it was written with. Without a file `registered` is null beside `why`.
    """
    used = registration.to_json()
    if not path.exists():
        why = f"there is no registration at {path.name}"
        return {"registered": None, "used": registration.sha256, "changed": sorted(used), "edited": False, "why": why}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        first, written = content["registration"], content["sha256"]
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(f"{path} is no registration: an object with 'sha256' and 'registration'") from None
    changed = sorted(name for name in {*first, *used} if first.get(name) != used.get(name))
    return {
        "registered": written,
        "used": registration.sha256,
        "changed": changed,
        "edited": digest(first) != written,
    }


def apply_exclusions(means: WorldModelMeans, rules: Sequence[Exclusion]) -> tuple[WorldModelMeans, list[str]]:
    """The conditions that no rule leaves out, and a sentence for each (with simulated training) that one does."""
    keep, said = np.ones(len(means), bool), []
    for words, here, anchors in conditions(means):
        broken = next((why for rule in rules if (why := _broken(rule, anchors)) is not None), None)
        if broken is not None:
            keep &= ~here
            said += [f"{words}: {broken}"] if (means.arm[here] == "simulated").any() else []
    return means.where(keep), said


def _broken(rule: Exclusion, anchors: WorldModelMeans) -> str | None:
    if rule.rule == "ceiling":
        top = anchors.returns("reference")
        if len(top) == 0:
            raise ValueError("rule 'ceiling' needs arm 'reference' in every condition")
        over = rule.limit is not None and top.mean() > rule.limit
        return f"at the ceiling: the reference's mean {top.mean():.4g} is above {rule.limit:g}" if over else None
    room = headroom_of(anchors)
    return room.why if room.lo is not None and room.lo <= 0 else None
