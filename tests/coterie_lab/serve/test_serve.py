"""`coterie serve`: true probabilities, bounded requests, and 4xx for nonsense, after which it goes on serving."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest
import torch
from starlette.responses import JSONResponse

from coterie_lab.serve import language
from coterie_lab.serve.app import application
from coterie_lab.serve.language import Predictor
from coterie_lab.serve.limits import BoundedBody
from coterie_lab.serve.worker import Busy, Worker
from coterie_lab.tasks.language.train import train
from coterie_lab.tasks.language.trained import Trained
from tests.browser import Visit, browsing, eventually
from tests.command_line import coterie
from tests.corpora import small, tiny_corpus
from tests.hostile import SCRIPT


def expected(run, text):
    """log P(w|h) of every word, straight from the model."""
    trained = Trained.open(run, "cpu")
    with torch.no_grad():
        hidden, _ = trained.model.hidden(torch.tensor([trained.ids(trained.tokens(text)) or [0]]))
        return trained, trained.model.head.log_prob(hidden[0, -1]).double().exp()


@pytest.mark.parametrize("start", [0, 4])
def test_its_probabilities_are_those_of_the_model(run, ask, start):
    trained = Trained.open(run, "cpu")
    text = " ".join(trained.words[4 : 4 + start])
    trained, probability = expected(run, text)
    told = ask("predict", text=text, words=7).json()
    for some in (told["clusters"], told["alone"]):
        assert [one["p"] for one in some] == sorted((one["p"] for one in some), reverse=True)
    total = sum(one["p"] for one in told["alone"])
    assert total + sum(one["p"] for one in told["clusters"]) == pytest.approx(1, abs=1e-6)
    own = trained.organized.partition.own.tolist()
    assert {one["word"] for one in told["alone"]} == {trained.words[word] for word in own}
    for one in told["alone"]:
        assert one["p"] == pytest.approx(float(probability[trained.id_of[one["word"]]]), rel=1e-4)
    assert [one["word"] for one in told["words"]] == [trained.words[w] for w in probability.topk(7).indices.tolist()]
    for cluster in told["clusters"]:
        opened = ask("open", text=text, cluster=cluster["cluster"]).json()
        assert sum(one["p"] for one in opened["words"]) == pytest.approx(1, abs=1e-5)
        assert opened["p"] == pytest.approx(cluster["p"], rel=1e-5)
        for one in opened["words"]:
            assert one["p"] * opened["p"] == pytest.approx(float(probability[trained.id_of[one["word"]]]), rel=1e-4)
            total += one["p"] * opened["p"]
    assert total == pytest.approx(1, abs=1e-5)


def test_going_on_word_by_word_is_reading_at_once(run, ask):
    words = Trained.open(run, "cpu").words[3:9]
    for n in range(len(words) + 1):
        told = ask("predict", text=" ".join(words[:n])).json()
    _, probability = expected(run, " ".join(words))
    assert told["words"][0]["p"] == pytest.approx(float(probability.max()), rel=1e-4)


def test_on_a_gpu_a_search_for_as_many_words_is_recorded_once(run, monkeypatch):
    predictor, recorded = Predictor(Trained.open(run, "cpu")), []

    def capture(search, hidden):
        recorded.append(hidden.shape)
        return search

    class OnGpu(torch.Tensor):
        is_cuda = True

    monkeypatch.setattr(language.graphs, "capture", capture)
    monkeypatch.setattr(predictor, "_hidden", lambda text: torch.ones(16).as_subclass(OnGpu))
    for n in (5, 5, 7):
        assert len(predictor.predict("", n).words) == n
    assert len(recorded) == 2


def test_words_are_read_as_the_model_reads_them(ask):
    told = ask("predict", text=f"{SCRIPT} never-heard-of \U0001f600").json()
    assert told["read"] == [
        {"word": SCRIPT, "known": True},
        {"word": "never-heard-of", "known": False},
        {"word": "\U0001f600", "known": False},
    ]


def test_a_head_without_clusters_predicts_too(serving, tmp_path):
    train(tiny_corpus(tmp_path), tmp_path / "run", small(head="full", head_options={}, epochs=1))
    with serving(application(tmp_path / "run", "cpu")) as address:
        told = httpx.post(f"{address}/api/predict", json={"words": 3}).json()
        assert told["clusters"] == []
        assert len(told["words"]) == 3
        answer = httpx.post(f"{address}/api/open", json={"cluster": 0})
        assert (answer.status_code, answer.json()["detail"]) == (404, "the head 'full' has no clusters")


BAD = [
    ({"content": b"{"}, 422),
    ({"content": b"\xff\xfe"}, 422),
    ({"content": b"[" * 60_000}, 400),
    ({"content": b'{"text": "\\ud800"}'}, 422),
    ({"content": b'{"\\ud800": 1}'}, 422),
    ({"content": b'{"words": ' + b"9" * 5000 + b"}"}, 400),
    ({"json": {"text": "x" * 4001}}, 422),
    ({"json": {"text": "a", "words": 0}}, 422),
    ({"json": {"text": "a", "words": "3"}}, 422),
    ({"json": {"text": "a", "more": 1}}, 422),
    ({"json": [1]}, 422),
    ({"json": None}, 422),
    ({"content": b"x" * 65_537}, 413),
    ({"content": (b"x" * 1000 for _ in range(70))}, 413),  # in pieces, its length not told
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_requests_are_refused_and_it_goes_on(refused, ask, number):
    given, status = BAD[number]
    try:
        assert refused("predict", **given) == status
    except httpx.WriteError:
        assert status == 413  # refused before all of it was sent
    assert ask("predict", text="a").status_code == 200


def test_other_ways_to_ask_are_refused(url, ask):
    assert httpx.get(f"{url}/api/predict").status_code == 405
    assert httpx.get(f"{url}/nothing").status_code == 404
    assert httpx.post(f"{url}/api/predict", content=b"text=a").status_code == 422
    assert httpx.get(url, headers={"host": "evil.example"}).status_code == 400
    foreign = httpx.post(f"{url}/api/predict", json={}, headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in foreign.headers
    assert ask("open", cluster=10**6).status_code == 404
    assert ask("open", cluster=-1).status_code == 422


def test_a_request_that_never_ends_is_given_up(serving):
    async def echo(scope, receive, send):
        body = (await receive())["body"]
        await JSONResponse(body.decode())(scope, receive, send)

    with serving(BoundedBody(echo, seconds=0.5)) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as slow:
            slow.sendall(f"POST / HTTP/1.1\r\nhost: {host}\r\ncontent-length: 50\r\n\r\n{{".encode())
            assert slow.recv(1000).startswith(b"HTTP/1.1 408")
        assert httpx.post(address, content=b"whole").json() == "whole"


def test_fifty_clients_are_all_answered(run, url):
    words = Trained.open(run, "cpu").words
    texts = [" ".join(words[n : n + 5]) for n in range(50)]
    truth = [float(expected(run, text)[1].max()) for text in texts]

    async def client(number):
        async with httpx.AsyncClient(base_url=url, timeout=60) as asking:
            found = []
            for turn in range(4):
                answer = await asking.post("/api/predict", json={"text": texts[(number + turn) % 50]})
                opened = await asking.post("/api/open", json={"cluster": answer.json()["clusters"][0]["cluster"]})
                assert (answer.status_code, opened.status_code) == (200, 200)
                found.append(answer.json()["words"][0]["p"])
            return found

    async def everyone():
        return await asyncio.gather(*(client(number) for number in range(50)))

    for number, found in enumerate(asyncio.run(everyone())):
        assert found == pytest.approx([truth[(number + turn) % 50] for turn in range(4)], rel=1e-4)


def test_a_worker_that_is_behind_says_so():
    release = threading.Event()

    async def crowd():
        worker = Worker(waiting=2, seconds=0.2)
        first, second = (asyncio.create_task(worker(release.wait)) for _ in range(2))
        await asyncio.sleep(0.05)
        with pytest.raises(Busy, match="2 questions are waiting"):
            await worker(lambda: None)
        for late in (first, second):
            with pytest.raises(Busy, match=r"no answer within 0\.2 seconds"):
                await late
        release.set()
        assert await worker(lambda: "again") == "again"

    asyncio.run(crowd())


@pytest.mark.parametrize("path", ["/api/predict", "/api/open"])
def test_it_keeps_to_its_description(described, keeps_to_its_description, path):
    assert set(described.raw_schema["paths"]) == {"/api/predict", "/api/open"}
    assert keeps_to_its_description(path)


def test_the_live_page_predicts_and_goes_on(run, url):
    trained = Trained.open(run, "cpu")
    word = trained.words[3]
    with browsing() as browser:
        visit = Visit(browser, url + "/")
        with visit as page:
            with page.expect_response("**/api/open") as opened, page.expect_response("**/api/predict") as predicted:
                page.fill("#beginning", word)
            told, inside = predicted.value.json(), opened.value.json()
            both = told["clusters"] + told["alone"]
            assert sum(one["p"] for one in both) == pytest.approx(1, abs=1e-6)
            _, probability = expected(run, word)
            best = told["words"][0]
            assert best["p"] == pytest.approx(float(probability.max()), rel=1e-4)
            lists = page.locator("#answer .list")
            assert eventually(lambda: page.locator("#read").inner_text() == f"read as {word}")
            assert eventually(lambda: lists.nth(2).locator(".said").first.inner_text() == best["word"][:31])
            shown = float(lists.nth(2).locator(".value").first.inner_text().rstrip("%"))
            assert shown == pytest.approx(100 * best["p"], abs=0.06)
            bars = lists.nth(0).locator(".bar")
            assert bars.count() == min(12, len(told["clusters"]))
            assert bars.first.get_attribute("aria-pressed") == "true"
            assert inside["cluster"] == told["clusters"][0]["cluster"]
            with page.expect_response("**/api/open") as opened:
                bars.nth(1).click()
            inside = opened.value.json()
            assert inside["cluster"] == told["clusters"][1]["cluster"]
            picked = next(n for n, one in enumerate(inside["words"]) if len(one["word"]) < 20)
            words = lists.nth(1).locator(".bar")
            assert eventually(
                lambda: words.nth(picked).locator(".said").inner_text() == inside["words"][picked]["word"]
            )
            words.nth(picked).click()
            assert page.input_value("#beginning") == f"{word} {inside['words'][picked]['word']} "
            assert eventually(lambda: page.locator("#read bdi").count() == 2)
        assert visit.faults == []
        assert all(asked.startswith(f"{url}/api/") for asked in visit.asked())


def test_the_command_serves_until_it_is_stopped(run):
    command = [sys.executable, "-m", "coterie_lab", "serve", str(run), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = re.match(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert address, process.stderr.read()
        assert httpx.get(f"{address[0]}/openapi.json").json()["info"]["title"] == "Coterie"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")


def test_mistakes_are_answered_in_one_sentence(run, tmp_path):
    assert "is not a run" in str(coterie("serve", tmp_path / "no").exception)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = coterie("serve", run, "--port", taken.getsockname()[1])
        assert "choose another --port" in str(done.exception)
