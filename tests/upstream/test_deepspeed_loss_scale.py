"""DeepSpeed's ZeRO updates the loss scale before it divides the gradients by it: the step at which the scale grows is
half as long as it should be. Stage 3 reports half the norm as well. Clipping hides it, except in what is reported.

``worker/axes/zero.py`` lets the scale never grow.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import parts

STEPS = """
import json, os, sys, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
import deepspeed
from deepspeed.accelerator import get_accelerator
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
get_accelerator().is_fp16_supported = lambda: True
get_accelerator().supported_dtypes = lambda: [torch.float32, torch.float16]
deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
found = {}
for stage in (1, 2, 3):
    model = torch.nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 1000, "allgather_bucket_size": 1000},
        "fp16": {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 2},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    zero = engine.optimizer
    (master,) = getattr(zero, "fp32_partitioned_groups_flat", None) or zero.single_partition_of_fp32_groups
    for _ in range(4):
        before, scale = master.detach().clone(), zero.loss_scale
        engine.backward(engine(torch.ones(1, 4, dtype=torch.float16)).sum())  # every gradient is 1
        engine.step()
        moved = (before - master.detach()).abs().max().item()
        found.setdefault(stage, []).append([zero.loss_scale / scale, moved, float(engine.get_global_grad_norm())])
print("FOUND" + json.dumps(found), flush=True)
os._exit(0)
"""


def test_the_step_at_which_the_scale_grows(tmp_path: Path) -> None:
    parts.need("deepspeed")
    command = [sys.executable, "-c", STEPS, str(tmp_path / "store")]
    environment = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    for stage, steps in json.loads(ended.stdout.split("FOUND")[1]).items():
        assert steps[0] == steps[1] == steps[3] == [1.0, 1.0, 4.0]
        assert steps[2] == [2.0, 0.5, 2.0 if stage == "3" else 4.0], "right would be a step of 1 and a norm of 4"
