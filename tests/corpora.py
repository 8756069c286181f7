"""The real logs that some tests read, where they are there: `../shared/corpora`, beside the repository."""

from pathlib import Path

import pytest

CORPORA = Path(__file__).parents[2] / "shared" / "corpora"


def real_log(name: str) -> Path:
    """Where a log or a folder of logs lies; the test is skipped, and says what is missing, where it does not."""
    path = CORPORA / name
    if not path.exists():
        pytest.skip(f"{path} is missing")
    return path
