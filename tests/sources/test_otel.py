"""`otel`: how spans become episodes."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from tests.sources.cases.otel import CASES
from worldmodel.sources import otel, read, recognise
from worldmodel.trajectory import Trajectory


def span(start: float, **more: Any) -> dict[str, Any]:
    """A span of OTLP's JSON, from `start` to half a second later."""
    attributes = {"gen_ai.operation.name": "chat", **more.pop("attributes", {})}
    listed = [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]
    times = {"startTimeUnixNano": str(int(start * 1e9)), "endTimeUnixNano": int((start + 0.5) * 1e9)}
    return {"traceId": "A1", "spanId": f"b{start}", "name": "chat", **times, "attributes": listed, **more}


def call(start: float, read: list[Any], said: str | None, **more: Any) -> dict[str, Any]:
    """A model call; what is read is texts of the user, and of the assistant where they begin with `>`."""

    def message(text: str) -> dict[str, Any]:
        role = "assistant" if text.startswith(">") else "user"
        return {"role": role, "parts": [{"type": "text", "content": text.lstrip(">")}]}

    attributes = {"gen_ai.input.messages": json.dumps([message(text) for text in read]), **more.pop("attributes", {})}
    if said is not None:
        attributes["gen_ai.output.messages"] = json.dumps([message(said)])
    return span(start, attributes=attributes, **more)


