"""The page in a real browser: nothing is loaded, no word is run, and what one looks for is found."""

import pytest

from coterie_lab.explorer.collect import collect
from coterie_lab.explorer.page import build
from coterie_lab.tasks.language.clusters import company
from coterie_lab.tasks.language.trained import Trained
from coterie_lab.training import checkpoint
from coterie_lab.training.moves import partitions, read_moves, until
from coterie_lab.training.run import Run
from tests.browser import Visit, browsing, counts, eventually, shows
from tests.hostile import LONG, SCRIPT, WORDS, hostile_run


@pytest.fixture(scope="module")
def browser():
    with browsing() as found:
        yield found


@pytest.fixture(scope="module")
def url(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(build(collect([run])), encoding="utf-8")
    return path.as_uri()


def find(page, text):
    page.fill("#search", text)
    return page.locator("#found [role=option]")


def test_it_opens_from_disk_and_asks_for_nothing(browser, url, run):
    visit = Visit(browser, url)
    with visit as page:
        trained = Trained.open(run, "cpu")
        assert page.locator(".tile").count() == int((trained.organized.partition.sizes > 0).sum())
        assert page.locator("#headline").inner_text().startswith(run.name)
        assert page.locator("#charts canvas").count() >= 2
        page.get_by_text("as numbers").click()
        counts(page.locator("#charts table"), 2)
        assert page.locator("#live").is_hidden()
    assert visit.asked() == []
    assert visit.faults == []


def test_a_word_is_found_with_its_company(browser, url, run):
    trained = Trained.open(run, "cpu")
    word = trained.words[23]
    expected = company(trained, word, length=8)
    visit = Visit(browser, url)
    with visit as page:
        found = find(page, word[:3])
        assert 0 < found.count() <= 12
        assert all(word[:3] in text for text in found.locator("> .word").all_inner_texts())
        find(page, word).first.click()
        shows(page.locator("#detail h3"), word)
        page.wait_for_selector("#detail .way-of li")
        chips = page.locator("#detail > .chips").first.locator(".chip").all_inner_texts()
        assert chips == expected.neighbours
        assert page.locator("#detail ul .cluster").count() == len(expected.next_best) == 3
        page.locator("#detail .cluster").first.click()
        shows(page.locator("#detail .kind"), f"cluster {expected.cluster.number}")
        page.go_back()
        shows(page.locator("#detail h3"), word)
        assert find(page, "no such letters").count() == 0
        shows(page.locator("#found"), "no word contains this")
    assert visit.faults == []


def test_a_word_that_stands_alone_is_shown_as_such(browser, url, run):
    trained = Trained.open(run, "cpu")
    alone = [trained.words[word] for word in trained.organized.partition.own.tolist()]
    word = next(word for word in alone if word.isalpha())
    visit = Visit(browser, url)
    with visit as page:
        assert page.locator("#random").is_hidden()
        find(page, word).first.click()
        shows(page.locator("#detail h3"), word)
        assert page.locator("#detail > .chips").count() == 0
        assert page.locator("#detail ul .cluster").count() == 0
        counts(page.locator(".tile.chosen"), 0)
        page.locator("#detail .cluster").first.click()
        shows(page.locator("#detail h3"), "Words that stand alone")
        shown = page.locator("#detail .chip").all_inner_texts()
        assert sorted(shown) == sorted(alone)
        page.locator("#detail .close").click()
        page.get_by_text("8 frequent words that stand alone").click()
        shows(page.locator("#detail h3"), "Words that stand alone")
    assert visit.faults == []


def test_random_clusters_are_called_so(browser, tmp_path):
    run = hostile_run(tmp_path, head_options={"reorganize_every": 10**6})
    path = tmp_path / "page.html"
    path.write_text(build(collect([run])), encoding="utf-8")
    with Visit(browser, path.as_uri()) as page:
        shows(page.locator("#random strong"), "These clusters are random:")


def moves_of(run):
    """The moves that led to the model that was kept."""
    return until(read_moves(Run(run).moves), checkpoint.load(Run(run).best)["evaluation"]["step"])


def past(run, cluster):
    """Update, words that came and words that left, latest first."""
    found = [
        (move.step, int((move.clusters == cluster).sum()), int((before[move.words] == cluster).sum()))
        for move, before in partitions(moves_of(run))
    ]
    return found[::-1]


def test_settled_and_restless_words_are_told_apart(browser, url, run):
    trained, moves = Trained.open(run, "cpu"), moves_of(run)
    moved, last = ([0] * len(trained.words) for _ in range(2))
    for move in moves[1:]:
        for word in move.words.tolist():
            moved[word], last[word] = moved[word] + 1, move.step
    with Visit(browser, url) as page:
        page.wait_for_selector("#tables table")
        settled, restless = (table.locator("tbody tr").all() for table in page.locator("#tables table").all())
        assert [int(row.locator("td").first.inner_text()) for row in restless] == sorted(moved, reverse=True)[:20]
        since = [row.locator("td").first.inner_text() for row in settled]
        alone = trained.organized.partition.own.tolist()  # they could not move
        able = [step for word, step in enumerate(last) if word not in alone]
        assert [0 if text == "the start" else int(text) for text in since] == sorted(able)[:20]
        for rows, record in ((restless, moved), (settled, last)):
            shown = [(row.locator(".chip").inner_text(), row.locator("td").first.inner_text()) for row in rows]
            known = {word: 0 if told == "the start" else int(told) for word, told in shown if word in trained.id_of}
            assert len(known) > 15
            assert all(record[trained.id_of[word]] == told for word, told in known.items())
        restless[0].locator(".chip").click()
        word = trained.id_of[restless[0].locator(".chip").inner_text()]
        shows(page.locator("#detail .past h4"), f"Its way: {moved[word]} move{'s' if moved[word] > 1 else ''}")


def test_a_cluster_opens_with_its_words_and_its_past(browser, url, run):
    trained = Trained.open(run, "cpu")
    cluster = int(trained.organized.partition.sizes.argmax())
    members = [trained.words[word] for word in trained.organized.partition.members(cluster).tolist()]
    visit = Visit(browser, url)
    with visit as page:
        page.locator(f".tile[data-cluster='{cluster}']").click()
        shows(page.locator("#detail .kind"), f"cluster {cluster}")
        if page.locator("#detail > .more").count():
            page.locator("#detail > .more").click()
        shown = page.locator("#detail > .chips .chip").all_inner_texts()
        assert sorted(text for text in shown if "…" not in text) == sorted(word for word in members if len(word) <= 40)
        page.wait_for_selector("#detail .events li")
        told = page.locator("#detail .events > li").all()
        assert page.locator("#detail .bars > span").count() == len(moves_of(run)) - 1
        expected = [event for event in past(run, cluster) if event[1] or event[2]]
        assert len(told) == min(6, len(expected)) > 0
        for event, (step, came, left) in zip(told, expected, strict=False):
            ways = [f"{n} {way}" for n, way in ((came, "came"), (left, "left")) if n]
            assert event.locator(".when").inner_text() == f"update {step}"
            assert event.locator(".way").all_inner_texts() == ways
        assert page.locator(".tile.chosen").get_attribute("aria-pressed") == "true"
        page.locator("#detail .close").click()
        counts(page.locator(".tile.chosen"), 0)
    assert visit.faults == []


def test_the_areas_are_those_of_the_measure(browser, url, run):
    trained = Trained.open(run, "cpu")
    sizes, own = trained.organized.partition.sizes, trained.organized.partition.own
    in_clusters = trained.counts.sum() - trained.counts[own].sum()
    with Visit(browser, url, reduced_motion="reduce") as page:
        for measure in ("words", "mass"):
            page.check(f"input[value={measure}]")
            area = {
                int(tile.get_attribute("data-cluster")): tile.bounding_box()["width"] * tile.bounding_box()["height"]
                for tile in page.locator(".tile").all()
            }
            for number, found in area.items():
                members = trained.organized.partition.members(number)
                share = (
                    sizes[number] / sizes.sum() if measure == "words" else trained.counts[members].sum() / in_clusters
                )
                assert found / sum(area.values()) == pytest.approx(float(share), rel=0.02, abs=1e-5)


def test_strange_words_are_shown_and_never_run(browser, url):
    visit = Visit(browser, url)
    with visit as page:
        for word in WORDS:
            if word != LONG:
                find(page, word).first.click()
                shows(page.locator("#detail h3"), word)
                assert page.locator("#detail h3 bdi").count() == 1
        find(page, "xxxx").first.click()
        shows(page.locator("#detail h3"), "x" * 1999 + "…")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("#detail script, main img, main b").count() == 0
        assert page.evaluate("Object.keys({}.__proto__).length") == 0
        assert page.locator("#headline b").count() == 0
    assert visit.faults == []
    assert SCRIPT in WORDS


def test_a_script_that_was_put_in_does_not_run(browser, url):
    # The policy holds even if a word ever became markup.
    visit = Visit(browser, url)
    with visit as page:
        page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\">');"
            "const s = document.createElement('script'); s.textContent = 'window.ran = 2'; document.body.append(s);"
        )
        page.wait_for_timeout(100)
        assert page.evaluate("window.ran") is None
        assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert any("Content Security Policy" in fault for fault in visit.faults)


