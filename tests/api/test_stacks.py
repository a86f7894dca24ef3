"""Stacks of stuck ranks: read, merged where equal, put in words."""

from __future__ import annotations

import os

import serverless_gpu
from serverless_gpu import stacks

_PACKAGE = os.path.dirname(serverless_gpu.__file__)


def _dump(line: int, *inner: str) -> str:
    own = f'  File "{_PACKAGE}/rank/process.py", line 90 in run\n'
    own += '  File "<string>", line 1 in <module>\n'
    frames = "".join(f"  File {frame}\n" for frame in inner)
    return (
        'Thread 0x00007f01 (most recent call first):\n  File "/x/loader.py", line 3 in worker\n\n'
        f"Current thread 0x00007f02 (most recent call first):\n{frames}"
        f'  File "<ipython-input-12-abcdef>", line {line} in train\n{own}'
    )


_REDUCE = (
    '"/env/lib/python3.11/site-packages/torch/distributed/c10d.py", line 9 in all_reduce',
    '"/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper',
)


def test_only_the_main_thread_counts_and_our_frames_are_left_out() -> None:
    stack = stacks.parse(_dump(4))
    assert [(f.file, f.line, f.function) for f in stack.frames] == [
        ("<ipython-input-12-abcdef>", 4, "train")
    ]


def test_a_place_is_the_user_s_line_and_what_it_called() -> None:
    assert stacks.parse(_dump(9, *_REDUCE)).where() == "in all_reduce at Cell In[12], line 9"
    assert stacks.parse(_dump(4)).where() == "in train at Cell In[12], line 4"


def test_equal_stacks_are_shown_once_under_their_ranks() -> None:
    dumps = {rank: _dump(9, *_REDUCE) for rank in (0, 1, 2, 3, 4, 6, 7)} | {5: _dump(4)}
    assert stacks.summary(dumps) == (
        "[0-4,6-7] in all_reduce at Cell In[12], line 9; [5] in train at Cell In[12], line 4"
    )
    lines = stacks.report(dumps)
    assert sum("all_reduce" in line and line.startswith("  ") for line in lines) == 1
    assert lines[0].startswith("[0-4,6-7]")
    assert lines[-1] == "[5] in train at Cell In[12], line 4", "what one line says is said once"


def test_a_rank_that_cannot_be_asked_says_so() -> None:
    stack = stacks.parse("no answer from the main thread\n")
    assert stack.frames == ()
    assert stack.where() == "no answer from the main thread"


def test_different_depths_at_the_same_line_are_one_place_but_two_stacks() -> None:
    dumps = {
        0: _dump(9, *_REDUCE),
        1: _dump(9, '"/env/lib/python3.11/site-packages/a.py", line 1 in all_reduce'),
    }
    assert stacks.summary(dumps) == "[0-1] in all_reduce at Cell In[12], line 9"
    assert len(stacks.merged(dumps)) == 2
