"""The page in a real browser: what it shows, how it is used, and that nothing in the data can act."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path as File

import pytest
from selenium.webdriver import Keys

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.reports.live import LiveRun, server
from openrlhf_rpo.reports.page import Part, document, page
from openrlhf_rpo.reports.run import Run
from openrlhf_rpo.types import OWN, CacheDecision, Path, StepRecord, Visit
from tests.unit.reports.conftest import ATTACK, STEPS, TEXTS
from tests.unit.reports.in_browser import focus, open_page, press, texts, wait


def test_the_overview_says_it_in_words_and_draws_both_runs(browser, written):
    open_page(browser, written)
    assert texts(browser, ".run h2") == ["ours", "plain"]
    assert any("Saved: 1,500 tokens" in text for text in texts(browser, ".run p"))
    assert texts(browser, ".against h2") == ["Compared with runs without replay"]
    titles = texts(browser, "figcaption span:first-child")
    assert {"Held-out accuracy", "Score and reward in training", "Gradient norm", "Seconds by phase"} <= set(titles)
    accuracy = titles.index("Held-out accuracy")
    legend = browser.execute_script(
        "return [...document.querySelectorAll('figure')[arguments[0]].querySelectorAll('.name')].map((e) => e.textContent)",
        accuracy,
    )
    assert legend == ["ours", "plain"]
    assert "KL" in texts(browser, "#constant")[0]
    drawn = browser.execute_script(
        "const c = document.querySelector('canvas');"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "return d.filter((v, i) => i % 4 === 3 && v > 0).length"
    )
    assert drawn > 500  # something was painted


def test_a_plot_is_read_by_arrow_keys_over_any_axis(browser, written):
    open_page(browser, written)
    focus(browser, "#plots figure:nth-of-type(2) .canvas")
    press(browser, Keys.END)
    said = wait(browser, "document.getElementById('announce').textContent")
    assert said.startswith("step 4: ") and "ours: score 0.9" in said
    browser.execute_script(
        "const a = document.getElementById('axis'); a.value = 'tokens'; a.dispatchEvent(new Event('change'))"
    )
    focus(browser, "#plots figure:nth-of-type(2) .canvas")
    press(browser, Keys.HOME)
    assert "tokens generated 800: plain: score 0.4" in texts(browser, "#announce")[0]


def test_a_legends_button_hides_a_line(browser, written):
    open_page(browser, written)
    browser.execute_script("document.querySelector('.legend button').click()")
    states = browser.execute_script("return [...document.querySelectorAll('.legend button')].map((b) => b.ariaPressed)")
    assert states[0] == "false" and set(states[1:]) == {"true"}


def test_questions_by_keyboard_alone(browser, written):
    open_page(browser, written)
    focus(browser, "#tab-overview")
    press(browser, Keys.ARROW_RIGHT)
    wait(browser, "document.querySelectorAll('.row').length === 3")
    assert browser.execute_script("return document.activeElement.id") == "tab-questions"
    focus(browser, "#list")
    press(browser, Keys.ARROW_DOWN)
    wait(browser, "document.getElementById('path-text')")
    assert browser.execute_script("return document.getElementById('list').getAttribute('aria-activedescendant')") == "row-0"
    press(browser, Keys.ENTER)
    wait(browser, "document.activeElement.id === 'detail'")
    focus(browser, "tr.choice[aria-selected=true]")
    press(browser, Keys.ARROW_UP)
    assert browser.execute_script("return document.activeElement.cells[0].textContent") == str(STEPS - 1)
    focus(browser, "#list")
    press(browser, Keys.END)
    wait(browser, "document.querySelector('.row[aria-selected=true]').id === 'row-2'")
    press(browser, "/", "b", "o", "l", "d")
    wait(browser, "document.querySelectorAll('.row').length === 1")
    assert texts(browser, ".row .text") == [TEXTS[1]]


def test_find_filter_and_sort(browser, written):
    open_page(browser, written, "#questions")
    wait(browser, "document.querySelectorAll('.row').length === 3")

    def choose(control: str, value: str) -> list[str]:
        browser.execute_script(
            "const c = document.getElementById(arguments[0]); c.value = arguments[1]; c.dispatchEvent(new Event('input'))",
            control,
            value,
        )
        return texts(browser, ".row .text")

    assert choose("filter", "mixed") == [TEXTS[0]]
    assert choose("filter", "bare") == [TEXTS[1]]
    assert choose("filter", "none") == [TEXTS[2]]
    assert len(choose("filter", "all")) == 3
    assert choose("sort", "versions")[0] == TEXTS[0]
    assert choose("sort", "written")[-1] == TEXTS[2]  # without a path comes last
    browser.execute_script("document.getElementById('direction').click()")
    assert texts(browser, ".row .text")[-1] == TEXTS[2]
    assert choose("find", "q2") == [TEXTS[2]]


def test_a_lineage_has_its_kept_and_new_parts_and_whole_texts(browser, written):
    open_page(browser, written, "#questions/0/q0")
    wait(browser, "document.getElementById('path-text')")
    assert len(texts(browser, "tr.choice")) == STEPS + 1
    assert texts(browser, "#path-text .part") == ["initial ", f" step 4 {ATTACK} 🧮", f" step 3 {ATTACK} 🧮"]
    labels = browser.execute_script("return [...document.querySelectorAll('#path-text .part')].map((e) => e.dataset.label)")
    assert labels == ["kept, initial", "new, step 4", "dropped from step 3"]
    browser.execute_script("document.querySelector('tr.choice').click()")
    assert texts(browser, "#path-text .part") == [f"initial 0 {TEXTS[0]}"]


def test_a_head_from_a_wrong_path_is_not_called_pruned(browser, begin_run, encode, tmp_path):
    """Question 0 continues a wrong path; the path of question 1 loses its parent to pruning."""
    url = begin_run(tmp_path)

    def commit(cache: PathCache, step: int, question: str, made: Path, *others: Path) -> None:
        visit = Visit(question, step, 4, made.prefix_length, 10, 4, 2, "best")
        cache.commit_step(StepRecord(step, 0, step, {}), [CacheDecision(made, visit, others)])

    def child(question: str, step: int, parent: Path | None = None, slot: int = OWN) -> Path:
        head = tuple(parent.token_ids[:4]) if parent else ()
        ids = head + encode(f" step {step}")
        return Path(question, ids, None, "stop", 1.0, 1.0, len(head), step, None, parent and parent.path_id, slot)

    with PathCache.open(url) as cache:
        commit(cache, 1, "q0", child("q0", 1), child("q0", 1, slot=1))
        commit(cache, 2, "q0", child("q0", 2, cache.slots(["q0"])["q0"][1]))
        commit(cache, 3, "q1", child("q1", 3, cache.paths(["q1"])["q1"]))
        cache.prune(3)
    file = tmp_path / "report.html"
    assert main(["report", str(tmp_path), "--out", str(file)]) == 0
    for question, label, note in (
        ("q0", "kept, from another slot", "a path in another slot, such as a wrong or an imported one."),
        ("q1", "kept, pruned", "a path that was pruned."),
    ):
        open_page(browser, file, f"#questions/0/{question}")
        wait(browser, "document.getElementById('path-text')")
        labels = browser.execute_script(
            "return [...document.querySelectorAll('#path-text .part')].map((e) => e.dataset.label)"
        )
        assert labels[0] == label and f"Its prefix came from {note}" in texts(browser, "#detail .hint")


def test_a_visit_says_which_path_it_continued_and_what_comes_next(browser, written):
    open_page(browser, written, "#questions/0/q1")
    wait(browser, "document.querySelectorAll('td.words').length > 0")
    assert texts(browser, "td.words")[-2 * STEPS :][1::2] == [
        "reset",
        "reset, from the path in slot 1",
        "reset",
        "reset, next starts bare",
    ]


def test_samples_that_were_kept_are_shown_with_score_and_reward(browser, written):
    open_page(browser, written, "#questions/0/q0")
    wait(browser, "document.querySelectorAll('details.sample').length === 8")
    assert texts(browser, "details.sample summary")[0] == "1 · score 0 · reward 0.25 · 0 + 2 tokens · hit the limit"
    browser.execute_script("document.querySelector('details.sample').open = true")
    wait(browser, "document.querySelector('details.sample .text-block')")
    assert texts(browser, "details.sample .text-block") == [f"sample {ATTACK}"]


def test_what_a_model_wrote_stays_text(browser, written):
    """Every text of the run is an attempt to run a script, or to end the element that it is in."""
    scripts = len(re.findall("<script", written.read_text()))
    open_page(browser, written)
    title = browser.title
    for question in ("q0", "q1", "q2"):
        open_page(browser, written, f"#questions/0/{question}")
        wait(browser, "document.querySelector('#detail h2')")
    assert browser.title == title and "owned" not in title
    assert browser.execute_script("return document.scripts.length") == scripts
    assert browser.execute_script("return document.querySelectorAll('img, b, iframe').length") == 0


def test_a_script_that_got_in_all_the_same_is_not_run(browser, written, tmp_path):
    """The policy is the second line of defence."""
    broken = tmp_path / "broken.html"
    broken.write_text(written.read_text().replace("<header>", "<script>document.title = 'owned'</script><header>"))
    open_page(browser, broken)
    assert browser.title != "owned"
    complaints = [entry["message"] for entry in browser.get_log("browser")]
    assert complaints and all("Content Security Policy" in message for message in complaints)


def test_nothing_is_fetched(browser, written):
    open_page(browser, written, "#questions/0/q0")
    wait(browser, "document.getElementById('path-text')")
    assert browser.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)") == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_everything_within_its_width(browser, written, dark):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    open_page(browser, written)
    width = "return document.documentElement.scrollWidth"
    assert browser.execute_script(width) == 360
    open_page(browser, written, "#questions")
    wait(browser, "document.querySelectorAll('.row').length === 3")
    browser.execute_script("document.querySelector('.row').click()")
    wait(browser, "document.getElementById('path-text')?.clientHeight")
    assert browser.execute_script(width) == 360
    assert browser.execute_script("return document.getElementById('list').clientHeight") == 0  # the question has the screen
    browser.execute_script("document.querySelector('.back').click()")
    assert browser.execute_script("return document.getElementById('list').clientHeight") > 0
    ground = browser.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) is dark


def test_ten_thousand_questions_need_few_elements(browser, tmp_path):
    """The list holds the rows that can be seen, wherever it is scrolled to."""
    n = 10_000
    names = {"ids": [f"q{i:05d}" for i in range(n)], "texts": [f"question {i}" for i in range(n)], "labels": [""] * n}
    events = {
        "paths": {"q": list(range(n)), "step": [0] * n, "tokens": list(range(n)), "score": [1] * n, "reward": [1] * n},
        "visits": {"q": []},
    }
    content = document("many", "", [Run("r", "p", "rpo", [], [])])
    content["runs"][0]["questions"] = {"total": n, "as_ids": False}
    file = tmp_path / "many.html"
    file.write_text("".join(page(content, [Part("index-0", {"names": names, "events": events})])))
    open_page(browser, file, "#questions")
    wait(browser, "document.querySelectorAll('.row').length")
    browser.execute_script(
        "const s = document.getElementById('sort'); s.value = 'tokens'; s.dispatchEvent(new Event('input'))"
    )
    browser.execute_script("document.getElementById('list').scrollTop = 58 * 5000")
    wait(browser, "[...document.querySelectorAll('.row .text')].some((e) => e.textContent === 'question 4999')")
    assert len(texts(browser, ".row")) < 60


@pytest.fixture
def live(begin_run: Callable, tmp_path: File, tokenizer_folder: File):
    """``watch`` without its command line: its address, and the folder of a run that has not begun."""
    from openrlhf_rpo.reports.text import decoder
    from openrlhf_rpo.reports.watch import empty_document

    folder = tmp_path / "checkpoints"
    run = LiveRun("r", f"sqlite:///{folder}/rpo_cache.db", lambda cache: (decoder(cache, None)[0], False), lambda *_: {})
    serving = server(run, empty_document("r", str(folder), 0.2), 0)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}", folder
    serving.shutdown()
    serving.server_close()


def test_a_live_page_follows_a_run_from_before_its_beginning(browser, live, begin_run, take_step):
    address, folder = live
    browser.get(address)
    assert "Waiting for the run" in wait(browser, "document.getElementById('state').textContent")
    url = begin_run(folder)
    wait(browser, "document.getElementById('state').textContent.startsWith('no step yet')")
    for step in (1, 2, 3):
        take_step(url, step)
    wait(browser, "document.getElementById('state').textContent.startsWith('step 3 of 6')")
    wait(browser, "document.querySelectorAll('figure').length > 5")
    browser.execute_script("document.querySelector('figure').dataset.kept = 1")
    browser.execute_script("document.getElementById('tab-questions').click()")
    wait(browser, "document.querySelectorAll('.row').length === 3")
    browser.execute_script("document.querySelector('.row').click()")
    wait(browser, "document.querySelectorAll('tr.choice').length === 4")
    take_step(url, 4)
    wait(browser, "document.querySelector('.row .figures').textContent.includes('from step 4')")
    assert texts(browser, "figure[data-kept] .value") == ["0.7"]  # the plot is the same one, with its last evaluation
    with PathCache.open(url) as cache:
        cache.rollback(1)
    wait(browser, "document.getElementById('state').textContent.startsWith('step 1 of 6')")
    wait(browser, "document.querySelector('.row .figures').textContent.includes('from step 1')")
    browser.get("about:blank")  # before the server ends


def test_a_live_plot_keeps_its_zoom(browser, live, begin_run, take_step):
    address, folder = live
    browser.get(address)
    browser.execute_script(
        "const Real = uPlot; window.charts = [];"
        "const made = function (...words) { const chart = new Real(...words); charts.push(chart); return chart; };"
        "window.uPlot = Object.assign(made, Real);"
    )
    url = begin_run(folder)
    for step in (1, 2, 3):
        take_step(url, step)
    wait(browser, "document.getElementById('state').textContent.startsWith('step 3 of 6')")
    ranges = "return charts.slice(-2).map(({ scales: { x } }) => [x.min, x.max])"
    wait(browser, "charts.length > 5 && charts[charts.length - 1].data[0].length === 3")
    assert browser.execute_script(ranges) == [[1, 3], [1, 3]]
    browser.execute_script("window.known = charts.length; charts[known - 1].setScale('x', { min: 1.5, max: 2.5 })")
    take_step(url, 4)
    wait(browser, "charts[known - 1].data[0].length === 4")
    assert browser.execute_script(ranges) == [[1, 4], [1.5, 2.5]]  # the other one follows the run
    assert browser.execute_script("return charts.length === known")
    browser.get("about:blank")  # before the server ends


def test_a_plain_run_alone_says_that_it_has_no_questions(browser, plain_folder, tmp_path):
    file = tmp_path / "plain.html"
    assert main(["report", str(plain_folder), "--out", str(file)]) == 0
    open_page(browser, file, "#questions")
    said = wait(
        browser, "!document.getElementById('no-questions').hidden && document.getElementById('no-questions').textContent"
    )
    assert "None of these runs has a path cache" in said
    assert browser.execute_script("return document.getElementById('browser').hidden")


def test_the_documents_of_the_page_are_json(written):
    found = re.findall(r'<script type="application/json" id="document">(.*?)</script>', written.read_text())
    assert len(found) == 1 and len(json.loads(found[0])["runs"]) == 2


def test_a_file_that_was_cut_short_says_so(browser, written, tmp_path):
    file = tmp_path / "short.html"
    file.write_text(re.sub(r'<script type="application/octet-stream".*?</script>', "", written.read_text()))
    open_page(browser, file, "#questions")
    wait(browser, "document.getElementById('no-questions').textContent.includes('cut short or edited')")
