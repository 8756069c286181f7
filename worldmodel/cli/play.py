"""`worldmodel play`: a person, a file or a policy steps an imagined world."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tyro

from worldmodel.cli.logs import json_object

if TYPE_CHECKING:
    from worldmodel.agents.side_by_side import Side, SideBySide
    from worldmodel.training import WorldModel


@dataclasses.dataclass(frozen=True)
class PlayOptions:
    """Steps one imagined episode, beside the real environment with the same actions where --real asks for it.

    At a terminal every action is typed: a number, numbers with spaces between them, + or - for the ends of a Box, JSON
    for a Dict; Enter alone repeats the last one, q stops.

    Example: worldmodel play runs/quickstart --real --policy random --gif play.gif
    """

    run: tyro.conf.Positional[pathlib.Path]
    """Run folder of the world model."""
    policy: str | None = None
    """keys (typed, or lines of stdin), random, sticky:P, linear:EPS, or FILE.npz; default: keys at a terminal, else
    random."""
    actions: pathlib.Path | None = None
    """File with an action in each line, as they would be typed."""
    real: bool = False
    """Step the real environment, too; both begin where it does."""
    context: str | None = None
    """What holds for the imagined episode, as JSON."""
    steps: int | None = None
    """Most steps; default: until the episode ends."""
    gif: pathlib.Path | None = None
    """Draw the episode into this file."""
    seed: int = 0
    """Of the episode and of the policy."""
    json: bool = False
    """Print one JSON object."""


def play(options: PlayOptions) -> dict[str, Any]:
    """Plays; prints every step, and returns both sides (observations, rewards, return, end) and the actions."""
    from worldmodel.agents.side_by_side import SideBySide
    from worldmodel.cli.progress import console
    from worldmodel.simulator import DEFAULT_TIME_LIMIT
    from worldmodel.training.checkpoint import load

    world = load(options.run)
    _check(options, world)

    def say(line: str) -> None:
        if options.json:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            print(line, flush=True)

    context = None if options.context is None else json_object(options.context, "--context", '{"gravity": 5}')
    pair = SideBySide(world, real=options.real, context=context)
    try:
        pair.reset(options.seed)
        say(_line("start", pair))
        done = _run(pair, _actions(options, world, pair), say, options.steps or DEFAULT_TIME_LIMIT)
        gif = None if options.gif is None else _write(options.gif, pair.gif())
    finally:
        pair.close()
    sides = {name: side.to_json() for name, side in pair.sides.items()}
    result = {"run": str(options.run), "env_id": world.spec.env_id, "seed": options.seed, "actions": done}
    result |= {"real": None, **sides, "gif": gif}
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        for name, side in sides.items():
            end = side["end"] or "goes on"
            print(f"{name}: {len(side['rewards'])} steps, return {side['return']:.6g}, {end}")
        if gif:
            print(f"picture: {gif}")
    return result


def _check(options: PlayOptions, world: WorldModel) -> None:
    """Before anything is played: `ValueError` where what comes after would fail."""
    from worldmodel.envs.check import check_render_mode

    if options.actions is not None and options.policy is not None:
        raise ValueError("--actions and --policy exclude each other")
    if options.steps is not None and options.steps < 1:
        raise ValueError(f"--steps is {options.steps}; at least 1 is needed")
    if options.gif is not None:
        check_render_mode("rgb_array", world.spec)
        if options.gif.suffix != ".gif" or not options.gif.absolute().parent.is_dir():
            raise ValueError(f"--gif {options.gif}: a file that ends in .gif, in a folder that is there, is needed")


def _run(pair: SideBySide, actions: Iterator[tuple[str, Any]], say: Callable[[str], None], most: int) -> list[Any]:
    """Steps until both sides ended or the actions did; returns the actions."""
    import numpy as np

    from worldmodel.spaces import map_columns

    done: list[Any] = []
    for where, action in actions:
        try:
            pair.step(action)
        except ValueError as error:
            if where == TYPED:  # a person may try again
                say(str(error))
                continue
            raise ValueError(f"{where}: {error}") from None
        done.append(map_columns(lambda part: np.asarray(part).tolist(), action))
        say(_line(f"step {len(done)}, action {json.dumps(done[-1])}", pair))
        if pair.over or len(done) >= most:
            break
    return done


TYPED = "terminal"
"""Where a typed action comes from."""


def _actions(options: PlayOptions, world: WorldModel, pair: SideBySide) -> Iterator[tuple[str, Any]]:
    """Actions, each with where it comes from."""
    from worldmodel.agents.side_by_side import lines_of, parse_action
    from worldmodel.cli.progress import console

    if options.actions is not None:
        for number, line in lines_of(options.actions.read_text(encoding="utf-8")):
            where = f"{options.actions}, line {number}"
            try:
                yield where, parse_action(pair.action_space, line)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
        return
    policy = options.policy
    if policy is None:
        policy = "keys" if sys.stdin.isatty() else "random"
        if policy == "random":
            line = "stdin is no terminal: actions are random (--actions FILE, or --policy keys for stdin)"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if policy == "keys":
        yield from _typed(pair)
    elif policy == "random":
        pair.action_space.seed(options.seed)
        while True:
            yield policy, pair.action_space.sample()
    else:
        yield from _of_policy(policy, options.seed, world, pair)


def _typed(pair: SideBySide) -> Iterator[tuple[str, Any]]:
    """Actions from stdin, a line each."""
    from worldmodel.agents.side_by_side import describe_actions, parse_action

    person, last, number = sys.stdin.isatty(), None, 0
    while True:
        if person:
            print("action (q stops)> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        number += 1
        if not line or line.strip() == "q":
            return
        if not line.strip() and last is None:
            line = "?"
        where = TYPED if person else f"stdin, line {number}"
        try:
            last = parse_action(pair.action_space, line) if line.strip() else last
        except ValueError as error:
            if not person:
                raise ValueError(f"{where}: {error}") from None
            print(describe_actions(pair.action_space), file=sys.stderr)
            continue
        yield where, last


def _of_policy(text: str, seed: int, world: WorldModel, pair: SideBySide) -> Iterator[tuple[str, Any]]:
    """What a named policy does on the imagined side."""
    import numpy as np

    from worldmodel.agents.named import named_policies, past_of

    (family,) = policies = named_policies([text], world)
    policy = family.begin(world.spec, past_of(policies, world.spec), np.random.default_rng([seed % 2**63, 0]))
    while True:
        yield text, policy.act(pair.sides["imagined"].observations[-1])


def _line(what: str, pair: SideBySide) -> str:
    return "  ".join([what, *(f"| {name} {_told(side)}" for name, side in pair.sides.items())])


def _told(side: Side) -> str:
    """The present of a side in a few words."""
    import numpy as np

    from worldmodel.spaces import column_list

    parts = [np.asarray(part) for part in column_list(side.observations[-1])]
    obs = " ".join(np.array2string(part, precision=3, threshold=12, max_line_width=10_000) for part in parts)
    reward = f"reward {side.rewards[-1]:.6g} " if side.rewards else ""
    return f"{reward}{' '.join(obs.split())}{'' if side.end is None else f' {side.end}'}"


def _write(path: pathlib.Path, data: bytes) -> str:
    """Writes a file in one rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
    return str(path)