def write(path: pathlib.Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def episodes(tmp_path: pathlib.Path, *rows: Any) -> list[Trajectory]:
    return list(read(f"otel:{write(tmp_path / 'a.jsonl', *rows)}"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fixtures(case):
    source = read(str(case.path))
    found = list(source)
    for trajectory, expected in zip(found, case.episodes(), strict=True):
        trajectory.validate(source.spec)
        assert trajectory.observations.tolist() == expected.observations.tolist()
        assert trajectory.actions.tolist() == expected.actions.tolist()
        assert trajectory.rewards is None
        assert (trajectory.terminated, trajectory.truncated) == (expected.terminated, expected.truncated)
        assert trajectory.context == expected.context
        assert {key: trajectory.info.get(key) for key in expected.info} == expected.info
        assert len(trajectory.info["duration"]) == len(trajectory)


def test_spans_in_any_order_are_one_episode_in_order_of_time(tmp_path):
    rows = [call(i, [f"u{i}"], f">a{i}") for i in range(5)]
    (expected,) = episodes(tmp_path, *rows)
    assert expected.observations.tolist() == [f"u{i}" for i in range(5)]
    assert expected.actions.tolist() == [f"a{i}" for i in range(4)]  # the last has no answer
    np.testing.assert_allclose(expected.info["duration"], [0.5] * 4)
    (shuffled,) = episodes(tmp_path, *(rows[i] for i in (3, 0, 4, 2, 1)))
    assert shuffled.actions.tolist() == expected.actions.tolist()


def test_only_what_is_new_in_a_prompt_is_read(tmp_path):
    history = ["hello", ">hi", "more"]
    (trajectory,) = episodes(tmp_path, call(0, history, ">a"), call(1, [*history, ">a", "b", "c"], ">d"))
    assert trajectory.observations.tolist() == ["more", "b\n<next_message>\nc"]
    assert trajectory.actions.tolist() == ["a"]
    assert trajectory.context == {"history": [{"role": "user", "text": "hello"}, {"role": "assistant", "text": "hi"}]}


def test_agents_of_one_trace_are_apart(tmp_path):
    def run(name: str, start: float, **more: Any) -> dict[str, Any]:
        attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
        times = {"endTimeUnixNano": int((start + 9) * 1e9)}
        return span(start, attributes=attributes, spanId=name, **more) | times

    rows = [
        run("boss", 0),
        run("aide", 1, parentSpanId="boss"),
        call(0.1, ["x"], ">ask aide", parentSpanId="boss"),
        call(2, ["y"], ">done", parentSpanId="aide"),
        call(3, ["z"], ">end", parentSpanId="boss"),
    ]
    boss, aide = episodes(tmp_path, *rows)
    assert (boss.info["id"], boss.info["policy"]) == ("a1/boss", "boss")
    assert boss.actions.tolist() == ["ask aide", "end"] and boss.observations.tolist() == ["x", "z", ""]
    assert boss.terminated and aide.terminated
    assert aide.actions.tolist() == ["done"] and aide.observations.tolist() == ["y", ""]


def test_parents_in_a_circle(tmp_path):
    rows = [call(0, ["x"], ">a", spanId="1", parentSpanId="2"), call(1, ["y"], ">b", spanId="2", parentSpanId="1")]
    (trajectory,) = episodes(tmp_path, *rows)
    assert trajectory.actions.tolist() == ["a"]


def test_call_that_failed_is_no_action(tmp_path):
    failed = call(1, ["x"], None, status={"code": 2, "message": "overloaded"})
    (trajectory,) = episodes(tmp_path, call(0, ["w"], ">a"), failed, call(2, ["x"], ">b"))
    assert trajectory.observations.tolist() == ["w", "x"]
    assert trajectory.info["errors"] == [{"step": 0, "span": "chat", "type": None, "message": "overloaded"}]


def test_traces_of_one_conversation_are_one_episode_and_memory_holds_only_open_ones(tmp_path, monkeypatch):
    def talk(name: str, start: float, trace: str) -> dict[str, Any]:
        return call(start, [f"u{start}"], f">a{start}", traceId=trace, attributes={"gen_ai.conversation.id": name})

    rows = [
        talk("one", 0, "t1"),
        talk("two", 1, "t2"),
        talk("one", 2, "t3"),
        talk("two", 3, "t4"),
        talk("one", 4, "t5"),
    ]
    spans = []
    real = otel._episodes
    monkeypatch.setattr(otel, "_episodes", lambda group, own: spans.append(len(own)) or real(group, own))
    two, one = episodes(tmp_path, *rows)
    assert [two.info["id"], one.info["id"]] == ["two", "one"]  # in the order of their ends
    assert spans == [2, 3] and len(one) == 2 and len(two) == 1


def test_files_of_a_folder_are_one_log(tmp_path):
    write(tmp_path / "1.jsonl", call(0, ["x"], ">a"))
    write(tmp_path / "2.jsonl", call(1, ["y"], ">b"))
    source = read(str(tmp_path))
    assert source.provenance["format"] == "otel" and source.provenance["files"] == ["1.jsonl", "2.jsonl"]
    assert [len(trajectory) for trajectory in source] == [1]


def test_other_signals_and_spans_are_passed_over(tmp_path):
    http = {"traceId": "c", "spanId": "d", "startTimeUnixNano": 1, "endTimeUnixNano": 2, "name": "GET"}
    assert episodes(tmp_path, {"resourceLogs": []}, {"resourceMetrics": []}, {"resourceSpans": []}, http) == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([], r"a\.jsonl: line 2: is a list; a span of OpenTelemetry is an object"),
        ({"name": "x"}, r"line 2: is not a span of OpenTelemetry \('traceId' is missing\)"),
        ({"resourceSpans": 3}, r"line 2: resourceSpans is not built as OTLP says"),
        (span(1) | {"startTimeUnixNano": None}, r"line 2: .*'startTimeUnixNano' is missing"),
        (span(1) | {"startTimeUnixNano": "noon"}, r"line 2: .*Invalid isoformat string: 'noon'"),
        (span(1), r"line 2: span b1, a model call, has no gen_ai\.output\.messages"),
        (
            span(1, attributes={"gen_ai.input.messages": "[3]", "gen_ai.output.messages": '["x"]'}),
            r"message 0: is a int",
        ),
    ],
)
def test_errors_name_the_line(tmp_path, row, said):
    with pytest.raises(ValueError, match=said) as error:
        episodes(tmp_path, call(0, ["x"], ">a"), row)
    assert "\n" not in str(error.value)


def test_missing_places(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        read(f"otel:{tmp_path / 'none.jsonl'}")
    with pytest.raises(FileNotFoundError, match=r"holds no file that ends in \.jsonl"):
        read(f"otel:{tmp_path}")
    path = tmp_path / "a.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"a file of spans ends in \.jsonl, \.ndjson"):
        read(f"otel:{path}")


def test_recognised_by_spans_of_the_genai_conventions(tmp_path):
    assert recognise(write(tmp_path / "a.jsonl", call(0, ["x"], ">a"))) == "otel"
    assert not otel.recognise(pathlib.Path(write(tmp_path / "b.jsonl", {"traceId": "x", "spanId": "y"})))
    assert not otel.recognise(tmp_path / "none.jsonl")
