"""A loop with accelerate, on a small classifier.

torchrun --nproc-per-node 2 accelerate_loop.py --accum 3
"""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dist_checks


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", default="")
    args = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accum)
    set_seed(args.seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(96, 16, generator=torch.Generator().manual_seed(5))
    data = TensorDataset(x, (x[:, :5] + x[:, 5:10]).argmax(1))
    # Its own generator: accelerate draws from the global one where there are no other ranks, which gives another order.
    draw = torch.Generator().manual_seed(args.seed)
    loader = DataLoader(data, args.batch // (world * args.accum), shuffle=True, generator=draw)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    probe = dist_checks.Probe.attach(model, optimizer)

    step, total = 0, 0.0
    while step < args.steps:
        for features, labels in probe.watch(loader):
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(features), labels)
                accelerator.backward(loss)
                total += loss.item() / args.accum
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                probe.step(loss=total)
                mean = accelerator.reduce(torch.tensor(total), "mean").item()
                accelerator.print(f"step {step}: loss {mean:.6f}")
                step, total = step + 1, 0.0
                if step == args.steps:
                    break
    if args.save:
        accelerator.save(accelerator.unwrap_model(model).state_dict(), args.save)
    accelerator.end_training()


if __name__ == "__main__":
    main()
