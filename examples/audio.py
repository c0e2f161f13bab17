"""Audio: the spectrogram of a sound is an image of one channel. Ten kinds of synthetic chirp, in noise.

`python examples/audio.py [EPOCHS]`, about 15 s. Needs: pip install ".[lab]" (for the network alone)
"""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import saligraft as sg
from saligraft.networks import build_network

RATE, KINDS = 4000, 10


def chirps(count, seed):
    """Sounds (N, 4000) of one second: kind k glides between the two frequencies of k, at a random time."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.arange(count) % KINDS
    start = 300 + 100 * (kinds % 5)
    end = torch.where(kinds < 5, start + 800, start - 200)
    time = torch.arange(RATE) / RATE - 0.6 * torch.rand(count, 1, generator=generator)
    inside = (time >= 0) & (time < 0.4)
    phase = 2 * torch.pi * (start[:, None] * time + (end - start)[:, None] * time**2 / 0.8)
    return inside * phase.sin() + torch.randn(count, RATE, generator=generator), kinds


def spectrograms(sounds):
    """Log power (N, 1, 64, 63), frequency by time, normalised."""
    spectrum = torch.stft(sounds, 126, hop_length=64, window=torch.hann_window(126), return_complex=True)
    power = spectrum.abs().square().add(1e-3).log()[:, None]
    return (power - power.mean()) / power.std()


epochs = int(sys.argv[1]) if sys.argv[1:] else 5
torch.manual_seed(0)
sounds, kinds = chirps(500, seed=1)
loader = DataLoader(TensorDataset(spectrograms(sounds), kinds), batch_size=50, shuffle=True)
model = build_network("wrn-10-1", num_classes=KINDS, in_channels=1, stem_stride=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
step = sg.GraftingStep(model, sg.SaliencyGrafting(grids=(4, 8)))

for epoch in range(epochs):
    for images, labels in loader:
        loss = step(images, labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.2f}")

model.eval()
sounds, kinds = chirps(300, seed=2)
with torch.inference_mode():
    correct = model(spectrograms(sounds)).argmax(1) == kinds
print(f"{100 * correct.float().mean():.0f} % of the test sounds are classified correctly; chance is 10 %")
