"""The files of a report: complete, strict, self-contained, and replaced whole or not at all."""

import ast
import base64
import dataclasses
import html
import html.parser
import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.report.fixture import cartpole_evidence, cartpole_report, pendulum_report, wide_evidence
from worldmodel.report import Evidence, animation, verdict, write_hero, write_report
from worldmodel.report.animation import MAX_FRAMES, player_data, sprite
from worldmodel.report.returns import MAX_TRACES


class _Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.tags = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href", "data", "action")]


def test_json_is_strict_and_unchanged(run):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads((run / "report.json").read_text(), parse_constant=refuse) == cartpole_report()


@pytest.mark.parametrize("folder", ["run", "bare"])
def test_the_page_needs_nothing_from_outside(folder, request):
    path = request.getfixturevalue(folder) / "report.html"
    text = path.read_text("utf-8")
    page = _Page(text)
    assert path.stat().st_size < 4_000_000
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert "http:" not in text and "https:" not in text and "@import" not in text
    policy = [
        a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policy) == 1 and policy[0].startswith("default-src 'none'; img-src data:;")


@pytest.mark.parametrize("folder", ["run", "bare"])
def test_ids_are_unique_and_every_reference_is_met(folder, request):
    text = (request.getfixturevalue(folder) / "report.html").read_text("utf-8")
    page = _Page(text)
    assert len(page.ids) == len(set(page.ids))
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | {link[1:] for link in page.links if link.startswith("#")}
    assert used and used <= set(page.ids)


def test_the_page_says_and_shows_everything(run):
    text = (run / "report.html").read_text("utf-8")
    assert verdict(cartpole_report()) in html.unescape(text)
    labels = [a["aria-label"] for tag, a in _Page(text).tags if tag == "svg"]
    assert len(labels) == 4 + 6
    for word in ("earns", "rolled out", "rank policies", "one step", "world model", "policy inside", "cart position"):
        assert any(word in label for label in labels), word
    for number in ("492 [487,\u00a0497]", "188 [157,\u00a0219]", "18\u202f842", "61\u202f200", "0.10.2", "141 s"):
        assert number in text, number
    assert "prefers-reduced-motion" in text and '<button id="play" type="button"' in text


def test_nulls_are_shown_with_their_reasons(bare):
    text = (bare / "report.html").read_text("utf-8")
    assert "skipped to save time" in text
    assert f"{MAX_TRACES} of 17 dimensions are shown" in text
    assert "nan" not in re.findall(r"[a-z]+", re.sub(r"<script.*?</script>", "", text, flags=re.S))


def test_a_given_verdict_is_printed_as_given_and_names_are_escaped(tmp_path):
    report = cartpole_report() | {"verdict": "Trust <b>nothing</b> & nobody."}
    report["policies"][0]["name"] = "<script>alert(1)</script>"
    evidence = dataclasses.replace(
        cartpole_evidence(frames=False), obs_names=("</script><i>", "b", "c", "$x_1$"), imagined_rewards=None
    )
    text = write_report(tmp_path, report, evidence).read_text("utf-8")
    assert "Trust &lt;b&gt;nothing&lt;/b&gt; &amp; nobody." in text
    assert "<script>alert" not in text and "</script><i>" not in text


def test_a_report_of_almost_nothing_is_still_a_report(tmp_path):
    text = write_report(tmp_path, {"env_id": "Odd-v0", "seed": 1}, wide_evidence()).read_text("utf-8")
    assert "Not measured: horizon, ranking, transfer, returns, steps" in text
    assert "Odd-v0" in (tmp_path / "README.md").read_text("utf-8")


def test_the_same_input_gives_the_same_bytes(bare, tmp_path):
    write_report(tmp_path, pendulum_report(), wide_evidence())
    assert (tmp_path / "report.html").read_bytes() == (bare / "report.html").read_bytes()


def test_a_failure_leaves_the_old_files(run, tmp_path):
    for name in ("report.html", "report.json", "README.md"):
        (tmp_path / name).write_text("old")
    broken = cartpole_report()
    broken["timings"]["total"] = float("nan")
    with pytest.raises(ValueError, match=r"report\.timings\.total is nan"):
        write_report(tmp_path, broken, wide_evidence())
    with pytest.raises(ValueError, match=r"report\.env_id is None"):
        write_report(tmp_path, {}, wide_evidence())
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == dict.fromkeys(
        ("report.html", "report.json", "README.md"), "old"
    )
    assert {p.name for p in run.iterdir()} == {"report.html", "report.json", "README.md"}


