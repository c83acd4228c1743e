"""Makes a communicator from the environment, and makes one blocking call. Runs alone, or: entrain-run -n 4 -- python3
01_all_reduce.py"""
import numpy as np

import entrain

with entrain.Comm.from_env() as comm:
    x = np.full(4, comm.rank + 1.0, np.float32)
    comm.all_reduce(x)  # the result replaces the input
    print(f"rank {comm.rank} of {comm.size}: {x}")
