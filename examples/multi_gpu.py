"""Several GPUs or processes by DistributedDataParallel; on a machine without GPUs it runs on the CPU.

`torchrun --nproc-per-node 2 examples/multi_gpu.py [EPOCHS]`, about 20 s. Needs: pip install ".[lab]"
"""

import os
import sys

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import saligraft as sg
from saligraft.data import load
from saligraft.networks import build_network

epochs = int(sys.argv[1]) if sys.argv[1:] else 10
on_gpu = torch.cuda.is_available()
distributed.init_process_group("nccl" if on_gpu else "gloo")
rank, device = distributed.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else "cpu"

torch.manual_seed(0)  # the same weights everywhere
network = build_network("wrn-10-1", num_classes=10, stem_stride=2).to(device)
model = DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
draws = torch.Generator().manual_seed(rank)  # other grafts on each process
step = sg.GraftingStep(model, sg.SaliencyGrafting(grids=(4,)), generator=draws)

data = load("shapes", per_class=50)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=25, sampler=sampler)
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        loss = step(images.to(device), labels.to(device)).loss
        optimizer.zero_grad()
        loss.backward()  # averages the gradients of all processes
        optimizer.step()

total = torch.stack([weight.double().sum() for weight in network.parameters()]).sum()
totals = [torch.zeros_like(total) for _ in range(distributed.get_world_size())]
distributed.all_gather(totals, total)
if rank == 0:
    print(f"loss {loss.item():.2f} after {step.steps_taken} steps on {len(totals)} processes")
    print(f"all processes hold the same weights: {all(torch.equal(other, total) for other in totals)}")
distributed.barrier()  # a process that leaves first may break the connection of the others
distributed.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # gloo's threads can abort a process that ends in the usual way (pytorch/pytorch#190489)
