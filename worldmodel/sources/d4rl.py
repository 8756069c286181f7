"""To come."""

import pathlib


def recognise(path: pathlib.Path) -> bool:
    """Nothing yet."""
    return False
