"""`chat`: how conversations become episodes, and the real logs with the counts that are known of them."""

from __future__ import annotations

import gzip
import json
import pathlib
from collections import Counter
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tests.corpora import real_log
from tests.sources.cases.chat import CASES, MAPPING
from worldmodel.sources import chat, chat_files, files, read, recognise
from worldmodel.sources.chat_messages import (
    Call,
    action_text,
    join_messages,
    message_of,
    parse_action,
    split_messages,
)
from worldmodel.trajectory import Trajectory


def write(path: pathlib.Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def only(place: str, **options: Any) -> Trajectory:
    (trajectory,) = read(f"chat:{place}", **options)
    return trajectory


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fixtures(case):
    source = read(f"chat:{case.path}", **case.options)
    found = list(source)
    assert len(found) == len(case.episodes())
    for trajectory, expected in zip(found, case.episodes(), strict=True):
        trajectory.validate(source.spec)
        assert trajectory.observations.tolist() == expected.observations.tolist()
        assert trajectory.actions.tolist() == expected.actions.tolist()
        assert (trajectory.rewards is None) == (expected.rewards is None)
        if expected.rewards is not None:
            np.testing.assert_array_equal(trajectory.rewards, expected.rewards)
        assert (trajectory.terminated, trajectory.truncated) == (expected.terminated, expected.truncated)
        assert trajectory.context == expected.context
        assert {key: trajectory.info.get(key) for key in expected.info} == expected.info
    assert [t.info["id"] for t in source] == [t.info["id"] for t in found]


# --- Real logs --------------------------------------------------------------------------------------------------------


def test_tau_bench_airline():
    source = read(str(real_log("tau_bench_airline/gpt-4o-airline.json")))
    found = [trajectory.validate(source.spec) for trajectory in source]
    said = [text for t in found for action in t.actions for text in split_messages(action)]
    heard = [text for t in found for observation in t.observations for text in split_messages(observation)]
    calls = [call for text in said for call in parse_action(text)[1]]

    assert len(found) == 200
    assert Counter(t.info["task"] for t in found) == {str(task): 4 for task in range(50)}
    assert Counter(t.info["trial"] for t in found) == dict.fromkeys(range(4), 50)
    assert len(said) == 2454  # messages of the assistant
    assert len(heard) == 1490 + 1164  # of the user and of tools
    assert len(calls) == 1164
    assert len({call.name for call in calls}) == 14
    assert np.mean([t.total_reward for t in found]) == pytest.approx(0.42)
    assert np.mean([t.info["success"] for t in found]) == pytest.approx(0.42)
    assert max(map(len, heard)) == 8117
    # The five that did not end are those of 30 actions, which is where tau-bench stops an agent.
    cut = [t for t in found if not t.terminated]
    assert len(cut) == 5 and all(t.truncated and len(t) == 30 for t in cut)
    assert "mia_li_3668" in found[0].info["keys"]
    assert found[0].context["instruction"].startswith("You are mia_li_3668.")
    assert "mia_li_3668" not in found[0].context["system"]


def test_intercode_sql():
    source = read(str(real_log("intercode_sql")))
    found = list(source)
    by_policy: dict[str, list[Trajectory]] = {}
    for trajectory in found:
        name = trajectory.info["policy"].removeprefix("ic_sql_multiturn_").removesuffix("_10_turns")
        by_policy.setdefault(name, []).append(trajectory)

    counts = {name: len(episodes) for name, episodes in by_policy.items()}
    assert sum(counts.values()) == 7236
    assert counts == {**dict.fromkeys(counts, 1034), "text-davinci-003": 1033, "vicuna": 1033} and len(counts) == 7
    rates = {name: round(np.mean([t.info["success"] for t in own]), 3) for name, own in by_policy.items()}
    assert rates == {
        "gpt-4": 0.737,
        "gpt-3.5": 0.473,
        "text-davinci-003": 0.156,
        "text-bison-001": 0.129,
        "chat-bison-001": 0.099,
        "starchat": 0.097,
        "vicuna": 0.063,
    }
    assert all(t.terminated == t.info["success"] for t in found)
    # A model's provider refused 252 last turns: they were neither ended nor at the limit of ten.
    assert Counter(t.info["policy"] for t in found if not (t.terminated or t.truncated)) == {
        "ic_sql_multiturn_chat-bison-001_10_turns": 247,
        "ic_sql_multiturn_text-bison-001_10_turns": 5,
    }
    gpt4 = [trajectory.validate(source.spec) for trajectory in by_policy["gpt-4"]]
    observations = [len(o) for own in by_policy.values() for t in own for o in t.observations[1:]]
    assert np.median(observations) == 66
    assert gpt4[0].observations[0].startswith("What are the names of poker players")
    assert gpt4[0].actions[1] == "SHOW TABLES" and gpt4[0].observations[2] == "[('people',), ('poker_player',)]"
    assert gpt4[0].rewards.tolist() == [0, 0, 0, 0, 1]
    assert any(line.startswith("ic_spider_dev.json.gz: ") for line in source.provenance["left_out"])


def test_scienceworld():
    source = read(str(real_log("scienceworld_gpt/sciworld_sft_gpt_perfect.jsonl")), reward="score")
    found = [trajectory.validate(source.spec) for trajectory in source]
    assert len(found) == 37
    assert sum(len(t.observations) + len(t.actions) + 1 for t in found) == 1126  # one message is the system's
    assert all(t.total_reward == 100 and t.rewards[-1] == 100 for t in found)
    assert len({t.info["task"] for t in found}) == 37
    assert found[0].observations[-1] == "You focus on the sodium acetate."
    assert found[0].context["instruction"].startswith("Your task is to use chemistry")


# --- Text -------------------------------------------------------------------------------------------------------------

TEXTS = st.text(alphabet=["a", "\n", "\\", " "]) | st.text() | st.sampled_from(["<tool_call>", "\n<tool_call>{}"])
MIXED = st.lists(TEXTS | st.just("\n<next_message>\n") | st.just("\\<next_message>")).map("".join)
OBJECTS = st.dictionaries(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))


