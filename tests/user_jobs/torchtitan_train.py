"""torchtitan's Trainer and its llama3 debug model, of two layers, on numbers in place of text.

torchrun --nproc-per-node 4 torchtitan_train.py --tp 2 --accum 3
"""

import argparse
import os
from dataclasses import dataclass

import titan_on_cpu  # noqa: F401
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

from dist_checks.integrations.torchtitan import watch

LENGTH = 16


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **given):
        super().__init__()

    def encode(self, text):
        raise NotImplementedError

    decode = encode

    def get_vocab_size(self):
        return 2048


class Numbers(BaseDataLoader):
    """Windows of numbers, each once; some targets are left out."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, dp_world_size, dp_rank, local_batch_size, **given):
        self.world, self.rank, self.batch = dp_world_size, dp_rank, local_batch_size

    def __iter__(self):
        windows = torch.randint(2048, (96, LENGTH + 1), generator=torch.Generator().manual_seed(5))
        for start in range(0, 96, self.batch * self.world):
            mine = windows[start + self.rank : start + self.batch * self.world : self.world]
            labels = mine[:, 1:].clone()
            labels[labels % 5 == 0] = -100
            yield {"input": mine[:, :-1]}, labels

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def made(args):
    world = int(os.environ["WORLD_SIZE"])
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:2]
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    optimizer = default_adamw(lr=1e-3)
    optimizer.implementation = "for-loop"
    return Trainer.Config(
        model_spec=spec,
        dump_folder=args.out,
        tokenizer=NoTokenizer.Config(),
        dataloader=Numbers.Config(),
        loss=CrossEntropyLoss.Config(global_vocab_size=2048),
        optimizer=optimizer,
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=0),
        training=TrainingConfig(
            local_batch_size=args.batch * args.tp // world // args.accum,
            global_batch_size=args.batch,
            seq_len=LENGTH,
            steps=args.steps,
            max_norm=0.5,
            mixed_precision_param="float32",
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=args.replicas,
            tensor_parallel_degree=args.tp,
            spmd_backend="partial_dtensor",  # of the three, what torch 2.13 has all for
        ),
        metrics=MetricsProcessor.Config(log_freq=1),
        debug=DebugConfig(seed=args.seed, enable_structured_logging=False),
    ).build()


def start_alike(model, seed):
    """On a CPU DTensor draws other weights in each layout: whole ones are drawn and cut here."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        whole = torch.randn(parameter.shape) * 0.02 + (parameter.ndim == 1)
        if isinstance(parameter, DTensor):
            whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.data.copy_(whole)


def main():
    parser = argparse.ArgumentParser()
    for name, default in {"replicas": 1, "tp": 1, "accum": 1, "batch": 12, "steps": 20, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", default="/tmp/torchtitan")
    args = parser.parse_args()
    init_logger()
    trainer = made(args)
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    start_alike(trainer.model_parts[0], args.seed)
    watch(trainer).train()
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
