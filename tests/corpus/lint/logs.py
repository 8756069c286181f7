"""Small logs in which to plant faults."""

from __future__ import annotations

import numpy as np

from worldmodel.spaces import box
from worldmodel.trajectory import Spec, Trajectory

NUMBERS = Spec(box((3,), np.float32), box((1,), np.float32, -1.0, 1.0))
TEXTS = Spec({"type": "Text", "max_length": None}, {"type": "Text", "max_length": 60})
GRID = Spec({"type": "Discrete", "n": 50, "start": 0}, {"type": "Discrete", "n": 3, "start": 0})
_NAMES = ("notes", "report", "draft", "budget", "letter", "plan", "archive", "index")
_WORDS = ("falcon", "harbor", "lantern", "meadow", "onyx", "pepper", "quartz", "river", "saffron", "tundra")


def walk(name: str, steps: int = 30, seed: int = 0, **info: object) -> Trajectory:
    """A noisy linear system in three dimensions, pushed by its action."""
    rng = np.random.default_rng(seed)
    state, rows = rng.normal(size=3), []
    actions = rng.uniform(-1, 1, (steps, 1)).astype(np.float32)
    for push in actions:
        rows.append(state)
        state = 0.9 * state + np.array([1.0, 0.5, 0.0]) * push + 0.05 * rng.normal(size=3)
    observations = np.array([*rows, state], np.float32)
    rewards = -np.square(observations[1:, 0])
    return Trajectory(observations, actions, rewards, False, True, info={"id": name, **info})


def walks(count: int = 12, steps: int = 30) -> list[Trajectory]:
    """Episodes `w0`, `w1`, .. of `walk`, all truncated."""
    return [walk(f"w{i}", steps, seed=i) for i in range(count)]


def turns(name: str, steps: int, seed: int, **info: object) -> Trajectory:
    """A wanderer on a ring of fifty places, from one of three starts."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(3, size=steps)
    places = (rng.integers(3) * 10 + np.cumsum([0, *(actions - 1)])) % 50
    rewards = np.zeros(steps, np.float32)
    return Trajectory(places.astype(np.int64), actions, rewards, False, True, info={"id": name, **info})


def texts(seed: int = 0, count: int = 40, limit: int = 14) -> list[Trajectory]:
    """Agents that read and write files until they submit the code that one of them holds, or run out of steps."""
    rng = np.random.default_rng(seed)
    return [_session(rng, f"s{i}", limit) for i in range(count)]


def column(values: list[str]) -> np.ndarray:
    """Texts as a column."""
    filled = np.empty(len(values), np.object_)
    filled[:] = values
    return filled


def _session(rng: np.random.Generator, name: str, limit: int) -> Trajectory:
    project, code = str(rng.choice(_WORDS)), f"{rng.integers(16**6):06x}"
    files = {f"{n}.txt": f"{rng.choice(_WORDS)} {rng.integers(1000)}" for n in rng.choice(_NAMES, 4, replace=False)}
    files[str(rng.choice(list(files)))] = f"project {project} code {code}"
    seen, actions, rewards, over = [f"Task: find the code of project {project}. You are at home."], [], [], False
    while not over and len(actions) < limit:
        found = next((text for text in seen if text.startswith("project ")), None)
        file = str(rng.choice(list(files))) if rng.random() < 0.8 else f"{rng.choice(_NAMES)}.md"
        if found and rng.random() < 0.6:
            action, answer, reward, over = f"submit {found.split()[-1]}", "Correct. Session closed.", 1.0, True
        elif rng.random() < 0.2:
            action, answer, reward = "ls", "  ".join(sorted(files)), 0.0
        elif rng.random() < 0.4:
            word = str(rng.choice(_WORDS))
            action, answer, reward = f"write new.txt {word}", f"wrote {len(word)} bytes to new.txt", 0.0
        elif file in files:
            action, answer, reward = f"cat {file}", files[file], 0.0
        else:
            action, answer, reward = f"cat {file}", f"error: {file}: no such file", -0.1
        seen.append(answer)
        actions.append(action)
        rewards.append(reward)
    return Trajectory(column(seen), column(actions), np.array(rewards, np.float32), over, not over, info={"id": name})