def test_the_keyboard_is_enough(browser, url):
    visit = Visit(browser, url)
    with visit as page:
        page.focus("#search")
        page.keyboard.type("alert(1)")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        shows(page.locator("#detail h3"), SCRIPT)
        page.focus(".tile[tabindex='0']")
        assert page.locator(".tile[tabindex='0']").count() == 1
        seen = set()
        for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowUp"):
            page.keyboard.press(key)
            seen.add(page.evaluate("document.activeElement.dataset.cluster"))
        assert len(seen) > 2
        page.keyboard.press("Enter")
        here = page.evaluate("document.activeElement.dataset.cluster")
        shows(page.locator("#detail .kind"), f"cluster {here}")
        unnamed = page.evaluate(
            """Array.from(document.querySelectorAll("main button, main input, main select, main textarea"))
               .filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).length"""
        )
        assert unnamed == 0
        assert page.locator("#said").text_content().startswith("cluster ")
    assert visit.faults == []


CONTRASTS = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colours, ink, opacity) => {
    context.clearRect(0, 0, 1, 1);
    const paint = (colour) => { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); };
    colours.forEach(paint);
    context.globalAlpha = opacity ?? 1;
    if (ink) paint(ink);
    context.globalAlpha = 1;
    const [r, g, b] = Array.from(context.getImageData(0, 0, 1, 1).data, (byte) => byte / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = {};
  for (const element of document.querySelectorAll("main *, header *")) {
    const text = Array.from(element.childNodes).some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!text || !element.checkVisibility()) continue;
    const layers = [];
    let opacity = 1;
    for (let e = element; e; e = e.parentElement) {
      layers.unshift(getComputedStyle(e).backgroundColor);
      opacity *= getComputedStyle(e).opacity;
    }
    const behind = light(layers);
    const ink = light(layers, getComputedStyle(element).color, opacity);
    const ratio = (Math.max(ink, behind) + 0.05) / (Math.min(ink, behind) + 0.05);
    const key = element.tagName + "." + element.className;
    found[key] = Math.min(found[key] ?? 99, ratio);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(browser, url, scheme):
    with Visit(browser, url, color_scheme=scheme) as page:
        page.locator(".tile").first.click()
        page.wait_for_selector("#detail .events li")
        found = page.evaluate(CONTRASTS)
        assert len(found) > 15
        assert min(found.values()) >= 4.5, sorted(found.items(), key=lambda item: item[1])[:5]
        page.click("#theme")
        page.wait_for_timeout(50)
        assert page.evaluate("document.documentElement.dataset.theme") == ("dark" if scheme == "light" else "light")
        assert min(page.evaluate(CONTRASTS).values()) >= 4.5


def test_a_phone_needs_no_sideways_scrolling(browser, url):
    visit = Visit(browser, url, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    with visit as page:
        page.locator(".tile").first.tap()
        page.wait_for_selector("#detail .events li")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        box = page.locator("#map").bounding_box()
        assert box["height"] > box["width"]
    assert visit.faults == []


def test_several_runs_are_compared_and_each_is_explored(browser, run, tmp_path):
    other = hostile_run(tmp_path, "full", head="full", head_options={})
    again = hostile_run(tmp_path / "b", "third")
    path = tmp_path / "page.html"
    path.write_text(build(collect([other, run, again])), encoding="utf-8")
    visit = Visit(browser, path.as_uri())
    with visit as page:
        names = page.locator("#headline tbody th").all_inner_texts()
        assert names == ["full", run.name, "third"]
        assert page.locator("#which option").all_inner_texts() == [run.name, "third"]
        page.select_option("#which select", label="third")
        page.wait_for_selector("#map[data-run='2']")
        page.locator(".tile").first.click()
        page.wait_for_selector(".tile.chosen")
        assert "run=2&cluster=" in page.url
        page.locator("#detail .close").click()
        counts(page.locator(".tile.chosen"), 0)
        assert page.url.endswith("#run=2")
        for _ in range(3):
            page.go_back()
        page.wait_for_selector("#map[data-run='1']")
        assert eventually(lambda: page.locator("#which select").input_value() == "1")
    assert visit.faults == []
    assert visit.asked() == []
