import subprocess
import sys

import pytest

import worldmodel.fidelity as fidelity


def test_every_exported_name_resolves():
    for name, home in fidelity._HOME.items():
        assert getattr(fidelity, name).__module__ == f"worldmodel.fidelity.{home}"
        assert name in dir(fidelity)


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'mmvr'"):
        _ = fidelity.mmvr


def test_import_is_light():
    code = "import sys, worldmodel.fidelity; print(*[m for m in ('jax', 'scipy', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
