"""Training on a corpus of texts: the run folder, its claim, the loop over packed rows."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import PyTree
from worldmodel.codec.text.batches import TokenBatches
from worldmodel.codec.text.beginnings import survey
from worldmodel.codec.text.codec import TextCodec
from worldmodel.codec.text.episode import prepare
from worldmodel.codec.text.information import weights_of
from worldmodel.codec.text.markers import chat_markers, own_markers
from worldmodel.codec.text.shards import Samples, samples_among, shards_of
from worldmodel.codec.text.tokenizer import Tokenizer, learn_tokenizer, load_tokenizer
from worldmodel.corpus import Corpus, StoredEpisodes
from worldmodel.corpus.differences import differences
from worldmodel.corpus.lock import only_writer
from worldmodel.model.language import LanguageConfig, init_params
from worldmodel.model.lora import init_change
from worldmodel.model.pretrained import load_pretrained, read_fields
from worldmodel.model.pretrained_config import config_of
from worldmodel.training.checkpoint import FORMAT_VERSION, read_config, write_json
from worldmodel.training.loggers import check_loggers
from worldmodel.training.loop import initial_state
from worldmodel.training.processes import leader_first
from worldmodel.training.running import Report, Running
from worldmodel.training.sharding import Layout
from worldmodel.training.step import make_optimizer
from worldmodel.training.text.config import OF_THE_MACHINE, TextConfig
from worldmodel.training.text.held_out import HeldOutTexts
from worldmodel.training.text.model import TextWorldModel, load_texts, model_of
from worldmodel.training.text.step import (
    TokenBatch,
    Weights,
    make_text_scores,
    make_text_step,
    token_batch,
    with_member_axis,
)
from worldmodel.trajectory import Spec

LEARNED_FROM = 200_000
"""Turns that a tokenizer is learned from; of more, those of a sample of episodes."""


def is_text(spec: Spec) -> bool:
    """Observations and actions are texts: a language model learns them."""
    return spec.observation_space["type"] == spec.action_space["type"] == "Text"


def train_texts(
    corpus: Corpus,
    run: str | Path,
    config: TextConfig | None = None,
    *,
    loggers: Sequence[str] = (),
    report: Report | None = None,
) -> TextWorldModel:
    """Trains a language world model on the training split of a corpus; called again on the same folder, it resumes.

    The folder gets `config.json`, `tokenizer.json` (unless tokens are bytes), `beginnings.json`, `metrics.jsonl` and
    `checkpoints/`; the corpus's own gets `.tokens/`, derived from it. Real held-out episodes are measured at every
    checkpoint, and the best one is kept.

    Args:
      corpus: whose observations and actions are texts.
      run: the run folder.
      config: sizes and schedule; None for the defaults.
      loggers: of `worldmodel.training.loggers.LOGGERS`, beside `metrics.jsonl`.
      report: sees progress.

    Raises:
      ValueError: the corpus is not of texts, the folder was made with another configuration or from other logs (the
        difference is named), the tokenizer cannot be had, or another process trains here.
      FileNotFoundError: the pretrained model is not there.
      OSError: the disk is full; the last checkpoint stays.
      FloatingPointError: the loss is no longer finite; the last checkpoint stays.
      Stopped: SIGTERM came; everything is saved.
    """
    if not is_text(corpus.spec):
        kinds = f"{corpus.spec.observation_space['type']} and {corpus.spec.action_space['type']}"
        raise ValueError(f"corpus {corpus.path}: observations and actions are {kinds}; a language model takes Text")
    check_loggers(loggers)
    config, run = config or TextConfig(), Path(run)
    with contextlib.ExitStack() as stack:

        def begin() -> None:
            run.mkdir(parents=True, exist_ok=True)
            stack.enter_context(only_writer(run))
            claim_texts(run, corpus, config)
            shards_of(corpus, model_of(read_config(run), run)[1], config.length, otherwise=run)

        leader_first(begin)
        _TextRun(run, corpus, config).go(loggers, report or (lambda step, metrics: None))
    return load_texts(run)


def claim_texts(run: Path, corpus: Corpus, config: TextConfig) -> None:
    """Writes `config.json` and what goes with it, or checks that those there ask for the same; `ValueError`."""
    training = dataclasses.asdict(config)
    episodes = corpus.stored("train")
    training["logs"] = {
        "transitions": episodes.transitions,
        "episodes": episodes.episodes,
        "sha256": episodes.digest,
    }
    wanted = json.loads(json.dumps({"spec": corpus.spec.to_json(), "training": training}))
    if (run / "config.json").exists():
        found = read_config(run)
        if found.get("kind") != "text":
            raise ValueError(f"{run} is the run of a model that is not of texts")
        different = differences(_that_bind(found), _that_bind(wanted))
        if different:
            raise ValueError(f"{run} was made with another configuration: {'; '.join(different)}")
        return
    beginnings = survey(episodes, config.rules)
    beginnings.save(run)
    codec = _codec(config, episodes, beginnings.common)
    codec.tokenizer.save(run)
    model = _language(config, codec)
    described = {"format_version": FORMAT_VERSION, "kind": "text", **wanted, "model": dataclasses.asdict(model)}
    write_json(run / "config.json", described | {"codec": codec.to_json()})


def _that_bind(described: Mapping[str, Any]) -> dict[str, Any]:
    """What must not change; a field that an older run lacks had its default."""
    defaults = json.loads(json.dumps(dataclasses.asdict(TextConfig())))
    training = {**defaults, **described["training"]}
    training = {name: value for name, value in training.items() if name not in OF_THE_MACHINE}
    return {"spec": described["spec"], "training": training}


def _codec(config: TextConfig, episodes: StoredEpisodes, common: Mapping[str, Any]) -> TextCodec:
    if config.init:
        pretrained = load_tokenizer(config.init)
        return TextCodec(pretrained, chat_markers(pretrained), config.rules, common)
    tokenizer = _learned(config, episodes)
    return TextCodec(tokenizer, own_markers(tokenizer), config.rules, common)


def _learned(config: TextConfig, episodes: StoredEpisodes) -> Tokenizer:
    columns = episodes.sample(LEARNED_FROM)

    def texts() -> Any:
        for number in range(columns.episodes):
            episode, _ = prepare(columns.episode(number), config.rules)
            yield from (*episode.observations, *episode.actions)

    return learn_tokenizer(texts(), config.vocabulary)


def _language(config: TextConfig, codec: TextCodec) -> LanguageConfig:
    """The sizes of the model; `ValueError` where a pretrained one lacks tokens that its tokenizer has."""
    if not config.init:
        return LanguageConfig(codec.vocabulary, config.trunk)
    model = config_of(read_fields(Path(config.init)))
    if model.vocabulary < codec.vocabulary:
        raise ValueError(
            f"{config.init}: the model knows {model.vocabulary} tokens, its tokenizer has {codec.vocabulary}"
        )
    return model


class _TextRun(Running):
    """The steps of one call on one corpus."""

    def __init__(self, run: Path, corpus: Corpus, config: TextConfig):
        described = read_config(run)
        language, codec = model_of(described, run)
        self._layout = layout = Layout.of(config.mesh) if config.mesh else None
        if layout is not None:
            layout.check(config.batch_size, 1, config.accumulate)
        elif jax.process_count() > 1:
            raise ValueError(f"{jax.process_count()} processes need a mesh, as mesh='data=-1'")
        index, parts = (0, 1) if layout is None else layout.shard(config.batch_size)
        bfloat16 = config.precision == "bfloat16"
        optimizer = make_optimizer(
            learning_rate=config.learning_rate,
            warmup=config.warmup,
            steps=config.steps,
            weight_decay=config.weight_decay,
            clip=config.clip,
        )
        trained, weights = begin_with(config, language, layout)
        step = make_text_step(
            language,
            optimizer,
            weights,
            accumulate=config.accumulate,
            remat=config.remat,
            bfloat16=bfloat16,
            layout=layout,
        )
        super().__init__(run, config, step, initial_state(trained, optimizer, layout))
        table = weights_of(config.weights)
        learned = self._samples(corpus, codec, corpus.split("train"), table)
        rows: dict[str, Any] = {"length": config.length, "seed": config.seed}
        self._batches = TokenBatches(learned, rows=config.batch_size // parts, shard=(index, parts), **rows)
        self.cut = {
            "samples": len(learned),
            "tokens": int(learned.lengths.sum()),
            "nothing_to_learn": learned.nothing,
            "texts_cut": learned.cuts.texts,
            "turns_too_long": learned.cuts.unfit,
        }
        write_json(run / "samples.json", self.cut)
        held_out = corpus.split("held_out") & ~corpus.index.synthetic
        if config.evaluation_batches and held_out.any():
            others = self._samples(corpus, codec, held_out, table)
            source = TokenBatches(others, rows=config.batch_size, **rows)
            batches = [source[number] for number in range(config.evaluation_batches)]
            placed = [(batch, self._whole(token_batch(batch))) for batch in batches]
            scores = make_text_scores(language, weights, bfloat16=bfloat16, layout=layout)
            self._measure = HeldOutTexts(scores, placed, codec.markers).measure

    def _samples(self, corpus: Corpus, codec: TextCodec, chosen: np.ndarray, table: np.ndarray) -> Samples:
        shards = shards_of(corpus, codec, self._config.length, otherwise=self._run)
        return samples_among(shards, chosen, [part.episodes for part in corpus.manifest.parts], table)

    def _put(self, windows: Mapping[str, Any]) -> TokenBatch:
        batch = token_batch(windows)
        return jax.tree.map(jnp.asarray, batch) if self._layout is None else self._layout.put_batch(batch)

    def _whole(self, batch: TokenBatch) -> TokenBatch:
        """A batch that every process holds whole, on the devices."""
        layout = self._layout
        if layout is None:
            return jax.tree.map(jnp.asarray, batch)
        return layout.put(batch, jax.tree.map(lambda _: layout.batch, batch))


def begin_with(config: TextConfig, language: LanguageConfig, layout: Layout | None) -> tuple[PyTree, Weights]:
    """What is trained, `[1, ...]`, and how it becomes the model's parameters."""
    if not config.init:
        return with_member_axis(init_params(language, config.seed)), Weights()
    params = load_pretrained(config.init)[1]
    if not config.lora:
        return with_member_axis(params), Weights()
    change = init_change(params, config.seed, rank=config.lora)
    frozen = with_member_axis(params)
    if layout is not None:
        frozen = layout.put(frozen, layout.state(frozen))
    # Checkpoints name an array by its path: no name in it has a slash.
    trained = {name.replace("/", "."): with_member_axis(dict(own)) for name, own in change.items()}
    return trained, Weights(frozen, config.lora_scale)
