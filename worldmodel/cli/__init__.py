"""`worldmodel VERB ...`: one file per verb, each thin; options are dataclass fields read by tyro.

Exit codes: 0 done, 1 a gate or check failed, 2 bad usage or bad input (one clear line; `--debug` for a traceback).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from worldmodel.trajectory import suggest

VERBS = {
    "quickstart": (
        "worldmodel.cli.quickstart",
        "Options",
        "run",
        "real logs to a policy that works outside, and a report",
    ),
    "data record": ("worldmodel.cli.record", "RecordOptions", "record", "run a real environment and write its logs"),
    "data convert": ("worldmodel.cli.convert", "ConvertOptions", "convert", "logs of any format to a corpus"),
    "data show": (
        "worldmodel.cli.show",
        "ShowOptions",
        "show",
        "what a log or a corpus holds, in numbers and pictures",
    ),
    "data lint": ("worldmodel.cli.lint", "LintOptions", "lint", "what is wrong in a log, and what repairs it"),
    "data imagine": (
        "worldmodel.cli.imagine",
        "ImagineOptions",
        "imagine",
        "episodes that a world model imagines, as a corpus marked synthetic",
    ),
    "train": ("worldmodel.cli.train", "Options", "run", "train a world model on a corpus"),
    "probe": ("worldmodel.cli.probe", "Options", "run", "measure where a world model can be trusted"),
    "study": ("worldmodel.cli.study", "StudyOptions", "study", "fidelity against transfer, over dials and seeds"),
    "study status": (
        "worldmodel.cli.study_status",
        "StatusOptions",
        "status",
        "what of a study is done, missing, failed",
    ),
    "study report": ("worldmodel.cli.study_report", "ReportOptions", "report", "what a study's folder says so far"),
    "report check": (
        "worldmodel.cli.report",
        "CheckOptions",
        "check",
        "hold a report against what you require of it",
    ),
    "report diff": ("worldmodel.cli.report", "DiffOptions", "diff", "what moved between two reports"),
    "play": ("worldmodel.cli.play", "PlayOptions", "play", "step an imagined world, beside the real one"),
    "serve": ("worldmodel.cli.serve", "ServeOptions", "serve", "a world model over HTTP, as an OpenEnv environment"),
    "info": ("worldmodel.cli.info", "Options", "run", "versions and devices"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code."""
    return guarded(_dispatch, argv)


def guarded(run: Callable[[list[str]], int], argv: Sequence[str] | None = None) -> int:
    """The exit code of `run(words)`, whose errors become one line; `argv` are the program's own words by default."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return run(words)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # who read our output (`| head`) has had enough; the interpreter must not flush again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except FloatingPointError as error:
        if debug:
            raise
        return _fail(str(error), 1)
    except (ValueError, OSError) as error:
        if debug:
            raise
        return _fail(_one_line(error), 2)


def _dispatch(words: list[str]) -> int:
    import tyro

    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        return 0 if words else 2
    # A first word that is no verb by itself; `study` is one, and has others beside it.
    groups = {verb.split()[0] for verb in VERBS if " " in verb} - set(VERBS)
    two = " ".join(words[:2])
    verb = two if words[0] in groups or two in VERBS else words[0]
    if words[0] in groups and (len(words) == 1 or words[1] in ("-h", "--help")):
        print(_usage(f"{words[0]} "))
        return 0 if len(words) > 1 else 2
    if verb not in VERBS:
        raise ValueError(f"there is no verb {verb!r}{suggest(verb, VERBS)}; verbs are {', '.join(VERBS)}")
    module_name, options_name, function_name, _ = VERBS[verb]
    module = importlib.import_module(module_name)
    rest = words[len(verb.split()) :]
    # Where a verb has presets, the words say which options are the defaults of all others.
    known = module.defaults(rest) if hasattr(module, "defaults") else None
    defaults = {} if known is None else {"default": known}
    kind = getattr(module, options_name) if known is None else type(known)
    options = tyro.cli(kind, args=rest, prog=f"worldmodel {verb}", **defaults)
    getattr(module, function_name)(options)
    return 0


def _usage(prefix: str = "") -> str:
    lines = ["usage: worldmodel VERB [options]      (worldmodel VERB --help for a verb's own)", ""]
    lines += [f"  {verb:<12} {text}" for verb, (*_, text) in VERBS.items() if verb.startswith(prefix)]
    lines += ["", "example: worldmodel quickstart --env Pendulum-v1 --out runs/pendulum"]
    return "\n".join(lines)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        place = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{place}"
    return " ".join(str(error).split())


def _fail(message: str, code: int) -> int:
    print(f"worldmodel: error: {message}", file=sys.stderr)
    return code
