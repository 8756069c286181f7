import importlib.util, sys, time
import numpy as np
spec=importlib.util.spec_from_file_location("ts","tests/training/test_step.py"); ts=importlib.util.module_from_spec(spec); sys.modules["ts"]=ts; spec.loader.exec_module(ts)
import pytest
@pytest.mark.parametrize("lr,steps,B",[(1e-2,300,32)])
@pytest.mark.parametrize("shift",list(ts.SHIFTS))
@pytest.mark.parametrize("seed",[0,1])
def test_x(lr,steps,B,seed,shift):
    opt,f=ts.counter_train_step()
    st=ts.fresh(ts.COUNTER_CONFIG,ts.counter_codec(),opt,seed)
    t=time.time()
    for i in range(steps):
        st,m=f(st,ts.SHIFTS[shift](ts.counter_logs(i+1000*seed,B)))
        if i%(steps//5)==0 or i==steps-1: print(i,{k:round(float(v),4) for k,v in m.items()})
    print(shift,lr,steps,B,time.time()-t, ts.counter_faults(st.params))
