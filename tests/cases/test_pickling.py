"""What notebooks define and build goes to ranks as it is."""

from __future__ import annotations

import pytest

from tests.support.notebook import Notebook


def test_c005_functions_and_classes_of_cells(notebook: Notebook) -> None:
    notebook.ok(
        """
        from dataclasses import dataclass
        @dataclass
        class Cfg: lr: float = 0.1
        class Net(torch.nn.Module):
            def __init__(self, c): super().__init__(); self.l = torch.nn.Linear(4, 1); self.c = c
            def forward(self, x): return helper(self.l(x))
        def helper(t): return t * SCALE
        SCALE = 3.0
        """
    )
    notebook.ok(
        """
        @distributed(gpus=2)
        def run(cfg):
            n = Net(cfg); return n(torch.ones(1, 4)).shape[0] * cfg.lr
        assert run.distributed(Cfg(0.5)) == [0.5, 0.5]
        """
    )


def test_c016_a_live_bundle_of_model_optimizer_and_loader(notebook: Notebook) -> None:
    notebook.ok(
        """
        net = torch.nn.Linear(4, 1)
        opt = torch.optim.AdamW(net.parameters(), lr=.1)
        sch = torch.optim.lr_scheduler.StepLR(opt, 1)
        dl  = torch.utils.data.DataLoader([(torch.ones(4), 1.)] * 16, batch_size=4, shuffle=True)
        @distributed(gpus=2)
        def loop(cfg, net, opt, dl, sch):
            w0 = net.weight.detach().clone()
            for x, y in dl:
                opt.zero_grad(); net(x).sum().backward(); opt.step(); sch.step()
            same = opt.param_groups[0]["params"][0] is net.weight and sch.optimizer is opt
            return same, not torch.equal(w0, net.weight)
        assert loop.distributed({"lr": .1}, net, opt, dl, sch) == [(True, True)] * 2
        """
    )


def test_c034_what_cannot_travel_is_named(notebook: Notebook) -> None:
    shown = notebook.error(
        """
        import threading
        class Writer:
            def __init__(self): self._lock = threading.Lock()
            def log(self, v): pass
        state = {"opts": {"writer": Writer()}}
        @distributed(gpus=2)
        def f(x):
            state["opts"]["writer"].log(x); return x
        f.distributed(1)
        """
    )
    assert "state" in shown and "writer" in shown and "lock" in shown
    assert "Create it inside f" in shown
    assert len(shown.splitlines()) < 12


def test_c074_results_in_rank_order(notebook: Notebook) -> None:
    notebook.ok(
        """
        @distributed(gpus=8)
        def hello(name: str):
            time.sleep(.02 * (8 - int(os.environ["RANK"])))
            return int(os.environ["RANK"])
        assert hello.distributed("x") == list(range(8))
        @distributed(gpus=4)
        def train(): return "run-abc" if os.environ["RANK"] == "0" else None
        assert next((r for r in train.distributed() if r), None) == "run-abc"
        @distributed(gpus=1)
        def one(*, a, b=2): return a + b
        assert one.distributed(a=1) == [3]
        assert one(a=1) == 3
        try: one.distributed(1)
        except TypeError as e: assert "positional" in str(e)
        else: assert False
        """
    )


def test_c076_branches_classes_closures_nesting_and_bad_sizes(notebook: Notebook) -> None:
    notebook.ok(
        """
        cfg = {"mode": "multi", "n": 2}
        class Model:
            def __init__(self, c): self.c = c
        if cfg["mode"] == "multi":
            @distributed(gpus=cfg["n"])
            def go(M, c, fn): return fn(M(c).c)
            out = go.distributed(Model, {"k": 1}, lambda d: d["k"] + 1)
        assert out == [2, 2]
        def factory(k):
            @distributed(gpus=2)
            def inner(x): return x * k
            return inner
        assert factory(3).distributed(2) == [6, 6]
        for bad in (0, -1, 10_000, "2"):
            try: distributed(gpus=bad)(lambda: 1).distributed()
            except (TypeError, ValueError) as e: assert "1 to" in str(e)
            else: assert False, bad
        @distributed(gpus=2)
        def outer(): return out_fn.distributed()
        @distributed(gpus=2)
        def out_fn(): return 1
        """
    )
    assert "inside a rank" in notebook.error("outer.distributed()")


