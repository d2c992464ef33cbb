#!/usr/bin/env python3
"""What the page keeps while its figures change, and what it says when the gateway does not answer.

    pip install playwright            # its driver; the browser is Debian's: apt-get install chromium
    cargo build
    python3 tests/page/behaviour.py target/debug/tokenway [--shots DIR]

Before a `tokenway demo`: a selection, the figures under the pointer, filters and the open request survive refreshes, and the address
alone brings them back; a gateway that stands still is told as such within ten seconds, and one that was restarted is shown again
without a reload. A minute; not in CI.
"""

import argparse
import asyncio
import pathlib
import re
import signal
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

from playwright.async_api import async_playwright
from ports import free_ports


class Demo:
    """A demo at ports of its own, which a restart keeps."""

    def __init__(self, binary):
        data, self.admin = free_ports(2)
        self.command = [binary, "demo", "--listen", f"127.0.0.1:{data}", "--admin-listen", f"127.0.0.1:{self.admin}"]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self):
        self.process.kill()
        self.process.wait()


async def keeps(page, problems):
    """Selection, pointer and address over two refreshes of every part."""
    await page.evaluate("getSelection().selectAllChildren(document.querySelector('#replica-rows td'))")
    selected = await page.evaluate("getSelection().toString()")
    chart = page.locator("figure").nth(1)
    box = await chart.locator("svg").bounding_box()
    await page.mouse.move(box["x"] + box["width"] * 0.97, box["y"] + 60)
    pointed = await chart.locator(".at").inner_text()
    await asyncio.sleep(6)
    if not selected or await page.evaluate("getSelection().toString()") != selected:
        problems.append(f"the selection of {selected!r} is gone")
    if "p50" not in pointed or (await chart.locator(".at").inner_text())[:8] != pointed[:8]:
        problems.append(f"the figures under the pointer are gone: {pointed!r}")
    await page.select_option("#request-kind", "all")
    await page.locator("#request-rows button").first.click()
    await page.wait_for_selector(".detail svg")
    await page.locator("#range-1h").click()
    other = await page.context.new_page()
    await other.goto(page.url)
    await other.wait_for_selector(".detail svg")
    if await other.get_attribute("#range-1h", "aria-pressed") != "true" or await other.input_value("#request-kind") != "all":
        problems.append(f"{page.url} does not bring back range and filter")
    await other.close()
    await page.locator("#replica-rows button").first.click()
    if "replica=" not in page.url or "request=" in page.url:
        problems.append(f"a replica does not lead to its requests: {page.url}")
    odd = re.findall(r"\b(?:false|none|null|undefined|NaN)\b.{0,30}|\[object.{0,30}|\{\".{0,30}", await page.inner_text("main"))
    problems += [f"says {words!r}" for words in odd if not words.startswith("none in the last hour")]


async def until(page, mark, live, seconds):
    """Whether title and mode of the page become these in time. The page's policy forbids to wait by script."""
    for _ in range(seconds * 2):
        if (await page.title()).startswith(mark) and await page.inner_text("#live") in live:
            return True
        await asyncio.sleep(0.5)
    return False


async def recovers(page, demo, problems):
    """From a gateway that stands still, and from a restart."""
    demo.process.send_signal(signal.SIGSTOP)
    if not await until(page, "?", ("live", "polling", "no connection"), 10):
        problems.append("a gateway that stands still is shown as live")
    demo.process.send_signal(signal.SIGCONT)
    demo.stop()
    demo.start()
    if not await until(page, "✓", ("live",), 40):
        problems.append(f"after a restart: {await page.inner_text('#live')!r}, {await page.title()!r}")


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--shots")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    demo, problems = Demo(arguments.binary), []
    address = f"http://127.0.0.1:{demo.admin}/"
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"])
        page = await (await browser.new_context(viewport={"width": 1440, "height": 900})).new_page()
        page.on("pageerror", lambda error: problems.append(f"script: {error}"))
        await asyncio.sleep(15)
        await page.goto(address)
        await page.wait_for_selector("#open-charts figure")
        await page.wait_for_selector("#replica-rows tr")
        await keeps(page, problems)
        for width in (1440, 390):
            for scheme in ("light", "dark"):
                looked = await (await browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)).new_page()
                await looked.goto(address)
                await looked.wait_for_selector("#open-charts figure")
                await looked.wait_for_selector("#replica-rows tr")
                wide = await looked.evaluate("document.documentElement.scrollWidth")
                problems += [f"{wide} wide at {width}"] if wide > width else []
                if arguments.shots:
                    await looked.screenshot(path=f"{arguments.shots}/page-{width}-{scheme}.png", full_page=True)
                await looked.context.close()
        await recovers(page, demo, problems)
        await browser.close()
    demo.stop()
    for problem in problems:
        print(f"! {problem}")
    print("ok" if not problems else "FAIL")
    sys.exit(bool(problems))


asyncio.run(main())
