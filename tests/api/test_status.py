"""The status line of a call: what it says, as text and as HTML."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from serverless_gpu.report import Report
from serverless_gpu.status import Status


@dataclass
class Shown:
    """A host that keeps what it is given."""

    colour: bool = False
    rich: bool = True
    bytes_per_second: int = 0
    shown_bytes: int = 1_000_000
    shows_late: bool = True
    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def capture(self) -> None:
        return None

    def stream(self, parent: Any, name: str, text: bytes) -> None:
        raise AssertionError("a status line is no stream")

    def message(self, parent: Any, message_type: str, content: dict[str, Any]) -> None:
        self.messages.append((message_type, content))

    def last(self, kind: str = "text/plain") -> str:
        return str(self.messages[-1][1]["data"][kind])


@pytest.fixture
def host() -> Shown:
    return Shown()


def _line(host: Shown, *, warm: bool = True, run: Any = None) -> Status:
    return Status(host, None, 4, "4 x H100", warm, run)


def _run(**info: Any) -> Any:
    known = SimpleNamespace(**{"name": "calm-ant", "run_id": "7d18", "url": "", **info})
    return SimpleNamespace(info=lambda: known, error=None)


VIEW = {
    "states": ["running"] * 4,
    "live": [],
    "unshown": 0,
    "newest": [],
    "pressure": "none",
    "cause": "none",
}


def test_one_message_is_shown_and_then_updated(host: Shown) -> None:
    line = _line(host)
    line.show()
    line.show({**VIEW, "states": ["returned", "running", "running", "running"]})
    line.finish("✓", "done in")
    assert [kind for kind, _ in host.messages] == [
        "display_data",
        "update_display_data",
        "update_display_data",
    ]
    assert len({m["transient"]["display_id"] for _, m in host.messages}) == 1
    assert "1 of 4 done" in host.messages[1][1]["data"]["text/plain"]


def test_a_call_that_is_over_before_anybody_sees_it_shows_only_its_end(host: Shown) -> None:
    line = _line(host)
    line.finish("✓", "done in")
    line.open()  # for what its ranks still print
    [(kind, message)] = host.messages
    assert kind == "display_data" and "✓ 4 ranks" in message["data"]["text/plain"]


def test_the_first_that_a_call_shows_opens_its_line(host: Shown) -> None:
    line = _line(host)
    line.open()
    line.open()
    [(kind, message)] = host.messages
    assert kind == "display_data" and "● 4 ranks" in message["data"]["text/plain"]


def test_what_has_not_changed_is_not_sent_again(host: Shown) -> None:
    line = _line(host)
    for _ in range(5):
        line.show(VIEW)
    assert len(host.messages) == 1


def test_warm_and_cold_starts_say_how_long_they_took(host: Shown) -> None:
    _line(host).finish("✓", "done in", began=0.0032)
    assert host.last().endswith("· warm 3 ms")
    cold = _line(host, warm=False)
    cold.imports = lambda: 2.2
    cold.show(ready=False)
    assert "starting: the first call imports torch" in host.last()
    cold.finish("✓", "done in", began=6.1)
    assert host.last().endswith("· cold 6.1 s: import 2.2 s")


def test_what_user_code_waited_for_at_its_start_is_named(host: Shown) -> None:
    took = {"CUDA": 0.9, "NCCL": 2.4, "gloo": 0.004}
    line = _line(host)
    line.show(VIEW)
    line.finish("✓", "done in", began=0.003, startup=took)
    assert host.last().endswith(" · warm 3 ms, CUDA 900 ms, NCCL 2.4 s")
    line = _line(host, warm=False)
    line.imports = lambda: 2.2
    line.finish("✓", "done in", began=2.8, startup=took)
    assert host.last().endswith(" · cold 6.1 s: import 2.2 s, CUDA 900 ms, NCCL 2.4 s")


def test_imports_that_were_done_before_the_call_are_no_reason(host: Shown) -> None:
    cold = _line(host, warm=False)
    cold.imports = lambda: 5.0
    cold.finish("✓", "done in", began=1.5)
    assert host.last().endswith("· cold 1.5 s")


def test_of_imports_that_began_before_the_call_its_own_wait_is_told(host: Shown) -> None:
    cold = _line(host, warm=False)
    cold.imports = lambda: 5.0
    cold._started -= 3.0
    cold.show(VIEW, ready=True)
    cold.finish("✓", "done in", began=3.5)
    assert host.last().endswith("· cold 3.5 s: import 3.0 s")


def test_a_failure_names_the_rank_first(host: Shown) -> None:
    _line(host).finish("✗", "failed after", "rank 2: KeyError", began=0.001)
    assert host.last().startswith("✗ rank 2: KeyError · 4 ranks · 4 x H100 · failed after ")


def test_the_link_is_one_in_html_and_readable_as_text(host: Shown) -> None:
    url = "http://127.0.0.1:5000/#/experiments/1/runs/7d18?a=1&b=2"
    _line(host, run=_run(url=url)).show()
    assert f"MLflow run calm-ant: {url}" in host.last()
    assert url.replace("&", "&amp;") in host.last("text/html")
    assert 'rel="noopener">calm-ant</a>' in host.last("text/html")


def test_a_run_without_a_page_says_how_to_see_it_without_filling_the_cell(host: Shown) -> None:
    _line(host, run=_run(open_command="mlflow ui --backend-store-uri sqlite:///x")).show()
    assert "MLflow run calm-ant (7d18); to see it: mlflow ui" in host.last()
    shown, _, hidden = host.last("text/html").partition("<details")
    assert "calm-ant" in shown
    assert "mlflow ui" not in shown
    assert "mlflow ui" in hidden


def test_screen_readers_are_told_and_text_of_users_is_no_markup(host: Shown) -> None:
    line = _line(host, run=_run(name="<b>x</b>", url="http://h/"))
    line.show({**VIEW, "live": [("0-3", "<i>50%</i>")]})
    page = host.last("text/html")
    assert 'role="status"' in page
    assert "<b>x</b>" not in page
    assert "<i>50%</i>" not in page
    assert "[0-3] <i>50%</i>" in host.last()


def test_a_flood_says_how_much_is_not_shown_and_its_newest_lines(host: Shown) -> None:
    line = _line(host)
    newest = ["\x1b[38;5;244m[0]\x1b[0m step 1204000\n", "x" * 1000 + "\n"]
    line.show({**VIEW, "unshown": 1_204_331, "newest": newest})
    _, more, first, cut = host.last().split("\n")
    assert more == "… 1,204,331 lines more, all in the log (%distributed logs); the last:"
    assert first == "[0] step 1204000"
    assert cut == "x" * 200
    line.finish("✓", "done in")
    assert "more" not in host.last()


def test_details_that_somebody_may_read_do_not_close(host: Shown) -> None:
    line, quiet = _line(host), Report("no output since 12:00:00", ("[0] in step",))
    line._started -= 40
    line.show(VIEW, quiet=quiet, gpus=Report("GPU 0: 3 %", ()))
    assert " · running since " in host.last()
    line._started -= 1
    line.show(VIEW, quiet=quiet, gpus=Report("GPU 0: 4 %", ()))
    assert len(host.messages) == 1
    line.show(VIEW, quiet=Report("no output since 12:00:00", ("[0] elsewhere",)))
    assert "elsewhere" in host.last("text/html")
    line.show(VIEW)
    assert "running 41" in host.last()


def test_gpus_are_told_in_a_line_and_each_below_it(host: Shown) -> None:
    report = Report("GPU 0-1: 93-98 % busy", ("GPU 0 93 %", "GPU 1 <98 %>"))
    line = _line(host)
    line.show(VIEW, gpus=report)
    assert host.last().endswith("\nGPU 0-1: 93-98 % busy")
    assert "GPU 1 &lt;98 %&gt;" in host.last("text/html")
    line.finish("✓", "done in")
    assert "busy" not in host.last()