@hypothesis.given(content=MIXED, calls=st.lists(st.builds(Call, st.text(), OBJECTS | st.text()), max_size=3))
def test_actions_can_be_read_back(content, calls):
    text = action_text(content, calls)
    assert parse_action(text) == (content, tuple(calls))


@hypothesis.given(st.lists(MIXED, min_size=1, max_size=4))
def test_joined_messages_can_be_split(texts):
    assert split_messages(join_messages(texts)) == texts


def test_format_of_an_action():
    message = message_of(
        assistant("I look.", tool_calls=[{"function": {"name": "f", "arguments": '{"b": 1,\n "a": "é"}'}}]), "x"
    )
    text = action_text("\n".join(message.texts), message.calls)
    assert text == 'I look.\n<tool_call>{"name": "f", "arguments": {"a": "é", "b": 1}}</tool_call>'
    assert action_text("<tool_call> is a tag") == "\\<tool_call> is a tag"
    with pytest.raises(ValueError, match="is not a tool call"):
        parse_action("<tool_call>{}</tool_call>")


@pytest.mark.parametrize("logged", ['{"a": ', '{"a": 1, "a": 2}', '"text"', "[1]", '{"a": NaN}', "9" * 5000])
def test_arguments_that_are_no_object_stay_as_written(logged):
    message = message_of(assistant(None, tool_calls=[{"name": "f", "arguments": logged}]), "x")
    assert message.calls == (Call("f", logged),)
    assert parse_action(action_text("", message.calls)) == ("", message.calls)


def test_half_of_a_surrogate_pair_is_replaced(tmp_path):
    place = write(tmp_path / "a.jsonl", [user("cut \ud83d"), assistant("whole \U0001f600"), user("so")])
    trajectory = only(place)
    assert trajectory.observations[0] == "cut �" and trajectory.actions[0] == "whole \U0001f600"
    "".join(trajectory.observations).encode("utf-8")


@pytest.mark.parametrize(
    ("message", "texts", "calls"),
    [
        ({"from": "human", "value": "hi"}, ("hi",), ()),
        ({"role": "tool", "content": {"ok": True}}, ('{"ok": true}',), ()),
        ({"role": "user", "content": None}, ("",), ()),
        (
            user([{"type": "tool_result", "content": [{"type": "text", "text": "4"}]}, {"type": "text", "text": "go"}]),
            ("4", "go"),
            (),
        ),
        (
            assistant([{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "name": "f", "input": {"a": 1}}]),
            ("",),
            (Call("f", {"a": 1}),),
        ),
        (assistant(None, function_call={"name": "f", "arguments": "{}"}), ("",), (Call("f", {}),)),
    ],
    ids=["sharegpt", "object", "null", "anthropic-result", "anthropic-call", "function-call"],
)
def test_ways_in_which_messages_are_written(message, texts, calls):
    found = message_of(message, "x")
    assert (found.texts, found.calls) == (texts, calls)


