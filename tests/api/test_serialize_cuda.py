"""Tensors on a GPU: they arrive on the CPU, without a CUDA context at the receiver."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch
from serialize_peer import through

from serverless_gpu import serialize
from serverless_gpu.errors import UnpicklableError

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

N = 100_000
LOOK = """
import os, pickle, sys
from serverless_gpu import serialize
loaded = serialize.load(pickle.loads(sys.stdin.buffer.read()), int(sys.argv[1]))
import torch
assert not torch.cuda.is_initialized()
print(float(loaded["weights"].sum()), loaded["weights"].device)
"""


@pytest.mark.parametrize("count", [10, N])
def test_tensors_arrive_on_the_cpu_and_share_what_they_shared(count: int) -> None:
    base = torch.arange(float(count), device="cuda")
    loaded, view = through([base, base[2:5]])
    assert loaded.device.type == "cpu"
    assert torch.equal(loaded, base.cpu())
    loaded[2] = -1
    assert view[0] == -1
    assert base[2] == 2


def test_a_model_and_its_optimizer_arrive_as_one(count: int = 300) -> None:
    model = torch.nn.Linear(count, count).cuda()
    opt = torch.optim.AdamW(model.parameters())
    model(torch.ones(count, device="cuda")).sum().backward()
    opt.step()
    there, opt_there = through((model, opt))
    assert there.weight.device.type == "cpu"
    assert torch.equal(there.weight, model.weight.cpu())
    assert opt_there.param_groups[0]["params"][0] is there.weight
    assert opt_there.state[there.weight]["exp_avg"].device.type == "cpu"


def test_the_receiver_opens_no_cuda_context() -> None:
    payload = serialize.dump({"weights": torch.ones(N, device="cuda")})
    fd = payload.fd
    child = subprocess.run(
        [sys.executable, "-c", LOOK, str(fd)],
        input=pickle.dumps(payload.frames),
        pass_fds=[fd],
        capture_output=True,
        timeout=120,
    )
    payload.close()
    assert child.stdout.decode().strip() == "100000.0 cpu", child.stderr.decode()


def test_where_it_is_asked_for_a_gpu_tensor_is_refused_by_name() -> None:
    with pytest.raises(UnpicklableError) as caught:
        serialize.dump({"weights": torch.ones(3, device="cuda")}, what="result", cuda="error")
    assert "result['weights']" in str(caught.value)
    assert "result['weights'].cpu()" in str(caught.value)
