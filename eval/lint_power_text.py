"""How many faults planted in a text log does the lint find, and how often does it accuse a clean log?

Command:   python eval/lint_power_text.py                                  # 200 seeds of every cell
           python eval/lint_power_text.py --env text --fault action+1 --seeds 0 50 --jobs 2
Hardware:  1 CPU core, about 15 minutes for `text`; `--jobs` divides it.
Expected:  eval/README.md.

A cell is a log and a fault, with 40 episodes for each seed. `text`: agents of three skills in a small file system with
a task, made here. `text-sql` (InterCode, gpt-4) and `text-airline` (tau-bench, gpt-4o): episodes drawn from the real
logs in `../shared/corpora`. A finished cell is one line of JSON in `--out`, and is not run again. A fault counts as
found if the lint names it; an error or a warning of any kind in a clean log is a false alarm. `changed` counts the
planted logs that differ from the clean one at all.

The lint was developed on other streams of random numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.corpus.lint import planted
from worldmodel.corpus.lint.power import examined, summary
from worldmodel.sources import read
from worldmodel.trajectory import Spec, Trajectory

Log = list[Trajectory]
CORPORA = Path(__file__).parents[2] / "shared" / "corpora"
REAL = {
    "text-sql": "intercode_sql/ic_sql_multiturn_gpt-4_10_turns.json.gz",
    "text-airline": "tau_bench_airline/gpt-4o-airline.json",
}
ENVS = ("text", *REAL)
STREAM = 2027
TEXT = {"type": "Text", "max_length": None}
LONGEST_ACTION = 4000
SPEC = Spec(TEXT, {"type": "Text", "max_length": LONGEST_ACTION})
EPISODES = 40
LIMIT = 20
NAMES = (
    "falcon",
    "harbor",
    "lantern",
    "meadow",
    "onyx",
    "pepper",
    "quartz",
    "river",
    "saffron",
    "tundra",
    "willow",
    "zephyr",
)
FILES = (
    "notes",
    "report",
    "draft",
    "budget",
    "summary",
    "letter",
    "plan",
    "archive",
    "readme",
    "index",
    "journal",
    "list",
)
KEYS = ("color", "owner", "region", "status", "level", "tag")


# Each fault: what plants it (log, generator), and the code that names it.
FAULTS: dict[str, tuple[Callable[[Log, np.random.Generator], Log], str]] = {
    "clean": (lambda log, rng: log, ""),
    "action+1": (lambda log, rng: planted.shift_actions(log, 1), "action-shifted"),
    "action-1": (lambda log, rng: planted.shift_actions(log, -1), "action-shifted"),
    "reward+1": (lambda log, rng: planted.shift_rewards(log, 1), "reward-shifted"),
    "reward-1": (lambda log, rng: planted.shift_rewards(log, -1), "reward-shifted"),
    "end+1": (lambda log, rng: planted.shift_ends(log), "end-late"),
    "reset-kept": (lambda log, rng: planted.keep_reset(log), "end-late"),
    "T-observations": (lambda log, rng: planted.drop_last_observation(log), "observations-T"),
    "last-repeated": (lambda log, rng: planted.repeat_last_observation(log), "last-repeated"),
    "limit-terminal": (lambda log, rng: planted.limits_as_terminals(log), "time-limit-terminal"),
    "glued": (lambda log, rng: planted.glue_pairs(log, keep_last=False), "glued"),
    "glued-last-kept": (lambda log, rng: planted.glue_pairs(log, keep_last=True), "glued"),
    "duplicate": (lambda log, rng: repeat(log, rng, log), "duplicate"),
    "nan": (lambda log, rng: planted.plant_nan(log, rng, SPEC), "nan"),
    "action-outside": (lambda log, rng: outside(log, rng), "action-outside"),
    "leak": (lambda log, rng: leak(log, rng), "leak-duplicate"),
}


# --- The shell: a world whose answers follow from its calls ---------------------------------------------------------


class Shell:
    """A few files and keys, and a code to be found in one of them."""

    def __init__(self, rng: np.random.Generator):
        self.project = str(rng.choice(NAMES))
        self.code = f"{rng.integers(16**6):06x}"
        names = [f"{name}.{rng.choice(['txt', 'md', 'csv'])}" for name in rng.choice(FILES, 5, replace=False)]
        self.files = {name: f"{rng.choice(NAMES)} {rng.choice(KEYS)} {rng.integers(1000)}" for name in names}
        self.secret = str(rng.choice(names))
        self.files[self.secret] = f"project {self.project}\ncode {self.code}"
        self.keys: dict[str, str] = {}
        self.read = False

    def first(self) -> str:
        """What an episode begins with."""
        return f"Task: find the code of project {self.project} and submit it. You are in /home/user."

    def step(self, action: str) -> tuple[str, float, bool]:
        """The answer, the reward, and whether the session is over."""
        verb, _, rest = action.partition(" ")
        name, _, text = rest.partition(" ")
        if verb == "submit":
            right = name == self.code
            return ("Correct. " if right else "Wrong. ") + "Session closed.", 1.0 if right else -0.5, True
        if verb == "ls":
            return "  ".join(sorted(self.files)) or "(empty)", 0.0, False
        if verb == "set":
            self.keys[name] = text
            return f"{name} is now {text}", 0.0, False
        if verb == "get":
            return (self.keys[name], 0.0, False) if name in self.keys else (f"error: no key {name}", -0.1, False)
        if verb == "write":
            self.files[name] = text
            return f"wrote {len(text)} bytes to {name}", 0.0, False
        if name not in self.files:
            return f"error: {name}: no such file", -0.1, False
        if verb == "rm":
            del self.files[name]
            return f"removed {name}", 0.0, False
        if verb == "wc":
            return f"{len(self.files[name].split())} words {name}", 0.0, False
        bonus = 0.2 if name == self.secret and not self.read else 0.0
        self.read |= name == self.secret
        return self.files[name], bonus, False


def act(shell: Shell, seen: list[str], skill: str, rng: np.random.Generator) -> str:
    """What an agent of one of three skills does next; it knows what it has seen, and nothing else."""
    found = next((text.split()[-1] for text in seen if text.startswith("project ")), None)
    if skill != "random" and found and rng.random() < 0.8:
        return f"submit {found}"
    listed = next((text.split() for text in reversed(seen) if "  " in text), [])
    if skill == "good" and rng.random() < 0.85:
        return f"cat {rng.choice(listed)}" if listed else "ls"
    name = str(rng.choice(listed)) if listed and rng.random() < 0.7 else f"{rng.choice(FILES)}.txt"
    key = str(rng.choice(KEYS))
    choices = (
        "ls",
        f"cat {name}",
        f"cat {name}",
        f"wc {name}",
        f"rm {name}",
        f"write {rng.choice(FILES)}.txt {rng.choice(NAMES)} {rng.integers(1000)}",
        f"set {key} {rng.choice(NAMES)}",
        f"get {key}",
        f"submit {rng.integers(16**6):06x}" if rng.random() < 0.3 else "ls",
    )
    return str(choices[rng.integers(len(choices))])


def shell_log(seed: int) -> list[Trajectory]:
    """Episodes of agents of three skills in random order."""
    rng = np.random.default_rng([seed, STREAM])
    log = []
    for number, skill in enumerate(rng.permutation(np.resize(("random", "weak", "good"), EPISODES))):
        shell, over = Shell(rng), False
        seen, actions, rewards = [shell.first()], [], []
        while not over and len(actions) < LIMIT:
            actions.append(act(shell, seen, str(skill), rng))
            answer, reward, over = shell.step(actions[-1])
            seen.append(answer)
            rewards.append(reward)
        log.append(_episode(seen, actions, rewards, over, {"id": f"{seed}-{number}", "policy": str(skill)}))
    return log


def _episode(seen: list[str], actions: list[str], rewards: list[float], over: bool, info: dict) -> Trajectory:
    return Trajectory(_column(seen), _column(actions), np.array(rewards, np.float32), over, not over, info=info)


def _column(texts: list[str]) -> np.ndarray:
    column = np.empty(len(texts), np.object_)
    column[:] = texts
    return column


# --- Cells ------------------------------------------------------------------------------------------------------------


def main() -> None:
    """Runs the cells that are missing and prints the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=ENVS, nargs="*", default=ENVS)
    parser.add_argument("--fault", choices=list(FAULTS), nargs="*", default=list(FAULTS))
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 200), help="first, and one past the last")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "lint_power_text.jsonl")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    seeds = list(options.seeds)
    lines = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(cell["env"], cell["fault"]): cell for cell in lines if cell["seeds"] == seeds}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for env in options.env:
            for fault in options.fault:
                if (env, fault) in done:
                    continue
                trials = pool.map(trial, [(env, fault, seed) for seed in range(*seeds)], chunksize=1)
                cell = {"env": env, "fault": fault, "seeds": seeds, **summary(trials)}
                done[env, fault] = cell
                with options.out.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
                print(f"{env:14} {fault:16} {cell['found']}/{cell['n']} {cell['codes']}", flush=True)
    print("| planted | " + " | ".join(options.env) + " |")
    print("|---" * (len(options.env) + 1) + "|")
    for fault in options.fault:
        cells = [done[env, fault] for env in options.env]
        shown = [f"{c['found']}/{c['n']}" + _limit(c, fault) for c in cells]
        print(f"| {'clean: false alarms' if fault == 'clean' else fault} | " + " | ".join(shown) + " |")