# --- Episodes ---------------------------------------------------------------------------------------------------------


def test_messages_of_one_side_are_one_turn(tmp_path):
    talk = [assistant("Hello."), user("a"), user("b"), assistant("c"), assistant("d"), {"role": "tool", "content": "e"}]
    trajectory = only(write(tmp_path / "a.jsonl", {"messages": talk}))
    assert trajectory.observations.tolist() == ["", "a\n<next_message>\nb", "e"]
    assert trajectory.actions.tolist() == ["Hello.", "c\n<next_message>\nd"]


def test_last_action_without_an_answer(tmp_path):
    talk = [user("a"), assistant("b"), user("c"), assistant("d")]
    rows = [{"messages": talk}, {"messages": talk, "done": True}, {"messages": talk, "truncated": True}]
    rows.append({"messages": [*talk, {"role": "exit", "content": ""}]})
    cut, ended, truncated, left = read(write(tmp_path / "a.jsonl", *rows))
    assert cut.actions.tolist() == ["b"] and (cut.terminated, cut.truncated) == (False, False)
    assert ended.actions.tolist() == ["b", "d"] and ended.observations[-1] == "" and ended.terminated
    assert truncated.actions.tolist() == ["b"] and truncated.truncated
    assert left.actions.tolist() == ["b", "d"] and left.terminated


def test_rewards_of_each_step(tmp_path):
    talk = [user("a"), assistant("b"), user("c"), assistant("d"), user("e")]
    rows = [{"messages": talk, "reward": r} for r in ([1, 2], float("nan"), True, "1")]
    source = iter(read(write(tmp_path / "a.jsonl", *rows)))
    assert next(source).rewards.tolist() == [1, 2]
    assert np.isnan(next(source).rewards[1])  # as logged: the checks behind find it
    assert next(source).rewards.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"a\.jsonl: line 4, step 1: reward is '1'; a number is needed"):
        next(source)


def test_empty_conversations_are_yielded_for_the_checks_to_find(tmp_path):
    source = read(f"chat:{write(tmp_path / 'a.jsonl', {'messages': []}, {'messages': [user('a')]})}")
    assert [len(trajectory) for trajectory in source] == [0, 0]
    with pytest.raises(ValueError, match="holds no transition"):
        next(iter(source)).validate(source.spec)


def test_turns_with_answers_inside_one_record(tmp_path):
    row = {"name": "x", "log": [{"obs": "a", "act": "b", "next": "c"}, {"obs": "c", "act": "d", "next": "e"}]}
    place = write(tmp_path / "a.jsonl", row)
    trajectory = only(place, turns="log", prompt="obs", response="act", answer="next", task="name", context="name")
    assert trajectory.observations.tolist() == ["a", "c", "e"] and trajectory.actions.tolist() == ["b", "d"]
    assert trajectory.info["task"] == "x" and trajectory.context == {"name": "x"}


def test_tau_bench_run_that_failed(tmp_path):
    row = {"task_id": 3, "reward": 0.0, "info": {"error": "timeout"}, "traj": [], "trial": 0}
    trajectory = only(write(tmp_path / "a.jsonl", row))
    assert len(trajectory) == 0 and not trajectory.truncated and trajectory.info["error"] == "timeout"


