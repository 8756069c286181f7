"""Records of agents' logs as trajectories, one function for each layout.

| layout | record | reward | terminated | truncated |
|---|---|---|---|---|
| `messages` | `messages` or `conversations`, or a bare list of them | key `reward`, of the last step, or a list | key `done` or `terminated`, or a last message of role `exit` | key `truncated` |
| `tau-bench` | `task_id, reward, info, traj, trial` | `reward`, of the last step | the user said `###STOP###`, or the agent transferred to a human | else, for tau-bench stops a run in no other way than by its limit of steps |
| `intercode` | `query`, `turn_history`, `summary` | `rewards` of each turn | the last reward is 1, or the last action is `submit` | `turns_max` turns |
| `swe-agent` | `trajectory` of `action` and `observation`, `history`, `info` | none | `info.exit_status` is `submitted` | any other `exit_status` |
| `turns` | turns with the keys given | key `reward` of each turn | key `done` of the last turn | never |
"""  # noqa: E501

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from worldmodel.sources.chat_episode import Conversation, episode, fold, is_number
from worldmodel.sources.chat_files import is_message
from worldmodel.sources.chat_messages import EXIT, USER, Message, ids_in, ids_looked_up, message_of, text_of, texts_of
from worldmodel.trajectory import Trajectory

LAYOUTS = ("messages", "tau-bench", "intercode", "swe-agent", "turns")


@dataclasses.dataclass(frozen=True)
class Keys:
    """Names of a record's keys, `a.b` for the key `b` inside `a`; None: what the layout calls it.

    Attributes:
      prompt: of a turn: what the agent read.
      response: of a turn: what it said.
      answer: of a turn: what it read next; else the next turn's prompt.
      turns: the list of turns inside a record; else each record is a turn.
      episode: equal in all turns of an episode, which follow each other.
      reward: a number, of the last step or of the turn, or a list of one for each step.
      done: true where the task ended.
      task: what a leakage-free split goes by.
      policy: name of the agent.
      context: further values for the trajectory's context, separated by commas.
    """

    prompt: str | None = None
    response: str | None = None
    answer: str | None = None
    turns: str | None = None
    episode: str | None = None
    reward: str | None = None
    done: str | None = None
    task: str | None = None
    policy: str | None = None
    context: str | None = None


def layout_of(record: Any, keys: Keys) -> str | None:
    """The layout that a record is of, by its keys; None where it is none of `LAYOUTS`."""
    if isinstance(record, list):
        return "messages" if record and is_message(record[0]) else None
    if not isinstance(record, Mapping):
        return None
    if keys.prompt or keys.response or keys.turns:
        return "turns"
    if isinstance(record.get("traj"), list):
        return "tau-bench"
    if isinstance(record.get("turn_history"), Mapping):
        return "intercode"
    if isinstance(record.get("trajectory"), list):
        return "swe-agent"
    return "messages" if any(isinstance(record.get(key), list) for key in ("messages", "conversations")) else None


def messages(record: Any, keys: Keys, where: str) -> Trajectory:
    """OpenAI-style messages, with tool calls."""
    data = record if isinstance(record, Mapping) else {"messages": record}
    logged = data.get("messages", data.get("conversations"))
    spoken = _messages_of(logged, where)
    talk = fold(spoken)
    done = _pick(data, keys.done) if keys.done else data.get("done", data.get("terminated"))
    ended = bool(done) or bool(spoken and spoken[-1].role == EXIT)
    context = {"system": talk.system, "instruction": data.get("instruction"), "tools": data.get("tools")}
    success = data.get("success")
    info = {"keys": ids_looked_up(spoken), "success": success if isinstance(success, bool) else None}
    rewards = _pick(data, keys.reward or "reward")
    truncated = bool(data.get("truncated")) and not ended
    return _trajectory(data, keys, where, talk, rewards, ended, truncated, context, info)


def tau_bench(record: Any, keys: Keys, where: str) -> Trajectory:
    """A result of tau-bench: a conversation of agent, tools and a simulated user."""
    spoken = _messages_of(record["traj"], where)
    talk = fold(spoken)
    stopped = bool(spoken) and spoken[-1].role == USER and "###STOP###" in spoken[-1].texts[-1]
    transferred = bool(spoken) and record["traj"][-1].get("name") == "transfer_to_human_agents"
    ended = stopped or transferred
    facts = _object(record, "info")
    task = _object(facts, "task")
    context = {"system": talk.system, "instruction": task.get("instruction")}
    ids = {*ids_looked_up(spoken), *ids_in(task.get("user_id"), "user_id")}
    reward = _pick(record, keys.reward or "reward")
    info = {"trial": record.get("trial"), "keys": sorted(ids), "error": facts.get("error")}
    if is_number(reward):
        info["success"] = bool(reward == 1)
    cut = ended or facts.get("error") is not None
    return _trajectory(record, keys, where, talk, reward, ended, not cut, context, info)


def intercode(record: Any, keys: Keys, where: str) -> Trajectory:
    """A result of InterCode: what was asked, then actions and what their execution printed."""
    history = record["turn_history"]
    columns = {name: history.get(name) for name in ("actions", "observations", "rewards")}
    for name, column in columns.items():
        if not isinstance(column, list):
            raise ValueError(f"{where}: turn_history.{name} is a {type(column).__name__}; a list is needed")
    query, actions = text_of(record.get("query")), texts_of(columns["actions"])
    talk = Conversation(None, [query, *texts_of(columns["observations"])], actions)
    rewards = columns["rewards"]
    summary = _object(record, "summary")
    ended = bool(rewards and rewards[-1] == 1) or bool(actions and actions[-1].strip() == "submit")
    truncated = not ended and bool(actions) and len(columns["observations"]) == summary.get("turns_max")
    best = summary.get("max_reward")
    info = {"hardness": record.get("hardness"), "success": bool(best == 1) if is_number(best) else None}
    return _trajectory(record, keys, where, talk, rewards, ended, truncated, {"instruction": query or None}, info)


