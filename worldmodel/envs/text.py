"""A language world model as an environment of texts: `reset(task=...) -> (str, info)`, `step(str) -> (str, ...)`.

What was read stays in the model's cache; a step reads the action and says the answer, no token twice. The model looks
back on a window of tokens. When the next turn might not fit, the window is begun anew, as training began its samples:
with the context and the first observation, and with as many of the last turns as fit in half of it. The oldest turns
after the task are forgotten.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from worldmodel.codec.text.episode import CUT, action_of, cut
from worldmodel.codec.text.samples import recent
from worldmodel.model.text_dynamics import LONGEST_REWARD, Said, TextDynamics, TextState
from worldmodel.spaces import space_from_json

_SPARE = LONGEST_REWARD + 2
"""Tokens that an answer takes beside its observation: ends, and the reward."""

_FORMAT = 1
_OPTIONS = ("task", "prefix")


@dataclasses.dataclass(frozen=True)
class _Window:
    """What the model has read: `begun` at once, `since` one by one; turns before `first` are forgotten."""

    state: TextState
    begun: tuple[int, ...]
    since: tuple[int, ...]
    first: int

    def __len__(self) -> int:
        return len(self.begun) + len(self.since)


@dataclasses.dataclass(frozen=True)
class _Episode:
    """An episode so far: its texts, and the tokens of the head and of each turn."""

    task: str | None
    context: Any
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    rewards: tuple[float, ...]
    head: tuple[int, ...]
    turns: tuple[tuple[int, ...], ...]
    ended: bool


class TextEnv(gym.Env[str, str]):
    """One simulated episode of texts at a time.

    The same seed, task and actions give the same texts. `info` of a step holds `log_prob` (nats that the model gave to
    the `observation`, the `reward` and to `terminated`), `end_probability`, `cut` (the observation was ended where the
    window was full), `forgotten` (turns that the model no longer sees) and `steps`.

    Args:
      dynamics: a trained language world model (`worldmodel.load(run).dynamics`).
      task: of every episode unless `reset` names another. A name that logged episodes have (`info["task"]`), which then
        begins as one of them did; or any other text: it becomes the context's `instruction` where the logs have one,
        else the first observation. None: drawn from the logged ones.
      temperature: that the model's logits are divided by; 0: always the likeliest token.
      seed: of everything drawn.
      max_steps: turns after which an episode is truncated; None: never.

    Raises:
      ValueError: an argument, a task, a prefix or an action is outside what is allowed.
      gymnasium.error.ResetNeeded: a step before `reset`, or after the episode's end.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012, as Gymnasium has it

    def __init__(
        self,
        dynamics: TextDynamics,
        *,
        task: str | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        max_steps: int | None = None,
    ):
        if not 0.0 <= temperature < float("inf"):
            raise ValueError(f"temperature is {temperature}; a number of at least 0 is needed")
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps is {max_steps}; at least 1 is needed, or None for no limit")
        self.dynamics, self.task, self.temperature, self.max_steps = dynamics, task, temperature, max_steps
        text: dict[str, Any] = {"type": "Text", "max_length": None}
        self.observation_space, self.action_space = space_from_json(text), space_from_json(text)
        self._seed, self._draws = int(seed), 0
        self._window: _Window | None = None
        self._episode: _Episode | None = None

    @property
    def tools(self) -> list[Any]:
        """Tools of the logs: schemas where a context lists them, names of the others that were called."""
        return list(self.dynamics.beginnings.tools)

    # --- Gymnasium ----------------------------------------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | None = None,
        task: str | None = None,
        prefix: Sequence[Sequence[str]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[str, dict[str, Any]]:
        """Begins an episode.

        Args:
          seed: of everything that follows; None: what is drawn goes on.
          task: of this episode; None: that of the environment.
          prefix: `(action, observation)` turns that count as lived through; they earned what such turns earn most often
            in the logs.
          options: `task` and `prefix` for those who call through Gymnasium.
        """
        for name in options or ():
            if name not in _OPTIONS:
                raise ValueError(f"reset option {name!r} is not known; known are {', '.join(_OPTIONS)}")
        told = dict(options or {})
        task = told.get("task") if task is None else task
        if task is not None and not isinstance(task, str):
            raise ValueError(f"task is a {type(task).__name__}; a str is needed")
        prefix = _checked(told.get("prefix") if prefix is None else prefix)
        if self.max_steps is not None and len(prefix) >= self.max_steps:
            raise ValueError(f"a prefix of {len(prefix)} turns leaves no step of {self.max_steps} to take")
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._draws = int(seed), 0
        codec, dynamics = self.dynamics.codec, self.dynamics
        name, context, first = self._start(self.task if task is None else task)
        head = codec.opening(context)
        if first is None:
            room = dynamics.length // 2 - len(head)
            self._check_room(room, "the task")
            _, said = dynamics.say(dynamics.read(head), [], outcome=False, longest=room, **self._drawing())
            first, answer = said.observation, said.ids
        else:
            answer = codec.answering(first, None)
        turns, reward = [], dynamics.beginnings.reward
        for action, observation in prefix:
            observation = cut(observation, codec.rules.longest_observation)
            turns.append((*codec.asking(self._action(action)), *codec.answering(observation, reward)))
        paid = float(reward) if reward else 0.0
        self._episode = _Episode(
            name,
            context,
            (first, *(observation for _, observation in prefix)),
            tuple(action for action, _ in prefix),
            (paid,) * len(prefix),
            (*head, *answer),
            tuple(turns),
            False,
        )
        self._check_room(dynamics.length - len(self._episode.head), "the task")
        self._begin_window(self._episode)
        return self._episode.observations[-1], {"task": name, "context": context, "steps": len(prefix)}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One turn, of a text: observation, reward (0 where the logs have none), terminated, truncated, info."""
        episode = self._running("step")
        if not isinstance(action, str):
            raise ValueError(f"action is a {type(action).__name__}; a str is needed")
        asked = self.dynamics.codec.asking(self._action(action))
        window = self._with_room(episode, len(asked))
        longest = self.dynamics.length - len(window) - len(asked) - _SPARE
        limit = self.dynamics.codec.rules.longest_observation
        longest = min(longest, limit + len(CUT)) if limit else longest
        state, said = self.dynamics.say(window.state, asked, outcome=True, longest=longest, **self._drawing())
        told = (*asked, *said.ids)
        self._window = dataclasses.replace(window, state=state, since=(*window.since, *told))
        reward = said.reward or 0.0
        steps = len(episode.actions) + 1
        truncated = not said.over and self.max_steps is not None and steps >= self.max_steps
        self._episode = dataclasses.replace(
            episode,
            observations=(*episode.observations, said.observation),
            actions=(*episode.actions, action),
            rewards=(*episode.rewards, reward),
            turns=(*episode.turns, told),
            ended=said.over or truncated,
        )
        return said.observation, reward, said.over, truncated, self._info(said, window.first, steps)

    def close(self) -> None:
        """Lets go of the episode; the model is whoever's made the environment."""
        self._window = self._episode = None

    # --- Moments ------------------------------------------------------------------------------------------------------

    def branch(self, n: int) -> list[TextEnv]:
        """The present episode continued `n` ways; the first goes on as this one would, each other by its own chances.

        This environment stays where it is. What was read is shared, not copied.
        """
        self._running("branch")
        if n < 1:
            raise ValueError(f"{n} branches; at least 1 is needed")
        branches = []
        for number in range(n):
            other = TextEnv(
                self.dynamics,
                task=self.task,
                temperature=self.temperature,
                seed=self._seed,
                max_steps=self.max_steps,
            )
            other._window, other._episode, other._draws = self._window, self._episode, self._draws
            if number:
                words = np.random.SeedSequence([self._seed % 2**64, self._draws, number]).generate_state(1)
                other._seed, other._draws = int(words[0]), 0
            branches.append(other)
        return branches

    def snapshot(self) -> dict[str, Any]:
        """This moment as plain JSON; `restore` of it gives the same texts for the same actions."""
        episode = None if self._episode is None else dataclasses.asdict(self._episode)
        window = self._window
        kept = None if window is None else {"begun": window.begun, "since": window.since, "first": window.first}
        told = {
            "format": _FORMAT,
            "model": self.dynamics.digest,
            "seed": self._seed,
            "draws": self._draws,
            "temperature": self.temperature,
            "episode": episode,
            "window": kept,
        }
        return json.loads(json.dumps(told))

    def restore(self, snapshot: Mapping[str, Any]) -> str | None:
        """Goes back to a snapshot of the same model, taken here or elsewhere; returns its observation.

        Raises:
          ValueError: it is damaged, or another model's.
        """
        if not isinstance(snapshot, Mapping) or snapshot.get("format") != _FORMAT:
            raise ValueError("this is no snapshot of an episode of texts")
        if snapshot.get("model") != self.dynamics.digest:
            raise ValueError("the snapshot is of another world model")
        try:
            episode, window = None, None
            if snapshot["episode"] is not None:
                told, kept = dict(snapshot["episode"]), snapshot["window"]
                told["turns"] = [tuple(turn) for turn in told["turns"]]
                fields: dict[str, Any] = {k: tuple(v) if k in _TUPLES else v for k, v in told.items()}
                episode = _Episode(**fields)
                begun, since = tuple(kept["begun"]), tuple(kept["since"])
                # The same tokens, read in the same way, give the same bits.
                state = self._read(begun, since)
                window = _Window(state, begun, since, int(kept["first"]))
            seed, draws, temperature = int(snapshot["seed"]), int(snapshot["draws"]), float(snapshot["temperature"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the snapshot is damaged: {type(error).__name__} {error}") from error
        self._seed, self._draws, self.temperature = seed, draws, temperature
        self._episode, self._window = episode, window
        return None if episode is None else episode.observations[-1]

    # --- Within -------------------------------------------------------------------------------------------------------

    def _running(self, what: str) -> _Episode:
        if self._episode is None:
            raise gym.error.ResetNeeded(f"{what} was called before reset")
        if self._episode.ended:
            raise gym.error.ResetNeeded(f"{what} was called after the episode's end; call reset first")
        return self._episode

    def _start(self, task: str | None) -> tuple[str | None, Any, str | None]:
        """The task's name, its context, and the first observation (None: the model says it)."""
        beginnings = self.dynamics.beginnings
        starts = beginnings.starts
        chosen = starts if task is None else [start for start in starts if start["task"] == task]
        if chosen:
            rng = np.random.default_rng([self._seed % 2**64, self._draws])
            self._draws += 1
            start = chosen[int(rng.integers(len(chosen)))]
            return start["task"], start["context"], start["observation"]
        if task is None:
            raise ValueError("the run knows no start; say which task")
        rules = self.dynamics.codec.rules
        text = cut(action_of(task, dataclasses.replace(rules, thoughts="keep")), rules.longest_context)
        told = [start["context"] for start in starts]
        if not any(isinstance(context, Mapping) and "instruction" in context for context in told):
            return None, dict(beginnings.common) or None, text
        repeated = all(
            isinstance(s["context"], Mapping) and s["context"].get("instruction") == s["observation"] for s in starts
        )
        return None, {**beginnings.common, "instruction": text}, text if repeated else None

    def _action(self, action: str) -> str:
        rules = self.dynamics.codec.rules
        return cut(action_of(action, rules), rules.longest_action)

    def _drawing(self) -> dict[str, Any]:
        """How the next answer is drawn."""
        key = jax.random.fold_in(jax.random.key(self._seed % 2**63), self._draws)
        self._draws += 1
        return {"key": key, "temperature": self.temperature}

    def _begin_window(self, episode: _Episode) -> _Window:
        sizes = [len(turn) for turn in episode.turns]
        first = recent(len(episode.head), sizes, self.dynamics.length)
        begun = (*episode.head, *(token for turn in episode.turns[first:] for token in turn))
        self._window = _Window(self.dynamics.read(begun), begun, (), first)
        return self._window

    def _with_room(self, episode: _Episode, asked: int) -> _Window:
        """The window, begun anew where the action and an answer of a quarter of it might not fit."""
        window, length = self._window, self.dynamics.length
        if window is None or len(window) + asked + length // 4 > length:
            window = self._begin_window(episode)
        self._check_room(length - len(window) - asked, "the task and the action")
        return window

    def _check_room(self, room: int, what: str) -> None:
        if room <= _SPARE:
            raise ValueError(
                f"{what} leave no room for an answer: the model looks back on {self.dynamics.length} tokens"
            )

    def _read(self, begun: Sequence[int], since: Sequence[int]) -> TextState:
        """The state after these tokens; of more than one program reads at once, in several calls."""
        state, length = self.dynamics.read(begun), self.dynamics.length
        for start in range(0, len(since), length):
            state = self.dynamics.go_on(state, since[start : start + length])
        return state

    def _info(self, said: Said, first: int, steps: int) -> dict[str, Any]:
        return {
            "log_prob": said.log_prob,
            "end_probability": said.end_probability,
            "cut": said.cut,
            "forgotten": first,
            "steps": steps,
        }


_TUPLES = ("observations", "actions", "rewards", "head", "turns")


def _checked(prefix: Any) -> list[tuple[str, str]]:
    """Turns as pairs of texts; `ValueError` for anything else."""
    found = []
    for number, turn in enumerate(prefix or ()):
        pair = tuple(turn) if isinstance(turn, (tuple, list)) else ()
        if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise ValueError(f"turn {number} of the prefix is {str(turn)[:80]!r}; an (action, observation) is needed")
        found.append(pair)
    return found
