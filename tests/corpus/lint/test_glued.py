"""Episodes that hold two are found, at the right step."""

import pytest

from tests.corpus.lint.toys import CART, cart_log, codes_of, grid_log, pole_log, sample_of
from worldmodel.corpus.lint import glued, planted
from worldmodel.corpus.lint.sample import draw_sample


@pytest.mark.parametrize("make", [cart_log, grid_log])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_clean_log_is_not_accused(make, seed):
    assert codes_of(glued.check(sample_of(make(seed)))) == []


@pytest.mark.parametrize("keep_last", [False, True])
def test_the_jump_between_two_carts_is_found(keep_last):
    log = cart_log(4)
    (finding,) = glued.check(sample_of(planted.glue_pairs(log, keep_last=keep_last)))
    assert finding.code == "glued"
    seams = {t.info["id"]: len(t) - (0 if keep_last else 1) for t in log[::2]}
    assert len(finding.evidence["steps"]) >= 0.5 * len(seams)
    assert all(steps == [seams[name]] for name, steps in finding.evidence["steps"].items())


@pytest.mark.parametrize("keep_last", [False, True])
def test_an_end_that_the_log_runs_past_is_found(keep_last):
    log = grid_log(4)
    (finding,) = glued.check(sample_of(planted.glue_pairs(log, keep_last=keep_last)))
    ended = {t.info["id"] for t in log[::2] if t.terminated}
    assert len(ended & set(finding.episodes)) >= 0.6 * len(ended)
    seams = {t.info["id"]: len(t) - (0 if keep_last else 1) for t in log[::2]}
    found = finding.evidence["steps"]
    assert sum(seams[name] in steps for name, steps in found.items()) >= 0.9 * len(found)


@pytest.mark.parametrize("seed", [1, 5, 11])
def test_jumps_that_outweigh_all_other_motion_do_not_hide_themselves(seed):
    spec, log = pole_log(seed)
    (finding,) = glued.check(draw_sample(planted.glue_pairs(log, keep_last=True), spec))
    seams = {t.info["id"]: len(t) for t in log[::2]}
    assert len(finding.evidence["steps"]) >= 0.5 * len(seams)
    assert all(steps == [seams[name]] for name, steps in finding.evidence["steps"].items())


def test_time_limits_stored_as_terminals_are_not_mistaken_for_it():
    for make in (cart_log, grid_log):
        assert codes_of(glued.check(sample_of(planted.limits_as_terminals(make(4))))) == []


@pytest.mark.parametrize("episodes", [0, 1, 2])
def test_a_tiny_log_is_not_judged(episodes):
    assert codes_of(glued.check(draw_sample(cart_log(1)[:episodes], CART))) == []
