"""A real browser without network, driven by Selenium: Debian's chromium and its driver, named by path."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from saligraft.reports.explorer import explorer_data
from saligraft.reports.page import write_page

BROWSER = os.environ.get("SALIGRAFT_BROWSER", "/usr/bin/chromium")
DRIVER = os.environ.get("SALIGRAFT_BROWSER_DRIVER", "/usr/bin/chromedriver")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")
HEIGHT, WIDTH = 33, 40  # no grid divides both
CLASSES = ("disc", "star <b>", "ring")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(service=Service(executable_path=DRIVER), options=options)
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def maps() -> torch.Tensor:
    """Maps (n,5,7) in float32: random ones of every contrast, then a flat, a one-hot, an all-zero and a broken one."""
    stream = torch.Generator().manual_seed(0)
    random = [torch.rand(5, 7, generator=stream) ** power * scale for power, scale in ((1, 1), (4, 300.0), (0.1, 1e-3))]
    special = torch.zeros(4, 5, 7)
    special[0] = 0.37
    special[1, 2, 3] = 2.5
    special[3] = 1.0
    special[3, 1, 1] = float("nan")
    return torch.cat((torch.stack(random), special))


@pytest.fixture(scope="session")
def objects(maps: torch.Tensor) -> torch.Tensor:
    return torch.rand(len(maps), HEIGHT, WIDTH, generator=torch.Generator().manual_seed(1)) < 0.3


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory, maps: torch.Tensor, objects: torch.Tensor) -> Path:
    """The page of `saligraft explore` for these maps, on images of noise."""
    images = torch.rand(len(maps), 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(2))
    data = explorer_data(images, torch.arange(len(maps)) % 3, CLASSES, maps, objects=objects, origin="noise <&>")
    path = tmp_path_factory.mktemp("page") / "explore.html"
    return write_page(path, "explore.html", title="Title", explorer=data, facts={})


@pytest.fixture(scope="session")
def opened(browser: webdriver.Chrome) -> Callable[..., webdriver.Chrome]:
    """Open a page at a width, in light or dark, and wait until its view is drawn."""

    def open_page(path: Path, width: int = 1280, scheme: str = "light") -> webdriver.Chrome:
        for kind in ("browser", "performance"):
            browser.get_log(kind)  # of earlier pages
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
        browser.get(path.as_uri())
        browser.execute_async_script("explorer.ready.then(arguments[0])")
        return browser

    return open_page
