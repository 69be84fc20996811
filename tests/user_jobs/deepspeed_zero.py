"""DeepSpeed's engine with ZeRO, on a small classifier of sequences.

torchrun --nproc-per-node 2 deepspeed_zero.py --zero 2 --accum 2
"""

import argparse
import os

import deepspeed
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dist_checks

# On a CPU it would compile a helper for shared memory first, for 20 s.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class Classifier(nn.Module):
    def __init__(self, vocab=40, width=32, classes=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--zero", type=int, default=0)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])

    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 40, (60, 10), generator=draw)
    data = TensorDataset(torch.arange(60), tokens, tokens.sum(1) % 5)
    sampler = DistributedSampler(data, world, rank, seed=args.seed, drop_last=True)
    micro = args.batch // (world * args.accum)
    loader = DataLoader(data, batch_size=micro, sampler=sampler, drop_last=True)

    torch.manual_seed(args.seed)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        dist_init_required=True,
        config={
            "train_batch_size": args.batch,
            "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": args.accum,
            "gradient_clipping": 0.5,
            "zero_optimization": {"stage": args.zero},
            "zero_allow_untested_optimizer": True,
        },
    )
    probe = dist_checks.Probe.attach(engine, optimizer)

    done, epoch = 0, 0
    while done < args.steps:
        sampler.set_epoch(epoch)
        for _, x, y in probe.watch(loader, ids=lambda batch: batch[0]):
            loss = F.cross_entropy(engine(x), y)
            engine.backward(loss)
            engine.step()
            probe.step(loss=loss.item())
            done = engine.global_steps
            if done == args.steps:
                break
        epoch += 1


if __name__ == "__main__":
    main()
