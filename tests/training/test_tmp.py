import importlib.util, sys, time
import numpy as np

spec = importlib.util.spec_from_file_location("ts", "tests/training/test_step.py")
ts = importlib.util.module_from_spec(spec)
sys.modules["ts"] = ts
spec.loader.exec_module(ts)
import pytest, jax
import worldmodel.training.step as S
import worldmodel.model.step as M
from worldmodel.model.heads import logistic_mixture_scale


@pytest.mark.parametrize(
    "beta,lr,steps,B,clip",
    [
        (0, 1e-2, 600, 32, 1.0),
        (0, 1e-2, 600, 32, 1e9),
        (0, 3e-2, 300, 32, 1e9),
        (1, 1e-2, 300, 32, 1.0),
        (1, 1e-2, 600, 32, 1.0),
        (1, 3e-2, 300, 32, 1.0),
    ],
)
def test_x(lr, steps, B, clip, beta, monkeypatch):
    if beta:
        old = M.StepModel.reward_log_prob

        def new(self, h, o, r, *, bin_scale=1.0):
            w = logistic_mixture_scale(self.reward_parameters(h, o), self.codec.reward.bin * bin_scale)
            return old(self, h, o, r, bin_scale=bin_scale) * jax.lax.stop_gradient(w)

        monkeypatch.setattr(M.StepModel, "reward_log_prob", new)
    opt = ts.make_optimizer(learning_rate=lr, warmup=10, steps=steps, weight_decay=0.0, clip=clip)
    f = S.make_train_step(ts.COUNTER_CONFIG, ts.counter_codec(), opt)
    for seed in range(3):
        for shift in ("none", "action", "reward", "terminated"):
            st = ts.fresh(ts.COUNTER_CONFIG, ts.counter_codec(), opt, seed)
            for i in range(steps):
                st, m = f(st, ts.SHIFTS[shift](ts.counter_logs(i + 1000 * seed, B)))
            print(
                beta,
                lr,
                steps,
                B,
                clip,
                shift,
                {k: round(float(v), 3) for k, v in m.items()},
                ts.counter_faults(st.params),
            )
