"""Do the study's statistics find what was planted, and nothing else? Known curves, known interactions, a known flip.

Command:   python eval/study_validation.py              (a try: --repetitions 50 --out /tmp/try.jsonl)
Data:      made by the script, see `worldmodel/study/synthetic.py`.
Hardware:  one CPU core; about half an hour in all.
Expected:  eval/README.md.

Every repetition makes a study (world models differ by .08, policies of one by .05, two of them each; twice as many runs
of training in reality as world models at a level), and runs the estimators on it as an analysis would, from the table.

`thresholds`  known response curves: is the least fidelity within .1 of the reference (or the kink, or the jump) inside
              the 95% interval? `claimed`: the estimator says it is valid there. `refused`: null with a reason.
              `finite`: neither end is open. `error`: of the centre. `below`: the interval lies under the truth.
              `c`: conservative, above 97%.
`alarms`      kinks and jumps found where there are none.
`flip`        two actions, one of which a faulty simulator overrates: a jump at exactly 2/3 (H = 0 below). And `H` such
              decisions that must all succeed: thresholds .723, .777, .819, .847 for `H` = 1, 2, 4, 8. World models are
              counts, policies are learned from samples of them, returns are of episodes.
`pooled`, `contrasts`  planted and absent effects of the dials on thresholds and on returns; power beside the promise.
`transfer`, `pilot`    coverage of transfer efficiency, and of the pilot's upper 80% limit.

Every cell is one line of JSON in `--out`, and is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.fidelity.estimates import Estimate
from worldmodel.study.bracketing import bracket
from worldmodel.study.breaks import jump, kink
from worldmodel.study.contrasts import factorial
from worldmodel.study.design import contrast_power, pilot_variances
from worldmodel.study.estimands import Tolerance
from worldmodel.study.isotonic import isotonic_threshold
from worldmodel.study.means import WorldModelMeans, per_world_model
from worldmodel.study.pooled import pooled_threshold
from worldmodel.study.sigmoid import sigmoid_threshold
from worldmodel.study.synthetic import CURVES, Noise, curve_study, factorial_study, shifted_study
from worldmodel.study.table import StudyTable
from worldmodel.study.transfer import transfer_efficiency

RESULTS = Path(__file__).parent / "results" / "study_validation.jsonl"
SEEDS, DELTA = (5, 10, 20), 0.1
CLAIMS = {
    "bracket": set(CURVES),
    "isotonic": {"flat", "linear", "hinge", "logistic"},
    "sigmoid": {"logistic"},
    "sigmoid, jittered": {"logistic"},
    "kink": {"hinge"},
    "jump, jittered": {"step"},
}
"""Curves for which an estimator of a threshold claims its interval."""

TRIED = {
    **CLAIMS,
    "isotonic": set(CURVES),
    "sigmoid": {"hinge", "step", "logistic", "dip"},
    "sigmoid, jittered": {"step", "logistic", "dip"},
}
"""Curves on which it is run: also where it claims nothing, to see what it then says."""

EFFECTS = {"CF": 0.03, "DF": 0.03, "CD": 0.0, "CDF": 0.02}
SPREADS = ((0.08, 3), (0.08, 5), (0.08, 8), (0.15, 5), (0.15, 10))
SHIFTS = {"alpha_C": 0.03, "alpha_D": 0.0, "alpha_CD": 0.02}
SAFE, INSTANCES, EPISODES = 0.6, 100, 2_000
FLIPS = (1, 2, 4, 8)

Cell = tuple[dict[str, Any], Callable[[int], dict[str, Any]]]


def main() -> None:
    """Runs the cells that are missing and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--repetitions", type=int, default=1_000, help="of each cell; the bracket gets twice as many")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for part in options.parts:
        for named, repetition in PARTS[part]():
            times = options.repetitions * (2 if named.get("estimator") == "bracket" else 1)
            key = {"part": part, **named, "repetitions": times}
            if any(key.items() <= cell.items() for cell in done):
                continue
            cell = {**key, **_summed([repetition(i) for i in range(key["repetitions"])])}
            with options.out.open("a") as file:
                file.write(json.dumps(cell, allow_nan=False) + "\n")
            print(json.dumps(cell), flush=True)
            done.append(cell)
    for part in options.parts:
        print(f"\n{part}\n{table([cell for cell in done if cell['part'] == part])}")


# --- Thresholds -------------------------------------------------------------------------------------------------------


