"""A tracking server on loopback that can be away: MLflow's REST protocol over a sqlite store, as
far as these tests go. Works without MLflow's own server, which only the full package has."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from mlflow.utils.proto_json_utils import message_to_json

PREFIX = "/api/2.0/mlflow/"
FILES_PREFIX = "/api/2.0/mlflow-artifacts/artifacts/"


class RestServer:
    """``up`` can be cleared: requests then get 503, or no answer at all while ``silent``."""

    def __init__(self, store_uri: str) -> None:
        self.client = MlflowClient(tracking_uri=store_uri)
        self.client.search_experiments()
        self.store: Any = self.client._tracking_client.store
        self.refuse: int | None = None  # with this HTTP status
        self.silent = threading.Event()  # requests get no answer until release
        self.release = threading.Event()
        self.asked = threading.Semaphore(0)  # one for each request
        self.tokens: list[str | None] = []
        self.files: dict[str, bytes] = {}  # of runs, if it takes them, by path
        self.takes_files = False
        self._lock = threading.Lock()  # sqlite
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(dict(parse_qsl(urlsplit(self.path).query)))

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            do_PATCH = do_POST

            def do_PUT(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if server.refuse is None:
                    server.files[self.path.removeprefix(FILES_PREFIX)] = content
                self._answer({})

            def _answer(self, asked: dict[str, Any]) -> None:
                server.tokens.append(self.headers.get("Authorization"))
                server.asked.release()
                if server.silent.is_set():
                    server.release.wait()
                    return
                status, text = server.answer(urlsplit(self.path).path, asked)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.port = self._http.server_port
        self.uri = f"http://127.0.0.1:{self.port}"

    def answer(self, path: str, asked: dict[str, Any]) -> tuple[int, str]:
        if self.refuse is not None:
            return self.refuse, json.dumps({"error_code": "INTERNAL_ERROR", "message": "refused"})
        if path.startswith(FILES_PREFIX):
            return 200, "{}"
        if path.endswith("/scim/v2/Me"):
            return 200, json.dumps({"userName": "ada@example.org"})
        name = "_" + path.removeprefix(PREFIX).replace("/", "_").replace("-", "_")
        method = getattr(self, name, None)
        if method is None:
            return 404, json.dumps({"error_code": "ENDPOINT_NOT_FOUND", "message": path})
        try:
            with self._lock:
                return 200, json.dumps(method(**asked))
        except MlflowException as error:
            return error.get_http_status_code(), error.serialize_as_json()

    def close(self) -> None:
        self.release.set()
        self._http.shutdown()
        self._http.server_close()

    def _experiments_get_by_name(self, experiment_name: str) -> Any:
        found = self.client.get_experiment_by_name(experiment_name)
        if found is None:
            raise MlflowException(experiment_name, error_code=RESOURCE_DOES_NOT_EXIST)
        return {"experiment": _json(found)}

    def _experiments_get(self, experiment_id: str) -> Any:
        return {"experiment": _json(self.client.get_experiment(experiment_id))}

    def _experiments_search(self, **_: Any) -> Any:
        return {"experiments": [_json(one) for one in self.client.search_experiments()]}

    def _experiments_create(self, name: str, **_: Any) -> Any:
        return {"experiment_id": self.client.create_experiment(name)}

    def _runs_create(self, experiment_id: str, start_time: int, **asked: Any) -> Any:
        tags = [RunTag(**tag) for tag in asked.get("tags", [])]
        name, user = asked.get("run_name"), asked.get("user_id", "u")
        run = self.store.create_run(experiment_id, user, int(start_time), tags, name)
        return {"run": self._run(run)}

    def _runs_get(self, run_id: str, **_: Any) -> Any:
        return {"run": self._run(self.store.get_run(run_id))}

    def _run(self, run: Any) -> Any:
        told = _json(run)
        if self.takes_files:
            told["info"]["artifact_uri"] = f"mlflow-artifacts:/{run.info.run_id}"
        return told

    def _runs_update(self, run_id: str, **asked: Any) -> Any:
        from mlflow.entities import RunStatus

        status = RunStatus.from_string(asked["status"]) if "status" in asked else None
        end = int(asked["end_time"]) if "end_time" in asked else None
        info = self.store.update_run_info(run_id, status, end, asked.get("run_name"))
        return {"run_info": _json(info)}

    def _runs_log_batch(self, run_id: str, **asked: Any) -> Any:
        metrics = [
            Metric(m["key"], float(m["value"]), int(m["timestamp"]), int(m.get("step", 0)))
            for m in asked.get("metrics", [])
        ]
        params = [Param(**param) for param in asked.get("params", [])]
        tags = [RunTag(**tag) for tag in asked.get("tags", [])]
        self.store.log_batch(run_id, metrics, params, tags)
        return {}

    def _runs_log_parameter(self, run_id: str, key: str, value: str, **_: Any) -> Any:
        self.store.log_param(run_id, Param(key, value))
        return {}

    def _runs_log_inputs(self, run_id: str, datasets: list[Any], **_: Any) -> Any:
        inputs = [
            DatasetInput(Dataset(**one["dataset"]), [InputTag(**tag) for tag in one["tags"]])
            for one in datasets
        ]
        self.store.log_inputs(run_id, inputs)
        return {}

    def _runs_set_tag(self, run_id: str, key: str, value: str, **_: Any) -> Any:
        self.store.set_tag(run_id, RunTag(key, value))
        return {}


def _json(entity: Any) -> Any:
    return json.loads(message_to_json(entity.to_proto()))


@contextlib.contextmanager
def serving(store_uri: str) -> Iterator[RestServer]:
    server = RestServer(store_uri)
    try:
        yield server
    finally:
        server.close()