def trial(work: tuple[str, str, int]) -> dict[str, Any]:
    """One log with one fault: the codes found, whether the log is changed at all, and CPU seconds of the lint."""
    env, fault, seed = work
    clean = shell_log(seed) if env == "text" else drawn_log(env, seed)
    plant, code = FAULTS[fault]
    log = plant(clean, np.random.default_rng([seed, len(fault)]))
    return examined(seed, log, SPEC, code, changed=not _same(clean, log))


def drawn_log(env: str, seed: int) -> Log:
    """40 episodes of a real log, in the order of the log."""
    episodes = _episodes(env)
    chosen = np.sort(np.random.default_rng([seed, STREAM]).choice(len(episodes), EPISODES, replace=False))
    return [episodes[i] for i in chosen]


@functools.lru_cache(maxsize=1)
def _episodes(env: str) -> Log:
    return list(read(f"chat:{CORPORA / REAL[env]}"))


def outside(log: Log, rng: np.random.Generator) -> Log:
    """One action is longer than its space allows."""
    at = int(rng.integers(len(log)))
    actions = log[at].actions.copy()
    actions[rng.integers(len(actions))] = "cat " + "a" * LONGEST_ACTION
    return [*log[:at], dataclasses.replace(log[at], actions=actions), *log[at + 1 :]]


def repeat(log: Log, rng: np.random.Generator, among: Log, **info: str) -> Log:
    """One of some episodes again at the end of the log, under another id."""
    copy = among[int(rng.integers(len(among)))]
    return [*log, dataclasses.replace(copy, info={**copy.info, "id": f"{copy.info['id']}-again", **info})]


def leak(log: Log, rng: np.random.Generator) -> Log:
    """A split log with one training episode among those of the test, too."""
    parted = planted.split(log)
    return repeat(parted, rng, [t for t in parted if t.info["split"] == "train"], split="test")


def _same(first: Log, second: Log) -> bool:
    def plain(log: Log) -> list[Any]:
        rewards = [None if t.rewards is None else t.rewards.tolist() for t in log]
        texts = [(list(t.observations), list(t.actions), t.terminated, t.truncated, dict(t.info)) for t in log]
        return [rewards, texts]

    return plain(first) == plain(second)


def _limit(cell: dict[str, Any], fault: str) -> str:
    if fault == "clean" or cell["changed"] == cell["n"]:
        return ""
    return f" (at most {cell['changed']} can be seen)"


if __name__ == "__main__":
    main()