def threshold_cells() -> Iterator[Cell]:
    """Curves, estimators and numbers of world models; kinks and jumps only where there is one."""
    for curve, estimator, seeds in itertools.product(CURVES, CLAIMS, SEEDS):
        known = CURVES[curve]
        truth = {"kink": known.kink, "jump, jittered": known.jump}.get(estimator, known.tolerance(DELTA))
        if curve not in TRIED[estimator] or truth is None:
            continue

        def repetition(i: int, curve: str = curve, estimator: str = estimator, seeds: int = seeds, truth=truth) -> dict:
            rng = np.random.default_rng([i, seeds, sum(map(ord, curve))])
            means = per_world_model(curve_study(CURVES[curve], rng, seeds=seeds, jittered="jittered" in estimator))
            return _judged(_estimated(estimator, means, i), truth)

        claimed = curve in CLAIMS[estimator]
        yield {"curve": curve, "estimator": estimator, "seeds": seeds, "claimed": claimed}, repetition


def _estimated(estimator: str, means: WorldModelMeans, seed: int) -> Estimate:
    wanted = Tolerance(DELTA)
    if estimator == "bracket":
        found = bracket(means, wanted)
        # The truth may be the lower end itself only beyond it: an open interval's end is moved by nothing visible.
        lower = None if found.lower is None else math.nextafter(found.lower, math.inf)
        return Estimate(None, lower, found.upper, found.n, found.why or "a bracket has no centre")
    if estimator == "isotonic":
        return isotonic_threshold(means, wanted, seed=seed, repetitions=500)
    if estimator == "kink":
        return kink(means, seed=seed, repetitions=499).place
    if estimator.startswith("jump"):
        return jump(means, seed=seed, repetitions=499).place
    return sigmoid_threshold(means, wanted, seed=seed, repetitions=300).threshold


def _judged(estimate: Estimate, truth: float) -> dict[str, Any]:
    """Counts and sums of one repetition; a threshold beyond the levels is said in words, and is no refusal."""
    parts, why = (estimate.mean, estimate.lo, estimate.hi), estimate.why or ""
    nowhere = parts == (None, None, None)
    beyond = nowhere and why.startswith("not reached")
    refused = nowhere and not why.startswith(("not reached", "not even", "already"))
    low = -math.inf if estimate.lo is None else estimate.lo
    high = math.inf if estimate.hi is None else estimate.hi
    holds = math.isinf(truth) if beyond else not refused and low <= truth <= high
    finite = estimate.lo is not None and estimate.hi is not None
    central = estimate.mean is not None and math.isfinite(truth)
    return {
        "covered": int(holds),
        "refused": int(refused),
        "finite": int(finite),
        "width": high - low if finite else 0.0,
        "centred": int(central),
        "error": estimate.mean - truth if central and estimate.mean is not None else 0.0,
        "below": int(not refused and high < truth),
    }


def alarm_cells() -> Iterator[Cell]:
    """Breaks in curves that have none."""
    for curve, (name, find), seeds in itertools.product(
        ("flat", "linear"), (("kink", kink), ("jump", jump)), (4, 8, 16)
    ):

        def repetition(i: int, curve: str = curve, name: str = name, find=find, seeds: int = seeds) -> dict[str, Any]:
            rng = np.random.default_rng([i, seeds, 1])
            means = per_world_model(curve_study(CURVES[curve], rng, seeds=seeds, jittered=name == "jump"))
            found = find(means, seed=i, repetitions=499)
            return {"bent": int(found.p <= 0.05), "found": int(found.place.mean is not None)}

        yield {"curve": curve, "test": name, "world_models": 10 * seeds}, repetition


# --- A process with an exact answer -----------------------------------------------------------------------------------


def flip_cells() -> Iterator[Cell]:
    """The two-armed flip, and products of such decisions."""
    yield {"H": 0, "truth": 2 / 3, "estimator": "jump"}, two_arms
    for horizon in FLIPS:
        truth = exact_flip(horizon)

        def repetition(i: int, horizon: int = horizon, truth: float = truth) -> dict[str, Any]:
            rng = np.random.default_rng([i, horizon, 2])
            levels = np.repeat(np.linspace(0.5, 1.0, 11), 5)
            arms = [("simulated", phi, np.random.default_rng([i, k, 3])) for k, phi in enumerate(levels)]
            arms += [("reference", 1.0, np.random.default_rng([i, k, 4])) for k in range(10)]
            risky = np.stack([rng.permutation(np.linspace(0.2, 0.55, 2 * INSTANCES + 1)[1::2]) for _ in range(horizon)])
            means = per_world_model(_deployed(arms, risky, 10_000))
            return _judged(isotonic_threshold(means, Tolerance(0.05, relative=True), seed=i), truth)

        yield {"H": horizon, "truth": truth, "estimator": "isotonic"}, repetition


