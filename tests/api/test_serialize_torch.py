"""Tensors: as torch keeps them when it saves, sharing what they shared, large ones out of band."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from serialize_peer import Notebook, Peer, through

from serverless_gpu import serialize

N = 100_000


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.bool,
        torch.int8,
        torch.uint8,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [0, 3, 4 * N])
def test_every_dtype_arrives_equal_and_writable(dtype: torch.dtype, count: int) -> None:
    tensor = torch.randint(0, 2, (count,)).to(dtype)
    payload = serialize.dump(tensor)
    assert (payload.fd >= 0) == (count > N)
    loaded = serialize.load(payload.frames, payload.detach())
    assert loaded.dtype == dtype
    assert torch.equal(loaded.view(torch.uint8), tensor.view(torch.uint8))
    loaded.zero_()


def test_strided_views_arrive_with_their_strides() -> None:
    base = torch.arange(float(N)).reshape(100, -1)
    for view in (base.t(), base[::3, 5:50:2], base.expand(3, *base.shape), base[7, 3]):
        loaded = through(view)
        assert torch.equal(loaded, view)
        assert loaded.stride() == view.stride()


def test_tensors_that_share_memory_share_it_after_and_send_it_once() -> None:
    base = torch.arange(float(N))
    payload = serialize.dump({"base": base, "view": base[10:20], "again": [base]})
    assert payload.nbytes < base.nbytes + 3000
    loaded = serialize.load(payload.frames, payload.detach())
    loaded["base"][10] = -1
    assert loaded["view"][0] == -1
    assert loaded["again"][0] is loaded["base"]


def test_small_tensors_share_memory_after_too() -> None:
    base = torch.arange(10.0)
    loaded, view = through((base, base[2:4]))
    assert same_storage(loaded, view)
    assert view.tolist() == [2.0, 3.0]


def test_a_view_takes_along_only_what_it_shows() -> None:
    base = torch.arange(100.0 * N)
    payload = serialize.dump([base[:100], base[N : 2 * N]])
    assert payload.nbytes < 4 * N + 3000
    first, second = serialize.load(payload.frames, payload.detach())
    assert torch.equal(first, base[:100])
    assert torch.equal(second, base[N : 2 * N])
    assert same_storage(first, second)


def test_a_storage_sent_as_such_is_sent_whole() -> None:
    base = torch.arange(float(N))
    view, storage = through((base[5:6], base.untyped_storage()))
    assert torch.equal(torch.empty(0).set_(storage), base)
    assert view.untyped_storage().data_ptr() == storage.data_ptr()


def test_receivers_write_without_seeing_each_other() -> None:
    tensor = torch.zeros(N)
    payload = serialize.dump(tensor)
    first = serialize.load(payload.frames, os.dup(payload.fd))
    second = serialize.load(payload.frames, payload.detach())
    first.add_(1)
    assert (first.sum(), second.sum(), tensor.sum()) == (N, 0, 0)


@pytest.mark.parametrize("count", [10, N])
def test_parameters_buffers_and_leaves_stay_what_they_are(count: int) -> None:
    leaf = torch.ones(count, requires_grad=True)
    parameter, frozen, buffer, loaded = through(
        (
            torch.nn.Parameter(torch.ones(count)),
            torch.nn.Parameter(torch.ones(count), requires_grad=False),
            torch.nn.Buffer(torch.ones(count)),
            leaf,
        )
    )
    assert isinstance(parameter, torch.nn.Parameter) and parameter.requires_grad
    assert isinstance(frozen, torch.nn.Parameter) and not frozen.requires_grad
    assert isinstance(buffer, torch.nn.Buffer)
    assert loaded.is_leaf and loaded.requires_grad


def test_a_result_with_a_graph_arrives_as_a_leaf(peer: Peer) -> None:
    notebook = Notebook().cell("""
        import torch
        def run(): return (torch.ones(3, requires_grad=True) * 2).sum()
        """)
    loss = peer.run(notebook.run)
    assert loss.item() == 6.0
    assert loss.grad_fn is None


@pytest.mark.parametrize("width", [4, 400])
def test_model_optimizer_and_scheduler_stay_one_bundle(peer: Peer, width: int) -> None:
    notebook = Notebook().cell("""
        import torch
        def loop(net, opt, sch, loader):
            before = net.weight.detach().clone()
            for x, y in loader:
                opt.zero_grad(); net(x).sum().backward(); opt.step(); sch.step()
            same = opt.param_groups[0]["params"][0] is net.weight and sch.optimizer is opt
            return same, not torch.equal(before, net.weight)
        """)
    net = torch.nn.Linear(width, width)
    opt = torch.optim.AdamW(net.parameters(), lr=0.1)
    sch = torch.optim.lr_scheduler.StepLR(opt, 1)
    data: Any = [(torch.ones(width), 1.0)] * 16
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    before = net.weight.detach().clone()
    assert peer.run(notebook.loop, net, opt, sch, loader=loader) == (True, True)
    assert torch.equal(net.weight, before)


def test_tied_weights_stay_tied() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(1000, 100)
            self.head = torch.nn.Linear(100, 1000)
            self.head.weight = self.embed.weight

    model = through(Tied())
    assert model.head.weight is model.embed.weight


def test_the_rare_layouts_arrive() -> None:
    eye = torch.eye(300)
    sparse, csr, quantized, meta, conj = through(
        (
            eye.to_sparse(),
            eye.to_sparse_csr(),
            torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8),
            torch.empty(3, device="meta"),
            torch.full((N,), 1j).conj(),
        )
    )
    assert torch.equal(sparse.to_dense(), eye)
    assert torch.equal(csr.to_dense(), eye)
    assert torch.equal(quantized.dequantize(), eye)
    assert meta.is_meta and meta.shape == (3,)
    assert torch.equal(conj, torch.full((N,), -1j))


def test_a_subclass_of_tensor_keeps_its_type_and_attributes(peer: Peer) -> None:
    notebook = Notebook().cell("""
        import torch
        class Tagged(torch.Tensor): pass
        def run(t): return type(t).__name__, t.tag, t
        """)
    tensor = torch.ones(N).as_subclass(notebook.Tagged)
    tensor.tag = "x"
    name, tag, home = peer.run(notebook.run, tensor)
    assert (name, tag, type(home), home.tag) == ("Tagged", "x", notebook.Tagged, "x")


def test_results_outlive_the_process_that_made_them() -> None:
    peer = Peer()
    notebook = Notebook().cell("""
        import torch
        def run():
            t = torch.full((100_000,), 1.0); base = torch.arange(10.)
            t.share_memory_()
            return {"t": t, "view": base[2:4], "param": torch.nn.Parameter(t.clone())}
        """)
    out = peer.run(notebook.run)
    peer.close()
    out["t"].add_(1)
    assert out["t"].sum() == 200_000
    assert out["view"].tolist() == [2.0, 3.0]
    assert out["param"].sum() == 100_000


def test_an_untouched_copy_can_still_be_saved_and_copied() -> None:
    loaded = through(torch.arange(float(N)))
    assert torch.equal(loaded.clone(), torch.arange(float(N)))
    assert torch.equal(through(loaded), loaded)
