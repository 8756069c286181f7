"""Pages that the tests of this folder share: written once, left as they are."""

import pytest

from tests.report.fixture import cartpole_evidence, cartpole_report, pendulum_report, wide_evidence
from worldmodel.report import write_report


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Folder of a report with frames, in which everything went well."""
    folder = tmp_path_factory.mktemp("run")
    write_report(folder, cartpole_report(), cartpole_evidence(imagined_steps=130))
    return folder


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """Folder of a report without frames, with many dimensions, nulls and failures."""
    folder = tmp_path_factory.mktemp("bare")
    write_report(folder, pendulum_report(), wide_evidence())
    return folder
