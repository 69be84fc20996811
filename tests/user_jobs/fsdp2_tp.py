"""FSDP2 over tensor parallelism, on a small Llama-like model.

torchrun --nproc-per-node 4 fsdp2_tp.py --tp 2
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import dist_checks


class Sentences(Dataset):
    """Each sample has its own length: the rest of its targets is ignored."""

    def __init__(self, samples=48, length=12):
        draw = torch.Generator().manual_seed(7)
        self.rows = torch.randint(1, 50, (samples, length + 1), generator=draw)
        self.rows[:, 1::2] = (self.rows[:, 0:-1:2] * 3 + 1) % 50
        self.lengths = torch.randint(4, length + 1, (samples,), generator=draw)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        labels = self.rows[i, 1:].clone()
        labels[self.lengths[i] :] = -100
        return {"input_ids": self.rows[i, :-1], "labels": labels}


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.head_size = width // heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.wq, self.wk, self.wv = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.wo = nn.Linear(width, width, bias=False)
        self.w1, self.w3 = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.w2 = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        h = self.attention_norm(x)
        q, k, v = (w(h).unflatten(-1, (-1, self.head_size)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    def __init__(self, vocab=50, width=32, heads=4, layers=2):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.output = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def parallelize(model, mesh):
    """Sequence-parallel norms, and every matrix cut by columns or rows."""
    plan = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        "layers.*.attention_norm": SequenceParallel(),
        "layers.*.ffn_norm": SequenceParallel(),
    }
    plan |= {f"layers.*.{name}": ColwiseParallel(input_layouts=Shard(1)) for name in ("wq", "wk", "wv", "w1", "w3")}
    plan |= {f"layers.*.{name}": RowwiseParallel(output_layouts=Shard(1)) for name in ("wo", "w2")}
    parallelize_module(model, mesh, plan)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--batch", type=int, default=12, help="of all ranks together")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-norm", type=float, default=0.1)
    return parser.parse_args()


def main():
    args = parse()
    distributed = "RANK" in os.environ and int(os.environ["WORLD_SIZE"]) > 1
    dp_rank, dp = 0, 1
    torch.manual_seed(args.seed)
    model = Llama()
    if distributed:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (dist.get_world_size() // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
        dp_rank, dp = mesh["dp"].get_local_rank(), mesh["dp"].size()
        if args.tp > 1:
            parallelize(model, mesh["tp"])
        if dp > 1:
            for layer in model.layers:
                fully_shard(layer, mesh=mesh["dp"])
            fully_shard(model, mesh=mesh["dp"])

    data = Sentences()
    sampler = DistributedSampler(data, dp, dp_rank, seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch // dp, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    probe = dist_checks.Probe.attach(model, optimizer)

    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for batch in probe.watch(loader):
            targets = (batch["labels"] != -100).sum()
            total = targets.clone()
            if dp > 1:
                dist.all_reduce(total, group=mesh["dp"].get_group())
            logits = model(batch["input_ids"])
            loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
            (loss * dp / total).backward()  # FSDP averages over its ranks
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss_sum=loss.item(), targets=targets.item())
            step += 1
            if step == args.steps:
                break
        epoch += 1
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
