"""A communicator from the environment, one blocking collective. Runs alone, or: entrain-run -n 4 -- python3 01_all_reduce.py"""
import numpy as np

import entrain

with entrain.Comm.from_env() as comm:
    x = np.full(4, comm.rank + 1.0, np.float32)
    comm.all_reduce(x)  # in place
    print(f"rank {comm.rank} of {comm.size}: {x}")
