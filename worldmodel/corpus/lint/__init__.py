"""What is wrong in a log, with evidence, and what repairs it."""

from worldmodel.corpus.lint.codes import CODES
from worldmodel.corpus.lint.finding import Finding, LintReport
from worldmodel.corpus.lint.run import lint

__all__ = ["CODES", "Finding", "LintReport", "lint"]