def exact_flip(horizon: int) -> float:
    """Fidelity at which 5% of the reference's return is lost, risky chances being even over (.2, .55)."""
    # A risky chance of .6 - u loses u; taken wrongly up to there, decisions lose (u^2 - .05^2) / .7 on average.
    u = math.sqrt(0.7 * SAFE * (1 - 0.95 ** (1 / horizon)) + 0.05**2)
    return 1 - u / (1 - SAFE + u)


def two_arms(i: int) -> dict[str, Any]:
    """Safe .6 against risky .4, which the simulator rates at `p + (1 - f)(1 - p)`: from 2/3 on it is seen through."""
    rng = np.random.default_rng([i, 5])
    spread = 0.4 + 0.6 * (np.arange(60) + rng.uniform()) / 60
    means = per_world_model(_deployed([("simulated", phi, rng) for phi in spread], np.full((1, 1), 0.4), 100_000))
    return _judged(jump(means, seed=i, repetitions=499).place, 2 / 3)


def _deployed(arms: list[tuple[str, float, np.random.Generator]], risky: np.ndarray, counts: int) -> StudyTable:
    """Rows of two policies in each world model: risky `[H, I]` chances of `I` instances with `H` decisions each.

    `counts`: real samples of each action in a world model's table, and samples of it from which a policy learns.
    """
    rows = []
    for unit, (arm, phi, rng) in enumerate(arms):
        rated = risky + (1.0 - phi) * (1.0 - risky)
        owns = arm == "simulated"
        # A world model is a table of counts; in reality the policy learns from the process itself.
        tables = [rng.binomial(counts, p) / counts if owns else p for p in (np.full_like(risky, SAFE), rated)]
        for policy in range(2 if owns else 1):
            safe, other = (rng.binomial(counts, p) for p in tables)
            succeeds = np.where(other > safe, risky, SAFE).prod(axis=0)
            earned = float((rng.binomial(EPISODES, succeeds) / EPISODES).mean())
            row = {
                "environment": "decisions",
                "complexity": float(len(risky)),
                "diversity": None,
                "deployment": "training",
            }
            row |= {"fidelity": phi if owns else None, "corruption": "optimism" if owns else None, "arm": arm}
            row |= {"world_model_seed": unit if owns else None, "policy_seed": policy if owns else unit}
            rows.append({**row, "real_return": earned})
    return StudyTable.of(rows)


# --- Dials ------------------------------------------------------------------------------------------------------------


def pooled_cells() -> Iterator[Cell]:
    """Shifts of a threshold by the dials, 54 cells."""
    for seeds in (3, 5, 10):

        def repetition(i: int, seeds: int = seeds) -> dict[str, Any]:
            fit = pooled_threshold(
                per_world_model(shifted_study(SHIFTS, _rng(i, seeds, 6), seeds=seeds)), seed=i, repetitions=500
            )
            truth = {"tau_0": 0.5, **SHIFTS}
            holds = {f"covered {name}": _inside(fit[name], value) for name, value in truth.items()}
            return {**holds, **{f"found {name}": int(fit.raises(name) is not None) for name in SHIFTS}}

        yield {"seeds": seeds}, repetition


def contrast_cells() -> Iterator[Cell]:
    """Planted and absent interactions, 45 cells; and what counting policies as world models would have done."""
    for effects, (spread, seeds) in itertools.product((EFFECTS, {}), SPREADS):
        noise = Noise(spread, 0.1, 2)

        def repetition(i: int, effects: dict = effects, seeds: int = seeds, noise: Noise = noise) -> dict[str, Any]:
            return _tests(per_world_model(factorial_study(effects, _rng(i, seeds, 7), seeds=seeds, noise=noise)))

        promise = contrast_power(
            {**dict.fromkeys(EFFECTS, 0.0), **effects}, seeds=seeds, variance=noise.variance, cells=45
        )
        key = {"planted": bool(effects), "sd": spread, "seeds": seeds, "policies": 2, "unit": "world model"}
        yield {**key, "promised": promise}, repetition
    for unit in ("world model", "policy (wrong)"):

        def wrong(i: int, unit: str = unit) -> dict[str, Any]:
            rows = factorial_study({}, _rng(i, 5, 8), seeds=5, noise=Noise(0.08, 0.1, 4))
            if unit != "world model":
                rows = dataclasses.replace(rows, world_model_seed=np.arange(len(rows)))
            return _tests(per_world_model(rows))

        yield {"planted": False, "sd": 0.08, "seeds": 5, "policies": 4, "unit": unit, "promised": None}, wrong


