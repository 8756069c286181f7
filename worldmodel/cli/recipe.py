"""What a file of `train/` runs: `worldmodel train` with a configuration of its own to begin from."""

from __future__ import annotations

from collections.abc import Sequence

from worldmodel.cli import guarded
from worldmodel.training.config import TrainingConfig
from worldmodel.training.text.config import TextConfig


def recipe(doc: str | None, config: TrainingConfig | TextConfig, argv: Sequence[str] | None = None) -> int:
    """Trains with `config` and every option of `worldmodel train` but `--preset`; returns the exit code.

    Args:
      doc: of the recipe, shown by `--help`.
      config: to begin from; `--config.*` change single fields of it.
      argv: words of the command line; None for the program's own.
    """

    def run(words: list[str]) -> int:
        import tyro

        from worldmodel.cli import train

        if any(word.partition("=")[0] == "--preset" for word in words):
            raise ValueError("a recipe brings its own configuration; --preset is an option of worldmodel train")
        if {"-h", "--help"} & set(words):
            print(doc)  # as it stands: the help that follows would set its lines anew
        options = train.beginning(config)
        train.run(tyro.cli(type(options), args=words, default=options))
        return 0

    return guarded(run, argv)