def test_the_model_card(run):
    yaml = pytest.importorskip("yaml", reason="PyYAML is missing: the header of the model card cannot be read")
    card = (run / "README.md").read_text("utf-8")
    _, header, body = card.split("---\n", 2)
    parsed = yaml.safe_load(header)
    assert parsed["library_name"] == "worldmodel" and "CartPole-v1" in parsed["tags"]
    values = {m["type"]: m["value"] for m in parsed["model-index"][0]["results"][0]["metrics"]}
    assert values == {"mean_return": 492, "one_step_nrmse": 0.032, "spearman": 0.93}
    for section in ("Data", "Intended use", "Limits", "Fidelity", "How it was made", "How to load"):
        assert f"\n## {section}\n" in body
    assert "| trained in the simulator, in reality | 492 [487,\u00a0497] |" in body
    code = re.search(r"```python\n(.*?)```", body, re.S).group(1)
    ast.parse(code)
    assert f'wm.load("{run.name}")' in code


def test_player_data_follows_the_rollouts():
    evidence = cartpole_evidence(frames=False, imagined_steps=130)
    data = player_data(evidence)
    assert data["kind"] == "traces" and data["every"] == 1 and data["frames"] == 151
    assert (data["imagined"]["steps"], data["real"]["steps"]) == (130, 150)
    assert data["imagined"]["end"] == "terminated"
    assert data["imagined"]["total"][-1] == 130 and data["real"]["total"][:3] == [0, 1, 2]
    assert data["real"]["traces"][2] == pytest.approx(evidence.real_obs[:, 2], rel=1e-4, abs=1e-6)


def test_a_long_rollout_is_thinned_to_its_last_step():
    obs = np.linspace(0, 1, 1001)[:, None]
    data = player_data(Evidence(imagined_obs=obs, real_obs=obs[:804]))
    assert data["every"] == 6 and data["frames"] <= MAX_FRAMES
    assert data["real"]["traces"][0][-1] == pytest.approx(0.803)
    assert data["imagined"]["traces"][0][-1] == 1.0


def test_a_sheet_holds_its_frames_in_order_within_its_limit():
    frames = [np.full((20, 30, 3), 10 * i, np.uint8) for i in range(25)]
    data = sprite(frames)
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(data["sheet"].split(",", 1)[1]))).convert("RGB"))
    for i in (0, 7, 24):
        row, column = divmod(i, data["columns"])
        patch = sheet[row * data["height"] :, column * data["width"] :][2:-2][
            : data["height"] - 4, 2 : data["width"] - 2
        ]
        assert abs(float(patch.mean()) - 10 * i) < 4


def test_a_sheet_of_noise_is_made_to_fit(monkeypatch):
    monkeypatch.setattr(animation, "MAX_BYTES", 40_000)
    noise = np.random.default_rng(0).integers(0, 256, (12, 100, 150, 3), dtype=np.uint8)
    assert len(base64.b64decode(sprite(list(noise))["sheet"].split(",", 1)[1])) <= 40_000


@pytest.mark.parametrize("frames", [True, False])
def test_the_hero_picture(frames, tmp_path):
    path = write_hero(tmp_path / "deep" / "hero.png", cartpole_report(), cartpole_evidence(frames=frames))
    picture = Image.open(path)
    assert picture.size == (1600, 700) and path.stat().st_size < 400_000
    pixels = np.asarray(picture.convert("L"))
    # Ink in each quarter, and nothing cut off at the right and lower edges.
    for part in (pixels[:350, :1000], pixels[350:, :1000], pixels[:350, 1000:], pixels[350:, 1000:]):
        assert (part < 128).mean() > 0.004
    assert (pixels[:, -4:] > 250).all() and (pixels[-4:] > 250).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"real_obs": np.zeros(3)}, r"evidence\.real_obs has shape \(3,\)"),
        ({"imagined_obs": np.zeros((5, 3))}, "3 dimensions, real_obs 4"),
        ({"obs_names": ("a",)}, "1 names for 4 dimensions"),
        ({"real_rewards": np.zeros(3)}, r"real_rewards has shape \(3,\); \(150,\) is needed"),
        ({"real_frames": [np.zeros((2, 2, 3), np.uint8)]}, "frames of one side only"),
        ({"frame_every": 0}, "frame_every is 0"),
    ],
)
def test_evidence_names_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(cartpole_evidence(frames=False), **change)


def test_drawing_libraries_are_imported_when_something_is_drawn():
    code = (
        "import sys, worldmodel.report; "
        "sys.exit(', '.join(m for m in ('matplotlib', 'jinja2', 'jax') if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
