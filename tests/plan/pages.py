"""What an HTML page refers to, and a headless browser to look at one."""

import base64
import shutil
from contextlib import contextmanager
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "link", "input"}
REFERRING = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"}


class Page(HTMLParser):
    """The references of a page, its headings, the rows of its tables, and tags left open."""

    def __init__(self, text):
        super().__init__()
        self.references, self.tags, self.open = [], [], []
        self.styles = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in REFERRING]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            raise AssertionError(f"</{tag}> closes nothing")

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.styles += data

    @property
    def outside(self):
        """What a browser would have to load: all that is no data URI, and scripts."""
        found = [x for x in self.references if not x.startswith("data:image/")]
        found += [tag for tag in self.tags if tag in ("script", "link", "iframe", "object")]
        return found + [x for x in ("url(", "@import") if x in self.styles]

    @property
    def pictures(self):
        """The decoded images."""
        data = [x.partition("base64,")[2] for x in self.references if x.startswith("data:image/")]
        return [base64.b64decode(x) for x in data]


def why_no_browser():
    """What a browser test lacks, or None."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium (pip install selenium)"
    missing = [x for x in ("chromium", "chromedriver") if not shutil.which(x)]
    return (
        f"{' and '.join(missing)} (apt-get install chromium chromium-driver)" if missing else None
    )


@contextmanager
def browser(width, height):
    """Chromium without a window, as wide as a screen or a phone. It can load files only."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium")
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        yield driver
    finally:
        driver.quit()
