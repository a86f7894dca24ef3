"""input, debuggers, signals, asyncio, plots and magics, in the notebook and in ranks."""

from __future__ import annotations

import time

from tests.support import kernel_client
from tests.support.notebook import Notebook, plain


def test_c055_input_in_the_notebook_waits_and_stop_ends_it(notebook: Notebook) -> None:
    kernel = notebook.kernel
    sent = kernel.send("name = input('who? '); print('hello', name)", allow_stdin=True)
    request = kernel.client.get_stdin_msg(timeout=kernel_client.PATIENCE)
    assert request["content"]["prompt"] == "who? "
    kernel.client.input("you")
    assert kernel.wait(sent).out == "hello you\n"
    sent = kernel.send("x = input('never answered')", allow_stdin=True)
    kernel.client.get_stdin_msg(timeout=kernel_client.PATIENCE)
    kernel.interrupt()
    assert kernel.wait(sent).content["ename"] == "KeyboardInterrupt"


def test_c055_input_in_a_rank_says_what_to_do(notebook: Notebook) -> None:
    shown = notebook.error(
        """
        @distributed(gpus=2)
        def f(): return input("from rank " + os.environ["RANK"])
        f.distributed()
        """
    )
    assert "a rank has no keyboard" in shown and "argument" in shown


def test_c056_a_debugger_in_a_rank_says_what_to_do(notebook: Notebook) -> None:
    for call in ("breakpoint()", "import pdb; pdb.set_trace()"):
        shown = notebook.error(
            f"""
            @distributed(gpus=2)
            def f():
                y = 41
                if os.environ["RANK"] == "0":
                    {call}
                return y + 1
            f.distributed()
            """
        )
        assert "a rank has no keyboard" in shown and "fn(...)" in shown


def test_c056_an_embedded_shell_in_a_rank_ends(notebook: Notebook) -> None:
    notebook.ok(
        """
        from serverless_gpu import DistributedTimeoutError
        @distributed(gpus=2, timeout=30)
        def f():
            from IPython import embed
            embed()
        try: f.distributed()
        except DistributedTimeoutError: raise
        except Exception as e: print(e)
        """
    )


def test_c068_signals_are_the_user_s(notebook: Notebook) -> None:
    notebook.ok(
        """
        import signal, threading
        assert threading.current_thread() is threading.main_thread()
        signal.signal(signal.SIGUSR1, lambda *a: None)
        @distributed(gpus=2)
        def f():
            import signal, threading, faulthandler
            assert threading.current_thread() is threading.main_thread()
            signal.signal(signal.SIGUSR1, lambda *a: None); signal.alarm(0)
            faulthandler.register(signal.SIGUSR2)
            return True
        assert all(f.distributed())
        """
    )
    notebook.ok(
        """
        %%distributed --gpus 2
        import signal; signal.signal(signal.SIGTERM, signal.default_int_handler)
        """
    )


def test_c070_asyncio_in_the_notebook_and_in_ranks(notebook: Notebook) -> None:
    notebook.ok(
        """
        import asyncio
        async def one(): await asyncio.sleep(.01); return 1
        assert await one() == 1
        """
    )
    notebook.ok(
        """
        @distributed(gpus=2)
        def f(): return asyncio.run(one())
        @distributed(gpus=2)
        async def g(): return await one()
        assert f.distributed() == g.distributed() == [1, 1]
        """
    )
    out = notebook.ok(
        """
        async def bg():
            for i in range(3): print("bg", i); await asyncio.sleep(.05)
        task = asyncio.create_task(bg()); f.distributed(); await task
        """
    )
    assert out == "bg 0\nbg 1\nbg 2\n"


def test_c071_plots_without_show(notebook: Notebook) -> None:
    plot = (
        "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.title('none');"
    )
    for _ in range(2):
        run = notebook.run(plot)
        assert run.status == "ok"
        assert sum("image/png" in m["data"] for m in run.of_type("display_data")) == 1
        notebook.ok("distributed(gpus=2)(abs).distributed(-1)")
    assert "inline" in notebook.ok("import matplotlib; print(matplotlib.get_backend())")


def test_c091_magics_inside_distributed_cells(notebook: Notebook) -> None:
    run = notebook.run(
        """
        %%distributed --gpus 2
        !echo shell-$RANK
        x = !echo captured
        %time sum(range(1000))
        %env FOO=bar
        import asyncio; await asyncio.sleep(.01)
        x
        """
    )
    assert run.status == "ok"
    out = plain(run.out)
    assert "[0] shell-0\n" in out and "[1] shell-1\n" in out and "Wall time" in out
    shown = [plain(m["data"].get("text/plain", "")) for m in run.of_type("display_data")]
    assert "[0-1] ['captured']" in shown
    assert notebook.run("# note\n\n%%distributed --gpus 2\nprint(1)").status == "error"
    timed = notebook.run("%%time\n%%distributed --gpus 2\nprint(2)")
    assert timed.status == "ok" and "Wall time" in timed.out
    wrong = notebook.run("%%distributed --gpus two --nope\nprint(3)")
    assert wrong.status == "error" and "--gpus takes a whole number" in notebook.shown(wrong)
    broken = notebook.run("%%distributed --gpus 2\ndef broken(:")
    assert broken.content["ename"] == "SyntaxError"


