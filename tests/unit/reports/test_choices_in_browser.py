"""What is unpacked late does not take the place of what was chosen since, and nothing is unpacked twice."""

import re
from pathlib import Path as File
from typing import Any

from openrlhf_rpo.reports.page import Part, document, page
from openrlhf_rpo.reports.run import Run
from tests.unit.reports.in_browser import open_page, texts, wait

SLOW = """
const read = Response.prototype.json;
window.unpacked = 0;
Response.prototype.json = async function () {
  const part = await read.call(this);
  if (JSON.stringify(part).includes("slow")) await new Promise((done) => setTimeout(done, 500));
  window.unpacked++;
  return part;
};
"""
"""Parts of the file that have the word take half a second."""


def listing(file: File, *runs: list[str]) -> File:
    """A page of runs with these questions, each in a part of its own."""
    content = document("t", "", [Run(f"r{number}", "p", "rpo", [], []) for number in range(len(runs))]) | {"part": 1}
    parts = []
    for number, ids in enumerate(runs):
        content["runs"][number]["questions"] = {"total": len(ids), "as_ids": False}
        names = {"ids": ids, "texts": ids, "labels": ids}
        parts.append(Part(f"index-{number}", {"names": names, "events": {"paths": {"q": []}, "visits": {"q": []}}}))
        for i, text in enumerate(ids):
            found = {"question": {"text": text, "prompt": text}, "paths": [], "samples": {}}
            parts.append(Part(f"details-{number}-{i}", [found]))
    file.write_text("".join(page(content, parts)))
    return file


def choose_run(browser: Any, number: int) -> None:
    browser.execute_script(
        "const r = document.getElementById('run'); r.value = arguments[0]; r.dispatchEvent(new Event('change'))", str(number)
    )


def test_a_run_that_is_unpacked_after_another_was_chosen_is_not_shown(browser, tmp_path):
    open_page(browser, listing(tmp_path / "two.html", ["slow"], ["other"]))
    browser.execute_script(SLOW)
    browser.execute_script("document.getElementById('tab-questions').click()")
    choose_run(browser, 1)
    wait(browser, "window.unpacked === 2")
    assert texts(browser, ".row .text") == ["other"]
    choose_run(browser, 0)
    wait(browser, "document.querySelector('.row .text').textContent === 'slow'")
    assert browser.execute_script("return window.unpacked") == 2


def test_a_run_that_cannot_be_unpacked_says_so_and_another_can_be_chosen(browser, tmp_path):
    file = listing(tmp_path / "two.html", ["one"], ["two"])
    file.write_text(re.sub(r'<script type="application/octet-stream" id="index-1">.*?</script>', "", file.read_text()))
    open_page(browser, file, "#questions")
    wait(browser, "document.querySelector('.row')")
    choose_run(browser, 1)
    assert "index-1 is missing from this file" in wait(browser, "document.getElementById('no-questions').textContent")
    assert texts(browser, ".row") == []
    choose_run(browser, 0)
    wait(browser, "document.querySelector('.row')")
    assert browser.execute_script("return document.getElementById('no-questions').hidden")


def test_an_address_unpacks_each_part_once(browser, tmp_path):
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SLOW})
    try:
        open_page(browser, listing(tmp_path / "one.html", ["a", "slow"]), "#questions/0/slow")
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    wait(browser, "document.querySelector('#detail h2')?.textContent === 'Question slow'")
    assert browser.execute_script("return window.unpacked") == 2  # the index and the question


def test_a_question_that_takes_long_does_not_cover_the_next_one(browser, tmp_path):
    open_page(browser, listing(tmp_path / "one.html", ["slow", "other"]), "#questions")
    wait(browser, "document.querySelectorAll('.row').length === 2")
    browser.execute_script(SLOW)
    browser.execute_script(
        "const [slow, other] = document.querySelectorAll('.row'); slow.click(); setTimeout(() => other.click(), 20)"
    )
    wait(browser, "window.unpacked === 2")
    assert texts(browser, "#detail h2") == ["Question other"]
