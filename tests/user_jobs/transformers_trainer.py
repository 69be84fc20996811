"""transformers' Trainer on a small Llama, made from a config.

torchrun --nproc-per-node 2 transformers_trainer.py --accum 3
"""

import argparse
import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from dist_checks.integrations.transformers import DistChecksCallback


class Lines(torch.utils.data.Dataset):
    """Each has its own length: the rest of its labels is ignored."""

    def __init__(self, samples=96, length=12):
        draw = torch.Generator().manual_seed(5)
        self.rows = torch.randint(1, 60, (samples, length), generator=draw)
        self.lengths = torch.randint(3, length + 1, (samples,), generator=draw)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        labels = self.rows[i].clone()
        labels[self.lengths[i] :] = -100
        return {"input_ids": self.rows[i], "labels": labels}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))

    set_seed(args.seed)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(
            output_dir=args.out,
            use_cpu=True,
            ddp_backend="gloo" if world > 1 else None,
            seed=args.seed,
            max_steps=args.steps,
            per_device_train_batch_size=args.batch // (world * args.accum),
            gradient_accumulation_steps=args.accum,
            average_tokens_across_devices=True,
            learning_rate=1e-3,
            max_grad_norm=1.0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Lines(),
    )
    trainer.add_callback(DistChecksCallback())
    trainer.train()
    if args.save:
        trainer.save_model(args.out)


if __name__ == "__main__":
    main()
