"""Episodes as tokens: they come back whatever they say, what is learned is what the environment says, ends included."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpora import real_log
from worldmodel.codec.text import ByteTokenizer, Kind, TextCodec, TextEpisode, TextRules, own_markers, prepare
from worldmodel.codec.text.codec import reward_of, reward_text
from worldmodel.codec.text.markers import chat_markers
from worldmodel.codec.text.tokenizer import BpeTokenizer, learn_tokenizer
from worldmodel.sources import read

BYTES = ByteTokenizer()
CODEC = TextCodec(BYTES, own_markers(BYTES))
COMMON = dataclasses.replace(CODEC, common={"system": "Be brief.", "tools": [{"name": "get"}]})
HOSTILE = ["<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|>", "</s>", "\x00", "0.5", "\n[cut]", "ÿ"]
TEXT = st.text() | st.lists(st.sampled_from(HOSTILE)).map("".join)
JSON = st.none() | st.integers() | TEXT | st.dictionaries(TEXT, TEXT | st.lists(TEXT, max_size=2), max_size=2)
TURN = st.tuples(TEXT, TEXT, st.floats(width=32, allow_nan=False, allow_infinity=False))


def episode_of(context, first, turns, rewards, over):
    actions, observations, paid = zip(*turns, strict=True) if turns else ((), (), ())
    known = paid if rewards or not turns else None
    return TextEpisode(context, (first, *observations), actions, known, over and bool(turns))


@pytest.mark.parametrize("codec", [CODEC, COMMON], ids=["plain", "common"])
@given(told=st.tuples(JSON, TEXT, st.lists(TURN, max_size=3), st.booleans(), st.booleans()))
@settings(max_examples=60)
def test_what_is_serialised_comes_back(codec, told):
    episode = episode_of(*told)
    tokens = codec.serialise(episode)
    assert codec.parse(tokens.ids) == episode
    # Prompt injection: however a text reads, each marker is there as often as there are parts.
    turns = len(episode.actions)
    ids = tokens.ids.tolist()
    assert ids.count(codec.markers.end) == 2 + 2 * turns
    assert ids.count(codec.markers.onward) + ids.count(codec.markers.over) == turns


@given(context=JSON)
@settings(max_examples=30)
def test_what_is_common_is_left_out_and_put_back(context):
    whole = {**COMMON.common, "instruction": context}
    episode = TextEpisode(whole, ("a",), (), (), False)
    tokens = COMMON.serialise(episode)
    assert COMMON.parse(tokens.ids).context == whole
    assert len(tokens) == len(CODEC.serialise(dataclasses.replace(episode, context={"instruction": context})))


EPISODE = TextEpisode({"task": "x"}, ("begin", "answer", ""), ("ask", "stop"), (0.0, -0.25), True)


def test_what_is_learned():
    tokens = CODEC.serialise(EPISODE)
    m = CODEC.markers
    learned = [(Kind(k).name, i) for k, i in zip(tokens.kinds, tokens.ids, strict=True) if k]
    text = [*b"begin"], [*b"answer"], []
    want = [("OBSERVATION", b) for b in text[0]] + [("END", m.end)]
    want += [("OBSERVATION", b) for b in text[1]] + [("END", m.end), ("REWARD", ord("0")), ("CLOSER", m.onward)]
    want += [("END", m.end), *(("REWARD", b) for b in b"-0.25"), ("CLOSER", m.over)]
    assert learned == want
    # Information classes are of observations alone.
    assert not tokens.classes[tokens.kinds != Kind.OBSERVATION].any()
    assert not CODEC.serialise(EPISODE).given().kinds.any()


def test_without_rewards_only_the_end_is_learned():
    tokens = CODEC.serialise(dataclasses.replace(EPISODE, rewards=None))
    assert not (tokens.kinds == Kind.REWARD).any() and (tokens.kinds == Kind.CLOSER).sum() == 2
    assert CODEC.parse(tokens.ids).rewards is None


def test_parts_written_one_by_one_are_the_whole():
    ids = CODEC.opening(EPISODE.context)
    ids += CODEC.answering("begin", None)
    for action, observation, reward in (("ask", "answer", "0"), ("stop", "", "-0.25")):
        ids += CODEC.asking(action) + CODEC.answering(observation, reward)
    whole = CODEC.serialise(dataclasses.replace(EPISODE, terminated=False))
    assert ids == whole.ids.tolist()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda ids: ids[1:], "token 0 does not open"),
        (lambda ids: ids[:-1], "the last text does not end"),
        (lambda ids: [*ids, ids[-1]], "a turn follows after the episode is over"),
        (lambda ids: [*ids[:-4], ord("x"), *ids[-3:]], "is no number"),
        (lambda ids: [*ids[:-1], CODEC.markers.end], "does not end the reward"),
        (lambda ids: [ids[0], ord("{"), *ids[1:]], "is no JSON"),
    ],
)
def test_what_is_not_so_written_is_refused(spoil, message):
    with pytest.raises(ValueError, match=message):
        CODEC.parse(spoil(CODEC.serialise(EPISODE).ids.tolist()))


def test_rewards_are_float32():
    for value in (0.1, 1.0, -3e-7, 1e20, 1 / 3):
        assert reward_of(reward_text(value)) == float(np.float32(value))
    assert reward_of("") is None and reward_of("1.2.3") is None and reward_of("1" * 60) is None
    allowed = CODEC.reward_ids
    assert allowed[ord("7")] and allowed[ord("-")] and not allowed[ord("x")] and not allowed[CODEC.markers.end]


def test_a_codec_comes_back(tmp_path):
    again = TextCodec.load(json.loads(json.dumps(COMMON.to_json())), tmp_path)
    assert again.digest == COMMON.digest != CODEC.digest
    assert again.parse(COMMON.serialise(EPISODE).ids) == EPISODE


# --- Pretrained templates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "special",
    [
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        ("<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ],
    ids=["chatml", "llama3"],
)
def test_a_chat_template(special):
    package = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed (extra: text)")
    inner = learn_tokenizer(["user assistant system"], 270).inner
    with pytest.raises(ValueError, match="none of the special tokens that open a turn in a known template"):
        chat_markers(BpeTokenizer(inner))
    inner.add_special_tokens([package.AddedToken(name, special=True) for name in special])
    tokenizer = BpeTokenizer(inner)
    codec = TextCodec(tokenizer, chat_markers(tokenizer))
    hostile = dataclasses.replace(EPISODE, actions=(f"ask{special[-1]}{special[1]}", "stop"))
    tokens = codec.serialise(hostile)
    assert codec.parse(tokens.ids) == hostile
    written = inner.decode(tokens.ids.tolist(), skip_special_tokens=False)
    if special[1] == "<|im_start|>":
        assert written.startswith('<|im_start|>system\n{"task": "x"}<|im_end|>\n<|im_start|>assistant\nbegin<|im_end|>')
        assert written.endswith("stop<|im_end|>\n<|im_start|>assistant\n<|im_end|>-0.25<|endoftext|>")
    else:
        assert "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nanswer<|eot_id|>0<|eot_id|>" in written


# --- Real logs --------------------------------------------------------------------------------------------------------

LOGS = {
    "intercode_sql": "intercode_sql/ic_sql_multiturn_gpt-3.5_10_turns.json.gz",
    "tau_bench": "tau_bench_airline/gpt-4o-airline.json",
    "scienceworld": "scienceworld_gpt/sciworld_sft_gpt_perfect.jsonl",
}


@pytest.mark.parametrize("name", LOGS)
def test_the_trained_tokens_of_real_logs_are_what_the_environment_said(name):
    log = iter(read(f"chat:{real_log(LOGS[name])}"))
    rules = TextRules(longest_observation=0, longest_action=0, longest_context=0)
    for _ in range(5):
        trajectory = next(log)
        episode, cut = prepare(trajectory, rules)
        assert cut == 0
        tokens = CODEC.serialise(episode)
        ends = np.flatnonzero(tokens.kinds == Kind.END)
        assert len(ends) == len(trajectory) + 1
        observed = tokens.ids[tokens.kinds == Kind.OBSERVATION]
        sizes = [len(text.encode()) for text in trajectory.observations]
        for observation, ids, end in zip(
            trajectory.observations, np.split(observed, np.cumsum(sizes)[:-1]), ends, strict=True
        ):
            assert BYTES.decode(ids.tolist()) == observation
            # Its first token follows what opens it, its last one is followed by what ends it.
            first = end - len(ids)
            assert tokens.ids[first - 1] == CODEC.markers.observation[0] and tokens.kinds[first - 1] == Kind.GIVEN
            np.testing.assert_array_equal(tokens.ids[first:end], ids)
            assert tokens.ids[end] == CODEC.markers.end
        closers = tokens.ids[tokens.kinds == Kind.CLOSER]
        assert len(closers) == len(trajectory)
        assert (closers[-1] == CODEC.markers.over) == trajectory.terminated
        assert set(closers[:-1].tolist()) <= {CODEC.markers.onward}
        if trajectory.rewards is not None:
            np.testing.assert_array_equal(np.float32(CODEC.parse(tokens.ids).rewards), trajectory.rewards)
