"""A rank fails, dies or leaves: who it was and why is the first thing that is said."""

from __future__ import annotations

import re

from tests.support.notebook import Notebook


def test_c001_one_rank_raises_while_another_waits(notebook: Notebook) -> None:
    shown = notebook.error(
        """
        @distributed(gpus=2)
        def train():
            pg(); x = torch.ones(1)
            dist.all_reduce(x)
            if dist.get_rank() == 1:
                raise ValueError("bad batch on rank 1")
            dist.all_reduce(x)
        train.distributed()
        """
    )
    assert "bad batch on rank 1" in shown and "rank 1" in shown
    assert 'raise ValueError("bad batch on rank 1")' in shown
    assert "serverless_gpu/call.py" not in shown


def test_c010_a_rank_is_killed(notebook: Notebook) -> None:
    run = notebook.run(
        """
        @distributed(gpus=3)
        def victim():
            import signal
            pg(); print("step 1", flush=True)
            if dist.get_rank() == 2: os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()
        victim.distributed()
        """
    )
    assert "rank 2" in notebook.shown(run) and "SIGKILL" in notebook.shown(run)
    assert "memory" in notebook.shown(run)
    assert "step 1" in run.out
    notebook.ok(
        """
        @distributed(gpus=3)
        def alive(): return os.getpid()
        assert len(set(alive.distributed())) == 3
        """
    )


def test_c013_consequences_do_not_hide_the_cause(notebook: Notebook) -> None:
    shown = notebook.error(
        """
        @distributed(gpus=4)
        def f():
            pg(); x = torch.ones(1); dist.all_reduce(x)
            if dist.get_rank() == 3:
                dist.destroy_process_group(); raise KeyError("label_map")
            for _ in range(3): dist.all_reduce(x)
        f.distributed()
        """
    )
    assert "label_map" in shown and "rank 3" in shown
    assert "closed by peer" not in shown


def test_c037_sys_exit_in_one_rank(notebook: Notebook) -> None:
    notebook.ok(
        """
        import sys
        from serverless_gpu import RankError
        @distributed(gpus=2)
        def f(code):
            if os.environ["RANK"] == "1": sys.exit(code)
            return "fine"
        """
    )
    notebook.ok("assert f.distributed(0) == f.distributed(None) == ['fine', None]")
    for code in (3, "message"):
        shown = notebook.error(f"f.distributed({code!r})")
        assert re.search(rf"rank 1.*sys\.exit\({code}\)", shown)


def test_c038_a_quiet_death_is_no_success(notebook: Notebook) -> None:
    shown = notebook.error(
        """
        @distributed(gpus=3)
        def f():
            if os.environ["RANK"] == "2": os._exit(0)
            return int(os.environ["RANK"])
        f.distributed()
        """
    )
    assert "rank 2" in shown and "exit code 0" in shown


def test_c022_a_deadline_shows_every_rank_s_place(notebook: Notebook) -> None:
    shown = notebook.error(
        """
        @distributed(gpus=2, timeout=2)
        def f():
            pg()
            if dist.get_rank() == 0:
                x = torch.ones(1); dist.broadcast(x, 0); dist.barrier()
            else:
                time.sleep(3600)
        f.distributed()
        """
    )
    assert "[0]" in shown and "[1]" in shown
    assert "barrier" in shown or "broadcast" in shown
    assert "did not end within 2 s" in shown


def test_a_cell_s_error_is_the_rank_s_at_the_cell_s_own_line(notebook: Notebook) -> None:
    cell = """
    %%time
    %%distributed --gpus 2

    batch = 3
    assert batch == 4, "wrong batch"
    """
    run = notebook.run(cell)
    assert (run.content["ename"], run.content["evalue"]) == ("AssertionError", "wrong batch")
    shown = notebook.shown(run)
    number = run.content["execution_count"]
    assert f"Cell In[{number}], line 5" in shown
    assert '----> 5 assert batch == 4, "wrong batch"' in shown
    assert "Traceback of ranks 0-1" in shown
    published = [m["content"] for m in run.messages if m["header"]["msg_type"] == "error"]
    assert [(c["ename"], c["evalue"]) for c in published] == [("AssertionError", "wrong batch")]


def test_the_line_that_called_is_shown_above_the_rank_s(notebook: Notebook) -> None:
    notebook.ok(
        """
        @distributed(gpus=2)
        def step(): raise KeyError("label_map")
        """
    )
    shown = notebook.error("step.distributed()")
    called, raised = shown.index("----> 1 step.distributed()"), shown.index("----> 2 def step()")
    assert called < raised
    assert "decorator.py" not in shown
    refused = notebook.error("step.distributed(1)")
    assert "TypeError: step(): too many positional arguments" in refused
    assert "inspect.py" not in refused
