"""Lightning's Trainer on a small classifier.

torchrun --nproc-per-node 2 lightning_fit.py --accum 3
"""

import argparse
import os

import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dist_checks.integrations.lightning import DistChecksCallback


class Classifier(LightningModule):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(2))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return self.head(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))

    seed_everything(args.seed)
    x = torch.randn(96, 16, generator=torch.Generator().manual_seed(5))
    data = TensorDataset(x, (x[:, :5] + x[:, 5:10]).argmax(1))
    # Its own, since the one that Lightning puts in on several devices draws another order than one device does.
    sampler = DistributedSampler(data, world, rank, seed=args.seed)
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp" if world > 1 else "auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        max_steps=args.steps,
        accumulate_grad_batches=args.accum,
        gradient_clip_val=1.0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[DistChecksCallback()],
    )
    trainer.fit(Classifier(), DataLoader(data, args.batch // (world * args.accum), sampler=sampler))


if __name__ == "__main__":
    main()
