"""A service of the run that each test module trains (its fixture `run`), and a client of it."""

import threading
from contextlib import contextmanager

import httpx
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from coterie_lab.commands.trained import listen
from coterie_lab.serve.app import application


@contextmanager
def serve(app):
    """The address of a server in a thread of its own."""
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture
def serving():
    return serve


@pytest.fixture(scope="module")
def app(run):
    return application(run, "cpu")


@pytest.fixture(scope="module")
def url(app):
    with serve(app) as address:
        yield address


@pytest.fixture
def ask(url):
    """Asks the service: its path, and the JSON of the request."""
    with httpx.Client(base_url=url, timeout=30) as client:
        yield lambda path, **given: client.post(f"/api/{path}", json=given)


@pytest.fixture(scope="module")
def described(app):
    """The service's description, which names everything."""
    found = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"host": "localhost"})
    for path in found.raw_schema["paths"].values():
        assert {"200", "400", "408", "413", "422", "503"} <= path["post"]["responses"].keys()
        assert path["post"]["description"]
    return found


@pytest.fixture(params=list(GenerationMode))
def keeps_to_its_description(described, request):
    """Whether what fits the description is answered, what does not is refused, and both as it says."""

    def keeps(path):
        @given(described[path]["POST"].as_strategy(generation_mode=request.param))
        @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        def each(case):
            case.call_and_validate(headers={"host": "localhost"})

        each()
        return True

    return keeps


@pytest.fixture
def refused(url):
    """The status of a bad request to a path, which is answered in one sentence."""

    def status(path, **given):
        answer = httpx.post(f"{url}/api/{path}", headers={"content-type": "application/json"}, **given)
        assert isinstance(answer.json()["detail"], str)
        return answer.status_code

    return status
