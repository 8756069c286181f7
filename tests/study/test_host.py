"""Anybody's own environment, from the command line to the report."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from worldmodel.cli import main
from worldmodel.study.dials import Complexity, Fidelity, Knob
from worldmodel.study.grid import Grid
from worldmodel.study.host import GymnasiumTask
from worldmodel.study.host_faults import KINDS, Faulty
from worldmodel.study.host_learners import learner_for, linear_search
from worldmodel.study.source import Source

OWN = Path(__file__).with_name("own.py")


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    """The file of the one who has an environment, outside the package."""
    return Path(shutil.copy(OWN, tmp_path_factory.mktemp("elsewhere") / "corridor.py"))


def test_own_environment_goes_through_the_command_line(own, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["study", str(own), "--out", out, "--workers", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["run"], said["failed"], said["study"]) == (32, 0, "corridor")
    assert main(["study", "status", out]) == 0
    assert "corridor: 32 of 32 cells done, 0 failed, 0 not run" in capsys.readouterr().out
    assert main(["study", "report", out, "--repetitions", "50"]) == 0
    text = capsys.readouterr().out
    assert "| complexity | diversity | dynamics_noise 0 | dynamics_noise 0.5 | dynamics_noise 1 | reference |" in text
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    earned = {(row["arm"], row["complexity"], row["diversity"]): row["real_return"]["mean"] for row in report["means"]}
    assert earned["reference", 4, 4] > 0.8 > earned["no_training", 4, 4]
    assert len(report["analysis"]["conditions"]) + len(report["analysis"]["excluded"]) == 4
    assert "Corridor_dynamics_noise_curve_4.png" in [file.name for file in (tmp_path / "out" / "figures").iterdir()]
    assert (tmp_path / "out" / "report.md").read_text() in text + "\n"
    assert main(["study", "report", out, "--deployment", "held"]) == 2
    assert "deployments are training, held_out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["study", "planted_treshold", "--out", "x"],
            "no recipe 'planted_treshold' (did you mean 'planted_threshold'?)",
        ),
        (["study", "nowhere.py", "--out", "x"], "nowhere.py does not exist; a recipe is a Python file that defines"),
        (["study", "status", "nowhere"], "nowhere holds no study; `worldmodel study RECIPE --out nowhere` makes one"),
    ],
)
def test_refusals_are_one_line(words, message, capsys):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_a_file_without_a_study_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("STUDY = 3\n")
    with pytest.raises(ValueError, match=r"defines no STUDY; it must be a worldmodel\.study\.Study"):
        Source(str(tmp_path / "empty.py")).load()


def test_a_file_that_cannot_be_loaded_is_one_line(tmp_path, capsys):
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    assert main(["study", str(tmp_path / "broken.py"), "--out", str(tmp_path / "out")]) == 2
    assert "broken.py cannot be loaded: No module named 'no_such_module'" in capsys.readouterr().err
    # A dial that contradicts itself is refused before anything runs.
    (tmp_path / "wrong.py").write_text(OWN.read_text().replace("(0.0, 0.5, 1.0)", "(0.0, 1.5)"))
    assert main(["study", str(tmp_path / "wrong.py"), "--out", str(tmp_path / "out")]) == 2
    assert "dial fidelity:dynamics_noise has level 1.5; 0 to 1 is allowed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_change_of_the_code_makes_cells_anew(own, tmp_path):
    changed = tmp_path / "corridor.py"
    changed.write_text(own.read_text().replace("- 0.02", "- 0.01"))
    commented = tmp_path / "commented.py"
    commented.write_text(own.read_text().replace("STUDY = ", "# a word\nSTUDY = "))
    keys = [{cell.key for cell in Source(str(path)).load().cells()} for path in (own, changed, commented)]
    assert keys[0] == keys[2] and not keys[0] & keys[1]


class Line(gymnasium.Env):
    """Pays for pushing a number towards zero."""

    observation_space = gymnasium.spaces.Box(-5.0, 5.0, (1,), np.float64)

    def __init__(self, discrete: bool = True):
        self.action_space = gymnasium.spaces.Discrete(2) if discrete else gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.time = self.np_random.uniform(-3.0, 3.0, 1), 0
        return self.x, {}

    def step(self, action):
        push = 2.0 * float(action) - 1.0 if self.action_space.shape == () else float(np.ravel(action)[0])
        self.x, self.time = np.clip(self.x + 0.5 * push, -5.0, 5.0), self.time + 1
        return self.x, -abs(float(self.x[0])), False, self.time >= 15, {}


@pytest.mark.parametrize("discrete", [True, False])
def test_linear_search_learns(discrete):
    env, rng = Line(discrete), np.random.default_rng(0)
    assert learner_for(env) is linear_search
    act = linear_search(lambda: (env, env.reset(seed=int(rng.integers(99)))[0]), 3_000, rng)

    def earned(act) -> float:
        total = 0.0
        for seed in range(10):
            obs, _ = env.reset(seed=seed)
            for _ in range(15):
                obs, reward, *_ = env.step(act(obs))
                total += reward
        return total / 10

    assert earned(lambda obs: act(obs, rng)) > 0.5 * earned(lambda _: env.action_space.sample())


@pytest.mark.parametrize("kind", KINDS)
def test_faults_at_nothing_are_the_environment_and_at_something_are_not(kind):
    def episode(amount: float) -> list:
        env = Faulty(Line(), kind, amount, seed=3)
        seen = [env.reset(seed=0)[0]]
        for step in range(15):
            seen += list(env.step(step % 3 % 2)[:3])
        return [np.round(np.asarray(each, float), 9).tolist() for each in seen]

    env, plain = Line(), []
    plain.append(env.reset(seed=0)[0])
    for step in range(15):
        plain += list(env.step(step % 3 % 2)[:3])
    assert episode(0.0) == [np.round(np.asarray(each, float), 9).tolist() for each in plain]
    assert episode(1.0) == episode(1.0) != episode(0.0)


def test_what_the_family_cannot_do_is_refused():
    with pytest.raises(ValueError, match="corruption 'localised' of Line needs a `simulator` that plants it"):
        GymnasiumTask(Line, {}, kinds=("localised",))
    env = Line(False)
    env.observation_space = gymnasium.spaces.Discrete(3)
    with pytest.raises(ValueError, match="no learner takes observations and actions of Discrete and Box"):
        learner_for(env)
    with pytest.raises(ValueError, match="define it in a file, by its name"):
        GymnasiumTask(eval("lambda **kwargs: None"), {}).describe()


def test_a_fault_and_physics_of_ones_own():
    def weaker(env, kind, fidelity, seed):
        env.gain = fidelity
        return env

    knob = {"bias": Knob(0, 1, "share", "is biased")}
    task = GymnasiumTask(
        Biased, knob, vary=drift, simulator=weaker, kinds=("dynamics_bias",), steps=300, episodes=4, max_steps=20
    )
    grid = Grid(task, Complexity.of(task, "bias", (0.5,)), (Fidelity.of("dynamics_bias", (0.5,)),), seeds=1)
    for cell in grid.cells():
        rows = task.run(cell)
        assert rows == task.run(cell)
        assert {row["deployment"] for row in rows} == {"training", "held_out"}
    assert dataclasses.replace(task, steps=301).describe() != task.describe()


def drift(rng):
    """Physics of an instance."""
    return {"drift": float(rng.uniform(-0.1, 0.1))}


class Biased(Line):
    """A line that drifts, and whose pushes are weak."""

    def __init__(self, bias: float, drift: float):
        super().__init__()
        self.bias, self.drift, self.gain = bias, drift, 1.0

    def step(self, action):
        self.x = self.x + self.drift + self.bias * 0.1
        return super().step(action)
