"""`coterie summarize score` on the layouts of Gigaword and DUC-2004, and its answers to mistakes."""

import json

from typer.testing import CliRunner

from coterie_lab.cli import app
from coterie_lab.scoring.bootstrap import interval
from coterie_lab.scoring.rouge import full_length, limited_recall

SUMMARIES = ["police kill gunman in paris", "café talks resume", "oil prices rise again", ""]
REFERENCES = [
    ["police killed a gunman", "talks at the café resumed", "oil price rises", "yen falls"],
    ["gunman dies in paris", "café talks go on", "oil dearer", "the yen down again"],
    ["paris police shoot gunman", "talks resume", "prices of oil up", "weak yen"],
    ["gunman killed by police in paris", "back to talks", "oil rises , again", "yen slips"],
]


def score(*arguments):
    """Runs the command in this process; a mistake is an error of one line, which `main` prints."""
    done = CliRunner().invoke(app, ["summarize", "score", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        assert isinstance(done.exception, ValueError | OSError), done.exception
        assert "\n" not in str(done.exception)
    return done


def layout(path, count):
    """Summaries, and a folder as Gigaword's test part is, or with several references as DUC's."""
    summaries, folder = path / "summaries.txt", path / "task"
    folder.mkdir()
    summaries.write_text("\n".join(SUMMARIES) + "\n", encoding="utf-8")
    (folder / "input.txt").write_text("a longer sentence\n" * len(SUMMARIES))
    for number, lines in enumerate(REFERENCES[:count]):
        (folder / f"task1_ref{number}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return summaries, folder


def shows(done, scores):
    """The table has every mean and interval, in points."""
    for per_item in (scores.rouge1, scores.rouge2, scores.rougeL):
        low, mean, high = interval(per_item)
        assert f"{100 * mean:.2f}" in done.stdout
        assert f"{100 * low:.2f} – {100 * high:.2f}" in done.stdout
    return True


def test_gigaword_is_scored_by_one_command(tmp_path):
    summaries, folder = layout(tmp_path, 1)
    done = score(summaries, "--references", folder, "--json", tmp_path / "new" / "scores.json")
    assert done.exit_code == 0, done.exception
    expected = full_length(SUMMARIES, REFERENCES[0])
    assert shows(done, expected)
    assert "full-length F1" in done.stdout
    found = json.loads((tmp_path / "new" / "scores.json").read_text())
    assert (found["mode"], found["stem"], found["limit"]) == ("f1", False, None)
    assert (found["items"], found["empty"]) == (4, 1)
    assert found["references"] == [str(folder / "task1_ref0.txt")]
    assert found["scores"]["rougeL"] == interval(expected.rougeL)._asdict()
    assert {"rouge-score", "nltk"} <= set(found["environment"]["versions"])
    stemmed = score(summaries, "--reference", folder / "task1_ref0.txt", "--mode", "f1", "--stem")
    assert shows(stemmed, full_length(SUMMARIES, REFERENCES[0], stem=True))
    assert stemmed.stdout != score(summaries, "--references", folder).stdout


def test_duc_is_scored_by_one_command(tmp_path):
    summaries, folder = layout(tmp_path, 4)
    done = score(summaries, "--references", folder, "--json", tmp_path / "scores.json")
    assert done.exit_code == 0, done.exception
    expected = limited_recall(SUMMARIES, list(zip(*REFERENCES, strict=True)))
    assert shows(done, expected)
    assert "75 bytes" in done.stdout
    found = json.loads((tmp_path / "scores.json").read_text())
    assert (found["mode"], found["stem"], found["limit"], len(found["references"])) == ("duc", True, 75, 4)
    assert found["scores"]["rouge1"] == interval(expected.rouge1)._asdict()
    named = [word for number in range(4) for word in ("--reference", folder / f"task1_ref{number}.txt")]
    assert score(summaries, *named).stdout.splitlines()[-6:] == done.stdout.splitlines()[-7:-1]
    single = score(summaries, "--reference", folder / "task1_ref0.txt", "--mode", "duc")
    assert shows(single, limited_recall(SUMMARIES, [[one] for one in REFERENCES[0]]))


def test_the_mark_that_some_editors_put_first_is_not_of_the_summary(tmp_path):
    text = "a " * 36 + "zeta\n"  # just within 75 bytes
    (tmp_path / "plain").write_text(text)
    (tmp_path / "marked").write_text(text, encoding="utf-8-sig")
    for given in ("plain", "marked"):
        assert score(tmp_path / given, "--reference", tmp_path / "plain", "--mode", "duc").stdout.count("100.00 –") == 3


def test_only_line_feeds_part_lines(tmp_path):
    # A next-line character, a line separator or a form feed inside a summary must not shift the lines after it.
    (tmp_path / "summaries").write_bytes("oil\u2028up\x0c\u0085again\r\nyen down".encode())
    (tmp_path / "references").write_bytes(b"oil up again\nyen down\n")
    done = score(tmp_path / "summaries", "--reference", tmp_path / "references")
    assert done.exit_code == 0, done.exception
    assert done.stdout.count("100.00 – 100.00") == 3


def test_mistakes_name_the_file_and_the_line(tmp_path):
    summaries, folder = layout(tmp_path, 1)
    good = folder / "task1_ref0.txt"

    def says(*arguments):
        done = score(*arguments)
        assert done.exit_code == 1
        return str(done.exception)

    def file(name, data):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    short = file("short", b"a\nb\nc\n")
    assert f"{summaries} has 4 lines and {short} has 3: line 4 of {summaries} has no" in says(
        summaries, "--reference", short
    )
    assert f"{short} has 3 lines and {good} has 4: line 4 of {good} has no" in says(short, "--reference", good)
    # Unequal files are refused in duc mode too, whichever of the references it is.
    assert f"{short} has 3" in says(summaries, "--reference", good, "--reference", short)
    latin = file("latin", "a\nb\ncafé\nd\n".encode("latin-1"))
    for arguments in ((latin, "--reference", good), (summaries, "--reference", latin)):
        assert f"{latin}, line 3: byte 4 of the line is no valid UTF-8" in says(*arguments)
    empty = file("empty", b"")
    for arguments in ((empty, "--reference", good), (summaries, "--reference", empty)):
        assert f"{empty} is empty" in says(*arguments)
    assert f"{tmp_path / 'gap'}, line 2 is empty" in says(summaries, "--reference", file("gap", b"a\n \nc\nd\n"))
    huge = file("huge", b"a\n" + b"word " * 3000 + b"\nc\nd\n")
    assert f"{huge}, line 2 has 15,000 bytes" in says(huge, "--reference", good)
    assert "does not exist" in says(tmp_path / "none", "--reference", good)
    assert "is a folder" in says(summaries, "--reference", folder)
    assert "holds no task1_ref0.txt" in says(summaries, "--references", tmp_path)
    assert "is no folder" in says(summaries, "--references", good)
    assert "--reference FILE" in says(summaries)
    assert "--reference FILE" in says(summaries, "--reference", good, "--references", folder)
    assert "takes one reference; got 2" in says(summaries, "--reference", good, "--reference", good, "--mode", "f1")
    assert score(summaries, "--reference", good, "--mode", "f2").exit_code == 2