def test_c004_stop_ends_all_ranks_at_once(notebook: Notebook) -> None:
    run = notebook.stop(
        """
        @distributed(gpus=2)
        def slow():
            for i in range(600):
                print("tick", i, flush=True); time.sleep(.1)
        slow.distributed()
        """,
        at="tick 3",
    )
    assert run.content["ename"] == "KeyboardInterrupt"
    assert "".join(run.content["traceback"]).count("KeyboardInterrupt") == 1
    assert "tick 100" not in run.out


def test_c028_stop_in_a_collective_poisons_nothing(notebook: Notebook) -> None:
    spin = """
        @distributed(gpus=3)
        def spin():
            pg(); r = dist.get_rank(); i = 0
            while True:
                if i == 5: print("spinning", flush=True)
                x = torch.full((1,), float(i)); time.sleep(.01 * r); dist.all_reduce(x); i += 1
        spin.distributed()
        """
    assert notebook.stop(spin, at="spinning").content["ename"] == "KeyboardInterrupt"
    notebook.ok(
        """
        @distributed(gpus=3)
        def check():
            pg(); x = torch.tensor([1., 2.]); dist.all_reduce(x); return x.tolist()
        for _ in range(5): assert check.distributed() == [[3., 6.]] * 3
        """
    )


def test_c028_stop_in_a_session_s_collective_poisons_nothing(notebook: Notebook) -> None:
    notebook.ok(
        """
        %%distributed --gpus 3
        import os, time, torch, torch.distributed as dist
        dist.init_process_group(); kept = dist.get_rank()
        """
    )
    spin = """
        %%distributed
        i = 0
        while True:
            if i == 5: print("spinning", flush=True)
            x = torch.full((1,), float(i)); time.sleep(.01 * kept); dist.all_reduce(x); i += 1
        """
    assert notebook.stop(spin, at="spinning").content["ename"] == "KeyboardInterrupt"
    notebook.ok(
        """
        %%distributed --pull total,kept
        for _ in range(20):
            x = torch.tensor([1., 2.]); dist.all_reduce(x); assert x.tolist() == [3., 6.]
        total = x.tolist()
        """
    )
    notebook.ok("assert (total, kept) == ([[3., 6.]] * 3, [0, 1, 2])")


def test_c082_the_first_stop_lets_user_code_save_the_second_ends_it(notebook: Notebook) -> None:
    run = notebook.stop(
        """
        @distributed(gpus=2)
        def f():
            n = 0
            while True:
                try:
                    print("working", n, flush=True); time.sleep(3600)
                except KeyboardInterrupt:
                    n += 1; print("saving…", n, flush=True)
                    if n == 2: return n
        f.distributed()
        """,
        at="working",
        times=2,
    )
    assert run.content["ename"] == "KeyboardInterrupt"
    assert "saving… 1" in plain(run.out)


def test_c082_code_that_swallows_every_stop_is_ended(notebook: Notebook) -> None:
    start = time.monotonic()
    run = notebook.stop(
        """
        @distributed(gpus=2)
        def g():
            while True:
                try: print("working", flush=True); time.sleep(.2)
                except: pass
        g.distributed()
        """,
        at="working",
        times=2,
    )
    assert run.content["ename"] == "KeyboardInterrupt"
    assert "killed" in notebook.shown(run)
    assert time.monotonic() - start < kernel_client.PATIENCE


def test_c083_stop_ends_native_code(notebook: Notebook) -> None:
    run = notebook.stop(
        """
        @distributed(gpus=2)
        def f():
            import ctypes, signal
            pg()
            if dist.get_rank() == 0: dist.barrier()
            else:
                # A Stop that comes before the lock does not find Python either.
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                print("ready", flush=True)
                lock = ctypes.create_string_buffer(64)
                for _ in range(2): ctypes.PyDLL(None).pthread_mutex_lock(lock)
        f.distributed()
        """,
        at="ready",
    )
    assert run.content["ename"] == "KeyboardInterrupt"
    assert "rank 1 had to be killed" in notebook.shown(run)


def test_editing_a_distributed_cell_finds_flags_and_what_rank_0_has(notebook: Notebook) -> None:
    notebook.ok("%%distributed --gpus 2\ndef fold(batch):\n    'Folds one.'\nbatch_size = 3")

    def ask(kind: str, code: str, **fields: object) -> dict[str, object]:
        client = notebook.kernel.client
        message = client.session.msg(kind, {"code": code, "cursor_pos": len(code), **fields})
        client.shell_channel.send(message)
        content = notebook.kernel.reply(message["header"]["msg_id"])["content"]
        assert isinstance(content, dict)
        return content

    assert ask("complete_request", "%%distributed --gpus 2 --fre")["matches"] == ["--fresh"]
    assert ask("complete_request", "%%distributed\nbatch_s")["matches"] == ["batch_size"]
    found = ask("inspect_request", "%%distributed\nfold", detail_level=0)
    assert found["found"]
    assert "Folds one." in str(found["data"])
    assert "Folds one." in notebook.ok("%%distributed --ranks 0\nfold?")
