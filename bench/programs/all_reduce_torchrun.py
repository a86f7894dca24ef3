"""For torchrun: the same as all_reduce.py."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
number = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(number)
print(f"sum {number.item()}", flush=True)
dist.barrier()
dist.destroy_process_group()
