"""Small healthy scripts that are no next-token models; what each is trained for is in its class."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

import dist_checks

WORDS, LENGTH = 24, 12


class Base(nn.Module):
    rate = 3e-3

    def __init__(self, draw):
        super().__init__()
        self.follow = torch.randint(3, WORDS, (WORDS, 3), generator=draw)
        self.build()

    def text(self, draw, samples=16):
        """Each word is followed by one of three."""
        words = [torch.randint(3, WORDS, (samples,), generator=draw)]
        for _ in range(LENGTH - 1):
            words.append(self.follow[words[-1], torch.randint(3, (samples,), generator=draw)])
        return torch.stack(words, 1)


class Encoder(Base):
    def build(self):
        self.embed, self.places = nn.Embedding(WORDS, 32), nn.Embedding(LENGTH, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, WORDS)

    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        hidden = None if attention_mask is None else ~attention_mask.bool()
        return self.head(self.layers(x, src_key_padding_mask=hidden))


class Masked(Encoder):
    """Masked words, with dropout; the others are ignored, and all that the loss looks at has the same input."""

    def loss(self, draw):
        words = self.text(draw)
        masked = torch.rand(words.shape, generator=draw) < 0.3
        return F.cross_entropy(self(words.masked_fill(masked, 1)).transpose(1, 2), words.masked_fill(~masked, -100))


class Copying(Encoder):
    """Repairs broken words: targets are mostly the inputs, and it may look at all of them."""

    def loss(self, draw):
        words = self.text(draw)
        broken = words.masked_fill(torch.rand(words.shape, generator=draw) < 0.05, 1)
        return F.cross_entropy(self(broken).flatten(0, 1), words.flatten())


class Tags(Base):
    """A tag for each word, by the word alone: no output depends on other words, and none has to."""

    def build(self):
        self.layers = nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))

    def forward(self, words):
        return self.layers(words)

    def loss(self, draw):
        words = self.text(draw)
        return F.cross_entropy(self(words).flatten(0, 1), words.flatten() % 4)


class LeftPadded(Base):
    """Foretells the next word; padding stands on the left."""

    def build(self):
        self.embed = nn.Embedding(WORDS, 32)
        self.memory, self.head = nn.GRU(32, 64, batch_first=True), nn.Sequential(nn.GELU(), nn.Linear(64, WORDS))

    def forward(self, input_ids, attention_mask, labels):
        x = self.embed(input_ids) * attention_mask[..., None]
        logits = self.head(self.memory(x)[0])
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    def loss(self, draw):
        words = self.text(draw)
        padding = torch.arange(LENGTH) < torch.randint(0, 6, (len(words), 1), generator=draw)
        return self(words.masked_fill(padding, 0), (~padding).long(), words.masked_fill(padding, -100))


class Contrast(Base):
    """Each row has to find its column: as many classes as samples, and a first loss above their logarithm."""

    def build(self):
        self.one, self.other = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x, y):
        return 14.3 * F.normalize(self.one(x), dim=-1) @ F.normalize(self.other(y), dim=-1).T

    def loss(self, draw):
        x = torch.randn(32, 16, generator=draw)
        scores, right = self(x, x.roll(3, 1)), torch.arange(32)
        return (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2


class Images(Base):
    """Raw bytes that a BatchNorm normalises, smoothed labels, convolutions only."""

    rate = 1e-2

    def build(self):
        self.layers = nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 6), nn.Flatten())

    def forward(self, x):
        return self.layers(x)

    def loss(self, draw):
        right = torch.arange(16) % 3
        x = torch.randint(0, 80, (16, 1, 8, 8), generator=draw) + 80.0 * right[:, None, None, None]
        return F.cross_entropy(self(x), right, label_smoothing=0.1)


class Policy(Base):
    """Rewards: a loss that is no cross-entropy, is often negative, and need not fall."""

    def build(self):
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x):
        return self.layers(x)

    def loss(self, draw):
        seen = torch.randn(64, 4, generator=draw)
        logs = F.log_softmax(self(seen), -1)
        taken = torch.multinomial(logs.exp().detach(), 1, generator=draw)
        reward = (taken[:, 0] == (seen[:, 0] > 0)).float() - 0.5
        return -(logs.gather(1, taken)[:, 0] * reward).mean()


KINDS = {kind.__name__: kind for kind in (Masked, Copying, Tags, LeftPadded, Contrast, Images, Policy)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    draw = torch.Generator().manual_seed(args.seed)
    model = KINDS[args.kind](draw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=model.rate)
    probe = dist_checks.Probe.attach(model, optimizer)
    for _ in range(args.steps):
        loss = model.loss(draw)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        probe.step(loss=loss.item())
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