# --- Files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", {}, r"a\.json: is damaged .*no JSON list or object"),
        ("[]", {}, r"a\.json: holds no record; name the layout: messages, tau-bench"),
        ("[1]", {}, r"its first record \(int\) is of no known layout"),
        ('{"a": 1}', {}, r"its first record \(a\) is of no known layout"),
        ('{"messages": [', {}, r"a\.json: is damaged .*Expecting value"),
        ('[{"messages": []}, {"mess', {}, r"a\.json: is damaged .*Unterminated string"),
        ('[{"messages": []} 1]', {}, r"a\.json: is damaged .*',' or ']' is needed, at character 19"),
        ('{"messages": []}\n{"messages": []}', {}, r"lines of JSON are read from a \.jsonl file"),
        ('{"messages": [' * 20000, {}, r"a\.json: is damaged"),
        ('{"messages": [3]}', {}, r"a\.json, message 0: is a int; a message is an object"),
        ('{"messages": [{"role": "usr"}]}', {}, r"message 0: has the role 'usr'; known are system, user, assistant"),
        ('{"messages": [{"role": "assistant", "tool_calls": [{}]}]}', {}, r"message 0: a tool call has no name"),
        ('{"messages": 3}', {"layout": "messages"}, r"a\.json: its messages are a int; a list is needed"),
        ("[{}]", {"layout": "messages"}, r"a\.json: record 0: has no messages"),
        ("[{}]", {"layout": "intercode"}, r"record 0: has no 'turn_history', which the layout intercode needs"),
        ('{"turn_history": {"actions": []}}', {}, r"turn_history.observations is a NoneType; a list is needed"),
        ("[{}]", {"prompt": "p", "response": "r"}, r"record 0, turn 0: has no 'p'; its keys are"),
        ("[{}]", {"prompt": "p", "response": "r", "turns": "t"}, r"record 0: 't' is no list of turns"),
        ("[{}]", {"prompt": "p"}, r"turns need prompt=KEY and response=KEY"),
        ("[{}]", {"layout": "tau"}, r"layout 'tau' is unknown; known are messages, tau-bench"),
        ("[{}]", {"promt": "p"}, r"option 'promt' is unknown \(did you mean 'prompt'\?\)"),
    ],
)
def test_errors_name_the_place(tmp_path, text, options, said):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        list(read(f"chat:{path}", **options))
    assert "\n" not in str(error.value)


def test_missing_places(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        read(f"chat:{tmp_path / 'none.json'}")
    with pytest.raises(FileNotFoundError, match=r"holds no file that ends in \.jsonl"):
        read(f"chat:{tmp_path}")
    path = tmp_path / "a.txt"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"a file of chats ends in \.jsonl, \.ndjson, \.json, \.traj"):
        read(f"chat:{path}")


def test_cut_gzip_in_the_middle(tmp_path):
    rows = [{"messages": [user(f"{i} {'x' * i}"), assistant("a"), user("b")]} for i in range(500)]
    data = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz: is damaged"):
        list(read(f"chat:{path}"))


def test_one_big_value_is_read_record_by_record(tmp_path, monkeypatch):
    """With small chunks every record crosses a border; the longest record is bounded, the file is not."""
    monkeypatch.setattr(chat_files, "_CHUNK", 7)
    rows = [{"messages": [user("é" * i), assistant("a"), user(str(i))]} for i in range(40)]
    for value in (rows, {str(i): row for i, row in enumerate(rows)}):
        path = tmp_path / "a.json"
        path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
        assert [t.observations.tolist() for t in read(str(path))] == [["é" * i, str(i)] for i in range(40)]
    monkeypatch.setattr(files, "LONGEST_RECORD", 100)
    path.write_text(json.dumps([{"messages": [user("a" * 500)]}]))
    with pytest.raises(ValueError, match="longer than 100 characters"):
        read(f"chat:{path}")


def test_recognised_by_keys_and_not_by_name(tmp_path):
    write(tmp_path / "config.json", {"model": 3})
    with pytest.raises(ValueError, match="format is not recognised"):
        recognise(str(tmp_path))
    write(tmp_path / "log.jsonl", {"messages": []})
    assert recognise(str(tmp_path)) == "chat"
    (tmp_path / "damaged.json.gz").write_bytes(b"\x1f\x8bnonsense")
    assert chat.recognise(tmp_path) and not chat.recognise(tmp_path / "damaged.json.gz")
    assert not chat.recognise(CASES[0].path.parents[1] / "otel" / "sdk.jsonl")


def test_files_of_a_folder_that_hold_no_conversation_are_named(tmp_path):
    write(tmp_path / "config.json", {"model": 3})
    (tmp_path / "empty.jsonl").touch()
    write(tmp_path / "log.jsonl", [user("a"), assistant("b"), user("c")])
    source = read(str(tmp_path))
    assert len(list(source)) == 1
    assert source.provenance["files"] == ["log.jsonl"]
    assert [line.partition(":")[0] for line in source.provenance["left_out"][3:]] == ["config.json", "empty.jsonl"]


def test_provenance_of_turns():
    source = read(f"chat:{CASES[-1].path}", **MAPPING)
    assert source.provenance["layouts"] == ["turns"]
