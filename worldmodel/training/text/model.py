"""A run of texts as it comes back: the model, its codec, how its episodes begin."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel.codec.text.beginnings import Beginnings
from worldmodel.codec.text.codec import TextCodec
from worldmodel.model.language import LanguageConfig
from worldmodel.model.lora import merge
from worldmodel.model.pretrained import load_pretrained, save_pretrained
from worldmodel.model.text_dynamics import TextDynamics
from worldmodel.model.transformer import TrunkConfig
from worldmodel.training.checkpoint import integer_keys, read_config
from worldmodel.training.storage import Checkpoints
from worldmodel.trajectory import Spec


@dataclasses.dataclass(frozen=True, eq=False)
class TextWorldModel:
    """A trained language world model.

    Attributes:
      spec: spaces of the logs.
      dynamics: the model, for `worldmodel.envs.text.TextEnv`.
      run: the run folder it was read from.
      step: training steps taken.
    """

    spec: Spec
    dynamics: TextDynamics
    run: Path
    step: int

    def save_pretrained(self, folder: str | os.PathLike[str], *, dtype: Any = np.float32) -> None:
        """Writes a checkpoint that `transformers` loads, tokenizer and all; a low-rank change is merged into it.

        Args:
          folder: made where it is missing.
          dtype: of the weights in the file, float32, float16 or bfloat16.
        """
        init = read_config(self.run)["training"]["init"]
        like = init if init and Path(init).is_dir() else None
        save_pretrained(folder, self.dynamics.config, self.dynamics.params, like=like, dtype=dtype)
        self.dynamics.codec.tokenizer.save(Path(folder))


def model_of(config: Mapping[str, Any], run: Path) -> tuple[LanguageConfig, TextCodec]:
    """Sizes and codec of a run, from its `config.json` and the tokenizer beside it; `ValueError` if damaged."""
    if config.get("kind") != "text":
        raise ValueError(f"{run} is the run of a model that is not of texts")
    try:
        model = dict(config["model"])
        model["trunk"] = TrunkConfig(**model["trunk"])
        return LanguageConfig(**model), TextCodec.load(config["codec"], run)
    except (KeyError, TypeError) as error:
        raise ValueError(f"config.json of {run} is damaged: {type(error).__name__} {error}") from error


def load_texts(run: str | os.PathLike[str], *, which: Literal["last", "best"] = "last") -> TextWorldModel:
    """Loads a checkpoint of a run of texts; arguments and errors as `worldmodel.training.checkpoint.load`."""
    path = Path(run)
    config = read_config(path)
    language, codec = model_of(config, path)
    training = config["training"]
    if not (path / "checkpoints").is_dir():
        raise FileNotFoundError(f"{path} holds no checkpoint yet: training has not reached its first save")
    checkpoints = Checkpoints(path, read_only=True)
    try:
        found = checkpoints.newest_params()
        if which == "best":
            best = checkpoints.best()
            found = None if best is None else (best, checkpoints.restore_params(best))
    finally:
        checkpoints.close()
    if found is None:
        what = "complete checkpoint" if which == "last" else "checkpoint that was measured on held-out episodes"
        raise FileNotFoundError(f"{path} holds no {what}")
    alone = jax.tree.map(lambda x: jnp.asarray(x[0]), integer_keys(found[1]))
    if training["lora"]:
        change = {name.replace(".", "/"): own for name, own in alone.items()}
        alone = merge(load_pretrained(training["init"])[1], change, scale=training["lora_scale"])
    dynamics = TextDynamics(language, codec, alone, training["length"], Beginnings.load(path))
    return TextWorldModel(Spec.from_json(config["spec"]), dynamics, path, found[0])
