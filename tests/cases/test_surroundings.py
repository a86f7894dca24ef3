"""Modules, packages, folders, credentials, threads, random numbers, data loaders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.notebook import Notebook


def test_c017_an_edited_module_is_never_stale(notebook: Notebook) -> None:
    notebook.ok(
        """
        open("mymod_a.py", "w").write("V = 1\\ndef f(): return V\\n")
        import importlib, mymod_a
        @distributed(gpus=2)
        def g():
            import mymod_a; return mymod_a.f()
        assert g.distributed() == [1, 1]
        """
    )
    notebook.ok(
        """
        open("mymod_a.py", "w").write("V = 22\\ndef f(): return V\\n")
        importlib.reload(mymod_a)
        assert g.distributed() == [22, 22]
        """
    )


def test_c043_a_package_installed_in_the_middle_is_there_at_once(
    notebook: Notebook, tmp_path: Path
) -> None:
    notebook.ok(
        f"""
        import sys, pathlib; site = pathlib.Path({str(tmp_path)!r}); sys.path.append(str(site))
        def install(version):
            for old in site.glob("*.dist-info"): old.joinpath("METADATA").unlink(); old.rmdir()
            info = site / f"case43-{{version}}.dist-info"; info.mkdir()
            info.joinpath("METADATA").write_text(f"Name: case43\\nVersion: {{version}}\\n")
            site.joinpath("case43.py").write_text(f"VERSION = {{version!r}}\\n")
        @distributed(gpus=2)
        def v():
            import importlib.metadata as m
            try: return m.version("case43")
            except m.PackageNotFoundError: return None
        @distributed(gpus=2)
        def use():
            import case43; return case43.VERSION
        assert v.distributed() == [None, None]
        """
    )
    for version in ("4.9.0", "4.10.0"):
        notebook.ok(f"install({version!r})")
        notebook.ok(f"assert v.distributed() == use.distributed() == [{version!r}] * 2")
    notebook.ok("sys.path.remove(str(site))")


def test_c044_ranks_share_the_cores(notebook: Notebook) -> None:
    notebook.ok(
        """
        before = torch.get_num_threads()
        @distributed(gpus=8)
        def f():
            a = torch.randn(200, 200)
            for _ in range(3): a = (a @ a).tanh()
            return torch.get_num_threads()
        fair = max(1, len(os.sched_getaffinity(0)) // 8)
        assert f.distributed() == [fair] * 8
        assert torch.get_num_threads() == before
        """
    )


def test_c050_loaders_leave_no_shared_memory_and_few_descriptors(notebook: Notebook) -> None:
    notebook.ok(
        """
        import resource
        @distributed(gpus=2)
        def f():
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
            class D(torch.utils.data.Dataset):
                def __len__(self): return 16
                def __getitem__(self, i): return torch.ones(200_000)
            loader = torch.utils.data.DataLoader(D(), batch_size=4, num_workers=2)
            return sum(b.shape[0] for b in loader)
        f.distributed()
        def memory(): return sum("memfd" in os.readlink(e.path) for e in os.scandir("/proc/self/fd")
                                 if os.path.islink(e.path) and os.path.lexists(e.path))
        shm, fds = set(os.listdir("/dev/shm")), memory()
        for _ in range(3): assert f.distributed() == [16, 16]
        left = [n for n in set(os.listdir("/dev/shm")) - shm if n.startswith(("torch", "sgpu"))]
        assert not left, left
        assert memory() <= fds
        """
    )


def test_c064_ranks_follow_the_notebook_s_folder(notebook: Notebook, tmp_path: Path) -> None:
    notebook.ok(
        """
        home = os.getcwd()
        @distributed(gpus=2)
        def ls(): return os.getcwd(), os.path.exists("only_here.txt")
        assert ls.distributed() == [(home, False)] * 2
        """
    )
    notebook.ok(f"%cd {tmp_path}\nopen('only_here.txt', 'w').write('x')")
    notebook.ok(f"assert ls.distributed() == [({str(tmp_path)!r}, True)] * 2")
    notebook.ok(
        """
        @distributed(gpus=2)
        def mv(): os.chdir("/"); return 1
        mv.distributed(); assert ls.distributed()[0][1]
        """
    )
    notebook.ok("%cd $home")


def test_c073_credentials_reach_ranks_and_no_file(notebook: Notebook) -> None:
    notebook.ok(
        """
        os.environ["HF_TOKEN"] = "hf_fake_for_test"; os.environ["CASE_TOKEN"] = "tok_fake"
        @distributed(gpus=2)
        def f(fail):
            if fail and os.environ["RANK"] == "1": raise RuntimeError("boom")
            return os.environ.get("HF_TOKEN"), os.environ.get("CASE_TOKEN")
        assert f.distributed(False) == [("hf_fake_for_test", "tok_fake")] * 2
        try: f.distributed(True)
        except RuntimeError as e: assert "tok_fake" not in repr(e)
        from serverless_gpu import pool
        import pathlib
        for path in pathlib.Path(pool.running().core.folder).rglob("*"):
            assert not path.is_file() or b"tok_fake" not in path.read_bytes(), path
        del os.environ["HF_TOKEN"], os.environ["CASE_TOKEN"]
        assert f.distributed(False) == [(None, None)] * 2
        """
    )


def test_c020_ranks_draw_different_numbers(notebook: Notebook) -> None:
    notebook.ok(
        """
        @distributed(gpus=4)
        def draw():
            import random, numpy as np
            return random.random(), float(np.random.rand()), torch.rand(1).item()
        a = draw.distributed()
        for col in zip(*a): assert len(set(col)) == 4, col
        b = draw.distributed(); assert a != b
        @distributed(gpus=2)
        def seeded():
            torch.manual_seed(0); return torch.rand(1).item()
        assert len(set(seeded.distributed())) == 1
        """
    )


def test_c059_one_rank_builds_the_others_wait(notebook: Notebook, tmp_path: Path) -> None:
    notebook.ok(
        f"""
        @distributed(gpus=4)
        def f(fail):
            pg(); p = {str(tmp_path / "cache59.bin")!r}
            if dist.get_rank() == 0:
                time.sleep(.5)
                if fail: raise OSError("no network")
                open(p, "wb").write(b"x" * 1000)
            dist.barrier()
            return os.path.getsize(p)
        assert f.distributed(False) == [1000] * 4
        """
    )
    shown = notebook.error("f.distributed(True)")
    assert "no network" in shown and "rank 0" in shown


def test_c031_imports_of_the_notebook_do_not_touch_ranks(notebook: Notebook) -> None:
    notebook.ok(
        """
        open("evil31.py", "w").write(
         "import ctypes\\ntry: ctypes.CDLL('libcuda.so.1').cuInit(0)\\nexcept OSError: pass\\n"
         "import threading, time\\n"
         "threading.Thread(target=time.sleep, args=(9999,), daemon=True).start()\\n")
        import evil31
        @distributed(gpus=2)
        def f():
            import evil31; pg(); x = torch.ones(1); dist.all_reduce(x); return x.item()
        assert f.distributed() == [2.0, 2.0]
        """
    )


def test_c058_tokenizers_work_in_ranks_and_their_loaders(notebook: Notebook) -> None:
    pytest.importorskip("tokenizers")
    out = notebook.run(
        """
        @distributed(gpus=2)
        def f():
            from tokenizers import Tokenizer, models
            tok = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
            tok.encode_batch(["a a"] * 2000)
            dl = torch.utils.data.DataLoader(list(range(64)), num_workers=2,
                collate_fn=lambda b: len(tok.encode_batch(["a"] * len(b))))
            return sum(dl)
        for _ in range(3): assert f.distributed() == [64, 64]
        """
    )
    assert out.status == "ok"


@pytest.mark.parametrize("method", [None, "spawn", "forkserver"])
def test_c011_loaders_with_workers(notebook: Notebook, method: str | None) -> None:
    notebook.ok(
        f"""
        class DS(torch.utils.data.Dataset):
            def __len__(self): return 64
            def __getitem__(self, i): return torch.tensor([float(i)])
        @distributed(gpus=2)
        def f():
            dl = torch.utils.data.DataLoader(DS(), batch_size=8, num_workers=2,
                persistent_workers=True, multiprocessing_context={method!r})
            return sum(b.sum().item() for _ in range(2) for b in dl)
        assert f.distributed() == [4032.0, 4032.0]
        """
    )
