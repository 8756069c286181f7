"""Anybody's language model behind an OpenAI-compatible endpoint: as a simulated text environment, or as a policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gymnasium.error import ResetNeeded

from worldmodel.envs.openai_client import OK, ChatClient, Reply


class Told(NamedTuple):
    """What a reply means: the observation, its reward, and whether the task has ended."""

    observation: str
    reward: float = 0.0
    terminated: bool = False


class EndpointSimulator:
    """A text environment that a language model plays: an action is the user's turn, an observation the assistant's.

    A request that fails for good truncates the episode with an empty observation, and `info["status"]` says why: it
    counts as an episode, and nothing is dropped. `info` of every turn is that of the `Reply`: status, error, attempts,
    seconds, tokens, finish.

    Args:
      client: of the endpoint; several simulators may share it.
      system: the system prompt; `{task}` and `{tools}` in it are filled in.
      opening: the user's turn that asks for the first observation; None: that is the task itself, and nothing is asked.
      read: takes the reply's text, gives reward and end; None: rewards are 0 and only `max_steps` ends an episode.
      tools: what the environment's actions may call, plain JSON.
      max_steps: steps after which an episode is truncated.
      task: of episodes whose reset names none.
    """

    can_score, can_reset_to, can_branch, pure = False, True, True, False

    def __init__(
        self,
        client: ChatClient,
        system: str,
        *,
        opening: str | None = None,
        read: Callable[[str], Told] | None = None,
        tools: Sequence[Any] = (),
        max_steps: int | None = None,
        task: Any = None,
    ):
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps is {max_steps}; at least 1 is needed, or None for no limit")
        self.client, self.tools = client, list(tools)
        self._system, self._opening, self._read, self._limit, self._task = (
            system,
            opening,
            read or Told,
            max_steps,
            task,
        )
        self._messages: list[dict[str, str]] = []
        self._seed: int | None = None
        self._steps, self._over = 0, False
        self._failed: Reply | None = None

    def reset(self, *, seed: int | None = None, task: Any = None, prefix: Any = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode; the first observation, or the last of the prefix, and info.

        Args:
          seed: sent with every request; endpoints may heed it.
          task: text, or anything that is plain JSON.
          prefix: `(action, observation)` pairs that have happened.
        """
        task = self._task if task is None else task
        pairs = _pairs(prefix)
        said = "" if task is None else task if isinstance(task, str) else json.dumps(task)
        prompt = self._system.replace("{task}", said).replace("{tools}", json.dumps(self.tools))
        self._messages = [{"role": "system", "content": prompt}]
        self._seed, self._steps, self._over, self._failed = seed, 0, False, None
        for action, observation in pairs:
            self._add(action, observation)
        self._steps = len(pairs)
        if pairs:
            return pairs[-1][1], {"status": OK}
        if self._opening is None:
            return said, {"status": OK}
        reply = self._ask(self._opening)
        if reply.text is None:
            self._failed = reply
            return "", reply.info
        self._add(self._opening, reply.text)
        return self._read(reply.text).observation, reply.info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One turn: observation, reward, terminated, truncated, info.

        Raises:
          gymnasium.error.ResetNeeded: before reset, or after the episode's end.
        """
        if not self._messages:
            raise ResetNeeded("step was called before reset")
        if self._over:
            raise ResetNeeded("step was called after the episode's end; call reset first")
        reply = self._ask(action) if self._failed is None else self._failed
        if reply.text is None:
            self._over = True
            return "", 0.0, False, True, reply.info
        self._add(action, reply.text)
        self._steps += 1
        told = self._read(reply.text)
        truncated = self._limit is not None and self._steps >= self._limit and not told.terminated
        self._over = told.terminated or truncated
        return told.observation, float(told.reward), told.terminated, truncated, reply.info

    def branch(self, n: int) -> list[EndpointSimulator]:
        """The present episode `n` times, to be continued in several ways; this one stays where it is."""
        made = [self._like() for _ in range(n)]
        for each in made:
            each.restore(self.snapshot())
        return made

    def snapshot(self) -> dict[str, Any]:
        """This moment as plain JSON: what was said. It holds no key and no address."""
        failed = None if self._failed is None else list(self._failed)
        told = {"messages": [dict(message) for message in self._messages], "seed": self._seed, "steps": self._steps}
        return {**told, "over": self._over, "failed": failed}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Goes back to a snapshot."""
        self._messages = [dict(message) for message in snapshot["messages"]]
        self._seed, self._steps, self._over = snapshot["seed"], snapshot["steps"], snapshot["over"]
        self._failed = None if snapshot["failed"] is None else Reply(*snapshot["failed"])

    def close(self) -> None:
        """Forgets the episode."""
        self._messages = []

    def _like(self) -> EndpointSimulator:
        return EndpointSimulator(
            self.client,
            self._system,
            opening=self._opening,
            read=self._read,
            tools=self.tools,
            max_steps=self._limit,
            task=self._task,
        )

    def _ask(self, action: str) -> Reply:
        seed = {} if self._seed is None else {"seed": self._seed}
        return self.client.chat([*self._messages, {"role": "user", "content": action}], **seed)

    def _add(self, action: str, observation: str) -> None:
        self._messages += [{"role": "user", "content": action}, {"role": "assistant", "content": observation}]


class EndpointPolicy:
    """A language model that acts: an observation is the user's turn, an action the assistant's.

    Where a request fails for good the action is an empty text, and `last.status` says why.

    Args:
      client: of the endpoint.
      system: the system prompt; `{task}` in it is filled in.

    Attributes:
      last: the `Reply` of the last action; None before the first.
    """

    def __init__(self, client: ChatClient, system: str):
        self.client, self._system = client, system
        self.last: Reply | None = None
        self.reset()

    def reset(self, task: str = "") -> None:
        """Forgets what was said."""
        self._messages = [{"role": "system", "content": self._system.replace("{task}", task)}]
        self.last = None

    def act(self, observation: str) -> str:
        """The action after this observation, given all before it."""
        self._messages.append({"role": "user", "content": observation})
        self.last = self.client.chat(self._messages)
        action = self.last.text or ""
        self._messages.append({"role": "assistant", "content": action})
        return action


def _pairs(prefix: Any) -> list[tuple[str, str]]:
    """The prefix as pairs of texts; `ValueError` for anything else."""
    pairs: list[tuple[str, str]] = []
    for place, pair in enumerate([] if prefix is None else prefix):
        texts = [part for part in pair if isinstance(part, str)] if isinstance(pair, (list, tuple)) else []
        if len(texts) != 2 or len(pair) != 2:
            raise ValueError(f"prefix[{place}] is {pair!r}; an (action, observation) pair of texts is needed")
        pairs.append((texts[0], texts[1]))
    return pairs
