import json
import random
import sys
import time
from contextlib import closing

import torch

import fastreduce

kind, staleness, steps, late_s = json.loads(sys.argv[1])
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
draw = random.Random(rank)
with closing(fastreduce.KVStore(kind, staleness=staleness)) as store:
    store.set_updater(lambda key, update, value: value.add_(update))
    store.init("pushes", torch.zeros(2, 1))  # row r: how often worker r has pushed
    seen, behind = torch.empty(2, 1), 0
    start_s = time.perf_counter()
    for step in range(1, steps + 1):
        time.sleep(draw.choice([0, late_s]))
        one = torch.zeros(2, 1)
        one[rank] = 1
        store.pushpull("pushes", one, out=seen)
        behind = max(behind, step - int(seen.min()))
    seconds = time.perf_counter() - start_s
if rank == 0:
    print(json.dumps([seconds, behind]))
torch.distributed.destroy_process_group()
