"""The view in a browser: nothing is loaded, the keyboard works, and it fits narrow screens in light and dark."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

NOW = "return explorer.show()"


def value_of(browser: webdriver.Chrome, name: str) -> str:
    return browser.find_element(By.ID, f"x-{name}-value").text


def test_nothing_is_requested_and_nothing_goes_wrong(opened: Any, page: Path) -> None:
    browser = opened(page)
    browser.execute_script("explorer.show({ source: 3, destination: 6 }); explorer.show({ source: 5 })")
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requested = [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in requested
    own = ("data:", "chrome:", "chrome-untrusted:")  # the browser's first tab may still be loading
    assert [url for url in requested if url != page.as_uri() and not url.startswith(own)] == []
    assert browser.get_log("browser") == []


def test_sliders_move_by_arrow_keys_and_shortcuts_redraw_and_swap(opened: Any, page: Path) -> None:
    browser = opened(page)
    for name, before, after in (("temperature", "0.2", "0.3"), ("threshold", "1.00", "1.05"), ("grid", "8", "10")):
        slider = browser.find_element(By.ID, f"x-{name}")
        assert value_of(browser, name) == before
        slider.send_keys(Keys.ARROW_RIGHT)
        assert value_of(browser, name) == slider.get_attribute("aria-valuetext") == after
    settings = browser.execute_script(NOW)["settings"]
    assert (settings["temperature"], settings["threshold"], settings["grid"]) == (0.3, 1.05, 10)
    draws = browser.execute_script(NOW)["draws"]
    browser.find_element(By.TAG_NAME, "body").send_keys("r")
    redrawn = browser.execute_script(NOW)
    assert redrawn["draws"] != draws
    assert redrawn["settings"]["seed"] == 1
    browser.find_element(By.TAG_NAME, "body").send_keys("s")
    swapped = browser.execute_script(NOW)["settings"]
    assert (swapped["source"], swapped["destination"]) == (1, 0)
    browser.find_element(By.CSS_SELECTOR, "#x-source input:checked").send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script(NOW)["settings"]["source"] == 2
    browser.find_element(By.ID, "x-normalize").send_keys("max")
    assert browser.execute_script(NOW)["settings"]["normalize"] == "max"
    browser.find_element(By.ID, "x-reset").send_keys(Keys.ENTER)
    assert browser.execute_script(NOW)["settings"]["seed"] == 0


def test_choosing_the_other_sides_image_swaps_the_two(opened: Any, page: Path) -> None:
    browser = opened(page)
    settings = browser.execute_script("return explorer.show({ source: 1 })")["settings"]
    assert (settings["source"], settings["destination"]) == (1, 0)
    settings = browser.execute_script("return explorer.show({ destination: 1 })")["settings"]
    assert (settings["source"], settings["destination"]) == (0, 1)


def test_every_control_has_a_name_and_every_picture_a_description(opened: Any, page: Path) -> None:
    browser = opened(page)
    for control in browser.find_elements(By.CSS_SELECTOR, "#explorer input, #explorer select, #explorer button"):
        assert control.accessible_name, control.get_attribute("outerHTML")
    for canvas in browser.find_elements(By.CSS_SELECTOR, "#explorer canvas"):
        assert ": " in canvas.get_attribute("aria-label")


def test_the_words_are_the_numbers(opened: Any, page: Path) -> None:
    browser = opened(page)
    result = browser.execute_script("return explorer.show({ source: 0, destination: 1, temperature: 0.5 })")
    labels = browser.find_element(By.ID, "x-labels").text
    for weight in (result["area"], result["calibrated"], result["visible"]["weight"]):
        share = int(100 * weight + 0.5)
        assert re.search(rf"disc {share} %\s+star <b> {100 - share} %", labels.replace("\u00a0", " "))
    assert f"λ = {result['area']:.4f}" in labels
    cells = sum(result["salient"]["values"]), sum(result["mask"]["values"])
    sentence = browser.find_element(By.ID, "x-sentence").text
    assert sentence.startswith(f"Of 64 cells, {cells[0]} are salient and {cells[1]} are grafted: the disc covers ")
    browser.execute_script("explorer.show({ source: 0, destination: 3 })")  # two discs
    assert browser.find_element(By.ID, "x-sentence").text.endswith(" of the pixels, and the whole label is disc.")
    browser.execute_script("explorer.show({ source: 4, grid: 3, temperature: 0.05, probability: 1 })")
    assert browser.find_element(By.ID, "x-sentence").text.startswith("Of 9 cells, 1 is salient and 1 is grafted: ")


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_does_not_overflow(opened: Any, page: Path, width: int) -> None:
    browser = opened(page, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    elements = "return [...document.querySelectorAll('main *')]"
    outside = f"{elements}.filter((one) => one.getBoundingClientRect().right > innerWidth + 1)"
    assert browser.execute_script(f"{outside}.map((one) => one.outerHTML.slice(0, 80))") == []


def test_steps_are_two_a_row_on_a_telephone(opened: Any, page: Path) -> None:
    browser = opened(page, 390)
    steps = browser.find_elements(By.CSS_SELECTOR, "#x-panels canvas")
    assert len({step.location["x"] for step in steps}) == 2
    assert all(step.size["width"] > 150 for step in steps)


def test_the_result_stays_in_view_while_a_slider_moves(opened: Any, page: Path) -> None:
    browser = opened(page, 390)
    box_of = "const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.top, box.bottom]"
    for name in ("temperature", "threshold", "probability", "grid"):
        for place in ("center", "end"):
            slider = browser.find_element(By.ID, f"x-{name}")
            browser.execute_script("arguments[0].scrollIntoView({ block: arguments[1] })", slider, place)
            for part in ("#x-grafted canvas", "#x-labels"):
                top, bottom = browser.execute_script(box_of, part)
                assert 0 <= top < bottom <= browser.execute_script(box_of, f"#x-{name}")[0], (name, place, part)


def test_light_and_dark_follow_the_system_and_the_button(opened: Any, page: Path) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    light, dark = (opened(page, scheme=scheme).execute_script(paper) for scheme in ("light", "dark"))
    assert light != dark
    browser = opened(page, scheme="dark")
    button = browser.find_element(By.CSS_SELECTOR, ".theme")
    for expected in (light, dark, light):
        button.click()
        assert browser.execute_script(paper) == expected


@pytest.mark.parametrize(("width", "columns"), [(1280, 4), (700, 4), (390, 2)])
def test_the_panels_fill_their_rows(opened: Any, page: Path, width: int, columns: int) -> None:
    figures = opened(page, width=width).find_elements(By.CSS_SELECTOR, "#x-panels figure, #x-grafted figure")
    inside = [figure for figure in figures if figure.is_displayed()]
    if width <= 900:  # there the grafted image stays in view above the settings
        inside = [figure for figure in inside if figure.get_attribute("data-title") != "Grafted"]
    assert len(inside) % columns == 0


def test_drawn_cells_have_one_colour(opened: Any, page: Path) -> None:
    browser = opened(page)
    colours = browser.execute_script("""
        const canvas = document.querySelector("[data-title='Draws P'] canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const warm = new Set();
        for (let i = 0; i < data.length; i += 4)
          if (data[i] > 150 && data[i + 2] < 160) warm.add(data.slice(i, i + 3).join());
        return [...warm];
    """)
    assert 1 <= len(colours) <= 3  # itself, and below one or two of the lines between cells