def test_c077_frameworks_find_torchrun_s_variables_and_no_notebook(notebook: Notebook) -> None:
    notebook.ok(
        """
        @distributed(gpus=2)
        def look():
            try: get_ipython(); seen = True
            except NameError: seen = False
            import IPython, sys
            seen = seen or hasattr(sys, "ps1")  # what Lightning and code.interact look for
            names = "LOCAL_RANK GROUP_RANK LOCAL_WORLD_SIZE TORCHELASTIC_RUN_ID".split()
            return seen, IPython.get_ipython(), all(n in os.environ for n in names)
        assert look.distributed() == [(False, None, True)] * 2
        """
    )
    notebook.ok("%%distributed --gpus 2\nimport sys\nassert not hasattr(sys, 'ps1')")


def test_c077_lightning_trains_in_ranks(notebook: Notebook) -> None:
    pytest.importorskip("lightning")
    notebook.ok(
        """
        def fit():
            import lightning as L
            class M(L.LightningModule):
                def __init__(self): super().__init__(); self.l = torch.nn.Linear(2, 1)
                def training_step(self, b, i): return self.l(b[0]).sum()
                def configure_optimizers(self): return torch.optim.SGD(self.parameters(), .1)
            dl = torch.utils.data.DataLoader([(torch.ones(2), 0.)] * 8, batch_size=2)
            seen = []
            for fold in range(3):
                t = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1,
                              logger=False, enable_checkpointing=False,
                              enable_progress_bar=fold == 2)
                t.fit(M(), dl); seen.append((t.world_size, t.global_rank))
            return seen
        assert distributed(gpus=2)(fit).distributed() == [[(2, 0)] * 3, [(2, 1)] * 3]
        """
    )


def test_c029_returned_tensors_outlive_their_ranks(notebook: Notebook) -> None:
    notebook.ok(
        """
        @distributed(gpus=2)
        def f():
            r = int(os.environ["RANK"])
            t = torch.full((1000,), float(r)); base = torch.arange(10.)
            return {"t": t, "view": base[2:4], "param": torch.nn.Parameter(t.clone())}
        out = f.distributed()
        """
    )
    notebook.ok("%distributed stop")
    notebook.ok(
        """
        assert [o["t"].sum().item() for o in out] == [0.0, 1000.0]
        assert out[0]["view"].tolist() == [2.0, 3.0]
        out[0]["t"].add_(1); assert out[1]["t"][0] == 1.0
        """
    )


def test_c092_large_values_come_back_and_are_let_go(notebook: Notebook) -> None:
    notebook.ok(
        """
        def mb(): return int(open("/proc/self/statm").read().split()[1]) * 4 // 1024
        @distributed(gpus=4)
        def f(mb): return torch.ones(mb * 262_144)
        for size in (1, 100):
            out = f.distributed(size)
            assert [o.numel() for o in out] == [size * 262_144] * 4; del out
        before = mb()
        for _ in range(3): out = f.distributed(50); del out
        assert mb() - before < 100, (before, mb())
        """
    )


def test_c046_failed_calls_keep_no_tensors(notebook: Notebook) -> None:
    notebook.ok(
        """
        def rss(): return int(open("/proc/self/statm").read().split()[1]) * 4 // 1024
        in_rank = distributed(gpus=2)(rss)
        @distributed(gpus=2)
        def boom():
            big = torch.ones(25_000_000); big.add_(1); raise RuntimeError("oom-like")
        sizes = []
        for _ in range(4):
            try: boom.distributed()
            except RuntimeError: pass
            sizes.append((*in_rank.distributed(), rss()))
        assert all(max(column) - column[0] < 50 for column in zip(*sizes)), sizes
        """
    )