def _tests(means: WorldModelMeans) -> dict[str, Any]:
    found = factorial(means).raw
    out = {f"found {c.name}": int(c.p_holm is not None and c.p_holm <= 0.05) for c in found}
    out |= {f"alone {c.name}": int(c.p is not None and c.p <= 0.05) for c in found}
    return {**out, "any": int(any(out[f"found {c.name}"] for c in found))}


# --- Others -----------------------------------------------------------------------------------------------------------


def transfer_cells() -> Iterator[Cell]:
    """Transfer efficiency .8 with much and with little headroom."""
    for room, method, seeds in itertools.product((0.7, 0.15), ("fieller", "bootstrap"), SEEDS):

        def repetition(i: int, room: float = room, method: Any = method, seeds: int = seeds) -> dict[str, Any]:
            rows = curve_study(CURVES["flat"], _rng(i, seeds, 9), seeds=seeds, levels=2)
            means = per_world_model(rows).select(fidelity=1.0)
            share = np.select([means.arm == "simulated", means.arm == "reference"], [0.8, 1.0], 0.0)
            # The made-up reference stands .7 above the base: both are put where this cell wants them.
            level = np.where(means.arm == "reference", means.real_return - 0.7, means.real_return) + room * share
            found = transfer_efficiency(dataclasses.replace(means, real_return=level), method=method, seed=i)
            return {"refused": int(found.mean is None), "covered": 0 if found.mean is None else _inside(found, 0.8)}

        yield {"headroom": room, "method": method, "seeds": seeds}, repetition


def pilot_cells() -> Iterator[Cell]:
    """Five world models in three cells, two policies each: is the variance between them below its limit?"""
    for spread in (0.04, 0.08, 0.15):

        def repetition(i: int, spread: float = spread) -> dict[str, Any]:
            noise = Noise(spread, 0.1, 2)
            pilot = pilot_variances(curve_study(CURVES["flat"], _rng(i, 10), seeds=5, levels=3, noise=noise))
            return {"covered": int(spread**2 <= pilot.world_model_upper), "variance": pilot.world_model}

        yield {"sd": spread}, repetition


PARTS: dict[str, Callable[[], Iterator[Cell]]] = {
    "alarms": alarm_cells,
    "flip": flip_cells,
    "contrasts": contrast_cells,
    "transfer": transfer_cells,
    "pilot": pilot_cells,
    "pooled": pooled_cells,
    "thresholds": threshold_cells,
}


def _rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _inside(estimate: Estimate, truth: float) -> int:
    return int((estimate.lo is None or estimate.lo <= truth) and (estimate.hi is None or truth <= estimate.hi))


def _summed(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: sum(run[name] for run in runs) for name in runs[0]}


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown: a row per cell, or per cells that differ in `seeds` alone, their numbers in the order of `seeds`.

    Counts become shares of repetitions (of those not refused, for what is covered).
    """
    rows: dict[str, list[dict[str, str]]] = {}
    for cell in cells:
        row = _row(cell)
        same = {name: value for name, value in row.items() if name in _KEYS - {"seeds"} or name in _NAMES}
        rows.setdefault(json.dumps(same), []).append(row)
    head = list(dict.fromkeys(name for group in rows.values() for row in group for name in row))
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for group in rows.values():
        columns = [[row.get(name, "-") for row in group] for name in head]
        joined = [values[0] if len(set(values)) == 1 else ", ".join(values) for values in columns]
        lines.append(f"| {' | '.join(joined)} |")
    return "\n".join(lines)


def _row(cell: dict[str, Any]) -> dict[str, str]:
    times = cell["repetitions"]
    stated = times - cell.get("refused", 0)
    out: dict[str, str] = {}
    for name, value in cell.items():
        if name in ("part", "promised"):
            continue
        if name == "truth":
            out[name] = f"{value:.3f}"
        elif name == "repetitions" or not isinstance(value, (int, float)) or isinstance(value, bool) or name in _KEYS:
            out[name] = str(value)
        elif name.startswith("covered"):
            out[name] = f"{value / stated:.3f}" + (" c" if value > 0.97 * stated else "") if stated else "-"
        elif name == "width":
            out[name] = f"{value / cell['finite']:.3f}" if cell["finite"] else "-"
        elif name == "error":
            out[name] = f"{value / cell['centred']:+.3f}" if cell["centred"] else "-"
        elif name != "centred":
            out[name] = f"{value / times:.3f}"
        if cell.get("promised") and name.startswith("found "):
            out[name] += f" ({cell['promised'][name.removeprefix('found ')]:.3f})"
    return out


_KEYS = {"seeds", "world_models", "H", "truth", "sd", "policies", "headroom"}
_NAMES = {"curve", "estimator", "claimed", "test", "planted", "unit", "method"}


if __name__ == "__main__":
    main()
