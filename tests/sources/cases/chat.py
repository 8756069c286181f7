"""Fixtures of `chat`, written by tests/fixtures/make_chat.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.sources.case import FIXTURES, Case
from worldmodel.trajectory import Spec, Trajectory

FOLDER = FIXTURES / "chat"
TEXT = Spec({"type": "Text", "max_length": None}, {"type": "Text", "max_length": None})
LEFT_OUT = ("ids of tool calls", "what the agent thought", "parts of messages")
FIND_TWO = (
    '<tool_call>{"name": "find", "arguments": {"book_id": "b1", "title": "Emma"}}</tool_call>\n'
    '<tool_call>{"name": "find", "arguments": {"book_id": "b2"}}</tool_call>'
)
LIBRARY = {
    "system": "You work at a library.",
    "tools": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}],
}


def episode(
    observations: list[str],
    actions: list[str],
    rewards: list[float] | None,
    *,
    terminated: bool = False,
    truncated: bool = False,
    context: Any = None,
    **info: Any,
) -> Trajectory:
    """A trajectory of texts."""
    return Trajectory(
        observations=np.array(observations, np.object_),
        actions=np.array(actions, np.object_),
        rewards=None if rewards is None else np.array(rewards, np.float32),
        terminated=terminated,
        truncated=truncated,
        context=context,
        info=info,
    )


def messages() -> list[Trajectory]:
    return [
        episode(
            ["Find two books.", "shelf 3\n<next_message>\nlent", ""],
            [FIND_TWO, "Emma is on shelf 3; the other one is lent."],
            [0, 1],
            terminated=True,
            context=LIBRARY,
            id="messages.jsonl:0",
            task="find-two",
            keys=["b1", "b2"],
            policy="messages",
        ),
        episode(
            ["Look:\n[image_url]", "Thanks."],
            ["A cat."],
            [0],
            context=LIBRARY,
            id="messages.jsonl:1",
            task="small-talk",
        ),
    ]


def bare() -> list[Trajectory]:
    context = {"system": LIBRARY["system"]}
    observations = ["Find two books.", "shelf 3\n<next_message>\nlent"]
    return [episode(observations, [FIND_TWO], None, context=context, id="bare.json:0", policy="bare")]


def tau_bench() -> list[Trajectory]:
    look = '<tool_call>{"name": "get_reservation", "arguments": {"reservation_id": "R7"}}</tool_call>'
    leave = '<tool_call>{"name": "transfer_to_human_agents", "arguments": {"summary": "angry"}}</tool_call>'
    found = '{"status": "booked"}'

    def context(task: int) -> dict[str, str]:
        return {"system": "Rules.", "instruction": f"You are Ann, task {task}."}

    return [
        episode(
            ["Cancel my flight.", found, "Thanks. ###STOP###"],
            [look, "Done."],
            [0, 1],
            terminated=True,
            context=context(0),
            task="0",
            trial=0,
            keys=["R7", "ann_1"],
            success=True,
        ),
        episode(
            ["Cancel my flight.", "Transfer successful"],
            [leave],
            [0],
            terminated=True,
            context=context(0),
            task="0",
            trial=1,
            success=False,
        ),
        episode(["Cancel my flight.", found], [look], [0], truncated=True, context=context(5), task="5"),
    ]


def intercode() -> list[Trajectory]:
    def asked(query: str) -> dict[str, Any]:
        return {"context": {"instruction": query}, "hardness": "easy"}

    return [
        episode(
            ["How many?", "[('a',)]", "[(3,)]"],
            ["SHOW TABLES", "SELECT 3"],
            [0, 1],
            terminated=True,
            **asked("How many?"),
            success=True,
            task="0",
        ),
        episode(
            ["Which?", "Error: x", "[(1,), (2,)]"],
            ["SELECT x", "SELECT y"],
            [0, 0.5],
            truncated=True,
            **asked("Which?"),
            success=False,
            task="1",
        ),
        # The model's provider blocked the second turn: it has no answer.
        episode(["Who?", "Error: z"], ["SELECT z"], [0], **asked("Who?"), success=False, task="2"),
    ]


def swe_agent() -> list[Trajectory]:
    return [
        episode(
            ["ISSUE: add(1, 1) gives 3.", "def add(a, b): return a + b + 1", "", ""],
            ["cat add.py\n", "sed -i 's/ + 1//' add.py\n", "submit\n"],
            None,
            terminated=True,
            context={"system": "You are a programmer."},
            id="some-agent/add-1.traj:0",
            task="add-1",
            policy="some-agent",
            exit_status="submitted",
            duration=[0.5, 0.25, 1.0],
        )
    ]


def turns() -> list[Trajectory]:
    return [
        episode(
            ["You are in a hall.", "A kitchen.", "Taken.", ""],
            ["north", "take key", "quit"],
            [0, 1, 0.5],
            terminated=True,
            task="g1",
        ),
        episode(["You are in a barn.", "Time passes."], ["wait"], [0], task="g2"),
    ]


MAPPING = {
    "prompt": "input.text",
    "response": "output",
    "reward": "points",
    "episode": "game",
    "done": "end",
    "task": "game",
}
CASES = [
    Case("messages", "chat", FOLDER / "messages.jsonl", TEXT, messages, left_out=LEFT_OUT),
    Case("bare-gz", "chat", FOLDER / "bare.json.gz", TEXT, bare, left_out=LEFT_OUT),
    Case("tau-bench", "chat", FOLDER / "tau_bench.json", TEXT, tau_bench, left_out=LEFT_OUT),
    Case("intercode-zst", "chat", FOLDER / "intercode.json.zst", TEXT, intercode, left_out=LEFT_OUT),
    Case("swe-agent", "chat", FOLDER / "swe", TEXT, swe_agent, left_out=LEFT_OUT),
    Case("turns", "chat", FOLDER / "turns.jsonl", TEXT, turns, MAPPING, recognised=False, left_out=LEFT_OUT),
]
