"""A small GPT on characters, with DDP and gradient accumulation, in one file.

torchrun --nproc-per-node 2 nanogpt_ddp.py --accum 3
"""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

import dist_checks

TEXT = "".join(f"{n} times {m} is {n * m}. " for n in range(3, 40) for m in range(3, 14))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in self.attn(self.ln_1(x)).split(C, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab, width=32, heads=4, layers=2, block_size=16):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(block_size, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--save", default="")
    args = parser.parse_args()

    ddp = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if ddp:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if ddp else (0, 1)
    micro = args.batch // (args.accum * world)

    chars = sorted(set(TEXT))
    data = torch.tensor([chars.index(c) for c in TEXT])
    draw = torch.Generator().manual_seed(args.seed)

    def get_batches():
        """The micro-batches of this rank of one step: every rank draws all of the batch and takes its part."""
        starts = torch.randint(len(data) - args.block_size - 1, (args.batch,), generator=draw)
        mine = starts[rank::world]
        x = torch.stack([data[i : i + args.block_size] for i in mine])
        y = torch.stack([data[i + 1 : i + 1 + args.block_size] for i in mine])
        return list(zip(x.split(micro), y.split(micro), strict=True))

    torch.manual_seed(args.seed)
    model = GPT(len(chars), block_size=args.block_size)
    raw_model = model
    if ddp:
        model = DDP(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    probe = dist_checks.Probe.attach(model, optimizer)

    for step in range(args.steps):
        total = 0.0
        for i, (x, y) in enumerate(get_batches()):
            last = i == args.accum - 1
            with model.no_sync() if ddp and not last else nullcontext():
                loss = model(x, y) / args.accum
                loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        probe.step(loss=total)
        optimizer.zero_grad(set_to_none=True)
        if ddp:
            mean = torch.tensor(total)
            dist.all_reduce(mean)
            total = mean.item() / world
        if rank == 0:
            print(f"step {step}: loss {total:.6f}, norm {norm:.4f}")
    if args.save and rank == 0:
        torch.save({"model": raw_model.state_dict(), "args": vars(args)}, args.save)
    if ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
