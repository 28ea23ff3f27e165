"""`coterie serve` of a summarizer: the titles and the beam of the search itself, and a page that follows them."""

import math
from dataclasses import replace

import httpx
import pytest
import torch

from coterie_lab.data.prepare_pairs import prepare
from coterie_lab.models.beam import search
from coterie_lab.serve import summarizer
from coterie_lab.serve.app import application
from coterie_lab.serve.summarizer import WORDS, Writer
from coterie_lab.tasks.summarization.settings import Decoding
from coterie_lab.tasks.summarization.train import train
from coterie_lab.tasks.summarization.trained import Trained
from tests.browser import Visit, browsing, eventually, shows
from tests.coterie_lab.explorer.test_explorer_page import CONTRASTS
from tests.hostile import SCRIPT
from tests.pairs import news, small, tiny_pairs, write_gigaword

LEARNT = small(epochs=12, learning_rate=0.02)
STRANGE = f"the bank of {SCRIPT} sold never-heard-of \U0001f600 ships on monday ."


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trained on words that are split already, of which one is a script."""
    folder = tmp_path_factory.mktemp("titles")
    pairs = [(article.replace("paris", SCRIPT), title.replace("paris", SCRIPT)) for article, title in news(300)]
    train(prepare([write_gigaword(folder / "sumdata", pairs)], folder / "data"), folder / "run", LEARNT)
    return folder / "run"


def read(trained, text):
    """The sentence as the search takes it."""
    ids = trained.ids(trained.tokens(text))
    return torch.tensor([ids]), torch.tensor([len(ids)])


@pytest.mark.parametrize("beam", [1, 4, 10])
@pytest.mark.parametrize("text", [STRANGE, news(1, seed=5)[0][0].lower()])
def test_its_titles_are_those_of_the_search(run, ask, text, beam):
    trained = Trained.open(run, "cpu")
    told = ask("summarize", text=text, beam=beam).json()
    [expected] = search(trained.model, *read(trained, text), beam=beam, penalty=Decoding().penalty)
    assert [one["log_prob"] for one in told["titles"]] == pytest.approx([one.log_prob for one in expected])
    assert [one["ended"] for one in told["titles"]] == [one.ended for one in expected]
    texts = [" ".join(trained.words[word] for word in one.words) for one in expected]
    assert [one["text"] for one in told["titles"]] == texts
    assert texts[0] == next(trained.summarize([text], Decoding(beam=beam)))
    assert told["read"] == [{"word": word, "known": word in trained.id_of} for word in text.split()]
    assert told["unread"] == 0


def test_it_searches_as_titles_are_usually_searched_for(run, monkeypatch):
    told = {}

    def spied(*given, **options):
        told.update(options)
        return search(*given, **options)

    monkeypatch.setattr(summarizer, "search", spied)
    Writer(Trained.open(run, "cpu")).write(STRANGE, beam=2)
    usual = Decoding()
    assert (told["longest"], told["penalty"], told["beam"]) == (usual.longest, usual.penalty, 2)


@torch.no_grad()
def test_its_steps_are_those_of_the_model(run, ask):
    """Every hypothesis that lived, from the whole distribution."""
    trained = Trained.open(run, "cpu")
    model, told = trained.model, ask("summarize", text=STRANGE).json()
    article, length = read(trained, STRANGE)
    memory, empty = model.read(model.embed(article), length)
    before = [[]]
    room = 5
    for step, number in zip(told["steps"], range(30), strict=False):
        assert [one["log_prob"] for one in step] == sorted((one["log_prob"] for one in step), reverse=True)
        assert len(step) == room
        now = []
        for one in step:
            assert (one["before"] is None) == (number == 0)
            words = before[one["before"] or 0]
            hidden, attention = model.write(model.embed(torch.tensor([[model.eos, *words]])), empty, memory)
            log_prob = model.head.log_prob(hidden)[0]  # (t + 1, V)
            word = trained.id_of[one["word"]]
            assert one["p"] == pytest.approx(float(log_prob[-1, word].exp()), rel=1e-3)
            so_far = sum(float(log_prob[at, each]) for at, each in enumerate([*words, word]))
            assert one["log_prob"] == pytest.approx(so_far, abs=1e-4)
            assert one["looked"] == pytest.approx(attention[0, -1].tolist(), abs=1e-4)
            assert one["ends"] == (word == model.eos)
            assert model.eos not in words
            now.append([*words, word])
        room -= sum(one["ends"] for one in step)
        before = now
    for title in told["titles"]:
        way = [step[place] for step, place in zip(told["steps"], title["path"], strict=False)]
        assert [one["before"] for one in way] == [None, *title["path"][:-1]]
        assert " ".join(one["word"] for one in way if not one["ends"]) == title["text"]
        assert way[-1]["ends"] == title["ended"]
        assert math.prod(one["p"] for one in way) == pytest.approx(math.exp(title["log_prob"]), rel=1e-3)


def test_raw_sentences_are_split_and_long_ones_cut(serving, tmp_path):
    train(tiny_pairs(tmp_path), tmp_path / "run", small(epochs=1, head="full"))
    with serving(application(tmp_path / "run", "cpu")) as address, httpx.Client(base_url=address) as client:
        told = client.post("/api/summarize", json={"text": "PARIS (AP) - The Bank sold 7 ships."}).json()
        assert [one["word"] for one in told["read"]] == ["the", "bank", "sold", "#", "ships", "."]
        told = client.post("/api/summarize", json={"text": "a " * 2000}).json()
        assert (len(told["read"]), told["unread"]) == (100, 1900)
        assert len(told["steps"][0][0]["looked"]) == 100
        assert client.post("/api/summarize", json={"text": "<b> </b>"}).status_code == 404
    trained = Trained.open(tmp_path / "run", "cpu")
    patient = replace(trained, prepared={**trained.prepared, "longest_article": 10_000})
    assert len(Writer(patient).write("a " * 2000, beam=1).read) == WORDS


BAD = [
    ({"json": {}}, 422),
    ({"json": {"text": " \n"}}, 404),
    ({"json": {"text": "x" * 4001}}, 422),
    ({"json": {"text": "a", "beam": 11}}, 422),
    ({"json": {"text": "a", "longest": 10**9}}, 422),
    ({"content": b'{"text": "' + b"x" * 65_536 + b'"}'}, 413),
]


@pytest.mark.parametrize(("given", "status"), BAD)
def test_bad_requests_are_refused_and_it_goes_on(refused, ask, given, status):
    assert refused("summarize", **given) == status
    assert ask("summarize", text="a").status_code == 200


def test_it_keeps_to_its_description(described, keeps_to_its_description):
    [path] = described.raw_schema["paths"]
    assert path == "/api/summarize"
    assert keeps_to_its_description(path)


def test_the_live_page_follows_a_title(run, url):
    with browsing() as browser:
        visit = Visit(browser, url + "/", color_scheme="dark")
        with visit as page:
            page.fill("#sentence", STRANGE)
            with page.expect_response("**/api/summarize") as answered:
                page.press("#sentence", "Enter")
            told = answered.value.json()
            titles = page.locator("#beam .titles .bar")
            assert eventually(lambda: titles.count() == len(told["titles"]) == 5)
            assert titles.locator(".said").all_inner_texts() == [one["text"] for one in told["titles"]]
            assert titles.locator(".value").all_inner_texts() == [f"{one['log_prob']:.2f}" for one in told["titles"]]
            assert page.locator("#said").text_content() == f"5 titles; the best: {told['titles'][0]['text']}"
            follow(page, told, 0, 0)
            page.locator("#beam .step").nth(0).focus()
            page.keyboard.press("ArrowRight")
            page.keyboard.press("ArrowRight")
            follow(page, told, 0, 2)
            assert page.evaluate("document.activeElement.matches('.step[aria-pressed=true]')")
            titles.nth(3).click()
            follow(page, told, 3, 2)
            page.keyboard.press("Shift+Tab")
            page.keyboard.press("Enter")
            follow(page, told, 2, 2)
            page.locator("#beam .step").last.click()
            follow(page, told, 2, len(told["titles"][2]["path"]) - 1)
            unknown = [one["word"] for one in told["read"] if not one["known"]]
            assert page.locator("#beam .unknown").all_inner_texts() == unknown
            assert {"never-heard-of", "\U0001f600"} <= set(unknown)
            assert page.locator("main script, main img").count() == 0
            for _ in ("dark", "light"):
                assert min(page.evaluate(CONTRASTS).values()) >= 4.5
                page.click("#theme")
            page.set_viewport_size({"width": 360, "height": 740})
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            page.fill("#width", "2")
            page.click("#asking .go")
            assert eventually(lambda: titles.count() == 2)
        assert visit.faults == []
        assert visit.asked() == [f"{url}/api/summarize"] * 2


def follow(page, told, title, step):
    """Fails unless the page shows this step of this title."""
    path = told["titles"][title]["path"]
    way = [told["steps"][at][place] for at, place in enumerate(path)]
    words = ["end" if one["ends"] else one["word"] for one in way]
    shows(page.locator("#beam .kept h4"), f"The beam at step {step + 1} of {len(path)}")
    assert page.locator("#beam .titles .bar[aria-pressed=true]").count() == 1
    assert page.locator("#beam .titles .bar").nth(title).get_attribute("aria-pressed") == "true"
    assert page.locator("#beam .step > :first-child").all_inner_texts() == words
    kept = page.locator("#beam .kept li")
    assert kept.count() == len(told["steps"][step])
    followed = page.locator("#beam .kept .followed")
    shows(followed.locator(".said"), " ".join(words[: step + 1]))
    assert float(followed.locator(".value").inner_text().split("%")[0].lstrip("< ")) == pytest.approx(
        100 * way[step]["p"], abs=0.06
    )
    looked = way[step]["looked"]
    seen = page.locator("#beam .seen")
    assert seen.all_inner_texts() == [one["word"] for one in told["read"]]
    most = looked.index(max(looked))
    assert seen.nth(most).get_attribute("style") == "--share: 1;"
    assert page.locator("#beam .looked").inner_text().startswith(f"most at {told['read'][most]['word']} ")