def swe_agent(record: Any, keys: Keys, where: str) -> Trajectory:
    """A `.traj` of SWE-agent: shell commands and what they printed; `history` holds the problem statement."""
    history = record.get("history") if isinstance(record.get("history"), list) else []
    shown = [m for m in history if not (isinstance(m, Mapping) and m.get("is_demo"))]
    start = fold(_messages_of(shown, f"{where}, history"))
    actions, observations, seconds = [], start.observations[:1], []
    for number, step in enumerate(record["trajectory"]):
        if not isinstance(step, Mapping) or "action" not in step:
            raise ValueError(f"{where}, step {number}: has no 'action'")
        actions.append(text_of(step["action"]))
        observations.append(text_of(step.get("observation")))
        seconds.append(step.get("execution_time"))
    facts = _object(record, "info")
    status = facts.get("exit_status")
    ended, truncated = status == "submitted", bool(status) and status != "submitted"
    info = {"exit_status": status, "environment": record.get("environment")}
    if seconds and all(is_number(value) for value in seconds):
        info["duration"] = seconds
    talk = Conversation(start.system, observations, actions)
    reward = _pick(record, keys.reward) if keys.reward else None
    return _trajectory(record, keys, where, talk, reward, ended, truncated, {"system": start.system}, info)


def turns(rows: Sequence[Mapping[str, Any]], keys: Keys, where: str) -> Trajectory:
    """Turns of one episode, each with a prompt and a response."""
    read, said = [], []
    for number, row in enumerate(rows):
        for key in (keys.prompt, keys.response):
            if _pick(row, key) is None:
                raise ValueError(f"{where}, turn {number}: has no {key!r}; its keys are {_names(row)}")
        read.append(text_of(_pick(row, keys.prompt)))
        said.append(text_of(_pick(row, keys.response)))
    last = rows[-1] if rows else {}
    if keys.answer:
        read = read[:1] + [text_of(_pick(row, keys.answer)) for row in rows]
    talk = Conversation(None, read or [""], said)
    rewards = [_pick(row, keys.reward) for row in rows] if keys.reward else None
    return _trajectory(last, keys, where, talk, rewards, bool(_pick(last, keys.done)), False, {}, {})


def turn_groups(records: Iterable[tuple[str, Any]], keys: Keys) -> Iterator[tuple[str, list[Any]]]:
    """Turns by episode: the list inside each record, or records that follow each other with one `episode`."""
    where, group, current = "", [], None
    for place, record in records:
        if not isinstance(record, Mapping):
            raise ValueError(f"{place}: is a {type(record).__name__}; a record of turns is an object")
        if keys.turns:
            rows = _pick(record, keys.turns)
            if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
                raise ValueError(f"{place}: {keys.turns!r} is no list of turns; its keys are {_names(record)}")
            outer = {key: value for key, value in record.items() if value is not rows}
            yield place, [{**outer, **row} for row in rows]
            continue
        name = _pick(record, keys.episode) if keys.episode else place
        if keys.episode and name is None:
            raise ValueError(f"{place}: has no {keys.episode!r}; its keys are {_names(record)}")
        if group and name != current:
            yield where, group
            group = []
        where, group, current = where if group else place, [*group, record], name
    if group:
        yield where, group


def _trajectory(
    record: Mapping[str, Any],
    keys: Keys,
    where: str,
    talk: Conversation,
    rewards: Any,
    ended: bool,
    truncated: bool,
    context: Mapping[str, Any],
    info: Mapping[str, Any],
) -> Trajectory:
    """The trajectory of a conversation, with the context, task and policy that the record's keys name."""
    context = dict(context)
    for key in (keys.context or "").split(","):
        if key.strip():
            context[key.strip()] = _pick(record, key.strip())
    task = _first(record, (keys.task,) if keys.task else ("task_id", "instance_id", "task"))
    policy = _first(record, (keys.policy,) if keys.policy else ("policy", "agent", "model"))
    return episode(
        talk,
        rewards=rewards,
        terminated=ended,
        truncated=truncated,
        context=context,
        info={"task": task, "policy": policy, **info},
        where=where,
    )


def _object(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}


def _messages_of(logged: Any, where: str) -> list[Message]:
    if logged is None:
        raise ValueError(f"{where}: has no messages")
    if not isinstance(logged, list):
        raise ValueError(f"{where}: its messages are a {type(logged).__name__}; a list is needed")
    return [message_of(message, f"{where}, message {number}") for number, message in enumerate(logged)]


def _pick(record: Any, key: str | None) -> Any:
    """The value of a key, or of `a.b`; None without it."""
    if key is None or not isinstance(record, Mapping):
        return None
    if key in record:
        return record[key]
    outer, dot, inner = key.partition(".")
    return _pick(record.get(outer), inner) if dot else None


def _first(record: Mapping[str, Any], keys: Iterable[str]) -> str | None:
    """The first name among the keys, as text."""
    values = (_pick(record, key) for key in keys)
    return next((text_of(v) for v in values if isinstance(v, (str, int)) and not isinstance(v, bool)), None)


def _names(record: Mapping[str, Any]) -> str:
    return ", ".join(list(record)[:20])
