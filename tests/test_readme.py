"""The README's code runs as it stands, and its commands exist."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from worldmodel.cli import VERBS, main

REPOSITORY = Path(__file__).resolve().parents[1]
PYTHON = ("python",)
SHELL = ("bash", "sh", "console")
OTHER = ("text", "json", "bibtex", "")
FENCE = re.compile(r"^```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^```[ ]*$", flags=re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, its code, and the line of the file on which the code begins (from 1)."""

    language: str
    code: str
    line: int


def fenced_blocks(text: str) -> list[Block]:
    """The fenced blocks of a Markdown `text`, in order."""
    return [
        Block(found["language"], found["code"], text.count("\n", 0, found.start("code")) + 1)
        for found in FENCE.finditer(text)
    ]


def commands(block: Block) -> list[str]:
    """The commands of a shell block, without prompt, comments and line continuations."""
    joined = block.code.replace("\\\n", " ")
    lines = [re.sub(r"(^|\s)#.*$", "", re.sub(r"^\$ ", "", line.strip())).strip() for line in joined.splitlines()]
    return [part.strip() for line in lines if line for part in line.split("&&")]


def as_one_program(blocks: list[Block]) -> str:
    """The Python blocks as one program in which every line keeps the number it has in the file."""
    program: list[str] = []
    for block in blocks:
        program += [""] * (block.line - 1 - len(program)) + block.code.splitlines()
    return "\n".join(program) + "\n"


def readme() -> list[Block]:
    blocks = fenced_blocks((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    assert blocks, "README.md holds no fenced block"
    return blocks


def test_every_block_is_of_a_language_that_is_checked():
    assert {block.language for block in readme()} <= {*PYTHON, *SHELL, *OTHER}


def test_python_blocks_run(trained_run: Path, tmp_path: Path):
    blocks = [block for block in readme() if block.language in PYTHON]
    assert blocks, "README.md holds no python block"
    (tmp_path / "runs").mkdir()
    # What the quickstart would have left; a link would let the blocks write into the run that tests share.
    subprocess.run(["cp", "-R", str(trained_run), str(tmp_path / "runs" / "quickstart")], check=True)
    program = tmp_path / "README.md"
    program.write_text(as_one_program(blocks), encoding="utf-8")
    # As a reader runs them: with jax's own rules of promotion, not the tests' strict ones.
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUMPY_DTYPE_PROMOTION"}
    command = [sys.executable, "-P", program.name]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def make_targets() -> set[str]:
    return set(
        re.findall(r"^([a-z][a-z-]*):(?!=)", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )


@cache
def help_of(verbs: tuple[str, ...]) -> str | None:
    """What `worldmodel VERBS --help` prints, or None where it fails."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = main([*verbs, "--help"])
        except SystemExit as stopped:
            code = stopped.code
    return None if code else printed.getvalue()


def check_command(command: str) -> None:
    """Raises `AssertionError` where `command` names a target, a verb or a program that does not exist here."""
    words = shlex.split(command)
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word]
        assert targets, f"{command}: names no target"
        assert set(targets) <= make_targets(), f"{command}: the Makefile has {sorted(make_targets())}"
        dry = subprocess.run(["make", "-n", *words[1:]], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert dry.returncode == 0, f"{command}: {dry.stderr}"
    elif words[0] == "worldmodel":
        # Up to the first option; what follows it is a value or another option, which --help must name.
        names = [word for word in words[1:] if re.fullmatch(r"[a-z][a-z-]*", word)][:2]
        verbs = names if " ".join(names) in VERBS else names[:1]
        shown = help_of(tuple(verbs))
        assert shown is not None, f"{command}: there is no such verb"
        for word in words[1:]:
            if word.startswith("--"):
                assert word.split("=")[0] in shown, f"{command}: {word} is no option of {' '.join(verbs)}"
    else:
        assert words[0] in ("git", "cd", "pip"), f"{command}: what this program is, no test knows"


def test_shell_commands_exist():
    found = [command for block in readme() if block.language in SHELL for command in commands(block)]
    assert {"make quickstart", "make test"} <= set(found)
    for command in found:
        check_command(command)


@pytest.mark.parametrize("command", ["make quickstrat", "make", "wordlmodel quickstart"])
def test_a_wrong_command_is_found(command: str):
    with pytest.raises(AssertionError, match=command.split()[0]):
        check_command(command)


def test_blocks_keep_their_lines_and_order():
    text = "one\n```python\na = 1\n```\n\n"
    text += "```bash\n$ make test  # words\nmake lint && \\\n  make full\n```\n```python\nb = a\n1 / 0\n```\n"
    blocks = fenced_blocks(text)
    assert [block.language for block in blocks] == ["python", "bash", "python"]
    assert commands(blocks[1]) == ["make test", "make lint", "make full"]
    lines = as_one_program([blocks[0], blocks[2]]).splitlines()
    assert lines == ["", "", "a = 1", "", "", "", "", "", "", "", "", "b = a", "1 / 0"]
    assert text.splitlines()[12] == lines[12] == "1 / 0"
