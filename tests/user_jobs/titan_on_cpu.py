"""What torchtitan 0.3 asks for and a CPU, or torch 2.13, does not have. To be imported before torchtitan is.

torchtitan is made for accelerators and for nightly builds of torch. Nothing of what it computes is replaced here.
"""

from types import SimpleNamespace

import torch
import torch._utils
import torch.distributed.distributed_c10d as c10d

torch._utils._get_available_device_type = lambda: "cpu"  # it would take cuda where there is no accelerator
torch.cpu.current_device = lambda: 0
torch.cpu.get_device_name = lambda device=None: "cpu"
torch.cpu.get_device_properties = lambda device=None: SimpleNamespace(total_memory=2**30)
torch.cpu.memory_stats = lambda device=None: {}
torch.cpu.empty_cache = torch.cpu.reset_peak_memory_stats = lambda: None
if not hasattr(torch.distributed, "set_timeout"):
    torch.distributed.set_timeout = c10d._set_pg_timeout  # after the first step, for the time of a collective

import torchtitan.models.llama3  # noqa: E402
import torchtitan.trainer  # noqa: E402, F401
