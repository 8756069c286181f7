"""Eight virtual devices, and two processes: the same curve as one device, the same bits as itself."""

from __future__ import annotations

import json
import shutil
import socket

import numpy as np
import pytest

from tests.training.many_devices import finished, python

MIXED = ["data=2,fsdp=2,tensor=2"]
EVERY = ["data=8", "fsdp=8", "tensor=4", "members=2,data=2,fsdp=2", *MIXED]


def curves(meshes):
    return {mesh: np.array(curve) for mesh, curve in json.loads(finished(python("losses", "", *meshes))).items()}


def assert_one_curve(found):
    alone = found.pop("")
    assert len(alone) == 50
    assert alone[-10:].mean() < alone[:10].mean() - 1.0
    for mesh, curve in found.items():
        np.testing.assert_allclose(curve, alone, rtol=1e-4, err_msg=mesh)


@pytest.mark.slow
def test_a_mixed_mesh_gives_the_curve_of_one_device():
    assert_one_curve(curves(MIXED))


@pytest.mark.slow
def test_every_mesh_gives_the_curve_of_one_device():
    assert_one_curve(curves(EVERY))


def lines(run):
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in entry.items() if k != "steps_per_second"} for entry in entries]


@pytest.mark.slow
def test_a_checkpoint_moves_between_meshes_and_continues_in_its_own_bits(tmp_path):
    """Saved on 4x2; resumed at step 6 on 2x4, on one device, and on 4x2, each twice."""
    process = python("trained", str(tmp_path / "first"), "data=4,fsdp=2", "12", "9")
    process.communicate(timeout=900)
    assert process.returncode == -9
    ends = {}
    for mesh in ("data=4,fsdp=2", "data=2,fsdp=4", ""):
        results = []
        for attempt in range(2):
            run = tmp_path / f"{mesh}-{attempt}"
            shutil.copytree(tmp_path / "first", run)
            results.append((finished(python("trained", str(run), mesh)), lines(run)))
        assert results[0] == results[1], mesh
        assert json.loads(results[0][0])["step"] == 12
        ends[mesh] = results[0][1]
    for mesh, end in ends.items():
        losses = [[line["loss"] for line in lines_] for lines_ in (end, ends["data=4,fsdp=2"])]
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4, err_msg=mesh)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.slow
def test_two_processes_train_save_and_resume(tmp_path):
    def both(run, stop="0"):
        port = free_port()
        return [python("joined", str(run), port, str(i), stop, devices=4) for i in range(2)]

    whole = [finished(process) for process in both(tmp_path / "whole")]
    assert whole[0] == whole[1], "both processes hold the same model at the end"
    assert json.loads(whole[0])["step"] == 12
    for process in (killed := both(tmp_path / "killed", stop="9")):
        process.communicate(timeout=900)
    assert killed[0].returncode == -9
    assert [finished(process) for process in both(tmp_path / "killed")] == whole
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    alone = finished(python("trained", str(tmp_path / "alone"), "data=2,fsdp=2,tensor=2"))
    np.testing.assert_allclose(json.loads(alone)["bits"], json.loads(whole[0])["bits"], rtol=1e-3, atol=1e-4)
