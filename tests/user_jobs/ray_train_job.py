"""Ray Train's TorchTrainer on a small classifier.

python ray_train_job.py --workers 2
"""

import argparse
import os

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dist_checks
from dist_checks.integrations.ray_train import env_vars


def train(config):
    context = ray.train.get_context()
    world, rank = context.get_world_size(), context.get_world_rank()
    torch.manual_seed(config["seed"])
    model = prepare_model(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 5)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(96, 16, generator=torch.Generator().manual_seed(5))
    data = TensorDataset(x, (x[:, :5] + x[:, 5:10]).argmax(1))
    sampler = DistributedSampler(data, world, rank, seed=config["seed"])
    loader = DataLoader(data, config["batch"] // world, sampler=sampler)
    probe = dist_checks.Probe.attach(model, optimizer)

    for step, (features, labels) in enumerate(probe.watch(loader), 1):
        loss = F.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss.item())
        ray.train.report({"loss": loss.item()})
        if step == config["steps"]:
            break
    probe.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="/tmp/ray_train")
    args = parser.parse_args()

    ray.init(
        address=os.environ.get("RAY_ADDRESS", "local"), include_dashboard=False, runtime_env={"env_vars": env_vars()}
    )
    TorchTrainer(
        train,
        train_loop_config=vars(args),
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=args.workers),
        run_config=RunConfig(storage_path=os.path.abspath(args.out)),
    ).fit()


if __name__ == "__main__":
    main()
