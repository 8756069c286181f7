"""Fixtures of `otel`, written by tests/fixtures/make_otel.py."""

from __future__ import annotations

from tests.sources.case import FIXTURES, Case
from tests.sources.cases.chat import TEXT, episode
from worldmodel.trajectory import Trajectory

FOLDER = FIXTURES / "otel"
LEFT_OUT = ("spans that are neither", "choices of a model call", "what the agent thought")


def sdk() -> list[Trajectory]:
    return [
        episode(
            ["Hello", "Bye"],
            ["Hi."],
            None,
            context={"system": "Be short."},
            id="0000000000000000000000000000a002",
            policy="m-1",
            duration=[1.25],
        ),
        episode(
            ["Is Emma in?", "shelf 3", ""],
            ['<tool_call>{"name": "find", "arguments": {"book_id": "b1", "title": "Emma"}}</tool_call>', "Shelf 3."],
            None,
            terminated=True,
            context={"system": "You are a clerk."},
            id="0000000000000000000000000000a001",
            policy="clerk",
            keys=["b1"],
            duration=[3.5, 0.0],
            cost=[0.25, 0.5],
            errors=[{"step": 0, "span": "chat m-1", "type": "timeout", "message": "timed out"}],
        ),
    ]


def otlp() -> list[Trajectory]:
    return [
        episode(
            ["Two plus two?", "4", "And times two?", "8"],
            [
                'Let me see.\n<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>',
                "It is 4.",
                '<tool_call>{"name": "double", "arguments": {"n": 4}}</tool_call>',
            ],
            None,
            context={"system": "Be kind."},
            id="talk-9",
            policy="bot",
            duration=[0.5, 8.0, 3.0],
        )
    ]


CASES = [
    Case("sdk", "otel", FOLDER / "sdk.jsonl", TEXT, sdk, left_out=LEFT_OUT),
    Case("otlp", "otel", FOLDER / "otlp.jsonl", TEXT, otlp, left_out=LEFT_OUT),
]
