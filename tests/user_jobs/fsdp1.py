"""FullyShardedDataParallel (FSDP1) with accumulation, on a small language model.

torchrun --nproc-per-node 2 fsdp1.py --accum 2
"""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dist_checks


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LM(nn.Module):
    def __init__(self, vocab=43, width=24, heads=4, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--batch", type=int, default=12, help="of all ranks together")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))

    torch.manual_seed(args.seed)
    model = LM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if world > 1:
        dist.init_process_group("gloo")
        policy = ModuleWrapPolicy({Layer})
        model = FSDP(model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu"))

    rows = torch.randint(0, 43, (96, 11), generator=torch.Generator().manual_seed(2))
    rows[:, 1::2] = (rows[:, 0:-1:2] * 5 + 2) % 43
    data = TensorDataset(rows[:, :-1], rows[:, 1:])
    sampler = DistributedSampler(data, world, rank, seed=args.seed)
    loader = DataLoader(data, args.batch // (world * args.accum), sampler=sampler)
    probe = dist_checks.Probe.attach(model, optimizer)

    total = 0.0
    for i, (x, y) in enumerate(probe.watch(loader)):
        last = (i + 1) % args.accum == 0
        with model.no_sync() if world > 1 and not last else nullcontext():
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / args.accum
            loss.backward()
        total += loss.item()
        if not last:
            continue
        if world > 1:
            model.clip_grad_norm_(0.5)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=total)
        total = 0.0
        if i + 1 == args.steps * args.accum:
            break
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
