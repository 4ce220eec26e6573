"""What the tests do in a browser."""

from pathlib import Path as File
from typing import Any

from selenium.webdriver import ActionChains


def wait(browser: Any, condition: str) -> Any:
    """The value of a JavaScript expression as soon as it is truthy."""
    look = "const done = arguments[0]; const look = () => { const it = (CONDITION); it ? done(it) : setTimeout(look, 10) };"
    return browser.execute_async_script(look.replace("CONDITION", condition) + "look();")


def open_page(browser: Any, file: File, place: str = "") -> None:
    browser.get("about:blank")
    browser.get(f"file://{file}{place}")
    wait(browser, "document.documentElement.dataset.ready")


def texts(browser: Any, selector: str) -> list[str]:
    return browser.execute_script("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)


def press(browser: Any, *keys: str) -> None:
    for key in keys:
        ActionChains(browser).send_keys(key).perform()


def focus(browser: Any, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).focus()", selector)
